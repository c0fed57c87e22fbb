//! What is written in order to be recognized when it is read.

/// Bytes of a pattern block.
pub const BLOCK_BYTES: usize = 4096;

/// Fills `block` with what block `index` holds after fill number `generation`. Every eight bytes
/// depend on all three of index, generation and place, so a shifted or stale block is noticed.
pub fn write(block: &mut [u8; BLOCK_BYTES], index: u64, generation: u64) {
    let mut state = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ generation.rotate_left(32);
    for word in block.as_chunks_mut::<8>().0 {
        // splitmix64 (Steele, Lea, Flood).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = state;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        *word = (value ^ value >> 31).to_le_bytes();
    }
}

/// Whether `block` is what [`write`] makes.
pub fn matches(block: &[u8; BLOCK_BYTES], index: u64, generation: u64) -> bool {
    let mut expected = [0; BLOCK_BYTES];
    write(&mut expected, index, generation);
    *block == expected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_blocks_and_generations_differ() {
        let mut block = [0; BLOCK_BYTES];
        write(&mut block, 5, 1);
        assert!(matches(&block, 5, 1));
        assert!(!matches(&block, 6, 1));
        assert!(!matches(&block, 5, 2));
        block[4095] ^= 1;
        assert!(!matches(&block, 5, 1));
    }
}
