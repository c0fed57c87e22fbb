//! What went to the kernel's context, and who is waiting there.

use crate::context::{Context, Mode};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};

/// Calls of `io_getevents` that do not wait and bring events, after which the program is known.
const CALLS_PROVING: u32 = 8;

/// What went to the kernel's context.
#[derive(Default)]
pub struct Native {
    /// Iocbs submitted, and not yet known to be reaped.
    pub pending: AtomicI64,
    /// Events that came out of `io_getevents`.
    reaped: AtomicU64,
    /// Threads within the kernel's `io_getevents`.
    inside: AtomicU32,
    /// A poll was submitted, which may last.
    pub polls: AtomicBool,
    calls: AtomicU32,
    proven: AtomicBool,
}

impl Native {
    /// How many events came out of the kernel's `io_getevents`.
    pub fn reaped(&self) -> u64 {
        self.reaped.load(SeqCst)
    }

    /// Whether a thread is within the kernel's `io_getevents`, of those that say so.
    pub fn is_waited_for(&self) -> bool {
        self.inside.load(SeqCst) > 0
    }
}

impl Context {
    /// A thread enters the kernel's `io_getevents`; false when the mode has changed and it must not.
    pub fn enter_native(&self) -> bool {
        self.enter(|| self.is(Mode::Proving))
    }

    /// The same of a context that is [`Mode::Native`], and false where anything comes from the ring: it may have been back there
    /// since the thread looked. From here on it does not go back before [`Context::leave_settled`].
    pub fn enter_settled(&self) -> bool {
        self.enter(|| {
            self.is(Mode::Native) && self.engine().is_none_or(|engine| self.is_left(engine))
        })
    }

    /// The same of one that is bare.
    #[inline(always)]
    pub fn enter_bare(&self) -> bool {
        self.enter(|| self.is_bare())
    }

    #[inline(always)]
    fn enter(&self, may: impl FnOnce() -> bool) -> bool {
        self.native.inside.fetch_add(1, SeqCst);
        if may() {
            return true;
        }
        self.native.inside.fetch_sub(1, SeqCst);
        false
    }

    /// The thread has come back with `got` events, or an error.
    #[inline(always)]
    pub fn leave_settled(&self, got: i32) {
        self.note_native(got);
        self.native.inside.fetch_sub(1, SeqCst);
    }

    /// The thread has come back with `got` events, having waited or not.
    pub fn leave_native(&self, got: i32, waited: bool) {
        self.note_native(got);
        if got > 0 {
            let calls = self.native.calls.fetch_add(1, Relaxed) + 1;
            if waited || calls >= CALLS_PROVING {
                self.native.proven.store(true, Relaxed);
            }
        }
        self.native.inside.fetch_sub(1, SeqCst);
    }

    /// The kernel's `io_getevents` has given `got` events, or an error.
    #[inline(always)]
    pub fn note_native(&self, got: i32) {
        if got > 0 {
            self.native.reaped.fetch_add(got as u64, SeqCst);
            self.native.pending.fetch_sub(i64::from(got), SeqCst);
        }
    }

    /// The program is known without having been watched.
    pub fn prove(&self) {
        self.native.proven.store(true, Relaxed);
    }

    /// Whether the program is known, and only others that wait are in the way of the ring.
    pub fn is_proven(&self) -> bool {
        self.native.proven.load(Relaxed)
            && !(self.native.polls.load(Relaxed) && self.native.pending.load(SeqCst) > 0)
    }
}
