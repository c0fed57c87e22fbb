//! Reads that a program ends by itself: their memory becomes zeroes, where it is ours by writing to it, where it is
//! the kernel's ([`Data::Registered`]) by having the ring read `/dev/zero`.

use super::flight::Piece;
use super::queue::ProgramQueue;
use crate::{Data, Registered};
use nvme::Status;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use uring::entry;

/// In the token of what the ring fills; the tag is in bits 31:0. Delays are without, and further pieces.
pub(super) const ZEROES: u64 = 1 << 32;

/// What has become of memory that is to be zeroes.
pub(super) enum Blank {
    Done,
    /// The ring fills it.
    UnderWay,
    Unreachable,
}

impl ProgramQueue {
    /// Sees to it that a piece which the program has declared read is no old memory: what no phase has read
    /// becomes zeroes.
    pub(super) fn blank(&self, tag: u32) -> Blank {
        let shift = self.routed.device.block_shift;
        let pages = self.flights.with(tag, |flight| {
            if flight.is_whole {
                return Err(Blank::Done);
            }
            let Piece { blocks, offset, .. } = flight.piece;
            let data = &mut flight.request.as_mut().expect("the flight is under way").data;
            let (skip, len) = ((offset as usize) << shift, (blocks as usize) << shift);
            assert!(skip + len <= data.len(), "a read comes with room for its blocks");
            if let Data::Registered(pages) = data {
                let (offset, len) = (pages.offset + skip as u32, len as u32);
                return Ok(Registered { offset, len, ..*pages });
            }
            let Some(start) = data.as_mut_ptr() else { return Err(Blank::Unreachable) };
            // SAFETY: the bytes lie within the data, which is there to be written to; no part is in flight.
            unsafe { start.add(skip).write_bytes(0, len) };
            Err(Blank::Done)
        });
        match pages {
            Ok(pages) => self.read_zeroes(tag, pages),
            Err(blank) => blank,
        }
    }

    /// Has the ring fill a request's pages, which have no address here.
    #[cold]
    fn read_zeroes(&self, tag: u32, pages: Registered) -> Blank {
        let zeroes = self.zeroes.get_or_init(|| File::open("/dev/zero").ok());
        let Some(zeroes) = zeroes else { return Blank::Unreachable };
        let Registered { index, offset, len } = pages;
        self.flights.with(tag, |flight| flight.zeroes = Some(pages));
        let (file, start) = (uring::File::Fd(zeroes.as_raw_fd()), offset as usize);
        let entry = entry::read_fixed(file, ptr::without_provenance_mut(start), len, 0, index);
        let me = self.me.upgrade().expect("the queue lives while it is called");
        // SAFETY: the pages are registered with this core's ring as long as their request is under way, which waits in its
        // flight until this has ended.
        unsafe { self.reactor.submit(entry, me, ZEROES | u64::from(tag)) };
        Blank::UnderWay
    }

    /// The ring has filled some of them.
    #[cold]
    pub(super) fn zeroed(&self, tag: u32, result: i32) {
        let pages = self.flights.with(tag, |flight| flight.zeroes.take());
        let Registered { index, offset, len } = pages.expect("they were being filled");
        let filled = u32::try_from(result).unwrap_or(0).min(len);
        let rest = Registered { index, offset: offset + filled, len: len - filled };
        if filled == 0 {
            return self.finish(tag, Status::INTERNAL.dnr());
        }
        if rest.len > 0 {
            self.read_zeroes(tag, rest);
        } else if let Some(next) = self.end_piece(tag, Status::SUCCESS) {
            self.drive(tag, next);
        }
    }
}
