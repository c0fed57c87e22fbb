//! Carries out a copy on a reactor: a command of the daemon's core, or of a thread of `nvlane copy`.
//!
//! ```text
//!   map    holes of source and targets, asked on a thread for calls that block
//!    |
//!   pieces ---> Copy | Read, Write | Write Zeroes, one target after the other; several pieces in flight
//!    |
//!   mark   ---> Flush of every target ---> the record, on a thread for calls that block
//! ```
//!
//! Where source and target have blocks of one size a piece is a Copy, and the target's guard finds the best
//! means for it. Elsewhere it is read and written here, in bytes. The mark moves on only by a flush, and a
//! copy is done only after one. Where a target may have lost what it had acknowledged before that
//! (`Namespace::volatile_epoch`) a flush proves nothing, and the copy goes back to its mark.
//!
//! With `verify` everything is looked at once more in the end. Of a volume that gives checksums of its blocks
//! (`Command::wants_checksum`) those are compared, and no data comes here; others are read.
//!
//! What it does not do: open volumes, or start itself again after a failure.
//!
//! Key constants: [`COPY_BYTES`] of a Copy, [`CHUNK_BYTES`] of a read, [`CHECK_BYTES`] of a checksum, [`CHECKPOINT_INTERVAL`], [`SETBACKS_MAX`].

mod map;
mod mark;
mod piece;
mod verify;

use super::layout::{Layout, Order, Stretch};
use super::plan::is_near;
use super::shared::{Counts, Phase, Shared, Wish};
use super::spec::Options;
use super::throttle::Pace;
use super::watermark::Watermark;
use map::Answer;
pub use namespace::checksum::ALGORITHM;
use namespace::copy::Other;
use namespace::{Namespace, Request, Sink};
use nvme::Limits;
use piece::Piece;
use reactor::{Complete, Reactor, TimerId};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use verify::Sum;

/// Bytes of a Copy, if nothing else is said and limits allow it.
pub const COPY_BYTES: u64 = 16 << 20;
/// Bytes of a read and the write that follows it.
pub const CHUNK_BYTES: u64 = 256 << 10;
/// Bytes whose checksum is asked for at once.
pub const CHECK_BYTES: u64 = 1 << 20;
/// Bytes of all Copies in flight, if there is more than one.
const COPY_BYTES_IN_FLIGHT: u64 = 64 << 20;
/// How often what was copied is made durable and noted, where it is noted.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(2);
/// How often it is made durable where it is not noted: so much is copied again when a target has lost power.
const FLUSH_INTERVAL: Duration = Duration::from_secs(30);
/// How often a copy goes back to one mark. Each time it flushes sooner, so that it gets on between two losses.
const SETBACKS_MAX: u32 = 16;
/// How long a copy that is to end waits for its Copies before it gives them up: they may stand in line behind others that
/// hang. What one has copied until then is copied again another time.
const GIVE_UP_AFTER: Duration = Duration::from_secs(2);
/// How often wishes are looked at, and progress told.
const TICK_INTERVAL: Duration = Duration::from_millis(50);
/// The namespace id in commands: a volume is one namespace, whatever its id elsewhere.
const NSID: u32 = 1;

/// Tokens of the reactor.
const STEP: u64 = 0;
const TICK: u64 = 1;
const MAPPED: u64 = 2;
const SAVED: u64 = 3;
const MEMORY: u64 = 4;
/// Set in the state of a Flush, beside its volume; others are numbers of pieces.
const FLUSH: u64 = 1 << 63;

/// Notes durably that everything before a position is copied and flushed.
pub type Keep = Arc<dyn Fn(u64, Counts) -> io::Result<()> + Send + Sync>;

/// Called now and then with how far a copy is.
pub type Watch = Box<dyn Fn(&Shared)>;

/// A copy to be carried out.
pub struct Setup {
    /// The volumes, as the layout numbers them.
    pub volumes: Vec<Arc<dyn Namespace>>,
    /// What goes where.
    pub layout: Layout,
    /// How. Of a copy that goes on, targets are not zero any more: what it wrote last may not have counted.
    pub options: Options,
    /// Everything before was copied by an earlier run.
    pub from: u64,
    /// What that had counted.
    pub before: Counts,
    /// Wishes and progress.
    pub shared: Arc<Shared>,
    /// The record of a job.
    pub keep: Option<Keep>,
    /// Called now and then.
    pub watch: Option<Watch>,
}

/// How a copy has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is copied and flushed; with the checksum of it all where it was verified.
    Done(Option<u64>),
    /// It was asked to; everything before is copied and flushed.
    Stopped(u64),
    /// Why; everything before is copied and flushed.
    Failed(String, u64),
}

/// Told once when a copy has ended.
pub type Ended = Box<dyn FnOnce(Outcome)>;

/// A copy in progress. Timers and commands of its own keep it.
pub struct Engine {
    this: Weak<Engine>,
    reactor: Rc<Reactor>,
    layout: Layout,
    options: Options,
    ways: Vec<Rc<Other>>,
    limits: Vec<Limits>,
    /// Whether each gives checksums.
    sums: Vec<bool>,
    /// Volumes times targets: whether the one is copied to the other with Copy.
    copies: Vec<bool>,
    before: Counts,
    shared: Arc<Shared>,
    keep: Option<Keep>,
    watch: Option<Watch>,
    ended: RefCell<Option<Ended>>,
    started: Instant,
    stepping: Cell<bool>,
    /// Its Copies are given up.
    gives_up: Arc<AtomicBool>,
    state: RefCell<State>,
}

struct State {
    phase: Phase,
    pieces: Vec<Piece>,
    idle: Vec<usize>,
    /// Pieces with a command that has ended.
    ready: Vec<usize>,
    /// Bytes handed to pieces, from the beginning, or from the end if it goes backwards.
    next: u64,
    /// What is known of the bytes from there on.
    map: VecDeque<Stretch>,
    mapping: Option<Arc<Answer>>,
    mark: Watermark,
    /// What comes before may have been written already by what did not count, and targets are not zero there any more.
    touched: u64,
    pace: Pace,
    copy_bytes: u64,
    flush: Flush,
    noted: Instant,
    /// What targets had when the first command beyond the mark was sent.
    epoch: u64,
    /// The flush proved nothing: once nothing is in flight it goes on at the mark.
    is_going_back: bool,
    /// How often it has since the mark moved on.
    setbacks: u32,
    counts: Counts,
    sum: Sum,
    stopping: bool,
    failure: Option<String>,
    /// Since when it is to end, for either reason.
    closing: Option<Duration>,
    tick: Option<TimerId>,
    waiting: bool,
}

/// A flush of all targets.
#[derive(Default)]
struct Flush {
    #[expect(clippy::vec_box, reason = "requests travel in the boxes that they rest in")]
    requests: Vec<Box<Request>>,
    /// What has come back, with its volume.
    back: Vec<(Box<Request>, usize)>,
    left: usize,
    failed: bool,
    is_last: bool,
    saving: bool,
}

impl Engine {
    /// Starts a copy on this reactor. `ended` is told once, in a later turn.
    ///
    /// # Errors
    /// A volume's queue cannot be opened.
    pub fn start(reactor: &Rc<Reactor>, setup: Setup, ended: Ended) -> io::Result<()> {
        let Setup { volumes, layout, options, from, before, shared, keep, watch } = setup;
        let mut ways = Vec::with_capacity(volumes.len());
        for namespace in volumes {
            let queue = Arc::clone(&namespace).open_queue(reactor)?;
            ways.push(Rc::new(Other { namespace, queue }));
        }
        let limits: Vec<Limits> = ways.iter().map(|way| way.namespace.limits()).collect();
        let namespaces: Vec<_> = ways.iter().map(|way| Arc::clone(&way.namespace)).collect();
        let copies = copies(&namespaces, &layout, &options);
        let sums = namespaces.iter().map(|it| gives_checksums(&**it, &options)).collect();
        let requests = if layout.order == Order::Free { options.requests } else { 1 };
        let total_bytes = layout.bytes;
        let now = Instant::now();
        let engine = Rc::new_cyclic(|this| Engine {
            this: Weak::clone(this),
            reactor: Rc::clone(reactor),
            before,
            shared,
            keep,
            watch,
            ended: RefCell::new(Some(ended)),
            started: now,
            stepping: Cell::new(true),
            gives_up: Arc::default(),
            state: RefCell::new(State {
                phase: Phase::Copying,
                pieces: (0..requests).map(|_| Piece::default()).collect(),
                idle: (0..requests).rev().collect(),
                ready: Vec::with_capacity(requests),
                next: from,
                map: VecDeque::new(),
                mapping: None,
                mark: Watermark::new(from),
                touched: 0,
                pace: Pace::default(),
                copy_bytes: 0,
                flush: Flush::default(),
                noted: now,
                epoch: 0,
                is_going_back: false,
                setbacks: 0,
                counts: Counts {
                    total_bytes,
                    done_bytes: from,
                    durable_bytes: from,
                    ..Counts::default()
                },
                sum: Sum::default(),
                stopping: false,
                failure: None,
                closing: None,
                tick: None,
                waiting: false,
            }),
            layout,
            options,
            ways,
            limits,
            sums,
            copies,
        });
        engine.shared.begin();
        engine.note_copied(true);
        engine.state.borrow_mut().epoch = engine.epoch();
        reactor.defer(Rc::clone(&engine) as Rc<dyn Complete>, STEP);
        engine.set_tick(TICK_INTERVAL);
        Ok(())
    }

    fn this(&self) -> Rc<Engine> {
        self.this.upgrade().expect("a copy that is running is alive")
    }

    fn defer_step(&self) {
        if !self.stepping.replace(true) {
            self.reactor.defer(self.this(), STEP);
        }
    }

    fn set_tick(&self, wait: Duration) {
        let mut state = self.state.borrow_mut();
        if let Some(tick) = state.tick.take() {
            self.reactor.cancel_timer(tick);
        }
        state.tick = Some(self.reactor.timer(self.reactor.now() + wait, self.this(), TICK));
    }

    /// Time since it began.
    fn now(&self) -> Duration {
        self.reactor.now().saturating_duration_since(self.started)
    }

    fn is_copied(&self, volume: usize, target: usize) -> bool {
        self.copies[volume * self.layout.targets.len() + target]
    }

    /// Does what can be done now.
    fn step(&self) {
        self.stepping.set(false);
        {
            let mut state = self.state.borrow_mut();
            let was_busy = state.idle.len() < state.pieces.len();
            let now = self.now();
            state.pace.account(now, was_busy);
            state.pace.set(self.shared.throttle(), now);
            state.stopping |= self.shared.wish() == Wish::Stop;
            if Self::is_closing(&state) {
                let since = *state.closing.get_or_insert(now);
                self.gives_up.store(now - since >= GIVE_UP_AFTER, Ordering::Relaxed);
            }
        }
        loop {
            let Some(index) = self.state.borrow_mut().ready.pop() else { break };
            self.piece_ended(index);
        }
        loop {
            let Some((request, volume)) = self.state.borrow_mut().flush.back.pop() else { break };
            self.flushed(request, volume);
        }
        self.go_back_if_due();
        self.start_pieces();
        self.flush_if_due();
        self.end_if_over();
    }

    /// Whether nothing more is to be started.
    fn is_closing(state: &State) -> bool {
        state.stopping || state.failure.is_some()
    }

    /// Tells the end, once nothing is in flight.
    fn end_if_over(&self) {
        let mut state = self.state.borrow_mut();
        let is_idle = state.idle.len() == state.pieces.len()
            && state.mapping.is_none()
            && state.flush.left == 0
            && !state.flush.saving;
        let verified = state.phase == Phase::Verifying
            && (state.counts.verified_bytes >= self.layout.bytes || Self::is_closing(&state));
        let flushed = state.phase == Phase::Flushing && state.flush.is_last;
        if !is_idle || !(verified || flushed) {
            return;
        }
        let Some(ended) = self.ended.take() else { return };
        let durable = state.mark.durable();
        let outcome = match state.failure.take() {
            Some(failure) => Outcome::Failed(failure, durable),
            None if durable < self.layout.bytes => Outcome::Stopped(durable),
            None if !self.options.verify => Outcome::Done(None),
            None if state.counts.verified_bytes < self.layout.bytes => Outcome::Stopped(durable),
            None => Outcome::Done(Some(state.sum.whole())),
        };
        if let Some(tick) = state.tick.take() {
            self.reactor.cancel_timer(tick);
        }
        let was_waiting = std::mem::take(&mut state.waiting);
        drop(state);
        if was_waiting {
            // Whoever is in that line is kept, with volumes and their locks.
            let this: Rc<dyn Complete> = self.this();
            self.reactor.buffers().stop_waiting(&this, MEMORY);
        }
        self.tell();
        ended(outcome);
    }

    /// Counts what guards have copied since the copy began: `is_start` notes where they stood.
    fn note_copied(&self, is_start: bool) {
        let (mut offloaded, mut moved) = (0u64, 0u64);
        for volume in self.targets() {
            let copied = self.ways[volume].namespace.copied();
            offloaded += copied.offloaded_bytes;
            moved += copied.moved_bytes;
        }
        let mut state = self.state.borrow_mut();
        if is_start {
            state.sum.copied_before = (offloaded, moved);
        }
        let (offloaded_before, moved_before) = state.sum.copied_before;
        // Others may copy to the same volumes: it is never more than was asked for.
        let most = state.counts.command_bytes;
        state.counts.offloaded_bytes = offloaded.saturating_sub(offloaded_before).min(most);
        state.counts.moved_bytes = moved.saturating_sub(moved_before).min(most);
    }

    fn counts_of(&self, state: &State) -> Counts {
        self.before.plus(state.counts)
    }

    /// Says how far it is.
    fn tell(&self) {
        self.note_copied(false);
        let state = self.state.borrow();
        let (phase, counts) = (state.phase, self.counts_of(&state));
        drop(state);
        self.shared.tell(phase, counts);
        if let Some(watch) = &self.watch {
            watch(&self.shared);
        }
    }
}

/// Whether each volume is copied to each target with Copy commands: volumes times targets.
///
/// Several targets that are all apart from a source are written from one read.
pub fn copies(volumes: &[Arc<dyn Namespace>], layout: &Layout, options: &Options) -> Vec<bool> {
    let mut copies = Vec::with_capacity(volumes.len() * layout.targets.len());
    for (number, source) in volumes.iter().enumerate() {
        let targets = || layout.targets.iter().map(|target| &volumes[target.volume]);
        let is_read = layout.extents.iter().any(|extent| extent.volume == number);
        let apart = targets().filter(|_| is_read && !options.fast_only);
        let apart: Vec<_> = match layout.targets.len() {
            1 => Vec::new(),
            _ => apart.filter(|target| !is_near(source, target)).collect(),
        };
        let reads_once = apart.len() > 1;
        copies.extend(targets().map(|target| {
            let is_apart = apart.iter().any(|one| Arc::ptr_eq(one, target));
            can_copy(&source.limits(), &target.limits(), options) && !(reads_once && is_apart)
        }));
    }
    copies
}

/// Whether a volume is verified by checksums that it gives, not by reading it here.
pub fn gives_checksums(volume: &dyn Namespace, options: &Options) -> bool {
    let limits = volume.limits();
    let can = limits.commands.checksum && limits.metadata_bytes == 0;
    can && volume.gives_checksums() && !options.read_write
}

/// Whether `source` can be copied to `target` with Copy commands.
pub fn can_copy(source: &Limits, target: &Limits, options: &Options) -> bool {
    target.copy.is_offered()
        && source.block_shift == target.block_shift
        && source.metadata_bytes == target.metadata_bytes
        && options.why_read().is_none()
}

impl Sink for Engine {
    fn completed(&self, request: Box<Request>, number: u64) {
        let mut state = self.state.borrow_mut();
        if number & FLUSH != 0 {
            state.flush.back.push((request, (number & !FLUSH) as usize));
        } else {
            state.pieces[number as usize].request = Some(request);
            state.ready.push(number as usize);
        }
        drop(state);
        self.defer_step();
    }
}

impl Complete for Engine {
    fn complete(&self, token: u64, result: i32, _flags: u32) {
        match token {
            TICK => {
                self.state.borrow_mut().tick = None;
                if self.ended.borrow().is_none() {
                    return;
                }
                self.tell();
                self.set_tick(TICK_INTERVAL);
            }
            MAPPED => self.mapped(result),
            SAVED => self.saved(result),
            MEMORY => self.state.borrow_mut().waiting = false,
            _ => {}
        }
        self.step();
    }
}
