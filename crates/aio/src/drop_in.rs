//! The functions of libaio 0.3.113, with its versions.
//!
//! No panic leaves them: `extern "C"` functions abort. Errors are returned as `-errno`.

use crate::abi::Event;
use crate::events;
use crate::lifetime::{self, CONTEXTS, Inside};
use crate::polled;
use crate::submit;
use crate::system::{self, Ask, failure};
use libc::{c_int, c_long, c_void, timespec};

/// `io_queue_run` calls this with what an event has.
type Callback = unsafe extern "C" fn(usize, usize, c_long, c_long);

// The versions of libaio.map. A version script alone does not do: rustc's own, which lists the same
// names without a version, would win. With `remove` the names in Rust are not exported.
std::arch::global_asm!(
    ".symver nvlane_aio_setup,io_setup@@LIBAIO_0.4,remove",
    ".symver nvlane_aio_destroy,io_destroy@@LIBAIO_0.4,remove",
    ".symver nvlane_aio_submit,io_submit@@LIBAIO_0.1,remove",
    ".symver nvlane_aio_cancel,io_cancel@@LIBAIO_0.4,remove",
    ".symver nvlane_aio_getevents,io_getevents@@LIBAIO_0.4,remove",
    ".symver nvlane_aio_pgetevents,io_pgetevents@@LIBAIO_0.5,remove",
    ".symver nvlane_aio_queue_init,io_queue_init@@LIBAIO_0.1,remove",
    ".symver nvlane_aio_queue_release,io_queue_release@@LIBAIO_0.1,remove",
    ".symver nvlane_aio_queue_run,io_queue_run@@LIBAIO_0.1,remove",
    ".symver nvlane_aio_queue_wait,io_queue_wait@@LIBAIO_0.4,remove",
    ".symver nvlane_aio_cancel_0_1,io_cancel@LIBAIO_0.1,remove",
    ".symver nvlane_aio_getevents_0_1,io_getevents@LIBAIO_0.1,remove",
    ".symver nvlane_aio_queue_wait_0_1,io_queue_wait@LIBAIO_0.1,remove",
);

/// Makes a context for at least `nr` events.
///
/// # Safety
/// `context` is a valid place for an id, which must be 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_setup(nr: c_int, context: *mut usize) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { lifetime::setup(nr, context as usize) }
}

/// Destroys a context, waiting for what is in flight.
///
/// # Safety
/// The context was made by `io_setup`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_destroy(context: usize) -> c_int {
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
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_submit(
    context: usize,
    nr: c_long,
    iocbs: *mut *mut c_void,
) -> c_int {
    let iocbs = iocbs as usize;
    if polled::is_id(context) {
        // SAFETY: passed on to the caller.
        return unsafe { polled::submit(context, nr, iocbs) };
    }
    // SAFETY: passed on to the caller, in all three.
    unsafe {
        match (CONTEXTS.find(context), Inside::enter()) {
            (Some(held), Some(_inside)) => submit::submit(&held, nr, iocbs),
            (Some(held), None) => submit::natively(&held, nr, iocbs),
            (None, _) => system::io_submit(context, nr, iocbs),
        }
    }
}

/// Cancels an iocb, if it can be cancelled.
///
/// # Safety
/// The addresses are those of an iocb and of an event; the kernel checks them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_cancel(
    context: usize,
    iocb: *mut c_void,
    event: *mut Event,
) -> c_int {
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
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_getevents(
    context: usize,
    min: c_long,
    nr: c_long,
    events: *mut Event,
    timeout: *mut timespec,
) -> c_int {
    let (events, timeout) = (events as usize, timeout as usize);
    // SAFETY: passed on to the caller.
    unsafe { take(context, Ask { min, nr, events, timeout, signals: 0, masked: false }) }
}

/// The same, with a signal set to wait with.
///
/// # Safety
/// As `io_getevents`; `signals` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_pgetevents(
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
#[inline]
unsafe fn take(context: usize, ask: Ask) -> c_int {
    if polled::is_id(context) {
        // SAFETY: passed on to the caller.
        return unsafe { polled::take(context, ask) };
    }
    // SAFETY: passed on to the caller, in all of them.
    unsafe {
        match (CONTEXTS.find(context), Inside::enter()) {
            (Some(held), Some(_inside)) => events::take(&held, ask),
            (Some(_), None) => system::io_getevents(context, Ask { min: 0, ..ask }),
            // As libaio: even an id that is none is looked at, unless it is null.
            (None, _) if context != 0 && events::is_poll_of_empty_ring(context, ask.timeout) => 0,
            (None, _) => system::io_getevents(context, ask),
        }
    }
}

/// As `io_setup`, clearing the id first.
///
/// # Safety
/// `context` is a valid place for an id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_queue_init(nr: c_int, context: *mut usize) -> c_int {
    if nr <= 0 {
        return failure(libc::EINVAL);
    }
    // SAFETY: passed on to the caller.
    unsafe {
        *context = 0;
        nvlane_aio_setup(nr, context)
    }
}

/// As `io_destroy`.
///
/// # Safety
/// As `io_destroy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_queue_release(context: usize) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { nvlane_aio_destroy(context) }
}

/// Takes events without waiting and calls back for each: its `data` is the function.
///
/// # Safety
/// Every iocb submitted has a [`Callback`] as its `data` (`io_set_callback`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_queue_run(context: usize) -> c_int {
    let mut none = timespec { tv_sec: 0, tv_nsec: 0 };
    let mut event = Event::default();
    loop {
        // SAFETY: places for one event and of a time.
        let code = unsafe { nvlane_aio_getevents(context, 0, 1, &raw mut event, &raw mut none) };
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
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_queue_wait(context: usize, timeout: *mut timespec) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { nvlane_aio_getevents(context, 0, 0, std::ptr::null_mut(), timeout) }
}

/// `io_cancel@LIBAIO_0.1`, without a place for the event.
///
/// # Safety
/// As `io_cancel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_cancel_0_1(context: usize, iocb: *mut c_void) -> c_int {
    let mut event = Event::default();
    // SAFETY: passed on to the caller.
    unsafe { nvlane_aio_cancel(context, iocb, &raw mut event) }
}

/// `io_getevents@LIBAIO_0.1`: for at least one event, not touching the time.
///
/// # Safety
/// As `io_getevents`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_getevents_0_1(
    context: usize,
    nr: c_long,
    events: *mut Event,
    timeout: *const timespec,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { nvlane_aio_getevents(context, 1, nr, events, timeout.cast_mut()) }
}

/// `io_queue_wait@LIBAIO_0.1`.
///
/// # Safety
/// As `io_getevents`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_aio_queue_wait_0_1(
    context: usize,
    timeout: *const timespec,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { nvlane_aio_queue_wait(context, timeout.cast_mut()) }
}
