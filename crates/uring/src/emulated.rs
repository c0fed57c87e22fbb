//! A ring where the kernel grants none: this process does what the kernel would, with calls that everybody has.
//!
//! ```text
//!   push --> submission queue --enter--> polls, reads of streams ----> epoll -------+
//!                                        reads of what is in memory -- at once -----+--> completion queue --> reap
//!                                        other operations on files --> threads -----+
//!                                        timeouts -------------------> a timerfd ---'
//! ```
//!
//! The queues are those of every ring, in memory of our own, so that who uses them sees no difference; the other ends of
//! both are here. What is not here completes as on a kernel that lacks it: `-EINVAL`, NVMe commands `-EOPNOTSUPP`,
//! registered files and buffers `-EBADF` and `-EFAULT`.
//!
//! It costs a thread's being woken for each operation on a file that does not find its data in memory, and a system call
//! for what rings have none for. Descriptors must stay open until what uses them has completed: a kernel would hold
//! the file itself.

mod sqe;
mod threads;

use crate::Wait;
use crate::queue::Ends;
use crate::sys;
pub use sqe::Sqe;
use sqe::{KNOWN, code};
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{io, ptr};
use threads::{Ended, Job, Threads, Work};

/// `RWF_NOWAIT` (`preadv2(2)`).
const RWF_NOWAIT: i32 = 0x8;
/// What `epoll_ctl(2)` and `poll(2)` tell unasked.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;

/// Flags of `IORING_OP_ASYNC_CANCEL` and `IORING_OP_TIMEOUT_REMOVE`, and of `IORING_OP_FSYNC`.
const CANCEL_ALL: u32 = 1 << 0;
const CANCEL_ANY: u32 = 1 << 2;
const TIMEOUT_UPDATE: u32 = 1 << 1;
const FSYNC_DATASYNC: u32 = 1 << 0;

/// Events taken from epoll at once.
const EVENTS: usize = 64;

/// What an event is about: a descriptor, or one of these.
const BELL: u64 = 1 << 32;
const TIMER: u64 = 2 << 32;
const OUTSIDE: u64 = 3 << 32;

/// While its caller has other things to do, sockets that became ready are looked for so often, in nanoseconds.
const LOOK_EVERY: i64 = 50_000;

/// The kernel's part of one ring.
pub struct Emulated {
    ends: Ends,
    /// The ring's descriptor: the owner of the ring has it, and keeps it longer than this.
    epoll: RawFd,
    flags: Arc<AtomicU32>,
    threads: Threads,
    /// Empty between collections.
    ended: Vec<Ended>,
    /// Who waits for a descriptor. Lists are kept when they are empty: descriptors' numbers come again.
    watched: HashMap<RawFd, Vec<Watch>>,
    /// Which descriptor somebody waits for.
    watches: HashMap<u64, RawFd>,
    timeouts: Vec<Timeout>,
    timer: Option<OwnedFd>,
    /// Completions that found the queue full.
    overflow: VecDeque<(u64, i32)>,
    /// Told of everything for callers that sleep elsewhere.
    outside: Option<RawFd>,
    /// When events were asked for last.
    looked: i64,
}

/// Something that ends when a descriptor is ready.
struct Watch {
    user_data: u64,
    quiet: bool,
    events: u32,
    /// Then so many bytes are read to that address; otherwise the events are told.
    read: Option<(u64, usize)>,
}

struct Timeout {
    user_data: u64,
    quiet: bool,
    /// By the monotonic clock, in nanoseconds.
    at: i64,
}

impl Emulated {
    /// The kernel's ends of two queues whose flags are `flags`; threads call `first` before anything else. Returns the ring's
    /// descriptor too.
    pub fn new(ends: Ends, flags: Arc<AtomicU32>, first: fn()) -> io::Result<(Emulated, OwnedFd)> {
        // SAFETY: makes a new descriptor.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: as above.
        let bell = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        control(
            epoll.as_raw_fd(),
            libc::EPOLL_CTL_ADD,
            bell.as_raw_fd(),
            libc::EPOLLIN as u32,
            BELL,
        )?;
        let emulated = Emulated {
            ends,
            epoll: epoll.as_raw_fd(),
            threads: Threads::new(Arc::clone(&flags), sys::SQ_TASKRUN, bell, first),
            flags,
            ended: Vec::new(),
            watched: HashMap::new(),
            watches: HashMap::new(),
            timeouts: Vec::new(),
            timer: None,
            overflow: VecDeque::new(),
            outside: None,
            looked: 0,
        };
        Ok((emulated, epoll))
    }

    pub fn supports(code: u8) -> bool {
        KNOWN.contains(&code)
    }

    /// Has the ring's descriptor become readable when `event`, an eventfd, does.
    pub fn watch_outside(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        if self.outside.is_some() {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        let fd = event.as_raw_fd();
        control(self.epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, OUTSIDE)?;
        self.outside = Some(fd);
        Ok(())
    }

    /// As `io_uring_enter` without waiting, where there may be something to do. Says whether there was.
    pub fn flush(&mut self, queued: u32) -> io::Result<bool> {
        let wanted =
            self.flags.load(Ordering::Acquire) & (sys::SQ_TASKRUN | sys::SQ_CQ_OVERFLOW) != 0;
        let waits = !self.watches.is_empty() || !self.timeouts.is_empty();
        let looks = self.outside.is_some() || (waits && now() - self.looked >= LOOK_EVERY);
        if queued == 0 && !wanted && !looks {
            return Ok(false);
        }
        self.enter(0, Wait::No)?;
        Ok(true)
    }

    /// Takes what is queued, and waits until `want` completions can be reaped.
    pub fn enter(&mut self, want: u32, wait: Wait) -> io::Result<()> {
        while let Some(sqe) = self.ends.next() {
            self.begin(sqe);
        }
        self.collect();
        // Also where something has ended already: what waits is to have its turn beside what always ends at once.
        if wait == Wait::No || self.ends.completions() >= want {
            return self.look();
        }
        let until = match wait {
            Wait::AtMost(limit) => Some(later(limit)),
            Wait::No | Wait::Forever => None,
        };
        while self.ends.completions() < want {
            let left = match until.map(|until| until.saturating_sub(now())) {
                Some(..=0) => break,
                left => left,
            };
            if !wait_for(self.epoll, left)? {
                break;
            }
            self.look()?;
        }
        Ok(())
    }

    /// Takes one entry.
    fn begin(&mut self, sqe: Sqe) {
        let quiet = sqe.flags & sqe::SKIP_SUCCESS != 0;
        let job = |work| Job { user_data: sqe.user_data, quiet, fd: sqe.fd, work };
        let refused = match sqe.flags & !(sqe::SKIP_SUCCESS | sqe::ASYNC) {
            0 => None,
            flags if flags & sqe::FIXED_FILE != 0 => Some(-libc::EBADF),
            _ => Some(-libc::EINVAL),
        };
        let result = refused.or_else(|| match sqe.opcode {
            code::NOP => Some(0),
            code::READ => self.begin_read(&sqe, quiet),
            code::WRITE => {
                let (len, flags) = (sqe.len as usize, sqe.op_flags as i32);
                let (address, offset) = (sqe.address, sqe.offset);
                let work = Work::Transfer { writes: true, address, len, done: 0, offset, flags };
                self.have_done(job(work))
            }
            code::READV | code::WRITEV => {
                let writes = sqe.opcode == code::WRITEV;
                let (count, flags) = (sqe.len as i32, sqe.op_flags as i32);
                let (address, offset) = (sqe.address, sqe.offset);
                self.have_done(job(Work::Vectors { writes, address, count, offset, flags }))
            }
            code::READ_FIXED | code::WRITE_FIXED => Some(-libc::EFAULT),
            code::FSYNC => match sqe.op_flags & !FSYNC_DATASYNC {
                0 if sqe.offset == 0 && sqe.len == 0 => {
                    self.have_done(job(Work::Sync { data_only: sqe.op_flags != 0 }))
                }
                _ => Some(-libc::EINVAL),
            },
            code::FALLOCATE => {
                let (mode, offset, len) = (sqe.len as i32, sqe.offset, sqe.address);
                self.have_done(job(Work::Allocate { mode, offset, len }))
            }
            code::POLL_ADD if sqe.len == 0 => {
                let events = sqe.op_flags;
                let watch = Watch { user_data: sqe.user_data, quiet, events, read: None };
                match self.watch(sqe.fd, watch) {
                    Ok(()) => None,
                    // Files and block devices are always ready.
                    Err(libc::EPERM) => {
                        Some((events & (libc::POLLIN | libc::POLLOUT) as u32) as i32)
                    }
                    Err(errno) => Some(-errno),
                }
            }
            code::POLL_REMOVE if sqe.op_flags == 0 && sqe.len == 0 => {
                Some(if self.end_watch(sqe.address) { 0 } else { -libc::ENOENT })
            }
            code::TIMEOUT if sqe.op_flags == 0 && sqe.offset == 0 => {
                // SAFETY: whoever submitted vouches for the time until the entry is taken.
                let at = later(unsafe { time_at(sqe.address) });
                self.timeouts.push(Timeout { user_data: sqe.user_data, quiet, at });
                self.set_timer().err().map(|error| self.forget_timeout(sqe.user_data, &error))
            }
            code::TIMEOUT_REMOVE => Some(self.change_timeout(&sqe)),
            code::ASYNC_CANCEL => Some(self.cancel(&sqe)),
            code::URING_CMD => Some(-libc::EOPNOTSUPP),
            _ => Some(-libc::EINVAL),
        });
        if let Some(result) = result {
            self.complete(sqe.user_data, result, quiet);
        }
    }

    fn have_done(&self, job: Job) -> Option<i32> {
        self.threads.run(job);
        None
    }

    /// Reads at once what is in memory; of a stream when it is ready; anything else is a thread's.
    fn begin_read(&mut self, sqe: &Sqe, quiet: bool) -> Option<i32> {
        // SAFETY: asks for flags.
        let status = unsafe { libc::fcntl(sqe.fd, libc::F_GETFL) };
        if status < 0 {
            return Some(-libc::EBADF);
        }
        let (len, flags) = (sqe.len as usize, sqe.op_flags as i32);
        let mut done = 0;
        // A direct read goes to the device, and a call waits for it.
        if status & libc::O_DIRECT == 0 {
            let start = ptr::with_exposed_provenance_mut::<u8>(sqe.address as usize);
            let vector = libc::iovec { iov_base: start.cast(), iov_len: len };
            let offset = if sqe.offset == u64::MAX { -1 } else { sqe.offset as i64 };
            // SAFETY: whoever submitted vouches for the memory.
            let read = unsafe {
                threads::moved(sqe.fd, false, &raw const vector, 1, offset, flags | RWF_NOWAIT)
            };
            match read {
                Ok(bytes) if bytes == 0 || bytes == len => return Some(bytes as i32),
                Ok(bytes) => done = bytes,
                Err(libc::EAGAIN | libc::EOPNOTSUPP | libc::EINVAL) => {}
                Err(errno) => return Some(-errno),
            }
            if is_stream(sqe.fd) {
                let events = libc::POLLIN as u32;
                let read = Some((sqe.address, len));
                let watch = Watch { user_data: sqe.user_data, quiet, events, read };
                // What of a stream has come is all that there is.
                match self.watch_or(sqe.fd, watch, done) {
                    Ok(result) => return result,
                    Err(libc::EPERM) => {}
                    Err(errno) => return Some(-errno),
                }
            }
        }
        let (address, offset) = (sqe.address, sqe.offset);
        let work = Work::Transfer { writes: false, address, len, done, offset, flags };
        self.have_done(Job { user_data: sqe.user_data, quiet, fd: sqe.fd, work })
    }

    /// Waits for a stream, of which `done` bytes have come; `EPERM` if the descriptor is none.
    fn watch_or(&mut self, fd: RawFd, watch: Watch, done: usize) -> Result<Option<i32>, i32> {
        let user_data = watch.user_data;
        self.watch(fd, watch)?;
        if done == 0 {
            return Ok(None);
        }
        self.forget_watch(user_data);
        Ok(Some(done as i32))
    }

    /// Waits for a descriptor; `EPERM` if it is always ready.
    fn watch(&mut self, fd: RawFd, watch: Watch) -> Result<(), i32> {
        let user_data = watch.user_data;
        let list = self.watched.entry(fd).or_default();
        list.push(watch);
        if let Err(errno) = arm(self.epoll, fd, list) {
            list.pop();
            return Err(errno);
        }
        self.watches.insert(user_data, fd);
        Ok(())
    }

    /// Takes a watch away.
    fn forget_watch(&mut self, user_data: u64) -> Option<Watch> {
        let fd = self.watches.remove(&user_data)?;
        let list = self.watched.get_mut(&fd)?;
        let place = list.iter().position(|watch| watch.user_data == user_data)?;
        let watch = list.swap_remove(place);
        if list.is_empty() {
            disarm(self.epoll, fd);
        }
        Some(watch)
    }

    fn end_watch(&mut self, user_data: u64) -> bool {
        let ended = self.forget_watch(user_data).is_some();
        if ended {
            self.complete(user_data, -libc::ECANCELED, false);
        }
        ended
    }

    /// What has become ready, and what threads have done.
    fn look(&mut self) -> io::Result<()> {
        self.looked = now();
        self.collect();
        let mut events: [libc::epoll_event; EVENTS] =
            [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        loop {
            // SAFETY: there is room for as many.
            let count =
                unsafe { libc::epoll_wait(self.epoll, events.as_mut_ptr(), EVENTS as i32, 0) };
            let count = match count {
                0.. => count as usize,
                _ => match io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::EINTR) => return Ok(()),
                    error => return Err(error),
                },
            };
            for event in &events[..count] {
                let (ready, about) = (event.events, event.u64);
                match about {
                    // Also where what it tells of was taken before it rang: it would ring on.
                    BELL => self.collect_ended(),
                    TIMER => self.end_timeouts(),
                    OUTSIDE => self.silence_outside(),
                    fd => self.is_ready(fd as RawFd, ready),
                }
            }
            if count < EVENTS {
                return Ok(());
            }
        }
    }

    /// A descriptor has events.
    fn is_ready(&mut self, fd: RawFd, ready: u32) {
        let Some(mut list) = self.watched.remove(&fd) else { return };
        list.retain(|watch| {
            let events = ready & (watch.events | ALWAYS);
            if events == 0 {
                return true;
            }
            let result = match watch.read {
                None => events as i32,
                Some((address, len)) => match read_stream(fd, address, len) {
                    Some(result) => result,
                    None => return true,
                },
            };
            self.watches.remove(&watch.user_data);
            self.complete(watch.user_data, result, watch.quiet);
            false
        });
        if !list.is_empty()
            && let Err(errno) = arm(self.epoll, fd, &list)
        {
            // Closed meanwhile, against what was agreed.
            for watch in list.drain(..) {
                self.watches.remove(&watch.user_data);
                self.complete(watch.user_data, -errno, watch.quiet);
            }
        }
        self.watched.insert(fd, list);
    }

    /// A letter for somebody who sleeps outside has come while nobody does.
    fn silence_outside(&self) {
        let Some(fd) = self.outside else { return };
        let mut told = 0u64;
        // SAFETY: eight bytes of ours, of an eventfd that is readable.
        unsafe { libc::read(fd, (&raw mut told).cast(), 8) };
    }

    /// What threads have done; completions for which there is room by now.
    fn collect(&mut self) {
        while let Some(&(user_data, result)) = self.overflow.front() {
            if !self.ends.post(user_data, result) {
                break;
            }
            self.overflow.pop_front();
            if self.overflow.is_empty() {
                self.flags.fetch_and(!sys::SQ_CQ_OVERFLOW, Ordering::SeqCst);
            }
        }
        if self.flags.load(Ordering::SeqCst) & sys::SQ_TASKRUN != 0 {
            self.collect_ended();
        }
    }

    fn collect_ended(&mut self) {
        let mut ended = mem::take(&mut self.ended);
        self.threads.collect(&mut ended);
        for (user_data, result, quiet) in ended.drain(..) {
            self.complete(user_data, result, quiet);
        }
        self.ended = ended;
    }

    fn complete(&mut self, user_data: u64, result: i32, quiet: bool) {
        if quiet && result >= 0 {
            return;
        }
        if self.overflow.is_empty() && self.ends.post(user_data, result) {
            return;
        }
        self.overflow.push_back((user_data, result));
        self.flags.fetch_or(sys::SQ_CQ_OVERFLOW, Ordering::SeqCst);
    }

    /// Ends what `sqe` names: a count if it may be any, else 0, or `-ENOENT`; `-EALREADY` cannot be told from that.
    fn cancel(&mut self, sqe: &Sqe) -> i32 {
        let whose = match sqe.op_flags {
            0 => Some(sqe.address),
            CANCEL_ANY => None,
            flags if flags == CANCEL_ANY | CANCEL_ALL => None,
            _ => return -libc::EINVAL,
        };
        let mut ended = Vec::new();
        self.threads.take_back(whose, |job| ended.push(job.user_data));
        match whose {
            Some(user_data) => {
                ended.extend(self.forget_watch(user_data).map(|watch| watch.user_data));
                ended.extend(self.take_timeout(user_data).map(|timeout| timeout.user_data));
            }
            None => {
                ended.extend(self.watches.drain().map(|(user_data, _)| user_data));
                for (fd, list) in self.watched.iter_mut().filter(|(_, list)| !list.is_empty()) {
                    disarm(self.epoll, *fd);
                    list.clear();
                }
                ended.extend(self.timeouts.drain(..).map(|timeout| timeout.user_data));
            }
        }
        for user_data in &ended {
            self.complete(*user_data, -libc::ECANCELED, false);
        }
        match whose {
            None => ended.len() as i32,
            Some(_) if ended.is_empty() => -libc::ENOENT,
            Some(_) => 0,
        }
    }

    fn take_timeout(&mut self, user_data: u64) -> Option<Timeout> {
        let place = self.timeouts.iter().position(|timeout| timeout.user_data == user_data)?;
        Some(self.timeouts.swap_remove(place))
    }

    /// The timer cannot be had.
    fn forget_timeout(&mut self, user_data: u64, error: &io::Error) -> i32 {
        self.take_timeout(user_data);
        -error.raw_os_error().unwrap_or(libc::EIO)
    }

    fn change_timeout(&mut self, sqe: &Sqe) -> i32 {
        match sqe.op_flags {
            0 => {
                let Some(timeout) = self.take_timeout(sqe.address) else { return -libc::ENOENT };
                self.complete(timeout.user_data, -libc::ECANCELED, false);
                0
            }
            TIMEOUT_UPDATE => {
                // SAFETY: whoever submitted vouches for the time until the entry is taken.
                let at = later(unsafe { time_at(sqe.offset) });
                let found = self.timeouts.iter_mut().find(|it| it.user_data == sqe.address);
                let Some(timeout) = found else { return -libc::ENOENT };
                timeout.at = at;
                self.set_timer()
                    .map_or_else(|error| -error.raw_os_error().unwrap_or(libc::EIO), |()| 0)
            }
            _ => -libc::EINVAL,
        }
    }

    /// Sets the timer to the earliest timeout.
    fn set_timer(&mut self) -> io::Result<()> {
        let Some(at) = self.timeouts.iter().map(|timeout| timeout.at).min() else { return Ok(()) };
        if self.timer.is_none() {
            let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
            // SAFETY: makes a new descriptor.
            let timer = owned(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
            control(
                self.epoll,
                libc::EPOLL_CTL_ADD,
                timer.as_raw_fd(),
                libc::EPOLLIN as u32,
                TIMER,
            )?;
            self.timer = Some(timer);
        }
        let timer = self.timer.as_ref().expect("made above").as_raw_fd();
        let time = libc::itimerspec { it_interval: timespec(0), it_value: timespec(at.max(1)) };
        // SAFETY: one valid time, which the kernel reads now.
        let set = unsafe {
            libc::timerfd_settime(timer, libc::TFD_TIMER_ABSTIME, &raw const time, ptr::null_mut())
        };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The timer has gone off: ends the timeouts that are due.
    fn end_timeouts(&mut self) {
        if let Some(timer) = &self.timer {
            let mut told = 0u64;
            // SAFETY: eight bytes of ours; it does not block.
            unsafe { libc::read(timer.as_raw_fd(), (&raw mut told).cast(), 8) };
        }
        let now = now();
        while let Some(place) = self.timeouts.iter().position(|timeout| timeout.at <= now) {
            let timeout = self.timeouts.swap_remove(place);
            self.complete(timeout.user_data, -libc::ETIME, timeout.quiet);
        }
        // What was set before can be set again.
        let _ = self.set_timer();
    }
}

/// Has epoll forget a descriptor: its number may be another file's while a copy of it lives on elsewhere.
fn disarm(epoll: RawFd, fd: RawFd) {
    // One that was closed is not there any more.
    let _ = control(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
}

/// Has epoll tell once of what `list` waits for.
fn arm(epoll: RawFd, fd: RawFd, list: &[Watch]) -> Result<(), i32> {
    let events = list.iter().fold(ONE_SHOT, |all, watch| all | watch.events);
    let about = fd as u32 as u64;
    let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    match control(epoll, libc::EPOLL_CTL_MOD, fd, events, about).map_err(errno) {
        Err(libc::ENOENT) => control(epoll, libc::EPOLL_CTL_ADD, fd, events, about).map_err(errno),
        armed => armed,
    }
}

fn control(epoll: RawFd, operation: i32, fd: RawFd, events: u32, about: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: about };
    // SAFETY: one valid event, which the kernel reads now.
    let done = unsafe { libc::epoll_ctl(epoll, operation, fd, &raw mut event) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether something has come within `limit` nanoseconds; a signal ends the wait as if it had been over.
fn wait_for(epoll: RawFd, limit: Option<i64>) -> io::Result<bool> {
    let mut place = libc::pollfd { fd: epoll, events: libc::POLLIN, revents: 0 };
    let limit = limit.map(timespec);
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: one descriptor, and a time or none.
    match unsafe { libc::ppoll(&raw mut place, 1, limit, ptr::null()) } {
        0.. => Ok(place.revents != 0),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EINTR) => Ok(false),
            error => Err(error),
        },
    }
}

/// Whether a descriptor may be of something without offsets. That it can be polled does not tell: files of FUSE can, too.
fn is_stream(fd: RawFd) -> bool {
    // SAFETY: all-zero is a valid one, which the call fills.
    let (mode, told) = unsafe {
        let mut status: libc::stat = mem::zeroed();
        let told = libc::fstat(fd, &raw mut status) == 0;
        (status.st_mode & libc::S_IFMT, told)
    };
    told && ![libc::S_IFREG, libc::S_IFBLK, libc::S_IFDIR].contains(&mode)
}

/// What a read of a stream that is ready gives; none if it is to be waited for again.
fn read_stream(fd: RawFd, address: u64, len: usize) -> Option<i32> {
    let start = ptr::with_exposed_provenance_mut::<libc::c_void>(address as usize);
    let mut place = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // Somebody else may have read what it was ready for.
    // SAFETY: one valid place.
    if unsafe { libc::poll(&raw mut place, 1, 0) } == 0 {
        return None;
    }
    // SAFETY: whoever submitted vouches for the memory until the read has ended.
    match unsafe { libc::read(fd, start, len) } {
        bytes @ 0.. => Some(bytes as i32),
        _ => match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => None,
            errno => Some(-errno.unwrap_or(libc::EIO)),
        },
    }
}

/// The time that lies at an address.
///
/// # Safety
/// There is one.
unsafe fn time_at(address: u64) -> Duration {
    let time = ptr::with_exposed_provenance::<sys::Timespec>(address as usize);
    // SAFETY: passed on to the caller.
    let time = unsafe { time.read() };
    let seconds = u64::try_from(time.seconds).unwrap_or_default();
    Duration::from_secs(seconds)
        .saturating_add(Duration::from_nanos(time.nanoseconds.max(0) as u64))
}

/// The monotonic clock, in nanoseconds.
fn now() -> i64 {
    let mut time = timespec(0);
    // SAFETY: the kernel fills one time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// When `limit` has passed, or never.
fn later(limit: Duration) -> i64 {
    now().saturating_add(i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX))
}

fn timespec(nanoseconds: i64) -> libc::timespec {
    libc::timespec {
        tv_sec: nanoseconds.div_euclid(1_000_000_000),
        tv_nsec: nanoseconds.rem_euclid(1_000_000_000),
    }
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RingOptions, Setup};

    #[test]
    fn a_bell_that_rings_late_rings_once() {
        let setup = Setup { entries: 4, completions: 16, ..RingOptions::default().emulated() };
        let flags = Arc::new(AtomicU32::new(0));
        let (_submissions, _completions, ends) = Ends::new(&setup, Arc::as_ptr(&flags)).unwrap();
        let (mut emulated, _epoll) = Emulated::new(ends, flags, || {}).unwrap();
        emulated.threads.ring_late();
        assert!(wait_for(emulated.epoll, Some(0)).unwrap());
        emulated.enter(1, Wait::AtMost(Duration::from_millis(1))).unwrap();
        assert!(!wait_for(emulated.epoll, Some(0)).unwrap(), "a wait would end at once, for ever");
    }
}
