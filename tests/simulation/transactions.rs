//! Transactions: what clients queue, and what nodes do from MULTI to EXEC.
//!
//! Not here: what single commands do (`nodes`), whether a whole ran as a whole (`history`).

use std::collections::BTreeSet;

use ringway::cluster::slot_of;
use ringway::resp::value::Value;

use crate::history::{History, Kind, Step};
use crate::item::{self, item};
use crate::nodes::{Answer, Cluster, Login, Mood, keys_of};
use crate::plant::Plant;
use crate::world::World;

impl World {
    /// MULTI, some commands and EXEC, all of one slot; now and then one of them is refused.
    pub fn ask_transaction(&mut self, client: usize, bytes: &mut Vec<u8>) {
        let tag = self.tag();
        let guard = self.ask_watch(client, tag, bytes);
        let count = 1 + self.random.skewed(4) as u32;
        let spoilt = self.random.chance(100);
        let exec = self.history.requests.len() as u32 + 1 + count + u32::from(spoilt);
        self.queue(client, Kind::Queued, &[b"multi".to_vec()], bytes);
        let (mut steps, mut keys) = (Vec::new(), BTreeSet::new());
        for _ in 0..count {
            let (step, words) = self.draw_step(client, tag, exec, &mut keys);
            steps.push(step);
            self.queue(client, Kind::Queued, &words, bytes);
        }
        if spoilt {
            let id = self.history.requests.len();
            let words = [format!("nope{id}").into_bytes(), b"x".to_vec()];
            self.queue(client, Kind::Unknown, &words, bytes);
        }
        let kind = if spoilt { Kind::ExecAbort } else { Kind::Exec };
        let id = self.queue(client, kind, &[b"EXEC".to_vec()], bytes);
        assert_eq!(id, exec);
        self.history.set_keys(id, keys.into_iter().collect());
        self.history.transactions.insert(id, steps);
        if let Some(guard) = guard {
            self.history.guards.insert(id, guard);
        }
    }

    /// Now and then a WATCH, and now and then an UNWATCH behind it. What EXEC will be guarded by.
    fn ask_watch(
        &mut self,
        client: usize,
        tag: usize,
        bytes: &mut Vec<u8>,
    ) -> Option<(u32, Vec<u8>)> {
        if !self.random.chance(350) {
            return None;
        }
        let key = self.key(client, tag, 'k');
        let watch = self.history.requests.len() as u32;
        let mark = self.placed(client, format!("{{t{tag}}}!{watch}").into_bytes());
        let words = [b"WATCH".to_vec(), key.clone(), mark.clone()];
        let id = self.queue(client, Kind::Watch, &words, bytes);
        self.history.set_keys(id, vec![key.clone(), mark]);
        if self.random.chance(100) {
            self.queue(client, Kind::Queued, &[b"UNWATCH".to_vec()], bytes);
            return None;
        }
        if self.random.chance(200) {
            // Its own write counts as well.
            let id = self.open(client, Kind::Append);
            let words = [b"append".to_vec(), key.clone(), item(&key, id, 0)];
            self.history.set_keys(id, vec![key.clone()]);
            self.put(client, id, self.encoded(client, &words), bytes, true);
        }
        Some((watch, key))
    }

    fn queue(&mut self, client: usize, kind: Kind, words: &[Vec<u8>], bytes: &mut Vec<u8>) -> u32 {
        let id = self.open(client, kind);
        self.put(client, id, self.encoded(client, words), bytes, true);
        id
    }

    fn draw_step(
        &mut self,
        client: usize,
        tag: usize,
        exec: u32,
        keys: &mut BTreeSet<Vec<u8>>,
    ) -> (Step, Vec<Vec<u8>>) {
        let word = |text: &str| text.as_bytes().to_vec();
        let letter = self.random.pick(&['k', 'n', 'p', 'g']);
        let key = self.key(client, tag, if letter == 'n' { 'n' } else { 'k' });
        if letter == 'p' {
            return (Step::Ping, vec![word("PING"), format!("token{exec}").into_bytes()]);
        }
        // Each key is written once, so that each run can be told.
        if letter == 'g' || !keys.insert(key.clone()) {
            return (Step::Get(key.clone()), vec![word("GET"), key]);
        }
        if letter == 'n' {
            let words = vec![word("INCRBY"), key.clone(), exec.to_string().into_bytes()];
            return (Step::IncrBy(key), words);
        }
        match self.random.below(5) {
            0 | 1 => (Step::Set(key.clone()), vec![word("SET"), key.clone(), item(&key, exec, 0)]),
            2 | 3 => {
                let words = vec![word("append"), key.clone(), item(&key, exec, 0)];
                (Step::Append(key), words)
            }
            _ => {
                let mark = format!("!{exec}").into_bytes();
                let words = vec![word("EVAL"), word("append"), word("1"), key.clone(), mark];
                (Step::Append(key), words)
            }
        }
    }
}

/// What a node keeps for a connection since MULTI.
#[derive(Debug, Default)]
pub struct Queue {
    commands: Vec<Vec<Vec<u8>>>,
    failed: bool,
    /// ASKING was said before MULTI: it holds until EXEC.
    asking: bool,
}

impl Cluster {
    /// MULTI, EXEC and what is between; `None`: the connection is in no transaction.
    #[expect(clippy::too_many_arguments, reason = "what a node sees of a command")]
    pub fn transact(
        &mut self,
        node: usize,
        login: &mut Login,
        args: &[Vec<u8>],
        asking: bool,
        mood: Mood,
        now_us: u64,
    ) -> Option<Answer> {
        let name = args[0].to_ascii_uppercase();
        let mut answer = Answer::default();
        if name == b"MULTI" && login.queue.is_none() {
            login.queue = Some(Queue { asking, ..Queue::default() });
            answer.reply = b"+OK\r\n".to_vec();
            return Some(answer);
        }
        let queue = login.queue.as_mut()?;
        if name == b"EXEC" {
            let queue = login.queue.take()?;
            return Some(self.exec(node, login, queue, mood, now_us));
        }
        let keys = keys_of(&name, args);
        answer.reply = match self.refusal_of(node, &name, &keys, queue.asking, mood, now_us) {
            Some(line) => {
                queue.failed = true;
                line
            }
            None => b"+QUEUED\r\n".to_vec(),
        };
        queue.commands.push(args.to_vec());
        Some(answer)
    }

    fn exec(
        &mut self,
        node: usize,
        login: &mut Login,
        queue: Queue,
        mood: Mood,
        now_us: u64,
    ) -> Answer {
        let mut answer = Answer::default();
        let names: Vec<Vec<u8>> =
            queue.commands.iter().map(|args| args[0].to_ascii_uppercase()).collect();
        let both = || names.iter().zip(&queue.commands);
        let keys: Vec<&[u8]> = both().flat_map(|(name, args)| keys_of(name, args)).collect();
        // EXISTS is the proxy's own: it looks for the watched keys.
        let of_client = both().filter(|(name, _)| *name != b"EXISTS");
        let id = of_client.into_iter().find_map(|(name, args)| item::request_of(name, args));
        let reads = |name: &&Vec<u8>| matches!(name.as_slice(), b"GET" | b"EXISTS");
        let writes = names.iter().find(|name| !reads(name)).or(names.first());
        answer.fenced = names.iter().any(|name| name.starts_with(b"EVAL"));
        let refusal = if queue.failed {
            Some(b"-EXECABORT Transaction discarded because of previous errors.\r\n".to_vec())
        } else {
            writes.and_then(|name| self.refusal_of(node, name, &keys, queue.asking, mood, now_us))
        };
        let changed = self.guard_fails(node, login);
        if refusal.is_none() && changed {
            answer.reply = if login.resp3 { b"_\r\n".to_vec() } else { b"*-1\r\n".to_vec() };
            return answer;
        }
        if let Some(line) = refusal {
            answer.refused = id.zip(keys.first().map(|key| slot_of(key)));
            answer.reply = line;
            return answer;
        }
        let mut reply = format!("*{}\r\n", queue.commands.len()).into_bytes();
        for (name, args) in both() {
            let before = answer.ran.len();
            self.run(node, login, name, args, &mut answer);
            if name == b"EXISTS" {
                answer.ran.truncate(before);
            }
            reply.append(&mut answer.reply);
        }
        answer.reply = reply;
        if self.errs(Plant::DenyExec) {
            answer.reply = if login.resp3 { b"_\r\n".to_vec() } else { b"*-1\r\n".to_vec() };
        }
        answer
    }
}

impl History {
    /// Whether a request's transaction reads a key that it does not write, or looks for it because
    /// it is watched.
    pub fn transaction_reads(&self, id: u32, key: &[u8]) -> bool {
        let mut steps = self.transactions.get(&id).into_iter().flatten();
        let watched = self.guards.get(&id).is_some_and(|(_, watched)| watched == key);
        watched || steps.any(|step| matches!(step, Step::Get(read) if read == key))
    }

    /// Whether what EXEC answered is what its commands did.
    pub fn is_right_exec(&self, id: u32, value: &Value) -> bool {
        let (Some(steps), Some(values)) = (self.transactions.get(&id), value.as_array()) else {
            return false;
        };
        let request = &self.requests[id as usize];
        let result = |key: &[u8]| {
            let run = request.runs.iter().find(|run| run.key == key);
            run.map(|run| run.result)
        };
        let right = |(step, value): (&Step, &Value)| match step {
            Step::Set(key) => value.as_str() == Some("OK") && result(key).is_some(),
            Step::Append(key) | Step::IncrBy(key) => {
                value.as_integer().is_some() && value.as_integer() == result(key)
            }
            Step::Get(_) => value.as_bytes().is_some() || *value == Value::Null,
            Step::Ping => value.as_str() == Some(&format!("token{id}")),
        };
        steps.len() == values.len() && steps.iter().zip(values).all(right)
    }
}
