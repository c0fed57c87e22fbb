//! The shared library `libaio.so.1`: the functions of the crate `aio` under libaio's names and versions.
//!
//! ```text
//!   io_submit@@LIBAIO_0.1, ...   ──>  aio::drop_in
//!   io_setup2@@NVLANE_AIO_1, ... ──>  aio::extended
//! ```
//!
//! It is a crate of its own because a symbol gets its version in the object that defines it: a program that
//! links `aio` would have those versions to define too. The build makes `libnvlane_aio.so`, whose name for
//! programs (SONAME) is `libaio.so.1`.
//!
//! What it does not do: anything but pass calls on.

use aio::abi::Event;
use aio::{drop_in, extended};
use libc::{c_int, c_long, c_void, timespec};

/// Defines each function, and gives it its name and version. A version script alone does not do: rustc's own,
/// which lists the same names without a version, would win. With `remove` the names in Rust are not exported.
macro_rules! export {
    ($($name:ident as $version:literal: $path:path, ($($argument:ident: $kind:ty),*);)*) => {
        std::arch::global_asm!(
            $(concat!(".symver ", stringify!($name), ",", $version, ",remove"),)*
        );
        $(
            #[doc = concat!("`", $version, "`")]
            ///
            /// # Safety
            /// As the function that it calls.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                // SAFETY: passed on to the caller.
                unsafe { $path($($argument),*) }
            }
        )*
    };
}

export! {
    nvlane_aio_setup as "io_setup@@LIBAIO_0.4": drop_in::setup, (nr: c_int, context: *mut usize);
    nvlane_aio_destroy as "io_destroy@@LIBAIO_0.4": drop_in::destroy, (context: usize);
    nvlane_aio_submit as "io_submit@@LIBAIO_0.1": drop_in::submit,
        (context: usize, nr: c_long, iocbs: *mut *mut c_void);
    nvlane_aio_cancel as "io_cancel@@LIBAIO_0.4": drop_in::cancel,
        (context: usize, iocb: *mut c_void, event: *mut Event);
    nvlane_aio_getevents as "io_getevents@@LIBAIO_0.4": drop_in::getevents,
        (context: usize, min: c_long, nr: c_long, events: *mut Event, timeout: *mut timespec);
    nvlane_aio_pgetevents as "io_pgetevents@@LIBAIO_0.5": drop_in::pgetevents,
        (context: usize, min: c_long, nr: c_long, events: *mut Event, timeout: *mut timespec, signals: *mut c_void);
    nvlane_aio_queue_init as "io_queue_init@@LIBAIO_0.1": drop_in::queue_init,
        (nr: c_int, context: *mut usize);
    nvlane_aio_queue_release as "io_queue_release@@LIBAIO_0.1": drop_in::queue_release, (context: usize);
    nvlane_aio_queue_run as "io_queue_run@@LIBAIO_0.1": drop_in::queue_run, (context: usize);
    nvlane_aio_queue_wait as "io_queue_wait@@LIBAIO_0.4": drop_in::queue_wait,
        (context: usize, timeout: *mut timespec);
    nvlane_aio_cancel_0_1 as "io_cancel@LIBAIO_0.1": drop_in::cancel_0_1,
        (context: usize, iocb: *mut c_void);
    nvlane_aio_getevents_0_1 as "io_getevents@LIBAIO_0.1": drop_in::getevents_0_1,
        (context: usize, nr: c_long, events: *mut Event, timeout: *const timespec);
    nvlane_aio_queue_wait_0_1 as "io_queue_wait@LIBAIO_0.1": drop_in::queue_wait_0_1,
        (context: usize, timeout: *const timespec);
    nvlane_aio_setup2 as "io_setup2@@NVLANE_AIO_1": extended::setup2,
        (nr: u32, flags: u32, iocbs: *mut c_void, sq_ring: *mut c_void, cq_ring: *mut c_void, context: *mut usize);
    nvlane_aio_ring_enter as "io_ring_enter@@NVLANE_AIO_1": extended::ring_enter,
        (context: usize, to_submit: u32, min: u32, flags: u32);
}
