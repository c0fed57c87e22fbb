//! The functions of libaio 0.3.113, with its versions.
//!
//! No panic leaves them: `extern "C"` functions abort. Errors are returned as `-errno`.

use crate::abi::Event;
use crate::events;
use crate::inside::Inside;
use crate::lifetime::{self, CONTEXTS};
use crate::native;
use crate::polled;
use crate::submit;
use crate::system::{self, Ask, failure};
use crate::thread;
use libc::{c_int, c_long, c_void, timespec};

/// `io_queue_run` calls this with what an event has.
type Callback = unsafe extern "C" fn(usize, usize, c_long, c_long);

/// Makes a context for at least `nr` events.
///
/// # Safety
/// `context` is a valid place for an id, which must be 0.
pub unsafe fn setup(nr: c_int, context: *mut usize) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { lifetime::setup(nr, context as usize) }
}

/// Destroys a context, waiting for what is in flight.
///
/// # Safety
/// The context was made by `io_setup`.
pub unsafe fn destroy(context: usize) -> c_int {
    if polled::is_id(context) {
        return polled::destroy(context);
    }
    match CONTEXTS.find(context) {
        Some(held) => lifetime::destroy(held),
        None => system::io_destroy(context),
    }
}

/// Submits `nr` iocbs; gives back how many were taken.
///
/// # Safety
/// What the iocbs name stays valid until their events.
pub unsafe fn submit(context: usize, nr: c_long, iocbs: *mut *mut c_void) -> c_int {
    let iocbs = iocbs as usize;
    thread::forget_last();
    if polled::is_id(context) {
        // SAFETY: passed on to the caller.
        return unsafe { polled::submit(context, nr, iocbs) };
    }
    // SAFETY: passed on to the caller, in all three.
    unsafe {
        let Some(held) = CONTEXTS.find(context) else {
            return system::io_submit(context, nr, iocbs);
        };
        if held.is_bare()
            && let Some(taken) = native::submit_barely(&held, nr, iocbs)
        {
            return taken;
        }
        match Inside::enter() {
            Some(_inside) => submit::submit(&held, nr, iocbs),
            None => native::submit(&held, nr, iocbs),
        }
    }
}

/// Cancels an iocb, if it can be cancelled.
///
/// # Safety
/// The addresses are those of an iocb and of an event; the kernel checks them.
pub unsafe fn cancel(context: usize, iocb: *mut c_void, event: *mut Event) -> c_int {
    let (iocb, event) = (iocb as usize, event as usize);
    if polled::is_id(context) {
        return failure(libc::EINVAL);
    }
    match CONTEXTS.find(context) {
        Some(held) => lifetime::cancel(&held, iocb, event),
        None => system::io_cancel(context, iocb, event),
    }
}

/// Takes between `min` and `nr` events.
///
/// # Safety
/// `events` has room for `nr`; `timeout` is null or valid.
pub unsafe fn getevents(
    context: usize,
    min: c_long,
    nr: c_long,
    events: *mut Event,
    timeout: *mut timespec,
) -> c_int {
    let (events, timeout) = (events as usize, timeout as usize);
    // SAFETY: passed on to the caller, in all three.
    unsafe {
        if polled::is_id(context) {
            return match polled::take_only(context, min, nr, events) {
                true => 1,
                false => take_otherwise(context, min, nr, events, timeout),
            };
        }
        let Some(held) = CONTEXTS.find(context) else {
            return take_otherwise(context, min, nr, events, timeout);
        };
        let ask = Ask { min, nr, events, timeout, signals: 0, masked: false };
        if held.is_bare()
            && let Some(taken) = events::take_barely(&held, ask)
        {
            return taken;
        }
        match Inside::enter() {
            Some(_inside) => events::take(&held, min, nr, events, timeout),
            None => take_otherwise(context, min, nr, events, timeout),
        }
    }
}

/// The same, with a signal set to wait with.
///
/// # Safety
/// As `io_getevents`; `signals` is null or valid.
pub unsafe fn pgetevents(
    context: usize,
    min: c_long,
    nr: c_long,
    events: *mut Event,
    timeout: *mut timespec,
    signals: *mut c_void,
) -> c_int {
    let (events, timeout, signals) = (events as usize, timeout as usize, signals as usize);
    // SAFETY: passed on to the caller.
    unsafe { take(context, Ask { min, nr, events, timeout, signals, masked: true }) }
}

/// # Safety
/// As `io_getevents`.
#[inline(never)]
unsafe fn take_otherwise(
    context: usize,
    min: c_long,
    nr: c_long,
    events: usize,
    timeout: usize,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { take(context, Ask { min, nr, events, timeout, signals: 0, masked: false }) }
}

/// # Safety
/// As `io_getevents`.
unsafe fn take(context: usize, ask: Ask) -> c_int {
    if polled::is_id(context) {
        // SAFETY: passed on to the caller.
        return unsafe { polled::take(context, ask) };
    }
    // SAFETY: passed on to the caller, in all of them.
    unsafe {
        let Some(held) = CONTEXTS.find(context) else {
            // As libaio: even an id that is none is looked at, unless it is null.
            if context != 0 && native::is_poll_of_empty_ring(context, ask.timeout) {
                return 0;
            }
            return system::io_getevents(context, ask);
        };
        if held.is_bare()
            && let Some(taken) = events::take_barely(&held, ask)
        {
            return taken;
        }
        match Inside::enter() {
            Some(_inside) => events::take_masked(&held, ask),
            None => native::take_nested(&held, ask),
        }
    }
}

/// As `io_setup`, clearing the id first.
///
/// # Safety
/// `context` is a valid place for an id.
pub unsafe fn queue_init(nr: c_int, context: *mut usize) -> c_int {
    if nr <= 0 {
        return failure(libc::EINVAL);
    }
    // SAFETY: passed on to the caller.
    unsafe {
        *context = 0;
        setup(nr, context)
    }
}

/// As `io_destroy`.
///
/// # Safety
/// As `io_destroy`.
pub unsafe fn queue_release(context: usize) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { destroy(context) }
}

/// Takes events without waiting and calls back for each: its `data` is the function.
///
/// # Safety
/// Every iocb submitted has a [`Callback`] as its `data` (`io_set_callback`).
pub unsafe fn queue_run(context: usize) -> c_int {
    let mut none = timespec { tv_sec: 0, tv_nsec: 0 };
    let mut event = Event::default();
    loop {
        // SAFETY: places for one event and of a time.
        let code = unsafe { getevents(context, 0, 1, &raw mut event, &raw mut none) };
        if code != 1 {
            return code;
        }
        // SAFETY: the caller vouches for the function.
        unsafe {
            let callback = std::mem::transmute::<usize, Callback>(event.data as usize);
            callback(context, event.obj as usize, event.res, event.res2);
        }
    }
}

/// As `io_getevents` for no event.
///
/// # Safety
/// As `io_getevents`.
pub unsafe fn queue_wait(context: usize, timeout: *mut timespec) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { getevents(context, 0, 0, std::ptr::null_mut(), timeout) }
}

/// `io_cancel@LIBAIO_0.1`, without a place for the event.
///
/// # Safety
/// As `io_cancel`.
pub unsafe fn cancel_0_1(context: usize, iocb: *mut c_void) -> c_int {
    let mut event = Event::default();
    // SAFETY: passed on to the caller.
    unsafe { cancel(context, iocb, &raw mut event) }
}

/// `io_getevents@LIBAIO_0.1`: for at least one event, not touching the time.
///
/// # Safety
/// As `io_getevents`.
pub unsafe fn getevents_0_1(
    context: usize,
    nr: c_long,
    events: *mut Event,
    timeout: *const timespec,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { getevents(context, 1, nr, events, timeout.cast_mut()) }
}

/// `io_queue_wait@LIBAIO_0.1`.
///
/// # Safety
/// As `io_getevents`.
pub unsafe fn queue_wait_0_1(context: usize, timeout: *const timespec) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { queue_wait(context, timeout.cast_mut()) }
}
