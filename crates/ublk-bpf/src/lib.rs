//! Programs that route requests, run by the kernel: no return to user space per request.
//!
//! ```text
//!   /dev/ublkbN --request--> ublk driver --completion--> ring (io_uring)
//!                                                          |  BPF: nvlane_loop_step (bpf/loop/loop.bpf.c)
//!                                                          |    runs the program, checks its list of actions
//!        backends: files, block devices <--READ/WRITE_FIXED-|    on the request's own pages
//!                             '--completions--> the last: commit to the driver
//!
//!   KernelQueue: one thread per queue, asleep in one io_uring_enter until the device ends
//!     Calls: it is called out of it, for another program to take the place of the one that runs
//!     Deferred: what the program defers is decided on there, in the machine in user space
//!   KernelProgram: the maps that all queues of a device share; mistakes, for the log
//!   KeptMaps: maps that the device's next server takes over, wherever it runs the program
//! ```
//!
//! The object is the one that the machine in user space runs (crate `bpf`): its sections `nvlane/*` are for that
//! one, its functions `nvlane_kernel_*` for the kernel. The loop is in this crate, and linked around the program when that is
//! loaded (docs/decisions/0016): once for all queues of a device, each of which has its part of the loop's maps and attaches the
//! program to its own ring.
//!
//! What it does not do: backends that are no plain files or block devices.
//!
//! Key constants: [`abi::DEPTH_MAX`] requests per queue, [`abi::SQ_ENTRIES`] entries per submission.

pub mod abi;
mod calls;
mod deferred;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod kept;
mod link;
mod log;
pub mod mistakes;
mod object;
mod operations;
mod program;
mod queue;
mod ring;

pub use error::Error;
pub use kept::KeptMaps;
pub use program::{KernelProgram, Queues, check, is_there};
pub use queue::{GO, KernelQueue, LEAVE, Place};
pub use ring::Fetching;
