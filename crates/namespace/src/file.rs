//! `file:` and block devices: a volume in a file, read and written through the ring.
//!
//! ```text
//!   Read, Write     -> READ/WRITE(_FIXED), FUA as RWF_DSYNC      \
//!   Flush           -> FSYNC(DATASYNC)                            >  this core's ring  -> completion
//!   Write Zeroes,   -> FALLOCATE: ZERO_RANGE, or PUNCH_HOLE      /
//!   deallocate         (written as zeroes where refused)
//! ```
//!
//! O_DIRECT where the file system and the block size allow it, otherwise the page cache; which,
//! and why, is told by `describe`. Compare, Verify and fused pairs are left to the guard layer,
//! which also keeps overlapping commands apart: neither the page cache nor a disk promises that a
//! block is read and written whole.
//!
//! The file never grows beyond the size it was opened or resized to. Nothing is stored beside
//! the data: the UUID comes from the caller.

mod open;
mod queue;

pub use open::{FileOptions, OpenError};

use crate::{Namespace, Queue};
use nvme::Limits;
use nvme::limits::Commands;
use queue::FileQueue;
use reactor::Reactor;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Largest data transfer of one command: the largest buffer of the pool.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// A volume in a file or on a block device.
#[derive(Debug)]
pub struct File {
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
    /// Holes can be made.
    punches: bool,
    /// Cleared when the file system refuses to zero a range: zeroes are written from then on.
    zeroes_ranges: AtomicBool,
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

    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }
}

impl Namespace for File {
    fn limits(&self) -> Limits {
        Limits {
            block_shift: self.block_shift,
            blocks: self.blocks(),
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            optimal_write_bytes: 4096,
            read_only: self.read_only,
            volatile_write_cache: true,
            commands: Commands {
                write_zeroes: true,
                deallocate: self.punches,
                write_uncorrectable: false,
                compare: false,
                compare_and_write: false,
                verify: false,
            },
            lends_reads: false,
            immediate: false,
        }
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        Ok(FileQueue::open(self, reactor))
    }

    fn refresh(&self) -> io::Result<bool> {
        let blocks = open::size(&self.file, self.kind)? >> self.block_shift;
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
        if blocks < self.blocks() {
            // First no new command beyond the end, then no end beyond it.
            self.blocks.store(blocks, Ordering::Relaxed);
        }
        self.file.set_len(bytes)?;
        self.blocks.store(blocks, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        self.file.sync_data()
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
        let zeroes = match self.zeroes_ranges.load(Ordering::Relaxed) {
            true => "fallocate",
            false => "written: the file system cannot zero a range",
        };
        facts.push(("write zeroes".into(), zeroes.into()));
        let holes = if self.punches { "makes holes" } else { "not possible here" };
        facts.push(("deallocate".into(), holes.into()));
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.uuid
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.file.as_raw_fd()
    }
}
