//! Whether very many hosts are a herd: 2,000 of them against 16 shared targets. No herd is a swing of at most 20 %: how far
//! a path's share of the throughput gets, 100 ms at a time, from its own mean. `scenarios.rs` holds
//! completion-time to that in `herd-open` and `herd-closed`, `stated.rs` in `herd-long`.
//!
//! Bounds in both directions are what was measured from eight seeds, with some room.

use multipath::Policy;
use sim::measure::Measured;
use sim::{run, scenarios};

/// More is a herd.
const HERD: f64 = 0.2;

fn windows(name: &str, policy: Policy, seed: u64) -> Vec<Measured> {
    let scenario = scenarios::named(name).expect("the scenario exists");
    let windows = run(&scenario, policy, seed).windows;
    for window in &windows {
        println!("{name} {} seed {seed}: {window:?}", policy.name());
    }
    windows
}

#[test]
fn a_slow_port_and_a_weak_one_make_no_herd_of_completion_time() {
    for name in ["herd-spike", "herd-weak"] {
        for seed in 1..=2 {
            for window in windows(name, Policy::CompletionTime, seed) {
                assert!(window.swing.worst <= HERD, "{name}, seed {seed}: {window:?}");
                assert!(window.of_best >= 0.99, "{name}, seed {seed}: {window:?}");
            }
        }
    }
}

/// At 20 % load 500 commands per port in 100 ms make a swing of 11 % by counting alone (round-robin), and each host sends
/// two or three a second by each path, of which it learns.
#[test]
fn a_calm_herd_of_completion_time_is_none() {
    for seed in 1..=4 {
        for window in windows("herd-calm", Policy::CompletionTime, seed) {
            assert!(window.swing.worst <= HERD, "seed {seed}: {window:?}");
            assert!(window.of_best >= 0.99 && window.p999_us < 350, "seed {seed}: {window:?}");
        }
    }
}

/// The posted policy is one everywhere at its beginning, and overloads ports for good where there is load: their shares
/// swing less in time, since each gives all that it can, and commands wait for seconds.
#[test]
fn the_posted_policy_is_a_herd_in_every_scenario() {
    let stated = [
        ("herd-open", [0.5..0.8, 0.05..0.5], 0.55..0.66),
        ("herd-calm", [2.5..3.7, 1.3..1.9], 1.15..1.35),
        ("herd-closed", [0.5..1.1, 2.2..3.0], 0.25..0.5),
        ("herd-spike", [0.3..0.6, 0.08..0.4], 0.55..0.66),
        ("herd-weak", [0.5..0.75, 0.08..0.5], 0.57..0.68),
    ];
    for (name, swings, of_best) in stated {
        let windows = windows(name, Policy::Latency, 1);
        assert_eq!(windows.len(), 2, "{name}");
        assert!(windows.iter().any(|window| window.swing.worst > HERD), "{name}: {windows:?}");
        for (window, swing) in windows.iter().zip(swings) {
            assert!(swing.contains(&window.swing.worst), "{name}: {window:?}");
            assert!(of_best.contains(&window.of_best), "{name}: {window:?}");
            let waits_us = if name == "herd-closed" { 70_000 } else { 2_000_000 };
            assert!(window.p999_us > waits_us, "{name}: {window:?}");
        }
    }
}
