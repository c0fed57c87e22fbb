//! Rings of contexts that are gone, kept for those to come.
//!
//! Closing a ring makes the kernel interrupt every thread that has used it, some time later: a wait of
//! the program's own, say in `epoll_wait`, would then end with `EINTR` without a signal. And a new
//! context gets its ring faster.

use crate::context::{Engine, Free};
use crate::registry::wiped;
use crate::ring::{Completion, Submission};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

/// Rings kept, at most.
const PLACES: usize = 16;
/// A ring may be so many times larger than wanted.
const LARGER_MAX: usize = 8;

/// A ring with nothing in flight.
pub struct Parked {
    /// The ring and its requests.
    pub engine: Engine,
    /// Its submission queue.
    pub submission: Submission,
    /// Its completion queue.
    pub completion: Completion,
    /// Its free requests.
    pub requests: Free,
}

/// A child finds none: rings are not mapped there.
static PARKED: AtomicPtr<[AtomicPtr<Parked>; PLACES]> = AtomicPtr::new(ptr::null_mut());

/// Keeps a ring, or closes it when there are enough.
pub fn park(ring: Box<Parked>) {
    let ring = Box::into_raw(ring);
    // SAFETY: null pointers are valid.
    for place in unsafe { wiped(&PARKED) }.into_iter().flatten() {
        if place.compare_exchange(ptr::null_mut(), ring, SeqCst, SeqCst).is_ok() {
            return;
        }
    }
    // SAFETY: from a Box, just above, and nobody else has it.
    drop(unsafe { Box::from_raw(ring) });
}

/// A ring with room for `capacity` requests, if there is one of about that size.
pub fn unpark(capacity: u32) -> Option<Box<Parked>> {
    // SAFETY: null pointers are valid.
    for place in unsafe { wiped(&PARKED) }.into_iter().flatten() {
        let ring = place.swap(ptr::null_mut(), SeqCst);
        if ring.is_null() {
            continue;
        }
        // SAFETY: it came from a Box in `park`, and the swap made it ours alone.
        let ring = unsafe { Box::from_raw(ring) };
        let (room, wanted) = (ring.engine.requests().len(), capacity as usize);
        if !ring.engine.ring.has_descriptor() {
            continue;
        }
        if room >= wanted && room <= wanted * LARGER_MAX {
            return Some(ring);
        }
        park(ring);
    }
    None
}
