//! WAIT: how many replicas have what the client wrote.
//!
//! A node's own WAIT speaks of the writes of the connection that asks, and the client's writes went
//! over connections that all share. So each primary is asked how far it has written and how far its
//! replicas have confirmed (INFO replication), which covers everything that was answered before;
//! and again, until as many as wanted have come that far or the time is over. In between goes a
//! WAIT for more replicas than there are: it makes the primary ask them for a confirmation at once.
//! The answer is the least over all primaries. A primary whose connection broke after it was asked
//! may have lost what the client wrote: that is an error.
//!
//! Not here: WAITAOF (`synced`).

use super::Proxy;
use super::dispatch::{Asked, Ran};
use super::launch::Bytes;
use super::local::errors;
use super::mode::Leg;
use super::request::Marks;
use super::split::Merge;
use super::types::NONE;
use crate::command::Args;
use crate::resp::number::read_integer;
use crate::resp::request::encode_request;
use crate::resp::{Version, write};

/// `INFO replication`, as a node reads it.
const INFO: &[u8] = b"*2\r\n$4\r\nINFO\r\n$11\r\nreplication\r\n";

/// More replicas than any primary has.
const ALL: &[u8] = b"1000000";

/// Between two questions: twice as long each time.
const PAUSE_MS_FIRST: u32 = 2;
const PAUSE_MS_MAX: u32 = 100;

impl Proxy {
    pub(super) fn run_wait(&mut self, asked: Asked, args: &Args) -> Ran {
        let c = asked.client;
        let number = |word| read_integer(args.get(word).unwrap_or_default());
        let (wanted, timeout_ms) = match (number(1), number(2)) {
            (None, _) => return self.answer_with(c, errors::not_integer),
            (_, None) => return self.answer_with(c, errors::timeout_not_integer),
            (_, Some(..0)) => return self.answer_with(c, errors::timeout_negative),
            (Some(wanted), Some(timeout)) => (wanted, timeout.unsigned_abs()),
        };
        let slots = match self.primaries_to_wait_at(asked) {
            Ok(slots) => slots,
            Err(ran) => return ran,
        };
        let legs = slots.len();
        self.begin_block(c, (timeout_ms > 0).then_some(timeout_ms), legs as u32);
        if let Some(blocked) = self.blocked_of(c) {
            blocked.wanted = wanted;
            blocked.primaries = vec![Leg { target: None, pause_ms: PAUSE_MS_FIRST }; legs];
        }
        let marks = asked.marks.with(Marks::RETRY_SAFE);
        let s = self.open_waiting_legs(asked, marks, Merge::Min, &slots);
        for part in 0..legs {
            self.launch_part(s, part, Bytes::Copy(INFO));
        }
        self.clients[c].session.command_done();
        Ran::Yes
    }

    /// Asks a primary, over a backend of the client's own since WAIT holds up what comes behind it.
    pub(super) fn launch_question(&mut self, r: u32, node: u16, version: Version, bytes: Bytes) {
        let Some(b) = self.lend_private(self.requests[r].client, node, version) else {
            return self.fail(r, errors::blocking_cap);
        };
        self.enqueue(r, b, bytes);
    }

    /// Whether a leg is part of a WAIT.
    pub(super) fn is_wait_leg(&self, r: u32) -> bool {
        let entry = &self.requests[r];
        let s = entry.split;
        s != NONE && entry.marks.has(Marks::PRIVATE) && self.splits[s].merge == Merge::Min
    }

    /// Whether the time of a client's WAIT is over: a primary that cannot be asked counts for
    /// nothing.
    pub(super) fn wait_is_over(&mut self, c: u32) -> bool {
        let now_ms = self.now.ms;
        let blocked = self.blocked_of(c).filter(|blocked| !blocked.primaries.is_empty());
        blocked.is_some_and(|of| of.timeout_ms.is_some() && of.left_ms(now_ms) == 0)
    }

    /// A primary has answered. `true`: the leg's own reply is in `out`; else it was asked again.
    pub(super) fn count_replicas(&mut self, r: u32, reply: &[u8], out: &mut Vec<u8>) -> bool {
        if reply.first() == Some(&b'-') {
            // The whole is this error, whatever the others may say.
            self.end_other_legs(r);
        }
        let entry = &self.requests[r];
        let (c, b, part) = (entry.client, entry.backend, entry.part as usize);
        let now_ms = self.now.ms;
        let written = field(reply, b"master_repl_offset:");
        let Some(address) = self.backends.get(b as usize).map(|backend| backend.address) else {
            // It was never sent.
            out.extend_from_slice(reply);
            return true;
        };
        let Some(blocked) = self.blocked_of(c) else {
            out.extend_from_slice(reply);
            return true;
        };
        let (left_ms, wanted) = (blocked.left_ms(now_ms), blocked.wanted);
        let endless = blocked.timeout_ms.is_none();
        let leg = blocked.primaries.get_mut(part);
        let first = written.map(|written| (address, written));
        let Some((asked, leg)) = leg.and_then(|leg| Some((leg.target.or(first)?, leg))) else {
            // An error, or CLIENT UNBLOCK.
            out.extend_from_slice(reply);
            return true;
        };
        leg.target = Some(asked);
        if asked.0 != address {
            // The node has left, and its entry is another's: nobody can be asked any more.
            write::integer(out, 0);
            return true;
        }
        let target = asked.1;
        let (count, online) = (confirmed(reply, target), confirmed(reply, i64::MIN));
        // What they confirmed of themselves is up to a second old.
        let asked = leg.pause_ms > PAUSE_MS_FIRST || count == online;
        let enough = count >= wanted && asked;
        if written.is_none() || enough || (!endless && left_ms == 0) {
            match written {
                Some(_) => write::integer(out, count),
                None => out.extend_from_slice(reply),
            }
            return true;
        }
        let pause_ms = leg.pause_ms;
        leg.pause_ms = (2 * pause_ms).min(PAUSE_MS_MAX);
        // 0 would be for ever.
        let most_ms = if endless { u64::MAX } else { left_ms.max(1) };
        let pause_ms = most_ms.min(pause_ms.into());
        let pause = pause_ms.to_string();
        self.requests[r].since = now_ms as u32;
        self.enqueue_internal(b, |out| {
            encode_request([b"WAIT".as_slice(), ALL, pause.as_bytes()].into_iter(), out);
        });
        self.mark_irregular(r);
        self.enqueue(r, b, Bytes::Copy(INFO));
        false
    }
}

/// The number behind `label` in an INFO reply.
fn field(reply: &[u8], label: &[u8]) -> Option<i64> {
    let text = reply.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(label))?;
    read_integer(text.trim_ascii_end())
}

/// Replicas that have confirmed everything up to `target`.
fn confirmed(reply: &[u8], target: i64) -> i64 {
    let lines = reply.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"slave"));
    let reached = lines.filter(|line| {
        let mut fields = line.trim_ascii_end().split(|&byte| byte == b',');
        let offset = fields.find_map(|field| field.strip_prefix(b"offset=")).and_then(read_integer);
        let online = line.windows(13).any(|window| window == b",state=online");
        online && offset.is_some_and(|offset| offset >= target)
    });
    reached.count() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_count_that_have_come_far_enough() {
        let reply = b"$9\r\n# Replication\r\nrole:master\r\nconnected_slaves:3\r\n\
            slave0:ip=127.0.0.1,port=1,state=online,offset=98,lag=1\r\n\
            slave1:ip=127.0.0.1,port=2,state=online,offset=99,lag=0\r\n\
            slave2:ip=127.0.0.1,port=3,state=wait_bgsave,offset=99,lag=0\r\n\
            master_repl_offset:99\r\nsecond_repl_offset:-1\r\n\r\n";
        assert_eq!(field(reply, b"master_repl_offset:"), Some(99));
        assert_eq!(confirmed(reply, 99), 1);
        assert_eq!(confirmed(reply, 98), 2);
        assert_eq!(field(b"-NOPERM no\r\n", b"master_repl_offset:"), None);
    }
}
