//! Memory in the place of a driver's pages: registered with a core's ring, and named by index.
//!
//! An offset into a driver's buffer counts from 0; that into memory of a process is its address, which
//! a [`Registered`] can say only if it is low.

use namespace::Registered;
use reactor::Reactor;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use uring::{Entry, File, Ring, Wait, entry};

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

/// Whether this kernel moves registered memory through sockets, and waits at those that do not block: asked of the
/// kernel itself, so that a path that takes no pages where it could is noticed.
pub fn kernel_moves_pages() -> bool {
    [true, false].into_iter().any(|by_sockets_calls| moves(by_sockets_calls) == Some(true))
}

/// The same by one of two pairs of operations; `None` if buffers cannot be registered at all.
fn moves(by_sockets_calls: bool) -> Option<bool> {
    const BYTES: usize = 64;
    let (near, far) = UnixStream::pair().expect("a pair");
    near.set_nonblocking(true).expect("a socket");
    far.set_nonblocking(true).expect("a socket");
    let (mut source, mut target) = ([1u8; BYTES], [0u8; BYTES]);
    let (from, to) = (source.as_mut_ptr(), target.as_mut_ptr());
    let mut ring = Ring::new(8).expect("io_uring is allowed where tests run");
    ring.register_buffers(2).ok()?;
    // SAFETY: both outlive the ring's use of them, which ends in this function.
    unsafe { ring.update_buffer(0, from, BYTES).and_then(|()| ring.update_buffer(1, to, BYTES)) }
        .ok()?;
    let (out, into, len) = (File::Fd(near.as_raw_fd()), File::Fd(far.as_raw_fd()), BYTES as u32);
    let send = match by_sockets_calls {
        true => entry::send_fixed(out, from, len, libc::MSG_WAITALL, 0),
        false => entry::write_fixed(out, from, len, 0, 0, 0),
    };
    let receive = |index| match by_sockets_calls {
        true => entry::recv_fixed(into, to, len, libc::MSG_WAITALL, index),
        false => entry::read_fixed(into, to, len, 0, index),
    };
    let start = |ring: &mut Ring, entry: &Entry| {
        // SAFETY: the memory outlives the operation: all are waited for, or end with nothing to receive.
        unsafe { ring.push(entry) }.expect("room");
        ring.enter(Wait::No).expect("sound");
    };
    let next = |ring: &mut Ring| {
        let mut done = Vec::with_capacity(1);
        while done.is_empty() {
            ring.enter(Wait::Forever).expect("sound");
            ring.reap(&mut done);
        }
        done[0].result
    };
    let all = BYTES as i32;
    start(&mut ring, &send);
    if next(&mut ring) != all {
        return Some(false);
    }
    // The second is an index that there is not: operations that do not look at it are others.
    start(&mut ring, &receive(9));
    if next(&mut ring) >= 0 {
        return Some(false);
    }
    start(&mut ring, &receive(1));
    if next(&mut ring) != all || target != [1; BYTES] {
        return Some(false);
    }
    start(&mut ring, &receive(1));
    if ring.has_completions() {
        return Some(false);
    }
    start(&mut ring, &send);
    Some(next(&mut ring) == all && next(&mut ring) == all)
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping; requests that used it have ended, or their core has.
        unsafe { libc::munmap(self.slot(0).cast(), BYTES) };
    }
}
