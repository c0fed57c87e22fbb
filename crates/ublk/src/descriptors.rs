//! The requests of a queue, where the driver writes them.

use crate::driver::{Descriptor, descriptors_position};
use rustix::mm::{self, MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::mem::size_of;
use std::ptr::{self, NonNull};

/// A queue's descriptors, mapped for reading.
pub struct Descriptors {
    start: NonNull<Descriptor>,
    depth: u16,
    bytes: usize,
}

impl Descriptors {
    /// Maps those of one queue of a device.
    pub fn map(device: &File, queue: u16, depth: u16) -> io::Result<Descriptors> {
        let bytes = usize::from(depth) * size_of::<Descriptor>();
        let bytes = bytes.next_multiple_of(rustix::param::page_size());
        let (flags, position) =
            (MapFlags::SHARED | MapFlags::POPULATE, descriptors_position(queue));
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { mm::mmap(ptr::null_mut(), bytes, ProtFlags::READ, flags, device, position)? };
        let start = NonNull::new(start.cast()).expect("a mapping is not at 0");
        Ok(Descriptors { start, depth, bytes })
    }

    /// Where they are, for the kernel.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// The request that the driver has given to the server.
    #[inline]
    pub fn read(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth);
        // SAFETY: within the mapping, and the driver writes it only while it has the tag.
        unsafe { self.start.add(usize::from(tag)).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: our own mapping, from which nothing is borrowed.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
