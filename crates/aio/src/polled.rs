//! The proposed interface, for programs that can change: iocbs that lie in an array known beforehand,
//! completions found by polling, buffers pinned at set-up, submission by a kernel thread.
//!
//! ```text
//!   io_setup2(nr, flags, iocbs, sq_ring, cq_ring) --> id (odd: it is no address of a kernel ring)
//!   io_submit(indices) / io_ring_enter --> io_uring with IOPOLL, registered buffers, SQPOLL
//!   io_getevents / cq_ring <--- event { obj: index, data, res }
//! ```
//!
//! It was proposed for Linux with iocbs as the user-mapped structure and became io_uring, on which it
//! stands here. Differences: the rings of `IOCTX_FLAG_SCQRING` move only within `io_ring_enter`, and
//! `IOCTX_FLAG_FIXEDFILES` is ours.

mod setup;
mod transfer;

pub use setup::{Places, Rings, setup};
pub use transfer::{enter_rings, submit, take, take_only};

use crate::context::Engine;
use crate::inside::Inside;
use crate::lock::{Guard, Lock};
use crate::probe::{Access, Files};
use crate::registry::Registry;
use crate::ring::{Completion, Submission};
use crate::stat::{self, Record};
use crate::system::failure;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// Iocbs are indices into the array given at set-up.
pub const USERIOCB: u32 = 1 << 0;
/// Completions are found by asking the device.
pub const IOPOLL: u32 = 1 << 1;
/// The iocbs' buffers are pinned at set-up.
pub const FIXEDBUFS: u32 = 1 << 2;
/// Submissions and completions go through rings in the program's memory.
pub const SCQRING: u32 = 1 << 3;
/// A kernel thread takes submissions.
pub const SQTHREAD: u32 = 1 << 4;
/// Submissions go to worker threads.
pub const SQWQ: u32 = 1 << 5;
/// The kernel thread does not sleep.
pub const SQPOLL: u32 = 1 << 6;
/// The iocbs' files are pinned at set-up (ours).
pub const FIXEDFILES: u32 = 1 << 16;
/// All of them.
pub const FLAGS: u32 =
    USERIOCB | IOPOLL | FIXEDBUFS | SCQRING | SQTHREAD | SQWQ | SQPOLL | FIXEDFILES;

/// `iocb.aio_flags`: this I/O may be polled for; required where contexts poll.
pub const FLAG_HIPRI: u32 = 1 << 2;

/// Contexts that `io_setup2` made.
static CONTEXTS: Registry<Polled> = Registry::new();

/// A context of `io_setup2`.
pub struct Polled {
    id: usize,
    flags: u32,
    nr: u32,
    /// Address of the array of iocbs, or 0.
    iocbs: usize,
    engine: Engine,
    /// What was pinned of each iocb.
    pinned: Box<[Pinned]>,
    rings: Rings,
    submitting: Lock<Submitting>,
    reaping: Lock<Completion>,
    outstanding: AtomicU32,
    dead: AtomicBool,
    record: &'static Record,
}

/// What was pinned of an iocb.
#[derive(Clone, Copy, Debug, Default)]
struct Pinned {
    buf: u64,
    end: u64,
    fd: i32,
    access: Access,
}

/// What a submitting thread owns.
struct Submitting {
    queue: Submission,
    files: Files,
    requests: crate::context::Free,
    early: Early,
}

/// A call of the program. In a signal's handler that has interrupted another call of this thread it waits for nothing:
/// neither for locks, which that other call may have, nor for events, which may be of requests that it has yet to submit.
struct Call(Option<Inside>);

impl Call {
    #[inline(always)]
    fn begin() -> Call {
        Call(Inside::enter())
    }

    #[inline(always)]
    fn may_wait(&self) -> bool {
        self.0.is_some()
    }
}

/// Whether submitting is worth a look for completions in the same call: where there often are some by then, since others
/// are in flight or the device is quick, that saves a call.
#[derive(Debug)]
struct Early {
    /// Looks that may still be in vain.
    credit: u32,
    turn: u32,
}

/// Looks in vain after which submitting looks only now and then.
const LOOKS: u32 = 16;
/// That is one time in so many.
const SELDOM: u32 = 64;

impl Early {
    const fn new() -> Early {
        Early { credit: LOOKS, turn: 0 }
    }

    /// Whether to look this time.
    #[inline(always)]
    fn is_due(&mut self) -> bool {
        self.turn = self.turn.wrapping_add(1);
        self.credit > 0 || self.turn.is_multiple_of(SELDOM)
    }

    /// Notes what a look has brought.
    #[inline(always)]
    fn note(&mut self, found: bool) {
        self.credit = if found { LOOKS } else { self.credit.saturating_sub(1) };
    }
}

impl Polled {
    #[inline(always)]
    fn submitting(&self, call: &Call) -> Option<Guard<'_, Submitting>> {
        if call.may_wait() { Some(self.submitting.lock()) } else { self.submitting.try_lock() }
    }

    #[inline(always)]
    fn reaping(&self, call: &Call) -> Option<Guard<'_, Completion>> {
        if call.may_wait() { Some(self.reaping.lock()) } else { self.reaping.try_lock() }
    }

    /// Whether waiting in the kernel is sleeping: it polls itself unless a thread of its own does.
    #[inline(always)]
    fn sleeps(&self) -> bool {
        !self.has(IOPOLL) || self.engine.ring.has_thread()
    }

    /// Whether nothing is in flight, nor there to be taken, nor being destroyed.
    fn is_idle(&self) -> bool {
        self.outstanding.load(SeqCst) == 0
            && !self.engine.ring.has_completions()
            && !self.dead.load(SeqCst)
    }

    /// Whether it has one of these flags.
    #[inline(always)]
    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        stat::close(self.record);
        setup::release_id(self.id);
    }
}

/// Whether the id is that of a context of `io_setup2`: those of the kernel are addresses of pages.
#[inline]
pub fn is_id(id: usize) -> bool {
    id & 1 != 0
}

/// `io_destroy` of such a context.
pub fn destroy(id: usize) -> i32 {
    let Some(held) = CONTEXTS.find(id).filter(|held| held.retire()) else {
        return failure(libc::EINVAL);
    };
    held.dead.store(true, SeqCst);
    transfer::drain(&held);
    drop(held.reclaim(transfer::nudge));
    0
}
