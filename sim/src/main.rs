//! `sim`: scenarios of path selection on virtual time. See docs/simulation.md.

use anyhow::{Result, bail};
use clap::Parser;
use multipath::{Policy, Settings};
use sim::failover::Breach;
use sim::model::Scenario;
use sim::{report, run_with, scenarios};
use std::ops::Range;

/// Simulates how policies choose among the paths to a namespace.
///
/// For each scenario: throughput, its share of the best possible, latencies, how much the paths'
/// shares swing over 100 ms (at worst, as a part of their mean), and the shares.
#[derive(Parser)]
#[command(after_help = "Examples:
  sim --list                                  what there is
  sim kill --policy completion-time           one scenario, one policy
  sim herd-open --seed 7                      from another seed
  sim --json > results.json                   everything, for programs
  sim --failover 1000                         paths that die, from a thousand seeds
  sim --failover 1 --seed 123                 one of them again
  sim proposal-read --latency-batch-ms 1000   another latency_batch_timeout")]
struct Cli {
    /// The scenarios; all of them if none is named
    scenarios: Vec<String>,
    /// What everything depends on: the same seed gives the same result
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this policy: numa, round-robin, queue-depth, latency, completion-time
    #[arg(long, value_parser = policy)]
    policy: Option<Policy>,
    /// latency_ewma_shift, 0 to 8
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=8))]
    latency_ewma_shift: u8,
    /// latency_batch_timeout; by default 15 s for latency, 1 ms for completion-time
    #[arg(long)]
    latency_batch_ms: Option<u64>,
    /// Print JSON, an object per scenario and policy
    #[arg(long)]
    json: bool,
    /// Instead of scenarios: failover with random faults from so many seeds, beginning with
    /// --seed; what must not happen is printed, and is an error
    #[arg(long, value_name = "SEEDS", conflicts_with_all = ["scenarios", "json", "list"])]
    failover: Option<u64>,
    /// List the scenarios
    #[arg(long)]
    list: bool,
}

fn policy(text: &str) -> Result<Policy, multipath::UnknownPolicy> {
    text.parse()
}

fn failover(seeds: Range<u64>) -> Result<()> {
    let mut failed = 0;
    let (mut completed, mut retries, mut held) = (0, 0, 0);
    // The longest waits, and of which seeds they were.
    let (mut stall, mut spare_stall) = ((0, 0), (0, 0));
    for seed in seeds {
        let report = sim::failover::run(seed, Breach::None);
        for what in &report.violations {
            println!("seed {seed}: {what}");
        }
        failed += u64::from(!report.violations.is_empty());
        completed += report.completed;
        retries += report.retries;
        held += report.held;
        stall = stall.max((report.stall_ms, seed));
        if report.faulty == 1 && report.paths > 1 {
            spare_stall = spare_stall.max((report.stall_ms, seed));
        }
    }
    println!("{completed} commands, {retries} sent again, {held} writes held back");
    let ((ms, seed), (spare_ms, spare_seed)) = (stall, spare_stall);
    println!("the longest wait: {ms} ms (seed {seed})");
    println!("where one of two paths had no faults: {spare_ms} ms (seed {spare_seed})");
    if failed > 0 {
        bail!("{failed} seeds broke a rule; --failover 1 --seed N replays one");
    }
    Ok(())
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let all = scenarios::all();
    if cli.list {
        all.iter().for_each(|scenario| println!("{:<20} {}", scenario.name, scenario.about));
        return Ok(());
    }
    if let Some(seeds) = cli.failover {
        return failover(cli.seed..cli.seed + seeds);
    }
    for name in &cli.scenarios {
        if !all.iter().any(|scenario| scenario.name == name) {
            bail!("there is no scenario {name}; --list names them");
        }
    }
    let wanted = |scenario: &&Scenario| {
        cli.scenarios.is_empty() || cli.scenarios.iter().any(|name| name == scenario.name)
    };
    for scenario in all.iter().filter(wanted) {
        let policies =
            Policy::ALL.into_iter().filter(|it| cli.policy.is_none_or(|only| only == *it));
        let results: Vec<_> = policies
            .map(|policy| {
                let settings = Settings {
                    policy,
                    latency_ewma_shift: cli.latency_ewma_shift,
                    latency_batch_timeout_ns: cli.latency_batch_ms.map(|ms| ms * 1_000_000),
                    ..Settings::default()
                };
                run_with(scenario, settings, cli.seed)
            })
            .collect();
        if cli.json {
            for results in &results {
                println!("{}", serde_json::to_string(results)?);
            }
        } else {
            println!("{}", report::table(scenario, &results));
        }
    }
    Ok(())
}
