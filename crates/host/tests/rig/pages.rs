//! Memory in the place of a driver's pages: registered with a core's ring, and named by index.
//!
//! An offset into a driver's buffer counts from 0; that into memory of a process is its address, which
//! a [`Registered`] can say only if it is low.

use namespace::Registered;
use reactor::Reactor;
use std::sync::Mutex;

/// Requests that may have pages at once.
pub const SLOTS: u16 = 256;

/// Bytes of each slot; what a request does not use is filled with [`MARK`].
const SLOT_BYTES: usize = (1 << 20) + GUARD_BYTES;
/// Registered behind a request's data as well, to be seen if it is written to.
const GUARD_BYTES: usize = 4096;
const BYTES: usize = SLOTS as usize * SLOT_BYTES;
const MARK: u8 = 0xa7;

/// Commands with this time-out of their own have their data in a buffer of the pool in any case.
pub const PLAIN_MS: u32 = 59_999;

/// Of commands with this time-out only half of the memory is registered.
pub const HALF_MS: u32 = 59_998;

/// Low memory. Rings may still have it registered when it is unmapped: they pin what they use.
pub struct Pages {
    start: usize,
    free: Mutex<Vec<u16>>,
    /// Bytes that each slot has registered, as long as its last request was.
    lens: Mutex<Vec<usize>>,
}

impl Pages {
    pub fn new() -> Pages {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_NORESERVE
            | libc::MAP_FIXED_NOREPLACE;
        let fits = |start: &usize| {
            let hint = std::ptr::without_provenance_mut(*start);
            // SAFETY: a new mapping, which takes the place of no other.
            unsafe { libc::mmap(hint, BYTES, protection, flags, -1, 0) }.addr() == *start
        };
        let start = (16..240).map(|at| at << 24).find(fits).expect("room below 4 GiB");
        Pages {
            start,
            free: Mutex::new((0..SLOTS).collect()),
            lens: Mutex::new(vec![0; SLOTS.into()]),
        }
    }

    fn slot(&self, slot: u16) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start + usize::from(slot) * SLOT_BYTES)
    }

    /// A free slot with `data` in it, registered with the reactor's ring, or `half` of it.
    pub fn take(&self, reactor: &Reactor, data: &[u8], half: bool) -> Registered {
        let first = reactor.kernel_buffers().expect("a table").start;
        let slot = self.free.lock().expect("no panic").pop().expect("a free slot");
        let start = self.slot(slot);
        let registered = if half { data.len() / 2 } else { data.len() + GUARD_BYTES };
        // SAFETY: the slot is ours, and so long; it stays mapped.
        unsafe {
            start.copy_from_nonoverlapping(data.as_ptr(), data.len());
            start.add(data.len()).write_bytes(MARK, GUARD_BYTES);
            reactor.register_memory(first + slot, start, registered).expect("memory to register");
        }
        self.lens.lock().expect("no panic")[usize::from(slot)] = data.len();
        Registered { index: first + slot, offset: start.addr() as u32, len: data.len() as u32 }
    }

    /// Takes back what a request had, and says what is in it. From now on nobody may write there.
    pub fn give_back(&self, registered: Registered) -> Vec<u8> {
        let slot = ((registered.offset as usize - self.start) / SLOT_BYTES) as u16;
        let (start, len) = (self.slot(slot), registered.len as usize);
        let mut data = vec![0; len];
        // SAFETY: mapped, and the request has ended. Read by a copy, for somebody might break that rule.
        unsafe {
            start.copy_to_nonoverlapping(data.as_mut_ptr(), len);
            start.write_bytes(MARK, len);
        }
        self.free.lock().expect("no panic").insert(0, slot);
        data
    }

    /// Panics if anything was written to memory of requests that have ended, or behind theirs.
    #[track_caller]
    pub fn check(&self) {
        assert_eq!(self.free.lock().expect("no panic").len(), usize::from(SLOTS));
        let lens = self.lens.lock().expect("no panic");
        for (slot, &len) in (0..SLOTS).zip(lens.iter()).filter(|(_, len)| **len > 0) {
            // SAFETY: mapped, and all requests have ended.
            let bytes = unsafe { std::slice::from_raw_parts(self.slot(slot), len + GUARD_BYTES) };
            let wrong = bytes.iter().position(|byte| *byte != MARK);
            assert_eq!(wrong, None, "written to in slot {slot} of {len} bytes");
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping; requests that used it have ended, or their core has.
        unsafe { libc::munmap(self.slot(0).cast(), BYTES) };
    }
}
