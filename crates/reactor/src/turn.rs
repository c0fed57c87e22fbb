//! The loop: one turn after the other, sleeping between them, draining at the end.

use crate::reactor::{Deferred, Reactor, State};
use crate::slots::OWN;
use rustix::io::Errno;
use std::rc::Rc;
use std::time::{Duration, Instant};
use uring::{Completion, Entry, File, MORE, Wait, entry};

/// `user_data` of the read that wakes the loop for its mailbox.
const WAKE: u64 = OWN | 1;

/// Completions delivered in one turn before the others have their turn again.
const DELIVERED_MAX: usize = 4096;

/// After [`Reactor::stop`], operations have this long to end by themselves. Those that the kernel
/// can still cancel then are cancelled; for the rest we wait, since it holds their memory.
const GRACE: Duration = Duration::from_secs(5);

/// Rounds of deferred completions run when nothing is in flight any more.
const LAST_ROUNDS: usize = 64;

impl Reactor {
    /// Runs until [`Reactor::stop`], and then until nothing is in flight: watches are cancelled,
    /// operations waited for, pollers, timers and letters dropped. A reactor runs once.
    pub fn run(&self) {
        let this = self.this.upgrade().expect("a reactor being used is alive");
        while self.state.get() == State::Running {
            if self.turn(&this) {
                self.spin.borrow_mut().worked(self.now.get());
                continue;
            }
            if self.config.poll_always || self.spin.borrow_mut().idled(self.now.get()) {
                std::hint::spin_loop();
                continue;
            }
            if self.park_all() && self.state.get() == State::Running {
                self.sleep();
            }
        }
        self.drain();
    }

    /// One turn. Returns whether anything was done.
    fn turn(&self, this: &Rc<Reactor>) -> bool {
        self.counts.turns.add(1);
        let mut worked = self.woken.take();
        if !worked {
            self.now.set(Instant::now());
        }
        worked |= self.mailbox.has_post() && self.read_mail(Some(this));
        worked |= self.poll_active();
        worked |= self.exchange();
        worked |= self.fire_timers();
        worked |= self.deliver_deferred();
        worked | self.buffers.serve()
    }

    /// Runs letters and delivers blocking work that has ended. Without `this`, letters are dropped.
    fn read_mail(&self, this: Option<&Rc<Reactor>>) -> bool {
        let mut post = self.post.take();
        self.mailbox.collect(&mut post);
        let worked = !post.letters.is_empty() || !post.done.is_empty();
        for letter in post.letters.drain(..) {
            let Some(this) = this else { continue };
            self.counts.letters.add(1);
            letter(this);
        }
        for (key, result) in post.done.drain(..) {
            self.deliver(Completion { user_data: key, result, flags: 0, extra: 0 });
        }
        self.post.replace(post);
        worked
    }

    fn poll_active(&self) -> bool {
        let listed = self.pollers.borrow_mut().begin_pass(self.now.get());
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
    fn park_all(&self) -> bool {
        let listed = self.pollers.borrow().listed();
        let parked = (0..listed).all(|place| self.park(place));
        self.pollers.borrow_mut().sweep();
        parked && self.pollers.borrow().listed() == 0
    }

    /// Submits and reaps, with one enter at most.
    fn exchange(&self) -> bool {
        self.flush();
        self.reap()
    }

    /// Hands queued entries to the kernel and has it run completion work, if there is either.
    pub(crate) fn flush(&self) {
        if !self.backlog.borrow().is_empty() {
            self.refill();
        }
        let wanted = {
            let mut ring = self.ring.borrow_mut();
            ring.queued() > 0 || ring.wants_enter()
        };
        if wanted {
            self.enter(Wait::No);
        }
    }

    fn enter(&self, wait: Wait) {
        self.counts.enters.add(1);
        let entered = self.ring.borrow_mut().enter(wait);
        if let Err(error) = entered {
            let transient = [Errno::BUSY, Errno::AGAIN, Errno::NOMEM].map(Errno::raw_os_error);
            let number = error.raw_os_error().unwrap_or_default();
            // The kernel is short of something that reaping or time brings back.
            assert!(transient.contains(&number), "io_uring_enter on a sound ring: {error}");
        }
    }

    fn reap(&self) -> bool {
        let mut batch = self.completions.take();
        let mut delivered = 0;
        let mut worked = false;
        while delivered < DELIVERED_MAX {
            self.ring.borrow_mut().reap(&mut batch);
            if batch.is_empty() {
                break;
            }
            self.counts.completed.add(batch.len() as u64);
            delivered += batch.len();
            for completion in batch.drain(..) {
                worked |= self.deliver(completion);
            }
        }
        self.completions.replace(batch);
        worked
    }

    /// Tells whom it concerns. Whether that was anybody but the reactor itself.
    #[inline]
    fn deliver(&self, completion: Completion) -> bool {
        let Completion { user_data, result, flags, extra: _ } = completion;
        if user_data & OWN != 0 {
            if user_data == WAKE {
                self.wake_armed.set(false);
            }
            return false;
        }
        let pending = if flags & MORE == 0 {
            self.slots.borrow_mut().remove(user_data)
        } else {
            self.slots.borrow().peek(user_data)
        };
        let (sink, token) = pending.expect("the kernel completes what was submitted, once");
        sink.complete(token, result, flags);
        true
    }

    fn fire_timers(&self) -> bool {
        let mut fired = false;
        loop {
            let due = self.timers.borrow_mut().due(self.now.get());
            let Some((sink, token)) = due else { return fired };
            fired = true;
            sink.complete(token, 0, 0);
        }
    }

    fn deliver_deferred(&self) -> bool {
        if self.deferred.borrow().is_empty() {
            return false;
        }
        // Swapped, so that what is deferred meanwhile waits for the next turn, and both vectors
        // keep their memory.
        let mut deferred = self.deferring.take();
        std::mem::swap(&mut deferred, &mut *self.deferred.borrow_mut());
        for Deferred { sink, token, result } in deferred.drain(..) {
            sink.complete(token, result, 0);
        }
        self.deferring.replace(deferred);
        true
    }

    /// Sleeps until a completion, a letter or the next timer, unless there is something to do.
    fn sleep(&self) {
        let ready = !self.deferred.borrow().is_empty()
            || !self.backlog.borrow().is_empty()
            || self.buffers.has_served();
        if ready {
            return;
        }
        let wait = match self.timers.borrow_mut().next() {
            None => Wait::Forever,
            Some(at) => match at.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => Wait::AtMost(left),
                _ => return,
            },
        };
        self.arm_wake();
        if !self.mailbox.fall_asleep() {
            return;
        }
        self.counts.sleeps.add(1);
        self.spin.borrow_mut().sleeps();
        self.enter(wait);
        self.mailbox.wake_up();
        // At once, since the caches are cold: whoever is activated here is polled first in the
        // turn that follows, which shares its time.
        self.now.set(Instant::now());
        self.woken.set(self.reap());
    }

    /// Has the ring read the mailbox's eventfd, whose completion ends a sleep.
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
        if self.backlog.borrow().is_empty() {
            // SAFETY: passed on to the caller.
            if unsafe { self.ring.borrow_mut().push(&entry) }.is_ok() {
                return;
            }
            self.enter(Wait::No);
            // SAFETY: as above.
            if unsafe { self.ring.borrow_mut().push(&entry) }.is_ok() {
                return;
            }
        }
        self.counts.backlogged.add(1);
        self.backlog.borrow_mut().push_back(entry);
    }

    /// Moves the backlog into the submission queue as far as there is room.
    #[cold]
    fn refill(&self) {
        let mut backlog = self.backlog.borrow_mut();
        let mut ring = self.ring.borrow_mut();
        while let Some(entry) = backlog.front() {
            // SAFETY: vouched for when it was queued.
            if unsafe { ring.push(entry) }.is_err() {
                return;
            }
            backlog.pop_front();
        }
    }

    /// Ends everything: returns when neither the kernel nor a thread holds anything of ours.
    fn drain(&self) {
        self.state.set(State::Draining);
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
        while self.slots.borrow().live() > 0 {
            self.arm_wake();
            let wait = match patience.map(|end| end.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => {
                    patience = None;
                    // SAFETY: a cancellation points to no memory.
                    unsafe { self.queue(entry::cancel_any().user_data(OWN)) };
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
        let rest = self.deferred.take();
        drop(rest);
        self.state.set(State::Ended);
    }

    fn drain_once(&self, wait: Wait) {
        self.now.set(Instant::now());
        if !self.backlog.borrow().is_empty() {
            self.refill();
        }
        let idle = self.deferred.borrow().is_empty() && self.backlog.borrow().is_empty();
        let wait = if idle && self.mailbox.fall_asleep() { wait } else { Wait::No };
        self.enter(wait);
        self.mailbox.wake_up();
        self.reap();
        if self.mailbox.has_post() {
            self.read_mail(None);
        }
        self.deliver_deferred();
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if self.state.get() != State::Ended {
            self.drain();
        }
    }
}
