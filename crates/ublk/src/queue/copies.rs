//! Data that the server copies by hand, and memory for it.

use super::{QueueServer, about};
use crate::driver::data_position;
use crate::plain::Plain;
use crate::tags::Carries;
use crate::zoned;
use namespace::Data;
use rustix::io::Errno;
use std::io;
use std::os::fd::AsRawFd;

impl QueueServer {
    /// Memory for a request's data; the tag waits if there is none.
    pub(super) fn memory(&self, tag: u16, bytes: u32) -> Option<Data> {
        match self.reactor.buffers().allocate(bytes as usize) {
            Some(buffer) => Some(Data::Buffer(buffer)),
            None => {
                self.waiting.borrow_mut().push_back(tag);
                self.wait();
                None
            }
        }
    }

    /// Memory that the ring reads into or writes from, and its place in the ring's table: it stays the slot's, which keeps
    /// it until it is told that the ring has done. None if there is none now.
    #[inline]
    pub(super) fn plain_memory(
        &self,
        plain: &Plain,
        tag: u16,
        len: u32,
        is_read: bool,
    ) -> Option<(*mut u8, Option<u16>)> {
        let slot = self.slot(tag);
        if let Some(own) = slot.own.borrow_mut().as_mut() {
            assert!(len as usize <= own.len());
            // Not registered for this: all of a queue's would be pinned, however little of it is used.
            return Some((own.as_mut_ptr(), own.fixed_index()));
        }
        let mut data = slot.data.take();
        if is_read {
            data = Data::Buffer(self.reactor.buffers().allocate(len as usize)?);
        }
        assert_eq!(data.len(), len as usize, "what is written was copied here");
        let memory = match &mut data {
            Data::Buffer(buffer) => Some((buffer.as_mut_ptr(), plain.index_of(buffer))),
            _ => None,
        };
        slot.data.set(data);
        memory
    }

    /// Has the pool tell when memory came back.
    fn wait(&self) {
        if !self.waits.replace(true) {
            self.reactor.buffers().wait(self.me(), about::MEMORY);
        }
    }

    pub(super) fn copy_in(&self, tag: u16, skip: u32, bytes: u32) {
        let slot = self.slot(tag);
        let mut data = slot.data.take();
        if data.is_empty() {
            match self.memory(tag, skip + bytes) {
                Some(memory) => data = memory,
                None => return,
            }
        }
        let target = data.as_mut_ptr().expect("a buffer").wrapping_add(skip as usize);
        let position = data_position(self.config.queue, tag, skip);
        // SAFETY: so many bytes are in the buffer behind `target`, and it is ours alone.
        let room = unsafe { std::slice::from_raw_parts_mut(target, bytes as usize) };
        let read = rustix::io::pread(&*self.device, room, position);
        slot.data.set(data);
        self.copied(tag, read);
    }

    pub(super) fn copy_out(&self, tag: u16, skip: u32, bytes: u32) {
        let slot = self.slot(tag);
        let data = slot.data.take();
        let header = match self.tags.borrow().is_report(tag) {
            true => zoned::HEADER_BYTES,
            false => 0,
        };
        let source = data.as_ptr().wrapping_add((header + skip) as usize);
        let position = data_position(self.config.queue, tag, skip).cast_signed();
        // By address: lent memory may be changing.
        // SAFETY: so many bytes are readable behind `source` while `data` is here.
        let written = unsafe {
            libc::pwrite(self.device.as_raw_fd(), source.cast(), bytes as usize, position)
        };
        let written = match usize::try_from(written) {
            Ok(written) => Ok(written),
            Err(_) => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        };
        slot.data.set(data);
        self.copied(tag, written);
    }

    /// The driver has copied what it was told to: it never waits, which is why it is told by a system
    /// call rather than by the ring (docs/decisions/0007).
    fn copied(&self, tag: u16, outcome: Result<usize, Errno>) {
        let result = match outcome {
            Ok(bytes) => bytes as i32,
            Err(errno) => -errno.raw_os_error(),
        };
        let step = self.tags.borrow_mut().copied(tag, result);
        self.take(tag, step);
    }

    /// There may be memory again for tags that wait for it, first come first served.
    pub(super) fn memory_came(&self) {
        self.waits.set(false);
        let mut rounds = self.waiting.borrow().len();
        while rounds > 0 {
            rounds -= 1;
            let Some(tag) = self.waiting.borrow_mut().pop_front() else { return };
            let before = self.waiting.borrow().len();
            self.again(tag);
            if self.waiting.borrow().len() > before {
                // In vain: back to its place.
                self.waiting.borrow_mut().rotate_right(1);
                break;
            }
        }
        if !self.waiting.borrow().is_empty() {
            self.wait();
        }
    }

    /// What a tag that waited for memory wanted.
    fn again(&self, tag: u16) {
        let carries = self.tags.borrow().carries(tag);
        match carries {
            Carries::Bytes(bytes) => self.copy_in(tag, 0, bytes),
            _ => self.submit(tag),
        }
    }
}
