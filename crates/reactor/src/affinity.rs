//! Which core a thread runs on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::sync::OnceLock;

/// The cores this process may use, as they were before the first thread was pinned.
static ALLOWED: OnceLock<Option<CpuSet>> = OnceLock::new();

/// Keeps the calling thread on one core. Threads that it starts later inherit that.
pub fn pin(cpu: usize) -> io::Result<()> {
    ALLOWED.get_or_init(|| sched_getaffinity(None).ok());
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Lets a thread started by a pinned one run anywhere again.
pub fn unpin() {
    if let Some(Some(allowed)) = ALLOWED.get() {
        // Where that is refused the thread merely shares the core.
        let _ = sched_setaffinity(None, allowed);
    }
}
