//! The scenarios by name.

use crate::model::{
    Backend, Failover, Fault, FaultKind, Load, MIB, MS, Port, Queueing, Ramp, S, Scenario, US,
    Window,
};

/// 10 Gbit/s in bytes per second.
const TEN_GIGABIT: f64 = 1.25e9;
/// When faults begin and end.
const FAULT_FROM_NS: u64 = 2 * S;
const FAULT_UNTIL_NS: u64 = 4 * S;

/// All of them.
pub fn all() -> Vec<Scenario> {
    let mut all = vec![
        proposal("proposal-read", "the proposal: random reads, one of two paths +30 ms", 1.0),
        proposal("proposal-write", "the proposal: random writes", 0.0),
        proposal("proposal-mixed", "the proposal: reads and writes in equal parts", 0.5),
        proposal_ramp(),
        paths("paths-2", "two paths, 120 and 240 us", 2),
        paths("paths-4", "four paths, 120 to 480 us", 4),
        paths("paths-8", "eight paths, 120 to 960 us", 8),
        bandwidth("bandwidth-4", "two paths, bandwidth 4:1, closed loop", 4.0, None),
        bandwidth("bandwidth-4-open", "two paths, bandwidth 4:1, 75 % load", 4.0, Some(0.75)),
        bandwidth("bandwidth-10", "two paths, bandwidth 10:1, closed loop", 10.0, None),
        bandwidth("bandwidth-10-open", "two paths, bandwidth 10:1, 75 % load", 10.0, Some(0.75)),
        sizes("sizes", "4 KiB with 1 MiB (one in 64), closed loop", None),
        sizes("sizes-open", "4 KiB with 1 MiB (one in 64), 60 % load", Some(0.6)),
        slow_writes(),
        swap("swap", "one of two paths takes 2 s more, after 30 s the other one 1 s", 16),
        swap("swap-few", "the same with 4 commands in flight", 4),
        threads(),
    ];
    all.extend(asymmetric());
    all.extend(faulty());
    all.extend(herds());
    all
}

/// One of them.
pub fn named(name: &str) -> Option<Scenario> {
    all().into_iter().find(|scenario| scenario.name == name)
}

/// Two paths, one host with 4 cores and 32 commands in flight on each, 4 KiB reads, 1 to 5 s.
fn plain(name: &'static str, about: &'static str) -> Scenario {
    Scenario {
        name,
        about,
        hosts: 1,
        cores: 4,
        load: Load::Closed { in_flight: 32 },
        reads: 1.0,
        sizes: vec![(4096, 1.0)],
        ports: vec![Port::new(TEN_GIGABIT / 10.0, 20 * US); 2],
        backend: Backend::unlimited(80 * US),
        faults: Vec::new(),
        failover: Failover { silence_ns: 7 * S, quiet_ns: 11 * S, reconnect_ns: 100 * MS },
        start_spread_ns: 10 * MS,
        windows: vec![Window { name: "1-5 s", from_ns: S, until_ns: 5 * S }],
    }
}

/// The proposal's set-up: 16 jobs, queue depth 32, 4 KiB; a core per job. What it calls the fast
/// path takes 4.6 ms for reads and 2.8 ms for writes, and 4.7 ms where they are mixed; numa
/// happens to use the slow one, as posted.
fn proposal(name: &'static str, about: &'static str, reads: f64) -> Scenario {
    let delay_ns = 20 * US;
    let links_ns = 2 * delay_ns;
    let is_mixed = reads > 0.0 && reads < 1.0;
    let (read_ns, write_ns) =
        if is_mixed { (4_700 * US, 4_700 * US) } else { (4_600 * US, 2_800 * US) };
    let limit = if reads == 0.0 { 446.0 } else { 350.0 };
    let fast = Port::new(TEN_GIGABIT, delay_ns);
    let slow = Port { read_ns: 30 * MS, write_ns: 30 * MS, ..fast };
    let window = |name, from, until| Window { name, from_ns: from * S, until_ns: until * S };
    Scenario {
        cores: 16,
        ports: vec![slow, fast],
        reads,
        backend: Backend {
            rate: limit * MIB,
            read_ns: read_ns - links_ns,
            write_ns: write_ns - links_ns,
            ramp: None,
        },
        windows: vec![
            window("0-20 s", 0, 20),
            window("40-60 s", 40, 60),
            window("240-300 s", 240, 300),
        ],
        ..plain(name, about)
    }
}

/// The same where an idle path takes 1 ms, and 4.6 ms is what it takes under load: so the first
/// samples of a policy that averages for long are far from what they become.
fn proposal_ramp() -> Scenario {
    let about = "the proposal: reads; the fast path takes 1 ms until there is load";
    let mut scenario = proposal("proposal-ramp", about, 1.0);
    scenario.backend.ramp = Some(Ramp { idle_part: 1.0 / 4.6, full_at: 128 });
    scenario
}

/// Paths that differ in distance, of which the nearest cannot carry everything.
fn paths(name: &'static str, about: &'static str, count: u64) -> Scenario {
    let port = |number| Port::new(TEN_GIGABIT / 10.0, (20 + 60 * number) * US);
    let in_flight = 2 * count as usize;
    let load = Load::Closed { in_flight };
    Scenario { ports: (0..count).map(port).collect(), load, ..plain(name, about) }
}

/// `load`: share of the best possible, as an open loop.
fn bandwidth(name: &'static str, about: &'static str, factor: f64, load: Option<f64>) -> Scenario {
    let fast = TEN_GIGABIT / 5.0;
    let ports = [fast, fast / factor].map(|rate| Port::new(rate, 20 * US));
    let scenario = Scenario { ports: ports.to_vec(), ..plain(name, about) };
    open(scenario, load)
}

fn sizes(name: &'static str, about: &'static str, load: Option<f64>) -> Scenario {
    let sizes = vec![(4096, 63.0 / 64.0), (1 << 20, 1.0 / 64.0)];
    let ports = vec![Port::new(TEN_GIGABIT, 20 * US), Port::new(TEN_GIGABIT / 2.0, 20 * US)];
    open(Scenario { sizes, ports, ..plain(name, about) }, load)
}

/// Makes an open loop of a closed one.
fn open(scenario: Scenario, load: Option<f64>) -> Scenario {
    let Some(load) = load else { return scenario };
    // The bound of an endless load is that of the system.
    let endless = Scenario { load: Load::Open { iops: 1e9 }, ..scenario };
    let iops = crate::bound::best_at(&endless, 0) / endless.mean_bytes() * load;
    let cores = (endless.hosts * endless.cores) as f64;
    Scenario { load: Load::Open { iops: iops / cores }, ..endless }
}

fn slow_writes() -> Scenario {
    let about = "reads and writes; one path takes 5 ms more for writes only";
    let mut scenario = Scenario { reads: 0.5, ..plain("slow-writes", about) };
    scenario.ports[1].write_ns = 5 * MS;
    scenario
}

/// Two paths of which one is of no use, for long, each in its turn; a third of the commands are writes, for
/// which nobody can probe.
fn swap(name: &'static str, about: &'static str, in_flight: usize) -> Scenario {
    const SWAP_NS: u64 = 30 * S;
    const OVER_NS: u64 = 70 * S;
    let fault = |port, extra_ns, from_ns, until_ns| {
        let kind = FaultKind::Slow(extra_ns);
        Fault { port, kind, from_ns, until_ns }
    };
    Scenario {
        cores: 1,
        load: Load::Closed { in_flight },
        reads: 0.67,
        backend: Backend::unlimited(20 * MS),
        faults: vec![fault(1, 2 * S, 0, SWAP_NS), fault(0, S, SWAP_NS, OVER_NS)],
        windows: vec![
            Window { name: "10-30 s", from_ns: 10 * S, until_ns: SWAP_NS },
            Window { name: "30-40 s", from_ns: SWAP_NS, until_ns: SWAP_NS + 10 * S },
            Window { name: "40-60 s", from_ns: SWAP_NS + 10 * S, until_ns: OVER_NS - 10 * S },
            Window { name: "70-80 s", from_ns: OVER_NS, until_ns: OVER_NS + 10 * S },
        ],
        ..plain(name, about)
    }
}

fn threads() -> Scenario {
    let about = "64 threads with 2 commands in flight each; paths of 1 and 1.2 ms";
    let mut scenario = plain("threads-64x2", about);
    (scenario.cores, scenario.load) = (64, Load::Closed { in_flight: 2 });
    scenario.ports.iter_mut().for_each(|port| port.down = TEN_GIGABIT / 4.0);
    scenario.ports.iter_mut().for_each(|port| port.read_ns = 900 * US);
    scenario.ports[1].delay_ns += 100 * US;
    scenario
}

/// Reads and writes; links that are ten times narrower in one direction, each another.
fn asymmetric() -> [Scenario; 3] {
    let scenario = |name, about, queueing| {
        let wide = Port { queueing, ..Port::new(TEN_GIGABIT / 5.0, 20 * US) };
        let ports =
            vec![Port { up: wide.up / 10.0, ..wide }, Port { down: wide.down / 10.0, ..wide }];
        Scenario { reads: 0.5, ports, ..plain(name, about) }
    };
    [
        scenario("asymmetric-fifo", "links 10:1 in opposite directions, FIFO", Queueing::Fifo),
        scenario("asymmetric-commands", "the same, commands before data", Queueing::CommandsFirst),
        scenario(
            "asymmetric-fair",
            "the same, connections for reads and for writes, fair queues",
            Queueing::Fair,
        ),
    ]
}

/// Something happens to the first of two paths from 2 s to 4 s.
fn faulty() -> [Scenario; 6] {
    let scenario = |name, about, kind| {
        let (from_ns, until_ns) = (FAULT_FROM_NS, FAULT_UNTIL_NS);
        let load = open(plain(name, about), Some(0.45)).load;
        Scenario {
            load,
            faults: vec![Fault { port: 0, kind, from_ns, until_ns }],
            windows: vec![
                Window { name: "before", from_ns: S, until_ns: from_ns },
                Window { name: "fault", from_ns, until_ns },
                Window { name: "after", from_ns: until_ns, until_ns: until_ns + 2 * S },
                Window { name: "all", from_ns: S, until_ns: until_ns + 2 * S },
            ],
            ..plain(name, about)
        }
    };
    let mut long = scenario(
        "black-hole-long",
        "nothing passes for 2 s; hosts give up after 1 s of silence",
        FaultKind::BlackHole,
    );
    long.failover = Failover { silence_ns: S, quiet_ns: 500 * MS, ..long.failover };
    long.reads = 0.5;
    [
        scenario("spike", "one of two paths takes 20 ms more for 2 s", FaultKind::Slow(20 * MS)),
        scenario("narrow", "a tenth of the bandwidth for 2 s", FaultKind::Narrow(10.0)),
        scenario("kill", "a target dies and is back after 2 s", FaultKind::Kill),
        scenario(
            "black-hole",
            "nothing passes for 2 s, nobody notices, TCP sends again",
            FaultKind::BlackHole,
        ),
        Scenario {
            load: Load::Closed { in_flight: 32 },
            ..scenario("spike-closed", "20 ms more for 2 s, closed loop", FaultKind::Slow(20 * MS))
        },
        long,
    ]
}

/// Very many hosts.
fn herds() -> [Scenario; 6] {
    let scenario = |name, about, load| {
        let port = Port { cost_ns: 40_000.0, ..Port::new(TEN_GIGABIT, 20 * US) };
        let scenario = Scenario {
            hosts: 2_000,
            cores: 1,
            ports: vec![port; 16],
            load: Load::Closed { in_flight: 1 },
            start_spread_ns: S,
            windows: vec![
                Window { name: "3-5 s", from_ns: 3 * S, until_ns: 5 * S },
                Window { name: "5-7 s", from_ns: 5 * S, until_ns: 7 * S },
            ],
            ..plain(name, about)
        };
        open(scenario, load)
    };
    let mut spike = scenario("herd-spike", "the same; one port takes 5 ms more for 2 s", Some(0.8));
    let (from_ns, until_ns) = (FAULT_FROM_NS, FAULT_UNTIL_NS);
    spike.faults = vec![Fault { port: 3, kind: FaultKind::Slow(5 * MS), from_ns, until_ns }];
    spike.windows = vec![
        Window { name: "fault", from_ns: from_ns + 500 * MS, until_ns },
        Window { name: "after", from_ns: until_ns + S, until_ns: until_ns + 2 * S },
    ];
    let mut weak =
        scenario("herd-weak", "the same; one port has a fifth of the others' speed", None);
    weak.ports[5].cost_ns *= 5.0;
    let weak = open(weak, Some(0.8));
    let mut long = scenario("herd-long", "the same for longer than batches of 15 s", None);
    long.ports.iter_mut().for_each(|port| port.cost_ns *= 5.0);
    long.start_spread_ns = 15 * S;
    long.windows = [("30-60 s", 30), ("60-90 s", 60), ("90-120 s", 90)]
        .map(|(name, from)| Window { name, from_ns: from * S, until_ns: (from + 30) * S })
        .to_vec();
    let long = open(long, Some(0.8));
    [
        scenario("herd-open", "2,000 hosts, 16 targets, 80 % load", Some(0.8)),
        scenario("herd-calm", "the same, 20 % load", Some(0.2)),
        scenario("herd-closed", "2,000 hosts, 16 targets, 1 command in flight each", None),
        spike,
        weak,
        long,
    ]
}

impl Scenario {
    /// The same with windows and faults `times` sooner and shorter. For what depends on time only
    /// through a batch time-out, with that shortened alike.
    #[must_use]
    pub fn hastened(mut self, times: u64) -> Scenario {
        for window in &mut self.windows {
            window.from_ns /= times;
            window.until_ns /= times;
        }
        for fault in &mut self.faults {
            fault.from_ns /= times;
            fault.until_ns /= times;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn scenarios_make_sense() {
        let all = all();
        let names: BTreeSet<_> = all.iter().map(|scenario| scenario.name).collect();
        assert_eq!(names.len(), all.len(), "names differ");
        for scenario in &all {
            let shares: f64 = scenario.classes().iter().map(|class| class.share).sum();
            assert!((shares - 1.0).abs() < 1e-9, "{}", scenario.name);
            assert!(scenario.ports.len() <= multipath::PATHS_MAX);
            for fault in &scenario.faults {
                assert!(fault.port < scenario.ports.len() && fault.until_ns < scenario.end_ns());
            }
            assert!(crate::bound::best_at(scenario, 0) > 0.0, "{}", scenario.name);
        }
        assert_eq!(named("sizes").map(|scenario| scenario.sizes.len()), Some(2));
        assert!(named("no such").is_none());
    }
}
