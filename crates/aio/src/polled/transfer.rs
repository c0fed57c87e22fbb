//! Submitting to contexts of `io_setup2`, and taking their events.

use super::{
    CONTEXTS, FIXEDBUFS, FIXEDFILES, FLAG_HIPRI, IOPOLL, Polled, SCQRING, SQWQ, Submitting,
    USERIOCB,
};
use crate::abi::{self, Event, Iocb, Sqe, op};
use crate::caller::{self, Fault};
use crate::context::{WAKE, state};
use crate::ring::Wait;
use crate::stat::Counter;
use crate::system::{Ask, failure, now_ns};
use libc::{c_long, timespec};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

const SQE_FIXED_FILE: u8 = 1 << 0;
const SQE_ASYNC: u8 = 1 << 4;
/// `io_ring_enter`: submit.
const RING_SUBMIT: u32 = 1 << 0;
/// `io_ring_enter`: take completions, waiting for `min`.
const RING_GETEVENTS: u32 = 1 << 1;
/// How long to wait at a time where waiting must be able to end.
const NUDGE_NS: u64 = 1_000_000;

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
    let Some(mut batch) = Batch::new(context) else { return failure(libc::EINVAL) };
    let mut error = 0;
    let nr = (nr as u64).min(u64::from(context.nr)) as usize;
    for index in 0..nr {
        let place = iocbs.wrapping_add(index * size_of::<usize>());
        let pushed = caller::read::<usize>(place)
            .map_err(|Fault| failure(libc::EFAULT))
            .and_then(|named| batch.push(named));
        if let Err(code) = pushed {
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
    let waiting = flags & RING_GETEVENTS != 0;
    let mut submitted = 0;
    if flags & RING_SUBMIT != 0 {
        // What is there already need not be waited for.
        let wait = (waiting && min > 0).then_some(Wait { min, timeout_ns: None, signals: 0 });
        submitted = match from_ring(context, to_submit, wait) {
            Ok(count) => count,
            Err(code) => return code,
        };
    }
    if !waiting {
        return submitted;
    }
    match to_ring(context, min) {
        Err(code) if submitted == 0 => code,
        Err(_) => submitted,
        Ok(taken) if flags & RING_SUBMIT == 0 => taken,
        Ok(_) => submitted,
    }
}

/// A 32-bit word of a ring in the program's memory.
fn word(address: usize) -> Result<&'static AtomicU32, i32> {
    caller::read::<u32>(address).map_err(|Fault| failure(libc::EFAULT))?;
    // SAFETY: readable just now, and the program keeps the rings for as long as the context lives;
    // it accesses the word atomically as well.
    Ok(unsafe { &*(address as *const AtomicU32) })
}

/// Submits what the program has put into its ring.
fn from_ring(context: &Polled, to_submit: u32, wait: Option<Wait>) -> Result<i32, i32> {
    let (head, tail) = (word(context.rings.sq)?, word(context.rings.sq + 4)?);
    let places = word(context.rings.sq + 8)?.load(Relaxed);
    if places == 0 {
        return Err(failure(libc::EINVAL));
    }
    context.record.add(Counter::Submits, 1);
    let mut batch = Batch::new(context).ok_or(failure(libc::EINVAL))?;
    let mut error = 0;
    let mut at = head.load(Relaxed);
    let end = tail.load(Acquire);
    for _ in 0..to_submit {
        if at == end {
            break;
        }
        let place = context.rings.sq + 64 + (at % places) as usize * size_of::<u32>();
        let pushed = caller::read::<u32>(place)
            .map_err(|Fault| failure(libc::EFAULT))
            .and_then(|index| batch.push(index as usize));
        if let Err(code) = pushed {
            error = code;
            break;
        }
        at = at.wrapping_add(1);
    }
    let submitted = batch.finish(wait, error);
    if submitted < 0 {
        return Err(submitted);
    }
    head.store(head.load(Relaxed).wrapping_add(submitted as u32), Release);
    Ok(submitted)
}

/// Puts events into the program's ring, as many as there are and have room, waiting for `min`.
fn to_ring(context: &Polled, min: u32) -> Result<i32, i32> {
    let (head, tail) = (word(context.rings.cq)?, word(context.rings.cq + 4)?);
    let places = word(context.rings.cq + 8)?.load(Relaxed);
    if places == 0 {
        return Err(failure(libc::EINVAL));
    }
    let mut taken = 0;
    loop {
        let mut queue = context.reaping();
        let mut at = tail.load(Relaxed);
        let mut released = 0;
        while at.wrapping_sub(head.load(Acquire)) < places {
            let Some(cqe) = queue.next() else { break };
            if cqe.user_data == WAKE {
                continue;
            }
            let event = complete(context, cqe);
            released += 1;
            caller::write_event(context.rings.cq + 32, (at % places) as usize, event)
                .map_err(|Fault| failure(libc::EFAULT))?;
            at = at.wrapping_add(1);
            taken += 1;
        }
        queue.release();
        tail.store(at, Release);
        context.outstanding.fetch_sub(released, SeqCst);
        context.record.add_locked(Counter::Events, u64::from(released));
        let full = at.wrapping_sub(head.load(Acquire)) >= places;
        drop(queue);
        let in_flight = context.outstanding.load(SeqCst);
        if taken >= min || full || in_flight == 0 {
            return Ok(taken as i32);
        }
        wait(context, (min - taken).min(in_flight), None, 0)?;
    }
}

/// One call that submits.
struct Batch<'a> {
    context: &'a Polled,
    submitting: crate::lock::Guard<'a, Submitting>,
    room: u32,
    pushed: u32,
}

impl<'a> Batch<'a> {
    /// None on a context that is being destroyed: `drain` takes the lock once more before it counts what
    /// is in flight.
    #[inline]
    fn new(context: &'a Polled) -> Option<Self> {
        let submitting = context.submitting();
        if context.dead.load(SeqCst) {
            return None;
        }
        let room = context.nr.saturating_sub(context.outstanding.load(SeqCst));
        Some(Batch { context, submitting, room, pushed: 0 })
    }

    /// Queues the iocb with that index, or at that address.
    #[inline]
    fn push(&mut self, named: usize) -> Result<(), i32> {
        let context = self.context;
        let by_index = context.has(USERIOCB);
        let address = if by_index {
            if named >= context.nr as usize {
                return Err(failure(libc::EINVAL));
            }
            context.iocbs + named * size_of::<Iocb>()
        } else {
            named
        };
        let iocb = caller::read::<Iocb>(address).map_err(|Fault| failure(libc::EFAULT))?;
        let entry = self.entry(&iocb, if by_index { named } else { usize::MAX })?;
        if self.pushed == self.room {
            return Err(failure(libc::EAGAIN));
        }
        let request = if by_index {
            named as u32
        } else {
            self.submitting.requests.take(&context.engine).ok_or(failure(libc::EAGAIN))?
        };
        let place = context.engine.request(request);
        place.obj.store(named as u64, Relaxed);
        place.data.store(iocb.data, Relaxed);
        let entry = Sqe { user_data: u64::from(request), ..entry };
        if !self.submitting.queue.push(&entry) {
            if !by_index {
                self.submitting.requests.untake(&context.engine, request);
            }
            return Err(failure(libc::EAGAIN));
        }
        self.pushed += 1;
        Ok(())
    }

    /// The ring's entry for an iocb, or why there is none.
    #[inline]
    fn entry(&mut self, iocb: &Iocb, index: usize) -> Result<Sqe, i32> {
        let context = self.context;
        let polled = context.has(IOPOLL);
        let wrong = iocb.reserved2 != 0
            || iocb.nbytes > i64::MAX as u64
            || iocb.flags & !(FLAG_HIPRI | abi::FLAG_IOPRIO) != 0
            || (iocb.flags & FLAG_HIPRI != 0) != polled;
        if wrong {
            return Err(failure(libc::EINVAL));
        }
        let mut entry = Sqe {
            fd: iocb.fildes,
            off: iocb.offset as u64,
            addr: iocb.buf,
            len: iocb.nbytes.min(abi::RW_COUNT_MAX) as u32,
            op_flags: iocb.rw_flags & !abi::RWF_HIPRI,
            ioprio: if iocb.flags & abi::FLAG_IOPRIO != 0 { iocb.reqprio as u16 } else { 0 },
            ..Sqe::default()
        };
        entry.opcode = self.opcode(iocb, &mut entry, polled)?;
        if context.has(FIXEDFILES) {
            if context.pinned.get(index).is_none_or(|pinned| pinned.fd != iocb.fildes) {
                return Err(failure(libc::EBADF));
            }
            entry.fd = index as i32;
            entry.flags |= SQE_FIXED_FILE;
        } else {
            self.check_file(iocb, polled)?;
        }
        if context.has(FIXEDBUFS) && matches!(iocb.opcode, abi::PREAD | abi::PWRITE) {
            let pinned = context.pinned[index];
            let end = iocb.buf.checked_add(iocb.nbytes);
            if iocb.buf < pinned.buf || end.is_none_or(|end| end > pinned.end) {
                return Err(failure(libc::EFAULT));
            }
            entry.opcode = if iocb.opcode == abi::PREAD { op::READ_FIXED } else { op::WRITE_FIXED };
            entry.buf_index = index as u16;
        }
        if context.has(SQWQ) {
            entry.flags |= SQE_ASYNC;
        }
        Ok(entry)
    }

    #[inline]
    fn opcode(&self, iocb: &Iocb, entry: &mut Sqe, polled: bool) -> Result<u8, i32> {
        let fixed = self.context.has(FIXEDBUFS);
        let plain = iocb.offset == 0 && iocb.nbytes == 0 && iocb.rw_flags == 0;
        let opcode = match iocb.opcode {
            abi::PREAD | abi::PWRITE | abi::PREADV | abi::PWRITEV if iocb.offset < 0 => None,
            abi::PREAD => Some(op::READ),
            abi::PWRITE => Some(op::WRITE),
            abi::PREADV if !fixed && iocb.nbytes <= abi::IOVECS_MAX => Some(op::READV),
            abi::PWRITEV if !fixed && iocb.nbytes <= abi::IOVECS_MAX => Some(op::WRITEV),
            abi::FSYNC | abi::FDSYNC if !polled && plain && iocb.buf == 0 => {
                entry.op_flags = u32::from(iocb.opcode == abi::FDSYNC);
                Some(op::FSYNC)
            }
            abi::POLL if !polled && plain && iocb.buf <= u64::from(u16::MAX) => {
                (entry.addr, entry.op_flags) = (0, iocb.buf as u32);
                Some(op::POLL_ADD)
            }
            _ => None,
        };
        opcode.ok_or(failure(libc::EINVAL))
    }

    /// What the kernel's AIO refuses when submitting.
    #[inline]
    fn check_file(&mut self, iocb: &Iocb, polled: bool) -> Result<(), i32> {
        let file = self.submitting.files.of(iocb.fildes).ok_or(failure(libc::EBADF))?;
        let allowed = match iocb.opcode {
            abi::PREAD | abi::PREADV => file.readable,
            abi::PWRITE | abi::PWRITEV => file.writable,
            _ => true,
        };
        if !allowed {
            return Err(failure(libc::EBADF));
        }
        if polled && !file.is_direct() {
            return Err(failure(libc::EOPNOTSUPP));
        }
        Ok(())
    }

    /// Hands over what was pushed, and waits where wanted. Gives back how many were taken, or the
    /// error that stopped the first.
    #[inline]
    fn finish(mut self, wait: Option<Wait>, error: i32) -> i32 {
        let context = self.context;
        let pushed = self.pushed;
        if pushed == 0 {
            return error;
        }
        context.outstanding.fetch_add(pushed, SeqCst);
        context.record.add_locked(Counter::Ring, u64::from(pushed));
        context.record.add_locked(Counter::Enters, 1);
        let ring = &context.engine.ring;
        if ring.has_thread() {
            // Taken for sure: the entries are in the queue.
            drop(self.submitting);
            ring.enter(pushed, None);
            return pushed as i32;
        }
        // More than is in flight would never come.
        let in_flight = context.outstanding.load(SeqCst);
        let wait = wait.map(|wait| Wait { min: wait.min.min(in_flight), ..wait });
        let taken = ring.enter(pushed, wait);
        let left = pushed - (taken.max(0) as u32).min(pushed);
        if left > 0 {
            for back in 1..=left {
                let entry = self.submitting.queue.entry_before(back);
                if !context.has(USERIOCB) {
                    self.submitting.requests.untake(&context.engine, entry.user_data as u32);
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
    let mut got: c_long = 0;
    let mut end = None;
    let mut asked = false;
    let outcome = loop {
        if let Err(code) = reap(context, &ask, &mut got) {
            break code;
        }
        if got > 0 && got >= ask.min {
            break 0;
        }
        if context.dead.load(SeqCst) {
            break failure(libc::EINVAL);
        }
        let end = match end {
            Some(end) => end,
            None => match deadline(ask.timeout) {
                Ok(at) => *end.insert(at),
                Err(code) => break code,
            },
        };
        let left = end.map_or(u64::MAX, |at: u64| at.saturating_sub(now_ns()));
        // Where completions are found by asking, ask once even if there is no time.
        let last = left == 0 || ask.min == 0;
        if last && (asked || !context.has(IOPOLL)) {
            break 0;
        }
        asked = true;
        let min = if last { 0 } else { (ask.min - got) as u32 };
        if let Err(code) = wait(context, min, (left != u64::MAX).then_some(left), ask.signals) {
            let _ = reap(context, &ask, &mut got);
            break code;
        }
    };
    if got > 0 {
        context.record.add(Counter::Events, got as u64);
        return got as i32;
    }
    outcome
}

/// When waiting ends, from the address of a relative time; None for never.
fn deadline(timeout: usize) -> Result<Option<u64>, i32> {
    if timeout == 0 {
        return Ok(None);
    }
    let time = caller::read::<timespec>(timeout).map_err(|Fault| failure(libc::EFAULT))?;
    Ok(crate::system::deadline_ns(time))
}

#[inline]
fn reap(context: &Polled, ask: &Ask, got: &mut c_long) -> Result<(), i32> {
    if !context.engine.ring.has_completions() {
        return Ok(());
    }
    let mut queue = context.reaping();
    let mut released = 0;
    let mut outcome = Ok(());
    while *got < ask.nr {
        let Some(cqe) = queue.next() else { break };
        if cqe.user_data == WAKE {
            continue;
        }
        let event = complete(context, cqe);
        released += 1;
        if caller::write_event(ask.events, *got as usize, event).is_err() {
            outcome = Err(failure(libc::EFAULT));
            break;
        }
        *got += 1;
    }
    queue.release();
    context.outstanding.fetch_sub(released, SeqCst);
    outcome
}

/// Waits for `min` completions, or looks for some where `min` is 0.
fn wait(context: &Polled, min: u32, left_ns: Option<u64>, signals: usize) -> Result<(), i32> {
    context.record.add(Counter::Waits, 1);
    let polled = context.has(IOPOLL);
    // The kernel takes no time limit where it polls; so we look again and again ourselves.
    let min = if polled && left_ns.is_some() { 0 } else { min };
    let timeout_ns = left_ns.filter(|_| !polled);
    let code = context.engine.ring.enter(0, Some(Wait { min, timeout_ns, signals }));
    if code >= 0 || code == failure(libc::ETIME) { Ok(()) } else { Err(code) }
}

/// Takes completions, and forgets them, until nothing is in flight.
pub(super) fn drain(context: &Polled) {
    // Who had the lock before the context was marked has submitted by now; who comes later is refused.
    drop(context.submitting());
    loop {
        let mut queue = context.reaping();
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
        for index in 0..context.nr {
            if !context.has(IOPOLL) && !context.engine.ring.has_thread() {
                context.engine.ring.cancel(u64::from(index));
            }
        }
        let _ = wait(context, 1, Some(NUDGE_NS), 0);
    }
}

/// Gets those out of waiting who wait for a context that is being destroyed.
pub(super) fn nudge(context: &Polled) {
    let nop = Sqe { opcode: op::NOP, fd: -1, user_data: WAKE, ..Sqe::default() };
    let mut submitting = context.submitting();
    if submitting.queue.push(&nop) {
        context.engine.ring.enter(1, None);
    }
}
