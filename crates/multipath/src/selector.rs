//! One core's choice of paths.

use crate::classic::Classic;
use crate::completion_time::{Demand, Estimates, SLOW_NS, WORK_OVERHEAD};
use crate::depth::Counted;
use crate::latency::Latency;
use crate::probe::{Prober, Shared};
use crate::set::PathSet;
use crate::{GroupStatistics, PATHS_MAX, PROBE_BYTES, Policy, Settings};
use std::sync::Arc;

/// Halving time of the counts that shares are computed from.
const SHARE_HALF_LIFE_NS: u64 = 1_000_000_000;

/// How a path stands; optimized paths are used before others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Live, and ANA optimized.
    Optimized,
    /// Live, and ANA non-optimized.
    NonOptimized,
    /// Never used.
    Unusable,
}

/// Commands that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Group {
    /// Data comes from the controller.
    Read,
    /// Data goes to the controller.
    Write,
    /// No data to speak of: Flush, Dataset Management, Write Zeroes, Verify.
    Other,
}

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The controller answered, with whatever status.
    Answered,
    /// The controller put it off, or its data came to harm: it is to be sent again. How long that took says nothing.
    PutOff,
    /// The path failed it.
    Failed,
}

/// To be kept with a command in flight.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    pub(crate) sent_ns: u64,
    pub(crate) work: u64,
    /// Work in flight with it.
    pub(crate) queued: u64,
    /// Work delivered before it.
    pub(crate) delivered: u64,
    pub(crate) path: u8,
    pub(crate) group: Group,
    pub(crate) probe: bool,
}

/// One core's paths.
#[derive(Clone, Debug)]
pub struct Selector {
    settings: Settings,
    paths: usize,
    optimized: PathSet,
    non_optimized: PathSet,
    /// Farther away than the nearest.
    remote: PathSet,
    in_flight: [u32; PATHS_MAX],
    estimates: [Estimates; 3],
    classic: Classic,
    counted: Counted,
    latencies: [Latency; 3],
    /// What tells this core from others.
    seed: u64,
    distances: [u8; PATHS_MAX],
    selections: [[u64; PATHS_MAX]; 3],
    commands: u64,
    /// Selections of late, halved every second.
    recent: [u64; PATHS_MAX],
    halved_ns: u64,
    prober: Prober,
    /// Paths with a probe in flight.
    probing: PathSet,
    shared: Arc<Shared>,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 3] = [Group::Read, Group::Write, Group::Other];

    /// As statistics call it.
    pub fn name(self) -> &'static str {
        match self {
            Group::Read => "read",
            Group::Write => "write",
            Group::Other => "other",
        }
    }
}

/// Of no path anything is known yet.
fn unknown(seed: u64) -> [Latency; 3] {
    std::array::from_fn(|_| Latency::beginning_with(seed))
}

impl Token {
    /// Where the command went.
    #[inline]
    pub fn path(&self) -> usize {
        usize::from(self.path)
    }

    /// When it was sent.
    #[inline]
    pub fn sent_ns(&self) -> u64 {
        self.sent_ns
    }
}

impl Selector {
    /// A selector of `paths` paths, all optimized, as near as each other and idle. `shared` is
    /// that of all cores of this host, `seed` differs by one from core to core, and by chance from host to host.
    ///
    /// # Panics
    /// If `paths` is zero or above [`PATHS_MAX`].
    pub fn new(paths: usize, settings: Settings, shared: Arc<Shared>, seed: u64) -> Selector {
        assert!((1..=PATHS_MAX).contains(&paths));
        assert!(settings.latency_ewma_shift <= Settings::SHIFT_MAX);
        Selector {
            settings,
            paths,
            optimized: PathSet::first(paths),
            non_optimized: PathSet::EMPTY,
            remote: PathSet::EMPTY,
            in_flight: [0; PATHS_MAX],
            estimates: Default::default(),
            classic: Classic::default(),
            counted: Counted::new(Arc::clone(&shared)),
            latencies: unknown(seed),
            seed,
            distances: [0; PATHS_MAX],
            selections: Default::default(),
            commands: 0,
            recent: [0; PATHS_MAX],
            halved_ns: 0,
            prober: Prober::new(seed),
            probing: PathSet::EMPTY,
            shared,
        }
    }

    /// The path for a command of `bytes`, other than those in `avoid`; none if no other is usable.
    #[inline]
    pub fn select(
        &mut self,
        now_ns: u64,
        group: Group,
        bytes: u64,
        avoid: PathSet,
    ) -> Option<usize> {
        let optimized = self.optimized.without(avoid);
        let non_optimized = self.non_optimized.without(avoid);
        let candidates = if optimized.is_empty() { non_optimized } else { optimized };
        if candidates.is_empty() {
            return None;
        }
        match self.settings.policy {
            Policy::CompletionTime => {
                let demand = self.demand(now_ns, group, bytes, candidates);
                let [read, write, other] = &mut self.estimates;
                let (own, stand_in, reads) = match group {
                    Group::Read => (read, &*write, &*write),
                    Group::Write => (write, &*read, &*read),
                    Group::Other => (other, &*write, &*read),
                };
                Some(own.select(&demand, stand_in, reads))
            }
            Policy::RoundRobin => self.classic.round_robin(optimized, non_optimized),
            Policy::QueueDepth => self.counted.least(candidates),
            Policy::Latency => Some(self.latencies[group as usize].select(candidates)),
            Policy::Numa if avoid.is_empty() => {
                self.classic.numa(optimized, non_optimized, &self.distances)
            }
            Policy::Numa => self.classic.numa_elsewhere(optimized, non_optimized, &self.distances),
        }
    }

    /// Notes that a command is being sent on `path`. To be ended by [`Selector::completed`].
    #[inline]
    pub fn submitted(&mut self, path: usize, now_ns: u64, group: Group, bytes: u64) -> Token {
        let kind = group as usize;
        self.in_flight[path] += 1;
        self.selections[kind][path] += 1;
        self.recent[path] += 1;
        self.commands += 1;
        if self.settings.policy == Policy::QueueDepth {
            self.counted.begin(path);
        }
        let estimates = &mut self.estimates[kind];
        let token = Token {
            sent_ns: now_ns,
            work: bytes + WORK_OVERHEAD,
            queued: estimates.path(path).queued,
            delivered: estimates.delivered(path),
            path: path as u8,
            group,
            probe: false,
        };
        estimates.submitted(&token);
        Token { queued: token.queued + token.work, ..token }
    }

    /// Notes that a probe is being sent on `path`: a read of `bytes` that nobody asked for.
    pub fn probe_submitted(&mut self, path: usize, now_ns: u64, bytes: u64) -> Token {
        self.probing = self.probing.with(path);
        Token { probe: true, ..self.submitted(path, now_ns, Group::Read, bytes) }
    }

    /// Notes that a command has ended.
    #[inline]
    pub fn completed(&mut self, token: &Token, now_ns: u64, outcome: Outcome) {
        let (path, kind) = (token.path(), token.group as usize);
        self.in_flight[path] -= 1;
        if self.settings.policy == Policy::QueueDepth {
            self.counted.end(path);
        }
        let estimates = &mut self.estimates[kind];
        estimates.ended(token, now_ns);
        let shift = self.settings.latency_ewma_shift;
        match (self.settings.policy, outcome) {
            (Policy::CompletionTime, Outcome::Answered) => {
                estimates.sample(token, now_ns, self.settings.batch_ns(), shift);
            }
            (Policy::CompletionTime, Outcome::PutOff | Outcome::Failed) => {
                estimates.failed(path, now_ns)
            }
            (Policy::Latency, Outcome::Answered) => {
                let latency_ns = now_ns.saturating_sub(token.sent_ns);
                let (latencies, batch_ns) = (&mut self.latencies[kind], self.settings.batch_ns());
                latencies.sample(path, latency_ns, now_ns, batch_ns, shift, self.paths);
            }
            // A path without a weight takes everything: no reward for putting commands off.
            (Policy::Latency, Outcome::Failed) => self.latencies[kind].reset(path),
            _ => {}
        }
        if token.probe {
            self.probed(token, now_ns, outcome);
        }
    }

    #[cold]
    fn probed(&mut self, token: &Token, now_ns: u64, outcome: Outcome) {
        let path = token.path();
        self.probing = self.probing.without(PathSet::of(path));
        if outcome != Outcome::Answered {
            return;
        }
        self.shared.tell(path, now_ns.saturating_sub(token.sent_ns), now_ns);
        self.estimates.iter_mut().for_each(|estimates| estimates.forgive(path));
    }

    /// A path to be probed now: the caller sends it a small read of its own (whose data nobody
    /// wants) and notes it with [`Selector::probe_submitted`]. To be called every 10 ms or so while
    /// there are commands, until it returns none; never if there are none, so that an idle host is
    /// idle.
    pub fn probe(&mut self, now_ns: u64) -> Option<usize> {
        if self.settings.policy != Policy::CompletionTime || self.paths < 2 {
            return None;
        }
        let class = self.usable_class();
        let due = { class }.find(|&path| self.wants_probe(path, now_ns, false));
        let is_enough = due.is_some() || self.prober.is_affordable(self.commands);
        if is_enough || !self.is_slow(class, now_ns) {
            return due;
        }
        let next = self.prober.next();
        let mut turns = (next..self.paths).chain(0..next);
        turns.find(|&path| class.contains(path) && self.wants_probe(path, now_ns, true))
    }

    /// Changes policy or tunables. What was learned under another policy is forgotten.
    ///
    /// # Panics
    /// If `latency_ewma_shift` is above [`Settings::SHIFT_MAX`].
    pub fn configure(&mut self, settings: Settings) {
        assert!(settings.latency_ewma_shift <= Settings::SHIFT_MAX);
        if settings.policy != self.settings.policy {
            self.classic.forget();
            self.latencies = unknown(self.seed);
            self.estimates.iter_mut().for_each(Estimates::reset);
            match settings.policy {
                Policy::QueueDepth => self.counted.begin_all(&self.in_flight),
                _ => self.counted.end_all(),
            }
        }
        self.settings = settings;
    }

    /// What it was told.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Tells how a path stands.
    pub fn stand(&mut self, path: usize, standing: Standing) {
        if standing == self.standing(path) {
            return;
        }
        let this = PathSet::of(path);
        if self.standing(path) == Standing::Unusable {
            self.estimates.iter_mut().for_each(|estimates| estimates.returned(path));
        }
        if standing == Standing::Unusable {
            self.latencies.iter_mut().for_each(|latencies| latencies.reset(path));
        }
        self.optimized = self.optimized.without(this);
        self.non_optimized = self.non_optimized.without(this);
        match standing {
            Standing::Optimized => self.optimized = self.optimized.with(path),
            Standing::NonOptimized => self.non_optimized = self.non_optimized.with(path),
            Standing::Unusable => {}
        }
        self.classic.forget();
    }

    /// How a path stands.
    pub fn standing(&self, path: usize) -> Standing {
        assert!(path < self.paths);
        match () {
            () if self.optimized.contains(path) => Standing::Optimized,
            () if self.non_optimized.contains(path) => Standing::NonOptimized,
            () => Standing::Unusable,
        }
    }

    /// Tells how far a path is from this core, as the kernel does (10 is the same node). All are
    /// equally far at first.
    pub fn place(&mut self, path: usize, distance: u8) {
        assert!(path < self.paths);
        self.distances[path] = distance;
        let nearest = self.distances[..self.paths].iter().min();
        let far = (0..self.paths).filter(|&path| Some(&self.distances[path]) != nearest);
        self.remote = far.fold(PathSet::EMPTY, PathSet::with);
        self.classic.forget();
    }

    /// Whether a path may be used at all.
    #[inline]
    pub fn has_usable(&self) -> bool {
        !(self.optimized.is_empty() && self.non_optimized.is_empty())
    }

    /// Commands in flight on `path`.
    pub fn in_flight(&self, path: usize) -> u32 {
        self.in_flight[path]
    }

    /// Share of `path` in the selections of the last seconds, 0 to 128. To be asked for now and
    /// then: it is what lets the past fade.
    pub fn share(&mut self, path: usize, now_ns: u64) -> u32 {
        if now_ns.saturating_sub(self.halved_ns) >= SHARE_HALF_LIFE_NS {
            self.halved_ns = now_ns;
            // Where there was next to nothing, the last known shares stay.
            if self.recent.iter().sum::<u64>() >= 256 {
                self.recent.iter_mut().for_each(|count| *count /= 2);
            }
        }
        let sum: u64 = self.recent.iter().sum();
        ((self.recent[path] * 128 + sum / 2).checked_div(sum).unwrap_or(0)) as u32
    }

    /// What is known of a path.
    pub fn statistics(&self, path: usize, group: Group, now_ns: u64) -> GroupStatistics {
        let latency = self.latencies[group as usize].path(path);
        let estimate = self.estimates[group as usize].path(path);
        GroupStatistics {
            weight: latency.weight,
            credit: latency.credit,
            score: latency.score,
            slat_ns: latency.slat_ns,
            sel: self.selections[group as usize][path],
            nr_samples: latency.samples,
            nr_ignored: latency.ignored,
            in_flight: estimate.in_flight,
            queued_work: estimate.queued,
            latency_ns: estimate.latency_ns() as u64,
            backlog_work: estimate.backlog as u64,
            rate: estimate.rate_per_second() as u64,
            least_ns: estimate.least_ns() as u64,
            silent_ns: estimate.silent_ns(now_ns),
            clipped: estimate.clipped,
            probes: if group == Group::Read { self.prober.probes(path) } else { 0 },
        }
    }

    /// The paths that are chosen from, failures aside.
    fn usable_class(&self) -> PathSet {
        if self.optimized.is_empty() { self.non_optimized } else { self.optimized }
    }

    fn demand(&self, now_ns: u64, group: Group, bytes: u64, candidates: PathSet) -> Demand {
        Demand {
            candidates,
            remote: self.remote,
            paths: self.paths,
            work: bytes + WORK_OVERHEAD,
            now_ns,
            numa_bias_ns: self.settings.numa_bias_ns as f64,
            refreshes: group != Group::Read,
        }
    }

    fn wants_probe(&mut self, path: usize, now_ns: u64, hasty: bool) -> bool {
        let reads = &mut self.estimates[Group::Read as usize];
        let read = reads.path(path);
        let heard_ns = read.updated_ns;
        if read.in_flight > 0 || !self.prober.is_idle(path, heard_ns, now_ns) {
            return false;
        }
        let (latency_ns, measured_ns) = self.shared.told(path);
        if measured_ns > heard_ns && !self.prober.is_idle(path, measured_ns, now_ns) {
            reads.told(path, latency_ns, PROBE_BYTES + WORK_OVERHEAD, measured_ns);
            return false;
        }
        self.prober.is_due(path, self.commands, now_ns, hasty, &self.shared)
    }

    /// Whether users' commands are in flight on paths of `class` where they take longer than [`SLOW_NS`].
    fn is_slow(&self, mut class: PathSet, now_ns: u64) -> bool {
        class.any(|path| {
            Group::ALL.iter().any(|&group| {
                let known = self.estimates[group as usize].path(path);
                let probes = u32::from(group == Group::Read && self.probing.contains(path));
                let takes_ns = known.latency_ns().max(known.silent_ns(now_ns) as f64);
                known.in_flight > probes && takes_ns > SLOW_NS
            })
        })
    }
}
