//! How much a volume copies at a time.
//!
//! ```text
//!   Copy -> in progress: 256 MiB of Copies, on all cores together
//!       \-> in line: begins when those before it have ended, first come, first served
//! ```
//!
//! A host may have hundreds of Copies of 128 MiB each outstanding. If all were carried out at once, on a disk that
//! copies 100 MB/s, all of them would end after minutes, beyond any I/O time-out. In line, the first ends after
//! some seconds, one after another follows, and what others read and write meanwhile waits for few pieces. Those
//! at the end of a long line still wait for all before them: how much a host has outstanding is its own choice.

use crate::layer::conflicts::User;
use crate::spin::SpinLock;
use std::collections::VecDeque;
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

#[derive(Debug, Default)]
struct State {
    /// Of those in progress.
    bytes: u64,
    waiting: VecDeque<Waiting>,
}

/// A Copy in line.
#[derive(Debug)]
struct Waiting {
    user: User,
    bytes: u64,
    share: Share,
}

impl Line {
    /// Whether a Copy of `bytes` may begin, of the queue that has `share`. If not, a [`Line::leave`] will name `user`.
    pub fn enter(&self, user: User, bytes: u64, share: &Share) -> bool {
        let mut state = self.0.lock();
        let may = state.waiting.is_empty() && state.has_room(bytes);
        match may {
            true => state.begin(bytes, share),
            false => state.waiting.push_back(Waiting { user, bytes, share: share.clone() }),
        }
        may
    }

    /// A Copy of `bytes` has ended. Adds those that may begin to `next`.
    pub fn leave(&self, bytes: u64, share: &Share, next: &mut Vec<User>) {
        let mut state = self.0.lock();
        share.0.fetch_sub(bytes, Ordering::Relaxed);
        state.leave(bytes, next);
    }

    /// A queue is gone, and all its Copies with it.
    pub fn quit(&self, queue: u64, share: &Share, next: &mut Vec<User>) {
        let mut state = self.0.lock();
        state.waiting.retain(|waiting| waiting.user.queue != queue);
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
        while self.waiting.front().is_some_and(|first| self.has_room(first.bytes)) {
            let Waiting { user, bytes, share } = self.waiting.pop_front().expect("just looked");
            self.begin(bytes, &share);
            next.push(user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u64 = BYTES_MAX / 2;

    /// One queue of a line.
    struct Queue<'a>(&'a Line, u64, Share);

    impl Queue<'_> {
        fn enter(&self, slot: u64, bytes: u64) -> bool {
            self.0.enter(User { queue: self.1, slot }, bytes, &self.2)
        }

        fn leave(&self, bytes: u64) -> Vec<(u64, u64)> {
            let mut next = Vec::new();
            self.0.leave(bytes, &self.2, &mut next);
            told(&next)
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
        assert!(!one.enter(2, 512) && !two.enter(3, BYTES_MAX));
        assert_eq!(two.leave(HALF), [(1, 1)]);
        assert_eq!(one.leave(HALF), [(1, 2)]);
        assert_eq!(one.leave(HALF), []);
        assert_eq!(one.leave(512), [(2, 3)]);
        assert!(!one.enter(4, 512));
        assert_eq!(two.leave(BYTES_MAX), [(1, 4)]);
        assert_eq!(one.leave(512), []);
        // More than there may be at a time, alone.
        assert!(one.enter(5, 4 * BYTES_MAX) && !two.enter(6, 512));
        assert_eq!(one.leave(4 * BYTES_MAX), [(2, 6)]);
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
