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
const DUE_MIN: u64 = 10;

/// No wait is for more events than this.
const GATHER_MAX: u64 = 64;

/// No wait is for more than this part of what can come at all, percent: the last ones are worth no
/// wait...
const PART: u64 = 60;
/// ... but where requests come in pipelines, whose replies then leave in fewer pieces.
const PART_PIPELINED: u64 = 90;
/// So many requests under way for each client are a sign of them.
const PIPELINED: u64 = 2;

/// With so many requests for each client, they come in long pipelines, each of which nodes answer
/// in several pieces...
const DEEP: u64 = 24;
/// ... and a wait is for one event in so many of them, ...
const REQUESTS_PER_EVENT: u64 = 32;
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

    /// Whether so much comes that a wait can pay.
    #[inline]
    pub(super) fn is_busy(&self, under_way: &UnderWay) -> bool {
        self.due(self.wait_us(under_way)) >= DUE_MIN
    }

    /// What the next wait should bring. A client that waits for its answer sends nothing more
    /// however long it is waited for, and a node that is asked nothing has nothing to say.
    #[inline]
    pub(super) fn gather(&self, under_way: &UnderWay) -> Option<Gather> {
        let may_come = under_way.clients.saturating_sub(under_way.waiting) + under_way.nodes;
        let part = if is_pipelined(under_way, PIPELINED) { PART_PIPELINED } else { PART };
        let mut most = may_come * part / 100;
        if is_pipelined(under_way, DEEP) {
            most = most.max(under_way.requests / REQUESTS_PER_EVENT);
        }
        let wait_us = self.wait_us(under_way);
        let due = self.due(wait_us);
        let events = due.min(most).min(GATHER_MAX);
        (due >= DUE_MIN && events > 1)
            .then(|| Gather { events: events as u32, limit: Duration::from_micros(wait_us) })
    }

    /// How long a wait may go on, microseconds.
    #[inline]
    fn wait_us(&self, under_way: &UnderWay) -> u64 {
        if !is_pipelined(under_way, DEEP) {
            return self.limit_us;
        }
        let answered_us = under_way.requests * 1_000_000 / self.commands_rate.max(1);
        self.limit_us.max((answered_us / DEEP_SHARE).min(self.limit_us * DEEP_TIMES))
    }

    /// Events within so many microseconds, at the last window's rate.
    #[inline]
    fn due(&self, wait_us: u64) -> u64 {
        self.events_rate * wait_us / 1_000_000
    }
}

/// Whether there are so many requests for each client. Parts of what was cut are none: how much
/// there is to do cannot be told from them.
fn is_pipelined(under_way: &UnderWay, requests: u64) -> bool {
    !under_way.cut && under_way.requests >= requests * under_way.clients
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients of whom so many wait, at three nodes.
    fn clients(clients: u64, waiting: u64) -> UnderWay {
        let nodes = waiting.min(3);
        UnderWay { clients, waiting, requests: waiting, nodes, cut: false }
    }

    fn events(pace: &Pace, under_way: &UnderWay) -> Option<u32> {
        pace.gather(under_way).map(|gather| gather.events)
    }

    /// Events that come every `gap_us` microseconds for 10 ms.
    #[track_caller]
    fn check(limit_us: u64, gap_us: u64, expected: Option<u32>) {
        let mut pace = Pace::new(Duration::from_micros(limit_us));
        for n in 1..=10_000 / gap_us {
            pace.count(1, n, n * gap_us);
        }
        assert_eq!(events(&pace, &clients(1_000, 500)), expected);
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
        check(200, 1, Some(64));
    }

    /// What is waited for when very much is due.
    #[track_caller]
    fn check_part(under_way: UnderWay, expected: Option<u32>) {
        let mut pace = Pace::new(Duration::from_micros(100));
        pace.count(1_000, 1_000, 1_000);
        assert_eq!(events(&pace, &under_way), expected);
    }

    #[test]
    fn no_more_is_waited_for_than_can_come() {
        for (all, waiting, expected) in [
            (1, 0, None),
            (1, 1, None),
            (16, 0, Some(9)),
            (16, 8, Some(6)),
            // The nodes alone.
            (16, 16, None),
            (50, 47, Some(3)),
            (50, 10, Some(25)),
            (1_000, 999, Some(2)),
            (1_000, 0, Some(64)),
        ] {
            check_part(clients(all, waiting), expected);
        }
    }

    #[test]
    fn nearly_all_of_what_pipelines_bring_is_waited_for() {
        let pipelined = |waiting| UnderWay { requests: 16 * waiting, ..clients(50, waiting) };
        check_part(pipelined(50), Some(2));
        check_part(pipelined(40), Some(11));
        check_part(UnderWay { cut: true, ..pipelined(40) }, Some(7));
    }

    #[test]
    fn no_limit_is_no_wait() {
        check(0, 1, None);
    }

    #[test]
    fn silence_after_load_ends_the_waiting() {
        let mut pace = Pace::new(Duration::from_micros(200));
        pace.count(1_000, 1_000, 1_000);
        assert!(pace.gather(&clients(1_000, 500)).is_some());
        pace.count(1, 1_001, 100_000);
        assert!(pace.gather(&clients(1_000, 500)).is_none());
    }

    /// What is waited for, and how many microseconds, at 40,000 events and 500,000 requests in a
    /// second.
    #[track_caller]
    fn check_deep(requests: u64, cut: bool, expected: (u32, u64)) {
        let mut pace = Pace::new(Duration::from_micros(400));
        pace.count(400, 5_000, 10_000);
        let gather = pace.gather(&UnderWay { requests, cut, ..clients(50, 30) }).expect("a wait");
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
        check_deep(1_199, false, (16, 400));
        check_deep(3_200, true, (13, 400));
    }
}
