//! A device's program in the kernel: its maps, and its queues.

use crate::abi::{DEFERRALS, DEPTH_MAX, LoopConfig, MISTAKES, MistakeLog, QueueState};
use crate::deferred::Deferred;
use crate::error::Error;
use crate::genuine;
use crate::kept::{self, KeptMaps};
use crate::mistakes;
use crate::object::{Loop, Shared, io_error};
use crate::ring::Ring;
use bpf::request::BACKENDS_MAX;
use bpf::{Map, MapKind};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use namespace::layer::program::{Elsewhere, ForKernel, REPORTED_MAX, check_shared};
use namespace::{MapReport, Namespace, ProgramReport};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use zerocopy::FromBytes;

/// Pages are given to requests as a whole: smaller requests cannot be asked for.
const IO_BYTES_MIN: u64 = 4096;
/// Reads end here that the program has completed itself.
const ZEROES: &str = "/dev/zero";

/// A program that the kernel runs for all queues of a device.
#[derive(Debug)]
pub struct KernelProgram {
    volume: ForKernel,
    zeroes: File,
    shared: Mutex<Shared>,
    /// Mistakes that have been told.
    told: Mutex<u64>,
}

/// What a queue is, as the driver sees it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The driver's file.
    pub device: BorrowedFd<'a>,
    /// Which queue.
    pub queue: u16,
    /// How deep.
    pub depth: u16,
    /// Where its descriptors are mapped; they stay as long as the queue.
    pub descriptors: u64,
    /// The number of the driver's command that fetches.
    pub fetch: u32,
    /// That of the one that commits and fetches.
    pub commit: u32,
}

impl KernelProgram {
    /// For a volume that is a program over plain files and block devices, if this kernel takes it. Unless it is
    /// `trusted`, its loop must be ours. Maps that are `kept` are the program's.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn new(
        namespace: &dyn Namespace,
        depth: u16,
        trusted: bool,
        kept: Option<&KeptMaps>,
    ) -> Result<KernelProgram, Error> {
        let refuse = |why: &str| Err(Error::Volume(why.to_owned()));
        let volume = for_kernel(namespace)?;
        if !trusted {
            genuine::check(volume.object())?;
        }
        if u64::from(volume.device.blocks_max) << volume.device.block_shift < IO_BYTES_MIN {
            return refuse("the program takes less than 4 KiB at once");
        }
        if depth > DEPTH_MAX {
            return refuse("queues are at most 1,024 requests deep there");
        }
        let zeroes = File::options().read(true).open(ZEROES).map_err(Error::Ring)?;
        let mut shared = kept.map_or_else(|| Ok(Shared::new()), KeptMaps::shared)?;
        let volume = share_maps(namespace, volume, &mut shared)?;
        let (shared, told) = (Mutex::new(shared), Mutex::default());
        let program = KernelProgram { volume, zeroes, shared, told };
        program.try_out()?;
        Ok(program)
    }

    /// Whether a block may be at several places, of which writes at the same time may leave different ones:
    /// the kernel does not keep them apart.
    pub fn has_one_place(&self) -> bool {
        self.volume.has_one_place
    }

    /// Most bytes of a request.
    pub fn io_bytes_max(&self) -> u64 {
        u64::from(self.volume.device.blocks_max) << self.volume.device.block_shift
    }

    /// Goes all the way but for the requests; then the maps are there, too.
    fn try_out(&self) -> Result<(), Error> {
        let ring = Ring::new(1).map_err(Error::Ring)?;
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let config = LoopConfig { depth: 1, ..self.config(&ring) };
        let mut turns = Loop::load(self.volume.object(), &config, ring.fd(), &mut shared)?;
        turns.attach()?;
        // Those that are elsewhere are the same ones there and here.
        for map in self.volume.instance().maps().iter().filter(|map| !map.is_elsewhere()) {
            fill(map, &shared)?;
        }
        Ok(())
    }

    fn config(&self, ring: &Ring) -> LoopConfig {
        let ForKernel { device, sizes, deallocates, .. } = &self.volume;
        let mut config = LoopConfig {
            device_blocks: device.blocks,
            blocks_max: device.blocks_max,
            backends: sizes.len() as u16,
            block_shift: device.block_shift,
            deallocates: (*deallocates).into(),
            defers: self.volume.instance().program().deferred().is_some().into(),
            ..on(ring)
        };
        config.sizes[..sizes.len()].copy_from_slice(sizes);
        config
    }

    fn mistakes(&self) -> Result<MistakeLog, Error> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let map = shared.get(MISTAKES).ok_or(Error::NoLoop)?;
        let value = map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).map_err(Error::of_map)?;
        let value = value.unwrap_or_default();
        MistakeLog::read_from_bytes(&value).map_err(|_| Error::NoLoop)
    }

    /// Tells the mistakes that have come since the last call: their number, and what it was, for people.
    pub fn tell_mistakes(&self, tell: &mut dyn FnMut(&str, u64, &str)) -> Result<(), Error> {
        let log = self.mistakes()?;
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for (count, mistake) in mistakes::since(&log, *told) {
            let what = mistakes::describe(self.volume.instance().program(), mistake);
            tell(self.volume.name(), count, &what);
            *told = count;
        }
        Ok(())
    }
}

impl Elsewhere for KernelProgram {
    fn report(&self) -> ProgramReport {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let maps = self.volume.instance().maps().iter().map(|map| {
            let mut report = self.volume.report_on(map);
            if let Some(from) = find(map, &shared)
                && let Err(error) = read(from, &mut report)
            {
                tracing::warn!(map = report.name, "what the kernel keeps cannot be read: {error}");
            }
            report
        });
        let maps = maps.collect();
        drop(shared);
        let mistakes = self.mistakes().map_or(0, |log| log.count) + self.volume.faults();
        ProgramReport { name: self.volume.name().to_owned(), mistakes, maps }
    }
}

/// Whether this kernel's rings have operations for programs.
///
/// # Errors
/// [`Error::Kernel`].
pub fn is_there() -> Result<(), Error> {
    crate::object::is_there()
}

/// Checks whether the loop of `object` is ours, and this kernel takes its program, over `backends` volumes.
pub fn check(object: &[u8], backends: u16) -> Result<(), Error> {
    genuine::check(object)?;
    check_trusted(object, backends)
}

/// Checks whether this kernel takes the program of `object`, whose loop is what it is, over `backends` volumes.
pub fn check_trusted(object: &[u8], backends: u16) -> Result<(), Error> {
    let ring = Ring::new(1).map_err(Error::Ring)?;
    let config = LoopConfig {
        blocks_max: 2048,
        backends,
        block_shift: 9,
        depth: 1,
        deallocates: 1,
        defers: 1,
        ..on(&ring)
    };
    let turns = Loop::load(object, &config, ring.fd(), &mut Shared::new())?;
    let program = bpf::load(object).map_err(|error| Error::Volume(error.to_string()))?;
    if program.deferred().is_some() {
        turns.map(DEFERRALS)?;
        program.maps().iter().try_for_each(check_shared).map_err(Error::Volume)?;
    }
    Ok(())
}

/// What the kernel needs of a volume that is a program.
fn for_kernel(volume: &dyn Namespace) -> Result<ForKernel, Error> {
    let mut found = None;
    if volume.uri().starts_with("bpf:") {
        volume.each_program(&mut |routed| {
            found.get_or_insert_with(|| routed.for_kernel());
        });
    }
    let none = || Error::Volume("the volume is no program (bpf:)".to_owned());
    found.ok_or_else(none)?.map_err(Error::Volume)
}

/// Has a program that defers work in the kernel's maps here, too, once the kernel has taken it.
fn share_maps(
    namespace: &dyn Namespace,
    volume: ForKernel,
    shared: &mut Shared,
) -> Result<ForKernel, Error> {
    if volume.instance().program().deferred().is_none() {
        return Ok(volume);
    }
    check_trusted(volume.object(), volume.sizes.len() as u16)?;
    // Nobody else has the program while its maps are moved.
    drop(volume);
    let mut outcome = None;
    namespace.each_program(&mut |routed| {
        outcome.get_or_insert_with(|| routed.share_maps(&mut |map| kept::share(map, shared)));
    });
    outcome.unwrap_or(Ok(())).map_err(Error::Volume)?;
    for_kernel(namespace)
}

/// Where things are in a ring.
fn on(ring: &Ring) -> LoopConfig {
    let places = ring.places();
    LoopConfig {
        times: ring.times_address(),
        cq_bytes: places.bytes,
        cq_head: places.head,
        cq_tail: places.tail,
        cq_entries: places.entries,
        cq_mask: places.mask,
        ..LoopConfig::default()
    }
}

/// The kernel's map for one of the machine's in user space.
fn find<'a>(map: &Map, shared: &'a Shared) -> Option<&'a MapHandle> {
    let definition = map.definition();
    let found = shared.iter().find(|(name, _)| match definition.is_variables {
        true => name.ends_with(&definition.name),
        false => **name == definition.name,
    });
    found.map(|(_, map)| map)
}

/// Entries that are read at once.
const BATCH: u32 = 4096;

/// What a map holds: for arrays, what is not zero.
fn read(map: &MapHandle, report: &mut MapReport) -> Result<(), Error> {
    let mut note = |key: Vec<u8>, values: Vec<Vec<u8>>, always: bool| {
        if !always && values.iter().flatten().all(|byte| *byte == 0) {
        } else if report.entries.len() < REPORTED_MAX {
            report.entries.push((key, values));
        } else {
            report.left_out += 1;
        }
    };
    let is_hash = map.map_type().is_hash_map();
    if !map.map_type().is_percpu() {
        let each = map.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY);
        each.map_err(Error::of_map)?.for_each(|(key, value)| note(key, vec![value], is_hash));
        return Ok(());
    }
    for key in map.keys() {
        let values = map.lookup_percpu(&key, MapFlags::ANY).map_err(Error::of_map)?;
        note(key, values.unwrap_or_default(), is_hash);
    }
    Ok(())
}

/// Puts what `NVLANE_SETUP` has left in a map of the machine in user space into the kernel's.
fn fill(map: &Map, shared: &Shared) -> Result<(), Error> {
    let definition = map.definition();
    if definition.kind == MapKind::PerCoreArray || definition.read_only {
        return Ok(());
    }
    let Some(to) = find(map, shared) else { return Ok(()) };
    let mut outcome = Ok(());
    map.entries(|key, values| {
        let Some(value) = values.first() else { return };
        // Of arrays, which begin as zeroes, what is not; variables always, which begin as the object has them.
        if outcome.is_ok() {
            outcome = to.update(key, value, MapFlags::ANY);
        }
    });
    outcome.map_err(|error| Error::Map(io_error(&error)))
}

/// A queue that the kernel serves; this thread's alone.
#[derive(Debug)]
pub struct KernelQueue {
    /// Goes first: the ring then is one like others.
    turns: Loop,
    deferred: Option<Deferred>,
    ring: Ring,
}

impl KernelQueue {
    /// Loads the program for a queue, and has the driver give it requests.
    pub fn open(program: &KernelProgram, place: &Place<'_>) -> Result<KernelQueue, Error> {
        let mut ring = Ring::new(place.depth).map_err(Error::Ring)?;
        let mut files = [-1; 1 + BACKENDS_MAX + 1];
        files[0] = place.device.as_raw_fd();
        for (file, backend) in files[1..].iter_mut().zip(&program.volume.files) {
            *file = backend.as_raw_fd();
        }
        files[1 + BACKENDS_MAX] = program.zeroes.as_raw_fd();
        ring.register_files(&files).map_err(Error::Ring)?;
        let config = LoopConfig {
            descriptors: place.descriptors,
            commit: place.commit,
            queue: place.queue,
            depth: place.depth,
            ..program.config(&ring)
        };
        let mut shared = program.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let fd: RawFd = ring.fd();
        let mut turns = Loop::load(program.volume.object(), &config, fd, &mut shared)?;
        drop(shared);
        // Once the loop is attached nothing is submitted from here.
        ring.command_all(place.fetch, place.queue, place.depth).map_err(Error::Ring)?;
        if let Some(refusal) = ring.refusal().map_err(Error::Ring)? {
            let why = format!("the driver refuses its commands: {refusal}");
            return Err(Error::Ring(io::Error::new(refusal.kind(), why)));
        }
        let decider = program.volume.decider(place.queue.into());
        let deferred = decider.map(|decider| Deferred::of(&turns, decider)).transpose()?;
        turns.attach()?;
        Ok(KernelQueue { turns, deferred, ring })
    }

    /// What has happened.
    pub fn state(&self) -> io::Result<QueueState> {
        self.turns.state()
    }

    /// Has the kernel serve until tags end, requests are deferred or a signal comes, and tells how things are.
    pub fn serve(&mut self) -> io::Result<QueueState> {
        self.ring.turn()?;
        if let Some(deferred) = &mut self.deferred {
            deferred.work()?;
        }
        self.turns.state()
    }
}
