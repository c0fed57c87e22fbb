//! One core's way through a program.

use super::Routed;
use super::blank::{Blank, ZEROES};
use super::change::Told;
use super::copies::Copies;
use super::flight::{Flight, Flights, Piece};
use super::loaded::{Loaded, now_ns, seed};
use crate::wake::{Wake, Waker};
use crate::{Access, AccessWatcher, Data, Queue, Request, Sink, dataset};
use bpf::actions::{self, Asked, Decision, Misuse, MisuseKind, Plan, Then};
use bpf::request::{self, Backend, Part};
use bpf::{Entry, Fault, Machine};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::{Complete, Reactor};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// In the state of a frame: the request itself went down, there are no parts. The tag is in bits 31:0, the
/// part in 39:32, the backend in 47:40.
const DIRECT: u64 = 1 << 63;
/// The request is of a Copy, which has the tag: only the backend is noted.
const OF_COPY: u64 = 1 << 62;

/// In the token of a command that lets others have a turn before its next piece; the tag is in bits 31:0.
const NEXT_PIECE: u64 = 1 << 33;
/// Pieces of a command that are worked on in one turn: each may end while it is sent, and one of 256 ranges has a million.
const PIECES_PER_TURN: u32 = 64;

/// One core's way through a program.
pub struct ProgramQueue {
    pub(super) me: Weak<ProgramQueue>,
    pub(super) routed: Arc<Routed>,
    children: Vec<Rc<dyn Queue>>,
    pub(super) reactor: Rc<Reactor>,
    waker: Waker,
    /// The program that this core runs.
    pub(super) loaded: RefCell<Arc<Loaded>>,
    pub(super) facts: Cell<Facts>,
    gate: Cell<Gate>,
    /// What has come while the gate was closed.
    held: RefCell<VecDeque<Box<Request>>>,
    pub(super) inner: RefCell<Inner>,
    pub(super) flights: Flights,
    pub(super) copies: Copies,
    /// What zeroes are read from; opened when they are first wanted.
    pub(super) zeroes: OnceCell<Option<File>>,
    /// Requests for parts, to be used again.
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    spare: RefCell<Vec<Box<Request>>>,
}

/// What is asked of the program for every request.
#[derive(Clone, Copy)]
pub(super) struct Facts {
    pub(super) route: Entry,
    done: Option<Entry>,
    deferred: Option<Entry>,
    pub(super) blocks_max: u32,
}

impl Facts {
    fn of(loaded: &Loaded) -> Facts {
        let program = loaded.instance.program();
        let blocks_max = loaded.device.blocks_max;
        let (route, done, deferred) = (program.route(), program.done(), program.deferred());
        Facts { route, done, deferred, blocks_max }
    }
}

/// Whether requests are let in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    /// The program is being replaced, in the pause of this number.
    Closed(u64),
    /// It has been; what was held back goes first.
    Opening,
}

pub(super) struct Inner {
    core: u32,
    machine: Machine,
    pub(super) context: request::Request,
    /// Parts with each backend.
    in_flight: Vec<u32>,
}

/// The program has done something wrong; it is in the log.
pub(super) struct Wrong;

/// What a program has done wrong.
pub(super) enum Mistake {
    Fault(Fault),
    Misuse(Misuse),
}

/// What is to be done with a flight next.
pub(super) enum Next {
    /// The next piece is the program's to route.
    Route,
    /// The program has decided.
    Carry(Result<Plan, Wrong>),
    /// Parts and end are in the flight, and the delay is over.
    Perform,
    /// All parts have ended.
    Ended,
}

impl ProgramQueue {
    /// A queue for core `core` over `children`.
    pub fn open(
        routed: Arc<Routed>,
        core: u32,
        children: Vec<Rc<dyn Queue>>,
        reactor: &Rc<Reactor>,
    ) -> Rc<ProgramQueue> {
        let context = request::Request {
            device_blocks: routed.device.blocks,
            block_shift: routed.device.block_shift,
            backends: children.len() as u16,
            place: request::IN_USER_SPACE,
            ..request::Request::default()
        };
        let in_flight = vec![0; children.len()];
        Rc::new_cyclic(|me: &Weak<ProgramQueue>| {
            let waker = Waker::new(reactor, me.clone() as Weak<dyn Wake>);
            let (loaded, pause) = routed.programs.join(Arc::new(waker.clone()));
            let machine = Machine::new(Arc::clone(&loaded.instance), core, seed());
            ProgramQueue {
                me: me.clone(),
                copies: Copies::new(me, reactor, &children, routed.device.block_shift),
                routed,
                children,
                reactor: Rc::clone(reactor),
                waker,
                facts: Cell::new(Facts::of(&loaded)),
                loaded: RefCell::new(loaded),
                gate: Cell::new(pause.map_or(Gate::Open, Gate::Closed)),
                held: RefCell::default(),
                inner: RefCell::new(Inner { core, machine, context, in_flight }),
                flights: Flights::default(),
                zeroes: OnceCell::new(),
                spare: RefCell::default(),
            }
        })
    }

    /// Runs the program from `entry` on, and NVLANE_DEFERRED if that defers.
    fn run(
        &self,
        entry: Entry,
        tag: u32,
        command: &Command,
        flight: &mut Flight,
    ) -> Result<Plan, Wrong> {
        let deferred = self.facts.get().deferred;
        match self.run_once(entry, deferred.is_some(), tag, command, flight)? {
            Decision::Plan(plan) => Ok(plan),
            Decision::Deferred => self.run_deferred(tag, command, flight),
        }
    }

    /// Has NVLANE_DEFERRED decide.
    #[cold]
    fn run_deferred(
        &self,
        tag: u32,
        command: &Command,
        flight: &mut Flight,
    ) -> Result<Plan, Wrong> {
        let entry = self.facts.get().deferred.expect("nobody defers without it");
        match self.run_once(entry, false, tag, command, flight)? {
            Decision::Plan(plan) => Ok(plan),
            Decision::Deferred => unreachable!("it may not defer"),
        }
    }

    #[inline]
    fn run_once(
        &self,
        entry: Entry,
        may_defer: bool,
        tag: u32,
        command: &Command,
        flight: &mut Flight,
    ) -> Result<Decision, Wrong> {
        self.decide(entry, may_defer, tag, command, flight).map_err(|mistake| {
            self.tell(entry, &mistake, command.opcode, flight.piece);
            Wrong
        })
    }

    /// Runs the program and checks what it wants. What it does wrong nobody is told.
    #[inline]
    pub(super) fn decide(
        &self,
        entry: Entry,
        may_defer: bool,
        tag: u32,
        command: &Command,
        flight: &mut Flight,
    ) -> Result<Decision, Mistake> {
        let Routed { device, sizes, .. } = &*self.routed;
        let Inner { machine, context, in_flight, .. } = &mut *self.inner.borrow_mut();
        let Flight { piece, phase, failed, status, state, is_whole, .. } = flight;
        // The program may have overwritten any of it.
        context.clear_actions();
        context.start = piece.start;
        context.blocks = piece.blocks;
        context.op = command.opcode;
        context.flags = flags(command);
        context.tag = tag;
        context.device_blocks = device.blocks;
        context.block_shift = device.block_shift;
        context.backends = sizes.len() as u16;
        context.place = request::IN_USER_SPACE;
        context.phase = *phase;
        context.failed = *failed;
        context.status = status.code().0;
        context.state = *state;
        for ((backend, blocks), in_flight) in context.backend.iter_mut().zip(sizes).zip(in_flight) {
            *backend = Backend { blocks: *blocks, in_flight: *in_flight, flags: 0 };
        }
        let (blocks, is_whole) = (piece.blocks, *is_whole);
        let phase = *phase;
        let asked = Asked { op: command.opcode, blocks, sizes, phase, is_whole, may_defer };
        let ran = machine.run(entry, context.as_mut_bytes(), &now_ns);
        *state = context.state;
        let misuse = match ran {
            Ok(result) if result as u32 == 0 => match actions::check(context, &asked) {
                Ok(outcome) => return Ok(outcome),
                Err(misuse) => misuse,
            },
            Ok(result) => Misuse { kind: MisuseKind::Returned(result as i32), line: 0 },
            Err(fault) => return Err(Mistake::Fault(fault)),
        };
        Err(Mistake::Misuse(misuse))
    }

    /// Puts what went wrong into the log.
    #[cold]
    fn tell(&self, entry: Entry, mistake: &Mistake, opcode: u8, piece: Piece) {
        let loaded = &**self.loaded.borrow();
        let program = loaded.instance.program();
        let Piece { start, blocks, .. } = piece;
        loaded.mistakes.tell(&loaded.name, &|| {
            let (place, what) = match mistake {
                Mistake::Fault(fault) => {
                    (program.locate(fault.instruction), fault.kind.to_string())
                }
                Mistake::Misuse(misuse) => {
                    (program.place_of_line(entry, misuse.line), misuse.kind.to_string())
                }
            };
            format!("{place}: {what} (opcode {opcode:#04x}, {blocks} blocks at {start})")
        });
    }

    /// Takes a flight as far as it goes now.
    pub(super) fn drive(&self, tag: u32, mut next: Next) {
        let Facts { route, done, blocks_max, .. } = self.facts.get();
        let mut pieces = 0;
        loop {
            next = match next {
                Next::Route if pieces == PIECES_PER_TURN => {
                    let me = self.me.upgrade().expect("the queue lives while it is called");
                    return self.reactor.defer(me, NEXT_PIECE | u64::from(tag));
                }
                Next::Route => {
                    pieces += 1;
                    if !self.flights.with(tag, |flight| flight.next_piece(blocks_max)) {
                        return self.finish(tag, Status::SUCCESS);
                    }
                    Next::Carry(self.run_flight(route, tag))
                }
                Next::Carry(Err(Wrong)) => return self.finish(tag, Status::INTERNAL.dnr()),
                Next::Carry(Ok(plan)) => {
                    self.note(tag, plan.then);
                    if plan.delay_ns > 0 {
                        let me = self.me.upgrade().expect("the queue lives while it is called");
                        let at = Instant::now() + Duration::from_nanos(plan.delay_ns);
                        self.reactor.timer(at, me, u64::from(tag));
                        return;
                    }
                    Next::Perform
                }
                Next::Perform => match self.perform(tag) {
                    Some(next) => next,
                    None => return,
                },
                Next::Ended => match done {
                    Some(entry) => Next::Carry(self.run_flight(entry, tag)),
                    None => {
                        self.note(tag, Then::Nothing);
                        Next::Perform
                    }
                },
            };
        }
    }

    fn run_flight(&self, entry: Entry, tag: u32) -> Result<Plan, Wrong> {
        self.flights.with(tag, |flight| {
            let command = flight.request.as_ref().expect("the flight is under way").command;
            self.run(entry, tag, &command, flight)
        })
    }

    /// Notes what is to be carried out, after a delay maybe.
    fn note(&self, tag: u32, then: Then) {
        let inner = self.inner.borrow();
        self.flights.with(tag, |flight| {
            flight.parts.clear();
            flight.end = match then {
                Then::Parts(count) => {
                    flight.parts.extend_from_slice(&inner.context.part[..count]);
                    None
                }
                Then::End(status) => Some(Some(status)),
                Then::Nothing => Some(None),
            };
        });
    }

    /// Carries out what was noted. None if the flight waits for parts, or has ended.
    fn perform(&self, tag: u32) -> Option<Next> {
        let opcode = self.flights.with(tag, |flight| {
            let request = flight.request.as_ref().expect("the flight is under way");
            request.command.opcode
        });
        let (end, phase, status) = self.flights.with(tag, |it| (it.end, it.phase, it.status));
        match end {
            None => self.send(tag),
            Some(None) if phase == 0 && opcode == opcode::FLUSH => {
                let all = 0..self.children.len() as u16;
                let part = |backend| Part { backend, op: opcode::FLUSH, ..Part::default() };
                self.flights.with(tag, |flight| flight.parts.extend(all.map(part)));
                self.send(tag)
            }
            Some(None) => self.end_piece(tag, status),
            Some(Some(code)) => {
                let is_blank = code == 0 && opcode == opcode::READ;
                let status = match if is_blank { self.blank(tag) } else { Blank::Done } {
                    Blank::Done => Status(code),
                    Blank::UnderWay => return None,
                    Blank::Unreachable => Status::INTERNAL,
                };
                self.end_piece(tag, if status.is_success() { status } else { status.dnr() })
            }
        }
    }

    /// A piece has ended; the next one follows, if all is well.
    pub(super) fn end_piece(&self, tag: u32, status: Status) -> Option<Next> {
        if status.is_success() {
            return Some(Next::Route);
        }
        self.finish(tag, status);
        None
    }

    /// Sends the parts that were noted. The flight goes on here if all have ended by then.
    fn send(&self, tag: u32) -> Option<Next> {
        let count = self.flights.with(tag, |flight| {
            flight.forget_failures();
            flight.left = flight.parts.len() as u32 + 1;
            flight.parts.len()
        });
        for number in 0..count {
            let (backend, part) = self.part(tag, number);
            self.inner.borrow_mut().in_flight[backend] += 1;
            self.children[backend].submit(part);
        }
        self.one_less(tag)
    }

    /// One part has ended, or the sending of them.
    fn one_less(&self, tag: u32) -> Option<Next> {
        self.flights.with(tag, |flight| {
            flight.left -= 1;
            (flight.left == 0).then(|| {
                flight.phase += 1;
                flight.is_whole |= flight.failed == 0;
                Next::Ended
            })
        })
    }

    /// The request for part `number`, and which backend it is for.
    fn part(&self, tag: u32, number: usize) -> (usize, Box<Request>) {
        let me = self.me.upgrade().expect("the queue lives while it is called");
        let mut request = self.spare.borrow_mut().pop().unwrap_or_else(Request::new);
        (request.status, request.os_error, request.result) = (Status::SUCCESS, 0, 0);
        let shift = self.routed.device.block_shift;
        let backend = self.flights.with(tag, |flight| {
            let part = flight.parts[number];
            request.command = flight.command_of(&part);
            let len = (part.blocks as usize) << shift;
            match part.op {
                opcode::READ | opcode::WRITE => {
                    let skip = ((flight.piece.offset + part.offset) as usize) << shift;
                    let whole = &mut flight.request.as_mut().expect("it is under way").data;
                    // SAFETY: the original waits in its flight, with its data, until the last part has ended.
                    request.data = unsafe { whole.piece(skip, len) };
                }
                opcode::DATASET_MANAGEMENT => {
                    let lists = flight.lists.get_or_insert_with(|| Box::new([[0; 16]; 32]));
                    let range =
                        dataset::Range { attributes: 0, blocks: part.blocks, slba: part.block };
                    lists[number] = range.to_bytes();
                    let list = lists[number].as_mut_ptr();
                    // SAFETY: the box stays where it is, and this list as it is, until the parts have ended.
                    let list = unsafe { crate::Part::new(list, dataset::RANGE_BYTES, None) };
                    request.data = Data::Part(list);
                }
                _ => {}
            }
            usize::from(part.backend)
        });
        request.push(me, (backend as u64) << 40 | (number as u64) << 32 | u64::from(tag));
        (backend, request)
    }

    pub(super) fn finish(&self, tag: u32, status: Status) {
        let (request, os_error) =
            self.flights.with(tag, |flight| (flight.request.take(), flight.os_error));
        self.give(tag);
        let mut request = request.expect("the flight is under way");
        request.os_error = os_error;
        request.finish(status);
    }

    /// Whether `request` can go down as it is, its address changed. If not, the flight has it.
    #[inline]
    fn direct(&self, tag: u32, mut request: Box<Request>) -> Option<Next> {
        let blocks = request.command.block_count();
        let Facts { route, done, blocks_max, .. } = self.facts.get();
        if done.is_some() || blocks > blocks_max {
            let room = self.make_room(&mut request);
            self.flights.with(tag, |flight| flight.begin(request));
            if room {
                return Some(Next::Route);
            }
            self.finish(tag, Status::COMMAND_INTERRUPTED);
            return None;
        }
        let command = request.command;
        let plan = self.flights.with(tag, |flight| {
            flight.begin_whole(&command);
            self.run(route, tag, &command, flight)
        });
        match plan {
            Ok(Plan { delay_ns: 0, then: Then::Parts(1) }) => {
                let (block, backend) = {
                    let inner = &mut *self.inner.borrow_mut();
                    let part = &inner.context.part[0];
                    let backend = usize::from(part.backend);
                    inner.in_flight[backend] += 1;
                    (part.block, backend)
                };
                request.command.set_slba(block);
                let me = self.me.upgrade().expect("the queue lives while it is called");
                request.push(me, DIRECT | (backend as u64) << 40 | u64::from(tag));
                self.children[backend].submit(request);
                None
            }
            plan => {
                let room = self.make_room(&mut request);
                self.flights.with(tag, |flight| flight.request = Some(request));
                if room {
                    return Some(Next::Carry(plan));
                }
                self.finish(tag, Status::COMMAND_INTERRUPTED);
                None
            }
        }
    }

    /// Gives a read that asks for lent memory a buffer: several places cannot be lent as one.
    fn make_room(&self, request: &mut Request) -> bool {
        if request.command.opcode != opcode::READ || !matches!(request.data, Data::None) {
            return true;
        }
        let len = (request.command.block_count() as usize) << self.routed.device.block_shift;
        match self.reactor.buffers().allocate(len) {
            Some(buffer) => request.data = Data::Buffer(buffer),
            None => return false,
        }
        true
    }
}

/// The request's flags, as programs see them.
#[inline]
fn flags(command: &Command) -> u16 {
    let writes = matches!(command.opcode, opcode::WRITE | opcode::WRITE_ZEROES);
    let fua = if writes && command.fua() { request::FUA } else { 0 };
    let deac = command.opcode == opcode::WRITE_ZEROES && command.deac();
    fua | if deac { request::MAY_DISCARD } else { 0 }
}

impl Queue for ProgramQueue {
    #[inline]
    fn submit(&self, request: Box<Request>) {
        match self.gate.get() {
            Gate::Open => self.begin(request),
            Gate::Closed(_) | Gate::Opening => self.held.borrow_mut().push_back(request),
        }
    }

    /// That of the volume that stands best: the program may do without the others.
    fn access(&self) -> Access {
        self.children.iter().map(|child| child.access()).min().unwrap_or_default()
    }

    fn watch_access(&self, watcher: Weak<dyn AccessWatcher>) {
        self.children.iter().for_each(|child| child.watch_access(watcher.clone()));
    }

    fn forget(&self) {
        self.children.iter().for_each(|child| child.forget());
        self.copies.forget();
        drop((self.held.take(), self.flights.requests()));
    }
}

impl Wake for ProgramQueue {
    fn wake(&self, value: u64) {
        match Told::from(value) {
            Told::Pause(round) => {
                self.gate.set(Gate::Closed(round));
                self.look_whether_idle();
            }
            Told::Resume => self.go_on(),
        }
    }
}

impl Drop for ProgramQueue {
    fn drop(&mut self) {
        self.routed.programs.quit(self.waker.id());
        self.waker.forget();
    }
}

impl ProgramQueue {
    /// Notes that a request of a Copy's goes to `backend`.
    pub(super) fn count(&self, backend: usize, request: &mut Request) {
        self.inner.borrow_mut().in_flight[backend] += 1;
        let me = self.me.upgrade().expect("the queue lives while it is called");
        request.push(me, OF_COPY | (backend as u64) << 40);
    }

    /// Gives the tag of a request back that has ended, or ends now.
    #[inline]
    pub(super) fn give(&self, tag: u32) {
        self.flights.give(tag);
        if self.gate.get() != Gate::Open {
            self.look_whether_idle();
        }
    }

    /// In a pause: says when there is nothing in flight any more.
    #[cold]
    fn look_whether_idle(&self) {
        if let Gate::Closed(round) = self.gate.get()
            && self.flights.is_idle()
        {
            self.routed.programs.arrive(self.waker.id(), round);
        }
    }

    /// A pause is over: goes on with the program as it is now, and with what was held back.
    #[cold]
    fn go_on(&self) {
        let now = self.routed.programs.now();
        if !Arc::ptr_eq(&now, &self.loaded.borrow()) {
            assert!(
                self.flights.is_idle(),
                "the old program is replaced when nothing is in flight"
            );
            let mut inner = self.inner.borrow_mut();
            inner.machine = Machine::new(Arc::clone(&now.instance), inner.core, seed());
            self.facts.set(Facts::of(&now));
            *self.loaded.borrow_mut() = now;
        }
        self.gate.set(Gate::Opening);
        loop {
            // What comes while one of them begins goes behind the others.
            let Some(request) = self.held.borrow_mut().pop_front() else { break };
            self.begin(request);
        }
        self.gate.set(Gate::Open);
    }

    /// Takes a request in, whether the gate is open or not.
    #[inline]
    pub(super) fn begin(&self, request: Box<Request>) {
        if request.fused.is_some() {
            return request.finish_pair(Status::INVALID_OPCODE.dnr());
        }
        match request.command.opcode {
            opcode::READ | opcode::WRITE | opcode::WRITE_ZEROES => {}
            opcode::FLUSH => {}
            opcode::DATASET_MANAGEMENT => {
                if !dataset::deallocates(&request.command) {
                    return request.finish(Status::SUCCESS);
                }
                let (data, blocks) = (&request.data, self.routed.device.blocks);
                // SAFETY: the request holds its data during this call.
                let ranges =
                    unsafe { dataset::ranges(&request.command, data.as_ptr(), data.len(), blocks) };
                if let Err(status) = ranges.map(drop) {
                    return request.finish(status.dnr());
                }
            }
            opcode::COPY if matches!(request.data, Data::Sources(_)) => {
                return self.begin_copy(request);
            }
            _ => return request.finish(Status::INVALID_OPCODE.dnr()),
        }
        let tag = self.flights.take();
        let next = match request.command.opcode {
            opcode::FLUSH | opcode::DATASET_MANAGEMENT => {
                self.flights.with(tag, |flight| flight.begin(request));
                Some(Next::Route)
            }
            _ => self.direct(tag, request),
        };
        if let Some(next) = next {
            self.drive(tag, next);
        }
    }
}

impl Sink for ProgramQueue {
    fn completed(&self, mut request: Box<Request>, state: u64) {
        let (tag, backend) = (state as u32, (state >> 40 & 0xff) as usize);
        self.inner.borrow_mut().in_flight[backend] -= 1;
        if state & DIRECT != 0 {
            self.give(tag);
            return request.complete();
        }
        if state & OF_COPY != 0 {
            return request.complete();
        }
        let number = state >> 32 & 0xff;
        let (status, os_error) = (request.status, request.os_error);
        request.data = Data::None;
        self.spare.borrow_mut().push(request);
        if !status.is_success() {
            self.flights.with(tag, |flight| {
                flight.failed |= 1 << number;
                if flight.status.is_success() {
                    (flight.status, flight.os_error) = (status, os_error);
                }
            });
        }
        if let Some(next) = self.one_less(tag) {
            self.drive(tag, next);
        }
    }
}

impl Complete for ProgramQueue {
    /// A delay is over, others have had their turn, or pages were filled.
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        let tag = token as u32;
        match token & (ZEROES | NEXT_PIECE) {
            0 => self.drive(tag, Next::Perform),
            NEXT_PIECE => self.drive(tag, Next::Route),
            _ => self.zeroed(tag, result),
        }
    }
}
