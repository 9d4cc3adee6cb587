//! A client's bytes become requests: what is whole is run, what is not is kept.
//!
//! Not here: framing (`resp`), what is done with a request (`dispatch`).

use std::borrow::Cow;

use super::blocking::READ_AHEAD_MAX;
use super::client::{Partial, Phase};
use super::crowd::{EFFORT_MAX, GO_MAX};
use super::dispatch::{Ran, Source};
use super::hot_keys::BIG_BYTES;
use super::{Action, Note, Proxy};
use crate::command::{self, Args, Class};
use crate::resp::request::{Parsed, ProtocolError, RequestParser, decode_inline};
use crate::resp::{Span, request};

/// Bytes copied at least when an unfinished request goes on.
const PIECE: usize = 512;

/// Requests that clients held back run in one turn, at most those of one client more.
const RESUMED_MAX: u64 = 2_048;

/// The same while others have little to ask.
const RESUMED_MIXED_MAX: u64 = 2 * GO_MAX as u64;

/// A partial's buffers are kept for reuse up to this size.
const PARTIAL_KEEP_MAX: usize = 64 * 1024;

/// What is left of a client's bytes when all that may be run has been.
enum Rest {
    Nothing,
    /// Begins with a request that must wait.
    Held,
    /// The client has had its go, others are to have theirs; or the turn has taken long.
    Later,
    /// Begins with a request whose end is missing.
    Unfinished(RequestParser),
    Broken(ProtocolError),
}

impl Proxy {
    pub(super) fn handle_client_bytes(&mut self, c: u32, bytes: &[u8]) {
        self.tally.bytes_from_clients += bytes.len() as u64;
        let client = &mut self.clients[c];
        if client.phase != Phase::Open {
            return;
        }
        match client.partial.take() {
            None => {
                if client.in_flight == 0 {
                    self.crowd.note(bytes.len(), self.now);
                }
                self.run_all(c, bytes);
            }
            Some(partial) if client.held_back => self.keep_more(c, partial, bytes),
            Some(partial) => self.run_partial(c, partial, bytes),
        }
    }

    /// Runs the requests in `bytes`, which begins with one; keeps what cannot be run yet.
    fn run_all(&mut self, c: u32, bytes: &[u8]) {
        let (ran, rest) = self.run_whole(c, bytes);
        match rest {
            Rest::Nothing => (),
            Rest::Held => self.hold_back(c, &bytes[ran..]),
            Rest::Later => {
                self.hold_back(c, &bytes[ran..]);
                self.queue_for_go(c);
            }
            Rest::Unfinished(parser) => self.keep_unfinished(c, &bytes[ran..], parser),
            Rest::Broken(error) => self.protocol_error(c, error),
        }
    }

    /// Runs what is whole and may be run: how many bytes, and what about the others. The words of
    /// an unfinished request are in `spans`.
    #[inline]
    fn run_whole(&mut self, c: u32, bytes: &[u8]) -> (usize, Rest) {
        let mut spans = std::mem::take(&mut self.spans);
        let mut at = 0;
        let mut ended = Rest::Nothing;
        let mut go = 0;
        // HOT: so many may go before the client has to be looked at again; by these limits.
        let (mut spare, mut limits) = (0, self.limits);
        while at < bytes.len() {
            let rest = &bytes[at..];
            if spare == 0 {
                spare = self.spare(c);
                limits = *self.limits_of(c);
            }
            if spare == 0 {
                ended = Rest::Held;
                break;
            }
            if self.crowd.effort >= EFFORT_MAX {
                ended = Rest::Later;
                break;
            }
            let mut parser = RequestParser::default();
            let (ran, len) = match parser.parse(rest, &limits, &mut spans) {
                Ok(Parsed::Incomplete { .. }) => {
                    ended = Rest::Unfinished(parser);
                    break;
                }
                Ok(parsed) => self.run_parsed(c, rest, &parsed, &spans),
                Err(error) => {
                    ended = Rest::Broken(error);
                    break;
                }
            };
            spare = if ran == Ran::AtOnce { spare - 1 } else { 0 };
            if ran == Ran::HoldBack {
                ended = Rest::Held;
                break;
            }
            at += len;
            go += 1;
            if go >= GO_MAX && self.crowd.is_mixed(self.now) {
                ended = if at < bytes.len() { Rest::Later } else { Rest::Nothing };
                break;
            }
        }
        self.spans = spans;
        (at, ended)
    }

    /// How many requests of the client may be run now, if nothing but their number changes.
    #[inline]
    fn spare(&self, c: u32) -> u32 {
        let most = self.ladder.requests_max(self.settings.client_requests_max);
        self.clients[c].spare(most, self.settings.client_output_soft)
    }

    #[inline]
    fn limits_of(&self, c: u32) -> &crate::resp::request::RequestLimits {
        if self.clients[c].session.authenticated {
            &self.limits
        } else {
            &self.limits_unauthenticated
        }
    }

    /// Runs one framed request, of so many bytes.
    #[inline]
    fn run_parsed(&mut self, c: u32, rest: &[u8], parsed: &Parsed, spans: &[Span]) -> (Ran, usize) {
        match *parsed {
            Parsed::Array { len, canonical: true } => {
                let ran = self.run(c, Source::Borrowed(&rest[..len]), spans);
                if len >= BIG_BYTES && ran != Ran::HoldBack {
                    self.note_big_request(&Args { bytes: &rest[..len], spans });
                }
                (ran, len)
            }
            Parsed::Array { len, canonical: false } => {
                let parts: Vec<&[u8]> = spans.iter().map(|span| span.of(rest)).collect();
                let mut words = Vec::new();
                let mut encoded = std::mem::take(&mut self.inline);
                encoded.clear();
                encode(&parts, &mut encoded, &mut words);
                (self.run_encoded(c, encoded, &words), len)
            }
            Parsed::Inline { len } => {
                let mut words = Vec::new();
                let mut encoded = std::mem::take(&mut self.inline);
                encoded.clear();
                match decode_inline(&rest[..len], &mut encoded, &mut words) {
                    Ok(()) => (self.run_encoded(c, encoded, &words), len),
                    Err(error) => {
                        self.protocol_error(c, error);
                        (Ran::Yes, len)
                    }
                }
            }
            Parsed::Empty { len } => (self.run_nothing(c), len),
            Parsed::Incomplete { .. } => (Ran::Yes, rest.len()),
        }
    }

    /// Runs a request that had to be written anew in the form that may be forwarded.
    fn run_encoded(&mut self, c: u32, encoded: Vec<u8>, words: &[Span]) -> Ran {
        let ran = match words {
            [] => self.run_nothing(c),
            words => self.run(c, Source::Borrowed(&encoded), words),
        };
        self.inline = encoded;
        ran
    }

    /// A request without words has no reply, but it is one: what CLIENT REPLY SKIP silences is over
    /// (redis-server: `resetClient`, networking.c).
    fn run_nothing(&mut self, c: u32) -> Ran {
        let client = &mut self.clients[c];
        client.session.command_done();
        client.refresh_plain();
        Ran::Yes
    }

    /// The rest of an unfinished request has come, or more of it. No more is copied than it needs.
    fn run_partial(&mut self, c: u32, mut partial: Box<Partial>, mut bytes: &[u8]) {
        let mut hint = 0;
        loop {
            let have = partial.bytes.len();
            let want = (hint as usize).saturating_sub(have).max(PIECE).min(bytes.len());
            partial.bytes.extend_from_slice(&bytes[..want]);
            let limits = self.limits_of(c);
            let Partial { bytes: kept, parser, args, .. } = &mut *partial;
            match parser.parse(kept, limits, args) {
                Ok(Parsed::Incomplete { total_hint }) => {
                    bytes = &bytes[want..];
                    hint = total_hint;
                    if bytes.is_empty() {
                        return self.put_back(c, partial);
                    }
                }
                Ok(parsed) => {
                    let used = match self.run_kept(c, &mut partial, &parsed) {
                        Some(len) => len - have,
                        None => {
                            partial.bytes.truncate(have);
                            partial.bytes.extend_from_slice(bytes);
                            return self.hold_partial(c, partial);
                        }
                    };
                    self.give_partial(partial);
                    return self.run_rest(c, &bytes[used..]);
                }
                Err(error) => {
                    self.give_partial(partial);
                    return self.protocol_error(c, error);
                }
            }
        }
    }

    fn run_rest(&mut self, c: u32, bytes: &[u8]) {
        if !bytes.is_empty() && self.clients[c].phase == Phase::Open {
            self.run_all(c, bytes);
        }
    }

    /// Runs the request that a partial holds whole: its length, or `None` if it must wait for its
    /// elders. A large one is handed on without a copy.
    fn run_kept(&mut self, c: u32, partial: &mut Partial, parsed: &Parsed) -> Option<usize> {
        let (ran, len) = match *parsed {
            Parsed::Array { len, canonical: true } if self.may_give(c, partial, len) => {
                let whole = Args { bytes: &partial.bytes, spans: &partial.args };
                self.note_big_request(&whole);
                let bytes = std::mem::take(&mut partial.bytes);
                (self.run(c, Source::Owned(bytes), &partial.args), len)
            }
            _ => self.run_parsed(c, &partial.bytes, parsed, &partial.args),
        };
        (ran != Ran::HoldBack).then_some(len)
    }

    /// Whether a partial is one large request that will surely be run.
    fn may_give(&self, c: u32, partial: &Partial, len: usize) -> bool {
        let whole = Args { bytes: &partial.bytes, spans: &partial.args };
        let alone = len == partial.bytes.len() && len >= super::output::LARGE;
        alone && self.spare(c) > 0 && !may_wait(&whole)
    }

    fn put_back(&mut self, c: u32, partial: Box<Partial>) {
        if partial.waiting() > self.settings.client_query_limit {
            self.give_partial(partial);
            return self.close_over_limit(c, "its request is over client_query_limit");
        }
        self.clients[c].partial = Some(partial);
    }

    fn keep_unfinished(&mut self, c: u32, rest: &[u8], parser: RequestParser) {
        let mut partial = self.partials.pop().unwrap_or_default();
        partial.bytes.extend_from_slice(rest);
        partial.parser = parser;
        partial.args.extend_from_slice(&self.spans);
        self.put_back(c, partial);
    }

    /// Keeps bytes of a client that may not go on, and has it read no further.
    fn hold_back(&mut self, c: u32, rest: &[u8]) {
        if self.clients[c].phase != Phase::Open {
            return;
        }
        let mut partial = self.partials.pop().unwrap_or_default();
        partial.bytes.extend_from_slice(rest);
        self.hold_partial(c, partial);
    }

    /// The same with what is kept already.
    fn hold_partial(&mut self, c: u32, mut partial: Box<Partial>) {
        if self.clients[c].phase != Phase::Open {
            return self.give_partial(partial);
        }
        partial.parser = RequestParser::default();
        partial.args.clear();
        let client = &mut self.clients[c];
        client.partial = Some(partial);
        client.held_back = true;
        self.read_or_not(c);
    }

    /// It goes on in the next turn.
    pub(super) fn queue_for_go(&mut self, c: u32) {
        let client = &mut self.clients[c];
        if client.phase == Phase::Open && !client.resuming {
            client.resuming = true;
            self.resuming.push(c);
        }
    }

    /// A client that is held back or slowed is not read; one that is blocked is: it must be seen to
    /// leave.
    pub(super) fn read_or_not(&mut self, c: u32) {
        let blocked = self.is_blocked(c);
        let client = &mut self.clients[c];
        let kept = client.partial.as_ref().map_or(0, |partial| partial.waiting());
        let held_back = client.held_back && !(blocked && kept <= READ_AHEAD_MAX);
        let stop = held_back || client.slowed || client.leaving;
        if stop == client.reading_stopped {
            return;
        }
        client.reading_stopped = stop;
        let socket = client.socket;
        let action = match stop {
            true => Action::StopReading { socket },
            false => Action::StartReading { socket },
        };
        self.actions.push(action);
    }

    /// Bytes that were on their way when reading was stopped.
    fn keep_more(&mut self, c: u32, mut partial: Box<Partial>, bytes: &[u8]) {
        partial.bytes.extend_from_slice(bytes);
        self.put_back(c, partial);
        if self.clients[c].phase == Phase::Open {
            self.read_or_not(c);
        }
    }

    pub(super) fn give_partial(&mut self, mut partial: Box<Partial>) {
        partial.bytes.clear();
        partial.start = 0;
        partial.args.clear();
        partial.parser = RequestParser::default();
        if partial.bytes.capacity() <= PARTIAL_KEEP_MAX
            && partial.args.capacity() <= PARTIAL_KEEP_MAX / 8
            && self.partials.len() < 1024
        {
            self.partials.push(partial);
        }
    }

    /// Clients that may go on do, in the order in which that came about. After so many requests the
    /// others wait for the next turn: what they all hold may be much.
    pub(super) fn resume_some(&mut self) {
        let mixed = self.crowd.is_mixed(self.now);
        let most = self.tally.commands + if mixed { RESUMED_MIXED_MAX } else { RESUMED_MAX };
        // Who has had a go and wants another one stands behind, and has it in the next turn.
        let end = if mixed { self.resuming.len() } else { usize::MAX };
        let (mut at, mut waiting) = (0, 0);
        self.crowd.effort = 0;
        while at < end.min(self.resuming.len())
            && self.tally.commands < most
            && self.crowd.effort < EFFORT_MAX
        {
            let c = self.resuming[at];
            at += 1;
            if self.waits_for_go(c) {
                self.resuming[waiting] = c;
                waiting += 1;
                continue;
            }
            self.clients[c].resuming = false;
            self.release_held(c);
            self.resume(c);
        }
        self.crowd.effort = 0;
        self.resuming.drain(waiting..at);
        // Who waits for a go is woken by the answers that others wait for, and by time.
        self.crowd.waits = waiting > 0 && self.resuming.len() == waiting;
        self.urgent |= self.resuming.len() > waiting;
    }

    /// A client that was held back, or is about to be closed, looks whether it may go on.
    pub(super) fn resume(&mut self, c: u32) {
        let client = &mut self.clients[c];
        if client.phase == Phase::Last && client.is_done() {
            return self.close_client(c);
        }
        if self.leaving.active {
            self.let_go(c);
        }
        let client = &self.clients[c];
        let most = self.ladder.requests_max(self.settings.client_requests_max);
        let may = client.may_resume(most, self.settings.client_output_soft);
        let client = &mut self.clients[c];
        if !client.held_back || !may {
            return;
        }
        client.held_back = false;
        let Some(partial) = client.partial.take() else { return };
        self.run_held(c, partial);
        let client = &mut self.clients[c];
        if client.phase != Phase::Open || client.held_back {
            return;
        }
        if client.ended {
            self.take_no_more(c);
        } else {
            self.read_or_not(c);
        }
    }

    /// Runs what was held back as far as may be. What is left stays where it is.
    fn run_held(&mut self, c: u32, mut partial: Box<Partial>) {
        let (ran, rest) = self.run_whole(c, &partial.bytes[partial.start..]);
        partial.advance(ran);
        match rest {
            Rest::Nothing => self.give_partial(partial),
            Rest::Held => self.hold_partial(c, partial),
            Rest::Later => {
                self.hold_partial(c, partial);
                self.queue_for_go(c);
            }
            Rest::Unfinished(parser) => {
                partial.compact();
                partial.parser = parser;
                partial.args.clear();
                partial.args.extend_from_slice(&self.spans);
                self.put_back(c, partial);
            }
            Rest::Broken(error) => {
                self.give_partial(partial);
                self.protocol_error(c, error);
            }
        }
    }

    fn protocol_error(&mut self, c: u32, error: ProtocolError) {
        self.tally.protocol_errors += 1;
        let text = match error.text() {
            Cow::Borrowed(text) => text,
            // The whole text has a byte of what the client sent.
            Cow::Owned(_) => "Protocol error: expected '$'",
        };
        let peer = self.clients[c].session.peer;
        self.actions.push(Action::Note(Note::ProtocolError { peer, text }));
        let mut out = Vec::new();
        error.append_reply(&mut out);
        let wanted = self.clients[c].session.wants_reply();
        self.reply_local(c, &out, wanted);
        self.hear_no_more(c);
    }
}

/// Whether a request may have to wait for its elders, so that its bytes must not be given away.
fn may_wait(args: &Args) -> bool {
    let goes_at_once = |class| {
        let split = matches!(class, Class::SplitValues | Class::SplitCount | Class::SplitAll);
        split || matches!(class, Class::Read | Class::Write | Class::Script)
    };
    !command::lookup(args).is_ok_and(|command| goes_at_once(command.class))
}

fn encode(parts: &[&[u8]], out: &mut Vec<u8>, args: &mut Vec<Span>) {
    request::write_request_header(out, parts.len());
    for part in parts {
        request::write_request_bulk(out, part);
        let end = (out.len() - 2) as u32;
        args.push(Span { start: end - part.len() as u32, end });
    }
}
