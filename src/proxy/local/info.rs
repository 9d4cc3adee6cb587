//! INFO: the proxy in the form that clients, exporters and people read of a server.
//!
//! Not here: what the nodes know and are asked for when it is named (`proxy/node_info`; INFO nodes:
//! `proxy/node_facts`); here only the titles of these sections stand. What a proxy has none of is
//! said as a server that stores nothing would say it.

use std::io::Write;

use super::World;
use crate::cluster::SLOTS;
use crate::command::Args;
use crate::proxy::node_info;
use crate::proxy::session::Session;
use crate::resp::write;

/// Which sections a request without names shows.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Shown {
    Always,
    /// Only by name, or with `all` or `everything`.
    OnRequest,
}

type Section = (&'static str, &'static str, Shown, fn(&World, &mut Vec<u8>));

/// In the server's order; ours at the end.
static SECTIONS: &[Section] = &[
    ("server", "Server", Shown::Always, server),
    ("clients", "Clients", Shown::Always, clients),
    ("memory", "Memory", Shown::Always, memory),
    ("persistence", "Persistence", Shown::Always, persistence),
    ("stats", "Stats", Shown::Always, stats),
    ("replication", "Replication", Shown::Always, replication),
    ("cpu", "CPU", Shown::Always, cpu),
    ("modules", "Modules", Shown::Always, nothing),
    ("commandstats", "Commandstats", Shown::OnRequest, nothing),
    ("errorstats", "Errorstats", Shown::Always, nothing),
    ("latencystats", "Latencystats", Shown::OnRequest, nothing),
    ("cluster", "Cluster", Shown::Always, cluster),
    ("keyspace", "Keyspace", Shown::Always, nothing),
    ("ringway", "Ringway", Shown::Always, ringway),
];

/// Answers INFO: the sections named, each once; names nobody knows show nothing.
pub(super) fn answer(args: &Args, session: &Session, world: &World, out: &mut Vec<u8>) {
    write::verbatim(out, session.version, b"txt", &own_text(args, world));
}

/// Whether an INFO asks for sections that only the nodes know. Without names it does not: clients
/// send it while they connect, and it must not hang on any node.
pub fn needs_nodes(args: &Args) -> bool {
    args.iter().skip(1).any(|word| {
        let is = |name: &&str| word.eq_ignore_ascii_case(name.as_bytes());
        EVERYTHING.iter().chain(&node_info::SECTIONS).any(is)
    })
}

/// Whether it asks for all that there is.
pub fn asks_for_everything(args: &Args) -> bool {
    let is = |word: &[u8]| EVERYTHING.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes()));
    args.iter().skip(1).any(is)
}

const EVERYTHING: [&str; 2] = ["all", "everything"];

/// What the proxy says by itself.
pub fn own_text(args: &Args, world: &World) -> Vec<u8> {
    let mut text = Vec::with_capacity(4096);
    for &(name, title, shown, body) in SECTIONS {
        if !wanted(args, name, shown) {
            continue;
        }
        if !text.is_empty() {
            text.extend_from_slice(b"\r\n");
        }
        // Writing to a Vec cannot fail.
        let _ = write!(text, "# {title}\r\n");
        body(world, &mut text);
    }
    text
}

fn wanted(args: &Args, name: &str, shown: Shown) -> bool {
    if args.len() < 2 {
        return shown == Shown::Always;
    }
    args.iter().skip(1).any(|argument| {
        let is = |word: &str| argument.eq_ignore_ascii_case(word.as_bytes());
        is(name) || is("all") || is("everything") || (is("default") && shown == Shown::Always)
    })
}

macro_rules! lines {
    ($out:expr, $($name:literal: $value:expr),* $(,)?) => {
        $(let _ = write!($out, concat!($name, ":{}\r\n"), $value);)*
    };
}

fn server(world: &World, out: &mut Vec<u8>) {
    let identity = world.identity;
    let uptime_s = (world.unix_us / 1_000_000).saturating_sub(identity.started_unix_s);
    let run_id = std::str::from_utf8(&identity.run_id).unwrap_or_default();
    lines!(out,
        "redis_version": identity.version_announced,
        "redis_git_sha1": "00000000",
        "redis_git_dirty": 0,
        "redis_build_id": "0",
        "redis_mode": "standalone",
        "os": identity.os,
        "arch_bits": 64,
        "monotonic_clock": "POSIX clock_gettime",
        "multiplexing_api": "io_uring",
        "process_id": identity.process_id,
        "process_supervised": "no",
        "run_id": run_id,
        "tcp_port": identity.listen_port,
        "server_time_usec": world.unix_us,
        "uptime_in_seconds": uptime_s,
        "uptime_in_days": uptime_s / 86_400,
        "hz": 10,
        "configured_hz": 10,
        "executable": identity.executable,
        "config_file": identity.config_file,
        "io_threads_active": u8::from(identity.reactors > 1),
    );
}

fn clients(world: &World, out: &mut Vec<u8>) {
    let totals = world.totals;
    lines!(out,
        "connected_clients": totals.clients,
        "cluster_connections": 0,
        "maxclients": world.identity.maxclients,
        "client_recent_max_input_buffer": 0,
        "client_recent_max_output_buffer": 0,
        "blocked_clients": totals.blocked_clients,
        "tracking_clients": 0,
        "pubsub_clients": totals.pubsub_clients,
        "clients_in_timeout_table": 0,
    );
}

fn memory(world: &World, out: &mut Vec<u8>) {
    let totals = world.totals;
    let used = totals.memory_used;
    let peak = totals.memory_peak.max(used);
    // Whole tenths of a thousandth, so that no float is needed: 10000 is 100.00%.
    let peak_share = used.saturating_mul(10_000) / peak.max(1);
    let fragmentation = totals.memory_rss.saturating_mul(100) / used.max(1);
    lines!(out,
        "used_memory": used,
        "used_memory_human": Human(used),
        "used_memory_rss": totals.memory_rss,
        "used_memory_rss_human": Human(totals.memory_rss),
        "used_memory_peak": peak,
        "used_memory_peak_human": Human(peak),
        "used_memory_peak_perc": format_args!("{}%", Hundredths(peak_share)),
        "used_memory_overhead": used,
        "used_memory_startup": 0,
        "used_memory_dataset": 0,
        "used_memory_dataset_perc": "0.00%",
        "total_system_memory": totals.memory_system,
        "total_system_memory_human": Human(totals.memory_system),
        "used_memory_lua": 0,
        "used_memory_lua_human": "0B",
        "used_memory_scripts": 0,
        "used_memory_scripts_human": "0B",
        "number_of_cached_scripts": totals.scripts,
        "maxmemory": totals.memory_limit,
        "maxmemory_human": Human(totals.memory_limit),
        "maxmemory_policy": "noeviction",
        "mem_fragmentation_ratio": Hundredths(fragmentation),
        "mem_fragmentation_bytes": totals.memory_rss.saturating_sub(used),
        "mem_clients_slaves": 0,
        "mem_clients_normal": used,
        "mem_aof_buffer": 0,
        "mem_allocator": "libc",
        "active_defrag_running": 0,
        "lazyfree_pending_objects": 0,
        "lazyfreed_objects": 0,
    );
}

fn persistence(world: &World, out: &mut Vec<u8>) {
    lines!(out,
        "loading": 0,
        "async_loading": 0,
        "rdb_changes_since_last_save": 0,
        "rdb_bgsave_in_progress": 0,
        "rdb_last_save_time": world.identity.started_unix_s,
        "rdb_last_bgsave_status": "ok",
        "rdb_last_bgsave_time_sec": -1,
        "rdb_current_bgsave_time_sec": -1,
        "rdb_saves": 0,
        "rdb_last_cow_size": 0,
        "aof_enabled": 0,
        "aof_rewrite_in_progress": 0,
        "aof_rewrite_scheduled": 0,
        "aof_last_rewrite_time_sec": -1,
        "aof_current_rewrite_time_sec": -1,
        "aof_last_bgrewrite_status": "ok",
        "aof_last_write_status": "ok",
        "aof_last_cow_size": 0,
        "module_fork_in_progress": 0,
        "module_fork_last_cow_size": 0,
    );
}

fn stats(world: &World, out: &mut Vec<u8>) {
    let totals = world.totals;
    // Kilobytes with two decimals, as the server's "%.2f".
    let in_rate = totals.bytes_in_per_second.saturating_mul(100) / 1024;
    let out_rate = totals.bytes_out_per_second.saturating_mul(100) / 1024;
    lines!(out,
        "total_connections_received": totals.connections_accepted,
        "total_commands_processed": totals.commands,
        "instantaneous_ops_per_sec": totals.commands_per_second,
        "total_net_input_bytes": totals.bytes_in,
        "total_net_output_bytes": totals.bytes_out,
        "total_net_repl_input_bytes": 0,
        "total_net_repl_output_bytes": 0,
        "instantaneous_input_kbps": Hundredths(in_rate),
        "instantaneous_output_kbps": Hundredths(out_rate),
        "rejected_connections": totals.connections_rejected,
        "sync_full": 0,
        "sync_partial_ok": 0,
        "sync_partial_err": 0,
        "expired_keys": 0,
        "evicted_keys": 0,
        "evicted_clients": 0,
        "keyspace_hits": 0,
        "keyspace_misses": 0,
        "pubsub_channels": totals.pubsub_channels,
        "pubsub_patterns": totals.pubsub_patterns,
        "pubsubshard_channels": totals.pubsub_shard_channels,
        "latest_fork_usec": 0,
        "total_forks": 0,
        "migrate_cached_sockets": 0,
        "slave_expires_tracked_keys": 0,
        "active_defrag_hits": 0,
        "active_defrag_misses": 0,
        "tracking_total_keys": 0,
        "tracking_total_items": 0,
        "tracking_total_prefixes": 0,
        "unexpected_error_replies": 0,
        "total_error_replies": totals.error_replies,
    );
}

fn replication(world: &World, out: &mut Vec<u8>) {
    let run_id = std::str::from_utf8(&world.identity.run_id).unwrap_or_default();
    lines!(out,
        "role": "master",
        "connected_slaves": 0,
        "master_failover_state": "no-failover",
        "master_replid": run_id,
        "master_replid2": "0000000000000000000000000000000000000000",
        "master_repl_offset": 0,
        "second_repl_offset": -1,
        "repl_backlog_active": 0,
        "repl_backlog_size": 0,
        "repl_backlog_first_byte_offset": 0,
        "repl_backlog_histlen": 0,
    );
}

fn cpu(world: &World, out: &mut Vec<u8>) {
    let totals = world.totals;
    lines!(out,
        "used_cpu_sys": Micros(totals.cpu_system_us),
        "used_cpu_user": Micros(totals.cpu_user_us),
        "used_cpu_sys_children": Micros(0),
        "used_cpu_user_children": Micros(0),
    );
}

fn cluster(_: &World, out: &mut Vec<u8>) {
    lines!(out, "cluster_enabled": 0);
}

fn nothing(_: &World, _: &mut Vec<u8>) {}

/// What only a proxy has. Addresses of nodes are not shown: clients have no use for them.
fn ringway(world: &World, out: &mut Vec<u8>) {
    let totals = world.totals;
    let nodes = world.topology.map_or(0, |map| map.nodes.len());
    let primaries = world.topology.map_or(0, |map| map.primaries().count());
    let counted = SLOTS.min(totals.slots_missing as usize);
    let missing = world.topology.map_or(SLOTS, |_| counted);
    let epoch = world.topology.map_or(0, |map| map.epoch);
    let version = world.topology.map_or(0, |map| map.version);
    lines!(out,
        "ringway_version": env!("CARGO_PKG_VERSION"),
        "reactors": world.identity.reactors,
        "databases": world.databases(),
        "nodes": nodes,
        "primaries": primaries,
        "slots_served": SLOTS - missing,
        "slots_not_served": missing,
        "topology_version": version,
        "topology_epoch": epoch,
        "backends": totals.backends,
        "backends_private": totals.backends_private,
        "backends_lost": totals.backends_lost,
        "requests_in_flight": totals.requests_in_flight,
        "requests_split": totals.splits,
        "sends_to_nodes": totals.sends_to_nodes,
        "sends_to_clients": totals.sends_to_clients,
        "ring_enters": totals.ring_enters,
        "ring_completions": totals.ring_completions,
        "buffers_exhausted": totals.buffers_exhausted,
        "queue_overflows": totals.queue_overflows,
        "submissions_full": totals.submissions_full,
        "redirects": totals.redirects_moved + totals.redirects_ask,
        "redirects_moved": totals.redirects_moved,
        "redirects_ask": totals.redirects_ask,
        "retries": totals.retries_tryagain + totals.retries_other,
        "retries_tryagain": totals.retries_tryagain,
        "timeouts": totals.timeouts,
        "protocol_errors": totals.protocol_errors,
        "fence_breaches": totals.fence_breaches,
        "clients_slowed": totals.clients_slowed,
        "clients_closed_for_memory": totals.clients_closed_for_memory,
        "latency_p50_us": totals.latency_p50_us,
        "latency_p99_us": totals.latency_p99_us,
        "latency_p999_us": totals.latency_p999_us,
    );
}

/// Bytes as the server's `bytesToHuman` writes them.
struct Human(u64);

impl std::fmt::Display for Human {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        const UNITS: [&str; 4] = ["K", "M", "G", "T"];
        if self.0 < 1024 {
            return write!(f, "{}B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.2}{}", UNITS[unit])
    }
}

/// 1234 is `12.34`.
struct Hundredths(u64);

impl std::fmt::Display for Hundredths {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// µs as seconds with six decimals.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
