//! `nvlane paths --watch`: what changes is in the next line, and it goes on until it is told to end, or nobody
//! listens any more.

use crate::daemon::{Daemon, PATIENCE, wait};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Instant;

const NQN: &str = "nqn.2026-11.com.example:a";
const GATEWAY: &str = "nqn.2026-11.com.example:g";

/// One that runs; its lines come as they are written. Killed when dropped.
struct Watch {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Watch {
    fn start(args: &[&str]) -> Watch {
        Watch::in_format("json", args)
    }

    fn in_format(format: &str, args: &[&str]) -> Watch {
        // Though the tests may have been started in the background, SIGINT means what it usually does.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_nvlane")]);
        command.args(["paths", "--watch", "--interval", "50ms", "-o", format]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            // Who is not listened to any more closes the pipe.
            let _ = stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line));
        });
        Watch { child, lines }
    }

    /// The next sample of its only volume.
    fn next(&self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("another line");
        let sample: Value = serde_json::from_str(&line).expect("each line is an object");
        assert_eq!(sample["schema_version"], 1);
        let [volume] = &sample["volumes"].as_array().unwrap()[..] else { panic!("{sample}") };
        volume.clone()
    }

    /// The next one in which it `holds`.
    fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let since = Instant::now();
        loop {
            let volume = self.next();
            if holds(&volume) {
                return volume;
            }
            assert!(since.elapsed() < PATIENCE, "not in time: {what}: {volume}");
        }
    }

    /// Sends a signal; how it has ended, and what it had to say.
    fn end(mut self, signal: &str) -> (ExitStatus, String) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &id]).status().unwrap();
        assert!(sent.success());
        self.ended()
    }

    fn ended(&mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status, said)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A target with two ports, and the volume by both of them.
fn target(dir: &Path) -> (Daemon, String) {
    let ports = ["--listen", "127.0.0.2:0", "--listen", "127.0.0.2:0"];
    let args = [&["mem:16M", "--nqn", NQN][..], &ports].concat();
    let target = Daemon::start(dir, &args);
    let [first, second] = target.listeners[..] else { panic!("{:?}", target.listeners) };
    let volume = format!("tcp://{first},{second}/{NQN}?ns=1&reconnect_delay=100ms");
    (target, volume)
}

fn accesses(volume: &Value) -> Vec<&str> {
    let paths = volume["paths"].as_array().unwrap();
    paths.iter().map(|path| path["access"].as_str().unwrap()).collect()
}

fn shares(volume: &Value) -> Vec<f64> {
    let paths = volume["paths"].as_array().unwrap();
    paths.iter().map(|path| path["share"].as_f64().unwrap()).collect()
}

#[test]
fn a_path_that_goes_and_comes_back_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (target, volume) = target(dir.path());
    let watch = Watch::start(&[&volume]);
    let both = watch.until("both paths are probed", |volume| {
        accesses(volume) == ["optimized"; 2] && shares(volume).iter().all(|share| *share > 0.0)
    });
    let sent = |volume: &Value, path: usize| volume["paths"][path]["selections"].as_u64().unwrap();

    let second = target.listeners[1];
    target.call("listener_remove", json!({"address": second}));
    // Shares are of the interval: a path that is gone has none, whatever it had before.
    let lost = watch.until("a path is lost, and has no share", |volume| {
        accesses(volume) == ["optimized", "lost"] && shares(volume) == [1.0, 0.0]
    });
    assert!(sent(&lost, 0) > sent(&both, 0), "the other one is probed: {lost}");
    watch.until("why it is lost", |volume| {
        volume["paths"][1]["reason"].as_str().is_some_and(|reason| reason.contains("refused"))
    });

    target.call("listener_add", json!({"address": second}));
    let back = watch.until("it is back, with its share", |volume| {
        accesses(volume) == ["optimized"; 2] && shares(volume)[1] > 0.0
    });
    assert_eq!(
        (&back["paths"][0]["reconnects"], &back["paths"][0]["reason"]),
        (&json!(0), &json!(""))
    );
    assert!(back["paths"][1]["reconnects"].as_u64() > Some(0), "{back}");
    assert_eq!(back["paths"][1]["reason"], "");

    let (status, said) = watch.end("INT");
    assert_eq!((status.signal(), said.as_str()), (Some(2), ""));
}

/// For people: one table after the other, each as things are then.
#[test]
fn tables_follow_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (target, volume) = target(dir.path());
    let watch = Watch::in_format("normal", &[&volume]);
    let line = |begin: &str, part: &str| {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            let line = watch.lines.recv_timeout(PATIENCE).expect("another line");
            if line.starts_with(begin) && line.contains(part) {
                return;
            }
        }
        panic!("no line {begin}...{part}");
    };
    let second = format!("tcp://{}", target.listeners[1]);
    for _ in 0..3 {
        line("Path ", " Reconnects");
        line(&second, " optimized ");
    }
    target.call("listener_remove", json!({"address": target.listeners[1]}));
    line(&second, " lost ");
    line("Path ", " Reconnects");
    line(&second, " lost ");
    let (status, said) = watch.end("INT");
    assert_eq!((status.signal(), said.as_str()), (Some(2), ""));
}

#[test]
fn what_is_tuned_in_a_daemon_is_seen_and_who_watches_ends_as_it_does() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (target, volume) = target(dir.path());
    let gateway = Daemon::start(other.path(), &[&volume, "--nqn", GATEWAY]);
    let socket = gateway.socket.to_str().unwrap().to_owned();
    let start = || Watch::start(&["--socket", &socket, "--nsid", "1"]);
    let (watch, mut last) = (start(), start());
    for policy in ["completion-time", "numa", "round-robin"] {
        gateway.call("volume_tune", json!({"nsid": 1, "name": "policy", "value": policy}));
        watch.until(policy, |volume| volume["policy"] == policy);
    }
    target.call("listener_remove", json!({"address": target.listeners[0]}));
    watch.until("a path is lost", |volume| accesses(volume) == ["lost", "optimized"]);
    let (status, said) = watch.end("TERM");
    assert_eq!((status.signal(), said.as_str()), (Some(15), ""));

    // The daemon goes: one line says so.
    last.next();
    gateway.kill();
    let (status, said) = last.ended();
    assert_eq!((status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains(&socket), "{said}");
}

#[test]
fn it_ends_quietly_when_nobody_listens() {
    let dir = tempfile::tempdir().unwrap();
    let (target, volume) = target(dir.path());
    let socket = target.socket.to_str().unwrap();
    for args in [&[volume.as_str()][..], &["--socket", socket, "--nsid", "1"]] {
        let mut watch = Watch::start(args);
        watch.next();
        // The thread that reads sees that with the line after the next.
        watch.lines = mpsc::channel().1;
        let (status, said) = watch.ended();
        assert_eq!((status.code(), said.as_str()), (Some(0), ""), "{args:?}");
    }
}
