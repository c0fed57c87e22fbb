//! Memory that requests read into and write from.

use anyhow::Context;

/// Whole pages, which are there.
pub struct Memory {
    /// The first byte.
    pub start: *mut u8,
    /// How many.
    pub len: usize,
}

impl Memory {
    /// So many bytes of zeroes.
    pub fn new(len: usize) -> anyhow::Result<Memory> {
        // SAFETY: a new private mapping.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).context("no memory for buffers");
        }
        Ok(Memory { start: start.cast(), len })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our mapping. Whoever has requests in flight that name it reaps all that he has started
        // before it goes, or closes his ring, or has the process end.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
