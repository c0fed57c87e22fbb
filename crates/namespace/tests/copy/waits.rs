//! What waits for a disk that hangs, and what does not.

use crate::blocks::Core;
use crate::gate::{Gate, Opened, Rules};
use double::Double;
use namespace::file::{File, FileOptions};
use namespace::layer::delay::{Delay, Delays};
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::memory::{Memory, MemoryOptions};
use namespace::{Data, Namespace, Request, Sink};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::{Config, Drive, Reactor};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What has not happened by then never will.
const PATIENCE: Duration = Duration::from_secs(20);
/// What does not happen within this is held back.
const A_WHILE: Duration = Duration::from_millis(300);

/// Blocks of the large volumes (4 KiB), and of a Copy of 96 MiB.
const BLOCKS: u64 = 64 << 10;
const LARGE: u32 = 24 << 10;
/// Of a Copy that is too large to wait with its blocks held.
const STEP: u64 = 72;

fn guarded(child: Arc<dyn Namespace>) -> Arc<dyn Namespace> {
    let options = GuardOptions { cores: 2, ..GuardOptions::default() };
    Guard::new(child, options)
}

fn file(folder: &Path, name: &str) -> Arc<dyn Namespace> {
    File::open(&FileOptions {
        path: folder.join(name),
        create_bytes: Some(BLOCKS << 12),
        block_shift: Some(12),
        read_only: false,
        shared: false,
        buffered: true,
        uuid: None,
        is_path: false,
        made: None,
    })
    .expect("a file")
}

fn memory() -> Arc<dyn Namespace> {
    let options =
        MemoryOptions { bytes: 4 << 20, block_shift: 12, cores: 2, lend: false, uuid: None };
    Memory::open(options).expect("memory")
}

/// What has come back, in this order.
#[derive(Default)]
struct Inbox(RefCell<Vec<(u64, Status, u64)>>);

impl Sink for Inbox {
    fn completed(&self, request: Box<Request>, number: u64) {
        self.0.borrow_mut().push((number, request.status, request.result));
    }
}

impl Inbox {
    fn submit(self: &Rc<Self>, core: &Core, volume: usize, number: u64, mut request: Box<Request>) {
        request.push(Rc::clone(self) as Rc<dyn Sink>, number);
        core.volumes[volume].queue.submit(request);
    }

    fn has(&self, number: u64) -> Option<(Status, u64)> {
        let came = self.0.borrow();
        came.iter().find(|it| it.0 == number).map(|it| (it.1, it.2))
    }

    /// Waits until all of `numbers` are back, and says with which status.
    fn wait<const N: usize>(&self, core: &Core, numbers: [u64; N]) -> [Status; N] {
        let end = Instant::now() + PATIENCE;
        while numbers.iter().any(|number| self.has(*number).is_none()) {
            assert!(Instant::now() < end, "{numbers:?}: only {:?}", self.0.borrow());
            core.reactor.turn_for(Drive::Until(end));
        }
        numbers.map(|number| self.has(number).expect("just seen").0)
    }
}

/// Goes on for a while.
fn turn(core: &Core) {
    let end = Instant::now() + A_WHILE;
    while Instant::now() < end {
        core.reactor.turn_for(Drive::Until(end));
    }
}

/// Goes on until that holds.
fn turn_until(core: &Core, holds: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "it never holds");
        core.reactor.turn_for(Drive::Until(Instant::now() + Duration::from_millis(10)));
    }
}

/// A Copy within a volume, for `asker`, and what gives it up.
fn copy(
    core: &Core,
    to: u64,
    from: u64,
    blocks: u32,
    asker: u64,
) -> (Box<Request>, Arc<AtomicBool>) {
    let mut request = core.copy(0, to, &[(0, from, blocks)], false);
    let stop = Arc::new(AtomicBool::new(false));
    let Data::Sources(sources) = &mut request.data else { panic!("a Copy has sources") };
    (sources.stop, sources.asker) = (Some(Arc::clone(&stop)), asker);
    (request, stop)
}

#[test]
fn copies_that_wait_behind_one_that_hangs_can_be_given_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = Rules { opcodes: vec![opcode::COPY], ..Rules::default() };
    let gate = Gate::new(file(folder.path(), "a"), rules);
    let _opened = Opened(&gate);
    let core = Core::new(&[guarded(gate.clone())], 8 << 20);
    let inbox = Rc::new(Inbox::default());
    // One on a thread, with the first 32 MiB of its blocks.
    inbox.submit(&core, 0, 0, copy(&core, 32 << 10, 0, LARGE, 1).0);
    let (waits_for_blocks, stop_blocks) = copy(&core, 33 << 10, 100, 8, 1);
    inbox.submit(&core, 0, 1, waits_for_blocks);
    let (waits_for_thread, stop_thread) = copy(&core, 30 << 10, 200, 8, 1);
    inbox.submit(&core, 0, 2, waits_for_thread);
    let (in_line, stop_in_line) = copy(&core, 0, 20 << 10, 44 << 10, 1);
    let (last, _keep) = copy(&core, 31 << 10, 300, 8, 2);
    inbox.submit(&core, 0, 3, in_line);
    inbox.submit(&core, 0, 4, last);
    turn(&core);
    assert_eq!(*inbox.0.borrow(), []);
    for (number, stop) in [(3, stop_in_line), (2, stop_thread), (1, stop_blocks)] {
        stop.store(true, Ordering::Relaxed);
        let [status] = inbox.wait(&core, [number]);
        assert_eq!((status, inbox.has(number)), (Status::ABORT_REQUESTED, Some((status, 0))));
    }
    // One is on its thread and one more could be: the last has gone there.
    turn_until(&core, || gate.came.load(Ordering::Relaxed) == 2);
    turn(&core);
    assert_eq!((inbox.0.borrow().len(), gate.came.load(Ordering::Relaxed)), (3, 2));
    gate.open();
    assert_eq!(inbox.wait(&core, [0, 4]), [Status::SUCCESS; 2]);
    // Nothing of them is left anywhere.
    let again = core.copy(0, 32 << 10, &[(0, 0, LARGE)], false);
    assert_eq!(core.run(vec![(0, again)]).remove(0).status, Status::SUCCESS);
    assert!(core.run(vec![(0, core.write(100, &[1]))]).remove(0).status.is_success());
}

#[test]
fn a_host_with_a_hundred_copies_in_line_does_not_starve_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let core = Core::new(&[guarded(file(folder.path(), "a"))], 8 << 20);
    let inbox = Rc::new(Inbox::default());
    for number in 0..100 {
        inbox.submit(&core, 0, number, copy(&core, 32 << 10, 0, 32 << 10, 7).0);
    }
    inbox.submit(&core, 0, 100, copy(&core, 32 << 10, 0, 32 << 10, 8).0);
    inbox.wait(&core, [100]);
    assert!(inbox.0.borrow().len() < 10, "{} were first", inbox.0.borrow().len());
    inbox.wait(&core, std::array::from_fn::<u64, 100, _>(|at| at as u64));
    assert!(inbox.0.borrow().iter().all(|came| came.1.is_success()));
}

#[test]
fn blocks_are_not_held_for_copies_that_wait_for_a_thread() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = Rules { opcodes: vec![opcode::COPY], ..Rules::default() };
    let gates = ["a", "b"].map(|name| Gate::new(file(folder.path(), name), rules.clone()));
    let _opened = (Opened(&gates[0]), Opened(&gates[1]));
    let volumes =
        [guarded(gates[0].clone()), guarded(gates[1].clone()), guarded(file(folder.path(), "c"))];
    let core = Core::new(&volumes, 8 << 20);
    let inbox = Rc::new(Inbox::default());
    let large = |volume, at: u64| {
        core.copy(volume, 1000 + at * STEP, &[(volume, at * STEP, STEP as u32)], false)
    };
    // More Copies than threads, to a volume that hangs. Another still has a thread.
    (0..4).for_each(|at| inbox.submit(&core, 0, at, large(0, at)));
    inbox.submit(&core, 2, 10, large(2, 0));
    assert_eq!(inbox.wait(&core, [10]), [Status::SUCCESS]);
    // One that hangs as well takes that, too; then copies have to wait.
    (0..2).for_each(|at| inbox.submit(&core, 1, 20 + at, large(1, at)));
    inbox.submit(&core, 2, 30, large(2, 1));
    turn_until(&core, || gates.iter().all(|gate| gate.came.load(Ordering::Relaxed) > 0));
    turn(&core);
    assert_eq!(inbox.0.borrow().len(), 1);
    // Who only reads and writes does not, wherever Copies have not begun.
    let io = |volume: usize, number: u64, at: u64| {
        let mut read = Request::new();
        read.command = Command::blocks(opcode::READ, 1, at * STEP, 1);
        read.data = core.reading(0, 1).data;
        inbox.submit(&core, volume, number, read);
        inbox.submit(&core, volume, number + 1, core.write(1000 + at * STEP, &[5]));
    };
    io(0, 100, 2);
    io(0, 102, 9);
    io(1, 104, 1);
    io(2, 106, 1);
    let numbers: [u64; 8] = std::array::from_fn(|at| 100 + at as u64);
    assert_eq!(inbox.wait(&core, numbers), [Status::SUCCESS; 8]);
    // Where one has, he does: its destination is nobody else's.
    inbox.submit(&core, 0, 200, core.write(1000, &[6]));
    turn(&core);
    assert_eq!(inbox.has(200), None);
    gates.iter().for_each(|gate| gate.open());
    let copies = inbox.wait(&core, [0, 1, 2, 3, 20, 21, 30]);
    assert_eq!(copies, [Status::SUCCESS; 7]);
    inbox.wait(&core, [200]);
    assert_eq!(core.read(0, 1000, 1), [Some(6)]);
}

#[test]
fn small_copies_wait_for_their_own_disk_and_nobody_else_for_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = Rules { opcodes: vec![opcode::COPY], ..Rules::default() };
    let gate = Gate::new(file(folder.path(), "a"), rules);
    let _opened = Opened(&gate);
    let volumes = [guarded(gate.clone()), guarded(file(folder.path(), "b"))];
    let core = Core::new(&volumes, 8 << 20);
    let inbox = Rc::new(Inbox::default());
    let copy = |volume, at: u64| core.copy(volume, 1000 + at * 8, &[(volume, at * 8, 8)], false);
    // Two threads, and eight for each.
    (0..20).for_each(|at| inbox.submit(&core, 0, at, copy(0, at)));
    inbox.submit(&core, 1, 20, copy(1, 0));
    assert_eq!(inbox.wait(&core, [20]), [Status::SUCCESS]);
    turn_until(&core, || gate.came.load(Ordering::Relaxed) == 16);
    turn(&core);
    assert_eq!((gate.came.load(Ordering::Relaxed), inbox.0.borrow().len()), (16, 1));
    // One that has not begun holds nothing.
    inbox.submit(&core, 0, 30, core.write(1000 + 17 * 8, &[5]));
    inbox.submit(&core, 0, 31, core.write(1000 + 15 * 8, &[6]));
    assert_eq!(inbox.wait(&core, [30]), [Status::SUCCESS]);
    turn(&core);
    assert_eq!(inbox.has(31), None);
    gate.open();
    let copies = inbox.wait(&core, std::array::from_fn::<u64, 20, _>(|at| at as u64));
    assert_eq!(copies, [Status::SUCCESS; 20]);
    inbox.wait(&core, [31]);
    assert_eq!(core.read(0, 1000 + 15 * 8, 1), [Some(6)]);
}

/// Who has the memory that they are in line for hangs.
#[test]
fn copies_in_line_for_memory_look_for_more_and_can_be_given_up() {
    let rules = Rules { opcodes: vec![opcode::READ], whole: true, ..Rules::default() };
    // `delay` without a delay has no origin to tell: it is read.
    let delayed = || Delay::new(memory(), Delays::default());
    let gate = Gate::new(delayed(), rules);
    let _opened = Opened(&gate);
    let core = Core::new(&[guarded(memory()), guarded(gate.clone()), guarded(delayed())], 4 << 20);
    let inbox = Rc::new(Inbox::default());
    let take = || core.reactor.buffers().allocate(1 << 12);
    let held: Vec<_> = std::iter::from_fn(take).collect();
    inbox.submit(&core, 0, 0, core.copy(0, 0, &[(1, 0, 8)], false));
    let stops = [1, 2, 3].map(|number| {
        let mut copy = core.copy(0, number * 8, &[(2, 0, 8)], false);
        let stop = Arc::new(AtomicBool::new(false));
        let Data::Sources(sources) = &mut copy.data else { panic!("a Copy has sources") };
        sources.stop = Some(Arc::clone(&stop));
        inbox.submit(&core, 0, number, copy);
        stop
    });
    turn(&core);
    assert_eq!(*inbox.0.borrow(), []);
    stops[1].store(true, Ordering::Relaxed);
    assert_eq!(inbox.wait(&core, [2]), [Status::ABORT_REQUESTED]);
    drop(held);
    assert_eq!(inbox.wait(&core, [1, 3]), [Status::SUCCESS; 2]);
    assert_eq!(inbox.has(0), None);
    gate.open();
    assert_eq!(inbox.wait(&core, [0]), [Status::SUCCESS]);
    let again = core.copy(0, 64, &[(1, 0, 8)], false);
    assert_eq!(core.run(vec![(0, again)]).remove(0).status, Status::SUCCESS);
    assert_eq!(core.reactor.buffers().available(), core.reactor.buffers().capacity());
}

/// The same for what is read to be verified or compared: memory of one volume is not another's.
#[test]
fn who_reads_for_a_volume_that_hangs_keeps_no_memory_from_others() {
    let plain = || -> Arc<dyn Namespace> {
        Arc::new(Double::over(memory()).limited(|mut limits| {
            (limits.commands.compare, limits.commands.verify) = (false, false);
            limits
        }))
    };
    let rules = Rules { opcodes: vec![opcode::READ], whole: true, ..Rules::default() };
    let gate = Gate::new(plain(), rules);
    let _opened = Opened(&gate);
    let core = Core::new(&[guarded(gate.clone()), guarded(plain())], 4 << 20);
    let inbox = Rc::new(Inbox::default());
    let swap = core.swap(4, &[0], &[1]);
    let take = || core.reactor.buffers().allocate(1 << 12);
    let held: Vec<_> = std::iter::from_fn(take).collect();
    for number in [0, 1] {
        let mut verify = Request::new();
        verify.command = Command::blocks(opcode::VERIFY, 1, number * 8, 8);
        inbox.submit(&core, 0, number, verify);
    }
    inbox.submit(&core, 1, 2, swap);
    assert_eq!(inbox.wait(&core, [2]), [Status::SUCCESS]);
    turn(&core);
    assert_eq!((inbox.0.borrow().len(), gate.came.load(Ordering::Relaxed)), (1, 1));
    // Whoever is in line behind it sees that there is memory again.
    drop(held);
    turn_until(&core, || gate.came.load(Ordering::Relaxed) == 2);
    gate.open();
    assert_eq!(inbox.wait(&core, [0, 1]), [Status::SUCCESS; 2]);
    assert_eq!(core.read(1, 4, 1), [Some(1)]);
    assert_eq!(core.reactor.buffers().available(), core.reactor.buffers().capacity());
}

#[test]
fn what_may_change_any_block_waits_for_a_fused_pair() {
    let rules = Rules { opcodes: vec![opcode::WRITE], whole: true, passes: true };
    let gate = Gate::new(memory(), rules);
    let _opened = Opened(&gate);
    let core = Core::new(&[guarded(gate.clone())], 8 << 20);
    let inbox = Rc::new(Inbox::default());
    let other = |code: u8| {
        let mut request = Request::new();
        request.command = Command { opcode: code, nsid: 1.into(), ..Command::default() };
        request
    };
    inbox.submit(&core, 0, 0, other(opcode::ZONE_APPEND));
    assert_eq!(inbox.wait(&core, [0]), [Status::SUCCESS]);
    // The pair's Write is held.
    inbox.submit(&core, 0, 1, core.swap(4, &[0], &[1]));
    turn(&core);
    inbox.submit(&core, 0, 2, other(opcode::ZONE_APPEND));
    inbox.submit(&core, 0, 3, other(opcode::FLUSH));
    inbox.submit(&core, 0, 4, core.reading(8, 1));
    assert_eq!(inbox.wait(&core, [3]), [Status::SUCCESS]);
    // It came first, and is of any block.
    turn(&core);
    assert_eq!((inbox.has(1), inbox.has(2), inbox.has(4)), (None, None, None));
    gate.open();
    assert_eq!(inbox.wait(&core, [1, 2, 4]), [Status::SUCCESS; 3]);
    let order: Vec<_> = inbox.0.borrow().iter().map(|came| came.0).collect();
    assert_eq!(order[..3], [0, 3, 1]);
}

/// Another core of the same thread.
fn another(volumes: &[Arc<dyn Namespace>]) -> Core {
    let config = Config { buffer_bytes: 8 << 20, ..Config::default() };
    Core::on(Reactor::new(&config).expect("a reactor"), volumes)
}

#[test]
fn a_queue_that_goes_leaves_nobody_waiting() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = Rules { opcodes: vec![opcode::WRITE, opcode::COPY], ..Rules::default() };
    let gate = Gate::new(file(folder.path(), "a"), rules);
    let _opened = Opened(&gate);
    let volumes = [guarded(gate.clone())];
    let (first, gone, last) = (another(&volumes), another(&volumes), another(&volumes));
    let (inbox, forgotten) = (Rc::new(Inbox::default()), Rc::new(Inbox::default()));
    inbox.submit(&first, 0, 0, first.write(5, &[1]));
    // A command, a fused pair, Copies that wait for their blocks with a thread each, all behind that; two that wait for
    // a thread, and one in line.
    forgotten.submit(&gone, 0, 0, gone.write(4, &[2, 2]));
    forgotten.submit(&gone, 0, 1, gone.swap(5, &[2], &[3]));
    forgotten.submit(&gone, 0, 2, gone.copy(0, 1000, &[(0, 5, 8)], false));
    let large = || gone.copy(0, 32 << 10, &[(0, 0, 32 << 10)], false);
    forgotten.submit(&gone, 0, 3, large());
    for number in 4..6 {
        let small = gone.copy(0, 1000 + number * 8, &[(0, 100, 8)], false);
        forgotten.submit(&gone, 0, number, small);
    }
    forgotten.submit(&gone, 0, 6, large());
    turn(&gone);
    inbox.submit(&last, 0, 1, last.write(5, &[4]));
    inbox.submit(&last, 0, 2, last.swap(1000, &[0], &[5]));
    inbox.submit(&last, 0, 3, last.copy(0, 40 << 10, &[(0, 6, 2)], false));
    turn(&last);
    assert!(inbox.0.borrow().is_empty() && forgotten.0.borrow().is_empty());
    drop(gone);
    gate.open();
    inbox.wait(&first, [0]);
    assert_eq!(inbox.wait(&last, [1, 2, 3]), [Status::SUCCESS; 3]);
    assert_eq!((last.read(0, 5, 1), last.read(0, 1000, 1)), (vec![Some(4)], vec![Some(5)]));
    assert!(forgotten.0.borrow().is_empty());
}
