//! Few requests at a time go to the kernel's AIO, one that is waited for at once is carried out at once, lists go by io_uring; each has its event,
//! whichever way it goes.

use super::*;

/// Times that a case is run which a machine with much else to do may disturb.
const TRIES: u32 = 20;

/// Runs a case of depth.c in that mode: by io_uring, natively, and at once.
fn ways_of(case: &str, mode: &str) -> [u64; 3] {
    let scratch = scratch();
    let program = compiled("depth", &native(), scratch.path());
    let mut command = preferred(&with(&program, Some(mode)));
    let (_, ways) = Ways::of(command.arg(case).arg(fresh(scratch.path())), printed);
    let counts = [ways.count(Counter::Ring), ways.native(), ways.count(Counter::Inline)];
    let [ring, native, here] = counts;
    println!("{case}, mode {mode}: {ring} by io_uring, {native} natively, {here} at once");
    counts
}

/// 6,000 one by one, and 12,000 by twos, of which the first 256 lists show that there are few, and as many when it is looked at again.
#[test]
fn few_at_a_time_are_the_kernels() {
    let [_, native, _] = ways_of("few", "auto");
    assert!(native > 10_500, "{native} natively");
    assert_eq!(ways_of("few", "ring"), [18_000, 0, 0]);
}

/// However many are in flight: one by one they cost more by io_uring. What is at rest is looked at again twice.
#[test]
fn one_by_one_are_the_kernels() {
    let [_, native, _] = ways_of("deep", "auto");
    assert!(native > 18_000, "{native} natively");
    assert_eq!(ways_of("deep", "ring"), [20_000, 0, 0]);
}

/// 10 lists of 8 in each of 20 turns, with 32 in flight that go the other way.
#[test]
fn lists_bring_the_ring_back_while_others_are_in_flight() {
    let [ring, native, _] = ways_of("waves", "auto");
    assert!(ring > 1_500 && native > 3_000, "{ring} by io_uring, of 1,600; {native} natively");
    assert_eq!(ways_of("waves", "ring")[1], 0);
}

/// 7,000 but for what interrupts them, where 128 have shown that each is waited for. A machine that stands still may interrupt many.
#[test]
fn one_that_is_waited_for_is_carried_out_at_once() {
    assert!((0..TRIES).any(|_| ways_of("prompt", "auto")[2] > 4_000));
    let [ring, _, here] = ways_of("prompt", "ring");
    assert!(ring > 7_000 && here == 0, "{ring} by io_uring, {here} at once");
}

/// What is the kernel's is looked at again: its program may have become one that waits for each at once.
#[test]
fn a_program_that_becomes_another_is_found_out() {
    assert!((0..TRIES).any(|_| ways_of("again", "auto")[2] > 2_000));
}

/// Whoever comes back at once has the context to himself no longer than it takes to carry out a request.
#[test]
fn who_is_quick_does_not_keep_others_waiting() {
    assert!((0..TRIES).any(|_| ways_of("beside", "auto")[2] > 500));
    ways_of("beside", "ring");
}

/// What a program does meanwhile it does while its request is in flight; and it need not wait for ever.
#[test]
fn who_does_something_else_meanwhile_has_it_in_flight() {
    for case in ["late", "limited"] {
        let [ring, native, here] = ways_of(case, "auto");
        assert!(ring + native > 900 && here == 0, "{case}: {here} at once");
    }
}

/// All lists, but for what goes before the first: 20 of each of 20 turns.
#[test]
fn lists_bring_the_ring_back() {
    let [ring, native, _] = ways_of("turns", "auto");
    let lists: u64 = (0..20).map(|turn| 20 * (3 + turn % 6)).sum();
    assert!(ring > lists && native > 3_000, "{ring} by io_uring, of {lists}; {native} natively");
}

/// Whoever takes events is in the way of the ring while he waits in the kernel, and has it back when he comes again.
#[test]
fn nobody_waits_where_nothing_comes() {
    for _ in 0..2 {
        let [ring, native, here] = ways_of("threads", "auto");
        assert!(ring > 1_000 && native > 1_000, "{ring} by io_uring, {native} natively");
        assert_eq!(here, 0, "another waits for it");
    }
    ways_of("threads", "ring");
    ways_of("threads", "native");
}

/// Two may never be away at once: then all of it stays the kernel's.
#[test]
fn two_that_wait_are_told_of_everything() {
    for _ in 0..2 {
        let [_, native, _] = ways_of("reapers", "auto");
        assert!(native > 1_000, "{native} natively");
    }
    ways_of("reapers", "ring");
}

/// What is wrong with a request is said as libaio says it, however many were right before.
#[test]
fn errors_are_those_of_libaio() {
    let scratch = scratch();
    let program = compiled("depth", &native(), scratch.path());
    let told = |mode: Option<&str>| {
        let mut command = with(&program, mode);
        printed(command.arg("prompt").arg(fresh(scratch.path())))
    };
    let wanted = told(None);
    assert!(wanted.lines().count() > 12, "{wanted}");
    for mode in ["auto", "ring", "native"] {
        assert_eq!(told(Some(mode)), wanted, "mode {mode}");
    }
}
