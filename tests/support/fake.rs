//! A node of straw: speaks RESP, answers the questions of a proxy with a scripted map, and
//! everything else by a function of the test.
//!
//! Not here: data. A fake node stores nothing.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::ports::free_port;

/// What the node does with one request.
pub enum Answer {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Nothing at all: the request is swallowed.
    Silence,
    /// These bytes, then the connection is closed.
    Close(Vec<u8>),
    /// As a healthy node with an empty data set and the map of `set_slots` would.
    Usual,
}

pub fn say(text: &str) -> Answer {
    Answer::Bytes(format!("{text}\r\n").into_bytes())
}

type Handler = Box<dyn Fn(&Request) -> Answer + Send + Sync>;

pub struct Request {
    /// First word in upper case.
    pub name: String,
    pub args: Vec<Vec<u8>>,
    /// Running number of the connection at this node.
    pub connection: u64,
    /// The request before it on this connection was ASKING.
    pub asking: bool,
}

impl Request {
    pub fn word(&self, i: usize) -> String {
        String::from_utf8_lossy(self.args.get(i).map_or(b"", Vec::as_slice)).into_owned()
    }
}

struct Shared {
    handler: Mutex<Handler>,
    /// Raw replies to CLUSTER subcommands, by name in upper case.
    cluster: Mutex<HashMap<String, Vec<u8>>>,
    greeting: Mutex<Vec<u8>>,
    seen: Mutex<HashMap<String, u64>>,
    connections: AtomicU64,
    open: AtomicU64,
    ended: AtomicBool,
}

pub struct Fake {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Fake {
    pub fn start() -> Fake {
        Self::start_on(Ipv4Addr::LOCALHOST.into())
    }

    pub fn start_ipv6() -> Fake {
        Self::start_on(Ipv6Addr::LOCALHOST.into())
    }

    fn start_on(ip: IpAddr) -> Fake {
        let listener = TcpListener::bind((ip, free_port())).expect("fake node's port");
        let address = listener.local_addr().expect("fake node's address");
        let shared = Arc::new(Shared {
            handler: Mutex::new(Box::new(|_| Answer::Usual)),
            cluster: Mutex::default(),
            greeting: Mutex::default(),
            seen: Mutex::default(),
            connections: AtomicU64::new(0),
            open: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let fake = Fake { address, shared: Arc::clone(&shared) };
        std::thread::spawn(move || accept(&listener, &shared));
        fake
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How requests are answered from now on.
    pub fn answer(&self, handler: impl Fn(&Request) -> Answer + Send + Sync + 'static) {
        *self.shared.handler.lock().unwrap() = Box::new(handler);
    }

    /// Raw bytes written to each new connection before anything is read.
    pub fn greet(&self, bytes: &[u8]) {
        *self.shared.greeting.lock().unwrap() = bytes.to_vec();
    }

    /// The raw reply to CLUSTER `subcommand`.
    pub fn set_cluster(&self, subcommand: &str, reply: Vec<u8>) {
        self.shared.cluster.lock().unwrap().insert(subcommand.to_owned(), reply);
    }

    /// The map in each form: SLOTS and SHARDS and NODES.
    pub fn set_map(&self, map: &Map) {
        self.set_cluster("SLOTS", map.slots());
        self.set_cluster("SHARDS", map.shards());
        self.set_cluster("NODES", map.nodes());
    }

    /// How often a command came, by first word in upper case (`CLUSTER SLOTS` for the subcommands
    /// of CLUSTER).
    pub fn seen(&self, name: &str) -> u64 {
        self.shared.seen.lock().unwrap().get(name).copied().unwrap_or(0)
    }

    /// Connections accepted so far, and those open now.
    pub fn connections(&self) -> (u64, u64) {
        (self.shared.connections.load(Ordering::Relaxed), self.shared.open.load(Ordering::Relaxed))
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.ended.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let number = shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            shared.open.fetch_add(1, Ordering::Relaxed);
            serve(stream, number, &shared);
            shared.open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn serve(mut stream: TcpStream, connection: u64, shared: &Shared) {
    let _ = stream.set_nodelay(true);
    let greeting = shared.greeting.lock().unwrap().clone();
    if stream.write_all(&greeting).is_err() {
        return;
    }
    let (mut buffer, mut chunk, mut asking, mut resp3) = (Vec::new(), [0; 16 * 1024], false, false);
    loop {
        while let Some((args, length)) = parse(&buffer) {
            buffer.drain(..length);
            let name = String::from_utf8_lossy(&args[0]).to_uppercase();
            let request = Request { name, args, connection, asking };
            asking = request.name == "ASKING";
            resp3 |= request.name == "HELLO" && request.word(1) == "3";
            if !respond(&mut stream, &request, shared, resp3) {
                return;
            }
        }
        match stream.read(&mut chunk) {
            Ok(n) if n > 0 && !shared.ended.load(Ordering::Relaxed) => {
                buffer.extend_from_slice(&chunk[..n]);
            }
            _ => return,
        }
    }
}

/// False: the connection ends.
fn respond(stream: &mut TcpStream, request: &Request, shared: &Shared, resp3: bool) -> bool {
    let mut counted = request.name.clone();
    if counted == "CLUSTER" {
        counted = format!("CLUSTER {}", request.word(1).to_uppercase());
    }
    *shared.seen.lock().unwrap().entry(counted).or_default() += 1;
    let answer = (shared.handler.lock().unwrap())(request);
    let (bytes, goes_on) = match answer {
        Answer::Bytes(bytes) => (bytes, true),
        Answer::Silence => (Vec::new(), true),
        Answer::Close(bytes) => (bytes, false),
        Answer::Usual => (usual(request, shared, resp3), true),
    };
    stream.write_all(&bytes).is_ok() && goes_on
}

fn usual(request: &Request, shared: &Shared, resp3: bool) -> Vec<u8> {
    let bulk = |bytes: &[u8]| {
        let mut out = format!("${}\r\n", bytes.len()).into_bytes();
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
        out
    };
    match request.name.as_str() {
        "PING" if request.args.len() > 1 => bulk(&request.args[1]),
        "PING" => b"+PONG\r\n".to_vec(),
        "ECHO" => bulk(&request.args[1]),
        "HELLO" => hello(resp3),
        "INFO" => bulk(b"# Server\r\nredis_version:7.0.15\r\nloading:0\r\nrole:master\r\ncluster_enabled:1\r\n"),
        "COMMAND" => b"*0\r\n".to_vec(),
        "GET" if resp3 => b"_\r\n".to_vec(),
        "GET" => b"$-1\r\n".to_vec(),
        "EXISTS" | "DEL" => b":0\r\n".to_vec(),
        "CLUSTER" => cluster(&request.word(1).to_uppercase(), shared, &bulk),
        _ => b"+OK\r\n".to_vec(),
    }
}

fn hello(resp3: bool) -> Vec<u8> {
    let head = if resp3 { "%7\r\n" } else { "*14\r\n" };
    let fields = "$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n\
                  $2\r\nid\r\n:5\r\n$4\r\nmode\r\n$7\r\ncluster\r\n$4\r\nrole\r\n$6\r\nmaster\r\n\
                  $7\r\nmodules\r\n*0\r\n";
    format!("{head}{fields}").into_bytes()
}

fn cluster(subcommand: &str, shared: &Shared, bulk: &dyn Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    if let Some(reply) = shared.cluster.lock().unwrap().get(subcommand) {
        return reply.clone();
    }
    match subcommand {
        "INFO" => {
            bulk(b"cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_current_epoch:1\r\n")
        }
        "MYID" => bulk(&[b'0'; 40]),
        _ => format!(
            "-ERR unknown subcommand '{}'. Try CLUSTER HELP.\r\n",
            subcommand.to_lowercase()
        )
        .into_bytes(),
    }
}

/// Array requests only: that is all a proxy sends.
fn parse(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let line = |at: usize| {
        let end = bytes.get(at..)?.windows(2).position(|pair| pair == b"\r\n")? + at;
        let text = std::str::from_utf8(bytes.get(at + 1..end)?).ok()?;
        Some((text.parse::<usize>().ok()?, end + 2))
    };
    let (count, mut at) = line(0)?;
    let mut args = Vec::new();
    for _ in 0..count {
        let (length, start) = line(at)?;
        args.push(bytes.get(start..start + length)?.to_vec());
        at = start + length + 2;
    }
    (bytes.len() >= at && !args.is_empty()).then_some((args, at))
}

/// A cluster as a fake node tells it: ranges with their primary.
#[derive(Clone, Default)]
pub struct Map {
    pub ranges: Vec<Range>,
}

#[derive(Clone)]
pub struct Range {
    pub first: u16,
    pub last: u16,
    /// As it stands in the reply: `None` is a null.
    pub host: Option<String>,
    pub port: u16,
    pub id: String,
    /// More raw elements after the id in CLUSTER SLOTS (each a whole RESP value).
    pub extra: Vec<Vec<u8>>,
}

impl Map {
    /// All slots at one address.
    pub fn all_at(host: Option<&str>, port: u16) -> Map {
        Map::default().range(0, 16_383, host, port)
    }

    pub fn range(mut self, first: u16, last: u16, host: Option<&str>, port: u16) -> Map {
        let id = format!("{port:0>40}");
        let host = host.map(str::to_owned);
        self.ranges.push(Range { first, last, host, port, id, extra: Vec::new() });
        self
    }

    pub fn slots(&self) -> Vec<u8> {
        let mut out = format!("*{}\r\n", self.ranges.len()).into_bytes();
        for range in &self.ranges {
            out.extend(format!("*3\r\n:{}\r\n:{}\r\n", range.first, range.last).into_bytes());
            out.extend(format!("*{}\r\n", 3 + range.extra.len()).into_bytes());
            out.extend(bulk_or_null(range.host.as_deref()));
            out.extend(format!(":{}\r\n$40\r\n{}\r\n", range.port, range.id).into_bytes());
            out.extend(range.extra.concat());
        }
        out
    }

    pub fn shards(&self) -> Vec<u8> {
        let mut out = format!("*{}\r\n", self.ranges.len()).into_bytes();
        for range in &self.ranges {
            out.extend(b"*4\r\n$5\r\nslots\r\n");
            out.extend(format!("*2\r\n:{}\r\n:{}\r\n", range.first, range.last).into_bytes());
            out.extend(b"$5\r\nnodes\r\n*1\r\n*14\r\n");
            out.extend(format!("$2\r\nid\r\n$40\r\n{}\r\n", range.id).into_bytes());
            out.extend(format!("$4\r\nport\r\n:{}\r\n", range.port).into_bytes());
            out.extend(b"$2\r\nip\r\n");
            out.extend(bulk_or_null(range.host.as_deref()));
            out.extend(b"$8\r\nendpoint\r\n");
            out.extend(bulk_or_null(range.host.as_deref()));
            out.extend(b"$4\r\nrole\r\n$6\r\nmaster\r\n$18\r\nreplication-offset\r\n:0\r\n");
            out.extend(b"$6\r\nhealth\r\n$6\r\nonline\r\n");
        }
        out
    }

    pub fn nodes(&self) -> Vec<u8> {
        let mut text = String::new();
        for (i, range) in self.ranges.iter().enumerate() {
            let (host, port, id) = (range.host.as_deref().unwrap_or(""), range.port, &range.id);
            let flags = if i == 0 { "myself,master" } else { "master" };
            let (bus, epoch) = (u32::from(port) + 10_000, i + 1);
            text += &format!(
                "{id} {host}:{port}@{bus} {flags} - 0 0 {epoch} connected {}-{}\n",
                range.first, range.last
            );
        }
        bulk_or_null(Some(&text))
    }
}

fn bulk_or_null(text: Option<&str>) -> Vec<u8> {
    match text {
        Some(text) => format!("${}\r\n{text}\r\n", text.len()).into_bytes(),
        None => b"$-1\r\n".to_vec(),
    }
}
