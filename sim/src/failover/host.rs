//! The host's side of a path: the real association, and an I/O connection that does as
//! `crates/host/src/queue.rs` does.

use super::network::{Packet, Wire};
use super::portal::{LATE_NS, NQN};
use super::{Breach, Event, World};
use crate::model::MS;
use association::{Access, Action, Association, Config, Reason, Traffic, retry};
use multipath::Standing;
use nvme::{Completion, Status};
use std::collections::BTreeMap;
use std::time::Duration;

/// From one look at old connections and slow commands to the next.
const SCAN_NS: u64 = 10 * MS;
/// Keep alive time-out of an association.
pub const KEEP_ALIVE_NS: u64 = 2_000 * MS;
/// A command takes too long.
const IO_TIMEOUT_NS: u64 = 4_000 * MS;
/// After Abort it has so long.
const ABORT_WAIT_NS: u64 = 2_000 * MS;
/// Identifier of Connect on an I/O queue: no other command has it.
const CONNECT_CID: u16 = u16::MAX;

/// A path.
pub struct Path {
    pub association: Association,
    admin: Option<usize>,
    io: Option<usize>,
    /// The I/O queue is connected.
    is_live: bool,
    /// Commands on the I/O connection, by identifier.
    slots: BTreeMap<u16, Slot>,
    next_cid: u16,
    old: Vec<Old>,
    timer: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    op: usize,
    sent_ns: u64,
    is_aborted: bool,
}

/// A connection that was given up with writes on it.
struct Old {
    wire: usize,
    held: Vec<usize>,
    dead_at: Duration,
}

impl Path {
    /// One that is given up after `ctrl_loss_tmo`, if at all.
    pub fn new(ctrl_loss_tmo: Option<Duration>) -> Path {
        let config = Config {
            ctrl_loss_tmo,
            io_queues: 1,
            keep_alive_tmo: Duration::from_nanos(KEEP_ALIVE_NS),
            reconnect_delay: Duration::from_millis(200),
            admin_timeout: Duration::from_secs(3),
            ..Config::new(NQN, "nqn.2026-01.org.example:host", [7; 16])
        };
        Path {
            association: Association::new(config),
            admin: None,
            io: None,
            is_live: false,
            slots: BTreeMap::new(),
            next_cid: 0,
            old: Vec::new(),
            timer: None,
        }
    }

    /// After how long a silent connection is dead, and one that the portal has ended.
    fn patience(&self, breach: Breach) -> (Duration, Duration) {
        let (quiet, settle) = (self.association.quiet(), self.association.settle());
        match breach {
            Breach::Impatient => {
                (quiet.saturating_sub(Duration::from_nanos(LATE_NS)), Duration::ZERO)
            }
            Breach::Fast => (Duration::ZERO, Duration::ZERO),
            _ => (quiet, settle),
        }
    }

    /// How commands fare here.
    pub fn standing(&self) -> Standing {
        match self.association.access() {
            Access::Optimized if self.is_live => Standing::Optimized,
            Access::NonOptimized if self.is_live => Standing::NonOptimized,
            _ => Standing::Unusable,
        }
    }
}

impl World {
    fn event(&mut self, path: usize, generation: u64, event: association::Event<'_>) {
        let now = self.now();
        self.paths[path].association.handle(now, generation, event);
        self.pump_path(path);
    }

    /// Does what the association wants done.
    pub fn pump_path(&mut self, path: usize) {
        while let Some(action) = self.paths[path].association.poll_action() {
            match action {
                Action::Dial(generation) => {
                    self.paths[path].admin = Some(self.open_wire(path, true, generation));
                }
                Action::Send { generation, mut command, data, answer_bytes } => {
                    let Some(wire) = self.paths[path].admin else { continue };
                    if self.wires[wire].generation != generation {
                        continue;
                    }
                    let bytes = answer_bytes.max(data.len() as u32);
                    command.set_sgl(nvme::Sgl::transport(bytes));
                    let command = Box::new(command);
                    self.send_up(wire, Packet::Capsule { command, data, value: 0 });
                }
                Action::Live(generation) => {
                    self.report.lives += 1;
                    self.paths[path].io = Some(self.open_wire(path, false, generation));
                }
                Action::HangUp { .. } => {
                    if let Some(wire) = self.paths[path].admin.take() {
                        self.host_closes(wire);
                    }
                    self.lose(path, false);
                }
                Action::AccessChanged => {
                    let is_gone = self.paths[path].association.access() == Access::Gone;
                    self.report.given_up += u64::from(is_gone);
                    self.access_changed(path);
                }
                Action::NamespaceChanged => {
                    let now = self.now();
                    self.paths[path].association.accept(now);
                }
                Action::DiscoveryChanged => {}
                Action::Compute { .. } => unreachable!("nobody demands authentication here"),
            }
        }
        let next = self.paths[path].association.next_timeout();
        if next.is_some() && next != self.paths[path].timer {
            self.paths[path].timer = next;
            let at_ns = next.unwrap_or_default().as_nanos() as u64;
            self.agenda.at(at_ns, Event::HostTimer(path));
        }
    }

    pub fn host_timer(&mut self, path: usize) {
        let now = self.now();
        self.paths[path].timer = None;
        let stands = |path: &Path| path.association.access() != Access::Gone;
        let has_company = self.paths.iter().any(stands);
        self.paths[path].association.set_company(has_company);
        self.paths[path].association.handle_timeout(now);
        self.pump_path(path);
    }

    fn open_wire(&mut self, path: usize, is_admin: bool, generation: u64) -> usize {
        self.wires.push(Wire::new(path, is_admin, generation));
        let wire = self.wires.len() - 1;
        self.send_up(wire, Packet::Syn);
        wire
    }

    /// Takes nothing more from it. What has not arrived yet is taken back with a reset; otherwise
    /// the portal is told that nothing more comes.
    fn host_closes(&mut self, wire: usize) {
        let it = &mut self.wires[wire];
        it.host_cares = false;
        if std::mem::replace(&mut it.host_closed, true) {
            return;
        }
        let lingers = matches!(self.breach, Breach::Lingering | Breach::NoKeepAlive);
        it.is_reset = it.unacknowledged > 0 && !lingers;
        let packet = if it.is_reset { Packet::Rst } else { Packet::Fin };
        self.send_up(wire, packet);
    }

    /// A message arrives at the host.
    pub fn reach_host(&mut self, number: usize, packet: Packet) {
        let Wire { path, is_admin, generation, host_cares, .. } = self.wires[number];
        if !host_cares {
            // Of a connection that was reset from here the peer's end is not seen.
            if matches!(packet, Packet::Fin | Packet::Rst) && !self.wires[number].is_reset {
                self.old_has_ended(path, number);
            }
            return;
        }
        match packet {
            Packet::SynAck if is_admin => {
                self.event(path, generation, association::Event::Connected);
            }
            Packet::SynAck => {
                let (mut command, data) = self.paths[path].association.connect_io(1, false);
                command.cid = CONNECT_CID.into();
                command.set_sgl(nvme::Sgl::in_capsule(0, data.len() as u32));
                let command = Box::new(command);
                self.send_up(number, Packet::Capsule { command, data, value: 0 });
            }
            Packet::Answer { completion, data, .. } if is_admin => {
                let event = association::Event::Completed(&completion, &data);
                self.event(path, generation, event);
            }
            Packet::Answer { completion, value, .. } => self.io_answer(path, &completion, value),
            Packet::Fin | Packet::Rst if is_admin => {
                let reason = Reason::Transport("the peer closed the connection".into());
                self.event(path, generation, association::Event::Lost(reason));
            }
            Packet::Fin | Packet::Rst => {
                self.lose(path, true);
                let what = "the peer closed the connection".into();
                self.event(path, generation, association::Event::QueueLost(1, what));
            }
            Packet::Syn | Packet::Capsule { .. } => unreachable!("portals do not send this"),
        }
    }

    fn io_answer(&mut self, path: usize, completion: &Completion, value: u64) {
        let cid = completion.cid.get();
        let status = completion.status();
        if cid == CONNECT_CID {
            let generation = self.paths[path].association.generation();
            if status.is_success() {
                self.paths[path].is_live = true;
                self.event(path, generation, association::Event::QueueLive);
                return self.access_changed(path);
            }
            let event = association::Event::QueueLost(1, "Connect was refused".into());
            return self.event(path, generation, event);
        }
        let Some(slot) = self.paths[path].slots.remove(&cid) else {
            return self.violation(format!("path {path}: an answer to no command, {cid}"));
        };
        self.paths[path].association.traffic(Traffic { sent: false, answered: true });
        if status.code().sct() == 3 {
            let generation = self.paths[path].association.generation();
            self.event(path, generation, association::Event::AnaStatus);
        }
        self.completed(slot.op, status, value);
    }

    /// Sends a user's command on a path that is live.
    pub fn send_io(&mut self, path: usize, op: usize) {
        let state = &mut self.paths[path];
        let wire = state.io.expect("a live path has a connection");
        let free = |cid: &u16| *cid != CONNECT_CID && !state.slots.contains_key(cid);
        let first = state.next_cid;
        let cid = (0..=u16::MAX).map(|step| first.wrapping_add(step)).find(free);
        let cid = cid.expect("there are not so many commands");
        state.next_cid = cid.wrapping_add(1);
        let sent_ns = self.agenda.now_ns();
        state.slots.insert(cid, Slot { op, sent_ns, is_aborted: false });
        state.association.traffic(Traffic { sent: true, answered: false });
        let mut command = self.ops[op].command;
        command.cid = cid.into();
        let (command, value) = (Box::new(command), self.ops[op].value);
        self.send_up(wire, Packet::Capsule { command, data: Vec::new(), value });
    }

    /// The I/O connection is of no use any more.
    fn lose(&mut self, path: usize, by_peer: bool) {
        let now = self.now();
        let state = &mut self.paths[path];
        state.is_live = false;
        let Some(wire) = state.io.take() else { return };
        let (quiet, settle) = state.patience(self.breach);
        let slots = std::mem::take(&mut state.slots);
        let wait = if by_peer { settle } else { quiet };
        let (is_dead, dead_at) = (wait.is_zero(), now + wait);
        let (mut lost, mut held) = (Vec::new(), Vec::new());
        for slot in slots.into_values() {
            let is_harmless = retry::changes_nothing(&self.ops[slot.op].command);
            if is_dead || is_harmless { &mut lost } else { &mut held }.push(slot.op);
        }
        self.report.held += held.len() as u64;
        self.host_closes(wire);
        if !held.is_empty() {
            self.paths[path].old.push(Old { wire, held, dead_at });
        }
        self.access_changed(path);
        for op in lost {
            self.completed(op, Status::HOST_PATHING_ERROR, 0);
        }
    }

    /// The portal has ended an old connection.
    fn old_has_ended(&mut self, path: usize, wire: usize) {
        let now = self.now();
        let (_, settle) = self.paths[path].patience(self.breach);
        if settle.is_zero() {
            return self.old_is_dead(path, wire);
        }
        let olds = &mut self.paths[path].old;
        if let Some(old) = olds.iter_mut().find(|old| old.wire == wire) {
            old.dead_at = old.dead_at.min(now + settle);
        }
    }

    fn old_is_dead(&mut self, path: usize, wire: usize) {
        let olds = &mut self.paths[path].old;
        let Some(place) = olds.iter().position(|old| old.wire == wire) else { return };
        for op in olds.remove(place).held {
            self.completed(op, Status::HOST_PATHING_ERROR, 0);
        }
    }

    /// Looks after old connections, slow commands and probes.
    pub fn scan(&mut self, path: usize) {
        let (now, now_ns) = (self.now(), self.agenda.now_ns());
        let dead = |old: &Old| (old.dead_at <= now).then_some(old.wire);
        let dead: Vec<usize> = self.paths[path].old.iter().filter_map(dead).collect();
        for wire in dead {
            self.old_is_dead(path, wire);
        }
        let generation = self.paths[path].association.generation();
        let mut late = Vec::new();
        for (cid, slot) in &mut self.paths[path].slots {
            let limit_ns = IO_TIMEOUT_NS + if slot.is_aborted { ABORT_WAIT_NS } else { 0 };
            if now_ns - slot.sent_ns >= limit_ns {
                late.push((*cid, slot.is_aborted));
                slot.is_aborted = true;
            }
        }
        for (cid, again) in late {
            self.event(path, generation, association::Event::IoTimeout { queue: 1, cid, again });
        }
        self.agenda.after(SCAN_NS, Event::Scan(path));
    }
}
