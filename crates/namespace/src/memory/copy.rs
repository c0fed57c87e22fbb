//! Copy between places of this process' memory: by the processor, within the call.
//!
//! ```text
//!   one core:       each range at once
//!   several cores:  pieces that lie in one chunk at both ends, under both chunks' locks
//! ```
//!
//! Two locks are taken in the order of their addresses, whichever volumes they belong to, so that
//! copies in opposite directions cannot wait for each other.

use super::locks::{CHUNK_BYTES, Locks};
use super::{Memory, stream};
use crate::copy::{Origin, Place, Sources};
use nvme::limits::CopyLimits;
use nvme::{Command, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that one Copy may move. Nothing else on this core is done meanwhile, as with the largest write.
const BYTES_MAX: u32 = 1 << 20;

pub(super) fn limits(block_shift: u8) -> CopyLimits {
    let blocks = BYTES_MAX >> block_shift;
    CopyLimits { range_blocks_max: blocks, blocks_max: blocks, ..crate::copy::limits(block_shift) }
}

/// Carries a Copy to `memory` out. Gives its status, and its result: the range that it failed at.
pub(super) fn execute(memory: &Memory, command: &Command, sources: &Sources) -> (Status, u64) {
    let shift = memory.options.block_shift;
    let in_reach = |place| from(memory, place).is_some_and(|it| it.options.block_shift == shift);
    if !sources.ranges.iter().all(|range| in_reach(&range.place)) {
        return (Status::FAST_COPY_NOT_POSSIBLE.dnr(), 0);
    }
    for (index, (range, target)) in sources.placed(command.slba()).enumerate() {
        let source = from(memory, &range.place).expect("just checked");
        let Some(target) = bytes(memory, target, range.blocks) else {
            return (Status::LBA_OUT_OF_RANGE.dnr(), index as u64);
        };
        let Some(start) = bytes(source, range.slba, range.blocks) else {
            return (Status::LBA_OUT_OF_RANGE.dnr(), index as u64);
        };
        copy_range(memory, target, source, start, (range.blocks as usize) << shift);
    }
    (Status::SUCCESS, 0)
}

/// The memory that a source range of a Copy to `memory` is in.
fn from<'a>(memory: &'a Memory, place: &'a Place) -> Option<&'a Memory> {
    match place {
        Place::Same => Some(memory),
        Place::Origin(Origin::Memory(other)) => Some(Arc::as_ref(other)),
        Place::Origin(_) | Place::Other(_) => None,
    }
}

/// Where `blocks` blocks from `slba` on begin, if there are so many.
fn bytes(memory: &Memory, slba: u64, blocks: u32) -> Option<usize> {
    let capacity = memory.blocks.load(Ordering::Relaxed);
    let end = slba.checked_add(u64::from(blocks))?;
    (end <= capacity).then_some((slba << memory.options.block_shift) as usize)
}

/// Copies `len` bytes as if they were all read before any is written. Both ranges are whole blocks of
/// their volumes.
fn copy_range(to: &Memory, target: usize, from: &Memory, source: usize, len: usize) {
    let overlaps = std::ptr::eq(to, from) && target.abs_diff(source) < len;
    let large = to.blocks.load(Ordering::Relaxed) << to.options.block_shift;
    let streams = large >= stream::VOLUME_BYTES_MIN && !overlaps;
    let copy = |at: usize, count: usize| {
        // SAFETY: checked against the capacities, which lie within the mappings for good.
        let (target, source) =
            unsafe { (to.mapping.base().add(target + at), from.mapping.base().add(source + at)) };
        if streams {
            // SAFETY: `count` bytes lie in both, which do not overlap; blocks are multiples of 64
            // bytes in place and length, and so are pieces that end with a chunk.
            unsafe { stream::copy(target, source, count) }
        } else {
            // SAFETY: `count` bytes lie in both.
            unsafe { target.copy_from(source, count) }
        }
    };
    if to.locks.is_none() && from.locks.is_none() {
        return copy(0, len);
    }
    let locked = |at: usize, count: usize| {
        let chunks = [(&to.locks, target + at), (&from.locks, source + at)]
            .map(|(locks, offset)| locks.as_ref().map(|locks| (locks, offset)));
        Locks::with_chunks(chunks, || copy(at, count));
    };
    if overlaps && target > source {
        // From the end: what is written is not read any more.
        let mut end = len;
        while end > 0 {
            let into = |offset: usize| (offset + end - 1) % CHUNK_BYTES + 1;
            let count = into(target).min(into(source)).min(end);
            end -= count;
            locked(end, count);
        }
    } else {
        let mut at = 0;
        while at < len {
            let left = |offset: usize| CHUNK_BYTES - (offset + at) % CHUNK_BYTES;
            let count = left(target).min(left(source)).min(len - at);
            locked(at, count);
            at += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::Source;
    use crate::memory::MemoryOptions;
    use nvme::copy::{Format, command};

    const BLOCK: usize = 512;

    fn volume(blocks: u64, cores: usize) -> Arc<Memory> {
        let bytes = blocks * BLOCK as u64;
        let options = MemoryOptions { bytes, block_shift: 9, cores, lend: false, uuid: None };
        let memory = Memory::open(options).unwrap();
        for block in 0..blocks as usize {
            contents(&memory)[block * BLOCK..][..BLOCK].fill(block as u8);
        }
        memory
    }

    /// The bytes, of a volume that nobody uses at the time.
    #[expect(clippy::mut_from_ref, reason = "a volume is written by whoever has a reference")]
    fn contents(memory: &Memory) -> &mut [u8] {
        let len = memory.blocks.load(Ordering::Relaxed) as usize * BLOCK;
        // SAFETY: the capacity is mapped, and the tests hold one slice at a time.
        unsafe { std::slice::from_raw_parts_mut(memory.mapping.base(), len) }
    }

    fn copied(memory: &Memory, sdlba: u64, ranges: Vec<Source>) -> (Status, u64) {
        let command = command(1, sdlba, ranges.len(), Format::Short);
        execute(memory, &command, &Sources { ranges, ..Sources::default() })
    }

    fn same(slba: u64, blocks: u32) -> Source {
        Source { place: Place::Same, slba, blocks, fast_only: false }
    }

    #[test]
    fn ranges_that_overlap_their_destination_are_read_before_they_are_written() {
        for cores in [1, 2] {
            for (source, target, blocks) in
                [(3, 5, 60), (5, 3, 60), (0, 1, 200), (1, 0, 200), (7, 7, 9), (9, 100, 64)]
            {
                let memory = volume(256, cores);
                let mut model = contents(&memory).to_vec();
                let start = source * BLOCK;
                model.copy_within(start..start + blocks * BLOCK, target * BLOCK);
                let done = copied(&memory, target as u64, vec![same(source as u64, blocks as u32)]);
                assert_eq!(done, (Status::SUCCESS, 0));
                assert!(contents(&memory) == model, "{cores}: {source} to {target}, {blocks}");
            }
        }
    }

    #[test]
    fn ranges_follow_each_other_from_two_volumes() {
        // Large enough for stores past the caches.
        let (memory, other) = (volume(stream::VOLUME_BYTES_MIN >> 9, 2), volume(300, 2));
        let place = Place::Origin(Origin::Memory(Arc::clone(&other)));
        let far = Source { place, slba: 200, blocks: 33, fast_only: false };
        assert_eq!(copied(&memory, 11, vec![same(20, 5), far]), (Status::SUCCESS, 0));
        let block = |at: usize| contents(&memory)[at * BLOCK..][..BLOCK].to_vec();
        assert_eq!(block(10), [10; BLOCK]);
        assert_eq!((block(11), block(15)), (vec![20; BLOCK], vec![24; BLOCK]));
        assert_eq!((block(16), block(48)), (vec![200; BLOCK], vec![232; BLOCK]));
        assert_eq!(block(49), [49; BLOCK]);
    }

    #[test]
    fn the_result_is_the_range_that_failed() {
        let memory = volume(64, 1);
        let status = Status::LBA_OUT_OF_RANGE.dnr();
        assert_eq!(copied(&memory, 8, vec![same(0, 4), same(62, 3)]), (status, 1));
        assert_eq!(contents(&memory)[8 * BLOCK], 0);
        assert_eq!(copied(&memory, 60, vec![same(0, 4), same(0, 1)]), (status, 1));
        assert_eq!(copied(&memory, u64::MAX, vec![same(0, 1)]), (status, 0));
    }

    #[test]
    fn what_is_not_memory_is_refused_before_anything_is_copied() {
        let memory = volume(64, 1);
        let place =
            Place::Origin(Origin::Subsystem { nqn: "nqn".into(), nsid: 1, numbering: None });
        let foreign = Source { place, slba: 0, blocks: 1, fast_only: false };
        let refused = (Status::FAST_COPY_NOT_POSSIBLE.dnr(), 0);
        assert_eq!(copied(&memory, 8, vec![same(0, 4), foreign]), refused);
        assert_eq!(contents(&memory)[8 * BLOCK], 8);
    }

    #[test]
    fn copies_in_opposite_directions_do_not_wait_for_each_other() {
        let (left, right) = (volume(512, 2), volume(512, 2));
        std::thread::scope(|scope| {
            for (to, from) in [(&left, &right), (&right, &left)] {
                scope.spawn(move || {
                    for round in 0..2000 {
                        let place = Place::Origin(Origin::Memory(Arc::clone(from)));
                        let source =
                            Source { place, slba: round % 256, blocks: 256, fast_only: false };
                        assert_eq!(copied(to, 256 - round % 256, vec![source]).0, Status::SUCCESS);
                    }
                });
            }
        });
    }
}
