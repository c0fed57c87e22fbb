//! A program takes another's place under load: nothing is lost, torn, or carried out before what it must follow.

use crate::core::{Answer, Core, read, write};
use crate::program;
use namespace::Namespace;
use namespace::layer::program::{ProgramError, Replaced};
use nvme::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;
use volume::OpenOptions;

const BLOCK: usize = 512;
/// Of each device here.
const BLOCKS: u64 = 384;
const CORES: u64 = 3;
/// Requests in flight of each core.
const DEPTH: usize = 12;
/// Blocks of one request at most.
const SPAN: u64 = 40;

fn open(uri: &str) -> Arc<dyn Namespace> {
    volume::open(uri, &OpenOptions { cores: CORES as usize, ..OpenOptions::default() }).expect(uri)
}

/// Puts the repository's program `name` in place of the one that there is.
fn replace(volume: &dyn Namespace, name: &str) -> Result<Replaced, ProgramError> {
    let uri = program(name, "");
    let path = uri.trim_start_matches("bpf:").trim_end_matches("()");
    put(volume, &std::fs::read(path).expect(path), path)
}

fn put(volume: &dyn Namespace, object: &[u8], path: &str) -> Result<Replaced, ProgramError> {
    let mut outcome = None;
    volume.each_program(&mut |program| outcome = Some(program.replace(object, path.to_owned())));
    outcome.expect("the volume has a program")
}

fn refused(volume: &dyn Namespace, name: &str) -> String {
    replace(volume, name).expect_err("it does not fit").to_string()
}

/// What one core knows of its blocks: the last version that was acknowledged, and the last one sent.
#[derive(Clone, Copy, Default)]
struct Known {
    acknowledged: u64,
    sent: u64,
    is_busy: bool,
}

struct InFlight {
    first: u64,
    blocks: u64,
    writes: bool,
    /// The versions that were acknowledged when it was sent.
    floor: Vec<u64>,
    answer: Receiver<Answer>,
}

/// One core's load on the blocks from `base` on, which are its own: versions of blocks are written, and read
/// while they are written.
struct Load {
    core: Core,
    base: u64,
    known: Vec<Known>,
    flights: Vec<InFlight>,
    random: u64,
    done: u64,
}

impl Load {
    fn new(volume: &Arc<dyn Namespace>, number: u64) -> Load {
        let own = BLOCKS / CORES;
        Load {
            core: Core::start(Arc::clone(volume)),
            base: number * own,
            known: vec![Known::default(); own as usize],
            flights: Vec::new(),
            random: number + 1,
            done: 0,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn send(&mut self) {
        let own = self.known.len() as u64;
        let first = self.random(own);
        let blocks = (1 + self.random(SPAN)).min(own - first);
        let span = first as usize..(first + blocks) as usize;
        // One write of a block at a time, so that which one is last is no matter of taste.
        let writes = self.random(2) == 0 && !self.known[span.clone()].iter().any(|it| it.is_busy);
        let floor = self.known[span.clone()].iter().map(|it| it.acknowledged).collect();
        let start = self.base + first;
        let order = if writes {
            let mut data = Vec::new();
            for (block, known) in (start..).zip(&mut self.known[span]) {
                (known.sent, known.is_busy) = (known.sent + 1, true);
                let word = (block << 40 | known.sent).to_le_bytes();
                data.extend(word.iter().cycle().take(BLOCK));
            }
            write(start, data, BLOCK)
        } else {
            read(start, blocks as u32, BLOCK)
        };
        let answer = self.core.submit(order);
        self.flights.push(InFlight { first, blocks, writes, floor, answer });
    }

    /// Waits for one of the requests in flight, and checks what came of it.
    fn take(&mut self) {
        let at = self.random(self.flights.len() as u64) as usize;
        let flight = self.flights.swap_remove(at);
        let patience = Duration::from_secs(30);
        let answer = flight.answer.recv_timeout(patience).expect("every request ends");
        assert_eq!(answer.status, Status::SUCCESS);
        self.done += 1;
        let span = flight.first as usize..(flight.first + flight.blocks) as usize;
        if flight.writes {
            for known in &mut self.known[span] {
                (known.acknowledged, known.is_busy) = (known.sent, false);
            }
            return;
        }
        let start = self.base + flight.first;
        let blocks = answer.data.chunks_exact(BLOCK).zip(&self.known[span]).zip(flight.floor);
        for (block, ((bytes, known), floor)) in (start..).zip(blocks) {
            let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            assert!(
                bytes.chunks_exact(8).all(|other| other == &bytes[..8]),
                "block {block} is torn"
            );
            let (at, version) = (word >> 40, word & ((1 << 40) - 1));
            assert!(word == 0 || at == block, "block {block} holds what belongs to {at}");
            let range = floor..=known.sent;
            assert!(range.contains(&version), "block {block}: {version}, not one of {range:?}");
        }
    }

    fn run(mut self, stop: &AtomicBool, total: &AtomicU64) -> u64 {
        while !stop.load(Ordering::Relaxed) {
            while self.flights.len() < DEPTH {
                self.send();
            }
            self.take();
            total.fetch_add(1, Ordering::Relaxed);
        }
        while !self.flights.is_empty() {
            self.take();
        }
        self.done
    }
}

/// Has every core read and write while `change` is called `times` times; gives how many requests there were.
/// Some come between any two changes.
fn under_load(volume: &Arc<dyn Namespace>, times: usize, mut change: impl FnMut(usize)) -> u64 {
    let (stop, total) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (stop, total) = (&stop, &total);
        let run = |number| scope.spawn(move || Load::new(volume, number).run(stop, total));
        let loads: Vec<_> = (0..CORES).map(run).collect();
        for time in 0..times {
            let before = total.load(Ordering::Relaxed);
            change(time);
            while total.load(Ordering::Relaxed) < before + 4 * DEPTH as u64
                && !loads.iter().any(|load| load.is_finished())
            {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
        loads.into_iter().map(|load| load.join().expect("the load is well")).sum()
    })
}

#[test]
fn a_hundred_programs_under_load_lose_nothing() {
    let backend = "delay:100us(mem:192K?bs=512)";
    let volume = open(&program("linear", backend));
    let turns = ["statistics", "rate", "linear"];
    let requests = under_load(&volume, 100, |time| {
        replace(&*volume, turns[time % turns.len()]).expect("it fits");
    });
    assert!(requests >= 100, "{requests}");
    assert_eq!(
        volume.uri(),
        program(turns[99 % turns.len()], backend),
        "a restart opens the last one"
    );
    assert_eq!(volume.programs()[0].mistakes, 0);
}

#[test]
fn what_both_programs_count_in_stays() {
    let volume = open(&program("statistics", "delay:50us(mem:192K)"));
    let requests = under_load(&volume, 100, |_| {
        let replaced = replace(&*volume, "statistics").expect("it fits");
        assert_eq!(replaced.kept, ["operations", "latencies"]);
        assert!(replaced.fresh.is_empty() && replaced.dropped.is_empty());
    });
    let report = &volume.programs()[0];
    let count = |map: &str, word: usize| -> u64 {
        let map = report.maps.iter().find(|it| it.name == map).expect("it is declared");
        let values = map.entries.iter().flat_map(|(_, values)| values);
        let counts = values.map(|value| value[word * 8..][..8].try_into().expect("eight bytes"));
        counts.map(u64::from_le_bytes).sum()
    };
    // NVLANE_DONE counts: once for each request, whichever program routed it.
    assert_eq!((count("operations", 0), count("latencies", 0)), (requests, requests));
    assert_eq!(count("operations", 2), 0, "none failed");
}

#[test]
fn a_bitmap_stays_and_with_it_what_was_written() {
    let volume = open(&program("snapshot", "mem:192K,delay:50us(mem:192K)"));
    under_load(&volume, 40, |_| {
        assert_eq!(replace(&*volume, "snapshot").expect("it fits").kept, ["written"]);
    });
    // Without the bitmap it is forgotten: everything reads as the first volume has it.
    let core = Core::start(Arc::clone(&volume));
    assert_eq!(core.write(7, vec![9; BLOCK], BLOCK), Status::SUCCESS);
    let replaced = replace(&*volume, "null").expect("it fits");
    assert_eq!(replaced.dropped, ["written"]);
    assert_eq!(replace(&*volume, "snapshot").expect("it fits").fresh, ["written"]);
    assert_eq!(core.read(7, 1, BLOCK).data, vec![0; BLOCK]);
}

#[test]
fn another_build_of_thin_gives_no_place_twice() {
    const CHUNK: u64 = (1 << 20) / BLOCK as u64;
    let uri = program("thin", "mem:8M,mem:8M");
    let path = uri.trim_start_matches("bpf:").split('(').next().expect("a path").to_owned();
    let volume = open(&uri);
    let core = Core::start(Arc::clone(&volume));
    for round in 0..6 {
        let byte = 1 + round as u8;
        assert_eq!(core.write(round * CHUNK, vec![byte; BLOCK], BLOCK), Status::SUCCESS);
        // The same instructions in a file that is not the same, byte by byte.
        let mut object = std::fs::read(&path).expect("it is there");
        object.push(byte);
        assert_eq!(put(&*volume, &object, &path).expect("it fits").kept, ["places"]);
    }
    for round in 0..6 {
        assert_eq!(core.read(round * CHUNK, 1, BLOCK).data, vec![1 + round as u8; BLOCK]);
    }
}

#[test]
fn requests_of_the_new_program_wait_for_those_of_the_old_one() {
    let volume = open(&program("tests/late", "mem:192K"));
    let (slow, other) = (Core::start(Arc::clone(&volume)), Core::start(Arc::clone(&volume)));
    // It takes half a second, and lands at the place where the new program keeps the last block.
    let late = slow.submit(write(0, vec![1; BLOCK], BLOCK));
    assert_eq!(slow.read(1, 1, BLOCK).status, Status::SUCCESS, "it has begun");
    std::thread::scope(|scope| {
        scope.spawn(|| replace(&*volume, "tests/moved").expect("it fits"));
        while !volume.uri().contains("moved") {
            // Before it is replaced these go to other places; afterwards they must all be there.
            let status = other.write(BLOCKS - 1, vec![2; BLOCK], BLOCK);
            assert_eq!(status, Status::SUCCESS);
        }
    });
    assert_eq!(other.write(BLOCKS - 1, vec![3; BLOCK], BLOCK), Status::SUCCESS);
    // It has ended before, though its core may tell so later.
    assert_eq!(late.recv().expect("it ends").status, Status::SUCCESS);
    assert_eq!(slow.read(BLOCKS - 1, 1, BLOCK).data, vec![3; BLOCK]);
}

#[test]
fn a_write_that_was_held_back_is_not_overwritten_by_one_of_the_old_program() {
    let volume = open(&program("tests/late", "mem:192K"));
    let (slow, other) = (Core::start(Arc::clone(&volume)), Core::start(Arc::clone(&volume)));
    let late = slow.submit(write(0, vec![1; BLOCK], BLOCK));
    assert_eq!(slow.read(1, 1, BLOCK).status, Status::SUCCESS, "it has begun");
    let last = std::thread::scope(|scope| {
        let replacing = scope.spawn(|| replace(&*volume, "tests/moved").expect("it fits"));
        // What comes while the replacement waits is held back until that is done: it is the last one.
        let mut last = 1;
        while !volume.uri().contains("moved") && !replacing.is_finished() {
            last = 2 + (last - 1) % 250;
            let status = other.write(BLOCKS - 1, vec![last; BLOCK], BLOCK);
            assert_eq!(status, Status::SUCCESS);
        }
        last
    });
    assert_eq!(late.recv().expect("it ends").status, Status::SUCCESS);
    // Where there was no time for it, the last one went by the old program: to where the new one has block 0.
    let by_old = slow.read(0, 1, BLOCK).data == vec![last; BLOCK];
    let there = if by_old { 1 } else { last };
    assert_eq!(slow.read(BLOCKS - 1, 1, BLOCK).data, vec![there; BLOCK]);
}

#[test]
fn what_would_make_another_volume_is_refused() {
    let volume = open(&program("linear", "mem:96K,mem:96K"));
    let said = refused(&*volume, "statistics");
    assert!(said.contains("statistics.bpf.o cannot take the place of "), "{said}");
    assert!(said.contains("the volume would have 192 blocks instead of 384"), "{said}");
    let said = refused(&*volume, "tests/hostile");
    assert!(said.contains("would have 192 blocks"), "{said}");
    let volume = open(&program("linear", "mem:192K"));
    let said = refused(&*volume, "mirror");
    assert!(said.contains("does not promise NVLANE_ONE_PLACE"), "{said}");
    let said = refused(&*volume, "snapshot");
    assert!(said.contains("NVLANE_SETUP refuses these volumes: it returned 1"), "{said}");
    let mut outcome = None;
    volume.each_program(&mut |program| outcome = Some(program.replace(b"no object", "x".into())));
    assert!(outcome.expect("there is one").is_err());
    assert!(volume.uri().contains("linear.bpf.o"), "it is what it was");
    let core = Core::start(volume);
    assert_eq!(core.read(0, 8, BLOCK).status, Status::SUCCESS);
}

#[test]
fn a_program_is_known_by_its_absolute_path() {
    let object = "../../bpf/linear.bpf.o";
    let volume = open(&format!("bpf:{object}(mem:192K)"));
    let absolute = std::fs::canonicalize(object).expect(object);
    assert_eq!(volume.uri(), format!("bpf:{}(mem:192K?bs=512)", absolute.display()));
}
