//! A9, A10: scripts and functions over the whole cluster.
//!
//! Not here: replies of scripts (`tests/conformance`), hostile ones (`fence`).

use crate::bench::{answers, check_shared, flavour, keys_on_each, shared, with};
use crate::support::client::{Client, request};
use crate::support::cluster::{Cluster, Shape};
use crate::support::keys::key_of_slot;
use crate::support::proxy::Proxy;
use crate::support::{seconds, wait_until};

const CROSSSLOT: &str = "-CROSSSLOT Keys in request don't hash to the same slot";
/// Of `return KEYS[1]`.
const NAME: &str = "4a2267357833227dd98abdedb8cf24b15a986445";
const NOSCRIPT: &str = "-NOSCRIPT No matching script.";

#[test]
fn a9_only_keys_route_and_none_runs_anywhere() {
    let [a, b, _] = keys_on_each(&shared().cluster, "a9");
    let mut client = shared().proxy.client();
    let script = "return {KEYS[1],ARGV[1],ARGV[2]}";
    let reply = client.call(&["EVAL", script, "1", &a, &b, "x"]).text();
    assert_eq!(reply, format!("[\"{a}\", \"{b}\", \"x\"]"), "arguments are no keys");
    assert_eq!(client.call(&["EVAL", "return {ARGV[1]}", "0", &b]).text(), format!("[\"{b}\"]"));
    check_shared(&[
        ("EVAL return(1) -1", "-ERR Number of keys can't be negative"),
        ("EVAL return(1) 5 a", "-ERR Number of keys can't be greater than number of args"),
        ("EVAL return(1) x", "-ERR value is not an integer or out of range"),
        (&format!("EVAL return(1) 2 {a} {b}"), CROSSSLOT),
        (&format!("EVALSHA {NAME} 2 {a} {b}"), CROSSSLOT),
        (&format!("FCALL f 2 {a} {b}"), CROSSSLOT),
    ]);
}

fn all_answer(client: &mut Client, keys: &[String]) {
    for name in ["EVALSHA", "EVALSHA_RO"] {
        for key in keys {
            assert_eq!(client.call(&[name, NAME, "1", key]).text(), format!("\"{key}\""));
        }
    }
}

#[test]
fn a10_loaded_script_runs_on_every_shard_whatever_nodes_forget() {
    let mut cluster = Cluster::three_and_three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut client = proxy.client();
    assert_eq!(client.call(&["SCRIPT", "LOAD", "return KEYS[1]"]).string(), NAME);
    let mut keys = keys_on_each(&cluster, "a10").to_vec();
    all_answer(&mut client, &keys);
    // Behind our back, in the middle of a pipeline of one client's scripts.
    for node in &cluster.nodes {
        node.run("SCRIPT FLUSH");
    }
    let many: Vec<u8> = keys
        .iter()
        .cycle()
        .take(300)
        .flat_map(|key| request(&["EVALSHA", NAME, "1", key]))
        .collect();
    client.send(&many);
    for key in keys.iter().cycle().take(300) {
        assert_eq!(client.read().text(), format!("\"{key}\""));
    }
    // A new node, half of whose slot is on its way.
    let new = cluster.add_node();
    cluster.migrate_slot(0, 0, new);
    cluster.open_migration(1, 0, new);
    keys.extend([0, 1].map(|slot| key_of_slot("a10", slot)));
    all_answer(&mut client, &keys);
    cluster.close_migration(1, 0, new);
    // A node that has restarted without its data, and a fail-over.
    cluster.failover(cluster.replica_of(1));
    cluster.nodes[cluster.shape.primaries + 1].run("SCRIPT FLUSH");
    all_answer(&mut client, &keys);
    assert_eq!(client.run(&format!("SCRIPT EXISTS {NAME}")).text(), "[1]");
    assert_eq!(client.run("SCRIPT FLUSH").text(), "OK");
    for key in &keys {
        assert!(client.call(&["EVALSHA", NAME, "1", key]).text().starts_with(NOSCRIPT));
    }
    let unknown = client.call(&["EVALSHA", &"0".repeat(40), "1", "k"]).text();
    assert!(unknown.starts_with(NOSCRIPT), "{unknown}");
}

#[test]
fn a10_evaluated_script_is_known_by_name_on_every_shard() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let keys = keys_on_each(&cluster, "a10");
    let mut client = proxy.client();
    let eval = client.call(&["EVAL", "return KEYS[1]", "1", &keys[0]]).string();
    assert_eq!(eval, keys[0]);
    all_answer(&mut client, &keys);
    // One that does not compile is known nowhere.
    client.call(&["EVAL", "return 1 +", "0"]);
    let name = "2b1542794fdd1688e17864bfe9b6bd02547420a8";
    assert!(client.call(&["EVALSHA", name, "0"]).text().starts_with(NOSCRIPT));
}

#[test]
fn a10_transaction_calls_a_kept_script_whatever_nodes_forget() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let [key, ..] = keys_on_each(&cluster, "a10-multi");
    let node = &cluster.nodes[0];
    let mut client = proxy.client();
    assert_eq!(client.call(&["SCRIPT", "LOAD", "return KEYS[1]"]).string(), NAME);
    let twice = [
        "MULTI".to_owned(),
        format!("EVALSHA {NAME} 1 {key}"),
        format!("EVALSHA_RO {NAME} 1 {key}"),
        format!("EVALSHA {} 1 {key}", NAME.to_uppercase()),
        "PING".to_owned(),
        "EXEC".to_owned(),
    ];
    let lines: Vec<&str> = twice.iter().map(String::as_str).collect();
    let expected = format!("[\"{key}\", \"{key}\", \"{key}\", PONG]");
    for watch in [false, true] {
        node.run("SCRIPT FLUSH");
        let before = (node.calls("eval"), node.calls("evalsha"), node.calls("evalsha_ro"));
        if watch {
            assert_eq!(client.run(&format!("WATCH {key}")).text(), "OK");
        }
        assert_eq!(answers(&mut client, &lines).last(), Some(&expected), "watch: {watch}");
        let after = (node.calls("eval"), node.calls("evalsha"), node.calls("evalsha_ro"));
        // The body goes once.
        assert_eq!(after, (before.0 + 1, before.1 + 1, before.2 + 1));
    }
    // One that was first seen in this transaction.
    node.run("SCRIPT FLUSH");
    let name = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    let (eval, evalsha) = (["EVAL", "return 1", "1", &key], ["EVALSHA", name, "1", &key]);
    let multi = |commands: &[&[&str]]| {
        let mut client = proxy.client();
        client.run("MULTI");
        for words in commands {
            assert_eq!(client.call(words).text(), "QUEUED");
        }
        client.run("EXEC").text()
    };
    assert_eq!(multi(&[&eval, &evalsha]), "[1, 1]");
    node.run("SCRIPT FLUSH");
    assert_eq!(multi(&[&evalsha]), "[1]");
    // What nobody has told us is the node's to refuse.
    let none = "0".repeat(40);
    let text = multi(&[&["EVALSHA", &none, "1", &key], &["SET", &key, "v"]]);
    assert!(text.starts_with(&format!("[{NOSCRIPT}")) && text.ends_with("OK]"), "{text}");
    assert_eq!(client.run("SCRIPT FLUSH").text(), "OK");
    assert!(multi(&[&evalsha]).starts_with(&format!("[{NOSCRIPT}")));
    // One that is no script is not kept: a server would not know its name either.
    for (body, name) in [
        ("return 1 +", "2b1542794fdd1688e17864bfe9b6bd02547420a8"),
        ("#!lua flags=none-such\nreturn 1", "7874b186f5643727812c07d3843a961ae90102e4"),
    ] {
        let evalsha = ["EVALSHA", name, "1", &key];
        for words in [&["SCRIPT", "LOAD", body][..], &["EVAL", body, "1", &key]] {
            assert!(client.call(words).text().starts_with("-ERR"), "{words:?}");
            let text = multi(&[&evalsha]);
            assert!(text.starts_with(&format!("[{NOSCRIPT}")), "{text} after {words:?}");
            assert!(client.call(&evalsha).text().starts_with(NOSCRIPT));
        }
    }
}

/// Each reactor knows what clients of the others have loaded.
#[test]
fn a10_script_loaded_through_one_reactor_is_known_to_all() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start_with(&cluster, &with(&[("reactors", "2")]));
    let [key, ..] = keys_on_each(&cluster, "a10");
    assert_eq!(proxy.client().call(&["SCRIPT", "LOAD", "return KEYS[1]"]).string(), NAME);
    for _ in 0..16 {
        let mut client = proxy.client();
        wait_until(seconds(5), "its reactor to know", || {
            cluster.nodes[0].run("SCRIPT FLUSH");
            let reply = client.call(&["EVALSHA", NAME, "1", &key]).text();
            assert!(!reply.starts_with('-') || reply.starts_with(NOSCRIPT), "{reply}");
            reply == format!("\"{key}\"")
        });
    }
}

#[test]
fn a10_functions_are_on_every_shard() {
    let cluster = Cluster::three_and_three(flavour());
    let proxy = Proxy::start(&cluster);
    let keys = keys_on_each(&cluster, "a10");
    let mut client = proxy.client();
    let library = "#!lua name=lib\nredis.register_function('put', function(k,a) return \
                   redis.call('SET',k[1],a[1]) end)";
    assert_eq!(client.call(&["FUNCTION", "LOAD", library]).string(), "lib");
    let again = client.call(&["FUNCTION", "LOAD", library]).text();
    assert!(again.starts_with("-ERR Library 'lib' already exists"), "{again}");
    assert_eq!(client.call(&["FUNCTION", "LOAD", "REPLACE", library]).string(), "lib");
    for key in &keys {
        assert_eq!(client.call(&["FCALL", "put", "1", key, "v"]).text(), "OK");
    }
    assert_eq!(client.run("FUNCTION LIST").items().len(), 1);
    let dump = client.run("FUNCTION DUMP");
    assert_eq!(client.run("FUNCTION DELETE lib").text(), "OK");
    assert_eq!(client.run("FUNCTION LIST").items().len(), 0);
    assert_eq!(client.call(&[b"FUNCTION", &b"RESTORE"[..], dump.bytes()]).text(), "OK");
    for key in &keys {
        assert_eq!(client.call(&["FCALL", "put", "1", key, "w"]).text(), "OK");
    }
    assert!(client.run("FUNCTION STATS").text().contains("running_script"));
    let kill = answers(&mut client, &["FUNCTION KILL", "SCRIPT KILL"]);
    assert!(kill.iter().all(|reply| reply.starts_with("-NOTBUSY")), "{kill:?}");
    assert_eq!(client.run("FUNCTION FLUSH").text(), "OK");
    assert!(client.call(&["FCALL", "put", "1", &keys[0], "v"]).is_error());
}

/// KILL ends the one that runs, and says so although the other nodes were not busy.
#[test]
fn a10_kill_reaches_the_busy_node() {
    let args = ["--lua-time-limit", "300"].map(Into::into).into();
    let cluster = Cluster::start(Shape { flavour: flavour(), args, ..Shape::default() });
    let proxy = Proxy::start_with(&cluster, &with(&[("request-timeout-ms", "120000")]));
    let [key, ..] = keys_on_each(&cluster, "a10");
    let mut busy = proxy.client();
    busy.send(&request(&["EVAL", "while true do end", "1", &key]));
    let mut client = proxy.client();
    wait_until(seconds(4), "SCRIPT KILL to find it", || {
        std::thread::sleep(crate::support::millis(100));
        client.run("SCRIPT KILL").text() == "OK"
    });
    assert!(busy.read().text().contains("Script killed by user"));
}

/// A node that runs one client's script refuses the others' scripts, and the fence's own question
/// too. The others are told just that, and nobody is taken for an attacker.
#[test]
fn a10_busy_node_says_busy_to_scripts() {
    let args = ["--lua-time-limit", "50"].map(Into::into).into();
    let cluster = Cluster::start(Shape { flavour: flavour(), args, ..Shape::default() });
    let proxy = Proxy::start_with(&cluster, &with(&[("request-timeout-ms", "120000")]));
    let [key, ..] = keys_on_each(&cluster, "a10");
    let mut busy = proxy.client();
    busy.send(&request(&["EVAL", "while true do end", "1", &key]));
    wait_until(seconds(5), "the node to be busy", || {
        cluster.nodes[0].run("PING").text().starts_with("-BUSY")
    });
    let mut client = proxy.client();
    for _ in 0..3 {
        let lines = [format!("EVALSHA {} 1 {key}", "0".repeat(40)), format!("GET {key}")];
        let mut replies = client.pipeline(&[&lines[0][..], &lines[0], &lines[1]]);
        replies.push(client.run("FUNCTION FLUSH"));
        for reply in replies {
            assert!(reply.text().starts_with("-BUSY "), "{}", reply.text());
        }
    }
    assert_eq!(client.run("SCRIPT KILL").text(), "OK");
    assert!(busy.read().text().contains("Script killed by user"));
    assert_eq!(client.call(&["EVAL", "return 7", "1", &key]).text(), "7");
    assert!(client.run("INFO ringway").string().contains("fence_breaches:0\r\n"));
}

/// EVAL leaves a script at one node. It can be called by name with keys of any, so it exists.
#[test]
fn a10_script_that_one_node_has_and_we_keep_exists() {
    let cluster = Cluster::three(flavour());
    let proxy = Proxy::start(&cluster);
    let mut client = proxy.client();
    let [one, two, three] = ["return 71", "return 72", "return ("]
        .map(|body| sha1_smol::Sha1::from(body).digest().to_string());
    for round in 0..20 {
        assert_eq!(client.call(&["EVAL", "return 71", "0"]).text(), "71");
        assert!(client.call(&["EVAL", "return (", "0"]).is_error());
        let found = client.run(&format!("SCRIPT EXISTS {one} {two} {three}")).text();
        assert_eq!(found, "[1, 0, 0]", "round {round}");
        for key in keys_on_each(&cluster, "a10-exists") {
            assert_eq!(client.call(&["EVALSHA", &one[..], "1", &key]).text(), "71");
        }
        // What the other reactors are told of this does not come back to forget the next round's.
        assert_eq!(client.run("SCRIPT FLUSH").text(), "OK");
    }
}

/// Without ECHO there is no fence, so no script is run; once it is allowed, they are.
#[test]
fn scripts_say_so_where_the_node_user_may_not_echo() {
    let cluster = Cluster::three(flavour());
    let allow = |echo: &str| {
        let line = format!("ACL SETUSER proxy on >pw ~* &* +@all {echo}");
        cluster.nodes.iter().for_each(|node| assert_eq!(node.run(&line).text(), "OK"));
    };
    allow("-echo");
    let pairs = [("node-user", "proxy"), ("node-password", "pw")];
    let proxy = Proxy::start_with(&cluster, &with(&pairs));
    let [key, _, _] = keys_on_each(&cluster, "noecho");
    let eval = request(&["EVAL", "return redis.call('INCR',KEYS[1])", "1", &key]);
    let refused = "-NOPERM the proxy's user at the nodes must be allowed to ECHO (ACL SETUSER ... \
                   +echo); the script was not run";
    let mut client = proxy.client();
    for _ in 0..2 {
        client.send(&eval.repeat(50));
        (0..50).for_each(|_| assert_eq!(client.read().text(), refused));
    }
    let mut all: Vec<Client> = (0..20).map(|_| proxy.client()).collect();
    all.iter_mut().for_each(|client| client.send(&eval));
    all.iter_mut().for_each(|client| assert_eq!(client.read().text(), refused));
    assert_eq!(client.run(&format!("GET {key}")).text(), "nil", "none has run");
    // The log has a thread of its own.
    proxy.wait_log("refused by a node");
    // Not one connection for each script.
    assert!(proxy.log().matches("refused by a node").count() < 10, "{}", proxy.log());
    allow("+echo");
    wait_until(seconds(5), "scripts to run", || {
        client.send(&eval);
        client.read().text() == "1"
    });
    client.send(&eval);
    assert_eq!(client.read().text(), "2");
}
