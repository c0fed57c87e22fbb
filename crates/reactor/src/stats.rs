//! What a reactor counts.

use std::cell::Cell;

/// Counters of one reactor since it was made, all its rings together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Turns of the loop.
    pub turns: u64,
    /// Calls of `io_uring_enter`.
    pub enters: u64,
    /// Those of them that waited.
    pub sleeps: u64,
    /// Entries handed to the kernel's queue.
    pub submitted: u64,
    /// Completions reaped.
    pub completed: u64,
    /// Spins that met no work before the loop went to sleep.
    pub spins_fruitless: u64,
    /// Pollers sent to sleep because many were active.
    pub crowd_parks: u64,
    /// Entries that had to wait in memory since the kernel took no more.
    pub backlogged: u64,
    /// Letters run out of the mailbox.
    pub letters: u64,
    /// Operations that the kernel or the blocking pool holds now.
    pub in_flight: usize,
}

/// A counter.
#[derive(Default)]
pub struct Count(Cell<u64>);

impl Count {
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.set(self.0.get() + count);
    }

    pub fn read(&self) -> u64 {
        self.0.get()
    }
}

/// The counters behind [`Stats`].
#[derive(Default)]
pub struct Counts {
    pub turns: Count,
    pub enters: Count,
    pub sleeps: Count,
    pub submitted: Count,
    pub completed: Count,
    pub crowd_parks: Count,
    pub backlogged: Count,
    pub letters: Count,
}
