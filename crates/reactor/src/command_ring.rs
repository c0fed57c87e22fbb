//! Rings beside the first, for one purpose each: polled completions, a submission thread, NVMe
//! commands where the first ring takes none.

use crate::files::{Files, FixedFile};
use crate::pieces::Pieces;
use crate::reactor::{Deferred, Waiting, kernels_ring};
use crate::slots::{OWN, Slots};
use crate::stats::Counts;
use crate::turn::sound;
use crate::{Buffer, BufferPool, Complete, Error, Interest, Reactor, WatchId};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::{Rc, Weak};
use uring::{BigEntry, Completion, Entry, MORE, Ring, RingOptions, Setup, Wait, entry};

/// A further ring of a reactor, on the same thread, with its own table of files and its own
/// registration of the pool's memory ([`CommandRing::fixed_index`]; it pins and counts again).
///
/// What was submitted goes to the kernel once per turn. While something is in flight, a ring that
/// polls, or that has a submission thread, keeps the reactor from sleeping; of others the first
/// ring tells the loop when there is something to reap.
///
/// Where completions are polled for with a sleep first ([`RingOptions::hybrid_iopoll`]), each turn
/// takes as long as that sleep: for threads that have little else to do.
pub struct CommandRing {
    this: Weak<CommandRing>,
    reactor: Weak<Reactor>,
    rings: Rc<CommandRings>,
    options: RingOptions,
    ring: RefCell<Ring>,
    slots: RefCell<Slots>,
    backlog: RefCell<VecDeque<Waiting>>,
    /// What was refused, to be told in the next turn.
    answers: RefCell<VecDeque<Deferred>>,
    files: RefCell<Files>,
    /// Places that queued entries may name: emptied when the kernel has taken all of those.
    left: RefCell<Vec<FixedFile>>,
    pool: BufferPool,
    pieces: Pieces,
    /// In the list of those that have something in flight.
    listed: Cell<bool>,
    watch: Rc<Watch>,
}

/// The first ring's poll of this one's descriptor.
#[derive(Default)]
struct Watch {
    armed: Cell<Option<WatchId>>,
}

impl Complete for Watch {
    fn complete(&self, _token: u64, _result: i32, _flags: u32) {
        self.armed.set(None);
    }
}

/// Those rings of a reactor that have something in flight.
#[derive(Default)]
pub struct CommandRings {
    listed: RefCell<Vec<Rc<CommandRing>>>,
    /// Length of `listed`.
    count: Cell<usize>,
    /// The reactor takes nothing new.
    refusing: Cell<bool>,
    /// The reactor delivers nothing any more.
    ended: Cell<bool>,
    pub counts: Counts,
}

impl Reactor {
    /// Makes a further ring.
    ///
    /// # Errors
    /// [`Error::Ring`] names the option that the kernel does not agree to.
    pub fn command_ring(&self, options: &RingOptions) -> Result<Rc<CommandRing>, Error> {
        if self.refusal().is_some() {
            // A filter may let it be made, and refuse the call that is made all the time.
            kernels_ring(&RingOptions::default())?;
        }
        let looked_for = options.iopoll || options.hybrid_iopoll || options.sqpoll.is_some();
        let watched = RingOptions { shared: false, pollable: !looked_for, ..*options };
        let mut ring = Ring::with_options(&watched)?;
        let pieces = self.buffers.pieces_for(&mut ring);
        Ok(Rc::new_cyclic(|this| CommandRing {
            this: Weak::clone(this),
            reactor: Weak::clone(&self.this),
            rings: Rc::clone(&self.commands),
            options: *options,
            ring: RefCell::new(ring),
            slots: RefCell::default(),
            backlog: RefCell::default(),
            answers: RefCell::default(),
            files: RefCell::default(),
            left: RefCell::default(),
            pool: self.buffers.share(),
            pieces,
            listed: Cell::new(false),
            watch: Rc::default(),
        }))
    }
}

impl CommandRing {
    /// Starts an NVMe command ([`entry::nvme_command`]); it is submitted at the end of this turn at
    /// the latest. `sink` is told the result ([`Complete::complete_command`]): `-EOPNOTSUPP` if
    /// this ring takes no commands, `-ECANCELED` if the reactor is stopping. When it has ended, the
    /// sink is dropped untold.
    ///
    /// # Safety
    /// As for [`Reactor::submit`].
    pub unsafe fn submit_command(&self, entry: BigEntry, sink: Rc<dyn Complete>, token: u64) {
        if !self.ring.borrow().takes_big() {
            return self.answer(sink, token, Errno::OPNOTSUPP);
        }
        if let Some(key) = self.begin(sink, token) {
            // SAFETY: the caller vouches for what the entry points to.
            unsafe { self.queue(Waiting::Big(entry.user_data(key))) };
        }
    }

    /// As [`CommandRing::submit_command`], of an entry that is made where the kernel finds it
    /// ([`Reactor::place_command`]).
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
        let takes = !self.rings.refusing.get() && self.backlog.borrow().is_empty();
        let mut ring = self.ring.borrow_mut();
        let Some(place) = (if takes { ring.next_big() } else { None }) else { return Err(sink) };
        fill(place);
        self.list();
        self.rings.counts.submitted.add(1);
        place.set_user_data(self.slots.borrow_mut().insert(sink, token, false));
        // SAFETY: it is filled, and the caller vouches for what it points to.
        unsafe { ring.publish_big() };
        Ok(())
    }

    /// Starts any other operation, as [`CommandRing::submit_command`].
    ///
    /// # Safety
    /// As for [`Reactor::submit`].
    #[inline]
    pub unsafe fn submit(&self, entry: Entry, sink: Rc<dyn Complete>, token: u64) {
        if let Some(key) = self.begin(sink, token) {
            // SAFETY: the caller vouches for what the entry points to.
            unsafe { self.queue(Waiting::Small(entry.user_data(key))) };
        }
    }

    /// Registers a file with this ring. `None` if the table is full or refused: use the descriptor
    /// then.
    pub fn register_file(&self, fd: RawFd) -> Option<FixedFile> {
        self.empty_left();
        self.files.borrow_mut().register(&mut self.ring.borrow_mut(), fd)
    }

    /// Takes a file out of this ring's table, as soon as no queued entry may name the place. Operations in flight on it go
    /// on.
    pub fn unregister_file(&self, file: FixedFile) {
        self.left.borrow_mut().push(file);
        self.flush();
        self.empty_left();
    }

    /// Empties the places that were left, if nothing is queued: a thread of the kernel takes what is in its own time.
    fn empty_left(&self) {
        let mut left = self.left.borrow_mut();
        if left.is_empty() || !self.is_handed_over() {
            return;
        }
        let (mut files, mut ring) = (self.files.borrow_mut(), self.ring.borrow_mut());
        left.drain(..).for_each(|file| files.unregister(&mut ring, file));
    }

    /// As [`Reactor::hand_over`], of this ring.
    pub fn hand_over(&self) -> bool {
        self.flush();
        self.is_handed_over()
    }

    fn is_handed_over(&self) -> bool {
        self.ring.borrow().queued() == 0 && self.backlog.borrow().is_empty()
    }

    /// The index of a buffer's memory among this ring's registered buffers. Registers the
    /// surrounding 2 MiB if that was not tried yet; `None` if the kernel refuses, or the buffer is
    /// another reactor's.
    #[inline]
    pub fn fixed_index(&self, buffer: &Buffer) -> Option<u16> {
        if !buffer.is_of(&self.pool) {
            return None;
        }
        buffer.ensure_in(&self.pieces, &self.ring)
    }

    /// The same for memory of which only the index among the first ring's registered buffers is known
    /// ([`Buffer::fixed_index`]).
    #[inline]
    pub fn fixed_index_of(&self, index: u16) -> Option<u16> {
        self.pool.ensure_in(index, &self.pieces, &self.ring)
    }

    /// Why some memory is not registered with this ring, for people.
    pub fn refusal(&self) -> Option<String> {
        self.pieces.refusal()
    }

    /// What the ring was asked to be; [`RingOptions::explain`] has words for what it refuses.
    pub fn options(&self) -> &RingOptions {
        &self.options
    }

    /// What the kernel granted.
    pub fn setup(&self) -> Setup {
        self.ring.borrow().setup()
    }

    /// Whether the kernel knows an operation (codes in [`uring::code`]).
    pub fn supports(&self, code: u8) -> bool {
        self.ring.borrow().supports(code)
    }

    /// Operations submitted and not completed.
    pub fn in_flight(&self) -> usize {
        self.slots.borrow().live()
    }

    #[inline]
    fn begin(&self, sink: Rc<dyn Complete>, token: u64) -> Option<u64> {
        if self.rings.refusing.get() {
            self.answer(sink, token, Errno::CANCELED);
            return None;
        }
        self.list();
        self.rings.counts.submitted.add(1);
        Some(self.slots.borrow_mut().insert(sink, token, false))
    }

    #[cold]
    fn answer(&self, sink: Rc<dyn Complete>, token: u64, errno: Errno) {
        if self.rings.ended.get() {
            return;
        }
        self.list();
        self.answers.borrow_mut().push_back(Deferred {
            sink,
            token,
            result: -errno.raw_os_error(),
        });
    }

    #[inline]
    fn list(&self) {
        if !self.listed.replace(true) {
            let this = self.this.upgrade().expect("a ring being used is alive");
            self.rings.listed.borrow_mut().push(this);
            self.rings.count.set(self.rings.count.get() + 1);
        }
    }

    /// # Safety
    /// As for [`uring::Ring::push`].
    #[inline]
    unsafe fn queue(&self, entry: Waiting) {
        if self.backlog.borrow().is_empty() {
            // SAFETY: passed on to the caller.
            if unsafe { entry.push(&mut self.ring.borrow_mut()) } {
                return;
            }
            self.enter(Wait::No);
            // SAFETY: as above.
            if unsafe { entry.push(&mut self.ring.borrow_mut()) } {
                return;
            }
        }
        self.rings.counts.backlogged.add(1);
        self.backlog.borrow_mut().push_back(entry);
    }

    /// Hands what is queued to the kernel.
    fn flush(&self) {
        if !self.backlog.borrow().is_empty() {
            Waiting::refill(&mut self.backlog.borrow_mut(), &mut self.ring.borrow_mut());
        }
        let flushed = self.ring.borrow_mut().flush();
        if sound(flushed).unwrap_or(true) {
            self.rings.counts.enters.add(1);
        }
    }

    fn enter(&self, wait: Wait) {
        self.rings.counts.enters.add(1);
        let entered = self.ring.borrow_mut().enter(wait);
        sound(entered);
    }

    /// Whether completions come only when looked for.
    fn looks(&self) -> bool {
        let setup = self.ring.borrow().setup();
        setup.iopoll && !setup.sqpoll
    }

    /// Whether the loop shall not sleep while something is in flight here.
    fn polls(&self) -> bool {
        let setup = self.ring.borrow().setup();
        setup.iopoll || setup.sqpoll
    }

    /// One turn's part: submits, reaps, tells. Whether anybody was told anything.
    fn serve(&self) -> bool {
        if self.looks() && self.in_flight() > 0 {
            if !self.backlog.borrow().is_empty() {
                Waiting::refill(&mut self.backlog.borrow_mut(), &mut self.ring.borrow_mut());
            }
            self.enter(Wait::No);
        } else {
            self.flush();
        }
        self.empty_left();
        let mut worked = false;
        self.ring.borrow_mut().note_completed();
        loop {
            let Some(completion) = self.ring.borrow_mut().next_noted() else { break };
            self.rings.counts.completed.add(1);
            worked |= self.deliver(completion);
        }
        // As many as there are now: what is refused meanwhile has its turn in the next.
        let refused = self.answers.borrow().len();
        for _ in 0..refused {
            let answer = self.answers.borrow_mut().pop_front();
            let Some(Deferred { sink, token, result }) = answer else { break };
            worked = true;
            sink.complete_command(token, result, 0, 0);
        }
        worked
    }

    #[inline]
    fn deliver(&self, completion: Completion) -> bool {
        let Completion { user_data, result, flags, extra } = completion;
        if user_data & OWN != 0 {
            return false;
        }
        let pending = if flags & MORE == 0 {
            self.slots.borrow_mut().remove(user_data)
        } else {
            self.slots.borrow().peek(user_data)
        };
        let (sink, token) = pending.expect("the kernel completes what was submitted, once");
        sink.complete_command(token, result, flags, extra);
        true
    }

    fn is_idle(&self) -> bool {
        self.in_flight() == 0 && self.answers.borrow().is_empty() && self.left.borrow().is_empty()
    }

    /// Before the loop sleeps: what is queued goes out, and the first ring tells of completions.
    fn arm(&self, reactor: &Reactor) {
        self.flush();
        if self.watch.armed.get().is_none() {
            let fd = self.ring.borrow().as_raw_fd();
            let sink = Rc::clone(&self.watch) as Rc<dyn Complete>;
            self.watch.armed.set(Some(reactor.watch(fd, Interest::READ, sink, 0)));
        }
    }
}

impl Drop for CommandRing {
    fn drop(&mut self) {
        // A poll holds the ring's file, and with it all that the ring has in the kernel.
        if let (Some(watch), Some(reactor)) = (self.watch.armed.get(), self.reactor.upgrade()) {
            reactor.unwatch(watch);
        }
    }
}

impl std::fmt::Debug for CommandRing {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("CommandRing").field("setup", &self.setup()).finish_non_exhaustive()
    }
}

impl CommandRings {
    /// Whether any ring has something in flight.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.get() > 0
    }

    /// Operations in flight on all rings.
    pub fn in_flight(&self) -> usize {
        self.listed.borrow().iter().map(|ring| ring.in_flight()).sum()
    }

    /// Whether the loop must not sleep.
    #[inline]
    pub fn poll(&self) -> bool {
        self.any() && self.listed.borrow().iter().any(|ring| ring.polls())
    }

    /// A turn's part of all rings. Whether anybody was told anything.
    pub fn serve(&self) -> bool {
        let mut worked = false;
        // Backwards, since rings may be added meanwhile, and go.
        for place in (0..self.count.get()).rev() {
            let ring = Rc::clone(&self.listed.borrow()[place]);
            worked |= ring.serve();
            if ring.is_idle() {
                let idle = self.listed.borrow_mut().swap_remove(place);
                self.count.set(self.count.get() - 1);
                idle.listed.set(false);
            }
        }
        worked
    }

    /// Hands what is queued to the kernel.
    pub fn flush(&self) {
        for place in 0..self.count.get() {
            let ring = Rc::clone(&self.listed.borrow()[place]);
            ring.flush();
        }
    }

    /// Before the loop sleeps. `false` if it must not.
    pub fn arm(&self, reactor: &Reactor) -> bool {
        for place in 0..self.count.get() {
            let ring = Rc::clone(&self.listed.borrow()[place]);
            let waiting = !ring.answers.borrow().is_empty() || ring.ring.borrow().has_completions();
            if ring.polls() || waiting {
                return false;
            }
            ring.arm(reactor);
            // The kernel may have been short of memory.
            if !ring.is_handed_over() {
                return false;
            }
        }
        true
    }

    /// From now on nothing is taken.
    pub fn refuse(&self) {
        self.refusing.set(true);
    }

    /// From now on nobody is told anything.
    pub fn end(&self) {
        self.ended.set(true);
        let listed = self.listed.take();
        self.count.set(0);
        drop(listed);
    }

    /// Has the kernel end what it can still end.
    pub fn cancel_all(&self) {
        for ring in self.listed.borrow().iter() {
            // SAFETY: a cancellation points to no memory.
            unsafe { ring.queue(Waiting::Small(entry::cancel_any().user_data(OWN))) };
        }
    }
}
