//! One core's side of the guard.

use super::claims::{Claim, Thread};
use super::copies::{CLAIM, COPY};
use super::line::Share;
use super::scratch::{self, Scratch};
use super::slot::{Slot, Work};
use super::truce::AGREE;
use super::waiting::{InLine, Looker};
use super::{Guard, roster};
use crate::copy::{Carrier, Ground, Load, OnThreads, threads};
use crate::layer::conflicts::{Range, User};
use crate::layer::slab::Slab;
use crate::wake::{Wake, Waker};
use crate::{Data, Queue, Request, Sink, dataset};
use nvme::Status;
use nvme::opcode::io as opcode;
use reactor::{Complete, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Frame state of a command that passed outside the table.
const PASSING: u64 = u64::MAX;
/// Marks the frame state, and the user in the table, of a command that has no slot: nothing was in its way when it
/// came. The shard that it has entered is in bits 53:48, a number in those below.
const BRIEF: u64 = 1 << 60;
const BRIEF_SHARD: u32 = 48;
/// Marks the number of a slot that has got memory.
const MEMORY: u64 = 1 << 59;

pub(super) struct GuardQueue {
    pub(super) me: Weak<GuardQueue>,
    pub(super) guard: Arc<Guard>,
    pub(super) child: Rc<dyn Queue>,
    pub(super) reactor: Rc<Reactor>,
    waker: Waker,
    slots: Slab<Slot>,
    /// Memory for those of them that read here.
    pub(super) room: scratch::Room,
    /// Commands that had no slot, which numbers them.
    brief: Cell<u64>,
    /// Copies, and what those that went down hold.
    pub(super) carrier: Rc<Carrier>,
    pub(super) claims: Slab<Claim>,
    /// This core's Copies in progress.
    pub(super) share: Share,
    /// Those of its Copies in line that may be given up, and who looks whether they are; he has been told to.
    pub(super) in_line: RefCell<BTreeMap<u64, InLine>>,
    pub(super) looker: Rc<Looker>,
    pub(super) looks: Cell<bool>,
    /// Everything but Copy goes straight to the child.
    idle: bool,
    /// Commands in flight below that did not enter the table.
    passing: Cell<u32>,
    /// To agree once `passing` is zero.
    asked: Cell<bool>,
    next: RefCell<Vec<User>>,
    /// Facts about the child that do not change. Where blocks have metadata nothing is read here to compare or to verify:
    /// what was not offered comes as a command that is passed, with as much data as somebody likes.
    compares: bool,
    verifies: bool,
    checksums: bool,
    passes: bool,
    pub(super) on_threads: OnThreads,
    pub(super) shift: u8,
    /// Blocks that are read at once where this compares or verifies.
    piece_blocks: u32,
}

impl GuardQueue {
    pub(super) fn open(
        guard: Arc<Guard>,
        child: Rc<dyn Queue>,
        reactor: &Rc<Reactor>,
    ) -> Rc<GuardQueue> {
        let limits = guard.child.limits();
        let (can, piece) =
            (limits.commands, limits.transfer_bytes_max.min(scratch::PIECE_BYTES as u32));
        let queue = Rc::new_cyclic(|me: &Weak<GuardQueue>| GuardQueue {
            me: me.clone(),
            child,
            reactor: Rc::clone(reactor),
            waker: Waker::new(reactor, me.clone() as Weak<dyn Wake>),
            slots: Slab::default(),
            room: scratch::Room::default(),
            brief: Cell::new(0),
            carrier: Carrier::new(
                reactor,
                me.clone() as Weak<dyn Ground>,
                me.clone() as Weak<dyn Queue>,
                limits.block_shift,
            ),
            claims: Slab::default(),
            share: Share::default(),
            in_line: RefCell::default(),
            looker: Rc::new(Looker(me.clone())),
            looks: Cell::new(false),
            idle: guard.is_idle(),
            passing: Cell::new(0),
            asked: Cell::new(false),
            next: RefCell::default(),
            compares: can.compare || limits.metadata_bytes != 0,
            verifies: can.verify || limits.metadata_bytes != 0,
            checksums: can.checksum,
            passes: limits.passthrough.io,
            on_threads: guard.child.copies_on_threads(),
            shift: limits.block_shift,
            piece_blocks: (piece >> limits.block_shift).max(1),
            guard,
        });
        queue.guard.truce.join(queue.waker.clone());
        roster::join(&queue.waker);
        queue
    }
}

/// What has gone down keeps the queue, but for what a read-only volume passes on. So whatever is left here was waiting, or was forgotten further down: none of it
/// is at work, and nobody is to wait for it.
impl Drop for GuardQueue {
    fn drop(&mut self) {
        roster::quit(&self.waker);
        self.waker.forget();
        // Before any thread is given back, by this or by what is dropped here: who is gone is passed over then.
        let ready = self.stop_waiting_for_threads();
        let (mut next, mut announced) = (self.next_list(), 0);
        for number in self.slots.numbers(|_| true) {
            let mut slot = self.slots.take(number);
            announced += u32::from(slot.is_announced);
            if mem::take(&mut slot.waits) {
                slot.advance();
            }
            self.leave_shards(number, slot.entered, &mut next);
        }
        for number in self.claims.numbers(|_| true) {
            let user = self.user(CLAIM | number);
            self.claims.take(number).quit(user, &mut next);
        }
        for load in ready {
            threads::release(&self.reactor, self.guard.number, load);
        }
        self.guard.truce.quit(&self.waker, announced);
        let is_brief = |slot| slot & (BRIEF | CLAIM | COPY) == BRIEF;
        self.guard.conflicts.quit(self.waker.id(), is_brief, &mut next);
        self.guard.line.quit(self.waker.id(), &self.share, &mut next);
        next.into_iter().for_each(roster::wake);
    }
}

impl GuardQueue {
    /// No claim waits for a thread any more. Returns the sizes of those that have one.
    fn stop_waiting_for_threads(&self) -> Vec<Load> {
        let ready = |number: &u64| match self.claims.with(*number, |claim| claim.thread) {
            Thread::None => None,
            // It may have been told already, though it will not hear it.
            Thread::Awaited(load) => {
                let user = self.user(CLAIM | *number);
                (!threads::give_up(self.guard.number, user)).then_some(load)
            }
            Thread::Ready(load) => Some(load),
        };
        self.claims.numbers(|_| true).iter().filter_map(ready).collect()
    }
}

impl Queue for GuardQueue {
    #[inline]
    fn submit(&self, request: Box<Request>) {
        if self.idle && !matches!(request.command.opcode, opcode::COPY | opcode::VERIFY) {
            return self.child.submit(request);
        }
        // Most commands by far, of which nothing is to be seen to.
        let is_plain = match request.command.opcode {
            opcode::READ => request.fused.is_none(),
            opcode::WRITE => request.fused.is_none() && !self.guard.options.read_only,
            _ => false,
        };
        match is_plain && !self.guard.truce.is_on() {
            true => self.pass_by(request),
            false => self.submit_seen_to(request),
        }
    }

    /// Past the table: what an admin command does to blocks nobody here can tell.
    fn submit_admin(&self, request: Box<Request>) {
        let code = request.command.opcode;
        if self.guard.options.read_only && !crate::layer::admin_changes_nothing(code) {
            return request.finish(Status::NAMESPACE_WRITE_PROTECTED.dnr());
        }
        self.child.submit_admin(request);
    }

    fn access(&self) -> crate::Access {
        self.child.access()
    }

    fn watch_access(&self, watcher: Weak<dyn crate::AccessWatcher>) {
        self.child.watch_access(watcher);
    }

    /// Copies that are under way have the volumes that they are from, and what waits here may be for one of another
    /// volume.
    fn forget(&self) {
        self.child.forget();
        self.carrier.forget();
        let slot =
            |number| self.slots.with(number, |slot| (slot.request.take(), slot.second.take()));
        let slots: Vec<_> = self.slots.numbers(|_| true).into_iter().map(slot).collect();
        let claim = |number| self.claims.with(number, |claim| claim.request.take());
        let claims: Vec<_> = self.claims.numbers(|_| true).into_iter().map(claim).collect();
        drop((slots, claims));
    }
}

impl Sink for GuardQueue {
    #[inline]
    fn completed(&self, request: Box<Request>, state: u64) {
        if state == PASSING {
            self.has_passed();
            return request.complete();
        }
        if state & CLAIM != 0 {
            return self.leave_claim(state, request);
        }
        if state & BRIEF != 0 {
            return self.leave_brief(state, request);
        }
        match self.slots.with(state, |slot| slot.work) {
            Work::Pass => self.leave(state, request),
            Work::FusedCompare if self.compares => self.fused_compared(state, request),
            Work::Compare | Work::Verify | Work::Checksum | Work::FusedCompare => {
                self.piece_read(state, request)
            }
            Work::FusedWrite => self.fused_written(state, request),
        }
    }
}

impl Wake for GuardQueue {
    fn wake(&self, value: u64) {
        if value != AGREE {
            // Its turn has come in the shard it waits in, or the truce is agreed.
            return self.turn(value);
        }
        if self.passing.get() == 0 {
            self.guard.truce.agree(&self.waker);
        } else {
            self.asked.set(true);
        }
    }
}

/// A command of this core has left the range that another of this core waits for.
impl Complete for GuardQueue {
    fn complete(&self, token: u64, _result: i32, _flags: u32) {
        self.turn(token);
    }
}

impl GuardQueue {
    /// Sends a command down that does not enter the table.
    #[inline]
    pub(super) fn pass(&self, mut request: Box<Request>) {
        self.passing.set(self.passing.get() + 1);
        request.push(self.sink(), PASSING);
        self.child.submit(request);
    }

    /// Sends a command down that lies within one shard, if nothing there is in its way; gets it in line otherwise.
    #[inline]
    fn submit_brief(&self, range: Range, mut request: Box<Request>) {
        let shards = range.shards();
        if shards.is_power_of_two() {
            let number = self.brief.get();
            self.brief.set((number + 1) & ((1 << BRIEF_SHARD) - 1));
            let shard = shards.trailing_zeros();
            let state = BRIEF | u64::from(shard) << BRIEF_SHARD | number;
            if self.guard.conflicts.enter_if_free(shard, self.user(state), range) {
                request.push(self.sink(), state);
                return self.child.submit(request);
            }
        }
        let slot = self.slots.insert(Slot::new(range, Work::Pass, request));
        self.prepare(slot);
    }

    #[inline]
    fn leave_brief(&self, state: u64, request: Box<Request>) {
        let shard = (state >> BRIEF_SHARD) as u32 & 63;
        let mut next = self.next_list();
        self.guard.conflicts.leave(shard, self.user(state), &mut next);
        self.wake_next(next);
        request.complete();
    }

    /// One that will not enter the table is on its way.
    pub(super) fn will_pass(&self) {
        self.passing.set(self.passing.get() + 1);
    }

    /// A command outside the table has ended.
    #[inline]
    pub(super) fn has_passed(&self) {
        self.passing.set(self.passing.get() - 1);
        if self.passing.get() == 0 && self.asked.take() {
            self.guard.truce.agree(&self.waker);
        }
    }

    #[inline]
    pub(super) fn sink(&self) -> Rc<dyn Sink> {
        self.me.upgrade().expect("the queue lives while it is called")
    }

    /// Starts a command of which something may have to be seen to.
    #[inline(never)]
    fn submit_seen_to(&self, request: Box<Request>) {
        if self.guard.options.read_only && self.may_write(&request) {
            return request.finish_pair(Status::NAMESPACE_WRITE_PROTECTED.dnr());
        }
        let work = match request.command.opcode {
            _ if request.fused.is_some() => return self.submit_fused(request),
            opcode::COMPARE if !self.compares => Work::Compare,
            opcode::VERIFY if !self.checksums && request.command.wants_checksum() => Work::Checksum,
            opcode::VERIFY if !self.verifies => Work::Verify,
            opcode::COPY if matches!(request.data, Data::Sources(_)) => {
                return self.carrier.submit(request);
            }
            _ => Work::Pass,
        };
        if work == Work::Pass && !self.guard.truce.is_on() {
            return self.pass_by(request);
        }
        match range_of(&request) {
            // There is nothing to keep apart.
            None => self.child.submit(request),
            Some(range) if work == Work::Pass => self.submit_brief(range, request),
            Some(range) => {
                let slot = self.slots.insert(Slot::new(range, work, request));
                self.prepare(slot);
            }
        }
    }

    /// Sends down what enters no table. Where nothing is written no fused pair comes that would have to wait for it.
    #[inline]
    fn pass_by(&self, request: Box<Request>) {
        match self.guard.options.read_only {
            true => self.child.submit(request),
            false => self.pass(request),
        }
    }

    /// Whether a command is one that read-only volumes refuse.
    fn may_write(&self, request: &Request) -> bool {
        let code = request.command.opcode;
        let unknown = self.passes && !association::retry::opcode_changes_nothing(code);
        writes(code) || unknown || request.fused.is_some()
    }

    fn submit_fused(&self, request: Box<Request>) {
        let first = request.command;
        let second = request.fused.as_deref().expect("checked by the caller").command;
        let pair = first.opcode == opcode::COMPARE && second.opcode == opcode::WRITE;
        let same = first.slba() == second.slba() && first.block_count() == second.block_count();
        if self.guard.options.shared || !pair {
            return request.finish_pair(Status::INVALID_FIELD.dnr());
        }
        let Some(range) = range_of(&request).filter(|_| same) else {
            return request.finish_pair(Status::INVALID_FIELD.dnr());
        };
        let range = Range { exclusive: true, ..range };
        let slot = self.slots.insert(Slot::new(range, Work::FusedCompare, request));
        self.prepare(slot);
    }

    /// Gets the memory that a command needs, before it holds a range that others wait for.
    fn prepare(&self, slot: u64) {
        let (work, blocks) =
            self.slots.with(slot, |slot| (slot.work, slot.command.block_count() as usize));
        let reads = match work {
            Work::Compare | Work::Verify | Work::Checksum => true,
            Work::FusedCompare => !self.compares,
            Work::Pass | Work::FusedWrite => false,
        };
        if reads {
            let bytes = blocks << self.block_shift();
            match self.room.obtain(&self.reactor, bytes, slot) {
                Ok(Some(scratch)) => self.slots.with(slot, |slot| slot.scratch = Some(scratch)),
                Ok(None) => return self.look_later(),
                Err(_) => {
                    let request = self.slots.take(slot).take_request();
                    return request.finish_pair(Status::COMMAND_INTERRUPTED);
                }
            }
        }
        self.begin(slot);
    }

    /// Takes memory back. Whoever is given it goes on later, not from here: those in line would nest without bound.
    fn release(&self, scratch: Scratch) {
        if let Some((slot, scratch)) = self.room.release(scratch) {
            self.slots.with(slot, |slot| slot.scratch = Some(scratch));
            let sink = self.me.upgrade().expect("the queue lives while it is called");
            self.reactor.defer(sink, MEMORY | slot);
        }
    }

    /// Has those in line go on that the pool has memory for by now.
    pub(super) fn look_at_memory(&self) {
        while let Some((slot, scratch)) = self.room.look(&self.reactor) {
            self.slots.with(slot, |slot| slot.scratch = Some(scratch));
            self.begin(slot);
        }
    }

    /// Goes for the range; a fused pair once everybody uses the table.
    fn begin(&self, slot: u64) {
        let fused = self.slots.with(slot, |slot| {
            slot.is_announced |= slot.work == Work::FusedCompare;
            slot.is_announced
        });
        if !fused || self.guard.truce.announce(&self.waker, slot, self.passing.get()) {
            self.enter(slot);
        }
    }

    pub(super) fn user(&self, slot: u64) -> User {
        User { queue: self.waker.id(), slot }
    }

    /// A command that waited may go on.
    fn turn(&self, slot: u64) {
        if slot & CLAIM != 0 {
            return self.turn_of_claim(slot);
        }
        if slot & COPY != 0 {
            return self.turn_of_copy(slot);
        }
        if slot & MEMORY != 0 {
            return self.begin(slot & !MEMORY);
        }
        self.slots.with(slot, |slot| {
            // A fused pair that waited for the truce has entered nothing yet.
            if slot.waits {
                slot.waits = false;
                slot.advance();
            }
        });
        self.enter(slot);
    }

    /// Enters what shards are missing, one after another, and starts when there are none.
    fn enter(&self, slot: u64) {
        let (mut missing, range) = self.slots.with(slot, |slot| (slot.missing, slot.range));
        while missing != 0 {
            let granted =
                self.guard.conflicts.enter(missing.trailing_zeros(), self.user(slot), range);
            if !granted {
                return self.slots.with(slot, |slot| slot.waits = true);
            }
            missing = self.slots.with(slot, |slot| {
                slot.advance();
                slot.missing
            });
        }
        self.run(slot);
    }

    /// Starts the work of a command that holds its range, or the next piece of it.
    fn run(&self, slot: u64) {
        let shift = self.block_shift();
        let mut request = self.slots.with(slot, |slot| {
            let mut request = slot.take_request();
            if slot.scratch.is_some() {
                slot.prepare_read(&mut request, shift, self.piece_blocks);
            }
            if slot.work == Work::FusedCompare {
                // To the child these are two ordinary commands.
                request.command.flags &= !3;
                slot.second = request.fused.take().or(slot.second.take());
            }
            request
        });
        request.push(self.sink(), slot);
        self.child.submit(request);
    }

    fn block_shift(&self) -> u8 {
        self.shift
    }

    /// A piece was read for a command that is carried out here.
    fn piece_read(&self, slot: u64, mut request: Box<Request>) {
        let shift = self.block_shift();
        let (work, finished) = self.slots.with(slot, |slot| {
            slot.restore(&mut request, shift);
            (slot.work, slot.done >= slot.command.block_count())
        });
        if finished || !request.status.is_success() {
            request.result = match work {
                Work::Checksum if request.status.is_success() => {
                    self.slots.with(slot, |slot| slot.checksum())
                }
                _ => 0,
            };
            return match work {
                Work::FusedCompare => self.fused_compared(slot, request),
                _ => self.leave(slot, request),
            };
        }
        self.slots.with(slot, |slot| slot.request = Some(request));
        self.run(slot);
    }

    /// The first half of a fused pair has ended.
    fn fused_compared(&self, slot: u64, mut request: Box<Request>) {
        (request.command, request.fused) =
            self.slots.with(slot, |slot| (slot.command, slot.second.take()));
        if !request.status.is_success() {
            let status = request.status;
            let second = request.fused.as_deref_mut().expect("a fused pair has two commands");
            second.status = Status::ABORTED_FAILED_FUSED;
            return self.leave_fused(slot, request, status);
        }
        let mut second = request.fused.take().expect("a fused pair has two commands");
        self.slots.with(slot, |slot| {
            slot.request = Some(request);
            slot.work = Work::FusedWrite;
            slot.command = second.command;
        });
        second.command.flags &= !3;
        second.push(self.sink(), slot);
        self.child.submit(second);
    }

    /// The second half has ended.
    fn fused_written(&self, slot: u64, mut second: Box<Request>) {
        let mut request = self.slots.with(slot, |slot| {
            second.command = slot.command;
            slot.take_request()
        });
        request.fused = Some(second);
        self.leave_fused(slot, request, Status::SUCCESS);
    }

    fn leave_fused(&self, slot: u64, mut request: Box<Request>, status: Status) {
        request.status = status;
        request.result = 0;
        self.leave_table(slot);
        self.guard.truce.withdraw();
        request.complete();
    }

    /// A command has ended: the next may have its range.
    #[inline]
    fn leave(&self, slot: u64, request: Box<Request>) {
        self.leave_table(slot);
        request.complete();
    }

    #[inline]
    fn leave_table(&self, slot: u64) {
        let entered = self.slots.with(slot, |slot| slot.entered);
        let mut next = self.next_list();
        self.leave_shards(slot, entered, &mut next);
        let scratch = self.slots.take(slot).scratch;
        self.wake_next(next);
        if let Some(scratch) = scratch {
            self.release(scratch);
        }
    }

    /// Adds those to `next` whose turn comes by that.
    #[inline]
    fn leave_shards(&self, slot: u64, mut entered: u64, next: &mut Vec<User>) {
        while entered != 0 {
            let shard = entered.trailing_zeros();
            self.guard.conflicts.leave(shard, self.user(slot), next);
            entered &= entered - 1;
        }
    }
}

impl GuardQueue {
    /// Those who are next in the tables, in a list that is used again.
    pub(super) fn next_list(&self) -> Vec<User> {
        self.next.take()
    }

    /// Tells those whose turn has come.
    #[inline]
    pub(super) fn wake_next(&self, mut next: Vec<User>) {
        if next.is_empty() {
            self.next.replace(next);
            return;
        }
        for user in next.drain(..) {
            if user.queue == self.waker.id() {
                // Later, not from here: a chain of waiting commands would nest without bound.
                let sink = self.me.upgrade().expect("the queue lives while it is called");
                self.reactor.defer(sink, user.slot);
            } else {
                roster::wake(user);
            }
        }
        self.next.replace(next);
    }
}

fn writes(code: u8) -> bool {
    matches!(
        code,
        opcode::WRITE
            | opcode::WRITE_ZEROES
            | opcode::WRITE_UNCORRECTABLE
            | opcode::DATASET_MANAGEMENT
            | opcode::COPY
    )
}

/// The blocks that a command uses, if it uses any: all, of one that may change who knows which.
#[inline]
fn range_of(request: &Request) -> Option<Range> {
    let command = &request.command;
    let exclusive = writes(command.opcode);
    if crate::layer::addresses_blocks(command) {
        let start = command.slba();
        let end = start.saturating_add(u64::from(command.block_count()));
        return (start < end).then_some(Range { start, end, exclusive });
    }
    if command.opcode != opcode::DATASET_MANAGEMENT {
        // Zone Append, a vendor's, a Copy that is passed as it is.
        let all = Range { start: 0, end: u64::MAX, exclusive: true };
        return (!association::retry::opcode_changes_nothing(command.opcode)).then_some(all);
    }
    if !dataset::deallocates(command) {
        return None;
    }
    // Everything between the first and the last block of all ranges.
    // SAFETY: the request holds its data during this call.
    let ranges = unsafe {
        dataset::ranges(command, request.data.as_ptr(), request.data.len(), u64::MAX).ok()?
    };
    let used = ranges.filter(|range| range.blocks > 0);
    let start = used.clone().map(|range| range.slba).min()?;
    let end = used.map(|range| range.slba + u64::from(range.blocks)).max()?;
    Some(Range { start, end, exclusive })
}
