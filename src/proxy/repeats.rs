//! How much may be sent again to nodes that refuse: a tenth of what clients ask for at most. Pure.
//!
//! A node that answers LOADING, CLUSTERDOWN or TRYAGAIN to everybody would else be asked many times
//! for each request, when it can bear it least. Who finds no token waits on, and its time runs.
//!
//! Requests earn the tokens, so that a burst of repeats, too, was paid for by what came before it:
//! a thirteenth each, which leaves room for the few that a process starts with, and for debts.
//! Without any token one still goes now and then, on credit; an answer forgives the debt.
//!
//! Not here: whether and when a request is to be sent again at all (`route`); redirects, which have
//! a bound of their own.

use crate::limits::{REPEATS_ALWAYS_MS, REPEATS_DEBT_MAX, REPEATS_FIRST, REPEATS_MAX};

/// What one repeat costs; each request earns one part of it.
const COST: i64 = 13;

/// What a repeat that was answered gives back: itself, and leave for more of those that wait, so
/// that thousands follow within a few round trips when a node is well again.
const REWARD: i64 = 5 * COST;

const PARTS_MAX: i64 = REPEATS_MAX * COST;

#[derive(Debug)]
pub struct Repeats {
    /// Below zero: owed.
    parts: i64,
    /// Requests of clients that are counted in already.
    commands: u64,
    /// When one is allowed whatever there is.
    next_ms: u64,
}

impl Default for Repeats {
    fn default() -> Repeats {
        Repeats { parts: REPEATS_FIRST * COST, commands: 0, next_ms: 0 }
    }
}

impl Repeats {
    /// Whether one may be sent again now. `commands`: what clients have asked for so far.
    pub fn allows(&mut self, now_ms: u64, commands: u64) -> bool {
        let earned = commands.saturating_sub(self.commands);
        self.commands = commands;
        let earned = i64::try_from(earned).unwrap_or(PARTS_MAX);
        self.parts = self.parts.saturating_add(earned).min(PARTS_MAX);
        // Now and then one finds out whether the nodes are well again.
        self.parts >= COST || now_ms >= self.next_ms
    }

    /// As `allows`; if so, it is.
    pub fn take(&mut self, now_ms: u64, commands: u64) -> bool {
        let allowed = self.allows(now_ms, commands);
        if self.parts >= COST {
            self.parts -= COST;
        } else if allowed {
            self.next_ms = now_ms.saturating_add(REPEATS_ALWAYS_MS);
            self.parts = (self.parts - COST).max(-REPEATS_DEBT_MAX * COST);
        }
        allowed
    }

    /// One that was sent again has its answer.
    pub fn reward(&mut self) {
        self.parts = self.parts.max(0).saturating_add(REWARD).min(PARTS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(repeats: &mut Repeats, times: u32, now_ms: u64, commands: u64) -> u64 {
        (0..times).map(|_| u64::from(repeats.take(now_ms, commands))).sum()
    }

    #[test]
    fn less_than_a_tenth_of_what_is_asked_is_sent_again_whatever_time_it_takes() {
        let mut repeats = Repeats::default();
        let (mut sent, mut asked) = (0, 0);
        // Rounds of requests that are refused for two seconds each, and all try on all the time.
        for round in 0..10 {
            asked += 4_000;
            sent += (0..2_000)
                .map(|ms| taken(&mut repeats, 40, round * 2_000 + ms, asked))
                .sum::<u64>();
            assert!(sent * 10 <= asked, "{sent} of {asked}");
        }
        assert!(sent * 14 >= asked, "{sent} of {asked}");
    }

    #[test]
    fn burst_is_earned_before_and_bounded() {
        let mut repeats = Repeats::default();
        assert_eq!(taken(&mut repeats, 1_000, 0, 0), REPEATS_FIRST as u64 + 1);
        // What nobody uses does not pile up.
        assert_eq!(taken(&mut repeats, 1_000, 2, 1_000_000), REPEATS_MAX as u64);
    }

    #[test]
    fn without_any_traffic_one_now_and_then_still_finds_out() {
        let mut repeats = Repeats::default();
        taken(&mut repeats, 1_000, 0, 0);
        let found = (0..100_000).filter(|&now| repeats.take(now, 0)).count() as u64;
        let expected = 99_000 / REPEATS_ALWAYS_MS..=100_000 / REPEATS_ALWAYS_MS;
        assert!(expected.contains(&found), "{found}");
    }

    #[test]
    fn answers_let_all_that_wait_follow_soon_however_long_the_nodes_were_ill() {
        let mut repeats = Repeats::default();
        (0..10_000).for_each(|now| _ = repeats.take(now, 0));
        let (mut waiting, mut rounds) = (5_000, 0);
        while waiting > 0 {
            let gone = taken(&mut repeats, waiting, 10_000 + 40 * rounds, 0) as u32;
            (0..gone).for_each(|_| repeats.reward());
            waiting -= gone;
            rounds += 1;
        }
        // The bucket's size bounds one round.
        assert!(rounds <= 30, "{rounds}");
    }
}
