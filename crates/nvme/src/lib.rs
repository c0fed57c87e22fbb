//! NVMe structures as the specifications lay them out on the wire.
//!
//! Sources: NVM Express Base Specification 2.1 ("NVMe Base 2.1"), NVM Command Set
//! Specification 1.1 ("NVM 1.1").
//!
//! ```text
//!   bytes  <-- zerocopy -->  Command, Completion, identify::*, log::*, ...  <-->  target, host, layers
//! ```
//!
//! What it does not do: no I/O, no clock, no state; transports have crates of their own.
//!
//! Fields whose names end in `_z` are zero-based as on the wire. Enumerations from the wire are
//! open newtypes: a value that this crate does not know survives.
#![forbid(unsafe_code)]

pub mod command;
pub mod copy;
pub mod dataset;
pub mod event;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod lba_status;
pub mod limits;
pub mod log;
pub mod opcode;
pub mod sgl;
pub mod status;
mod wire;

#[cfg(test)]
mod tests;

pub use command::{Command, Completion, Fuse};
pub use limits::Limits;
pub use sgl::Sgl;
pub use status::Status;

/// Version of the base specification that this crate follows, as VS and Identify have it: 2.1.
pub const VERSION: u32 = 0x0002_0100;

/// Namespace id that addresses all namespaces.
pub const NSID_ALL: u32 = 0xffff_ffff;
