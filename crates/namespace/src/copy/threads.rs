//! Threads for Copies that are carried out by calls that block.
//!
//! A core has few of them ([`Reactor::long_threads`]), and a disk may hang. So whoever is to hold blocks for such a
//! Copy has a thread ready first: if Copies waited for threads with their blocks held, whoever reads and
//! writes those would wait for somebody else's disk. And no volume has all of a core's threads, unless there is
//! one only: others go on copying.
//!
//! **Brief Copies wait for their volume's threads with their blocks held**, a few behind each: it is this volume's
//! disk that they wait for, nobody else's, and a thread that has done one goes on with the next, without sleeping and
//! being woken. Nobody waits so for what takes long. 16 ranges of 2 MiB on XFS, two Copies in flight, by two threads and
//! by one: 82 to 84 and 82 to 92 GB/s; 8 KiB on ext4, 64 in flight, one before each thread and eight: 550 and 700 MiB/s.
//!
//! Volumes that wait are served in turn, each volume's Copies first come, first served. While one that has no thread
//! waits, nobody's Copies begin behind others: threads become free.

use crate::layer::conflicts::User;
use reactor::{Complete, Line, Reactor};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

/// Bytes of a Copy that may wait for a thread with its blocks held.
const SMALL_BYTES: u64 = 256 << 10;
/// Copies that each thread of a volume has before it, with the one that it is busy with.
const TOGETHER_MAX: usize = 8;

/// The threads of one core.
#[derive(Default)]
struct Threads {
    /// That volumes have.
    given: usize,
    volumes: BTreeMap<u64, Volume>,
    /// Those of whose Copies some wait, each once.
    turns: VecDeque<u64>,
}

#[derive(Default)]
struct Volume {
    /// Threads that it has.
    threads: usize,
    /// Copies that may begin: for each thread one, others behind them.
    ready: usize,
    /// Of these, those that take long.
    long: usize,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    reactor: Rc<Reactor>,
    user: User,
    sink: Weak<dyn Complete>,
    load: Load,
}

/// What a Copy keeps a thread busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Little is copied.
    Brief,
    /// Many blocks are shared, which takes as little time. A second thread would only wait, busily, for the first, which has
    /// the file locked.
    Shares,
    /// Much is copied.
    Long,
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
    load: Load,
    sink: Weak<dyn Complete>,
) -> bool {
    THREADS.with_borrow_mut(|threads| {
        let own = threads.volumes.entry(volume).or_default();
        // Whoever waits of others may not have it.
        if own.waiting.is_empty() && threads.grant(reactor.long_threads(), volume, load) {
            return true;
        }
        let own = threads.volumes.get_mut(&volume).expect("just found");
        own.waiting.push_back(Waiting { reactor: Rc::clone(reactor), user, sink, load });
        if own.waiting.len() == 1 {
            threads.turns.push_back(volume);
        }
        false
    })
}

/// The line in which Copies to `volume` that have a thread are carried out.
pub(super) fn line(volume: u64) -> Line {
    let threads = |it: &RefCell<Threads>| it.borrow().volumes.get(&volume).map(|own| own.threads);
    Line { number: volume, threads: THREADS.with(threads).unwrap_or(1).max(1) }
}

/// A Copy that was waiting for a thread is not wanted any more. False if it was told that there is one.
pub(crate) fn give_up(volume: u64, user: User) -> bool {
    let gone = THREADS.try_with(|threads| threads.borrow_mut().give_up(volume, user));
    // The count may be gone already when the thread is ending.
    gone.unwrap_or(false)
}

/// Gives a thread of a Copy to `volume` back: whoever is next is told.
pub(crate) fn release(reactor: &Reactor, volume: u64, load: Load) {
    let max = reactor.long_threads();
    let _ = THREADS.try_with(|threads| threads.borrow_mut().release(volume, load));
    while let Ok(Some((waiting, sink))) = THREADS.try_with(|threads| threads.borrow_mut().next(max))
    {
        // Later, not from here: Copies that wait for one another would nest without bound.
        waiting.reactor.defer(sink, waiting.user.slot);
    }
}

impl Load {
    /// Of a Copy of so many bytes, which may be shared or not.
    pub fn of(bytes: u64, shares: bool) -> Load {
        match (shares, bytes <= SMALL_BYTES) {
            (false, true) => Load::Brief,
            (true, false) => Load::Shares,
            // To share a few blocks is mostly the file system's log: one before each thread is quicker than eight (XFS,
            // 8 KiB, 64 in flight: 215 and 180 MiB/s).
            (false, false) | (true, true) => Load::Long,
        }
    }
}

impl Threads {
    /// Lets a Copy of `volume` begin if it may.
    fn grant(&mut self, max: usize, volume: u64, load: Load) -> bool {
        let has_none = |other: &u64| *other != volume && self.volumes[other].threads == 0;
        let others_wait = self.turns.iter().any(has_none);
        let own = self.volumes.get_mut(&volume).expect("somebody wants one for it");
        if own.ready >= own.threads {
            if self.given < max && own.has_room(max, load) {
                self.given += 1;
                own.threads += 1;
            } else if others_wait || !own.takes_more(load) {
                return false;
            }
        }
        own.ready += 1;
        own.long += usize::from(load == Load::Long);
        true
    }

    fn release(&mut self, volume: u64, load: Load) {
        let own = self.volumes.get_mut(&volume).expect("it has a thread");
        own.ready -= 1;
        own.long -= usize::from(load == Load::Long);
        if own.ready < own.threads {
            own.threads -= 1;
            self.given -= 1;
        }
        self.tidy(volume);
    }

    /// Who of those that wait may begin now, if any.
    fn next(&mut self, max: usize) -> Option<(Waiting, Rc<dyn Complete>)> {
        let mut place = 0;
        while let Some(&volume) = self.turns.get(place) {
            let load = self.volumes[&volume].waiting.front().expect("some of its Copies wait").load;
            if !self.grant(max, volume, load) {
                place += 1;
                continue;
            }
            self.turns.remove(place);
            let own = self.volumes.get_mut(&volume).expect("just found");
            let waiting = own.waiting.pop_front().expect("just found");
            if !own.waiting.is_empty() {
                self.turns.push_back(volume);
            }
            if let Some(sink) = waiting.sink.upgrade() {
                return Some((waiting, sink));
            }
            // Who has gone is passed over.
            self.release(volume, load);
            place = 0;
        }
        None
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
        if self.volumes.get(&volume).is_some_and(|own| own.ready == 0 && own.waiting.is_empty()) {
            self.volumes.remove(&volume);
        }
    }
}

impl Volume {
    /// Whether it may have one more of `max` threads.
    fn has_room(&self, max: usize, load: Load) -> bool {
        let most = if load == Load::Shares { 1 } else { (max - 1).max(1) };
        self.threads < most
    }

    /// Whether one more Copy may wait for its threads.
    fn takes_more(&self, load: Load) -> bool {
        let is_brief = self.long == 0 && load != Load::Long;
        is_brief && self.ready < self.threads * TOGETHER_MAX
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

    struct World {
        reactor: Rc<Reactor>,
        sink: Rc<dyn Complete>,
    }

    impl World {
        fn new() -> World {
            let reactor = Reactor::new(&reactor::Config::default()).expect("a reactor");
            assert_eq!(reactor.long_threads(), 3);
            World { reactor, sink: Rc::new(Nobody) }
        }

        fn obtain(&self, volume: u64, slot: u64, load: Load) -> bool {
            obtain(&self.reactor, volume, user(slot), load, Rc::downgrade(&self.sink))
        }

        /// Gives a thread back, and tells who may begin.
        fn release(&self, volume: u64, load: Load) -> Vec<u64> {
            THREADS.with_borrow_mut(|threads| {
                threads.release(volume, load);
                let next = || threads.next(self.reactor.long_threads());
                std::iter::from_fn(next).map(|(waiting, _)| waiting.user.slot).collect()
            })
        }
    }

    #[test]
    fn no_volume_has_all_threads_and_volumes_are_served_in_turn() {
        let world = World::new();
        let obtain = |volume, slot| world.obtain(volume, slot, Load::Long);
        let told = |volume| world.release(volume, Load::Long);
        assert!(obtain(1, 0) && obtain(1, 1));
        assert!(!obtain(1, 2) && !obtain(1, 3) && !obtain(1, 4));
        // The last is for others.
        assert!(obtain(2, 5) && !obtain(2, 6) && !obtain(3, 7));
        assert!(give_up(1, user(3)) && !give_up(1, user(3)) && !give_up(1, user(0)));
        assert_eq!(told(2), [6]);
        assert_eq!(told(2), [7]);
        assert_eq!(told(3), []);
        // Who has gone is not told.
        let gone: Rc<dyn Complete> = Rc::new(Nobody);
        assert!(obtain(4, 8));
        assert!(!super::obtain(&world.reactor, 5, user(9), Load::Long, Rc::downgrade(&gone)));
        assert!(!obtain(5, 10));
        drop(gone);
        assert_eq!([1, 1, 4].map(told), [2, 4, 10].map(|slot| vec![slot]));
    }

    #[test]
    fn small_copies_begin_behind_others_of_their_volume() {
        let world = World::new();
        let most = 2 * TOGETHER_MAX as u64;
        assert!((0..most).all(|slot| world.obtain(1, slot, Load::Brief)));
        assert_eq!(line(1), Line { number: 1, threads: 2 });
        assert!(!world.obtain(1, most, Load::Brief) && !world.obtain(1, most + 1, Load::Brief));
        assert_eq!(world.release(1, Load::Brief), [most]);
        // A large one waits until threads have nothing else to do, and those that come later wait behind it.
        assert!(!world.obtain(1, 50, Load::Long) && !world.obtain(1, 51, Load::Brief));
        assert_eq!(world.release(1, Load::Brief), [most + 1]);
        let before: Vec<u64> = (0..most - 2).flat_map(|_| world.release(1, Load::Brief)).collect();
        assert_eq!(before, []);
        assert_eq!(world.release(1, Load::Brief), [50]);
    }

    #[test]
    fn nobody_begins_behind_others_while_a_volume_without_a_thread_waits() {
        let world = World::new();
        assert!((0..5).all(|slot| world.obtain(1, slot, Load::Brief)));
        assert!((10..12).all(|slot| world.obtain(2, slot, Load::Brief)));
        assert!(!world.obtain(3, 20, Load::Brief) && !world.obtain(3, 21, Load::Brief));
        assert!(!world.obtain(1, 5, Load::Brief) && !world.obtain(2, 12, Load::Brief));
        // Of two threads of the first the second has nothing to do when one Copy is left.
        assert_eq!((0..3).flat_map(|_| world.release(1, Load::Brief)).collect::<Vec<_>>(), []);
        assert_eq!(world.release(1, Load::Brief), [20, 5, 12, 21]);
        assert_eq!([1, 2, 3].map(|volume| line(volume).threads), [1, 1, 1]);
    }

    #[test]
    fn who_shares_blocks_has_one_thread() {
        let world = World::new();
        let most = TOGETHER_MAX as u64;
        assert!((0..most).all(|slot| world.obtain(1, slot, Load::Shares)));
        assert!(!world.obtain(1, most, Load::Shares));
        assert_eq!(line(1).threads, 1);
        assert_eq!(world.release(1, Load::Shares), [most]);
        (0..most).for_each(|_| assert_eq!(world.release(1, Load::Shares), []));
    }

    #[test]
    fn what_is_copied_or_shared_is_brief_or_not() {
        let loads = [(false, SMALL_BYTES), (false, SMALL_BYTES + 1), (true, 1), (true, 1 << 20)];
        let loads = loads.map(|(shares, bytes)| Load::of(bytes, shares));
        assert_eq!(loads, [Load::Brief, Load::Long, Load::Long, Load::Shares]);
    }

    #[test]
    fn nothing_is_kept_of_volumes_that_are_done() {
        let world = World::new();
        for volume in 0..100 {
            assert!(world.obtain(volume, 0, Load::Long));
            release(&world.reactor, volume, Load::Long);
        }
        THREADS.with_borrow(|it| assert!(it.volumes.is_empty() && it.turns.is_empty()));
    }
}
