//! How long commands took, as `stats` tells it.

use namespace::counters::{LATENCY_BUCKETS, Latency, latency_bound_ns};
use serde::{Deserialize, Serialize};

/// By kind of command, of those that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// Of those that read.
    pub read: Times,
    /// Of those that wrote.
    pub write: Times,
    /// Of Copy commands.
    pub copy: Times,
    /// Of the others.
    pub other: Times,
}

/// Of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// All of them together.
    pub sum_ns: u64,
    /// Half of them took no longer, as far as buckets tell; 0 without any.
    pub p50_ns: u64,
    /// 99 of 100 took no longer.
    pub p99_ns: u64,
    /// How many took up to 8,192 ns, up to twice that and so on; the last took longer than 2^34 ns. Empty without any.
    pub buckets: Vec<u64>,
}

impl Latencies {
    /// With their names, as metrics have them.
    pub fn named(&self) -> [(&'static str, &Times); 4] {
        [("read", &self.read), ("write", &self.write), ("copy", &self.copy), ("other", &self.other)]
    }

    /// Of the commands since `before`.
    pub fn since(&self, before: &Latencies) -> Latencies {
        Latencies {
            read: self.read.since(&before.read),
            write: self.write.since(&before.write),
            copy: self.copy.since(&before.copy),
            other: self.other.since(&before.other),
        }
    }
}

impl From<&[Latency; 4]> for Latencies {
    fn from([read, write, copy, other]: &[Latency; 4]) -> Latencies {
        Latencies { read: read.into(), write: write.into(), copy: copy.into(), other: other.into() }
    }
}

impl From<&Latency> for Times {
    fn from(latency: &Latency) -> Times {
        Times::of(latency.sum_ns, latency.buckets.to_vec())
    }
}

impl Times {
    fn of(sum_ns: u64, mut buckets: Vec<u64>) -> Times {
        if buckets.iter().all(|&count| count == 0) {
            buckets.clear();
        }
        let [p50_ns, p99_ns] = [0.5, 0.99].map(|share| quantile_ns(&buckets, share));
        Times { sum_ns, p50_ns, p99_ns, buckets }
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    fn since(&self, before: &Times) -> Times {
        let before_of = |index: usize| before.buckets.get(index).copied().unwrap_or(0);
        let buckets = self.buckets.iter().enumerate();
        let buckets = buckets.map(|(index, count)| count.saturating_sub(before_of(index)));
        Times::of(self.sum_ns.saturating_sub(before.sum_ns), buckets.collect())
    }
}

/// What this share of the commands did not exceed, as if those of a bucket were spread evenly over it.
fn quantile_ns(buckets: &[u64], share: f64) -> u64 {
    let total: u64 = buckets.iter().sum();
    let wanted = total as f64 * share;
    let mut below = 0;
    for (index, &count) in buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
        if (below + count) as f64 >= wanted {
            let start = index.checked_sub(1).and_then(latency_bound_ns).unwrap_or(0);
            let Some(end) = latency_bound_ns(index.min(LATENCY_BUCKETS)) else { return start };
            let part = (wanted - below as f64) / count as f64;
            return start + ((end - start) as f64 * part) as u64;
        }
        below += count;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(counts: &[(usize, u64)]) -> Times {
        let mut buckets = vec![0; LATENCY_BUCKETS];
        for &(index, count) in counts {
            buckets[index] = count;
        }
        Times::of(1000, buckets)
    }

    #[test]
    fn quantiles_lie_in_their_bucket() {
        assert_eq!(times(&[]), Times { sum_ns: 1000, ..Times::default() });
        let one = times(&[(3, 10)]);
        assert_eq!((one.p50_ns, one.count()), ((32_768 + 65_536) / 2, 10));
        let tail = times(&[(0, 98), (10, 2)]);
        assert!(tail.p50_ns < 8192);
        assert_eq!(tail.p99_ns, ((1 << 22) + (1 << 23)) / 2);
        let endless = times(&[(LATENCY_BUCKETS - 1, 1)]);
        assert_eq!(endless.p50_ns, 1 << 34, "no longer is known of it");
    }

    #[test]
    fn what_came_between_is_told_apart() {
        let (before, after) = (times(&[(1, 5)]), times(&[(1, 5), (4, 3)]));
        assert_eq!(after.since(&before).buckets[4], 3);
        assert_eq!(after.since(&before).count(), 3);
        assert_eq!(after.since(&Times::default()).count(), 8);
        assert_eq!(after.since(&after).count(), 0);
        assert!(after.since(&after).buckets.is_empty());
        // Removed and added again.
        assert_eq!(before.since(&after).count(), 0);
    }
}
