//! How fast a copy is now: by what was done in the last seconds.
//!
//! Pure: time comes in.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So much of the past counts.
const WINDOW: Duration = Duration::from_secs(10);
/// How often it is noted how far the copy is.
const INTERVAL: Duration = Duration::from_millis(500);
/// What was done in less time says little.
const SPAN_MIN: Duration = Duration::from_millis(250);
/// Nothing was told for so long: it was not at work.
const GAP: Duration = Duration::from_secs(2);

/// How far a copy was in the last seconds, in bytes.
#[derive(Debug, Default)]
pub struct Recent {
    marks: VecDeque<(Instant, u64)>,
    /// What was told last.
    last: Option<(Instant, u64)>,
    /// What the bytes are of: one kind of work does not count for another.
    kind: u8,
}

impl Recent {
    /// So many bytes of a kind of work are done.
    pub fn note(&mut self, now: Instant, kind: u8, bytes: u64) {
        let goes_on = self.last.is_some_and(|(at, before)| {
            kind == self.kind && bytes >= before && now.saturating_duration_since(at) < GAP
        });
        if !goes_on {
            self.marks.clear();
        }
        (self.kind, self.last) = (kind, Some((now, bytes)));
        let age = |mark: &(Instant, u64)| now.saturating_duration_since(mark.0);
        if self.marks.back().is_none_or(|mark| age(mark) >= INTERVAL) {
            self.marks.push_back((now, bytes));
        }
        while self.marks.get(1).is_some_and(|mark| age(mark) >= WINDOW) {
            self.marks.pop_front();
        }
    }

    /// From now on it is at another speed.
    pub fn forget(&mut self, now: Instant) {
        self.marks.clear();
        self.marks.extend(self.last.map(|(_, bytes)| (now, bytes)));
    }

    /// Bytes of a second. None where it is too early to say.
    pub fn rate(&self, now: Instant) -> Option<u64> {
        let (&(since, before), (_, bytes)) = self.marks.front().zip(self.last)?;
        let span = now.saturating_duration_since(since);
        (span >= SPAN_MIN).then(|| ((bytes - before) as f64 / span.as_secs_f64()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    /// So many ticks of 50 ms from `from` on, at so many bytes each; gives the time and the bytes after them.
    fn run(recent: &mut Recent, from: (Instant, u64), ticks: u32, bytes: u64) -> (Instant, u64) {
        (1..=ticks).fold(from, |(at, done), _| {
            let (at, done) = (at + Duration::from_millis(50), done + bytes);
            recent.note(at, 0, done);
            (at, done)
        })
    }

    #[test]
    fn it_is_the_speed_of_the_last_seconds() {
        let mut recent = Recent::default();
        let start = (Instant::now(), 7 * M);
        recent.note(start.0, 0, start.1);
        assert_eq!(recent.rate(start.0), None);
        // A minute at 20 MiB/s, and then 10 s and a little at 2 MiB/s.
        let then = run(&mut recent, start, 1200, M);
        assert_eq!(recent.rate(then.0), Some(20 * M));
        let later = run(&mut recent, then, 220, M / 10);
        assert!(recent.rate(later.0).unwrap().abs_diff(2 * M) < M / 10);
        assert!(recent.marks.len() <= 22, "{}", recent.marks.len());
        // What has stopped gets slower.
        assert!(recent.rate(later.0 + Duration::from_secs(10)).unwrap() < M + M / 10);
        // Another limit counts from where it was set.
        recent.forget(later.0);
        assert_eq!(recent.rate(later.0), None);
        let last = run(&mut recent, later, 20, M);
        assert_eq!(recent.rate(last.0), Some(20 * M));
    }

    #[test]
    fn other_work_begins_anew() {
        let mut recent = Recent::default();
        let start = (Instant::now(), 0);
        let (at, done) = run(&mut recent, start, 100, M);
        let second = Duration::from_secs(1);
        recent.note(at, 1, 0);
        recent.note(at + second, 1, 3 * M);
        assert_eq!(recent.rate(at + second), Some(3 * M));
        // Back to an earlier mark, and after a pause.
        recent.note(at, 0, done);
        recent.note(at + second, 0, 5 * M);
        assert_eq!(recent.rate(at + second), None);
        recent.note(at + 30 * second, 0, 5 * M);
        recent.note(at + 31 * second, 0, 6 * M);
        assert_eq!(recent.rate(at + 31 * second), Some(M));
    }
}
