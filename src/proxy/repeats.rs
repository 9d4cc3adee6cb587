//! How much may be sent again to nodes that refuse: a tenth of what clients ask for. Pure.
//!
//! A node that answers LOADING, CLUSTERDOWN or TRYAGAIN to everybody would else be asked many times
//! for each request, when it can bear it least. Who finds no token waits on, and its time runs.
//!
//! Not here: whether and when a request is to be sent again at all (`route`); redirects, which have
//! a bound of their own.

use crate::limits::{REPEATS_ALWAYS_MS, REPEATS_MAX};

/// What one repeat costs, in tenths, so that each request earns one.
const COST: u64 = 10;

/// What a repeat that was answered gives back: itself, and leave for more of those that wait, so
/// that thousands follow within a few round trips when a node is well again.
const REWARD: u64 = 5 * COST;

const TENTHS_MAX: u64 = REPEATS_MAX * COST;

#[derive(Debug)]
pub struct Repeats {
    tenths: u64,
    /// Requests of clients that are counted in already.
    commands: u64,
    /// When one is allowed whatever there is.
    next_ms: u64,
}

impl Default for Repeats {
    fn default() -> Repeats {
        Repeats { tenths: TENTHS_MAX, commands: 0, next_ms: 0 }
    }
}

impl Repeats {
    /// Whether one may be sent again now. `commands`: what clients have asked for so far.
    pub fn allows(&mut self, now_ms: u64, commands: u64) -> bool {
        let earned = commands.saturating_sub(self.commands);
        self.commands = commands;
        self.tenths = self.tenths.saturating_add(earned).min(TENTHS_MAX);
        // Now and then one finds out whether the nodes are well again.
        self.tenths >= COST || now_ms >= self.next_ms
    }

    /// As `allows`; if so, it is.
    pub fn take(&mut self, now_ms: u64, commands: u64) -> bool {
        let allowed = self.allows(now_ms, commands);
        if self.tenths >= COST {
            self.tenths -= COST;
        } else if allowed {
            self.next_ms = now_ms.saturating_add(REPEATS_ALWAYS_MS);
        }
        allowed
    }

    /// One that was sent again has its answer.
    pub fn reward(&mut self) {
        self.tenths = self.tenths.saturating_add(REWARD).min(TENTHS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(repeats: &mut Repeats, times: u32, now_ms: u64, commands: u64) -> u32 {
        (0..times).map(|_| u32::from(repeats.take(now_ms, commands))).sum()
    }

    #[test]
    fn a_tenth_of_what_is_asked_may_be_sent_again() {
        let mut repeats = Repeats::default();
        assert_eq!(u64::from(taken(&mut repeats, 1_000, 0, 0)), REPEATS_MAX + 1);
        assert_eq!(taken(&mut repeats, 1_000, 1, 500), 50);
        assert_eq!(taken(&mut repeats, 1_000, 1, 509), 0);
        assert_eq!(taken(&mut repeats, 1_000, 1, 510), 1);
        // What nobody uses does not pile up.
        assert_eq!(u64::from(taken(&mut repeats, 1_000, 2, 1_000_000)), REPEATS_MAX);
    }

    #[test]
    fn without_any_traffic_one_now_and_then_still_finds_out() {
        let mut repeats = Repeats::default();
        taken(&mut repeats, 1_000, 0, 0);
        let found = (0..1_000).filter(|&now| repeats.take(now, 0)).count() as u64;
        let expected = 900 / REPEATS_ALWAYS_MS..=1_000 / REPEATS_ALWAYS_MS;
        assert!(expected.contains(&found), "{found}");
    }

    #[test]
    fn answers_let_all_that_wait_follow_soon() {
        let mut repeats = Repeats::default();
        taken(&mut repeats, 1_000, 0, 0);
        let (mut waiting, mut rounds) = (5_000, 0);
        while waiting > 0 {
            let gone = taken(&mut repeats, waiting, 100 + 40 * rounds, 0);
            (0..gone).for_each(|_| repeats.reward());
            waiting -= gone;
            rounds += 1;
        }
        // The bucket's size bounds one round.
        assert!(rounds <= 30, "{rounds}");
    }
}
