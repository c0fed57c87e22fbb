//! Jobs to one volume that lies behind two targets, each of which has a cache of its own: what one of them loses with
//! its power is copied again, though the other was flushed and though the lost one is there again and says that
//! its Flush has succeeded.
//!
//! Power is cut by kill -9: `volatile:` forgets then what was not flushed. `NVLANE_COPY_KILLS` is how often that is
//! done at any moment; 4 times when it is not set.

use crate::copy::{file, pattern};
use crate::daemon::{Address, Daemon, eventually, free_address, wait_for_lock};
use crate::jobs::{job, part_of, start, unthrottle, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const M: u64 = 1 << 20;
/// Bytes that a job copies.
const BYTES: u64 = 12 * M;
/// Parts of the linear volume, in turn at the one target and the other.
const PARTS: usize = 12;

/// How the targets' volumes are one.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Parts of it are at the one and at the other.
    Linear,
    /// Both lead to the same blocks, which are at a third one, each through its own cache.
    Multipath,
}

/// Two targets with caches, and what is behind them.
struct Pair {
    shape: Shape,
    directory: TempDir,
    /// Of what is stored without a cache.
    files: Vec<String>,
    /// Serves the file that both targets lead to.
    storage: Option<Daemon>,
    /// None while it has no power.
    targets: [Option<Daemon>; 2],
    listeners: [Address; 2],
}

impl Pair {
    /// Starts both, with bytes there that no job copies.
    fn start(shape: Shape) -> Pair {
        let directory = tempfile::tempdir().unwrap();
        let (count, bytes) = match shape {
            Shape::Linear => (PARTS, BYTES as usize / PARTS),
            Shape::Multipath => (1, BYTES as usize),
        };
        let name = |number: usize| format!("part{number}");
        let files = (0..count).map(|number| file(directory.path(), &name(number), &vec![7; bytes]));
        let files: Vec<String> = files.collect();
        let storage = matches!(shape, Shape::Multipath).then(|| {
            let place = directory.path().join("storage");
            fs::create_dir(&place).unwrap();
            Daemon::start(&place, &[&files[0], "--nqn", &nqn("storage")])
        });
        let listeners = [0, 1].map(|_| free_address());
        let mut pair = Pair { shape, directory, files, storage, targets: [None, None], listeners };
        for number in [0, 1] {
            fs::create_dir(pair.place(number)).unwrap();
            pair.give_power(number);
        }
        pair
    }

    fn place(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("target{number}"))
    }

    /// The files that a target has itself.
    fn files_of(&self, number: usize) -> impl Iterator<Item = &String> {
        let is_own = matches!(self.shape, Shape::Linear);
        self.files.iter().skip(number).step_by(2).filter(move |_| is_own)
    }

    /// Starts a target, where it was before.
    fn give_power(&mut self, number: usize) {
        self.files_of(number).for_each(|file| wait_for_lock(Path::new(file)));
        let mut cached: Vec<String> =
            self.files_of(number).map(|file| format!("volatile:({file})")).collect();
        if let Some(storage) = &self.storage {
            let far = format!("tcp://{}/{}?ns=1", storage.listeners[0], nqn("storage"));
            cached.push(format!("volatile:({far})"));
        }
        let nqn = nqn(&number.to_string());
        let mut args: Vec<&str> = cached.iter().map(String::as_str).collect();
        args.extend(["--nqn", &nqn, "--listen", &self.listeners[number]]);
        self.targets[number] = Some(Daemon::start(&self.place(number), &args));
    }

    fn cut_power(&mut self, number: usize) {
        if let Some(target) = self.targets[number].take() {
            target.kill();
        }
    }

    /// The one volume.
    fn uri(&self) -> String {
        let remote = |number: usize, nsid: usize| {
            let (listener, nqn) = (&self.listeners[number], nqn(&number.to_string()));
            format!("tcp://{listener}/{nqn}?ns={nsid}&reconnect_delay=100ms")
        };
        match self.shape {
            Shape::Linear => {
                let parts = (0..PARTS).map(|part| remote(part % 2, part / 2 + 1));
                format!("linear:({})", parts.collect::<Vec<_>>().join(","))
            }
            Shape::Multipath => {
                format!("multipath:policy=round-robin({},{})", remote(0, 1), remote(1, 1))
            }
        }
    }

    /// How much a target was given to write since it has power.
    fn written(&self, number: usize) -> u64 {
        let stats = self.targets[number].as_ref().unwrap().call("stats", json!({}));
        let each = stats["namespaces"].as_array().unwrap().iter();
        each.map(|it| it["written_bytes"].as_u64().unwrap()).sum()
    }

    /// What is left when nothing has power any more.
    fn stored(mut self) -> Vec<u8> {
        self.cut_power(0);
        self.cut_power(1);
        if let Some(storage) = self.storage.take() {
            storage.kill();
        }
        self.files.iter().flat_map(|file| fs::read(file).unwrap()).collect()
    }
}

fn nqn(name: &str) -> String {
    format!("nqn.2026-11.com.example:{name}")
}

/// A job up to the pair, of eight seconds: it is flushed every two, and has enough to lose in the second half of each.
fn copy_to(pair: &Pair, daemon: &Daemon) -> u64 {
    let wanted = json!({
        "sources": part_of("served:1"),
        "targets": part_of(&pair.uri()),
        "options": {"throttle": "1536K", "request_bytes": 131_072},
    });
    daemon.call("job_add", wanted)["id"].as_u64().unwrap()
}

/// Lets a job go on as fast as it can, and waits for its end.
fn finish(daemon: &Daemon, id: u64) -> Value {
    unthrottle(daemon, id);
    wait_for(daemon, id, "done")
}

/// So much of it is durable, and so much is done.
fn progress(daemon: &Daemon, id: u64) -> (u64, u64) {
    let counts = &job(daemon, id)["counts"];
    let bytes = |field: &str| counts[field].as_u64().unwrap();
    (bytes("durable_bytes"), bytes("done_bytes"))
}

/// A part of it is durable, and of what is not each target has some: it is longer than a part.
fn wait_for_both(daemon: &Daemon, id: u64) {
    eventually("work at both that is not flushed", || {
        let (durable, done) = progress(daemon, id);
        durable > 0 && done - durable > BYTES / PARTS as u64 + M / 2
    });
}

/// A directory with the source, and the daemon that has the jobs.
fn host(data: &[u8]) -> (TempDir, Daemon) {
    let directory = tempfile::tempdir().unwrap();
    file(directory.path(), "a", data);
    file(directory.path(), "b", &vec![0; 1 << 20]);
    let daemon = start(directory.path());
    (directory, daemon)
}

/// Copies, cuts the power of `victims` in the middle, and gives it back at once if they do not `stay` away.
fn loses_power(shape: Shape, victims: &[usize], stay: bool) {
    // A machine that stands still before the cut has flushed what was to be lost.
    let lost = (0..3).any(|_| setbacks_of_a_cut(shape, victims, stay) > 0);
    assert!(lost, "{shape:?}, power of {victims:?} cut: nothing was lost, three times");
}

fn setbacks_of_a_cut(shape: Shape, victims: &[usize], stay: bool) -> u64 {
    let data = pattern(BYTES as usize, 1 + victims.len() as u64);
    let (_directory, daemon) = host(&data);
    let mut pair = Pair::start(shape);
    let id = copy_to(&pair, &daemon);
    wait_for_both(&daemon, id);
    if let Some(number) = [0, 1].into_iter().find(|number| pair.written(*number) <= M) {
        println!("{shape:?}: target {number} has nothing to lose");
        return 0;
    }
    victims.iter().for_each(|number| pair.cut_power(*number));
    if !stay {
        victims.iter().for_each(|number| pair.give_power(*number));
    }
    let done = finish(&daemon, id);
    assert!(pair.stored() == data, "{shape:?}, power of {victims:?} cut: other bytes; {done}");
    let setbacks = done["counts"]["setbacks"].as_u64().unwrap();
    assert!(setbacks <= 2, "{shape:?}, power of {victims:?} cut: {done}");
    setbacks
}

#[test]
fn a_job_to_parts_at_two_targets_outlives_the_power_of_either() {
    for victims in [&[0][..], &[1], &[0, 1]] {
        loses_power(Shape::Linear, victims, false);
    }
}

#[test]
fn a_job_by_two_paths_with_caches_outlives_the_power_of_either() {
    for victims in [&[0][..], &[1], &[0, 1]] {
        loses_power(Shape::Multipath, victims, false);
    }
}

/// The other one goes on alone: its Flush says nothing of what the first had acknowledged.
#[test]
fn a_path_that_stays_away_takes_its_cache_with_it() {
    loses_power(Shape::Multipath, &[0], true);
}

/// Power is cut at any moment, also in a Flush, in the last one, or twice.
#[test]
fn cut_at_any_moment_two_caches_lose_nothing() {
    let rounds = std::env::var("NVLANE_COPY_KILLS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(4);
    let mut met = [0; 2];
    for round in 0..rounds {
        let shape = if round % 2 == 0 { Shape::Linear } else { Shape::Multipath };
        let data = pattern(BYTES as usize, 100 + round);
        let (_directory, daemon) = host(&data);
        let mut pair = Pair::start(shape);
        let id = copy_to(&pair, &daemon);
        for time in 0..1 + round % 3 {
            // The first flush comes after two seconds, the last after eight.
            let moment = if time == 0 { 30 + round * 1237 % 8200 } else { round * 97 % 900 };
            std::thread::sleep(Duration::from_millis(moment));
            let victim = (round / 2 + time) as usize % 2;
            pair.cut_power(victim);
            if round % 5 == 3 {
                std::thread::sleep(Duration::from_millis(400));
            }
            pair.give_power(victim);
        }
        let done = finish(&daemon, id);
        assert!(pair.stored() == data, "round {round}, {shape:?}: other bytes; {done}");
        met[round as usize % 2] += u64::from(done["counts"]["setbacks"] != 0);
    }
    // Nearly all do, of each shape; few rounds may have bad luck.
    let least = if rounds < 20 { 0 } else { rounds / 4 };
    let is_met = |met: &u64| *met >= least;
    assert!(
        met.iter().all(is_met) && (rounds < 4 || met.iter().sum::<u64>() > 0),
        "cuts met something that was not flushed in {met:?} rounds of each shape, of {rounds} of both"
    );
}
