//! What a cluster is: slots, nodes, who owns what, and which of two maps to believe. Pure.
//!
//! Not here: asking nodes (`topology`), sending requests to them (`proxy`).

mod address_map;
mod choose;
mod endpoint;
mod map;
mod nodes_text;
mod read;
mod slot;
#[cfg(test)]
mod tests_read;

pub use address_map::{AddressMap, AddressMapError};
pub use choose::{Choice, Witnesses, choose};
pub use endpoint::{Endpoint, redirect_endpoint};
pub use map::{Node, Role, SlotMap, Topology, UNOWNED};
pub use nodes_text::{ClusterInfo, NodeFlags, NodeLine, read_cluster_info, read_nodes_text};
pub use read::{TopologyError, read_shards, read_slots};
pub use slot::{SLOTS, crc16, hash_tag, slot_of, tag_of_slot};
