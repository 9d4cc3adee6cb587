//! What a client takes along to the next process: what it has told of itself, and the bytes of
//! requests that are not run yet. Numbers are little-endian; texts have their length before them.
//!
//! Not here: when a client goes (`leaving`), its socket, the version of this form (`handover`).

use super::session::{ReplyMode, Session};
use crate::limits::CLIENT_DETAIL_MAX;
use crate::resp::Version;

/// Longest user name that comes along.
const USER_MAX: usize = 64 * 1024;

const AUTHENTICATED: u16 = 1;
const RESP3: u16 = 2;
const READONLY: u16 = 4;
const NO_EVICT: u16 = 8;
const NO_TOUCH: u16 = 16;
const HEARS_MOVING: u16 = 32;
const REPLY_OFF: u16 = 64;
const REPLY_SKIP_NEXT: u16 = 128;
const REPLY_SKIPPING: u16 = 256;

/// A client as it goes over. Ages in milliseconds: the clocks of two processes differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Parcel {
    pub id: u64,
    pub connected_ago: u64,
    pub active_ago: u64,
    /// When it was last read, microseconds of the host's clock: for telling how long that took.
    pub stopped_us: u64,
    /// A mark of the user's password (`Identity::mark_of`): it may be another over there.
    pub mark: [u8; 20],
    pub drawn: u32,
    pub database: u32,
    flags: u16,
    pub user: Option<String>,
    /// Name, library, its version.
    details: [Option<String>; 3],
    /// Of requests that are not run yet.
    pub bytes: Vec<u8>,
}

impl Parcel {
    pub fn of(session: &Session, mark: [u8; 20], now_ms: u64, bytes: Vec<u8>) -> Parcel {
        let mut flags = 0;
        for (flag, holds) in [
            (AUTHENTICATED, session.authenticated),
            (RESP3, session.version == Version::Resp3),
            (READONLY, session.readonly),
            (NO_EVICT, session.no_evict),
            (NO_TOUCH, session.no_touch),
            (HEARS_MOVING, session.hears_moving),
            (REPLY_OFF, session.reply == ReplyMode::Off),
            (REPLY_SKIP_NEXT, session.reply == ReplyMode::SkipNext),
            (REPLY_SKIPPING, session.reply == ReplyMode::Skipping),
        ] {
            flags |= if holds { flag } else { 0 };
        }
        let texts = [session.name(), session.lib_name(), session.lib_ver()];
        Parcel {
            id: session.id,
            connected_ago: now_ms.saturating_sub(session.connected_ms),
            active_ago: now_ms.saturating_sub(session.active_ms),
            stopped_us: 0,
            mark,
            drawn: session.drawn,
            database: session.database,
            flags,
            user: session.user.as_deref().map(str::to_owned),
            details: texts.map(|text| text.map(str::to_owned)),
            bytes,
        }
    }

    /// Into a session that has just been made.
    pub fn unpack(&self, session: &mut Session, now_ms: u64) {
        let has = |flag: u16| self.flags & flag != 0;
        session.id = self.id;
        session.connected_ms = now_ms.saturating_sub(self.connected_ago);
        session.active_ms = now_ms.saturating_sub(self.active_ago);
        session.drawn = self.drawn;
        session.database = self.database;
        session.user = self.user.as_deref().map(Box::from);
        session.authenticated = has(AUTHENTICATED);
        session.version = if has(RESP3) { Version::Resp3 } else { Version::Resp2 };
        session.readonly = has(READONLY);
        session.no_evict = has(NO_EVICT);
        session.no_touch = has(NO_TOUCH);
        session.hears_moving = has(HEARS_MOVING);
        session.reply = match () {
            () if has(REPLY_OFF) => ReplyMode::Off,
            () if has(REPLY_SKIP_NEXT) => ReplyMode::SkipNext,
            () if has(REPLY_SKIPPING) => ReplyMode::Skipping,
            () => ReplyMode::On,
        };
        let [name, lib_name, lib_ver] = &self.details;
        session.set_name(name.as_deref());
        session.set_lib_name(lib_name.as_deref());
        session.set_lib_ver(lib_ver.as_deref());
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.bytes.len());
        for number in [self.id, self.connected_ago, self.active_ago, self.stopped_us] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.mark);
        out.extend_from_slice(&self.drawn.to_le_bytes());
        out.extend_from_slice(&self.database.to_le_bytes());
        out.extend_from_slice(&self.flags.to_le_bytes());
        for text in [&self.user].into_iter().chain(&self.details) {
            out.push(u8::from(text.is_some()));
            let text = text.as_deref().unwrap_or_default();
            out.extend_from_slice(&(text.len() as u32).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        out.extend_from_slice(&self.bytes);
        out
    }

    /// `None`: it is none.
    pub fn decode(mut from: &[u8]) -> Option<Parcel> {
        let from = &mut from;
        let [id, connected_ago, active_ago] = [long(from)?, long(from)?, long(from)?];
        let stopped_us = long(from)?;
        let mark = take(from, 20)?.try_into().ok()?;
        let drawn = short(from)?;
        let database = short(from)?;
        let flags = u16::from_le_bytes(take(from, 2)?.try_into().ok()?);
        let user = text(from, USER_MAX)?;
        let mut detail = || text(from, CLIENT_DETAIL_MAX);
        let details = [detail()?, detail()?, detail()?];
        Some(Parcel {
            id,
            connected_ago,
            active_ago,
            stopped_us,
            mark,
            drawn,
            database,
            flags,
            user,
            details,
            bytes: from.to_vec(),
        })
    }
}

fn take<'a>(from: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(head)
}

fn long(from: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(take(from, 8)?.try_into().ok()?))
}

fn short(from: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(from, 4)?.try_into().ok()?))
}

/// A text that may be absent.
#[allow(clippy::option_option, reason = "not readable, absent, there")]
fn text(from: &mut &[u8], max: usize) -> Option<Option<String>> {
    let there = *take(from, 1)?.first()? != 0;
    let len = short(from)? as usize;
    if len > max {
        return None;
    }
    let text = std::str::from_utf8(take(from, len)?).ok()?.to_owned();
    Some(there.then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    fn session() -> Session {
        let address = SocketAddr::from(([127, 0, 0, 1], 6379));
        let mut session = Session::new(0, address, address, 1, false);
        session.id = 4711;
        session.user = Some("reports".into());
        session.authenticated = true;
        session.version = Version::Resp3;
        session.reply = ReplyMode::SkipNext;
        session.database = 3;
        session.hears_moving = true;
        session.no_touch = true;
        session.connected_ms = 100;
        session.active_ms = 900;
        session.set_lib_name(Some("library"));
        session
    }

    #[test]
    fn session_is_the_same_over_there() {
        let old = session();
        let sent = Parcel::of(&old, [5; 20], 1_000, b"*1\r\n$4\r\nPI".to_vec());
        let sent = Parcel { stopped_us: 1_700_000_000_000_000, ..sent };
        let came = Parcel::decode(&sent.encode()).unwrap();
        assert_eq!(came, sent);
        assert_eq!(came.bytes, b"*1\r\n$4\r\nPI");
        let mut new = Session::new(1, old.peer, old.local, 5_000, false);
        came.unpack(&mut new, 5_000);
        assert_eq!((new.connected_ms, new.active_ms), (4_100, 4_900));
        new.connected_ms = old.connected_ms;
        new.active_ms = old.active_ms;
        assert_eq!(format!("{new:?}"), format!("{old:?}"));
    }

    #[test]
    fn what_is_no_parcel_is_refused_and_never_panics() {
        let whole = Parcel::of(&session(), [5; 20], 1_000, Vec::new()).encode();
        for len in 0..whole.len() {
            assert_eq!(Parcel::decode(&whole[..len]), None, "{len} bytes");
        }
        for at in 0..whole.len() {
            let mut bent = whole.clone();
            bent[at] ^= 0xff;
            let _ = Parcel::decode(&bent);
        }
    }
}
