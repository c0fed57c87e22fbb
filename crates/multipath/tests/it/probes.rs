//! Which paths are probed, and when.

use multipath::{Group, Outcome, PROBE_BYTES, Policy, Selector, Settings, Shared};
use std::sync::Arc;

const MS: u64 = 1_000_000;

fn selector(paths: usize) -> Selector {
    let settings = Settings { policy: Policy::CompletionTime, ..Settings::default() };
    Selector::new(paths, settings, Arc::new(Shared::default()), 1)
}

/// A read of a user's on `path`.
fn read(selector: &mut Selector, path: usize, sent_ns: u64, latency_ns: u64) {
    let token = selector.submitted(path, sent_ns, Group::Read, 4096);
    selector.completed(&token, sent_ns + latency_ns, Outcome::Answered);
}

/// Looks for paths to be probed every 10 ms; the probes take 1 ms. How many there were for each path.
fn probes(selector: &mut Selector, from_ns: u64, until_ns: u64) -> [usize; 3] {
    let mut count = [0; 3];
    for now_ns in (from_ns..until_ns).step_by(10 * MS as usize) {
        while let Some(path) = selector.probe(now_ns) {
            let token = selector.probe_submitted(path, now_ns, PROBE_BYTES);
            selector.completed(&token, now_ns + MS, Outcome::Answered);
            count[path] += 1;
        }
    }
    count
}

/// Four commands in flight that take 300 ms each: one probe a second, of either idle path in its turn.
#[test]
fn all_idle_paths_have_their_turn() {
    let mut selector = selector(3);
    let mut count = [0; 3];
    for round in 0..40 {
        let now_ns = 5_000 * MS + 300 * MS * round;
        let tokens = [(); 4].map(|()| selector.submitted(1, now_ns, Group::Read, 4096));
        let found = probes(&mut selector, now_ns, now_ns + 300 * MS);
        (0..3).for_each(|path| count[path] += found[path]);
        tokens
            .iter()
            .for_each(|token| selector.completed(token, now_ns + 300 * MS, Outcome::Answered));
    }
    // In 12 s.
    assert!((11..=13).contains(&(count[0] + count[2])), "{count:?}");
    assert!(count[0].abs_diff(count[2]) <= 1 && count[1] == 0, "{count:?}");
}

/// That a probe takes long is no reason for another one.
#[test]
fn our_own_probes_do_not_hasten() {
    let mut selector = selector(2);
    read(&mut selector, 1, 0, 2_000 * MS);
    read(&mut selector, 0, 5_000 * MS, MS);
    assert_eq!(selector.probe(6_000 * MS), None);
    let probe = selector.probe_submitted(1, 6_000 * MS, PROBE_BYTES);
    assert_eq!(selector.probe(7_900 * MS), None);
    // A user's read there is one, and a write that has not come back for as long as that.
    let mut other = selector.clone();
    other.submitted(1, 7_900 * MS, Group::Read, 4096);
    assert_eq!(other.probe(7_910 * MS), Some(0));
    let mut other = selector.clone();
    other.submitted(1, 9_000 * MS, Group::Write, 4096);
    assert_eq!(other.probe(9_090 * MS), None);
    assert_eq!(other.probe(9_110 * MS), Some(0));
    selector.completed(&probe, 9_120 * MS, Outcome::Answered);
    assert_eq!(selector.probe(10_200 * MS), None);
}
