//! One request at a time is timed, from the turn that read it to the end of the turn that answered
//! it: how long it was here, and how long at its node.
//!
//! A turn reads the clock once, so the time that a request spends in a turn does not show there.
//! While one is timed the driver reads it once more, at the turn's end (`wants_clock`).
//!
//! Not here: which command is chosen (`dispatch`), histograms (`facts`).

use super::request::{Marks, Request, State};
use super::types::NONE;
use crate::limits::LATENCY_US_MAX;
use crate::metrics::SAMPLE_EVERY;

/// The one request at a time whose way is timed. Microseconds of the driver's clock.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Sample {
    #[default]
    None,
    /// The next one opened.
    Armed { since_us: u64 },
    /// This one. `sent_us`: the end of the turn that gave it to a node; 0: not yet. `node`: which;
    /// `u16::MAX`: several.
    Taken { request: u32, since_us: u64, sent_us: u64, node: u16 },
    /// It has been answered.
    Ended { since_us: u64, sent_us: u64, node: u16 },
}

/// How long a request took, microseconds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Timing {
    pub whole_us: u64,
    /// From leaving here for the first time to its last reply's coming; the rest was spent here.
    pub node_us: u64,
    /// Index of the node; `u16::MAX`: several, or none.
    pub node: u16,
}

const SEVERAL: u16 = u16::MAX;

impl Sample {
    /// Times the next client's request that is opened in this turn, unless one is being timed. One
    /// that takes longer than histograms tell is given up.
    pub fn arm(&mut self, now_us: u64) {
        let lost = matches!(*self, Sample::Taken { since_us, .. }
            if now_us.saturating_sub(since_us) > LATENCY_US_MAX);
        if *self == Sample::None || lost {
            *self = Sample::Armed { since_us: now_us };
        }
    }

    /// A request is opened. What blocks says nothing about speed.
    #[inline]
    pub fn opened(&mut self, index: u32, client: u32, marks: Marks) {
        if let Sample::Armed { since_us } = *self
            && client != NONE
            && !marks.has(Marks::PRIVATE)
        {
            *self = Sample::Taken { request: index, since_us, sent_us: 0, node: SEVERAL };
        }
    }

    /// A request is closed. One whose client has left says nothing.
    #[inline]
    pub fn closed(&mut self, index: u32, entry: &Request) {
        if let Sample::Taken { request, since_us, sent_us, node } = *self
            && request == index
        {
            let counts = entry.client != NONE && !entry.marks.has(Marks::PRIVATE);
            *self = if counts { Sample::Ended { since_us, sent_us, node } } else { Sample::None };
        }
    }

    /// Which request is timed.
    pub fn request(&self) -> Option<u32> {
        match *self {
            Sample::Taken { request, sent_us: 0, .. } => Some(request),
            _ => None,
        }
    }

    /// The timed request that is at its node or nodes, and since when.
    #[inline]
    pub fn sent(&self) -> Option<(u32, u64)> {
        match *self {
            Sample::Taken { request, sent_us: sent_us @ 1.., .. } => Some((request, sent_us)),
            _ => None,
        }
    }

    /// The end of a turn that began at `turn_us`; `entry`: the timed request.
    pub fn end_turn(
        &mut self,
        entry: Option<&Request>,
        turn_us: u64,
        now_us: u64,
    ) -> Option<Timing> {
        match *self {
            Sample::None => None,
            Sample::Armed { .. } => {
                *self = Sample::None;
                None
            }
            Sample::Taken { request, since_us, sent_us: 0, .. } => {
                let state = entry.map_or(State::Free, |entry| entry.state);
                if matches!(state, State::InFlight | State::Parent) {
                    let one = entry.filter(|_| state == State::InFlight);
                    let node = one.map_or(SEVERAL, |entry| entry.node);
                    *self = Sample::Taken { request, since_us, sent_us: now_us, node };
                }
                None
            }
            Sample::Taken { .. } => None,
            Sample::Ended { since_us, sent_us, node } => {
                *self = Sample::None;
                let at_node = sent_us > 0;
                let node_us = if at_node { turn_us.saturating_sub(sent_us) } else { 0 };
                let whole_us = now_us.saturating_sub(since_us).max(node_us);
                Some(Timing { whole_us, node_us, node })
            }
        }
    }
}

/// Which commands are looked at: one in `SAMPLE_EVERY` on average, at uneven distances, so that a
/// client's own rhythm does not choose for it.
#[derive(Debug)]
pub struct Rhythm {
    next: u64,
    random: u64,
}

impl Rhythm {
    pub fn new(seed: u64) -> Rhythm {
        Rhythm { next: SAMPLE_EVERY, random: seed | 1 }
    }

    /// HOT: whether the command with this number is one of them.
    #[inline]
    pub fn is_due(&self, commands: u64) -> bool {
        commands >= self.next
    }

    /// It was; or commands are counted anew, after so many.
    pub fn step(&mut self, commands: u64) {
        // xorshift64: nothing depends on its quality.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.next = commands + 1 + self.random % (2 * SAMPLE_EVERY - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::{NewRequest, Requests};
    use super::*;

    fn of_client(marks: Marks) -> NewRequest {
        NewRequest { client: 7, marks, ..NewRequest::internal(1) }
    }

    #[test]
    fn one_request_of_a_client_is_timed_here_and_at_its_node() {
        let mut requests = Requests::default();
        requests.sample.arm(100);
        let ours = requests.open(NewRequest::internal(1));
        let timed = requests.open(of_client(Marks::default()));
        let other = requests.open(of_client(Marks::default()));
        requests[timed].state = State::InFlight;
        requests[timed].node = 3;
        assert_eq!(requests.end_turn(100, 130), None);
        requests.close(ours);
        requests.close(other);
        requests.sample.arm(150);
        assert!(!requests.wants_clock());
        assert_eq!(requests.end_turn(200, 210), None);
        requests.close(timed);
        assert!(requests.wants_clock());
        let timing = Timing { whole_us: 260, node_us: 220, node: 3 };
        assert_eq!(requests.end_turn(350, 360), Some(timing));
        assert_eq!(requests.end_turn(400, 410), None);
    }

    #[test]
    fn request_whose_parts_are_at_several_nodes_says_since_when() {
        let mut requests = Requests::default();
        requests.sample.arm(100);
        let whole = requests.open(of_client(Marks::default()));
        requests[whole].state = State::Parent;
        assert_eq!(requests.sample.sent(), None);
        requests.end_turn(100, 130);
        assert_eq!(requests.sample.sent(), Some((whole, 130)));
        requests.close(whole);
        assert_eq!(requests.sample.sent(), None);
        let timing = Timing { whole_us: 160, node_us: 120, node: SEVERAL };
        assert_eq!(requests.end_turn(250, 260), Some(timing));
    }

    #[test]
    fn request_that_waits_here_is_not_at_a_node_meanwhile() {
        let mut requests = Requests::default();
        requests.sample.arm(100);
        let timed = requests.open(of_client(Marks::default()));
        requests[timed].state = State::Waiting;
        assert_eq!(requests.end_turn(100, 110), None);
        assert!(requests.wants_clock());
        requests[timed].state = State::InFlight;
        requests[timed].node = 1;
        assert_eq!(requests.end_turn(500, 510), None);
        requests.close(timed);
        let timing = Timing { whole_us: 620, node_us: 190, node: 1 };
        assert_eq!(requests.end_turn(700, 720), Some(timing));
    }

    #[test]
    fn request_whose_client_has_left_or_that_blocks_is_no_sample() {
        let mut requests = Requests::default();
        requests.sample.arm(100);
        let timed = requests.open(of_client(Marks::default()));
        requests[timed].client = NONE;
        requests.close(timed);
        assert_eq!(requests.end_turn(200, 200), None);
        // Nor is one that was armed for and never came.
        requests.sample.arm(300);
        assert_eq!(requests.end_turn(300, 300), None);
        let other = requests.open(of_client(Marks::default()));
        requests.close(other);
        assert_eq!(requests.end_turn(900, 900), None);
        requests.sample.arm(900);
        let blocks = requests.open(of_client(Marks::PRIVATE));
        requests.close(blocks);
        assert_eq!(requests.end_turn(950, 950), None);
    }

    #[test]
    fn request_that_never_ends_gives_way_to_another() {
        let mut requests = Requests::default();
        requests.sample.arm(100);
        requests.open(of_client(Marks::default()));
        requests.sample.arm(200);
        assert!(matches!(requests.sample, Sample::Taken { .. }));
        requests.sample.arm(101 + LATENCY_US_MAX);
        assert!(matches!(requests.sample, Sample::Armed { .. }));
    }

    #[test]
    fn one_command_in_so_many_is_looked_at_and_not_by_a_rhythm() {
        let mut rhythm = Rhythm::new(42);
        let mut chosen = Vec::new();
        for command in 1..=640_000 {
            if rhythm.is_due(command) {
                rhythm.step(command);
                chosen.push(command);
            }
        }
        // Counted anew (CONFIG RESETSTAT), it goes on.
        rhythm.step(0);
        assert!((1..=2 * SAMPLE_EVERY).any(|command| rhythm.is_due(command)));
        let wanted = 640_000 / SAMPLE_EVERY as usize;
        assert!((wanted * 9 / 10..wanted * 11 / 10).contains(&chosen.len()), "{}", chosen.len());
        for place in 0..SAMPLE_EVERY {
            let count = chosen.iter().filter(|&&command| command % SAMPLE_EVERY == place).count();
            assert!(count > 90, "place {place} was chosen {count} times");
        }
    }
}
