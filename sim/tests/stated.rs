//! What docs/simulation.md states in numbers, held to within some points: whoever changes a policy or the model sees
//! here which rows to write anew (`cargo run --release -p sim`).

use multipath::Policy;
use sim::measure::Measured;
use sim::model::{S, Scenario, Window};
use sim::{run, scenarios};

const SEED: u64 = 1;

/// As the columns are.
const POLICIES: [Policy; 4] =
    [Policy::RoundRobin, Policy::QueueDepth, Policy::Latency, Policy::CompletionTime];

/// How many points of the best throughput a policy may be off.
const POINTS: f64 = 2.0;

fn scenario(name: &str) -> Scenario {
    scenarios::named(name).expect("the scenario exists")
}

fn within(name: &str, (from_ns, until_ns): (u64, u64)) -> Scenario {
    let windows = vec![Window { name: "stated", from_ns, until_ns }];
    Scenario { windows, ..scenario(name) }
}

/// The only window.
fn measured(scenario: &Scenario, policy: Policy, seed: u64) -> Measured {
    run(scenario, policy, seed).windows.remove(0)
}

/// "The proposal's scenario": MiB/s of numa, round-robin, queue-depth, completion-time from the first seconds on.
#[test]
fn the_proposal() {
    let stated = [
        ("proposal-read", [58.0, 102.0, 245.0, 350.0]),
        ("proposal-ramp", [58.0, 110.0, 245.0, 350.0]),
        ("proposal-write", [61.0, 112.0, 383.0, 446.0]),
        ("proposal-mixed", [58.0, 101.0, 240.0, 350.0]),
    ];
    let policies = [Policy::Numa, Policy::RoundRobin, Policy::QueueDepth, Policy::CompletionTime];
    for (name, mib_s) in stated {
        let scenario = within(name, (2 * S, 4 * S));
        for (policy, stated) in policies.into_iter().zip(mib_s) {
            let found = measured(&scenario, policy, SEED).mib_s;
            println!("{name} {}: {found:.1}, {stated}", policy.name());
            assert!((found / stated - 1.0).abs() < 0.02, "{name}, {}: {found}", policy.name());
        }
    }
}

/// "Other scenarios": throughput as % of the best.
#[test]
fn other_scenarios() {
    let stated = [
        ("bandwidth-10", [18.0, 100.0, 100.0, 100.0]),
        ("bandwidth-10-open", [62.0, 100.0, 100.0, 100.0]),
        ("bandwidth-4-open", [77.0, 100.0, 100.0, 100.0]),
        ("sizes", [67.0, 100.0, 88.0, 100.0]),
        ("asymmetric-fifo", [18.0, 19.0, 11.0, 97.0]),
        ("asymmetric-commands", [18.0, 19.0, 59.0, 100.0]),
        ("asymmetric-fair", [18.0, 18.0, 19.0, 100.0]),
        ("threads-64x2", [96.0, 97.0, 96.0, 97.0]),
        ("paths-2", [100.0, 98.0, 76.0, 86.0]),
        ("paths-4", [92.0, 91.0, 61.0, 76.0]),
        ("paths-8", [71.0, 86.0, 57.0, 76.0]),
        ("slow-writes", [85.0, 78.0, 59.0, 58.0]),
    ];
    for (name, percents) in stated {
        for (policy, stated) in POLICIES.into_iter().zip(percents) {
            let found = measured(&scenario(name), policy, SEED).of_best * 100.0;
            println!("{name} {}: {found:.1}, {stated}", policy.name());
            assert!((found - stated).abs() <= POINTS, "{name}, {}: {found}", policy.name());
        }
    }
}

/// "2,000 hosts, 16 targets", completion-time: how far shares swing at most (`herds.rs` has the others). Of targets that are
/// five times slower sooner and shorter than in the document, where it takes minutes; counting alone gives 14 to 21 % there.
#[test]
fn herds() {
    let stated = [
        ("herd-calm", S, (5 * S, 7 * S), 0.2, 2),
        ("herd-long", S, (8 * S, 14 * S), 0.2, 2),
        ("herd-long", 15 * S, (30 * S, 45 * S), 0.2, 1),
    ];
    for (name, start_spread_ns, window, swing, seeds) in stated {
        let scenario = Scenario { start_spread_ns, ..within(name, window) };
        for seed in 1..=seeds {
            let found = measured(&scenario, Policy::CompletionTime, seed);
            println!("{name} seed {seed}: {found:?}");
            assert!(found.swing.worst <= swing, "{name}, seed {seed}: {:?}", found.swing);
            assert!(found.of_best >= 0.97, "{name}, seed {seed}: {found:?}");
        }
    }
}

/// One port takes 5 ms more for a while: users hardly notice.
#[test]
fn a_herd_with_a_slow_port() {
    let results = run(&scenario("herd-spike"), Policy::CompletionTime, SEED);
    for window in &results.windows {
        println!("{window:?}");
        assert!(
            window.of_best > 0.98 && window.p50_us < 400 && window.p999_us < 2_000,
            "{window:?}"
        );
    }
}
