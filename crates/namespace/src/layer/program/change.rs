//! A program takes another's place while requests come.
//!
//! ```text
//!   replace():  pause ---> every queue: what comes is held back from now on
//!               wait  <--- nothing that the old program routed is in flight any more
//!               resume --> every queue: the new program, and what was held back, in its order
//! ```
//!
//! Whether the new program puts a block where the old one did nobody can tell. If one queue went on while
//! another still has a write of the old program's in flight, that could end last and overwrite, at the same place,
//! what was acknowledged in between. So all wait for all, for as long as the slowest request takes.

use super::ProgramError;
use super::loaded::Loaded;
use crate::wake::Called;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long requests of the old program may take to end: longer than a program may delay one.
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// The volume's program, and the queues that run it.
#[derive(Debug)]
pub struct Programs {
    inner: Mutex<Inner>,
    arrived: Condvar,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) now: Arc<Loaded>,
    queues: Vec<Arc<dyn Called>>,
    /// Counts pauses.
    round: u64,
    is_paused: bool,
    /// Queues that have requests of the old program in flight.
    missing: Vec<u64>,
}

/// What a queue is told by a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Hold back what comes, and say when everything has ended, with this number.
    Pause(u64),
    /// Go on, with the program as it is now.
    Resume,
}

impl Told {
    /// From the value of the wake-up.
    pub fn from(value: u64) -> Told {
        if value == 0 { Told::Resume } else { Told::Pause(value) }
    }
}

impl Programs {
    pub fn new(loaded: Loaded) -> Programs {
        let (now, queues, missing) = (Arc::new(loaded), Vec::new(), Vec::new());
        let inner = Inner { now, queues, round: 0, is_paused: false, missing };
        Programs { inner: Mutex::new(inner), arrived: Condvar::new() }
    }

    /// The program as it is now.
    pub fn now(&self) -> Arc<Loaded> {
        Arc::clone(&self.lock().now)
    }

    /// A queue is there, without requests: its program, and the pause that it begins in, if any.
    pub fn join(&self, queue: Arc<dyn Called>) -> (Arc<Loaded>, Option<u64>) {
        let mut inner = self.lock();
        inner.queues.push(queue);
        (Arc::clone(&inner.now), inner.is_paused.then_some(inner.round))
    }

    /// A queue has gone.
    pub fn quit(&self, queue: u64) {
        let mut inner = self.lock();
        inner.queues.retain(|other| other.id() != queue);
        inner.missing.retain(|other| *other != queue);
        self.arrived.notify_all();
    }

    /// Nothing of a queue is in flight; `round` is the pause's number.
    pub fn arrive(&self, queue: u64, round: u64) {
        let mut inner = self.lock();
        // A pause that was given up may be told of late.
        if inner.round == round {
            inner.missing.retain(|other| *other != queue);
            self.arrived.notify_all();
        }
    }

    /// Makes `next` the program. Blocks until nothing of the old one's is in flight; then `settle` does what is to be
    /// done before the new one routes anything, and finds it as the program there is.
    ///
    /// # Errors
    /// Something did not end in time, `settle` fails, or somebody else is at it; the old program goes on.
    pub fn replace(
        &self,
        next: Arc<Loaded>,
        settle: impl FnOnce() -> Result<(), ProgramError>,
    ) -> Result<(), ProgramError> {
        let mut pause = self.pause()?;
        if !self.await_queues() {
            return Err(ProgramError::Stuck(PAUSE_MAX.as_secs()));
        }
        pause.old = Some(mem::replace(&mut self.lock().now, next));
        settle()?;
        pause.old = None;
        Ok(())
    }

    /// Tells all queues of a pause, in which those begin that join from here on.
    fn pause(&self) -> Result<Pause<'_>, ProgramError> {
        let mut inner = self.lock();
        if inner.is_paused {
            return Err(ProgramError::Busy);
        }
        (inner.is_paused, inner.round) = (true, inner.round + 1);
        let told = inner.queues.iter().filter(|queue| queue.call(inner.round));
        inner.missing = told.map(|queue| queue.id()).collect();
        Ok(Pause { programs: self, old: None })
    }

    /// Waits for those that were told; whether nothing is in flight any more.
    fn await_queues(&self) -> bool {
        let inner = self.lock();
        let is_awaited = |inner: &mut Inner| !inner.missing.is_empty();
        let waited = self.arrived.wait_timeout_while(inner, PAUSE_MAX, is_awaited);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While a program takes another's place. However that ends, the queues go on.
struct Pause<'a> {
    programs: &'a Programs,
    /// The program before, which is the program again unless all is settled.
    old: Option<Arc<Loaded>>,
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        let mut inner = self.programs.lock();
        if let Some(old) = self.old.take() {
            inner.now = old;
        }
        inner.missing.clear();
        inner.is_paused = false;
        for queue in &inner.queues {
            queue.call(0);
        }
    }
}
