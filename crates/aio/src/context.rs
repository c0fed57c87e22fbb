//! A context: the kernel's own, and beside it a ring of io_uring once its program is known to take
//! events by calling us.
//!
//! ```text
//!   Proving ──program waits in io_getevents──> Ring ──eventfd, file that punts──> Native
//!      │                                        ^  └──few requests at a time──────>  │^
//!      │                                        └─────────lists of more ─────────────'│
//!      └──────eventfd, reads the ring itself, io_uring refused────────────────────────'
//! ```
//!
//! Whether there are few: [`depth`](crate::depth). Whether there is one that is waited for at once: [`prompt`](crate::prompt).
//!
//! Once nothing is left of the ring in a context that is Native, calls go to the kernel without a look
//! ([`Context::is_bare`]).
//!
//! The id is that of a real context, so `struct aio_ring` at it is genuine, limits and accounting
//! are the kernel's, and any call may go to the kernel at any time. Events of io_uring never go
//! through that ring: `io_getevents` hands them out directly. A program that reads the ring itself
//! would not see them; so I/O goes natively until the program has been seen to wait in
//! `io_getevents`, or to call it with success some times, without ever having taken an event itself.

use crate::abi::{AioRing, Entry, Event, RING_MAGIC, op};
use crate::depth::{self, Rest};
use crate::inline::Inline;
use crate::lock::{Guard, Lock};
use crate::native::Native;
use crate::parking::{Parked, unpark};
use crate::probe::{Files, Reason};
use crate::prompt::{self, Prompt};
use crate::ring::{Completion, Ring, Setup, Submission};
use crate::stat::{self, Record};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

/// User data of entries that only wake up whoever waits.
pub const WAKE: u64 = u64::MAX;
/// Places in the submission queue, at most; longer batches take several calls.
const ENTRIES_MAX: u32 = 256;
/// Completion queue entries, at most (`IORING_MAX_CQ_ENTRIES`).
const COMPLETIONS_MAX: u32 = 65_536;
/// Which way I/O goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// To the kernel, until the program is known.
    Proving = 1,
    /// A thread is making the ring.
    Switching,
    /// Through io_uring where that is better.
    Ring,
    /// To the kernel: for good, or until there are more at a time.
    Native,
}

/// The mode's name, from its number.
pub fn mode_name(number: u32) -> &'static str {
    match number {
        1 | 2 => "proving",
        3 => "ring",
        4 => "native",
        _ => "",
    }
}

/// Processors that this machine may have (`num_possible_cpus`).
fn processors() -> u32 {
    // No lock: a thread may be cancelled here, or a child forked, which would have it for ever. Twice is no harm.
    static KNOWN: AtomicU32 = AtomicU32::new(0);
    let known = KNOWN.load(Relaxed);
    if known != 0 {
        return known;
    }
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<u32>().ok());
    let count = last.map_or(1, |last| last.min(1 << 14) + 1);
    KNOWN.store(count, Relaxed);
    count
}

/// What a request in flight is; [`Request::state`].
pub mod state {
    /// Free.
    pub const FREE: u32 = 0;
    /// A read, write or sync.
    pub const IO: u32 = 1;
    /// A poll, which can be cancelled.
    pub const POLL: u32 = 2;
    /// Refused after all, and told to the program: no event.
    pub const VOID: u32 = 3;
    /// A poll that the program has cancelled.
    pub const CANCELLED: u32 = 4;
    /// A read, write or sync that was started a second time.
    pub const AGAIN: u32 = 5;
}

/// What an event needs to know, kept from submission to completion. As large as a line of the cache, so that
/// an index leads to it by a shift, and requests of two threads are apart.
#[repr(align(64))]
pub struct Request {
    /// The iocb's address.
    pub obj: AtomicU64,
    /// Its `data`.
    pub data: AtomicU64,
    /// Of [`state`].
    pub state: AtomicU32,
    /// Its entry, with which it can be started once more.
    entry: [AtomicU64; 4],
    /// What [`Files::mark`] said when it was submitted: 0 if it is over however it ends.
    mark: AtomicU64,
    /// The next in a chain of free ones, as index + 1.
    pub next: AtomicU32,
}

/// The ring and what is in flight on it.
pub struct Engine {
    /// The ring.
    pub ring: Ring,
    /// Events of what did not go by it.
    pub inline: Inline,
    requests: Box<[Request]>,
    /// Chain of requests that were reaped: index + 1 of the first.
    returned: AtomicU32,
}

/// What a submitting thread owns.
pub struct Submitting {
    /// The submission queue, once there is a ring.
    pub queue: Option<Submission>,
    /// Descriptors met.
    pub files: Files,
    /// Requests that are free.
    pub requests: Free,
    /// I/O priority that the kernel has allowed; none to begin with.
    pub priority: Option<i16>,
    /// Calls in a row that have submitted few, and how many it takes.
    pub few: u64,
    pub patience: u64,
    /// Whether one that is alone may be waited for where it is submitted.
    pub may_wait: bool,
}

impl Submitting {
    /// Of a context without a ring.
    pub fn new(files: Files) -> Submitting {
        let requests = Free::default();
        let (patience, may_wait) = (depth::CALLS, prompt::has_clock());
        Submitting { queue: None, files, requests, priority: None, few: 0, patience, may_wait }
    }
}

/// Requests that a submitting thread may use.
#[derive(Default)]
pub struct Free {
    /// Chain of free requests, as index + 1.
    chain: u32,
    /// Requests never used begin here.
    fresh: u32,
}

/// What a reaping thread owns.
pub struct Reaping {
    /// The completion queue, once there is a ring.
    pub queue: Option<Completion>,
    /// Whether io_uring was first when events were there from both sides.
    ring_was_first: bool,
}

/// A context.
pub struct Context {
    /// Its id: the address of its `struct aio_ring`.
    pub id: usize,
    /// Places in the kernel's ring.
    pub nr: u32,
    /// As [`Context::count_capacity`] says.
    pub capacity: u32,
    mode: AtomicU8,
    /// As [`Context::is_bare`] says.
    bare: AtomicBool,
    /// Being destroyed.
    pub dead: AtomicBool,
    engine: OnceLock<Engine>,
    submitting: Lock<Submitting>,
    reaping: Lock<Reaping>,
    /// Requests of the ring whose events were not taken yet.
    pub outstanding: AtomicU32,
    /// The kernel's part.
    pub native: Native,
    /// Whether it is the kernel's for now.
    pub rest: Rest,
    /// Whether its program might as well read and write.
    pub prompt: Prompt,
    /// Threads waiting on the ring.
    pub waiters: AtomicU32,
    /// Threads that have given up the lock of the submitting side in mid-batch, until what came of it is there.
    pub away: AtomicU32,
    /// What the most patient of them waits for.
    pub wait_most: AtomicU32,
    /// Counts.
    pub record: &'static Record,
}

impl Context {
    /// For a context that the kernel has just made; None when there is no ring at its id.
    pub fn new(id: usize, mode: Mode, reason: Reason) -> Option<Context> {
        let ring = crate::caller::read::<[u32; 8]>(id).ok()?;
        let (nr, magic) = (ring[1], ring[4]);
        if magic != RING_MAGIC || nr < 2 {
            return None;
        }
        let context = Context {
            id,
            nr,
            capacity: Context::count_capacity(nr),
            mode: AtomicU8::new(mode as u8),
            bare: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            engine: OnceLock::new(),
            submitting: Lock::new(Submitting::new(Files::new())),
            reaping: Lock::new(Reaping { queue: None, ring_was_first: false }),
            outstanding: AtomicU32::new(0),
            native: Native::default(),
            rest: Rest::default(),
            prompt: Prompt::default(),
            waiters: AtomicU32::new(0),
            away: AtomicU32::new(0),
            wait_most: AtomicU32::new(1),
            record: stat::open(id, nr, false),
        };
        context.set(mode, reason);
        Some(context)
    }

    /// Which way I/O goes now.
    #[inline]
    pub fn mode(&self) -> Mode {
        match self.mode.load(SeqCst) {
            1 => Mode::Proving,
            2 => Mode::Switching,
            3 => Mode::Ring,
            _ => Mode::Native,
        }
    }

    /// Whether that is through io_uring.
    #[inline]
    pub fn is_ring(&self) -> bool {
        self.is(Mode::Ring)
    }

    /// Whether that is the mode.
    #[inline(always)]
    pub fn is(&self, mode: Mode) -> bool {
        self.mode.load(SeqCst) == mode as u8
    }

    fn set(&self, mode: Mode, reason: Reason) {
        self.mode.store(mode as u8, SeqCst);
        self.record.mode.store(mode as u32, Relaxed);
        self.record.reason.store(reason as u32, Relaxed);
    }

    /// From now on natively, if it was through the ring. The caller holds `submitting`, so that nothing goes to the ring any more
    /// once this returns, but for what is left of batches that are [`away`](Context::away), and until [`Context::resume`].
    pub fn settle(&self, reason: Reason) {
        self.turn_native(Mode::Ring, reason);
    }

    /// The same before there is a ring. While a thread is making it, the next who sees a reason settles.
    pub fn settle_unproven(&self, reason: Reason) {
        self.turn_native(Mode::Proving, reason);
    }

    fn turn_native(&self, from: Mode, reason: Reason) {
        if self.exchange(from, Mode::Native) {
            self.set(Mode::Native, reason);
        }
    }

    /// From one mode to another, if it is that.
    pub fn exchange(&self, from: Mode, to: Mode) -> bool {
        self.mode.compare_exchange(from as u8, to as u8, SeqCst, SeqCst).is_ok()
    }

    /// The ring is there and is used from now on.
    pub fn set_ring(&self) {
        if let Some(engine) = self.engine() {
            engine.ring.interrupts.work();
        }
        self.set(Mode::Ring, Reason::None);
    }

    /// Whether nothing comes from the ring any more, all having gone to the kernel's context since [`Context::settle`]. What ends
    /// without the ring waits in `inline` before it, or its batch, is no longer counted.
    pub fn is_left(&self, engine: &Engine) -> bool {
        self.outstanding.load(SeqCst) == 0
            && self.away.load(SeqCst) == 0
            && engine.inline.waiting().count == 0
    }

    /// Whether all is the kernel's: nothing has to be locked, nor asked for but how many there are.
    #[inline(always)]
    pub fn is_bare(&self) -> bool {
        self.bare.load(SeqCst)
    }

    /// Makes it so if nothing comes from the ring any more, nothing will, and nobody waits there. Under the lock of the
    /// submitting side.
    pub fn try_bare(&self, _submitting: &Guard<'_, Submitting>) {
        let is_left = self.engine().is_none_or(|engine| self.is_left(engine));
        let is_quiet = self.waiters.load(SeqCst) == 0 && !self.is_wanted();
        if self.mode() == Mode::Native && is_left && is_quiet {
            self.bare.store(true, SeqCst);
            if let Some(engine) = self.engine() {
                engine.ring.interrupts.rest();
            }
        }
    }

    /// Undoes that.
    pub fn unbare(&self) {
        self.bare.store(false, SeqCst);
    }

    /// The ring, once there is one.
    #[inline]
    pub fn engine(&self) -> Option<&Engine> {
        self.engine.get()
    }

    /// Locks the submitting side.
    #[inline(always)]
    pub fn submitting(&self) -> Guard<'_, Submitting> {
        self.submitting.lock()
    }

    /// The submitting side, whose lock this thread has kept.
    ///
    /// # Safety
    /// As [`Lock::kept`].
    #[inline(always)]
    pub unsafe fn kept_submitting(&self) -> Guard<'_, Submitting> {
        // SAFETY: passed on to the caller.
        unsafe { self.submitting.kept() }
    }

    /// Locks the reaping side.
    #[inline(always)]
    pub fn reaping(&self) -> Guard<'_, Reaping> {
        self.reaping.lock()
    }

    /// The reaping side, whose lock this thread has kept.
    ///
    /// # Safety
    /// As [`Lock::kept`].
    #[inline(always)]
    pub unsafe fn kept_reaping(&self) -> Guard<'_, Reaping> {
        // SAFETY: passed on to the caller.
        unsafe { self.reaping.kept() }
    }

    /// Requests and events that the context may hold. The kernel deals them out to processors in
    /// portions, and what is less than a portion is never dealt out (`ioctx_alloc`).
    fn count_capacity(nr: u32) -> u32 {
        let places = nr - 1;
        let portion = (places / (processors() * 4)).max(1);
        places / portion * portion
    }

    /// Makes the ring if the program is known and nobody is within the kernel's `io_getevents`.
    pub fn try_ring(&self) {
        let (proving, switching) = (Mode::Proving as u8, Mode::Switching as u8);
        if !self.is_proven()
            || self.mode.compare_exchange(proving, switching, SeqCst, SeqCst).is_err()
        {
            return;
        }
        if self.native.is_waited_for() || self.dead.load(SeqCst) {
            self.mode.store(proving, SeqCst);
        } else if self.program_reads_ring() {
            self.set(Mode::Native, Reason::RingReader);
        } else if self.make_engine().is_err() {
            self.set(Mode::Native, Reason::Refused);
        } else {
            self.set(Mode::Ring, Reason::None);
        }
    }

    /// Waits until nobody looks whether to make the ring: who begins later sees that the context is dead.
    pub fn await_switching(&self) {
        while self.mode.load(SeqCst) == Mode::Switching as u8 {
            std::thread::yield_now();
        }
    }

    /// Whether somebody else than `io_getevents` has taken events: the ring's head tells. Or than `io_submit` has submitted: more have
    /// been taken then than we know of.
    pub fn program_reads_ring(&self) -> bool {
        if self.native.pending.load(SeqCst) < 0 {
            return true;
        }
        let ring = self.id as *const AioRing;
        // SAFETY: the context is held, so its ring is mapped; the kernel writes it too.
        let head = unsafe { (&raw const (*ring).head).read_volatile() };
        u64::from(head) != self.native.reaped() % u64::from(self.nr)
    }

    fn make_engine(&self) -> std::io::Result<()> {
        let Parked { engine, submission, completion, requests } = match unpark(self.capacity) {
            Some(parked) => *parked,
            None => self.new_ring()?,
        };
        engine.ring.interrupts.work();
        let mut submitting = self.submitting();
        submitting.queue = Some(submission);
        submitting.requests = requests;
        self.reaping().queue = Some(completion);
        // Only the thread that is switching gets here.
        let _ = self.engine.set(engine);
        Ok(())
    }

    fn new_ring(&self) -> std::io::Result<Parked> {
        let setup = Setup {
            entries: self.nr.min(ENTRIES_MAX),
            completions: self.nr.saturating_add(ENTRIES_MAX).min(COMPLETIONS_MAX),
            ..Setup::default()
        };
        let (ring, submission, completion) = Ring::new(setup)?;
        let engine = Engine::new(ring, self.capacity);
        Ok(Parked { engine, submission, completion, requests: Free::default() })
    }

    /// The ring, once nothing is in flight and nobody uses the context.
    pub fn into_ring(mut self) -> Option<Parked> {
        let mut engine = self.engine.take()?;
        engine.inline.clear();
        let mut submitting = self.submitting();
        let submission = submitting.queue.take()?;
        let requests = std::mem::take(&mut submitting.requests);
        let completion = self.reaping().queue.take()?;
        Some(Parked { engine, submission, completion, requests })
    }

    /// Places taken of the capacity: by requests, and by events that nobody has taken yet. The lock of the submitting side is held,
    /// or it may be more a moment later.
    #[inline(always)]
    pub fn occupied(&self, engine: &Engine) -> u32 {
        self.outstanding.load(SeqCst) + engine.inline.waiting().count
    }

    /// Gets `count` threads out of waiting for the ring, or one that waits for so many.
    pub fn wake(&self, submitting: &mut Submitting, count: u32) {
        let (Some(engine), Some(queue)) = (self.engine(), submitting.queue.as_mut()) else {
            return;
        };
        let nop = Entry::new(op::NOP, -1, 0);
        let mut left = count;
        while left > 0 {
            let mut pushed = 0;
            while pushed < left && queue.push(nop, WAKE) {
                pushed += 1;
            }
            queue.publish();
            let taken = engine.ring.submit(pushed);
            if taken <= 0 {
                queue.take_back(pushed);
                return;
            }
            queue.take_back(pushed - (taken as u32).min(pushed));
            left -= (taken as u32).min(left);
        }
    }

    /// Gets everybody out of waiting for the ring, to look at what has changed.
    pub fn wake_all(&self, submitting: &mut Submitting) {
        let waiters = self.waiters.load(SeqCst);
        if waiters > 0 {
            self.wake(submitting, self.wait_most.load(SeqCst));
        }
    }
}

impl Engine {
    /// With room for `capacity` requests.
    pub fn new(ring: Ring, capacity: u32) -> Engine {
        let request = |_| Request {
            obj: AtomicU64::new(0),
            data: AtomicU64::new(0),
            state: AtomicU32::new(state::FREE),
            entry: [const { AtomicU64::new(0) }; 4],
            mark: AtomicU64::new(0),
            next: AtomicU32::new(0),
        };
        Engine {
            ring,
            inline: Inline::new(capacity),
            requests: (0..capacity).map(request).collect(),
            returned: AtomicU32::new(0),
        }
    }

    /// The request with that index.
    #[inline]
    pub fn request(&self, index: u32) -> &Request {
        &self.requests[index as usize]
    }

    /// All requests.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Gives requests back: the chain from `first` to `last`.
    #[inline(always)]
    pub fn give_back(&self, first: u32, last: u32) {
        let mut head = self.returned.load(Relaxed);
        loop {
            self.request(last).next.store(head, Relaxed);
            match self.returned.compare_exchange_weak(head, first + 1, Release, Relaxed) {
                Ok(_) => return,
                Err(other) => head = other,
            }
        }
    }
}

impl Request {
    /// Keeps what its event needs, and what it takes to start it once more.
    #[inline(always)]
    pub fn begin(&self, obj: u64, data: u64, entry: Entry, mark: u64, state: u32) {
        self.obj.store(obj, Relaxed);
        self.data.store(data, Relaxed);
        for (kept, word) in self.entry.iter().zip(entry.0) {
            kept.store(word, Relaxed);
        }
        self.mark.store(mark, Relaxed);
        // After the rest, for whoever looks for a poll to cancel.
        self.state.store(state, Release);
    }

    /// Its event, with that result.
    #[inline(always)]
    pub fn event(&self, res: i32) -> Event {
        let (data, obj) = (self.data.load(Relaxed), self.obj.load(Relaxed));
        Event { data, obj, res: i64::from(res), res2: 0 }
    }

    /// What was remembered.
    pub fn entry(&self) -> Entry {
        Entry([0, 1, 2, 3].map(|at| self.entry[at].load(Relaxed)))
    }

    /// Whether that is the [`mark`](crate::probe::mark) of the file that it was submitted for.
    pub fn is_of(&self, mark: u64) -> bool {
        mark != 0 && mark == self.mark.load(Relaxed)
    }

    /// Whether it is over in the usual way: a read, write or sync that was started once, of as many bytes as
    /// were asked for. Its event is then the completion's; anything else wants a closer look.
    #[inline(always)]
    pub fn is_whole(&self, res: i32) -> bool {
        // The lowest half of the last word: see `Entry::count`.
        let count = self.entry[3].load(Relaxed) as u32;
        res >= 0 && res as u32 == count && self.state.load(Relaxed) == state::IO
    }

    /// Whether it is a poll in flight.
    pub fn is_poll(&self) -> bool {
        matches!(self.state.load(Relaxed), state::POLL | state::CANCELLED)
    }

    /// Whether a completion only says that the thread which had submitted the request has ended: io_uring
    /// gives up what is waiting then (`io_uring_cancel_generic`), or finishes it without the thread's
    /// memory, where the kernel's AIO would carry on.
    #[inline]
    pub fn was_orphaned(&self, res: i32) -> bool {
        if self.mark.load(Relaxed) == 0 {
            return false;
        }
        let state = self.state.load(Relaxed);
        if res >= 0 {
            // In the middle of it, or the file ends there: that costs another look.
            let opcode = self.entry[0].load(Relaxed) as u8;
            let short = (res as u32) < self.entry[3].load(Relaxed) as u32;
            return short && opcode == op::READ && matches!(state, state::IO | state::AGAIN);
        }
        match (state, -res) {
            (state::POLL, libc::ECANCELED) => true,
            (state::IO, libc::ECANCELED | libc::EINTR | libc::EFAULT) => true,
            // Once more even so: whoever reaps may end as well. A bad address stays one.
            (state::AGAIN, libc::ECANCELED) => true,
            _ => false,
        }
    }
}

impl Free {
    /// A free request.
    #[inline]
    pub fn take(&mut self, engine: &Engine) -> Option<u32> {
        match self.again(engine) {
            Some((index, _)) => Some(index),
            None => self.take_fresh(engine),
        }
    }

    /// A free request, if there is one that was used before.
    #[inline(always)]
    pub fn again<'e>(&mut self, engine: &'e Engine) -> Option<(u32, &'e Request)> {
        if self.chain == 0 {
            self.chain = engine.returned.swap(0, Acquire);
        }
        // Beyond all of them where there is none.
        let index = self.chain.wrapping_sub(1);
        let request = engine.requests.get(index as usize)?;
        self.chain = request.next.load(Relaxed);
        Some((index, request))
    }

    #[cold]
    fn take_fresh(&mut self, engine: &Engine) -> Option<u32> {
        let index = self.fresh;
        if index as usize == engine.requests.len() {
            return None;
        }
        self.fresh += 1;
        Some(index)
    }

    /// Gives back one that was not used after all.
    pub fn untake(&mut self, engine: &Engine, index: u32) {
        engine.request(index).state.store(state::FREE, Relaxed);
        engine.request(index).next.store(self.chain, Relaxed);
        self.chain = index + 1;
    }
}

/// Requests to be given back together, the last one freed first.
#[derive(Default)]
pub struct Chain {
    /// The last one freed.
    pub first: u32,
    /// The first one freed.
    pub last: u32,
    /// How many there are.
    pub len: u32,
}

impl Chain {
    /// Adds one.
    #[inline]
    pub fn push(&mut self, engine: &Engine, index: u32) {
        if self.len == 0 {
            self.last = index;
        } else {
            engine.request(index).next.store(self.first + 1, Relaxed);
        }
        self.first = index;
        self.len += 1;
    }
}

impl Reaping {
    /// Whether io_uring is first this time, where events are there from both sides and perhaps not all have room: each
    /// side in turn, so that none waits for ever behind the other.
    pub fn is_ring_first(&mut self) -> bool {
        self.ring_was_first = !self.ring_was_first;
        self.ring_was_first
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        stat::close(self.record);
    }
}
