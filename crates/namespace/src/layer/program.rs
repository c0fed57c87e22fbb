//! `bpf:`: a program in eBPF says for each request where it goes.
//!
//! ```text
//!   request --> program runs (bpf::Machine, one per core): a list of actions
//!                  |  checked: bpf::actions
//!                  |-- one part, all of the request: the request itself goes down, its address changed
//!                  |-- parts: requests of a pool, with parts of its data; joined, then NVLANE_DONE
//!                  |-- a status
//!                  '-- wrong: an I/O error, and a line in the log that names program and instruction
//! ```
//!
//! What is larger than the program takes at once, and each range of Dataset Management, is given to it piece by
//! piece, one after another. A Copy goes to the children where the program has nothing against it (`copies`), Compare and
//! Verify are the guard's; fused and unknown commands are refused. The size of the device is settled when it is opened; the program itself may be replaced
//! ([`Routed::replace`]).

mod blank;
mod change;
mod copies;
mod flight;
mod keep;
mod kernel;
mod loaded;
mod queue;
#[cfg(test)]
mod tests;

pub use crate::wake::{Called, Wake, Waker, number};
pub use change::Told;
pub use keep::{Keeper, check_shared, check_successor};
pub use kernel::{Decider, Elsewhere, ForKernel, Pauses};
pub use loaded::REPORTED_MAX;
pub use loaded::Replaced;

use crate::copy::{OnThreads, Refusals};
use crate::layer::tune_each;
use crate::{Access, Lost, Namespace, PathReport, ProgramReport, Queue};
use bpf::LoadError;
use bpf::request::{BACKENDS_MAX, Device};
use change::Programs;
use loaded::Loaded;
use nvme::Limits;
use nvme::limits::Passthrough;
use queue::ProgramQueue;
use reactor::Reactor;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};

/// Namespaces behind a program.
#[derive(Debug)]
pub struct Routed {
    programs: Arc<Programs>,
    children: Vec<Arc<dyn Namespace>>,
    /// The children's limits when the device was opened.
    backends: Vec<Limits>,
    /// Their sizes in blocks, likewise.
    sizes: Vec<u64>,
    /// What each child cannot copy by its own means.
    refusals: Vec<Refusals>,
    /// As the first program has made it, which is what everybody above goes by.
    device: Device,
    /// What that program said of blocks' places.
    has_one_place: bool,
    /// Who keeps maps for the next server, if there may be one.
    keeper: OnceLock<Arc<dyn Keeper>>,
    cores: u32,
    queues: AtomicU32,
    /// Who runs the program, if we do not.
    elsewhere: OnceLock<Arc<dyn Elsewhere>>,
    /// Whoever replaces the program has it.
    replacing: Mutex<()>,
}

/// Why namespaces cannot be put behind a program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program is refused.
    #[error("{name}: {source}")]
    Load {
        /// The program.
        name: String,
        /// Why.
        source: LoadError,
    },
    /// Too many backends.
    #[error("bpf: takes 1 to {BACKENDS_MAX} volumes, not {0}")]
    Backends(usize),
    /// Their blocks differ in size.
    #[error("bpf: volumes have blocks of {first} and {other} bytes; give all the same ?bs=")]
    BlockSize {
        /// Of the first.
        first: u32,
        /// Of another.
        other: u32,
    },
    /// `NVLANE_SETUP` failed, or said something impossible.
    #[error("{name}: NVLANE_SETUP {what}")]
    Setup {
        /// The program.
        name: String,
        /// What happened.
        what: String,
    },
    /// A program cannot take another's place: the volume would be another.
    #[error("{name} cannot take the place of {old}: {what}")]
    Differs {
        /// The new program.
        name: String,
        /// The old one.
        old: String,
        /// What is different.
        what: String,
    },
    /// The volume's user outlives its server, and the next server's maps would begin anew.
    #[error(
        "{name} is no program for a device that outlives its server (attach, --recover, recover, upgrade): {why}, and \
         NVLANE_SETUP does not set NVLANE_MAPS_MAY_GO"
    )]
    Maps {
        /// The program.
        name: String,
        /// Why the next server could not have them.
        why: String,
    },
    /// Requests of the old program do not end.
    #[error(
        "requests in flight have not ended within {0} s, or the kernel has not taken the new program by then; the old one \
         stays"
    )]
    Stuck(u64),
    /// The kernel runs the old one, and cannot run the new one in its place.
    #[error("{name} cannot take the place of {old} in the kernel: {why}")]
    NotInKernel {
        /// The new program.
        name: String,
        /// The old one.
        old: String,
        /// Why not.
        why: String,
    },
    /// The volume's next server would go on with the old program.
    #[error("what serves the volume next could not be told of the program: {0}; the old one stays")]
    Unnoted(String),
    /// Another replacement is under way.
    #[error("the program is being replaced already")]
    Busy,
}

impl Routed {
    /// Whether the program has promised to keep each block in one place.
    pub(crate) fn has_one_place(&self) -> bool {
        self.has_one_place
    }

    /// Puts `children` behind the program of `object`, which messages and URIs call `name`; `cores` will open
    /// queues.
    pub fn new(
        object: &[u8],
        name: String,
        children: Vec<Arc<dyn Namespace>>,
        cores: usize,
    ) -> Result<Arc<Routed>, ProgramError> {
        if !(1..=BACKENDS_MAX).contains(&children.len()) {
            return Err(ProgramError::Backends(children.len()));
        }
        let limits: Vec<Limits> = children.iter().map(|child| child.limits()).collect();
        let first = limits[0].block_bytes();
        if let Some(other) = limits.iter().find(|other| other.block_bytes() != first) {
            return Err(ProgramError::BlockSize { first, other: other.block_bytes() });
        }
        let sizes = limits.iter().map(|limits| limits.blocks).collect();
        let loaded = Loaded::new(object, name, &limits, cores)?;
        let (device, has_one_place) = (loaded.device.clone(), loaded.has_one_place());
        Ok(Arc::new(Routed {
            programs: Arc::new(Programs::new(loaded)),
            refusals: children.iter().map(|_| Refusals::default()).collect(),
            children,
            backends: limits,
            sizes,
            device,
            has_one_place,
            keeper: OnceLock::new(),
            cores: cores as u32,
            queues: AtomicU32::new(0),
            elsewhere: OnceLock::new(),
            replacing: Mutex::default(),
        }))
    }

    /// What the program is called, as it is in the URI.
    pub fn name(&self) -> String {
        self.programs.now().name.clone()
    }

    /// The program and what it keeps, for people.
    pub fn report(&self) -> ProgramReport {
        match self.elsewhere.get() {
            Some(elsewhere) => elsewhere.report(),
            None => self.programs.now().report(),
        }
    }

    /// Puts the program of `object`, which messages and URIs call `name`, in place of the one that there is.
    /// What is in flight ends as the old one says, what comes meanwhile waits for that. Maps of the same name,
    /// kind and sizes stay as they are. Blocks: not for a reactor's thread.
    ///
    /// # Errors
    /// It is refused, or would make another volume; or requests in flight do not end. Nothing has changed then.
    pub fn replace(&self, object: &[u8], name: String) -> Result<Replaced, ProgramError> {
        self.replace_noted(object, name, &|| Ok(()))
    }

    /// The same, with `note` to be done before the new program routes anything: so whoever serves the volume next knows
    /// of it, whenever this server ends.
    ///
    /// # Errors
    /// The same, or `note` fails, and why.
    pub fn replace_noted(
        &self,
        object: &[u8],
        name: String,
        note: &dyn Fn() -> Result<(), String>,
    ) -> Result<Replaced, ProgramError> {
        let _one_at_a_time = match self.replacing.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(ProgramError::Busy),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Ok(turn) => turn,
        };
        let next = Loaded::new(object, name, &self.backends, self.cores as usize)?;
        let old = self.programs.now();
        let (blocks, now) = (next.device.blocks, self.device.blocks);
        let what = match () {
            () if blocks != now => {
                format!("the volume would have {blocks} blocks instead of {now}")
            }
            () if self.has_one_place && !next.has_one_place() => {
                "it does not promise NVLANE_ONE_PLACE, which the volume was opened with".to_owned()
            }
            () => return self.succeed(next, &old, note),
        };
        Err(ProgramError::Differs { name: next.name, old: old.name.clone(), what })
    }
}

/// Why a backend is not for the kernel.
fn unless_plain(number: usize, uri: &str) -> String {
    format!("backend {number}, {uri}, is neither a plain file nor a block device")
}

impl Namespace for Routed {
    fn limits(&self) -> Limits {
        let mut limits = self.children[0].limits();
        for child in &self.children[1..] {
            let other = child.limits();
            limits.volatile_write_cache |= other.volatile_write_cache;
            limits.lends_reads &= other.lends_reads;
            limits.commands.write_zeroes &= other.commands.write_zeroes;
            limits.write_zeroes_bytes_max =
                limits.write_zeroes_bytes_max.min(other.write_zeroes_bytes_max);
            limits.discard = limits.discard.and(other.discard);
            limits.commands.deallocate &= other.commands.deallocate;
        }
        let Device { block_shift, blocks, blocks_max, optimal_blocks, .. } = self.device;
        limits.blocks = blocks;
        limits.transfer_bytes_max = blocks_max << block_shift;
        limits.optimal_write_bytes = optimal_blocks << block_shift;
        // Which backend is written to is the program's business: one that is read-only fails.
        limits.read_only = self.children.iter().all(|child| child.limits().read_only);
        limits.commands.write_uncorrectable = false;
        limits.commands.compare = false;
        limits.commands.verify = false;
        limits.commands.checksum = false;
        limits.commands.compare_and_write = false;
        // Only the program knows what is where.
        limits.commands.allocation = false;
        limits.copy = self.copy_limits();
        (limits.passthrough, limits.metadata_bytes) = (Passthrough::NONE, 0);
        // Where the ends of requests are told to it, each would need a buffer here, which nobody would hold against its share.
        limits.lends_reads &= !self.programs.now().sees_ends();
        // A program may delay.
        limits.immediate = false;
        limits
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let open = |child: &Arc<dyn Namespace>| Arc::clone(child).open_queue(reactor);
        let children = self.children.iter().map(open).collect::<io::Result<Vec<_>>>()?;
        let core = self.queues.fetch_add(1, Ordering::Relaxed) % self.cores;
        Ok(ProgramQueue::open(self, core, children, reactor))
    }

    fn flush(&self) -> io::Result<()> {
        // All of them, whatever one says.
        let flushed: Vec<_> = self.children.iter().map(|child| child.flush()).collect();
        flushed.into_iter().collect()
    }

    fn cut(&self) -> u64 {
        self.children.iter().map(|child| child.cut()).sum()
    }

    fn lost(&self) -> Lost {
        self.children.iter().map(|child| child.lost()).sum()
    }

    fn volatile_epoch(&self) -> u64 {
        self.children.iter().map(|child| child.volatile_epoch()).sum()
    }

    fn paths(&self) -> Vec<PathReport> {
        self.children.iter().flat_map(|child| child.paths()).collect()
    }

    /// That of the volume that stands best: the program may do without the others.
    fn access(&self) -> Access {
        self.children.iter().map(|child| child.access()).min().unwrap_or_default()
    }

    fn each_program(&self, visit: &mut dyn FnMut(&Routed)) {
        visit(self);
        self.children.iter().for_each(|child| child.each_program(visit));
    }

    fn takes_registered(&self) -> bool {
        self.children.iter().all(|child| child.takes_registered())
    }

    /// Every child that knows the setting is given it; an error if none does.
    fn tune(&self, name: &str, value: &str) -> io::Result<()> {
        tune_each(self.children.iter(), name, value)
    }

    fn resize(&self, _bytes: u64) -> io::Result<()> {
        let why = "bpf: the program settles the size when the volume is opened";
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// Other sizes of backends count when the volume is opened anew.
    fn refresh(&self) -> io::Result<bool> {
        // All of them, whatever one says.
        let asked: Vec<_> = self.children.iter().map(|child| child.refresh()).collect();
        asked.into_iter().find(Result::is_err).unwrap_or(Ok(false))
    }

    fn uri(&self) -> String {
        let children: Vec<_> = self.children.iter().map(|child| child.uri()).collect();
        format!("bpf:{}({})", self.name(), children.join(","))
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        let loaded = self.programs.now();
        let program = loaded.instance.program();
        let place = match (self.elsewhere.get(), &loaded.interpreted) {
            (Some(_), _) => "run by the kernel".to_owned(),
            (None, None) => "compiled, in user space".to_owned(),
            (None, Some(why)) => format!("interpreted, in user space ({why})"),
        };
        let what = format!("{} instructions, {place}", program.instructions());
        facts.push(("program".into(), what));
        for (number, child) in self.children.iter().enumerate() {
            facts.push(("backend".into(), number.to_string()));
            child.describe(facts);
        }
    }

    fn copies_on_threads(&self) -> OnThreads {
        OnThreads::of(self.children.iter().map(|child| child.copies_on_threads()))
    }

    fn last_guard(&self) -> Option<u64> {
        self.children.iter().filter_map(|child| child.last_guard()).max()
    }

    fn keeps_blocks_whole(&self) -> bool {
        self.has_one_place && self.children.iter().all(|child| child.keeps_blocks_whole())
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }
}
