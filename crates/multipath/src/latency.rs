//! The latency policy as it was posted for Linux ("nvme-multipath: introduce latency-based I/O
//! policy", v4 to v6): shares in inverse proportion to average latency, handed out as credits.
//!
//! ```text
//!   samples of one batch -> mean -> slat (EWMA) -> score = 10^9 / slat
//!   weight = score x WEIGHT_SCALE / sum of scores, at least 1
//!   a path is used `weight` times in a row, then the next
//! ```
//!
//! As posted, also where that is questionable: a path without a weight takes everything until its
//! first sample; a sample above a second is ignored, so a dying path keeps its weight; commands in
//! flight do not count.
//!
//! Three differences. Linux did not tell optimized paths from others here, we do. A controller that puts a command off
//! keeps its path's weight. And Linux begins with the first path of
//! its list, on every core of every host: many hosts that begin together overload it, and when their samples come, these
//! are above a second, and are ignored. Here cores begin with different paths, those that are usable at their first
//! command taken in turn (docs/simulation.md). A path that comes back still takes everything until its first sample.

use crate::PATHS_MAX;
use crate::set::PathSet;

/// What the weights of all paths add up to, roughly. The posted code has 64; its text says that
/// weights are 0 to 128.
pub const WEIGHT_SCALE: u64 = 64;

/// Longer samples are ignored.
pub const SAMPLE_NS_MAX: u64 = 1_000_000_000;

/// What is known of one path in one group; names as in the posted `latency_stat`.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathLatency {
    /// Commands in a row, 0 before the first sample.
    pub weight: u32,
    /// Of which are left.
    pub credit: u32,
    /// 10^9 / `slat_ns`.
    pub score: u64,
    /// Smoothed latency.
    pub slat_ns: u64,
    /// Samples taken.
    pub samples: u64,
    /// Samples above [`SAMPLE_NS_MAX`].
    pub ignored: u64,
    batch_sum_ns: u64,
    batch_count: u64,
    batch_began_ns: Option<u64>,
}

/// The paths of one group on one core.
#[derive(Clone, Debug)]
pub struct Latency {
    paths: [PathLatency; PATHS_MAX],
    last: usize,
    /// Until the first command: which of the candidates it is to begin with, counted round and round.
    begins: Option<u64>,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency { paths: [PathLatency::default(); PATHS_MAX], last: 0, begins: None }
    }
}

impl Latency {
    /// Nothing is known yet. It is to begin with the candidate of this number, counted round and round: consecutive numbers
    /// are different paths.
    pub fn beginning_with(number: u64) -> Latency {
        Latency { begins: Some(number), ..Latency::default() }
    }

    /// The path that has credit, from the last one on. `candidates` has one at least.
    #[inline]
    pub fn select(&mut self, candidates: PathSet) -> usize {
        if let Some(number) = self.begins.take() {
            self.last = candidates.nth((number % candidates.len() as u64) as usize);
        }
        let mut path = self.last;
        loop {
            path = candidates.next_from(path).expect("there is a candidate");
            let state = &mut self.paths[path];
            if state.weight == 0 {
                break;
            }
            if state.credit > 0 {
                state.credit -= 1;
                break;
            }
            // Ends after one round: by then each has credit.
            state.credit = state.weight;
            path += 1;
        }
        self.last = path;
        path
    }

    /// Takes a sample of `path`; `paths` are all there are.
    #[inline]
    pub fn sample(
        &mut self,
        path: usize,
        latency_ns: u64,
        now_ns: u64,
        batch_ns: u64,
        ewma_shift: u8,
        paths: usize,
    ) {
        let state = &mut self.paths[path];
        if latency_ns == 0 || paths < 2 {
            return;
        }
        if latency_ns > SAMPLE_NS_MAX {
            state.ignored += 1;
            return;
        }
        state.samples += 1;
        state.batch_sum_ns += latency_ns;
        state.batch_count += 1;
        if state.batch_began_ns.is_some_and(|began| now_ns.saturating_sub(began) < batch_ns) {
            return;
        }
        state.batch_began_ns = Some(now_ns);
        let mean = state.batch_sum_ns / state.batch_count;
        (state.batch_sum_ns, state.batch_count) = (0, 0);
        state.slat_ns = match state.slat_ns {
            0 => mean,
            old => (old * ((1 << ewma_shift) - 1) + mean) >> ewma_shift,
        };
        state.score = 1_000_000_000 / state.slat_ns.max(1);
        self.weigh();
    }

    /// Forgets a path: it has failed, or it has come back.
    pub fn reset(&mut self, path: usize) {
        self.paths[path] = PathLatency::default();
    }

    /// What is known of `path`.
    pub fn path(&self, path: usize) -> &PathLatency {
        &self.paths[path]
    }

    /// Shares out the weights.
    fn weigh(&mut self) {
        let sum: u64 = self.paths.iter().map(|path| path.score).sum();
        if sum == 0 {
            return;
        }
        for path in self.paths.iter_mut().filter(|path| path.slat_ns > 0) {
            path.weight = ((path.score * WEIGHT_SCALE / sum) as u32).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BATCH: u64 = 15_000 * MS;

    fn both() -> PathSet {
        PathSet::first(2)
    }

    /// Two paths with first samples of 1 and 3 ms.
    fn sampled() -> Latency {
        let mut latency = Latency::default();
        latency.sample(0, MS, 10, BATCH, 3, 2);
        latency.sample(1, 3 * MS, 10, BATCH, 3, 2);
        latency
    }

    #[test]
    fn weights_are_inverse_to_latency() {
        let latency = sampled();
        // Scores 1000 and 333: 1000 x 64 / 1333 = 48.01, 333 x 64 / 1333 = 15.98.
        let path = |path| (latency.path(path).score, latency.path(path).weight);
        assert_eq!((path(0), path(1)), ((1000, 48), (333, 15)));
        assert_eq!(latency.path(0).slat_ns, MS);
    }

    #[test]
    fn credits_are_used_in_bursts() {
        let mut latency = sampled();
        let mut count = |times: usize| {
            let mut counts = [0; 2];
            (0..times).for_each(|_| counts[latency.select(both())] += 1);
            counts
        };
        assert_eq!(count(48), [48, 0]);
        assert_eq!(count(15), [0, 15]);
        assert_eq!(count(630), [480, 150]);
    }

    #[test]
    fn a_path_without_weight_takes_everything() {
        let mut latency = Latency::default();
        latency.sample(0, MS, 10, BATCH, 3, 2);
        assert_eq!(latency.path(0).weight, 64);
        // The first path has a weight, but is given credit only when it is passed over.
        assert!((0..1000).all(|_| latency.select(both()) == 1));
        latency.sample(1, MS, 20, BATCH, 3, 2);
        assert_eq!(latency.path(1).weight, 32);
        let chosen: Vec<_> = (0..96).map(|_| latency.select(both())).collect();
        assert_eq!((&chosen[..64], &chosen[64..]), (&[0; 64][..], &[1; 32][..]));
    }

    #[test]
    fn cores_begin_with_different_paths() {
        for candidates in [0b1, 0b11, 0b111, 0b1010, 0b1100_0100, u16::MAX].map(PathSet) {
            let first = |number| Latency::beginning_with(number).select(candidates);
            for number in [0, 7, u64::MAX - 20] {
                let numbers = number..number + candidates.len() as u64;
                let begun = numbers.fold(PathSet::EMPTY, |begun, number| begun.with(first(number)));
                assert_eq!(begun, candidates, "from {number}");
            }
        }
        // From then on it goes round as ever.
        let (mut latency, all) = (Latency::beginning_with(6), PathSet::first(4));
        assert_eq!([latency.select(all), latency.select(all)], [2, 2]);
        latency.sample(2, MS, 10, BATCH, 3, 4);
        assert_eq!(latency.select(all), 3, "it has no credit yet");
        latency.sample(3, MS, 20, BATCH, 3, 4);
        assert_eq!(latency.select(all), 0);
    }

    #[test]
    fn a_batch_ends_with_its_time() {
        let mut latency = sampled();
        // Within the batch nothing changes; then the mean of 5, 7 and 9 ms counts for an eighth.
        latency.sample(0, 5 * MS, 10 + BATCH / 2, BATCH, 3, 2);
        latency.sample(0, 7 * MS, 9 + BATCH, BATCH, 3, 2);
        assert_eq!(latency.path(0).slat_ns, MS);
        latency.sample(0, 9 * MS, 10 + BATCH, BATCH, 3, 2);
        assert_eq!(latency.path(0).slat_ns, (7 * MS + 7 * MS) / 8);
        assert_eq!(latency.path(0).samples, 4);
        // A shift of 0 keeps nothing of the past.
        latency.sample(0, 2 * MS, 20 + 2 * BATCH, BATCH, 0, 2);
        assert_eq!(latency.path(0).slat_ns, 2 * MS);
    }

    #[test]
    fn what_is_not_sampled() {
        let mut latency = sampled();
        latency.sample(0, SAMPLE_NS_MAX + 1, BATCH * 2, BATCH, 3, 2);
        latency.sample(0, 0, BATCH * 2, BATCH, 3, 2);
        assert_eq!((latency.path(0).samples, latency.path(0).ignored), (1, 1));
        latency.sample(0, SAMPLE_NS_MAX, BATCH * 2, BATCH, 3, 1);
        assert_eq!(latency.path(0).samples, 1);
        // A path a thousand times slower keeps a weight of one.
        latency.sample(1, SAMPLE_NS_MAX, BATCH * 2, BATCH, 0, 2);
        assert_eq!(latency.path(1).weight, 1);
        latency.reset(1);
        assert_eq!((latency.path(1).weight, latency.path(1).samples), (0, 0));
    }
}
