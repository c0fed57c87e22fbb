//! Pieces that can be moved one after another.

/// A source range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First block.
    pub slba: u64,
    /// How many blocks, at least one.
    pub blocks: u64,
    /// It is in the volume that is written to.
    pub is_same: bool,
}

/// Consecutive blocks of one range, which go to consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Of which range, counted from zero.
    pub range: usize,
    /// First block read.
    pub source: u64,
    /// First block written.
    pub destination: u64,
    /// How many, at least one.
    pub blocks: u64,
    /// The source is in the volume that is written to.
    pub is_same: bool,
    /// The range is moved from its end to its start.
    pub is_backwards: bool,
}

/// Cuts source ranges into pieces. Moved in the order in which they come, each of them read whole before
/// it is written, they leave what the Copy is to leave.
#[derive(Debug, Default)]
pub struct Order {
    ranges: Vec<Range>,
    /// First destination block of the range at hand.
    destination: u64,
    /// The range at hand; their number at the end.
    range: usize,
    /// Blocks of it that were taken.
    taken: u64,
}

impl Piece {
    /// Whether this reads what `other` writes.
    pub fn reads_of(&self, other: &Piece) -> bool {
        self.is_same && overlap(self.source, self.blocks, other.destination, other.blocks)
    }

    /// The blocks that come first when the piece is cut: its last ones if it is moved backwards.
    ///
    /// # Panics
    /// If it has fewer.
    #[must_use]
    pub fn first(&self, blocks: u64) -> Piece {
        assert!((1..=self.blocks).contains(&blocks), "a part of the piece");
        let skip = if self.is_backwards { self.blocks - blocks } else { 0 };
        let (source, destination) = (self.source + skip, self.destination + skip);
        Piece { source, destination, blocks, ..*self }
    }
}

impl Order {
    /// Starts with `ranges`, which go to the blocks from `destination` on. What was left is forgotten.
    pub fn begin(&mut self, destination: u64, ranges: impl IntoIterator<Item = Range>) {
        self.ranges.clear();
        self.ranges.extend(ranges);
        debug_assert!(self.ranges.iter().all(|range| range.blocks > 0), "ranges have blocks");
        (self.destination, self.range, self.taken) = (destination, 0, 0);
    }

    /// What comes next, as much of it as `blocks_max` allows; none at the end.
    ///
    /// # Panics
    /// If `blocks_max` is zero.
    pub fn peek(&self, blocks_max: u64) -> Option<Piece> {
        assert!(blocks_max > 0, "pieces have blocks");
        let range = self.ranges.get(self.range)?;
        let left = Piece {
            range: self.range,
            source: range.slba,
            destination: self.destination,
            blocks: range.blocks,
            is_same: range.is_same,
            // Read whole before it is written: what would be overwritten first goes first.
            is_backwards: range.is_same
                && range.slba < self.destination
                && overlap(range.slba, range.blocks, self.destination, range.blocks),
        };
        let left = match left.is_backwards {
            true => Piece { blocks: left.blocks - self.taken, ..left },
            false => Piece {
                source: left.source + self.taken,
                destination: left.destination + self.taken,
                blocks: left.blocks - self.taken,
                ..left
            },
        };
        Some(left.first(left.blocks.min(blocks_max)))
    }

    /// Takes `blocks` of what comes next.
    ///
    /// # Panics
    /// If the range at hand has fewer left.
    pub fn take(&mut self, blocks: u64) -> Piece {
        let piece = self.peek(blocks).expect("something is left");
        assert_eq!(piece.blocks, blocks, "a piece is of one range");
        self.taken += blocks;
        let range = self.ranges[self.range];
        if self.taken == range.blocks {
            self.destination += range.blocks;
            self.range += 1;
            self.taken = 0;
        }
        piece
    }

    /// The lowest range of which something was not taken yet.
    pub fn lowest(&self) -> Option<usize> {
        (self.range < self.ranges.len()).then_some(self.range)
    }
}

/// Whether two runs of blocks have one in common.
fn overlap(a: u64, a_blocks: u64, b: u64, b_blocks: u64) -> bool {
    a < b.saturating_add(b_blocks) && b < a.saturating_add(a_blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(destination: u64, ranges: &[Range], blocks_max: u64) -> Vec<(u64, u64, u64)> {
        let mut order = Order::default();
        order.begin(destination, ranges.iter().copied());
        std::iter::from_fn(|| {
            let piece = order.peek(blocks_max)?;
            assert_eq!(order.lowest(), Some(piece.range));
            assert_eq!(order.take(piece.blocks), piece);
            Some((piece.source, piece.destination, piece.blocks))
        })
        .collect()
    }

    #[test]
    fn ranges_follow_one_another_in_pieces() {
        let range = |slba, blocks| Range { slba, blocks, is_same: false };
        let ranges = [range(100, 5), range(7, 1)];
        let wanted = [(100, 10, 2), (102, 12, 2), (104, 14, 1), (7, 15, 1)];
        assert_eq!(pieces(10, &ranges, 2), wanted);
    }

    #[test]
    fn what_would_be_overwritten_first_goes_first() {
        let range = |slba| [Range { slba, blocks: 5, is_same: true }];
        assert_eq!(pieces(2, &range(0), 2), [(3, 5, 2), (1, 3, 2), (0, 2, 1)]);
        assert_eq!(pieces(0, &range(2), 2), [(2, 0, 2), (4, 2, 2), (6, 4, 1)]);
        // Next to one another, not over.
        assert_eq!(pieces(5, &range(0), 4), [(0, 5, 4), (4, 9, 1)]);
        // The other volume's numbers say nothing.
        let other = [Range { slba: 0, blocks: 5, is_same: false }];
        assert_eq!(pieces(2, &other, 4), [(0, 2, 4), (4, 6, 1)]);
    }
}
