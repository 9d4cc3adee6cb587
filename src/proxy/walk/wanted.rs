//! What a client wants of SCAN, its cursor, and the words of the questions to nodes.
//!
//! A cursor is decimal, below 2^63: some clients read an `i64`.
//!
//! ```text
//! bits 0-13 slot   14 always 1   15 in pieces   16 slotted   17 second   18 moved
//!      19-28 fingerprint of the node's process   29-62 the node's cursor inside the slot
//! ```
//! Not here: the walk.

use super::found::bulk_text;
use super::{Ask, Question};
use crate::cluster::{SLOTS, hash_tag, slot_of, tag_of_slot};
use crate::command::Args;
use crate::resp::number::read_integer;
use crate::resp::request::{write_request_bulk, write_request_header};

const BEGUN: u64 = 1 << 14;
const IN_PIECES: u64 = 1 << 15;
const SLOTTED: u64 = 1 << 16;
const SECOND: u64 = 1 << 17;
const MOVED: u64 = 1 << 18;
const PRINT_AT: u32 = 19;
const PRINT_MAX: u16 = 1023;
const INNER_AT: u32 = 29;
const INNER_MAX: u64 = (1 << 34) - 1;

/// Where a walk stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Cursor {
    pub slot: u16,
    pub pieces: Option<Pieces>,
}

/// Where a walk stands inside a large slot.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Pieces {
    /// The node's cursor names the slot.
    pub slotted: bool,
    /// The slot was leaving; its old place is done, now the new one.
    pub second: bool,
    /// The slot was leaving at some piece.
    pub moved: bool,
    /// Of the node's process; 0: not known yet.
    pub print: u16,
    /// The node's cursor, without the slot.
    pub inner: u64,
}

impl Cursor {
    pub fn encode(&self) -> u64 {
        let plain = u64::from(self.slot) | BEGUN;
        let Some(pieces) = self.pieces else { return plain };
        let bit = |yes, bit| if yes { bit } else { 0 };
        // No table has 2^34 places; if one had, its slot would begin anew.
        let inner = if pieces.inner > INNER_MAX { 0 } else { pieces.inner };
        plain
            | IN_PIECES
            | bit(pieces.slotted, SLOTTED)
            | bit(pieces.second, SECOND)
            | bit(pieces.moved, MOVED)
            | u64::from(pieces.print.min(PRINT_MAX)) << PRINT_AT
            | inner << INNER_AT
    }

    /// Any number is a place: one that we did not give begins at a slot.
    pub fn decode(number: u64) -> Cursor {
        let has = |bit| number & bit != 0;
        let pieces = Pieces {
            slotted: has(SLOTTED),
            second: has(SECOND),
            moved: has(MOVED),
            print: (number >> PRINT_AT) as u16 & PRINT_MAX,
            inner: number >> INNER_AT & INNER_MAX,
        };
        let slot = number as u16 & (SLOTS as u16 - 1);
        Cursor { slot, pieces: (has(BEGUN) && has(IN_PIECES)).then_some(pieces) }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    pub cursor: Cursor,
    /// `None`: every key.
    pub pattern: Option<Box<[u8]>>,
    pub count: u64,
    pub kind: Option<Box<[u8]>>,
    /// The one slot that the pattern can match.
    pub only: Option<u16>,
}

/// Why a SCAN cannot be run, as the server has it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    Cursor,
    Syntax,
    Integer,
}

impl Wanted {
    pub fn read(args: &Args) -> Result<Wanted, Refusal> {
        let cursor = args.get(1).and_then(number).ok_or(Refusal::Cursor)?;
        let cursor = Cursor::decode(cursor);
        let mut wanted = Wanted { cursor, pattern: None, count: 10, kind: None, only: None };
        let mut at = 2;
        while at < args.len() {
            let name = args.get(at).unwrap_or_default().to_ascii_uppercase();
            let value = args.get(at + 1).ok_or(Refusal::Syntax)?;
            match name.as_slice() {
                b"MATCH" => {
                    wanted.pattern = (value != b"*").then(|| value.into());
                    wanted.only = slot_of_pattern(value);
                }
                b"COUNT" => {
                    let count = read_integer(value).ok_or(Refusal::Integer)?;
                    let count = u64::try_from(count).ok().filter(|&count| count > 0);
                    wanted.count = count.ok_or(Refusal::Syntax)?;
                }
                b"TYPE" => wanted.kind = Some(value.into()),
                _ => return Err(Refusal::Syntax),
            }
            at += 2;
        }
        Ok(wanted)
    }

    pub fn write_question(&self, question: &Question, key: &[u8], nonce: u64, out: &mut Vec<u8>) {
        let slot = question.slot.to_string();
        match question.ask {
            Ask::Count => words(out, &[b"CLUSTER", b"COUNTKEYSINSLOT", slot.as_bytes()]),
            Ask::Keys(limit) => {
                let limit = limit.to_string();
                words(out, &[b"CLUSTER", b"GETKEYSINSLOT", slot.as_bytes(), limit.as_bytes()]);
            }
            Ask::Probe => {
                let mut absent = [b"{".as_slice(), &tag_of_slot(question.slot), b"}"].concat();
                absent.extend_from_slice(format!("absent-{nonce:016x}").as_bytes());
                words(out, &[b"EXISTS", &absent]);
            }
            Ask::Info => words(out, &[b"INFO", b"server"]),
            Ask::Epoch => words(out, &[b"CLUSTER", b"INFO"]),
            Ask::Type(_) => words(out, &[b"TYPE", key]),
            Ask::Scan { cursor, count } => {
                let (cursor, count) = (cursor.to_string(), count.to_string());
                let mut all = vec![b"SCAN".as_slice(), cursor.as_bytes()];
                if let Some(pattern) = &self.pattern {
                    all.extend([b"MATCH".as_slice(), pattern]);
                }
                all.extend([b"COUNT".as_slice(), count.as_bytes()]);
                words(out, &all);
            }
        }
    }
}

fn words(out: &mut Vec<u8>, words: &[&[u8]]) {
    write_request_header(out, words.len());
    words.iter().for_each(|word| write_request_bulk(out, word));
}

/// A cursor: digits only, up to 64 bits.
fn number(word: &[u8]) -> Option<u64> {
    let digits = !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(word).ok().filter(|_| digits)?.parse().ok()
}

/// The one slot that a pattern can match, if a tag without wildcards says so.
pub fn slot_of_pattern(pattern: &[u8]) -> Option<u16> {
    let tag = hash_tag(pattern);
    if tag.len() == pattern.len() {
        return None;
    }
    let end = pattern.iter().position(|&byte| byte == b'}')?;
    let plain = pattern[..end].iter().all(|byte| !b"*?[]\\^".contains(byte));
    plain.then(|| slot_of(pattern))
}

/// What CLUSTER INFO says of the node's own epoch: another one each time it has taken slots over
/// from somebody. A node that does not say has none that changes.
pub fn epoch_of(reply: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bulk_text(reply)?).ok()?;
    let epoch = text.lines().find_map(|line| line.strip_prefix("cluster_my_epoch:"));
    epoch.map_or(Some(0), |epoch| epoch.trim().parse().ok())
}

/// What INFO server says of the process: whether its cursors name the slot (Redis 7.4, Valkey 8.0,
/// in cluster mode), and a fingerprint that is never 0.
pub fn process_of(reply: &[u8]) -> Option<(bool, u16)> {
    let text = std::str::from_utf8(bulk_text(reply)?).ok()?;
    let field = |name: &str| {
        text.lines().find_map(|line| line.trim_start_matches("txt:").strip_prefix(name))
    };
    let at_least = |version: &str, wanted: (u32, u32)| {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= wanted
    };
    let slotted = match field("valkey_version:") {
        Some(version) => at_least(version, (8, 0)),
        None => at_least(field("redis_version:")?, (7, 4)),
    };
    // FNV-1a: the same in every process and version of ours.
    let print = field("run_id:")?.trim().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |print, byte| {
        (print ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    Some((slotted, ((print ^ print >> 32) % u64::from(PRINT_MAX)) as u16 + 1))
}
