//! What `nvlane copy -o json` says of how a copy has ended.

use crate::copy::{copy, done, file, line, pattern};
use crate::daemon::{eventually, nvlane, wait};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

const M: u64 = 1 << 20;

/// The object of a copy that is not done, and its line on standard error.
fn end(output: &Output) -> (Value, String) {
    let line = line(output);
    let json = serde_json::from_slice(&output.stdout);
    (json.unwrap_or_else(|error| panic!("{error}: {line}")), line)
}

#[test]
fn programs_are_told_of_the_end_of_a_copy_that_failed() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) =
        (file(dir.path(), "a", &pattern(4 << 20, 3)), file(dir.path(), "b", &vec![0; 4 << 20]));
    let bad = format!("fault:lba=4096,op=read({a})");
    let (json, line) =
        end(&copy(&[&bad, &b, "--request-size", "512K", "-R", "1", "--no-extents", "-o", "json"]));
    assert_eq!(json["state"], "failed");
    assert!(line.contains(json["error"].as_str().unwrap()), "{line}: {json}");
    assert_eq!((&json["durable_bytes"], &json["total_bytes"]), (&(2 * M).into(), &(4 * M).into()));
    assert_eq!((&json["verified"], &json["schema_version"]), (&false.into(), &1.into()));
    // What is refused has not begun.
    assert!(copy(&[&a, &b, "--request-size", "1", "-o", "json"]).stdout.is_empty());
}

/// As on a disk that is full: a file of nothing but holes looks like a copy, and is none.
#[test]
fn a_copy_that_fails_before_anything_is_there_leaves_no_file_that_it_made() {
    let dir = tempfile::tempdir().unwrap();
    let a = file(dir.path(), "a", &pattern(4 << 20, 3));
    let (made, there) = (dir.path().join("made"), file(dir.path(), "there", &vec![0; 4 << 20]));
    let new = format!("{}?create&size=4M", made.display());
    let flags = ["--request-size", "512K", "-R", "1", "--no-extents"];
    let fails = |from: &str, to: &str| {
        line(&copy(&[&[from, to], &flags[..]].concat()));
    };
    fails(&a, &format!("fault:op=write,op=copy({new})"));
    assert!(!made.exists());
    fails(&a, &format!("fault:op=write,op=copy({there})"));
    assert!(Path::new(&there).exists(), "it was there before");
    fails(&format!("fault:op=read({a})"), &new);
    assert!(!made.exists());
    // Half of it is something to go on with.
    fails(&format!("fault:lba=4096,op=read({a})"), &new);
    assert!(fs::read(&made).unwrap()[..2 << 20] == fs::read(&a).unwrap()[..2 << 20]);
}

/// Though what is written to standard output cannot be.
#[test]
fn a_copy_that_nobody_reads_of_fails_as_any_other() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) =
        (file(dir.path(), "a", &pattern(1 << 20, 3)), file(dir.path(), "b", &vec![0; 1 << 20]));
    let unread = |args: &[&str]| {
        // Nobody has the end that is read from.
        let (_, closed) = std::io::pipe().unwrap();
        nvlane().arg("copy").args(args).stdout(closed).output().unwrap()
    };
    let bad = format!("fault:op=read({a})");
    assert!(line(&unread(&[&bad, &b, "--no-extents", "-o", "json"])).contains(" are copied"));
    let slow = format!("linear:({b},mem:1M)@512K");
    let plan = line(&unread(&[&a, &slow, "--fast-only", "-n"]));
    assert!(plan.contains("--fast-only"), "{plan}");
    assert!(unread(&[&a, &b, "-o", "json"]).status.success());
}

#[test]
fn programs_are_told_of_the_end_of_a_copy_that_was_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let data = pattern(16 << 20, 7);
    let (a, b) = (file(dir.path(), "a", &data), file(dir.path(), "b", &vec![0; 16 << 20]));
    let mut child = nvlane()
        .args(["copy", &a, &b, "--throttle", "1M", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("progress", || fs::read(&b).unwrap()[..512] == data[..512]);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    wait(&mut child);
    let (json, line) = end(&child.wait_with_output().unwrap());
    assert_eq!((&json["state"], &json["error"]), (&"interrupted".into(), &Value::Null));
    let bytes = json["durable_bytes"].as_u64().unwrap();
    assert!(bytes < 15 * M && line.contains(&format!("the first {bytes} bytes")), "{line}: {json}");
}

#[test]
fn a_copy_that_is_interrupted_while_it_opens_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (file(dir.path(), "a", &pattern(1 << 20, 3)), dir.path().join("b"));
    // It takes connections, and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    let far = format!("tcp://{}/nqn.2026-11.com.example:a?ns=1", silent.local_addr().unwrap());
    let mut child = nvlane()
        .args(["copy", &a, b.to_str().unwrap(), "--also", &far, "--create", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("a target", || b.exists());
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    wait(&mut child);
    let (json, line) = end(&child.wait_with_output().unwrap());
    assert_eq!((&json["state"], &json["order"]), (&"interrupted".into(), &Value::Null));
    assert!(line.contains("nothing is copied") && !b.exists(), "{line}");
}

#[test]
fn copying_and_comparing_are_timed_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) =
        (file(dir.path(), "a", &pattern(2 << 20, 3)), file(dir.path(), "b", &vec![0; 2 << 20]));
    // It is compared at 5 MiB a second, and copied at 10.
    let slow = format!("delay:read=50ms,write=25ms({b})");
    let json = done(&[&a, &slow, "--verify", "-R", "1", "--read-write"]);
    let seconds = |field: &str| json[field].as_f64().unwrap_or_else(|| panic!("{field}: {json}"));
    assert!(seconds("verify_seconds") >= 0.35, "{json}");
    assert!(seconds("copy_seconds") >= 0.17, "{json}");
    assert!(
        (seconds("copy_seconds") + seconds("verify_seconds") - seconds("seconds")).abs() < 1e-3
    );
    assert_eq!(json["state"], "done");
    assert!(done(&[&a, &b])["verify_seconds"].is_null());
    let text = String::from_utf8(copy(&[&a, &slow, "--verify", "-R", "1"]).stdout).unwrap();
    let time = text.split("compared in ").nth(1).and_then(|rest| rest.split(' ').next());
    assert!(time.and_then(|time| time.parse::<f64>().ok()) >= Some(0.3), "{text}");
}
