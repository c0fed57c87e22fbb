//! When a wait ends.

use crate::caller;
use crate::system::{self, now_ns};
use libc::timespec;

/// When waiting ends.
#[derive(Clone, Copy)]
pub struct Deadline(Option<u64>);

impl Deadline {
    /// From the address of a relative time, or 0 for never.
    pub fn of(timeout: usize) -> Result<Deadline, caller::Fault> {
        if timeout == 0 {
            return Ok(Deadline(None));
        }
        Ok(Deadline(system::deadline_ns(caller::read::<timespec>(timeout)?)))
    }

    /// Nanoseconds until then.
    pub fn left_ns(self) -> u64 {
        match self.0 {
            None => u64::MAX,
            Some(0) => 0,
            Some(end) => end.saturating_sub(now_ns()),
        }
    }
}
