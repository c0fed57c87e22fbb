//! Maps: what a program remembers between requests, shared by the cores that run it.

use crate::FaultKind;
use crate::region::{Region, Words};
use crate::table::Table;
use std::sync::RwLock;

/// Kinds of maps, with Linux's numbers (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// `BPF_MAP_TYPE_HASH`: entries come and go.
    Hash = 1,
    /// `BPF_MAP_TYPE_ARRAY`: all entries are there, zero at first.
    Array = 2,
    /// `BPF_MAP_TYPE_PERCPU_ARRAY`: an array of its own for each core.
    PerCoreArray = 6,
}

/// A map as the program declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapDefinition {
    /// The variable's name; of global variables the section's.
    pub name: String,
    /// What it is.
    pub kind: MapKind,
    /// Bytes of a key; 4 for arrays.
    pub key_bytes: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// Entries at most.
    pub entries: u32,
    /// What the first entry holds at first: global variables with values.
    pub initial: Vec<u8>,
    /// A store is a fault: constants.
    pub read_only: bool,
    /// Global variables: one entry, addressed without a look-up.
    pub is_variables: bool,
}

/// Longest key in bytes.
pub const KEY_BYTES_MAX: u32 = 64;
/// Largest value in bytes.
pub const VALUE_BYTES_MAX: u32 = 64 << 10;
/// Memory of all maps of a program in bytes.
pub const MAPS_BYTES_MAX: u64 = 256 << 20;

/// `errno`s that helpers give, negative, as Linux does.
pub const ENOENT: i64 = 2;
/// No room for a further entry.
pub const E2BIG: i64 = 7;
/// The key is there.
pub const EEXIST: i64 = 17;
/// The map cannot do it, or there are no such flags.
pub const EINVAL: i64 = 22;

impl MapDefinition {
    /// Bytes from one value to the next: values begin at whole words.
    pub fn stride(&self) -> usize {
        (self.value_bytes as usize).next_multiple_of(8)
    }

    /// Words of memory that the values of an array take, for whoever keeps it.
    pub fn words(&self) -> usize {
        self.values() as usize / 8
    }

    /// Whether somebody else can keep its memory: all of an array is in its values.
    pub fn may_be_kept(&self) -> bool {
        self.kind == MapKind::Array && !self.read_only
    }

    /// Bytes of one core's values.
    fn values(&self) -> u64 {
        u64::from(self.entries) * self.stride() as u64
    }

    /// Bytes of memory it takes on `cores` cores, its keys included.
    pub fn bytes(&self, cores: usize) -> u64 {
        match self.kind {
            MapKind::Array => self.values(),
            MapKind::PerCoreArray => self.values().next_multiple_of(LINE) * cores as u64,
            MapKind::Hash => {
                self.values() + u64::from(self.entries) * u64::from(self.key_bytes + 16)
            }
        }
    }
}

/// Entries of a hash map that are told of at once, and bytes of their values.
const PIECE_ENTRIES: u32 = 256;
const PIECE_BYTES: u32 = 64 << 10;

/// Bytes of a cache line: what one core writes often is not in another's.
const LINE: u64 = 64;

/// A map in use.
#[derive(Debug)]
pub struct Map {
    definition: MapDefinition,
    pub(crate) region: Region,
    /// Bytes from one core's values to the next core's.
    core_stride: usize,
    cores: usize,
    table: Option<RwLock<Table>>,
    is_kept: bool,
}

impl Map {
    /// Makes it, for `cores` cores. The definition is within bounds.
    pub fn new(definition: MapDefinition, cores: usize) -> Map {
        let (core_stride, copies) = match definition.kind {
            MapKind::PerCoreArray => (definition.values().next_multiple_of(LINE) as usize, cores),
            MapKind::Array | MapKind::Hash => (definition.values() as usize, 1),
        };
        let region = Region::new(core_stride * copies, !definition.read_only);
        region.write(0, &definition.initial);
        let table = (definition.kind == MapKind::Hash)
            .then(|| RwLock::new(Table::new(definition.entries, definition.key_bytes as usize)));
        Map { definition, region, core_stride, cores: copies, table, is_kept: false }
    }

    /// The same map, an array, in memory that may outlive it, and is somebody's to keep if that `is_kept`.
    ///
    /// # Panics
    /// If it is none, or of another size than [`MapDefinition::words`].
    pub(crate) fn elsewhere(&self, words: Words, is_kept: bool) -> Map {
        assert!(self.definition.may_be_kept() && words.len() == self.definition.words());
        let Map { ref definition, core_stride, cores, .. } = *self;
        let (definition, region) = (definition.clone(), Region::elsewhere(words));
        Map { definition, region, core_stride, cores, table: None, is_kept }
    }

    /// Whether somebody keeps its memory when it is gone.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Whether its memory is another's, too.
    pub fn is_elsewhere(&self) -> bool {
        self.region.is_elsewhere()
    }

    /// What was declared.
    pub fn definition(&self) -> &MapDefinition {
        &self.definition
    }

    /// Whether it was made for as many cores as `other`.
    pub(crate) fn fits(&self, other: &Map) -> bool {
        self.cores == other.cores
    }

    /// Where the value of `key` begins in the map's memory, on `core`.
    #[inline]
    pub(crate) fn find(&self, key: &[u8], core: usize) -> Option<usize> {
        let index = match &self.table {
            Some(table) => table.read().expect("nobody panics with it").find(key)?,
            None => {
                let index = u32::from_le_bytes(key.try_into().expect("keys of arrays are checked"));
                (index < self.definition.entries).then_some(index)?
            }
        };
        Some(self.start(core) + index as usize * self.definition.stride())
    }

    /// The same by the number of an entry, in an array.
    #[inline]
    pub(crate) fn at(&self, index: u32, core: usize) -> Option<usize> {
        (index < self.definition.entries)
            .then(|| self.start(core) + index as usize * self.definition.stride())
    }

    /// Where a core's values begin.
    #[inline]
    fn start(&self, core: usize) -> usize {
        if self.cores > 1 { core % self.cores * self.core_stride } else { 0 }
    }

    /// Gives `key` the value of which `word` gives eight bytes each, by the rules of `flags` (`BPF_ANY` 0, `BPF_NOEXIST` 1,
    /// `BPF_EXIST` 2); an errno if it does not. Of a hash map nobody finds a key before its value is there.
    pub(crate) fn update(
        &self,
        key: &[u8],
        core: usize,
        flags: u64,
        word: impl FnMut(u32) -> Result<u64, FaultKind>,
    ) -> Result<Result<(), i64>, FaultKind> {
        if self.definition.read_only || flags > 2 {
            return Ok(Err(EINVAL));
        }
        let Some(table) = &self.table else {
            return match self.find(key, core) {
                None => Ok(Err(E2BIG)),
                Some(_) if flags == 1 => Ok(Err(EEXIST)),
                Some(place) => self.fill(place, word).map(Ok),
            };
        };
        // Until the value is there: the entry could be another key's meanwhile.
        let mut table = table.write().expect("nobody panics with it");
        let (index, is_new) = match (table.find(key), flags) {
            (Some(_), 1) => return Ok(Err(EEXIST)),
            (Some(index), _) => (index, false),
            (None, 2) => return Ok(Err(ENOENT)),
            (None, _) => match table.insert(key) {
                Some(index) => (index, true),
                None => return Ok(Err(E2BIG)),
            },
        };
        let filled = self.fill(index as usize * self.definition.stride(), word);
        if filled.is_err() && is_new {
            table.remove(key);
        }
        filled.map(Ok)
    }

    /// Takes an entry away; its value may be somebody else's from now on, as in the kernel.
    pub(crate) fn remove(&self, key: &[u8]) -> Result<(), i64> {
        let table = self.table.as_ref().ok_or(EINVAL)?;
        let mut table = table.write().expect("nobody panics with it");
        if table.remove(key) { Ok(()) } else { Err(ENOENT) }
    }

    /// Calls `each` with every entry's key and values, one for each core that has its own. For arrays, with
    /// those that are not all zero, but for variables always: they do not begin as zeroes. Of a hash map it sees those that
    /// stay meanwhile; programs that change it wait for no more than a piece of it.
    pub fn entries(&self, mut each: impl FnMut(&[u8], &[Vec<u8>])) {
        let mut values = vec![vec![0; self.definition.value_bytes as usize]; self.cores];
        let mut tell = |key: &[u8], index: u32, always: bool| {
            for (core, value) in values.iter_mut().enumerate() {
                let start = index as usize * self.definition.stride();
                self.region.read(core * self.core_stride + start, value);
            }
            if always || values.iter().flatten().any(|byte| *byte != 0) {
                each(key, &values);
            }
        };
        match &self.table {
            None => (0..self.definition.entries)
                .for_each(|index| tell(&index.to_le_bytes(), index, self.definition.is_variables)),
            Some(table) => {
                let (entries, piece) = (self.definition.entries, self.piece());
                for first in (0..entries).step_by(piece as usize) {
                    let table = table.read().expect("nobody panics with it");
                    let these = first..first.saturating_add(piece).min(entries);
                    table.each(these, |key, index| tell(key, index, true));
                }
            }
        }
    }

    /// Entries of a hash map that are looked at while nobody may change it.
    fn piece(&self) -> u32 {
        (PIECE_BYTES / self.definition.value_bytes.max(1)).clamp(1, PIECE_ENTRIES)
    }

    /// Copies a value to where one begins.
    fn fill(
        &self,
        place: usize,
        mut word: impl FnMut(u32) -> Result<u64, FaultKind>,
    ) -> Result<(), FaultKind> {
        let bytes = self.definition.value_bytes;
        for at in 0..bytes / 8 {
            self.region.store::<8>(place as u32 + at * 8, word(at * 8)?)?;
        }
        if !bytes.is_multiple_of(8) {
            let at = bytes / 8 * 8;
            self.region.store::<8>(place as u32 + at, word(at)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;
    use std::{mem, thread};

    #[test]
    fn variables_are_told_though_all_are_zero() {
        let definition = MapDefinition {
            name: ".data".to_owned(),
            kind: MapKind::Array,
            key_bytes: 4,
            value_bytes: 8,
            entries: 1,
            initial: vec![7; 8],
            read_only: false,
            is_variables: true,
        };
        let told = |map: &Map| {
            let mut told = Vec::new();
            map.entries(|_, values| told.push(values.to_vec()));
            told
        };
        let map = Map::new(definition.clone(), 1);
        assert_eq!(told(&map), [[vec![7; 8]]]);
        map.region.write(0, &[0; 8]);
        assert_eq!(told(&map), [[vec![0; 8]]], "elsewhere they still are as the object has them");
        // Arrays begin as zeroes everywhere.
        let array = MapDefinition { is_variables: false, initial: Vec::new(), ..definition };
        assert!(told(&Map::new(array, 1)).is_empty());
    }

    fn hash(entries: u32) -> Map {
        let definition = MapDefinition {
            name: "hash".to_owned(),
            kind: MapKind::Hash,
            key_bytes: 4,
            value_bytes: 16,
            entries,
            initial: Vec::new(),
            read_only: false,
            is_variables: false,
        };
        Map::new(definition, 1)
    }

    fn put(map: &Map, key: u32, value: u64) {
        assert_eq!(map.update(&key.to_le_bytes(), 0, 0, |_| Ok(value)), Ok(Ok(())));
    }

    #[test]
    fn a_key_is_found_with_its_value_or_not_at_all() {
        let map = hash(4);
        let (key, (sender, receiver)) = (7_u32.to_le_bytes(), mpsc::channel());
        thread::scope(|scope| {
            let mut is_first = true;
            let updated = map.update(&key, 0, 0, |_| {
                if mem::take(&mut is_first) {
                    let (sender, map) = (sender.clone(), &map);
                    scope.spawn(move || {
                        let place = map.find(&key, 0);
                        sender.send(place.map(|at| map.region.load::<8>(at as u32 + 8))).unwrap();
                    });
                    let found = receiver.recv_timeout(Duration::from_millis(100));
                    assert!(found.is_err(), "found before its value is there: {found:?}");
                }
                Ok(9)
            });
            assert_eq!(updated, Ok(Ok(())));
            assert_eq!(receiver.recv(), Ok(Some(Ok(9))));
        });
        // What faults midway leaves no key.
        let other = 8_u32.to_le_bytes();
        let fails = |at| if at > 0 { Err(FaultKind::OutOfBounds) } else { Ok(1) };
        assert_eq!(map.update(&other, 0, 0, fails), Err(FaultKind::OutOfBounds));
        assert_eq!((map.find(&other, 0), map.update(&key, 0, 0, fails).is_err()), (None, true));
        assert!(map.find(&key, 0).is_some(), "it was there before");
    }

    #[test]
    fn a_large_map_can_be_changed_while_it_is_told() {
        // On a busy machine who waits may be late each time that he could: then once more.
        assert!((0..10).any(|_| is_changed_while_it_is_told()), "it waits until all is told");
    }

    fn is_changed_while_it_is_told() -> bool {
        let map = hash(8 * PIECE_ENTRIES + 1);
        (0..8 * PIECE_ENTRIES).for_each(|key| put(&map, key, 1));
        let (sender, receiver) = mpsc::channel();
        let (mut told, mut changed_at) = (0, None);
        thread::scope(|scope| {
            map.entries(|_, _| {
                told += 1;
                if told == 1 {
                    let (sender, map) = (sender.clone(), &map);
                    scope.spawn(move || {
                        put(map, u32::MAX, 2);
                        sender.send(()).unwrap();
                    });
                }
                if changed_at.is_none() {
                    changed_at =
                        receiver.recv_timeout(Duration::from_millis(1)).ok().map(|()| told);
                }
            });
        });
        assert!(told >= 8 * PIECE_ENTRIES, "{told}");
        changed_at.is_some()
    }
}
