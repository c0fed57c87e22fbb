//! Scenario `links`: paths over links of different and changing speed, in a network namespace.
//!
//! ```text
//!   core 1: one host, completion-time or queue-depth      core 0: our target, mem:1G
//!      path 0 ==== tbf ====.
//!      path 1 ==== tbf ====+===  a port each
//!      ...                 |
//! ```
//!
//! The links are the bottleneck, and they are independent: the best possible is the sum of what
//! each path gives alone. Every case says what happens to path 0 on the way (a spike, a link taken down, a
//! target that is killed, a link that swallows everything) and how long it takes until that path has nine tenths of
//! its share of the commands again, which rate there was meanwhile, as a share of what the other paths give alone, and which
//! from then on. Where a target is killed, each link has a process of its own; all serve one
//! file, which is a single hole.

mod case;
mod stage;

use super::player::Player;
use super::report::{Bars, Report, Table};
use super::{Options, Scenario, cores};
use case::{CASES, Outcome};
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
        let mut report = Report::new(self.name());
        let mut table = Table {
            title: "links (MiB/s; the best possible is the sum of the paths alone)".into(),
            columns: vec![
                "case",
                "policy",
                "MiB/s",
                "of best",
                "meanwhile",
                "after",
                "p50 ms",
                "p99.9",
                "longest stall",
                "recovered after",
            ],
            rows: Vec::new(),
        };
        let mut bars = Bars { title: "share of the best possible".into(), bars: Vec::new() };
        for case in CASES {
            let policies = POLICIES
                .into_iter()
                .filter(|policy| !options.quick || *policy == "completion-time");
            for policy in policies {
                let name = format!("{}_{}", case.name, policy.replace('-', "_"));
                if !options.wants(&name) || options.quick && !case.quick {
                    continue;
                }
                if !options.quiet {
                    eprintln!("{name}: {}", case.about);
                }
                let outcome = case::run(case, policy, &player, options)?;
                let recovered = match (outcome.recovery_ms, outcome.recovered) {
                    (None, _) => "-".to_owned(),
                    (Some(ms), true) => format!("{ms:.0} ms"),
                    (Some(ms), false) => format!("over {ms:.0} ms"),
                };
                let fault = outcome.fault_of_best();
                let shown =
                    |which: usize| fault.map_or("-".into(), |of| format!("{:.2}", of[which]));
                table.rows.push(vec![
                    case.name.to_owned(),
                    policy.to_owned(),
                    format!("{:.1}", outcome.mib_s),
                    format!("{:.2}", outcome.of_best()),
                    shown(0),
                    shown(1),
                    format!("{:.2}", outcome.p50_us / 1e3),
                    format!("{:.2}", outcome.p99_9_us / 1e3),
                    format!("{:.0} ms", outcome.stall_ms),
                    recovered,
                ]);
                bars.bars.push((
                    name.clone(),
                    outcome.of_best(),
                    format!("{:.0} MiB/s", outcome.mib_s),
                ));
                add(&name, case.about, policy, &outcome, &mut report);
            }
        }
        report.tables.push(table);
        report.bars.push(bars);
        Ok(report)
    }
}

fn add(name: &str, about: &str, policy: &str, outcome: &Outcome, report: &mut Report) {
    report.figure(format!("{name}_mib_s"), outcome.mib_s);
    report.figure(format!("{name}_of_best"), outcome.of_best());
    if let Some([during, after]) = outcome.fault_of_best() {
        report.figure(format!("{name}_meanwhile_of_others"), during);
        report.figure(format!("{name}_after_of_best"), after);
    }
    report.figure(format!("{name}_p99_9_us"), outcome.p99_9_us);
    report.figure(format!("{name}_stall_ms"), outcome.stall_ms);
    if let Some(recovery) = outcome.recovery_ms {
        report.figure(format!("{name}_recovery_ms"), recovery);
    }
    report.rows.push(json!({
        "case": name, "about": about, "policy": policy, "beside": "each path alone", "samples": outcome,
    }));
}
