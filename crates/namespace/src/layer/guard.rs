//! The guard: on top of every stack, it adds what the stack below lacks.
//!
//! ```text
//!              child cannot Compare, Verify   read here and compared, dropped or summed up
//!              child cannot fuse              Compare and Write here, alone on their blocks
//!              child may tear a block         overlapping commands follow one another
//!              volume opened read-only        writes refused here
//!              Copy                           offered to the child in pieces; what it refuses is
//!                                             read and written here
//!   nothing but Copy                          everything else goes straight to the child; so it is for
//!                                             a block device of this machine (`block_device`)
//! ```
//!
//! Commands are kept apart by one table of ranges for all cores (`conflicts`). A child that keeps
//! blocks whole needs it only while a fused pair is at work: then ordinary commands enter the
//! table, otherwise they pay one relaxed load and a count of this core's own (`truce`). A Copy that goes
//! down from one volume to another holds ranges in the tables of both (`claims`). So many bytes of Copies are in
//! progress at a time (`line`).

mod claims;
mod copies;
mod line;
mod queue;
mod roster;
mod scratch;
mod slot;
mod truce;
mod waiting;

use crate::copy::{self, Located, Refusals};
use crate::layer::conflicts::Conflicts;
use crate::layer::pass_to_child;
use crate::{Namespace, Queue};
use copies::Copied;
use line::Line;
use nvme::Limits;
use nvme::limits::CopyLimits;
use queue::GuardQueue;
use reactor::Reactor;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use truce::Truce;

/// What a guard is to see to.
#[derive(Clone, Copy, Debug)]
pub struct GuardOptions {
    /// Cores that will open queues.
    pub cores: usize,
    /// Another server may write to the volume at the same time: fused pairs are not offered.
    pub shared: bool,
    /// Refuse everything that writes.
    pub read_only: bool,
    /// Whoever opens it sends no Compare, Verify, fused pairs or Copy, and keeps apart what overlaps. Volumes that
    /// keep a block in several places are guarded all the same.
    pub block_device: bool,
    /// A UUID for the stack.
    pub uuid: Option<[u8; 16]>,
    /// Tell `read_only` and `uuid` in the URI: they came with the stack, not with a backend.
    pub in_uri: bool,
}

/// Of a volume of our own for one core, with nothing said of it.
impl Default for GuardOptions {
    fn default() -> GuardOptions {
        GuardOptions {
            cores: 1,
            shared: false,
            read_only: false,
            block_device: false,
            uuid: None,
            in_uri: false,
        }
    }
}

/// A namespace that can do all that front doors expect.
#[derive(Debug)]
pub struct Guard {
    child: Arc<dyn Namespace>,
    options: GuardOptions,
    /// No other guard of the process has it, and those made later have higher ones: whoever enters several
    /// tables goes by it.
    number: u64,
    /// The highest number of those in the child.
    below: Option<u64>,
    conflicts: Conflicts,
    truce: Truce,
    /// What the child cannot copy by its own means.
    refusals: Refusals,
    copied: Copied,
    line: Line,
}

impl Guard {
    /// Puts a guard over `child`.
    pub fn new(child: Arc<dyn Namespace>, options: GuardOptions) -> Arc<Guard> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let always = !child.keeps_blocks_whole();
        let (below, number) = (child.last_guard(), NUMBERS.fetch_add(1, Ordering::Relaxed));
        assert!(below.is_none_or(|below| below < number), "what is below was made before");
        Arc::new(Guard {
            child,
            options,
            number,
            below,
            conflicts: Conflicts::new(),
            truce: Truce::new(always, options.cores == 1),
            refusals: Refusals::default(),
            copied: Copied::default(),
            line: Line::default(),
        })
    }

    /// Whether the child needs no guard but for Copy.
    fn is_idle(&self) -> bool {
        if self.options.block_device && self.has_one_place() {
            return !self.refuses_writes();
        }
        let can = self.child.limits().commands;
        let fuses = can.compare_and_write || self.options.shared;
        can.compare
            && can.verify
            && fuses
            && self.child.keeps_blocks_whole()
            && !self.refuses_writes()
    }

    /// Whether each block is in one place below. Programs may keep some in several, which writes that overlap
    /// would leave different.
    fn has_one_place(&self) -> bool {
        let mut has = true;
        self.child.each_program(&mut |program| has &= program.has_one_place());
        has
    }

    /// Whether writes are refused here; a child that is read-only may refuse them itself.
    fn refuses_writes(&self) -> bool {
        self.options.read_only
    }

    /// Whether every command ends within `submit`, provided that the child's do. Where pairs are kept apart here, Copies
    /// that wait for another volume may hold what a command needs, on one core as well.
    fn is_immediate(&self) -> bool {
        let can = self.child.limits().commands;
        let fuses = can.compare_and_write || self.options.shared;
        self.child.keeps_blocks_whole() && can.compare && can.verify && fuses
    }
}

impl Namespace for Guard {
    fn limits(&self) -> Limits {
        let mut limits = self.child.limits();
        limits.immediate &= self.is_immediate();
        limits.read_only |= self.options.read_only;
        // What is read here has no metadata.
        limits.commands.compare |= limits.metadata_bytes == 0;
        limits.commands.verify |= limits.metadata_bytes == 0;
        limits.commands.checksum |= limits.metadata_bytes == 0;
        limits.commands.compare_and_write =
            limits.commands.compare && !self.options.shared && !limits.read_only;
        // Metadata is the backend's business: what is read and written here has none.
        let can_copy = limits.metadata_bytes == 0 || limits.copy.is_offered();
        limits.copy = if can_copy { copy::limits(limits.block_shift) } else { CopyLimits::NONE };
        limits
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let child = Arc::clone(&self.child).open_queue(reactor)?;
        Ok(GuardQueue::open(self, child, reactor))
    }

    pass_to_child!(takes_registered vectors_pages nsid refresh resize flush cut paths numa_node each_program);
    pass_to_child!(tune allocation copies_on_threads);
    pass_to_child!(volatile_epoch access writes_back write_off gives_checksums);
    pass_to_child!(retry_delays lost snapshot);

    /// What goes to the child as it comes may as well go past both.
    fn plain_file(&self) -> Option<BorrowedFd<'_>> {
        if self.options.block_device && self.is_idle() { self.child.plain_file() } else { None }
    }

    fn uri(&self) -> String {
        let mut uri = self.child.uri();
        if self.options.in_uri {
            let uuid = crate::uuid::query(self.options.uuid.as_ref());
            let read_only = if self.options.read_only { "&ro" } else { "" };
            let query = format!("{read_only}{uuid}");
            uri.push_str(&query.replacen('&', "?", 1));
        }
        uri
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.options.uuid.or_else(|| self.child.uuid())
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        self.child.describe(facts);
        let blocks = match self.child.keeps_blocks_whole() {
            true => "by the backend",
            false if self.is_idle() => "as far as the file or device below does",
            false => "overlapping commands follow one another",
        };
        facts.push(("whole blocks".into(), blocks.into()));
        if self.options.shared {
            facts.push(("fused commands".into(), "refused: the volume is shared".into()));
        }
        self.describe_copies(facts);
    }

    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        let located = Arc::clone(&self.child).origin(slba, blocks)?;
        // Whatever reaches the blocks through this volume enters the table here.
        let guard = if self.truce.is_always() { Some((self, slba)) } else { located.guard };
        Some(Located { guard, ..located })
    }

    pass_to_child!(destination);

    fn last_guard(&self) -> Option<u64> {
        Some(self.number)
    }

    fn copied(&self) -> crate::copy::CopyCounters {
        self.copy_counters()
    }

    fn keeps_blocks_whole(&self) -> bool {
        true
    }
}
