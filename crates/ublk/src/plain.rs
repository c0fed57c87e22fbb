//! Reads and writes of a volume that is a file or block device as it is: the queue hands them to the ring by
//! itself, without a command and a request for the volume.
//!
//! ```text
//!              Plain::entry                 all bytes
//!   request ----------------> ring -------------------------> commit
//!      |  none: no plain file,  |  anything else: an error,
//!      |  FUA, not registered   |  a part
//!      '------------------------'--> the volume, from the start
//! ```
//!
//! Nothing is decided here but the way: what does not go well is done again by the volume, which knows what to make
//! of it. A write that is done again writes the same bytes to the same place, and the kernel has told nobody of the
//! first.

use namespace::Namespace;
use nvme::Command;
use nvme::opcode::io as opcode;
use reactor::{FixedFile, Reactor};
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
}

impl Plain {
    /// None if there is no such file, or the ring has no place for it.
    pub fn of(namespace: &dyn Namespace, reactor: &Rc<Reactor>) -> Option<Plain> {
        let plain = namespace.plain_file()?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(plain).ok()?.st_mode);
        let file = reactor.register_file(plain.as_raw_fd())?;
        Some(Plain {
            reactor: Rc::clone(reactor),
            file: Some(file),
            block_shift: namespace.limits().block_shift,
            writes: kind == FileType::BlockDevice,
        })
    }

    /// What the ring is to do for a command with `len` bytes in the registered buffer `index`.
    #[inline]
    pub fn entry(&self, command: &Command, index: u16, len: u32) -> Option<uring::Entry> {
        let file = self.file.as_ref()?.file();
        let offset = command.slba() << self.block_shift;
        // Addresses count from the start of the buffer.
        let start = std::ptr::null_mut();
        match command.opcode {
            opcode::READ => Some(entry::read_fixed(file, start, len, offset, index)),
            opcode::WRITE if self.writes && !command.fua() => {
                Some(entry::write_fixed(file, start, len, offset, 0, index))
            }
            _ => None,
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.reactor.unregister_file(file);
        }
    }
}
