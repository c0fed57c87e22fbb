//! Random numbers that are the same for the same seed on every machine (xoshiro256++, whose
//! state is filled by splitmix64; Blackman and Vigna, public domain).

/// A generator.
#[derive(Clone, Debug)]
pub struct Random([u64; 4]);

impl Random {
    /// The sequence that belongs to `seed`.
    pub fn new(seed: u64) -> Random {
        let mut state = seed;
        Random(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }))
    }

    /// Any number.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.0;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        // The bias is less than end / 2^64.
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// From 0 to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with a probability of `share`.
    pub fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// Exponentially distributed: the time to the next event of a Poisson process.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.unit()).ln() * mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..4).map(|_| random.bits()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn distributions_have_their_means() {
        let mut random = Random::new(1);
        let times = 100_000;
        let mean = |draw: &mut dyn FnMut() -> f64| (0..times).map(|_| draw()).sum::<f64>() / 1e5;
        assert!((mean(&mut || random.unit()) - 0.5).abs() < 0.005);
        assert!((mean(&mut || random.exponential(3.0)) - 3.0).abs() < 0.05);
        assert!((mean(&mut || random.below(10) as f64) - 4.5).abs() < 0.05);
        assert!((mean(&mut || f64::from(u8::from(random.chance(0.2)))) - 0.2).abs() < 0.01);
    }
}
