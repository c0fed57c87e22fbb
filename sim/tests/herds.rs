//! Whether very many hosts are a herd: 2,000 of them against 16 shared targets. No herd is a swing of at most 20 %: how far
//! a path's share of the throughput gets, 100 ms at a time, from its own mean. `scenarios.rs` holds
//! completion-time to that in `herd-open` and `herd-closed`, `stated.rs` in `herd-long`.
//!
//! Other bounds are what was measured from eight seeds, with some room.

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

/// Hosts begin with different paths.
#[test]
fn the_posted_policy_is_no_herd_under_load() {
    for (name, p999_us) in [("herd-open", 2_500), ("herd-spike", 7_000)] {
        for window in windows(name, Policy::Latency, 1) {
            assert!(window.swing.worst <= HERD && window.of_best >= 0.98, "{name}: {window:?}");
            assert!(window.p999_us < p999_us, "{name}: {window:?}");
        }
    }
    // Those that wait for their only command begin together, and settle.
    let closed = windows("herd-closed", Policy::Latency, 1);
    let (first, last) = (&closed[0], &closed[closed.len() - 1]);
    assert!(first.swing.worst <= 0.35 && last.swing.worst <= HERD, "{closed:?}");
    assert!(last.of_best > 0.7, "{last:?}");
}

/// With 16 paths alike it gives each four commands in a row. Counting such bursts makes twice the swing of round-robin's 11 %,
/// where a port has 500 commands in 100 ms; nobody waits longer for that.
#[test]
fn bursts_of_the_posted_policy_swing_where_there_is_little_to_do() {
    for window in windows("herd-calm", Policy::Latency, 1) {
        assert!((0.12..0.33).contains(&window.swing.worst), "{window:?}");
        assert!(window.of_best >= 0.98 && window.p999_us < 400, "{window:?}");
    }
}

/// A port with a fifth of the others' speed is overloaded before anybody knows it; its samples come to more than a second
/// and are ignored.
#[test]
fn the_posted_policy_overloads_a_weak_port() {
    for window in windows("herd-weak", Policy::Latency, 1) {
        assert!((0.35..0.6).contains(&window.of_best), "{window:?}");
        assert!(window.p999_us > 2_000_000, "{window:?}");
    }
}
