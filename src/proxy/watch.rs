//! WATCH and UNWATCH: a backend of the client's own holds the guard from WATCH to EXEC.
//!
//! EXEC of a client that watches goes over that very backend. If it is lost, if the slot moves, or
//! if the node gives the transaction up for any reason of routing, the guard is gone: EXEC answers
//! nil, as if a watched key had been changed, and nothing runs. It is never sent again.
//!
//! Not here: queuing and EXEC itself (`transaction`), the backends (`private`).

use super::Proxy;
use super::connect::Why;
use super::dispatch::{Asked, Ran, Source};
use super::launch::Bytes;
use super::local::errors;
use super::mode::Watch;
use super::private::NOBODY;
use super::request::Marks;
use super::types::NONE;
use crate::command::Args;
use crate::resp::reply::{ErrorKind, classify_error};
use crate::resp::{Span, Version, write};

const OK: &[u8] = b"+OK\r\n";
const UNWATCH: &[u8] = b"*1\r\n$7\r\nUNWATCH\r\n";

impl Proxy {
    /// What the client watches. A WATCH that was not granted guards nothing.
    pub(super) fn watch_of(&mut self, c: u32) -> Option<&mut Watch> {
        if self.clients[c].mode.as_ref()?.watch.as_ref().is_some_and(|watch| !watch.granted) {
            self.drop_watch(c);
        }
        self.clients[c].mode.as_mut()?.watch.as_mut()
    }

    /// Whether what is sent now goes over the backend of a WATCH that was granted.
    pub(super) fn holds_guard(&self, c: u32) -> bool {
        let mode = self.clients[c].mode.as_ref();
        let watch = mode.filter(|mode| mode.blocked.is_none()).and_then(|mode| mode.watch.as_ref());
        watch.is_some_and(|watch| watch.granted)
    }

    pub(super) fn watches_with(&self, c: u32, b: u32) -> bool {
        let watch = self.clients[c].mode.as_ref().and_then(|mode| mode.watch.as_ref());
        watch.is_some_and(|watch| watch.backend == b)
    }

    pub(super) fn run_watch(&mut self, asked: Asked, source: Source, spans: &[Span]) -> Ran {
        let c = asked.client;
        let args = Args { bytes: source.bytes(), spans };
        let slot = match self.slot_of_keys(asked.command, &args) {
            Ok(slot) => slot.unwrap_or_default(),
            Err(error) => return self.answer_with(c, |out| out.extend_from_slice(&error)),
        };
        if self.waits_for_elders(c) {
            return Ran::HoldBack;
        }
        match self.watch_of(c).map(|watch| (watch.slot == slot, watch.broken)) {
            Some((false, _)) => {
                self.count_crossslot(asked.command);
                return self.answer_with(c, errors::crossslot);
            }
            // EXEC will answer nil whatever else is watched.
            Some((true, true)) => return self.answer_with(c, |out| out.extend_from_slice(OK)),
            Some((true, false)) => (),
            None => self.mode_of(c).watch = Some(Watch::new(slot)),
        }
        if !self.note_watched(c, &args) {
            return Ran::Yes;
        }
        self.clients[c].barrier = true;
        // It may be asked again: it changes nothing.
        let marks = asked.marks.with(Marks::PRIVATE).with(Marks::RETRY_SAFE);
        self.launch_single(Asked { marks, ..asked }, slot, source);
        self.clients[c].session.command_done();
        Ran::Yes
    }

    /// Keeps the keys for EXEC. `false`: they are too many, the client has been closed.
    fn note_watched(&mut self, c: u32, args: &Args) -> bool {
        let limit = self.settings.client_query_limit;
        let Some(watch) = self.clients[c].mode.as_mut().and_then(|mode| mode.watch.as_mut()) else {
            return true;
        };
        for key in args.iter().skip(1) {
            write::bulk(&mut watch.keys, key);
            watch.key_count += 1;
        }
        if watch.keys.len() > limit {
            self.close_over_limit(c, "its watched keys are over client_query_limit");
            return false;
        }
        true
    }

    /// Sends WATCH, or EXEC of a client that watches.
    pub(super) fn launch_watching(&mut self, r: u32, node: u16, version: Version, bytes: Bytes) {
        let c = self.requests[r].client;
        let Some(watch) = self.clients[c].mode.as_mut().and_then(|mode| mode.watch.as_mut()) else {
            return self.fail(r, errors::no_connection);
        };
        let asking = self.requests[r].marks.has(Marks::ASKING);
        if self.requests[r].marks.has(Marks::EXEC) || watch.granted {
            let b = watch.backend;
            let usable = !watch.broken
                && self.backends.get(b as usize).is_some_and(|backend| {
                    backend.is_open() && backend.version == version && backend.node == node
                });
            if !usable || (asking && !watch.asking) {
                watch.broken = true;
                return self.answer_unguarded(r);
            }
            if watch.asking {
                self.requests[r].marks.set(Marks::ASKING);
            }
            return self.enqueue(r, b, bytes);
        }
        watch.asking = asking;
        watch.backend = NONE;
        let Some(b) = self.lend_private(c, node, version) else {
            return self.fail(r, errors::private_cap);
        };
        if let Some(watch) = self.clients[c].mode.as_mut().and_then(|mode| mode.watch.as_mut()) {
            watch.backend = b;
        }
        self.enqueue(r, b, bytes);
    }

    /// The guard is gone: EXEC says nil; a further WATCH is as good as any.
    pub(super) fn answer_unguarded(&mut self, r: u32) {
        let marks = self.requests[r].marks;
        if marks.has(Marks::EXEC) {
            let version = if marks.has(Marks::RESP3) { Version::Resp3 } else { Version::Resp2 };
            return self.fail(r, |out| write::null_array(out, version));
        }
        self.complete(r, OK);
    }

    /// A whole reply on a private backend.
    pub(super) fn note_private_reply(&mut self, b: u32, r: u32, reply: &[u8]) {
        let entry = &self.requests[r];
        if reply != OK || entry.client == NONE || entry.marks.has(Marks::EXEC) {
            return;
        }
        let mode = self.clients[entry.client].mode.as_mut();
        if let Some(watch) = mode.and_then(|mode| mode.watch.as_mut())
            && watch.backend == b
        {
            watch.granted = true;
        }
    }

    /// Whether EXEC of a client that watches was refused for a reason of routing: the node has
    /// given up the guard with the transaction.
    pub(super) fn exec_lost_its_guard(&mut self, r: u32, line: &[u8]) -> bool {
        if !self.requests[r].marks.has(Marks::EXEC) {
            return false;
        }
        let cause = self.cause_of_abort(r, line);
        let kind = classify_error(cause.as_deref().unwrap_or(line));
        !matches!(
            kind,
            ErrorKind::Other | ErrorKind::ExecAbort | ErrorKind::NoAuth | ErrorKind::NoPerm
        )
    }

    /// A private backend of the client's is gone.
    pub(super) fn watch_is_lost(&mut self, c: u32, b: u32) {
        let mode = self.clients[c].mode.as_mut();
        if let Some(watch) = mode.and_then(|mode| mode.watch.as_mut())
            && watch.backend == b
        {
            watch.backend = NONE;
            watch.broken |= watch.granted;
        }
    }

    /// UNWATCH, DISCARD, RESET, or the client leaves: its backend is free for others.
    pub(super) fn drop_watch(&mut self, c: u32) {
        let watch = self.clients[c].mode.as_mut().and_then(|mode| mode.watch.take());
        self.drop_empty_mode(c);
        if let Some(watch) = watch {
            self.end_watch(&watch);
        }
    }

    pub(super) fn end_watch(&mut self, watch: &Watch) {
        let b = watch.backend;
        let Some(backend) = self.backends.get_mut(b as usize) else { return };
        if !backend.is_open() || backend.owner == NOBODY {
            return;
        }
        if !watch.granted || backend.queued() > 0 || backend.phase != super::backend::Phase::Ready {
            return self.lose_backend(b, Why::Retired);
        }
        backend.owner = NOBODY;
        self.enqueue_internal(b, |out| out.extend_from_slice(UNWATCH));
        self.mark_backend_dirty(b);
    }
}
