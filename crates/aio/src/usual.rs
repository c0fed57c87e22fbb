//! The usual way through `io_submit` and `io_getevents`, in as few instructions as it takes: reads and writes
//! without flags, of files known to go to io_uring, that end as they were asked to; on pages that were met.
//!
//! ```text
//!   io_submit:    lock, queue()  ── all usual ──> one io_uring_enter
//!                            └───── otherwise ──> submit::Batch, from the first that is not
//!   io_getevents: take()  ── enough ──> back to the program
//!                     └───── otherwise ──> events::Taking, with those there are
//! ```
//!
//! Whatever asks for a decision, a system call or an error is left to `submit` and `events`, which know
//! all cases; leaving out this file would change no answer.

use crate::abi::{self, Entry, Event, Iocb, op};
use crate::caller;
use crate::context::{Context, Engine, Submitting, state};
use crate::system::Ask;
use libc::c_long;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Reads and writes of up to so many bits of bytes are usual.
pub const USUAL_BITS: u32 = 30;
/// Iocbs and events of one round, so that each list is on two pages at most.
const IOCBS_MAX: u32 = 512;
const EVENTS_MAX: u32 = 128;

const _: () = assert!(1 << USUAL_BITS <= abi::RW_COUNT_MAX);
const _: () = assert!(abi::PREAD == 0 && abi::PWRITE == 1 && op::WRITE == op::READ + 1);
const _: () = assert!(IOCBS_MAX as usize * size_of::<usize>() <= caller::PAGE);
const _: () = assert!(EVENTS_MAX as usize * size_of::<Event>() <= caller::PAGE);

/// What [`queue`] has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queued {
    /// Entries that the kernel has not been told of, for as many iocbs from the first on.
    pub count: u32,
    /// Request of the last of these.
    pub last: u32,
}

/// Queues iocbs from the first on, `most` of them, for as long as they are usual. There is room for as many
/// requests.
///
/// # Safety
/// What the iocbs name stays valid until their events.
#[inline(always)]
pub unsafe fn queue(
    engine: &Engine,
    submitting: &mut Submitting,
    iocbs: usize,
    most: u32,
) -> Queued {
    let mut queued = Queued::default();
    let Some(queue) = submitting.queue.as_mut() else { return queued };
    let most = most.min(queue.room()).min(IOCBS_MAX);
    if most == 0 || !caller::is_readable(iocbs, most as usize * size_of::<usize>()) {
        return queued;
    }
    while queued.count < most {
        let place = iocbs as *const usize;
        // SAFETY: on a page that was met.
        let address = unsafe { place.add(queued.count as usize).read_unaligned() };
        if !caller::is_writable(address, size_of::<Iocb>()) {
            break;
        }
        // SAFETY: as above.
        let iocb = unsafe { (address as *const Iocb).read_unaligned() };
        let marks = iocb.flags | iocb.rw_flags | u32::from(iocb.opcode >> 1);
        if u64::from(marks) | iocb.reserved2 | iocb.nbytes >> USUAL_BITS != 0 {
            break;
        }
        // A negative offset is, without its sign, beyond all that are allowed.
        let (offset, write) = (iocb.offset as u64, usize::from(iocb.opcode));
        if offset > i64::MAX as u64 - iocb.nbytes || iocb.buf > abi::ADDRESS_END - iocb.nbytes {
            break;
        }
        if !submitting.files.goes_by_ring(iocb.fildes, write, offset + iocb.nbytes) {
            break;
        }
        let Some((index, request)) = submitting.requests.again(engine) else { break };
        let entry = Entry::new(op::READ + write as u8, iocb.fildes, 0).at(
            offset,
            iocb.buf,
            iocb.nbytes as u32,
        );
        // SAFETY: there is room, as `most` says.
        unsafe { queue.put(entry, u64::from(index)) };
        // SAFETY: on a page that was met, as writable.
        unsafe { (&raw mut (*(address as *mut Iocb)).key).write_unaligned(0) };
        request.begin(address as u64, iocb.data, entry, state::IO);
        queued = Queued { count: queued.count + 1, last: index };
    }
    queued
}

/// Takes completions for as long as they are usual, and gives back how many events it has written.
///
/// # Safety
/// The array of events may be overwritten.
#[inline(always)]
pub unsafe fn take(context: &Context, engine: &Engine, ask: &Ask) -> c_long {
    let ring = &engine.ring;
    if context.done.load(SeqCst) != 0 || ring.has_overflow() || !ring.has_completions() {
        return 0;
    }
    let mut reaping = context.reaping();
    let Some(queue) = reaping.queue.as_mut() else { return 0 };
    let most = queue.count().min(EVENTS_MAX).min(u32::try_from(ask.nr).unwrap_or(EVENTS_MAX));
    if most == 0 || !caller::is_writable(ask.events, most as usize * size_of::<Event>()) {
        return 0;
    }
    let mut got = 0;
    let (mut first, mut last) = (0, 0);
    while got < most {
        // SAFETY: `most` counts no more than are there.
        let cqe = unsafe { queue.first() };
        let index = cqe.user_data as u32;
        // Those that only wake are of no request.
        let Some(request) = engine.requests().get(index as usize) else { break };
        if !request.is_whole(cqe.res) {
            break;
        }
        let place = ask.events as *mut Event;
        // SAFETY: on a page that was met, as writable; no alignment is assumed.
        unsafe { place.add(got as usize).write_unaligned(request.event(cqe.res)) };
        request.state.store(state::FREE, Relaxed);
        // A chain that ends with the first; what comes after that one is for `give_back` to say.
        request.next.store(first, Relaxed);
        (first, last) = (index + 1, if got == 0 { index } else { last });
        queue.advance();
        got += 1;
    }
    if got == 0 {
        return 0;
    }
    queue.release();
    engine.give_back(first - 1, last);
    context.outstanding.fetch_sub(got, SeqCst);
    c_long::from(got)
}
