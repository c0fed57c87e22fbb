//! Nothing is left of contexts that are gone, and no memory is touched that is not there.

use super::*;

/// Rounds of contexts made, used and destroyed.
const ROUNDS: &str = "100";
/// The same of a context for each set of flags.
const ROUNDS_OF_SETS: &str = "5";
/// The first under valgrind, which is slow.
const ROUNDS_WATCHED: &str = "6";
/// Bytes that may come and go: what the C library keeps of threads.
const SLACK: u64 = 4096;

fn counts_stay(mode: &str, arguments: &[&str], change: impl Fn(&mut Command)) -> Ways {
    let scratch = scratch();
    let program = compiled("leaks", &native(), scratch.path());
    let mut command = with(&program, Some(mode));
    let command = command.args(arguments).arg(fresh(scratch.path()));
    change(command);
    let (lines, ways) = Ways::of(command, printed);
    for line in lines.lines().filter(|line| line.starts_with("not checked: ")) {
        println!("{line}");
    }
    let counts = |name: &str| {
        let line = lines.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        let numbers: Vec<u64> = line.split_whitespace().map(|n| n.parse().expect(n)).collect();
        (numbers[0], numbers[1])
    };
    for name in ["descriptors", "mappings", "pages"] {
        let (early, late) = counts(name);
        assert!(early > 0 && early == late, "{name}, mode {mode}: {early}, then {late}");
    }
    let (early, late) = counts("allocated");
    assert!(early > 0 && late <= early + SLACK, "mode {mode}: {early} bytes, then {late}");
    ways
}

/// `io_setup2` goes by io_uring in every mode.
fn all_kinds_leave_nothing(mode: &str) {
    assert!(counts_stay(mode, &[ROUNDS], |_| {}).count(Counter::Ring) > 1000);
}

#[test]
fn contexts_by_io_uring_leave_nothing() {
    all_kinds_leave_nothing("ring");
}

#[test]
fn contexts_of_both_kinds_leave_nothing() {
    all_kinds_leave_nothing("auto");
}

/// Of each set of flags that go together, whatever is pinned and whoever submits; the kernel's threads end as well.
#[test]
fn contexts_of_every_set_of_flags_leave_nothing() {
    let ways = counts_stay("auto", &["sets", ROUNDS_OF_SETS], |_| {});
    assert!(ways.count(Counter::Ring) > 1000, "{} by io_uring", ways.count(Counter::Ring));
}

/// A ring that turns out to be of no use is not closed, as that would interrupt the program's waits: there is one of them.
#[test]
fn contexts_whose_ring_may_not_be_entered_leave_no_more() {
    let refuse = |command: &mut Command| {
        refuse_call(command, libc::SYS_io_uring_enter, libc::EPERM);
    };
    let ways = counts_stay("ring", &["usual", ROUNDS], refuse);
    assert!(ways.ours() == 0 && ways.native() > 1000, "{}, {}", ways.ours(), ways.native());
}

/// Valgrind knows io_uring's calls, but not that buffers have been read into: what is in memory is not asked
/// here, only whether it is there.
#[test]
fn valgrind_sees_no_invalid_access_and_no_leak() {
    let scratch = scratch();
    let program = compiled("leaks", &native(), scratch.path());
    let mut command = Command::new("timeout");
    command.args([
        "-k",
        "1",
        "240",
        "valgrind",
        "--quiet",
        "--error-exitcode=9",
        "--fair-sched=yes",
    ]);
    command.args(["--undef-value-errors=no", "--leak-check=full"]);
    command.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
    command.env_remove("LD_PRELOAD").env("LD_LIBRARY_PATH", folder()).env("NVLANE_AIO", "auto");
    let command = command.arg(&program).arg(ROUNDS_WATCHED).arg(fresh(scratch.path()));
    let (_, ways) = Ways::of(command, printed);
    assert!(ways.count(Counter::Ring) > 100 && ways.native() > 0);
}
