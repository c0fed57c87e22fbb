//! The host's side of the tests.

use crate::{
    Connected, ControllerId, Event, IoStatistics, NamespaceConfig, Origin, PortConfig, PortId,
    Refused, Reply, SubsystemConfig, Target, TargetConfig,
};
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Connect, ConnectData, Property, PropertyAccess};
use nvme::limits::{Commands, CopyLimits, DiscardLimits, Passthrough};
use nvme::log::{GetLogPage, Lid};
use nvme::{Command, Limits, Sgl, Status, opcode};
use std::time::Duration;
use zerocopy::{FromZeros, IntoBytes};

pub const NQN: &str = "nqn.2026-11.test.nvlane:one";
pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001";
pub const OTHER_HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000002";
pub const ENABLE: u32 = Cc::ENTRY_SIZES | Cc::EN;
pub const NOW: Duration = Duration::from_secs(1000);

pub const LIMITS: Limits = Limits {
    block_shift: 9,
    blocks: 1 << 21,
    transfer_bytes_max: 1 << 20,
    write_zeroes_bytes_max: u32::MAX,
    discard: DiscardLimits::UNLIMITED,
    optimal_write_bytes: 4096,
    read_only: false,
    volatile_write_cache: true,
    commands: Commands {
        write_zeroes: true,
        deallocate: true,
        write_uncorrectable: false,
        compare: true,
        compare_and_write: true,
        verify: true,
        checksum: true,
        allocation: true,
    },
    copy: CopyLimits { ranges_max: 128, range_blocks_max: 65_535, blocks_max: 1 << 18 },
    metadata_bytes: 0,
    passthrough: Passthrough::NONE,
    lends_reads: false,
    immediate: false,
};

pub fn subsystem(nqn: &str) -> SubsystemConfig {
    SubsystemConfig {
        nqn: nqn.into(),
        serial: "S1".into(),
        model: "nvlane".into(),
        allow_any_host: true,
        hosts: Vec::new(),
        io_queues_max: 8,
        fused: true,
    }
}

/// A namespace whose identifiers follow from `number`.
pub fn namespace(number: u32) -> NamespaceConfig {
    let mut uuid = [0x11; 16];
    uuid[..4].copy_from_slice(&number.to_be_bytes());
    let mut nguid = uuid;
    nguid[15] = 0x22;
    NamespaceConfig { nsid: None, uuid, nguid, ana_group: 1, limits: LIMITS }
}

/// A target with one port, one subsystem, and one namespace.
pub fn target() -> (Target, PortId) {
    let mut target = Target::new(TargetConfig::default()).unwrap();
    let traddr = "192.0.2.1".parse().unwrap();
    let port = target.add_port(PortConfig { traddr, trsvcid: 4420, is_secured: false }).unwrap();
    target.add_subsystem(subsystem(NQN)).unwrap();
    assert_eq!(target.add_namespace(NQN, namespace(1)), Ok(1));
    drain(&mut target);
    (target, port)
}

pub fn drain(target: &mut Target) -> Vec<Event> {
    std::iter::from_fn(|| target.poll_event()).collect()
}

/// Whom and how to connect.
#[derive(Clone, Copy)]
pub struct Attempt<'a> {
    pub nqn: &'a str,
    pub host: &'a str,
    pub host_id: [u8; 16],
    pub cntlid: u16,
    pub connect: Connect,
}

pub const ADMIN: Attempt<'static> = Attempt {
    nqn: NQN,
    host: HOST,
    host_id: [7; 16],
    cntlid: CNTLID_DYNAMIC,
    connect: Connect { recfmt: 0, qid: 0, sqsize_z: 31, cattr: 0, kato_ms: 5000 },
};

impl Attempt<'_> {
    pub fn data(&self) -> ConnectData {
        let mut data = ConnectData::new_zeroed();
        data.hostid = self.host_id;
        data.cntlid = self.cntlid.into();
        data.subnqn[..self.nqn.len()].copy_from_slice(self.nqn.as_bytes());
        data.hostnqn[..self.host.len()].copy_from_slice(self.host.as_bytes());
        data
    }

    pub fn make(&self, target: &mut Target, port: PortId) -> Result<Connected, Refused> {
        let origin = Origin { port, local_address: None, secured: None };
        target.connect(origin, &self.connect.command(), self.data().as_bytes(), NOW)
    }
}

pub fn attempt_io(cntlid: u16, qid: u16) -> Attempt<'static> {
    let connect = Connect { qid, sqsize_z: 127, kato_ms: 0, ..ADMIN.connect };
    Attempt { cntlid, connect, ..ADMIN }
}

/// A host with an enabled controller.
pub struct Host<'a> {
    pub target: &'a mut Target,
    pub id: ControllerId,
    pub now: Duration,
}

impl<'a> Host<'a> {
    pub fn connect(target: &'a mut Target, port: PortId) -> Host<'a> {
        Host::attempt(target, port, ADMIN)
    }

    pub fn attempt(target: &'a mut Target, port: PortId, attempt: Attempt) -> Host<'a> {
        let id = attempt.make(target, port).unwrap().controller;
        let mut host = Host { target, id, now: NOW };
        host.set_cc(ENABLE);
        host
    }

    /// The same controller again, after the target was used otherwise.
    pub fn resume(target: &'a mut Target, id: ControllerId) -> Host<'a> {
        Host { target, id, now: NOW }
    }

    pub fn send(&mut self, command: &Command, data: &[u8]) -> Reply {
        let statistics = |nsid: Option<u32>| IoStatistics {
            reads: 10,
            writes: 20,
            bytes_read: if nsid.is_some() { 512_001 } else { 1_024_000 },
            bytes_written: 1,
            media_errors: 0,
        };
        self.target.admin(self.id, command, data, self.now, &statistics)
    }

    pub fn status(&mut self, command: &Command, data: &[u8]) -> Status {
        match self.send(command, data) {
            Reply::Complete { status, .. } => status,
            other => panic!("{other:?}"),
        }
    }

    pub fn ok(&mut self, command: &Command, data: &[u8]) -> (u64, Vec<u8>) {
        match self.send(command, data) {
            Reply::Complete { status, result, data } if status.is_success() => {
                (result, data.unwrap_or_default())
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn set_cc(&mut self, value: u32) {
        self.ok(&PropertyAccess::write(Property::CC, value), &[]);
    }

    pub fn csts(&mut self) -> u32 {
        self.ok(&PropertyAccess::read(Property::CSTS), &[]).0 as u32
    }

    pub fn identify(&mut self, cns: u8, nsid: u32) -> Vec<u8> {
        self.ok(&identify(cns, nsid), &[]).1
    }

    pub fn log(&mut self, lid: Lid, bytes: u64, offset: u64) -> Vec<u8> {
        self.ok(&get_log(lid, bytes, offset), &[]).1
    }

    /// Sends an Asynchronous Event Request.
    pub fn await_event(&mut self, cid: u16) -> Reply {
        let command = Command { cid: cid.into(), ..admin(opcode::admin::ASYNC_EVENT_REQUEST) };
        self.send(&command, &[])
    }
}

pub fn admin(opcode: u8) -> Command {
    let mut command = Command { opcode, ..Command::default() };
    command.set_sgl(Sgl::transport(0));
    command
}

pub fn identify(cns: u8, nsid: u32) -> Command {
    let mut command = admin(opcode::admin::IDENTIFY);
    command.nsid = nsid.into();
    command.cdw10 = u32::from(cns).into();
    command.set_sgl(Sgl::transport(4096));
    command
}

pub fn log_page(page: GetLogPage) -> Command {
    let mut command = page.command();
    command.nsid = nvme::NSID_ALL.into();
    command.set_sgl(Sgl::transport(page.bytes as u32));
    command
}

pub fn get_log(lid: Lid, bytes: u64, offset: u64) -> Command {
    let retain_event = false;
    log_page(GetLogPage { lid, lsp: 0, retain_event, bytes, offset, index_offset: false, csi: 0 })
}

pub fn set_feature(fid: u8, value: u32) -> Command {
    let cdw10 = u32::from(fid).into();
    Command { cdw10, cdw11: value.into(), ..admin(opcode::admin::SET_FEATURES) }
}

pub fn get_feature(fid: u8, select: u8) -> Command {
    let cdw10 = (u32::from(fid) | u32::from(select) << 8).into();
    Command { cdw10, ..admin(opcode::admin::GET_FEATURES) }
}

/// Completions of held requests among `events`: command identifier and dword 0.
pub fn completions(events: &[Event]) -> Vec<(u16, u32)> {
    events
        .iter()
        .filter_map(|event| match *event {
            Event::Complete { cid, result, .. } => Some((cid, result as u32)),
            _ => None,
        })
        .collect()
}
