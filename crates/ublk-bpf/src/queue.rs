//! A queue of a device that the kernel serves, and how another program takes its program's place.
//!
//! ```text
//!   serve(): the thread sleeps in the ring, whose loop comes back when it is called, tags end, or requests are deferred
//!     pause --> the loop notes what comes and goes on with what is in flight; nothing is any more
//!           --> the next program, which is loaded already, gets ready for this ring; the thread waits for all other queues
//!     resume -> the loop is that of the program as it is now; it begins with what was held back, in its order
//!     leave  -> as with a pause, but nothing comes after it: what is held back is the next server's
//! ```

use crate::abi::{CALL, Held, QueueState};
use crate::calls::Calls;
use crate::deferred::Deferred;
use crate::error::Error;
use crate::object::Loop;
use crate::program::{KernelProgram, Made};
use crate::ring::Ring;
use bpf::request::BACKENDS_MAX;
use namespace::layer::program::{Called, Told};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// What a queue is, as the driver sees it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The driver's file.
    pub device: BorrowedFd<'a>,
    /// Which queue.
    pub queue: u16,
    /// Where its descriptors are mapped; they stay as long as the queue.
    pub descriptors: u64,
    /// Requests are held back until it is told to go on ([`GO`]).
    pub held: bool,
}

/// A queue that the kernel serves; this thread's alone.
#[derive(Debug)]
pub struct KernelQueue {
    /// Goes first: the ring then is one like others.
    turns: Loop,
    deferred: Option<Deferred>,
    ring: Ring,
    program: Arc<KernelProgram>,
    /// Which of its programs this is.
    made: Arc<Made>,
    queue: u16,
    calls: Arc<Calls>,
    pause: Option<Pause>,
    leave: Leave,
    /// Steps of its loops that were seen.
    steps: u64,
    /// What comes may be begun.
    goes: bool,
}

/// What a queue's [caller](KernelQueue::caller) calls when it is to leave. No pause has that number.
pub const LEAVE: u64 = u64::MAX;
/// And when one that was [held](Place::held) is to begin what it is given.
pub const GO: u64 = u64::MAX - 1;

/// Whether a queue is given up to another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    No,
    /// When nothing is in flight any more.
    Soon,
    Done,
}

/// How often a loop is tried to be attached, and how long it waits in between.
const ATTACH_TRIES: u32 = 10;
const ATTACH_PAUSE: Duration = Duration::from_millis(20);

/// While another program takes the place of this one.
#[derive(Debug)]
struct Pause {
    round: u64,
    /// Nothing is in flight, and that was told; with the next program's loop, if there is one and it could be made.
    arrived: Option<Option<Ready>>,
}

/// A loop that is made for the ring, and not attached.
#[derive(Debug)]
struct Ready {
    made: Arc<Made>,
    turns: Loop,
    deferred: Option<Deferred>,
}

impl KernelQueue {
    /// Has the driver give the program the requests of a queue.
    pub fn open(program: &Arc<KernelProgram>, place: &Place<'_>) -> Result<KernelQueue, Error> {
        let made = program.now();
        let (depth, fetching) = (program.queues.depth, program.queues.fetching);
        let mut ring = Ring::new(depth).map_err(Error::Ring)?;
        let mut files = [-1; 1 + BACKENDS_MAX + 1];
        files[0] = place.device.as_raw_fd();
        for (file, backend) in files[1..].iter_mut().zip(&made.volume.files) {
            *file = backend.as_raw_fd();
        }
        files[1 + BACKENDS_MAX] = program.zeroes.as_raw_fd();
        ring.register_files(&files).map_err(Error::Ring)?;
        let &Place { descriptors, queue, held: waits, .. } = place;
        ring.belong_to(queue);
        let Ready { made, mut turns, deferred } = Ready::new(made, queue, &ring)?;
        turns.begin(descriptors, ring.memory_address())?;
        // Once the loop is attached nothing is submitted from here.
        let calls = Arc::new(Calls::new().map_err(Error::Ring)?);
        ring.listen(calls.bell(), CALL).map_err(Error::Ring)?;
        ring.fetch(fetching, queue, depth).map_err(Error::Ring)?;
        turns.attach()?;
        let (program, pause, leave) = (Arc::clone(program), None, Leave::No);
        let mut queue = KernelQueue {
            turns,
            deferred,
            ring,
            program,
            made,
            queue,
            calls,
            pause,
            leave,
            steps: 0,
            goes: !waits,
        };
        match queue.program.pauses.join(Arc::clone(&queue.calls) as _) {
            Some(round) => queue.hold(round),
            None => queue.go_on(),
        }
        .map_err(Error::Ring)?;
        Ok(queue)
    }

    /// What has happened.
    pub fn state(&self) -> io::Result<QueueState> {
        self.turns.state()
    }

    /// By whom it is told to leave ([`LEAVE`]).
    pub fn caller(&self) -> Arc<dyn Called> {
        Arc::clone(&self.calls) as _
    }

    /// Whether it was told to leave, and nothing is in flight any more: it is not to serve again. What the driver has given
    /// since comes once more, to the next server, when this process has ended.
    pub fn has_left(&self) -> bool {
        self.leave == Leave::Done
    }

    /// Has the kernel serve until tags end, requests are deferred, somebody calls or a signal comes, and tells how
    /// things are.
    pub fn serve(&mut self) -> io::Result<QueueState> {
        let has_stopped = self.ring.turn()?;
        // Nothing changes in it until the next turn.
        let state = self.turns.state()?;
        if has_stopped && state.steps == self.steps {
            return Err(io::Error::other("the loop does not know its ring"));
        }
        self.steps = state.steps;
        if let Some(deferred) = &mut self.deferred {
            deferred.work(&self.turns)?;
        }
        self.heed()?;
        Ok(state)
    }

    /// Does what it is told, and waits for more where nothing is in flight.
    fn heed(&mut self) -> io::Result<()> {
        if !self.is_holding() && !self.calls.has_been_called() {
            return Ok(());
        }
        self.change_held(|held| held.called = 0)?;
        loop {
            while let Some(told) = self.calls.next() {
                match told {
                    Told::Pause(LEAVE) => {
                        self.leave = Leave::Soon;
                        self.change_held(|held| held.holding = 1)?;
                    }
                    Told::Pause(GO) => {
                        self.goes = true;
                        self.hold_or_not()?;
                    }
                    Told::Pause(round) => self.hold(round)?,
                    Told::Resume => self.go_on()?,
                }
            }
            let state = self.turns.state()?;
            let is_over = state.error != 0 || state.ended >= u32::from(self.program.queues.depth);
            if !self.is_holding() || state.busy > 0 || is_over {
                return Ok(());
            }
            self.arrive();
            if self.leave == Leave::Soon {
                self.leave = Leave::Done;
                return Ok(());
            }
            self.calls.wait();
        }
    }

    /// From now on what comes is held back.
    fn hold(&mut self, round: u64) -> io::Result<()> {
        self.pause = Some(Pause { round, arrived: None });
        self.change_held(|held| held.holding = 1)
    }

    /// Nothing is in flight: gets ready for the next program, and says so.
    fn arrive(&mut self) {
        let Some(pause) = &mut self.pause else { return };
        if pause.arrived.is_some() {
            return;
        }
        let next = self.program.next();
        let ready = next.and_then(|made| {
            Ready::new(Arc::clone(&made), self.queue, &self.ring)
                .inspect_err(|error| self.program.refuse(&made, error.to_string()))
                .ok()
        });
        pause.arrived = Some(ready);
        self.program.pauses.arrive(self.calls.number(), pause.round);
    }

    /// Goes on, with the program as it is now.
    fn go_on(&mut self) -> io::Result<()> {
        let ready = self.pause.take().and_then(|pause| pause.arrived.flatten());
        let now = self.program.now();
        if !Arc::ptr_eq(&now, &self.made) {
            let ready = match ready.filter(|ready| Arc::ptr_eq(&ready.made, &now)) {
                Some(ready) => ready,
                None => Ready::new(now, self.queue, &self.ring).map_err(io::Error::other)?,
            };
            // A ring has one loop at a time.
            drop(std::mem::replace(&mut self.turns, ready.turns));
            self.attach()?;
            (self.deferred, self.made) = (ready.deferred, ready.made);
        }
        self.hold_or_not()
    }

    /// Whether what comes is to be held back.
    fn is_holding(&self) -> bool {
        self.pause.is_some() || self.leave != Leave::No || !self.goes
    }

    fn hold_or_not(&self) -> io::Result<()> {
        let holding = self.is_holding().into();
        self.change_held(|held| held.holding = holding)
    }

    /// Attaches the loop in whose place there is none any more: without one the queue is lost.
    fn attach(&mut self) -> io::Result<()> {
        let mut tries = 0;
        while let Err(error) = self.turns.attach() {
            tries += 1;
            if tries == ATTACH_TRIES {
                return Err(io::Error::other(error));
            }
            std::thread::sleep(ATTACH_PAUSE);
        }
        Ok(())
    }

    /// Tells the loop, which does not run, whether to hold back what comes.
    fn change_held(&self, change: impl FnOnce(&mut Held)) -> io::Result<()> {
        let mut held = self.turns.held()?;
        let before = held;
        change(&mut held);
        if held == before { Ok(()) } else { self.turns.set_held(&held) }
    }
}

impl Drop for KernelQueue {
    fn drop(&mut self) {
        // What it has in flight is nobody's to wait for: then nothing may be put where that may land. It may have been told
        // of the pause, and not have heeded that.
        let is_awaited = self.pause.as_ref().is_none_or(|pause| pause.arrived.is_none());
        if is_awaited && let Some(next) = self.program.next() {
            self.program.refuse(&next, "a queue has ended meanwhile".to_owned());
        }
        self.program.pauses.quit(self.calls.number());
    }
}

impl Ready {
    /// The loop of `made` for a queue's ring. It knows of requests what the queue's loops before it did.
    fn new(made: Arc<Made>, queue: u16, ring: &Ring) -> Result<Ready, Error> {
        let turns = made.turns(queue, ring)?;
        let deferred = made.volume.decider(queue.into()).map(Deferred::new);
        Ok(Ready { made, turns, deferred })
    }
}
