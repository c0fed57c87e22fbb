//! How long commands take in their volume, from being submitted to its end: without the network, and without waiting for
//! the client's data.
//!
//! Front doors take times from the reactor's turns, so the clock is read no more than once a turn, and not at all for volumes
//! that complete commands while they are submitted, which count as the shortest.

use super::{add, load};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Buckets of a [`Latency`], the last of which has no end.
pub const LATENCY_BUCKETS: usize = 23;
/// Log2 of nanoseconds at which the first ends: 8 us.
const FIRST_BITS: u32 = 13;

/// Where bucket `index` ends, in nanoseconds: 2^13 (8 us), 2^14, ... 2^34 (17 s). None for the last.
pub fn latency_bound_ns(index: usize) -> Option<u64> {
    (index + 1 < LATENCY_BUCKETS).then(|| 1 << (FIRST_BITS + index as u32))
}

/// Commands of one kind, by the time that they took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Commands per bucket ([`latency_bound_ns`]).
    pub buckets: [u64; LATENCY_BUCKETS],
    /// Time of all of them together, in nanoseconds.
    pub sum_ns: u64,
}

/// Of one kind of command, on one core: written there only, read from anywhere. A core on which the volume
/// is idle has no memory for it.
#[derive(Debug, Default)]
pub(super) struct Latencies(OnceLock<Box<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    buckets: [AtomicU64; LATENCY_BUCKETS],
    sum_ns: AtomicU64,
}

impl Latencies {
    /// Counts a command. For the owning core alone.
    #[inline]
    pub(super) fn note(&self, took: Duration) {
        let counts = self.0.get_or_init(Box::default);
        let ns = took.as_nanos() as u64;
        add(&counts.buckets[bucket_of(ns)], 1);
        add(&counts.sum_ns, ns);
    }

    /// Adds what was counted to `sum`.
    pub(super) fn add_to(&self, sum: &mut Latency) {
        let Some(counts) = self.0.get() else { return };
        for (sum, count) in sum.buckets.iter_mut().zip(&counts.buckets) {
            *sum += load(count);
        }
        sum.sum_ns += load(&counts.sum_ns);
    }
}

#[inline]
fn bucket_of(ns: u64) -> usize {
    // The bounds belong to what is below them, as Prometheus has it.
    let bits = u64::BITS - ns.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(FIRST_BITS) as usize).min(LATENCY_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_bucket_that_ends_there_or_later() {
        for (ns, wanted) in [(0, 0), (1, 0), (8192, 0), (8193, 1), (16384, 1), (16385, 2)] {
            assert_eq!(bucket_of(ns), wanted, "{ns}");
        }
        for index in 0..LATENCY_BUCKETS - 1 {
            let bound = latency_bound_ns(index).expect("it ends");
            assert_eq!((bucket_of(bound), bucket_of(bound + 1)), (index, index + 1));
        }
        assert_eq!(latency_bound_ns(LATENCY_BUCKETS - 1), None);
        assert_eq!(bucket_of(u64::MAX), LATENCY_BUCKETS - 1);
    }

    #[test]
    fn cores_are_summed() {
        let (one, other, idle) = (Latencies::default(), Latencies::default(), Latencies::default());
        one.note(Duration::ZERO);
        one.note(Duration::from_micros(9));
        other.note(Duration::from_secs(100));
        let mut sum = Latency::default();
        for core in [&one, &other, &idle] {
            core.add_to(&mut sum);
        }
        assert_eq!((sum.buckets[0], sum.buckets[1], sum.buckets[22]), (1, 1, 1));
        assert_eq!(sum.buckets.iter().sum::<u64>(), 3);
        assert_eq!(sum.sum_ns, 100_000_009_000);
        assert!(idle.0.get().is_none());
    }
}
