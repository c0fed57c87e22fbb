//! Whose memory a command's data is, as callers see it.

use super::{PAGE_BYTES, Ranges, Vectors};
use reactor::{Buffer, BufferPool};
use std::fmt;

/// Memory of a command: what it writes, or where it reads to.
#[derive(Debug, Default)]
pub enum Bytes {
    /// No data.
    #[default]
    None,
    /// Of the session's pool, registered with the ring: see [`crate::session::Session::allocate`].
    Fixed(Buffer),
    /// Ordinary memory, all `len()` bytes of it. On files that are opened past the page cache it is copied
    /// if it does not lie at whole blocks.
    Owned(Vec<u8>),
    /// Memory that the caller vouches for.
    Raw(RawBytes),
    /// The source ranges of a Copy. They come back empty, with their room.
    Ranges(Ranges),
    /// Several pieces of any of these kinds of memory.
    Vectors(Vectors),
}

/// Memory that its owner keeps valid while a command is in flight.
#[derive(Clone, Copy)]
pub struct RawBytes {
    pointer: *mut u8,
    len: usize,
    fixed: Option<u16>,
}

impl RawBytes {
    /// `len` bytes at `pointer`; `fixed` is the index of the session's registered buffer that they are in
    /// ([`Buffer::fixed_index`]), if they are.
    ///
    /// # Safety
    /// The bytes stay mapped, and writable for a command that reads, until the command was reaped or the
    /// session dropped; nobody else accesses them meanwhile but through raw pointers.
    pub unsafe fn new(pointer: *mut u8, len: usize, fixed: Option<u16>) -> RawBytes {
        RawBytes { pointer, len, fixed }
    }

    /// Where they begin.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pointer
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for RawBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawBytes").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Bytes {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Bytes::None | Bytes::Ranges(_) => 0,
            Bytes::Fixed(buffer) => buffer.len(),
            Bytes::Owned(bytes) => bytes.len(),
            Bytes::Raw(bytes) => bytes.len,
            Bytes::Vectors(vectors) => vectors.len(),
        }
    }

    /// The length of one piece; [`Bytes::PIECES`] of several, which is as long as no command's data.
    #[inline]
    pub(super) fn piece_len(&self) -> usize {
        match self {
            Bytes::None | Bytes::Ranges(_) => 0,
            Bytes::Fixed(buffer) => buffer.len(),
            Bytes::Owned(bytes) => bytes.len(),
            Bytes::Raw(bytes) => bytes.len,
            Bytes::Vectors(_) => Bytes::PIECES,
        }
    }

    /// See [`Bytes::piece_len`].
    pub(super) const PIECES: usize = usize::MAX;

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there is no memory at all.
    #[inline]
    pub(super) fn is_none(&self) -> bool {
        matches!(self, Bytes::None)
    }

    /// The bytes; empty where the caller vouches for them, since he has them, and where they are in several pieces.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Fixed(buffer) => buffer.as_slice(),
            Bytes::Owned(bytes) => bytes,
            Bytes::None | Bytes::Raw(_) | Bytes::Ranges(_) | Bytes::Vectors(_) => &[],
        }
    }

    /// The same, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Bytes::Fixed(buffer) => buffer.as_mut_slice(),
            Bytes::Owned(bytes) => bytes,
            Bytes::None | Bytes::Raw(_) | Bytes::Ranges(_) | Bytes::Vectors(_) => &mut [],
        }
    }

    /// Where the bytes begin, and the registered buffer that they are in: one of `pool`, since another session's pool is
    /// known to that session's ring alone.
    #[inline]
    pub(super) fn place(&mut self, pool: &BufferPool) -> (*mut u8, Option<u16>) {
        match self {
            Bytes::Fixed(buffer) => {
                let fixed = if buffer.is_of(pool) { buffer.fixed_index() } else { None };
                (buffer.as_mut_ptr(), fixed)
            }
            Bytes::Raw(bytes) => (bytes.pointer, bytes.fixed),
            Bytes::Owned(bytes) => (bytes.as_mut_ptr(), None),
            Bytes::None | Bytes::Ranges(_) | Bytes::Vectors(_) => {
                (std::ptr::NonNull::dangling().as_ptr(), None)
            }
        }
    }

    /// Copies the first `len` bytes to `to`.
    ///
    /// # Safety
    /// There are as many, and room for them at `to`, which is none of this memory.
    pub(super) unsafe fn copy_to(&self, to: *mut u8, len: usize) {
        // SAFETY: passed on to the caller.
        unsafe {
            match self {
                Bytes::Vectors(vectors) => vectors.gather(to, len),
                _ => to.copy_from_nonoverlapping(self.as_ptr(), len),
            }
        }
    }

    /// Fills the first `len` bytes from `from`.
    ///
    /// # Safety
    /// As for [`Bytes::copy_to`], the other way.
    pub(super) unsafe fn copy_from(&mut self, from: *const u8, len: usize) {
        // SAFETY: passed on to the caller.
        unsafe {
            match self {
                Bytes::Vectors(vectors) => vectors.scatter(from, len),
                _ => self.as_mut_ptr().copy_from_nonoverlapping(from, len),
            }
        }
    }

    #[inline]
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        match self {
            Bytes::None | Bytes::Ranges(_) | Bytes::Vectors(_) => {
                std::ptr::NonNull::dangling().as_ptr()
            }
            Bytes::Fixed(buffer) => buffer.as_mut_ptr(),
            Bytes::Owned(bytes) => bytes.as_mut_ptr(),
            Bytes::Raw(bytes) => bytes.pointer,
        }
    }

    /// Whether the kernel has to look up the memory's pages, and it does not begin with one.
    pub(super) fn is_unaligned(&self) -> bool {
        let is_registered = match self {
            Bytes::Fixed(_) => true,
            Bytes::Raw(bytes) => bytes.fixed.is_some(),
            _ => false,
        };
        !is_registered && !self.as_ptr().addr().is_multiple_of(PAGE_BYTES)
    }

    #[inline]
    pub(super) fn as_ptr(&self) -> *const u8 {
        match self {
            Bytes::None | Bytes::Ranges(_) | Bytes::Vectors(_) => {
                std::ptr::NonNull::dangling().as_ptr()
            }
            Bytes::Fixed(buffer) => buffer.as_ptr(),
            Bytes::Owned(bytes) => bytes.as_ptr(),
            Bytes::Raw(bytes) => bytes.pointer,
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes::Owned(bytes)
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Bytes {
        Bytes::Fixed(buffer)
    }
}

impl From<RawBytes> for Bytes {
    fn from(bytes: RawBytes) -> Bytes {
        Bytes::Raw(bytes)
    }
}

impl From<Ranges> for Bytes {
    fn from(ranges: Ranges) -> Bytes {
        Bytes::Ranges(ranges)
    }
}

impl From<Vectors> for Bytes {
    fn from(vectors: Vectors) -> Bytes {
        Bytes::Vectors(vectors)
    }
}
