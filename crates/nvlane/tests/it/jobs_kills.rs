//! Jobs whose daemon is killed at any moment, or whose target is, or both.
//!
//! `NVLANE_COPY_KILLS` is how often the daemon is killed, and how often targets and hosts are; 5 and 3 times when it is
//! not set.

use crate::copy::{file, pattern};
use crate::daemon::{Daemon, eventually, free_address, nvlane, wait_for_lock};
use crate::jobs::{job, part_of, start, unthrottle, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

const M: u64 = 1 << 20;

/// Bytes as [`pattern`] has them, of which every third MiB reads as zeroes.
fn holey(bytes: usize, seed: u64) -> Vec<u8> {
    let mut data = pattern(bytes, seed);
    data.chunks_mut(M as usize).skip(2).step_by(3).for_each(|part| part.fill(0));
    data
}

/// A file in `dir` that does not store the MiB of `data` that are zeroes, and its path.
fn sparse(dir: &Path, name: &str, data: &[u8]) -> String {
    let path = dir.join(name);
    let file = fs::File::create(&path).unwrap();
    file.set_len(data.len() as u64).unwrap();
    for (at, part) in data.chunks(M as usize).enumerate() {
        if part.iter().any(|byte| *byte != 0) {
            file.write_all_at(part, at as u64 * M).unwrap();
        }
    }
    path.to_str().unwrap().to_owned()
}

/// Waits until some of the jobs is at work, and more than `first` bytes of it are durable: a kill now has something to
/// lose and something to keep.
fn wait_for_work(daemon: &Daemon, jobs: &[u64], first: u64) {
    eventually("a job at work", || is_at_work(&told(daemon, jobs), first));
}

fn told(daemon: &Daemon, jobs: &[u64]) -> Vec<Value> {
    jobs.iter().map(|id| job(daemon, *id)).collect()
}

fn is_at_work(told: &[Value], first: u64) -> bool {
    told.iter().any(|job| {
        let bytes = |field: &str| job["counts"][field].as_u64().unwrap();
        first < bytes("durable_bytes") && bytes("durable_bytes") < bytes("total_bytes")
    })
}

/// What a job reads: parts of two files, one of which is served.
struct Sources {
    /// The files' names and bytes.
    files: [(&'static str, Vec<u8>); 2],
    /// File, first byte, and length if that is said.
    parts: Vec<(usize, u64, Option<u64>)>,
}

impl Sources {
    /// All of the first file, or two or three parts of both; without every third MiB if it `is_sparse`.
    fn new(dir: &Path, round: u64, is_sparse: bool) -> Sources {
        let bytes = if is_sparse { holey } else { pattern };
        let files = [("a", bytes(12 << 20, 1)), ("d", bytes(5 << 20, 2))];
        for (name, data) in &files {
            sparse(dir, name, data);
        }
        let parts = match ((round / 4 + round) % 2 == 1, round % 4 < 2) {
            (false, _) => vec![(0, 0, None)],
            (true, true) => vec![(1, M, Some(2 * M - 512)), (0, 4 * M, None)],
            (true, false) => vec![(0, 11 * M, None), (1, 512, None), (0, 0, Some(5 * M))],
        };
        Sources { files, parts }
    }

    fn wanted(&self, dir: &Path) -> Value {
        let volume = |of: usize| match of {
            0 => "served:1".to_owned(),
            of => dir.join(self.files[of].0).display().to_string(),
        };
        let part = |&(of, offset, length): &(usize, u64, Option<u64>)| match length {
            Some(length) => json!({"volume": volume(of), "offset": offset, "length": length}),
            None => json!({"volume": volume(of), "offset": offset}),
        };
        self.parts.iter().map(part).collect()
    }

    /// What each part has.
    fn data(&self) -> Vec<&[u8]> {
        let data = |&(of, offset, length): &(usize, u64, Option<u64>)| {
            let rest = &self.files[of].1[offset as usize..];
            &rest[..length.map_or(rest.len(), |length| length as usize)]
        };
        self.parts.iter().map(data).collect()
    }

    /// A job copies what there was when it was added.
    fn grow(&mut self, dir: &Path) {
        for (name, data) in &mut self.files {
            data.extend_from_slice(&pattern(M as usize, 9));
            sparse(dir, name, data);
        }
    }

    fn check(&self, dir: &Path) {
        for (name, data) in &self.files {
            assert!(fs::read(dir.join(name)).unwrap() == *data, "{name}: a source has changed");
        }
    }
}

/// Killed at different moments: jobs, of one source or several, end with the sources' bytes, nothing beside them nor a
/// source is changed, and none is ever told to be done before it is.
#[test]
fn a_kill_at_any_moment_loses_nothing() {
    let rounds = std::env::var("NVLANE_COPY_KILLS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(5);
    let dir = tempfile::tempdir().unwrap();
    let (mut met, mut met_beyond) = (0, 0);
    for round in 0..rounds {
        let is_sparse = round % 3 == 1;
        let mut sources = Sources::new(dir.path(), round, is_sparse);
        let data = sources.data().concat();
        // There is a part to go on in that is not the first.
        let beyond = match sources.data()[..] {
            [first, _, ..] => first.len() as u64,
            _ => 0,
        };
        let before = pattern(16 << 20, 1000 + round);
        let b = file(dir.path(), "b", &before);
        let c = file(dir.path(), "c", &before);
        let daemon = start(dir.path());
        // One to a volume that is served, one to two targets, one of which is not.
        let add = |targets: Value| {
            // Twelve seconds, or ten, of which it can be met at work after the first two.
            let options = json!({"throttle": "1M", "request_bytes": 262_144, "verify": is_sparse});
            let wanted = json!({
                "sources": sources.wanted(dir.path()), "targets": targets, "options": options,
            });
            daemon.call("job_add", wanted)["id"].as_u64().unwrap()
        };
        let at = [0, M, 512, 4 * M][round as usize % 4];
        let to = |volume: &str| json!({"volume": volume, "offset": at});
        let jobs = match round % 2 {
            0 => vec![add(json!([to("served:2")])), add(json!([to(&c)]))],
            _ => vec![add(json!([to("served:2"), to(&c)]))],
        };
        // Every second time of each kind there is something to go on from; otherwise it is left to chance.
        match (round / 2 + round) % 2 == 0 {
            true => wait_for_work(&daemon, &jobs, beyond),
            false => std::thread::sleep(Duration::from_millis(50 + round * 1237 % 2600)),
        }
        let told = told(&daemon, &jobs);
        daemon.kill();
        met += u64::from(is_at_work(&told, 0));
        met_beyond += u64::from(beyond > 0 && is_at_work(&told, beyond));
        for told in &told {
            let durable = told["counts"]["durable_bytes"].as_u64().unwrap() as usize;
            let bytes = fs::read(&b).unwrap();
            let copied = &bytes[at as usize..][..durable];
            assert!(told["targets"][0]["volume"] != "served:2" || copied == &data[..durable]);
        }
        if beyond > 0 {
            sources.grow(dir.path());
        }
        let daemon = start(dir.path());
        for (id, told) in jobs.iter().zip(&told) {
            let now = job(&daemon, *id);
            let bytes = |job: &Value| job["counts"]["durable_bytes"].as_u64().unwrap();
            assert!(bytes(&now) >= bytes(told), "round {round}: {told} became {now}");
            unthrottle(&daemon, *id);
        }
        for id in &jobs {
            let done = wait_for(&daemon, *id, "done");
            assert_eq!(done["counts"]["durable_bytes"], done["counts"]["total_bytes"], "{done}");
            let compared = done["counts"]["verified_bytes"].as_u64();
            assert!(!is_sparse || compared > Some(0), "{done}");
        }
        let mut wanted = before;
        wanted[at as usize..][..data.len()].copy_from_slice(&data);
        for name in [&b, &c] {
            assert!(fs::read(name).unwrap() == wanted, "round {round}, {name}: other bytes");
            let stored = fs::metadata(name).unwrap().blocks() * 512;
            assert!(!is_sparse || stored < 14 * M, "round {round}, {name}: {stored} bytes");
        }
        sources.check(dir.path());
        daemon.call("job_clear", json!({}));
        let (status, log) = daemon.stop("TERM");
        assert!(status.success(), "{log}");
    }
    assert!(met >= (rounds / 4).max(1), "{met} kills met a job at work, of {rounds}");
    let least = (rounds / 8).max(u64::from(rounds > 3));
    assert!(met_beyond >= least, "{met_beyond} kills met one in a later part, of {rounds}");
}

/// Targets are killed, and the daemons that are their hosts, and both: jobs up to a target and within one end with the
/// source's bytes, and nothing beside them is changed. What a host had in flight when it was killed must not
/// arrive after what it sends when it is back: other bytes that are written after the jobs' end stay.
#[test]
fn kills_of_targets_and_of_hosts_lose_nothing() {
    let rounds = std::env::var("NVLANE_COPY_KILLS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(3);
    let (dir, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let within = pattern(12 << 20, 2);
    file(dir.path(), "b", &vec![0; 1 << 20]);
    let nqn = "nqn.2026-11.com.example:far";
    let mut met = 0;
    for round in 0..rounds {
        // One in three, of all kinds.
        let is_sparse = (round / 3 + round) % 3 == 1;
        let up = if is_sparse { holey(12 << 20, 1) } else { pattern(12 << 20, 1) };
        sparse(dir.path(), "a", &up);
        let before = pattern(16 << 20, 3000 + round);
        let files = [("1", &before), ("2", &within), ("3", &before)];
        let files = files.map(|(name, bytes)| file(there.path(), name, bytes));
        // The target's own copies are slow there, so that a kill of their host meets some.
        let slow = format!("delay:20ms({})", files[2]);
        let serve = |listen: &str| {
            let args = [&files[0], &files[1], &slow, "--nqn", nqn, "--listen", listen];
            Daemon::start(there.path(), &args)
        };
        let listen = free_address();
        let mut target = serve(&listen);
        let mut host = start(dir.path());
        let at = [0, M, 512, 4 * M][round as usize % 4];
        let remote = |nsid: u32| format!("tcp://{listen}/{nqn}?ns={nsid}&reconnect_delay=100ms");
        let add = |source: &str, to: String| {
            let options = json!({"throttle": "1M", "request_bytes": 262_144, "verify": is_sparse});
            let targets = json!([{"volume": to, "offset": at}]);
            let wanted =
                json!({"sources": part_of(source), "targets": targets, "options": options});
            host.call("job_add", wanted)["id"].as_u64().unwrap()
        };
        let jobs = [add("served:1", remote(1)), add(&remote(2), remote(3))];
        match (round / 3 + round % 3) % 2 == 0 {
            true => wait_for_work(&host, &jobs, 0),
            false => std::thread::sleep(Duration::from_millis(50 + round * 1237 % 2300)),
        }
        met += u64::from(is_at_work(&told(&host, &jobs), 0));
        if round % 3 != 1 {
            target.kill();
            files.iter().for_each(|file| wait_for_lock(Path::new(file)));
            target = serve(&listen);
        }
        if round % 3 != 0 {
            host.kill();
            ["a", "b"].iter().for_each(|file| wait_for_lock(&dir.path().join(file)));
            host = start(dir.path());
        }
        for id in jobs {
            unthrottle(&host, id);
        }
        for id in jobs {
            wait_for(&host, id, "done");
        }
        let check = |name: &str, data: &[u8]| {
            let mut wanted = before.clone();
            wanted[at as usize..][..data.len()].copy_from_slice(data);
            assert!(fs::read(name).unwrap() == wanted, "round {round}, {name}: other bytes");
        };
        check(&files[0], &up);
        check(&files[2], &within);
        let late = pattern(12 << 20, 5000 + round);
        let input = file(there.path(), "late", &late);
        for nsid in [1, 3] {
            let offset = at.to_string();
            let args = ["write", &remote(nsid), "--offset", &offset, "--input", &input];
            let output = nvlane().args(args).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        host.call("job_clear", json!({}));
        // The target ends when everything that it was given has.
        for daemon in [host, target] {
            let (status, log) = daemon.stop("TERM");
            assert!(status.success(), "{log}");
        }
        check(&files[0], &late);
        check(&files[2], &late);
        assert!(fs::read(&files[1]).unwrap() == within, "round {round}: the source has changed");
    }
    assert!(met >= (rounds / 4).max(1), "{met} kills met a job at work, of {rounds}");
}
