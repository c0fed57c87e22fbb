//! What was copied, as one number, and whether both sides are alike.

use namespace::checksum;
use std::collections::BTreeMap;

/// The checksum of pieces that come in any order.
#[derive(Default)]
pub(super) struct Sum {
    /// Of everything before `end`.
    whole: Option<u64>,
    end: u64,
    /// What came early: where it begins, its length and checksum.
    ahead: BTreeMap<u64, (u64, u64)>,
    /// What guards had counted when the copy began: offloaded, moved.
    pub(super) copied_before: (u64, u64),
}

impl Sum {
    /// Adds a piece from `start` on, of `len` bytes with the checksum `sum`.
    pub(super) fn add(&mut self, start: u64, len: u64, sum: u64) {
        self.ahead.insert(start, (len, sum));
        while let Some(entry) = self.ahead.first_entry() {
            if *entry.key() != self.end {
                break;
            }
            let (len, sum) = entry.remove();
            self.whole = Some(match self.whole {
                Some(before) => checksum::combine(before, sum, len),
                None => sum,
            });
            self.end += len;
        }
    }

    /// The checksum of everything, which has come.
    pub(super) fn whole(&self) -> u64 {
        debug_assert!(self.ahead.is_empty());
        self.whole.unwrap_or_else(|| checksum::of(&[]))
    }
}

/// The first byte in which two pieces differ.
pub(super) fn difference(one: &[u8], other: &[u8]) -> Option<usize> {
    if one == other {
        return None;
    }
    one.iter().zip(other).position(|(one, other)| one != other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_any_order_have_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..10_000u32).map(|at| (at * 7 % 251) as u8).collect();
        let mut sum = Sum::default();
        for (from, to) in [(5000, 10_000), (0, 100), (4000, 5000), (100, 4000)] {
            sum.add(from as u64, (to - from) as u64, checksum::of(&bytes[from..to]));
        }
        assert_eq!(sum.whole(), checksum::of(&bytes));
        assert_eq!(Sum::default().whole(), checksum::of(&[]));
    }

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(difference(b"abc", b"abc"), None);
        assert_eq!(difference(b"abc", b"abd"), Some(2));
        assert_eq!(difference(b"xbc", b"abd"), Some(0));
    }
}
