//! What holds for every policy, whatever happens.

use multipath::{
    Group, Outcome, PATHS_MAX, PathSet, Policy, Selector, Settings, Shared, Standing, Token,
};
use proptest::prelude::*;
use std::sync::Arc;

/// Something that happens to a selector.
#[derive(Clone, Debug)]
enum Event {
    Send {
        group: usize,
        bytes: u64,
        avoid: u16,
    },
    /// One of those in flight ends.
    End {
        which: usize,
        failed: bool,
    },
    Stand {
        path: usize,
        standing: Standing,
    },
    Configure {
        policy: usize,
        shift: u8,
        batch_ns: Option<u64>,
    },
    Probe,
}

fn event() -> impl Strategy<Value = (u64, Event)> {
    let standing = prop_oneof![
        Just(Standing::Optimized),
        Just(Standing::NonOptimized),
        Just(Standing::Unusable)
    ];
    let event = prop_oneof![
        8 => (0..3usize, 0..2_000_000u64, any::<u16>(), 0..4u8).prop_map(
            |(group, bytes, avoid, some)| {
                Event::Send { group, bytes, avoid: if some == 0 { avoid } else { 0 } }
            }
        ),
        7 => (any::<usize>(), proptest::bool::weighted(0.1))
            .prop_map(|(which, failed)| Event::End { which, failed }),
        1 => (0..PATHS_MAX, standing).prop_map(|(path, standing)| Event::Stand { path, standing }),
        1 => (0..5usize, 0..=8u8, proptest::option::of(0..20_000_000_000u64)).prop_map(
            |(policy, shift, batch_ns)| Event::Configure { policy, shift, batch_ns }
        ),
        1 => Just(Event::Probe),
    ];
    // Time stands still, creeps, or jumps.
    let time = prop_oneof![Just(0), 0..100_000u64, 0..3_000_000_000u64];
    (time, event)
}

fn assert_sound(selector: &Selector, in_flight: &[Token], paths: usize, now_ns: u64) {
    for path in 0..paths {
        let here = in_flight.iter().filter(|token| token.path() == path).count();
        assert_eq!(selector.in_flight(path) as usize, here);
        let groups = Group::ALL.map(|group| selector.statistics(path, group, now_ns));
        assert_eq!(groups.iter().map(|group| group.in_flight as usize).sum::<usize>(), here);
        assert!(groups.iter().all(|group| group.in_flight > 0 || group.queued_work == 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn only_usable_paths_and_the_better_ones_first(
        paths in 1..=PATHS_MAX,
        seed: u64,
        events in proptest::collection::vec(event(), 0..300),
    ) {
        let shared = Arc::new(Shared::default());
        let mut selector = Selector::new(paths, Settings::default(), shared, seed);
        let mut in_flight: Vec<Token> = Vec::new();
        let mut now_ns = 0;
        for (time, event) in events {
            now_ns += time;
            match event {
                Event::Send { group, bytes, avoid } => {
                    let group = Group::ALL[group];
                    let allowed = |standing| {
                        (0..paths).filter(|&path| selector.standing(path) == standing)
                            .fold(PathSet::EMPTY, PathSet::with).without(PathSet(avoid))
                    };
                    let (best, other) = (allowed(Standing::Optimized), allowed(Standing::NonOptimized));
                    let wanted = if best.is_empty() { other } else { best };
                    match selector.select(now_ns, group, bytes, PathSet(avoid)) {
                        None => prop_assert!(wanted.is_empty()),
                        Some(path) => {
                            prop_assert!(wanted.contains(path), "{path} of {wanted:?}");
                            in_flight.push(selector.submitted(path, now_ns, group, bytes));
                        }
                    }
                }
                Event::End { which, failed } => {
                    if !in_flight.is_empty() {
                        let token = in_flight.swap_remove(which % in_flight.len());
                        let outcome = if failed { Outcome::Failed } else { Outcome::Answered };
                        selector.completed(&token, now_ns, outcome);
                    }
                }
                Event::Stand { path, standing } => if path < paths {
                    selector.stand(path, standing);
                    prop_assert_eq!(selector.standing(path), standing);
                },
                Event::Configure { policy, shift, batch_ns } => selector.configure(Settings {
                    policy: Policy::ALL[policy],
                    latency_ewma_shift: shift,
                    latency_batch_timeout_ns: batch_ns,
                    ..Settings::default()
                }),
                Event::Probe => if let Some(path) = selector.probe(now_ns) {
                    prop_assert!(selector.standing(path) != Standing::Unusable);
                    in_flight.push(selector.probe_submitted(path, now_ns, 4096));
                },
            }
            assert_sound(&selector, &in_flight, paths, now_ns);
        }
        for token in in_flight.drain(..) {
            selector.completed(&token, now_ns, Outcome::Answered);
        }
        assert_sound(&selector, &[], paths, now_ns);
        let shares: u32 = (0..paths).map(|path| selector.share(path, now_ns)).sum();
        // Each is rounded.
        prop_assert!(shares == 0 || shares.abs_diff(128) <= paths as u32, "{shares}");
    }

    #[test]
    fn weights_add_up(latencies in proptest::collection::vec(1_000..900_000_000u64, 2..=PATHS_MAX)) {
        let settings = Settings { policy: Policy::Latency, ..Settings::default() };
        let paths = latencies.len();
        let mut selector = Selector::new(paths, settings, Arc::new(Shared::default()), 1);
        for (path, latency_ns) in latencies.iter().enumerate() {
            let token = selector.submitted(path, 0, Group::Read, 4096);
            selector.completed(&token, *latency_ns, Outcome::Answered);
        }
        let weight = |path| u64::from(selector.statistics(path, Group::Read, 0).weight);
        let sum: u64 = (0..paths).map(weight).sum();
        let scale = multipath::WEIGHT_SCALE;
        // Each is rounded down, or up to one.
        prop_assert!((scale - paths as u64..=scale + paths as u64).contains(&sum), "{sum}");
        for (one, other) in (0..paths).zip(1..paths) {
            prop_assert!((latencies[one] <= latencies[other]) || weight(one) <= weight(other));
        }
    }
}
