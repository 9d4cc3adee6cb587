//! PROXY HOTKEYS and PROXY BIGKEYS: which keys are asked for most, and whose values are large, as
//! seen on the wire.
//!
//! Hot: one command in `SAMPLE_EVERY` is looked at, and its keys are counted in a table of fixed
//! size (space-saving: a new key takes the place of the rarest, with that one's count as its
//! possible error). Counts are halved now and then, so that what was hot yesterday is not hot now.
//! Big: every request and reply of `BIG_BYTES` or more is noted, by its key. Both cost nothing
//! while `sample_keys` is off but a comparison of lengths.
//!
//! Not here: who may ask (`own`), how reactors are asked (`peers`).

use std::collections::BTreeMap;

use ahash::RandomState;

use super::Proxy;
use super::request::State;
use crate::command::{self, Args, COMMANDS, Command};
use crate::metrics::SAMPLE_EVERY;
use crate::resp::request::{Parsed, RequestLimits, RequestParser};
use crate::resp::write;

/// Values of so many bytes are big.
pub const BIG_BYTES: usize = 16 * 1024;

/// Keys in the table of hot ones, and in that of big ones.
const HOT_MAX: usize = 128;
const BIG_MAX: usize = 64;
/// Keys that are told of.
const TOLD_MAX: usize = 32;

/// Keys of one command that are counted, and bytes of one key that are kept.
const KEYS_MAX: usize = 32;
const KEY_BYTES_MAX: usize = 256;

/// When so much time is in the counts, they are halved.
const HALVE_MS: u64 = 120_000;

/// Bytes of a request that are searched for the key of a big reply.
const LOOK_MAX: u32 = 16 * 1024;

/// What is asked of all reactors.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum KeyQuery {
    Hot,
    Big,
    ForgetHot,
    ForgetBig,
}

/// A key, and its commands in a thousand seconds: at most, and certainly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HotKey {
    key: Box<[u8]>,
    at_most: u64,
    certain: u64,
}

/// A key, the most bytes seen in one request or reply about it, the command that this was, and how
/// often it was that big.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BigKey {
    key: Box<[u8]>,
    bytes: u64,
    times: u64,
    command: &'static str,
}

/// What may be told without naming keys.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyCounts {
    pub on: bool,
    /// Keys looked at.
    pub sampled: u64,
    /// Requests and replies of `BIG_BYTES` or more.
    pub big: u64,
    /// Of the keys looked at lately, and those of the hottest key.
    pub recent: u64,
    pub hottest: u64,
}

#[derive(Debug)]
struct Counted {
    hash: u64,
    key: Box<[u8]>,
    count: u64,
    error: u64,
}

/// The tables of one proxy.
#[derive(Debug)]
pub struct KeyWatch {
    on: bool,
    hot: Vec<Counted>,
    big: Vec<(u64, BigKey)>,
    /// All that was counted in `hot`, and the time that it took.
    recent: u64,
    recent_ms: u64,
    sampled: u64,
    big_seen: u64,
    random: RandomState,
}

impl KeyWatch {
    /// `random`: seeded, so that nobody can choose keys that are taken for each other.
    pub fn new(on: bool, random: RandomState) -> KeyWatch {
        KeyWatch {
            on,
            hot: Vec::new(),
            big: Vec::new(),
            recent: 0,
            recent_ms: 0,
            sampled: 0,
            big_seen: 0,
            random,
        }
    }

    /// What was seen stays to be shown until it is switched off.
    pub fn set(&mut self, on: bool) {
        if on != self.on {
            *self = KeyWatch::new(on, self.random.clone());
        }
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    pub fn counts(&self) -> KeyCounts {
        let certain = self.hot.iter().map(|hot| hot.count - hot.error);
        KeyCounts {
            on: self.on,
            sampled: self.sampled,
            big: self.big_seen,
            recent: self.recent,
            hottest: certain.max().unwrap_or(0),
        }
    }

    fn count(&mut self, key: &[u8]) {
        self.sampled += 1;
        self.recent += 1;
        let hash = self.random.hash_one(key);
        if let Some(known) = self.hot.iter_mut().find(|hot| hot.hash == hash) {
            known.count += 1;
        } else if self.hot.len() < HOT_MAX {
            self.hot.push(Counted { hash, key: clipped(key), count: 1, error: 0 });
        } else if let Some(rarest) = self.hot.iter_mut().min_by_key(|hot| hot.count) {
            let error = rarest.count;
            *rarest = Counted { hash, key: clipped(key), count: error + 1, error };
        }
    }

    fn note_big(&mut self, key: &[u8], bytes: u64, command: &'static str) {
        self.big_seen += 1;
        let hash = self.random.hash_one(key);
        if let Some((_, known)) = self.big.iter_mut().find(|(other, _)| *other == hash) {
            known.times += 1;
            if bytes > known.bytes {
                known.bytes = bytes;
                known.command = command;
            }
            return;
        }
        let big = BigKey { key: clipped(key), bytes, times: 1, command };
        if self.big.len() < BIG_MAX {
            self.big.push((hash, big));
        } else if let Some(least) = self.big.iter_mut().min_by_key(|(_, big)| big.bytes)
            && least.1.bytes < bytes
        {
            *least = (hash, big);
        }
    }

    /// So much time has passed.
    pub fn pass(&mut self, ms: u64) {
        self.recent_ms += ms;
        if self.recent_ms >= HALVE_MS {
            self.recent_ms /= 2;
            self.recent /= 2;
            for hot in &mut self.hot {
                hot.count /= 2;
                hot.error /= 2;
            }
            self.hot.retain(|hot| hot.count > 0);
        }
    }

    fn hottest(&self) -> Vec<HotKey> {
        let rate = |count: u64| count * SAMPLE_EVERY * 1_000_000 / self.recent_ms.max(1_000);
        let told = self.hot.iter().map(|hot| HotKey {
            key: hot.key.clone(),
            at_most: rate(hot.count),
            certain: rate(hot.count - hot.error),
        });
        told.collect()
    }

    /// This reactor's part of an answer.
    pub fn told(&mut self, query: KeyQuery) -> (Vec<HotKey>, Vec<BigKey>) {
        match query {
            KeyQuery::Hot => (self.hottest(), Vec::new()),
            KeyQuery::Big => (Vec::new(), self.big.iter().map(|(_, big)| big.clone()).collect()),
            KeyQuery::ForgetHot => {
                self.hot = Vec::new();
                (self.recent, self.recent_ms) = (0, 0);
                Default::default()
            }
            KeyQuery::ForgetBig => {
                self.big = Vec::new();
                Default::default()
            }
        }
    }
}

fn clipped(key: &[u8]) -> Box<[u8]> {
    key.get(..KEY_BYTES_MAX).unwrap_or(key).into()
}

impl Proxy {
    /// A command that was chosen to be looked at.
    #[cold]
    pub(super) fn sample_keys(&mut self, command: &Command, args: &Args) {
        if !self.key_watch.on {
            return;
        }
        let mut keys = std::mem::take(&mut self.keys);
        if command::keys_of(command, args, &mut keys).is_ok() {
            for key in keys.iter().take(KEYS_MAX).filter_map(|&key| args.get(key as usize)) {
                self.key_watch.count(key);
            }
        }
        self.keys = keys;
    }

    /// A request of `BIG_BYTES` or more.
    #[cold]
    pub(super) fn note_big_request(&mut self, args: &Args) {
        if !self.key_watch.on {
            return;
        }
        let Ok(command) = command::lookup(args) else { return };
        self.note_big(command, args, args.bytes.len() as u64);
    }

    /// A reply of `BIG_BYTES` or more, to a request that is still in its backend's FIFO.
    #[cold]
    pub(super) fn note_big_reply(&mut self, b: u32, r: u32, bytes: u64) {
        let entry = &self.requests[r];
        if !self.key_watch.on || entry.state != State::InFlight || entry.len > LOOK_MAX {
            return;
        }
        let Some(command) = COMMANDS.get(usize::from(entry.command)) else { return };
        let asked = self.backends[b as usize].bytes_of(entry.start, entry.len);
        let Some(asked) = asked else { return };
        let mut spans = Vec::new();
        let limits = RequestLimits::default();
        let parsed = RequestParser::default().parse(&asked, &limits, &mut spans);
        if let Ok(Parsed::Array { .. }) = parsed {
            self.note_big(command, &Args { bytes: &asked, spans: &spans }, bytes);
        }
    }

    /// Only of commands with one key: of several nobody can say whose bytes they are.
    fn note_big(&mut self, command: &'static Command, args: &Args, bytes: u64) {
        let mut keys = std::mem::take(&mut self.keys);
        if command::keys_of(command, args, &mut keys).is_ok()
            && let [key] = keys[..]
            && let Some(key) = args.get(key as usize)
        {
            self.key_watch.note_big(key, bytes, command.name);
        }
        self.keys = keys;
    }
}

/// PROXY HOTKEYS: key, commands a second at most, commands a second for certain.
pub fn write_hot(told: &[HotKey], out: &mut Vec<u8>) {
    let mut sums: BTreeMap<&[u8], (u64, u64)> = BTreeMap::new();
    for hot in told {
        let (at_most, certain) = sums.entry(&hot.key).or_default();
        *at_most += hot.at_most;
        *certain += hot.certain;
    }
    let mut keys: Vec<(&[u8], (u64, u64))> = sums.into_iter().collect();
    keys.sort_by_key(|&(_, (at_most, certain))| std::cmp::Reverse((certain, at_most)));
    keys.truncate(TOLD_MAX);
    write::array_header(out, keys.len());
    for (key, (at_most, certain)) in keys {
        write::array_header(out, 3);
        write::bulk(out, key);
        write::integer(out, at_most.div_ceil(1_000) as i64);
        write::integer(out, (certain / 1_000) as i64);
    }
}

/// PROXY BIGKEYS: key, bytes, command, how often.
pub fn write_big(told: &[BigKey], out: &mut Vec<u8>) {
    let mut joined: BTreeMap<&[u8], BigKey> = BTreeMap::new();
    for big in told {
        match joined.get_mut(&*big.key) {
            Some(known) => {
                let times = known.times + big.times;
                if big.bytes > known.bytes {
                    *known = big.clone();
                }
                known.times = times;
            }
            None => drop(joined.insert(&big.key, big.clone())),
        }
    }
    let mut keys: Vec<BigKey> = joined.into_values().collect();
    keys.sort_by_key(|big| std::cmp::Reverse(big.bytes));
    keys.truncate(TOLD_MAX);
    write::array_header(out, keys.len());
    for big in &keys {
        write::array_header(out, 4);
        write::bulk(out, &big.key);
        write::integer(out, big.bytes as i64);
        write::bulk(out, big.command.to_ascii_lowercase().replace('|', " ").as_bytes());
        write::integer(out, big.times as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> KeyWatch {
        KeyWatch::new(true, RandomState::with_seeds(1, 2, 3, 4))
    }

    #[test]
    fn hot_key_is_found_among_many_that_are_not() {
        let mut watch = watch();
        for n in 0..100_000_u32 {
            watch.count(format!("cold:{n}").as_bytes());
            if n % 20 == 0 {
                watch.count(b"hot");
            }
        }
        watch.pass(10_000);
        assert_eq!(watch.hot.len(), HOT_MAX);
        let told = watch.hottest();
        let hot = told.iter().find(|hot| &*hot.key == b"hot").unwrap();
        // 5,000 of 105,000 samples in ten seconds: 32,000 commands a second.
        assert!(hot.at_most >= 32_000_000, "{hot:?}");
        assert!(hot.certain <= 32_000_000, "{hot:?}");
        assert!(told.iter().all(|key| key.at_most <= hot.at_most));
        let mut out = Vec::new();
        write_hot(&told, &mut out);
        assert!(String::from_utf8_lossy(&out).starts_with("*32\r\n*3\r\n$3\r\nhot\r\n"));
    }

    #[test]
    fn what_was_hot_long_ago_is_forgotten() {
        let mut watch = watch();
        (0..64).for_each(|_| watch.count(b"old"));
        (0..7).for_each(|_| watch.pass(HALVE_MS));
        assert!(watch.hot.is_empty() && watch.counts().recent == 0);
        assert_eq!(watch.counts().sampled, 64);
    }

    #[test]
    fn biggest_values_stay_and_the_table_has_a_bound() {
        let mut watch = watch();
        for n in 0..1_000_u64 {
            watch.note_big(format!("key:{n}").as_bytes(), 20_000 + n, "GET");
        }
        watch.note_big(b"key:999", 50_000, "SET");
        watch.note_big(b"key:999", 30_000, "GET");
        assert_eq!(watch.big.len(), BIG_MAX);
        let (_, told) = watch.told(KeyQuery::Big);
        let mut out = Vec::new();
        write_big(&told, &mut out);
        let first = "*32\r\n*4\r\n$7\r\nkey:999\r\n:50000\r\n$3\r\nset\r\n:3\r\n";
        assert!(String::from_utf8_lossy(&out).starts_with(first));
        watch.told(KeyQuery::ForgetBig);
        assert_eq!(watch.told(KeyQuery::Big).1, []);
        assert_eq!(watch.counts().big, 1_002);
    }

    #[test]
    fn keys_of_several_reactors_are_added() {
        let hot = |at_most| HotKey { key: b"k"[..].into(), at_most, certain: at_most };
        let mut out = Vec::new();
        write_hot(&[hot(1_000), hot(2_500)], &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "*1\r\n*3\r\n$1\r\nk\r\n:4\r\n:3\r\n");
    }
}
