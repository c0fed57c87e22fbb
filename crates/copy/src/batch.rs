//! Pieces that go down together, in one Copy of limited size.

use crate::Piece;

/// What one command can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Source ranges.
    pub ranges: usize,
    /// Blocks of one source range.
    pub range_blocks: u64,
    /// Blocks of all ranges together.
    pub blocks: u64,
}

/// Pieces whose destinations follow one another, so that one Copy can carry them.
#[derive(Debug, Default)]
pub struct Batch {
    pieces: Vec<Piece>,
    blocks: u64,
}

impl Batch {
    /// Forgets what is in it.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.blocks = 0;
    }

    /// The pieces, in the order in which they were added.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Blocks of all pieces.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// First destination block.
    ///
    /// # Panics
    /// If it is empty.
    pub fn destination(&self) -> u64 {
        self.pieces[0].destination
    }

    /// Most blocks that a further piece may have where `room` is given; zero if there may be none.
    pub fn left(&self, room: &Room) -> u64 {
        if self.pieces.len() >= room.ranges {
            return 0;
        }
        room.range_blocks.min(room.blocks.saturating_sub(self.blocks))
    }

    /// Whether `piece` goes where the pieces so far end.
    pub fn is_followed_by(&self, piece: &Piece) -> bool {
        self.pieces.last().is_none_or(|last| last.destination + last.blocks == piece.destination)
    }

    /// Whether neither `piece` nor the pieces so far read what the other writes, or what they write
    /// themselves: whoever copies by his own means may refuse that.
    pub fn is_apart_from(&self, piece: &Piece) -> bool {
        let apart =
            |one: &Piece| !one.reads_of(one) && !one.reads_of(piece) && !piece.reads_of(one);
        self.pieces.is_empty() || !piece.reads_of(piece) && self.pieces.iter().all(apart)
    }

    /// Adds a piece.
    ///
    /// # Panics
    /// If it does not follow.
    pub fn push(&mut self, piece: Piece) {
        assert!(self.is_followed_by(&piece), "destinations of one Copy follow one another");
        self.pieces.push(piece);
        self.blocks += piece.blocks;
    }

    /// Forgets the first `count` pieces.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn skip(&mut self, count: usize) {
        let skipped = self.pieces.drain(..count);
        self.blocks -= skipped.map(|piece| piece.blocks).sum::<u64>();
    }

    /// Forgets the first `blocks` blocks of the first piece.
    ///
    /// # Panics
    /// If it has no more.
    pub fn skip_blocks(&mut self, blocks: u64) {
        let first = &mut self.pieces[0];
        assert!(blocks < first.blocks, "something is left of it");
        first.source += blocks;
        first.destination += blocks;
        first.blocks -= blocks;
        self.blocks -= blocks;
    }

    /// The range that piece `index` is of; of the first one if there is no such piece, since
    /// whoever counts wrongly has not proven that any was copied.
    ///
    /// # Panics
    /// If it is empty.
    pub fn range_of(&self, index: u64) -> usize {
        let index = usize::try_from(index).ok().filter(|index| *index < self.pieces.len());
        self.pieces[index.unwrap_or(0)].range
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Order, Range};

    #[test]
    fn commands_are_filled_up_to_every_limit() {
        let mut order = Order::default();
        let ranges = [10, 10, 1, 1, 1].map(|blocks| Range { slba: 100, blocks, is_same: false });
        order.begin(0, ranges);
        let room = Room { ranges: 3, range_blocks: 8, blocks: 12 };
        let mut batch = Batch::default();
        let mut commands = Vec::new();
        while order.lowest().is_some() {
            batch.clear();
            while let Some(piece) = Some(batch.left(&room))
                .filter(|left| *left > 0)
                .and_then(|left| order.peek(left))
                .filter(|piece| batch.is_followed_by(piece))
            {
                batch.push(order.take(piece.blocks));
            }
            commands.push(batch.pieces().iter().map(|piece| piece.blocks).collect::<Vec<_>>());
        }
        assert_eq!(commands, [vec![8, 2, 2], vec![8, 1, 1], vec![1]]);
    }

    #[test]
    fn what_is_moved_backwards_goes_alone() {
        let mut order = Order::default();
        order.begin(2, [Range { slba: 0, blocks: 9, is_same: true }]);
        let mut batch = Batch::default();
        batch.push(order.take(4));
        assert!(!batch.is_followed_by(&order.peek(4).expect("five blocks are left")));
    }

    #[test]
    fn what_overlaps_is_told_from_the_rest() {
        let mut order = Order::default();
        let same = |slba, blocks| Range { slba, blocks, is_same: true };
        // Reads: apart; what the first writes; apart, but written by the last; itself.
        order.begin(20, [same(0, 2), same(21, 1), same(26, 2), same(40, 1), same(26, 4)]);
        let mut batch = Batch::default();
        let mut pieces = (0..5).map(|_| order.take(order.peek(9).expect("it is left").blocks));
        let mut next = || pieces.next().expect("five ranges");
        let first = next();
        assert!(batch.is_apart_from(&first));
        batch.push(first);
        let second = next();
        assert!(!batch.is_apart_from(&second));
        batch.clear();
        batch.push(second);
        let third = next();
        assert!(batch.is_apart_from(&third));
        batch.push(third);
        assert!(batch.is_apart_from(&next()));
        let last = next();
        assert_eq!((last.destination, last.is_backwards), (26, false));
        assert!(!batch.is_apart_from(&last), "it writes what the third reads");
        batch.clear();
        assert!(batch.is_apart_from(&last), "alone it may");
        batch.push(last);
        assert!(!batch.is_apart_from(&first), "but nothing goes with it");
    }

    #[test]
    fn who_counts_wrongly_has_copied_nothing() {
        let mut order = Order::default();
        order.begin(0, [1, 1, 1].map(|blocks| Range { slba: 9, blocks, is_same: false }));
        let mut batch = Batch::default();
        order.take(1);
        batch.push(order.take(1));
        batch.push(order.take(1));
        assert_eq!([0, 1, 2, u64::MAX].map(|index| batch.range_of(index)), [1, 2, 1, 1]);
        batch.skip(1);
        assert_eq!((batch.range_of(0), batch.blocks(), batch.destination()), (2, 1, 2));
    }

    #[test]
    fn the_rest_of_a_piece_goes_where_it_went() {
        let mut order = Order::default();
        order.begin(5, [4, 2].map(|blocks| Range { slba: 9, blocks, is_same: false }));
        let mut batch = Batch::default();
        batch.push(order.take(4));
        batch.push(order.take(2));
        batch.skip_blocks(3);
        assert_eq!((batch.pieces()[0].source, batch.destination(), batch.blocks()), (12, 8, 3));
        batch.skip_blocks(0);
        assert_eq!(batch.pieces().iter().map(|piece| piece.blocks).collect::<Vec<_>>(), [1, 2]);
    }
}
