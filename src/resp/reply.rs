//! What a node sends: where a reply ends, and the little that a proxy reads in it. RESP2 and RESP3.
//!
//! A frame is followed by one counter, the elements still to come, at whatever depth: a leaf takes
//! one away, an aggregate of n adds n - 1, a map 2n - 1, an attribute 2n, for it is no element
//! itself. So depth costs nothing.
//! Not here: trees (`value`); replies that we originate (`write`); what is done about an error
//! reply (`proxy`).

use std::fmt;

use crate::limits;
use crate::resp::number;

/// How far one call of [`ReplyScanner::scan`] came.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Scanned {
    /// The current frame ends after `len` bytes of this slice.
    Complete { len: usize },
    /// All bytes of the slice belong to the current frame and it goes on.
    Partial,
}

/// Why a node's bytes are not a reply. The connection is of no more use.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// A bulk string is not followed by CR LF.
    BadEnd,
    /// A length is no number, or negative where that means nothing.
    BadLength,
    /// A byte that starts no known type.
    BadType(u8),
    /// A bulk string of over [`limits::REPLY_BULK_MAX`] bytes; here that many at least.
    TooLong { length: u64 },
    /// More than [`limits::REPLY_ELEMENTS_MAX`] elements are still to come.
    TooManyElements,
    /// Only from `value`: deeper than [`limits::VALUE_DEPTH_MAX`].
    TooDeep,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadEnd => write!(f, "bulk string not followed by cr lf"),
            Self::BadLength => write!(f, "invalid length in a reply"),
            Self::BadType(byte) => write!(f, "unknown reply type 0x{byte:02x}"),
            Self::TooLong { length } => {
                write!(f, "bulk string of {length} bytes or more is too long")
            }
            Self::TooManyElements => write!(f, "too many elements in a reply"),
            Self::TooDeep => write!(f, "reply nested too deeply"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Follows one node's stream of replies, however it is cut. Keeps no bytes and nothing on the heap;
/// the default is between two frames.
#[derive(Clone, Debug, Default)]
pub struct ReplyScanner {
    /// Elements still to come, the current one included. 0: between two frames.
    pending: u64,
    /// In a header: the number so far. In a bulk string: bytes still to come, without its end.
    number: u64,
    part: Part,
    /// Type byte of the header that is being read.
    kind: u8,
    digits: u8,
    negative: bool,
    frame_type: u8,
}

/// Which byte of an element comes next.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Type,
    Line,
    LineLf,
    Number,
    NumberLf,
    Body,
    BodyCr,
    BodyLf,
}

impl ReplyScanner {
    /// Follows the current frame through `bytes`. Call it with each byte once, in order; after
    /// `Complete` go on with what follows `len`. An error is final.
    #[inline]
    pub fn scan(&mut self, bytes: &[u8]) -> Result<Scanned, FrameError> {
        if self.pending == 0 {
            let Some(first) = bytes.first() else { return Ok(Scanned::Partial) };
            self.frame_type = *first;
            if let Some(len) = whole_leaf(bytes) {
                return Ok(Scanned::Complete { len });
            }
            self.pending = 1;
        }
        self.go_on(bytes)
    }

    /// Whether the next byte is the first of a frame.
    #[inline]
    pub fn at_start(&self) -> bool {
        self.pending == 0
    }

    /// First byte of the current frame or, between two frames, of the last one. 0 before the first.
    /// `>` is a push; `|` an attribute, within the same frame as the reply that follows it.
    #[inline]
    pub fn frame_type(&self) -> u8 {
        self.frame_type
    }

    fn go_on(&mut self, bytes: &[u8]) -> Result<Scanned, FrameError> {
        let mut at = 0;
        while self.pending > 0 {
            let rest = bytes.get(at..).unwrap_or_default();
            if self.part == Part::Type {
                if let Some(len) = whole_leaf(rest) {
                    at += len;
                    self.pending -= 1;
                    continue;
                }
                if let Some((kind, count, len)) = short_aggregate(rest) {
                    at += len;
                    self.expect(kind, count)?;
                    continue;
                }
            }
            if rest.is_empty() {
                return Ok(Scanned::Partial);
            }
            at += self.element(rest)?;
        }
        Ok(Scanned::Complete { len: at })
    }

    /// Counts the elements of an aggregate whose header has been read.
    fn expect(&mut self, kind: u8, count: u64) -> Result<(), FrameError> {
        if count > limits::REPLY_ELEMENTS_MAX {
            return Err(FrameError::TooManyElements);
        }
        self.pending = match kind {
            b'|' => self.pending + 2 * count,
            b'%' => self.pending - 1 + 2 * count,
            _ => self.pending - 1 + count,
        };
        if self.pending > limits::REPLY_ELEMENTS_MAX {
            return Err(FrameError::TooManyElements);
        }
        Ok(())
    }

    /// The exact way, for what is cut, long or wrong: goes on until the current leaf or header is
    /// over or `bytes` are. Returns how many of them it took.
    fn element(&mut self, bytes: &[u8]) -> Result<usize, FrameError> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at).copied() {
            match self.part {
                Part::Type => self.type_byte(byte)?,
                Part::Line => {
                    let rest = bytes.get(at..).unwrap_or_default();
                    let Some(found) = memchr::memchr(b'\r', rest) else { return Ok(bytes.len()) };
                    at += found;
                    self.part = Part::LineLf;
                }
                // A CR alone is part of the line.
                Part::LineLf if byte == b'\n' => self.leaf_over(),
                Part::LineLf if byte == b'\r' => {}
                Part::LineLf => self.part = Part::Line,
                Part::Number => self.number_byte(byte)?,
                Part::NumberLf if byte == b'\n' => self.number_over()?,
                Part::NumberLf => return Err(FrameError::BadLength),
                Part::Body => {
                    let taken = self.number.min((bytes.len() - at) as u64);
                    self.number -= taken;
                    at += taken as usize;
                    if self.number == 0 {
                        self.part = Part::BodyCr;
                    }
                    continue;
                }
                Part::BodyCr if byte == b'\r' => self.part = Part::BodyLf,
                Part::BodyLf if byte == b'\n' => self.leaf_over(),
                Part::BodyCr | Part::BodyLf => return Err(FrameError::BadEnd),
            }
            at += 1;
            if self.part == Part::Type {
                break;
            }
        }
        Ok(at)
    }

    fn type_byte(&mut self, byte: u8) -> Result<(), FrameError> {
        self.part = match byte {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => Part::Line,
            b'$' | b'=' | b'!' | b'*' | b'%' | b'~' | b'>' | b'|' => Part::Number,
            other => return Err(FrameError::BadType(other)),
        };
        self.kind = byte;
        self.number = 0;
        self.digits = 0;
        self.negative = false;
        Ok(())
    }

    fn number_byte(&mut self, byte: u8) -> Result<(), FrameError> {
        match byte {
            b'-' if self.digits == 0 && !self.negative => self.negative = true,
            b'0'..=b'9' if self.digits == 0 || self.number > 0 => {
                self.number = self.number * 10 + u64::from(byte - b'0');
                self.digits += 1;
                self.bounded()?;
            }
            b'\r' if self.digits > 0 => self.part = Part::NumberLf,
            _ => return Err(FrameError::BadLength),
        }
        Ok(())
    }

    /// Refused digit by digit, so that neither the number nor the count of its digits can overflow.
    fn bounded(&self) -> Result<(), FrameError> {
        match self.kind {
            b'$' | b'=' | b'!' if self.number > limits::REPLY_BULK_MAX => {
                Err(FrameError::TooLong { length: self.number })
            }
            b'$' | b'=' | b'!' => Ok(()),
            _ if self.number > limits::REPLY_ELEMENTS_MAX => Err(FrameError::TooManyElements),
            _ => Ok(()),
        }
    }

    fn number_over(&mut self) -> Result<(), FrameError> {
        if self.negative {
            // RESP2's null string and null array; no other length is negative.
            if self.number != 1 || !matches!(self.kind, b'$' | b'*') {
                return Err(FrameError::BadLength);
            }
            self.leaf_over();
            return Ok(());
        }
        match self.kind {
            b'$' | b'=' | b'!' => {
                self.part = if self.number == 0 { Part::BodyCr } else { Part::Body };
                Ok(())
            }
            kind => {
                self.part = Part::Type;
                self.expect(kind, self.number)
            }
        }
    }

    fn leaf_over(&mut self) {
        self.part = Part::Type;
        self.pending -= 1;
    }
}

/// HOT: bytes of the leaf at the front of `bytes`, if it is there whole and of a usual form. `None`
/// leaves it to the exact way.
#[inline(always)]
fn whole_leaf(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'$', tail @ ..] => match number::short_length(tail) {
            Some((length, taken)) => {
                let end = 1 + taken + length;
                (bytes.get(end..end + 2)? == b"\r\n").then_some(end + 2)
            }
            None => tail.starts_with(b"-1\r\n").then_some(5),
        },
        [b'+', b'O', b'K', b'\r', b'\n', ..] => Some(5),
        [b':', _, b'\r', b'\n', ..] => Some(4),
        [b':' | b'+' | b'-' | b'_' | b'#' | b',' | b'(', ..] => whole_line(bytes),
        _ => None,
    }
}

/// HOT: bytes of the reply at the front of `bytes`, if it is there whole, of a usual form, neither
/// an aggregate nor an error.
#[inline(always)]
pub fn common_leaf(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'-', ..] => None,
        _ => whole_leaf(bytes),
    }
}

/// Bytes of the line at the front of `bytes`, its end included. Most are short: `memchr` only for
/// the rest.
#[inline]
fn whole_line(bytes: &[u8]) -> Option<usize> {
    let near = bytes.get(..bytes.len().min(24))?;
    let cr = match near.iter().position(|byte| *byte == b'\r') {
        Some(cr) => cr,
        None => near.len() + memchr::memchr(b'\r', bytes.get(near.len()..)?)?,
    };
    (bytes.get(cr + 1) == Some(&b'\n')).then_some(cr + 2)
}

/// Type, count and header length of the aggregate at the front of `bytes`, if its count is short.
#[inline(always)]
fn short_aggregate(bytes: &[u8]) -> Option<(u8, u64, usize)> {
    match bytes {
        [kind @ (b'*' | b'%' | b'~' | b'>' | b'|'), tail @ ..] => {
            let (count, taken) = number::short_length(tail)?;
            Some((*kind, count as u64, 1 + taken))
        }
        _ => None,
    }
}

/// What an error reply says, as far as a proxy acts upon it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    Ask,
    ClusterDown,
    ExecAbort,
    Loading,
    MasterDown,
    Moved,
    NoAuth,
    NoPerm,
    NoScript,
    Other,
    ReadOnly,
    TryAgain,
    /// A blocked command was given up because its node is no primary any more.
    Unblocked,
}

/// The kind of an error reply by its first word. `line` starts at the `-` (or the `!` of a bulk
/// error) and need not be whole. What is no error is `Other`.
pub fn classify_error(line: &[u8]) -> ErrorKind {
    let text = match line {
        [b'-', text @ ..] => text,
        [b'!', tail @ ..] => match memchr::memchr(b'\n', tail) {
            Some(lf) => tail.get(lf + 1..).unwrap_or_default(),
            None => return ErrorKind::Other,
        },
        _ => return ErrorKind::Other,
    };
    match word(text) {
        b"ASK" => ErrorKind::Ask,
        b"CLUSTERDOWN" => ErrorKind::ClusterDown,
        b"EXECABORT" => ErrorKind::ExecAbort,
        b"LOADING" => ErrorKind::Loading,
        b"MASTERDOWN" => ErrorKind::MasterDown,
        b"MOVED" => ErrorKind::Moved,
        b"NOAUTH" => ErrorKind::NoAuth,
        b"NOPERM" => ErrorKind::NoPerm,
        b"NOSCRIPT" => ErrorKind::NoScript,
        b"READONLY" => ErrorKind::ReadOnly,
        b"TRYAGAIN" => ErrorKind::TryAgain,
        b"UNBLOCKED" if text.starts_with(b"UNBLOCKED force") => ErrorKind::Unblocked,
        _ => ErrorKind::Other,
    }
}

/// The first word of an error line, without its dash; empty for other replies.
pub fn first_word(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"-").map(word).unwrap_or_default()
}

/// Slot and raw `host:port` of `-MOVED 3999 127.0.0.1:6381` and `-ASK …`. The host may be empty or
/// `?`. `None` if the line is neither, or the slot is not a strict number of 0..=16383.
pub fn parse_redirect(line: &[u8]) -> Option<(u16, &[u8])> {
    const SLOT_MAX: u16 = 16383;
    let tail = line.strip_prefix(b"-MOVED ").or_else(|| line.strip_prefix(b"-ASK "))?;
    let slot_text = word(tail);
    let slot = u16::try_from(number::read_integer(slot_text)?).ok()?;
    let endpoint = word(tail.get(slot_text.len()..)?.strip_prefix(b" ")?);
    (slot <= SLOT_MAX && endpoint.contains(&b':')).then_some((slot, endpoint))
}

/// The bytes before the first blank or line end.
fn word(text: &[u8]) -> &[u8] {
    let end = text.iter().position(|byte| matches!(byte, b' ' | b'\r' | b'\n'));
    text.get(..end.unwrap_or(text.len())).unwrap_or_default()
}

/// Header of an array, set, push, map or attribute: its type byte, the number in it (-1: null
/// array; a map has twice as many elements) and the bytes that it takes. `None` if it is something
/// else, cut or wrong.
pub fn aggregate_header(bytes: &[u8]) -> Option<(u8, i64, usize)> {
    if let Some((kind, count, len)) = short_aggregate(bytes) {
        return Some((kind, count as i64, len));
    }
    let (kind, tail) = bytes.split_first()?;
    if !matches!(kind, b'*' | b'%' | b'~' | b'>' | b'|') {
        return None;
    }
    let cr = tail.iter().take(24).position(|byte| *byte == b'\r')?;
    let count = number::read_integer(tail.get(..cr)?)?;
    let allowed = count >= 0 || (count == -1 && *kind == b'*');
    (allowed && tail.get(cr + 1) == Some(&b'\n')).then_some((*kind, count, cr + 3))
}

/// Elements and header length of the array or set at the front of `bytes`. `None` for all else: in
/// a map or behind an attribute stand other numbers of elements, and a null array has none.
pub fn list_header(bytes: &[u8]) -> Option<(usize, usize)> {
    match aggregate_header(bytes)? {
        (b'*' | b'~', count, len) => Some((usize::try_from(count).ok()?, len)),
        _ => None,
    }
}

/// Bytes of the whole frame at the front of `bytes`. `None` if it is cut or wrong.
#[inline]
pub fn first_frame_len(bytes: &[u8]) -> Option<usize> {
    match ReplyScanner::default().scan(bytes) {
        Ok(Scanned::Complete { len }) => Some(len),
        Ok(Scanned::Partial) | Err(_) => None,
    }
}

/// The number in a whole integer reply, `:n` and its line end.
pub fn parse_integer(bytes: &[u8]) -> Option<i64> {
    number::read_integer(bytes.strip_prefix(b":")?.strip_suffix(b"\r\n")?)
}
