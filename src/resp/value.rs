//! A whole reply as a tree, for the topology thread and for tests.
//!
//! Not here: the path of a request, which only frames replies (`reply`). A tree costs an allocation
//! per element.

use crate::limits;
use crate::resp::number;
use crate::resp::reply::FrameError;

/// One reply. Attributes are read and left out. RESP2's null string and null array are
/// [`Value::Null`] too.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    Null,
    Simple(Vec<u8>),
    /// Code and message, of `-` and `!`.
    Error(Vec<u8>),
    Integer(i64),
    Bulk(Vec<u8>),
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Set(Vec<Value>),
    Push(Vec<Value>),
    Double(f64),
    Boolean(bool),
    /// Decimal digits, with a sign or without.
    BigNumber(Vec<u8>),
    /// The text, without its format.
    Verbatim(Vec<u8>),
}

impl Value {
    /// The text of a string of any kind (simple, bulk, verbatim).
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Simple(bytes) | Self::Bulk(bytes) | Self::Verbatim(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The same, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()?).ok()
    }

    /// An integer; not a string of digits.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(value) => Some(*value),
            _ => None,
        }
    }

    /// The elements of an array, set or push.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Self::Array(elements) | Self::Set(elements) | Self::Push(elements) => Some(elements),
            _ => None,
        }
    }

    /// Keys and values of a map, or of the flat array of even length that stands for one in RESP2.
    pub fn pairs(&self) -> Option<Vec<(&Value, &Value)>> {
        match self {
            Self::Map(pairs) => Some(pairs.iter().map(|(key, value)| (key, value)).collect()),
            Self::Array(elements) => Some(flat_pairs(elements)?.collect()),
            _ => None,
        }
    }

    /// The value of the first pair whose key is the string `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let is_key = |candidate: &Value| candidate.as_bytes() == Some(key.as_bytes());
        match self {
            Self::Map(pairs) => pairs.iter().find(|(name, _)| is_key(name)).map(|(_, value)| value),
            Self::Array(elements) => {
                flat_pairs(elements)?.find(|(name, _)| is_key(name)).map(|(_, value)| value)
            }
            _ => None,
        }
    }
}

/// `None` if one is left over.
fn flat_pairs(elements: &[Value]) -> Option<impl Iterator<Item = (&Value, &Value)>> {
    let pairs = elements.chunks_exact(2);
    pairs.remainder().is_empty().then(|| {
        pairs.filter_map(|pair| match pair {
            [key, value] => Some((key, value)),
            _ => None,
        })
    })
}

/// The reply at the front of `bytes` and its length. `None`: not all of it has come. It starts anew
/// at each call: whoever collects a long reply in pieces asks [`crate::resp::reply::ReplyScanner`]
/// when it is whole.
/// Errors: bytes that are no reply, also within a line, or a depth of over
/// [`limits::VALUE_DEPTH_MAX`].
pub fn parse_value(bytes: &[u8]) -> Result<Option<(Value, usize)>, FrameError> {
    let mut reader = Reader { bytes, at: 0 };
    match reader.value(1) {
        Ok(value) => Ok(Some((value, reader.at))),
        Err(Stop::Incomplete) => Ok(None),
        Err(Stop::Wrong(error)) => Err(error),
    }
}

enum Stop {
    Incomplete,
    Wrong(FrameError),
}

const BAD_LENGTH: Stop = Stop::Wrong(FrameError::BadLength);

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Recursion, bounded by the depth. `depth`: of this value, the outermost being 1.
    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        if depth > limits::VALUE_DEPTH_MAX {
            return Err(Stop::Wrong(FrameError::TooDeep));
        }
        loop {
            let kind = *self.bytes.get(self.at).ok_or(Stop::Incomplete)?;
            self.at += 1;
            match kind {
                b'|' => {
                    let count = self.count()?.ok_or(BAD_LENGTH)?;
                    for _ in 0..count * 2 {
                        self.value(depth + 1)?;
                    }
                }
                b'*' | b'~' | b'>' | b'%' => return self.aggregate(kind, depth),
                b'$' | b'=' | b'!' => return self.text(kind),
                b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => return self.scalar(kind),
                other => return Err(Stop::Wrong(FrameError::BadType(other))),
            }
        }
    }

    fn aggregate(&mut self, kind: u8, depth: usize) -> Result<Value, Stop> {
        let Some(count) = self.count()? else {
            return if kind == b'*' { Ok(Value::Null) } else { Err(BAD_LENGTH) };
        };
        // Nothing is reserved by the count: it is only a claim.
        if kind == b'%' {
            let mut pairs = Vec::new();
            for _ in 0..count {
                pairs.push((self.value(depth + 1)?, self.value(depth + 1)?));
            }
            return Ok(Value::Map(pairs));
        }
        let mut elements = Vec::new();
        for _ in 0..count {
            elements.push(self.value(depth + 1)?);
        }
        Ok(match kind {
            b'~' => Value::Set(elements),
            b'>' => Value::Push(elements),
            _ => Value::Array(elements),
        })
    }

    fn text(&mut self, kind: u8) -> Result<Value, Stop> {
        let Some(length) = self.length()? else {
            return if kind == b'$' { Ok(Value::Null) } else { Err(BAD_LENGTH) };
        };
        if length > limits::REPLY_BULK_MAX {
            return Err(Stop::Wrong(FrameError::TooLong { length }));
        }
        let end = self.at + length as usize;
        let text = self.bytes.get(self.at..end).ok_or(Stop::Incomplete)?;
        match self.bytes.get(end..end + 2) {
            Some(b"\r\n") => self.at = end + 2,
            Some(_) => return Err(Stop::Wrong(FrameError::BadEnd)),
            None => return Err(Stop::Incomplete),
        }
        match (kind, text) {
            (b'=', [_, _, _, b':', text @ ..]) => Ok(Value::Verbatim(text.to_vec())),
            (b'=', _) => Err(BAD_LENGTH),
            (b'!', text) => Ok(Value::Error(text.to_vec())),
            (_, text) => Ok(Value::Bulk(text.to_vec())),
        }
    }

    fn scalar(&mut self, kind: u8) -> Result<Value, Stop> {
        let line = self.line()?;
        match (kind, line) {
            (b'+', line) => Ok(Value::Simple(line.to_vec())),
            (b'-', line) => Ok(Value::Error(line.to_vec())),
            (b':', line) => number::read_integer(line).map(Value::Integer).ok_or(BAD_LENGTH),
            (b'_', b"") => Ok(Value::Null),
            (b'#', b"t") => Ok(Value::Boolean(true)),
            (b'#', b"f") => Ok(Value::Boolean(false)),
            (b',', line) => {
                let text = std::str::from_utf8(line).map_err(|_| BAD_LENGTH)?;
                text.parse().map(Value::Double).map_err(|_| BAD_LENGTH)
            }
            (b'(', line) => {
                let digits = line.strip_prefix(b"-").unwrap_or(line);
                let well_formed = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
                well_formed.then(|| Value::BigNumber(line.to_vec())).ok_or(BAD_LENGTH)
            }
            _ => Err(BAD_LENGTH),
        }
    }

    /// Elements of an aggregate; `None` for -1.
    fn count(&mut self) -> Result<Option<u64>, Stop> {
        match self.length()? {
            Some(count) if count > limits::REPLY_ELEMENTS_MAX => {
                Err(Stop::Wrong(FrameError::TooManyElements))
            }
            other => Ok(other),
        }
    }

    /// A length and its line end; `None` for -1.
    fn length(&mut self) -> Result<Option<u64>, Stop> {
        match number::read_integer(self.line()?) {
            Some(-1) => Ok(None),
            Some(length) => u64::try_from(length).map(Some).map_err(|_| BAD_LENGTH),
            None => Err(BAD_LENGTH),
        }
    }

    /// The bytes before the next CR LF.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = memchr::memmem::find(rest, b"\r\n").ok_or(Stop::Incomplete)?;
        self.at += end + 2;
        Ok(rest.get(..end).unwrap_or_default())
    }
}
