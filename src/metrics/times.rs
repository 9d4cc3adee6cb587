//! A histogram of times, with their sum: what `/metrics` and the live page tell of.
//!
//! Not here: what is timed (`proxy/sample`), text forms (`admin`).

use hdrhistogram::Histogram;

use crate::limits::LATENCY_US_MAX;

/// Times in microseconds. Above a minute counts as a minute.
#[derive(Clone, Debug)]
pub struct Times {
    histogram: Histogram<u32>,
    sum_us: u64,
}

impl Times {
    /// At most 1 % off; 10 KiB.
    pub fn fine() -> Times {
        Times::new(2)
    }

    /// At most 6 % off; 1.5 KiB: one for each node.
    pub fn coarse() -> Times {
        Times::new(1)
    }

    fn new(digits: u8) -> Times {
        let histogram = Histogram::new_with_bounds(1, LATENCY_US_MAX, digits);
        Times { histogram: histogram.expect("constant bounds are in order"), sum_us: 0 }
    }

    pub fn record(&mut self, us: u64) {
        self.histogram.saturating_record(us);
        self.sum_us = self.sum_us.saturating_add(us.min(LATENCY_US_MAX));
    }

    pub fn add(&mut self, other: &Times) {
        for step in other.histogram.iter_recorded() {
            self.histogram.saturating_record_n(step.value_iterated_to(), step.count_at_value());
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// What was recorded since `before`, an earlier state of the same.
    pub fn since(&self, before: &Times) -> Times {
        let mut out = self.clone();
        // Fails if `before` has what is not here: then it is no earlier state, but of a node that
        // is new at an old address.
        if out.histogram.subtract(&before.histogram).is_err() {
            return self.clone();
        }
        out.sum_us = self.sum_us.saturating_sub(before.sum_us);
        out
    }

    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// `None` without samples.
    pub fn quantile_us(&self, quantile: f64) -> Option<u64> {
        (self.count() > 0).then(|| self.histogram.value_at_quantile(quantile))
    }

    /// How many took at most so long, as well as the buckets tell.
    pub fn count_up_to(&self, us: u64) -> u64 {
        self.histogram.count_between(0, us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_add_up_and_are_told_since_an_earlier_state() {
        let mut first = Times::coarse();
        [100, 200, 300].into_iter().for_each(|us| first.record(us));
        let mut both = first.clone();
        let mut second = Times::coarse();
        second.record(5_000);
        both.add(&second);
        assert_eq!((both.count(), both.sum_us()), (4, 5_600));
        assert_eq!(both.count_up_to(1_000), 3);
        let news = both.since(&first);
        assert_eq!((news.count(), news.sum_us()), (1, 5_000));
        let p50 = news.quantile_us(0.5).unwrap();
        assert!((4_700..5_400).contains(&p50), "{p50}");
        assert_eq!(second.since(&both).count(), 1, "of another node");
        assert_eq!(Times::fine().quantile_us(0.5), None);
    }

    #[test]
    fn time_above_the_longest_counts_as_the_longest() {
        let mut times = Times::fine();
        times.record(u64::MAX);
        assert_eq!(times.count_up_to(LATENCY_US_MAX * 2), 1);
        assert_eq!(times.sum_us(), LATENCY_US_MAX);
    }
}
