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

/// A line of long work that is done in the order in which it came, by no more than so many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Any, by which it is known.
    pub number: u64,
    /// Threads that may be busy with it, one at least. It may change from one piece of work to the next.
    pub threads: usize,
}

impl Line {
    /// That of work of no particular line: by as many threads as there are for long work.
    pub const COMMON: Line = Line { number: u64::MAX, threads: LONG_MAX };
}

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
    /// Long work, which begins when nothing else waits: lines of which something waits or is being done. Who was
    /// served last is at the end.
    lines: Vec<Waiting>,
    /// Threads busy with it, and how many may be.
    long_busy: usize,
    long_max: usize,
    threads: usize,
    idle: usize,
    closed: bool,
}

/// Work of one line.
struct Waiting {
    line: Line,
    queue: VecDeque<(Work, u64)>,
    busy: usize,
}

impl Blocking {
    pub fn new(limit: usize, mailbox: Mailbox) -> Blocking {
        let limit = limit.max(1);
        let state = State { long_max: long_max(limit), ..State::default() };
        let shared = Shared { state: Mutex::new(state), work_came: Condvar::new(), mailbox };
        Blocking { shared: Arc::new(shared), limit }
    }

    /// Runs `work` on a thread and posts its result under `key`: `-EIO` if it panics, `-EAGAIN` if
    /// there is no thread and none can be started. Work that takes long has a line.
    pub fn run(&self, work: Work, key: u64, line: Option<Line>) {
        let mut state = self.shared.lock();
        match line {
            None => state.queue.push_back((work, key)),
            Some(line) => state.line_up(line, work, key),
        }
        let ready = state.ready();
        if ready == 0 {
            // Whoever is busy with this line, or with other long work, comes to it.
            return;
        }
        if state.idle >= ready || state.threads >= self.limit {
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
            if let Some((work, key, line)) = state.next() {
                drop(state);
                let result = catch_unwind(AssertUnwindSafe(work));
                self.mailbox.done(key, result.unwrap_or(-rustix::io::Errno::IO.raw_os_error()));
                state = self.lock();
                if let Some(number) = line {
                    state.is_done(number);
                }
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
        let lines = std::mem::take(&mut state.lines);
        let long = lines.into_iter().flat_map(|waiting| waiting.queue);
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
        let of_lines = self.lines.iter().map(Waiting::ready).sum::<usize>();
        self.queue.len() + of_lines.min(self.long_max - self.long_busy)
    }

    fn line_up(&mut self, line: Line, work: Work, key: u64) {
        let place = self.lines.iter().position(|waiting| waiting.line.number == line.number);
        let place = place.unwrap_or_else(|| {
            self.lines.push(Waiting { line, queue: VecDeque::new(), busy: 0 });
            self.lines.len() - 1
        });
        let waiting = &mut self.lines[place];
        waiting.line = line;
        waiting.queue.push_back((work, key));
    }

    /// What is to be done next, and of which line it is.
    fn next(&mut self) -> Option<(Work, u64, Option<u64>)> {
        if let Some((work, key)) = self.queue.pop_front() {
            return Some((work, key, None));
        }
        let free = self.long_busy < self.long_max;
        let place = self.lines.iter().position(|waiting| free && waiting.ready() > 0)?;
        self.lines[place..].rotate_left(1);
        let waiting = self.lines.last_mut().expect("just found");
        let (work, key) = waiting.queue.pop_front().expect("something waits");
        waiting.busy += 1;
        self.long_busy += 1;
        Some((work, key, Some(waiting.line.number)))
    }

    /// Work of a line has ended.
    fn is_done(&mut self, number: u64) {
        self.long_busy -= 1;
        let place = self.lines.iter().position(|waiting| waiting.line.number == number);
        let place = place.expect("lines are kept as long as they are busy");
        self.lines[place].busy -= 1;
        if self.lines[place].busy == 0 && self.lines[place].queue.is_empty() {
            self.lines.remove(place);
        }
    }
}

impl Waiting {
    /// How many threads would find something to do.
    fn ready(&self) -> usize {
        self.queue.len().min(self.line.threads.max(1).saturating_sub(self.busy))
    }
}
