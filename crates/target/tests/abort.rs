//! Abort cancels what has not been started, and says when it did not.

mod host;

use host::Bytes;
use host::rig::{Rig, directory, file};
use nvme::{Command, Status, opcode};
use std::time::Duration;

fn abort(queue_id: u16, cid: u16) -> Command {
    Command {
        opcode: opcode::admin::ABORT,
        cdw10: (u32::from(queue_id) | u32::from(cid) << 16).into(),
        ..Command::default()
    }
}

#[test]
fn a_write_that_waits_for_its_data_is_cancelled() {
    for cores in [1, 2] {
        let rig = Rig::memory(cores);
        let (mut admin, mut io) = rig.connect();
        io.write(1, 8, 8, &[1; 32768]);
        let data = vec![2; 32768];
        let cid = io.issue(Command::blocks(opcode::io::WRITE, 1, 8, 8), Bytes::OnRequest(&data));
        // Answered by the core of the queue, after the capsule went there.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(admin.command(abort(1, cid), Bytes::None).ok().result & 1, 0);
        // The host owes the data that it was asked for; then the command ends.
        assert_eq!(io.complete(cid).status.code(), Status::ABORT_REQUESTED);
        assert!(io.read(1, 8, 8, 32768) == [1; 32768]);
    }
}

#[test]
fn what_a_namespace_has_or_nobody_knows_is_not_cancelled() {
    let rig = Rig::empty(2);
    let directory = directory();
    rig.add(1, file(&directory, 1 << 20, 12, 2, Duration::from_millis(300)));
    let (mut admin, mut io) = rig.connect();
    let read = Command::blocks(opcode::io::READ, 1, 0, 1);
    let cid = io.issue(read, Bytes::Wanted(4096));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(admin.command(abort(1, cid), Bytes::None).ok().result & 1, 1);
    assert_eq!(admin.command(abort(1, 0x7777), Bytes::None).ok().result & 1, 1);
    io.complete(cid).ok();
}
