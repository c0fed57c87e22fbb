//! The loop: one turn after the other, sleeping between them, draining at the end.

use crate::anchor;
use crate::outside::ALARM;
use crate::reactor::{Reactor, State, Waiting};
use crate::slots::OWN;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};
use uring::{BigEntry, Completion, Entry, File, MORE, Ring, Wait, entry};

/// `user_data` of the read that wakes the loop for its mailbox.
const WAKE: u64 = OWN | 1;

/// Completions delivered in one turn before the others have their turn again.
const DELIVERED_MAX: usize = 4096;

/// After [`Reactor::stop`], operations have this long to end by themselves. Those that the kernel
/// can still cancel then are cancelled; for the rest we wait, since it holds their memory.
const GRACE: Duration = Duration::from_secs(5);

/// At the end, how often further rings are looked at for what they still have in flight.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Rounds of deferred completions run when nothing is in flight any more.
const LAST_ROUNDS: usize = 64;

impl Reactor {
    /// Runs until [`Reactor::stop`], and then until nothing is in flight: watches are cancelled,
    /// operations waited for, pollers, timers and letters dropped. A reactor runs once.
    pub fn run(&self) {
        let turning = self.begin_turns();
        while self.state.get() == State::Running {
            if self.turn() {
                self.spin.borrow_mut().worked(|| self.now());
            } else {
                self.idle(None);
            }
        }
        self.drain();
        drop(turning);
    }

    /// A turn has done nothing: spins on, or sleeps until `limit` at the latest.
    pub(crate) fn idle(&self, limit: Option<Instant>) {
        let spins = self.config.poll_always
            || self.commands.poll()
            || self.spin.borrow_mut().idled(|| self.now());
        if spins {
            std::hint::spin_loop();
        } else if self.park_all() && self.state.get() == State::Running {
            self.sleep(limit);
        }
    }

    /// One turn. Returns whether anything was done.
    #[inline]
    pub(crate) fn turn(&self) -> bool {
        self.counts.turns.add(1);
        let mut worked = self.woken.take();
        if !worked {
            self.now.set(None);
        }
        worked |= self.has_mail() && self.read_mail(self.this.upgrade().as_ref());
        worked |= self.poll_active();
        worked |= self.exchange();
        worked |= self.fire_timers();
        worked |= self.deliver_deferred();
        worked | self.buffers.serve()
    }

    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.mailbox.has_post() || !self.post.borrow().is_empty()
    }

    /// Runs letters and delivers blocking work that has ended. Without `this`, letters are dropped.
    fn read_mail(&self, this: Option<&Rc<Reactor>>) -> bool {
        let mut post = self.post.borrow_mut();
        // What a panic has left over comes first.
        if post.is_empty() {
            self.mailbox.collect(&mut post);
        }
        let worked = !post.is_empty();
        self.stirred.set(self.stirred.get() | worked);
        drop(post);
        // One at a time, taken before it is run: should it panic, the rest is still there.
        loop {
            let Some(letter) = self.post.borrow_mut().letters.pop_front() else { break };
            let Some(this) = this else { continue };
            self.counts.letters.add(1);
            letter(this);
        }
        loop {
            let Some((key, result)) = self.post.borrow_mut().done.pop_front() else { break };
            self.deliver(Completion { user_data: key, result, flags: 0, extra: 0 });
        }
        worked
    }

    fn poll_active(&self) -> bool {
        if self.pollers.borrow().listed() == 0 {
            return false;
        }
        let listed = self.pollers.borrow_mut().begin_pass(self.now());
        let mut worked = false;
        // The last were activated most recently: they have work, the others may.
        for place in (0..listed).rev() {
            let Some((poller, id)) = self.pollers.borrow().at(place) else { continue };
            let did = poller.poll();
            worked |= did;
            if self.pollers.borrow_mut().polled(id, did) {
                self.counts.crowd_parks.add(1);
                worked |= !self.park(place);
            }
        }
        self.pollers.borrow_mut().sweep();
        worked
    }

    /// Parks the poller at a place of the list. Whether it has nothing to do.
    fn park(&self, place: usize) -> bool {
        let Some((poller, id)) = self.pollers.borrow().at(place) else { return true };
        self.pollers.borrow_mut().deactivate(id);
        let parked = poller.park();
        if !parked {
            self.activate(id);
        }
        parked
    }

    /// Parks pollers up to the first that has something to do. Whether none has.
    pub(crate) fn park_all(&self) -> bool {
        let listed = self.pollers.borrow().listed();
        let parked = (0..listed).all(|place| self.park(place));
        self.pollers.borrow_mut().sweep();
        parked && self.pollers.borrow().listed() == 0
    }

    /// Submits and reaps, with one enter at most.
    fn exchange(&self) -> bool {
        self.flush_first();
        let worked = self.reap();
        if self.commands.any() { self.commands.serve() | worked } else { worked }
    }

    /// Hands what was started to the kernel now, rather than at the end of the turn: for callers
    /// that have other things to do before their next turn.
    pub fn flush(&self) {
        self.flush_first();
        self.commands.flush();
    }

    /// Hands queued entries to the kernel and has it run completion work, if there is either.
    pub(crate) fn flush_first(&self) {
        if !self.backlog.borrow().is_empty() {
            self.refill();
        }
        let flushed = self.ring.borrow_mut().flush();
        if sound(flushed).unwrap_or(true) {
            self.counts.enters.add(1);
        }
    }

    #[inline]
    fn enter(&self, wait: Wait) {
        self.counts.enters.add(1);
        let entered = self.ring.borrow_mut().enter(wait);
        sound(entered);
    }

    #[inline]
    fn reap(&self) -> bool {
        // What comes while these are delivered has its turn in the next. Each is taken before its sink is told: what
        // a sink that panics has left is still with the ring.
        let noted = self.ring.borrow_mut().note_completed();
        let mut worked = false;
        for _ in 0..noted.min(DELIVERED_MAX) {
            let Some(completion) = self.ring.borrow_mut().next_noted() else { break };
            self.counts.completed.add(1);
            worked |= self.deliver(completion);
        }
        self.tell_settled() || worked
    }

    /// Tells those who wait until completions are delivered. Whether there was anybody.
    #[inline]
    fn tell_settled(&self) -> bool {
        self.settles.get() && self.tell_all_settled()
    }

    fn tell_all_settled(&self) -> bool {
        // Moved, so that both keep their memory; what is asked for meanwhile waits for the next. What a panic has
        // left over comes with the others.
        self.settled.borrow_mut().append(&mut self.settling.borrow_mut());
        loop {
            let Some((sink, token)) = self.settled.borrow_mut().pop_front() else { break };
            sink.complete(token, 0, 0);
        }
        self.settles.set(!self.settling.borrow().is_empty());
        true
    }

    /// Tells whom it concerns. Whether that was anybody but the reactor itself.
    #[inline]
    fn deliver(&self, completion: Completion) -> bool {
        let Completion { user_data, result, flags, extra } = completion;
        if user_data & OWN != 0 {
            match user_data {
                WAKE => self.wake_armed.set(false),
                ALARM => self.outside.alarm.set(None),
                _ => {}
            }
            return false;
        }
        let pending = if flags & MORE == 0 {
            self.slots.borrow_mut().remove(user_data)
        } else {
            self.slots.borrow().peek(user_data)
        };
        let (sink, token) = pending.expect("the kernel completes what was submitted, once");
        sink.complete_command(token, result, flags, extra);
        true
    }

    #[inline]
    fn fire_timers(&self) -> bool {
        !self.timers.borrow().is_empty() && self.fire_due_timers()
    }

    fn fire_due_timers(&self) -> bool {
        let mut fired = false;
        loop {
            let due = self.timers.borrow_mut().due(self.now());
            let Some((sink, token)) = due else { return fired };
            fired = true;
            sink.complete(token, 0, 0);
        }
    }

    /// Whether a letter has panicked, and what came after it was not delivered yet.
    #[inline]
    fn has_leftovers(&self) -> bool {
        !self.post.borrow().is_empty()
    }

    /// Whether there is something to do that nobody will tell of.
    #[inline]
    pub(crate) fn is_pressed(&self) -> bool {
        (self.stirred.get() && self.is_stirred()) || self.buffers.has_served()
    }

    /// Whether something waits for the loop that nobody will tell of; of memory, the pool knows.
    #[cold]
    fn is_stirred(&self) -> bool {
        let waits = self.has_deferred()
            || self.settles.get()
            || self.has_leftovers()
            || !self.backlog.borrow().is_empty();
        self.stirred.set(waits);
        waits
    }

    #[inline]
    fn has_deferred(&self) -> bool {
        !self.deferred.borrow().is_empty() || !self.deferring.borrow().is_empty()
    }

    #[inline]
    fn deliver_deferred(&self) -> bool {
        self.has_deferred() && self.deliver_all_deferred()
    }

    fn deliver_all_deferred(&self) -> bool {
        // Swapped, so that what is deferred meanwhile waits for the next turn, and both queues
        // keep their memory. What a panic has left over comes first.
        if self.deferring.borrow().is_empty() {
            self.deferring.swap(&self.deferred);
        }
        loop {
            let Some(deferred) = self.deferring.borrow_mut().pop_front() else { return true };
            deferred.sink.complete(deferred.token, deferred.result, 0);
        }
    }

    /// Sleeps until a completion, a letter, the next timer or `limit`, unless there is something
    /// to do.
    #[inline]
    pub(crate) fn sleep(&self, limit: Option<Instant>) {
        if self.is_pressed() {
            return;
        }
        if self.commands.any() && !self.commands.arm(self) {
            return;
        }
        let has_timers = !self.timers.borrow().is_empty();
        let timer = if has_timers { self.timers.borrow_mut().next() } else { None };
        let next = match (timer, limit) {
            (Some(timer), Some(limit)) => Some(timer.min(limit)),
            (timer, limit) => timer.or(limit),
        };
        let wait = match next {
            None => Wait::Forever,
            Some(at) => match at.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => Wait::AtMost(left),
                _ => return,
            },
        };
        self.arm_wake();
        // A read that waits for room in the ring wakes nobody.
        if self.is_pressed() || !self.mailbox.fall_asleep() {
            return;
        }
        self.counts.sleeps.add(1);
        if self.spins {
            self.spin.borrow_mut().sleeps();
        }
        self.enter(wait);
        self.mailbox.wake_up();
        // At once, since the caches are cold: whoever is activated here is polled first in the
        // turn that follows, which shares its time.
        self.now.set(None);
        self.woken.set(self.reap());
    }

    /// Has the ring read the mailbox's eventfd, whose completion ends a sleep.
    #[inline]
    fn arm_wake(&self) {
        if self.wake_armed.replace(true) {
            return;
        }
        let value = self.wakes.get().cast();
        let read = entry::read(File::Fd(self.mailbox.event()), value, 8, 0);
        // SAFETY: `wakes` lives in the reactor, which stays until `drain` has seen the completion;
        // nobody else touches it.
        unsafe { self.queue(read.user_data(WAKE)) };
    }

    /// Puts an entry into the submission queue, or into the backlog if the kernel takes none.
    ///
    /// # Safety
    /// As for [`uring::Ring::push`].
    #[inline]
    pub(crate) unsafe fn queue(&self, entry: Entry) {
        self.counts.submitted.add(1);
        // SAFETY: passed on to the caller.
        unsafe {
            let has_room = self.backlog.borrow().is_empty();
            if !(has_room && self.ring.borrow_mut().push(&entry).is_ok()) {
                self.queue_later(Waiting::Small(entry));
            }
        }
    }

    /// The same for an entry of 128 bytes. The ring takes such.
    ///
    /// # Safety
    /// As for [`uring::Ring::push_big`].
    #[inline]
    pub(crate) unsafe fn queue_big(&self, entry: BigEntry) {
        self.counts.submitted.add(1);
        // SAFETY: passed on to the caller.
        unsafe {
            let has_room = self.backlog.borrow().is_empty();
            if !(has_room && self.ring.borrow_mut().push_big(&entry).is_ok()) {
                self.queue_later(Waiting::Big(entry));
            }
        }
    }

    /// There was no room, or others wait for it.
    ///
    /// # Safety
    /// As for [`Waiting::push`].
    #[cold]
    unsafe fn queue_later(&self, entry: Waiting) {
        if self.backlog.borrow().is_empty() {
            self.enter(Wait::No);
            // SAFETY: passed on to the caller.
            if unsafe { entry.push(&mut self.ring.borrow_mut()) } {
                return;
            }
        }
        self.counts.backlogged.add(1);
        self.backlog.borrow_mut().push_back(entry);
        self.stirred.set(true);
    }

    /// Moves the backlog into the submission queue as far as there is room.
    #[cold]
    fn refill(&self) {
        Waiting::refill(&mut self.backlog.borrow_mut(), &mut self.ring.borrow_mut());
    }

    /// Ends everything: returns when neither the kernel nor a thread holds anything of ours.
    fn drain(&self) {
        self.state.set(State::Draining);
        self.commands.refuse();
        let pollers = self.pollers.borrow_mut().detach_all();
        drop(pollers);
        let timers = self.timers.take();
        drop(timers);
        self.buffers.forget_waiters();
        let watches = self.slots.borrow().watches();
        for watch in watches {
            // SAFETY: a removal points to no memory.
            unsafe { self.queue(entry::poll_remove(watch).user_data(OWN)) };
        }
        let mut patience = Some(Instant::now() + GRACE);
        while self.slots.borrow().live() > 0 || self.commands.any() {
            self.arm_wake();
            let wait = match patience.map(|end| end.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => {
                    patience = None;
                    // SAFETY: a cancellation points to no memory.
                    unsafe { self.queue(entry::cancel_any().user_data(OWN)) };
                    self.commands.cancel_all();
                    Wait::No
                }
                Some(left) => Wait::AtMost(left),
                None => Wait::Forever,
            };
            self.drain_once(wait);
        }
        if self.wake_armed.get() {
            // SAFETY: a cancellation points to no memory.
            unsafe { self.queue(entry::cancel(WAKE).user_data(OWN)) };
        }
        while self.wake_armed.get() {
            self.drain_once(Wait::Forever);
        }
        let letters = self.mailbox.close();
        drop(letters);
        for _ in 0..LAST_ROUNDS {
            if !self.deliver_deferred() {
                break;
            }
        }
        let rest = (self.deferred.take(), self.deferring.take());
        let gathered = (self.settling.take(), self.settled.take());
        drop(gathered);
        drop(rest);
        self.commands.end();
        self.state.set(State::Ended);
    }

    fn drain_once(&self, wait: Wait) {
        self.now.set(None);
        // What completes as it is submitted is not waited for, then.
        self.flush();
        let idle = !self.is_stirred();
        let wait = match wait {
            _ if self.commands.poll() || !idle || !self.mailbox.fall_asleep() => Wait::No,
            // The first ring does not tell of the others any more.
            Wait::Forever | Wait::AtMost(_) if self.commands.any() => Wait::AtMost(LOOK_EVERY),
            wait => wait,
        };
        self.enter(wait);
        self.mailbox.wake_up();
        self.reap();
        if self.has_mail() {
            self.read_mail(None);
        }
        self.commands.serve();
        self.deliver_deferred();
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if self.state.get() != State::Ended {
            self.drain();
        }
        anchor::drop_anchor();
    }
}

impl Waiting {
    /// Puts the entry into a ring; `false` if there is no room.
    ///
    /// # Safety
    /// As for [`uring::Ring::push`].
    #[inline]
    pub(crate) unsafe fn push(&self, ring: &mut Ring) -> bool {
        // SAFETY: passed on to the caller.
        unsafe {
            match self {
                Waiting::Small(entry) => ring.push(entry).is_ok(),
                Waiting::Big(entry) => ring.push_big(entry).is_ok(),
            }
        }
    }

    /// Moves entries that waited into a ring as far as there is room.
    #[cold]
    pub(crate) fn refill(backlog: &mut VecDeque<Waiting>, ring: &mut Ring) {
        while let Some(entry) = backlog.front() {
            // SAFETY: vouched for when it was queued.
            if !unsafe { entry.push(ring) } {
                return;
            }
            backlog.pop_front();
        }
    }
}

/// What an enter gave; `None` if the kernel is short of something that reaping or time brings
/// back.
#[inline]
pub(crate) fn sound<T>(entered: io::Result<T>) -> Option<T> {
    match entered {
        Ok(given) => Some(given),
        Err(error) => {
            let transient = [Errno::BUSY, Errno::AGAIN, Errno::NOMEM].map(Errno::raw_os_error);
            let number = error.raw_os_error().unwrap_or_default();
            assert!(transient.contains(&number), "io_uring_enter on a sound ring: {error}");
            None
        }
    }
}
