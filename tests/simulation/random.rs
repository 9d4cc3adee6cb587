//! The one source of chance in a run: SplitMix64 from the seed. Not here: what is drawn (`parameters`).

#[path = "../support/chance.rs"]
mod chance;

use chance::SplitMix;

#[derive(Clone, Debug)]
pub struct Random(SplitMix);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(SplitMix::seeded(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// 0..bound; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub fn range(&mut self, range: std::ops::RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// True in so many of a thousand cases.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.index(list.len())]
    }

    /// Small numbers often, up to `max` now and then.
    pub fn skewed(&mut self, max: u64) -> u64 {
        let bits = 64 - max.leading_zeros();
        let bound = 1u64 << self.below(u64::from(bits) + 1);
        self.below(bound + 1).min(max)
    }

    /// An interval around a mean, never 0.
    pub fn around(&mut self, mean: u64) -> u64 {
        1 + self.below(mean * 2)
    }
}
