//! A program that is ready to run on a volume's backends.

use super::ProgramError;
use crate::{MapReport, ProgramReport};
use bpf::request::{Device, MAPS_MAY_GO, ONE_PLACE};
use bpf::{Instance, Machine, Map, MapKind};
use nvme::Limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// A program with its maps, and what it has said about the device.
#[derive(Debug)]
pub struct Loaded {
    pub instance: Arc<Instance>,
    /// The object file.
    pub object: Arc<[u8]>,
    /// How it is named in the URI.
    pub name: String,
    /// As `NVLANE_SETUP` has left it.
    pub device: Device,
    pub mistakes: Mistakes,
    /// Why it is interpreted, if it is no code of this processor's.
    pub interpreted: Option<String>,
    /// It has delayed something that was asked for a Copy.
    delays: AtomicBool,
}

/// What has become of the maps when a program took another's place, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// Both programs have it: what it holds is still there.
    pub kept: Vec<String>,
    /// They are the new program's own, and began empty.
    pub fresh: Vec<String>,
    /// The old program alone had them: what they held is gone.
    pub dropped: Vec<String>,
}

impl Loaded {
    /// Loads the program of `object`, and has it settle the device for backends of such `limits`.
    pub fn new(
        object: &[u8],
        name: String,
        limits: &[Limits],
        cores: usize,
    ) -> Result<Loaded, ProgramError> {
        let load = |source| ProgramError::Load { name: name.clone(), source };
        let mut instance = Instance::new(bpf::load(object).map_err(load)?, cores).map_err(load)?;
        let interpreted = bpf_native::compile(&mut instance).err().map(|why| why.to_string());
        let instance = Arc::new(instance);
        let device = set_up(&instance, limits, cores as u32)
            .map_err(|what| ProgramError::Setup { name: name.clone(), what })?;
        let object = object.into();
        let (mistakes, delays) = (Mistakes::default(), AtomicBool::new(false));
        Ok(Loaded { instance, object, name, device, mistakes, interpreted, delays })
    }

    /// Each block has one place at a time.
    pub fn has_one_place(&self) -> bool {
        self.device.flags & ONE_PLACE != 0
    }

    /// It can be asked where blocks are instead of being given reads and writes: it wants to know of nothing else, and has
    /// not made anything wait.
    pub fn routes_copies(&self) -> bool {
        let program = self.instance.program();
        let is_told = program.done().is_some() || program.deferred().is_some();
        self.has_one_place() && !is_told && !self.delays()
    }

    /// It wants to be told how requests end: those are under way here meanwhile, with data of their own.
    pub fn sees_ends(&self) -> bool {
        self.instance.program().done().is_some()
    }

    /// It wants requests to wait.
    pub fn delays(&self) -> bool {
        self.delays.load(Ordering::Relaxed)
    }

    /// Notes that it does.
    pub fn note_delay(&self) {
        self.delays.store(true, Ordering::Relaxed);
    }

    /// It keeps nothing of what it was asked.
    pub fn is_forgetful(&self) -> bool {
        self.instance.maps().iter().all(|map| map.definition().read_only)
    }

    /// Its maps and variables may begin anew under a device that is in use, or it has none.
    pub fn does_without_maps(&self) -> bool {
        self.device.flags & MAPS_MAY_GO != 0 || self.is_forgetful()
    }

    /// Takes over the maps of `old` that fit. What `NVLANE_SETUP` has put into its own in their place is
    /// forgotten: what they hold by now counts.
    pub fn inherit(&mut self, old: &Loaded) -> Replaced {
        let instance = Arc::get_mut(&mut self.instance).expect("no core runs it yet");
        let kept = instance.inherit(&old.instance, self.object == old.object);
        let others = |of: &Instance| {
            let maps = of.maps().iter().map(|map| map.definition());
            let own = maps.filter(|map| !map.is_variables && !kept.contains(&map.name));
            own.map(|map| map.name.clone()).collect()
        };
        let (fresh, dropped) = (others(&self.instance), others(&old.instance));
        Replaced { kept, fresh, dropped }
    }

    /// For people.
    pub fn report(&self) -> ProgramReport {
        ProgramReport {
            name: self.name.clone(),
            mistakes: self.mistakes.count(),
            maps: self.instance.maps().iter().map(|map| report(map)).collect(),
        }
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
    // These are not the program's to change.
    (device.backends, device.block_shift, device.cores) = (limits.len() as u16, shift, cores);
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
pub const REPORTED_MAX: usize = 1024;

/// A copy of what a map holds.
pub fn report(map: &Map) -> MapReport {
    let definition = map.definition();
    let kind = match definition.kind {
        _ if definition.is_variables => "variables",
        MapKind::Array => "array",
        MapKind::PerCoreArray => "per-core array",
        MapKind::Hash => "hash",
    };
    let (mut entries, mut left_out) = (Vec::new(), 0);
    map.entries(|key, values| match entries.len() < REPORTED_MAX {
        // They may be megabytes of nothing.
        _ if definition.is_variables && values.iter().flatten().all(|byte| *byte == 0) => {}
        true => entries.push((key.to_vec(), values.to_vec())),
        false => left_out += 1,
    });
    let entries_max = definition.entries;
    MapReport { name: definition.name.clone(), kind, entries_max, entries, left_out }
}

/// Nanoseconds of the machine's clock, as in the kernel: since it was started, of whatever process. Programs may
/// take 0 for "never".
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Something to begin random numbers with.
pub fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// What a program has done wrong: told in the log, ever more seldom.
#[derive(Debug, Default)]
pub struct Mistakes(AtomicU64);

impl Mistakes {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Tells the first, the second, the fourth, and so on.
    pub fn tell(&self, name: &str, what: &dyn Fn() -> String) {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::error!(program = name, count, "request failed: {}", what());
        }
    }
}
