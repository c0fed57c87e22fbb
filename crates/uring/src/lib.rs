//! Raw io_uring: set-up, probing, entries, completions, registered files and buffers.
//!
//! ```text
//!   entry::read(..) --push--> submission queue --enter--> kernel
//!   Completion <--reap------- completion queue <----------'
//! ```
//!
//! A thin layer over the `io-uring` crate that adds what our rules need: one owner per ring by
//! type ([`Ring`] is not `Send`), the best set-up the running kernel has, a registered ring
//! descriptor, and an [`Error`] that says who refused io_uring and what to allow.
//!
//! What it does not do: keep track of what is in flight, own buffers, or run a loop; that is the
//! `reactor` crate. Linux 6.1 or newer is supported, tests run on 6.18.

mod command;
pub mod entry;
mod error;
mod queue;
mod ring;
mod setup;
mod sys;

pub use entry::{BigEntry, Entry, File, NvmeOp, NvmeUringCmd};
pub use error::{Error, Refusal, RingOption};
pub use ring::{BigRefusal, Completion, Full, Ring, Wait};
pub use setup::{Kind, RingOptions, Setup, SqPoll};

/// Completion flag: more completions of the same entry follow (multishot entries).
pub const MORE: u32 = 1 << 1;

/// Operation codes, for [`Ring::supports`].
pub mod code {
    pub use io_uring::opcode::{
        AsyncCancel, Fallocate, Fsync, MsgRingData, Nop, PollAdd, PollRemove, Read, ReadFixed,
        Readv, RecvMulti, SendZc, UringCmd16, UringCmd80, Write, WriteFixed, Writev,
    };
}
