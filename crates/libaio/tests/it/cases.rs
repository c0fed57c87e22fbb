//! The cases in C, on the native library and on ours in each of its modes; and that it was ours which did them.

use super::*;
use Counter::{Inline, Polls, Ring, Waits};

/// What a case comes to when nothing of it goes to the kernel's AIO but what has to.
struct Wanted {
    /// Counters that are not 0, except in mode native.
    used: &'static [Counter],
    /// Requests that are the kernel's with io_uring from the beginning: of pipes, with flags that we leave
    /// to it, with another priority than the one before, from handlers, by eventfd, after the ring's descriptor was closed.
    native: u64,
}

impl Wanted {
    fn check(&self, mode: &str, ways: &Ways) {
        let (ours, native) = (ways.ours(), ways.native());
        let told = format!("mode {mode}: {ours} ours, {native} native");
        if mode == "native" {
            assert!(ours == 0 && native > 0, "{told}");
            return;
        }
        for &counter in self.used {
            assert!(ways.count(counter) > 0, "{told}, without {counter:?}");
        }
        match mode {
            "ring" => assert_eq!(native, self.native, "{told}"),
            // Half of each case is with a context that is new.
            _ if self.used.is_empty() => assert_eq!(ours, 0, "{told}"),
            _ => assert!(native > self.native && ours > 0, "{told}"),
        }
    }
}

/// Runs a case in each of the modes, beside the native library, and gives which ways it went.
fn compared(name: &str, case: Option<&str>, modes: &[&str], check: impl Fn(&str, &Ways)) {
    compared_with(|_| {}, name, case, modes, check);
}

/// The same with something done to the commands.
fn compared_with(
    change: impl Fn(&mut Command),
    name: &str,
    case: Option<&str>,
    modes: &[&str],
    check: impl Fn(&str, &Ways),
) {
    let scratch = scratch();
    let program = compiled(name, &native(), scratch.path());
    let command = |mode: Option<&str>| {
        let mut command = with(&program, mode);
        command.args(case).arg(fresh(scratch.path()));
        change(&mut command);
        command
    };
    let wanted = printed(&mut command(None));
    assert!(wanted.lines().count() > 5, "{wanted}");
    for mode in modes {
        let (got, told) = Ways::of(&mut command(Some(mode)), printed);
        check(mode, &told);
        for (ours, native) in got.lines().zip(wanted.lines()) {
            assert_eq!(ours, native, "{name} {case:?}, mode {mode}, native on the right");
        }
        assert_eq!(got.lines().count(), wanted.lines().count());
    }
}

fn same(name: &str, case: Option<&str>, modes: &[&str], ways: Wanted) {
    compared(name, case, modes, |mode, told| ways.check(mode, told));
}

/// By itself, with io_uring from the beginning, and never.
const MODES: [&str; 3] = ["auto", "ring", "native"];

#[test]
fn errors() {
    same("errors", None, &MODES, Wanted { used: &[Ring, Inline], native: 34 });
}

macro_rules! cases {
    ($program:literal: $($name:ident: $used:expr, $native:literal;)*) => {$(
        #[test]
        fn $name() {
            let ways = Wanted { used: &$used, native: $native };
            same($program, Some(stringify!($name)), &MODES, ways);
        }
    )*};
}

cases! {
    "behaviour":
    partial: [Ring, Inline], 0;
    full: [Polls], 0;
    eventfds: [Inline], 64;
    polls: [Polls, Waits], 0;
    signals: [Inline, Waits], 0;
    timeouts: [Inline, Waits], 0;
    queues: [Inline], 0;
    transfers: [Ring, Inline], 22;
    handlers: [Waits], 10;
    unwritable: [Ring, Inline], 0;
    closed: [Ring, Inline], 4;
    mixed: [Ring, Inline], 0;
    let_through: [Inline], 0;
    taken_over: [Ring], 12;
    own_ring: [Ring], 0;
    ends: [Inline], 12;
    of_memory: [Inline, Polls], 4;
}

/// Not in mode `ring`, where nobody looks for them from the beginning.
#[test]
fn events_of_what_a_program_submits_itself_are_taken() {
    compared("behaviour", Some("submits_itself"), &["auto", "native"], |_, _| {});
}

cases! {
    "threads":
    threads: [Ring, Inline, Waits], 0;
    misled: [Polls, Waits], 0;
    waiting: [Ring, Inline, Waits], 2;
    destroying: [Ring, Waits], 0;
    leaving: [Ring, Polls], 0;
    beside: [Inline, Waits], 0;
    led_by_nobody: [Ring, Inline], 0;
    settled: [Polls], 1812;
}

cases! {
    "late":
    reused: [Ring], 0;
    write_only: [Ring], 0;
    direct_left: [Ring], 0;
    allocating: [Ring], 0;
    limited: [Ring, Inline], 0;
    interrupted: [Inline, Waits], 0;
    elsewhere: [Polls, Waits], 0;
    pipes: [Ring, Inline], 18;
    unknown: [Inline, Polls], 0;
    distracted: [Inline, Polls], 4;
    overtaken: [Inline], 24;
    orphaned: [Ring], 0;
    turns: [Ring, Inline, Polls], 4;
    nested: [Ring, Polls, Waits], 4;
}

cases! {
    "priorities":
    classes: [Ring, Inline], 136;
    lists: [Ring, Inline], 240;
    unlike: [Ring, Polls], 52;
    extending: [Inline], 18;
}

/// Which of them go to the kernel depends on who runs it.
#[test]
fn rights() {
    compared("priorities", Some("rights"), &MODES, |mode, ways| {
        assert_eq!(ways.ours() > 0, mode != "native", "mode {mode}");
    });
}

cases! {
    "children":
    children: [Inline], 0;
    killed: [Inline], 0;
    amid: [Inline], 0;
    many: [Inline], 0;
}

/// Not with io_uring from the beginning: the user has then said that the program does no such thing.
#[test]
fn ring() {
    same("behaviour", Some("ring"), &["auto", "native"], Wanted { used: &[], native: 0 });
}

/// Of what is carried out within `io_submit`; guests see the device be told of the rest (tests/guest/aio.sh).
#[test]
fn what_is_to_be_durable_is_told_to_the_kernel() {
    let scratch = scratch();
    let program = compiled("durable", &native(), scratch.path());
    let mut command = with(&program, Some("ring"));
    let (lines, ways) = Ways::of(command.arg(fresh(scratch.path())), printed);
    assert!(lines.lines().count() > 72, "{lines}");
    assert!(ways.count(Inline) == 72 && ways.native() == 0, "{} native", ways.native());
}

/// By a filter of system calls, as containers have it, altogether or in part: the program is not to notice.
fn refused(call: libc::c_long) {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let refuse = |command: &mut Command| refuse_call(command, call, errno);
        for case in ["transfers", "mixed", "polls"] {
            compared_with(refuse, "behaviour", Some(case), &["auto", "ring"], |mode, ways| {
                let (ring, native) = (ways.count(Ring), ways.native());
                assert!(ring == 0 && native > 0, "{case}, mode {mode}: {ring}, {native} native");
                let tried = ways.count(Counter::Enters) > 0;
                assert_eq!(tried, call == libc::SYS_io_uring_enter, "{case}, mode {mode}");
            });
        }
    }
}

#[test]
fn no_ring_may_be_set_up() {
    refused(libc::SYS_io_uring_setup);
}

#[test]
fn a_ring_may_be_set_up_and_not_entered() {
    refused(libc::SYS_io_uring_enter);
}

/// Nothing could be cancelled, as before Linux 6.0.
#[test]
fn a_ring_may_be_set_up_and_not_be_told_of_anything() {
    refused(libc::SYS_io_uring_register);
}

/// As sandboxes install their filters: once there is a context, and a poll in flight.
#[test]
fn polls_that_nobody_may_cancel_any_more_end_with_their_context() {
    let scratch = scratch();
    let program = compiled("filtered", &native(), scratch.path());
    for errno in [libc::EPERM, libc::ENOSYS] {
        let mut command = with(&program, Some("ring"));
        command.arg(errno.to_string()).arg(fresh(scratch.path()));
        let (_, ways) = Ways::of(&mut command, printed);
        assert!(ways.count(Ring) > 0 && ways.native() > 0, "before and after");
    }
}
