//! Whether a reply is one that its own request could have got.
//!
//! Values carry their key and writers, ECHO and PING a number, integers are compared with what the
//! node recorded for this very request; a read must show a state of its key between the client's
//! elder and younger writes. Errors must be ones that may be said, with the request's own key.
//!
//! Not here: what nodes ran (`history`), whether a reply came at all (`world`).

use ringway::cluster::slot_of;
use ringway::resp::Version;
use ringway::resp::value::Value;

use crate::history::{History, Kind, Outcome, Violation};
use crate::item;
use crate::scripts;
use crate::workload::SCRIPTS;

pub type Verdict = Result<Outcome, Violation>;

/// What the checker must know of the run.
pub struct Circumstances {
    /// No fault that a proxy cannot hide.
    pub calm: bool,
    /// The proxy has had a map since before the request.
    pub mapped: bool,
    /// The same for the commands that only nodes know.
    pub learned: bool,
    pub split: bool,
    /// Its scripts may fail: it runs such that break their connection, or nodes leave the cluster, and
    /// a redirect to one that has left is shown as a forged one is.
    pub hostile: bool,
    /// Primaries may become replicas.
    pub fails_over: bool,
}

impl History {
    /// Judges the reply to request `id`; `raw` is the whole frame.
    pub fn judge(&mut self, id: u32, raw: &[u8], value: &Value, around: &Circumstances) {
        self.answered += 1;
        let verdict = match value {
            Value::Error(text) => {
                self.errors += 1;
                self.judge_error(id, text, around)
            }
            _ => self.judge_success(id, raw, value),
        };
        match verdict {
            Ok(outcome) => {
                self.requests[id as usize].outcome = outcome;
                self.check_not_run(id);
            }
            Err(violation) => {
                self.violation.get_or_insert(violation);
            }
        }
    }

    /// What is said not to have run has not.
    fn check_not_run(&mut self, id: u32) {
        let request = &self.requests[id as usize];
        if request.outcome == Outcome::NotRun && request.writes() && !request.runs.is_empty() {
            let text = "its answer says that it has not run, but it has";
            let violation = self.violation(id, "at most once", text);
            self.violation.get_or_insert(violation);
        }
    }

    fn judge_error(&self, id: u32, text: &[u8], around: &Circumstances) -> Verdict {
        let request = &self.requests[id as usize];
        let text = String::from_utf8_lossy(text).into_owned();
        let foreign = || Err(self.violation(id, "ownership", &format!("got error {text:?}")));
        let expected = match request.kind {
            Kind::Unknown => text.starts_with(&format!("ERR unknown command 'nope{id}'")),
            Kind::BadProtocol => text.starts_with("ERR Protocol error"),
            Kind::CrossSlot => text.starts_with("CROSSSLOT"),
            Kind::Early => text.starts_with("NOAUTH"),
            Kind::ExecAbort => text.starts_with("EXECABORT"),
            Kind::Learned => {
                !around.learned && text.starts_with("ERR unknown command 'mod.append'")
            }
            _ => false,
        };
        if expected {
            return Ok(Outcome::NotRun);
        }
        if let Some((_, key)) = text.rsplit_once(" #")
            && !key.is_empty()
            && !key.contains("}absent-")
            && !request.keys.iter().any(|own| own == key.as_bytes())
            && !self.transaction_reads(id, key.as_bytes())
        {
            return foreign();
        }
        if let Kind::EvalSha(_) = request.kind
            && text.starts_with("NOSCRIPT")
        {
            return self.judge_unknown_script(id);
        }
        if matches!(request.kind, Kind::Eval(_) | Kind::EvalSha(_) | Kind::Learned) {
            let script = match request.kind {
                Kind::Eval(script) | Kind::EvalSha(script) => SCRIPTS[usize::from(script)],
                _ => "append",
            };
            return self.judge_script_error(id, script, &text, around);
        }
        if text.starts_with("CROSSSLOT") && !around.split && request.keys.len() > 1 {
            return Ok(Outcome::NotRun);
        }
        let Some(outcome) = self.outcome_of(id, &text) else { return foreign() };
        self.needless(id, &text, around)?;
        Ok(outcome)
    }

    /// What an error says of whether the request ran; `None`: it may not be said.
    fn outcome_of(&self, id: u32, text: &str) -> Option<Outcome> {
        let request = &self.requests[id as usize];
        let everywhere =
            matches!(request.kind, Kind::DbSize | Kind::Scan | Kind::ScriptLoad | Kind::Wait)
                || matches!(request.kind, Kind::Select(_) | Kind::WaitAof);
        let whole = matches!(request.kind, Kind::Exec | Kind::BlPop | Kind::Watch);
        let in_parts = (request.keys.len() > 1 && !whole) || everywhere;
        let at_nodes = !request.keys.is_empty() || everywhere || request.kind == Kind::Exec;
        const NOT_RUN: [&str; 16] = [
            "EXECABORT",
            "UNBLOCKED",
            "ERR max blocking connections reached",
            "ERR max private connections reached",
            "ERR redirect to a node that is not in the cluster",
            "ERR no connection to server, the command has not run",
            "ERR no reply from server in time, the command has not run",
            "ERR the node ",
            "ERR too many redirects",
            "ERR WAITAOF cannot be used with replica instances",
            "CLUSTERDOWN",
            "TRYAGAIN",
            "LOADING",
            "MASTERDOWN",
            "READONLY",
            "MISCONF",
        ];
        const UNKNOWN: [&str; 3] = [
            "ERR connection to server lost, the command may have run",
            "ERR no reply from server in time, the command may have run",
            "ERR unreadable reply from server, the command may have run",
        ];
        if !at_nodes {
            None
        } else if UNKNOWN.iter().any(|start| text.starts_with(start)) {
            Some(Outcome::Unknown)
        } else if NOT_RUN.iter().any(|start| text.starts_with(start)) {
            Some(if in_parts { Outcome::Unknown } else { Outcome::NotRun })
        } else {
            None
        }
    }

    fn judge_script_error(
        &self,
        id: u32,
        script: &str,
        text: &str,
        around: &Circumstances,
    ) -> Verdict {
        let said_by_script = text.contains("said by a script")
            || (script.starts_with("forge")
                && (text.starts_with("MOVED") || text.starts_with("ASK")));
        if said_by_script && (script.starts_with("forge") || script.starts_with("write-")) {
            return Ok(Outcome::Done);
        }
        if text.starts_with("MOVED") || text.starts_with("ASK") {
            // Shown when its target is not in the map: a script may have said it.
            self.needless(id, text, around)?;
            return Ok(Outcome::Unknown);
        }
        let hostile = script.starts_with("split") || script == "three";
        if hostile && text.starts_with("ERR bad engine") {
            return Err(self.violation(id, "fence", "two frames passed for one reply"));
        }
        match self.outcome_of(id, text) {
            Some(outcome) => {
                if !hostile && !script.starts_with("forge") {
                    self.needless(id, text, around)?;
                }
                // What is refused behind the fence is the script's word as well as the node's.
                Ok(if text.contains("not run") { outcome } else { Outcome::Unknown })
            }
            None => Err(self.violation(id, "ownership", &format!("got error {text:?}"))),
        }
    }

    /// In a calm run nothing fails but for a good reason.
    fn needless(&self, id: u32, text: &str, around: &Circumstances) -> Result<(), Violation> {
        let request = &self.requests[id as usize];
        let fenced = matches!(
            request.kind,
            Kind::Eval(_) | Kind::EvalSha(_) | Kind::Learned | Kind::ScriptLoad
        );
        // One that has a script in it goes through the fence, too.
        let behind_own = request.kind == Kind::Exec && around.hostile;
        if !around.calm
            || behind_own
            || (fenced && (around.hostile || text.starts_with("READONLY")))
            || (text.starts_with("CLUSTERDOWN") && !around.mapped)
            // A node is no primary any more, and may have lost what it is asked about.
            || (around.fails_over && request.kind == Kind::WaitAof)
            // Some of its keys have moved and some have not: no node can run it.
            || text.contains("connections reached")
            || (text.starts_with("TRYAGAIN")
                && matches!(request.kind, Kind::Exec | Kind::BlPop | Kind::Watch))
        {
            return Ok(());
        }
        let earlier = request.issued_tick.saturating_sub(200);
        let moves = request.keys.iter().map(|key| self.moves_since(slot_of(key), earlier)).max();
        // Without a key of its own it may have been led by any slot.
        let moves = moves
            .unwrap_or_else(|| self.moves.iter().rev().take_while(|of| of.1 >= earlier).count());
        let gave_up = ["ERR too many redirects", "TRYAGAIN", "READONLY"];
        if gave_up.iter().any(|start| text.starts_with(start)) && moves >= 2 {
            return Ok(());
        }
        // One that was sent behind it has run: it must not run any more.
        if text.starts_with("TRYAGAIN") && self.may_be_overtaken(id) {
            return Ok(());
        }
        Err(self.violation(id, "needless error", &format!("{text:?} in a calm run")))
    }

    fn judge_success(&self, id: u32, raw: &[u8], value: &Value) -> Verdict {
        let request = &self.requests[id as usize];
        let foreign = || {
            let shown = String::from_utf8_lossy(&raw[..raw.len().min(200)]).into_owned();
            Err(self.violation(id, "ownership", &format!("got {shown:?}")))
        };
        let number = value.as_integer();
        let right = match request.kind {
            Kind::Set | Kind::MSet => raw == b"+OK\r\n" && self.ran_on_all(id),
            Kind::IncrBy | Kind::Append | Kind::Learned | Kind::Push => {
                number.is_some() && request.runs.first().map(|run| run.result) == number
            }
            Kind::Get => return self.judge_read(id, &request.keys[0], value, raw),
            Kind::Incr => {
                let Some(total) = number else { return foreign() };
                let total = Value::Bulk(total.to_string().into_bytes());
                self.check_state(id, &request.keys[0], &total, true)?;
                true
            }
            Kind::MGet => {
                let Some(values) = value.as_array() else { return foreign() };
                if values.len() != request.keys.len() {
                    return foreign();
                }
                for (key, value) in request.keys.iter().zip(values) {
                    self.judge_read(id, key, value, raw)?;
                }
                true
            }
            Kind::Del | Kind::Exists => {
                let real = request.keys.iter().filter(|key| item::mark(key).is_none()).count();
                number.is_some_and(|count| (0..=real as i64).contains(&count))
            }
            Kind::ScriptLoad => value.as_str() == Some(&scripts::name(&scripts::body(id))),
            Kind::Wait => number.is_some_and(|count| count >= 0),
            // How much of it is true: `synced`.
            Kind::WaitAof => value.as_array().is_some_and(|of| {
                of.len() == 2 && of.iter().all(|one| one.as_integer().is_some_and(|n| n >= 0))
            }),
            Kind::Select(_) => raw == b"+OK\r\n",
            Kind::Queued => raw == b"+QUEUED\r\n" || raw == b"+OK\r\n",
            Kind::Watch => raw == b"+OK\r\n",
            Kind::BlPop => self.is_right_pop(id, value)?,
            Kind::Exec if *value == Value::Null && self.guards.contains_key(&id) => {
                return Ok(Outcome::NotRun);
            }
            Kind::Exec => {
                self.check_guard(id)?;
                self.is_right_exec(id, value)
            }
            Kind::Reset => raw == b"+RESET\r\n",
            Kind::ReplyOn | Kind::Auth => raw == b"+OK\r\n",
            Kind::Scan => value.as_array().is_some_and(|parts| parts.len() == 2),
            Kind::DbSize => number.is_some_and(|count| count >= 0),
            Kind::Eval(script) | Kind::EvalSha(script) => {
                return self.judge_script(id, SCRIPTS[usize::from(script)], raw, value);
            }
            Kind::Ping | Kind::Echo => value.as_str() == Some(&format!("token{id}")),
            Kind::Hello(version) => {
                value.get("proto").and_then(Value::as_integer) == Some(i64::from(version))
            }
            Kind::Quit => raw == b"+OK\r\n",
            _ => false,
        };
        if right { Ok(Outcome::Done) } else { foreign() }
    }

    fn judge_script(&self, id: u32, script: &str, raw: &[u8], value: &Value) -> Verdict {
        let request = &self.requests[id as usize];
        let right = match script {
            "append" => {
                let number = value.as_integer();
                number.is_some() && request.runs.first().map(|run| run.result) == number
            }
            "read" => return self.judge_read(id, &request.keys[0], value, raw),
            "nested" => raw == format!("*2\r\n*1\r\n*1\r\n$2\r\nhi\r\n:{id}\r\n").as_bytes(),
            _ => false,
        };
        if right {
            return Ok(Outcome::Done);
        }
        let shown = String::from_utf8_lossy(raw).into_owned();
        let checker = if raw.starts_with(b"$8") { "fence" } else { "ownership" };
        Err(self.violation(id, checker, &format!("script {script} got {shown:?}")))
    }

    fn ran_on_all(&self, id: u32) -> bool {
        let request = &self.requests[id as usize];
        request.keys.iter().all(|key| request.runs.iter().any(|run| run.key == *key))
    }

    fn judge_read(&self, id: u32, key: &[u8], value: &Value, raw: &[u8]) -> Verdict {
        let request = &self.requests[id as usize];
        let is = |what: &[u8]| raw.windows(what.len()).any(|window| window == what);
        let wrong_null = match request.version {
            Version::Resp2 => raw == b"_\r\n" || is(b"\r\n_\r\n"),
            Version::Resp3 => is(b"$-1\r\n"),
        };
        if wrong_null {
            return Err(self.violation(id, "version", "null of the other protocol"));
        }
        self.check_state(id, key, value, false)?;
        Ok(Outcome::Done)
    }

    /// Whether `value` was the state of `key` at a moment when this request could have run.
    /// `wrote`: it is the state that this request itself left.
    fn check_state(
        &self,
        id: u32,
        key: &[u8],
        value: &Value,
        wrote: bool,
    ) -> Result<(), Violation> {
        let state = match value {
            Value::Null => 0,
            Value::Bulk(bytes) => {
                let plain = bytes.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-');
                if !plain && item::writers(key, bytes).is_none() {
                    let shown =
                        String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).into_owned();
                    return Err(self.violation(id, "ownership", &format!("got value {shown:?}")));
                }
                item::hash(bytes)
            }
            _ => return Err(self.violation(id, "ownership", &format!("got {value:?}"))),
        };
        let (low, high) = self.moments(id, key);
        let empty = Vec::new();
        let states = self.states.get(key).unwrap_or(&empty);
        let mut from = 0;
        let mut content = 0;
        for &(next_from, next_content) in states.iter().chain([&(u64::MAX, 0)]) {
            // The command at tick `from` made it; later ones saw it.
            let fits = if wrote {
                from > low && from < high
            } else {
                from.max(low) + 1 < next_from.min(high)
            };
            if content == state && fits {
                return Ok(());
            }
            (from, content) = (next_from, next_content);
        }
        if self.forked.contains(key) {
            return Ok(());
        }
        let text = format!("no state of its key between ticks {low} and {high}: {value:?}");
        let text: String = text.chars().take(300).collect();
        Err(self.violation(id, "order", &text))
    }

    /// How often a slot has changed hands since.
    pub fn moves_since(&self, slot: u16, tick: u64) -> usize {
        let moves = self.moves.iter().rev().take_while(|of| of.1 >= tick);
        moves.filter(|of| of.0 == slot).count()
    }

    /// The ticks after and before which it must have run.
    fn moments(&self, id: u32, key: &[u8]) -> (u64, u64) {
        let request = &self.requests[id as usize];
        let (mut low, mut high) = (request.issued_tick, self.tick + 1);
        let disturbed = self.losses.iter().rev();
        let disturbed = disturbed.take_while(|&&tick| tick >= request.issued_tick).count() > 0;
        let own = self.by_key.get(&(request.client, key.to_vec()));
        for &other in own.into_iter().flatten() {
            let them = &self.requests[other as usize];
            let Some(run) = them.runs.iter().find(|run| run.key == key) else { continue };
            if other < id && them.outcome == Outcome::Done {
                low = low.max(run.tick);
            }
            if other > id && !disturbed {
                high = high.min(run.tick);
            }
        }
        (low, high)
    }

    fn violation(&self, id: u32, checker: &'static str, text: &str) -> Violation {
        let request = &self.requests[id as usize];
        let keys: Vec<_> = request.keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
        let text = format!(
            "client {} request {id} {:?} {keys:?} ({:?}): {text}",
            request.client, request.kind, request.version
        );
        Violation { checker, text }
    }
}
