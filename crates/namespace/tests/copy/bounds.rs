//! What Copies take of a core: memory, commands in flight, time of a turn.

use crate::blocks::Core;
use double::Double;
use namespace::layer::delay::{Delay, Delays};
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::memory::{Memory, MemoryOptions};
use namespace::{Data, Namespace, Queue, Request, Sink};
use nvme::limits::CopyLimits;
use nvme::opcode::io as opcode;
use nvme::{Command, Limits, Status};
use reactor::{Complete, Drive, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// As the crate states them (`copy::emulate`, `copy::room`, `copy::turn`).
const PIECE_BYTES: u64 = 128 << 10;
const FLIGHTS_MAX: u64 = 8;
const CORE_BYTES_MAX: usize = 8 << 20;
const TURN_BYTES_MAX: u64 = 1 << 20;

fn memory(bytes: u64) -> Arc<dyn Namespace> {
    let options = MemoryOptions { bytes, block_shift: 12, cores: 1, lend: true, uuid: None };
    Memory::open(options).expect("memory")
}

fn guarded(child: Arc<dyn Namespace>) -> Arc<dyn Namespace> {
    let options = GuardOptions::default();
    Guard::new(child, options)
}

/// What [`SlowQueue`] has seen.
#[derive(Default)]
struct Slow {
    most: AtomicU64,
    largest: AtomicU64,
}

/// Holds commands for a turn, copies nothing by itself, and counts.
struct SlowQueue {
    me: Weak<SlowQueue>,
    slow: Arc<Slow>,
    child: Rc<dyn Queue>,
    reactor: Rc<Reactor>,
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    held: RefCell<Vec<Box<Request>>>,
}

impl Queue for SlowQueue {
    fn submit(&self, request: Box<Request>) {
        self.slow.largest.fetch_max(request.data.len() as u64, Ordering::Relaxed);
        let mut held = self.held.borrow_mut();
        held.push(request);
        self.slow.most.fetch_max(held.len() as u64, Ordering::Relaxed);
        self.reactor.defer(self.me.upgrade().expect("alive"), 0);
    }

    fn forget(&self) {}
}

impl Complete for SlowQueue {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        let request = self.held.borrow_mut().remove(0);
        self.child.submit(request);
    }
}

fn slow(bytes: u64) -> (Arc<Slow>, Arc<dyn Namespace>) {
    slow_limited(bytes, |limits| limits)
}

fn slow_limited(bytes: u64, limit: fn(Limits) -> Limits) -> (Arc<Slow>, Arc<dyn Namespace>) {
    let counts = Arc::<Slow>::default();
    let slow = Arc::clone(&counts);
    let volume = Double::over(memory(bytes))
        .limited(move |limits| limit(Limits { copy: CopyLimits::NONE, immediate: false, ..limits }))
        .queues(move |child, reactor| {
            let (slow, reactor) = (Arc::clone(&slow), Rc::clone(reactor));
            let held = RefCell::default();
            Rc::new_cyclic(|me| SlowQueue { me: Weak::clone(me), slow, child, reactor, held })
        });
    (counts, guarded(Arc::new(volume)))
}

/// Of one that takes little at once, and can neither compare nor verify.
fn little(mut limits: Limits) -> Limits {
    limits.transfer_bytes_max = 2 << 12;
    (limits.commands.compare, limits.commands.verify) = (false, false);
    limits
}

/// Writes numbers to `blocks` blocks.
fn fill(core: &Core, blocks: u64) {
    for slba in 0..blocks {
        let outcome = core.run(vec![(0, core.write(slba, &[slba + 1]))]).remove(0);
        assert_eq!(outcome.status, Status::SUCCESS);
    }
}

#[test]
fn one_copy_has_eight_pieces_in_flight_at_most_and_nearly_always() {
    let (slow, volume) = slow(16 << 20);
    let core = Core::new(&[volume], 32 << 20);
    fill(&core, 2048);
    slow.most.store(0, Ordering::Relaxed);
    let outcome = core.run(vec![(0, core.copy(0, 2048, &[(0, 0, 2048)], false))]).remove(0);
    assert_eq!(outcome.status, Status::SUCCESS);
    assert_eq!(slow.largest.load(Ordering::Relaxed), PIECE_BYTES);
    assert_eq!(slow.most.load(Ordering::Relaxed), FLIGHTS_MAX);
    let held = core.read(0, 2048, 2048);
    assert!(held.into_iter().eq((1..=2048).map(Some)));
}

#[test]
fn many_copies_take_a_bounded_share_of_the_pool() {
    let (slow, volume) = slow(64 << 20);
    let core = Core::new(&[volume], 64 << 20);
    let copies = |count: u64| {
        (0..count).map(|copy| (0, core.copy(0, 8192 + copy * 128, &[(0, copy * 128, 128)], false)))
    };
    let lowest = Rc::new(Cell::new(usize::MAX));
    let meter = Rc::new(Meter { reactor: Rc::clone(&core.reactor), lowest: lowest.clone() });
    core.reactor.defer(meter.clone(), 0);
    let outcomes = core.run(copies(64).collect());
    assert!(outcomes.iter().all(|outcome| outcome.status.is_success()));
    let taken = core.reactor.buffers().capacity() - lowest.get();
    assert!(taken <= CORE_BYTES_MAX, "{taken} bytes");
    assert!(taken > CORE_BYTES_MAX / 2, "{taken} bytes");
    assert!(slow.most.load(Ordering::Relaxed) > FLIGHTS_MAX);
    assert_eq!(core.reactor.buffers().available(), core.reactor.buffers().capacity());
}

/// Looks at the pool in every turn, a hundred times.
struct Meter {
    reactor: Rc<Reactor>,
    lowest: Rc<Cell<usize>>,
}

impl Complete for Meter {
    fn complete(&self, turn: u64, _result: i32, _flags: u32) {
        self.lowest.set(self.lowest.get().min(self.reactor.buffers().available()));
        if turn < 100 {
            let (reactor, lowest) = (Rc::clone(&self.reactor), Rc::clone(&self.lowest));
            self.reactor.defer(Rc::new(Meter { reactor, lowest }), turn + 1);
        }
    }
}

#[test]
fn copies_go_on_while_others_hold_the_whole_pool() {
    let (_, volume) = slow(8 << 20);
    let core = Core::new(&[volume], 4 << 20);
    fill(&core, 256);
    let hold = || core.reactor.buffers().allocate(1 << 12);
    let all: Vec<_> = std::iter::from_fn(hold).collect();
    assert_eq!(core.reactor.buffers().available(), 0);
    let copies =
        (0..8).map(|copy| (0, core.copy(0, 256 + copy * 32, &[(0, copy * 32, 32)], false)));
    let outcomes = core.run(copies.collect());
    assert!(outcomes.iter().all(|outcome| outcome.status.is_success()));
    drop(all);
    let held = core.read(0, 256, 256);
    assert!(held.into_iter().eq((1..=256).map(Some)));
}

#[test]
fn what_is_read_to_be_verified_keeps_to_the_volumes_limit() {
    let (slow, volume) = slow_limited(8 << 20, little);
    let core = Core::new(&[volume], 4 << 20);
    let mut verify = Request::new();
    verify.command = Command::blocks(opcode::VERIFY, 1, 3, 65);
    assert_eq!(core.run(vec![(0, verify)]).remove(0).status, Status::SUCCESS);
    assert_eq!(slow.largest.load(Ordering::Relaxed), 2 << 12);
    assert!(slow.most.load(Ordering::Relaxed) > 0);
}

#[test]
fn what_comes_with_too_little_to_compare_is_refused() {
    let (_, volume) = slow_limited(8 << 20, little);
    let core = Core::new(&[volume], 4 << 20);
    fill(&core, 3);
    let refused = Status::SGL_LENGTH_INVALID.dnr();
    // In one piece, and in the second of two.
    for blocks in [2, 3] {
        let with = |numbers: &[u64]| {
            let mut compare = core.write(0, numbers);
            compare.command = Command::blocks(opcode::COMPARE, 1, 0, blocks);
            compare
        };
        let short = with(&[1, 2][..blocks as usize - 1]);
        let mut empty = with(&[1]);
        empty.data = Data::None;
        let mut pair = core.swap(0, &[1, 2, 3][..blocks as usize], &[4, 5, 6][..blocks as usize]);
        pair.data = Data::None;
        let requests = vec![(0, short), (0, empty), (0, pair), (0, with(&[1, 2, 3]))];
        let ended: Vec<_> = core.run(requests).iter().map(|outcome| outcome.status).collect();
        assert_eq!(ended, [refused, refused, refused, Status::SUCCESS]);
    }
}

/// Sets a flag in the next turn.
struct Stopping(Arc<AtomicBool>);

impl Complete for Stopping {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// As when a connection ends whose Copies stand in line for memory: whose turn it is then has no use for it.
#[test]
fn copies_that_are_stopped_in_line_for_memory_come_back() {
    let (_, volume) = slow(8 << 20);
    let core = Core::new(&[volume], 4 << 20);
    fill(&core, 256);
    let all: Vec<_> = std::iter::from_fn(|| core.reactor.buffers().allocate(1 << 12)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let copies = |stop: Option<&Arc<AtomicBool>>| {
        let copy = |number: u64| {
            let mut copy = core.copy(0, 1024 + number * 64, &[(0, number * 64, 64)], false);
            let Data::Sources(sources) = &mut copy.data else { panic!("a Copy's data") };
            sources.stop = stop.cloned();
            (0, copy)
        };
        (0..4).map(copy).collect()
    };
    core.reactor.defer(Rc::new(Stopping(Arc::clone(&stop))), 0);
    let outcomes = core.run(copies(Some(&stop)));
    assert!(outcomes.iter().any(|outcome| outcome.status == Status::ABORT_REQUESTED));
    // Those who come later do not find the line standing.
    let outcomes = core.run(copies(None));
    assert!(outcomes.iter().all(|outcome| outcome.status.is_success()));
    drop(all);
}

#[test]
fn what_the_core_copies_itself_is_done_in_many_turns() {
    let blocks = (8 * TURN_BYTES_MAX / 4096) as u32;
    // By the backend's means, and by reading and writing: `delay` without a delay has no origin to tell.
    let delayed: Arc<dyn Namespace> = Delay::new(memory(16 << 20), Delays::default());
    for (from, volumes) in [
        (0, vec![guarded(memory(32 << 20))]),
        (1, vec![guarded(memory(32 << 20)), guarded(delayed)]),
    ] {
        let core = Core::new(&volumes, 32 << 20);
        let before = core.reactor.stats().turns;
        let slba = if from == 0 { 4096 } else { 0 };
        let outcome =
            core.run(vec![(0, core.copy(0, slba, &[(from, 0, blocks)], false))]).remove(0);
        assert_eq!(outcome.status, Status::SUCCESS);
        let turns = core.reactor.stats().turns - before;
        assert!((7..100).contains(&turns), "{turns} turns");
        core.reactor.turn_for(Drive::Until(std::time::Instant::now() + Duration::from_millis(1)));
    }
}

/// A front door may give up: what has not come back is forgotten with the queues.
#[test]
fn queues_may_be_dropped_while_copies_wait_for_their_turn() {
    let delayed: Arc<dyn Namespace> = Delay::new(memory(16 << 20), Delays::default());
    let (_, slow) = slow(16 << 20);
    let volumes = [guarded(memory(16 << 20)), guarded(delayed), slow];
    for (from, to) in [(0, 0), (1, 0), (2, 2), (2, 0)] {
        let core = Core::new(&volumes, 32 << 20);
        let reactor = Rc::clone(&core.reactor);
        let back = Rc::new(Forgotten);
        for _ in 0..3 {
            let mut request = core.copy(to, 2048, &[(from, 0, 2048)], false);
            request.push(back.clone(), 0);
            core.volumes[to].queue.submit(request);
        }
        drop(core);
        for _ in 0..100 {
            reactor.turn_for(Drive::Poll);
        }
        assert_eq!(reactor.buffers().available(), reactor.buffers().capacity(), "{from} to {to}");
    }
}

struct Forgotten;

impl Sink for Forgotten {
    fn completed(&self, _request: Box<Request>, _state: u64) {}
}
