//! Maps of a device's programs that outlive its server: in the kernel, by names in its BPF file system.
//!
//! ```text
//!   /sys/fs/bpf/nvlane/ublk-N/0-written-262144x8   an array; the program's first words are its number in the volume
//!        |-- mapped: the machine in user space works in it
//!        '-- the loop in the kernel has it as its map
//! ```
//!
//! So whoever serves the device next, there or here, finds what the last request has left. The names go with the
//! device, and with the machine.

use crate::error::Error;
use crate::object::{NAME, Shared};
use bpf::{MapDefinition, Owner, Words};
use libbpf_rs::libbpf_sys::{BPF_F_MMAPABLE, bpf_map_create_opts};
use libbpf_rs::{MapCore, MapHandle, MapType};
use namespace::layer::program::Keeper;
use std::fs::DirBuilder;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io, mem, ptr, slice};

/// Where the kernel's BPF file system is mounted (systemd does it).
const FILE_SYSTEM: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC`.
const MAGIC: u64 = 0xcafe_4a11;
/// Of a folder: what is in it only its owner takes away.
const STICKY: u32 = 0o1000;
/// Of a map's name.
const NAME_BYTES_MAX: usize = 128;

/// The maps of one of a volume's programs.
#[derive(Debug)]
pub struct KeptMaps {
    /// Which program of the volume.
    number: usize,
    has_served: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The device, once it has a number.
    device: Option<u32>,
    /// In use.
    settled: Vec<Kept>,
    /// Made, and without a name yet.
    made: Vec<Kept>,
}

#[derive(Debug)]
struct Kept {
    name: String,
    pin: String,
    map: MapHandle,
}

impl KeptMaps {
    /// For program `number` of a volume whose device is to be made.
    pub fn new(number: usize) -> KeptMaps {
        let state = State { device: None, settled: Vec::new(), made: Vec::new() };
        KeptMaps { number, has_served: false, state: Mutex::new(state) }
    }

    /// For program `number` of the volume of device `id`, as its server before has left them.
    pub fn of(id: u32, number: usize) -> KeptMaps {
        let state = State { device: Some(id), settled: Vec::new(), made: Vec::new() };
        KeptMaps { number, has_served: true, state: Mutex::new(state) }
    }

    /// The device has been made, with this number: its next server finds the maps.
    ///
    /// # Errors
    /// [`Error::Kept`].
    pub fn settle_at(&self, id: u32) -> Result<(), Error> {
        self.state().device = Some(id);
        self.settle(&[], &|| Ok(())).map_err(Error::Kept)
    }

    /// Whether the maps are still those that have their names: whoever has served the device since they were found may have
    /// left others.
    ///
    /// # Errors
    /// [`Error::Kept`].
    pub fn check_names(&self) -> Result<(), Error> {
        let state = self.state();
        let Some(id) = state.device.filter(|_| !state.settled.is_empty()) else { return Ok(()) };
        let folder = existing_folder(id).map_err(Error::Kept)?.unwrap_or_default();
        for Kept { pin, map, .. } in &state.settled {
            let named = MapHandle::from_pinned_path(folder.join(pin)).ok();
            let named = named.and_then(|named| number_of(&named));
            if named.is_none() || named != number_of(map) {
                let why = format!("{pin} is not what it was: another server has had the device");
                return Err(Error::Kept(why));
            }
        }
        Ok(())
    }

    /// The maps, for the loop in the kernel.
    pub(crate) fn shared(&self) -> Result<Shared, Error> {
        let state = self.state();
        let each = state.settled.iter().chain(&state.made).map(|kept| {
            let map = MapHandle::try_from(&kept.map).map_err(Error::of_map)?;
            Ok((name_in_loop(&kept.name), map))
        });
        each.collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a map is called in the file system, where names have no dots. Of variables, which another object may have
    /// in another order, it says which object they are of.
    fn pin(&self, object: &[u8], map: &MapDefinition) -> Result<String, String> {
        let MapDefinition { name, entries, value_bytes, is_variables, .. } = map;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.".contains(&byte);
        if name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
            return Err(unusable(map, &"its name is none of C's, or longer than 128 bytes"));
        }
        let of = if *is_variables { format!("-{:016x}", digest(object)) } else { String::new() };
        let name = name.replace('.', "-");
        Ok(format!("{}-{name}-{entries}x{value_bytes}{of}", self.number))
    }
}

impl Keeper for KeptMaps {
    fn find(&self, object: &[u8], maps: &[&MapDefinition]) -> Result<Option<Vec<Words>>, String> {
        let mut state = self.state();
        let Some(id) = state.device.filter(|_| self.has_served) else { return Ok(None) };
        let folder = existing_folder(id)?;
        let mut found = Vec::new();
        for map in maps {
            let pin = self.pin(object, map)?;
            let handle = match &folder {
                None => Err("it has left none".to_owned()),
                Some(folder) => MapHandle::from_pinned_path(folder.join(&pin))
                    .map_err(|error| error.to_string()),
            };
            let handle = handle.map_err(|error| {
                let name = &map.name;
                format!("the server before has left no {name} of this program and size ({error})")
            })?;
            let (key, value, entries) =
                (handle.key_size(), handle.value_size(), handle.max_entries());
            if handle.map_type() != MapType::Array
                || (key, value, entries) != (map.key_bytes, map.value_bytes, map.entries)
            {
                return Err(format!("{pin} is another map than its name says"));
            }
            found.push(mapped(&handle, map).map_err(|error| unusable(map, &error))?);
            state.settled.push(Kept { name: map.name.clone(), pin, map: handle });
        }
        Ok(Some(found))
    }

    fn make(&self, object: &[u8], maps: &[&MapDefinition]) -> Result<Vec<Words>, String> {
        let mut state = self.state();
        state.made.clear();
        if !maps.is_empty() {
            is_mounted()?;
        }
        let mut made = Vec::new();
        for map in maps {
            let handle = create(map).map_err(|error| unusable(map, &error))?;
            made.push(mapped(&handle, map).map_err(|error| unusable(map, &error))?);
            let pin = self.pin(object, map)?;
            state.made.push(Kept { name: map.name.clone(), pin, map: handle });
        }
        Ok(made)
    }

    fn settle(&self, stay: &[&str], note: &dyn Fn() -> Result<(), String>) -> Result<(), String> {
        let mut state = self.state();
        let State { device, settled, made } = &mut *state;
        let Some(id) = *device else { return note() };
        let made = mem::take(made);
        let named = made.iter().try_for_each(|kept| name(id, kept));
        if let Err(error) = named.and_then(|()| note()) {
            // Nothing was ever in them.
            let _ = forget_pins(id, |pin| made.iter().any(|kept| kept.pin == pin));
            return Err(error);
        }
        settled.retain(|kept| stay.contains(&kept.name.as_str()));
        settled.extend(made);
        let ours = format!("{}-", self.number);
        let is_in_use = |pin: &str| settled.iter().any(|kept| kept.pin == pin);
        if let Err(error) = forget_pins(id, |pin| pin.starts_with(&ours) && !is_in_use(pin)) {
            // The new program is noted, and cannot be taken back.
            tracing::warn!("a map that nobody keeps true any more is still there: {error}");
        }
        Ok(())
    }
}

/// Forgets the maps of a device that is no more.
///
/// # Errors
/// [`Error::Unforgotten`]: some may be there still.
pub fn forget(id: u32) -> Result<(), Error> {
    forget_pins(id, |_| true).map_err(Error::Unforgotten)?;
    match fs::remove_dir(folder(id)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::Unforgotten(format!("{}: {error}", folder(id).display())))
        }
        _ => Ok(()),
    }
}

/// Forgets what servers before have kept for a device and its programs now do without: it would be found by a later one,
/// although nobody has kept it true.
///
/// # Errors
/// [`Error::Unforgotten`]: some may be there still.
pub fn forget_others(id: u32, kept: &[Arc<KeptMaps>]) -> Result<(), Error> {
    let pins = |kept: &Arc<KeptMaps>| -> Vec<String> {
        kept.state().settled.iter().map(|kept| kept.pin.clone()).collect()
    };
    let in_use: Vec<String> = kept.iter().flat_map(pins).collect();
    forget_pins(id, |pin| !in_use.iter().any(|used| used == pin)).map_err(Error::Unforgotten)
}

fn forget_pins(id: u32, is_meant: impl Fn(&str) -> bool) -> Result<(), String> {
    // Where there is none, whose the folders above are does not matter.
    let is_absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    if fs::symlink_metadata(folder(id)).is_err_and(|error| is_absent(&error)) {
        return Ok(());
    }
    let Some(folder) = existing_folder(id)? else { return Ok(()) };
    let refuse = |path: &Path, error: &io::Error| Err(format!("{}: {error}", path.display()));
    let pins = match fs::read_dir(&folder) {
        Err(error) => return refuse(&folder, &error),
        Ok(pins) => pins,
    };
    for pin in pins {
        let pin = match pin {
            Err(error) => return refuse(&folder, &error),
            Ok(pin) => pin,
        };
        // What has no name of ours is nobody's, and no server finds it.
        if !pin.file_name().to_str().is_some_and(&is_meant) {
            continue;
        }
        match fs::remove_file(pin.path()) {
            Err(error) if !is_absent(&error) => return refuse(&pin.path(), &error),
            _ => {}
        }
    }
    Ok(())
}

/// The folders that lead to a device's maps.
fn folders(id: u32) -> [PathBuf; 2] {
    [Path::new(FILE_SYSTEM).join("nvlane"), folder(id)]
}

fn folder(id: u32) -> PathBuf {
    Path::new(FILE_SYSTEM).join(format!("nvlane/ublk-{id}"))
}

/// A device's folder, if there is one. Whoever may open a device's maps, or put others in their place, has its data;
/// and the file system may be one in which everybody makes folders and links.
fn existing_folder(id: u32) -> Result<Option<PathBuf>, String> {
    let user = rustix::process::geteuid().as_raw();
    let refuse = |path: &Path, why: &str| Err(format!("{}: {why}", path.display()));
    let top = Path::new(FILE_SYSTEM);
    let [all, one] = folders(id);
    for path in [top, &all, &one] {
        let it = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return refuse(path, &error.to_string()),
            Ok(it) => it,
        };
        // In the top one others may make something of theirs, if they cannot take away what is ours.
        let others = if path == top && it.mode() & STICKY != 0 { 0 } else { it.mode() & 0o022 };
        let is_owner_fine = it.uid() == user || path == top && it.uid() == 0;
        if !it.is_dir() || !is_owner_fine || others != 0 {
            let (owner, mode) = (it.uid(), it.mode() & 0o7777);
            let why = "is no folder to which only this user can write";
            return refuse(path, &format!("{why}: it is user {owner}'s, mode {mode:04o}"));
        }
    }
    Ok(Some(one))
}

/// Gives a map its name, which another one may have had.
fn name(id: u32, kept: &Kept) -> Result<(), String> {
    for folder in folders(id) {
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(format!("{}: {error}", folder.display()));
            }
            _ => {}
        }
    }
    let folder = existing_folder(id)?.ok_or("the folder for maps is gone again")?;
    let (new, pin) = (folder.join("new"), folder.join(&kept.pin));
    let _ = fs::remove_file(&new);
    let mut map = MapHandle::try_from(&kept.map).map_err(|error| error.to_string())?;
    let pinned = map.pin(&new).map_err(|error| io::Error::other(error.to_string()));
    let named = pinned.and_then(|()| fs::rename(new, &pin));
    named.map_err(|error| format!("{}: {error}", pin.display()))
}

fn is_mounted() -> Result<(), String> {
    let there = rustix::fs::statfs(FILE_SYSTEM).is_ok_and(|it| it.f_type as u64 == MAGIC);
    let why =
        "maps are kept in the kernel's BPF file system: mount -t bpf -o mode=0700 bpf /sys/fs/bpf";
    if there { Ok(()) } else { Err(why.to_owned()) }
}

fn unusable(map: &MapDefinition, error: &dyn std::fmt::Display) -> String {
    format!("map {} cannot be kept in the kernel: {error}", map.name)
}

fn create(map: &MapDefinition) -> Result<MapHandle, libbpf_rs::Error> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as u64,
        map_flags: BPF_F_MMAPABLE,
        ..bpf_map_create_opts::default()
    };
    let MapDefinition { key_bytes, value_bytes, entries, .. } = *map;
    MapHandle::create(MapType::Array, Some(NAME), key_bytes, value_bytes, entries, &options)
}

/// Memory of the machine's in user space that is a map of the kernel's loop, and goes with both.
pub fn share(map: &MapDefinition, shared: &mut Shared) -> Result<Words, String> {
    let unusable = |error: &dyn std::fmt::Display| {
        format!("map {} cannot be shared with the kernel: {error}", map.name)
    };
    let handle = create(map).map_err(|error| unusable(&error))?;
    let words = mapped(&handle, map).map_err(|error| unusable(&error))?;
    shared.insert(name_in_loop(&map.name), handle);
    Ok(words)
}

/// Which of the kernel's maps it is.
fn number_of(map: &MapHandle) -> Option<u32> {
    map.info().ok().map(|map| map.info.id)
}

/// The values of an array, mapped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: memory of atomics, which is the process's.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Owner for Mapping {
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many are mapped as long as this is there; whoever else has the map changes them as atomics do.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let bytes = self.words * size_of::<AtomicU64>();
        // SAFETY: our own mapping, of which nobody has words any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), bytes) };
    }
}

/// The values of an array, of whole words as the machine has them.
fn mapped(handle: &MapHandle, map: &MapDefinition) -> io::Result<Words> {
    let (words, fd) = (map.words(), handle.as_fd().as_raw_fd());
    let bytes = words * size_of::<AtomicU64>();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = NonNull::new(start.cast()).expect("a mapping is not at 0");
    Ok(Words::of(Arc::new(Mapping { start, words })))
}

/// What libbpf calls a map of the machine's in the loop's object.
fn name_in_loop(name: &str) -> String {
    match name {
        ".bss" | ".data" => format!("{NAME}{name}"),
        _ => name.to_owned(),
    }
}

/// FNV-1a of 64 bits: tells objects apart, in whichever version of nvlane.
fn digest(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf::MapKind;

    #[test]
    fn names_say_which_map_it_is() {
        let maps = KeptMaps::new(1);
        let array = MapDefinition {
            name: "written".into(),
            kind: MapKind::Array,
            key_bytes: 4,
            value_bytes: 8,
            entries: 1024,
            initial: Vec::new(),
            read_only: false,
            is_variables: false,
        };
        assert_eq!(maps.pin(b"one", &array).unwrap(), "1-written-1024x8");
        assert_eq!(maps.pin(b"another", &array).unwrap(), "1-written-1024x8");
        for name in ["../../written", "a/b", "", "a b", &"a".repeat(129)] {
            let other = MapDefinition { name: name.into(), ..array.clone() };
            assert_eq!(maps.pin(b"one", &other).is_ok(), name.is_empty(), "{name}");
        }
        let variables =
            MapDefinition { name: ".data.x".into(), is_variables: true, entries: 1, ..array };
        // The published values of FNV-1a.
        assert_eq!(maps.pin(b"a", &variables).unwrap(), "1--data-x-1x8-af63dc4c8601ec8c");
        assert_eq!(digest(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(digest(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
