//! What a cluster is: slots, nodes, who owns what, and which of two maps to believe. Pure.
//!
//! Not here: asking nodes (`topology`), sending requests to them (`proxy`).

mod endpoint;
mod map;
mod slot;

pub use endpoint::{Endpoint, redirect_endpoint};
pub use map::{Node, Role, SlotMap, Topology, UNOWNED};
pub use slot::{SLOTS, crc16, hash_tag, slot_of};
