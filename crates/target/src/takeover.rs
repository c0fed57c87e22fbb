//! A host comes back while requests of its lost connections are still with the namespaces.
//!
//! ```text
//!   Connect (admin queue) --> every core: close what the host has hung up on, unread;
//!                                         is anything of it still in flight?
//!             ^------ again, in 2 ms, while there is ------'
//!   Connect is answered
//! ```
//!
//! Without this a write of the old association could be applied after a later one of the new
//! association to the same block was acknowledged. What it does not cover: a host that gave up on
//! a path that is silently dead; there only the keep alive timer ends the old association.

use crate::control::Control;
use crate::core::Core;
use crate::journal::{End, Subject};
use nvme::fabrics::ConnectData;
use nvme::{Command, Status};
use reactor::Complete;
use std::cell::Cell;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::{Rc, Weak};
use std::time::Duration;
use subsystem::ControllerId;
use zerocopy::FromBytes;

/// Time between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How long a Connect may wait; then the host is told to come back.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// A Connect that waits for the host's earlier requests to end.
pub(crate) struct Takeover {
    control: Rc<Control>,
    /// The connection and command that wait.
    key: u64,
    cid: u16,
    /// The host's other controllers of that subsystem.
    earlier: Vec<ControllerId>,
    deadline: Duration,
    answers: Cell<usize>,
    in_flight: Cell<bool>,
    me: Weak<Takeover>,
}

impl Takeover {
    /// Makes the Connect of connection `key` wait if it has to; `false` if it need not.
    pub(crate) fn begin(control: &Rc<Control>, key: u64, command: &Command, data: &[u8]) -> bool {
        // Queue id in bits 31:16 (NVMe Base 2.1, Figure 546): I/O queues follow their admin queue.
        if command.cdw10.get() >> 16 != 0 {
            return false;
        }
        let Ok((connect, _)) = ConnectData::ref_from_prefix(data) else { return false };
        let name = |field| <[u8]>::split(field, |byte| *byte == 0).next().unwrap_or_default();
        let (host, subsystem) = (name(&connect.hostnqn), name(&connect.subnqn));
        let earlier: Vec<_> = control
            .target
            .borrow()
            .controllers()
            .filter(|it| it.host_nqn.as_bytes() == host && it.subsystem_nqn.as_bytes() == subsystem)
            // Hosts without a name are told apart by their identifiers.
            .filter(|it| !host.is_empty() || it.host_id == connect.hostid)
            .filter(|it| !it.discovery)
            .map(|it| it.controller)
            .collect();
        if earlier.is_empty() {
            return false;
        }
        let takeover = Rc::new_cyclic(|me| Takeover {
            control: control.clone(),
            key,
            cid: command.cid.get(),
            earlier,
            deadline: control.core().now() + WAIT_MAX,
            answers: Cell::new(0),
            in_flight: Cell::new(false),
            me: me.clone(),
        });
        takeover.look();
        true
    }

    fn me(&self) -> Rc<Takeover> {
        self.me.upgrade().expect("in use")
    }

    /// Asks every core.
    fn look(&self) {
        let core = self.control.core();
        self.answers.set(0);
        self.in_flight.set(false);
        let ticket = self.control.park_takeover(self.me());
        for index in 0..core.core_count() {
            let earlier = self.earlier.clone();
            core.post(index, move |core| {
                let in_flight = end_abandoned(core, &earlier);
                core.post_control(move |control| {
                    if let Some(takeover) = control.parked_takeover(ticket) {
                        takeover.answer(ticket, in_flight);
                    }
                });
            });
        }
    }

    fn answer(&self, ticket: u64, in_flight: bool) {
        let core = self.control.core();
        self.in_flight.set(self.in_flight.get() | in_flight);
        self.answers.set(self.answers.get() + 1);
        if self.answers.get() < core.core_count() {
            return;
        }
        self.control.forget_takeover(ticket);
        if !self.in_flight.get() {
            self.finish(None);
        } else if core.now() >= self.deadline {
            core.journal.tell(Subject::Refusals, || {
                let peer = core.connection(self.key).and_then(|it| it.peer());
                let peer = peer.map(tracing::field::display);
                tracing::warn!(peer, "a host's earlier requests do not end: it is to come back");
            });
            self.finish(Some(Status::CONTROLLER_BUSY));
        } else {
            core.reactor.timer(core.reactor.now() + LOOK_AGAIN, self.me(), 0);
        }
    }

    fn finish(&self, refused: Option<Status>) {
        if let Some(connection) = self.control.core().connection(self.key) {
            connection.resume_connect(self.cid, refused);
        }
    }
}

impl Complete for Takeover {
    fn complete(&self, _token: u64, result: i32, _flags: u32) {
        if result < 0 {
            return;
        }
        self.me().look();
    }
}

/// Closes the connections of `controllers` that their host has left, and tells whether it is to be looked again: something of
/// closed ones is still with a namespace, or an admin connection was closed, whose I/O connections are closed behind that.
fn end_abandoned(core: &Core, controllers: &[ControllerId]) -> bool {
    // What is to be closed after a pause is closed before it is looked what closed ones have.
    core.pulse();
    let mut ends = false;
    let abandoned = core.connections(|connection| {
        connection.controller().is_some_and(|it| controllers.contains(&it))
            && hung_up(connection.stream.as_raw_fd())
    });
    for connection in abandoned {
        ends |= connection.is_admin();
        connection.ends(End::Closed);
        connection.close();
    }
    ends | core.is_draining(controllers)
}

/// Whether the peer has closed or reset the connection, whatever is still unread.
pub(crate) fn hung_up(socket: RawFd) -> bool {
    let mut poll = libc::pollfd { fd: socket, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one valid pollfd, and no waiting.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready > 0 && poll.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}
