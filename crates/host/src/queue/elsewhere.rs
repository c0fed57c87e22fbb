//! What goes another way: a Flush of a core that has no connection to the controller, by another core's; and what was
//! not sent when the path becomes inaccessible.
//!
//! A controller that grants fewer queues than there are cores has some without one, and what it acknowledged to the
//! others is to be flushed all the same. Where this core's connection is only late, it is worth waiting for: the
//! Flush is then refused like any command, and multipath tries again.

use super::{Inner, IoQueue};
use crate::flush::{Answer, flush_on};
use crate::shared::Counters;
use namespace::{Access, Request};
use nvme::Status;
use nvme::opcode::io as opcode;

/// Whether another core may do it, where the path stands so.
#[inline]
pub(super) fn may_go(request: &Request, access: Access) -> bool {
    request.command.opcode == opcode::FLUSH && access.is_usable()
}

impl IoQueue {
    #[cold]
    pub(super) fn flush_elsewhere(&self, request: Box<Request>) {
        Counters::add(&self.counters.submitted, 1);
        Counters::add(&self.counters.in_flight, 1);
        let (number, handle) = self.await_answer();
        let answer = Answer::new(move |status| {
            handle.tell(move |queue| queue.admin_answered(number, status, 0, &[]));
        });
        self.admins.waiting.borrow_mut().insert(number, request);
        // Where there is none, the answer is dropped, and so given.
        self.tell_control(move |driver| {
            if let Some(other) = driver.queue_to_share() {
                other.tell(move |queue| flush_on(queue, answer));
            }
        });
    }

    /// Gives back what was not sent: the id that the namespace had may be another's by now.
    pub(super) fn give_back(&self) {
        let mut inner = self.inner.borrow_mut();
        let Inner { connection, waiting, .. } = &mut *inner;
        let mut done = self.done.borrow_mut();
        if let Some(connection) = connection {
            connection.withdraw(&mut done);
        }
        for mut request in waiting.drain(..) {
            (request.status, request.result) = (Status::HOST_ABORTED, 0);
            done.push(request);
        }
        if !done.is_empty() {
            self.defer();
        }
    }
}
