//! Memory that requests read into and write from.

use anyhow::Context;

/// Whole pages, which are there.
pub struct Memory {
    start: *mut u8,
    len: usize,
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
        // A child that is started meanwhile has no use for it, and would be given a copy of each page that the kernel has pinned: a third of
        // a second of an exact guest for 64 MiB, which would count as the child's start.
        // SAFETY: the mapping of above.
        let kept = unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) };
        let memory = Memory { start: start.cast(), len };
        if kept != 0 {
            return Err(std::io::Error::last_os_error()).context("memory for buffers");
        }
        Ok(memory)
    }

    /// The first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our mapping. Whoever has requests in flight that name it reaps all that he has started
        // before it goes, or closes his ring, or has the process end.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
