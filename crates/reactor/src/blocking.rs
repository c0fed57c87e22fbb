//! A few threads for calls that block.

use crate::affinity;
use crate::mailbox::Mailbox;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A thread without work ends after this long.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Threads that are busy with long work at most, and one less than there may be: something else is always done.
const LONG_MAX: usize = 3;

/// Stack of a thread: the work is a system call or two.
const STACK: usize = 256 << 10;

/// Work that blocks; the result goes to the reactor.
pub type Work = Box<dyn FnOnce() -> i32 + Send>;

/// Threads of one reactor, started when needed, at most `limit`. What finds none idle waits in
/// memory: there is as much of it as the reactor's users have in flight, which they bound.
pub struct Blocking {
    shared: Arc<Shared>,
    limit: usize,
}

struct Shared {
    state: Mutex<State>,
    work_came: Condvar,
    mailbox: Mailbox,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(Work, u64)>,
    /// Long work, which begins when nothing else waits.
    long: VecDeque<(Work, u64)>,
    /// Threads busy with it, and how many may be.
    long_busy: usize,
    long_max: usize,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Blocking {
    pub fn new(limit: usize, mailbox: Mailbox) -> Blocking {
        let limit = limit.max(1);
        let state = State { long_max: long_max(limit), ..State::default() };
        let shared = Shared { state: Mutex::new(state), work_came: Condvar::new(), mailbox };
        Blocking { shared: Arc::new(shared), limit }
    }

    /// Runs `work` on a thread and posts its result under `key`: `-EIO` if it panics, `-EAGAIN` if
    /// there is no thread and none can be started. Of work that `takes_long` only some is done at a time.
    pub fn run(&self, work: Work, key: u64, takes_long: bool) {
        let mut state = self.shared.lock();
        let queue = if takes_long { &mut state.long } else { &mut state.queue };
        queue.push_back((work, key));
        if state.idle >= state.ready() || state.threads >= self.limit {
            drop(state);
            self.shared.work_came.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("blocking".into()).stack_size(STACK);
        if thread.spawn(move || shared.serve()).is_err() {
            self.shared.without_thread();
        }
    }
}

/// How many of `limit` threads may be busy with long work.
pub fn long_max(limit: usize) -> usize {
    LONG_MAX.min(limit.saturating_sub(1)).max(1)
}

impl Drop for Blocking {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work_came.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        // The reactor's own core is busy with the reactor.
        affinity::unpin();
        let mut state = self.lock();
        loop {
            if let Some((work, key, takes_long)) = state.next() {
                drop(state);
                let result = catch_unwind(AssertUnwindSafe(work));
                self.mailbox.done(key, result.unwrap_or(-rustix::io::Errno::IO.raw_os_error()));
                state = self.lock();
                state.long_busy -= usize::from(takes_long);
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let waited = self.work_came.wait_timeout(state, IDLE_MAX);
            let timeout;
            (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            if timeout.timed_out() && state.ready() == 0 {
                break;
            }
        }
        state.threads -= 1;
    }

    /// A thread could not be started: others come to the work, or it fails.
    fn without_thread(&self) {
        let mut state = self.lock();
        state.threads -= 1;
        if state.threads > 0 {
            return;
        }
        let long = std::mem::take(&mut state.long);
        let failed: Vec<u64> = state.queue.drain(..).chain(long).map(|(_, key)| key).collect();
        drop(state);
        for key in failed {
            self.mailbox.done(key, -rustix::io::Errno::AGAIN.raw_os_error());
        }
    }
}

impl State {
    /// How many threads would find something to do.
    fn ready(&self) -> usize {
        self.queue.len() + self.long.len().min(self.long_max - self.long_busy)
    }

    /// What is to be done next, and whether it takes long.
    fn next(&mut self) -> Option<(Work, u64, bool)> {
        if let Some((work, key)) = self.queue.pop_front() {
            return Some((work, key, false));
        }
        let free = self.long_busy < self.long_max;
        let (work, key) = if free { self.long.pop_front() } else { None }?;
        self.long_busy += 1;
        Some((work, key, true))
    }
}
