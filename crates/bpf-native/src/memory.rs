//! Memory for code: written once, then run and never written again.
//!
//! The bytes are in a file without a name that is sealed before it is mapped. So no address is ever both written to and
//! run, nor is memory that was written to made runnable, which hardened services may not do (`MemoryDenyWriteExecute=`).

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Write};
use std::ptr::{self, NonNull};

/// Code that may be run.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: nobody writes to it, and it goes with its only owner.
unsafe impl Send for Memory {}
// SAFETY: likewise.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory with `code` in it.
    ///
    /// # Errors
    /// The system's: it may allow no code but that of programs' files.
    pub fn new(code: &[u8]) -> io::Result<Memory> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels that can forbid to run such files want to be told that this one is (6.3 and newer).
        let file = memfd_create(c"nvlane-bpf", flags | MemfdFlags::EXEC)
            .or_else(|_| memfd_create(c"nvlane-bpf", flags))?;
        let mut file = File::from(file);
        file.write_all(code)?;
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals)?;
        let protection = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: the place is the kernel's to choose.
        let start =
            unsafe { mmap(ptr::null_mut(), code.len(), protection, MapFlags::PRIVATE, &file, 0)? };
        let start = NonNull::new(start).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Memory { start, len: code.len() })
    }

    /// Where byte `offset` is.
    ///
    /// # Panics
    /// If it is beyond the end.
    pub fn at(&self, offset: usize) -> *const c_void {
        assert!(offset < self.len, "there is code");
        // SAFETY: within the mapping.
        unsafe { self.start.as_ptr().add(offset).cast_const() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our mapping, which nobody runs: they would hold it.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.len) };
        debug_assert!(unmapped.is_ok(), "it was mapped");
    }
}
