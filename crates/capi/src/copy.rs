//! Copies between volumes of a session.

use crate::failure::{Failure, answer, answer_long};
use crate::handle;
use crate::submission::{Memo, rejected};
use crate::volume::nvl_volume;
use std::ffi::c_int;
use volume::session::{Bytes, CopyError, Ranges, Reason, Submission, Volume};

/// nvl_copy() flags: fail (Fast Copy Not Possible) where blocks could only be read and written.
pub const NVL_COPY_FAST_ONLY: u32 = 1;

/// nvl_copy() takes at most so many ranges, whatever a volume's limits are.
pub const NVL_COPY_RANGES_MAX: u32 = 256;
/// nvl_copy_to_all() takes at most so many targets.
pub const NVL_COPY_TARGETS_MAX: u32 = 32768;

/// Blocks that are copied.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvl_copy_source {
    /// Where they are: any volume of the session; null for the one that is written to.
    pub volume: *mut nvl_volume,
    /// The first one there.
    pub first: u64,
    /// How many.
    pub blocks: u32,
    /// 0.
    pub reserved: u32,
}

/// Where blocks are copied to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvl_copy_target {
    /// A volume of the session.
    pub volume: *mut nvl_volume,
    /// The first block there.
    pub first: u64,
}

/// Starts a Copy of `count` source ranges, one after another, to the blocks of `volume` from `first` on, as nvl_submit()
/// starts a command; nvl_limits.copy_* say how much one may be. On failure nvl_completion.result is the lowest range
/// that was not copied whole. Volumes may differ, but not in the size of their blocks. A range may overlap what is
/// written, and is copied as if it were read whole before; but what earlier ranges have written, it reads as they left it.
///
/// nvl_submit() takes Copies as well, with source ranges as NVMe has them; in formats 2h and 3h the namespace id is then
/// nvl_volume_id() of a volume of the session.
///
/// Errors: those of nvl_submit(); -EXDEV if a volume is of another session.
///
/// # Safety
/// `volume` is null or a volume, not closed; `sources` has `count` elements, whose volumes are null or not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_copy(
    volume: *mut nvl_volume,
    first: u64,
    sources: *const nvl_copy_source,
    count: u32,
    flags: u32,
    token: u64,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { copy(volume, first, sources, count, flags, token) })
}

/// # Safety
/// As for [`nvl_copy`].
unsafe fn copy(
    volume: *mut nvl_volume,
    first: u64,
    sources: *const nvl_copy_source,
    count: u32,
    flags: u32,
    token: u64,
) -> Result<c_int, Failure> {
    // SAFETY: as the caller promised.
    let volume = unsafe { handle::of(volume) }?;
    let entries = &volume.entries;
    let mut ranges = entries.spare_ranges();
    // SAFETY: as the caller promised.
    if let Err(failure) = unsafe { fill(&mut ranges, sources, count, flags) } {
        entries.keep_ranges(ranges);
        return Err(failure);
    }
    let Some(memo) = Memo::new(entries) else {
        entries.keep_ranges(ranges);
        return Err(rejected(Reason::Full));
    };
    let submission = Submission::copy(first, ranges).token(memo.index());
    match volume.volume.submit(submission) {
        Ok(()) => {
            memo.keep(token, None);
            Ok(0)
        }
        Err(error) => {
            if let Bytes::Ranges(ranges) = error.submission.data {
                entries.keep_ranges(ranges);
            }
            Err(rejected(error.reason))
        }
    }
}

/// Starts a Copy of the same source ranges to each of `target_count` targets; they count as so many commands in
/// flight, and complete as one. Its nvl_completion.result is the lowest target whose Copy has failed, with the status of
/// that and its volume, or `target_count` if none has; all are tried. They are at work at once.
///
/// Errors: those of nvl_copy(); -EAGAIN if the depth has no room for all; -EINVAL if what is written to one is written
/// or read for another, as far as volumes tell that their blocks are the same. None was started then.
///
/// # Safety
/// `targets` has `target_count` elements, and `sources` has `count`; their volumes are null or not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_copy_to_all(
    targets: *const nvl_copy_target,
    target_count: u32,
    sources: *const nvl_copy_source,
    count: u32,
    flags: u32,
    token: u64,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { copy_to_all(targets, target_count, sources, count, flags, token) })
}

/// # Safety
/// As for [`nvl_copy_to_all`].
unsafe fn copy_to_all(
    targets: *const nvl_copy_target,
    target_count: u32,
    sources: *const nvl_copy_source,
    count: u32,
    flags: u32,
    token: u64,
) -> Result<c_int, Failure> {
    if targets.is_null() || !(1..=NVL_COPY_TARGETS_MAX).contains(&target_count) {
        return Err(Failure::argument("there are no targets, or more than NVL_COPY_TARGETS_MAX"));
    }
    let mut ranges = Ranges::new();
    // SAFETY: as the caller promised.
    unsafe { fill(&mut ranges, sources, count, flags) }?;
    let mut volumes: Vec<(&Volume, u64)> = Vec::with_capacity(target_count as usize);
    let mut session = None;
    for at in 0..target_count as usize {
        // SAFETY: as the caller promised.
        let target = unsafe { targets.add(at).read_unaligned() };
        // SAFETY: as the caller promised.
        let state = unsafe { handle::of(target.volume) }?;
        session.get_or_insert(state);
        volumes.push((&state.volume, target.first));
    }
    let state = session.expect("there is a target");
    let memo = Memo::new(&state.entries).ok_or_else(|| rejected(Reason::Full))?;
    Volume::copy_to_all(&volumes, &ranges, memo.index()).map_err(rejected)?;
    memo.keep(token, None);
    Ok(0)
}

/// Copies `blocks` blocks of `source` from `source_first` on to `target` from `target_first` on, and waits for it, as
/// copy_file_range() does between files. Gives how many were copied: fewer than asked for if the volume allows no more
/// at once, or if it failed in the middle. What else is in flight goes on meanwhile.
///
/// Errors: those of nvl_copy(); -EINVAL, as of copy_file_range(), if what is read and what is written overlap, as far as
/// volumes tell that their blocks are the same (one Copy of one range may: nvl_copy()); -EIO if the volume has failed
/// it, and nvl_error() has the status in words. Nothing was copied then.
///
/// # Safety
/// `target` and `source` are null or volumes, not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_copy_range(
    target: *mut nvl_volume,
    target_first: u64,
    source: *mut nvl_volume,
    source_first: u64,
    blocks: u64,
) -> i64 {
    // SAFETY: as the caller promised.
    let volumes =
        unsafe { handle::of(target).and_then(|target| Ok((target, handle::of(source)?))) };
    answer_long(volumes.and_then(|(target, source)| {
        let (to, from) = (&target.volume, &source.volume);
        match to.copy_range(target_first, from, source_first, blocks) {
            Ok(copied) => Ok(copied as i64),
            Err(CopyError::Rejected(reason)) => Err(rejected(reason)),
            Err(error @ CopyError::Failed(_)) => Err(Failure::new(libc::EIO, error.to_string())),
        }
    }))
}

/// # Safety
/// `sources` has `count` elements, whose volumes are null or not closed.
unsafe fn fill(
    ranges: &mut Ranges,
    sources: *const nvl_copy_source,
    count: u32,
    flags: u32,
) -> Result<(), Failure> {
    if flags & !NVL_COPY_FAST_ONLY != 0 {
        return Err(Failure::argument(format!("flags {flags:#x}: unknown bits")));
    }
    if sources.is_null() || !(1..=NVL_COPY_RANGES_MAX).contains(&count) {
        return Err(Failure::argument("there are no sources, or more than NVL_COPY_RANGES_MAX"));
    }
    for at in 0..count as usize {
        // SAFETY: as the caller promised.
        let source = unsafe { sources.add(at).read_unaligned() };
        if source.reserved != 0 {
            return Err(Failure::argument("nvl_copy_source.reserved is not 0"));
        }
        if source.volume.is_null() {
            ranges.push(source.first, source.blocks);
        } else {
            // SAFETY: as the caller promised.
            let from = unsafe { handle::of(source.volume) }?;
            ranges.push_from(&from.volume, source.first, source.blocks);
        }
    }
    ranges.set_fast_only(flags & NVL_COPY_FAST_ONLY != 0);
    Ok(())
}
