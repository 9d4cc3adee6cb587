//! Finding a command by name: a table made at compile time, one multiplication, one comparison.
//!
//! Names are compared as two words: the first and the last 8 bytes, case folded (they overlap in
//! names under 16 bytes, which they cover whole; longer names are compared in full besides).
//! Not here: names that only the nodes know (`learned.rs`).

use super::keys::{Args, KeyRule};
use super::row::{Row, rules};
use super::table::ROWS;
use super::{Class, Command, Flags, Group, ResponsePolicy, arity_ok};

/// Every row of the table, sorted; a container's subcommands follow it.
pub static COMMANDS: [Command; ROWS.len()] = build_commands();

/// Internal flag: `may_compose_reply`. No node has a flag at this place.
pub(super) const COMPOSES: Flags = Flags(1 << 31);

/// `Command::parent` of what is no subcommand.
pub(super) const NO_PARENT: u16 = u16::MAX;

/// The command of that name, in any case. Subcommands are found by `find_sub`.
#[inline]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    probe(name, NO_PARENT)
}

/// The row of `container`'s subcommand `sub`, in any case.
#[inline]
pub fn find_sub(container: &Command, sub: &[u8]) -> Option<&'static Command> {
    if container.is_container() { probe(sub, container.id) } else { None }
}

/// Why `lookup` found no command that could run.
#[derive(Copy, Clone, Debug)]
pub enum LookupError {
    /// The table lacks the name; the nodes may know it.
    UnknownCommand,
    /// The container is known, its subcommand is not.
    UnknownSubcommand(&'static Command),
    WrongArity(&'static Command),
}

/// What the words ask for: the command or, for a container, the subcommand; their number checked.
#[inline]
pub fn lookup(args: &Args) -> Result<&'static Command, LookupError> {
    let name = args.get(0).unwrap_or_default();
    let found = find(name).ok_or(LookupError::UnknownCommand)?;
    let command = match args.get(1) {
        Some(sub) if found.is_container() => {
            find_sub(found, sub).ok_or(LookupError::UnknownSubcommand(found))?
        }
        _ => found,
    };
    if arity_ok(command, args.len()) { Ok(command) } else { Err(LookupError::WrongArity(command)) }
}

/// Commands that were looked up last, by the very bytes of their names: pipelines repeat them, and
/// a name that comes again need not be folded and hashed. Containers are not among them, nor
/// names over 8 bytes.
#[derive(Debug)]
pub struct Recent([(u64, usize, &'static Command); RECENT]);

const RECENT: usize = 8;

impl Default for Recent {
    fn default() -> Recent {
        Recent([(0, 0, &COMMANDS[0]); RECENT])
    }
}

impl Recent {
    /// As the function of that name.
    #[inline]
    pub fn lookup(&mut self, args: &Args) -> Result<&'static Command, LookupError> {
        let Some((word, len)) = short_name(args) else { return lookup(args) };
        let place = &mut self.0[word as usize % RECENT];
        if (place.0, place.1) != (word, len) {
            let command = lookup(args)?;
            if !command.is_container() && command.parent == NO_PARENT {
                *place = (word, len, command);
            }
            return Ok(command);
        }
        let command = place.2;
        if arity_ok(command, args.len()) {
            Ok(command)
        } else {
            Err(LookupError::WrongArity(command))
        }
    }
}

/// A name of up to 8 bytes as a word, and how many they are. What follows it is read along, so
/// there must be something.
#[inline]
fn short_name(args: &Args) -> Option<(u64, usize)> {
    let span = args.spans.first()?;
    let word = args.bytes.get(span.start as usize..)?.first_chunk::<8>()?;
    let len = span.len();
    let spare = 8usize.checked_sub(len).filter(|&spare| spare < 8)?;
    Some((u64::from_le_bytes(*word) & (u64::MAX >> (8 * spare)), len))
}

/// Slots of the index. Four times sparser than the table: about 1.1 looks for a name in it.
const INDEX_BITS: u32 = 11;
const INDEX_SIZE: usize = 1 << INDEX_BITS;
const EMPTY: u16 = u16::MAX;

/// Chosen out of 12,000 random ones: fewest looks (699 for 614 names, at most 4 for one).
const MULTIPLIER: u64 = 0x26d8_6c5d_3cbe_87db;

/// Longest name worth a look.
const PART_MAX: usize = 32;

/// The ids by hash, open addressing.
static INDEX: [u16; INDEX_SIZE] = build_index();

const _: () = assert!(ROWS.len() * 2 < INDEX_SIZE, "an absent name must meet an empty slot soon");

#[inline]
fn probe(part: &[u8], parent: u16) -> Option<&'static Command> {
    if part.len() > PART_MAX {
        return None;
    }
    let folded = Folded::of(part);
    let mut at = folded.slot(parent);
    loop {
        // EMPTY is out of bounds.
        let command = COMMANDS.get(usize::from(INDEX[at]))?;
        if command.head == folded.head
            && command.tail == folded.tail
            && usize::from(command.part_len) == part.len()
            && command.parent == parent
            && (part.len() <= 16 || part.eq_ignore_ascii_case(part_of(command.name)))
        {
            return Some(command);
        }
        at = (at + 1) % INDEX_SIZE;
    }
}

/// A name's first and last bytes, upper case.
struct Folded {
    head: u64,
    tail: u64,
    len: u64,
}

impl Folded {
    #[inline]
    const fn of(part: &[u8]) -> Folded {
        let len = part.len() as u64;
        if let (Some(first), Some(last)) = (part.first_chunk::<8>(), part.last_chunk::<8>()) {
            let head = upper(u64::from_le_bytes(*first));
            return Folded { head, tail: upper(u64::from_le_bytes(*last)), len };
        }
        let head = match (part.first_chunk::<4>(), part.last_chunk::<4>(), part) {
            (Some(first), Some(last), _) => {
                u32::from_le_bytes(*first) as u64 | (u32::from_le_bytes(*last) as u64) << 32
            }
            (_, _, [a, b, c]) => u32::from_le_bytes([*a, *b, *c, 0]) as u64,
            (_, _, [a, b]) => u32::from_le_bytes([*a, *b, 0, 0]) as u64,
            (_, _, [a]) => *a as u64,
            _ => 0,
        };
        Folded { head: upper(head), tail: 0, len }
    }

    #[inline]
    const fn slot(&self, parent: u16) -> usize {
        let parent = (parent.wrapping_add(1) as u64) << 48;
        let mixed = (self.head ^ self.tail.rotate_left(25) ^ parent).wrapping_add(self.len);
        (mixed.wrapping_mul(MULTIPLIER) >> (u64::BITS - INDEX_BITS)) as usize
    }
}

/// Eight bytes at once: `a` to `z` become upper case, all others stay.
#[inline]
const fn upper(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let low = word & (0x7f * EACH);
    let from_a = low + (0x80 - b'a' as u64) * EACH;
    let above_z = low + (0x7f - b'z' as u64) * EACH;
    let letters = from_a & !above_z & !word & (0x80 * EACH);
    word ^ (letters >> 2)
}

const fn build_index() -> [u16; INDEX_SIZE] {
    let mut index = [EMPTY; INDEX_SIZE];
    let mut id = 0;
    while id < COMMANDS.len() {
        let command = &COMMANDS[id];
        let folded =
            Folded { head: command.head, tail: command.tail, len: command.part_len as u64 };
        let mut at = folded.slot(command.parent);
        while index[at] != EMPTY {
            at = (at + 1) % INDEX_SIZE;
        }
        index[at] = id as u16;
        id += 1;
    }
    index
}

const fn build_commands() -> [Command; ROWS.len()] {
    let mut commands = [stand_in("", Class::Refused, Flags(0)); ROWS.len()];
    let mut container = 0;
    let mut id = 0;
    while id < ROWS.len() {
        let row = &ROWS[id];
        let part = part_of(row.name);
        let folded = Folded::of(part);
        let is_sub = part.len() < row.name.len();
        if is_sub {
            commands[container].subs += 1;
        } else {
            container = id;
        }
        let mut command = stand_in(row.name, row.class, row_flags(row));
        command.keys = row.keys;
        command.head = folded.head;
        command.tail = folded.tail;
        command.arity = row.arity;
        command.id = id as u16;
        command.parent = if is_sub { container as u16 } else { NO_PARENT };
        command.part_len = part.len() as u8;
        command.policy = row.policy;
        command.plain_key = plain_key(row.keys);
        let simple =
            matches!(row.class, Class::Read | Class::Write) && !command.flags.has(COMPOSES);
        command.fast_key = if simple { command.plain_key } else { 0 };
        commands[id] = command;
        id += 1;
    }
    commands
}

/// A command without keys that is in no table.
pub(super) const fn stand_in(name: &'static str, class: Class, flags: Flags) -> Command {
    Command {
        name,
        keys: rules::NONE,
        head: 0,
        tail: 0,
        flags,
        arity: -1,
        id: u16::MAX,
        parent: NO_PARENT,
        part_len: 0,
        subs: 0,
        class,
        policy: ResponsePolicy::Default,
        plain_key: 0,
        fast_key: 0,
    }
}

const fn row_flags(row: &Row) -> Flags {
    // KILL has fixed replies, and a busy node answers it but not the fence's ECHO.
    let kills = matches!(row.policy, ResponsePolicy::OneSucceeded);
    let scripting = matches!(row.group, Group::Scripting) && !kills;
    let composes = row.flags.has(Flags::MODULE) || scripting;
    if composes { row.flags.with(COMPOSES) } else { row.flags }
}

const fn plain_key(keys: &[KeyRule]) -> u8 {
    match keys {
        [KeyRule::Range { first, last, .. }] if *first > 0 && *first == *last => *first as u8,
        _ => 0,
    }
}

/// What is looked up: behind the bar, or the whole name.
const fn part_of(name: &str) -> &[u8] {
    let name = name.as_bytes();
    let mut at = 0;
    while at < name.len() {
        if name[at] == b'|' {
            return name.split_at(at + 1).1;
        }
        at += 1;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::Span;

    /// How many places of the index are looked at until the command is found.
    fn looks(command: &Command) -> usize {
        let at = Folded::of(part_of(command.name)).slot(command.parent);
        let found = (0..INDEX_SIZE).find(|step| INDEX[(at + step) % INDEX_SIZE] == command.id);
        found.map_or(INDEX_SIZE, |steps| steps + 1)
    }

    #[test]
    fn names_are_found_at_the_first_looks() {
        assert_eq!(COMMANDS.iter().map(looks).max(), Some(4));
        assert_eq!(COMMANDS.iter().map(looks).sum::<usize>(), 699);
        for name in ["GET", "SET", "INCR", "LPUSH", "HSET", "HGET", "SADD", "ZADD", "MGET", "PING"]
        {
            assert_eq!(find(name.as_bytes()).map(looks), Some(1), "{name}");
        }
    }

    #[test]
    fn what_was_found_lately_is_what_is_found() {
        let mut recent = Recent::default();
        let names =
            ["GET", "get", "GeT", "SET", "GET\0", "GETS", "CONFIG", "MSET", "PING", "", "G"];
        for _ in 0..3 {
            for (name, word) in names.iter().flat_map(|name| [(name, "GET"), (name, "SET")]) {
                for count in 1..5 {
                    let mut bytes = name.as_bytes().to_vec();
                    bytes.extend_from_slice(b"\r\n$3\r\n");
                    let place = bytes.len() as u32;
                    bytes.extend_from_slice(word.as_bytes());
                    let mut spans = vec![Span { start: 0, end: name.len() as u32 }];
                    spans.resize(count, Span { start: place, end: place + 3 });
                    let args = Args { bytes: &bytes, spans: &spans };
                    let found = format!("{:?}", recent.lookup(&args));
                    assert_eq!(found, format!("{:?}", lookup(&args)), "{name} {word} {count}");
                }
            }
        }
    }

    #[test]
    fn only_letters_change_case() {
        for byte in 0..=u8::MAX {
            let word = u64::from_le_bytes([byte, b'a', byte, 0xff, byte, b'{', byte, 0]);
            let expected = byte.to_ascii_uppercase();
            let bytes = [expected, b'A', expected, 0xff, expected, b'{', expected, 0];
            assert_eq!(upper(word), u64::from_le_bytes(bytes), "{byte:#x}");
        }
    }
}
