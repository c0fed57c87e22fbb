//! How much a volume copies at a time.
//!
//! ```text
//!   Copy -> in progress: 256 MiB of Copies, on all cores together
//!       \-> in line: begins when those before it have ended
//!
//!   asker A: 1 2 3 4 5 6 ...   \
//!   asker B: 1                  >  A1 B1 C1 A2 C2 A3 ...
//!   asker C: 1 2               /
//! ```
//!
//! A host may have hundreds of Copies of 128 MiB each outstanding. If all were carried out at once, on a disk that
//! copies 100 MB/s, all of them would end after minutes, beyond any I/O time-out. In line, the first ends after
//! some seconds, one after another follows, and what others read and write meanwhile waits for few pieces. Those
//! at the end of a long line still wait for all before them: how much a host has outstanding is its own choice.
//!
//! Whoever asks for Copies is served in turn with all others, first come, first served among his own; so a host with
//! many in line keeps others waiting for one each. A Copy that was given up leaves the line ([`Line::give_up`]).

use crate::layer::conflicts::User;
use crate::spin::SpinLock;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of all Copies in progress on one volume; a Copy of more is alone.
pub const BYTES_MAX: u64 = 256 << 20;

/// The Copies of one volume.
#[derive(Debug, Default)]
pub struct Line(SpinLock<State>);

/// Bytes of one queue's Copies in progress. Changed in the line only: one that has been told to begin is counted,
/// though it may not know yet.
#[derive(Clone, Debug, Default)]
pub struct Share(Arc<AtomicU64>);

/// A place in line: who asked, and his how many-th.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    asker: u64,
    number: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Of those in progress.
    bytes: u64,
    waiting: BTreeMap<Ticket, Waiting>,
    /// Those who have something in line, each once; the first is next.
    askers: VecDeque<u64>,
    /// Tickets given out.
    tickets: u64,
}

/// A Copy in line.
#[derive(Debug)]
struct Waiting {
    user: User,
    bytes: u64,
    share: Share,
}

impl Line {
    /// A Copy of `bytes` asked for by `asker`, of the queue that has `share`. None if it may begin; otherwise its
    /// place, and a [`Line::leave`] will name `user`.
    pub fn enter(&self, user: User, asker: u64, bytes: u64, share: &Share) -> Option<Ticket> {
        let mut state = self.0.lock();
        if state.waiting.is_empty() && state.has_room(bytes) {
            state.begin(bytes, share);
            return None;
        }
        let number = state.tickets;
        state.tickets += 1;
        if state.first_of(asker).is_none() {
            state.askers.push_back(asker);
        }
        let ticket = Ticket { asker, number };
        state.waiting.insert(ticket, Waiting { user, bytes, share: share.clone() });
        Some(ticket)
    }

    /// A Copy of `bytes` has ended. Adds those that may begin to `next`.
    pub fn leave(&self, bytes: u64, share: &Share, next: &mut Vec<User>) {
        let mut state = self.0.lock();
        share.0.fetch_sub(bytes, Ordering::Relaxed);
        state.leave(bytes, next);
    }

    /// A Copy in line is not wanted any more. False if it was told to begin already. Adds those that may begin in
    /// its stead to `next`.
    pub fn give_up(&self, ticket: Ticket, next: &mut Vec<User>) -> bool {
        let mut state = self.0.lock();
        if state.waiting.remove(&ticket).is_none() {
            return false;
        }
        if state.first_of(ticket.asker).is_none() {
            state.askers.retain(|asker| *asker != ticket.asker);
        }
        state.advance(next);
        true
    }

    /// A queue is gone, and all its Copies with it.
    pub fn quit(&self, queue: u64, share: &Share, next: &mut Vec<User>) {
        let mut state = self.0.lock();
        let State { waiting, askers, .. } = &mut *state;
        waiting.retain(|_, waiting| waiting.user.queue != queue);
        askers.retain(|asker| first_of(waiting, *asker).is_some());
        state.leave(share.0.swap(0, Ordering::Relaxed), next);
    }
}

impl State {
    fn has_room(&self, bytes: u64) -> bool {
        self.bytes == 0 || self.bytes.saturating_add(bytes) <= BYTES_MAX
    }

    fn begin(&mut self, bytes: u64, share: &Share) {
        self.bytes += bytes;
        share.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn leave(&mut self, bytes: u64, next: &mut Vec<User>) {
        self.bytes = self.bytes.checked_sub(bytes).expect("who leaves has entered");
        self.advance(next);
    }

    /// Has those begin that there is room for, one of each asker in turn.
    fn advance(&mut self, next: &mut Vec<User>) {
        while let Some(&asker) = self.askers.front() {
            let (ticket, bytes) = self.first_of(asker).expect("who is in turn has one in line");
            if !self.has_room(bytes) {
                return;
            }
            let Waiting { user, share, .. } = self.waiting.remove(&ticket).expect("just found");
            self.begin(bytes, &share);
            next.push(user);
            self.askers.pop_front();
            if self.first_of(asker).is_some() {
                self.askers.push_back(asker);
            }
        }
    }

    fn first_of(&self, asker: u64) -> Option<(Ticket, u64)> {
        first_of(&self.waiting, asker)
    }
}

/// What `asker` has waited for longest, and its bytes.
fn first_of(waiting: &BTreeMap<Ticket, Waiting>, asker: u64) -> Option<(Ticket, u64)> {
    let place = |number| Ticket { asker, number };
    let first = waiting.range(place(0)..=place(u64::MAX)).next();
    first.map(|(ticket, waiting)| (*ticket, waiting.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u64 = BYTES_MAX / 2;

    /// One queue of a line, whose Copies all have one asker: the queue.
    struct Queue<'a>(&'a Line, u64, Share);

    impl Queue<'_> {
        fn enter(&self, slot: u64, bytes: u64) -> bool {
            self.enter_for(self.1, slot, bytes).is_none()
        }

        fn enter_for(&self, asker: u64, slot: u64, bytes: u64) -> Option<Ticket> {
            self.0.enter(User { queue: self.1, slot }, asker, bytes, &self.2)
        }

        fn leave(&self, bytes: u64) -> Vec<(u64, u64)> {
            let mut next = Vec::new();
            self.0.leave(bytes, &self.2, &mut next);
            told(&next)
        }

        fn give_up(&self, ticket: Ticket) -> Option<Vec<(u64, u64)>> {
            let mut next = Vec::new();
            self.0.give_up(ticket, &mut next).then(|| told(&next))
        }

        fn quit(self) -> Vec<(u64, u64)> {
            let mut next = Vec::new();
            self.0.quit(self.1, &self.2, &mut next);
            told(&next)
        }
    }

    fn told(next: &[User]) -> Vec<(u64, u64)> {
        next.iter().map(|user| (user.queue, user.slot)).collect()
    }

    #[test]
    fn so_many_bytes_at_a_time_and_first_come_first_served() {
        let line = Line::default();
        let [one, two] = [1, 2].map(|queue| Queue(&line, queue, Share::default()));
        assert!(one.enter(0, HALF) && two.enter(0, HALF));
        assert!(!one.enter(1, HALF));
        // It would fit beside the first when the second ends, but does not overtake.
        assert!(!two.enter(3, BYTES_MAX) && !one.enter(2, 512));
        assert_eq!(two.leave(HALF), [(1, 1)]);
        assert_eq!(one.leave(HALF), []);
        assert_eq!(one.leave(HALF), [(2, 3)]);
        assert!(!one.enter(4, 512));
        assert_eq!(two.leave(BYTES_MAX), [(1, 2), (1, 4)]);
        assert_eq!((one.leave(512), one.leave(512)), (vec![], vec![]));
        // More than there may be at a time, alone.
        assert!(one.enter(5, 4 * BYTES_MAX) && !two.enter(6, 512));
        assert_eq!(one.leave(4 * BYTES_MAX), [(2, 6)]);
    }

    #[test]
    fn who_has_many_in_line_keeps_others_waiting_for_one_each() {
        let line = Line::default();
        let [one, two] = [1, 2].map(|queue| Queue(&line, queue, Share::default()));
        for slot in 0..100 {
            assert_eq!(one.enter_for(7, slot, BYTES_MAX).is_none(), slot == 0);
        }
        // Another core's, of the same asker and of others.
        assert!(two.enter_for(7, 0, BYTES_MAX).is_some());
        assert!(two.enter_for(8, 1, BYTES_MAX).is_some());
        assert!(one.enter_for(9, 100, BYTES_MAX).is_some());
        let told = [(1, 1), (2, 1), (1, 100)];
        assert_eq!([0; 3].map(|_| leave_one(&one, &two)), told);
        let rest: Vec<_> = (2..100).map(|slot| (1, slot)).chain([(2, 0)]).collect();
        let served: Vec<_> = rest.iter().map(|_| leave_one(&one, &two)).collect();
        assert_eq!(served, rest);
    }

    /// The one that is at work ends; another begins.
    fn leave_one(one: &Queue<'_>, two: &Queue<'_>) -> (u64, u64) {
        let ended = if one.2.0.load(Ordering::Relaxed) > 0 { one } else { two };
        let [next] = ended.leave(BYTES_MAX)[..] else { panic!("one of this size") };
        next
    }

    #[test]
    fn who_gives_up_leaves_the_line_and_others_move_up() {
        let line = Line::default();
        let [one, two] = [1, 2].map(|queue| Queue(&line, queue, Share::default()));
        assert!(one.enter(0, HALF));
        let large = one.enter_for(1, 1, BYTES_MAX).expect("no room");
        let small = two.enter_for(2, 2, 512).expect("not past the one before");
        let last = two.enter_for(2, 3, HALF).expect("the same");
        assert_eq!(one.give_up(large), Some(vec![(2, 2)]));
        // It was told.
        assert_eq!((one.give_up(large), two.give_up(small)), (None, None));
        assert_eq!(two.give_up(last), Some(vec![]));
        assert_eq!((one.leave(HALF), two.leave(512)), (vec![], vec![]));
        let state = line.0.lock();
        assert!(state.bytes == 0 && state.waiting.is_empty() && state.askers.is_empty());
    }

    #[test]
    fn a_queue_that_goes_leaves_nothing_behind() {
        let line = Line::default();
        let [one, two, three] = [1, 2, 3].map(|queue| Queue(&line, queue, Share::default()));
        assert!(one.enter(0, BYTES_MAX));
        assert!(!two.enter(0, BYTES_MAX) && !one.enter(1, 512) && !three.enter(0, 512));
        assert_eq!(one.quit(), [(2, 0)]);
        // It was told to begin, and has gone before it heard.
        assert_eq!(two.quit(), [(3, 0)]);
        assert_eq!(three.leave(512), []);
        assert_eq!(line.0.lock().bytes, 0);
    }
}
