//! The slot map: nodes, and who owns each slot. `Topology` whole and shared, `SlotMap` private.
//!
//! Not here: reading it from replies (`read`), judging it (`choose`).

use super::{Endpoint, SLOTS};
use std::net::SocketAddr;

/// The owner of a slot that nobody owns, or that is not known.
pub const UNOWNED: u16 = u16::MAX;

const SLOT_MASK: u16 = SLOTS as u16 - 1;

#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub enum Role {
    Primary,
    Replica,
}

/// One member of the cluster as some other member told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Who it is, wherever it is: 40 hex digits; empty if the reply had none.
    pub id: Box<str>,
    /// Where to reach it, after the address map.
    pub endpoint: Endpoint,
    /// `endpoint` resolved. None until the topology thread has, and if it could not.
    pub address: Option<SocketAddr>,
    pub role: Role,
    /// The same number for a primary and its replicas. Meaningful within one `Topology` only.
    pub shard: u16,
    /// False: the cluster has flagged it as failed, or it says that it is loading.
    pub healthy: bool,
    /// Config epoch of a primary: of two claims to a slot the higher one is right. 0: not known.
    pub epoch: u64,
}

/// All nodes and the owner of each slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// Counts adopted maps of this process, from 1. 0: not adopted yet.
    pub version: u64,
    /// At most `limits::NODES_MAX`, ordered by id, then endpoint.
    pub nodes: Vec<Node>,
    /// For each slot the index of its primary in `nodes`, or `UNOWNED`.
    pub owners: Box<[u16; SLOTS]>,
    /// The highest epoch that the telling node knew of. 0: not known.
    pub epoch: u64,
}

impl Topology {
    /// No node and no slot.
    pub fn empty() -> Topology {
        let owners = Box::new([UNOWNED; SLOTS]);
        Topology { version: 0, nodes: Vec::new(), owners, epoch: 0 }
    }

    /// Slots that somebody owns, 0..=16384.
    pub fn covered(&self) -> usize {
        self.owners.iter().filter(|&&owner| owner != UNOWNED).count()
    }

    /// The owner of a slot, if any.
    pub fn owner(&self, slot: u16) -> Option<&Node> {
        let owner = *self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(owner))
    }

    /// Indexes of the nodes that own slots, ascending.
    pub fn primaries(&self) -> impl Iterator<Item = u16> + '_ {
        let mut owns = vec![false; self.nodes.len()];
        for &owner in self.owners.iter() {
            if let Some(place) = owns.get_mut(usize::from(owner)) {
                *place = true;
            }
        }
        (0..).zip(owns).filter_map(|(index, owns)| owns.then_some(index))
    }

    /// Indexes of the replicas of the primary at `primary`, sick ones too.
    pub fn replicas_of(&self, primary: u16) -> impl Iterator<Item = u16> + '_ {
        let shard = self.nodes.get(usize::from(primary)).map(|node| node.shard);
        (0..).zip(&self.nodes).filter_map(move |(index, node)| {
            (node.role == Role::Replica && Some(node.shard) == shard).then_some(index)
        })
    }

    pub fn node_by_endpoint(&self, endpoint: &Endpoint) -> Option<u16> {
        self.position(|node| node.endpoint == *endpoint)
    }

    pub fn node_by_address(&self, address: &SocketAddr) -> Option<u16> {
        self.position(|node| node.address == Some(*address))
    }

    /// By id; an empty id is nobody's.
    pub fn node_by_id(&self, id: &str) -> Option<u16> {
        if id.is_empty() { None } else { self.position(|node| &*node.id == id) }
    }

    fn position(&self, is_it: impl FnMut(&Node) -> bool) -> Option<u16> {
        self.nodes.iter().position(is_it).and_then(|index| u16::try_from(index).ok())
    }
}

/// A reactor's private copy of the owners. 32 KiB.
#[derive(Clone, Debug)]
pub struct SlotMap {
    owners: Box<[u16; SLOTS]>,
    version: u32,
}

impl Default for SlotMap {
    fn default() -> SlotMap {
        SlotMap::new()
    }
}

impl SlotMap {
    /// Nobody owns anything.
    pub fn new() -> SlotMap {
        SlotMap { owners: Box::new([UNOWNED; SLOTS]), version: 0 }
    }

    /// Index of the owner in the topology's nodes, or `UNOWNED`. Slots are taken modulo 16,384.
    #[inline]
    pub fn get(&self, slot: u16) -> u16 {
        self.owners[usize::from(slot & SLOT_MASK)]
    }

    /// Changes the owner of one slot, after a MOVED.
    #[inline]
    pub fn patch(&mut self, slot: u16, node: u16) {
        self.owners[usize::from(slot & SLOT_MASK)] = node;
        self.version = next(self.version);
    }

    /// Takes over all owners.
    pub fn replace(&mut self, topology: &Topology) {
        self.owners.copy_from_slice(&*topology.owners);
        self.version = next(self.version);
    }

    /// Changes with every `patch` and `replace`: tells whether a cached answer is still good. Never
    /// `u32::MAX`.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version
    }
}

#[inline]
fn next(version: u32) -> u32 {
    if version >= u32::MAX - 1 { 0 } else { version + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, role: Role, shard: u16) -> Node {
        let endpoint = Endpoint { host: id.into(), port: 6379 };
        let address = Some(SocketAddr::from(([127, 0, 0, 1], 7000 + shard)));
        Node { id: id.into(), endpoint, address, role, shard, healthy: true, epoch: 0 }
    }

    #[test]
    fn a_topology_answers_who_owns_and_who_follows() {
        let mut topology = Topology::empty();
        topology.nodes = vec![
            node("a", Role::Primary, 0),
            node("b", Role::Replica, 0),
            node("c", Role::Primary, 1),
            node("d", Role::Primary, 2),
        ];
        topology.owners[..100].fill(0);
        topology.owners[200..300].fill(3);
        assert_eq!(topology.covered(), 200);
        assert_eq!(topology.primaries().collect::<Vec<_>>(), [0, 3]);
        assert_eq!(topology.replicas_of(0).collect::<Vec<_>>(), [1]);
        assert_eq!(topology.replicas_of(3).count(), 0);
        assert_eq!(topology.replicas_of(UNOWNED).count(), 0);
        assert_eq!(topology.owner(250).map(|node| &*node.id), Some("d"));
        assert_eq!(topology.owner(150), None);
        assert_eq!(topology.owner(u16::MAX), None);
        assert_eq!(topology.node_by_id("c"), Some(2));
        assert_eq!(topology.node_by_id(""), None);
        assert_eq!(topology.node_by_endpoint(&Endpoint { host: "b".into(), port: 6379 }), Some(1));
        assert_eq!(topology.node_by_address(&SocketAddr::from(([127, 0, 0, 1], 7002))), Some(3));
    }

    #[test]
    fn a_slot_map_keeps_patches_until_it_is_replaced() {
        let mut map = SlotMap::new();
        assert_eq!(map.get(5), UNOWNED);
        map.patch(5, 7);
        map.patch(16384 + 6, 8);
        assert_eq!((map.get(5), map.get(6), map.version()), (7, 8, 2));
        map.replace(&Topology::empty());
        assert_eq!((map.get(5), map.version()), (UNOWNED, 3));
    }
}
