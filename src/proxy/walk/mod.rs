//! SCAN over the whole cluster, one step of it: what nodes are asked, what the client is told.
//!
//! Slots are walked in order, **each one whole**: `CLUSTER GETKEYSINSLOT` answers with all keys of
//! a slot at one moment, and right before and right behind it on the same connection goes a probe,
//! EXISTS of a key of that slot which nobody has. The probes' answers say whether the node was the
//! slot's only one; that before, that it did not become so only after it had told its keys:
//!
//! ```text
//! :0 twice     the slot is here and rests                 its keys are all that there are
//! ASK to B     keys leave for B, one by one               ask here, B, and here again: none must
//!                                                         have come back by then, else anew
//! MOVED        the map was old                            anew, where it is now
//! ```
//! Two looks at a node that a slot leaves are alike although all of it was at B and came back in
//! between. Who takes a slot over gets a new epoch (`cluster_my_epoch`): it must be the same both
//! times. A migration that is given up and begun again changes no epoch; there it is the keys that
//! are back.
//!
//! The client's cursor is the next slot and nothing else. So nothing that happens between two steps
//! can make a key be missed: slots that move, fail-overs, nodes that restart, join or leave. No
//! state is kept here, no walk begins anew, every server version is walked alike. A step returns
//! more than COUNT keys when its slot has more.
//!
//! Only a slot with more keys than should be held at once is walked in pieces with the node's own
//! SCAN. Since Redis 7.4 and Valkey 8.0 its cursor names the slot; before, all of the node's keys
//! are walked and other slots' left out. The cursor then also holds the node's cursor and a
//! fingerprint of its process (`run_id`): hash seeds differ, so another process means that this
//! slot, and only it, begins anew. Keys that leave meanwhile are looked for at their new place when
//! the old one is done (`second`). What cannot be seen, in a large slot only: keys that come back
//! and leave again between two steps.
//!
//! Nor can be seen that a node loses a slot and gets it back between two probes: they leave in one
//! packet, with one question between them.
//!
//! Not here: sending (`scan`), options and cursors as clients write them (`wanted`).

pub(super) mod found;
pub mod wanted;

#[cfg(test)]
mod tests;

use crate::cluster::{SLOTS, slot_of};
use crate::proxy::local::glob;
use crate::resp::reply::{list_header, parse_integer};
use found::{Found, bulk_text, bulks};
use wanted::{Cursor, Pieces, Wanted};

/// Least keys that an old node's SCAN is asked for: most of them are other slots'.
const OLD_COUNT_MIN: u64 = 1000;
/// Questions and answers of one step; then the client is told how far it came.
const ROUNDS_MAX: u32 = 64;
/// Steps of the pattern's match for each byte of an answer, beside `glob::STEPS_MAX`: few patterns
/// take more than one or two.
const STEPS_PER_BYTE: u64 = 16;
/// Slots that are looked at in one round, and in one step.
const WINDOW_MAX: u16 = 256;
const STEP_SLOTS_MAX: u64 = 4096;
/// Slots that are taken in one round.
const TAKE_MAX: usize = 64;
/// Keys that are asked for their TYPE in one round.
const TYPES_MAX: usize = 512;

const END: u16 = SLOTS as u16;

/// Whom a question goes to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum At {
    /// Who owns the slot.
    Owner,
    Node(u16),
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// CLUSTER COUNTKEYSINSLOT
    Count,
    /// CLUSTER GETKEYSINSLOT, so many at most.
    Keys(u32),
    /// EXISTS of a key that nobody has.
    Probe,
    /// INFO server
    Info,
    /// CLUSTER INFO
    Epoch,
    Scan {
        cursor: u64,
        count: u64,
    },
    /// TYPE of a key that was found.
    Type(usize),
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Question {
    pub slot: u16,
    pub at: At,
    pub ask: Ask,
}

/// What came of a question.
#[derive(Copy, Clone, Debug)]
pub struct Answer<'a> {
    pub reply: &'a [u8],
    /// The node that gave it.
    pub node: u16,
    /// How often it was sent on to another node.
    pub redirects: u8,
    /// It had to be asked again: later than the others of its round.
    pub delayed: bool,
    /// Who owns the slot by the map as it is now.
    pub owner: u16,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Stage {
    /// These slots' keys; then the walk stands at `then`.
    Take {
        slots: Vec<u16>,
        then: u16,
    },
    /// How many keys the next slots have.
    Count,
    /// `at` is leaving: what is left, and the epoch,
    Leave,
    /// what has arrived,
    Target(Move, u64),
    /// and whether it still is leaving, and nothing has come back.
    Confirm(Move, u64),
    /// `at` is large: how, and how large.
    Size,
    /// A piece of a large slot.
    Scan,
    /// A large slot was leaving when its node was done: whether it still is, and where it goes,
    Seek,
    /// a piece of what is there (the process that it leaves),
    Follow(Move, u16),
    /// and whether it was there.
    Assure(Move, u64),
    /// TYPE of the keys found, from this one on.
    Types(usize),
    Done,
}

/// Whether a slot was at one node, and all of it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Verdict {
    Rests,
    Leaves(Move),
    Unclear,
}

/// A slot leaves one node for another.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Move {
    from: u16,
    to: u16,
}

impl Move {
    fn names(self, node: u16) -> bool {
        [self.from, self.to].contains(&node)
    }
}

/// One SCAN of a client.
#[derive(Debug)]
pub struct Walk {
    wanted: Wanted,
    stage: Stage,
    /// The slot at which the walk stands, `end` when it is over.
    at: u16,
    begin: u16,
    end: u16,
    pieces: Option<Pieces>,
    found: Found,
    /// Keys found before the slot in hand.
    mark: usize,
    scanned: u64,
    rounds: u32,
    window: u16,
    /// Keys of one slot that are asked for at most; with as many it is large.
    limit: u32,
    whole_max: u32,
    whole_max_old: u64,
    /// Why answers made no sense: matching the keys takes too long.
    pub is_endless: bool,
}

impl Walk {
    /// From `whole_max` keys on a slot is walked in pieces, from `whole_max_old` on where the
    /// nodes' cursors do not name the slot.
    pub fn new(wanted: Wanted, whole_max: u32, whole_max_old: u64) -> Walk {
        let (cursor, only) = (wanted.cursor, wanted.only);
        let at = only.unwrap_or(cursor.slot);
        let pieces = cursor.pieces.filter(|_| at == cursor.slot);
        let stage = match pieces {
            None => Stage::Take { slots: vec![at], then: at + 1 },
            Some(pieces) if pieces.second => Stage::Seek,
            Some(_) => Stage::Scan,
        };
        Walk {
            wanted,
            stage,
            at,
            begin: at,
            end: only.map_or(END, |slot| slot + 1),
            pieces,
            found: Found::default(),
            mark: 0,
            scanned: 0,
            rounds: 0,
            window: 16,
            limit: whole_max,
            whole_max,
            whole_max_old,
            is_endless: false,
        }
    }

    /// What is to be asked next, all at once; nothing: the step is over.
    pub fn questions(&mut self) -> Vec<Question> {
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX && !matches!(self.stage, Stage::Types(_) | Stage::Done) {
            if matches!(self.stage, Stage::Target(..) | Stage::Confirm(..)) {
                self.found.truncate(self.mark);
            }
            self.stage = self.finish();
        }
        let ask = |slot, at, ask| Question { slot, at, ask };
        let here = |kind| ask(self.at, At::Owner, kind);
        let there = |node, kind| ask(self.at, At::Node(node), kind);
        match &self.stage {
            Stage::Take { slots, .. } => slots
                .iter()
                .flat_map(|&slot| probed(self.keys()).map(|a| ask(slot, At::Owner, a)))
                .collect(),
            Stage::Count => (self.at..self.at + self.window_here())
                .flat_map(|slot| probed(Ask::Count).map(|a| ask(slot, At::Owner, a)))
                .collect(),
            Stage::Leave => {
                // The epoch first: whoever still has it when all is confirmed had the slot then.
                let asks = probed(self.keys()).map(here);
                [here(Ask::Epoch)].into_iter().chain(asks).collect()
            }
            Stage::Target(step, _) => vec![there(step.to, self.keys())],
            Stage::Confirm(..) => vec![here(Ask::Probe), here(self.keys()), here(Ask::Epoch)],
            Stage::Seek => vec![here(Ask::Probe), here(Ask::Info)],
            Stage::Assure(..) => vec![here(Ask::Probe)],
            Stage::Size => vec![here(Ask::Info), here(Ask::Count)],
            Stage::Scan => probed(self.scan()).into_iter().chain([Ask::Info]).map(here).collect(),
            Stage::Follow(step, _) => {
                vec![there(step.to, self.scan()), there(step.to, Ask::Info)]
            }
            Stage::Types(from) => (*from..self.found.len().min(from + TYPES_MAX))
                .map(|key| ask(slot_of(self.found.get(key)), At::Owner, Ask::Type(key)))
                .collect(),
            Stage::Done => Vec::new(),
        }
    }

    /// Takes in the answers to `questions`. `None`: they make no sense.
    pub fn hear(&mut self, answers: &[Answer]) -> Option<()> {
        let stage = std::mem::replace(&mut self.stage, Stage::Done);
        self.stage = match (stage, answers) {
            (Stage::Take { slots, then }, _) => self.hear_keys(&slots, then, answers)?,
            (Stage::Count, _) => self.hear_counts(answers)?,
            (Stage::Leave, [epoch, looks @ ..]) => self.hear_leaving(epoch, looks)?,
            (Stage::Target(step, epoch), [keys]) => self.hear_target(step, epoch, keys)?,
            (Stage::Confirm(step, epoch), [probe, keys, again]) => {
                self.hear_confirmed(step, epoch, probe, keys, again)?
            }
            (Stage::Size, [info, count]) => self.hear_size(info, count)?,
            (Stage::Scan, [looks @ .., info]) => self.hear_piece(looks, info)?,
            (Stage::Seek, [probe, info]) => self.hear_sought(probe, info)?,
            (Stage::Follow(step, print), [scan, info]) => {
                self.hear_followed(step, print, scan, info)?
            }
            (Stage::Assure(step, inner), [probe]) => self.hear_assured(step, inner, probe),
            (Stage::Types(from), _) => self.hear_types(from, answers)?,
            (Stage::Done, _) => Stage::Done,
            _ => return None,
        };
        Some(())
    }

    /// Whether it still has to tell this node from others.
    pub fn names(&self, node: u16) -> bool {
        match &self.stage {
            Stage::Target(step, _) | Stage::Confirm(step, _) => step.names(node),
            Stage::Follow(step, _) | Stage::Assure(step, _) => step.names(node),
            _ => false,
        }
    }

    pub fn write_question(&self, question: &Question, nonce: u64, out: &mut Vec<u8>) {
        let key = match question.ask {
            Ask::Type(key) => self.found.get(key),
            _ => b"",
        };
        self.wanted.write_question(question, key, nonce, out);
    }

    /// The reply to the client, in either version.
    pub fn write_reply(&self, out: &mut Vec<u8>) {
        let over = self.at >= self.end;
        let cursor = Cursor { slot: self.at, pieces: self.pieces };
        let text = if over { "0".to_owned() } else { cursor.encode().to_string() };
        self.found.write_reply(text.as_bytes(), out);
    }

    fn window_here(&self) -> u16 {
        self.window.min(self.end - self.at)
    }

    fn keys(&self) -> Ask {
        Ask::Keys(self.limit)
    }

    fn scan(&self) -> Ask {
        let pieces = self.pieces.unwrap_or_default();
        if pieces.slotted {
            let cursor = pieces.inner << 14 | u64::from(self.at);
            return Ask::Scan { cursor, count: self.wanted.count };
        }
        Ask::Scan { cursor: pieces.inner, count: self.wanted.count.max(OLD_COUNT_MIN) }
    }

    // --- whole slots -------------------------------------------------------------------------

    fn hear_keys(&mut self, slots: &[u16], then: u16, answers: &[Answer]) -> Option<Stage> {
        for (&slot, looks) in slots.iter().zip(answers.chunks_exact(LOOKS)) {
            let keys = &looks[1];
            self.at = slot;
            self.mark = self.found.len();
            if elements(keys)? >= u64::from(self.limit) {
                return Some(self.begin_large());
            }
            match judge(looks) {
                Verdict::Rests => self.take(keys.reply, None)?,
                Verdict::Leaves(_) => return Some(Stage::Leave),
                Verdict::Unclear => return Some(self.again()),
            }
        }
        Some(self.go_on(then))
    }

    fn hear_counts(&mut self, answers: &[Answer]) -> Option<Stage> {
        let mut slots = Vec::new();
        let mut then = self.at;
        let needed = self.wanted.count.saturating_sub(self.scanned).max(1);
        let mut sum = 0;
        for looks in answers.chunks_exact(LOOKS) {
            let count = u64::try_from(parse_integer(looks[1].reply)?).ok()?;
            let rests = judge(looks) == Verdict::Rests;
            let is_small = rests && sum + count <= u64::from(self.whole_max);
            if !(rests && count == 0) {
                if !is_small && !slots.is_empty() {
                    break;
                }
                slots.push(then);
                sum += count;
            }
            then += 1;
            if !is_small || sum >= needed || slots.len() >= TAKE_MAX {
                break;
            }
        }
        self.window = (self.window * 4).min(WINDOW_MAX);
        if slots.is_empty() {
            return Some(self.go_on(then));
        }
        Some(Stage::Take { slots, then })
    }

    fn hear_leaving(&mut self, epoch: &Answer, looks: &[Answer]) -> Option<Stage> {
        let keys = looks.get(1)?;
        if elements(keys)? >= u64::from(self.limit) {
            return Some(self.begin_large());
        }
        match judge(looks) {
            Verdict::Leaves(step) if epoch.node == keys.node && !epoch.delayed => {
                self.take(keys.reply, None)?;
                Some(Stage::Target(step, wanted::epoch_of(epoch.reply)?))
            }
            _ => Some(self.again()),
        }
    }

    fn hear_target(&mut self, step: Move, epoch: u64, keys: &Answer) -> Option<Stage> {
        if elements(keys)? >= u64::from(self.limit) {
            self.found.truncate(self.mark);
            return Some(self.begin_large());
        }
        self.take(keys.reply, None)?;
        Some(Stage::Confirm(step, epoch))
    }

    fn hear_confirmed(
        &mut self,
        step: Move,
        epoch: u64,
        probe: &Answer,
        keys: &Answer,
        again: &Answer,
    ) -> Option<Stage> {
        let same = judge_one(keys, probe) == Verdict::Leaves(step)
            && (again.node, again.delayed) == (step.from, false)
            && wanted::epoch_of(again.reply)? == epoch;
        if elements(keys)? >= u64::from(self.limit) {
            // Many have come back: any of those that are not told may be new.
            self.found.truncate(self.mark);
            return Some(self.begin_large());
        }
        let before = self.found.len();
        self.take(keys.reply, None)?;
        if same && self.found.repeats(self.mark, before) {
            self.found.truncate(before);
            return Some(self.go_on(self.at + 1));
        }
        self.found.truncate(self.mark);
        Some(self.again())
    }

    fn again(&self) -> Stage {
        Stage::Take { slots: vec![self.at], then: self.at + 1 }
    }

    fn go_on(&mut self, to: u16) -> Stage {
        self.at = to;
        self.limit = self.whole_max;
        let budget = self.wanted.count.saturating_mul(10);
        let budget = budget.clamp(u64::from(WINDOW_MAX), STEP_SLOTS_MAX);
        let walked = u64::from(self.at - self.begin);
        if self.scanned >= self.wanted.count || walked >= budget || self.at >= self.end {
            return self.finish();
        }
        Stage::Count
    }

    fn finish(&self) -> Stage {
        let typed = self.wanted.kind.is_some() && self.found.len() > 0;
        if typed { Stage::Types(0) } else { Stage::Done }
    }

    /// Notes the keys of a reply that match, of one slot if it is named.
    fn take(&mut self, reply: &[u8], only: Option<u16>) -> Option<()> {
        let pattern = self.wanted.pattern.as_deref();
        let mut steps = glob::STEPS_MAX + STEPS_PER_BYTE * reply.len() as u64;
        let mut matches = |key: &[u8]| match pattern {
            Some(pattern) => glob::matches_within(pattern, key, false, &mut steps),
            None => Some(true),
        };
        for key in bulks(reply)? {
            let key = key?;
            self.scanned += 1;
            if only.is_some_and(|slot| slot_of(key) != slot) {
                continue;
            }
            let wanted = matches(key);
            self.is_endless |= wanted.is_none();
            if wanted? {
                self.found.push(key);
            }
        }
        Some(())
    }

    // --- large slots, in pieces --------------------------------------------------------------

    fn begin_large(&mut self) -> Stage {
        // What has been found goes first.
        if self.at > self.begin && self.scanned > 0 { self.finish() } else { Stage::Size }
    }

    fn hear_size(&mut self, info: &Answer, count: &Answer) -> Option<Stage> {
        let (slotted, print) = wanted::process_of(info.reply)?;
        let count = u64::try_from(parse_integer(count.reply)?).ok()?;
        // Of a slot that leaves only a part is counted here: more with each try.
        let limit = u64::from(self.limit);
        if !slotted && count < self.whole_max_old && limit < self.whole_max_old {
            self.limit = (count + count / 8 + 1024).max(limit * 4) as u32;
            return Some(self.again());
        }
        self.pieces = Some(Pieces { slotted, print, ..Pieces::default() });
        Some(Stage::Scan)
    }

    fn hear_piece(&mut self, looks: &[Answer], info: &Answer) -> Option<Stage> {
        let mut pieces = self.pieces?;
        let scan = looks.get(1)?;
        let verdict = judge(looks);
        if verdict == Verdict::Unclear || info.node != scan.node || info.delayed {
            return Some(Stage::Scan);
        }
        let (slotted, print) = wanted::process_of(info.reply)?;
        if (slotted, print) != (pieces.slotted, pieces.print) {
            self.pieces = Some(Pieces { slotted, print, ..Pieces::default() });
            return Some(Stage::Scan);
        }
        if verdict == Verdict::Rests && pieces.moved {
            // They left and came back: any of them may have been missed.
            self.pieces = Some(Pieces { slotted, print, ..Pieces::default() });
            return Some(Stage::Scan);
        }
        pieces.moved |= verdict != Verdict::Rests;
        let inner = self.take_piece(scan.reply)?;
        if inner == 0 && pieces.moved {
            self.pieces = Some(Pieces { second: true, inner, ..pieces });
            return Some(Stage::Seek);
        }
        Some(self.piece_done(Pieces { inner, ..pieces }, Stage::Scan))
    }

    /// What had not been seen where it left must be where it goes. It is not if it has turned back,
    /// and nobody knows if it has arrived, or leaves another node by now: then it begins anew.
    fn hear_sought(&mut self, probe: &Answer, info: &Answer) -> Option<Stage> {
        if probe.delayed || info.delayed || probe.redirects > 1 {
            return Some(Stage::Seek);
        }
        let pieces = self.pieces?;
        let (_, print) = wanted::process_of(info.reply)?;
        let leaves = probe.redirects == 1 && probe.node != probe.owner && info.node == probe.owner;
        if !leaves || (pieces.inner == 0 && print != pieces.print) {
            return Some(self.anew());
        }
        Some(Stage::Follow(Move { from: probe.owner, to: probe.node }, print))
    }

    fn hear_followed(
        &mut self,
        step: Move,
        left: u16,
        scan: &Answer,
        info: &Answer,
    ) -> Option<Stage> {
        let pieces = self.pieces?;
        if scan.delayed || info.delayed || scan.node != step.to || info.node != step.to {
            return Some(Stage::Seek);
        }
        let (slotted, print) = wanted::process_of(info.reply)?;
        if slotted != pieces.slotted && pieces.inner == 0 {
            self.pieces = Some(Pieces { slotted, ..pieces });
            return Some(Stage::Seek);
        }
        let print = wanted::print_of_both(left, print);
        if pieces.inner != 0 && print != pieces.print {
            return Some(self.anew());
        }
        self.pieces = Some(Pieces { print, ..pieces });
        let inner = self.take_piece(scan.reply)?;
        Some(Stage::Assure(step, inner))
    }

    fn hear_assured(&mut self, step: Move, inner: u64, probe: &Answer) -> Stage {
        match self.pieces {
            Some(pieces) if is_on(step, probe) => {
                self.piece_done(Pieces { inner, ..pieces }, Stage::Seek)
            }
            _ => self.anew(),
        }
    }

    /// The large slot in hand, from its begin.
    fn anew(&mut self) -> Stage {
        self.pieces = None;
        Stage::Size
    }

    fn piece_done(&mut self, pieces: Pieces, next: Stage) -> Stage {
        self.pieces = Some(pieces);
        if pieces.inner == 0 {
            self.pieces = None;
            return self.go_on(self.at + 1);
        }
        if self.scanned >= self.wanted.count { self.finish() } else { next }
    }

    /// Takes the keys of a node's SCAN; where it goes on in this slot, 0 if it does not.
    fn take_piece(&mut self, reply: &[u8]) -> Option<u64> {
        let (count, header) = list_header(reply)?;
        let rest = reply.get(header..).filter(|_| count == 2)?;
        let len = crate::resp::reply::first_frame_len(rest)?;
        let cursor: u64 = std::str::from_utf8(bulk_text(rest.get(..len)?)?).ok()?.parse().ok()?;
        let before = self.scanned;
        self.take(rest.get(len..)?, Some(self.at))?;
        // A node that leaves keys out (MATCH) has looked at as many all the same.
        self.scanned = self.scanned.max(before + self.wanted.count);
        if !self.pieces?.slotted {
            return Some(cursor);
        }
        let same = cursor != 0 && cursor & u64::from(END - 1) == u64::from(self.at);
        Some(if same { cursor >> 14 } else { 0 })
    }

    // --- TYPE --------------------------------------------------------------------------------

    fn hear_types(&mut self, from: usize, answers: &[Answer]) -> Option<Stage> {
        let kind = self.wanted.kind.as_deref()?;
        for (n, answer) in answers.iter().enumerate() {
            let said = answer.reply.strip_prefix(b"+")?.strip_suffix(b"\r\n")?;
            if !said.eq_ignore_ascii_case(kind) {
                self.found.leave_out(from + n);
            }
        }
        let next = from + answers.len();
        Some(if next < self.found.len() { Stage::Types(next) } else { Stage::Done })
    }
}

fn elements(answer: &Answer) -> Option<u64> {
    list_header(answer.reply).map(|(count, _)| count as u64)
}

/// Questions that go out for one that is probed.
const LOOKS: usize = 3;

fn probed(ask: Ask) -> [Ask; LOOKS] {
    [Ask::Probe, ask, Ask::Probe]
}

/// Whether the slot was where the second answer comes from, by the probes around it.
fn judge(looks: &[Answer]) -> Verdict {
    let [before, data, behind] = looks else { return Verdict::Unclear };
    let (first, then) = (judge_one(data, before), judge_one(data, behind));
    match (first, then) {
        // A node that the map named too early may have got the slot after it told its keys.
        (Verdict::Rests, _) => then,
        (Verdict::Leaves(_), Verdict::Leaves(_)) if first == then => then,
        _ => Verdict::Unclear,
    }
}

/// The same by one probe.
fn judge_one(data: &Answer, probe: &Answer) -> Verdict {
    if data.redirects > 0 || data.delayed || probe.delayed || probe.reply != b":0\r\n" {
        return Verdict::Unclear;
    }
    match probe.redirects {
        0 if probe.node == data.node => Verdict::Rests,
        // By ASK: after MOVED the map would name another.
        1 if data.node == data.owner && probe.node != data.node => {
            Verdict::Leaves(Move { from: data.node, to: probe.node })
        }
        _ => Verdict::Unclear,
    }
}

/// Whether a slot that was leaving still is, or has arrived.
fn is_on(step: Move, probe: &Answer) -> bool {
    let found = probe.reply == b":0\r\n" && !probe.delayed && probe.redirects <= 1;
    found && probe.node == step.to && (probe.owner == step.from || probe.owner == step.to)
}
