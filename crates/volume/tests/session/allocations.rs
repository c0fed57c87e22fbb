//! No allocation per command, once warm.

use crate::behaviour::{PATIENCE, file, session};
use volume::session::{Bytes, Submission};

const DEPTH: u64 = 16;
const BLOCKS: u64 = 256;
/// Commands before counting starts: tables and pools grow to what they need.
const WARM_UP: u64 = 2_000;
const COUNTED: u64 = 10_000;
/// Tables that still grow then, because more commands happened to meet than before.
const GROWTH: u64 = 4;

/// Allocations during ten thousand commands on `uri`, with memory of the pool and of vectors.
fn allocations(uri: &str, fixed: bool) -> u64 {
    let session = session(DEPTH as usize);
    let volume = session.open(uri).expect(uri);
    let mut done = Vec::with_capacity(DEPTH as usize);
    let mut idle: Vec<Bytes> = (0..DEPTH)
        .map(|_| match fixed {
            true => session.allocate(4096).expect("room").into(),
            false => vec![1; 4096].into(),
        })
        .collect();
    let (mut sent, mut ended, mut before) = (0, 0, 0);
    while ended < WARM_UP + COUNTED {
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
            ended += 1;
            if ended == WARM_UP {
                before = counting_allocator::of_this_thread();
            }
        }
    }
    counting_allocator::of_this_thread() - before
}

#[test]
fn commands_allocate_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = file(&directory, "a");
    for uri in ["mem:1M?bs=4096", "null:1M?bs=4096", "delay:10us(mem:1M?bs=4096)", &file] {
        for fixed in [true, false] {
            let count = allocations(uri, fixed);
            assert!(count <= GROWTH, "{uri}: {count} allocations for {COUNTED} commands");
        }
    }
}

#[test]
fn the_count_counts() {
    let before = counting_allocator::of_this_thread();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(counting_allocator::of_this_thread(), before + 1);
}
