//! Inline requests: a line of words, as a person types them, becomes an array request.
//!
//! It is redis-server's `sdssplitargs` (sds.c). Not here: where the line ends (`request`).

use crate::resp::Span;
use crate::resp::request::{ProtocolError, is_space, write_request_bulk, write_request_header};

/// Decodes one inline line, with or without its end, and appends the array request that it stands
/// for to `out`. `args` (cleared first): its words, relative to the start of what was appended. A
/// blank line appends nothing.
/// Errors: [`ProtocolError::UnbalancedQuotes`], and nothing is appended.
pub fn decode_inline(
    line: &[u8],
    out: &mut Vec<u8>,
    args: &mut Vec<Span>,
) -> Result<(), ProtocolError> {
    args.clear();
    let mut words = Words { line, at: 0, text: Vec::with_capacity(line.len()) };
    // Spans within `words.text`, until the number of words is known and the request can be written.
    while let Some(span) = words.next_word()? {
        args.push(span);
    }
    if args.is_empty() {
        return Ok(());
    }
    let base = out.len();
    write_request_header(out, args.len());
    for span in args.iter_mut() {
        let word = span.of(&words.text);
        write_request_bulk(out, word);
        let end = (out.len() - base - 2) as u32;
        *span = Span { start: end - word.len() as u32, end };
    }
    Ok(())
}

/// The words of a line. A NUL ends the line, as it does for the server.
struct Words<'a> {
    line: &'a [u8],
    at: usize,
    /// The decoded words, one after the other.
    text: Vec<u8>,
}

impl Words<'_> {
    fn next_word(&mut self) -> Result<Option<Span>, ProtocolError> {
        while is_space(self.byte(0)) {
            self.at += 1;
        }
        if self.byte(0) == 0 {
            return Ok(None);
        }
        let start = self.text.len() as u32;
        loop {
            match self.byte(0) {
                // Not `is_space`: a vertical tab or form feed parts words but does not end one.
                b' ' | b'\n' | b'\r' | b'\t' | 0 => break,
                b'"' => {
                    self.double_quoted()?;
                    break;
                }
                b'\'' => {
                    self.single_quoted()?;
                    break;
                }
                byte => self.take(byte, 1),
            }
        }
        Ok(Some(Span { start, end: self.text.len() as u32 }))
    }

    fn double_quoted(&mut self) -> Result<(), ProtocolError> {
        self.at += 1;
        loop {
            match (self.byte(0), self.byte(1)) {
                (0, _) => return Err(ProtocolError::UnbalancedQuotes),
                (b'"', next) => return self.close(next),
                (b'\\', b'x') => match (hex(self.byte(2)), hex(self.byte(3))) {
                    (Some(high), Some(low)) => self.take(high * 16 + low, 4),
                    _ => self.take(b'x', 2),
                },
                (b'\\', 0) => self.take(b'\\', 1),
                (b'\\', escaped) => self.take(unescaped(escaped), 2),
                (byte, _) => self.take(byte, 1),
            }
        }
    }

    fn single_quoted(&mut self) -> Result<(), ProtocolError> {
        self.at += 1;
        loop {
            match (self.byte(0), self.byte(1)) {
                (0, _) => return Err(ProtocolError::UnbalancedQuotes),
                (b'\'', next) => return self.close(next),
                (b'\\', b'\'') => self.take(b'\'', 2),
                (byte, _) => self.take(byte, 1),
            }
        }
    }

    /// A closing quote must be followed by a blank or by nothing.
    fn close(&mut self, next: u8) -> Result<(), ProtocolError> {
        self.at += 1;
        if next == 0 || is_space(next) { Ok(()) } else { Err(ProtocolError::UnbalancedQuotes) }
    }

    /// The byte `ahead` of the current one; 0 after the end.
    fn byte(&self, ahead: usize) -> u8 {
        self.line.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn take(&mut self, decoded: u8, source_len: usize) {
        self.text.push(decoded);
        self.at += source_len;
    }
}

fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

fn hex(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}
