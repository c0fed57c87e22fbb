//! Reading and writing a file descriptor beside the reactor.

use namespace::Data;
use reactor::{Complete, Reactor};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::rc::Rc;

/// Bytes of a request's buffer, for one call on another thread.
struct Bytes {
    pointer: *mut u8,
    len: usize,
}

// SAFETY: whoever makes one keeps the buffer, and leaves it alone, until the call has ended.
unsafe impl Send for Bytes {}

/// The calling process's standard input or output, or a file that is kept open until it exits.
pub type Descriptor = BorrowedFd<'static>;

/// Writes `data[from..to]`, all of it; `sink` is told 0 or `-errno`.
///
/// # Safety
/// `data` is kept, and its bytes are left alone, until `sink` was told.
pub unsafe fn write(
    reactor: &Reactor,
    descriptor: Descriptor,
    data: &Data,
    range: std::ops::Range<usize>,
    sink: Rc<dyn Complete>,
    token: u64,
) {
    assert!(range.start <= range.end && range.end <= data.len());
    // SAFETY: the range lies within the buffer.
    let pointer = unsafe { data.as_ptr().add(range.start) }.cast_mut();
    let bytes = Bytes { pointer, len: range.len() };
    let work = move || {
        // The block has the closure take `bytes` whole: its pointer alone may not change threads.
        let Bytes { pointer, len } = { bytes };
        // SAFETY: the caller keeps the buffer until the call has ended, and nobody writes to it.
        let mut rest = unsafe { std::slice::from_raw_parts(pointer.cast_const(), len) };
        while !rest.is_empty() {
            match rustix::io::write(descriptor, rest) {
                Ok(0) => return -Errno::IO.raw_os_error(),
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(error) => return -error.raw_os_error(),
            }
        }
        0
    };
    reactor.blocking(Box::new(work), sink, token);
}

/// Reads what there is into `data[from..]`; `sink` is told the count, 0 at the end, or `-errno`.
///
/// # Safety
/// `data` is kept, and its bytes are left alone, until `sink` was told.
pub unsafe fn read(
    reactor: &Reactor,
    descriptor: Descriptor,
    data: &mut Data,
    from: usize,
    sink: Rc<dyn Complete>,
    token: u64,
) {
    assert!(from <= data.len());
    let len = data.len() - from;
    // SAFETY: the offset lies within the buffer.
    let pointer = unsafe { data.as_ptr().add(from) }.cast_mut();
    let bytes = Bytes { pointer, len };
    let work = move || {
        // The block has the closure take `bytes` whole: its pointer alone may not change threads.
        let Bytes { pointer, len } = { bytes };
        // SAFETY: the caller keeps the buffer until the call has ended, and nobody else uses it.
        let room = unsafe { std::slice::from_raw_parts_mut(pointer, len) };
        loop {
            match rustix::io::read(descriptor, &mut *room) {
                Ok(count) => return count as i32,
                Err(Errno::INTR) => {}
                Err(error) => return -error.raw_os_error(),
            }
        }
    };
    reactor.blocking(Box::new(work), sink, token);
}
