//! Copy: what its request carries, and where its sources are.
//!
//! ```text
//!   front door:  COPY, Data::Sources [ (same | another volume), slba, blocks ]...
//!      guard     checks nothing again; offers each piece to the stack below, moves what comes back refused
//!        layers  translate the destination, and sources within the same stack
//!          backend: copies by its own means (copy_file_range, the device's Copy, a Copy sent to the target), or
//!                   refuses: Fast Copy Not Possible
//! ```
//!
//! A request of opcode Copy carries [`Data::Sources`], not the bytes of the wire, wherever
//! `limits.copy` is offered: layers translate and cut source ranges, and only the backend at the end
//! knows which format it needs. Where `limits.copy` is not offered but commands are passed through,
//! Copy is passed as any command that nobody knows, with its bytes.
//!
//! **Below the guard a Copy is fast or refused.** A backend that has no means of its own for a piece
//! answers [`Status::FAST_COPY_NOT_POSSIBLE`] and has copied nothing; with Do Not Retry set it will never
//! have one for this kind of source. (`linear` and `bpf`, whose children differ, may answer so after the first
//! `result` ranges, and after [`Sources::begun_blocks`] of the next; so may a file.) Whoever sits at a place where both ends are in reach (the guard; `linear` and `bpf`
//! between their children) then reads and writes that piece.
//!
//! Ranges are copied as if one after another, each as if it were read whole before any of it is
//! written, so that a source may overlap the destination. On failure `result` is the lowest
//! source range that was not copied whole; all before it were.
//!
//! [`Data::Sources`]: crate::Data::Sources
//! [`Status::FAST_COPY_NOT_POSSIBLE`]: nvme::Status::FAST_COPY_NOT_POSSIBLE

mod carrier;
mod emulate;
mod kept;
mod refusals;
mod room;
pub(crate) mod threads;
mod turn;

pub(crate) use carrier::{Carrier, Ground, Reader, Route};
pub(crate) use emulate::End;
pub use kept::{Keeper, kept};
pub(crate) use refusals::{REMEMBERED, Refusals};
pub(crate) use threads::Load;
pub(crate) use turn::TURN_BYTES_MAX;

use crate::file::File;
use crate::layer::guard::Guard;
use crate::memory::Memory;
use crate::{Namespace, Queue};
use nvme::limits::CopyLimits;
use reactor::Line;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a namespace with a guard takes in one Copy: 128 ranges, 65,528 blocks each, and 128 MiB
/// together, which is moved in time even where it has to be read and written on a slow disk. A range
/// could have 65,535 blocks (MSSRL); these are whole pages of 4 KiB, so that ranges that follow each
/// other stay aligned, and files can share what is copied.
pub fn limits(block_shift: u8) -> CopyLimits {
    CopyLimits { ranges_max: 128, range_blocks_max: 65_528, blocks_max: (128 << 20) >> block_shift }
}

/// Whether Copies are carried out by calls that block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnThreads {
    /// By none.
    #[default]
    No,
    /// Those of one file: one that hangs is one disk's fault.
    One,
    /// The same, and blocks are shared where they can be.
    Shares,
    /// Those of several.
    Several,
}

impl OnThreads {
    /// Of something that has Copies carried out by `children`.
    pub fn of(children: impl IntoIterator<Item = OnThreads>) -> OnThreads {
        let mut blocking = children.into_iter().filter(|child| *child != OnThreads::No);
        match (blocking.next(), blocking.next()) {
            (Some(only), None) => only,
            (None, _) => OnThreads::No,
            (Some(_), Some(_)) => OnThreads::Several,
        }
    }
}

/// The source ranges of a Copy, in order: the data of its request.
#[derive(Default)]
pub struct Sources {
    /// At least one, unless the sources are kept for another request.
    pub ranges: Vec<Source>,
    /// Set by whoever gave the Copy up, at any time: nothing more is begun of it, and it ends with
    /// Command Abort Requested. What has begun ends first, which is no more than one piece.
    pub stop: Option<Arc<AtomicBool>>,
    /// For whom it is: a host's controller, or another user of the volume, by any number that nobody else has. Each is
    /// served in turn where Copies wait. 0: whoever has the queue.
    pub asker: u64,
    /// Of the range that a refusal (Fast Copy Not Possible) names, so many of its first blocks were copied: who reads and
    /// writes the rest begins there. Zero when it is sent.
    pub begun_blocks: u32,
    /// Of what was copied, so many bytes were read and written by whoever it was sent to, or further down. Zero when it is
    /// sent.
    pub moved_bytes: u64,
    /// The number of the guard further up that has a thread ready for it ([`Namespace::copies_on_threads`]). Set by
    /// guards.
    pub thread_of: Option<u64>,
}

/// One source range.
#[derive(Clone)]
pub struct Source {
    /// Where the blocks are.
    pub place: Place,
    /// First block there.
    pub slba: u64,
    /// How many, at least one.
    pub blocks: u32,
    /// Nobody is to read and write them (Fast Copy Only): if they cannot be copied where they lie the Copy ends with
    /// this range.
    pub fast_only: bool,
}

/// In which namespace a source range is. Blocks there have the size that they have in the destination;
/// front doors see to that.
#[derive(Clone, Default)]
pub enum Place {
    /// In the one that the request is submitted to.
    #[default]
    Same,
    /// In another volume, of which there is a queue on this core. Above guards only.
    Other(Rc<Other>),
    /// In what is behind another volume, as [`Namespace::origin`] told it. Below guards only.
    Origin(Origin),
}

/// Bytes that Copies have brought to a volume since it was opened, on all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounters {
    /// Copied by what is behind the volume: where they lie.
    pub offloaded_bytes: u64,
    /// Read and written by the volume's guard, or by `linear` or `bpf` below it.
    pub moved_bytes: u64,
}

/// Another volume, as the source of a Copy.
pub struct Other {
    /// The volume.
    pub namespace: Arc<dyn Namespace>,
    /// Its queue on the core where the Copy is submitted.
    pub queue: Rc<dyn Queue>,
}

/// What keeps a volume's blocks: known to backends that can copy from there without anybody reading.
#[derive(Clone)]
pub enum Origin {
    /// A file or block device on this machine.
    File(Arc<File>),
    /// Memory of this process.
    Memory(Arc<Memory>),
    /// A namespace of an NVM subsystem, on a device or remote.
    Subsystem {
        /// Which subsystem.
        nqn: Arc<str>,
        /// Which namespace of it.
        nsid: u32,
        /// Who knows the id that it has when a Copy is sent, if that may be another by then.
        numbering: Option<Arc<dyn Numbering>>,
    },
}

/// Knows which id a namespace has. A target that was started anew may give it another one, and its id to another.
pub trait Numbering: Send + Sync {
    /// The id that it has where the target is of this start (absent: of those that do not tell), as somebody knows
    /// who is associated with that. None: nobody is, for now.
    fn nsid(&self, instance: Option<[u8; 16]>) -> Option<u32>;
}

/// The answer of [`Namespace::origin`]: blocks that are kept in one place, one after another.
#[derive(Clone, Debug)]
pub struct Located {
    /// What keeps them.
    pub origin: Origin,
    /// First block there.
    pub slba: u64,
    /// How many of those asked for are there; at least one.
    pub blocks: u64,
    /// The guard that keeps commands on these blocks apart, and its number of the first: whoever has
    /// them copied claims them there meanwhile. Set by guards; absent where the backend keeps blocks
    /// whole by itself.
    pub guard: Option<(Arc<Guard>, u64)>,
}

impl Sources {
    /// Whether the Copy was given up.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Where calls that block for it wait for their turn.
    pub fn line(&self) -> Line {
        self.thread_of.map_or(Line::COMMON, threads::line)
    }

    /// Whether any range is not to be read and written.
    pub fn has_fast_only(&self) -> bool {
        self.ranges.iter().any(|range| range.fast_only)
    }

    /// Makes them empty, to be used for another Copy.
    pub fn clear(&mut self) {
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.clear();
        *self = Sources { ranges, ..Sources::default() };
    }

    /// Blocks of all ranges together.
    pub fn blocks(&self) -> u64 {
        self.ranges.iter().map(|range| u64::from(range.blocks)).sum()
    }

    /// Each range with the first block that it is copied to, of a Copy to the blocks from `sdlba` on.
    pub fn placed(&self, sdlba: u64) -> impl Iterator<Item = (&Source, u64)> + Clone {
        self.ranges.iter().scan(sdlba, |next, range| {
            let target = *next;
            *next = target.saturating_add(u64::from(range.blocks));
            Some((range, target))
        })
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(file) => write!(f, "{}", file.uri()),
            Origin::Memory(memory) => write!(f, "{}", memory.uri()),
            Origin::Subsystem { nqn, nsid, .. } => write!(f, "{nqn} namespace {nsid}"),
        }
    }
}
