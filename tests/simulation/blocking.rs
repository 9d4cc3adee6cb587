//! Nodes that keep a connection blocked, and the guard of WATCH: what they do, what may come of it.
//!
//! Not here: what clients ask (`workload`, `transactions`).

use ringway::cluster::slot_of;
use ringway::resp::value::Value;

use crate::history::{History, Kind, Outcome, Violation};
use crate::item;
use crate::nodes::{Answer, Cluster, Login, Mood, bulk, keys_of};
use crate::plant::Plant;
use crate::world::{Event, World};

/// A connection that waits for an element.
#[derive(Debug)]
pub struct Blocked {
    args: Vec<Vec<u8>>,
    since: u64,
    since_us: u64,
    until_us: u64,
}

/// How often a node looks after its blocked connections, µs.
const LOOK_US: u64 = 50_000;

impl World {
    /// The node found nothing to pop.
    pub fn block(&mut self, link: usize, args: &[Vec<u8>]) {
        if self.links[link].ended {
            // The end comes right behind.
            return;
        }
        let seconds: f64 = std::str::from_utf8(&args[args.len() - 1])
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        let until_us = self.now_us + (seconds * 1e6) as u64;
        let since = self.history.tick;
        self.links[link].blocked =
            Some(Blocked { args: args.to_vec(), since, since_us: self.now_us, until_us });
        self.look_soon(link);
    }

    fn look_soon(&mut self, link: usize) {
        let Some(blocked) = &self.links[link].blocked else { return };
        let at = blocked.until_us.min(self.now_us + 1 + self.random.below(LOOK_US));
        self.at(at, Event::Look { link });
    }

    /// A node looks after a blocked connection: its time may be over, or its slot gone.
    pub fn look_after(&mut self, link: usize) {
        let node = self.links[link].node;
        if !self.links[link].up || !self.cluster.nodes[node].alive {
            self.links[link].blocked = None;
        }
        let Some(blocked) = &self.links[link].blocked else { return };
        let nil: &[u8] = if self.links[link].login.resp3 { b"_\r\n" } else { b"*-1\r\n" };
        let keys = keys_of(b"BLPOP", &blocked.args);
        let refused =
            self.cluster.refusal_of(node, b"BLPOP", &keys, false, Mood::Fine, self.now_us);
        let refused = refused.unwrap_or_default();
        let reply: Vec<u8> = if refused.starts_with(b"-READONLY") {
            b"-UNBLOCKED force unblock from blocking operation, instance state changed\r\n".to_vec()
        } else if refused.starts_with(b"-MOVED") || refused.starts_with(b"-CLUSTERDOWN") {
            refused
        } else if blocked.until_us <= self.now_us {
            nil.to_vec()
        } else {
            self.wake_blocked(node);
            return self.look_soon(link);
        };
        if reply[0] == b'-' {
            self.history.disturbed();
        }
        self.links[link].blocked = None;
        self.say(link, reply);
    }

    fn say(&mut self, link: usize, reply: Vec<u8>) {
        let this = &mut self.links[link];
        this.written += reply.len() as u64;
        if !this.mute && this.up {
            let socket = this.socket;
            self.carry_to_proxy(socket, reply);
        }
    }

    /// Gives what there is to pop at a node to those who wait, the longest first.
    pub fn wake_blocked(&mut self, node: usize) {
        loop {
            let waiting = self.links.iter().enumerate().filter(|(_, link)| {
                let has = |key: &&[u8]| self.cluster.nodes[node].data.contains_key(*key);
                let wanted = link.blocked.as_ref();
                link.node == node
                    && link.up
                    && wanted.is_some_and(|of| keys_of(b"BLPOP", &of.args).iter().any(has))
            });
            let first = waiting.min_by_key(|(_, link)| link.blocked.as_ref().map(|of| of.since));
            let Some((link, _)) = first else { return };
            let Some(blocked) = self.links[link].blocked.take() else { return };
            let keys = keys_of(b"BLPOP", &blocked.args);
            let moved =
                self.cluster.refusal_of(node, b"BLPOP", &keys, true, Mood::Fine, self.now_us);
            if moved.is_some_and(|line| !line.starts_with(b"-TRYAGAIN")) {
                // It will be told when the node looks after it.
                self.links[link].blocked = Some(blocked);
                return;
            }
            let reply = self.pop_for(link, &blocked);
            self.say(link, reply);
        }
    }

    /// A node has changed keys: those who watch them there will see it.
    pub fn touch(&mut self, node: usize, changed: &[(Vec<u8>, Option<Vec<u8>>)]) {
        for &link in &self.watching {
            let login = &self.links[link].login;
            let of_them = |key: &[u8]| login.watched.iter().any(|(watched, _)| watched == key);
            if self.links[link].node == node && changed.iter().any(|(key, _)| of_them(key)) {
                self.links[link].login.touched = true;
            }
        }
    }

    fn pop_for(&mut self, link: usize, blocked: &Blocked) -> Vec<u8> {
        let node = self.links[link].node;
        self.history.tick += 1;
        let mut answer = Answer::default();
        self.cluster.now_us = self.now_us;
        self.cluster.pop(node, &blocked.args, &mut answer);
        let stream = &mut self.cluster.nodes[node].stream;
        self.history.written = (node, stream.write(!answer.changed.is_empty(), self.now_us));
        self.history.now_us = self.now_us;
        self.touch(node, &answer.changed);
        for (key, value) in answer.changed {
            self.history.changed(key, value.as_deref());
        }
        for (id, key, result) in answer.ran {
            self.history.woken.insert(id, blocked.since_us);
            self.history.ran(id, key, result, link);
        }
        self.note(answer.reply.len() as u64 | 13 << 40, || {
            format!("node {node} link {link} pops {:?}", String::from_utf8_lossy(&answer.reply))
        });
        answer.reply
    }

    /// The proxy has closed a connection: what was blocked on it is over.
    pub fn end_blocked(&mut self, link: usize) -> bool {
        if self.plant == Plant::KeepBlocked {
            return self.links[link].blocked.is_some();
        }
        if self.links[link].blocked.take().is_some() {
            self.links[link].up = false;
        }
        false
    }
}

impl Cluster {
    /// `BLPOP key !id timeout`: the first element, or nothing and `blocks`.
    pub fn pop(&mut self, node: usize, args: &[Vec<u8>], answer: &mut Answer) {
        let data = &mut self.nodes[node].data;
        let (key, id) = (&args[1], item::mark(&args[2]).unwrap_or(0));
        let Some(list) = data.get(key) else {
            answer.blocks = true;
            return;
        };
        let end = list.iter().position(|&byte| byte == b';').map_or(list.len(), |at| at + 1);
        let (element, rest) = (list[..end].to_vec(), list[end..].to_vec());
        let writer = item::writers(key, &element).and_then(|ids| ids.first().copied());
        let rest = (!rest.is_empty()).then_some(rest);
        answer.changed.push((key.clone(), rest.clone()));
        match rest {
            Some(rest) => data.insert(key.clone(), rest),
            None => data.remove(key),
        };
        answer.ran.push((id, key.clone(), writer.unwrap_or(0).into()));
        if self.plant == Plant::PopTwice && self.now_us % 8 == 3 {
            answer.ran.push((id, key.clone(), 0));
        }
        answer.reply = [b"*2\r\n".to_vec(), bulk(key), bulk(&element)].concat();
    }

    /// WATCH: what the keys hold now.
    pub fn watch(&self, node: usize, login: &mut Login, args: &[Vec<u8>]) {
        for key in &args[1..] {
            let content = self.nodes[node].data.get(key).cloned();
            login.watched.push((key.clone(), content));
        }
    }

    pub fn unwatch(&self, login: &mut Login) {
        login.watched.clear();
        login.touched = false;
    }

    /// Whether a watched key was written to or has left. The guard ends in any case.
    pub fn guard_fails(&self, node: usize, login: &mut Login) -> bool {
        let touched = std::mem::take(&mut login.touched);
        let watched = std::mem::take(&mut login.watched);
        let differs =
            |(key, content): &(_, _)| self.nodes[node].data.get(key) != Option::as_ref(content);
        touched || watched.iter().any(differs)
    }
}

impl History {
    /// What BLPOP answered is what was popped for it.
    pub fn is_right_pop(&self, id: u32, value: &Value) -> Result<bool, Violation> {
        let request = &self.requests[id as usize];
        if *value == Value::Null {
            if let Some(run) = request.runs.first() {
                let text = format!("request {id} was told nil, and {run:?} was popped for it");
                return Err(Violation { checker: "lost element", text });
            }
            return Ok(true);
        }
        let Some([key, element]) = value.as_array() else { return Ok(false) };
        let key = key.as_bytes().unwrap_or_default();
        let writers = item::writers(key, element.as_bytes().unwrap_or_default());
        let popped = request.runs.first().filter(|run| run.key == key).map(|run| run.result);
        Ok(writers.is_some_and(|ids| ids.len() == 1 && popped == Some(i64::from(ids[0]))))
    }

    /// No element is popped for a client that had left long before.
    pub fn check_pops(&mut self) {
        let late = self.requests.iter().enumerate().find_map(|(id, request)| {
            let run = request.runs.first().filter(|_| request.kind == Kind::BlPop)?;
            let left_us = request.left_us.filter(|_| request.outcome == Outcome::Left)?;
            // What finds an element at once runs as any command that was sent before.
            let left_us = left_us.max(*self.woken.get(&(id as u32))?);
            (run.us > left_us + self.slack_us).then(|| (id, run.clone(), left_us))
        });
        if let Some((id, run, left_us)) = late {
            let text = format!("request {id}: {run:?} popped, its client left at {left_us} µs");
            self.violate("lost element", text);
        }
    }

    /// A transaction ran under its guard: nobody changed the key between WATCH and EXEC.
    pub fn check_guard(&self, id: u32) -> Result<(), Violation> {
        let Some((watch, key)) = self.guards.get(&id) else { return Ok(()) };
        let exec = self.requests[id as usize].runs.first().map(|run| run.tick);
        let watched = self.watches.get(watch).copied();
        let (Some(exec), Some(watched)) = (exec, watched) else { return Ok(()) };
        if self.requests[*watch as usize].outcome != Outcome::Done {
            return Ok(());
        }
        let states = self.states.get(key).into_iter().flatten();
        let foreign = states.into_iter().find(|(tick, _)| (watched + 1..exec).contains(tick));
        match foreign {
            None => Ok(()),
            Some((tick, _)) => {
                let text = format!(
                    "EXEC {id} ran at {exec}, its key of slot {} watched at {watched} and changed \
                     at {tick}",
                    slot_of(key)
                );
                Err(Violation { checker: "watch", text })
            }
        }
    }
}
