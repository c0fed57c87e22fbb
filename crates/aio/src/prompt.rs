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

use crate::thread::{self, Last};
use std::ptr;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// So many in a row show that the program always waits; more are not remembered.
const CALLS: u32 = 128;
const CALLS_MAX: u32 = 2 * CALLS;
/// What one costs that was not: the processor may have done something else meanwhile.
const LATE: u32 = CALLS / 2;
/// Ticks of the processor's clock from the end of the one call to the begin of the other, at most: a few microseconds.
const TICKS_MAX: u64 = 10_000;

/// How a context's program has waited of late: how many times in a row at once.
#[derive(Default)]
pub struct Prompt(AtomicU32);

impl Prompt {
    /// The calling thread has submitted one, and nothing else is in flight.
    #[inline(always)]
    pub fn begin(&self) {
        thread::set_last(Last { context: self.id(), ticks: ticks() });
    }

    /// Several are in flight.
    #[inline(always)]
    pub fn forget(&self) {
        thread::forget_last();
        self.0.store(0, Relaxed);
    }

    /// The calling thread asks for `min` events, for ever if that is no `timeout`.
    #[inline(always)]
    pub fn ask(&self, min: i64, timeout: usize) {
        let last = thread::last();
        if last.context == self.id() {
            thread::forget_last();
            let is_prompt =
                min == 1 && timeout == 0 && ticks().wrapping_sub(last.ticks) <= TICKS_MAX;
            self.note(is_prompt);
        } else if self.may_be() {
            // It was another thread that submitted, or this one has submitted something else since.
            self.note(false);
        }
    }

    #[inline(always)]
    fn note(&self, is_prompt: bool) {
        let count = self.0.load(Relaxed);
        let count = if is_prompt { (count + 1).min(CALLS_MAX) } else { count.saturating_sub(LATE) };
        self.0.store(count, Relaxed);
    }

    fn id(&self) -> usize {
        ptr::from_ref(self) as usize
    }

    /// Whether it may yet be found to be.
    pub fn may_be(&self) -> bool {
        self.0.load(Relaxed) > 0
    }

    /// Whether it always asks at once.
    #[inline(always)]
    pub fn is_always(&self) -> bool {
        self.0.load(Relaxed) >= CALLS
    }
}

/// The processor's clock. Where there is none that is known here it does not stand still, so that nobody is prompt.
#[inline(always)]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register, which is allowed: see `has_clock`.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    {
        static NOW: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        NOW.fetch_add(2 * TICKS_MAX, Relaxed)
    }
}

/// Whether the process may read it, which it may forbid itself.
pub fn has_clock() -> bool {
    let mut answer = 0_i32;
    // SAFETY: a place for the answer; nothing happens where there is no such question.
    let asked = unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut answer) };
    asked != 0 || answer == libc::PR_TSC_ENABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(prompt: &Prompt, count: u32, min: i64, timeout: usize) {
        for _ in 0..count {
            prompt.begin();
            prompt.ask(min, timeout);
        }
    }

    #[test]
    fn who_asks_at_once_again_and_again_is_prompt_until_he_is_not() {
        let prompt = Prompt::default();
        // One that is interrupted in between costs some of those before it.
        calls(&prompt, 8 * CALLS, 1, 0);
        assert!(prompt.is_always());
        calls(&prompt, 3, 1, 16);
        assert!(!prompt.is_always(), "with a limit");
        calls(&prompt, 8 * CALLS, 0, 0);
        assert!(!prompt.is_always(), "without waiting");
        calls(&prompt, 8 * CALLS, 1, 0);
        assert!(prompt.is_always());
        prompt.forget();
        assert!(!prompt.is_always() && !prompt.may_be(), "several");
    }

    #[test]
    fn who_is_late_or_another_is_not() {
        let prompt = Prompt::default();
        let late = |count: u32| {
            for _ in 0..count {
                prompt.begin();
                let last = thread::last();
                thread::set_last(Last { ticks: last.ticks.wrapping_sub(TICKS_MAX + 1), ..last });
                prompt.ask(1, 0);
            }
        };
        late(2 * CALLS);
        assert!(!prompt.may_be());
        prompt.0.store(CALLS_MAX, Relaxed);
        late(2);
        assert!(prompt.is_always(), "two may have been interrupted");
        late(1);
        assert!(!prompt.is_always());
        prompt.0.store(CALLS_MAX, Relaxed);
        for _ in 0..3 {
            prompt.begin();
            std::thread::scope(|scope| drop(scope.spawn(|| prompt.ask(1, 0))));
        }
        assert!(!prompt.is_always(), "another thread asked");
    }

    #[test]
    fn who_has_two_contexts_in_flight_waits_for_neither() {
        let both = [Prompt::default(), Prompt::default()];
        for _ in 0..4 * CALLS {
            both.iter().for_each(Prompt::begin);
            both.iter().for_each(|prompt| prompt.ask(1, 0));
        }
        assert!(!both[0].is_always());
        // One after the other he does.
        for _ in 0..8 * CALLS {
            both.iter().for_each(|prompt| calls(prompt, 1, 1, 0));
        }
        assert!(both.iter().all(Prompt::is_always));
    }
}
