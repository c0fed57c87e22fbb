//! The `Namespace` contract, its local backends and its layers.
//!
//! ```text
//!   front door --submit(Request)--> [guard] -> delay, fault, rate, volatile, linear -> backend
//!        ^                             |                     |                            |
//!        '------completed(Request)-----'------frame----------'------------frame-----------'
//!
//!   backends:  memory   null   file (and block devices)   device (NVMe character devices)
//! ```
//!
//! A [`Request`] is owned by whoever works on it and comes back the way it went, through the
//! frames that layers pushed: no allocation, no lookup, no shared state per I/O.
//!
//! What it does not do: parse URIs and build stacks (that is `volume`), speak a protocol, or
//! check what a peer asks for: front doors do that against [`Namespace::limits`] first.
//!
//! Key constants: [`DEPTH_MAX`] frames per request.

pub mod checksum;
mod contract;
pub mod copy;
pub mod counters;
mod data;
pub mod dataset;
pub mod device;
pub mod failures;
pub mod file;
pub mod human;
pub mod layer;
pub mod memory;
pub mod null;
pub mod output;
pub mod percent;
mod spin;
mod told;
mod unflushed;
pub mod uuid;
mod wake;

pub use contract::{
    Access, AccessWatcher, DEPTH_MAX, MapReport, Namespace, PathReport, ProgramReport, Queue,
    Request, Run, Sink,
};
pub use data::{Data, Lent, Part, Registered, Transient, Vectors};
pub use told::{Lost, Told};
pub use unflushed::Unflushed;
