//! What a selector is told is what it goes by.

use multipath::{Group, Outcome, PathSet, Policy, Selector, Settings, Shared};
use std::sync::Arc;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

/// A selector of two paths that was told so while it was in use.
fn configured(settings: Settings) -> Selector {
    let mut selector = Selector::new(2, Settings::default(), Arc::new(Shared::default()), 0);
    selector.configure(settings);
    selector
}

/// A command on `path` that has taken so long at `now_ns`.
fn answered(selector: &mut Selector, path: usize, latency_ns: u64, now_ns: u64) {
    let token = selector.submitted(path, now_ns - latency_ns, Group::Read, 4096);
    selector.completed(&token, now_ns, Outcome::Answered);
}

/// What the policies make of latencies.
fn slat_ns(selector: &Selector, path: usize) -> u64 {
    let known = selector.statistics(path, Group::Read, 0);
    match selector.settings().policy {
        Policy::Latency => known.slat_ns,
        _ => known.latency_ns,
    }
}

/// With both policies that measure: 8 ms, then 16 ms.
#[test]
fn the_shift_is_the_weight_of_a_new_latency() {
    for policy in [Policy::Latency, Policy::CompletionTime] {
        for (latency_ewma_shift, expected) in [(0, 16 * MS), (3, 9 * MS), (8, 8 * MS + MS / 32)] {
            let latency_batch_timeout_ns = Some(SECOND);
            let mut selector = configured(Settings {
                policy,
                latency_ewma_shift,
                latency_batch_timeout_ns,
                ..Settings::default()
            });
            answered(&mut selector, 0, 8 * MS, SECOND);
            assert_eq!(slat_ns(&selector, 0), 8 * MS);
            answered(&mut selector, 0, 16 * MS, 2 * SECOND);
            assert_eq!(slat_ns(&selector, 0), expected, "{policy}, {latency_ewma_shift}");
        }
    }
}

#[test]
fn a_latency_stays_until_its_batch_ends() {
    for policy in [Policy::Latency, Policy::CompletionTime] {
        let latency_batch_timeout_ns = Some(SECOND);
        let mut selector =
            configured(Settings { policy, latency_batch_timeout_ns, ..Settings::default() });
        answered(&mut selector, 0, 8 * MS, SECOND);
        for after_ns in [MS, SECOND / 2, SECOND - 1] {
            answered(&mut selector, 0, 16 * MS, SECOND + after_ns);
            assert_eq!(slat_ns(&selector, 0), 8 * MS, "{policy}, after {after_ns} ns");
        }
        answered(&mut selector, 0, 16 * MS, 2 * SECOND);
        assert_eq!(slat_ns(&selector, 0), 9 * MS, "{policy}");
    }
}

/// Path 0 takes 1 ms, path 1 takes 2.
#[test]
fn the_bias_is_added_to_paths_that_are_farther() {
    for (numa_bias_ns, distances, expected) in [
        (0, [20, 10], 0),
        (MS / 2, [20, 10], 0),
        (2 * MS, [20, 10], 1),
        (2 * MS, [10, 20], 0),
        (2 * MS, [20, 20], 0),
    ] {
        let mut selector = configured(Settings { numa_bias_ns, ..Settings::default() });
        (0..2).for_each(|path| selector.place(path, distances[path]));
        (0..2).for_each(|path| answered(&mut selector, path, (1 + path as u64) * MS, SECOND));
        for moment in 1..5 {
            let chosen = selector.select(SECOND + moment, Group::Read, 4096, PathSet::EMPTY);
            assert_eq!(chosen, Some(expected), "{numa_bias_ns} ns, {distances:?}");
        }
    }
}
