//! Reads `tests/data/conformance.txt`.
//!
//! Not here: running it (`main`), the rules of comparison (`compare`).

use crate::compare::Compare;

pub struct Script {
    pub title: String,
    /// `redis` or `valkey`: only there.
    pub only: Option<String>,
    pub steps: Vec<Step>,
}

pub struct Step {
    pub line: usize,
    pub text: String,
    pub args: Vec<Vec<u8>>,
    pub compare: Compare,
    /// Goes to the nodes themselves.
    pub direct: bool,
    /// Keeps the reply under this name.
    pub keep: Option<String>,
}

impl Script {
    /// Whether it can go in one write: no reply is needed to form a later request.
    pub fn fits_one_write(&self) -> bool {
        self.steps.iter().all(|step| step.keep.is_none())
    }
}

pub fn read_all(text: &str) -> Vec<Script> {
    let mut scripts: Vec<Script> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(title) = line.strip_prefix("== ") {
            let (title, only) = match title.split_once(" [") {
                Some((title, only)) => (title, Some(only.trim_end_matches(']').to_owned())),
                None => (title, None),
            };
            scripts.push(Script { title: title.to_owned(), only, steps: Vec::new() });
        } else {
            let tag = format!("{{{}}}", scripts.len());
            let script = scripts.last_mut().expect("a title before the first command");
            script.steps.push(read_step(i + 1, line, &tag));
        }
    }
    scripts
}

fn read_step(number: usize, line: &str, tag: &str) -> Step {
    let mut rest = line;
    let mut compare = Compare::Bytes;
    let mut direct = false;
    if rest.starts_with(['~', '!']) {
        let (mark, command) = rest.split_once(' ').expect("a command after the mark");
        rest = command;
        match mark {
            "~sort" => compare = Compare::Sorted,
            "~ints" => compare = Compare::NoNumbers,
            "~kind" => compare = Compare::Kinds,
            "~type" => compare = Compare::Type,
            "!direct" => direct = true,
            _ => panic!("line {number}: unknown mark {mark}"),
        }
    }
    let (command, keep) = match rest.split_once(" -> ") {
        Some((command, name)) => (command, Some(name.trim().to_owned())),
        None => (rest, None),
    };
    let args = words(command, number).into_iter().map(|word| with_tag(word, tag)).collect();
    Step { line: number, text: command.to_owned(), args, compare, direct, keep }
}

fn with_tag(word: Vec<u8>, tag: &str) -> Vec<u8> {
    match word.strip_prefix(b"{t}") {
        Some(rest) => [tag.as_bytes(), rest].concat(),
        None => word,
    }
}

/// Words parted by blanks; a word may be in double quotes.
fn words(line: &str, number: usize) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut bytes = line.bytes().peekable();
    while let Some(&byte) = bytes.peek() {
        if byte == b' ' {
            bytes.next();
        } else if byte == b'"' {
            bytes.next();
            words.push(quoted(&mut bytes, number));
        } else {
            let mut word = Vec::new();
            while let Some(byte) = bytes.next_if(|&b| b != b' ') {
                word.push(byte);
            }
            words.push(word);
        }
    }
    words
}

fn quoted(bytes: &mut impl Iterator<Item = u8>, number: usize) -> Vec<u8> {
    let mut word = Vec::new();
    let mut next = || bytes.next().unwrap_or_else(|| panic!("line {number}: open quote"));
    loop {
        let byte = match next() {
            b'"' => return word,
            b'\\' => match next() {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let digits = [next(), next()];
                    let text = std::str::from_utf8(&digits).expect("hex digits");
                    u8::from_str_radix(text, 16).expect("hex digits")
                }
                other => other,
            },
            byte => byte,
        };
        word.push(byte);
    }
}
