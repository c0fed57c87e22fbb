//! The NBD server: any [`namespace::Namespace`] for clients of the Network Block Device protocol.
//!
//! ```text
//!   Server --listens--> Acceptor (core 0) --hands over, in turn--> Core (one per thread)
//!                                                                    |
//!   client --bytes--> Connection: Handshake, then Transmission ------'
//!                        |   requests, cut into pieces of whole blocks
//!                        v
//!            namespace::Queue::submit ... Connection::completed --> replies
//! ```
//!
//! The protocol is in machines without I/O: `handshake`, `request`, `pieces`, `reply`, `extents`.
//! Read those first, then `server`, `core`, `connection` and what is below it.
//!
//! Requests may begin and end at any byte unless the client has agreed on block sizes: a read
//! covers the blocks it touches, and the ends of a write are read, changed, and written by the fused
//! pair Compare and Write, so that no write of somebody else to the same block is lost.
//!
//! What it does not do: the oldstyle handshake, TLS, authentication, extended headers, resizing
//! under a client. Who can connect can read and write.
//!
//! Bounds: 1,024 connections, of which 128 per core are in their handshake (the oldest makes room),
//! 10 s and 256 options for a handshake, 16 KiB for an option, 128 requests of at most
//! [`PAYLOAD_MAX`] in progress per connection. Data is in the core's buffer pool, else requests wait
//! for it, in the socket if they bring data. No connection holds more of the pool than it leaves
//! free, and one whose peer lets nothing go for 2 s ([`ServerConfig::stall_period`]) while others
//! wait is dropped.

mod connection;
mod core;
mod exchange;
mod export;
mod extents;
mod failure;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handshake;
mod pieces;
mod reply;
mod request;
mod server;
mod socket;
mod wire;

pub use core::{Activity, Export};
pub use export::PAYLOAD_MAX;
pub use server::{Error, Server, ServerConfig};
pub use socket::{SocketError, is_left_behind};
