//! Connect: admin queues make controllers, I/O queues join them (NVMe Base 2.1, section 6.3).

use crate::async_event::AsyncEvents;
use crate::config::PortId;
use crate::controller::{ChangedNamespaces, Controller, ErrorLog, KeepAlive, QueueSet};
use crate::event::ControllerId;
use crate::feature::Features;
use crate::nqn::{host_in_field, nqn_in_field};
use crate::target::Target;
use crate::{IO_QUEUES_MAX, QUEUE_ENTRIES_MAX};
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Connect, ConnectData, ConnectResult, Csts};
use nvme::{Command, Status, opcode};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::FromBytes;

/// Where a connection came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The port that accepted it.
    pub port: PortId,
    /// The connection's local address, if known: the discovery log names it for ports that listen
    /// on an unspecified address.
    pub local_address: Option<IpAddr>,
    /// Whose key the connection is encrypted by; `None` of one that is not.
    pub secured: Option<Secured<'a>>,
}

/// The names in the identity of the pre-shared key that a connection is encrypted by (NVMe/TCP Transport 1.1, section 3.6.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secured<'a> {
    /// The host's NQN.
    pub host_nqn: &'a str,
    /// The subsystem's NQN.
    pub subsystem_nqn: &'a str,
}

/// A successful Connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The controller that the queue belongs to.
    pub controller: ControllerId,
    /// Controller id on the wire.
    pub cntlid: u16,
    /// Queue id; 0 is the admin queue.
    pub queue_id: u16,
    /// Entries of the submission and the completion queue, 2 to [`QUEUE_ENTRIES_MAX`].
    pub queue_entries: u16,
    /// The host does without SQ flow control: SQHD of completions is FFFFh.
    pub sq_flow_control_disabled: bool,
    /// NQN of the subsystem.
    pub nqn: Arc<str>,
    /// NQN of the host.
    pub host_nqn: Arc<str>,
    /// Whether it is a discovery controller: no I/O queues, no namespaces.
    pub discovery: bool,
    /// The queue takes no command but Authentication Send and Receive before its host has proved who it is.
    pub authenticate: bool,
}

impl Connected {
    /// The response's dword 0.
    pub fn result(&self) -> u32 {
        u32::from(self.cntlid) | if self.authenticate { ConnectResult::AUTHENTICATE } else { 0 }
    }
}

/// A refused Connect: the status, and the response's dword 0, which names the culprit
/// (IPO in bits 15:0, IATTR in bit 16; NVMe Base 2.1, Figure 548).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Status.
    pub status: Status,
    /// Completion dwords 0 and 1.
    pub result: u64,
    /// What it is put down to, for people: statuses do not tell all of these apart.
    pub reason: Refusal,
}

/// Why a Connect is refused, as far as somebody may want to mend it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such subsystem.
    UnknownSubsystem,
    /// The host is not on the subsystem's list.
    HostNotAllowed,
    /// The host has a key for TLS, and comes without it.
    NotSecured,
    /// The connection is encrypted by the key of another host, or for another subsystem.
    OtherIdentity,
    /// All controller ids are in use.
    NoControllerId,
    /// What the host has sent cannot be, or not now.
    Invalid,
}

/// The culprit is in the data, not in the command.
const IN_DATA: u64 = 1 << 16;

/// Byte offset of FUSE in the command.
const FLAGS_OFFSET: u16 = 1;

fn invalid_in_command(offset: u16) -> Refused {
    Refused { result: offset.into(), ..refused(Status::CONNECT_INVALID_PARAMETERS) }
}

fn invalid_in_data(offset: usize) -> Refused {
    let result = IN_DATA | offset as u64;
    Refused { result, ..refused(Status::CONNECT_INVALID_PARAMETERS) }
}

fn refused(status: Status) -> Refused {
    Refused { status: status.dnr(), result: 0, reason: Refusal::Invalid }
}

impl Target {
    /// Carries out the first command of a connection, which must be Connect; `data` is its
    /// [`ConnectData`]. After a refusal the connection may try again. A failed Connect enters no
    /// error log (NVMe Base 2.1, section 6.3).
    pub fn connect(
        &mut self,
        origin: Origin<'_>,
        command: &Command,
        data: &[u8],
        now: Duration,
    ) -> Result<Connected, Refused> {
        if command.opcode != opcode::admin::FABRICS || command.fctype() != opcode::fabrics::CONNECT
        {
            return Err(refused(Status::COMMAND_SEQUENCE_ERROR));
        }
        if command.flags & 3 != 0 {
            return Err(invalid_in_command(FLAGS_OFFSET));
        }
        let connect = Connect::of(command);
        if connect.recfmt != 0 {
            return Err(refused(Status::INCOMPATIBLE_FORMAT));
        }
        let Ok(data) = ConnectData::read_from_bytes(data) else {
            return Err(refused(Status::SGL_LENGTH_INVALID));
        };
        if connect.sqsize_z == 0 || connect.sqsize_z >= QUEUE_ENTRIES_MAX {
            return Err(invalid_in_command(Connect::SQSIZE_OFFSET));
        }
        if !self.ports.contains_key(&origin.port) {
            return Err(refused(Status::CONNECT_INVALID_PARAMETERS));
        }
        if connect.qid == 0 {
            self.connect_admin(origin, connect, &data, now)
        } else {
            self.connect_io(origin, connect, &data, now)
        }
    }

    fn connect_admin(
        &mut self,
        origin: Origin<'_>,
        connect: Connect,
        data: &ConnectData,
        now: Duration,
    ) -> Result<Connected, Refused> {
        let (nqn, discovery) = self.authorize(origin.secured, data)?;
        if data.cntlid.get() != CNTLID_DYNAMIC {
            return Err(invalid_in_data(offset_of!(ConnectData, cntlid)));
        }
        let host_nqn = host_in_field(&data.hostnqn)
            .ok_or(invalid_in_data(offset_of!(ConnectData, hostnqn)))?;
        let (status, reason) = (Status::CONTROLLER_BUSY, Refusal::NoControllerId);
        let busy = Refused { status, result: 0, reason };
        let cntlid = self.allocate_cntlid().ok_or(busy)?;
        let mut queues = QueueSet::default();
        queues.insert(0);
        let mut controller = Controller {
            cntlid,
            discovery,
            subsystem_nqn: nqn,
            host_nqn: host_nqn.into(),
            host_id: data.hostid,
            port: origin.port,
            local_address: origin.local_address,
            cc: Cc(0),
            csts: Csts(0),
            queues,
            authentication: BTreeMap::new(),
            resetting: false,
            keep_alive: KeepAlive::new(connect.kato_ms, now),
            connect_kato_ms: connect.kato_ms,
            linger: None,
            dropped: false,
            transfer_bytes_told: 0,
            write_zeroes_bytes_told: 0,
            discard_told: None,
            events: AsyncEvents::new(Features::events_supported(discovery)),
            features: Features::default(),
            errors: ErrorLog::default(),
            changed: ChangedNamespaces::default(),
        };
        let id = ControllerId(cntlid);
        let subsystem = self.subsystems.get(&controller.subsystem_nqn);
        let known = subsystem.and_then(|it| it.authentication.get(&*controller.host_nqn));
        if let Some(authentication) = known {
            controller.demand(0, authentication);
        }
        let connected = connected(&controller, connect);
        self.controllers.insert(id, controller);
        self.schedule(id);
        Ok(connected)
    }

    fn connect_io(
        &mut self,
        origin: Origin<'_>,
        connect: Connect,
        data: &ConnectData,
        now: Duration,
    ) -> Result<Connected, Refused> {
        let (nqn, discovery) = self.authorize(origin.secured, data)?;
        if discovery {
            return Err(invalid_in_command(Connect::QID_OFFSET));
        }
        let io_queues_max = self.subsystems[&nqn].io_queues_max;
        let id = ControllerId(data.cntlid.get());
        let controller = self.controllers.get_mut(&id).filter(|controller| {
            controller.subsystem_nqn == nqn
                && host_in_field(&data.hostnqn) == Some(&*controller.host_nqn)
                && !controller.dropped
        });
        let Some(controller) = controller else {
            return Err(invalid_in_data(offset_of!(ConnectData, cntlid)));
        };
        // An association is of one port: what is told of ANA states is told of that one.
        if origin.port != controller.port {
            return Err(refused(Status::CONNECT_INVALID_PARAMETERS));
        }
        // Figure 546: on an I/O queue a host identifier of zero is ignored.
        if data.hostid != [0; 16] && controller.host_id != data.hostid {
            return Err(invalid_in_data(offset_of!(ConnectData, hostid)));
        }
        if !controller.is_enabled() {
            return Err(refused(Status::COMMAND_SEQUENCE_ERROR));
        }
        // Figure 545: a queue that already exists.
        if controller.queues.contains(connect.qid) {
            return Err(refused(Status::INVALID_QUEUE_IDENTIFIER));
        }
        if connect.qid > io_queues_max.min(IO_QUEUES_MAX) {
            return Err(invalid_in_command(Connect::QID_OFFSET));
        }
        controller.queues.insert(connect.qid);
        if let Some(wanted) = self.subsystems[&nqn].authentication.get(&*controller.host_nqn) {
            controller.demand(connect.qid, wanted);
        } else {
            controller.keep_alive.heard(now);
        }
        Ok(connected(controller, connect))
    }

    /// The subsystem that Connect data names, and whether it is that of discovery, if the host may.
    fn authorize(
        &self,
        secured: Option<Secured<'_>>,
        data: &ConnectData,
    ) -> Result<(Arc<str>, bool), Refused> {
        let bad_subnqn = invalid_in_data(offset_of!(ConnectData, subnqn));
        let bad_hostnqn = invalid_in_data(offset_of!(ConnectData, hostnqn));
        let nqn = nqn_in_field(&data.subnqn).ok_or(bad_subnqn)?;
        let host_nqn = host_in_field(&data.hostnqn).ok_or(bad_hostnqn)?;
        // Who has proved to be one host speaks for no other.
        let named = Secured { host_nqn, subsystem_nqn: nqn };
        if secured.is_some_and(|secured| secured != named) {
            let status = Status::CONNECT_INVALID_HOST.dnr();
            return Err(Refused { status, reason: Refusal::OtherIdentity, ..bad_hostnqn });
        }
        if *nqn == *self.discovery_nqn {
            return Ok((Arc::clone(&self.discovery_nqn), true));
        }
        let unknown = Refused { reason: Refusal::UnknownSubsystem, ..bad_subnqn };
        let subsystem = self.subsystems.get(nqn).ok_or(unknown)?;
        if !subsystem.allows(host_nqn) {
            let status = Status::CONNECT_INVALID_HOST.dnr();
            let reason = Refusal::HostNotAllowed;
            return Err(Refused { status, reason, ..bad_hostnqn });
        }
        if secured.is_none() && subsystem.secured_hosts.contains(host_nqn) {
            let status = Status::CONNECT_INVALID_HOST.dnr();
            return Err(Refused { status, reason: Refusal::NotSecured, ..bad_hostnqn });
        }
        Ok((Arc::clone(&subsystem.nqn), false))
    }

    /// The next free controller id, going round so that an id rests as long as possible.
    fn allocate_cntlid(&mut self) -> Option<u16> {
        let (first, last) = (*self.cntlids.start(), *self.cntlids.end());
        let after = self.cntlid_next.clamp(first, last.max(first));
        let free = (after..=last)
            .chain(first..after)
            .find(|&cntlid| !self.controllers.contains_key(&ControllerId(cntlid)))?;
        self.cntlid_next = if free == last { first } else { free + 1 };
        Some(free)
    }
}

fn connected(controller: &Controller, connect: Connect) -> Connected {
    Connected {
        controller: ControllerId(controller.cntlid),
        cntlid: controller.cntlid,
        queue_id: connect.qid,
        queue_entries: connect.sqsize_z + 1,
        sq_flow_control_disabled: connect.cattr & Connect::NO_FLOW_CONTROL != 0,
        nqn: Arc::clone(&controller.subsystem_nqn),
        host_nqn: Arc::clone(&controller.host_nqn),
        discovery: controller.discovery,
        authenticate: !controller.is_proven(connect.qid),
    }
}
