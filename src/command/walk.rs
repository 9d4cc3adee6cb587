//! Walkers for commands whose keys only their options tell: SORT, GEORADIUS, XREAD, MIGRATE.
//!
//! Each reads the options as redis-server's own command does, since a word such as STORE or STREAMS
//! may as well be a name (`shared/data/commands.README.md`, "Where the key rules alone mislead").
//! Not here: all other key rules (`keys.rs`).

use super::keys::Args;
use super::{Class, Command, KeyError};

/// Whether the request may block: of class Blocking and, for XREAD and XREADGROUP, with BLOCK.
pub fn blocks(command: &Command, args: &Args) -> bool {
    if command.class != Class::Blocking {
        return false;
    }
    match command.name {
        "XREAD" | "XREADGROUP" => read_options(args).block.is_some(),
        _ => true,
    }
}

/// How long a blocking command may block.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Timeout {
    /// The word that says it.
    pub word: usize,
    /// In seconds, with a fraction; else in milliseconds.
    pub in_seconds: bool,
    /// Milliseconds; `None`: for ever, or no number that a node takes.
    pub ms: Option<u64>,
}

/// The time-out of a command that `blocks`, where its place is known.
pub fn timeout_of(command: &Command, args: &Args) -> Option<Timeout> {
    let (word, in_seconds) = match command.name {
        "BLPOP" | "BRPOP" | "BZPOPMIN" | "BZPOPMAX" => (args.len().checked_sub(1)?, true),
        "BRPOPLPUSH" => (3, true),
        "BLMOVE" => (5, true),
        "BLMPOP" | "BZMPOP" => (1, true),
        "XREAD" | "XREADGROUP" => (read_options(args).block?, false),
        "WAITAOF" => (3, false),
        _ => return None,
    };
    let text = std::str::from_utf8(args.get(word)?).ok()?;
    let ms = match in_seconds {
        true => text.parse::<f64>().ok().map(|seconds| (seconds * 1_000.0).ceil()),
        false => text.parse::<u32>().ok().map(f64::from),
    };
    let ms = ms.filter(|ms| *ms > 0.0 && *ms < 1e15).map(|ms| ms as u64);
    Some(Timeout { word, in_seconds, ms })
}

/// SORT key [BY p] [LIMIT a b] [GET p …] [ASC|DESC] [ALPHA] [STORE k]: the last STORE counts.
pub(super) fn sort_store(args: &Args, out: &mut Vec<u32>) -> Result<(), KeyError> {
    let mut stored = None;
    let mut at = 2;
    let mut result = Ok(());
    while at < args.len() {
        let left = args.len() - at - 1;
        if args.is(at, "STORE") && left >= 1 {
            stored = Some(at + 1);
            at += 1;
        } else if (args.is(at, "BY") || args.is(at, "GET")) && left >= 1 {
            at += 1;
        } else if args.is(at, "LIMIT") && left >= 2 {
            at += 2;
        } else if !["ASC", "DESC", "ALPHA"].iter().any(|word| args.is(at, word)) {
            result = Err(KeyError::Syntax);
        }
        at += 1;
    }
    out.extend(stored.map(|index| index as u32));
    result
}

/// The word after the last STORE or STOREDIST, as redis-server's `georadiusGetKeys` looks for it.
pub(super) fn last_store(from: usize, args: &Args, out: &mut Vec<u32>) {
    let mut stored = None;
    let mut at = from;
    while at + 1 < args.len() {
        if args.is(at, "STORE") || args.is(at, "STOREDIST") {
            stored = Some(at + 1);
            at += 1;
        }
        at += 1;
    }
    out.extend(stored.map(|index| index as u32));
}

/// XREAD [COUNT n] [BLOCK ms] STREAMS k … id …: the first half of what follows STREAMS.
pub(super) fn stream_keys(args: &Args, out: &mut Vec<u32>) -> Result<(), KeyError> {
    let first = read_options(args).streams.ok_or(KeyError::Syntax)?;
    let words = args.len().saturating_sub(first);
    let keys = words / 2;
    out.extend((first..first + keys).map(|index| index as u32));
    // Of an odd number the node says "Unbalanced"; none, and STREAMS was the last word.
    if keys > 0 && words % 2 == 0 { Ok(()) } else { Err(KeyError::Syntax) }
}

struct ReadOptions {
    /// The word after BLOCK.
    block: Option<usize>,
    /// The word after STREAMS.
    streams: Option<usize>,
}

/// A group, a consumer or a stream may itself be called STREAMS or BLOCK.
fn read_options(args: &Args) -> ReadOptions {
    let mut options = ReadOptions { block: None, streams: None };
    let mut at = 1;
    while at < args.len() {
        if args.is(at, "STREAMS") {
            options.streams = Some(at + 1);
            break;
        }
        at += if args.is(at, "BLOCK") {
            options.block = Some(at + 1);
            2
        } else if args.is(at, "COUNT") || args.is(at, "CLAIM") {
            2
        } else if args.is(at, "GROUP") {
            3
        } else {
            // NOACK, or an option of a newer version: the node judges.
            1
        };
    }
    options
}

/// MIGRATE host port key|"" db timeout [COPY] [REPLACE] [AUTH p | AUTH2 u p] [KEYS k …].
pub(super) fn migrate_keys(args: &Args, out: &mut Vec<u32>) -> Result<(), KeyError> {
    let single = args.get(3).is_some_and(|key| !key.is_empty());
    let mut at = 6;
    while at < args.len() {
        if args.is(at, "KEYS") {
            if single {
                return Err(KeyError::Syntax);
            }
            out.extend((at + 1..args.len()).map(|index| index as u32));
            return Ok(());
        }
        at += match () {
            () if args.is(at, "AUTH") => 2,
            () if args.is(at, "AUTH2") => 3,
            () => 1,
        };
    }
    if !single {
        return Err(KeyError::Syntax);
    }
    out.push(3);
    Ok(())
}
