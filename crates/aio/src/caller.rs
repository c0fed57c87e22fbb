//! The caller's memory, read and written without dying where it is not mapped.
//!
//! The kernel answers a bad address with `EFAULT`; a library that follows it dies of `SIGSEGV`. So an
//! address on a page that we have not met is tried through the kernel first
//! (`process_vm_readv` on ourselves); pages that we have met are read directly. A program that
//! unmaps a page of its iocbs and then passes them on gets the signal, not the error.

use crate::abi::Event;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

const PAGE_BITS: u32 = 12;
/// Bytes of a page.
pub const PAGE: usize = 1 << PAGE_BITS;
/// Pages with the same last bits share a set, of which four are kept: with one, a list and its iocbs that happened to lie
/// so far apart would have to be tried through the kernel each time.
const SETS: usize = 512;
const WAYS: usize = 4;

/// Pages met: page number times 2, plus 1 where it is known to be writable.
static MET: [[AtomicUsize; WAYS]; SETS] = [const { [const { AtomicUsize::new(0) }; WAYS] }; SETS];
/// Which of a full set goes next.
static TURN: AtomicU32 = AtomicU32::new(0);

/// There is nothing at that address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Copies a plain structure from the caller.
#[inline(always)]
pub fn read<T: Copy>(address: usize) -> Result<T, Fault> {
    if !known(address, size_of::<T>(), false) {
        return foreign_read(address);
    }
    // SAFETY: the pages are mapped (met before), T is plain, no alignment is assumed.
    Ok(unsafe { (address as *const T).read_unaligned() })
}

/// Writes a plain structure to the caller.
#[inline(always)]
pub fn write<T: Copy>(address: usize, value: T) -> Result<(), Fault> {
    if !known(address, size_of::<T>(), true) {
        return foreign_write(address, value);
    }
    // SAFETY: the pages are mapped and writable (met before), no alignment is assumed.
    unsafe { (address as *mut T).write_unaligned(value) };
    Ok(())
}

/// Writes the event of place `index` of an array of events.
#[inline(always)]
pub fn write_event(array: usize, index: usize, event: Event) -> Result<(), Fault> {
    let address = index.checked_mul(size_of::<Event>()).and_then(|at| array.checked_add(at));
    write(address.ok_or(Fault)?, event)
}

/// Whether `len` bytes, a page at most, are known to be there and writable: they may then be accessed
/// directly.
#[inline(always)]
pub fn is_writable(address: usize, len: usize) -> bool {
    known(address, len, true)
}

/// The same, readable at least.
#[inline(always)]
pub fn is_readable(address: usize, len: usize) -> bool {
    known(address, len, false)
}

#[inline(always)]
fn known(address: usize, len: usize, writing: bool) -> bool {
    let first = address >> PAGE_BITS;
    let last = address.wrapping_add(len - 1) >> PAGE_BITS;
    met(first, writing) && (first == last || met(last, writing))
}

#[inline(always)]
fn met(page: usize, writing: bool) -> bool {
    let [first, ..] = &MET[page % SETS];
    tells(first.load(Relaxed), page, writing) || met_elsewhere(page, writing)
}

/// Whether an entry says that the page is there, and writable where that is wanted.
#[inline(always)]
fn tells(entry: usize, page: usize, writing: bool) -> bool {
    entry == page * 2 + 1 || (!writing && entry == page * 2 && page != 0)
}

#[inline(never)]
fn met_elsewhere(page: usize, writing: bool) -> bool {
    let [_, others @ ..] = &MET[page % SETS];
    others.iter().any(|entry| tells(entry.load(Relaxed), page, writing))
}

fn meet(address: usize, len: usize, writable: bool) {
    for page in [address >> PAGE_BITS, (address + len - 1) >> PAGE_BITS] {
        // What is known to be writable stays so.
        if met(page, writable) {
            continue;
        }
        let set = &MET[page % SETS];
        let holds = |held: usize| move |entry: &&AtomicUsize| entry.load(Relaxed) >> 1 == held;
        let place = set.iter().find(holds(page)).or_else(|| set.iter().find(holds(0)));
        let place = place.unwrap_or_else(|| &set[TURN.fetch_add(1, Relaxed) as usize % WAYS]);
        place.store(page * 2 + usize::from(writable), Relaxed);
    }
}

#[cold]
fn foreign_read<T: Copy>(address: usize) -> Result<T, Fault> {
    let mut value = MaybeUninit::<T>::uninit();
    let len = size_of::<T>();
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: len };
    let local = libc::iovec { iov_base: value.as_mut_ptr().cast(), iov_len: len };
    match transfer(libc::SYS_process_vm_readv, &local, &remote, len)? {
        // SAFETY: filled by the kernel.
        true => unsafe {
            meet(address, len, false);
            Ok(value.assume_init())
        },
        // SAFETY: nothing can be told beforehand on this system; as any library would.
        false => Ok(unsafe { (address as *const T).read_unaligned() }),
    }
}

#[cold]
fn foreign_write<T: Copy>(address: usize, value: T) -> Result<(), Fault> {
    let len = size_of::<T>();
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: len };
    let local = libc::iovec { iov_base: (&raw const value).cast_mut().cast(), iov_len: len };
    if transfer(libc::SYS_process_vm_writev, &local, &remote, len)? {
        meet(address, len, true);
    } else {
        // SAFETY: as in `foreign_read`.
        unsafe { (address as *mut T).write_unaligned(value) };
    }
    Ok(())
}

/// Whether the kernel has copied `len` bytes; false where it may not be asked (seccomp).
fn transfer(
    number: libc::c_long,
    local: &libc::iovec,
    remote: &libc::iovec,
    len: usize,
) -> Result<bool, Fault> {
    let (local, remote) = ((&raw const *local) as usize, (&raw const *remote) as usize);
    // SAFETY: one local vector that is ours, one remote one that the kernel checks.
    let copied = unsafe {
        // By this thread: the one that the process is named after may have ended, and has no memory then.
        let thread = crate::system::call(libc::SYS_gettid, [0; 6]) as usize;
        crate::system::call(number, [thread, local, 1, remote, 1, 0])
    };
    match copied {
        copied if copied == len as isize => Ok(true),
        denied if denied == -(libc::EPERM as isize) || denied == -(libc::ENOSYS as isize) => {
            Ok(false)
        }
        _ => Err(Fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_addresses_are_faults_and_good_ones_are_not() {
        assert_eq!(read::<u64>(0), Err(Fault));
        assert_eq!(read::<u64>(usize::MAX - 3), Err(Fault));
        assert_eq!(write(8, 1_u32), Err(Fault));
        let mut place = 7_u64;
        let address = (&raw mut place) as usize;
        for round in 0..3 {
            assert_eq!(read::<u64>(address), Ok(7 + round));
            assert_eq!(write(address, 8 + round), Ok(()));
        }
        assert_eq!(write(b"constant".as_ptr() as usize, 0_u8), Err(Fault));
        assert_eq!(read::<u8>(b"constant".as_ptr() as usize), Ok(b'c'));
    }

    /// Pages that share a set, and one more than it holds.
    #[test]
    fn pages_far_apart_are_known_together() {
        let step = SETS * PAGE;
        let mut memory = vec![0_u8; step * (WAYS + 2)];
        let base = (memory.as_mut_ptr() as usize).next_multiple_of(PAGE);
        let pages: Vec<usize> = (0..=WAYS).map(|way| base + way * step).collect();
        let known = |pages: &[usize]| pages.iter().filter(|&&page| is_writable(page, 8)).count();
        for &page in &pages[..WAYS] {
            assert_eq!(write(page, 1_u64), Ok(()));
        }
        // Other tests meet pages of theirs meanwhile.
        let before = known(&pages[..WAYS]);
        assert!(before >= WAYS - 1, "{before}");
        assert_eq!(write(pages[WAYS], 1_u64), Ok(()));
        assert!(is_writable(pages[WAYS], 8));
        assert!(known(&pages) >= WAYS - 1);
        // A page that was read first is known as writable once it was written.
        let last = base + step * (WAYS + 1) - PAGE;
        assert_eq!(read::<u64>(last), Ok(0));
        assert!(is_readable(last, 8) && !is_writable(last, 8));
        assert_eq!(write(last, 2_u64), Ok(()));
        assert!(is_writable(last, 8));
        assert_eq!(memory.iter().map(|&byte| u64::from(byte)).sum::<u64>(), WAYS as u64 + 3);
    }
}
