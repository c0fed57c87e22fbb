//! Who is connected, who may be, and through what.

use super::Daemon;
use crate::config::{Ana, AnaState, Listen, Subsystem};
use crate::control::lists::{
    AnaNow, ConnectedHost, ControllerNow, HostsNow, ListOf, ListenerNow, SubsystemNow,
};
use crate::control::protocol::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use target::{ControllerReport, ControllerState, PortId};
use uuid::Uuid;

/// The subsystem of discovery controllers (NVMe Base 2.1, section 3.1.3.3).
const DISCOVERY_NQN: &str = nvme::fabrics::DISCOVERY_NQN;

impl Daemon {
    /// The controllers that are there.
    pub(super) fn controller_list(&self, wanted: ListOf) -> Result<Vec<ControllerNow>, Failure> {
        let nqn = wanted.nqn.as_deref();
        if nqn != Some(DISCOVERY_NQN) {
            self.check_nqn(nqn)?;
        }
        let meant = |report: &ControllerReport| nqn.is_none_or(|nqn| nqn == &*report.nqn);
        let reports = self.reports()?.into_iter().filter(meant);
        Ok(reports.map(|report| self.controller(report)).collect())
    }

    fn controller(&self, report: ControllerReport) -> ControllerNow {
        let state = match report.state {
            ControllerState::Enabled => "enabled",
            ControllerState::Disabled => "disabled",
            ControllerState::Ending => "ending",
        };
        ControllerNow {
            controller: report.controller,
            nqn: report.nqn.to_string(),
            host_nqn: report.host_nqn.to_string(),
            host_id: Uuid::from_bytes(report.host_id),
            address: report.peer,
            listener: self.address_of(report.port),
            discovery: report.discovery,
            state: state.to_owned(),
            io_queues: report.io_queues,
            io_queue_entries: report.io_queue_entries,
            header_digest: report.header_digest,
            data_digest: report.data_digest,
            tls: report.secured,
            authentication: report.authentication.map(|(hash, group)| format!("{hash} {group}")),
            keep_alive_ms: report.kato_ms,
            connected_seconds: report.age.as_secs(),
            errors: report.errors,
        }
    }

    /// The subsystems, in the order of the configuration.
    pub(super) fn subsystem_list(&self) -> Result<Vec<SubsystemNow>, Failure> {
        let reports = self.reports()?;
        let missing = self.missing();
        let all = self.config.subsystems.iter().map(|subsystem| {
            let nqn = &subsystem.nqn;
            let missing = missing.iter().filter(|volume| volume.nqn == *nqn).count();
            SubsystemNow {
                nqn: nqn.clone(),
                serial: subsystem.serial.clone().unwrap_or_default(),
                shared: subsystem.shared,
                allow_any_host: allows_any(subsystem),
                hosts: subsystem.allowed_hosts.len(),
                namespaces: subsystem.namespaces.len() - missing,
                missing,
                controllers: reports.iter().filter(|report| *report.nqn == **nqn).count(),
            }
        });
        Ok(all.collect())
    }

    /// Who may connect, and who is connected.
    pub(super) fn host_list(&self, wanted: &ListOf) -> Result<Vec<HostsNow>, Failure> {
        let reports = self.reports()?;
        let all = self.subsystems_of(wanted)?.map(|subsystem| {
            let mut connected = BTreeMap::<&str, usize>::new();
            for report in reports.iter().filter(|report| *report.nqn == *subsystem.nqn) {
                *connected.entry(&*report.host_nqn).or_default() += 1;
            }
            let connected = connected.into_iter();
            HostsNow {
                nqn: subsystem.nqn.clone(),
                allow_any_host: allows_any(subsystem),
                allowed_hosts: subsystem.allowed_hosts.clone(),
                authentication: subsystem.authentication.clone(),
                connected_hosts: connected
                    .map(|(host, controllers)| ConnectedHost { host: host.to_owned(), controllers })
                    .collect(),
            }
        });
        Ok(all.collect())
    }

    /// The addresses that accept connections.
    pub(super) fn listener_list(&self) -> Result<Vec<ListenerNow>, Failure> {
        let reports = self.reports()?;
        let count = |port: PortId| {
            reports.iter().filter(|report| report.port == port && !report.discovery).count()
        };
        let tls = |address| self.config.listeners.contains(&Listen { address, tls: true });
        let all = self.ports.iter().map(|&(address, port)| ListenerNow {
            address,
            tls: tls(address),
            controllers: count(port),
        });
        Ok(all.collect())
    }

    /// The states of ANA groups.
    pub(super) fn ana_list(&self, wanted: &ListOf) -> Result<Vec<AnaNow>, Failure> {
        let mut all = Vec::new();
        for subsystem in self.subsystems_of(wanted)? {
            for (group, namespaces) in groups(subsystem) {
                all.extend(self.ports.iter().map(|&(listener, _)| AnaNow {
                    nqn: subsystem.nqn.clone(),
                    group,
                    listener,
                    state: state(&subsystem.ana, group, listener),
                    namespaces: namespaces.iter().copied().collect(),
                }));
            }
        }
        Ok(all)
    }

    fn reports(&self) -> Result<Vec<ControllerReport>, Failure> {
        self.server.controllers().map_err(|error| Failure::refused(error.to_string()))
    }

    /// The subsystems that are meant, which exist if they are named.
    fn subsystems_of<'a>(
        &'a self,
        wanted: &'a ListOf,
    ) -> Result<impl Iterator<Item = &'a Subsystem>, Failure> {
        self.check_nqn(wanted.nqn.as_deref())?;
        let meant = |it: &&Subsystem| wanted.nqn.as_ref().is_none_or(|nqn| *nqn == it.nqn);
        Ok(self.config.subsystems.iter().filter(meant))
    }

    fn check_nqn(&self, nqn: Option<&str>) -> Result<(), Failure> {
        nqn.map_or(Ok(()), |nqn| self.nqn(Some(nqn.to_owned())).map(|_| ()))
    }

    fn address_of(&self, port: PortId) -> Option<SocketAddr> {
        self.ports.iter().find(|(_, known)| *known == port).map(|(address, _)| *address)
    }
}

fn allows_any(subsystem: &Subsystem) -> bool {
    subsystem.allow_any_host.unwrap_or(subsystem.allowed_hosts.is_empty())
}

/// The groups that have namespaces, or of which something is said, with their namespaces.
fn groups(subsystem: &Subsystem) -> BTreeMap<u32, BTreeSet<u32>> {
    let said = subsystem.ana.iter().map(|ana| (ana.group, BTreeSet::new()));
    let mut groups: BTreeMap<u32, BTreeSet<u32>> = said.collect();
    for namespace in &subsystem.namespaces {
        groups.entry(namespace.ana_group).or_default().extend(namespace.nsid);
    }
    groups
}

/// What holds on a listener: of several that are meant for it, what was said last.
fn state(said: &[Ana], group: u32, listener: SocketAddr) -> AnaState {
    let holds =
        |ana: &&Ana| ana.group == group && ana.listener.is_none_or(|address| address == listener);
    said.iter().rfind(holds).map(|ana| ana.state).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_last_of_a_listener_holds() {
        let [here, there] = ["192.0.2.1:4420", "192.0.2.2:4420"].map(|it| it.parse().unwrap());
        let ana = |listener, state| Ana { listener, group: 1, state };
        let said = [ana(None, AnaState::Change), ana(Some(here), AnaState::Inaccessible)];
        assert_eq!(state(&said, 1, here), AnaState::Inaccessible);
        assert_eq!(state(&said, 1, there), AnaState::Change);
        assert_eq!(state(&said, 2, here), AnaState::Optimized);
    }
}
