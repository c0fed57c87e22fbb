//! The two functions that libaio does not have; include/nvlane_aio.h declares them as
//! `io_setup2` and `io_ring_enter` (see the versions in `drop_in`).

use crate::polled::{self, Places, Rings};
use libc::{c_int, c_void};

/// Makes a context with the given `IOCTX_FLAG_*`; see nvlane_aio(3).
///
/// # Safety
/// The array of iocbs, their buffers and the rings stay valid until the context is destroyed, where
/// the flags say that they are used.
pub unsafe fn setup2(
    nr: u32,
    flags: u32,
    iocbs: *mut c_void,
    sq_ring: *mut c_void,
    cq_ring: *mut c_void,
    context: *mut usize,
) -> c_int {
    let (sq, cq, places) = (sq_ring as usize, cq_ring as usize, Places::default());
    let rings = Rings { sq, cq, places };
    // SAFETY: passed on to the caller.
    unsafe { polled::setup(nr, flags, iocbs as usize, rings, context as usize) }
}

/// Submits from a context's ring, and takes completions to the other.
///
/// # Safety
/// What the iocbs name stays valid until their events.
pub unsafe fn ring_enter(context: usize, to_submit: u32, min: u32, flags: u32) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { polled::enter_rings(context, to_submit, min, flags) }
}
