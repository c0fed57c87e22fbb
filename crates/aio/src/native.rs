//! What went to the kernel's context, and who is waiting there.

use crate::abi::{self, AioRing, Iocb, RING_MAGIC};
use crate::caller;
use crate::context::{Context, Mode};
use crate::depth::FEW;
use crate::inside::Inside;
use crate::probe::Reason;
use crate::stat::Counter;
use crate::system::{self, Ask, failure};
use libc::{c_long, timespec};
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
    /// Whether its events were first when others might be there as well.
    was_first: AtomicBool,
}

impl Native {
    /// How many events came out of the kernel's `io_getevents`.
    pub fn reaped(&self) -> u64 {
        self.reaped.load(SeqCst)
    }

    /// Whether something may be there, and its turn is before what comes from elsewhere.
    pub fn is_first(&self) -> bool {
        self.pending.load(SeqCst) > 0 && !self.was_first.fetch_xor(true, Relaxed)
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

/// Events for a signal's handler that has interrupted another call of this thread, which may have our locks: the kernel's
/// alone. It waits where there are to be as many, as of what it has submitted itself.
///
/// # Safety
/// The array of events may be overwritten.
#[cold]
pub unsafe fn take_nested(context: &Context, ask: Ask) -> i32 {
    let is_wrong = ask.min < 0 || ask.min > ask.nr;
    let may_wait = is_wrong || context.native.pending.load(SeqCst) >= ask.min;
    let ask = if may_wait { ask } else { Ask { min: 0, ..ask } };
    // Nor does a ring come meanwhile, whose events it would not see.
    context.native.inside.fetch_add(1, SeqCst);
    // SAFETY: passed on to the caller.
    let taken = unsafe { system::io_getevents(context.id, ask) };
    context.leave_settled(taken);
    // As if another signal had ended it: no time was over.
    if !may_wait && taken == 0 && ask.timeout == 0 { failure(libc::EINTR) } else { taken }
}

/// Whether the caller does not want to wait and there is nothing in the kernel's ring: libaio 0.3.113
/// answers that without a system call, and without looking at the other arguments.
///
/// # Safety
/// `id` is that of a context, or something readable.
pub unsafe fn is_poll_of_empty_ring(id: usize, timeout: usize) -> bool {
    if timeout == 0 {
        return false;
    }
    let ring = id as *const AioRing;
    // SAFETY: passed on to the caller; the kernel writes to it, hence volatile.
    unsafe {
        if (&raw const (*ring).magic).read_volatile() != RING_MAGIC {
            return false;
        }
        let time = (timeout as *const timespec).read_unaligned();
        if time.tv_sec != 0 || time.tv_nsec != 0 {
            return false;
        }
        (&raw const (*ring).head).read_volatile() == (&raw const (*ring).tail).read_volatile()
    }
}

/// The whole batch to the kernel's context.
///
/// # Safety
/// What the iocbs name stays valid until their events.
#[inline(never)]
pub unsafe fn submit(context: &Context, nr: c_long, iocbs: usize) -> i32 {
    if context.mode() == Mode::Proving {
        look_at(context, nr, iocbs);
    }
    // SAFETY: passed on to the caller.
    unsafe { to_kernel(context, nr, iocbs) }
}

/// # Safety
/// What the iocbs name stays valid until their events.
#[inline(always)]
unsafe fn to_kernel(context: &Context, nr: c_long, iocbs: usize) -> i32 {
    // Counted before, so that nobody waits elsewhere for what has been submitted here.
    let asked = nr.clamp(0, i64::from(context.nr));
    context.native.pending.fetch_add(asked, SeqCst);
    // SAFETY: passed on to the caller.
    let taken = unsafe { system::io_submit(context.id, nr, iocbs) };
    let gone = asked - i64::from(taken.max(0));
    if gone != 0 {
        context.native.pending.fetch_sub(gone, SeqCst);
    }
    if taken > 0 {
        context.record.add(Counter::Native, taken as u64);
    } else if taken < 0 {
        context.record.add(Counter::Refused, 1);
    }
    taken
}

/// The same on a context that is bare; None where it is to go by the ring, and may.
///
/// # Safety
/// What the iocbs name stays valid until their events.
#[inline(always)]
pub unsafe fn submit_barely(context: &Context, nr: c_long, iocbs: usize) -> Option<i32> {
    let is_rested = Context::is_rested(context.record.count(Counter::Submits));
    if (nr > c_long::from(FEW) || is_rested) && context.want_ring() {
        return None;
    }
    context.record.add(Counter::Submits, 1);
    // SAFETY: passed on to the caller.
    let taken = unsafe { to_kernel(context, nr, iocbs) };
    // It may be bare no more, and somebody wait elsewhere who has looked before.
    if context.waiters.load(SeqCst) > 0 {
        wake_waiters(context);
    }
    Some(taken)
}

#[cold]
fn wake_waiters(context: &Context) {
    // A handler that has interrupted this thread within the library must not wait for its locks.
    if let Some(_inside) = Inside::enter() {
        context.wake_all(&mut context.submitting());
    }
}

/// Learns from iocbs that go to the kernel what kind of program this is.
fn look_at(context: &Context, nr: c_long, iocbs: usize) {
    for index in 0..nr.clamp(0, i64::from(context.nr)) as usize {
        let Some(address) = address_of(iocbs, index) else { return };
        let Ok(iocb) = caller::read::<usize>(address).and_then(caller::read::<Iocb>) else {
            return;
        };
        if iocb.flags & abi::FLAG_RESFD != 0 {
            context.settle_unproven(Reason::Eventfd);
        }
        if iocb.opcode == abi::POLL {
            context.native.polls.store(true, Relaxed);
        }
    }
}

/// Where that place of a list of iocbs is.
pub fn address_of(array: usize, index: usize) -> Option<usize> {
    array.checked_add(index.checked_mul(size_of::<usize>())?)
}
