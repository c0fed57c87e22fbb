//! Copy between files: what is in reach, and the way to the threads for calls that block.

use super::offload::{Ended, How, Job, Piece};
use super::queue::{FileQueue, not_durable, status};
use super::write_back::Dirty;
use super::{File, Kind};
use crate::copy::{Origin, Place, REMEMBERED, Source, Sources};
use crate::{Data, Request};
use nvme::Status;
use nvme::limits::CopyLimits;
use reactor::Complete;
use std::cell::Cell;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// `FICLONERANGE` (linux/fs.h), and what it takes.
const FICLONERANGE: libc::c_ulong = 0x4020_940d;

#[repr(C)]
struct CloneRange {
    source: i64,
    source_offset: u64,
    source_length: u64,
    target_offset: u64,
}

/// What a file needs to be copied to and from.
#[derive(Debug)]
pub(super) struct Copying {
    /// Which file it is: device and inode; of a block device its number, however many nodes it has.
    pub(super) identity: (u64, u64),
    /// The file system lets files share blocks.
    pub(super) shares: bool,
    is_btrfs: bool,
    /// The file through the page cache, where everything else goes past it; see `offload`. Opened by the
    /// first Copy.
    pub(super) cached: OnceLock<Option<std::fs::File>>,
    pub(super) dirty: Dirty,
    /// Devices from which the kernel has refused to copy, and when: one per file system in use.
    refused: Mutex<Vec<(u64, Instant)>>,
}

impl Copying {
    pub(super) fn of(file: &std::fs::File, kind: Kind) -> io::Result<Copying> {
        let metadata = file.metadata()?;
        Ok(Copying {
            identity: identity(&metadata, kind),
            shares: kind == Kind::Regular && shares(file, metadata.len()),
            is_btrfs: rustix::fs::fstatfs(file)
                .is_ok_and(|it| it.f_type == libc::BTRFS_SUPER_MAGIC),
            cached: OnceLock::new(),
            dirty: Dirty::default(),
            refused: Mutex::default(),
        })
    }

    /// Those that are not to be tried again yet.
    fn refused(&self) -> MutexGuard<'_, Vec<(u64, Instant)>> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.retain(|(_, since)| since.elapsed() < REMEMBERED);
        refused
    }

    fn refuses(&self, device: u64) -> bool {
        self.refused().iter().any(|(refused, _)| *refused == device)
    }
}

/// What tells a file of this kind from others on this machine.
pub(super) fn identity(metadata: &std::fs::Metadata, kind: Kind) -> (u64, u64) {
    match kind {
        Kind::Regular => (metadata.dev(), metadata.ino()),
        Kind::Block => (metadata.rdev(), u64::MAX),
    }
}

/// Whether the file system lets files share blocks, found out without doing it: where it does, it says
/// that a range beyond the end cannot be cloned; where not, that none can.
fn shares(file: &std::fs::File, bytes: u64) -> bool {
    // A multiple of every block size that there is.
    let beyond = bytes.next_multiple_of(1 << 20) + (1 << 20);
    let result = clone_range((file, beyond), (file, beyond + (1 << 20)), 1 << 20);
    result.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
}

/// Has `len` bytes of a file share blocks with another file, from the offsets given on. All of them are blocks of the
/// file system, or up to the source's end. If it fails some may.
pub(super) fn clone_range(
    (source, source_offset): (&std::fs::File, u64),
    (target, target_offset): (&std::fs::File, u64),
    len: u64,
) -> io::Result<()> {
    let source = i64::from(source.as_raw_fd());
    let range = CloneRange { source, source_offset, source_length: len, target_offset };
    // SAFETY: the request reads a `file_clone_range` (linux/fs.h), which lives during the call.
    let result = unsafe { libc::ioctl(target.as_raw_fd(), FICLONERANGE, &raw const range) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl File {
    pub(super) fn copy_limits(&self) -> CopyLimits {
        match self.kind {
            Kind::Regular if !self.read_only => crate::copy::limits(self.block_shift),
            Kind::Regular | Kind::Block => CopyLimits::NONE,
        }
    }

    /// Whether the kernel may copy from `source` to here: both are files, of one file system as far as can be seen.
    /// Subvolumes of btrfs have device numbers of their own, and share blocks all the same.
    pub fn may_copy_from(&self, source: &File) -> bool {
        let (one, other) = (&self.copying, &source.copying);
        self.kind == Kind::Regular
            && source.kind == Kind::Regular
            && (one.identity.0 == other.identity.0 || one.is_btrfs && other.is_btrfs)
    }

    /// Whether blocks of `source` can be shared: a matter of the file system. A file that is open for reading cannot be
    /// asked.
    pub fn may_share_with(&self, source: &File) -> bool {
        self.copying.shares
            && (source.copying.shares || source.read_only)
            && self.may_copy_from(source)
    }

    pub(super) fn describe_copy(&self, facts: &mut Vec<(String, String)>) {
        let how = match self.kind {
            Kind::Block => "read and written: a block device",
            Kind::Regular if self.read_only => "from here only: the volume is read-only",
            Kind::Regular if self.copying.shares => {
                "shares blocks (FICLONERANGE), or copy_file_range"
            }
            Kind::Regular => "copy_file_range",
        };
        facts.push(("copy".into(), how.into()));
        if !self.copying.refused().is_empty() {
            let how = "read and written: the kernel copies within one only";
            facts.push(("copy from other file systems".into(), how.into()));
        }
    }

    /// The file that a source range is in, if it can be copied from there at all.
    fn source<'a>(self: &'a Arc<File>, place: &'a Place) -> Option<&'a Arc<File>> {
        let file = match place {
            Place::Same => self,
            Place::Origin(Origin::File(file)) => file,
            Place::Origin(_) | Place::Other(_) => return None,
        };
        let regular = file.kind == Kind::Regular && self.kind == Kind::Regular;
        let refused = || self.copying.refuses(file.copying.identity.0);
        (regular && file.block_shift == self.block_shift && !refused()).then_some(file)
    }

    /// What is to be copied, cut into pieces that follow each other in one file; or why it is not
    /// begun.
    fn plan(self: &Arc<File>, sdlba: u64, sources: &Sources) -> Result<Vec<Piece>, Status> {
        let files: Option<Vec<_>> =
            sources.ranges.iter().map(|range| self.source(&range.place)).collect();
        let files = files.ok_or(Status::FAST_COPY_NOT_POSSIBLE.dnr())?;
        if self.read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
        }
        let total = sources.blocks();
        let end = sdlba.checked_add(total).filter(|end| *end <= self.blocks());
        let end = end.ok_or(Status::LBA_OUT_OF_RANGE.dnr())?;
        let mut pieces: Vec<Piece> = Vec::new();
        for (file, (range, target)) in files.into_iter().zip(sources.placed(sdlba)) {
            let &Source { slba, blocks, .. } = range;
            let past = slba.checked_add(blocks.into()).filter(|past| *past <= file.blocks());
            let past = past.ok_or(Status::LBA_OUT_OF_RANGE.dnr())?;
            // The kernel refuses that for one range, and does not look at the others. Since no source
            // is written to, whatever is given up in the middle can be done again by somebody else.
            if file.copying.identity == self.copying.identity && slba < end && past > sdlba {
                return Err(Status::FAST_COPY_NOT_POSSIBLE);
            }
            let bytes = |blocks| blocks << self.block_shift;
            let (source, len) = (bytes(slba), bytes(u64::from(blocks)));
            match pieces.last_mut() {
                Some(last) if Arc::ptr_eq(&last.file, file) && last.source + last.len == source => {
                    last.len += len;
                }
                _ => {
                    let file = Arc::clone(file);
                    pieces.push(Piece { file, source, target: bytes(target), len });
                }
            }
        }
        Ok(pieces)
    }
}

impl FileQueue {
    pub(super) fn copy(&self, request: Box<Request>) {
        let command = &request.command;
        let Data::Sources(sources) = &request.data else {
            return request.finish(Status::INVALID_FIELD.dnr());
        };
        let pieces = match self.volume.plan(command.slba(), sources) {
            Ok(pieces) => pieces,
            Err(status) => return request.finish(status),
        };
        let (file, stop, line) = (Arc::clone(&self.volume), sources.stop.clone(), sources.line());
        let job = Job { file, pieces, fua: command.fua(), stop };
        let ended = Arc::<OnceLock<Ended>>::default();
        let flight = Rc::new(Flight {
            file: Arc::clone(&self.volume),
            request: Cell::new(Some(request)),
            ended: Arc::clone(&ended),
        });
        let work = move || {
            ended.set(job.run()).expect("a job is run once");
            0
        };
        // Others need the threads for calls that are over soon.
        self.reactor.blocking_in(line, Box::new(work), flight, 0);
    }
}

/// A Copy at work.
struct Flight {
    file: Arc<File>,
    request: Cell<Option<Box<Request>>>,
    ended: Arc<OnceLock<Ended>>,
}

impl Complete for Flight {
    fn complete(&self, _token: u64, result: i32, _flags: u32) {
        let mut request = self.request.take().expect("a job ends once");
        let (command, file) = (request.command, &self.file);
        let Some(ended) = self.ended.get() else {
            // No thread could be had, or the reactor is stopping.
            return request.finish(status(command.opcode, -result));
        };
        let Data::Sources(sources) = &mut request.data else {
            unreachable!("it came with its sources");
        };
        // Checked when it came in; the file may have been made smaller since.
        file.written(command.slba() + sources.blocks());
        let done = ended.bytes >> file.block_shift;
        let whole = |(range, target): &(&Source, u64)| {
            target + u64::from(range.blocks) <= command.slba() + done
        };
        let ranges = sources.placed(command.slba()).take_while(whole).count();
        let status = match ended.how {
            How::Whole => Status::SUCCESS,
            How::Refused(device) => {
                if !file.copying.refuses(device) {
                    file.copying.refused().push((device, Instant::now()));
                }
                Status::FAST_COPY_NOT_POSSIBLE.dnr()
            }
            How::OutOfRange => Status::LBA_OUT_OF_RANGE.dnr(),
            How::Read(errno) => status(nvme::opcode::io::READ, errno),
            How::Written(errno) => status(command.opcode, errno),
            How::NotDurable(errno) => not_durable(errno),
            How::Stopped => Status::ABORT_REQUESTED,
        };
        let is_refused = matches!(ended.how, How::Refused(_));
        let whole: u64 = sources.ranges[..ranges].iter().map(|range| u64::from(range.blocks)).sum();
        sources.begun_blocks = if is_refused { (done - whole) as u32 } else { 0 };
        request.status = status;
        if let How::Read(errno) | How::Written(errno) | How::NotDurable(errno) = ended.how {
            request.os_error = errno;
        }
        request.result = if ended.how == How::Whole { 0 } else { ranges as u64 };
        request.complete();
    }
}

#[cfg(test)]
mod tests;
