//! Commands in flight, each in a place of its own that is used again: nothing is allocated per command.

use super::check::NSID;
use super::{Bytes, Done, Open, Reason, Rejected, Submission, VolumeId};
use namespace::{Data, Part, Request, Sink};
use nvme::{Status, opcode};
use reactor::{Buffer, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

/// Bits of an opcode that tell which way its data goes (NVMe Base 2.1, Figure 91): to the controller, to the host.
const WRITES: u8 = 1;
const READS: u8 = 2;

/// All places. It is the sink of every command, and knows no queue but through the places, so that nothing holds
/// itself.
pub(super) struct Flights {
    me: Weak<Flights>,
    places: RefCell<Vec<Place>>,
    free: RefCell<Vec<u32>>,
    /// Places of commands that have ended, in that order.
    ready: RefCell<VecDeque<u32>>,
    in_flight: Cell<usize>,
}

/// A command, from submission until it is reaped.
#[derive(Default)]
struct Place {
    /// Rests here between commands, and after a command has ended.
    request: Option<Box<Request>>,
    /// Keeps the queue while a command of it is in flight.
    open: Option<Rc<Open>>,
    token: u64,
    data: Bytes,
    metadata: Bytes,
    /// What stands in for `data` that lies badly.
    copy: Option<Buffer>,
}

impl Flights {
    /// Places for `depth` commands.
    pub(super) fn new(depth: usize) -> Rc<Flights> {
        let place = |_| Place { request: Some(Request::new()), ..Place::default() };
        Rc::new_cyclic(|me| Flights {
            me: me.clone(),
            places: RefCell::new((0..depth).map(place).collect()),
            // The lowest first, as they are warm.
            free: RefCell::new((0..depth as u32).rev().collect()),
            ready: RefCell::new(VecDeque::with_capacity(depth)),
            in_flight: Cell::new(0),
        })
    }

    /// Commands that wait to be reaped.
    pub(super) fn ready(&self) -> usize {
        self.ready.borrow().len()
    }

    /// Commands that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    pub(super) fn outstanding(&self) -> usize {
        self.in_flight() + self.ready()
    }

    /// Sends a command to `open`, or completes it with what is wrong with it.
    #[expect(clippy::result_large_err, reason = "the caller has the command and its memory back")]
    #[inline]
    pub(super) fn start(
        &self,
        open: &Rc<Open>,
        reactor: &Reactor,
        submission: Submission,
    ) -> Result<(), Rejected> {
        let Some(&index) = self.free.borrow().last() else {
            return Err(Rejected { reason: Reason::Full, submission });
        };
        let checked = open.check(&submission, reactor.now());
        let mut copy = None;
        if let Ok(bytes) = checked
            && is_misplaced(&submission, bytes, open.alignment)
        {
            copy = reactor.buffers().allocate(bytes);
            if copy.is_none() {
                return Err(Rejected { reason: Reason::NoBuffer, submission });
            }
        }
        self.free.borrow_mut().pop();
        let admin = submission.admin;
        let mut places = self.places.borrow_mut();
        let place = &mut places[index as usize];
        let mut request = place.take(open, submission, copy);
        match checked {
            Ok(bytes) => place.lend(&mut request, bytes),
            Err(status) => {
                request.status = status;
                place.request = Some(request);
                self.ready.borrow_mut().push_back(index);
                return Ok(());
            }
        }
        drop(places);
        self.in_flight.set(self.in_flight.get() + 1);
        request.push(self.me.upgrade().expect("the session has it"), u64::from(index));
        if admin {
            open.queue.submit_admin(request)
        } else {
            open.queue.submit(request)
        }
        Ok(())
    }

    /// Appends at most `most` commands that have ended to `done`, and makes their places free.
    pub(super) fn take(&self, done: &mut Vec<Done>, most: usize) -> usize {
        let mut count = 0;
        while count < most {
            let Some(index) = self.ready.borrow_mut().pop_front() else { break };
            let (ended, open) = self.places.borrow_mut()[index as usize].give_back();
            self.free.borrow_mut().push(index);
            done.push(ended);
            count += 1;
            // When nothing is borrowed: it may be the last command of a volume that was dropped.
            drop(open);
        }
        count
    }

    /// Frees the memory of everything. The reactor has ended, so that nobody else is at it.
    pub(super) fn forget(&self) {
        let count = self.places.borrow().len();
        for index in 0..count {
            // Queues first, when nothing is borrowed: they may complete what they still hold.
            let open = self.places.borrow_mut()[index].open.take();
            drop(open);
        }
        for index in 0..count {
            let place = std::mem::take(&mut self.places.borrow_mut()[index]);
            drop(place);
        }
    }
}

impl Sink for Flights {
    #[inline]
    fn completed(&self, mut request: Box<Request>, state: u64) {
        (request.data, request.metadata) = (Data::None, Data::None);
        self.places.borrow_mut()[state as usize].request = Some(request);
        self.ready.borrow_mut().push_back(state as u32);
        self.in_flight.set(self.in_flight.get() - 1);
    }
}

impl Place {
    /// Takes in a command; gives the request that is to carry it.
    #[inline]
    fn take(
        &mut self,
        open: &Rc<Open>,
        submission: Submission,
        mut copy: Option<Buffer>,
    ) -> Box<Request> {
        if let Some(copy) = &mut copy
            && submission.command.opcode & WRITES != 0
        {
            let mut data = submission.data;
            // SAFETY: the data has as many bytes; the pool's memory is none of the caller's.
            unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(data.as_mut_ptr(), copy.len()) };
            self.data = data;
        } else {
            self.data = submission.data;
        }
        self.copy = copy;
        self.metadata = submission.metadata;
        self.token = submission.token;
        self.open = Some(Rc::clone(open));
        let mut request = self.request.take().expect("a free place has its request");
        request.command = submission.command;
        if !submission.admin {
            request.command.nsid = NSID.into();
        }
        request.timeout_ms = submission.timeout_ms;
        (request.status, request.result) = (Status::SUCCESS, 0);
        request
    }

    /// Gives the request the first `bytes` of the data, and the metadata.
    #[inline]
    fn lend(&mut self, request: &mut Request, bytes: usize) {
        // SAFETY: the memory rests in this place until the command was completed, or until nobody is left who
        // could use it (`Flights::forget`); a vector's bytes do not move with it.
        unsafe {
            if let Some(copy) = &mut self.copy {
                let fixed = copy.ensure_registered();
                request.data = Data::Part(Part::new(copy.as_mut_ptr(), bytes, fixed));
            } else if bytes > 0 {
                let fixed = self.data.fixed_index();
                request.data = Data::Part(Part::new(self.data.as_mut_ptr(), bytes, fixed));
            }
            if !self.metadata.is_empty() {
                let fixed = self.metadata.fixed_index();
                let (pointer, len) = (self.metadata.as_mut_ptr(), self.metadata.len());
                request.metadata = Data::Part(Part::new(pointer, len, fixed));
            }
        }
    }

    /// What became of the command, and the volume it went to; the place is free then.
    #[inline]
    fn give_back(&mut self) -> (Done, Option<Rc<Open>>) {
        let request = self.request.as_ref().expect("a command that has ended is back");
        let (status, result) = (request.status, request.result);
        let mut data = std::mem::take(&mut self.data);
        if let Some(copy) = self.copy.take()
            && status.is_success()
            && request.command.opcode & READS != 0
        {
            // SAFETY: the data has as many bytes; the pool's memory is none of the caller's.
            unsafe { data.as_mut_ptr().copy_from_nonoverlapping(copy.as_ptr(), copy.len()) };
        }
        let open = self.open.take();
        let volume = open.as_ref().map_or(VolumeId(0), |open| open.id);
        let metadata = std::mem::take(&mut self.metadata);
        (Done { volume, token: self.token, status, result, data, metadata }, open)
    }
}

/// Whether the command's memory lies where its volume's file cannot take it.
#[inline]
fn is_misplaced(submission: &Submission, bytes: usize, alignment: usize) -> bool {
    let transfers = matches!(
        submission.command.opcode,
        opcode::io::READ | opcode::io::WRITE | opcode::io::COMPARE
    );
    alignment > 1
        && bytes > 0
        && transfers
        && !submission.admin
        && !submission.data.as_ptr().addr().is_multiple_of(alignment)
}
