//! Short locks over chunks of memory, so that cores see every logical block whole.

use crate::spin::SpinGuard;
use crate::spin::SpinLock;

/// Bytes under one lock: at least the largest logical block, so that no block has two locks.
pub const CHUNK_BYTES: usize = 4096;
/// Locks; chunk `n` belongs to lock `n % LOCKS`.
const LOCKS: usize = 1024;

/// A table of locks, shared by all cores.
#[derive(Debug)]
pub struct Locks {
    table: Box<[Slot]>,
}

/// One lock to a cache line: neighbours are taken by different cores.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot(SpinLock<()>);

impl Locks {
    pub fn new() -> Locks {
        Locks { table: (0..LOCKS).map(|_| Slot::default()).collect() }
    }

    /// Locks the chunk that contains byte `offset`.
    #[inline]
    pub fn chunk(&self, offset: usize) -> SpinGuard<'_, ()> {
        self.table[offset / CHUNK_BYTES % LOCKS].0.lock()
    }

    /// Runs `work` while two chunks are locked, of one table or of two; none where nothing is to be
    /// locked. In the order of their locks' addresses, which is that of the table within one.
    #[inline]
    pub fn with_chunks<R>(chunks: [Option<(&Locks, usize)>; 2], work: impl FnOnce() -> R) -> R {
        let [first, second] = chunks
            .map(|chunk| chunk.map(|(locks, offset)| &locks.table[offset / CHUNK_BYTES % LOCKS]));
        let address = |slot: Option<&Slot>| slot.map(std::ptr::from_ref);
        let (low, high) = match address(first) <= address(second) {
            true => (first, second),
            false => (second, first),
        };
        let _low = low.map(|slot| slot.0.lock());
        let _high = high.filter(|_| address(low) != address(high)).map(|slot| slot.0.lock());
        work()
    }

    /// Runs `work` while every chunk of the range is locked.
    pub fn with_range<R>(&self, offset: usize, len: usize, work: impl FnOnce() -> R) -> R {
        let first = offset / CHUNK_BYTES;
        let chunks = (offset + len).div_ceil(CHUNK_BYTES) - first;
        let slots = self.table.iter().enumerate();
        // In the order of the table, whoever asks, so that two ranges cannot wait for each other.
        let wanted = slots.filter(|(slot, _)| (slot + LOCKS - first % LOCKS) % LOCKS < chunks);
        let mut count = 0;
        for (_, slot) in wanted.clone() {
            std::mem::forget(slot.0.lock());
            count += 1;
        }
        let unlock = Unlock(wanted.map(|(_, slot)| slot).take(count));
        let result = work();
        drop(unlock);
        result
    }
}

/// Unlocks what `with_range` locked, also when its work panics.
struct Unlock<'a, I: Iterator<Item = &'a Slot> + Clone>(I);

impl<'a, I: Iterator<Item = &'a Slot> + Clone> Drop for Unlock<'a, I> {
    fn drop(&mut self) {
        for slot in self.0.clone() {
            // SAFETY: `with_range` locked this slot and forgot the guard.
            unsafe { slot.0.unlock() };
        }
    }
}
