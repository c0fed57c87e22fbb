//! What a stop in order does with commands that a volume holds.

use crate::daemon::{Daemon, eventually, nvlane};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};

/// A write to the daemon's volume, which is with the volume when this returns.
fn in_flight(daemon: &Daemon) -> Child {
    let volume = format!("tcp://{}/{}?ns=1", daemon.listeners[0], daemon.nqn);
    let mut write = nvlane()
        .args(["write", &volume])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    write.stdin.take().unwrap().write_all(&[9; 4096]).unwrap();
    eventually("a write", || {
        daemon.call("controller_list", json!({})).as_array().is_some_and(|all| !all.is_empty())
    });
    // Its data is there a moment after the controller.
    std::thread::sleep(std::time::Duration::from_millis(500));
    write
}

fn start(dir: &Path, delay: &str) -> Daemon {
    File::create(dir.join("a.img")).unwrap().set_len(1 << 20).unwrap();
    let volume = format!("delay:{delay}(file:{})", dir.join("a.img").display());
    Daemon::start(dir, &[&volume])
}

#[test]
fn what_a_volume_holds_is_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), "3s");
    let mut write = in_flight(&daemon);
    let (status, log) = daemon.stop("TERM");
    write.kill().unwrap();
    write.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("everything is flushed"), "{log}");
    assert_eq!(fs::read(dir.path().join("a.img")).unwrap()[..4096], [9; 4096], "{log}");
}

#[test]
fn what_a_volume_holds_for_too_long_is_given_up_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), "50s");
    let mut write = in_flight(&daemon);
    let (status, log) = daemon.stop("TERM");
    write.kill().unwrap();
    write.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("1 command(s) were not finished") && log.contains("given up"), "{log}");
    assert!(!log.contains("everything is flushed"), "{log}");
}
