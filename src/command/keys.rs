//! Where the keys of a request are: the general rules, as COMMAND key specifications have them.
//!
//! Doubt about syntax is never an error of ours: the node judges. Only where redis-server counts
//! keys before anything else (EVAL) its error texts are given.
//! Not here: the commands whose options must be walked (`walk.rs`), and whether keys share a slot
//! (`proxy`).

use super::{Class, Command, walk};
use crate::resp::Span;
use crate::resp::number::read_integer;

/// The words of one request: spans into its bytes. Word 0 is the command's name.
#[derive(Copy, Clone, Debug)]
pub struct Args<'a> {
    pub bytes: &'a [u8],
    pub spans: &'a [Span],
}

impl<'a> Args<'a> {
    #[inline]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Word `index`; a span that does not fit the bytes gives what there is of it.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index).map(|span| span.of(self.bytes))
    }

    /// Words `from..to` as they stand in a request that may be forwarded: with their headers and
    /// ends, one behind the other.
    #[inline]
    pub fn framed(&self, from: usize, to: usize) -> &'a [u8] {
        let Some([first, others @ ..]) = self.spans.get(from..to) else { return b"" };
        let last = others.last().unwrap_or(first);
        // `$`, the length, CR LF.
        let digits = first.len().checked_ilog10().unwrap_or(0) as usize + 1;
        let start = (first.start as usize).saturating_sub(digits + 3);
        let framed = self.bytes.get(start..last.end as usize + 2).unwrap_or_default();
        debug_assert!(framed.starts_with(b"$") && framed.ends_with(b"\r\n"));
        framed
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.spans.iter().map(move |span| span.of(bytes))
    }

    /// Whether word `index` is there and is `word`, in any case.
    pub(super) fn is(&self, index: usize, word: &str) -> bool {
        self.get(index).is_some_and(|found| found.eq_ignore_ascii_case(word.as_bytes()))
    }
}

/// One place where keys are. Words are counted from the command's name = 0; negative: from the end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum KeyRule {
    /// Words `first`, `first + step`, … up to `last`. A `limit` over 1: the first 1/limit of them.
    Range { first: i16, last: i16, step: i16, limit: i16 },
    /// Word `at` holds how many; the first is word `first`, then every `step` words.
    NumKeys { at: u8, first: u8, step: u8 },
    /// After the word found from `from` on (negative: from the end, going backwards). `last`: how
    /// many words beyond the first key, or counted from the end if negative.
    Keyword { word: Word, from: i16, last: i16, step: i16, limit: i16 },
    /// SORT: the word after the last STORE option.
    SortStore,
    /// GEORADIUS: the word after the last STORE or STOREDIST, from that word on.
    LastStore { from: u8 },
    /// XREAD, XREADGROUP: the first half of what follows STREAMS.
    Streams,
    /// Word 3, or if that is empty what follows KEYS.
    Migrate,
    /// Somewhere, but no rule can say where: adds none.
    Unknown,
}

/// A keyword of up to 15 bytes, kept in place so that a rule is plain data.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Word {
    bytes: [u8; 15],
    len: u8,
}

impl Word {
    /// Panics, at compile time, when longer than 15 bytes.
    pub(super) const fn new(text: &str) -> Word {
        match Word::of(text.as_bytes()) {
            Some(word) => word,
            None => panic!("keyword too long"),
        }
    }

    /// `None` when longer than 15 bytes.
    pub const fn of(text: &[u8]) -> Option<Word> {
        let mut word = Word { bytes: [0; 15], len: text.len() as u8 };
        if text.len() > word.bytes.len() {
            return None;
        }
        let mut at = 0;
        while at < text.len() {
            word.bytes[at] = text[at];
            at += 1;
        }
        Some(word)
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// Why the keys of a request are in doubt.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum KeyError {
    /// Route by the keys found so far, or anywhere if none: the node judges. Never split it.
    Syntax,
    NotInteger,
    TooManyKeys,
    NegativeKeys,
}

impl KeyError {
    /// redis-server's error line without its `-`, where it checks this before all else.
    pub const fn text(self) -> Option<&'static str> {
        match self {
            KeyError::Syntax => None,
            KeyError::NotInteger => Some("ERR value is not an integer or out of range"),
            KeyError::TooManyKeys => {
                Some("ERR Number of keys can't be greater than number of args")
            }
            KeyError::NegativeKeys => Some("ERR Number of keys can't be negative"),
        }
    }
}

/// Fills `out` (cleared first) with the indexes of all key words, each once, in rule order.
///
/// On `KeyError::Syntax` it holds the keys that are sure so far. No keys and no error: any node
/// will do (EVAL with none), also to say what is wrong (ZUNION 0). Sharded channels count as keys.
pub fn keys_of(command: &Command, args: &Args, out: &mut Vec<u32>) -> Result<(), KeyError> {
    let found = collect(command.keys, args, out);
    let counts_first = match command.name {
        "EVAL" | "EVAL_RO" => true,
        // A digest of another length is NOSCRIPT before keys are counted. FCALL looks up its
        // function first.
        "EVALSHA" | "EVALSHA_RO" => args.get(1).is_some_and(|digest| digest.len() == 40),
        _ => false,
    };
    debug_assert!(!counts_first || command.class == Class::Script);
    found.map_err(|doubt| if counts_first { doubt } else { KeyError::Syntax })
}

/// As `keys_of`, by rules alone.
pub(super) fn collect(rules: &[KeyRule], args: &Args, out: &mut Vec<u32>) -> Result<(), KeyError> {
    out.clear();
    for rule in rules {
        match *rule {
            KeyRule::Range { first, last, step, limit } => {
                range_keys(first, last, step, limit, args, out)?;
            }
            KeyRule::NumKeys { at, first, step } => counted_keys(at, first, step, args, out)?,
            KeyRule::Keyword { word, from, last, step, limit } => {
                if let Some(start) = after_keyword(word, from, args) {
                    let last = if last < 0 { last } else { start.saturating_add(last) };
                    range_keys(start, last, step, limit, args, out)?;
                }
            }
            KeyRule::SortStore => walk::sort_store(args, out)?,
            KeyRule::LastStore { from } => walk::last_store(usize::from(from), args, out),
            KeyRule::Streams => walk::stream_keys(args, out)?,
            KeyRule::Migrate => walk::migrate_keys(args, out)?,
            KeyRule::Unknown => {}
        }
    }
    Ok(())
}

fn range_keys(
    first: i16,
    last: i16,
    step: i16,
    limit: i16,
    args: &Args,
    out: &mut Vec<u32>,
) -> Result<(), KeyError> {
    let argc = args.len();
    let (Ok(step), Some(first)) = (usize::try_from(step), position(first, argc)) else {
        return Err(KeyError::Syntax);
    };
    if step == 0 {
        return Err(KeyError::Syntax);
    }
    if first >= argc {
        // SUNSUBSCRIBE without channels. Where a key must be, the number of words sees to it.
        return Ok(());
    }
    let whole_last = if last >= 0 { usize::try_from(last).ok() } else { position(last, argc) };
    let last = match (usize::try_from(limit), last) {
        (Ok(parts @ 2..), ..0) => {
            let beyond = usize::from(last.unsigned_abs());
            (first + (argc - first) / parts).checked_sub(beyond)
        }
        _ => whole_last,
    };
    let Some(last) = last.filter(|last| *last >= first) else { return Err(KeyError::Syntax) };
    let last = last.min(argc - 1);
    out.extend((first..=last).step_by(step).map(|index| index as u32));
    // MSET k: the last key lacks its value.
    if (last + 1 - first) % step == 0 { Ok(()) } else { Err(KeyError::Syntax) }
}

fn counted_keys(
    at: u8,
    first: u8,
    step: u8,
    args: &Args,
    out: &mut Vec<u32>,
) -> Result<(), KeyError> {
    let (at, first, step) = (usize::from(at), usize::from(first), usize::from(step).max(1));
    let count = args.get(at).and_then(read_integer).ok_or(KeyError::NotInteger)?;
    let room = args.len().saturating_sub(first);
    if count < 0 {
        return Err(KeyError::NegativeKeys);
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > room / step {
        return Err(KeyError::TooManyKeys);
    }
    out.extend((0..count).map(|key| (first + key * step) as u32));
    Ok(())
}

/// The word after the keyword; it is searched as redis-server does, not in the last place.
fn after_keyword(word: Word, from: i16, args: &Args) -> Option<i16> {
    let argc = args.len();
    let found = |index: &usize| {
        args.get(*index).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
    };
    let start = position(from, argc)?;
    let at = if from >= 0 {
        (start..argc.saturating_sub(1)).find(found)
    } else {
        (2..=start).rev().find(found)
    }?;
    i16::try_from(at + 1).ok()
}

/// Counts from the end if negative.
fn position(place: i16, argc: usize) -> Option<usize> {
    let distance = usize::from(place.unsigned_abs());
    if place >= 0 { Some(distance) } else { argc.checked_sub(distance) }
}
