//! Writing back what Copies leave in the page cache of a file that everything else goes past it to: whoever flushes
//! it expects that to be short.
//!
//! ```text
//!   copied:  [0][1]...[7]  -> regions of 8 MiB, oldest first -> a second old: written back, about as much of
//!                                                               them as was copied meanwhile
//! ```
//!
//! Not sooner: what is copied over soon need not be written twice. A region to which twice its size
//! was copied meanwhile waits for another second: it would be dirty again at once, so that writing it would make
//! copies slower, and no flush shorter. Nor all at once: sync_file_range(2) only begins to
//! write, but it has to wait for room in the device's queue; that is, for all but the last some hundred requests.
//! Measured with a queue of 256: 87 ms for 256 MiB, and 2.4 s where every other page of that was dirty, as long as
//! fdatasync(2) takes; 0.2 ms and 75 ms for 8 MiB. The blocks being copied are held meanwhile.

use super::File;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is written back by one call.
const REGION_BYTES: u64 = 8 << 20;
/// For how long it stays in the cache at least.
const AGE: Duration = Duration::from_secs(1);
/// A region to which so much is copied within that time is being copied over again and again.
const HOT_BYTES: u64 = 2 * REGION_BYTES;
/// Written back in a row at most, whatever was copied before: as much as a Copy holds.
const ROW_BYTES_MAX: u64 = 32 << 20;

/// What was copied into the page cache of a file, and is not being written back yet.
#[derive(Debug, Default)]
pub(super) struct Dirty(Mutex<Regions>);

#[derive(Debug, Default)]
struct Regions {
    /// Numbers, and since when there is something in them, or when they were last found hot; oldest first.
    queue: VecDeque<(u64, Instant)>,
    /// Those by their numbers.
    regions: BTreeMap<u64, Region>,
    /// Bytes that may be written back now.
    credit: u64,
}

#[derive(Debug, Default)]
struct Region {
    /// Bytes that wait to be written, at most.
    dirty: u64,
    /// Bytes copied to it since the time in the queue.
    copied: u64,
}

impl Dirty {
    /// Notes `bytes` that were copied to `offset`.
    fn note(&self, offset: u64, bytes: u64, now: Instant) {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Regions { queue, regions, credit } = &mut *guard;
        // Twice as much: what was left behind is caught up with.
        *credit = (*credit + 2 * bytes).min(ROW_BYTES_MAX);
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let number = at / REGION_BYTES;
            let next = ((number + 1) * REGION_BYTES).min(end);
            let region = regions.entry(number).or_insert_with(|| {
                queue.push_back((number, now));
                Region::default()
            });
            region.copied += next - at;
            region.dirty = (region.dirty + next - at).min(REGION_BYTES);
            at = next;
        }
    }

    /// Offset of a region that is to be written back now.
    fn due(&self, now: Instant) -> Option<u64> {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Regions { queue, regions, credit } = &mut *guard;
        loop {
            let &(number, since) = queue.front()?;
            if now.saturating_duration_since(since) < AGE {
                return None;
            }
            let region = regions.get_mut(&number).expect("what is queued is known");
            if region.copied >= HOT_BYTES {
                region.copied = 0;
                queue.pop_front();
                queue.push_back((number, now));
                continue;
            }
            if *credit < region.dirty {
                return None;
            }
            *credit -= region.dirty;
            queue.pop_front();
            regions.remove(&number);
            return Some(number * REGION_BYTES);
        }
    }
}

impl File {
    /// Notes bytes that a Copy has left in the page cache, and begins to write back what is old there.
    pub(super) fn copied_to_cache(&self, offset: u64, bytes: u64) {
        let (dirty, now) = (&self.copying.dirty, Instant::now());
        dirty.note(offset, bytes, now);
        while let Some(region) = dirty.due(now) {
            let fd = self.cached().as_raw_fd();
            let (at, len) = (region as i64, REGION_BYTES as i64);
            // Only begun: errors are told to who flushes.
            // SAFETY: a system call on an open descriptor, without memory.
            unsafe { libc::sync_file_range(fd, at, len, libc::SYNC_FILE_RANGE_WRITE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_dirty_is_written_back_after_a_second_and_as_fast_as_it_is_copied() {
        let (dirty, now) = (Dirty::default(), Instant::now());
        let after = |ms| now + Duration::from_millis(ms);
        // Copies of 1 MiB each, at 100 a second.
        let mut written = Vec::new();
        for number in 0..300 {
            let time = after(number * 10);
            dirty.note(number * MIB, MIB, time);
            let before = written.len();
            while let Some(region) = dirty.due(time) {
                written.push((number, region));
            }
            assert!(written.len() - before <= 1);
        }
        // The first when it is a second old; then as they come.
        assert_eq!(written[..2], [(100, 0), (108, REGION_BYTES)]);
        assert_eq!(written.len(), 25);
        assert!(written.iter().map(|it| it.1).eq((0..25).map(|region| region * REGION_BYTES)));
    }

    #[test]
    fn there_is_no_more_in_a_row_than_a_copy_holds() {
        let (dirty, now) = (Dirty::default(), Instant::now());
        let late = now + Duration::from_secs(9);
        dirty.note(5, 1 << 30, now);
        assert_eq!(dirty.due(now), None);
        let row = || std::iter::from_fn(|| dirty.due(late)).count();
        assert_eq!(row(), 4);
        dirty.note(0, 4 * MIB, late);
        assert_eq!(row(), 1);
        // Twice the bytes that were copied.
        dirty.note(4 * MIB, 8 * MIB, late);
        assert_eq!(row(), 2);
    }

    #[test]
    fn scattered_blocks_are_written_back_one_for_one() {
        let (dirty, now) = (Dirty::default(), Instant::now());
        for number in 0..100 {
            dirty.note(number * REGION_BYTES + 4096, 4096, now);
        }
        let late = now + AGE;
        let mut left = 100;
        dirty.note(0, 4096, late);
        while dirty.due(late).is_some() {
            left -= 1;
        }
        assert_eq!(left, 0);
        let regions = dirty.0.lock().unwrap();
        assert!(regions.queue.is_empty() && regions.regions.is_empty());
    }

    #[test]
    fn what_is_copied_over_again_and_again_is_written_back_when_that_ends() {
        let (dirty, now) = (Dirty::default(), Instant::now());
        // For ten seconds, ten times a second.
        let mut time = now;
        for _ in 0..100 {
            dirty.note(0, REGION_BYTES, time);
            assert_eq!(dirty.due(time), None);
            time += Duration::from_millis(100);
        }
        // Copies elsewhere go on, and it is at rest.
        let at_rest = time;
        let mut written = Vec::new();
        while time - at_rest < 5 * AGE {
            dirty.note(REGION_BYTES, 4096, time);
            written.extend(std::iter::from_fn(|| dirty.due(time)).map(|region| (region, time)));
            time += Duration::from_millis(10);
        }
        written.retain(|(region, _)| *region == 0);
        assert_eq!(written.len(), 1);
        assert!(written[0].1 - at_rest <= 2 * AGE);
    }
}
