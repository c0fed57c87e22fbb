//! Copies that wait, and are given up meanwhile; commands that wait for memory, while others free some.
//!
//! ```text
//!   in line:    for the turn among the volume's Copies          (`line`)
//!   claims:     for a thread, then for blocks of others         (`copy::threads`, `conflicts`)
//!   memory:     for the queue's spare piece                     (`scratch`)
//! ```
//!
//! What they wait for may hang. Whoever gives a Copy up only sets a flag ([`Sources::stop`]), from any thread; while
//! some wait that have one, or for memory, each queue looks every [`LOOK_AGAIN`].

use super::claims::Thread;
use super::copies::CLAIM;
use super::line::Ticket;
use super::queue::GuardQueue;
use crate::copy::{Sources, threads};
use reactor::Complete;
use std::rc::Weak;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a Copy that waits goes on waiting after it was given up, or a command beside free memory, at most.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A Copy in line that may be given up.
pub(super) struct InLine {
    ticket: Ticket,
    stop: Arc<AtomicBool>,
}

/// Has a queue look. Apart from it, so that a timer does not keep it.
pub(super) struct Looker(pub(super) Weak<GuardQueue>);

impl Complete for Looker {
    fn complete(&self, _token: u64, result: i32, _flags: u32) {
        if result >= 0
            && let Some(queue) = self.0.upgrade()
        {
            queue.look();
        }
    }
}

impl GuardQueue {
    /// Copy `copy` has got in line.
    pub(super) fn waits_in_line(&self, copy: u64, ticket: Ticket, sources: &Sources) {
        if let Some(stop) = &sources.stop {
            let waiting = InLine { ticket, stop: Arc::clone(stop) };
            self.in_line.borrow_mut().insert(copy, waiting);
            self.look_later();
        }
    }

    /// A claim waits for a thread, or for somebody's blocks.
    pub(super) fn claim_waits(&self, number: u64) {
        let may_end = |sources: &Sources| sources.stop.is_some();
        if self.claims.with(number & !CLAIM, |claim| claim.sources().is_some_and(may_end)) {
            self.look_later();
        }
    }

    /// Somebody is in line.
    pub(super) fn look_later(&self) {
        if !self.looks.replace(true) {
            let at = self.reactor.now() + LOOK_AGAIN;
            self.reactor.timer(at, self.looker.clone(), 0);
        }
    }

    /// Ends what waits and is not wanted any more.
    fn look(&self) {
        self.looks.set(false);
        self.look_at_line();
        self.look_at_claims();
        self.look_at_memory();
        let may_end = |sources: &Sources| sources.stop.is_some();
        let waits = || self.claims.any(|claim| claim.sources().is_some_and(may_end));
        if !self.in_line.borrow().is_empty() || waits() || self.room.has_line() {
            self.look_later();
        }
    }

    fn look_at_line(&self) {
        let mut given_up = Vec::new();
        let mut next = self.next_list();
        self.in_line.borrow_mut().retain(|copy, waiting| {
            // Who was told to begin ends by himself when he hears it.
            let gone = waiting.stop.load(Ordering::Relaxed)
                && self.guard.line.give_up(waiting.ticket, &mut next);
            if gone {
                given_up.push(*copy);
            }
            !gone
        });
        self.wake_next(next);
        given_up.into_iter().for_each(|copy| self.carrier.give_up(copy));
    }

    fn look_at_claims(&self) {
        let stopped = self.claims.numbers(|claim| claim.sources().is_some_and(Sources::is_stopped));
        for number in stopped {
            let user = self.user(CLAIM | number);
            let mut next = self.next_list();
            let request = self.claims.with(number, |claim| {
                let gone = match claim.thread {
                    Thread::Awaited(_) => threads::give_up(self.guard.number, user),
                    Thread::None | Thread::Ready(_) => claim.give_up(user, &mut next),
                };
                // Who was told to go on ends by himself when he hears it.
                gone.then(|| claim.request.take().expect("it was not sent down yet"))
            });
            self.wake_next(next);
            if let Some(request) = request {
                self.drop_claim(CLAIM | number, request);
            }
        }
    }
}
