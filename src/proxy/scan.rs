//! SCAN and CLUSTERSCAN: the questions of a walk go out as parts of one request, round by round.
//!
//! Not here: what is asked, and what the answers mean (`walk`).

use super::Proxy;
use super::dispatch::{Asked, Ran, Source};
use super::launch::Bytes;
use super::local::errors;
use super::request::{Marks, Requests};
use super::split::{Merge, Splits};
use super::walk::wanted::{Refusal, Wanted};
use super::walk::{Answer, At, Walk};
use crate::cluster::slot_of;
use crate::command::Args;

/// Whether a walk under way names a node: as the one that a slot leaves or goes to, or that has
/// answered in this round. Were its index another node's meanwhile, what that one says would be
/// taken for what this one has said.
pub(super) fn walks_name(node: u16, splits: &Splits, requests: &Requests) -> bool {
    splits.walks().any(|(walk, parts)| {
        walk.names(node) || parts.iter().any(|&part| requests[part].node == node)
    })
}

impl Proxy {
    /// Class I: after all that the client asked before.
    pub(super) fn run_walk(&mut self, asked: Asked, args: &Args) -> Ran {
        if asked.command.name == "CLUSTERSCAN" {
            return self.run_cluster_scan(asked, args);
        }
        let wanted = match Wanted::read(args) {
            Ok(wanted) => wanted,
            Err(refusal) => {
                let mut out = Vec::new();
                match refusal {
                    Refusal::Cursor => errors::invalid_cursor(&mut out),
                    Refusal::Syntax => errors::syntax(&mut out),
                    Refusal::Integer => errors::not_integer(&mut out),
                }
                self.reply_local(asked.client, &out, !asked.marks.has(Marks::SILENT));
                return Ran::Yes;
            }
        };
        if self.waits_for_elders(asked.client) {
            return Ran::HoldBack;
        }
        if self.topology.is_none() {
            return self.no_map(asked);
        }
        let s = self.open_parent(asked, Merge::Walk);
        self.clients[asked.client].barrier = true;
        self.splits[s].nonce = self.random();
        let (most, most_old) = (self.settings.walk_whole_max, self.settings.walk_whole_max_old);
        self.splits[s].walk = Some(Box::new(Walk::new(wanted, most, most_old)));
        self.ask_round(s, asked);
        Ran::Yes
    }

    /// Its cursor is routed as a key, `0` too (Valkey 9.1): it has a hash tag of its slot in it. A
    /// node that does not know the command says so itself.
    fn run_cluster_scan(&mut self, asked: Asked, args: &Args) -> Ran {
        let slot = slot_of(args.get(1).unwrap_or_default());
        self.launch_single(asked, slot, Source::Borrowed(args.bytes));
        Ran::Yes
    }

    /// All parts of a walk's round are answered.
    pub(super) fn walk_on(&mut self, s: u32) {
        let parent = self.splits[s].parent;
        let Some(mut walk) = self.splits[s].walk.take() else { return };
        let parts = std::mem::take(&mut self.splits[s].parts);
        let answers = parts.iter().map(|&part| {
            let entry = &self.requests[part];
            Answer {
                reply: self.requests.reply(part),
                node: entry.node,
                redirects: entry.redirects,
                delayed: entry.waits > 0 || entry.marks.has(Marks::REPEATED),
                owner: self.map.get(entry.slot),
            }
        });
        let answers: Vec<Answer> = answers.collect();
        let made_sense = !self.splits[s].error.is_empty() || walk.hear(&answers).is_some();
        self.close_parts(s, &parts);
        if !made_sense {
            let error = &mut self.splits[s].error;
            match walk.is_endless {
                true => errors::pattern_takes_too_long(error),
                false => errors::bad_reply(error),
            }
        }
        self.splits[s].walk = Some(walk);
        let entry = &self.requests[parent];
        // What parts inherit of the whole.
        let mut marks = Marks::RETRY_SAFE;
        marks.0 |= entry.marks.0 & Marks::RESP3.0;
        let command = &crate::command::COMMANDS[usize::from(entry.command)];
        self.ask_round(s, Asked { client: entry.client, command, marks });
    }

    /// Sends a walk's next questions, or its reply if there are none.
    fn ask_round(&mut self, s: u32, asked: Asked) {
        let Some(mut walk) = self.splits[s].walk.take() else { return };
        let failed = !self.splits[s].error.is_empty();
        let questions = if failed { Vec::new() } else { walk.questions() };
        let nonce = self.splits[s].nonce;
        let mut texts = Vec::with_capacity(questions.len());
        for question in &questions {
            let mut bytes = Vec::new();
            walk.write_question(question, nonce, &mut bytes);
            texts.push(bytes);
            let marks = match question.at {
                At::Owner => asked.marks,
                At::Node(_) => asked.marks.with(Marks::BY_NODE),
            };
            let r = self.open_part(Asked { marks, ..asked }, s, question.slot);
            if let At::Node(node) = question.at {
                self.requests[r].node = node;
            }
        }
        if questions.is_empty() {
            let mut out = std::mem::take(&mut self.merged);
            out.clear();
            if failed {
                out.extend_from_slice(&self.splits[s].error);
            } else {
                walk.write_reply(&mut out);
            }
            return self.answer_parent(s, out);
        }
        self.splits[s].walk = Some(walk);
        for (part, bytes) in texts.into_iter().enumerate() {
            self.launch_part(s, part, Bytes::Own(bytes));
        }
    }
}
