//! What came of a case: its figures, from what was seen.

use super::case::{END, HAPPENS, INTERVAL, LARGE_BYTES, OVER, SMALL_BYTES};
use crate::bench::pipeline::histogram;
use crate::bench::player::Played;
use serde::Serialize;
use std::ops::Range;
use std::time::Duration;

/// Over so much time a share is taken.
const SMOOTH: Duration = Duration::from_millis(100);
/// A path that carries less than this, of 1, has nothing to get back to.
const SHARE_MIN: f64 = 0.01;
const MIB: f64 = 1_048_576.0;

/// What was seen of a case under one policy. The first window is the time while nothing happens.
pub struct Seen {
    /// The small commands.
    pub small: Played,
    /// The large ones beside them.
    pub large: Option<Played>,
    /// The paths, once per interval, where something happens to one of them.
    pub sent: Vec<Sent>,
    /// When that was over.
    pub back: Option<Duration>,
    /// Commands sent on each path.
    pub selections: Vec<u64>,
}

/// What had been sent at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The moment, from the first command on.
    pub at: Duration,
    /// By path 0.
    pub own: u64,
    /// By all paths.
    pub all: u64,
}

/// What came of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Each path alone with the same commands, in MiB/s, while nothing happens.
    pub alone_mib_s: Vec<f64>,
    /// All paths, the small commands and the large ones, while nothing happens.
    pub mib_s: f64,
    /// The small commands.
    pub small: OfSize,
    /// The large ones.
    pub large: Option<OfSize>,
    /// Longest time without any completion of a small command.
    pub stall_ms: f64,
    /// From the end of what happened to path 0 until that path has nine tenths of its own share of the commands
    /// before; where that was not reached, as long as was watched. None where nothing happens, or to a path that
    /// the policy does not use.
    pub recovery_ms: Option<f64>,
    /// Whether it was reached.
    pub recovered: bool,
    /// The rate while something happens to path 0, and from then to the end.
    pub fault_mib_s: Option<[f64; 2]>,
    /// Path 0's share of the commands before something happens, while it does, and in the last second.
    pub shares: Option<[f64; 3]>,
    /// Commands sent on each path.
    pub selections: Vec<u64>,
}

/// What came of the commands of one size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OfSize {
    /// Bytes of each.
    pub bytes: u32,
    /// Commands answered over the whole run but its beginning, of which the latencies are.
    pub ios: u64,
    /// While nothing happens.
    pub mib_s: f64,
    /// Half of them took no longer.
    pub p50_us: f64,
    /// The same: 99 of 100.
    pub p99_us: f64,
    /// The same: 999 of 1,000.
    pub p99_9_us: f64,
}

impl Outcome {
    /// `alone_mib_s`: what each path gives alone.
    pub fn new(alone_mib_s: &[f64], seen: &Seen) -> Outcome {
        let small = OfSize::new(SMALL_BYTES, &seen.small);
        let large = seen.large.as_ref().map(|played| OfSize::new(LARGE_BYTES, played));
        let second = Duration::from_secs(1);
        let shares = seen.back.map(|_| {
            [HAPPENS / 2..HAPPENS, HAPPENS..OVER, END - second..END]
                .map(|range| Sent::share(&seen.sent, range.start, range.end))
        });
        let fault_mib_s = seen
            .back
            .map(|_| [HAPPENS..OVER, OVER..END].map(|range| rate(&seen.small.series, &range)));
        // Both none where nothing happened or the path was not used.
        let recovery = seen.back.and_then(|back| Some((back, recovery(&seen.sent, back)?)));
        let recovery_ms = recovery
            .map(|(back, after)| after.unwrap_or(END.saturating_sub(back)).as_secs_f64() * 1e3);
        Outcome {
            alone_mib_s: alone_mib_s.to_vec(),
            mib_s: mib_s(&seen.small, seen.large.as_ref()),
            small,
            large,
            stall_ms: longest_stall(&seen.small.series).as_secs_f64() * 1e3,
            recovery_ms,
            recovered: recovery.is_some_and(|(_, after)| after.is_some()),
            fault_mib_s,
            shares,
            selections: seen.selections.clone(),
        }
    }

    /// Share of the sum of the paths alone.
    pub fn of_best(&self) -> f64 {
        self.mib_s / self.best_mib_s()
    }

    /// The rate while something happens, as a share of what the other paths give alone, and the rate afterwards as
    /// one of all.
    pub fn fault_of_best(&self) -> Option<[f64; 2]> {
        let [during, after] = self.fault_mib_s?;
        let best = self.best_mib_s();
        Some([during / (best - self.alone_mib_s[0]), after / best])
    }

    /// The sum of the paths alone.
    pub fn best_mib_s(&self) -> f64 {
        self.alone_mib_s.iter().sum()
    }
}

impl OfSize {
    fn new(bytes: u32, played: &Played) -> OfSize {
        let mut latency = histogram();
        for window in &played.windows {
            latency.add(&window.latency).expect("all have the same bounds");
        }
        let quantile = |share| match latency.is_empty() {
            true => f64::NAN,
            false => latency.value_at_quantile(share) as f64 / 1e3,
        };
        OfSize {
            bytes,
            ios: played.windows.iter().map(|window| window.ios).sum(),
            mib_s: played.windows[0].iops() * f64::from(bytes) / MIB,
            p50_us: quantile(0.5),
            p99_us: quantile(0.99),
            p99_9_us: quantile(0.999),
        }
    }
}

/// The rate of both sizes together in the first window.
pub fn mib_s(small: &Played, large: Option<&Played>) -> f64 {
    let rate = |played: &Played, bytes| played.windows[0].iops() * f64::from(bytes) / MIB;
    rate(small, SMALL_BYTES) + large.map_or(0.0, |large| rate(large, LARGE_BYTES))
}

/// The rate of the small commands within `range`, in MiB/s.
fn rate(series: &[u32], range: &Range<Duration>) -> f64 {
    let interval = |moment: Duration| (moment.as_nanos() / INTERVAL.as_nanos()) as usize;
    let within = interval(range.start)..interval(range.end).min(series.len());
    let count: u64 =
        series.get(within).unwrap_or_default().iter().map(|&count| u64::from(count)).sum();
    count as f64 * f64::from(SMALL_BYTES) / MIB / (range.end - range.start).as_secs_f64()
}

/// The longest run of intervals without completions.
fn longest_stall(series: &[u32]) -> Duration {
    let longest = series.split(|&count| count > 0).map(<[u32]>::len).max();
    INTERVAL * longest.unwrap_or(0) as u32
}

impl Sent {
    /// Path 0's share of what was sent between two moments; not a number where nothing was.
    fn share(seen: &[Sent], from: Duration, to: Duration) -> f64 {
        let at = |moment| seen.get(seen.partition_point(|sent| sent.at < moment)).or(seen.last());
        let (Some(from), Some(to)) = (at(from), at(to)) else { return f64::NAN };
        (to.own - from.own) as f64 / (to.all - from.all) as f64
    }
}

/// How long after `back` path 0 has nine tenths of the share again that it had before [`HAPPENS`]; the inner one is none
/// if that never was, the outer if it had none.
fn recovery(seen: &[Sent], back: Duration) -> Option<Option<Duration>> {
    let before = Sent::share(seen, HAPPENS / 2, HAPPENS);
    if !before.is_finite() || before < SHARE_MIN {
        return None;
    }
    let end = seen.last()?.at;
    let after = seen.iter().filter(|sent| sent.at >= back && sent.at + SMOOTH <= end);
    let mut again = after
        .filter(|sent| Sent::share(seen, sent.at, sent.at + SMOOTH) >= 0.9 * before)
        .map(|sent| sent.at - back);
    Some(again.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_the_longest_of_several() {
        assert_eq!(longest_stall(&[1, 0, 0, 3, 0, 0, 0, 2, 0]), 3 * INTERVAL);
        assert_eq!(longest_stall(&[1, 1]), Duration::ZERO);
    }

    #[test]
    fn the_rate_while_something_happens_is_of_that_time_alone() {
        let mut series = vec![1000; (END.as_millis() / INTERVAL.as_millis()) as usize];
        let interval = |at: Duration| (at.as_millis() / INTERVAL.as_millis()) as usize;
        series[interval(HAPPENS)..interval(OVER)].fill(500);
        let full = 1000.0 * 100.0 * 4096.0 / f64::from(1 << 20);
        assert!((rate(&series, &(HAPPENS..OVER)) - full / 2.0).abs() < 1e-6);
        assert!((rate(&series, &(OVER..END)) - full).abs() < 1e-6);
    }

    /// A run in which path 0's share of every 100 commands is `share`, by the interval.
    fn run(share: impl Fn(Duration) -> u64) -> Vec<Sent> {
        let mut seen = vec![Sent { at: Duration::ZERO, own: 0, all: 0 }];
        while let Some(&Sent { at, own, all }) = seen.last()
            && at < END
        {
            seen.push(Sent { at: at + INTERVAL, own: own + share(at), all: all + 100 });
        }
        seen
    }

    #[test]
    fn recovery_is_the_paths_own_and_not_that_of_the_sum() {
        let back = OVER + 3 * INTERVAL;
        // All commands go on at the same rate the whole time; path 0 has half of them again 70 ms after it is back.
        let again = back + 7 * INTERVAL;
        let seen = run(|at| if at < HAPPENS || at >= again { 50 } else { 0 });
        // Ten intervals together have it once nine of them do.
        assert_eq!(recovery(&seen, back), Some(Some(6 * INTERVAL)));
        assert_eq!(Sent::share(&seen, HAPPENS, OVER), 0.0);
        let seen = run(|at| if at < HAPPENS { 50 } else { 44 });
        assert_eq!(recovery(&seen, back), Some(None));
        let seen = run(|at| if at < HAPPENS { 50 } else { 45 });
        assert_eq!(recovery(&seen, back), Some(Some(Duration::ZERO)));
    }

    #[test]
    fn a_path_that_is_not_used_has_nothing_to_get_back_to() {
        assert_eq!(recovery(&run(|_| 0), OVER), None);
        assert_eq!(recovery(&[], OVER), None);
        let nothing = [Sent { at: Duration::ZERO, own: 0, all: 0 }; 2];
        assert_eq!(recovery(&nothing, OVER), None);
    }
}
