//! Why a path is not live, in words for people.

use dhchap::Failure;
use nvme::Status;
use std::time::Duration;
use thiserror::Error;

/// Why a connection could not be made, or was lost. The driver puts the peer's address before it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Reason {
    /// The transport could not connect.
    #[error("{0}")]
    Dial(String),
    /// The connection ended, or the controller broke the transport's protocol.
    #[error("{0}")]
    Transport(String),
    /// Connect was refused.
    #[error("{}", connect_refused(*status, *result))]
    Connect {
        /// Status of Connect.
        status: Status,
        /// Result of Connect: which parameter is invalid.
        result: u64,
    },
    /// Another command failed.
    #[error("{what} failed: {status}")]
    Failed {
        /// The command.
        what: &'static str,
        /// Its status.
        status: Status,
    },
    /// A command was not answered.
    #[error("no answer to {what} within {after:?}")]
    NoAnswer {
        /// The command.
        what: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// The keys of authentication cannot be had.
    #[error("{0}")]
    Key(String),
    /// The controller wants to know who this host is, and there is no key.
    #[error(
        "the controller demands authentication: give this host's key (dhchap_key=FILE in the URI, --dhchap-key FILE)"
    )]
    KeyWanted,
    /// The controller wants keys for TLS to come of authentication.
    #[error(
        "the controller demands TLS by a key that comes of authentication (secure channel concatenation), which is not supported; it may take a key for TLS (tls_key)"
    )]
    SecureChannel,
    /// The controller was to prove who it is, and does not ask for authentication.
    #[error(
        "the controller asks for no authentication, so that it does not prove who it is, as dhchap_ctrl_key demands"
    )]
    Unproven,
    /// The controller's proof is wrong.
    #[error(
        "the controller did not prove who it is: its key is not that of dhchap_ctrl_key, or it has none"
    )]
    OtherController,
    /// The controller did not believe this host.
    #[error("{}", refused(*.0))]
    Refused(Failure),
    /// What the controller says in an exchange cannot be taken.
    #[error("the controller spoiled authentication: {0}")]
    Authentication(Failure),
    /// An answer makes no sense.
    #[error("{what} is malformed")]
    Malformed {
        /// Which answer.
        what: &'static str,
    },
    /// The controller reports a fatal status (CSTS.CFS).
    #[error("the controller reports a fatal error (CSTS.CFS)")]
    Fatal,
    /// The controller does not become ready.
    #[error("the controller is not ready after {0:?}")]
    NotReady(Duration),
    /// Several namespaces, and none was named.
    #[error("the subsystem has several namespaces ({found}); choose one with ns=")]
    ChooseNamespace {
        /// The first of them.
        found: String,
    },
    /// The namespace does not exist.
    #[error("there is no namespace {}; there is {found}", nsid.map_or_else(String::new, |nsid| nsid.to_string()))]
    NoNamespace {
        /// Which was wanted.
        nsid: Option<u32>,
        /// What there is.
        found: String,
    },
    /// The namespace cannot be used.
    #[error("namespace {nsid} cannot be used: {what}")]
    Unsupported {
        /// The namespace.
        nsid: u32,
        /// What is not supported.
        what: String,
    },
    /// The namespace is not the one that other paths lead to, or that was there before.
    #[error("leads to another namespace than before: {found} instead of {expected}")]
    OtherNamespace {
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// The ANA state does not allow access.
    #[error("ANA state {0}")]
    Ana(&'static str),
    /// An I/O queue could not be connected or was lost.
    #[error("I/O queue {queue}: {reason}")]
    Queue {
        /// Queue id.
        queue: u16,
        /// Why.
        reason: String,
    },
    /// A command was not answered within the I/O timeout, and Abort did not help.
    #[error("a command on I/O queue {queue} was not answered in time")]
    IoTimeout {
        /// Queue id.
        queue: u16,
    },
    /// Given up.
    #[error("given up {} (ctrl_loss_tmo); the last attempt: {last}", after_time(*.after))]
    GivenUp {
        /// How long was tried.
        after: Duration,
        /// The last failure.
        last: Box<Reason>,
    },
    /// The controller takes less than users of the namespace were told when it was opened.
    #[error("takes less than the paths that were there at first: {what}")]
    LessAble {
        /// Of what.
        what: &'static str,
    },
    /// The driver lets the path go, once what is in flight has ended.
    #[error("is let go: discovery names it no longer")]
    Leaving,
    /// This end was told to close.
    #[error("closed")]
    Closed,
    /// No attempt has ended yet.
    #[error("connecting")]
    Connecting,
}

/// Offsets of fields as Connect's result tells them (NVMe Base 2.1, Figure 547): IPO in the lower
/// half, IATTR above.
mod parameter {
    pub const IN_DATA: u64 = 1 << 16;
    pub const CNTLID: u64 = IN_DATA | 16;
    pub const SUBNQN: u64 = IN_DATA | 256;
    pub const HOSTNQN: u64 = IN_DATA | 512;
}

fn refused(failure: Failure) -> String {
    match failure {
        Failure::Failed => "the controller refused authentication: the keys differ \
            (dhchap_key, or dhchap_ctrl_key where that is given)"
            .into(),
        other => format!("the controller refused authentication: {other}"),
    }
}

fn after_time(after: Duration) -> String {
    if after.is_zero() { "at once".to_owned() } else { format!("after {after:?}") }
}

fn connect_refused(status: Status, result: u64) -> String {
    let what = match (status.code(), result & 0x1_ffff) {
        (Status::CONNECT_INVALID_PARAMETERS, parameter::SUBNQN) => "subsystem not found",
        (Status::CONNECT_INVALID_PARAMETERS, parameter::HOSTNQN) => "host NQN refused",
        (Status::CONNECT_INVALID_PARAMETERS, parameter::CNTLID) => "controller not found",
        (Status::CONNECT_INVALID_HOST, _) => "this host is not allowed to connect",
        _ => "Connect refused",
    };
    let words = status.words().unwrap_or("unknown status");
    format!("{what}: {words} ({:#05x})", status.code().0)
}
