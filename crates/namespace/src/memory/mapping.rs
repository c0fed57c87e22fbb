//! Anonymous memory whose address never changes while it grows.

use std::io;
use std::ptr::{self, NonNull};

/// Size of a page: what the kernel can give back at once.
pub const PAGE_BYTES: usize = 4096;
/// Address space set aside for growing: this many times the first size, and at least
/// [`RESERVE_BYTES_MIN`]. It costs nothing until it is used.
const RESERVE_FACTOR: usize = 16;
const RESERVE_BYTES_MIN: usize = 16 << 30;

/// One private anonymous mapping, zero until written.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    reserved: usize,
}

// SAFETY: the mapping is plain memory at a fixed address; who may touch which bytes when is the
// business of its users, who go through raw pointers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` readable and writable, with room to grow where the address space allows.
    pub fn new(bytes: usize) -> io::Result<Mapping> {
        let wanted = bytes.saturating_mul(RESERVE_FACTOR).max(RESERVE_BYTES_MIN);
        let (base, reserved) = match map(wanted, libc::PROT_NONE) {
            Ok(base) => (base, wanted),
            Err(_) => (map(bytes.next_multiple_of(PAGE_BYTES), libc::PROT_NONE)?, bytes),
        };
        let mapping = Mapping { base, reserved: reserved.next_multiple_of(PAGE_BYTES) };
        mapping.grow(bytes)?;
        Ok(mapping)
    }

    /// Maps `bytes` readable and writable, without room to grow.
    pub fn fixed(bytes: usize) -> io::Result<Mapping> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        Ok(Mapping { base: map(bytes, libc::PROT_READ | libc::PROT_WRITE)?, reserved: bytes })
    }

    /// Maps `bytes` that read as zero and can never be written; they cost no memory.
    pub fn zeroes(bytes: usize) -> io::Result<Mapping> {
        Ok(Mapping { base: map(bytes, libc::PROT_READ)?, reserved: bytes })
    }

    /// Makes the first `bytes` usable; what was usable stays so.
    pub fn grow(&self, bytes: usize) -> io::Result<()> {
        if bytes > self.reserved {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let length = bytes.next_multiple_of(PAGE_BYTES);
        // SAFETY: the range lies within this mapping, whose pages nobody expects to be
        // inaccessible.
        let result = unsafe {
            libc::mprotect(self.base.as_ptr().cast(), length, libc::PROT_READ | libc::PROT_WRITE)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // Random access pays for every page-table walk: 2 MiB pages where they are allowed, from
        // the size on at which the walks show. It is advice, so refusal changes nothing.
        const HUGE_FROM: usize = 64 << 20;
        if bytes >= HUGE_FROM {
            // SAFETY: as above; the advice changes no content.
            unsafe { libc::madvise(self.base.as_ptr().cast(), length, libc::MADV_HUGEPAGE) };
        }
        Ok(())
    }

    /// Start of the memory.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Gives whole pages back to the kernel; they read as zero from then on.
    ///
    /// # Safety
    /// `start` and `len` are multiples of [`PAGE_BYTES`] within the mapping, and nobody else
    /// touches the range meanwhile.
    pub unsafe fn discard(&self, start: usize, len: usize) {
        debug_assert!(start.is_multiple_of(PAGE_BYTES) && len.is_multiple_of(PAGE_BYTES));
        debug_assert!(start + len <= self.reserved);
        // SAFETY: a range within the mapping, which the caller has to itself.
        let result =
            unsafe { libc::madvise(self.base().add(start).cast(), len, libc::MADV_DONTNEED) };
        if result != 0 {
            // Locked pages cannot be given back; the content must be zero all the same.
            // SAFETY: as above, and the range is writable.
            unsafe { ptr::write_bytes(self.base().add(start), 0, len) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and nobody uses it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.reserved) };
    }
}

fn map(bytes: usize, protection: libc::c_int) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(base.cast()).expect("the kernel does not map address zero"))
}
