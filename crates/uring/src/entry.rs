//! Builders of submission queue entries.
//!
//! Building an entry is safe, handing it to the kernel is not: see [`crate::Ring::push`].

use io_uring::{opcode, types};
use std::os::fd::RawFd;

/// Flags of an entry (`IOSQE_*`), for its `flags` method: links, no completion on success.
pub use io_uring::squeue::Flags;

/// A time as entries point to it (`struct __kernel_timespec`), of a `Duration`.
pub use io_uring::types::Timespec;

pub use crate::command::{NvmeOp, NvmeUringCmd, big_nop, big_uring_cmd, nvme_command};

/// A submission queue entry of 64 bytes (`struct io_uring_sqe`).
pub type Entry = io_uring::squeue::Entry;

/// A submission queue entry of 128 bytes, for rings of [`crate::Kind::Big`] and
/// [`crate::Kind::Mixed`].
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct BigEntry(pub(crate) crate::command::Layout);

pub(crate) const NOP: u8 = opcode::Nop::CODE;
pub(crate) const URING_CMD: u8 = opcode::UringCmd80::CODE;
/// The same in two slots of a mixed ring (6.19).
pub(crate) const BIG_NOP: u8 = 63;
pub(crate) const BIG_URING_CMD: u8 = 64;

const _: () = {
    assert!(std::mem::size_of::<Entry>() == 64);
    assert!(std::mem::size_of::<BigEntry>() == 128);
};

/// The file an entry works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// An open descriptor.
    Fd(RawFd),
    /// An index into the ring's table of registered files.
    Fixed(u32),
}

/// Applies an opcode's constructor to whichever kind of file was given.
macro_rules! on {
    ($file:expr, $fd:ident => $build:expr) => {
        match $file {
            File::Fd(number) => {
                let $fd = types::Fd(number);
                $build.build()
            }
            File::Fixed(index) => {
                let $fd = types::Fixed(index);
                $build.build()
            }
        }
    };
}

/// Does nothing and completes with 0.
pub fn nop() -> Entry {
    opcode::Nop::new().build()
}

/// Reads `len` bytes at `offset` into `buffer`.
#[inline]
pub fn read(file: File, buffer: *mut u8, len: u32, offset: u64) -> Entry {
    on!(file, fd => opcode::Read::new(fd, buffer, len).offset(offset))
}

/// Reads into memory of the registered buffer `index`.
#[inline]
pub fn read_fixed(file: File, buffer: *mut u8, len: u32, offset: u64, index: u16) -> Entry {
    on!(file, fd => opcode::ReadFixed::new(fd, buffer, len, index).offset(offset))
}

/// Reads into `count` vectors.
pub fn readv(file: File, vectors: *const libc::iovec, count: u32, offset: u64) -> Entry {
    on!(file, fd => opcode::Readv::new(fd, vectors, count).offset(offset))
}

/// Writes `len` bytes at `offset`; `flags` are `RWF_*`, `RWF_DSYNC` for force unit access.
#[inline]
pub fn write(file: File, buffer: *const u8, len: u32, offset: u64, flags: i32) -> Entry {
    on!(file, fd => opcode::Write::new(fd, buffer, len).offset(offset).rw_flags(flags))
}

/// Writes from memory of the registered buffer `index`; `flags` are `RWF_*`.
#[inline]
pub fn write_fixed(
    file: File,
    buffer: *const u8,
    len: u32,
    offset: u64,
    flags: i32,
    index: u16,
) -> Entry {
    on!(file, fd => opcode::WriteFixed::new(fd, buffer, len, index).offset(offset).rw_flags(flags))
}

/// Writes from `count` vectors; `flags` are `RWF_*`.
pub fn writev(
    file: File,
    vectors: *const libc::iovec,
    count: u32,
    offset: u64,
    flags: i32,
) -> Entry {
    on!(file, fd => opcode::Writev::new(fd, vectors, count).offset(offset).rw_flags(flags))
}

/// Makes data and metadata durable.
pub fn fsync(file: File) -> Entry {
    on!(file, fd => opcode::Fsync::new(fd))
}

/// Makes data durable, and metadata only as far as needed to read it back.
pub fn fdatasync(file: File) -> Entry {
    on!(file, fd => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC))
}

/// `fallocate(2)` with `FALLOC_FL_*` in `mode`. Always runs on a kernel worker thread.
pub fn fallocate(file: File, mode: i32, offset: u64, len: u64) -> Entry {
    on!(file, fd => opcode::Fallocate::new(fd, len).offset(offset).mode(mode))
}

/// A command that only the driver behind `file` understands: its number, a word whose meaning is the
/// driver's, and 16 bytes of its own (`IORING_OP_URING_CMD`). Of more bytes: [`big_uring_cmd`].
#[inline]
pub fn uring_cmd(file: File, operation: u32, addr: u64, command: [u8; 16]) -> Entry {
    on!(file, fd => opcode::UringCmd16::new(fd, operation).addr(Some(addr)).cmd(command))
}

/// A command that completes any number of times (6.18), each time with a buffer of the group `group`
/// ([`crate::BufferRing`]).
pub fn uring_cmd_multishot(file: File, operation: u32, group: u16, command: [u8; 16]) -> Entry {
    const MULTISHOT: u32 = 1 << 1;
    let entry = on!(file, fd => opcode::UringCmd16::new(fd, operation).cmd(command));
    let mut entry = entry.flags(Flags::BUFFER_SELECT);
    let start = (&raw mut entry).cast::<u8>();
    // SAFETY: an entry is the kernel's structure (`repr(C)`), which has `uring_cmd_flags` and `buf_group` there, both
    // aligned; any number is a valid one.
    unsafe {
        start.add(28).cast::<u32>().write(MULTISHOT);
        start.add(40).cast::<u16>().write(group);
    }
    entry
}

/// Sends `len` bytes of the registered buffer `index` by a socket; `flags` are `MSG_*`. With
/// `MSG_WAITALL` it goes on until all are with the socket. Kernels that cannot say `-EINVAL`; on a socket
/// [`write_fixed`] does the same there, in pieces.
pub fn send_fixed(file: File, buffer: *const u8, len: u32, flags: i32, index: u16) -> Entry {
    // As the kernel has it, the entry is that of a send without a copy but for the code.
    let entry = on!(file, fd => {
        opcode::SendZc::new(fd, buffer, len).buf_index(Some(index)).flags(flags)
    });
    with_code(entry, opcode::Send::CODE)
}

/// Receives up to `len` bytes from a socket into the registered buffer `index`; `flags` are `MSG_*`. With
/// `MSG_WAITALL` it goes on until all have come, or the stream ends. Kernels that cannot say
/// `-EINVAL`; on a socket [`read_fixed`] does the same there, in pieces.
pub fn recv_fixed(file: File, buffer: *mut u8, len: u32, flags: i32, index: u16) -> Entry {
    with_code(send_fixed(file, buffer, len, flags, index), opcode::Recv::CODE)
}

fn with_code(mut entry: Entry, code: u8) -> Entry {
    // SAFETY: an entry is the kernel's structure (`repr(C)`), whose first byte is the operation's code;
    // any number is a valid one.
    unsafe { (&raw mut entry).cast::<u8>().write(code) };
    entry
}

/// Completes once with the events that are there, when one of `events` (`POLLIN`, ...) is.
pub fn poll_add(file: File, events: u32) -> Entry {
    on!(file, fd => opcode::PollAdd::new(fd, events))
}

/// Ends the poll that was submitted with `user_data`; that one completes with `-ECANCELED`.
pub fn poll_remove(user_data: u64) -> Entry {
    opcode::PollRemove::new(user_data).build()
}

/// Completes with `-ETIME` when `limit` has passed since the kernel has taken the entry, which is when it reads `limit`.
pub fn timeout(limit: *const Timespec) -> Entry {
    opcode::Timeout::new(limit).build()
}

/// Gives the timeout that was submitted with `user_data` another limit, from now on; `-ENOENT` if it has passed.
pub fn timeout_update(user_data: u64, limit: *const Timespec) -> Entry {
    opcode::TimeoutUpdate::new(user_data, limit).build()
}

/// Asks to end the entry that was submitted with `user_data`.
pub fn cancel(user_data: u64) -> Entry {
    opcode::AsyncCancel::new(user_data).build()
}

/// Asks to end every entry of this ring that can still be ended.
pub fn cancel_any() -> Entry {
    opcode::AsyncCancel2::new(types::CancelBuilder::any()).build()
}
