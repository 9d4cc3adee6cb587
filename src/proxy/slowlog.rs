//! SLOWLOG: the requests that took longest from their coming to their node's answer; LATENCY: how
//! long they took.
//!
//! The time is the client's: waiting for a connection, redirects and repeats are in it; what blocks
//! is not logged. A request that was cut is logged by its slow parts. To the millisecond, which is
//! the clock of a turn. Each reactor keeps its own; they are joined when read (`peers`).
//!
//! Not here: the words of SLOWLOG (`local`).

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::Proxy;
use super::facts::SlowFacts;
use super::own::AT_NODE;
use super::request::{Marks, State};
use super::split::Merge;
use super::types::{NONE, Now};
use crate::command::{COMMANDS, Flags};
use crate::limits::SLOW_SHOWN_MAX;
use crate::resp::write;

/// Words of a request, and bytes of one, that an entry shows, at most (redis-server's bounds).
const WORDS_MAX: usize = 32;
const WORD_MAX: usize = 128;

/// Bytes of a request that are looked at.
const LOOK_MAX: u32 = 16 * 1024;

/// Slow requests of one moment that are all looked at: of a pipeline the newest are kept.
const MOMENT_MIN: usize = 256;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slow {
    pub id: u64,
    /// When it was answered. Finer than it is shown: it puts those of several reactors in order.
    pub unix_us: u64,
    pub duration_us: u64,
    pub words: Vec<Vec<u8>>,
    pub client: SocketAddr,
    pub name: String,
    pub command: &'static str,
    /// Where it was answered, and how long after its bytes had left for there.
    pub node: Option<SocketAddr>,
    pub node_us: u64,
}

impl Slow {
    /// Without its words and its client.
    pub fn facts(&self) -> SlowFacts {
        let &Slow { unix_us, duration_us, node_us, node, command, .. } = self;
        SlowFacts { unix_s: unix_us / 1_000_000, duration_us, node_us, node, command }
    }
}

/// Seconds of which LATENCY HISTORY tells (redis-server: `LATENCY_TS_LEN`).
const SECONDS_MAX: usize = 160;

/// For LATENCY: each second in which a request was slow, oldest first, with the milliseconds of the
/// slowest; and of the slowest ever.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Spikes {
    seconds: Vec<(u64, u64)>,
    max_ms: u64,
}

impl Spikes {
    fn add(&mut self, second: u64, ms: u64) {
        self.max_ms = self.max_ms.max(ms);
        match self.seconds.iter_mut().rev().find(|(known, _)| *known <= second) {
            Some((known, slowest)) if *known == second => *slowest = ms.max(*slowest),
            _ => self.seconds.push((second, ms)),
        }
        if self.seconds.len() > SECONDS_MAX {
            self.seconds.remove(0);
        }
    }

    /// Those of all reactors as one.
    pub fn join(all: &[Spikes]) -> Spikes {
        let mut seconds: Vec<(u64, u64)> =
            all.iter().flat_map(|spikes| &spikes.seconds).copied().collect();
        // The slowest of each second comes first, and stays.
        seconds.sort_unstable_by_key(|&(second, ms)| (second, std::cmp::Reverse(ms)));
        seconds.dedup_by_key(|&mut (second, _)| second);
        seconds.drain(..seconds.len().saturating_sub(SECONDS_MAX));
        Spikes { seconds, max_ms: all.iter().map(|spikes| spikes.max_ms).max().unwrap_or(0) }
    }

    pub fn is_empty(&self) -> bool {
        self.seconds.is_empty()
    }

    pub fn write_latest(&self, out: &mut Vec<u8>) {
        let Some(&(second, ms)) = self.seconds.last() else { return write::array_header(out, 0) };
        write::array_header(out, 1);
        write::array_header(out, 4);
        write::bulk(out, b"command");
        [second, ms, self.max_ms].into_iter().for_each(|n| write::integer(out, n as i64));
    }

    pub fn write_history(&self, out: &mut Vec<u8>) {
        write::array_header(out, self.seconds.len());
        for &(second, ms) in &self.seconds {
            write::array_header(out, 2);
            write::integer(out, second as i64);
            write::integer(out, ms as i64);
        }
    }

    /// The first line of what a server draws, and a bar for each second.
    pub fn draw(&self) -> Option<String> {
        let times = || self.seconds.iter().map(|&(_, ms)| ms);
        let (high, low) = (times().max()?, times().min()?);
        let max = self.max_ms;
        let mut text = format!("command - high {high} ms, low {low} ms (all time high {max} ms)\n");
        text.push_str(&"-".repeat(80));
        text.push('\n');
        for &(second, ms) in &self.seconds {
            let bar = "#".repeat((ms * 40).div_ceil(high.max(1)) as usize);
            text.push_str(&format!("{second} {ms:>8} ms {bar}\n"));
        }
        Some(text)
    }
}

/// The entries of one reactor, newest first.
#[derive(Debug, Default)]
pub struct SlowLog {
    entries: VecDeque<Slow>,
    max: usize,
    next_id: u64,
    id_step: u64,
    total: u64,
    /// The slowest of each second in which a request was slow, the newest at the end.
    recent: VecDeque<SlowFacts>,
    spikes: Spikes,
    /// When the newest entries came (milliseconds), how many of them, and the slowest one's time.
    burst: (u64, usize, u64),
}

impl SlowLog {
    /// Ids are `first`, `+ step`, …: unique in the process when each reactor has its own remainder.
    pub fn new(max: usize, first: u64, step: u64) -> SlowLog {
        SlowLog {
            entries: VecDeque::new(),
            max,
            next_id: first,
            id_step: step,
            total: 0,
            recent: VecDeque::new(),
            spikes: Spikes::default(),
            burst: (0, 0, 0),
        }
    }

    /// Whether one more would only push out others of the same moment: then it is counted, no more.
    /// A node that stood still answers thousands at once.
    fn counts_only(&mut self, now: Now, duration_us: u64) -> bool {
        let (moment, count, slowest) = self.burst;
        if moment != now.ms {
            self.burst = (now.ms, 1, duration_us);
            return false;
        }
        if count < self.max.max(MOMENT_MIN) || duration_us > slowest {
            self.burst = (moment, count + 1, slowest.max(duration_us));
            return false;
        }
        self.count(now.unix_us, duration_us);
        true
    }

    fn count(&mut self, unix_us: u64, duration_us: u64) {
        self.spikes.add(unix_us / 1_000_000, duration_us / 1_000);
        self.next_id += self.id_step;
        self.total += 1;
    }

    pub fn set_max(&mut self, max: usize) {
        self.max = max;
        self.entries.truncate(max);
    }

    fn push(&mut self, mut entry: Slow) {
        entry.id = self.next_id;
        self.count(entry.unix_us, entry.duration_us);
        note_slowest(&mut self.recent, entry.facts());
        self.entries.truncate(self.max.saturating_sub(1));
        self.entries.push_front(entry);
    }

    /// The newest ones.
    pub fn newest(&self, count: usize) -> Vec<Slow> {
        self.entries.iter().take(count).cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The slowest of each second, not of more than `limits::SLOW_SHOWN_MAX`.
    pub fn recent(&self) -> Vec<SlowFacts> {
        self.recent.iter().cloned().collect()
    }

    /// Slow requests ever seen.
    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn clear(&mut self) {
        self.entries = VecDeque::new();
    }

    pub fn spikes(&self) -> &Spikes {
        &self.spikes
    }

    pub fn take_spikes(&mut self) -> Spikes {
        std::mem::take(&mut self.spikes)
    }
}

fn note_slowest(recent: &mut VecDeque<SlowFacts>, slow: SlowFacts) {
    match recent.back_mut().filter(|last| last.unix_s == slow.unix_s) {
        Some(last) if last.duration_us >= slow.duration_us => (),
        Some(last) => *last = slow,
        None => recent.push_back(slow),
    }
    if recent.len() > SLOW_SHOWN_MAX {
        recent.pop_front();
    }
}

impl Proxy {
    /// A request is answered that took as long as the log wants.
    #[cold]
    pub(super) fn note_slow(&mut self, r: u32) {
        let entry = &self.requests[r];
        // Done: a whole, whose parts have been looked at.
        let is_leg = !matches!(entry.state, State::Done | State::Subscribing | State::Inquiring);
        if !is_leg || entry.client == NONE || entry.marks.has(Marks::PRIVATE) {
            return;
        }
        if self.slow_log.counts_only(self.now, self.age_ms(r) * 1_000) {
            return;
        }
        let entry = &self.requests[r];
        let words = self.words_of(r);
        let command = COMMANDS.get(usize::from(entry.command));
        let backend = self.backends.get(entry.backend as usize);
        let backend = backend.filter(|_| entry.state == State::InFlight);
        let handed_ms = backend.and_then(|backend| backend.handed_ms(entry.start));
        let node_ms = handed_ms.map_or(0, |at| self.now.ms.saturating_sub(at));
        let session = &self.clients[self.requests[r].client].session;
        let slow = Slow {
            id: 0,
            unix_us: self.now.unix_us,
            duration_us: self.age_ms(r) * 1_000,
            words,
            client: super::local::client::canonical(session.peer),
            name: session.name().unwrap_or_default().to_owned(),
            command: command.map_or("other", |command| command.name),
            node: backend.map(|backend| backend.address),
            node_us: node_ms.min(self.age_ms(r)) * 1_000,
        };
        self.slow_log.push(slow);
    }

    fn words_of(&self, r: u32) -> Vec<Vec<u8>> {
        let entry = &self.requests[r];
        let command = COMMANDS.get(usize::from(entry.command));
        let name = command.map_or("(unknown)", |command| command.name).replace('|', " ");
        let is_walk = entry.split != NONE && self.splits[entry.split].merge == Merge::Walk;
        // What administers may hold passwords (CONFIG SET requirepass, PROXY NODE).
        let shown =
            command.map_or(entry.command != AT_NODE, |command| !command.flags.has(Flags::ADMIN));
        // What these send is not what their client wrote.
        let own_words = shown && !is_walk && !entry.marks.has(Marks::EXEC);
        // Elsewhere its bytes are gone, or are others'.
        let sent = (own_words && entry.state == State::InFlight)
            .then(|| self.backends.get(entry.backend as usize))
            .flatten();
        let bytes = sent.and_then(|backend| backend.bytes_of(entry.start, entry.len.min(LOOK_MAX)));
        let words = bytes.map(|bytes| shown_words(&bytes)).filter(|words| !words.is_empty());
        words.unwrap_or_else(|| vec![name.into_bytes()])
    }
}

/// The words of a request as far as they are there and as an entry shows them.
fn shown_words(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let Some((count, mut rest)) = header(bytes, b'*') else { return words };
    let shown = if count > WORDS_MAX { WORDS_MAX - 1 } else { count };
    while words.len() < shown {
        let Some((len, behind)) = header(rest, b'$') else { break };
        let there = behind.get(..len.min(behind.len())).unwrap_or_default();
        let mut word = there.get(..WORD_MAX.min(there.len())).unwrap_or_default().to_vec();
        if len > word.len() {
            word.extend_from_slice(format!("... ({} more bytes)", len - word.len()).as_bytes());
        }
        words.push(word);
        rest = behind.get(len + 2..).unwrap_or_default();
    }
    if words.len() < count && !words.is_empty() {
        words.push(format!("... ({} more arguments)", count - words.len()).into_bytes());
    }
    words
}

/// A number between `kind` and a line end, and what follows.
fn header(bytes: &[u8], kind: u8) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\r')?;
    let digits = bytes.get(..end)?.strip_prefix(&[kind])?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((number, bytes.get(end + 2..)?))
}

/// SLOWLOG GET: the newest of all reactors. `shares`: with the node and its share of the time,
/// which no client expects there (PROXY SLOWLOG).
pub fn write_entries(mut entries: Vec<Slow>, count: usize, shares: bool, out: &mut Vec<u8>) {
    entries.sort_by_key(|entry| (std::cmp::Reverse(entry.unix_us), std::cmp::Reverse(entry.id)));
    entries.truncate(count);
    write::array_header(out, entries.len());
    for entry in &entries {
        write::array_header(out, if shares { 8 } else { 6 });
        write::integer(out, entry.id as i64);
        write::integer(out, (entry.unix_us / 1_000_000) as i64);
        write::integer(out, entry.duration_us as i64);
        write::array_header(out, entry.words.len());
        entry.words.iter().for_each(|word| write::bulk(out, word));
        write::bulk(out, entry.client.to_string().as_bytes());
        write::bulk(out, entry.name.as_bytes());
        if shares {
            write::integer(out, entry.node_us as i64);
            let node = entry.node.map_or(String::new(), |node| node.to_string());
            write::bulk(out, node.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::request::encode_request;

    fn shown(words: &[&[u8]], cut: usize) -> Vec<String> {
        let mut bytes = Vec::new();
        encode_request(words.iter().copied(), &mut bytes);
        bytes.truncate(cut);
        let text = |word: Vec<u8>| String::from_utf8(word).unwrap();
        shown_words(&bytes).into_iter().map(text).collect()
    }

    #[test]
    fn entry_shows_a_request_within_its_bounds() {
        assert_eq!(shown(&[b"GET", b"a b"], 99), ["GET", "a b"]);
        let long = [b'x'; 200];
        let clipped = format!("{}... (72 more bytes)", "x".repeat(128));
        assert_eq!(shown(&[b"SET", &long, b""], 999), ["SET", &clipped, ""]);
        let many = [b"k".as_slice(); 40];
        let got = shown(&many, 9_999);
        assert_eq!((got.len(), &*got[31]), (32, "... (9 more arguments)"));
        // Where the looked-at part ends in the middle.
        let got = shown(&[b"SET", &long, b"v"], 40);
        assert!(got[1].starts_with("xxx") && got[1].ends_with(" more bytes)"), "{got:?}");
        assert_eq!(got[2], "... (1 more arguments)");
        assert_eq!(shown(&[b"GET", b"k"], 2), Vec::<String>::new());
    }

    #[test]
    fn spikes_of_all_reactors_are_told_by_the_second() {
        let (mut first, mut second) = (Spikes::default(), Spikes::default());
        [(5, 20), (5, 30), (5, 10), (7, 40)].into_iter().for_each(|(at, ms)| first.add(at, ms));
        [(6, 15), (7, 90)].into_iter().for_each(|(at, ms)| second.add(at, ms));
        let all = Spikes::join(&[first, second]);
        assert_eq!(all, Spikes { seconds: vec![(5, 30), (6, 15), (7, 90)], max_ms: 90 });
        let text = all.draw().unwrap();
        assert!(text.starts_with("command - high 90 ms, low 15 ms (all time high 90 ms)\n"));
        assert_eq!(text.lines().count(), 5);
        let mut long = Spikes::default();
        (0..500).for_each(|at| long.add(at, 1));
        assert_eq!((long.seconds.len(), long.seconds[0]), (160, (340, 1)));
        assert_eq!(Spikes::join(&[long.clone(), long]).seconds.len(), 160);
        assert_eq!(Spikes::default().draw(), None);
    }

    fn entry() -> Slow {
        Slow {
            id: 0,
            unix_us: 1_000_000,
            duration_us: 1,
            words: Vec::new(),
            client: SocketAddr::from(([127, 0, 0, 1], 1)),
            name: String::new(),
            command: "GET",
            node: None,
            node_us: 0,
        }
    }

    /// Ids of two reactors say nothing of what was first.
    #[test]
    fn entries_of_one_second_stand_in_the_order_of_their_time() {
        let at = |id, unix_us| Slow { id, unix_us, ..entry() };
        let mut out = Vec::new();
        let entries = vec![at(2, 1_900_000), at(5, 1_100_000), at(3, 1_500_000)];
        write_entries(entries, 2, false, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("*2\r\n*6\r\n:2\r\n:1\r\n"), "{text}");
        assert!(text.contains("*6\r\n:3\r\n:1\r\n"), "{text}");
    }

    #[test]
    fn of_very_many_in_one_moment_those_are_only_counted_that_would_push_out_others() {
        let mut log = SlowLog::new(3, 1, 1);
        let mut kept = Vec::new();
        let first = [(1, 50); MOMENT_MIN];
        let then = [(1, 20), (1, 50), (1, 60), (1, 60), (2, 10)];
        for (ms, duration_us) in first.into_iter().chain(then) {
            let now = Now { ms, unix_us: 1_000 * ms };
            if !log.counts_only(now, duration_us) {
                log.push(Slow { duration_us, ..entry() });
                kept.push((ms, duration_us));
            }
        }
        assert_eq!(kept[..MOMENT_MIN], first);
        assert_eq!(kept[MOMENT_MIN..], [(1, 60), (2, 10)], "the slowest is kept");
        let all = MOMENT_MIN as u64 + 5;
        assert_eq!((log.total(), log.recent()[0].duration_us), (all, 60));
    }

    #[test]
    fn log_keeps_the_newest_and_its_bound() {
        let mut log = SlowLog::new(3, 1, 2);
        (0..5).for_each(|_| log.push(entry()));
        let ids: Vec<u64> = log.newest(9).iter().map(|slow| slow.id).collect();
        assert_eq!((log.len(), ids), (3, vec![9, 7, 5]));
        assert_eq!((log.total(), log.recent().len()), (5, 1), "one for the second");
        log.clear();
        log.push(entry());
        assert_eq!(log.newest(9)[0].id, 11, "ids are never used again");
    }
}
