//! Settings that change while it runs: SIGHUP and CONFIG SET.
//!
//! Not here: which options may change (unit tests of `config`).

use rustix::process::Signal;

use crate::restart::{calm, expect_no_pause, with_crowd};
use crate::support::client::{Client, Got};
use crate::support::cluster::{Cluster, Flavour};
use crate::support::ports::free_port;
use crate::support::process::{Folder, Process};
use crate::support::proxy::program;
use crate::support::{millis, seconds, wait_until};

/// A process with a file that can be written anew.
struct Filed {
    process: Process,
    folder: Folder,
    port: u16,
    node: String,
}

impl Filed {
    fn start(node: String, top: &str, pool: &str) -> Filed {
        let (folder, port) = (Folder::new("reload"), free_port());
        let file = folder.file("ringway.toml");
        std::fs::write(&file, text(port, &node, top, pool)).unwrap();
        let args = ["--config".to_owned(), file.display().to_string()];
        let process = Process::start(&program(), &args, &folder.file("log"));
        wait_until(seconds(10), "it to listen", || Client::try_connect(port).is_ok());
        Filed { process, folder, port, node }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.file("log")).unwrap_or_default()
    }

    /// Writes the file anew and has it read; waits for the line that says so.
    #[track_caller]
    fn reload(&self, top: &str, pool: &str, line: &str) {
        let before = self.log().matches(line).count();
        let new = text(self.port, &self.node, top, pool);
        std::fs::write(self.folder.file("ringway.toml"), new).unwrap();
        self.process.send(Signal::HUP);
        let said = || self.log().matches(line).count() > before;
        let what = format!("{line:?} in the log");
        wait_until(seconds(5), &what, said);
    }

    /// Waits until all reactors answer new clients so: each is told for itself.
    #[track_caller]
    fn wait_answers(&self, line: &str, begin: &str) {
        let answer = || Client::connect(self.port).run(line).text();
        wait_until(seconds(5), &format!("{line} to be answered {begin}"), || {
            (0..8).all(|_| answer().starts_with(begin))
        });
    }

    #[track_caller]
    fn client(&self, login: &str) -> Client {
        let mut client = Client::connect(self.port);
        if !login.is_empty() {
            assert_eq!(client.run(login).text(), "OK", "{login}");
        }
        client
    }
}

fn text(port: u16, node: &str, top: &str, pool: &str) -> String {
    let pool = format!("listen = \"127.0.0.1:{port}\"\nnodes = {node:?}\n{pool}");
    format!("reactors = 2\n{top}\n[[pool]]\n{pool}\n")
}

const READ: &str = "configuration read again";

fn users(of: &[(&str, &str)]) -> String {
    let user = |(name, password): &(&str, &str)| {
        format!("[[pool.user]]\nname = {name:?}\npassword = {password:?}\n")
    };
    of.iter().map(user).collect()
}

#[test]
fn hup_changes_passwords_and_ends_the_sessions_of_users_that_are_others_now() {
    let cluster = Cluster::three(Flavour::Redis);
    let logins = [("same", "one"), ("other", "one"), ("gone", "one")];
    let before = format!("password = \"first\"\n{}", users(&logins));
    let proxy = Filed::start(cluster.nodes[0].address(), "", &before);
    let mut default = proxy.client("AUTH first");
    let mut same = proxy.client("AUTH same one");
    let (mut other, mut gone) = (proxy.client("AUTH other one"), proxy.client("AUTH gone one"));
    let after = format!("password = \"second\"\n{}", users(&[("same", "one"), ("other", "two")]));
    proxy.reload("", &after, READ);
    other.expect_closed();
    gone.expect_closed();
    assert_eq!(same.run("PING").text(), "PONG");
    assert_eq!(default.run("PING").text(), "PONG", "as after CONFIG SET requirepass");
    for refused in ["AUTH first", "AUTH other one", "AUTH gone one"] {
        proxy.wait_answers(refused, "-WRONGPASS");
    }
    proxy.wait_answers("AUTH second", "OK");
    proxy.wait_answers("AUTH other two", "OK");
    assert!(!proxy.log().contains("second") && !proxy.log().contains("first"), "{}", proxy.log());
}

#[test]
fn hup_with_mistakes_names_all_and_changes_nothing() {
    let cluster = Cluster::three(Flavour::Redis);
    let mut proxy = Filed::start(cluster.nodes[0].address(), "maxclients = 50", "");
    let mut client = proxy.client("");
    let line = "mistakes in the configuration: the old one stays in force";
    proxy.reload("maxclients = 0\nnonsense = 1", "fence_lanes = 99", line);
    let log = proxy.log();
    for part in ["count=3", "maxclients", "nonsense", "fence_lanes", "from 1 to 64"] {
        assert!(log.contains(part), "no {part:?} in {log}");
    }
    assert_eq!(client.run("CONFIG GET maxclients").text(), "[\"maxclients\", \"50\"]");
    std::fs::remove_file(proxy.folder.file("ringway.toml")).unwrap();
    proxy.process.send(Signal::HUP);
    wait_until(seconds(5), "another line", || proxy.log().matches(line).count() == 2);
    assert_eq!(client.run("PING").text(), "PONG");
    assert!(proxy.process.is_running());
}

#[test]
fn hup_changes_what_can_change_and_names_what_cannot() {
    let cluster = Cluster::three(Flavour::Redis);
    let proxy = Filed::start(cluster.nodes[0].address(), "log_level = \"warn\"", "");
    let mut client = proxy.client("");
    wait_until(seconds(10), "the map", || client.run("MSET {a}x 1 {b}x 1").text() == "OK");
    let top = "receive_buffer_count = 1024\nlog_level = \"debug\"\nmaxclients = 2";
    let pool = "split_writes = false\nslowlog_max_len = 7\nannounce_version = \"7.9.1\"\n";
    proxy.reload(top, pool, "changes that need a restart");
    assert!(proxy.log().contains("what=receive_buffer_count"), "{}", proxy.log());
    wait_until(seconds(5), "its reactor to be told", || {
        client.run("MSET {a}x 1 {b}x 1").text().starts_with("-CROSSSLOT")
    });
    let held = client.run("CONFIG GET slowlog_max_len receive_buffer_count log_level").text();
    let expected = "[\"slowlog_max_len\", \"7\", \"receive_buffer_count\", \"512\", \"log_level\", \
                    \"debug\"]";
    assert_eq!(held, expected);
    assert!(client.run("HELLO").text().contains("7.9.1"));
    // One for each reactor, and one reactor has its own already.
    wait_until(seconds(5), "the new limit", || {
        let mut clients: Vec<Client> = (0..4).map(|_| proxy.client("")).collect();
        let refused = clients.iter_mut().filter_map(|client| client.try_call(&["PING"]).ok());
        refused.filter(|reply| reply.text().contains("max number of clients")).count() >= 1
    });
}

#[test]
fn hup_moves_to_another_seed_and_login() {
    let cluster = Cluster::three(Flavour::Redis);
    let nobody = format!("127.0.0.1:{}", free_port());
    let mut proxy = Filed::start(nobody, "", "refresh_interval_ms = 200");
    let mut client = proxy.client("");
    assert!(client.run("GET x").text().starts_with("-CLUSTERDOWN"));
    proxy.node = cluster.nodes[1].address();
    proxy.reload("", "", READ);
    wait_until(seconds(10), "the new seed to be asked", || client.run("GET x").text() == "nil");
    for node in &cluster.nodes {
        let lines = ["CONFIG SET requirepass secret", "CLIENT KILL TYPE normal"];
        assert!(Client::connect(node.port).pipeline(&lines).iter().all(|said| !said.is_error()));
    }
    wait_until(seconds(5), "the nodes to refuse", || client.run("GET x").is_error());
    proxy.reload("", "node_password = \"secret\"", READ);
    wait_until(seconds(10), "the new login", || client.run("GET x").text() == "nil");
}

/// Each of them changes options back and forth that reactors and the topology thread take over.
#[test]
fn hup_and_config_set_hold_nobody_up() {
    let cluster = Cluster::three(Flavour::Redis);
    let admin = "admin_user = \"default\"\n";
    let proxy = Filed::start(cluster.nodes[0].address(), "", admin);
    let mut client = proxy.client("");
    wait_until(seconds(10), "the map", || client.run("GET x").text() == "nil");
    with_crowd("SIGHUP and CONFIG SET", proxy.port, |tally| {
        let calm = calm(tally);
        for n in 0..10 {
            let interval = 9_000 + n;
            proxy.reload("", &format!("{admin}refresh_interval_ms = {interval}"), READ);
            let set = format!("CONFIG SET slowlog_max_len {} gather_us {}", 100 + n, n * 50);
            assert_eq!(client.run(&set).text(), "OK");
            assert_eq!(client.run(&format!("CONFIG SET maxclients {}", 900 + n)).text(), "OK");
        }
        expect_no_pause("10 times SIGHUP and CONFIG SET", millis(50), calm, tally.take_times());
    });
}

// --- CONFIG SET -------------------------------------------------------------------------------------------------

#[test]
fn admin_sets_options_on_all_reactors_and_others_may_not() {
    let cluster = Cluster::three(Flavour::Redis);
    let admin = users(&[("root", "r")]);
    let pool = format!("password = \"p\"\nadmin_user = \"root\"\n{admin}");
    let proxy = Filed::start(cluster.nodes[0].address(), "", &pool);
    let mut root = proxy.client("AUTH root r");
    // Of both reactors, as a rule: their ids tell.
    let mut others: Vec<Client> = (0..8).map(|_| proxy.client("AUTH p")).collect();
    let set = "CONFIG SET request_timeout_ms 777 split-reads maybe log_level debug";
    let refused = root.run(set).text();
    assert!(refused.contains("'split-reads'") && refused.contains("wants"), "{refused}");
    let get = "CONFIG GET request_timeout_ms";
    assert_eq!(root.run(get).text(), "[\"request_timeout_ms\", \"5000\"]", "all or none");
    assert_eq!(root.run(&set.replace(" maybe ", " off ")).text(), "OK");
    for client in others.iter_mut().chain([&mut root]) {
        wait_until(seconds(2), "every reactor to know", || {
            client.run(get).text() == "[\"request_timeout_ms\", \"777\"]"
        });
        assert!(client.run("MGET {a}x {b}x").text().starts_with("-CROSSSLOT"));
    }
    let line = "configuration changed by a client options=request_timeout_ms,split-reads,log_level";
    wait_until(seconds(5), line, || proxy.log().contains(line));
    for (asked, said) in [
        ("CONFIG SET reactors 3", "it needs a restart"),
        ("CONFIG SET listen 127.0.0.1:1", "it needs a restart"),
        ("CONFIG SET password_file /x", "read at the start"),
        ("CONFIG SET nothing_such 1", "Unknown option"),
        ("CONFIG SET request_timeout_ms", "wrong number of arguments"),
        ("CONFIG REWRITE", "without a config file"),
    ] {
        let reply = root.run(asked).text();
        assert!(reply.starts_with("-ERR") && reply.contains(said), "{asked}: {reply}");
    }
    let denied = others[0].run("CONFIG SET request_timeout_ms 1").text();
    assert!(denied.starts_with("-NOPERM"), "{denied}");
    assert_eq!(others[0].run("CONFIG SET maxclients 10000").text(), "OK", "as it is");
    assert_eq!(root.run("CONFIG SET password other").text(), "OK");
    proxy.wait_answers("AUTH p", "-WRONGPASS");
    proxy.wait_answers("AUTH other", "OK");
    let shown = root.run("CONFIG GET *password*").text();
    let files = "[\"node_password_file\", \"none\", \"password_file\", \"none\"]";
    assert_eq!(shown, files, "no password");
    let multi = root.pipeline(&["MULTI", "CONFIG SET request_timeout_ms 5", "EXEC"]);
    assert!(multi[1].is_error() && multi[2].text().starts_with("-EXECABORT"));
    // The file says what holds when it is read again.
    proxy.reload("", &pool, READ);
    proxy.wait_answers("AUTH p", "OK");
}

#[test]
fn options_of_nodes_go_to_nodes_and_ours_stay_here() {
    let cluster = Cluster::three(Flavour::Redis);
    let admin = users(&[("root", "r")]);
    let pool = format!("allow_config = true\nadmin_user = \"root\"\n{admin}");
    let proxy = Filed::start(cluster.nodes[0].address(), "", &pool);
    let mut root = proxy.client("AUTH root r");
    wait_until(seconds(10), "the map", || !root.run("GET x").is_error());
    assert_eq!(root.run("CONFIG SET slowlog-max-len 33 maxclients 500").text(), "OK");
    for node in &cluster.nodes {
        let held = Client::connect(node.port).run("CONFIG GET slowlog-max-len").text();
        assert_eq!(held, "[\"slowlog-max-len\", \"33\"]");
    }
    assert_eq!(root.run("CONFIG GET slowlog_max_len").text(), "[\"slowlog_max_len\", \"128\"]");
    assert_eq!(root.run("CONFIG SET slowlog_max_len 44").text(), "OK");
    assert_eq!(root.run("CONFIG GET slowlog_max_len").text(), "[\"slowlog_max_len\", \"44\"]");
    assert_eq!(root.run("CONFIG GET slowlog-max-len").text(), "[\"slowlog-max-len\", \"33\"]");
    let both = root.run("CONFIG SET slowlog_max_len 1 slowlog-max-len 1").text();
    assert!(both.contains("options of the proxy and of the nodes at once"), "{both}");
    assert_eq!(root.read_within(millis(20)), Got::Nothing);
}
