//! When to ask for the map, and whom. Pure: told time and events, returns decisions.
//!
//! Not here: asking (`talk`), judging what was told (`pool`, `cluster::choose`).

use crate::limits::{REFRESH_GAP_MS, REFRESH_GAP_MS_MAX, REFRESH_GAP_MS_STORM};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Delay to the next refresh when the map has holes or its teller says the cluster is not ok.
const UNSETTLED_MS: u64 = 1000;
/// First and longest delay after a round in which nobody answered.
const BACKOFF_MS: u64 = 250;
const BACKOFF_MS_MAX: u64 = 5000;
/// The same where no node was even reached, which costs them nothing: whoever is there again is
/// seen within a second.
const BACKOFF_MS_UNREACHABLE: u64 = 500;
/// How long a node that was complained of is asked last.
const AVOID_MS: u64 = 10_000;
const AVOIDED_MAX: usize = 16;
/// Nodes asked in one round before the seeds are resolved again.
const NODES_A_ROUND: usize = 3;

/// Whom to ask.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// By its place in the settings; its name is to be resolved.
    Seed(usize),
    Node(SocketAddr),
}

/// A node that could be asked.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Known {
    pub address: SocketAddr,
    pub healthy: bool,
}

/// How a conversation ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A new map was adopted.
    Changed,
    /// No news.
    Same,
    /// Connected, but got nothing that can be used.
    Failed,
    /// Not even connected: the node was not bothered.
    Unreachable,
}

/// The timing of one pool. One conversation at a time, `REFRESH_GAP_MS` apart with jitter, up to
/// `REFRESH_GAP_MS_STORM` apart while refreshes are wished for and bring no news. A refresh is a
/// round: whom it asks is drawn at its start, and the next is asked when one fails. Times in
/// milliseconds.
#[derive(Debug)]
pub struct Schedule {
    interval: u64,
    seeds: usize,
    random: Random,
    /// When the next round starts.
    due: u64,
    /// Whom the present round still may ask, and when the next of them.
    queue: VecDeque<Target>,
    attempt_at: u64,
    in_flight: Option<Target>,
    /// Somebody asked for the present round, or for another after it.
    wished: bool,
    again: bool,
    /// Start of the last conversation, the gap to keep after it, and its jitter in 1/1024 of it.
    last_start: Option<u64>,
    gap: u64,
    jitter: u64,
    /// Rounds in a row in which nobody answered; nothing starts before `blocked_until`.
    failures: u32,
    blocked_until: u64,
    /// Somebody was connected to in this round.
    reached: bool,
    last_asked: Option<SocketAddr>,
    preferred: Option<SocketAddr>,
    avoided: Vec<(SocketAddr, u64)>,
    first_seed: usize,
}

impl Schedule {
    /// The first round is due at once. `seeds`: how many there are.
    pub fn new(interval: u64, seeds: usize, seed: u64, now: u64) -> Schedule {
        Schedule {
            interval: interval.max(REFRESH_GAP_MS_MAX),
            seeds,
            random: Random(seed),
            due: now,
            queue: VecDeque::new(),
            attempt_at: now,
            in_flight: None,
            wished: false,
            again: false,
            last_start: None,
            gap: REFRESH_GAP_MS,
            jitter: 0,
            failures: 0,
            blocked_until: now,
            reached: false,
            last_asked: None,
            preferred: None,
            avoided: Vec::new(),
            first_seed: 0,
        }
    }

    /// Seeds that were next in turn may be others now, or none.
    pub fn configure(&mut self, interval: u64, seeds: usize) {
        self.interval = interval.max(REFRESH_GAP_MS_MAX);
        self.seeds = seeds;
        self.first_seed = 0;
        self.queue.retain(|target| !matches!(target, Target::Seed(_)));
        let seeds = (0..seeds).map(Target::Seed);
        if self.in_round() {
            self.queue.extend(seeds);
        }
    }

    /// Somebody has reason to doubt the map: a round as soon as the gap allows.
    pub fn want(&mut self, now: u64) {
        if self.in_round() {
            self.again = true;
        } else {
            self.wished = true;
            self.due = self.due.min(self.earliest(now));
        }
    }

    /// A round at most about so long after the last one, whatever gap the lack of news has left.
    pub fn want_within(&mut self, gap: u64, now: u64) {
        if self.in_round() {
            return;
        }
        let gap = gap + gap * self.jitter / 2048;
        let rested = self.last_start.map_or(now, |start| start.saturating_add(gap));
        self.due = self.due.min(now.max(rested).max(self.blocked_until));
    }

    /// Ask this one last, for a while.
    pub fn avoid(&mut self, address: SocketAddr, now: u64) {
        self.avoided.retain(|&(known, until)| until > now && known != address);
        if self.avoided.len() == AVOIDED_MAX {
            self.avoided.remove(0);
        }
        self.avoided.push((address, now.saturating_add(AVOID_MS)));
    }

    /// Ask this one first in the next round, if it is known then.
    pub fn prefer(&mut self, address: SocketAddr) {
        self.preferred = Some(address);
    }

    /// Whether a refresh that was started is not over.
    pub fn in_round(&self) -> bool {
        self.in_flight.is_some() || !self.queue.is_empty()
    }

    /// Whom the conversation that is going on is with.
    pub fn asked(&self) -> Option<Target> {
        self.in_flight
    }

    /// When `start` is to be called next. None while a conversation is going on.
    pub fn next_deadline(&self) -> Option<u64> {
        match self.in_flight {
            Some(_) => None,
            None if self.queue.is_empty() => Some(self.due),
            None => Some(self.attempt_at),
        }
    }

    /// The conversation that is to start now, if any. To be followed by `finish`.
    pub fn start(&mut self, now: u64, known: &[Known]) -> Option<Target> {
        if self.next_deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        if self.queue.is_empty() {
            self.draw_round(now, known);
        }
        let target = self.queue.pop_front()?;
        if let Target::Node(address) = target {
            self.last_asked = Some(address);
        }
        self.in_flight = Some(target);
        self.last_start = Some(now);
        self.jitter = self.random.below(512);
        Some(target)
    }

    /// The conversation that was started is over. `settled` false: ask again soon, the map has
    /// holes or is in doubt. True if the round is over with it.
    pub fn finish(&mut self, now: u64, outcome: Outcome, settled: bool) -> bool {
        let asked = self.in_flight.take();
        self.reached |= outcome != Outcome::Unreachable;
        match outcome {
            Outcome::Failed | Outcome::Unreachable if !self.queue.is_empty() => {
                // A node that was not reached was not bothered: the next one at once.
                let gap = if outcome == Outcome::Failed { REFRESH_GAP_MS } else { 0 };
                self.attempt_at = now.max(self.last_start.unwrap_or(now).saturating_add(gap));
                if let Some(Target::Node(address)) = asked {
                    self.avoid(address, now);
                }
                return false;
            }
            Outcome::Failed | Outcome::Unreachable => {
                self.failures = self.failures.saturating_add(1);
                self.first_seed = self.first_seed.wrapping_add(1);
                let most = match std::mem::take(&mut self.reached) {
                    true => BACKOFF_MS_MAX,
                    false => BACKOFF_MS_UNREACHABLE,
                };
                self.blocked_until = now.saturating_add(self.backoff(most));
                self.due = self.blocked_until;
                self.wished = false;
                self.again = false;
                return true;
            }
            Outcome::Changed => self.gap = REFRESH_GAP_MS,
            Outcome::Same if self.wished => {
                self.gap = self.gap.saturating_mul(2).min(REFRESH_GAP_MS_STORM);
            }
            Outcome::Same => self.gap = REFRESH_GAP_MS,
        }
        self.queue.clear();
        self.reached = false;
        self.failures = 0;
        self.blocked_until = now;
        let delay = if settled { self.interval } else { UNSETTLED_MS };
        self.due = now.saturating_add(delay + delay * self.random.below(205) / 1024);
        self.wished = false;
        if std::mem::take(&mut self.again) {
            self.want(now);
        }
        true
    }

    /// The soonest start of a round from `now` on.
    fn earliest(&self, now: u64) -> u64 {
        let gap = self.gap + self.gap * self.jitter / 1024;
        let rested = self.last_start.map_or(now, |start| start.saturating_add(gap));
        now.max(rested).max(self.blocked_until)
    }

    fn backoff(&mut self, most: u64) -> u64 {
        let doubled = BACKOFF_MS.saturating_mul(1 << self.failures.saturating_sub(1).min(10));
        let longest = doubled.min(most);
        longest - longest * self.random.below(512) / 1024
    }

    /// Some nodes at random, the doubtful ones last, then the seeds in turn.
    fn draw_round(&mut self, now: u64, known: &[Known]) {
        self.avoided.retain(|&(_, until)| until > now);
        let preferred = self.preferred.take();
        let mut drawn: Vec<(u8, u64, SocketAddr)> = known
            .iter()
            .map(|node| {
                let rank = if preferred == Some(node.address) {
                    0
                } else if !node.healthy {
                    4
                } else if self.avoided.iter().any(|&(address, _)| address == node.address) {
                    3
                } else if self.last_asked == Some(node.address) {
                    2
                } else {
                    1
                };
                (rank, self.random.next(), node.address)
            })
            .collect();
        drawn.sort_unstable();
        let nodes = drawn.iter().take(NODES_A_ROUND).map(|&(_, _, address)| Target::Node(address));
        let (first, seeds) = (self.first_seed, self.seeds);
        let seeds = (0..seeds).map(|index| Target::Seed(first.wrapping_add(index) % seeds));
        self.queue = nodes.chain(seeds).collect();
        if self.queue.is_empty() {
            self.due = now.saturating_add(BACKOFF_MS_MAX);
        }
    }
}

/// SplitMix64: spreads load, guards nothing.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn known(count: u16) -> Vec<Known> {
        (1..=count).map(|port| Known { address: address(port), healthy: true }).collect()
    }

    /// Runs `schedule` from `from` to `to` ms; each conversation takes `takes` ms and ends with
    /// `outcome`. `wishes`: one every so many ms, 0 for none. Returns starts and targets.
    fn run(
        schedule: &mut Schedule,
        (from, to): (u64, u64),
        wishes: u64,
        takes: u64,
        mut outcome: impl FnMut(Target) -> Outcome,
    ) -> Vec<(u64, Target)> {
        let nodes = known(5);
        let (mut starts, mut ends_at) = (Vec::new(), None);
        for now in from..to {
            if wishes != 0 && now % wishes == 0 {
                schedule.want(now);
            }
            if let Some((end, target)) = ends_at {
                if now >= end {
                    ends_at = None;
                    schedule.finish(now, outcome(target), true);
                }
            }
            if let Some(target) = schedule.start(now, &nodes) {
                assert!(ends_at.is_none(), "one in flight");
                starts.push((now, target));
                ends_at = Some((now + takes, target));
            }
        }
        starts
    }

    #[track_caller]
    fn check_gaps(starts: &[(u64, Target)], least: u64) {
        for pair in starts.windows(2) {
            assert!(pair[1].0 - pair[0].0 >= least, "{pair:?}");
        }
    }

    #[test]
    fn a_storm_with_news_gets_a_refresh_every_200_ms_at_most() {
        for seed in 0..50 {
            let mut schedule = Schedule::new(10_000, 1, seed, 0);
            let starts = run(&mut schedule, (0, 1000), 10, 3, |_| Outcome::Changed);
            check_gaps(&starts, REFRESH_GAP_MS);
            assert!((3..=5).contains(&starts.len()), "{starts:?}");
        }
    }

    #[test]
    fn a_storm_without_news_slows_down_to_one_in_three_seconds() {
        for seed in 0..50 {
            let mut schedule = Schedule::new(10_000, 1, seed, 0);
            let starts = run(&mut schedule, (0, 20_000), 1, 3, |_| Outcome::Same);
            check_gaps(&starts, REFRESH_GAP_MS);
            let late: Vec<_> = starts.iter().copied().filter(|&(at, _)| at > 3500).collect();
            check_gaps(&late, REFRESH_GAP_MS_STORM);
            assert!(late.len() >= 3, "slow, not stuck: {late:?}");
        }
    }

    #[test]
    fn what_is_urgent_is_asked_for_in_spite_of_a_storm() {
        for seed in 0..50 {
            let mut schedule = Schedule::new(10_000, 1, seed, 0);
            run(&mut schedule, (0, 20_000), 1, 3, |_| Outcome::Same);
            let (nodes, mut last) = (known(5), 20_000);
            schedule.want_within(160, last);
            for now in 20_000..22_000 {
                if schedule.start(now, &nodes).is_some() {
                    assert!(now - last <= 200, "{} ms", now - last);
                    last = now;
                    schedule.finish(now, Outcome::Same, false);
                    schedule.want_within(160, now);
                }
            }
            assert!(last > 21_700, "{last}");
        }
    }

    #[test]
    fn a_wish_after_quiet_is_granted_at_once() {
        let mut schedule = Schedule::new(10_000, 1, 1, 0);
        run(&mut schedule, (0, 5000), 0, 3, |_| Outcome::Same);
        schedule.want(5000);
        assert_eq!(schedule.next_deadline(), Some(5000));
    }

    #[test]
    fn a_wish_during_a_refresh_gets_another_after_it() {
        let mut schedule = Schedule::new(10_000, 1, 1, 0);
        assert!(schedule.start(0, &known(3)).is_some());
        schedule.want(50);
        assert_eq!(schedule.next_deadline(), None);
        assert!(schedule.finish(100, Outcome::Changed, true));
        let next = schedule.next_deadline().unwrap();
        assert!((200..=300).contains(&next), "{next}");
    }

    #[test]
    fn without_wishes_the_interval_counts_and_another_node_is_asked_each_time() {
        let mut schedule = Schedule::new(10_000, 2, 1, 0);
        let starts = run(&mut schedule, (0, 100_000), 0, 3, |_| Outcome::Same);
        assert!((9..=11).contains(&starts.len()), "{starts:?}");
        check_gaps(&starts, 10_000);
        for pair in starts.windows(2) {
            assert_ne!(pair[0].1, pair[1].1);
        }
    }

    #[test]
    fn an_unsettled_map_is_asked_for_again_within_a_second() {
        let mut schedule = Schedule::new(10_000, 1, 1, 0);
        schedule.start(0, &known(3));
        schedule.finish(10, Outcome::Changed, false);
        assert!((1000..1300).contains(&schedule.next_deadline().unwrap()));
    }

    #[test]
    fn at_first_the_seeds_are_tried_in_turn_without_waiting() {
        let mut schedule = Schedule::new(10_000, 3, 1, 0);
        for index in 0..3 {
            assert_eq!(schedule.start(index, &[]), Some(Target::Seed(index as usize)));
            let over = schedule.finish(index + 1, Outcome::Unreachable, false);
            assert_eq!(over, index == 2);
        }
        let next = schedule.next_deadline().unwrap();
        assert!((3 + 125..=3 + 250).contains(&next), "{next}");
        // The next round begins with the next seed.
        assert_eq!(schedule.start(next, &[]), Some(Target::Seed(1)));
    }

    #[test]
    fn nodes_that_fail_give_way_to_seeds() {
        let mut schedule = Schedule::new(10_000, 1, 1, 0);
        let mut targets = Vec::new();
        let mut now = 0;
        loop {
            now = schedule.next_deadline().unwrap().max(now);
            targets.push(schedule.start(now, &known(9)).unwrap());
            if schedule.finish(now, Outcome::Failed, false) {
                break;
            }
        }
        assert_eq!(targets.len(), 4);
        assert!(targets[..3].iter().all(|target| matches!(target, Target::Node(_))));
        assert_eq!(targets[3], Target::Seed(0));
        assert!(now >= 600, "those who were bothered are 200 ms apart: {now}");
    }

    /// Times at which a round begins while everything ends so, and the longest gap between two.
    fn rounds_of(outcome: Outcome) -> (usize, u64) {
        let mut schedule = Schedule::new(10_000, 1, 1, 0);
        let starts = run(&mut schedule, (0, 100_000), 1, 1, |_| outcome);
        let rounds: Vec<_> =
            starts.iter().filter(|(_, target)| *target == Target::Seed(0)).copied().collect();
        let longest = rounds.windows(2).map(|pair| pair[1].0 - pair[0].0).max().unwrap();
        (rounds.len(), longest)
    }

    #[test]
    fn when_nobody_answers_rounds_back_off_to_five_seconds_wishes_or_not() {
        let (rounds, longest) = rounds_of(Outcome::Failed);
        assert!((20..45).contains(&rounds), "{rounds}");
        assert!((2500..=6000).contains(&longest), "{longest}");
    }

    #[test]
    fn when_nobody_can_be_reached_rounds_go_on_twice_a_second() {
        let (rounds, longest) = rounds_of(Outcome::Unreachable);
        assert!((200..400).contains(&rounds), "{rounds}");
        assert!(longest <= 510, "{longest}");
    }

    #[test]
    fn a_node_complained_of_is_not_asked_while_others_can_be() {
        let mut schedule = Schedule::new(1000, 1, 1, 0);
        schedule.avoid(address(1), 0);
        let starts = run(&mut schedule, (0, 9000), 0, 3, |_| Outcome::Same);
        assert!(starts.iter().all(|&(_, target)| target != Target::Node(address(1))));
    }

    #[test]
    fn a_preferred_node_is_asked_first_and_once() {
        let mut schedule = Schedule::new(1000, 1, 1, 0);
        schedule.prefer(address(4));
        assert_eq!(schedule.start(0, &known(5)), Some(Target::Node(address(4))));
        schedule.finish(1, Outcome::Same, true);
        assert_ne!(schedule.start(5000, &known(5)), Some(Target::Node(address(4))));
    }

    #[test]
    fn with_nobody_to_ask_nothing_spins() {
        let mut schedule = Schedule::new(1000, 0, 1, 0);
        assert_eq!(schedule.start(0, &[]), None);
        assert_eq!(schedule.next_deadline(), Some(5000));
    }
}
