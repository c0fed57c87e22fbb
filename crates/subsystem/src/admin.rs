//! Commands of a connected admin queue, and fabrics commands of I/O queues.

use crate::PASSED_BYTES_MAX;
use crate::controller::Controller;
use crate::event::{ControllerId, Event};
use crate::io::{Direction, Transfer};
use crate::not_active;
use crate::target::Target;
use dhchap::Work;
use nvme::lba_status::{self, Question};
use nvme::{Command, Sgl, Status, opcode};
use std::sync::Arc;
use std::time::Duration;

/// The longest answer to Get LBA Status: 4,095 descriptors.
const ANSWER_BYTES_MAX: u32 = 64 << 10;

/// What becomes of an admin command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Complete it.
    Complete {
        /// Status.
        status: Status,
        /// Completion dwords 0 and 1.
        result: u64,
        /// Data for the host, of exactly the length that the command's SGL has.
        data: Option<Vec<u8>>,
    },
    /// It is completed later, by [`Event::Complete`] or not at all (the controller goes).
    Held,
    /// An Abort: try to cancel the command, then complete the Abort with success and result 0 if
    /// it was cancelled (it completed as Command Abort Requested), or 1 if not.
    AbortCommand {
        /// Submission queue of the command to abort: a connected I/O queue.
        queue_id: u16,
        /// Its command identifier.
        cid: u16,
    },
    /// Complete it with success, then close this connection: Disconnect.
    Disconnect,
    /// An Authentication Send that has something computed: have it carried out where nobody waits, give what
    /// comes of it to [`Target::computed`], then complete the command with success.
    Compute(Work),
    /// An Authentication Receive that tells the host that it could not prove who it is: complete it with this, then
    /// close this connection.
    Refuse {
        /// Data for the host, of exactly the length that the command's SGL has.
        data: Vec<u8>,
    },
    /// A Get LBA Status: have the namespace asked where nobody waits, since it may take a while, then complete the command
    /// with `bytes` of data ([`nvme::lba_status::Allocated::write`]).
    Allocation {
        /// The subsystem.
        nqn: Arc<str>,
        /// The namespace.
        nsid: u32,
        /// The blocks: they are within the namespace as it is now.
        slba: u64,
        /// How many, at least one.
        blocks: u64,
        /// Exactly the length that the command's SGL has.
        bytes: u32,
        /// So much of them the list may have.
        list_bytes: u32,
    },
    /// A vendor specific command for what is behind a namespace, which passes such commands: have
    /// the namespace carry it out (see [`passed_data`]), then complete it with what comes back.
    Pass {
        /// The subsystem.
        nqn: Arc<str>,
        /// The namespace.
        nsid: u32,
    },
}

/// Counters of the data path, for the SMART log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStatistics {
    /// Read and Compare commands.
    pub reads: u64,
    /// Write commands; not Write Zeroes, nor Copies.
    pub writes: u64,
    /// Bytes that the former moved.
    pub bytes_read: u64,
    /// Bytes that the latter moved.
    pub bytes_written: u64,
    /// Commands that failed with a media error (status code type 2h).
    pub media_errors: u64,
}

/// Result and data of a successful command.
pub(crate) struct Answer {
    pub result: u64,
    pub data: Option<Vec<u8>>,
}

impl Answer {
    pub fn result(result: u64) -> Answer {
        Answer { result, data: None }
    }

    pub fn data(data: Vec<u8>) -> Answer {
        Answer { result: 0, data: Some(data) }
    }
}

impl From<Answer> for Reply {
    fn from(Answer { result, data }: Answer) -> Reply {
        Reply::Complete { status: Status::SUCCESS, result, data }
    }
}

impl From<Status> for Reply {
    fn from(status: Status) -> Reply {
        Reply::Complete { status, result: 0, data: None }
    }
}

impl Target {
    /// Carries out a command of an admin queue; `data` is what the host sent with it.
    ///
    /// `io_statistics` is asked only for the SMART log: for a namespace, or for `None` the sum
    /// over the controller's subsystem.
    pub fn admin(
        &mut self,
        controller: ControllerId,
        command: &Command,
        data: &[u8],
        now: Duration,
        io_statistics: &dyn Fn(Option<u32>) -> IoStatistics,
    ) -> Reply {
        let fabrics = command.opcode == opcode::admin::FABRICS;
        // A controller that was told to go still says why: CSTS can be read.
        let reads_property = fabrics && command.fctype() == opcode::fabrics::PROPERTY_GET;
        let refused = |found: &Controller| found.dropped && !reads_property;
        if self.controllers.get(&controller).is_none_or(refused) {
            return Status::COMMAND_SEQUENCE_ERROR.dnr().into();
        }
        if !self.is_proven(controller, 0) && !is_authentication(command) {
            return Status::AUTHENTICATION_REQUIRED.dnr().into();
        }
        if !is_authentication(command) {
            self.activity(controller, now);
        }
        let outcome = self.dispatch(controller, command, data, now, io_statistics);
        let reply = outcome.unwrap_or_else(Reply::from);
        let connect = fabrics && command.fctype() == opcode::fabrics::CONNECT;
        if let Reply::Complete { status, .. } = reply
            && !status.is_success()
            && !connect
        {
            self.note_error(controller, 0, command, status);
        }
        reply
    }

    /// Carries out a fabrics command (opcode 7Fh) of the connected I/O queue `queue_id`; `data` is what the host sent with it.
    pub fn fabrics_on_io_queue(
        &mut self,
        controller: ControllerId,
        queue_id: u16,
        command: &Command,
        data: &[u8],
        now: Duration,
    ) -> Reply {
        if is_authentication(command) {
            let reply = self.authenticate(controller, queue_id, command, data, now);
            return reply.unwrap_or_else(Reply::from);
        }
        if !self.is_proven(controller, queue_id) {
            return Status::AUTHENTICATION_REQUIRED.dnr().into();
        }
        self.activity(controller, now);
        // Connect here is a second one for this queue; properties belong to the admin queue.
        match command.fctype() {
            opcode::fabrics::DISCONNECT if command.cdw10.get() & 0xffff == 0 => Reply::Disconnect,
            opcode::fabrics::DISCONNECT => Status::INCOMPATIBLE_FORMAT.dnr().into(),
            opcode::fabrics::CONNECT => Status::COMMAND_SEQUENCE_ERROR.dnr().into(),
            opcode::fabrics::PROPERTY_GET | opcode::fabrics::PROPERTY_SET => {
                Status::INVALID_QUEUE_TYPE.dnr().into()
            }
            _ => Status::INVALID_OPCODE.dnr().into(),
        }
    }

    /// Enters a failed command into the controller's error log; for I/O queues the data path
    /// decides which failures are worth it.
    pub fn note_error(
        &mut self,
        controller: ControllerId,
        queue_id: u16,
        command: &Command,
        status: Status,
    ) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.errors.note(queue_id, command, status);
        }
    }

    fn dispatch(
        &mut self,
        id: ControllerId,
        command: &Command,
        data: &[u8],
        now: Duration,
        io_statistics: &dyn Fn(Option<u32>) -> IoStatistics,
    ) -> Result<Reply, Status> {
        // No admin command is fused.
        if command.flags & 3 != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        // Fabrics commands use SGLs whatever their PSDT says (Figure 95).
        if command.opcode == opcode::admin::FABRICS {
            return self.fabrics_on_admin_queue(id, command, data, now);
        }
        if command.transfers_data() && !command.uses_sgl() {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let controller = &self.controllers[&id];
        if !controller.is_enabled() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        let discovery = controller.discovery;
        match command.opcode {
            opcode::admin::IDENTIFY => self.identify(id, command).map(Reply::from),
            opcode::admin::GET_LOG_PAGE => {
                self.log_page(id, command, now, io_statistics).map(Reply::from)
            }
            opcode::admin::SET_FEATURES => {
                self.set_features(id, command, data, now).map(Reply::from)
            }
            opcode::admin::GET_FEATURES => self.features(id, command).map(Reply::from),
            opcode::admin::ASYNC_EVENT_REQUEST => self.hold_event_request(id, command),
            opcode::admin::KEEP_ALIVE => Ok(Answer::result(0).into()),
            opcode::admin::ABORT if !discovery => self.abort(id, command),
            opcode::admin::GET_LBA_STATUS if !discovery => self.allocation(id, command),
            opcode::admin::VENDOR_FIRST.. if !discovery => self.pass(id, command),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// Whether an admin command of this controller may bring or take the data of a command that is
    /// passed to what is behind a namespace, which is more than others have.
    pub fn passes(&self, controller: ControllerId, command: &Command) -> bool {
        let found = self.controllers.get(&controller).filter(|found| !found.discovery);
        let subsystem = found.and_then(|found| self.subsystems.get(&found.subsystem_nqn));
        let namespace = subsystem.and_then(|it| it.namespaces.get(&command.nsid.get()));
        command.opcode >= opcode::admin::VENDOR_FIRST
            && namespace.is_some_and(|namespace| namespace.limits.passthrough.admin)
    }

    /// Get LBA Status (NVM 1.1, section 4.2.1): of the actions that which tells what is allocated. Blocks that cannot be read any
    /// more are not kept track of.
    fn allocation(&self, id: ControllerId, command: &Command) -> Result<Reply, Status> {
        let question = Question::of(command);
        let controller = &self.controllers[&id];
        let (nqn, nsid) = (Arc::clone(&controller.subsystem_nqn), command.nsid.get());
        let subsystem = &self.subsystems[&nqn];
        let Some(namespace) = subsystem.namespaces.get(&nsid) else {
            return Err(not_active(nsid));
        };
        let tells = namespace.limits.commands.allocation;
        let bytes = command.sgl().length.get();
        if question.action != lba_status::ALLOCATED || !tells || bytes > ANSWER_BYTES_MAX {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if let Some(status) = subsystem.ana.state(namespace.ana_group, controller.port).io_status()
        {
            return Err(status);
        }
        let rest = namespace.limits.blocks.checked_sub(question.slba).filter(|rest| *rest > 0);
        let rest = rest.ok_or(Status::LBA_OUT_OF_RANGE.dnr())?;
        let blocks = question.blocks.map_or(rest, u64::from);
        if blocks > rest {
            return Err(Status::LBA_OUT_OF_RANGE.dnr());
        }
        // MNDW is a maximum: there may be room for less.
        let list_bytes = question.bytes.min(bytes.into()) as u32;
        if (list_bytes as usize) < lba_status::HEADER_BYTES {
            return Err(Status::SGL_LENGTH_INVALID.dnr());
        }
        expect_length(command, bytes.into())?;
        Ok(Reply::Allocation { nqn, nsid, slba: question.slba, blocks, bytes, list_bytes })
    }

    /// A vendor specific command: for the device behind the namespace that it names, if that was
    /// opened to pass such commands.
    fn pass(&mut self, id: ControllerId, command: &Command) -> Result<Reply, Status> {
        if !self.passes(id, command) {
            return Err(Status::INVALID_OPCODE.dnr());
        }
        let controller = &self.controllers[&id];
        let (nqn, nsid) = (Arc::clone(&controller.subsystem_nqn), command.nsid.get());
        let namespace = &self.subsystems[&nqn].namespaces[&nsid];
        let state = self.subsystems[&nqn].ana.state(namespace.ana_group, controller.port);
        if let Some(status) = state.io_status() {
            return Err(status);
        }
        if namespace.limits.read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
        }
        passed_data(command)?;
        Ok(Reply::Pass { nqn, nsid })
    }

    fn fabrics_on_admin_queue(
        &mut self,
        id: ControllerId,
        command: &Command,
        data: &[u8],
        now: Duration,
    ) -> Result<Reply, Status> {
        match command.fctype() {
            _ if is_authentication(command) => self.authenticate(id, 0, command, data, now),
            opcode::fabrics::PROPERTY_GET => self.property_get(id, command).map(Reply::from),
            opcode::fabrics::PROPERTY_SET => self.property_set(id, command, now).map(Reply::from),
            opcode::fabrics::CONNECT => Err(Status::COMMAND_SEQUENCE_ERROR.dnr()),
            // NVMe Base 2.1, section 6.4: only I/O queues can be disconnected.
            opcode::fabrics::DISCONNECT => Err(Status::INVALID_QUEUE_TYPE.dnr()),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    fn hold_event_request(&mut self, id: ControllerId, command: &Command) -> Result<Reply, Status> {
        let Some(controller) = self.controllers.get_mut(&id) else {
            return Err(Status::INTERNAL);
        };
        controller.events.hold(command.cid.get())?;
        self.deliver(id);
        Ok(Reply::Held)
    }

    /// Abort (NVMe Base 2.1, section 5.1.1): SQID in bits 15:0, CID in bits 31:16 of dword 10.
    fn abort(&mut self, id: ControllerId, command: &Command) -> Result<Reply, Status> {
        let (queue_id, cid) = (command.cdw10.get() as u16, (command.cdw10.get() >> 16) as u16);
        let Some(controller) = self.controllers.get_mut(&id) else {
            return Err(Status::INTERNAL);
        };
        if !controller.queues.contains(queue_id) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if queue_id != 0 {
            return Ok(Reply::AbortCommand { queue_id, cid });
        }
        if !controller.events.abort(cid) {
            return Ok(Answer::result(1).into());
        }
        let status = Status::ABORT_REQUESTED;
        self.events.push_back(Event::Complete { controller: id, cid, status, result: 0 });
        Ok(Answer::result(0).into())
    }
}

/// Whether a command is one of those by which hosts prove who they are.
pub fn is_authentication(command: &Command) -> bool {
    let kind = command.fctype();
    command.opcode == opcode::admin::FABRICS
        && matches!(
            kind,
            opcode::fabrics::AUTHENTICATION_SEND | opcode::fabrics::AUTHENTICATION_RECEIVE
        )
}

/// The data of an admin command that is passed: as long as its SGL says, the way that bits 1:0 of its
/// opcode say.
pub fn passed_data(command: &Command) -> Result<Transfer, Status> {
    let bytes = command.sgl().length.get();
    if bytes > PASSED_BYTES_MAX {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let direction = match command.opcode & 3 {
        0 => Direction::None,
        _ if bytes == 0 => Direction::None,
        1 => Direction::ToController,
        2 if command.sgl().identifier != Sgl::TRANSPORT => {
            return Err(Status::SGL_TYPE_INVALID.dnr());
        }
        2 => Direction::ToHost,
        _ => return Err(Status::INVALID_FIELD.dnr()),
    };
    Ok(Transfer { direction, bytes: if direction == Direction::None { 0 } else { bytes } })
}

/// Checks that a command's SGL asks for exactly `bytes` of data, in the capsule only where the host sends it.
pub(crate) fn expect_length(command: &Command, bytes: u64) -> Result<(), Status> {
    let sgl = command.sgl();
    let fabrics = command.opcode == opcode::admin::FABRICS;
    let kind = if fabrics { command.fctype() } else { command.opcode };
    match sgl.identifier {
        Sgl::TRANSPORT => {}
        Sgl::IN_CAPSULE if kind & 3 == 1 => {}
        _ => return Err(Status::SGL_TYPE_INVALID.dnr()),
    }
    if u64::from(sgl.length.get()) != bytes {
        return Err(Status::SGL_LENGTH_INVALID.dnr());
    }
    Ok(())
}
