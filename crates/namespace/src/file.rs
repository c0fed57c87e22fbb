//! `file:` and block devices: a volume in a file, read and written through the ring.
//!
//! ```text
//!   Read, Write     -> READ/WRITE(_FIXED), FUA as RWF_DSYNC      \
//!   Flush           -> FSYNC(DATASYNC)                            >  this core's ring  -> completion
//!   Write Zeroes,   -> FALLOCATE: ZERO_RANGE, or PUNCH_HOLE      /
//!   deallocate         (written as zeroes where refused)
//!   Copy            -> copy_file_range(2), on a thread that may block
//! ```
//!
//! O_DIRECT where the file system and the block size allow it, otherwise the page cache; which,
//! and why, is told by `describe`. Compare, Verify and fused pairs are left to the guard layer,
//! which also keeps overlapping commands apart: neither the page cache nor a disk promises that a
//! block is read and written whole.
//!
//! The file never grows beyond the size it was opened or resized to. Nothing is stored beside
//! the data: the UUID comes from the caller.

mod copy;
#[cfg(test)]
mod ending;
mod holes;
mod made;
mod offload;
mod open;
mod queue;
mod snapshot;
mod syncs;
mod write_back;

pub use made::Made;
pub use open::{FileOptions, OpenError, lasting};

use crate::copy::{Located, OnThreads, Origin};
use crate::told::TOLD_WITHIN;
use crate::{Access, Lost, Namespace, Queue, Run};
use copy::Copying;
use made::Own;
use nvme::Limits;
use nvme::limits::{Commands, DiscardLimits, Passthrough};
use queue::FileQueue;
use reactor::Reactor;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use syncs::Syncs;

/// Largest data transfer of one command: the largest buffer of the pool.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// A volume in a file or on a block device.
#[derive(Debug)]
pub struct File {
    /// If it was made just now for somebody who may not want it. Dropped before the file is closed.
    _own: Option<Own>,
    /// Held open, and locked, as long as the volume lives.
    file: std::fs::File,
    path: PathBuf,
    kind: Kind,
    block_shift: u8,
    blocks: AtomicU64,
    read_only: bool,
    /// Why the page cache is used; none with O_DIRECT.
    buffered: Option<&'static str>,
    uuid: Option<[u8; 16]>,
    /// Holes could be made when it was opened.
    punches: bool,
    zeroes_by: ZeroesBy,
    /// A write ended beyond the size we have: it was on its way when `resize` shrank the file.
    overrun: AtomicBool,
    /// What `resize` took away, until the file has grown from outside.
    shrunk: Mutex<Option<Shrunk>>,
    copying: Copying,
    syncs: Syncs,
    /// Of a file past the page cache: the bits of an offset within a block of the file system. What is no whole one goes through the page
    /// cache where the file system has it so: XFS with writes to a file that shares blocks, others with what is zeroed.
    within_block: u64,
    /// Something was.
    has_parts: AtomicBool,
    /// How often data could not be made durable.
    failed_syncs: AtomicU64,
    /// How often the kernel had dropped some for that.
    dropped: AtomicU64,
    /// When it did so last.
    dropped_at: Mutex<Option<Instant>>,
    /// One of several ways, among which somebody above chooses.
    is_path: bool,
}

/// Ways to write zeroes that the file system has not refused yet.
#[derive(Debug)]
struct ZeroesBy {
    hole: AtomicBool,
    range: AtomicBool,
}

impl Default for ZeroesBy {
    fn default() -> ZeroesBy {
        ZeroesBy { hole: AtomicBool::new(true), range: AtomicBool::new(true) }
    }
}

/// After `resize` has made the file smaller. A write that was checked before may make it larger
/// again, no larger than it was.
#[derive(Clone, Copy, Debug)]
struct Shrunk {
    /// Blocks before.
    from: u64,
    /// Size in bytes that the last look found to be larger than ours.
    seen: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Regular,
    Block,
}

impl File {
    /// Whether the page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.buffered.is_none()
    }

    /// What tells it from others on this machine, by whatever path they were opened.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.copying.identity
    }

    /// Whether `path` leads to it, by whatever path it was opened and wherever that leads by now.
    pub fn is_at(&self, path: &Path) -> bool {
        let found = std::fs::metadata(path);
        found.is_ok_and(|found| copy::identity(&found, self.kind) == self.identity())
    }

    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// A write of blocks up to `end` was carried out.
    #[inline]
    fn written(&self, end: u64) {
        if end > self.blocks() {
            self.overrun.store(true, Ordering::Relaxed);
        }
    }

    /// Some devices turn out to be unable to when they are first asked.
    fn makes_holes(&self) -> bool {
        self.punches && self.zeroes_by.hole.load(Ordering::Relaxed)
    }

    /// Whether it is a device that has been removed: the kernel sets its size to 0.
    fn is_gone(&self) -> bool {
        self.kind == Kind::Block && matches!(open::size(&self.file, self.kind), Ok(0))
    }

    fn shrunk(&self) -> MutexGuard<'_, Option<Shrunk>> {
        self.shrunk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Namespace for File {
    fn limits(&self) -> Limits {
        Limits {
            block_shift: self.block_shift,
            blocks: self.blocks(),
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            write_zeroes_bytes_max: u32::MAX,
            discard: DiscardLimits::UNLIMITED,
            optimal_write_bytes: 4096,
            read_only: self.read_only,
            volatile_write_cache: true,
            commands: Commands {
                write_zeroes: true,
                deallocate: self.makes_holes(),
                write_uncorrectable: false,
                compare: false,
                compare_and_write: false,
                verify: false,
                checksum: false,
                allocation: self.kind == Kind::Regular,
            },
            copy: self.copy_limits(),
            metadata_bytes: 0,
            passthrough: Passthrough::NONE,
            lends_reads: false,
            immediate: false,
        }
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        Ok(FileQueue::open(self, reactor))
    }

    fn takes_registered(&self) -> bool {
        true
    }

    fn access(&self) -> Access {
        if self.is_gone() { Access::Gone } else { Access::Optimized }
    }

    fn plain_file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn refresh(&self) -> io::Result<bool> {
        let mut shrunk = self.shrunk();
        // Taken before the size: what it stands for has made the file larger by then, or never.
        let overrun = self.overrun.swap(false, Ordering::Relaxed);
        let bytes = open::size(&self.file, self.kind)?;
        if bytes == 0 && self.kind == Kind::Block {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the device was removed"));
        }
        let blocks = bytes >> self.block_shift;
        if let Some(before) = &mut *shrunk
            && blocks > self.blocks()
        {
            if overrun {
                before.seen = None;
                self.file.set_len(self.blocks() << self.block_shift)?;
                return Ok(false);
            }
            // Somebody's wish, or a late write whose completion we have not seen yet: the next
            // look knows.
            if blocks <= before.from && before.seen.replace(bytes) != Some(bytes) {
                return Ok(false);
            }
            *shrunk = None;
        }
        Ok(self.blocks.swap(blocks, Ordering::Relaxed) != blocks)
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        let blocks = bytes >> self.block_shift;
        let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if self.kind == Kind::Block {
            return refuse("a block device is resized by whoever made it");
        }
        if self.read_only {
            return refuse("the volume is read-only");
        }
        if blocks == 0 || blocks << self.block_shift != bytes {
            return refuse("not a whole number of blocks");
        }
        let mut shrunk = self.shrunk();
        let from = self.blocks();
        let before = *shrunk;
        if blocks < from {
            let from = shrunk.as_ref().map_or(from, |before| from.max(before.from));
            *shrunk = Some(Shrunk { from, seen: None });
            // First no new command beyond the end, then no end beyond it.
            self.blocks.store(blocks, Ordering::Relaxed);
        } else if shrunk.is_some() && self.overrun.swap(false, Ordering::Relaxed) {
            // What came too late is not to be seen in what is new.
            self.file.set_len(from << self.block_shift)?;
        }
        if let Err(error) = self.file.set_len(bytes) {
            // It is as it was, and nothing that came late is cut off.
            *shrunk = before;
            self.blocks.store(from, Ordering::Relaxed);
            return Err(error);
        }
        self.sync(std::fs::File::sync_all)?;
        self.blocks.store(blocks, Ordering::Relaxed);
        Ok(())
    }

    fn snapshot(&self, file: &Path) -> io::Result<()> {
        self.snapshot_to(file)
    }

    fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.sync(std::fs::File::sync_data)
    }

    fn lost(&self) -> Lost {
        match self.dropped() {
            0 => Lost::default(),
            count => Lost { count, at: *self.dropped_at() },
        }
    }

    /// The kernel tells once that it could not write something back, whoever asks (errseq_t, per open file), and has
    /// dropped it: the next Flush succeeds, though what another user of the volume has written is gone.
    fn volatile_epoch(&self) -> u64 {
        self.failed_syncs.load(Ordering::Acquire)
    }

    fn allocation(&self, slba: u64, blocks: u64, runs_max: usize) -> io::Result<Vec<Run>> {
        match self.kind {
            Kind::Regular => {
                let runs = holes::runs(&self.file, self.block_shift, slba, blocks, runs_max)?;
                // Beyond the end of a file that was made shorter is no hole: who reads there is told so.
                let is_there = self.file.metadata()?.len() >= (slba + blocks) << self.block_shift;
                Ok(if is_there { runs } else { vec![Run { blocks, is_stored: true }] })
            }
            // A device does not tell.
            Kind::Block => Ok(vec![Run { blocks, is_stored: true }]),
        }
    }

    fn uri(&self) -> String {
        let path = crate::percent::encode(&self.path);
        let read_only = if self.read_only { "&ro" } else { "" };
        let uuid = crate::uuid::query(self.uuid.as_ref());
        let block_bytes = self.limits().block_bytes();
        let buffered = if self.buffered == Some(open::ASKED_FOR) { "&buffered" } else { "" };
        format!("file:{path}?bs={block_bytes}{read_only}{buffered}{uuid}")
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        let io = match self.buffered {
            None => "O_DIRECT".to_owned(),
            Some(why) => format!("page cache: {why}"),
        };
        facts.push(("file I/O".into(), io));
        let zeroes = match self.zeroes_by.range.load(Ordering::Relaxed) {
            true => "fallocate",
            false => "written: the file system cannot zero a range",
        };
        facts.push(("write zeroes".into(), zeroes.into()));
        let holes = if self.makes_holes() { "makes holes" } else { "not possible here" };
        facts.push(("deallocate".into(), holes.into()));
        self.describe_copy(facts);
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.uuid
    }

    fn copies_on_threads(&self) -> OnThreads {
        match self.kind {
            Kind::Regular if self.copying.shares => OnThreads::Shares,
            Kind::Regular => OnThreads::One,
            Kind::Block => OnThreads::No,
        }
    }

    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        let blocks = self.blocks().saturating_sub(slba).min(blocks);
        (blocks > 0).then(|| Located { origin: Origin::File(self), slba, blocks, guard: None })
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.file.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::ending::End;
    use super::*;
    use crate::dataset;
    use reactor::Complete;
    use std::cell::Cell;
    use std::os::unix::fs::FileExt;

    const BLOCK: u64 = 512;

    fn made(directory: &tempfile::TempDir, blocks: u64) -> Arc<File> {
        opened(directory.path().join("a.img"), Some(blocks * BLOCK))
    }

    fn opened(path: PathBuf, create_bytes: Option<u64>) -> Arc<File> {
        File::open(&FileOptions::buffered(path, create_bytes)).unwrap()
    }

    /// A file that cannot be made smaller.
    fn sealed(bytes: u64) -> (std::fs::File, Arc<File>) {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
        let file = memfd_create("a", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(file);
        file.set_len(bytes).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let volume = File::open(&FileOptions::buffered(path, None)).unwrap();
        (file, volume)
    }

    #[test]
    fn what_could_not_be_made_smaller_is_as_it_was() {
        let (file, volume) = sealed(64 * BLOCK);
        assert!(volume.resize(16 * BLOCK).is_err());
        assert_eq!(volume.limits().blocks, 64);
        // As a write does that was on its way.
        volume.overrun.store(true, Ordering::Relaxed);
        assert!(!volume.refresh().unwrap() && volume.shrunk().is_none());
        assert_eq!(file.metadata().unwrap().len(), 64 * BLOCK);
        volume.resize(65 * BLOCK).unwrap();
        assert_eq!(volume.limits().blocks, 65);
    }

    /// Whoever made it was killed before it had a size.
    #[test]
    fn an_empty_file_is_given_the_size_of_one_that_is_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        std::fs::File::create(&path).unwrap();
        let unmade = File::open(&FileOptions::buffered(path.clone(), None));
        assert!(unmade.is_err(), "nobody says how large it is to be");
        assert_eq!(opened(path, Some(8 * BLOCK)).limits().blocks, 8);
    }

    fn write_from_outside(file: &File, block: u64) {
        let outside = std::fs::File::options().write(true).open(&file.path).unwrap();
        outside.write_all_at(&[7; BLOCK as usize], block * BLOCK).unwrap();
    }

    #[test]
    fn a_link_is_named_as_it_was_given_and_other_paths_have_one_form() {
        let directory = tempfile::tempdir().unwrap();
        let top = std::fs::canonicalize(directory.path()).unwrap();
        drop(made(&directory, 64));
        std::fs::copy(top.join("a.img"), top.join("b.img")).unwrap();
        std::fs::create_dir(top.join("below")).unwrap();
        std::os::unix::fs::symlink("a.img", top.join("link")).unwrap();
        let opened = |path: &str| opened(top.join(path), None);
        assert_eq!(opened("below/.././a.img").path, top.join("a.img"));
        assert_eq!(opened("below/../link").path, top.join("below/../link"));
        let file = opened("link");
        assert_eq!(file.path, top.join("link"));
        assert!(file.is_at(&top.join("link")) && file.is_at(&top.join("a.img")));
        std::fs::remove_file(top.join("link")).unwrap();
        std::os::unix::fs::symlink("b.img", top.join("link")).unwrap();
        assert!(!file.is_at(&top.join("link")) && file.is_at(&top.join("a.img")));
    }

    #[test]
    fn a_write_that_comes_after_its_end_was_cut_off_does_not_bring_it_back() {
        let directory = tempfile::tempdir().unwrap();
        let file = made(&directory, 64);
        file.resize(16 * BLOCK).unwrap();
        write_from_outside(&file, 40);
        // A look between the write and its completion.
        assert!(!file.refresh().unwrap());
        assert_eq!(file.blocks(), 16);
        file.written(41);
        assert!(!file.refresh().unwrap());
        assert_eq!(file.blocks(), 16);
        assert_eq!(std::fs::metadata(&file.path).unwrap().len(), 16 * BLOCK);
        // Nor is it there when the file grows again.
        write_from_outside(&file, 40);
        file.written(41);
        file.resize(64 * BLOCK).unwrap();
        let mut block = [1; BLOCK as usize];
        std::fs::File::open(&file.path).unwrap().read_exact_at(&mut block, 40 * BLOCK).unwrap();
        assert_eq!(block, [0; BLOCK as usize]);
    }

    #[test]
    fn where_a_hole_is_refused_zeroes_are_there_and_holes_are_not_offered_any_more() {
        let made = tempfile::NamedTempFile::new_in(".").unwrap();
        std::fs::write(made.path(), [7; 1 << 16]).unwrap();
        let file = opened(made.path().to_owned(), None);
        assert!(file.limits().commands.deallocate, "the directory of the build has holes");
        let reactor = Reactor::new(&reactor::Config::default()).unwrap();
        let queue = FileQueue::open(Arc::clone(&file), &reactor);
        let end = Rc::new(End { reactor: Rc::clone(&reactor), request: Cell::default() });
        let mut range = dataset::Range { attributes: 0, blocks: 8, slba: 8 }.to_bytes();
        let mut request = crate::Request::new();
        request.command = dataset::deallocate(1, 1);
        // SAFETY: the range is there until the command has ended.
        let list = unsafe { crate::Part::new(range.as_mut_ptr(), range.len(), None) };
        request.data = crate::Data::Part(list);
        request.scratch[queue::STEP] = queue::step::MAKE_HOLE;
        request.push(Rc::clone(&end) as Rc<dyn crate::Sink>, 0);
        queue.complete(Box::into_raw(request) as u64, -libc::EOPNOTSUPP, 0);
        assert!(!file.limits().commands.deallocate);
        let request = end.request.take().unwrap_or_else(|| {
            reactor.run();
            end.request.take().expect("it ran until then")
        });
        let there = std::fs::read(made.path()).unwrap();
        if request.status.is_success() {
            assert!(there[4096..8192].iter().all(|byte| *byte == 0));
        } else {
            assert!(!file.zeroes_by.range.load(Ordering::Relaxed), "{}", request.status);
        }
        assert!(there[..4096].iter().chain(&there[8192..]).all(|byte| *byte == 7));
    }

    #[test]
    fn holes_are_told_in_whole_blocks() {
        let directory = tempfile::tempdir().unwrap();
        let file = made(&directory, 4096);
        let outside = std::fs::File::options().write(true).open(&file.path).unwrap();
        outside.write_all_at(&[7; 8192], 1 << 20).unwrap();
        let runs = file.allocation(0, 4096, 8).unwrap();
        let stored: u64 = runs.iter().filter(|run| run.is_stored).map(|run| run.blocks).sum();
        assert_eq!(runs.iter().map(|run| run.blocks).sum::<u64>(), 4096, "{runs:?}");
        if runs.len() == 1 {
            // A file system that does not know holes stores everything.
            assert_eq!(runs, [Run { blocks: 4096, is_stored: true }]);
            return;
        }
        assert!((16..4096).contains(&stored), "{runs:?}");
        assert_eq!(runs[0], Run { blocks: 2048, is_stored: false });
        assert_eq!(file.allocation(0, 4096, 1).unwrap(), [runs[0]]);
        // Within a hole, within the data, and what ends in the middle.
        assert_eq!(file.allocation(7, 3, 8).unwrap(), [Run { blocks: 3, is_stored: false }]);
        assert_eq!(file.allocation(2050, 3, 8).unwrap(), [Run { blocks: 3, is_stored: true }]);
        let two = [Run { blocks: 48, is_stored: false }, Run { blocks: 5, is_stored: true }];
        assert_eq!(file.allocation(2000, 53, 8).unwrap(), two);
    }

    #[test]
    fn growth_from_outside_is_noticed_after_a_shrink_too() {
        let directory = tempfile::tempdir().unwrap();
        let file = made(&directory, 64);
        file.resize(16 * BLOCK).unwrap();
        write_from_outside(&file, 47);
        assert!(!file.refresh().unwrap());
        assert!(file.refresh().unwrap());
        assert_eq!(file.blocks(), 48);
        file.resize(16 * BLOCK).unwrap();
        // No write of ours reaches beyond what it was.
        write_from_outside(&file, 127);
        assert!(file.refresh().unwrap());
        assert_eq!(file.blocks(), 128);
    }
}
