//! Where io_uring is refused, as container runtimes do by default: everything but what needs it works, and says so.

use crate::daemon::{Daemon, nvlane};
use crate::passthrough::{refuse_call, refuse_io_uring};
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// What it logs then, once.
const NOTICE: &str = "io_uring is not used: ";

/// Runs a command of ours with io_uring refused.
fn run(args: &[&str], input: &[u8]) -> Output {
    let mut command = nvlane();
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    refuse_io_uring(&mut command);
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

/// What it printed, if it succeeded and told that it does without.
#[track_caller]
fn prints(args: &[&str], input: &[u8]) -> Vec<u8> {
    let output = run(args, input);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    assert_eq!(said.matches(NOTICE).count(), 1, "{args:?}: {said}");
    output.stdout
}

fn uri(address: SocketAddr, nqn: &str, namespace: u32) -> String {
    format!("tcp://{address}/{nqn}?ns={namespace}")
}

/// Bytes of which no two blocks are the same.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512 * 31 + at) as u8).collect()
}

#[test]
fn volumes_are_served_written_read_and_copied_whichever_call_is_refused() {
    for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register] {
        let dir = tempfile::tempdir().unwrap();
        fs::File::create(dir.path().join("disk")).unwrap().set_len(16 << 20).unwrap();
        let refuse = |command: &mut Command| refuse_call(command, call, libc::EPERM);
        let volumes = ["disk", "mem:16M", "--cores", "2"];
        let daemon = Daemon::start_prepared(dir.path(), &volumes, refuse);
        let data = pattern(5 << 20);
        let (address, nqn) = (daemon.listeners[0], daemon.nqn.clone());
        let (file, memory) = (uri(address, &nqn, 1), uri(address, &nqn, 2));
        prints(&["write", &file, "--offset", "1M"], &data);
        assert!(prints(&["cat", &file, "--offset", "1M", "--length", "5M"], b"") == data);
        // By commands of the copying host, and by the target itself.
        prints(&["copy", &file, &memory], b"");
        assert!(prints(&["cat", &memory, "--offset", "1M", "--length", "5M"], b"") == data);
        // What a crash leaves of what was acknowledged.
        daemon.kill();
        let local = dir.path().join("disk");
        assert!(prints(&["cat", local.to_str().unwrap()], b"")[1 << 20..6 << 20] == data);
        let daemon = Daemon::start_prepared(dir.path(), &volumes, refuse);
        let file = uri(daemon.listeners[0], &nqn, 1);
        assert!(prints(&["cat", &file, "--offset", "1M", "--length", "5M"], b"") == data);
        let (status, log) = daemon.stop("TERM");
        assert!(status.success(), "{log}");
        assert_eq!(log.matches(NOTICE).count(), 1, "{log}");
        assert!(log.contains("seccomp") && log.contains("io_uring_setup"), "{log}");
    }
}

#[test]
fn what_needs_a_ring_names_who_refuses() {
    let output = run(&["ublk", "add", "mem:1M"], b"");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    // Where the kernel has no ublk at all, that is the first thing in the way (`guest/no_io_uring` has one that has).
    let wanted = if Path::new("/dev/ublk-control").exists() { "seccomp" } else { "ublk_drv" };
    assert!(said.contains(wanted), "{said}");
    assert!(!said.contains(NOTICE), "{said}");
}

#[test]
fn the_environment_can_forbid_it() {
    let mut command = nvlane();
    command.args(["cat", "mem:1M"]).env("NVLANE_IO_URING", "off");
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && output.stdout.len() == 1 << 20, "{said}");
    assert!(said.contains(NOTICE) && said.contains("unset it"), "{said}");
    // Figures say that they were measured without.
    let mut bench = nvlane();
    bench.args(["bench", "namespace", "--quick", "--json", "--only", "null_three_layers"]);
    let output = bench.env("NVLANE_IO_URING", "off").output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let notes = document["machine"]["notes"].to_string();
    assert!(notes.contains(NOTICE) && notes.contains("unset it"), "{document}");
}
