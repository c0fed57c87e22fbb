//! The policies that Linux has, as it codes them (drivers/nvme/host/multipath.c of 7.2).
//!
//! Two differences, both of place: Linux keeps the current path per NUMA node and we per core, and
//! its depths are those of a controller over all cores, ours those of this core. Per core nothing
//! is shared between cores, and cores that each balance their own commands balance all of them, if each has several:
//! with one command in flight on each, all take the first path.

use crate::PATHS_MAX;
use crate::set::PathSet;

/// Where these policies are.
#[derive(Clone, Debug, Default)]
pub struct Classic {
    /// The path of the last choice.
    current: Option<usize>,
}

impl Classic {
    /// Forgets the current path: it is looked for again, as Linux does when a path goes or comes.
    pub fn forget(&mut self) {
        self.current = None;
    }

    /// numa: keeps to the current path while it is optimized, otherwise looks for the nearest.
    pub fn numa(
        &mut self,
        optimized: PathSet,
        non_optimized: PathSet,
        distances: &[u8; PATHS_MAX],
    ) -> Option<usize> {
        let found = self.numa_elsewhere(optimized, non_optimized, distances);
        self.current = found.or(self.current);
        found
    }

    /// numa, for a command that other paths have failed: these are left out of both sets. For others the current
    /// path stays what it is. Linux forgets it when a path fails a command (nvme_failover_req), and then
    /// looks for the nearest of all that are usable.
    pub fn numa_elsewhere(
        &self,
        optimized: PathSet,
        non_optimized: PathSet,
        distances: &[u8; PATHS_MAX],
    ) -> Option<usize> {
        match self.current {
            Some(path) if optimized.contains(path) => Some(path),
            _ => nearest(optimized, non_optimized, distances),
        }
    }

    /// round-robin: the next optimized path after the current one; where only the current is
    /// optimized, that; otherwise the last non-optimized path that the search has seen.
    pub fn round_robin(&mut self, optimized: PathSet, non_optimized: PathSet) -> Option<usize> {
        let Some(current) = self.current else {
            return self.find(optimized, non_optimized, &[0; PATHS_MAX]);
        };
        let this = PathSet::of(current);
        let found = match optimized.without(this).next_from(current + 1) {
            Some(path) => path,
            None if optimized.contains(current) => return Some(current),
            None => match non_optimized.without(this).last_before(current) {
                Some(path) => path,
                None => return non_optimized.contains(current).then_some(current),
            },
        };
        self.current = Some(found);
        Some(found)
    }

    fn find(
        &mut self,
        optimized: PathSet,
        non_optimized: PathSet,
        distances: &[u8; PATHS_MAX],
    ) -> Option<usize> {
        let found = nearest(optimized, non_optimized, distances);
        self.current = found.or(self.current);
        found
    }
}

/// The nearest of the optimized paths, or else of the others; the first of several.
fn nearest(
    optimized: PathSet,
    non_optimized: PathSet,
    distances: &[u8; PATHS_MAX],
) -> Option<usize> {
    let nearest = |set: PathSet| set.min_by_key(|&path| distances[path]);
    nearest(optimized).or_else(|| nearest(non_optimized))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Group, Policy, Selector, Settings, Shared};
    use std::sync::Arc;

    fn set(paths: &[usize]) -> PathSet {
        paths.iter().fold(PathSet::EMPTY, |set, &path| set.with(path))
    }

    fn distances(near: usize) -> [u8; PATHS_MAX] {
        std::array::from_fn(|path| if path == near { 10 } else { 20 })
    }

    #[test]
    fn numa_keeps_the_nearest_optimized_path() {
        let mut classic = Classic::default();
        let mut numa = |optimized: &[usize], other: &[usize]| {
            classic.numa(set(optimized), set(other), &distances(2)).unwrap()
        };
        assert_eq!(numa(&[0, 1, 2], &[]), 2);
        // Not optimized any more: another that is, although the nearest can be used.
        assert_eq!(numa(&[0, 1], &[2]), 0);
        // It stays there while that is optimized.
        assert_eq!(numa(&[0, 1, 2], &[]), 0);
        // Among non-optimized paths it looks every time.
        assert_eq!(numa(&[], &[1, 2]), 2);
        assert_eq!(numa(&[], &[0, 1]), 0);
        assert_eq!(numa(&[1], &[0]), 1);
        classic.forget();
        assert_eq!(classic.numa(set(&[0, 1, 2]), PathSet::EMPTY, &distances(2)), Some(2));
        assert_eq!(classic.numa(PathSet::EMPTY, PathSet::EMPTY, &distances(2)), None);
    }

    #[test]
    fn numa_comes_back_to_the_nearest_after_a_retry() {
        let settings = Settings { policy: Policy::Numa, ..Settings::default() };
        let mut selector = Selector::new(3, settings, Arc::new(Shared::default()), 1);
        (0..3).for_each(|path| selector.place(path, distances(2)[path]));
        let mut select =
            |avoid: &[usize]| selector.select(0, Group::Read, 4096, set(avoid)).unwrap();
        // Also where the first choice of all is that of a retry.
        assert_eq!(select(&[2]), 0);
        assert_eq!(select(&[]), 2);
        assert_eq!(select(&[2]), 0);
        assert_eq!(select(&[2, 0]), 1);
        assert_eq!(select(&[0]), 2);
        assert_eq!(select(&[]), 2);
    }

    #[test]
    fn round_robin_goes_round_the_optimized() {
        let mut classic = Classic::default();
        let mut next = |optimized: &[usize], other: &[usize]| {
            classic.round_robin(set(optimized), set(other)).unwrap()
        };
        let turn: Vec<_> = (0..5).map(|_| next(&[0, 1, 3], &[2])).collect();
        assert_eq!(turn, [0, 1, 3, 0, 1]);
        // Only the current is optimized: that, not the others.
        assert_eq!(next(&[1], &[0, 2, 3]), 1);
        // None is: the last seen on the way round from 1 is 0, then from 0 it is 3.
        assert_eq!(next(&[], &[0, 2, 3]), 0);
        assert_eq!(next(&[], &[0, 2, 3]), 3);
        assert_eq!(next(&[], &[3]), 3);
        assert_eq!(next(&[2], &[3]), 2);
        assert_eq!(classic.round_robin(PathSet::EMPTY, PathSet::EMPTY), None);
    }
}
