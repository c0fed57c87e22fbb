//! One core's event loop: ring, sockets, timers, the buffer pool, and the pool for calls that block.

use std::rc::Rc;
use std::time::{Duration, Instant};

/// Receives what became of an operation handed to the reactor.
///
/// `token` is what was given with the operation; `result` is the kernel's (a count, or `-errno`);
/// `flags` are the completion's. Called on the reactor's thread, never from within the call that
/// started the operation.
pub trait Complete {
    /// The operation has ended; the kernel no longer holds its buffers.
    fn complete(&self, token: u64, result: i32, flags: u32);
}

/// Takes part in every turn of the loop while it has work.
pub trait Poll {
    /// Does what can be done without blocking. Returns whether anything was done.
    fn poll(&self) -> bool;
    /// The loop is about to sleep: arrange to be woken ([`Reactor::watch`]), or return `false` if
    /// there is work after all. A poller that returns `true` is polled again only after
    /// [`Reactor::activate`].
    fn park(&self) -> bool;
}
