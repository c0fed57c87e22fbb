//! Commands in flight, each in a place of its own that is used again: nothing is allocated per command.

use super::copy::{self, Ranges};
use super::groups::{Ended, Groups, Member, Outcome};
use super::places::{Freed, Places, fill};
use super::{Bytes, Done, Open, Reason, Rejected, Submission, VolumeId};
use namespace::copy::{Other, Sources};
use namespace::{Data, Part, Request, Sink};
use nvme::{Limits, Status, opcode};
use reactor::{BufferPool, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};

/// All places. It is the sink of every command, and knows no queue but through the places, so that nothing holds
/// itself.
pub(super) struct Flights {
    places: RefCell<Places>,
    /// Places of commands that have ended and are not told of: their group is.
    silent: RefCell<Vec<u32>>,
    in_flight: Cell<usize>,
    groups: Groups,
    /// Tells the session from others.
    session: u64,
    /// Its volumes, for Copies that name them by number. Those that have been closed are here as long as a Copy has them.
    opens: RefCell<Vec<(Weak<Open>, Weak<Other>)>>,
}

impl Flights {
    /// Places for `depth` commands.
    pub(super) fn new(depth: usize) -> Rc<Flights> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Rc::new(Flights {
            places: RefCell::new(Places::new(depth)),
            silent: RefCell::default(),
            in_flight: Cell::new(0),
            groups: Groups::default(),
            session: NEXT.fetch_add(1, Ordering::Relaxed),
            opens: RefCell::default(),
        })
    }

    /// A number that no other session has.
    pub(super) fn session(&self) -> u64 {
        self.session
    }

    /// Notes a volume of the session.
    pub(super) fn opened(&self, open: &Rc<Open>) {
        let mut opens = self.opens.borrow_mut();
        opens.retain(|(_, sides)| sides.strong_count() > 0);
        opens.push((Rc::downgrade(open), Rc::downgrade(&open.sides)));
    }

    /// The volume of this number.
    fn volume(&self, id: u32) -> Option<Rc<Open>> {
        let opens = self.opens.borrow();
        opens.iter().filter_map(|(open, _)| open.upgrade()).find(|open| open.id.0 == id)
    }

    /// Looks what the volumes are now, if that was long ago: a Copy may be from any of them.
    pub(super) fn look(&self, reactor: &Reactor) {
        let opens = self.opens.borrow();
        opens.iter().filter_map(|(open, _)| open.upgrade()).for_each(|open| open.look(reactor));
    }

    /// Commands that wait to be reaped.
    #[inline]
    pub(super) fn ready(&self) -> usize {
        self.places.borrow().ready()
    }

    /// Commands that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    pub(super) fn outstanding(&self) -> usize {
        self.in_flight() + self.ready()
    }

    /// How many commands could be started.
    pub(super) fn room(&self) -> usize {
        self.release_silent();
        self.places.borrow().room()
    }

    /// Begins a group of `count` commands; see [`Groups`].
    pub(super) fn begin(&self, count: u32, volume: VolumeId, is_private: bool) -> u32 {
        self.groups.begin(count, volume, is_private)
    }

    /// The outcome of a private group, once it has ended.
    pub(super) fn outcome(&self, group: u32) -> Option<Outcome> {
        self.groups.outcome(group)
    }

    /// Sends a command to `open`, or completes it with what is wrong with it.
    #[expect(clippy::result_large_err, reason = "the caller has the command and its memory back")]
    #[inline]
    pub(super) fn start(
        self: &Rc<Self>,
        open: &Rc<Open>,
        reactor: &Reactor,
        submission: Submission,
    ) -> Result<(), Rejected> {
        let free = self.places.borrow().free();
        let free = free.or_else(|| {
            self.release_silent();
            self.places.borrow().free()
        });
        let Some(index) = free else {
            return Err(Rejected { reason: Reason::Full, submission });
        };
        if copy::is_copy(&submission) {
            self.look(reactor);
            let limits = open.sides.namespace.limits();
            if limits.copy.is_offered() {
                return self.start_copy(open, index, submission, &limits);
            }
        }
        let checked = open.check(&submission, reactor);
        if let Ok(bytes) = checked
            && (is_misplaced(&submission, bytes, open.alignment)
                || open.is_scattered(&submission.data, bytes))
        {
            return self.start_copied(open, reactor, index, submission, bytes);
        }
        if checked.is_err() && submission.is_in_pieces() {
            return self.start_pieces(open, reactor, index, submission);
        }
        let admin = submission.admin;
        let mut places = self.places.borrow_mut();
        let place = places.begin(index);
        let mut request = place.take(open, submission);
        match checked {
            Ok(bytes) => place.lend(&mut request, bytes, reactor.buffers()),
            Err(status) => {
                drop(places);
                self.refuse(index, request, status);
                return Ok(());
            }
        }
        drop(places);
        self.send(open, index, request, admin);
        Ok(())
    }

    /// Sends a command whose data is in several pieces, or completes it with what is wrong with it.
    #[expect(clippy::result_large_err, reason = "the caller has the command and its memory back")]
    #[cold]
    fn start_pieces(
        self: &Rc<Self>,
        open: &Rc<Open>,
        reactor: &Reactor,
        index: u32,
        submission: Submission,
    ) -> Result<(), Rejected> {
        let checked = open.check_pieces(&submission, reactor);
        let as_they_are = open.takes_pieces(&submission);
        // What has to be copied is to have room in the pool.
        let fits = |bytes: &usize| as_they_are || *bytes <= BufferPool::buffer_len_max();
        let checked = checked.and_then(|bytes| match fits(&bytes) {
            true => Ok(bytes),
            false => Err(Status::INVALID_FIELD.dnr()),
        });
        if let Ok(bytes @ 1..) = checked
            && !as_they_are
        {
            return self.start_copied(open, reactor, index, submission, bytes);
        }
        let admin = submission.admin;
        let mut places = self.places.borrow_mut();
        let place = places.begin(index);
        let mut request = place.take(open, submission);
        match checked {
            Ok(bytes) => {
                place.lend(&mut request, 0, reactor.buffers());
                if let Bytes::Vectors(vectors) = &mut place.data
                    && bytes > 0
                {
                    // SAFETY: they rest in this place until the command was completed, or until nobody is left who
                    // could use them (`Flights::forget`); list and pieces do not move with it.
                    request.data = unsafe { vectors.lend() };
                }
                drop(places);
                self.send(open, index, request, admin);
            }
            Err(status) => {
                drop(places);
                self.refuse(index, request, status);
            }
        }
        Ok(())
    }

    /// Sends a command with memory of the pool in place of its own, of which the first `bytes` go down.
    #[expect(clippy::result_large_err, reason = "the caller has the command and its memory back")]
    #[inline(never)]
    fn start_copied(
        self: &Rc<Self>,
        open: &Rc<Open>,
        reactor: &Reactor,
        index: u32,
        submission: Submission,
        bytes: usize,
    ) -> Result<(), Rejected> {
        let Some(mut copy) = reactor.buffers().allocate(bytes) else {
            return Err(Rejected { reason: Reason::NoBuffer, submission });
        };
        // Others than Read may fill less than there is: the rest is to be what it was, not what the pool's last user left.
        let fills_all = submission.command.opcode == opcode::io::READ && !submission.admin;
        if !fills_all {
            // SAFETY: the data has as many bytes; the pool's memory is none of the caller's.
            unsafe { submission.data.copy_to(copy.as_mut_ptr(), copy.len()) };
        }
        let admin = submission.admin;
        let mut places = self.places.borrow_mut();
        let place = places.begin(index);
        let mut request = place.take(open, submission);
        place.lend(&mut request, 0, reactor.buffers());
        let (pointer, fixed) = (copy.as_mut_ptr(), copy.ensure_registered());
        (place.is_plain, place.copy) = (false, Some(copy));
        // SAFETY: the copy rests in this place until the command was completed, or until nobody is left who could use
        // it (`Flights::forget`); a buffer's bytes do not move with it.
        request.data = Data::Part(unsafe { Part::new(pointer, bytes, fixed) });
        drop(places);
        self.send(open, index, request, admin);
        Ok(())
    }

    /// Sends a Copy with its ranges, or completes it with what is wrong with it.
    #[expect(clippy::result_large_err, reason = "the caller has the command and its memory back")]
    fn start_copy(
        self: &Rc<Self>,
        open: &Rc<Open>,
        index: u32,
        mut submission: Submission,
        limits: &Limits,
    ) -> Result<(), Rejected> {
        let ranges = match copy::take_ranges(&mut submission) {
            Some(ranges) if !ranges.is_of(self.session) => {
                submission.data = Bytes::Ranges(ranges);
                return Err(Rejected { reason: Reason::Foreign, submission });
            }
            ranges => ranges,
        };
        let sdlba = submission.command.slba();
        let returns_ranges = ranges.is_some();
        let (mut sources, read) = match ranges {
            Some(ranges) => (ranges.into_sources(), Ok(())),
            None => {
                let spare = self.places.borrow_mut().at(index).sources.take();
                let mut sources = spare.unwrap_or_default();
                let read = copy::read(&submission, open, &mut sources, |id| self.volume(id));
                (sources, read)
            }
        };
        let checked = read.and_then(|()| copy::check(&mut sources, open, limits, sdlba));
        self.launch(open, index, submission, sources, checked, returns_ranges, None);
        Ok(())
    }

    /// Sends a Copy that is one of a group, of ranges of this session: the number of places was looked at before.
    pub(super) fn start_member(
        self: &Rc<Self>,
        open: &Rc<Open>,
        submission: Submission,
        ranges: &Ranges,
        member: Member,
    ) {
        let index = self.places.borrow().free().expect("there is room");
        let spare = self.places.borrow_mut().at(index).sources.take();
        let mut sources = spare.unwrap_or_default();
        ranges.clone_into(&mut sources);
        let limits = open.sides.namespace.limits();
        let checked = match limits.copy.is_offered() {
            true => copy::check(&mut sources, open, &limits, submission.command.slba()),
            false => Err(Status::INVALID_OPCODE.dnr()),
        };
        self.launch(open, index, submission, sources, checked, false, Some(member));
    }

    #[expect(clippy::too_many_arguments, reason = "one function for what both kinds of Copy share")]
    fn launch(
        self: &Rc<Self>,
        open: &Rc<Open>,
        index: u32,
        submission: Submission,
        sources: Box<Sources>,
        checked: Result<(), Status>,
        returns_ranges: bool,
        member: Option<Member>,
    ) {
        let mut places = self.places.borrow_mut();
        let place = places.begin(index);
        let mut request = place.take(open, submission);
        (place.returns_ranges, place.member) = (returns_ranges, member);
        match checked {
            Ok(()) => {
                request.data = Data::Sources(sources);
                drop(places);
                self.send(open, index, request, false);
            }
            Err(status) => {
                place.sources = Some(sources);
                drop(places);
                self.refuse(index, request, status);
            }
        }
    }

    /// Takes what a request has brought back. Ranges are let go of when nothing is borrowed: they may be the last of a
    /// volume.
    #[inline(never)]
    fn take_back(&self, request: &mut Request, index: u64) {
        for data in [&mut request.data, &mut request.metadata] {
            if let Data::Sources(sources) = std::mem::take(data) {
                self.places.borrow_mut().at(index as u32).sources = Some(sources);
            }
        }
    }

    #[inline]
    fn send(self: &Rc<Self>, open: &Open, index: u32, mut request: Box<Request>, admin: bool) {
        self.in_flight.set(self.in_flight.get() + 1);
        request.push(Rc::clone(self) as Rc<dyn Sink>, u64::from(index));
        if admin {
            open.sides.queue.submit_admin(request)
        } else {
            open.sides.queue.submit(request)
        }
    }

    /// Completes what was not sent.
    fn refuse(&self, index: u32, mut request: Box<Request>, status: Status) {
        request.status = status;
        self.ended(index, request);
    }

    /// A command has ended: it waits to be reaped, or with others for the end of their group.
    #[inline]
    fn ended(&self, index: u32, request: Box<Request>) {
        let mut places = self.places.borrow_mut();
        let place = places.at(index);
        debug_assert!(place.request.is_none(), "it was below");
        if place.is_plain {
            fill(&mut place.request, Some(request));
            return places.end(index);
        }
        drop(places);
        self.ended_whole(index, request);
    }

    /// The same of a command that is more than plain.
    #[inline(never)]
    fn ended_whole(&self, index: u32, request: Box<Request>) {
        let mut places = self.places.borrow_mut();
        let place = places.at(index);
        let (status, result) = (request.status, request.result);
        place.request = Some(request);
        if let Some(member) = place.member.take() {
            let volume = place.open.as_ref().map_or(VolumeId(0), |open| open.id);
            match self.groups.ended(member, volume, status, result) {
                Ended::Whole(outcome) => place.outcome = Some(outcome),
                Ended::Others | Ended::Kept => {
                    drop(places);
                    self.silent.borrow_mut().push(index);
                    return;
                }
            }
        }
        places.end(index);
    }

    /// Makes the places free of commands that nobody reaps.
    #[inline]
    fn release_silent(&self) {
        if !self.silent.borrow().is_empty() {
            self.release_all_silent();
        }
    }

    #[cold]
    fn release_all_silent(&self) {
        loop {
            let Some(index) = self.silent.borrow_mut().pop() else { return };
            let (ended, freed) = self.places.borrow_mut().at(index).give_back();
            self.release(index, freed);
            drop(ended);
        }
    }

    /// Lets go of what a place held, and makes it free.
    #[inline]
    fn release(&self, index: u32, freed: Freed) {
        drop(freed.open);
        if let Some(mut sources) = freed.sources {
            sources.ranges.clear();
            self.places.borrow_mut().at(index).sources = Some(sources);
        }
        self.places.borrow_mut().release(index);
    }

    /// Appends at most `most` commands that have ended to `done`, and makes their places free.
    pub(super) fn take(&self, done: &mut Vec<Done>, most: usize) -> usize {
        self.release_silent();
        let count = self.ready().min(most);
        done.reserve(count);
        done.extend(std::iter::from_fn(|| self.take_one()).take(count));
        count
    }

    /// Takes the command that has ended first, and makes its place free.
    #[inline]
    pub(super) fn take_one(&self) -> Option<Done> {
        // Dropped when nothing is borrowed any more: it may be the last of a volume that was dropped.
        let open;
        let mut places = self.places.borrow_mut();
        let index = places.take_ended()?;
        if !places.at(index).is_plain {
            drop(places);
            return Some(self.take_whole(index));
        }
        places.release(index);
        let place = places.at(index);
        open = place.open.take().expect("a command that was taken has its volume");
        Some(place.give_back_plain(open.id))
    }

    /// Takes a command that is more than plain, and makes its place free.
    #[inline(never)]
    fn take_whole(&self, index: u32) -> Done {
        let (mut ended, mut freed) = self.places.borrow_mut().at(index).give_back();
        if freed.returns_ranges
            && let Some(sources) = freed.sources.take()
        {
            ended.data = Bytes::Ranges(Ranges::from_sources(sources));
        }
        self.release(index, freed);
        ended
    }

    /// Frees the memory of everything. The reactor has ended, so that nobody else is at it.
    pub(super) fn forget(&self) {
        // All, since what one waits for may wait in another; and before any is dropped.
        let sides = self.opens.take().into_iter().filter_map(|(_, sides)| sides.upgrade());
        let sides: Vec<Rc<Other>> = sides.collect();
        sides.iter().for_each(|sides| sides.queue.forget());
        let count = self.places.borrow().count();
        for index in 0..count {
            // Queues first, when nothing is borrowed: they may complete what they still hold.
            let (open, sources) = {
                let mut places = self.places.borrow_mut();
                let place = places.at(index);
                (place.open.take(), place.sources.take())
            };
            drop((open, sources));
        }
        drop(sides);
        for index in 0..count {
            let place = std::mem::take(self.places.borrow_mut().at(index));
            drop(place);
        }
    }
}

impl Sink for Flights {
    #[inline]
    fn completed(&self, mut request: Box<Request>, state: u64) {
        let is_light = |data: &Data| matches!(data, Data::None | Data::Part(_));
        if is_light(&request.data) && is_light(&request.metadata) {
            // Nothing to be dropped.
            fill(&mut request.data, Data::None);
            fill(&mut request.metadata, Data::None);
        } else {
            self.take_back(&mut request, state);
        }
        self.in_flight.set(self.in_flight.get() - 1);
        self.ended(state as u32, request);
    }
}

/// Whether the command's memory lies where its volume's file cannot take it.
#[inline]
fn is_misplaced(submission: &Submission, bytes: usize, alignment: usize) -> bool {
    let transfers = || {
        matches!(
            submission.command.opcode,
            opcode::io::READ | opcode::io::WRITE | opcode::io::COMPARE
        )
    };
    alignment > 1
        && bytes > 0
        && !submission.admin
        && transfers()
        && !submission.data.as_ptr().addr().is_multiple_of(alignment)
}
