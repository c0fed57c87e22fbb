//! The buffer pool of one core: memory that the kernel can read and write directly.

use crate::Complete;
use crate::buddy::{BLOCK_MAX, BLOCK_MIN, Buddy};
use crate::pieces::{PIECE, Pieces};
use rustix::mm::{self, MapFlags, ProtFlags};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::rc::Rc;
use std::{fmt, io, slice};
use uring::Ring;

/// Most bytes of a pool: pieces are numbered with 14 bits by the kernel.
const POOL_MAX: usize = PIECE << 14;

/// Page-aligned buffers of 4 KiB to 1 MiB in power-of-two classes, out of one region.
///
/// The region is reserved, not populated: it costs memory as far as it was used. A buffer's bytes
/// are initialised, but hold what the last user left: whoever hands a buffer to a peer must have
/// filled it.
pub struct BufferPool {
    shared: Rc<Shared>,
}

/// Memory of a [`BufferPool`], given back when dropped. A buffer keeps the region mapped.
///
/// While an operation of the kernel uses the memory, the buffer must be kept (moved into what
/// completes, for example); see [`crate::Reactor::submit`].
pub struct Buffer {
    pool: Rc<Shared>,
    start: NonNull<u8>,
    len: u32,
    page: u32,
    class: u8,
}

struct Shared {
    region: Region,
    buddy: RefCell<Buddy>,
    waiters: RefCell<VecDeque<(Rc<dyn Complete>, u64)>>,
    /// A buffer came back since waiters were last served.
    returned: Cell<bool>,
    /// Absent in a pool without a ring.
    ring: Option<Rc<RefCell<Ring>>>,
    pieces: Pieces,
}

/// Reserved address space, aligned to [`PIECE`].
struct Region {
    mapping: NonNull<u8>,
    mapped: usize,
    start: NonNull<u8>,
}

impl BufferPool {
    /// Reserves `bytes`, rounded up to whole pieces of 2 MiB. With a ring, buffers can be
    /// registered; the ring must have no registered buffers of its own. Its table has `further`
    /// places behind those of the pool.
    pub(crate) fn new(
        bytes: usize,
        ring: Option<Rc<RefCell<Ring>>>,
        further: u16,
    ) -> io::Result<BufferPool> {
        let bytes = bytes.clamp(PIECE, POOL_MAX).next_multiple_of(PIECE);
        let region = Region::reserve(bytes)?;
        let mut borrowed = ring.as_ref().map(|ring| ring.borrow_mut());
        let pieces = Pieces::new(borrowed.as_deref_mut(), bytes / PIECE, further);
        drop(borrowed);
        let shared = Shared {
            region,
            buddy: RefCell::new(Buddy::new(bytes)),
            waiters: RefCell::default(),
            returned: Cell::new(false),
            ring,
            pieces,
        };
        Ok(BufferPool { shared: Rc::new(shared) })
    }

    /// A buffer of `len` bytes; `None` if there is no room now, or `len` is more than 1 MiB.
    #[inline]
    pub fn allocate(&self, len: usize) -> Option<Buffer> {
        let class = Buddy::class_of(len)?;
        let page = self.shared.buddy.borrow_mut().take(class)?;
        Some(self.buffer(page, class, len))
    }

    /// Two buffers of `len` bytes, or none: who needs both and takes one after the other gives the first back in
    /// vain, of which all that wait would be told.
    pub fn allocate_two(&self, len: usize) -> Option<[Buffer; 2]> {
        let class = Buddy::class_of(len)?;
        let mut buddy = self.shared.buddy.borrow_mut();
        let first = buddy.take(class)?;
        let Some(second) = buddy.take(class) else {
            buddy.put(first, class);
            return None;
        };
        Some([first, second].map(|page| self.buffer(page, class, len)))
    }

    fn buffer(&self, page: u32, class: usize, len: usize) -> Buffer {
        // SAFETY: the buddy hands out pages within the region.
        let start = unsafe { self.shared.region.start.add(page as usize * BLOCK_MIN) };
        let pool = Rc::clone(&self.shared);
        Buffer { pool, start, len: len as u32, page, class: class as u8 }
    }

    /// Calls `sink` once, at the end of a turn in which memory was freed, first come first
    /// served. Allocate again then, and wait again if that fails: a waiter that could take
    /// nothing keeps its place, and those behind it go on waiting.
    pub fn wait(&self, sink: Rc<dyn Complete>, token: u64) {
        self.shared.waiters.borrow_mut().push_back((sink, token));
    }

    /// Takes `sink` with `token` out of the line of those who wait.
    pub fn stop_waiting(&self, sink: &Rc<dyn Complete>, token: u64) {
        let is_it = |(waiter, its): &(Rc<dyn Complete>, u64)| {
            *its == token && std::ptr::addr_eq(Rc::as_ptr(waiter), Rc::as_ptr(sink))
        };
        // Dropped when nothing is borrowed any more: it may be the last that keeps much.
        let mut waiters = self.shared.waiters.borrow_mut();
        let place = waiters.iter().position(is_it);
        let gone = place.and_then(|place| waiters.remove(place));
        drop(waiters);
        if place == Some(0) {
            // What did not do for the first may do for the second.
            self.shared.returned.set(true);
        }
        drop(gone);
    }

    /// Bytes not handed out; not all need be to be had in one buffer.
    pub fn available(&self) -> usize {
        self.shared.buddy.borrow().free_bytes()
    }

    /// Bytes in all.
    pub fn capacity(&self) -> usize {
        self.shared.buddy.borrow().bytes()
    }

    /// Largest buffer, in bytes.
    pub const fn buffer_len_max() -> usize {
        BLOCK_MAX
    }

    /// Bytes registered with the ring, and so pinned.
    pub fn registered(&self) -> usize {
        self.shared.pieces.registered()
    }

    /// Why some buffers are not registered, for people; `None` if all that were tried are.
    pub fn refusal(&self) -> Option<String> {
        self.shared.pieces.refusal()
    }

    /// A further handle to the same pool.
    pub(crate) fn share(&self) -> BufferPool {
        BufferPool { shared: Rc::clone(&self.shared) }
    }

    /// The place in another ring's table, which `pieces` is, of the memory that has `index` in that of
    /// the pool's own ring. Registers it there if that was not tried yet.
    #[inline]
    pub(crate) fn ensure_in(
        &self,
        index: u16,
        pieces: &Pieces,
        ring: &RefCell<Ring>,
    ) -> Option<u16> {
        let piece = usize::from(index);
        let ours = piece < self.capacity() / PIECE;
        ours.then(|| self.shared.ensure_in(piece, pieces, ring)).flatten()
    }

    /// A table of this pool's pieces for another ring.
    pub(crate) fn pieces_for(&self, ring: &mut Ring) -> Pieces {
        Pieces::new(Some(ring), self.capacity() / PIECE, 0)
    }

    /// The first of the further places in the ring's table, if there is one.
    pub(crate) fn first_kernel_buffer(&self) -> Option<u16> {
        self.shared.pieces.is_made().then_some((self.capacity() / PIECE) as u16)
    }

    /// Whether [`BufferPool::serve`] has something to do.
    #[inline]
    pub(crate) fn has_served(&self) -> bool {
        self.shared.returned.get() && !self.shared.waiters.borrow().is_empty()
    }

    /// Calls waiters as long as they make use of the memory there is. Returns whether any was.
    pub(crate) fn serve(&self) -> bool {
        if !self.has_served() {
            return false;
        }
        self.shared.returned.set(false);
        let waiting = self.shared.waiters.borrow().len();
        for _ in 0..waiting {
            let Some((sink, token)) = self.shared.waiters.borrow_mut().pop_front() else { break };
            let (before, queued) = (self.available(), self.shared.waiters.borrow().len());
            sink.complete(token, 0, 0);
            let again = self.shared.waiters.borrow().len().saturating_sub(queued);
            if again > 0 && self.available() >= before {
                self.shared.waiters.borrow_mut().rotate_right(again);
                break;
            }
        }
        true
    }

    /// Drops waiters without calling them.
    pub(crate) fn forget_waiters(&self) {
        let waiters = std::mem::take(&mut *self.shared.waiters.borrow_mut());
        drop(waiters);
    }
}

impl Buffer {
    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that the buffer could hold.
    pub fn capacity(&self) -> usize {
        BLOCK_MIN << self.class
    }

    /// Start of the bytes, aligned to 4 KiB.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Start of the bytes, aligned to 4 KiB.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the block is ours alone, mapped while `pool` lives, initialised by the kernel;
        // operations of the kernel are started by unsafe calls whose callers vouch for it.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len as usize) }
    }

    /// The bytes.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len as usize) }
    }

    /// Shortens the buffer to `len` bytes; no effect if it is not longer.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// Index for [`uring::entry::read_fixed`] and its like, if this memory is registered.
    #[inline]
    pub fn fixed_index(&self) -> Option<u16> {
        let piece = self.piece();
        (self.pool.pieces.state(piece) == Some(true)).then_some(piece as u16)
    }

    /// Like [`Buffer::fixed_index`], but registers the surrounding 2 MiB first if that was not
    /// tried yet. For queues of files opened with `O_DIRECT`, which gain from it.
    #[inline]
    pub fn ensure_registered(&self) -> Option<u16> {
        let ring = self.pool.ring.as_ref()?;
        self.ensure_in(&self.pool.pieces, ring)
    }

    /// The same with another ring, whose table of the same pool `pieces` is.
    #[inline]
    pub(crate) fn ensure_in(&self, pieces: &Pieces, ring: &RefCell<Ring>) -> Option<u16> {
        self.pool.ensure_in(self.piece(), pieces, ring)
    }

    /// Whether the memory is of this pool.
    #[inline]
    pub fn is_of(&self, pool: &BufferPool) -> bool {
        Rc::ptr_eq(&self.pool, &pool.shared)
    }

    fn piece(&self) -> usize {
        self.page as usize / (PIECE / BLOCK_MIN)
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        self.pool.buddy.borrow_mut().put(self.page, usize::from(self.class));
        self.pool.returned.set(true);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Buffer").field("page", &self.page).field("len", &self.len).finish()
    }
}

impl Shared {
    /// The index of a piece of the region in a ring's table, where it is registered now if need be.
    #[inline]
    fn ensure_in(&self, piece: usize, pieces: &Pieces, ring: &RefCell<Ring>) -> Option<u16> {
        let registered = match pieces.state(piece) {
            Some(state) => state,
            None => {
                // SAFETY: the piece lies within the region, which outlives its registration: it is
                // unmapped only with the last buffer and pool, and the kernel pins pages by itself.
                unsafe {
                    let start = self.region.start.add(piece * PIECE).as_ptr();
                    pieces.register(&mut ring.borrow_mut(), piece, start)
                }
            }
        };
        registered.then_some(piece as u16)
    }
}

impl Region {
    fn reserve(bytes: usize) -> io::Result<Region> {
        let mapped = bytes + PIECE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let mapping =
            unsafe { mm::mmap_anonymous(std::ptr::null_mut(), mapped, protection, flags)? };
        let mapping = NonNull::new(mapping.cast::<u8>()).expect("a mapping is not at 0");
        let skip = mapping.as_ptr().align_offset(PIECE);
        // SAFETY: `skip` is less than PIECE, by which the mapping is longer than asked.
        let start = unsafe { mapping.add(skip) };
        Ok(Region { mapping, mapped, start })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no buffer is left, since each holds the pool.
        let _ = unsafe { mm::munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocates `len` bytes when told, or waits again.
    struct Wants {
        pool: Rc<BufferPool>,
        this: std::rc::Weak<Wants>,
        len: usize,
        got: RefCell<Option<Buffer>>,
        told: Cell<usize>,
    }

    impl Wants {
        fn wait(pool: &Rc<BufferPool>, len: usize) -> Rc<Wants> {
            let wants = Rc::new_cyclic(|this| Wants {
                pool: Rc::clone(pool),
                this: std::rc::Weak::clone(this),
                len,
                got: RefCell::default(),
                told: Cell::default(),
            });
            pool.wait(Rc::clone(&wants) as Rc<_>, 0);
            wants
        }

        fn has(&self) -> bool {
            self.got.borrow().is_some()
        }
    }

    impl Complete for Wants {
        fn complete(&self, token: u64, _result: i32, _flags: u32) {
            self.told.set(self.told.get() + 1);
            *self.got.borrow_mut() = self.pool.allocate(self.len);
            if !self.has() {
                self.pool.wait(self.this.upgrade().expect("waiting"), token);
            }
        }
    }

    fn pool() -> Rc<BufferPool> {
        Rc::new(BufferPool::new(PIECE, None, 0).expect("address space"))
    }

    #[test]
    fn waiters_are_served_in_order_and_a_large_one_is_not_starved() {
        let pool = pool();
        let mut held: Vec<Buffer> = std::iter::from_fn(|| pool.allocate(BLOCK_MIN)).collect();
        assert_eq!((held.len(), pool.available()), (PIECE / BLOCK_MIN, 0));
        let large = Wants::wait(&pool, BLOCK_MAX);
        let small = Wants::wait(&pool, 1);
        assert!(!pool.serve(), "nothing came back");
        // One page does for the small one, but the large one was first.
        held.pop();
        assert!(pool.serve());
        assert_eq!((large.told.get(), small.told.get()), (1, 0));
        held.clear();
        assert!(pool.serve());
        assert!(large.has() && small.has());
        assert!(!pool.serve(), "nobody waits");
        assert_eq!(pool.available(), PIECE - BLOCK_MAX - BLOCK_MIN);
    }

    #[test]
    fn who_waits_for_two_buffers_is_not_told_of_what_he_could_not_use() {
        struct WantsTwo(Rc<BufferPool>, Cell<usize>, std::rc::Weak<WantsTwo>);
        impl Complete for WantsTwo {
            fn complete(&self, token: u64, _: i32, _: u32) {
                self.1.set(self.1.get() + 1);
                if self.0.allocate_two(BLOCK_MAX).is_none() {
                    self.0.wait(self.2.upgrade().expect("waiting"), token);
                }
            }
        }
        let pool = pool();
        let mut held: Vec<Buffer> = std::iter::from_fn(|| pool.allocate(BLOCK_MAX)).collect();
        let two = Rc::new_cyclic(|this| WantsTwo(Rc::clone(&pool), Cell::default(), this.clone()));
        pool.wait(Rc::clone(&two) as Rc<_>, 0);
        held.pop();
        assert!(pool.serve());
        assert!(!pool.has_served() && two.1.get() == 1, "it would spin");
        held.pop();
        assert!(pool.serve() && two.1.get() == 2);
        assert!(!pool.has_served(), "nobody waits");
    }

    #[test]
    fn who_stops_waiting_is_let_go() {
        let pool = pool();
        let held: Vec<Buffer> = std::iter::from_fn(|| pool.allocate(BLOCK_MAX)).collect();
        let [first, second] = [(); 2].map(|()| Wants::wait(&pool, BLOCK_MAX));
        let sink = Rc::clone(&first) as Rc<dyn Complete>;
        pool.stop_waiting(&sink, 1);
        assert_eq!(Rc::strong_count(&first), 3, "another token is another's");
        pool.stop_waiting(&sink, 0);
        pool.stop_waiting(&sink, 0);
        assert_eq!((Rc::strong_count(&first), Rc::strong_count(&second)), (2, 2));
        drop(held);
        assert!(pool.serve() && second.has() && first.told.get() == 0);
    }

    #[test]
    fn what_did_not_do_for_a_waiter_that_leaves_does_for_the_next() {
        let pool = pool();
        let mut held: Vec<Buffer> = std::iter::from_fn(|| pool.allocate(BLOCK_MIN)).collect();
        let large = Wants::wait(&pool, BLOCK_MAX);
        let small = Wants::wait(&pool, 1);
        held.pop();
        assert!(pool.serve() && !large.has() && !small.has());
        pool.stop_waiting(&(Rc::clone(&large) as Rc<dyn Complete>), 0);
        assert!(pool.serve() && small.has(), "nothing comes back any more");
    }

    #[test]
    fn a_waiter_that_needs_nothing_any_more_does_not_stop_the_others() {
        let pool = pool();
        let mut held: Vec<Buffer> = std::iter::from_fn(|| pool.allocate(BLOCK_MAX)).collect();
        struct Gone;
        impl Complete for Gone {
            fn complete(&self, _: u64, _: i32, _: u32) {}
        }
        pool.wait(Rc::new(Gone), 0);
        let other = Wants::wait(&pool, BLOCK_MAX);
        held.pop();
        assert!(pool.serve() && other.has());
    }

    #[test]
    fn buffers_are_aligned_disjoint_and_outlive_the_pool() {
        let pool = pool();
        let mut first = pool.allocate(5000).expect("room");
        let mut second = pool.allocate(1 << 20).expect("room");
        drop(pool);
        first.as_mut_slice().fill(1);
        second.as_mut_slice().fill(2);
        assert_eq!(first.as_ptr() as usize % BLOCK_MIN, 0);
        assert_eq!((first.len(), first.capacity()), (5000, 8192));
        assert!(first.as_slice().iter().all(|byte| *byte == 1));
        first.truncate(10_000);
        assert_eq!(first.len(), 5000);
        first.truncate(10);
        assert_eq!(first.as_slice().len(), 10);
        assert_eq!(first.ensure_registered(), None, "there is no ring");
    }

    #[test]
    fn more_than_the_largest_buffer_is_refused() {
        let pool = pool();
        assert!(pool.allocate(BLOCK_MAX + 1).is_none());
        assert_eq!(pool.available(), pool.capacity());
    }
}
