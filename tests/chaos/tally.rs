//! What was counted, added up and printed by kind.
//!
//! Not here: what is allowed. The test decides.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::Verdict;
use crate::words::text;

#[derive(Clone, Default)]
pub struct Tally {
    /// Replies that were compared with what they had to be.
    pub verified: u64,
    /// Those of them that say what a number or a log has grown to.
    pub counted: u64,
    pub connections: u64,
    pub logs_read: u64,
    /// Acknowledged writes that the cluster lost in faults that may lose some.
    pub lost: u64,
    pub wrong: Vec<String>,
    pub doubled: Vec<String>,
    /// Requests that got neither a reply nor a close.
    pub hung: u64,
    /// By text without its numbers: how many, when the first and the last came (ms of the run).
    pub errors: BTreeMap<String, (u64, u64, u64)>,
    /// The last error line, and what it is called in `errors`: mostly the next is the same.
    last: (Vec<u8>, String),
    /// The longest time in which something was awaited and nothing came, and when it ended.
    pub longest_stall: Duration,
    pub stalled_at: u64,
    /// What was awaited then.
    pub stalled_on: String,
}

/// More of a kind would say no more.
const KEPT: usize = 20;

impl Tally {
    pub fn wrong(&mut self, told: String) {
        if self.wrong.len() < KEPT {
            self.wrong.push(told);
        }
    }

    pub fn verdict(&mut self, verdict: Verdict, told: impl FnOnce() -> String) {
        match verdict {
            Verdict::Good => (),
            Verdict::Lost => self.lost += 1,
            Verdict::Wrong(what) => self.wrong(format!("{what}: {}", told())),
            Verdict::Doubled(what) if self.doubled.len() < KEPT => {
                self.doubled.push(format!("{what}: {}", told()));
            }
            Verdict::Doubled(_) => (),
        }
    }

    pub fn error(&mut self, text: &str, at_ms: u64) {
        let place = self.errors.entry(without_numbers(text)).or_insert((0, at_ms, at_ms));
        place.0 += 1;
        place.2 = place.2.max(at_ms);
    }

    /// The same for a line as it came. In a fault there are as many as there are replies else.
    pub fn error_line(&mut self, line: &[u8], at_ms: u64) {
        if self.last.0 != line {
            self.last = (line.to_vec(), without_numbers(&text(line)));
        }
        match self.errors.get_mut(&self.last.1) {
            Some(place) => {
                place.0 += 1;
                place.2 = place.2.max(at_ms);
            }
            None => _ = self.errors.insert(self.last.1.clone(), (1, at_ms, at_ms)),
        }
    }

    pub fn errors_total(&self) -> u64 {
        self.errors.values().map(|(count, ..)| count).sum()
    }

    pub fn stall(&mut self, time: Duration, at_ms: u64, on: impl FnOnce() -> String) {
        if time > self.longest_stall {
            self.longest_stall = time;
            self.stalled_at = at_ms;
            self.stalled_on = on();
        }
    }

    pub fn add(&mut self, other: Tally) {
        self.verified += other.verified;
        self.counted += other.counted;
        self.connections += other.connections;
        self.logs_read += other.logs_read;
        self.lost += other.lost;
        self.hung += other.hung;
        self.wrong.extend(other.wrong);
        self.doubled.extend(other.doubled);
        for (text, (count, first, last)) in other.errors {
            let place = self.errors.entry(text).or_insert((0, first, last));
            place.0 += count;
            place.1 = place.1.min(first);
            place.2 = place.2.max(last);
        }
        self.stall(other.longest_stall, other.stalled_at, || other.stalled_on);
    }

    pub fn print(&self, title: &str, took: Duration) {
        println!(
            "{title}: {} verified in {:.1} s ({:.0}/s), {} wrong, {} doubled, {} hung, {} lost by \
             the cluster, {} logs read whole, {} connections, longest stall {:?} (to {} ms, on {})",
            self.verified,
            took.as_secs_f64(),
            self.verified as f64 / took.as_secs_f64(),
            self.wrong.len(),
            self.doubled.len(),
            self.hung,
            self.lost,
            self.logs_read,
            self.connections,
            self.longest_stall,
            self.stalled_at,
            self.stalled_on,
        );
        for (text, (count, first, last)) in &self.errors {
            println!("    {count:>7} x {text} ({first} to {last} ms)");
        }
        for told in self.wrong.iter().chain(&self.doubled) {
            println!("    WRONG {told}");
        }
    }

    /// No foreign or old reply, nothing doubled, nobody without an answer.
    #[track_caller]
    pub fn expect_right(&self) {
        assert!(self.wrong.is_empty(), "wrong replies: {:#?}", self.wrong);
        assert!(self.doubled.is_empty(), "writes run more often than asked: {:#?}", self.doubled);
        assert_eq!(self.hung, 0, "requests without reply or close");
    }

    #[track_caller]
    pub fn expect_no_errors(&self) {
        assert!(self.errors.is_empty(), "errors that clients saw: {:#?}", self.errors);
    }
}

/// Addresses, slots and ports would make each error a kind of its own.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '0'..='9' if out.ends_with('#') => (),
            '0'..='9' => out.push('#'),
            other => out.push(other),
        }
    }
    out
}
