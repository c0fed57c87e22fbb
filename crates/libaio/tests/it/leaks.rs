//! Nothing is left of contexts that are gone, and no memory is touched that is not there.

use super::*;

/// Rounds of contexts made, used and destroyed.
const ROUNDS: &str = "100";
/// The same under valgrind, which is slow.
const ROUNDS_WATCHED: &str = "6";
/// Bytes that may come and go: what the C library keeps of threads.
const SLACK: u64 = 4096;

fn counts_stay(mode: &str) {
    let scratch = scratch();
    let program = compiled("leaks", &native(), scratch.path());
    let mut command = with(&program, Some(mode));
    let command = command.arg(ROUNDS).arg(fresh(scratch.path()));
    let (lines, ways) = Ways::of(command, printed);
    assert!(ways.count(Counter::Ring) > 1000, "io_setup2 goes by io_uring in every mode");
    let counts = |name: &str| {
        let line = lines.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        let numbers: Vec<u64> = line.split_whitespace().map(|n| n.parse().expect(n)).collect();
        (numbers[0], numbers[1])
    };
    for name in ["descriptors", "mappings"] {
        let (early, late) = counts(name);
        assert!(early > 0 && early == late, "{name}, mode {mode}: {early}, then {late}");
    }
    let (early, late) = counts("allocated");
    assert!(early > 0 && late <= early + SLACK, "mode {mode}: {early} bytes, then {late}");
}

#[test]
fn contexts_by_io_uring_leave_nothing() {
    counts_stay("ring");
}

#[test]
fn contexts_of_both_kinds_leave_nothing() {
    counts_stay("auto");
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
