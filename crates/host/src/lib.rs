//! The NVMe/TCP host: remote namespaces as volumes.
//!
//! ```text
//!   layer::multipath --submit--> Path's queue, one per core: socket, nvme_tcp machine, slots by CID
//!        ^ access_changed             | lost, late, ANA            ^ sockets, live, hang up
//!        '----------------------------+                            |
//!                                     v                            |
//!                     control thread: Driver per path = association::Association + admin connection
//! ```
//!
//! [`open`] gives one [`Path`] per address, [`open_discovered`] paths whose addresses are what discovery controllers say,
//! as long as they are held. A path sends each command once: what is lost with its
//! connection comes back with `HOST_PATHING_ERROR` (`HOST_ABORTED` if it was never sent) and is
//! retried by `namespace::layer::multipath`, or by nobody. [`client`] is for administration.
//!
//! Where a controller demands it, queues prove who this host is (`association::Authentication`) before anything else is
//! sent on it, by keys in files ([`keys`]) that are read for each association.
//!
//! With a key for TLS, connections are encrypted by the kernel before anything of NVMe is said (`dial`, [`tls`]).
//!
//! Data that is pages of the kernel ([`namespace::Data::Registered`]) is moved by the ring between socket and
//! pages, where the kernel does that, no data digests are asked for and nothing is encrypted; headers are read and written here.
//!
//! What it does not do: choose among paths, wait for one, retry; metadata, fused commands.
//!
//! Key constants: [`PATHS_MAX`] paths, 128 I/O queues each, 256 KiB of receive buffer per core. All
//! else that a controller can make grow is bounded by the queue's entries and by what was asked of it.

mod admin;
mod allocation;
pub mod client;
mod control;
mod dial;
mod directory;
mod flush;
mod identity;
pub mod keys;
mod local;
mod nic;
mod options;
mod pages;
mod passed;
mod path;
mod places;
mod queue;
mod shared;
mod subsystem;

pub use control::await_closed;
pub use directory::look_up;
pub use identity::{NVLANE, identity, machine_id, of_machine};
pub use local::{Local, is_interface};
pub use options::{Address, BadAddress, DISCOVERY_PORT, Failover, Options, PORT};
pub use path::{Error, PATHS_MAX, Path, open, open_discovered};
