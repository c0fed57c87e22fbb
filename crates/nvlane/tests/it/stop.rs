//! What a stop in order does with commands that a volume holds.

use crate::daemon::{Daemon, eventually, nvlane, volume_of, wait};
use serde_json::json;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What is written first; the volume is larger.
const BYTES: usize = 4096;

/// A write to the daemon's volume, which is with the volume when this returns.
fn in_flight(daemon: &Daemon) -> Child {
    let volume = format!("tcp://{}/{}?ns=1", daemon.listeners[0], daemon.nqn);
    let mut write = nvlane()
        .args(["write", &volume])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    write.stdin.take().unwrap().write_all(&[9; BYTES]).unwrap();
    eventually("its data is in a buffer, and the command with the volume", || {
        let stats = daemon.call("stats", json!({}));
        let cores = stats["cores"].as_array().unwrap();
        cores.iter().any(|core| core["buffer_bytes_free"] != core["buffer_bytes"])
    });
    write
}

/// Whose writes take long. A stop waits 10 s for them: what is to end in time has seconds left before and after.
fn volume(dir: &Path, delay: &str) -> String {
    File::create(dir.join("a.img")).unwrap().set_len(1 << 20).unwrap();
    format!("delay:write={delay}(file:{})", dir.join("a.img").display())
}

fn is_written(dir: &Path) -> bool {
    fs::read(dir.join("a.img")).unwrap()[..BYTES] == [9; BYTES]
}

#[test]
fn what_a_volume_holds_is_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[&volume(dir.path(), "6s")]);
    let mut write = in_flight(&daemon);
    let (status, log) = daemon.stop("TERM");
    write.kill().unwrap();
    write.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("everything is flushed"), "{log}");
    assert!(is_written(dir.path()), "{log}");
}

/// Its host is not there any more when the server is told to stop.
#[test]
fn what_a_lost_host_has_left_is_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[&volume(dir.path(), "6s")]);
    let mut write = in_flight(&daemon);
    write.kill().unwrap();
    write.wait().unwrap();
    eventually("its connections are gone", || daemon.call("stats", json!({}))["connections"] == 0);
    assert!(!is_written(dir.path()));
    let (status, log) = daemon.stop("TERM");
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(is_written(dir.path()), "{log}");
}

#[test]
fn what_a_volume_holds_for_too_long_is_given_up_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[&volume(dir.path(), "50s"), "mem:1M"]);
    let mut write = in_flight(&daemon);
    let begun = Instant::now();
    let (status, log) = daemon.stop("TERM");
    assert!(begun.elapsed() >= Duration::from_secs(10), "{log}");
    write.kill().unwrap();
    write.wait().unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("1 command(s) were not finished within 10 s and are given up;"), "{log}");
    let named = log.lines().find(|line| line.contains("still has commands of hosts")).unwrap();
    assert!(named.contains("WARN") && named.contains("a.img"), "{log}");
    assert_eq!(log.matches("still has commands of hosts").count(), 1, "{log}");
    assert!(!log.contains("everything is flushed"), "{log}");
}

/// Whoever does not want to wait asks again.
#[test]
fn a_second_signal_ends_the_wait() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[&volume(dir.path(), "50s")]);
    let mut write = in_flight(&daemon);
    let pid = daemon.pid().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
    eventually("it has heard of it", || daemon.log().contains("stopping"));
    // Sooner it would be taken for the same wish.
    thread::sleep(Duration::from_millis(1500));
    let (status, log) = daemon.stop("TERM");
    write.kill().unwrap();
    write.wait().unwrap();
    assert_eq!(status.code(), Some(128 + 15), "{log}");
    assert!(log.contains("told again to stop"), "{log}");
}

/// The greeting and the shortest handshake of the NBD protocol, then a write of the first 4 KiB, which is with the volume
/// when this returns.
fn nbd_write(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    // NBD_FLAG_C_FIXED_NEWSTYLE and NBD_FLAG_C_NO_ZEROES, then NBD_OPT_EXPORT_NAME of the first export.
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    let request = |kind: u8, offset: u64, bytes: usize| {
        let mut request = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, kind];
        request.extend([0; 8]);
        request.extend(offset.to_be_bytes());
        request.extend((bytes as u32).to_be_bytes());
        request
    };
    stream
        .write_all(&[request(1, 0, BYTES), vec![9; BYTES], request(0, 64 << 10, 512)].concat())
        .unwrap();
    // The read came after it, and is answered.
    stream.read_exact(&mut [0; 16 + 512]).unwrap();
    stream
}

/// Starts `nvlane nbd`, has it stopped with a write in progress, and gives its exit status and its log.
fn stop_nbd(dir: &Path, volume: &str) -> (Option<i32>, String) {
    let mut nbd = nvlane()
        .args(["nbd", volume, "--socket", "s"])
        .current_dir(dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(nbd.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "ready"));
    let writer = nbd_write(&dir.join("s"));
    let pid = nbd.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
    let status = wait(&mut nbd);
    drop(writer);
    let mut log = String::new();
    nbd.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    (status.code(), log)
}

#[test]
fn nbd_carries_out_what_a_volume_holds() {
    let dir = tempfile::tempdir().unwrap();
    let (status, log) = stop_nbd(dir.path(), &volume(dir.path(), "6s"));
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("everything is flushed"), "{log}");
    assert!(is_written(dir.path()), "{log}");
}

#[test]
fn nbd_tells_what_it_gives_up() {
    let dir = tempfile::tempdir().unwrap();
    let (status, log) = stop_nbd(dir.path(), &volume(dir.path(), "50s"));
    assert_eq!(status, Some(1), "{log}");
    assert!(log.contains("1 command(s) were not finished within 10 s and are given up;"), "{log}");
    assert!(log.contains("still has commands of clients") && log.contains("a.img"), "{log}");
    assert!(!log.contains("everything is flushed"), "{log}");
    assert!(dir.path().join("s").exists(), "whoever listens there next is to know");
}

/// A journal that hangs, a terminal that was stopped: their pipe is full.
#[test]
fn a_log_that_nobody_reads_holds_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, mut stderr) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&stderr).unwrap();
    rustix::fs::fcntl_setfl(&stderr, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while stderr.write(&[b'.'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&stderr, flags).unwrap();
    let socket = dir.path().join("s");
    let (address, data) = ("127.0.0.1:0", dir.path().join("data"));
    let mut serve = nvlane();
    serve.args(["serve", "mem:1M", "--log", "debug", "--listen", address, "--socket"]).arg(&socket);
    serve.arg("--data-dir").arg(data).stdout(Stdio::null()).stderr(stderr);
    let mut child = serve.spawn().unwrap();
    // The command has the other end as well.
    drop(serve);
    let volume = volume_of(&mut child, &socket);
    let output = nvlane().args(["cat", &volume]).output().unwrap();
    assert!(output.status.success() && output.stdout == vec![0; 1 << 20]);
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(wait(&mut child).code(), Some(0));
    let mut said = Vec::new();
    log.read_to_end(&mut said).unwrap();
    assert!(said.iter().all(|&byte| byte == b'.'), "{}", String::from_utf8_lossy(&said));
}
