//! `io_submit`.
//!
//! What looks wrong in any way goes to the real `io_submit`, alone, which knows the error best; so
//! errors are the kernel's by construction.

use crate::abi::{self, Entry, Event, Iocb, op};
use crate::caller;
use crate::context::{Context, Engine, Mode, Submitting, state};
use crate::course::{self, Course, bytes_of};
use crate::depth::FEW;
use crate::lock::Guard;
use crate::native::{self, address_of};
use crate::probe::{self, Reason};
use crate::stat::Counter;
use crate::stream;
use crate::system::{self, failure};
use crate::usual::{self, One, Queued, Tried};
use libc::c_long;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Reads of the page cache go to io_uring together, untried, from so many on: there one call for all costs no more than one of preadv2
/// each, even where a system call is cheap.
const MANY: u32 = 64;

/// `io_submit` on a context of ours.
///
/// # Safety
/// What the iocbs name stays valid until their events.
#[inline(always)]
pub unsafe fn submit(context: &Context, nr: c_long, iocbs: usize) -> i32 {
    let Some(engine) = context.engine().filter(|_| nr > 0) else {
        context.record.add(Counter::Submits, 1);
        if context.mode() == Mode::Native {
            context.try_bare(&context.submitting());
        }
        // SAFETY: passed on to the caller.
        return unsafe { beside_ring(context, nr, iocbs) };
    };
    let mut submitting = context.submitting();
    context.record.add_locked(Counter::Submits, 1);
    // Under the lock the mode stays what it is. Whoever destroys the context takes the lock once more before
    // counting what is in flight.
    if (!context.is_ring() && !comes_back(context, &mut submitting, nr))
        || context.dead.load(SeqCst)
    {
        context.try_bare(&submitting);
        drop(submitting);
        // SAFETY: passed on to the caller.
        return unsafe { not_by_ring(context, nr, iocbs) };
    }
    let mut tried = None;
    if nr == 1 && context.occupied(engine) < context.capacity {
        let waits = submitting.may_wait && context.prompt.is_always();
        // SAFETY: passed on to the caller.
        match unsafe { usual::queue_one(engine, &mut submitting, iocbs, waits) } {
            One::Queued(last) => {
                // Counted before the kernel is called: its event may be taken before that call comes back.
                let in_flight = context.outstanding.fetch_add(1, SeqCst) + 1;
                let before = engine.ring.completion_tail();
                let taken = engine.ring.submit_here(1);
                if taken == 1 && !is_refused(engine, before, last) {
                    context.record.add_locked(Counter::Enters, 1);
                    context.record.add_locked(Counter::Ring, 1);
                    if submitting.has_few(1) {
                        context.rest(&mut submitting);
                    }
                    if in_flight == 1 && submitting.may_wait {
                        context.prompt.begin();
                    } else {
                        context.prompt.forget();
                    }
                    return 1;
                }
                Guard::leave_locked(submitting);
                // SAFETY: the lock is kept; the rest is passed on to the caller.
                return unsafe { one_refused(context, iocbs, before, taken, last) };
            }
            One::Cached(address, iocb) => tried = Some((address, iocb)),
            One::Direct(address, iocb) => {
                Guard::leave_locked(submitting);
                // SAFETY: the lock is kept; the rest is passed on to the caller.
                return unsafe {
                    if usual::wait_here(context, engine, address, iocb) {
                        1
                    } else {
                        by_ring(context, nr, iocbs, false)
                    }
                };
            }
            One::Other => {}
        }
    }
    Guard::leave_locked(submitting);
    // SAFETY: the lock is kept; the rest is passed on to the caller.
    unsafe {
        let again = match tried {
            Some((address, iocb)) => match usual::read_here(context, engine, address, iocb) {
                Tried::Done => return 1,
                Tried::Missed => true,
                Tried::Wrong => false,
            },
            None => false,
        };
        by_ring(context, nr, iocbs, again)
    }
}

/// Whether a context that is at rest is not any more, since there are many of them.
#[inline(always)]
fn comes_back(context: &Context, submitting: &mut Guard<'_, Submitting>, nr: c_long) -> bool {
    (nr > c_long::from(FEW) || context.is_wanted()) && context.resume(submitting)
}

/// On a context that has a ring, to which nothing goes: not yet, or not any more.
///
/// # Safety
/// As `submit`.
#[cold]
unsafe fn not_by_ring(context: &Context, nr: c_long, iocbs: usize) -> i32 {
    // By now it may be one to which things go, whose ring was being made; then this goes to the kernel all the same.
    if context.dead.load(SeqCst) && context.is_ring() {
        return failure(libc::EINVAL);
    }
    // SAFETY: passed on to the caller.
    unsafe { beside_ring(context, nr, iocbs) }
}

/// To the kernel's context, while another thread may be making the ring, and a third wait there already.
///
/// # Safety
/// As `submit`.
unsafe fn beside_ring(context: &Context, nr: c_long, iocbs: usize) -> i32 {
    // SAFETY: passed on to the caller.
    let taken = unsafe { native::submit(context, nr, iocbs) };
    if taken > 0 && context.waiters.load(SeqCst) > 0 {
        context.wake_all(&mut context.submitting());
    }
    taken
}

/// However many there are, on a context that has a ring. Whether one was tried in the page cache, and was not there.
///
/// # Safety
/// As `submit`; this thread has kept the lock of the submitting side, which is given up.
#[inline(never)]
unsafe fn by_ring(context: &Context, nr: c_long, iocbs: usize, tried: bool) -> i32 {
    let Some(engine) = context.engine() else { return failure(libc::EINVAL) };
    // SAFETY: as the caller says.
    let mut submitting = unsafe { context.kept_submitting() };
    submitting.files.begin_round();
    if nr > 1 {
        context.prompt.forget();
    }
    if nr > c_long::from(FEW) {
        submitting.few = 0;
    }
    let nr = (nr as u64).min(u64::from(context.nr)) as u32;
    let room = context.capacity.saturating_sub(context.occupied(engine));
    // Nor is it to be tried once more.
    let many = nr >= MANY || tried;
    let mut queued = Queued::default();
    if nr > 1 {
        // SAFETY: passed on to the caller.
        queued = unsafe { usual::queue(engine, &mut submitting, iocbs, nr.min(room), many) };
    }
    let batch = |submitting| Batch {
        context,
        engine,
        submitting,
        iocbs,
        nr,
        done: queued.count,
        room: room - queued.count,
        queued,
        lost: 0,
        many,
    };
    if queued.count < nr {
        let may_wait = submitting.may_wait;
        // SAFETY: passed on to the caller.
        let taken = unsafe { batch(submitting).run() };
        if nr == 1 && may_wait && context.outstanding.load(Relaxed) == 1 {
            // Unusual only in that its file was to be looked at.
            context.prompt.begin();
        }
        return taken;
    }
    let before = announce(context, engine, &mut submitting, queued.count);
    let taken = engine.ring.submit_here(queued.count);
    if taken as u32 != nr || is_refused(engine, before, queued.last) {
        let mut batch = batch(submitting);
        let outcome = batch.go_on(before, taken);
        // SAFETY: passed on to the caller.
        return unsafe { batch.conclude(outcome) };
    }
    context.record.add_locked(Counter::Enters, 1);
    context.record.add_locked(Counter::Ring, u64::from(nr));
    if submitting.has_few(if many { u32::MAX } else { nr }) {
        context.rest(&mut submitting);
    }
    nr as i32
}

/// The only iocb was queued as a usual one, and the kernel has not taken it, or refused it.
///
/// # Safety
/// As [`by_ring`].
#[cold]
unsafe fn one_refused(context: &Context, iocbs: usize, before: u32, taken: i32, last: u32) -> i32 {
    let Some(engine) = context.engine() else { return failure(libc::EINVAL) };
    // SAFETY: as the caller says.
    let submitting = unsafe { context.kept_submitting() };
    let queued = Queued { count: 1, last };
    let (nr, done, room, lost, many) = (1, 1, 0, 0, false);
    let mut batch =
        Batch { context, engine, submitting, iocbs, nr, done, room, queued, lost, many };
    let outcome = batch.go_on(before, taken);
    // SAFETY: passed on to the caller.
    unsafe { batch.conclude(outcome) }
}

/// Lets the kernel see entries, and has them counted before it is called: their events may be taken before
/// that call comes back. Gives back where the next completion will be.
#[inline(always)]
fn announce(context: &Context, engine: &Engine, submitting: &mut Submitting, count: u32) -> u32 {
    if let Some(queue) = submitting.queue.as_mut() {
        queue.publish();
    }
    context.outstanding.fetch_add(count, SeqCst);
    engine.ring.completion_tail()
}

/// An event without I/O in flight.
#[inline(always)]
pub fn finish(context: &Context, engine: &Engine, submitting: &mut Submitting, event: Event) {
    context.record.add_locked(Counter::Inline, 1);
    engine.inline.keep(submitting, event);
    if context.waiters.load(SeqCst) > 0 {
        context.wake(submitting, 1);
    }
}

/// Whether the last entry seems to have been refused by one of the completions since `before`.
#[inline(always)]
fn is_refused(engine: &Engine, before: u32, last: u32) -> bool {
    let after = engine.ring.completion_tail();
    after != before
        && engine.ring.glimpse(before, after, u64::from(last)) == Some(failure(libc::EBADF))
}

/// One call of `io_submit`.
struct Batch<'a> {
    context: &'a Context,
    engine: &'a Engine,
    submitting: Guard<'a, Submitting>,
    /// The list of iocbs, and how many there are.
    iocbs: usize,
    nr: u32,
    /// How many of these are done with.
    done: u32,
    /// Places among the context's requests and events that nobody has, less what is queued.
    room: u32,
    /// What neither the kernel nor the context's count has been told of.
    queued: Queued,
    /// Entries that were pushed and then not taken.
    lost: u32,
    /// Cached reads go to io_uring untried: there are many, for which one call costs less than one of preadv2
    /// each, or the page cache had not what was wanted.
    many: bool,
}

impl Batch<'_> {
    /// # Safety
    /// As `submit`.
    #[inline(never)]
    unsafe fn run(mut self) -> i32 {
        let mut outcome = Ok(());
        while self.done < self.nr {
            // SAFETY: passed on to the caller.
            outcome = unsafe { self.one(self.done as usize) };
            if outcome.is_err() {
                break;
            }
            self.done += 1;
            if self.queued.count > 0 && self.done < self.nr {
                // That one had only to be looked at; those that follow may be usual again.
                // SAFETY: passed on to the caller.
                unsafe { self.usual() };
            }
        }
        // An error of what was queued before it comes first.
        let outcome = self.flush().and(outcome);
        // SAFETY: passed on to the caller.
        unsafe { self.conclude(outcome) }
    }

    /// # Safety
    /// As `submit`.
    unsafe fn usual(&mut self) {
        let rest = self.iocbs + self.done as usize * size_of::<usize>();
        let most = (self.nr - self.done).min(self.room);
        // SAFETY: passed on to the caller.
        let more =
            unsafe { usual::queue(self.engine, &mut self.submitting, rest, most, self.many) };
        self.done += more.count;
        self.room -= more.count;
        self.queued.count += more.count;
        if more.count > 0 {
            self.queued.last = more.last;
        }
    }

    /// What `io_submit` gives back.
    ///
    /// # Safety
    /// As `submit`.
    unsafe fn conclude(&mut self, outcome: Result<(), i32>) -> i32 {
        let done = self.done - self.lost;
        let Err(error) = outcome else { return done as i32 };
        if self.engine.ring.is_lost() {
            // What was not taken is the end of the list.
            self.context.settle(Reason::Lost);
            let rest = self.iocbs + done as usize * size_of::<usize>();
            // SAFETY: passed on to the caller.
            let more = unsafe { self.natively(self.nr - done, rest) };
            return if done == 0 { more } else { done as i32 + more.max(0) };
        }
        if done > 0 {
            return done as i32;
        }
        self.context.record.add_locked(Counter::Refused, 1);
        error
    }

    /// # Safety
    /// As `submit`.
    #[inline]
    unsafe fn one(&mut self, index: usize) -> Result<(), i32> {
        let fault = failure(libc::EFAULT);
        let place = address_of(self.iocbs, index).ok_or(fault)?;
        let address = caller::read::<usize>(place).map_err(|_| fault)?;
        let iocb = caller::read::<Iocb>(address).map_err(|_| fault)?;
        let course = Course::of(&iocb, &mut self.submitting, self.many);
        if !matches!(course, Course::Ring(..)) {
            self.submitting.few = 0;
        }
        match course {
            Course::Ring(entry, state) => self.queue(&iocb, address, entry, state),
            Course::Here { write, flags, entry } => {
                // SAFETY: passed on to the caller.
                unsafe { self.here(&iocb, address, write, flags, entry, index) }
            }
            // SAFETY: passed on to the caller.
            Course::Kernel => unsafe { self.hand_over(index) },
            // SAFETY: passed on to the caller.
            Course::Stream => unsafe { self.read_stream(&iocb, address, index) },
            Course::Settle(reason) => {
                self.flush()?;
                self.context.settle(reason);
                // SAFETY: passed on to the caller.
                unsafe { self.hand_over(index) }
            }
        }
    }

    /// Whether there is a place among the context's requests and events, as the kernel counts them.
    #[inline]
    fn find_room(&mut self) -> Result<(), i32> {
        if self.room == 0 {
            let occupied = self.context.occupied(self.engine) + self.queued.count;
            self.room = self.context.capacity.saturating_sub(occupied);
        }
        if self.room == 0 { Err(failure(libc::EAGAIN)) } else { Ok(()) }
    }

    fn queue(&mut self, iocb: &Iocb, address: usize, entry: Entry, state: u32) -> Result<(), i32> {
        self.find_room()?;
        let Some(index) = self.submitting.requests.take(self.engine) else {
            return Err(failure(libc::EAGAIN));
        };
        let written = caller::write(address + std::mem::offset_of!(Iocb, key), 0_u32);
        let pushed = written
            .map_err(|_| libc::EFAULT)
            .and_then(|()| if self.push(entry, index) { Ok(()) } else { Err(libc::EAGAIN) });
        if let Err(errno) = pushed {
            self.submitting.requests.untake(self.engine, index);
            return Err(failure(errno));
        }
        // The kernel does not know of the entry yet.
        let mark = self.submitting.files.mark(iocb.fildes, entry.opcode());
        if mark != 0 {
            self.submitting.few = 0;
        }
        self.engine.request(index).begin(address as u64, iocb.data, entry, mark, state);
        self.room -= 1;
        (self.queued.count, self.queued.last) = (self.queued.count + 1, index);
        if state == state::POLL {
            self.context.record.add_locked(Counter::Polls, 1);
        }
        Ok(())
    }

    fn push(&mut self, entry: Entry, index: u32) -> bool {
        let user_data = u64::from(index);
        let push = |batch: &mut Self| {
            let queue = batch.submitting.queue.as_mut();
            queue.is_some_and(|queue| queue.push(entry, user_data))
        };
        push(self) || (self.flush().is_ok() && push(self))
    }

    /// Carries the iocb out now. Whatever does not succeed goes the other way.
    ///
    /// # Safety
    /// As `submit`.
    unsafe fn here(
        &mut self,
        iocb: &Iocb,
        address: usize,
        write: bool,
        flags: u32,
        entry: Entry,
        index: usize,
    ) -> Result<(), i32> {
        self.flush()?;
        self.find_room()?;
        let key = address + std::mem::offset_of!(Iocb, key);
        if caller::write(key, 0_u32).is_err() {
            return Err(failure(libc::EFAULT));
        }
        // SAFETY: passed on to the caller.
        let result = unsafe { system::carry_out(write, flags, &entry) };
        let trying = flags & abi::RWF_NOWAIT != 0;
        // Short and unwilling to wait is no answer: there may be more to read.
        let whole = match entry.opcode() {
            op::READV | op::WRITEV => bytes_of(iocb, true).unwrap_or(0) as isize,
            _ => entry.count() as isize,
        };
        let is_over =
            |read: isize| read == whole || probe::ends_by(entry.fd(), entry.off() + read as u64);
        let is_told = result >= 0 && (!trying || is_over(result));
        if is_told || write && system::is_outcome(result) {
            if trying {
                self.submitting.files.note_try(entry.fd(), true);
            }
            let event = Event { data: iocb.data, obj: address as u64, res: result as i64, res2: 0 };
            finish(self.context, self.engine, &mut self.submitting, event);
            self.room -= 1;
            return Ok(());
        }
        // Its pages were there: the kernel says so again, and by an event that is there at once.
        let is_wrong = result == failure(libc::EFAULT) as isize;
        if trying && !is_wrong {
            self.context.record.add_locked(Counter::Misses, 1);
            self.submitting.files.note_try(entry.fd(), false);
            // What follows would be submitted call by call otherwise, wherever its neighbours are there.
            self.many = true;
            return self.queue(iocb, address, entry, state::IO);
        }
        self.submitting.files.forget(entry.fd());
        // SAFETY: passed on to the caller.
        unsafe { self.hand_over(index) }
    }

    /// To the kernel's context as soon as it need not wait there for something to be read.
    ///
    /// # Safety
    /// As `submit`.
    #[cold]
    unsafe fn read_stream(&mut self, iocb: &Iocb, address: usize, index: usize) -> Result<(), i32> {
        self.flush()?;
        let context = self.context;
        // Refused without waiting where all places are taken.
        let has_room = context.native.pending.load(SeqCst) < i64::from(context.capacity);
        // Until its event is there: nobody is to wait in the kernel alone for that.
        context.away.fetch_add(1, SeqCst);
        let ready = !has_room || self.without_lock(|| stream::wait(iocb.fildes));
        let outcome = match ready {
            _ if context.dead.load(SeqCst) => Err(failure(libc::EINVAL)),
            true => Ok(()),
            false => self.interrupt(iocb, address),
        };
        context.away.fetch_sub(1, SeqCst);
        outcome?;
        // SAFETY: passed on to the caller, in both.
        unsafe {
            if ready {
                return self.hand_over(index);
            }
            self.end_if_overtaken();
        }
        Ok(())
    }

    /// An event that the kernel gives for what a signal's handler has ended.
    fn interrupt(&mut self, iocb: &Iocb, address: usize) -> Result<(), i32> {
        self.find_room()?;
        let key = address + std::mem::offset_of!(Iocb, key);
        caller::write(key, 0_u32).map_err(|_| failure(libc::EFAULT))?;
        let res = i64::from(failure(libc::EINTR));
        let event = Event { data: iocb.data, obj: address as u64, res, res2: 0 };
        finish(self.context, self.engine, &mut self.submitting, event);
        self.room -= 1;
        Ok(())
    }

    /// # Safety
    /// As `submit`.
    #[cold]
    unsafe fn hand_over(&mut self, index: usize) -> Result<(), i32> {
        self.flush()?;
        let place = self.iocbs + index * size_of::<usize>();
        let count = course::asking(place, self.nr - index as u32, &self.submitting);
        // Once they are taken their memory may be gone.
        let priority = course::priority_of(place + (count as usize - 1) * size_of::<usize>());
        // SAFETY: passed on to the caller.
        let taken = unsafe { self.natively(count, place) };
        if taken < 1 {
            return Err(taken);
        }
        if taken as u32 == count && priority.is_some() {
            self.submitting.priority = priority;
        }
        self.done += taken as u32 - 1;
        // SAFETY: passed on to the caller.
        unsafe { self.end_if_overtaken() };
        Ok(())
    }

    /// After others have had the lock, when the next iocb is done with: nothing may go to the ring any more.
    ///
    /// # Safety
    /// As `submit`.
    unsafe fn end_if_overtaken(&mut self) {
        let done = self.done + 1;
        if self.context.dead.load(SeqCst) {
            self.nr = done;
        } else if !self.context.is_ring() && done < self.nr {
            let rest = self.iocbs + done as usize * size_of::<usize>();
            // SAFETY: passed on to the caller.
            let more = unsafe { self.natively(self.nr - done, rest) };
            self.done += more.max(0) as u32;
            self.nr = self.done + 1;
        }
    }

    /// To the kernel's context, which may take for ever (a pipe is empty): without the lock, so that other threads
    /// can submit what this one waits for. Nothing is queued.
    ///
    /// # Safety
    /// As `submit`.
    unsafe fn natively(&mut self, nr: u32, iocbs: usize) -> i32 {
        let context = self.context;
        let taken = self.without_lock(|| {
            // SAFETY: passed on to the caller.
            unsafe { native::submit(context, c_long::from(nr), iocbs) }
        });
        context.wake_all(&mut self.submitting);
        taken
    }

    /// Something that may take long, while others submit. Nothing is queued.
    fn without_lock<R>(&mut self, work: impl FnOnce() -> R) -> R {
        // Told under the lock, before and after: what is left of the batch may go to the ring, whatever the mode is then.
        self.context.away.fetch_add(1, SeqCst);
        let result = Guard::without(&mut self.submitting, work);
        self.context.away.fetch_sub(1, SeqCst);
        // Others have taken places meanwhile, and marked files.
        self.room = 0;
        self.submitting.files.begin_round();
        result
    }

    /// Tells the kernel of the entries pushed; `lost` says how many it did not take.
    fn flush(&mut self) -> Result<(), i32> {
        if self.queued.count == 0 {
            return Ok(());
        }
        let before = announce(self.context, self.engine, &mut self.submitting, self.queued.count);
        let taken = self.engine.ring.submit(self.queued.count);
        self.go_on(before, taken)
    }

    /// After the kernel was told a first time, and has taken so many or gave an error.
    fn go_on(&mut self, before: u32, taken: i32) -> Result<(), i32> {
        let mut taken = taken;
        loop {
            self.context.record.add_locked(Counter::Enters, 1);
            if taken <= 0 {
                return Err(self.take_back(taken));
            }
            self.context.record.add_locked(Counter::Ring, u64::from(taken as u32));
            self.queued.count -= (taken as u32).min(self.queued.count);
            if self.queued.count == 0 {
                break;
            }
            taken = self.engine.ring.submit(self.queued.count);
        }
        if !is_refused(self.engine, before, self.queued.last) {
            return Ok(());
        }
        self.look_for_refusal(before)
    }

    #[cold]
    fn take_back(&mut self, code: i32) -> i32 {
        let unsent = std::mem::take(&mut self.queued.count);
        self.lost += unsent;
        self.context.outstanding.fetch_sub(unsent, SeqCst);
        let Some(mut queue) = self.submitting.queue.take() else { return code };
        // Nobody is just about to cancel one of them.
        let _reaping = self.context.reaping();
        for back in 1..=unsent {
            self.submitting.requests.untake(self.engine, queue.user_data_before(back) as u32);
        }
        queue.take_back(unsent);
        self.submitting.queue = Some(queue);
        if code == 0 { failure(libc::EAGAIN) } else { code }
    }

    /// A descriptor that is no longer what it was is refused when submitting, not by an event; here
    /// for the last entry, since those behind another one would be on their way already.
    #[cold]
    fn look_for_refusal(&mut self, before: u32) -> Result<(), i32> {
        let refused = failure(libc::EBADF);
        let wanted = u64::from(self.queued.last);
        let reaping = self.context.reaping();
        let Some(queue) = reaping.queue.as_ref() else { return Ok(()) };
        if !queue.since(before).any(|cqe| cqe.user_data == wanted && cqe.res == refused) {
            return Ok(());
        }
        let request = self.engine.request(self.queued.last);
        self.submitting.files.forget(request.entry().fd());
        request.state.store(state::VOID, SeqCst);
        self.lost += 1;
        Err(refused)
    }
}
