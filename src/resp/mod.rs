//! Bytes to messages and back: RESP2, RESP3, inline commands. Pure.
//!
//! Not here: what a command means (`command`), where it goes (`proxy`).

pub mod request;

mod inline;

pub mod reply;

pub mod write;

pub mod value;

pub mod number;

#[cfg(test)]
mod tests_reply;
#[cfg(test)]
mod tests_request;
#[cfg(test)]
mod tests_support;

/// The protocol that a conversation speaks.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Version {
    #[default]
    Resp2,
    Resp3,
}

/// A range of one request's bytes. Offsets in bytes from its first byte.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    /// The bytes of this range; what lies outside of `bytes` is cut off.
    #[inline]
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        let end = bytes.len().min(self.end as usize);
        bytes.get(self.start as usize..end).unwrap_or_default()
    }

    /// Bytes in the range.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a range of bytes, not a collection")]
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }
}
