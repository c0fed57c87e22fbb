//! What the methods give that list things: who is connected, who may be, through what, and how.
//! docs/control.md describes them for people.

use crate::config::{AnaState, Authentication};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use uuid::Uuid;

/// Parameters of `controller_list`, `host_list` and `ana_list`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListOf {
    /// The subsystem; all of them when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nqn: Option<String>,
}

/// A controller: a host that is connected. `controller_list` gives an array of them, ascending by id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerNow {
    /// Controller id.
    pub controller: u16,
    /// Its subsystem.
    pub nqn: String,
    /// The host; empty if it gave no name.
    pub host_nqn: String,
    /// Host identifier.
    pub host_id: Uuid,
    /// Where the host's admin queue comes from.
    pub address: Option<SocketAddr>,
    /// The listener that it came to.
    pub listener: Option<SocketAddr>,
    /// It tells which subsystems there are, and serves nothing.
    pub discovery: bool,
    /// `enabled`; `disabled`: not enabled yet, reset or shut down; `ending`: its connections are being closed.
    pub state: String,
    /// Connected I/O queues.
    pub io_queues: u16,
    /// Entries of the I/O queues: each size that there is, ascending.
    pub io_queue_entries: Vec<u16>,
    /// Headers have digests, on the admin queue.
    pub header_digest: bool,
    /// Data has digests, on the admin queue.
    pub data_digest: bool,
    /// Its connections are encrypted, by a key of the host's.
    #[serde(default)]
    pub tls: bool,
    /// By what hash function and group the host has proved who it is, as in `sha512 ffdhe2048`: none if it need not, or has not yet.
    #[serde(default)]
    pub authentication: Option<String>,
    /// Keep alive timeout in milliseconds; 0: none.
    pub keep_alive_ms: u32,
    /// For how long it has been there.
    pub connected_seconds: u64,
    /// Failed commands that were entered into its error log: of those that fail at once, one.
    pub errors: u64,
}

/// A subsystem. `subsystem_list` gives an array of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubsystemNow {
    /// Its name.
    pub nqn: String,
    /// Its serial number.
    pub serial: String,
    /// Another server serves the same volumes.
    pub shared: bool,
    /// Hosts that are not listed may connect.
    pub allow_any_host: bool,
    /// Hosts that are listed.
    pub hosts: usize,
    /// Namespaces that are served.
    pub namespaces: usize,
    /// Namespaces that are to be served, and cannot be opened now.
    pub missing: usize,
    /// Hosts' controllers.
    pub controllers: usize,
}

/// Who may connect to a subsystem, and who is connected. `host_list` gives an array of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostsNow {
    /// The subsystem.
    pub nqn: String,
    /// Hosts that are not listed may connect.
    pub allow_any_host: bool,
    /// Hosts that are listed.
    pub allowed_hosts: Vec<String>,
    /// Hosts that have to prove who they are from their next connection on, and the files of their keys.
    #[serde(default)]
    pub authentication: Vec<Authentication>,
    /// Hosts that are connected, by name.
    pub connected_hosts: Vec<ConnectedHost>,
}

/// A host that is connected to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectedHost {
    /// Its name; empty if it gave none.
    pub host: String,
    /// Its controllers.
    pub controllers: usize,
}

/// An address that accepts connections. `listener_list` gives an array of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerNow {
    /// The address.
    pub address: SocketAddr,
    /// It takes encrypted connections alone.
    #[serde(default)]
    pub tls: bool,
    /// Hosts' controllers that came to it, those of discovery not counted.
    pub controllers: usize,
}

/// The state of an ANA group on a listener. `ana_list` gives an array of them: for each subsystem the groups that have
/// namespaces or a state, on each listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnaNow {
    /// The subsystem.
    pub nqn: String,
    /// The group.
    pub group: u32,
    /// The listener.
    pub listener: SocketAddr,
    /// Its state there.
    pub state: AnaState,
    /// Namespaces in the group.
    pub namespaces: Vec<u32>,
}
