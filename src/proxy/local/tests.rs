//! Every command answered here, request by request, in both protocols. What a server answers too,
//! redis-server 7.0.15 answered like that when asked, or valkey-server 9 for what 7.0 lacks.

use super::client::{ClientKind, Side};
use super::*;
use crate::cluster::Topology;
use crate::command::{COMMANDS, Class, lookup};
use crate::proxy::session::ReplyMode;
use crate::resp::Span;
use crate::resp::value::{Value, parse_value};

const RUN_ID: [u8; 40] = *b"0123456789abcdef0123456789abcdef01234567";

// --- replies, by request ---------------------------------------------------------------------

#[test]
fn small_commands_answer_as_the_server_does() {
    same("PING", "+PONG\r\n");
    same("ping", "+PONG\r\n");
    same("PING a", "$1\r\na\r\n");
    same("PING a b", "-ERR wrong number of arguments for 'ping' command\r\n");
    same("ECHO a", "$1\r\na\r\n");
    same("TIME", "*2\r\n$10\r\n1796029901\r\n$6\r\n326913\r\n");
    same("ROLE", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
    same("READONLY", "+OK\r\n");
    same("READWRITE", "+OK\r\n");
    same("ASKING", "+OK\r\n");
    same("QUIT", "+OK\r\n");
    same("RESET", "+RESET\r\n");
    same("MONITOR", "-ERR Command not allowed inside a transaction\r\n");
}

#[test]
fn select_takes_database_0_only() {
    same("SELECT 0", "+OK\r\n");
    same("SELECT 1", "-ERR SELECT is not allowed in cluster mode\r\n");
    same("SELECT 15", "-ERR SELECT is not allowed in cluster mode\r\n");
    same("SELECT 16", "-ERR DB index is out of range\r\n");
    same("SELECT -1", "-ERR DB index is out of range\r\n");
    same("SELECT abc", "-ERR value is not an integer or out of range\r\n");
    same("SELECT 01", "-ERR value is not an integer or out of range\r\n");
    same(
        "SELECT 99999999999",
        "-ERR value is out of range, value must between -2147483648 and 2147483647\r\n",
    );
}

#[test]
fn select_is_ignored_when_so_configured() {
    let mut bench = Bench::new(Version::Resp2);
    bench.identity.ignore_select = true;
    assert_eq!(bench.ask("SELECT 15"), "+OK\r\n");
    assert_eq!(bench.ask("SELECT 200"), "+OK\r\n");
    assert_eq!(bench.ask("SELECT -1"), "-ERR DB index is out of range\r\n");
    assert_eq!(bench.ask("SELECT a"), "-ERR value is not an integer or out of range\r\n");
}

const HELLO_2: &str = "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.2.5\r\n\
    $5\r\nproto\r\n:2\r\n$2\r\nid\r\n:7\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n\
    $6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";
const HELLO_3: &str = "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.2.5\r\n\
    $5\r\nproto\r\n:3\r\n$2\r\nid\r\n:7\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n\
    $6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";

#[test]
fn hello_answers_in_the_version_asked_for() {
    both("HELLO", HELLO_2, HELLO_3);
    same("HELLO 2", HELLO_2);
    same("HELLO 3", HELLO_3);
    same("hello 3", HELLO_3);
    same("HELLO 3 AUTH default x SETNAME n", HELLO_3);
    same("HELLO 4", "-NOPROTO unsupported protocol version\r\n");
    same("HELLO 1", "-NOPROTO unsupported protocol version\r\n");
    same("HELLO abc", "-ERR Protocol version is not an integer or out of range\r\n");
    same("HELLO 3 AUTH", "-ERR Syntax error in HELLO option 'AUTH'\r\n");
    same("HELLO 3 AUTH default", "-ERR Syntax error in HELLO option 'AUTH'\r\n");
    same("HELLO 3 FOO\r\nbar", "-ERR Syntax error in HELLO option 'FOO  bar'\r\n");
    same("HELLO 3 AUTH foo x", WRONGPASS);
    same("HELLO 3 SETNAME a\tb", BAD_NAME);
}

const WRONGPASS: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";
const BAD_NAME: &str =
    "-ERR Client names cannot contain spaces, newlines or special characters.\r\n";

#[test]
fn auth_without_users_says_that_no_password_is_set() {
    let text = "-ERR AUTH <password> called without any password configured for the default user. \
                Are you sure your configuration is correct?\r\n";
    same("AUTH x", text);
    same("AUTH foo x", WRONGPASS);
    same("AUTH default x", "+OK\r\n");
    same("AUTH a b c", "-ERR syntax error\r\n");
}

#[test]
fn client_tells_a_client_of_itself() {
    same("CLIENT ID", ":7\r\n");
    both("CLIENT GETNAME", "$-1\r\n", "_\r\n");
    same("CLIENT SETNAME a", "+OK\r\n");
    same("CLIENT SETNAME ~", "+OK\r\n");
    same("CLIENT SETNAME a\nb", BAD_NAME);
    same("CLIENT SETNAME é", BAD_NAME);
    same("CLIENT SETINFO LIB-NAME redis-py", "+OK\r\n");
    same("CLIENT SETINFO lib-ver 8.1.0", "+OK\r\n");
    same("CLIENT SETINFO foo x", "-ERR Unrecognized option 'foo'\r\n");
    same(
        "CLIENT SETINFO lib-name a\nb",
        "-ERR lib-name cannot contain spaces, newlines or special characters.\r\n",
    );
    same("CLIENT REPLY ON", "+OK\r\n");
    same("CLIENT REPLY OFF", "");
    same("CLIENT REPLY SKIP", "");
    same("CLIENT REPLY FOO", "-ERR syntax error\r\n");
    same("CLIENT NO-EVICT on", "+OK\r\n");
    same("CLIENT NO-EVICT foo", "-ERR syntax error\r\n");
    same("CLIENT NO-TOUCH off", "+OK\r\n");
    same("CLIENT CAPA redirect", "+OK\r\n");
    same("CLIENT GETREDIR", ":-1\r\n");
    same("CLIENT TRACKING off", "+OK\r\n");
    same("CLIENT TRACKING foo", "-ERR syntax error\r\n");
    same("CLIENT TRACKING on", "-ERR CLIENT TRACKING is not supported by this proxy\r\n");
    same(
        "CLIENT CACHING yes",
        "-ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or \
         OPTOUT mode enabled\r\n",
    );
    both(
        "CLIENT TRACKINGINFO",
        "*6\r\n$5\r\nflags\r\n*1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n$8\r\nprefixes\r\n*0\r\n",
        "%3\r\n$5\r\nflags\r\n~1\r\n$3\r\noff\r\n$8\r\nredirect\r\n:-1\r\n$8\r\nprefixes\r\n*0\r\n",
    );
    same("CLIENT PAUSE 1", "-ERR CLIENT PAUSE is not allowed through this proxy\r\n");
    same("CLIENT UNPAUSE", "-ERR CLIENT UNPAUSE is not allowed through this proxy\r\n");
    same("CLIENT FOO", "-ERR unknown subcommand 'FOO'. Try CLIENT HELP.\r\n");
    same("CLIENT", "-ERR wrong number of arguments for 'client' command\r\n");
}

#[test]
fn client_refuses_bad_filters_as_the_server_does() {
    same("CLIENT LIST TYPE foo", "-ERR Unknown client type 'foo'\r\n");
    same("CLIENT LIST ID x", "-ERR Invalid client ID\r\n");
    same("CLIENT LIST FOO", "-ERR syntax error\r\n");
    same("CLIENT KILL ID 0", "-ERR client-id should be greater than 0\r\n");
    same("CLIENT KILL ID x", "-ERR client-id should be greater than 0\r\n");
    same("CLIENT KILL MAXAGE 0", "-ERR maxage should be greater than 0\r\n");
    same("CLIENT KILL MAXAGE x", "-ERR maxage is not an integer or out of range\r\n");
    same("CLIENT KILL TYPE foo", "-ERR Unknown client type 'foo'\r\n");
    same("CLIENT KILL USER foo", "-ERR No such user 'foo'\r\n");
    same("CLIENT KILL SKIPME foo", "-ERR syntax error\r\n");
    same("CLIENT KILL ADDR 1.2.3.4:5 FOO", "-ERR syntax error\r\n");
    same("CLIENT KILL", "-ERR wrong number of arguments for 'client|kill' command\r\n");
    same("CLIENT UNBLOCK x", "-ERR value is not an integer or out of range\r\n");
    same("CLIENT UNBLOCK 5 FOO", "-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR\r\n");
}

#[test]
fn databases_are_as_many_as_the_nodes_have_where_they_tell() {
    let mut bench = Bench::new(Version::Resp2);
    let told = |bench: &mut Bench| {
        let info = bench.ask("INFO ringway");
        let line = info.lines().find(|line| line.starts_with("databases:")).unwrap().to_owned();
        (bench.ask("CONFIG GET databases"), line)
    };
    let config = |count: &str| format!("*2\r\n$9\r\ndatabases\r\n${}\r\n{count}\r\n", count.len());
    assert_eq!(told(&mut bench), (config("16"), "databases:16".into()));
    bench.databases = Some(500);
    assert_eq!(told(&mut bench), (config("500"), "databases:500".into()));
    // There is only one, and clients are to see as many as they like.
    bench.identity.ignore_select = true;
    assert_eq!(told(&mut bench), (config("16"), "databases:16".into()));
}

#[test]
fn config_answers_what_clients_ask_at_start() {
    both("CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n", "%1\r\n$4\r\nsave\r\n$0\r\n\r\n");
    both("CONFIG GET foo", "*0\r\n", "%0\r\n");
    both(
        "CONFIG GET APPENDONLY appendonly append[o]nly",
        "*2\r\n$10\r\nAPPENDONLY\r\n$2\r\nno\r\n",
        "%1\r\n$10\r\nAPPENDONLY\r\n$2\r\nno\r\n",
    );
    both(
        "CONFIG GET data* MAXMEMORY",
        "*4\r\n$9\r\ndatabases\r\n$2\r\n16\r\n$9\r\nMAXMEMORY\r\n$1\r\n0\r\n",
        "%2\r\n$9\r\ndatabases\r\n$2\r\n16\r\n$9\r\nMAXMEMORY\r\n$1\r\n0\r\n",
    );
    both(
        "CONFIG GET timeout replica-read-only",
        "*4\r\n$7\r\ntimeout\r\n$1\r\n0\r\n$17\r\nreplica-read-only\r\n$3\r\nyes\r\n",
        "%2\r\n$7\r\ntimeout\r\n$1\r\n0\r\n$17\r\nreplica-read-only\r\n$3\r\nyes\r\n",
    );
    both("CONFIG GET requirepass", "*0\r\n", "%0\r\n");
    same("CONFIG GET", "-ERR wrong number of arguments for 'config|get' command\r\n");
    same("CONFIG SET save", "-ERR wrong number of arguments for 'config|set' command\r\n");
    same("CONFIG SET save x y", "-ERR wrong number of arguments for 'config|set' command\r\n");
    same(
        "CONFIG SET foo bar",
        "-ERR Unknown option or number of arguments for CONFIG SET - 'foo'\r\n",
    );
    same(
        "CONFIG SET appendonly no maxmemory 1",
        "-ERR CONFIG SET failed (possibly related to argument 'maxmemory') - can't be changed \
         through this proxy\r\n",
    );
    same("CONFIG SET appendonly no", "+OK\r\n");
    same("CONFIG REWRITE", "-ERR The server is running without a config file\r\n");
}

#[test]
fn the_cluster_face_is_one_node_with_all_slots() {
    let id = "0123456789abcdef0123456789abcdef01234567";
    same("CLUSTER KEYSLOT foo", ":12182\r\n");
    same("CLUSTER MYID", &format!("$40\r\n{id}\r\n"));
    same("CLUSTER MYSHARDID", "$40\r\n76543210fedcba9876543210fedcba9876543210\r\n");
    verbatim(
        "CLUSTER NODES",
        &format!("{id} 127.0.0.1:6379@16379 myself,master - 0 0 1 connected 0-16383\n"),
    );
    let slots =
        format!("*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$9\r\n127.0.0.1\r\n:6379\r\n$40\r\n{id}\r\n");
    both("CLUSTER SLOTS", &format!("{slots}*0\r\n"), &format!("{slots}%0\r\n"));
    let node = format!(
        "$2\r\nid\r\n$40\r\n{id}\r\n$4\r\nport\r\n:6379\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n\
         $8\r\nendpoint\r\n$9\r\n127.0.0.1\r\n$4\r\nrole\r\n$6\r\nmaster\r\n\
         $18\r\nreplication-offset\r\n:0\r\n$6\r\nhealth\r\n$6\r\nonline\r\n"
    );
    let ranges = "$5\r\nslots\r\n*2\r\n:0\r\n:16383\r\n$5\r\nnodes\r\n*1\r\n";
    both(
        "CLUSTER SHARDS",
        &format!("*1\r\n*4\r\n{ranges}*14\r\n{node}"),
        &format!("*1\r\n%2\r\n{ranges}%7\r\n{node}"),
    );
    same(&format!("CLUSTER REPLICAS {id}"), "*0\r\n");
    same("CLUSTER SLAVES foo", "-ERR Unknown node foo\r\n");
    verbatim(
        "CLUSTER INFO",
        "cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:16384\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:1\r\n\
         cluster_size:1\r\ncluster_current_epoch:1\r\ncluster_my_epoch:1\r\n\
         cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n\
         total_cluster_links_buffer_limit_exceeded:0\r\n",
    );
    same("CLUSTER FORGET x", "-ERR CLUSTER FORGET is not allowed through this proxy\r\n");
}

#[test]
fn the_cluster_face_follows_the_address_that_the_client_used() {
    let mut bench = Bench::new(Version::Resp2);
    bench.session.local = "[::ffff:10.0.0.9]:7000".parse().unwrap();
    assert!(bench.ask("CLUSTER NODES").contains(" 10.0.0.9:7000@17000 myself"));
    bench.session.local = "[fd01::1]:60000".parse().unwrap();
    assert!(bench.ask("CLUSTER NODES").contains(" fd01::1:60000@0 myself"));
    bench.identity.announce = vec![Endpoint { host: "cache.example".into(), port: 6380 }];
    assert!(bench.ask("CLUSTER SLOTS").contains("$13\r\ncache.example\r\n:6380\r\n"));
}

#[test]
fn announced_addresses_share_the_slots_evenly_and_keep_their_ids() {
    let place = |host: &str, port| Endpoint { host: host.into(), port };
    let all = [place("10.0.0.1", 6379), place("10.0.0.2", 6379), place("cache.example", 7000)];
    let see = |local: &str| {
        let mut bench = Bench::new(Version::Resp2);
        bench.identity.announce = all.to_vec();
        bench.session.local = local.parse().unwrap();
        let nodes = bench.ask("CLUSTER NODES");
        let lines: Vec<Vec<String>> = nodes
            .lines()
            .filter(|line| line.contains(" master ") || line.contains(",master "))
            .map(|line| line.split(' ').map(str::to_owned).collect())
            .collect();
        let own: Vec<usize> =
            (0..lines.len()).filter(|&n| lines[n][2] == "myself,master").collect();
        let id = lines[own[0]][0].clone();
        assert_eq!(own.len(), 1, "{nodes}");
        assert_eq!(bench.ask("CLUSTER MYID"), format!("$40\r\n{id}\r\n"));
        for line in &lines {
            assert_eq!(bench.ask(&format!("CLUSTER REPLICAS {}", line[0])), "*0\r\n");
        }
        let ranges: Vec<String> = lines.iter().map(|line| line[8].clone()).collect();
        assert_eq!(ranges, ["0-5460", "5461-10921", "10922-16383"]);
        assert!(bench.ask("CLUSTER INFO").contains("cluster_known_nodes:3\r\n"));
        for asked in ["CLUSTER SLOTS", "CLUSTER SHARDS"] {
            let text = bench.ask(asked);
            assert!(text.starts_with("*3\r\n") && lines.iter().all(|of| text.contains(&of[0])));
        }
        (own[0], lines.iter().map(|line| line[0].clone()).collect::<Vec<String>>())
    };
    let (first, ids) = see("10.0.0.1:6379");
    assert_eq!(first, 0);
    // Another process, at another of these addresses, says the same of all.
    assert_eq!(see("[::ffff:10.0.0.2]:6379"), (1, ids.clone()));
    // Its port tells which it is where it is announced by name, else it is taken for the first.
    assert_eq!(see("192.168.0.7:7000"), (2, ids.clone()));
    assert_eq!(see("192.168.0.7:9999"), (0, ids.clone()));
    let mut ids = ids;
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

#[test]
fn acl_knows_who_asks() {
    same("ACL WHOAMI", "$7\r\ndefault\r\n");
    same("ACL SETUSER x", "-ERR ACL SETUSER is not allowed through this proxy\r\n");
    same("ACL LIST", "-ERR ACL LIST is not allowed through this proxy\r\n");
    let out_of_range = "-ERR ACL GENPASS argument must be the number of bits for the output \
                        password, a positive number up to 4096\r\n";
    same("ACL GENPASS 0", out_of_range);
    same("ACL GENPASS 4097", out_of_range);
    same("ACL GENPASS x", "-ERR value is not an integer or out of range\r\n");
    let mut bench = Bench::new(Version::Resp2);
    assert!(bench.ask("ACL CAT").starts_with("*21\r\n$8\r\nkeyspace\r\n$4\r\nread\r\n"));
    assert_eq!(bench.ask_for("ACL CAT read"), (Answer::AnyNode, String::new()));
}

#[test]
fn generated_passwords_have_the_asked_length_and_differ() {
    let mut bench = Bench::new(Version::Resp2);
    let first = bench.ask("ACL GENPASS");
    let second = bench.ask("ACL GENPASS");
    assert!(first.starts_with("$64\r\n") && first.len() == 71, "{first:?}");
    assert_ne!(first, second);
    assert!(bench.ask("ACL GENPASS 5").starts_with("$2\r\n"));
    assert!(bench.ask("ACL GENPASS 1").starts_with("$1\r\n"));
    assert!(bench.ask("ACL GENPASS 4096").starts_with("$1024\r\n"));
    bench.session.id += 1 << 32;
    bench.session.drawn = 0;
    assert_ne!(bench.ask("ACL GENPASS"), first);
}

#[test]
fn slow_log_is_asked_of_who_holds_it() {
    let asked = |line: &str, expected: LogQuery| {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let (answer, reply) = Bench::new(Version::Resp2).ask_args(&words);
        assert_eq!((answer, &*reply), (Answer::SlowLog(expected), ""), "{line}");
    };
    asked("SLOWLOG GET", LogQuery::Get(10));
    asked("SLOWLOG GET 3", LogQuery::Get(3));
    asked("SLOWLOG GET -1", LogQuery::Get(usize::MAX));
    asked("SLOWLOG LEN", LogQuery::Len);
    asked("SLOWLOG RESET", LogQuery::Reset);
    asked("COMMANDLOG GET 10 slow", LogQuery::Get(10));
    asked("COMMANDLOG LEN Slow", LogQuery::Len);
    asked("LATENCY LATEST", LogQuery::Latest);
    asked("LATENCY HISTORY command", LogQuery::History);
    asked("LATENCY GRAPH COMMAND", LogQuery::Graph);
    asked("LATENCY RESET", LogQuery::Forget);
    asked("LATENCY RESET x command", LogQuery::Forget);
}

#[test]
fn other_logs_are_empty() {
    same("SLOWLOG GET -2", "-ERR count should be greater than or equal to -1\r\n");
    same("SLOWLOG GET x", "-ERR count should be greater than or equal to -1\r\n");
    same("COMMANDLOG GET 10 large-reply", "*0\r\n");
    same("COMMANDLOG LEN large-reply", ":0\r\n");
    same("COMMANDLOG RESET large-request", "+OK\r\n");
    same(
        "COMMANDLOG LEN foo",
        "-ERR type should be one of the following: slow, large-request, large-reply\r\n",
    );
    same("LATENCY HISTORY x", "*0\r\n");
    same("LATENCY RESET x y", ":0\r\n");
    same("LATENCY GRAPH x", "-ERR No samples available for event 'x'\r\n");
    both("LATENCY HISTOGRAM", "*0\r\n", "%0\r\n");
    verbatim(
        "LATENCY DOCTOR",
        "This proxy records how long slow requests took (LATENCY HISTORY command); which they were \
         is in SLOWLOG.\n",
    );
    both("HOTKEYS GET", "$-1\r\n", "_\r\n");
    same("HOTKEYS RESET", "+OK\r\n");
    same("HOTKEYS START", "-ERR HOTKEYS START is not supported by this proxy yet\r\n");
}

#[test]
fn commands_that_a_node_must_answer_are_handed_back() {
    for words in [
        "COMMAND",
        "COMMAND COUNT",
        "COMMAND DOCS",
        "COMMAND DOCS get",
        "COMMAND INFO get",
        "COMMAND LIST",
        "COMMAND GETKEYS get a",
        "COMMAND GETKEYSANDFLAGS get a",
        "LOLWUT",
    ] {
        let mut bench = Bench::new(Version::Resp3);
        assert_eq!(bench.ask_for(words), (Answer::AnyNode, String::new()), "{words}");
    }
}

#[test]
fn unknown_commands_are_named_in_the_servers_words() {
    same("FOO", "-ERR unknown command 'FOO', with args beginning with: \r\n");
    same("FOO a b c", "-ERR unknown command 'FOO', with args beginning with: 'a' 'b' 'c' \r\n");
    same(
        "foo a\0b c\r\nd",
        "-ERR unknown command 'foo', with args beginning with: 'a' 'c  d' \r\n",
    );
    let (x, z) = ("x".repeat(200), "z".repeat(100));
    same(
        &format!("FOO {x} b"),
        &format!("-ERR unknown command 'FOO', with args beginning with: '{}' \r\n", &x[..128]),
    );
    same(
        &format!("FOO {} {z} c", &x[..100]),
        &format!(
            "-ERR unknown command 'FOO', with args beginning with: '{}' '{}' \r\n",
            &x[..100],
            &z[..25]
        ),
    );
    same(
        &format!("F{x} a"),
        &format!("-ERR unknown command 'F{}', with args beginning with: 'a' \r\n", &x[..127]),
    );
    same(
        &format!("CLIENT {x}"),
        &format!("-ERR unknown subcommand '{}'. Try CLIENT HELP.\r\n", &x[..128]),
    );
    same("get", "-ERR wrong number of arguments for 'get' command\r\n");
}

#[test]
fn other_error_texts_are_the_servers() {
    text(errors::crossslot, "-CROSSSLOT Keys in request don't hash to the same slot\r\n");
    text(|out| errors::noauth(out, "GET"), "-NOAUTH Authentication required.\r\n");
    text(
        |out| errors::noauth(out, "EXEC"),
        "-EXECABORT Transaction discarded because of: NOAUTH Authentication required.\r\n",
    );
    text(errors::maxclients, "-ERR max number of clients reached\r\n");
    text(errors::no_node, "-CLUSTERDOWN Hash slot not served\r\n");
    text(errors::nested_multi, "-ERR MULTI calls can not be nested\r\n");
    text(errors::execabort, "-EXECABORT Transaction discarded because of previous errors.\r\n");
    text(errors::connection_lost, "-ERR connection to server lost, the command may have run\r\n");
    text(
        |out| errors::subscribed_only(out, "CLIENT|ID"),
        "-ERR Can't execute 'client|id': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / \
         RESET are allowed in this context\r\n",
    );
    text(
        |out| errors::refused(out, "MODULE|LOAD"),
        "-ERR MODULE LOAD is not allowed through this proxy\r\n",
    );
    text(
        |out| errors::protocol(out, "Protocol error: invalid bulk length"),
        "-ERR Protocol error: invalid bulk length\r\n",
    );
}

// --- what a command changes ------------------------------------------------------------------

#[test]
fn a_login_is_asked_for_checked_and_shown() {
    let mut bench = Bench::with_users();
    let refused = "-NOAUTH HELLO must be called with the client already authenticated, otherwise \
                   the HELLO AUTH <user> <pass> option can be used to authenticate the client and \
                   select the RESP protocol version at the same time\r\n";
    assert_eq!(bench.ask("HELLO 3"), refused);
    for wrong in [
        "AUTH x",
        "AUTH secre",
        "AUTH secret0",
        "AUTH secretsecret",
        "AUTH bob secret",
        "AUTH BOB pw",
        "AUTH nobody pw",
        "HELLO 3 AUTH bob x SETNAME q",
    ] {
        assert_eq!(bench.ask(wrong), WRONGPASS, "{wrong}");
    }
    assert!(!bench.session.authenticated && bench.session.details.is_none());
    assert_eq!(bench.session.version, Version::Resp2);
    assert_eq!(bench.ask("AUTH secret"), "+OK\r\n");
    assert_eq!(bench.ask("ACL WHOAMI"), "$7\r\ndefault\r\n");
    assert_eq!(bench.ask("HELLO 3 AUTH bob pw SETNAME q"), HELLO_3);
    assert_eq!(bench.ask("ACL WHOAMI"), "$3\r\nbob\r\n");
    assert_eq!(bench.ask("CLIENT GETNAME"), "$1\r\nq\r\n");
    assert_eq!(bench.ask("AUTH guest anything"), "+OK\r\n");
    assert_eq!(bench.ask("ACL WHOAMI"), "$5\r\nguest\r\n");
}

#[test]
fn a_default_user_without_password_needs_no_login() {
    let mut bench = Bench::with_users();
    bench.identity.users[0].password = None;
    assert!(bench.identity.open());
    assert!(bench.ask("AUTH x").starts_with("-ERR AUTH <password> called without any password"));
    assert_eq!(bench.ask("AUTH default x"), "+OK\r\n");
}

#[test]
fn an_empty_password_matches_only_itself() {
    let mut bench = Bench::with_users();
    bench.identity.users[0].password = Some(Box::from(&b""[..]));
    assert_eq!(bench.ask("AUTH x"), WRONGPASS);
    assert_eq!(bench.ask("AUTH \0"), WRONGPASS);
}

#[test]
fn reset_asks_for_the_login_again() {
    let mut bench = Bench::with_users();
    bench.ask("HELLO 3 AUTH bob pw SETNAME q");
    assert_eq!(bench.ask_for("RESET"), (Answer::ResetAll, "+RESET\r\n".into()));
    assert!(!bench.session.authenticated);
    assert_eq!(bench.session.version, Version::Resp2);
    assert_eq!(bench.session.name(), None);
}

#[test]
fn quit_closes_after_its_reply() {
    let mut bench = Bench::new(Version::Resp2);
    assert_eq!(bench.ask_for("QUIT"), (Answer::Close, "+OK\r\n".into()));
}

#[test]
fn exactly_four_commands_may_come_before_the_login() {
    let early: Vec<_> = COMMANDS.iter().filter(|row| allowed_before_auth(row)).collect();
    let names: Vec<_> = early.iter().map(|row| row.name).collect();
    assert_eq!(names, ["AUTH", "HELLO", "QUIT", "RESET"]);
}

/// Case A4 of research/user-demand.md.
#[test]
fn replies_are_left_out_as_asked() {
    let mut bench = Bench::new(Version::Resp2);
    let sent: String = [
        "CLIENT REPLY SKIP",
        "PING",
        "ECHO a",
        "CLIENT REPLY OFF",
        "PING",
        "CLIENT REPLY SKIP",
        "PING",
        "CLIENT REPLY ON",
        "ECHO b",
    ]
    .iter()
    .map(|words| bench.ask_through_reply_mode(words))
    .collect();
    assert_eq!(sent, "$1\r\na\r\n+OK\r\n$1\r\nb\r\n");
    assert_eq!(bench.session.reply, ReplyMode::On);
}

#[test]
fn names_are_kept_shown_and_removed() {
    let mut bench = Bench::new(Version::Resp2);
    bench.ask("CLIENT SETNAME worker-1");
    assert_eq!(bench.ask("CLIENT GETNAME"), "$8\r\nworker-1\r\n");
    assert_eq!(bench.ask_args(&[b"CLIENT", b"SETNAME", b""]).1, "+OK\r\n");
    assert_eq!(bench.ask("CLIENT GETNAME"), "$-1\r\n");
    let long = format!("CLIENT SETNAME {}", "n".repeat(crate::limits::CLIENT_DETAIL_MAX + 1));
    let text = "-ERR Client names cannot be that long through this proxy.\r\n";
    assert_eq!(bench.ask(&long), text);
}

#[test]
fn readonly_and_readwrite_switch_the_session() {
    let mut bench = Bench::new(Version::Resp2);
    bench.ask("READONLY");
    assert!(bench.session.readonly);
    bench.ask("READWRITE");
    assert!(!bench.session.readonly);
}

#[test]
fn a_subscribed_resp2_client_gets_pong_as_a_message() {
    let mut bench = Bench::new(Version::Resp2);
    bench.session.subscriptions = 1;
    assert_eq!(bench.ask("PING"), "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    assert_eq!(bench.ask("PING x"), "*2\r\n$4\r\npong\r\n$1\r\nx\r\n");
    bench.session.version = Version::Resp3;
    assert_eq!(bench.ask("PING"), "+PONG\r\n");
}

#[test]
fn the_cluster_is_down_until_it_is_known() {
    let mut bench = Bench::new(Version::Resp2);
    bench.topology = None;
    assert!(bench.ask("CLUSTER INFO").contains("cluster_state:fail\r\n"));
    assert!(bench.ask("INFO ringway").contains("\nnodes:0\r\n"));
}

// --- clients ---------------------------------------------------------------------------------

#[test]
fn lists_and_kills_become_filters() {
    let id_7 = ClientFilter { ids: vec![7], ..Default::default() };
    filters("CLIENT INFO", Answer::ListClients(id_7.into()));
    filters("CLIENT LIST", Answer::ListClients(Box::default()));
    let ids = ClientFilter { ids: vec![0, 3, 9], ..Default::default() };
    filters("CLIENT LIST ID 3 -1 9", Answer::ListClients(ids.into()));
    let pubsub = ClientFilter { kind: Some(ClientKind::PubSub), ..Default::default() };
    filters("CLIENT LIST TYPE PUBSUB", Answer::ListClients(pubsub.into()));
    let peer = Some(Side::Is("1.2.3.4:5".parse().unwrap()));
    let old = ClientFilter { peer, old_form: true, ..Default::default() };
    filters("CLIENT KILL 1.2.3.4:5", Answer::KillClients(old.into()));
    let nobody = ClientFilter { peer: Some(Side::Nobody), old_form: true, ..Default::default() };
    filters("CLIENT KILL ID", Answer::KillClients(nobody.into()));
    let all = ClientFilter {
        ids: vec![5],
        kind: Some(ClientKind::Normal),
        local: peer,
        user: Some("default".into()),
        age_min_s: Some(60),
        ..Default::default()
    };
    let words = "CLIENT KILL ID 5 TYPE normal LADDR 1.2.3.4:5 USER default MAXAGE 60 SKIPME no";
    filters(words, Answer::KillClients(all.into()));
    let replicas =
        ClientFilter { kind: Some(ClientKind::Replication), skip: Some(7), ..Default::default() };
    filters("CLIENT KILL TYPE slave", Answer::KillClients(replicas.into()));
    filters("CLIENT UNBLOCK 12", Answer::Unblock { id: 12, error: false });
    filters("CLIENT UNBLOCK 12 error", Answer::Unblock { id: 12, error: true });
}

#[test]
fn a_filter_matches_only_what_all_its_parts_match() {
    let mut session = Bench::new(Version::Resp2).session;
    session.peer = "[::ffff:1.2.3.4]:5".parse().unwrap();
    let is = |filter: ClientFilter, session: &Session| filter.matches(session, 61_000);
    let peer = Some(Side::Is("1.2.3.4:5".parse().unwrap()));
    assert!(is(ClientFilter::default(), &session));
    assert!(is(ClientFilter { peer, ..Default::default() }, &session));
    assert!(!is(ClientFilter { peer: Some(Side::Nobody), ..Default::default() }, &session));
    assert!(!is(ClientFilter { peer, ids: vec![8], ..Default::default() }, &session));
    assert!(!is(ClientFilter { peer, skip: Some(7), ..Default::default() }, &session));
    assert!(is(ClientFilter { age_min_s: Some(60), ..Default::default() }, &session));
    assert!(!is(ClientFilter { age_min_s: Some(61), ..Default::default() }, &session));
    assert!(is(ClientFilter { user: Some("default".into()), ..Default::default() }, &session));
    let pubsub = ClientFilter { kind: Some(ClientKind::PubSub), ..Default::default() };
    assert!(!is(pubsub.clone(), &session));
    session.subscriptions = 2;
    assert!(is(pubsub, &session));
}

#[test]
fn kills_are_counted_in_either_form() {
    let old = ClientFilter { old_form: true, ..Default::default() };
    text(|out| write_killed(out, &old, 0), "-ERR No such client\r\n");
    text(|out| write_killed(out, &old, 1), "+OK\r\n");
    text(|out| write_killed(out, &ClientFilter::default(), 3), ":3\r\n");
}

#[test]
fn a_client_is_one_line_of_the_servers_fields() {
    let mut bench = Bench::new(Version::Resp2);
    bench.ask("CLIENT SETNAME n");
    bench.ask("CLIENT SETINFO lib-name lib");
    bench.ask("CLIENT NO-EVICT on");
    let facts =
        ClientFacts { fd: 8, multi: Some(2), unsent: 10, memory: 700, ..Default::default() };
    let mut line = Vec::new();
    client_line(&bench.session, &facts, &bench.world(), &mut line);
    assert_eq!(
        String::from_utf8(line.clone()).unwrap(),
        "id=7 addr=127.0.0.1:50000 laddr=127.0.0.1:6379 fd=8 name=n age=1 idle=1 flags=xe db=0 \
         sub=0 psub=0 ssub=0 multi=2 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=10 \
         oll=0 omem=0 tot-mem=700 events=rw cmd=client|no-evict user=default redir=-1 resp=2 \
         lib-name=lib lib-ver=\n"
    );
    let mut reply = Vec::new();
    write_client_list(&mut reply, Version::Resp3, &line);
    assert!(reply.starts_with(format!("={}\r\ntxt:id=7 ", line.len() + 4).as_bytes()));
    let mut fresh = Vec::new();
    client_line(&Bench::new(Version::Resp3).session, &facts, &bench.world(), &mut fresh);
    assert!(String::from_utf8(fresh).unwrap().contains(" cmd=NULL user=default redir=-1 resp=3 "));
}

// --- INFO and HELP ---------------------------------------------------------------------------

#[test]
fn info_has_what_clients_and_exporters_read() {
    let mut bench = Bench::new(Version::Resp2);
    bench.totals.clients = 3;
    bench.totals.commands = 12;
    bench.totals.memory_used = 1_558_088;
    bench.totals.cpu_user_us = 1_000_023;
    bench.totals.bytes_in_per_second = 1198;
    bench.totals.slots_missing = 4;
    let info = bench.ask("INFO");
    for line in [
        "# Server",
        "redis_version:7.2.5",
        "redis_mode:standalone",
        "arch_bits:64",
        "tcp_port:6379",
        "process_id:4711",
        "uptime_in_seconds:90001",
        "uptime_in_days:1",
        "# Clients",
        "connected_clients:3",
        "maxclients:10000",
        "blocked_clients:0",
        "# Memory",
        "used_memory:1558088",
        "used_memory_human:1.49M",
        "used_memory_peak_perc:100.00%",
        "maxmemory:0",
        "maxmemory_policy:noeviction",
        "# Persistence",
        "loading:0",
        "# Stats",
        "total_connections_received:0",
        "total_commands_processed:12",
        "instantaneous_input_kbps:1.16",
        "# Replication",
        "role:master",
        "connected_slaves:0",
        "# CPU",
        "used_cpu_user:1.000023",
        "# Cluster",
        "cluster_enabled:0",
        "# Keyspace",
        "# Ringway",
        "reactors:2",
        "slots_served:16380",
        "slots_not_served:4",
    ] {
        assert!(info.contains(&format!("\n{line}\r\n")), "{line} is missing");
    }
    assert!(!info.contains("# Commandstats"));
    assert!(bench.ask("INFO everything").contains("\n# Commandstats\r\n"));
}

#[test]
fn info_shows_the_sections_named() {
    verbatim("INFO foo", "");
    verbatim("INFO keyspace", "# Keyspace\r\n");
    verbatim("INFO CLUSTER keyspace", "# Cluster\r\ncluster_enabled:0\r\n\r\n# Keyspace\r\n");
    let mut bench = Bench::new(Version::Resp2);
    assert_eq!(bench.ask("INFO"), bench.ask("INFO default"));
    assert_eq!(bench.ask("INFO"), bench.ask("INFO default server"));
    assert_eq!(bench.ask("INFO all"), bench.ask("INFO everything"));
}

#[test]
fn help_is_lines_for_every_container() {
    same(
        "ACL HELP",
        "*6\r\n+ACL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:\r\n\
         +CAT [<category>]\r\n+GENPASS [<bits>]\r\n+WHOAMI\r\n+HELP\r\n+    Prints this help.\r\n",
    );
    let rows = COMMANDS.iter().filter(|row| row.name.ends_with("|HELP"));
    for row in rows.filter(|row| row.class == Class::Local) {
        let words = row.name.replace('|', " ");
        let lines = Bench::new(Version::Resp2).ask(&words).lines().count();
        assert!(lines > 4, "{words} has no text");
    }
}

// --- the whole table -------------------------------------------------------------------------

/// No row of class K falls through to a refusal, and each reply is one whole frame.
#[test]
fn every_command_of_the_class_is_answered_with_one_frame() {
    for row in COMMANDS.iter().filter(|row| row.class == Class::Local) {
        for version in [Version::Resp2, Version::Resp3] {
            let mut words: Vec<&[u8]> = row.name.split('|').map(str::as_bytes).collect();
            let wanted = usize::from(row.arity.unsigned_abs());
            if row.is_container() && wanted > 1 {
                continue;
            }
            words.resize(wanted.max(words.len()), b"1");
            let mut bench = Bench::new(version);
            let (answer, reply) = bench.ask_args(&words);
            assert!(!reply.contains("not allowed through"), "{} is refused", row.name);
            let silent = reply.is_empty() && !matches!(answer, Answer::Replied | Answer::Close);
            match parse_value(reply.as_bytes()) {
                Ok(Some((_, len))) => assert_eq!(len, reply.len(), "{}", row.name),
                other => assert!(silent, "{}: {other:?} in {reply:?}", row.name),
            }
        }
    }
}

#[test]
fn whatever_a_client_says_comes_back_as_one_frame() {
    let nasty = "\r\n-ERR x\r\n+OK\r\n\0\u{1f980}";
    for words in [
        vec!["HELLO", "3", nasty],
        vec!["HELLO", nasty],
        vec![nasty, nasty],
        vec!["CLIENT", nasty],
        vec!["CONFIG", "SET", nasty, nasty],
        vec!["CLIENT", "KILL", "TYPE", nasty],
        vec!["CLIENT", "KILL", "USER", nasty],
        vec!["CLIENT", "SETINFO", nasty, nasty],
        vec!["CLUSTER", "REPLICAS", nasty],
        vec!["LATENCY", "GRAPH", nasty],
        vec!["ECHO", nasty],
        vec!["CONFIG", "GET", nasty],
        vec!["INFO", nasty],
        vec!["AUTH", nasty, nasty],
    ] {
        let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let reply = Bench::new(Version::Resp2).ask_args(&bytes).1;
        let parsed = parse_value(reply.as_bytes()).unwrap();
        let (value, len) = parsed.expect("a whole frame");
        assert_eq!(len, reply.len(), "{words:?}");
        let expected_error = !matches!(words[0], "ECHO" | "CONFIG" | "INFO") || words[1] == "SET";
        assert_eq!(matches!(value, Value::Error(_)), expected_error, "{words:?}");
    }
}

// --- how a request is put --------------------------------------------------------------------

/// The same reply in both versions.
#[track_caller]
fn same(words: &str, expected: &str) {
    both(words, expected, expected);
}

#[track_caller]
fn both(words: &str, resp2: &str, resp3: &str) {
    check(words, Version::Resp2, resp2);
    check(words, Version::Resp3, resp3);
}

/// A text: a bulk string in RESP2, a verbatim string in RESP3.
#[track_caller]
fn verbatim(words: &str, text: &str) {
    let resp2 = format!("${}\r\n{text}\r\n", text.len());
    let resp3 = format!("={}\r\ntxt:{text}\r\n", text.len() + 4);
    both(words, &resp2, &resp3);
}

/// A new client sends `words` (separated by one space).
#[track_caller]
fn check(words: &str, version: Version, expected: &str) {
    assert_eq!(Bench::new(version).ask(words), expected, "{words:?} in {version:?}");
}

#[track_caller]
fn filters(words: &str, expected: Answer) {
    let asked = Bench::new(Version::Resp2).ask_for(words);
    assert_eq!(asked, (expected, String::new()), "{words:?}");
}

#[track_caller]
fn text(write: impl FnOnce(&mut Vec<u8>), expected: &str) {
    let mut out = Vec::new();
    write(&mut out);
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}

/// One client before a proxy.
struct Bench {
    identity: Identity,
    topology: Option<Topology>,
    databases: Option<u64>,
    totals: Totals,
    session: Session,
}

impl Bench {
    fn new(version: Version) -> Bench {
        let identity = Identity {
            run_id: RUN_ID,
            started_unix_s: 1_796_029_901 - 90_001,
            process_id: 4711,
            reactors: 2,
            os: "Linux 6.18.0 x86_64".into(),
            executable: "/usr/bin/ringway".into(),
            ..Identity::plain()
        };
        let peer = "127.0.0.1:50000".parse().unwrap();
        let local = "127.0.0.1:6379".parse().unwrap();
        let mut session = Session::new(7, peer, local, 500, true);
        session.version = version;
        let topology = Some(Topology::empty());
        Bench { identity, topology, databases: None, totals: Totals::default(), session }
    }

    /// Users default/secret, bob/pw, and guest with any password; not logged in.
    fn with_users() -> Bench {
        let mut bench = Bench::new(Version::Resp2);
        bench.session.authenticated = false;
        for (name, password) in [("default", Some("secret")), ("bob", Some("pw")), ("guest", None)]
        {
            let password = password.map(|text| Box::from(text.as_bytes()));
            bench.identity.users.push(User { name: name.into(), password });
        }
        bench
    }

    fn world(&self) -> World<'_> {
        World {
            identity: &self.identity,
            topology: self.topology.as_ref(),
            databases: self.databases,
            totals: &self.totals,
            now_ms: 2_000,
            unix_us: 1_796_029_901_326_913,
            random: 42,
        }
    }

    fn ask(&mut self, words: &str) -> String {
        self.ask_for(words).1
    }

    fn ask_for(&mut self, words: &str) -> (Answer, String) {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        self.ask_args(&words)
    }

    fn ask_args(&mut self, words: &[&[u8]]) -> (Answer, String) {
        let mut bytes = Vec::new();
        let mut spans = Vec::new();
        for word in words {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(word);
            spans.push(Span { start, end: bytes.len() as u32 });
        }
        let args = Args { bytes: &bytes, spans: &spans };
        let mut out = Vec::new();
        let mut session = self.session.clone();
        let answer = match lookup(&args) {
            Ok(command) => {
                session.command_started(command.id, 900);
                answer(command, &args, &mut session, &self.world(), &mut out)
            }
            Err(error) => {
                errors::lookup_failed(&mut out, &error, &args);
                Answer::Replied
            }
        };
        self.session = session;
        (answer, String::from_utf8_lossy(&out).into_owned())
    }

    /// What of the reply is really sent, as the caller of `answer` decides it.
    fn ask_through_reply_mode(&mut self, words: &str) -> String {
        let reply = self.ask(words);
        let sent = if self.session.wants_reply() { reply } else { String::new() };
        self.session.command_done();
        sent
    }
}
