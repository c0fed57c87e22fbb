//! A table of things in flight, numbered so that a `u64` can stand for one.

use std::cell::RefCell;

/// Slots that are used again: no allocation once it has been as full as it gets.
#[derive(Debug)]
pub struct Slab<T> {
    inner: RefCell<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { inner: RefCell::new(Inner { slots: Vec::new(), free: Vec::new() }) }
    }
}

impl<T> Slab<T> {
    /// Keeps `value` and says under which number.
    pub fn insert(&self, value: T) -> u64 {
        let mut inner = self.inner.borrow_mut();
        match inner.free.pop() {
            Some(slot) => {
                inner.slots[slot] = Some(value);
                slot as u64
            }
            None => {
                inner.slots.push(Some(value));
                inner.slots.len() as u64 - 1
            }
        }
    }

    /// Gives back what is kept under `slot`.
    ///
    /// # Panics
    /// If nothing is.
    pub fn take(&self, slot: u64) -> T {
        let mut inner = self.inner.borrow_mut();
        let value = inner.slots[slot as usize].take().expect("the slot is in use");
        inner.free.push(slot as usize);
        value
    }

    /// Gives back all that is kept.
    pub fn clear(&self) -> Vec<Option<T>> {
        let mut inner = self.inner.borrow_mut();
        inner.free.clear();
        std::mem::take(&mut inner.slots)
    }

    /// Whether anything kept `is_meant`.
    pub fn any(&self, is_meant: impl FnMut(&T) -> bool) -> bool {
        self.inner.borrow().slots.iter().flatten().any(is_meant)
    }

    /// The numbers under which something is kept that `is_meant`.
    pub fn numbers(&self, mut is_meant: impl FnMut(&T) -> bool) -> Vec<u64> {
        let inner = self.inner.borrow();
        let slots = inner.slots.iter().enumerate();
        slots
            .filter(|(_, value)| value.as_ref().is_some_and(&mut is_meant))
            .map(|(slot, _)| slot as u64)
            .collect()
    }

    /// Works on what is kept under `slot`. The table is borrowed meanwhile.
    ///
    /// # Panics
    /// If nothing is kept there.
    #[inline]
    pub fn with<R>(&self, slot: u64, work: impl FnOnce(&mut T) -> R) -> R {
        let mut inner = self.inner.borrow_mut();
        work(inner.slots[slot as usize].as_mut().expect("the slot is in use"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_used_again() {
        let slab = Slab::default();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_ne!(a, b);
        assert_eq!(slab.take(a), 'a');
        assert_eq!(slab.insert('c'), a);
        slab.with(b, |value| *value = 'd');
        assert_eq!(slab.numbers(|_| true), [a, b]);
        assert!(slab.any(|value| *value == 'd') && !slab.any(|value| *value == 'a'));
        assert_eq!(slab.numbers(|value| *value == 'd'), [b]);
        assert_eq!((slab.take(b), slab.take(a)), ('d', 'c'));
        assert_eq!(slab.numbers(|_| true), []);
        slab.insert('e');
        assert_eq!(slab.clear().into_iter().flatten().collect::<String>(), "e");
        assert!(!slab.any(|_| true));
        slab.with(slab.insert('f'), |value| assert_eq!(*value, 'f'));
    }
}
