//! How fast events come, to tell how many are worth waiting for.
//!
//! A reactor that acts on the first request to come sends it alone, and its node answers it alone:
//! each pays for a system call and a wake-up. Where the next one is due within microseconds,
//! waiting for it makes both cheaper and, under load, faster. Where none is due nothing is waited
//! for. Where pipelines keep the nodes busy for milliseconds, they do not miss what comes a part of
//! that time later.
//!
//! Not here: the wait itself (`ring`), the clock.

use std::time::Duration;

use crate::proxy::UnderWay;
use crate::ring::Gather;

/// Events are counted over so many microseconds.
const WINDOW_US: u64 = 1_000;

/// With fewer events due, waiting costs more than it brings.
const DUE_MIN: u64 = 6;

/// No wait is for more events than this.
const GATHER_MAX: u64 = 32;

/// No wait is for more events than this share of the clients.
const CLIENTS_PER_EVENT: u64 = 4;

/// With so many requests for each client, they come in long pipelines...
const DEEP: u64 = 24;
/// ... and a wait is for one event in so many of them, ...
const REQUESTS_PER_EVENT: u64 = 32;
/// ... up to these, ...
const DEEP_GATHER_MAX: u64 = 64;
/// ... for this part of the time in which they are answered, ...
const DEEP_SHARE: u64 = 4;
/// ... and never longer than so many times the limit.
const DEEP_TIMES: u64 = 5;

pub(super) struct Pace {
    /// How long a wait may gather, microseconds; 0: never.
    limit_us: u64,
    window_start_us: u64,
    events: u64,
    /// Requests of clients by the start of the window.
    commands: u64,
    /// By the last window, in a second: events, and requests.
    events_rate: u64,
    commands_rate: u64,
}

impl Pace {
    pub(super) fn new(limit: Duration) -> Pace {
        Pace {
            limit_us: limit.as_micros() as u64,
            window_start_us: 0,
            events: 0,
            commands: 0,
            events_rate: 0,
            commands_rate: 0,
        }
    }

    /// So many events have come since the last call, and so many requests since the start.
    #[inline]
    pub(super) fn count(&mut self, events: u64, commands: u64, now_us: u64) {
        self.events += events;
        let passed_us = now_us.saturating_sub(self.window_start_us);
        if passed_us >= WINDOW_US {
            self.events_rate = self.events * 1_000_000 / passed_us;
            self.commands_rate = commands.saturating_sub(self.commands) * 1_000_000 / passed_us;
            self.events = 0;
            self.commands = commands;
            self.window_start_us = now_us;
        }
    }

    /// What the next wait should bring. A few clients that wait for their answers send nothing more
    /// however long they are waited for.
    #[inline]
    pub(super) fn gather(&self, under_way: &UnderWay) -> Option<Gather> {
        let mut limit_us = self.limit_us;
        let mut most = (under_way.clients / CLIENTS_PER_EVENT).min(GATHER_MAX);
        // Parts of what was cut are no requests: how much there is to do cannot be told from them.
        if !under_way.cut && under_way.requests >= DEEP * under_way.clients {
            let answered_us = under_way.requests * 1_000_000 / self.commands_rate.max(1);
            limit_us = limit_us.max((answered_us / DEEP_SHARE).min(limit_us * DEEP_TIMES));
            most = most.max((under_way.requests / REQUESTS_PER_EVENT).min(DEEP_GATHER_MAX));
        }
        let due = self.events_rate * limit_us / 1_000_000;
        let events = due.min(most);
        (due >= DUE_MIN && events > 1)
            .then(|| Gather { events: events as u32, limit: Duration::from_micros(limit_us) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(clients: u64) -> UnderWay {
        UnderWay { clients, requests: clients, cut: false }
    }

    /// Events that come every `gap_us` microseconds for 10 ms.
    #[track_caller]
    fn check(limit_us: u64, gap_us: u64, expected: Option<u32>) {
        let mut pace = Pace::new(Duration::from_micros(limit_us));
        for n in 1..=10_000 / gap_us {
            pace.count(1, n, n * gap_us);
        }
        assert_eq!(pace.gather(&clients(1_000)).map(|gather| gather.events), expected);
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
        pace.count(1_000, 1_000, 1_000);
        let events = |count| pace.gather(&clients(count)).map(|gather| gather.events);
        assert_eq!([1, 7, 8, 16, 1_000].map(events), [None, None, Some(2), Some(4), Some(32)]);
    }

    #[test]
    fn no_limit_is_no_wait() {
        check(0, 1, None);
    }

    #[test]
    fn silence_after_load_ends_the_waiting() {
        let mut pace = Pace::new(Duration::from_micros(200));
        pace.count(1_000, 1_000, 1_000);
        assert!(pace.gather(&clients(1_000)).is_some());
        pace.count(1, 1_001, 100_000);
        assert!(pace.gather(&clients(1_000)).is_none());
    }

    /// What is waited for, and how many microseconds, at 40,000 events and 500,000 requests a
    /// second.
    #[track_caller]
    fn check_deep(requests: u64, cut: bool, expected: (u32, u64)) {
        let mut pace = Pace::new(Duration::from_micros(400));
        pace.count(400, 5_000, 10_000);
        let gather = pace.gather(&UnderWay { clients: 50, requests, cut }).expect("a wait");
        assert_eq!((gather.events, gather.limit.as_micros() as u64), expected);
    }

    #[test]
    fn long_pipelines_are_waited_for_a_quarter_of_the_time_that_they_take() {
        // Answered in 2.4, 6.4, 20 ms.
        check_deep(1_200, false, (24, 600));
        check_deep(3_200, false, (64, 1_600));
        check_deep(10_000, false, (64, 2_000));
    }

    #[test]
    fn short_pipelines_and_parts_are_not_waited_for_longer() {
        check_deep(1_199, false, (12, 400));
        check_deep(3_200, true, (12, 400));
    }
}
