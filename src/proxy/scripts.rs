//! Bodies of scripts, kept so that `NOSCRIPT` need not be seen: a node that has lost a script (new,
//! restarted, flushed behind our back) is given it again, and the request repeated, once.
//!
//! `NOSCRIPT` says that nothing ran, unless the script itself said it: so the line must be the
//! server's own, and a body with that word in it is not healed. SCRIPT LOAD goes right before the
//! repeat, through the same fence. What the client had sent behind it may run first if it names
//! none of its keys; once one that does has run, NOSCRIPT is the answer (`overtaken`).
//!
//! Bodies that clients loaded reach the other reactors through the topology thread; those of EVAL
//! stay where they were seen. A body that a node does not take (it does not compile) is not kept:
//! no server would know it by name.
//!
//! A transaction runs once, so there a kept script goes as EVAL from the start: within EXEC nobody
//! can take it away from the node again.
//!
//! Not here: running scripts (`fence`), SCRIPT at every node (`fanout`).

use std::collections::VecDeque;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use super::Proxy;
use super::dispatch::{Asked, Ran};
use super::request::Marks;
use super::types::{Action, Report};
use crate::command::{self, Args};
use crate::limits::{SCRIPT_BYTES_MAX, SCRIPTS_BYTES_MAX, SCRIPTS_MAX};
use crate::resp::request::{
    RequestLimits, RequestParser, write_request_bulk, write_request_header,
};
use crate::resp::write;

pub type Digest = [u8; 20];

/// What Redis and what Valkey says of a script that it has not got.
const NOSCRIPT: [&[u8]; 2] =
    [b"-NOSCRIPT No matching script. Please use EVAL.\r\n", b"-NOSCRIPT No matching script.\r\n"];

/// How a node says that it does not take a body as a script.
const NO_SCRIPT: [&[u8]; 7] = [
    b"-ERR Error compiling script",
    b"-ERR Invalid script shebang",
    b"-ERR Invalid engine in script shebang",
    b"-ERR Unexpected engine in script shebang",
    b"-ERR Unexpected flag in script shebang",
    b"-ERR Unknown lua shebang option",
    b"-ERR Could not find scripting engine",
];

/// Whether a reply to EVAL or SCRIPT LOAD says that the body is no script. A script that says so
/// itself does without our keeping it.
pub fn is_no_script(reply: &[u8]) -> bool {
    reply.first() == Some(&b'-') && NO_SCRIPT.iter().any(|begin| reply.starts_with(begin))
}

/// What is kept, oldest first when it is too much.
#[derive(Debug, Default)]
pub struct Scripts {
    /// Each with whether a node that has not got it may be given it: found out once, as somebody
    /// may ask for a long one very often.
    bodies: AHashMap<Digest, (Arc<[u8]>, bool)>,
    /// By age, each with a quick hash of its body.
    order: VecDeque<(Digest, u64)>,
    /// The quick hashes: most bodies come again and again.
    seen: AHashSet<u64>,
    /// Loaded by SCRIPT LOAD, so that all reactors know them.
    told: AHashSet<Digest>,
    bytes: usize,
}

impl Scripts {
    /// `quick`: a hash of the body that nobody outside can foresee. The body, if it is new.
    pub fn keep(&mut self, body: &[u8], quick: u64) -> Option<Arc<[u8]>> {
        if body.len() > SCRIPT_BYTES_MAX || !self.seen.insert(quick) {
            return None;
        }
        let digest = digest_of_body(body);
        let body: Arc<[u8]> = body.into();
        self.bytes += body.len();
        self.order.push_back((digest, quick));
        let says_it = memchr::memmem::find(&body, b"NOSCRIPT").is_some();
        self.bodies.insert(digest, (Arc::clone(&body), !says_it));
        while self.order.len() > SCRIPTS_MAX || self.bytes > SCRIPTS_BYTES_MAX {
            let Some((digest, quick)) = self.order.pop_front() else { break };
            self.seen.remove(&quick);
            self.told.remove(&digest);
            self.bytes -= self.bodies.remove(&digest).map_or(0, |(body, _)| body.len());
        }
        Some(body)
    }

    pub fn forget(&mut self, digest: &Digest) {
        let Some((body, _)) = self.bodies.remove(digest) else { return };
        self.bytes -= body.len();
        self.told.remove(digest);
        if let Some(at) = self.order.iter().position(|(of, _)| of == digest)
            && let Some((_, quick)) = self.order.remove(at)
        {
            self.seen.remove(&quick);
        }
    }

    pub fn len(&self) -> usize {
        self.bodies.len()
    }

    /// `name`: 40 hex digits in any case.
    pub fn find(&self, name: &[u8]) -> Option<&Arc<[u8]>> {
        self.bodies.get(&digest_of(name)?).map(|(body, _)| body)
    }

    /// EVALSHA with the body in place of the name, if that is kept and has at most `room` bytes.
    pub fn evaluate(&self, command: &str, args: &Args, room: usize) -> Option<(Digest, Vec<u8>)> {
        let command = match command {
            "EVALSHA" => b"EVAL".as_slice(),
            "EVALSHA_RO" => b"EVAL_RO",
            _ => return None,
        };
        let digest = digest_of(args.get(1)?)?;
        let (body, _) = self.bodies.get(&digest).filter(|(body, _)| body.len() <= room)?;
        let mut bytes = Vec::new();
        write_request_header(&mut bytes, args.len());
        write_request_bulk(&mut bytes, command);
        write_request_bulk(&mut bytes, body);
        args.iter().skip(2).for_each(|word| write_request_bulk(&mut bytes, word));
        Some((digest, bytes))
    }

    /// The body, if a node that has not got it may be given it.
    pub fn can_give(&self, name: &[u8]) -> Option<&Arc<[u8]>> {
        self.bodies.get(&digest_of(name)?).filter(|(_, may)| *may).map(|(body, _)| body)
    }

    pub fn clear(&mut self) {
        *self = Scripts::default();
    }
}

fn digest_of_body(body: &[u8]) -> Digest {
    sha1_smol::Sha1::from(body).digest().bytes()
}

/// Of 40 hex digits.
fn digest_of(name: &[u8]) -> Option<Digest> {
    let text = std::str::from_utf8(name).ok().filter(|text| text.len() == 40)?;
    let mut digest = [0; 20];
    for (byte, at) in digest.iter_mut().zip((0..40).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(digest)
}

impl Proxy {
    /// EVAL: its body may be asked for by name later. Its name, if it is new.
    pub(super) fn note_evaluated(&mut self, body: &[u8]) -> Option<Digest> {
        let quick = self.random.hash_one(body);
        self.scripts.keep(body, quick).map(|body| digest_of_body(&body))
    }

    /// A transaction has brought bodies of which not all are scripts, or has not run: they are kept
    /// when they come again, unless somebody has loaded them meanwhile.
    pub(super) fn forget_scripts(&mut self, digests: &[Digest]) {
        for digest in digests {
            if !self.scripts.told.contains(digest) {
                self.scripts.forget(digest);
            }
        }
    }

    /// SCRIPT LOAD and SCRIPT FLUSH, on their way to every node. A script that other reactors may
    /// not know, be it new here or not.
    pub(super) fn note_script(&mut self, name: &str, args: &Args) -> Option<Digest> {
        let word = args.get(2).unwrap_or_default();
        if name == "SCRIPT|LOAD" {
            let quick = self.random.hash_one(word);
            self.scripts.keep(word, quick);
            let digest = digest_of_body(word);
            let scripts = &self.scripts;
            let untold = scripts.bodies.contains_key(&digest) && !scripts.told.contains(&digest);
            return untold.then_some(digest);
        }
        if name == "SCRIPT|FLUSH"
            && (args.len() == 2
                || [&b"SYNC"[..], b"ASYNC"].iter().any(|w| word.eq_ignore_ascii_case(w)))
        {
            self.scripts.clear();
            self.actions.push(Action::Report(Report::ScriptsFlushed));
        }
        None
    }

    /// SCRIPT LOAD is answered: the other reactors may know the script, or nobody.
    pub(super) fn finish_load(&mut self, digest: &Digest, reply: &[u8]) {
        if is_no_script(reply) {
            self.scripts.forget(digest);
        } else if let Some((body, _)) = self.scripts.bodies.get(digest) {
            let body = Arc::clone(body);
            self.scripts.told.insert(*digest);
            self.actions.push(Action::Report(Report::ScriptLoaded { body }));
        }
    }

    /// A node has answered EVAL. `bytes`: the request.
    pub(super) fn forget_if_no_script(&mut self, r: u32, bytes: &[u8], reply: &[u8]) {
        let command = command::COMMANDS.get(usize::from(self.requests[r].command));
        let by_body = command.is_some_and(|of| matches!(of.name, "EVAL" | "EVAL_RO"));
        if !by_body || !is_no_script(reply) {
            return;
        }
        let mut spans = Vec::new();
        let parsed = RequestParser::default().parse(bytes, &RequestLimits::default(), &mut spans);
        if parsed.is_ok()
            && let Some(body) = (Args { bytes, spans: &spans }).get(1)
        {
            self.scripts.forget(&digest_of_body(body));
        }
    }

    /// SCRIPT SHOW: from what is kept, else a node may have it.
    pub(super) fn run_show(&mut self, asked: Asked, args: &Args) -> Ran {
        let Some(body) = self.scripts.find(args.get(2).unwrap_or_default()).cloned() else {
            return self.run_any_node(asked, args);
        };
        let mut out = Vec::new();
        write::bulk(&mut out, &body);
        self.reply_local(asked.client, &out, !asked.marks.has(Marks::SILENT));
        Ran::Yes
    }

    /// A client of another reactor has loaded a script.
    pub fn handle_script(&mut self, body: &[u8]) {
        let quick = self.random.hash_one(body);
        self.scripts.keep(body, quick);
        let digest = digest_of_body(body);
        if self.scripts.bodies.contains_key(&digest) {
            self.scripts.told.insert(digest);
        }
    }

    /// A client of another reactor has flushed all scripts.
    pub fn handle_scripts_flushed(&mut self) {
        self.scripts.clear();
    }

    /// Whether a node's reply says in its own words that it has not got the script.
    pub(super) fn may_heal(&self, r: u32, line: &[u8]) -> bool {
        let entry = &self.requests[r];
        let by_name = command::COMMANDS
            .get(usize::from(entry.command))
            .is_some_and(|command| matches!(command.name, "EVALSHA" | "EVALSHA_RO"));
        // A fenced leg waits for nothing else: it counts how often it was healed.
        by_name && entry.waits == 0 && NOSCRIPT.contains(&line)
    }

    /// A script in a transaction cannot be asked for again: one that is kept goes with its body,
    /// the first time that the transaction calls it. `None`: as it is.
    pub(super) fn queued_script(&mut self, asked: Asked, args: &Args) -> Option<Vec<u8>> {
        if matches!(asked.command.name, "EVAL" | "EVAL_RO") {
            let new = self.note_evaluated(args.get(1)?)?;
            let queue = self.clients[asked.client].mode.as_mut()?.queue.as_mut()?;
            queue.new_scripts.push(new);
            return None;
        }
        let queue = self.clients[asked.client].mode.as_mut()?.queue.as_mut()?;
        let room = self.settings.client_query_limit.checked_sub(queue.size() + args.bytes.len())?;
        let (digest, bytes) = self.scripts.evaluate(asked.command.name, args, room)?;
        queue.first_call(digest).then_some(bytes)
    }

    /// The body of the script that a request names, if it is kept and can be loaded.
    pub(super) fn script_of(&self, bytes: &[u8]) -> Option<Arc<[u8]>> {
        let mut spans = Vec::new();
        RequestParser::default().parse(bytes, &RequestLimits::default(), &mut spans).ok()?;
        self.scripts.can_give(Args { bytes, spans: &spans }.get(1)?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &[u8] = b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db";

    #[test]
    fn script_is_found_by_its_name_in_any_case() {
        let mut scripts = Scripts::default();
        assert!(scripts.keep(b"return 1", 7).is_some());
        assert!(scripts.keep(b"return 1", 7).is_none(), "known");
        assert_eq!(scripts.find(NAME).map(|body| body.to_vec()), Some(b"return 1".to_vec()));
        assert!(scripts.find(&NAME.to_ascii_uppercase()).is_some());
        for name in [&b"e0"[..], b"", &[b'x'; 40], &[0xff; 40], &[b'+'; 40]] {
            assert!(scripts.find(name).is_none());
        }
        scripts.clear();
        assert!(scripts.find(NAME).is_none());
        assert!(scripts.keep(b"return 1", 7).is_some());
    }

    #[test]
    fn forgotten_script_leaves_nothing_behind_and_may_come_again() {
        let mut scripts = Scripts::default();
        scripts.keep(b"return 2", 8);
        scripts.keep(b"return 1", 7);
        scripts.forget(&digest_of_body(b"return 1"));
        scripts.forget(&digest_of_body(b"return 1"));
        assert!(scripts.find(NAME).is_none());
        assert_eq!((scripts.len(), scripts.order.len(), scripts.seen.len()), (1, 1, 1));
        assert_eq!(scripts.bytes, 8);
        assert!(scripts.keep(b"return 1", 7).is_some());
    }

    #[test]
    fn name_is_replaced_by_its_body_where_that_fits() {
        let mut scripts = Scripts::default();
        scripts.keep(b"return 1", 7);
        let line = format!("EVALSHA {} 1 key arg", String::from_utf8_lossy(NAME));
        let mut spans = Vec::new();
        let mut bytes = Vec::new();
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        crate::resp::request::encode_request(words.into_iter(), &mut bytes);
        let parsed = RequestParser::default().parse(&bytes, &RequestLimits::default(), &mut spans);
        assert!(parsed.is_ok());
        let args = Args { bytes: &bytes, spans: &spans };
        let mut expected = Vec::new();
        let words = [b"EVAL_RO".as_slice(), b"return 1", b"1", b"key", b"arg"];
        crate::resp::request::encode_request(words.into_iter(), &mut expected);
        let got = scripts.evaluate("EVALSHA_RO", &args, 8).map(|(_, bytes)| bytes);
        assert_eq!(got, Some(expected));
        assert!(scripts.evaluate("EVALSHA", &args, 7).is_none());
        assert!(scripts.evaluate("FCALL", &args, 8).is_none());
        scripts.clear();
        assert!(scripts.evaluate("EVALSHA", &args, 8).is_none());
    }

    #[test]
    fn oldest_goes_first_when_there_are_too_many_or_too_large_ones() {
        let mut scripts = Scripts::default();
        scripts.keep(b"return 1", 0);
        for n in 1..=SCRIPTS_MAX as u64 {
            scripts.keep(n.to_string().as_bytes(), n);
        }
        assert!(scripts.find(NAME).is_none());
        assert_eq!(scripts.order.len(), SCRIPTS_MAX);
        scripts.keep(b"return 1", 0);
        for n in 0..9 {
            scripts.keep(&vec![n as u8; SCRIPT_BYTES_MAX], 1 << 40 | n);
        }
        assert!(scripts.bytes <= SCRIPTS_BYTES_MAX);
        assert!(scripts.find(NAME).is_none());
        assert!(scripts.keep(&vec![0; SCRIPT_BYTES_MAX + 1], 1 << 50).is_none());
        assert_eq!(scripts.order.len(), scripts.bodies.len());
        assert_eq!(scripts.order.len(), scripts.seen.len());
    }
}
