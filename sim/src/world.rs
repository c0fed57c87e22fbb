//! A scenario at work: hosts with real selectors, on virtual time.

use crate::agenda::Agenda;
use crate::attempts::{Attempt, Attempts, Wish};
use crate::measure::Meter;
use crate::model::{FaultKind, Load, MS, Queueing, RTO_NS, Scenario};
use crate::random::Random;
use crate::station::{Job, Station};
use multipath::{Group, Outcome, PROBE_BYTES, PathSet, Selector, Settings, Shared, Standing};
use std::collections::VecDeque;
use std::sync::Arc;

/// How often a core that has commands looks for a path to be probed.
const PROBE_TICK_NS: u64 = 10 * MS;
/// A processor's time varies by this part.
const COST_JITTER: f64 = 0.25;
/// The latency of backend and port varies by this part.
const LATENCY_JITTER: f64 = 0.1;

/// Where an attempt is, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Up,
    Processor,
    Backend,
    Down,
    Host,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A station is done with a job.
    Served(u32),
    /// An attempt gets somewhere.
    Reaches(u32, Stage),
    /// A closed loop's slot, or the next command of an open one.
    Begins(u32),
    /// A core looks for paths to be probed.
    Tick(u32),
    FaultBegins(u16),
    FaultEnds(u16),
    /// All connections to a port are lost; what was sent before is failed.
    Lost(u16),
    /// A host is connected again: (host, port).
    Returned(u32, u16),
    /// A write whose connection is surely dead now.
    Again(u32),
}

struct Core {
    selector: Selector,
    /// Commands while no path is usable.
    waiting: VecDeque<Wish>,
    /// Commands sent, and at the last tick.
    sent: u64,
    ticked: u64,
}

#[derive(Clone, Copy, Default)]
struct PortState {
    extra_ns: u64,
    dead: bool,
    /// Commands between the links.
    inside: u32,
    /// End of a black hole, 0 if there is none.
    hole_until_ns: u64,
}

/// The simulation.
pub struct World<'a> {
    scenario: &'a Scenario,
    agenda: Agenda<Event>,
    random: Random,
    cores: Vec<Core>,
    attempts: Attempts,
    /// Up, processor and down of each port; the backend is the last.
    stations: Vec<Station>,
    ports: Vec<PortState>,
    /// When a connection's direction goes on after a black hole, by core, port and direction.
    stalled: Vec<(u64, u64)>,
    /// Sizes with the sums of their shares.
    sizes: Vec<(u32, f64)>,
    meter: Meter,
}

impl<'a> World<'a> {
    /// Everything at rest.
    pub fn new(scenario: &'a Scenario, settings: Settings, seed: u64) -> World<'a> {
        let mut random = Random::new(seed);
        let mut cores = Vec::new();
        for _ in 0..scenario.hosts {
            let shared = Arc::new(Shared::default());
            for _ in 0..scenario.cores {
                let (shared, seed) = (shared.clone(), random.bits());
                let selector = Selector::new(scenario.ports.len(), settings, shared, seed);
                cores.push(Core { selector, waiting: VecDeque::new(), sent: 0, ticked: 0 });
            }
        }
        let mut stations = Vec::new();
        for port in &scenario.ports {
            stations.push(Station::new(port.up, 0.0, port.queueing));
            stations.push(Station::new(port.rate, port.cost_ns, Queueing::Fifo));
            stations.push(Station::new(port.down, 0.0, port.queueing));
        }
        stations.push(Station::new(scenario.backend.rate, 0.0, Queueing::Fifo));
        let holes = scenario.faults.iter().any(|fault| fault.kind == FaultKind::BlackHole);
        let directions = if holes { cores.len() * scenario.ports.len() * 2 } else { 0 };
        let mut total = 0.0;
        let sizes = scenario.sizes.iter().map(|(bytes, share)| {
            total += share;
            (*bytes, total)
        });
        let sizes = sizes.collect();
        let mut world = World {
            scenario,
            agenda: Agenda::default(),
            random,
            cores,
            attempts: Attempts::default(),
            stations,
            ports: vec![PortState::default(); scenario.ports.len()],
            stalled: vec![(0, 0); directions],
            sizes,
            meter: Meter::new(scenario),
        };
        world.plan(settings.policy == multipath::Policy::CompletionTime);
        world
    }

    fn plan(&mut self, probes: bool) {
        for (number, fault) in (0..).zip(&self.scenario.faults) {
            self.agenda.at(fault.from_ns, Event::FaultBegins(number));
            self.agenda.at(fault.until_ns, Event::FaultEnds(number));
        }
        for core in 0..self.cores.len() as u32 {
            let slots = match self.scenario.load {
                Load::Closed { in_flight } => in_flight,
                Load::Open { .. } => 1,
            };
            let start_ns = self.random.below(self.scenario.start_spread_ns.max(1));
            for _ in 0..slots {
                self.agenda.at(start_ns, Event::Begins(core));
            }
            if probes {
                let at_ns = start_ns + self.random.below(PROBE_TICK_NS);
                self.agenda.at(at_ns, Event::Tick(core));
            }
        }
    }

    /// Runs to the end. What was measured, and how many events there were.
    pub fn run(mut self) -> (Meter, u64) {
        let end_ns = self.scenario.end_ns();
        while let Some(event) = self.agenda.next_before(end_ns) {
            match event {
                Event::Served(station) => self.served(station),
                Event::Reaches(attempt, stage) => self.reaches(attempt, stage),
                Event::Begins(core) => self.begins(core),
                Event::Tick(core) => self.tick(core),
                Event::FaultBegins(fault) => self.fault(fault, true),
                Event::FaultEnds(fault) => self.fault(fault, false),
                Event::Lost(port) => self.lost(usize::from(port)),
                Event::Returned(host, port) => self.returned(host, usize::from(port)),
                Event::Again(attempt) => self.again(attempt),
            }
        }
        (self.meter, self.agenda.planned())
    }

    fn begins(&mut self, core: u32) {
        if let Load::Open { iops } = self.scenario.load {
            let next_ns = self.random.exponential(1e9 / iops) as u64;
            self.agenda.after(next_ns, Event::Begins(core));
        }
        let wish = self.wish(core);
        self.submit(wish);
    }

    fn wish(&mut self, core: u32) -> Wish {
        let reads = self.scenario.reads;
        let is_read = reads >= 1.0 || (reads > 0.0 && self.random.chance(reads));
        let bytes = match self.sizes[..] {
            [(bytes, _)] => bytes,
            _ => {
                let drawn = self.random.unit();
                let found = self.sizes.iter().find(|(_, until)| drawn < *until);
                found.unwrap_or(&self.sizes[self.sizes.len() - 1]).0
            }
        };
        let group = if is_read { Group::Read } else { Group::Write };
        Wish { core, group, bytes, begun_ns: self.agenda.now_ns() }
    }

    fn submit(&mut self, wish: Wish) {
        let now_ns = self.agenda.now_ns();
        let core = &mut self.cores[wish.core as usize];
        let bytes = u64::from(wish.bytes);
        let Some(path) = core.selector.select(now_ns, wish.group, bytes, PathSet::EMPTY) else {
            core.waiting.push_back(wish);
            return;
        };
        core.sent += 1;
        let token = core.selector.submitted(path, now_ns, wish.group, bytes);
        let attempt = self.attempts.insert(Attempt::new(wish, token, false));
        self.enter(attempt, Stage::Up);
    }

    fn tick(&mut self, number: u32) {
        let now_ns = self.agenda.now_ns();
        loop {
            let core = &mut self.cores[number as usize];
            if core.sent == core.ticked {
                break;
            }
            let Some(path) = core.selector.probe(now_ns) else {
                core.ticked = core.sent;
                break;
            };
            let token = core.selector.probe_submitted(path, now_ns, PROBE_BYTES);
            let bytes = PROBE_BYTES as u32;
            let wish = Wish { core: number, group: Group::Read, bytes, begun_ns: now_ns };
            let attempt = self.attempts.insert(Attempt::new(wish, token, true));
            self.enter(attempt, Stage::Up);
        }
        self.agenda.after(PROBE_TICK_NS, Event::Tick(number));
    }

    /// Puts an attempt into the queue of a stage.
    fn enter(&mut self, number: u32, stage: Stage) {
        let Wish { core, group, bytes, .. } = self.attempts[number].wish;
        let port = self.attempts[number].token.path();
        let index = match stage {
            Stage::Up => port * 3,
            Stage::Processor => port * 3 + 1,
            Stage::Down => port * 3 + 2,
            Stage::Backend => self.stations.len() - 1,
            Stage::Host => unreachable!("a host is no station"),
        };
        if self.stations[index].is_instant() {
            return self.leaves(number, stage);
        }
        let class = crate::model::Class { group, bytes, share: 1.0 };
        let (up, down) = class.wire_bytes();
        let bytes = match stage {
            Stage::Up => up,
            Stage::Down => down,
            _ => bytes,
        };
        let command = if stage == Stage::Up { group == Group::Read } else { group != Group::Read };
        let flow = core * 2 + u32::from(group != Group::Read);
        let job = Job { attempt: number, bytes, flow, command };
        if let Some(time_ns) = self.stations[index].offer(job) {
            self.serve(index, time_ns);
        }
    }

    fn serve(&mut self, station: usize, time_ns: f64) {
        let is_processor = station + 1 < self.stations.len() && station % 3 == 1;
        let time_ns = if is_processor { self.vary(time_ns, COST_JITTER) } else { time_ns };
        self.agenda.after(time_ns as u64, Event::Served(station as u32));
    }

    fn vary(&mut self, value: f64, part: f64) -> f64 {
        value * (1.0 + part * (2.0 * self.random.unit() - 1.0))
    }

    fn served(&mut self, station: u32) {
        let station = station as usize;
        let (job, next) = self.stations[station].served();
        if let Some(time_ns) = next {
            self.serve(station, time_ns);
        }
        let stage = match (station + 1 == self.stations.len(), station % 3) {
            (true, _) => Stage::Backend,
            (_, 0) => Stage::Up,
            (_, 1) => Stage::Processor,
            _ => Stage::Down,
        };
        self.leaves(job.attempt, stage);
    }

    /// A station is done with an attempt.
    fn leaves(&mut self, number: u32, stage: Stage) {
        let attempt = &self.attempts[number];
        let (port, group) = (attempt.token.path(), attempt.wish.group);
        let delay_ns = self.scenario.ports[port].delay_ns;
        match stage {
            Stage::Up => self.agenda.after(delay_ns, Event::Reaches(number, Stage::Processor)),
            Stage::Processor => self.enter(number, Stage::Backend),
            Stage::Backend => {
                let state = &self.ports[port];
                let own_ns = self.scenario.ports[port].latency_ns(group) + state.extra_ns;
                let behind_ns = self.scenario.backend.latency_ns(group, state.inside);
                let latency_ns = self.vary(own_ns as f64 + behind_ns, LATENCY_JITTER) as u64;
                self.agenda.after(latency_ns, Event::Reaches(number, Stage::Down));
            }
            Stage::Down => self.agenda.after(delay_ns, Event::Reaches(number, Stage::Host)),
            Stage::Host => unreachable!("nothing leaves a host this way"),
        }
    }

    /// An attempt gets through the network, or does not.
    fn reaches(&mut self, number: u32, stage: Stage) {
        let attempt = &self.attempts[number];
        let port = attempt.token.path();
        if stage == Stage::Down {
            self.ports[port].inside -= 1;
        }
        // What belongs to a connection that is gone is thrown away.
        if attempt.is_abandoned || self.ports[port].dead {
            return self.drop_attempt(number);
        }
        if stage != Stage::Down
            && let Some(until_ns) = self.held(number, stage)
        {
            return self.agenda.at(until_ns, Event::Reaches(number, stage));
        }
        if stage == Stage::Host {
            return self.finish(number);
        }
        if stage == Stage::Processor {
            self.ports[port].inside += 1;
        }
        self.enter(number, stage);
    }

    /// Until when TCP holds a message back.
    fn held(&mut self, number: u32, stage: Stage) -> Option<u64> {
        if self.stalled.is_empty() {
            return None;
        }
        let attempt = &self.attempts[number];
        let (core, port) = (attempt.wish.core as usize, attempt.token.path());
        let direction = usize::from(stage == Stage::Host);
        let connection = (core * self.ports.len() + port) * 2 + direction;
        let (until_ns, now_ns) = (self.ports[port].hole_until_ns, self.agenda.now_ns());
        let (began_ns, goes_on_ns) = &mut self.stalled[connection];
        if now_ns >= *goes_on_ns {
            if now_ns >= until_ns {
                return None;
            }
            *began_ns = now_ns;
            let mut wait_ns = RTO_NS;
            while *began_ns + wait_ns < until_ns {
                wait_ns = 2 * wait_ns + RTO_NS;
            }
            *goes_on_ns = *began_ns + wait_ns;
        }
        Some(*goes_on_ns)
    }

    fn drop_attempt(&mut self, number: u32) {
        if self.attempts[number].is_abandoned {
            self.attempts.remove(number);
        } else {
            self.attempts[number].is_gone = true;
        }
    }

    fn finish(&mut self, number: u32) {
        let now_ns = self.agenda.now_ns();
        let Attempt { wish, token, is_probe, .. } = self.attempts.remove(number);
        let core = &mut self.cores[wish.core as usize];
        core.selector.completed(&token, now_ns, Outcome::Answered);
        if is_probe {
            return;
        }
        let took_ns = now_ns - wish.begun_ns;
        self.meter.completed(now_ns, token.path(), wish.group, wish.bytes, took_ns);
        if matches!(self.scenario.load, Load::Closed { .. }) {
            let wish = self.wish(wish.core);
            self.submit(wish);
        }
    }

    fn fault(&mut self, number: u16, begins: bool) {
        let fault = self.scenario.faults[usize::from(number)];
        let state = &mut self.ports[fault.port];
        match fault.kind {
            FaultKind::Slow(extra_ns) => state.extra_ns = if begins { extra_ns } else { 0 },
            FaultKind::Narrow(factor) => {
                let slowness = if begins { factor } else { 1.0 };
                let stations = &mut self.stations[fault.port * 3..fault.port * 3 + 3];
                stations.iter_mut().for_each(|station| station.slow_down(slowness));
            }
            FaultKind::BlackHole if begins => {
                state.hole_until_ns = fault.until_ns;
                let silence_ns = self.scenario.failover.silence_ns;
                if fault.from_ns + silence_ns < fault.until_ns {
                    self.agenda.after(silence_ns, Event::Lost(fault.port as u16));
                }
            }
            FaultKind::Kill if begins => {
                state.dead = true;
                let delay_ns = self.scenario.ports[fault.port].delay_ns;
                self.agenda.after(delay_ns, Event::Lost(fault.port as u16));
            }
            FaultKind::Kill => state.dead = false,
            FaultKind::BlackHole => {}
        }
        let is_lost = self.cores[0].selector.standing(fault.port) == Standing::Unusable;
        if !begins && is_lost {
            for host in 0..self.scenario.hosts as u32 {
                let at_ns = self.random.below(self.scenario.failover.reconnect_ns.max(1));
                self.agenda.after(at_ns, Event::Returned(host, fault.port as u16));
            }
        }
    }

    fn lost(&mut self, port: usize) {
        let now_ns = self.agenda.now_ns();
        for core in &mut self.cores {
            core.selector.stand(port, Standing::Unusable);
        }
        let hung_up = self.ports[port].dead;
        for number in self.attempts.of_port(port) {
            let Attempt { wish, token, is_probe, is_gone, .. } = self.attempts[number];
            let core = &mut self.cores[wish.core as usize];
            core.selector.completed(&token, now_ns, Outcome::Failed);
            if is_gone {
                self.attempts.remove(number);
            } else {
                self.attempts[number].is_abandoned = true;
            }
            if is_probe {
                continue;
            }
            if wish.group == Group::Read || hung_up {
                self.submit(wish);
            } else {
                let again = self.attempts.insert(Attempt::waiting(wish, token));
                self.agenda.after(self.scenario.failover.quiet_ns, Event::Again(again));
            }
        }
        let ports = self.ports.len();
        for connection in self.stalled.chunks_exact_mut(2).skip(port).step_by(ports) {
            connection.fill((0, 0));
        }
    }

    fn again(&mut self, number: u32) {
        let wish = self.attempts.remove(number).wish;
        self.submit(wish);
    }

    fn returned(&mut self, host: u32, port: usize) {
        let first = host as usize * self.scenario.cores;
        for number in first..first + self.scenario.cores {
            let core = &mut self.cores[number];
            core.selector.stand(port, Standing::Optimized);
            for wish in std::mem::take(&mut core.waiting) {
                self.submit(wish);
            }
        }
    }
}
