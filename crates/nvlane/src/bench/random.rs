//! Which block next: a small generator, so that choosing costs nothing beside an I/O.

/// xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators").
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator; the same seed gives the same sequence.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`, close enough to uniform for bounds far below 2^32.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0 && bound <= 1 << 32);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) * bound) >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaches_every_block_and_none_beyond() {
        let mut random = Random::new(7);
        let mut seen = [0u32; 64];
        for _ in 0..64_000 {
            seen[random.below(64) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (700..1300).contains(&count)), "{seen:?}");
    }
}
