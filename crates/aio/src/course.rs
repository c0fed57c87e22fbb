//! What is to be done with an iocb of `io_submit`, of whatever kind it is: decided without doing it.

use crate::abi::{self, Entry, Iocb, op};
use crate::caller;
use crate::context::{Submitting, state};
use crate::probe::{self, Files, Reason, Way};

/// What is to be done with an iocb.
pub enum Course {
    /// An entry for the ring, and what its request is.
    Ring(Entry, u32),
    /// preadv2 or pwritev2, with those flags added.
    Here { write: bool, flags: u32, entry: Entry },
    /// The real `io_submit`.
    Kernel,
    /// The same, once there is something to be read.
    Stream,
    /// The same, and for good.
    Settle(Reason),
}

impl Course {
    /// With `many`, reads of the page cache go to the ring untried.
    #[inline]
    pub fn of(iocb: &Iocb, submitting: &mut Submitting, many: bool) -> Course {
        if iocb.flags & abi::FLAG_RESFD != 0 {
            return Course::Settle(Reason::Eventfd);
        }
        if iocb.reserved2 != 0 || iocb.nbytes > i64::MAX as u64 || !allows(iocb, submitting) {
            return Course::Kernel;
        }
        match iocb.opcode {
            abi::PREAD | abi::PWRITE | abi::PREADV | abi::PWRITEV => {
                transfer(iocb, &mut submitting.files, many)
            }
            abi::FSYNC | abi::FDSYNC => sync(iocb, &mut submitting.files),
            abi::POLL => poll(iocb),
            _ => Course::Kernel,
        }
    }
}

/// How many iocbs of a list, from that place on and at most so many, are the kernel's for their priorities alone: it
/// judges them with one call. One, where the first is for something else.
pub fn asking(list: usize, most: u32, submitting: &Submitting) -> u32 {
    let asks = |index: &u32| {
        let iocb = iocb_at(list + *index as usize * size_of::<usize>());
        iocb.is_some_and(|iocb| iocb.flags == abi::FLAG_IOPRIO && !allows(&iocb, submitting))
    };
    ((0..most).take_while(asks).count() as u32).max(1)
}

/// The priority of the iocb at that place in a list: if the kernel takes it, the next need not be asked for with the same.
pub fn priority_of(place: usize) -> Option<i16> {
    iocb_at(place).as_ref().and_then(lasting_priority)
}

/// The priority of an iocb that the kernel has taken, if it takes that from now on. Of what moves no data it has not
/// looked at it, and who may have real time can lose that right.
fn lasting_priority(iocb: &Iocb) -> Option<i16> {
    let moves = matches!(iocb.opcode, abi::PREAD | abi::PWRITE | abi::PREADV | abi::PWRITEV);
    let is_looked_at = iocb.flags & abi::FLAG_IOPRIO != 0 && moves;
    let class = iocb.reqprio as u16 >> abi::IOPRIO_CLASS_SHIFT;
    (is_looked_at && class != abi::IOPRIO_CLASS_RT).then_some(iocb.reqprio)
}

fn iocb_at(place: usize) -> Option<Iocb> {
    caller::read::<usize>(place).and_then(caller::read::<Iocb>).ok()
}

/// Flags and priority that need no look by the kernel.
#[inline]
fn allows(iocb: &Iocb, submitting: &Submitting) -> bool {
    match iocb.flags {
        0 => true,
        abi::FLAG_IOPRIO => submitting.priority == Some(iocb.reqprio),
        _ => false,
    }
}

#[inline]
fn transfer(iocb: &Iocb, files: &mut Files, many: bool) -> Course {
    let known = abi::RWF_HIPRI | abi::RWF_DSYNC | abi::RWF_SYNC;
    let vectored = matches!(iocb.opcode, abi::PREADV | abi::PWRITEV);
    let write = matches!(iocb.opcode, abi::PWRITE | abi::PWRITEV);
    if iocb.rw_flags & !known != 0 || iocb.offset < 0 {
        return Course::Kernel;
    }
    let Some(bytes) = bytes_of(iocb, vectored) else { return Course::Kernel };
    let Some(end) = (iocb.offset as u64).checked_add(bytes).filter(|&end| end <= i64::MAX as u64)
    else {
        return Course::Kernel;
    };
    let Some(file) = files.of(iocb.fildes) else { return Course::Kernel };
    if !(if write { file.writable } else { file.readable }) {
        return Course::Kernel;
    }
    // No one polls for this I/O: as the kernel, we forget the flag.
    let flags = iocb.rw_flags & !abi::RWF_HIPRI;
    // One vector is as good as none, and its array need not outlive the call.
    let (vectored, addr, len) = match plain(iocb, vectored) {
        Some((addr, len)) => (false, addr, len),
        None => (true, iocb.buf, iocb.nbytes),
    };
    let opcode = match (vectored, write) {
        (false, false) => op::READ,
        (false, true) => op::WRITE,
        (true, false) => op::READV,
        (true, true) => op::WRITEV,
    };
    let priority = if iocb.flags & abi::FLAG_IOPRIO != 0 { iocb.reqprio as u16 } else { 0 };
    let entry = Entry::new(opcode, iocb.fildes, priority)
        .at(iocb.offset as u64, addr, len.min(abi::RW_COUNT_MAX) as u32)
        .with_op_flags(flags);
    let way = file.way;
    match way {
        // What is written here has the thread's priority and no other.
        Way::Ring if write && file.extends(end) && priority != 0 => Course::Kernel,
        Way::Ring if write && file.extends(end) => Course::Here { write, flags, entry },
        Way::Ring => Course::Ring(entry, state::IO),
        // Vectors cannot be started again when the thread ends while it waits for its pages.
        Way::Cached if write || vectored => Course::Here { write, flags, entry },
        Way::Cached if many || bytes == 0 || !file.try_cache() => Course::Ring(entry, state::IO),
        Way::Cached => Course::Here { write, flags: flags | abi::RWF_NOWAIT, entry },
        Way::Here => Course::Here { write, flags, entry },
        Way::Stream if !write && flags == 0 && bytes > 0 => Course::Stream,
        Way::Kernel | Way::Stream => Course::Kernel,
        Way::Punts => Course::Settle(Reason::Punts),
    }
}

fn sync(iocb: &Iocb, files: &mut Files) -> Course {
    const DATASYNC: u32 = 1;
    if iocb.buf != 0 || iocb.nbytes != 0 || iocb.offset != 0 || iocb.rw_flags != 0 {
        return Course::Kernel;
    }
    let Some(file) = files.of(iocb.fildes) else { return Course::Kernel };
    match file.way {
        Way::Kernel | Way::Stream => Course::Kernel,
        Way::Punts => Course::Settle(Reason::Punts),
        Way::Ring | Way::Cached | Way::Here => {
            let op_flags = if iocb.opcode == abi::FDSYNC { DATASYNC } else { 0 };
            let entry = Entry::new(op::FSYNC, iocb.fildes, 0).with_op_flags(op_flags);
            Course::Ring(entry, state::IO)
        }
    }
}

fn poll(iocb: &Iocb) -> Course {
    let wrong = iocb.buf > u64::from(u16::MAX)
        || iocb.offset != 0
        || iocb.nbytes != 0
        || iocb.rw_flags != 0
        || !probe::is_open(iocb.fildes);
    // Most of these cannot be waited for: refused where one is not ready for what is asked, while the ring has an event.
    if wrong || probe::has_blocks(iocb.fildes) {
        return Course::Kernel;
    }
    let entry = Entry::new(op::POLL_ADD, iocb.fildes, 0).with_op_flags(iocb.buf as u32);
    Course::Ring(entry, state::POLL)
}

/// Buffer and length, unless there are several vectors.
#[inline]
fn plain(iocb: &Iocb, vectored: bool) -> Option<(u64, u64)> {
    if !vectored {
        return Some((iocb.buf, iocb.nbytes));
    }
    let [base, len] = caller::read::<[u64; 2]>(iocb.buf as usize).ok()?;
    (iocb.nbytes == 1).then_some((base, len))
}

/// Bytes to be transferred; None where addresses or sizes are such that the kernel is to judge.
#[inline]
pub fn bytes_of(iocb: &Iocb, vectored: bool) -> Option<u64> {
    if !vectored {
        let bytes = iocb.nbytes.min(abi::RW_COUNT_MAX);
        return reachable(iocb.buf, bytes).then_some(bytes);
    }
    if iocb.nbytes > abi::IOVECS_MAX {
        return None;
    }
    let mut sum = 0_u64;
    for index in 0..iocb.nbytes as usize {
        let place = (iocb.buf as usize).checked_add(index * size_of::<[u64; 2]>())?;
        let [base, len] = caller::read::<[u64; 2]>(place).ok()?;
        if len > abi::RW_COUNT_MAX || !reachable(base, len) {
            return None;
        }
        sum += len;
    }
    (sum <= abi::RW_COUNT_MAX).then_some(sum)
}

#[inline]
fn reachable(address: u64, bytes: u64) -> bool {
    address.checked_add(bytes).is_some_and(|end| end <= abi::ADDRESS_END)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    /// Of `struct io_uring_sqe`: its opcode (byte 0), and `rw_flags` or `fsync_flags` (byte 28).
    fn told(entry: Entry) -> (u8, u32) {
        let bytes = entry.0.map(u64::to_le_bytes).concat();
        (bytes[0], u32::from_le_bytes(bytes[28..].try_into().unwrap()))
    }

    /// A file below the build's folder, which is to be on a disk, past the page cache where asked.
    fn file(flags: i32) -> (tempfile::TempDir, std::fs::File) {
        let program = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true).custom_flags(flags);
        let file = options.open(folder.path().join("file")).unwrap();
        file.set_len(1 << 16).unwrap();
        (folder, file)
    }

    /// Past the page cache, where the kernel's block layer is told of it.
    #[test]
    fn a_priority_is_passed_on_once_the_kernel_has_taken_it() {
        const BEST_EFFORT: i16 = 2 << 13 | 3;
        const REAL_TIME: i16 = 1 << 13 | 3;
        const WRONG: i16 = 7 << 13;
        let mut submitting = Submitting::new(Files::new());
        let (_folder, file) = file(libc::O_DIRECT);
        let fildes = file.as_raw_fd();
        let iocb = |opcode, reqprio, offset| Iocb {
            opcode,
            fildes,
            nbytes: 4096,
            offset,
            flags: abi::FLAG_IOPRIO,
            reqprio,
            ..Iocb::default()
        };
        let mut course = |iocb: &Iocb, learned| {
            submitting.priority = learned;
            let list = [std::ptr::from_ref(iocb) as usize; 3];
            let asks = asking(list.as_ptr() as usize, 3, &submitting);
            match Course::of(iocb, &mut submitting, false) {
                // Byte 2 of `struct io_uring_sqe` on is its `ioprio`.
                Course::Ring(entry, state::IO) => (asks, Some((entry.0[0] >> 16) as i16)),
                Course::Kernel => (asks, None),
                _ => panic!("neither to the ring nor to the kernel"),
            }
        };
        for opcode in [abi::PREAD, abi::PWRITE] {
            let one = iocb(opcode, BEST_EFFORT, 0);
            assert_eq!(course(&one, None), (3, None), "nobody has taken it");
            assert_eq!(course(&one, Some(BEST_EFFORT - 1)), (3, None), "nor another one");
            assert_eq!(course(&one, lasting_priority(&one)), (1, Some(BEST_EFFORT)));
            assert_eq!(lasting_priority(&iocb(opcode, REAL_TIME, 0)), None, "a right can go");
            assert_eq!(lasting_priority(&Iocb { flags: 0, ..one }), None);
        }
        let beyond = iocb(abi::PWRITE, BEST_EFFORT, 1 << 16);
        assert_eq!(course(&beyond, Some(BEST_EFFORT)), (1, None), "pwritev2 takes none");
        for opcode in [abi::FSYNC, abi::FDSYNC, abi::POLL] {
            assert_eq!(lasting_priority(&iocb(opcode, WRONG, 0)), None, "it was not looked at");
        }
    }

    /// In the numbers of linux/io_uring.h and linux/fs.h.
    #[test]
    fn what_is_to_be_durable_is_told_to_the_ring() {
        const OP_FSYNC: u8 = 3;
        for flags in [0, libc::O_DIRECT] {
            // The second file may have the first one's number.
            let mut submitting = Submitting::new(Files::new());
            let (_folder, file) = file(flags);
            let fildes = file.as_raw_fd();
            let mut course = |opcode, rw_flags, nbytes| {
                let iocb = Iocb { opcode, rw_flags, fildes, nbytes, ..Iocb::default() };
                Course::of(&iocb, &mut submitting, false)
            };
            for (opcode, wanted) in [(abi::FSYNC, 0), (abi::FDSYNC, 1)] {
                let Course::Ring(entry, state::IO) = course(opcode, 0, 0) else { panic!() };
                assert_eq!(told(entry), (OP_FSYNC, wanted));
                assert!(matches!(course(opcode, abi::RWF_DSYNC, 0), Course::Kernel));
            }
            // RWF_HIPRI, DSYNC and SYNC.
            for (rw_flags, wanted) in [(0, 0), (1, 0), (2, 2), (4, 4), (7, 6)] {
                match course(abi::PWRITE, rw_flags, 4096) {
                    Course::Ring(entry, state::IO) if flags == libc::O_DIRECT => {
                        assert_eq!(told(entry), (op::WRITE, wanted));
                    }
                    Course::Here { write: true, flags: here, .. } if flags == 0 => {
                        assert_eq!(here, wanted);
                    }
                    _ => panic!("a file of flags {flags:#o} goes another way"),
                }
            }
        }
    }
}
