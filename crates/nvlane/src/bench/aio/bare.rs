//! A ring as lean as the kernel has one: what no library over io_uring can be quicker than.

use super::subject::BLOCK;
use ::aio::abi::{Event, Iocb};
use anyhow::{Context, ensure};
use std::os::fd::RawFd;
use uring::{File, Ring, RingOptions, Wait, entry};

/// Registered file, buffers and descriptor of the ring itself; one system call submits what was pushed and looks
/// for what has ended.
pub struct Bare {
    ring: Ring,
}

impl Bare {
    /// Sets it up for `depth` reads of `fd` into the buffers from `memory` on, one block each.
    ///
    /// # Safety
    /// The memory is there until this is dropped, and until all that was pushed has ended.
    pub unsafe fn new(
        fd: RawFd,
        memory: *mut u8,
        depth: usize,
        iopoll: bool,
    ) -> anyhow::Result<Bare> {
        let options = RingOptions { entries: depth as u32, iopoll, ..RingOptions::default() };
        let mut ring = Ring::with_options(&options)?;
        ensure!(ring.setup().registered_ring, "the ring's descriptor cannot be registered");
        ring.register_buffers(1)?;
        // SAFETY: as the caller promises.
        unsafe { ring.update_buffer(0, memory, depth * BLOCK) }
            .context("registering buffers: raise RLIMIT_MEMLOCK")?;
        ring.register_files(1)?;
        ring.update_file(0, fd)?;
        Ok(Bare { ring })
    }

    /// Queues the read that `iocb` describes, for the next [`Bare::take`]. False if there is no room.
    #[inline]
    pub fn push(&mut self, index: usize, iocb: &Iocb) -> bool {
        let buffer = iocb.buf as *mut u8;
        let entry = entry::read_fixed(File::Fixed(0), buffer, BLOCK as u32, iocb.offset as u64, 0);
        // SAFETY: the kernel takes only addresses within the registered buffer, which is there until all has ended.
        unsafe { self.ring.push(&entry.user_data(index as u64)) }.is_ok()
    }

    /// Submits what was pushed and waits for an end, as `io_getevents` does: the number of events, or `-errno`.
    #[inline]
    pub fn take(&mut self, events: &mut [Event]) -> i32 {
        if let Err(error) = self.ring.enter(Wait::Forever) {
            return -error.raw_os_error().unwrap_or(libc::EIO);
        }
        self.ring.note_completed();
        let mut count = 0;
        while count < events.len()
            && let Some(done) = self.ring.next_noted()
        {
            let res = i64::from(done.result);
            events[count] = Event { obj: done.user_data, res, ..Event::default() };
            count += 1;
        }
        count as i32
    }
}
