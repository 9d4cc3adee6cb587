//! INFO nodes: what the primaries say of themselves, added up.
//!
//! Not here: the sections that nodes are asked for by name (`node_info`), the proxy's own facts
//! (`local`).

use std::fmt::Write;

use super::walk::found::bulk_text;
use crate::resp::{Version, write};

/// Counts that have a sum.
const ADDED: [&str; 18] = [
    "connected_clients",
    "blocked_clients",
    "used_memory",
    "used_memory_rss",
    "used_memory_dataset",
    "maxmemory",
    "total_connections_received",
    "rejected_connections",
    "total_commands_processed",
    "instantaneous_ops_per_sec",
    "total_net_input_bytes",
    "total_net_output_bytes",
    "expired_keys",
    "evicted_keys",
    "keyspace_hits",
    "keyspace_misses",
    "total_error_replies",
    "connected_slaves",
];

/// Writes the section from the primaries' replies to INFO; what none of them says is left out.
/// `None`: one is no such reply.
pub fn merge(replies: &[&[u8]], version: Version, out: &mut Vec<u8>) -> Option<()> {
    let mut sums: [Option<u64>; ADDED.len()] = [None; ADDED.len()];
    for reply in replies {
        let text = std::str::from_utf8(bulk_text(reply)?).ok()?;
        for line in text.lines() {
            let Some((name, value)) = line.trim_end().split_once(':') else { continue };
            let Some(place) = ADDED.iter().position(|added| *added == name) else { continue };
            let sum = sums[place].unwrap_or(0);
            sums[place] = Some(sum.saturating_add(value.parse().ok()?));
        }
    }
    let mut text = format!("# Nodes\r\nnodes_primaries:{}\r\n", replies.len());
    for (name, sum) in ADDED.iter().zip(sums) {
        if let Some(sum) = sum {
            // Writing to a String cannot fail.
            let _ = write!(text, "nodes_{name}:{sum}\r\n");
        }
    }
    write::verbatim(out, version, b"txt", text.as_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(texts: &[&str]) -> Option<String> {
        let replies: Vec<String> =
            texts.iter().map(|text| format!("${}\r\n{text}\r\n", text.len())).collect();
        let replies: Vec<&[u8]> = replies.iter().map(|reply| reply.as_bytes()).collect();
        let mut out = Vec::new();
        merge(&replies, Version::Resp2, &mut out)?;
        bulk_text(&out).map(|text| String::from_utf8_lossy(text).into_owned())
    }

    #[test]
    fn counts_of_all_primaries_are_added() {
        let got = merged(&[
            "# Memory\r\nused_memory:5\r\nused_memory_human:5B\r\nexpired_keys:1\r\n",
            "# Memory\r\nused_memory:7\r\n",
        ]);
        let expected = "# Nodes\r\nnodes_primaries:2\r\nnodes_used_memory:12\r\n\
                        nodes_expired_keys:1\r\n";
        assert_eq!(got.as_deref(), Some(expected));
        assert_eq!(merged(&["used_memory:x\r\n"]), None);
    }
}
