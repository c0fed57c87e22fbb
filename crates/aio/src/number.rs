//! Numbers of the rings' descriptors. A program may close every descriptor that it does not know (`closefrom`), and the next ring gets a
//! number that an older one goes by still: from then on the older one has none, rather than that of another ring.
//!
//! ```text
//!   ring A: 256 ──program closes 256──> ring C opens as 256 ──> A: gone, C: 256
//! ```
//!
//! Places are never given back to the allocator, and no lock is taken: a child that another thread has forked at any moment
//! can open rings. In a child its parent's places stay in use, which costs their memory.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering::Relaxed, Ordering::SeqCst};

/// No descriptor: not -1, by which `io_uring_register` does some things without a ring.
const GONE: i32 = i32::MIN;

struct Place {
    number: AtomicI32,
    used: AtomicBool,
    next: *mut Place,
}

/// All places, the newest first.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

/// The number that a ring goes by.
pub struct Number(&'static Place);

// SAFETY: places are shared by atomics, but for `next`, which stays as it is made.
unsafe impl Send for Number {}
// SAFETY: as above.
unsafe impl Sync for Number {}

impl Number {
    /// Of a ring that the kernel has just opened: whoever went by it before has lost his.
    pub fn claim(number: i32) -> Number {
        for place in places() {
            let _ = place.number.compare_exchange(number, GONE, SeqCst, SeqCst);
        }
        let free =
            |place: &&Place| place.used.compare_exchange(false, true, SeqCst, SeqCst).is_ok();
        let place = places().find(free).unwrap_or_else(another);
        place.number.store(number, SeqCst);
        Number(place)
    }

    /// The number, or one that is no descriptor's.
    #[inline(always)]
    pub fn get(&self) -> i32 {
        self.0.number.load(Relaxed)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.0.number.store(GONE, SeqCst);
        self.0.used.store(false, SeqCst);
    }
}

fn places() -> impl Iterator<Item = &'static Place> {
    let first = PLACES.load(SeqCst);
    // SAFETY: made by `another`, and never freed.
    let at = |place: *mut Place| NonNull::new(place).map(|place| unsafe { place.as_ref() });
    std::iter::successors(at(first), move |place| at(place.next))
}

fn another() -> &'static Place {
    let place =
        Place { number: AtomicI32::new(GONE), used: AtomicBool::new(true), next: ptr::null_mut() };
    let place = Box::into_raw(Box::new(place));
    loop {
        let first = PLACES.load(SeqCst);
        // SAFETY: from a Box just above, and nobody else's before it is among the places.
        unsafe { (*place).next = first };
        if PLACES.compare_exchange(first, place, SeqCst, SeqCst).is_ok() {
            // SAFETY: never freed, and not written to but by its atomics from now on.
            return unsafe { &*place };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_given_a_number_takes_it_from_who_had_it() {
        let (first, second) = (Number::claim(1 << 20), Number::claim((1 << 20) + 1));
        let later = Number::claim(1 << 20);
        assert_eq!([&first, &second, &later].map(Number::get), [GONE, (1 << 20) + 1, 1 << 20]);
        let count = places().count();
        drop(second);
        let again = Number::claim((1 << 20) + 1);
        assert_eq!((again.get(), later.get(), places().count()), ((1 << 20) + 1, 1 << 20, count));
    }
}
