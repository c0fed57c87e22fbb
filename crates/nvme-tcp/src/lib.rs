//! NVMe/TCP: PDUs, digests, and both ends of a connection as state machines.
//!
//! Source: NVM Express NVMe over TCP Transport Specification 1.1 ("NVMe/TCP Transport 1.1").
//!
//! ```text
//!            driver (socket, buffers, time)
//!    bytes in |   ^ events            ^ bytes out
//!             v   |                   |
//!    controller::Connection or host::Connection
//!             |   frame: lengths, digests, alignment
//!             v   pdu: wire structures
//! ```
//!
//! What it does not do: no I/O, no clock, no buffers of its own (bytes of an incomplete PDU stay
//! with the driver), no commands (it carries them), no TLS. Of kickstart discovery it has the end that
//! asks ([`kickstart`]), not the centralized discovery controller's.
//!
//! Key constants: PDU headers are 24, 72 or 128 bytes, digests 4; data starts at most 255 bytes
//! into a PDU; a terminating PDU is at most 152 bytes.
#![forbid(unsafe_code)]

pub mod controller;
pub mod digest;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod host;
pub mod kickstart;
mod payload;
pub mod pdu;
pub mod sgl;
mod terminate;

pub use digest::Digest;
pub use frame::{Format, Frame};
pub use payload::Pending;
pub use sgl::Descriptor;
pub use terminate::{FatalError, Terminate};
