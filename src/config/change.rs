//! Changes while the process runs: what may change at once, and what needs a restart.
//!
//! Not here: carrying a change to the threads (`serve`), reading the sources again (`mod`).

use super::Config;
use super::options::{self, Pool, Process, Scope};
use super::value::Raw;

/// Options that are what the process was started with.
const FIXED: [&str; 9] = [
    "reactors",
    "cpus",
    "ring_entries",
    "receive_buffer_size",
    "receive_buffer_count",
    "handover_socket",
    "admin_listen",
    "name",
    "listen",
];

/// Read from a file when the sources are read, so not to be set one by one.
const FROM_FILES: [&str; 2] = ["password_file", "node_password_file"];

/// Why an option was not set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub option: String,
    pub why: String,
}

/// What holds after the sources have been read again: `new`, but for what cannot change. And what
/// of it differs and needs a restart.
pub fn reload(old: &Config, mut new: Config) -> (Config, Vec<String>) {
    let mut restart = Vec::new();
    let differing = different(&old.process.shown(), &new.process.shown());
    restart.extend(differing.into_iter().filter(|name| FIXED.contains(name)).map(str::to_owned));
    let kept = old.process.clone();
    new.process.reactors = kept.reactors;
    new.process.cpus = kept.cpus;
    new.process.ring_entries = kept.ring_entries;
    new.process.receive_buffer_size = kept.receive_buffer_size;
    new.process.receive_buffer_count = kept.receive_buffer_count;
    new.process.handover_socket = kept.handover_socket;
    new.process.admin_listen = kept.admin_listen;
    let mut pools = Vec::new();
    for before in &old.pools {
        let Some(at) = new.pools.iter().position(|pool| pool.name == before.name) else {
            restart.push(format!("the pool {} is gone", before.name));
            pools.push(before.clone());
            continue;
        };
        let mut pool = new.pools.remove(at);
        if pool.listen != before.listen {
            restart.push(format!("listen of the pool {}", before.name));
            pool.listen = before.listen.clone();
        }
        pools.push(pool);
    }
    restart.extend(new.pools.iter().map(|pool| format!("the pool {} is new", pool.name)));
    new.pools = pools;
    (new, restart)
}

fn different(old: &[(&'static str, String)], new: &[(&'static str, String)]) -> Vec<&'static str> {
    old.iter().zip(new).filter(|(old, new)| old != new).map(|(old, _)| old.0).collect()
}

/// One option after the other set in one pool, or in the process: all, or none.
pub fn change(config: &Config, pool: usize, pairs: &[(String, String)]) -> Result<Config, Refusal> {
    let mut config = config.clone();
    for (option, value) in pairs {
        let refuse = |why: String| Refusal { option: option.clone(), why };
        let name = option.to_ascii_lowercase().replace('-', "_");
        let Some(row) = options::find(&name) else {
            return Err(refuse("no such option".into()));
        };
        if FIXED.contains(&row.name) {
            return Err(refuse("it needs a restart".into()));
        }
        if FROM_FILES.contains(&row.name) {
            return Err(refuse("it is read at the start and at SIGHUP".into()));
        }
        let raw = Raw::Text(value.clone());
        let of_pool = config.pools.get_mut(pool);
        let set = match (row.scope, of_pool) {
            (Scope::Process, _) => config.process.set(row.name, &raw),
            (Scope::Pool, Some(pool)) => pool.set(row.name, &raw),
            (Scope::Pool, None) => None,
        };
        match set {
            Some(Ok(())) => (),
            Some(Err(wanted)) => return Err(refuse(format!("wants {wanted}"))),
            None => return Err(refuse("no such option".into())),
        }
    }
    let soft_over = |pool: &Pool| pool.client_output_soft > pool.client_output_limit;
    if config.pools.get(pool).is_some_and(soft_over) {
        let option = "client_output_soft".to_string();
        let why = "must not be above client_output_limit".to_string();
        return Err(Refusal { option, why });
    }
    Ok(config)
}

/// Each option with what holds, for one pool; no passwords.
pub fn shown(process: &Process, pool: &Pool) -> Vec<(&'static str, String)> {
    let mut all = pool.shown();
    all.extend(process.shown());
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogLevel;

    /// A new option is to be named here, or in `FIXED`: whether a running process can take it over.
    const CHANGING: [&str; 40] = [
        "busy_poll_us",
        "gather_us",
        "memory_limit",
        "maxclients",
        "drain_timeout_ms",
        "log_level",
        "nodes",
        "announce_version",
        "password",
        "password_file",
        "admin_user",
        "node_user",
        "node_password",
        "node_password_file",
        "request_timeout_ms",
        "connect_timeout_ms",
        "refresh_interval_ms",
        "tcp_user_timeout_ms",
        "client_idle_timeout_s",
        "split_reads",
        "split_writes",
        "allow_flush",
        "allow_keys",
        "allow_config",
        "keys_max_bytes",
        "ignore_select",
        "fence_lanes",
        "private_backends_max",
        "client_requests_max",
        "client_output_soft",
        "client_output_limit",
        "client_query_limit",
        "pubsub_output_limit",
        "slowlog_log_slower_than",
        "slowlog_max_len",
        "redirects_max",
        "announce",
        "databases_max",
        "client_bulk_limit",
        "sample_keys",
    ];

    fn config() -> Config {
        let pool = |name: &str| Pool { name: name.into(), ..Pool::default() };
        let pools = vec![pool("one"), pool("two")];
        Config { process: Process::default(), pools, warnings: Vec::new() }
    }

    #[test]
    fn each_option_is_known_to_change_or_to_need_a_restart() {
        for row in options::rows() {
            let changes = CHANGING.contains(&row.name);
            assert_ne!(changes, FIXED.contains(&row.name), "{}", row.name);
        }
    }

    #[test]
    fn what_cannot_change_is_named_and_stays() {
        let old = config();
        let mut new = config();
        new.process.reactors = 3;
        new.process.maxclients = 7;
        new.pools[1].name = "three".into();
        new.pools[0].listen = vec!["127.0.0.1:1".parse().unwrap()];
        new.pools[0].request_timeout_ms = 9;
        let (holds, restart) = reload(&old, new);
        let told =
            ["reactors", "listen of the pool one", "the pool two is gone", "the pool three is new"];
        assert_eq!(restart, told);
        assert_eq!((holds.process.reactors, holds.process.maxclients), (0, 7));
        assert_eq!(holds.pools[0].request_timeout_ms, 9);
        assert_eq!(holds.pools[0].listen, []);
        assert_eq!(holds.pools[1], old.pools[1]);
    }

    #[track_caller]
    fn check(pairs: &[(&str, &str)], expected: Result<(), (&str, &str)>) {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let done = change(&config(), 1, &pairs);
        let done = done.as_ref().map(|_| ()).map_err(|no| (no.option.as_str(), no.why.as_str()));
        assert_eq!(done, expected);
    }

    #[test]
    fn options_are_set_by_their_names_all_or_none() {
        let pairs = [("log-level", "debug"), ("Request_Timeout_Ms", "77")];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let new = change(&config(), 1, &pairs).unwrap();
        assert_eq!(new.process.log_level, LogLevel::Debug);
        assert_eq!(new.pools[1].request_timeout_ms, 77);
        assert_eq!(new.pools[0], config().pools[0], "of that pool only");
        check(&[("maxclients", "5"), ("nonsense", "1")], Err(("nonsense", "no such option")));
        check(&[("reactors", "2")], Err(("reactors", "it needs a restart")));
        check(&[("maxclients", "0")], Err(("maxclients", "wants a number from 1 to 1000000")));
        let soft = "must not be above client_output_limit";
        check(&[("client_output_soft", "1g")], Err(("client_output_soft", soft)));
        let file = "it is read at the start and at SIGHUP";
        check(&[("password_file", "x")], Err(("password_file", file)));
        check(&[("password", "secret")], Ok(()));
    }

    #[test]
    fn no_password_is_shown() {
        let mut config = config();
        config.pools[0].password = Some(crate::secret::Secret::new(*b"canary"));
        let shown = shown(&config.process, &config.pools[0]);
        assert!(shown.iter().any(|(name, value)| *name == "maxclients" && value == "10000"));
        assert!(!shown.iter().any(|(name, _)| *name == "password"), "{shown:?}");
    }
}
