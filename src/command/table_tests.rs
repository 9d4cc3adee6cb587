//! The table against the facts it was made from, and the names against the policy's classes.

use super::*;
use std::collections::BTreeMap;

/// `research/routing-policy.md` 4.2, by name; `X|*`: all subcommands of X not named elsewhere.
/// What is not here follows from keys and flags.
const NAMED: &[(Class, &str)] = &[
    (Class::Read, "CLUSTER|COUNTKEYSINSLOT CLUSTER|GETKEYSINSLOT"),
    (Class::SplitValues, "MGET JSON.MGET"),
    (Class::SplitCount, "DEL UNLINK EXISTS TOUCH"),
    (Class::SplitAll, "MSET MSETEX"),
    (Class::Script, "EVAL EVALSHA FCALL EVAL_RO EVALSHA_RO FCALL_RO"),
    (
        Class::AllPrimaries,
        "DBSIZE FLUSHALL FLUSHDB FUNCTION|LOAD FUNCTION|DELETE FUNCTION|FLUSH FUNCTION|RESTORE
         FUNCTION|KILL SCRIPT|KILL SCRIPT|EXISTS KEYS MEMORY|PURGE LASTSAVE",
    ),
    (Class::EveryNode, "SCRIPT|LOAD SCRIPT|FLUSH"),
    (Class::Walk, "SCAN CLUSTERSCAN"),
    (
        Class::AnyNode,
        "RANDOMKEY FUNCTION|LIST FUNCTION|DUMP FUNCTION|STATS LOLWUT MODULE|LIST COMMAND|LIST
         SCRIPT|SHOW",
    ),
    (
        Class::Local,
        "PING ECHO TIME QUIT RESET HELLO AUTH SELECT READONLY READWRITE ASKING ROLE INFO COMMAND|*
         ACL|WHOAMI ACL|CAT ACL|GENPASS CLIENT|ID CLIENT|INFO CLIENT|GETNAME CLIENT|SETNAME
         CLIENT|SETINFO CLIENT|LIST CLIENT|KILL CLIENT|REPLY CLIENT|NO-EVICT CLIENT|NO-TOUCH
         CLIENT|UNBLOCK CLIENT|CAPA CLUSTER|KEYSLOT CLUSTER|INFO CLUSTER|MYID CLUSTER|MYSHARDID
         CLUSTER|NODES CLUSTER|SLOTS CLUSTER|SHARDS CLUSTER|SLAVES CLUSTER|REPLICAS CONFIG|GET
         CONFIG|SET CONFIG|RESETSTAT CONFIG|REWRITE SLOWLOG|* COMMANDLOG|* LATENCY|* HOTKEYS|*
         MONITOR ACL|HELP BACKUP|HELP CLIENT|HELP CLUSTER|HELP COMMAND|HELP CONFIG|HELP
         FUNCTION|HELP MEMORY|HELP MODULE|HELP OBJECT|HELP PUBSUB|HELP SCRIPT|HELP XGROUP|HELP
         XINFO|HELP",
    ),
    (Class::Transaction, "MULTI EXEC DISCARD WATCH UNWATCH"),
    (
        Class::Blocking,
        "BLPOP BRPOP BRPOPLPUSH BLMOVE BLMOVEM BLMPOP BZPOPMIN BZPOPMAX BZMPOP XREAD XREADGROUP
         WAIT WAITAOF",
    ),
    (
        Class::PubSub,
        "SUBSCRIBE PSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE PUBLISH SSUBSCRIBE SUNSUBSCRIBE SPUBLISH
         PUBSUB|*",
    ),
    (
        Class::ConnectionState,
        "CLIENT|TRACKING CLIENT|CACHING CLIENT|TRACKINGINFO CLIENT|GETREDIR CLIENT|IMPORT-SOURCE
         HIMPORT|*",
    ),
    (
        Class::Refused,
        "DEBUG SHUTDOWN REPLICAOF SLAVEOF FAILOVER SYNC PSYNC REPLCONF RESTORE-ASKING MIGRATE
         SWAPDB SAVE BGSAVE BGREWRITEAOF BACKUP|* MODULE|LOAD MODULE|LOADEX MODULE|UNLOAD PFDEBUG
         PFSELFTEST TRIMSLOTS XIDMPRECORD SCRIPT|DEBUG MEMORY|DOCTOR MEMORY|STATS
         MEMORY|MALLOC-STATS CLIENT|PAUSE CLIENT|UNPAUSE ACL|SETUSER ACL|DELUSER ACL|GETUSER
         ACL|LIST ACL|USERS ACL|LOAD ACL|SAVE ACL|LOG ACL|DRYRUN CLUSTER|ADDSLOTS
         CLUSTER|ADDSLOTSRANGE CLUSTER|DELSLOTS CLUSTER|DELSLOTSRANGE CLUSTER|SETSLOT
         CLUSTER|FLUSHSLOT CLUSTER|FLUSHSLOTS CLUSTER|MEET CLUSTER|FORGET CLUSTER|REPLICATE
         CLUSTER|FAILOVER CLUSTER|RESET CLUSTER|BUMPEPOCH CLUSTER|SET-CONFIG-EPOCH
         CLUSTER|SAVECONFIG CLUSTER|MIGRATESLOTS CLUSTER|CANCELSLOTMIGRATIONS CLUSTER|MIGRATION
         CLUSTER|SYNCSLOTS CLUSTER|LINKS CLUSTER|SLOT-STATS CLUSTER|COUNT-FAILURE-REPORTS
         CLUSTER|GETSLOTMIGRATIONS
         SEARCH.CLUSTERINFO SEARCH.CLUSTERREFRESH SEARCH.CLUSTERSET TIMESERIES.CLUSTERSET
         TIMESERIES.REFRESHCLUSTER",
    ),
];

fn row(name: &str) -> &'static Command {
    COMMANDS.iter().find(|command| command.name == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn each_row_has_the_class_that_the_policy_gives() {
    let mut named = BTreeMap::new();
    for (class, names) in NAMED {
        for name in names.split_whitespace() {
            assert_eq!(named.insert(name, *class), None, "{name} twice");
            assert!(name.ends_with("|*") || row(name).class == *class, "{name}");
        }
    }
    for command in &COMMANDS {
        let container = command.name.split_once('|').map(|(container, _)| container);
        let any = container.map(|container| format!("{container}|*")).unwrap_or_default();
        let by_keys = match (command.keys, command.flags.has(Flags::READONLY)) {
            ([], _) if command.is_container() => Class::Local,
            ([], _) => Class::Module,
            (_, true) => Class::Read,
            (_, false) => Class::Write,
        };
        let expected = named.get(command.name).or_else(|| named.get(any.as_str()));
        assert_eq!(command.class, *expected.unwrap_or(&by_keys), "{}", command.name);
        let module = command.flags.has(Flags::MODULE);
        assert!(command.class != Class::Module || module, "{} is no module's", command.name);
    }
}

#[test]
fn classes_have_their_numbers() {
    let count = |class| COMMANDS.iter().filter(|command| command.class == class).count();
    let expected = [
        (Class::Read, 156),
        (Class::Write, 165),
        (Class::SplitValues, 2),
        (Class::SplitCount, 4),
        (Class::SplitAll, 2),
        (Class::Script, 6),
        (Class::AllPrimaries, 13),
        (Class::EveryNode, 2),
        (Class::Walk, 2),
        (Class::AnyNode, 8),
        (Class::Local, 102),
        (Class::Transaction, 5),
        (Class::Blocking, 13),
        (Class::PubSub, 13),
        (Class::ConnectionState, 9),
        (Class::Refused, 70),
        (Class::Module, 42),
    ];
    for (class, number) in expected {
        assert_eq!(count(class), number, "{class:?}");
    }
    assert_eq!(expected.iter().map(|(_, number)| number).sum::<usize>(), COMMANDS.len());
}

#[test]
fn rows_are_complete_and_in_order() {
    assert_eq!(COMMANDS.len(), 614);
    assert_eq!(COMMANDS.iter().filter(|command| command.is_container()).count(), 21);
    assert_eq!(COMMANDS.iter().filter(|command| command.name.contains('|')).count(), 165);
    // The bar sorts before all else, so that subcommands follow their container.
    let order = |command: &Command| command.name.replace('|', "\0");
    assert!(COMMANDS.is_sorted_by_key(order));
    assert!(COMMANDS.windows(2).all(|pair| pair[0].name != pair[1].name));
    for (id, command) in COMMANDS.iter().enumerate() {
        assert_eq!(usize::from(command.id), id);
        assert_eq!(command.name, command.name.to_ascii_uppercase());
        assert_ne!(command.arity, 0, "{}", command.name);
        let both = command.flags.has(Flags::READONLY) && command.flags.has(Flags::WRITE);
        assert!(!both, "{}", command.name);
        for sub in command.subcommands() {
            assert_eq!(sub.name.split_once('|').map(|(own, _)| own), Some(command.name));
        }
    }
}

#[test]
fn every_row_is_found_in_any_case() {
    let mixed = |name: &str| -> String {
        let flip = |(at, letter): (usize, char)| {
            if at % 2 == 0 { letter.to_ascii_lowercase() } else { letter }
        };
        name.chars().enumerate().map(flip).collect()
    };
    for command in &COMMANDS {
        for name in [command.name.to_owned(), command.lowercase_name(), mixed(command.name)] {
            let found = match name.split_once('|') {
                Some((container, sub)) => {
                    find(container.as_bytes()).and_then(|row| find_sub(row, sub.as_bytes()))
                }
                None => find(name.as_bytes()),
            };
            assert_eq!(found.map(|found| found.id), Some(command.id), "{name}");
        }
    }
}

#[test]
fn near_misses_are_not_found() {
    for name in [
        "",
        "G",
        "GE",
        "GETT",
        "GET ",
        " GET",
        "GET\0",
        "\0GET",
        "G\0T",
        "GE\u{34}",
        "SE",
        "XGET",
        "CONFIG|GET",
        "GET|",
        "|",
        "JSON\u{e}GET",
        "JSON.GE",
        "JSON.GETT",
        "ZREVRANGEBYSCOR",
        "ZREVRANGEBYSCOREE",
        "ZREVRANG_BYSCORE",
        "GEORADIUSBYMEMBER_R0",
        "GEORADIUSbyxEMBER_RO",
        "SETNAME",
        "ENCODING",
        "ÇET",
        "GEORADIUSBYMEMBER_ROGEORADIUSBYMEMBER_RO",
        "MGET\u{0}\u{0}\u{0}\u{0}",
    ] {
        assert!(find(name.as_bytes()).is_none(), "{name:?}");
    }
    // One letter changed in each place: another command, or none; never the same.
    for command in &COMMANDS {
        for at in 0..command.name.len() {
            for other in [b'@', b'[', b'`', b'{', 0x80 | b'a', 0, b'|', b'Q'] {
                let mut name = command.name.as_bytes().to_vec();
                if name[at] != other {
                    name[at] = other;
                    assert!(find(&name).is_none_or(|found| found.name.as_bytes() == name));
                }
            }
        }
    }
    assert!(find_sub(row("CLIENT"), b"ENCODING").is_none());
    assert!(find_sub(row("CLIENT"), b"").is_none());
    assert!(find_sub(row("GET"), b"SETNAME").is_none());
    assert!(find_sub(row("FT.CONFIG"), b"get").is_some_and(|sub| sub.name == "FT.CONFIG|GET"));
}

#[test]
fn plain_keys_are_known_beforehand() {
    let plain = |name| row(name).plain_first_key();
    for name in ["GET", "SET", "HSET", "LPUSH", "INCR", "EXPIRE", "ZADD", "JSON.GET", "SPUBLISH"] {
        assert_eq!(plain(name), Some(1), "{name}");
    }
    assert_eq!(plain("OBJECT|ENCODING"), Some(2));
    for name in ["MGET", "DEL", "SORT", "SORT_RO", "RENAME", "LCS", "EVAL", "PING", "GEORADIUS"] {
        assert_eq!(plain(name), None, "{name}");
    }
    let fast = |name| row(name).route_fast();
    assert_eq!((fast("GET"), fast("SET"), fast("OBJECT|FREQ")), (Some(1), Some(1), Some(2)));
    for name in
        ["JSON.GET", "MIGRATE", "PFDEBUG", "SPUBLISH", "PFCOUNT", "HIMPORT|SET", "CLUSTERSCAN"]
    {
        assert_eq!(fast(name), None, "{name}");
    }
    for command in COMMANDS.iter().filter(|command| command.route_fast().is_some()) {
        assert!(matches!(command.class, Class::Read | Class::Write) && !may_compose_reply(command));
        let key = command.plain_first_key().map_or(0, usize::from);
        assert!(usize::from(command.arity.unsigned_abs()) > key, "{}", command.name);
    }
    assert_eq!(row("CLUSTER|COUNTKEYSINSLOT").slot_argument(), Some(2));
    assert_eq!(row("CLUSTER|GETKEYSINSLOT").slot_argument(), Some(2));
    assert_eq!(COMMANDS.iter().filter_map(Command::slot_argument).count(), 2);
}

#[track_caller]
fn check_traits(name: &str, expected: [bool; 4]) {
    let command = row(name);
    let traits = [
        writes(command),
        may_compose_reply(command),
        retry_safe(command),
        may_use_replica(command),
    ];
    assert_eq!(traits, expected, "{name}: writes, composes, retry, replica");
}

#[test]
fn traits_follow_from_flags_and_class() {
    check_traits("GET", [false, false, true, true]);
    check_traits("SET", [true, false, false, false]);
    check_traits("MGET", [false, false, true, true]);
    check_traits("EXISTS", [false, false, true, true]);
    check_traits("DEL", [true, false, false, false]);
    check_traits("PFCOUNT", [false, false, true, false]);
    check_traits("XREAD", [false, false, true, true]);
    check_traits("XREADGROUP", [true, false, false, false]);
    check_traits("EVAL", [true, true, false, false]);
    check_traits("EVAL_RO", [false, true, false, true]);
    check_traits("FCALL", [true, true, false, false]);
    check_traits("SCRIPT|LOAD", [false, true, false, false]);
    check_traits("FUNCTION|LOAD", [true, true, false, false]);
    check_traits("FUNCTION|LIST", [false, true, false, false]);
    check_traits("JSON.GET", [false, true, false, true]);
    check_traits("JSON.SET", [true, true, false, false]);
    check_traits("BF.LOAD", [true, true, false, false]);
    check_traits("FT.SEARCH", [false, true, false, false]);
    check_traits("FLUSHALL", [true, false, false, false]);
    check_traits("DBSIZE", [false, false, true, false]);
    check_traits("CLUSTER|COUNTKEYSINSLOT", [false, false, true, false]);
    check_traits("PUBLISH", [false, false, false, false]);
    check_traits("PING", [false, false, false, false]);
}

#[test]
fn first_last_and_step_are_those_of_a_command_reply() {
    for (name, expected) in [
        ("GET", (1, 1, 1)),
        ("MSET", (1, -1, 2)),
        ("BLPOP", (1, -2, 1)),
        ("RENAME", (1, 2, 1)),
        ("BITOP", (2, -1, 1)),
        ("PFMERGE", (1, -1, 1)),
        ("ZUNIONSTORE", (1, 1, 1)),
        ("SORT", (1, 1, 1)),
        ("GEORADIUS", (1, 1, 1)),
        ("EVAL", (0, 0, 0)),
        ("XREAD", (0, 0, 0)),
        ("MIGRATE", (3, 3, 1)),
        ("OBJECT|FREQ", (2, 2, 1)),
        ("PING", (0, 0, 0)),
    ] {
        assert_eq!(row(name).legacy_keys(), expected, "{name}");
    }
}

#[test]
fn arity_counts_all_words() {
    assert!(arity_ok(row("GET"), 2) && !arity_ok(row("GET"), 1) && !arity_ok(row("GET"), 3));
    assert!(arity_ok(row("SET"), 3) && arity_ok(row("SET"), 7) && !arity_ok(row("SET"), 2));
    assert!(arity_ok(row("OBJECT|FREQ"), 3) && !arity_ok(row("OBJECT|FREQ"), 2));
}

#[test]
fn flags_have_their_names() {
    assert_eq!(row("GET").flags.names().collect::<Vec<_>>(), ["readonly", "fast"]);
    // The internal mark of what may compose its reply has no name.
    assert_eq!(row("JSON.GET").flags.names().collect::<Vec<_>>(), ["readonly", "module"]);
    assert_eq!(Flags::named(b"NoScript"), Some(Flags::NOSCRIPT));
    assert_eq!(Flags::named(b"skip_monitor"), None);
    let all = Flags::NAMES.iter().fold(0, |all, (flag, _)| all + flag.0);
    assert_eq!(all, (1 << Flags::NAMES.len()) - 1);
}

/// The file that the table was made from, where it is at hand.
fn facts() -> Option<String> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data/commands.tsv");
    let shared = "/work/shared/data/commands.tsv";
    [beside, shared].iter().find_map(|path| std::fs::read_to_string(path).ok())
}

#[test]
fn the_table_agrees_with_commands_tsv() {
    let Some(text) = facts() else {
        // `rows_are_complete_and_in_order` and the class counts hold without it.
        return;
    };
    let mut lines = text.lines();
    let header: Vec<_> = lines.next().unwrap_or_default().split('\t').collect();
    let rows: Vec<BTreeMap<_, _>> =
        lines.map(|line| header.iter().copied().zip(line.split('\t')).collect()).collect();
    assert_eq!(rows.len(), COMMANDS.len());
    for (fact, command) in rows.iter().zip(&COMMANDS) {
        let name = command.name;
        assert_eq!(fact["name"], name);
        assert_eq!(fact["kind"] == "container", command.is_container(), "{name}");
        assert_eq!(fact["module"] != "-", command.flags.has(Flags::MODULE), "{name}");
        assert_eq!(looser_arity(fact["arity"], fact["differs"]), command.arity, "{name}");
        let flags = fact["flags"].split(',').filter(|flag| *flag != "-");
        let flags = flags.map(|flag| Flags::named(flag.as_bytes()).expect("a known flag"));
        let flags = flags.fold(Flags::default(), Flags::with);
        assert_eq!(command.flags.0 & !find::COMPOSES.0, flags.0, "{name}");
        assert_eq!(fact["group"].replace('_', ""), format!("{:?}", command.group()).to_lowercase());
        let since = [fact["since_redis"], fact["since_valkey"]];
        let since = since.into_iter().find(|since| !["-", "?"].contains(since));
        assert_eq!(command.since(), since.unwrap_or_default(), "{name}");
        assert_eq!(command.policy, stated_policy(name, fact["response_policy"]), "{name}");
        assert_eq!(command.keys, stated_keys(name, fact["keys"]), "{name}");
    }
}

fn looser_arity(stated: &str, differs: &str) -> i16 {
    let redis = differs.split(' ').find_map(|part| part.strip_prefix("arity:redis="));
    let redis = redis.and_then(|arity| arity.parse::<i16>().ok());
    match (stated.parse::<i16>().ok(), redis) {
        (Some(valkey), Some(redis)) if valkey != redis => -valkey.abs().min(redis.abs()),
        (Some(arity), _) | (None, Some(arity)) => arity,
        (None, None) => panic!("no arity"),
    }
}

/// The projects' advice, but for what 4.2 merges otherwise.
fn stated_policy(name: &str, stated: &str) -> ResponsePolicy {
    match (name, stated) {
        ("LASTSAVE", "-") => ResponsePolicy::Min,
        ("PUBSUB|NUMPAT", "-") => ResponsePolicy::Sum,
        ("PUBSUB|NUMSUB" | "PUBSUB|SHARDNUMSUB", "-") => ResponsePolicy::Special,
        ("HIMPORT|PREPARE", "-") => ResponsePolicy::AllSucceeded,
        (_, "-") => ResponsePolicy::Default,
        (_, "all_succeeded") => ResponsePolicy::AllSucceeded,
        (_, "one_succeeded") => ResponsePolicy::OneSucceeded,
        (_, "agg_sum") => ResponsePolicy::Sum,
        (_, "agg_min") => ResponsePolicy::Min,
        (_, "agg_logical_and") => ResponsePolicy::LogicalAnd,
        (_, "special") => ResponsePolicy::Special,
        _ => panic!("{name}: {stated}"),
    }
}

/// The notation of `shared/data/commands.README.md`; walkers stand for the rules that mislead.
fn stated_keys(name: &str, stated: &str) -> Vec<KeyRule> {
    let range = |first, last, step| KeyRule::Range { first, last, step, limit: 0 };
    match (name, stated) {
        ("JSON.MGET", "1,1,1") => return vec![range(1, -2, 1)],
        ("MIGRATE", "3,3,1;keyword:KEYS@-2,-1,1") => return vec![KeyRule::Migrate],
        ("XREAD", "keyword:STREAMS@1,-1,1/2") => return vec![KeyRule::Streams],
        ("XREADGROUP", "keyword:STREAMS@4,-1,1/2") => return vec![KeyRule::Streams],
        ("SORT", "1,1,1;unknown;unknown") => {
            return vec![range(1, 1, 1), KeyRule::SortStore, KeyRule::Unknown];
        }
        ("GEORADIUS", "1,1,1;keyword:STORE@6,+0,1;keyword:STOREDIST@6,+0,1") => {
            return vec![range(1, 1, 1), KeyRule::LastStore { from: 6 }];
        }
        ("GEORADIUSBYMEMBER", "1,1,1;keyword:STORE@5,+0,1;keyword:STOREDIST@5,+0,1") => {
            return vec![range(1, 1, 1), KeyRule::LastStore { from: 5 }];
        }
        _ => {}
    }
    let numbers = |text: &str| -> Vec<i16> {
        text.split([',', '@']).map(|number| number.parse().expect("a number")).collect()
    };
    let rule = |text: &str| match text.split_once('@') {
        None if text == "unknown" => KeyRule::Unknown,
        None => match numbers(text)[..] {
            [first, last, step] => range(first, last, step),
            _ => panic!("{text}"),
        },
        Some(("numkeys", places)) => match numbers(places)[..] {
            [at, first, step] => {
                KeyRule::NumKeys { at: at as u8, first: first as u8, step: step as u8 }
            }
            _ => panic!("{text}"),
        },
        Some((word, places)) => match numbers(places)[..] {
            [from, last, step] => {
                let word = Word::new(word.strip_prefix("keyword:").expect("a keyword"));
                KeyRule::Keyword { word, from, last, step, limit: 0 }
            }
            _ => panic!("{text}"),
        },
    };
    stated.split(';').filter(|text| *text != "none").map(rule).collect()
}
