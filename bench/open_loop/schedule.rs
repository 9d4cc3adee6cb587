//! When each command is meant to leave: evenly, or as independent clients come (Poisson).
//!
//! Not here: clocks. Times are nanoseconds since the start.

const SECOND_NS: u128 = 1_000_000_000;

/// The times of one thread's commands, in order. Thread `index` of `threads` has every `threads`-th.
pub struct Schedule {
    rate: u64,
    index: u64,
    threads: u64,
    count: u64,
    /// Poisson's gaps, and the time of the last command.
    poisson: Option<(Random, f64)>,
}

impl Schedule {
    pub fn new(rate: u64, index: usize, threads: usize, poisson: Option<Random>) -> Schedule {
        let poisson = poisson.map(|random| (random, 0.0));
        Schedule { rate, index: index as u64, threads: threads as u64, count: 0, poisson }
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let number = self.count * self.threads + self.index;
        self.count += 1;
        Some(match &mut self.poisson {
            // From its number, not by adding a rounded gap: no drift, whatever the rate.
            None => (u128::from(number) * SECOND_NS / u128::from(self.rate)) as u64,
            Some((random, at)) => {
                let mean = self.threads as f64 * SECOND_NS as f64 / self.rate as f64;
                // 1 - x is never 0, whose logarithm is endless.
                *at += -(1.0 - random.share()).ln() * mean;
                *at as u64
            }
        })
    }
}

/// Steele, Lea and Flood's SplitMix64: small, and the same on every host.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// 0 or more, below 1.
    pub fn share(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_schedule_has_the_rate_and_does_not_drift() {
        let times: Vec<u64> = Schedule::new(3, 0, 1, None).take(4).collect();
        assert_eq!(times, [0, 333_333_333, 666_666_666, 1_000_000_000]);
        let late = Schedule::new(30_000, 0, 1, None).nth(30_000 * 3_600).unwrap();
        assert_eq!(late, 3_600_000_000_000);
    }

    #[test]
    fn threads_share_one_schedule() {
        let mut shared: Vec<u64> =
            (0..3).flat_map(|index| Schedule::new(1_000, index, 3, None).take(4)).collect();
        shared.sort_unstable();
        assert_eq!(shared, Schedule::new(1_000, 0, 1, None).take(12).collect::<Vec<_>>());
    }

    #[test]
    fn poisson_schedule_has_the_rate_and_its_spread() {
        let schedule = Schedule::new(1_000, 0, 2, Some(Random::new(7)));
        let times: Vec<u64> = schedule.take(100_000).collect();
        assert!(times.is_sorted());
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let spread = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // Two threads share 1,000 a second: 2 ms each; the deviation of a Poisson gap is its mean.
        assert!((mean / 2e6 - 1.0).abs() < 0.02, "{mean}");
        assert!((spread.sqrt() / mean - 1.0).abs() < 0.02, "{spread}");
    }

    #[test]
    fn random_numbers_keep_their_bounds() {
        let mut random = Random::new(1);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            assert!((0.0..1.0).contains(&random.share()));
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (850..1_150).contains(&count)), "{seen:?}");
    }
}
