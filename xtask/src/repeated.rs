//! Tests that the full run does more of than the everyday one, which has them among the unit tests.

use anyhow::{Result, ensure};

use crate::lanes::{Count, Output};
use crate::process::cargo;

/// A test to which a variable says how often it is done, or that nothing is left out.
pub struct Repeated {
    pub name: &'static str,
    package: &'static str,
    /// The program of tests that it is in.
    program: &'static str,
    /// Its name, or a part of the names of several.
    filter: &'static str,
    variable: &'static str,
    value: &'static str,
}

const fn test(
    name: &'static str,
    [package, program, filter]: [&'static str; 3],
    [variable, value]: [&'static str; 2],
) -> Repeated {
    Repeated { name, package, program, filter, variable, value }
}

/// All of them.
pub const TESTS: [Repeated; 7] = [
    test(
        "copies/model",
        ["namespace", "copy", "copies_leave_what_the_model_says"],
        ["COPY_OPERATIONS", "10000000"],
    ),
    test(
        "copies/remote",
        ["host", "copy_model", "copies_of_remote_volumes_leave_what_the_model_says"],
        ["REMOTE_COPY_OPERATIONS", "100000"],
    ),
    test("copies/kills", ["nvlane", "it", "a_kill_at_any_moment_loses_nothing"], KILLS),
    test("copies/ends", ["nvlane", "it", "kills_of_targets_and_of_hosts_lose_nothing"], KILLS),
    test(
        "copies/files",
        ["nvlane", "it", "kills_amid_copies_from_file_to_file_lose_nothing"],
        KILLS,
    ),
    test("copies/caches", ["nvlane", "it", "cut_at_any_moment_two_caches_lose_nothing"], KILLS),
    test(
        "bpf/fresh",
        ["bpf", "fresh", "committed_objects_are_what_clang_makes_of_their_sources"],
        ["NVLANE_INSISTS_ON_CLANG", "1"],
    ),
];

const KILLS: [&str; 2] = ["NVLANE_COPY_KILLS", "50"];

impl Repeated {
    /// Runs it; random copies start from `seed`.
    pub fn run(&self, seed: u64, output: &mut Output) -> Result<Count> {
        let Repeated { package, program, filter, .. } = *self;
        let mut command = cargo()?;
        command.args(["test", "--release", "--locked", "-p", package, "--test", program, filter]);
        command.env(self.variable, self.value).env("COPY_SEED", seed.to_string());
        let count = output.counted(&mut command)?;
        ensure!(count.passed + count.failed > 0, "no test is called {filter}");
        Ok(count)
    }
}
