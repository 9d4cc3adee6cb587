//! MULTI, EXEC, DISCARD (routing-policy class L).
//!
//! Commands after MULTI are kept here: name, arity, slot are checked and QUEUED is answered at
//! once. EXEC sends `MULTI … EXEC` in one write over the backend that all share. To the client it
//! is one request: a parent with one part, whose entry in the backend's FIFO comes behind one step
//! for each reply before EXEC's.
//!
//! ```text
//! client:   parent ──► part ─────────────────┐
//! backend:  step(MULTI) step(command)… step  part(EXEC)
//! ```
//! A step that is answered with MOVED, ASK or their kin leaves the error with its part: EXEC then
//! says EXECABORT, nothing has run, and the whole is sent again as one request would be.
//!
//! Not here: what is queued (`mode`), commands that are answered here (`local`).

use super::Proxy;
use super::crowd::EFFORT_MAX;
use super::dispatch::{Asked, Outcome, Ran, Source};
use super::launch::Bytes;
use super::local::errors;
use super::mode::{Mode, Queue};
use super::request::{Marks, State};
use super::scripts::is_no_script;
use super::settings::ConfigOf;
use super::split::Merge;
use super::types::{NO_SLOT, NONE};
use crate::cluster::slot_of;
use crate::command::{self, Args, Class, Command};
use crate::limits::TRANSACTION_COMMANDS_MAX;
use crate::resp::reply::{ErrorKind, aggregate_header, classify_error, first_frame_len};
use crate::resp::request::{Parsed, RequestLimits, RequestParser};
use crate::resp::{Span, Version, write};

/// What takes effect at once also after MULTI.
const AT_ONCE: [&str; 6] = ["MULTI", "EXEC", "DISCARD", "WATCH", "QUIT", "RESET"];

/// Where a queued command is carried out.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Place {
    Here,
    AtNode,
    /// Not inside a transaction.
    Nowhere,
    /// Not through this proxy.
    Refused,
}

impl Proxy {
    pub(super) fn is_queuing(&self, c: u32) -> bool {
        self.clients[c].mode.as_ref().is_some_and(|mode| mode.queue.is_some())
    }

    fn queue_of(&mut self, c: u32) -> Option<&mut Queue> {
        self.clients[c].mode.as_mut()?.queue.as_mut()
    }

    pub(super) fn mode_of(&mut self, c: u32) -> &mut Mode {
        self.clients[c].mode.get_or_insert_default()
    }

    /// Drops what holds nothing any more, so that an ordinary client costs no more than it did.
    pub(super) fn drop_empty_mode(&mut self, c: u32) {
        let client = &mut self.clients[c];
        if client.mode.as_ref().is_some_and(|mode| mode.is_empty()) {
            client.mode = None;
        }
    }

    /// Class L.
    pub(super) fn run_transaction(&mut self, asked: Asked, source: Source, spans: &[Span]) -> Ran {
        let c = asked.client;
        let queuing = self.is_queuing(c);
        match asked.command.name {
            "MULTI" if queuing => self.answer_with(c, errors::nested_multi),
            "MULTI" => {
                let watched = self.watch_of(c).map(|watch| watch.slot);
                let slot = watched.unwrap_or(NO_SLOT);
                self.mode_of(c).queue = Some(Queue::of_slot(slot));
                self.answer_with(c, |out| write::simple(out, "OK"))
            }
            "DISCARD" if !queuing => self.answer_with(c, errors::discard_without_multi),
            "DISCARD" => {
                self.drop_queue(c);
                self.drop_watch(c);
                self.answer_with(c, |out| write::simple(out, "OK"))
            }
            "EXEC" => self.run_exec(asked),
            "WATCH" if queuing => self.answer_with(c, errors::watch_in_multi),
            "WATCH" => self.run_watch(asked, source, spans),
            _ => {
                self.drop_watch(c);
                self.answer_with(c, |out| write::simple(out, "OK"))
            }
        }
    }

    /// RESET: the client is in the middle of nothing.
    pub(super) fn end_mode(&mut self, c: u32) {
        self.drop_queue(c);
        self.drop_watch(c);
    }

    /// What is queued will not run: nobody has seen that its scripts are some.
    fn drop_queue(&mut self, c: u32) {
        if let Some(queue) = self.discard(c) {
            self.forget_scripts(&queue.new_scripts);
        }
    }

    /// Takes what is queued.
    fn discard(&mut self, c: u32) -> Option<Queue> {
        let queue = self.clients[c].mode.as_mut()?.queue.take();
        self.drop_empty_mode(c);
        queue
    }

    /// Something was refused: EXEC will abort, if a transaction is being queued.
    pub(super) fn fail_transaction(&mut self, c: u32) {
        if let Some(queue) = self.queue_of(c) {
            queue.failed = true;
        }
    }

    /// EXEC with words behind it is itself the end of the transaction.
    pub(super) fn refuse_exec(&mut self, c: u32) -> Ran {
        self.drop_queue(c);
        self.drop_watch(c);
        self.answer_with(c, errors::execabort_arity)
    }

    /// A command after MULTI. `None`: it takes effect at once.
    pub(super) fn run_queued(&mut self, asked: Asked, args: &Args) -> Option<Ran> {
        let (c, command) = (asked.client, asked.command);
        if AT_ONCE.contains(&command.name) {
            return None;
        }
        // As other commands for all nodes; and who answers with others does so in its own time.
        let by_itself = matches!(command.name, "INFO" | "CONFIG|RESETSTAT");
        let together = self.asks_peers(command) && !by_itself;
        let config = self.config_of(command, args) != ConfigOf::Proxy;
        let place = match together || config || command.name == "MONITOR" {
            true => Place::Nowhere,
            false => place_of(command, args),
        };
        let ran = match place {
            Place::Nowhere => self.fail_queued(c, errors::not_in_multi),
            Place::Refused => self.fail_queued(c, |out| errors::refused(out, command.name)),
            Place::Here => self.queue_here(c, command, args),
            Place::AtNode => {
                let slot = match command.name {
                    "PUBLISH" => Ok(None),
                    "SPUBLISH" => Ok(args.get(1).map(slot_of)),
                    _ => self.slot_of_keys(command, args),
                };
                self.queue_at_node(asked, slot, args)
            }
        };
        Some(ran)
    }

    /// Queues a command that is answered here.
    fn queue_here(&mut self, c: u32, command: &Command, args: &Args) -> Ran {
        let effort = self.effort_of(command, args);
        let Some(queue) = self.queue_of(c) else { return Ran::Yes };
        if effort > 0 && queue.effort >= EFFORT_MAX {
            return self.fail_queued(c, errors::transaction_too_dear);
        }
        queue.effort += effort;
        queue.push_local(args.bytes);
        self.answer_queued(c)
    }

    fn fail_queued(&mut self, c: u32, write: impl FnOnce(&mut Vec<u8>)) -> Ran {
        self.fail_transaction(c);
        self.answer_with(c, write)
    }

    /// Queues a command for the node. `slot`: that of its keys, or the error that they are.
    pub(super) fn queue_at_node(
        &mut self,
        asked: Asked,
        slot: Result<Option<u16>, Vec<u8>>,
        args: &Args,
    ) -> Ran {
        let c = asked.client;
        let slot = match slot {
            Ok(slot) => slot,
            Err(error) => return self.fail_queued(c, |out| out.extend_from_slice(&error)),
        };
        let with_body = self.queued_script(asked, args);
        let Some(queue) = self.queue_of(c) else { return Ran::Yes };
        if slot.is_some_and(|slot| !queue.accept_slot(slot)) {
            self.count_crossslot(asked.command);
            return self.fail_queued(c, errors::crossslot);
        }
        if slot.is_none() && queue.hint == NO_SLOT {
            queue.hint = slot_of(args.get(1).unwrap_or_default());
        }
        queue.push_at_node(with_body.as_deref().unwrap_or(args.bytes));
        queue.fenced |= asked.marks.has(Marks::FENCED);
        queue.reads_only &= asked.marks.has(Marks::RETRY_SAFE);
        self.answer_queued(c)
    }

    fn answer_queued(&mut self, c: u32) -> Ran {
        let limit = self.settings.client_query_limit;
        let Some(queue) = self.queue_of(c) else { return Ran::Yes };
        if queue.size() > limit {
            self.close_over_limit(c, "its transaction is over client_query_limit");
            return Ran::Yes;
        }
        if queue.len() > TRANSACTION_COMMANDS_MAX {
            self.drop_queue(c);
            self.mode_of(c).queue = Some(Queue::hopeless());
            return self.answer_with(c, errors::transaction_too_long);
        }
        self.answer_with(c, |out| write::simple(out, "QUEUED"))
    }

    // --- EXEC --------------------------------------------------------------------------------

    fn run_exec(&mut self, asked: Asked) -> Ran {
        let c = asked.client;
        let watched = self.watch_of(c).map(|watch| (watch.broken, watch.backend));
        if watched.is_some() && self.is_queuing(c) && self.waits_for_elders(c) {
            return Ran::HoldBack;
        }
        let Some(queue) = self.discard(c) else {
            return self.answer_with(c, errors::exec_without_multi);
        };
        if queue.failed {
            self.drop_watch(c);
            return self.answer_with(c, errors::execabort);
        }
        if let Some((true, _)) = watched {
            self.drop_watch(c);
            let version = self.clients[c].session.version;
            return self.answer_with(c, |out| write::null_array(out, version));
        }
        if queue.len_at_node() > 0 || watched.is_some() {
            self.launch_exec(asked, queue);
            self.clients[c].session.command_done();
            return Ran::Yes;
        }
        // Nobody but us has a part in it.
        let wanted = self.clients[c].session.wants_reply();
        let mut out = Vec::new();
        let outcome = self.join_exec(c, &queue, b"*0\r\n", &mut out);
        self.reply_local(c, &out, wanted);
        self.clients[c].session.command_done();
        self.end_if(c, outcome);
        Ran::Yes
    }

    fn launch_exec(&mut self, asked: Asked, mut queue: Queue) {
        let c = asked.client;
        let mut marks = Marks::EXEC;
        let version = self.clients[c].session.version;
        if version == Version::Resp3 {
            marks.set(Marks::RESP3);
        }
        if queue.fenced {
            marks.set(Marks::FENCED);
        } else if queue.reads_only {
            marks.set(Marks::RETRY_SAFE);
        }
        let slot = match (queue.slot, queue.hint) {
            (NO_SLOT, NO_SLOT) => self.some_slot(),
            (NO_SLOT, hint) => hint,
            (slot, _) => slot,
        };
        let mode = self.clients[c].mode.as_ref();
        let watch = mode.and_then(|mode| mode.watch.as_ref());
        if let Some(watch) = watch {
            queue.push_probe(watch);
        }
        let watched = watch.map(|watch| watch.backend);
        if let Some(b) = watched {
            marks = marks.with(Marks::PRIVATE).with(Marks::BY_NODE);
            self.backends[b as usize].spoilt |= queue.fenced;
        }
        let parent = self.open_for(asked, NO_SLOT);
        let client = &mut self.clients[c];
        if client.head == NONE {
            client.map_version = self.map.version();
        }
        client.push(parent, &mut self.requests);
        let s = self.make_parent(parent, Merge::Exec, version);
        let part = self.open_part(Asked { marks, ..asked }, s, slot);
        self.requests[part].part = queue.len_at_node() + 1;
        if let Some(b) = watched {
            self.requests[part].node = self.backends[b as usize].node;
            self.clients[c].barrier = true;
        }
        let bytes = queue.take_bytes();
        if queue.is_joined() {
            // What we answer ourselves may change how the client is answered from then on.
            self.mode_of(c).running = Some((part, queue));
            self.clients[c].barrier = true;
        }
        self.launch(part, Bytes::Own(bytes));
    }

    /// The replies before EXEC's get their places in the FIFO.
    pub(super) fn enqueue_steps(&mut self, r: u32, b: u32) {
        for _ in 0..self.requests[r].part {
            let step = self.enqueue_internal(b, |_| ());
            let entry = &mut self.requests[step];
            entry.marks.set(Marks::STEP);
            entry.part = r;
        }
    }

    /// A step was answered with an error: if routing has to look at it, its EXEC will want it.
    pub(super) fn note_refused_step(&mut self, step: u32, line: &[u8]) {
        if !self.requests[step].marks.has(Marks::STEP) {
            return;
        }
        let s = self.requests[self.requests[step].part].split;
        if s != NONE
            && self.splits[s].error.is_empty()
            && !matches!(classify_error(line), ErrorKind::Other | ErrorKind::ExecAbort)
        {
            self.splits[s].error.extend_from_slice(line);
        }
    }

    /// The error that made a transaction abort, if one of its steps was refused by routing.
    pub(super) fn cause_of_abort(&mut self, r: u32, line: &[u8]) -> Option<Vec<u8>> {
        let entry = &self.requests[r];
        if !entry.marks.has(Marks::EXEC) || entry.split == NONE {
            return None;
        }
        let cause = std::mem::take(&mut self.splits[entry.split].error);
        let aborted = classify_error(line) == ErrorKind::ExecAbort;
        (aborted && !cause.is_empty()).then_some(cause)
    }

    /// A transaction has its final reply.
    pub(super) fn finish_exec(&mut self, r: u32, reply: &[u8]) {
        self.settle(r);
        let (s, c) = (self.requests[r].split, self.requests[r].client);
        self.answer_overtaken(r, reply);
        // That may have closed the client.
        if self.requests[r].client != c || self.requests[r].split != s {
            return;
        }
        let parent = self.splits[s].parent;
        if self.requests[r].marks.has(Marks::PRIVATE) {
            self.drop_watch(c);
        }
        self.close_parts(s, &[r]);
        self.splits.close(s);
        let entry = &mut self.requests[parent];
        entry.split = NONE;
        entry.state = State::Done;
        let mode = self.clients[c].mode.as_mut();
        let running = mode.and_then(|mode| mode.running.take_if(|(part, _)| *part == r));
        let Some((_, queue)) = running else {
            return self.complete(parent, reply);
        };
        self.drop_empty_mode(c);
        let mut out = Vec::new();
        let outcome = self.join_exec(c, &queue, reply, &mut out);
        self.clients[c].refresh_plain();
        self.complete(parent, &out);
        self.end_if(c, outcome);
    }

    /// Puts what we answer ourselves in its places among what the node did. A reply that is no
    /// array says that nothing ran.
    fn join_exec(&mut self, c: u32, queue: &Queue, reply: &[u8], out: &mut Vec<u8>) -> Outcome {
        let mut outcome = Outcome::Replied;
        let expected = i64::from(queue.len_at_node());
        let mut rest = match aggregate_header(reply) {
            Some((b'*', count, header)) if count == expected => &reply[header..],
            _ => {
                // None of it has run.
                self.forget_scripts(&queue.new_scripts);
                out.extend_from_slice(reply);
                return outcome;
            }
        };
        let mut unsound = false;
        write::array_header(out, queue.len());
        for command in queue.commands() {
            match command {
                Some(bytes) => {
                    if self.answer_queued_local(c, bytes, out) == Outcome::Close {
                        outcome = Outcome::Close;
                    }
                }
                None => {
                    let len = first_frame_len(rest).unwrap_or(rest.len());
                    unsound |= is_no_script(&rest[..len]);
                    out.extend_from_slice(&rest[..len]);
                    rest = &rest[len..];
                }
            }
        }
        if unsound {
            self.forget_scripts(&queue.new_scripts);
        }
        outcome
    }

    fn answer_queued_local(&mut self, c: u32, bytes: &[u8], out: &mut Vec<u8>) -> Outcome {
        let mut spans = Vec::new();
        let limits = RequestLimits::default();
        let parsed = RequestParser::default().parse(bytes, &limits, &mut spans);
        let args = Args { bytes, spans: &spans };
        let (Ok(Parsed::Array { .. }), Ok(command)) = (parsed, command::lookup(&args)) else {
            errors::not_in_multi(out);
            return Outcome::Replied;
        };
        if command.name == "UNWATCH" {
            // EXEC has ended every WATCH.
            write::simple(out, "OK");
            return Outcome::Replied;
        }
        let outcome = self.answer_here(c, command, &args, out);
        if outcome == Outcome::AnyNode {
            errors::not_in_multi(out);
        }
        outcome
    }

    fn end_if(&mut self, c: u32, outcome: Outcome) {
        if outcome == Outcome::Close {
            self.hear_no_more(c);
        }
    }
}

/// Where a command that is sent after MULTI is carried out.
fn place_of(command: &Command, args: &Args) -> Place {
    if command.flags.has(command::Flags::NO_MULTI) {
        return Place::Nowhere;
    }
    match command.class {
        Class::Read
        | Class::Write
        | Class::SplitValues
        | Class::SplitCount
        | Class::SplitAll
        | Class::Script
        | Class::Blocking => Place::AtNode,
        Class::PubSub if matches!(command.name, "PUBLISH" | "SPUBLISH") => Place::AtNode,
        Class::AnyNode if command.name != "RANDOMKEY" => Place::AtNode,
        Class::Transaction => Place::Here,
        Class::Local | Class::ConnectionState if is_for_node(command, args) => Place::AtNode,
        Class::Local | Class::ConnectionState => Place::Here,
        // One node's part would be taken for the whole.
        Class::AllPrimaries | Class::EveryNode | Class::Walk | Class::AnyNode => Place::Nowhere,
        Class::PubSub => Place::Nowhere,
        Class::Refused | Class::Module => Place::Refused,
    }
}

/// Commands of class K that we hand to any node (`Answer::AnyNode`).
fn is_for_node(command: &Command, args: &Args) -> bool {
    let container = command.name.split('|').next();
    container == Some("COMMAND")
        || command.name == "LOLWUT"
        || (command.name == "ACL|CAT" && args.len() == 3)
}
