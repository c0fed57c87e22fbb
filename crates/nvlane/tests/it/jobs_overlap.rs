//! Jobs that would write to one place, or where another reads; and what a job would do, told by the daemon.

use crate::copy::{copy, file, line, pattern};
use crate::daemon::{Daemon, eventually};
use crate::jobs::{job, nvlane_jobs, start, unthrottle, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::process::Output;
use tempfile::TempDir;

const M: u64 = 1 << 20;

/// A daemon that serves a and b, of 16 MiB, as 1 and 2, memory as 3 and 4, and b by a network as well.
fn serving() -> (TempDir, Daemon, String) {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), "a", &pattern(16 << 20, 1));
    file(dir.path(), "b", &vec![0; 16 << 20]);
    let daemon = start(dir.path());
    for nsid in [3, 4] {
        daemon.call("volume_add", json!({"volume": "mem:16M", "nsid": nsid}));
    }
    let far = format!("tcp://{}/{}?ns=2", daemon.listeners[0], daemon.nqn);
    (dir, daemon, far)
}

fn detach(daemon: &Daemon, args: &[&str]) -> Output {
    let socket = daemon.socket.to_str().unwrap();
    copy(&[args, &["--detach", "--socket", socket, "-o", "json"]].concat())
}

/// The number of a job that is taken.
fn added(daemon: &Daemon, args: &[&str]) -> u64 {
    let output = detach(daemon, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let job: Value = serde_json::from_slice(&output.stdout).unwrap();
    job["id"].as_u64().unwrap()
}

/// The line that one which is not taken is refused with.
fn refused(daemon: &Daemon, args: &[&str]) -> String {
    let before = daemon.call("job_list", json!({}));
    let line = line(&detach(daemon, args));
    let numbers = |jobs: &Value| jobs.as_array().unwrap().len();
    assert_eq!(numbers(&before), numbers(&daemon.call("job_list", json!({}))), "{line}");
    line
}

#[test]
fn a_job_is_not_to_write_where_another_reads_or_writes() {
    let (dir, daemon, far) = serving();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    // Four MiB to the second quarter of b: it takes minutes.
    let slow = ["--throttle", "64K"];
    let one = added(&daemon, &[&["served:1@+4M", "served:2@4M"], &slow[..]].concat());
    for target in ["served:2@4M", "served:2@7M", "served:2@512", b] {
        let said = refused(&daemon, &["served:3@+8M", target]);
        assert!(said.contains("job 1, which is running, writes 4 MiB of file:"), "{said}");
        assert!(said.contains("from 4 MiB on") && said.contains("--overlap-ok"), "{said}");
    }
    // What it writes is not to be read, and what it reads not to be written.
    let said = refused(&daemon, &["served:2@4M+512", "served:4"]);
    assert!(said.contains("job 1, which is running, writes"), "{said}");
    for target in ["served:1@3M", a] {
        let said = refused(&daemon, &["served:3@+1M", target]);
        assert!(said.contains("job 1, which is running, reads 4 MiB of file:"), "{said}");
    }
    // Beside it, and of what it reads; memory of as many bytes is another.
    let beside = ["served:1@+4M", "served:2@8M"];
    for args in [&beside[..], &["served:1@+4M", "served:3"], &["served:3@+4M", "served:4"]] {
        let id = added(&daemon, args);
        wait_for(&daemon, id, "done");
    }
    // What is reached by a network is known by its name there, whatever is said of the way.
    let far_job = added(&daemon, &[&["served:1@+1M", &format!("{far}@12M")], &slow[..]].concat());
    let said = refused(&daemon, &["served:3@+1M", &format!("{far}&queue_size=64@12M")]);
    assert!(said.contains("job 5, which is running, writes 1 MiB of tcp:"), "{said}");
    daemon.call("job_cancel", json!({"id": far_job}));
    wait_for(&daemon, far_job, "cancelled");
    // It is known after a crash as well, and while it is paused.
    daemon.kill();
    let daemon = start(dir.path());
    assert!(refused(&daemon, &["served:1@+1M", "served:2@4M"]).contains("job 1, which is"));
    daemon.call("job_pause", json!({"id": one}));
    wait_for(&daemon, one, "paused");
    let said = refused(&daemon, &["served:1@+1M", "served:2@4M"]);
    assert!(said.contains("job 1, which is paused"), "{said}");
    // Whoever knows better says so.
    let other = added(&daemon, &["served:1@8M+1M", "served:2@4M", "--overlap-ok"]);
    wait_for(&daemon, other, "done");
    let read = fs::read(b).unwrap();
    assert!(read[4 << 20..5 << 20] == fs::read(a).unwrap()[8 << 20..9 << 20], "other bytes");
    // What has ended is in nobody's way.
    daemon.call("job_cancel", json!({"id": one}));
    wait_for(&daemon, one, "cancelled");
    let last = added(&daemon, &["served:1@+1M", "served:2@4M"]);
    wait_for(&daemon, last, "done");
}

/// One that has failed may never go on, so nobody waits for it; when it does, others may have begun.
#[test]
fn a_job_that_failed_is_resumed_when_nobody_is_in_its_way() {
    let (dir, daemon, _) = serving();
    let c = file(dir.path(), "c", &vec![0; 16 << 20]);
    let fault = format!("fault:lba=4096,count=1,op=copy({c})");
    daemon.call("volume_add", json!({"volume": fault, "nsid": 5}));
    let size = ["--request-size", "256K", "-R", "1"];
    let one = added(&daemon, &[&["served:1", "served:5"], &size[..]].concat());
    eventually("an end", || job(&daemon, one)["state"] == "failed");
    let two = added(&daemon, &["served:1@+4M", "served:5@8M", "--throttle", "64K"]);
    let (ok, said) = nvlane_jobs(&daemon, &["retry", "1"]);
    assert!(!ok && said.contains("job 2, which is running, writes 4 MiB of"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(job(&daemon, one)["state"], "failed");
    unthrottle(&daemon, two);
    wait_for(&daemon, two, "done");
    let (ok, said) = nvlane_jobs(&daemon, &["retry", "1"]);
    assert!(ok, "{said}");
    wait_for(&daemon, one, "done");
    assert!(fs::read(&c).unwrap() == pattern(16 << 20, 1), "other bytes");
}

#[test]
fn the_daemon_tells_what_a_job_would_do() {
    let (dir, daemon, _) = serving();
    let c = file(dir.path(), "c", &vec![0; 16 << 20]);
    let plan = |args: &[&str]| {
        let output = detach(&daemon, &[args, &["--dry-run"]].concat());
        let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (told, output)
    };
    let (told, output) = plan(&["served:1@4M+8M", "served:2", "--also", &c, "--verify"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let part = |at: usize, field: &str| told["parts"][at][field].clone();
    assert_eq!((&told["total_bytes"], &told["order"]), (&(8 * M).into(), &"any".into()));
    assert!(told["schema_version"].is_u64() && told["verify"].is_string(), "{told}");
    assert!(part(0, "source").as_str().unwrap().ends_with("/a?bs=512"), "{told}");
    assert_eq!((part(0, "source_offset"), part(0, "bytes")), ((4 * M).into(), (8 * M).into()));
    for (at, target) in [(0, "/b?bs=512"), (1, "/c?bs=512")] {
        assert!(part(at, "target").as_str().unwrap().ends_with(target), "{told}");
        assert!(part(at, "means").as_str().unwrap().contains("copy_file_range"), "{told}");
    }
    let (told, _) = plan(&["served:3", "served:4"]);
    assert_eq!(told["parts"][0]["means"], "Copy: within memory", "{told}");

    // In words, as of volumes that the daemon does not have.
    let socket = daemon.socket.to_str().unwrap();
    let output = copy(&["served:1", "served:2", "--detach", "-n", "--socket", socket]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("Source") && text.ends_with("16 MiB in all\n"), "{text}");
    assert!(text.contains("copy_file_range"), "{text}");

    // It refuses what a job would refuse; what is told beside a plan is the same.
    let (told, output) = plan(&["served:1", "served:4", "--fast-only"]);
    assert!(told["parts"][0]["means"].as_str().unwrap().contains("read and written"), "{told}");
    assert!(line(&output).contains("leave out --fast-only"));
    let said = |args: &[&str]| line(&plan(args).1);
    assert!(said(&["served:1", "served:9"]).contains("there is no such namespace"));
    assert!(said(&["served:1@+4M", "served:1@2M"]).contains("overwrites its source"));
    assert_eq!(daemon.call("job_list", json!({})), json!([]), "it has begun one");
    assert!(fs::read(&c).unwrap().iter().all(|byte| *byte == 0), "it has written");
    added(&daemon, &["served:1", "served:2", "--throttle", "64K"]);
    assert!(said(&["served:3", "served:2"]).contains("job 1, which is running"));
    let (told, _) = plan(&["served:3", "served:2", "--overlap-ok"]);
    assert_eq!(told["total_bytes"], 16 * M);
}
