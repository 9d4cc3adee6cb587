//! A2 to A5, A17: HELLO, CLIENT, SELECT, and what tools ask at start; and what a later issue
//! brings.
//!
//! Not here: A1 (`login`).

use crate::bench::{answers, check_shared, shared};
use crate::support::client::{Client, Got, check, request};
use crate::support::millis;
use crate::support::proxy::Proxy;
use crate::support::reply::Reply;

#[test]
fn a2_hello_switches_the_protocol_between_two_replies() {
    let mut client = shared().proxy.client();
    let hello = client.run("HELLO");
    assert_eq!(hello.field("proto"), Some(Reply::Integer(2)));
    assert!(matches!(hello, Reply::Array(_)), "a flat list in RESP2");
    assert!(matches!(client.run("HELLO 2"), Reply::Array(_)));
    let hello = client.run("HELLO 3");
    assert!(matches!(hello, Reply::Map(_)), "{}", hello.text());
    for (field, value) in [("server", "redis"), ("mode", "standalone"), ("role", "master")] {
        let found = hello.field(field).map(|value| value.string());
        assert_eq!(found.as_deref(), Some(value), "{field}");
    }
    assert_eq!(hello.field("proto"), Some(Reply::Integer(3)));
    assert_eq!(hello.field("modules"), Some(Reply::Array(vec![])));
    check(
        &mut client,
        &[
            ("HELLO 4", "-NOPROTO unsupported protocol version"),
            ("HELLO abc", "-ERR Protocol version is not an integer or out of range"),
            ("DEL a2-hash a2-zset a2-stream a2-set", "0"),
            ("HSET a2-hash f v", "1"),
            ("HGETALL a2-hash", "{\"f\": \"v\"}"),
            ("ZADD a2-zset 1.5 m", "1"),
            ("ZSCORE a2-zset m", ",1.5"),
            ("GET a2-absent", "null"),
            ("MGET a2-absent a2-other", "[null, null]"),
            ("SADD a2-set m", "1"),
            ("SMEMBERS a2-set", "~[\"m\"]"),
            ("XADD a2-stream 1-1 f v", "\"1-1\""),
            ("XREAD STREAMS a2-stream 0", "{\"a2-stream\": [[\"1-1\", [\"f\", \"v\"]]]}"),
        ],
    );
    let config = client.run("CONFIG GET save");
    assert!(matches!(config, Reply::Map(_)), "CONFIG GET answered {}", config.text());
    client.run("DEL a2-hash a2-zset a2-stream a2-set");
}

#[test]
fn a2_hello_inside_one_write_changes_only_what_follows() {
    let mut client = shared().proxy.client();
    let lines =
        ["GET a2-no", "HELLO 3", "GET a2-no", "MGET a2-no", "HELLO 2", "GET a2-no", "RESET"];
    let replies = client.pipeline(&lines);
    let texts: Vec<String> = replies.iter().map(Reply::text).collect();
    assert_eq!(texts[0], "nil");
    assert_eq!(texts[2], "null");
    assert_eq!(texts[3], "[null]");
    assert_eq!(texts[5], "nil");
    assert_eq!(texts[6], "RESET");
}

#[test]
fn a3_client_list_has_the_eldest_first_and_counts_the_request_itself() {
    let proxy = Proxy::start(&shared().cluster);
    let mut clients: Vec<Client> = (0..4).map(|_| proxy.client()).collect();
    for client in &mut clients {
        client.run("PING");
    }
    drop(clients.remove(1));
    let mut client = proxy.client();
    let text = client.run("CLIENT LIST").string();
    let ids: Vec<u64> = text
        .lines()
        .filter_map(|line| line.strip_prefix("id=")?.split(' ').next()?.parse().ok())
        .collect();
    assert!(ids.len() >= 4 && ids.is_sorted(), "{text}");
    let own = text.lines().find(|line| line.contains(" cmd=client|list "));
    assert!(own.is_some_and(|own| own.contains(" qbuf=26 ") && own.contains(" oll=0 ")), "{text}");
}

#[test]
fn a3_client_commands_speak_of_the_own_connection() {
    let proxy = &shared().proxy;
    let (mut one, mut two) = (proxy.client(), proxy.client());
    check(
        &mut one,
        &[
            ("CLIENT GETNAME", "nil"),
            ("CLIENT SETNAME first", "OK"),
            ("CLIENT SETINFO LIB-NAME test", "OK"),
            ("CLIENT SETINFO LIB-VER 1", "OK"),
            ("CLIENT NO-EVICT on", "OK"),
            ("CLIENT NO-TOUCH on", "OK"),
            ("CLIENT GETNAME", "\"first\""),
        ],
    );
    check(&mut two, &[("CLIENT GETNAME", "nil"), ("CLIENT SETNAME second", "OK")]);
    let ids = [one.run("CLIENT ID").integer(), two.run("CLIENT ID").integer()];
    assert_ne!(ids[0], ids[1], "ids differ");
    let info = one.run("CLIENT INFO").string();
    for part in [format!("id={} ", ids[0]), "name=first ".into(), "lib-name=test".into()] {
        assert!(info.contains(&part), "CLIENT INFO lacks {part:?}: {info}");
    }
    let list = one.run("CLIENT LIST").string();
    assert!(list.contains("name=first ") && list.contains("name=second "), "CLIENT LIST: {list}");
    for line in [
        "CLIENT TRACKING on",
        "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip",
        "CLIENT NONSENSE",
    ] {
        let texts = answers(&mut one, &[line, "PING"]);
        assert!(texts[0] == "OK" || texts[0].starts_with("-ERR"), "{line}: {}", texts[0]);
        assert_eq!(texts[1], "PONG", "{line}");
    }
    for node in &shared().cluster.nodes {
        assert_eq!(node.calls("client|setname"), 0, "sent to a shared connection");
    }
}

#[test]
fn a4_client_reply_silences_what_it_should() {
    let mut client = shared().proxy.client();
    client.send(
        b"CLIENT REPLY SKIP\r\nPING\r\nECHO a\r\nCLIENT REPLY OFF\r\nMGET a4-x a4-y a4-z\r\nPING\r\n\
          CLIENT REPLY ON\r\nECHO b\r\n",
    );
    let texts = [0; 3].map(|_| client.read().text());
    assert_eq!(texts, ["\"a\"", "OK", "\"b\""]);
    assert_eq!(client.read_within(millis(100)), Got::Nothing);
}

#[test]
fn a5_select_keeps_to_database_0_and_the_connection_stays() {
    let mut client = shared().proxy.client();
    let texts = answers(&mut client, &["SELECT 0", "SELECT 1", "SELECT -1", "SELECT abc", "PING"]);
    assert_eq!(texts[0], "OK");
    for text in &texts[1..4] {
        assert!(text.starts_with("-ERR"), "{texts:?}");
    }
    assert_eq!(texts[4], "PONG");
    if crate::bench::flavour() == crate::support::cluster::Flavour::Redis {
        assert_eq!(texts[1], "-ERR SELECT is not allowed in cluster mode");
    }
}

/// INFO as its lines say it.
fn info_field(text: &str, name: &str) -> Option<String> {
    let prefix = format!("{name}:");
    text.split("\r\n").find_map(|line| line.strip_prefix(&prefix)).map(str::to_owned)
}

#[test]
fn a17_tools_find_what_they_ask_at_start() {
    let mut client = shared().proxy.client();
    let info = client.run("INFO").string();
    for (field, value) in [("redis_mode", "standalone"), ("loading", "0"), ("role", "master")] {
        assert_eq!(info_field(&info, field).as_deref(), Some(value), "{field} in INFO:\n{info}");
    }
    for field in
        ["redis_version", "connected_clients", "used_memory", "uptime_in_seconds", "tcp_port"]
    {
        assert!(info_field(&info, field).is_some(), "{field} in INFO:\n{info}");
    }
    assert!(client.run("INFO server").string().contains("redis_version:"));
    assert!(client.run("info SERVER clients").string().contains("connected_clients:"));
    let count = client.run("COMMAND COUNT").integer();
    assert!(count > 200, "COMMAND COUNT says {count}");
    let all = client.run("COMMAND").items();
    assert!(all.len() > 200, "COMMAND lists {}", all.len());
    let get = client.run("COMMAND INFO get absent-command").items();
    assert_eq!(get[0].items()[0].string(), "get");
    assert_eq!(get[0].items()[1], Reply::Integer(2));
    assert!(get[1].is_nil());
    let docs = client.run("COMMAND DOCS get");
    assert!(docs.field("get").is_some(), "COMMAND DOCS get answered {}", docs.text());
    for line in [
        "COMMAND DOCS",
        "CONFIG GET save",
        "CONFIG GET appendonly",
        "CONFIG GET *",
        "CONFIG GET maxmemory",
    ] {
        let reply = client.run(line);
        assert!(!reply.is_error(), "{line}: {}", reply.text());
    }
    assert_eq!(client.run("CONFIG GET save").items()[0].string(), "save");
    let keys = client.run("COMMAND GETKEYS MSET a 1 b 2").text();
    assert_eq!(keys, "[\"a\", \"b\"]");
    let role = client.run("ROLE").items();
    assert_eq!(role[0].string(), "master");
    let time = client.run("TIME").items();
    assert!(time[0].string().parse::<u64>().is_ok_and(|s| s > 1_700_000_000), "{time:?}");
    assert!(!client.run("LOLWUT").is_error());
}

#[test]
fn a18_cluster_questions_show_one_node_with_all_slots() {
    let proxy = &shared().proxy;
    let mut client = proxy.client();
    let slots = client.run("CLUSTER SLOTS").items();
    assert_eq!(slots.len(), 1);
    let range = slots[0].items();
    assert_eq!((range[0].integer(), range[1].integer()), (0, 16_383));
    assert_eq!(range[2].items()[1].integer(), i64::from(proxy.port));
    let id = client.run("CLUSTER MYID").string();
    assert_eq!(id.len(), 40, "{id}");
    assert!(client.run("CLUSTER NODES").string().contains(&id));
    assert!(client.run("CLUSTER INFO").string().contains("cluster_state:ok"));
    let shards = client.run("CLUSTER SHARDS").items();
    assert_eq!(shards.len(), 1);
    check_shared(&[("READONLY", "OK"), ("READWRITE", "OK"), ("ASKING", "OK")]);
}

/// One clear error naming the command, at once, and the connection stays.
#[test]
fn refused_and_later_commands_answer_one_error() {
    let mut client = shared().proxy.client();
    for line in [
        "DEBUG SLEEP 0",
        "SHUTDOWN NOSAVE",
        "REPLICAOF NO ONE",
        "SYNC",
        "MIGRATE 127.0.0.1 1 k 0 10",
        "MOVE k 1",
        "SAVE",
        "BGSAVE",
        "CLUSTER FORGET x",
        "CLUSTER RESET",
        "CLIENT PAUSE 1",
        "ACL SETUSER x",
        "MODULE LOAD x",
    ] {
        client.send(&request(&line.split(' ').collect::<Vec<&str>>()));
        let reply = client.read();
        assert!(reply.is_error(), "{line} answered {}", reply.text());
        assert_eq!(client.run("PING").text(), "PONG", "after {line}");
        let name = line.split(' ').next().expect("a word");
        assert!(reply.text().to_uppercase().contains(name), "{line} answered {}", reply.text());
    }
    assert_eq!(client.run("PING").text(), "PONG");
    let nodes = &shared().cluster.nodes;
    assert!(nodes.iter().all(|node| node.run("PING").text() == "PONG"), "all nodes live");
}

#[test]
fn a16_whole_data_set_commands_reach_every_primary() {
    // Own nodes: FLUSHALL would empty those of the other tests.
    let cluster = crate::support::cluster::Cluster::three(crate::bench::flavour());
    let proxy = crate::support::proxy::Proxy::start(&cluster);
    let mut client: Client = proxy.client();
    let keys: Vec<String> = (0..60).map(|i| format!("whole-{i}")).collect();
    for key in &keys {
        assert_eq!(client.run(&format!("SET {key} v")).text(), "OK");
    }
    assert_eq!(client.run("DBSIZE").integer(), 60);
    let keyspace = client.run("INFO keyspace").string();
    assert!(keyspace.starts_with("# Keyspace\r\ndb0:keys=60,expires=0,"), "{keyspace}");
    let mut found: Vec<String> =
        client.run("KEYS whole-*").items().iter().map(Reply::string).collect();
    found.sort();
    let mut wanted = keys.clone();
    wanted.sort();
    assert_eq!(found, wanted);
    assert!(keys.contains(&client.run("RANDOMKEY").string()));
    let sha = client.run("SCRIPT LOAD return(1)").string();
    assert_eq!(client.run(&format!("SCRIPT EXISTS {sha} {}", "0".repeat(40))).text(), "[1, 0]");
    for node in &cluster.nodes {
        assert_eq!(node.run(&format!("SCRIPT EXISTS {sha}")).text(), "[1]");
    }
    for key in &keys {
        assert_eq!(client.run(&format!("EVALSHA {sha} 1 {key}")).text(), "1");
    }
    assert_eq!(client.run("SCRIPT FLUSH").text(), "OK");
    assert_eq!(client.run("FLUSHALL").text(), "OK");
    assert_eq!(client.run("DBSIZE").integer(), 0);
    assert_eq!(client.run("RANDOMKEY").text(), "nil");
    assert!(cluster.nodes.iter().all(|node| node.run("DBSIZE").integer() == 0));
    for key in &keys {
        client.run(&format!("SET {key} v"));
    }
    assert_eq!(client.run("WAIT 1 100").text(), "0", "there are no replicas");
    let refused = client.run("DEBUG SLEEP 0").text();
    assert_eq!(refused, "-ERR DEBUG is not allowed through this proxy");
    assert_eq!(client.run("FLUSHDB").text(), "OK");
    assert!(cluster.nodes.iter().all(|node| node.run("DBSIZE").integer() == 0));
    let subscriber = &mut cluster.nodes[1].client();
    subscriber.run("SUBSCRIBE channel");
    client.run("PUBLISH channel text");
    assert_eq!(subscriber.read().items()[2].string(), "text", "PUBLISH reaches all nodes");
}
