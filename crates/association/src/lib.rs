//! The host side of an association with one controller: when to connect, keep alive and
//! reconnect, and what may be retried.
//!
//! ```text
//!                 Event (connected, completion, lost, I/O timeout)   + now
//!   driver  ------------------------------------------------------------->  Association
//!   (sockets,  <----------------------------------------------------------
//!    clock)       Action (dial, send admin command, hang up, live, access changed)
//!
//!   connecting: Connect, authentication, CAP, CC.EN, CSTS.RDY, Identify Controller, queues, events, namespace, ANA
//!      | ok                    | failed
//!      v                       v
//!     live ---- lost ----> waiting reconnect_delay ---> connecting ...   ctrl_loss_tmo: gone
//! ```
//!
//! Every connection has a generation. Whatever concerns an old one is ignored, so that a message
//! that was on its way when a connection was given up does no harm.
//!
//! [`Authentication`] is what a controller demands of each queue that it wants to know the host of; on the admin queue it is
//! part of the association, on I/O queues the driver's. [`retry`] says what may be sent again on another path, [`Credits`] counts submission queue
//! entries where the controller insists on flow control.
//!
//! What it does not do: no sockets, no clock, no I/O commands and no choice among paths. An association
//! tells of changes of a discovery log and does not read it; [`DiscoveryReader`] is for who does.
//!
//! Key constants: [`ADMIN_ENTRIES`] entries of the admin queue, one Asynchronous Event Request
//! outstanding, log pages of at most [`ANA_GROUPS_MAX`] groups, discovery logs of at most
//! [`DISCOVERY_ENTRIES_MAX`] entries that change at most [`LOG_CHANGES_MAX`] times.
#![forbid(unsafe_code)]

mod admin;
mod ana;
mod association;
mod authentication;
mod config;
mod credits;
mod discovery;
mod facts;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod reason;
pub mod retry;

pub use association::{Access, Action, Association, Event, SHUTDOWN_TIME, Traffic};
pub use authentication::{Authentication, AuthenticationCommand, Credentials, Next};
pub use config::Config;
pub use credits::Credits;
pub use discovery::{
    DISCOVERY_ENTRIES_MAX, DiscoveryFault, DiscoveryLog, DiscoveryReader, LOG_CHANGES_MAX,
};
pub use facts::{Controller, Identity, Namespace};
pub use reason::Reason;

/// Entries of the admin queue, one of which stays empty.
pub const ADMIN_ENTRIES: u16 = 32;

/// Admin commands outstanding at most: identifiers are below this.
pub const ADMIN_COMMANDS_MAX: u16 = 16;

/// ANA groups of a subsystem that are looked at; a controller with more is refused.
pub const ANA_GROUPS_MAX: u32 = 1024;
