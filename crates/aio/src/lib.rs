//! `libaio.so.1` over io_uring, for programs that stay as they are, and `io_setup2` for those that can
//! change.
//!
//! ```text
//!   program ── libaio's functions (drop_in) ── context ──┬── io_uring            (submit, events)
//!              io_setup2, io_ring_enter (extended)       ├── preadv2, pwritev2   (what AIO does at once)
//!                        └── polled                      └── the kernel's AIO    (all else; errors)
//!   nvlane aio stat PID ── memfd (stat)
//! ```
//!
//! A context of ours is a real one of the kernel with a ring of io_uring beside it. Each iocb goes the
//! way that is best for its file (`probe`); whatever is unusual or wrong goes to the kernel's AIO, so
//! results and errors are its own. Programs that read `struct aio_ring` themselves or wait for
//! eventfds are found out and left to the kernel entirely (`context`), those with few requests at a time for
//! as long as that lasts (`depth`), and who waits for each might as well read and write (`prompt`). Read
//! `context`, `submit`, `events`, in this order.
//!
//! What it does not do: intercept raw system calls, `close` or `munmap`; help a child with its parent's
//! contexts, which are invalid there as they always were. A page that had iocbs and was unmapped is
//! noticed by `SIGSEGV`, not by `EFAULT`. The kernel completes I/O by interrupting the thread that
//! submitted it, so `epoll_wait` there may end early with `EINTR`.
//!
//! Key constants: 512 contexts per process beside the kernel's alone, 16 descriptors remembered per
//! context for 128 uses each, 64 records of statistics; two requests are few (`depth::FEW`), after 256 calls.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")))]
compile_error!("struct iocb is laid out here for 64-bit little-endian Linux");

pub mod abi;
mod caller;
mod context;
mod course;
mod deadline;
mod depth;
pub mod drop_in;
mod events;
pub mod extended;
mod inline;
mod inside;
mod interrupts;
mod lifetime;
mod lock;
mod native;
mod number;
mod parking;
mod polled;
mod probe;
mod prompt;
mod registry;
mod ring;
pub mod stat;
mod stream;
mod submit;
mod system;
mod thread;
mod usual;
mod waits;
