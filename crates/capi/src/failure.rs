//! What the last call of this thread failed of, in words.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// A call that fails, with its error number and text.
pub(crate) struct Failure {
    errno: c_int,
    text: String,
}

impl Failure {
    pub(crate) fn new(errno: c_int, text: impl Into<String>) -> Failure {
        Failure { errno, text: text.into() }
    }

    /// An argument that makes no sense.
    pub(crate) fn argument(text: impl Into<String>) -> Failure {
        Failure::new(libc::EINVAL, text)
    }
}

/// What a function returns for an outcome; notes the text of a failure.
#[inline]
pub(crate) fn answer(outcome: Result<c_int, Failure>) -> c_int {
    match outcome {
        Ok(value) => value,
        Err(failure) => note(&failure),
    }
}

/// The same for functions that give a larger count.
pub(crate) fn answer_long(outcome: Result<i64, Failure>) -> i64 {
    outcome.unwrap_or_else(|failure| note(&failure).into())
}

#[cold]
fn note(failure: &Failure) -> c_int {
    let text = CString::new(failure.text.replace('\0', "?")).unwrap_or_default();
    LAST.with(|last| last.replace(text));
    -failure.errno
}

/// What the last call of this thread that failed failed of, in one line; never null. It stays until another call
/// of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn nvl_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}
