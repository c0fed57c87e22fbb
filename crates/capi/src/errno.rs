//! Errors as error numbers.

use crate::failure::Failure;
use namespace::file::OpenError;
use std::error::Error as StdError;
use std::ffi::c_int;
use std::io;
use volume::Error;
use volume::session::{PollError, SessionError};

/// Why a session could not be made.
pub(crate) fn of_session(error: &SessionError) -> Failure {
    let errno = match error {
        SessionError::Depth(_) => libc::EINVAL,
        SessionError::Reactor(reactor::Error::Ring(uring::Error::Unsupported { .. })) => {
            libc::ENOSYS
        }
        SessionError::Reactor(reactor::Error::Ring(error)) => error.errno().unwrap_or(libc::EIO),
        SessionError::Reactor(error) => below(error).unwrap_or(libc::EIO),
    };
    Failure::new(errno, error.to_string())
}

/// Why nobody can sleep on a session's descriptor.
pub(crate) fn of_poll(error: &PollError) -> Failure {
    let errno = match error {
        PollError::PollsAlways | PollError::Polls => libc::EOPNOTSUPP,
        PollError::Eventfd(source) => source.raw_os_error().unwrap_or(libc::EIO),
    };
    Failure::new(errno, error.to_string())
}

/// Why a volume could not be opened.
pub(crate) fn of_volume(error: &Error) -> Failure {
    let errno = match error {
        Error::File(error) => of_file(error),
        Error::Remote(_) => below(error).unwrap_or(libc::EHOSTUNREACH),
        error => below(error).unwrap_or(libc::EINVAL),
    };
    Failure::new(errno, error.to_string())
}

fn of_file(error: &OpenError) -> c_int {
    match error {
        OpenError::Missing { .. } | OpenError::MissingDirectory { .. } => libc::ENOENT,
        OpenError::Denied { .. } => libc::EACCES,
        OpenError::ReadOnlyFileSystem { .. } => libc::EROFS,
        OpenError::Busy { .. } | OpenError::DeviceBusy { .. } => libc::EBUSY,
        error => below(error).unwrap_or(libc::EINVAL),
    }
}

/// What the kernel said, if that is at the bottom of it.
fn below(error: &(dyn StdError + 'static)) -> Option<c_int> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(errno) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(errno);
        }
        cause = error.source();
    }
    None
}
