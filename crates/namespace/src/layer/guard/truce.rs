//! When ordinary commands must enter the table, and how cores agree on it.
//!
//! ```text
//!   fused pair on core A: announce --------> every core: from now on into the table;
//!                         wait    <-agreed-- once what it let pass before has ended
//!                         enter the table, work, leave
//!                         withdraw --------> ordinary commands pass by again
//! ```
//!
//! Why a relaxed load is enough: a core agrees in a letter from its mailbox, which orders its
//! later loads after the announcement; what it let pass before, it has counted itself.

use crate::layer::wake::Waker;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Wake value that asks a queue to agree. Other values are slots.
pub const AGREE: u64 = u64::MAX;

#[derive(Debug)]
pub struct Truce {
    /// Fused pairs announced and not yet withdrawn; one more where the table is always used.
    announced: AtomicU32,
    always: bool,
    alone: bool,
    talks: Mutex<Talks>,
}

#[derive(Debug, Default)]
struct Talks {
    queues: Vec<Waker>,
    /// Everybody has agreed, and nobody has withdrawn the last announcement since.
    agreed: bool,
    /// Queues that have not agreed yet.
    missing: Vec<u64>,
    /// Fused pairs that wait for it: their queue and slot.
    waiting: Vec<(Waker, u64)>,
}

impl Truce {
    /// `always`: the table is always used. `alone`: there is one core.
    pub fn new(always: bool, alone: bool) -> Truce {
        let talks = Talks { agreed: always, ..Talks::default() };
        let announced = AtomicU32::new(u32::from(always));
        Truce { announced, always, alone, talks: Mutex::new(talks) }
    }

    /// Whether an ordinary command must enter the table.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.announced.load(Ordering::Relaxed) != 0
    }

    /// Whether every command enters the table, fused pairs or not.
    #[inline]
    pub fn is_always(&self) -> bool {
        self.always
    }

    pub fn join(&self, queue: Waker) {
        self.lock().queues.push(queue);
    }

    pub fn quit(&self, queue: &Waker) {
        let mut talks = self.lock();
        talks.queues.retain(|other| other.id() != queue.id());
        talks.agree(queue.id());
    }

    /// A fused pair asks for the table to be used by all. Returns whether it is; otherwise `slot`
    /// of `queue` is woken when it is. `passing`: commands of this queue outside the table.
    pub fn announce(&self, queue: &Waker, slot: u64, passing: u32) -> bool {
        if self.always {
            return true;
        }
        let mut talks = self.lock();
        self.announced.fetch_add(1, Ordering::Relaxed);
        if talks.agreed {
            return true;
        }
        if self.alone && passing == 0 && talks.queues.len() == 1 {
            talks.agreed = true;
            return true;
        }
        talks.waiting.push((queue.clone(), slot));
        if talks.missing.is_empty() {
            let asked = talks.queues.iter().filter(|other| other.call(AGREE));
            talks.missing = asked.map(Waker::id).collect();
            debug_assert!(!talks.missing.is_empty(), "a queue that runs can be woken");
        }
        false
    }

    /// A queue has nothing outside the table any more.
    pub fn agree(&self, queue: &Waker) {
        self.lock().agree(queue.id());
    }

    /// A fused pair has ended and left the table.
    pub fn withdraw(&self) {
        if self.always {
            return;
        }
        let mut talks = self.lock();
        if self.announced.fetch_sub(1, Ordering::Relaxed) == 1 {
            talks.agreed = false;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Talks> {
        self.talks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Talks {
    fn agree(&mut self, queue: u64) {
        let before = self.missing.len();
        self.missing.retain(|&other| other != queue);
        if before == 0 || !self.missing.is_empty() {
            return;
        }
        self.agreed = true;
        for (waker, slot) in self.waiting.drain(..) {
            waker.call(slot);
        }
    }
}
