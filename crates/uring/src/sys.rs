//! The system calls and what is mapped: include/uapi/linux/io_uring.h.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::{io, mem};

pub const SETUP_IOPOLL: u32 = 1 << 0;
pub const SETUP_SQPOLL: u32 = 1 << 1;
pub const SETUP_SQ_AFF: u32 = 1 << 2;
pub const SETUP_CQSIZE: u32 = 1 << 3;
pub const SETUP_CLAMP: u32 = 1 << 4;
pub const SETUP_SUBMIT_ALL: u32 = 1 << 7;
pub const SETUP_COOP_TASKRUN: u32 = 1 << 8;
pub const SETUP_TASKRUN_FLAG: u32 = 1 << 9;
pub const SETUP_SQE128: u32 = 1 << 10;
pub const SETUP_CQE32: u32 = 1 << 11;
pub const SETUP_SINGLE_ISSUER: u32 = 1 << 12;
pub const SETUP_DEFER_TASKRUN: u32 = 1 << 13;
pub const SETUP_NO_SQARRAY: u32 = 1 << 16;
pub const SETUP_HYBRID_IOPOLL: u32 = 1 << 17;
pub const SETUP_CQE_MIXED: u32 = 1 << 18;
pub const SETUP_SQE_MIXED: u32 = 1 << 19;

pub const FEATURE_SINGLE_MMAP: u32 = 1 << 0;
pub const FEATURE_NODROP: u32 = 1 << 1;
pub const FEATURE_EXT_ARG: u32 = 1 << 8;
pub const FEATURE_NO_IOWAIT: u32 = 1 << 17;

pub const SQ_NEED_WAKEUP: u32 = 1 << 0;
pub const SQ_CQ_OVERFLOW: u32 = 1 << 1;
pub const SQ_TASKRUN: u32 = 1 << 2;

pub const ENTER_GETEVENTS: u32 = 1 << 0;
pub const ENTER_SQ_WAKEUP: u32 = 1 << 1;
pub const ENTER_REGISTERED_RING: u32 = 1 << 4;
pub const ENTER_NO_IOWAIT: u32 = 1 << 7;

pub const REGISTER_EVENTFD: u32 = 4;
pub const REGISTER_PROBE: u32 = 8;
pub const REGISTER_FILES2: u32 = 13;
pub const REGISTER_FILES_UPDATE2: u32 = 14;
pub const REGISTER_BUFFERS2: u32 = 15;
pub const REGISTER_BUFFERS_UPDATE: u32 = 16;
pub const REGISTER_RING_FDS: u32 = 20;
pub const UNREGISTER_RING_FDS: u32 = 21;
pub const REGISTER_PBUF_RING: u32 = 22;
pub const UNREGISTER_PBUF_RING: u32 = 23;
/// Flag of a resource table: without contents at first.
pub const REGISTER_SPARSE: u32 = 1 << 0;

const OFFSET_RINGS: i64 = 0;
const OFFSET_ENTRIES: i64 = 0x1000_0000;

/// `struct io_sqring_offsets`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SubmissionOffsets {
    pub head: u32,
    pub tail: u32,
    pub ring_mask: u32,
    pub ring_entries: u32,
    pub flags: u32,
    pub dropped: u32,
    pub array: u32,
    reserved: u32,
    user_addr: u64,
}

/// `struct io_cqring_offsets`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CompletionOffsets {
    pub head: u32,
    pub tail: u32,
    pub ring_mask: u32,
    pub ring_entries: u32,
    pub overflow: u32,
    pub cqes: u32,
    pub flags: u32,
    reserved: u32,
    user_addr: u64,
}

/// `struct io_uring_params`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Parameters {
    pub sq_entries: u32,
    pub cq_entries: u32,
    pub flags: u32,
    pub sq_thread_cpu: u32,
    pub sq_thread_idle: u32,
    pub features: u32,
    pub wq_fd: u32,
    pub reserved: [u32; 3],
    pub submission: SubmissionOffsets,
    pub completion: CompletionOffsets,
}

/// `struct __kernel_timespec`.
#[repr(C)]
pub struct Timespec {
    pub seconds: i64,
    pub nanoseconds: i64,
}

/// `struct io_uring_rsrc_register`.
#[derive(Default)]
#[repr(C)]
pub struct Table {
    pub count: u32,
    pub flags: u32,
    pub reserved: u64,
    pub data: u64,
    pub tags: u64,
}

/// `struct io_uring_rsrc_update2`; the first 16 bytes are `struct io_uring_rsrc_update`.
#[derive(Default)]
#[repr(C)]
pub struct Update {
    pub offset: u32,
    pub reserved: u32,
    pub data: u64,
    pub tags: u64,
    pub count: u32,
    pub reserved2: u32,
}

/// `struct io_uring_buf_reg`.
#[derive(Default)]
#[repr(C)]
pub struct BufferRingAt {
    pub start: u64,
    pub entries: u32,
    pub group: u16,
    pub flags: u16,
    pub reserved: [u64; 3],
}

/// `struct io_uring_probe` with room for every operation code.
#[repr(C)]
pub struct Probe {
    last_op: u8,
    ops_len: u8,
    reserved: u16,
    reserved2: [u32; 3],
    ops: [ProbeOp; 256],
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct ProbeOp {
    op: u8,
    reserved: u8,
    flags: u16,
    reserved2: u32,
}

const _: () = {
    assert!(mem::size_of::<Parameters>() == 120);
    assert!(mem::size_of::<Table>() == 32);
    assert!(mem::size_of::<Update>() == 32);
    assert!(mem::size_of::<BufferRingAt>() == 40);
    assert!(mem::size_of::<ProbeOp>() == 8);
};

impl Probe {
    /// Asks a ring what it can do.
    pub fn of(fd: RawFd) -> io::Result<Box<Probe>> {
        let ops = [ProbeOp::default(); 256];
        let mut probe =
            Box::new(Probe { last_op: 0, ops_len: 0, reserved: 0, reserved2: [0; 3], ops });
        let places = probe.ops.len() as u32;
        // SAFETY: the kernel fills as many places as it is told there are.
        unsafe { register(fd, REGISTER_PROBE, (&raw mut *probe).cast(), places) }?;
        Ok(probe)
    }

    /// Whether the kernel knows an operation.
    pub fn supports(&self, code: u8) -> bool {
        const SUPPORTED: u16 = 1 << 0;
        let known = self.ops[..usize::from(self.ops_len)].get(usize::from(code));
        known.is_some_and(|op| op.flags & SUPPORTED != 0)
    }
}

/// `io_uring_setup(2)`.
pub fn setup(entries: u32, parameters: &mut Parameters) -> io::Result<OwnedFd> {
    let parameters: *mut Parameters = parameters;
    // SAFETY: the parameters are a valid `io_uring_params`.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, parameters) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// `io_uring_register(2)`.
///
/// # Safety
/// `argument` is what `operation` takes, `count` of them, and lives as long as that demands.
pub unsafe fn register(
    fd: RawFd,
    operation: u32,
    argument: *const libc::c_void,
    count: u32,
) -> io::Result<u32> {
    // SAFETY: passed on to the caller.
    let done =
        unsafe { libc::syscall(libc::SYS_io_uring_register, fd, operation, argument, count) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as u32) }
}

/// Memory shared with the kernel, unmapped when dropped. A child process does not have it: two
/// processes writing into the same queue would ruin it.
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// The heads, tails and flags of both queues, and the completion entries.
    pub fn rings(fd: &OwnedFd, len: usize) -> io::Result<Mapping> {
        Mapping::new(fd, len, OFFSET_RINGS)
    }

    /// The submission entries.
    pub fn entries(fd: &OwnedFd, len: usize) -> io::Result<Mapping> {
        Mapping::new(fd, len, OFFSET_ENTRIES)
    }

    /// Memory of our own, zeroed.
    pub fn anonymous(len: usize) -> io::Result<Mapping> {
        Mapping::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    fn new(fd: &OwnedFd, len: usize, offset: i64) -> io::Result<Mapping> {
        Mapping::map(len, libc::MAP_SHARED, fd.as_raw_fd(), offset)
    }

    fn map(len: usize, flags: libc::c_int, fd: RawFd, offset: i64) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("a mapping is not at 0");
        let mapping = Mapping { start, len };
        // SAFETY: our own mapping. Kernels that cannot keep it from children are none of ours.
        let kept = unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_DONTFORK) };
        if kept < 0 { Err(io::Error::last_os_error()) } else { Ok(mapping) }
    }

    /// Where `offset` lies.
    pub fn at<T>(&self, offset: u32) -> *mut T {
        assert!((offset as usize) < self.len, "the kernel's offsets lie within what it maps");
        // SAFETY: within the mapping.
        unsafe { self.start.as_ptr().add(offset as usize).cast() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever had pointers into it owned it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
