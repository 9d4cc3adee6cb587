//! Real clusters of redis-server 7 or valkey-server 9, and single servers, on loopback in a
//! temporary folder.
//!
//! Not here: what is done to a running cluster (`operate`).

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use super::client::Client;
use super::keys::{SLOTS, key_in};
use super::ports::free_port;
use super::process::{Folder, Process};
use super::reply::Reply;
use super::{seconds, wait_until};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flavour {
    Redis,
    Valkey,
}

impl Flavour {
    /// Where the program is: `RINGWAY_REDIS_SERVER`, `RINGWAY_VALKEY_SERVER`, or where
    /// `tests/run.sh` put it.
    pub fn program(self) -> Option<PathBuf> {
        let (variable, usual) = match self {
            Flavour::Redis => ("RINGWAY_REDIS_SERVER", PathBuf::from("/usr/bin/redis-server")),
            Flavour::Valkey => ("RINGWAY_VALKEY_SERVER", cache().join("valkey-server")),
        };
        let path = std::env::var_os(variable).map_or(usual, PathBuf::from);
        path.exists().then_some(path)
    }

    /// The flavours to test with: both, unless `RINGWAY_FLAVOURS` names one or valkey-server is not
    /// there.
    pub fn all() -> Vec<Flavour> {
        let wanted = std::env::var("RINGWAY_FLAVOURS").unwrap_or("redis,valkey".into());
        let named = [(Flavour::Redis, "redis"), (Flavour::Valkey, "valkey")];
        let chosen = named.into_iter().filter(|(_, name)| wanted.contains(name));
        chosen.map(|(flavour, _)| flavour).filter(|f| f.program().is_some()).collect()
    }
}

/// The git-ignored folder into which `tests/run.sh` installs.
pub fn cache() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/.cache")
}

pub struct Node {
    pub process: Process,
    /// Where it listens: 127.0.0.1, but for `restart_at`.
    pub host: Ipv4Addr,
    pub port: u16,
    pub id: String,
    folder: PathBuf,
    program: PathBuf,
    args: Vec<String>,
    password: Option<String>,
}

impl Node {
    fn start(flavour: Flavour, folder: &Path, extra: &[String], password: Option<&str>) -> Node {
        let port = free_port();
        let program = flavour.program().unwrap_or_else(|| {
            panic!("no {flavour:?} server program: run tests/run.sh, which installs it")
        });
        let folder = folder.join(port.to_string());
        std::fs::create_dir_all(&folder).expect("node folder");
        let mut args: Vec<String> = BASE_ARGS.iter().map(|arg| (*arg).to_owned()).collect();
        args.extend(["--port".into(), port.to_string()]);
        args.extend(["--dir".into(), folder.display().to_string()]);
        args.extend_from_slice(extra);
        let process = Process::start(&program, &args, &folder.join("log"));
        let (id, password) = (String::new(), password.map(str::to_owned));
        let host = Ipv4Addr::LOCALHOST;
        let node = Node { process, host, port, id, folder, program, args, password };
        node.wait_answering();
        node
    }

    /// Starts the process again after a kill, with the same port, folder and options.
    pub fn restart(&mut self) {
        self.restart_with(&[]);
        self.wait_answering();
    }

    /// The same with more options, and without waiting for it to answer.
    pub fn restart_with(&mut self, more: &[&str]) {
        self.process.kill();
        let args: Vec<&str> = self.args.iter().map(String::as_str).chain(more.to_vec()).collect();
        self.process = Process::start(&self.program, &args, &self.folder.join("log2"));
    }

    /// Starts it again with the same data at another port.
    pub fn restart_elsewhere(&mut self) {
        let (old, port) = (self.port.to_string(), free_port());
        self.replace_arg("--port", &old, &port.to_string());
        self.port = port;
        self.restart();
    }

    /// Starts it again with the same data at another address of loopback, which it tells its peers.
    pub fn restart_at(&mut self, host: Ipv4Addr) {
        let old = self.host.to_string();
        self.replace_arg("--bind", &old, &host.to_string());
        if !self.replace_arg("--cluster-announce-ip", &old, &host.to_string()) {
            self.args.extend(["--cluster-announce-ip".into(), host.to_string()]);
        }
        self.host = host;
        self.restart();
    }

    /// Options that it is started with from the next time on.
    pub fn add_args(&mut self, more: &[&str]) {
        self.args.extend(more.iter().map(|arg| (*arg).to_owned()));
    }

    fn replace_arg(&mut self, name: &str, old: &str, new: &str) -> bool {
        let place = self.args.windows(2).position(|pair| pair[0] == name && pair[1] == old);
        if let Some(at) = place {
            self.args[at + 1] = new.to_owned();
        }
        place.is_some()
    }

    fn wait_answering(&self) {
        wait_until(seconds(10), "a node to answer", || {
            self.try_client()
                .and_then(|mut client| client.try_call(&["PING"]))
                .is_ok_and(|reply| reply != Reply::Error(b"".into()))
        });
    }

    /// A connection to the node itself, past the proxy.
    #[track_caller]
    pub fn client(&self) -> Client {
        let client = self.try_client();
        let mut client =
            client.unwrap_or_else(|error| panic!("cannot connect to {}: {error}", self.address()));
        if let Some(password) = &self.password {
            client.call(&["AUTH", password]);
        }
        client
    }

    /// The same for a node that may not be there, without a login.
    pub fn try_client(&self) -> std::io::Result<Client> {
        Client::try_connect_at(self.host, self.port)
    }

    /// One command on a fresh connection to the node itself.
    #[track_caller]
    pub fn run(&self, line: &str) -> Reply {
        self.client().run(line)
    }

    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The value of `field:` in INFO.
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        let text = self.run(&format!("INFO {section}")).string();
        let prefix = format!("{field}:");
        text.lines().find_map(|line| line.strip_prefix(&prefix)).map(str::to_owned)
    }

    /// How often the node ran `command` (lower case, `cluster|slots` for subcommands).
    pub fn calls(&self, command: &str) -> u64 {
        let stat = self.info("commandstats", &format!("cmdstat_{command}")).unwrap_or_default();
        number_after(&stat, "calls=")
    }

    /// Errors of one kind (`MOVED`) that the node has answered.
    pub fn errors(&self, kind: &str) -> u64 {
        let stat = self.info("errorstats", &format!("errorstat_{kind}")).unwrap_or_default();
        number_after(&stat, "count=")
    }
}

fn number_after(text: &str, label: &str) -> u64 {
    let rest = text.split(label).nth(1).unwrap_or("0");
    rest.split(',').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

const BASE_ARGS: [&str; 14] = [
    "--bind",
    "127.0.0.1",
    "--protected-mode",
    "no",
    "--save",
    "",
    "--appendonly",
    "no",
    "--daemonize",
    "no",
    "--enable-debug-command",
    "yes",
    "--repl-diskless-sync-delay",
    "0",
];

/// What kind of cluster to start.
pub struct Shape {
    pub flavour: Flavour,
    pub primaries: usize,
    pub replicas_each: usize,
    /// Slots from 0 that get an owner at start.
    pub slots: u16,
    /// More options for each node.
    pub args: Vec<String>,
    /// What the nodes want from those who ask them directly (their `requirepass`).
    pub password: Option<String>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            flavour: Flavour::Redis,
            primaries: 3,
            replicas_each: 0,
            slots: SLOTS,
            args: Vec::new(),
            password: None,
        }
    }
}

/// Primaries come first in `nodes`, in the order of their slots; then the replicas of the first, of
/// the second, …
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub shape: Shape,
    folder: Folder,
}

impl Cluster {
    pub fn start(shape: Shape) -> Cluster {
        let folder = Folder::new("cluster");
        let count = shape.primaries * (1 + shape.replicas_each);
        let mut cluster = Cluster { nodes: Vec::new(), shape, folder };
        for _ in 0..count {
            cluster.start_node();
        }
        for i in 0..cluster.shape.primaries {
            if let Some((first, last)) = cluster.range(i) {
                let line = format!("CLUSTER ADDSLOTSRANGE {first} {last}");
                assert_eq!(cluster.nodes[i].run(&line).text(), "OK", "{line}");
            }
            let epoch = format!("CLUSTER SET-CONFIG-EPOCH {}", i + 1);
            cluster.nodes[i].run(&epoch);
        }
        cluster.introduce(1..count);
        for i in cluster.shape.primaries..count {
            let primary = (i - cluster.shape.primaries) / cluster.shape.replicas_each;
            cluster.replicate(i, primary);
        }
        cluster.wait_whole();
        cluster
    }

    /// Three primaries without replicas.
    pub fn three(flavour: Flavour) -> Cluster {
        Self::start(Shape { flavour, ..Shape::default() })
    }

    /// Three primaries with one replica each.
    pub fn three_and_three(flavour: Flavour) -> Cluster {
        Self::start(Shape { flavour, replicas_each: 1, ..Shape::default() })
    }

    fn start_node(&mut self) {
        // Where nobody takes over it is no use to take a node soon for dead that only has no time.
        let timeout = if self.shape.replicas_each == 0 { "15000" } else { "2000" };
        let mut args: Vec<String> =
            ["--cluster-enabled", "yes", "--cluster-node-timeout", timeout].map(Into::into).into();
        args.extend_from_slice(&self.shape.args);
        let mut node = Node::start(
            self.shape.flavour,
            self.folder.path(),
            &args,
            self.shape.password.as_deref(),
        );
        node.id = node.run("CLUSTER MYID").string();
        self.nodes.push(node);
    }

    /// Starts one more empty node, and waits until all know it. Returns its index.
    pub fn add_node(&mut self) -> usize {
        self.start_node();
        let index = self.nodes.len() - 1;
        self.introduce(index..index + 1);
        wait_until(seconds(20), "the new node to serve", || is_whole(&self.nodes[index]));
        index
    }

    fn introduce(&self, indexes: std::ops::Range<usize>) {
        let mut first = self.nodes[0].client();
        for node in &self.nodes[indexes] {
            let line = format!("CLUSTER MEET 127.0.0.1 {}", node.port);
            assert_eq!(first.run(&line).text(), "OK", "{line}");
        }
        let count = self.nodes.len().to_string();
        wait_until(seconds(20), "all nodes to know each other", || {
            self.nodes.iter().all(|node| {
                let text = node.run("CLUSTER NODES").string();
                let met = text.lines().filter(|line| !line.contains("handshake")).count();
                met.to_string() == count
            })
        });
    }

    fn replicate(&self, replica: usize, primary: usize) {
        let line = format!("CLUSTER REPLICATE {}", self.nodes[primary].id);
        wait_until(seconds(10), &line, || self.nodes[replica].run(&line).text() == "OK");
    }

    /// Waits until every node says `cluster_state:ok` and every replica is in step.
    pub fn wait_whole(&self) {
        if self.shape.slots < SLOTS {
            return;
        }
        wait_until(seconds(30), "cluster_state:ok everywhere", || {
            self.nodes.iter().all(|node| is_whole(node) && self.knows_replicas(node))
        });
    }

    /// A primary that has not heard of its replica yet ignores a failover that this one asks for.
    fn knows_replicas(&self, node: &Node) -> bool {
        let ranges = node.run("CLUSTER SLOTS").items();
        let wanted = 3 + self.shape.replicas_each;
        !ranges.is_empty() && ranges.iter().all(|range| range.items().len() >= wanted)
    }

    /// First and last slot given to primary `i` at start.
    pub fn range(&self, i: usize) -> Option<(u16, u16)> {
        let (count, slots) = (self.shape.primaries as u32, u32::from(SLOTS));
        let first = (slots * i as u32 / count) as u16;
        let last = (slots * (i as u32 + 1) / count - 1) as u16;
        (first < self.shape.slots).then(|| (first, last.min(self.shape.slots - 1)))
    }

    /// A key beginning with `name` that primary `i` owned at start.
    pub fn key_on(&self, i: usize, name: &str) -> String {
        let (first, last) = self.range(i).expect("a primary with slots");
        key_in(name, first..=last)
    }

    pub fn primaries(&self) -> &[Node] {
        &self.nodes[..self.shape.primaries]
    }

    /// `calls` of a command over all nodes.
    pub fn calls(&self, command: &str) -> u64 {
        self.nodes.iter().map(|node| node.calls(command)).sum()
    }

    /// `errors` of a kind over all nodes.
    pub fn errors(&self, kind: &str) -> u64 {
        self.nodes.iter().map(|node| node.errors(kind)).sum()
    }

    pub fn flush(&self) {
        for node in self.primaries() {
            node.run("FLUSHALL");
            node.run("SCRIPT FLUSH");
        }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

fn is_whole(node: &Node) -> bool {
    let mut client = node.client();
    let info = client.run("CLUSTER INFO").string();
    let replication = client.run("INFO replication").string();
    let in_step =
        replication.contains("role:master") || replication.contains("master_link_status:up");
    info.contains("cluster_state:ok") && in_step
}

/// One plain server, to compare with.
pub struct Single {
    pub node: Node,
    _folder: Folder,
}

impl Single {
    pub fn start(flavour: Flavour) -> Single {
        Self::start_with(flavour, &[])
    }

    pub fn start_with(flavour: Flavour, args: &[&str]) -> Single {
        let folder = Folder::new("single");
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Single { node: Node::start(flavour, folder.path(), &args, None), _folder: folder }
    }
}
