//! From an object to a loop that the kernel's verifier has taken.

use crate::abi::{
    self, CONFIG, DEFERRALS, FLIGHTS, HELD, LoopConfig, OPERATIONS, QUEUES, QueueState,
};
use crate::error::Error;
use crate::log;
use libbpf_rs::btf::{self, types};
use libbpf_rs::{
    AsRawLibbpf, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenMapMut, OpenObject,
    libbpf_sys,
};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::sync::OnceLock;
use zerocopy::{FromBytes, IntoBytes};

/// What the kernel calls the programs.
pub const NAME: &str = "nvlane";

/// The kernel's structure without which there is nothing.
const OPERATIONS_TYPE: &str = "io_uring_bpf_ops";

/// Maps by their names: those that the queues of a device have in common, or a queue's own.
pub type Shared = HashMap<String, MapHandle>;

/// A loop for one queue, in the kernel.
#[derive(Debug)]
pub struct Loop {
    /// Once it is attached. Goes first: then the loop is no more.
    link: Option<Link>,
    object: Object,
    state: MapHandle,
}

impl Loop {
    /// Loads the loop of `object` for the ring `ring_fd`. Maps that are in `shared` are used, those that are not
    /// go there. What it knows of requests is what `before` knows, if that is there.
    pub fn load(
        object: &[u8],
        config: &LoopConfig,
        ring_fd: RawFd,
        shared: &mut Shared,
        before: Option<&Loop>,
    ) -> Result<Loop, Error> {
        is_there()?;
        let own = before.map_or_else(|| Ok(Shared::new()), Loop::own_maps)?;
        let (loaded, log) = log::of(|| {
            let mut open = ObjectBuilder::default().name(NAME)?.open_memory(object)?;
            prepare(&mut open, config, ring_fd, [&own, shared])?;
            open.load()
        });
        let object = loaded.map_err(|error| Error::of_load(&error, &log))?;
        let mut state = None;
        for map in object.maps() {
            let name = map.name().to_string_lossy().into_owned();
            if name == QUEUES {
                state = Some(MapHandle::try_from(&map).map_err(Error::of_map)?);
            }
            if is_shared(&name) && !shared.contains_key(&name) {
                shared.insert(name, MapHandle::try_from(&map).map_err(Error::of_map)?);
            }
        }
        let state = state.ok_or(Error::NoLoop)?;
        Ok(Loop { link: None, object, state })
    }

    /// From here on the ring does nothing but to turn the loop.
    pub fn attach(&mut self) -> Result<(), Error> {
        let mut operations = self.object.maps_mut().filter(|map| map.name() == OPERATIONS);
        let mut operations = operations.next().ok_or(Error::NoLoop)?;
        let (attached, _) = log::of(|| operations.attach_struct_ops());
        self.link = Some(attached.map_err(|error| Error::Attach(io_error(&error)))?);
        Ok(())
    }

    /// The maps that know of requests, by their names.
    fn own_maps(&self) -> Result<Shared, Error> {
        let own = self.object.maps().filter(|map| OWN.iter().any(|name| map.name() == *name));
        let each = own.map(|map| {
            let name = map.name().to_string_lossy().into_owned();
            Ok((name, MapHandle::try_from(&map).map_err(Error::of_map)?))
        });
        each.collect()
    }

    /// A map of the loop's own.
    pub fn map(&self, name: &str) -> Result<MapHandle, Error> {
        let found = self.object.maps().find(|map| map.name() == name).ok_or(Error::NoLoop)?;
        MapHandle::try_from(&found).map_err(Error::of_map)
    }

    /// What has happened.
    pub fn state(&self) -> io::Result<QueueState> {
        let value = self.state.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(|error| io_error(&error))?.unwrap_or_default();
        let wrong = |_| io::Error::other("the loop's state is of another size");
        QueueState::read_from_bytes(&value).map_err(wrong)
    }
}

/// Whether this kernel's rings have such operations.
pub fn is_there() -> Result<(), Error> {
    // Each queue asks, and the kernel's types are some 100,000.
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = match FOUND.get() {
        Some(found) => *found,
        // That they could not be read may be otherwise the next time.
        None => btf::Btf::from_vmlinux().is_ok_and(|types| {
            let there = types.type_by_name::<types::Struct<'_>>(OPERATIONS_TYPE).is_some();
            *FOUND.get_or_init(|| there)
        }),
    };
    if found { Ok(()) } else { Err(Error::Kernel) }
}

/// Maps that belong to one queue: what the loop knows of its requests.
const OWN: [&str; 4] = [FLIGHTS, QUEUES, DEFERRALS, HELD];

/// Whether a map is the same for all queues.
fn is_shared(name: &str) -> bool {
    !OWN.contains(&name) && ![CONFIG, OPERATIONS].contains(&name)
}

fn prepare(
    open: &mut OpenObject,
    config: &LoopConfig,
    ring_fd: RawFd,
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
            FLIGHTS => map.set_max_entries(config.depth.into())?,
            CONFIG => map.set_initial_value(config.as_bytes())?,
            OPERATIONS => {
                let place = map.initial_value_mut();
                let place = place.and_then(|it| it.get_mut(abi::RING_FD..abi::RING_FD + 4));
                if let Some(place) = place {
                    place.copy_from_slice(&ring_fd.to_ne_bytes());
                }
            }
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
