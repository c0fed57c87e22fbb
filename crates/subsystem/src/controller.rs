//! State of one controller.

use crate::async_event::AsyncEvents;
use crate::config::PortId;
use crate::event::{ControllerId, DropReason};
use crate::feature::Features;
use crate::target::ControllerSummary;
use crate::{ERROR_ENTRIES_MAX, IO_QUEUES_MAX, KEEP_ALIVE_GRANULARITY, UNUSED_IDLE};
use nvme::fabrics::{Cc, Csts};
use nvme::limits::DiscardLimits;
use nvme::log::{CHANGED_NAMESPACES_MAX, ErrorEntry};
use nvme::opcode::io as opcode;
use nvme::{Command, NSID_ALL, Status};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::FromZeros;

/// One association's controller, from the admin queue's Connect to its last connection's end.
pub(crate) struct Controller {
    pub cntlid: u16,
    pub discovery: bool,
    pub subsystem_nqn: Arc<str>,
    pub host_nqn: Arc<str>,
    pub host_id: [u8; 16],
    pub port: PortId,
    pub local_address: Option<IpAddr>,
    pub cc: Cc,
    pub csts: Csts,
    pub queues: QueueSet,
    /// Proofs that hosts of queues owe or have given, by queue id.
    pub authentication: BTreeMap<u16, dhchap::Controller>,
    /// CC.EN was cleared, and I/O queues are left.
    pub resetting: bool,
    pub keep_alive: KeepAlive,
    /// Milliseconds that Connect asked for: what the timer is by default.
    pub connect_kato_ms: u32,
    /// After a reset or shutdown: when the remaining connection is closed, and why.
    pub linger: Option<(Duration, DropReason)>,
    /// The transport was told to close everything.
    pub dropped: bool,
    /// The largest transfer that the host was told of; zero if it has not asked.
    pub transfer_bytes_told: u32,
    /// The same of Write Zeroes.
    pub write_zeroes_bytes_told: u32,
    /// What it was told of Dataset Management.
    pub discard_told: Option<DiscardLimits>,
    pub events: AsyncEvents,
    pub features: Features,
    pub errors: ErrorLog,
    pub changed: ChangedNamespaces,
}

impl Controller {
    /// What is told of it.
    pub fn summary(&self) -> ControllerSummary {
        ControllerSummary {
            controller: ControllerId(self.cntlid),
            subsystem_nqn: Arc::clone(&self.subsystem_nqn),
            host_nqn: Arc::clone(&self.host_nqn),
            host_id: self.host_id,
            port: self.port,
            discovery: self.discovery,
            io_queues: self.queues.io_count(),
            kato_ms: self.keep_alive.kato_ms(),
            enabled: self.is_enabled(),
            shut_down: self.csts.0 & Csts::SHST != 0,
            dropped: self.dropped,
            authentication: self.authentication.get(&0).and_then(dhchap::Controller::agreed),
            errors: self.errors.count,
        }
    }

    /// Whether it carries out commands and takes queues: not before it is enabled, nor after it was shut down.
    pub fn is_enabled(&self) -> bool {
        self.csts.ready() && !self.resetting && self.csts.0 & Csts::SHST == 0
    }

    /// When this controller needs attention next.
    pub fn deadline(&self) -> Option<Duration> {
        if self.dropped {
            return None;
        }
        match self.linger {
            Some((at, _)) => Some(at),
            None => self.timer(),
        }
    }

    /// When silence ends it, if it does. A host that has yet to prove who it is sends no Keep Alive, and may compute for
    /// long: its timer begins when it has.
    fn timer(&self) -> Option<Duration> {
        if self.is_proven(0) {
            return self.keep_alive.deadline(self.may_not_idle());
        }
        Some(self.keep_alive.started + UNUSED_IDLE)
    }

    /// Whether silence ends it even without a keep alive timer.
    fn may_not_idle(&self) -> bool {
        self.discovery || !self.csts.ready()
    }

    /// Why the controller has to go at `now`, if it has to.
    pub fn expired(&mut self, now: Duration) -> Option<DropReason> {
        if self.dropped {
            return None;
        }
        if let Some((at, reason)) = self.linger {
            return (at <= now).then_some(reason);
        }
        let late = self.timer().is_some_and(|at| at <= now);
        if !late || self.keep_alive.restart(now) {
            return None;
        }
        Some(match self.keep_alive.timeout {
            Some(_) if self.is_proven(0) => DropReason::KeepAliveExpired,
            _ => DropReason::Idle,
        })
    }
}

/// The keep alive timer, traffic based (TBKAS; NVMe Base 2.1, section 3.9.4.1): when it expires it
/// starts again if there was any command since it was started, so that silence is noticed after
/// one to two timeouts. Older Linux hosts rely on the second: a completion makes them leave out
/// their next Keep Alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    /// Timeout, rounded up to the granularity; `None`: off.
    pub timeout: Option<Duration>,
    started: Duration,
    /// When something was last heard from the host.
    last: Duration,
}

impl KeepAlive {
    /// A timer of `kato_ms` milliseconds, zero for none, started at `now`.
    pub fn new(kato_ms: u32, now: Duration) -> KeepAlive {
        let granules = u64::from(kato_ms).div_ceil(KEEP_ALIVE_GRANULARITY.as_millis() as u64);
        let timeout = Duration::from_secs(granules * KEEP_ALIVE_GRANULARITY.as_secs());
        KeepAlive { timeout: (kato_ms != 0).then_some(timeout), started: now, last: now }
    }

    /// The timeout in force in milliseconds.
    pub fn kato_ms(&self) -> u32 {
        self.timeout.map_or(0, |timeout| timeout.as_millis().try_into().unwrap_or(u32::MAX))
    }

    fn deadline(&self, may_not_idle: bool) -> Option<Duration> {
        let timeout = self.timeout.or(may_not_idle.then_some(UNUSED_IDLE))?;
        Some(self.started + timeout)
    }

    /// Starts the timer at `now`.
    pub fn begin(&mut self, now: Duration) {
        (self.started, self.last) = (now, now);
    }

    /// A command of the host was processed at `now`.
    pub fn heard(&mut self, now: Duration) {
        self.last = self.last.max(now);
    }

    /// The timer has expired: starts it again if there was a command, and tells whether there was.
    fn restart(&mut self, now: Duration) -> bool {
        let heard = self.last > self.started;
        if heard {
            self.started = now;
        }
        heard
    }
}

/// Queue ids with a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueSet([u64; 3]);
const _: () = assert!((IO_QUEUES_MAX as usize) < 3 * 64);

impl QueueSet {
    pub fn contains(&self, qid: u16) -> bool {
        qid <= IO_QUEUES_MAX && self.0[usize::from(qid / 64)] & 1 << (qid % 64) != 0
    }

    pub fn insert(&mut self, qid: u16) {
        debug_assert!(qid <= IO_QUEUES_MAX);
        self.0[usize::from(qid / 64)] |= 1 << (qid % 64);
    }

    pub fn remove(&mut self, qid: u16) {
        if self.contains(qid) {
            self.0[usize::from(qid / 64)] &= !(1 << (qid % 64));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0 == [0; 3]
    }

    /// I/O queues with a connection.
    pub fn io_count(&self) -> u16 {
        let all: u32 = self.0.iter().map(|word| word.count_ones()).sum();
        all as u16 - u16::from(self.contains(0))
    }
}

/// The last failed commands (NVMe Base 2.1, section 5.1.12.1.2).
#[derive(Default)]
pub(crate) struct ErrorLog {
    /// Errors since the controller came to be.
    pub count: u64,
    /// Newest first.
    pub entries: VecDeque<ErrorEntry>,
}

impl ErrorLog {
    pub fn note(&mut self, sqid: u16, command: &Command, status: Status) {
        self.count += 1;
        let mut entry = ErrorEntry::new_zeroed();
        entry.error_count = self.count.into();
        entry.sqid = sqid.into();
        entry.cid = command.cid;
        entry.status = (status.0 << 1).into();
        entry.location = 0xffff.into();
        if sqid != 0 && has_block(command.opcode) {
            entry.lba = command.slba().into();
        }
        if command.opcode != nvme::opcode::admin::FABRICS {
            entry.nsid = command.nsid;
        }
        entry.trtype = nvme::log::discovery::TransportType::TCP.0;
        entry.opcode = command.opcode;
        entry.version = 1;
        self.entries.truncate(ERROR_ENTRIES_MAX - 1);
        self.entries.push_front(entry);
    }
}

/// Whether dwords 10 and 11 of an I/O command are the first block that it is about.
fn has_block(code: u8) -> bool {
    matches!(
        code,
        opcode::READ
            | opcode::WRITE
            | opcode::COMPARE
            | opcode::VERIFY
            | opcode::WRITE_ZEROES
            | opcode::WRITE_UNCORRECTABLE
            | opcode::COPY
    )
}

/// Namespaces that changed since the list was last read (NVMe Base 2.1, section 5.1.12.1.5).
#[derive(Debug, Default)]
pub(crate) struct ChangedNamespaces {
    nsids: BTreeSet<u32>,
    overflow: bool,
}

impl ChangedNamespaces {
    pub fn note(&mut self, nsid: u32) {
        if self.overflow {
            return;
        }
        self.nsids.insert(nsid);
        if self.nsids.len() > CHANGED_NAMESPACES_MAX {
            self.nsids.clear();
            self.overflow = true;
        }
    }

    pub fn list(&self) -> Vec<u32> {
        if self.overflow { vec![NSID_ALL] } else { self.nsids.iter().copied().collect() }
    }

    pub fn clear(&mut self) {
        *self = ChangedNamespaces::default();
    }
}
