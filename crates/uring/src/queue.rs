//! The two queues as they lie in memory shared with the kernel.
//!
//! ```text
//!   submission, Kind::Small      | 64 | 64 | 64 | 64 |
//!               Kind::Big        |   128   |   128   |
//!               Kind::Mixed      | 64 |   128   | 64 |    never | 28 |  ...  | 1 |: the last slot
//!   completion, Kind::Mixed      | 16 |    32   | 16 |    is filled up instead
//! ```

use crate::emulated::Sqe;
use crate::entry::{BIG_NOP, BIG_URING_CMD, BigEntry, Entry, NOP, URING_CMD};
use crate::sys::{self, Mapping, Parameters};
use crate::{Completion, Kind, Setup};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::{io, mem, ptr};

/// Completion flag: the entry has 32 bytes (mixed rings).
const CQE_32: u32 = 1 << 15;
/// Completion flag: fills up the end of a mixed ring, nobody's.
const CQE_SKIP: u32 = 1 << 5;
/// `user_data` of what is nobody's in a mixed ring.
const NOBODYS: u64 = u64::MAX;
/// Flag of a submission entry: no completion if it succeeds.
const CQE_SKIP_SUCCESS: u8 = 1 << 6;

const SMALL_BYTES: usize = 64;
const BIG_BYTES: usize = 128;
const COMPLETION_BYTES: usize = 16;

/// Maps both queues of a new ring.
pub fn map(
    fd: &OwnedFd,
    parameters: &Parameters,
    setup: &Setup,
) -> io::Result<(Submissions, Completions)> {
    let big = setup.kind == Kind::Big;
    let completion_bytes = if big { 2 * COMPLETION_BYTES } else { COMPLETION_BYTES };
    let entry_bytes = if big { BIG_BYTES } else { SMALL_BYTES };
    let (sq, cq) = (&parameters.submission, &parameters.completion);
    let array = sq.array as usize + parameters.sq_entries as usize * mem::size_of::<u32>();
    let cqes = cq.cqes as usize + parameters.cq_entries as usize * completion_bytes;
    let rings = Mapping::rings(fd, array.max(cqes))?;
    let entries = Mapping::entries(fd, parameters.sq_entries as usize * entry_bytes)?;
    if !setup.no_sqarray {
        for index in 0..parameters.sq_entries {
            // SAFETY: the array has a place per entry, and nobody else knows the ring yet.
            unsafe { rings.at::<u32>(sq.array).add(index as usize).write(index) };
        }
    }
    let flags = rings.at::<AtomicU32>(sq.flags);
    Ok(over(rings, entries, flags, parameters, setup))
}

/// Both queues as they lie in `rings` and `entries`; the kernel's flags are where `flags` says.
fn over(
    rings: Mapping,
    entries: Mapping,
    flags: *const AtomicU32,
    parameters: &Parameters,
    setup: &Setup,
) -> (Submissions, Completions) {
    let (sq, cq) = (&parameters.submission, &parameters.completion);
    let entry_bytes = if setup.kind == Kind::Big { BIG_BYTES } else { SMALL_BYTES };
    let completions = Completions {
        head: rings.at(cq.head),
        tail: rings.at(cq.tail),
        mask: parameters.cq_entries - 1,
        next: 0,
        noted: 0,
        entries: rings.at(cq.cqes),
        kind: setup.kind,
    };
    if setup.kind == Kind::Mixed {
        // SAFETY: the first completion entry; the kernel has not written any yet.
        unsafe { completions.entries.write(NOBODYS) };
    }
    let submissions = Submissions {
        head: rings.at(sq.head),
        tail: rings.at(sq.tail),
        flags,
        slots: parameters.sq_entries,
        next: 0,
        taken: 0,
        shift: entry_bytes.trailing_zeros(),
        kind: setup.kind,
        entries: entries.at(0),
        _entries: entries,
        _rings: rings,
    };
    (submissions, completions)
}

/// Both queues of a ring that is emulated, in memory of our own, and the ends of them that are a kernel's otherwise. Lives no
/// longer than the [`Submissions`] beside it.
pub struct Ends {
    /// Of the submission queue: where we are.
    head: *const AtomicU32,
    tail: *const AtomicU32,
    entries: *const Sqe,
    slots: u32,
    /// Of the completion queue: where the owner of the ring is, and where we are.
    read: *const AtomicU32,
    written: *const AtomicU32,
    completions: *mut u64,
    places: u32,
}

impl Ends {
    /// Queues with the sizes in `setup`, and the kernel's flags where `flags` says, which live as long as the queues do.
    pub fn new(
        setup: &Setup,
        flags: *const AtomicU32,
    ) -> io::Result<(Submissions, Completions, Ends)> {
        /// Apart, so that neither side's stores disturb the other's.
        const LINE: u32 = 64;
        let mut parameters = Parameters {
            sq_entries: setup.entries,
            cq_entries: setup.completions,
            ..Parameters::default()
        };
        parameters.submission.tail = LINE;
        parameters.completion.head = 2 * LINE;
        parameters.completion.tail = 3 * LINE;
        parameters.completion.cqes = 4 * LINE;
        let cqes = setup.completions as usize * COMPLETION_BYTES;
        let rings = Mapping::anonymous(4 * LINE as usize + cqes)?;
        let entries = Mapping::anonymous(setup.entries as usize * SMALL_BYTES)?;
        let ends = Ends {
            head: rings.at(parameters.submission.head),
            tail: rings.at(parameters.submission.tail),
            entries: entries.at(0),
            slots: setup.entries,
            read: rings.at(parameters.completion.head),
            written: rings.at(parameters.completion.tail),
            completions: rings.at(parameters.completion.cqes),
            places: setup.completions,
        };
        let (submissions, completions) = over(rings, entries, flags, &parameters, setup);
        Ok((submissions, completions, ends))
    }

    /// Takes the next entry.
    pub fn next(&mut self) -> Option<Sqe> {
        // SAFETY: within the mapping, as are all slots.
        unsafe {
            let head = (*self.head).load(Ordering::Relaxed);
            if head == (*self.tail).load(Ordering::Acquire) {
                return None;
            }
            let sqe = self.entries.add((head & (self.slots - 1)) as usize).read();
            (*self.head).store(head.wrapping_add(1), Ordering::Release);
            Some(sqe)
        }
    }

    /// Puts a completion in; `false` if there is no room.
    pub fn post(&mut self, user_data: u64, result: i32) -> bool {
        if self.completions() == self.places {
            return false;
        }
        // SAFETY: within the mapping, as are all places; this one was read.
        unsafe {
            let written = (*self.written).load(Ordering::Relaxed);
            let place = self.completions.add(2 * (written & (self.places - 1)) as usize);
            place.write(user_data);
            place.add(1).cast::<i32>().write(result);
            place.add(1).cast::<u32>().add(1).write(0);
            (*self.written).store(written.wrapping_add(1), Ordering::Release);
        }
        true
    }

    /// Completions that were not read.
    pub fn completions(&self) -> u32 {
        // SAFETY: within the mapping.
        unsafe {
            let read = (*self.read).load(Ordering::Acquire);
            (*self.written).load(Ordering::Relaxed).wrapping_sub(read)
        }
    }
}

/// Where entries are put. Owns the memory of both queues.
pub struct Submissions {
    head: *const AtomicU32,
    tail: *const AtomicU32,
    flags: *const AtomicU32,
    slots: u32,
    /// The tail: only we move it.
    next: u32,
    /// The head when it was last looked at.
    taken: u32,
    /// Bytes of a slot, as a power of two.
    shift: u32,
    kind: Kind,
    entries: *mut u8,
    _entries: Mapping,
    _rings: Mapping,
}

/// Where an entry of a mixed ring goes, in slots counted from the ring's beginning of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// This many slots are filled up before it, 0 or 1.
    fill: u32,
    /// The tail when it is in.
    next: u32,
}

/// Finds two slots in a row behind `next` in a ring of `slots`, of which those before `taken` are
/// the kernel's no more. The kernel refuses an entry that begins in the last slot.
#[inline]
fn place_two(next: u32, taken: u32, slots: u32) -> Option<Place> {
    let last = slots - 1;
    let fill = u32::from(next & last == last);
    let free = slots - next.wrapping_sub(taken);
    (free >= fill + 2).then(|| Place { fill, next: next.wrapping_add(fill + 2) })
}

impl Submissions {
    /// Puts an entry in; `false` if there is no room.
    #[inline]
    pub fn push(&mut self, entry: &Entry) -> bool {
        if self.next.wrapping_sub(self.taken) == self.slots {
            self.taken = self.head();
            if self.next.wrapping_sub(self.taken) == self.slots {
                return false;
            }
        }
        // SAFETY: the slot is free, and has 64 bytes at least.
        unsafe { ptr::copy_nonoverlapping(ptr::from_ref(entry), self.slot(self.next).cast(), 1) };
        self.publish(self.next.wrapping_add(1));
        true
    }

    /// Puts an entry of 128 bytes in; `false` if there is no room, or never is any.
    #[inline]
    pub fn push_big(&mut self, entry: &BigEntry) -> bool {
        match self.kind {
            Kind::Big => {}
            Kind::Mixed => return self.push_two(entry),
            Kind::Small => return false,
        }
        if self.next.wrapping_sub(self.taken) == self.slots {
            self.taken = self.head();
            if self.next.wrapping_sub(self.taken) == self.slots {
                return false;
            }
        }
        // SAFETY: the slot is free and has 128 bytes.
        unsafe { ptr::copy_nonoverlapping(ptr::from_ref(entry), self.slot(self.next).cast(), 1) };
        self.publish(self.next.wrapping_add(1));
        true
    }

    /// The next place of an entry of 128 bytes, to be filled and then given away by [`Submissions::publish_big`]; none if
    /// there is no room, or entries are of no one size.
    #[inline]
    pub fn next_big(&mut self) -> Option<&mut BigEntry> {
        if self.kind != Kind::Big {
            return None;
        }
        if self.next.wrapping_sub(self.taken) == self.slots {
            self.taken = self.head();
            if self.next.wrapping_sub(self.taken) == self.slots {
                return None;
            }
        }
        // SAFETY: the slot is free and has 128 bytes, of which every pattern is an entry; nobody else looks at it before it
        // is published.
        Some(unsafe { &mut *self.slot(self.next).cast::<BigEntry>() })
    }

    /// What [`Submissions::next_big`] gave is filled.
    #[inline]
    pub fn publish_big(&mut self) {
        self.publish(self.next.wrapping_add(1));
    }

    fn push_two(&mut self, entry: &BigEntry) -> bool {
        let mut place = place_two(self.next, self.taken, self.slots);
        if place.is_none() {
            self.taken = self.head();
            place = place_two(self.next, self.taken, self.slots);
        }
        let Some(Place { fill, next }) = place else { return false };
        if fill > 0 {
            let filler = crate::entry::nop().user_data(NOBODYS);
            // SAFETY: the slot is free and has 64 bytes; `flags` is the second byte of an entry.
            unsafe {
                let slot = self.slot(self.next);
                ptr::copy_nonoverlapping(&raw const filler, slot.cast(), 1);
                slot.add(1).write(CQE_SKIP_SUCCESS);
            }
        }
        let slot = self.slot(next.wrapping_sub(2));
        // SAFETY: this slot and the next are free, and lie side by side: together 128 bytes, of
        // which the first is the operation's code.
        unsafe {
            ptr::copy_nonoverlapping(ptr::from_ref(entry), slot.cast(), 1);
            slot.write(match slot.read() {
                NOP => BIG_NOP,
                URING_CMD => BIG_URING_CMD,
                other => other,
            });
        }
        self.publish(next);
        true
    }

    /// Slots queued and not yet taken by the kernel.
    #[inline]
    pub fn queued(&self) -> u32 {
        self.next.wrapping_sub(self.head())
    }

    /// The kernel's flags.
    #[inline]
    pub fn flags(&self) -> u32 {
        // SAFETY: within the mapping that we own.
        unsafe { (*self.flags).load(Ordering::Acquire) }
    }

    /// Whether the kernel's thread has gone to sleep and must be woken to see what was queued.
    #[inline]
    pub fn thread_sleeps(&self) -> bool {
        // The thread sets the flag, then looks at the tail: one of us sees the other.
        fence(Ordering::SeqCst);
        self.flags() & sys::SQ_NEED_WAKEUP != 0
    }

    #[inline]
    fn head(&self) -> u32 {
        // SAFETY: within the mapping that we own.
        unsafe { (*self.head).load(Ordering::Acquire) }
    }

    #[inline]
    fn publish(&mut self, next: u32) {
        self.next = next;
        // SAFETY: within the mapping that we own.
        unsafe { (*self.tail).store(next, Ordering::Release) };
    }

    #[inline]
    fn slot(&self, position: u32) -> *mut u8 {
        let index = (position & (self.slots - 1)) as usize;
        // SAFETY: within the mapping, which has `slots` slots.
        unsafe { self.entries.add(index << self.shift) }
    }
}

/// Where completions are found. Lives no longer than the [`Submissions`] beside it.
pub struct Completions {
    head: *const AtomicU32,
    tail: *const AtomicU32,
    mask: u32,
    /// The head: only we move it.
    next: u32,
    /// Where completions ended when that was noted: not before the head, nor behind the tail.
    noted: u32,
    entries: *mut u64,
    kind: Kind,
}

impl Completions {
    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        let tail = self.tail();
        self.next == tail || (self.kind == Kind::Mixed && self.ends_in_filler(tail))
    }

    /// Notes where completions end now, for [`Completions::next_noted`]. How many slots lie before that: of a mixed ring
    /// some may be fillers, and big completions take two.
    #[inline]
    pub fn note_end(&mut self) -> usize {
        self.noted = self.tail();
        self.noted.wrapping_sub(self.next) as usize
    }

    /// The next completion, if it lies before the end that was noted.
    #[inline]
    pub fn next_noted(&mut self) -> Option<Completion> {
        if self.next == self.noted {
            return None;
        }
        let index = (self.next & self.mask) as usize;
        // SAFETY: the kernel has written the entry, and writes no more until the head passes.
        let completion = unsafe {
            match self.kind {
                Kind::Small => read(self.entries.add(index * 2), false),
                Kind::Big => read(self.entries.add(index * 4), true),
                Kind::Mixed => {
                    let (completion, next) = self.next_mixed(self.noted);
                    self.pass(next);
                    return completion;
                }
            }
        };
        self.pass(self.next.wrapping_add(1));
        Some(completion)
    }

    /// What lies before `next` was read: the kernel may write there.
    #[inline]
    fn pass(&mut self, next: u32) {
        self.next = next;
        // SAFETY: within the mapping of the ring. What was read before is read before the kernel
        // sees this.
        unsafe { (*self.head).store(next, Ordering::Release) };
    }

    /// Moves completions into `into` until it is at its capacity or none is left.
    #[inline]
    pub fn take(&mut self, into: &mut Vec<Completion>) {
        let tail = self.tail();
        if tail == self.next {
            return;
        }
        self.noted = tail;
        let next = match self.kind {
            Kind::Small => self.take_sized::<2>(tail, into),
            Kind::Big => self.take_sized::<4>(tail, into),
            Kind::Mixed => return self.take_mixed(tail, into),
        };
        self.pass(next);
    }

    /// Entries of `WORDS` eight-byte words each.
    #[inline]
    fn take_sized<const WORDS: usize>(&self, tail: u32, into: &mut Vec<Completion>) -> u32 {
        let len = into.len();
        let room = into.spare_capacity_mut();
        let count = (tail.wrapping_sub(self.next) as usize).min(room.len());
        for (place, position) in room[..count].iter_mut().zip(0..) {
            let index = (self.next.wrapping_add(position) & self.mask) as usize;
            // SAFETY: the kernel has written the entry, and writes no more until the head passes.
            place.write(unsafe { read(self.entries.add(index * WORDS), WORDS > 2) });
        }
        // SAFETY: so many were written into the spare places.
        unsafe { into.set_len(len + count) };
        self.next.wrapping_add(count as u32)
    }

    /// Entries of either size.
    fn take_mixed(&mut self, tail: u32, into: &mut Vec<Completion>) {
        while into.len() < into.capacity() {
            let (completion, next) = self.next_mixed(tail);
            self.pass(next);
            let Some(completion) = completion else { return };
            into.push(completion);
        }
    }

    /// The next of entries of either size before `tail`, and the head when it was taken.
    ///
    /// Where a big completion needs the ring's first slots, and they are not free, kernels (seen in
    /// 7.2) fill up the last slot nevertheless, and remember that it is free: the next small
    /// completion goes into that slot, over the filler, and the tail passes the first slot, in which
    /// nothing was put. Hence a filler is passed only when something follows it, and what was read
    /// out of the first slot is marked, so as not to be taken for a completion again.
    fn next_mixed(&self, tail: u32) -> (Option<Completion>, u32) {
        let mut head = self.next;
        while head != tail {
            let index = (head & self.mask) as usize;
            // SAFETY: as in `next_noted`; a big entry never begins in the last slot.
            let (entry, flags) = unsafe { (self.entries.add(index * 2), self.flags_at(index)) };
            if flags & CQE_SKIP != 0 {
                if head.wrapping_add(1) == tail {
                    break;
                }
                head = head.wrapping_add(1);
                continue;
            }
            // SAFETY: as above.
            let completion = unsafe { read(entry, flags & CQE_32 != 0) };
            let mut nobodys = false;
            if index == 0 {
                nobodys = completion.user_data == NOBODYS;
                // SAFETY: as above; the kernel writes here only when the head has passed.
                unsafe { entry.write(NOBODYS) };
            }
            if nobodys {
                head = head.wrapping_add(1);
            } else {
                head = head.wrapping_add(1 + u32::from(flags & CQE_32 != 0));
                return (Some(completion), head);
            }
        }
        (None, head)
    }

    /// Whether the only thing that is left is the filler in a mixed ring's last slot.
    fn ends_in_filler(&self, tail: u32) -> bool {
        let index = (self.next & self.mask) as usize;
        // SAFETY: within the mapping; the kernel has written there, since the tail is behind it.
        self.next.wrapping_add(1) == tail && unsafe { self.flags_at(index) } & CQE_SKIP != 0
    }

    /// # Safety
    /// The kernel has written the entry.
    #[inline]
    unsafe fn flags_at(&self, index: usize) -> u32 {
        // SAFETY: `flags` is the fourth word of four bytes.
        unsafe { self.entries.add(index * 2).cast::<u32>().add(3).read() }
    }

    #[inline]
    fn tail(&self) -> u32 {
        // SAFETY: within the mapping of the ring.
        unsafe { (*self.tail).load(Ordering::Acquire) }
    }
}

/// Reads one entry (`struct io_uring_cqe`).
///
/// # Safety
/// It has two words, four if it is `big`.
#[inline(always)]
unsafe fn read(entry: *const u64, big: bool) -> Completion {
    // SAFETY: passed on to the caller. `res` is the lower half of the second word, and `flags` the
    // upper: in memory, `res` comes first.
    unsafe {
        let result_and_flags = entry.add(1).cast::<u32>();
        Completion {
            user_data: entry.read(),
            result: result_and_flags.read() as i32,
            flags: result_and_flags.add(1).read(),
            extra: if big { entry.add(2).read() } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_slots_never_straddle_the_end() {
        assert_eq!(place_two(0, 0, 8), Some(Place { fill: 0, next: 2 }));
        assert_eq!(place_two(6, 0, 8), Some(Place { fill: 0, next: 8 }));
        assert_eq!(place_two(7, 5, 8), Some(Place { fill: 1, next: 10 }));
        assert_eq!(place_two(7, 0, 8), None, "one slot is left");
        assert_eq!(place_two(7, 1, 8), None, "two are, but not in a row");
        assert_eq!(place_two(7, 2, 8), Some(Place { fill: 1, next: 10 }));
        assert_eq!(place_two(u32::MAX, u32::MAX - 1, 8), Some(Place { fill: 1, next: 2 }));
    }

    proptest! {
        /// Against a model that owns each slot: what is put in is disjoint, in order, never
        /// straddles the end, and is refused only when it does not fit.
        #[test]
        fn slots_are_used_once_and_in_order(
            start in any::<u32>(),
            order in 2u32..8,
            steps in prop::collection::vec((any::<bool>(), 0u32..6), 1..400),
        ) {
            let slots = 1 << order;
            let (mut next, mut taken) = (start, start);
            let mut held = vec![false; slots as usize];
            let mut waiting: std::collections::VecDeque<(u32, u32)> = Default::default();
            for (big, takes) in steps {
                let size = if big { 2 } else { 1 };
                let place = if big {
                    place_two(next, taken, slots)
                } else {
                    let free = slots - next.wrapping_sub(taken);
                    (free > 0).then(|| Place { fill: 0, next: next.wrapping_add(1) })
                };
                match place {
                    Some(place) => {
                        let used = place.next.wrapping_sub(next);
                        prop_assert_eq!(used, place.fill + size);
                        for position in 0..used {
                            let slot = next.wrapping_add(position) & (slots - 1);
                            prop_assert!(!std::mem::replace(&mut held[slot as usize], true));
                        }
                        let first = place.next.wrapping_sub(size) & (slots - 1);
                        prop_assert!(first + size <= slots);
                        waiting.push_back((next, used));
                        next = place.next;
                    }
                    None => {
                        let free = slots - next.wrapping_sub(taken);
                        let at_end = next & (slots - 1) == slots - 1;
                        prop_assert!(free < size + u32::from(big && at_end));
                    }
                }
                for _ in 0..takes {
                    let Some((at, used)) = waiting.pop_front() else { break };
                    prop_assert_eq!(at, taken);
                    for position in 0..used {
                        held[(at.wrapping_add(position) & (slots - 1)) as usize] = false;
                    }
                    taken = at.wrapping_add(used);
                }
            }
        }
    }
}
