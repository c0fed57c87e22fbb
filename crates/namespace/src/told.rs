//! Who has been told that acknowledged data is lost.
//!
//! The kernel tells of data that it could not write back once per open file, whoever flushes next, and a volume tells it once per
//! queue. Where several users share a queue, whoever serves them keeps a [`Told`] for each.

use crate::Namespace;
use nvme::Status;
use std::time::{Duration, Instant};

/// For how long a loss is told to whoever may have been here before, and cannot be known again.
pub const TOLD_WITHIN: Duration = Duration::from_secs(60 * 60);

/// How often a volume has lost data that it had acknowledged; see [`Namespace::lost`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Since it was opened.
    pub count: u64,
    /// When it did so last.
    pub at: Option<Instant>,
}

impl std::iter::Sum for Lost {
    fn sum<I: Iterator<Item = Lost>>(all: I) -> Lost {
        all.fold(Lost::default(), |sum, one| Lost {
            count: sum.count + one.count,
            at: sum.at.max(one.at),
        })
    }
}

/// What one user of a volume has been told of.
#[derive(Debug)]
pub struct Told {
    /// None of its data was acknowledged before.
    since: Option<Instant>,
    known: Option<u64>,
}

impl Told {
    /// Of a user who has come at that time, and was not here before.
    pub fn since(time: Instant) -> Told {
        Told { since: Some(time), known: None }
    }

    /// Of a user who may have been here before.
    pub fn of_somebody() -> Told {
        Told { since: Instant::now().checked_sub(TOLD_WITHIN), known: None }
    }

    /// What to answer a Flush of this user that has ended with `status`.
    pub fn flushed(&mut self, namespace: &dyn Namespace, status: Status) -> Status {
        self.answer(namespace.lost(), status)
    }

    fn answer(&mut self, lost: Lost, status: Status) -> Status {
        let is_final = status.0 & Status::DNR != 0;
        if lost.count == 0 || !status.is_success() && !is_final {
            return status;
        }
        let is_past = lost.at < self.since;
        let at_first = if is_past { lost.count } else { 0 };
        let known = self.known.replace(lost.count).unwrap_or(at_first);
        if status.is_success() && known < lost.count { Status::WRITE_FAULT.dnr() } else { status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_is_told_once() {
        let fault = Status::WRITE_FAULT.dnr();
        let now = Instant::now();
        let lost = |count| Lost { count, at: Some(now) };
        let mut told = Told::of_somebody();
        assert_eq!(told.answer(Lost::default(), Status::SUCCESS), Status::SUCCESS);
        assert_eq!(told.answer(lost(1), Status::SUCCESS), fault);
        assert_eq!(told.answer(lost(1), Status::SUCCESS), Status::SUCCESS);
        // Who has been told by the volume need not be told again.
        assert_eq!(told.answer(lost(3), fault), fault);
        assert_eq!(told.answer(lost(3), Status::SUCCESS), Status::SUCCESS);
        // What failed for another reason, and is sent again, has told nothing.
        let again = Status::COMMAND_INTERRUPTED;
        assert_eq!(told.answer(lost(4), again), again);
        assert_eq!(told.answer(lost(4), Status::SUCCESS), fault);
    }

    #[test]
    fn who_comes_after_a_loss_is_told_of_the_next() {
        let now = Instant::now();
        let mut told = Told::since(now + Duration::from_secs(1));
        let lost = |count, seconds| Lost { count, at: Some(now + Duration::from_secs(seconds)) };
        assert_eq!(told.answer(lost(4, 0), Status::SUCCESS), Status::SUCCESS);
        assert_eq!(told.answer(lost(5, 2), Status::SUCCESS), Status::WRITE_FAULT.dnr());
        // The same, where the first that it hears of is its own.
        let mut told = Told::since(now + Duration::from_secs(1));
        assert_eq!(told.answer(lost(5, 2), Status::SUCCESS), Status::WRITE_FAULT.dnr());
    }

    #[test]
    fn losses_of_parts_are_those_of_the_whole() {
        let now = Instant::now();
        let parts = [Lost::default(), Lost { count: 2, at: Some(now) }, Lost::default()];
        assert_eq!(parts.into_iter().sum::<Lost>(), Lost { count: 2, at: Some(now) });
    }
}
