//! A Copy between files, carried out by calls that block.
//!
//! ```text
//!   piece ->  part page   pread, pwrite: as everything else, past the page cache or through it
//!             pages       FICLONERANGE, where files share blocks; elsewhere run by run:
//!               hole        punched, where the destination is not one already
//!               rest        copy_file_range, through the page cache
//! ```
//!
//! **Shared** is a whole piece at once, no more than a Copy may have (128 MiB), holes and all: nobody looks for them,
//! since to find the end of what is stored XFS would go through all extents up to the next hole, thousands in a file
//! that shares much. Where the file system will not (XFS does not in parts of the disk that are nearly full), the ioctl
//! says so. copy_file_range(2) would move the bytes in its stead: holes among them, and without being told to stop.
//!
//! **Through the page cache**, also where the volume goes past it (O_DIRECT): where blocks cannot be shared,
//! copy_file_range(2) moves 64 KiB at a time and waits for each if it goes past the cache. ext4 on a
//! virtual disk, 256 MiB in calls of 1 MiB: 0.25 GB/s, against 0.8 cold and 2.9 warm through the cache, or
//! 0.6 and 1.4 with the fdatasync(2) that follows.
//!
//! Both views of a file agree as long as they do not change one page at the same time: before a direct
//! access the kernel writes back what is dirty in its range, and a direct write takes the range out of the
//! cache before and after. What is copied is claimed by the guard above, so that nobody reads
//! or writes these blocks meanwhile. But a page may hold blocks that somebody else writes to, hence:
//!
//! - pages that are copied in part are not dirtied in the cache but written past it;
//! - nothing is read ahead beyond the range (`POSIX_FADV_RANDOM`): a larger folio, half of it dirtied by
//!   a copy, could not be dropped for a direct write to its other half. What is about to be
//!   copied is asked for by `POSIX_FADV_WILLNEED`, which reads just that; unless pages here and there show that it is in
//!   the cache, since to be told so of each page took 7 % of copying it (4 MiB: 54 us of 730).
//!
//! Whoever goes past the page cache expects a short Flush: what Copies have written into it is on its way
//! to the disk after a second (`write_back`).

use super::copy::clone_range;
use super::{File, holes};
use rustix::io::{ReadWriteFlags, preadv2};
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A page, and what files that share blocks share at least.
const PAGE_BYTES: u64 = 4096;
/// Copied by one call, where that means moving bytes.
const CALL_BYTES: u64 = 1 << 20;
/// Asked for in advance.
const AHEAD_BYTES: u64 = 4 << 20;
/// From one page that is looked for in the cache to the next: what is thrown out of it is rarely less.
const LOOK_BYTES: u64 = 256 << 10;

/// A Copy to `file`.
pub(super) struct Job {
    pub(super) file: Arc<File>,
    /// One after another in the destination.
    pub(super) pieces: Vec<Piece>,
    /// It is to be durable when it is done.
    pub(super) fua: bool,
    /// Set when it was given up.
    pub(super) stop: Option<Arc<AtomicBool>>,
}

/// Bytes that lie together in a source, and in the destination.
pub(super) struct Piece {
    pub(super) file: Arc<File>,
    pub(super) source: u64,
    pub(super) target: u64,
    pub(super) len: u64,
}

/// How far a job came, and why not farther.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) bytes: u64,
    pub(super) how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// All was copied.
    Whole,
    /// The kernel has no means between these two files; the device of the source.
    Refused(u64),
    /// A file has been made smaller.
    OutOfRange,
    /// A read failed, with errno; or a read or a write, if it cannot be told.
    Read(i32),
    /// A write failed.
    Written(i32),
    /// It was written, and could not be made durable.
    NotDurable(i32),
    /// It was given up.
    Stopped,
}

impl Job {
    pub(super) fn run(&self) -> Ended {
        let mut bytes = 0;
        let copied = self.pieces.iter().try_for_each(|piece| self.piece(piece, &mut bytes));
        if self.fua
            && let Err(error) = self.file.sync(std::fs::File::sync_data)
        {
            // What is not durable is not done.
            return Ended { bytes: 0, how: How::NotDurable(errno(&error)) };
        }
        Ended { bytes, how: copied.err().unwrap_or(How::Whole) }
    }

    /// Copies one piece. `bytes` counts what is done.
    fn piece(&self, piece: &Piece, bytes: &mut u64) -> Result<(), How> {
        let whole = Span { piece, at: 0, len: piece.len };
        if !self.may_share(piece) {
            return self.runs(whole, bytes);
        }
        for (part, is_whole) in whole.parts() {
            self.check(&part)?;
            if !is_whole {
                self.part_page(&part)?;
            } else if !self.share(&part) {
                self.runs(part, bytes)?;
                continue;
            }
            *bytes += part.len;
        }
        Ok(())
    }

    /// Copies a part of a piece that is not shared, run by run.
    fn runs(&self, span: Span<'_>, bytes: &mut u64) -> Result<(), How> {
        let (piece, shift) = (span.piece, self.file.block_shift);
        let (mut at, end) = (span.at, span.at + span.len);
        while at < end {
            let left = end - at;
            let (slba, blocks) = ((piece.source + at) >> shift, left >> shift);
            let run = holes::runs(&piece.file.file, shift, slba, blocks, 1);
            // A file system that does not tell stores everything.
            let run = run.ok().and_then(|runs| runs.first().copied());
            let (len, is_hole) =
                run.map_or((left, false), |run| (run.blocks << shift, !run.is_stored));
            let span = Span { piece, at, len };
            self.check(&span)?;
            if is_hole {
                Self::check_hole(&span)?;
            }
            if is_hole && self.punch(&span)? {
                *bytes += len;
            } else {
                self.stored(&span, bytes)?;
            }
            at += len;
        }
        Ok(())
    }

    /// Whether whole pages of a piece can be shared, as far as is known.
    fn may_share(&self, piece: &Piece) -> bool {
        let congruent = piece.source % PAGE_BYTES == piece.target % PAGE_BYTES;
        congruent && self.file.may_share_with(&piece.file)
    }

    /// Neither file may be used beyond its end, nor made larger; and somebody still wants it.
    fn check(&self, span: &Span<'_>) -> Result<(), How> {
        if self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(How::Stopped);
        }
        let within = |file: &File, end: u64| end <= file.blocks() << file.block_shift;
        let fits = within(&self.file, span.target() + span.len)
            && within(&span.piece.file, span.source() + span.len);
        if fits { Ok(()) } else { Err(How::OutOfRange) }
    }

    /// What is beyond the end of a file that somebody has made smaller looks like a hole, too.
    fn check_hole(span: &Span<'_>) -> Result<(), How> {
        let len = span.piece.file.file.metadata().map_err(|error| How::Read(errno(&error)))?.len();
        if span.source() + span.len <= len { Ok(()) } else { Err(How::OutOfRange) }
    }

    /// Makes the destination a hole too. False if it cannot be made one.
    fn punch(&self, span: &Span<'_>) -> Result<bool, How> {
        let file = &*self.file;
        let shift = file.block_shift;
        let mut at = 0;
        while at < span.len {
            let (slba, blocks) = ((span.target() + at) >> shift, (span.len - at) >> shift);
            let run = holes::runs(&file.file, shift, slba, blocks, 1);
            let run = run.ok().and_then(|runs| runs.first().copied());
            let (len, is_stored) =
                run.map_or((span.len - at, true), |run| (run.blocks << shift, run.is_stored));
            if is_stored && !zero(file, span.target() + at, len)? {
                return Ok(false);
            }
            at += len;
        }
        Ok(true)
    }

    /// Has whole pages shared. False if the file system does not, for whatever reason: its blocks may be larger, or
    /// that part of the disk has no room for more references. Some may be shared even so.
    fn share(&self, span: &Span<'_>) -> bool {
        let source = (&span.piece.file.file, span.source());
        clone_range(source, (&self.file.file, span.target()), span.len).is_ok()
    }

    /// Copies a range that is stored.
    fn stored(&self, span: &Span<'_>, bytes: &mut u64) -> Result<(), How> {
        for (part, is_whole) in span.parts() {
            if is_whole {
                self.pages(part, bytes)?;
            } else {
                self.part_page(&part)?;
                *bytes += part.len;
            }
        }
        Ok(())
    }

    /// Copies whole pages of the destination.
    fn pages(&self, mut span: Span<'_>, bytes: &mut u64) -> Result<(), How> {
        let from = &*span.piece.file;
        let end = span.at + span.len;
        let (source, target) = (from.cached(), self.file.cached());
        let mut asked = span.at;
        while span.at < end {
            span.len = (end - span.at).min(CALL_BYTES);
            let until = (span.at + AHEAD_BYTES).min(end);
            if from.is_direct() && asked < until {
                let (start, len) = (span.piece.source + asked, until - asked);
                if !is_cached(source, start, len) {
                    advise(source, start, len);
                }
                asked = until;
            }
            self.check(&span)?;
            let copied = match copy_file_range(source, target, &span) {
                Ok(copied) => copied,
                Err(libc::EINTR) => continue,
                Err(
                    libc::EXDEV | libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL | libc::ETXTBSY,
                ) => return Err(How::Refused(from.copying.identity.0)),
                // Writes into the cache fail for want of space; only reads go to the disk at once.
                Err(libc::EIO) => return Err(How::Read(libc::EIO)),
                Err(errno) => return Err(How::Written(errno)),
            };
            if copied == 0 {
                return Err(How::OutOfRange);
            }
            if self.file.is_direct() {
                self.file.copied_to_cache(span.target(), copied);
            }
            span.at += copied;
            *bytes += copied;
        }
        Ok(())
    }

    /// Copies less than a page.
    fn part_page(&self, span: &Span<'_>) -> Result<(), How> {
        #[repr(align(4096))]
        struct Page([u8; PAGE_BYTES as usize]);
        let mut page = Page([0; PAGE_BYTES as usize]);
        let bytes = &mut page.0[..span.len as usize];
        match span.piece.file.file.read_exact_at(bytes, span.source()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(How::OutOfRange);
            }
            Err(error) => return Err(How::Read(errno(&error))),
        }
        let written = self.file.file.write_all_at(bytes, span.target());
        written.map_err(|error| How::Written(errno(&error)))
    }
}

/// `len` bytes of a piece, `at` bytes into it.
#[derive(Clone, Copy)]
struct Span<'a> {
    piece: &'a Piece,
    at: u64,
    len: u64,
}

impl<'a> Span<'a> {
    /// What there is of these: less than a page of the destination, whole pages, and again less than one; and whether
    /// they are whole.
    fn parts(&self) -> impl Iterator<Item = (Span<'a>, bool)> + use<'a> {
        let (target, mut rest) = (self.target(), *self);
        let head = (target.next_multiple_of(PAGE_BYTES) - target).min(self.len);
        let tail = (self.len - head) % PAGE_BYTES;
        let parts = [(head, false), (self.len - head - tail, true), (tail, false)];
        parts.into_iter().filter(|(len, _)| *len > 0).map(move |(len, is_whole)| {
            let part = Span { len, ..rest };
            rest.at += len;
            (part, is_whole)
        })
    }

    fn source(&self) -> u64 {
        self.piece.source + self.at
    }

    fn target(&self) -> u64 {
        self.piece.target + self.at
    }
}

impl File {
    /// Whether a Copy may have left data in the page cache.
    pub(super) fn has_copied(&self) -> bool {
        self.copying.cached.get().is_some()
    }

    /// The file through the page cache. Where it cannot be had, past it: slower, and no less right.
    pub(super) fn cached(&self) -> &std::fs::File {
        if !self.is_direct() {
            return &self.file;
        }
        let cached = self.copying.cached.get_or_init(|| {
            // The name may be another file's by now, the descriptor is not.
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let file =
                std::fs::File::options().read(true).write(!self.read_only).open(path).ok()?;
            // SAFETY: a system call on an open descriptor, without memory.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
            Some(file)
        });
        cached.as_ref().unwrap_or(&self.file)
    }
}

/// Whether bytes seem to be in the page cache: a page every [`LOOK_BYTES`] is.
pub(super) fn is_cached(file: &std::fs::File, offset: u64, len: u64) -> bool {
    (0..len).step_by(LOOK_BYTES as usize).all(|at| {
        let mut byte = [0];
        let mut room = [IoSliceMut::new(&mut byte)];
        // Never waits. The first page that is missing may be asked for by it, as it is by the advice that follows.
        let read = preadv2(file, &mut room, offset + at, ReadWriteFlags::NOWAIT);
        read.is_ok_and(|count| count == 1)
    })
}

/// Asks for bytes that will be read soon. Only advice: it may be left alone.
fn advise(file: &std::fs::File, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(len)) else {
        return;
    };
    // SAFETY: a system call on an open descriptor, without memory.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, libc::POSIX_FADV_WILLNEED) };
}

/// Copies some of a span, and says how much; or gives errno.
fn copy_file_range(
    source: &std::fs::File,
    target: &std::fs::File,
    span: &Span<'_>,
) -> Result<u64, i32> {
    let (Ok(mut from), Ok(mut to)) = (i64::try_from(span.source()), i64::try_from(span.target()))
    else {
        return Err(libc::EFBIG);
    };
    let len = usize::try_from(span.len).unwrap_or(usize::MAX);
    // SAFETY: the descriptors are open, and the offsets live during the call.
    let copied = unsafe {
        libc::copy_file_range(source.as_raw_fd(), &mut from, target.as_raw_fd(), &mut to, len, 0)
    };
    u64::try_from(copied).map_err(|_| errno(&io::Error::last_os_error()))
}

/// Zeroes a range without writing it; false if the file system has no way to.
fn zero(file: &File, offset: u64, len: u64) -> Result<bool, How> {
    let ranges = file.zeroes_by.range.load(Ordering::Relaxed);
    let ways = [(file.punches, libc::FALLOC_FL_PUNCH_HOLE), (ranges, libc::FALLOC_FL_ZERO_RANGE)];
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
        return Ok(false);
    };
    for (_, mode) in ways.into_iter().filter(|(may, _)| *may) {
        loop {
            let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: a system call on an open descriptor, without memory.
            if unsafe { libc::fallocate(file.file.as_raw_fd(), mode, offset, len) } == 0 {
                return Ok(true);
            }
            match errno(&io::Error::last_os_error()) {
                libc::EINTR => {}
                libc::EOPNOTSUPP | libc::ENOSYS => break,
                errno => return Err(How::Written(errno)),
            }
        }
    }
    Ok(false)
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}
