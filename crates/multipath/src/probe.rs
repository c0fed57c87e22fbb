//! When a path that nobody uses is to be measured.
//!
//! A path without commands for 100 ms (25 % more or less, so that hosts do not probe in step) gets
//! one small read, if this core has sent 128 commands since its last probe there or a second has
//! passed; and if it has sent 32 commands since its last probe anywhere. So probes are never more
//! than 3 % of the commands: thousands of hosts that use 16 paths a little each would otherwise
//! load their targets with probes (docs/simulation.md, herd-long). One probe per path and host is
//! enough: cores share what they know through [`Shared`], a few relaxed atomics that are looked at
//! from [`crate::Selector::probe`] and never per command.
//!
//! Where commands are slow, a host sends one a second however few they are: whoever has four in
//! flight that take 2 s each would need 16 s for 32. Idle paths have their turns then. By what
//! commands allow, the first one goes first: with turns, thousands of hosts that do little swing
//! more (docs/simulation.md, herd-calm: by 36 % instead of 20 %).

use crate::PATHS_MAX;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A path is idle after so long without an answer.
pub const IDLE_NS: u64 = 100_000_000;
/// Commands of this core between two probes of a path, if they come within [`PATIENCE_NS`].
const COMMANDS_BETWEEN: u64 = 128;
/// A probe that is due waits no longer for commands.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Commands of this core between two probes of any paths.
const COMMANDS_BETWEEN_ANY: u64 = 32;

/// What the cores of a host tell one another of the paths.
#[derive(Debug, Default)]
pub struct Shared {
    paths: [SharedPath; PATHS_MAX],
    /// When a core probed last for which commands were too few.
    hastened_ns: AtomicU64,
}

/// On a cache line of its own. The two of a sample belong together but are not written together: a
/// reader may see the time of one with the latency of another, which is an estimate too.
#[derive(Debug, Default)]
#[repr(align(64))]
struct SharedPath {
    /// When a core took it upon itself to probe.
    claimed_ns: AtomicU64,
    /// When what follows was measured.
    measured_ns: AtomicU64,
    latency_ns: AtomicU64,
    /// Commands in flight, of those cores whose policy is queue-depth.
    active: AtomicU32,
}

/// One core's part.
#[derive(Clone, Debug)]
pub struct Prober {
    paths: [ProbedPath; PATHS_MAX],
    /// Commands of this core before its last probe.
    commands: u64,
    /// The path after the last one that was probed in haste.
    next: usize,
    random: u64,
}

#[derive(Clone, Copy, Debug)]
struct ProbedPath {
    /// After how long without an answer it counts as idle next time.
    idle_ns: u64,
    /// When it was probed last from here, and after how many commands of this core.
    probed_ns: u64,
    commands: u64,
    probes: u64,
}

impl Shared {
    /// Has siblings know what was measured.
    pub fn tell(&self, path: usize, latency_ns: u64, now_ns: u64) {
        let path = &self.paths[path];
        path.latency_ns.store(latency_ns, Ordering::Relaxed);
        path.measured_ns.store(now_ns, Ordering::Relaxed);
    }

    /// What was measured last, and when.
    pub fn told(&self, path: usize) -> (u64, u64) {
        let path = &self.paths[path];
        (path.latency_ns.load(Ordering::Relaxed), path.measured_ns.load(Ordering::Relaxed))
    }

    /// Commands in flight, of those cores whose policy is queue-depth.
    #[inline]
    pub fn active(&self, path: usize) -> u32 {
        self.paths[path].active.load(Ordering::Relaxed)
    }

    /// So many more.
    #[inline]
    pub fn count(&self, path: usize, commands: u32) {
        self.paths[path].active.fetch_add(commands, Ordering::Relaxed);
    }

    /// So many fewer.
    #[inline]
    pub fn discount(&self, path: usize, commands: u32) {
        self.paths[path].active.fetch_sub(commands, Ordering::Relaxed);
    }

    /// Takes a probe upon oneself, unless a sibling did within `idle_ns`.
    fn claim(&self, path: usize, now_ns: u64, idle_ns: u64) -> bool {
        claim(&self.paths[path].claimed_ns, now_ns, idle_ns)
    }

    /// The same of the one that a host may send in [`PATIENCE_NS`] whatever it has sent else.
    fn hasten(&self, now_ns: u64) -> bool {
        claim(&self.hastened_ns, now_ns, PATIENCE_NS)
    }

    /// Whether nobody has, lately.
    fn may_hasten(&self, now_ns: u64) -> bool {
        is_free(self.hastened_ns.load(Ordering::Relaxed), now_ns, PATIENCE_NS)
    }
}

fn is_free(claimed_ns: u64, now_ns: u64, pause_ns: u64) -> bool {
    claimed_ns == 0 || now_ns.saturating_sub(claimed_ns) >= pause_ns
}

/// Whether the caller is the one that has its turn, as nobody had within `pause_ns`.
fn claim(claimed_ns: &AtomicU64, now_ns: u64, pause_ns: u64) -> bool {
    let before = claimed_ns.load(Ordering::Relaxed);
    let (order, relaxed) = (Ordering::Relaxed, Ordering::Relaxed);
    is_free(before, now_ns, pause_ns)
        && claimed_ns.compare_exchange(before, now_ns.max(1), order, relaxed).is_ok()
}

impl Prober {
    pub fn new(seed: u64) -> Prober {
        let path = ProbedPath { idle_ns: IDLE_NS, probed_ns: 0, commands: 0, probes: 0 };
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut prober = Prober { paths: [path; PATHS_MAX], commands: 0, next: 0, random };
        for path in 0..PATHS_MAX {
            prober.paths[path].idle_ns = prober.jittered();
        }
        prober
    }

    /// Whether `path`, silent since `heard_ns`, counts as idle.
    pub fn is_idle(&self, path: usize, heard_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(heard_ns) >= self.paths[path].idle_ns
    }

    /// Whether a probe would be one in 32 of the commands that this core sends.
    pub fn is_affordable(&self, commands: u64) -> bool {
        commands - self.commands >= COMMANDS_BETWEEN_ANY
    }

    /// The path that has its turn where commands are slow.
    pub fn next(&self) -> usize {
        self.next
    }

    /// Whether this core is to probe an idle `path` now, having sent so many commands so far: by what they allow, or,
    /// where that is `hasty`, by what the host is allowed whatever it sends.
    pub fn is_due(
        &mut self,
        path: usize,
        commands: u64,
        now_ns: u64,
        hasty: bool,
        shared: &Shared,
    ) -> bool {
        let state = &self.paths[path];
        let since_ns = now_ns.saturating_sub(state.probed_ns);
        let ready = commands - state.commands >= COMMANDS_BETWEEN || since_ns >= PATIENCE_NS;
        let allowed = if hasty { shared.may_hasten(now_ns) } else { self.is_affordable(commands) };
        // After a probe that told nothing, as long as for the first.
        if !ready
            || since_ns < state.idle_ns
            || !allowed
            || !shared.claim(path, now_ns, state.idle_ns)
            || (hasty && !shared.hasten(now_ns))
        {
            return false;
        }
        let idle_ns = self.jittered();
        let probes = self.paths[path].probes + 1;
        self.commands = commands;
        self.next = if hasty { path + 1 } else { self.next };
        self.paths[path] = ProbedPath { idle_ns, probed_ns: now_ns, commands, probes };
        true
    }

    /// Probes of `path` from here.
    pub fn probes(&self, path: usize) -> u64 {
        self.paths[path].probes
    }

    /// [`IDLE_NS`], a quarter more or less (xorshift, which is random enough).
    fn jittered(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        IDLE_NS - IDLE_NS / 4 + (self.random >> 11) % (IDLE_NS / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn one_core_of_two_probes() {
        let shared = Shared::default();
        let (mut one, mut other) = (Prober::new(1), Prober::new(2));
        let now = 5_000 * MS;
        assert!(!one.is_idle(0, now - 70 * MS, now));
        assert!(one.is_idle(0, now - 130 * MS, now));
        assert!(one.is_due(0, 200, now, false, &shared));
        assert!(!other.is_due(0, 200, now + 10 * MS, false, &shared), "its sibling does");
        assert!(other.is_due(1, 200, now + 10 * MS, false, &shared), "of another path nobody does");
        assert_eq!((one.probes(0), other.probes(0), other.probes(1)), (1, 0, 1));
    }

    #[test]
    fn commands_or_a_second_come_between() {
        let (shared, mut prober) = (Shared::default(), Prober::new(3));
        let now = 5_000 * MS;
        assert!(prober.is_due(0, 200, now, false, &shared));
        assert!(!prober.is_due(0, 327, now + 200 * MS, false, &shared), "127 commands");
        assert!(prober.is_due(0, 328, now + 200 * MS, false, &shared));
        assert!(!prober.is_due(0, 360, now + 1_100 * MS, false, &shared));
        assert!(prober.is_due(0, 360, now + 1_200 * MS, false, &shared));
        assert!(!prober.is_due(0, 900, now + 1_260 * MS, false, &shared), "too soon after");
    }

    #[test]
    fn probes_are_few_among_the_commands() {
        let (shared, mut prober) = (Shared::default(), Prober::new(5));
        let now = 5_000 * MS;
        assert!(!prober.is_due(0, 31, now, false, &shared), "31 commands so far");
        assert!(prober.is_due(0, 32, now, false, &shared));
        // Another path has waited long enough, but the last probe was 31 commands ago.
        assert!(!prober.is_due(1, 63, now + 2_000 * MS, false, &shared));
        assert!(prober.is_due(1, 64, now + 2_000 * MS, false, &shared));
        // An idle host does not probe, however long it waits.
        assert!(!prober.is_due(2, 64, now + 90_000 * MS, false, &shared));
    }

    #[test]
    fn a_host_whose_commands_are_slow_probes_once_a_second() {
        let shared = Shared::default();
        let (mut one, mut other) = (Prober::new(5), Prober::new(6));
        let now = 5_000 * MS;
        assert!(one.is_due(0, 2, now, true, &shared));
        assert!(!one.is_due(1, 4, now + 900 * MS, true, &shared));
        assert!(!other.is_due(1, 4, now + 900 * MS, true, &shared), "the host has one");
        assert!(!one.is_due(1, 4, now + 1_000 * MS, false, &shared));
        assert!(other.is_due(1, 4, now + 1_000 * MS, true, &shared));
        assert!(!one.is_due(0, 6, now + 1_900 * MS, true, &shared));
        // By what commands allow, the next one does not count; turns are of those in haste.
        assert!(one.is_due(2, 34, now + 1_900 * MS, false, &shared));
        assert!(one.is_due(0, 36, now + 2_000 * MS, true, &shared));
        assert!(one.is_due(3, 68, now + 2_100 * MS, false, &shared));
        assert_eq!((one.next(), other.next()), (1, 2));
    }

    #[test]
    fn idle_times_vary_by_a_quarter() {
        let mut prober = Prober::new(4);
        let times: Vec<_> = (0..1000).map(|_| prober.jittered() / MS).collect();
        assert!(times.iter().all(|time| (75..125).contains(time)));
        let (low, high) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        assert!(*low < 80 && *high > 119, "{low} to {high}");
    }
}
