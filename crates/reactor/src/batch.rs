//! Completions on their way from a ring to their sinks.

use std::cell::RefCell;
use uring::{Completion, Ring};

/// The completions that were taken from a ring, and how far they were delivered. Kept outside any
/// borrow, since sinks submit; put back when dropped, and with it what a sink that panicked has left
/// undelivered: the operations behind it have ended, and drain waits until all were told.
pub struct Batch<'a> {
    home: &'a RefCell<Vec<Completion>>,
    taken: Vec<Completion>,
    next: usize,
    full: bool,
}

impl<'a> Batch<'a> {
    /// Takes what is there: nothing but memory, or what was left over.
    #[inline]
    pub fn take(home: &'a RefCell<Vec<Completion>>) -> Batch<'a> {
        let taken = home.take();
        Batch { home, next: 0, full: !taken.is_empty(), taken }
    }

    /// Whether nothing is left to deliver.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next == self.taken.len()
    }

    /// Takes as many as there is memory for, and says how many there were. Nothing is left of those
    /// before.
    #[inline]
    pub fn fill(&mut self, ring: &mut Ring) -> usize {
        debug_assert!(self.is_empty());
        self.taken.clear();
        self.next = 0;
        ring.reap(&mut self.taken);
        self.full = self.taken.len() == self.taken.capacity();
        self.taken.len()
    }

    /// Whether the ring may have more.
    #[inline]
    pub fn was_full(&self) -> bool {
        self.full
    }

    /// The next to be delivered.
    #[inline]
    pub fn next(&mut self) -> Option<Completion> {
        let completion = self.taken.get(self.next).copied()?;
        self.next += 1;
        Some(completion)
    }
}

impl Drop for Batch<'_> {
    #[inline]
    fn drop(&mut self) {
        self.taken.drain(..self.next);
        self.home.replace(std::mem::take(&mut self.taken));
    }
}
