//! A command that has entered the table of ranges, or is on its way, and what is read for it.

use super::scratch::Scratch;
use crate::checksum::Sum;
use crate::layer::conflicts::Range;
use crate::{Data, Request};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use std::mem;

/// A command in the table, or on its way into it.
pub(super) struct Slot {
    pub(super) range: Range,
    /// Shards still to be entered, and those entered, as bits.
    pub(super) missing: u64,
    pub(super) entered: u64,
    /// In line in the lowest missing shard.
    pub(super) waits: bool,
    /// A fused pair that has asked for the table to be used.
    pub(super) is_announced: bool,
    pub(super) work: Work,
    /// Here while it is not below.
    pub(super) request: Option<Box<Request>>,
    /// The second half of a fused pair while the first is below: the child is not to see it.
    pub(super) second: Option<Box<Request>>,
    /// Memory to read into, for a command that is carried out here.
    pub(super) scratch: Option<Scratch>,
    /// The data of an emulated Compare while its request carries the scratch memory.
    pub(super) expected: Data,
    /// The command as it came, where it is rewritten.
    pub(super) command: Command,
    /// Blocks read so far.
    pub(super) done: u32,
    /// Their checksum, where it is asked for.
    pub(super) sum: Option<Box<Sum>>,
}

/// What is to be done, or being done, with a command that holds its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Goes down as it is.
    Pass,
    /// A Compare that the child does not know: read, then compared.
    Compare,
    /// A Verify that the child does not know: read in pieces.
    Verify,
    /// One that is to give a checksum, which the child does not: the same.
    Checksum,
    /// The first and the second half of a fused pair.
    FusedCompare,
    FusedWrite,
}

impl Slot {
    pub(super) fn new(range: Range, work: Work, request: Box<Request>) -> Slot {
        Slot {
            range,
            missing: range.shards(),
            entered: 0,
            waits: false,
            is_announced: false,
            work,
            command: request.command,
            request: Some(request),
            second: None,
            scratch: None,
            expected: Data::None,
            done: 0,
            sum: None,
        }
    }

    /// The lowest missing shard was entered.
    pub(super) fn advance(&mut self) {
        let lowest = self.missing & self.missing.wrapping_neg();
        self.entered |= lowest;
        self.missing &= !lowest;
    }

    /// Of the blocks read.
    pub(super) fn checksum(&self) -> u64 {
        self.sum.as_ref().map_or(0, |sum| sum.value())
    }

    pub(super) fn take_request(&mut self) -> Box<Request> {
        self.request.take().expect("the request is here")
    }

    /// Turns the command into a read of the next piece, of so many blocks at most, into the scratch memory.
    pub(super) fn prepare_read(&mut self, request: &mut Request, shift: u8, most: u32) {
        let blocks = (self.command.block_count() - self.done).min(most);
        let slba = self.command.slba() + u64::from(self.done);
        let read = Command::blocks(opcode::READ, self.command.nsid.get(), slba, blocks);
        request.command = Command { cid: self.command.cid, ..read };
        let scratch = self.scratch.as_mut().expect("memory was obtained");
        scratch.data.truncate((blocks as usize) << shift);
        self.expected = mem::replace(&mut request.data, mem::take(&mut scratch.data));
    }

    /// Undoes that after the read, and notes what came of it.
    pub(super) fn restore(&mut self, request: &mut Request, shift: u8) {
        let blocks = request.command.block_count();
        let read = mem::replace(&mut request.data, mem::take(&mut self.expected));
        request.command = self.command;
        let offset = (self.done as usize) << shift;
        let compares = !matches!(self.work, Work::Verify | Work::Checksum);
        if request.status.is_success() && self.work == Work::Checksum {
            // SAFETY: the memory was read into for as many bytes as it holds, and nobody writes to it now.
            let bytes = unsafe { std::slice::from_raw_parts(read.as_ptr(), read.len()) };
            self.sum.get_or_insert_default().add(bytes);
        }
        if request.status.is_success() && compares {
            request.status = compare(&read, &request.data, offset);
        }
        self.scratch.as_mut().expect("memory was obtained").data = read;
        self.done += blocks;
    }
}

/// Compares what was read with what is expected from `offset` on. How long that is a peer may have said.
fn compare(read: &Data, expected: &Data, offset: usize) -> Status {
    if expected.len().checked_sub(offset).is_none_or(|rest| rest < read.len()) {
        return Status::SGL_LENGTH_INVALID.dnr();
    }
    // SAFETY: both are readable for their lengths, and nobody writes to either now.
    let same = unsafe {
        std::slice::from_raw_parts(read.as_ptr(), read.len())
            == std::slice::from_raw_parts(expected.as_ptr().add(offset), read.len())
    };
    if same { Status::SUCCESS } else { Status::COMPARE_FAILURE.dnr() }
}
