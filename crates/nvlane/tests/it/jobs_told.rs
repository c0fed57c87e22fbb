//! What is told of jobs, and what can be said to those that are not at work.

use crate::copy::{copy, file, pattern, said};
use crate::daemon::{Daemon, eventually, nvlane, wait};
use crate::jobs::{job, nvlane_jobs, part_of, start, unthrottle, wait_for};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;

/// A daemon with a job that is done (1), one that has failed (2), and one that is paused (3).
fn three_jobs() -> (TempDir, Daemon) {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), "a", &pattern(4 << 20, 1));
    file(dir.path(), "b", &vec![0; 4 << 20]);
    let daemon = start(dir.path());
    let add = |target: &str, options: Value| {
        let wanted = json!({
            "sources": part_of("served:1"), "targets": part_of(target), "options": options,
        });
        daemon.call("job_add", wanted)["id"].as_u64().unwrap()
    };
    let path = |name: &str| file(dir.path(), name, &vec![0; 4 << 20]);
    assert_eq!(add("served:2", json!({})), 1);
    assert_eq!(add(&format!("fault:op=flush({})", path("c")), json!({})), 2);
    assert_eq!(add(&path("d"), json!({"throttle": "64K"})), 3);
    wait_for(&daemon, 1, "done");
    eventually("a failure", || job(&daemon, 2)["state"] == "failed");
    daemon.call("job_pause", json!({"id": 3}));
    wait_for(&daemon, 3, "paused");
    (dir, daemon)
}

#[test]
fn a_failed_job_that_is_cancelled_says_why_it_failed() {
    let (_dir, daemon) = three_jobs();
    let failed = job(&daemon, 2);
    assert!(failed["error"].as_str().unwrap().contains("flushing"), "{failed}");
    assert_eq!(daemon.refuse("job_pause", json!({"id": 2})), -32002);
    let (ok, text) = nvlane_jobs(&daemon, &["cancel", "2"]);
    assert!(ok && text.contains("cancelled") && text.contains("flushing"), "{text}");
    assert_eq!(job(&daemon, 2)["error"], failed["error"]);
    // What is over has no speed.
    for (id, code) in [(1, -32002), (2, -32002), (9, -32001)] {
        assert_eq!(daemon.refuse("job_throttle", json!({"id": id, "throttle": "1M"})), code);
    }
    daemon.call("job_throttle", json!({"id": 3, "throttle": "1M"}));
}

#[test]
fn jobs_that_have_ended_are_forgotten_one_by_one_or_all() {
    let (_dir, daemon) = three_jobs();
    let (ok, said) = nvlane_jobs(&daemon, &["clear", "3"]);
    assert!(!ok && said.contains("has not ended"), "{said}");
    assert_eq!(daemon.refuse("job_clear", json!({"id": 4})), -32001);
    let (ok, said) = nvlane_jobs(&daemon, &["clear", "1"]);
    assert_eq!((ok, said.as_str()), (true, "job 1 is forgotten\n"));
    let left = || daemon.call("job_list", json!({})).as_array().unwrap().len();
    assert_eq!(left(), 2);
    // The one that has failed as well.
    let (_, said) = nvlane_jobs(&daemon, &["clear", "-o", "json"]);
    let json: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(json, json!({"schema_version": 1, "cleared": [2]}));
    let (_, said) = nvlane_jobs(&daemon, &["clear"]);
    assert_eq!((left(), said.as_str()), (1, "no job has ended\n"));
}

#[test]
fn it_is_known_when_jobs_were_added_begun_and_ended() {
    let (_dir, daemon) = three_jobs();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let times = |id: u64| {
        let job = job(&daemon, id);
        ["created", "started", "ended"].map(|what| job[format!("{what}_time_seconds")].as_u64())
    };
    let [created, started, ended] = times(1);
    assert!(created <= started && started <= ended && ended <= Some(now), "{:?}", times(1));
    assert!(created >= Some(now - 60), "{:?}", times(1));
    assert!(times(2)[2].is_some() && times(3)[2].is_none());
    let (_, text) = nvlane_jobs(&daemon, &["show", "1"]);
    assert!(text.contains("created   20") && text.contains("ended     20"), "{text}");
    // What is resumed begins once more, and has not ended.
    let before = times(3);
    std::thread::sleep(Duration::from_millis(1100));
    daemon.call("job_resume", json!({"id": 3}));
    let after = times(3);
    assert!(after[0] == before[0] && after[1] > before[1] && after[2].is_none(), "{after:?}");
    daemon.call("job_cancel", json!({"id": 3}));
    wait_for(&daemon, 3, "cancelled");
    assert!(times(3)[2] >= after[1]);
}

#[test]
fn who_waits_for_a_job_waits_for_the_daemon_too() {
    let (dir, daemon) = three_jobs();
    daemon.call("job_resume", json!({"id": 3}));
    let socket = daemon.socket.to_str().unwrap();
    let mut command = nvlane();
    command.args(["jobs", "wait", "3", "--socket", socket]);
    let mut waits = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It has a socket that is connected (03; the last number is the inode's, unix(7)). That somebody has would not do: those who
    // came before may still go.
    eventually("a connection", || {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        let files = std::fs::read_dir(format!("/proc/{}/fd", waits.id())).unwrap();
        let links = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
        let own: Vec<String> = links.map(|link| link.to_string_lossy().into_owned()).collect();
        sockets.lines().skip(1).any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words[5] == "03" && own.contains(&format!("socket:[{}]", words[6]))
        })
    });
    daemon.kill();
    let mut said = String::new();
    BufReader::new(waits.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("the daemon is away"), "{said}");
    assert!(waits.try_wait().unwrap().is_none(), "it does not wait");
    let daemon = start(dir.path());
    eventually("work", || job(&daemon, 3)["counts"]["done_bytes"].as_u64() > Some(0));
    unthrottle(&daemon, 3);
    assert!(wait(&mut waits).success());
    let text = String::from_utf8(waits.wait_with_output().unwrap().stdout).unwrap();
    assert!(text.contains("state     done"), "{text}");
}

#[test]
fn programs_that_wait_are_told_of_a_job_that_is_not_done() {
    let (_dir, daemon) = three_jobs();
    let socket = daemon.socket.to_str().unwrap();
    for (id, state) in [("1", "done"), ("2", "failed"), ("3", "paused")] {
        let args = ["jobs", "wait", id, "-o", "json", "--socket", socket];
        let output = nvlane().args(args).output().unwrap();
        let job: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&job["state"], output.status.success()), (&state.into(), state == "done"));
        assert_eq!(output.stderr.is_empty(), state == "done", "{job}");
    }
    // How much there is to do is known from the beginning.
    assert_eq!(job(&daemon, 3)["counts"]["total_bytes"], 4 << 20);
}

#[test]
fn who_copies_what_is_served_is_told_how_to() {
    let dir = tempfile::tempdir().unwrap();
    let a = file(dir.path(), "a", &pattern(1 << 20, 1));
    file(dir.path(), "b", &vec![0; 1 << 20]);
    let c = file(dir.path(), "c", &vec![0; 1 << 20]);
    let daemon = start(dir.path());
    let socket = daemon.socket.to_str().unwrap();
    let line = said(&[&a, &c, "--socket", socket]);
    assert!(line.contains("add --detach") && line.contains("served:1"), "{line}");
    let line = said(&[&a, &c, "--socket", "/not/there"]);
    assert!(line.contains("served:NSID"), "{line}");
    // Neither goes together with that.
    let line = said(&[&a, &c, "--create", "-n", "--socket", socket]);
    assert!(line.contains("--detach, leave out --create, and name it"), "{line}");
    // It is the copy itself that has it.
    let line = said(&[&c, &format!("{c}?bs=512")]);
    assert!(line.contains("name it the same way both times"), "{line}");
    let output = copy(&["served:1", &c, "--detach", "--socket", socket]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, format!("job 1: nvlane jobs show 1 --socket {socket}\n"));
}

/// Not of all the time since it was begun.
#[test]
fn the_rate_of_a_job_is_the_one_it_has_now() {
    let dir = tempfile::tempdir().unwrap();
    // More than it copies in the time that a machine at work may take.
    file(dir.path(), "a", &vec![7; 256 << 20]);
    file(dir.path(), "b", &vec![0; 256 << 20]);
    let daemon = start(dir.path());
    let rate = || job(&daemon, 1)["bytes_per_second"].as_u64().unwrap();
    let options = json!({"throttle": "16M", "request_bytes": 65536});
    let wanted = json!({
        "sources": part_of("served:1"), "targets": part_of("served:2"), "options": options,
    });
    daemon.call("job_add", wanted);
    eventually("a rate", || job(&daemon, 1)["counts"]["done_bytes"].as_u64() > Some(24 << 20));
    eventually("that rate", || rate() > 4 << 20);
    daemon.call("job_throttle", json!({"id": 1, "throttle": "512K"}));
    std::thread::sleep(Duration::from_secs(3));
    let mut now = 0;
    eventually("another rate", || {
        now = rate();
        now > 0
    });
    // Of some five seconds it would be 5 MiB/s.
    assert!(now < 2 << 20, "{now}: {}", job(&daemon, 1));
    daemon.call("job_cancel", json!({"id": 1}));
}
