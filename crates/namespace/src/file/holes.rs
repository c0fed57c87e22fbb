//! Where a file has holes, as its file system tells (lseek(2), `SEEK_DATA` and `SEEK_HOLE`).

use crate::Run;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Runs of stored blocks and of holes from block `slba` on, `runs_max` of them or as many as
/// `blocks` blocks have. A block that is a hole in part counts as stored.
pub(super) fn runs(
    file: &File,
    block_shift: u8,
    slba: u64,
    blocks: u64,
    runs_max: usize,
) -> io::Result<Vec<Run>> {
    let end = slba + blocks;
    let block_bytes = 1u64 << block_shift;
    let mut runs = Vec::new();
    let mut at = slba;
    while at < end && runs.len() < runs_max {
        // No data beyond: a hole up to the end of the file.
        let data = seek(file, at << block_shift, libc::SEEK_DATA)?
            .map_or(end, |offset| (offset >> block_shift).min(end));
        if data > at {
            runs.push(Run { blocks: data - at, is_stored: false });
            at = data;
            continue;
        }
        let hole = seek(file, at << block_shift, libc::SEEK_HOLE)?
            .map_or(end, |offset| offset.div_ceil(block_bytes).clamp(at + 1, end));
        match runs.last_mut() {
            Some(Run { blocks, is_stored: true }) => *blocks += hole - at,
            _ => runs.push(Run { blocks: hole - at, is_stored: true }),
        }
        at = hole;
    }
    Ok(runs)
}

/// The next place from `offset` on; none if there is none before the end of the file.
fn seek(file: &File, offset: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: a system call on an open descriptor, without memory. The position of the file is
    // used by nobody: all I/O names its offset.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    if let Ok(found) = u64::try_from(found) {
        return Ok(Some(found));
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENXIO) { Ok(None) } else { Err(error) }
}
