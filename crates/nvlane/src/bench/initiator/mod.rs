//! A minimal NVMe/TCP host for measuring: one admin queue, any number of I/O queues, no recovery.
//!
//! It is the host state machine of `nvme-tcp` under the bench's own client loop. Submission queue
//! flow control is turned off in Connect, as Linux does, so that a controller may end a read with
//! the SUCCESS flag of its data instead of a response capsule.

mod lane;
mod load;
mod queue;

pub use load::{Fill, Load, Pattern};
pub use queue::Queue;

use anyhow::{Context, bail, ensure};
use nvme::fabrics::{CNTLID_DYNAMIC, Cc, Connect, ConnectData, Csts, Property, PropertyAccess};
use nvme::identify::{self, Cns};
use nvme::{Command, opcode};
use nvme_tcp::host::Transfer;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Entries of the admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// How long a controller may take to become ready.
const READY_MAX: Duration = Duration::from_secs(10);

/// Which subsystem, and where.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its NQN.
    pub subsystem: String,
}

/// A controller that was connected to and enabled.
pub struct Controller {
    peer: Peer,
    admin: Queue,
    id: u16,
    host: [u8; 16],
    /// I/O queues that the controller has granted.
    pub queues: u16,
}

/// A namespace's size.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Bytes of a logical block.
    pub block_bytes: u64,
    /// Logical blocks.
    pub blocks: u64,
}

impl Controller {
    /// Connects the admin queue, enables the controller and asks for `queues` I/O queues.
    pub fn connect(peer: &Peer, queues: u16) -> anyhow::Result<Controller> {
        let mut host = *b"nvlane bench....";
        host[12..].copy_from_slice(&std::process::id().to_le_bytes());
        let mut admin = Queue::open(peer.address, ADMIN_ENTRIES)?;
        let id = connect(&mut admin, peer, host, CNTLID_DYNAMIC, 0, ADMIN_ENTRIES)?;
        enable(&mut admin)?;

        let identify = identify::<identify::Controller>(&mut admin, Cns::CONTROLLER, 0)?;
        let capsule_data = (u64::from(identify.ioccsz.get()) * 16).saturating_sub(64);
        ensure!(
            capsule_data >= 4096,
            "the controller takes {capsule_data} bytes of data in a capsule; the bench needs 4096"
        );
        let wanted = u32::from(queues.max(1) - 1);
        let granted = admin.execute(
            Command {
                opcode: opcode::admin::SET_FEATURES,
                cdw10: u32::from(nvme::feature::Fid::NUMBER_OF_QUEUES.0).into(),
                cdw11: (wanted | wanted << 16).into(),
                ..Command::default()
            },
            Transfer::None,
            &mut [],
        )?;
        let queues = (granted as u16).min((granted >> 16) as u16).saturating_add(1).min(queues);
        Ok(Controller { peer: peer.clone(), admin, id, host, queues })
    }

    /// Connects I/O queue `qid`, from 1.
    pub fn queue(&self, qid: u16, entries: u16) -> anyhow::Result<Queue> {
        // A queue has at least two entries, and one of them is never used.
        let size = entries.saturating_add(1).max(2);
        let mut queue = Queue::open(self.peer.address, size)?;
        connect(&mut queue, &self.peer, self.host, self.id, qid, size)?;
        Ok(queue)
    }

    /// The size of namespace `nsid`.
    pub fn geometry(&mut self, nsid: u32) -> anyhow::Result<Geometry> {
        let namespace = identify::<identify::Namespace>(&mut self.admin, Cns::NAMESPACE, nsid)?;
        let format = namespace.lbaf[usize::from(namespace.flbas & 0xf)];
        ensure!(format.lbads >= 9, "namespace {nsid} is not active");
        ensure!(format.lbads <= 12, "namespace {nsid} has blocks of more than 4 KiB");
        Ok(Geometry { block_bytes: 1 << format.lbads, blocks: namespace.nsze.get() })
    }
}

/// Sends Connect (NVMe Base 2.1, section 6.3). Returns the controller id.
fn connect(
    queue: &mut Queue,
    peer: &Peer,
    host: [u8; 16],
    controller: u16,
    qid: u16,
    entries: u16,
) -> anyhow::Result<u16> {
    let mut data = ConnectData {
        hostid: host,
        cntlid: controller.into(),
        reserved18: [0; 238],
        subnqn: [0; 256],
        hostnqn: [0; 256],
        reserved768: [0; 256],
    };
    let host_nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid::Uuid::from_bytes(host));
    for (field, nqn) in
        [(&mut data.subnqn, peer.subsystem.as_str()), (&mut data.hostnqn, &host_nqn)]
    {
        ensure!(nqn.len() <= nvme::fabrics::NQN_BYTES_MAX, "the NQN {nqn} is too long");
        field[..nqn.len()].copy_from_slice(nqn.as_bytes());
    }
    let parameters = Connect {
        recfmt: 0,
        qid,
        sqsize_z: entries - 1,
        cattr: Connect::NO_FLOW_CONTROL,
        kato_ms: 0,
    };
    let transfer = Transfer::InCapsule(size_of::<ConnectData>() as u32);
    let result = queue
        .execute(parameters.command(), transfer, data.as_mut_bytes())
        .with_context(|| format!("Connect of queue {qid} to {} failed", peer.subsystem))?;
    Ok(result as u16)
}

/// Sets CC.EN and waits for CSTS.RDY (NVMe Base 2.1, section 3.5.2).
fn enable(admin: &mut Queue) -> anyhow::Result<()> {
    let enabled = Cc::EN | Cc::ENTRY_SIZES;
    admin.execute(PropertyAccess::write(Property::CC, enabled), Transfer::None, &mut [])?;
    let start = Instant::now();
    while start.elapsed() < READY_MAX {
        let read = PropertyAccess::read(Property::CSTS);
        let status = Csts(admin.execute(read, Transfer::None, &mut [])? as u32);
        if status.ready() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    bail!("the controller did not become ready within {} s", READY_MAX.as_secs())
}

fn identify<T: FromBytes>(admin: &mut Queue, cns: Cns, nsid: u32) -> anyhow::Result<Box<T>> {
    let mut data = vec![0; identify::DATA_BYTES];
    let command = Command {
        opcode: opcode::admin::IDENTIFY,
        nsid: nsid.into(),
        cdw10: u32::from(cns.0).into(),
        ..Command::default()
    };
    admin
        .execute(command, Transfer::ToHost(identify::DATA_BYTES as u32), &mut data)
        .with_context(|| format!("Identify {:#04x} of namespace {nsid} failed", cns.0))?;
    let value = T::read_from_bytes(&data);
    Ok(Box::new(value.map_err(|_| anyhow::anyhow!("Identify data has another size"))?))
}
