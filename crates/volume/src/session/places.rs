//! The places of commands. Those that are free, and those of commands that have ended, are lists through the places themselves.

use super::check::NSID;
use super::groups::{Member, Outcome};
use super::{Bytes, Done, Open, Submission, VolumeId};
use namespace::copy::Sources;
use namespace::{Data, Part, Request};
use nvme::{Status, opcode};
use reactor::{Buffer, BufferPool};
use std::rc::Rc;

/// The bit of an opcode that tells that data goes to the host (NVMe Base 2.1, Figure 91).
const READS: u8 = 2;

/// No place.
const NONE: u32 = u32::MAX;

/// All of them.
pub(super) struct Places {
    all: Vec<Place>,
    /// The free place that is taken next, and how many there are.
    free: u32,
    room: usize,
    /// Of commands that have ended, in that order: the first, the last, how many.
    first: u32,
    last: u32,
    ready: usize,
}

/// A command, from submission until it is reaped.
#[derive(Default)]
pub(super) struct Place {
    /// Rests here between commands, and after a command has ended.
    pub(super) request: Option<Box<Request>>,
    /// Keeps the queue while a command of it is in flight.
    pub(super) open: Option<Rc<Open>>,
    pub(super) token: u64,
    pub(super) data: Bytes,
    pub(super) metadata: Bytes,
    /// What stands in for `data` that lies badly.
    pub(super) copy: Option<Buffer>,
    /// Rests here between Copies that come as bytes.
    pub(super) sources: Option<Box<Sources>>,
    /// The Copy has come with ranges, and they go back to who submitted it.
    pub(super) returns_ranges: bool,
    pub(super) member: Option<Member>,
    /// What is told of the whole group.
    pub(super) outcome: Option<Outcome>,
    /// Of all that, the command has no more than its request, volume, token, data and metadata.
    pub(super) is_plain: bool,
    /// The place after it in its list, [`NONE`] of the last.
    next: u32,
}

/// What a place lets go of; nothing may be borrowed then, as it may be the last of a volume that was dropped.
#[derive(Default)]
pub(super) struct Freed {
    pub(super) open: Option<Rc<Open>>,
    pub(super) sources: Option<Box<Sources>>,
    /// They go back to who has submitted them.
    pub(super) returns_ranges: bool,
}

impl Places {
    /// Places for `depth` commands, the lowest first, as they are warm.
    pub(super) fn new(depth: usize) -> Places {
        let place = |next| Place { request: Some(Request::new()), next, ..Place::default() };
        let mut all: Vec<Place> = (1..=depth as u32).map(place).collect();
        if let Some(last) = all.last_mut() {
            last.next = NONE;
        }
        let free = if all.is_empty() { NONE } else { 0 };
        Places { all, free, room: depth, first: NONE, last: NONE, ready: 0 }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        self.all.len() as u32
    }

    /// How many are free.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// How many hold commands that have ended and wait to be taken.
    #[inline]
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    /// One of them.
    #[inline]
    pub(super) fn at(&mut self, index: u32) -> &mut Place {
        &mut self.all[index as usize]
    }

    /// The free place that is to be used next.
    #[inline]
    pub(super) fn free(&self) -> Option<u32> {
        (self.free != NONE).then_some(self.free)
    }

    /// That place is used from now on.
    #[inline]
    pub(super) fn begin(&mut self, index: u32) -> &mut Place {
        assert_eq!(index, self.free, "the place that was to be used next");
        let place = &mut self.all[index as usize];
        self.free = place.next;
        self.room -= 1;
        place
    }

    /// The place is free again.
    #[inline]
    pub(super) fn release(&mut self, index: u32) {
        self.all[index as usize].next = self.free;
        self.free = index;
        self.room += 1;
    }

    /// The command there has ended, and waits to be taken.
    #[inline]
    pub(super) fn end(&mut self, index: u32) {
        self.all[index as usize].next = NONE;
        match self.last {
            NONE => self.first = index,
            last => self.all[last as usize].next = index,
        }
        self.last = index;
        self.ready += 1;
    }

    /// Takes the one that has ended first out of the list.
    #[inline]
    pub(super) fn take_ended(&mut self) -> Option<u32> {
        let index = self.first;
        if index == NONE {
            return None;
        }
        self.first = self.all[index as usize].next;
        if self.first == NONE {
            self.last = NONE;
        }
        self.ready -= 1;
        Some(index)
    }
}

impl Place {
    /// Takes in a command; gives the request that is to carry it.
    #[inline]
    pub(super) fn take(&mut self, open: &Rc<Open>, submission: Submission) -> Box<Request> {
        debug_assert!(self.is_empty(), "a free place has nothing but its request");
        self.is_plain = submission.command.opcode != opcode::io::COPY;
        fill(&mut self.data, submission.data);
        fill(&mut self.metadata, submission.metadata);
        fill(&mut self.open, Some(Rc::clone(open)));
        self.token = submission.token;
        let mut request = self.request.take().expect("a free place has its request");
        request.command = submission.command;
        if !submission.admin {
            request.command.nsid = NSID.into();
        }
        request.timeout_ms = submission.timeout_ms;
        (request.status, request.result) = (Status::SUCCESS, 0);
        request
    }

    /// Whether it holds nothing of a command.
    pub(super) fn is_empty(&self) -> bool {
        let has_memory = !matches!((&self.data, &self.metadata), (Bytes::None, Bytes::None));
        !has_memory && self.copy.is_none() && self.open.is_none()
    }

    /// Gives the request the first `bytes` of the data, and the metadata.
    #[inline]
    pub(super) fn lend(&mut self, request: &mut Request, bytes: usize, pool: &BufferPool) {
        debug_assert!(matches!((&request.data, &request.metadata), (Data::None, Data::None)));
        // SAFETY: the memory rests in this place until the command was completed, or until nobody is left who
        // could use it (`Flights::forget`); a vector's bytes do not move with it.
        unsafe {
            if bytes > 0 {
                let (pointer, fixed) = self.data.place(pool);
                fill(&mut request.data, Data::Part(Part::new(pointer, bytes, fixed)));
            }
            let len = match &self.metadata {
                // Of commands that have none, or they would have been refused.
                Bytes::None | Bytes::Vectors(_) => 0,
                metadata => metadata.piece_len(),
            };
            if len > 0 {
                let (pointer, fixed) = self.metadata.place(pool);
                fill(&mut request.metadata, Data::Part(Part::new(pointer, len, fixed)));
            }
        }
    }

    /// What became of a command on `volume` that is nothing but plain.
    #[inline]
    pub(super) fn give_back_plain(&mut self, volume: VolumeId) -> Done {
        let request = self.request.as_ref().expect("a command that has ended is back");
        Done {
            volume,
            token: self.token,
            status: request.status,
            result: request.result,
            data: std::mem::take(&mut self.data),
            metadata: std::mem::take(&mut self.metadata),
        }
    }

    /// What became of the command, and what the place lets go of.
    pub(super) fn give_back(&mut self) -> (Done, Freed) {
        let request = self.request.as_ref().expect("a command that has ended is back");
        let (mut status, mut result) = (request.status, request.result);
        let is_copy = request.command.opcode == opcode::io::COPY;
        let mut data = std::mem::take(&mut self.data);
        if let Some(copy) = self.copy.take()
            && status.is_success()
            && request.command.opcode & READS != 0
        {
            // SAFETY: the data has as many bytes; the pool's memory is none of the caller's.
            unsafe { data.copy_from(copy.as_ptr(), copy.len()) };
        }
        let open = self.open.take();
        let mut volume = open.as_ref().map_or(VolumeId(0), |open| open.id);
        if let Some(outcome) = self.outcome.take() {
            (status, result) = (outcome.status, u64::from(outcome.failed));
            volume = outcome.volume;
        }
        let returns_ranges = std::mem::take(&mut self.returns_ranges);
        let metadata = std::mem::take(&mut self.metadata);
        // The room for ranges rests here meanwhile.
        let sources = if is_copy { self.sources.take() } else { None };
        (
            Done { volume, token: self.token, status, result, data, metadata },
            Freed { open, sources, returns_ranges },
        )
    }
}

/// Puts `value` where nothing is that would have to be dropped: it is not looked for.
#[inline]
pub(super) fn fill<T>(place: &mut T, value: T) {
    std::mem::forget(std::mem::replace(place, value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// As a stack of free places and a queue of ended ones would have it.
    #[test]
    fn places_are_used_again_last_first_and_taken_first_first() {
        for depth in 0..4 {
            let mut places = Places::new(depth);
            let mut free: Vec<u32> = (0..depth as u32).rev().collect();
            let (mut used, mut ended) = (Vec::new(), VecDeque::new());
            let mut random = 1_u32;
            for _ in 0..500 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                assert_eq!(places.free(), free.last().copied());
                assert_eq!((places.room(), places.ready()), (free.len(), ended.len()));
                match random >> 30 {
                    0 if places.free().is_some() => {
                        let index = free.pop().expect("as there");
                        places.begin(index);
                        used.push(index);
                    }
                    1 if !used.is_empty() => {
                        let index = used.swap_remove((random >> 8) as usize % used.len());
                        places.end(index);
                        ended.push_back(index);
                    }
                    2 if !used.is_empty() => {
                        let index = used.pop().expect("one");
                        places.release(index);
                        free.push(index);
                    }
                    _ => {
                        let index = places.take_ended();
                        assert_eq!(index, ended.pop_front());
                        if let Some(index) = index {
                            places.release(index);
                            free.push(index);
                        }
                    }
                }
            }
        }
    }
}
