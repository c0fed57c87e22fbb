//! Commands that nobody here knows, from our host through our target to what is behind it, and back.

use crate::rig;

use host::Options;
use namespace::Namespace;
use namespace::layer::multipath::{Multipath, MultipathOptions};
use nvme::limits::Passthrough;
use nvme::{Command, Status, opcode};
use rig::device::{Device, RESULT, vendor};
use rig::{Core, PATIENCE, Target, connect, memory, options, pattern};
use std::sync::Arc;
use std::time::{Duration, Instant};

const IO_WRITE: u8 = 0x81;
const IO_READ: u8 = 0x82;
const IO_NONE: u8 = 0x84;
const ADMIN_WRITE: u8 = 0xc1;
const ADMIN_READ: u8 = 0xc2;
const ADMIN_NONE: u8 = 0xc4;

fn passing() -> Options {
    Options { passthrough: Passthrough::ALL, ..options() }
}

/// A target with a device, and a core that uses it through our host.
fn served(options: &Options) -> (Target, Arc<Device>, Core) {
    let device = Arc::<Device>::default();
    let target = Target::serve(device.volume(), 2, 0);
    let core = Core::usable(connect(target.address, options));
    (target, device, core)
}

fn dwords(c: &Command) -> [u32; 9] {
    [c.nsid, c.cdw2, c.cdw3, c.cdw10, c.cdw11, c.cdw12, c.cdw13, c.cdw14, c.cdw15]
        .map(|it| it.get())
}

#[test]
fn vendor_commands_there_and_back() {
    for (header_digest, data_digest) in [(false, false), (true, true)] {
        let (_target, device, core) = served(&Options { header_digest, data_digest, ..passing() });
        for bytes in [512, 8192, 8196, 200_000] {
            for (opcode, admin) in
                [(IO_WRITE, false), (IO_READ, false), (ADMIN_WRITE, true), (ADMIN_READ, true)]
            {
                let sent = if opcode & 1 == 1 { pattern(3, bytes) } else { vec![0; bytes] };
                let done = match admin {
                    true => core.admin(vendor(opcode), sent.clone()),
                    false => core.command(vendor(opcode), sent.clone()),
                };
                let done = done.ok();
                assert_eq!(done.result, RESULT, "{opcode:#x}, {bytes} bytes");
                let (by_admin, command, data) = device.seen().pop().expect("there");
                assert_eq!((by_admin, command.opcode), (admin, opcode));
                assert_eq!(dwords(&command), dwords(&vendor(opcode)));
                if opcode & 1 == 1 {
                    assert!(data == sent, "{opcode:#x}, {bytes} bytes: what the device got");
                } else {
                    assert!(
                        done.data == pattern(7, bytes),
                        "{opcode:#x}, {bytes} bytes: what came"
                    );
                }
            }
        }
        for (opcode, admin) in [(IO_NONE, false), (ADMIN_NONE, true)] {
            let done = if admin {
                core.admin(vendor(opcode), Vec::new())
            } else {
                core.command(vendor(opcode), Vec::new())
            };
            assert_eq!(done.ok().result, RESULT);
        }
    }
}

#[test]
fn the_targets_own_admin_commands_are_its_own() {
    let (_target, device, core) = served(&passing());
    let identify =
        Command { opcode: opcode::admin::IDENTIFY, cdw10: 1.into(), ..Command::default() };
    let data = core.admin(identify, vec![0; 4096]).ok().data;
    assert!(data[24..].starts_with(b"nvlane"), "the model of our target");
    let of_another = Command { nsid: 9.into(), ..vendor(ADMIN_NONE) };
    // The volume is one namespace, whatever it is called.
    core.admin(of_another, Vec::new()).ok();
    assert_eq!(device.seen().len(), 1);
    let none = Command { nsid: 0.into(), ..vendor(ADMIN_NONE) };
    assert_eq!(core.admin(none, Vec::new()).status, Status::INVALID_OPCODE.dnr());
}

#[test]
fn what_is_refused() {
    let denied = Status::OPERATION_DENIED.dnr();
    let keep_alive = Command { opcode: opcode::admin::KEEP_ALIVE, ..Command::default() };
    let (_target, device, core) = served(&options());
    let status = core.admin(vendor(ADMIN_NONE), Vec::new()).status;
    assert_eq!(status, Status::INVALID_OPCODE.dnr(), "nothing unless it was asked for");
    drop(core);
    let (_target, read_only, core) = served(&Options { read_only: true, ..passing() });
    assert_eq!(core.admin(keep_alive, Vec::new()).status, denied);
    let status = core.admin(vendor(ADMIN_NONE), Vec::new()).status;
    assert_eq!(status, Status::NAMESPACE_WRITE_PROTECTED.dnr());
    let status = core.admin(Command { opcode: 0x83, ..vendor(0) }, vec![0; 512]).status;
    assert_eq!(status, Status::NAMESPACE_WRITE_PROTECTED.dnr());
    assert!(device.seen().is_empty() && read_only.seen().is_empty());
}

#[test]
fn more_admin_commands_than_the_queue_takes_wait_and_io_goes_on() {
    let (_target, device, core) = served(&passing());
    let slow = Command { cdw14: 300.into(), ..vendor(ADMIN_READ) };
    let waiting: Vec<_> = (0..40).map(|_| core.issue_admin(slow, vec![0; 4096])).collect();
    core.command(vendor(IO_READ), vec![0; 512]).ok();
    for answer in waiting {
        let done = answer.recv_timeout(PATIENCE).expect("an answer").ok();
        assert!(done.data == pattern(7, 4096));
    }
    assert_eq!(device.seen().len(), 41);
    let failing = Command { cdw15: 0x7c3.into(), ..vendor(ADMIN_READ) };
    assert_eq!(core.admin(failing, vec![0; 512]).status, Status(0x7c3));
}

#[test]
fn an_admin_command_that_takes_too_long_ends_and_so_do_those_of_a_dead_target() {
    let (target, device, core) = served(&passing());
    let slow = Command { cdw14: 6000.into(), ..vendor(ADMIN_NONE) };
    let begun = Instant::now();
    let done = core.issue_admin_within(slow, Vec::new(), 1000);
    let done = done.recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(done.status, Status::HOST_PATHING_ERROR);
    assert!(done.at - begun >= Duration::from_secs(1));
    core.await_access(namespace::Access::is_usable);
    let seen = || device.seen().len();
    let before = seen();
    let until = Instant::now() + PATIENCE;
    let waiting = loop {
        // Until there is an admin queue again it is not sent.
        let waiting = core.issue_admin(slow, Vec::new());
        while seen() == before && waiting.try_recv().is_err() {
            assert!(Instant::now() < until, "it does not reach the device");
            std::thread::sleep(Duration::from_millis(10));
        }
        if seen() > before {
            break waiting;
        }
    };
    target.server.remove_listener(target.port).expect("it listens");
    let done = waiting.recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(done.status, Status::HOST_PATHING_ERROR);
    // It was never sent.
    assert_eq!(core.admin(slow, Vec::new()).status, Status::HOST_ABORTED);
}

#[test]
fn an_admin_command_goes_by_another_path_only_if_it_was_not_sent() {
    let device = Arc::<Device>::default();
    let target = Target::serve(device.volume(), 1, 0);
    let other = Target::serve(device.volume(), 1, 0);
    let paths: Vec<Arc<dyn Namespace>> =
        vec![connect(target.address, &passing()), connect(other.address, &passing())];
    let multipath = Multipath::new(paths, MultipathOptions::default()).expect("one namespace");
    assert_eq!(multipath.limits().passthrough, Passthrough::ALL);
    let core = Core::usable(multipath.clone());
    let until = Instant::now() + PATIENCE;
    while !multipath.paths().iter().all(|path| path.access.is_usable()) {
        assert!(Instant::now() < until, "{:?}", multipath.paths());
        std::thread::sleep(Duration::from_millis(1));
    }
    core.admin(vendor(ADMIN_NONE), Vec::new()).ok();
    // Lost with its path: nobody knows whether it was carried out.
    let slow = Command { cdw14: 6000.into(), ..vendor(ADMIN_NONE) };
    let waiting = core.issue_admin(slow, Vec::new());
    let seen = || device.seen().len();
    while seen() < 2 {
        assert!(Instant::now() < until, "it does not reach the device");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The first of two that are equally good is taken.
    target.server.remove_listener(target.port).expect("it listens");
    let before = seen();
    assert_eq!(before, 2);
    let done = waiting.recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(done.status, Status::HOST_PATHING_ERROR);
    // A new one goes by the path that is left.
    core.admin(vendor(ADMIN_NONE), Vec::new()).ok();
    assert_eq!(seen(), before + 1);
}

#[test]
fn an_admin_command_does_not_go_to_the_id_of_a_namespace_that_is_gone() {
    let (target, device, core) = served(&passing());
    target.server.remove_namespace(rig::NQN, 1).expect("it is served");
    core.await_access(|access| access == namespace::Access::Inaccessible);
    // The same controller takes what is for no namespace.
    assert_eq!(core.admin(vendor(ADMIN_NONE), Vec::new()).status, Status::HOST_ABORTED);
    let identify =
        Command { opcode: opcode::admin::IDENTIFY, cdw10: 1.into(), ..Command::default() };
    core.admin(identify, vec![0; 4096]).ok();
    target.add(7, device.volume(), [0x42; 16]);
    core.await_access(namespace::Access::is_usable);
    core.admin(vendor(ADMIN_NONE), Vec::new()).ok();
}

/// Whoever lost them behind it does not know that.
#[test]
fn what_a_target_calls_aborted_by_host_may_have_been_carried_out() {
    let device = Arc::<Device>::default();
    let targets = [(); 2].map(|()| Target::serve(device.volume(), 1, 0));
    let paths = targets.each_ref().map(|it| connect(it.address, &passing()) as Arc<dyn Namespace>);
    let multipath = Multipath::new(paths.to_vec(), MultipathOptions::default());
    let core = Core::usable(multipath.expect("one namespace"));
    let aborted = u32::from(Status::HOST_ABORTED.0 | Status::MORE);
    let wanted = Status(Status::HOST_PATHING_ERROR.0 | Status::MORE);
    for dnr in [0, Status::DNR] {
        let vendor =
            |opcode| Command { cdw15: (aborted | u32::from(dnr)).into(), ..vendor(opcode) };
        let wanted = Status(wanted.0 | dnr);
        assert_eq!(core.command(vendor(IO_WRITE), vec![0; 512]).status, wanted);
        assert_eq!(core.admin(vendor(ADMIN_NONE), Vec::new()).status, wanted);
    }
    assert_eq!(device.seen().len(), 4, "each once");
}

#[test]
fn a_command_may_have_less_time_than_others() {
    let mut options = passing();
    options.association.keep_alive_tmo = Duration::from_secs(2);
    let (_target, _device, core) = served(&options);
    let slow = Command { cdw14: 20_000.into(), ..vendor(IO_NONE) };
    let begun = Instant::now();
    let done = core.issue_within(slow, Vec::new(), 500).recv_timeout(PATIENCE).expect("an answer");
    assert!(!done.status.is_success());
    assert!(done.at - begun < Duration::from_secs(18), "{:?}", done.at - begun);
}

#[test]
fn memory_knows_no_such_commands() {
    let target = Target::serve(memory(1 << 20, 9, 1), 1, 0);
    let core = Core::usable(connect(target.address, &passing()));
    let invalid = Status::INVALID_OPCODE.dnr();
    assert_eq!(core.command(vendor(IO_READ), vec![0; 512]).status, invalid);
    assert_eq!(core.admin(vendor(ADMIN_READ), vec![0; 512]).status, invalid);
}
