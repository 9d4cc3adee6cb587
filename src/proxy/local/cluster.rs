//! The cluster face: to a client that asks, we are a cluster whose nodes are the addresses of
//! `announce`, each with an equal share of the slots; without that option one node, the address
//! that the client reached. Behind each of them is a proxy, so a request for any slot is right at
//! any.
//!
//! Not here: the real map. It is for us alone; a client that knew it would go round the proxy.

use std::fmt::Write as _;

use super::client::canonical;
use super::{Answer, World, errors};
use crate::cluster::{SLOTS, slot_of};
use crate::command::Args;
use crate::proxy::session::Session;
use crate::resp::{Version, write};

/// How far a node's bus port is from its port (cluster.h `CLUSTER_PORT_INCR`).
const BUS_PORT_DISTANCE: u16 = 10_000;

/// Answers `CLUSTER <sub>`, as far as it is about the map.
pub(super) fn answer(
    sub: &str,
    args: &Args,
    session: &Session,
    world: &World,
    out: &mut Vec<u8>,
) -> Answer {
    let version = session.version;
    let face = Face::of(session, world);
    match sub {
        "KEYSLOT" => write::integer(out, i64::from(slot_of(args.get(2).unwrap_or_default()))),
        "INFO" => info(version, face.nodes.len(), world, out),
        "MYID" => write::bulk(out, &face.own().id),
        "MYSHARDID" => write::bulk(out, &shard_of(face.own().id)),
        "NODES" => face.nodes(version, out),
        "SLOTS" => face.slots(version, out),
        "SHARDS" => face.shards(version, out),
        "REPLICAS" | "SLAVES" => {
            let id = args.get(2).unwrap_or_default();
            if face.nodes.iter().any(|node| id.eq_ignore_ascii_case(&node.id)) {
                write::array_header(out, 0);
            } else {
                let quoted = errors::clip(id, usize::MAX);
                errors::line(out, &[b"ERR Unknown node ", quoted]);
            }
        }
        _ => errors::refused(out, &format!("CLUSTER {sub}")),
    }
    Answer::Replied
}

/// Clients wait for `ok` before they start (ioredis), so it means: we know the cluster.
fn info(version: Version, nodes: usize, world: &World, out: &mut Vec<u8>) {
    let (state, slots) = if world.topology.is_some() { ("ok", SLOTS) } else { ("fail", 0) };
    let text = format!(
        "cluster_state:{state}\r\ncluster_slots_assigned:{SLOTS}\r\ncluster_slots_ok:{slots}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:{}\r\ncluster_known_nodes:{nodes}\r\n\
         cluster_size:{nodes}\r\ncluster_current_epoch:1\r\ncluster_my_epoch:1\r\n\
         cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n\
         total_cluster_links_buffer_limit_exceeded:0\r\n",
        SLOTS - slots
    );
    write::verbatim(out, version, b"txt", text.as_bytes());
}

/// A node that there is to a client.
struct FaceNode {
    id: [u8; 40],
    host: Box<str>,
    port: u16,
    first: usize,
    last: usize,
}

/// All of them, and which one this client has reached.
struct Face {
    nodes: Vec<FaceNode>,
    own: usize,
}

/// Any other 40 hex digits that stay the same.
fn shard_of(mut id: [u8; 40]) -> [u8; 40] {
    id.reverse();
    id
}

/// The same in each process that announces this place.
fn id_of(host: &str, port: u16) -> [u8; 40] {
    let mut id = [b'0'; 40];
    let text = sha1_smol::Sha1::from(format!("{host}:{port}")).digest().to_string();
    id.iter_mut().zip(text.bytes()).for_each(|(digit, byte)| *digit = byte);
    id
}

impl Face {
    fn of(session: &Session, world: &World) -> Face {
        let local = canonical(session.local);
        let (host, port) = (local.ip().to_string(), local.port());
        let announced = &world.identity.announce;
        if announced.is_empty() {
            let id = world.identity.run_id;
            let node = FaceNode { id, host: host.into(), port, first: 0, last: SLOTS - 1 };
            return Face { nodes: vec![node], own: 0 };
        }
        let count = announced.len();
        let nodes: Vec<FaceNode> = (0..count)
            .zip(announced)
            .map(|(n, place)| FaceNode {
                id: id_of(&place.host, place.port),
                host: place.host.clone(),
                port: place.port,
                first: n * SLOTS / count,
                last: (n + 1) * SLOTS / count - 1,
            })
            .collect();
        // Behind a name or an address translation the port may still tell.
        let is_reached = |node: &FaceNode| node.port == port && *node.host == *host;
        let own = nodes.iter().position(is_reached);
        let own = own.or_else(|| nodes.iter().position(|node| node.port == port)).unwrap_or(0);
        Face { nodes, own }
    }

    fn own(&self) -> &FaceNode {
        &self.nodes[self.own]
    }

    fn nodes(&self, version: Version, out: &mut Vec<u8>) {
        let mut text = String::new();
        for (n, node) in self.nodes.iter().enumerate() {
            let id = String::from_utf8_lossy(&node.id);
            let bus_port = node.port.checked_add(BUS_PORT_DISTANCE).unwrap_or(0);
            let myself = if n == self.own { "myself," } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{id} {}:{}@{bus_port} {myself}master - 0 0 1 connected {}-{}",
                node.host, node.port, node.first, node.last
            );
        }
        write::verbatim(out, version, b"txt", text.as_bytes());
    }

    fn slots(&self, version: Version, out: &mut Vec<u8>) {
        write::array_header(out, self.nodes.len());
        for node in &self.nodes {
            write::array_header(out, 3);
            write::integer(out, node.first as i64);
            write::integer(out, node.last as i64);
            write::array_header(out, 4);
            write::bulk(out, node.host.as_bytes());
            write::integer(out, i64::from(node.port));
            write::bulk(out, &node.id);
            write::map_header(out, version, 0);
        }
    }

    fn shards(&self, version: Version, out: &mut Vec<u8>) {
        write::array_header(out, self.nodes.len());
        for node in &self.nodes {
            write::map_header(out, version, 2);
            write::bulk(out, b"slots");
            write::array_header(out, 2);
            write::integer(out, node.first as i64);
            write::integer(out, node.last as i64);
            write::bulk(out, b"nodes");
            write::array_header(out, 1);
            write::map_header(out, version, 7);
            write::bulk(out, b"id");
            write::bulk(out, &node.id);
            write::bulk(out, b"port");
            write::integer(out, i64::from(node.port));
            for field in ["ip", "endpoint"] {
                write::bulk(out, field.as_bytes());
                write::bulk(out, node.host.as_bytes());
            }
            write::bulk(out, b"role");
            write::bulk(out, b"master");
            write::bulk(out, b"replication-offset");
            write::integer(out, 0);
            write::bulk(out, b"health");
            write::bulk(out, b"online");
        }
    }
}
