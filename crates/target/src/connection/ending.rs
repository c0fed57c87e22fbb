//! How a connection comes to its end.
//!
//! ```text
//!   fault of the host, Disconnect --leave--> nothing more is begun --all is back--> the last word --sent--> close
//!   closed by the host, dropped --------------------------------------------------------------------------> close
//! ```
//!
//! A host takes the last word, and the end, as leave to send what it has no answer to by another way: nothing of
//! this side may be carried out after either.

use super::{Connection, Inner, Role};
use crate::core::Lingering;
use crate::exchange::Stage;
use crate::journal::End;
use crate::takeover::hung_up;
use crate::view::NamespaceView;
use namespace::output::Payload;
use nvme::Status;
use nvme_tcp::Terminate;
use std::os::fd::AsRawFd;
use std::rc::Rc;

/// What a peer is told last.
pub(super) enum Parting {
    /// What it did wrong.
    Fault(Vec<u8>),
    /// The Disconnect in that slot has succeeded.
    Disconnected(u32),
}

impl Connection {
    /// Tells the peer what it did wrong; the connection closes once that is sent.
    pub(super) fn terminate(&self, inner: &mut Inner, fault: &Terminate) {
        self.blame(End::Protocol, fault);
        self.leave(inner, Some(Parting::Fault(fault.pdu().to_vec())));
    }

    /// Answers the Disconnect in `slot`, and closes once that is sent.
    pub(crate) fn disconnect(&self, inner: &mut Inner, slot: u32) {
        inner.exchanges.slot(slot).stage = Stage::Running;
        self.leave(inner, Some(Parting::Disconnected(slot)));
    }

    /// Closes without a word, once what is queued was sent.
    pub(crate) fn hang_up(&self, inner: &mut Inner) {
        self.leave(inner, None);
    }

    /// Whether the host has closed the connection, also if nothing is read of it now. What waits is
    /// not begun then: the host may have sent it by another way, and newer data since.
    ///
    /// The end of a stream is not seen while a full socket keeps bytes before it away; a reset is. Linux resets,
    /// and our own host waits until its bytes have arrived or resets, before it sends commands again.
    #[cold]
    pub(crate) fn is_abandoned(&self) -> bool {
        hung_up(self.stream.as_raw_fd())
    }

    /// Begins nothing more, and lets go of what has not begun.
    fn leave(&self, inner: &mut Inner, parting: Option<Parting>) {
        inner.closing = true;
        inner.parting = parting;
        inner.waiting.clear();
        self.leave_line(inner);
        inner.fused = None;
        while let Some(slot) = inner.exchanges.next_unstarted() {
            let exchange = inner.exchanges.slot(slot);
            exchange.view = None;
            if let Some(request) = exchange.request.take() {
                self.core.recycle(request);
            }
            inner.exchanges.end(slot);
        }
        // Its host will send it again.
        inner.exchanges.slots_mut().for_each(|slot| slot.stop_copy());
    }

    /// Says the last word, if there is one and nothing runs any more. Returns whether it did.
    pub(super) fn part(&self, inner: &mut Inner) -> bool {
        if self.running.get() != 0 {
            return false;
        }
        match &inner.parting {
            Some(Parting::Fault(pdu)) => {
                let pdu = pdu.clone();
                self.send(inner, &pdu);
            }
            Some(Parting::Disconnected(slot)) => {
                let slot = *slot;
                self.respond(inner, slot, Status::SUCCESS, 0, Payload::None);
            }
            None => return false,
        }
        inner.parting = None;
        true
    }

    /// Whether the peer is told nothing more.
    #[inline]
    pub(crate) fn is_silent(&self, inner: &Inner) -> bool {
        inner.closing && inner.parting.is_none()
    }

    /// Ends the command in `slot` without an answer.
    #[cold]
    pub(crate) fn end_silently(&self, inner: &mut Inner, slot: u32) {
        inner.exchanges.slot(slot).view = None;
        inner.exchanges.end(slot);
    }

    /// Closes the connection. What namespaces still hold comes back later and is dropped.
    pub(crate) fn close(&self) {
        if self.closed.replace(true) {
            return;
        }
        if let Some(poller) = self.poller.take() {
            self.core.reactor.detach(poller);
        }
        self.unwatch();
        if let Some(timer) = self.close_timer.take() {
            self.core.reactor.cancel_timer(timer);
        }
        // The peer learns of it once nothing of it is with a namespace: a host that sees the end may
        // send a lost write through another target, and none of ours may follow that.
        if self.running.get() == 0 {
            let _ = self.stream.shutdown();
        }
        if !self.in_turn.get() {
            self.tear_down();
        }
    }

    pub(super) fn unwatch(&self) {
        for watch in &self.watches {
            if let Some(watch) = watch.take() {
                self.core.reactor.unwatch(watch);
            }
        }
    }

    pub(super) fn tear_down(&self) {
        let mut lingering: Vec<Rc<NamespaceView>> = Vec::new();
        let role = {
            let mut inner = self.inner.borrow_mut();
            let inner = &mut *inner;
            let mut spare = self.core.spare.borrow_mut();
            if let Some(mut output) = inner.output.take() {
                output.discard(&mut spare);
                spare.put(output);
            }
            self.note_unread(0, false);
            inner.waiting.clear();
            self.leave_line(inner);
            inner.fused = None;
            for slot in inner.exchanges.slots_mut() {
                if let Some(request) = slot.request.take() {
                    self.core.recycle(request);
                }
                slot.kept = None;
                // Its host will send it again, and may have written since by then.
                slot.stop_copy();
                if let Some(view) = slot.view.take().filter(|_| slot.stage == Stage::Running)
                    && !lingering.iter().any(|it| Rc::ptr_eq(it, &view))
                {
                    lingering.push(view);
                }
            }
            std::mem::replace(&mut inner.role, Role::Fresh)
        };
        for (_, request) in self.done.take() {
            self.core.recycle(request);
        }
        let queue = match role {
            Role::Fresh => None,
            Role::Admin(controller) => Some((controller, 0)),
            Role::Unproven(link) => Some((link.controller, link.queue_id)),
            Role::Io(queue) => Some((queue.link.controller, queue.link.queue_id)),
        };
        self.to_report.set(queue);
        self.core.remove_connection(self.key);
        if self.running.get() == 0 {
            self.report();
            return;
        }
        let lingering = Lingering { connection: self.me(), views: lingering };
        self.core.lingering.borrow_mut().insert(self.key, lingering);
        if let Some((controller, _)) = queue {
            self.core.drain_begins(controller);
        }
    }

    /// Requests that are with namespaces.
    pub(crate) fn running_count(&self) -> u32 {
        self.running.get()
    }

    /// A request of a closed connection came back.
    #[cold]
    pub(super) fn drained(&self) {
        if self.running.get() != 0 {
            return;
        }
        let _ = self.stream.shutdown();
        // Not from within the queue's call.
        self.defer();
        if let Some((controller, _)) = self.to_report.get() {
            self.core.drain_ends(controller);
            self.report();
        }
    }

    /// Tells the control core that the queue is gone, once nothing of it is with a namespace: no
    /// late write of it may follow what the same host does next.
    fn report(&self) {
        if let Some((controller, queue_id)) = self.to_report.take() {
            let end = self.end.get();
            self.core.post_control(move |control| control.queue_closed(controller, queue_id, end));
        }
    }
}
