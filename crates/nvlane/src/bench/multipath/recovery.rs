//! How soon the fast path is used again after it was slow for a while, three times in one run.
//!
//! ```text
//!   before | slow | watched | slow | watched | slow | watched
//! ```

use super::stage::Stage;
use super::{BYTES, Operation};
use crate::bench::Options;
use crate::bench::player::{Load, Mix, Player, Watch};
use crate::bench::report::median;
use anyhow::bail;
use serde::Serialize;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Commands are counted by intervals of this length.
const INTERVAL: Duration = Duration::from_millis(10);
/// Whose rate together counts: one interval alone may be luck.
const SMOOTH: usize = 5;
/// How often the path becomes slow.
const ROUNDS: u32 = 3;
/// What it takes more then.
const SLOWER: Duration = Duration::from_millis(200);

/// How soon completion-time has nine tenths of the rate that it had before the path was slow for the first time.
pub struct Recovery {
    /// One each time.
    pub samples: Vec<Sample>,
}

/// The same of one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// From when the path was fast again; where the rate was not reached, as long as was watched.
    pub ms: f64,
    /// Whether it was reached.
    pub recovered: bool,
}

/// When what happens.
#[derive(Clone, Copy)]
struct Times {
    before: Duration,
    slow: Duration,
    watched: Duration,
}

impl Recovery {
    /// Measures: for 20 s, in a quick run for 9.
    pub fn measure(player: &Player, options: &Options) -> anyhow::Result<Recovery> {
        let times = Times::new(options);
        let stage = Stage::start(Operation::Read, options)?;
        let volume = stage.open(&[stage.fast, stage.slow], "completion-time")?;
        let load = Load { mix: Mix::Read, bytes: BYTES, in_flight: stage.in_flight, seed: 1 };
        let watch = Watch { windows: vec![Duration::ZERO..times.whole()], interval: INTERVAL };
        let start = Instant::now();
        let wait_until = |at: Duration| std::thread::sleep(at.saturating_sub(start.elapsed()));
        let (played, slow) = std::thread::scope(|scope| {
            let played = scope.spawn(|| player.play(&volume, load, &watch));
            let mut slow = Vec::new();
            for round in 0..ROUNDS {
                let planned = times.slow(round);
                wait_until(planned.start);
                let begun = start.elapsed();
                stage.delay_fast(SLOWER)?;
                wait_until(planned.end);
                stage.delay_fast(Duration::ZERO)?;
                slow.push(begun..start.elapsed());
            }
            let played = played.join().expect("playing does not panic")?;
            anyhow::Ok((played, slow))
        })?;
        let before = rate_before(&played.series, &slow[0]);
        if before == 0.0 && !options.tiny {
            bail!("nothing was read before the path became slow");
        }
        Ok(Recovery { samples: samples(&played.series, before, &slow) })
    }

    /// The middle one.
    pub fn median_ms(&self) -> f64 {
        median(self.samples.iter().map(|sample| sample.ms))
    }

    /// Whether the middle one was reached.
    pub fn recovered(&self) -> bool {
        2 * self.samples.iter().filter(|sample| sample.recovered).count() > self.samples.len()
    }
}

impl Times {
    fn new(options: &Options) -> Times {
        let [before, slow, watched] =
            if options.quick { [1500, 1000, 1500] } else { [2000, 2000, 4000] };
        let scale = if options.tiny { 10 } else { 1 };
        let time = |ms: u64| Duration::from_millis(ms / scale);
        Times { before: time(before), slow: time(slow), watched: time(watched) }
    }

    /// When the path is slow for the time `round`, from 0.
    fn slow(&self, round: u32) -> Range<Duration> {
        let start = self.before + (self.slow + self.watched) * round;
        start..start + self.slow
    }

    fn whole(&self) -> Duration {
        self.slow(ROUNDS).start
    }
}

fn interval(at: Duration) -> usize {
    (at.as_nanos() / INTERVAL.as_nanos()) as usize
}

/// Of the intervals between two moments, those that were watched.
fn between(series: &[u32], from: Duration, to: Duration) -> &[u32] {
    let end = interval(to).min(series.len());
    &series[interval(from).min(end)..end]
}

fn mean(counts: &[u32]) -> f64 {
    counts.iter().map(|&count| f64::from(count)).sum::<f64>() / counts.len().max(1) as f64
}

/// Commands per interval in the second half of the time before the path was slow.
fn rate_before(series: &[u32], first: &Range<Duration>) -> f64 {
    mean(between(series, first.start / 2, first.start))
}

/// Looks for nine tenths of `before` from the end of each of the times in `slow` to the beginning of the next, or to the
/// end of the run.
fn samples(series: &[u32], before: f64, slow: &[Range<Duration>]) -> Vec<Sample> {
    let last = INTERVAL * series.len() as u32;
    let ends = slow.iter().skip(1).map(|next| next.start).chain([last]);
    let sample = |(slow, end): (&Range<Duration>, Duration)| {
        let after = between(series, slow.end, end);
        let reached = after.windows(SMOOTH).position(|counts| mean(counts) >= 0.9 * before);
        let intervals = reached.map_or(after.len(), |intervals| intervals + 1);
        let ms = (INTERVAL.as_millis() as usize * intervals) as f64;
        Sample { ms, recovered: reached.is_some() }
    };
    slow.iter().zip(ends).map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Times = Times {
        before: Duration::from_secs(2),
        slow: Duration::from_secs(2),
        watched: Duration::from_secs(4),
    };

    /// 100 commands per interval, but 20 while the path is slow and as long after it as `after` says.
    fn run(after: [Duration; 3]) -> (Vec<u32>, Vec<Range<Duration>>) {
        let slow: Vec<_> = (0..ROUNDS).map(|round| FULL.slow(round)).collect();
        let mut series = vec![100; interval(FULL.whole())];
        for (slow, after) in slow.iter().zip(after) {
            series[interval(slow.start)..interval(slow.end + after)].fill(20);
        }
        (series, slow)
    }

    #[test]
    fn times_follow_one_another() {
        assert_eq!(FULL.slow(0), Duration::from_secs(2)..Duration::from_secs(4));
        assert_eq!(FULL.slow(2), Duration::from_secs(14)..Duration::from_secs(16));
        assert_eq!(FULL.whole(), Duration::from_secs(20));
    }

    #[test]
    fn each_time_is_a_sample_and_the_middle_one_counts() {
        let ms = Duration::from_millis;
        let (mut series, slow) = run([ms(300), ms(700), ms(100)]);
        // One lucky interval is none of five.
        series[interval(slow[0].end) + 3] = 100;
        let before = rate_before(&series, &slow[0]);
        assert_eq!(before, 100.0);
        let recovery = Recovery { samples: samples(&series, before, &slow) };
        let found: Vec<f64> = recovery.samples.iter().map(|sample| sample.ms).collect();
        assert_eq!(found, [310.0, 710.0, 110.0]);
        assert_eq!((recovery.median_ms(), recovery.recovered()), (310.0, true));
    }

    #[test]
    fn a_time_without_recovery_is_as_long_as_was_watched() {
        let (ms, never) = (Duration::from_millis, FULL.watched);
        let (series, slow) = run([ms(300), never, ms(100)]);
        let recovery = Recovery { samples: samples(&series, 100.0, &slow) };
        assert_eq!(recovery.samples[1], Sample { ms: 4000.0, recovered: false });
        assert_eq!((recovery.median_ms(), recovery.recovered()), (310.0, true));
        let (series, slow) = run([never, ms(300), never]);
        let recovery = Recovery { samples: samples(&series, 100.0, &slow) };
        assert_eq!(recovery.samples[2], Sample { ms: 4000.0, recovered: false });
        assert_eq!((recovery.median_ms(), recovery.recovered()), (4000.0, false));
    }

    #[test]
    fn a_run_that_ended_early_has_nothing_to_look_for() {
        let (series, slow) = run([Duration::ZERO; 3]);
        let short = &series[..interval(slow[1].start)];
        let found = samples(short, 100.0, &slow);
        assert_eq!(found[0], Sample { ms: 10.0, recovered: true });
        assert_eq!(found[1..], [Sample { ms: 0.0, recovered: false }; 2]);
    }
}
