//! Programs that submit one request past the page cache and ask for its event at once, again and again: they might as well read and
//! write. So that is what is done for them, within `io_submit`, which takes one system call instead of two and no completion that has to be told.
//!
//! ```text
//!   io_submit(one) ── began ──> io_getevents(1, for ever) by the same thread, hardly later:  one more that was prompt
//!                               by another thread, later, or with a limit:                   fewer that were
//!   io_submit(several), or while others are in flight:                                       none
//! ```
//!
//! Whoever does something else meanwhile keeps his two calls: that is what he has asynchronous I/O for.

use crate::inside;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

/// So many in a row show that the program always waits; more are not remembered.
const CALLS: u32 = 128;
const CALLS_MAX: u32 = 2 * CALLS;
/// What one costs that was not: the processor may have done something else meanwhile.
const LATE: u32 = CALLS / 2;
/// Ticks of the processor's clock from the end of the one call to the begin of the other, at most: a few microseconds.
const TICKS_MAX: u64 = 10_000;

/// How a context's program has waited of late.
#[derive(Default)]
pub struct Prompt {
    /// When the request was submitted that alone is in flight; 0 if that is not so, or was taken note of.
    began: AtomicU64,
    /// By which thread.
    by: AtomicUsize,
    count: AtomicU32,
}

impl Prompt {
    /// The calling thread has submitted one, and nothing else is in flight.
    #[inline(always)]
    pub fn begin(&self) {
        self.by.store(inside::thread(), Relaxed);
        self.began.store(ticks(), Relaxed);
    }

    /// Several are in flight.
    #[inline(always)]
    pub fn forget(&self) {
        self.began.store(0, Relaxed);
        self.count.store(0, Relaxed);
    }

    /// One was submitted in an unusual way, which says nothing.
    pub fn skip(&self) {
        self.began.store(0, Relaxed);
    }

    /// The calling thread asks for `min` events, for ever if that is no `timeout`.
    #[inline(always)]
    pub fn ask(&self, min: i64, timeout: usize) {
        let began = self.began.load(Relaxed);
        if began == 0 {
            return;
        }
        self.began.store(0, Relaxed);
        let count = self.count.load(Relaxed);
        let waits = min == 1 && timeout == 0 && self.by.load(Relaxed) == inside::thread();
        let is_prompt = waits && ticks().wrapping_sub(began) <= TICKS_MAX;
        let count = if is_prompt { (count + 1).min(CALLS_MAX) } else { count.saturating_sub(LATE) };
        self.count.store(count, Relaxed);
    }

    /// Whether it may yet be found to be.
    pub fn may_be(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Whether it always asks at once.
    #[inline(always)]
    pub fn is_always(&self) -> bool {
        self.count.load(Relaxed) >= CALLS
    }
}

/// The processor's clock, never 0; where there is none that a program may read, nobody is prompt.
#[inline(always)]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register; a process that has had this forbidden (PR_SET_TSC) has no use for the C library's clock either.
    return unsafe { std::arch::x86_64::_rdtsc() } | 1;
    #[cfg(not(target_arch = "x86_64"))]
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_at_once_again_and_again_is_prompt_until_he_is_not() {
        let prompt = Prompt::default();
        let calls = |count: u32, min, timeout| {
            for _ in 0..count {
                prompt.begin();
                prompt.ask(min, timeout);
                // Nothing was submitted since.
                prompt.ask(min, timeout);
            }
        };
        // One that is interrupted in between costs some of those before it.
        calls(8 * CALLS, 1, 0);
        assert!(prompt.is_always());
        calls(3, 1, 16);
        assert!(!prompt.is_always(), "with a limit");
        calls(8 * CALLS, 0, 0);
        assert!(!prompt.is_always(), "without waiting");
        calls(8 * CALLS, 1, 0);
        assert!(prompt.is_always());
        prompt.forget();
        assert!(!prompt.is_always(), "several");
        prompt.ask(1, 0);
        assert_eq!(prompt.count.load(Relaxed), 0);
    }

    #[test]
    fn who_is_late_or_another_is_not() {
        let prompt = Prompt::default();
        let late = |count: u32, other: bool| {
            for _ in 0..count {
                prompt.begin();
                if other {
                    std::thread::scope(|scope| drop(scope.spawn(|| prompt.ask(1, 0))));
                    continue;
                }
                let began = prompt.began.load(Relaxed);
                prompt.began.store(began - TICKS_MAX - 2, Relaxed);
                prompt.ask(1, 0);
            }
        };
        late(2 * CALLS, false);
        assert!(!prompt.is_always());
        prompt.count.store(CALLS_MAX, Relaxed);
        late(3, true);
        assert!(!prompt.is_always());
        prompt.count.store(CALLS_MAX, Relaxed);
        late(2, false);
        assert!(prompt.is_always(), "two may have been interrupted");
        late(1, false);
        assert!(!prompt.is_always());
    }
}
