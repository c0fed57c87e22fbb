//! One core's event loop: ring, sockets, timers, the buffer pool, and the pool for calls that block.
//!
//! ```text
//!   other threads --Mailbox--+     +--> Complete::complete     blocking pool (threads)
//!                            v     |                               ^    |
//!   turn: mailbox -> active pollers -> submit + reap -> timers -> deferred -> pool waiters
//!            ^       (sockets, direct)  (one enter         |
//!            |                           or none per ring) v
//!            +------------------ nothing done for a while: park, sleep in one enter
//! ```
//!
//! A [`Reactor`] lives on the thread that made it (it is not `Send`) and is handed around as
//! `Rc<Reactor>`. What the kernel holds belongs to the reactor: each operation keeps its sink alive
//! until its completion was reaped, and [`Reactor::run`] returns only when nothing is in flight.
//! Once warm, no operation allocates. A reactor without work sleeps in the kernel, without any
//! periodic wake-up.
//!
//! Sockets are not operated through the ring: [`Stream`] makes direct non-blocking calls within
//! [`Poll::poll`], and the ring tells readiness ([`Reactor::watch`]) when the loop sleeps or many
//! sockets are open (docs/decisions/0002, 0003).
//!
//! NVMe commands pass through the kernel on the same ring ([`Reactor::submit_command`]) if it was
//! made for them ([`Config::kind`], docs/decisions/0005), or on a further one
//! ([`Reactor::command_ring`]), as do polled completions and submission threads. Programs with a
//! loop of their own take turns by [`Reactor::turn_for`] instead of [`Reactor::run`], and may sleep there
//! ([`Reactor::arm`]).
//!
//! What it does not do: futures and wakers, fairness between pollers beyond one call each per turn,
//! or ordering among operations.
//!
//! Key constants: [`BufferPool::buffer_len_max`] 1 MiB, 65,536 letters in a mailbox, registered
//! files 1,024, registered buffer memory in pieces of 2 MiB.

mod affinity;
mod anchor;
mod aside;
mod blocking;
mod buddy;
mod command_ring;
mod drive;
mod error;
mod files;
mod interval;
mod mailbox;
mod outside;
mod pieces;
mod pollers;
mod pool;
mod provided;
mod reactor;
mod records;
mod slots;
mod socket;
mod spin;
mod stats;
mod timers;
mod turn;

pub use affinity::{pin, unpin};
pub use blocking::Line;
pub use command_ring::CommandRing;
pub use drive::Drive;
pub use error::Error;
pub use files::FixedFile;
pub use interval::{Interval, Moment};
pub use mailbox::Mailbox;
pub use outside::OutsideError;
pub use pollers::PollerId;
pub use pool::{Buffer, BufferPool};
pub use provided::Provided;
pub use reactor::{Config, Interest, OperationId, Reactor, WatchId, refusal};
pub use records::pass_record;
pub use socket::{Listener, Stream};
pub use stats::Stats;
pub use timers::TimerId;
pub use uring::Kind;

/// Receives what became of an operation handed to the reactor.
///
/// `token` is what was given with the operation; `result` is the kernel's (a count, or `-errno`);
/// `flags` are the completion's. Called on the reactor's thread, never from within the call that
/// started the operation.
pub trait Complete {
    /// The operation has ended; the kernel no longer holds its buffers.
    fn complete(&self, token: u64, result: i32, flags: u32);

    /// The same with the further word that big completions have: double words 0 and 1 of an NVMe
    /// command's completion, 0 for other operations. All that rings complete comes this way; for
    /// those who need no more, it goes on to [`Complete::complete`].
    #[inline]
    fn complete_command(&self, token: u64, result: i32, flags: u32, _extra: u64) {
        self.complete(token, result, flags);
    }
}

/// Takes part in every turn of the loop while it has work.
pub trait Poll {
    /// Does what can be done without blocking. Returns whether anything was done.
    fn poll(&self) -> bool;
    /// The loop is about to sleep, or many pollers are active and this one has had nothing to do:
    /// arrange to be woken ([`Reactor::watch`]), or return `false` if there is work after all. A
    /// poller that returns `true` is polled again only after [`Reactor::activate`].
    fn park(&self) -> bool;
}
