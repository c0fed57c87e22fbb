//! Copies that the daemon does by itself: what can be said to them, and that they survive it.

use crate::copy::{file, pattern};
use crate::daemon::{Daemon, PATIENCE, ask, eventually, free_address, nvlane, wait_for_lock};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NQN: &str = "nqn.2026-11.com.example:a";
const M: u64 = 1 << 20;

pub fn start(dir: &Path) -> Daemon {
    let config = dir.join("nvlane.toml");
    if !config.exists() {
        let text = format!(
            "listeners = [\"127.0.0.1:0\"]\n[[subsystems]]\nnqn = \"{NQN}\"\n\
             [[subsystems.namespaces]]\nvolume = \"{0}/a\"\n[[subsystems.namespaces]]\nvolume = \"{0}/b\"\n",
            dir.display()
        );
        fs::write(&config, text).unwrap();
    }
    Daemon::start(dir, &["--config", config.to_str().unwrap()])
}

/// Where the jobs of a daemon on `dir` are kept, which has had one.
pub fn records_of(dir: &Path) -> PathBuf {
    let mut entries = fs::read_dir(dir.join("data")).unwrap().map(|it| it.unwrap().path());
    entries.find(|path| path.extension().is_some_and(|it| it == "jobs")).unwrap()
}

/// The record of one of them, of whose daemon is gone.
pub fn record_of(dir: &Path, id: u64) -> Value {
    serde_json::from_slice(&fs::read(records_of(dir).join(format!("{id}.json"))).unwrap()).unwrap()
}

pub fn job(daemon: &Daemon, id: u64) -> Value {
    let jobs = daemon.call("job_list", json!({}));
    let found = jobs.as_array().unwrap().iter().find(|job| job["id"] == id);
    found.unwrap_or_else(|| panic!("no job {id}: {jobs}")).clone()
}

pub fn wait_for(daemon: &Daemon, id: u64, state: &str) -> Value {
    let since = Instant::now();
    loop {
        let job = job(daemon, id);
        let now = job["state"].as_str().unwrap();
        if now == state {
            return job;
        }
        assert!(now != "failed" && since.elapsed() < PATIENCE, "not {state} in time: {job}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Has a job go as fast as it can, unless it has ended.
pub fn unthrottle(daemon: &Daemon, id: u64) {
    let wanted = json!({"id": id, "throttle": "none"});
    let answer = ask(&daemon.socket, "job_throttle", wanted).unwrap();
    let refusal = answer["error"]["message"].as_str();
    assert!(refusal.is_none_or(|why| why.contains("has ended")), "{answer}");
}

pub fn nvlane_jobs(daemon: &Daemon, args: &[&str]) -> (bool, String) {
    let socket = daemon.socket.to_str().unwrap();
    let output = nvlane().arg("jobs").args(args).args(["--socket", socket]).output().unwrap();
    let said = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn a_job_is_listed_paused_throttled_resumed_and_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let data = pattern(16 << 20, 1);
    let (a, b) = (file(dir.path(), "a", &data), file(dir.path(), "b", &vec![0; 16 << 20]));
    let c = file(dir.path(), "c", &vec![0; 16 << 20]);
    let daemon = start(dir.path());
    let socket = daemon.socket.to_str().unwrap();
    // Files that are served, by their names; and one that is not.
    let add = |args: &[&str]| -> u64 {
        let args = [&["copy"], args, &["--detach", "--socket", socket, "-o", "json"]].concat();
        let output = nvlane().args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let job: Value = serde_json::from_slice(&output.stdout).unwrap();
        job["id"].as_u64().unwrap()
    };
    let one = add(&[&a, &b, "--throttle", "256K", "--verify"]);
    // It is to be there still when all has been done with the first one.
    let two = add(&["served:1@+8M", &c, "--throttle", "256K"]);
    assert_eq!((one, two), (1, 2));
    eventually("progress", || job(&daemon, 1)["counts"]["done_bytes"].as_u64() > Some(0));
    assert_eq!(daemon.refuse("volume_remove", json!({"nsid": 2})), -32002, "in use");
    let (_, text) = nvlane_jobs(&daemon, &[]);
    assert!(text.lines().count() == 4 && text.contains("copying"), "{text}");

    daemon.call("job_pause", json!({"id": 1}));
    let paused = wait_for(&daemon, 1, "paused");
    let bytes = paused["counts"]["durable_bytes"].as_u64().unwrap();
    assert!(bytes > 0 && bytes < 16 * M, "{paused}");
    assert!(fs::read(&b).unwrap()[..bytes as usize] == data[..bytes as usize], "other bytes");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(job(&daemon, 1)["counts"]["done_bytes"], paused["counts"]["done_bytes"]);
    let (ok, said) = nvlane_jobs(&daemon, &["wait", "1"]);
    assert!(!ok && said.contains("paused"), "{said}");

    let (ok, text) = nvlane_jobs(&daemon, &["throttle", "1", "none"]);
    assert!(ok && text.contains("throttle  none"), "{text}");
    daemon.call("job_resume", json!({"id": 1}));
    let (ok, text) = nvlane_jobs(&daemon, &["wait", "1"]);
    assert!(ok && text.contains("16 MiB of 16 MiB (100 %)") && text.contains("compared"), "{text}");
    assert!(fs::read(&b).unwrap() == data, "other bytes");

    let (ok, _) = nvlane_jobs(&daemon, &["cancel", "2"]);
    assert!(ok);
    wait_for(&daemon, 2, "cancelled");
    let (ok, said) = nvlane_jobs(&daemon, &["resume", "2"]);
    assert!(!ok && said.contains("ended for good"), "{said}");
    assert_eq!(daemon.refuse("job_pause", json!({"id": 9})), -32001);
    assert_eq!(daemon.refuse("job_cancel", json!({"id": 1})), -32002);
    daemon.call("job_clear", json!({}));
    assert_eq!(daemon.call("job_list", json!({})), json!([]));
    let (_, text) = nvlane_jobs(&daemon, &["list"]);
    assert_eq!(text, "there are no jobs\n");
    // Numbers are not given twice while the daemon runs, and the volume is free again.
    assert_eq!(add(&["served:1@+1M", "served:2"]), 3);
    wait_for(&daemon, 3, "done");
    daemon.call("volume_remove", json!({"nsid": 2}));
}

/// A daemon with job 1 at work: 16 MiB in pieces of 64 KiB, one after another, each of which takes `time` to write.
fn slow_job(time: &str) -> (TempDir, Daemon) {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), "a", &pattern(16 << 20, 1));
    file(dir.path(), "b", &vec![0; 1 << 20]);
    let slow = format!("delay:write={time}({})", file(dir.path(), "c", &vec![0; 16 << 20]));
    let daemon = start(dir.path());
    let wanted = json!({
        "sources": [{"volume": "served:1"}],
        "targets": [{"volume": slow}],
        "options": {"requests": 1, "request_bytes": 65536},
    });
    daemon.call("job_add", wanted);
    eventually("work", || sent_bytes(&daemon) > Some(0));
    (dir, daemon)
}

fn sent_bytes(daemon: &Daemon) -> Option<u64> {
    job(daemon, 1)["counts"]["command_bytes"].as_u64()
}

/// While what is in flight still ends, and after.
#[test]
fn a_job_that_is_cancelled_stays_so() {
    // It would take minutes, and ends a second after it was told to; what is told after that is the same.
    let (_dir, daemon) = slow_job("1s");
    daemon.call("job_cancel", json!({"id": 1}));
    assert_eq!(daemon.refuse("job_pause", json!({"id": 1})), -32002);
    assert_ne!(job(&daemon, 1)["state"], "pausing");
    // Once more is no mistake.
    daemon.call("job_cancel", json!({"id": 1}));
    wait_for(&daemon, 1, "cancelled");
    assert_eq!(daemon.refuse("job_pause", json!({"id": 1})), -32002);
    assert_eq!(daemon.refuse("job_resume", json!({"id": 1})), -32002);
}

#[test]
fn a_job_that_cannot_be_saved_as_paused_or_cancelled_goes_on() {
    // As long as the first piece is on its way the job saves nothing itself.
    let (dir, daemon) = slow_job("8s");
    let mut entries = fs::read_dir(dir.path().join("data")).unwrap().map(|it| it.unwrap().path());
    let records = entries.find(|path| path.extension().is_some_and(|it| it == "jobs")).unwrap();
    let away = dir.path().join("away");
    fs::rename(&records, &away).unwrap();
    fs::write(&records, "no directory").unwrap();
    assert_eq!(daemon.refuse("job_pause", json!({"id": 1})), -32004);
    assert_eq!(daemon.refuse("job_cancel", json!({"id": 1})), -32004);
    fs::remove_file(&records).unwrap();
    fs::rename(&away, &records).unwrap();
    eventually("more work", || sent_bytes(&daemon) > Some(65536));
    assert_eq!(job(&daemon, 1)["state"], "running");
    daemon.call("job_cancel", json!({"id": 1}));
    wait_for(&daemon, 1, "cancelled");
}

#[test]
fn jobs_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let a = file(dir.path(), "a", &pattern(2 << 20, 1));
    file(dir.path(), "b", &vec![0; 1 << 20]);
    let daemon = start(dir.path());
    let part = |volume: &str| json!([{"volume": volume}]);
    for (sources, targets, code) in [
        (part(&a), part("served:2"), -32003),
        (part("served:3"), part("served:2"), -32003),
        (part("served:x"), part("served:2"), -32003),
        (part("mem:1M"), part("served:2"), -32003),
        (part("/not/there"), part("served:2"), -32003),
        (json!([]), part("served:2"), -32602),
        (json!([{"volume": a, "length": 1048576}]), json!([{"volume": a, "offset": 512}]), -32003),
    ] {
        let wanted = json!({"sources": sources, "targets": targets});
        assert_eq!(daemon.refuse("job_add", wanted.clone()), code, "{wanted}");
    }
    assert_eq!(daemon.call("job_list", json!({})), json!([]));
}

/// A target that accepts and says nothing keeps nobody else waiting.
#[test]
fn volumes_of_a_new_job_are_opened_beside_everything_else() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), "a", &vec![1; 1 << 20]);
    file(dir.path(), "b", &vec![0; 1 << 20]);
    let daemon = start(dir.path());
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let far = format!("tcp://{address}/nqn.2026-11.com.example:far?ns=1&connect_timeout=20s");
    let wanted = json!({"sources": part_of("served:1"), "targets": part_of(&far)});
    let socket = daemon.socket.clone();
    let asking = std::thread::spawn(move || ask(&socket, "job_add", wanted));
    // It is being opened once the target has been called.
    let call = silent.accept().unwrap();
    assert_eq!(daemon.call("job_list", json!({})), json!([]));
    let other = json!({"sources": part_of("served:1"), "targets": part_of("served:2")});
    assert_eq!(daemon.call("job_add", other)["id"], 1);
    wait_for(&daemon, 1, "done");
    // What the job that is beginning is to use stays; what it does not can go.
    assert_eq!(daemon.refuse("volume_remove", json!({"nsid": 1})), -32002, "in use");
    daemon.call("volume_remove", json!({"nsid": 2}));
    assert!(!asking.is_finished(), "what was asked first has waited for its target");
    drop((call, silent));
    let answer = asking.join().unwrap().unwrap();
    assert_eq!(answer["error"]["code"], -32003, "{answer}");
    daemon.call("volume_remove", json!({"nsid": 1}));
}

/// What fails can be resumed, and goes on where it was.
#[test]
fn a_job_that_failed_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let data = pattern(4 << 20, 1);
    file(dir.path(), "a", &data);
    file(dir.path(), "b", &vec![0; 4 << 20]);
    let daemon = start(dir.path());
    let c = file(dir.path(), "c", &vec![0; 4 << 20]);
    // Served, so that it is the same volume that has failed once.
    let fault = format!("fault:lba=4096,count=1,op=copy({c})");
    let nsid = daemon.call("volume_add", json!({"volume": fault}))["nsid"].as_u64().unwrap();
    let wanted = json!({
        "sources": part_of("served:1"),
        "targets": part_of(&format!("served:{NQN}/{nsid}")),
        "options": {"request_bytes": 262_144, "requests": 1},
    });
    let id = daemon.call("job_add", wanted)["id"].as_u64().unwrap();
    eventually("an end", || job(&daemon, id)["state"] != "running");
    let failed = job(&daemon, id);
    let error = failed["error"].as_str().unwrap_or_default();
    assert!(error.contains("copying") && error.contains("Write Fault"), "{failed}");
    assert_eq!(failed["counts"]["durable_bytes"], 2 * M, "what came before is flushed");
    let (ok, said) = nvlane_jobs(&daemon, &["wait", &id.to_string()]);
    assert!(!ok && said.contains("Write Fault"), "{said}");
    // There is nothing to pause, and why it failed stays known.
    let (ok, said) = nvlane_jobs(&daemon, &["pause", &id.to_string()]);
    assert!(!ok && said.contains("resume or cancel"), "{said}");
    assert_eq!(job(&daemon, id)["error"], failed["error"]);
    let (ok, said) = nvlane_jobs(&daemon, &["retry", &id.to_string()]);
    assert!(ok, "{said}");
    let done = wait_for(&daemon, id, "done");
    assert_eq!(done["error"], Value::Null);
    assert!(done["counts"]["command_bytes"].as_u64() <= Some(4 * M + 262_144), "{done}");
    assert!(fs::read(&c).unwrap() == data, "other bytes");
}

pub fn part_of(volume: &str) -> Value {
    json!([{"volume": volume}])
}

/// An end in order loses nothing either.
#[test]
fn jobs_go_on_when_the_daemon_starts_again() {
    let dir = tempfile::tempdir().unwrap();
    let data = pattern(16 << 20, 1);
    file(dir.path(), "a", &data);
    let b = file(dir.path(), "b", &vec![0; 16 << 20]);
    let daemon = start(dir.path());
    let options = json!({"throttle": "512K"});
    let wanted = json!({
        "sources": part_of("served:1"), "targets": part_of("served:2"), "options": options,
    });
    daemon.call("job_add", wanted.clone());
    eventually("progress", || job(&daemon, 1)["counts"]["done_bytes"].as_u64() > Some(M));
    let (status, log) = daemon.stop("TERM");
    assert!(status.success(), "{log}");
    let daemon = start(dir.path());
    let going_on = job(&daemon, 1);
    assert_eq!(going_on["state"], "running");
    assert!(going_on["counts"]["done_bytes"].as_u64() >= Some(M), "it began anew: {going_on}");
    let (status, log) = daemon.stop("TERM");
    assert!(status.success(), "{log}");
    // A start that is to begin anew overwrites nobody's volume by itself.
    let config = dir.path().join("nvlane.toml");
    let daemon = Daemon::start(dir.path(), &["--config", config.to_str().unwrap(), "--fresh"]);
    assert_eq!(job(&daemon, 1)["state"], "paused");
    daemon.kill();
    let daemon = start(dir.path());
    assert_eq!(job(&daemon, 1)["state"], "paused", "for good");
    daemon.call("job_throttle", json!({"id": 1, "throttle": "none"}));
    daemon.call("job_resume", json!({"id": 1}));
    wait_for(&daemon, 1, "done");
    assert!(fs::read(&b).unwrap() == data, "other bytes");
}

/// What a killed daemon wrote after its last flush counts for nothing, but is there.
#[test]
fn a_job_that_goes_on_does_not_take_its_target_for_zero() {
    let dir = tempfile::tempdir().unwrap();
    let a = file(dir.path(), "a", &pattern(8 << 20, 1));
    let b = file(dir.path(), "b", &vec![0; 8 << 20]);
    let daemon = start(dir.path());
    let options =
        json!({"requests": 1, "request_bytes": 65536, "throttle": "256K", "target_is_zero": true});
    let volumes = |name| json!([{"volume": name}]);
    let wanted =
        json!({"sources": volumes("served:1"), "targets": volumes("served:2"), "options": options});
    daemon.call("job_add", wanted);
    eventually("work", || fs::read(&b).unwrap()[..65536].iter().any(|byte| *byte != 0));
    daemon.kill();
    // What was flushed on a slow machine stays. A daemon that has started may have done all of it before it is asked.
    let record = record_of(dir.path(), 1);
    let durable = record["durable"].as_u64().unwrap() as usize;
    assert!(durable < 8 << 20, "nothing is left to do: {record}");
    // The source is empty by now.
    let source = fs::File::options().write(true).open(&a).unwrap();
    source.set_len(0).and_then(|()| source.set_len(8 << 20)).unwrap();
    ["a", "b"].iter().for_each(|name| wait_for_lock(&dir.path().join(name)));
    let daemon = start(dir.path());
    unthrottle(&daemon, 1);
    let done = wait_for(&daemon, 1, "done");
    assert!(fs::read(&b).unwrap()[durable..].iter().all(|byte| *byte == 0), "{done}");
}

/// The target's machine dies in the middle: the job waits for it, and ends with the same bytes.
#[test]
fn a_job_outlives_the_targets_that_it_copies_to() {
    let (dir, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let data = pattern(12 << 20, 1);
    file(dir.path(), "a", &data);
    file(dir.path(), "b", &vec![0; 1 << 20]);
    let far = file(there.path(), "far", &vec![1; 16 << 20]);
    let nqn = "nqn.2026-11.com.example:far";
    let listen = free_address();
    let args = [&far, &far_copy(&there), "--nqn", nqn, "--listen", &listen];
    let mut target = Daemon::start(there.path(), &args);
    let daemon = start(dir.path());
    let remote = |nsid: u32| format!("tcp://{listen}/{nqn}?ns={nsid}&reconnect_delay=100ms");
    let options = json!({"throttle": "512K", "request_bytes": 262_144});
    // Up to the target, and by the target from one of its namespaces to the other.
    for (source, to) in
        [("served:1".to_owned(), remote(1)), (remote(1) + "&queue_size=64", remote(2))]
    {
        let wanted = json!({
            "sources": [{"volume": source, "length": 12 * M}],
            "targets": [{"volume": to, "offset": 4 * M}],
            "options": options,
        });
        let id = daemon.call("job_add", wanted)["id"].as_u64().unwrap();
        eventually("progress", || job(&daemon, id)["counts"]["done_bytes"].as_u64() > Some(M));
        let met = job(&daemon, id);
        assert!(met["counts"]["done_bytes"].as_u64() < Some(12 * M), "nothing to outlive: {met}");
        target.kill();
        std::thread::sleep(Duration::from_millis(300));
        target = Daemon::start(there.path(), &args);
        unthrottle(&daemon, id);
        wait_for(&daemon, id, "done");
    }
    let bytes = fs::read(&far).unwrap();
    assert!(bytes[4 << 20..] == data[..], "other bytes");
    assert!(bytes[..4 << 20].iter().all(|byte| *byte == 1), "written beside");
    let copied = fs::read(far_copy(&there)).unwrap();
    assert!(copied[4 << 20..] == bytes[..12 << 20], "other bytes");
}

/// A target acknowledges, loses power and is there again: a flush that comes then makes nothing durable of that.
#[test]
fn a_flush_after_a_loss_of_power_is_not_believed() {
    let (dir, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (up, within) = (pattern(12 << 20, 1), pattern(12 << 20, 2));
    file(dir.path(), "a", &up);
    file(dir.path(), "b", &vec![0; 1 << 20]);
    let from = file(there.path(), "from", &within);
    let to = ["1", "2"].map(|name| file(there.path(), name, &vec![3; 12 << 20]));
    let nqn = "nqn.2026-11.com.example:far";
    let serve = |listen: &str| {
        let cached = to.clone().map(|path| format!("volatile:({path})"));
        let args = [&cached[0], &cached[1], &from, "--nqn", nqn, "--listen", listen];
        Daemon::start(there.path(), &args)
    };
    let listen = free_address();
    let target = serve(&listen);
    let daemon = start(dir.path());
    let remote = |nsid: u32| format!("tcp://{listen}/{nqn}?ns={nsid}&reconnect_delay=100ms");
    let options = json!({"throttle": "1M", "request_bytes": 131_072});
    let jobs = [("served:1".to_owned(), remote(1)), (remote(3), remote(2))].map(|(from, to)| {
        let wanted =
            json!({"sources": part_of(&from), "targets": part_of(&to), "options": options});
        daemon.call("job_add", wanted)["id"].as_u64().unwrap()
    });
    // Each has something to lose, and something to keep.
    eventually("work that is not flushed", || {
        jobs.iter().all(|id| {
            let counts = &job(&daemon, *id)["counts"];
            let bytes = |field: &str| counts[field].as_u64().unwrap();
            let (done, durable) = (bytes("done_bytes"), bytes("durable_bytes"));
            durable > 0 && done - durable > M / 2
        })
    });
    target.kill();
    to.iter().for_each(|file| wait_for_lock(Path::new(file)));
    let target = serve(&listen);
    for id in jobs {
        unthrottle(&daemon, id);
    }
    let done = jobs.map(|id| wait_for(&daemon, id, "done"));
    // Killed once more: what is done is durable.
    target.kill();
    for (path, data) in [(&to[0], &up), (&to[1], &within)] {
        assert!(fs::read(path).unwrap() == *data, "{path}: other bytes");
    }
    for (id, done) in jobs.iter().zip(&done) {
        assert_eq!(done["counts"]["setbacks"], 1, "{done}");
        let (_, text) = nvlane_jobs(&daemon, &["show", &id.to_string()]);
        assert!(text.contains("setbacks  1"), "{text}");
    }
}

/// A second file of the target's.
fn far_copy(there: &tempfile::TempDir) -> String {
    let path = there.path().join("far2");
    if !path.exists() {
        fs::write(&path, vec![2; 16 << 20]).unwrap();
    }
    path.to_str().unwrap().to_owned()
}

/// What was memory is empty after a crash: a job is not to go on with that, nor with another volume of that name.
#[test]
fn a_job_does_not_go_on_with_other_volumes() {
    let dir = tempfile::tempdir().unwrap();
    file(dir.path(), "a", &pattern(8 << 20, 1));
    file(dir.path(), "b", &vec![0; 8 << 20]);
    let daemon = start(dir.path());
    daemon.call("volume_add", json!({"volume": "mem:8M", "nsid": 3}));
    let c = file(dir.path(), "c", &vec![7; 8 << 20]);
    daemon.call("volume_add", json!({"volume": c, "nsid": 4}));
    let options = json!({"throttle": "64K"});
    for (source, target) in [("served:3", "served:2"), ("served:1", "served:4")] {
        daemon.call(
            "job_add",
            json!({"sources": part_of(source), "targets": part_of(target), "options": options}),
        );
    }
    daemon.call("job_pause", json!({"id": 2}));
    wait_for(&daemon, 2, "paused");
    let durable = job(&daemon, 2)["counts"]["durable_bytes"].as_u64().unwrap() as usize;
    daemon.call("volume_remove", json!({"nsid": 4}));
    let d = file(dir.path(), "d", &vec![7; 8 << 20]);
    daemon.call("volume_add", json!({"volume": d, "nsid": 4}));
    daemon.kill();

    let daemon = start(dir.path());
    let lost = job(&daemon, 1);
    assert_eq!(lost["state"], "cancelled");
    assert!(lost["error"].as_str().unwrap().contains("memory"), "{lost}");
    daemon.call("job_resume", json!({"id": 2}));
    // It waits for its volume for a while, and does not take another one for it.
    std::thread::sleep(Duration::from_millis(600));
    let waiting = job(&daemon, 2);
    assert_eq!(
        (&waiting["state"], &waiting["counts"]["done_bytes"]),
        (&json!("running"), &json!(durable))
    );
    assert!(fs::read(&d).unwrap().iter().all(|byte| *byte == 7), "written to another volume");
    let bytes = fs::read(&c).unwrap();
    assert!(bytes[durable.max(1 << 20)..].iter().all(|byte| *byte == 7), "it went on");
    // Once that is served again it goes on.
    daemon.call("volume_remove", json!({"nsid": 4}));
    daemon.call("volume_add", json!({"volume": c, "nsid": 4}));
    daemon.call("job_throttle", json!({"id": 2, "throttle": "none"}));
    wait_for(&daemon, 2, "done");
    assert!(fs::read(&c).unwrap() == pattern(8 << 20, 1), "other bytes");
    assert!(fs::read(&d).unwrap().iter().all(|byte| *byte == 7), "written to another volume");
}
