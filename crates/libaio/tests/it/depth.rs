//! Few requests at a time go to the kernel's AIO, lists by io_uring; each has its event, whichever way it goes.

use super::*;

/// Runs a case of depth.c in that mode: by io_uring, and natively.
fn ways_of(case: &str, mode: &str) -> (u64, u64) {
    let scratch = scratch();
    let program = compiled("depth", &native(), scratch.path());
    let mut command = with(&program, Some(mode));
    let (_, ways) = Ways::of(command.arg(case).arg(fresh(scratch.path())), printed);
    let (ring, native) = (ways.count(Counter::Ring), ways.native());
    println!("{case}, mode {mode}: {ring} by io_uring, {native} natively");
    (ring, native)
}

/// 6,000 and 12,000, of which the first 256 show that there are few.
#[test]
fn few_at_a_time_are_the_kernels() {
    let (ring, native) = ways_of("few", "auto");
    assert!((200..600).contains(&ring) && native > 17_000, "{ring} by io_uring, {native} natively");
    let (ring, native) = ways_of("few", "ring");
    assert!(native == 0 && ring == 18_000, "{ring} by io_uring, {native} natively");
}

/// All lists, but for what goes before the first: 20 of each of 20 turns.
#[test]
fn lists_bring_the_ring_back() {
    let (ring, native) = ways_of("turns", "auto");
    let lists: u64 = (0..20).map(|turn| 20 * (3 + turn % 6)).sum();
    assert!(ring > lists && native > 5_000, "{ring} by io_uring, of {lists}; {native} natively");
}

/// Whoever takes events is in the way of the ring while he waits in the kernel, and has it back when he comes again.
#[test]
fn nobody_waits_where_nothing_comes() {
    for _ in 0..5 {
        let (ring, native) = ways_of("threads", "auto");
        assert!(ring > 1_000 && native > 1_000, "{ring} by io_uring, {native} natively");
    }
    ways_of("threads", "ring");
    ways_of("threads", "native");
}

/// Two may never be away at once: then all of it stays the kernel's.
#[test]
fn two_that_wait_are_told_of_everything() {
    for _ in 0..5 {
        let (_, native) = ways_of("reapers", "auto");
        assert!(native > 1_000, "{native} natively");
    }
    ways_of("reapers", "ring");
}
