//! The reactor and what can be asked of it; its loop is in `turn`.

use crate::blocking::{Blocking, Line, Work};
use crate::command_ring::CommandRings;
use crate::files::{Files, FixedFile};
use crate::mailbox::Post;
use crate::outside::Outside;
use crate::pollers::Pollers;
use crate::slots::{OWN, Slots};
use crate::spin::Spin;
use crate::stats::Counts;
use crate::timers::Timers;
use crate::{BufferPool, Complete, Error, Mailbox, Poll, PollerId, Stats, TimerId, affinity};
use rustix::io::Errno;
use std::cell::{Cell, OnceCell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::rc::{Rc, Weak};
use std::sync::Once;
use std::time::{Duration, Instant};
use uring::{BigEntry, Entry, File, Kind, Ring, RingOptions, Wait, entry};

/// Completion events of a poll, and what to wait for (`poll(2)`).
const POLLIN: u32 = 0x001;
const POLLOUT: u32 = 0x004;
const POLLRDHUP: u32 = 0x2000;

/// That io_uring is refused is logged once.
static TOLD: Once = Once::new();

/// How a reactor is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Entries of the submission queue; more in flight than that is no error.
    pub entries: u32,
    /// How long to spin after the last work before sleeping, where that has been paying; an hour at most.
    pub spin: Duration,
    /// Never sleep: trades a whole core for the time it takes to be woken.
    pub poll_always: bool,
    /// Run on this core only.
    pub cpu: Option<usize>,
    /// Address space of the buffer pool, in bytes; memory is used as far as needed.
    pub buffer_bytes: usize,
    /// Most threads for calls that block; started when needed.
    pub blocking_threads: usize,
    /// Places for buffers of drivers, behind the pool's in the ring's table of registered buffers
    /// ([`Reactor::kernel_buffers`]).
    pub kernel_buffers: u16,
    /// Where io_uring is refused, make do with a ring that this process serves by epoll and threads ([`Reactor::refusal`]).
    pub emulate: bool,
    /// Sizes of the ring's entries. All but [`Kind::Small`] take NVMe commands
    /// ([`Reactor::submit_command`]); docs/decisions/0005 says what they cost.
    pub kind: Kind,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            entries: 1024,
            spin: Duration::from_micros(50),
            poll_always: false,
            cpu: None,
            buffer_bytes: 32 << 20,
            blocking_threads: 4,
            kernel_buffers: 0,
            emulate: true,
            kind: Kind::Small,
        }
    }
}

/// Readiness to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(u32);

impl Interest {
    /// Something to read, a connection to accept, or the end of the stream.
    pub const READ: Interest = Interest(POLLIN | POLLRDHUP);
    /// Room to write.
    pub const WRITE: Interest = Interest(POLLOUT);
}

impl std::ops::BitOr for Interest {
    type Output = Interest;
    fn bitor(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

/// A watch that was started; see [`Reactor::unwatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchId(u64);

/// An operation that can be ended early; see [`Reactor::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationId(u64);

/// One core's event loop. See the crate's documentation.
pub struct Reactor {
    pub(crate) this: Weak<Reactor>,
    pub(crate) config: Config,
    /// The ring has entries of 128 bytes.
    takes_big: bool,
    /// Why the ring is emulated, if it is.
    refusal: Option<uring::Error>,
    pub(crate) ring: Rc<RefCell<Ring>>,
    pub(crate) slots: RefCell<Slots>,
    /// Entries for which the kernel had no room.
    pub(crate) backlog: RefCell<VecDeque<Waiting>>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) pollers: RefCell<Pollers>,
    pub(crate) deferred: RefCell<VecDeque<Deferred>>,
    /// Empty between turns, unless a sink has panicked; swapped with `deferred`.
    pub(crate) deferring: RefCell<VecDeque<Deferred>>,
    /// Told when the completions at hand are delivered; moved to `settled`, which is empty between.
    pub(crate) settling: RefCell<VecDeque<(Rc<dyn Complete>, u64)>>,
    pub(crate) settled: RefCell<VecDeque<(Rc<dyn Complete>, u64)>>,
    /// One of these two has somebody.
    pub(crate) settles: Cell<bool>,
    /// Whether one of these, the backlog or `post` may not be empty.
    pub(crate) stirred: Cell<bool>,
    pub(crate) mailbox: Mailbox,
    pub(crate) post: RefCell<Post>,
    pub(crate) blocking: OnceCell<Blocking>,
    pub(crate) buffers: BufferPool,
    /// It may spin at all: `spin` is asked.
    pub(crate) spins: bool,
    pub(crate) spin: RefCell<Spin>,
    /// The time, if somebody has asked for it in this turn.
    pub(crate) now: Cell<Option<Instant>>,
    pub(crate) state: Cell<State>,
    /// The sleep before this turn ended with completions, which were delivered.
    pub(crate) woken: Cell<bool>,
    pub(crate) counts: Counts,
    /// How many completions there had been when [`Reactor::wait_turn`] was called last.
    pub(crate) waited_at: Cell<u64>,
    /// What completions since then stood for beside themselves.
    pub(crate) brought: Cell<i64>,
    /// A read of the mailbox's eventfd is in flight, into `wakes`.
    pub(crate) wake_armed: Cell<bool>,
    pub(crate) wakes: UnsafeCell<u64>,
    pub(crate) outside: Outside,
    /// [`Reactor::run`] or a turn of the caller's is under way.
    pub(crate) turning: Cell<bool>,
    /// Rings beside the first that have something in flight.
    pub(crate) commands: Rc<CommandRings>,
    files: RefCell<Files>,
}

/// An entry for which there was no room.
pub(crate) enum Waiting {
    Small(Entry),
    Big(BigEntry),
}

/// A completion to deliver at the end of the turn.
pub(crate) struct Deferred {
    pub sink: Rc<dyn Complete>,
    pub token: u64,
    pub result: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// [`Reactor::stop`] was called; the turn is finished.
    Stopping,
    /// Waiting for what the kernel holds; nothing new is taken.
    Draining,
    /// Nothing is in flight and nothing is taken.
    Ended,
}

impl Reactor {
    /// Makes a reactor that belongs to the calling thread.
    ///
    /// Where io_uring is refused, a ring that this process serves by epoll and threads takes its place
    /// ([`Reactor::refusal`]), which takes no NVMe commands whatever [`Config::kind`] says.
    ///
    /// # Errors
    /// [`Error::Ring`] says who refuses io_uring and what to allow, or what the kernel lacks.
    pub fn new(config: &Config) -> Result<Rc<Reactor>, Error> {
        if let Some(cpu) = config.cpu {
            affinity::pin(cpu).map_err(|source| Error::Pin { cpu, source })?;
        }
        let (ring, refusal) = ring_for(config)?;
        let takes_big = ring.takes_big();
        let ring = Rc::new(RefCell::new(ring));
        let bytes = config.buffer_bytes;
        let buffers = BufferPool::new(bytes, Some(Rc::clone(&ring)), config.kernel_buffers)
            .map_err(|source| Error::Buffers { bytes, source })?;
        let mailbox = Mailbox::new().map_err(Error::Wake)?;
        Ok(Rc::new_cyclic(|this| Reactor {
            this: Weak::clone(this),
            config: config.clone(),
            takes_big,
            refusal,
            ring,
            slots: RefCell::default(),
            backlog: RefCell::default(),
            timers: RefCell::default(),
            pollers: RefCell::default(),
            deferred: RefCell::default(),
            deferring: RefCell::default(),
            settling: RefCell::default(),
            settled: RefCell::default(),
            settles: Cell::new(false),
            stirred: Cell::new(false),
            mailbox,
            post: RefCell::default(),
            blocking: OnceCell::new(),
            buffers,
            spins: !config.spin.is_zero(),
            spin: RefCell::new(Spin::new(config.spin)),
            now: Cell::new(None),
            state: Cell::new(State::Running),
            woken: Cell::new(false),
            counts: Counts::default(),
            waited_at: Cell::new(0),
            brought: Cell::new(0),
            wake_armed: Cell::new(false),
            wakes: UnsafeCell::new(0),
            outside: Outside::default(),
            turning: Cell::new(false),
            commands: Rc::default(),
            files: RefCell::default(),
        }))
    }

    /// Why this reactor does without io_uring, if it does: who refuses it, and what to allow. The first of a process is logged.
    pub fn refusal(&self) -> Option<&uring::Error> {
        self.refusal.as_ref()
    }

    /// Ends [`Reactor::run`] after this turn. Finish or give up what is to be acknowledged before:
    /// operations started later complete with `-ECANCELED`.
    pub fn stop(&self) {
        if self.state.get() == State::Running {
            self.state.set(State::Stopping);
        }
    }

    /// The time of this turn: the clock is read when it is first asked for, and not again until the next. Asked for
    /// between two [`Reactor::turn_for`], it is the time of the first such question after the turn.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now.get().unwrap_or_else(|| {
            let now = Instant::now();
            self.now.set(Some(now));
            now
        })
    }

    /// Starts an operation of the kernel; it is submitted at the end of this turn at the latest.
    /// `sink` is told the result, and for multishot entries each of the results.
    ///
    /// # Safety
    /// What `entry` points to stays valid until `sink` was told (the last of) its results. To have
    /// the sink own it is enough: the reactor keeps the sink until then.
    #[inline]
    pub unsafe fn submit(&self, entry: Entry, sink: Rc<dyn Complete>, token: u64) {
        if self.refuses() {
            return self.refuse(sink, token, Errno::CANCELED);
        }
        let key = self.slots.borrow_mut().insert(sink, token, false);
        // SAFETY: the caller vouches for what the entry points to.
        unsafe { self.queue(entry.user_data(key)) };
    }

    /// Starts an operation that completes as it is submitted: a sleep is not ended by that.
    ///
    /// # Safety
    /// As for [`Reactor::submit`].
    #[inline]
    pub unsafe fn submit_at_once(&self, entry: Entry, sink: Rc<dyn Complete>, token: u64) {
        // SAFETY: passed on to the caller.
        unsafe { self.submit(entry, sink, token) };
        if self.backlog.borrow().is_empty() && !self.refuses() {
            self.ring.borrow_mut().completes_at_once();
        }
    }

    /// The completion that is being delivered brings as much to do as `others` more would, or nothing if -1: whether to
    /// sleep or to spin depends on it ([`Reactor::wait_turn`]).
    #[inline]
    pub fn stands_for(&self, others: i64) {
        self.brought.set(self.brought.get() + others);
    }

    /// Starts an operation as [`Reactor::submit`] does, and names it for [`Reactor::cancel`].
    ///
    /// # Safety
    /// As for [`Reactor::submit`].
    #[inline]
    pub unsafe fn start(&self, entry: Entry, sink: Rc<dyn Complete>, token: u64) -> OperationId {
        if self.refuses() {
            self.answer(sink, token, -Errno::CANCELED.raw_os_error());
            return OperationId(OWN);
        }
        let key = self.slots.borrow_mut().insert(sink, token, false);
        // SAFETY: the caller vouches for what the entry points to.
        unsafe { self.queue(entry.user_data(key)) };
        OperationId(key)
    }

    /// Asks the kernel to end an operation early; its sink is told in any case, with `-ECANCELED`, or with
    /// what had become of it. No effect on one that has ended.
    pub fn cancel(&self, id: OperationId) {
        if self.slots.borrow().contains(id.0) {
            // SAFETY: a cancellation points to no memory.
            unsafe { self.queue(entry::cancel(id.0).user_data(OWN)) };
        }
    }

    /// Whether [`Reactor::submit_command`] works: the ring has big entries.
    #[inline]
    pub fn takes_commands(&self) -> bool {
        self.takes_big
    }

    /// Starts an NVMe command ([`entry::nvme_command`]); it is submitted at the end of this turn at
    /// the latest. `sink` is told the result ([`Complete::complete_command`]), which is
    /// `-EOPNOTSUPP` if the ring takes no commands.
    ///
    /// # Safety
    /// As for [`Reactor::submit`].
    #[inline]
    pub unsafe fn submit_command(&self, entry: BigEntry, sink: Rc<dyn Complete>, token: u64) {
        if self.refuses() {
            return self.refuse(sink, token, Errno::CANCELED);
        }
        if !self.takes_commands() {
            return self.refuse(sink, token, Errno::OPNOTSUPP);
        }
        let key = self.slots.borrow_mut().insert(sink, token, false);
        // SAFETY: the caller vouches for what the entry points to.
        unsafe { self.queue_big(entry.user_data(key)) };
    }

    /// As [`Reactor::submit_command`], of an entry that is made where the kernel finds it: `fill` sets all of it, and calls
    /// nobody. Where that cannot be, for want of room or of such a place, the sink comes back, for
    /// [`Reactor::submit_command`].
    ///
    /// # Safety
    /// As for [`Reactor::submit`].
    #[inline]
    pub unsafe fn place_command(
        &self,
        sink: Rc<dyn Complete>,
        token: u64,
        fill: impl FnOnce(&mut BigEntry),
    ) -> Result<(), Rc<dyn Complete>> {
        let takes = !self.refuses() && self.backlog.borrow().is_empty();
        let mut ring = self.ring.borrow_mut();
        let Some(place) = (if takes { ring.next_big() } else { None }) else { return Err(sink) };
        fill(place);
        place.set_user_data(self.slots.borrow_mut().insert(sink, token, false));
        // SAFETY: it is filled, and the caller vouches for what it points to.
        unsafe { ring.publish_big() };
        self.counts.submitted.add(1);
        Ok(())
    }

    /// Tells `sink` once when `fd` is ready: the result has the events that are there (`POLLIN`,
    /// `POLLOUT`, `POLLHUP`, ...), or is `-ECANCELED` after [`Reactor::unwatch`]. `fd` must stay open
    /// until then: unwatch, and close when told.
    pub fn watch(
        &self,
        fd: RawFd,
        interest: Interest,
        sink: Rc<dyn Complete>,
        token: u64,
    ) -> WatchId {
        if self.refuses() {
            self.answer(sink, token, -Errno::CANCELED.raw_os_error());
            return WatchId(OWN);
        }
        let key = self.slots.borrow_mut().insert(sink, token, true);
        let entry = entry::poll_add(File::Fd(fd), interest.0).user_data(key);
        // SAFETY: a poll points to no memory.
        unsafe { self.queue(entry) };
        WatchId(key)
    }

    /// Ends a watch early; its sink is still told, with `-ECANCELED` or what came before that. No
    /// effect on a watch that has ended.
    pub fn unwatch(&self, id: WatchId) {
        if self.slots.borrow().contains(id.0) {
            // SAFETY: a removal points to no memory.
            unsafe { self.queue(entry::poll_remove(id.0).user_data(OWN)) };
        }
    }

    /// Tells `sink` once at `at` or soon after, with result 0.
    pub fn timer(&self, at: Instant, sink: Rc<dyn Complete>, token: u64) -> TimerId {
        self.timers.borrow_mut().set(at, sink, token)
    }

    /// Drops a timer: its sink is not told. No effect on one that has fired.
    pub fn cancel_timer(&self, id: TimerId) {
        let cancelled = self.timers.borrow_mut().cancel(id);
        drop(cancelled);
    }

    /// Runs `work` on a thread where it may block, and tells `sink` what it returned: by custom a
    /// count or `-errno`; `-EIO` if it panicked, `-EAGAIN` if no thread can be had.
    pub fn blocking(&self, work: Work, sink: Rc<dyn Complete>, token: u64) {
        self.run_blocking(work, sink, token, None);
    }

    /// The same for work that takes long: [`Reactor::long_threads`] at most are busy with it, so that other calls
    /// that block need not wait for it.
    pub fn blocking_long(&self, work: Work, sink: Rc<dyn Complete>, token: u64) {
        self.blocking_in(Line::COMMON, work, sink, token);
    }

    /// The same in a line of its own: what waits there is done by a thread that has just done something of this line,
    /// without waking another.
    pub fn blocking_in(&self, line: Line, work: Work, sink: Rc<dyn Complete>, token: u64) {
        self.run_blocking(work, sink, token, Some(line));
    }

    /// Threads that may be busy with [`Reactor::blocking_long`] at a time.
    pub fn long_threads(&self) -> usize {
        crate::blocking::long_max(self.config.blocking_threads)
    }

    fn run_blocking(&self, work: Work, sink: Rc<dyn Complete>, token: u64, line: Option<Line>) {
        if self.refuses() {
            return self.answer(sink, token, -Errno::CANCELED.raw_os_error());
        }
        let key = self.slots.borrow_mut().insert(sink, token, false);
        let start = || Blocking::new(self.config.blocking_threads, self.mailbox.clone());
        self.blocking.get_or_init(start).run(work, key, line);
    }

    /// Tells `sink` at the end of this turn, after all completions of the turn were delivered; or
    /// of the next one, if called during the end of a turn.
    #[inline]
    pub fn defer(&self, sink: Rc<dyn Complete>, token: u64) {
        self.answer(sink, token, 0);
    }

    /// Tells `sink` as soon as the completions that are there are delivered: for those who gather what these bring, and
    /// then start one operation for all. From elsewhere than a completion, when the next are looked for.
    #[inline]
    pub fn settle(&self, sink: Rc<dyn Complete>, token: u64) {
        self.settling.borrow_mut().push_back((sink, token));
        self.settles.set(true);
        self.stirred.set(true);
    }

    /// Adds a poller, which is active at first.
    pub fn attach(&self, poller: Rc<dyn Poll>) -> PollerId {
        self.pollers.borrow_mut().attach(poller)
    }

    /// Polls a parked poller again, from the next turn on.
    #[inline]
    pub fn activate(&self, id: PollerId) {
        self.pollers.borrow_mut().activate(id);
    }

    /// Removes a poller; it is not polled again.
    pub fn detach(&self, id: PollerId) {
        let poller = self.pollers.borrow_mut().detach(id);
        drop(poller);
    }

    /// Changes when pollers count as a crowd: with more than `direct_max` active, and for a
    /// millisecond after, each is parked after `patience` fruitless polls in a row. The defaults,
    /// 8 and 8, were measured
    /// (docs/decisions/0002-sockets-ring-or-direct.md).
    pub fn set_crowd(&self, direct_max: usize, patience: u32) {
        self.pollers.borrow_mut().set_crowd(direct_max, patience);
    }

    /// A handle by which other threads reach this reactor.
    pub fn mailbox(&self) -> Mailbox {
        self.mailbox.clone()
    }

    /// The buffer pool.
    #[inline]
    pub fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// Indexes among the ring's registered buffers that are the caller's, for pages that a driver of
    /// the kernel registers: as many as [`Config::kernel_buffers`] says. `None` if the kernel made
    /// no table.
    pub fn kernel_buffers(&self) -> Option<Range<u16>> {
        let first = self.buffers.first_kernel_buffer()?;
        Some(first..first + self.config.kernel_buffers)
    }

    /// Puts `len` bytes at `start` at one of the indexes of [`Reactor::kernel_buffers`], as a driver does with
    /// its pages: entries then name the memory by index and address. What was there before goes when no
    /// operation uses it.
    ///
    /// # Panics
    /// If the index is not one of those.
    ///
    /// # Safety
    /// The memory stays mapped as long as the reactor lives.
    pub unsafe fn register_memory(&self, index: u16, start: *mut u8, len: usize) -> io::Result<()> {
        let ours = self.kernel_buffers().is_some_and(|indexes| indexes.contains(&index));
        assert!(ours, "{index} is not the caller's");
        // SAFETY: passed on to the caller.
        unsafe { self.ring.borrow_mut().update_buffer(index.into(), start, len) }
    }

    /// Registers a file with the ring, which spares the kernel a look-up per operation. `None` if
    /// the table is full or refused: use the descriptor then.
    pub fn register_file(&self, fd: RawFd) -> Option<FixedFile> {
        self.files.borrow_mut().register(&mut self.ring.borrow_mut(), fd)
    }

    /// Takes a file out of the table. Operations in flight on it go on.
    pub fn unregister_file(&self, file: FixedFile) {
        // Queued entries name the place, not the file: the kernel must see them first. Where it
        // takes none just now, the place is given up rather than handed to another file.
        if self.hand_over() {
            self.files.borrow_mut().unregister(&mut self.ring.borrow_mut(), file);
        }
    }

    /// Hands what was started on this ring to the kernel now. Whether that has taken all of it: then no entry names a
    /// descriptor any more, which may be closed.
    pub fn hand_over(&self) -> bool {
        self.flush();
        self.ring.borrow().queued() == 0 && self.backlog.borrow().is_empty()
    }

    /// What the kernel granted the ring.
    pub fn setup(&self) -> uring::Setup {
        self.ring.borrow().setup()
    }

    /// Whether the kernel knows an operation (codes in [`uring::code`]).
    pub fn supports(&self, code: u8) -> bool {
        self.ring.borrow().supports(code)
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let (counts, further) = (&self.counts, &self.commands.counts);
        Stats {
            turns: counts.turns.read(),
            enters: counts.enters.read() + further.enters.read(),
            sleeps: counts.sleeps.read(),
            submitted: counts.submitted.read() + further.submitted.read(),
            completed: counts.completed.read() + further.completed.read(),
            spins_fruitless: self.spin.borrow().fruitless,
            crowd_parks: counts.crowd_parks.read(),
            backlogged: counts.backlogged.read() + further.backlogged.read(),
            letters: counts.letters.read(),
            in_flight: self.slots.borrow().live() + self.commands.in_flight(),
        }
    }

    #[inline]
    pub(crate) fn refuses(&self) -> bool {
        matches!(self.state.get(), State::Draining | State::Ended)
    }

    #[cold]
    fn refuse(&self, sink: Rc<dyn Complete>, token: u64, errno: Errno) {
        self.answer(sink, token, -errno.raw_os_error());
    }

    #[inline]
    fn answer(&self, sink: Rc<dyn Complete>, token: u64, result: i32) {
        self.deferred.borrow_mut().push_back(Deferred { sink, token, result });
        self.stirred.set(true);
    }
}

/// The kernel's ring; where it is refused, one that is emulated, which takes no commands, and why.
fn ring_for(config: &Config) -> Result<(Ring, Option<uring::Error>), Error> {
    let (entries, kind) = (config.entries, config.kind);
    match kernels_ring(&RingOptions { entries, kind, ..RingOptions::default() }) {
        Ok(ring) => Ok((ring, None)),
        Err(Error::Ring(refusal)) if config.emulate && refusal.is_refusal() => {
            TOLD.call_once(|| {
                tracing::warn!(
                    "io_uring is not used: {refusal}. Until then epoll and threads do its work: files are slower, and \
                     /dev/ngXnY and ublk are not to be had"
                );
            });
            let ring = Ring::emulated(entries, affinity::unpin).map_err(Error::Emulated)?;
            Ok((ring, Some(refusal)))
        }
        Err(error) => Err(error),
    }
}

/// Why reactors take no NVMe commands here, if io_uring is refused to this process; makes a ring to see it.
pub fn refusal() -> Option<uring::Error> {
    match kernels_ring(&RingOptions::default()) {
        Err(Error::Ring(refusal)) if refusal.is_refusal() => Some(refusal),
        _ => None,
    }
}

/// A ring of the kernel's that does something.
pub(crate) fn kernels_ring(options: &RingOptions) -> Result<Ring, Error> {
    let mut ring = Ring::with_options(options)?;
    check_enter(&mut ring)?;
    Ok(ring)
}

/// Does one operation, since a filter may allow set-up and refuse the call that is made all the time.
fn check_enter(ring: &mut Ring) -> Result<(), Error> {
    // SAFETY: a no-operation points to nothing.
    unsafe { ring.push(&entry::nop().user_data(OWN)) }.expect("a new ring has room");
    ring.enter(Wait::Forever).map_err(|source| uring::Error::explain("io_uring_enter", source))?;
    let mut completions = Vec::with_capacity(1);
    while completions.is_empty() {
        ring.reap(&mut completions);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reactor_is_its_threads_own() {
        // Compiles only as long as `Reactor` is not Send: both impls would apply otherwise.
        trait NotSend<A> {
            fn holds() -> bool {
                true
            }
        }
        impl<T: ?Sized> NotSend<()> for T {}
        struct Sent;
        impl<T: ?Sized + Send> NotSend<Sent> for T {}
        assert!(<Reactor as NotSend<_>>::holds());
        assert!(<crate::Buffer as NotSend<_>>::holds());
    }
}
