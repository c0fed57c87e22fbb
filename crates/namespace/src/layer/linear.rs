//! `linear:`: one namespace after another.
//!
//! A command within one child goes down with its address changed and nothing else. One that
//! crosses a boundary is split into requests of a pool, whose data are parts of the original's;
//! its status is that of the first part that failed. A Copy goes down in pieces that lie within one
//! child each, source and destination; what no child copies by its own means is read from one and
//! written to the other here.

mod copies;

use crate::copy::{self, Carrier, Ground, Located, OnThreads, Refusals};
use crate::layer::addresses_blocks;
use crate::layer::slab::Slab;
use crate::layer::tune_each;
use crate::{
    Access, AccessWatcher, Data, Lost, Namespace, Part, PathReport, Queue, Request, Run, Sink,
    dataset,
};
use nvme::limits::{CopyLimits, Passthrough};
use nvme::opcode::io as opcode;
use nvme::{Limits, Status};
use reactor::Reactor;
use std::cell::RefCell;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Bytes of a full list of ranges.
const LIST_BYTES: usize = dataset::RANGES_MAX * dataset::RANGE_BYTES;

/// Namespaces one after another.
#[derive(Debug)]
pub struct Linear {
    children: Vec<Child>,
}

#[derive(Debug)]
struct Child {
    namespace: Arc<dyn Namespace>,
    /// First block of this child, counted over all.
    start: u64,
    /// What this child cannot copy by its own means.
    refusals: Refusals,
}

/// Why namespaces cannot follow one another.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LinearError {
    /// There is none.
    #[error("linear: needs at least one volume")]
    Empty,
    /// Their blocks differ in size.
    #[error("linear: volumes have blocks of {first} and {other} bytes; give all the same ?bs=")]
    BlockSize {
        /// Of the first.
        first: u32,
        /// Of another.
        other: u32,
    },
}

impl Linear {
    /// Puts `children` one after another. All but the last keep the size they have now.
    pub fn new(children: Vec<Arc<dyn Namespace>>) -> Result<Arc<Linear>, LinearError> {
        let first = children.first().ok_or(LinearError::Empty)?.limits().block_bytes();
        let mut start = 0;
        let mut placed = Vec::with_capacity(children.len());
        for namespace in children {
            let limits = namespace.limits();
            if limits.block_bytes() != first {
                return Err(LinearError::BlockSize { first, other: limits.block_bytes() });
            }
            placed.push(Child { namespace, start, refusals: Refusals::default() });
            start += limits.blocks;
        }
        Ok(Arc::new(Linear { children: placed }))
    }

    fn last(&self) -> &Child {
        self.children.last().expect("checked when made")
    }
}

impl Namespace for Linear {
    fn limits(&self) -> Limits {
        let last = self.last();
        let mut limits = last.namespace.limits();
        limits.blocks += last.start;
        // Nobody knows where blocks are addressed in a command that is not known.
        (limits.passthrough, limits.metadata_bytes) = (Passthrough::NONE, 0);
        for child in &self.children[..self.children.len() - 1] {
            let other = child.namespace.limits();
            limits.transfer_bytes_max = limits.transfer_bytes_max.min(other.transfer_bytes_max);
            limits.write_zeroes_bytes_max =
                limits.write_zeroes_bytes_max.min(other.write_zeroes_bytes_max);
            limits.discard = limits.discard.and(other.discard);
            limits.optimal_write_bytes = limits.optimal_write_bytes.max(other.optimal_write_bytes);
            limits.read_only |= other.read_only;
            limits.volatile_write_cache |= other.volatile_write_cache;
            limits.lends_reads &= other.lends_reads;
            limits.immediate &= other.immediate;
            limits.commands.write_zeroes &= other.commands.write_zeroes;
            limits.commands.deallocate &= other.commands.deallocate;
            limits.commands.write_uncorrectable &= other.commands.write_uncorrectable;
            limits.commands.compare &= other.commands.compare;
            limits.commands.verify &= other.commands.verify;
            // Of parts that do not tell, everything is stored.
            limits.commands.allocation |= other.commands.allocation;
        }
        // Those of parts would have to be put together.
        limits.commands.checksum = false;
        // Pieces are cut to what the children take; without metadata, which is not moved here.
        let mut offered = CopyLimits::NONE;
        for child in &self.children {
            let other = child.namespace.limits();
            if other.metadata_bytes > 0 {
                offered = CopyLimits::NONE;
                break;
            }
            if other.copy.is_offered() {
                offered = copy::limits(limits.block_shift);
            }
        }
        limits.copy = offered;
        // A pair that crosses a boundary could not be atomic.
        limits.commands.compare_and_write = false;
        limits
    }

    fn open_queue(self: Arc<Self>, reactor: &Rc<Reactor>) -> io::Result<Rc<dyn Queue>> {
        let open = |child: &Child| Arc::clone(&child.namespace).open_queue(reactor);
        let children = self.children.iter().map(open).collect::<io::Result<Vec<_>>>()?;
        let starts = self.children.iter().map(|child| child.start).collect();
        let block_shift = self.limits().block_shift;
        Ok(Rc::new_cyclic(|me: &Weak<LinearQueue>| LinearQueue {
            me: me.clone(),
            carrier: Carrier::new(
                reactor,
                me.clone() as Weak<dyn Ground>,
                me.clone() as Weak<dyn Queue>,
                block_shift,
            ),
            linear: self,
            children,
            starts,
            block_shift,
            reactor: Rc::clone(reactor),
            split: Slab::default(),
            spare: RefCell::default(),
            lists: RefCell::default(),
        }))
    }

    fn refresh(&self) -> io::Result<bool> {
        // All of them, whatever one says; an error is told where no change is.
        let asked: Vec<_> = self.children.iter().map(|child| child.namespace.refresh()).collect();
        if asked.iter().any(|answer| matches!(answer, Ok(true))) {
            return Ok(true);
        }
        asked.into_iter().find(Result::is_err).unwrap_or(Ok(false))
    }

    fn resize(&self, bytes: u64) -> io::Result<()> {
        let last = self.last();
        let before = last.start << last.namespace.limits().block_shift;
        match bytes.checked_sub(before).filter(|&rest| rest > 0) {
            Some(rest) => last.namespace.resize(rest),
            None => {
                let why = "only the last volume of linear: can be resized, not taken away";
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
    }

    fn flush(&self) -> io::Result<()> {
        // All of them, whatever one says.
        let flushed: Vec<_> = self.children.iter().map(|child| child.namespace.flush()).collect();
        flushed.into_iter().collect()
    }

    fn uri(&self) -> String {
        let children: Vec<_> = self.children.iter().map(|child| child.namespace.uri()).collect();
        format!("linear:({})", children.join(","))
    }

    fn describe(&self, facts: &mut Vec<(String, String)>) {
        for child in &self.children {
            facts.push(("from block".into(), child.start.to_string()));
            child.namespace.describe(facts);
        }
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    fn keeps_blocks_whole(&self) -> bool {
        self.children.iter().all(|child| child.namespace.keeps_blocks_whole())
    }

    fn takes_registered(&self) -> bool {
        self.children.iter().all(|child| child.namespace.takes_registered())
    }

    /// That of the part that stands worst.
    fn access(&self) -> Access {
        self.children.iter().map(|child| child.namespace.access()).max().unwrap_or_default()
    }

    fn paths(&self) -> Vec<PathReport> {
        self.children.iter().flat_map(|child| child.namespace.paths()).collect()
    }

    fn each_program(&self, visit: &mut dyn FnMut(&crate::layer::program::Routed)) {
        self.children.iter().for_each(|child| child.namespace.each_program(visit));
    }

    fn allocation(&self, slba: u64, blocks: u64, runs_max: usize) -> io::Result<Vec<Run>> {
        let mut runs = Vec::new();
        let (mut at, end) = (slba, slba + blocks);
        for (index, child) in self.children.iter().enumerate() {
            let next = self.children.get(index + 1).map_or(u64::MAX, |child| child.start);
            if at >= end || at >= next || runs.len() >= runs_max {
                continue;
            }
            let (asked, left) = (end.min(next) - at, runs_max - runs.len());
            let stored = |_| vec![Run { blocks: asked, is_stored: true }];
            let more = child.namespace.allocation(at - child.start, asked, left);
            let more = more.unwrap_or_else(stored);
            let told: u64 = more.iter().map(|run| run.blocks).sum();
            runs.extend(more);
            at += told;
            if told < asked {
                break;
            }
        }
        Ok(runs)
    }

    fn copies_on_threads(&self) -> OnThreads {
        OnThreads::of(self.children.iter().map(|child| child.namespace.copies_on_threads()))
    }

    fn last_guard(&self) -> Option<u64> {
        self.children.iter().filter_map(|child| child.namespace.last_guard()).max()
    }

    fn origin(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        let (child, slba, blocks) = self.within(slba, blocks);
        child.origin(slba, blocks)
    }

    fn destination(self: Arc<Self>, slba: u64, blocks: u64) -> Option<Located> {
        let (child, slba, blocks) = self.within(slba, blocks);
        child.destination(slba, blocks)
    }

    /// Every child that knows the setting is given it; an error if none does.
    fn tune(&self, name: &str, value: &str) -> io::Result<()> {
        tune_each(self.children.iter().map(|child| &child.namespace), name, value)
    }

    fn cut(&self) -> u64 {
        self.children.iter().map(|child| child.namespace.cut()).sum()
    }

    fn lost(&self) -> Lost {
        self.children.iter().map(|child| child.namespace.lost()).sum()
    }

    fn volatile_epoch(&self) -> u64 {
        self.children.iter().map(|child| child.namespace.volatile_epoch()).sum()
    }
}

struct LinearQueue {
    me: Weak<LinearQueue>,
    linear: Arc<Linear>,
    carrier: Rc<Carrier>,
    children: Vec<Rc<dyn Queue>>,
    starts: Vec<u64>,
    block_shift: u8,
    reactor: Rc<Reactor>,
    split: Slab<Split>,
    /// Requests for parts, and lists of ranges, to be used again.
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    spare: RefCell<Vec<Box<Request>>>,
    lists: RefCell<Option<Box<List>>>,
}

/// Ranges for one child, in a chain of such lists: dealing them out allocates nothing.
struct List {
    child: usize,
    count: usize,
    bytes: [u8; LIST_BYTES],
    next: Option<Box<List>>,
}

impl Drop for List {
    /// One after the other: a chain may be longer than a stack is deep.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut list) = next {
            next = list.next.take();
        }
    }
}

/// A request whose parts are in flight.
struct Split {
    request: Box<Request>,
    left: usize,
    /// Of the first part that failed.
    status: Status,
    os_error: i32,
    /// Lists that parts point to.
    lists: Option<Box<List>>,
}

impl Queue for LinearQueue {
    #[inline]
    fn submit(&self, mut request: Box<Request>) {
        let command = &mut request.command;
        if addresses_blocks(command) && request.fused.is_none() {
            let slba = command.slba();
            let (child, end) = self.child_of(slba);
            if slba.saturating_add(u64::from(command.block_count())) <= end {
                command.set_slba(slba - self.starts[child]);
                return self.children[child].submit(request);
            }
            return self.split(request);
        }
        match command.opcode {
            _ if request.fused.is_some() => request.finish_pair(Status::INVALID_OPCODE.dnr()),
            opcode::FLUSH => self.to_all(request),
            opcode::DATASET_MANAGEMENT => self.split_ranges(request),
            opcode::COPY if matches!(request.data, Data::Sources(_)) => {
                self.carrier.submit(request);
            }
            // What is not known cannot be translated.
            _ => request.finish(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// That of the part that stands worst.
    fn access(&self) -> Access {
        self.children.iter().map(|child| child.access()).max().unwrap_or_default()
    }

    fn watch_access(&self, watcher: Weak<dyn AccessWatcher>) {
        self.children.iter().for_each(|child| child.watch_access(watcher.clone()));
    }

    fn forget(&self) {
        self.children.iter().for_each(|child| child.forget());
        self.carrier.forget();
        drop(self.split.clear());
    }
}

impl Sink for LinearQueue {
    /// A part has ended.
    fn completed(&self, mut part: Box<Request>, state: u64) {
        let (status, os_error) = (part.status, part.os_error);
        part.data = Data::None;
        self.spare.borrow_mut().push(part);
        let ended = self.split.with(state, |split| {
            if split.status.is_success() {
                (split.status, split.os_error) = (status, os_error);
            }
            split.left -= 1;
            split.left == 0
        });
        if ended {
            let Split { mut request, status, os_error, lists, .. } = self.split.take(state);
            self.give_back(lists);
            request.os_error = os_error;
            request.finish(status);
        }
    }
}

impl Linear {
    /// The child that block `slba` is in, its number there, and how many of `blocks` are in that child.
    fn within(&self, slba: u64, blocks: u64) -> (Arc<dyn Namespace>, u64, u64) {
        let next = self.children.partition_point(|child| child.start <= slba);
        let end = self.children.get(next).map_or(u64::MAX, |child| child.start);
        let child = &self.children[next - 1];
        (Arc::clone(&child.namespace), slba - child.start, blocks.min(end - slba))
    }
}

impl LinearQueue {
    /// The child that block `slba` is in, and where it ends.
    #[inline]
    fn child_of(&self, slba: u64) -> (usize, u64) {
        let next = self.starts.partition_point(|&start| start <= slba);
        (next - 1, self.starts.get(next).copied().unwrap_or(u64::MAX))
    }

    /// A list that is in no use.
    fn list(&self) -> Box<List> {
        let mut spare = self.lists.borrow_mut();
        let Some(mut list) = spare.take() else {
            return Box::new(List { child: 0, count: 0, bytes: [0; LIST_BYTES], next: None });
        };
        *spare = list.next.take();
        list
    }

    fn give_back(&self, mut lists: Option<Box<List>>) {
        let mut spare = self.lists.borrow_mut();
        while let Some(mut list) = lists {
            lists = list.next.take();
            list.next = spare.take();
            *spare = Some(list);
        }
    }

    fn begin(&self, request: Box<Request>, parts: usize, lists: Option<Box<List>>) -> u64 {
        let (left, status) = (parts, Status::SUCCESS);
        self.split.insert(Split { request, left, status, os_error: 0, lists })
    }

    /// A request for one part.
    fn part(&self, slot: u64, command: nvme::Command, data: Data) -> Box<Request> {
        let mut part = self.spare.borrow_mut().pop().unwrap_or_else(Request::new);
        part.command = command;
        part.data = data;
        (part.status, part.os_error, part.result) = (Status::SUCCESS, 0, 0);
        part.push(self.me.upgrade().expect("the queue lives while it is called"), slot);
        part
    }

    /// Splits a command that crosses a boundary.
    fn split(&self, mut request: Box<Request>) {
        let command = request.command;
        let total = u64::from(command.block_count());
        if command.opcode == opcode::READ && matches!(request.data, Data::None) {
            // Two places cannot be lent as one.
            let Some(buffer) =
                self.reactor.buffers().allocate((total as usize) << self.block_shift)
            else {
                return request.finish(Status::COMMAND_INTERRUPTED);
            };
            request.data = Data::Buffer(buffer);
        }
        let carries = matches!(command.opcode, opcode::READ | opcode::WRITE | opcode::COMPARE);
        assert!(!carries || request.data.len() as u64 == total << self.block_shift);
        let mut whole = Data::None;
        if carries {
            let len = request.data.len();
            // SAFETY: the original waits in its slot, with its data, until the last part has ended.
            whole = unsafe { request.data.piece(0, len) };
        }
        let slba = command.slba();
        let last = self.child_of(slba + total - 1).0;
        let first = self.child_of(slba).0;
        let slot = self.begin(request, last - first + 1, None);
        let mut done = 0;
        while done < total {
            let (child, end) = self.child_of(slba + done);
            let count = (end - slba - done).min(total - done);
            let mut piece = command;
            piece.set_slba(slba + done - self.starts[child]);
            let other = command.cdw12.get() & !0xffff;
            piece.cdw12 = (other | (count as u32 - 1)).into();
            let mut data = Data::None;
            if carries {
                let len = (count as usize) << self.block_shift;
                // SAFETY: as above.
                data = unsafe { whole.piece((done as usize) << self.block_shift, len) };
            }
            self.children[child].submit(self.part(slot, piece, data));
            done += count;
        }
    }

    /// Flush goes to every child.
    fn to_all(&self, request: Box<Request>) {
        let command = request.command;
        let slot = self.begin(request, self.children.len(), None);
        for child in &self.children {
            child.submit(self.part(slot, command, Data::None));
        }
    }

    /// Deals the ranges of Dataset Management to the children.
    fn split_ranges(&self, request: Box<Request>) {
        let (command, data) = (request.command, &request.data);
        // SAFETY: the request holds its data during this call.
        let ranges = unsafe { dataset::ranges(&command, data.as_ptr(), data.len(), u64::MAX) };
        let ranges = match ranges {
            Ok(ranges) => ranges,
            Err(status) => return request.finish(status.dnr()),
        };
        let (mut lists, mut parts) = (None, 0);
        // From the last on, so that the chain begins with the first.
        for child in (0..self.children.len()).rev() {
            let start = self.starts[child];
            let end = self.starts.get(child + 1).copied().unwrap_or(u64::MAX);
            let mut list = self.list();
            let mut count = 0;
            for range in ranges.clone() {
                let from = range.slba.max(start);
                let to = (range.slba + u64::from(range.blocks)).min(end);
                if from < to {
                    let (slba, blocks) = (from - start, (to - from) as u32);
                    let place = count * dataset::RANGE_BYTES;
                    list.bytes[place..place + dataset::RANGE_BYTES]
                        .copy_from_slice(&dataset::Range { slba, blocks, ..range }.to_bytes());
                    count += 1;
                }
            }
            if count == 0 {
                self.give_back(Some(list));
                continue;
            }
            (list.child, list.count, list.next) = (child, count, lists);
            (lists, parts) = (Some(list), parts + 1);
        }
        if parts == 0 {
            return request.finish(Status::SUCCESS);
        }
        let slot = self.begin(request, parts, lists);
        let first = |lists: &mut Option<Box<List>>| lists.as_deref_mut().map(std::ptr::from_mut);
        let mut at = self.split.with(slot, |split| first(&mut split.lists));
        while let Some(list) = at {
            // SAFETY: the lists stay where they are, in their slot, until the last part has ended, and that of this list has not begun.
            // Nobody else looks at them meanwhile.
            let list = unsafe { &mut *list };
            at = first(&mut list.next);
            let mut piece = command;
            piece.cdw10 = (list.count as u32 - 1).into();
            let bytes = list.count * dataset::RANGE_BYTES;
            // SAFETY: as above.
            let part = unsafe { Part::new(list.bytes.as_mut_ptr(), bytes, None) };
            self.children[list.child].submit(self.part(slot, piece, Data::Part(part)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There may be as many as commands outstanding, for each child.
    #[test]
    fn a_long_chain_of_lists_goes_on_a_small_stack() {
        let list =
            |next, child| Some(Box::new(List { child, count: 0, bytes: [0; LIST_BYTES], next }));
        let chain = move || (0..5_000).fold(None, list);
        let thread = std::thread::Builder::new().stack_size(64 << 10);
        thread.spawn(move || drop(chain())).expect("a thread").join().expect("no overflow");
    }
}
