//! Turns taken by the caller instead of [`Reactor::run`], for programs that have a loop of their
//! own.

use crate::Reactor;
use crate::reactor::State;
use std::time::Instant;

/// So many completions at once are worth the wait for the next.
const MANY: u64 = 4;

/// How long [`Reactor::turn_for`] waits for something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// Not at all: one turn, whether or not it did anything.
    Poll,
    /// Until then at the latest.
    Until(Instant),
    /// As long as it takes.
    Forever,
}

impl Reactor {
    /// Takes turns until one has done something, and says whether one has: completions, timers or
    /// letters were delivered, or a poller worked. Between turns it spins and sleeps as
    /// [`Reactor::run`] does. `false` when the time is over, and at once after [`Reactor::stop`];
    /// [`Reactor::run`], or dropping the reactor, then ends what is in flight. A timer that falls due while this sleeps
    /// for completions, and comes back with some, is told by the next call.
    ///
    /// # Panics
    /// When called from within a turn, that is by a sink, poller or letter.
    #[inline]
    pub fn turn_for(&self, wait: Drive) -> bool {
        let worked = self.take_turns(wait);
        // What the caller does before it comes back may take long.
        self.now.set(None);
        worked
    }

    #[inline]
    fn take_turns(&self, wait: Drive) -> bool {
        let _turning = self.begin_turns();
        if wait != Drive::Poll {
            let limit = if let Drive::Until(limit) = wait { Some(limit) } else { None };
            self.sleep_at_once(limit, false);
        }
        // Where the completions of that sleep have left nothing to be done, they were the turn. The next sleep sees
        // timers that are due.
        if self.woken.get() && self.state.get() == State::Running && self.is_settled() {
            return self.ends_gap();
        }
        self.turns(wait)
    }

    fn turns(&self, wait: Drive) -> bool {
        while self.state.get() == State::Running {
            if self.turn() {
                return self.ends_gap();
            }
            let limit = match wait {
                Drive::Poll => return false,
                Drive::Until(limit) if limit <= self.now() => return false,
                Drive::Until(limit) => Some(limit),
                Drive::Forever => None,
            };
            self.idle(limit);
        }
        false
    }

    /// As [`Reactor::turn_for`] without limit, for threads that do nothing between turns: what the
    /// completions of a sleep have started is handed over with the next wait, in one system call
    /// instead of two, where waiting is all that is left to do. After many completions it sleeps rather
    /// than spins: the next are then as many, for one system call, where a spin would take them one by
    /// one. `false` after [`Reactor::stop`].
    ///
    /// # Panics
    /// As [`Reactor::turn_for`].
    pub fn wait_turn(&self) -> bool {
        let _turning = self.begin_turns();
        let completed = self.counts.completed.read();
        let since_last = completed - self.waited_at.replace(completed);
        let since_last = since_last.saturating_add_signed(self.brought.take());
        self.sleep_at_once(None, since_last >= MANY);
        if self.state.get() == State::Running && self.woken.get() {
            return self.ends_gap();
        }
        self.turns(Drive::Forever)
    }

    /// Something was done, what a sleep has brought included.
    #[inline]
    fn ends_gap(&self) -> bool {
        self.woken.set(false);
        if self.spins {
            self.spin.borrow_mut().worked(|| self.now());
        }
        true
    }

    /// Whether a turn would find nothing to do, as far as that can be told without the clock or the kernel.
    #[inline]
    fn is_settled(&self) -> bool {
        // What is left of the post presses.
        !self.is_pressed()
            && !self.mailbox.has_post()
            && !self.commands.any()
            && self.pollers.borrow().listed() == 0
            && self.ring.borrow().queued() == 0
    }

    /// Where there is nothing to do but to wait for the ring, and spinning does not pay or there is `enough`
    /// to do: hands over what was submitted and waits, in one system call instead of two.
    #[inline(always)]
    fn sleep_at_once(&self, limit: Option<Instant>, enough: bool) {
        let only_ring = self.state.get() == State::Running
            && !self.config.poll_always
            && !self.commands.any()
            // What is left of it keeps from sleeping.
            && !self.mailbox.has_post()
            && self.pollers.borrow().listed() == 0;
        // Asked in any case: it is told of the sleep.
        if only_ring && (!(self.spins && self.spin.borrow_mut().idled(|| self.now())) || enough) {
            self.sleep(limit);
        }
    }

    /// Marks that turns are being taken, which must not be done from within one.
    #[inline]
    pub(crate) fn begin_turns(&self) -> Turning<'_> {
        let nested = self.turning.replace(true);
        assert!(!nested, "turns are not taken from within a turn");
        Turning(self)
    }
}

/// Turns are being taken while it lives.
pub(crate) struct Turning<'a>(&'a Reactor);

impl Drop for Turning<'_> {
    fn drop(&mut self) {
        self.0.turning.set(false);
    }
}
