//! System calls that give back `-errno` and leave `errno` alone, as libaio's do.

use crate::abi::{Entry, Event, op};
use crate::interrupts;
use libc::{c_long, timespec};

/// Makes a system call: its result, or `-errno`. By the instruction, as libaio does: `syscall` of libc would
/// shuffle the arguments, and have errno to be saved.
///
/// # Safety
/// As the call itself.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: passed on to the caller. The kernel keeps all registers but those three.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call: its result, or `-errno`.
///
/// # Safety
/// As the call itself.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: errno is this thread's.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: passed on to the caller.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result != -1 {
        return result as isize;
    }
    // SAFETY: as above.
    unsafe {
        let error = *errno;
        *errno = before;
        -(error as isize)
    }
}

/// `-errno` of a constant of `libc`, as the functions of libaio give it back.
pub const fn failure(errno: i32) -> i32 {
    -errno
}

/// `io_setup(2)`.
///
/// # Safety
/// None of ours: the kernel checks the address.
pub unsafe fn io_setup(nr: u32, context: usize) -> i32 {
    // SAFETY: the kernel checks the address.
    unsafe { call(libc::SYS_io_setup, [nr as usize, context, 0, 0, 0, 0]) as i32 }
}

/// `io_destroy(2)`.
pub fn io_destroy(id: usize) -> i32 {
    // SAFETY: the kernel checks the id.
    unsafe { call(libc::SYS_io_destroy, [id, 0, 0, 0, 0, 0]) as i32 }
}

/// `io_submit(2)`.
///
/// # Safety
/// What the iocbs name stays valid until their events.
#[inline]
pub unsafe fn io_submit(id: usize, nr: c_long, iocbs: usize) -> i32 {
    // SAFETY: passed on to the caller; addresses are checked by the kernel.
    unsafe { call(libc::SYS_io_submit, [id, nr as usize, iocbs, 0, 0, 0]) as i32 }
}

/// `io_cancel(2)`.
pub fn io_cancel(id: usize, iocb: usize, result: usize) -> i32 {
    // SAFETY: addresses are checked by the kernel.
    unsafe { call(libc::SYS_io_cancel, [id, iocb, result, 0, 0, 0]) as i32 }
}

/// The entry's read or write, by the plainest system call.
///
/// # Safety
/// The buffers may be read or written; the kernel checks that they exist.
#[inline(always)]
pub unsafe fn carry_out(write: bool, flags: u32, entry: &Entry) -> isize {
    let (fd, at) = (entry.fd() as usize, entry.off() as usize);
    let (address, len) = (entry.addr() as usize, entry.count() as usize);
    if matches!(entry.opcode(), op::READV | op::WRITEV) {
        let number = if write { libc::SYS_pwritev2 } else { libc::SYS_preadv2 };
        // SAFETY: passed on to the caller.
        return unsafe { call(number, [fd, address, len, at, 0, flags as usize]) };
    }
    if flags == 0 {
        let number = if write { libc::SYS_pwrite64 } else { libc::SYS_pread64 };
        // SAFETY: passed on to the caller.
        return unsafe { call(number, [fd, address, len, at, 0, 0]) };
    }
    let vector = [address, len];
    let number = if write { libc::SYS_pwritev2 } else { libc::SYS_preadv2 };
    let vector = vector.as_ptr() as usize;
    // SAFETY: passed on to the caller; the vector lives until the call is over.
    unsafe { call(number, [fd, vector, 1, at, 0, flags as usize]) }
}

/// Whether that is an error of a write itself, which the kernel's AIO tells by an event; those of a request that it may refuse
/// are for it to judge. Once more would be too often: a second write succeeds after a writeback's error, or appends again.
#[cold]
pub fn is_outcome(result: isize) -> bool {
    let may_be_refused = matches!(
        -result as i32,
        libc::EBADF
            | libc::EINVAL
            | libc::EFAULT
            | libc::EOVERFLOW
            | libc::EPERM
            | libc::EACCES
            | libc::ESPIPE
            | libc::EOPNOTSUPP
            | libc::ENOMEM
            | libc::EAGAIN
    );
    result < 0 && !may_be_refused
}

/// What `io_getevents` and `io_pgetevents` are asked.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Wait for so many.
    pub min: c_long,
    /// Take no more.
    pub nr: c_long,
    /// Where to put them: an array of [`Event`].
    pub events: usize,
    /// Address of a `timespec`, or 0.
    pub timeout: usize,
    /// Address of a signal set, or 0; with its size in `masked`.
    pub signals: usize,
    /// Whether this is `io_pgetevents`.
    pub masked: bool,
}

impl Ask {
    /// The same, for what is left once `got` events are there. Without any it is as it was asked, however wrong.
    pub fn after(self, got: c_long) -> Ask {
        if got == 0 {
            return self;
        }
        Ask {
            min: (self.min - got).max(0),
            nr: self.nr - got,
            events: self.events + got as usize * size_of::<Event>(),
            ..self
        }
    }
}

/// Size of the kernel's signal set in bytes.
pub const SIGNAL_SET_BYTES: usize = 8;

/// Number of `io_pgetevents`, which not every version of libc has.
#[cfg(target_arch = "x86_64")]
const SYS_IO_PGETEVENTS: c_long = 333;
#[cfg(not(target_arch = "x86_64"))]
const SYS_IO_PGETEVENTS: c_long = 292;

/// `io_getevents(2)` or `io_pgetevents(2)`, which no ring of ours interrupts.
///
/// # Safety
/// The events may be overwritten.
#[inline]
pub unsafe fn io_getevents(id: usize, ask: Ask) -> i32 {
    if ask.masked {
        // SAFETY: passed on to the caller.
        return unsafe { io_pgetevents(id, ask) };
    }
    let closed = interrupts::closed();
    // SAFETY: passed on to the caller, in both.
    unsafe {
        if !interrupts::may_come() {
            let code = io_getevents_once(id, ask);
            if code != failure(libc::EINTR) || interrupts::closed() == closed {
                return code;
            }
        }
        io_getevents_again(id, ask)
    }
}

/// `io_getevents(2)` that no more than a signal's handler ends early. The kernel takes what a ring of io_uring has
/// for its thread (`TIF_NOTIFY_SIGNAL`) for a signal: `io_getevents` then ends with `EINTR`, where the other call
/// begins again, with its whole time.
///
/// # Safety
/// As [`io_getevents`].
pub unsafe fn io_getevents_again(id: usize, ask: Ask) -> i32 {
    // SAFETY: passed on to the caller, in both.
    unsafe {
        let code = io_pgetevents(id, Ask { signals: 0, ..ask });
        // Not known to Valgrind 3.19, or not allowed (seccomp).
        let refused = matches!(-code, libc::ENOSYS | libc::EPERM);
        if refused { io_getevents_once(id, ask) } else { code }
    }
}

/// # Safety
/// As [`io_getevents`].
unsafe fn io_getevents_once(id: usize, ask: Ask) -> i32 {
    let arguments = [id, ask.min as usize, ask.nr as usize, ask.events, ask.timeout, 0];
    // SAFETY: addresses are checked by the kernel; the rest is passed on to the caller.
    unsafe { call(libc::SYS_io_getevents, arguments) as i32 }
}

/// # Safety
/// As [`io_getevents`].
unsafe fn io_pgetevents(id: usize, ask: Ask) -> i32 {
    let [a, b, c, d, e] = [id, ask.min as usize, ask.nr as usize, ask.events, ask.timeout];
    let set = [ask.signals, SIGNAL_SET_BYTES];
    // SAFETY: as above; `set` is the `struct __aio_sigset` that the call wants.
    unsafe { call(SYS_IO_PGETEVENTS, [a, b, c, d, e, set.as_ptr() as usize]) as i32 }
}

/// Runs the handlers of what is pending and let through by the signal set, as `io_pgetevents` on that context does: an
/// error where one has run.
///
/// # Safety
/// None of ours: the kernel checks the address.
pub unsafe fn deliver_signals(id: usize, signals: usize) -> Result<(), i32> {
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    let timeout = (&raw const none) as usize;
    // SAFETY: asks for no event.
    let code = unsafe {
        io_pgetevents(id, Ask { min: 0, nr: 0, events: 0, timeout, signals, masked: true })
    };
    if code == failure(libc::EINTR) { Err(code) } else { Ok(()) }
}

/// Sleeps for as long as that is so, which nobody tells: it looks again after ever longer times, of `most_ns` in the end. With
/// a signal set, or that of the thread; a handler that has run is an error, wherever it came.
pub fn sleep_while(
    so: impl Fn() -> bool,
    left_ns: u64,
    most_ns: u64,
    signals: usize,
) -> Result<(), i32> {
    let (all, mut before) = (u64::MAX, 0_u64);
    let masked = |new: *const u64, old: *mut u64| {
        let [how, new, old] = [libc::SIG_SETMASK as usize, new as usize, old as usize];
        // SAFETY: two sets of that size, or one and none.
        unsafe { call(libc::SYS_rt_sigprocmask, [how, new, old, SIGNAL_SET_BYTES, 0, 0]) }
    };
    // Let through within the call alone, so that none comes between two of them.
    masked(&raw const all, &raw mut before);
    let signals = if signals == 0 { (&raw const before) as usize } else { signals };
    let (begun, mut slice_ns, mut outcome) = (now_ns(), 1000, Ok(()));
    while outcome.is_ok() && so() {
        let gone_ns = now_ns() - begun;
        if gone_ns >= left_ns {
            break;
        }
        let time = time_of(slice_ns.min(left_ns - gone_ns));
        let arguments = [0, 0, (&raw const time) as usize, signals, SIGNAL_SET_BYTES, 0];
        // SAFETY: no descriptors, a time, and a signal set that the kernel looks at.
        let code = unsafe { call(libc::SYS_ppoll, arguments) } as i32;
        if code < 0 {
            outcome = Err(code);
        }
        slice_ns = (slice_ns * 2).min(most_ns);
    }
    masked(&raw const before, std::ptr::null_mut());
    outcome
}

/// As the kernel takes it.
pub fn time_of(ns: u64) -> timespec {
    timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Longer times are never over: 146 years. io_uring adds what it is given to the clock without asking whether 63 bits hold
/// the sum (`io_cqring_wait`); one that is below 0 may be over at any time.
const LIMIT_NS_MAX: i128 = 1 << 62;

/// When waiting for a relative time ends, on the monotonic clock; None for never. A negative time is
/// never over (the kernel's `ktime_add_safe` makes it so), and one of zero over at once.
pub fn deadline_ns(time: timespec) -> Option<u64> {
    let ns = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    match ns {
        ..0 => None,
        0 => Some(0),
        1..=LIMIT_NS_MAX => u64::try_from(i128::from(now_ns()) + ns).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsRawFd;

    #[test]
    fn times_end_never_at_once_or_later() {
        let end = |tv_sec, tv_nsec| deadline_ns(timespec { tv_sec, tv_nsec });
        assert_eq!(end(-1, 0), None);
        assert_eq!(end(0, 0), Some(0));
        assert!(end(1, 0).unwrap() > now_ns());
        assert!(end(1 << 32, 0).unwrap() < 1 << 63);
        assert_eq!(end(i64::MAX, 0), None);
        // What is left of 2^63 ns when some hours are added.
        assert_eq!(end(9_223_370_000, 0), None);
    }

    /// One whose effect is to be seen: written where the file ends, whatever the offset says.
    #[test]
    fn flags_of_a_write_reach_the_kernel() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"begun ").unwrap();
        let [one, two] = [b"one ", b"two "];
        let vectors = [one, two].map(|bytes| [bytes.as_ptr() as u64, bytes.len() as u64]);
        let write = |opcode, address: u64, count| {
            let entry = Entry::new(opcode, file.as_raw_fd(), 0).at(0, address, count);
            // SAFETY: the buffers, and the array of vectors, outlive the call.
            unsafe { carry_out(true, libc::RWF_APPEND as u32, &entry) }
        };
        assert_eq!(write(op::WRITE, vectors[0][0], 4), 4);
        assert_eq!(write(op::WRITEV, vectors.as_ptr() as u64, 2), 8);
        let mut told = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut told)).unwrap();
        assert_eq!(told, b"begun one one two ");
    }
}
