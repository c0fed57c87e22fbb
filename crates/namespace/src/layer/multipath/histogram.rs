//! Latencies of the last some seconds, of one core, readable from any thread.

use std::sync::atomic::{AtomicU32, Ordering};

/// Buckets per power of two: a value is known to a sixteenth.
const STEPS: usize = 16;
/// Below 2^9 ns all is one bucket.
const FIRST_POWER: u32 = 9;
/// From 2^36 ns (69 s) on, too.
const LAST_POWER: u32 = 36;
const BUCKETS: usize = (LAST_POWER - FIRST_POWER) as usize * STEPS + 1;

/// Counts by latency. One thread writes, any reads; relaxed throughout.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU32]>,
}

/// The histograms of several cores together.
#[derive(Debug)]
pub struct Summary {
    buckets: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect() }
    }
}

impl Histogram {
    /// Counts a latency. Only for the owning thread.
    #[inline]
    pub fn record(&self, latency_ns: u64) {
        let count = &self.buckets[bucket_of(latency_ns)];
        count.store(count.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
    }

    /// Halves all counts so many times. Only for the owning thread.
    pub fn fade(&self, halvings: u32) {
        if halvings == 0 {
            return;
        }
        for count in &self.buckets {
            let value = count.load(Ordering::Relaxed);
            if value > 0 {
                count.store(value.checked_shr(halvings).unwrap_or(0), Ordering::Relaxed);
            }
        }
    }
}

impl Default for Summary {
    fn default() -> Summary {
        Summary { buckets: vec![0; BUCKETS] }
    }
}

impl Summary {
    /// Takes in what a core counted, halved so many times.
    pub fn add(&mut self, histogram: &Histogram, halvings: u32) {
        for (sum, count) in self.buckets.iter_mut().zip(&histogram.buckets) {
            let count = count.load(Ordering::Relaxed);
            *sum += u64::from(count.checked_shr(halvings).unwrap_or(0));
        }
    }

    /// The latency that this share of the commands did not exceed; 0 if there were none.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let total: u64 = self.buckets.iter().sum();
        if total == 0 {
            return 0;
        }
        let wanted = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return middle_of(bucket);
            }
        }
        unreachable!("all are counted in the end")
    }
}

#[inline]
fn bucket_of(latency_ns: u64) -> usize {
    let value = latency_ns.clamp(1 << FIRST_POWER, 1 << LAST_POWER);
    let power = value.ilog2();
    let step = (value >> (power - STEPS.ilog2())) as usize & (STEPS - 1);
    (power - FIRST_POWER) as usize * STEPS + step
}

fn middle_of(bucket: usize) -> u64 {
    let (power, step) = (bucket / STEPS, (bucket % STEPS) as u64);
    let width = 1u64 << (power as u32 + FIRST_POWER - STEPS.ilog2());
    (STEPS as u64 + step) * width + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_and_decay() {
        let histogram = Histogram::default();
        let quantiles = || {
            let mut summary = Summary::default();
            summary.add(&histogram, 0);
            [0.5, 0.99].map(|share| summary.quantile_ns(share))
        };
        assert_eq!(quantiles(), [0, 0]);
        (0..95).for_each(|_| histogram.record(100_000));
        (0..5).for_each(|_| histogram.record(30_000_000));
        let near = |value: u64, wanted: u64| value.abs_diff(wanted) * 16 <= wanted;
        let [p50, p99] = quantiles();
        assert!(near(p50, 100_000) && near(p99, 30_000_000), "{p50} {p99}");
        (0..3).for_each(|_| histogram.fade(1));
        assert!(near(quantiles()[1], 100_000), "five in a hundred are forgotten first");
        histogram.fade(8);
        assert_eq!(quantiles(), [0, 0]);
        histogram.record(100_000);
        histogram.fade(u32::MAX);
        assert_eq!(quantiles(), [0, 0]);
    }

    proptest! {
        #[test]
        fn a_latency_is_in_its_bucket(latency_ns in 512..1u64 << 36) {
            let middle = middle_of(bucket_of(latency_ns));
            prop_assert!(middle.abs_diff(latency_ns) <= latency_ns / 16, "{middle}");
        }

        #[test]
        fn every_latency_has_a_bucket(latency_ns: u64) {
            prop_assert!(bucket_of(latency_ns) < BUCKETS);
        }
    }
}
