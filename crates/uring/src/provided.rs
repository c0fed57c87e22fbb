//! Buffers that the kernel takes from and fills by itself, where an entry names their group rather than memory.
//!
//! ```text
//!   give_back(2)           kernel takes            completion: buffer 0, n bytes
//!   ring: [0][1][2] ... --------------> [1][2] ---------------------------------> get(0, n), give_back(0)
//! ```

use crate::sys::{self, BufferRingAt, Mapping};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::{io, mem};

/// `struct io_uring_buf`.
#[repr(C)]
struct Place {
    address: u64,
    len: u32,
    id: u16,
    /// Of the first place: where the ring ends.
    tail: AtomicU16,
}

/// A group of buffers of one size (5.19). The kernel may write to those that were given to it until the group is
/// unregistered.
pub struct BufferRing {
    memory: Mapping,
    group: u16,
    count: u16,
    bytes: u32,
    tail: u16,
}

impl BufferRing {
    /// `count` buffers, a power of two up to 32,768, of `bytes` bytes each, all with the kernel once they are
    /// registered ([`crate::Ring::register_buffer_ring`]).
    pub fn new(group: u16, count: u16, bytes: u32) -> io::Result<BufferRing> {
        assert!(count.is_power_of_two(), "{count} buffers");
        let each = mem::size_of::<Place>() + bytes as usize;
        let len = u32::try_from(usize::from(count) * each).expect("a group of less than 4 GiB");
        let memory = Mapping::anonymous(len as usize)?;
        let mut ring = BufferRing { memory, group, count, bytes, tail: 0 };
        // SAFETY: the kernel has none yet.
        (0..count).for_each(|id| unsafe { ring.give_back(id) });
        Ok(ring)
    }

    /// Its number with the ring.
    pub fn group(&self) -> u16 {
        self.group
    }

    /// What the kernel has put into a buffer: its first `len` bytes.
    ///
    /// # Panics
    /// If there is no such buffer, or it is not so long.
    ///
    /// # Safety
    /// A completion has told of the buffer ([`crate::buffer_of`]), and it was not given back since.
    #[inline]
    pub unsafe fn get(&self, id: u16, len: usize) -> &[u8] {
        assert!(id < self.count && len <= self.bytes as usize);
        // SAFETY: within our mapping, whose bytes are all initialised; the kernel has given us the buffer, as the
        // caller vouches.
        unsafe { std::slice::from_raw_parts(self.memory.at::<u8>(self.offset(id)), len) }
    }

    /// Gives a buffer to the kernel.
    ///
    /// # Safety
    /// As for [`BufferRing::get`].
    #[inline]
    pub unsafe fn give_back(&mut self, id: u16) {
        assert!(id < self.count);
        let address = self.memory.at::<u8>(self.offset(id)) as u64;
        let index = self.tail & (self.count - 1);
        let place = self.memory.at::<Place>(u32::from(index) * mem::size_of::<Place>() as u32);
        // SAFETY: within our mapping; the kernel reads a place only when the tail has passed it, and the first one's
        // tail is no part of what is written here.
        unsafe {
            (&raw mut (*place).address).write(address);
            (&raw mut (*place).len).write(self.bytes);
            (&raw mut (*place).id).write(id);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the first place, of which the kernel reads the tail at any time.
        unsafe { (*self.memory.at::<Place>(0)).tail.store(self.tail, Ordering::Release) };
    }

    /// Where a buffer lies, behind the places.
    #[inline]
    fn offset(&self, id: u16) -> u32 {
        u32::from(self.count) * mem::size_of::<Place>() as u32 + u32::from(id) * self.bytes
    }

    pub(crate) fn register(&self, ring: RawFd) -> io::Result<()> {
        let start = self.memory.at::<u8>(0) as u64;
        let entries = u32::from(self.count);
        let at = BufferRingAt { start, entries, group: self.group, ..BufferRingAt::default() };
        // SAFETY: one valid `io_uring_buf_reg`; the memory is the caller's affair.
        unsafe { sys::register(ring, sys::REGISTER_PBUF_RING, (&raw const at).cast(), 1) }?;
        Ok(())
    }

    pub(crate) fn unregister(&self, ring: RawFd) -> io::Result<()> {
        let at = BufferRingAt { group: self.group, ..BufferRingAt::default() };
        // SAFETY: one valid `io_uring_buf_reg`.
        unsafe { sys::register(ring, sys::UNREGISTER_PBUF_RING, (&raw const at).cast(), 1) }?;
        Ok(())
    }
}

const _: () = assert!(mem::size_of::<Place>() == 16 && mem::offset_of!(Place, tail) == 14);
