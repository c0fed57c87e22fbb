//! What the target tells its transport without being asked.

use nvme::Status;
use std::sync::Arc;

/// Names a controller across all subsystems of a target.
///
/// It is the controller id (CNTLID) too: ids are given out target-wide. An id is given again
/// only after every connection of its former controller was reported as
/// [disconnected](crate::Target::disconnected), and as late as the range of ids allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ControllerId(pub u16);

/// Why the connections of a controller have to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Nothing was heard within the keep alive timeout.
    KeepAliveExpired,
    /// A controller without keep alive timer that serves discovery or was not enabled idled for too
    /// long.
    Idle,
    /// The host shut the controller down and did not leave.
    Shutdown,
    /// The host reset the controller and neither left nor enabled it again.
    Reset,
    /// The admin queue's connection has ended.
    AdminDisconnected,
    /// The subsystem was removed.
    SubsystemRemoved,
    /// The port was removed.
    PortRemoved,
    /// The host is no longer allowed.
    HostDisallowed,
    /// The host was told of larger transfers, Write Zeroes or Dataset Management than all namespaces take now.
    TransferLimit,
}

/// Something for the transport to do, from [`crate::Target::poll_event`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Complete a command that was [held](crate::Reply::Held) on the admin queue.
    Complete {
        /// Whose admin queue.
        controller: ControllerId,
        /// Command identifier.
        cid: u16,
        /// Status.
        status: Status,
        /// Completion dwords 0 and 1.
        result: u64,
    },
    /// Close the I/O queues' connections: the host has reset or shut down the controller. The
    /// admin queue stays, so that the host can read CSTS.
    DropIoQueues {
        /// Whose I/O queues.
        controller: ControllerId,
    },
    /// Close all connections of the controller; report each as disconnected.
    Drop {
        /// Whose connections.
        controller: ControllerId,
        /// Why.
        reason: DropReason,
    },
    /// Namespaces came or went, or their limits or ANA states changed: read
    /// [`crate::Target::namespaces`] again for every port on which the subsystem is served.
    NamespacesChanged {
        /// The subsystem.
        nqn: Arc<str>,
    },
}
