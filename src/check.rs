//! `ringway check`: reads what a host offers, says what is wanted, why, and how to change it.
//!
//! `settings` judges what `tuning/settings.tsv` names. Not here: changing anything
//! (`tuning/apply.sh`), trying the ring out (`ring`), asking the cluster.

use std::fmt::{self, Write as _};
use std::fs;

use crate::config::{Config, Process};
use crate::ring::{self, RingSettings};

mod settings;

use settings::settings;

/// What a fact means for us.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    Ok,
    /// It will run, and could run better.
    Warn,
    /// It will not run.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        })
    }
}

/// One line of the report; the last three are shown where something is to be changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    pub verdict: Verdict,
    pub name: String,
    pub value: String,
    pub wanted: String,
    pub why: String,
    pub how: String,
}

/// All facts of this host for this configuration.
pub fn check(config: &Config) -> Vec<Fact> {
    let status = read("/proc/self/status");
    let mut facts = ring_facts(&config.process, reactor_count(&config.process, &status));
    facts.push(descriptors(config, &read("/proc/self/limits")));
    facts.extend(reactors(config, &status));
    facts.extend(settings().iter().filter_map(|setting| setting.judge(&read(&setting.path()))));
    facts.extend(hyperthreads());
    facts
}

/// The report as text, and whether the proxy can run here.
pub fn report(facts: &[Fact]) -> (String, bool) {
    let mut out = String::new();
    let width = facts.iter().map(|fact| fact.name.len()).max().unwrap_or(0);
    for fact in facts {
        let _ = writeln!(out, "{}  {:width$}  {}", fact.verdict, fact.name, fact.value);
        if fact.verdict == Verdict::Ok {
            continue;
        }
        for (title, text) in [("wanted", &fact.wanted), ("why", &fact.why), ("how", &fact.how)] {
            if !text.is_empty() {
                let _ = writeln!(out, "      {title:<6}  {text}");
            }
        }
    }
    let count = |verdict| facts.iter().filter(|fact| fact.verdict == verdict).count();
    let (warn, fail) = (count(Verdict::Warn), count(Verdict::Fail));
    let end = match (fail, warn) {
        (0, 0) => "Ready.".to_string(),
        (0, warn) => format!("Ready, with {warn} remark(s). Nothing was changed."),
        (fail, warn) => {
            format!("Not ready: {fail} fault(s), {warn} remark(s). Nothing was changed.")
        }
    };
    let _ = writeln!(out, "\n{end}");
    (out, fail == 0)
}

/// What only a ring itself can tell. The one that decides is whether there is a ring at all.
fn ring_facts(process: &Process, reactors: usize) -> Vec<Fact> {
    let (size, count) = (process.receive_buffer_size, process.receive_buffer_count);
    let settings = RingSettings::new(process.ring_entries, size, count);
    let deciding = ["io_uring", "io_uring operations"];
    let to_fact = |finding: ring::Finding| Fact {
        verdict: match (finding.ok, deciding.contains(&finding.name)) {
            (true, _) => Verdict::Ok,
            (false, true) => Verdict::Fail,
            (false, false) => Verdict::Warn,
        },
        name: finding.name.to_string(),
        value: finding.value,
        wanted: String::new(),
        why: String::new(),
        how: finding.advice.unwrap_or_default(),
    };
    // Descriptors are judged below, where `maxclients` is known.
    ring::report(&settings, reactors)
        .into_iter()
        .filter(|finding| finding.name != "nofile")
        .map(to_fact)
        .collect()
}

/// Whether the hard limit of descriptors leaves room for `maxclients`.
fn descriptors(config: &Config, limits: &str) -> Fact {
    let wanted = descriptors_wanted(config);
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let hard = line.and_then(|line| line.split_whitespace().nth(1)).unwrap_or("unknown");
    let enough = hard == "unlimited" || hard.parse::<u64>().map_or(true, |hard| hard >= wanted);
    Fact {
        verdict: if enough { Verdict::Ok } else { Verdict::Warn },
        name: "open files (hard limit)".to_string(),
        value: hard.to_string(),
        wanted: format!("{wanted} or more"),
        why: format!(
            "each client and each node connection takes one; maxclients is {} for each pool{}",
            config.process.maxclients,
            match hard.parse().ok().and_then(|hard| room_within(hard, config)) {
                Some(room) => format!(", and will be lowered to {}", room.clients),
                None => String::new(),
            },
        ),
        how: "LimitNOFILE= (systemd), --ulimit nofile= (docker), or a lower maxclients".to_string(),
    }
}

/// Descriptors that clients leave alone where there are few: at most so many, at least so many, a
/// quarter of the limit in between. For nodes, listeners, rings, the log.
const RESERVE_MAX: u64 = 1024;
const RESERVE_MIN: u64 = 32;

/// What a limit on descriptors leaves room for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Room {
    /// Clients of one pool.
    pub clients: u32,
    /// Private backends of one node and reactor.
    pub private: u32,
}

/// Where the limit is too low for what the configuration asks for: what it leaves room for, as
/// redis-server lowers its `maxclients`. Clients must never have the descriptors with which lost
/// nodes are connected again.
pub fn room_within(limit: u64, config: &Config) -> Option<Room> {
    if limit >= descriptors_wanted(config) {
        return None;
    }
    let pools = config.pools.len().max(1) as u64;
    let reserve = (limit / 4).clamp(RESERVE_MIN, RESERVE_MAX);
    let clients = limit.saturating_sub(reserve) / pools;
    // A blocked client has two: its own, and one at the node. A few nodes, one reactor or two.
    let private = (reserve / 16 / pools).max(1);
    let asked = u64::from(config.process.maxclients);
    Some(Room {
        clients: u32::try_from(clients.clamp(1, asked)).unwrap_or(u32::MAX),
        private: u32::try_from(private).unwrap_or(u32::MAX),
    })
}

/// Clients of every pool, two protocols and some private connections to each node and reactor, and
/// spares.
pub fn descriptors_wanted(config: &Config) -> u64 {
    u64::from(config.process.maxclients) * config.pools.len().max(1) as u64 + 1024
}

/// Whether the CPUs asked for are there.
fn reactors(config: &Config, status: &str) -> Option<Fact> {
    let allowed = allowed_list(status)?;
    let allowed_cpus = cpu_list(allowed);
    let process = &config.process;
    let missing = process.cpus.0.iter().filter(|cpu| !allowed_cpus.contains(cpu)).count();
    let asked = process.reactors as usize;
    let verdict = match (missing, asked > allowed_cpus.len()) {
        (1.., _) => Verdict::Fail,
        (0, true) => Verdict::Warn,
        (0, false) => Verdict::Ok,
    };
    Some(Fact {
        verdict,
        name: "CPUs that we may use".to_string(),
        value: format!("{allowed} ({})", allowed_cpus.len()),
        wanted: if missing > 0 { "all of `cpus`" } else { "one for each reactor" }.to_string(),
        why: "each reactor is pinned; two on one CPU wait for each other".to_string(),
        how: "other `cpus` or `reactors`, or a larger cpuset".to_string(),
    })
}

/// The CPUs that the process may use, as the kernel writes them.
fn allowed_list(status: &str) -> Option<&str> {
    Some(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim())
}

/// How many reactors this configuration starts here.
fn reactor_count(process: &Process, status: &str) -> usize {
    match (process.cpus.0.len(), process.reactors as usize) {
        (0, 0) => allowed_list(status).map_or(1, |allowed| cpu_list(allowed).len().max(1)),
        (0, reactors) => reactors,
        (cpus, _) => cpus,
    }
}

/// `0,2-3` as the kernel writes it.
fn cpu_list(text: &str) -> Vec<usize> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.trim().parse::<usize>(), to.trim().parse::<usize>()) {
            cpus.extend(from..=to);
        }
    }
    cpus
}

/// Whether two CPUs share a core: told, not judged.
fn hyperthreads() -> Option<Fact> {
    let active = read("/sys/devices/system/cpu/smt/active");
    let value = match active.trim() {
        "" => return None,
        "1" => "on: one reactor per core first",
        _ => "off",
    };
    Some(Fact {
        verdict: Verdict::Ok,
        name: "hyperthreads".to_string(),
        value: value.to_string(),
        wanted: String::new(),
        why: String::new(),
        how: String::new(),
    })
}

/// A file under /proc or /sys; empty if it is not there.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_maxclients(maxclients: u32) -> Config {
        let process = crate::config::Process { maxclients, ..Default::default() };
        Config { process, pools: Vec::new(), warnings: Vec::new() }
    }

    #[test]
    fn descriptor_limit_below_maxclients_is_a_remark() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  20000  files\n";
        assert_eq!(descriptors(&with_maxclients(10_000), limits).verdict, Verdict::Ok);
        assert_eq!(descriptors(&with_maxclients(19_999), limits).verdict, Verdict::Warn);
    }

    #[test]
    fn few_descriptors_are_shared_between_clients_and_nodes() {
        let room = |limit, maxclients| room_within(limit, &with_maxclients(maxclients));
        assert_eq!(room(11_024, 10_000), None, "there is room for all");
        assert_eq!(room(64, 10_000), Some(Room { clients: 32, private: 2 }));
        assert_eq!(room(1_024, 10_000), Some(Room { clients: 768, private: 16 }));
        assert_eq!(room(4_096, 10_000), Some(Room { clients: 3_072, private: 64 }));
        assert_eq!(room(10_000, 10_000), Some(Room { clients: 8_976, private: 64 }));
        assert_eq!(room(1_000, 10), Some(Room { clients: 10, private: 15 }));
        assert_eq!(room(3, 10), Some(Room { clients: 1, private: 2 }), "one can always try");
        let mut two = with_maxclients(10_000);
        two.pools = vec![Default::default(), Default::default()];
        assert_eq!(room_within(1_024, &two), Some(Room { clients: 384, private: 8 }));
    }

    #[test]
    fn report_ends_with_the_verdict() {
        let bad = Fact {
            verdict: Verdict::Warn,
            name: "x".into(),
            value: "1".into(),
            wanted: "2".into(),
            why: "because".into(),
            how: "do".into(),
        };
        let (text, ready) = report(std::slice::from_ref(&bad));
        assert!(ready && text.contains("wanted  2") && text.contains("how     do"), "{text}");
        let (text, ready) = report(&[Fact { verdict: Verdict::Fail, ..bad }]);
        assert!(!ready && text.contains("Not ready: 1 fault(s)"), "{text}");
    }
}
