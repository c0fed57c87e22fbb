//! `io_setup2`.

use super::{
    CONTEXTS, Early, FIXEDBUFS, FIXEDFILES, FLAGS, IOPOLL, Pinned, Polled, SCQRING, SQPOLL,
    SQTHREAD, SQWQ, Submitting, USERIOCB,
};
use crate::abi::{Event, Iocb};
use crate::caller;
use crate::context::{Engine, Free};
use crate::lock::Lock;
use crate::probe::{Access, Files};
use crate::ring::{self, Ring, Setup};
use crate::stat;
use crate::system::failure;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// Contexts hold at most so many requests: the kernel's limit of entries.
const EVENTS_MAX: u32 = 32_768;
/// Buffers that can be registered with a ring.
const BUFFERS_MAX: u32 = 16_384;
/// An idle kernel thread sleeps after that; with `SQPOLL`, after a day.
const IDLE_MS: u32 = 1_000;
const IDLE_NEVER_MS: u32 = 86_400_000;
/// `aio_sq_ring.sq_thread_cpu`: anywhere.
const ANY_CPU: u16 = u16::MAX;

/// Where indices and events begin in the program's rings.
pub(super) const SQ_ARRAY: usize = 64;
pub(super) const CQ_EVENTS: usize = 32;

/// The program's rings of `SCQRING`: addresses, or 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rings {
    /// `struct aio_sq_ring`: head, tail, places, CPU of the thread, flags; indices at 64.
    pub sq: usize,
    /// `struct aio_cq_ring`: head, tail, places; events at 32.
    pub cq: usize,
    /// Their places, as they are at set-up.
    pub places: Places,
}

/// How many indices and events the program's rings hold.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    /// Of `sq`.
    pub sq: u32,
    /// Of `cq`.
    pub cq: u32,
}

/// `io_setup2`.
///
/// # Safety
/// With `USERIOCB` the array, with `FIXEDBUFS` the buffers, with `SCQRING` the rings stay valid until
/// the context is destroyed.
pub unsafe fn setup(nr: u32, flags: u32, iocbs: usize, rings: Rings, place: usize) -> i32 {
    if flags == 0 {
        // SAFETY: passed on to the caller.
        return unsafe { crate::lifetime::setup(nr as i32, place) };
    }
    let sound = check(nr, flags, iocbs, rings).and_then(|()| match caller::read::<usize>(place) {
        Ok(0) => Ok(()),
        Ok(_) => Err(libc::EINVAL),
        Err(_) => Err(libc::EFAULT),
    });
    if let Err(errno) = sound {
        return failure(errno);
    }
    // SAFETY: passed on to the caller.
    let made = unsafe { make(nr, flags, iocbs, rings) };
    let context = match made {
        Ok(context) => context,
        Err(errno) => return failure(errno),
    };
    let id = context.id;
    if CONTEXTS.insert(id, Box::new(context)).is_err() {
        return failure(libc::EAGAIN);
    }
    if caller::write(place, id).is_err() {
        super::destroy(id);
        return failure(libc::EFAULT);
    }
    0
}

fn check(nr: u32, flags: u32, iocbs: usize, rings: Rings) -> Result<(), i32> {
    let has = |flag: u32| flags & flag != 0;
    let wrong = nr == 0
        || nr > EVENTS_MAX
        || flags & !FLAGS != 0
        || (has(USERIOCB) && iocbs == 0)
        || ((has(FIXEDBUFS) || has(FIXEDFILES) || has(SCQRING)) && !has(USERIOCB))
        || (has(FIXEDBUFS) && nr > BUFFERS_MAX)
        || (has(SCQRING) && (rings.sq == 0 || rings.cq == 0))
        || (has(SQPOLL) && !has(SQTHREAD))
        || (has(SQTHREAD) && has(SQWQ));
    if wrong { Err(libc::EINVAL) } else { Ok(()) }
}

/// # Safety
/// As `setup`.
unsafe fn make(nr: u32, flags: u32, iocbs: usize, rings: Rings) -> Result<Polled, i32> {
    let mut setup = Setup {
        entries: nr.max(2),
        completions: (nr + 64).next_power_of_two(),
        ..Setup::default()
    };
    if flags & IOPOLL != 0 {
        setup.flags |= ring::SETUP_IOPOLL;
    }
    if flags & SQTHREAD != 0 {
        setup.flags |= ring::SETUP_SQPOLL;
        setup.thread_idle_ms = if flags & SQPOLL != 0 { IDLE_NEVER_MS } else { IDLE_MS };
        if flags & SCQRING != 0 {
            let cpu = caller::read::<u16>(rings.sq + 12).map_err(|_| libc::EFAULT)?;
            if cpu != ANY_CPU {
                setup.flags |= ring::SETUP_SQ_AFF;
                setup.thread_cpu = u32::from(cpu);
            }
        }
    }
    if flags & USERIOCB != 0 {
        look_at(nr, iocbs)?;
    }
    let mut rings = rings;
    if flags & SCQRING != 0 {
        rings.places = look_at_rings(rings)?;
    }
    let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EINVAL);
    let (ring, submission, completion) = Ring::new(setup).map_err(errno)?;
    let pinned = pin(&ring, nr, flags, iocbs)?;
    let id = new_id()?;
    Ok(Polled {
        id,
        flags,
        nr,
        iocbs,
        engine: Engine::new(ring, nr),
        pinned,
        rings,
        submitting: Lock::new(Submitting {
            queue: submission,
            files: Files::new(),
            requests: Free::default(),
            early: Early::new(),
        }),
        reaping: Lock::new(completion),
        outstanding: AtomicU32::new(0),
        dead: AtomicBool::new(false),
        record: stat::open(id, nr, true),
    })
}

/// Whether the array of iocbs is there: submitting does not ask any more.
fn look_at(nr: u32, iocbs: usize) -> Result<(), i32> {
    let last = nr as usize - 1;
    // One on each page, and the last.
    for index in (0..last).step_by(caller::PAGE / size_of::<Iocb>()).chain([last]) {
        let place = iocbs.checked_add(index * size_of::<Iocb>()).ok_or(libc::EFAULT)?;
        caller::read::<Iocb>(place).map_err(|_| libc::EFAULT)?;
    }
    Ok(())
}

/// Whether the program's rings are there, and how large they are: `io_ring_enter` does not ask any more.
fn look_at_rings(rings: Rings) -> Result<Places, i32> {
    if !(rings.sq | rings.cq).is_multiple_of(align_of::<u32>()) {
        return Err(libc::EINVAL);
    }
    let places = |ring: usize| {
        let at = ring.checked_add(8).ok_or(libc::EFAULT)?;
        match caller::read::<u32>(at) {
            // Else places would not go on in turn where the counts begin anew.
            Ok(places) if !places.is_power_of_two() => Err(libc::EINVAL),
            Ok(places) => Ok(places),
            Err(_) => Err(libc::EFAULT),
        }
    };
    let places = Places { sq: places(rings.sq)?, cq: places(rings.cq)? };
    // The library writes one head, one tail and the events.
    for head_or_tail in [rings.sq, rings.cq + 4] {
        let value = caller::read::<u32>(head_or_tail).map_err(|_| libc::EFAULT)?;
        caller::write(head_or_tail, value).map_err(|_| libc::EFAULT)?;
    }
    let indices = (rings.sq, SQ_ARRAY + places.sq as usize * size_of::<u32>());
    let events = (rings.cq, CQ_EVENTS + places.cq as usize * size_of::<Event>());
    for (ring, len, written) in [(indices.0, indices.1, false), (events.0, events.1, true)] {
        for at in (0..len).step_by(caller::PAGE).chain([len - 1]) {
            let place = ring.checked_add(at).ok_or(libc::EFAULT)?;
            let value = caller::read::<u8>(place).map_err(|_| libc::EFAULT)?;
            if written {
                caller::write(place, value).map_err(|_| libc::EFAULT)?;
            }
        }
    }
    Ok(places)
}

/// Pins the buffers and files of all iocbs, as they are now.
fn pin(ring: &Ring, nr: u32, flags: u32, iocbs: usize) -> Result<Box<[Pinned]>, i32> {
    if flags & (FIXEDBUFS | FIXEDFILES) == 0 {
        return Ok(Box::new([]));
    }
    let mut pinned = Vec::with_capacity(nr as usize);
    let mut vectors = Vec::with_capacity(nr as usize);
    let mut files = Vec::with_capacity(nr as usize);
    for index in 0..nr as usize {
        let place = iocbs.checked_add(index * size_of::<Iocb>()).ok_or(libc::EFAULT)?;
        let iocb = caller::read::<Iocb>(place).map_err(|_| libc::EFAULT)?;
        let end = iocb.buf.checked_add(iocb.nbytes).ok_or(libc::EFAULT)?;
        let access = Access::of(iocb.fildes);
        pinned.push(Pinned { buf: iocb.buf, end, fd: iocb.fildes, access });
        let base = if iocb.nbytes == 0 { 0 } else { iocb.buf };
        vectors.push(libc::iovec { iov_base: base as *mut _, iov_len: iocb.nbytes as usize });
        files.push(iocb.fildes);
    }
    if flags & FIXEDBUFS != 0 {
        let address = vectors.as_ptr() as usize;
        // SAFETY: `nr` vectors, which the kernel checks; it copies them.
        let code = unsafe { ring.register(ring::REGISTER_BUFFERS, address, nr) };
        if code < 0 {
            return Err(-code);
        }
    }
    if flags & FIXEDFILES != 0 {
        let address = files.as_ptr() as usize;
        // SAFETY: `nr` descriptors, which the kernel checks; it copies them.
        let code = unsafe { ring.register(ring::REGISTER_FILES, address, nr) };
        if code < 0 {
            return Err(-code);
        }
    }
    Ok(pinned.into())
}

const ID_BYTES: usize = 4096;

/// An id that is no other's: a page of zeroes, so that whoever looks for a kernel's ring there finds
/// none, plus one.
fn new_id() -> Result<usize, i32> {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), ID_BYTES, libc::PROT_READ, flags, -1, 0)
    };
    if page == libc::MAP_FAILED { Err(libc::ENOMEM) } else { Ok(page as usize + 1) }
}

/// Gives the id's page back.
pub(super) fn release_id(id: usize) {
    // SAFETY: mapped by `new_id`, and nobody reads it but as a context.
    unsafe { libc::munmap((id - 1) as *mut _, ID_BYTES) };
}
