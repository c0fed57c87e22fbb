//! A device's program in the kernel, and the maps that its queues share.
//!
//! ```text
//!   KernelProgram --now--> Made: the program, its maps, the mistakes that were told
//!                 '-next-> Made: what is to take its place; the queues go over to it while nothing is in flight (queue.rs)
//! ```

use crate::abi::{DEPTH_MAX, LoopConfig, MISTAKES, MistakeLog};
use crate::error::Error;
use crate::kept::{self, KeptMaps};
use crate::link::Linked;
use crate::mistakes;
use crate::object::{Loaded, Loop, Shared, io_error};
use crate::ring::{Fetching, Places, Ring};
use bpf::{Map, MapKind};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use namespace::layer::program::{Elsewhere, ForKernel, Pauses, REPORTED_MAX, check_shared};
use namespace::{MapReport, Namespace, ProgramReport};
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{io, mem};
use zerocopy::{FromBytes, IntoBytes};

/// Pages are given to requests as a whole: smaller requests cannot be asked for.
const IO_BYTES_MIN: u64 = 4096;
/// Reads end here that the program has completed itself.
const ZEROES: &str = "/dev/zero";

/// The queues of a device.
#[derive(Clone, Copy, Debug)]
pub struct Queues {
    /// How many were asked for; the driver makes no more than there may be processors.
    pub count: u16,
    /// How deep each is.
    pub depth: u16,
    /// How requests come.
    pub fetching: Fetching,
}

/// A program that the kernel runs for all queues of a device, and those that take its place.
#[derive(Debug)]
pub struct KernelProgram {
    pub(crate) zeroes: File,
    pub(crate) pauses: Pauses,
    pub(crate) queues: Queues,
    kept: Option<Arc<KeptMaps>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    now: Arc<Made>,
    next: Option<Next>,
}

/// What may take a program's place, or has just had it.
#[derive(Debug)]
struct Next {
    made: Arc<Made>,
    /// A queue could not have it.
    refused: Option<String>,
}

/// A program that the kernel has taken.
#[derive(Debug)]
pub struct Made {
    pub(crate) volume: Arc<ForKernel>,
    loaded: Arc<Loaded>,
    /// Of each ring that it can be for.
    places: Places,
    shared: Mutex<Shared>,
    /// Mistakes that have been told.
    told: Mutex<u64>,
}

impl KernelProgram {
    /// For a volume that is a program over plain files and block devices, if this kernel takes it.
    /// Maps that are `kept` are the program's.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn new(
        namespace: &dyn Namespace,
        queues: Queues,
        kept: Option<&Arc<KeptMaps>>,
    ) -> Result<KernelProgram, Error> {
        let refuse = |why: &str| Err(Error::Volume(why.to_owned()));
        let volume = for_kernel(namespace)?;
        check_volume(&volume)?;
        if queues.depth > DEPTH_MAX {
            return refuse("queues are at most 1,024 requests deep there");
        }
        // What there may be, not what this thread may use.
        let processors = libbpf_rs::num_possible_cpus().map_err(Error::of_map)?;
        let count = queues.count.min(processors.try_into().unwrap_or(u16::MAX));
        let queues = Queues { count, ..queues };
        let zeroes = File::options().read(true).open(ZEROES).map_err(Error::Ring)?;
        let mut shared = kept.map_or_else(|| Ok(Shared::new()), |kept| kept.shared())?;
        let volume = share_maps(namespace, volume, queues.fetching, &mut shared)?;
        let pauses = volume.pauses.clone();
        let now = Arc::new(Made::new(Arc::new(volume), queues, shared, None)?);
        let (kept, state) = (kept.cloned(), Mutex::new(State { now, next: None }));
        Ok(KernelProgram { zeroes, pauses, queues, kept, state })
    }

    /// Whether a block may be at several places, of which writes at the same time may leave different ones:
    /// the kernel does not keep them apart.
    pub fn has_one_place(&self) -> bool {
        self.now().volume.has_one_place
    }

    /// Most bytes of a request.
    pub fn io_bytes_max(&self) -> u64 {
        io_bytes_max(&self.now().volume)
    }

    /// The program as it is now.
    pub(crate) fn now(&self) -> Arc<Made> {
        Arc::clone(&self.state().now)
    }

    /// What is to take its place.
    pub(crate) fn next(&self) -> Option<Arc<Made>> {
        self.state().next.as_ref().map(|next| Arc::clone(&next.made))
    }

    /// A queue cannot have `made`, if that still is to take the program's place.
    pub(crate) fn refuse(&self, made: &Arc<Made>, why: String) {
        let mut state = self.state();
        if let Some(next) = state.next.as_mut().filter(|next| Arc::ptr_eq(&next.made, made)) {
            next.refused.get_or_insert(why);
        }
    }

    /// The maps of what is to take the program's place: the program's own that it goes on with, and those that are kept.
    fn inherited(
        &self,
        next: &ForKernel,
        names: &[String],
        same_object: bool,
    ) -> Result<Shared, Error> {
        let now = self.now();
        let old = now.shared();
        let mut shared = Shared::new();
        for map in next.instance().maps() {
            let definition = map.definition();
            let stays = match definition.is_variables {
                true => same_object,
                false => names.contains(&definition.name),
            };
            if let Some((name, map)) = find(map, &old).filter(|_| stays) {
                shared.insert(name.clone(), MapHandle::try_from(map).map_err(Error::of_map)?);
            }
        }
        let kept = self.kept.as_ref().map_or_else(|| Ok(Shared::new()), |kept| kept.shared())?;
        for map in next.instance().maps().iter().filter(|map| map.is_elsewhere()) {
            if let Some((name, map)) = find(map, &kept) {
                shared.insert(name.clone(), MapHandle::try_from(map).map_err(Error::of_map)?);
            }
        }
        Ok(shared)
    }

    /// What is to take the program's place, made.
    fn make_next(
        &self,
        mut next: ForKernel,
        names: &[String],
        same_object: bool,
    ) -> Result<Made, Error> {
        check_volume(&next)?;
        let mut shared = self.inherited(&next, names, same_object)?;
        if next.instance().program().deferred().is_some() {
            check(next.object(), next.sizes.len() as u16, &[self.queues.fetching.is_batches()])?;
            let maps = next.instance().maps().iter();
            let mut lone = maps.filter(|map| !map.is_elsewhere() && find(map, &shared).is_some());
            if let Some(map) = lone.find(|map| !map.definition().read_only) {
                let name = &map.definition().name;
                let why = format!(
                    "it has NVLANE_DEFERRED, which works in user space, and map {name} was the kernel's alone"
                );
                return Err(Error::Volume(why));
            }
            next.share_maps(&mut |map| kept::share(map, &mut shared)).map_err(Error::Volume)?;
        }
        Made::new(Arc::new(next), self.queues, shared, Some(&self.now()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the mistakes that have come since the last call: their number, and what it was, for people.
    pub fn tell_mistakes(&self, tell: &mut dyn FnMut(&str, u64, &str)) -> Result<(), Error> {
        self.now().tell_mistakes(tell)
    }
}

impl Made {
    /// Goes all the way but for the requests, with the maps that are there already, which keep what they hold; then
    /// all maps are. What the loop knows of requests is what that of `before` does.
    fn new(
        volume: Arc<ForKernel>,
        queues: Queues,
        mut shared: Shared,
        before: Option<&Made>,
    ) -> Result<Made, Error> {
        let linked = Linked::of(volume.object())?;
        is_there()?;
        let maps = volume.instance().maps().iter();
        let is_new = |map: &&Arc<Map>| find(map, &shared).is_none();
        let new: Vec<Arc<Map>> = maps.filter(is_new).cloned().collect();
        if let Some(map) = new.iter().find(|map| map.is_elsewhere()) {
            let name = &map.definition().name;
            return Err(Error::Volume(format!("map {name} is in use already, and not at hand")));
        }
        let ring = Ring::new(queues.depth).map_err(Error::Ring)?;
        let config = config(&volume, queues, &linked, &ring);
        let before = before.map(|before| &*before.loaded);
        let loaded = Loaded::load(&linked.object, &config, queues.count, &mut shared, before)?;
        let loaded = Arc::new(loaded);
        Loop::new(&loaded, ring.fd(), 0)?.attach()?;
        new.iter().try_for_each(|map| fill(map, &shared))?;
        let (shared, told) = (Mutex::new(shared), Mutex::default());
        Ok(Made { volume, loaded, places: ring.places(), shared, told })
    }

    /// Its loop for a queue's ring.
    pub(crate) fn turns(&self, queue: u16, ring: &Ring) -> Result<Loop, Error> {
        if ring.places() != self.places {
            return Err(Error::Ring(io::Error::other("the ring is not like the one before it")));
        }
        Loop::new(&self.loaded, ring.fd(), queue)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mistakes(&self) -> Result<MistakeLog, Error> {
        let shared = self.shared();
        let map = shared.get(MISTAKES).ok_or(Error::NoLoop)?;
        let value = map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).map_err(Error::of_map)?;
        let value = value.unwrap_or_default();
        MistakeLog::read_from_bytes(&value).map_err(|_| Error::NoLoop)
    }

    /// Counts losses of data on from where `before` has come, which the queues know of. While neither runs.
    fn count_on_from(&self, before: &Made) -> Result<(), Error> {
        let losses = before.mistakes()?.losses;
        let log = MistakeLog { losses, ..self.mistakes()? };
        let shared = self.shared();
        let map = shared.get(MISTAKES).ok_or(Error::NoLoop)?;
        map.update(&0_u32.to_ne_bytes(), log.as_bytes(), MapFlags::ANY).map_err(Error::of_map)
    }

    fn tell_mistakes(&self, tell: &mut dyn FnMut(&str, u64, &str)) -> Result<(), Error> {
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
        let now = self.now();
        let shared = now.shared();
        let maps = now.volume.instance().maps().iter().map(|map| {
            let mut report = now.volume.report_on(map);
            if let Some((_, from)) = find(map, &shared)
                && let Err(error) = read(from, &mut report)
            {
                tracing::warn!(map = report.name, "what the kernel keeps cannot be read: {error}");
            }
            report
        });
        let maps = maps.collect();
        drop(shared);
        let mistakes = now.mistakes().map_or(0, |log| log.count) + now.volume.faults();
        ProgramReport { name: now.volume.name().to_owned(), mistakes, maps }
    }

    fn prepare(
        &self,
        next: ForKernel,
        kept: &[String],
        same_object: bool,
    ) -> Result<Arc<ForKernel>, String> {
        let made = self.make_next(next, kept, same_object).map_err(|error| error.to_string())?;
        let volume = Arc::clone(&made.volume);
        self.state().next = Some(Next { made: Arc::new(made), refused: None });
        Ok(volume)
    }

    fn take_over(&self) -> Result<(), String> {
        let mut state = self.state();
        let State { now, next } = &mut *state;
        let next = next.as_mut().ok_or("there is no program to take over")?;
        match next.refused.take() {
            Some(why) => Err(why),
            None => {
                next.made.count_on_from(now).map_err(|error| error.to_string())?;
                mem::swap(now, &mut next.made);
                Ok(())
            }
        }
    }

    fn take_back(&self) {
        let mut state = self.state();
        let State { now, next } = &mut *state;
        if let Some(next) = next {
            mem::swap(now, &mut next.made);
        }
    }

    fn forget(&self) {
        let Some(Next { made, .. }) = self.state().next.take() else { return };
        // What it has done wrong at the end, if it was the program.
        let told = made.tell_mistakes(&mut |program, count, what| {
            tracing::error!(program, count, "request failed: {what}");
        });
        if let Err(error) = told {
            tracing::warn!("what the program before did wrong cannot be told: {error}");
        }
    }
}

/// Refuses what the kernel could take, and is not to have.
fn check_volume(volume: &ForKernel) -> Result<(), Error> {
    match io_bytes_max(volume) < IO_BYTES_MIN {
        true => Err(Error::Volume("the program takes less than 4 KiB at once".to_owned())),
        false => Ok(()),
    }
}

/// Most bytes of a request.
fn io_bytes_max(volume: &ForKernel) -> u64 {
    u64::from(volume.device.blocks_max) << volume.device.block_shift
}

/// Whether this kernel's rings have operations for programs.
///
/// # Errors
/// [`Error::Kernel`].
pub fn is_there() -> Result<(), Error> {
    crate::object::is_there()
}

/// Checks whether a program is no more than that, and whether this kernel takes it, over `backends` volumes, with requests that come
/// one by one or many at a time, or either way: what the loop does not do in the one way the verifier does not see.
pub fn check(object: &[u8], backends: u16, batches: &[bool]) -> Result<(), Error> {
    let linked = Linked::of(object)?;
    let program = bpf::load(object).map_err(|error| Error::Volume(error.to_string()))?;
    // That needs no kernel to be known.
    if program.deferred().is_some() {
        program.maps().iter().try_for_each(check_shared).map_err(Error::Volume)?;
    }
    // Older ones have no such rings, and would only say that something is wrong with it.
    is_there()?;
    let ring = Ring::new(1).map_err(Error::Ring)?;
    for batches in batches {
        let config = LoopConfig {
            blocks_max: 2048,
            backends,
            block_shift: 9,
            depth: 1,
            deallocates: 1,
            defers: 1,
            batches: (*batches).into(),
            has_done: linked.has_done.into(),
            ..on(&ring)
        };
        Loaded::load(&linked.object, &config, 1, &mut Shared::new(), None)?;
    }
    Ok(())
}

/// What the loop is told of a device's queues, whose rings are like this one.
fn config(volume: &ForKernel, queues: Queues, linked: &Linked, ring: &Ring) -> LoopConfig {
    let ForKernel { device, sizes, deallocates, .. } = volume;
    let (batches, fetch, commit) = match queues.fetching {
        Fetching::Single { fetch, commit } => (0, fetch, commit),
        Fetching::Batches { fetch, commit, .. } => (1, fetch, commit),
    };
    let mut config = LoopConfig {
        device_blocks: device.blocks,
        blocks_max: device.blocks_max,
        fetch,
        commit,
        depth: queues.depth,
        backends: sizes.len() as u16,
        block_shift: device.block_shift,
        deallocates: (*deallocates).into(),
        defers: volume.instance().program().deferred().is_some().into(),
        batches,
        has_done: linked.has_done.into(),
        ..on(ring)
    };
    config.sizes[..sizes.len()].copy_from_slice(sizes);
    config
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
    fetching: Fetching,
    shared: &mut Shared,
) -> Result<ForKernel, Error> {
    if volume.instance().program().deferred().is_none() {
        return Ok(volume);
    }
    check(volume.object(), volume.sizes.len() as u16, &[fetching.is_batches()])?;
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
        cq_bytes: places.bytes,
        cq_head: places.head,
        cq_tail: places.tail,
        cq_entries: places.entries,
        cq_mask: places.mask,
        ..LoopConfig::default()
    }
}

/// The kernel's map for one of the machine's in user space, and what the kernel calls it.
fn find<'a>(map: &Map, shared: &'a Shared) -> Option<(&'a String, &'a MapHandle)> {
    let definition = map.definition();
    shared.iter().find(|(name, _)| match definition.is_variables {
        true => name.ends_with(&definition.name),
        false => **name == definition.name,
    })
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
    let Some((_, to)) = find(map, shared) else { return Ok(()) };
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
