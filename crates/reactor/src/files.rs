//! A ring's table of registered files.

use std::os::fd::RawFd;
use uring::{File, Ring};

/// Places in the table of registered files.
const FILES_MAX: u32 = 1024;

/// A place in a ring's table of registered files; give it back to the ring that it came from
/// ([`crate::Reactor::unregister_file`], [`crate::CommandRing::unregister_file`]).
#[derive(Debug, PartialEq, Eq)]
pub struct FixedFile(u32);

impl FixedFile {
    /// For the builders in [`uring::entry`].
    #[inline]
    pub fn file(&self) -> File {
        File::Fixed(self.0)
    }
}

/// Which places are used.
#[derive(Default)]
pub struct Files {
    /// Made at the first need; `Some(false)` if the kernel refused it.
    made: Option<bool>,
    used: u32,
    free: Vec<u32>,
}

impl Files {
    /// Puts a descriptor into a free place. `None` if there is none.
    pub fn register(&mut self, ring: &mut Ring, fd: RawFd) -> Option<FixedFile> {
        if !*self.made.get_or_insert_with(|| ring.register_files(FILES_MAX).is_ok()) {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.used < FILES_MAX => {
                self.used += 1;
                self.used - 1
            }
            None => return None,
        };
        if ring.update_file(index, fd).is_err() {
            self.free.push(index);
            return None;
        }
        Some(FixedFile(index))
    }

    /// Empties a place. Queued entries name it: the kernel must have taken all of them.
    pub fn unregister(&mut self, ring: &mut Ring, file: FixedFile) {
        if ring.update_file(file.0, -1).is_ok() {
            self.free.push(file.0);
        }
    }
}
