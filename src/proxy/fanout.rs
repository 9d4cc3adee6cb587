//! Requests of several parts: cut by slot, or sent to every primary or every node.
//!
//! Not here: the cutting and merging (`split`), a part's way (`launch`).

use super::Proxy;
use super::dispatch::{Asked, Ran, Source};
use super::launch::{Bytes, UNSERVED_BUDGET_MS};
use super::local::{errors, info};
use super::request::{Marks, NewRequest, State};
use super::split::{Cut, Group, Merge};
use super::types::{NO_SLOT, NONE};
use super::walk::wanted::slot_of_pattern;
use crate::cluster::{SLOTS, UNOWNED, slot_of};
use crate::command::{self, Args, Class, SplitShape};
use crate::resp::request::{Parsed, RequestLimits, RequestParser, encode_request};
use crate::resp::{Version, write};

impl Proxy {
    /// Sends a request of classes C, D, E as one part for each slot, as `cut` says.
    pub(super) fn fan_out_keys(&mut self, asked: Asked, args: &Args, shape: &SplitShape) {
        let cut = std::mem::take(&mut self.cut);
        let merge = merge_of(asked.command.class);
        let s = self.open_parent(asked, merge);
        if merge == Merge::Values {
            self.splits[s].order.extend_from_slice(&cut.group_of);
        }
        let pieces = Pieces { cut: &cut, args, shape };
        self.launch_groups(asked, s, &pieces, Marks::DIVISIBLE);
        self.cut = cut;
    }

    /// Opens the entry that stands for the whole in the client's order.
    pub(super) fn open_parent(&mut self, asked: Asked, merge: Merge) -> u32 {
        self.tally.splits += 1;
        let parent = self.open_for(asked, NO_SLOT);
        let client = &mut self.clients[asked.client];
        if client.head == NONE {
            client.map_version = self.map.version();
        }
        client.push(parent, &mut self.requests);
        self.make_parent(parent, merge, client_version(asked.marks))
    }

    pub(super) fn make_parent(&mut self, r: u32, merge: Merge, version: Version) -> u32 {
        let s = self.splits.open(r, merge, version);
        self.requests[r].state = State::Parent;
        self.requests[r].split = s;
        s
    }

    /// Opens and launches one part for each group of a cut.
    fn launch_groups(&mut self, asked: Asked, s: u32, pieces: &Pieces, several: Marks) {
        let first = self.splits[s].parts.len();
        self.open_groups(asked, s, &pieces.cut.groups, several);
        for group in 0..pieces.cut.groups.len() {
            let build =
                |out: &mut Vec<u8>| pieces.cut.encode(group, pieces.args, pieces.shape, out);
            if !self.launch_part_fast(s, first + group, build) {
                self.launch_part(s, first + group, Bytes::Build(&build));
            }
        }
    }

    /// As `open_part` for each group.
    fn open_groups(&mut self, asked: Asked, s: u32, groups: &[Group], several: Marks) {
        let client = &mut self.clients[asked.client];
        let split = &mut self.splits[s];
        client.in_flight += groups.len() as u32;
        split.pending += groups.len() as u32;
        for group in groups {
            let mut marks = if group.count > 1 { asked.marks.with(several) } else { asked.marks };
            marks.unset(Marks::SILENT);
            let r = self.requests.open(NewRequest {
                client: asked.client,
                client_generation: client.generation,
                slot: group.slot,
                command: asked.command.id,
                marks,
                since: self.now.ms as u32,
            });
            let entry = &mut self.requests[r];
            entry.split = s;
            entry.part = split.parts.len() as u32;
            split.parts.push(r);
        }
    }

    /// Adds a part to a split; it is not on its way yet.
    pub(super) fn open_part(&mut self, asked: Asked, s: u32, slot: u16) -> u32 {
        let r = self.open_for(asked, slot);
        self.clients[asked.client].in_flight += 1;
        let split = &mut self.splits[s];
        let entry = &mut self.requests[r];
        entry.marks.unset(Marks::SILENT);
        entry.split = s;
        entry.part = split.parts.len() as u32;
        split.parts.push(r);
        split.pending += 1;
        r
    }

    pub(super) fn launch_part(&mut self, s: u32, part: usize, bytes: Bytes) {
        // An earlier part's end may have closed the client, and with it the whole.
        let Some(&r) = self.splits[s].parts.get(part) else { return };
        if self.splits[s].parent != NONE && self.requests[r].split == s {
            self.launch(r, bytes);
        }
    }

    /// The common path: as `launch_part`, where nothing is in the way. `false`: nothing was done.
    fn launch_part_fast(&mut self, s: u32, part: usize, build: impl FnOnce(&mut Vec<u8>)) -> bool {
        let split = &self.splits[s];
        let Some(&r) = split.parts.get(part) else { return false };
        let entry = &self.requests[r];
        let there = split.parent != NONE && entry.split == s;
        if !there || entry.marks.has(UNCOMMON) || self.now.ms < self.resharding_ms {
            return false;
        }
        let client = &self.clients[entry.client];
        if client.session.seat != 0 || client.map_version != self.map.version() {
            return false;
        }
        let Some(b) = self.free_way(client, entry.slot, entry.marks) else { return false };
        self.append_to(b, r, build);
        true
    }

    /// A part has its final reply.
    pub(super) fn complete_part(&mut self, r: u32, reply: &[u8]) {
        self.note_if_slow(r);
        let marks = self.requests[r].marks;
        if marks.has(Marks::EXEC) {
            return self.finish_exec(r, reply);
        }
        if !marks.has(Marks::PRIVATE) {
            return self.take_in(r, reply);
        }
        if self.is_sync_leg(r) {
            self.note_sync_reply(r, reply);
        } else if !self.is_at_node(r) {
            let mut counted = Vec::new();
            if self.count_replicas(r, reply, &mut counted) {
                self.take_in(r, &counted);
            }
            return;
        }
        self.take_in(r, reply);
    }

    /// A part's reply, as the merge is to have it.
    fn take_in(&mut self, r: u32, reply: &[u8]) {
        self.settle(r);
        if self.requests[r].state == State::InFlight {
            self.time_part(r);
        }
        let entry = &mut self.requests[r];
        entry.state = State::Done;
        let (c, s) = (entry.client, entry.split);
        let optional = entry.marks.has(Marks::OPTIONAL) && reply.first() == Some(&b'-');
        let split = &mut self.splits[s];
        if !optional && split.absorb(reply) {
            self.keep_for_merge(r, s, reply);
        }
        self.splits[s].pending -= 1;
        if self.clients[c].irregular > 0 {
            self.answer_overtaken(r, reply);
            // That may have closed the client.
            if self.requests[r].client != c || self.requests[r].split != s {
                return;
            }
        }
        if self.splits[s].pending == 0 {
            self.finish_split(s);
        } else if self.clients[c].held > 0 {
            self.after_answer(c);
        }
    }

    fn keep_for_merge(&mut self, r: u32, s: u32, reply: &[u8]) {
        let bytes_max = self.reply_bytes_max();
        let joined_max = self.settings.keys_max_bytes.min(bytes_max);
        let split = &mut self.splits[s];
        split.kept += reply.len();
        let kept_max = if split.merge == Merge::Join { joined_max } else { bytes_max };
        if split.kept > kept_max && split.error.is_empty() {
            errors::reply_too_large(&mut split.error);
        }
        if split.error.is_empty() {
            self.requests.set_reply(r, reply);
        }
    }

    fn finish_split(&mut self, s: u32) {
        if self.splits[s].merge == Merge::Walk {
            return self.walk_on(s);
        }
        let pick = if self.splits[s].merge == Merge::Weighted { self.random() } else { 0 };
        let mut out = std::mem::take(&mut self.merged);
        out.clear();
        let split = &mut self.splits[s];
        let parts = std::mem::take(&mut split.parts);
        if split.merge.keeps_replies() {
            let replies: Vec<&[u8]> = parts.iter().map(|&part| self.requests.reply(part)).collect();
            split.merge(&replies, pick, &mut out);
        } else {
            split.merge(&[], pick, &mut out);
        }
        self.close_parts(s, &parts);
        self.splits[s].parts = parts;
        if let Some(database) = self.splits[s].database {
            self.finish_select(s, database, &mut out);
        }
        if let Some(digest) = self.splits[s].script {
            self.finish_load(&digest, &out);
        }
        self.answer_parent(s, out);
    }

    /// Frees parts that are answered; each counted as a request in flight.
    pub(super) fn close_parts(&mut self, s: u32, parts: &[u32]) {
        for &part in parts {
            self.requests.close(part);
        }
        let parent = self.splits[s].parent;
        self.clients[self.requests[parent].client].in_flight -= parts.len() as u32;
    }

    /// The whole has its reply. `out` is `merged`, which goes back to its place.
    pub(super) fn answer_parent(&mut self, s: u32, mut out: Vec<u8>) {
        let parent = self.splits[s].parent;
        self.splits.close(s);
        let entry = &mut self.requests[parent];
        entry.split = NONE;
        entry.state = State::Done;
        self.complete(parent, &out);
        out.shrink_to(64 * 1024);
        self.merged = out;
    }

    /// TRYAGAIN stays: some of the leg's keys have moved and some have not. Each key by itself, and
    /// with it all that is asked of it: to nodes a key named twice is one.
    pub(super) fn divide(&mut self, r: u32, bytes: &[u8]) {
        let mut spans = Vec::new();
        let mut parser = RequestParser::default();
        let parsed = parser.parse(bytes, &RequestLimits::default(), &mut spans);
        let args = Args { bytes, spans: &spans };
        let mut keys = Vec::new();
        let shape = match (parsed, command::lookup(&args)) {
            (Ok(Parsed::Array { .. }), Ok(command)) => command::keys_of(command, &args, &mut keys)
                .ok()
                .and_then(|()| command::split_shape(command, &args, &keys))
                .map(|shape| (command, shape)),
            _ => None,
        };
        let Some((command, shape)) = shape else {
            return self.fail(r, errors::tryagain);
        };
        self.requests.drop_reply(r);
        let entry = &mut self.requests[r];
        entry.marks.unset(Marks::DIVISIBLE);
        let asked = Asked { client: entry.client, command, marks: divided_marks(entry.marks) };
        let mut cut = Cut::default();
        let words = keys.iter().map(|&key| args.get(key as usize).unwrap_or_default());
        cut.by_key(words.map(|key| (slot_of(key), key)));
        let pieces = Pieces { cut: &cut, args: &args, shape: &shape };
        if entry.split == NONE {
            self.divide_single(r, asked, &pieces);
        } else {
            self.divide_part(r, asked, &pieces);
        }
    }

    fn divide_single(&mut self, r: u32, asked: Asked, pieces: &Pieces) {
        self.settle(r);
        let merge = merge_of(asked.command.class);
        let s = self.make_parent(r, merge, client_version(asked.marks));
        self.splits[s].order.extend_from_slice(&pieces.cut.group_of);
        self.launch_groups(asked, s, pieces, Marks::default());
    }

    /// The new parts take the old one's place in the order of keys.
    fn divide_part(&mut self, r: u32, asked: Asked, pieces: &Pieces) {
        let (s, old) = (self.requests[r].split, self.requests[r].part);
        let split = &mut self.splits[s];
        let looked_at = split.divide(old, split.parts.len() as u32, &pieces.cut.group_of);
        self.note_looked_at(looked_at);
        self.launch_groups(asked, s, pieces, Marks::default());
        // The old part has nothing left to say: an empty array, a count of none, or the others' OK.
        if self.requests[r].split == s {
            match self.splits[s].merge {
                Merge::Values => self.complete_part(r, b"*0\r\n"),
                Merge::Sum => self.complete_part(r, b":0\r\n"),
                _ => self.complete_part(r, b"+OK\r\n"),
            }
        }
    }

    /// Class G: every primary that owns slots, when all that the client asked before is answered.
    pub(super) fn run_all_primaries(&mut self, asked: Asked, args: &Args) -> Ran {
        let allowed = match asked.command.name {
            "FLUSHALL" | "FLUSHDB" => self.settings.allow_flush,
            "KEYS" => self.settings.allow_keys,
            _ => true,
        };
        if !allowed {
            return self.refuse(asked);
        }
        if asked.command.name == "KEYS"
            && let Some(slot) = slot_of_pattern(args.get(1).unwrap_or_default())
        {
            self.launch_single(asked, slot, Source::Borrowed(args.bytes));
            return Ran::Yes;
        }
        let mut adjust = Vec::new();
        if asked.command.name == "SCRIPT|EXISTS" {
            // What we keep can be called once any node has taken it: the others are given it.
            let kept = |name: &[u8]| i64::from(self.scripts.can_give(name).is_some());
            adjust.extend(args.iter().skip(2).map(kept));
        }
        self.ask_primaries(asked, args, Merge::of_policy(asked.command.policy), &adjust)
    }

    /// Sends a request to each primary. `adjust`: what is added to their counts.
    pub(super) fn ask_primaries(
        &mut self,
        asked: Asked,
        args: &Args,
        merge: Merge,
        adjust: &[i64],
    ) -> Ran {
        if self.waits_for_elders(asked.client) {
            return Ran::HoldBack;
        }
        let slots = self.slots_of_primaries();
        if slots.is_empty() {
            return self.no_map(asked);
        }
        let s = self.open_parent(asked, merge);
        self.splits[s].adjust.extend_from_slice(adjust);
        for slot in slots {
            self.open_part(asked, s, slot);
        }
        self.launch_all(s, args.bytes);
        Ran::Yes
    }

    /// INFO with sections that only the nodes know.
    pub(super) fn run_info(&mut self, asked: Asked, args: &Args) -> Ran {
        if self.waits_for_elders(asked.client) {
            return Ran::HoldBack;
        }
        self.freshen_totals();
        let text = info::own_text(args, &self.world(0));
        let lenient = info::asks_for_everything(args);
        let slots = self.slots_of_primaries();
        if slots.is_empty() && !lenient {
            return self.no_map(asked);
        }
        if slots.is_empty() {
            let version = client_version(asked.marks);
            let mut out = Vec::new();
            write::verbatim(&mut out, version, b"txt", &text);
            self.reply_local(asked.client, &out, !asked.marks.has(Marks::SILENT));
            return Ran::Yes;
        }
        // Older nodes know one word only.
        let section = if args.len() == 2 { args.get(1).unwrap_or_default() } else { b"all" };
        let mut question = Vec::new();
        encode_request([b"INFO".as_slice(), section].into_iter(), &mut question);
        let s = self.open_parent(asked, Merge::Info { lenient });
        self.splits[s].set_text(text);
        for slot in slots {
            self.open_part(asked, s, slot);
        }
        self.launch_all(s, &question);
        Ran::Yes
    }

    /// As `ask_primaries`, for a request that has its place in its client's order already.
    pub(super) fn ask_primaries_for(
        &mut self,
        r: u32,
        (asked, bytes): (Asked, &[u8]),
        merge: Merge,
        adjust: &[i64],
    ) {
        let slots = self.slots_of_primaries();
        if slots.is_empty() {
            self.actions.push(super::Action::Report(super::Report::WantRefresh));
            return self.fail(r, errors::no_map);
        }
        self.tally.splits += 1;
        self.clients[asked.client].map_version = self.map.version();
        let s = self.make_parent(r, merge, client_version(asked.marks));
        self.splits[s].adjust.extend_from_slice(adjust);
        for slot in slots {
            self.open_part(asked, s, slot);
        }
        self.launch_all(s, bytes);
    }

    /// Class H: primaries and replicas. A replica that cannot be reached is no error.
    pub(super) fn run_every_node(&mut self, asked: Asked, args: &Args) -> Ran {
        if self.waits_for_elders(asked.client) {
            return Ran::HoldBack;
        }
        let nodes: Vec<u16> =
            self.nodes.indexes().filter(|&node| self.nodes[node].present).collect();
        if nodes.is_empty() {
            return self.no_map(asked);
        }
        let script = self.note_script(asked.command.name, args);
        let s = self.open_parent(asked, Merge::of_policy(asked.command.policy));
        self.splits[s].script = script;
        for node in nodes {
            let mut marks = asked.marks.with(Marks::BY_NODE);
            if !self.nodes[node].primary {
                marks.set(Marks::OPTIONAL);
            }
            let r = self.open_part(Asked { marks, ..asked }, s, NO_SLOT);
            self.requests[r].node = node;
        }
        self.launch_all(s, args.bytes);
        Ran::Yes
    }

    /// Class J: one primary, not always the same.
    pub(super) fn run_any_node(&mut self, asked: Asked, args: &Args) -> Ran {
        if asked.command.name == "RANDOMKEY" {
            return self.run_random_key(asked, args);
        }
        self.random();
        self.launch_single(asked, self.some_slot(), Source::Borrowed(args.bytes));
        Ran::Yes
    }

    /// A key of any primary, by the number of keys that each has.
    fn run_random_key(&mut self, asked: Asked, args: &Args) -> Ran {
        let slots = self.slots_of_primaries();
        if slots.is_empty() {
            return self.no_map(asked);
        }
        let mut count = Vec::new();
        encode_request([b"DBSIZE".as_slice()].into_iter(), &mut count);
        let s = self.open_parent(asked, Merge::Weighted);
        for &slot in &slots {
            self.open_part(asked, s, slot);
            self.open_part(asked, s, slot);
        }
        for n in 0..slots.len() {
            self.launch_part(s, 2 * n, Bytes::Copy(&count));
            self.launch_part(s, 2 * n + 1, Bytes::Copy(args.bytes));
        }
        Ran::Yes
    }

    pub(super) fn launch_all(&mut self, s: u32, bytes: &[u8]) {
        self.clients[self.requests[self.splits[s].parent].client].barrier = true;
        for part in 0..self.splits[s].parts.len() {
            self.launch_part(s, part, Bytes::Copy(bytes));
        }
    }

    /// Whole-cluster commands see what the client did before, and what it does after sees them.
    pub(super) fn waits_for_elders(&mut self, c: u32) -> bool {
        let client = &mut self.clients[c];
        client.barrier = client.head != NONE;
        client.barrier
    }

    /// A slot of each primary that owns any: the part for it follows its shard's fail-over.
    pub(super) fn slots_of_primaries(&self) -> Vec<u16> {
        let mut seen = vec![false; usize::from(u16::MAX) + 1];
        let slots = (0..SLOTS as u16).filter(|&slot| {
            let node = self.map.get(slot);
            node != UNOWNED && !std::mem::replace(&mut seen[usize::from(node)], true)
        });
        slots.collect()
    }

    fn refuse(&mut self, asked: Asked) -> Ran {
        let mut out = Vec::new();
        errors::refused(&mut out, asked.command.name);
        self.reply_local(asked.client, &out, !asked.marks.has(Marks::SILENT));
        Ran::Yes
    }

    /// No primary is known. At the start the first map is waited for, as by what has a slot.
    pub(super) fn no_map(&mut self, asked: Asked) -> Ran {
        self.actions.push(super::Action::Report(super::Report::WantRefresh));
        if self.topology.is_none() && !self.mapless.waited {
            let budget = UNSERVED_BUDGET_MS.min(self.settings.request_timeout_ms);
            let until_ms = self.now.ms + budget;
            self.mapless.clients.push((until_ms, asked.client));
            return Ran::HoldBack;
        }
        let mut out = Vec::new();
        errors::no_map(&mut out);
        self.reply_local(asked.client, &out, !asked.marks.has(Marks::SILENT));
        Ran::Yes
    }

    pub(super) fn check_mapless(&mut self) {
        if self.mapless.clients.first().is_some_and(|&(until_ms, _)| until_ms <= self.now.ms) {
            self.release_mapless(true);
        }
    }

    /// They run what they held back; `waited`: as it is, without a map.
    pub(super) fn release_mapless(&mut self, waited: bool) {
        self.mapless.waited = waited;
        for (_, c) in std::mem::take(&mut self.mapless.clients) {
            self.resume(c);
        }
        self.mapless.waited = false;
    }
}

/// Clients that wait for the first map. All are answered with the one that came first.
#[derive(Debug, Default)]
pub(super) struct Mapless {
    /// Until when, and who; the client may have left since.
    clients: Vec<(u64, u32)>,
    /// Their time is over: they are being answered.
    waited: bool,
}

impl Mapless {
    pub(super) fn any_waits(&self) -> bool {
        !self.clients.is_empty()
    }
}

/// A part with one of these does not simply go to its slot's node.
const UNCOMMON: Marks = Marks::FENCED
    .with(Marks::PRIVATE)
    .with(Marks::BY_NODE)
    .with(Marks::ASKING)
    .with(Marks::EXEC)
    .with(Marks::IRREGULAR);

/// A request and how it is cut.
struct Pieces<'a> {
    cut: &'a Cut,
    args: &'a Args<'a>,
    shape: &'a SplitShape,
}

fn merge_of(class: Class) -> Merge {
    match class {
        Class::SplitValues => Merge::Values,
        Class::SplitCount => Merge::Sum,
        _ => Merge::AllSucceeded,
    }
}

fn client_version(marks: Marks) -> Version {
    if marks.has(Marks::RESP3) { Version::Resp3 } else { Version::Resp2 }
}

/// What parts of a divided leg inherit.
fn divided_marks(marks: Marks) -> Marks {
    let mut kept = Marks::default();
    for mark in [Marks::RETRY_SAFE, Marks::FENCED, Marks::RESP3] {
        if marks.has(mark) {
            kept.set(mark);
        }
    }
    kept
}
