//! A ring that does nothing, for threads that close their last one and open another.
//!
//! When a thread's last ring is closed, Linux has the idle workers of that thread end (`IO_WQ_BIT_EXIT_ON_IDLE`). Work
//! of the next ring may be left to a worker that has looked for some in vain and is on its way out: nobody does it then
//! until there is more. Seen in 6.18.44, where 9 of 9,918 first writes of a ring hung on a busy machine, and with a ring
//! left open none of 19,132. So a thread keeps one from when its first reactor ends.

use std::cell::OnceCell;
use uring::{Ring, RingOptions};

thread_local! {
    static ANCHOR: OnceCell<Option<Ring>> = const { OnceCell::new() };
}

/// Leaves a ring with this thread. Where that is impossible it is as it would be without.
pub(crate) fn drop_anchor() {
    // A thread that is ending opens no other.
    let _ = ANCHOR.try_with(|anchor| {
        anchor.get_or_init(|| {
            let options = RingOptions { entries: 1, shared: true, ..RingOptions::default() };
            Ring::with_options(&options).ok()
        });
    });
}
