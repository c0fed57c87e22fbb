//! A thin io_uring that threads may share: [`Submission`] and [`Completion`] go behind a lock each.
//!
//! No `SINGLE_ISSUER` and no `COOP_TASKRUN`, since a context may be submitted to by one thread and
//! waited for by another while the first computes.

use crate::abi::{Cqe, Entry, Sqe};
use crate::interrupts::Source;
use crate::number::Number;
use crate::probe;
use crate::system::{call, failure, now_ns};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::{io, ptr};

// include/uapi/linux/io_uring.h
const SETUP_CQSIZE: u32 = 1 << 3;
const SETUP_CLAMP: u32 = 1 << 4;
const SETUP_SUBMIT_ALL: u32 = 1 << 7;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
const FEAT_SINGLE_MMAP: u32 = 1 << 0;
const FEAT_NODROP: u32 = 1 << 1;
const FEAT_EXT_ARG: u32 = 1 << 8;
const FEAT_NATIVE_WORKERS: u32 = 1 << 9;
const OFF_SQ_RING: i64 = 0;
const OFF_SQES: i64 = 0x1000_0000;
const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_SQ_WAKEUP: u32 = 1 << 1;
const ENTER_EXT_ARG: u32 = 1 << 3;
const SQ_NEED_WAKEUP: u32 = 1 << 0;
const SQ_CQ_OVERFLOW: u32 = 1 << 1;
const REGISTER_SYNC_CANCEL: usize = 24;
/// Descriptors of rings are put above those that programs count on being small (`select`).
const DESCRIPTOR_MIN: i32 = 256;

/// `IORING_SETUP_IOPOLL`: completions are found by asking the device.
pub const SETUP_IOPOLL: u32 = 1 << 0;
/// `IORING_SETUP_SQPOLL`: a kernel thread takes submissions.
pub const SETUP_SQPOLL: u32 = 1 << 1;
/// `IORING_SETUP_SQ_AFF`: that thread stays on one CPU.
pub const SETUP_SQ_AFF: u32 = 1 << 2;
/// What [`Ring::wait`] gives where a signal may have come, or other threads have only misled the kernel.
pub const PERHAPS: i32 = i32::MIN;
/// `IORING_REGISTER_BUFFERS`.
pub const REGISTER_BUFFERS: usize = 0;
/// `IORING_REGISTER_FILES`.
pub const REGISTER_FILES: usize = 2;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    resv1: u32,
    user_addr: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    resv1: u32,
    user_addr: u64,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    resv: [u32; 3],
    sq_off: SqOffsets,
    cq_off: CqOffsets,
}
const _: () = assert!(size_of::<Params>() == 120);

/// `struct io_uring_getevents_arg`.
#[repr(C)]
struct GetEvents {
    sigmask: u64,
    sigmask_bytes: u32,
    min_wait_us: u32,
    timespec: u64,
}

/// How to set up a ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup {
    /// Entries of the submission queue.
    pub entries: u32,
    /// Entries of the completion queue.
    pub completions: u32,
    /// Of `SETUP_*`.
    pub flags: u32,
    /// With [`SETUP_SQ_AFF`].
    pub thread_cpu: u32,
    /// Milliseconds after which an idle submission thread sleeps.
    pub thread_idle_ms: u32,
}

/// Why a ring that was set up might then not be used, or 0: there are to be no more of them.
static REFUSED: AtomicI32 = AtomicI32::new(0);

/// The part of a ring that any thread may use at any time.
pub struct Ring {
    number: Number,
    /// What [`probe::mark_of`] says of its file.
    mark: u64,
    memory: *mut u8,
    memory_len: usize,
    sqes: *mut Sqe,
    sqes_len: usize,
    sq_flags: *const AtomicU32,
    cq_head: *const AtomicU32,
    cq_tail: *const AtomicU32,
    cqes: *const Cqe,
    cq_mask: u32,
    polled_by_thread: bool,
    /// The descriptor leads to the ring no more: the program has closed it, or may not use it.
    lost: AtomicBool,
    /// Until it is at rest.
    pub interrupts: Source,
}

// SAFETY: the pointers lead to the ring's shared memory, which lives as long as the Ring and is
// accessed with atomics.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

/// The submission queue: one user at a time.
pub struct Submission {
    sqes: *mut Sqe,
    head: *const AtomicU32,
    tail: *const AtomicU32,
    local_tail: u32,
    mask: u32,
}

// SAFETY: it is used by one thread at a time, and its memory outlives it (see `Ring::new`).
unsafe impl Send for Submission {}

/// The completion queue: one user at a time.
pub struct Completion {
    cqes: *const Cqe,
    head: *const AtomicU32,
    tail: *const AtomicU32,
    local_head: u32,
    mask: u32,
}

// SAFETY: as for `Submission`.
unsafe impl Send for Completion {}

impl Ring {
    /// Sets up a ring. The queues must not be used after the ring was dropped.
    pub fn new(setup: Setup) -> io::Result<(Ring, Submission, Completion)> {
        let errno = REFUSED.load(Ordering::Relaxed);
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let mut params = Params::default();
        let fd = open(setup, &mut params)?;
        let wanted = FEAT_SINGLE_MMAP | FEAT_NODROP | FEAT_EXT_ARG | FEAT_NATIVE_WORKERS;
        if params.features & wanted != wanted {
            close(fd);
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        let made = map(fd, &params).inspect_err(|_| close(fd))?;
        // There is none. Where that is refused polls would never end. It is left open: closing would interrupt waits.
        match -made.0.cancel(0) {
            errno @ (libc::EPERM | libc::ENOSYS) => made.0.note_failure(failure(errno)),
            libc::EINVAL => made.0.note_failure(failure(libc::ENOSYS)),
            _ => return Ok(made),
        }
        Err(io::Error::from_raw_os_error(REFUSED.load(Ordering::Relaxed)))
    }

    /// Hands `count` entries to the kernel. Gives back how many were taken, or `-errno`.
    #[inline(always)]
    pub fn submit(&self, count: u32) -> i32 {
        self.call(count, 0, 0, 0, 0)
    }

    /// The same on a ring whose entries no kernel thread takes.
    #[inline(always)]
    pub fn submit_here(&self, count: u32) -> i32 {
        self.enter_with([self.number.get() as usize, count as usize, 0, 0, 0, 0])
    }

    /// The same, and waits for `min` completions, or looks for some where that is 0.
    #[inline(always)]
    pub fn submit_and_look(&self, count: u32, min: u32) -> i32 {
        self.call(count, min, ENTER_GETEVENTS, 0, 0)
    }

    /// Hands `submit` entries to the kernel and waits. Gives back how many entries were taken, or `-errno`.
    #[inline]
    pub fn enter(&self, submit: u32, wait: Wait) -> i32 {
        if wait.timeout_ns.is_none() && wait.signals == 0 {
            return self.call(submit, wait.min, ENTER_GETEVENTS, 0, 0);
        }
        let timespec = libc::timespec {
            tv_sec: (wait.timeout_ns.unwrap_or(0) / 1_000_000_000) as i64,
            tv_nsec: (wait.timeout_ns.unwrap_or(0) % 1_000_000_000) as i64,
        };
        let argument = GetEvents {
            sigmask: wait.signals as u64,
            sigmask_bytes: crate::system::SIGNAL_SET_BYTES as u32,
            min_wait_us: 0,
            timespec: wait.timeout_ns.map_or(0, |_| (&raw const timespec) as u64),
        };
        let flags = ENTER_GETEVENTS | ENTER_EXT_ARG;
        let address = (&raw const argument) as usize;
        self.call(submit, wait.min, flags, address, size_of::<GetEvents>())
    }

    /// Waits, on a ring that is not polled. Gives back `-EINTR` also where a signal came when there were fewer
    /// completions than wanted, which the kernel answers by 0 unless there are none; and [`PERHAPS`] where that may
    /// be for other threads that have taken what came meanwhile. The kernel reads the tail, then the head, and
    /// takes a head beyond that tail for more completions than any number (`__io_cqring_events_user`).
    pub fn wait(&self, wait: Wait) -> i32 {
        if wait.min < 2 {
            return self.enter(0, wait);
        }
        // Others may take completions meanwhile: never later than where the kernel begins to count.
        // SAFETY: in the ring's memory.
        let head = || unsafe { (*self.cq_head).load(Ordering::Relaxed) };
        let (before, tail) = (head(), self.completion_tail());
        let end = wait.timeout_ns.map(|ns| now_ns().saturating_add(ns));
        let code = self.enter(0, wait);
        let wanted = wait.min.min(self.cq_mask + 1);
        let enough = self.completion_tail().wrapping_sub(before) >= wanted;
        if code != 0 || enough || end.is_some_and(|end| now_ns() >= end) {
            return code;
        }
        if is_beyond(head(), tail) { PERHAPS } else { failure(libc::EINTR) }
    }

    #[inline(always)]
    fn call(&self, submit: u32, min: u32, mut flags: u32, argument: usize, len: usize) -> i32 {
        if self.polled_by_thread {
            // The thread takes entries by itself; without work for us there is nothing to enter for.
            if self.sq_flags() & SQ_NEED_WAKEUP != 0 {
                flags |= ENTER_SQ_WAKEUP;
            } else if flags == 0 {
                return submit as i32;
            }
        }
        self.enter_with([
            self.number.get() as usize,
            submit as usize,
            min as usize,
            flags as usize,
            argument,
            len,
        ])
    }

    /// Makes the call, with a `GetEvents` on the caller's stack or nothing as fifth argument.
    #[inline(always)]
    fn enter_with(&self, arguments: [usize; 6]) -> i32 {
        // SAFETY: as above; what the entries name was vouched for when they were pushed.
        let code = unsafe { call(libc::SYS_io_uring_enter, arguments) as i32 };
        if code < 0 {
            self.note_failure(code);
        }
        code
    }

    #[cold]
    fn note_failure(&self, code: i32) {
        if matches!(-code, libc::EBADF | libc::EOPNOTSUPP | libc::EPERM | libc::ENOSYS) {
            self.lost.store(true, Ordering::Relaxed);
        }
        if matches!(-code, libc::EPERM | libc::ENOSYS) {
            REFUSED.store(-code, Ordering::Relaxed);
        }
    }

    /// It is of no more use, and is not used again: what is in flight ends with it.
    pub fn give_up(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Whether entering has failed because the descriptor is not the ring's any more, or it was given up.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether the descriptor is this ring's: a program may have closed it (`closefrom`), and its number may
    /// stand for a file of its own by now, or for a ring. Each ring has an inode of its own (Linux 5.12).
    pub fn has_descriptor(&self) -> bool {
        !self.is_lost()
            && probe::stat(self.number.get()).is_some_and(|stat| probe::mark_of(&stat) == self.mark)
    }

    /// Whether something did not fit among the completions.
    #[inline(always)]
    pub fn has_overflow(&self) -> bool {
        // SAFETY: in the ring's memory.
        unsafe { (*self.sq_flags).load(Ordering::Relaxed) & SQ_CQ_OVERFLOW != 0 }
    }

    /// Has the kernel put that out.
    #[inline]
    pub fn fetch_overflow(&self) {
        if self.has_overflow() {
            self.call(0, 0, ENTER_GETEVENTS, 0, 0);
        }
    }

    fn sq_flags(&self) -> u32 {
        // SAFETY: in the ring's memory. The fence orders our tail before this load, which a
        // submission thread going to sleep relies upon.
        unsafe {
            if self.polled_by_thread {
                std::sync::atomic::fence(Ordering::SeqCst);
            }
            (*self.sq_flags).load(Ordering::Relaxed)
        }
    }

    /// `io_uring_register(2)`.
    ///
    /// # Safety
    /// As the call.
    pub unsafe fn register(&self, code: usize, argument: usize, count: u32) -> i32 {
        let arguments = [self.number.get() as usize, code, argument, count as usize, 0, 0];
        // SAFETY: passed on to the caller.
        unsafe { call(libc::SYS_io_uring_register, arguments) as i32 }
    }

    /// Cancels the request with that user data: 0, `-ENOENT`, `-EALREADY`.
    pub fn cancel(&self, user_data: u64) -> i32 {
        // `struct io_uring_sync_cancel_reg`: addr, fd, flags, timeout of two u64, opcode and pads.
        let wanted: [u64; 8] = [user_data, u64::from(u32::MAX), u64::MAX, u64::MAX, 0, 0, 0, 0];
        // SAFETY: the 64 bytes that the call reads.
        unsafe { self.register(REGISTER_SYNC_CANCEL, wanted.as_ptr() as usize, 1) }
    }

    /// Where the kernel puts the next completion.
    #[inline]
    pub fn completion_tail(&self) -> u32 {
        // SAFETY: in the ring's memory.
        unsafe { (*self.cq_tail).load(Ordering::Acquire) }
    }

    /// Whether there are completions to be reaped.
    #[inline]
    pub fn has_completions(&self) -> bool {
        // SAFETY: in the ring's memory.
        unsafe { (*self.cq_head).load(Ordering::Relaxed) != self.completion_tail() }
    }

    /// What the completion of `user_data` gives, if it is among those from `from` to `to`, the latest of which
    /// is looked at first. Without a lock: who takes completions meanwhile makes places free, which the
    /// kernel may fill anew, so the answer is a hint.
    #[inline]
    pub fn glimpse(&self, from: u32, to: u32, user_data: u64) -> Option<i32> {
        let mut at = to;
        while at != from {
            at = at.wrapping_sub(1);
            // SAFETY: in the ring's memory; the index is masked. The kernel may write it, hence volatile.
            let cqe = unsafe { self.cqes.add((at & self.cq_mask) as usize).read_volatile() };
            if cqe.user_data == user_data {
                return Some(cqe.res);
            }
        }
        None
    }

    /// Whether a kernel thread takes submissions.
    pub fn has_thread(&self) -> bool {
        self.polled_by_thread
    }
}

/// Whether others have moved the head, as it is after the kernel's look, beyond the tail as it was before: it has seen no
/// earlier tail and no later head.
fn is_beyond(head: u32, tail: u32) -> bool {
    head.wrapping_sub(tail) as i32 > 0
}

/// What [`Ring::enter`] waits for.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// So many completions.
    pub min: u32,
    /// At most so long, of which 2^62 is the most; without limit when None.
    pub timeout_ns: Option<u64>,
    /// Address of a signal set to wait with, or 0.
    pub signals: usize,
}

impl Submission {
    /// How many entries may be pushed.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        // SAFETY: in the ring's memory.
        let head = unsafe { (*self.head).load(Ordering::Acquire) };
        self.mask.wrapping_add(1).wrapping_sub(self.local_tail.wrapping_sub(head))
    }

    /// Queues an entry, of which [`Submission::publish`] tells; false when there is no room.
    #[inline]
    pub fn push(&mut self, entry: Entry, user_data: u64) -> bool {
        if self.room() == 0 {
            return false;
        }
        // SAFETY: there is room.
        unsafe { self.put(entry, user_data) };
        true
    }

    /// The same with the place of a registered buffer, or 0: to be used for all entries of a ring or for none.
    #[inline]
    pub fn push_with_buffer(&mut self, entry: Entry, user_data: u64, buffer: u16) -> bool {
        if self.room() == 0 {
            return false;
        }
        // SAFETY: there is room.
        unsafe { self.put_with_buffer(entry, user_data, buffer) };
        true
    }

    /// The same.
    ///
    /// # Safety
    /// There is room.
    #[inline(always)]
    pub unsafe fn put_with_buffer(&mut self, entry: Entry, user_data: u64, buffer: u16) {
        let [first, off, addr, last] = entry.0;
        let words = [first, off, addr, last, user_data, u64::from(buffer)];
        // SAFETY: as in `put`.
        unsafe { self.place().cast::<[u64; 6]>().write(words) };
        self.local_tail = self.local_tail.wrapping_add(1);
    }

    /// Queues an entry.
    ///
    /// # Safety
    /// There is room.
    #[inline(always)]
    pub unsafe fn put(&mut self, entry: Entry, user_data: u64) {
        let [first, off, addr, last] = entry.0;
        // SAFETY: a place of the ring's that the kernel has done with, by the caller's word, and does not
        // read before it is told.
        unsafe { self.place().cast::<[u64; 5]>().write([first, off, addr, last, user_data]) };
        self.local_tail = self.local_tail.wrapping_add(1);
    }

    /// Where the next entry belongs.
    #[inline(always)]
    fn place(&self) -> *mut Sqe {
        // SAFETY: in the ring's memory; the index is masked.
        unsafe { self.sqes.add((self.local_tail & self.mask) as usize) }
    }

    /// Lets the kernel see what was pushed.
    #[inline]
    pub fn publish(&mut self) {
        // SAFETY: in the ring's memory.
        unsafe { (*self.tail).store(self.local_tail, Ordering::Release) };
    }

    /// Takes the last `count` entries back, which the kernel has not taken.
    pub fn take_back(&mut self, count: u32) {
        self.local_tail = self.local_tail.wrapping_sub(count);
        self.publish();
    }

    /// User data of the entry that was pushed as the `back`th last, counted from 1.
    pub fn user_data_before(&self, back: u32) -> u64 {
        // SAFETY: in the ring's memory; the index is masked.
        unsafe { (*self.sqes.add((self.local_tail.wrapping_sub(back) & self.mask) as usize))[4] }
    }
}

impl Completion {
    /// How many completions there are.
    #[inline]
    pub fn count(&self) -> u32 {
        // SAFETY: in the ring's memory.
        unsafe { (*self.tail).load(Ordering::Acquire) }.wrapping_sub(self.local_head)
    }

    /// The next completion, of which there is one.
    ///
    /// # Safety
    /// [`Completion::count`] was not 0, and not so many were taken since.
    #[inline]
    pub unsafe fn first(&self) -> Cqe {
        // SAFETY: in the ring's memory; the index is masked, and below the kernel's tail by the caller's word.
        unsafe { *self.cqes.add((self.local_head & self.mask) as usize) }
    }

    /// Takes the completion that was seen.
    #[inline]
    pub fn advance(&mut self) {
        self.local_head = self.local_head.wrapping_add(1);
    }

    /// The next completion, if there is one.
    #[inline]
    pub fn next(&mut self) -> Option<Cqe> {
        if self.count() == 0 {
            return None;
        }
        // SAFETY: there is one.
        let cqe = unsafe { self.first() };
        self.advance();
        Some(cqe)
    }

    /// Gives the places of the completions taken so far back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        // SAFETY: in the ring's memory.
        unsafe { (*self.head).store(self.local_head, Ordering::Release) };
    }

    /// Completions since `from` that were not taken, without taking them.
    pub fn since(&self, from: u32) -> impl Iterator<Item = Cqe> + '_ {
        // SAFETY: in the ring's memory.
        let tail = unsafe { (*self.tail).load(Ordering::Acquire) };
        let untaken = tail.wrapping_sub(self.local_head);
        let first = tail.wrapping_sub(tail.wrapping_sub(from).min(untaken));
        (0..tail.wrapping_sub(first)).map(move |step| {
            let index = first.wrapping_add(step) & self.mask;
            // SAFETY: the index is masked and below the kernel's tail.
            unsafe { *self.cqes.add(index as usize) }
        })
    }
}

fn close(fd: i32) {
    // SAFETY: a descriptor of ours that nobody else knows.
    unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Opens the ring with the best flags that the kernel takes.
fn open(setup: Setup, params: &mut Params) -> io::Result<i32> {
    let always = SETUP_CQSIZE | SETUP_CLAMP | SETUP_SUBMIT_ALL | setup.flags;
    for flags in [always | SETUP_NO_SQARRAY, always] {
        *params = Params {
            flags,
            cq_entries: setup.completions,
            sq_thread_cpu: setup.thread_cpu,
            sq_thread_idle: setup.thread_idle_ms,
            ..Params::default()
        };
        let arguments = [setup.entries as usize, (&raw mut *params) as usize, 0, 0, 0, 0];
        // SAFETY: `params` is the structure that the call reads and fills.
        let fd = unsafe { call(libc::SYS_io_uring_setup, arguments) };
        if fd >= 0 {
            return Ok(raised(fd as i32));
        }
        if fd != -(libc::EINVAL as isize) {
            return Err(io::Error::from_raw_os_error(-fd as i32));
        }
    }
    Err(io::Error::from_raw_os_error(libc::EINVAL))
}

/// The same file under a higher number, if there is one.
fn raised(fd: i32) -> i32 {
    let command = libc::F_DUPFD_CLOEXEC as usize;
    let arguments = [fd as usize, command, DESCRIPTOR_MIN as usize, 0, 0, 0];
    // SAFETY: a descriptor of ours.
    let higher = unsafe { call(libc::SYS_fcntl, arguments) };
    if higher < 0 {
        return fd;
    }
    close(fd);
    higher as i32
}

fn map(fd: i32, params: &Params) -> io::Result<(Ring, Submission, Completion)> {
    // Before anything else is done: another ring may go by that number still.
    let number = Number::claim(fd);
    let (sq, cq) = (&params.sq_off, &params.cq_off);
    let sq_len = sq.array as usize + params.sq_entries as usize * size_of::<u32>();
    let cq_len = cq.cqes as usize + params.cq_entries as usize * size_of::<Cqe>();
    let memory_len = sq_len.max(cq_len);
    let sqes_len = params.sq_entries as usize * size_of::<Sqe>();
    let memory = map_shared(fd, memory_len, OFF_SQ_RING)?;
    let sqes: *mut Sqe = match map_shared(fd, sqes_len, OFF_SQES) {
        Ok(sqes) => sqes.cast(),
        Err(error) => {
            // SAFETY: just mapped, and known to nobody.
            unsafe { libc::munmap(memory.cast(), memory_len) };
            return Err(error);
        }
    };
    // SAFETY: offsets that the kernel gave for this mapping.
    let at = |offset: u32| unsafe { memory.add(offset as usize) };
    let word = |offset: u32| at(offset).cast::<AtomicU32>().cast_const();
    if params.flags & SETUP_NO_SQARRAY == 0 {
        for index in 0..params.sq_entries {
            // SAFETY: the array has one place per entry.
            unsafe { *at(sq.array).cast::<u32>().add(index as usize) = index };
        }
    }
    let ring = Ring {
        number,
        mark: probe::stat(fd).map_or(0, |stat| probe::mark_of(&stat)),
        memory,
        memory_len,
        sqes,
        sqes_len,
        sq_flags: word(sq.flags),
        cq_head: word(cq.head),
        cq_tail: word(cq.tail),
        cqes: at(cq.cqes).cast::<Cqe>().cast_const(),
        cq_mask: params.cq_entries - 1,
        polled_by_thread: params.flags & SETUP_SQPOLL != 0,
        lost: AtomicBool::new(false),
        interrupts: Source::new(),
    };
    let submission = Submission {
        sqes,
        head: word(sq.head),
        tail: word(sq.tail),
        local_tail: 0,
        mask: params.sq_entries - 1,
    };
    let completion = Completion {
        cqes: at(cq.cqes).cast::<Cqe>().cast_const(),
        head: word(cq.head),
        tail: word(cq.tail),
        local_head: 0,
        mask: params.cq_entries - 1,
    };
    Ok((ring, submission, completion))
}

/// Maps a part of the ring; a child does not get it, since entries are this process's.
fn map_shared(fd: i32, len: usize, offset: i64) -> io::Result<*mut u8> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            fd,
            offset,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping just made.
    unsafe { libc::madvise(address, len, libc::MADV_DONTFORK) };
    Ok(address.cast())
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Before it is: a thread that waits from now on is ready for it.
        self.interrupts.close();
        let ours = self.has_descriptor();
        // SAFETY: our mappings; whoever drops the ring no longer uses the queues (see `new`).
        unsafe {
            libc::munmap(self.sqes.cast(), self.sqes_len);
            libc::munmap(self.memory.cast(), self.memory_len);
        }
        if ours {
            close(self.number.get());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_beyond_a_tail_also_where_counts_begin_anew() {
        assert!(is_beyond(8, 7) && is_beyond(2, u32::MAX));
        assert!(!is_beyond(7, 7) && !is_beyond(6, 7) && !is_beyond(u32::MAX, 2));
    }
}
