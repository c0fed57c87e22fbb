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
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Blocking {
    pub fn new(limit: usize, mailbox: Mailbox) -> Blocking {
        let shared = Shared { state: Mutex::default(), work_came: Condvar::new(), mailbox };
        Blocking { shared: Arc::new(shared), limit: limit.max(1) }
    }

    /// Runs `work` on a thread and posts its result under `key`: `-EIO` if it panics, `-EAGAIN` if
    /// there is no thread and none can be started.
    pub fn run(&self, work: Work, key: u64) {
        let mut state = self.shared.lock();
        state.queue.push_back((work, key));
        if state.idle >= state.queue.len() || state.threads >= self.limit {
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
            if let Some((work, key)) = state.queue.pop_front() {
                drop(state);
                let result = catch_unwind(AssertUnwindSafe(work));
                self.mailbox.done(key, result.unwrap_or(-rustix::io::Errno::IO.raw_os_error()));
                state = self.lock();
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
            if timeout.timed_out() && state.queue.is_empty() {
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
        let failed: Vec<u64> = state.queue.drain(..).map(|(_, key)| key).collect();
        drop(state);
        for key in failed {
            self.mailbox.done(key, -rustix::io::Errno::AGAIN.raw_os_error());
        }
    }
}
