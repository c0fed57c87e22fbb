//! Results as a table.

use crate::Results;
use crate::model::Scenario;
use std::fmt::Write;

/// Shares are listed for so many paths at most; of more, the least and the greatest.
const SHARES_LISTED: usize = 8;

/// A table of a scenario's results, a line per policy and window.
pub fn table(scenario: &Scenario, all: &[Results]) -> String {
    let mut text = format!("{}: {}\n", scenario.name, scenario.about);
    let header = ["policy", "window", "MiB/s", "of best", "p50 us", "p99 us", "p99.9 us", "swing"];
    let [policy, window, rate, best, p50, p99, p999, swing] = header;
    let _ = writeln!(
        text,
        "  {policy:<15} {window:>10} {rate:>9} {best:>8} {p50:>8} {p99:>9} {p999:>9} {swing:>7}  shares in %"
    );
    for results in all {
        for it in &results.windows {
            let _ = writeln!(
                text,
                "  {:<15} {:>10} {:>9.1} {:>7.1}% {:>8} {:>9} {:>9} {:>6.1}%  {}",
                results.policy,
                it.window,
                it.mib_s,
                it.of_best * 100.0,
                it.p50_us,
                it.p99_us,
                it.p999_us,
                it.swing.worst * 100.0,
                shares(&it.shares)
            );
        }
        if !scenario.faults.is_empty() {
            let recovery = match results.recovery_ms {
                Some(ms) => format!("its part again after {ms} ms"),
                None => "does not carry its part again".to_string(),
            };
            let _ = writeln!(text, "  {:<15} {:>10} {recovery}", results.policy, "recovery");
        }
    }
    text
}

fn shares(shares: &[f64]) -> String {
    let percent = |share: f64| format!("{:.1}", share * 100.0);
    if shares.len() <= SHARES_LISTED {
        return shares.iter().map(|share| percent(*share)).collect::<Vec<_>>().join(" ");
    }
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let most = shares.iter().copied().fold(0.0, f64::max);
    format!("{} to {}", percent(least), percent(most))
}
