//! The NVMe/TCP target: serves any [`namespace::Namespace`] to any NVMe/TCP host.
//!
//! ```text
//!   control plane ---- Server ----------------------------------------------.
//!                        | mailbox of core 0             mailboxes of all   |
//!                        v                                                  v
//!   core 0:  Control = listeners + subsystem::Target     every core:  SubsystemView,
//!            + admin queues                              NamespaceView (limits, ANA, queue)
//!                        |                                                  |
//!            Connection: socket + nvme_tcp machine + exchanges <------------'
//!                        |                   moves to core (queue id mod cores) after Connect
//!                        v
//!            namespace::Queue::submit ... Connection::completed
//! ```
//!
//! Read `server`, `control`, `connection`, `io`, and `namespace::output`, in this order.
//!
//! What it does not do: reservations, transports other than TCP.
//!
//! Bounds: 1,024 connections that have not sent Connect, and 1,024 whose TLS handshake is not done, for 10 s each; as many commands per
//! connection as its queue has entries; a receive buffer of 256 KiB per core; data in the core's
//! buffer pool, else commands wait for it. No connection holds more of the pool than it leaves
//! free, and one whose peer lets nothing go for 2 s while others wait is dropped. Copies in progress have
//! 65,536 source ranges per core and 16,384 per connection, which holds no more of them either than it
//! leaves, but always one Copy's; more is answered Command Interrupted. Of answers to admin commands that their
//! hosts have not read a core keeps 64 MiB, and 64 KiB for each connection beyond. One Get LBA Status of a controller
//! waits at most, and one of all is carried out at a time. Cores with connections wake twice a second: what had come before one stood
//! still for more than two keep alive time-outs is not begun (`pause`).

mod admin;
mod allocation;
mod answers;
mod authentication;
mod connection;
mod control;
mod copy;
mod core;
mod durable;
mod exchange;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod io;
mod journal;
mod losses;
mod pass;
mod pause;
mod report;
mod secure;
mod server;
mod takeover;
mod trial;
mod view;

pub use durable::flush_all;
pub use journal::Refused;
pub use report::{ControllerReport, ControllerState};
pub use server::{
    Bound, CoreStats, Error, NamespaceOptions, NamespaceStats, PortState, Server, ServerConfig,
    Stats,
};
pub use subsystem::{AnaState, Authentication, ConfigError, PortId, SubsystemConfig, TargetConfig};
