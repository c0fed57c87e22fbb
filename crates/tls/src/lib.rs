//! NVMe/TCP over TLS 1.3 with pre-shared keys (NVMe/TCP Transport 1.1, section 3.6.1).
//!
//! ```text
//!   NVMeTLSkey-1:HH:BASE64:   Key: what people keep, of 32 or 48 bytes
//!            |  of one host, unless HH is 00
//!       retained PSK
//!            |  of one host and one subsystem
//!       identity and TLS PSK  Psk: what a ClientHello names, and what TLS starts from
//!            |  Handshake: records in, records out (OpenSSL)
//!        traffic secrets      Secrets
//!            |  the kernel
//!   a socket as any other     Upgrade: all of it on a connection of a reactor's
//! ```
//!
//! After the handshake nothing of TLS is left in user space: the kernel encrypts and decrypts what goes through the socket
//! (docs/decisions/0017). Secrets are wiped when they are dropped, and are not shown by `Debug`.
//!
//! What it does not do: certificates, keys that come of DH-HMAC-CHAP (secure channel concatenation), tickets, earlier versions of TLS.
//!
//! Key constants: 16 KiB of records before a handshake is done, four identities of a host; keys of 32 or 48 bytes.

mod blocking;
mod engine;
mod expand;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handshake;
mod hash;
mod kernel;
mod key;
mod psk;
mod upgrade;

pub use blocking::secure;
pub use handshake::{FindAll, Handshake, HandshakeError, KEYS_MAX, Progress, Secrets};
pub use hash::Hash;
pub use kernel::check;
pub use key::{Key, KeyError};
pub use psk::{Derivation, Peer, Psk, PskError, Version, accepted, offers};
pub use upgrade::{Secured, Upgrade, UpgradeError};

/// Fills a buffer with bytes that nobody can foresee.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]);
