//! Memory of a session's pool.

use crate::failure::{Failure, answer};
use crate::handle::{self, Handle};
use crate::session::nvl_session;
use crate::submission::Entries;
use reactor::Buffer;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::rc::{Rc, Weak};
use volume::session::Session;

/// Bytes of the largest buffer of nvl_buffer_new().
pub const NVL_BUFFER_BYTES_MAX: u32 = 1048576;

const _: () = assert!(NVL_BUFFER_BYTES_MAX as usize == Session::BUFFER_BYTES_MAX);

/// Memory that the kernel has registered for the session's ring, where it allows that.
pub struct nvl_buffer(());

/// Kept by the handle and by each command in flight that uses it.
pub(crate) struct Memory {
    /// The start of `buffer`'s bytes: commands write to them, so nobody makes references to them.
    pub(crate) start: *mut u8,
    buffer: Buffer,
    /// Those of the session whose ring knows the buffer.
    entries: Weak<Entries>,
    /// Commands in flight.
    pub(crate) users: Cell<u32>,
}

impl Memory {
    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    pub(crate) fn fixed_index(&self) -> Option<u16> {
        self.buffer.fixed_index()
    }

    /// The same for a session of those entries: another one's ring has something else in that place, or nothing.
    pub(crate) fn fixed_index_in(&self, entries: &Rc<Entries>) -> Option<u16> {
        if ptr::eq(self.entries.as_ptr(), Rc::as_ptr(entries)) { self.fixed_index() } else { None }
    }
}

impl Handle for nvl_buffer {
    type State = Rc<Memory>;
    const KIND: u64 = 0x6e76_6c5f_6275_6666;
    const NAME: &'static str = "a buffer";
}

/// Makes a buffer of `bytes` bytes, at most NVL_BUFFER_BYTES_MAX, aligned to 4096 and filled with zeroes.
///
/// Errors: -EINVAL for no length or too much; -ENOBUFS if the session's pool is used up.
///
/// # Safety
/// `session` is null or a session, not freed; `buffer` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_buffer_new(
    session: *mut nvl_session,
    bytes: usize,
    buffer: *mut *mut nvl_buffer,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { new(session, bytes, buffer) })
}

/// # Safety
/// As for [`nvl_buffer_new`].
unsafe fn new(
    session: *mut nvl_session,
    bytes: usize,
    out: *mut *mut nvl_buffer,
) -> Result<c_int, Failure> {
    // SAFETY: as the caller promised.
    let (session, ()) = unsafe { (handle::of(session)?, handle::place(out)?) };
    if !(1..=NVL_BUFFER_BYTES_MAX as usize).contains(&bytes) {
        return Err(Failure::argument(format!(
            "a buffer has 1 to {} bytes, not {bytes}",
            NVL_BUFFER_BYTES_MAX
        )));
    }
    let Some(mut buffer) = session.session.allocate(bytes) else {
        return Err(Failure::new(
            libc::ENOBUFS,
            "the session's pool has no room: free buffers, or give nvl_config.buffer_bytes",
        ));
    };
    buffer.as_mut_slice().fill(0);
    let memory = Memory {
        start: buffer.as_mut_ptr(),
        buffer,
        entries: Rc::downgrade(&session.entries),
        users: Cell::new(0),
    };
    // SAFETY: as the caller promised.
    Ok(unsafe { handle::give(Rc::new(memory), out) })
}

/// Frees a buffer.
///
/// Errors: -EBUSY while a command that uses it is in flight, or waits to be reaped.
///
/// # Safety
/// `buffer` is null or a buffer, not freed; it is not used again if this returns 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_buffer_free(buffer: *mut nvl_buffer) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(buffer) }.and_then(|held| {
        if held.users.get() > 0 {
            return Err(Failure::new(libc::EBUSY, "a command that uses the buffer is in flight"));
        }
        // SAFETY: as the caller promised.
        drop(unsafe { handle::take(buffer) });
        Ok(0)
    }))
}

/// Gives the buffer's memory; null if it is no buffer of this thread's.
///
/// # Safety
/// `buffer` is null or a buffer, not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_buffer_data(buffer: *mut nvl_buffer) -> *mut c_void {
    // SAFETY: as the caller promised.
    match unsafe { handle::of(buffer) } {
        Ok(buffer) => buffer.start.cast(),
        Err(failure) => {
            answer(Err(failure));
            std::ptr::null_mut()
        }
    }
}

/// Gives the buffer's length in bytes; 0 if it is no buffer of this thread's.
///
/// # Safety
/// `buffer` is null or a buffer, not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_buffer_len(buffer: *mut nvl_buffer) -> usize {
    // SAFETY: as the caller promised.
    match unsafe { handle::of(buffer) } {
        Ok(buffer) => buffer.len(),
        Err(failure) => {
            answer(Err(failure));
            0
        }
    }
}

/// Gives 1 if the kernel has registered the buffer, 0 if it refused to (RLIMIT_MEMLOCK): it works all the same.
///
/// # Safety
/// `buffer` is null or a buffer, not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_buffer_is_fixed(buffer: *mut nvl_buffer) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { handle::of(buffer) }.map(|buffer| buffer.fixed_index().is_some().into()))
}
