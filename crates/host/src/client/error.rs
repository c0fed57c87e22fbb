//! Why a controller could not be asked.

use super::Peer;
use crate::dial::unsecured;
use crate::keys::KeyFileError;
use association::DiscoveryFault;
use nvme::Status;
use nvme_tcp::{FatalError, Terminate};
use std::io;
use std::time::Duration;
use tls::UpgradeError;

/// A command that was not carried out: which, by whom, and why.
#[derive(Debug, thiserror::Error)]
#[error("{peer}: {doing}: {reason}")]
pub struct ClientError {
    /// The controller.
    pub peer: Box<Peer>,
    /// What was asked of it.
    pub doing: String,
    /// What came instead.
    #[source]
    pub reason: Reason,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The operating system refused, or the network.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Nothing came in time.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The connection was closed.
    #[error("it closed the connection")]
    Closed,
    /// The connection failed with an earlier command.
    #[error("the connection has failed before")]
    Broken,
    /// What it sent breaks the protocol.
    #[error("what it sent is no NVMe/TCP: {0}")]
    Protocol(Terminate),
    /// It has terminated the connection.
    #[error("it terminated the connection: {0}")]
    Terminated(FatalError),
    /// It does not use digests that were asked for.
    #[error("it does not use {0}")]
    Declined(&'static str),
    /// The connection is not encrypted, as a key for TLS demands.
    #[error("{}", unsecured(.0))]
    Unsecured(UpgradeError),
    /// A key cannot be had.
    #[error("{0}")]
    Key(KeyFileError),
    /// One of the two did not prove who it is.
    #[error("{0}")]
    Authentication(Box<association::Reason>),
    /// It answered with an error.
    #[error("{status}")]
    Status {
        /// The status.
        status: Status,
        /// Dwords 0 and 1 of the completion.
        result: u64,
    },
    /// Connect was refused for the subsystem's name.
    #[error("it has no such subsystem (Connect Invalid Parameters)")]
    NoSubsystem,
    /// The data did not arrive as it was sent.
    #[error("the data digest is wrong")]
    Digest,
    /// It answered success, and sent less data than was asked for.
    #[error("it sent {received} of {wanted} bytes")]
    Short {
        /// Bytes that came.
        received: u32,
        /// Bytes that should have come.
        wanted: usize,
    },
    /// It sent something that does not belong there.
    #[error("it sent what was not asked for")]
    Unasked,
    /// It reports no events of that kind.
    #[error("it does not tell of changes")]
    NoEvents,
    /// A name that cannot be sent.
    #[error("{nqn:?} is no NQN: it has 1 to 223 bytes")]
    Nqn {
        /// The name.
        nqn: String,
    },
    /// The controller reports a fatal status.
    #[error("it reports a fatal controller status (CSTS.CFS)")]
    Fatal,
    /// The controller does not become ready.
    #[error("it did not become ready within {} ms", .patience.as_millis())]
    NotReady {
        /// What it had asked for itself, in CAP.TO.
        patience: Duration,
    },
    /// More than is taken of a log.
    #[error("{count} {what} are more than the {max} that are read")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many it says there are.
        count: u64,
        /// The bound.
        max: u64,
    },
    /// A discovery log that cannot be had.
    #[error("{0}")]
    Discovery(#[from] DiscoveryFault),
    /// A field with a value that makes no sense.
    #[error("{field} cannot be {value}")]
    Field {
        /// The field, by the specification's name.
        field: &'static str,
        /// What it says.
        value: u64,
    },
    /// There is no namespace with that id.
    #[error("namespace {nsid} is not active")]
    NoNamespace {
        /// Namespace id.
        nsid: u32,
    },
}

impl ClientError {
    pub(super) fn new(peer: &Peer, doing: String, reason: Reason) -> ClientError {
        ClientError { peer: Box::new(peer.clone()), doing, reason }
    }

    /// Whether the controller has answered, so that it may be asked something else.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self.reason, Reason::NoEvents | Reason::Status { .. })
    }

    /// The status that the controller answered with, if it answered.
    pub fn status(&self) -> Option<Status> {
        match self.reason {
            Reason::Status { status, .. } => Some(status),
            Reason::NoSubsystem => Some(Status::CONNECT_INVALID_PARAMETERS.dnr()),
            _ => None,
        }
    }
}
