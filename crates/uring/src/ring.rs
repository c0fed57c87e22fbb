//! One ring and its registered resources.

use crate::{Entry, Error};
use io_uring::{IoUring, Probe};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;
use std::{io, mem, ptr};

// include/uapi/linux/io_uring.h
const ENTER_GETEVENTS: u32 = 1 << 0;
const ENTER_EXT_ARG: u32 = 1 << 3;
const ENTER_REGISTERED_RING: u32 = 1 << 4;
const ENTER_NO_IOWAIT: u32 = 1 << 7;
const REGISTER_RING_FDS: u32 = 20;
const UNREGISTER_RING_FDS: u32 = 21;

/// Completion queue entries per submission queue entry: watches of many idle sockets complete
/// together, and an overflowing queue costs memory and time in the kernel.
const COMPLETIONS_PER_ENTRY: u32 = 4;

/// A ring with one owner: neither `Send` nor `Sync`, since the kernel serves only the thread that
/// created it (`IORING_SETUP_SINGLE_ISSUER`).
///
/// Dropping the ring makes the kernel cancel what is in flight, but later and elsewhere; whoever
/// owns buffers must have reaped every completion before.
pub struct Ring {
    ring: IoUring,
    probe: Probe,
    setup: Setup,
    /// Index of the ring's own descriptor with the kernel, which spares a look-up per enter.
    registered: Option<u32>,
    enter_flags: u32,
    single_owner: PhantomData<*mut ()>,
}

/// What the kernel granted when the ring was set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Completion work runs only within our own enters (`IORING_SETUP_DEFER_TASKRUN`, 6.1).
    pub defer_taskrun: bool,
    /// Only this thread submits (`IORING_SETUP_SINGLE_ISSUER`, 6.0).
    pub single_issuer: bool,
    /// Completion work does not interrupt us (`IORING_SETUP_COOP_TASKRUN`, 5.19).
    pub coop_taskrun: bool,
    /// The kernel tells in shared memory that completion work waits (`IORING_SETUP_TASKRUN_FLAG`).
    pub taskrun_flag: bool,
    /// No indirection array in front of the entries (`IORING_SETUP_NO_SQARRAY`, 6.6).
    pub no_sqarray: bool,
    /// The ring's descriptor is registered (5.18).
    pub registered_ring: bool,
    /// Entries of the submission queue.
    pub entries: u32,
    /// Entries of the completion queue.
    pub completions: u32,
}

/// One completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the entry was submitted with.
    pub user_data: u64,
    /// A count, or `-errno`.
    pub result: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
}

/// How long [`Ring::enter`] waits for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until there is one, or a signal.
    Forever,
    /// At most this long.
    AtMost(Duration),
}

/// The submission queue has no room: enter, then push again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// `struct io_uring_getevents_arg`.
#[repr(C)]
struct GetEvents {
    sigmask: u64,
    sigmask_bytes: u32,
    min_wait_us: u32,
    timespec: u64,
}

/// `struct __kernel_timespec`.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct Update {
    offset: u32,
    reserved: u32,
    data: u64,
}

impl Ring {
    /// Sets up a ring with `entries` submission entries (rounded up to a power of two), with the
    /// best features that the kernel takes.
    pub fn new(entries: u32) -> Result<Ring, Error> {
        let (ring, mut setup) = build(entries)?;
        let parameters = ring.params();
        if !parameters.is_feature_ext_arg() {
            return Err(Error::Unsupported { feature: "IORING_FEAT_EXT_ARG (5.11)" });
        }
        if !parameters.is_feature_nodrop() {
            return Err(Error::Unsupported { feature: "IORING_FEAT_NODROP (5.5)" });
        }
        setup.entries = parameters.sq_entries();
        setup.completions = parameters.cq_entries();
        // Waiting for sockets is not waiting for a disk: keep it out of the iowait figures.
        let enter_flags = if parameters.is_feature_no_iowait() { ENTER_NO_IOWAIT } else { 0 };
        let mut probe = Probe::new();
        ring.submitter()
            .register_probe(&mut probe)
            .map_err(|source| Error::explain("io_uring_register(PROBE)", source))?;
        let registered = register_ring(ring.as_raw_fd());
        setup.registered_ring = registered.is_some();
        Ok(Ring { ring, probe, setup, registered, enter_flags, single_owner: PhantomData })
    }

    /// What the kernel granted.
    pub fn setup(&self) -> Setup {
        self.setup
    }

    /// Whether the kernel knows an operation: `ring.supports(code::SendZc::CODE)`.
    pub fn supports(&self, code: u8) -> bool {
        self.probe.is_supported(code)
    }

    /// Queues an entry for the next [`Ring::enter`].
    ///
    /// # Safety
    /// Everything the entry points to stays valid until its last completion was reaped.
    #[inline]
    pub unsafe fn push(&mut self, entry: &Entry) -> Result<(), Full> {
        // SAFETY: passed on to the caller.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| Full)
    }

    /// Entries queued and not yet taken by the kernel.
    #[inline]
    pub fn queued(&mut self) -> u32 {
        self.ring.submission().len() as u32
    }

    /// Whether the kernel wants an enter although nothing is queued: completion work waits, or
    /// completions that found the queue full.
    #[inline]
    pub fn wants_enter(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Whether completions can be reaped without an enter.
    #[inline]
    pub fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Submits what is queued, runs completion work, and waits as told. Returns how many entries
    /// the kernel took.
    ///
    /// An elapsed wait and a signal are no errors. `EBUSY` and `EAGAIN` mean that the kernel is
    /// short of something: reap, then try again.
    pub fn enter(&mut self, wait: Wait) -> io::Result<u32> {
        let queued = self.queued();
        let mut flags = self.enter_flags;
        // With nothing queued the caller enters only to have completion work run.
        if wait != Wait::No || queued == 0 || self.wants_enter() {
            flags |= ENTER_GETEVENTS;
        }
        let want = u32::from(wait != Wait::No);
        let Wait::AtMost(limit) = wait else {
            return self.call(queued, want, flags, ptr::null(), 0);
        };
        let timespec = Timespec {
            seconds: limit.as_secs().min(i64::MAX as u64) as i64,
            nanoseconds: i64::from(limit.subsec_nanos()),
        };
        let argument = GetEvents {
            sigmask: 0,
            sigmask_bytes: 0,
            min_wait_us: 0,
            timespec: (&raw const timespec) as u64,
        };
        let size = mem::size_of::<GetEvents>();
        self.call(queued, want, flags | ENTER_EXT_ARG, (&raw const argument).cast(), size)
    }

    fn call(
        &mut self,
        queued: u32,
        want: u32,
        mut flags: u32,
        argument: *const libc::c_void,
        size: usize,
    ) -> io::Result<u32> {
        let fd = match self.registered {
            Some(index) => {
                flags |= ENTER_REGISTERED_RING;
                index
            }
            None => self.ring.as_raw_fd() as u32,
        };
        // SAFETY: the ring is ours, `argument` is null or points to a GetEvents that lives on the
        // caller's stack; the entries were vouched for when they were pushed.
        let taken = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, fd, queued, want, flags, argument, size)
        };
        if taken >= 0 {
            return Ok(taken as u32);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ETIME | libc::EINTR) => Ok(0),
            _ => Err(error),
        }
    }

    /// Moves completions into `into` until it is at its capacity or none is left.
    #[inline]
    pub fn reap(&mut self, into: &mut Vec<Completion>) {
        let room = into.capacity() - into.len();
        into.extend(self.ring.completion().take(room).map(|entry| Completion {
            user_data: entry.user_data(),
            result: entry.result(),
            flags: entry.flags(),
        }));
    }

    /// Makes an empty table of `count` registered files (5.19).
    pub fn register_files(&mut self, count: u32) -> io::Result<()> {
        self.ring.submitter().register_files_sparse(count)
    }

    /// Puts a descriptor into the table of registered files; -1 empties the place. The kernel
    /// keeps the file open while it is there.
    pub fn update_file(&mut self, index: u32, fd: RawFd) -> io::Result<()> {
        self.ring.submitter().register_files_update(index, &[fd]).map(drop)
    }

    /// Makes an empty table of `count` registered buffers (5.19).
    pub fn register_buffers(&mut self, count: u32) -> io::Result<()> {
        self.ring.submitter().register_buffers_sparse(count)
    }

    /// Puts `len` bytes at `start` into the table of registered buffers. The pages are pinned
    /// and count against `RLIMIT_MEMLOCK`.
    ///
    /// # Safety
    /// The memory stays mapped while it is registered and this ring lives.
    pub unsafe fn update_buffer(
        &mut self,
        index: u32,
        start: *mut u8,
        len: usize,
    ) -> io::Result<()> {
        let vector = libc::iovec { iov_base: start.cast(), iov_len: len };
        // SAFETY: passed on to the caller.
        unsafe { self.ring.submitter().register_buffers_update(index, &[vector], None) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let Some(index) = self.registered else { return };
        let update = Update { offset: index, reserved: 0, data: 0 };
        // SAFETY: one valid `io_uring_rsrc_update`. Were the index left registered, the thread
        // would hold the ring open for as long as it lives.
        unsafe {
            let fd = self.ring.as_raw_fd();
            libc::syscall(
                libc::SYS_io_uring_register,
                fd,
                UNREGISTER_RING_FDS,
                &raw const update,
                1,
            );
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Ring").field("setup", &self.setup).finish_non_exhaustive()
    }
}

/// Tries the set-ups from the best to the plainest: a kernel refuses flags it does not know.
fn build(entries: u32) -> Result<(IoUring, Setup), Error> {
    let plain = Setup::default();
    let cooperative = Setup { coop_taskrun: true, taskrun_flag: true, ..plain };
    let single = Setup { single_issuer: true, ..cooperative };
    let deferring = Setup { defer_taskrun: true, ..single };
    let newest = Setup { no_sqarray: true, ..deferring };
    let mut refused = None;
    for setup in [newest, deferring, single, cooperative, plain] {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp();
        builder.setup_cqsize(entries.next_power_of_two().saturating_mul(COMPLETIONS_PER_ENTRY));
        if setup.coop_taskrun {
            builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
        }
        if setup.single_issuer {
            builder.setup_single_issuer();
        }
        if setup.defer_taskrun {
            builder.setup_defer_taskrun();
        }
        if setup.no_sqarray {
            builder.setup_no_sqarray();
        }
        match builder.build(entries) {
            Ok(ring) => return Ok((ring, setup)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = Some(error),
            Err(error) => return Err(Error::explain("io_uring_setup", error)),
        }
    }
    let source = refused.expect("the loop ran");
    Err(Error::explain("io_uring_setup", source))
}

/// Registers the ring's descriptor with this thread. Merely saves time, so failing is no error.
fn register_ring(fd: RawFd) -> Option<u32> {
    let mut update = Update { offset: u32::MAX, reserved: 0, data: fd as u64 };
    let argument = &raw mut update;
    // SAFETY: one valid, writable `io_uring_rsrc_update`, as the call wants.
    let count =
        unsafe { libc::syscall(libc::SYS_io_uring_register, fd, REGISTER_RING_FDS, argument, 1) };
    (count == 1).then_some(update.offset)
}
