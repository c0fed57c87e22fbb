//! Admin commands of one core's users: the control thread has the connection for them.
//!
//! A request does not leave its core; the command goes with a copy of its data, and the answer comes
//! back with a number. So does a Flush that another core does ([`super::elsewhere`]).

use super::{Handle, IoQueue};
use crate::passed::Passing;
use crate::shared::Counters;
use namespace::Request;
use namespace::layer::admin_changes_nothing;
use nvme::feature::Fid;
use nvme::{Command, Status, opcode};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

/// How long an admin command may take that does not say itself, as long as Linux's `admin_timeout`.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Requests by number.
#[derive(Default)]
pub(super) struct Admins {
    next: Cell<u64>,
    pub(super) waiting: RefCell<HashMap<u64, Box<Request>>>,
}

impl IoQueue {
    #[cold]
    pub(super) fn submit_admin(&self, mut request: Box<Request>) {
        Counters::add(&self.counters.submitted, 1);
        Counters::add(&self.counters.in_flight, 1);
        match self.passing_data(&mut request) {
            Ok((data, answer_bytes)) => self.pass(request, data, answer_bytes),
            Err(status) => self.admin_ends(request, status, 0),
        }
    }

    /// The data that goes along and the room for what comes, if the command may be passed.
    fn passing_data(&self, request: &mut Request) -> Result<(Vec<u8>, u32), Status> {
        let options = &self.shared.options;
        let command = &request.command;
        if !options.passthrough.admin {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        if is_ours(command) {
            return Err(Status::OPERATION_DENIED.dnr());
        }
        if options.read_only && !admin_changes_nothing(command.opcode) {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
        }
        let len = request.data.len();
        let most = self.shared.subsystem.limits().map_or(0, |limits| limits.transfer_bytes_max);
        if len > most as usize || !request.metadata.is_empty() {
            return Err(Status::INVALID_FIELD.dnr());
        }
        match command.opcode & 3 {
            _ if len == 0 => Ok((Vec::new(), 0)),
            1 => {
                // SAFETY: the request owns so many readable bytes, and nobody writes to them now.
                let data = unsafe { std::slice::from_raw_parts(request.data.as_ptr(), len) };
                Ok((data.to_vec(), 0))
            }
            2 if request.data.as_mut_ptr().is_some() => Ok((Vec::new(), len as u32)),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    fn pass(&self, request: Box<Request>, data: Vec<u8>, answer_bytes: u32) {
        let timeout = match request.timeout_ms {
            0 => TIMEOUT,
            timeout_ms => Duration::from_millis(timeout_ms.into()),
        };
        let (number, handle) = self.await_answer();
        let answer = Box::new(move |status, result, data: Vec<u8>| {
            handle.tell(move |queue| queue.admin_answered(number, status, result, &data));
        });
        let passing = Passing::new(request.command, data, answer_bytes, timeout, answer);
        self.admins.waiting.borrow_mut().insert(number, request);
        self.tell_control(move |driver| driver.pass(passing));
    }

    /// The number under which a request waits for its answer, and where that is to be told.
    pub(super) fn await_answer(&self) -> (u64, Handle) {
        let number = self.admins.next.replace(self.admins.next.get() + 1);
        (number, self.handle.clone())
    }

    pub(super) fn admin_answered(&self, number: u64, status: Status, result: u64, data: &[u8]) {
        let request = self.admins.waiting.borrow_mut().remove(&number);
        let Some(mut request) = request else { return };
        if !data.is_empty()
            && let Some(place) = request.data.as_mut_ptr()
        {
            let len = data.len().min(request.data.len());
            // SAFETY: the request owns so many writable bytes there; `data` is the control thread's.
            unsafe { place.copy_from_nonoverlapping(data.as_ptr(), len) };
        }
        self.admin_ends(request, status, result);
    }

    fn admin_ends(&self, mut request: Box<Request>, status: Status, result: u64) {
        (request.status, request.result) = (status, result);
        self.done.borrow_mut().push(request);
        if !self.in_turn.get() {
            self.defer();
        }
    }
}

/// Commands that would interfere with the association, which is this host's to look after.
fn is_ours(command: &Command) -> bool {
    use opcode::admin;
    match command.opcode {
        admin::FABRICS | admin::KEEP_ALIVE | admin::ASYNC_EVENT_REQUEST | admin::ABORT => true,
        admin::SET_FEATURES => matches!(
            Fid(command.cdw10.get() as u8),
            Fid::KEEP_ALIVE_TIMER
                | Fid::NUMBER_OF_QUEUES
                | Fid::ASYNC_EVENT_CONFIGURATION
                | Fid::HOST_BEHAVIOR
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_associations_own_commands_are_not_passed() {
        let command =
            |opcode: u8, cdw10: u32| Command { opcode, cdw10: cdw10.into(), ..Command::default() };
        for (opcode, cdw10, ours) in [
            (opcode::admin::KEEP_ALIVE, 0, true),
            (opcode::admin::ASYNC_EVENT_REQUEST, 0, true),
            (opcode::admin::FABRICS, 0, true),
            (opcode::admin::ABORT, 0, true),
            (opcode::admin::SET_FEATURES, 0x07, true),
            (opcode::admin::SET_FEATURES, 0x0b, true),
            (opcode::admin::SET_FEATURES, 0x8000_000f, true),
            (opcode::admin::SET_FEATURES, 0x02, false),
            (opcode::admin::GET_FEATURES, 0x0f, false),
            (opcode::admin::IDENTIFY, 1, false),
            (opcode::admin::VENDOR_FIRST, 0, false),
        ] {
            assert_eq!(is_ours(&command(opcode, cdw10)), ours, "{opcode:#x} {cdw10:#x}");
        }
    }
}
