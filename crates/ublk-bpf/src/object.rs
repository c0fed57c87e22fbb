//! From an object to loops: it is loaded once for all queues of a device.
//!
//! ```text
//!   object --> Loaded: the loop's program, and the maps of what it knows of requests, with a part for each queue
//!                '-- Loop, one per queue: operations of its ring's own with that program (operations.rs)
//! ```

use crate::abi::{
    self, CONFIG, DEFERRALS, Deferrals, FLIGHTS, HELD, Held, LoopConfig, OPERATIONS, QUEUES,
    QueueState,
};
use crate::error::Error;
use crate::log;
use crate::operations::{Layout, Operations};
use libbpf_rs::{
    AsRawLibbpf, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenMapMut, OpenObject,
    libbpf_sys,
};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// What the kernel calls the programs.
pub const NAME: &str = "nvlane";
/// The loop's function.
const STEP: &str = "nvlane_loop_step";

/// Maps by their names: those that are the program's, and those of the loop, of which each queue has its part.
pub type Shared = HashMap<String, MapHandle>;

/// A loop that the verifier has taken, for the queues of a device.
#[derive(Debug)]
pub struct Loaded {
    object: Object,
    own: Shared,
    layout: Layout,
    depth: u16,
}

impl Loaded {
    /// Loads the loop of `object` for so many queues. Maps that are in `shared` are used, those that are not
    /// go there. What it knows of requests is what `before` knows, if that is there.
    pub fn load(
        object: &[u8],
        config: &LoopConfig,
        queues: u16,
        shared: &mut Shared,
        before: Option<&Loaded>,
    ) -> Result<Loaded, Error> {
        let layout = Layout::of_kernel()?;
        let none = Shared::new();
        let known = [before.map_or(&none, |before| &before.own), shared];
        let (loaded, log) = log::of(|| {
            let mut open = ObjectBuilder::default().name(NAME)?.open_memory(object)?;
            prepare(&mut open, config, queues, known)?;
            open.load()
        });
        let object = loaded.map_err(|error| Error::of_load(&error, &log))?;
        let mut own = Shared::new();
        for map in object.maps() {
            let name = map.name().to_string_lossy().into_owned();
            let handle = || MapHandle::try_from(&map).map_err(Error::of_map);
            if OWN.contains(&name.as_str()) {
                own.insert(name, handle()?);
            } else if is_shared(&name) && !shared.contains_key(&name) {
                shared.insert(name, handle()?);
            }
        }
        Ok(Loaded { object, own, layout, depth: config.depth })
    }

    /// A map of the loop's own.
    fn map(&self, name: &str) -> Result<&MapHandle, Error> {
        self.own.get(name).ok_or(Error::NoLoop)
    }

    /// The object's types.
    fn types(&self) -> Result<BorrowedFd<'_>, Error> {
        // SAFETY: an object that is loaded.
        let types =
            unsafe { libbpf_sys::bpf_object__btf_fd(self.object.as_libbpf_object().as_ptr()) };
        if types < 0 {
            return Err(Error::NoLoop);
        }
        // SAFETY: open for as long as the object is there.
        Ok(unsafe { BorrowedFd::borrow_raw(types) })
    }

    /// Where a queue's requests begin in [`FLIGHTS`].
    fn flights(&self, queue: u32) -> u32 {
        queue * u32::from(self.depth)
    }
}

/// The loop of one queue.
#[derive(Debug)]
pub struct Loop {
    /// Once it is attached. Goes first: then the loop is no more.
    link: Option<OwnedFd>,
    operations: Operations,
    loaded: Arc<Loaded>,
    queue: u32,
}

impl Loop {
    /// The loop of a queue whose ring this is.
    pub fn new(loaded: &Arc<Loaded>, ring: RawFd, queue: u16) -> Result<Loop, Error> {
        let mut programs = loaded.object.progs().filter(|program| program.name() == STEP);
        let step = programs.next().ok_or(Error::NoLoop)?;
        let operations = Operations::new(&loaded.layout, step.as_fd(), loaded.types()?, ring);
        let operations = operations.map_err(Error::Attach)?;
        Ok(Loop { link: None, operations, loaded: Arc::clone(loaded), queue: queue.into() })
    }

    /// Begins with no requests; the driver's descriptors and the ring's memory are at these addresses.
    pub fn begin(&self, descriptors: u64, memory: u64) -> Result<(), Error> {
        let flights = self.loaded.flights(self.queue);
        let queue = self.queue;
        let state = QueueState { descriptors, memory, queue, flights, ..QueueState::default() };
        self.put(QUEUES, state.as_bytes())?;
        self.put(DEFERRALS, Deferrals::new_zeroed().as_bytes())?;
        self.put(HELD, Held::new_zeroed().as_bytes())
    }

    /// From here on the ring does nothing but to turn the loop.
    pub fn attach(&mut self) -> Result<(), Error> {
        self.link = Some(self.operations.attach().map_err(Error::Attach)?);
        Ok(())
    }

    /// What has happened.
    pub fn state(&self) -> io::Result<QueueState> {
        self.get(QUEUES, self.queue).and_then(|value| read(&value))
    }

    /// What waits.
    pub fn held(&self) -> io::Result<Held> {
        self.get(HELD, self.queue).and_then(|value| read(&value))
    }

    /// Notes what waits. While the loop does not run, as what follows.
    pub fn set_held(&self, held: &Held) -> io::Result<()> {
        self.set(HELD, self.queue, held.as_bytes())
    }

    /// What is deferred.
    pub fn deferrals(&self) -> io::Result<Deferrals> {
        self.get(DEFERRALS, self.queue).and_then(|value| read(&value))
    }

    /// Notes what is decided.
    pub fn set_deferrals(&self, deferrals: &Deferrals) -> io::Result<()> {
        self.set(DEFERRALS, self.queue, deferrals.as_bytes())
    }

    /// What is known of a request.
    pub fn flight(&self, tag: u16) -> io::Result<Vec<u8>> {
        self.get(FLIGHTS, self.loaded.flights(self.queue) + u32::from(tag))
    }

    /// Notes what is decided of it.
    pub fn set_flight(&self, tag: u16, flight: &[u8]) -> io::Result<()> {
        self.set(FLIGHTS, self.loaded.flights(self.queue) + u32::from(tag), flight)
    }

    fn get(&self, map: &str, key: u32) -> io::Result<Vec<u8>> {
        let map = self.loaded.map(map).map_err(io::Error::other)?;
        let value = map.lookup(&key.to_ne_bytes(), MapFlags::ANY).map_err(|it| io_error(&it))?;
        value.ok_or_else(|| io::Error::other("the loop does not have that queue or request"))
    }

    fn set(&self, map: &str, key: u32, value: &[u8]) -> io::Result<()> {
        let map = self.loaded.map(map).map_err(io::Error::other)?;
        map.update(&key.to_ne_bytes(), value, MapFlags::ANY).map_err(|error| io_error(&error))
    }

    fn put(&self, map: &str, value: &[u8]) -> Result<(), Error> {
        self.set(map, self.queue, value).map_err(Error::Map)
    }
}

fn read<T: FromBytes>(value: &[u8]) -> io::Result<T> {
    T::read_from_bytes(value)
        .map_err(|_| io::Error::other("what the loop keeps is of another size"))
}

/// Whether this kernel's rings have such operations.
pub fn is_there() -> Result<(), Error> {
    Layout::of_kernel().map(drop)
}

/// Maps of the loop: what it knows of requests, queue by queue.
const OWN: [&str; 4] = [FLIGHTS, QUEUES, DEFERRALS, HELD];

/// Whether a map is the program's, or what it does wrong.
fn is_shared(name: &str) -> bool {
    !OWN.contains(&name) && ![CONFIG, OPERATIONS].contains(&name)
}

fn prepare(
    open: &mut OpenObject,
    config: &LoopConfig,
    queues: u16,
    known: [&Shared; 2],
) -> Result<(), libbpf_rs::Error> {
    for mut program in open.progs_mut() {
        if program.section().to_string_lossy().starts_with(abi::USER_SECTIONS) {
            program.set_autoload(false);
        }
    }
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(known) = known.iter().find_map(|maps| maps.get(&name)) {
            if value_bytes(&map) != known.value_size() {
                let why = format!("map {name} is of another size than the one that there is");
                return Err(io::Error::other(why).into());
            }
            map.reuse_fd(known.as_fd())?;
            continue;
        }
        match name.as_str() {
            FLIGHTS => map.set_max_entries(u32::from(config.depth) * u32::from(queues))?,
            QUEUES | DEFERRALS | HELD => map.set_max_entries(queues.into())?,
            CONFIG => map.set_initial_value(config.as_bytes())?,
            _ => {}
        }
    }
    Ok(())
}

/// Bytes of a value, as the object declares it: libbpf takes any map in its place.
fn value_bytes(map: &OpenMapMut<'_>) -> u32 {
    // SAFETY: the map of an object that is open.
    unsafe { libbpf_sys::bpf_map__value_size(map.as_libbpf_object().as_ptr()) }
}

/// The same, as the system's errors are.
pub fn io_error(error: &libbpf_rs::Error) -> io::Error {
    let kind = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        libbpf_rs::ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error.to_string())
}
