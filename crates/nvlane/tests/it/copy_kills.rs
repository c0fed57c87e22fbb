//! Jobs whose target copies from file to file by `copy_file_range`, as fast as it can, and processes that are killed in the
//! middle of that: the target, the daemon that has the job, or both.
//!
//! `NVLANE_COPY_KILLS` is how often; 3 times when it is not set.

use crate::copy::{file, pattern};
use crate::daemon::{Daemon, PATIENCE, eventually, free_address, nvlane, wait_for_lock};
use crate::jobs::{job, record_of, start, unthrottle, wait_for};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const M: u64 = 1 << 20;
const NQN: &str = "nqn.2026-11.com.example:far";
/// Bytes that a job copies: so many that a kill meets them on their way.
const BYTES: u64 = 192 * M;
/// What the target's volumes have beside that.
const BESIDE: u64 = 8 * M;
/// Of the blocks of so many bytes none is like another.
const BLOCK: usize = 4096;
/// Rounds at most where those that were asked for are fewer, and met too little.
const ROUNDS_MAX: u64 = 10;
/// Bytes written after the end, about the place of the kill.
const LATE: u64 = 16 * M;

/// Bytes of which no block is like another, nor like those of another seed.
fn numbered(bytes: u64, seed: u64) -> Vec<u8> {
    let some = pattern(M as usize, seed);
    let mut data = Vec::with_capacity(bytes as usize);
    (0..bytes / M).for_each(|_| data.extend_from_slice(&some));
    for (number, block) in data.chunks_exact_mut(BLOCK).enumerate() {
        block[..8].copy_from_slice(&(seed << 32 | number as u64).to_le_bytes());
    }
    data
}

/// Whether the block at `at` of a file is what it was `before`.
fn is_as_before(file: &File, before: &[u8], at: u64) -> bool {
    let mut block = [0; 8];
    file.read_exact_at(&mut block, at).unwrap();
    block == before[at as usize..][..8]
}

/// Which MiB of the `BYTES` bytes from `at` on a copy has begun to write.
fn begun(file: &File, before: &[u8], at: u64) -> u64 {
    let places = (0..BYTES / M).map(|number| at + number * M);
    places.filter(|place| !is_as_before(file, before, *place)).count() as u64
}

/// Bytes that calls of the process have written: of copies, `copy_file_range`; what goes by a ring is not counted.
fn written_by_calls(daemon: &Daemon) -> u64 {
    let told = fs::read_to_string(format!("/proc/{}/io", daemon.pid())).unwrap();
    let line = told.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.unwrap().parse().unwrap()
}

/// A target with a source and a destination, and the daemon that has the jobs.
struct World {
    dir: tempfile::TempDir,
    there: tempfile::TempDir,
    from: String,
    to: String,
    listen: crate::daemon::Address,
    target: Option<Daemon>,
    host: Option<Daemon>,
}

impl World {
    fn new(source: &[u8]) -> World {
        let (dir, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in ["a", "b"] {
            file(dir.path(), name, &vec![0; 1 << 20]);
        }
        let (from, to) = (file(there.path(), "from", source), file(there.path(), "to", &[0; 512]));
        let listen = free_address();
        World { dir, there, from, to, listen, target: None, host: None }
    }

    fn serve(&mut self) {
        wait_for_lock(Path::new(&self.from));
        wait_for_lock(Path::new(&self.to));
        let args = [&self.from, &self.to, "--nqn", NQN, "--listen", &self.listen];
        self.target = Some(Daemon::start(self.there.path(), &args));
    }

    fn begin(&mut self) {
        ["a", "b"].iter().for_each(|name| wait_for_lock(&self.dir.path().join(name)));
        self.host = Some(start(self.dir.path()));
    }

    fn target(&self) -> &Daemon {
        self.target.as_ref().unwrap()
    }

    fn host(&self) -> &Daemon {
        self.host.as_ref().unwrap()
    }

    fn remote(&self, nsid: u32) -> String {
        format!("tcp://{}/{NQN}?ns={nsid}&reconnect_delay=100ms", self.listen)
    }

    /// Begins to copy within the target. What is copied has no holes: nobody asks for them.
    fn copy(&self, at: u64, verify: bool, throttle: &str) -> u64 {
        let wanted = json!({
            "sources": [{"volume": self.remote(1), "length": BYTES}],
            "targets": [{"volume": self.remote(2), "offset": at}],
            "options": {"request_bytes": 4 * M, "verify": verify, "extents": false, "throttle": throttle},
        });
        self.host().call("job_add", wanted)["id"].as_u64().unwrap()
    }

    /// Waits for the end of a job. By which means it ends is left open: a target that is just back may be reached by one of
    /// its namespaces before the other, and then some is read and written here.
    fn finish(&self, id: u64) -> Value {
        let done = wait_for(self.host(), id, "done");
        assert_eq!(done["counts"]["durable_bytes"], BYTES, "{done}");
        done
    }

    /// Writes other bytes to the destination, for good.
    fn write(&self, at: u64, bytes: &[u8]) {
        let input = file(self.there.path(), "late", bytes);
        let (offset, remote) = (at.to_string(), self.remote(2));
        let args = ["write", &remote, "--offset", &offset, "--input", &input];
        let output = nvlane().args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Ends both in order: what the target was given has ended then.
    fn stop(&mut self) {
        for daemon in [self.host.take(), self.target.take()].into_iter().flatten() {
            let (status, log) = daemon.stop("TERM");
            assert!(status.success(), "{log}");
        }
    }
}

/// What is killed in a round.
fn victims(round: u64) -> (bool, bool) {
    (round % 3 != 1, !round.is_multiple_of(3))
}

/// A file that nobody has copied to yet, and a job that is on its way to it until a kill at some place. Whether that found
/// the copy in the middle.
fn one_round(world: &mut World, source: &[u8], round: u64) -> bool {
    let before = numbered(BYTES + BESIDE, 3000 + round);
    fs::write(&world.to, &before).unwrap();
    let to = File::open(&world.to).unwrap();
    world.serve();
    world.begin();
    let at = [0, M, 512, 4 * M][round as usize % 4];
    let id = world.copy(at, round % 3 == 2, "none");
    // Blocks of the source begin there.
    let place = M * (3 + round * 1237 % (BYTES / M - 24));
    let since = Instant::now();
    while is_as_before(&to, &before, at + place) {
        assert!(since.elapsed() < PATIENCE, "no progress: {}", job(world.host(), id));
        std::thread::sleep(Duration::from_micros(200));
    }
    let (kills_target, kills_host) = victims(round);
    let (target, host) = (world.target.take().unwrap(), world.host.take().unwrap());
    // In this order, so that the job itself is in the middle as well.
    let (mut target, mut host) = (Some(target), Some(host));
    if kills_host {
        host.take().unwrap().kill();
    }
    if kills_target {
        target.take().unwrap().kill();
    }
    let count = begun(&to, &before, at);
    (world.target, world.host) = (target, host);
    if kills_target {
        world.serve();
    }
    if kills_host {
        world.begin();
    }
    world.finish(id);
    let mut wanted = before;
    wanted[at as usize..][..BYTES as usize].copy_from_slice(source);
    assert!(fs::read(&world.to).unwrap() == wanted, "round {round}: other bytes");
    // What was in flight does not come after what is written now.
    let late = numbered(LATE, 7000 + round);
    world.write(at + place, &late);
    world.host().call("job_clear", json!({}));
    world.stop();
    wanted[(at + place) as usize..][..late.len()].copy_from_slice(&late);
    assert!(fs::read(&world.to).unwrap() == wanted, "round {round}: bytes of before the kill");
    assert!(fs::read(&world.from).unwrap() == source, "round {round}: the source has changed");
    let is_met = 0 < count && count < BYTES / M;
    println!("round {round}: {count} of {} MiB begun when it was killed", BYTES / M);
    is_met
}

#[test]
fn kills_amid_copies_from_file_to_file_lose_nothing() {
    let rounds = std::env::var("NVLANE_COPY_KILLS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = rounds.unwrap_or(3);
    let source = numbered(BYTES, 1);
    let mut world = World::new(&source);
    // Without a kill: it is the kernel that copies.
    fs::write(&world.to, numbered(BYTES + BESIDE, 2)).unwrap();
    world.serve();
    world.begin();
    let before = written_by_calls(world.target());
    let id = world.copy(M, false, "none");
    let done = world.finish(id);
    assert_eq!(done["counts"]["offloaded_bytes"], BYTES, "{done}");
    let written = written_by_calls(world.target()) - before;
    assert!(written >= BYTES, "{written} bytes by copy_file_range");
    world.host().call("job_clear", json!({}));
    world.stop();

    let (wanted, mut met, mut round) = ((rounds / 2).max(1), 0, 0);
    // On a machine that stands still a kill comes after the end: more of them are to make up for those.
    while round < rounds || met < wanted && round < ROUNDS_MAX {
        met += u64::from(one_round(&mut world, &source, round));
        round += 1;
    }
    assert!(met >= wanted, "{met} kills met a copy in the middle, of {round}");
}

/// The file that is copied to is flushed every two seconds: a job that goes on does so from there, not from the beginning.
#[test]
fn a_copy_from_file_to_file_goes_on_from_what_was_durable() {
    let source = numbered(BYTES, 1);
    let mut world = World::new(&source);
    let before = numbered(BYTES + BESIDE, 2);
    fs::write(&world.to, &before).unwrap();
    world.serve();
    world.begin();
    let id = world.copy(0, false, "24M");
    let durable = || job(world.host(), id)["counts"]["durable_bytes"].as_u64().unwrap();
    eventually("something that is durable", || durable() > 0);
    world.target.take().unwrap().kill();
    world.host.take().unwrap().kill();
    let record = record_of(world.dir.path(), id);
    let kept = record["durable"].as_u64().unwrap();
    assert!(0 < kept && kept < BYTES, "nothing is left to be done: {record}");
    world.serve();
    world.begin();
    unthrottle(world.host(), id);
    let done = world.finish(id);
    let given = |of: &Value| of["counts"]["command_bytes"].as_u64().unwrap();
    assert!(given(&done) - given(&record) < BYTES - kept / 2, "all of it again: {done}");
    world.stop();
    let mut wanted = before;
    wanted[..BYTES as usize].copy_from_slice(&source);
    assert!(fs::read(&world.to).unwrap() == wanted, "other bytes");
}
