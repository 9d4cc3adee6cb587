//! What a client sends: the resumable parser of array requests, and their encoding.
//!
//! It is redis-server 7.0's parser (networking.c, `processMultibulkBuffer` and
//! `processInlineBuffer`), with its error texts, made independent of how the bytes are cut. Like
//! the server it does not look at the byte after a header's CR, nor at the two after a bulk string;
//! it says so, for the caller must not forward such bytes.
//! Not here: inline lines beyond their framing (`inline`); what a request means.

use std::borrow::Cow;

use crate::limits;
use crate::resp::Span;
use crate::resp::number;

pub use crate::resp::inline::decode_inline;

/// What one client's requests may ask for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RequestLimits {
    /// Arguments of a request.
    pub arguments_max: u32,
    /// Bytes of one argument.
    pub bulk_max: u64,
    /// Bytes of an inline line or of a length line, without its end.
    pub inline_max: u32,
    /// Bytes of a whole array request.
    pub total_max: u64,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            arguments_max: limits::REQUEST_ARGUMENTS_MAX,
            bulk_max: limits::REQUEST_BULK_MAX,
            inline_max: limits::REQUEST_INLINE_MAX,
            total_max: limits::REQUEST_TOTAL_MAX,
        }
    }
}

impl RequestLimits {
    /// Before a client has logged in: 10 arguments of 16 KiB (CVE-2021-32675). What is over these
    /// but within the ordinary limits is refused in the server's own words for it.
    pub fn unauthenticated() -> Self {
        Self {
            arguments_max: limits::UNAUTHENTICATED_ARGUMENTS_MAX,
            bulk_max: limits::UNAUTHENTICATED_BULK_MAX,
            ..Self::default()
        }
    }

    fn is_unauthenticated(&self) -> bool {
        self.arguments_max == limits::UNAUTHENTICATED_ARGUMENTS_MAX
            && self.bulk_max == limits::UNAUTHENTICATED_BULK_MAX
    }
}

/// What one call of [`RequestParser::parse`] found.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// More bytes are needed. The request has at least `total_hint` bytes in all (0: unknown). A
    /// client can claim any: never reserve by it alone.
    Incomplete { total_hint: u64 },
    /// `len` bytes with nothing to run: `*0`, `*-1`, a blank line.
    Empty { len: usize },
    /// An array request of `len` bytes. `canonical`: every line end and terminator is CR LF, so
    /// that the bytes may be forwarded as they are; else it must be encoded anew.
    Array { len: usize, canonical: bool },
    /// An inline line of `len` bytes, its end included: to be given to [`decode_inline`].
    Inline { len: usize },
}

/// Why a client's bytes are not a request. The client gets the text and is closed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ProtocolError {
    ExpectedDollar(u8),
    InvalidBulkLength,
    InvalidMultibulkLength,
    TooBigBulkCount,
    TooBigInline,
    TooBigMultibulkCount,
    /// Ours: the server closes without a word (`client-query-buffer-limit`).
    TooBigRequest,
    /// Ours: the server waits for the end of a line that never comes.
    Tls,
    UnauthenticatedBulkLength,
    UnauthenticatedMultibulkLength,
    UnbalancedQuotes,
}

impl ProtocolError {
    /// What follows `-ERR `, in redis-server's words. A byte that is no ASCII character reads `?`
    /// here.
    pub fn text(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::ExpectedDollar(got) => {
                let shown = if got.is_ascii() { printable(*got) } else { b'?' };
                let text = format!("Protocol error: expected '$', got '{}'", char::from(shown));
                return Cow::Owned(text);
            }
            Self::InvalidBulkLength => "Protocol error: invalid bulk length",
            Self::InvalidMultibulkLength => "Protocol error: invalid multibulk length",
            Self::TooBigBulkCount => "Protocol error: too big bulk count string",
            Self::TooBigInline => "Protocol error: too big inline request",
            Self::TooBigMultibulkCount => "Protocol error: too big mbulk count string",
            Self::TooBigRequest => "Protocol error: too big request",
            Self::Tls => "Protocol error: TLS on a port without it",
            Self::UnauthenticatedBulkLength => "Protocol error: unauthenticated bulk length",
            Self::UnauthenticatedMultibulkLength => {
                "Protocol error: unauthenticated multibulk length"
            }
            Self::UnbalancedQuotes => "Protocol error: unbalanced quotes in request",
        })
    }

    /// Appends the whole error reply, byte for byte as the server sends it.
    pub fn append_reply(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"-ERR ");
        match self {
            Self::ExpectedDollar(got) => {
                out.extend_from_slice(b"Protocol error: expected '$', got '");
                out.extend_from_slice(&[printable(*got), b'\'']);
            }
            _ => out.extend_from_slice(self.text().as_bytes()),
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Line ends within an error line become blanks, as in the server's `addReplyErrorFormat`.
fn printable(byte: u8) -> u8 {
    if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }
}

/// Where the parser is within one request. It keeps no bytes and nothing on the heap; the default
/// is between two requests.
#[derive(Clone, Debug, Default)]
pub struct RequestParser {
    place: Place,
    /// The argument whose length is known and whose bytes have not all come: its length.
    awaited: Option<u32>,
    /// Bytes of the current line, from its first, in which there is no line end: not looked at
    /// again.
    searched: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Unknown,
    Inline,
    /// An array whose count is not known yet.
    Count,
    /// An array some of whose arguments are still to come.
    Arguments,
}

/// Progress within an array request.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Offset of the first byte that is not parsed.
    at: usize,
    /// Arguments still to come.
    remaining: u32,
    /// A line end or terminator was not CR LF.
    loose: bool,
}

/// A length line: what it says and where the next thing starts.
struct Line {
    text_end: usize,
    next: usize,
    loose: bool,
}

impl RequestParser {
    /// Parses one request at the start of `bytes`; fills `args` (cleared first) with its arguments.
    ///
    /// After `Incomplete` call again with the same bytes and more; `args` must be left alone
    /// meanwhile. What was seen is not looked at again. After an error neither parser nor `args`
    /// mean anything.
    #[inline]
    pub fn parse(
        &mut self,
        bytes: &[u8],
        limits: &RequestLimits,
        args: &mut Vec<Span>,
    ) -> Result<Parsed, ProtocolError> {
        if self.kind != Kind::Unknown {
            return self.resume(bytes, limits, args);
        }
        args.clear();
        match *bytes {
            [b'*', count @ b'1'..=b'9', b'\r', b'\n', ..] => {
                let remaining = u32::from(count - b'0');
                if remaining > limits.arguments_max {
                    return Err(count_error(limits));
                }
                self.arguments(bytes, limits, args, Place { at: 4, remaining, loose: false })
            }
            [] => Ok(Parsed::Incomplete { total_hint: 0 }),
            [b'*', ..] => self.count(bytes, limits, args),
            _ => self.inline(bytes, limits),
        }
    }

    #[cold]
    fn resume(
        &mut self,
        bytes: &[u8],
        limits: &RequestLimits,
        args: &mut Vec<Span>,
    ) -> Result<Parsed, ProtocolError> {
        let mut place = self.place;
        match self.kind {
            Kind::Unknown | Kind::Inline => return self.inline(bytes, limits),
            Kind::Count => return self.count(bytes, limits, args),
            Kind::Arguments => {}
        }
        // Either the bytes of an argument were awaited, or the rest of the line with its length.
        let (length, start) = match self.awaited {
            Some(length) => (length as usize, place.at),
            None => match self.bulk_length(bytes, limits, &mut place)? {
                Some(found) => found,
                None => return Ok(incomplete(place.at, place.remaining)),
            },
        };
        let end = start + length;
        let Some(terminator) = bytes.get(end..end + 2) else {
            return Ok(self.await_bytes(place, start, length));
        };
        args.push(Span { start: start as u32, end: end as u32 });
        place.at = end + 2;
        place.remaining -= 1;
        place.loose |= terminator != b"\r\n";
        self.awaited = None;
        self.arguments(bytes, limits, args, place)
    }

    /// HOT: all arguments that are there, in one loop; the parser itself is written to only when
    /// bytes are missing.
    #[inline]
    fn arguments(
        &mut self,
        bytes: &[u8],
        limits: &RequestLimits,
        args: &mut Vec<Span>,
        mut place: Place,
    ) -> Result<Parsed, ProtocolError> {
        // Spans are u32: what they cannot express is too long, whatever the configuration says.
        let total_max = limits.total_max.min(u64::from(u32::MAX)) as usize;
        while place.remaining > 0 {
            let rest = bytes.get(place.at..).unwrap_or_default();
            let (length, start) = match rest {
                [b'$', tail @ ..] => match number::short_length(tail) {
                    Some((length, taken)) if length as u64 <= limits.bulk_max => {
                        (length, place.at + 1 + taken)
                    }
                    _ => match self.bulk_length(bytes, limits, &mut place)? {
                        Some(found) => found,
                        None => return Ok(incomplete(place.at, place.remaining)),
                    },
                },
                _ => match self.bulk_length(bytes, limits, &mut place)? {
                    Some(found) => found,
                    None => return Ok(incomplete(place.at, place.remaining)),
                },
            };
            let end = start + length;
            if end + 2 > total_max {
                return Err(ProtocolError::TooBigRequest);
            }
            match bytes.get(end..end + 2) {
                Some(b"\r\n") => {}
                Some(_) => place.loose = true,
                None => {
                    return Ok(self.await_bytes(place, start, length));
                }
            }
            args.push(Span { start: start as u32, end: end as u32 });
            place.at = end + 2;
            place.remaining -= 1;
        }
        if self.kind != Kind::Unknown {
            *self = Self::default();
        }
        Ok(Parsed::Array { len: place.at, canonical: !place.loose })
    }

    /// Notes that the argument at `start` has not come whole.
    #[cold]
    fn await_bytes(&mut self, place: Place, start: usize, length: usize) -> Parsed {
        self.kind = Kind::Arguments;
        self.place = Place { at: start, ..place };
        self.awaited = Some(length as u32);
        incomplete(start + length + 2, place.remaining - 1)
    }

    /// Any `$…` line, the slow and exact way: length and where the bytes start. `None`: the line
    /// has not come whole, and the parser has noted its place.
    #[cold]
    fn bulk_length(
        &mut self,
        bytes: &[u8],
        limits: &RequestLimits,
        place: &mut Place,
    ) -> Result<Option<(usize, usize)>, ProtocolError> {
        let too_big = ProtocolError::TooBigBulkCount;
        let Some(line) = self.line(bytes, place.at, limits, too_big)? else {
            self.kind = Kind::Arguments;
            self.place = *place;
            return Ok(None);
        };
        self.searched = 0;
        place.loose |= line.loose;
        match bytes.get(place.at..line.text_end) {
            Some([b'$', text @ ..]) => {
                let length = number::read_integer(text).and_then(|value| u64::try_from(value).ok());
                let length = length.ok_or(ProtocolError::InvalidBulkLength)?;
                if length > limits.bulk_max {
                    return Err(bulk_error(length, limits));
                }
                // Checked here as a sum of u64, so that no length can wrap the offsets below.
                if line.next as u64 + length + 2 > limits.total_max.min(u64::from(u32::MAX)) {
                    return Err(ProtocolError::TooBigRequest);
                }
                Ok(Some((length as usize, line.next)))
            }
            _ => {
                let got = bytes.get(place.at).copied().unwrap_or_default();
                Err(ProtocolError::ExpectedDollar(got))
            }
        }
    }

    /// The `*…` line, the slow and exact way, and then the arguments.
    fn count(
        &mut self,
        bytes: &[u8],
        limits: &RequestLimits,
        args: &mut Vec<Span>,
    ) -> Result<Parsed, ProtocolError> {
        let Some(line) = self.line(bytes, 0, limits, ProtocolError::TooBigMultibulkCount)? else {
            self.kind = Kind::Count;
            return Ok(Parsed::Incomplete { total_hint: 0 });
        };
        let text = bytes.get(1..line.text_end).unwrap_or_default();
        let count = number::read_integer(text).ok_or(ProtocolError::InvalidMultibulkLength)?;
        self.searched = 0;
        if count <= 0 {
            *self = Self::default();
            return Ok(Parsed::Empty { len: line.next });
        }
        if count > i64::from(limits.arguments_max) {
            let within = count <= i64::from(limits::REQUEST_ARGUMENTS_MAX);
            return Err(if within {
                count_error(limits)
            } else {
                ProtocolError::InvalidMultibulkLength
            });
        }
        self.kind = Kind::Arguments;
        let place = Place { at: line.next, remaining: count as u32, loose: line.loose };
        self.arguments(bytes, limits, args, place)
    }

    /// The line that starts at `start` and ends at a CR and one byte more. `None`: not all of it is
    /// there.
    ///
    /// The server looks for the CR with `strchr`, so that a NUL hides the rest; such a line never
    /// ends and is too big in the end. A line is too big as soon as its CR cannot be within the
    /// limit, however the bytes are cut.
    fn line(
        &mut self,
        bytes: &[u8],
        start: usize,
        limits: &RequestLimits,
        too_big: ProtocolError,
    ) -> Result<Option<Line>, ProtocolError> {
        let from = start + self.searched as usize;
        let unseen = window(bytes, from, start + limits.inline_max as usize + 1);
        let found = memchr::memchr2(b'\r', 0, unseen);
        let seen = from + found.unwrap_or(unseen.len()) - start;
        match unseen.get(found.unwrap_or(unseen.len())) {
            Some(b'\r') => {
                let text_end = start + seen;
                self.searched = seen as u32;
                let after = bytes.get(text_end + 1);
                Ok(after.map(|byte| Line { text_end, next: text_end + 2, loose: *byte != b'\n' }))
            }
            _ if bytes.len().saturating_sub(start) > limits.inline_max as usize => Err(too_big),
            _ => {
                self.searched = seen as u32;
                Ok(None)
            }
        }
    }

    /// A line that is not an array, ended by LF.
    fn inline(&mut self, bytes: &[u8], limits: &RequestLimits) -> Result<Parsed, ProtocolError> {
        if bytes.starts_with(TLS_HANDSHAKE) {
            return Err(ProtocolError::Tls);
        }
        let from = self.searched as usize;
        let unseen = window(bytes, from, limits.inline_max as usize + 1);
        // A NUL hides the rest, see `line`.
        let found = memchr::memchr2(b'\n', 0, unseen);
        let seen = from + found.unwrap_or(unseen.len());
        if found.is_some() && bytes.get(seen) == Some(&b'\n') {
            *self = Self::default();
            let len = seen + 1;
            let blank = bytes.get(..len).unwrap_or_default().iter().all(|byte| is_space(*byte));
            return Ok(if blank { Parsed::Empty { len } } else { Parsed::Inline { len } });
        }
        if bytes.len() > limits.inline_max as usize {
            return Err(ProtocolError::TooBigInline);
        }
        self.kind = Kind::Inline;
        self.searched = seen as u32;
        Ok(Parsed::Incomplete { total_hint: 0 })
    }
}

/// How a TLS client begins: a handshake record of any version.
const TLS_HANDSHAKE: &[u8] = &[0x16, 0x03];

/// `bytes[from..to]`, as far as there are any.
fn window(bytes: &[u8], from: usize, to: usize) -> &[u8] {
    bytes.get(from..to.min(bytes.len())).unwrap_or_default()
}

/// C's `isspace` in the C locale.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// At least `known` bytes, and `arguments` more of at least `$0\r\n\r\n` each.
#[inline]
fn incomplete(known: usize, arguments: u32) -> Parsed {
    Parsed::Incomplete { total_hint: known as u64 + u64::from(arguments) * 6 }
}

#[cold]
fn count_error(limits: &RequestLimits) -> ProtocolError {
    if limits.is_unauthenticated() {
        ProtocolError::UnauthenticatedMultibulkLength
    } else {
        ProtocolError::InvalidMultibulkLength
    }
}

#[cold]
fn bulk_error(length: u64, limits: &RequestLimits) -> ProtocolError {
    if limits.is_unauthenticated() && length <= limits::REQUEST_BULK_MAX {
        ProtocolError::UnauthenticatedBulkLength
    } else {
        ProtocolError::InvalidBulkLength
    }
}

/// Whether a first word shows that a browser was made to speak to us (redis-server's
/// `processCommand`): the connection is closed without an answer.
pub fn is_cross_protocol(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:")
}

/// Appends a whole request in its canonical form.
pub fn encode_request<'a>(parts: impl ExactSizeIterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    write_request_header(out, parts.len());
    for part in parts {
        write_request_bulk(out, part);
    }
}

/// Appends `*argc`.
#[inline]
pub fn write_request_header(out: &mut Vec<u8>, argc: usize) {
    number::append_header(out, b'*', argc);
}

/// Appends one argument.
#[inline]
pub fn write_request_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len() + 16);
    number::append_header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}
