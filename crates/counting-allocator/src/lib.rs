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
