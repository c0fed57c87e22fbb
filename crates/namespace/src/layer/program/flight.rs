//! Requests that a program is not done with.

use crate::{Registered, Request, dataset};
use bpf::request::{PARTS_MAX, Part};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use std::cell::RefCell;

/// Blocks of a request that the program is given at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Piece {
    /// The first.
    pub start: u64,
    /// How many, 0 of Flush.
    pub blocks: u32,
    /// The first, within the request's data.
    pub offset: u32,
}

/// One request, by its tag.
#[derive(Default)]
pub struct Flight {
    /// None while the tag is free, or while the request itself is with a child.
    pub request: Option<Box<Request>>,
    /// What the program works on.
    pub piece: Piece,
    /// Blocks of the request, or of a range of Dataset Management, that it has worked on, that piece included.
    begun: u32,
    /// The range; 0 of other commands.
    range: usize,
    /// Parts that have not ended; one more while parts are being sent.
    pub left: u32,
    /// Parts of this phase that failed, and the first one's status and errno.
    pub failed: u32,
    /// See `failed`.
    pub status: Status,
    /// See `failed`.
    pub os_error: i32,
    /// How many times the parts have ended.
    pub phase: u8,
    /// A phase has covered the piece without an error.
    pub is_whole: bool,
    /// The program's own.
    pub state: [u64; 4],
    /// What is to be carried out.
    pub parts: Vec<Part>,
    /// The same, where it is no parts: a status, or nothing (`Some(None)`).
    pub end: Option<Option<u16>>,
    /// Pages that the ring fills with zeroes.
    pub zeroes: Option<Registered>,
    /// Ranges that parts of a Discard point to; the box stays where it is.
    pub lists: Option<Box<[[u8; dataset::RANGE_BYTES]; PARTS_MAX]>>,
}

impl Flight {
    /// Goes on to the next piece of at most `blocks_max` blocks; false if there is none.
    pub fn next_piece(&mut self, blocks_max: u32) -> bool {
        let request = self.request.as_ref().expect("the flight is under way");
        let command = request.command;
        match command.opcode {
            opcode::FLUSH => {
                let first = self.begun == 0;
                self.begun = 1;
                self.set(Piece::default());
                first
            }
            opcode::DATASET_MANAGEMENT => {
                while self.range < dataset::range_count(&command) {
                    let range = range(request, self.range);
                    if self.begun < range.blocks {
                        let blocks = blocks_max.min(range.blocks - self.begun);
                        let start = range.slba + u64::from(self.begun);
                        self.begun += blocks;
                        self.set(Piece { start, blocks, offset: 0 });
                        return true;
                    }
                    (self.range, self.begun) = (self.range + 1, 0);
                }
                false
            }
            _ => {
                let offset = self.begun;
                let blocks = blocks_max.min(command.block_count() - offset);
                self.begun += blocks;
                let start = command.slba() + u64::from(offset);
                self.set(Piece { start, blocks, offset });
                blocks > 0
            }
        }
    }

    /// Begins a piece anew.
    fn set(&mut self, piece: Piece) {
        self.piece = piece;
        (self.phase, self.is_whole, self.state) = (0, false, [0; 4]);
        self.forget_failures();
    }

    /// Nothing of a phase has failed yet.
    pub fn forget_failures(&mut self) {
        (self.failed, self.status, self.os_error) = (0, Status::SUCCESS, 0);
    }

    /// Takes `request`, of which nothing has been worked on.
    pub fn begin(&mut self, request: Box<Request>) {
        self.request = Some(request);
        (self.begun, self.range, self.left) = (0, 0, 0);
        self.forget_failures();
    }

    /// Makes all of a command that addresses blocks the piece; the request follows when it has to wait here.
    #[inline]
    pub fn begin_whole(&mut self, command: &Command) {
        let blocks = command.block_count();
        (self.begun, self.range, self.left) = (blocks, 0, 0);
        self.set(Piece { start: command.slba(), blocks, offset: 0 });
    }

    /// The command of a part.
    pub fn command_of(&self, part: &Part) -> Command {
        let command = self.request.as_ref().expect("the flight is under way").command;
        match (part.op, command.opcode) {
            (opcode::FLUSH, _) => command,
            (opcode::DATASET_MANAGEMENT, _) => Command { cdw10: 0.into(), ..command },
            (opcode::WRITE_ZEROES, opcode::DATASET_MANAGEMENT) => {
                const DEAC: u32 = 1 << 25;
                let mut zeroes =
                    Command::blocks(part.op, command.nsid.get(), part.block, part.blocks);
                zeroes.cdw12 = (zeroes.cdw12.get() | DEAC).into();
                zeroes
            }
            _ => {
                let mut piece = command;
                piece.set_slba(part.block);
                piece.cdw12 = (command.cdw12.get() & !0xffff | (part.blocks - 1)).into();
                piece
            }
        }
    }
}

/// Range `index` of a Dataset Management command that was checked when it came.
fn range(request: &Request, index: usize) -> dataset::Range {
    assert!(request.data.len() >= (index + 1) * dataset::RANGE_BYTES, "checked when it came");
    // SAFETY: the data has as many bytes, and the request holds it.
    let bytes = unsafe {
        request.data.as_ptr().add(index * dataset::RANGE_BYTES).cast::<[u8; 16]>().read()
    };
    dataset::Range::from_bytes(&bytes)
}

/// Flights by their tags, which are used again: no allocation once there have been as many as there get.
#[derive(Default)]
pub struct Flights {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    all: Vec<Flight>,
    free: Vec<u32>,
}

impl Flights {
    /// A tag that nobody has.
    #[inline]
    pub fn take(&self) -> u32 {
        let inner = &mut *self.inner.borrow_mut();
        inner.free.pop().unwrap_or_else(|| {
            inner.all.push(Flight::default());
            inner.all.len() as u32 - 1
        })
    }

    /// Gives a tag back.
    #[inline]
    pub fn give(&self, tag: u32) {
        self.inner.borrow_mut().free.push(tag);
    }

    /// Takes the requests of all flights that have theirs.
    pub fn requests(&self) -> Vec<Option<Box<Request>>> {
        self.inner.borrow_mut().all.iter_mut().map(|flight| flight.request.take()).collect()
    }

    /// Whether nobody has a tag.
    pub fn is_idle(&self) -> bool {
        let inner = self.inner.borrow();
        inner.free.len() == inner.all.len()
    }

    /// Works on a flight. The table is borrowed meanwhile.
    #[inline]
    pub fn with<R>(&self, tag: u32, work: impl FnOnce(&mut Flight) -> R) -> R {
        work(&mut self.inner.borrow_mut().all[tag as usize])
    }
}
