//! What a value may be, given what was sent and what was answered. Pure.
//!
//! Not here: bytes, connections, time (told).

use std::collections::HashMap;

/// What a reply says of what is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    Good,
    /// Acknowledged and gone: the cluster itself may lose writes in a failover that nobody planned.
    Lost,
    /// Against the promises.
    Wrong(String),
    /// A write that may not be repeated has run more often than it was asked for.
    Doubled(String),
}

/// When acknowledged writes may have been lost: from the run's start in milliseconds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct When {
    pub now: u64,
    /// Until here something went on that can lose writes; `u64::MAX`: it goes on.
    pub lossy_until: u64,
}

impl When {
    /// Whether what was known at `since` may have been lost.
    fn excuses(self, since: u64) -> bool {
        self.lossy_until >= since
    }
}

/// What became of a write.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Done,
    /// It has not run, says the error.
    Refused,
    /// It may have run, or may still.
    Unknown,
}

/// A key that one writer sets to numbered values. 0: not there.
#[derive(Clone, Default, Debug)]
pub struct Register {
    value: u32,
    known_at: u64,
    /// Writes whose outcome nobody knows.
    floating: Vec<u32>,
    refused: Vec<u32>,
}

/// So many floating or refused writes of one key are remembered.
const REMEMBERED: usize = 512;

impl Register {
    pub fn written(&mut self, number: u32, outcome: Outcome, when: When) {
        match outcome {
            Outcome::Done => (self.value, self.known_at) = (number, when.now),
            Outcome::Refused => remember(&mut self.refused, number),
            Outcome::Unknown => remember(&mut self.floating, number),
        }
    }

    pub fn read(&mut self, number: u32, when: When) -> Verdict {
        let (before, since) = (self.value, self.known_at);
        self.value = number;
        self.known_at = when.now;
        if number == before {
            return Verdict::Good;
        }
        if let Some(at) = self.floating.iter().position(|&known| known == number) {
            self.floating.swap_remove(at);
            return Verdict::Good;
        }
        if self.refused.contains(&number) {
            return Verdict::Wrong(format!(
                "write {number} ran though its error said that it had not"
            ));
        }
        match when.excuses(since) {
            true => Verdict::Lost,
            false => Verdict::Wrong(format!(
                "read write {number} where {before} was acknowledged at {since} ms; now {} ms, {} \
                 writes of unknown outcome, {} refused",
                when.now,
                self.floating.len(),
                self.refused.len(),
            )),
        }
    }
}

fn remember(list: &mut Vec<u32>, number: u32) {
    if list.len() == REMEMBERED {
        list.remove(0);
    }
    list.push(number);
}

/// A number that only grows by one: INCR, or the tokens of an APPEND log.
#[derive(Clone, Default, Debug)]
pub struct Count {
    value: u64,
    known_at: u64,
    floating: u64,
    /// Increments that were acknowledged or may have run, ever.
    sent: u64,
}

impl Count {
    /// One more, whose outcome is not known.
    pub fn unknown(&mut self) {
        self.floating += 1;
        self.sent += 1;
    }

    /// One more was acknowledged with this new value.
    pub fn grown_to(&mut self, value: u64, when: When) -> Verdict {
        self.sent += 1;
        self.value += 1;
        self.read(value, when)
    }

    pub fn read(&mut self, value: u64, when: When) -> Verdict {
        let (least, since) = (self.value, self.known_at);
        self.value = value;
        self.known_at = when.now;
        let most = least + self.floating;
        if (least..=most).contains(&value) {
            self.floating -= value - least;
            return Verdict::Good;
        }
        if value > self.sent || (value > most && !when.excuses(since)) {
            let told =
                format!("{value} where {least} to {most} were asked for, {} ever", self.sent);
            return Verdict::Doubled(told);
        }
        match when.excuses(since) {
            true => Verdict::Lost,
            false => Verdict::Wrong(format!("{value} where {least} were acknowledged")),
        }
    }

    /// The key is a new one.
    pub fn restart(&mut self) {
        *self = Count::default();
    }
}

/// The numbered entries of one APPEND log.
#[derive(Clone, Default, Debug)]
pub struct Entries {
    /// By number: what became of it, and when it was asked for.
    outcomes: HashMap<u32, (Outcome, u64)>,
}

impl Entries {
    pub fn written(&mut self, number: u32, outcome: Outcome, when: When) {
        self.outcomes.insert(number, (outcome, when.now));
    }

    pub fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// The whole log as it is: each acknowledged entry once and in order, no refused one.
    pub fn check(&self, found: &[u32], when: When) -> Verdict {
        let (mut seen, mut last) = (HashMap::new(), 0);
        for &number in found {
            *seen.entry(number).or_insert(0) += 1;
            match self.outcomes.get(&number).map(|(outcome, _)| outcome) {
                None => return Verdict::Wrong(format!("entry {number} was never sent")),
                Some(Outcome::Refused) => {
                    let told =
                        format!("entry {number} is there though it was said not to have run");
                    return Verdict::Wrong(told);
                }
                Some(Outcome::Done) if number < last => {
                    return Verdict::Wrong(format!("entry {number} stands behind {last}"));
                }
                Some(Outcome::Done) => last = number,
                Some(Outcome::Unknown) => (),
            }
        }
        if let Some((number, times)) = seen.iter().find(|(_, times)| **times > 1) {
            return Verdict::Doubled(format!("entry {number} stands there {times} times"));
        }
        let done = self.outcomes.iter().filter(|(_, (outcome, _))| *outcome == Outcome::Done);
        let gone = done.filter(|(number, _)| !seen.contains_key(number));
        let gone: Vec<(u32, u64)> = gone.map(|(number, (_, at))| (*number, *at)).collect();
        match gone.iter().find(|(_, at)| !when.excuses(*at)) {
            None if gone.is_empty() => Verdict::Good,
            None => Verdict::Lost,
            Some((number, at)) => Verdict::Wrong(format!(
                "the acknowledged entry {number} of {at} ms is missing, and {} others",
                gone.len() - 1
            )),
        }
    }

    pub fn restart(&mut self) {
        *self = Entries::default();
    }
}

mod tests {
    use super::*;

    const CALM: When = When { now: 100, lossy_until: 0 };
    const STORM: When = When { now: 100, lossy_until: u64::MAX };

    #[test]
    fn planted_faults_of_a_register_are_found() {
        let mut register = Register::default();
        register.written(1, Outcome::Done, When { now: 10, lossy_until: 0 });
        register.written(2, Outcome::Done, When { now: 20, lossy_until: 0 });
        register.written(3, Outcome::Unknown, CALM);
        register.written(4, Outcome::Refused, CALM);
        assert_eq!(register.clone().read(2, CALM), Verdict::Good);
        assert_eq!(register.clone().read(3, CALM), Verdict::Good);
        assert!(matches!(register.clone().read(1, CALM), Verdict::Wrong(_)), "an old value");
        assert_eq!(register.clone().read(1, STORM), Verdict::Lost);
        assert!(matches!(register.clone().read(4, STORM), Verdict::Wrong(_)), "a refused write");
        assert!(matches!(register.clone().read(0, CALM), Verdict::Wrong(_)), "nothing");
        // A floating write that was seen does not come again over a newer one.
        register.read(3, CALM);
        register.written(5, Outcome::Done, CALM);
        assert!(matches!(register.read(3, CALM), Verdict::Wrong(_)), "a write run twice");
    }

    #[test]
    fn planted_faults_of_a_count_are_found() {
        let mut count = Count::default();
        assert_eq!(count.grown_to(1, CALM), Verdict::Good);
        assert!(matches!(count.clone().grown_to(3, CALM), Verdict::Doubled(_)));
        assert!(matches!(count.clone().grown_to(1, CALM), Verdict::Wrong(_)), "one is lost");
        assert_eq!(count.clone().grown_to(1, STORM), Verdict::Lost);
        assert!(matches!(count.clone().grown_to(3, STORM), Verdict::Doubled(_)), "even in a storm");
        count.unknown();
        assert_eq!(count.clone().grown_to(2, CALM), Verdict::Good);
        assert_eq!(count.grown_to(3, CALM), Verdict::Good);
        assert!(
            matches!(count.grown_to(5, CALM), Verdict::Doubled(_)),
            "the unknown one was counted"
        );
    }

    #[test]
    fn planted_faults_of_a_log_are_found() {
        let mut entries = Entries::default();
        for number in [1, 2, 5] {
            entries.written(number, Outcome::Done, CALM);
        }
        entries.written(3, Outcome::Unknown, CALM);
        entries.written(4, Outcome::Refused, CALM);
        for good in [&[1, 2, 5][..], &[1, 2, 3, 5], &[1, 2, 5, 3]] {
            assert_eq!(entries.check(good, CALM), Verdict::Good, "{good:?}");
        }
        for wrong in [&[2, 1, 5][..], &[1, 2, 4, 5], &[1, 2, 5, 9], &[1, 2]] {
            assert!(matches!(entries.check(wrong, CALM), Verdict::Wrong(_)), "{wrong:?}");
        }
        for doubled in [&[1, 2, 2, 5][..], &[1, 2, 3, 5, 3]] {
            assert!(matches!(entries.check(doubled, STORM), Verdict::Doubled(_)), "{doubled:?}");
        }
        assert_eq!(entries.check(&[1, 2], STORM), Verdict::Lost);
    }
}
