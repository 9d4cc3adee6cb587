//! The nodes that this reactor knows, by its own indexes, and the backends that it keeps for each.
//!
//! A node is found by its address; when its address changes it is another entry here, and the old
//! one is left to run dry. Indexes of the topology are translated once, when it is taken over.
//!
//! Not here: connecting, and what is sent.

use std::collections::VecDeque;
use std::net::SocketAddr;

use ahash::AHashMap;

use super::facts::NodeCounts;
use super::types::NONE;
use crate::cluster::{Endpoint, Role, Topology, UNOWNED};
use crate::resp::Version;

/// What a shared backend is connected as, a version and a database, as an index: those of the first
/// database are 0 and 1. `seat`: of the database (`databases`).
#[inline]
pub fn face_of(version: Version, seat: u8) -> usize {
    let third = match version {
        Version::Resp2 => 0,
        Version::Resp3 => 1,
    };
    2 * usize::from(seat) + third
}

pub fn version_of(face: usize) -> Version {
    if face % 2 == 0 { Version::Resp2 } else { Version::Resp3 }
}

#[derive(Debug)]
pub struct Node {
    pub address: SocketAddr,
    pub endpoint: Endpoint,
    /// Named by the newest topology.
    pub present: bool,
    pub primary: bool,
    /// Not flagged as failed.
    pub healthy: bool,
    /// Shared backends of the first database, by version.
    pub shared: [u32; 2],
    /// Those of the others, by face, as far as there ever were any.
    shared_others: Vec<u32>,
    /// Fenced backends, by face, as far as there ever were any.
    pub fences: Vec<Vec<u32>>,
    /// The backend that brings messages.
    pub subscriber: u32,
    /// Private backends, of all faces.
    pub private: Vec<u32>,
    /// Until when nothing goes through its fence, because it has refused ECHO. Milliseconds.
    pub no_fence_until_ms: u64,
    /// Requests that wait for a free fenced backend, by face.
    pub fence_queue: Vec<VecDeque<u32>>,
    pub counts: NodeCounts,
}

#[derive(Debug, Default)]
pub struct Nodes {
    entries: Vec<Node>,
    by_address: AHashMap<SocketAddr, u16>,
    by_endpoint: AHashMap<Endpoint, u16>,
    /// Announced places that lead elsewhere (the address map), as the topology thread told.
    aliases: AHashMap<Endpoint, SocketAddr>,
}

/// Aliases kept at most; then they are learnt anew.
const ALIASES_MAX: usize = 4096;

impl std::ops::Index<u16> for Nodes {
    type Output = Node;
    #[inline]
    fn index(&self, index: u16) -> &Node {
        &self.entries[usize::from(index)]
    }
}

impl std::ops::IndexMut<u16> for Nodes {
    #[inline]
    fn index_mut(&mut self, index: u16) -> &mut Node {
        &mut self.entries[usize::from(index)]
    }
}

impl Nodes {
    /// Takes over a topology's nodes. Returns, for each of its indexes, the index here, or
    /// `UNOWNED` where a node has no address yet. `is_meant`: whether a request that is still to be
    /// sent, or a walk, names an index; that must not become another node's meanwhile.
    pub fn adopt(&mut self, topology: &Topology, is_meant: impl Fn(u16) -> bool) -> Vec<u16> {
        for node in &mut self.entries {
            node.present = false;
        }
        self.by_endpoint.clear();
        let mut translation = Vec::with_capacity(topology.nodes.len());
        for node in &topology.nodes {
            let Some(address) = node.address else {
                translation.push(UNOWNED);
                continue;
            };
            let index = self.entry(address, &node.endpoint, &is_meant);
            self[index].present = true;
            self[index].primary = node.role == Role::Primary;
            self[index].healthy = node.healthy;
            self.by_endpoint.insert(node.endpoint.clone(), index);
            translation.push(index);
        }
        translation
    }

    fn entry(
        &mut self,
        address: SocketAddr,
        endpoint: &Endpoint,
        is_meant: impl Fn(u16) -> bool,
    ) -> u16 {
        if let Some(&index) = self.by_address.get(&address) {
            self[index].endpoint = endpoint.clone();
            return index;
        }
        let node = Node {
            address,
            endpoint: endpoint.clone(),
            present: true,
            primary: false,
            healthy: true,
            shared: [NONE; 2],
            shared_others: Vec::new(),
            subscriber: NONE,
            fences: Vec::new(),
            no_fence_until_ms: 0,
            private: Vec::new(),
            fence_queue: Vec::new(),
            counts: NodeCounts::default(),
        };
        // An entry that nothing refers to any more is taken again, so that the table does not grow
        // with each address a node ever had.
        let unused = self.indexes().find(|&at| self[at].is_unused() && !is_meant(at));
        let index = match unused {
            Some(index) => {
                let before = std::mem::replace(&mut self[index], node);
                self.by_address.remove(&before.address);
                index
            }
            None => {
                self.entries.push(node);
                (self.entries.len() - 1) as u16
            }
        };
        self.by_address.insert(address, index);
        index
    }

    pub fn by_address(&self, address: &SocketAddr) -> Option<u16> {
        self.by_address.get(address).copied().filter(|&index| self[index].present)
    }

    /// The node that a redirect names, if the map knows it.
    pub fn by_endpoint(&self, endpoint: &Endpoint) -> Option<u16> {
        if let Some(&index) = self.by_endpoint.get(endpoint) {
            return Some(index);
        }
        if let Some(index) = self.aliases.get(endpoint).and_then(|at| self.by_address(at)) {
            return Some(index);
        }
        let ip = endpoint.host.parse().ok()?;
        self.by_address(&SocketAddr::new(ip, endpoint.port))
    }

    /// The node announced as `endpoint` is reached at `address`.
    pub fn note_alias(&mut self, endpoint: &Endpoint, address: SocketAddr) {
        if self.by_endpoint(endpoint).is_some() {
            return;
        }
        if self.aliases.len() >= ALIASES_MAX {
            self.aliases.clear();
        }
        self.aliases.insert(endpoint.clone(), address);
    }

    pub fn indexes(&self) -> std::ops::Range<u16> {
        0..self.entries.len() as u16
    }
}

impl Node {
    /// The shared backend of a face, or `NONE`.
    pub fn shared_of(&self, face: usize) -> u32 {
        let others = face.checked_sub(self.shared.len());
        match others {
            None => self.shared[face],
            Some(face) => self.shared_others.get(face).copied().unwrap_or(NONE),
        }
    }

    pub fn set_shared(&mut self, face: usize, backend: u32) {
        match face.checked_sub(self.shared.len()) {
            None => self.shared[face] = backend,
            Some(face) => {
                let len = self.shared_others.len().max(face + 1);
                self.shared_others.resize(len, NONE);
                self.shared_others[face] = backend;
            }
        }
    }

    /// Makes room for the fenced backends of a face.
    pub fn open_fence(&mut self, face: usize) {
        let faces = self.fences.len().max(face + 1);
        self.fences.resize_with(faces, Vec::new);
        self.fence_queue.resize_with(faces, VecDeque::new);
    }

    /// Not in the map and without backends.
    fn is_unused(&self) -> bool {
        !self.present
            && self.shared == [NONE; 2]
            && self.shared_others.iter().all(|&backend| backend == NONE)
            && self.subscriber == NONE
            && self.fences.iter().all(Vec::is_empty)
            && self.private.is_empty()
            && self.fence_queue.iter().all(VecDeque::is_empty)
    }

    /// All its backends.
    pub fn backends(&self) -> impl Iterator<Item = u32> + '_ {
        let shared = self.shared.into_iter().chain(self.shared_others.iter().copied());
        let single = shared.chain([self.subscriber]);
        let single = single.filter(|&backend| backend != NONE);
        let fences = self.fences.iter().flatten().copied();
        single.chain(fences).chain(self.private.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster;

    fn only(number: u8) -> Topology {
        let mut topology = Topology::empty();
        topology.nodes.push(cluster::Node {
            id: format!("{number:040}").into(),
            endpoint: Endpoint { host: format!("10.0.0.{number}").into(), port: 7000 },
            address: Some(SocketAddr::from(([10, 0, 0, number], 7000))),
            role: Role::Primary,
            shard: 0,
            healthy: true,
            epoch: 1,
        });
        topology
    }

    #[test]
    fn entry_of_a_node_that_left_is_taken_again_when_no_request_means_it() {
        let mut nodes = Nodes::default();
        assert_eq!(nodes.adopt(&only(1), |_| false), [0]);
        assert_eq!(nodes.adopt(&only(2), |node| node == 0), [1], "a request waits for it");
        assert_eq!(&*nodes[0].endpoint.host, "10.0.0.1");
        assert_eq!(nodes.adopt(&only(3), |_| false), [0], "nobody does any more");
        assert_eq!(nodes.by_address(&SocketAddr::from(([10, 0, 0, 1], 7000))), None);
    }
}
