//! Counts allocations, so that tests can show that the data path makes none.
//!
//! ```text
//!   a test, which links this crate --> Counting --> the system's allocator
//!                                         +1 for the thread; +1 for all marked ones, if it is marked
//! ```
//!
//! Linking the crate, by naming anything of it, makes it the allocator of the test's program. Only tests depend
//! on it (`cargo xtask tidy` sees to that); nothing that ships does.
//!
//! What it does not do: count bytes, or what is freed.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of all marked threads.
static OF_MARKED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
    static IS_MARKED: Cell<bool> = const { Cell::new(false) };
}

/// Allocations of the calling thread so far.
pub fn of_this_thread() -> u64 {
    OF_THREAD.get()
}

/// From now on, what the calling thread allocates counts in [`of_marked`] too; or no more.
pub fn mark_this_thread(marked: bool) {
    IS_MARKED.set(marked);
}

/// Allocations so far of all threads, while they were marked.
pub fn of_marked() -> u64 {
    OF_MARKED.load(Ordering::Relaxed)
}

/// Allocations of the calling thread by rounds of its work. Tables grow whenever more happens to meet in one place than
/// ever before, so that what allocates nothing has some round without any, and what allocates for each piece has none.
#[derive(Debug)]
pub struct Rounds {
    warm_up: u64,
    each: u64,
    ended: u64,
    before: u64,
    least: u64,
}

impl Rounds {
    /// At most so many are looked at.
    const MOST: u64 = 6;

    /// Rounds of `each` pieces of work, behind `warm_up` that do not count.
    pub fn new(warm_up: u64, each: u64) -> Rounds {
        Rounds { warm_up, each, ended: 0, before: 0, least: u64::MAX }
    }

    /// One more piece of work has ended. Gives the allocations of the round that has the fewest, when one has none or
    /// all are over.
    pub fn ended(&mut self) -> Option<u64> {
        self.ended += 1;
        let counted = self.ended.checked_sub(self.warm_up)?;
        if !counted.is_multiple_of(self.each) {
            return None;
        }
        let before = std::mem::replace(&mut self.before, of_this_thread());
        if counted > 0 {
            self.least = self.least.min(self.before - before);
        }
        (self.least == 0 || counted == Rounds::MOST * self.each).then_some(self.least)
    }
}

fn count() {
    // A thread that ends may allocate when its variables are gone already.
    let _ = OF_THREAD.try_with(|count| count.set(count.get() + 1));
    if IS_MARKED.try_with(Cell::get).unwrap_or(false) {
        OF_MARKED.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promised.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn every_way_to_allocate_counts_once() {
        let before = of_this_thread();
        let mut bytes = black_box(Vec::<u8>::with_capacity(8));
        assert_eq!(of_this_thread(), before + 1);
        bytes.reserve_exact(4096);
        assert_eq!(of_this_thread(), before + 2);
        drop(black_box(vec![0u8; 64]));
        assert_eq!(of_this_thread(), before + 3);
        drop(bytes);
        assert_eq!(of_this_thread(), before + 3, "what is freed does not count");
    }

    #[test]
    fn rounds_tell_what_grows_from_what_allocates_each_time() {
        // Allocations of each piece of work.
        let least = |of: &dyn Fn(u64) -> u64| {
            let mut rounds = Rounds::new(10, 100);
            for piece in 0.. {
                (0..of(piece)).for_each(|_| drop(black_box(Box::new(1))));
                if let Some(least) = rounds.ended() {
                    return (least, piece + 1);
                }
            }
            unreachable!("they end")
        };
        assert_eq!(least(&|piece| u64::from(piece < 10)), (0, 110), "the warm-up does not count");
        assert_eq!(least(&|piece| u64::from(piece == 50)), (0, 210), "a table grew once");
        assert_eq!(least(&|piece| u64::from(piece % 100 == 50)), (1, 610));
        assert_eq!(least(&|_| 2), (200, 610));
    }

    #[test]
    fn only_marked_threads_count_together() {
        let before = of_marked();
        let work = |marked: bool| {
            std::thread::spawn(move || {
                mark_this_thread(marked);
                drop(black_box(Box::new(1)));
            })
        };
        work(false).join().expect("no panic");
        assert_eq!(of_marked(), before);
        work(true).join().expect("no panic");
        assert!(of_marked() > before);
    }
}
