//! Copies by reading and writing: several pieces in flight, in an order that overlaps allow.
//!
//! Always by way of a buffer, also where a reader lends what is read and the target takes what is written
//! at once: between volumes in memory that was no quicker (512 blocks of 4 KiB x 16: 7.9 GB/s lent,
//! 8.1 to 10 with a buffer, which stays in the core's cache and is written past it).

use super::room::{Granted, Room};
use super::turn::Turn;
use crate::layer::slab::Slab;
use crate::{Queue, Request, Sink};
use ::copy::{Piece, Range, Window};
use nvme::opcode::io as opcode;
use nvme::{Command, Status};
use reactor::{Complete, Reactor};
use std::cell::{Cell, RefCell};
use std::mem;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often those in line for memory look whether the pool has some by now, or they are given up: whoever is to give
/// memory back may hang.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Bytes that are read and written at once: enough that each costs little beside its transfer, and two
/// of them stay in a core's cache.
pub(crate) const PIECE_BYTES: usize = 128 << 10;
/// Pieces of one Copy in flight, being read or written: 1 MiB, which keeps a disk or a path of
/// 1 GB/s and 1 ms busy.
pub(crate) const FLIGHTS_MAX: usize = 8;

/// Where blocks are read or written.
#[derive(Clone)]
pub(crate) enum End {
    /// At the queue whose Copies these are.
    Own,
    /// At another queue on this core.
    Queue(Rc<dyn Queue>),
}

/// What is to be read and written.
pub(crate) struct Task {
    /// The Copy: its namespace and FUA are those of the writes.
    pub command: Command,
    /// Where to.
    pub target: End,
    /// First block there.
    pub destination: u64,
    /// Bytes that the queues involved transfer at once.
    pub transfer_bytes_max: usize,
    /// Set when nothing more is to be begun.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Is told what became of a [`Task`].
pub(crate) trait Emulated {
    /// It has ended, with `status`; `lowest` is the lowest range that was not copied whole, if any.
    fn emulated(&self, token: u64, status: Status, lowest: Option<usize>);
}

/// Reads and writes for the Copies of one queue.
pub(crate) struct Emulator {
    me: Weak<Emulator>,
    reactor: Rc<Reactor>,
    own: Weak<dyn Queue>,
    sink: Weak<dyn Emulated>,
    turn: Rc<Turn>,
    room: Room,
    /// Looks for those in line; he has been told to.
    looker: Rc<Looker>,
    looks: Cell<bool>,
    shift: u8,
    jobs: Slab<Box<Job>>,
    /// Jobs and requests to be used again.
    #[expect(clippy::vec_box, reason = "jobs are large, and passed on in their boxes")]
    idle: RefCell<Vec<Box<Job>>>,
    #[expect(clippy::vec_box, reason = "requests are passed on in their boxes")]
    requests: RefCell<Vec<Box<Request>>>,
}

struct Job {
    token: u64,
    task: Option<Task>,
    sources: Vec<End>,
    window: Window<Box<Request>>,
    piece_blocks: u64,
    status: Status,
    /// Somebody is starting what can be started: completions that come meanwhile are only noted.
    is_driven: bool,
    /// Will be told to go on: by the turn, or when there is memory.
    waits: bool,
}

/// What a job does next.
enum Next {
    Submit(End, Box<Request>),
    Wait,
    Ended,
}

/// Frame state: the job, the number of the piece, and whether it is being written.
fn state(job: u64, number: u64, writes: bool) -> u64 {
    debug_assert!(number < 1 << 31 && job < 1 << 32);
    job << 32 | number << 1 | u64::from(writes)
}

impl Emulator {
    /// For the Copies of `own`, whose outcomes `sink` is told.
    pub fn new(
        reactor: &Rc<Reactor>,
        own: Weak<dyn Queue>,
        sink: Weak<dyn Emulated>,
        turn: Rc<Turn>,
        block_shift: u8,
    ) -> Rc<Emulator> {
        Rc::new_cyclic(|me| Emulator {
            me: Weak::clone(me),
            reactor: Rc::clone(reactor),
            own,
            sink,
            turn,
            room: Room::default(),
            looker: Rc::new(Looker(Weak::clone(me))),
            looks: Cell::new(false),
            shift: block_shift,
            jobs: Slab::default(),
            idle: RefCell::default(),
            requests: RefCell::default(),
        })
    }

    /// Plans to read and write `ranges`, one after another. The sink is told with `token` what became
    /// of it after [`Emulator::run`].
    pub fn begin(&self, task: Task, token: u64, ranges: impl Iterator<Item = (End, Range)>) -> u64 {
        let mut job = self.idle.borrow_mut().pop().unwrap_or_else(Job::new);
        job.token = token;
        let Job { sources, window, .. } = &mut *job;
        let keep_end = |(end, range)| {
            sources.push(end);
            range
        };
        window.begin(task.destination, ranges.map(keep_end));
        let piece_bytes = PIECE_BYTES.min(task.transfer_bytes_max).max(1 << self.shift);
        job.piece_blocks = (piece_bytes >> self.shift) as u64;
        job.status = Status::SUCCESS;
        job.task = Some(task);
        self.jobs.insert(job)
    }

    /// Lets go of all jobs, and of the queues that they read from. Nothing comes back any more.
    pub fn forget(&self) {
        self.room.drop_from_line(|_| true);
        drop(self.jobs.clear());
    }

    /// Starts a job. The sink may be told before this returns.
    pub fn run(&self, job: u64) {
        self.drive(job);
    }

    /// Starts what can be started.
    fn drive(&self, job: u64) {
        if self.jobs.with(job, |job| mem::replace(&mut job.is_driven, true)) {
            return;
        }
        loop {
            match self.next(job) {
                Next::Submit(End::Own, request) => match self.own.upgrade() {
                    Some(own) => own.submit(request),
                    // Forgotten with the queue, as is all that waits there.
                    None => return,
                },
                Next::Submit(End::Queue(queue), request) => queue.submit(request),
                Next::Wait => return self.jobs.with(job, |job| job.is_driven = false),
                Next::Ended => return self.end(job),
            }
        }
    }

    fn next(&self, number: u64) -> Next {
        self.jobs.with(number, |job| {
            if job.is_stopped() && job.window.stop() {
                job.status = Status::ABORT_REQUESTED;
            }
        });
        while let Some(request) = self.jobs.with(number, |job| job.window.abandoned()) {
            self.recycle(request);
        }
        self.jobs.with(number, |job| {
            // Who waits to be told is there until he is.
            if job.waits {
                return Next::Wait;
            }
            if job.window.has_ended() {
                return Next::Ended;
            }
            if !self.turn.may_copy() {
                job.waits = true;
                self.turn.wait(self.me.clone() as Weak<dyn Complete>, number);
                return Next::Wait;
            }
            match self.next_write(number, job) {
                Next::Wait => self.next_read(number, job),
                next => next,
            }
        })
    }

    fn next_write(&self, number: u64, job: &mut Job) -> Next {
        let Some((piece_number, piece, mut request)) = job.window.start_write() else {
            return Next::Wait;
        };
        let task = job.task.as_ref().expect("the job has begun");
        request.command = self.command(opcode::WRITE, task, piece.destination, piece);
        if task.command.fua() {
            request.command.cdw12 = (request.command.cdw12.get() | 1 << 30).into();
        }
        request.push(self.sink(), state(number, piece_number, true));
        Next::Submit(task.target.clone(), request)
    }

    fn next_read(&self, number: u64, job: &mut Job) -> Next {
        let Some(piece) = job.window.next_read(job.piece_blocks) else { return Next::Wait };
        let (bytes, block_bytes) = ((piece.blocks as usize) << self.shift, 1 << self.shift);
        let busy = job.window.is_busy();
        let granted = self.room.obtain(&self.reactor, number, bytes, block_bytes, busy);
        let (data, bytes) = match granted {
            Ok(Granted::Memory(data, bytes)) => (data, bytes),
            Ok(Granted::Later) => return Next::Wait,
            Ok(Granted::InLine) => {
                job.waits = true;
                self.look_later();
                return Next::Wait;
            }
            Err(_) => {
                let (piece_number, _) = job.window.start_read(piece.blocks);
                if job.window.fail(piece_number) {
                    job.status = Status::COMMAND_INTERRUPTED;
                }
                return Next::Ended;
            }
        };
        let (piece_number, piece) = job.window.start_read((bytes >> self.shift) as u64);
        let mut request = self.requests.borrow_mut().pop().unwrap_or_else(Request::new);
        let task = job.task.as_ref().expect("the job has begun");
        request.command = self.command(opcode::READ, task, piece.source, piece);
        request.data = data;
        request.push(self.sink(), state(number, piece_number, false));
        Next::Submit(job.sources[piece.range].clone(), request)
    }

    fn command(&self, code: u8, task: &Task, slba: u64, piece: Piece) -> Command {
        Command::blocks(code, task.command.nsid.get(), slba, piece.blocks as u32)
    }

    fn sink(&self) -> Rc<dyn Sink> {
        self.me.upgrade().expect("it lives while it is called")
    }

    /// Takes a request and its memory back.
    fn recycle(&self, mut request: Box<Request>) {
        let told = self.room.release(mem::take(&mut request.data));
        self.requests.borrow_mut().push(request);
        self.tell(told);
    }

    /// Tells a Copy that there is memory for it.
    fn tell(&self, job: Option<u64>) {
        if let Some(job) = job {
            // Later, not from here: Copies that wait for one another would nest without bound.
            self.reactor.defer(self.me.upgrade().expect("it lives while it is called"), job);
        }
    }

    fn look_later(&self) {
        if !self.looks.replace(true) {
            let at = self.reactor.now() + LOOK_AGAIN;
            self.reactor.timer(at, self.looker.clone(), 0);
        }
    }

    /// Has those in line go on that were given up meanwhile, or that the pool has memory for.
    fn look(&self) {
        self.looks.set(false);
        let is_stopped = |number| self.jobs.with(number, |job| job.is_stopped());
        for number in self.room.drop_from_line(is_stopped) {
            self.leave_line(number);
        }
        while let Some(number) = self.room.first_in_line() {
            let piece = self.jobs.with(number, |job| job.window.next_read(job.piece_blocks));
            let bytes = piece.map_or(0, |piece| piece.blocks as usize) << self.shift;
            if !self.turn.may_copy() || !self.room.lets_out(&self.reactor, bytes) {
                break;
            }
            self.leave_line(number);
        }
        if self.room.first_in_line().is_some() {
            self.look_later();
        }
    }

    fn leave_line(&self, number: u64) {
        self.jobs.with(number, |job| job.waits = false);
        self.drive(number);
    }

    fn end(&self, job: u64) {
        self.tell(self.room.ended(job));
        let mut job = self.jobs.take(job);
        let (token, status, lowest) = (job.token, job.status, job.window.lowest());
        debug_assert_eq!(status.is_success(), lowest.is_none());
        job.sources.clear();
        job.task = None;
        job.is_driven = false;
        self.idle.borrow_mut().push(job);
        if let Some(sink) = self.sink.upgrade() {
            sink.emulated(token, status, lowest);
        }
    }
}

impl Sink for Emulator {
    /// A piece was read or written.
    fn completed(&self, request: Box<Request>, state: u64) {
        let (number, piece, writes) = (state >> 32, (state & 0xffff_ffff) >> 1, state & 1 != 0);
        let (status, bytes) = (request.status, request.data.len());
        let (is_driven, done) = self.jobs.with(number, |job| {
            let mut done = Some(request);
            if !status.is_success() {
                if job.window.fail(piece) {
                    job.status = status;
                }
            } else if writes {
                job.window.written(piece);
            } else {
                job.window.read(piece, done.take().expect("it is here"));
            }
            (job.is_driven, done)
        });
        if let Some(request) = done {
            self.recycle(request);
        }
        match is_driven {
            // It ended while it was being started: this core itself has moved the bytes.
            true => self.turn.copied(bytes / 2),
            false => self.drive(number),
        }
    }
}

/// The job's turn has come, or there is memory for it.
impl Complete for Emulator {
    fn complete(&self, job: u64, _result: i32, _flags: u32) {
        self.jobs.with(job, |job| job.waits = false);
        self.drive(job);
    }
}

/// Has the emulator look. Apart from it, so that a timer does not keep it.
struct Looker(Weak<Emulator>);

impl Complete for Looker {
    fn complete(&self, _token: u64, result: i32, _flags: u32) {
        if result >= 0
            && let Some(emulator) = self.0.upgrade()
        {
            emulator.look();
        }
    }
}

impl Job {
    fn is_stopped(&self) -> bool {
        let stop = self.task.as_ref().and_then(|task| task.stop.as_ref());
        stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    fn new() -> Box<Job> {
        Box::new(Job {
            token: 0,
            task: None,
            sources: Vec::new(),
            window: Window::new(FLIGHTS_MAX),
            piece_blocks: 1,
            status: Status::SUCCESS,
            is_driven: false,
            waits: false,
        })
    }
}
