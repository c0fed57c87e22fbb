//! Scenario `multipath`: two paths to one namespace, one with 30 ms added, under each policy.
//!
//! ```text
//!   core 1: 16 jobs x 32 commands of 4 KiB, one host            core 0: our target
//!      policy --+--> port A ------------------------------+--> delay --> rate --> memory
//!               `--> port B --> 30 ms more ---------------'    (shared backend)
//! ```
//!
//! The shared backend is the bottleneck: a policy that keeps enough commands on the fast path
//! reaches its rate, one that leaves too many on the slow path does not (Little's law). What the
//! best possible split gives is computed from each path measured alone; `completion_time_of_best_split` is what
//! completion-time has of it for reads in the last window, `write_...` and `mixed_...` the same for writes and for both.
//!
//! Apart from that, `recovery_ms`: reads under completion-time while the fast path takes 200 ms more for two seconds (in a
//! quick run for one), three times.

mod best;
mod cells;
mod recovery;
mod stage;

use super::player::{Load, Mix, Player, Watch};
use super::report::{Bars, Lines, Report, Table, median};
use super::{Options, Scenario, cores};
use anyhow::Context;
use best::Best;
use cells::{Cell, Cells, WindowFigures};
use recovery::Recovery;
use serde_json::json;
use stage::Stage;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

/// Commands in flight: 16 jobs of 32. Divided by the scale.
const IN_FLIGHT: usize = 16 * 32;
/// Bytes per command.
const BYTES: u32 = 4096;
/// Commands are counted by intervals of this length.
const INTERVAL: Duration = Duration::from_millis(100);

/// Runs of which medians are worth something: cells are kept until there are as many.
const RUNS: usize = 3;

const POLICIES: [&str; 5] = ["numa", "round-robin", "queue-depth", "latency", "completion-time"];

/// What is done, with the latencies and rates that the proposal's numbers imply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// 4.6 ms on the fast path, 350 MiB/s.
    Read,
    /// 2.8 ms, 446 MiB/s.
    Write,
    /// Half of each: 4.7 ms, 350 MiB/s together.
    Mixed,
}

impl Operation {
    const ALL: [Operation; 3] = [Operation::Read, Operation::Write, Operation::Mixed];

    fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Mixed => "mixed",
        }
    }

    fn mix(self) -> Mix {
        match self {
            Operation::Read => Mix::Read,
            Operation::Write => Mix::Write,
            Operation::Mixed => Mix::Mixed,
        }
    }

    /// What stands behind both ports.
    fn volume(self, scale: u32) -> String {
        let (delay_us, rate_mib) = match self {
            Operation::Read => (4600, 350),
            Operation::Write => (2800, 446),
            Operation::Mixed => (4700, 350),
        };
        format!("delay:{delay_us}us(rate:{}K(mem:1G))", rate_mib * 1024 / scale)
    }
}

/// How much is run.
struct Plan {
    operations: Vec<Operation>,
    policies: Vec<&'static str>,
    windows: Vec<Range<Duration>>,
    runs: usize,
    /// For each path alone.
    alone: Duration,
    scale: u32,
}

impl Plan {
    fn new(options: &Options) -> Plan {
        let seconds =
            |range: Range<u64>| Duration::from_secs(range.start)..Duration::from_secs(range.end);
        let milliseconds = |range: Range<u64>| {
            Duration::from_millis(range.start)..Duration::from_millis(range.end)
        };
        let mut plan = Plan {
            operations: Operation::ALL.to_vec(),
            policies: POLICIES.to_vec(),
            windows: vec![seconds(0..20), seconds(40..60), seconds(240..300)],
            runs: options.runs as usize,
            alone: Duration::from_secs(5),
            scale: options.scale,
        };
        if options.quick {
            // Who names rows gets them.
            if options.only.is_empty() {
                plan.operations = vec![Operation::Read];
                plan.policies = vec!["queue-depth", "latency", "completion-time"];
            }
            plan.windows = vec![seconds(0..2), seconds(2..4), seconds(4..8)];
            plan.runs = 1;
            plan.alone = Duration::from_millis(1500);
        }
        if options.tiny {
            plan.windows =
                vec![milliseconds(0..200), milliseconds(200..400), milliseconds(400..1400)];
            plan.alone = Duration::from_millis(100);
        }
        plan.operations.retain(|operation| {
            plan.policies.iter().any(|policy| options.wants(&row_name(*operation, policy)))
        });
        plan
    }

    /// What cells are of that may stand side by side: the same program, times, set-up and machine.
    fn key(&self, program: &str, processor: &str, slow_address: Option<IpAddr>) -> String {
        let slow = slow_address.map_or("ours".to_owned(), |address| address.to_string());
        let Plan { windows, alone, scale, .. } = self;
        format!("{program} {windows:?} {alone:?} 1/{scale} slow by {slow} {processor}")
    }

    fn rows(&self) -> impl Iterator<Item = (Operation, &'static str)> {
        let policies = &self.policies;
        self.operations
            .iter()
            .flat_map(move |&operation| policies.iter().map(move |&policy| (operation, policy)))
    }
}

/// `read_queue_depth`
fn row_name(operation: Operation, policy: &str) -> String {
    format!("{}_{}", operation.name(), policy.replace('-', "_"))
}

/// The scenario.
pub struct Multipath;

impl Scenario for Multipath {
    fn name(&self) -> &'static str {
        "multipath"
    }

    fn about(&self) -> &'static str {
        "two paths, one 30 ms slower, under each policy; a full run takes hours and can be resumed"
    }

    fn run(&self, options: &Options) -> anyhow::Result<Report> {
        cores::require(options.server_core, options.client_core)?;
        let plan = Plan::new(options);
        let mut report = Report::new(self.name());
        let what = plan.key(&cells::program()?, &report.machine.processor, options.slow_address);
        let mut cells = Cells::open(&options.dir, &what, options.quick)?;
        let player = Player::start(options.client_core)?;
        for &operation in &plan.operations {
            if cells.best(operation.name()).is_none() {
                let stage = Stage::start(operation, options)?;
                let best = Best::measure(&stage, &player, operation, plan.alone)?;
                cells.note_best(operation.name(), best)?;
            }
        }
        // Run by run: one that is stopped early has something of everything.
        for run in 0..plan.runs {
            for (operation, policy) in plan.rows() {
                let name = row_name(operation, policy);
                if !options.wants(&name) || cells.find(&name, run).is_some() {
                    continue;
                }
                options.begin(format_args!("{name}, run {} of {}", run + 1, plan.runs))?;
                let cell = measure(operation, policy, &plan, options, &player)?;
                cells.note(&name, run, cell)?;
            }
        }
        for &operation in &plan.operations {
            let best = cells.best(operation.name()).context("it was measured")?;
            add(operation, &plan, &cells, best, &mut report);
        }
        if options.wants("recovery_ms") {
            let recovery = Recovery::measure(&player, options)?;
            add_recovery(&recovery, &mut report);
            if !recovery.recovered() && !options.quiet {
                let watched = recovery.median_ms();
                crate::stderr::line(format_args!(
                    "recovery_ms: not within {watched:.0} ms, which is all that was watched"
                ));
            }
        }
        if plan.operations.contains(&Operation::Read) {
            compare(&mut report);
        }
        // A run of some rows leaves what a run of all of them may still need.
        let complete = Operation::ALL.iter().all(|operation| {
            POLICIES.iter().all(|policy| {
                let name = row_name(*operation, policy);
                (0..plan.runs.max(RUNS)).all(|run| cells.find(&name, run).is_some())
            })
        });
        if complete || options.quick {
            cells.finished()?;
        }
        Ok(report)
    }
}

/// One policy for as long as the plan says, on paths that nobody has used before.
fn measure(
    operation: Operation,
    policy: &str,
    plan: &Plan,
    options: &Options,
    player: &Player,
) -> anyhow::Result<Cell> {
    let stage = Stage::start(operation, options)?;
    let volume = stage.open(&[stage.fast, stage.slow], policy)?;
    let load = Load { mix: operation.mix(), bytes: BYTES, in_flight: stage.in_flight, seed: 1 };
    let watch = Watch { windows: plan.windows.clone(), interval: INTERVAL };
    let played = player.play(&volume, load, &watch)?;
    let paths = volume.paths();
    let selections: u64 = paths.iter().map(|path| path.selections).sum();
    Ok(Cell {
        windows: played.windows.iter().map(WindowFigures::new).collect(),
        latencies: played.windows.iter().map(|window| cells::latencies(&window.latency)).collect(),
        series_mib_s: played
            .series
            .chunks(10)
            .map(|chunk| {
                let seconds = INTERVAL.as_secs_f64() * chunk.len() as f64;
                let ios: u64 = chunk.iter().map(|&count| u64::from(count)).sum();
                (ios as f64 * f64::from(BYTES) / f64::from(1 << 20) / seconds * 10.0).round() / 10.0
            })
            .collect(),
        shares: paths
            .iter()
            .map(|path| path.selections as f64 / selections.max(1) as f64)
            .collect(),
    })
}

/// Adds what completion-time has for reads beside `queue-depth`, and beside the best of all the others that were run.
fn compare(report: &mut Report) {
    let read = |policy: &str| {
        let name = format!("{}_mib_s", row_name(Operation::Read, policy));
        report.figures.get(&name).copied()
    };
    const OURS: &str = "completion-time";
    let Some(ours) = read(OURS) else { return };
    let depth = read("queue-depth");
    let others = POLICIES.into_iter().filter(|policy| *policy != OURS);
    let next = others.filter_map(read).max_by(f64::total_cmp);
    for (name, other) in [("queue_depth", depth), ("next_best", next)] {
        if let Some(other) = other {
            report.figure(format!("read_completion_time_over_{name}"), ours / other);
        }
    }
}

/// Adds how soon the fast path is used again.
fn add_recovery(recovery: &Recovery, report: &mut Report) {
    let ms = recovery.median_ms();
    report.figure("recovery_ms", ms);
    report.rows.push(json!({
        "operation": "recovery", "policy": "completion-time", "recovery_ms": ms,
        "recovered": recovery.recovered(), "samples": recovery.samples, "beside": "the rate before",
    }));
}

/// Name of completion-time's share of the best split; for reads it has always been this one.
fn of_best_split(operation: Operation) -> String {
    const READS: &str = "completion_time_of_best_split";
    match operation {
        Operation::Read => READS.to_owned(),
        Operation::Write | Operation::Mixed => format!("{}_{READS}", operation.name()),
    }
}

/// Adds one operation's rows, figures, table and picture.
fn add(operation: Operation, plan: &Plan, cells: &Cells, best: Best, report: &mut Report) {
    let mut table = Table {
        title: format!(
            "{}, MiB/s by window, p50 / p99 / p99.9 ms over all of them; the best possible split gives {:.0} MiB/s",
            operation.name(),
            best.mib_s
        ),
        columns: vec!["policy", "first", "second", "last", "latencies", "of best", "share of A"],
        rows: Vec::new(),
    };
    let mut bars =
        Bars { title: format!("{}: share of the best split", operation.name()), bars: Vec::new() };
    let mut lines = Lines {
        title: format!("{}: MiB/s over time", operation.name()),
        step: 1.0,
        lines: Vec::new(),
    };
    for policy in &plan.policies {
        let name = row_name(operation, policy);
        let runs: Vec<&Cell> = (0..plan.runs).filter_map(|run| cells.find(&name, run)).collect();
        if runs.is_empty() {
            continue;
        }
        let over_runs = |value: &dyn Fn(&Cell) -> f64| median(runs.iter().map(|cell| value(cell)));
        let rates: Vec<f64> =
            (0..plan.windows.len()).map(|at| over_runs(&|cell| cell.windows[at].mib_s)).collect();
        let last = plan.windows.len() - 1;
        let [p50, p99, p99_9] = cells::quantiles_us(runs.iter().flat_map(|cell| &cell.latencies));
        let by_window: Vec<[f64; 3]> = (0..plan.windows.len())
            .map(|at| cells::quantiles_us(runs.iter().map(|cell| &cell.latencies[at])))
            .collect();
        let share = over_runs(&|cell| cell.shares.first().copied().unwrap_or(f64::NAN));
        report.figure(format!("{name}_mib_s"), rates[last]);
        report.figure(format!("{name}_p99_us"), p99);
        if *policy == "completion-time" {
            report.figure(of_best_split(operation), rates[last] / best.mib_s);
        }
        report.rows.push(json!({
            "operation": operation.name(), "policy": policy, "in_flight": IN_FLIGHT / plan.scale as usize, "block_bytes": BYTES,
            "windows_s": plan.windows.iter().map(|w| [w.start.as_secs_f64(), w.end.as_secs_f64()]).collect::<Vec<_>>(),
            "mib_s": rates, "p50_us": p50, "p99_us": p99, "p99_9_us": p99_9, "p50_p99_p99_9_us_by_window": by_window,
            "share_of_fast_path": share, "best_split": best, "beside": "each path alone",
            "samples": runs.iter().map(|cell| cell.sample()).collect::<Vec<_>>(),
        }));
        table.rows.push(vec![
            (*policy).to_owned(),
            format!("{:.1}", rates[0]),
            format!("{:.1}", rates[last.min(1)]),
            format!("{:.1}", rates[last]),
            format!("{:.1} / {:.1} / {:.1}", p50 / 1e3, p99 / 1e3, p99_9 / 1e3),
            format!("{:.2}", rates[last] / best.mib_s),
            format!("{share:.2}"),
        ]);
        bars.bars.push((
            (*policy).to_owned(),
            rates[last] / best.mib_s,
            format!("{:.0} MiB/s", rates[last]),
        ));
        lines.lines.push(((*policy).to_owned(), middle_run(&runs, last).series_mib_s.clone()));
    }
    report.tables.push(table);
    report.bars.push(bars);
    report.lines.push(lines);
}

/// The run whose rate in the window `at` is the middle one; of an even number the slower of the two.
fn middle_run<'a>(runs: &[&'a Cell], at: usize) -> &'a Cell {
    let mut runs = runs.to_vec();
    runs.sort_by(|a, b| a.windows[at].mib_s.total_cmp(&b.windows[at].mib_s));
    runs[(runs.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::recovery::Sample;
    use super::*;

    const WINDOW: Range<Duration> = Duration::ZERO..Duration::from_secs(1);

    fn plan() -> Plan {
        Plan {
            operations: vec![Operation::Read],
            policies: vec!["queue-depth"],
            windows: vec![WINDOW; 2],
            runs: 3,
            alone: WINDOW.end,
            scale: 1,
        }
    }

    /// A run of two windows: the first with `slow_ms`, the last, of as many commands, with 1 ms and this rate.
    fn cell(slow_ms: u64, mib_s: f64) -> Cell {
        let window = |mib_s| WindowFigures {
            mib_s,
            p50_us: 0.0,
            p99_us: 0.0,
            p99_9_us: 0.0,
            host_cpu_us: 1.0,
        };
        Cell {
            windows: vec![window(1.0), window(mib_s)],
            latencies: vec![vec![(slow_ms * 1_000_000, 100)], vec![(1_000_000, 100)]],
            series_mib_s: vec![mib_s; 2],
            shares: vec![0.75, 0.25],
        }
    }

    #[test]
    fn cells_of_another_set_up_are_not_taken_for_these() {
        let key = |plan: &Plan, slow: Option<IpAddr>| plan.key("program", "processor", slow);
        let netem: Option<IpAddr> = Some([127, 0, 0, 2].into());
        let keys = [
            key(&plan(), None),
            key(&plan(), netem),
            key(&Plan { scale: 10, ..plan() }, None),
            key(&Plan { windows: vec![WINDOW], ..plan() }, None),
            key(&Plan { alone: WINDOW.end * 2, ..plan() }, None),
            plan().key("another", "processor", None),
            plan().key("program", "another", None),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert!(!keys[at + 1..].contains(one), "{one}");
        }
        assert_eq!(key(&plan(), netem), key(&Plan { runs: 5, ..plan() }, netem));
    }

    #[test]
    fn latencies_are_of_all_windows_and_what_is_drawn_is_the_middle_run() {
        let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
        let mut cells = Cells::open(dir.path(), "test", false).unwrap();
        for (run, cell) in [cell(20, 30.0), cell(40, 10.0), cell(60, 20.0)].into_iter().enumerate()
        {
            cells.note("read_queue_depth", run, cell).unwrap();
        }
        let best = Best { latency_us: [1.0; 2], alone_mib_s: [40.0; 2], mib_s: 40.0 };
        let mut report = Report::new("multipath");
        add(Operation::Read, &plan, &cells, best, &mut report);
        assert_eq!(report.lines[0].lines, [("queue-depth".to_owned(), vec![20.0; 2])]);
        assert_eq!(report.figures["read_queue_depth_mib_s"], 20.0);
        let row = &report.rows[0];
        let near = |value: &serde_json::Value, us: f64| {
            assert!((value.as_f64().unwrap() / us - 1.0).abs() < 0.02, "{value} is not {us}");
        };
        // Half of 600 commands took 1 ms, a sixth each 20, 40 and 60.
        near(&row["p50_us"], 1000.0);
        near(&row["p99_us"], 60_000.0);
        assert!((report.figures["read_queue_depth_p99_us"] / 60_000.0 - 1.0).abs() < 0.02);
        let by_window = &row["p50_p99_p99_9_us_by_window"];
        near(&by_window[0][0], 40_000.0);
        near(&by_window[1][2], 1000.0);
        let shown = &report.tables[0].rows[0][4];
        assert!(shown.starts_with("1.0 / 60"), "{shown}");
        assert_eq!(row["samples"].as_array().unwrap().len(), 3);
        assert!(row["samples"][0].get("latencies").is_none());
    }

    #[test]
    fn completion_time_has_a_share_of_the_best_split_for_every_operation() {
        let dir = tempfile::tempdir().unwrap();
        let mut cells = Cells::open(dir.path(), "test", false).unwrap();
        let plan = Plan { policies: vec!["queue-depth", "completion-time"], ..plan() };
        let mut report = Report::new("multipath");
        let rates = [(Operation::Read, 38.0), (Operation::Write, 36.0), (Operation::Mixed, 30.0)];
        for (operation, mib_s) in rates {
            for (policy, mib_s) in [("queue-depth", 10.0), ("completion-time", mib_s)] {
                let name = row_name(operation, policy);
                // The middle one of three counts.
                for (run, mib_s) in [mib_s, 1.0, 1000.0].into_iter().enumerate() {
                    cells.note(&name, run, cell(1, mib_s)).unwrap();
                }
            }
            let best = Best { latency_us: [1.0; 2], alone_mib_s: [40.0; 2], mib_s: 40.0 };
            add(operation, &plan, &cells, best, &mut report);
        }
        let shares = report.figures.iter().filter(|(name, _)| name.contains("best_split"));
        let shares: Vec<(&str, f64)> =
            shares.map(|(name, share)| (name.as_str(), *share)).collect();
        let expected = [
            ("completion_time_of_best_split", 0.95),
            ("mixed_completion_time_of_best_split", 0.75),
            ("write_completion_time_of_best_split", 0.9),
        ];
        assert_eq!(shares, expected);
    }

    #[test]
    fn completion_time_is_compared_with_the_best_of_the_others_that_were_run() {
        let of = |rates: &[(&str, f64)]| {
            let mut report = Report::new("multipath");
            for (policy, mib_s) in rates {
                report.figure(format!("read_{policy}_mib_s"), *mib_s);
            }
            compare(&mut report);
            let figures = report.figures.into_iter();
            figures.filter(|(name, _)| name.contains("_over_")).collect::<Vec<_>>()
        };
        let (depth, next) =
            ("read_completion_time_over_queue_depth", "read_completion_time_over_next_best");
        let rates = [("queue_depth", 10.0), ("latency", 40.0), ("numa", 20.0)];
        let all = [&rates[..], &[("completion_time", 30.0)]].concat();
        assert_eq!(of(&all), [(next.to_owned(), 0.75), (depth.to_owned(), 3.0)]);
        assert_eq!(of(&all[2..]), [(next.to_owned(), 1.5)]);
        assert_eq!(of(&all[3..]), []);
        assert_eq!(of(&rates), []);
    }

    #[test]
    fn of_three_recoveries_the_middle_one_is_the_figure() {
        let sample = |ms, recovered| Sample { ms, recovered };
        let samples = vec![sample(310.0, true), sample(4000.0, false), sample(350.0, true)];
        let mut report = Report::new("multipath");
        add_recovery(&Recovery { samples }, &mut report);
        assert_eq!(report.figures, [("recovery_ms".to_owned(), 350.0)].into());
        let row = &report.rows[0];
        assert_eq!((&row["recovery_ms"], &row["recovered"]), (&json!(350.0), &json!(true)));
        assert_eq!(row["samples"][1], json!({"ms": 4000.0, "recovered": false}));
    }

    #[test]
    fn of_two_runs_the_slower_is_drawn() {
        let (slow, fast) = (cell(1, 10.0), cell(1, 20.0));
        assert_eq!(middle_run(&[&fast, &slow], 1).series_mib_s[0], 10.0);
    }

    #[test]
    fn a_full_run_is_every_operation_under_every_policy_three_times() {
        let options = Options::of(&["multipath"]);
        let plan = Plan::new(&options);
        let rows: Vec<String> =
            plan.rows().map(|(operation, policy)| row_name(operation, policy)).collect();
        let expected = [
            "read_numa",
            "read_round_robin",
            "read_queue_depth",
            "read_latency",
            "read_completion_time",
            "write_numa",
            "write_round_robin",
            "write_queue_depth",
            "write_latency",
            "write_completion_time",
            "mixed_numa",
            "mixed_round_robin",
            "mixed_queue_depth",
            "mixed_latency",
            "mixed_completion_time",
        ];
        assert_eq!(rows, expected);
        let windows: Vec<[f64; 2]> = plan
            .windows
            .iter()
            .map(|window| [window.start.as_secs_f64(), window.end.as_secs_f64()])
            .collect();
        assert_eq!(windows, [[0.0, 20.0], [40.0, 60.0], [240.0, 300.0]]);
        assert_eq!((plan.runs, plan.scale, plan.alone.as_secs()), (3, 1, 5));
        assert_eq!((IN_FLIGHT, BYTES), (512, 4096));
        assert_eq!(Plan::new(&Options::of(&["multipath", "--runs", "5"])).runs, 5);
    }

    #[test]
    fn of_a_full_run_only_those_operations_are_measured_that_are_asked_for() {
        let options = Options::of(&["multipath", "--only", "write_latency,mixed"]);
        assert_eq!(Plan::new(&options).operations, [Operation::Write, Operation::Mixed]);
        // A quick run of all is reads under three policies; who names others gets them.
        let plan = Plan::new(&Options::of(&["multipath", "--quick"]));
        assert_eq!((plan.operations, plan.policies.len()), (vec![Operation::Read], 3));
        let plan = Plan::new(&Options::of(&["multipath", "--quick", "--only", "write_numa"]));
        assert_eq!((plan.operations, plan.policies.len()), (vec![Operation::Write], 5));
    }

    #[test]
    fn what_stands_behind_both_ports_is_as_slow_as_the_proposals_numbers_say() {
        let volumes = Operation::ALL.map(|operation| operation.volume(1));
        let expected = [
            "delay:4600us(rate:358400K(mem:1G))",
            "delay:2800us(rate:456704K(mem:1G))",
            "delay:4700us(rate:358400K(mem:1G))",
        ];
        assert_eq!(volumes, expected);
        // A smaller set-up has a slower backend, and the same latencies.
        assert_eq!(Operation::Write.volume(32), "delay:2800us(rate:14272K(mem:1G))");
        assert_eq!(Operation::ALL.map(Operation::mix), [Mix::Read, Mix::Write, Mix::Mixed]);
    }

    #[test]
    fn names_are_those_of_the_figures() {
        assert_eq!(row_name(Operation::Read, "completion-time"), "read_completion_time");
        assert_eq!(row_name(Operation::Mixed, "numa"), "mixed_numa");
    }
}
