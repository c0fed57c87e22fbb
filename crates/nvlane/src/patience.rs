//! What somebody who is gone may still hold for a moment: the kernel takes the rings of a process down in the background,
//! and they hold on to sockets and to the locks of files.

use namespace::Namespace;
use namespace::file::OpenError;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use volume::{OpenOptions, Uri};

/// How long what a process held that has ended in order may stay in use; on Linux 6.1 it always does, a moment.
pub const MOMENT: Duration = Duration::from_secs(2);
/// How often to look whether it is free.
const INTERVAL: Duration = Duration::from_millis(5);

/// Tries again, for a while in all, what somebody who is gone may still be in the way of.
pub struct Patience {
    deadline: Instant,
    /// Whoever has none looks once.
    has_any: bool,
}

impl Patience {
    pub fn new(wait: Duration) -> Patience {
        Patience { deadline: Instant::now() + wait, has_any: !wait.is_zero() }
    }

    /// Until `wait` is over from now on, if that is later.
    pub fn or(self, wait: Duration) -> Patience {
        let other = Patience::new(wait);
        Patience {
            deadline: self.deadline.max(other.deadline),
            has_any: self.has_any || other.has_any,
        }
    }

    /// `attempt`, again as long as its error says that somebody is in the way; once more when the time is over, since a
    /// machine that stood still meanwhile has freed nothing either.
    pub fn wait<T, E>(
        &self,
        mut attempt: impl FnMut() -> Result<T, E>,
        is_in_the_way: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let mut is_last = !self.has_any;
        loop {
            match attempt() {
                Err(error) if is_in_the_way(&error) && !is_last => {
                    is_last = Instant::now() >= self.deadline;
                    thread::sleep(INTERVAL);
                }
                outcome => return outcome,
            }
        }
    }

    /// Opens a volume that somebody may still have.
    pub fn open<T>(
        &self,
        attempt: impl FnMut() -> Result<T, volume::Error>,
    ) -> Result<T, volume::Error> {
        self.wait(attempt, is_busy)
    }
}

/// Whether somebody has the volume that could not be opened.
pub fn is_busy(error: &volume::Error) -> bool {
    let volume::Error::File(error) = error else { return false };
    matches!(error, OpenError::Busy { .. } | OpenError::DeviceBusy { .. })
}

/// Opens a volume that somebody may have had a moment ago.
pub fn open(uri: &str, options: &OpenOptions) -> Result<Arc<dyn Namespace>, volume::Error> {
    open_uri(&uri.parse()?, options)
}

/// The same of a URI that was read.
pub fn open_uri(uri: &Uri, options: &OpenOptions) -> Result<Arc<dyn Namespace>, volume::Error> {
    Patience::new(MOMENT).open(|| volume::open_uri(uri, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries until the time is over, each for as long, of which so many find somebody in the way.
    fn tries(patience: Duration, each: Duration, busy: usize) -> (usize, bool) {
        let mut count = 0;
        let attempt = || {
            count += 1;
            thread::sleep(each);
            if count > busy { Ok(()) } else { Err(true) }
        };
        let is_free = Patience::new(patience).wait(attempt, |is_busy| *is_busy).is_ok();
        (count, is_free)
    }

    #[test]
    fn a_look_that_took_all_the_time_is_not_the_last() {
        let long = Duration::from_millis(20);
        assert_eq!(tries(long / 2, long, 1), (2, true));
        assert_eq!(tries(long / 2, long, usize::MAX), (2, false));
        assert_eq!(tries(Duration::ZERO, Duration::ZERO, usize::MAX), (1, false));
    }

    #[test]
    fn other_errors_are_told_at_once() {
        let mut count = 0;
        let attempt = || -> Result<(), bool> {
            count += 1;
            Err(false)
        };
        assert!(Patience::new(MOMENT).wait(attempt, |is_busy| *is_busy).is_err());
        assert_eq!(count, 1);
    }
}
