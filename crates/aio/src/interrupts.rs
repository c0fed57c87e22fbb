//! Whether the kernel may get threads of this process out of a wait on behalf of a ring of ours (`TIF_NOTIFY_SIGNAL`): with
//! completions of what they have submitted, and some time after a ring was closed. Where it may, the way that
//! does not mind is taken, which costs more ([`io_getevents_again`](crate::system::io_getevents_again)).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

/// Rings that they may come from, those that were closed for good. A child has its parent's count, which is too much at worst.
static RINGS: AtomicU32 = AtomicU32::new(0);
/// Rings closed so far.
static CLOSED: AtomicU32 = AtomicU32::new(0);

/// Whether there is such a ring.
#[inline(always)]
pub fn may_come() -> bool {
    RINGS.load(SeqCst) > 0
}

/// How many rings were closed so far: if it is more after a wait that was interrupted, that may have been one of them.
#[inline(always)]
pub fn closed() -> u32 {
    CLOSED.load(SeqCst)
}

/// That a ring is one, until it is at rest, and again from when it is closed.
pub struct Source {
    at_rest: AtomicBool,
}

impl Source {
    /// Of a new ring.
    pub fn new() -> Source {
        RINGS.fetch_add(1, SeqCst);
        Source { at_rest: AtomicBool::new(false) }
    }

    /// All its completions were seen, and nothing will be submitted before [`Source::work`].
    pub fn rest(&self) {
        if !self.at_rest.swap(true, SeqCst) {
            RINGS.fetch_sub(1, SeqCst);
        }
    }

    /// It is going to be used again.
    pub fn work(&self) {
        if self.at_rest.swap(false, SeqCst) {
            RINGS.fetch_add(1, SeqCst);
        }
    }

    /// It is about to be closed.
    pub fn close(&self) {
        self.work();
        CLOSED.fetch_add(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No other test of this crate makes a ring.
    #[test]
    fn rings_at_rest_do_not_count_and_closed_ones_do() {
        assert!(!may_come());
        let source = Source::new();
        assert!(may_come());
        source.rest();
        source.rest();
        assert!(!may_come());
        source.work();
        source.work();
        assert_eq!((RINGS.load(SeqCst), closed()), (1, 0));
        source.rest();
        source.close();
        assert_eq!((RINGS.load(SeqCst), closed()), (1, 1));
    }
}
