//! Reading CLUSTER SLOTS and CLUSTER SHARDS into a `Topology`.
//!
//! Not here: CLUSTER NODES (`nodes_text`), whether to believe it (`choose`), names to addresses
//! (`topology`).

use super::nodes_text::read_id;
use super::{Endpoint, Node, Role, SLOTS, Topology, UNOWNED};
use crate::limits::NODES_MAX;
use crate::resp::value::Value;
use ahash::AHashMap;
use std::fmt;

/// Why a reply is no map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TopologyError {
    /// The node answered with an error; its text, 200 bytes at most.
    Refused(String),
    /// Not of the documented shape; what was amiss.
    Malformed(&'static str),
    /// More than `limits::NODES_MAX` nodes.
    TooManyNodes,
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopologyError::Refused(text) => write!(f, "the node refused: {text}"),
            TopologyError::Malformed(what) => write!(f, "malformed reply: {what}"),
            TopologyError::TooManyNodes => write!(f, "more than {NODES_MAX} nodes"),
        }
    }
}

impl std::error::Error for TopologyError {}

/// Reads CLUSTER SLOTS: `[[first, last, [host, port, id, metadata], replica, …], …]`.
/// `asked` is the node that answered: a null or empty host means its host. Nodes with host `?` are
/// left out, and a slot whose primary is left out is unowned. Further fields are ignored.
pub fn read_slots(reply: &Value, asked: &Endpoint) -> Result<Topology, TopologyError> {
    let mut builder = Builder::new(asked);
    for row in rows(reply)? {
        let row = row.as_array().ok_or(TopologyError::Malformed("a range is no array"))?;
        let [first, last, members @ ..] = row else {
            return Err(TopologyError::Malformed("a range without its ends"));
        };
        let (first, last) = slot_range(first, last)?;
        let mut shard = None;
        for (index, member) in members.iter().enumerate() {
            let Some(telling) = Telling::from_slots(member, index == 0)? else { continue };
            let Some(node) = builder.add(&telling, shard)? else { continue };
            if index == 0 {
                builder.topology.give_slots(first, last, node);
                shard = builder.shard_of(node);
            } else if shard.is_none() {
                // Its primary is not known: a shard of its own, shared with its siblings.
                shard = builder.shard_of(node);
            }
        }
    }
    Ok(builder.finish())
}

/// Reads CLUSTER SHARDS: `[{slots: [first, last, …], nodes: [{id, port, endpoint, role, …}]}]`.
/// Hosts as in `read_slots`. Of several primaries in a shard the first healthy one owns its slots,
/// else the first (7.0 lists a failed one beside its successor). Further fields are ignored.
pub fn read_shards(reply: &Value, asked: &Endpoint) -> Result<Topology, TopologyError> {
    let mut builder = Builder::new(asked);
    for shard in rows(reply)? {
        let nodes = shard
            .get("nodes")
            .and_then(Value::as_array)
            .ok_or(TopologyError::Malformed("a shard without nodes"))?;
        let (mut number, mut owner) = (None, None::<(bool, u16)>);
        for node in nodes {
            let Some(telling) = Telling::from_shards(node)? else { continue };
            let Some(index) = builder.add(&telling, number)? else { continue };
            number = builder.shard_of(index);
            let better = owner.is_none_or(|(healthy, _)| telling.healthy && !healthy);
            if telling.role == Role::Primary && better {
                owner = Some((telling.healthy, index));
            }
        }
        let slots = shard.get("slots").and_then(Value::as_array).unwrap_or_default();
        let owner = owner.map_or(UNOWNED, |(_, index)| index);
        for pair in slots.chunks(2) {
            let [first, last] = pair else {
                return Err(TopologyError::Malformed("an odd number of range ends"));
            };
            let (first, last) = slot_range(first, last)?;
            builder.topology.give_slots(first, last, owner);
        }
    }
    Ok(builder.finish())
}

/// One node as a reply describes it.
struct Telling {
    id: Box<str>,
    /// None: the host of the node that was asked.
    host: Option<Box<[u8]>>,
    port: u16,
    role: Role,
    healthy: bool,
}

impl Telling {
    /// None: a node that is to be left out.
    fn from_slots(member: &Value, first: bool) -> Result<Option<Telling>, TopologyError> {
        let fields = member.as_array().ok_or(TopologyError::Malformed("a node is no array"))?;
        let [host, port, rest @ ..] = fields else {
            return Err(TopologyError::Malformed("a node without host and port"));
        };
        let port = port.as_integer().ok_or(TopologyError::Malformed("a port is no number"))?;
        let Ok(port @ 1..) = u16::try_from(port) else { return Ok(None) };
        let id = rest.first().and_then(Value::as_bytes).and_then(read_id).unwrap_or_default();
        let role = if first { Role::Primary } else { Role::Replica };
        let host = given_host(host);
        Ok(Some(Telling { id, host, port, role, healthy: true }))
    }

    fn from_shards(node: &Value) -> Result<Option<Telling>, TopologyError> {
        let bytes = |key| node.get(key).and_then(Value::as_bytes);
        let port_of = |key| {
            let port = node.get(key).and_then(Value::as_integer)?;
            u16::try_from(port).ok().filter(|&port| port != 0)
        };
        let role = match bytes("role") {
            Some(b"master" | b"primary") => Role::Primary,
            Some(_) => Role::Replica,
            None => return Err(TopologyError::Malformed("a node without a role")),
        };
        let healthy = bytes("health").is_none_or(|health| health == b"online");
        let Some(port) = port_of("port").or_else(|| port_of("tls-port")) else { return Ok(None) };
        let host = node.get("endpoint").or_else(|| node.get("ip")).and_then(given_host);
        if host.is_none() && !healthy {
            // A failed node without an address: not the one that was asked, which is alive.
            return Ok(None);
        }
        let id = bytes("id").and_then(read_id).unwrap_or_default();
        Ok(Some(Telling { id, host, port, role, healthy }))
    }
}

struct Builder<'a> {
    asked: &'a Endpoint,
    topology: Topology,
    by_name: AHashMap<Name, u16>,
    shards: u16,
}

#[derive(PartialEq, Eq, Hash)]
enum Name {
    Id(Box<str>),
    Place(Endpoint),
}

impl<'a> Builder<'a> {
    fn new(asked: &'a Endpoint) -> Builder<'a> {
        Builder { asked, topology: Topology::empty(), by_name: AHashMap::new(), shards: 0 }
    }

    /// Index of the node, new or known, in `shard` or a new one. None: its host is unknown.
    fn add(&mut self, telling: &Telling, shard: Option<u16>) -> Result<Option<u16>, TopologyError> {
        let host = telling.host.as_deref().unwrap_or(self.asked.host.as_bytes());
        let Some(endpoint) = Endpoint::new(host, telling.port) else { return Ok(None) };
        let name = if telling.id.is_empty() {
            Name::Place(endpoint.clone())
        } else {
            Name::Id(telling.id.clone())
        };
        if let Some(&index) = self.by_name.get(&name) {
            self.meet_again(index, telling.role);
            return Ok(Some(index));
        }
        let index = self.topology.nodes.len();
        let fits = u16::try_from(index).ok().filter(|_| index < NODES_MAX);
        let Some(index) = fits else { return Err(TopologyError::TooManyNodes) };
        let shard = shard.unwrap_or_else(|| {
            self.shards += 1;
            self.shards - 1
        });
        let Telling { id, role, healthy, .. } = telling;
        let (id, role, healthy) = (id.clone(), *role, *healthy);
        self.topology.nodes.push(Node {
            id,
            endpoint,
            address: None,
            role,
            shard,
            healthy,
            epoch: 0,
        });
        self.by_name.insert(name, index);
        Ok(Some(index))
    }

    /// SLOTS lists a node once a range: who is primary anywhere is one.
    fn meet_again(&mut self, index: u16, role: Role) {
        if let Some(node) = self.topology.nodes.get_mut(usize::from(index)) {
            if role == Role::Primary {
                node.role = role;
            }
        }
    }

    fn shard_of(&self, index: u16) -> Option<u16> {
        self.topology.nodes.get(usize::from(index)).map(|node| node.shard)
    }

    /// Puts nodes in the order of their ids, so that equal maps compare equal, and numbers the
    /// shards in that order.
    fn finish(self) -> Topology {
        let mut topology = self.topology;
        let mut order: Vec<usize> = (0..topology.nodes.len()).collect();
        let key = |index: &usize| topology.nodes.get(*index).map(|node| (&node.id, &node.endpoint));
        order.sort_by(|a, b| key(a).cmp(&key(b)));
        let mut place_of = vec![UNOWNED; order.len()];
        for (place, &index) in (0u16..).zip(&order) {
            if let Some(entry) = place_of.get_mut(index) {
                *entry = place;
            }
        }
        // Slots come in ranges: what the last one's owner became, this one's mostly becomes too.
        let (mut last, mut place) = (UNOWNED, UNOWNED);
        for owner in topology.owners.iter_mut() {
            if *owner != last {
                last = *owner;
                place = place_of.get(usize::from(last)).copied().unwrap_or(UNOWNED);
            }
            *owner = place;
        }
        let mut nodes: Vec<Node> =
            order.iter().filter_map(|&index| topology.nodes.get(index).cloned()).collect();
        let mut numbers = AHashMap::new();
        for node in &mut nodes {
            let next = u16::try_from(numbers.len()).unwrap_or(UNOWNED);
            node.shard = *numbers.entry(node.shard).or_insert(next);
        }
        topology.nodes = nodes;
        topology
    }
}

fn rows(reply: &Value) -> Result<&[Value], TopologyError> {
    if let Value::Error(text) = reply {
        const SHOWN: usize = 200;
        let text = text.get(..SHOWN).unwrap_or(text);
        return Err(TopologyError::Refused(String::from_utf8_lossy(text).into_owned()));
    }
    reply.as_array().ok_or(TopologyError::Malformed("not an array"))
}

fn slot_range(first: &Value, last: &Value) -> Result<(u16, u16), TopologyError> {
    let ends = first.as_integer().zip(last.as_integer());
    let (first, last) = ends.ok_or(TopologyError::Malformed("a range end is no number"))?;
    match (u16::try_from(first), u16::try_from(last)) {
        (Ok(first), Ok(last)) if first <= last && usize::from(last) < SLOTS => Ok((first, last)),
        _ => Err(TopologyError::Malformed("a range outside 0..=16383")),
    }
}

/// None for null and empty: the host of the node that was asked.
fn given_host(host: &Value) -> Option<Box<[u8]>> {
    host.as_bytes().filter(|host| !host.is_empty()).map(Box::from)
}
