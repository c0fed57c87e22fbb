//! State of the paths to a namespace on one core, and the policies that select among them.
//!
//! ```text
//!                      Selector (one per core)
//!   stand(path, ..) ------> optimized? usable?
//!   select(now, group, bytes) -> path          numa  round-robin  queue-depth
//!   submitted(path, ..) -------> Token         latency (as posted for Linux)
//!   completed(token, now, ..) -> learns        completion-time (the default)
//!   probe(now) -> idle path      |
//!                             Shared: what sibling cores know of idle paths, and their depths
//! ```
//!
//! Optimized paths come before non-optimized ones and others are never chosen, whatever the
//! policy. A choice takes nanoseconds: no allocation, no lock, no system call, no shared write but
//! queue-depth's count, which is Linux's; time comes in as an argument, in nanoseconds since any beginning that all cores share.
//!
//! Idle paths are measured by an explicit [`Selector::probe`] rather than by sending a user's read
//! there: with one read at a time and 30 ms more on the other path, a user would wait for the
//! probe in one of 128 reads, which is a fifth of his throughput. A read of our own delays nobody.
//!
//! What it does not do: send or retry commands, decide when a path is usable (`association` and
//! `namespace::layer::multipath` do), hedge reads, or read a clock.
//!
//! Key constants: [`PATHS_MAX`], [`WEIGHT_SCALE`], [`WORK_OVERHEAD`], [`PROBE_BYTES`].

#![forbid(unsafe_code)]

mod classic;
mod completion_time;
mod depth;
mod latency;
mod policy;
mod probe;
mod selector;
mod set;
mod statistics;

pub use completion_time::WORK_OVERHEAD;
pub use latency::{SAMPLE_NS_MAX, WEIGHT_SCALE};
pub use policy::{Policy, Settings, UnknownPolicy};
pub use probe::{IDLE_NS, Shared};
pub use selector::{Group, Outcome, Selector, Standing, Token};
pub use set::PathSet;
pub use statistics::GroupStatistics;

/// Paths that a selector can have.
pub const PATHS_MAX: usize = 16;

/// Bytes of a read that measures an idle path, where blocks are no larger.
pub const PROBE_BYTES: u64 = 4096;
