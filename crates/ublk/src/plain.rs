//! Reads and writes of a volume that is a file or block device as it is: the queue hands them to the ring by
//! itself, without a command and a request for the volume.
//!
//! ```text
//!              Plain::entry                 all bytes
//!   request ----------------> ring -------------------------> commit
//!      |  none: no plain file,  |  anything else: an error,
//!      |  FUA, no memory        |  a part
//!      '------------------------'--> the volume, from the start
//! ```
//!
//! Nothing is decided here but the way: what does not go well is done again by the volume, which knows what to make
//! of it. A write that is done again writes the same bytes to the same place, and the kernel has told nobody of the
//! first.

use namespace::Namespace;
use nvme::Command;
use nvme::opcode::io as opcode;
use reactor::{Buffer, FixedFile, Reactor};
use rustix::fs::FileType;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use uring::entry;

/// The file or block device that a volume is, registered with a queue's ring.
pub struct Plain {
    reactor: Rc<Reactor>,
    /// Until it is dropped.
    file: Option<FixedFile>,
    block_shift: u8,
    /// A file's volume wants to know of each write, since one that comes late may make the file larger again.
    writes: bool,
    /// The page cache is gone past: pages that are registered are not looked up each time.
    direct: bool,
}

impl Plain {
    /// None if there is no such file, or the ring has no place for it.
    pub fn of(namespace: &dyn Namespace, reactor: &Rc<Reactor>) -> Option<Plain> {
        let plain = namespace.plain_file()?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(plain).ok()?.st_mode);
        let direct = rustix::fs::fcntl_getfl(plain).ok()?.contains(rustix::fs::OFlags::DIRECT);
        let file = reactor.register_file(plain.as_raw_fd())?;
        Some(Plain {
            reactor: Rc::clone(reactor),
            file: Some(file),
            block_shift: namespace.limits().block_shift,
            // Tests have files for devices.
            writes: kind == FileType::BlockDevice || cfg!(test),
            direct,
        })
    }

    /// Whether a command is the ring's.
    #[inline]
    pub fn takes(&self, command: &Command) -> bool {
        match command.opcode {
            opcode::READ => true,
            opcode::WRITE => self.writes && !command.fua(),
            _ => false,
        }
    }

    /// The place of a buffer in the ring's table, where that helps.
    #[inline]
    pub fn index_of(&self, buffer: &Buffer) -> Option<u16> {
        if self.direct { buffer.ensure_registered() } else { None }
    }

    /// What the ring is to do for a command that it [takes](Plain::takes), with the `len` bytes from `start` on: in the
    /// registered buffer `index`, if there is one. Addresses in a request's pages count from their start.
    #[inline]
    pub fn entry(
        &self,
        command: &Command,
        start: *mut u8,
        len: u32,
        index: Option<u16>,
    ) -> Option<uring::Entry> {
        let file = self.file.as_ref()?.file();
        let offset = command.slba() << self.block_shift;
        Some(match (command.opcode == opcode::WRITE, index) {
            (false, Some(index)) => entry::read_fixed(file, start, len, offset, index),
            (false, None) => entry::read(file, start, len, offset),
            (true, Some(index)) => entry::write_fixed(file, start, len, offset, 0, index),
            (true, None) => entry::write(file, start, len, offset, 0),
        })
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.reactor.unregister_file(file);
        }
    }
}
