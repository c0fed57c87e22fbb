//! Threads for Copies that are carried out by calls that block.
//!
//! A core has few of them ([`Reactor::long_threads`]), and a disk may hang. So whoever is to hold blocks for such a
//! Copy has a thread ready first: if Copies waited for threads with their blocks held, whoever reads and
//! writes those would wait for somebody else's disk. And no volume has all of a core's threads, unless there is
//! one only: others go on copying.
//!
//! Volumes that wait are served in turn, each volume's Copies first come, first served.

use crate::layer::conflicts::User;
use reactor::{Complete, Reactor};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

/// The threads of one core.
#[derive(Default)]
struct Threads {
    busy: usize,
    volumes: BTreeMap<u64, Volume>,
    /// Those of whose Copies some wait, each once.
    turns: VecDeque<u64>,
}

#[derive(Default)]
struct Volume {
    busy: usize,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    reactor: Rc<Reactor>,
    user: User,
    sink: Weak<dyn Complete>,
}

thread_local! {
    static THREADS: RefCell<Threads> = RefCell::default();
}

/// Gets a thread ready for a Copy of `user` to volume `volume`. Returns whether there is one; otherwise `sink` is told,
/// with the user's slot, when there is. To be given back by [`release`].
pub(crate) fn obtain(
    reactor: &Rc<Reactor>,
    volume: u64,
    user: User,
    sink: Weak<dyn Complete>,
) -> bool {
    THREADS.with_borrow_mut(|threads| {
        let max = reactor.long_threads();
        let own = threads.volumes.entry(volume).or_default();
        if threads.busy < max && own.has_room(max) {
            // Whoever waits of others may not have it.
            threads.busy += 1;
            own.busy += 1;
            return true;
        }
        own.waiting.push_back(Waiting { reactor: Rc::clone(reactor), user, sink });
        if own.waiting.len() == 1 {
            threads.turns.push_back(volume);
        }
        false
    })
}

/// A Copy that was waiting for a thread is not wanted any more. False if it was told that there is one.
pub(crate) fn give_up(volume: u64, user: User) -> bool {
    let gone = THREADS.try_with(|threads| threads.borrow_mut().give_up(volume, user));
    // The count may be gone already when the thread is ending.
    gone.unwrap_or(false)
}

/// Gives a thread of a Copy to `volume` back: whoever is next is told.
pub(crate) fn release(reactor: &Reactor, volume: u64) {
    let next =
        THREADS.try_with(|threads| threads.borrow_mut().release(reactor.long_threads(), volume));
    if let Ok(Some((waiting, sink))) = next {
        // Later, not from here: Copies that wait for one another would nest without bound.
        waiting.reactor.defer(sink, waiting.user.slot);
    }
}

impl Threads {
    fn release(&mut self, max: usize, volume: u64) -> Option<(Waiting, Rc<dyn Complete>)> {
        self.busy -= 1;
        let own = self.volumes.get_mut(&volume).expect("it has a thread");
        own.busy -= 1;
        self.tidy(volume);
        loop {
            let volumes = &mut self.volumes;
            let may = |volume: &u64| volumes.get(volume).is_some_and(|own| own.has_room(max));
            let place = self.turns.iter().position(may)?;
            let volume = self.turns.remove(place).expect("just found");
            let own = volumes.get_mut(&volume).expect("just found");
            let waiting = own.waiting.pop_front().expect("some of its Copies wait");
            if !own.waiting.is_empty() {
                self.turns.push_back(volume);
            }
            if let Some(sink) = waiting.sink.upgrade() {
                own.busy += 1;
                self.busy += 1;
                return Some((waiting, sink));
            }
            self.tidy(volume);
        }
    }

    fn give_up(&mut self, volume: u64, user: User) -> bool {
        let Some(own) = self.volumes.get_mut(&volume) else { return false };
        let Some(place) = own.waiting.iter().position(|waiting| waiting.user == user) else {
            return false;
        };
        own.waiting.remove(place);
        if own.waiting.is_empty() {
            self.turns.retain(|other| *other != volume);
        }
        self.tidy(volume);
        true
    }

    /// Nothing is kept of volumes that have nothing to do with threads now.
    fn tidy(&mut self, volume: u64) {
        if self.volumes.get(&volume).is_some_and(|own| own.busy == 0 && own.waiting.is_empty()) {
            self.volumes.remove(&volume);
        }
    }
}

impl Volume {
    /// Whether it may have one more of `max` threads.
    fn has_room(&self, max: usize) -> bool {
        self.busy < (max - 1).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Complete for Nobody {
        fn complete(&self, _token: u64, _result: i32, _flags: u32) {}
    }

    fn user(slot: u64) -> User {
        User { queue: 1, slot }
    }

    #[test]
    fn no_volume_has_all_threads_and_volumes_are_served_in_turn() {
        let reactor = Reactor::new(&reactor::Config::default()).expect("a reactor");
        let sink: Rc<dyn Complete> = Rc::new(Nobody);
        let obtain =
            |volume, slot| super::obtain(&reactor, volume, user(slot), Rc::downgrade(&sink));
        let told = |volume| {
            let next = THREADS.with_borrow_mut(|it| it.release(reactor.long_threads(), volume));
            next.map(|(waiting, _)| waiting.user.slot)
        };
        assert_eq!(reactor.long_threads(), 3);
        assert!(obtain(1, 0) && obtain(1, 1));
        assert!(!obtain(1, 2) && !obtain(1, 3) && !obtain(1, 4));
        // The last is for others.
        assert!(obtain(2, 5) && !obtain(2, 6) && !obtain(3, 7));
        assert!(give_up(1, user(3)) && !give_up(1, user(3)) && !give_up(1, user(0)));
        assert_eq!(told(2), Some(6));
        assert_eq!(told(2), Some(7));
        assert_eq!(told(3), None);
        // Who has gone is not told.
        let gone: Rc<dyn Complete> = Rc::new(Nobody);
        assert!(obtain(4, 8));
        assert!(!super::obtain(&reactor, 5, user(9), Rc::downgrade(&gone)) && !obtain(5, 10));
        drop(gone);
        assert_eq!([1, 1, 4].map(told), [2, 4, 10].map(Some));
    }

    #[test]
    fn nothing_is_kept_of_volumes_that_are_done() {
        let reactor = Reactor::new(&reactor::Config::default()).expect("a reactor");
        let sink: Rc<dyn Complete> = Rc::new(Nobody);
        for volume in 0..100 {
            assert!(obtain(&reactor, volume, user(0), Rc::downgrade(&sink)));
            release(&reactor, volume);
        }
        THREADS.with_borrow(|it| assert!(it.volumes.is_empty() && it.turns.is_empty()));
    }
}
