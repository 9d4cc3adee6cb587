//! How fast events come, to tell how many are worth waiting for.
//!
//! A reactor that acts on the first request to come sends it alone, and its node answers it alone:
//! each pays for a system call and a wake-up. Where the next one is due within microseconds,
//! waiting for it makes both cheaper and, under load, faster. Where none is due nothing is waited
//! for.
//!
//! Not here: the wait itself (`ring`), the clock.

use std::time::Duration;

use crate::ring::Gather;

/// Events are counted over so many microseconds.
const WINDOW_US: u64 = 1_000;

/// With fewer events due, waiting costs more than it brings.
const DUE_MIN: u64 = 3;

/// No wait is for more events than this.
const GATHER_MAX: u64 = 32;

pub(super) struct Pace {
    /// How long a wait may gather, microseconds; 0: never.
    limit_us: u64,
    window_start_us: u64,
    events: u64,
    /// Events that come within `limit_us`, by the last window.
    due: u64,
}

impl Pace {
    pub(super) fn new(limit: Duration) -> Pace {
        let limit_us = limit.as_micros() as u64;
        Pace { limit_us, window_start_us: 0, events: 0, due: 0 }
    }

    /// So many events have come since the last call.
    #[inline]
    pub(super) fn count(&mut self, events: u64, now_us: u64) {
        self.events += events;
        let passed_us = now_us.saturating_sub(self.window_start_us);
        if passed_us >= WINDOW_US {
            self.due = self.events * self.limit_us / passed_us;
            self.events = 0;
            self.window_start_us = now_us;
        }
    }

    /// What the next wait should bring.
    #[inline]
    pub(super) fn gather(&self) -> Option<Gather> {
        (self.due >= DUE_MIN).then(|| Gather {
            events: self.due.min(GATHER_MAX) as u32,
            limit: Duration::from_micros(self.limit_us),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events that come every `gap_us` microseconds for 10 ms.
    #[track_caller]
    fn check(limit_us: u64, gap_us: u64, expected: Option<u32>) {
        let mut pace = Pace::new(Duration::from_micros(limit_us));
        for n in 1..=10_000 / gap_us {
            pace.count(1, n * gap_us);
        }
        assert_eq!(pace.gather().map(|gather| gather.events), expected);
    }

    #[test]
    fn lone_client_is_never_waited_for() {
        check(50, 40, None);
        check(50, 1_000, None);
    }

    #[test]
    fn busy_reactor_waits_for_what_is_due() {
        check(50, 10, Some(5));
        check(50, 1, Some(32));
        check(100, 10, Some(10));
    }

    #[test]
    fn no_limit_is_no_wait() {
        check(0, 1, None);
    }

    #[test]
    fn silence_after_load_ends_the_waiting() {
        let mut pace = Pace::new(Duration::from_micros(50));
        pace.count(1_000, 1_000);
        assert!(pace.gather().is_some());
        pace.count(1, 100_000);
        assert!(pace.gather().is_none());
    }
}
