//! One ring and its registered resources.

use crate::emulated::Emulated;
use crate::queue::{self, Completions, Ends, Submissions};
use crate::sys::{self, Parameters, Probe, Table, Timespec, Update};
use crate::{BigEntry, BufferRing, Entry, Error, Kind, RingOptions, Setup};
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, io_uring_enter, io_uring_enter_arg, io_uring_getevents_arg, io_uring_ptr,
};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;
use std::{io, mem};

/// A ring with one owner: neither `Send` nor `Sync`, since the kernel serves only the thread that
/// created it (`IORING_SETUP_SINGLE_ISSUER`).
///
/// Dropping the ring makes the kernel cancel what is in flight, but later and elsewhere; whoever
/// owns buffers must have reaped every completion before.
pub struct Ring {
    /// What the kernel does otherwise. Ends before the queues and the descriptor that it uses.
    emulated: Option<Box<Emulated>>,
    submissions: Submissions,
    completions: Completions,
    fd: OwnedFd,
    /// Of the kernel's rings.
    probe: Option<Box<Probe>>,
    setup: Setup,
    /// Index of the ring's own descriptor with the kernel, which spares a look-up per enter.
    registered: Option<u32>,
    enter_flags: u32,
    /// Of the queued entries, those that complete as they are submitted.
    at_once: u32,
    single_owner: PhantomData<*mut ()>,
}

/// One completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the entry was submitted with.
    pub user_data: u64,
    /// A count, or `-errno`; of NVMe commands, a status if positive.
    pub result: i32,
    /// `IORING_CQE_F_*`.
    pub flags: u32,
    /// Of big entries the first word after those: of NVMe commands, double words 0 and 1 of the
    /// completion. 0 otherwise.
    pub extra: u64,
}

/// How long [`Ring::enter`] waits for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until there is one, or a signal.
    Forever,
    /// At most this long. Where completions are polled for, without limit.
    AtMost(Duration),
}

/// Longer waits end here, after 146 years: the kernel adds the time to its clock without asking whether 63 bits hold the sum.
const LIMIT_MAX: Duration = Duration::from_nanos(1 << 62);

/// The submission queue has no room: enter, then push again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Why an entry of 128 bytes was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BigRefusal {
    /// The submission queue has no room: enter, then push again.
    Full,
    /// The ring is of [`Kind::Small`].
    Small,
}

impl Ring {
    /// Sets up a ring with `entries` submission entries (rounded up to a power of two), with the
    /// best features that the kernel takes.
    pub fn new(entries: u32) -> Result<Ring, Error> {
        Ring::with_options(&RingOptions { entries, ..RingOptions::default() })
    }

    /// Sets up a ring as told, with the best features that the kernel takes beside that.
    ///
    /// # Errors
    /// [`Error::OptionRefused`] names an option that the kernel does not agree to.
    pub fn with_options(options: &RingOptions) -> Result<Ring, Error> {
        let (fd, parameters, mut setup) = options.set_up()?;
        require(&parameters, sys::FEATURE_EXT_ARG, "IORING_FEAT_EXT_ARG (5.11)")?;
        require(&parameters, sys::FEATURE_NODROP, "IORING_FEAT_NODROP (5.5)")?;
        require(&parameters, sys::FEATURE_SINGLE_MMAP, "IORING_FEAT_SINGLE_MMAP (5.4)")?;
        // Waiting for sockets is not waiting for a disk: keep it out of the iowait figures.
        let no_iowait = parameters.features & sys::FEATURE_NO_IOWAIT != 0;
        let quiet = if no_iowait { sys::ENTER_NO_IOWAIT } else { 0 };
        // Whoever polls for completions does so in every enter.
        let poll = if setup.iopoll && !setup.sqpoll { sys::ENTER_GETEVENTS } else { 0 };
        let enter_flags = quiet | poll;
        let (submissions, completions) = queue::map(&fd, &parameters, &setup)
            .map_err(|source| Error::explain("mmap of a ring", source))?;
        let probe = Probe::of(fd.as_raw_fd())
            .map_err(|source| Error::explain("io_uring_register(PROBE)", source))?;
        let registered = if options.shared { None } else { register_ring(fd.as_raw_fd()) };
        setup.registered_ring = registered.is_some();
        let single_owner = PhantomData;
        Ok(Ring {
            emulated: None,
            submissions,
            completions,
            fd,
            probe: Some(probe),
            setup,
            registered,
            enter_flags,
            at_once: 0,
            single_owner,
        })
    }

    /// Makes a ring for small entries without io_uring, for where it is refused ([`Error::is_refusal`]): epoll and threads do
    /// what the kernel would. Files and buffers cannot be registered with it, links and multishot entries are
    /// `-EINVAL`, and descriptors must stay open until what uses them has completed. Each thread that is started calls `first`.
    ///
    /// # Errors
    /// Descriptors or memory cannot be had.
    pub fn emulated(entries: u32, first: fn()) -> io::Result<Ring> {
        let setup = RingOptions { entries, ..RingOptions::default() }.emulated();
        let flags = Arc::new(AtomicU32::new(0));
        let (submissions, completions, ends) = Ends::new(&setup, Arc::as_ptr(&flags))?;
        let (emulated, fd) = Emulated::new(ends, flags, first)?;
        Ok(Ring {
            emulated: Some(Box::new(emulated)),
            submissions,
            completions,
            fd,
            probe: None,
            setup,
            registered: None,
            enter_flags: 0,
            at_once: 0,
            single_owner: PhantomData,
        })
    }

    /// What the kernel granted.
    pub fn setup(&self) -> Setup {
        self.setup
    }

    /// Whether entries of 128 bytes can be submitted.
    #[inline]
    pub fn takes_big(&self) -> bool {
        self.setup.kind != Kind::Small
    }

    /// Whether the kernel knows an operation: `ring.supports(code::SendZc::CODE)`.
    pub fn supports(&self, code: u8) -> bool {
        self.probe.as_ref().map_or_else(|| Emulated::supports(code), |probe| probe.supports(code))
    }

    /// Queues an entry for the next [`Ring::enter`].
    ///
    /// # Safety
    /// Everything the entry points to stays valid until its last completion was reaped.
    #[inline]
    pub unsafe fn push(&mut self, entry: &Entry) -> Result<(), Full> {
        if self.submissions.push(entry) { Ok(()) } else { Err(Full) }
    }

    /// Queues an entry of 128 bytes for the next [`Ring::enter`]. On mixed rings, no entry has
    /// `u64::MAX` for its `user_data`.
    ///
    /// # Safety
    /// Everything the entry points to stays valid until its last completion was reaped.
    #[inline]
    pub unsafe fn push_big(&mut self, entry: &BigEntry) -> Result<(), BigRefusal> {
        match self.submissions.push_big(entry) {
            true => Ok(()),
            false if self.takes_big() => Err(BigRefusal::Full),
            false => Err(BigRefusal::Small),
        }
    }

    /// The place that the next entry of 128 bytes will have, to be filled there and then queued by [`Ring::publish_big`]; what
    /// it holds before that is of the past. None where there is no room, or the ring is not of [`Kind::Big`]:
    /// [`Ring::push_big`] says which.
    #[inline]
    pub fn next_big(&mut self) -> Option<&mut BigEntry> {
        self.submissions.next_big()
    }

    /// Queues what [`Ring::next_big`] gave, as [`Ring::push_big`] does.
    ///
    /// # Safety
    /// As for [`Ring::push_big`]; there was such a place, all of it was set, and nothing was queued since.
    #[inline]
    pub unsafe fn publish_big(&mut self) {
        self.submissions.publish_big();
    }

    /// Slots queued and not yet taken by the kernel. An entry of 128 bytes on a mixed ring counts
    /// twice.
    #[inline]
    pub fn queued(&self) -> u32 {
        self.submissions.queued()
    }

    /// Whether the kernel wants an enter although nothing is queued: completion work waits, or
    /// completions that found the queue full.
    #[inline]
    pub fn wants_enter(&self) -> bool {
        self.submissions.flags() & (sys::SQ_TASKRUN | sys::SQ_CQ_OVERFLOW) != 0
    }

    /// Whether completions can be reaped without an enter.
    #[inline]
    pub fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Submits what is queued and runs completion work without waiting, if there is either. Says
    /// whether there was: whether a system call was made.
    ///
    /// Where completions are polled for without a thread of the kernel, use [`Ring::enter`]: what is
    /// in flight is a reason of its own.
    #[inline]
    pub fn flush(&mut self) -> io::Result<bool> {
        let queued = self.queued();
        if let Some(emulated) = &mut self.emulated {
            self.at_once = if queued > 0 { 0 } else { self.at_once };
            return emulated.flush(queued);
        }
        let flags = self.submissions.flags();
        let wanted = flags & (sys::SQ_TASKRUN | sys::SQ_CQ_OVERFLOW) != 0;
        if queued == 0 && !wanted {
            return Ok(false);
        }
        if self.setup.sqpoll {
            return self.rouse(queued, Wait::No);
        }
        // Where completion work waits for an enter, that of what ends at once is done by this one.
        let events = wanted || self.setup.defer_taskrun;
        let events = if events { sys::ENTER_GETEVENTS } else { 0 };
        self.call(queued, 0, self.enter_flags | events, None)?;
        Ok(true)
    }

    /// Submits what is queued, runs completion work, and waits as told.
    ///
    /// Where completions are polled for, looks for them once even if it shall not wait. Where a
    /// thread of the kernel submits, makes a system call only to wake it, to wait, or to have
    /// completions flushed that found the queue full.
    ///
    /// An elapsed wait and a signal are no errors. `EBUSY` and `EAGAIN` mean that the kernel is
    /// short of something: reap, then try again.
    #[inline]
    pub fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let queued = self.queued();
        if let Some(emulated) = &mut self.emulated {
            return emulated.enter(1 + mem::take(&mut self.at_once), wait);
        }
        if self.setup.sqpoll {
            return self.rouse(queued, wait).map(drop);
        }
        // With nothing queued the caller enters only to have completion work run.
        let events = wait != Wait::No || queued == 0 || self.wants_enter();
        self.call_waiting(queued, if events { sys::ENTER_GETEVENTS } else { 0 }, wait)
    }

    /// Enters a ring whose entries a thread of the kernel takes, if that must be.
    fn rouse(&mut self, queued: u32, wait: Wait) -> io::Result<bool> {
        let mut flags = 0;
        if queued > 0 && self.submissions.thread_sleeps() {
            flags |= sys::ENTER_SQ_WAKEUP;
        }
        if wait != Wait::No || self.wants_enter() {
            flags |= sys::ENTER_GETEVENTS;
        }
        if flags == 0 {
            return Ok(false);
        }
        self.call_waiting(queued, flags, wait)?;
        Ok(true)
    }

    /// One more of the queued entries completes as it is submitted: to wait is to wait for another completion than
    /// that. Of a ring whose entries a thread of the kernel takes, any completion ends the wait.
    #[inline]
    pub fn completes_at_once(&mut self) {
        self.at_once += u32::from(!self.setup.sqpoll);
    }

    #[inline(always)]
    fn call_waiting(&mut self, queued: u32, flags: u32, wait: Wait) -> io::Result<()> {
        let flags = self.enter_flags | flags;
        let want = if wait == Wait::No { 0 } else { 1 + self.at_once };
        match wait {
            Wait::AtMost(limit) => self.call(queued, want, flags, Some(limit)),
            Wait::No | Wait::Forever => self.call(queued, want, flags, None),
        }
    }

    #[inline]
    fn call(
        &mut self,
        queued: u32,
        want: u32,
        flags: u32,
        limit: Option<Duration>,
    ) -> io::Result<()> {
        let (number, flags) = match self.registered {
            Some(index) => (index as RawFd, flags | sys::ENTER_REGISTERED_RING),
            None => (self.fd.as_raw_fd(), flags),
        };
        let flags = IoringEnterFlags::from_bits_retain(flags);
        // SAFETY: the ring's descriptor, which lives as long, or with that flag its index among this thread's registered
        // rings; the entries were vouched for when they were pushed.
        let taken = unsafe {
            let ring = BorrowedFd::borrow_raw(number);
            match limit {
                None => io_uring_enter(ring, queued, want, flags),
                Some(limit) => enter_until(ring, queued, want, flags, limit),
            }
        };
        match taken {
            Ok(_) | Err(Errno::TIME | Errno::INTR) => {
                self.at_once = 0;
                Ok(())
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Notes how far there are completions now, for [`Ring::next_noted`], and says how many those are at most.
    #[inline]
    pub fn note_completed(&mut self) -> usize {
        self.completions.note_end()
    }

    /// Takes the next of the completions that there were at the last [`Ring::note_completed`]. None if all were taken.
    #[inline]
    pub fn next_noted(&mut self) -> Option<Completion> {
        self.completions.next_noted()
    }

    /// Moves completions into `into` until it is at its capacity or none is left.
    #[inline]
    pub fn reap(&mut self, into: &mut Vec<Completion>) {
        self.completions.take(into);
    }

    /// Makes an empty table of `count` registered files (5.19).
    pub fn register_files(&mut self, count: u32) -> io::Result<()> {
        self.table(sys::REGISTER_FILES2, count)
    }

    /// Puts a descriptor into the table of registered files; -1 empties the place. The kernel
    /// keeps the file open while it is there.
    pub fn update_file(&mut self, index: u32, fd: RawFd) -> io::Result<()> {
        let data = (&raw const fd) as u64;
        // SAFETY: one descriptor, which the kernel reads now.
        unsafe { self.update(sys::REGISTER_FILES_UPDATE2, index, data) }
    }

    /// Makes an empty table of `count` registered buffers (5.19).
    pub fn register_buffers(&mut self, count: u32) -> io::Result<()> {
        self.table(sys::REGISTER_BUFFERS2, count)
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
        // SAFETY: one vector, which the kernel reads now; the memory is the caller's affair.
        unsafe { self.update(sys::REGISTER_BUFFERS_UPDATE, index, (&raw const vector) as u64) }
    }

    /// Lets entries name the group of `buffers` (5.19), until [`Ring::unregister_buffer_ring`].
    ///
    /// # Safety
    /// `buffers` live until then, or until the ring is gone and nothing of it in flight.
    pub unsafe fn register_buffer_ring(&mut self, buffers: &BufferRing) -> io::Result<()> {
        self.is_the_kernels()?;
        buffers.register(self.fd.as_raw_fd())
    }

    /// Takes the group from the ring. Entries in flight that name it find no buffers any more.
    pub fn unregister_buffer_ring(&mut self, buffers: &BufferRing) -> io::Result<()> {
        buffers.unregister(self.fd.as_raw_fd())
    }

    /// Has the kernel add to the eventfd when something completes, or when completion work waits for an enter: unlike the
    /// ring's own descriptor, which nobody is woken by while that work waits ([`RingOptions::pollable`]). Until the
    /// ring is gone; one eventfd per ring (`EBUSY`).
    ///
    /// Of a ring that is emulated, the ring's own descriptor is to be polled instead, which is readable when the eventfd is.
    pub fn register_eventfd(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        if let Some(emulated) = &mut self.emulated {
            return emulated.watch_outside(event);
        }
        let fd = event.as_raw_fd();
        let operation = sys::REGISTER_EVENTFD;
        // SAFETY: one descriptor, which the kernel reads now, and whose file it keeps.
        unsafe { sys::register(self.fd.as_raw_fd(), operation, (&raw const fd).cast(), 1) }?;
        Ok(())
    }

    fn table(&mut self, operation: u32, count: u32) -> io::Result<()> {
        self.is_the_kernels()?;
        let table = Table { count, flags: sys::REGISTER_SPARSE, ..Table::default() };
        let size = mem::size_of::<Table>() as u32;
        // SAFETY: one valid `io_uring_rsrc_register`, whose size is what the call wants.
        unsafe { sys::register(self.fd.as_raw_fd(), operation, (&raw const table).cast(), size) }?;
        Ok(())
    }

    /// Whether there is somebody to register with.
    fn is_the_kernels(&self) -> io::Result<()> {
        match self.emulated {
            None => Ok(()),
            Some(_) => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        }
    }

    /// # Safety
    /// `data` is the address of what `operation` takes.
    unsafe fn update(&mut self, operation: u32, index: u32, data: u64) -> io::Result<()> {
        self.is_the_kernels()?;
        let update = Update { offset: index, data, count: 1, ..Update::default() };
        let size = mem::size_of::<Update>() as u32;
        // SAFETY: one valid `io_uring_rsrc_update2`, whose size is what the call wants.
        unsafe { sys::register(self.fd.as_raw_fd(), operation, (&raw const update).cast(), size) }?;
        Ok(())
    }
}

/// # Safety
/// As for [`io_uring_enter`].
#[cold]
unsafe fn enter_until(
    ring: BorrowedFd<'_>,
    queued: u32,
    want: u32,
    flags: IoringEnterFlags,
    limit: Duration,
) -> rustix::io::Result<u32> {
    let mut timespec = timespec_of(limit);
    let ts = io_uring_ptr::new((&raw mut timespec).cast());
    let argument = io_uring_getevents_arg { ts, ..io_uring_getevents_arg::default() };
    // SAFETY: passed on to the caller; the time lives until the call returns.
    unsafe {
        io_uring_enter_arg(ring, queued, want, flags | IoringEnterFlags::EXT_ARG, Some(&argument))
    }
}

fn timespec_of(limit: Duration) -> Timespec {
    let limit = limit.min(LIMIT_MAX);
    let nanoseconds = i64::from(limit.subsec_nanos());
    Timespec { seconds: limit.as_secs() as i64, nanoseconds }
}

impl AsRawFd for Ring {
    /// The ring's descriptor; see [`RingOptions::pollable`].
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let Some(index) = self.registered else { return };
        let update = Update { offset: index, ..Update::default() };
        let (fd, update) = (self.fd.as_raw_fd(), (&raw const update).cast::<libc::c_void>());
        // Were the index left registered, the thread would hold the ring open for as long as it lives.
        // SAFETY: one valid `io_uring_rsrc_update`, alive until the call returns.
        let _ = unsafe { sys::register(fd, sys::UNREGISTER_RING_FDS, update, 1) };
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Ring").field("setup", &self.setup).finish_non_exhaustive()
    }
}

fn require(parameters: &Parameters, flag: u32, feature: &'static str) -> Result<(), Error> {
    if parameters.features & flag == 0 { Err(Error::Unsupported { feature }) } else { Ok(()) }
}

/// Registers the ring's descriptor with this thread. Merely saves time, so failing is no error.
fn register_ring(fd: RawFd) -> Option<u32> {
    let mut update = Update { offset: u32::MAX, data: fd as u64, ..Update::default() };
    let place = (&raw mut update).cast::<libc::c_void>();
    // SAFETY: one valid, writable `io_uring_rsrc_update`, as the call wants.
    let count = unsafe { sys::register(fd, sys::REGISTER_RING_FDS, place, 1) }.ok()?;
    (count == 1).then_some(update.offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_leave_room_for_the_kernels_clock() {
        let ns = |limit| {
            let time = timespec_of(limit);
            i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
        };
        assert_eq!(ns(Duration::from_nanos(1_500_000_001)), 1_500_000_001);
        assert_eq!(ns(Duration::from_nanos(i64::MAX as u64)), 1 << 62);
        assert_eq!(ns(Duration::MAX), 1 << 62);
    }
}
