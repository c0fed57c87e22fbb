//! Threads that do what may block.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, ptr, thread};

/// A thread without work ends after this long.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Stack of a thread: the work is a system call.
const STACK: usize = 128 << 10;

/// As many threads per processor at most, as the kernel's own for files have.
const PER_PROCESSOR: usize = 4;

/// And for one file. Reads of it that wait for a disk are no more at a time than that.
const THREADS: std::ops::RangeInclusive<usize> = 16..=64;

/// So many times as many there are in all: what hangs on one dead device leaves threads to others.
const FILES: usize = 2;

/// An operation on a file, with addresses of the caller's, who keeps what is there until it has ended.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub user_data: u64,
    /// No completion if it succeeds.
    pub quiet: bool,
    pub fd: RawFd,
    pub work: Work,
}

#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Bytes to or from memory, of which `done` have gone already.
    Transfer {
        writes: bool,
        address: u64,
        len: usize,
        done: usize,
        offset: u64,
        flags: i32,
    },
    /// The same of `count` vectors, in one call.
    Vectors {
        writes: bool,
        address: u64,
        count: i32,
        offset: u64,
        flags: i32,
    },
    Sync {
        data_only: bool,
    },
    Allocate {
        mode: i32,
        offset: u64,
        len: u64,
    },
}

/// A job that has ended: its `user_data`, its result, and whether a success is to be told.
pub type Ended = (u64, i32, bool);

pub struct Threads {
    shared: Arc<Shared>,
    /// What a thread does first.
    first: fn(),
}

/// What threads and ring share. Threads may outlive the ring, as the kernel's do.
struct Shared {
    state: Mutex<State>,
    came: Condvar,
    ended: Mutex<Vec<Ended>>,
    /// The flags of the ring's submission queue, where the kernel tells that an enter is wanted.
    flags: Arc<AtomicU32>,
    /// Which of them.
    wanted: u32,
    /// An eventfd, which ends a wait.
    bell: OwnedFd,
}

struct State {
    /// Files of which something waits or is being done. Which was served last is at the end.
    files: Vec<Line>,
    /// Threads that one file may have busy.
    share: usize,
    threads: usize,
    idle: usize,
    closed: bool,
}

/// Work on one file.
struct Line {
    fd: RawFd,
    queue: VecDeque<Job>,
    busy: usize,
}

impl Threads {
    /// Those that end jobs set `wanted` in `flags`, and ring the bell.
    pub fn new(flags: Arc<AtomicU32>, wanted: u32, bell: OwnedFd, first: fn()) -> Threads {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let share = (processors * PER_PROCESSOR).clamp(*THREADS.start(), *THREADS.end());
        let state = Mutex::new(State::new(share));
        let (came, ended) = Default::default();
        Threads { shared: Arc::new(Shared { state, came, ended, flags, wanted, bell }), first }
    }

    /// Has a thread do `job`: `-ECANCELED` where there is none and none can be started.
    pub fn run(&self, job: Job) {
        let mut state = self.shared.lock();
        state.push(job);
        let ready = state.ready();
        if ready == 0 {
            // Whoever is busy with this file comes to it.
            return;
        }
        if state.idle >= ready || state.threads >= state.share * FILES {
            drop(state);
            return self.shared.came.notify_one();
        }
        state.threads += 1;
        drop(state);
        let (shared, first) = (Arc::clone(&self.shared), self.first);
        let thread = thread::Builder::new().name("ring".into()).stack_size(STACK);
        let serve = move || {
            first();
            shared.serve();
        };
        if thread.spawn(serve).is_err() {
            self.shared.without_thread();
        }
    }

    /// Takes back what no thread has begun: all, or what has this `user_data`.
    pub fn take_back(&self, user_data: Option<u64>, mut each: impl FnMut(Job)) {
        let mut state = self.shared.lock();
        for file in &mut state.files {
            file.queue.retain(|job| {
                let stays = user_data.is_some_and(|it| it != job.user_data);
                if !stays {
                    each(*job);
                }
                stays
            });
        }
        state.files.retain(Line::is_in_use);
    }

    /// Moves what has ended into `into`, which is empty.
    pub fn collect(&self, into: &mut Vec<Ended>) {
        let mut told = 0u64;
        // Before they are taken: who ends a job after that rings again.
        // SAFETY: eight bytes of ours; the eventfd does not block.
        unsafe { libc::read(self.shared.bell.as_raw_fd(), (&raw mut told).cast(), 8) };
        self.shared.flags.fetch_and(!self.shared.wanted, Ordering::SeqCst);
        std::mem::swap(&mut *self.shared.ended(), into);
    }
}

#[cfg(test)]
impl Threads {
    /// As a thread does whose job was collected before it came to that.
    pub fn ring_late(&self) {
        self.shared.ring();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.files.iter_mut().for_each(|file| file.queue.clear());
        drop(state);
        self.shared.came.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, Vec<Ended>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.next() {
                drop(state);
                self.end(&job, job.run());
                state = self.lock();
                state.is_done(job.fd);
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let waited = self.came.wait_timeout(state, IDLE_MAX);
            let timeout;
            (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            if timeout.timed_out() && state.ready() == 0 {
                break;
            }
        }
        state.threads -= 1;
    }

    fn end(&self, job: &Job, result: i32) {
        let mut ended = self.ended();
        let first = ended.is_empty();
        ended.push((job.user_data, result, job.quiet));
        drop(ended);
        self.flags.fetch_or(self.wanted, Ordering::SeqCst);
        if first {
            self.ring();
        }
    }

    fn ring(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of ours. It can only fail where the count is at its end, and then it is readable.
        unsafe { libc::write(self.bell.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// A thread could not be started: others come to the work, or it fails.
    fn without_thread(&self) {
        let mut state = self.lock();
        state.threads -= 1;
        if state.threads > 0 {
            return;
        }
        let failed = std::mem::take(&mut state.files);
        drop(state);
        for job in failed.into_iter().flat_map(|file| file.queue) {
            // As the kernel says it of what was not begun: nothing of it was lost.
            self.end(&job, -libc::ECANCELED);
        }
    }
}

impl State {
    fn new(share: usize) -> State {
        State { files: Vec::new(), share, threads: 0, idle: 0, closed: false }
    }

    fn push(&mut self, job: Job) {
        match self.files.iter_mut().find(|file| file.fd == job.fd) {
            Some(file) => file.queue.push_back(job),
            None => self.files.push(Line { fd: job.fd, queue: [job].into(), busy: 0 }),
        }
    }

    /// How many threads would find something to do.
    fn ready(&self) -> usize {
        self.files.iter().map(|file| file.ready(self.share)).sum()
    }

    /// What is to be done next: of files by turns.
    fn next(&mut self) -> Option<Job> {
        let place = self.files.iter().position(|file| file.ready(self.share) > 0)?;
        self.files[place..].rotate_left(1);
        let file = self.files.last_mut()?;
        let job = file.queue.pop_front()?;
        file.busy += 1;
        Some(job)
    }

    /// A job of `fd` has ended.
    fn is_done(&mut self, fd: RawFd) {
        let place = self.files.iter().position(|file| file.fd == fd);
        let place = place.expect("files are kept as long as they are busy");
        self.files[place].busy -= 1;
        if !self.files[place].is_in_use() {
            self.files.remove(place);
        }
    }
}

impl Line {
    /// How many threads would find something to do, of `share` at most.
    fn ready(&self, share: usize) -> usize {
        self.queue.len().min(share - self.busy)
    }

    fn is_in_use(&self) -> bool {
        self.busy > 0 || !self.queue.is_empty()
    }
}

impl Job {
    /// What the kernel's completion would say.
    fn run(&self) -> i32 {
        let fd = self.fd;
        match self.work {
            Work::Transfer { writes, address, len, mut done, offset, flags } => loop {
                let start = ptr::with_exposed_provenance_mut::<u8>(address as usize + done);
                let vector = libc::iovec { iov_base: start.cast(), iov_len: len - done };
                // SAFETY: whoever submitted vouches for the memory until this has ended.
                let moved =
                    unsafe { moved(fd, writes, &raw const vector, 1, place(offset, done), flags) };
                match moved {
                    Ok(0) => break done as i32,
                    Ok(bytes) => done += bytes,
                    // What was done counts, as with the kernel.
                    Err(_) if done > 0 => break done as i32,
                    Err(errno) => break -errno,
                }
                if done == len {
                    break done as i32;
                }
            },
            Work::Vectors { writes, address, count, offset, flags } => {
                let vectors = ptr::with_exposed_provenance::<libc::iovec>(address as usize);
                // SAFETY: as above.
                match unsafe { moved(fd, writes, vectors, count, place(offset, 0), flags) } {
                    Ok(bytes) => bytes as i32,
                    Err(errno) => -errno,
                }
            }
            Work::Sync { data_only } => {
                // SAFETY: no memory is pointed to.
                again(|| unsafe {
                    if data_only { libc::fdatasync(fd) as isize } else { libc::fsync(fd) as isize }
                })
                .map_or_else(|errno| -errno, |_| 0)
            }
            Work::Allocate { mode, offset, len } => {
                // SAFETY: no memory is pointed to.
                again(|| unsafe { libc::fallocate(fd, mode, offset as i64, len as i64) as isize })
                    .map_or_else(|errno| -errno, |_| 0)
            }
        }
    }
}

/// Where the rest lies; -1 stands for the file's own position, which moves.
fn place(offset: u64, done: usize) -> i64 {
    if offset == u64::MAX { -1 } else { offset.wrapping_add(done as u64) as i64 }
}

/// One call of `preadv2(2)` or `pwritev2(2)`; of a stream, `readv` or `writev`, as rings take no notice of its offset.
///
/// # Safety
/// There are `count` vectors, of memory that may be read, or written.
pub unsafe fn moved(
    fd: RawFd,
    writes: bool,
    vectors: *const libc::iovec,
    count: i32,
    offset: i64,
    flags: i32,
) -> Result<usize, i32> {
    // SAFETY: passed on to the caller.
    let at = |offset| unsafe {
        match writes {
            true => libc::pwritev2(fd, vectors, count, offset, flags),
            false => libc::preadv2(fd, vectors, count, offset, flags),
        }
    };
    match again(|| at(offset)) {
        Err(libc::ESPIPE) if offset != -1 => again(|| at(-1)),
        moved => moved,
    }
}

/// Calls until no signal comes between; returns what it gave, or `errno`.
fn again(mut call: impl FnMut() -> isize) -> Result<usize, i32> {
    loop {
        match call() {
            given @ 0.. => return Ok(given as usize),
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                errno => return Err(errno.unwrap_or(libc::EIO)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::FromRawFd;
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(30);
    /// Many more than there are threads.
    const HANGING: u64 = 500;

    /// Threads, and what they have ended within patience: so many.
    fn ended(threads: &Threads, count: usize) -> Vec<Ended> {
        let (mut all, mut some, until) = (Vec::new(), Vec::new(), Instant::now() + PATIENCE);
        while all.len() < count {
            assert!(Instant::now() < until, "{} of {count}", all.len());
            thread::sleep(Duration::from_millis(1));
            threads.collect(&mut some);
            all.append(&mut some);
        }
        all
    }

    #[test]
    fn what_hangs_on_one_file_keeps_no_other_waiting() {
        // SAFETY: the call takes no memory, and what it gives is ours.
        let bell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK)) };
        let threads = Threads::new(Arc::default(), 1, bell, || ());
        let (hung, mut release) = io::pipe().expect("a pipe");
        let mut bytes = vec![0u8; HANGING as usize];
        let start = bytes.as_mut_ptr().expose_provenance() as u64;
        for number in 0..HANGING {
            let work = Work::Transfer {
                writes: false,
                address: start + number,
                len: 1,
                done: 0,
                offset: 0,
                flags: 0,
            };
            let job = Job { user_data: number, quiet: false, fd: hung.as_raw_fd(), work };
            threads.run(job);
        }
        let file = tempfile::tempfile().expect("a file");
        for number in HANGING..2 * HANGING {
            let work = Work::Sync { data_only: true };
            threads.run(Job { user_data: number, quiet: false, fd: file.as_raw_fd(), work });
        }
        let done = ended(&threads, HANGING as usize);
        assert!(
            done.iter().all(|&(number, result, _)| number >= HANGING && result == 0),
            "{done:?}"
        );
        // What waits for a turn can be taken back; what hangs cannot.
        let mut taken = Vec::new();
        threads.take_back(Some(HANGING - 1), |job| taken.push(job.user_data));
        threads.take_back(Some(0), |job| taken.push(job.user_data));
        assert_eq!(taken, [HANGING - 1]);
        release.write_all(&vec![7; HANGING as usize - 1]).expect("somebody reads");
        let mut done = ended(&threads, HANGING as usize - 1);
        done.sort_unstable();
        assert!(done.iter().zip(0..).all(|(done, number)| *done == (number, 1, false)), "{done:?}");
        assert_eq!(bytes.iter().filter(|byte| **byte == 7).count(), HANGING as usize - 1);
        let until = Instant::now() + PATIENCE;
        while !threads.shared.lock().files.is_empty() {
            assert!(Instant::now() < until, "files are kept that nothing is done on");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
