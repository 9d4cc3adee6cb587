//! One reply as a tree, and as one line of text that tests compare: `OK`, `-ERR …`, `7`, `"bulk"`,
//! `nil`, `[a, b]`, `{k: v}`, `~[set]`, `>[push]`, `,1.5`, `#t`, `null`.
//!
//! Not here: the crate's own `resp`. This reader is simple, slow and separate on purpose.

use std::fmt::Write as _;

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Integer(i64),
    Bulk(Vec<u8>),
    /// `$-1`
    NilBulk,
    /// `*-1`
    NilArray,
    /// `_`
    Null,
    Array(Vec<Reply>),
    Set(Vec<Reply>),
    Push(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    /// Double, boolean, big number: type byte and text.
    Scalar(u8, Vec<u8>),
    /// Verbatim string or bulk error: type byte and body.
    Blob(u8, Vec<u8>),
    Attribute(Vec<(Reply, Reply)>, Box<Reply>),
}

#[derive(Debug, PartialEq)]
pub enum Unread {
    Incomplete,
    Malformed(String),
}

/// The first reply in `bytes` and its length.
pub fn read(bytes: &[u8]) -> Result<(Reply, usize), Unread> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n").ok_or(Unread::Incomplete)?;
    let (kind, line, mut at) = (bytes[0], &bytes[1..end], end + 2);
    let reply = match kind {
        b'+' => Reply::Simple(line.to_vec()),
        b'-' => Reply::Error(line.to_vec()),
        b':' => Reply::Integer(number(line)?),
        b'_' => Reply::Null,
        b',' | b'#' | b'(' => Reply::Scalar(kind, line.to_vec()),
        b'$' | b'=' | b'!' => match number(line)? {
            -1 => Reply::NilBulk,
            length => {
                let stop = at + length as usize;
                let body = bytes.get(at..stop + 2).ok_or(Unread::Incomplete)?;
                at = stop + 2;
                let body = body[..length as usize].to_vec();
                if kind == b'$' { Reply::Bulk(body) } else { Reply::Blob(kind, body) }
            }
        },
        b'*' | b'~' | b'>' => match number(line)? {
            -1 => Reply::NilArray,
            count => {
                let items = read_many(bytes, &mut at, count)?;
                match kind {
                    b'*' => Reply::Array(items),
                    b'~' => Reply::Set(items),
                    _ => Reply::Push(items),
                }
            }
        },
        b'%' => Reply::Map(read_pairs(bytes, &mut at, number(line)?)?),
        b'|' => {
            let pairs = read_pairs(bytes, &mut at, number(line)?)?;
            let (inner, length) = read(&bytes[at..])?;
            at += length;
            Reply::Attribute(pairs, Box::new(inner))
        }
        _ => return Err(Unread::Malformed(format!("type byte {:?}", kind as char))),
    };
    Ok((reply, at))
}

fn read_many(bytes: &[u8], at: &mut usize, count: i64) -> Result<Vec<Reply>, Unread> {
    let mut items = Vec::new();
    for _ in 0..count {
        let (item, length) = read(&bytes[*at..])?;
        *at += length;
        items.push(item);
    }
    Ok(items)
}

fn read_pairs(bytes: &[u8], at: &mut usize, count: i64) -> Result<Vec<(Reply, Reply)>, Unread> {
    let flat = read_many(bytes, at, count * 2)?;
    let mut items = flat.into_iter();
    let mut pairs = Vec::new();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        pairs.push((key, value));
    }
    Ok(pairs)
}

fn number(line: &[u8]) -> Result<i64, Unread> {
    let text = String::from_utf8_lossy(line);
    text.parse().map_err(|_| Unread::Malformed(format!("length {text:?}")))
}

impl Reply {
    /// The line of text that tests compare.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_) | Reply::Blob(b'!', _))
    }

    pub fn is_nil(&self) -> bool {
        matches!(self, Reply::NilBulk | Reply::NilArray | Reply::Null)
    }

    /// The bytes of a string of any kind, else nothing.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Reply::Simple(text) | Reply::Bulk(text) | Reply::Error(text) => text,
            Reply::Blob(_, body) => body,
            _ => b"",
        }
    }

    pub fn string(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    pub fn integer(&self) -> i64 {
        match self {
            Reply::Integer(value) => *value,
            other => panic!("not an integer: {}", other.text()),
        }
    }

    /// Elements of an array, set or push; keys and values of a map in turn.
    pub fn items(&self) -> Vec<Reply> {
        match self {
            Reply::Array(items) | Reply::Set(items) | Reply::Push(items) => items.clone(),
            Reply::Map(pairs) => pairs.iter().flat_map(|(k, v)| [k.clone(), v.clone()]).collect(),
            _ => Vec::new(),
        }
    }

    /// The value beside `name` in a map, or in a flat list of names and values.
    pub fn field(&self, name: &str) -> Option<Reply> {
        let items = self.items();
        items.chunks(2).find(|pair| pair[0].bytes() == name.as_bytes())?.get(1).cloned()
    }

    fn write(&self, out: &mut String) {
        match self {
            Reply::Simple(text) => escape(out, text),
            Reply::Error(text) => {
                out.push('-');
                escape(out, text);
            }
            Reply::Integer(value) => write!(out, "{value}").unwrap(),
            Reply::Bulk(body) => {
                out.push('"');
                escape(out, body);
                out.push('"');
            }
            Reply::NilBulk => out.push_str("nil"),
            Reply::NilArray => out.push_str("nil-array"),
            Reply::Null => out.push_str("null"),
            Reply::Array(items) => write_list(out, "[", items),
            Reply::Set(items) => write_list(out, "~[", items),
            Reply::Push(items) => write_list(out, ">[", items),
            Reply::Map(pairs) => write_map(out, "{", pairs),
            Reply::Scalar(kind, text) | Reply::Blob(kind, text) => {
                out.push(*kind as char);
                escape(out, text);
            }
            Reply::Attribute(pairs, inner) => {
                write_map(out, "|{", pairs);
                inner.write(out);
            }
        }
    }
}

fn write_list(out: &mut String, open: &str, items: &[Reply]) {
    out.push_str(open);
    for (i, item) in items.iter().enumerate() {
        out.push_str(if i == 0 { "" } else { ", " });
        item.write(out);
    }
    out.push(']');
}

fn write_map(out: &mut String, open: &str, pairs: &[(Reply, Reply)]) {
    out.push_str(open);
    for (i, (key, value)) in pairs.iter().enumerate() {
        out.push_str(if i == 0 { "" } else { ", " });
        key.write(out);
        out.push_str(": ");
        value.write(out);
    }
    out.push('}');
}

fn escape(out: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'\r' => out.push_str("\\r"),
            b'\n' => out.push_str("\\n"),
            b'\\' => out.push_str("\\\\"),
            0x20..=0x7e => out.push(byte as char),
            _ => write!(out, "\\x{byte:02x}").unwrap(),
        }
    }
}
