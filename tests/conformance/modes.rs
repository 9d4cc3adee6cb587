//! Every mode that a client can be in, and in each a command of every class: the replies are those of
//! one plain server, or as `tests/data/modes.txt` says.
//!
//! Each pair runs on a client of its own: what begins the mode, the command, what ends it, RESET. All
//! replies up to RESET's are compared, so that one too many or too few is seen. Not here: clients
//! without login (`tests/cases`: `login`), other databases (`databases`), MONITOR (`watching`).

use std::collections::{BTreeMap, BTreeSet};

use crate::Differences;
use crate::bench::{Bench, Side};
use crate::rows::kind;
use crate::support::client::{Client, Got, request};
use crate::support::cluster::Flavour;

struct Mode {
    name: &'static str,
    begin: &'static [&'static str],
    end: &'static [&'static str],
}

impl Mode {
    fn queues(&self) -> bool {
        self.begin.contains(&"MULTI")
    }

    /// All replies when the command is refused while queuing.
    fn refused(&self, error: &str) -> String {
        let begun = self.begin.iter().map(|line| if *line == "GET" { "-ERR" } else { "<simple>" });
        let ended = if self.end == ["DISCARD"] { "<simple>" } else { "-EXECABORT" };
        begun.chain([error, ended, "RESET"]).collect::<Vec<_>>().join(" ")
    }
}

const MODES: &[Mode] = &[
    Mode { name: "plain", begin: &[], end: &[] },
    Mode { name: "RESP3", begin: &["HELLO 3"], end: &[] },
    Mode { name: "MULTI", begin: &["MULTI"], end: &["EXEC"] },
    Mode { name: "MULTI with a write", begin: &["MULTI", "SET {m}a 1"], end: &["EXEC"] },
    Mode { name: "MULTI discarded", begin: &["MULTI", "SET {m}a 1"], end: &["DISCARD"] },
    Mode { name: "MULTI after a mistake", begin: &["MULTI", "GET"], end: &["EXEC"] },
    Mode { name: "WATCH", begin: &["WATCH {m}a"], end: &["MULTI", "GET {m}a", "EXEC"] },
    Mode { name: "WATCH and MULTI", begin: &["WATCH {m}a", "MULTI"], end: &["EXEC"] },
    Mode { name: "subscribed", begin: &["SUBSCRIBE m:channel"], end: &["UNSUBSCRIBE"] },
    Mode { name: "subscribed to a pattern", begin: &["PSUBSCRIBE m:*"], end: &["PUNSUBSCRIBE"] },
    Mode {
        name: "subscribed to a shard channel",
        begin: &["SSUBSCRIBE {m}s"],
        end: &["SUNSUBSCRIBE"],
    },
    Mode {
        name: "subscribed, RESP3",
        begin: &["HELLO 3", "SUBSCRIBE m:channel"],
        end: &["UNSUBSCRIBE"],
    },
    Mode { name: "no replies", begin: &["CLIENT REPLY OFF"], end: &["CLIENT REPLY ON"] },
    Mode { name: "one reply skipped", begin: &["CLIENT REPLY SKIP"], end: &[] },
    Mode { name: "blocked before it", begin: &["BLPOP {m}none 0.05"], end: &[] },
];

/// At least one of each class that a plain server has too.
const COMMANDS: &[&str] = &[
    "GET {m}a",
    "SET {m}a 2",
    "GET",
    "NOSUCH {m}a",
    "MGET {m}a {m}b",
    "MGET m:a m:b m:c",
    "DEL {m}a {m}b",
    "DEL m:a m:b m:c",
    "MSET {m}a 1 {m}b 2",
    "MSET m:a 1 m:b 2 m:c 3",
    "SINTER {m}s1 {m}s2",
    "EVAL return(1) 0",
    "EVAL return(redis.call('incr',KEYS[1])) 1 {m}n",
    "DBSIZE",
    "SCRIPT LOAD return(1)",
    "SCAN 0",
    "RANDOMKEY",
    "PING",
    "ECHO x",
    "SELECT 0",
    "INFO",
    "CLIENT LIST",
    "MULTI",
    "EXEC",
    "DISCARD",
    "WATCH {m}b",
    "UNWATCH",
    "BLPOP {m}none 0.05",
    "XREAD BLOCK 50 STREAMS {m}none 0",
    "WAIT 0 10",
    "PUBLISH m:other x",
    "SPUBLISH {m}t x",
    "SUBSCRIBE m:more",
    "PSUBSCRIBE m:more*",
    "SSUBSCRIBE {m}u",
    "UNSUBSCRIBE m:more",
    "PUBSUB NUMPAT",
    "CLIENT TRACKING OFF",
    "HELLO 3",
    "HELLO 2",
];

/// Of what a server obeys and the proxy refuses: these reach the proxy only.
const REFUSED: &[&str] =
    &["SHUTDOWN NOSAVE", "REPLICAOF no one", "DEBUG SLEEP 0", "SAVE", "MIGRATE a 1 k 0 1"];

/// `mode | command | replies`, one a line: where we do not answer as a plain server, or as that of one
/// flavour (`Valkey: mode`). Of the mode `queuing` are all between MULTI and EXEC; there the one reply to the command stands.
const DOCUMENTED: &str = include_str!("../data/modes.txt");

fn documented() -> BTreeMap<(&'static str, &'static str), &'static str> {
    let lines = DOCUMENTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parts = lines.map(|line| line.splitn(3, " | ").collect::<Vec<_>>());
    parts.map(|parts| ((parts[0], parts[1]), parts[2])).collect()
}

#[test]
fn every_class_in_every_mode_is_answered_as_by_one_server_or_as_documented() {
    for flavour in Flavour::all() {
        let bench = Bench::start(flavour);
        let documented = documented();
        let other = if flavour == Flavour::Redis { "Valkey: " } else { "Redis: " };
        let keys = documented.keys().copied();
        let mut unused: BTreeSet<_> = keys.filter(|key| !key.0.starts_with(other)).collect();
        let mut differences = Differences::default();
        for mode in MODES {
            for &command in COMMANDS {
                bench.empty();
                let got = replies(bench.client(Side::Judged, false), mode, command);
                let place = format!("{flavour:?}: {} | {command}", mode.name);
                let own = format!("{flavour:?}: {}", mode.name);
                let kinds = [own.as_str(), mode.name, if mode.queues() { "queuing" } else { "" }];
                let row = kinds.iter().find_map(|kind| {
                    documented.iter().find(|(key, _)| key.0 == *kind && key.1 == command)
                });
                let expected = match row {
                    Some((key, told)) => {
                        unused.remove(key);
                        if key.0 == "queuing" { mode.refused(told) } else { (*told).to_owned() }
                    }
                    None => replies(bench.client(Side::Plain, false), mode, command),
                };
                differences.compare(&place, &expected, &got);
            }
            for &command in REFUSED {
                let got = replies(bench.client(Side::Judged, false), mode, command);
                let place = format!("{flavour:?}: {} | {command}", mode.name);
                let silent = matches!(mode.name, "no replies" | "one reply skipped");
                let clear = if silent { !got.contains('-') } else { got.contains("-ERR") };
                let ended = got.ends_with("RESET");
                differences.compare(
                    &place,
                    "a refusal, then RESET",
                    match clear && ended {
                        true => "a refusal, then RESET",
                        false => &got,
                    },
                );
            }
        }
        assert!(unused.is_empty(), "documented, but not so: {unused:?}");
        differences.finish();
    }
}

/// All that is answered, errors by their first word and other replies by their type.
fn replies(mut client: Client, mode: &Mode, command: &str) -> String {
    let lines = mode.begin.iter().chain([&command]).chain(mode.end).chain([&"RESET"]);
    let mut all = Vec::new();
    for line in lines {
        client.send(&request(&line.split(' ').collect::<Vec<_>>()));
    }
    loop {
        match client.read_patiently() {
            Got::Reply(reply) if reply.text() == "RESET" => {
                all.push("RESET".to_owned());
                break;
            }
            Got::Reply(reply) => all.push(kind(&reply)),
            Got::Closed => {
                all.push("closed".to_owned());
                break;
            }
            Got::Nothing => {
                all.push("nothing more".to_owned());
                break;
            }
        }
    }
    all.join(" ")
}
