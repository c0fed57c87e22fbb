//! A simulator of hosts that choose among paths: the real `multipath` and `association` crates on
//! virtual time, from a seed.
//!
//! ```text
//!   scenarios (values of model::Scenario)         seed
//!        |                                         |
//!   world: agenda of events, stations, real multipath::Selectors  ---> measure ---> report
//!        |                                                                ^
//!   bound: linear programme of the same scenario ------- best possible ---+
//! ```
//!
//! The same seed gives the same result, event by event; nothing here reads a clock. docs/simulation.md
//! tells the model at length, and the results.
//!
//! What it does not do: TCP's congestion control, loss of single packets, CPU time of hosts,
//! queues with a limit. What it says is a prediction.
//!
//! Key constants: [`measure::BIN_NS`], [`model::RTO_NS`].

#![forbid(unsafe_code)]

mod agenda;
mod attempts;
pub mod bound;
pub mod failover;
pub mod measure;
pub mod model;
pub mod random;
pub mod report;
pub mod scenarios;
mod station;
mod world;

use measure::Measured;
use model::Scenario;
use multipath::{Policy, Settings};
use serde::Serialize;

/// What came out of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Of which scenario.
    pub scenario: &'static str,
    /// Of which policy.
    pub policy: &'static str,
    /// From which seed.
    pub seed: u64,
    /// Its windows.
    pub windows: Vec<Measured>,
    /// From the end of the first fault to when its path carries its part again, in milliseconds;
    /// none without a fault, or if it never does.
    pub recovery_ms: Option<u64>,
    /// Events that were simulated.
    pub events: u64,
}

/// Runs a scenario with a policy as it is by default.
pub fn run(scenario: &Scenario, policy: Policy, seed: u64) -> Results {
    run_with(scenario, Settings { policy, ..Settings::default() }, seed)
}

/// Runs a scenario.
pub fn run_with(scenario: &Scenario, settings: Settings, seed: u64) -> Results {
    let (meter, events) = world::World::new(scenario, settings, seed).run();
    let window = |number: usize| {
        let window = &scenario.windows[number];
        let best = bound::best(scenario, window.from_ns, window.until_ns);
        meter.window(scenario, number, best)
    };
    let fault = scenario.faults.first();
    Results {
        scenario: scenario.name,
        policy: settings.policy.name(),
        seed,
        windows: (0..scenario.windows.len()).map(window).collect(),
        recovery_ms: fault
            .and_then(|fault| meter.recovery_ms(fault.port, fault.from_ns, fault.until_ns)),
        events,
    }
}
