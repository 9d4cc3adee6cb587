//! The model cluster: nodes with slots, keys, migration states and views of each other, and what a
//! node answers to a command by the cluster specification (redis-server: `getNodeByQuery`).
//!
//! Not here: connections and time (`network`), when faults happen (`chaos`), what a client may be
//! told (`checker`).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ringway::cluster::{Endpoint, Node as MapNode, Role, SLOTS, Topology, UNOWNED, slot_of};

use crate::item;
use crate::plant::Plant;

pub const NOBODY: u8 = u8::MAX;

/// What one node believes of another.
#[derive(Clone, Debug)]
pub struct Member {
    pub known: bool,
    pub primary: Option<usize>,
    pub address: SocketAddr,
    pub epoch: u64,
    pub failed: bool,
}

/// Who owns what, as one node sees it, or as it is.
#[derive(Clone, Debug)]
pub struct View {
    pub owner: Vec<u8>,
    pub members: Vec<Member>,
}

#[derive(Debug)]
pub struct Node {
    pub id: String,
    pub alive: bool,
    pub data: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Another number after each start: how its tables are ordered.
    pub process: u64,
    pub view: View,
    pub migrating: BTreeMap<u16, usize>,
    pub importing: BTreeMap<u16, usize>,
    /// Scripts by their names.
    pub scripts: BTreeMap<String, Vec<u8>>,
    pub stream: crate::replication::Stream,
    /// Times until which it is in a bad state, µs.
    pub loading_until: u64,
    pub down_until: u64,
    pub stalled_until: u64,
}

pub struct Cluster {
    pub nodes: Vec<Node>,
    /// How things are.
    pub truth: View,
    /// Every address that a node ever had.
    pub addresses: Vec<SocketAddr>,
    /// Redirects name other addresses than those that the proxy can reach.
    pub nat: bool,
    /// Its nodes' cursors name the slot (Redis 7.4, Valkey 8).
    pub slotted: bool,
    /// How late replicas are.
    pub lag_us: u64,
    /// How often files are synced.
    pub sync_us: u64,
    /// All scripts that nodes ever had, for `Plant::PassUnknown`.
    pub bodies: BTreeMap<String, Vec<u8>>,
    /// A mistake that nodes make now and then, as a wrong proxy would make it look.
    pub plant: Plant,
    pub now_us: u64,
}

/// State of one connection, as the node keeps it.
#[derive(Debug, Default)]
pub struct Login {
    pub asking: bool,
    pub authenticated: bool,
    pub resp3: bool,
    pub database: u32,
    pub queue: Option<crate::transactions::Queue>,
    /// Keys and what they held.
    pub watched: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// One of them has been written to, whatever it holds now.
    pub touched: bool,
}

/// What came of one command.
#[derive(Debug, Default)]
pub struct Answer {
    pub reply: Vec<u8>,
    /// It was not run, and will be tried again: (request, slot).
    pub refused: Option<(u32, u16)>,
    /// It ran: request, key, result as a number where it has one.
    pub ran: Vec<(u32, Vec<u8>, i64)>,
    pub changed: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub fenced: bool,
    /// Nothing is said before there is something to pop.
    pub blocks: bool,
    /// The WATCH that was granted.
    pub watched: Option<u32>,
}

/// Moods: refusals that a node may answer instead of running a command.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Mood {
    Fine,
    TryAgain,
    ClusterDown,
    Loading,
    MasterDown,
    ReadOnly,
    Misconf,
}

impl Cluster {
    pub fn new(primaries: usize, replicas: usize, spares: usize, nat: bool) -> Cluster {
        let count = primaries * (1 + replicas) + spares;
        let mut owner = vec![NOBODY; SLOTS];
        for (slot, owner) in owner.iter_mut().enumerate() {
            *owner = (slot * primaries / SLOTS) as u8;
        }
        let mut members = Vec::new();
        for node in 0..count {
            let is_replica = (primaries..primaries * (1 + replicas)).contains(&node);
            members.push(Member {
                known: node < primaries * (1 + replicas),
                primary: is_replica.then(|| node % primaries),
                address: SocketAddr::from(([10, 0, 0, node as u8 + 1], 7000)),
                epoch: node as u64 + 1,
                failed: false,
            });
        }
        let truth = View { owner, members };
        let addresses = truth.members.iter().map(|member| member.address).collect();
        let nodes = (0..count)
            .map(|node| Node {
                id: format!("{:040x}", node + 0xa0),
                alive: true,
                data: BTreeMap::new(),
                process: node as u64 + 1,
                view: truth.clone(),
                migrating: BTreeMap::new(),
                importing: BTreeMap::new(),
                scripts: BTreeMap::new(),
                stream: crate::replication::Stream::default(),
                loading_until: 0,
                down_until: 0,
                stalled_until: 0,
            })
            .collect();
        Cluster {
            nodes,
            truth,
            addresses,
            nat,
            slotted: false,
            lag_us: 0,
            sync_us: 1,
            bodies: BTreeMap::new(),
            plant: Plant::Nothing,
            now_us: 0,
        }
    }

    /// Whether the planted mistake is made now.
    pub fn errs(&self, plant: Plant) -> bool {
        self.plant == plant && self.now_us % 8 == 3
    }

    pub fn by_address(&self, address: &SocketAddr) -> Option<usize> {
        self.truth.members.iter().position(|member| member.address == *address)
    }

    /// As a redirect says it: 10.x from outside is 172.x inside.
    fn announced(&self, address: SocketAddr) -> SocketAddr {
        self.swapped(address, 10, 172)
    }

    /// The address map: from what is announced to what can be reached.
    pub fn reachable(&self, announced: SocketAddr) -> SocketAddr {
        self.swapped(announced, 172, 10)
    }

    fn swapped(&self, address: SocketAddr, from: u8, to: u8) -> SocketAddr {
        let std::net::IpAddr::V4(ip) = address.ip() else { return address };
        let [first, b, c, d] = ip.octets();
        if !self.nat || first != from {
            return address;
        }
        SocketAddr::from(([to, b, c, d], address.port()))
    }

    /// Keys of a command that runs at `node` that some other node has too, or instead.
    pub fn forked(&self, node: usize, args: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let keys = keys_of(&args[0].to_ascii_uppercase(), args);
        let elsewhere = |key: &[u8]| {
            let mut others = self.nodes.iter().enumerate().filter(|(other, _)| *other != node);
            others.any(|(_, other)| other.data.contains_key(key))
        };
        keys.into_iter().filter(|key| elsewhere(key)).map(<[u8]>::to_vec).collect()
    }

    pub fn primaries(&self) -> Vec<usize> {
        let is_primary =
            |&n: &usize| self.truth.members[n].known && self.truth.members[n].primary.is_none();
        (0..self.nodes.len()).filter(is_primary).collect()
    }

    /// A node learns how things are.
    pub fn gossip(&mut self, node: usize) {
        let view = self.truth.clone();
        let this = &mut self.nodes[node];
        this.migrating.retain(|slot, _| view.owner[usize::from(*slot)] == node as u8);
        this.importing.retain(|slot, _| view.owner[usize::from(*slot)] != node as u8);
        this.view = view;
    }

    /// The map that a node tells.
    pub fn told_by(&self, node: usize) -> Topology {
        let view = &self.nodes[node].view;
        let mut topology = Topology::empty();
        let mut places = vec![UNOWNED; view.members.len()];
        for (n, member) in view.members.iter().enumerate().filter(|(_, member)| member.known) {
            places[n] = topology.nodes.len() as u16;
            let host = member.address.ip().to_string();
            topology.nodes.push(MapNode {
                id: self.nodes[n].id.as_str().into(),
                endpoint: Endpoint { host: host.into(), port: member.address.port() },
                address: Some(member.address),
                role: if member.primary.is_some() { Role::Replica } else { Role::Primary },
                shard: member.primary.unwrap_or(n) as u16,
                healthy: !member.failed,
                epoch: member.epoch,
            });
            topology.epoch = topology.epoch.max(member.epoch);
        }
        for (place, &owner) in topology.owners.iter_mut().zip(&view.owner) {
            *place = places.get(usize::from(owner)).copied().unwrap_or(UNOWNED);
        }
        topology
    }

    /// Runs one command as `node` would.
    pub fn execute(
        &mut self,
        node: usize,
        login: &mut Login,
        args: &[Vec<u8>],
        mood: Mood,
        now_us: u64,
    ) -> Answer {
        self.now_us = now_us;
        let name = args[0].to_ascii_uppercase();
        let asking = std::mem::take(&mut login.asking);
        let mut answer = Answer::default();
        if let Some(reply) = handshake(&name, args, login) {
            answer.reply = reply;
            return answer;
        }
        if !login.authenticated {
            answer.reply = b"-NOAUTH Authentication required.\r\n".to_vec();
            return answer;
        }
        if name == b"SELECT" {
            let (database, reply) = crate::databases::select(args);
            login.database = database.unwrap_or(login.database);
            answer.reply = reply;
            return answer;
        }
        if name == b"ECHO" {
            answer.reply = bulk(&args[1]);
            return answer;
        }
        if let Some(answer) = self.transact(node, login, args, asking, mood, now_us) {
            return answer;
        }
        let keys = keys_of(&name, args);
        answer.fenced = name.starts_with(b"EVAL") || name.starts_with(b"MOD.");
        let slot = keys.first().map(|key| slot_of(key));
        let id = item::request_of(&name, args);
        if let Some(line) = self.refusal(node, args, asking, mood, now_us) {
            answer.refused = id.zip(slot);
            answer.reply = line;
            return answer;
        }
        match name.as_slice() {
            b"PING" => answer.reply = b"+PONG\r\n".to_vec(),
            b"ASKING" => {
                login.asking = true;
                answer.reply = b"+OK\r\n".to_vec();
            }
            b"WATCH" => {
                self.watch(node, login, args);
                answer.watched = id;
                answer.reply = b"+OK\r\n".to_vec();
            }
            b"UNWATCH" => {
                self.unwatch(login);
                answer.reply = b"+OK\r\n".to_vec();
            }
            _ => self.run(node, login, &name, args, &mut answer),
        }
        answer
    }

    /// The error line of a command that is not run here and now.
    fn refusal(
        &self,
        node: usize,
        args: &[Vec<u8>],
        asking: bool,
        mood: Mood,
        now_us: u64,
    ) -> Option<Vec<u8>> {
        let name = args[0].to_ascii_uppercase();
        let keys = keys_of(&name, args);
        self.refusal_of(node, &name, &keys, asking, mood, now_us)
    }

    /// The same for the keys of one command or of all commands of a transaction.
    #[expect(clippy::too_many_arguments, reason = "what a node sees of a command")]
    pub fn refusal_of(
        &self,
        node: usize,
        name: &[u8],
        keys: &[&[u8]],
        asking: bool,
        mood: Mood,
        now_us: u64,
    ) -> Option<Vec<u8>> {
        let this = &self.nodes[node];
        let first = keys.first().copied().unwrap_or_default();
        let line = |text: &str| {
            let mut line = format!("-{text} #").into_bytes();
            line.extend_from_slice(first);
            line.extend_from_slice(b"\r\n");
            Some(line)
        };
        if this.loading_until > now_us {
            return line("LOADING Redis is loading the dataset in memory");
        }
        let slot = slot_of(keys.first()?);
        if this.down_until > now_us {
            return line("CLUSTERDOWN The cluster is down");
        }
        if keys.iter().any(|key| slot_of(key) != slot) {
            return line("CROSSSLOT Keys in request don't hash to the same slot");
        }
        // As getNodeByQuery (cluster.c) has it: one key that is named twice is one.
        let several = keys.iter().any(|&key| key != first);
        let missing = keys.iter().filter(|key| !this.data.contains_key(**key)).count();
        let owner = this.view.owner[usize::from(slot)];
        let is_replica = self.truth.members[node].primary.is_some();
        if owner == node as u8 && is_replica {
            // Demoted a moment ago.
            if !is_read(name) {
                return line("READONLY You can't write against a read only replica.");
            }
            return self.redirect("MOVED", slot, self.truth.owner[usize::from(slot)]);
        }
        if owner == node as u8 {
            if let Some(&target) = this.migrating.get(&slot)
                && missing > 0
            {
                if missing < keys.len() {
                    return line("TRYAGAIN Multiple keys request during rehashing of slot");
                }
                return self.redirect("ASK", slot, target as u8);
            }
        } else if this.importing.contains_key(&slot) && asking {
            if several && missing > 0 {
                return line("TRYAGAIN Multiple keys request during rehashing of slot");
            }
        } else if owner == NOBODY {
            return line("CLUSTERDOWN Hash slot not served");
        } else {
            return self.redirect_as_seen(node, slot, owner);
        }
        match mood {
            Mood::TryAgain if several => line("TRYAGAIN Multiple keys request"),
            Mood::Fine | Mood::TryAgain => None,
            Mood::ClusterDown => line("CLUSTERDOWN The cluster is down"),
            Mood::Loading => line("LOADING Redis is loading the dataset in memory"),
            Mood::MasterDown => line("MASTERDOWN Link with MASTER is down"),
            Mood::ReadOnly if is_read(name) => None,
            Mood::ReadOnly => line("READONLY You can't write against a read only replica."),
            Mood::Misconf => line("MISCONF Redis is configured to save RDB snapshots"),
        }
    }

    fn redirect(&self, word: &str, slot: u16, to: u8) -> Option<Vec<u8>> {
        let address = self.announced(self.truth.members[usize::from(to)].address);
        Some(format!("-{word} {slot} {address}\r\n").into_bytes())
    }

    pub fn redirect_as_seen(&self, node: usize, slot: u16, to: u8) -> Option<Vec<u8>> {
        let address = self.announced(self.nodes[node].view.members[usize::from(to)].address);
        Some(format!("-MOVED {slot} {address}\r\n").into_bytes())
    }

    pub fn run(
        &mut self,
        node: usize,
        login: &Login,
        name: &[u8],
        args: &[Vec<u8>],
        answer: &mut Answer,
    ) {
        if let Some(reply) = self.walked(node, args) {
            answer.reply = reply;
            return;
        }
        let resp3 = login.resp3 != self.errs(Plant::WrongNull);
        let null: &[u8] = if resp3 { b"_\r\n" } else { b"$-1\r\n" };
        let (stale, swapped) = (self.errs(Plant::StaleRead), self.errs(Plant::SwapValues));
        let data = &mut self.nodes[node].data;
        let value = |data: &BTreeMap<Vec<u8>, Vec<u8>>, key: &[u8]| match data.get(key) {
            Some(value) => bulk(value),
            None => null.to_vec(),
        };
        let id = item::request_of(name, args).unwrap_or(0);
        match name {
            b"GET" if stale => answer.reply = null.to_vec(),
            b"GET" => answer.reply = value(data, &args[1]),
            b"MGET" => {
                answer.reply = format!("*{}\r\n", args.len() - 1).into_bytes();
                let mut values: Vec<_> = args[1..].iter().map(|key| value(data, key)).collect();
                if swapped && values.len() > 1 {
                    values.swap(0, 1);
                }
                answer.reply.extend(values.concat());
                answer.note_marks(args);
            }
            b"SET" => {
                write(data, &args[1], args[2].clone(), answer);
                answer.ran.push((id, args[1].clone(), 0));
                answer.reply = b"+OK\r\n".to_vec();
            }
            b"MSET" => {
                for pair in args[1..].chunks(2) {
                    write(data, &pair[0], pair[1].clone(), answer);
                    answer.ran.push((id, pair[0].clone(), 0));
                }
                answer.reply = b"+OK\r\n".to_vec();
            }
            b"APPEND" | b"MOD.APPEND" => append(data, &args[1], &args[2], id, answer),
            b"INCRBY" | b"INCR" => {
                let by = if name == b"INCR" { 1 } else { i64::from(id) };
                let total = data.get(&args[1]).map_or(0, |value| number(value)) + by;
                write(data, &args[1], total.to_string().into_bytes(), answer);
                answer.ran.push((id, args[1].clone(), total));
                answer.reply = format!(":{total}\r\n").into_bytes();
            }
            b"DEL" | b"EXISTS" => {
                let mut count = 0;
                for key in &args[1..] {
                    count += i64::from(data.contains_key(key));
                    if name == b"DEL" && data.remove(key).is_some() {
                        answer.changed.push((key.clone(), None));
                    }
                }
                answer.note_marks(args);
                answer.reply = format!(":{count}\r\n").into_bytes();
            }
            b"RPUSH" => push(data, args, id, answer),
            b"BLPOP" => self.pop(node, args, answer),
            b"FUNCTION" => answer.reply = self.restore_functions(node, args),
            b"DBSIZE" => answer.reply = format!(":{}\r\n", data.len()).into_bytes(),
            b"SCRIPT" | b"EVAL" | b"EVALSHA" => self.run_script(node, name, args, null, answer),
            _ => {
                let name = String::from_utf8_lossy(name);
                answer.reply = format!("-ERR unknown command '{name}' at the node\r\n").into();
            }
        }
    }

    /// `EVAL script 1 key !id`: scripts by their first words; some answer what they like.
    pub fn eval(
        &mut self,
        node: usize,
        script: &[u8],
        args: &[Vec<u8>],
        null: &[u8],
        answer: &mut Answer,
    ) {
        let id = item::request_of(b"EVAL", args).unwrap_or(0);
        let key = args[3].clone();
        let slot = slot_of(&key);
        let other = (node + 1) % self.nodes.len();
        let known = self.announced(self.truth.members[other].address);
        let passes = self.plant == Plant::PassSecond;
        let data = &mut self.nodes[node].data;
        let unit = item::item(&key, id, 0);
        let text = match script.split(|&byte| byte == b' ').next().unwrap_or_default() {
            b"append" => return append(data, &key, &unit, id, answer),
            b"read" => {
                answer.reply = data.get(&key).map_or(null.to_vec(), |value| bulk(value));
                return;
            }
            b"split" if passes => "$8\r\nINJECTED\r\n".to_string(),
            b"split" => "-ERR bad engine\r\n$8\r\nINJECTED\r\n".to_string(),
            b"three" => "+OK\r\n*1\r\n:666666\r\n$8\r\nINJECTED\r\n".to_string(),
            b"forge-unknown" => format!("-MOVED {slot} 66.6.6.6:6666\r\n"),
            b"forge-ask" => format!("-ASK {slot} 66.6.6.6:6666\r\n"),
            b"forge-known" => format!("-MOVED {slot} {known}\r\n"),
            b"forge-slot" => format!("-MOVED {} {known}\r\n", (slot + 1) % SLOTS as u16),
            b"write-tryagain" => {
                append(data, &key, &unit, id, answer);
                format!("-TRYAGAIN said by a script #{}\r\n", String::from_utf8_lossy(&key))
            }
            b"write-loading" => {
                append(data, &key, &unit, id, answer);
                format!("-LOADING said by a script #{}\r\n", String::from_utf8_lossy(&key))
            }
            b"nested" => format!("*2\r\n*1\r\n*1\r\n$2\r\nhi\r\n:{id}\r\n"),
            _ => "-ERR no such script\r\n".to_string(),
        };
        answer.reply = text.into_bytes();
    }
}

impl Answer {
    /// Requests without a value of their own carry a key that names them: `{tag}!id`.
    fn note_marks(&mut self, args: &[Vec<u8>]) {
        for key in &args[1..] {
            if let Some(id) = item::mark(key) {
                self.ran.push((id, key.clone(), 0));
            }
        }
    }
}

fn append(
    data: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    key: &[u8],
    unit: &[u8],
    id: u32,
    answer: &mut Answer,
) {
    let mut value = data.get(key).cloned().unwrap_or_default();
    value.extend_from_slice(unit);
    let len = value.len() as i64;
    write(data, key, value, answer);
    answer.ran.push((id, key.to_vec(), len));
    answer.reply = format!(":{len}\r\n").into_bytes();
}

fn push(data: &mut BTreeMap<Vec<u8>, Vec<u8>>, args: &[Vec<u8>], id: u32, answer: &mut Answer) {
    append(data, &args[1], &args[2], id, answer);
    let list = data.get(&args[1]).into_iter().flatten();
    let count = list.filter(|&&byte| byte == b';').count() as i64;
    if let Some(ran) = answer.ran.last_mut() {
        ran.2 = count;
    }
    answer.reply = format!(":{count}\r\n").into_bytes();
}

fn write(data: &mut BTreeMap<Vec<u8>, Vec<u8>>, key: &[u8], value: Vec<u8>, answer: &mut Answer) {
    answer.changed.push((key.to_vec(), Some(value.clone())));
    data.insert(key.to_vec(), value);
}

fn handshake(name: &[u8], args: &[Vec<u8>], login: &mut Login) -> Option<Vec<u8>> {
    let right = |word: &Vec<u8>| word == crate::parameters::PASSWORD;
    match name {
        b"AUTH" => {
            login.authenticated |= args.last().is_some_and(right);
            Some(b"+OK\r\n".to_vec())
        }
        b"HELLO" => {
            login.authenticated |= args.len() == 5 && right(&args[4]);
            if !login.authenticated {
                return Some(b"-NOAUTH HELLO must be called with the client already\r\n".to_vec());
            }
            login.resp3 = args[1] == b"3";
            Some(b"%1\r\n$5\r\nproto\r\n:3\r\n".to_vec())
        }
        _ => None,
    }
}

fn is_read(name: &[u8]) -> bool {
    matches!(name, b"GET" | b"MGET" | b"EXISTS" | b"WATCH")
}

pub fn keys_of<'a>(name: &[u8], args: &'a [Vec<u8>]) -> Vec<&'a [u8]> {
    let rest = args[1..].iter().map(Vec::as_slice);
    match name {
        b"GET" | b"SET" | b"APPEND" | b"INCR" | b"INCRBY" | b"MOD.APPEND" | b"RPUSH" => {
            rest.take(1).collect()
        }
        b"MGET" | b"DEL" | b"EXISTS" | b"WATCH" => rest.collect(),
        b"BLPOP" => rest.take(args.len() - 2).collect(),
        b"MSET" => rest.step_by(2).collect(),
        b"EVAL" | b"EVALSHA" => rest.skip(2).take(1).collect(),
        _ => Vec::new(),
    }
}

pub fn bulk(bytes: &[u8]) -> Vec<u8> {
    let mut out = format!("${}\r\n", bytes.len()).into_bytes();
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
    out
}

fn number(bytes: &[u8]) -> i64 {
    std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}
