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
