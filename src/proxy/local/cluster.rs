//! The cluster face: to a client that asks, we are a cluster of one node that owns all slots.
//!
//! Not here: the real map. It is for us alone; a client that knew it would go round the proxy.

use super::client::canonical;
use super::{Answer, World, errors};
use crate::cluster::{SLOTS, slot_of};
use crate::command::Args;
use crate::proxy::session::Session;
use crate::resp::{Version, write};

const LAST_SLOT: i64 = SLOTS as i64 - 1;

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
    let node = OneNode::of(session, world);
    match sub {
        "KEYSLOT" => write::integer(out, i64::from(slot_of(args.get(2).unwrap_or_default()))),
        "INFO" => info(version, world, out),
        "MYID" => write::bulk(out, &node.id),
        "MYSHARDID" => write::bulk(out, &node.shard),
        "NODES" => node.nodes(version, out),
        "SLOTS" => node.slots(version, out),
        "SHARDS" => node.shards(version, out),
        "REPLICAS" | "SLAVES" => {
            let id = args.get(2).unwrap_or_default();
            if id.eq_ignore_ascii_case(&node.id) {
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
fn info(version: Version, world: &World, out: &mut Vec<u8>) {
    let (state, slots) = if world.topology.is_some() { ("ok", SLOTS) } else { ("fail", 0) };
    let text = format!(
        "cluster_state:{state}\r\ncluster_slots_assigned:{SLOTS}\r\ncluster_slots_ok:{slots}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:{}\r\ncluster_known_nodes:1\r\n\
         cluster_size:1\r\ncluster_current_epoch:1\r\ncluster_my_epoch:1\r\n\
         cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n\
         total_cluster_links_buffer_limit_exceeded:0\r\n",
        SLOTS - slots
    );
    write::verbatim(out, version, b"txt", text.as_bytes());
}

/// Ourselves as this client sees us.
struct OneNode {
    id: [u8; 40],
    shard: [u8; 40],
    host: String,
    port: u16,
}

impl OneNode {
    fn of(session: &Session, world: &World) -> OneNode {
        let id = world.identity.run_id;
        // Any other 40 hex digits that stay the same.
        let mut shard = id;
        shard.reverse();
        let (host, port) = match &world.identity.announce {
            Some(endpoint) => (endpoint.host.to_string(), endpoint.port),
            None => {
                let local = canonical(session.local);
                (local.ip().to_string(), local.port())
            }
        };
        OneNode { id, shard, host, port }
    }

    fn nodes(&self, version: Version, out: &mut Vec<u8>) {
        let mut text = self.id.to_vec();
        let bus_port = self.port.checked_add(BUS_PORT_DISTANCE).unwrap_or(0);
        let rest = format!(
            " {}:{}@{bus_port} myself,master - 0 0 1 connected 0-{LAST_SLOT}\n",
            self.host, self.port
        );
        text.extend_from_slice(rest.as_bytes());
        write::verbatim(out, version, b"txt", &text);
    }

    fn slots(&self, version: Version, out: &mut Vec<u8>) {
        write::array_header(out, 1);
        write::array_header(out, 3);
        write::integer(out, 0);
        write::integer(out, LAST_SLOT);
        write::array_header(out, 4);
        write::bulk(out, self.host.as_bytes());
        write::integer(out, i64::from(self.port));
        write::bulk(out, &self.id);
        write::map_header(out, version, 0);
    }

    fn shards(&self, version: Version, out: &mut Vec<u8>) {
        write::array_header(out, 1);
        write::map_header(out, version, 2);
        write::bulk(out, b"slots");
        write::array_header(out, 2);
        write::integer(out, 0);
        write::integer(out, LAST_SLOT);
        write::bulk(out, b"nodes");
        write::array_header(out, 1);
        write::map_header(out, version, 7);
        write::bulk(out, b"id");
        write::bulk(out, &self.id);
        write::bulk(out, b"port");
        write::integer(out, i64::from(self.port));
        for field in ["ip", "endpoint"] {
            write::bulk(out, field.as_bytes());
            write::bulk(out, self.host.as_bytes());
        }
        write::bulk(out, b"role");
        write::bulk(out, b"master");
        write::bulk(out, b"replication-offset");
        write::integer(out, 0);
        write::bulk(out, b"health");
        write::bulk(out, b"online");
    }
}
