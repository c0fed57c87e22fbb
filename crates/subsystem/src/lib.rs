//! The controller side of NVMe over Fabrics: everything but the transport and the data.
//!
//! ```text
//!   control plane                   transport (connections, capsules, data)
//!        | add_namespace,               | connect, admin,         ^ poll_event:
//!        | set_ana_state, ...           | disconnected,           |  Complete (events held back),
//!        v                              v activity                |  Drop, NamespacesChanged
//!   +---------------------------- Target ----------------------------+
//!   |  ports    subsystems            controllers                    |
//!   |           - hosts allowed       - CC, CSTS, features           |
//!   |           - namespaces          - held event requests          |
//!   |           - ANA groups          - keep alive, error log        |
//!   |  discovery: generation counter  - changed namespace list       |
//!   +----------------------------------------------------------------+
//!        ^ handle_timeout(now), next_timeout
//!
//!   io::check(command, limits) -> Transfer or Status      (any core, no state)
//!   copy::check_copy(command, ranges, limits, ...)        (the same)
//! ```
//!
//! One thread owns a [`Target`] and passes the time in as a [`Duration`]
//! since an epoch of its choice, best
//! its own start (the SMART log counts hours from it). I/O commands never come here: the data path checks them with
//! [`io::check`] against the [`nvme::Limits`] that [`Target::namespaces`] gave it.
//!
//! What it does not do: no sockets, no clock, no data path, no secure channels, no reservations,
//! no namespace management by hosts, no firmware.
//!
//! What idles here is small: some 80 bytes for a namespace, some 400 for a controller.
//!
//! Bytes from a peer only ever produce a status of the specification; every list that a peer can
//! fill has a bound here.
#![forbid(unsafe_code)]

mod admin;
mod async_event;
mod authentication;
mod config;
mod connect;
mod controller;
pub mod copy;
mod discovery;
mod event;
mod feature;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod identify;
pub mod io;
mod log_page;
mod nqn;
mod property;
mod subsystem;
mod target;

#[cfg(test)]
mod tests;

pub use admin::{IoStatistics, Reply, is_authentication, passed_data};
pub use config::{
    Authentication, ConfigError, NamespaceConfig, PortConfig, PortId, SubsystemConfig, TargetConfig,
};
pub use connect::{Connected, Origin, Refusal, Refused, Secured};
pub use event::{ControllerId, DropReason, Event};
pub use nqn::is_valid_nqn;
pub use nvme::log::ana::AnaState;
pub use subsystem::check_limits;
pub use target::{ControllerSummary, NamespaceAccess, Target};

use std::time::Duration;

/// Data of an I/O queue's command that may travel in its capsule, in bytes (IOCCSZ).
pub const IN_CAPSULE_BYTES: u32 = 16 * 1024;

/// Most data of an admin command that is passed to what is behind a namespace, in bytes.
pub const PASSED_BYTES_MAX: u32 = 256 * 1024;

/// Data of an admin queue's command that may travel in its capsule, in bytes (NVMe/TCP 1.1,
/// section 3.3.2.1: 8 KiB for Fabrics and admin commands).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8 * 1024;

/// Most bytes of an Authentication Send or Receive.
pub const AUTHENTICATION_BYTES_MAX: u32 = 8 * 1024;

/// Largest data transfer of one command in bytes (MDTS); less if a namespace takes less.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Smallest limit on transfers that a namespace may have in bytes: MDTS cannot tell less.
pub const TRANSFER_BYTES_MIN: u32 = 8 * 1024;

/// Largest range of one Write Zeroes command in bytes (WZSL), less if a namespace takes less: zeroing by hand must
/// not hold up a core for long.
pub const WRITE_ZEROES_BYTES_MAX: u32 = 8 << 20;

/// Entries of a queue (CAP.MQES) and commands outstanding on it (MAXCMD).
pub const QUEUE_ENTRIES_MAX: u16 = 1024;

/// I/O queues of a controller.
pub const IO_QUEUES_MAX: u16 = 128;

/// Namespaces of a subsystem, and the largest namespace id (NN, MNAN).
///
/// Linux sizes its ANA log buffer by it, which must stay below MDTS.
pub const NAMESPACES_MAX: u32 = 8192;

/// What is told of a namespace that is not there: one that could be is inactive, which is a matter of the field; 0h,
/// FFFFFFFFh and what is beyond NN is no namespace at all (NVMe Base 2.1, section 3.2.1; NVM 1.1, section 3.3.2, below
/// Figure 39).
pub fn not_active(nsid: u32) -> nvme::Status {
    let status = match (1..=NAMESPACES_MAX).contains(&nsid) {
        true => nvme::Status::INVALID_FIELD,
        false => nvme::Status::INVALID_NAMESPACE,
    };
    status.dnr()
}

/// ANA groups of a subsystem, and the largest group id (NANAGRPID, ANAGRPMAX).
pub const ANA_GROUPS_MAX: u32 = 128;

/// Time that a change of ANA states may take in seconds (ANATT).
pub const ANA_TRANSITION_SECONDS: u8 = 10;

/// Asynchronous Event Requests held per controller (AERL).
pub const EVENT_REQUESTS_MAX: usize = 4;

/// Entries of a controller's error log (ELPE).
pub const ERROR_ENTRIES_MAX: usize = 64;

/// Granularity of the keep alive timer (KAS).
pub const KEEP_ALIVE_GRANULARITY: Duration = Duration::from_secs(1);

/// How long a controller without a keep alive timer may idle if it serves discovery or is not
/// enabled.
pub const UNUSED_IDLE: Duration = Duration::from_secs(120);

/// How long an association outlives a reset or shutdown of its controller, without a keep alive timer meanwhile (NVMe Base 2.1,
/// section 3.6.2).
pub const ASSOCIATION_LINGER: Duration = Duration::from_secs(120);

/// How long a controller may take to become ready, as CAP.TO and CRTO tell it (here it is instant).
pub const READY_TIMEOUT: Duration = Duration::from_millis(7500);
