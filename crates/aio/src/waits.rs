//! Waits in the kernel's `io_getevents`, which what a ring of ours has for the thread may interrupt ([`interrupts`]).
//!
//! `io_pgetevents` begins again then, with its whole time. So a wait with a limit goes in slices where that may be: one after
//! the other, each half of what is left.

use crate::context::Context;
use crate::deadline::Deadline;
use crate::interrupts;
use crate::native::is_poll_of_empty_ring;
use crate::stat::Counter;
use crate::system::{self, Ask, failure, now_ns, time_of};
use libc::c_long;
use std::sync::atomic::Ordering::SeqCst;

/// Slices are not shorter but for the last, nor longer where events may come from elsewhere.
pub const SLICE_NS: u64 = 1_000_000;

/// From the kernel, after libaio's own look at the ring.
///
/// # Safety
/// The array of events may be overwritten.
#[inline(always)]
pub unsafe fn natively(context: &Context, ask: Ask) -> i32 {
    // SAFETY: the context is held, so its ring is there.
    if unsafe { is_poll_of_empty_ring(context.id, ask.timeout) } {
        return 0;
    }
    // SAFETY: passed on to the caller.
    unsafe { wait(context, ask) }
}

/// From the kernel.
///
/// # Safety
/// As [`natively`].
#[inline(always)]
pub unsafe fn wait(context: &Context, ask: Ask) -> i32 {
    if ask.timeout != 0 && !ask.masked && interrupts::may_come() {
        // SAFETY: passed on to the caller.
        return unsafe { in_slices(context, ask) };
    }
    context.record.add(Counter::NativeReaps, 1);
    // SAFETY: passed on to the caller.
    unsafe { system::io_getevents(context.id, ask) }
}

/// # Safety
/// As [`natively`].
#[cold]
unsafe fn in_slices(context: &Context, ask: Ask) -> i32 {
    let Ok(end) = Deadline::of(ask.timeout) else { return failure(libc::EFAULT) };
    let mut got = 0;
    loop {
        // SAFETY: passed on to the caller.
        let (_, ended) = unsafe { slice(context, ask, &mut got, end, end.left_ns() / 2) };
        if let Some(code) = ended {
            return code;
        }
    }
}

/// One slice of about `most_ns` for what is left when `got` events are there: what came of it, and of the whole wait if that is
/// its end.
///
/// # Safety
/// As [`natively`].
pub unsafe fn slice(
    context: &Context,
    ask: Ask,
    got: &mut c_long,
    end: Deadline,
    most_ns: u64,
) -> (i32, Option<i32>) {
    let slice_ns = most_ns.max(SLICE_NS).min(end.left_ns());
    let slice = time_of(slice_ns);
    let part = Ask { timeout: (&raw const slice) as usize, ..ask.after(*got) };
    context.record.add(Counter::NativeReaps, 1);
    let begun = now_ns();
    // SAFETY: passed on to the caller, in both.
    let taken = unsafe {
        if ask.masked {
            system::io_getevents(context.id, part)
        } else {
            system::io_getevents_again(context.id, part)
        }
    };
    *got += c_long::from(taken.max(0));
    // Some, and early: a signal's handler has ended it.
    let interrupted = taken > 0 && now_ns() < begun + slice_ns;
    let ended = if taken < 0 || interrupted || *got >= ask.min || end.left_ns() == 0 {
        Some(taken)
    } else if context.dead.load(SeqCst) {
        // Its id may be another's by now.
        Some(failure(libc::EINVAL))
    } else {
        None
    };
    (taken, ended.map(|code| if *got > 0 { *got as i32 } else { code }))
}
