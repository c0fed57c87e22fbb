//! Remote volumes: a daemon's namespaces read, written and watched through another process, and
//! opened by another daemon.

use crate::daemon::{Daemon, eventually, nvlane};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

pub const NQN: &str = "nqn.2026-11.com.example:a";

/// A daemon with two ports.
pub fn start(dir: &Path) -> Daemon {
    let args = ["mem:16M", "--nqn", NQN, "--listen", "127.0.0.1:0", "--listen", "127.0.0.1:0"];
    Daemon::start(dir, &args)
}

/// Its namespace through both ports.
pub fn uri(daemon: &Daemon, options: &str) -> String {
    let [first, second] = daemon.listeners[..] else { panic!("{:?}", daemon.listeners) };
    format!("tcp://{first},{second}/{NQN}?ns=1{options}")
}

/// What a command prints that must succeed.
pub fn json(args: &[&str]) -> Value {
    let output = nvlane().args(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Bytes of which no block is like another.
fn pattern(bytes: usize) -> Vec<u8> {
    let word = |word: u64| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..bytes as u64 / 8).flat_map(word).collect()
}

#[test]
fn what_is_written_over_several_paths_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let data = pattern(9 << 20);
    let input = dir.path().join("in");
    fs::write(&input, &data).unwrap();
    for options in ["&policy=round-robin", "&policy=numa&hdr_digest&data_digest"] {
        let volume = uri(&daemon, options);
        let mut child = nvlane()
            .args(["write", &volume, "--offset", "1M"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&data).unwrap();
        assert!(child.wait().unwrap().success());
        let output = nvlane().args(["cat", &volume, "--offset", "1M", "--length", "9M"]).output();
        assert!(output.unwrap().stdout == data, "{volume}: other bytes");
        // The same bytes, whichever way they are asked for.
        let single = format!("tcp://{}/{NQN}?ns=1", daemon.listeners[1]);
        let output = nvlane().args(["cat", &single, "--offset", "1M", "--length", "9M"]).output();
        assert!(output.unwrap().stdout == data, "{single}: other bytes");
    }
}

#[test]
fn info_and_paths_show_each_path() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let volume = uri(&daemon, "");
    let info = json(&["info", &volume, "--json"]);
    assert_eq!((&info["bytes"], &info["policy"]), (&json!(16 << 20), &json!("completion-time")));
    assert_eq!(info["paths"].as_array().unwrap().len(), 2);
    assert_eq!(info["paths"][0]["access"], "optimized");

    let mut sample = Value::Null;
    eventually("both paths have answered", || {
        sample = json(&["paths", &volume, "-o", "json"]);
        let paths = sample["volumes"][0]["paths"].as_array().unwrap();
        paths.iter().all(|path| path["p50_ns"].as_u64() > Some(0))
    });
    let [one] = &sample["volumes"].as_array().unwrap()[..] else { panic!("{sample}") };
    assert_eq!(one["policy"], "round-robin");
    let paths = one["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 2);
    for (path, listener) in paths.iter().zip(&daemon.listeners) {
        let keys: Vec<&str> = path.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys.join(" "),
            "access details errors in_flight name p50_ns p99_ns reason reconnects selections share standby weight"
        );
        assert_eq!(path["name"], format!("tcp://{listener}"));
        assert_eq!(path["access"], "optimized");
        // Both were probed, and their shares are those of the probes.
        assert!(path["selections"].as_u64().unwrap() > 0, "{path}");
        assert!(path["p50_ns"].as_u64().unwrap() > 0, "{path}");
    }
    let share: f64 = paths.iter().map(|path| path["share"].as_f64().unwrap()).sum();
    assert!((share - 1.0).abs() < 1e-9, "{sample}");

    let output = nvlane().args(["paths", &volume]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("probing with small reads, round-robin\n"), "{text}");
    assert!(text.contains("\nPath ") && text.contains(" optimized "), "{text}");
    // A policy that was chosen is left alone.
    let chosen = json(&["paths", &uri(&daemon, "&policy=queue-depth"), "-o", "json"]);
    assert_eq!(chosen["volumes"][0]["policy"], "queue-depth");
}

#[test]
fn a_daemon_tells_and_changes_the_paths_of_what_it_has_opened() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = start(dir.path());
    let volume = uri(&target, "&reconnect_delay=100ms");
    let gateway = Daemon::start(other.path(), &[&volume, "--nqn", "nqn.2026-11.com.example:g"]);
    let paths = || gateway.call("volume_paths", json!({}));
    assert_eq!(paths()[0]["policy"], "completion-time");
    eventually("both paths", || paths()[0]["paths"][1]["access"] == "optimized");

    // Tuned, and still so after a restart.
    gateway.call("volume_tune", json!({"nsid": 1, "name": "policy", "value": "numa"}));
    assert_eq!(paths()[0]["policy"], "numa");
    let said = gateway.refuse("volume_tune", json!({"nsid": 1, "name": "policy", "value": "best"}));
    assert_eq!(said, -32003);
    assert_eq!(paths()[0]["policy"], "numa");
    let socket = gateway.socket.to_str().unwrap();
    let output = nvlane().args(["ctl", "--socket", socket, "volume", "paths"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("numa\nPath "), "{text}");
    let standby = |value: &str| json!({"nsid": 1, "name": "standby", "value": value});
    gateway.refuse("volume_tune", standby("192.0.2.1"));
    gateway.call("volume_tune", standby(&target.listeners[0].to_string()));
    assert_eq!(paths()[0]["paths"][0]["standby"], true);
    assert_eq!(paths()[0]["paths"][1]["standby"], false);
    let subsystems = json(&["list-subsys", "--socket", socket, "-o", "json"]);
    let subsystem = &subsystems["Subsystems"][0];
    assert_eq!((&subsystem["NQN"], &subsystem["IOPolicy"]), (&json!(NQN), &json!("numa")));
    assert_eq!(subsystem["Paths"][0]["State"], "live");

    // I/O through the gateway counts; a port that goes is told with its reason.
    let through = format!("tcp://{}/{}?ns=1", gateway.listeners[0], gateway.nqn);
    let sent_by = |path: usize| paths()[0]["paths"][path]["selections"].as_u64().unwrap();
    // A core connects when it is first used, and takes the path on standby until the other is there.
    eventually("the path that is not on standby", || {
        let output = nvlane().args(["cat", &through, "--length", "4K"]).output().unwrap();
        output.status.success() && sent_by(1) > 0
    });
    let before = [sent_by(0), sent_by(1)];
    let output = nvlane().args(["cat", &through, "--length", "4M"]).output().unwrap();
    assert!(output.stdout.len() == 4 << 20 && output.status.success());
    assert!(sent_by(1) >= before[1] + 4, "{}", paths());
    assert_eq!(sent_by(0), before[0], "it is on standby");
    target.call("listener_remove", json!({"address": target.listeners[1]}));
    eventually("a path that is lost", || paths()[0]["paths"][1]["access"] == "lost");
    eventually("a reason", || paths()[0]["paths"][1]["reason"] != "");
    let output = nvlane().args(["cat", &through, "--length", "4M"]).output().unwrap();
    assert!(output.stdout.len() == 4 << 20 && output.status.success(), "the other path serves");
    gateway.kill();
    let gateway = Daemon::start(other.path(), &[&volume, "--nqn", "nqn.2026-11.com.example:g"]);
    let again = gateway.call("volume_paths", json!({}));
    assert_eq!(again[0]["policy"], "numa");
    assert_eq!(again[0]["paths"][0]["standby"], true);
}

#[test]
fn all_volumes_of_a_subsystem_are_tuned_at_once() {
    const GATEWAY: &str = "nqn.2026-11.com.example:g";
    const OTHER: &str = "nqn.2026-11.com.example:o";
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = Daemon::start(dir.path(), &["mem:1M", "mem:2M", "mem:3M", "--nqn", NQN]);
    let volume = |nsid: u32| format!("tcp://{}/{NQN}?ns={nsid}", target.listeners[0]);
    let arguments = [&volume(1), &volume(2), "mem:1M", "--nqn", GATEWAY];
    let gateway = Daemon::start(other.path(), &arguments);
    gateway.call("subsystem_add", json!({"nqn": OTHER}));
    gateway.call("volume_add", json!({"nqn": OTHER, "volume": volume(3)}));
    let policies = |gateway: &Daemon| -> Vec<String> {
        let paths = gateway.call("volume_paths", json!({}));
        let policy = |volume: &Value| volume["policy"].as_str().unwrap().to_owned();
        paths.as_array().unwrap().iter().map(policy).collect()
    };
    let before = gateway.call("config_get", json!({}));
    // What one of them refuses none has taken, nor what nobody knows.
    for (name, value) in [("policy", "best"), ("colour", "red")] {
        let wanted = json!({"nqn": GATEWAY, "name": name, "value": value});
        assert_eq!(gateway.refuse("subsystem_tune", wanted), -32003);
    }
    let empty = json!({"nqn": OTHER, "nsid": 1});
    assert_eq!(gateway.call("config_get", json!({})), before);
    assert_eq!(policies(&gateway), ["completion-time"; 3]);

    let socket = gateway.socket.to_str().unwrap();
    let command = ["ctl", "--socket", socket, "subsystem", "tune", GATEWAY, "policy=numa"];
    let output = nvlane().args(command).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches("policy=numa").count(), 2, "the two that have paths: {text}");
    assert_eq!(policies(&gateway), ["numa", "numa", "completion-time"]);
    // It is saved, before anything else is.
    gateway.kill();
    let gateway = Daemon::start(other.path(), &arguments);
    assert_eq!(policies(&gateway), ["numa", "numa", "completion-time"]);
    gateway.call("volume_remove", empty);
    let nothing = json!({"nqn": OTHER, "name": "policy", "value": "numa"});
    assert_eq!(gateway.refuse("subsystem_tune", nothing), -32005);
}

/// The target dies while its namespace is read, for good: the error comes with `ctrl_loss_tmo`, and
/// says of each path why.
#[test]
fn a_target_that_stays_away_is_told_path_by_path() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path());
    let listeners = daemon.listeners.clone();
    let volume = uri(&daemon, "&reconnect_delay=100ms&ctrl_loss_tmo=6s");
    let mut child = nvlane()
        .args(["write", &volume])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Larger than a pipe: when it is taken, the volume is open and in use.
    stdin.write_all(&pattern(1 << 20)).unwrap();
    daemon.kill();
    let _ = stdin.write_all(&pattern(2 << 20));
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("nvlane: tcp://") && last.contains("Host Pathing Error"), "{said}");
    for listener in listeners {
        let path = format!("; tcp://{listener}: ");
        let (_, reason) = last.split_once(&path).expect("each path is named");
        let reason = reason.split("; tcp://").next().unwrap();
        assert!(reason.contains("refused"), "of {listener}: {said}");
    }
}

/// What becomes of a path is logged, for the better as for the worse.
#[test]
fn a_path_that_recovers_is_logged() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = start(dir.path());
    let volume = uri(&target, "");
    let gateway = Daemon::start(other.path(), &[&volume, "--nqn", "nqn.2026-11.com.example:g"]);
    let access = || gateway.call("volume_paths", json!({}))[0]["paths"][1]["access"].clone();
    for state in ["optimized", "inaccessible", "optimized"] {
        let listener = target.listeners[1];
        target.call("ana_set", json!({"group": 1, "state": state, "listener": listener}));
        eventually(state, || access() == state);
    }
    let (_, log) = gateway.stop("TERM");
    assert!(log.contains("path is inaccessible: "), "{log}");
    assert!(log.contains("path is optimized again"), "{log}");
}
