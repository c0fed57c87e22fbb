//! What `nvlane bench` has to show in an exact guest, where figures repeat themselves: what makes passthrough or AIO
//! slower does not get past the full run.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::lanes::{Count, Output};

/// Seconds that a guest may take, beside other steps.
const TIME_MAX_S: &str = "3600";

/// As `nvlane bench` has its own guests: without "enhanced" rep movsb, which an emulator takes byte by byte.
const PROCESSOR: &str = "max,-erms,-fsrm";

/// A figure by depth, each with the least that it may be.
type Floors = (&'static str, &'static [(u32, f64)]);

/// A scenario, the words of the rows that are wanted, and its floors.
struct Bench {
    scenario: &'static str,
    only: &'static str,
    floors: &'static [Floors],
}

/// What was asked for where that is met (a hundredth less where by no more than that), elsewhere what was measured, less 3 %;
/// at depth 1 of passthrough, where windows differ by as much again, more.
const BENCHES: [Bench; 2] = [
    Bench {
        scenario: "passthrough",
        only: "loop_library,loop_block_fixed_file,loop_fio,loop_200us_library_qd64,loop_200us_sync_qd64",
        floors: &[
            (
                "uring_cmd_over_fio",
                &[
                    (1, 0.94),
                    (2, 1.0),
                    (4, 1.0),
                    (8, 1.0),
                    (16, 1.0),
                    (32, 1.0),
                    (64, 1.0),
                    (128, 1.0),
                ],
            ),
            (
                "uring_cmd_over_block",
                &[
                    (1, 0.9),
                    (2, 0.94),
                    (4, 0.98),
                    (8, 1.0),
                    (16, 1.0),
                    (32, 1.0),
                    (64, 1.0),
                    (128, 1.0),
                ],
            ),
            ("async_over_sync", &[(64, 10.0)]),
        ],
    },
    Bench {
        scenario: "aio",
        only: "direct",
        floors: &[
            (
                "dropin_over_aio_direct",
                &[(1, 0.96), (2, 0.93), (4, 0.97), (8, 0.97), (16, 0.97), (32, 0.96), (64, 0.96)],
            ),
            (
                "io_setup2_over_aio",
                &[(1, 1.13), (2, 1.18), (4, 1.26), (8, 1.32), (16, 1.35), (32, 1.27), (64, 1.27)],
            ),
            (
                "io_setup2_rings_over_aio",
                &[(1, 1.19), (2, 1.22), (4, 1.29), (8, 1.36), (16, 1.38), (32, 1.3), (64, 1.3)],
            ),
        ],
    },
];

/// Measures with that nvlane, and counts the figures that are what they have to be.
pub fn check(program: &Path, output: &mut Output) -> Result<Count> {
    let mut count = Count::NONE;
    for bench in &BENCHES {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["guest", "--exact", "--timeout", TIME_MAX_S]);
        command.args(["--qemu=-cpu", &format!("--qemu={PROCESSOR}")]);
        if let Ok(path) = std::env::var("PATH") {
            command.arg(format!("--env=PATH={path}"));
        }
        command.arg("--").arg(program).args(["bench", bench.scenario, "--quick", "--json"]);
        command.args(["--only", bench.only]).env("NVLANE_BENCH_IN_GUEST", "1");
        let said = output.captured(&mut command)?;
        let report = said.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let report = report.with_context(|| format!("bench {} has no report", bench.scenario))?;
        for floor in bench.floors {
            for (line, is_met) in against(&report["figures"], floor) {
                output.say(&line);
                let one = if is_met { &mut count.passed } else { &mut count.failed };
                *one += 1;
                if !is_met {
                    output.blame(&line);
                }
            }
        }
    }
    Ok(count)
}

/// Each figure beside its floor, in words, and whether it is above. One that is not there is not.
fn against(figures: &Value, (name, floors): &Floors) -> Vec<(String, bool)> {
    let beside = |&(depth, floor): &(u32, f64)| {
        let name = format!("{name}_qd{depth}");
        match figures[&name].as_f64() {
            Some(figure) => (format!("{name}: {figure:.3}, at least {floor}"), figure >= floor),
            None => (format!("{name} is missing, at least {floor}"), false),
        }
    };
    floors.iter().map(beside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_below_its_floor_or_missing_is_told() {
        let figures = json!({ "a_qd1": 0.97, "a_qd2": 0.969, "a_qd8": 1.5, "a_qd16": null });
        let floors: Floors = ("a", &[(1, 0.97), (2, 0.97), (4, 0.97), (8, 1.0), (16, 1.0)]);
        let met: Vec<bool> = against(&figures, &floors).into_iter().map(|(_, met)| met).collect();
        assert_eq!(met, [true, false, false, true, false]);
        let (line, _) = against(&figures, &floors).remove(2);
        assert_eq!(line, "a_qd4 is missing, at least 0.97");
    }
}
