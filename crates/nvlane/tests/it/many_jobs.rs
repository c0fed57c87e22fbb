//! As many jobs as there may be: at work at one time, and remembered.

use crate::copy::{file, pattern};
use crate::daemon::{Daemon, ask};
use crate::jobs::{job, records_of, start, unthrottle, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Jobs at work at one time, and jobs that are remembered (docs/copy.md).
const RUNNING_MAX: u64 = 64;
const JOBS_MAX: u64 = 1024;
/// Bytes that each copies: four pieces of the smallest size that a rate makes.
const BYTES: usize = 256 << 10;

/// Where the source of job `id` begins.
fn source_of(id: u64) -> usize {
    (id % 4) as usize * BYTES
}

fn target_of(dir: &Path, id: u64) -> String {
    dir.join(format!("target{id}")).to_str().unwrap().to_owned()
}

/// What is answered to a job with this number.
fn add(daemon: &Daemon, dir: &Path, id: u64) -> Value {
    let wanted = json!({
        "sources": [{"volume": "served:1", "offset": source_of(id), "length": BYTES}],
        "targets": [{"volume": target_of(dir, id)}],
        // A minute: it will not have ended before it is let go.
        "options": {"throttle": "4K"},
    });
    ask(&daemon.socket, "job_add", wanted).unwrap()
}

/// The code and the message of a refusal.
fn refusal(answer: &Value) -> (i64, &str) {
    let error = &answer["error"];
    (error["code"].as_i64().expect("refused"), error["message"].as_str().unwrap_or_default())
}

#[test]
fn so_many_jobs_are_at_work_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let data = pattern(4 * BYTES, 1);
    file(dir.path(), "a", &data);
    file(dir.path(), "b", &vec![0; BYTES]);
    (1..=RUNNING_MAX + 1).for_each(|id| {
        file(dir.path(), &format!("target{id}"), &vec![0xdd; BYTES]);
    });
    let daemon = start(dir.path());
    for id in 1..=RUNNING_MAX {
        let answer = add(&daemon, dir.path(), id);
        assert_eq!(answer["result"]["id"], id, "{answer}");
    }
    // One more is not taken, and is no job afterwards.
    let answer = add(&daemon, dir.path(), RUNNING_MAX + 1);
    let (code, said) = refusal(&answer);
    assert!(code == -32002 && said.contains("64 jobs are at work"), "{answer}");
    let jobs = daemon.call("job_list", json!({}));
    let at_work = jobs.as_array().unwrap().iter().filter(|job| job["state"] == "running");
    assert_eq!((at_work.count() as u64, jobs.as_array().unwrap().len() as u64), (64, RUNNING_MAX));

    // Where one is paused there is room for another, and none for it to go on.
    daemon.call("job_pause", json!({"id": 7}));
    wait_for(&daemon, 7, "paused");
    let answer = add(&daemon, dir.path(), RUNNING_MAX + 1);
    assert_eq!(answer["result"]["id"], RUNNING_MAX + 1, "{answer}");
    assert_eq!(daemon.refuse("job_resume", json!({"id": 7})), -32002);
    assert_eq!(job(&daemon, 7)["state"], "paused");

    for id in 1..=RUNNING_MAX + 1 {
        unthrottle(&daemon, id);
    }
    for id in (1..=RUNNING_MAX + 1).filter(|id| *id != 7) {
        wait_for(&daemon, id, "done");
    }
    daemon.call("job_resume", json!({"id": 7}));
    wait_for(&daemon, 7, "done");
    for id in 1..=RUNNING_MAX + 1 {
        let wanted = &data[source_of(id)..][..BYTES];
        assert!(fs::read(target_of(dir.path(), id)).unwrap() == wanted, "job {id}: other bytes");
    }
}

#[test]
fn so_many_jobs_are_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let data = pattern(4 * BYTES, 1);
    file(dir.path(), "a", &data);
    file(dir.path(), "b", &vec![0; BYTES]);
    for id in [1, JOBS_MAX + 1] {
        file(dir.path(), &format!("target{id}"), &vec![0xdd; BYTES]);
    }
    let daemon = start(dir.path());
    add(&daemon, dir.path(), 1);
    daemon.call("job_throttle", json!({"id": 1, "throttle": "none"}));
    wait_for(&daemon, 1, "done");
    let (status, log) = daemon.stop("TERM");
    assert!(status.success(), "{log}");
    // As many as that of the same.
    let records = records_of(dir.path());
    let mut record: Value =
        serde_json::from_slice(&fs::read(records.join("1.json")).unwrap()).unwrap();
    for id in 2..=JOBS_MAX {
        record["id"] = id.into();
        fs::write(records.join(format!("{id}.json")), record.to_string()).unwrap();
    }
    let daemon = start(dir.path());
    let jobs = daemon.call("job_list", json!({}));
    assert_eq!(jobs.as_array().unwrap().len() as u64, JOBS_MAX);
    let answer = add(&daemon, dir.path(), JOBS_MAX + 1);
    let (code, said) = refusal(&answer);
    assert!(code == -32002 && said.contains("nvlane jobs clear"), "{answer}");
    daemon.call("job_clear", json!({}));
    assert_eq!(daemon.call("job_list", json!({})), json!([]));
    let answer = add(&daemon, dir.path(), JOBS_MAX + 1);
    assert_eq!(answer["result"]["id"], JOBS_MAX + 1, "{answer}");
    daemon.call("job_throttle", json!({"id": JOBS_MAX + 1, "throttle": "none"}));
    wait_for(&daemon, JOBS_MAX + 1, "done");
    let wanted = &data[source_of(JOBS_MAX + 1)..][..BYTES];
    assert!(fs::read(target_of(dir.path(), JOBS_MAX + 1)).unwrap() == wanted, "other bytes");
}
