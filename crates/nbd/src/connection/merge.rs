//! Writing a part of a block.
//!
//! ```text
//!   Read the block --> put the client's bytes in --> Compare what was read and Write, fused
//!        ^                                                |
//!        '---- somebody else has written the block -------'
//! ```
//!
//! The fused pair (NVM 1.1, section 3.2.1 and Base 2.1, section 3.4.2) is what keeps every other
//! write to the block, whoever makes it on whatever connection and core: no lock is held.

use super::begin::{merge_state, set_fua};
use super::{Connection, Inner};
use crate::exchange::{Exchange, MERGES_MAX, Merge};
use crate::pieces::Piece;
use crate::wire::command_flag;
use namespace::failures::Failed;
use namespace::{Data, Part, Request};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::Buffer;

/// How often a merge is begun again. Each time, somebody else's write to the block has succeeded.
const TRIES_MAX: u32 = 1000;

/// FUSE of the two commands of a pair (NVMe Base 2.1, Figure 91).
const FUSE_FIRST: u8 = 1;
const FUSE_SECOND: u8 = 2;

impl Merge {
    /// Where the client's bytes go.
    pub(super) fn payload(&mut self) -> &mut [u8] {
        let (start, block) = (self.piece.skip as usize, self.block_bytes());
        let bytes = &mut self.buffer.as_mut_slice()[2 * block..];
        &mut bytes[start..start + self.piece.length as usize]
    }

    fn block_bytes(&self) -> usize {
        self.buffer.len() / 3
    }

    /// The block as it was read, or as it is to be.
    ///
    /// # Safety
    /// The merge stays where it is, and the part is used by one command at a time, until the
    /// command that is given it has come back.
    unsafe fn part(&mut self, index: usize) -> Data {
        let (block, fixed) = (self.block_bytes(), self.buffer.fixed_index());
        let start = self.buffer.as_mut_ptr().wrapping_add(index * block);
        // SAFETY: the buffer has three blocks; the caller vouches for how long it stays.
        Data::Part(unsafe { Part::new(start, block, fixed) })
    }

    /// Makes the new block of the old one and the client's bytes.
    fn compose(&mut self) {
        let (block, start) = (self.block_bytes(), self.piece.skip as usize);
        let end = start + self.piece.length as usize;
        let bytes = self.buffer.as_mut_slice();
        bytes.copy_within(..block, block);
        bytes.copy_within(2 * block + start..2 * block + end, block + start);
    }
}

impl Exchange {
    /// Takes a merge in; returns its number.
    pub(super) fn add_merge(&mut self, merge: Merge) -> usize {
        let free = self.merges.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            unreachable!("a request has {MERGES_MAX} ends");
        });
        self.merges[index] = Some(merge);
        index
    }
}

impl Connection {
    /// Writes zeroes to a part of a block.
    pub(super) fn merge_zeroes(&self, inner: &mut Inner, slot: u32, piece: Piece, buffer: Buffer) {
        let mut merge = Merge { buffer, piece, tries: 0 };
        merge.payload().fill(0);
        let exchange = inner.exchanges.slot(slot);
        exchange.at = piece.end();
        let index = exchange.add_merge(merge);
        self.merge(inner, slot, index);
    }

    /// Begins, or begins again: the client's bytes are there.
    pub(super) fn merge(&self, inner: &mut Inner, slot: u32, index: usize) {
        let mut request = self.core.request();
        let (_, view) = inner.serving();
        let is_immediate = view.limits.immediate;
        let exchange = inner.exchanges.slot(slot);
        exchange.give(&self.core.reactor, is_immediate);
        let merge = exchange.merges[index].as_mut().expect("a merge that has begun");
        request.command = Command::blocks(opcode::READ, 1, merge.piece.slba, 1);
        // SAFETY: the buffer stays in the exchange until `merge_finished` has seen the last
        // command, and the exchange with the connection, which every command in flight keeps.
        request.data = unsafe { merge.part(0) };
        let (_, view) = inner.serving();
        self.submit(&view.queue, merge_state(slot, index), request);
    }

    /// The block was read: it is written as a pair.
    fn compare_and_write(&self, inner: &mut Inner, slot: u32, index: usize) {
        let (mut first, mut second) = (self.core.request(), self.core.request());
        let (_, view) = inner.serving();
        let is_immediate = view.limits.immediate;
        let exchange = inner.exchanges.slot(slot);
        exchange.give(&self.core.reactor, is_immediate);
        let has_fua = exchange.request.has(command_flag::FUA);
        let merge = exchange.merges[index].as_mut().expect("a merge that has begun");
        merge.compose();
        first.command = Command::blocks(opcode::COMPARE, 1, merge.piece.slba, 1);
        first.command.flags = FUSE_FIRST;
        second.command = Command::blocks(opcode::WRITE, 1, merge.piece.slba, 1);
        second.command.flags = FUSE_SECOND;
        if has_fua {
            set_fua(&mut second.command);
        }
        // SAFETY: as in `merge`; the two parts do not overlap.
        (first.data, second.data) = unsafe { (merge.part(0), merge.part(1)) };
        first.fused = Some(second);
        let (_, view) = inner.serving();
        self.submit(&view.queue, merge_state(slot, index), first);
    }

    /// A command of a merge came back.
    pub(super) fn merge_finished(
        &self,
        inner: &mut Inner,
        slot: u32,
        index: usize,
        mut request: Box<Request>,
    ) {
        let first = outcome(&request);
        let second = request.fused.take().map(|second| {
            let outcome = outcome(&second);
            self.core.recycle(second);
            outcome
        });
        self.core.recycle(request);
        let exchange = inner.exchanges.slot(slot);
        let merge = exchange.merges[index].as_mut().expect("a merge that has begun");
        let failed = match second {
            None if first.status.is_success() => {
                return self.compare_and_write(inner, slot, index);
            }
            Some(_)
                if first.status.code() == Status::COMPARE_FAILURE && merge.tries < TRIES_MAX =>
            {
                merge.tries += 1;
                return self.merge(inner, slot, index);
            }
            Some(second) if first.status.is_success() => second,
            _ => first,
        };
        if !failed.status.is_success() {
            let blocks = Some(merge.piece.range());
            self.volume_failed(inner, slot, Failed { blocks, ..failed });
        }
        if let Some(merge) = inner.exchanges.slot(slot).merges[index].take() {
            inner.memory.given_back(&merge.buffer);
        }
    }
}

/// What a command has come back with; of which block is known better here.
fn outcome(request: &Request) -> Failed {
    let (opcode, status, os_error) = (request.command.opcode, request.status, request.os_error);
    Failed { opcode, blocks: None, status, os_error }
}
