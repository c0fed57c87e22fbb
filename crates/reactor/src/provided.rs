//! Buffers of a reactor's ring that the kernel takes from and fills by itself.

use crate::Reactor;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use uring::{BufferRing, Ring};

/// A group of buffers, which is the ring's as long as this lives.
pub struct Provided {
    ring: Rc<RefCell<Ring>>,
    buffers: BufferRing,
}

impl Reactor {
    /// Makes a group of `count` buffers, a power of two, of `bytes` bytes each, for entries that name `group`.
    pub fn provide(&self, group: u16, count: u16, bytes: u32) -> io::Result<Provided> {
        let buffers = BufferRing::new(group, count, bytes)?;
        let ring = Rc::clone(&self.ring);
        // SAFETY: `Provided` takes them from the ring before they go.
        unsafe { ring.borrow_mut().register_buffer_ring(&buffers) }?;
        Ok(Provided { ring, buffers })
    }
}

impl Provided {
    /// The group's number.
    pub fn group(&self) -> u16 {
        self.buffers.group()
    }

    /// What the kernel has put into a buffer: its first `len` bytes.
    ///
    /// # Safety
    /// As for [`BufferRing::get`].
    #[inline]
    pub unsafe fn get(&self, id: u16, len: usize) -> &[u8] {
        // SAFETY: passed on to the caller.
        unsafe { self.buffers.get(id, len) }
    }

    /// Gives a buffer back to the kernel, which has filled it.
    ///
    /// # Safety
    /// As for [`BufferRing::get`].
    #[inline]
    pub unsafe fn give_back(&mut self, id: u16) {
        // SAFETY: passed on to the caller.
        unsafe { self.buffers.give_back(id) };
    }
}

impl Drop for Provided {
    fn drop(&mut self) {
        // Where the kernel would not let go of the memory, it would have it for good.
        self.ring.borrow_mut().unregister_buffer_ring(&self.buffers).expect("a group of ours");
    }
}
