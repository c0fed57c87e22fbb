//! Keys of a hash map: open addressing in memory that is all there from the beginning.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

/// Which entry each key has. Hashes are seeded, so that a peer who chooses keys (block numbers, say) cannot
/// have them collide.
#[derive(Debug)]
pub struct Table {
    /// Entry plus one; 0 where there is none. A power of two of them, at most half full.
    slots: Box<[u32]>,
    keys: Box<[u8]>,
    key_bytes: usize,
    free: Vec<u32>,
    seed: RandomState,
}

impl Table {
    /// For `entries` keys of `key_bytes`.
    pub fn new(entries: u32, key_bytes: usize) -> Table {
        Table {
            slots: vec![0; (entries as usize * 2).next_power_of_two()].into_boxed_slice(),
            keys: vec![0; entries as usize * key_bytes].into_boxed_slice(),
            key_bytes,
            free: (0..entries).rev().collect(),
            seed: RandomState::new(),
        }
    }

    fn key(&self, entry: u32) -> &[u8] {
        &self.keys[entry as usize * self.key_bytes..][..self.key_bytes]
    }

    fn home(&self, key: &[u8]) -> usize {
        self.seed.hash_one(key) as usize & (self.slots.len() - 1)
    }

    /// The slot that has the key, or the empty one where it would go.
    fn slot(&self, key: &[u8]) -> usize {
        let mut slot = self.home(key);
        while let Some(entry) = self.slots[slot].checked_sub(1) {
            if self.key(entry) == key {
                break;
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        slot
    }

    /// The entry of a key.
    pub fn find(&self, key: &[u8]) -> Option<u32> {
        self.slots[self.slot(key)].checked_sub(1)
    }

    /// Gives a key that is not there an entry; None if all are taken.
    pub fn insert(&mut self, key: &[u8]) -> Option<u32> {
        let slot = self.slot(key);
        debug_assert_eq!(self.slots[slot], 0, "the key is new");
        let entry = self.free.pop()?;
        self.keys[entry as usize * self.key_bytes..][..self.key_bytes].copy_from_slice(key);
        self.slots[slot] = entry + 1;
        Some(entry)
    }

    /// Forgets a key; whether it was there.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let mut hole = self.slot(key);
        let Some(entry) = self.slots[hole].checked_sub(1) else { return false };
        self.free.push(entry);
        // Those behind that would no longer be found move up.
        let mask = self.slots.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some(next) = self.slots[at].checked_sub(1) else { break };
            let home = self.home(self.key(next));
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
        }
        self.slots[hole] = 0;
        true
    }

    /// Calls `each` with the key of every one of these entries that has one.
    pub fn each(&self, entries: Range<u32>, mut each: impl FnMut(&[u8], u32)) {
        for entry in entries {
            let key = self.key(entry);
            // One that was taken back has its old key yet.
            if self.find(key) == Some(entry) {
                each(key, entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((any::<bool>(), 0_u16..24), 0..200)) {
            let mut table = Table::new(12, 2);
            let mut model = HashMap::new();
            for (insert, key) in steps {
                let bytes = key.to_le_bytes();
                if !insert {
                    prop_assert_eq!(table.remove(&bytes), model.remove(&key).is_some());
                } else if !model.contains_key(&key) {
                    let entry = table.insert(&bytes);
                    prop_assert_eq!(entry.is_some(), model.len() < 12);
                    entry.map(|entry| model.insert(key, entry));
                }
                for (key, entry) in &model {
                    prop_assert_eq!(table.find(&key.to_le_bytes()), Some(*entry));
                }
                let mut told = 0;
                table.each(0..12, |key, entry| {
                    assert_eq!(model.get(&u16::from_le_bytes([key[0], key[1]])), Some(&entry));
                    told += 1;
                });
                prop_assert_eq!(told, model.len());
            }
        }
    }
}
