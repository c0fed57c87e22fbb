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

use crate::wake::Waker;
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
    /// Those that did, and have gone with their queue. They withdraw when all have agreed, not before: a round
    /// that is begun is ended.
    orphans: u32,
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

    /// A queue has gone, and `announced` fused pairs with it.
    pub fn quit(&self, queue: &Waker, announced: u32) {
        let mut talks = self.lock();
        talks.queues.retain(|other| other.id() != queue.id());
        let before = talks.waiting.len();
        talks.waiting.retain(|(other, _)| other.id() != queue.id());
        let orphans = (before - talks.waiting.len()) as u32;
        talks.orphans += orphans;
        self.agree_in(&mut talks, queue.id());
        if !self.always {
            self.withdraw_in(&mut talks, announced - orphans);
        }
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
        self.agree_in(&mut self.lock(), queue.id());
    }

    /// A fused pair has ended and left the table.
    pub fn withdraw(&self) {
        if self.always {
            return;
        }
        self.withdraw_in(&mut self.lock(), 1);
    }

    fn agree_in(&self, talks: &mut Talks, queue: u64) {
        if talks.agree(queue) {
            let orphans = std::mem::take(&mut talks.orphans);
            self.withdraw_in(talks, orphans);
        }
    }

    fn withdraw_in(&self, talks: &mut Talks, pairs: u32) {
        if pairs > 0 && self.announced.fetch_sub(pairs, Ordering::Relaxed) == pairs {
            talks.agreed = false;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Talks> {
        self.talks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Talks {
    /// Whether all have agreed by that.
    fn agree(&mut self, queue: u64) -> bool {
        let before = self.missing.len();
        self.missing.retain(|&other| other != queue);
        if before == 0 || !self.missing.is_empty() {
            return false;
        }
        self.agreed = true;
        for (waker, slot) in self.waiting.drain(..) {
            waker.call(slot);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::Wake;
    use reactor::{Config, Reactor};
    use std::rc::Weak;

    struct Nobody;

    impl Wake for Nobody {
        fn wake(&self, _value: u64) {}
    }

    #[test]
    fn who_goes_before_all_have_agreed_leaves_no_announcement() {
        let reactor = Reactor::new(&Config::default()).expect("a reactor");
        let nobody: Weak<dyn Wake> = Weak::<Nobody>::new();
        let [one, two, three] = [(); 3].map(|()| Waker::new(&reactor, nobody.clone()));
        let truce = Truce::new(false, false);
        [&one, &two, &three].into_iter().for_each(|queue| truce.join(queue.clone()));
        assert!(!truce.is_on() && !truce.announce(&one, 0, 0) && !truce.announce(&one, 1, 0));
        truce.agree(&two);
        truce.quit(&one, 2);
        // The round goes on: who has agreed must not let anything pass before it is over.
        assert!(truce.is_on());
        truce.agree(&three);
        assert!(!truce.is_on());
        // It has left nothing behind: all are asked again.
        assert!(!truce.announce(&two, 0, 0));
        truce.agree(&two);
        truce.agree(&three);
        assert!(truce.announce(&three, 0, 0) && truce.is_on());
        truce.quit(&two, 1);
        assert!(truce.is_on());
        truce.withdraw();
        assert!(!truce.is_on() && !truce.announce(&three, 1, 0));
    }
}
