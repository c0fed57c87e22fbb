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

/// Two paths of which something is known, under `policy`.
fn learned(policy: Policy) -> Selector {
    let latency_batch_timeout_ns = Some(MS);
    let mut selector =
        configured(Settings { policy, latency_batch_timeout_ns, ..Settings::default() });
    for round in 1..=4 {
        for path in 0..2 {
            for group in Group::ALL {
                let at_ns = SECOND + round * 10 * MS;
                let token = selector.submitted(path, at_ns - MS, group, 4096);
                selector.completed(&token, at_ns, Outcome::Answered);
            }
        }
    }
    for (path, group) in (0..2).flat_map(|path| Group::ALL.map(|group| (path, group))) {
        assert!(is_known(&selector, path, group), "{policy}, {path}, {group:?}");
    }
    selector
}

fn is_known(selector: &Selector, path: usize, group: Group) -> bool {
    let known = selector.statistics(path, group, 2 * SECOND);
    match selector.settings().policy {
        Policy::Latency => known.weight > 0 && known.slat_ns > 0,
        _ => known.latency_ns > 0,
    }
}

fn all_known(selector: &Selector) -> [[bool; 3]; 2] {
    [0, 1].map(|path| Group::ALL.map(|group| is_known(selector, path, group)))
}

/// As posted: what is known of a path is forgotten when a command of it fails, for that group alone.
#[test]
fn under_latency_a_failure_makes_a_path_unknown_to_its_group() {
    let mut selector = learned(Policy::Latency);
    let token = selector.submitted(1, 2 * SECOND, Group::Write, 4096);
    selector.completed(&token, 2 * SECOND, Outcome::PutOff);
    assert_eq!(all_known(&selector), [[true; 3]; 2], "it was answered, if only to be sent again");
    let token = selector.submitted(1, 2 * SECOND, Group::Write, 4096);
    selector.completed(&token, 2 * SECOND, Outcome::Failed);
    let of_write = Group::ALL.map(|group| group != Group::Write);
    assert_eq!(all_known(&selector), [[true; 3], of_write]);
    let forgotten = selector.statistics(1, Group::Write, 2 * SECOND);
    let about = (forgotten.weight, forgotten.slat_ns, forgotten.nr_samples);
    assert_eq!(about, (0, 0, 0));
}

/// As posted: a path that comes back takes everything until its first latency is known.
#[test]
fn under_latency_a_path_that_comes_back_is_unknown() {
    use multipath::Standing;
    let mut selector = learned(Policy::Latency);
    selector.stand(1, Standing::NonOptimized);
    selector.stand(1, Standing::Optimized);
    assert_eq!(all_known(&selector), [[true; 3]; 2], "it was there all the time");
    selector.stand(1, Standing::Unusable);
    assert_eq!(all_known(&selector), [[true; 3], [false; 3]]);
    selector.stand(1, Standing::Optimized);
    for moment in 0..64 {
        let now_ns = 2 * SECOND + moment;
        let path = selector.select(now_ns, Group::Read, 4096, PathSet::EMPTY).expect("both");
        selector.submitted(path, now_ns, Group::Read, 4096);
        // Whichever has its turn first: from then on the one of which nothing is known.
        assert!(path == 1 || moment == 0, "command {moment} went to path {path}");
    }
}

/// What is in flight stays so, and nothing that was learned does.
#[test]
fn another_policy_begins_anew() {
    for policy in [Policy::Latency, Policy::CompletionTime] {
        let mut selector = learned(policy);
        let settings = *selector.settings();
        selector.configure(Settings { numa_bias_ns: 5, ..settings });
        assert_eq!(all_known(&selector), [[true; 3]; 2], "{policy}: it is the same policy");
        let token = selector.submitted(1, 2 * SECOND, Group::Read, 4096);
        selector.configure(Settings { policy: Policy::Numa, ..settings });
        selector.configure(settings);
        assert_eq!(all_known(&selector), [[false; 3]; 2], "{policy}");
        let in_flight = |selector: &Selector| selector.statistics(1, Group::Read, 0).in_flight;
        assert_eq!(in_flight(&selector), 1);
        selector.completed(&token, 3 * SECOND, Outcome::Failed);
        assert_eq!(in_flight(&selector), 0);
    }
}
