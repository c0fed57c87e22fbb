//! What the control plane is told of controllers.

use crate::control::Control;
use dhchap::{Group, Hash};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use subsystem::{ControllerSummary, PortId};

/// A controller: a host that is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerReport {
    /// Controller id.
    pub controller: u16,
    /// Its subsystem.
    pub nqn: Arc<str>,
    /// The host; empty if it gave no name.
    pub host_nqn: Arc<str>,
    /// Host identifier.
    pub host_id: [u8; 16],
    /// Where the admin queue's connection comes from.
    pub peer: Option<SocketAddr>,
    /// The port that it is connected through.
    pub port: PortId,
    /// It tells what there is, and serves nothing.
    pub discovery: bool,
    /// How it stands.
    pub state: ControllerState,
    /// I/O queues.
    pub io_queues: u16,
    /// Entries of the I/O queues: each size that there is, ascending.
    pub io_queue_entries: Vec<u16>,
    /// Headers on the admin queue have digests.
    pub header_digest: bool,
    /// Data on the admin queue has digests.
    pub data_digest: bool,
    /// Its connections are encrypted (TLS).
    pub secured: bool,
    /// Keep alive timeout in milliseconds; 0: none.
    pub kato_ms: u32,
    /// By what the host has proved who it is, if it had to and has.
    pub authentication: Option<(Hash, Group)>,
    /// How long it has been there.
    pub age: Duration,
    /// Failed commands that were entered into its error log: of those that fail at once, one.
    pub errors: u64,
}

/// How a controller stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerState {
    /// It carries out commands.
    Enabled,
    /// The host has not enabled it yet, or has reset or shut it down.
    Disabled,
    /// Its connections are being closed.
    Ending,
}

/// Whose controller it is, noted at its Connect.
#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) controller: u16,
    pub(crate) nqn: Arc<str>,
    pub(crate) host_nqn: Arc<str>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) discovery: bool,
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    pub(crate) secured: bool,
    /// Since the server's epoch.
    pub(crate) since: Duration,
}

impl Control {
    /// All controllers, ascending by id.
    pub(crate) fn reports(&self) -> Vec<ControllerReport> {
        let now = self.core().now();
        let target = self.target.borrow();
        target.controllers().filter_map(|summary| self.report(summary, now)).collect()
    }

    fn report(&self, summary: ControllerSummary, now: Duration) -> Option<ControllerReport> {
        let state = match summary {
            ControllerSummary { dropped: true, .. } => ControllerState::Ending,
            ControllerSummary { enabled: true, .. } => ControllerState::Enabled,
            _ => ControllerState::Disabled,
        };
        self.with_owner(summary.controller, |owner, entries| ControllerReport {
            controller: owner.controller,
            nqn: summary.subsystem_nqn,
            host_nqn: summary.host_nqn,
            host_id: summary.host_id,
            peer: owner.peer,
            port: summary.port,
            discovery: summary.discovery,
            state,
            io_queues: summary.io_queues,
            io_queue_entries: sizes(entries),
            header_digest: owner.header_digest,
            data_digest: owner.data_digest,
            secured: owner.secured,
            kato_ms: summary.kato_ms,
            authentication: summary.authentication,
            age: now.saturating_sub(owner.since),
            errors: summary.errors,
        })
    }
}

/// Each size once, ascending.
fn sizes(queues: &BTreeMap<u16, u16>) -> Vec<u16> {
    let mut sizes: Vec<u16> = queues.values().copied().collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}
