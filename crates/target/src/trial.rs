//! Connections that have only so long for what must come of them first.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

/// Connections on trial; the oldest goes when one more comes than there is room for.
const ON_TRIAL_MAX: usize = 1024;

/// Keys of connections, each until its time is over, or it was said that it has passed: of those that are over, whoever looks
/// after them finds out whether they have.
pub(crate) struct Trial {
    time: Duration,
    entries: RefCell<VecDeque<(Duration, u64)>>,
    timer_runs: Cell<bool>,
}

impl Trial {
    /// A trial of `time`.
    pub(crate) fn new(time: Duration) -> Trial {
        Trial { time, entries: RefCell::default(), timer_runs: Cell::new(false) }
    }

    /// Begins that of connection `key`; returns the one for which there is no room any more.
    pub(crate) fn begin(&self, now: Duration, key: u64) -> Option<u64> {
        let mut entries = self.entries.borrow_mut();
        entries.push_back((now + self.time, key));
        if entries.len() <= ON_TRIAL_MAX {
            return None;
        }
        entries.pop_front().map(|(_, key)| key)
    }

    /// Connection `key` has passed.
    pub(crate) fn passed(&self, key: u64) {
        self.entries.borrow_mut().retain(|(_, other)| *other != key);
    }

    /// When a timer is to fire, if none runs and one has to.
    pub(crate) fn starts_timer(&self) -> Option<Duration> {
        let &(deadline, _) = self.entries.borrow().front()?;
        (!self.timer_runs.replace(true)).then_some(deadline)
    }

    /// The timer has fired: those whose time is over.
    pub(crate) fn over(&self, now: Duration) -> Vec<u64> {
        self.timer_runs.set(false);
        let mut entries = self.entries.borrow_mut();
        let count = entries.partition_point(|(deadline, _)| *deadline <= now);
        entries.drain(..count).map(|(_, key)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_time_and_the_oldest_makes_room() {
        let trial = Trial::new(Duration::from_secs(10));
        let at = Duration::from_secs;
        assert_eq!(trial.starts_timer(), None);
        assert_eq!(trial.begin(at(1), 7), None);
        assert_eq!(trial.begin(at(2), 8), None);
        assert_eq!(trial.starts_timer(), Some(at(11)));
        assert_eq!(trial.starts_timer(), None, "it runs");
        assert_eq!(trial.over(at(11)), [7]);
        assert_eq!(trial.starts_timer(), Some(at(12)));
        assert_eq!(trial.begin(at(2), 10), None);
        trial.passed(10);
        let room = ON_TRIAL_MAX as u64 - 1;
        assert!((100..100 + room).all(|key| trial.begin(at(3), key).is_none()));
        assert_eq!(trial.begin(at(4), 9), Some(8));
        assert_eq!(trial.over(at(20)).len(), ON_TRIAL_MAX);
    }
}
