//! What a guard does with a Copy, seen from below: which commands reach its child, and what is told above.

use crate::blocks::Core;
use namespace::copy::{Located, Place};
use namespace::layer::delay::{Delay, Delays};
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::layer::linear::Linear;
use namespace::memory::{Memory, MemoryOptions};
use namespace::{Data, Namespace, Queue, Request};
use nvme::opcode::io as opcode;
use nvme::{Limits, Status};
use reactor::Reactor;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BLOCKS: u64 = 64;

/// A command that has reached the child: opcode, first block, whether it has FUA.
type Seen = (u8, u64, bool);

/// Notes commands, and answers some of them itself.
#[derive(Debug)]
struct Watched {
    child: Arc<dyn Namespace>,
    seen: Mutex<Vec<Seen>>,
    answers: Mutex<Vec<(Seen, Status)>>,
    /// A command at which a Copy is given up.
    stops: Mutex<Option<(Seen, Arc<AtomicBool>)>>,
    whole: bool,
}

impl Namespace for Watched {
    fn limits(&self) -> Limits {
        self.child.limits()
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let child = Arc::clone(&self.child).open_queue(reactor)?;
        Ok(Rc::new(WatchedQueue { child, watched: self }))
    }

    fn refresh(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        self.child.resize(bytes)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn uri(&self) -> String {
        self.child.uri()
    }

    fn describe(&self, _facts: &mut Vec<(String, String)>) {}

    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    fn keeps_blocks_whole(&self) -> bool {
        self.whole
    }

    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        Arc::clone(&self.child).origin(slba, blocks)
    }
}

struct WatchedQueue {
    child: Rc<dyn Queue>,
    watched: Arc<Watched>,
}

impl Queue for WatchedQueue {
    fn submit(&self, request: Box<Request>) {
        let command = &request.command;
        let seen = (command.opcode, command.slba(), command.fua());
        self.watched.seen.lock().expect("no panic").push(seen);
        if let Some((at, stop)) = &*self.watched.stops.lock().expect("no panic")
            && *at == seen
        {
            stop.store(true, Ordering::Relaxed);
        }
        let answers = self.watched.answers.lock().expect("no panic");
        let answer = answers.iter().find(|(to, _)| *to == seen).map(|(_, status)| *status);
        drop(answers);
        match answer {
            Some(status) => request.finish(status),
            None => self.child.submit(request),
        }
    }

    fn forget(&self) {}
}

fn memory() -> Arc<dyn Namespace> {
    let bytes = BLOCKS << 12;
    let options = MemoryOptions { bytes, block_shift: 12, cores: 1, lend: true, uuid: None };
    Memory::open(options).expect("memory")
}

fn watched(whole: bool) -> Arc<Watched> {
    watched_over(memory(), whole)
}

fn watched_over(child: Arc<dyn Namespace>, whole: bool) -> Arc<Watched> {
    let (seen, answers, stops) = Default::default();
    Arc::new(Watched { child, seen, answers, stops, whole })
}

fn guarded(child: Arc<dyn Namespace>, read_only: bool) -> Arc<dyn Namespace> {
    let options = GuardOptions { read_only, ..GuardOptions::default() };
    Guard::new(child, options)
}

/// A guard over a watched child, and a second volume; block `n` of volume `v` holds `100 v + n + 1`.
fn stage() -> (Arc<Watched>, Core) {
    let below = watched(true);
    let core = Core::new(&[guarded(below.clone(), false), guarded(memory(), false)], 8 << 20);
    for (volume, block) in [0, 1].into_iter().flat_map(|it| (0..BLOCKS).map(move |at| (it, at))) {
        core.run(vec![(volume, core.write(block, &[volume as u64 * 100 + block + 1]))]);
    }
    below.seen.lock().expect("no panic").clear();
    (below, core)
}

impl Watched {
    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().expect("no panic"))
    }

    fn answer(&self, to: Seen, status: Status) {
        self.answers.lock().expect("no panic").push((to, status));
    }
}

fn with_fua(mut request: Box<Request>) -> Box<Request> {
    request.command.cdw12 = (request.command.cdw12.get() | 1 << 30).into();
    request
}

#[test]
fn ranges_go_down_together_and_fua_with_them() {
    let (below, core) = stage();
    let copy = with_fua(core.copy(0, 40, &[(0, 0, 4), (0, 20, 4)], false));
    let outcome = core.run(vec![(0, copy)]).remove(0);
    assert_eq!(outcome.status, Status::SUCCESS);
    assert_eq!(below.take(), [(opcode::COPY, 40, true)]);
    let held = core.read(0, 40, 8);
    assert_eq!(held, [1, 2, 3, 4, 21, 22, 23, 24].map(Some));
}

#[test]
fn what_overlaps_goes_down_by_itself() {
    let (below, core) = stage();
    // The third range reads what the first writes.
    let spans = [(0, 0, 2), (0, 20, 2), (0, 41, 2), (0, 30, 2)];
    let outcome = core.run(vec![(0, core.copy(0, 40, &spans, false))]).remove(0);
    assert_eq!(outcome.status, Status::SUCCESS);
    let commands = [(opcode::COPY, 40, false), (opcode::COPY, 44, false)];
    assert_eq!(below.take(), commands);
    assert_eq!(core.read(0, 40, 8), [1, 2, 21, 22, 2, 21, 31, 32].map(Some));
}

#[test]
fn what_is_refused_is_read_and_written_with_fua() {
    let (below, core) = stage();
    below.answer((opcode::COPY, 40, true), Status::FAST_COPY_NOT_POSSIBLE);
    let copy = |at| with_fua(core.copy(0, at, &[(0, 0, 4)], false));
    assert_eq!(core.run(vec![(0, copy(40))]).remove(0).status, Status::SUCCESS);
    let wanted = [(opcode::COPY, 40, true), (opcode::READ, 0, false), (opcode::WRITE, 40, true)];
    assert_eq!(below.take(), wanted);
    assert_eq!(core.read(0, 40, 4), [1, 2, 3, 4].map(Some));
    below.take();
    // It may go better with the next one.
    assert_eq!(core.run(vec![(0, copy(50))]).remove(0).status, Status::SUCCESS);
    assert_eq!(below.take(), [(opcode::COPY, 50, true)]);
}

#[test]
fn what_is_refused_for_good_is_not_tried_again() {
    let (below, core) = stage();
    let refused = Status::FAST_COPY_NOT_POSSIBLE.dnr();
    below.answer((opcode::COPY, 40, false), refused);
    let copy = |from, at| (0, core.copy(0, at, &[(from, 0, 2)], false));
    core.run(vec![copy(1, 40)]);
    let moved = [(opcode::COPY, 40, false), (opcode::WRITE, 40, false)];
    assert_eq!(below.take(), moved, "the other volume is read, not this one");
    core.run(vec![copy(1, 50)]);
    assert_eq!(below.take(), [(opcode::WRITE, 50, false)]);
    // Which says nothing of other kinds of sources.
    core.run(vec![copy(0, 50)]);
    assert_eq!(below.take(), [(opcode::COPY, 50, false)]);
    core.run(vec![copy(0, 40)]);
    core.run(vec![copy(0, 52)]);
    let moved = [
        (opcode::COPY, 40, false),
        (opcode::READ, 0, false),
        (opcode::WRITE, 40, false),
        (opcode::READ, 0, false),
        (opcode::WRITE, 52, false),
    ];
    assert_eq!(below.take(), moved);
    let mut facts = Vec::new();
    core.volumes[0].namespace.describe(&mut facts);
    let means = facts.iter().find(|(fact, _)| fact == "copy").map(|(_, means)| means.as_str());
    assert_eq!(means, Some("read and written here: refused below"));
}

#[test]
fn nobody_reads_and_writes_for_fast_copy_only() {
    let (below, core) = stage();
    below.answer((opcode::COPY, 42, false), Status::FAST_COPY_NOT_POSSIBLE.dnr());
    // Two kinds of sources: two commands, of which the first succeeds.
    let copy = core.copy(0, 40, &[(0, 0, 2), (1, 8, 2), (0, 4, 1)], true);
    let outcome = core.run(vec![(0, copy)]).remove(0);
    assert_eq!(outcome.status.code(), Status::FAST_COPY_NOT_POSSIBLE);
    assert_eq!(outcome.result, 1);
    assert_eq!(below.take(), [(opcode::COPY, 40, false), (opcode::COPY, 42, false)]);
    assert_eq!(core.read(0, 40, 5), [1, 2, 43, 44, 45].map(Some));
}

#[test]
fn the_lowest_range_that_was_not_copied_is_told() {
    let (below, core) = stage();
    below.answer((opcode::COPY, 40, false), Status::FAST_COPY_NOT_POSSIBLE);
    below.answer((opcode::READ, 10, false), Status::UNRECOVERED_READ);
    let copy = core.copy(0, 40, &[(0, 0, 1), (0, 1, 1), (0, 10, 1), (0, 3, 1)], false);
    let outcome = core.run(vec![(0, copy)]).remove(0);
    assert_eq!((outcome.status, outcome.result), (Status::UNRECOVERED_READ, 2));
    assert_eq!(core.read(0, 40, 3), [1, 2, 43].map(Some));
    // The request has its sources again.
    let Data::Sources(sources) = &outcome.data else { panic!("a Copy comes back as it went") };
    assert_eq!(sources.blocks(), 4);
}

#[test]
fn what_was_copied_of_a_range_before_its_rest_was_refused_is_not_copied_again() {
    let parts = [watched(true), watched(true)];
    let linear = Linear::new(parts.iter().map(|it| it.clone() as Arc<dyn Namespace>).collect());
    let linear = linear.expect("blocks of one size");
    let core = Core::new(&[guarded(linear, false), guarded(memory(), false)], 8 << 20);
    let numbers: Vec<u64> = (1..9).collect();
    core.run(vec![(1, core.write(20, &numbers))]);
    // The second part refuses in the middle of the second range. Nobody needs to write to the first part then.
    parts[1].answer((opcode::COPY, 0, false), Status::FAST_COPY_NOT_POSSIBLE);
    for slba in 0..BLOCKS {
        parts[0].answer((opcode::WRITE, slba, false), Status::WRITE_FAULT);
    }
    let spans = [(1, 20, 2), (1, 22, 5), (1, 27, 1)];
    let copy = |core: &Core| core.run(vec![(0, core.copy(0, BLOCKS - 5, &spans, false))]).remove(0);
    let outcome = copy(&core);
    assert_eq!((outcome.status, outcome.result), (Status::SUCCESS, 0));
    assert_eq!(parts[0].take(), [(opcode::COPY, BLOCKS - 5, false)]);
    let seen = parts[1].take();
    assert_eq!(seen[..2], [(opcode::COPY, 0, false), (opcode::WRITE, 0, false)]);
    assert_eq!(core.read(0, BLOCKS - 5, 8), numbers.iter().copied().map(Some).collect::<Vec<_>>());
    // What is left of a range cannot be written: that range is named.
    parts[1].answer((opcode::WRITE, 0, false), Status::WRITE_FAULT);
    let outcome = copy(&core);
    assert_eq!((outcome.status, outcome.result), (Status::WRITE_FAULT, 1));
}

#[test]
fn a_read_only_volume_is_not_copied_to() {
    let below = watched(true);
    let core = Core::new(&[guarded(below.clone(), true)], 8 << 20);
    assert!(core.volumes[0].namespace.limits().copy.is_offered());
    let outcome = core.run(vec![(0, core.copy(0, 4, &[(0, 0, 1)], false))]).remove(0);
    assert_eq!(outcome.status, Status::NAMESPACE_WRITE_PROTECTED.dnr());
    assert_eq!(below.take(), []);
}

/// A front door need not see that the other volume is the same one; overlaps count all the same.
#[test]
fn the_same_volume_is_known_whatever_it_is_called() {
    let (_, core) = stage();
    let mut copy = core.copy(0, 2, &[(0, 0, 20)], false);
    let Data::Sources(sources) = &mut copy.data else { panic!("just made") };
    sources.ranges[0].place = Place::Other(Rc::clone(&core.volumes[0]));
    assert_eq!(core.run(vec![(0, copy)]).remove(0).status, Status::SUCCESS);
    assert!(core.read(0, 2, 20).into_iter().eq((1..=20).map(Some)));
}

#[test]
fn it_is_told_where_blocks_are_and_who_keeps_them_apart() {
    let torn = guarded(watched(false), false);
    let whole = guarded(memory(), false);
    let located = Arc::clone(&torn).origin(7, 100).expect("memory tells");
    assert_eq!((located.slba, located.blocks), (7, BLOCKS - 7));
    assert_eq!(located.guard.as_ref().map(|(_, slba)| *slba), Some(7));
    let guard = located.guard.expect("just looked").0;
    assert!(std::ptr::addr_eq(Arc::as_ptr(&guard), Arc::as_ptr(&torn)));
    assert!(Arc::clone(&whole).origin(7, 1).expect("memory tells").guard.is_none());
    let linear: Arc<dyn Namespace> =
        Linear::new(vec![memory(), whole, torn]).expect("blocks of one size");
    let at = |slba| {
        let located = Arc::clone(&linear).origin(slba, 1000).expect("memory tells");
        (located.slba, located.blocks, located.guard.map(|(_, slba)| slba))
    };
    assert_eq!(at(3), (3, BLOCKS - 3, None));
    assert_eq!(at(BLOCKS + 5), (5, BLOCKS - 5, None));
    assert_eq!(at(2 * BLOCKS + 6), (6, BLOCKS - 6, Some(6)));
    // A guard over children that all keep blocks whole uses no table of its own.
    let at = |volume: Arc<dyn Namespace>, slba| {
        volume.origin(slba, 1).expect("memory tells").guard.map(|(_, slba)| slba)
    };
    assert_eq!(at(guarded(linear, false), 2 * BLOCKS + 6), Some(6));
    // The outermost that does is enough: whatever reaches the blocks passes it.
    let parts = vec![guarded(watched(false), false), watched(false)];
    let linear = Linear::new(parts).expect("blocks of one size");
    assert_eq!(at(linear.clone(), 6), Some(6));
    assert_eq!(at(linear.clone(), BLOCKS + 6), None);
    assert_eq!(at(guarded(linear, false), BLOCKS + 6), Some(BLOCKS + 6));
}

#[test]
fn it_is_counted_who_has_copied() {
    // Within a child; between children, by the processor; between children of which one is not looked through.
    let hidden: Arc<dyn Namespace> = Delay::new(memory(), Delays::default());
    let linear = Linear::new(vec![memory(), memory(), hidden]).expect("blocks of one size");
    let core = Core::new(&[guarded(linear, false)], 8 << 20);
    let counted = |from, to| {
        let before = core.volumes[0].namespace.copied();
        let outcome = core.run(vec![(0, core.copy(0, to, &[(0, from, 3)], false))]).remove(0);
        assert_eq!(outcome.status, Status::SUCCESS);
        let after = core.volumes[0].namespace.copied();
        let (fast, slow) = (before.offloaded_bytes, before.moved_bytes);
        ((after.offloaded_bytes - fast) >> 12, (after.moved_bytes - slow) >> 12)
    };
    assert_eq!(counted(0, 10), (3, 0));
    assert_eq!(counted(0, BLOCKS + 10), (3, 0));
    assert_eq!(counted(2 * BLOCKS, 10), (0, 3));
    assert_eq!(counted(2 * BLOCKS - 1, 10), (1, 2));
    // It hides where its blocks are, and passes on what is copied to them.
    assert_eq!(counted(10, 2 * BLOCKS - 2), (3, 0));
}

#[test]
fn what_was_counted_stays_so_when_a_copy_fails() {
    // Two ranges that are read and written below, of which the second cannot be read.
    let hidden = watched_over(Delay::new(memory(), Delays::default()), true);
    let failure = Status::UNRECOVERED_READ;
    hidden.answer((opcode::READ, 8, false), failure);
    let linear = Linear::new(vec![memory(), hidden]).expect("blocks of one size");
    let core = Core::new(&[guarded(linear, false)], 8 << 20);
    let copied = |spans: &[(usize, u64, u32)]| {
        let status = core.run(vec![(0, core.copy(0, 20, spans, false))]).remove(0).status;
        let copied = core.volumes[0].namespace.copied();
        (status, copied.offloaded_bytes >> 12, copied.moved_bytes >> 12)
    };
    assert_eq!(copied(&[(0, 0, 3)]), (Status::SUCCESS, 3, 0));
    let ranges = [(0, BLOCKS, 2), (0, 0, 1), (0, BLOCKS + 8, 1)];
    assert_eq!(copied(&ranges), (failure, 4, 2), "what was copied before it failed");
}

#[test]
fn what_was_copied_before_a_refusal_is_counted() {
    let below = watched(true);
    below.answer((opcode::COPY, 0, false), Status::FAST_COPY_NOT_POSSIBLE);
    let linear = Linear::new(vec![memory(), below]).expect("blocks of one size");
    let core = Core::new(&[guarded(linear, false), guarded(memory(), false)], 8 << 20);
    core.run(vec![(1, core.write(3, &[5, 6, 7, 8]))]);
    // One range whole and one in part, to the first child; the rest is for the one that refuses.
    let copy = core.copy(0, BLOCKS - 3, &[(1, 3, 2), (1, 5, 2)], false);
    assert_eq!(core.run(vec![(0, copy)]).remove(0).status, Status::SUCCESS);
    let copied = core.volumes[0].namespace.copied();
    assert_eq!((copied.offloaded_bytes >> 12, copied.moved_bytes >> 12), (3, 1));
    assert_eq!(core.read(0, BLOCKS - 3, 4), [5, 6, 7, 8].map(Some));
}

/// As where a stack has a UUID of its own: the guard on top leaves sources to the one below.
#[test]
fn a_guard_on_a_guard_passes_other_volumes_down() {
    let below = watched(false);
    let twice = guarded(guarded(below.clone(), false), false);
    let core = Core::new(&[twice, guarded(memory(), false)], 8 << 20);
    core.run(vec![(1, core.write(3, &[5, 6, 7]))]);
    let copy = core.copy(0, 20, &[(1, 3, 2), (0, 60, 1), (1, 5, 1)], false);
    assert_eq!(core.run(vec![(0, copy)]).remove(0).status, Status::SUCCESS);
    let commands = [20, 22, 23].map(|slba| (opcode::COPY, slba, false));
    assert_eq!(below.take(), commands);
    assert_eq!(core.read(0, 20, 4), [5, 6, 0, 7].map(Some));
}

#[test]
fn what_was_given_up_goes_no_further() {
    let (below, core) = stage();
    let stop = Arc::new(AtomicBool::new(false));
    let stoppable = |mut request: Box<Request>| {
        let Data::Sources(sources) = &mut request.data else { panic!("it is a Copy") };
        sources.stop = Some(Arc::clone(&stop));
        request
    };
    // Hints and protection information stay above; who may look at a Copy knows FUA.
    let mut copy = stoppable(with_fua(core.copy(0, 40, &[(0, 0, 4)], false)));
    copy.command.cdw3 = 7.into();
    copy.command.cdw12 |= 0x3f << 20;
    assert_eq!(core.run(vec![(0, copy)]).remove(0).status, Status::SUCCESS);
    assert_eq!(below.take(), [(opcode::COPY, 40, true)]);
    stop.store(true, Ordering::Relaxed);
    for volume in [0, 1] {
        let copy = stoppable(core.copy(0, 50, &[(volume, 0, 2), (0, 4, 1)], false));
        let outcome = core.run(vec![(0, copy)]).remove(0);
        assert_eq!((outcome.status, outcome.result), (Status::ABORT_REQUESTED, 0));
    }
    assert_eq!(below.take(), []);
    assert_eq!(core.read(0, 50, 3), [51, 52, 53].map(Some));
}

#[test]
fn what_was_given_up_while_it_waited_for_its_blocks_does_not_write() {
    let slow = Delays { write: Duration::from_millis(50), ..Delays::default() };
    let below = watched_over(Delay::new(memory(), slow), false);
    let core = Core::new(&[guarded(below.clone(), false)], 8 << 20);
    core.run(vec![(0, core.write(0, &[1]))]);
    let stop = Arc::new(AtomicBool::new(false));
    let mut copy = core.copy(0, 40, &[(0, 0, 1)], false);
    let Data::Sources(sources) = &mut copy.data else { panic!("it is a Copy") };
    sources.stop = Some(Arc::clone(&stop));
    *below.stops.lock().expect("no panic") = Some(((opcode::READ, 5, false), Arc::clone(&stop)));
    below.take();
    // The write has the block when the Copy comes for it, and the read says that nobody wants the Copy.
    let requests = vec![(0, core.write(40, &[7])), (0, copy), (0, core.reading(5, 1))];
    let outcomes = core.run(requests);
    assert_eq!((outcomes[1].status, outcomes[1].result), (Status::ABORT_REQUESTED, 0));
    assert_eq!(below.take(), [(opcode::WRITE, 40, false), (opcode::READ, 5, false)]);
    assert_eq!(core.read(0, 40, 1), [Some(7)]);
}
