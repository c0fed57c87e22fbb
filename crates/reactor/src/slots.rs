//! What the kernel and the blocking pool still owe us: who is to be told, by index.

use crate::Complete;
use std::rc::Rc;

/// Set in `user_data` of entries that are the reactor's own: no slot belongs to them.
pub const OWN: u64 = 1 << 63;

/// A slab of pending operations with a free list; grows to the most that were ever in flight.
///
/// A key holds the index and a generation, so that a late cancellation of an operation that has
/// ended cannot meet its successor in the same place.
#[derive(Default)]
pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    generation: u32,
    watch: bool,
    pending: Option<(Rc<dyn Complete>, u64)>,
}

impl Slots {
    /// Keeps `sink` until [`Slots::remove`]; the key is never one with [`OWN`] set.
    #[inline]
    pub fn insert(&mut self, sink: Rc<dyn Complete>, token: u64, watch: bool) -> u64 {
        let Some(index) = self.free.pop() else { return self.grow(sink, token, watch) };
        let slot = &mut self.slots[index as usize];
        debug_assert!(slot.pending.is_none(), "free slots are empty");
        // Nothing is there that would have to be dropped.
        std::mem::forget(slot.pending.replace((sink, token)));
        slot.watch = watch;
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    #[cold]
    fn grow(&mut self, sink: Rc<dyn Complete>, token: u64, watch: bool) -> u64 {
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 in flight");
        self.slots.push(Slot { generation: 0, watch, pending: Some((sink, token)) });
        // So many places can become free: room for all of them is made now.
        self.free.reserve(self.slots.len());
        u64::from(index)
    }

    /// Ends an operation: whom to tell. `None` if it has ended already.
    #[inline]
    pub fn remove(&mut self, key: u64) -> Option<(Rc<dyn Complete>, u64)> {
        let index = key as u32;
        let slot = self.slots.get_mut(index as usize)?;
        if u64::from(slot.generation) != key >> 32 {
            return None;
        }
        let pending = slot.pending.take()?;
        slot.generation = (slot.generation + 1) & 0x7fff_ffff;
        self.free.push(index);
        Some(pending)
    }

    /// Whom to tell about an operation that goes on.
    pub fn peek(&self, key: u64) -> Option<(Rc<dyn Complete>, u64)> {
        let slot = self.slots.get(key as u32 as usize)?;
        let (sink, token) =
            slot.pending.as_ref().filter(|_| slot.generation as u64 == key >> 32)?;
        Some((Rc::clone(sink), *token))
    }

    /// Whether an operation is still pending.
    pub fn contains(&self, key: u64) -> bool {
        let slot = self.slots.get(key as u32 as usize);
        slot.is_some_and(|slot| u64::from(slot.generation) == key >> 32 && slot.pending.is_some())
    }

    /// Keys of all pending watches.
    pub fn watches(&self) -> Vec<u64> {
        let watching = |slot: &Slot| slot.watch && slot.pending.is_some();
        let slots = self.slots.iter().enumerate().filter(|(_, slot)| watching(slot));
        slots.map(|(index, slot)| u64::from(slot.generation) << 32 | index as u64).collect()
    }

    /// Operations pending.
    #[inline]
    pub fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;
    impl Complete for Nobody {
        fn complete(&self, _: u64, _: i32, _: u32) {}
    }

    #[test]
    fn a_key_dies_with_its_operation() {
        let mut slots = Slots::default();
        let first = slots.insert(Rc::new(Nobody), 1, true);
        assert_eq!(slots.remove(first).map(|(_, token)| token), Some(1));
        let second = slots.insert(Rc::new(Nobody), 2, false);
        assert_eq!(first as u32, second as u32, "the place is used again");
        assert!(slots.remove(first).is_none() && slots.peek(first).is_none());
        assert_eq!(slots.peek(second).map(|(_, token)| token), Some(2));
        assert!(slots.watches().is_empty());
        assert_eq!(slots.live(), 1);
        assert!(second & OWN == 0);
    }
}
