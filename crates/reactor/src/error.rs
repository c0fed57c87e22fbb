//! Why a reactor could not be made.

use std::io;

/// A reactor could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// io_uring is refused or too old; the message says by whom, and the mend.
    #[error(transparent)]
    Ring(#[from] uring::Error),
    /// io_uring is refused, and what takes its place cannot be had either.
    #[error(
        "cannot do without io_uring, which is refused here (open files are limited by `ulimit -n`): {0}"
    )]
    Emulated(#[source] io::Error),
    /// No address space for the buffer pool.
    #[error("cannot reserve {bytes} bytes of address space for buffers: {source}")]
    Buffers {
        /// Bytes asked for.
        bytes: usize,
        /// What mmap returned.
        source: io::Error,
    },
    /// No eventfd for the mailbox.
    #[error("cannot make an eventfd to be woken by (open files are limited by `ulimit -n`): {0}")]
    Wake(#[source] io::Error),
    /// The thread cannot run on the core asked for.
    #[error("cannot run on core {cpu} (see `taskset -p $$` for those allowed): {source}")]
    Pin {
        /// The core asked for.
        cpu: usize,
        /// What sched_setaffinity returned.
        source: io::Error,
    },
}
