//! In-band authentication of NVMe over Fabrics by DH-HMAC-CHAP (NVMe Base 2.1, section 8.3.4).
//!
//! ```text
//!   host                                             controller
//!     | -- Negotiate: hashes, DH groups -------------> |  Work: g^x
//!     | <- Challenge: hash, group, C1, g^x ----------- |
//!  Work: g^y, g^xy                                     |
//!     | -- Reply: response to C1, g^y (and C2) ------> |  Work: g^xy
//!     | <- Success1 (and the response to C2) --------- |
//!     | -- Success2 (where there was a C2) ----------> |
//! ```
//!
//! [`Host`] and [`Controller`] are the two ends, of one queue each. The host carries a message by
//! Authentication Send, and fetches one by Authentication Receive ([`nvme::fabrics::Authentication`]).
//!
//! What it does not do: no sockets, no clock, no randomness of its own (who calls brings [`Random`]), and nothing that
//! takes long. The exponentiations of Diffie and Hellman take 0.7 ms (2048 bits) to 30 ms (8192 bits): they are
//! handed out as [`Work`], to be carried out wherever nobody waits. No secure channel concatenation: this gives no key to TLS.
//!
//! Secrets ([`Key`], exponents, session keys) are wiped when they are dropped, are not shown by `Debug`, and are compared in
//! constant time.
#![forbid(unsafe_code)]

mod controller;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod group;
mod hash;
mod host;
mod key;
mod message;
mod primes;
mod response;
mod work;

#[cfg(test)]
mod tests;

pub use controller::{Controller, ControllerConfig, Sent};
pub use group::Group;
pub use hash::Hash;
pub use host::{Host, HostConfig, Step};
pub use key::{Key, KeyError};
pub use message::Failure;
pub use work::{Done, Work};

/// Fills a buffer with bytes that nobody can foresee.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]);

/// Smallest room for a message that is fetched: it takes the one that tells of a failure.
pub const MESSAGE_BYTES_MIN: usize = 8;

/// Largest message in bytes: Reply, with the largest hash and group.
pub const MESSAGE_BYTES_MAX: usize = 16 + 2 * 64 + 1024;
