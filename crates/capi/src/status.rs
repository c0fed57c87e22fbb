//! Status codes in words, and the version.

use crate::failure::answer;
use crate::volume::write_text;
use nvme::Status;
use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

/// Status code type and status code.
const CODE_MASK: u16 = 0x7ff;

/// Gives the specification's words for a completion's status, or null if it has none that are known here.
#[unsafe(no_mangle)]
pub extern "C" fn nvl_status_words(status: u16) -> *const c_char {
    /// One for each type and code.
    static WORDS: OnceLock<Vec<Option<CString>>> = OnceLock::new();
    let words = WORDS.get_or_init(|| {
        let words = |code| CString::new(Status(code).words()?).ok();
        (0..=CODE_MASK).map(words).collect()
    });
    words[usize::from(status & CODE_MASK)].as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
}

/// Writes a completion's status in words and numbers, "LBA Out of Range (SCT 0x0 SC 0x80)", with a zero at the end,
/// cut off where it is longer than `bytes`. Gives its length without the zero, as snprintf does.
///
/// # Safety
/// `text` is writable for `bytes` bytes, or null if `bytes` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_status_text(status: u16, text: *mut c_char, bytes: usize) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { write_text(&Status(status).to_string(), text, bytes) })
}

/// Gives the library's version, "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn nvl_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
