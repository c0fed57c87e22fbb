//! A server that is stopped (SIGSTOP) and continued.

use crate::daemon::{Daemon, eventually};
use crate::host::{Bytes, Host, Queue};
use nvme::{Command, opcode};
use std::path::Path;
use std::time::Duration;

const NQN: &str = "nqn.2026-11.com.example:paused";

fn signal(daemon: &Daemon, signal: i32) {
    // SAFETY: the process is a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(daemon.pid() as i32, signal) }, 0);
}

/// Stops it, and waits until each of its threads has stopped: one of them is told, and tells the others.
fn stop(daemon: &Daemon) {
    signal(daemon, libc::SIGSTOP);
    let tasks = format!("/proc/{}/task", daemon.pid());
    eventually("all threads have stopped", || {
        std::fs::read_dir(&tasks).unwrap().all(|task| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
            stat.is_ok_and(|stat| {
                stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
            })
        })
    });
}

/// A server, and a host without a keep alive timer, which reads what it has.
fn served(dir: &Path) -> (Daemon, Queue, Queue) {
    let daemon = Daemon::start(dir, &["mem:1M?bs=512", "--nqn", NQN]);
    let calm = Host::new(daemon.listeners[0], &daemon.nqn);
    let admin = calm.enabled();
    let reader = calm.io(&admin, 1);
    (daemon, admin, reader)
}

/// What a host sent before it closed the connection, for whatever reason, it may have sent by another path since.
#[test]
fn what_its_host_has_sent_and_left_meanwhile_is_not_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    let (daemon, _calm, mut reader) = served(dir.path());
    let host = Host { kato_ms: 20_000, ..Host::new(daemon.listeners[0], &daemon.nqn) };
    let admin = host.enabled();
    let mut queue = host.io(&admin, 1);
    stop(&daemon);
    queue.issue(Command::blocks(opcode::io::WRITE, 1, 3, 1), Bytes::InCapsule(&[7; 512]));
    drop((queue, admin));
    std::thread::sleep(Duration::from_millis(1500));
    signal(&daemon, libc::SIGCONT);
    // By the same core, so that what was sent before is dealt with before.
    assert!(reader.read(1, 2, 1, 512) == [0; 512]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(reader.read(1, 3, 1, 512) == [0; 512], "its host has left");
}

/// The kernel takes what is sent meanwhile. A host that has given up may have written the same block elsewhere by then.
#[test]
fn what_was_sent_to_it_is_carried_out_only_if_its_host_still_waits() {
    let dir = tempfile::tempdir().unwrap();
    let (daemon, _calm, mut reader) = served(dir.path());
    for (slba, pause_ms, kato_ms, carried_out) in [(1, 1500, 20_000, true), (2, 3000, 2000, false)]
    {
        let host = Host { kato_ms, ..Host::new(daemon.listeners[0], &daemon.nqn) };
        let admin = host.enabled();
        let mut queue = host.io(&admin, 1);
        stop(&daemon);
        let write = Command::blocks(opcode::io::WRITE, 1, slba, 1);
        let cid = queue.issue(write, Bytes::InCapsule(&[7; 512]));
        std::thread::sleep(Duration::from_millis(pause_ms));
        signal(&daemon, libc::SIGCONT);
        if carried_out {
            queue.complete(cid).ok();
        } else {
            queue.expect_end();
        }
        let byte = if carried_out { 7 } else { 0 };
        let read = reader.read(1, slba, 1, 512);
        assert!(read == [byte; 512], "after {pause_ms} ms: {}", read[0]);
    }
    let log = daemon.log();
    assert!(log.contains("this server did not run: its hosts have given up"), "{log}");
}
