//! No allocation per command, once warm.

use crate::behaviour::{PATIENCE, file, session};
use nvme::copy::{Entry, Format};
use volume::session::{Bytes, Ranges, Submission, Vectors, Volume};

const DEPTH: u64 = 16;
const BLOCKS: u64 = 256;
/// Commands before counting starts: tables and pools grow to what they need.
const WARM_UP: u64 = 2_000;
const COUNTED: u64 = 10_000;

/// Whose a command's memory is.
#[derive(Clone, Copy)]
enum Memory {
    Fixed,
    Owned,
    Pieces,
}

/// Allocations during the best ten thousand of some commands on `uri`.
fn allocations(uri: &str, memory: Memory) -> u64 {
    let session = session(DEPTH as usize);
    let volume = session.open(uri).expect(uri);
    let mut done = Vec::with_capacity(DEPTH as usize);
    let mut idle: Vec<Bytes> = (0..DEPTH)
        .map(|_| match memory {
            Memory::Fixed => session.allocate(4096).expect("room").into(),
            Memory::Owned => vec![1; 4096].into(),
            Memory::Pieces => [vec![1; 96], vec![1; 4000]].into_iter().collect::<Vectors>().into(),
        })
        .collect();
    let (mut sent, mut rounds) = (0, counting_allocator::Rounds::new(WARM_UP, COUNTED));
    loop {
        while let Some(data) = idle.pop() {
            let slba = sent * 7 % BLOCKS;
            let submission = match sent % 3 {
                0 => Submission::write(slba, 1, data),
                _ => Submission::read(slba, 1, data),
            };
            volume.submit(submission.token(sent)).expect("as many as memory");
            sent += 1;
        }
        session.wait(1, PATIENCE);
        session.reap(&mut done);
        for done in done.drain(..) {
            assert!(done.status.is_success(), "{uri}: {}", done.status);
            idle.push(done.data);
            if let Some(allocations) = rounds.ended() {
                return allocations;
            }
        }
    }
}

#[test]
fn commands_allocate_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = file(&directory, "a");
    for uri in ["mem:1M?bs=4096", "null:1M?bs=4096", "delay:10us(mem:1M?bs=4096)", &file] {
        for memory in [Memory::Fixed, Memory::Owned, Memory::Pieces] {
            let count = allocations(uri, memory);
            assert_eq!(count, 0, "{uri}: {count} allocations for {COUNTED} commands");
        }
    }
}

/// Allocations during the best ten thousand of some Copies of three ranges, of two volumes, at a depth of four: as ranges, as bytes of
/// the wire, or to both volumes at once.
fn of_copies(uris: [&str; 2], how: How) -> u64 {
    let session = session(8);
    let [from, to] = uris.map(|uri| session.open(uri).expect(uri));
    let mut done = Vec::with_capacity(8);
    let list = |sent: u64| {
        let mut list = vec![0; 3 * 32];
        for (at, bytes) in list.chunks_mut(32).enumerate() {
            let nsid = if at == 1 { to.id().0 } else { from.id().0 };
            let slba = sent % 60 + at as u64 * 20;
            Entry { nsid, slba, blocks: 2, fast_only: false }.write(Format::Namespaces, bytes);
        }
        Bytes::Owned(list)
    };
    let mut idle: Vec<Bytes> = match how {
        How::Ranges => (0..4).map(|_| Ranges::new().into()).collect(),
        How::Wire => (0..4).map(list).collect(),
        How::Many => (0..4).map(|_| Bytes::None).collect(),
    };
    let mut kept = Ranges::new();
    [(0, 2), (20, 2), (40, 3)]
        .iter()
        .for_each(|(slba, blocks)| kept.push_from(&from, *slba, *blocks));
    let (mut sent, mut rounds) = (0, counting_allocator::Rounds::new(WARM_UP, COUNTED));
    loop {
        while let Some(data) = idle.pop() {
            let sdlba = 150 + sent % 50;
            match data {
                Bytes::Ranges(mut ranges) => {
                    ranges.push_from(&from, sent % 100, 2);
                    ranges.push(sent % 70, 1);
                    ranges.push_from(&from, sent % 90, 3);
                    to.submit(Submission::copy(sdlba, ranges)).expect("room");
                }
                Bytes::None => {
                    Volume::copy_to_all(&[(&from, sdlba), (&to, sdlba)], &kept, 0).expect("room");
                }
                list => {
                    let command = nvme::copy::command(1, sdlba, 3, Format::Namespaces);
                    to.submit(Submission::new(command).data(list)).expect("room");
                }
            }
            sent += 1;
        }
        session.wait(1, PATIENCE);
        session.reap(&mut done);
        for done in done.drain(..) {
            assert!(done.status.is_success(), "{uris:?}: {}", done.status);
            idle.push(done.data);
            if let Some(allocations) = rounds.ended() {
                return allocations;
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum How {
    Ranges,
    Wire,
    Many,
}

#[test]
fn copies_allocate_nothing() {
    for uris in [
        ["mem:1M?bs=4096", "mem:1M?bs=4096"],
        ["null:1M?bs=4096", "null:1M?bs=4096"],
        // Read and written by the guard.
        ["null:1M?bs=4096", "mem:1M?bs=4096"],
    ] {
        for how in [How::Ranges, How::Wire, How::Many] {
            let count = of_copies(uris, how);
            assert_eq!(count, 0, "{uris:?}, {how:?}: {count} allocations for {COUNTED} Copies");
        }
    }
}

#[test]
fn the_count_counts() {
    let before = counting_allocator::of_this_thread();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(counting_allocator::of_this_thread(), before + 1);
}
