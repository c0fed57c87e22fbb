//! A ring that does nothing, for threads that close their last one and open another.
//!
//! When a thread's last ring is closed, Linux has the idle workers of that thread end (`IO_WQ_BIT_EXIT_ON_IDLE`). Work
//! of the next ring may be left to a worker that has looked for some in vain and is on its way out: nobody does it then
//! until there is more. Seen in 6.18.44, where 9 of 9,918 first writes of a ring hung on a busy machine, and with a ring
//! left open none of 19,132. So a thread keeps one from when its first reactor ends.

use std::cell::OnceCell;
use std::mem::ManuallyDrop;
use std::process;
use uring::{Ring, RingOptions};

thread_local! {
    static ANCHOR: OnceCell<Option<Anchor>> = const { OnceCell::new() };
}

/// A ring of this process. A child that was forked has its number and its addresses, which may be something else's by the
/// time that the child ends.
struct Anchor {
    ring: ManuallyDrop<Ring>,
    process: u32,
}

impl Drop for Anchor {
    fn drop(&mut self) {
        if process::id() == self.process {
            // SAFETY: it is used no more.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
    }
}

/// Leaves a ring with this thread. Where that is impossible it is as it would be without.
pub(crate) fn drop_anchor() {
    // A thread that is ending opens no other.
    let _ = ANCHOR.try_with(|anchor| {
        anchor.get_or_init(|| {
            let options = RingOptions { entries: 1, shared: true, ..RingOptions::default() };
            let ring = ManuallyDrop::new(Ring::with_options(&options).ok()?);
            Some(Anchor { ring, process: process::id() })
        });
    });
}
