//! The usual way through `io_submit` and `io_getevents`, in as few instructions as it takes: reads and writes
//! without flags, of files known to go to io_uring, that end as they were asked to; on pages that were met.
//!
//! ```text
//!   io_submit:    queue_one(), queue() ── all usual ──> one io_uring_enter
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
use crate::context::{Context, Engine, Free, Submitting, state};
use crate::inline::Waiting;
use crate::lock::Guard;
use crate::probe;
use crate::ring::{Completion, Submission};
use crate::stat::Counter;
use crate::submit;
use crate::system::{self, failure};
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

/// What becomes of one iocb.
#[derive(Clone, Copy, Debug)]
pub enum One {
    /// It was queued, and the kernel sees it; that is its request.
    Queued(u32),
    /// It is a usual read from the page cache, or of memory, of the iocb at that address: for [`read_here`].
    Cached(usize, Iocb),
    /// It is a usual one past the page cache, to be waited for: for [`wait_here`].
    Direct(usize, Iocb),
    /// It is not usual, or not for now.
    Other,
}

/// Queues the first iocb of a list if it is usual, or gives it back if it is to be waited for where it goes past the page cache. There is room for it.
///
/// # Safety
/// What the iocb names stays valid until its event.
#[inline(always)]
pub unsafe fn queue_one(
    engine: &Engine,
    submitting: &mut Submitting,
    iocbs: usize,
    waits: bool,
) -> One {
    let Some(queue) = submitting.queue.as_mut() else { return One::Other };
    if queue.room() == 0 || !caller::is_readable(iocbs, size_of::<usize>()) {
        return One::Other;
    }
    // SAFETY: on a page that was met.
    let address = unsafe { (iocbs as *const usize).read_unaligned() };
    let Some(iocb) = usual(address) else { return One::Other };
    let Some(file) = submitting.files.known(iocb.fildes) else { return One::Other };
    let (write, end) = (usize::from(iocb.opcode), iocb.offset as u64 + iocb.nbytes);
    if !file.goes_by_ring(write, end) {
        if write == 0 && file.is_worth_trying() && iocb.nbytes > 0 {
            return One::Cached(address, iocb);
        }
        return One::Other;
    }
    if waits {
        return One::Direct(address, iocb);
    }
    // SAFETY: there is room; the rest is passed on to the caller.
    let queued = unsafe { put(engine, queue, &mut submitting.requests, address, iocb, 0) };
    let Some(index) = queued else { return One::Other };
    queue.publish();
    One::Queued(index)
}

/// Queues iocbs from the first on, `most` of them, for as long as they are usual. There is room for as many
/// requests. With `many`, reads of the page cache go to io_uring as well.
///
/// # Safety
/// What the iocbs name stays valid until their events.
#[inline(never)]
pub unsafe fn queue(
    engine: &Engine,
    submitting: &mut Submitting,
    iocbs: usize,
    most: u32,
    many: bool,
) -> Queued {
    let mut queued = Queued::default();
    let Some(queue) = submitting.queue.as_mut() else { return queued };
    let most = most.min(queue.room()).min(IOCBS_MAX);
    if most == 0 || !caller::is_readable(iocbs, most as usize * size_of::<usize>()) {
        return queued;
    }
    let (files, requests) = (&mut submitting.files, &mut submitting.requests);
    let round = files.round();
    while queued.count < most {
        let place = iocbs as *const usize;
        // SAFETY: on a page that was met.
        let address = unsafe { place.add(queued.count as usize).read_unaligned() };
        let Some(iocb) = usual(address) else { break };
        let Some(file) = files.known(iocb.fildes) else { break };
        let (write, end) = (usize::from(iocb.opcode), iocb.offset as u64 + iocb.nbytes);
        let mark = if file.goes_by_ring(write, end) {
            0
        } else if many && write == 0 && file.is_read_cached() {
            file.mark_in(round)
        } else {
            break;
        };
        // SAFETY: there is room, as `most` says; the rest is passed on to the caller.
        let put = unsafe { put(engine, queue, requests, address, iocb, mark) };
        let Some(index) = put else { break };
        queued = Queued { count: queued.count + 1, last: index };
    }
    queued
}

/// Queues the iocb at that address, which is usual, with the mark of its file or 0; gives back its request, if
/// there is one free.
///
/// # Safety
/// There is room in the queue; what the iocb names stays valid until its event.
#[inline(always)]
unsafe fn put(
    engine: &Engine,
    queue: &mut Submission,
    requests: &mut Free,
    address: usize,
    iocb: Iocb,
    mark: u64,
) -> Option<u32> {
    let (index, request) = requests.again(engine)?;
    let opcode = op::READ + iocb.opcode as u8;
    let entry =
        Entry::new(opcode, iocb.fildes, 0).at(iocb.offset as u64, iocb.buf, iocb.nbytes as u32);
    // SAFETY: passed on to the caller.
    unsafe { queue.put(entry, u64::from(index)) };
    // SAFETY: on a page that was met, as writable.
    unsafe { (&raw mut (*(address as *mut Iocb)).key).write_unaligned(0) };
    request.begin(address as u64, iocb.data, entry, mark, state::IO);
    Some(index)
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

/// What came of trying a read where it is submitted.
pub enum Tried {
    /// Its event is there.
    Done,
    /// Its data was not.
    Missed,
    /// The kernel has an error for it.
    Wrong,
}

/// Carries out the iocb of which [`queue_one`] has just said [`One::Cached`].
///
/// # Safety
/// As [`queue_one`]; this thread has kept the lock of the submitting side, which is kept further if not.
#[inline(always)]
pub unsafe fn read_here(context: &Context, engine: &Engine, address: usize, iocb: Iocb) -> Tried {
    // SAFETY: as the caller says.
    let mut submitting = unsafe { context.kept_submitting() };
    let (offset, len) = (iocb.offset as u64, iocb.nbytes as u32);
    let entry = Entry::new(op::READ, iocb.fildes, 0).at(offset, iocb.buf, len);
    // What is over waits for nothing but to be taken.
    let alone = context.outstanding.load(Relaxed) == 0 && context.waiters.load(Relaxed) == 0;
    let here = submitting.files.is_read_here(iocb.fildes);
    let waits = here || alone && submitting.files.may_wait(iocb.fildes);
    let flags = if waits { 0 } else { abi::RWF_NOWAIT };
    // SAFETY: passed on to the caller.
    let result = unsafe { system::carry_out(false, flags, &entry) };
    // Short and unwilling to wait is no answer: there may be more to read, unless the file ends there.
    let whole = result == len as isize
        || result >= 0 && (here || probe::ends_by(iocb.fildes, offset + result as u64));
    submitting.few = 0;
    if !whole {
        // Its pages were there if the kernel finds the address wrong.
        let wrong = here || result == failure(libc::EFAULT) as isize;
        if !wrong {
            submitting.files.note_try(iocb.fildes, false);
            context.record.add_locked(Counter::Misses, 1);
        }
        Guard::leave_locked(submitting);
        return if wrong { Tried::Wrong } else { Tried::Missed };
    }
    submitting.files.note_try(iocb.fildes, true);
    // SAFETY: on a page that was met, as writable.
    unsafe { (&raw mut (*(address as *mut Iocb)).key).write_unaligned(0) };
    let event = Event { data: iocb.data, obj: address as u64, res: result as i64, res2: 0 };
    submit::finish(context, engine, &mut submitting, event);
    Tried::Done
}

/// Carries out the iocb of which [`queue_one`] has just said [`One::Direct`], if it is alone: whether it is done.
///
/// # Safety
/// As [`queue_one`]; this thread has kept the lock of the submitting side, which is kept further if not.
#[inline(always)]
pub unsafe fn wait_here(context: &Context, engine: &Engine, address: usize, iocb: Iocb) -> bool {
    // SAFETY: as the caller says.
    let mut submitting = unsafe { context.kept_submitting() };
    let is_alone = context.outstanding.load(Relaxed) == 0
        && engine.inline.waiting().count == 0
        && context.native.pending.load(Relaxed) == 0
        && context.waiters.load(Relaxed) == 0;
    let write = iocb.opcode == abi::PWRITE;
    let entry = Entry::new(op::READ + iocb.opcode as u8, iocb.fildes, 0).at(
        iocb.offset as u64,
        iocb.buf,
        iocb.nbytes as u32,
    );
    let result = match is_alone {
        // SAFETY: passed on to the caller.
        true => unsafe { system::carry_out(write, 0, &entry) },
        false => failure(libc::EAGAIN) as isize,
    };
    if result < 0 && !(write && system::is_outcome(result)) {
        // The same once more says what is wrong.
        context.prompt.forget();
        Guard::leave_locked(submitting);
        return false;
    }
    // SAFETY: on a page that was met, as writable.
    unsafe { (&raw mut (*(address as *mut Iocb)).key).write_unaligned(0) };
    let event = Event { data: iocb.data, obj: address as u64, res: result as i64, res2: 0 };
    submitting.few = 0;
    submit::finish(context, engine, &mut submitting, event);
    if Guard::is_wanted(&submitting) {
        // Whoever comes back at once would have the lock again before the other is awake.
        context.prompt.forget();
    } else {
        context.prompt.begin();
    }
    true
}

/// Takes events for as long as they are usual, and gives back how many it has written.
///
/// # Safety
/// The array of events may be overwritten.
#[inline(always)]
pub unsafe fn take(context: &Context, engine: &Engine, nr: c_long, events: usize) -> c_long {
    let ring = &engine.ring;
    if ring.has_overflow() {
        return 0;
    }
    let inline = engine.inline.waiting();
    let completions = ring.has_completions();
    if inline.count == 1 && !completions {
        // SAFETY: passed on to the caller; there is one.
        return unsafe { take_inline_one(engine, inline, nr, events) };
    }
    if inline.count > 0 {
        // SAFETY: passed on to the caller.
        return unsafe { take_both(context, engine, nr, events, inline.count) };
    }
    if !completions {
        return 0;
    }
    let mut reaping = context.reaping();
    // SAFETY: it is there, and the caller's array has room for it.
    let one = unsafe {
        nr > 0
            && reaping
                .queue
                .as_mut()
                .is_some_and(|queue| queue.count() == 1 && take_one(queue, engine, events))
    };
    if one {
        context.outstanding.fetch_sub(1, SeqCst);
        return 1;
    }
    Guard::leave_locked(reaping);
    // SAFETY: the lock is kept; the rest is passed on to the caller.
    unsafe { take_several(context, engine, nr, events) }
}

/// The same however many there are.
///
/// # Safety
/// As [`take`]; this thread has kept the lock of the reaping side, which is given up.
#[inline(never)]
unsafe fn take_several(context: &Context, engine: &Engine, nr: c_long, events: usize) -> c_long {
    // SAFETY: as the caller says.
    let mut reaping = unsafe { context.kept_reaping() };
    let Some(queue) = reaping.queue.as_mut() else { return 0 };
    let most = queue.count().min(room_of(nr));
    if most == 0 || !caller::is_writable(events, most as usize * size_of::<Event>()) {
        return 0;
    }
    // SAFETY: on pages that were met, as writable.
    let got = unsafe { take_completions(queue, engine, events, most) };
    if got > 0 {
        context.outstanding.fetch_sub(got, SeqCst);
    }
    c_long::from(got)
}

/// Places in the caller's array that are looked at together.
#[inline(always)]
fn room_of(nr: c_long) -> u32 {
    (nr as u64).min(u64::from(EVENTS_MAX)) as u32
}

/// The same from both sides, with `inline` events of what was carried out inline.
///
/// # Safety
/// As [`take`].
#[inline(never)]
unsafe fn take_both(
    context: &Context,
    engine: &Engine,
    nr: c_long,
    events: usize,
    inline: u32,
) -> c_long {
    let room = room_of(nr);
    if room == 0 || !caller::is_writable(events, room as usize * size_of::<Event>()) {
        return 0;
    }
    let mut reaping = context.reaping();
    if reaping.queue.as_ref().is_some_and(|queue| is_stopped(queue, engine)) {
        // Or this turn would be the other side's, and all that follow as well.
        return 0;
    }
    let ring_first = reaping.is_ring_first();
    let mut got = 0;
    for ring in [ring_first, !ring_first] {
        let events = events + got as usize * size_of::<Event>();
        // SAFETY: on pages that were met, as writable, in both.
        unsafe {
            if !ring {
                got += take_inline(engine, events, inline.min(room - got));
            } else if let Some(queue) = reaping.queue.as_mut() {
                let taken = take_completions(queue, engine, events, queue.count().min(room - got));
                context.outstanding.fetch_sub(taken, SeqCst);
                got += taken;
            }
        }
    }
    c_long::from(got)
}

/// Whether the first completion is there, and not a usual one.
#[inline(always)]
fn is_stopped(queue: &Completion, engine: &Engine) -> bool {
    if queue.count() == 0 {
        return false;
    }
    // SAFETY: there is one.
    let cqe = unsafe { queue.first() };
    let request = engine.requests().get(cqe.user_data as u32 as usize);
    request.is_none_or(|request| !request.is_whole(cqe.res))
}

/// The only event of what was carried out inline; how many.
///
/// # Safety
/// As [`take`].
#[inline(always)]
unsafe fn take_inline_one(engine: &Engine, inline: Waiting, nr: c_long, event: usize) -> c_long {
    if nr < 1 || !caller::is_writable(event, size_of::<Event>()) {
        return 0;
    }
    let kept = engine.inline.first(inline);
    if !engine.inline.claim(inline) {
        return 0;
    }
    // SAFETY: on pages that were met, as writable; no alignment is assumed.
    unsafe { (event as *mut Event).write_unaligned(kept) };
    1
}

/// Up to `count` events of what was carried out inline; gives back how many.
///
/// # Safety
/// There is room in the array from `events` on.
unsafe fn take_inline(engine: &Engine, events: usize, count: u32) -> u32 {
    let mut got = 0;
    while got < count {
        let waiting = engine.inline.waiting();
        if waiting.count == 0 {
            break;
        }
        let event = engine.inline.first(waiting);
        if engine.inline.claim(waiting) {
            // SAFETY: there is room; no alignment is assumed.
            unsafe { (events as *mut Event).add(got as usize).write_unaligned(event) };
            got += 1;
        }
    }
    got
}

/// Takes the event of the next completion if that is a usual one; whether it has.
///
/// # Safety
/// There is a completion, and what is at `event` may be overwritten.
#[inline(always)]
unsafe fn take_one(queue: &mut Completion, engine: &Engine, event: usize) -> bool {
    if !caller::is_writable(event, size_of::<Event>()) {
        return false;
    }
    // SAFETY: there is one.
    let cqe = unsafe { queue.first() };
    let index = cqe.user_data as u32;
    let Some(request) = engine.requests().get(index as usize) else { return false };
    if !request.is_whole(cqe.res) {
        return false;
    }
    // SAFETY: on pages that were met, as writable; no alignment is assumed.
    unsafe { (event as *mut Event).write_unaligned(request.event(cqe.res)) };
    request.state.store(state::FREE, Relaxed);
    queue.advance();
    queue.release();
    engine.give_back(index, index);
    true
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
