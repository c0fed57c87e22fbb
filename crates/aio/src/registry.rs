//! The contexts of this process, by id, in memory that a child finds empty (`MADV_WIPEONFORK`).
//!
//! So in a child every id is unknown and goes to the kernel, which answers `EINVAL` as it should; no
//! check of the process id is needed. [`Held`] keeps a context from being freed while it is in use.

use std::hint;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::SeqCst};

const SLOTS: usize = 512;
/// Places tried from where an id belongs.
const TRIES: usize = 16;
/// A key that is no id: the place is being filled.
const RESERVED: usize = 1;

#[repr(C)]
struct Slot<T> {
    key: AtomicUsize,
    users: AtomicU32,
    context: AtomicPtr<T>,
}

#[repr(C)]
struct Table<T> {
    slots: [Slot<T>; SLOTS],
}

/// Contexts of one kind.
pub struct Registry<T: 'static>(AtomicPtr<Table<T>>);

/// A context in use.
pub struct Held<T: 'static> {
    id: usize,
    slot: &'static Slot<T>,
    context: NonNull<T>,
}

impl<T> std::ops::Deref for Held<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: freed only when nobody holds it.
        unsafe { self.context.as_ref() }
    }
}

impl<T> Drop for Held<T> {
    #[inline]
    fn drop(&mut self) {
        self.slot.users.fetch_sub(1, SeqCst);
    }
}

impl<T> Registry<T> {
    /// Without contexts.
    pub const fn new() -> Self {
        Registry(AtomicPtr::new(ptr::null_mut()))
    }

    /// The context with that id, if it is one of ours.
    #[inline]
    pub fn find(&self, id: usize) -> Option<Held<T>> {
        let table = NonNull::new(self.0.load(SeqCst))?;
        // SAFETY: the table is never unmapped.
        let table = unsafe { table.as_ref() };
        // Nearly always where it belongs.
        match hold(place(table, id, 0), id) {
            Some(held) => Some(held),
            None => find_elsewhere(table, id),
        }
    }

    /// Makes a context known; gives it back when there is no place for it.
    pub fn insert(&self, id: usize, context: Box<T>) -> Result<(), Box<T>> {
        let Some(table) = self.table() else { return Err(context) };
        for step in 0..TRIES {
            let slot = place(table, id, step);
            if slot.users.load(SeqCst) != 0
                || slot.key.compare_exchange(0, RESERVED, SeqCst, SeqCst).is_err()
            {
                continue;
            }
            slot.context.store(Box::into_raw(context), SeqCst);
            slot.key.store(id, SeqCst);
            return Ok(());
        }
        Err(context)
    }

    fn table(&self) -> Option<&'static Table<T>> {
        // SAFETY: all zeroes is a valid Table.
        unsafe { wiped(&self.0) }
    }
}

/// The value that `place` leads to, in memory that a child finds all zeroes; made when first wanted.
///
/// # Safety
/// All zeroes is a valid T.
pub unsafe fn wiped<T>(place: &AtomicPtr<T>) -> Option<&'static T> {
    if let Some(value) = NonNull::new(place.load(SeqCst)) {
        // SAFETY: never unmapped.
        return Some(unsafe { value.as_ref() });
    }
    let len = size_of::<T>().next_multiple_of(4096);
    // SAFETY: new private memory, all zeroes, which the caller says is valid; wiped in a child
    // likewise.
    unsafe {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(ptr::null_mut(), len, both, flags, -1, 0);
        if memory == libc::MAP_FAILED {
            return None;
        }
        if libc::madvise(memory, len, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(memory, len);
            return None;
        }
        let made: *mut T = memory.cast();
        match place.compare_exchange(ptr::null_mut(), made, SeqCst, SeqCst) {
            Ok(_) => Some(&*made),
            Err(other) => {
                libc::munmap(memory, len);
                Some(&*other)
            }
        }
    }
}

impl<T> Held<T> {
    /// Makes the context unknown to everybody who does not hold it already; false when another
    /// thread was first.
    pub fn retire(&self) -> bool {
        self.slot.key.compare_exchange(self.id, RESERVED, SeqCst, SeqCst).is_ok()
    }

    /// Gives a retired context back once nobody else uses it. `nudge` is called again and again
    /// until then, to get others out of waiting.
    pub fn reclaim(self, nudge: impl Fn(&T)) -> Box<T> {
        let slot = self.slot;
        let mut turns = 0_u32;
        while slot.users.load(SeqCst) > 1 {
            nudge(&self);
            turns += 1;
            if turns < 100 {
                hint::spin_loop();
            } else {
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        }
        let context = slot.context.swap(ptr::null_mut(), SeqCst);
        drop(self);
        slot.key.store(0, SeqCst);
        // SAFETY: it came from a Box in `insert`, is out of the table, and nobody holds it.
        unsafe { Box::from_raw(context) }
    }
}

#[cold]
#[inline(never)]
fn find_elsewhere<T>(table: &'static Table<T>, id: usize) -> Option<Held<T>> {
    (1..TRIES).find_map(|step| hold(place(table, id, step), id))
}

/// The context at that place, if it has that id.
#[inline]
fn hold<T>(slot: &'static Slot<T>, id: usize) -> Option<Held<T>> {
    if slot.key.load(SeqCst) != id || id <= RESERVED {
        return None;
    }
    slot.users.fetch_add(1, SeqCst);
    if slot.key.load(SeqCst) == id
        && let Some(context) = NonNull::new(slot.context.load(SeqCst))
    {
        return Some(Held { id, slot, context });
    }
    slot.users.fetch_sub(1, SeqCst);
    None
}

#[inline]
fn place<T>(table: &'static Table<T>, id: usize, step: usize) -> &'static Slot<T> {
    &table.slots[((id >> 12) + step) % SLOTS]
}
