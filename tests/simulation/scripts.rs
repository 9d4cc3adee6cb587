//! Scripts by name in the model: what nodes keep and lose, what clients ask by EVALSHA, and the checker
//! *noscript*: a script that was loaded or run through the proxy is not unknown to it.
//!
//! Not here: what scripts do (`nodes`).

use ringway::cluster::slot_of;

use crate::checker::Verdict;
use crate::history::{History, Kind, Outcome, Violation};
use crate::item;
use crate::nodes::{Answer, Cluster, bulk};
use crate::plant::Plant;
use crate::workload::SCRIPTS;
use crate::world::World;

/// What SCRIPT LOAD number `id` loads: each another script, that does what one of the harmless does.
pub fn body(id: u32) -> Vec<u8> {
    format!("{} --{id}", SCRIPTS[id as usize % 3]).into_bytes()
}

/// As a server names it.
pub fn name(body: &[u8]) -> String {
    sha1_smol::Sha1::from(body).digest().to_string()
}

impl World {
    /// EVALSHA runs one that its client knows; which, is drawn here.
    pub fn choose_script(&mut self, client: usize, kind: Kind) -> Kind {
        let Kind::EvalSha(_) = kind else { return kind };
        let known = &mut self.clients[client].scripts;
        if known.is_empty() {
            return kind;
        }
        let at = self.random.index(known.len());
        let last = known.len() - 1;
        known.swap(at, last);
        Kind::EvalSha(known[last].0)
    }

    /// The one that was chosen, or one that nobody has ever loaded.
    pub fn script_words(&mut self, client: usize, id: u32, tag: usize) -> Vec<Vec<u8>> {
        let key = self.key(client, tag, 'k');
        let sha = match self.clients[client].scripts.last() {
            Some((_, sha)) => {
                self.history.known_scripts.insert(id);
                sha.clone()
            }
            None => name(format!("never {id}").as_bytes()),
        };
        let words = vec![b"evalsha".to_vec(), sha.into_bytes(), b"1".to_vec(), key.clone()];
        self.history.set_keys(id, vec![key]);
        [words, vec![format!("!{id}").into_bytes()]].concat()
    }

    /// A request is answered: it may be that the proxy knows a script from now on.
    pub fn note_script(&mut self, client: usize, id: u32) {
        let request = &self.history.requests[id as usize];
        if request.outcome != Outcome::Done {
            return;
        }
        let body = match request.kind {
            Kind::ScriptLoad => body(id),
            Kind::Eval(script @ 0..3) => SCRIPTS[usize::from(script)].as_bytes().to_vec(),
            Kind::EvalSha(_) => {
                self.history.by_name += 1;
                return;
            }
            _ => return,
        };
        let script = SCRIPTS.iter().position(|word| body.starts_with(word.as_bytes()));
        let known = (script.unwrap_or(0) as u8, name(&body));
        if !self.clients[client].scripts.contains(&known) {
            self.clients[client].scripts.push(known);
        }
    }

    pub fn lose_scripts(&mut self, node: usize) {
        self.cluster.nodes[node].scripts.clear();
        self.history.forgotten_us.push(self.now_us);
    }
}

impl Cluster {
    /// SCRIPT LOAD, EVAL, EVALSHA.
    pub fn run_script(
        &mut self,
        node: usize,
        name: &[u8],
        args: &[Vec<u8>],
        null: &[u8],
        answer: &mut Answer,
    ) {
        if name == b"SCRIPT" {
            answer.reply = bulk(self.load_script(node, &args[2]).as_bytes());
            return;
        }
        if name == b"EVAL" {
            self.load_script(node, &args[1]);
            return self.eval(node, &args[1], args, null, answer);
        }
        let Some(body) = self.script_at(node, &args[1]) else {
            answer.reply = self.no_script();
            answer.refused = item::request_of(name, args).map(|id| (id, slot_of(&args[3])));
            return;
        };
        self.eval(node, &body, args, null, answer);
        if self.errs(Plant::RunAndDeny) {
            answer.reply = self.no_script();
        }
    }

    /// Returns its name.
    fn load_script(&mut self, node: usize, body: &[u8]) -> String {
        let name = name(body);
        if self.plant == Plant::ForgetLoaded {
            return name;
        }
        if self.plant == Plant::PassUnknown {
            self.bodies.insert(name.clone(), body.to_vec());
        }
        self.nodes[node].scripts.insert(name.clone(), body.to_vec());
        name
    }

    fn script_at(&self, node: usize, name: &[u8]) -> Option<Vec<u8>> {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        self.nodes[node].scripts.get(&name).cloned()
    }

    /// In Redis's words and in Valkey's.
    fn no_script(&self) -> Vec<u8> {
        match self.slotted {
            true => b"-NOSCRIPT No matching script.\r\n".to_vec(),
            false => b"-NOSCRIPT No matching script. Please use EVAL.\r\n".to_vec(),
        }
    }
}

impl History {
    /// NOSCRIPT is right only of what nobody has loaded, when a node lost it once more right after it
    /// was given it again, or when a younger one that was behind it in its lane has run.
    pub fn judge_unknown_script(&self, id: u32) -> Verdict {
        let request = &self.requests[id as usize];
        let again = self.forgotten_us.iter().any(|&at| at >= request.issued_us);
        // What the process before had kept stayed with it.
        let again = again || self.taken_over;
        let in_lanes = |kind: Kind| {
            matches!(kind, Kind::Eval(_) | Kind::EvalSha(_) | Kind::Learned | Kind::Exec)
        };
        let passed = self.may_be_overtaken_by(id, in_lanes);
        if self.known_scripts.contains(&id) && !again && !passed {
            let text = format!("request {id} {:?}: the proxy knows that script", request.kind);
            return Err(Violation { checker: "noscript", text });
        }
        Ok(Outcome::NotRun)
    }
}
