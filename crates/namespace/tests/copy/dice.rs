//! Numbers for random tests.

/// Numbers that follow from a seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(2).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Those of one of many worlds: whatever the others do, the same.
    pub fn of_world(seed: u64, number: u64) -> Dice {
        Dice::new(Dice::new(seed).0.wrapping_add(number))
    }

    /// A number below `below`.
    pub fn roll(&mut self, below: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.roll(count) == 0
    }
}
