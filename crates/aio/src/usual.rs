//! The usual way through `io_submit` and `io_getevents`, in as few instructions as it takes: reads and writes
//! without flags, of files known to go to io_uring, that end as they were asked to; on pages that were met.
//!
//! ```text
//!   io_submit:    queue()  ── all usual ────────────> one io_uring_enter
//!                     └───── one, in the page cache ──> read_here()
//!                     └───── otherwise ───────────────> submit::Batch, from the first that is not
//!   io_getevents: take()  ── enough ──> back to the program
//!                     └───── otherwise ──> events::Taking, with those there are
//! ```
//!
//! Whatever asks for a decision, a system call or an error is left to `submit` and `events`, which know
//! all cases; leaving out this file would change no answer.

use crate::abi::{self, Entry, Event, Iocb, op};
use crate::caller;
use crate::context::{Context, Engine, Reaping, Submitting, state};
use crate::ring::Completion;
use crate::stat::Counter;
use crate::submit;
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
/// requests. With `MANY`, reads of the page cache go to io_uring as well.
///
/// # Safety
/// What the iocbs name stays valid until their events.
#[inline(always)]
pub unsafe fn queue<const MANY: bool>(
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
        let Some(iocb) = usual(address) else { break };
        let (offset, write) = (iocb.offset as u64, usize::from(iocb.opcode));
        let files = &mut submitting.files;
        let known = files.goes_by_ring(iocb.fildes, write, offset + iocb.nbytes)
            || (MANY && files.goes_with_many(iocb.fildes, write));
        if !known {
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

/// [`queue`] for many, apart from the code for one.
///
/// # Safety
/// As that.
#[inline(never)]
pub unsafe fn queue_many(
    engine: &Engine,
    submitting: &mut Submitting,
    iocbs: usize,
    most: u32,
) -> Queued {
    // SAFETY: passed on to the caller.
    unsafe { queue::<true>(engine, submitting, iocbs, most) }
}

/// The iocb at that address, if it is on pages that were met as writable, and usual but perhaps for its file.
#[inline(always)]
fn usual(address: usize) -> Option<Iocb> {
    if !caller::is_writable(address, size_of::<Iocb>()) {
        return None;
    }
    // SAFETY: see above; no alignment is assumed.
    let iocb = unsafe { (address as *const Iocb).read_unaligned() };
    let marks = iocb.flags | iocb.rw_flags | u32::from(iocb.opcode >> 1);
    if u64::from(marks) | iocb.reserved2 | iocb.nbytes >> USUAL_BITS != 0 {
        return None;
    }
    // A negative offset is, without its sign, beyond all that are allowed.
    let beyond = iocb.offset as u64 > i64::MAX as u64 - iocb.nbytes
        || iocb.buf > abi::ADDRESS_END - iocb.nbytes;
    (!beyond).then_some(iocb)
}

/// Carries out the first iocb of a list, for which there is room, if it is a usual read from the page cache that
/// is worth trying there. Whether the data was there; None if it was not tried.
///
/// # Safety
/// As [`queue`].
#[inline(never)]
pub unsafe fn read_here(
    context: &Context,
    submitting: &mut Submitting,
    iocbs: usize,
) -> Option<bool> {
    let address = caller::read::<usize>(iocbs).ok()?;
    let iocb = usual(address).filter(|iocb| iocb.opcode == abi::PREAD && iocb.nbytes > 0)?;
    let file = submitting.files.worth_trying(iocb.fildes)?;
    let (offset, len) = (iocb.offset as u64, iocb.nbytes as u32);
    let entry = Entry::new(op::READ, iocb.fildes, 0).at(offset, iocb.buf, len);
    // SAFETY: passed on to the caller.
    let result = unsafe { submit::carry_out(false, abi::RWF_NOWAIT, &entry) };
    // Short and unwilling to wait is no answer: there may be more to read.
    let whole = result == len as isize;
    file.note_try(whole);
    if !whole {
        context.record.add_locked(Counter::Misses, 1);
        return Some(false);
    }
    // SAFETY: on a page that was met, as writable.
    unsafe { (&raw mut (*(address as *mut Iocb)).key).write_unaligned(0) };
    let event = Event { data: iocb.data, obj: address as u64, res: result as i64, res2: 0 };
    context.outstanding.fetch_add(1, SeqCst);
    submit::finish(context, submitting, event);
    Some(true)
}

/// Takes events for as long as they are usual, and gives back how many it has written.
///
/// # Safety
/// The array of events may be overwritten.
#[inline(always)]
pub unsafe fn take(context: &Context, engine: &Engine, ask: &Ask) -> c_long {
    let ring = &engine.ring;
    if ring.has_overflow() {
        return 0;
    }
    let inline = context.done.load(SeqCst);
    if inline > 0 {
        // SAFETY: passed on to the caller.
        return unsafe { take_both(context, engine, ask, inline) };
    }
    if !ring.has_completions() {
        return 0;
    }
    let mut reaping = context.reaping();
    let Some(queue) = reaping.queue.as_mut() else { return 0 };
    let most = queue.count().min(room_of(ask));
    if most == 0 || !caller::is_writable(ask.events, most as usize * size_of::<Event>()) {
        return 0;
    }
    // SAFETY: on pages that were met, as writable.
    let got = unsafe { take_completions(queue, engine, ask.events, most) };
    if got > 0 {
        context.outstanding.fetch_sub(got, SeqCst);
    }
    c_long::from(got)
}

/// Places in the caller's array that are looked at together.
#[inline(always)]
fn room_of(ask: &Ask) -> u32 {
    (ask.nr as u64).min(u64::from(EVENTS_MAX)) as u32
}

/// The same with `inline` events at least of what was carried out inline.
///
/// # Safety
/// As [`take`].
#[inline(never)]
unsafe fn take_both(context: &Context, engine: &Engine, ask: &Ask, inline: u32) -> c_long {
    let mut reaping = context.reaping();
    let room = room_of(ask);
    if room == 0 || !caller::is_writable(ask.events, room as usize * size_of::<Event>()) {
        return 0;
    }
    // SAFETY: on pages that were met, as writable.
    let mut got = unsafe { take_inline(&mut reaping, ask.events, inline.min(room)) };
    context.done.fetch_sub(got, SeqCst);
    if let Some(queue) = reaping.queue.as_mut() {
        let events = ask.events + got as usize * size_of::<Event>();
        let most = queue.count().min(room - got);
        // SAFETY: as above.
        got += unsafe { take_completions(queue, engine, events, most) };
    }
    if got > 0 {
        context.outstanding.fetch_sub(got, SeqCst);
    }
    c_long::from(got)
}

/// Up to `count` events of what was carried out inline; gives back how many.
///
/// # Safety
/// There is room in the array from `events` on.
unsafe fn take_inline(reaping: &mut Reaping, events: usize, count: u32) -> u32 {
    let mut got = 0;
    while got < count
        && let Some(event) = reaping.kept()
    {
        // SAFETY: there is room; no alignment is assumed.
        unsafe { (events as *mut Event).add(got as usize).write_unaligned(event) };
        reaping.forget_kept();
        got += 1;
    }
    got
}

/// Events of up to `most` completions, which are there; gives back how many.
///
/// # Safety
/// There is room for as many in the array from `events` on.
#[inline(always)]
unsafe fn take_completions(
    queue: &mut Completion,
    engine: &Engine,
    events: usize,
    most: u32,
) -> u32 {
    let mut got = 0;
    let (mut first, mut last) = (0, 0);
    while got < most {
        // SAFETY: there are as many as `most` says.
        let cqe = unsafe { queue.first() };
        let index = cqe.user_data as u32;
        // Those that only wake are of no request.
        let Some(request) = engine.requests().get(index as usize) else { break };
        if !request.is_whole(cqe.res) {
            break;
        }
        // SAFETY: there is room; no alignment is assumed.
        unsafe { (events as *mut Event).add(got as usize).write_unaligned(request.event(cqe.res)) };
        request.state.store(state::FREE, Relaxed);
        // A chain that ends with the first; what comes after that one is for `give_back` to say.
        request.next.store(first, Relaxed);
        (first, last) = (index + 1, if got == 0 { index } else { last });
        queue.advance();
        got += 1;
    }
    if got > 0 {
        queue.release();
        engine.give_back(first - 1, last);
    }
    got
}
