//! Cutting a request by slot, and making one reply of the parts' replies.
//!
//! Pure: words and replies in, bytes out. Policies are named as in the Valkey documentation.
//! Not here: which requests are cut (`command::split_shape`), sending parts (`fanout`).

use ahash::AHashMap;

use super::node_facts;
use super::node_info;
use super::scripts::Digest;
use super::types::NONE;
use super::walk::Walk;
use crate::cluster::SLOTS;
use crate::command::{Args, ResponsePolicy, SplitShape};
use crate::resp::reply::{first_frame_len, list_header, parse_integer};
use crate::resp::request::{write_request_bulk, write_request_header};
use crate::resp::{Version, write};

/// How the parts' replies become one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Merge {
    /// Arrays of values, put back in the order of the caller's keys.
    Values,
    Sum,
    Min,
    /// Arrays of counts: the least in each place.
    Least,
    /// The first reply, if none is an error.
    AllSucceeded,
    /// The first reply that is no error.
    OneSucceeded,
    /// Arrays of 0 and 1, place by place.
    LogicalAnd,
    /// Arrays, one behind the other.
    Join,
    /// Arrays as one, each element once.
    Union,
    /// Arrays of names and counts: the counts added up, name by name.
    Counts,
    /// Pairs of parts, a count and a key each: a key by the weight of its count.
    Weighted,
    /// Texts of INFO, put into the proxy's own. `lenient`: without them it will do by itself.
    Info {
        lenient: bool,
    },
    /// Texts of INFO.
    NodeFacts,
    /// Rounds of questions (`walk`): what the parts say leads to the next.
    Walk,
    /// The one part is a transaction: its reply, as it is.
    Exec,
}

impl Merge {
    /// The merge for a command that all primaries or all nodes run.
    pub fn of_policy(policy: ResponsePolicy) -> Merge {
        match policy {
            ResponsePolicy::Sum => Merge::Sum,
            ResponsePolicy::Min => Merge::Min,
            ResponsePolicy::AllSucceeded | ResponsePolicy::Special => Merge::AllSucceeded,
            ResponsePolicy::OneSucceeded => Merge::OneSucceeded,
            ResponsePolicy::LogicalAnd => Merge::LogicalAnd,
            ResponsePolicy::Default => Merge::Join,
        }
    }

    /// Whether the parts' replies are needed as they are until all are there.
    pub fn keeps_replies(self) -> bool {
        !matches!(self, Merge::Sum | Merge::Min | Merge::AllSucceeded | Merge::OneSucceeded)
    }
}

/// A request of several parts.
#[derive(Debug)]
pub struct Split {
    pub parent: u32,
    pub merge: Merge,
    pub version: Version,
    pub parts: Vec<u32>,
    /// For `Merge::Values`: the part that each of the caller's keys is in.
    pub order: Vec<u32>,
    /// Once a part is divided: the same by part, each with its place in `order`.
    places: Vec<(u32, u32)>,
    /// Once one of many parts is looked for: the first so many of them, by slot.
    by_slot: AHashMap<u16, Vec<u32>>,
    indexed: usize,
    pub pending: u32,
    /// For `Merge::Sum` and `Merge::Counts`: what is added to each count. For `Merge::LogicalAnd`:
    /// 1 where one node's yes is enough.
    pub adjust: Vec<i64>,
    /// Bytes of replies kept.
    pub kept: usize,
    sum: i64,
    /// For `Merge::Walk`: the walk, and a number that nobody outside can foresee.
    pub walk: Option<Box<Walk>>,
    /// SELECT: the database that its client enters if all say OK.
    pub database: Option<u32>,
    /// SCRIPT LOAD: a script that is new.
    pub script: Option<Digest>,
    pub nonce: u64,
    /// The reply so far, and the first error.
    result: Vec<u8>,
    pub error: Vec<u8>,
}

impl Split {
    /// Takes in one part's reply. `true`: the caller keeps the reply for `merge`.
    pub fn absorb(&mut self, reply: &[u8]) -> bool {
        if reply.first() == Some(&b'-') || reply.first() == Some(&b'!') {
            if self.error.is_empty() {
                self.error.extend_from_slice(reply);
            }
            return false;
        }
        match self.merge {
            Merge::Sum | Merge::Min => match parse_integer(reply) {
                Some(number) => self.add(number),
                None => self.spoil(),
            },
            Merge::AllSucceeded | Merge::OneSucceeded | Merge::Exec => {
                if self.result.is_empty() {
                    self.result.extend_from_slice(reply);
                }
            }
            _ => return true,
        }
        false
    }

    /// Adds the parts of one slot to `found`. Returns how many entries that took to find: thousands
    /// of parts may each look for those of its slot. `slot_of`: of a part.
    pub fn add_parts_of(
        &mut self,
        slot: u16,
        slot_of: impl Fn(u32) -> u16,
        found: &mut Vec<u32>,
    ) -> usize {
        // A walk's parts are others in each round.
        if self.parts.len() <= SEARCHED_MAX || self.merge == Merge::Walk {
            found.extend(self.parts.iter().filter(|&&part| slot_of(part) == slot));
            return self.parts.len();
        }
        let new = self.parts.get(self.indexed..).unwrap_or_default();
        for &part in new {
            self.by_slot.entry(slot_of(part)).or_default().push(part);
        }
        self.indexed = self.parts.len();
        let of_slot = self.by_slot.get(&slot).map_or(&[][..], Vec::as_slice);
        found.extend_from_slice(of_slot);
        new.len() + of_slot.len()
    }

    /// The keys of `part` have parts of their own from now on, from `first` on: which, says
    /// `group_of`. Returns how many entries that took to find: thousands of parts may be divided,
    /// so all are put in order once.
    pub fn divide(&mut self, part: u32, first: u32, group_of: &[u32]) -> usize {
        let mut looked_at = 0;
        if self.places.is_empty() {
            looked_at = self.order.len();
            self.places.extend(self.order.iter().zip(0..).map(|(&part, place)| (part, place)));
            self.places.sort_unstable();
        }
        let from = self.places.partition_point(|of| of.0 < part);
        let own = self.places.iter().skip(from).take_while(|of| of.0 == part);
        for (group, &(_, place)) in group_of.iter().zip(own) {
            looked_at += 1;
            if let Some(of) = self.order.get_mut(place as usize) {
                *of = first + group;
            }
        }
        looked_at
    }

    /// For `Merge::Info`: the proxy's own text.
    pub fn set_text(&mut self, text: Vec<u8>) {
        self.result = text;
    }

    fn add(&mut self, number: i64) {
        self.sum = match self.merge {
            Merge::Sum => self.sum.saturating_add(number),
            _ => self.sum.min(number),
        };
    }

    /// A node answered in a form that the command does not have.
    fn spoil(&mut self) {
        if self.error.is_empty() {
            write::error(&mut self.error, UNEXPECTED);
        }
    }

    /// Writes the whole reply, from those of the parts where they were kept. `pick` is any number.
    pub fn merge(&mut self, replies: &[&[u8]], pick: u64, out: &mut Vec<u8>) {
        let does_alone = self.merge == Merge::Info { lenient: true };
        if !self.error.is_empty() && does_alone {
            return write::verbatim(out, self.version, b"txt", &self.result);
        }
        let one_is_enough = self.merge == Merge::OneSucceeded && !self.result.is_empty();
        if !self.error.is_empty() && !one_is_enough {
            return out.extend_from_slice(&self.error);
        }
        let before = out.len();
        let done = match self.merge {
            Merge::Sum | Merge::Min => {
                let adjust: i64 = self.adjust.iter().sum();
                // A node may have dropped a leg of ours just before it counted.
                let least = if self.adjust.is_empty() { i64::MIN } else { 0 };
                write::integer(out, self.sum.saturating_add(adjust).max(least));
                Some(())
            }
            Merge::AllSucceeded | Merge::OneSucceeded | Merge::Exec => {
                out.extend_from_slice(&self.result);
                Some(())
            }
            Merge::Values => merge_values(replies, &self.order, out),
            Merge::Least => merge_least(replies, out),
            Merge::LogicalAnd => merge_and(replies, &self.adjust, out),
            Merge::Join => merge_join(replies, out),
            Merge::Union => merge_union(replies, out),
            Merge::Counts => merge_counts(replies, &self.adjust, out),
            Merge::Weighted => merge_weighted(replies, self.version, pick, out),
            Merge::Info { .. } => node_info::merge(&self.result, replies, self.version, out),
            Merge::NodeFacts => node_facts::merge(replies, self.version, out),
            Merge::Walk => None,
        };
        if done.is_none() {
            out.truncate(before);
            match does_alone {
                true => write::verbatim(out, self.version, b"txt", &self.result),
                false => write::error(out, UNEXPECTED),
            }
        }
    }
}

/// So many parts are looked at one by one.
const SEARCHED_MAX: usize = 64;

const UNEXPECTED: &str = "ERR a node answered a part of this command in an unexpected form";

/// All requests of several parts.
#[derive(Debug, Default)]
pub struct Splits {
    entries: Vec<Split>,
    free: Vec<u32>,
}

impl Splits {
    #[inline]
    pub fn are_some_open(&self) -> bool {
        self.entries.len() > self.free.len()
    }

    /// Walks under way, each with the parts of its round.
    pub fn walks(&self) -> impl Iterator<Item = (&Walk, &[u32])> {
        let open = self.entries.iter().filter(|split| split.parent != NONE);
        open.filter_map(|split| Some((split.walk.as_deref()?, &split.parts[..])))
    }
}

impl std::ops::Index<u32> for Splits {
    type Output = Split;
    fn index(&self, index: u32) -> &Split {
        &self.entries[index as usize]
    }
}

impl std::ops::IndexMut<u32> for Splits {
    fn index_mut(&mut self, index: u32) -> &mut Split {
        &mut self.entries[index as usize]
    }
}

impl Splits {
    pub fn open(&mut self, parent: u32, merge: Merge, version: Version) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Split {
                parent: NONE,
                merge,
                version,
                parts: Vec::new(),
                order: Vec::new(),
                places: Vec::new(),
                by_slot: AHashMap::new(),
                indexed: 0,
                adjust: Vec::new(),
                pending: 0,
                kept: 0,
                sum: 0,
                walk: None,
                database: None,
                script: None,
                nonce: 0,
                result: Vec::new(),
                error: Vec::new(),
            });
            (self.entries.len() - 1) as u32
        });
        let split = &mut self.entries[index as usize];
        split.parent = parent;
        split.merge = merge;
        split.version = version;
        split.pending = 0;
        split.kept = 0;
        split.sum = if merge == Merge::Min { i64::MAX } else { 0 };
        index
    }

    pub fn close(&mut self, index: u32) {
        let split = &mut self.entries[index as usize];
        assert_ne!(split.parent, NONE, "a split is closed once");
        split.parent = NONE;
        split.walk = None;
        split.database = None;
        split.script = None;
        for list in [&mut split.parts, &mut split.order] {
            list.clear();
            list.shrink_to(1024);
        }
        split.adjust = Vec::new();
        split.places = Vec::new();
        if split.indexed > 0 {
            split.by_slot = AHashMap::new();
            split.indexed = 0;
        }
        for bytes in [&mut split.result, &mut split.error] {
            bytes.clear();
            bytes.shrink_to(4096);
        }
        self.free.push(index);
    }
}

/// The caller's keys, grouped by slot, in the order in which slots first appear. Reused.
#[derive(Debug, Default)]
pub struct Cut {
    pub groups: Vec<Group>,
    /// The group of each key.
    pub group_of: Vec<u32>,
    /// The next key of the same group, or `NONE`.
    next: Vec<u32>,
    /// By slot: the round in which it was last seen, and its group then.
    seen: Vec<(u32, u32)>,
    round: u32,
}

#[derive(Copy, Clone, Debug)]
pub struct Group {
    pub slot: u16,
    pub count: usize,
    first: u32,
    last: u32,
}

impl Cut {
    /// Groups keys by their slots.
    pub fn by_slot(&mut self, slots: impl Iterator<Item = u16>) {
        self.begin();
        self.seen.resize(SLOTS, (0, 0));
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            // All rounds have been: what was seen in one of them says nothing of the next.
            self.seen.fill((0, 0));
            self.round = 1;
        }
        for (key, slot) in slots.enumerate() {
            let seen = &mut self.seen[usize::from(slot) % SLOTS];
            if seen.0 != self.round {
                *seen = (self.round, self.groups.len() as u32);
            }
            let group = seen.1;
            self.add(key as u32, slot, group);
        }
    }

    /// Each key by itself; one that is named several times stays together, in order: parts of one
    /// request do not wait for each other, and the last value is to be the one that stays.
    pub fn by_key<'a>(&mut self, keys: impl Iterator<Item = (u16, &'a [u8])>) {
        self.begin();
        let mut seen = AHashMap::new();
        for (n, (slot, key)) in keys.enumerate() {
            let next = self.groups.len() as u32;
            self.add(n as u32, slot, *seen.entry(key).or_insert(next));
        }
    }

    fn begin(&mut self) {
        self.groups.clear();
        self.group_of.clear();
        self.next.clear();
    }

    fn add(&mut self, key: u32, slot: u16, group: u32) {
        self.group_of.push(group);
        self.next.push(NONE);
        match self.groups.get_mut(group as usize) {
            None => self.groups.push(Group { slot, count: 1, first: key, last: key }),
            Some(group) => {
                self.next[group.last as usize] = key;
                group.last = key;
                group.count += 1;
            }
        }
    }

    /// Writes the request of one group. What is in the caller's, which may be forwarded as it is,
    /// is copied as it stands there.
    pub fn encode(&self, group: usize, args: &Args, shape: &SplitShape, out: &mut Vec<u8>) {
        let Some(group) = self.groups.get(group) else { return };
        let tail = args.len().saturating_sub(shape.tail);
        let counted = usize::from(shape.counted);
        write_request_header(out, 1 + counted + group.count * shape.words_per_key + tail);
        out.extend_from_slice(args.framed(0, 1));
        if shape.counted {
            write_request_bulk(out, group.count.to_string().as_bytes());
        }
        let mut key = group.first;
        while key != NONE {
            let word = shape.first + key as usize * shape.words_per_key;
            out.extend_from_slice(args.framed(word, word + shape.words_per_key));
            key = self.next[key as usize];
        }
        if tail > 0 {
            out.extend_from_slice(args.framed(shape.tail, args.len()));
        }
    }
}

/// Elements in the caller's order. `None`: a reply is no array of enough elements.
fn merge_values(replies: &[&[u8]], order: &[u32], out: &mut Vec<u8>) -> Option<()> {
    let mut rests = Vec::with_capacity(replies.len());
    for reply in replies {
        let (_, header) = list_header(reply)?;
        rests.push(reply.get(header..)?);
    }
    write::array_header(out, order.len());
    for &part in order {
        let rest = rests.get_mut(part as usize)?;
        let len = first_frame_len(rest)?;
        out.extend_from_slice(rest.get(..len)?);
        *rest = rest.get(len..)?;
    }
    rests.iter().all(|rest| rest.is_empty()).then_some(())
}

fn merge_least(replies: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
    let mut least: Vec<i64> = Vec::new();
    for (n, reply) in replies.iter().enumerate() {
        let counts: Option<Vec<i64>> = elements(reply)?.into_iter().map(parse_integer).collect();
        let counts = counts?;
        if n == 0 {
            least = counts;
        } else if counts.len() != least.len() {
            return None;
        } else {
            least.iter_mut().zip(counts).for_each(|(least, count)| *least = count.min(*least));
        }
    }
    write::array_header(out, least.len());
    least.into_iter().for_each(|count| write::integer(out, count));
    Some(())
}

/// `kept`: places where one yes is enough.
fn merge_and(replies: &[&[u8]], kept: &[i64], out: &mut Vec<u8>) -> Option<()> {
    let mut places: Vec<usize> = Vec::new();
    for (n, reply) in replies.iter().enumerate() {
        for (place, element) in elements(reply)?.into_iter().enumerate() {
            let yes = usize::from(parse_integer(element)? != 0);
            match places.get_mut(place) {
                Some(count) => *count += yes,
                None if n == 0 => places.push(yes),
                None => return None,
            }
        }
    }
    write::array_header(out, places.len());
    for (place, count) in places.into_iter().enumerate() {
        let one_is_enough = kept.get(place).is_some_and(|&kept| kept != 0);
        let least = if one_is_enough { 1 } else { replies.len() };
        write::integer(out, i64::from(count >= least));
    }
    Some(())
}

fn merge_join(replies: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
    let mut total = 0;
    for reply in replies {
        total += list_header(reply)?.0;
    }
    write::array_header(out, total);
    for reply in replies {
        let (_, header) = list_header(reply)?;
        out.extend_from_slice(reply.get(header..)?);
    }
    Some(())
}

/// The elements of an array reply, whatever they are.
fn elements(reply: &[u8]) -> Option<Vec<&[u8]>> {
    let (count, header) = list_header(reply)?;
    let mut rest = reply.get(header..)?;
    let mut found = Vec::new();
    for _ in 0..count {
        let (element, behind) = rest.split_at_checked(first_frame_len(rest)?)?;
        found.push(element);
        rest = behind;
    }
    Some(found)
}

fn merge_union(replies: &[&[u8]], out: &mut Vec<u8>) -> Option<()> {
    let mut all = Vec::new();
    for reply in replies {
        all.extend(elements(reply)?);
    }
    all.sort_unstable();
    all.dedup();
    write::array_header(out, all.len());
    all.into_iter().for_each(|element| out.extend_from_slice(element));
    Some(())
}

fn merge_counts(replies: &[&[u8]], adjust: &[i64], out: &mut Vec<u8>) -> Option<()> {
    let mut sums: Vec<(&[u8], i64)> = Vec::new();
    for (n, reply) in replies.iter().enumerate() {
        for (place, pair) in elements(reply)?.chunks(2).enumerate() {
            let &[name, count] = pair else { return None };
            let count = parse_integer(count)?;
            match sums.get_mut(place) {
                Some(sum) if sum.0 == name => sum.1 = sum.1.saturating_add(count),
                None if n == 0 => sums.push((name, count)),
                _ => return None,
            }
        }
    }
    write::array_header(out, 2 * sums.len());
    for (place, (name, sum)) in sums.into_iter().enumerate() {
        out.extend_from_slice(name);
        let own = adjust.get(place).copied().unwrap_or(0);
        write::integer(out, sum.saturating_add(own).max(0));
    }
    Some(())
}

/// No node has more keys; as many nodes as there may be have a sum.
const COUNT_MAX: u64 = 1 << 48;

fn merge_weighted(replies: &[&[u8]], version: Version, pick: u64, out: &mut Vec<u8>) -> Option<()> {
    let mut choices: Vec<(u64, &[u8])> = Vec::new();
    for pair in replies.chunks_exact(2) {
        let count = u64::try_from(parse_integer(pair[0])?).ok()?;
        if !pair[1].starts_with(b"$-1") && !pair[1].starts_with(b"_") {
            // It had a key, whatever the count said a moment before.
            choices.push((count.clamp(1, COUNT_MAX), pair[1]));
        }
    }
    let total: u64 = choices.iter().map(|(weight, _)| weight).sum();
    if total == 0 {
        write::null(out, version);
        return Some(());
    }
    let mut at = pick % total;
    for (weight, key) in choices {
        if at < weight {
            out.extend_from_slice(key);
            return Some(());
        }
        at -= weight;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;
    use crate::resp::request::{RequestLimits, RequestParser, encode_request};

    #[track_caller]
    fn check(merge: Merge, order: &[u32], replies: &[&str], expected: &str) {
        check_with(merge, |split| split.order.extend_from_slice(order), replies, expected);
    }

    #[track_caller]
    fn check_adjusted(merge: Merge, adjust: &[i64], replies: &[&str], expected: &str) {
        check_with(merge, |split| split.adjust.extend_from_slice(adjust), replies, expected);
    }

    #[track_caller]
    fn check_with(merge: Merge, set: impl Fn(&mut Split), replies: &[&str], expected: &str) {
        let mut splits = Splits::default();
        let index = splits.open(0, merge, Version::Resp2);
        let split = &mut splits[index];
        set(split);
        for reply in replies {
            split.absorb(reply.as_bytes());
        }
        let replies: Vec<&[u8]> = replies.iter().map(|reply| reply.as_bytes()).collect();
        let mut out = Vec::new();
        split.merge(&replies, 3, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }

    #[test]
    fn least_of_each_place_counts() {
        let replies = ["*2\r\n:1\r\n:0\r\n", "*2\r\n:0\r\n:2\r\n", "*2\r\n:1\r\n:1\r\n"];
        check(Merge::Least, &[], &replies, "*2\r\n:0\r\n:0\r\n");
        check(Merge::Least, &[], &replies[1..], "*2\r\n:0\r\n:1\r\n");
        let unlike = ["*2\r\n:1\r\n:0\r\n", "*1\r\n:0\r\n"];
        check(Merge::Least, &[], &unlike, &format!("-{UNEXPECTED}\r\n"));
        check(Merge::Least, &[], &["*2\r\n:1\r\n:0\r\n", "-ERR no\r\n"], "-ERR no\r\n");
    }

    #[test]
    fn receivers_are_never_fewer_than_none() {
        check_adjusted(Merge::Sum, &[2], &[":1\r\n"], ":3\r\n");
        check_adjusted(Merge::Sum, &[-1], &[":0\r\n"], ":0\r\n");
    }

    #[test]
    fn info_of_all_sections_does_without_a_node_and_info_of_one_does_not() {
        let unexpected = format!("-{UNEXPECTED}\r\n");
        let odd = "$19\r\n# Keyspace\r\ndb0:k=x\r\n";
        for (lenient, reply, expected) in [
            (true, "-LOADING x\r\n", "$3\r\nown\r\n"),
            (false, "-LOADING x\r\n", "-LOADING x\r\n"),
            (true, odd, "$3\r\nown\r\n"),
            (false, odd, &unexpected),
        ] {
            let mut splits = Splits::default();
            let index = splits.open(0, Merge::Info { lenient }, Version::Resp2);
            let split = &mut splits[index];
            split.set_text(b"own".to_vec());
            let kept = split.absorb(reply.as_bytes());
            let replies = [reply.as_bytes()];
            let mut out = Vec::new();
            split.merge(if kept { &replies } else { &[] }, 3, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
    }

    #[test]
    fn values_come_in_the_callers_order_duplicates_too() {
        let replies = ["*2\r\n$1\r\na\r\n$-1\r\n", "*1\r\n$1\r\nb\r\n"];
        check(Merge::Values, &[0, 1, 0], &replies, "*3\r\n$1\r\na\r\n$1\r\nb\r\n$-1\r\n");
    }

    #[test]
    fn parts_of_a_slot_are_found_among_thousands_also_those_that_came_later() {
        let mut splits = Splits::default();
        let index = splits.open(0, Merge::Values, Version::Resp2);
        let slot_of = |part: u32| (part % 500) as u16;
        let find = |split: &mut Split, slot| {
            let mut found = Vec::new();
            (split.add_parts_of(slot, slot_of, &mut found), found)
        };
        splits[index].parts.extend(0..1_000);
        assert_eq!(find(&mut splits[index], 7), (1_002, vec![7, 507]));
        assert_eq!(find(&mut splits[index], 8), (2, vec![8, 508]));
        splits[index].parts.extend(1_000..1_010);
        assert_eq!(find(&mut splits[index], 7), (10 + 3, vec![7, 507, 1_007]));
        splits.close(index);
        let index = splits.open(0, Merge::Values, Version::Resp2);
        assert_eq!(find(&mut splits[index], 7), (0, vec![]));
        splits[index].parts.extend([500, 7, 1]);
        assert_eq!(find(&mut splits[index], 7), (3, vec![7]));
    }

    #[test]
    fn part_that_is_divided_again_among_others_keeps_the_callers_order() {
        let mut splits = Splits::default();
        let index = splits.open(0, Merge::Values, Version::Resp2);
        let split = &mut splits[index];
        split.order.extend([0, 1, 0, 2, 1, 0]);
        // What all parts have is looked at once.
        assert_eq!(split.divide(1, 3, &[0, 1]), 6 + 2);
        assert_eq!(split.order, [0, 3, 0, 2, 4, 0]);
        // Its first key is its last one, too.
        assert_eq!(split.divide(0, 5, &[0, 1, 0]), 3);
        assert_eq!(split.order, [5, 3, 6, 2, 4, 5]);
        splits.close(index);
        let index = splits.open(0, Merge::Values, Version::Resp2);
        let split = &mut splits[index];
        split.order.extend([1, 0]);
        assert_eq!(split.divide(0, 2, &[0]), 2 + 1, "of another request");
        assert_eq!(split.order, [1, 2]);
    }

    #[test]
    fn failed_part_is_an_error_and_never_nil() {
        let replies = ["*1\r\n$1\r\na\r\n", "-LOADING x\r\n"];
        check(Merge::Values, &[0, 1], &replies, "-LOADING x\r\n");
        check(Merge::Sum, &[], &[":1\r\n", "-READONLY x\r\n", ":2\r\n"], "-READONLY x\r\n");
    }

    #[test]
    fn array_of_another_length_is_refused() {
        let text = format!("-{UNEXPECTED}\r\n");
        check(Merge::Values, &[0, 1], &["*1\r\n:1\r\n", "*2\r\n:1\r\n:2\r\n"], &text);
        check(Merge::Values, &[0, 0], &["*1\r\n:1\r\n"], &text);
        check(Merge::Values, &[0], &["+OK\r\n"], &text);
        check(Merge::Sum, &[], &["+OK\r\n"], &text);
    }

    #[test]
    fn counts_are_added_and_least_is_found() {
        check(Merge::Sum, &[], &[":1\r\n", ":0\r\n", ":41\r\n"], ":42\r\n");
        check(Merge::Min, &[], &[":7\r\n", ":3\r\n"], ":3\r\n");
    }

    #[test]
    fn one_success_is_enough_for_kill() {
        let not_busy = "-NOTBUSY No scripts\r\n";
        check(Merge::OneSucceeded, &[], &[not_busy, "+OK\r\n"], "+OK\r\n");
        check(Merge::OneSucceeded, &[], &[not_busy, not_busy], not_busy);
        check(Merge::AllSucceeded, &[], &["+OK\r\n", "+OK\r\n"], "+OK\r\n");
    }

    #[test]
    fn script_exists_only_where_all_have_it_or_we_can_give_it() {
        let replies = ["*2\r\n:1\r\n:1\r\n", "*2\r\n:1\r\n:0\r\n"];
        check(Merge::LogicalAnd, &[], &replies, "*2\r\n:1\r\n:0\r\n");
        let replies = ["*3\r\n:0\r\n:1\r\n:0\r\n", "*3\r\n:0\r\n:0\r\n:1\r\n"];
        let kept = [1, 1, 0];
        check_adjusted(Merge::LogicalAnd, &kept, &replies, "*3\r\n:0\r\n:1\r\n:0\r\n");
    }

    #[test]
    fn keys_are_joined() {
        let replies = ["*1\r\n$1\r\na\r\n", "*0\r\n", "*1\r\n$1\r\nb\r\n"];
        check(Merge::Join, &[], &replies, "*2\r\n$1\r\na\r\n$1\r\nb\r\n");
    }

    #[test]
    fn map_or_attribute_for_an_array_is_refused_and_never_taken_for_one() {
        let text = format!("-{UNEXPECTED}\r\n");
        let map = "%1\r\n$1\r\na\r\n$1\r\nb\r\n";
        let attribute = "|1\r\n$1\r\na\r\n$1\r\nb\r\n*1\r\n$1\r\nc\r\n";
        for odd in [map, attribute, "*-1\r\n", ">1\r\n:1\r\n"] {
            for merge in [Merge::Join, Merge::Union, Merge::Counts, Merge::LogicalAnd] {
                check(merge, &[], &["*0\r\n", odd], &text);
            }
            check(Merge::Values, &[0], &[odd], &text);
        }
    }

    #[test]
    fn channels_are_named_once() {
        let replies = ["*2\r\n$1\r\nb\r\n$1\r\na\r\n", "*0\r\n", "*1\r\n$1\r\nb\r\n"];
        check(Merge::Union, &[], &replies, "*2\r\n$1\r\na\r\n$1\r\nb\r\n");
        let replies = ["*2\r\n$1\r\na\r\n:1\r\n", "*2\r\n$1\r\na\r\n:2\r\n"];
        check(Merge::Counts, &[], &replies, "*2\r\n$1\r\na\r\n:3\r\n");
        check(Merge::Counts, &[], &["*0\r\n", "*0\r\n"], "*0\r\n");
        let text = format!("-{UNEXPECTED}\r\n");
        check(Merge::Counts, &[], &[replies[0], "*2\r\n$1\r\nb\r\n:2\r\n"], &text);
    }

    #[test]
    fn random_key_is_nil_only_when_all_are_empty() {
        check(Merge::Weighted, &[], &[":0\r\n", "$-1\r\n", ":0\r\n", "$-1\r\n"], "$-1\r\n");
        let replies = [":0\r\n", "$-1\r\n", ":5\r\n", "$1\r\nk\r\n"];
        check(Merge::Weighted, &[], &replies, "$1\r\nk\r\n");
        let most = format!(":{}\r\n", i64::MAX);
        let replies = [most.as_str(), "$1\r\nk\r\n"].repeat(9);
        check(Merge::Weighted, &[], &replies, "$1\r\nk\r\n");
    }

    #[test]
    fn parts_have_the_words_of_their_keys_as_they_came() {
        #[track_caller]
        fn check(words: &[&str], slots: &[u16], expected: &[&[&str]]) {
            let encode = |words: &[&str]| {
                let mut out = Vec::new();
                encode_request(words.iter().map(|word| word.as_bytes()), &mut out);
                out
            };
            let (bytes, mut spans, mut keys) = (encode(words), Vec::new(), Vec::new());
            let limits = RequestLimits::default();
            RequestParser::default().parse(&bytes, &limits, &mut spans).unwrap();
            let args = Args { bytes: &bytes, spans: &spans };
            let command = command::lookup(&args).unwrap();
            command::keys_of(command, &args, &mut keys).unwrap();
            let shape = command::split_shape(command, &args, &keys).unwrap();
            let mut cut = Cut::default();
            cut.by_slot(slots.iter().copied());
            for (group, words) in expected.iter().enumerate() {
                let mut out = Vec::new();
                cut.encode(group, &args, &shape, &mut out);
                let text = String::from_utf8_lossy(&out).into_owned();
                assert_eq!(text, String::from_utf8_lossy(&encode(words)));
            }
            assert_eq!(cut.groups.len(), expected.len());
        }
        let long = "$1\r\n".repeat(40);
        check(&["mget", "a", "b", "a"], &[1, 2, 1], &[&["mget", "a", "a"], &["mget", "b"]]);
        check(&["DEL", "", "$"], &[7, 8], &[&["DEL", ""], &["DEL", "$"]]);
        let words = ["MSET", "a", &long, "b", "", "c", "3"];
        check(&words, &[1, 2, 1], &[&["MSET", "a", &long, "c", "3"], &["MSET", "b", ""]]);
        let words = ["MSETEX", "2", "a", "1", "b", "2", "EX", "10"];
        let parts =
            [&["MSETEX", "1", "a", "1", "EX", "10"][..], &["MSETEX", "1", "b", "2", "EX", "10"]];
        check(&words, &[1, 2], &parts);
        let words = ["JSON.MGET", "a", "b", "$.x"];
        check(&words, &[1, 2], &[&["JSON.MGET", "a", "$.x"], &["JSON.MGET", "b", "$.x"]]);
    }

    #[test]
    fn keys_of_one_slot_stay_together_in_order() {
        let mut cut = Cut::default();
        cut.by_slot([5, 9, 5, 5, 9].into_iter());
        let groups: Vec<_> = cut.groups.iter().map(|group| (group.slot, group.count)).collect();
        assert_eq!(groups, [(5, 3), (9, 2)]);
        assert_eq!(cut.group_of, [0, 1, 0, 0, 1]);
        cut.by_slot([9].into_iter());
        assert_eq!(cut.group_of, [0], "the last round is forgotten");
        cut.by_key([(5, b"a".as_slice()), (5, b"b"), (5, b"a")].into_iter());
        assert_eq!(cut.group_of, [0, 1, 0], "one that comes twice stays together");
        assert_eq!(cut.groups.len(), 2);
        // Rounds are counted anew: what was seen in the first of them is forgotten, too.
        let mut cut = Cut::default();
        cut.by_slot([9, 5].into_iter());
        cut.round = u32::MAX;
        cut.by_slot([5, 9].into_iter());
        assert_eq!(cut.group_of, [0, 1]);
    }
}
