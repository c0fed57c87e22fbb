//! The target's side of a path: the real `subsystem::Target`, and a device that takes its time.

use super::freeze::Frozen;
use super::network::{Packet, PortalEnd};
use super::{Breach, Event, World};
use crate::model::{MS, US};
use nvme::limits::{Commands, DiscardLimits, Passthrough};
use nvme::{Command, Completion, Limits, Status, opcode};
use std::time::Duration;
use subsystem::{
    AnaState, ControllerId, IoStatistics, NamespaceConfig, Origin, PortConfig, PortId, Reply,
    SubsystemConfig, Target, TargetConfig,
};

/// The subsystem.
pub const NQN: &str = "nqn.2026-01.org.example:simulated";
/// The longest that a command is in flight in a target after its connection has ended in whatever
/// way: three times what a host allows where it is not told, so portals report it (CQT).
pub const LATE_NS: u64 = 3_000 * MS;

/// A target with one port. All portals serve the same blocks.
pub struct Portal {
    target: Target,
    port: PortId,
    /// It ends connections only when nothing of them is in flight, and says so. One that does not is
    /// like Linux's nvmet: it hangs up first, and its commands are carried out all the same.
    drains: bool,
    is_accessible: bool,
    /// Nobody is there to answer: no power.
    is_off: bool,
    /// The machine is there, the process is not.
    is_down: bool,
    /// Counts restarts: what belongs to an earlier life is unknown in this.
    life: u64,
    /// The last life that ended with commands in flight that may be carried out.
    silent_end: u64,
    pub is_slow: bool,
    /// The process stands still.
    pub frozen: Option<Frozen>,
    timer: Option<Duration>,
}

/// A command that the device works on.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub wire: usize,
    life: u64,
    cid: u16,
    block: usize,
    /// What is written; none for a read.
    value: Option<u64>,
}

impl Portal {
    pub fn new(drains: bool) -> Portal {
        let (target, port) = target(true, drains);
        Portal {
            target,
            port,
            drains,
            is_accessible: true,
            is_off: false,
            is_down: false,
            life: 1,
            silent_end: 0,
            is_slow: false,
            frozen: None,
            timer: None,
        }
    }

    /// The process runs again, with nothing but its configuration.
    pub fn revive(&mut self) {
        (self.target, self.port) = target(self.is_accessible, self.drains);
        (self.is_off, self.is_down, self.timer) = (false, false, None);
    }
}

fn target(is_accessible: bool, drains: bool) -> (Target, PortId) {
    let command_quiesce_time_ms = (LATE_NS / MS) as u16;
    let config = TargetConfig { drains, command_quiesce_time_ms, ..TargetConfig::default() };
    let limits = Limits {
        block_shift: 12,
        blocks: 1 << 20,
        transfer_bytes_max: 1 << 20,
        write_zeroes_bytes_max: u32::MAX,
        discard: DiscardLimits::UNLIMITED,
        optimal_write_bytes: 4096,
        read_only: false,
        volatile_write_cache: false,
        commands: Commands::default(),
        copy: nvme::limits::CopyLimits::NONE,
        metadata_bytes: 0,
        passthrough: Passthrough::NONE,
        lends_reads: false,
        immediate: false,
    };
    let subsystem = SubsystemConfig {
        nqn: NQN.into(),
        serial: "S1".into(),
        model: "simulated".into(),
        allow_any_host: true,
        hosts: Vec::new(),
        io_queues_max: 8,
        fused: false,
    };
    let namespace =
        NamespaceConfig { nsid: None, uuid: [1; 16], nguid: [2; 16], ana_group: 1, limits };
    let traddr = std::net::Ipv4Addr::LOCALHOST.into();
    let mut target = Target::new(config).expect("it is valid");
    let port = target
        .add_port(PortConfig { traddr, trsvcid: 4420, is_secured: false })
        .expect("the port is new");
    target.add_subsystem(subsystem).expect("the subsystem is valid");
    target.add_namespace(NQN, namespace).expect("the namespace is valid");
    if !is_accessible {
        target.set_ana_state(NQN, port, 1, AnaState::INACCESSIBLE).expect("the group exists");
    }
    (target, port)
}

impl World {
    /// A message arrives at a portal.
    pub fn reach_portal(&mut self, wire: usize, packet: Packet, is_late: bool) {
        let path = self.wires[wire].path;
        if self.wires[wire].is_reset && is_late {
            return;
        }
        if self.portals[path].is_off {
            // Sent again until somebody is there, who then knows nothing of the connection.
            let delay_ns = 200 * MS + self.random.below(400 * MS);
            self.agenda.after(delay_ns, Event::ToPortal { wire, packet, is_late: true });
            return;
        }
        self.wires[wire].unacknowledged -= 1;
        match &mut self.portals[path].frozen {
            Some(frozen) => frozen.unread.push((wire, packet, is_late)),
            None => self.portal_takes(wire, packet, is_late),
        }
    }

    /// A portal looks at what has arrived.
    pub fn portal_takes(&mut self, wire: usize, packet: Packet, is_late: bool) {
        let path = self.wires[wire].path;
        let (life, is_down) = (self.portals[path].life, self.portals[path].is_down);
        if matches!(packet, Packet::Syn) {
            if is_down {
                return self.send_down(wire, Packet::Rst);
            }
            self.wires[wire].portal = PortalEnd { is_open: true, life, ..PortalEnd::default() };
            return self.send_down(wire, Packet::SynAck);
        }
        let end = &self.wires[wire].portal;
        let is_known = end.is_open && end.life == life;
        match packet {
            Packet::Rst => self.portal_closes(wire, false),
            _ if !is_known => self.send_down(wire, Packet::Rst),
            Packet::Fin => self.portal_hears_the_end(wire),
            Packet::Capsule { .. } if end.is_closing => {}
            Packet::Capsule { command, data, value } => {
                self.command(wire, &command, &data, value, is_late);
            }
            Packet::Syn | Packet::SynAck | Packet::Answer { .. } => {
                unreachable!("hosts do not send this")
            }
        }
        self.pump_portal(path);
    }

    fn command(&mut self, wire: usize, command: &Command, data: &[u8], value: u64, is_late: bool) {
        let (path, now) = (self.wires[wire].path, self.now());
        let cid = command.cid.get();
        let portal = &mut self.portals[path];
        let Some((controller, queue)) = self.wires[wire].portal.controller else {
            let origin = Origin { port: portal.port, local_address: None, secured: None };
            let (status, result) = match portal.target.connect(origin, command, data, now) {
                Ok(connected) => {
                    let id = (connected.controller, connected.queue_id);
                    self.wires[wire].portal.controller = Some(id);
                    (Status::SUCCESS, u64::from(connected.cntlid))
                }
                Err(refused) => (refused.status, refused.result),
            };
            return self.answer(wire, cid, status, result, Vec::new());
        };
        if queue == 0 {
            let statistics = |_| IoStatistics::default();
            match portal.target.admin(controller, command, data, now, &statistics) {
                Reply::Complete { status, result, data } => {
                    self.answer(wire, cid, status, result, data.unwrap_or_default());
                }
                Reply::Held => {}
                Reply::AbortCommand { .. } => {
                    self.answer(wire, cid, Status::SUCCESS, 1, Vec::new())
                }
                Reply::Pass { .. } => unreachable!("there is nothing to pass commands through to"),
                Reply::Allocation { .. } => unreachable!("no volume tells its holes here"),
                Reply::Compute(_) | Reply::Refuse { .. } => {
                    unreachable!("no host has to prove who it is here")
                }
                Reply::Disconnect => self.portal_hears_the_end(wire),
            }
            return;
        }
        portal.target.activity(controller, now);
        let accesses = portal.target.namespaces(NQN, portal.port);
        let state = accesses.first().map_or(AnaState::INACCESSIBLE, |access| access.state);
        if let Some(status) = state.io_status() {
            return self.answer(wire, cid, status, 0, Vec::new());
        }
        let is_write = command.opcode == opcode::io::WRITE;
        if is_write && is_late && !self.wires[wire].host_cares {
            self.report.late_writes += 1;
        }
        let time_ns = match self.random.below(200) {
            _ if portal.is_slow => self.random.below(500 * MS),
            0 => self.random.below(LATE_NS - 50 * MS),
            _ => 20 * US + self.random.below(2 * MS),
        };
        let block = command.slba() as usize;
        let (life, value) = (portal.life, is_write.then_some(value));
        self.wires[wire].portal.in_flight += 1;
        self.agenda.after(time_ns, Event::Done(Work { wire, life, cid, block, value }));
    }

    fn answer(&mut self, wire: usize, cid: u16, status: Status, result: u64, data: Vec<u8>) {
        let completion = Completion::new(cid, status, result);
        self.send_down(wire, Packet::Answer { completion, data, value: 0 });
    }

    /// The device has carried out a command.
    pub fn work_done(&mut self, work: Work) {
        let portal = &self.portals[self.wires[work.wire].path];
        let is_of_now = portal.life == work.life;
        // In a target that has died meanwhile: see `kill`.
        let is_late = portal.silent_end == work.life && self.random.chance(0.5);
        if !is_of_now && !is_late && self.breach != Breach::EarlyFin {
            return;
        }
        if let Some(value) = work.value
            && let Err(what) = self.registers.store(work.block, value)
        {
            self.violation(what);
        }
        if !is_of_now {
            return;
        }
        let value = self.registers.stored(work.block);
        match &mut self.portals[self.wires[work.wire].path].frozen {
            Some(frozen) => frozen.done.push((work, value)),
            None => self.portal_hears_of(work, value),
        }
    }

    /// A portal looks at what its device has done: `value` is what the block held then.
    pub fn portal_hears_of(&mut self, work: Work, value: u64) {
        let end = &mut self.wires[work.wire].portal;
        end.in_flight -= 1;
        let is_open = end.is_open;
        if is_open {
            let completion = Completion::new(work.cid, Status::SUCCESS, 0);
            self.send_down(work.wire, Packet::Answer { completion, data: Vec::new(), value });
        }
        self.close_when_done(work.wire);
    }

    /// The host sends nothing more: what was begun is finished, then the portal closes too; or the other
    /// way round where it does not drain.
    pub fn portal_hears_the_end(&mut self, wire: usize) {
        self.wires[wire].portal.is_closing = true;
        self.close_when_done(wire);
    }

    fn close_when_done(&mut self, wire: usize) {
        let end = &self.wires[wire].portal;
        let drains = self.portals[self.wires[wire].path].drains;
        let waits = end.in_flight > 0 && drains && self.breach != Breach::EarlyFin;
        if end.is_open && end.is_closing && !waits {
            self.portal_closes(wire, true);
            let path = self.wires[wire].path;
            self.pump_portal(path);
        }
    }

    fn portal_closes(&mut self, wire: usize, tells: bool) {
        let path = self.wires[wire].path;
        let end = &mut self.wires[wire].portal;
        if !std::mem::take(&mut end.is_open) {
            return;
        }
        if tells {
            self.send_down(wire, Packet::Fin);
        }
        let (now, portal) = (self.now(), &mut self.portals[path]);
        if let Some((controller, queue)) = self.wires[wire].portal.controller
            && self.wires[wire].portal.life == portal.life
        {
            portal.target.disconnected(controller, queue, now);
        }
    }

    /// Does what the target wants done.
    fn pump_portal(&mut self, path: usize) {
        while let Some(event) = self.portals[path].target.poll_event() {
            match event {
                subsystem::Event::Complete { controller, cid, status, result } => {
                    for wire in self.wires_of(path, controller, Some(0)) {
                        self.answer(wire, cid, status, result, Vec::new());
                    }
                }
                subsystem::Event::Drop { controller, reason } => {
                    let is_silence = reason == subsystem::DropReason::KeepAliveExpired;
                    if is_silence && self.breach == Breach::NoKeepAlive {
                        continue;
                    }
                    for wire in self.wires_of(path, controller, None) {
                        self.portal_hears_the_end(wire);
                    }
                }
                subsystem::Event::DropIoQueues { controller } => {
                    for wire in self.wires_of(path, controller, Some(1)) {
                        self.portal_hears_the_end(wire);
                    }
                }
                subsystem::Event::NamespacesChanged { .. } => {}
            }
        }
        let portal = &mut self.portals[path];
        let next = portal.target.next_timeout();
        if next.is_some() && next != portal.timer {
            portal.timer = next;
            let at_ns = next.unwrap_or_default().as_nanos() as u64;
            self.agenda.at(at_ns, Event::PortalTimer(path));
        }
    }

    /// Open wires of a controller, of one of its queues or of all.
    fn wires_of(&self, path: usize, controller: ControllerId, queue: Option<u16>) -> Vec<usize> {
        self.connected(path, |(id, found)| {
            id == controller && queue.is_none_or(|queue| queue == found)
        })
    }

    /// Open wires of the controllers and queues that are wanted.
    pub fn connected(
        &self,
        path: usize,
        wanted: impl Fn((ControllerId, u16)) -> bool,
    ) -> Vec<usize> {
        let life = self.portals[path].life;
        let belongs = |number: &usize| {
            let wire = &self.wires[*number];
            let end = &wire.portal;
            let named = end.controller.is_some_and(&wanted);
            wire.path == path && end.is_open && end.life == life && named
        };
        (0..self.wires.len()).filter(belongs).collect()
    }

    pub fn portal_timer(&mut self, path: usize) {
        let (now, portal) = (self.now(), &mut self.portals[path]);
        portal.timer = None;
        if !portal.is_off && !portal.is_down && portal.frozen.is_none() {
            portal.target.handle_timeout(now);
            self.pump_portal(path);
        }
    }

    /// The process dies. What its device works on is never carried out; where nobody closes the
    /// connections, or it is none that drains, half of it is, within the time that it would have taken.
    pub fn kill(&mut self, path: usize, is_orderly: bool) {
        let portal = &mut self.portals[path];
        (portal.is_off, portal.is_down) = (!is_orderly, true);
        if !is_orderly || !portal.drains {
            portal.silent_end = portal.life;
        }
        portal.life += 1;
        let wires: Vec<usize> =
            (0..self.wires.len()).filter(|wire| self.wires[*wire].path == path).collect();
        for wire in wires {
            let end = &mut self.wires[wire].portal;
            if std::mem::take(&mut end.is_open) && is_orderly {
                self.send_down(wire, Packet::Fin);
            }
        }
    }

    /// All connections end: the portal finishes what it has begun and closes them. Or, where that
    /// rule is broken, somebody between both ends resets them, and the device goes on.
    pub fn reset_connections(&mut self, path: usize) {
        let life = self.portals[path].life;
        for wire in 0..self.wires.len() {
            let it = &self.wires[wire];
            if it.path != path || !it.portal.is_open || it.portal.life != life {
                continue;
            }
            if self.breach == Breach::ForeignReset {
                self.send_down(wire, Packet::Rst);
                self.portal_closes(wire, false);
            } else {
                self.portal_hears_the_end(wire);
            }
        }
        self.pump_portal(path);
    }

    pub fn set_accessible(&mut self, path: usize, is_accessible: bool) {
        let portal = &mut self.portals[path];
        portal.is_accessible = is_accessible;
        let state = if is_accessible { AnaState::OPTIMIZED } else { AnaState::INACCESSIBLE };
        let port = portal.port;
        portal.target.set_ana_state(NQN, port, 1, state).expect("the group exists");
        self.pump_portal(path);
    }
}
