//! Virtual time: what happens next.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Events to come, in nanoseconds since the beginning. Events of the same time happen in the order
/// in which they were planned, so a run depends on its seed alone.
#[derive(Debug)]
pub struct Agenda<E> {
    heap: BinaryHeap<Entry<E>>,
    now_ns: u64,
    planned: u64,
}

#[derive(Debug)]
struct Entry<E> {
    /// Time, then order of planning.
    key: u128,
    event: E,
}

impl<E> Default for Agenda<E> {
    fn default() -> Agenda<E> {
        Agenda { heap: BinaryHeap::new(), now_ns: 0, planned: 0 }
    }
}

impl<E> Agenda<E> {
    /// The time.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Events planned so far.
    pub fn planned(&self) -> u64 {
        self.planned
    }

    /// Has `event` happen at `at_ns`, or now if that is over.
    pub fn at(&mut self, at_ns: u64, event: E) {
        let at_ns = at_ns.max(self.now_ns);
        self.planned += 1;
        let key = u128::from(at_ns) << 64 | u128::from(self.planned);
        self.heap.push(Entry { key, event });
    }

    /// Has `event` happen in `delay_ns`.
    pub fn after(&mut self, delay_ns: u64, event: E) {
        self.at(self.now_ns + delay_ns, event);
    }

    /// The next event, if it happens before `end_ns`; it is now then.
    pub fn next_before(&mut self, end_ns: u64) -> Option<E> {
        let at_ns = (self.heap.peek()?.key >> 64) as u64;
        if at_ns >= end_ns {
            return None;
        }
        self.now_ns = at_ns;
        self.heap.pop().map(|entry| entry.event)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// The heap gives the greatest first, we want the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_time_and_then_in_order() {
        let mut agenda = Agenda::default();
        agenda.at(20, 'c');
        agenda.at(10, 'a');
        agenda.at(10, 'b');
        assert_eq!(agenda.next_before(20), Some('a'));
        agenda.after(0, 'x');
        assert_eq!(agenda.next_before(20), Some('b'));
        assert_eq!(agenda.next_before(20), Some('x'));
        assert_eq!((agenda.next_before(20), agenda.now_ns()), (None, 10));
        assert_eq!((agenda.next_before(21), agenda.now_ns()), (Some('c'), 20));
        agenda.at(5, 'y');
        assert_eq!((agenda.next_before(99), agenda.now_ns()), (Some('y'), 20));
    }
}
