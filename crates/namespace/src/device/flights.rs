//! Which I/O commands of a device are under way, for whoever has to wait until none is.
//!
//! ```text
//!   a queue:   its count + 1 ---------> is a Format begun? --> ring --> ... completion --> its count - 1
//!   a Format:  begun --> barrier in all threads --> wait until every count is 0 --> device
//! ```
//!
//! Each side stores one thing and looks at the other's, so that one of the two sees the other, if neither looks before
//! it has stored. Queues count with ordinary instructions of their own thread, in the order of the program; what a
//! processor makes of that order the Format undoes, by a barrier that it has all threads pass (membarrier(2)).

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Of `membarrier` (include/uapi/linux/membarrier.h).
const PRIVATE_EXPEDITED: libc::c_long = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_long = 1 << 4;

/// Long after a processor has shown to others what it has stored.
const SETTLED: Duration = Duration::from_millis(100);

/// How often it is looked whether all commands have come back.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// One queue's commands; in a cache line of its own, which only that queue's thread writes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Count(AtomicU64);

impl Count {
    /// A command is under way; what is looked at after that is as late.
    #[inline]
    pub(super) fn enter(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// It has come back, or was not sent.
    #[inline]
    pub(super) fn leave(&self) {
        let before = self.0.load(Ordering::Relaxed);
        debug_assert!(before > 0, "whoever leaves has entered");
        self.0.store(before - 1, Ordering::Release);
    }
}

/// All queues of a device.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<Vec<Arc<Count>>>);

impl Flights {
    /// The count of a new queue.
    pub(super) fn join(&self) -> Arc<Count> {
        let count = Arc::new(Count::default());
        self.lock().push(Arc::clone(&count));
        count
    }

    /// The queue is no more.
    pub(super) fn quit(&self, count: &Arc<Count>) {
        self.lock().retain(|it| !Arc::ptr_eq(it, count));
    }

    /// Waits until no command is under way; the caller has made sure that no more are begun. False if some are still
    /// after `patience`. Blocks.
    pub(super) fn wait(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        barrier_everywhere();
        loop {
            if self.lock().iter().all(|count| count.0.load(Ordering::Acquire) == 0) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Count>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has every thread of this process pass a barrier: what it had stored before is seen, and what it looks at from now on
/// is no older than this.
fn barrier_everywhere() {
    // SAFETY: the calls name no memory.
    let call = |command: libc::c_long| unsafe {
        libc::syscall(libc::SYS_membarrier, command, 0 as libc::c_long, 0 as libc::c_long) == 0
    };
    if !(call(REGISTER_PRIVATE_EXPEDITED) && call(PRIVATE_EXPEDITED)) {
        // A kernel without, or a sandbox that forbids it.
        thread::sleep(SETTLED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    #[test]
    fn all_queues_are_waited_for() {
        let flights = Flights::default();
        let soon = Duration::from_millis(5);
        assert!(flights.wait(soon));
        let (one, other) = (flights.join(), flights.join());
        one.enter();
        other.enter();
        other.leave();
        assert!(!flights.wait(soon));
        other.enter();
        one.leave();
        assert!(!flights.wait(soon));
        flights.quit(&other);
        assert!(flights.wait(soon), "a queue that is gone has no commands");
    }

    /// Whoever is not seen to be under way sees that he must not be. Without the barrier both miss one another here once in
    /// a while.
    #[test]
    fn nobody_is_under_way_unseen() {
        const ROUNDS: usize = 20_000;
        let (count, begun) = (&Count::default(), &AtomicBool::new(false));
        let (refused, misses) = (&AtomicBool::new(false), &mut 0);
        let (here, there) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        // Both come to each step together, by which all that was stored before is seen.
        let meet = |own: &AtomicUsize, other: &AtomicUsize, step| {
            own.store(step, Ordering::SeqCst);
            for tries in 0.. {
                if other.load(Ordering::SeqCst) >= step {
                    return;
                }
                if tries % 1000 == 999 { thread::yield_now() } else { std::hint::spin_loop() }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    meet(here, there, 3 * round + 1);
                    count.enter();
                    let is_begun = begun.load(Ordering::Relaxed);
                    refused.store(is_begun, Ordering::Relaxed);
                    meet(here, there, 3 * round + 2);
                    count.leave();
                    meet(here, there, 3 * round + 3);
                }
            });
            for round in 0..ROUNDS {
                meet(there, here, 3 * round + 1);
                begun.store(true, Ordering::Relaxed);
                barrier_everywhere();
                let is_seen = count.0.load(Ordering::Acquire) != 0;
                meet(there, here, 3 * round + 2);
                *misses += usize::from(!is_seen && !refused.load(Ordering::Relaxed));
                begun.store(false, Ordering::Relaxed);
                meet(there, here, 3 * round + 3);
            }
        });
        assert_eq!(*misses, 0);
    }
}
