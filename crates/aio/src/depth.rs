//! Contexts to which few requests are submitted at a time go to the kernel's AIO, and come back to the ring for lists of more.
//!
//! ```text
//!   Ring ──so many calls of io_submit in a row of FEW or less, past the page cache──> Native, at rest
//!    ^──a list of more than FEW, or so many calls later, while nobody waits in the kernel's io_getevents──'
//! ```
//!
//! One or two requests by one call cost more instructions by io_uring than by the kernel's AIO, whoever submits them and however many are in
//! flight already; lists of three or four and more cost fewer. What is at rest is soon bare
//! ([`Context::is_bare`]): then the library adds next to nothing. Its program may have become another meanwhile (it reads through the page cache, or waits
//! for each request at once): so it is looked at again now and then.

use crate::context::{Context, Mode, Submitting};
use crate::lock::Guard;
use crate::probe::Reason;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// What is few on one list.
pub const FEW: u32 = 2;
/// So many calls in a row show what kind of program it is.
pub const CALLS: u64 = 256;
/// How often the way back is tried, before the context stays the kernel's: a thread that reaps may always be waiting there.
const TRIES: u32 = 64;
/// After so many calls at rest it is looked at again: the [`CALLS`] by the ring that this takes are a thirtieth of them, and cost a fiftieth more.
const REST: u64 = 8192;

/// Whether a context is at rest, and wanted back.
#[derive(Default)]
pub struct Rest {
    at_rest: AtomicBool,
    /// Tries that are left, once it is wanted.
    wanted: AtomicU32,
}

impl Submitting {
    /// A call has submitted so many, past the page cache: whether there have been few at a time for long.
    #[inline(always)]
    pub fn has_few(&mut self, list: u32) -> bool {
        self.few = if list <= FEW { self.few + 1 } else { 0 };
        self.few >= self.patience
    }
}

impl Context {
    /// Has it stay with the ring, however few there are.
    pub fn never_rest(&self) {
        let mut submitting = self.submitting();
        submitting.patience = u64::MAX;
        submitting.may_wait = false;
    }

    /// From now on natively, unless its program may turn out to be prompt. Under the lock of the submitting side.
    #[cold]
    pub fn rest(&self, submitting: &mut Guard<'_, Submitting>) {
        // Those who have given up the lock in mid-batch may go on by the ring.
        if self.prompt.may_be() || self.away.load(SeqCst) > 0 {
            return;
        }
        submitting.few = 0;
        self.rest.at_rest.store(true, SeqCst);
        self.settle(Reason::Few);
    }

    /// Whether it is, and may come back.
    pub fn is_at_rest(&self) -> bool {
        self.rest.at_rest.load(SeqCst)
    }

    /// Whether somebody had a list for the ring, while a thread was in the way.
    pub fn is_wanted(&self) -> bool {
        self.rest.wanted.load(SeqCst) > 0
    }

    /// Whether it is time to look again at a context that is bare, at the call of `io_submit` of that number.
    #[inline(always)]
    pub fn is_rested(calls: u64) -> bool {
        calls.is_multiple_of(REST)
    }

    /// A context that is bare is to go by the ring: it is not bare any more if it may come back, and whoever submits or
    /// takes next tries to have it back.
    #[cold]
    pub fn want_ring(&self) -> bool {
        if !self.is_at_rest() {
            return false;
        }
        self.rest.wanted.store(TRIES, SeqCst);
        self.unbare();
        true
    }

    /// Back to the ring, unless a thread waits in the kernel's `io_getevents`, where it would not see what comes from the ring. Under the lock
    /// of the submitting side.
    #[cold]
    pub fn resume(&self, submitting: &mut Guard<'_, Submitting>) -> bool {
        if !self.is_at_rest() {
            self.rest.wanted.store(0, SeqCst);
            return false;
        }
        if !self.exchange(Mode::Native, Mode::Switching) {
            return false;
        }
        // From here on nobody begins to wait there: see `enter_settled` and `enter_bare`.
        self.unbare();
        if !self.is_free() {
            self.exchange(Mode::Switching, Mode::Native);
            let tries = match self.rest.wanted.load(SeqCst) {
                0 => TRIES,
                tries => tries - 1,
            };
            self.rest.wanted.store(tries, SeqCst);
            self.rest.at_rest.store(tries > 0, SeqCst);
            return false;
        }
        submitting.few = 0;
        self.rest.wanted.store(0, SeqCst);
        self.rest.at_rest.store(false, SeqCst);
        self.set_ring();
        true
    }

    /// Whether nobody is in the way, the program does not take events by itself meanwhile, and the ring is still there.
    fn is_free(&self) -> bool {
        !self.dead.load(SeqCst)
            && !self.native.is_waited_for()
            && !self.program_reads_ring()
            && self.engine().is_some_and(|engine| engine.ring.has_descriptor())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Files;

    #[test]
    fn few_are_few_when_they_were_for_long() {
        let mut submitting = Submitting::new(Files::new());
        let mut calls = |count: u64, list: u32| {
            (0..count).map(|_| submitting.has_few(list)).filter(|few| *few).count()
        };
        assert_eq!(calls(CALLS - 1, FEW), 0);
        assert_eq!(calls(1, FEW + 1), 0);
        assert_eq!(calls(CALLS - 1, 1), 0);
        assert_eq!(calls(1, FEW), 1);
        submitting.patience = u64::MAX;
        assert!(!submitting.has_few(1));
    }
}
