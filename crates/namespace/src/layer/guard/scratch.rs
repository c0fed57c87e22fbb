//! Memory to read into for commands that the guard carries out itself.
//!
//! From the pool; when that is empty, one spare piece per core, in turn. The spare is what keeps
//! this from standing still: the buffers of the pool may all be held by commands that wait for
//! the very range that is to be read.

use crate::memory::Mapping;
use crate::{Data, Part};
use reactor::Reactor;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Weak;

/// Bytes read at once.
pub const PIECE_BYTES: usize = 64 << 10;

/// Who waits for the spare piece.
pub trait Waiter {
    /// The spare piece is this waiter's now.
    fn granted(&self, slot: u64, scratch: Scratch);
}

/// Memory for one command.
pub struct Scratch {
    /// A pool buffer, or a part of the spare piece.
    pub data: Data,
    spare: bool,
}

#[derive(Default)]
struct Spare {
    memory: Option<Mapping>,
    busy: bool,
    waiting: VecDeque<(Weak<dyn Waiter>, u64)>,
}

thread_local! {
    static SPARE: RefCell<Spare> = RefCell::default();
}

/// Up to [`PIECE_BYTES`] of memory at once, or later through `waiter`. Fails if the spare piece
/// cannot be mapped.
pub fn obtain(
    reactor: &Reactor,
    bytes: usize,
    waiter: Weak<dyn Waiter>,
    slot: u64,
) -> io::Result<Option<Scratch>> {
    let bytes = bytes.min(PIECE_BYTES);
    if let Some(mut buffer) = reactor.buffers().allocate(bytes) {
        buffer.truncate(bytes);
        return Ok(Some(Scratch { data: Data::Buffer(buffer), spare: false }));
    }
    SPARE.with_borrow_mut(|spare| {
        if spare.busy {
            spare.waiting.push_back((waiter, slot));
            return Ok(None);
        }
        if spare.memory.is_none() {
            spare.memory = Some(Mapping::fixed(PIECE_BYTES)?);
        }
        spare.busy = true;
        Ok(Some(spare.scratch()))
    })
}

impl Spare {
    fn scratch(&self) -> Scratch {
        let memory = self.memory.as_ref().expect("mapped when first used");
        // SAFETY: the piece is mapped as long as this thread runs, and `busy` keeps it for one
        // command at a time, which gives it back after its reads have ended.
        let part = unsafe { Part::new(memory.base(), PIECE_BYTES, None) };
        Scratch { data: Data::Part(part), spare: true }
    }
}

impl Scratch {
    /// Gives the memory back; the spare piece goes to who waits longest.
    pub fn release(self) {
        if !self.spare {
            return;
        }
        let next = SPARE.with_borrow_mut(|spare| {
            loop {
                let Some((waiter, slot)) = spare.waiting.pop_front() else {
                    spare.busy = false;
                    return None;
                };
                if let Some(waiter) = waiter.upgrade() {
                    return Some((waiter, slot, spare.scratch()));
                }
            }
        });
        if let Some((waiter, slot, scratch)) = next {
            waiter.granted(slot, scratch);
        }
    }
}
