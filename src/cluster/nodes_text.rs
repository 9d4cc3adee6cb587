//! Reading the two texts of a node: CLUSTER NODES (epochs, flags, claims) and CLUSTER INFO.
//!
//! Not here: CLUSTER SLOTS and SHARDS (`read`), which know better how a node wants to be reached.

use super::{Endpoint, Role, SLOTS, Topology, UNOWNED};
use crate::limits::NODES_MAX;
use ahash::AHashMap;

/// One line of CLUSTER NODES.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeLine {
    pub id: Box<str>,
    /// `ip:port`. None for `:0@0` and the like.
    pub endpoint: Option<Endpoint>,
    /// Announced name (7.0 and later), not empty.
    pub hostname: Option<Box<str>>,
    /// 7.2 and later.
    pub shard_id: Option<Box<str>>,
    pub flags: NodeFlags,
    /// Of a replica: whom it follows.
    pub primary_id: Option<Box<str>>,
    /// Of a primary its own config epoch, of a replica that of its primary.
    pub epoch: u64,
    pub connected: bool,
    /// Ranges that it claims, both ends inclusive, each `first <= last < 16384`.
    pub slots: Vec<(u16, u16)>,
    /// Slots on their way out, with the id of the node that they go to. On `myself` only.
    pub migrating: Vec<(u16, Box<str>)>,
    /// Slots on their way in, with the id of the node that they come from. On `myself` only.
    pub importing: Vec<(u16, Box<str>)>,
}

/// The flags of a line that decide anything.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeFlags {
    pub myself: bool,
    pub primary: bool,
    /// The majority agreed that it is gone.
    pub fail: bool,
    /// Only the telling node cannot reach it.
    pub pfail: bool,
    pub noaddr: bool,
    pub handshake: bool,
}

/// What CLUSTER INFO says that matters here.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterInfo {
    /// `cluster_state:ok`.
    pub ok: bool,
    /// `cluster_current_epoch`; 0 if absent.
    pub epoch: u64,
}

/// Reads CLUSTER NODES (redis-server: `clusterGenNodeDescription`, cluster.c). Lines that are none
/// are skipped, and what comes after `NODES_MAX` lines.
pub fn read_nodes_text(text: &[u8]) -> Vec<NodeLine> {
    text.split(|&byte| byte == b'\n').filter_map(read_line).take(NODES_MAX).collect()
}

/// Reads CLUSTER INFO. Whatever is absent or malformed counts as not ok and 0.
pub fn read_cluster_info(text: &[u8]) -> ClusterInfo {
    let mut info = ClusterInfo::default();
    for line in text.split(|&byte| byte == b'\n') {
        let line = line.trim_ascii();
        if let Some(state) = line.strip_prefix(b"cluster_state:") {
            info.ok = state == b"ok";
        } else if let Some(epoch) = line.strip_prefix(b"cluster_current_epoch:") {
            info.epoch = number(epoch).unwrap_or_default();
        }
    }
    info
}

impl Topology {
    /// Takes from CLUSTER NODES of the same node what SLOTS and SHARDS do not tell: config epochs,
    /// failure flags, and who of several primaries in a shard claims its slots. Nodes without an
    /// address, or in handshake, own nothing.
    pub fn take_lines(&mut self, lines: &[NodeLine]) {
        let nodes = self.nodes.iter().enumerate();
        let by_id: AHashMap<Box<str>, usize> =
            nodes.map(|(index, node)| (node.id.clone(), index)).collect();
        for line in lines {
            self.epoch = self.epoch.max(line.epoch);
            let Some(&index) = by_id.get(&line.id) else { continue };
            let Some(node) = self.nodes.get_mut(index) else { continue };
            let Ok(owner) = u16::try_from(index) else { continue };
            let believed = !line.flags.noaddr && !line.flags.handshake;
            node.epoch = line.epoch;
            node.healthy &= believed && !line.flags.fail;
            if !believed {
                self.owners.iter_mut().filter(|at| **at == owner).for_each(|at| *at = UNOWNED);
                continue;
            }
            if !line.slots.is_empty() {
                // Promoted since the map was told.
                node.role = Role::Primary;
            }
            for &(first, last) in &line.slots {
                self.give_slots(first, last, owner);
            }
        }
    }

    /// Sets the owner of slots `first..=last`; nothing if that is no range of slots.
    pub(super) fn give_slots(&mut self, first: u16, last: u16, owner: u16) {
        if let Some(range) = self.owners.get_mut(usize::from(first)..=usize::from(last)) {
            range.fill(owner);
        }
    }
}

fn read_line(line: &[u8]) -> Option<NodeLine> {
    let mut words = line.trim_ascii().split(|&byte| byte == b' ');
    let id = words.next().and_then(read_id)?;
    let place = words.next()?;
    let flags = read_flags(words.next()?);
    let primary_id = read_id(words.next()?);
    let (_ping_sent, _pong_received) = (words.next()?, words.next()?);
    let epoch = number(words.next()?)?;
    let connected = words.next()? == b"connected";
    let mut line = NodeLine { id, flags, primary_id, epoch, connected, ..NodeLine::default() };
    read_place(place, &mut line);
    words.for_each(|word| read_claim(word, &mut line));
    Some(line)
}

/// An id: letters and digits, 64 at most. None for `-`.
pub(super) fn read_id(id: &[u8]) -> Option<Box<str>> {
    const ID_BYTES_MAX: usize = 64;
    if id.is_empty() || id.len() > ID_BYTES_MAX || !id.iter().all(u8::is_ascii_alphanumeric) {
        return None;
    }
    std::str::from_utf8(id).ok().map(Box::from)
}

/// `ip:port`, `ip:port@cport`, `ip:port@cport,hostname`, `ip:port@cport,hostname,key=value,…`.
fn read_place(place: &[u8], line: &mut NodeLine) {
    let mut parts = place.split(|&byte| byte == b',');
    let address = parts.next().unwrap_or_default();
    let before_bus = address.split(|&byte| byte == b'@').next().unwrap_or_default();
    line.endpoint = Endpoint::parse(before_bus);
    for (index, part) in parts.enumerate() {
        if let Some(shard_id) = part.strip_prefix(b"shard-id=") {
            line.shard_id = read_id(shard_id);
        } else if index == 0 && !part.contains(&b'=') {
            const ANY_PORT: u16 = 1;
            line.hostname = Endpoint::new(part, ANY_PORT).map(|endpoint| endpoint.host);
        }
    }
}

fn read_flags(words: &[u8]) -> NodeFlags {
    let mut flags = NodeFlags::default();
    for word in words.split(|&byte| byte == b',') {
        match word {
            b"myself" => flags.myself = true,
            b"master" => flags.primary = true,
            b"fail" => flags.fail = true,
            b"fail?" => flags.pfail = true,
            b"noaddr" => flags.noaddr = true,
            b"handshake" => flags.handshake = true,
            _ => {}
        }
    }
    flags
}

/// `7`, `7-9`, `[7->-id]` (migrating), `[7-<-id]` (importing). Anything else says nothing.
fn read_claim(word: &[u8], line: &mut NodeLine) {
    if let Some(mark) = word.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")) {
        let mut parts = mark.splitn(3, |&byte| byte == b'-');
        let slot = parts.next().and_then(slot_number);
        let (arrow, id) = (parts.next(), parts.next().and_then(read_id));
        let Some((slot, id)) = slot.zip(id) else { return };
        match arrow {
            Some(b">") => line.migrating.push((slot, id)),
            Some(b"<") => line.importing.push((slot, id)),
            _ => {}
        }
        return;
    }
    let mut ends = word.splitn(2, |&byte| byte == b'-');
    let Some(first) = ends.next().and_then(slot_number) else { return };
    let last = ends.next().map_or(Some(first), slot_number);
    if let Some(last) = last.filter(|&last| first <= last) {
        line.slots.push((first, last));
    }
}

fn slot_number(digits: &[u8]) -> Option<u16> {
    number(digits)
        .and_then(|slot| u16::try_from(slot).ok())
        .filter(|&slot| usize::from(slot) < SLOTS)
}

fn number(digits: &[u8]) -> Option<u64> {
    // `parse` alone would take a sign.
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}
