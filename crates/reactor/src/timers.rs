//! Timers of one reactor: a heap in user space, of which only the earliest matters to a sleep.

use crate::Complete;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Instant;

/// Cancelled entries may outnumber live ones by this many before the heap is rebuilt.
const STALE_MAX: usize = 64;

/// A timer that was set; see [`crate::Reactor::cancel_timer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

/// Entries of the heap refer to slots; a cancelled timer frees its slot at once and leaves its
/// entry behind, to be skipped when it comes up.
#[derive(Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(Instant, u64, TimerKey)>>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    live: usize,
    /// Timers of one instant fire in the order in which they were set.
    sequence: u64,
}

/// Index and generation, ordered only so that it may stand in the heap.
type TimerKey = (u32, u32);

struct Slot {
    generation: u32,
    pending: Option<(Rc<dyn Complete>, u64)>,
}

impl Timers {
    pub fn set(&mut self, at: Instant, sink: Rc<dyn Complete>, token: u64) -> TimerId {
        let pending = Some((sink, token));
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize].pending = pending;
                index
            }
            None => {
                self.slots.push(Slot { generation: 0, pending });
                u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 timers")
            }
        };
        let generation = self.slots[index as usize].generation;
        self.live += 1;
        self.sequence += 1;
        self.heap.push(Reverse((at, self.sequence, (index, generation))));
        TimerId { index, generation }
    }

    /// Returns what was pending, for the caller to drop; `None` if the timer has fired.
    pub fn cancel(&mut self, id: TimerId) -> Option<Rc<dyn Complete>> {
        let pending = self.take((id.index, id.generation))?;
        if self.heap.len() > 2 * self.live + STALE_MAX {
            let slots = &self.slots;
            self.heap.retain(|Reverse((_, _, (index, generation)))| {
                slots[*index as usize].generation == *generation
            });
        }
        Some(pending.0)
    }

    /// Whether none is set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// The next timer that is due by `now`.
    pub fn due(&mut self, now: Instant) -> Option<(Rc<dyn Complete>, u64)> {
        while self.heap.peek().is_some_and(|Reverse((at, _, _))| *at <= now) {
            let Reverse((_, _, key)) = self.heap.pop().expect("just seen");
            if let Some(pending) = self.take(key) {
                return Some(pending);
            }
        }
        None
    }

    /// When the earliest timer is due.
    pub fn next(&mut self) -> Option<Instant> {
        while let Some(Reverse((at, _, (index, generation)))) = self.heap.peek() {
            if self.slots[*index as usize].generation == *generation {
                return Some(*at);
            }
            self.heap.pop();
        }
        None
    }

    fn take(&mut self, (index, generation): TimerKey) -> Option<(Rc<dyn Complete>, u64)> {
        let slot = &mut self.slots[index as usize];
        if slot.generation != generation {
            return None;
        }
        let pending = slot.pending.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        self.live -= 1;
        Some(pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    struct Nobody;
    impl Complete for Nobody {
        fn complete(&self, _: u64, _: i32, _: u32) {}
    }

    #[test]
    fn fire_in_order_and_not_when_cancelled() {
        let mut timers = Timers::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut set = |ms, token| timers.set(at(ms), Rc::new(Nobody), token);
        set(30, 3);
        let second = set(20, 2);
        set(10, 1);
        set(10, 11);
        assert!(timers.cancel(second).is_some());
        assert!(timers.cancel(second).is_none());
        assert_eq!(timers.next(), Some(at(10)));
        assert!(timers.due(at(9)).is_none());
        let mut due = |ms| timers.due(at(ms)).map(|(_, token)| token);
        assert_eq!((due(10), due(10), due(29)), (Some(1), Some(11), None));
        assert_eq!((due(30), due(99)), (Some(3), None));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn timers_set_and_cancelled_for_ever_use_bounded_memory() {
        let mut timers = Timers::default();
        let later = Instant::now() + Duration::from_secs(120);
        for _ in 0..10_000 {
            let id = timers.set(later, Rc::new(Nobody), 0);
            timers.cancel(id);
        }
        assert!(timers.heap.len() <= STALE_MAX + 1, "{}", timers.heap.len());
        assert_eq!(timers.slots.len(), 1);
    }
}
