//! A submission queue entry, taken apart.

use crate::entry::Entry;
use std::mem;
use std::os::fd::RawFd;

/// Flags of an entry (`IOSQE_*`).
pub const FIXED_FILE: u8 = 1 << 0;
/// Asks for a worker thread, which is how such entries run here anyway.
pub const ASYNC: u8 = 1 << 4;
/// No completion if it succeeds.
pub const SKIP_SUCCESS: u8 = 1 << 6;

/// `struct io_uring_sqe`, as far as the operations have it that are emulated.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Sqe {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: RawFd,
    /// The offset; of a timeout's update the address of the time, of a timeout the completions it waits for.
    pub offset: u64,
    /// An address, or the `user_data` of whom to end.
    pub address: u64,
    pub len: u32,
    /// `RWF_*`, `POLL*`, `IORING_FSYNC_*`, `IORING_ASYNC_CANCEL_*`, `IORING_TIMEOUT_*`, by the operation.
    pub op_flags: u32,
    pub user_data: u64,
    pub buffer: u16,
    pub personality: u16,
    pub file_index: i32,
    pub address3: u64,
    pad: u64,
}

const _: () = {
    assert!(mem::size_of::<Sqe>() == mem::size_of::<Entry>());
    assert!(mem::offset_of!(Sqe, op_flags) == 28);
    assert!(mem::offset_of!(Sqe, user_data) == 32);
};

/// Operations that are known, for [`crate::Ring::supports`].
pub const KNOWN: [u8; 12] = [
    code::NOP,
    code::READV,
    code::WRITEV,
    code::FSYNC,
    code::POLL_ADD,
    code::POLL_REMOVE,
    code::TIMEOUT,
    code::TIMEOUT_REMOVE,
    code::ASYNC_CANCEL,
    code::FALLOCATE,
    code::READ,
    code::WRITE,
];

/// Operation codes.
pub mod code {
    use io_uring::opcode as of;

    pub const NOP: u8 = of::Nop::CODE;
    pub const READV: u8 = of::Readv::CODE;
    pub const WRITEV: u8 = of::Writev::CODE;
    pub const FSYNC: u8 = of::Fsync::CODE;
    pub const READ_FIXED: u8 = of::ReadFixed::CODE;
    pub const WRITE_FIXED: u8 = of::WriteFixed::CODE;
    pub const POLL_ADD: u8 = of::PollAdd::CODE;
    pub const POLL_REMOVE: u8 = of::PollRemove::CODE;
    pub const TIMEOUT: u8 = of::Timeout::CODE;
    pub const TIMEOUT_REMOVE: u8 = of::TimeoutRemove::CODE;
    pub const ASYNC_CANCEL: u8 = of::AsyncCancel::CODE;
    pub const FALLOCATE: u8 = of::Fallocate::CODE;
    pub const READ: u8 = of::Read::CODE;
    pub const WRITE: u8 = of::Write::CODE;
    pub const URING_CMD: u8 = of::UringCmd80::CODE;
}
