//! What was copied, as one number, and whether both sides are alike.

use crc_fast::{CrcAlgorithm, checksum, checksum_combine};
use std::collections::BTreeMap;

/// The checksum, by its name in results.
pub const ALGORITHM: &str = "CRC-64/NVME";

const CRC: CrcAlgorithm = CrcAlgorithm::Crc64Nvme;

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
    /// Adds a piece from `start` on.
    pub(super) fn add(&mut self, start: u64, bytes: &[u8]) {
        let sum = checksum(CRC, bytes);
        self.ahead.insert(start, (bytes.len() as u64, sum));
        while let Some(entry) = self.ahead.first_entry() {
            if *entry.key() != self.end {
                break;
            }
            let (len, sum) = entry.remove();
            self.whole = Some(match self.whole {
                Some(before) => checksum_combine(CRC, before, sum, len),
                None => sum,
            });
            self.end += len;
        }
    }

    /// The checksum of everything, which has come.
    pub(super) fn whole(&self) -> u64 {
        debug_assert!(self.ahead.is_empty());
        self.whole.unwrap_or_else(|| checksum(CRC, &[]))
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
            sum.add(from as u64, &bytes[from..to]);
        }
        assert_eq!(sum.whole(), checksum(CRC, &bytes));
        // What the specification's check value is for.
        let mut sum = Sum::default();
        sum.add(0, b"1234");
        sum.add(4, b"56789");
        assert_eq!(sum.whole(), 0xae8b_1486_0a79_9888);
    }

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(difference(b"abc", b"abc"), None);
        assert_eq!(difference(b"abc", b"abd"), Some(2));
        assert_eq!(difference(b"xbc", b"abd"), Some(0));
    }
}
