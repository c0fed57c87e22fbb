//! Copies through programs: what goes to the children as a Copy, what is read and written, and what a program sees of it.

use crate::blocks::{Core, Span};
use crate::gate::{Gate, Opened, Rules};
use crate::stacks::{object, routed};
use namespace::file::{File, FileOptions};
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::layer::program::{Elsewhere, ForKernel, Routed};
use namespace::memory::{Memory, MemoryOptions};
use namespace::{Namespace, ProgramReport, Request, Sink};
use nvme::Status;
use nvme::opcode::io as opcode;
use reactor::Drive;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const SHIFT: u8 = 12;
/// What has not happened by then never will.
const PATIENCE: Duration = Duration::from_secs(20);
/// What does not happen within this is held back.
const A_WHILE: Duration = Duration::from_millis(300);

fn memory(blocks: u64) -> Arc<dyn Namespace> {
    let bytes = blocks << SHIFT;
    let options = MemoryOptions { bytes, block_shift: SHIFT, cores: 1, lend: true, uuid: None };
    Memory::open(options).expect("memory")
}

fn file(folder: &Path, blocks: u64) -> Arc<dyn Namespace> {
    File::open(&FileOptions {
        path: folder.join("file"),
        create_bytes: Some(blocks << SHIFT),
        block_shift: Some(SHIFT),
        read_only: false,
        shared: false,
        buffered: true,
        uuid: None,
        is_path: false,
        made: None,
    })
    .expect("a file")
}

fn guarded(child: Arc<dyn Namespace>, read_only: bool) -> Arc<dyn Namespace> {
    let options = GuardOptions { read_only, ..GuardOptions::default() };
    Guard::new(child, options)
}

/// Volumes and what their blocks hold.
struct Volumes {
    core: Core,
    model: Vec<Vec<u64>>,
}

impl Volumes {
    /// Every block has a number that no other block of any volume has.
    fn new(children: &[Arc<Routed>]) -> Volumes {
        let guard = |child: &Arc<Routed>| guarded(Arc::clone(child) as Arc<dyn Namespace>, false);
        Volumes::of(&children.iter().map(guard).collect::<Vec<_>>())
    }

    fn of(volumes: &[Arc<dyn Namespace>]) -> Volumes {
        let core = Core::new(volumes, 16 << 20);
        let mut model = Vec::new();
        for (volume, namespace) in volumes.iter().enumerate() {
            let first = 1 + ((volume as u64) << 32);
            let numbers: Vec<u64> = (first..first + namespace.limits().blocks).collect();
            let mut at = 0;
            for numbers in numbers.chunks(core.blocks_max(volume) as usize) {
                let written = core.run(vec![(volume, core.write(at, numbers))]).remove(0);
                assert!(written.status.is_success(), "{} at {at}", written.status);
                at += numbers.len() as u64;
            }
            model.push(numbers);
        }
        Volumes { core, model }
    }

    /// Carries out a Copy, in the model too if that succeeds.
    fn copy(&mut self, to: usize, slba: u64, spans: &[Span]) -> (Status, u64) {
        let copy = self.core.copy(to, slba, spans, false);
        let outcome = self.core.run(vec![(to, copy)]).remove(0);
        if outcome.status.is_success() {
            self.model_copy(to, slba, spans);
        }
        (outcome.status, outcome.result)
    }

    fn model_copy(&mut self, to: usize, slba: u64, spans: &[Span]) {
        let mut at = slba as usize;
        for &(from, slba, blocks) in spans {
            let (slba, blocks) = (slba as usize, blocks as usize);
            let read = self.model[from][slba..slba + blocks].to_vec();
            self.model[to][at..at + blocks].copy_from_slice(&read);
            at += blocks;
        }
    }

    #[track_caller]
    fn check(&self) {
        (0..self.model.len()).for_each(|volume| self.check_one(volume));
    }

    #[track_caller]
    fn check_one(&self, volume: usize) {
        let model = &self.model[volume];
        let read = self.core.read(volume, 0, model.len() as u64);
        let differs = read.iter().zip(model).position(|(read, model)| *read != Some(*model));
        assert_eq!(differs, None, "volume {volume}, block");
    }

    /// Blocks that were copied below, and that were read and written.
    fn counted(&self, volume: usize) -> (u64, u64) {
        let copied = self.core.volumes[volume].namespace.copied();
        (copied.offloaded_bytes >> SHIFT, copied.moved_bytes >> SHIFT)
    }
}

#[test]
fn pieces_go_to_the_children_they_lie_in() {
    let stripe = routed("stripe", vec![memory(320), memory(320), memory(320)], 1);
    let linear = routed("linear", vec![memory(100), memory(300), memory(560)], 1);
    let scattered = routed("tests/scattered", vec![memory(483), memory(483)], 1);
    let moved = routed("tests/moved", vec![memory(960)], 1);
    let mut volumes = Volumes::new(&[stripe, linear, scattered, moved]);
    let last = volumes.model.len();
    for volume in 0..last {
        assert_eq!(volumes.model[volume].len(), 960);
        // Across boundaries; over itself in both directions; several ranges, of which one reads what another has written.
        let copies: [(u64, &[(u64, u32)]); 6] = [
            (500, &[(3, 350)]),
            (7, &[(0, 123)]),
            (0, &[(11, 200)]),
            (470, &[(390, 95)]),
            (600, &[(1, 1), (90, 30), (600, 31), (16, 32), (48, 16)]),
            (99, &[(399, 2), (98, 3)]),
        ];
        for (slba, ranges) in copies {
            let spans: Vec<Span> =
                ranges.iter().map(|&(slba, blocks)| (volume, slba, blocks)).collect();
            assert_eq!(volumes.copy(volume, slba, &spans), (Status::SUCCESS, 0), "{volume}");
            volumes.check_one(volume);
        }
        let (offloaded, moved) = volumes.counted(volume);
        let copied: u32 = copies.iter().flat_map(|copy| copy.1).map(|range| range.1).sum();
        assert_eq!(offloaded + moved, u64::from(copied), "{volume}");
        match volume {
            // A twentieth has two places, and is asked for with its neighbours.
            2 => assert!(moved > 50 && offloaded > 300, "{offloaded} and {moved}"),
            _ => assert_eq!(moved, 0, "{volume}: memory is copied to memory"),
        }
    }
    // Of a volume behind a program nobody knows where blocks are without asking it: it is read.
    let before = volumes.counted(0);
    assert_eq!(volumes.copy(0, 5, &[(1, 50, 100)]), (Status::SUCCESS, 0));
    assert_eq!(volumes.counted(0), (before.0, before.1 + 100));
    volumes.check();
}

#[test]
fn what_no_child_copies_is_read_from_one_and_written_to_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let linear = routed("linear", vec![memory(128), file(folder.path(), 128)], 1);
    let plain = guarded(memory(256), false);
    let mut volumes = Volumes::of(&[guarded(linear, false), plain]);
    // From memory to the file, and back; the rest of each stays on its side.
    assert_eq!(volumes.copy(0, 100, &[(0, 28, 60)]), (Status::SUCCESS, 0));
    assert_eq!(volumes.counted(0), (28, 32));
    volumes.check();
    // Of another volume: the memory can be copied from there, the file cannot, and only that is moved above.
    assert_eq!(volumes.copy(0, 0, &[(1, 0, 64)]), (Status::SUCCESS, 0));
    assert_eq!(volumes.counted(0), (92, 32));
    assert_eq!(volumes.copy(0, 192, &[(1, 64, 64)]), (Status::SUCCESS, 0));
    assert_eq!(volumes.counted(0), (92, 96));
    assert_eq!(volumes.copy(0, 120, &[(1, 100, 8), (1, 200, 8)]), (Status::SUCCESS, 0));
    volumes.check();
}

#[test]
fn fast_copies_only_go_where_a_program_keeps_no_notes() {
    let routes = ["linear", "tests/picky"].map(|name| routed(name, vec![memory(64)], 1));
    let volumes = Volumes::new(&routes);
    let fast = |volume| {
        let copy = volumes.core.copy(volume, 32, &[(volume, 0, 8)], true);
        volumes.core.run(vec![(volume, copy)]).remove(0).status
    };
    assert_eq!(fast(0), Status::SUCCESS);
    assert_eq!(fast(1).code(), Status::FAST_COPY_NOT_POSSIBLE);
    assert_eq!(noted(&routes[1])[BLOCKS + 2], 0, "it was not asked");
    assert_eq!(volumes.core.read(1, 32, 1), [Some(volumes.model[1][32])]);
}

/// Where [`noted`] has the number of blocks, by opcode; and the most that was in flight.
const BLOCKS: usize = 4;
const BUSIEST: usize = 8;

/// What `picky` has noted: requests by opcode, blocks by opcode, and the most in flight.
fn noted(routed: &Routed) -> [u64; 9] {
    let report = routed.report();
    let map = report.maps.iter().find(|map| map.name == "notes").expect("it takes notes");
    let mut notes = [0; 9];
    for (key, values) in &map.entries {
        let key = u32::from_le_bytes(key[..].try_into().expect("a key"));
        notes[key as usize] = word(&values[0]);
    }
    notes
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

#[test]
fn a_program_is_asked_for_each_block_once_on_each_side() {
    // More than memory copies at once, more than one request, and several ranges.
    let routed = routed("tests/picky", vec![memory(4096)], 1);
    let mut volumes = Volumes::new(&[Arc::clone(&routed)]);
    let before = noted(&routed);
    assert_eq!((before[BLOCKS + 1], before[BLOCKS + 2]), (4096, 0));
    let spans = [(0, 500, 700), (0, 500, 1), (0, 500, 1), (0, 600, 100)];
    assert_eq!(volumes.copy(0, 3000, &spans), (Status::SUCCESS, 0));
    // Over itself, from its end.
    assert_eq!(volumes.copy(0, 1000, &[(0, 900, 800)]), (Status::SUCCESS, 0));
    let after = noted(&routed);
    let copied = 802 + 800;
    assert_eq!(after[BLOCKS + 2], copied, "asked where they are");
    assert_eq!(after[BLOCKS + 1] - before[BLOCKS + 1], copied, "asked where they go");
    assert_eq!(volumes.counted(0), (copied, 0));
    volumes.check();
}

#[test]
fn what_a_program_answers_reads_and_writes_with_copies_get_too() {
    let routed = routed("tests/picky", vec![memory(1024)], 1);
    let core = Core::new(&[guarded(routed.clone(), false)], 16 << 20);
    for part in [0..100, 101..400, 401..1024] {
        let numbers: Vec<u64> = part.clone().map(|block| block + 1).collect();
        for (at, numbers) in part.step_by(64).zip(numbers.chunks(64)) {
            let written = core.run(vec![(0, core.write(at, numbers))]).remove(0);
            assert!(written.status.is_success(), "{} at {at}", written.status);
        }
    }
    let run = |slba, spans: &[Span]| {
        let outcome = core.run(vec![(0, core.copy(0, slba, spans, false))]).remove(0);
        (outcome.status.code(), outcome.result)
    };
    let read = |slba, blocks| core.read(0, slba, blocks);
    let some = |numbers: std::ops::Range<u64>| numbers.map(Some).collect::<Vec<_>>();
    // A write that fails. What comes before is copied.
    assert_eq!(run(90, &[(0, 500, 4), (0, 600, 10)]), (Status::WRITE_FAULT, 1));
    assert_eq!(read(90, 4), some(501..505));
    // A read for which the program gives up: told once, though it was asked before.
    assert_eq!(routed.report().mistakes, 0);
    assert_eq!(run(700, &[(0, 510, 4), (0, 196, 8)]), (Status::INTERNAL, 1));
    assert_eq!(routed.report().mistakes, 1);
    assert_eq!(read(700, 4), some(511..515));
    // A read that ends without a backend: zeroes, of the whole request.
    assert_eq!(run(720, &[(0, 296, 8)]), (Status::SUCCESS, 0));
    assert_eq!(read(720, 8), [Some(0); 8]);
    assert!(routed.limits().copy.is_offered());
    // A write that waits: so it does, and no further Copies come here.
    let start = Instant::now();
    assert_eq!(run(396, &[(0, 800, 8)]), (Status::SUCCESS, 0));
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
    assert_eq!(read(396, 8), some(801..809));
    assert!(!routed.limits().copy.is_offered());
    let before = noted(&routed);
    assert_eq!(run(900, &[(0, 810, 8)]), (Status::SUCCESS, 0));
    assert_eq!(noted(&routed)[BLOCKS + 2] - before[BLOCKS + 2], 8);
    assert_eq!(read(900, 8), some(811..819));
}

#[test]
fn programs_that_want_to_see_reads_and_writes_see_them() {
    let over = |name| routed(name, vec![memory(2048), memory(2048)], 1);
    let routes = ["rate", "statistics", "mirror", "null"].map(over);
    let offered = |at: usize| routes[at].limits().copy.is_offered();
    assert_eq!([0, 1, 2, 3].map(offered), [true, false, false, true]);
    let mut volumes = Volumes::new(&routes[..3]);
    let reads = |routed: &Routed| -> u64 {
        let report = routed.report();
        let map = report.maps.iter().find(|map| map.name == "operations").expect("it counts");
        let of = map.entries.iter().find(|entry| entry.0 == 2u32.to_le_bytes());
        // Requests, then blocks.
        of.map_or(0, |of| word(&of.1[0][8..16]))
    };
    // 64 MiB/s for what is read and for what is written, of which 10 ms may be used up ahead.
    let start = Instant::now();
    for _ in 0..2 {
        assert_eq!(volumes.copy(0, 1024, &[(0, 0, 1024)]), (Status::SUCCESS, 0));
    }
    assert!(start.elapsed() >= Duration::from_millis(220), "{:?}", start.elapsed());
    assert!(!offered(0));
    assert_eq!(volumes.counted(0), (0, 2048));
    let before = reads(&routes[1]);
    for volume in [1, 2] {
        assert_eq!(volumes.copy(volume, 1024, &[(volume, 0, 1000)]), (Status::SUCCESS, 0));
        assert_eq!(volumes.counted(volume), (0, 1000));
    }
    assert_eq!(reads(&routes[1]) - before, 1000);
    volumes.check();
    // What is forgotten is forgotten when it is copied.
    let mut nothing = Volumes::new(&routes[3..]);
    assert_eq!(nothing.copy(0, 1024, &[(0, 0, 100)]), (Status::SUCCESS, 0));
    assert_eq!(nothing.core.read(0, 0, 2048), [Some(0); 2048]);
}

#[test]
fn children_that_cannot_copy_or_be_written_to_are_respected() {
    let protected = guarded(memory(64), true);
    let linear = routed("linear", vec![protected, memory(64)], 1);
    let core = Core::new(&[guarded(linear, false)], 16 << 20);
    let run = |slba, spans: &[Span]| {
        let outcome = core.run(vec![(0, core.copy(0, slba, spans, false))]).remove(0);
        (outcome.status.code(), outcome.result)
    };
    let written = core.run(vec![(0, core.write(64, &[5, 6, 7, 8]))]).remove(0);
    assert!(written.status.is_success());
    assert_eq!(run(0, &[(0, 64, 4)]), (Status::NAMESPACE_WRITE_PROTECTED, 0));
    assert_eq!(run(60, &[(0, 64, 8)]), (Status::NAMESPACE_WRITE_PROTECTED, 0));
    assert_eq!(run(65, &[(0, 0, 1), (0, 66, 2)]), (Status::SUCCESS, 0));
    assert_eq!(core.read(0, 64, 4), [5, 0, 7, 8].map(Some));
}

#[derive(Debug)]
struct Kernel;

impl Elsewhere for Kernel {
    fn report(&self) -> ProgramReport {
        ProgramReport { name: String::new(), mistakes: 0, maps: Vec::new() }
    }

    fn prepare(&self, _: ForKernel, _: &[String], _: bool) -> Result<Arc<ForKernel>, String> {
        Err("it takes no other".to_owned())
    }

    fn take_over(&self) -> Result<(), String> {
        unreachable!("nothing was prepared")
    }

    fn take_back(&self) {}

    fn forget(&self) {}
}

#[test]
fn a_program_that_runs_elsewhere_is_not_asked_here() {
    let routed = routed("linear", vec![memory(64)], 1);
    assert!(routed.limits().copy.is_offered());
    routed.hand_over(Arc::new(Kernel));
    assert!(!routed.limits().copy.is_offered());
}

/// What has come back, in this order.
#[derive(Default)]
struct Inbox(RefCell<Vec<(u64, Box<Request>)>>);

impl Sink for Inbox {
    fn completed(&self, request: Box<Request>, number: u64) {
        self.0.borrow_mut().push((number, request));
    }
}

impl Inbox {
    fn submit(self: &Rc<Self>, core: &Core, number: u64, mut request: Box<Request>) {
        request.push(Rc::clone(self) as Rc<dyn Sink>, number);
        core.volumes[0].queue.submit(request);
    }

    fn numbers(&self) -> Vec<u64> {
        self.0.borrow().iter().map(|came| came.0).collect()
    }

    fn wait(&self, core: &Core, count: usize) {
        turn_until(core, || self.0.borrow().len() == count);
        let came = self.0.borrow();
        came.iter().for_each(|came| assert_eq!(came.1.status, Status::SUCCESS, "{}", came.0));
    }
}

fn turn_until(core: &Core, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "it never holds");
        core.reactor.turn_for(Drive::Until(Instant::now() + Duration::from_millis(10)));
    }
}

fn turn(core: &Core) {
    let (end, mut turns) = (Instant::now() + A_WHILE, 0);
    // Some in any case, also where the machine stood still for all of the time.
    while turns < 10 || Instant::now() < end {
        core.reactor.turn_for(Drive::Until(end));
        turns += 1;
    }
}

#[test]
fn a_copy_that_is_under_way_counts_as_a_part_in_flight() {
    let gate = Gate::new(
        memory(64),
        Rules { opcodes: vec![opcode::COPY], whole: true, ..Rules::default() },
    );
    let _opened = Opened(&gate);
    let routed = routed("tests/picky", vec![gate.clone()], 1);
    let volumes = Volumes::of(&[guarded(routed.clone(), false)]);
    let (core, inbox) = (&volumes.core, Rc::new(Inbox::default()));
    assert_eq!(noted(&routed)[BUSIEST], 0);
    let came = gate.came.load(Ordering::Relaxed);
    inbox.submit(core, 0, core.copy(0, 32, &[(0, 0, 8)], false));
    turn_until(core, || gate.came.load(Ordering::Relaxed) > came);
    assert_eq!(noted(&routed)[BUSIEST], 0);
    inbox.submit(core, 1, core.reading(60, 1));
    turn_until(core, || !inbox.numbers().is_empty());
    assert_eq!((inbox.numbers(), noted(&routed)[BUSIEST]), (vec![1], 1));
    gate.open();
    inbox.wait(core, 2);
    // None is left.
    inbox.submit(core, 2, core.reading(61, 1));
    inbox.wait(core, 3);
    assert_eq!(noted(&routed)[BUSIEST], 1);
}

#[test]
fn another_program_takes_over_when_copies_have_ended() {
    let rules = Rules { opcodes: vec![opcode::COPY], whole: true, ..Rules::default() };
    let gate = Gate::new(memory(32), rules);
    let _opened = Opened(&gate);
    let routed = routed("linear", vec![gate.clone(), memory(32)], 1);
    let volumes = Volumes::of(&[guarded(routed.clone(), false)]);
    let (core, inbox) = (&volumes.core, Rc::new(Inbox::default()));
    let came = gate.came.load(Ordering::Relaxed);
    // To the end of one child and to the beginning of the other, which begins while the next program waits.
    inbox.submit(core, 0, core.copy(0, 30, &[(0, 0, 4)], false));
    turn_until(core, || gate.came.load(Ordering::Relaxed) > came);
    std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            // From here on 16 blocks are on each in turn.
            routed.replace(&object("stripe"), "stripe".to_owned())
        });
        // It has begun when a read does not come back.
        let mut reads = 0;
        while inbox.numbers().len() == reads && !next.is_finished() {
            reads += 1;
            inbox.submit(core, 100 + reads as u64, core.reading(60, 1));
            turn(core);
        }
        inbox.submit(core, 1, core.copy(0, 40, &[(0, 8, 4)], false));
        inbox.submit(core, 2, core.write(0, &[1000]));
        turn(core);
        assert!(!next.is_finished() && inbox.numbers().len() == reads - 1);
        assert_eq!(gate.came.load(Ordering::Relaxed), came + 1, "what comes is held back");
        gate.open();
        inbox.wait(core, reads + 3);
        assert_eq!(inbox.numbers()[reads - 1], 0);
        next.join().expect("no panic").expect("it is replaced");
    });
    let mut linear: Vec<u64> = (1..=64).collect();
    linear.copy_within(0..4, 30);
    let mut stripe: Vec<u64> =
        [0, 32, 16, 48].iter().flat_map(|&at| linear[at..at + 16].to_vec()).collect();
    stripe.copy_within(8..12, 40);
    stripe[0] = 1000;
    let read = core.read(0, 0, 64);
    assert_eq!(read, stripe.into_iter().map(Some).collect::<Vec<_>>());
}

/// Copies on one core while programs take over again and again, all of which put blocks at the same places.
#[test]
fn copies_go_on_while_programs_take_over() {
    let linear = routed("linear", vec![memory(100), memory(156)], 1);
    let program = Arc::clone(&linear);
    let mut volumes = Volumes::new(&[linear]);
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| {
            for _ in 0..30 {
                program.replace(&object("linear"), "linear".to_owned()).expect("it is replaced");
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let mut round = 0;
        while !replacing.is_finished() || round < 200 {
            let (from, to) = (round * 7 % 128, round * 11 % 128);
            let spans = [(0, from, 100), (0, to, 20)];
            assert_eq!(volumes.copy(0, to, &spans), (Status::SUCCESS, 0));
            round += 1;
        }
        replacing.join().expect("no panic");
    });
    volumes.check();
    let (offloaded, moved) = volumes.counted(0);
    assert!(offloaded > 0 && moved == 0, "{offloaded} and {moved}");
}
