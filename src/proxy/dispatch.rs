//! What is to be done with each whole request of a client.
//!
//! Not here: from bytes to requests (`intake`), where keys are (`command`), how a request reaches
//! its backend (`launch`), requests of several parts (`fanout`).

use super::local::{self, Answer, errors, write_client_list, write_killed};
use super::request::{Marks, NewRequest};
use super::split::Merge;
use super::types::{NO_SLOT, NONE};
use super::{Action, Note, Proxy};
use crate::cluster::{UNOWNED, slot_of};
use crate::command::learned::LearnedCommand;
use crate::command::{self, Args, Class, Command, KeyError, LookupError};
use crate::resp::{Span, Version, request};

/// Where a whole request's bytes are.
pub(super) enum Source<'a> {
    /// In a buffer that is given back soon: to be copied.
    Borrowed(&'a [u8]),
    /// By themselves: may be handed on without a copy.
    Owned(Vec<u8>),
}

impl Source<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Source::Borrowed(bytes) => bytes,
            Source::Owned(bytes) => bytes,
        }
    }
}

/// What became of a request.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Ran {
    Yes,
    /// By the short way: with its client nothing has changed but that it has one request more in
    /// flight.
    AtOnce,
    /// It must wait until its elders are answered: to be run again then.
    HoldBack,
}

/// What became of a command that is answered here.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Replied,
    /// The client is to be closed once it has the reply.
    Close,
    /// A node is to answer it after all; nothing was written.
    AnyNode,
}

/// A request as the class handlers see it.
#[derive(Copy, Clone, Debug)]
pub(super) struct Asked {
    pub client: u32,
    pub command: &'static Command,
    pub marks: Marks,
}

impl Proxy {
    /// Runs one whole request. `source` is in the form that may be forwarded, `spans` its words.
    #[inline]
    pub(super) fn run(&mut self, c: u32, source: Source, spans: &[Span]) -> Ran {
        let args = Args { bytes: source.bytes(), spans };
        let command = match self.recent.lookup(&args) {
            Ok(command) => command,
            Err(error) => {
                let before = self.tally.commands;
                let ran = self.run_unknown(c, source, spans, error);
                if ran == Ran::HoldBack {
                    self.tally.commands = before;
                }
                self.clients[c].refresh_plain();
                return ran;
            }
        };
        if self.monitors.active {
            self.show(c, command, &args);
        }
        self.count_command(command);
        if self.rhythm.is_due(self.tally.commands) {
            self.look_closer(command, &args);
        }
        let client = &mut self.clients[c];
        client.session.command_started(command.id, self.now.ms);
        if let Some(word) = command.route_fast()
            && client.plain
            && let Some(key) = args.get(usize::from(word))
        {
            let slot = slot_of(key);
            let marks = fast_marks(command, client.session.version);
            if self.launch_fast(c, command.id, slot, marks, source.bytes()) {
                return Ran::AtOnce;
            }
            self.launch_single(Asked { client: c, command, marks }, slot, source);
            return Ran::Yes;
        }
        let ran = self.run_slow(c, command, source, spans);
        if ran == Ran::HoldBack {
            self.uncount_command(command);
            if self.monitors.active {
                self.unshow();
            }
        }
        self.clients[c].refresh_plain();
        ran
    }

    /// One command in many is timed, and its keys are looked at.
    #[cold]
    fn look_closer(&mut self, command: &Command, args: &Args) {
        self.rhythm.step(self.tally.commands);
        self.requests.sample.arm(self.now.unix_us);
        self.sample_keys(command, args);
    }

    fn run_slow(
        &mut self,
        c: u32,
        command: &'static Command,
        source: Source,
        spans: &[Span],
    ) -> Ran {
        if !self.clients[c].session.authenticated && !local::allowed_before_auth(command) {
            return self.answer_with(c, |out| errors::noauth(out, command.name));
        }
        if let Some(ran) = self.check_subscribed(c, command) {
            return ran;
        }
        if let Some(ran) = self.check_monitoring(c, command) {
            return ran;
        }
        let asked = Asked { client: c, command, marks: self.marks_of(c, command) };
        let args = Args { bytes: source.bytes(), spans };
        if self.is_queuing(c)
            && let Some(ran) = self.run_queued(asked, &args)
        {
            return ran;
        }
        if self.clients[c].session.database > 0
            && command.name == "RESET"
            && self.waits_for_elders(c)
        {
            // Back to the first database, which elders in flight are not in.
            return Ran::HoldBack;
        }
        let ran = match command.class {
            Class::Read | Class::Write => return self.run_keyed(asked, source, spans),
            Class::SplitValues | Class::SplitCount | Class::SplitAll => {
                return self.run_split(asked, source, spans);
            }
            Class::Script => return self.run_script(asked, source, spans),
            Class::Blocking if !command::blocks(command, &args) => {
                return self.run_keyed(asked, source, spans);
            }
            Class::AllPrimaries => self.run_all_primaries(asked, &args),
            Class::EveryNode => self.run_every_node(asked, &args),
            Class::AnyNode if command.name == "SCRIPT|SHOW" => self.run_show(asked, &args),
            Class::AnyNode => self.run_any_node(asked, &args),
            Class::Local if local::info_needs_nodes(command, &args) => self.run_info(asked, &args),
            Class::Local if command.name.starts_with("CONFIG|") => {
                self.run_config(self.config_of(command, &args), asked, &args)
            }
            Class::Local if is_info_nodes(command, &args) => {
                let args = Args { bytes: b"*1\r\n$4\r\nINFO\r\n", spans: &[] };
                self.ask_primaries(asked, &args, Merge::NodeFacts, &[])
            }
            Class::Local if command.name == "MONITOR" => return self.run_monitor(asked),
            Class::Local if command.name == "SELECT" => self.run_select(asked, &args),
            Class::Local | Class::PubSub if self.asks_peers(command) => {
                self.run_together(asked, &args)
            }
            Class::Local | Class::ConnectionState => self.run_local(asked, &args),
            Class::PubSub => self.run_pubsub(asked, &args),
            Class::Walk => self.run_walk(asked, &args),
            Class::Transaction => return self.run_transaction(asked, source, spans),
            Class::Blocking if command.name == "WAIT" => self.run_wait(asked, &args),
            Class::Blocking if command.name == "WAITAOF" => self.run_wait_synced(asked, &args),
            Class::Blocking => return self.run_blocking(asked, source, spans),
            Class::Refused | Class::Module => {
                self.answer_with(c, |out| errors::refused(out, command.name))
            }
        };
        if ran == Ran::Yes {
            self.command_done(c);
        }
        ran
    }

    fn run_unknown(&mut self, c: u32, source: Source, spans: &[Span], error: LookupError) -> Ran {
        let args = Args { bytes: source.bytes(), spans };
        let name = args.get(0).unwrap_or_default();
        if request::is_cross_protocol(name) {
            // redis-server's guard: somebody makes a browser talk to us.
            self.tally.protocol_errors += 1;
            let (peer, text) = (self.clients[c].session.peer, "an HTTP request");
            self.actions.push(Action::Note(Note::ProtocolError { peer, text }));
            self.close_client(c);
            return Ran::Yes;
        }
        self.tally.commands += 1;
        if name.eq_ignore_ascii_case(b"PROXY") {
            return self.run_own(c, &args);
        }
        if let (b"CLIENT", Some(b"MAINT_NOTIFICATIONS")) = (
            name.to_ascii_uppercase().as_slice(),
            args.get(1).map(<[u8]>::to_ascii_uppercase).as_deref(),
        ) && args.len() > 2
        {
            return self.run_maint_notifications(c, &args);
        }
        if let LookupError::UnknownCommand = error
            && self.clients[c].session.authenticated
            && let Some(learned) = self.learned.clone()
            && let Some(known) = learned.find(name)
        {
            return self.run_learned(c, known, source, spans);
        }
        if let LookupError::WrongArity(command) = error
            && command.name == "EXEC"
        {
            return self.refuse_exec(c);
        }
        self.fail_transaction(c);
        self.answer_with(c, |out| errors::lookup_failed(out, &error, &args))
    }

    /// A request whose keys must share one slot.
    fn run_keyed(&mut self, asked: Asked, source: Source, spans: &[Span]) -> Ran {
        let args = Args { bytes: source.bytes(), spans };
        match self.slot_of_keys(asked.command, &args) {
            Ok(Some(slot)) => self.launch_single(asked, slot, source),
            Ok(None) => self.launch_single(asked, self.some_slot(), source),
            Err(error) => {
                self.answer_with(asked.client, |out| out.extend_from_slice(&error));
                return Ran::Yes;
            }
        }
        self.command_done(asked.client);
        Ran::Yes
    }

    /// As `run_keyed`, or by the script itself when there is no key: the same to the same node.
    fn run_script(&mut self, asked: Asked, source: Source, spans: &[Span]) -> Ran {
        let args = Args { bytes: source.bytes(), spans };
        match self.slot_of_keys(asked.command, &args) {
            Ok(slot) => {
                let script = args.get(1).unwrap_or_default();
                if matches!(asked.command.name, "EVAL" | "EVAL_RO") {
                    let _ = self.note_evaluated(script);
                }
                let slot = slot.unwrap_or_else(|| slot_of(script));
                self.launch_single(asked, slot, source);
            }
            Err(error) => {
                self.answer_with(asked.client, |out| out.extend_from_slice(&error));
                return Ran::Yes;
            }
        }
        self.command_done(asked.client);
        Ran::Yes
    }

    fn run_split(&mut self, asked: Asked, source: Source, spans: &[Span]) -> Ran {
        let args = Args { bytes: source.bytes(), spans };
        let mut keys = std::mem::take(&mut self.keys);
        let found = command::keys_of(asked.command, &args, &mut keys);
        let word = |key: u32| args.get(key as usize).unwrap_or_default();
        self.cut.by_slot(keys.iter().map(|&key| slot_of(word(key))));
        let first = self.cut.groups.first().map(|group| group.slot);
        let same = self.cut.groups.len() == 1;
        let allowed = match asked.command.class {
            Class::SplitValues => self.settings.split_reads,
            _ if asked.command.flags.has(command::Flags::READONLY) => self.settings.split_reads,
            _ => self.settings.split_writes,
        };
        match (found, first) {
            (Err(_), _) if asked.command.name == "MSET" => {
                // A key without a value: said here, because a node looks at the slots first.
                self.keys = keys;
                return self.answer_with(asked.client, |out| errors::wrong_arity(out, "MSET"));
            }
            // The words are in doubt (MSETEX with a key too many): whole to a node, which judges.
            (Err(_), slot) => {
                self.launch_single(asked, slot.unwrap_or_else(|| self.some_slot()), source);
            }
            (Ok(()), Some(slot)) if same => {
                let marks = asked.marks.with(Marks::DIVISIBLE);
                self.launch_single(Asked { marks, ..asked }, slot, source);
            }
            (Ok(()), Some(_)) => match command::split_shape(asked.command, &args, &keys) {
                Some(shape) if allowed => self.fan_out_keys(asked, &args, &shape),
                Some(_) | None => {
                    self.count_crossslot(asked.command);
                    self.answer_with(asked.client, errors::crossslot);
                    self.keys = keys;
                    return Ran::Yes;
                }
            },
            (Ok(()), None) => self.launch_single(asked, self.some_slot(), source),
        }
        self.keys = keys;
        self.command_done(asked.client);
        Ran::Yes
    }

    pub(super) fn run_local(&mut self, asked: Asked, args: &Args) -> Ran {
        self.tally.commands_local += 1;
        let c = asked.client;
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        let outcome = self.answer_here(c, asked.command, args, &mut out);
        if outcome == Outcome::AnyNode {
            self.scratch = out;
            return self.run_any_node(asked, args);
        }
        self.reply_local(c, &out, self.clients[c].session.wants_reply());
        if outcome == Outcome::Close {
            self.hear_no_more(c);
        }
        self.scratch = out;
        Ran::Yes
    }

    /// Writes the reply of a command that is answered here, and does what it asks for.
    pub(super) fn answer_here(
        &mut self,
        c: u32,
        command: &Command,
        args: &Args,
        out: &mut Vec<u8>,
    ) -> Outcome {
        self.crowd.effort += self.effort_of(command, args);
        if command.name == "INFO" {
            self.freshen_totals();
        }
        let before = self.clients[c].session.version;
        let answer = self.local_answer(c, command, args, out);
        if self.clients[c].session.version != before && self.clients[c].head != NONE {
            // Elders travel on the other version's backends: later requests must look at them.
            self.clients[c].map_version = self.map.version().wrapping_sub(1);
        }
        match answer {
            Answer::Replied => (),
            Answer::ResetAll => {
                self.end_mode(c);
                self.drop_subscriptions(c);
            }
            Answer::Close => return Outcome::Close,
            // Only reached inside MULTI, where these are refused.
            Answer::SlowLog(_) => errors::not_in_multi(out),
            // Likewise; the others are not waited for.
            Answer::ResetCounts => {
                self.reset_all_counts();
                crate::resp::write::simple(out, "OK");
            }
            Answer::AnyNode => return Outcome::AnyNode,
            Answer::ListClients(filter) => {
                let version = self.clients[c].session.version;
                write_client_list(
                    out,
                    version,
                    &self.client_lines(&filter, Some((c, args.bytes.len()))),
                );
            }
            Answer::KillClients(filter) => {
                let (killed, own) = self.kill_clients(c, &filter);
                write_killed(out, &filter, killed);
                if own {
                    return Outcome::Close;
                }
            }
            Answer::Unblock { id, error } => {
                crate::resp::write::integer(out, i64::from(self.unblock(id, error)));
            }
        }
        Outcome::Replied
    }

    /// A command that only the nodes know: behind the fence, by the keys that they say it has.
    fn run_learned(
        &mut self,
        c: u32,
        known: &LearnedCommand,
        source: Source,
        spans: &[Span],
    ) -> Ran {
        let args = Args { bytes: source.bytes(), spans };
        let sub = args.get(1).and_then(|sub| known.find_sub(sub));
        let known = sub.unwrap_or(known);
        let command = known.stand_in();
        if let Some(ran) = self.check_subscribed(c, command) {
            return ran;
        }
        match known.class() {
            Class::Read | Class::Write if known.arity_ok(spans.len()) => (),
            Class::Read | Class::Write => {
                self.fail_transaction(c);
                return self.answer_with(c, |out| errors::wrong_arity(out, known.name()));
            }
            _ => {
                self.fail_transaction(c);
                return self.answer_with(c, |out| errors::refused(out, known.name()));
            }
        }
        let mut keys = Vec::new();
        // Where the rules fail, the node judges.
        let _ = known.keys_of(&args, &mut keys);
        let slot = self.slot_of_words(command, &args, &keys);
        let marks = self.marks_of(c, command).with(Marks::FENCED);
        let asked = Asked { client: c, command, marks };
        if self.is_queuing(c) {
            return self.queue_at_node(asked, slot, &args);
        }
        match slot {
            Ok(slot) => {
                self.launch_single(asked, slot.unwrap_or_else(|| self.some_slot()), source);
                self.command_done(c);
                Ran::Yes
            }
            Err(error) => self.answer_with(c, |out| out.extend_from_slice(&error)),
        }
    }

    /// The one slot of a request's keys; `Ok(None)`: it has none. `Err`: the reply to give.
    pub(super) fn slot_of_keys(
        &mut self,
        command: &Command,
        args: &Args,
    ) -> Result<Option<u16>, Vec<u8>> {
        if let Some(word) = command.slot_argument() {
            let stated = args
                .get(usize::from(word))
                .and_then(|word| std::str::from_utf8(word).ok()?.parse::<u16>().ok());
            // A slot that is none: any node knows the right error.
            return Ok(Some(stated.filter(|&slot| slot < NO_SLOT).unwrap_or(0) & 0x3fff));
        }
        let mut keys = std::mem::take(&mut self.keys);
        let found = command::keys_of(command, args, &mut keys);
        let slot = match found.err().and_then(KeyError::text) {
            Some(text) => {
                let mut out = Vec::new();
                crate::resp::write::error(&mut out, text);
                Err(out)
            }
            // Where the words are in doubt, the node judges.
            None => self.slot_of_words(command, args, &keys),
        };
        self.keys = keys;
        slot
    }

    fn slot_of_words(
        &mut self,
        command: &Command,
        args: &Args,
        keys: &[u32],
    ) -> Result<Option<u16>, Vec<u8>> {
        let mut slots = keys.iter().filter_map(|&key| args.get(key as usize)).map(slot_of);
        let first = slots.next();
        if first.is_none_or(|first| slots.all(|slot| slot == first)) {
            return Ok(first);
        }
        self.count_crossslot(command);
        let mut out = Vec::new();
        errors::crossslot(&mut out);
        Err(out)
    }

    /// A slot that is served: for requests that any primary may answer.
    pub(super) fn some_slot(&self) -> u16 {
        let start = (self.random_count as u16).wrapping_mul(7919);
        let slots = (0..crate::cluster::SLOTS as u16).map(|n| start.wrapping_add(n) & 0x3fff);
        slots.into_iter().find(|&slot| self.map.get(slot) != UNOWNED).unwrap_or(0)
    }

    pub(super) fn marks_of(&self, c: u32, command: &Command) -> Marks {
        let mut marks = fast_marks(command, self.clients[c].session.version);
        if command::retry_safe(command) {
            marks.set(Marks::RETRY_SAFE);
        }
        if command::may_compose_reply(command) {
            marks.unset(Marks::RETRY_SAFE);
            marks.set(Marks::FENCED);
        }
        if !self.clients[c].session.wants_reply() {
            marks.set(Marks::SILENT);
        }
        marks
    }

    /// Moves CLIENT REPLY SKIP on.
    #[inline]
    fn command_done(&mut self, c: u32) {
        self.clients[c].session.command_done();
    }

    /// Answers in its place with what `write` writes. Moves CLIENT REPLY SKIP on.
    pub(super) fn answer_with(&mut self, c: u32, write: impl FnOnce(&mut Vec<u8>)) -> Ran {
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        write(&mut out);
        let wanted = self.clients[c].session.wants_reply();
        self.reply_local(c, &out, wanted);
        self.scratch = out;
        self.command_done(c);
        Ran::Yes
    }

    /// Puts a reply of ours in its place in the client's order.
    pub(super) fn reply_local(&mut self, c: u32, reply: &[u8], wanted: bool) {
        if reply.is_empty() || !wanted {
            return;
        }
        let client = &mut self.clients[c];
        if client.head == NONE {
            if reply[0] == b'-' {
                self.count_error(reply);
            }
            let client = &mut self.clients[c];
            client.output.buffer(&mut self.client_pool).extend_from_slice(reply);
            return self.mark_client_dirty(c);
        }
        let request = self.requests.open(NewRequest {
            client: c,
            client_generation: client.generation,
            slot: NO_SLOT,
            command: u16::MAX,
            marks: Marks::default(),
            since: self.now.ms as u32,
        });
        client.push(request, &mut self.requests);
        self.complete(request, reply);
    }
}

/// INFO nodes, alone: what only the nodes know.
fn is_info_nodes(command: &Command, args: &Args) -> bool {
    let asked = args.get(1).unwrap_or_default();
    command.name == "INFO" && args.len() == 2 && asked.eq_ignore_ascii_case(b"nodes")
}

#[inline]
fn fast_marks(command: &Command, version: Version) -> Marks {
    let mut marks = Marks::default();
    if command.class == Class::Read {
        marks.set(Marks::RETRY_SAFE);
    }
    if version == Version::Resp3 {
        marks.set(Marks::RESP3);
    }
    marks
}
