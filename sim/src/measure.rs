//! What is measured while a scenario runs, and what is computed from it.

use crate::model::{MIB, MS, S, Scenario};
use hdrhistogram::Histogram;
use multipath::Group;
use serde::Serialize;

/// Throughput is counted in bins of this.
pub const BIN_NS: u64 = 10 * MS;
/// Shares are looked at over this many bins: 100 ms.
pub const SHARE_BINS: usize = 10;
/// Longer latencies count as this: ten minutes.
const LATENCY_US_MAX: u64 = 600_000_000;
/// A path has recovered once it carries this part of what it did before.
const RECOVERED: f64 = 0.9;

/// Counts while the simulation runs.
#[derive(Debug)]
pub struct Meter {
    ports: usize,
    windows: Vec<(u64, u64)>,
    /// Bytes by bin and port.
    bins: Vec<u64>,
    /// Latencies in microseconds by window, reads and writes.
    latencies: Vec<[Histogram<u64>; 2]>,
}

/// What came out of a window.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Its name.
    pub window: &'static str,
    /// Throughput.
    pub mib_s: f64,
    /// The best possible.
    pub best_mib_s: f64,
    /// The one divided by the other.
    pub of_best: f64,
    /// Latencies of all commands in microseconds.
    pub p50_us: u64,
    /// The same: one in a hundred takes longer.
    pub p99_us: u64,
    /// The same: one in a thousand.
    pub p999_us: u64,
    /// The longest.
    pub max_us: u64,
    /// Of reads and of writes: one in a hundred takes longer.
    pub read_p99_us: u64,
    /// See `read_p99_us`.
    pub write_p99_us: u64,
    /// Each path's part of the throughput.
    pub shares: Vec<f64>,
    /// How much shares swing.
    pub swing: Swing,
}

/// How much the paths' shares of the throughput swing within a window.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Swing {
    /// Over 100 ms at a time: how far a path's share is from its own mean, at most, as a part of
    /// that mean. This is "the share of a path does not oscillate by more than".
    pub worst: f64,
    /// The standard deviation of the same over the mean, of the worst path.
    pub deviation: f64,
    /// The same over 10 ms at a time.
    pub deviation_10ms: f64,
}

impl Meter {
    /// For a run of `scenario`.
    pub fn new(scenario: &Scenario) -> Meter {
        let ports = scenario.ports.len();
        let bins = (scenario.end_ns() / BIN_NS + 1) as usize;
        let histogram =
            || Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are in order");
        let windows: Vec<_> =
            scenario.windows.iter().map(|window| (window.from_ns, window.until_ns)).collect();
        Meter {
            ports,
            bins: vec![0; bins * ports],
            latencies: windows.iter().map(|_| [histogram(), histogram()]).collect(),
            windows,
        }
    }

    /// Counts a command.
    pub fn completed(&mut self, now_ns: u64, port: usize, group: Group, bytes: u32, took_ns: u64) {
        self.bins[(now_ns / BIN_NS) as usize * self.ports + port] += u64::from(bytes);
        for (window, latencies) in self.windows.iter().zip(&mut self.latencies) {
            if (window.0..window.1).contains(&now_ns) {
                latencies[usize::from(group != Group::Read)]
                    .saturating_record(took_ns.div_ceil(1000));
            }
        }
    }

    /// Bytes of a port in each bin of a time.
    fn series(&self, port: usize, from_ns: u64, until_ns: u64) -> Vec<f64> {
        let bins = (from_ns / BIN_NS) as usize..(until_ns / BIN_NS) as usize;
        bins.map(|bin| self.bins[bin * self.ports + port] as f64).collect()
    }

    /// Evaluates window `number`, in which `best` bytes per second are possible.
    pub fn window(&self, scenario: &Scenario, number: usize, best: f64) -> Measured {
        let window = &scenario.windows[number];
        let series: Vec<_> = (0..self.ports)
            .map(|port| self.series(port, window.from_ns, window.until_ns))
            .collect();
        let sums: Vec<f64> = series.iter().map(|series| series.iter().sum()).collect();
        let sum: f64 = sums.iter().sum();
        let throughput = sum / ((window.until_ns - window.from_ns) as f64 / S as f64);
        let [reads, writes] = &self.latencies[number];
        let mut all = reads.clone();
        all.add(writes).expect("both have the same digits");
        Measured {
            window: window.name,
            mib_s: throughput / MIB,
            best_mib_s: best / MIB,
            of_best: throughput / best,
            p50_us: all.value_at_quantile(0.5),
            p99_us: all.value_at_quantile(0.99),
            p999_us: all.value_at_quantile(0.999),
            max_us: all.max(),
            read_p99_us: reads.value_at_quantile(0.99),
            write_p99_us: writes.value_at_quantile(0.99),
            shares: sums.iter().map(|part| part / sum.max(1.0)).collect(),
            swing: swing(&series),
        }
    }

    /// From `until_ns`, the end of a fault, to when `port` carries its part again for 100 ms; what
    /// it carried in the second before `from_ns` is its part. In milliseconds; none if it never
    /// does before the run ends.
    pub fn recovery_ms(&self, port: usize, from_ns: u64, until_ns: u64) -> Option<u64> {
        let before = self.series(port, from_ns.saturating_sub(S), from_ns);
        let part = before.iter().sum::<f64>() / before.len() as f64;
        let end_ns = (self.bins.len() / self.ports) as u64 * BIN_NS;
        let after = self.series(port, until_ns, end_ns);
        let carries = |bins: &[f64]| bins.iter().sum::<f64>() / bins.len() as f64;
        let found = after.windows(SHARE_BINS).position(|bins| carries(bins) >= RECOVERED * part);
        found.map(|bin| bin as u64 * BIN_NS / MS)
    }
}

/// Evaluates the ports' bytes per bin.
fn swing(series: &[Vec<f64>]) -> Swing {
    let coarse: Vec<Vec<f64>> = series
        .iter()
        .map(|bins| bins.chunks_exact(SHARE_BINS).map(|chunk| chunk.iter().sum()).collect())
        .collect();
    let mut swing = Swing::default();
    for share in shares(&coarse) {
        let mean = mean(&share);
        let far = share.iter().fold(0.0f64, |most, value| most.max((value / mean - 1.0).abs()));
        swing.worst = swing.worst.max(far);
        swing.deviation = swing.deviation.max(deviation(&share));
    }
    for share in shares(series) {
        swing.deviation_10ms = swing.deviation_10ms.max(deviation(&share));
    }
    swing
}

/// Each port's share of each bin; ports that carry less than a hundredth are left out, for one
/// command more or less is no herd.
fn shares(series: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let bins = series.first().map_or(0, Vec::len);
    let sums: Vec<f64> =
        (0..bins).map(|bin| series.iter().map(|port| port[bin]).sum::<f64>().max(1.0)).collect();
    let part = |port: &Vec<f64>| port.iter().zip(&sums).map(|(bytes, sum)| bytes / sum).collect();
    series.iter().map(part).filter(|share: &Vec<f64>| mean(share) > 0.01).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Standard deviation over mean.
fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (square / values.len().max(1) as f64).sqrt() / mean
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios;

    #[test]
    fn a_herd_is_seen() {
        // Two ports that swap 60 and 40 every 100 ms.
        let port = |first: usize| -> Vec<f64> {
            (0..100).map(|bin| if (bin / 10) % 2 == first { 60.0 } else { 40.0 }).collect()
        };
        let swing = swing(&[port(0), port(1)]);
        assert!((swing.worst - 0.2).abs() < 1e-9 && (swing.deviation - 0.2).abs() < 1e-9);
        assert!((swing.deviation_10ms - 0.2).abs() < 1e-9);
        // What swings for all alike is no swing of shares.
        let load: Vec<f64> = (0..100).map(|bin| f64::from(bin % 7)).collect();
        assert!(super::swing(&[load.clone(), load]).worst < 1e-9);
    }

    #[test]
    fn recovery_is_when_the_share_is_back_for_good() {
        let scenario = scenarios::named("kill").unwrap();
        let mut meter = Meter::new(&scenario);
        for bin in 0..300 {
            // One lucky bin at 2.1 s; really back at 2.5 s.
            let carries = !(100..250).contains(&bin) || bin == 210;
            let bytes = if carries { 1000 } else { 0 };
            meter.completed(bin * BIN_NS, 0, Group::Read, bytes, MS);
        }
        // Nine of ten bins from 2.49 s on are 0.9 of what was.
        assert_eq!(meter.recovery_ms(0, S, 2 * S), Some(490));
        assert_eq!(meter.recovery_ms(0, S, 4 * S), None);
    }
}
