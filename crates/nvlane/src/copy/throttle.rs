//! How a copy is held back: to a part of the time, as dm-kcopyd is, or to a rate.
//!
//! ```text
//!   percent:  [ commands in flight ]      idle       [ commands in flight ]      idle
//!             busy / (busy + idle) stays at or below the percentage, over about a second
//!   rate:     each command moves the time at which the next one may start
//! ```
//!
//! Pure: the time comes as an argument, since any moment that stays the same.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Time over which a percentage is kept; what is older counts half.
const ACCOUNT: Duration = Duration::from_secs(1);
/// What a rate may catch up.
const BURST: Duration = Duration::from_millis(100);
/// Waits are within these: so long that a timer is worth it, so short that a change is soon noticed.
const WAIT: std::ops::RangeInclusive<Duration> =
    Duration::from_micros(100)..=Duration::from_millis(200);

/// A limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Throttle {
    /// As fast as it goes.
    #[default]
    None,
    /// Commands are in flight for so many hundredths of the time.
    Percent(u8),
    /// Bytes per second.
    Rate(u64),
}

impl Throttle {
    /// Whether there is no limit.
    pub fn is_none(&self) -> bool {
        *self == Throttle::None
    }

    /// Whether it makes sense.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Throttle::Percent(percent) if !(1..=100).contains(percent) => {
                Err(format!("{percent}% is not between 1% and 100%"))
            }
            Throttle::Rate(0) => Err("a rate of nothing: pause the copy instead".to_owned()),
            _ => Ok(()),
        }
    }

    /// Bytes of a command that keep it smooth; none where that does not matter.
    pub fn request_bytes(&self) -> Option<u64> {
        match self {
            Throttle::None | Throttle::Percent(100..) => None,
            Throttle::Percent(_) => Some(128 << 10),
            Throttle::Rate(rate) => Some((rate / 16).clamp(64 << 10, 16 << 20)),
        }
    }

    /// Commands in flight, at most, of so many that there would be. A percentage holds for whoever meets the copy's
    /// commands, too: it is not to find all of them before itself.
    pub fn requests(&self, all: usize) -> usize {
        match self {
            Throttle::Percent(percent) => (all * usize::from(*percent) / 100).max(1),
            Throttle::None | Throttle::Rate(_) => all,
        }
    }

    /// Whether it holds anything back.
    pub fn holds_back(&self) -> bool {
        !matches!(self, Throttle::None | Throttle::Percent(100..))
    }
}

impl FromStr for Throttle {
    type Err = String;

    fn from_str(text: &str) -> Result<Throttle, String> {
        let wrong = || {
            format!("`{text}` is no limit: write 30% of the time, 100M bytes per second, or none")
        };
        let limit = match (text, text.strip_suffix('%')) {
            ("none", _) => Throttle::None,
            (_, Some(percent)) => Throttle::Percent(percent.parse().map_err(|_| wrong())?),
            (_, None) => {
                let rate = text.strip_suffix("/s").unwrap_or(text);
                Throttle::Rate(namespace::human::parse_bytes(rate).ok_or_else(wrong)?)
            }
        };
        limit.check().map(|()| limit)
    }
}

impl fmt::Display for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Throttle::None => f.write_str("none"),
            Throttle::Percent(percent) => write!(f, "{percent}%"),
            Throttle::Rate(rate) => write!(f, "{}/s", namespace::human::format_bytes(*rate)),
        }
    }
}

impl Serialize for Throttle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Throttle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Throttle, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Keeps to a [`Throttle`].
#[derive(Debug, Default)]
pub struct Pace {
    limit: Throttle,
    /// What was counted up to `seen`.
    busy: Duration,
    total: Duration,
    seen: Duration,
    /// When the next command may start.
    next: Duration,
}

impl Pace {
    /// Another limit from now on.
    pub fn set(&mut self, limit: Throttle, now: Duration) {
        if limit != self.limit {
            *self = Pace { limit, seen: now, next: now, ..Pace::default() };
        }
    }

    /// Counts the time since the last call, during which commands were in flight or not.
    pub fn account(&mut self, now: Duration, was_busy: bool) {
        let passed = now.saturating_sub(self.seen);
        self.seen = now;
        self.total += passed;
        if was_busy {
            self.busy += passed;
        }
        while self.total > ACCOUNT {
            self.total /= 2;
            self.busy /= 2;
        }
    }

    /// How long to wait before another command may start; none if it may now. Time is accounted up to now.
    pub fn wait(&self, now: Duration) -> Option<Duration> {
        let wait = match self.limit {
            Throttle::None => return None,
            Throttle::Percent(percent) => {
                let wanted = self.busy * 100 / u32::from(percent.clamp(1, 100));
                wanted.saturating_sub(self.total)
            }
            Throttle::Rate(_) => self.next.saturating_sub(now),
        };
        (!wait.is_zero()).then(|| wait.clamp(*WAIT.start(), *WAIT.end()))
    }

    /// A command of so many bytes was started.
    pub fn started(&mut self, now: Duration, bytes: u64) {
        if let Throttle::Rate(rate) = self.limit {
            let takes = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            self.next = self.next.max(now.saturating_sub(BURST)) + takes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies with `limit`, each command taking `takes`, one at a time, for ten seconds; gives bytes and time busy.
    fn copy(limit: Throttle, bytes: u64, takes: Duration) -> (u64, Duration) {
        let (mut now, mut done, mut busy) = (Duration::ZERO, 0, Duration::ZERO);
        let mut pace = Pace::default();
        pace.set(limit, now);
        while now < Duration::from_secs(10) {
            pace.account(now, false);
            if let Some(wait) = pace.wait(now) {
                now += wait;
                continue;
            }
            pace.started(now, bytes);
            now += takes;
            pace.account(now, true);
            (done, busy) = (done + bytes, busy + takes);
        }
        (done, busy)
    }

    #[test]
    fn a_rate_is_kept() {
        for (rate, bytes) in [(1 << 20, 64 << 10), (100 << 20, 1 << 20), (10 << 20, 16 << 20)] {
            let (done, _) = copy(Throttle::Rate(rate), bytes, Duration::from_millis(1));
            let (least, most) = (rate * 9, rate * 11 + 2 * bytes);
            assert!((least..=most).contains(&done), "{rate}: {done}");
        }
    }

    #[test]
    fn a_rate_that_is_not_reached_holds_nothing_back() {
        let (done, _) = copy(Throttle::Rate(1 << 40), 1 << 20, Duration::from_millis(10));
        assert_eq!(done, 1000 << 20);
    }

    #[test]
    fn a_percentage_of_the_time_is_kept() {
        for percent in [1, 10, 50, 90] {
            for takes in [1, 20] {
                let takes = Duration::from_millis(takes);
                let (_, busy) = copy(Throttle::Percent(percent), 1, takes);
                let wanted = Duration::from_secs(10) * u32::from(percent) / 100;
                let slack = wanted / 5 + 3 * takes;
                assert!(busy.abs_diff(wanted) <= slack, "{percent}%: {busy:?}, not {wanted:?}");
            }
        }
        let (_, busy) = copy(Throttle::Percent(100), 1, Duration::from_millis(1));
        assert!(busy >= Duration::from_secs(10), "{busy:?}");
    }

    #[test]
    fn a_percentage_is_of_the_commands_in_flight_too() {
        for (percent, of_16) in [(1, 1), (10, 1), (30, 4), (99, 15), (100, 16)] {
            assert_eq!(Throttle::Percent(percent).requests(16), of_16, "{percent}%");
        }
        assert_eq!((Throttle::None.requests(16), Throttle::Rate(1).requests(16)), (16, 16));
        let held =
            [Throttle::None, Throttle::Percent(99), Throttle::Percent(100), Throttle::Rate(1)];
        assert_eq!(held.map(|limit| limit.holds_back()), [false, true, false, true]);
        assert_eq!(held.map(|limit| limit.request_bytes().is_some()), [false, true, false, true]);
    }

    #[test]
    fn limits_are_read_and_written() {
        for (text, limit) in [
            ("30%", Throttle::Percent(30)),
            ("100M", Throttle::Rate(100 << 20)),
            ("100M/s", Throttle::Rate(100 << 20)),
            ("none", Throttle::None),
        ] {
            assert_eq!(text.parse(), Ok(limit), "{text}");
            assert_eq!(limit.to_string().parse(), Ok(limit), "{text}");
        }
        for text in ["0%", "101%", "0", "much", "%", "-1%", "300%"] {
            assert!(text.parse::<Throttle>().is_err(), "{text}");
        }
    }
}
