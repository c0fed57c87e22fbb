//! Copies within what a program routes, and into it.
//!
//! ```text
//!   piece --> the program, as if its source were read and its destination written
//!               |-- plain parts: cut to one part of each side, and copied by the child that it goes to; what that cannot
//!               |                is read from one child and written to the other
//!               '-- else: read and written through the program, which is asked again then
//! ```
//!
//! The program runs once for the source and once for the destination of as many blocks as it takes at once, as it would
//! if they were read and written. It is not asked at all (then the guard above reads and writes) unless it promises
//! `NVLANE_ONE_PLACE`: where else a block is nobody else knows. Nor with `NVLANE_DONE` or `NVLANE_DEFERRED`, which want to
//! see single reads and writes; nor once it has delayed anything: what was asked for a Copy and then read
//! and written all the same would be counted twice.
//!
//! A Copy is a request in flight as any other: the program is replaced when it has ended. So it is no larger than
//! [`COPY_BYTES_MAX`].

use super::Routed;
use super::queue::ProgramQueue;
use crate::copy::{self, Carrier, End, Ground, Place, Reader, Route, Sources, TURN_BYTES_MAX};
use crate::{Data, Queue, Request};
use ::copy::{Piece, Room};
use bpf::actions::{Decision, Plan, Then};
use bpf::request::Part;
use nvme::limits::CopyLimits;
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::Reactor;
use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Bytes of one Copy: what a slow disk reads and writes in a second, while another program waits to take over.
const COPY_BYTES_MAX: u32 = 32 << 20;
/// Blocks of one command.
const COMMAND_BLOCKS_MAX: u64 = 1 << 16;

/// The Copies of one queue.
pub(super) struct Copies {
    carrier: Rc<Carrier>,
    /// By their numbers; those that have ended are used again.
    all: RefCell<Vec<Copy>>,
    /// The children, where what is sent is counted.
    children: Vec<Rc<dyn Queue>>,
    /// The program, whether the gate is open or not.
    inside: Rc<dyn Queue>,
}

/// One Copy.
#[derive(Default)]
struct Copy {
    /// Nobody else's while it is under way.
    tag: u32,
    reads: Answer,
    writes: Answer,
}

/// Where the program has blocks of one range.
#[derive(Default)]
struct Answer {
    range: usize,
    start: u64,
    /// 0: it was not asked yet.
    blocks: u32,
    /// In order; together they are the blocks. None if it wants anything else.
    parts: Vec<Part>,
}

impl Routed {
    /// What a Copy may be.
    pub(super) fn copy_limits(&self) -> CopyLimits {
        let children = || self.children.iter().map(|child| child.limits());
        let is_offered = self.elsewhere.get().is_none()
            && self.programs.now().routes_copies()
            && children().any(|limits| limits.copy.is_offered())
            // Metadata is not moved here.
            && children().all(|limits| limits.metadata_bytes == 0);
        if !is_offered {
            return CopyLimits::NONE;
        }
        let limits = copy::limits(self.device.block_shift);
        let blocks_max = limits.blocks_max.min(COPY_BYTES_MAX >> self.device.block_shift);
        CopyLimits { blocks_max, ..limits }
    }
}

impl Copies {
    pub fn new(
        me: &Weak<ProgramQueue>,
        reactor: &Rc<Reactor>,
        children: &[Rc<dyn Queue>],
        block_shift: u8,
    ) -> Copies {
        let (ground, own) = (me.clone() as Weak<dyn Ground>, me.clone() as Weak<dyn Queue>);
        let counted = |(number, child): (usize, &Rc<dyn Queue>)| {
            let (queue, child) = (me.clone(), Rc::clone(child));
            Rc::new(Counted { queue, child, number }) as Rc<dyn Queue>
        };
        Copies {
            carrier: Carrier::new(reactor, ground, own, block_shift),
            all: RefCell::default(),
            children: children.iter().enumerate().map(counted).collect(),
            inside: Rc::new(Inside { queue: me.clone() }),
        }
    }

    /// Lets go of all Copies.
    pub(super) fn forget(&self) {
        self.carrier.forget();
    }

    /// The number of the program among the children.
    fn inside_number(&self) -> usize {
        self.children.len()
    }
}

/// A child whose parts in flight are counted, as programs see them.
struct Counted {
    queue: Weak<ProgramQueue>,
    child: Rc<dyn Queue>,
    number: usize,
}

impl Queue for Counted {
    fn submit(&self, mut request: Box<Request>) {
        if let Some(queue) = self.queue.upgrade() {
            queue.count(self.number, &mut request);
        }
        self.child.submit(request);
    }

    /// The program tells its children itself.
    fn forget(&self) {}
}

/// The program, for reads and writes of a Copy that is under way. While another one waits to take over the gate is
/// closed, and stays so until that Copy has ended.
struct Inside {
    queue: Weak<ProgramQueue>,
}

impl Queue for Inside {
    fn submit(&self, request: Box<Request>) {
        // What is left of a queue that has gone is forgotten.
        if let Some(queue) = self.queue.upgrade() {
            queue.begin(request);
        }
    }

    fn forget(&self) {}
}

impl ProgramQueue {
    /// Takes a Copy in that comes with its sources.
    pub(super) fn begin_copy(&self, request: Box<Request>) {
        let Data::Sources(sources) = &request.data else { unreachable!("the caller has looked") };
        // The program may be another since this was offered. And one that notes what it was asked would take for written
        // what is refused in the end.
        let is_taken = {
            let loaded = &**self.loaded.borrow();
            loaded.routes_copies() && (!sources.has_fast_only() || loaded.is_forgetful())
        };
        match is_taken {
            true => self.copies.carrier.submit(request),
            false => request.finish(Status::FAST_COPY_NOT_POSSIBLE),
        }
    }

    /// Asks the program where the blocks of `command` are.
    fn ask(&self, tag: u32, command: &Command, parts: &mut Vec<Part>) {
        parts.clear();
        let route = self.facts.get().route;
        let decision = self.flights.with(tag, |flight| {
            flight.begin_whole(command);
            self.decide(route, false, tag, command, flight)
        });
        // What is wrong is told when it is carried out.
        let Ok(Decision::Plan(Plan { delay_ns, then })) = decision else { return };
        if delay_ns > 0 {
            return self.loaded.borrow().note_delay();
        }
        let Then::Parts(count) = then else { return };
        parts.extend_from_slice(&self.inner.borrow().context.part[..count]);
        parts.sort_unstable_by_key(|part| part.offset);
        let blocks: u64 = parts.iter().map(|part| u64::from(part.blocks)).sum();
        // They cover all of it: if they are no more than that, each block is there once.
        if blocks != u64::from(command.block_count()) {
            parts.clear();
        }
    }

    /// How many of the first blocks of `piece` can be treated alike, on the side that `command` is for, whose first
    /// block is `slba`; and where they are, if the program has plain parts for them: a child, and its number of the first.
    fn place(
        &self,
        tag: u32,
        answer: &mut Answer,
        mut command: Command,
        piece: &Piece,
        slba: u64,
    ) -> (u64, Option<(usize, u64)>) {
        let end = slba + piece.blocks;
        let first = if piece.is_backwards { end - 1 } else { slba };
        if !answer.has(piece.range, first) {
            let takes = u64::from(self.facts.get().blocks_max).min(COMMAND_BLOCKS_MAX);
            let blocks = piece.blocks.min(takes);
            let start = if piece.is_backwards { end - blocks } else { slba };
            (answer.range, answer.start, answer.blocks) = (piece.range, start, blocks as u32);
            command.set_slba(start);
            command.cdw12 = (command.cdw12.get() | (blocks as u32 - 1)).into();
            self.ask(tag, &command, &mut answer.parts);
        }
        let (from, to, part) = answer.around(first);
        let blocks = if piece.is_backwards { end - from.max(slba) } else { to.min(end) - slba };
        let at = if piece.is_backwards { end - blocks } else { slba };
        (blocks, part.map(|part| (usize::from(part.backend), part.block + (at - from))))
    }

    /// `piece` is read and written through the program; by whoever is above, if it is not read here.
    fn route_inside(&self, piece: &Piece) -> Route {
        let end = End::Queue(Rc::clone(&self.copies.inside));
        Route {
            blocks: piece.blocks,
            child: self.copies.inside_number(),
            destination: piece.destination,
            fast: None,
            reader: piece.is_same.then_some(Reader { end, slba: piece.source, is_writer: true }),
            guard: None,
        }
    }

    /// Whether `child` may copy from `place` by its own means, as far as it is known.
    fn may(&self, child: usize, place: &Place) -> bool {
        let limits = self.routed.children[child].limits().copy;
        let has_refused = || self.routed.refusals[child].has(place, &limits, self.reactor.now());
        limits.is_offered() && !has_refused()
    }

    /// By which means of its own child `to` may copy the first blocks of `piece`, which are at `slba` of child `from`;
    /// and how many of them.
    fn means(&self, from: usize, slba: u64, to: usize, piece: &Piece) -> Option<(Place, u64, u64)> {
        if from == to {
            return Some((Place::Same, slba, piece.blocks));
        }
        let located = Arc::clone(&self.routed.children[from]).origin(slba, piece.blocks)?;
        // Blocks that a guard below keeps apart are read through it: nobody here can enter its table.
        // What is moved backwards is cut from its end, and the place known is that of its start.
        let is_cut = located.blocks < piece.blocks;
        if located.guard.is_some() || is_cut && piece.is_backwards {
            return None;
        }
        let blocks = located.blocks.min(piece.blocks);
        Some((Place::Origin(located.origin), located.slba, blocks))
    }
}

impl Answer {
    fn has(&self, range: usize, block: u64) -> bool {
        self.range == range && (self.start..self.start + u64::from(self.blocks)).contains(&block)
    }

    /// The blocks around `block` that are in one part, from and to, and the part; all, if there are none.
    fn around(&self, block: u64) -> (u64, u64, Option<&Part>) {
        let start = |part: &Part| self.start + u64::from(part.offset);
        let next = self.parts.partition_point(|part| start(part) <= block);
        match next.checked_sub(1).map(|index| &self.parts[index]) {
            Some(part) => (start(part), start(part) + u64::from(part.blocks), Some(part)),
            None => (self.start, self.start + u64::from(self.blocks), None),
        }
    }
}

/// A command of a Copy's: what the program is asked is that, for so many blocks.
fn of_copy(code: u8, copy: &Command) -> Command {
    const FUA: u32 = 1 << 30;
    let mut command = Command { opcode: code, nsid: copy.nsid, ..Command::default() };
    if code == opcode::WRITE {
        command.cdw12 = (copy.cdw12.get() & FUA).into();
    }
    command
}

impl Ground for ProgramQueue {
    fn may_begin(&self, copy: u64, _bytes: u64, _sources: &Sources) -> bool {
        let (index, tag) = (copy as usize, self.flights.take());
        let mut all = self.copies.all.borrow_mut();
        if all.len() <= index {
            all.resize_with(index + 1, Copy::default);
        }
        let Copy { tag: own, reads, writes } = &mut all[index];
        (*own, reads.blocks, writes.blocks) = (tag, 0, 0);
        true
    }

    fn ended(&self, copy: u64, _bytes: u64) {
        let tag = self.copies.all.borrow()[copy as usize].tag;
        self.give(tag);
    }

    fn is_same(&self, place: &Place) -> bool {
        matches!(place, Place::Same)
    }

    fn route(&self, copy: u64, command: &Command, place: &Place, piece: &Piece) -> Route {
        let is_known = || (0..self.routed.children.len()).any(|child| self.may(child, place));
        if self.loaded.borrow().delays() || !piece.is_same && !is_known() {
            return self.route_inside(piece);
        }
        let all = &mut *self.copies.all.borrow_mut();
        let Copy { tag, reads, writes } = &mut all[copy as usize];
        let (mut piece, mut source) = (*piece, None);
        if piece.is_same {
            let read = of_copy(opcode::READ, command);
            let (blocks, found) = self.place(*tag, reads, read, &piece, piece.source);
            (piece, source) = (piece.first(blocks), found);
            if source.is_none() {
                return self.route_inside(&piece);
            }
        }
        let write = of_copy(opcode::WRITE, command);
        let (blocks, found) = self.place(*tag, writes, write, &piece, piece.destination);
        let skipped = piece.first(blocks).source - piece.source;
        piece = piece.first(blocks);
        let Some((child, destination)) = found else { return self.route_inside(&piece) };
        if self.routed.children[child].limits().read_only {
            // As it says it to a write.
            return self.route_inside(&piece);
        }
        let mut route = Route { blocks, child, destination, fast: None, reader: None, guard: None };
        let Some((from, slba)) = source.map(|(from, slba)| (from, slba + skipped)) else {
            // Only who knows the place can copy from it.
            route.fast = self.may(child, place).then(|| (place.clone(), piece.source));
            return route;
        };
        let end = End::Queue(Rc::clone(&self.copies.children[from]));
        route.reader = Some(Reader { end, slba, is_writer: from == child });
        if let Some((place, slba, blocks)) = self.means(from, slba, child, &piece)
            && self.may(child, &place)
        {
            route.fast = Some((place, slba));
            route.blocks = blocks;
        }
        route
    }

    fn room(&self, child: usize, _guarded: bool) -> Room {
        let limits = self.routed.children[child].limits();
        let bytes_max = if limits.immediate { TURN_BYTES_MAX as u64 } else { u64::MAX };
        let shift = self.routed.device.block_shift;
        Room {
            ranges: usize::from(limits.copy.ranges_max).max(1),
            range_blocks: u64::from(limits.copy.range_blocks_max).max(1),
            blocks: u64::from(limits.copy.blocks_max).min(bytes_max >> shift).max(1),
        }
    }

    fn send(&self, child: usize, request: Box<Request>, _routes: &[Route]) {
        self.copies.children[child].submit(request);
    }

    fn refused(&self, child: usize, place: &Place) {
        let limits = self.routed.children[child].limits().copy;
        self.routed.refusals[child].note(place, &limits, self.reactor.now());
    }

    fn writer(&self, child: usize) -> End {
        let queue = self.copies.children.get(child).unwrap_or(&self.copies.inside);
        End::Queue(Rc::clone(queue))
    }

    fn transfer_bytes_max(&self, _sources: &Sources) -> usize {
        let each = self.routed.children.iter();
        let least = each.map(|child| child.limits().transfer_bytes_max).min();
        least.expect("there is a child") as usize
    }
}
