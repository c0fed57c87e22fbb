//! The memory that bare answers are gathered from, and that bare copies are made in.

use std::io;
use std::ptr::NonNull;

/// Anonymous memory with every page touched, in huge pages where the kernel gives them.
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is written by who has it exclusively alone, and it is unmapped when nobody holds it any more.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps and fills `len` bytes. Filled, because untouched pages would all be the one zero page.
    pub fn new(len: usize) -> io::Result<Region> {
        // SAFETY: a new anonymous mapping; no existing memory is named.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping above; advice that is refused changes nothing.
        unsafe { libc::madvise(base, len, libc::MADV_HUGEPAGE) };
        // SAFETY: the mapping above is `len` writable bytes that only we know.
        unsafe { base.cast::<u8>().write_bytes(0x5a, len) };
        let base = NonNull::new(base.cast()).expect("mmap does not give null");
        Ok(Region { base, len })
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// A part of it.
    pub fn slice(&self, start: usize, len: usize) -> &[u8] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: within the mapping, as just checked, which lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(start), len) }
    }

    /// The same, to write to.
    pub fn slice_mut(&mut self, start: usize, len: usize) -> &mut [u8] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: as in `slice`, and nobody else has any of it as long as `self` is borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(start), len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and slices of it have ended with the borrow of `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
