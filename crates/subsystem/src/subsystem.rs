//! A subsystem: who may connect, which namespaces there are, and how well each port reaches them.

use crate::config::{Authentication, ConfigError, NamespaceConfig, PortId, SubsystemConfig};
use crate::{
    ANA_GROUPS_MAX, AnaState, NAMESPACES_MAX, TRANSFER_BYTES_MAX, TRANSFER_BYTES_MIN,
    WRITE_ZEROES_BYTES_MAX,
};
use nvme::Limits;
use nvme::copy::{FORMATS, RANGES_MAX};
use nvme::limits::{CopyLimits, DiscardLimits};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What Identify can tell of one Copy: MSRC has 8 bits, MSSRL 16, MCL 32.
const COPY_MAX: CopyLimits = CopyLimits {
    ranges_max: RANGES_MAX as u16,
    range_blocks_max: u16::MAX as u32,
    blocks_max: u32::MAX,
};

/// A subsystem with its namespaces.
pub(crate) struct Subsystem {
    pub nqn: Arc<str>,
    pub serial: [u8; 20],
    pub model: [u8; 40],
    pub allow_any_host: bool,
    pub hosts: BTreeSet<String>,
    /// Hosts that have to prove who they are, whether they are listed or not.
    pub authentication: BTreeMap<String, Authentication>,
    /// NQNs of the hosts that have to come by TLS.
    pub secured_hosts: BTreeSet<String>,
    pub io_queues_max: u16,
    pub fused: bool,
    pub namespaces: BTreeMap<u32, Namespace>,
    pub ana: AnaGroups,
}

/// A namespace as Identify shows it.
#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    pub uuid: [u8; 16],
    pub nguid: [u8; 16],
    pub ana_group: u32,
    pub limits: Limits,
}

/// ANA groups of a subsystem and their states by port; a state that was never set is optimized.
#[derive(Default)]
pub(crate) struct AnaGroups {
    pub change_count: u64,
    pub groups: BTreeMap<u32, AnaGroup>,
}

/// One ANA group.
#[derive(Default)]
pub(crate) struct AnaGroup {
    pub change_count: u64,
    states: BTreeMap<PortId, AnaState>,
}

impl Subsystem {
    pub fn new(config: SubsystemConfig) -> Result<Subsystem, ConfigError> {
        if !crate::is_valid_nqn(&config.nqn) {
            return Err(ConfigError::InvalidNqn { nqn: config.nqn });
        }
        if let Some(host) = config.hosts.iter().find(|host| !crate::is_valid_nqn(host)) {
            return Err(ConfigError::InvalidNqn { nqn: host.clone() });
        }
        if !(1..=crate::IO_QUEUES_MAX).contains(&config.io_queues_max) {
            return Err(ConfigError::InvalidQueues { queues: config.io_queues_max });
        }
        Ok(Subsystem {
            serial: padded("the serial number", &config.serial)?,
            model: padded("the model", &config.model)?,
            nqn: config.nqn.into(),
            allow_any_host: config.allow_any_host,
            hosts: config.hosts.into_iter().collect(),
            authentication: BTreeMap::new(),
            secured_hosts: BTreeSet::new(),
            io_queues_max: config.io_queues_max,
            fused: config.fused,
            namespaces: BTreeMap::new(),
            ana: AnaGroups::default(),
        })
    }

    pub fn allows(&self, host_nqn: &str) -> bool {
        self.allow_any_host || self.hosts.contains(host_nqn)
    }

    /// Adds a namespace and returns its id.
    pub fn add_namespace(&mut self, config: NamespaceConfig) -> Result<u32, ConfigError> {
        check_limits(&config.limits)?;
        if config.uuid == [0; 16] && config.nguid == [0; 16] {
            return Err(ConfigError::NoIdentifier);
        }
        if !(1..=ANA_GROUPS_MAX).contains(&config.ana_group) {
            return Err(ConfigError::InvalidGroup { group: config.ana_group });
        }
        let same = |have: &[u8; 16], want: &[u8; 16]| have == want && *want != [0; 16];
        let twin = self.namespaces.iter().find(|(_, namespace)| {
            same(&namespace.uuid, &config.uuid) || same(&namespace.nguid, &config.nguid)
        });
        if let Some((&nsid, _)) = twin {
            return Err(ConfigError::DuplicateIdentifier { nqn: self.nqn.to_string(), nsid });
        }
        let nsid = self.free_nsid(config.nsid)?;
        let namespace = Namespace {
            uuid: config.uuid,
            nguid: config.nguid,
            ana_group: config.ana_group,
            limits: self.offered(config.limits),
        };
        self.namespaces.insert(nsid, namespace);
        self.ana.touch(config.ana_group);
        Ok(nsid)
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, nsid: u32) -> Result<(), ConfigError> {
        let removed = self.namespaces.remove(&nsid);
        let namespace = removed.ok_or_else(|| self.unknown_namespace(nsid))?;
        self.ana.touch(namespace.ana_group);
        Ok(())
    }

    /// Replaces a namespace's limits; returns whether anything changed.
    pub fn update_limits(&mut self, nsid: u32, limits: Limits) -> Result<bool, ConfigError> {
        check_limits(&limits)?;
        let limits = self.offered(limits);
        let unknown = self.unknown_namespace(nsid);
        let namespace = self.namespaces.get_mut(&nsid).ok_or(unknown)?;
        if namespace.limits.block_shift != limits.block_shift {
            return Err(ConfigError::BlockSizeChanged { nsid });
        }
        Ok(std::mem::replace(&mut namespace.limits, limits) != limits)
    }

    /// Every namespace with its state on `port`, ascending by id.
    pub fn access(&self, port: PortId) -> impl Iterator<Item = (u32, &Namespace, AnaState)> {
        self.namespaces.iter().map(move |(&nsid, namespace)| {
            (nsid, namespace, self.ana.state(namespace.ana_group, port))
        })
    }

    /// What hosts are offered of what a volume can do.
    fn offered(&self, mut limits: Limits) -> Limits {
        limits.commands.compare_and_write &= self.fused && limits.commands.compare;
        limits.transfer_bytes_max = limits.transfer_bytes_max.min(TRANSFER_BYTES_MAX);
        limits.write_zeroes_bytes_max = limits.write_zeroes_bytes_max.min(WRITE_ZEROES_BYTES_MAX);
        limits.copy =
            if limits.copy.is_offered() { limits.copy.and(COPY_MAX) } else { CopyLimits::NONE };
        limits
    }

    /// Formats of a Copy's list that its controllers know (OCFS): all, unless no namespace copies.
    pub fn copy_formats(&self) -> u16 {
        let mut namespaces = self.namespaces.values();
        let offered = self.namespaces.is_empty() || namespaces.any(|n| n.limits.copy.is_offered());
        if offered { FORMATS } else { 0 }
    }

    /// Largest transfer that every namespace takes, a power of two in bytes: MDTS.
    pub fn transfer_bytes_max(&self) -> u32 {
        let each = self.namespaces.values().map(|namespace| namespace.limits.transfer_bytes_max);
        1 << each.fold(TRANSFER_BYTES_MAX, u32::min).ilog2()
    }

    /// Largest Write Zeroes that every namespace takes, a power of two in bytes: WZSL, which cannot tell less than two
    /// pages.
    pub fn write_zeroes_bytes_max(&self) -> u32 {
        let zeroes = self.namespaces.values().map(|namespace| namespace.limits);
        let each = zeroes.filter(|limits| limits.commands.write_zeroes);
        let most = each.map(|limits| limits.write_zeroes_bytes_max);
        1 << most.fold(WRITE_ZEROES_BYTES_MAX, u32::min).max(TRANSFER_BYTES_MIN).ilog2()
    }

    /// Dataset Management that every namespace takes, whatever its block size: DMRL, DMRSL and DMSL.
    pub fn discard_limits(&self) -> DiscardLimits {
        let limits = self.namespaces.values().map(|namespace| namespace.limits);
        let each = limits.filter(|limits| limits.commands.deallocate);
        each.fold(DiscardLimits::UNLIMITED, |most, limits| most.and(limits.discard))
    }

    fn free_nsid(&self, wanted: Option<u32>) -> Result<u32, ConfigError> {
        let nqn = || self.nqn.to_string();
        match wanted {
            Some(nsid) if !(1..=NAMESPACES_MAX).contains(&nsid) => {
                Err(ConfigError::InvalidNamespaceId { nsid })
            }
            Some(nsid) if self.namespaces.contains_key(&nsid) => {
                Err(ConfigError::NamespaceExists { nqn: nqn(), nsid })
            }
            Some(nsid) => Ok(nsid),
            None => (1..=NAMESPACES_MAX)
                .find(|nsid| !self.namespaces.contains_key(nsid))
                .ok_or_else(|| ConfigError::TooManyNamespaces { nqn: nqn() }),
        }
    }

    fn unknown_namespace(&self, nsid: u32) -> ConfigError {
        ConfigError::UnknownNamespace { nqn: self.nqn.to_string(), nsid }
    }
}

impl AnaGroups {
    /// State of `group` on `port`.
    pub fn state(&self, group: u32, port: PortId) -> AnaState {
        let group = self.groups.get(&group);
        group.and_then(|group| group.states.get(&port).copied()).unwrap_or(AnaState::OPTIMIZED)
    }

    /// Sets the state of `group` on `port`; returns whether it changed.
    pub fn set_state(&mut self, group: u32, port: PortId, state: AnaState) -> bool {
        if self.state(group, port) == state {
            return false;
        }
        self.groups.entry(group).or_default().states.insert(port, state);
        self.touch(group);
        true
    }

    /// Forgets what was set for `port`.
    pub fn forget_port(&mut self, port: PortId) {
        for group in self.groups.values_mut() {
            group.states.remove(&port);
        }
    }

    /// Counts a change of `group`: of its state or of its namespaces.
    fn touch(&mut self, group: u32) {
        self.change_count += 1;
        self.groups.entry(group).or_default().change_count = self.change_count;
    }
}

/// `text` in a field of Identify data: ASCII, padded with spaces (NVMe Base 2.1, section 1.4.2).
pub(crate) fn padded<const N: usize>(
    field: &'static str,
    text: &str,
) -> Result<[u8; N], ConfigError> {
    let printable = text.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
    if text.is_empty() || text.len() > N || !printable {
        return Err(ConfigError::InvalidText { field, value: text.to_owned(), bytes_max: N });
    }
    let mut bytes = [b' '; N];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    Ok(bytes)
}

/// Whether a namespace may have these limits.
pub fn check_limits(limits: &Limits) -> Result<(), ConfigError> {
    let &Limits { block_shift, blocks, .. } = limits;
    let bytes = blocks.checked_mul(1 << block_shift.min(12));
    if !matches!(block_shift, 9 | 12) || blocks == 0 || bytes.is_none() {
        return Err(ConfigError::InvalidLimits { block_shift, blocks });
    }
    let bytes = limits.transfer_bytes_max;
    if bytes < TRANSFER_BYTES_MIN {
        return Err(ConfigError::TransferTooSmall { bytes });
    }
    Ok(())
}
