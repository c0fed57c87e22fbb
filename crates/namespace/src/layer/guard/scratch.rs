//! Memory to read into for commands that the guard carries out itself.
//!
//! From the pool; when that is empty, one spare piece per queue, in turn. The spare is what keeps
//! this from standing still: the buffers of the pool may all be held by commands that wait for
//! the very range that is to be read. It is one per queue, not per core, since who holds it may wait for commands of a
//! guard further down, which must not wait for the same piece. Whoever holds it may hang: those in line look at the pool
//! again now and then (`waiting`).

use crate::memory::Mapping;
use crate::{Data, Part};
use reactor::Reactor;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;

/// Bytes read at once.
pub const PIECE_BYTES: usize = 64 << 10;

/// Memory for one command.
pub struct Scratch {
    /// A pool buffer, or a part of the spare piece.
    pub data: Data,
    is_spare: bool,
}

/// The memory of one queue's commands.
#[derive(Default)]
pub struct Room(RefCell<Spare>);

#[derive(Default)]
struct Spare {
    memory: Option<Mapping>,
    busy: bool,
    /// Slots in line, and the bytes that they are for.
    waiting: VecDeque<(u64, usize)>,
}

impl Room {
    /// Up to [`PIECE_BYTES`] of memory at once; or later, when [`Room::release`] or [`Room::look`] names `slot`. Fails if
    /// the spare piece cannot be mapped.
    pub fn obtain(
        &self,
        reactor: &Reactor,
        bytes: usize,
        slot: u64,
    ) -> io::Result<Option<Scratch>> {
        let bytes = bytes.min(PIECE_BYTES);
        if let Some(scratch) = from_pool(reactor, bytes) {
            return Ok(Some(scratch));
        }
        let mut spare = self.0.borrow_mut();
        if spare.busy {
            spare.waiting.push_back((slot, bytes));
            return Ok(None);
        }
        if spare.memory.is_none() {
            spare.memory = Some(Mapping::fixed(PIECE_BYTES)?);
        }
        spare.busy = true;
        Ok(Some(spare.scratch()))
    }

    /// Takes memory back; the spare piece goes to the slot that has waited longest.
    pub fn release(&self, scratch: Scratch) -> Option<(u64, Scratch)> {
        if !scratch.is_spare {
            return None;
        }
        let mut spare = self.0.borrow_mut();
        let next = spare.waiting.pop_front();
        spare.busy = next.is_some();
        next.map(|(slot, _)| (slot, spare.scratch()))
    }

    /// The slot that has waited longest, if the pool has memory for it by now.
    pub fn look(&self, reactor: &Reactor) -> Option<(u64, Scratch)> {
        let mut spare = self.0.borrow_mut();
        let (slot, bytes) = *spare.waiting.front()?;
        let scratch = from_pool(reactor, bytes)?;
        spare.waiting.pop_front();
        Some((slot, scratch))
    }

    /// Whether somebody is in line.
    pub fn has_line(&self) -> bool {
        !self.0.borrow().waiting.is_empty()
    }
}

fn from_pool(reactor: &Reactor, bytes: usize) -> Option<Scratch> {
    let mut buffer = reactor.buffers().allocate(bytes)?;
    buffer.truncate(bytes);
    Some(Scratch { data: Data::Buffer(buffer), is_spare: false })
}

impl Spare {
    fn scratch(&self) -> Scratch {
        let memory = self.memory.as_ref().expect("mapped when first used");
        // SAFETY: the piece is mapped as long as the queue is there, which commands that are under way keep, and `busy`
        // keeps it for one command at a time, which gives it back after its reads have ended.
        let part = unsafe { Part::new(memory.base(), PIECE_BYTES, None) };
        Scratch { data: Data::Part(part), is_spare: true }
    }
}
