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
const DUE_MIN: u64 = 6;

/// No wait is for more events than this.
const GATHER_MAX: u64 = 32;

/// No wait is for more events than this share of the clients.
const CLIENTS_PER_EVENT: u64 = 4;

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

    /// What the next wait should bring, with so many clients connected. A few clients that wait for
    /// their answers send nothing more however long they are waited for.
    #[inline]
    pub(super) fn gather(&self, clients: u64) -> Option<Gather> {
        let events = self.due.min(clients / CLIENTS_PER_EVENT).min(GATHER_MAX);
        (self.due >= DUE_MIN && events > 1)
            .then(|| Gather { events: events as u32, limit: Duration::from_micros(self.limit_us) })
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
        assert_eq!(pace.gather(1_000).map(|gather| gather.events), expected);
    }

    #[test]
    fn lone_client_is_never_waited_for() {
        check(200, 40, None);
        check(200, 1_000, None);
    }

    #[test]
    fn busy_reactor_waits_for_what_is_due() {
        check(100, 10, Some(10));
        check(200, 10, Some(20));
        check(200, 1, Some(32));
    }

    #[test]
    fn few_clients_are_not_waited_for_longer_than_they_can_fill() {
        let mut pace = Pace::new(Duration::from_micros(100));
        pace.count(1_000, 1_000);
        let events = |clients| pace.gather(clients).map(|gather| gather.events);
        assert_eq!([1, 7, 8, 16, 1_000].map(events), [None, None, Some(2), Some(4), Some(32)]);
    }

    #[test]
    fn no_limit_is_no_wait() {
        check(0, 1, None);
    }

    #[test]
    fn silence_after_load_ends_the_waiting() {
        let mut pace = Pace::new(Duration::from_micros(200));
        pace.count(1_000, 1_000);
        assert!(pace.gather(1_000).is_some());
        pace.count(1, 100_000);
        assert!(pace.gather(1_000).is_none());
    }
}
