//! What is learned from a node's COMMAND reply: bounded, inside the request, and for commands that the
//! table has as well the same keys.
//!
//! Not here: asking for it.

use std::sync::LazyLock;

use ringway::command::{Args, Learned, find, keys_of};
use ringway::limits;
use ringway::resp::reply::first_frame_len;
use ringway::resp::value::{Value, parse_value};

use super::Target;
use super::keys::{Words, words};
use crate::hold;
use crate::shared::corpus::{self, REPLY_SLICES};
use crate::shared::plant::{self, Plant};
use crate::shared::random::Random;
use crate::shared::take::{Take, put_piece};

pub const TARGET: Target = Target {
    name: "learned",
    property: "any COMMAND reply teaches no more than the bounds allow; keys are words of the request; \
               a known command under another name has the keys that the table gives it",
    check,
    make,
    memory: (512 << 10, 200),
    executions: 250_000,
};

/// Recorded rows whose rules say all that the table says (`data/commands.README.md`).
const TWINS: [&str; 7] = ["GET", "MSET", "EVAL", "ZUNIONSTORE", "BLMPOP", "LCS", "SINTERCARD"];

fn check(input: &[u8]) -> Result<(), String> {
    let mut take = Take(input);
    let how = take.byte();
    if how < 128 {
        return twin_agrees(usize::from(how), &take.pieces(40));
    }
    let reply = take.piece();
    let mut words = take.pieces(40);
    let Ok(Some((value, _))) = parse_value(reply) else { return Ok(()) };
    let learned = Learned::from_command_reply(&value);
    hold!(learned.len() <= limits::LEARNED_COMMANDS_MAX, "{} commands", learned.len());
    let rows = value.as_array().unwrap_or_default();
    for row in rows.iter().take(40) {
        let name = row.as_array().and_then(|fields| fields.first()?.as_bytes());
        let Some(name) = name else { continue };
        if words.is_empty() {
            words.push(name);
        }
        words[0] = name;
        let held = Words::of(&words);
        // Also where a request ends early: whatever its arity, rules are asked for keys.
        for count in [1, 2, words.len()] {
            let spans = &held.spans[..count.min(words.len())];
            keys_hold(&learned, name, &Args { bytes: &held.bytes, spans })?;
        }
    }
    Ok(())
}

fn keys_hold(learned: &Learned, name: &[u8], args: &Args) -> Result<(), String> {
    let Some(command) = learned.find(name) else { return Ok(()) };
    hold!(find(name).is_none(), "learned what the table has: {}", command.name());
    hold!(command.name().len() <= limits::LEARNED_NAME_MAX, "{} is long", command.name());
    let _ = (command.arity_ok(args.len()), command.stand_in().class, command.flags());
    let sub = args.get(1).and_then(|sub| command.find_sub(sub));
    for command in [Some(command), sub].into_iter().flatten() {
        let mut keys = vec![9];
        let _ = command.keys_of(args, &mut keys);
        if plant::is(Plant::ShiftLearned) {
            keys.iter_mut().for_each(|key| *key += 1);
        }
        let inside = |key: &u32| (*key as usize) < args.len() && *key > 0;
        hold!(keys.iter().all(inside), "{}: keys {keys:?} of {}", command.name(), args.len());
    }
    Ok(())
}

/// A row of the table under another name: its rules, read from the reply, find the same keys.
fn twin_agrees(which: usize, rest: &[&[u8]]) -> Result<(), String> {
    let twin = TWINS[which % TWINS.len()];
    let name = format!("zz{twin}");
    let mut words = vec![name.as_bytes()];
    words.extend_from_slice(rest);
    let held = Words::of(&words);
    let learned = LEARNED.get(which % 2).ok_or("two protocols")?;
    let command = learned.find(name.as_bytes()).ok_or("a renamed row is not learned")?;
    let known = find(twin.as_bytes()).ok_or("a row of the table")?;
    let (mut keys, mut expected) = (Vec::new(), Vec::new());
    let doubt = command.keys_of(&held.args(), &mut keys);
    let told = keys_of(known, &held.args(), &mut expected);
    let same = told.is_ok() == doubt.is_ok() && expected == keys;
    hold!(same, "{twin}: {doubt:?} {keys:?}, the table: {told:?} {expected:?}");
    Ok(())
}

/// What is learned of the recorded rows, RESP2 and RESP3, under names that no table has.
static LEARNED: LazyLock<Vec<Learned>> = LazyLock::new(|| {
    let learn = |one: &&corpus::Recorded| {
        let parsed = parse_value(&renamed(&one.reply)).ok().flatten();
        parsed.map(|(value, _)| Learned::from_command_reply(&value)).unwrap_or_default()
    };
    corpus::replies_of(RECORDED).iter().map(learn).collect()
});

fn make(random: &mut Random) -> Vec<u8> {
    let how = random.next() as u8;
    let mut out = vec![how];
    let words = words(random);
    if how < 128 {
        words.iter().skip(1).for_each(|word| put_piece(&mut out, word));
        return out;
    }
    // Mostly a few rows of any protocol: what is learned of one has nothing to do with the others.
    let count = random.pick(&[1, 1, 2, 2, 3, 4, 12]);
    let mut reply = format!("*{count}\r\n").into_bytes();
    for _ in 0..count {
        // Those of the table teach nothing: a few, so that it stays so.
        let rows = if random.one_in(8) { &ROWS.0 } else { &ROWS.1 };
        reply.extend_from_slice(&rows[random.below(rows.len())]);
    }
    let from = random.below(reply.len());
    let mut part = reply.split_off(from);
    random.mutate(&mut part, &REPLY_SLICES);
    reply.extend(part);
    put_piece(&mut out, &reply);
    words.iter().for_each(|word| put_piece(&mut out, word));
    out
}

type Rows = Vec<Vec<u8>>;

/// The recorded rows of both protocols, under their own names and under some that no table has.
static ROWS: LazyLock<(Rows, Rows)> = LazyLock::new(|| {
    let recorded = corpus::replies_of(RECORDED);
    let own = recorded.iter().flat_map(|one| rows_of(&one.reply));
    let others = recorded.iter().flat_map(|one| rows_of(&renamed(&one.reply)));
    (own.collect(), others.collect())
});

fn rows_of(reply: &[u8]) -> Rows {
    let header = reply.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let (mut rest, mut rows) = (&reply[header..], Vec::new());
    while let Some(len) = first_frame_len(rest) {
        rows.push(rest[..len].to_vec());
        rest = &rest[len..];
    }
    rows
}

const RECORDED: &str =
    "COMMAND INFO get mset eval zunionstore xread object sort blmpop lcs georadius_ro sintercard";

/// The same rows with names that no table has.
fn renamed(reply: &[u8]) -> Vec<u8> {
    let mut out = reply.to_vec();
    let Ok(Some((value, _))) = parse_value(reply) else { return out };
    let name = |row: &Value| Some(row.as_array()?.first()?.as_bytes()?.to_vec());
    for name in value.as_array().unwrap_or_default().iter().filter_map(name) {
        let frame =
            |name: &[u8]| [format!("${}\r\n", name.len()).as_bytes(), name, b"\r\n:"].concat();
        let (from, to) = (frame(&name), frame(&[b"zz", name.as_slice()].concat()));
        if let Some(at) = out.windows(from.len()).position(|window| window == from) {
            out.splice(at..at + from.len(), to);
        }
    }
    out
}
