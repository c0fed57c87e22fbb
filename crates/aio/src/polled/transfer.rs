//! Submitting to contexts of `io_setup2`, and taking their events.

use super::setup::{CQ_EVENTS, SQ_ARRAY};
use super::{
    CONTEXTS, Call, FIXEDBUFS, FIXEDFILES, FLAG_HIPRI, IOPOLL, Polled, Rings, SCQRING, SQWQ,
    Submitting, USERIOCB,
};
use crate::abi::{self, Entry, Event, Iocb, op};
use crate::caller::{self, Fault};
use crate::context::{WAKE, state};
use crate::deadline::Deadline;
use crate::probe::Access;
use crate::ring::{PERHAPS, Wait};
use crate::stat::Counter;
use crate::system::{self, Ask, failure};
use crate::usual::USUAL_BITS;
use libc::c_long;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

const SQE_FIXED_FILE: u8 = 1 << 0;
const SQE_ASYNC: u8 = 1 << 4;
const _: () = assert!(op::WRITE_FIXED == op::READ_FIXED + 1);
/// `io_ring_enter`: submit.
const RING_SUBMIT: u32 = 1 << 0;
/// `io_ring_enter`: take completions, waiting for `min`.
const RING_GETEVENTS: u32 = 1 << 1;
/// Iocbs of one call whose list is looked at once: it is on two pages at most.
const NAMED_MAX: usize = caller::PAGE / size_of::<usize>();
/// Events whose places are looked at together: on two pages at most.
const EVENTS_MAX: usize = caller::PAGE / size_of::<Event>();
/// How long to wait at a time where waiting must be able to end.
const NUDGE_NS: u64 = 1_000_000;
/// The same after a while.
const SLICE_NS_MAX: u64 = 64_000_000;

/// `io_submit`: indices where the context has `USERIOCB`, pointers otherwise.
///
/// # Safety
/// What the iocbs name stays valid until their events.
pub unsafe fn submit(id: usize, nr: c_long, iocbs: usize) -> i32 {
    let Some(held) = CONTEXTS.find(id) else { return failure(libc::EINVAL) };
    let context: &Polled = &held;
    if nr < 0 || context.has(SCQRING) {
        return failure(libc::EINVAL);
    }
    context.record.add(Counter::Submits, 1);
    let call = Call::begin();
    let mut batch = match Batch::new(context, &call) {
        Ok(batch) => batch,
        Err(code) => return code,
    };
    if nr == 1 && context.has(USERIOCB) && caller::is_readable(iocbs, size_of::<usize>()) {
        // SAFETY: on a page that was met; no alignment is assumed.
        let named = unsafe { (iocbs as *const usize).read_unaligned() };
        return match batch.push(named) {
            Ok(()) => batch.finish(None, 0),
            Err(code) => code,
        };
    }
    let mut error = 0;
    let nr = (nr as u64).min(u64::from(context.nr)) as usize;
    let listed =
        (1..=NAMED_MAX).contains(&nr) && caller::is_readable(iocbs, nr * size_of::<usize>());
    for index in 0..nr {
        let place = iocbs.wrapping_add(index * size_of::<usize>());
        let named = if listed {
            // SAFETY: on a page that was met; no alignment is assumed.
            Ok(unsafe { (place as *const usize).read_unaligned() })
        } else {
            caller::read::<usize>(place).map_err(|Fault| failure(libc::EFAULT))
        };
        if let Err(code) = named.and_then(|named| batch.push(named)) {
            error = code;
            break;
        }
    }
    batch.finish(None, error)
}

/// `io_ring_enter`.
///
/// # Safety
/// As `submit`, for the iocbs whose indices the ring has.
pub unsafe fn enter_rings(id: usize, to_submit: u32, min: u32, flags: u32) -> i32 {
    let Some(held) = CONTEXTS.find(id) else { return failure(libc::EINVAL) };
    let context: &Polled = &held;
    if !context.has(SCQRING) || flags & !(RING_SUBMIT | RING_GETEVENTS) != 0 {
        return failure(libc::EINVAL);
    }
    let call = Call::begin();
    let waiting = flags & RING_GETEVENTS != 0;
    let mut submitted = 0;
    if flags & RING_SUBMIT != 0 {
        // In the same call where the kernel polls until there are so many, or nothing is left to poll for. Where it would sleep,
        // the lock must not be held: others may have to submit, say what is waited for.
        let wait = waiting && min > 0 && !context.sleeps() && call.may_wait();
        submitted = match from_ring(context, &call, to_submit, wait.then_some(min)) {
            Ok(count) => count,
            Err(code) => return code,
        };
    }
    if !waiting {
        return submitted;
    }
    match to_ring(context, &call, min) {
        Err(code) if submitted == 0 => code,
        Err(_) => submitted,
        Ok(taken) if flags & RING_SUBMIT == 0 => taken,
        Ok(_) => submitted,
    }
}

/// A 32-bit word of a ring in the program's memory.
///
/// # Safety
/// It was there at set-up.
#[inline(always)]
unsafe fn word<'a>(address: usize) -> &'a AtomicU32 {
    // SAFETY: the program keeps the rings for as long as the context lives, and accesses the word atomically as well.
    unsafe { &*(address as *const AtomicU32) }
}

/// Submits what the program has put into its ring, and waits for `min` completions where wanted.
#[inline(always)]
fn from_ring(context: &Polled, call: &Call, to_submit: u32, min: Option<u32>) -> Result<i32, i32> {
    let Rings { sq, places, .. } = context.rings;
    // SAFETY: looked at then.
    let (head, tail) = unsafe { (word(sq), word(sq + 4)) };
    context.record.add(Counter::Submits, 1);
    let mut batch = Batch::new(context, call)?;
    let mut error = 0;
    let at = head.load(Relaxed);
    for count in 0..to_submit.min(tail.load(Acquire).wrapping_sub(at)) {
        let place = at.wrapping_add(count) & (places.sq - 1);
        // SAFETY: the array was looked at then; no alignment is assumed.
        let index = unsafe { ((sq + SQ_ARRAY) as *const u32).add(place as usize).read_unaligned() };
        if let Err(code) = batch.push(index as usize) {
            error = code;
            break;
        }
    }
    let submitted = batch.finish(min, error);
    if submitted < 0 {
        return Err(submitted);
    }
    // Before another thread has the lock.
    head.store(at.wrapping_add(submitted as u32), Release);
    drop(batch);
    Ok(submitted)
}

/// Puts events into the program's ring, as many as there are and have room, waiting for `min`.
#[inline(always)]
fn to_ring(context: &Polled, call: &Call, min: u32) -> Result<i32, i32> {
    let mut taken = 0;
    let mut slice = context.sleeps().then_some(NUDGE_NS);
    let mut asked = false;
    loop {
        let (count, full) = put_events(context, call);
        taken += count;
        let in_flight = context.outstanding.load(SeqCst);
        if taken >= min || full || in_flight == 0 {
            return Ok(taken as i32);
        }
        // Another thread may take what is waited for here, and nothing else may be in flight.
        let mut wanted = (min - taken).min(in_flight);
        if !call.may_wait() {
            match (asked, taken) {
                (false, _) => (asked, wanted) = (true, 0),
                (true, 0) => return Err(failure(libc::EINTR)),
                (true, _) => return Ok(taken as i32),
            }
        }
        if let Err(code) = wait(context, wanted, slice, 0) {
            taken += put_events(context, call).0;
            if taken > 0 {
                return Ok(taken as i32);
            }
            if code != PERHAPS {
                return Err(code);
            }
        }
        slice = slice.map(|ns| (ns * 2).min(SLICE_NS_MAX));
    }
}

/// Puts events that there are; how many, and whether the ring is full now.
#[inline(always)]
fn put_events(context: &Polled, call: &Call) -> (u32, bool) {
    let Rings { cq, places, .. } = context.rings;
    // SAFETY: looked at at set-up.
    let (head, tail) = unsafe { (word(cq), word(cq + 4)) };
    let Some(mut queue) = context.reaping(call) else { return (0, false) };
    let at = tail.load(Relaxed);
    let mut room = places.cq.saturating_sub(at.wrapping_sub(head.load(Acquire)));
    let mut taken = 0;
    while room > 0 && queue.count() > 0 {
        // SAFETY: there is one.
        let cqe = unsafe { queue.first() };
        queue.advance();
        if cqe.user_data == WAKE {
            continue;
        }
        let event = complete(context, cqe);
        let place = at.wrapping_add(taken) & (places.cq - 1);
        // SAFETY: the array was looked at at set-up; no alignment is assumed.
        unsafe { ((cq + CQ_EVENTS) as *mut Event).add(place as usize).write_unaligned(event) };
        (taken, room) = (taken + 1, room - 1);
    }
    queue.release();
    if taken > 0 {
        // Before: whoever sees the events may submit as many at once.
        context.outstanding.fetch_sub(taken, SeqCst);
        tail.store(at.wrapping_add(taken), Release);
        context.record.add_locked(Counter::Events, u64::from(taken));
    }
    let full = || at.wrapping_add(taken).wrapping_sub(head.load(Acquire)) >= places.cq;
    (taken, room == 0 && full())
}

/// One call that submits.
struct Batch<'a> {
    context: &'a Polled,
    submitting: crate::lock::Guard<'a, Submitting>,
    room: u32,
    pushed: u32,
}

impl<'a> Batch<'a> {
    /// Fails on a context that is being destroyed: `drain` takes the lock once more before it counts what
    /// is in flight.
    #[inline]
    fn new(context: &'a Polled, call: &Call) -> Result<Self, i32> {
        let submitting = context.submitting(call).ok_or(failure(libc::EAGAIN))?;
        if context.dead.load(SeqCst) {
            return Err(failure(libc::EINVAL));
        }
        let room = context.nr.saturating_sub(context.outstanding.load(SeqCst));
        // A thread of the kernel that takes entries makes more room, which the next call sees.
        let room = room.min(submitting.queue.room());
        Ok(Batch { context, submitting, room, pushed: 0 })
    }

    /// Queues the iocb with that index, or at that address.
    #[inline(always)]
    fn push(&mut self, named: usize) -> Result<(), i32> {
        let context = self.context;
        if !context.has(USERIOCB) {
            return self.push_unusual(named, usize::MAX, named);
        }
        if named >= context.nr as usize {
            return Err(failure(libc::EINVAL));
        }
        let address = context.iocbs + named * size_of::<Iocb>();
        // SAFETY: within the array, which was there at set-up and is until the context is destroyed; no
        // alignment is assumed.
        let iocb = unsafe { (address as *const Iocb).read_unaligned() };
        match self.usual(iocb, named) {
            Some((entry, buffer)) => self.queue(entry, buffer, named, iocb.data),
            None => self.push_unusual(address, named, named),
        }
    }

    /// In any case.
    #[inline(never)]
    fn push_unusual(&mut self, address: usize, index: usize, named: usize) -> Result<(), i32> {
        let iocb = caller::read::<Iocb>(address).map_err(|Fault| failure(libc::EFAULT))?;
        let (entry, buffer) = self.entry(&iocb, index)?;
        self.queue(entry, buffer, named, iocb.data)
    }

    /// Queues an entry for what was named so.
    #[inline(always)]
    fn queue(&mut self, entry: Entry, buffer: u16, named: usize, data: u64) -> Result<(), i32> {
        let context = self.context;
        let full = failure(libc::EAGAIN);
        if self.pushed == self.room {
            return Err(full);
        }
        let request = if context.has(USERIOCB) {
            named as u32
        } else {
            self.submitting.requests.take(&context.engine).ok_or(full)?
        };
        let place = context.engine.request(request);
        place.obj.store(named as u64, Relaxed);
        place.data.store(data, Relaxed);
        // SAFETY: there is room, see above.
        unsafe { self.submitting.queue.put_with_buffer(entry, u64::from(request), buffer) };
        self.pushed += 1;
        Ok(())
    }

    /// What [`Batch::entry`] gives for a read or write without flags, where nothing is to be asked or refused.
    #[inline(always)]
    fn usual(&mut self, iocb: Iocb, index: usize) -> Option<(Entry, u16)> {
        let context = self.context;
        let polled = if context.has(IOPOLL) { FLAG_HIPRI } else { 0 };
        let marks = (iocb.flags ^ polled) | iocb.rw_flags | u32::from(iocb.opcode >> 1);
        let marks = u64::from(marks) | iocb.reserved2 | iocb.nbytes >> USUAL_BITS;
        if marks != 0 || iocb.offset < 0 {
            return None;
        }
        let write = iocb.opcode as u8;
        let (mut fd, mut flags, mut buffer, mut opcode) = (iocb.fildes, 0, 0, op::READ + write);
        if context.has(FIXEDFILES | FIXEDBUFS) {
            let pinned = context.pinned.get(index)?;
            if context.has(FIXEDFILES) {
                if pinned.fd != fd || !pinned.access.allows(write, polled != 0) {
                    return None;
                }
                (fd, flags) = (index as i32, SQE_FIXED_FILE);
            }
            if context.has(FIXEDBUFS) {
                if iocb.buf < pinned.buf || iocb.buf.checked_add(iocb.nbytes)? > pinned.end {
                    return None;
                }
                (opcode, buffer) = (op::READ_FIXED + write, index as u16);
            }
        }
        if flags == 0 && !self.submitting.files.allows(fd, write, polled != 0) {
            return None;
        }
        if context.has(SQWQ) {
            flags |= SQE_ASYNC;
        }
        let entry = Entry::new(opcode, fd, 0).with_flags(flags);
        Some((entry.at(iocb.offset as u64, iocb.buf, iocb.nbytes as u32), buffer))
    }

    /// The ring's entry for an iocb and the place of its buffer, or why there is none.
    fn entry(&mut self, iocb: &Iocb, index: usize) -> Result<(Entry, u16), i32> {
        let context = self.context;
        let polled = context.has(IOPOLL);
        let wrong = iocb.reserved2 != 0
            || iocb.nbytes > i64::MAX as u64
            || iocb.flags & !(FLAG_HIPRI | abi::FLAG_IOPRIO) != 0
            || (iocb.flags & FLAG_HIPRI != 0) != polled;
        if wrong {
            return Err(failure(libc::EINVAL));
        }
        let mut opcode = self.opcode(iocb, polled)?;
        let (mut fd, mut flags, mut buffer) = (iocb.fildes, 0, 0);
        let access = if context.has(FIXEDFILES) {
            // A place may be left without a file.
            let pinned = context.pinned.get(index).filter(|pinned| pinned.fd == fd && fd >= 0);
            (fd, flags) = (index as i32, SQE_FIXED_FILE);
            pinned.map(|pinned| pinned.access)
        } else {
            self.submitting.files.of(fd).map(|file| file.access())
        };
        check_access(access.ok_or(failure(libc::EBADF))?, iocb, polled)?;
        if context.has(FIXEDBUFS) && iocb.opcode <= abi::PWRITE {
            let pinned = context.pinned[index];
            let end = iocb.buf.checked_add(iocb.nbytes);
            if iocb.buf < pinned.buf || end.is_none_or(|end| end > pinned.end) {
                return Err(failure(libc::EFAULT));
            }
            opcode = if iocb.opcode == abi::PREAD { op::READ_FIXED } else { op::WRITE_FIXED };
            buffer = index as u16;
        }
        if context.has(SQWQ) {
            flags |= SQE_ASYNC;
        }
        // What moves no data has none: as the kernel's AIO, we do not look at it.
        let has_priority =
            iocb.flags & abi::FLAG_IOPRIO != 0 && !matches!(opcode, op::FSYNC | op::POLL_ADD);
        let priority = if has_priority { iocb.reqprio as u16 } else { 0 };
        let entry = Entry::new(opcode, fd, priority).with_flags(flags);
        let entry = match opcode {
            op::FSYNC => entry.with_op_flags(u32::from(iocb.opcode == abi::FDSYNC)),
            op::POLL_ADD => entry.with_op_flags(iocb.buf as u32),
            _ => entry
                .at(iocb.offset as u64, iocb.buf, iocb.nbytes.min(abi::RW_COUNT_MAX) as u32)
                .with_op_flags(iocb.rw_flags & !abi::RWF_HIPRI),
        };
        Ok((entry, buffer))
    }

    #[inline]
    fn opcode(&self, iocb: &Iocb, polled: bool) -> Result<u8, i32> {
        let fixed = self.context.has(FIXEDBUFS);
        let plain = iocb.offset == 0 && iocb.nbytes == 0 && iocb.rw_flags == 0;
        let opcode = match iocb.opcode {
            abi::PREAD | abi::PWRITE | abi::PREADV | abi::PWRITEV if iocb.offset < 0 => None,
            abi::PREAD => Some(op::READ),
            abi::PWRITE => Some(op::WRITE),
            abi::PREADV if !fixed && iocb.nbytes <= abi::IOVECS_MAX => Some(op::READV),
            abi::PWRITEV if !fixed && iocb.nbytes <= abi::IOVECS_MAX => Some(op::WRITEV),
            abi::FSYNC | abi::FDSYNC if !polled && plain && iocb.buf == 0 => Some(op::FSYNC),
            abi::POLL if !polled && plain && iocb.buf <= u64::from(u16::MAX) => Some(op::POLL_ADD),
            _ => None,
        };
        opcode.ok_or(failure(libc::EINVAL))
    }

    /// Hands over what was pushed, and waits where wanted. Gives back how many were taken, or the
    /// error that stopped the first.
    #[inline(always)]
    fn finish(&mut self, min: Option<u32>, error: i32) -> i32 {
        let context = self.context;
        let pushed = self.pushed;
        if pushed == 0 {
            return error;
        }
        context.outstanding.fetch_add(pushed, SeqCst);
        context.record.add_locked(Counter::Ring, u64::from(pushed));
        context.record.add_locked(Counter::Enters, 1);
        let ring = &context.engine.ring;
        self.submitting.queue.publish();
        if ring.has_thread() {
            // Taken for sure: the entries are in the queue.
            ring.submit(pushed);
            return pushed as i32;
        }
        let taken = match min {
            // More than is in flight would never come.
            Some(min) => ring.submit_and_look(pushed, min.min(context.outstanding.load(SeqCst))),
            None if context.has(IOPOLL) && self.submitting.early.is_due() => {
                let taken = ring.submit_and_look(pushed, 0);
                self.submitting.early.note(ring.has_completions());
                taken
            }
            None => ring.submit_here(pushed),
        };
        if taken as u32 == pushed {
            return taken;
        }
        self.take_back(taken)
    }

    /// The kernel has taken so many of what was pushed, or gave an error.
    #[cold]
    fn take_back(&mut self, taken: i32) -> i32 {
        let (context, pushed) = (self.context, self.pushed);
        let left = pushed - (taken.max(0) as u32).min(pushed);
        if left > 0 {
            for back in 1..=left {
                let request = self.submitting.queue.user_data_before(back) as u32;
                if !context.has(USERIOCB) {
                    self.submitting.requests.untake(&context.engine, request);
                }
            }
            self.submitting.queue.take_back(left);
            context.outstanding.fetch_sub(left, SeqCst);
        }
        match (pushed - left, taken) {
            (0, 0) => failure(libc::EAGAIN),
            (0, code) => code,
            (count, _) => count as i32,
        }
    }
}

/// What the kernel's AIO refuses when submitting.
fn check_access(access: Access, iocb: &Iocb, polled: bool) -> Result<(), i32> {
    let allowed = match iocb.opcode {
        abi::PREAD | abi::PREADV => access.readable,
        abi::PWRITE | abi::PWRITEV => access.writable,
        _ => true,
    };
    if !allowed {
        return Err(failure(libc::EBADF));
    }
    if polled && !access.direct {
        return Err(failure(libc::EOPNOTSUPP));
    }
    Ok(())
}

/// The event of a completion; the lock on the reaping side is held.
#[inline]
fn complete(context: &Polled, cqe: abi::Cqe) -> Event {
    let index = cqe.user_data as u32;
    let request = context.engine.request(index);
    let event = Event {
        data: request.data.load(Relaxed),
        obj: request.obj.load(Relaxed),
        res: i64::from(cqe.res),
        res2: 0,
    };
    request.state.store(state::FREE, Relaxed);
    if !context.has(USERIOCB) {
        context.engine.give_back(index, index);
    }
    event
}

/// Takes the only event that there is, where that is all that is asked for; false, and nothing is done, in any other case.
///
/// # Safety
/// As `io_getevents`.
#[inline(always)]
pub unsafe fn take_only(id: usize, min: c_long, nr: c_long, place: usize) -> bool {
    let Some(held) = CONTEXTS.find(id) else { return false };
    let context: &Polled = &held;
    let is_one = (0..2).contains(&min) && nr > 0 && context.engine.ring.has_completions();
    if !is_one || context.has(SCQRING) || !caller::is_writable(place, size_of::<Event>()) {
        return false;
    }
    let call = Call::begin();
    let Some(mut queue) = context.reaping(&call) else { return false };
    if queue.count() != 1 {
        return false;
    }
    // SAFETY: there is one.
    let cqe = unsafe { queue.first() };
    if cqe.user_data == WAKE {
        return false;
    }
    let event = complete(context, cqe);
    // SAFETY: on a page that was met, as writable; no alignment is assumed.
    unsafe { (place as *mut Event).write_unaligned(event) };
    queue.advance();
    queue.release();
    context.outstanding.fetch_sub(1, SeqCst);
    context.record.add(Counter::Reaps, 1);
    context.record.add(Counter::Events, 1);
    true
}

/// `io_getevents` and `io_pgetevents`.
///
/// # Safety
/// As those.
pub unsafe fn take(id: usize, ask: Ask) -> i32 {
    let Some(held) = CONTEXTS.find(id) else { return failure(libc::EINVAL) };
    let context: &Polled = &held;
    if ask.min < 0 || ask.min > ask.nr || context.has(SCQRING) {
        return failure(libc::EINVAL);
    }
    context.record.add(Counter::Reaps, 1);
    let call = Call::begin();
    let mut got: c_long = 0;
    let mut outcome = reap(context, &call, &ask, &mut got);
    if outcome.is_ok() && (got == 0 || got < ask.min) {
        outcome = if call.may_wait() {
            wait_and_reap(context, &call, &ask, &mut got)
        } else {
            look_and_reap(context, &call, ask, &mut got)
        };
    }
    if got > 0 {
        context.record.add(Counter::Events, got as u64);
        return got as i32;
    }
    outcome.err().unwrap_or(0)
}

/// Takes what there is without waiting, and says so where that is not enough.
#[cold]
fn look_and_reap(context: &Polled, call: &Call, ask: Ask, got: &mut c_long) -> Result<(), i32> {
    wait_and_reap(context, call, &Ask { min: 0, ..ask }, got)?;
    if ask.min > 0 { Err(failure(libc::EINTR)) } else { Ok(()) }
}

/// Takes what comes until it is enough or the time is over.
fn wait_and_reap(context: &Polled, call: &Call, ask: &Ask, got: &mut c_long) -> Result<(), i32> {
    let mut end = None;
    let mut asked = false;
    loop {
        if context.dead.load(SeqCst) {
            return Err(failure(libc::EINVAL));
        }
        let end = match end {
            Some(end) => end,
            None => *end.insert(Deadline::of(ask.timeout).map_err(|Fault| failure(libc::EFAULT))?),
        };
        let left = end.left_ns();
        // Where completions are found by asking, ask once even if there is no time.
        let last = left == 0 || ask.min == 0;
        if last && (asked || !context.has(IOPOLL)) {
            return Ok(());
        }
        asked = true;
        let min = if last { 0 } else { (ask.min - *got) as u32 };
        if min > 0 && !context.sleeps() && context.is_idle() {
            // Where the kernel polls it would come back at once, and tell of no signal.
            system::sleep_while(|| context.is_idle(), left, NUDGE_NS, ask.signals)?;
            continue;
        }
        if let Err(code) = wait(context, min, (left != u64::MAX).then_some(left), ask.signals) {
            let before = *got;
            let _ = reap(context, call, ask, got);
            if code != PERHAPS || *got > before {
                return Err(code);
            }
            continue;
        }
        reap(context, call, ask, got)?;
        if *got > 0 && *got >= ask.min {
            return Ok(());
        }
    }
}

/// Takes what there is.
#[inline(always)]
fn reap(context: &Polled, call: &Call, ask: &Ask, got: &mut c_long) -> Result<(), i32> {
    if context.engine.ring.has_completions() { reap_some(context, call, ask, got) } else { Ok(()) }
}

fn reap_some(context: &Polled, call: &Call, ask: &Ask, got: &mut c_long) -> Result<(), i32> {
    let Some(mut queue) = context.reaping(call) else { return Ok(()) };
    let (mut taken, mut released) = (*got as usize, 0);
    let mut outcome = Ok(());
    while outcome.is_ok() {
        let room = (ask.nr as usize).saturating_sub(taken);
        let most = (queue.count() as usize).min(room).min(EVENTS_MAX);
        if most == 0 {
            break;
        }
        let place = ask.events.wrapping_add(taken * size_of::<Event>());
        let met = caller::is_writable(place, most * size_of::<Event>());
        for _ in 0..most {
            // SAFETY: `most` counts no more than are there.
            let cqe = unsafe { queue.first() };
            if cqe.user_data == WAKE {
                queue.advance();
                continue;
            }
            if met {
                let event = complete(context, cqe);
                // SAFETY: on a page that was met, as writable; no alignment is assumed.
                unsafe { (ask.events as *mut Event).add(taken).write_unaligned(event) };
            } else if caller::write_event(ask.events, taken, Event::default()).is_err() {
                // The event stays for another call.
                outcome = Err(failure(libc::EFAULT));
                break;
            } else {
                let event = complete(context, cqe);
                let _ = caller::write_event(ask.events, taken, event);
            }
            queue.advance();
            (released, taken) = (released + 1, taken + 1);
        }
    }
    *got = taken as c_long;
    queue.release();
    context.outstanding.fetch_sub(released, SeqCst);
    outcome
}

/// Waits for `min` completions, or looks for some where `min` is 0.
fn wait(context: &Polled, min: u32, left_ns: Option<u64>, signals: usize) -> Result<(), i32> {
    context.record.add(Counter::Waits, 1);
    let polled = !context.sleeps();
    // The kernel takes no time limit where it polls; so we look again and again ourselves.
    let min = if polled && left_ns.is_some() { 0 } else { min };
    let timeout_ns = left_ns.filter(|_| !polled);
    let (ring, wait) = (&context.engine.ring, Wait { min, timeout_ns, signals });
    let code = if polled { ring.enter(0, wait) } else { ring.wait(wait) };
    if code >= 0 || code == failure(libc::ETIME) { Ok(()) } else { Err(code) }
}

/// Takes completions, and forgets them, until nothing is in flight.
pub(super) fn drain(context: &Polled) {
    // Who had the lock before the context was marked has submitted by now; who comes later is refused.
    drop(context.submitting.lock());
    loop {
        let mut queue = context.reaping.lock();
        let mut released = 0;
        while let Some(cqe) = queue.next() {
            if cqe.user_data != WAKE {
                released += 1;
            }
        }
        queue.release();
        context.outstanding.fetch_sub(released, SeqCst);
        drop(queue);
        if context.outstanding.load(SeqCst) == 0 {
            return;
        }
        // What is polled for ends by itself.
        if !context.has(IOPOLL) {
            for index in 0..context.nr {
                context.engine.ring.cancel(u64::from(index));
            }
        }
        let _ = wait(context, 1, Some(NUDGE_NS), 0);
    }
}

/// Gets those out of waiting who wait for a context that is being destroyed.
pub(super) fn nudge(context: &Polled) {
    let mut submitting = context.submitting.lock();
    if submitting.queue.push_with_buffer(Entry::new(op::NOP, -1, 0), WAKE, 0) {
        submitting.queue.publish();
        context.engine.ring.submit(1);
    }
}
