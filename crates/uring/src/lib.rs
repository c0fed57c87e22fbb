//! Raw io_uring: set-up, probing, entries, completions, registered files and buffers.
//!
//! ```text
//!   entry::read(..) --push--> submission queue --enter--> kernel
//!   Completion <--reap------- completion queue <----------'
//! ```
//!
//! The queues are our own ([`Kind`]: small entries, big ones for NVMe commands, or both in one
//! ring); entries of 64 bytes are built by the `io-uring` crate, those of 128 here
//! ([`entry::nvme_command`]). Beside that there is what our rules need: one owner per ring by type
//! ([`Ring`] is not `Send`), the best set-up the running kernel has, a registered ring descriptor,
//! and an [`Error`] that says who refused io_uring, or which option of it, and what to do.
//! [`RingOptions`] makes rings that poll for completions, or whose entries a thread of the kernel
//! takes.
//!
//! Where io_uring is refused, [`Ring::emulated`] makes a ring that this process serves by epoll and threads.
//!
//! What it does not do: keep track of what is in flight, own buffers, or run a loop; that is the
//! `reactor` crate. Linux 6.1 or newer is supported, tests run on 6.1, 6.12 and 7.x.
//!
//! Key constants: 64 and 128 bytes to submit, 16 and 32 to complete; four completion entries per
//! submission entry.

mod command;
mod emulated;
pub mod entry;
mod error;
mod provided;
mod queue;
mod ring;
mod setup;
mod sys;

pub use command::NvmePassthruCmd64;
pub use entry::{BigEntry, Entry, File, NvmeOp, NvmeUringCmd};
pub use error::{Error, Refusal, RingOption, VARIABLE};
pub use provided::BufferRing;
pub use ring::{BigRefusal, Completion, Full, Ring, Wait};
pub use setup::{Kind, RingOptions, Setup, SqPoll};

/// Completion flag: more completions of the same entry follow (multishot entries).
pub const MORE: u32 = 1 << 1;

/// The buffer of a group ([`BufferRing`]) that a completion with such flags is about.
#[inline]
pub const fn buffer_of(flags: u32) -> Option<u16> {
    const BUFFER: u32 = 1 << 0;
    if flags & BUFFER != 0 { Some((flags >> 16) as u16) } else { None }
}

/// Operation codes, for [`Ring::supports`].
pub mod code {
    pub use io_uring::opcode::{
        AsyncCancel, Fallocate, Fsync, MsgRingData, Nop, PollAdd, PollRemove, Read, ReadFixed,
        Readv, RecvMulti, SendZc, UringCmd16, UringCmd80, Write, WriteFixed, Writev,
    };
}
