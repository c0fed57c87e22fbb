//! What a wait is for.

use std::io::{Write, pipe};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use uring::{File, Ring, Wait, entry};

/// Completions after one wait for a byte that comes after a while, with an entry beside that completes at once.
fn after_one_wait(is_told: bool) -> Vec<u64> {
    // On a busy machine the byte may have come before the wait.
    let mut tries = (0..10).map(|_| try_one_wait(is_told));
    tries.find_map(|came| came).expect("a wait that begins within 250 ms")
}

/// The same, if the wait came before the byte.
fn try_one_wait(is_told: bool) -> Option<Vec<u64>> {
    let mut ring = Ring::new(8).expect("io_uring is allowed where tests run");
    let (from, mut to) = pipe().expect("a pipe");
    let mut byte = 0u8;
    let read = entry::read(File::Fd(from.as_raw_fd()), &raw mut byte, 1, u64::MAX).user_data(1);
    // SAFETY: the byte outlives the operation, which is waited for below.
    unsafe { ring.push(&read) }.expect("room");
    // SAFETY: the entry points to nothing.
    unsafe { ring.push(&entry::nop().user_data(2)) }.expect("room");
    if is_told {
        ring.completes_at_once();
    }
    let peer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(250));
        let sent = Instant::now();
        to.write_all(&[7]).expect("room");
        sent
    });
    let waited = Instant::now();
    ring.enter(Wait::Forever).expect("sound");
    let mut first = Vec::with_capacity(8);
    ring.reap(&mut first);
    let reaped = Instant::now();
    let sent = peer.join().expect("written");
    let mut rest = Vec::with_capacity(8);
    while first.len() + rest.len() < 2 {
        ring.enter(Wait::Forever).expect("sound");
        ring.reap(&mut rest);
    }
    assert_eq!(byte, 7);
    // The next wait is for one again.
    // SAFETY: as above.
    unsafe { ring.push(&entry::nop().user_data(3)) }.expect("room");
    ring.enter(Wait::Forever).expect("sound");
    let first: Vec<_> = first.iter().map(|completion| completion.user_data).collect();
    // A wait for one ends at once. One for the byte begins in time, also in the kernel: there the read would come first.
    let is_in_time = if is_told { waited < sent && first[0] == 2 } else { reaped < sent };
    is_in_time.then_some(first)
}

#[test]
fn a_wait_looks_past_what_completes_at_once_if_told() {
    assert_eq!(after_one_wait(true), [2, 1]);
    assert_eq!(after_one_wait(false), [2]);
}
