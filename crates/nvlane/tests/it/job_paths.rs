//! Jobs within a target that is reached by several paths, of which one is taken away.

use crate::copy::{file, pattern};
use crate::daemon::{Daemon, eventually};
use crate::jobs::{job, start, wait_for};
use serde_json::json;
use std::fs;

const M: u64 = 1 << 20;

/// What the lost path had in flight is copied by way of the other one.
#[test]
fn copies_that_a_lost_path_left_are_sent_again() {
    let (dir, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data = pattern(8 << 20, 1);
    ["a", "b"].iter().for_each(|name| drop(file(dir.path(), name, &vec![0; 1 << 20])));
    let from = file(there.path(), "from", &data);
    let to = file(there.path(), "to", &vec![7; 12 << 20]);
    let nqn = "nqn.2026-11.com.example:far";
    // It counts what is copied twice. Until it is told otherwise, the job would take sixteen seconds.
    let slow = format!("rate:1M({to})");
    let any = "127.0.0.1:0";
    let target = Daemon::start(
        there.path(),
        &[&from, &slow, "--nqn", nqn, "--listen", any, "--listen", any],
    );
    let listeners = target.listeners.iter().map(ToString::to_string).collect::<Vec<_>>();
    let remote =
        |nsid: u32| format!("tcp://{}/{nqn}?ns={nsid}&policy=round-robin", listeners.join(","));
    let daemon = start(dir.path());
    let wanted = json!({
        "sources": [{"volume": remote(1)}],
        "targets": [{"volume": remote(2), "offset": M}],
        "options": {"requests": 4, "request_bytes": 262_144},
    });
    let id = daemon.call("job_add", wanted)["id"].as_u64().unwrap();
    // In turn, so that both have something in flight from then on, which is nearly all of the time.
    eventually("work", || job(&daemon, id)["counts"]["done_bytes"].as_u64() >= Some(M));
    target.call("listener_remove", json!({"address": listeners[1]}));
    let met = job(&daemon, id);
    assert!(met["counts"]["done_bytes"].as_u64() < Some(6 * M), "nothing to lose: {met}");
    target.call("volume_tune", json!({"nsid": 2, "name": "rate.bytes", "value": "1G"}));
    let done = wait_for(&daemon, id, "done");
    // By the target, all of it: also what is copied once more, since the lost path had acknowledged it unflushed.
    let counts = &done["counts"];
    assert!(counts["offloaded_bytes"].as_u64() >= Some(8 * M), "{done}");
    assert_eq!(counts["offloaded_bytes"], counts["command_bytes"], "{done}");
    assert_eq!((&counts["moved_bytes"], &counts["written_bytes"]), (&json!(0), &json!(0)));
    let bytes = fs::read(&to).unwrap();
    assert!(bytes[M as usize..][..data.len()] == data[..], "other bytes");
    assert!(bytes[..M as usize].iter().all(|byte| *byte == 7), "written before");
    assert!(bytes[9 << 20..].iter().all(|byte| *byte == 7), "written behind");
}
