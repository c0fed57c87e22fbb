//! How a request in bytes is cut into commands in blocks.
//!
//! ```text
//!   blocks   |-------|-------|-------|-------|        a read covers what it touches,
//!   read         [ piece |  piece  | piece ]          a write is whole blocks and parts of one,
//!   write        [part][  whole   ][part]             a trim keeps to whole blocks
//!   trim               [  whole   ]
//! ```

/// What one command does for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte wanted.
    pub offset: u64,
    /// Bytes wanted.
    pub length: u32,
    /// First block.
    pub slba: u64,
    /// Blocks, at least one.
    pub blocks: u32,
    /// Bytes of the first block before the first one wanted.
    pub skip: u32,
}

/// Most blocks of one command: the field is 16 bits, zero-based (NVM 1.1, section 3.2).
pub const BLOCKS_MAX: u32 = 1 << 16;

impl Piece {
    /// Whether all of its blocks are wanted in full.
    pub fn is_whole(&self, block_shift: u8) -> bool {
        self.length == self.blocks << block_shift
    }

    /// Its first block, and how many.
    pub fn range(&self) -> (u64, u64) {
        (self.slba, self.blocks.into())
    }

    /// One past the last byte wanted.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }
}

/// The first piece of a read from byte `at` to `end`, of at most `blocks_max` blocks.
///
/// # Panics
/// If there is nothing to read.
#[inline]
pub fn covering(at: u64, end: u64, block_shift: u8, blocks_max: u32) -> Piece {
    assert!(at < end && blocks_max > 0);
    let slba = at >> block_shift;
    let limit = (slba + u64::from(blocks_max)) << block_shift;
    let end = end.min(limit);
    let last = (end - 1) >> block_shift;
    Piece {
        offset: at,
        length: (end - at) as u32,
        slba,
        blocks: (last - slba + 1) as u32,
        skip: (at - (slba << block_shift)) as u32,
    }
}

/// The first piece of a write from byte `at` to `end`: whole blocks, at most `blocks_max` of them,
/// or a part of one.
///
/// # Panics
/// If there is nothing to write.
#[inline]
pub fn exact(at: u64, end: u64, block_shift: u8, blocks_max: u32) -> Piece {
    let piece = covering(at, end, block_shift, blocks_max);
    let block_bytes = 1u32 << block_shift;
    if piece.skip == 0 && piece.length >= block_bytes {
        let blocks = piece.length >> block_shift;
        return Piece { length: blocks << block_shift, blocks, ..piece };
    }
    Piece { length: piece.length.min(block_bytes - piece.skip), blocks: 1, ..piece }
}

/// The first piece of a trim from byte `at` to `end`: at most `blocks_max` whole blocks. `None` if
/// none is left.
pub fn within(at: u64, end: u64, block_shift: u8, blocks_max: u32) -> Option<Piece> {
    let slba = at.div_ceil(1 << block_shift);
    let blocks = (end >> block_shift).checked_sub(slba)?.min(u64::from(blocks_max)) as u32;
    let (offset, length) = (slba << block_shift, blocks << block_shift);
    (blocks > 0).then_some(Piece { offset, length, slba, blocks, skip: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(at: u64, end: u64, next: impl Fn(u64, u64) -> Option<Piece>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = at;
        while at < end {
            let Some(piece) = next(at, end) else { break };
            assert!(piece.length > 0 && piece.blocks > 0);
            at = piece.end();
            pieces.push(piece);
        }
        pieces
    }

    proptest! {
        #[test]
        fn pieces_follow_one_another_and_make_up_the_request(
            at in 0u64..20_000, length in 1u32..40_000, shift in 9u8..=12, max in 1u32..9,
        ) {
            let end = at + u64::from(length);
            for exactly in [false, true] {
                let pieces = all(at, end, |at, end| {
                    let cut = if exactly { exact } else { covering };
                    Some(cut(at, end, shift, max))
                });
                prop_assert_eq!(pieces[0].offset, at);
                prop_assert_eq!(pieces.last().unwrap().end(), end);
                for piece in &pieces {
                    prop_assert!(piece.blocks <= max);
                    prop_assert_eq!((piece.slba << shift) + u64::from(piece.skip), piece.offset);
                    prop_assert!(piece.skip + piece.length <= piece.blocks << shift);
                    prop_assert!(!exactly || piece.is_whole(shift) || piece.blocks == 1);
                }
                // At most the two ends are parts of a block.
                let parts = pieces.iter().filter(|piece| !piece.is_whole(shift)).count();
                prop_assert!(!exactly || parts <= 2);
            }
        }

        #[test]
        fn a_trim_touches_no_block_that_it_does_not_have_in_full(
            at in 0u64..20_000, length in 0u32..40_000, shift in 9u8..=12, max in 1u32..9,
        ) {
            let end = at + u64::from(length);
            let pieces = all(at, end, |at, end| within(at, end, shift, max));
            let blocks: u64 = pieces.iter().map(|piece| u64::from(piece.blocks)).sum();
            let whole = (end >> shift).saturating_sub(at.div_ceil(1 << shift));
            prop_assert_eq!(blocks, whole);
            prop_assert!(pieces.iter().all(|it| it.is_whole(shift) && it.offset >= at));
        }
    }

    #[test]
    fn a_trim_of_nearly_4_gib_does_not_overflow() {
        let piece = within(512, u64::from(u32::MAX) + 512, 9, u32::MAX >> 9).unwrap();
        assert_eq!((piece.blocks, piece.length), (u32::MAX >> 9, !511));
    }
}
