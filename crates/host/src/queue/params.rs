//! What an association tells its I/O queues.

use crate::options::Failover;
use crate::shared::{Losses, Shared};
use association::{Association, Credentials};
use namespace::Unflushed;
use nvme::copy::Format;
use nvme::fabrics::Connect;
use nvme::{Command, Status, opcode};
use nvme_tcp::host::Transfer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// What the I/O queues of one association need to know.
#[derive(Debug)]
pub(crate) struct Params {
    pub(crate) generation: u64,
    pub(crate) io_queues: u16,
    /// May change while the association lives; 0 while there is no namespace.
    pub(crate) nsid: AtomicU32,
    pub(crate) entries: u16,
    /// Commands outstanding.
    pub(crate) commands_max: u16,
    pub(crate) in_capsule_bytes: u32,
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
    /// The kernel encrypts connections.
    pub(crate) encrypted: bool,
    pub(crate) flow_control: bool,
    /// The subsystem's name, as [`crate::subsystem::Subsystem::name`] shares it.
    pub(crate) subsystem: Arc<str>,
    /// How a Copy may name namespaces of the subsystem.
    pub(crate) copies_between: Option<Format>,
    /// A Copy may write to blocks that it reads.
    pub(crate) copies_overlapping: bool,
    /// Connect for queue 1 without flow control, and its data.
    connect: (Command, Vec<u8>),
    /// By what this host proves who it is.
    pub(crate) credentials: Option<Credentials>,
    /// A connection is surely dead so long after the last byte was sent; zero: at once.
    pub(crate) quiet: Duration,
    /// The same after the controller has closed it.
    pub(crate) settle: Duration,
    pub(crate) io_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    /// The namespace has a volatile write cache. May change while the association lives.
    pub(crate) writes_back: AtomicBool,
    /// What the association has acknowledged, where that matters.
    unflushed: Unflushed,
    losses: Arc<Losses>,
    /// The start of the target, where the controller tells.
    pub(crate) instance: Option<[u8; 16]>,
}

impl Params {
    pub(crate) fn new(association: &Association, shared: &Shared) -> Params {
        let controller = association.controller();
        let options = &shared.options;
        let entries = association.queue_entries();
        // One entry of a queue is never used (NVMe Base 2.1, section 3.3.1.5), with flow control or
        // without.
        let commands_max = match controller.maxcmd {
            0 => entries - 1,
            maxcmd => maxcmd.min(entries - 1),
        };
        let is_fast = options.failover == Failover::Fast;
        Params {
            generation: association.generation(),
            io_queues: controller.io_queues,
            nsid: association.nsid().into(),
            entries,
            commands_max,
            in_capsule_bytes: controller.in_capsule_bytes,
            header_digest: options.header_digest,
            data_digest: options.data_digest,
            encrypted: options.keys.tls.is_some(),
            flow_control: options.flow_control,
            subsystem: Arc::clone(shared.subsystem.name()),
            copies_between: super::copy::between(controller.copy_formats),
            copies_overlapping: controller.copies_overlapping,
            connect: association.connect_io(1, false),
            credentials: association.credentials().cloned(),
            quiet: if is_fast { Duration::ZERO } else { association.quiet() },
            settle: if is_fast { Duration::ZERO } else { association.settle() },
            io_timeout: options.io_timeout,
            connect_timeout: options.association.admin_timeout,
            writes_back: association
                .namespace()
                .is_some_and(|it| it.limits.volatile_write_cache)
                .into(),
            unflushed: Unflushed::default(),
            losses: Arc::clone(&shared.losses),
            instance: controller.instance,
        }
    }

    /// The number of a Flush that is about to be sent; 0 for other commands.
    #[inline]
    pub(crate) fn flush_number(&self, command: &Command) -> u64 {
        let counts =
            self.writes_back.load(Ordering::Relaxed) && command.opcode == opcode::io::FLUSH;
        if counts { self.unflushed.begin() } else { 0 }
    }

    /// The controller has answered `command`, which had this [`Params::flush_number`].
    #[inline]
    pub(crate) fn answered(&self, command: &Command, status: Status, flush_number: u64) {
        if flush_number != 0 && status.is_success() {
            self.unflushed.flushed(flush_number);
        } else if self.writes_back.load(Ordering::Relaxed) && self.unflushed.acknowledged(command) {
            self.losses.leave(self.instance);
        }
    }

    /// Whether it has acknowledged what may not be durable.
    pub(crate) fn has_to_flush(&self) -> bool {
        self.writes_back.load(Ordering::Relaxed) && self.unflushed.any()
    }

    /// The association has ended. What it acknowledged and did not flush may be gone, if not now then by the time
    /// that another one is asked to flush.
    pub(crate) fn end(&self) {
        if self.unflushed.end() {
            self.losses.leave(self.instance);
        }
    }

    /// The association is live: what the one before it left is with this controller, or gone. Before any queue is
    /// connected.
    pub(crate) fn begin(&self) {
        if self.losses.resume(self.instance) {
            self.unflushed.inherit();
        }
    }

    /// How `bytes` bytes go to the controller.
    #[inline]
    pub(crate) fn to_controller(&self, bytes: u32) -> Transfer {
        let in_capsule = bytes <= self.in_capsule_bytes;
        if in_capsule { Transfer::InCapsule(bytes) } else { Transfer::ToController(bytes) }
    }

    /// Connect of queue `queue`.
    pub(crate) fn connect(&self, queue: u16, flow_control: bool) -> (Command, &[u8]) {
        let (command, data) = &self.connect;
        let connect = Connect::of(command);
        let cattr = if flow_control { 0 } else { Connect::NO_FLOW_CONTROL };
        (Connect { qid: queue, cattr, ..connect }.command(), data)
    }
}
