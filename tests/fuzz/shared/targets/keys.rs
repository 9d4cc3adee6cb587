//! Commands and their keys: names in any case, key words inside the request, each once; the short
//! ways agree with the long ones.
//!
//! Not here: whether the places are the server's (`getkeys`, with recorded and live answers).

use ringway::command::{
    Args, COMMANDS, Command, KeyError, blocks, find, find_sub, keys_of, lookup, split_shape,
    timeout_of,
};
use ringway::resp::Span;

use super::Target;
use crate::hold;
use crate::shared::corpus;
use crate::shared::plant::{self, Plant};
use crate::shared::random::Random;
use crate::shared::take::{Take, put_pieces};

pub const TARGET: Target = Target {
    name: "keys",
    property: "any words: keys are words of the request behind its name, each once, in bounds; \
               names are found in any case and only they; fast and slow ways agree",
    check,
    make,
    memory: (64 << 10, 128),
    executions: 600_000,
};

/// Words as the room of commands gets them.
pub struct Words {
    pub bytes: Vec<u8>,
    pub spans: Vec<Span>,
}

impl Words {
    pub fn of<W: AsRef<[u8]>>(words: &[W]) -> Words {
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        for word in words {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(word.as_ref());
            spans.push(Span { start, end: bytes.len() as u32 });
        }
        Words { bytes, spans }
    }

    pub fn args(&self) -> Args<'_> {
        Args { bytes: &self.bytes, spans: &self.spans }
    }
}

fn check(input: &[u8]) -> Result<(), String> {
    let words = Take(input).pieces(64);
    let held = Words::of(&words);
    let args = held.args();
    let name = words.first().copied().unwrap_or_default();
    let found = find(name);
    let slowly = COMMANDS.iter().find(|command| {
        !command.name.contains('|') && command.name.as_bytes().eq_ignore_ascii_case(name)
    });
    hold!(found.map(|c| c.name) == slowly.map(|c| c.name), "found {found:?}, not {slowly:?}");
    if let (Some(container), Some(sub)) = (found, words.get(1)) {
        let whole = [container.name.as_bytes(), b"|", sub].concat().to_ascii_uppercase();
        let slowly = COMMANDS.iter().find(|command| command.name.as_bytes() == whole);
        let sub = find_sub(container, sub);
        hold!(sub.map(|c| c.name) == slowly.map(|c| c.name), "subcommand {sub:?}, not {slowly:?}");
    }
    // Whatever the words, every row's rules stay inside them.
    let row = &COMMANDS[Random::of(input).below(COMMANDS.len())];
    keys_hold(row, &args, false)?;
    if let Ok(command) = lookup(&args) {
        keys_hold(command, &args, true)?;
    }
    Ok(())
}

/// `legal`: the number of words is.
fn keys_hold(command: &Command, args: &Args, legal: bool) -> Result<(), String> {
    let mut keys = vec![7, 7, 7];
    let doubt = keys_of(command, args, &mut keys);
    if plant::is(Plant::KeyBehindEnd) && command.name == "GEORADIUS" {
        keys.push(args.len() as u32);
    }
    let inside = |key: &u32| 0 < *key && (*key as usize) < args.len();
    hold!(keys.iter().all(inside), "{}: keys {keys:?} of {} words", command.name, args.len());
    let mut once = keys.clone();
    once.sort_unstable();
    once.dedup();
    hold!(once.len() == keys.len(), "{}: keys {keys:?}", command.name);
    if let (Err(doubt), false) = (doubt, command.name.starts_with("EVAL")) {
        hold!(doubt == KeyError::Syntax, "{}: {doubt:?}", command.name);
    }
    let (plain, fast) = (command.plain_first_key(), command.route_fast());
    hold!(fast.is_none() || fast == plain, "{}: {fast:?} and {plain:?}", command.name);
    if let (Some(word), true) = (plain, legal) {
        let there = args.len() > usize::from(word);
        let alone = keys == [u32::from(word)] || (!there && keys.is_empty());
        hold!(doubt.is_ok() && alone, "{}: {plain:?}, {keys:?}", command.name);
    }
    if let (Ok(()), Some(shape)) = (doubt, split_shape(command, args, &keys)) {
        let word = |key: usize| (shape.first + key * shape.words_per_key) as u32;
        let same = keys.iter().enumerate().all(|(n, key)| *key == word(n));
        hold!(same && shape.keys == keys.len(), "{}: {shape:?}, {keys:?}", command.name);
        hold!(shape.tail <= args.len(), "{}: {shape:?}", command.name);
    }
    let waits = blocks(command, args);
    if let Some(timeout) = timeout_of(command, args) {
        hold!(timeout.word < args.len(), "{}: {timeout:?}", command.name);
        hold!(timeout.ms != Some(0), "{}: {timeout:?} (blocks: {waits})", command.name);
    }
    Ok(())
}

/// What we find in words, as a server lists it: the keys themselves.
pub fn keys_in(words: &[Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    let held = Words::of(words);
    let args = held.args();
    let command = lookup(&args).ok()?;
    let mut keys = Vec::new();
    keys_of(command, &args, &mut keys).ok()?;
    if plant::is(Plant::MissKey) && keys.len() > 1 {
        keys.remove(1);
    }
    Some(keys.iter().map(|key| words[*key as usize].clone()).collect())
}

fn make(random: &mut Random) -> Vec<u8> {
    let mut words = words(random);
    if random.one_in(4) {
        for _ in 0..=random.below(3) {
            let at = random.below(words.len());
            match random.below(4) {
                0 => drop(words.remove(at)),
                1 => words.insert(at, words[at].clone()),
                2 => words[at] = random.text(40),
                _ => random.mutate(&mut words[at], &[]),
            }
            if words.is_empty() {
                break;
            }
        }
    }
    put_pieces(&words)
}

/// The words that options are made of, in front of which keys may stand or not.
const OPTIONS: [&str; 36] = [
    "STORE",
    "STOREDIST",
    "BY",
    "GET",
    "LIMIT",
    "ASC",
    "ALPHA",
    "STREAMS",
    "BLOCK",
    "COUNT",
    "GROUP",
    "NOACK",
    "CLAIM",
    "KEYS",
    "AUTH",
    "AUTH2",
    "COPY",
    "REPLACE",
    "WEIGHTS",
    "AGGREGATE",
    "EX",
    "NX",
    "XX",
    "PX",
    "MATCH",
    "TYPE",
    "LEFT",
    "RIGHT",
    "MEMORY",
    "WITHSCORES",
    "streams",
    "store",
    "-1",
    "0",
    "1",
    "2",
];

/// A request as somebody might send it: right in form more often than not.
pub fn words(random: &mut Random) -> Vec<Vec<u8>> {
    if random.one_in(4) {
        let recorded = &*corpus::GETKEYS;
        return recorded[random.below(recorded.len())].0.clone();
    }
    let command = &COMMANDS[random.below(COMMANDS.len())];
    let mut words: Vec<Vec<u8>> =
        command.name.split('|').map(|part| part.as_bytes().to_vec()).collect();
    if random.one_in(3) {
        words.iter_mut().for_each(|word| word.make_ascii_lowercase());
    }
    let least = usize::from(command.arity.unsigned_abs()).max(words.len());
    let more = if command.arity < 0 { random.length(9) } else { 0 };
    while words.len() < least + more {
        words.push(match random.below(4) {
            0 => random.pick(&OPTIONS).as_bytes().to_vec(),
            1 => random.pick(&["1", "2", "3"]).as_bytes().to_vec(),
            2 if random.one_in(8) => random.number_text(),
            _ => format!("k{}", random.below(9)).into_bytes(),
        });
    }
    words
}
