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
//! piece, one after another. Copy, Compare and Verify are the guard's; fused and unknown commands are
//! refused. The size of the device is settled when it is opened.

mod flight;
mod queue;

use crate::{MapReport, Namespace, PathReport, ProgramReport, Queue};
use bpf::request::{BACKENDS_MAX, Device, ONE_PLACE};
use bpf::{Instance, LoadError, Machine, Map, MapKind};
use nvme::Limits;
use nvme::limits::{CopyLimits, Passthrough};
use queue::ProgramQueue;
use reactor::Reactor;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;
use zerocopy::IntoBytes;

/// Namespaces behind a program.
#[derive(Debug)]
pub struct Routed {
    instance: Arc<Instance>,
    /// How the program is named in the URI.
    name: String,
    children: Vec<Arc<dyn Namespace>>,
    /// The children's sizes in blocks, when the device was opened.
    sizes: Vec<u64>,
    device: Device,
    cores: u32,
    queues: AtomicU32,
    mistakes: Mistakes,
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
}

impl Routed {
    /// Puts `children` behind the program of `object`, which messages and URIs call `name`; `cores` will open
    /// queues.
    pub fn new(
        object: &[u8],
        name: String,
        children: Vec<Arc<dyn Namespace>>,
        cores: usize,
    ) -> Result<Arc<Routed>, ProgramError> {
        let load = |source| ProgramError::Load { name: name.clone(), source };
        let instance = Instance::new(bpf::load(object).map_err(load)?, cores).map_err(load)?;
        if !(1..=BACKENDS_MAX).contains(&children.len()) {
            return Err(ProgramError::Backends(children.len()));
        }
        let limits: Vec<Limits> = children.iter().map(|child| child.limits()).collect();
        let first = limits[0].block_bytes();
        if let Some(other) = limits.iter().find(|other| other.block_bytes() != first) {
            return Err(ProgramError::BlockSize { first, other: other.block_bytes() });
        }
        let instance = Arc::new(instance);
        let device = set_up(&instance, &limits, cores as u32)
            .map_err(|what| ProgramError::Setup { name: name.clone(), what })?;
        let sizes = limits.iter().map(|limits| limits.blocks).collect();
        let (queues, mistakes) = (AtomicU32::new(0), Mistakes::default());
        let cores = cores as u32;
        Ok(Arc::new(Routed { instance, name, children, sizes, device, cores, queues, mistakes }))
    }

    /// The program and its maps.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }
}

/// Runs `NVLANE_SETUP`, if there is one, and checks what it says.
fn set_up(instance: &Arc<Instance>, limits: &[Limits], cores: u32) -> Result<Device, String> {
    let shift = limits[0].block_shift;
    let least =
        |of: fn(&Limits) -> u64| limits.iter().map(of).min().expect("there is one at least");
    let optimal = limits.iter().map(|limits| limits.optimal_write_bytes >> shift).max();
    let takes = (least(|limits| u64::from(limits.transfer_bytes_max)) >> shift) as u32;
    let mut device = Device {
        backends: limits.len() as u16,
        block_shift: shift,
        cores,
        blocks: least(|limits| limits.blocks),
        blocks_max: takes,
        optimal_blocks: optimal.unwrap_or(0),
        ..Device::default()
    };
    for (backend, limits) in device.backend.iter_mut().zip(limits) {
        backend.blocks = limits.blocks;
    }
    if let Some(entry) = instance.program().setup() {
        let mut machine = Machine::new(Arc::clone(instance), 0, seed());
        match machine.run(entry, device.as_mut_bytes(), &now_ns) {
            Ok(result) if result as u32 == 0 => {}
            Ok(result) => {
                return Err(format!("refuses these volumes: it returned {}", result as i32));
            }
            Err(fault) => {
                return Err(format!(
                    "failed at {}: {}",
                    instance.program().locate(fault.instruction),
                    fault.kind
                ));
            }
        }
    }
    let optimal_bytes = u64::from(device.optimal_blocks) << shift;
    let problem = match &device {
        Device { blocks: 0, .. } => "made a device of no blocks",
        Device { blocks, .. } if *blocks > (1 << 62) >> shift => {
            "made a device of more than 2^62 bytes"
        }
        Device { blocks_max, .. } if *blocks_max == 0 || *blocks_max > takes => {
            "set blocks_max beyond what the volumes take at once, or to 0"
        }
        _ if optimal_bytes > 1 << 30 => "set optimal_blocks beyond 1 GiB",
        _ => return Ok(device),
    };
    Err(problem.to_owned())
}

/// Entries of a map that a report tells at most.
const REPORTED_MAX: usize = 1024;

/// A copy of what a map holds.
fn report(map: &Map) -> MapReport {
    let definition = map.definition();
    let kind = match definition.kind {
        _ if definition.is_variables => "variables",
        MapKind::Array => "array",
        MapKind::PerCoreArray => "per-core array",
        MapKind::Hash => "hash",
    };
    let (mut entries, mut left_out) = (Vec::new(), 0);
    map.entries(|key, values| match entries.len() < REPORTED_MAX {
        true => entries.push((key.to_vec(), values.to_vec())),
        false => left_out += 1,
    });
    let entries_max = definition.entries;
    MapReport { name: definition.name.clone(), kind, entries_max, entries, left_out }
}

/// Nanoseconds of the machine's clock: since some time in the past.
fn now_ns() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    // A whole second away from zero, so that programs may take 0 for "never".
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1_000_000_000
}

/// Something to begin random numbers with.
fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// What a program has done wrong: told in the log, ever more seldom.
#[derive(Debug, Default)]
struct Mistakes(AtomicU64);

impl Mistakes {
    /// Tells the first, the second, the fourth, and so on.
    fn tell(&self, name: &str, what: &dyn Fn() -> String) {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::error!(program = name, count, "request failed: {}", what());
        }
    }
}

impl Namespace for Routed {
    fn limits(&self) -> Limits {
        let mut limits = self.children[0].limits();
        for child in &self.children[1..] {
            let other = child.limits();
            limits.volatile_write_cache |= other.volatile_write_cache;
            limits.lends_reads &= other.lends_reads;
            limits.commands.write_zeroes &= other.commands.write_zeroes;
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
        limits.commands.compare_and_write = false;
        limits.copy = CopyLimits::NONE;
        (limits.passthrough, limits.metadata_bytes) = (Passthrough::NONE, 0);
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
        self.children.iter().try_for_each(|child| child.flush())
    }

    fn cut(&self) -> u64 {
        self.children.iter().map(|child| child.cut()).sum()
    }

    fn paths(&self) -> Vec<PathReport> {
        self.children.iter().flat_map(|child| child.paths()).collect()
    }

    fn programs(&self) -> Vec<ProgramReport> {
        let ours = ProgramReport {
            name: self.name.clone(),
            mistakes: self.mistakes.0.load(Ordering::Relaxed),
            maps: self.instance.maps().iter().map(report).collect(),
        };
        let below = self.children.iter().flat_map(|child| child.programs());
        std::iter::once(ours).chain(below).collect()
    }

    fn takes_registered(&self) -> bool {
        self.children.iter().all(|child| child.takes_registered())
    }

    /// Every child that knows the setting is given it; an error if none does.
    fn tune(&self, name: &str, value: &str) -> io::Result<()> {
        let mut known = false;
        for child in &self.children {
            match child.tune(name, value) {
                Ok(()) => known = true,
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        let what = || format!("{name}={value}: nothing below has such a setting");
        if known { Ok(()) } else { Err(io::Error::new(io::ErrorKind::Unsupported, what())) }
    }

    fn resize(&self, _bytes: u64) -> io::Result<()> {
        let why = "bpf: the program settles the size when the volume is opened";
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// Other sizes of backends count when the volume is opened anew.
    fn refresh(&self) -> io::Result<bool> {
        self.children.iter().try_for_each(|child| child.refresh().map(drop))?;
        Ok(false)
    }

    fn uri(&self) -> String {
        let children: Vec<_> = self.children.iter().map(|child| child.uri()).collect();
        format!("bpf:{}({})", self.name, children.join(","))
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        let program = self.instance.program();
        let what = format!("{} instructions, interpreted in user space", program.instructions());
        facts.push(("program".into(), what));
        for (number, child) in self.children.iter().enumerate() {
            facts.push(("backend".into(), number.to_string()));
            child.describe(facts);
        }
    }

    fn keeps_blocks_whole(&self) -> bool {
        let one_place = self.device.flags & ONE_PLACE != 0;
        one_place && self.children.iter().all(|child| child.keeps_blocks_whole())
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }
}
