//! Admin commands that are passed to what is behind a namespace.

use crate::connection::{Connection, Inner, Role};
use crate::exchange::Stage;
use namespace::output::Payload;
use namespace::{Data, Request};
use nvme::{Command, Status};
use std::io;
use std::sync::Arc;
use subsystem::io::{Direction, Transfer};
use subsystem::{PASSED_BYTES_MAX, passed_data};

impl Connection {
    /// Whether `bytes` of data may come with an admin command, because a namespace passes it on.
    pub(crate) fn may_pass(&self, inner: &Inner, command: &Command, bytes: u32) -> bool {
        let (Role::Admin(controller), Some(control)) = (&inner.role, self.core.control.get())
        else {
            return false;
        };
        bytes <= PASSED_BYTES_MAX && control.target.borrow().passes(*controller, command)
    }

    /// Has namespace `nsid` of subsystem `nqn` carry out an admin command, with `data` of the host's.
    #[cold]
    pub(crate) fn pass(
        &self,
        inner: &mut Inner,
        slot: u32,
        (nqn, nsid): (&Arc<str>, u32),
        command: &Command,
        data: &[u8],
    ) {
        match self.passed_request(inner, slot, command, data) {
            Ok(request) => self.pass_request(inner, slot, (nqn, nsid), request),
            Err(status) => self.respond(inner, slot, status, 0, Payload::None),
        }
    }

    /// The command with its data, or with room for what comes.
    fn passed_request(
        &self,
        inner: &mut Inner,
        slot: u32,
        command: &Command,
        data: &[u8],
    ) -> Result<Box<Request>, Status> {
        let Transfer { direction, bytes } = passed_data(command)?;
        let mut request = self.core.request();
        request.command = *command;
        if bytes != 0 {
            let allowed = self.may_take(inner, bytes as usize);
            let buffer =
                allowed.then(|| self.core.reactor.buffers().allocate(bytes as usize)).flatten();
            let Some(mut buffer) = buffer else {
                self.core.recycle(request);
                return Err(Status::COMMAND_INTERRUPTED);
            };
            match direction {
                Direction::ToController => buffer.as_mut_slice().copy_from_slice(data),
                // A device need not fill it.
                _ => buffer.as_mut_slice().fill(0),
            }
            inner.exchanges.give(slot, buffer.capacity());
            request.data = Data::Buffer(buffer);
        }
        let exchange = inner.exchanges.slot(slot);
        (exchange.direction, exchange.bytes) = (direction, bytes);
        Ok(request)
    }

    fn pass_request(
        &self,
        inner: &mut Inner,
        slot: u32,
        (nqn, nsid): (&Arc<str>, u32),
        request: Box<Request>,
    ) {
        let view = self.core.subsystem(nqn).namespace(nsid);
        let opened = view.as_ref().and_then(|view| {
            let failed = |error: &io::Error| self.core.journal.no_queue(&*view.namespace, error);
            view.queue(&self.core, inner.port).inspect_err(failed).ok()
        });
        let queue = match opened {
            Some(queue) => queue,
            None => {
                self.core.recycle(request);
                self.respond(inner, slot, Status::NAMESPACE_NOT_READY, 0, Payload::None);
                return;
            }
        };
        let exchange = inner.exchanges.slot(slot);
        exchange.stage = Stage::Running;
        // Keeps the queue while the command is out.
        exchange.view = view;
        self.start_admin_request(&queue, slot, request);
    }
}
