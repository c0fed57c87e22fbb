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
    if wrong {
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
