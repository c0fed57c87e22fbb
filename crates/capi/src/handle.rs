//! Handles as C has them: pointers that are checked before they are used.

use crate::failure::Failure;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a pointer of C points to. C knows its name only.
#[repr(C)]
struct Stamped<S> {
    /// Tells it from other kinds of handles. The first field, so that it can be looked at whatever the kind is.
    kind: u64,
    /// The thread that made it.
    thread: u64,
    state: S,
}

/// A kind of handle: the name that C has for it.
pub(crate) trait Handle {
    /// What is behind it.
    type State;
    /// Tells it from other kinds.
    const KIND: u64;
    /// What it is called in errors.
    const NAME: &'static str;
}

/// A number of this thread that no other has had.
#[inline]
fn this_thread() -> u64 {
    thread_local! {
        static THREAD: Cell<u64> = const { Cell::new(0) };
    }
    static NEXT: AtomicU64 = AtomicU64::new(1);
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        thread.get()
    })
}

/// What is behind a pointer from C, if it is a handle, and of this thread.
///
/// # Safety
/// `pointer` is null, or points to a handle of this library that was not freed.
#[inline]
pub(crate) unsafe fn of<'a, H: Handle>(pointer: *const H) -> Result<&'a H::State, Failure> {
    // SAFETY: as the caller promised.
    unsafe { check(pointer) }?;
    // SAFETY: a handle of this kind, made by `give`; only its own thread comes here, one call at a time.
    Ok(unsafe { &(*pointer.cast::<Stamped<H::State>>()).state })
}

/// Takes back what was given away by [`give`].
///
/// # Safety
/// As for [`of`]; the pointer is not used again if this succeeds.
pub(crate) unsafe fn take<H: Handle>(pointer: *mut H) -> Result<H::State, Failure> {
    // SAFETY: as the caller promised.
    unsafe { check(pointer) }?;
    // SAFETY: it was made by `give` from a box, and is taken back once.
    let stamped = unsafe { Box::from_raw(pointer.cast::<Stamped<H::State>>()) };
    Ok(stamped.state)
}

/// # Safety
/// As for [`of`].
#[inline]
unsafe fn check<H: Handle>(pointer: *const H) -> Result<(), Failure> {
    let pointer = pointer.cast::<Stamped<()>>();
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Failure::argument(format!("{} is null or no pointer to one", H::NAME)));
    }
    // SAFETY: whatever kind of handle it is, it begins with these, which never change.
    let (kind, thread) = unsafe { ((*pointer).kind, (*pointer).thread) };
    if kind != H::KIND {
        return Err(Failure::argument(format!("this is not {}", H::NAME)));
    }
    if thread != this_thread() {
        return Err(Failure::new(
            libc::EPERM,
            format!("{} belongs to another thread, the one that made its session", H::NAME),
        ));
    }
    Ok(())
}

/// Hands a new handle to C.
///
/// # Safety
/// `out` is writable: see [`place`].
pub(crate) unsafe fn give<H: Handle>(state: H::State, out: *mut *mut H) -> c_int {
    let stamped = Stamped { kind: H::KIND, thread: this_thread(), state };
    // SAFETY: as the caller promised.
    unsafe { out.write(Box::into_raw(Box::new(stamped)).cast()) };
    0
}

/// Whether there is a place for a handle; it is null until there is one.
///
/// # Safety
/// `out` is null, or writable.
pub(crate) unsafe fn place<H: Handle>(out: *mut *mut H) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::argument(format!("the place for {} is null", H::NAME)));
    }
    // SAFETY: as the caller promised.
    unsafe { out.write(std::ptr::null_mut()) };
    Ok(())
}
