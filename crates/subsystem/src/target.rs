//! All there is: subsystems, ports, controllers; and how the control plane changes it.

use crate::async_event::Notice;
use crate::config::{
    Authentication, ConfigError, NamespaceConfig, PortConfig, PortId, SubsystemConfig, TargetConfig,
};
use crate::controller::Controller;
use crate::event::{ControllerId, DropReason, Event};
use crate::subsystem::{Subsystem, padded};
use crate::{ANA_GROUPS_MAX, AnaState};
use nvme::Limits;
use nvme::fabrics::{Csts, DISCOVERY_NQN};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The controller side of a target; see the [crate documentation](crate).
pub struct Target {
    pub(crate) cntlids: std::ops::RangeInclusive<u16>,
    pub(crate) cntlid_next: u16,
    pub(crate) firmware: [u8; 8],
    pub(crate) drains: bool,
    pub(crate) random: fn(&mut [u8]),
    pub(crate) instance: [u8; 16],
    pub(crate) command_quiesce_time_ms: u16,
    pub(crate) discovery_serial: [u8; 20],
    pub(crate) discovery_model: [u8; 40],
    pub(crate) discovery_nqn: Arc<str>,
    /// Generation counter of the discovery log.
    pub(crate) generation: u64,
    pub(crate) subsystems: BTreeMap<Arc<str>, Subsystem>,
    pub(crate) ports: BTreeMap<PortId, PortConfig>,
    pub(crate) controllers: BTreeMap<ControllerId, Controller>,
    pub(crate) events: VecDeque<Event>,
    /// No controller needs attention before this; may be early.
    wake: Option<Duration>,
}

/// A namespace as the data path needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceAccess {
    /// Namespace id.
    pub nsid: u32,
    /// What hosts are offered of what the volume can do.
    pub limits: Limits,
    /// State on the port asked about; [`AnaState::io_status`] says whether I/O fails.
    pub state: AnaState,
}

/// A controller, for people and for statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerSummary {
    /// The controller.
    pub controller: ControllerId,
    /// NQN of its subsystem.
    pub subsystem_nqn: Arc<str>,
    /// NQN of its host.
    pub host_nqn: Arc<str>,
    /// Host identifier.
    pub host_id: [u8; 16],
    /// The port it is connected through.
    pub port: PortId,
    /// Whether it is a discovery controller.
    pub discovery: bool,
    /// Connected I/O queues.
    pub io_queues: u16,
    /// Keep alive timeout in milliseconds; 0: none.
    pub kato_ms: u32,
    /// It carries out commands.
    pub enabled: bool,
    /// The host has shut it down, or is about to.
    pub shut_down: bool,
    /// Its connections are being closed.
    pub dropped: bool,
    /// By what the host has proved who it is on the admin queue, if it had to and has.
    pub authentication: Option<(dhchap::Hash, dhchap::Group)>,
    /// Failed commands that were entered into its error log since it came to be.
    pub errors: u64,
}

impl Target {
    /// A target with nothing in it.
    pub fn new(config: TargetConfig) -> Result<Target, ConfigError> {
        let last = config.cntlid_max.min(0xffef);
        Ok(Target {
            cntlids: config.cntlid_min..=last,
            cntlid_next: config.cntlid_min,
            firmware: padded("the firmware revision", &config.firmware)?,
            drains: config.drains,
            random: config.random,
            instance: config.instance,
            command_quiesce_time_ms: config.command_quiesce_time_ms,
            discovery_serial: padded("the serial number", &config.serial)?,
            discovery_model: padded("the model", &config.model)?,
            discovery_nqn: DISCOVERY_NQN.into(),
            generation: 1,
            subsystems: BTreeMap::new(),
            ports: BTreeMap::new(),
            controllers: BTreeMap::new(),
            events: VecDeque::new(),
            wake: None,
        })
    }

    /// Adds a subsystem, served on every port.
    pub fn add_subsystem(&mut self, config: SubsystemConfig) -> Result<(), ConfigError> {
        let subsystem = Subsystem::new(config)?;
        let nqn = Arc::clone(&subsystem.nqn);
        if self.subsystems.contains_key(&nqn) || *nqn == *DISCOVERY_NQN {
            return Err(ConfigError::SubsystemExists { nqn: nqn.to_string() });
        }
        self.subsystems.insert(Arc::clone(&nqn), subsystem);
        self.discovery_changed(Some(&nqn));
        Ok(())
    }

    /// Removes a subsystem; returns its controllers, each of which gets an [`Event::Drop`] as well.
    pub fn remove_subsystem(&mut self, nqn: &str) -> Result<Vec<ControllerId>, ConfigError> {
        self.subsystem_mut(nqn)?;
        let dropped = self.drop_where(DropReason::SubsystemRemoved, |controller| {
            !controller.discovery && *controller.subsystem_nqn == *nqn
        });
        self.discovery_changed(Some(nqn));
        self.subsystems.remove(nqn);
        Ok(dropped)
    }

    /// Puts a host on a subsystem's list.
    pub fn allow_host(&mut self, nqn: &str, host: &str) -> Result<(), ConfigError> {
        if !crate::is_valid_nqn(host) {
            return Err(ConfigError::InvalidNqn { nqn: host.to_owned() });
        }
        if self.subsystem_mut(nqn)?.hosts.insert(host.to_owned()) {
            self.discovery_changed_for_hosts(|candidate| candidate == host);
        }
        Ok(())
    }

    /// Takes a host off a subsystem's list; unless any host is allowed, its controllers go.
    pub fn disallow_host(&mut self, nqn: &str, host: &str) -> Result<(), ConfigError> {
        if !self.subsystem_mut(nqn)?.hosts.remove(host) {
            return Err(ConfigError::UnknownHost { nqn: nqn.to_owned(), host: host.to_owned() });
        }
        self.drop_disallowed(nqn);
        self.discovery_changed_for_hosts(|candidate| candidate == host);
        Ok(())
    }

    /// The NQN by which hosts ask for discovery.
    pub fn discovery_nqn(&self) -> Arc<str> {
        Arc::clone(&self.discovery_nqn)
    }

    /// Says by what a host has to prove who it is from its next Connect to a subsystem on, or that it need not. Connections that are there stay.
    pub fn set_authentication(
        &mut self,
        nqn: &str,
        host: &str,
        authentication: Option<Authentication>,
    ) -> Result<(), ConfigError> {
        if !crate::is_valid_nqn(host) {
            return Err(ConfigError::InvalidNqn { nqn: host.to_owned() });
        }
        let known = &mut self.subsystem_mut(nqn)?.authentication;
        match authentication {
            Some(authentication) => drop(known.insert(host.to_owned(), authentication)),
            None => drop(known.remove(host)),
        }
        Ok(())
    }

    /// Says whether a host has to come by TLS from its next Connect to a subsystem on. Connections that are there stay.
    pub fn set_secured(
        &mut self,
        nqn: &str,
        host: &str,
        is_secured: bool,
    ) -> Result<(), ConfigError> {
        if !crate::is_valid_nqn(host) {
            return Err(ConfigError::InvalidNqn { nqn: host.to_owned() });
        }
        let hosts = &mut self.subsystem_mut(nqn)?.secured_hosts;
        if is_secured {
            hosts.insert(host.to_owned());
        } else {
            hosts.remove(host);
        }
        Ok(())
    }

    /// Says whether a subsystem's host list is asked; controllers of hosts no longer allowed go.
    pub fn set_allow_any_host(&mut self, nqn: &str, allow: bool) -> Result<(), ConfigError> {
        let subsystem = self.subsystem_mut(nqn)?;
        if std::mem::replace(&mut subsystem.allow_any_host, allow) != allow {
            self.drop_disallowed(nqn);
            self.discovery_changed_for_hosts(|_| true);
        }
        Ok(())
    }

    /// Adds a namespace; returns its id. Hosts are told; those that know of larger transfers, Write Zeroes or Dataset
    /// Management than all namespaces take now are dropped, to identify their controllers again.
    pub fn add_namespace(
        &mut self,
        nqn: &str,
        config: NamespaceConfig,
    ) -> Result<u32, ConfigError> {
        let nsid = self.subsystem_mut(nqn)?.add_namespace(config)?;
        self.drop_misled(nqn);
        self.namespace_changed(nqn, nsid);
        Ok(nsid)
    }

    /// Removes a namespace. Hosts are told.
    pub fn remove_namespace(&mut self, nqn: &str, nsid: u32) -> Result<(), ConfigError> {
        self.subsystem_mut(nqn)?.remove_namespace(nsid)?;
        self.namespace_changed(nqn, nsid);
        Ok(())
    }

    /// Replaces a namespace's limits, as after a change of its size. Hosts are told if they differ, or
    /// dropped as by [`Target::add_namespace`].
    pub fn update_limits(
        &mut self,
        nqn: &str,
        nsid: u32,
        limits: Limits,
    ) -> Result<(), ConfigError> {
        if self.subsystem_mut(nqn)?.update_limits(nsid, limits)? {
            self.drop_misled(nqn);
            self.namespace_changed(nqn, nsid);
        }
        Ok(())
    }

    /// Adds a port, on which every subsystem is served.
    pub fn add_port(&mut self, config: PortConfig) -> Result<PortId, ConfigError> {
        let PortConfig { traddr, trsvcid, .. } = config;
        if self.ports.values().any(|port| port.traddr == traddr && port.trsvcid == trsvcid) {
            return Err(ConfigError::PortExists { address: traddr, trsvcid });
        }
        let free = (1..=u16::MAX).map(PortId).find(|id| !self.ports.contains_key(id));
        let id = free.ok_or(ConfigError::TooManyPorts)?;
        self.ports.insert(id, config);
        self.discovery_changed(None);
        Ok(id)
    }

    /// Removes a port; returns its controllers, each of which gets an [`Event::Drop`] as well.
    pub fn remove_port(&mut self, port: PortId) -> Result<Vec<ControllerId>, ConfigError> {
        self.ports.remove(&port).ok_or(ConfigError::UnknownPort { port: port.0 })?;
        let dropped =
            self.drop_where(DropReason::PortRemoved, |controller| controller.port == port);
        for subsystem in self.subsystems.values_mut() {
            subsystem.ana.forget_port(port);
        }
        self.discovery_changed(None);
        Ok(dropped)
    }

    /// Sets the state in which hosts reach an ANA group of a subsystem through a port.
    pub fn set_ana_state(
        &mut self,
        nqn: &str,
        port: PortId,
        group: u32,
        state: AnaState,
    ) -> Result<(), ConfigError> {
        if !state.is_known() {
            return Err(ConfigError::InvalidAnaState { state: state.0 });
        }
        if !(1..=ANA_GROUPS_MAX).contains(&group) {
            return Err(ConfigError::InvalidGroup { group });
        }
        if !self.ports.contains_key(&port) {
            return Err(ConfigError::UnknownPort { port: port.0 });
        }
        let subsystem = self.subsystem_mut(nqn)?;
        let nqn = Arc::clone(&subsystem.nqn);
        if subsystem.ana.set_state(group, port, state) {
            self.raise_where(Notice::AnaChange, |controller| {
                controller.port == port && controller.subsystem_nqn == nqn
            });
            self.note_namespaces_changed(&nqn);
        }
        Ok(())
    }

    /// NQNs of all subsystems.
    pub fn subsystems(&self) -> impl Iterator<Item = &Arc<str>> {
        self.subsystems.keys()
    }

    /// All ports.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, &PortConfig)> {
        self.ports.iter().map(|(&id, port)| (id, port))
    }

    /// Namespaces of a subsystem as reached through `port`, ascending by id; none for an unknown
    /// or a discovery subsystem.
    pub fn namespaces(&self, nqn: &str, port: PortId) -> Vec<NamespaceAccess> {
        let Some(subsystem) = self.subsystems.get(nqn) else { return Vec::new() };
        let access = subsystem.access(port);
        access
            .map(|(nsid, namespace, state)| NamespaceAccess {
                nsid,
                limits: namespace.limits,
                state,
            })
            .collect()
    }

    /// All controllers that have connections.
    pub fn controllers(&self) -> impl Iterator<Item = ControllerSummary> {
        self.controllers.values().map(Controller::summary)
    }

    /// One of them.
    pub fn controller(&self, id: ControllerId) -> Option<ControllerSummary> {
        self.controllers.get(&id).map(Controller::summary)
    }

    /// A connection of a controller has ended: to be called exactly once for every successful
    /// [`Target::connect`]. Without its admin queue a controller goes.
    pub fn disconnected(&mut self, id: ControllerId, queue_id: u16, now: Duration) {
        if self.is_proven(id, queue_id) {
            self.activity(id, now);
        }
        let Some(controller) = self.controllers.get_mut(&id) else { return };
        controller.queues.remove(queue_id);
        controller.authentication.remove(&queue_id);
        controller.settle();
        if controller.queues.is_empty() {
            self.controllers.remove(&id);
        } else if queue_id == 0 {
            self.drop_controller(id, DropReason::AdminDisconnected);
        }
    }

    /// Something was heard from the controller's host: restarts its keep alive timer (TBKAS).
    ///
    /// A host that sees its I/O completed sends no Keep Alive, so the transport must call this
    /// for I/O queues too; about once a second while there is traffic is enough.
    #[inline]
    pub fn activity(&mut self, controller: ControllerId, now: Duration) {
        if let Some(controller) = self.controllers.get_mut(&controller) {
            controller.keep_alive.heard(now);
        }
    }

    /// When [`Target::handle_timeout`] wants to be called; may be earlier than needed.
    #[inline]
    pub fn next_timeout(&self) -> Option<Duration> {
        self.wake
    }

    /// Drops controllers that were silent for too long: for one to two keep alive timeouts, as
    /// traffic based keep alive has it (NVMe Base 2.1, section 3.9.4.1).
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.wake.is_none_or(|wake| now < wake) {
            return;
        }
        let expired: Vec<_> = self
            .controllers
            .iter_mut()
            .filter_map(|(&id, controller)| Some((id, controller.expired(now)?)))
            .collect();
        for (id, reason) in expired {
            if reason == DropReason::KeepAliveExpired
                && let Some(controller) = self.controllers.get_mut(&id)
            {
                controller.csts = Csts(controller.csts.0 | Csts::CFS);
            }
            self.drop_controller(id, reason);
        }
        self.wake = self.controllers.values().filter_map(Controller::deadline).min();
    }

    /// Takes the next event; to be called until it returns `None` after any other call.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Makes sure that the controller's deadline is not missed.
    pub(crate) fn schedule(&mut self, id: ControllerId) {
        let deadline = self.controllers.get(&id).and_then(Controller::deadline);
        self.wake = self.wake.into_iter().chain(deadline).min();
    }

    /// Tells the transport to close a controller's connections, once.
    pub(crate) fn drop_controller(&mut self, id: ControllerId, reason: DropReason) {
        let Some(controller) = self.controllers.get_mut(&id) else { return };
        if !std::mem::replace(&mut controller.dropped, true) {
            controller.events.reset();
            self.events.push_back(Event::Drop { controller: id, reason });
        }
    }

    /// Completes what held event requests can tell now.
    pub(crate) fn deliver(&mut self, id: ControllerId) {
        let Some(controller) = self.controllers.get_mut(&id) else { return };
        while let Some((cid, dword0)) = controller.events.next() {
            self.events.push_back(Event::Complete {
                controller: id,
                cid,
                status: nvme::Status::SUCCESS,
                result: dword0.into(),
            });
        }
    }

    fn subsystem_mut(&mut self, nqn: &str) -> Result<&mut Subsystem, ConfigError> {
        let unknown = || ConfigError::UnknownSubsystem { nqn: nqn.to_owned() };
        self.subsystems.get_mut(nqn).ok_or_else(unknown)
    }

    fn namespace_changed(&mut self, nqn: &str, nsid: u32) {
        for controller in self.controllers.values_mut() {
            if *controller.subsystem_nqn == *nqn && !controller.dropped {
                controller.changed.note(nsid);
            }
        }
        self.raise_where(Notice::NamespaceAttribute, |controller| {
            *controller.subsystem_nqn == *nqn
        });
        self.note_namespaces_changed(nqn);
    }

    fn note_namespaces_changed(&mut self, nqn: &str) {
        let event = Event::NamespacesChanged { nqn: nqn.into() };
        if self.events.back() != Some(&event) {
            self.events.push_back(event);
        }
    }

    fn drop_disallowed(&mut self, nqn: &str) {
        let Some(subsystem) = self.subsystems.get(nqn) else { return };
        let gone: Vec<_> = self
            .controllers
            .iter()
            .filter(|(_, controller)| *controller.subsystem_nqn == *nqn)
            .filter(|(_, controller)| !subsystem.allows(&controller.host_nqn))
            .map(|(&id, _)| id)
            .collect();
        for id in gone {
            self.drop_controller(id, DropReason::HostDisallowed);
        }
    }

    /// Hosts ask for MDTS, WZSL and the like once per association, and each larger command would fail for good.
    fn drop_misled(&mut self, nqn: &str) {
        let Some(subsystem) = self.subsystems.get(nqn) else { return };
        let (transfer_bytes, zeroes_bytes) =
            (subsystem.transfer_bytes_max(), subsystem.write_zeroes_bytes_max());
        let discard = subsystem.discard_limits();
        self.drop_where(DropReason::TransferLimit, |controller| {
            let misled = controller.transfer_bytes_told > transfer_bytes
                || controller.write_zeroes_bytes_told > zeroes_bytes
                || controller.discard_told.is_some_and(|told| told.and(discard) != told);
            *controller.subsystem_nqn == *nqn && misled
        });
    }

    fn drop_where(
        &mut self,
        reason: DropReason,
        matches: impl Fn(&Controller) -> bool,
    ) -> Vec<ControllerId> {
        let chosen = self.controllers.iter().filter(|(_, found)| !found.dropped && matches(found));
        let ids: Vec<_> = chosen.map(|(&id, _)| id).collect();
        for &id in &ids {
            self.drop_controller(id, reason);
        }
        ids
    }

    pub(crate) fn raise_where(&mut self, notice: Notice, matches: impl Fn(&Controller) -> bool) {
        let mut raised = Vec::new();
        for (&id, controller) in &mut self.controllers {
            if !controller.dropped && matches(controller) {
                controller.events.raise(notice);
                raised.push(id);
            }
        }
        for id in raised {
            self.deliver(id);
        }
    }
}
