//! Scenario `links`: paths over links of different and changing speed, in a network namespace.
//!
//! ```text
//!   core 1: one host, all five policies in turn           core 0: our target, mem:1G
//!      path 0 ==== tbf ====.
//!      path 1 ==== tbf ====+===  a port each
//!      ...                 |
//! ```
//!
//! The links are the bottleneck, and they are independent: the best possible is the sum of what
//! each path gives alone with the same commands, those of two sizes together where a case has two. Every case says what
//! happens to path 0 on the way (a spike, a link taken down, a
//! target that is killed, a link that swallows everything) and how long it takes until that path has nine tenths of
//! its share of the commands again, which rate there was meanwhile, as a share of what the other paths give alone, and which
//! from then on. Where a target is killed, each link has a process of its own; all serve one
//! file, which is a single hole.
//!
//! A full run takes a quarter of an hour: each path of a case is measured alone twice, for two seconds, before all
//! policies, and again where it has less than nine tenths of its link (up to six times, which costs two seconds each); then
//! each policy has five seconds, twelve where something happens, 15 with commands of two sizes.

mod case;
mod outcome;
mod stage;

use super::player::Player;
use super::report::{Bars, Report, Table};
use super::{Options, Scenario, cores};
use case::{CASES, Case};
use outcome::{OfSize, Outcome};
use serde_json::json;

/// Under which policies; a quick run has the last only.
const POLICIES: [&str; 5] = ["numa", "round-robin", "latency", "queue-depth", "completion-time"];

/// The scenario.
pub struct Links;

impl Scenario for Links {
    fn name(&self) -> &'static str {
        "links"
    }

    fn about(&self) -> &'static str {
        "multipath over links of unequal and changing speed, in a network namespace; as root"
    }

    fn run(&self, options: &Options) -> anyhow::Result<Report> {
        cores::require(options.server_core, options.client_core)?;
        let player = Player::start(options.client_core)?;
        let mut report = form();
        for case in CASES {
            let policies: Vec<&str> =
                POLICIES.into_iter().filter(|policy| is_asked_for(case, policy, options)).collect();
            if policies.is_empty() {
                continue;
            }
            options.begin(format_args!("{}, each path alone: {}", case.name, case.about))?;
            let alone_mib_s = case::alone(case, &player, options)?;
            for policy in policies {
                options.begin(format_args!("{}: {}", row_name(case, policy), case.about))?;
                let seen = case::run(case, policy, &player, options)?;
                add(case, policy, &Outcome::new(&alone_mib_s, &seen), &mut report);
            }
        }
        Ok(report)
    }
}

/// `spike_queue_depth`
fn row_name(case: &Case, policy: &str) -> String {
    format!("{}_{}", case.name, policy.replace('-', "_"))
}

fn is_asked_for(case: &Case, policy: &str, options: &Options) -> bool {
    let is_quick = case.quick && policy == POLICIES[POLICIES.len() - 1];
    (is_quick || !options.quick) && options.wants(&row_name(case, policy))
}

/// The report with its table and its bars, without rows.
fn form() -> Report {
    let mut report = Report::new(Links.name());
    let columns = vec![
        "case",
        "policy",
        "MiB/s",
        "of best",
        "meanwhile",
        "after",
        "4 KiB, ms",
        "1 MiB, ms",
        "longest stall",
        "recovered after",
    ];
    report.tables.push(Table {
        title: "links (MiB/s; the best possible is the sum of the paths alone with the same commands; p50 / p99 / p99.9)"
            .into(),
        columns,
        rows: Vec::new(),
    });
    report.bars.push(Bars { title: "share of the best possible".into(), bars: Vec::new() });
    report
}

/// Adds what came of a case under one policy: figures, a row, and one of the table and of the bars.
fn add(case: &Case, policy: &str, outcome: &Outcome, report: &mut Report) {
    let name = row_name(case, policy);
    figures(&name, outcome, report);
    let recovered = match (outcome.recovery_ms, outcome.recovered) {
        (None, _) => "-".to_owned(),
        (Some(ms), true) => format!("{ms:.0} ms"),
        (Some(ms), false) => format!("over {ms:.0} ms"),
    };
    let fault = outcome.fault_of_best();
    let share = |which: usize| fault.map_or("-".into(), |of| format!("{:.2}", of[which]));
    report.tables[0].rows.push(vec![
        case.name.to_owned(),
        policy.to_owned(),
        format!("{:.1}", outcome.mib_s),
        format!("{:.2}", outcome.of_best()),
        share(0),
        share(1),
        latencies_ms(&outcome.small),
        outcome.large.as_ref().map_or("-".into(), latencies_ms),
        format!("{:.0} ms", outcome.stall_ms),
        recovered,
    ]);
    let rate = format!("{:.0} MiB/s", outcome.mib_s);
    report.bars[0].bars.push((name, outcome.of_best(), rate));
    report.rows.push(json!({
        "case": case.name, "about": case.about, "policy": policy, "beside": "each path alone, the same commands",
        "best_mib_s": outcome.best_mib_s(), "of_best": outcome.of_best(), "samples": outcome,
    }));
}

fn figures(name: &str, outcome: &Outcome, report: &mut Report) {
    report.figure(format!("{name}_mib_s"), outcome.mib_s);
    report.figure(format!("{name}_of_best"), outcome.of_best());
    if let Some([during, after]) = outcome.fault_of_best() {
        report.figure(format!("{name}_meanwhile_of_others"), during);
        report.figure(format!("{name}_after_of_best"), after);
    }
    report.figure(format!("{name}_p99_9_us"), outcome.small.p99_9_us);
    if let Some(large) = &outcome.large {
        report.figure(format!("{name}_1m_p50_us"), large.p50_us);
        report.figure(format!("{name}_1m_p99_us"), large.p99_us);
        report.figure(format!("{name}_1m_p99_9_us"), large.p99_9_us);
    }
    report.figure(format!("{name}_stall_ms"), outcome.stall_ms);
    if let Some(recovery) = outcome.recovery_ms {
        report.figure(format!("{name}_recovery_ms"), recovery);
    }
}

/// `6.10 / 7.92 / 12.31`
fn latencies_ms(of: &OfSize) -> String {
    format!("{:.2} / {:.2} / {:.2}", of.p50_us / 1e3, of.p99_us / 1e3, of.p99_9_us / 1e3)
}

#[cfg(test)]
mod tests;
