//! Events of what was carried out at once, until the program takes them: a ring that a submitting thread fills
//! under its lock, and that is emptied without one. Places are read before they are claimed, by words, so a
//! thread that comes too late has read something else in vain.

use crate::abi::Event;
use crate::context::Submitting;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};

/// The ring.
pub struct Inline {
    /// A power of two of them: what an event has besides a second result, which is 0.
    places: Box<[[AtomicU64; 4]]>,
    /// One less.
    mask: u64,
    /// Events taken so far.
    taken: AtomicU64,
    /// Events kept so far.
    kept: AtomicU64,
}

/// What was there at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    first: u64,
    /// Events, some of which other threads may have taken since.
    pub count: u32,
}

impl Inline {
    /// With room for `capacity` events.
    pub fn new(capacity: u32) -> Inline {
        let count = u64::from(capacity).next_power_of_two();
        let places = (0..count).map(|_| [const { AtomicU64::new(0) }; 4]).collect();
        Inline { places, mask: count - 1, taken: AtomicU64::new(0), kept: AtomicU64::new(0) }
    }

    /// The events that wait.
    #[inline(always)]
    pub fn waiting(&self) -> Waiting {
        // In this order: never less than there are.
        let first = self.taken.load(Acquire);
        Waiting { first, count: self.kept.load(SeqCst).wrapping_sub(first) as u32 }
    }

    /// Keeps an event, whose second result is 0. There is room: `Context::occupied` is below the capacity.
    #[inline(always)]
    pub fn keep(&self, _: &mut Submitting, event: Event) {
        let kept = self.kept.load(Relaxed);
        let [data, obj, res, _] = self.place(kept);
        data.store(event.data, Relaxed);
        obj.store(event.obj, Relaxed);
        res.store(event.res as u64, Relaxed);
        // Before the submitter looks whether somebody waits, who looks at this after having said so.
        self.kept.store(kept.wrapping_add(1), SeqCst);
    }

    /// The first event of those, for [`Inline::claim`] to say whether it is this thread's. There is one.
    #[inline(always)]
    pub fn first(&self, of: Waiting) -> Event {
        let [data, obj, res, _] = self.place(of.first);
        let (data, obj) = (data.load(Relaxed), obj.load(Relaxed));
        Event { data, obj, res: res.load(Relaxed) as i64, res2: 0 }
    }

    /// Takes the first event of those; false if another thread has.
    #[inline(always)]
    pub fn claim(&self, of: Waiting) -> bool {
        let next = of.first.wrapping_add(1);
        // Released, so that the place is not filled anew before it was read.
        self.taken.compare_exchange(of.first, next, AcqRel, Relaxed).is_ok()
    }

    /// Forgets what there is: nobody uses the context any more.
    pub fn clear(&mut self) {
        *self.taken.get_mut() = *self.kept.get_mut();
    }

    #[inline(always)]
    fn place(&self, count: u64) -> &[AtomicU64; 4] {
        // SAFETY: there are `mask + 1` places.
        unsafe { self.places.get_unchecked((count & self.mask) as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Files;

    fn event(number: u64) -> Event {
        Event { data: number, obj: !number, res: number as i64 * 3, res2: 0 }
    }

    fn submitting() -> Submitting {
        Submitting::new(Files::new())
    }

    fn take(inline: &Inline) -> Option<Event> {
        loop {
            let waiting = inline.waiting();
            if waiting.count == 0 {
                return None;
            }
            let event = inline.first(waiting);
            if inline.claim(waiting) {
                return Some(event);
            }
        }
    }

    #[test]
    fn events_come_in_order_and_are_forgotten() {
        let mut inline = Inline::new(5);
        let mut submitting = submitting();
        for round in 0..10 {
            for number in 0..5 {
                inline.keep(&mut submitting, event(round * 5 + number));
                assert_eq!(u64::from(inline.waiting().count), number + 1);
            }
            for number in 0..5 {
                assert_eq!(take(&inline), Some(event(round * 5 + number)));
            }
            assert_eq!(take(&inline), None);
        }
        inline.keep(&mut submitting, event(1));
        inline.clear();
        assert_eq!(take(&inline), None);
    }

    #[test]
    fn threads_take_each_event_once_and_whole() {
        const EVENTS: u64 = 100_000;
        const CAPACITY: u32 = 4;
        let inline = Inline::new(CAPACITY);
        let sums = std::thread::scope(|scope| {
            let takers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut count, mut sum, mut last) = (0, 0, None);
                        while last != Some(EVENTS) {
                            let Some(taken) = take(&inline) else {
                                std::thread::yield_now();
                                continue;
                            };
                            assert_eq!(taken, event(taken.data));
                            assert!(last < Some(taken.data));
                            last = Some(taken.data);
                            if taken.data < EVENTS {
                                (count, sum) = (count + 1, sum + taken.data);
                            }
                        }
                        (count, sum)
                    })
                })
                .collect();
            let mut submitting = submitting();
            // And one for each thread to end with.
            for number in (0..EVENTS).chain([EVENTS; 3]) {
                while inline.waiting().count == CAPACITY {
                    std::thread::yield_now();
                }
                inline.keep(&mut submitting, event(number));
            }
            let sums = takers.into_iter().map(|taker| taker.join().unwrap());
            sums.fold((0, 0), |(counts, sums), (count, sum)| (counts + count, sums + sum))
        });
        assert_eq!(sums, (EVENTS, EVENTS * (EVENTS - 1) / 2));
    }
}
