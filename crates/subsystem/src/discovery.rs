//! The discovery log, and who is told when it changes (NVMe Base 2.1, section 5.1.12.3.1).

use crate::async_event::Notice;
use crate::config::{PortConfig, PortId, adrfam};
use crate::controller::Controller;
use crate::target::Target;
use nvme::fabrics::CNTLID_DYNAMIC;
use nvme::log::discovery::{
    EFLAG_DUPLICATE, EFLAG_PERSISTENT, Entry, Header, SubsystemType, TransportType,
};
use std::net::IpAddr;
use zerocopy::{FromZeros, IntoBytes};

/// Largest admin queue told to hosts.
const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// TREQ: SQ flow control may be disabled.
const NO_FLOW_CONTROL: u8 = 1 << 2;

/// TREQ: whether a secure channel has to be used, which is not specified with 0 (NVMe Base 2.1, Figure 294, bits 1:0).
const SECURE_REQUIRED: u8 = 1;

/// TSAS of TCP, byte 0: TLS 1.3 (NVMe/TCP Transport 1.1, Figure 16, SECTYPE); without, 0.
const SECTYPE_TLS_1_3: u8 = 2;

impl Target {
    /// The discovery log as `controller`'s host may see it: its header and one entry per port for
    /// discovery itself and for every subsystem that allows the host.
    ///
    /// Ports on all addresses of the other family are left out: nobody can say at which the host
    /// would reach them.
    pub(crate) fn discovery_log(&self, controller: &Controller) -> Vec<u8> {
        let local = controller.local_address.map(|address| address.to_canonical());
        // With such ports the log depends on the address at which it is read.
        let depends = self.ports.values().any(|port| port.traddr.is_unspecified());
        let mut entries = Vec::new();
        for (&id, port) in &self.ports {
            let Some(address) = told_address(port, local) else { continue };
            let same = !depends || local == Some(address);
            let flags = EFLAG_PERSISTENT | if same { EFLAG_DUPLICATE } else { 0 };
            let kind = SubsystemType::CURRENT_DISCOVERY;
            let place = (id, address, port);
            entries.push(entry(place, (&self.discovery_nqn, kind, flags)));
            for subsystem in self.subsystems.values() {
                if subsystem.allows(&controller.host_nqn) {
                    entries.push(entry(place, (&subsystem.nqn, SubsystemType::NVM, 0)));
                }
            }
        }
        let mut header = Header::new_zeroed();
        header.genctr = self.generation.into();
        header.numrec = (entries.len() as u64).into();
        let mut log = header.as_bytes().to_vec();
        log.extend_from_slice(entries.as_bytes());
        log
    }

    /// The log changed for every host that may see `nqn`, or for all.
    pub(crate) fn discovery_changed(&mut self, nqn: Option<&str>) {
        let subsystem = nqn.and_then(|nqn| self.subsystems.get(nqn));
        let hosts = match subsystem {
            Some(subsystem) if !subsystem.allow_any_host => Some(subsystem.hosts.clone()),
            _ => None,
        };
        self.discovery_changed_for_hosts(|host| {
            hosts.as_ref().is_none_or(|hosts| hosts.contains(host))
        });
    }

    /// The log changed for the hosts chosen by their NQN.
    pub(crate) fn discovery_changed_for_hosts(&mut self, sees: impl Fn(&str) -> bool) {
        self.generation += 1;
        self.raise_where(Notice::DiscoveryChange, |controller| {
            controller.discovery && sees(&controller.host_nqn)
        });
    }
}

/// Where a host that has reached us at `local` finds a port. A listener on all addresses is
/// reachable at that one, if it is of its family: IPv6 listeners take no IPv4.
fn told_address(port: &PortConfig, local: Option<IpAddr>) -> Option<IpAddr> {
    match local {
        Some(local) if port.traddr.is_unspecified() => {
            (local.is_ipv4() == port.traddr.is_ipv4()).then_some(local)
        }
        _ => Some(port.traddr),
    }
}

fn entry(
    (id, address, port): (PortId, IpAddr, &PortConfig),
    (nqn, kind, flags): (&str, SubsystemType, u16),
) -> Entry {
    let mut entry = Entry::new_zeroed();
    entry.trtype = TransportType::TCP.0;
    entry.adrfam = adrfam(address).0;
    entry.subtype = kind.0;
    entry.treq = NO_FLOW_CONTROL;
    if port.is_secured {
        entry.treq |= SECURE_REQUIRED;
        entry.tsas[0] = SECTYPE_TLS_1_3;
    }
    entry.portid = id.0.into();
    entry.cntlid = CNTLID_DYNAMIC.into();
    entry.asqsz = ADMIN_QUEUE_ENTRIES.into();
    entry.eflags = flags.into();
    fill(&mut entry.trsvcid, &port.trsvcid.to_string());
    fill(&mut entry.traddr, &address.to_string());
    fill(&mut entry.subnqn, nqn);
    entry
}

fn fill(field: &mut [u8], text: &str) {
    field[..text.len()].copy_from_slice(text.as_bytes());
}
