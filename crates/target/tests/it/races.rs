//! Two cores on the same blocks: no block is ever read torn, and of those who race to change one,
//! one wins.

use crate::host;

use host::rig::{NQN, Rig, directory, file, memory};
use host::{Bytes, PATIENCE, Queue, narrow};
use namespace::Namespace;
use nvme::{Command, Status, opcode};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// Blocks that are raced for.
const BLOCKS: u64 = 4;

/// Commands of a kind that a racer has carried out at least, however long that takes.
const LEAST: u64 = 20;

/// Volumes for two cores, by name.
fn volumes() -> Vec<(&'static str, Option<tempfile::TempDir>, Arc<dyn Namespace>)> {
    let directory = directory();
    let on_disk = file(&directory, 16 << 20, 12, 2, Duration::ZERO);
    vec![("memory", None, memory(16 << 20, 12, 2)), ("file", Some(directory), on_disk)]
}

/// A small generator of numbers, for the tests' own choices.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

/// Writes and reads the blocks for `time` and [`LEAST`] times each, eight commands at a time, each block
/// of a write all of one value, and sees to it that each block read is, too.
fn race(mut io: Queue, seed: u64, time: Duration) -> (u64, u64) {
    let mut random = Random(seed);
    let begin = Instant::now();
    let mut in_flight = VecDeque::new();
    let (mut reads, mut writes) = (0, 0);
    loop {
        assert!(begin.elapsed() < PATIENCE, "{reads} reads, {writes} writes");
        let goes_on = begin.elapsed() < time || reads < LEAST || writes < LEAST;
        if !goes_on && in_flight.is_empty() {
            break;
        }
        if goes_on && in_flight.len() < 8 {
            let count = 1 + random.below(BLOCKS);
            let slba = random.below(BLOCKS - count + 1);
            let bytes = count as usize * 4096;
            if random.below(2) == 0 {
                let read = Command::blocks(opcode::io::READ, 1, slba, count as u32);
                in_flight.push_back((io.issue(read, Bytes::Wanted(bytes)), true));
                continue;
            }
            let write = Command::blocks(opcode::io::WRITE, 1, slba, count as u32);
            let data: Vec<u8> =
                (0..count).flat_map(|_| [1 + random.below(255) as u8; 4096]).collect();
            let on_request = random.below(2) == 0;
            let data = if on_request { Bytes::OnRequest(&data) } else { Bytes::InCapsule(&data) };
            in_flight.push_back((io.issue(write, data), false));
            continue;
        }
        let (cid, is_read) = in_flight.pop_front().expect("something is in flight");
        let done = io.complete(cid).ok();
        reads += u64::from(is_read);
        writes += u64::from(!is_read);
        for block in done.data.chunks(4096) {
            let torn = block.iter().position(|byte| *byte != block[0]);
            assert!(torn.is_none(), "{} and {} in one block", block[0], block[torn.unwrap_or(0)]);
        }
    }
    (reads, writes)
}

#[test]
fn no_block_is_read_torn() {
    for (name, _directory, volume) in volumes() {
        let rig = Rig::empty(2);
        rig.add(1, volume);
        let admin = rig.host().enabled();
        let mut queues: Vec<_> = (1..=3).map(|qid| rig.host().io(&admin, qid)).collect();
        for io in &mut queues {
            io.read(1, 0, 1, 4096);
        }
        // Queues 1 and 3 live on core 1; the admin queue and queue 2 on core 0.
        let stats = rig.server.stats().expect("running");
        assert!(stats.cores.iter().all(|core| core.connections == 2));
        let racers: Vec<_> = (1..)
            .zip(queues)
            .map(|(seed, io)| thread::spawn(move || race(io, seed, Duration::from_millis(1500))))
            .collect();
        for racer in racers {
            let (reads, writes) = racer.join().expect("no torn block");
            println!("{name}: {reads} reads, {writes} writes");
        }
        let stats = rig.server.stats().expect("running");
        assert_eq!(stats.namespaces[0].counted.errors, 0, "{name}");
    }
}

#[test]
fn lent_memory_that_changes_while_it_is_sent_is_sent_in_whole_blocks() {
    for shift in [9, 12] {
        // One core: reads are answered out of the volume's own memory.
        let rig = Rig::empty(1);
        rig.add(1, memory(1 << 20, shift, 1));
        let block = 1usize << shift;
        let blocks = (1u32 << 20) >> shift;
        let (admin, mut reader) = rig.connect();
        let mut writer = rig.host().io(&admin, 2);
        narrow(&reader.socket);
        let stop = Arc::new(AtomicBool::new(false));
        let writes = Arc::new(AtomicU64::new(0));
        let (told, written) = (stop.clone(), writes.clone());
        let worker = thread::spawn(move || {
            let mut random = Random(9);
            while !told.load(Ordering::Relaxed) {
                let cids: Vec<_> = (0..8)
                    .map(|_| {
                        let count = 1 + random.below(4);
                        let slba = random.below(u64::from(blocks) - count);
                        let data: Vec<u8> =
                            (0..count).flat_map(|_| vec![random.below(256) as u8; block]).collect();
                        let write = Command::blocks(opcode::io::WRITE, 1, slba, count as u32);
                        writer.issue(write, Bytes::InCapsule(&data))
                    })
                    .collect();
                for cid in cids {
                    writer.complete(cid).ok();
                    written.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let begin = Instant::now();
        let mut changed = false;
        let enough = |changed| changed && writes.load(Ordering::Relaxed) > 100;
        while begin.elapsed() < Duration::from_millis(1500) || !enough(changed) {
            let writes = writes.load(Ordering::Relaxed);
            assert!(begin.elapsed() < PATIENCE, "{writes} writes, one was seen: {changed}");
            // Many reads wait in the server for this socket, which takes little at a time.
            let read = Command::blocks(opcode::io::READ, 1, 0, blocks);
            let cids: Vec<_> = (0..8).map(|_| reader.issue(read, Bytes::Wanted(1 << 20))).collect();
            for cid in cids {
                let data = reader.complete(cid).ok().data;
                for block in data.chunks(block) {
                    assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
                    changed |= block[0] != 0;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        worker.join().expect("writes");
    }
}

/// A block that is a counter: its value again and again.
fn counter(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(512)
}

/// Adds one to block `slba` by compare-and-write, `wins` times; gives how often it lost.
fn count_up(io: &mut Queue, slba: u64, wins: u64, on_request: bool) -> u64 {
    let (mut won, mut lost, mut seen) = (0, 0, 0);
    while won < wins {
        let (old, new) = (counter(seen), counter(seen + 1));
        let half = |data| if on_request { Bytes::OnRequest(data) } else { Bytes::InCapsule(data) };
        let mut compare = io.prepare(Command::blocks(opcode::io::COMPARE, 1, slba, 1), half(&old));
        compare.flags |= 1;
        let mut write = io.prepare(Command::blocks(opcode::io::WRITE, 1, slba, 1), half(&new));
        write.flags |= 2;
        io.send(&compare, half(&old));
        io.send(&write, half(&new));
        let compared = io.complete(compare.cid.get()).status;
        let written = io.complete(write.cid.get()).status;
        if compared.is_success() {
            assert!(written.is_success(), "{written}");
            won += 1;
            seen += 1;
            continue;
        }
        assert_eq!(compared.code(), Status::COMPARE_FAILURE);
        assert_eq!(written, Status::ABORTED_FAILED_FUSED);
        lost += 1;
        let block = io.read(1, slba, 1, 4096);
        seen = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
        assert!(block == counter(seen), "a counter is read whole");
    }
    lost
}

#[test]
fn of_those_who_compare_and_write_one_wins() {
    for (name, _directory, volume) in volumes() {
        let wins = if name == "memory" { 1000 } else { 100 };
        let rig = Rig::empty(2);
        rig.add(1, volume);
        let admin = rig.host().enabled();
        let lost = Arc::new(AtomicU64::new(0));
        // None wins before all are there.
        let line = Arc::new(Barrier::new(4));
        let queues: Vec<_> = (1..=4).map(|qid| (qid, rig.host().io(&admin, qid))).collect();
        let racers: Vec<_> = queues
            .into_iter()
            .map(|(qid, mut io)| {
                let (lost, line) = (lost.clone(), line.clone());
                thread::spawn(move || {
                    line.wait();
                    lost.fetch_add(count_up(&mut io, 5, wins, qid > 2), Ordering::Relaxed);
                })
            })
            .collect();
        // Others write around it meanwhile, and read it.
        let mut io = rig.host().io(&admin, 5);
        while !racers.iter().all(thread::JoinHandle::is_finished) {
            let block = io.read(1, 5, 1, 4096);
            let value = u64::from_le_bytes(block[..8].try_into().expect("eight bytes"));
            assert!(block == counter(value), "{name}: a counter is read whole");
            io.write(1, 4, 1, &block);
            io.write(1, 6, 1, &block);
        }
        for racer in racers {
            racer.join().expect("counts");
        }
        assert!(io.read(1, 5, 1, 4096) == counter(4 * wins), "{name}: every win counts once");
        assert!(lost.load(Ordering::Relaxed) > 0, "{name}: they did race");
    }
}

#[test]
fn namespaces_may_go_and_come_under_io() {
    let rig = Rig::memory(2);
    let mut witness = rig.witness();
    let admin = rig.host().enabled();
    let workers: Vec<_> = (1..=2)
        .map(|qid| {
            let mut io = rig.host().io(&admin, qid);
            thread::spawn(move || {
                let (mut served, mut missing) = (0, 0);
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_millis(800) || served == 0 || missing == 0 {
                    assert!(begin.elapsed() < PATIENCE, "{served} served, {missing} missing");
                    let read = Command::blocks(opcode::io::READ, 2, 0, 4);
                    let done = io.command(read, Bytes::Wanted(16384));
                    match done.status {
                        Status::SUCCESS => served += 1,
                        status => {
                            assert_eq!(status, Status::INVALID_FIELD.dnr());
                            missing += 1;
                        }
                    }
                }
                (served, missing)
            })
        })
        .collect();
    while !workers.iter().all(thread::JoinHandle::is_finished) {
        rig.add(2, memory(1 << 20, 12, 2));
        witness.check();
        rig.server.remove_namespace(NQN, 2).expect("just added");
        witness.check();
    }
    for worker in workers {
        let (served, missing) = worker.join().expect("served and missing, and no other status");
        println!("{served} served, {missing} missing");
    }
}
