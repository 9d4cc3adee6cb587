//! The real `proxy` room between clients and three nodes that answer at once, in one thread, without a ring.
//!
//! Used by `allocations` and by the micro-benchmarks in `bench/micro`. Not here: what is counted.

#[path = "identity.rs"]
mod identity;

use std::sync::Arc;

use identity::identity;
use ringway::cluster::{Endpoint, Node, Role, Topology};
use ringway::proxy::{Action, Conn, Now, Proxy, Settings, Socket};

/// Clients that all ask the same, three nodes. A node's answer to any request is `reply`, whole.
pub struct Rig {
    proxy: Proxy,
    clients: Vec<u32>,
    actions: Vec<Action>,
    /// Backends whose bytes came this turn, and how many requests they hold.
    asked: Vec<(u32, usize)>,
    answers: Vec<u8>,
    /// Bytes that the clients got in the last round.
    pub received: usize,
    now: Now,
}

impl Rig {
    pub fn new(clients: u32) -> Rig {
        let mut proxy = Proxy::new(Settings::default(), Arc::new(identity()), [1, 2, 3, 4], 1, 1);
        let now = Now { ms: 1, unix_us: 1 };
        proxy.handle_topology(Arc::new(three_nodes()), now);
        let address = ([127, 0, 0, 1], 1000).into();
        let accept = |index| {
            let socket = Socket { index, generation: 0 };
            proxy.handle_accepted(socket, address, address, now).unwrap()
        };
        let clients = (0..clients).map(accept).collect();
        let (actions, asked, answers) = (Vec::new(), Vec::new(), Vec::new());
        Rig { proxy, clients, actions, asked, answers, received: 0, now }
    }

    /// Each client sends `request`; everything goes on until all have all replies.
    pub fn round(&mut self, request: &[u8], reply: &[u8]) {
        self.now.ms += 1;
        self.received = 0;
        for &client in &self.clients {
            self.proxy.handle_received(Conn::Client(client), request, self.now);
        }
        for _ in 0..20 {
            if self.turn(reply) {
                break;
            }
        }
    }

    /// Whether nothing is left to do.
    fn turn(&mut self, reply: &[u8]) -> bool {
        self.proxy.handle_time(self.now);
        let mut actions = std::mem::take(&mut self.actions);
        self.proxy.flush(&mut actions);
        let idle = actions.is_empty();
        // As the reactor does for the request that is timed.
        if self.proxy.wants_clock() {
            self.proxy.handle_turn_end(self.now.unix_us);
        }
        for action in actions.drain(..) {
            self.act(action);
        }
        self.actions = actions;
        while let Some((backend, count)) = self.asked.pop() {
            self.answers.clear();
            for _ in 0..count {
                self.answers.extend_from_slice(reply);
            }
            self.proxy.handle_received(Conn::Backend(backend), &self.answers, self.now);
        }
        idle
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { conn, bytes, .. } => {
                match conn {
                    Conn::Client(_) => self.received += bytes.len(),
                    // A request begins with `*`, which neither keys nor values here hold.
                    Conn::Backend(backend) if bytes.starts_with(b"*1\r\n$4\r\nPING") => {
                        self.proxy.handle_received(Conn::Backend(backend), b"+PONG\r\n", self.now);
                    }
                    Conn::Backend(backend) => {
                        let count = bytes.iter().filter(|&&byte| byte == b'*').count();
                        self.asked.push((backend, count));
                    }
                }
                self.proxy.handle_sent(conn, bytes, true, self.now);
            }
            Action::Connect { backend, .. } => {
                let socket = Socket { index: 1_000_000 + backend, generation: 0 };
                self.proxy.handle_connecting(backend, socket);
                self.proxy.handle_connected(backend, true, self.now);
            }
            // All of a request's bytes are given at once, so there is nothing to stop.
            Action::StopReading { .. } | Action::StartReading { .. } => (),
            other => panic!("not expected here: {other:?}"),
        }
    }
}

fn three_nodes() -> Topology {
    let mut topology = Topology::empty();
    for index in 0..3u16 {
        topology.nodes.push(Node {
            id: format!("{index:040}").into(),
            endpoint: Endpoint { host: "127.0.0.1".into(), port: 7000 + index },
            address: Some(([127, 0, 0, 1], 7000 + index).into()),
            role: Role::Primary,
            shard: index,
            healthy: true,
            epoch: u64::from(index) + 1,
        });
    }
    for slot in 0..16384usize {
        topology.owners[slot] = (slot % 3) as u16;
    }
    topology.version = 1;
    topology
}

/// Appends a request.
pub fn command(words: &[&str], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
}
