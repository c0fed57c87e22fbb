//! The structures that programs, libaio and the kernel share (linux/aio_abi.h, fs/aio.c, linux/io_uring.h).

/// `aio_ring.magic`: what libaio, fio and SPDK look for before they read a ring.
pub const RING_MAGIC: u32 = 0xa10a_10a1;

/// `struct iocb` of a 64-bit little-endian machine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Iocb {
    /// Given back in the event.
    pub data: u64,
    /// Written by `io_submit`.
    pub key: u32,
    /// `RWF_*`.
    pub rw_flags: u32,
    /// `IOCB_CMD_*`.
    pub opcode: u16,
    /// With [`FLAG_IOPRIO`], an I/O priority.
    pub reqprio: i16,
    /// The file.
    pub fildes: i32,
    /// Buffer, iovec array, or mask of a poll.
    pub buf: u64,
    /// Bytes, or entries of the iovec array.
    pub nbytes: u64,
    /// Byte of the file.
    pub offset: i64,
    /// Must be 0.
    pub reserved2: u64,
    /// `IOCB_FLAG_*`.
    pub flags: u32,
    /// With [`FLAG_RESFD`], an eventfd.
    pub resfd: u32,
}
const _: () = assert!(size_of::<Iocb>() == 64);

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// `iocb.data` at submission.
    pub data: u64,
    /// The iocb's address; its index where iocbs are indices.
    pub obj: u64,
    /// A count, or `-errno`.
    pub res: i64,
    /// Always 0.
    pub res2: i64,
}
const _: () = assert!(size_of::<Event>() == 32);

/// `struct aio_ring`, which lies where a context id points to; events follow.
#[repr(C)]
#[derive(Debug)]
pub struct AioRing {
    /// Number of the context within its process.
    pub id: u32,
    /// Places for events.
    pub nr: u32,
    /// Place of the next event to be taken.
    pub head: u32,
    /// Place of the next event to be written.
    pub tail: u32,
    /// [`RING_MAGIC`].
    pub magic: u32,
    /// 1.
    pub compat_features: u32,
    /// 0.
    pub incompat_features: u32,
    /// Size of this structure.
    pub header_length: u32,
}
const _: () = assert!(size_of::<AioRing>() == 32);

/// `IOCB_CMD_PREAD`.
pub const PREAD: u16 = 0;
/// `IOCB_CMD_PWRITE`.
pub const PWRITE: u16 = 1;
/// `IOCB_CMD_FSYNC`.
pub const FSYNC: u16 = 2;
/// `IOCB_CMD_FDSYNC`.
pub const FDSYNC: u16 = 3;
/// `IOCB_CMD_POLL`.
pub const POLL: u16 = 5;
/// `IOCB_CMD_PREADV`.
pub const PREADV: u16 = 7;
/// `IOCB_CMD_PWRITEV`.
pub const PWRITEV: u16 = 8;

/// `IOCB_FLAG_RESFD`: add one to an eventfd for each event.
pub const FLAG_RESFD: u32 = 1;
/// `IOCB_FLAG_IOPRIO`: `reqprio` counts.
pub const FLAG_IOPRIO: u32 = 2;
/// Where a priority has its class, and that of real time (linux/ioprio.h).
pub const IOPRIO_CLASS_SHIFT: u32 = 13;
/// `IOPRIO_CLASS_RT`.
pub const IOPRIO_CLASS_RT: u16 = 1;

/// `RWF_HIPRI`, which `io_submit` takes and forgets.
pub const RWF_HIPRI: u32 = 1;
/// `RWF_DSYNC`.
pub const RWF_DSYNC: u32 = 2;
/// `RWF_SYNC`.
pub const RWF_SYNC: u32 = 4;
/// `RWF_NOWAIT`.
pub const RWF_NOWAIT: u32 = 8;

/// Most bytes of one read or write (`MAX_RW_COUNT`).
pub const RW_COUNT_MAX: u64 = 0x7fff_f000;
/// Most entries of an iovec array (`UIO_MAXIOV`).
pub const IOVECS_MAX: u64 = 1024;
/// Addresses from here on are not a program's (`TASK_SIZE_MAX` with four levels of page tables; on aarch64 `DEFAULT_MAP_WINDOW_64`).
/// Where there are more, the kernel is asked.
#[cfg(not(target_arch = "aarch64"))]
pub const ADDRESS_END: u64 = 0x7fff_ffff_f000;
/// The same.
#[cfg(target_arch = "aarch64")]
pub const ADDRESS_END: u64 = 1 << 48;

/// The first 32 bytes of a `struct io_uring_sqe`, as the kernel reads them: all that a request needs but for
/// its user data and the place of a registered buffer. In whole words, so that queueing it and keeping it
/// are four stores each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry(pub [u64; 4]);

impl Entry {
    /// For a file, with one of [`op`] and an I/O priority.
    #[inline]
    pub fn new(opcode: u8, fd: i32, ioprio: u16) -> Entry {
        let place = u64::from(fd as u32) << 32;
        Entry([u64::from(opcode) | u64::from(ioprio) << 16 | place, 0, 0, 0])
    }

    /// With the byte of the file; buffer or iovec array; bytes or entries of the array.
    #[inline]
    pub fn at(self, off: u64, addr: u64, len: u32) -> Entry {
        let [first, _, _, last] = self.0;
        Entry([first, off, addr, last & !u64::from(u32::MAX) | u64::from(len)])
    }

    /// With `RWF_*`, fsync flags, or a poll mask.
    #[inline]
    pub fn with_op_flags(self, op_flags: u32) -> Entry {
        let [first, off, addr, last] = self.0;
        Entry([first, off, addr, last & u64::from(u32::MAX) | u64::from(op_flags) << 32])
    }

    /// With `IOSQE_*`.
    #[inline]
    pub fn with_flags(self, flags: u8) -> Entry {
        let [first, off, addr, last] = self.0;
        Entry([first | u64::from(flags) << 8, off, addr, last])
    }

    /// One of [`op`].
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.0[0] as u8
    }

    /// The file, or its place among the registered ones.
    #[inline]
    pub fn fd(&self) -> i32 {
        (self.0[0] >> 32) as i32
    }

    /// Byte of the file.
    #[inline]
    pub fn off(&self) -> u64 {
        self.0[1]
    }

    /// Buffer or iovec array.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.0[2]
    }

    /// Bytes, or entries of the iovec array.
    #[inline]
    pub fn count(&self) -> u32 {
        self.0[3] as u32
    }

    /// `RWF_*`, fsync flags, poll mask.
    #[inline]
    pub fn op_flags(&self) -> u32 {
        (self.0[3] >> 32) as u32
    }
}

/// A place for a `struct io_uring_sqe`: an [`Entry`], the user data, and where buffers are registered a word
/// that begins with the place of one. Nothing of ours writes the rest, which the kernel made zeroes.
pub type Sqe = [u64; 8];

/// `struct io_uring_cqe`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    /// As submitted.
    pub user_data: u64,
    /// A count, or `-errno`.
    pub res: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
}
const _: () = assert!(size_of::<Cqe>() == 16);

/// `IORING_OP_*`.
pub mod op {
    /// Completes at once.
    pub const NOP: u8 = 0;
    /// preadv2.
    pub const READV: u8 = 1;
    /// pwritev2.
    pub const WRITEV: u8 = 2;
    /// fsync, fdatasync.
    pub const FSYNC: u8 = 3;
    /// Read into a registered buffer.
    pub const READ_FIXED: u8 = 4;
    /// Write from a registered buffer.
    pub const WRITE_FIXED: u8 = 5;
    /// One poll.
    pub const POLL_ADD: u8 = 6;
    /// pread.
    pub const READ: u8 = 22;
    /// pwrite.
    pub const WRITE: u8 = 23;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Or all I/O would be the kernel's to judge.
    #[test]
    fn a_programs_memory_is_below_the_end_of_addresses() {
        let (local, boxed) = (0_u8, Box::new(0_u8));
        for address in [&raw const local, &raw const *boxed] {
            assert!((address as u64) < ADDRESS_END, "{address:?}");
        }
    }
}
