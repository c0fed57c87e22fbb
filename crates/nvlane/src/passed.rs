//! Descriptors that whoever started the program has opened for it, named by their numbers.
//!
//! One is taken before the program opens anything itself: later the number may be that of a volume, and what is
//! written to it would go over the volume's blocks. It is not opened anew either, since sockets cannot be, and a
//! file would be written from its beginning.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, RawFd};

/// Standard input, output and error are used by others too, and stay open.
const STANDARD: std::ops::RangeInclusive<RawFd> = 0..=2;

/// Takes the descriptor that `option` names, to write to it; no child inherits it. For the beginning of the
/// program: from then on it is closed when the file is dropped.
pub fn writer(option: &str, number: u32) -> Result<File> {
    let fd = RawFd::try_from(number).unwrap_or(-1);
    // SAFETY: asks about a number, which need not be a descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    ensure!(flags >= 0, "{option}: descriptor {number} is not open (EBADF)");
    let writes = matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR);
    ensure!(
        writes && flags & libc::O_PATH == 0,
        "{option}: descriptor {number} is not open for writing"
    );
    let own = if STANDARD.contains(&fd) {
        // SAFETY: makes another descriptor of one that is open.
        unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, STANDARD.end() + 1) }
    } else {
        // SAFETY: sets a flag of a descriptor that is open.
        let set = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        if set < 0 { set } else { fd }
    };
    if own < 0 {
        return Err(io::Error::last_os_error())
            .with_context(|| format!("{option}: descriptor {number}"));
    }
    // SAFETY: a duplicate, or one that the caller opened for us and named: nobody else in this program has it.
    Ok(unsafe { File::from_raw_fd(own) })
}
