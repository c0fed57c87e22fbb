//! What must not be done twice, over real sockets: a command that is with a target when its connection ends comes back
//! with Host Pathing Error, and is sent no second time, by no path.
//!
//! ```text
//!   multipath, numa --> wire --> target --> delay --> volume      everything, while this path is usable
//!                   '-> wire --> target ------------> volume
//! ```

use crate::rig;

use host::Options;
use namespace::layer::delay::{Delay, Delays};
use namespace::layer::guard::{Guard, GuardOptions};
use namespace::layer::multipath::{Policy, Settings};
use namespace::{Access, Namespace};
use nvme::limits::Passthrough;
use nvme::{Command, Status, opcode::io as opcode};
use rig::device::{Device, vendor};
use rig::registers::{await_path, open_with, shared_volume};
use rig::wire::Wire;
use rig::{Core, Done, PATIENCE, Target, connect, options, pattern, read, write};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long the first target takes for all but reads: until then its connection has ended.
const SLOW: Duration = Duration::from_secs(3);

/// FUSE: the first and the second command of a pair (NVMe Base 2.1, Figure 91).
const FIRST: u8 = 1;
const SECOND: u8 = 2;

struct TwoPaths {
    namespace: Arc<dyn Namespace>,
    core: Core,
    wires: [Wire; 2],
    _targets: [Target; 2],
}

impl TwoPaths {
    fn to(volume: &Arc<dyn Namespace>, options: &Options) -> TwoPaths {
        let delays = Delays { write: SLOW, other: SLOW, ..Delays::default() };
        let slow = Delay::new(Arc::clone(volume), delays);
        let targets = [Target::serve(slow, 1, 0), Target::serve(Arc::clone(volume), 1, 0)];
        let wires = targets.each_ref().map(|target| Wire::before(target.address));
        let settings = Settings { policy: Policy::Numa, ..Settings::default() };
        let namespace = open_with(&wires.each_ref().map(|wire| wire.address), options, settings);
        await_path(&namespace, 1, Access::is_usable);
        let core = Core::usable(Arc::clone(&namespace));
        TwoPaths { namespace, core, wires, _targets: targets }
    }

    /// Waits until this core's commands go by the first path.
    #[track_caller]
    fn await_first(&self) {
        await_path(&self.namespace, 0, Access::is_usable);
        let until = Instant::now() + PATIENCE;
        let before = self.wires[0].seen().len();
        while self.wires[0].seen().len() == before {
            assert!(Instant::now() < until, "the first path is not used");
            self.core.command(read(1 << 19, 512), vec![0; 512]).ok();
        }
    }

    /// Starts commands, and ends their connection when the first target has them. How they ended.
    #[track_caller]
    fn cut_under(&self, commands: &[(Command, Vec<u8>)]) -> Vec<Status> {
        self.await_first();
        let wanted = self.wires[0].seen().len() + commands.len();
        let start = |(command, data): &(Command, Vec<u8>)| self.core.issue(*command, data.clone());
        let answers: Vec<mpsc::Receiver<Done>> = commands.iter().map(start).collect();
        let until = Instant::now() + PATIENCE;
        while self.wires[0].seen().len() < wanted {
            assert!(Instant::now() < until, "the first target is not sent them");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.wires[0].cut();
        let end = |answer: mpsc::Receiver<Done>| answer.recv_timeout(PATIENCE).expect("an answer");
        answers.into_iter().map(|answer| end(answer).status).collect()
    }

    /// How often each path was sent one of `commands`.
    fn times(&self, commands: &[(Command, Vec<u8>)]) -> [usize; 2] {
        let is_one = |sent: &Command| commands.iter().any(|(one, _)| is_same(one, sent));
        self.wires.each_ref().map(|wire| wire.seen().iter().filter(|&sent| is_one(sent)).count())
    }

    /// Has commands cut off: they fail, and no path is sent them once more.
    #[track_caller]
    fn fail(&self, what: &str, commands: &[(Command, Vec<u8>)]) {
        let before = self.times(commands);
        let ends = self.cut_under(commands);
        assert!(ends.iter().all(|end| *end == Status::HOST_PATHING_ERROR), "{what}: {ends:?}");
        // Who would send them again has had his chance when both paths are used again.
        self.await_first();
        let wanted = [before[0] + commands.len(), before[1]];
        assert_eq!(self.times(commands), wanted, "{what}: by the first path, by the second");
    }

    /// Has a command cut off that may be done twice: it succeeds by the other path.
    #[track_caller]
    fn goes_elsewhere(&self, what: &str, command: Command, data: Vec<u8>) {
        let commands = [(command, data)];
        let before = self.times(&commands);
        let ends = self.cut_under(&commands);
        assert!(ends[0].is_success(), "{what}: {}", ends[0]);
        let wanted = before.map(|times| times + 1);
        assert_eq!(self.times(&commands), wanted, "{what}: by the first path, by the second");
    }
}

/// Whether a command was sent as that; where its data is does not count.
fn is_same(one: &Command, sent: &Command) -> bool {
    one.opcode == sent.opcode && one.fuse() == sent.fuse() && one.cdw10 == sent.cdw10
}

/// Two paths that take all commands to `device`.
fn to_device(device: &Arc<Device>) -> TwoPaths {
    let options = Options { passthrough: Passthrough::ALL, ..options() };
    TwoPaths::to(&device.volume(), &options)
}

#[test]
fn commands_that_nobody_here_knows() {
    let device = Arc::<Device>::default();
    let paths = to_device(&device);
    let block = || pattern(1, 512);
    paths.goes_elsewhere("a write", write(4096, 512), block());
    for (what, command, data) in [
        ("a vendor's command with data", vendor(0x81), block()),
        ("a vendor's command for data", vendor(0x82), vec![0; 512]),
        ("a vendor's command", vendor(0x84), Vec::new()),
        ("an unknown command", vendor(0x60), Vec::new()),
    ] {
        paths.fail(what, &[(command, data)]);
    }
}

#[test]
fn zone_append_and_what_manages() {
    let device = Arc::<Device>::default();
    let paths = to_device(&device);
    let block = || pattern(1, 512);
    for (what, command, data) in [
        ("Zone Append", Command::blocks(opcode::ZONE_APPEND, 1, 64, 1), block()),
        ("Zone Management Send", vendor(opcode::ZONE_MANAGEMENT_SEND), Vec::new()),
        ("I/O Management Send", vendor(opcode::IO_MANAGEMENT_SEND), block()),
        ("Reservation Acquire", vendor(opcode::RESERVATION_ACQUIRE), vec![1; 16]),
    ] {
        paths.fail(what, &[(command, data)]);
    }
    let receive = vendor(opcode::ZONE_MANAGEMENT_RECEIVE);
    paths.goes_elsewhere("Zone Management Receive", receive, vec![0; 512]);
}

/// Of a block, by somebody who sends it as it is: two commands.
fn pair(slba: u64) -> [(Command, Vec<u8>); 2] {
    let fused = |opcode, fuse| Command { flags: fuse, ..Command::blocks(opcode, 1, slba, 1) };
    let compare = (fused(opcode::COMPARE, FIRST), vec![0; 512]);
    [compare, (fused(opcode::WRITE, SECOND), pattern(slba, 512))]
}

#[test]
fn fused_compare_and_write() {
    let volume: Arc<dyn Namespace> = shared_volume();
    let paths = TwoPaths::to(&volume, &options());
    // The targets know such pairs.
    paths.await_first();
    let answers = pair(100).map(|(command, data)| paths.core.issue(command, data));
    for answer in answers {
        answer.recv_timeout(PATIENCE).expect("an answer").ok();
    }
    assert!(paths.core.read(100 * 512, 512) == pattern(100, 512));
    paths.fail("a fused pair", &pair(200));
    paths.goes_elsewhere("a write", write(301 * 512, 512), pattern(2, 512));
}

/// A remote volume takes no pair as one request. Who serves it on makes it of two commands, which may go another way, and keeps
/// them apart from others of his clients.
#[test]
fn a_fused_pair_through_a_gateway_is_none_by_then() {
    let volume: Arc<dyn Namespace> = shared_volume();
    let mut paths = TwoPaths::to(&volume, &options());
    assert!(!paths.namespace.limits().commands.compare_and_write);
    let guard = Guard::new(Arc::clone(&paths.namespace), GuardOptions::default());
    let gateway = Target::serve(guard, 1, 0);
    paths.core = Core::usable(connect(gateway.address, &options()));
    let written = [(write(200 * 512, 512), Vec::new())];
    let before = paths.times(&written);
    let ends = paths.cut_under(&pair(200));
    assert!(ends.iter().all(|end| end.is_success()), "{ends:?}");
    assert_eq!(paths.times(&written), before.map(|times| times + 1));
    assert_eq!(paths.times(&pair(200)), [0, 0], "nothing was sent as a pair");
    assert!(paths.core.read(200 * 512, 512) == pattern(200, 512));
}
