//! Status codes in words, and the version.

use crate::failure::answer;
use crate::volume::write_text;
use nvme::Status;
use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int};
use std::sync::{Mutex, OnceLock, PoisonError};

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

/// The same after I/O command `opcode`: numbers of statuses that are specific to commands mean something else after
/// each.
#[unsafe(no_mangle)]
pub extern "C" fn nvl_io_status_words(opcode: u8, status: u16) -> *const c_char {
    /// Of those that [`nvl_status_words`] has other words for, or none.
    static WORDS: Mutex<BTreeMap<&'static str, CString>> = Mutex::new(BTreeMap::new());
    let Some(words) = Status(status).io_words(opcode) else { return std::ptr::null() };
    if Status(status).words() == Some(words) {
        return nvl_status_words(status);
    }
    let mut known = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    let text = known.entry(words).or_insert_with(|| CString::new(words).unwrap_or_default());
    // It stays where it is, whatever becomes of the map: nothing is removed.
    text.as_ptr()
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

/// The same after I/O command `opcode`, "Command Size Limit Exceeded (SCT 0x1 SC 0x83)".
///
/// # Safety
/// `text` is writable for `bytes` bytes, or null if `bytes` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvl_io_status_text(
    opcode: u8,
    status: u16,
    text: *mut c_char,
    bytes: usize,
) -> c_int {
    // SAFETY: as the caller promised.
    answer(unsafe { write_text(&Status(status).io_text(opcode).to_string(), text, bytes) })
}

/// Gives the library's version, "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn nvl_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
