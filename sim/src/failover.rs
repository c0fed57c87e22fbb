//! Failover under fire: the real `association`, `multipath` and `subsystem` crates with everything
//! between them simulated, and a checker that knows what a block may contain.
//!
//! ```text
//!   users: one writer per block, readers anywhere          register: what may be read
//!     | read, write                                            ^
//!   layer: Selector, may_retry, waiting                        |
//!     |                                                        |
//!   paths: Association, I/O connection, held writes            |
//!     |                                                        |
//!   wires: TCP in order, black holes, retransmission, FIN      |
//!     |                                                        |
//!   portals: subsystem::Target, commands in flight --------> blocks (shared by all portals)
//! ```
//!
//! Every block is a register with one writer, who writes 1, 2, 3 ... in turn and waits for each.
//! Whatever was acknowledged or read is the least that may ever be read again, and the least that
//! the block may contain: a write that is carried out late, after a later one was acknowledged, is
//! caught at once.
//!
//! What is modelled of the host's I/O queues follows `crates/host/src/queue.rs`: a lost write comes
//! back once the peer has closed the old connection and it has settled, or after the silence that
//! [`association::Association::quiet`] names. What a portal does with commands in flight when it
//! hangs up is its contract: first they are carried out, then it closes the connection, or they
//! never are. One that has stood still for longer than hosts wait ends their connections unread. Every second portal has not signed it, as nvmet has not: its commands end within the
//! Command Quiesce Time that it reports, whatever became of their connection. [`Breach`] breaks such rules on purpose, to see that the checker notices.

mod faults;
mod freeze;
mod host;
mod layer;
mod network;
mod portal;
mod register;

use crate::agenda::Agenda;
use crate::model::{MS, S};
use crate::random::Random;
use faults::{Fault, FaultKind};
use host::Path;
use layer::{Layer, Op};
use multipath::{Policy, Settings, Shared};
use network::{Link, Packet, Wire};
use portal::{Portal, Work};
use register::Registers;
use std::sync::Arc;
use std::time::Duration;

/// Faults happen until then.
const FAULTS_UNTIL_NS: u64 = 60 * S;
/// From then on users begin nothing new.
const USERS_UNTIL_NS: u64 = 70 * S;
/// By then everything must have been answered.
const END_NS: u64 = 130 * S;
/// Blocks, each with a writer of its own.
const BLOCKS: usize = 8;
/// Users who read.
const READERS: usize = 8;

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Breach {
    /// None.
    #[default]
    None,
    /// The host sends lost writes again at once (`failover=fast`, as Linux does).
    Fast,
    /// The host waits until an association has ended, but not for the commands that it leaves behind.
    Impatient,
    /// Portals that say that they drain hang up while commands are in flight that will be carried out.
    EarlyFin,
    /// Somebody between host and portal resets connections: the host takes that for the portal's
    /// word that nothing is in flight any more.
    ForeignReset,
    /// The host closes old connections without taking back what its kernel has still to send.
    Lingering,
    /// The same, and portals keep a connection that was silent beyond the keep alive timeout.
    NoKeepAlive,
    /// Portals that have stood still carry out what had come meanwhile, for however long that was.
    Stale,
}

/// What came out of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What must never happen, in words, with the time; at most some.
    pub violations: Vec<String>,
    /// Reads and writes answered.
    pub completed: u64,
    /// Times that a command was sent again.
    pub retries: u64,
    /// Writes that were held back until their connection was surely dead.
    pub held: u64,
    /// Associations that became live.
    pub lives: u64,
    /// Paths that were given up, which are tried again.
    pub given_up: u64,
    /// Writes that were carried out after the host had given up their connection.
    pub late_writes: u64,
    /// The longest time a user waited, in milliseconds.
    pub stall_ms: u64,
    /// Paths that had faults; where one had none, nobody may wait for long.
    pub faulty: usize,
    /// Paths.
    pub paths: usize,
}

#[derive(Debug)]
enum Event {
    ToPortal {
        wire: usize,
        packet: Packet,
        is_late: bool,
    },
    ToHost {
        wire: usize,
        packet: Packet,
    },
    /// A portal's device has done its work.
    Done(Work),
    PortalTimer(usize),
    HostTimer(usize),
    /// Old connections and slow commands are looked at.
    Scan(usize),
    User(usize),
    Retry(usize),
    Begins(usize),
    Ends(usize),
}

struct World {
    agenda: Agenda<Event>,
    random: Random,
    breach: Breach,
    faults: Vec<Fault>,
    links: Vec<Link>,
    wires: Vec<Wire>,
    portals: Vec<Portal>,
    paths: Vec<Path>,
    layer: Layer,
    ops: Vec<Op>,
    registers: Registers,
    report: Report,
}

/// Runs the scenario that belongs to `seed`: two to four paths, any policy, random faults; from
/// every second seed one path has none, and from every second of those the others are given up after a second.
pub fn run(seed: u64, breach: Breach) -> Report {
    let mut random = Random::new(seed);
    let count = 2 + random.below(3) as usize;
    let policy = Policy::ALL[random.below(5) as usize];
    let settings = Settings { policy, ..Settings::default() };
    let faulty = count - (seed % 2) as usize;
    let drains = |path: usize| (seed / 2 + path as u64).is_multiple_of(2);
    let faults = faults::plan(&mut random, faulty, drains);
    let ctrl_loss_tmo = (seed % 4 == 3).then_some(Duration::from_secs(1));
    let mut world = World {
        agenda: Agenda::default(),
        breach,
        links: (0..count).map(|path| Link::new(&faults, path)).collect(),
        faults,
        wires: Vec::new(),
        portals: (0..count).map(|path| Portal::new(drains(path))).collect(),
        paths: (0..count).map(|_| Path::new(ctrl_loss_tmo)).collect(),
        layer: Layer::new(count, settings, Arc::new(Shared::default()), seed),
        ops: Vec::new(),
        registers: Registers::new(BLOCKS),
        report: Report { faulty, paths: count, ..Report::default() },
        random,
    };
    world.start();
    while let Some(event) = world.agenda.next_before(END_NS) {
        world.handle(event);
    }
    world.conclude();
    world.report
}

impl World {
    fn start(&mut self) {
        for path in 0..self.paths.len() {
            self.paths[path].association.start(Duration::ZERO);
            self.pump_path(path);
            self.agenda.at(MS * (path as u64 + 1), Event::Scan(path));
        }
        for number in 0..self.faults.len() {
            let Fault { from_ns, until_ns, .. } = self.faults[number];
            self.agenda.at(from_ns, Event::Begins(number));
            self.agenda.at(until_ns, Event::Ends(number));
        }
        for user in 0..BLOCKS + READERS {
            self.agenda.at(MS * user as u64, Event::User(user));
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ToPortal { wire, packet, is_late } => self.reach_portal(wire, packet, is_late),
            Event::ToHost { wire, packet } => self.reach_host(wire, packet),
            Event::Done(work) => self.work_done(work),
            Event::PortalTimer(portal) => self.portal_timer(portal),
            Event::HostTimer(path) => self.host_timer(path),
            Event::Scan(path) => self.scan(path),
            Event::User(user) => self.user(user),
            Event::Retry(op) => self.submit(op),
            Event::Begins(fault) => self.fault(fault, true),
            Event::Ends(fault) => self.fault(fault, false),
        }
    }

    /// The time as the state machines take it.
    fn now(&self) -> Duration {
        Duration::from_nanos(self.agenda.now_ns())
    }

    fn violation(&mut self, what: String) {
        if self.report.violations.len() < 8 {
            let at = self.now();
            self.report.violations.push(format!("{at:?}: {what}"));
        }
    }

    fn conclude(&mut self) {
        let open = self.ops.iter().filter(|op| !op.is_done).count();
        if open > 0 {
            self.violation(format!("{open} commands were never answered"));
        }
        for what in self.registers.lost() {
            self.violation(what);
        }
    }

    fn fault(&mut self, number: usize, begins: bool) {
        let Fault { path, kind, .. } = self.faults[number];
        match kind {
            // Links know of it.
            FaultKind::BlackHole => {}
            FaultKind::Kill if begins => self.kill(path, true),
            FaultKind::PowerOff if begins => self.kill(path, false),
            FaultKind::Kill | FaultKind::PowerOff => self.portals[path].revive(),
            FaultKind::Freeze if begins => self.freeze(path),
            FaultKind::Freeze => self.wake(path),
            FaultKind::Slow => self.portals[path].is_slow = begins,
            FaultKind::Reset if begins => self.reset_connections(path),
            FaultKind::Reset => {}
            FaultKind::Inaccessible => self.set_accessible(path, !begins),
        }
    }
}
