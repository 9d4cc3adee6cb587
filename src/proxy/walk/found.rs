//! Keys that a walk has found, in one piece of memory; and reading arrays of keys.
//!
//! Not here: which keys are wanted.

use std::collections::HashSet;

use crate::resp::reply::{first_frame_len, list_header};
use crate::resp::write;

#[derive(Debug, Default)]
pub struct Found {
    bytes: Vec<u8>,
    /// Where each key ends, and whether it is wanted.
    ends: Vec<(usize, bool)>,
}

impl Found {
    pub fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.ends.push((self.bytes.len(), true));
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, index: usize) -> &[u8] {
        let start = match index {
            0 => 0,
            _ => self.ends.get(index - 1).map_or(0, |end| end.0),
        };
        let end = self.ends.get(index).map_or(start, |end| end.0);
        self.bytes.get(start..end).unwrap_or_default()
    }

    pub fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.bytes.truncate(self.ends.last().map_or(0, |end| end.0));
    }

    /// Whether all keys from `middle` on are among those from `start` to there.
    pub fn repeats(&self, start: usize, middle: usize) -> bool {
        let known: HashSet<&[u8]> = (start..middle).map(|index| self.get(index)).collect();
        (middle..self.len()).all(|index| known.contains(self.get(index)))
    }

    pub fn leave_out(&mut self, index: usize) {
        if let Some(end) = self.ends.get_mut(index) {
            end.1 = false;
        }
    }

    /// `[cursor, [key, …]]`
    pub fn write_reply(&self, cursor: &[u8], out: &mut Vec<u8>) {
        write::array_header(out, 2);
        write::bulk(out, cursor);
        let wanted = || (0..self.len()).filter(|&index| self.ends[index].1);
        write::array_header(out, wanted().count());
        wanted().for_each(|index| write::bulk(out, self.get(index)));
    }
}

/// The texts of an array of bulk strings; an element that is none is `None`.
pub fn bulks(reply: &[u8]) -> Option<impl Iterator<Item = Option<&[u8]>>> {
    let (count, header) = list_header(reply)?;
    let mut rest = reply.get(header..)?;
    Some((0..count).map(move |_| {
        let len = first_frame_len(rest)?;
        let text = bulk_text(rest.get(..len)?);
        rest = rest.get(len..)?;
        text
    }))
}

/// The text of one whole bulk string (or verbatim string, with its format).
pub fn bulk_text(frame: &[u8]) -> Option<&[u8]> {
    if !matches!(frame.first(), Some(b'$' | b'=')) || frame.get(1) == Some(&b'-') {
        return None;
    }
    let start = memchr::memchr(b'\n', frame)? + 1;
    frame.get(start..)?.strip_suffix(b"\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kept_dropped_and_left_out() {
        let mut found = Found::default();
        for key in ["a", "", "ccc", "d"] {
            found.push(key.as_bytes());
        }
        assert_eq!(found.get(1), b"");
        assert_eq!(found.get(2), b"ccc");
        found.truncate(3);
        found.leave_out(0);
        let mut out = Vec::new();
        found.write_reply(b"7", &mut out);
        let text = "*2\r\n$1\r\n7\r\n*2\r\n$0\r\n\r\n$3\r\nccc\r\n";
        assert_eq!(String::from_utf8_lossy(&out), text);
        found.truncate(0);
        assert_eq!(found.len(), 0);
    }

    #[test]
    fn keys_that_were_found_before_are_known_again() {
        let mut found = Found::default();
        for key in ["other", "a", "b", "b", "a", "other"] {
            found.push(key.as_bytes());
        }
        assert!(!found.repeats(1, 3), "the slot before had it, not this one");
        found.truncate(5);
        assert!(found.repeats(1, 3));
        assert!(found.repeats(1, 5), "nothing is among anything");
    }

    #[test]
    fn arrays_of_keys_are_read() {
        let all = |reply: &'static str| -> Vec<Option<&[u8]>> {
            bulks(reply.as_bytes()).into_iter().flatten().collect()
        };
        assert_eq!(all("*2\r\n$1\r\na\r\n$0\r\n\r\n"), [Some(&b"a"[..]), Some(b"")]);
        assert_eq!(all("*1\r\n:1\r\n"), [None]);
        assert_eq!(all("*1\r\n$-1\r\n"), [None]);
        assert_eq!(all("+OK\r\n"), []);
        assert_eq!(all("%1\r\n$1\r\na\r\n$1\r\nb\r\n"), [], "a map is no array of half its texts");
        assert_eq!(bulk_text(b"=7\r\ntxt:abc\r\n"), Some(&b"txt:abc"[..]));
    }
}
