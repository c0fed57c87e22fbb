//! Carries out Copies step by step: what somebody below copies by his own means goes down, the rest
//! is read and written.
//!
//! ```text
//!   Copy -> Order -> route of each piece -> as many as go together: one Copy down --refused--+
//!                                      \                                                     v
//!                                       '--> nobody's means ----------------------> read and written
//! ```
//!
//! One step after another, so that a step finds what the one before has left. What goes down is as large as
//! it can take; what is read and written has several pieces in flight.

use super::emulate::{Emulated, Emulator, End, Task};
use super::refusals::is_one;
use super::turn::Turn;
use super::{Place, Source, Sources};
use crate::layer::guard::Guard;
use crate::layer::slab::Slab;
use crate::{Data, Queue, Request, Sink};
use ::copy::{Batch, Order, Piece, Range, Room};
use nvme::{Command, Status};
use reactor::{Complete, Reactor};
use std::cell::RefCell;
use std::mem;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Force Unit Access and Limited Retry (command dword 12, bits 30 and 31).
const ACCESS: u32 = 3 << 30;

/// How blocks get from one place to another.
pub(crate) struct Route {
    /// For so many of those asked about: the first ones, see [`Piece::first`].
    pub blocks: u64,
    /// To which child.
    pub child: usize,
    /// Where the first of them goes there.
    pub destination: u64,
    /// Where the child finds them by its own means, if it may have any.
    pub fast: Option<(Place, u64)>,
    /// Where they can be read, if that is within reach.
    pub reader: Option<Reader>,
    /// Whoever keeps the source's blocks apart, and his number of the first.
    pub guard: Option<(Arc<Guard>, u64)>,
}

/// Where blocks can be read.
pub(crate) struct Reader {
    /// By whom.
    pub end: End,
    /// His number of the first block.
    pub slba: u64,
    /// He is the one who writes, and has the same numbers for that.
    pub is_writer: bool,
}

/// The queue whose Copies are carried out.
pub(crate) trait Ground {
    /// Whether the source is in the volume that is written to.
    fn is_same(&self, place: &Place) -> bool;

    /// Whether Copy `copy` of `bytes` may begin. If not, [`Carrier::begin`] is to be called once it may, or
    /// [`Carrier::give_up`].
    fn may_begin(&self, copy: u64, bytes: u64, sources: &Sources) -> bool {
        let _ = (copy, bytes, sources);
        true
    }

    /// Copy `copy` of `bytes` has ended; of none if it had to wait and was given up.
    fn ended(&self, copy: u64, bytes: u64) {
        let _ = (copy, bytes);
    }

    /// How the blocks of `piece`, of a source range in `place`, can be copied. `command` is that of Copy `copy`. Of one
    /// piece it may be asked several times.
    fn route(&self, copy: u64, command: &Command, place: &Place, piece: &Piece) -> Route;

    /// What one command to `child` takes; `guarded`: while blocks of another volume are kept from writers.
    fn room(&self, child: usize, guarded: bool) -> Room;

    /// Sends a Copy down, whose pieces go by `routes`.
    fn send(&self, child: usize, request: Box<Request>, routes: &[Route]);

    /// `child` has refused to copy from `place` for good.
    fn refused(&self, child: usize, place: &Place);

    /// Where blocks are written that go to `child`.
    fn writer(&self, child: usize) -> End;

    /// Bytes that are read from and written to all involved at once.
    fn transfer_bytes_max(&self, sources: &Sources) -> usize;

    /// So many bytes were copied by a child's own means, or read and written here or further down.
    fn copied(&self, bytes: u64, is_fast: bool) {
        let _ = (bytes, is_fast);
    }
}

/// The Copies of one queue.
pub(crate) struct Carrier {
    me: Weak<Carrier>,
    ground: Weak<dyn Ground>,
    emulator: Rc<Emulator>,
    turn: Rc<Turn>,
    shift: u8,
    jobs: Slab<Box<Job>>,
    #[expect(clippy::vec_box, reason = "jobs are large, and passed on in their boxes")]
    idle: RefCell<Vec<Box<Job>>>,
}

#[derive(Default)]
struct Job {
    request: Option<Box<Request>>,
    /// They go back with the request. None when the job is idle, which would need memory for new ones.
    sources: Option<Box<Sources>>,
    order: Order,
    /// What the step at hand consists of.
    batch: Batch,
    routes: Vec<Route>,
    step: Step,
    /// The child that the step is about, and how many of the pieces it had copied before it refused, and blocks of the next.
    child: usize,
    skip: usize,
    skip_blocks: u64,
    /// The request of fast steps, while none is under way.
    down: Option<Box<Request>>,
    /// Set at the end.
    status: Status,
    lowest: Option<usize>,
    /// What was copied of the range that is refused.
    begun_blocks: u32,
    is_driven: bool,
    /// All of it.
    bytes: u64,
    /// What was read and written, here or further down.
    moved_bytes: u64,
    /// Will be told to go on by the turn.
    waits: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    /// The next is to be found.
    #[default]
    None,
    /// The batch is to be read and written.
    Refused,
    /// Somebody copies, or reads and writes.
    UnderWay,
    Ended,
}

/// What a job does next.
enum Next {
    Send {
        child: usize,
        request: Box<Request>,
        routes: Vec<Route>,
    },
    /// A job of the emulator's.
    Emulate(u64),
    Wait,
    Ended,
}

impl Carrier {
    /// For the Copies of `ground`, which is the queue `own`.
    pub fn new(
        reactor: &Rc<Reactor>,
        ground: Weak<dyn Ground>,
        own: Weak<dyn Queue>,
        block_shift: u8,
    ) -> Rc<Carrier> {
        let turn = Turn::new(reactor);
        Rc::new_cyclic(|me: &Weak<Carrier>| {
            let sink = me.clone() as Weak<dyn Emulated>;
            Carrier {
                me: me.clone(),
                ground,
                emulator: Emulator::new(reactor, own, sink, Rc::clone(&turn), block_shift),
                turn,
                shift: block_shift,
                jobs: Slab::default(),
                idle: RefCell::default(),
            }
        })
    }

    /// Carries out a Copy that comes with its [`Sources`].
    pub fn submit(&self, mut request: Box<Request>) {
        let Data::Sources(sources) = mem::take(&mut request.data) else {
            unreachable!("the caller has looked")
        };
        let Some(ground) = self.ground() else {
            unreachable!("the queue lives while it is called")
        };
        let mut job = self.idle.borrow_mut().pop().unwrap_or_default();
        let range = |source: &Source| Range {
            slba: source.slba,
            blocks: u64::from(source.blocks),
            is_same: ground.is_same(&source.place),
        };
        job.order.begin(request.command.slba(), sources.ranges.iter().map(range));
        (job.status, job.lowest, job.step) = (Status::SUCCESS, None, Step::None);
        (job.begun_blocks, job.moved_bytes) = (0, 0);
        job.bytes = sources.blocks() << self.shift;
        let bytes = job.bytes;
        job.request = Some(request);
        let job = self.jobs.insert(job);
        let may_begin = ground.may_begin(job, bytes, &sources);
        self.jobs.with(job, |job| job.sources = Some(sources));
        if may_begin {
            self.drive(job);
        }
    }

    /// Begins with a Copy that had to wait.
    pub fn begin(&self, number: u64) {
        self.drive(number);
    }

    /// Ends a Copy that had to wait, and was stopped meanwhile.
    pub fn give_up(&self, number: u64) {
        self.jobs.with(number, |job| {
            debug_assert!(job.sources().is_stopped(), "it does not begin now");
            // It has not been counted.
            job.bytes = 0;
        });
        self.drive(number);
    }

    /// Lets go of all Copies, and of the volumes that they are from ([`Queue::forget`]). Nothing comes back any more.
    pub fn forget(&self) {
        self.emulator.forget();
        drop(self.jobs.clear());
    }

    /// None when the queue has been dropped: what was not finished is forgotten with it.
    fn ground(&self) -> Option<Rc<dyn Ground>> {
        self.ground.upgrade()
    }

    /// Goes on with a Copy as far as that is possible now.
    fn drive(&self, number: u64) {
        if self.jobs.with(number, |job| mem::replace(&mut job.is_driven, true)) {
            return;
        }
        let Some(ground) = self.ground() else { return };
        loop {
            match self.next(number, &*ground) {
                Next::Send { child, mut request, routes } => {
                    request.push(self.me.upgrade().expect("it lives while it is called"), number);
                    ground.send(child, request, &routes);
                    self.jobs.with(number, |job| job.routes = routes);
                }
                Next::Emulate(job) => self.emulator.run(job),
                Next::Wait => return self.jobs.with(number, |job| job.is_driven = false),
                Next::Ended => return self.end(number, &*ground),
            }
        }
    }

    fn next(&self, number: u64, ground: &dyn Ground) -> Next {
        self.jobs.with(number, |job| {
            match job.step {
                Step::UnderWay => return Next::Wait,
                _ if job.waits => return Next::Wait,
                Step::Ended => return Next::Ended,
                Step::Refused => {
                    job.skip();
                    if job.sources().is_stopped() {
                        return job.give_up(Some(job.batch.range_of(0)));
                    }
                    return self.begin_emulated(number, job, ground);
                }
                Step::None if job.sources().is_stopped() => {
                    return job.give_up(job.order.lowest());
                }
                Step::None => {}
            }
            if !self.turn.may_copy() {
                job.waits = true;
                self.turn.wait(self.me.clone() as Weak<dyn Complete>, number);
                return Next::Wait;
            }
            job.find_step(number, ground);
            match job.routes.first() {
                None => Next::Ended,
                Some(route) if route.fast.is_some() => job.begin_fast(),
                Some(_) => self.begin_emulated(number, job, ground),
            }
        })
    }

    /// Has the pieces of the step read and written, if that is allowed and within reach.
    fn begin_emulated(&self, number: u64, job: &mut Job, ground: &dyn Ground) -> Next {
        let readable = job.routes.iter().all(|route| route.reader.is_some());
        if job.is_fast_only() || !readable {
            return job.refuse();
        }
        job.step = Step::UnderWay;
        let route = &job.routes[0];
        let task = Task {
            command: job.request.as_ref().expect("it is here until the end").command,
            target: ground.writer(route.child),
            destination: route.destination,
            transfer_bytes_max: ground.transfer_bytes_max(job.sources()),
            stop: job.sources().stop.clone(),
        };
        let ranges = job.routes.iter().zip(job.batch.pieces()).map(|(route, piece)| {
            let reader = route.reader.as_ref().expect("just looked");
            let (slba, blocks, is_same) = (reader.slba, piece.blocks, reader.is_writer);
            (reader.end.clone(), Range { slba, blocks, is_same })
        });
        Next::Emulate(self.emulator.begin(task, number, ranges))
    }

    fn end(&self, number: u64, ground: &dyn Ground) {
        let mut job = self.jobs.take(number);
        let bytes = job.bytes;
        let mut request = job.request.take().expect("it is here until the end");
        let mut sources = job.sources.take().expect("they are here until the end");
        (sources.begun_blocks, sources.moved_bytes) = (job.begun_blocks, job.moved_bytes);
        request.data = Data::Sources(sources);
        request.status = job.status;
        request.result = job.lowest.unwrap_or(0) as u64;
        job.is_driven = false;
        job.batch.clear();
        job.routes.clear();
        self.idle.borrow_mut().push(job);
        ground.ended(number, bytes);
        request.complete();
    }
}

impl Job {
    fn sources(&self) -> &Sources {
        self.sources.as_ref().expect("a job that is under way has them")
    }

    /// Takes from the plan what can be done in one step: pieces that go down together, or pieces that are
    /// read and written. Nothing at the end.
    fn find_step(&mut self, number: u64, ground: &dyn Ground) {
        let command = self.request.as_ref().expect("it is here until the end").command;
        self.batch.clear();
        self.routes.clear();
        let mut room = None;
        loop {
            let left = room.as_ref().map_or(u64::MAX, |room| self.batch.left(room));
            let Some(piece) =
                Some(left).filter(|left| *left > 0).and_then(|it| self.order.peek(it))
            else {
                return;
            };
            let source = &self.sources().ranges[piece.range];
            // Or those before it would not be copied when it is refused.
            if !self.routes.is_empty() && source.fast_only != self.is_fast_only() {
                return;
            }
            let route = ground.route(number, &command, &source.place, &piece);
            if let Some(first) = self.routes.first() {
                let piece = piece.first(route.blocks);
                if !self.batch.is_followed_by(&piece)
                    || !first.goes_with(&route)
                    || !self.ends_before(&route)
                {
                    return;
                }
                // Lest the rest be refused for it.
                if route.fast.is_some() && !self.batch.is_apart_from(&piece) {
                    return;
                }
            } else if route.fast.is_some() && room.is_none() {
                let given = room.insert(ground.room(route.child, route.guard.is_some()));
                if route.blocks > self.batch.left(given) {
                    // Again, for less: where it is cut may make a difference.
                    continue;
                }
            }
            self.batch.push(self.order.take(route.blocks));
            self.routes.push(route);
        }
    }

    /// Whether the pieces of the step are not to be read and written: none is, or all are.
    fn is_fast_only(&self) -> bool {
        let first = self.batch.pieces().first();
        first.is_some_and(|piece| self.sources().ranges[piece.range].fast_only)
    }

    /// Whether blocks go by `route` to where those of the step end there: what follows one another above need not below.
    fn ends_before(&self, route: &Route) -> bool {
        let last = self.routes.last().zip(self.batch.pieces().last());
        last.is_none_or(|(last, piece)| last.destination + piece.blocks == route.destination)
    }

    /// Ends it here, unless all was copied.
    fn give_up(&mut self, lowest: Option<usize>) -> Next {
        self.lowest = lowest;
        if lowest.is_some() {
            self.status = Status::ABORT_REQUESTED;
        }
        Next::Ended
    }

    /// Leaves the step at hand, and what follows, to whoever is above.
    fn refuse(&mut self) -> Next {
        let piece = self.batch.pieces()[0];
        self.status = Status::FAST_COPY_NOT_POSSIBLE;
        self.lowest = Some(piece.range);
        // What is moved backwards has its last blocks copied.
        if !piece.is_backwards {
            let range = &self.sources().ranges[piece.range];
            self.begun_blocks = (piece.source - range.slba) as u32;
        }
        Next::Ended
    }

    /// Puts the step into one command.
    fn begin_fast(&mut self) -> Next {
        let fast_only = self.is_fast_only();
        let mut request = self.down.take().unwrap_or_else(Request::new);
        let mut sources = match mem::take(&mut request.data) {
            Data::Sources(sources) => sources,
            _ => Box::default(),
        };
        let source = |(route, piece): (&Route, &Piece)| {
            let (place, slba) = route.fast.clone().expect("fast steps are of fast routes");
            Source { place, slba, blocks: piece.blocks as u32, fast_only }
        };
        sources.ranges.extend(self.routes.iter().zip(self.batch.pieces()).map(source));
        (sources.begun_blocks, sources.moved_bytes) = (0, 0);
        sources.stop = self.sources().stop.clone();
        sources.thread_of = self.sources().thread_of;
        let copy = self.request.as_ref().expect("it is here until the end");
        // Hints and protection information are nothing that all who may carry it out know.
        let (nsid, sdlba) = (copy.command.nsid.get(), self.routes[0].destination);
        let ranges = sources.ranges.len();
        request.command = nvme::copy::command(nsid, sdlba, ranges, nvme::copy::Format::Short);
        request.command.flags = copy.command.flags;
        request.command.cdw12 |= copy.command.cdw12 & ACCESS;
        request.timeout_ms = copy.timeout_ms;
        request.data = Data::Sources(sources);
        self.step = Step::UnderWay;
        self.child = self.routes[0].child;
        Next::Send { child: self.child, request, routes: mem::take(&mut self.routes) }
    }

    /// A command has come back.
    fn note(&mut self, status: Status, result: u64, begun_blocks: u32) {
        if status.is_success() {
            self.step = Step::None;
        } else if status.code() == Status::FAST_COPY_NOT_POSSIBLE {
            self.step = Step::Refused;
            self.skip = usize::try_from(result).unwrap_or(usize::MAX);
            self.skip_blocks = begun_blocks.into();
        } else {
            (self.step, self.status) = (Step::Ended, status);
            self.lowest = Some(self.batch.range_of(result));
        }
    }

    /// Blocks of the step that were copied before what has failed or was refused; none if somebody counts wrongly.
    fn blocks_before(&self, result: u64, begun_blocks: u32) -> u64 {
        let pieces = self.batch.pieces();
        let whole = usize::try_from(result).unwrap_or(usize::MAX);
        let Some(next) = pieces.get(whole) else { return 0 };
        let begun = Some(u64::from(begun_blocks)).filter(|begun| *begun < next.blocks);
        pieces[..whole].iter().map(|piece| piece.blocks).sum::<u64>() + begun.unwrap_or(0)
    }

    /// Leaves out what was copied before the rest was refused; nothing if somebody counts wrongly.
    fn skip(&mut self) {
        let (skip, blocks) = (mem::take(&mut self.skip), mem::take(&mut self.skip_blocks));
        if skip >= self.routes.len() {
            return;
        }
        self.routes.drain(..skip);
        self.batch.skip(skip);
        if blocks < self.batch.pieces()[0].blocks {
            self.batch.skip_blocks(blocks);
            self.routes[0].skip_blocks(blocks);
        }
    }
}

impl Route {
    /// Leaves out the first `blocks` blocks, of what is to be read and written.
    fn skip_blocks(&mut self, blocks: u64) {
        self.blocks -= blocks;
        self.destination += blocks;
        if let Some(reader) = &mut self.reader {
            reader.slba += blocks;
        }
    }

    /// Whether both can be done in one step.
    fn goes_with(&self, other: &Route) -> bool {
        let same_means = match (&self.fast, &other.fast) {
            (Some((one, _)), Some((other, _))) => is_one(one, other),
            (None, None) => self.reader.is_some() == other.reader.is_some(),
            _ => false,
        };
        self.child == other.child && same_means
    }
}

impl Sink for Carrier {
    /// A command for one step has come back.
    fn completed(&self, mut request: Box<Request>, number: u64) {
        let (status, result) = (request.status, request.result);
        let Data::Sources(sources) = &mut request.data else {
            unreachable!("a Copy comes back with its sources")
        };
        // Also of one that has failed in the end.
        let (begun, moved) = (sources.begun_blocks, sources.moved_bytes);
        let (is_driven, blocks, child) = self.jobs.with(number, |job| {
            job.note(status, result, begun);
            job.moved_bytes += moved;
            let blocks = match status.is_success() {
                true => job.batch.blocks(),
                false => job.blocks_before(result, begun),
            };
            (job.is_driven, blocks, job.child)
        });
        let bytes = blocks << self.shift;
        let Some(ground) = self.ground() else { return };
        ground.copied(moved, false);
        ground.copied(bytes.saturating_sub(moved), true);
        if status == Status::FAST_COPY_NOT_POSSIBLE.dnr() {
            ground.refused(child, &sources.ranges[0].place);
        }
        // Nothing is kept of other volumes.
        sources.ranges.clear();
        sources.stop = None;
        self.jobs.with(number, |job| job.down = Some(request));
        match is_driven {
            // While it was being sent: this core itself has copied.
            true => self.turn.copied(bytes as usize),
            false => self.drive(number),
        }
    }
}

impl Emulated for Carrier {
    fn emulated(&self, number: u64, status: Status, lowest: Option<usize>) {
        let (is_driven, bytes) = self.jobs.with(number, |job| {
            job.step = Step::None;
            if let Some(lowest) = lowest {
                (job.step, job.status) = (Step::Ended, status);
                job.lowest = Some(job.batch.range_of(lowest as u64));
            }
            let bytes = job.batch.blocks() << self.shift;
            job.moved_bytes += if lowest.is_none() { bytes } else { 0 };
            (job.is_driven, bytes)
        });
        if lowest.is_none()
            && let Some(ground) = self.ground()
        {
            ground.copied(bytes, false);
        }
        if !is_driven {
            self.drive(number);
        }
    }
}

/// The job's turn has come.
impl Complete for Carrier {
    fn complete(&self, number: u64, _result: i32, _flags: u32) {
        self.jobs.with(number, |job| job.waits = false);
        self.drive(number);
    }
}
