//! Chance from a seed: SplitMix64. Not here: what is drawn by it.

/// What it holds is its state: a seed as it is, or one of `seeded`.
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

#[allow(dead_code, reason = "not every user needs all of it")]
impl SplitMix {
    /// Seeds that follow each other have nothing in common.
    pub fn seeded(seed: u64) -> SplitMix {
        let mut chance = SplitMix(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x5851_f42d_4c95_7f2d);
        chance.next();
        chance
    }

    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// 0..bound; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}
