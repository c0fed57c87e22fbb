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
/// Addresses from here on are not a program's (`TASK_SIZE_MAX` with four levels of page tables).
/// Where there are more, the kernel is asked.
pub const ADDRESS_END: u64 = 0x7fff_ffff_f000;

/// `struct io_uring_sqe`, the fields that we use.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sqe {
    /// One of [`op`].
    pub opcode: u8,
    /// `IOSQE_*`.
    pub flags: u8,
    /// I/O priority.
    pub ioprio: u16,
    /// The file, or its place among the registered ones.
    pub fd: i32,
    /// Byte of the file.
    pub off: u64,
    /// Buffer or iovec array.
    pub addr: u64,
    /// Bytes, or entries of the iovec array.
    pub len: u32,
    /// `RWF_*`, fsync flags, poll mask.
    pub op_flags: u32,
    /// Comes back with the completion.
    pub user_data: u64,
    /// Place of a registered buffer.
    pub buf_index: u16,
    /// A registered personality.
    pub personality: u16,
    /// Not used by us.
    pub file_index: u32,
    /// Not used by us.
    pub addr3: u64,
    /// Not used by us.
    pub pad: u64,
}
const _: () = assert!(size_of::<Sqe>() == 64);

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
