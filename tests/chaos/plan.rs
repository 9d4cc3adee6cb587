//! What a writer asks for next: one operation, its bytes, and what they carry.
//!
//! Each value carries its key, its writer and its number, so that a reply of somebody else's is
//! seen at once. Not here: what may be answered (`writer`).

use crate::support::chance::SplitMix as Random;
use crate::words::{digits, padded, request};

/// Keys of one writer. The last registers hold large values.
pub const REGISTERS: u32 = 24;
pub const LARGE: u32 = 2;
pub const COUNTERS: u32 = 4;
pub const LOGS: u32 = 4;
pub const PAIRS: u32 = 2;
/// Bytes of one entry of a log.
pub const ENTRY: usize = 16;
/// Entries after which a log is read and a new one begun.
pub const LOG_MAX: usize = 400;

/// What one awaited reply belongs to.
#[derive(Clone, PartialEq, Debug)]
pub enum Asked {
    Set {
        register: u32,
        number: u32,
    },
    Get {
        register: u32,
    },
    /// Another writer's register.
    Other {
        writer: u32,
        register: u32,
    },
    Mget {
        registers: [u32; 4],
    },
    Mset {
        registers: [u32; 3],
        numbers: [u32; 3],
    },
    Increment {
        counter: u32,
    },
    Append {
        log: u32,
        number: u32,
    },
    ReadLog {
        log: u32,
        generation: u32,
    },
    /// UNLINK of a log that was read.
    Forget,
    Echo {
        nonce: u32,
    },
    Script {
        nonce: u32,
    },
    /// MULTI and the queued commands: a line.
    Line(&'static [u8]),
    /// EXEC of INCR and APPEND on keys of one slot.
    Exec {
        pair: u32,
    },
    ReadCounter {
        counter: u32,
    },
}

pub type Key = [u8; 9];
/// The key of a register and `=`: what its values begin with.
pub type Head = [u8; 10];

pub fn register_key(writer: u32, register: u32) -> Key {
    key(b'r', writer, register)
}

pub fn register_head(writer: u32, register: u32) -> Head {
    joined(&register_key(writer, register), b"=")
}

/// `r0001:002`
fn key(kind: u8, writer: u32, index: u32) -> Key {
    let mut out = *b"-0000:000";
    out[0] = kind;
    digits(&mut out[1..5], writer);
    digits(&mut out[6..9], index);
    out
}

fn joined<const N: usize>(first: &[u8], second: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out[..first.len()].copy_from_slice(first);
    out[first.len()..].copy_from_slice(second);
    out
}

pub fn counter_key(writer: u32, counter: u32) -> Key {
    key(b'n', writer, counter)
}

pub fn log_key(writer: u32, log: u32, generation: u32) -> [u8; 15] {
    let mut out = joined(&key(b'a', writer, log), b":00000");
    digits(&mut out[10..], generation);
    out
}

/// The two keys of a pair: a number and a log with as many entries, changed in one transaction.
pub fn pair_keys(writer: u32, pair: u32) -> [[u8; 12]; 2] {
    let tag: [u8; 10] = joined(b"{", &key(b'p', writer, pair));
    [joined(&tag, b"}n"), joined(&tag, b"}a")]
}

/// `r0001:002=0000000003` and padding that follows from the number.
pub fn value(out: &mut Vec<u8>, writer: u32, register: u32, number: u32) {
    out.extend_from_slice(&register_head(writer, register));
    padded(out, 10, number);
    out.resize(out.len() + padding(register, number), letter(number));
}

/// How long the padding of a value is, and of what.
fn padding(register: u32, number: u32) -> usize {
    let mut random = Random(u64::from(number) << 32 | u64::from(register));
    match register {
        _ if register >= REGISTERS - LARGE => 4_000 + random.below(150_000) as usize,
        _ if random.below(64) == 0 => random.below(4_000) as usize,
        _ => random.below(40) as usize,
    }
}

fn letter(number: u32) -> u8 {
    b'a' + (number % 26) as u8
}

/// The number of a value of this register, if all of it is right. `head`: the register's.
pub fn number_in(text: &[u8], head: &Head, register: u32) -> Option<u32> {
    let (digits, rest) = text.strip_prefix(head)?.split_at_checked(10)?;
    let number = crate::words::parse(digits)?;
    let right = rest.len() == padding(register, number);
    (right && rest.iter().all(|&byte| byte == letter(number))).then_some(number)
}

/// `w0001l002n0000005`, cut to its sixteen bytes.
pub fn entry(out: &mut Vec<u8>, writer: u32, log: u32, number: u32) {
    out.push(b'w');
    padded(out, 4, writer);
    out.push(b'l');
    padded(out, 2, log);
    padded(out, 8, number);
}

/// The numbers of a log's entries; `Err`: one is not of this log.
pub fn entries(bytes: &[u8], writer: u32, log: u32) -> Result<Vec<u32>, String> {
    let mut head = Vec::new();
    entry(&mut head, writer, log, 0);
    let numbers = bytes.chunks(ENTRY).map(|chunk| {
        let digits = chunk.strip_prefix(&head[..8]).filter(|digits| digits.len() == 8);
        let number = digits.and_then(crate::words::parse);
        number.ok_or_else(|| format!("the entry {:?}", crate::words::text(chunk)))
    });
    numbers.collect()
}

/// Which operations, of a thousand.
#[derive(Copy, Clone, Debug)]
pub struct Mix {
    pub get: u64,
    pub set: u64,
    pub other: u64,
    pub increment: u64,
    pub append: u64,
    pub echo: u64,
    pub mget: u64,
    pub mset: u64,
    pub exec: u64,
    pub script: u64,
}

impl Mix {
    /// Mostly what people do.
    pub const USUAL: Mix = Mix {
        get: 480,
        set: 200,
        other: 120,
        increment: 70,
        append: 60,
        echo: 40,
        mget: 15,
        mset: 8,
        exec: 5,
        script: 2,
    };

    /// Only what must not run twice.
    pub const COUNTING: Mix = Mix {
        get: 20,
        set: 30,
        other: 0,
        increment: 500,
        append: 430,
        echo: 10,
        mget: 0,
        mset: 0,
        exec: 10,
        script: 0,
    };

    pub fn draw(&self, random: &mut Random) -> Kind {
        let shares = [
            (self.get, Kind::Get),
            (self.set, Kind::Set),
            (self.other, Kind::Other),
            (self.increment, Kind::Increment),
            (self.append, Kind::Append),
            (self.echo, Kind::Echo),
            (self.mget, Kind::Mget),
            (self.mset, Kind::Mset),
            (self.exec, Kind::Exec),
            (self.script, Kind::Script),
        ];
        let mut at = random.below(shares.iter().map(|(share, _)| share).sum());
        for (share, kind) in shares {
            if at < share {
                return kind;
            }
            at -= share;
        }
        Kind::Get
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    Get,
    Set,
    Other,
    Increment,
    Append,
    Echo,
    Mget,
    Mset,
    Exec,
    Script,
}

/// The bytes of one operation.
pub fn write(out: &mut Vec<u8>, writer: u32, asked: &Asked, scratch: &mut Vec<u8>) {
    scratch.clear();
    match asked {
        Asked::Set { register, number } => {
            value(scratch, writer, *register, *number);
            request(out, &[b"SET", &register_key(writer, *register), scratch]);
        }
        Asked::Get { register } => request(out, &[b"GET", &register_key(writer, *register)]),
        Asked::Other { writer, register } => {
            request(out, &[b"GET", &register_key(*writer, *register)]);
        }
        Asked::Mget { registers } => {
            let keys = registers.map(|register| register_key(writer, register));
            request(out, &[b"MGET", &keys[0], &keys[1], &keys[2], &keys[3]]);
        }
        Asked::Mset { registers, numbers } => {
            let mut words = vec![b"MSET".to_vec()];
            for (register, number) in registers.iter().zip(numbers) {
                words.push(register_key(writer, *register).to_vec());
                let mut text = Vec::new();
                value(&mut text, writer, *register, *number);
                words.push(text);
            }
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            request(out, &words);
        }
        Asked::Increment { counter } => request(out, &[b"INCR", &counter_key(writer, *counter)]),
        Asked::ReadCounter { counter } => request(out, &[b"GET", &counter_key(writer, *counter)]),
        Asked::ReadLog { log, generation } => {
            request(out, &[b"GET", &log_key(writer, *log, *generation)]);
        }
        Asked::Echo { nonce } => {
            padded(scratch, 10, *nonce);
            request(out, &[b"ECHO", scratch]);
        }
        Asked::Script { nonce } => {
            padded(scratch, 10, *nonce);
            let key = register_key(writer, nonce % REGISTERS);
            request(out, &[b"EVAL", b"return ARGV[1]", b"1", &key, scratch]);
        }
        // Written with what it belongs to.
        Asked::Append { .. } | Asked::Forget | Asked::Line(_) | Asked::Exec { .. } => (),
    }
}
