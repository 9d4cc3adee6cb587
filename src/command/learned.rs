//! Commands that the table lacks and the nodes know, read from their COMMAND reply.
//!
//! The reply is outside data: every number in it is bounded, what makes no sense is left out.
//! Not here: asking for it (`topology`), and subcommands that the nodes add to a known container.

use super::find::{COMPOSES, find, stand_in};
use super::keys::{Args, KeyError, KeyRule, Word, collect};
use super::{Class, Command, Flags};
use crate::limits;
use crate::resp::value::Value;

/// What the nodes know beyond the table.
#[derive(Debug, Default)]
pub struct Learned {
    /// Sorted by name, each name once.
    commands: Vec<LearnedCommand>,
}

/// One command or subcommand that only the nodes know. It always runs behind the fence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LearnedCommand {
    /// Upper case; a subcommand's is its own part only.
    name: Box<str>,
    keys: Box<[KeyRule]>,
    /// Sorted by name. Subcommands have none.
    subs: Box<[LearnedCommand]>,
    flags: Flags,
    arity: i16,
    class: Class,
}

impl Learned {
    /// Reads the reply to COMMAND, in RESP2 or RESP3. What is no such reply teaches nothing.
    pub fn from_command_reply(reply: &Value) -> Learned {
        let rows = reply.as_array().unwrap_or_default();
        let unknown = rows
            .iter()
            .filter_map(|row| read_row(row, false))
            .filter(|command| find(command.name.as_bytes()).is_none());
        let commands = sorted(unknown.take(limits::LEARNED_COMMANDS_MAX).collect());
        Learned { commands }
    }

    /// The command of that name, in any case.
    pub fn find(&self, name: &[u8]) -> Option<&LearnedCommand> {
        search(&self.commands, name)
    }

    pub fn len(&self) -> usize {
        self.commands.len()
    }

    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }
}

impl LearnedCommand {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn class(&self) -> Class {
        self.class
    }

    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Reached through its subcommands only.
    pub fn is_container(&self) -> bool {
        !self.subs.is_empty()
    }

    /// The subcommand of that name, in any case.
    pub fn find_sub(&self, sub: &[u8]) -> Option<&LearnedCommand> {
        search(&self.subs, sub)
    }

    /// As `command::arity_ok`.
    pub fn arity_ok(&self, argc: usize) -> bool {
        let wanted = usize::from(self.arity.unsigned_abs());
        if self.arity >= 0 { argc == wanted } else { argc >= wanted }
    }

    /// As `command::keys_of`; the only error is `KeyError::Syntax`.
    pub fn keys_of(&self, args: &Args, out: &mut Vec<u32>) -> Result<(), KeyError> {
        collect(&self.keys, args, out).map_err(|_| KeyError::Syntax)
    }

    /// A command of the same class for places that keep a `&'static Command`. It has no name, no
    /// keys and no arity: those are asked here.
    pub fn stand_in(&self) -> &'static Command {
        match self.class {
            Class::Read => &STAND_IN_READ,
            Class::Write => &STAND_IN_WRITE,
            Class::Blocking => &STAND_IN_BLOCKING,
            Class::Module => &STAND_IN_MODULE,
            _ => &STAND_IN_REFUSED,
        }
    }
}

static STAND_IN_READ: Command = learned_stand_in(Class::Read, Flags::READONLY);
static STAND_IN_WRITE: Command = learned_stand_in(Class::Write, Flags::WRITE);
static STAND_IN_BLOCKING: Command = learned_stand_in(Class::Blocking, Flags::WRITE);
static STAND_IN_MODULE: Command = learned_stand_in(Class::Module, Flags::WRITE);
static STAND_IN_REFUSED: Command = learned_stand_in(Class::Refused, Flags::WRITE);

const fn learned_stand_in(class: Class, flags: Flags) -> Command {
    stand_in("", class, flags.with(COMPOSES))
}

/// One row: name, arity, flags, first, last, step, categories, tips, key specifications,
/// subcommands (the last three only from 7.0 on).
fn read_row(row: &Value, is_sub: bool) -> Option<LearnedCommand> {
    let fields = row.as_array()?;
    let name = read_name(fields.first()?, is_sub)?;
    let arity = small(fields.get(1)?)?;
    let flags = read_flags(fields.get(2)?);
    let mut keys = read_specifications(fields.get(8));
    if keys.is_empty() {
        keys.extend(read_legacy_range(fields));
    }
    let subs = match fields.get(9).and_then(Value::as_array) {
        Some(rows) if !is_sub => {
            let read = rows.iter().filter_map(|row| read_row(row, true));
            sorted(read.take(limits::LEARNED_SUBCOMMANDS_MAX).collect())
        }
        _ => Vec::new(),
    };
    let class = class_of(flags, &keys);
    Some(LearnedCommand { name, keys: keys.into(), subs: subs.into(), flags, arity, class })
}

/// Prudent where a name says nothing: what administers nodes or makes a connection a subscriber is
/// refused, what may block gets a connection of its own, what is not readonly writes.
fn class_of(flags: Flags, keys: &[KeyRule]) -> Class {
    if flags.has(Flags::ADMIN) || flags.has(Flags::PUBSUB) {
        Class::Refused
    } else if keys.is_empty() {
        Class::Module
    } else if flags.has(Flags::BLOCKING) {
        Class::Blocking
    } else if flags.has(Flags::READONLY) && !flags.has(Flags::WRITE) {
        Class::Read
    } else {
        Class::Write
    }
}

/// Upper case, a subcommand's without the container's part. Names end up in error texts: printable
/// ASCII only.
fn read_name(value: &Value, is_sub: bool) -> Option<Box<str>> {
    let name = value.as_str()?;
    let part = match name.split_once('|') {
        Some((_, sub)) if is_sub => sub,
        Some(_) => return None,
        None => name,
    };
    let fits = (1..=limits::LEARNED_NAME_MAX).contains(&part.len());
    let printable = part.bytes().all(|byte| byte.is_ascii_graphic());
    (fits && printable).then(|| part.to_ascii_uppercase().into())
}

fn read_flags(value: &Value) -> Flags {
    let names = value.as_array().unwrap_or_default().iter().filter_map(Value::as_bytes);
    names.filter_map(Flags::named).fold(COMPOSES, Flags::with)
}

/// First, last and step of the days before key specifications, and of modules that state no more.
fn read_legacy_range(fields: &[Value]) -> Option<KeyRule> {
    let (first, last) = (small(fields.get(3)?)?, small(fields.get(4)?)?);
    let step = small(fields.get(5)?)?;
    (first > 0 && step > 0).then_some(KeyRule::Range { first, last, step, limit: 0 })
}

fn read_specifications(field: Option<&Value>) -> Vec<KeyRule> {
    let specifications = field.and_then(Value::as_array).unwrap_or_default();
    let rules = specifications.iter().filter_map(read_specification);
    rules.take(limits::LEARNED_KEY_RULES_MAX).collect()
}

/// One key specification: where to begin, and how to go on from there.
fn read_specification(specification: &Value) -> Option<KeyRule> {
    let (begin_kind, begin) = read_step(specification.get("begin_search")?)?;
    let (find_kind, find) = read_step(specification.get("find_keys")?)?;
    let number = |of: &Value, key: &str| of.get(key).and_then(small);
    match (begin_kind, find_kind) {
        (b"index", b"range") => {
            let first = number(begin, "index").filter(|first| *first > 0)?;
            let last = number(find, "lastkey")?;
            let last = if last >= 0 { first.checked_add(last)? } else { last };
            let (step, limit) = (number(find, "keystep")?, number(find, "limit").unwrap_or(0));
            (step > 0).then_some(KeyRule::Range { first, last, step, limit })
        }
        (b"keyword", b"range") => {
            let word = Word::of(begin.get("keyword")?.as_bytes()?)?;
            let from = number(begin, "startfrom").filter(|from| *from != 0)?;
            let (last, step) = (number(find, "lastkey")?, number(find, "keystep")?);
            let limit = number(find, "limit").unwrap_or(0);
            (step > 0).then_some(KeyRule::Keyword { word, from, last, step, limit })
        }
        (b"index", b"keynum") => {
            let start = number(begin, "index")?;
            let place = |key: &str| {
                let word = start.checked_add(number(find, key)?)?;
                u8::try_from(word).ok().filter(|word| *word > 0)
            };
            let step = u8::try_from(number(find, "keystep")?).ok().filter(|step| *step > 0)?;
            Some(KeyRule::NumKeys { at: place("keynumidx")?, first: place("firstkey")?, step })
        }
        _ => None,
    }
}

/// The two parts of a step of a key specification: its type and what goes with it.
fn read_step(step: &Value) -> Option<(&[u8], &Value)> {
    Some((step.get("type")?.as_bytes()?, step.get("spec")?))
}

fn small(value: &Value) -> Option<i16> {
    value.as_integer().and_then(|number| i16::try_from(number).ok())
}

fn sorted(mut commands: Vec<LearnedCommand>) -> Vec<LearnedCommand> {
    commands.sort_by(|a, b| a.name.cmp(&b.name));
    commands.dedup_by(|later, first| later.name == first.name);
    commands
}

fn search<'a>(commands: &'a [LearnedCommand], name: &[u8]) -> Option<&'a LearnedCommand> {
    let upper = || name.iter().map(u8::to_ascii_uppercase);
    let at = commands.binary_search_by(|command| command.name.bytes().cmp(upper())).ok()?;
    commands.get(at)
}
