//! Commands that the control core answers: Connect, and everything on an admin queue.

use crate::authentication::Place;
use crate::connection::{Connection, Inner, IoQueue, Link, Role};
use crate::control::Digests;
use crate::exchange::{Kept, Stage};
use crate::journal::End;
use crate::takeover::Takeover;
use namespace::output::Payload;
use nvme::fabrics::ConnectData;
use nvme::{Command, Sgl, Status, opcode};
use subsystem::io::{Direction, Placement, Transfer};
use subsystem::{ControllerId, Reply};

/// Most data that an admin command may bring.
const ADMIN_DATA_BYTES_MAX: u32 = 8 * 1024;

impl Connection {
    /// A capsule on an admin queue, on a queue that is not connected yet, or a fabrics command.
    pub(crate) fn admin_capsule(
        &self,
        inner: &mut Inner,
        slot: u32,
        command: Command,
        capsule: &[u8],
    ) {
        if matches!(inner.role, Role::Fresh) {
            let connect = command.opcode == opcode::admin::FABRICS
                && command.fctype() == opcode::fabrics::CONNECT;
            // Nothing may come before Connect (NVMe Base 2.1, section 3.3), nor beside it.
            if !connect || inner.exchanges.others_begun(slot) {
                let status = Status::COMMAND_SEQUENCE_ERROR.dnr();
                self.respond(inner, slot, status, 0, Payload::None);
                return;
            }
            if command.sgl().length.get() as usize != size_of::<ConnectData>() {
                let status = Status::SGL_LENGTH_INVALID.dnr();
                self.respond(inner, slot, status, 0, Payload::None);
                return;
            }
        }
        if let Some(status) = self.not_before_proof(inner, slot, &command) {
            self.respond(inner, slot, status, 0, Payload::None);
            return;
        }
        match self.admin_data(inner, &command, capsule) {
            Ok(0) => self.admin(inner, slot, &command, &[]),
            Ok(bytes) if command.sgl().identifier == Sgl::TRANSPORT => {
                self.keep(inner, slot, command, bytes);
            }
            Ok(bytes) => self.admin(inner, slot, &command, &capsule[..bytes as usize]),
            Err(status) => self.respond(inner, slot, status, 0, Payload::None),
        }
    }

    /// Why a command is refused that comes before its host has proved who it is: only what proves it is taken, one at a time, and
    /// nothing is kept of others.
    fn not_before_proof(&self, inner: &Inner, slot: u32, command: &Command) -> Option<Status> {
        let unproven = match &inner.role {
            Role::Unproven(_) => true,
            Role::Admin(controller) => {
                let control = self.core.control.get()?;
                !control.target.borrow().is_proven(*controller, 0)
            }
            Role::Fresh | Role::Io(_) => false,
        };
        match unproven {
            false => None,
            true if !subsystem::is_authentication(command) => {
                Some(Status::AUTHENTICATION_REQUIRED.dnr())
            }
            true if inner.exchanges.others_begun(slot) => {
                Some(Status::COMMAND_SEQUENCE_ERROR.dnr())
            }
            true => None,
        }
    }

    /// How much data the host sends with the command.
    fn admin_data(&self, inner: &Inner, command: &Command, capsule: &[u8]) -> Result<u32, Status> {
        // "Data Transfer Direction" is in bits 1:0 of the opcode, for fabrics commands of FCTYPE.
        let fabrics = command.opcode == opcode::admin::FABRICS;
        let kind = if fabrics { command.nsid.get() as u8 } else { command.opcode };
        if kind & 3 != 1 {
            return Ok(0);
        }
        let bytes = command.sgl().length.get();
        // Without data its pointer does not matter: there are hosts that leave it all zeroes.
        if bytes == 0 {
            return Ok(0);
        }
        if bytes > ADMIN_DATA_BYTES_MAX && !self.may_pass(inner, command, bytes) {
            return Err(Status::SGL_LENGTH_INVALID.dnr());
        }
        let transfer = Transfer { direction: Direction::ToController, bytes };
        match subsystem::io::locate(command, transfer, capsule.len() as u32)? {
            Placement::InCapsule { offset: 1.., .. } => Err(Status::SGL_OFFSET_INVALID.dnr()),
            _ => Ok(bytes),
        }
    }

    /// An admin or fabrics command is complete with its data.
    pub(crate) fn admin(&self, inner: &mut Inner, slot: u32, command: &Command, data: &[u8]) {
        match &inner.role {
            Role::Fresh => self.connect(inner, slot, command, data),
            Role::Admin(controller) => {
                let controller = *controller;
                self.controller_command(inner, slot, controller, command, data);
            }
            Role::Unproven(link) | Role::Io(IoQueue { link, .. }) => {
                let queue = (link.controller, link.queue_id);
                self.fabrics_on_io_queue(inner, slot, queue, command, data);
            }
        }
    }

    fn connect(&self, inner: &mut Inner, slot: u32, command: &Command, data: &[u8]) {
        let control = self.core.control.get().expect("fresh connections are on the control core");
        if Takeover::begin(control, self.key(), command, data) {
            let kept = Kept { command: *command, data: data.to_vec() };
            inner.exchanges.slot(slot).kept = Some(Box::new(kept));
            return;
        }
        self.connect_now(inner, slot, command, data);
    }

    /// A Connect that had to wait goes on, or is refused.
    pub(crate) fn resume_connect(&self, cid: u16, refused: Option<Status>) {
        {
            let mut inner = self.inner.borrow_mut();
            let inner = &mut *inner;
            let Some(slot) = inner.exchanges.find(cid, Stage::Running) else { return };
            let Some(kept) = inner.exchanges.slot(slot).kept.take() else { return };
            match refused {
                Some(status) => self.respond(inner, slot, status, 0, Payload::None),
                None if matches!(inner.role, Role::Fresh) => {
                    self.connect_now(inner, slot, &kept.command, &kept.data);
                }
                None => {
                    let status = Status::COMMAND_SEQUENCE_ERROR.dnr();
                    self.respond(inner, slot, status, 0, Payload::None);
                }
            }
        }
        self.defer();
    }

    fn connect_now(&self, inner: &mut Inner, slot: u32, command: &Command, data: &[u8]) {
        let control = self.core.control.get().expect("fresh connections are on the control core");
        let port = inner.port;
        let machine = &inner.machine;
        let digests = Digests { header: machine.header_digest(), data: machine.data_digest() };
        let connected = match control.connect(port, command, data, self, digests) {
            Ok(connected) => connected,
            Err((status, result)) => {
                self.respond(inner, slot, status, result, Payload::None);
                return;
            }
        };
        let entries = connected.queue_entries;
        inner.set_entries(entries);
        inner.sq_head = 1 % entries;
        let flow_control = !connected.sq_flow_control_disabled;
        if connected.queue_id == 0 {
            inner.role = Role::Admin(connected.controller);
        } else {
            inner.machine.set_in_capsule_max(subsystem::IN_CAPSULE_BYTES);
            let link = Link {
                controller: connected.controller,
                queue_id: connected.queue_id,
                entries,
                flow_control,
                shared: control.shared(connected.controller),
                nqn: connected.nqn.clone(),
            };
            inner.role = Role::Unproven(link);
            if !connected.authenticate {
                self.becomes_io_queue(inner);
            }
        }
        if connected.authenticate {
            control.await_proof(self.key());
        }
        self.respond(inner, slot, Status::SUCCESS, u64::from(connected.result()), Payload::None);
        control.kick();
    }

    fn controller_command(
        &self,
        inner: &mut Inner,
        slot: u32,
        controller: ControllerId,
        command: &Command,
        data: &[u8],
    ) {
        let control = self.core.control.get().expect("admin queues are on the control core");
        match control.admin(controller, command, data, self) {
            Reply::Complete { status, result, data } => {
                self.respond_with(inner, slot, status, result, data);
            }
            Reply::Compute(work) => {
                inner.exchanges.slot(slot).stage = Stage::Running;
                let place =
                    Place { core: self.core.index, key: self.key(), cid: command.cid.get() };
                control.compute((controller, 0), work, place);
            }
            Reply::Refuse { data } => {
                self.respond_with(inner, slot, Status::SUCCESS, 0, Some(data));
                self.ends(End::Unproven);
                self.hang_up(inner);
            }
            Reply::Allocation { nqn, nsid, slba, blocks, bytes, list_bytes } => {
                let room = (bytes as usize, list_bytes as usize);
                self.ask_allocation(inner, slot, (&nqn, nsid), (slba, blocks), room);
            }
            Reply::Pass { nqn, nsid } => self.pass(inner, slot, (&nqn, nsid), command, data),
            Reply::Held => inner.exchanges.slot(slot).stage = Stage::Running,
            Reply::Disconnect => self.disconnect(inner, slot),
            Reply::AbortCommand { queue_id, cid } => {
                inner.exchanges.slot(slot).stage = Stage::Running;
                self.abort_elsewhere(controller, queue_id, cid, command.cid.get());
            }
        }
        control.kick();
    }

    /// Has the core of queue `queue_id` cancel command `cid`, and completes the Abort `abort_cid`.
    ///
    /// What a namespace has is not cancelled: bit 0 of dword 0 set tells that (NVMe Base 2.1,
    /// section 5.1.1).
    fn abort_elsewhere(&self, controller: ControllerId, queue_id: u16, cid: u16, abort_cid: u16) {
        let (home, key) = (usize::from(queue_id) % self.core.core_count(), self.key());
        self.core.post(home, move |core| {
            let aborted =
                core.queue(controller, queue_id).is_some_and(|connection| connection.abort(cid));
            core.post_control(move |control| {
                if let Some(connection) = control.core().connection(key) {
                    connection.complete_held(abort_cid, Status::SUCCESS, u64::from(!aborted));
                }
            });
        });
    }

    /// Answers with the data that there is for the host.
    pub(crate) fn respond_with(
        &self,
        inner: &mut Inner,
        slot: u32,
        status: Status,
        result: u64,
        data: Option<Vec<u8>>,
    ) {
        let Some(bytes) = data.filter(|_| status.is_success()) else {
            self.respond(inner, slot, status, result, Payload::None);
            return;
        };
        if !self.may_answer(bytes.len()) {
            self.respond(inner, slot, Status::COMMAND_INTERRUPTED, 0, Payload::None);
            return;
        }
        let exchange = inner.exchanges.slot(slot);
        exchange.direction = Direction::ToHost;
        exchange.bytes = bytes.len() as u32;
        self.respond(inner, slot, status, result, Payload::Bytes(bytes));
        self.note_unread(inner.unread_answers(), true);
    }

    /// Fabrics commands on an I/O queue: Disconnect, and those by which hosts prove who they are.
    fn fabrics_on_io_queue(
        &self,
        inner: &mut Inner,
        slot: u32,
        queue: (ControllerId, u16),
        command: &Command,
        data: &[u8],
    ) {
        let place = Place { core: self.core.index, key: self.key(), cid: command.cid.get() };
        let (command, data, peer) = (*command, data.to_vec(), self.peer());
        inner.exchanges.slot(slot).stage = Stage::Running;
        // The control core decides; its answer comes back to this connection.
        self.core.post_control(move |control| {
            match control.fabrics(queue, &command, &data, peer) {
                Reply::Compute(work) => control.compute(queue, work, place),
                reply => {
                    let proven = control.target.borrow().is_proven(queue.0, queue.1);
                    control.post(place.core, move |core| {
                        if let Some(connection) = core.connection(place.key) {
                            connection.complete_fabrics(place.cid, reply, proven);
                        }
                    });
                }
            }
        });
    }

    fn complete_fabrics(&self, cid: u16, reply: Reply, proven: bool) {
        if self.closed.get() {
            return;
        }
        {
            let mut inner = self.inner.borrow_mut();
            let inner = &mut *inner;
            if inner.closing {
                return;
            }
            let Some(slot) = inner.exchanges.find(cid, Stage::Running) else { return };
            match reply {
                Reply::Complete { status, result, data } => {
                    self.respond_with(inner, slot, status, result, data);
                }
                Reply::Refuse { data } => {
                    self.respond_with(inner, slot, Status::SUCCESS, 0, Some(data));
                    self.ends(End::Unproven);
                    self.hang_up(inner);
                }
                Reply::Disconnect => self.disconnect(inner, slot),
                Reply::Held
                | Reply::Pass { .. }
                | Reply::Allocation { .. }
                | Reply::AbortCommand { .. }
                | Reply::Compute(_) => {
                    unreachable!(
                        "I/O queues have no such fabrics commands, or they were dealt with"
                    )
                }
            }
            // It goes to another core only when nothing has begun: until then it takes no I/O.
            if proven && !inner.exchanges.others_begun(slot) {
                self.becomes_io_queue(inner);
            }
        }
        self.defer();
    }

    /// The host of an I/O queue has proved who it is, or need not.
    fn becomes_io_queue(&self, inner: &mut Inner) {
        match std::mem::replace(&mut inner.role, Role::Fresh) {
            Role::Unproven(link) => {
                let view = self.core.subsystem(&link.nqn);
                inner.role = Role::Io(IoQueue { link, view, cached: None });
                if let Some(control) = self.core.control.get() {
                    control.unproven.passed(self.key());
                }
            }
            role => inner.role = role,
        }
    }
}
