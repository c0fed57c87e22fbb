//! Memory that pieces are read into.
//!
//! From the core's pool, up to a share of it. Where there is none to be had, a Copy that has
//! something in flight goes on when that comes back; one that has nothing gets the spare piece of its
//! queue, in turn. The spare is what keeps this from standing still: the pool may be held by commands
//! that wait for the very blocks that are being copied. It is one per queue, not per core, since
//! who holds it may wait for Copies further down, who must not wait for the same piece. Whoever holds it may hang:
//! those in line look at the pool again now and then (`copy::emulate`).

use crate::memory::Mapping;
use crate::{Data, Part};
use reactor::{Buffer, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;

/// Bytes that all Copies of a core read into at most, and a quarter of the pool at most.
pub(crate) const CORE_BYTES_MAX: usize = 8 << 20;
/// Bytes of the spare piece, or one block if that is more.
const SPARE_BYTES: usize = 64 << 10;

thread_local! {
    /// Bytes of this core's pools that are in use here.
    static CORE_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The memory of one queue's Copies.
#[derive(Default)]
pub(super) struct Room {
    spare: RefCell<Spare>,
    /// Bytes of the pool, which count among the core's.
    bytes: Cell<usize>,
}

#[derive(Default)]
struct Spare {
    memory: Option<Mapping>,
    bytes: usize,
    holder: Holder,
    waiting: VecDeque<u64>,
}

/// Who has the spare piece.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Holder {
    #[default]
    Nobody,
    /// A piece in flight.
    Piece,
    /// It is kept for a Copy that has been told.
    Promised(u64),
}

/// What became of a wish for memory.
pub(super) enum Granted {
    /// Of this many bytes, no more than were asked for.
    Memory(Data, usize),
    /// Nothing now; what the Copy has in flight will give some back.
    Later,
    /// Nothing now; the Copy will be told ([`Room::release`]), unless it leaves the line.
    InLine,
}

impl Room {
    /// Up to `bytes` for a piece of Copy `copy`; at least one block of `block_bytes`.
    pub fn obtain(
        &self,
        reactor: &Reactor,
        copy: u64,
        bytes: usize,
        block_bytes: usize,
        has_flights: bool,
    ) -> io::Result<Granted> {
        let promised = self.spare.borrow().holder == Holder::Promised(copy);
        if !promised && let Some(mut buffer) = Room::allocate(reactor, bytes) {
            self.count(buffer.capacity());
            buffer.truncate(bytes);
            return Ok(Granted::Memory(Data::Buffer(buffer), bytes));
        }
        if has_flights {
            return Ok(Granted::Later);
        }
        let mut spare = self.spare.borrow_mut();
        if spare.holder != Holder::Nobody && !promised {
            spare.waiting.push_back(copy);
            return Ok(Granted::InLine);
        }
        if spare.memory.is_none() {
            spare.bytes = SPARE_BYTES.max(block_bytes);
            spare.memory = Some(Mapping::fixed(spare.bytes)?);
        }
        spare.holder = Holder::Piece;
        let bytes = bytes.min(spare.bytes);
        let base = spare.memory.as_ref().expect("mapped when first used").base();
        // SAFETY: the piece is mapped as long as the queue's Copies have this, and `holder` keeps it for
        // one command at a time, which gives it back after it has ended.
        let part = unsafe { Part::new(base, bytes, None) };
        Ok(Granted::Memory(Data::Part(part), bytes))
    }

    /// A buffer of the core's share of the pool.
    fn allocate(reactor: &Reactor, bytes: usize) -> Option<Buffer> {
        let pool = reactor.buffers();
        let share = CORE_BYTES_MAX.min(pool.capacity() / 4);
        // Buffers come in powers of two.
        let is_within = CORE_BYTES.get() + bytes.next_power_of_two() <= share;
        is_within.then(|| pool.allocate(bytes)).flatten()
    }

    /// The Copy that has waited longest in line, if any has.
    pub fn first_in_line(&self) -> Option<u64> {
        self.spare.borrow().waiting.front().copied()
    }

    /// Takes that Copy out of line if the pool has `bytes` for it. Returns whether it is out.
    pub fn lets_out(&self, reactor: &Reactor, bytes: usize) -> bool {
        let has_memory = Room::allocate(reactor, bytes).is_some();
        has_memory && self.spare.borrow_mut().waiting.pop_front().is_some()
    }

    /// Takes those Copies out of line that are `unwanted`.
    pub fn drop_from_line(&self, mut unwanted: impl FnMut(u64) -> bool) -> Vec<u64> {
        let mut dropped = Vec::new();
        self.spare.borrow_mut().waiting.retain(|copy| {
            let drops = unwanted(*copy);
            if drops {
                dropped.push(*copy);
            }
            !drops
        });
        dropped
    }

    /// Takes memory back. Returns the Copy that has waited longest for it: it is to be told.
    pub fn release(&self, memory: Data) -> Option<u64> {
        match memory {
            Data::Buffer(buffer) => {
                self.count_back(buffer.capacity());
                None
            }
            Data::Part(_) => self.spare.borrow_mut().pass_on(),
            _ => unreachable!("pieces are read into memory that was obtained here"),
        }
    }

    /// Copy `copy` has ended. If it never took what it was promised, returns who is to be told now.
    pub fn ended(&self, copy: u64) -> Option<u64> {
        let mut spare = self.spare.borrow_mut();
        if spare.holder == Holder::Promised(copy) { spare.pass_on() } else { None }
    }

    fn count(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
        CORE_BYTES.set(CORE_BYTES.get() + bytes);
    }

    fn count_back(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
        // The count may be gone already when the thread is ending.
        let _ = CORE_BYTES.try_with(|count| count.set(count.get() - bytes));
    }
}

/// What is forgotten with its queue gives its memory back to the pool by itself.
impl Drop for Room {
    fn drop(&mut self) {
        self.count_back(self.bytes.get());
    }
}

impl Spare {
    fn pass_on(&mut self) -> Option<u64> {
        let next = self.waiting.pop_front();
        self.holder = next.map_or(Holder::Nobody, Holder::Promised);
        next
    }
}
