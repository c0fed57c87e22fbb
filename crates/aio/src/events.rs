//! `io_getevents` and `io_pgetevents`.
//!
//! ```text
//!   inline completions --.
//!   io_uring ------------+--> the caller's array
//!   the kernel's ring ---'    (only while something went natively)
//! ```

use crate::abi::{Entry, Event, op};
use crate::caller;
use crate::context::{Chain, Context, Engine, Mode, Reaping, Request, Submitting, WAKE, state};
use crate::deadline::Deadline;
use crate::native::is_poll_of_empty_ring;
use crate::probe::{self, Access};
use crate::ring::{PERHAPS, Wait};
use crate::stat::Counter;
use crate::system::{self, Ask, failure, time_of};
use crate::usual;
use crate::waits::{self, SLICE_NS as SLICE_NS_MAX, natively, slice};
use libc::{c_long, timespec};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// While events may come from both sides, each is waited for so long at first.
const SLICE_NS: u64 = 20_000;

/// `io_getevents` on a context of ours.
///
/// # Safety
/// The array of events may be overwritten.
#[inline(always)]
pub unsafe fn take(
    context: &Context,
    min: c_long,
    nr: c_long,
    events: usize,
    timeout: usize,
) -> i32 {
    context.record.add(Counter::Reaps, 1);
    context.prompt.ask(min, timeout);
    let mut got = 0;
    if let Some(engine) = context.engine()
        && context.is_ring()
        && nr >= 0
        && min as u64 <= nr as u64
        && context.native.pending.load(SeqCst) == 0
    {
        // The common case: all there. Times need no look.
        // SAFETY: passed on to the caller.
        got = unsafe { usual::take(context, engine, nr, events) };
        if got > 0 && got >= min {
            context.record.add(Counter::Events, got as u64);
            return got as i32;
        }
    }
    // SAFETY: passed on to the caller.
    unsafe { take_more(context, got, min, nr, events, timeout) }
}

/// From a context that is bare, with or without a signal set; None where it is no more.
///
/// # Safety
/// As `take`.
#[inline(always)]
pub unsafe fn take_barely(context: &Context, ask: Ask) -> Option<i32> {
    if !context.enter_bare() {
        return None;
    }
    context.record.add(Counter::Reaps, 1);
    let taken = if context.dead.load(SeqCst) {
        failure(libc::EINVAL)
    } else {
        // SAFETY: passed on to the caller.
        unsafe { natively(context, ask) }
    };
    context.leave_settled(taken);
    if taken > 0 {
        context.record.add(Counter::Events, taken as u64);
    }
    Some(taken)
}

/// When there are `got` events already.
///
/// # Safety
/// As `take`.
#[inline(never)]
unsafe fn take_more(
    context: &Context,
    got: c_long,
    min: c_long,
    nr: c_long,
    events: usize,
    timeout: usize,
) -> i32 {
    let ask = Ask { min, nr, events, timeout, signals: 0, masked: false };
    // SAFETY: passed on to the caller.
    unsafe { take_otherwise(context, ask, got) }
}

/// `io_pgetevents` on a context of ours, or `io_getevents`.
///
/// # Safety
/// As `take`.
pub unsafe fn take_masked(context: &Context, ask: Ask) -> i32 {
    context.record.add(Counter::Reaps, 1);
    context.prompt.forget();
    // SAFETY: passed on to the caller.
    unsafe { take_otherwise(context, ask, 0) }
}

/// The same in any case, when there are `got` events already.
///
/// # Safety
/// As `take`.
unsafe fn take_otherwise(context: &Context, mut ask: Ask, mut got: c_long) -> i32 {
    let mut rest;
    loop {
        let taken = match (context.mode(), context.engine()) {
            (Mode::Proving, _) => {
                context.try_ring();
                // SAFETY: passed on to the caller.
                match unsafe { while_proving(context, ask, &mut got) } {
                    Ok(taken) => taken,
                    Err(left_ns) => {
                        if let Some(left_ns) = left_ns {
                            rest = time_of(left_ns);
                            ask.timeout = (&raw const rest) as usize;
                        }
                        continue;
                    }
                }
            }
            (Mode::Switching, engine) => {
                if engine.is_some() {
                    // Whoever has it back holds the lock; who has just made it needs the processor.
                    drop(context.submitting());
                }
                std::thread::yield_now();
                continue;
            }
            (Mode::Native, Some(engine)) if context.is_left(engine) => {
                if context.is_wanted() && context.resume(&mut context.submitting())
                    || !context.enter_settled()
                {
                    continue;
                }
                // SAFETY: passed on to the caller.
                let taken = unsafe { rest_natively(context, ask, got) };
                context.leave_settled(taken - got as i32);
                taken
            }
            (Mode::Ring | Mode::Native, Some(engine)) => {
                // SAFETY: passed on to the caller.
                unsafe { merged(context, engine, ask, got) }
            }
            // SAFETY: passed on to the caller.
            (Mode::Ring | Mode::Native, None) => unsafe { rest_natively(context, ask, got) },
        };
        if taken > 0 {
            context.record.add(Counter::Events, taken as u64);
        }
        return taken;
    }
}

/// From the kernel, when there are `got` events already.
///
/// # Safety
/// As `take`.
unsafe fn rest_natively(context: &Context, ask: Ask, got: c_long) -> i32 {
    let taken = if context.dead.load(SeqCst) {
        failure(libc::EINVAL)
    } else {
        // SAFETY: passed on to the caller.
        unsafe { natively(context, ask.after(got)) }
    };
    if got > 0 { got as i32 + taken.max(0) } else { taken }
}

/// From the kernel, taking note of how the program takes events, of which `got` are there. An error means that the
/// mode has changed, and says what is left of the time unless that is all of it.
///
/// # Safety
/// As `take`.
unsafe fn while_proving(context: &Context, ask: Ask, got: &mut c_long) -> Result<i32, Option<u64>> {
    // Others are waiting, or the ring would be there: come back soon to see whether they are gone.
    let sliced = match Deadline::of(ask.timeout) {
        Ok(end) if context.is_proven() && ask.min > 0 && end.left_ns() > SLICE_NS_MAX => Some(end),
        _ => None,
    };
    loop {
        if !context.enter_native() {
            return Err(sliced.map(Deadline::left_ns).filter(|&left| left != u64::MAX));
        }
        let Some(end) = sliced else {
            // SAFETY: passed on to the caller.
            let taken = unsafe { natively(context, ask.after(*got)) };
            context.leave_native(taken, ask.min > 0);
            *got += c_long::from(taken.max(0));
            return Ok(if *got > 0 { *got as i32 } else { taken });
        };
        // SAFETY: passed on to the caller.
        let (taken, ended) = unsafe { slice(context, ask, got, end, SLICE_NS_MAX) };
        context.leave_native(taken, true);
        if let Some(code) = ended {
            return Ok(code);
        }
        context.try_ring();
    }
}

/// From wherever events may be, when there are `got` already.
///
/// # Safety
/// As `take`.
unsafe fn merged(context: &Context, engine: &Engine, ask: Ask, got: c_long) -> i32 {
    let is_empty = got == 0 && is_left_empty(context, engine);
    // SAFETY: the context is held, so its ring is there.
    if is_empty && unsafe { is_poll_of_empty_ring(context.id, ask.timeout) } {
        return 0;
    }
    let mut taking = Taking { context, engine, ask, got, wakes: 0, slice: SLICE_NS, masked: false };
    let mut outcome = Err(failure(libc::EINVAL));
    if ask.min >= 0 && ask.min <= ask.nr {
        // SAFETY: passed on to the caller.
        outcome = unsafe { taking.run() };
        taking.pass_on();
    }
    if ask.masked && ask.signals != 0 && !taking.masked {
        // SAFETY: asks for no event; delivers what the signal set lets through, as the call would have.
        let delivered = unsafe { system::deliver_signals(context.id, ask.signals) };
        outcome = outcome.and(delivered);
    }
    match outcome {
        Err(code) if taking.got == 0 => code,
        _ => taking.got as i32,
    }
}

/// Whether nothing is there that came from the ring or was carried out inline.
fn is_left_empty(context: &Context, engine: &Engine) -> bool {
    engine.inline.waiting().count == 0
        && !engine.ring.has_completions()
        && !engine.ring.has_overflow()
        && !context.dead.load(SeqCst)
}

/// One call.
struct Taking<'a> {
    context: &'a Context,
    engine: &'a Engine,
    ask: Ask,
    got: c_long,
    /// Completions taken that were to wake somebody.
    wakes: u32,
    slice: u64,
    /// Whether the caller's signal set was in effect.
    masked: bool,
}

impl Taking<'_> {
    /// # Safety
    /// As `take`.
    unsafe fn run(&mut self) -> Result<(), i32> {
        let mut end: Option<Deadline> = None;
        // Each side in turn is first, so that none waits for ever behind the other where not all have room.
        if self.context.native.is_first() {
            // SAFETY: passed on to the caller.
            unsafe { self.take_from_kernel()? };
        }
        loop {
            if self.got < self.ask.nr {
                self.take_from_ring()?;
            }
            // SAFETY: passed on to the caller.
            unsafe { self.take_from_kernel()? };
            if self.got >= self.ask.min {
                return Ok(());
            }
            if self.context.dead.load(SeqCst) {
                return Err(failure(libc::EINVAL));
            }
            let end = match end {
                Some(end) => end,
                None => {
                    *end.insert(Deadline::of(self.ask.timeout).map_err(|_| failure(libc::EFAULT))?)
                }
            };
            let left = end.left_ns();
            if left == 0 {
                return Ok(());
            }
            // SAFETY: passed on to the caller.
            unsafe { self.wait(left)? };
        }
    }

    /// At the end: somebody may be about to wait for what is left, and will not find what was to wake him.
    fn pass_on(&self) {
        let context = self.context;
        if self.wakes == 0 || context.waiters.load(SeqCst) == 0 {
            return;
        }
        if self.engine.inline.waiting().count > 0 || context.native.pending.load(SeqCst) > 0 {
            let count = self.wakes.min(context.wait_most.load(SeqCst));
            context.wake(&mut context.submitting(), count);
        }
    }

    /// Inline completions, and those of io_uring.
    #[inline]
    fn take_from_ring(&mut self) -> Result<(), i32> {
        self.engine.ring.fetch_overflow();
        let inline = self.engine.inline.waiting().count;
        if inline == 0 && !self.engine.ring.has_completions() {
            return Ok(());
        }
        let before = self.got;
        let mut orphans = Vec::new();
        let mut reaping = self.context.reaping();
        let ring_first = reaping.is_ring_first();
        let mut outcome = Ok(());
        for ring in [ring_first, !ring_first] {
            outcome = outcome.and_then(|()| match ring {
                true => self.take_completions(&mut reaping, &mut orphans),
                false => self.take_inline(inline),
            });
        }
        drop(reaping);
        for (index, res) in orphans {
            self.adopt(index, res);
        }
        if self.got > before { Ok(()) } else { outcome }
    }

    /// Of what was carried out inline, `count` events at most.
    fn take_inline(&mut self, count: u32) -> Result<(), i32> {
        let mut left = count;
        while left > 0 && self.got < self.ask.nr {
            let inline = &self.engine.inline;
            let waiting = inline.waiting();
            if waiting.count == 0 {
                break;
            }
            // One that another thread claims is overwritten, or beyond what is said to be there.
            self.put(inline.first(waiting))?;
            if inline.claim(waiting) {
                left -= 1;
            } else {
                self.got -= 1;
            }
        }
        Ok(())
    }

    /// Of io_uring; the lock on this side is held. What has no event yet is added to `orphans`.
    #[inline(always)]
    fn take_completions(
        &mut self,
        reaping: &mut Reaping,
        orphans: &mut Vec<(u32, i32)>,
    ) -> Result<(), i32> {
        let Some(queue) = reaping.queue.as_mut() else { return Ok(()) };
        let mut outcome = Ok(());
        let mut freed = Chain::default();
        let mut left = queue.count();
        while left > 0 && self.got < self.ask.nr {
            // SAFETY: `left` counts those that are there.
            let cqe = unsafe { queue.first() };
            if cqe.user_data == WAKE {
                self.wakes += 1;
            } else {
                let index = cqe.user_data as u32;
                outcome = if self.engine.request(index).is_whole(cqe.res) {
                    self.complete(index, cqe.res, &mut freed)
                } else {
                    self.complete_otherwise(index, cqe.res, &mut freed, orphans)
                };
                if outcome.is_err() {
                    break;
                }
            }
            queue.advance();
            left -= 1;
        }
        queue.release();
        if freed.len > 0 {
            self.engine.give_back(freed.first, freed.last);
            self.context.outstanding.fetch_sub(freed.len, SeqCst);
        }
        outcome
    }

    /// Starts a request once more whose thread has ended; or carries it out here, where it had begun or
    /// there is no ring to be had. Only if its descriptor still stands for its file: the program may have
    /// closed that as soon as it had submitted.
    #[cold]
    fn adopt(&mut self, index: u32, res: i32) {
        let context = self.context;
        let request = self.engine.request(index);
        let entry = request.entry();
        let mut submitting = context.submitting();
        if context.dead.load(SeqCst) {
            // Whoever destroys it waits for this one, and for nothing of it.
            self.end(&mut submitting, index, None);
            return;
        }
        if !may_go_on(request, res) {
            self.end(&mut submitting, index, Some(i64::from(res)));
            return;
        }
        let _ = request.state.compare_exchange(state::IO, state::AGAIN, SeqCst, SeqCst);
        if res < 0 && self.start_again(&mut submitting, entry, index) {
            return;
        }
        let done = res.max(0) as u32;
        let rest = entry.at(
            entry.off() + u64::from(done),
            entry.addr() + u64::from(done),
            entry.count() - done,
        );
        let more = match entry.opcode() {
            // SAFETY: the program vouched for its memory until the event, which is still to come.
            op::READ => unsafe { system::carry_out(false, entry.op_flags(), &rest) as i64 },
            _ => i64::from(failure(libc::EIO)),
        };
        // What was moved before an error counts, as it does in one call.
        let res = if done > 0 { i64::from(done) + more.max(0) } else { more };
        self.end(&mut submitting, index, Some(res));
    }

    /// Whether the ring has taken the entry.
    fn start_again(&self, submitting: &mut Submitting, entry: Entry, index: u32) -> bool {
        let Some(queue) = submitting.queue.as_mut() else { return false };
        if !queue.push(entry, u64::from(index)) {
            return false;
        }
        queue.publish();
        let taken = self.engine.ring.submit(1) == 1;
        if !taken {
            queue.take_back(1);
        }
        taken
    }

    /// A request is over that has left the ring before; with that result, if anybody is to see it.
    fn end(&self, submitting: &mut Submitting, index: u32, res: Option<i64>) {
        let request = self.engine.request(index);
        let (data, obj) = (request.data.load(Relaxed), request.obj.load(Relaxed));
        {
            // For `cancel`.
            let _reaping = self.context.reaping();
            request.state.store(state::FREE, Relaxed);
            self.engine.give_back(index, index);
        }
        if let Some(res) = res {
            self.engine.inline.keep(submitting, Event { data, obj, res, res2: 0 });
            if self.context.waiters.load(SeqCst) > 0 {
                self.context.wake(submitting, 1);
            }
        }
        self.context.outstanding.fetch_sub(1, SeqCst);
    }

    /// Hands out a request's event, and has the request freed; the lock on this side is held.
    #[inline(always)]
    fn complete(&mut self, index: u32, res: i32, freed: &mut Chain) -> Result<(), i32> {
        let request = self.engine.request(index);
        self.put(request.event(res))?;
        request.state.store(state::FREE, Relaxed);
        freed.push(self.engine, index);
        Ok(())
    }

    /// The same for what did not end in the usual way.
    #[inline(never)]
    fn complete_otherwise(
        &mut self,
        index: u32,
        res: i32,
        freed: &mut Chain,
        orphans: &mut Vec<(u32, i32)>,
    ) -> Result<(), i32> {
        let request = self.engine.request(index);
        if request.was_orphaned(res) {
            orphans.push((index, res));
            return Ok(());
        }
        match request.state.load(Relaxed) {
            state::VOID => {
                request.state.store(state::FREE, Relaxed);
                freed.push(self.engine, index);
                Ok(())
            }
            // The kernel's AIO says so of a poll that was cancelled.
            state::CANCELLED if res == failure(libc::ECANCELED) => self.complete(index, 0, freed),
            _ => self.complete(index, res, freed),
        }
    }

    #[inline(always)]
    fn put(&mut self, event: Event) -> Result<(), i32> {
        caller::write_event(self.ask.events, self.got as usize, event)
            .map_err(|_| failure(libc::EFAULT))?;
        self.got += 1;
        Ok(())
    }

    /// What the kernel has, without waiting, if anything may be there and has room.
    ///
    /// # Safety
    /// As `take`.
    #[inline]
    unsafe fn take_from_kernel(&mut self) -> Result<(), i32> {
        // The id of one that is destroyed may be another's by now.
        let may_be = self.context.native.pending.load(SeqCst) > 0
            && self.got < self.ask.nr
            && !self.context.dead.load(SeqCst);
        // SAFETY: passed on to the caller.
        if may_be { unsafe { self.look_into_kernel() } } else { Ok(()) }
    }

    /// # Safety
    /// As `take`.
    #[cold]
    unsafe fn look_into_kernel(&mut self) -> Result<(), i32> {
        let none = timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = (&raw const none) as usize;
        let ask = Ask { min: 0, timeout, ..self.ask.after(self.got) };
        // SAFETY: passed on to the caller.
        let taken = unsafe { system::io_getevents_again(self.context.id, ask) };
        self.context.record.add(Counter::NativeReaps, 1);
        self.context.note_native(taken);
        self.add(taken)
    }

    /// Of the kernel's events so many, or an error.
    fn add(&mut self, taken: i32) -> Result<(), i32> {
        if taken < 0 {
            return Err(taken);
        }
        self.got += c_long::from(taken);
        Ok(())
    }

    /// Waits for something to come, on whichever side it may.
    ///
    /// # Safety
    /// As `take`.
    unsafe fn wait(&mut self, left_ns: u64) -> Result<(), i32> {
        let context = self.context;
        let want = (self.ask.min - self.got).clamp(1, 1 << 15) as u32;
        context.wait_most.fetch_max(want, SeqCst);
        context.waiters.fetch_add(1, SeqCst);
        // From here on whoever adds something wakes us; what came before is seen here.
        // Once all goes to the kernel's context, nobody wakes us for it.
        let native = context.native.pending.load(SeqCst) > 0 || context.mode() == Mode::Native;
        let only_native = context.mode() == Mode::Native && context.is_left(self.engine);
        let outcome = if self.engine.inline.waiting().count > 0 || context.dead.load(SeqCst) {
            Ok(())
        } else if only_native {
            // SAFETY: passed on to the caller.
            unsafe { self.wait_natively(left_ns) }
        } else {
            self.wait_on_ring(want, left_ns, native)
        };
        context.waiters.fetch_sub(1, SeqCst);
        outcome
    }

    /// # Safety
    /// As `take`.
    unsafe fn wait_natively(&mut self, left_ns: u64) -> Result<(), i32> {
        let time = time_of(left_ns);
        let timeout = if left_ns == u64::MAX { 0 } else { (&raw const time) as usize };
        let ask = Ask { timeout, ..self.ask.after(self.got) };
        // Looked at once more where it is not the kernel's any more.
        if !self.context.enter_settled() {
            return Ok(());
        }
        self.masked |= self.ask.masked;
        // Nothing of the ring wakes it there.
        self.context.waiters.fetch_sub(1, SeqCst);
        // SAFETY: passed on to the caller.
        let taken = unsafe { waits::wait(self.context, ask) };
        self.context.waiters.fetch_add(1, SeqCst);
        self.context.leave_settled(taken);
        self.add(taken)
    }

    fn wait_on_ring(&mut self, want: u32, left_ns: u64, native: bool) -> Result<(), i32> {
        let mut timeout_ns = (left_ns != u64::MAX).then_some(left_ns);
        if native {
            timeout_ns = Some(left_ns.min(self.slice));
            self.slice = (self.slice * 2).min(SLICE_NS_MAX);
        }
        self.masked |= self.ask.signals != 0;
        self.context.record.add(Counter::Waits, 1);
        let wait =
            Wait { min: if native { 1 } else { want }, timeout_ns, signals: self.ask.signals };
        let code = self.engine.ring.wait(wait);
        if code < 0 && self.engine.ring.is_lost() {
            // Completions still come; nobody tells of them.
            let nap = left_ns.min(self.slice);
            self.slice = (self.slice * 2).min(SLICE_NS_MAX);
            std::thread::sleep(std::time::Duration::from_nanos(nap));
            return Ok(());
        }
        if code >= 0 || code == failure(libc::ETIME) {
            return Ok(());
        }
        if code == failure(libc::EINTR) || code == PERHAPS {
            // What came meanwhile counts more than the signal.
            let before = self.got;
            self.take_from_ring()?;
            if code == PERHAPS && self.got == before {
                return Ok(());
            }
        }
        Err(code)
    }
}

/// Whether a request that was given up, or is short, can be carried on with: by its number, which has to stand
/// for the same file still, and not for one that was opened otherwise. Direct reads are never given up half-way, so
/// they are short for a reason.
#[cold]
fn may_go_on(request: &Request, res: i32) -> bool {
    let entry = request.entry();
    let Some(stat) = probe::stat(entry.fd()) else { return false };
    if !request.is_of(probe::mark_of(&stat)) {
        return false;
    }
    let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    if res >= 0 && regular && entry.off() + res as u64 >= stat.st_size as u64 {
        return false;
    }
    match entry.opcode() {
        op::READ => {
            let access = Access::of(entry.fd());
            access.readable && (res < 0 || !access.direct)
        }
        _ => probe::is_open(entry.fd()),
    }
}
