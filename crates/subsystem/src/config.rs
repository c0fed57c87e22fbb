//! What the control plane says about a target, and what it may get wrong.

use nvme::Limits;
use nvme::log::discovery::AddressFamily;
use std::net::IpAddr;
use std::sync::Arc;
use thiserror::Error;

/// Configuration of a [`crate::Target`].
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// First controller id. Two gateways to one volume use disjoint ranges.
    pub cntlid_min: u16,
    /// Last controller id, at most FFEFh.
    pub cntlid_max: u16,
    /// Firmware revision, up to 8 ASCII characters.
    pub firmware: String,
    /// Serial number of the discovery subsystem, up to 20 ASCII characters.
    pub serial: String,
    /// Model of the discovery subsystem, up to 40 ASCII characters.
    pub model: String,
    /// The driver ends connections only when nothing of them is with a namespace any more, and hosts may
    /// rely on it (`nvme::identify::vendor`).
    pub drains: bool,
    /// A number of this start of the process, which no other start has, by which hosts know that nothing was lost
    /// while they were away (`nvme::identify::vendor`); zero: none.
    pub instance: [u8; 16],
    /// Gives bytes that nobody can foresee, for challenges.
    pub random: fn(&mut [u8]),
    /// Command Quiesce Time that is reported, in milliseconds; 0 is not reported.
    pub command_quiesce_time_ms: u16,
}

impl Default for TargetConfig {
    fn default() -> TargetConfig {
        TargetConfig {
            cntlid_min: 1,
            cntlid_max: 0xffef,
            firmware: env!("CARGO_PKG_VERSION").into(),
            serial: "nvlane".into(),
            model: "nvlane".into(),
            drains: true,
            instance: [0; 16],
            random: |bytes| getrandom::fill(bytes).expect("the kernel gives random bytes"),
            command_quiesce_time_ms: 0,
        }
    }
}

/// A new subsystem.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// NQN, unique in the target.
    pub nqn: String,
    /// Serial number, up to 20 ASCII characters.
    pub serial: String,
    /// Model, up to 40 ASCII characters.
    pub model: String,
    /// Whether `hosts` is not asked.
    pub allow_any_host: bool,
    /// NQNs of the hosts that may connect.
    pub hosts: Vec<String>,
    /// I/O queues per controller, 1 to [`crate::IO_QUEUES_MAX`].
    pub io_queues_max: u16,
    /// Fused Compare-and-Write is offered where a namespace can; off for a volume that another
    /// gateway serves as well.
    pub fused: bool,
}

/// How a host has to prove who it is before a queue of a subsystem takes its commands, by DH-HMAC-CHAP.
#[derive(Clone, Debug)]
pub struct Authentication {
    /// The host's keys, by any of which it may prove who it is: one, and while that is replaced the other as well.
    pub host_keys: Arc<[Arc<dhchap::Key>]>,
    /// The key by which the subsystem proves who it is, to hosts that want to know.
    pub controller_key: Option<Arc<dhchap::Key>>,
    /// Hash functions that will do, the preferred one first.
    pub hashes: Vec<dhchap::Hash>,
    /// Groups that will do, the preferred one first.
    pub groups: Vec<dhchap::Group>,
}

/// A new namespace.
#[derive(Clone, Debug)]
pub struct NamespaceConfig {
    /// Namespace id; `None` takes the lowest that is free.
    pub nsid: Option<u32>,
    /// UUID, big-endian as printed; must be the same after a restart.
    pub uuid: [u8; 16],
    /// NGUID, big-endian; all zero: none.
    pub nguid: [u8; 16],
    /// ANA group, 1 to [`crate::ANA_GROUPS_MAX`].
    pub ana_group: u32,
    /// What the volume can do. Deallocated blocks must read as zeroes where `commands.deallocate`
    /// is set: DLFEAT says so to hosts.
    pub limits: Limits,
}

/// Names a port of a target (PORTID of the discovery log).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

/// A new port, as the discovery log tells it.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Transport address (TRADDR). For an unspecified one (`0.0.0.0`, `::`) the discovery log tells
    /// each host the address at which it reached the discovery controller; hosts that did so by the
    /// other address family are not told of the port.
    pub traddr: IpAddr,
    /// Transport service id (TRSVCID): the TCP port.
    pub trsvcid: u16,
    /// Connections are encrypted (TLS 1.3), and no others are taken.
    pub is_secured: bool,
}

impl PortConfig {
    /// Address family of the discovery log.
    pub fn adrfam(&self) -> AddressFamily {
        adrfam(self.traddr)
    }
}

pub(crate) fn adrfam(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::IPV4 } else { AddressFamily::IPV6 }
}

/// A configuration that cannot be.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// The NQN is malformed.
    #[error(
        "{nqn:?} is not an NQN: 1 to 223 bytes without white space, like \
         nqn.2024-01.org.example:name"
    )]
    InvalidNqn {
        /// What was given.
        nqn: String,
    },
    /// The NQN is in use, or that of discovery.
    #[error("the subsystem {nqn} exists already")]
    SubsystemExists {
        /// Its NQN.
        nqn: String,
    },
    /// No such subsystem.
    #[error("there is no subsystem {nqn}")]
    UnknownSubsystem {
        /// What was given.
        nqn: String,
    },
    /// The host is not on the list.
    #[error("the host {host} is not on the list of {nqn}")]
    UnknownHost {
        /// The subsystem.
        nqn: String,
        /// The host's NQN.
        host: String,
    },
    /// A text field does not fit Identify data.
    #[error("{field} {value:?} must be 1 to {bytes_max} printable ASCII characters")]
    InvalidText {
        /// Which field.
        field: &'static str,
        /// What was given.
        value: String,
        /// Bytes that fit.
        bytes_max: usize,
    },
    /// The number of I/O queues is out of range.
    #[error("{queues} I/O queues: must be 1 to {}", crate::IO_QUEUES_MAX)]
    InvalidQueues {
        /// What was given.
        queues: u16,
    },
    /// The namespace id is out of range.
    #[error("namespace id {nsid}: must be 1 to {}", crate::NAMESPACES_MAX)]
    InvalidNamespaceId {
        /// What was given.
        nsid: u32,
    },
    /// The namespace id is in use.
    #[error("namespace {nsid} of {nqn} exists already")]
    NamespaceExists {
        /// The subsystem.
        nqn: String,
        /// The namespace id.
        nsid: u32,
    },
    /// Another namespace of the subsystem has this UUID or NGUID: a host would take both for one.
    #[error("namespace {nsid} of {nqn} has the same UUID or NGUID")]
    DuplicateIdentifier {
        /// The subsystem.
        nqn: String,
        /// The namespace that has it.
        nsid: u32,
    },
    /// No such namespace.
    #[error("there is no namespace {nsid} in {nqn}")]
    UnknownNamespace {
        /// The subsystem.
        nqn: String,
        /// What was given.
        nsid: u32,
    },
    /// All namespace ids are taken.
    #[error("{nqn} has {} namespaces already", crate::NAMESPACES_MAX)]
    TooManyNamespaces {
        /// The subsystem.
        nqn: String,
    },
    /// The namespace has neither UUID nor NGUID.
    #[error("a namespace needs a UUID or an NGUID that is not zero")]
    NoIdentifier,
    /// The block size is not offered or there is no block.
    #[error("a namespace of {blocks} blocks of 2^{block_shift} bytes cannot be served")]
    InvalidLimits {
        /// Block size as a power of two.
        block_shift: u8,
        /// Capacity in blocks.
        blocks: u64,
    },
    /// The volume takes too little in one command for MDTS to tell.
    #[error("transfers of {bytes} bytes: must be {} or more", crate::TRANSFER_BYTES_MIN)]
    TransferTooSmall {
        /// Largest transfer of the volume in bytes.
        bytes: u32,
    },
    /// The block size of a namespace changed while it is served.
    #[error("the block size of namespace {nsid} cannot change while it is served")]
    BlockSizeChanged {
        /// The namespace.
        nsid: u32,
    },
    /// The ANA group is out of range or unknown.
    #[error("ANA group {group}: must be 1 to {}", crate::ANA_GROUPS_MAX)]
    InvalidGroup {
        /// What was given.
        group: u32,
    },
    /// The ANA state is none of the specification's.
    #[error("{state:#04x} is no ANA state")]
    InvalidAnaState {
        /// What was given.
        state: u8,
    },
    /// No such port.
    #[error("there is no port {port}")]
    UnknownPort {
        /// What was given.
        port: u16,
    },
    /// The address is served already.
    #[error("{address} port {trsvcid} is served already")]
    PortExists {
        /// The address.
        address: IpAddr,
        /// The TCP port.
        trsvcid: u16,
    },
    /// All port ids are taken.
    #[error("there are too many ports")]
    TooManyPorts,
}
