//! Sets of paths as bits.

/// Paths by number, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathSet(pub u16);

impl PathSet {
    /// None.
    pub const EMPTY: PathSet = PathSet(0);

    /// One path.
    #[inline]
    pub fn of(path: usize) -> PathSet {
        PathSet(1 << path)
    }

    /// The paths below `count`.
    pub fn first(count: usize) -> PathSet {
        PathSet(((1u32 << count) - 1) as u16)
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many there are.
    #[inline]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether `path` is among them.
    #[inline]
    pub fn contains(self, path: usize) -> bool {
        self.0 >> path & 1 != 0
    }

    /// These and `path`.
    #[inline]
    #[must_use]
    pub fn with(self, path: usize) -> PathSet {
        PathSet(self.0 | 1 << path)
    }

    /// These but not `other`.
    #[inline]
    #[must_use]
    pub fn without(self, other: PathSet) -> PathSet {
        PathSet(self.0 & !other.0)
    }

    /// Those in both.
    #[inline]
    #[must_use]
    pub fn and(self, other: PathSet) -> PathSet {
        PathSet(self.0 & other.0)
    }

    /// The lowest.
    #[inline]
    pub fn lowest(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    /// The one that has `number` lower ones beside it; there are more than that.
    #[inline]
    pub fn nth(self, number: usize) -> usize {
        debug_assert!(number < self.len());
        let rest = (0..number).fold(self.0, |rest, _| rest & rest.wrapping_sub(1));
        rest.trailing_zeros() as usize
    }

    /// The first from `start` on, going round.
    #[inline]
    pub fn next_from(self, start: usize) -> Option<usize> {
        let later = u32::from(self.0) >> start << start;
        match later {
            0 => self.lowest(),
            bits => Some(bits.trailing_zeros() as usize),
        }
    }

    /// The last before `end`, going round.
    #[inline]
    pub fn last_before(self, end: usize) -> Option<usize> {
        let earlier = u32::from(self.0) & ((1 << end) - 1);
        let bits = if earlier != 0 { earlier } else { u32::from(self.0) };
        (bits != 0).then(|| bits.ilog2() as usize)
    }
}

impl Iterator for PathSet {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let path = self.lowest()?;
        self.0 &= self.0 - 1;
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn going_round() {
        let set = PathSet::of(1).with(3).with(15);
        assert_eq!(set.collect::<Vec<_>>(), [1, 3, 15]);
        let from = |start| set.next_from(start);
        assert_eq!(
            [from(0), from(1), from(2), from(4), from(16)].map(Option::unwrap),
            [1, 1, 3, 15, 1]
        );
        let before = |end| set.last_before(end);
        assert_eq!(
            [before(0), before(1), before(2), before(15), before(16)].map(Option::unwrap),
            [15, 15, 1, 3, 15]
        );
        assert_eq!(PathSet::EMPTY.next_from(3), None);
        assert_eq!(PathSet::EMPTY.last_before(3), None);
        assert_eq!(PathSet::first(16), PathSet(u16::MAX));
        assert_eq!(PathSet::first(2).without(PathSet::of(0)), PathSet::of(1));
    }
}
