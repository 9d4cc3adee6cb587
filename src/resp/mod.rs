//! Bytes to messages and back: RESP2, RESP3, inline commands. Pure.
//!
//! Not here: what a command means (`command`), where it goes (`proxy`).

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
