//! Frames recorded from a real server by `corpus/record.py`, as lines of text.
//!
//! Not here: changing them (`random`).

use std::sync::LazyLock;

/// `VERSION command => reply`, the reply with `\r`, `\n`, `\\` and `\xNN` for what is not plain.
const REPLIES: &str = include_str!("../corpus/replies.txt");

/// Requests as clients write them, one escaped stream in each line.
const REQUESTS: &str = include_str!("../corpus/requests.txt");

/// `words => places`: what COMMAND GETKEYS says of these words.
const ASKED_FOR_KEYS: &str = include_str!("../corpus/getkeys.txt");

type Words = Vec<Vec<u8>>;

pub struct Recorded {
    pub command: String,
    pub reply: Vec<u8>,
}

pub static RECORDED: LazyLock<Vec<Recorded>> = LazyLock::new(|| {
    let line = |line: &str| {
        let (_, rest) = line.split_once(' ')?;
        let (command, reply) = rest.split_once(" => ")?;
        Some(Recorded { command: command.to_owned(), reply: unescape(reply) })
    };
    lines(REPLIES).map(|text| line(text).expect("a line of replies.txt")).collect()
});

static REQUEST_STREAMS: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| lines(REQUESTS).map(unescape).collect());

pub static REPLY_SLICES: LazyLock<Vec<&'static [u8]>> =
    LazyLock::new(|| RECORDED.iter().map(|one| one.reply.as_slice()).collect());

pub static REQUEST_SLICES: LazyLock<Vec<&'static [u8]>> =
    LazyLock::new(|| REQUEST_STREAMS.iter().map(Vec::as_slice).collect());

/// Words, and the keys among them as the server told them.
pub static GETKEYS: LazyLock<Vec<(Words, Words)>> = LazyLock::new(|| {
    let words =
        |text: &str| text.split(' ').filter(|word| !word.is_empty()).map(unescape).collect();
    let line = |line: &str| {
        let (asked, told) = line.split_once(" =>").expect("a line of getkeys.txt");
        (words(asked), words(told))
    };
    lines(ASKED_FOR_KEYS).map(line).collect()
});

/// The replies that were recorded of a command, in either version.
pub fn replies_of(command: &str) -> Vec<&'static Recorded> {
    RECORDED.iter().filter(|one| one.command == command).collect()
}

fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'r') => out.push(b'\r'),
            Some(b'n') => out.push(b'\n'),
            Some(b's') => out.push(b' '),
            Some(b'e') => {}
            Some(b'x') => {
                let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
                let (high, low) = (digit(bytes.next()), digit(bytes.next()));
                out.push((high.unwrap_or(0) * 16 + low.unwrap_or(0)) as u8);
            }
            other => out.extend(other),
        }
    }
    out
}
