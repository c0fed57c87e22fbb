//! Abort cancels what has not been started, and says when it did not.

use crate::host;

use host::rig::{Rig, directory, file};
use host::{Bytes, Queue};
use nvme::copy::{Entry, Format};
use nvme::{Command, Status, opcode};
use std::time::{Duration, Instant};

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
        io.await_word();
        assert_eq!(admin.command(abort(1, cid), Bytes::None).ok().result & 1, 0);
        // The host owes the data that it was asked for; then the command ends.
        assert_eq!(io.complete(cid).status.code(), Status::ABORT_REQUESTED);
        assert!(io.read(1, 8, 8, 32768) == [1; 32768]);
    }
}

/// Though the host never sends it: others have the memory that was set aside for it.
#[test]
fn the_memory_of_a_write_that_is_cancelled_is_given_back_before_its_data_comes() {
    let rig = Rig::memory(1);
    let free = || rig.server.stats().expect("running").cores[0].buffer_bytes_free;
    let before = free();
    let (mut admin, mut io) = rig.connect();
    let command = Command::blocks(opcode::io::WRITE, 1, 0, 256);
    let command = io.prepare(command, Bytes::Wanted(1 << 20));
    let cid = io.send(&command, Bytes::None);
    io.await_word();
    assert_eq!(before - free(), 1 << 20, "it waits for the data");
    assert_eq!(admin.command(abort(1, cid), Bytes::None).ok().result & 1, 0);
    assert_eq!(free(), before);
}

#[test]
fn what_a_namespace_has_or_nobody_knows_is_not_cancelled() {
    let rig = Rig::empty(2);
    let directory = directory();
    let delay = Duration::from_secs(12);
    rig.add(1, file(&directory, 1 << 20, 12, 2, delay));
    let (mut admin, mut io) = rig.connect();
    let read = Command::blocks(opcode::io::READ, 1, 0, 1);
    let begin = Instant::now();
    let cid = io.issue(read, Bytes::Wanted(4096));
    io.settle();
    assert_eq!(admin.command(abort(1, cid), Bytes::None).ok().result & 1, 1);
    assert!(begin.elapsed() < delay, "the namespace had it no more: {:?}", begin.elapsed());
    assert_eq!(admin.command(abort(1, 0x7777), Bytes::None).ok().result & 1, 1);
    io.complete(cid).ok();
}

/// A volume of 512 MiB whose Copies of 128 MiB go on for 20 s, in four steps of 5 s each. Two are in progress
/// at a time; others wait in line.
fn slow_rig(directory: &tempfile::TempDir) -> Rig {
    let rig = Rig::empty(2);
    rig.add(1, file(directory, 512 << 20, 12, 2, Duration::from_secs(5)));
    rig
}

/// Starts a Copy of 128 MiB.
fn large_copy(io: &mut Queue) -> u16 {
    const BLOCKS: u32 = 32 << 10;
    let mut list = [0; 32];
    Entry { nsid: 0, slba: 0, blocks: BLOCKS, fast_only: false }.write(Format::Short, &mut list);
    let mut command = nvme::copy::command(1, u64::from(2 * BLOCKS), 1, Format::Short);
    command.nsid = 1.into();
    io.issue(command, Bytes::InCapsule(&list))
}

#[test]
fn a_copy_in_line_is_aborted_while_those_before_it_go_on() {
    let directory = directory();
    let rig = slow_rig(&directory);
    let (mut admin, mut io) = rig.connect();
    let copies = [(); 3].map(|()| large_copy(&mut io));
    io.settle();
    let begin = Instant::now();
    // Backwards: the last ends first, though it came last.
    for cid in copies.into_iter().rev() {
        assert_eq!(admin.command(abort(1, cid), Bytes::None).ok().result & 1, 1);
        let done = io.complete(cid);
        assert_eq!((done.status.code(), done.result), (Status::ABORT_REQUESTED, 0));
        assert!(begin.elapsed() < Duration::from_secs(15), "the line had moved by itself");
    }
}

#[test]
fn a_host_whose_copies_are_in_line_may_come_back() {
    let directory = directory();
    let rig = slow_rig(&directory);
    let (_admin, mut io) = rig.connect();
    large_copy(&mut io);
    large_copy(&mut io);
    io.settle();
    let mut host = rig.host();
    host.host_nqn = "nqn.2026-11.org.example:another".into();
    let admin = host.enabled();
    let mut waiting = host.io(&admin, 1);
    for _ in 0..8 {
        large_copy(&mut waiting);
    }
    waiting.settle();
    drop((admin, waiting));
    // It would be told to come back later.
    let admin = host.enabled();
    host.io(&admin, 1);
}
