//! A connection goes to the core of its queue: queue id modulo the number of cores.

use super::{Connection, Inner, IoQueue, Link, Role};
use crate::core::Core;
use crate::journal::End;
use crate::pause;
use nvme_tcp::controller;
use reactor::Stream;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use subsystem::PortId;

/// A connection between two cores.
pub(crate) struct Moving {
    socket: OwnedFd,
    machine: controller::Connection,
    port: PortId,
    link: Link,
    sq_head: u16,
    stash: Vec<u8>,
    /// When the core that it comes from was last seen to run.
    seen: Duration,
}

impl Moving {
    /// Whether its host has given up meanwhile: neither core may have seen that it has not run.
    fn is_out_of_time(&self) -> bool {
        pause::has_given_up(self.seen, self.link.shared.kato_ms.load(Ordering::Relaxed))
    }
}

impl Connection {
    /// The connection that `moving` was, on this core from now on.
    pub(crate) fn arrive(core: &Rc<Core>, key: u64, moving: Moving) -> io::Result<Rc<Connection>> {
        let Moving { socket, machine, port, link, sq_head, stash, seen: _ } = moving;
        let stream = Stream::try_from(socket)?;
        let mut inner = Inner::new(machine, port);
        inner.set_entries(link.entries);
        inner.role = Role::Io(IoQueue { view: core.subsystem(&link.nqn), link, cached: None });
        inner.sq_head = sq_head;
        inner.stash_unseen = !stash.is_empty();
        inner.stash = stash;
        Ok(Connection::new(core.clone(), key, stream, inner))
    }

    pub(super) fn wants_to_move(&self, inner: &Inner) -> bool {
        match &inner.role {
            Role::Io(queue) => {
                usize::from(queue.link.queue_id) % self.core.core_count() != self.core.index
            }
            _ => false,
        }
    }

    /// A connection whose queue belongs to another core goes there, as long as nothing has begun.
    pub(super) fn move_home(&self, inner: &mut Inner) {
        if !self.wants_to_move(inner) || self.closed.get() {
            return;
        }
        let Role::Io(queue) = std::mem::replace(&mut inner.role, Role::Fresh) else { return };
        let home = usize::from(queue.link.queue_id) % self.core.core_count();
        let machine = std::mem::replace(
            &mut inner.machine,
            controller::Connection::new(controller::Config::default()),
        );
        let Ok(socket) = duplicate(&self.stream) else {
            inner.role = Role::Io(queue);
            inner.machine = machine;
            inner.closing = true;
            return;
        };
        let moving = Moving {
            socket,
            machine,
            port: inner.port,
            link: queue.link,
            sq_head: inner.sq_head,
            stash: std::mem::take(&mut inner.stash),
            seen: self.core.seen(),
        };
        let (controller, queue_id) = (moving.link.controller, moving.link.queue_id);
        // This end is dropped without a shutdown: the socket lives on under the duplicate.
        self.closed.set(true);
        if let Some(poller) = self.poller.take() {
            self.core.reactor.detach(poller);
        }
        self.unwatch();
        let sent = self.core.post(home, move |core| {
            // What this core's others have gone through is none of it.
            core.pulse();
            if moving.is_out_of_time() {
                let end = Some(End::Paused);
                core.post_control(move |control| control.queue_closed(controller, queue_id, end));
                return;
            }
            let here = Core::here();
            if let Err(error) = core.add_connection(|key| Connection::arrive(&here, key, moving)) {
                tracing::warn!(%error, "a connection was lost on its way to its core");
                let end = Some(End::Failed(error.kind()));
                core.post_control(move |control| control.queue_closed(controller, queue_id, end));
            }
        });
        if !sent {
            self.core.post_control(move |control| control.queue_closed(controller, queue_id, None));
        }
    }
}

/// Another descriptor of the same socket.
fn duplicate(stream: &Stream) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open as long as the stream is borrowed.
    unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) }.try_clone_to_owned()
}
