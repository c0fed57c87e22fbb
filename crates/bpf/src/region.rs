//! Memory that a program shares with its other cores: words of atomics, so that whatever programs do to it at
//! once is defined.

use crate::FaultKind;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use yoke::Yoke;

/// Consecutive bytes, little-endian in words of eight.
#[derive(Debug)]
pub struct Region {
    words: Place,
    writable: bool,
}

#[derive(Debug)]
enum Place {
    /// Gone with the region.
    Own(Box<[AtomicU64]>),
    /// Somebody else has them, too.
    Elsewhere(Words),
}

/// Memory of somebody else's, which stays as long as anybody has it.
#[derive(Clone, Debug)]
pub struct Words(Yoke<&'static [AtomicU64], Arc<dyn Owner>>);

/// Whoever has words, for as long as it is there.
pub trait Owner: Debug + Send + Sync {
    /// All of them, the same each time.
    fn words(&self) -> &[AtomicU64];
}

impl Owner for Vec<AtomicU64> {
    fn words(&self) -> &[AtomicU64] {
        self
    }
}

impl Words {
    /// Those of `owner`.
    pub fn of(owner: Arc<dyn Owner>) -> Words {
        Words(Yoke::attach_to_cart(owner, |owner| owner.words()))
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline(always)]
    fn deref(&self) -> &[AtomicU64] {
        self.0.get()
    }
}

impl Deref for Place {
    type Target = [AtomicU64];

    #[inline(always)]
    fn deref(&self) -> &[AtomicU64] {
        match self {
            Place::Own(words) => words,
            Place::Elsewhere(words) => words,
        }
    }
}

impl Region {
    /// `bytes` zeroes, rounded up to whole words.
    pub fn new(bytes: usize, writable: bool) -> Region {
        let words = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        Region { words: Place::Own(words), writable }
    }

    /// Of memory that others have, too.
    pub fn elsewhere(words: Words) -> Region {
        Region { words: Place::Elsewhere(words), writable: true }
    }

    /// Whether others have its memory, too.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.words, Place::Elsewhere(_))
    }

    /// Copies all of `from`, which is as long; each word as it is at some time.
    pub fn copy(&self, from: &Region) {
        assert_eq!(self.words.len(), from.words.len(), "it is for the same map");
        for (to, from) in self.words.iter().zip(&*from.words) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn word<const N: u32>(&self, offset: u32) -> Result<&AtomicU64, FaultKind> {
        if offset & (N - 1) != 0 {
            return Err(FaultKind::Misaligned);
        }
        self.words.get(offset as usize >> 3).ok_or(FaultKind::OutOfBounds)
    }

    /// `N` bytes from `offset`.
    #[inline(always)]
    pub fn load<const N: u32>(&self, offset: u32) -> Result<u64, FaultKind> {
        let word = self.word::<N>(offset)?.load(Ordering::Relaxed);
        Ok(if N == 8 { word } else { word >> shift(offset) & mask::<N>() })
    }

    /// Stores `N` bytes at `offset`.
    #[inline(always)]
    pub fn store<const N: u32>(&self, offset: u32, value: u64) -> Result<(), FaultKind> {
        if !self.writable {
            return Err(FaultKind::ReadOnly);
        }
        let word = self.word::<N>(offset)?;
        if N == 8 {
            word.store(value, Ordering::Relaxed);
        } else {
            replace::<N>(word, offset, |_| value);
        }
        Ok(())
    }

    /// Changes `N` bytes (4 or 8) at `offset` as one step; gives what they were.
    #[inline]
    pub fn change<const N: u32>(
        &self,
        offset: u32,
        to: impl Fn(u64) -> u64,
    ) -> Result<u64, FaultKind> {
        if !self.writable {
            return Err(FaultKind::ReadOnly);
        }
        Ok(replace::<N>(self.word::<N>(offset)?, offset, to))
    }

    /// Adds to eight bytes as one step, which processors have an instruction for.
    #[inline]
    pub fn add(&self, offset: u32, value: u64) -> Result<u64, FaultKind> {
        if !self.writable {
            return Err(FaultKind::ReadOnly);
        }
        Ok(self.word::<8>(offset)?.fetch_add(value, Ordering::AcqRel))
    }

    /// Copies bytes out, for whoever looks at a program's memory; each word as it is at some time.
    ///
    /// # Panics
    /// If they are not all within it.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        for (at, byte) in (offset..).zip(into) {
            *byte = (self.words[at / 8].load(Ordering::Relaxed) >> (at % 8 * 8)) as u8;
        }
    }

    /// Copies bytes in; bytes beside them stay as they are.
    ///
    /// # Panics
    /// If they are not all within it.
    pub fn write(&self, offset: usize, from: &[u8]) {
        let mut at = offset;
        let mut rest = from;
        while !rest.is_empty() {
            let count = (8 - at % 8).min(rest.len());
            let (bytes, more) = rest.split_at(count);
            let value = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            let word = &self.words[at / 8];
            if count == 8 {
                word.store(value, Ordering::Relaxed);
            } else {
                let (shift, mask) = (at % 8 * 8, (1 << (count * 8)) - 1);
                let put = |old: u64| Some(old & !(mask << shift) | value << shift);
                // The closure always has a new value.
                let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, put);
            }
            (at, rest) = (at + count, more);
        }
    }
}

fn shift(offset: u32) -> u32 {
    (offset & 7) * 8
}

const fn mask<const N: u32>() -> u64 {
    if N == 8 { u64::MAX } else { (1 << (N * 8)) - 1 }
}

fn replace<const N: u32>(word: &AtomicU64, offset: u32, to: impl Fn(u64) -> u64) -> u64 {
    let (shift, mask) = (shift(offset), mask::<N>());
    let put = |old: u64| {
        let new = to(old >> shift & mask) & mask;
        Some(old & !(mask << shift) | new << shift)
    };
    // The closure always has a new value, so that both are what was there before.
    let before = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, put);
    before.unwrap_or_else(|word| word) >> shift & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_stores_leave_their_neighbours_alone() {
        let region = Region::new(16, true);
        region.store::<8>(8, 0x8877_6655_4433_2211).unwrap();
        region.store::<2>(10, 0xbbaa).unwrap();
        region.store::<1>(15, 0xff).unwrap();
        assert_eq!(region.load::<8>(8), Ok(0xff77_6655_bbaa_2211));
        assert_eq!(region.load::<4>(12), Ok(0xff77_6655));
        assert_eq!(region.change::<4>(8, |old| old + 1), Ok(0xbbaa_2211));
        assert_eq!(region.load::<8>(0), Ok(0));
    }

    #[test]
    fn what_lies_outside_or_across_is_refused() {
        let region = Region::new(16, true);
        assert_eq!(region.load::<8>(16), Err(FaultKind::OutOfBounds));
        assert_eq!(region.load::<1>(u32::MAX), Err(FaultKind::OutOfBounds));
        assert_eq!(region.load::<8>(4), Err(FaultKind::Misaligned));
        assert_eq!(region.store::<2>(7, 0), Err(FaultKind::Misaligned));
        assert_eq!(Region::new(8, false).store::<8>(0, 1), Err(FaultKind::ReadOnly));
        assert_eq!(Region::new(8, false).add(0, 1), Err(FaultKind::ReadOnly));
    }

    #[test]
    fn bytes_are_copied_at_any_place() {
        let region = Region::new(32, true);
        let bytes: Vec<u8> = (1..=19).collect();
        region.write(5, &bytes);
        let mut all = [0; 32];
        region.read(0, &mut all);
        assert_eq!(all[5..24], bytes);
        assert!(all[..5].iter().chain(&all[24..]).all(|byte| *byte == 0));
    }
}
