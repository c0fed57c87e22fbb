//! I/O commands as fast as they are answered: the load of a measured window, and the writing of a
//! recognizable pattern before it.

use super::lane::Lane;
use super::{Geometry, Queue};
use crate::bench::pattern;
use crate::bench::pipeline::{Batch, Protocol};
use crate::bench::random::Random;
use nvme::{Command, opcode};
use nvme_tcp::host::{COMMAND_HEADER_BYTES_MAX, Event, Transfer};
use std::io;

/// Which commands, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Reads of random blocks.
    RandomRead,
    /// Writes to random blocks, data in the capsule.
    RandomWrite,
    /// Reads in order.
    SequentialRead,
}

/// Endless I/O of one pattern and size.
pub struct Load<'a> {
    lane: &'a mut Lane,
    command: Command,
    transfer: Transfer,
    pattern: Pattern,
    bytes: u32,
    /// Logical blocks per command.
    blocks: u64,
    /// Commands' worth of places.
    places: u64,
    random: Random,
    next: u64,
}

impl<'a> Load<'a> {
    /// I/O of `bytes` each on namespace `nsid`.
    pub fn new(
        queue: &'a mut Queue,
        nsid: u32,
        geometry: Geometry,
        pattern: Pattern,
        bytes: u32,
        seed: u64,
    ) -> Load<'a> {
        let blocks = u64::from(bytes) / geometry.block_bytes;
        let (opcode, transfer) = match pattern {
            Pattern::RandomWrite => (opcode::io::WRITE, Transfer::InCapsule(bytes)),
            Pattern::RandomRead | Pattern::SequentialRead => {
                (opcode::io::READ, Transfer::ToHost(bytes))
            }
        };
        Load {
            lane: &mut queue.lane,
            command: Command::blocks(opcode, nsid, 0, blocks as u32),
            transfer,
            pattern,
            bytes,
            blocks,
            places: geometry.blocks / blocks,
            random: Random::new(seed),
            next: 0,
        }
    }

    /// The batch that goes with it at `depth`. What is written is pattern block 0 of `generation`.
    pub fn batch(&self, depth: u16, generation: u64) -> Batch {
        let mut payload = [0; pattern::BLOCK_BYTES];
        pattern::write(&mut payload, 0, generation);
        Batch::new((usize::from(depth) + 1) * COMMAND_HEADER_BYTES_MAX, payload.to_vec())
    }
}

impl Protocol for Load<'_> {
    #[inline]
    fn issue(&mut self, slot: u16, batch: &mut Batch) -> bool {
        let place = if self.pattern == Pattern::SequentialRead {
            self.next = if self.next + 1 < self.places { self.next + 1 } else { 0 };
            self.next
        } else {
            self.random.below(self.places)
        };
        self.command.cid = slot.into();
        self.command.set_slba(place * self.blocks);
        batch.append(|room| self.lane.connection.command(&self.command, self.transfer, room));
        if self.pattern == Pattern::RandomWrite {
            batch.payload();
        }
        true
    }

    #[inline]
    fn receive(&mut self, bytes: &[u8], answered: &mut Vec<u16>) -> io::Result<()> {
        let expected = if self.pattern == Pattern::RandomWrite { 0 } else { self.bytes };
        self.lane.receive(bytes, |event| account(event, expected, answered))
    }
}

/// Notes a completed command; anything but success is an error.
#[inline]
fn account(event: Event<'_>, expected: u32, answered: &mut Vec<u16>) -> io::Result<()> {
    match event {
        Event::Data { end: Some(end), .. } if end.success => answered.push(end.cid),
        Event::Data { .. } => {}
        Event::Response { completion, received, .. } => {
            let status = completion.status();
            if !status.is_success() || received != expected {
                return Err(io::Error::other(format!("{status}, {received} bytes came")));
            }
            answered.push(completion.cid.get());
        }
        other => {
            return Err(io::Error::other(format!("unexpected from the controller: {other:?}")));
        }
    }
    Ok(())
}

/// Writes the pattern to the first blocks of a namespace, once.
pub struct Fill<'a> {
    lane: &'a mut Lane,
    nsid: u32,
    /// Logical blocks per pattern block.
    blocks: u64,
    next: u64,
    end: u64,
    generation: u64,
}

/// What a filling command needs of a batch.
const FILL_BYTES: usize = COMMAND_HEADER_BYTES_MAX + pattern::BLOCK_BYTES;

impl<'a> Fill<'a> {
    /// Whether all of it was sent.
    pub fn is_done(&self) -> bool {
        self.next == self.end
    }

    /// Fills `count` pattern blocks from the start.
    pub fn new(
        queue: &'a mut Queue,
        nsid: u32,
        geometry: Geometry,
        count: u64,
        generation: u64,
    ) -> Fill<'a> {
        let blocks = pattern::BLOCK_BYTES as u64 / geometry.block_bytes;
        Fill { lane: &mut queue.lane, nsid, blocks, next: 0, end: count, generation }
    }

    /// The batch that goes with it at `depth`.
    pub fn batch(depth: u16) -> Batch {
        Batch::new((usize::from(depth) + 1) * FILL_BYTES, Vec::new())
    }
}

impl Protocol for Fill<'_> {
    fn issue(&mut self, slot: u16, batch: &mut Batch) -> bool {
        if self.next == self.end {
            return false;
        }
        let index = self.next;
        self.next += 1;
        let slba = index * self.blocks;
        let mut command = Command::blocks(opcode::io::WRITE, self.nsid, slba, self.blocks as u32);
        command.cid = slot.into();
        let transfer = Transfer::InCapsule(pattern::BLOCK_BYTES as u32);
        batch.append(|room| self.lane.connection.command(&command, transfer, room));
        batch.append(|room| {
            pattern::write(room, index, self.generation);
            pattern::BLOCK_BYTES
        });
        true
    }

    fn receive(&mut self, bytes: &[u8], answered: &mut Vec<u16>) -> io::Result<()> {
        self.lane.receive(bytes, |event| account(event, 0, answered))
    }
}
