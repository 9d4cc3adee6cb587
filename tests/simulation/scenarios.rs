//! Single courses of events, driven by hand: each was found by a seed, or by thought, once and is kept
//! by name.
//!
//! Not here: chance.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringway::cluster::{Endpoint, Node, Role, SLOTS, Topology, slot_of};
use ringway::proxy::{Action, Conn, Memory, Now, Proxy, Report, Settings, Socket};

use crate::identity::identity;
use crate::nodes::bulk;

/// A proxy with two nodes, each with half of the slots, and its driver.
struct Rig {
    proxy: Proxy,
    now_ms: u64,
    /// What was sent and not looked at yet.
    sent: Vec<(Conn, String)>,
    /// Sends that have not come back.
    sending: Vec<(Conn, Vec<u8>)>,
    /// Attempts to connect that have not come to an end.
    connecting: Vec<(u32, SocketAddr)>,
    addresses: Vec<(u32, SocketAddr)>,
    closed: Vec<Conn>,
    /// Clients for the next process.
    offered: Vec<(u32, Socket)>,
    /// Slots that the other reactors are to look for elsewhere.
    moved: Vec<u16>,
    /// Sockets that are not to be read.
    unread: Vec<Socket>,
    sockets: u32,
    /// Sends come back in the next turn.
    prompt: bool,
}

fn node(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 7000))
}

/// A key whose slot is the first node's (the second's if not `first`).
fn key(name: &str, first: bool) -> String {
    let in_half = |tag: &u32| (slot_of(tag.to_string().as_bytes()) < 8192) == first;
    let tag = (0..).find(in_half).unwrap();
    format!("{{{tag}}}{name}")
}

fn map(nodes: u8) -> Arc<Topology> {
    let mut topology = Topology::empty();
    for number in 1..=nodes {
        topology.nodes.push(Node {
            id: format!("{number:040}").into(),
            endpoint: Endpoint { host: format!("10.0.0.{number}").into(), port: 7000 },
            address: Some(node(number)),
            role: Role::Primary,
            shard: u16::from(number),
            healthy: true,
            epoch: u64::from(number),
        });
    }
    for slot in 0..SLOTS {
        topology.owners[slot] = u16::from(slot >= 8192);
    }
    Arc::new(topology)
}

/// A request from words between blanks.
fn words(line: &str) -> Vec<u8> {
    let words: Vec<&str> = line.split(' ').collect();
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    words.iter().for_each(|word| out.extend(bulk(word.as_bytes())));
    out
}

impl Rig {
    fn new(settings: Settings) -> Rig {
        let proxy = Proxy::new(settings, Arc::new(identity()), [1, 2, 3, 4], 1, 1);
        let mut rig = Rig {
            proxy,
            now_ms: 1,
            sent: Vec::new(),
            sending: Vec::new(),
            connecting: Vec::new(),
            addresses: Vec::new(),
            closed: Vec::new(),
            offered: Vec::new(),
            moved: Vec::new(),
            unread: Vec::new(),
            sockets: 0,
            prompt: true,
        };
        rig.proxy.handle_topology(map(2), rig.now());
        rig
    }

    /// Every client may do all.
    fn of_admin(settings: Settings) -> Rig {
        let mut rig = Rig::new(settings.clone());
        let admin_user = Some("default".into());
        let admin = ringway::proxy::local::Identity { admin_user, ..identity() };
        rig.proxy = Proxy::new(settings, Arc::new(admin), [1, 2, 3, 4], 1, 1);
        rig.proxy.handle_topology(map(2), rig.now());
        rig
    }

    fn now(&self) -> Now {
        Now { ms: self.now_ms, unix_us: 0 }
    }

    fn socket(&mut self) -> Socket {
        self.sockets += 1;
        Socket { index: self.sockets, generation: 1 }
    }

    fn client(&mut self) -> u32 {
        let socket = self.socket();
        let (peer, now) = (SocketAddr::from(([10, 9, 0, 1], 1)), self.now());
        self.proxy.handle_accepted(socket, peer, peer, now).unwrap()
    }

    /// The end of a turn, and what the driver does of itself.
    fn turn(&mut self) {
        let now = self.now();
        if self.prompt {
            self.sends_come_back();
        }
        self.proxy.handle_time(now);
        let mut actions = Vec::new();
        self.proxy.flush(&mut actions);
        for action in actions {
            match action {
                Action::Send { conn, bytes, .. } => {
                    let text = String::from_utf8_lossy(&bytes).replace("\r\n", " ");
                    self.sent.push((conn, text));
                    self.sending.push((conn, bytes));
                }
                Action::Connect { backend, address } => {
                    let socket = self.socket();
                    self.proxy.handle_connecting(backend, socket);
                    self.connecting.push((backend, address));
                    self.addresses.retain(|of| of.0 != backend);
                    self.addresses.push((backend, address));
                }
                Action::Close { conn, .. } => {
                    self.closed.push(conn);
                    self.connecting.retain(|of| Conn::Backend(of.0) != conn);
                    self.sending.retain(|of| of.0 != conn);
                    self.proxy.handle_gone(conn, now);
                }
                Action::Report(Report::Moved { slot, .. }) => self.moved.push(slot),
                Action::StopReading { socket } => self.unread.push(socket),
                Action::StartReading { socket } => self.unread.retain(|of| *of != socket),
                Action::Offer { client, socket } => self.offered.push((client, socket)),
                _ => (),
            }
        }
    }

    /// Nothing happens: the driver sleeps for as long as it may.
    fn sleep(&mut self, ms: u64) {
        let until = self.now_ms + ms;
        while self.now_ms < until {
            self.turn();
            self.now_ms = self.proxy.plan().clamp(self.now_ms + 1, self.now_ms + 500);
        }
        self.turn();
    }

    /// The process holds so many percent of what it may.
    fn memory(&mut self, percent: u64) {
        let memory = Memory { held: percent << 20, limit: 100 << 20, sharers: 1 };
        self.now_ms += 100;
        let now = self.now();
        self.proxy.handle_memory(memory, now);
        self.turn();
    }

    fn sends_come_back(&mut self) {
        let now = self.now();
        for (conn, bytes) in std::mem::take(&mut self.sending) {
            self.proxy.handle_sent(conn, bytes, true, now);
        }
    }

    /// A few turns, one millisecond apart.
    fn settle(&mut self) {
        for _ in 0..4 {
            self.turn();
            self.now_ms += 1;
        }
    }

    /// Time passes, in turns of 10 ms.
    fn pass(&mut self, ms: u64) {
        let until = self.now_ms + ms;
        while self.now_ms < until {
            self.turn();
            self.now_ms += 10;
        }
    }

    fn ask(&mut self, client: u32, line: &str) {
        let now = self.now();
        self.proxy.handle_received(Conn::Client(client), &words(line), now);
        self.settle();
    }

    fn answer(&mut self, backend: u32, text: &str) {
        let (bytes, now) = (text.replace(' ', "\r\n").replace('_', " "), self.now());
        self.proxy.handle_received(Conn::Backend(backend), bytes.as_bytes(), now);
        self.settle();
    }

    /// Whoever connects succeeds and is let in, or is refused.
    fn let_in(&mut self, ok: bool) {
        self.settle();
        for (backend, _) in std::mem::take(&mut self.connecting) {
            let now = self.now();
            self.proxy.handle_connected(backend, ok, now);
            self.settle();
            // Of a fenced backend it is asked whether it answers ECHO at all.
            let fenced = |of: &&(Conn, String)| {
                of.0 == Conn::Backend(backend) && of.1.ends_with("ECHO $5 fence ")
            };
            if ok && self.sent.iter().rfind(fenced).is_some() {
                self.answer(backend, "+PONG $5 fence ");
            } else if ok {
                self.answer(backend, "+PONG ");
            }
        }
    }

    /// What was last begun to be connected to a node.
    fn backend_of(&self, number: u8) -> u32 {
        self.addresses.iter().rev().find(|of| of.1 == node(number)).expect("a connection").0
    }

    /// What was sent to somebody since this was last asked, blanks for line ends.
    fn told(&mut self, conn: Conn) -> String {
        let (told, rest) = std::mem::take(&mut self.sent).into_iter().partition(|of| of.0 == conn);
        self.sent = rest;
        let told: Vec<(Conn, String)> = told;
        told.into_iter().map(|of| of.1).collect()
    }

    /// The number that the fence waits for last, as its answer.
    fn nonce(told: &str) -> String {
        let nonce = told.trim_end().rsplit(' ').next().unwrap();
        format!("$32 {nonce} ")
    }
}

#[test]
fn client_that_shuts_its_side_is_answered_what_was_held_back() {
    let mut rig = Rig::new(Settings { client_requests_max: 2, ..Settings::default() });
    let client = rig.client();
    let line: Vec<u8> =
        (0..4).flat_map(|n| words(&format!("INCR {}", key(&n.to_string(), true)))).collect();
    rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
    rig.proxy.handle_end(Conn::Client(client), false, rig.now());
    rig.let_in(true);
    let backend = rig.backend_of(1);
    rig.answer(backend, ":1 :2 ");
    rig.answer(backend, ":3 :4 ");
    assert_eq!(rig.told(Conn::Client(client)), ":1 :2 :3 :4 ");
    rig.settle();
    assert!(rig.closed.contains(&Conn::Client(client)));
}

#[test]
fn refresh_that_began_before_does_not_answer_for_a_redirects_target() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let key = key("k", true);
    rig.ask(client, &format!("EVAL return 1 {key}"));
    rig.let_in(true);
    let fence = rig.backend_of(1);
    let nonce = Rig::nonce(&rig.told(Conn::Backend(fence)));
    let slot = slot_of(key.as_bytes());
    rig.answer(fence, &format!("-MOVED_{slot}_10.0.0.3:7000 {nonce}"));
    rig.proxy.handle_refreshed(rig.now());
    rig.settle();
    assert_eq!(rig.told(Conn::Client(client)), "", "it is not known yet whether it is a node");
    rig.proxy.handle_topology(map(3), rig.now());
    rig.let_in(true);
    let other = rig.backend_of(3);
    let nonce = Rig::nonce(&rig.told(Conn::Backend(other)));
    rig.answer(other, &format!(":7 {nonce}"));
    assert_eq!(rig.told(Conn::Client(client)), ":7 ");
}

#[test]
fn redirect_out_of_the_map_is_shown_to_a_script_only_when_nobody_knows_its_target() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let key = key("k", true);
    let slot = slot_of(key.as_bytes());
    rig.ask(client, &format!("EVAL x 1 {key}"));
    rig.let_in(true);
    let fence = rig.backend_of(1);
    let nonce = Rig::nonce(&rig.told(Conn::Backend(fence)));
    rig.answer(fence, &format!("-MOVED_{slot}_66.6.6.6:6 {nonce}"));
    let place = Endpoint { host: "66.6.6.6".into(), port: 6 };
    rig.proxy.handle_confirmed(&place, None, rig.now());
    rig.settle();
    assert_eq!(rig.told(Conn::Client(client)), format!("-MOVED {slot} 66.6.6.6:6 "));
    assert!(rig.connecting.is_empty());
}

/// Else whoever may run scripts could send everybody's requests for a slot astray, and end the
/// subscriptions to its channels for a moment.
#[test]
fn redirect_that_a_script_made_up_leads_nobody_but_its_own_request() {
    let mut rig = Rig::new(Settings::default());
    let (client, other, key) = (rig.client(), rig.client(), key("k", true));
    let slot = slot_of(key.as_bytes());
    rig.ask(client, &format!("EVAL x 1 {key}"));
    rig.let_in(true);
    let first = rig.backend_of(1);
    let nonce = Rig::nonce(&rig.told(Conn::Backend(first)));
    rig.answer(first, &format!("-MOVED_{slot}_10.0.0.2:7000 {nonce}"));
    rig.let_in(true);
    let second = rig.backend_of(2);
    let told = rig.told(Conn::Backend(second));
    assert!(told.contains(&format!("EVAL $1 x $1 1 ${} {key}", key.len())), "{told}");
    assert!(!told.contains("ASKING"), "{told}");
    rig.ask(other, &format!("GET {key}"));
    rig.let_in(true);
    assert_ne!(rig.backend_of(1), first);
    assert!(rig.told(Conn::Backend(rig.backend_of(1))).contains("GET"), "it went astray");
    rig.answer(rig.backend_of(1), "$1 v ");
    assert_eq!(rig.told(Conn::Client(other)), "$1 v ");
    // The node's own word for once: back.
    rig.answer(second, &format!("-MOVED_{slot}_10.0.0.1:7000 {}", Rig::nonce(&told)));
    let nonce = Rig::nonce(&rig.told(Conn::Backend(first)));
    rig.answer(first, &format!(":7 {nonce}"));
    assert_eq!(rig.told(Conn::Client(client)), ":7 ");
    assert_eq!(rig.moved, [0; 0]);
}

#[test]
fn plain_command_is_never_shown_a_redirect() {
    let mut rig = Rig::new(Settings { request_timeout_ms: 300, ..Settings::default() });
    let client = rig.client();
    let key = key("k", true);
    rig.ask(client, &format!("SET {key} v"));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    let slot = slot_of(key.as_bytes());
    rig.answer(backend, &format!("-MOVED_{slot}_10.0.0.3:7000 "));
    rig.pass(1_000);
    let told = rig.told(Conn::Client(client));
    assert!(told.starts_with("-ERR redirect to a node that is not in the cluster"), "{told}");
}

#[test]
fn transaction_with_a_script_is_never_shown_a_redirect_either() {
    let mut rig = Rig::new(Settings { request_timeout_ms: 300, ..Settings::default() });
    let client = rig.client();
    let key = key("k", true);
    let slot = slot_of(key.as_bytes());
    rig.ask(client, "MULTI");
    rig.ask(client, &format!("EVAL x 1 {key}"));
    rig.told(Conn::Client(client));
    rig.ask(client, "EXEC");
    rig.let_in(true);
    let fence = rig.backend_of(1);
    let nonce = Rig::nonce(&rig.told(Conn::Backend(fence)));
    let moved = format!("-MOVED_{slot}_66.6.6.6:6");
    rig.answer(fence, &format!("+OK {moved} -EXECABORT_x {nonce}"));
    rig.pass(1_000);
    let told = rig.told(Conn::Client(client));
    assert!(told.starts_with("-ERR redirect to a node that is not in the cluster"), "{told}");
}

#[test]
fn transaction_with_a_script_is_asked_again_when_its_node_was_loading() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, "MULTI");
    rig.ask(client, &format!("EVAL x 1 {}", key("k", true)));
    rig.told(Conn::Client(client));
    rig.ask(client, "EXEC");
    rig.let_in(true);
    let fence = rig.backend_of(1);
    let nonce = Rig::nonce(&rig.told(Conn::Backend(fence)));
    rig.answer(fence, &format!("+OK -LOADING_x -EXECABORT_x {nonce}"));
    rig.pass(100);
    let nonce = Rig::nonce(&rig.told(Conn::Backend(fence)));
    rig.answer(fence, &format!("+OK +QUEUED *1 :7 {nonce}"));
    assert_eq!(rig.told(Conn::Client(client)), "*1 :7 ");
}

#[test]
fn redirect_by_an_announced_name_is_followed_at_once_when_it_was_confirmed_before() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let key = key("k", true);
    let slot = slot_of(key.as_bytes());
    let announced = Endpoint { host: "outside".into(), port: 7002 };
    rig.ask(client, &format!("GET {key}"));
    rig.let_in(true);
    let first = rig.backend_of(1);
    rig.answer(first, &format!("-ASK_{slot}_outside:7002 "));
    rig.proxy.handle_confirmed(&announced, Some(node(2)), rig.now());
    rig.let_in(true);
    let second = rig.backend_of(2);
    assert!(rig.told(Conn::Backend(second)).contains("ASKING"));
    rig.answer(second, "+OK $1 v ");
    assert_eq!(rig.told(Conn::Client(client)), "$1 v ");
    rig.ask(client, &format!("GET {key}"));
    rig.answer(first, &format!("-ASK_{slot}_outside:7002 "));
    assert!(rig.told(Conn::Backend(second)).contains("ASKING"), "the name is known now");
}

#[test]
fn script_refused_before_its_send_has_come_back_follows_the_redirect() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let key = key("k", true);
    let slot = slot_of(key.as_bytes());
    rig.ask(client, &format!("EVAL x 1 {key}"));
    rig.let_in(true);
    let fence = rig.backend_of(1);
    let nonce = Rig::nonce(&rig.told(Conn::Backend(fence)));
    rig.answer(fence, &format!(":1 {nonce}"));
    rig.prompt = false;
    rig.sends_come_back();
    rig.ask(client, &format!("EVAL y 1 {key}"));
    let nonce = Rig::nonce(&rig.told(Conn::Backend(fence)));
    rig.answer(fence, &format!("-MOVED_{slot}_10.0.0.2:7000 {nonce}"));
    assert_eq!(rig.told(Conn::Client(client)), ":1 ");
    rig.prompt = true;
    rig.let_in(true);
    let other = rig.backend_of(2);
    assert!(rig.told(Conn::Backend(other)).contains(" y "));
}

#[test]
fn refused_pop_is_not_lost_with_another_client_before_its_send_has_come_back() {
    let mut rig = Rig::new(Settings::default());
    let (first, second) = (rig.client(), rig.client());
    let key = key("k", true);
    rig.ask(first, &format!("BLPOP {key} 1"));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    rig.answer(backend, "*-1 ");
    assert_eq!(rig.told(Conn::Client(first)), "*-1 ");
    rig.prompt = false;
    rig.ask(first, &format!("BLPOP {key} 1"));
    assert!(rig.told(Conn::Backend(backend)).contains("BLPOP"));
    rig.answer(backend, "-READONLY_x ");
    rig.ask(second, &format!("BLPOP {key} 1"));
    rig.proxy.handle_end(Conn::Client(second), true, rig.now());
    rig.settle();
    assert_eq!(rig.told(Conn::Client(first)), "");
    rig.prompt = true;
    rig.pass(100);
    assert!(rig.told(Conn::Backend(backend)).contains("BLPOP"), "it is asked again");
}

/// The node may have lost what it was asked about: who asks again may be promised what is gone.
#[test]
fn wait_that_lost_a_connection_is_an_error_at_once_and_nobody_is_asked_again() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, "WAIT 1 0");
    rig.let_in(true);
    rig.let_in(true);
    let info = |rig: &mut Rig, backend: u32, far: u32, confirmed: u32| {
        let replica = format!("slave0:ip=1.1.1.1,port=1,state=online,offset={confirmed},lag=0");
        let reply = bulk(format!("{replica}\r\nmaster_repl_offset:{far}\r\n").as_bytes());
        rig.proxy.handle_received(Conn::Backend(backend), &reply, rig.now());
        rig.settle();
    };
    let (first, second) = (rig.backend_of(1), rig.backend_of(2));
    assert!(rig.told(Conn::Backend(first)).ends_with("INFO $11 replication "));
    info(&mut rig, first, 100, 1);
    info(&mut rig, second, 10, 1);
    for backend in [first, second] {
        rig.told(Conn::Backend(backend));
    }
    rig.lose(first);
    rig.settle();
    assert!(rig.told(Conn::Client(client)).starts_with("-ERR "), "the other node is waited for");
    rig.pass(100);
    rig.let_in(true);
    assert!(rig.sent.iter().all(|(_, text)| !text.contains("INFO")), "{:?}", rig.sent);
    assert_eq!((rig.proxy.requests_open(), rig.proxy.clients_blocked()), (0, 0));
}

#[test]
fn wait_whose_node_cannot_be_asked_ends_in_its_time() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, "WAIT 1 300");
    for _ in 0..10 {
        rig.let_in(false);
        rig.pass(50);
    }
    assert_eq!(rig.told(Conn::Client(client)), ":0 ");
}

#[test]
fn scripts_of_one_client_and_slot_keep_their_order_when_their_lane_is_lost() {
    let mut rig = Rig::new(Settings { fence_lanes: 1, ..Settings::default() });
    let (client, other) = (rig.client(), rig.client());
    let key = key("k", true);
    rig.ask(client, &format!("EVAL first 1 {key}"));
    // The queue's front is another client's, so the second stays behind it.
    rig.ask(other, &format!("EVAL between 1 {key}"));
    rig.ask(client, &format!("EVAL second 1 {key}"));
    rig.let_in(false);
    rig.pass(200);
    rig.let_in(true);
    let mut told = String::new();
    for _ in 0..4 {
        let fence = rig.backend_of(1);
        let more = rig.told(Conn::Backend(fence));
        let nonces: Vec<&str> = more.split(' ').filter(|word| word.len() == 32).collect();
        let answers: String = nonces.iter().map(|nonce| format!("+OK $32 {nonce} ")).collect();
        rig.answer(fence, &answers);
        rig.pass(50);
        told += &more;
    }
    let place = |word: &str| told.find(word).unwrap_or_else(|| panic!("{word} in {told}"));
    assert!(place(" first ") < place(" second "), "{told}");
    assert!(told.contains(" between "), "{told}");
}

#[test]
fn script_that_is_loaded_again_is_not_passed_by_the_next_one_that_is_sent_elsewhere() {
    let mut rig = Rig::new(Settings { fence_lanes: 1, ..Settings::default() });
    let (client, other) = (rig.client(), rig.client());
    let key = key("k", true);
    rig.ask(client, &format!("EVAL x 1 {key}"));
    rig.let_in(true);
    let fence = rig.backend_of(1);
    let nonce = Rig::nonce(&rig.told(Conn::Backend(fence)));
    rig.answer(fence, &format!(":1 {nonce}"));
    rig.sends_come_back();
    rig.prompt = false;
    let pair = [
        words(&format!("EVALSHA {} 1 {key}", crate::scripts::name(b"x"))),
        words(&format!("EVAL y 1 {key}")),
    ];
    rig.proxy.handle_received(Conn::Client(client), &pair.concat(), rig.now());
    rig.settle();
    let told = rig.told(Conn::Backend(fence));
    let nonces: Vec<&str> = told.split(' ').filter(|word| word.len() == 32).collect();
    // The lane is the other client's when their bytes have come back.
    rig.ask(other, &format!("EVAL z 1 {key}"));
    let (slot, missing) = (slot_of(key.as_bytes()), "-NOSCRIPT_No_matching_script.");
    let moving = format!("-ASK_{slot}_10.0.0.2:7000");
    rig.answer(fence, &format!("{missing} $32 {} {moving} $32 {} ", nonces[0], nonces[1]));
    rig.prompt = true;
    rig.settle();
    assert!(rig.connecting.is_empty(), "the second goes nowhere before the first is answered");
    for _ in 0..2 {
        let told = rig.told(Conn::Backend(fence));
        let loaded = if told.contains("EVALSHA") { "+sha " } else { "" };
        rig.answer(fence, &format!("{loaded}:2 {}", Rig::nonce(&told)));
    }
    rig.let_in(true);
    let target = rig.backend_of(2);
    assert!(rig.told(Conn::Backend(target)).contains(" y "));
}

#[test]
fn several_keys_that_are_nowhere_are_asked_for_one_by_one_while_their_slot_moves() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let (one, two) = (key("a", true), key("b", true));
    let slot = slot_of(one.as_bytes());
    rig.ask(client, &format!("MGET {one} {two}"));
    rig.let_in(true);
    let source = rig.backend_of(1);
    let mut asked = String::new();
    for _ in 0..10 {
        if !rig.told(Conn::Backend(source)).is_empty() {
            rig.answer(source, &format!("-ASK_{slot}_10.0.0.2:7000 "));
        }
        rig.let_in(true);
        let target = rig.backend_of(2);
        asked = rig.told(Conn::Backend(target));
        if asked.matches("ASKING").count() == 1 {
            rig.answer(target, "+OK -TRYAGAIN_x ");
        }
        rig.pass(20);
    }
    let told = rig.told(Conn::Client(client));
    assert_eq!(told, "", "no error: {asked}");
}

#[test]
fn whole_cluster_command_waits_for_elders_and_holds_what_comes_after() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let key = key("k", true);
    rig.ask(client, &format!("SET {key} v"));
    rig.let_in(true);
    rig.ask(client, "DBSIZE");
    rig.ask(client, &format!("SET {key} w"));
    let first = rig.backend_of(1);
    assert!(rig.told(Conn::Backend(first)).ends_with("$1 v "));
    rig.answer(first, "+OK ");
    rig.let_in(true);
    let second = rig.backend_of(2);
    assert_eq!(rig.told(Conn::Backend(first)), "*1 $6 DBSIZE ");
    rig.answer(first, ":1 ");
    assert_eq!(rig.told(Conn::Backend(first)), "", "the other node has not counted yet");
    rig.answer(second, ":2 ");
    assert_eq!(rig.told(Conn::Client(client)), "+OK :3 ");
    assert!(rig.told(Conn::Backend(first)).ends_with("$1 w "));
}

#[test]
fn failed_connect_long_after_an_outage_is_tried_again() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let line = format!("GET {}", key("k", true));
    rig.ask(client, &line);
    for _ in 0..100 {
        rig.let_in(false);
        rig.pass(100);
    }
    assert!(rig.told(Conn::Client(client)).starts_with("-ERR no connection"));
    rig.now_ms += 100_000;
    rig.ask(client, &line);
    rig.let_in(false);
    rig.pass(3_000);
    rig.let_in(true);
    let backend = rig.backend_of(1);
    rig.answer(backend, "$1 v ");
    assert_eq!(rig.told(Conn::Client(client)), "$1 v ");
}

impl Rig {
    /// The connection to a node ends.
    fn lose(&mut self, backend: u32) {
        let now = self.now();
        self.proxy.handle_end(Conn::Backend(backend), true, now);
        self.pass(50);
    }
}

#[test]
fn lost_read_is_asked_again_once() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, &format!("GET {}", key("k", true)));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    rig.lose(backend);
    rig.let_in(true);
    assert_eq!(rig.told(Conn::Client(client)), "");
    rig.lose(backend);
    rig.pass(500);
    rig.let_in(true);
    let told = rig.told(Conn::Client(client));
    assert!(told.starts_with("-ERR connection to server lost, the command may have run"), "{told}");
}

#[test]
fn lost_write_is_never_asked_again() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, &format!("INCR {}", key("k", true)));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    rig.lose(backend);
    rig.pass(500);
    rig.let_in(true);
    let told = rig.told(Conn::Client(client));
    assert!(told.starts_with("-ERR connection to server lost, the command may have run"), "{told}");
    assert_eq!(rig.told(Conn::Backend(backend)).matches("INCR").count(), 1);
}

#[test]
fn client_that_has_half_a_long_reply_is_closed_when_the_rest_is_lost() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, &format!("GET {}", key("k", true)));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    let half = "x".repeat(100_000);
    rig.answer(backend, &format!("$200000 {half}"));
    assert!(rig.told(Conn::Client(client)).len() > 65_000, "long replies are not kept back");
    rig.lose(backend);
    assert!(rig.closed.contains(&Conn::Client(client)));
    assert_eq!(rig.told(Conn::Client(client)), "");
}

#[test]
fn short_beginning_of_a_reply_is_taken_back_when_the_rest_is_lost() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, &format!("GET {}", key("k", true)));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    rig.answer(backend, "$5 he");
    rig.lose(backend);
    rig.let_in(true);
    rig.answer(backend, "$5 hello ");
    assert_eq!(rig.told(Conn::Client(client)), "$5 hello ");
}

#[test]
fn script_whose_reply_nobody_vouched_for_may_have_run() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, &format!("EVAL x 1 {}", key("k", true)));
    rig.let_in(true);
    let fence = rig.backend_of(1);
    rig.answer(fence, ":1 ");
    rig.lose(fence);
    let told = rig.told(Conn::Client(client));
    assert!(told.starts_with("-ERR connection to server lost, the command may have run"), "{told}");
}

#[test]
fn error_that_greets_us_is_nobodys_reply() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, &format!("GET {}", key("k", true)));
    let now = rig.now();
    let backend = rig.backend_of(1);
    rig.proxy.handle_connected(backend, true, now);
    rig.settle();
    rig.answer(backend, "-ERR_max_number_of_clients_reached ");
    assert!(rig.closed.contains(&Conn::Backend(backend)));
    assert_eq!(rig.told(Conn::Client(client)), "");
}

#[test]
fn request_never_reaches_a_connection_that_is_not_in_its_database() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, "SELECT 3");
    rig.let_in(true);
    for number in [1, 2] {
        let private = rig.backend_of(number);
        assert!(rig.told(Conn::Backend(private)).contains("SELECT $1 3"));
        rig.answer(private, "+OK ");
        assert!(rig.closed.contains(&Conn::Backend(private)), "nobody else gets it");
    }
    assert_eq!(rig.told(Conn::Client(client)), "+OK ");
    let key = key("k", true);
    rig.ask(client, &format!("GET {key}"));
    // The node loads its data: it lets us in, but has not selected anything.
    for (said, ready) in [("-LOADING_x ", false), ("-ERR_DB_index ", false), ("+OK ", true)] {
        rig.pass(400);
        let (backend, _) = rig.connecting.pop().expect("a new connection");
        let now = rig.now();
        rig.proxy.handle_connected(backend, true, now);
        rig.settle();
        assert!(rig.told(Conn::Backend(backend)).ends_with("SELECT $1 3 "));
        rig.answer(backend, &format!("+PONG {said}"));
        let told = rig.told(Conn::Backend(backend));
        assert_eq!(told.contains("GET"), ready, "after {said}: {told}");
        if ready {
            rig.answer(backend, "$1 v ");
        }
    }
    assert_eq!(rig.told(Conn::Client(client)), "$1 v ");
    // Back in the first database, on the connection that all share.
    rig.ask(client, "SELECT 0");
    assert_eq!(rig.told(Conn::Client(client)), "+OK ");
    rig.ask(client, &format!("GET {key}"));
    let sent: Vec<Conn> =
        rig.sent.iter().filter(|(_, text)| text.contains("GET")).map(|(conn, _)| *conn).collect();
    assert_eq!(sent.len(), 1);
    assert!(rig.connecting.is_empty());
}

/// A light client, and one with 100 kB of an unfinished request.
fn light_and_heavy(rig: &mut Rig) -> (u32, u32) {
    let (light, heavy) = (rig.client(), rig.client());
    let now = rig.now();
    rig.proxy.handle_received(Conn::Client(light), b"*2\r\n$3\r\nGET\r\n$3", now);
    rig.proxy.handle_received(
        Conn::Client(heavy),
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$900000\r\n",
        now,
    );
    rig.proxy.handle_received(Conn::Client(heavy), &vec![b'x'; 100_000], now);
    (light, heavy)
}

#[test]
fn memory_nearly_used_up_stops_reading_of_the_heavy_client_only() {
    let mut rig = Rig::new(Settings::default());
    let (_, _) = light_and_heavy(&mut rig);
    rig.memory(79);
    assert_eq!(rig.unread.len(), 0);
    rig.memory(85);
    assert_eq!(rig.unread.len(), 1, "the heavy one");
    rig.memory(78);
    assert_eq!(rig.unread.len(), 1, "not to and fro");
    rig.memory(70);
    assert_eq!(rig.unread.len(), 0);
    assert_eq!(rig.closed, []);
}

#[test]
fn pipeline_has_few_requests_under_way_while_memory_is_short_and_goes_on_afterwards() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let line: Vec<u8> =
        (0..20).flat_map(|n| words(&format!("INCR {}", key(&n.to_string(), true)))).collect();
    rig.ask(client, &format!("INCR {}", key("first", true)));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    rig.answer(backend, ":1 ");
    rig.told(Conn::Backend(backend));
    let asked = |rig: &mut Rig| rig.told(Conn::Backend(backend)).matches("INCR").count();
    rig.memory(72);
    rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
    rig.settle();
    assert_eq!(asked(&mut rig), 8);
    rig.answer(backend, &":1 ".repeat(8));
    assert_eq!(asked(&mut rig), 8, "as many again");
    rig.memory(10);
    rig.answer(backend, &":1 ".repeat(8));
    assert_eq!(asked(&mut rig), 4, "all the rest");
}

#[test]
fn memory_used_up_closes_the_heaviest_client_and_refuses_new_ones() {
    let mut rig = Rig::new(Settings::default());
    let (_, heavy) = light_and_heavy(&mut rig);
    rig.memory(101);
    assert_eq!(rig.closed, [Conn::Client(heavy)]);
    let (socket, peer, now) = (rig.socket(), node(9), rig.now());
    assert_eq!(rig.proxy.handle_accepted(socket, peer, peer, now), None);
    let line = String::from_utf8(rig.proxy.refusal().0).unwrap();
    assert!(line.starts_with("-ERR ") && line.contains("memory_limit"), "{line}");
    rig.memory(60);
    assert!(rig.proxy.handle_accepted(socket, peer, peer, now).is_some());
}

#[test]
fn memory_that_stays_short_closes_who_cannot_go_on() {
    let mut rig = Rig::new(Settings::default());
    let (_, heavy) = light_and_heavy(&mut rig);
    for _ in 0..19 {
        rig.memory(85);
    }
    assert_eq!(rig.closed, [], "two seconds are not over");
    for _ in 0..3 {
        rig.memory(85);
    }
    assert_eq!(rig.closed, [Conn::Client(heavy)]);
}

#[test]
fn entry_of_a_client_that_left_waiting_is_used_anew_and_not_woken_for_it() {
    let mut rig = Rig::new(Settings::default());
    let key = key("k", true);
    let early = rig.client();
    rig.ask(early, &format!("INCR {key}"));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    rig.told(Conn::Backend(backend));
    rig.answer(backend, "-CLUSTERDOWN_The_cluster_is_down ");
    assert_eq!(rig.told(Conn::Backend(backend)), "", "it waits to ask again, and leaves");
    rig.proxy.handle_end(Conn::Client(early), true, rig.now());
    rig.settle();
    let late = rig.client();
    rig.ask(late, &format!("APPEND {key} x"));
    assert!(rig.told(Conn::Backend(backend)).contains("APPEND"));
    rig.answer(backend, "-CLUSTERDOWN_The_cluster_is_down ");
    rig.pass(1_000);
    let told = rig.told(Conn::Backend(backend));
    assert!(!told.contains("INCR"), "{told}");
    assert_eq!(told.matches("APPEND").count(), 1, "{told}");
    rig.answer(backend, ":1 ");
    assert_eq!(rig.told(Conn::Client(late)), ":1 ");
    assert_eq!(rig.proxy.requests_open(), 0);
}

#[test]
fn memory_counts_no_length_of_a_request_that_is_over() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, &format!("SET {} {}", key("k", true), "x".repeat(100_000)));
    rig.let_in(true);
    let first = rig.backend_of(1);
    rig.answer(first, "+OK ");
    assert_eq!(rig.told(Conn::Client(client)), "+OK ");
    // Its entry is now that of a request that is cut.
    rig.ask(client, &format!("MGET {} {}", key("a", true), key("b", false)));
    rig.memory(85);
    assert_eq!(rig.unread.len(), 0, "a few bytes are under way");
}

#[test]
fn who_has_much_to_take_waits_for_the_next_turns_while_somebody_asks_for_little() {
    let mut rig = Rig::new(Settings::default());
    let little = rig.client();
    let much: Vec<u32> = (0..5).map(|_| rig.client()).collect();
    let key = key("k", true);
    much.iter().for_each(|&client| rig.ask(client, &format!("GET {key}")));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    let replies = format!("$100000\r\n{}\r\n", "x".repeat(100_000)).repeat(5);
    let now = rig.now();
    rig.proxy.handle_received(Conn::Client(little), &words("PING"), now);
    rig.proxy.handle_received(Conn::Backend(backend), replies.as_bytes(), now);
    let mut early = Vec::new();
    rig.proxy.flush_light(&mut early);
    let to = |action: &Action| match action {
        Action::Send { conn, .. } => Some(*conn),
        _ => None,
    };
    assert_eq!(early.iter().filter_map(to).collect::<Vec<_>>(), [Conn::Client(little)]);
    let mut in_turn = || {
        rig.turn();
        let answered = |&&client: &&u32| rig.told(Conn::Client(client)).len() == 100_009;
        let answered = much.iter().filter(answered).count();
        (answered, rig.proxy.take_urgent())
    };
    assert_eq!(in_turn(), (3, true), "256 KiB and a piece, and the next turn comes at once");
    assert_eq!(in_turn(), (2, false));
    assert_eq!(in_turn(), (0, false));
}

#[test]
fn memory_of_many_heavy_clients_is_given_back_in_pieces_the_heaviest_first() {
    let mut rig = Rig::new(Settings::default());
    let heavy: Vec<u32> = (0..6).map(|_| light_and_heavy(&mut rig).1).collect();
    // They hold less than a MiB each, and eleven are to go.
    rig.memory(101);
    assert_eq!(rig.closed.len(), 4);
    let (now, limit) = (rig.now(), 100 << 20);
    rig.proxy.handle_memory(Memory { held: 95 << 20, limit, sharers: 1 }, now);
    rig.turn();
    assert_eq!(rig.closed.len(), 6, "no look in between");
    assert!(heavy.iter().all(|&client| rig.closed.contains(&Conn::Client(client))));
    rig.memory(60);
    let many: Vec<u32> = (0..6).map(|_| light_and_heavy(&mut rig).1).collect();
    rig.closed.clear();
    rig.memory(101);
    rig.proxy.handle_memory(Memory { held: 89 << 20, limit, sharers: 1 }, rig.now());
    rig.turn();
    assert_eq!(rig.closed.len(), 4, "that was enough: {many:?}");
}

#[test]
fn long_pipeline_goes_on_in_pieces_while_somebody_asks_for_little() {
    let mut rig = Rig::new(Settings::default());
    let (long, short) = (rig.client(), rig.client());
    let line = words("PING").repeat(300);
    let answered = |rig: &mut Rig| rig.told(Conn::Client(long)).matches("+PONG").count();
    rig.proxy.handle_received(Conn::Client(long), &line, rig.now());
    rig.turn();
    assert_eq!(answered(&mut rig), 300, "nobody else is about");

    rig.proxy.handle_received(Conn::Client(short), &words("PING"), rig.now());
    rig.proxy.handle_received(Conn::Client(long), &line, rig.now());
    rig.turn();
    assert_eq!(rig.told(Conn::Client(short)), "+PONG ");
    let first = answered(&mut rig);
    assert!((1..=128).contains(&first), "{first} in the first turn");
    rig.turn();
    let second = answered(&mut rig);
    assert!((1..=64).contains(&second), "{second} in the second turn");
    rig.settle();
    assert_eq!(answered(&mut rig), 300 - first - second);
    assert_eq!(rig.unread.len(), 0, "it is read again");
}

#[test]
fn turn_that_took_long_lets_no_pipeline_run_whole_beside_who_asks_for_little() {
    let mut rig = Rig::new(Settings::default());
    let (long, short) = (rig.client(), rig.client());
    let line = words("PING").repeat(300);
    let answered = |rig: &mut Rig| rig.told(Conn::Client(long)).matches("+PONG").count();
    rig.proxy.handle_received(Conn::Client(short), &words("PING"), rig.now());
    rig.turn();
    // In which the short one could not be heard.
    rig.now_ms += 500;
    rig.proxy.handle_received(Conn::Client(long), &line, rig.now());
    rig.turn();
    let first = answered(&mut rig);
    assert!((1..=128).contains(&first), "{first} in one turn");
    (0..20).for_each(|_| rig.turn());
    assert_eq!(answered(&mut rig), 300 - first);
    rig.proxy.handle_received(Conn::Client(long), &line, rig.now());
    rig.turn();
    assert_eq!(answered(&mut rig), 300, "nobody asks for little any more");
}

#[test]
fn long_pipelines_leave_the_nodes_to_others_and_go_on_all_the_same() {
    let mut rig = Rig::new(Settings::default());
    let short = rig.client();
    rig.ask(short, &format!("INCR {}", key("first", true)));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    rig.answer(backend, ":1 ");
    rig.told(Conn::Backend(backend));
    let line = words(&format!("INCR {}", key("k", true))).repeat(100);
    let long: Vec<u32> = (0..20).map(|_| rig.client()).collect();
    for &client in &long {
        rig.proxy.handle_received(Conn::Client(short), &words("PING"), rig.now());
        rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
    }
    // Each has had a go; from now on they go on as answers come, and somebody asks for little.
    rig.turn();
    let mut asked = rig.told(Conn::Backend(backend)).matches("INCR").count();
    let mut answered = 0;
    for _ in 0..10_000 {
        let some = (asked - answered).min(50);
        answered += some;
        rig.proxy.handle_received(Conn::Client(short), &words("PING"), rig.now());
        rig.answer(backend, &":1 ".repeat(some));
        asked += rig.told(Conn::Backend(backend)).matches("INCR").count();
        if answered == 2_000 {
            break;
        }
    }
    assert_eq!((asked, answered), (2_000, 2_000));
    for client in long {
        assert_eq!(rig.told(Conn::Client(client)).matches(":1").count(), 100);
    }
    assert_eq!(rig.unread.len(), 0);
}

// --- replies of one pipeline -----------------------------------------------------------------------

#[test]
fn replies_of_a_pipeline_wait_for_each_other_a_moment_and_only_while_there_is_much_to_do() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let both = format!("SET {} v", key("a", true)) + "\n" + &format!("SET {} v", key("b", false));
    let ask = |rig: &mut Rig| both.lines().for_each(|line| rig.ask(client, line));
    ask(&mut rig);
    rig.let_in(true);
    rig.let_in(true);
    let (first, second) = (rig.backend_of(1), rig.backend_of(2));
    // In one turn of the reactor.
    let reply = |rig: &mut Rig, backend| {
        let now = rig.now();
        rig.proxy.handle_received(Conn::Backend(backend), b"+OK\r\n", now);
        rig.turn();
    };
    reply(&mut rig, first);
    assert_eq!(rig.told(Conn::Client(client)), "+OK ", "nothing else is to be done");
    reply(&mut rig, second);
    assert_eq!(rig.told(Conn::Client(client)), "+OK ");

    rig.proxy.set_busy(true);
    ask(&mut rig);
    reply(&mut rig, first);
    assert_eq!(rig.told(Conn::Client(client)), "");
    reply(&mut rig, second);
    assert_eq!(rig.told(Conn::Client(client)), "+OK +OK ", "all are there");
    ask(&mut rig);
    reply(&mut rig, first);
    rig.pass(15);
    assert_eq!(rig.told(Conn::Client(client)), "+OK ", "the other one is late");
    reply(&mut rig, second);
    assert_eq!(rig.told(Conn::Client(client)), "+OK ");
}

// --- overtaking -------------------------------------------------------------------------------------

/// A client asks in one go; both are sent to the first node, which answers that.
fn asked_at_once(rig: &mut Rig, client: u32, lines: &[&str]) -> u32 {
    let all: Vec<u8> = lines.iter().flat_map(|line| words(line)).collect();
    let now = rig.now();
    rig.proxy.handle_received(Conn::Client(client), &all, now);
    rig.settle();
    rig.let_in(true);
    rig.backend_of(1)
}

#[test]
fn refused_request_whose_key_a_later_one_has_written_gets_the_refusal() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let (one, two) = (key("a", true), key("b", true));
    let mset = format!("MSET {one} 1 {two} 1");
    let node = asked_at_once(&mut rig, client, &[&mset, &format!("SET {one} 2")]);
    assert_eq!(rig.told(Conn::Backend(node)).matches("SET").count(), 2);
    rig.answer(node, "-TRYAGAIN_x +OK ");
    rig.pass(100);
    assert_eq!(rig.told(Conn::Client(client)), "-TRYAGAIN x +OK ");
    assert_eq!(rig.told(Conn::Backend(node)), "", "it does not run after the later one");
}

#[test]
fn refused_request_is_repeated_when_a_later_one_has_run_that_names_other_keys() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let mset = format!("MSET {} 1 {} 1", key("a", true), key("b", true));
    let node = asked_at_once(&mut rig, client, &[&mset, &format!("SET {} 2", key("c", true))]);
    rig.told(Conn::Backend(node));
    rig.answer(node, "-TRYAGAIN_x +OK ");
    rig.pass(20);
    assert!(rig.told(Conn::Backend(node)).contains("MSET"));
    rig.answer(node, "+OK ");
    assert_eq!(rig.told(Conn::Client(client)), "+OK +OK ");
}

#[test]
fn refused_requests_of_one_key_are_repeated_in_their_order() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let (one, two) = (key("a", true), key("b", true));
    let (first, second) = (format!("MSET {one} 1 {two} 1"), format!("MSET {one} 2 {two} 2"));
    let node = asked_at_once(&mut rig, client, &[&first, &second]);
    rig.told(Conn::Backend(node));
    rig.answer(node, "-TRYAGAIN_x -TRYAGAIN_y ");
    rig.pass(20);
    let again = rig.told(Conn::Backend(node));
    assert_eq!(again.matches("MSET").count(), 1, "the second waits for the first: {again}");
    assert!(again.contains(" 1 "));
    rig.answer(node, "+OK ");
    rig.pass(20);
    assert!(rig.told(Conn::Backend(node)).contains("MSET"));
    rig.answer(node, "+OK ");
    assert_eq!(rig.told(Conn::Client(client)), "+OK +OK ");
}

#[test]
fn while_slots_move_nothing_is_sent_behind_a_request_of_several_keys_of_its_slot() {
    let mut rig = Rig::new(Settings::default());
    let (other, client) = (rig.client(), rig.client());
    let node = asked_at_once(&mut rig, other, &[&format!("GET {}", key("x", true))]);
    let slot = slot_of(key("x", true).as_bytes());
    rig.answer(node, &format!("-ASK_{slot}_10.0.0.2:7000 "));
    rig.let_in(true);
    rig.told(Conn::Backend(node));
    let (one, two) = (key("a", true), key("b", true));
    let mset = format!("MSET {one} 1 {two} 1");
    asked_at_once(&mut rig, client, &[&mset, &format!("SET {one} 2"), &format!("SET {two} 3")]);
    let told = rig.told(Conn::Backend(node));
    assert!(told.contains("MSET") && told.matches("SET").count() == 1, "{told}");
    rig.answer(node, "-TRYAGAIN_x ");
    rig.pass(20);
    assert_eq!(rig.told(Conn::Backend(node)).matches("SET").count(), 1, "it again, alone");
    rig.answer(node, "+OK ");
    assert_eq!(rig.told(Conn::Backend(node)).matches("SET").count(), 2, "the rest");
    rig.answer(node, "+OK +OK ");
    assert_eq!(rig.told(Conn::Client(client)), "+OK +OK +OK ");
}

#[test]
fn refused_part_whose_key_a_later_part_has_written_fails_its_request() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let (one, two, far) = (key("a", true), key("b", true), key("f", false));
    let first = format!("MSET {one} 1 {two} 1 {far} 1");
    let second = format!("MSET {two} 2 {far} 2");
    let node = asked_at_once(&mut rig, client, &[&first, &second]);
    let other = rig.backend_of(2);
    assert_eq!(rig.told(Conn::Backend(node)).matches("SET").count(), 2);
    rig.answer(other, "+OK +OK ");
    rig.answer(node, "-TRYAGAIN_x +OK ");
    rig.pass(100);
    assert_eq!(rig.told(Conn::Client(client)), "-TRYAGAIN x +OK ");
    assert_eq!(rig.told(Conn::Backend(node)), "");
}

#[test]
fn redirect_of_a_request_whose_key_a_later_one_has_written_is_not_followed_any_more() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let one = key("a", true);
    let slot = slot_of(one.as_bytes());
    let lines = [format!("SET {one} 1"), format!("SET {one} 2")];
    let node = asked_at_once(&mut rig, client, &[&lines[0], &lines[1]]);
    rig.told(Conn::Backend(node));
    rig.answer(node, &format!("-MOVED_{slot}_10.0.0.2:7000 +OK "));
    rig.let_in(true);
    rig.pass(50);
    let told = rig.told(Conn::Client(client));
    assert!(told.starts_with("-TRYAGAIN ") && told.ends_with(" +OK "), "{told}");
    assert!(!rig.sent.iter().any(|of| of.1.contains("SET")), "{:?}", rig.sent);
}

#[test]
fn redirects_of_a_pipeline_to_one_key_are_followed_in_its_order() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let one = key("a", true);
    let slot = slot_of(one.as_bytes());
    let lines = [1, 2, 3].map(|number| format!("SET {one} {number}"));
    let node = asked_at_once(&mut rig, client, &[&lines[0], &lines[1], &lines[2]]);
    let moved = format!("-MOVED_{slot}_10.0.0.2:7000 ");
    rig.answer(node, &moved.repeat(3));
    rig.let_in(true);
    rig.pass(50);
    let target = rig.backend_of(2);
    let mut seen = String::new();
    for _ in 0..3 {
        let more = rig.told(Conn::Backend(target));
        rig.answer(target, &"+OK ".repeat(more.matches("SET").count()));
        seen += &more;
    }
    let places = [" 1 ", " 2 ", " 3 "].map(|value| seen.rfind(value));
    assert!(places.is_sorted() && places[0].is_some(), "{seen}");
    assert_eq!(rig.told(Conn::Client(client)), "+OK +OK +OK ");
}

#[test]
fn select_on_its_way_to_a_primary_that_has_left_ends_in_its_time() {
    let mut rig = Rig::new(Settings { request_timeout_ms: 1_000, ..Settings::default() });
    let client = rig.client();
    rig.ask(client, "SELECT 3");
    rig.let_in(false);
    let mut without = Topology::clone(&map(2));
    without.nodes[1].address = Some(node(9));
    without.nodes[1].endpoint.host = "10.0.0.9".into();
    without.nodes[1].id = format!("{:040}", 9).into();
    without.version += 1;
    rig.proxy.handle_topology(Arc::new(without), rig.now());
    for _ in 0..300 {
        rig.let_in(false);
        rig.pass(20);
    }
    let told = rig.told(Conn::Client(client));
    assert!(told.starts_with("-ERR ") && told.matches("ERR").count() == 1, "{told:?}");
}

// --- one process after the other ------------------------------------------------------------------

/// What goes along with the only client that is offered.
fn parcel_of(rig: &mut Rig) -> Option<Vec<u8>> {
    let [(client, socket)] = rig.offered.drain(..).collect::<Vec<_>>()[..] else { return None };
    assert!(rig.unread.contains(&socket), "it is not read any more");
    let now = rig.now();
    let parcel = rig.proxy.take_leaver(client, socket, now)?;
    rig.proxy.handle_gone(Conn::Client(client), now);
    Some(parcel)
}

fn adopt(rig: &mut Rig, parcel: &[u8]) -> u32 {
    let socket = rig.socket();
    let (peer, now) = (SocketAddr::from(([10, 9, 0, 1], 1)), rig.now());
    let came = rig.proxy.handle_adopted(socket, (peer, peer), parcel, now).unwrap();
    rig.proxy.handle_received(Conn::Client(came.client), &came.bytes, now);
    came.client
}

#[test]
fn what_a_client_sends_while_it_is_given_away_is_run_by_the_next_process_only() {
    let (mut old, mut new) = (Rig::new(Settings::default()), Rig::new(Settings::default()));
    let client = old.client();
    old.ask(client, "CLIENT SETNAME traveller");
    old.ask(client, &format!("INCR {}", key("a", true)));
    old.let_in(true);
    let backend = old.backend_of(1);
    assert_eq!(old.told(Conn::Backend(backend)).matches("INCR").count(), 1);
    old.proxy.handle_hand_over(old.now());
    // It sends on, until the driver has stopped to read: one whole and the beginning of another.
    let more = words(&format!("INCR {}", key("b", true)));
    let now = old.now();
    old.proxy.handle_received(Conn::Client(client), &more, now);
    old.proxy.handle_received(Conn::Client(client), &words("CLIENT GETNAME")[..9], now);
    old.settle();
    assert_eq!(old.offered, [], "its reply is not there yet");
    old.answer(backend, ":1 ");
    assert_eq!(old.told(Conn::Client(client)), "+OK :1 ");
    let parcel = parcel_of(&mut old).expect("it is offered once all is answered");
    assert_eq!(old.told(Conn::Backend(backend)), "", "what came later is not run here");
    assert_eq!((old.proxy.clients_open(), old.closed.len()), (0, 0));

    let client = adopt(&mut new, &parcel);
    new.let_in(true);
    let backend = new.backend_of(1);
    assert_eq!(new.told(Conn::Backend(backend)).matches("INCR").count(), 1);
    new.answer(backend, ":1 ");
    let rest = words("CLIENT GETNAME")[9..].to_vec();
    let now = new.now();
    new.proxy.handle_received(Conn::Client(client), &rest, now);
    new.settle();
    assert_eq!(new.told(Conn::Client(client)), ":1 $9 traveller ");
}

#[test]
fn clients_are_given_away_a_few_at_a_time_and_the_others_are_served_meanwhile() {
    const CLIENTS: usize = 200;
    let mut old = Rig::new(Settings::default());
    let clients: Vec<u32> = (0..CLIENTS).map(|_| old.client()).collect();
    old.proxy.handle_hand_over(old.now());
    old.turn();
    let first = old.offered.len();
    assert!((1..CLIENTS / 2).contains(&first), "{first}");
    assert_eq!(old.unread.len(), first, "only these are not read any more");
    let stays = clients.iter().copied().find(|c| old.offered.iter().all(|of| of.0 != *c));
    let stays = stays.expect("one that is not offered yet");
    old.ask(stays, "PING");
    assert_eq!(old.told(Conn::Client(stays)), "+PONG ");
    // The next process takes no more for now: nobody else is stopped for it.
    old.proxy.hold_offers(true);
    let mut given = 0;
    let mut give = |old: &mut Rig| {
        for (client, socket) in std::mem::take(&mut old.offered) {
            let now = old.now();
            given += usize::from(old.proxy.take_leaver(client, socket, now).is_some());
            old.proxy.handle_gone(Conn::Client(client), now);
        }
        old.settle();
        given
    };
    assert_eq!(give(&mut old), first);
    assert_eq!(old.offered, []);
    old.proxy.hold_offers(false);
    old.settle();
    while !old.offered.is_empty() {
        assert!(old.offered.len() <= first, "{}", old.offered.len());
        give(&mut old);
    }
    assert_eq!((give(&mut old), old.proxy.clients_open()), (CLIENTS, 0));
}

#[test]
fn pipeline_that_is_half_run_when_it_is_given_away_is_run_once_in_all() {
    const ASKED: usize = 400;
    let (mut old, mut new) = (Rig::new(Settings::default()), Rig::new(Settings::default()));
    let client = old.client();
    let all = words(&format!("INCR {}", key("a", true))).repeat(ASKED);
    let now = old.now();
    old.proxy.handle_received(Conn::Client(client), &all, now);
    old.settle();
    old.let_in(true);
    let backend = old.backend_of(1);
    let count = |rig: &mut Rig, backend| rig.told(Conn::Backend(backend)).matches("INCR").count();
    let mut run = count(&mut old, backend);
    // Some are answered, so that some of those that were held back go on.
    old.answer(backend, &":1 ".repeat(run));
    let going = count(&mut old, backend);
    run += going;
    assert!(going > 0 && run < ASKED / 2, "{run}");
    old.proxy.handle_hand_over(old.now());
    old.settle();
    old.answer(backend, &":1 ".repeat(going));
    let parcel = parcel_of(&mut old).expect("it is offered once all is answered");
    assert_eq!(count(&mut old, backend), 0);

    adopt(&mut new, &parcel);
    new.let_in(true);
    let backend = new.backend_of(1);
    loop {
        let more = count(&mut new, backend);
        if more == 0 {
            break;
        }
        run += more;
        new.answer(backend, &":1 ".repeat(more));
    }
    assert_eq!(run, ASKED);
}

#[test]
fn client_that_is_given_away_stays_in_its_database() {
    let (mut old, mut new) = (Rig::new(Settings::default()), Rig::new(Settings::default()));
    let client = old.client();
    old.ask(client, "SELECT 3");
    old.let_in(true);
    for number in [1, 2] {
        let private = old.backend_of(number);
        old.answer(private, "+OK ");
    }
    assert_eq!(old.told(Conn::Client(client)), "+OK ");
    old.proxy.handle_hand_over(old.now());
    old.settle();
    let parcel = parcel_of(&mut old).expect("nothing is under way");

    let client = adopt(&mut new, &parcel);
    new.ask(client, &format!("GET {}", key("k", true)));
    let (backend, _) = new.connecting.pop().expect("a connection of that database");
    let now = new.now();
    new.proxy.handle_connected(backend, true, now);
    new.settle();
    assert!(new.told(Conn::Backend(backend)).ends_with("SELECT $1 3 "));
    new.answer(backend, "+PONG +OK ");
    assert!(new.told(Conn::Backend(backend)).contains("GET"));
}

#[test]
fn client_in_a_transaction_is_given_away_after_it() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, "MULTI");
    rig.proxy.handle_hand_over(rig.now());
    rig.pass(300);
    assert_eq!(rig.offered, []);
    rig.ask(client, "DISCARD");
    rig.pass(50);
    assert_eq!(rig.told(Conn::Client(client)), "+OK +OK ");
    assert!(parcel_of(&mut rig).is_some());
}

#[test]
fn client_that_subscribes_with_what_was_in_flight_is_not_given_away() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, "SUBSCRIBE news");
    rig.proxy.handle_hand_over(rig.now());
    rig.pass(50);
    // No node answers; then it is closed here, with the error.
    rig.pass(6_000);
    assert_eq!(rig.offered, []);
    assert!(rig.closed.contains(&Conn::Client(client)));
}

#[test]
fn client_that_leaves_while_it_is_offered_is_closed_and_not_given_away() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, "PING");
    rig.proxy.handle_hand_over(rig.now());
    rig.settle();
    assert_eq!(rig.offered.len(), 1);
    rig.proxy.handle_end(Conn::Client(client), false, rig.now());
    rig.settle();
    assert_eq!(rig.closed, [Conn::Client(client)]);
    let (client, socket) = rig.offered[0];
    assert_eq!(rig.proxy.take_leaver(client, socket, rig.now()), None);
}

#[test]
fn drain_serves_who_still_asks_and_closes_who_is_silent() {
    let mut rig = Rig::new(Settings::default());
    let (busy, silent) = (rig.client(), rig.client());
    rig.ask(busy, "PING");
    rig.ask(silent, "PING");
    rig.proxy.handle_drain(rig.now());
    for _ in 0..12 {
        rig.pass(50);
        rig.ask(busy, "PING");
    }
    assert_eq!(rig.closed, [Conn::Client(silent)]);
    assert_eq!(rig.told(Conn::Client(busy)).matches("+PONG").count(), 13);
    rig.pass(600);
    assert_eq!(rig.closed, [Conn::Client(silent), Conn::Client(busy)], "patience is over");
    // Who was accepted late is served, too.
    let late = rig.client();
    rig.ask(late, "PING");
    assert_eq!(rig.told(Conn::Client(late)), "+PONG ");
    rig.pass(150);
    assert_eq!(rig.closed.len(), 3);
}

/// A node may fall silent without a word. Where nothing else is going on nobody's time-out tells.
#[test]
fn subscriber_of_a_node_that_falls_silent_is_heard_elsewhere_though_nothing_else_happens() {
    let mut rig = Rig::new(Settings::default());
    let (client, channel) = (rig.client(), key("ch", true));
    rig.ask(client, &format!("SUBSCRIBE {channel}"));
    let confirm = |rig: &mut Rig, number: u8| {
        let (backend, now) = (rig.connecting.remove(0).0, rig.now());
        assert_eq!(rig.backend_of(number), backend);
        rig.proxy.handle_connected(backend, true, now);
        rig.settle();
        rig.answer(backend, "%1 $5 proto :3 ");
        assert!(rig.told(Conn::Backend(backend)).contains(&format!("SUBSCRIBE $5 {channel}")));
        let len = channel.len();
        rig.answer(backend, &format!(">3 $9 subscribe ${len} {channel} :1 "));
        backend
    };
    let backend = confirm(&mut rig, 1);
    assert!(rig.told(Conn::Client(client)).contains("subscribe"));
    rig.sleep(14_000);
    assert_eq!(rig.told(Conn::Backend(backend)), "");
    rig.sleep(3_000);
    assert_eq!(rig.told(Conn::Backend(backend)), "*1 $4 PING ");
    assert!(!rig.closed.contains(&Conn::Backend(backend)));
    rig.sleep(4_000);
    assert!(rig.closed.contains(&Conn::Backend(backend)), "nobody looks after it");
    rig.connecting.retain(|of| of.1 == node(2));
    confirm(&mut rig, 2);
    assert!(!rig.closed.contains(&Conn::Client(client)));
}

#[test]
fn messages_that_wait_until_their_clients_take_them_are_whole_in_order_and_in_each_ones_protocol() {
    let mut rig = Rig::new(Settings::default());
    let channel = key("ch", true);
    let (old, new, len) = (rig.client(), rig.client(), channel.len());
    rig.ask(new, "HELLO 3");
    rig.ask(old, &format!("SUBSCRIBE {channel}"));
    let (backend, now) = (rig.connecting.remove(0).0, rig.now());
    rig.proxy.handle_connected(backend, true, now);
    rig.settle();
    rig.answer(backend, "%1 $5 proto :3 ");
    rig.answer(backend, &format!(">3 $9 subscribe ${len} {channel} :1 "));
    rig.ask(new, &format!("SUBSCRIBE {channel}"));
    rig.settle();
    rig.sent.clear();
    let message = |n: usize| {
        let body = n.to_string().repeat(5_000);
        format!(">3 $7 message ${len} {channel} $5000 {body} ")
    };
    // The first is being sent while the others come.
    rig.prompt = false;
    (1..=3).for_each(|n| rig.answer(backend, &message(n)));
    assert!(rig.told(Conn::Client(old)) == message(1).replacen('>', "*", 1));
    assert!(rig.told(Conn::Client(new)) == message(1));
    rig.prompt = true;
    rig.settle();
    let rest = [message(2), message(3)];
    assert!(rig.told(Conn::Client(new)) == rest.concat());
    assert!(rig.told(Conn::Client(old)) == rest.map(|of| of.replacen('>', "*", 1)).concat());
}

/// What a stop of the whole process takes is not counted against a node.
#[test]
fn stop_of_the_process_while_an_answer_is_waited_for_is_nobodys_time_out() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    rig.ask(client, &format!("GET {}", key("a", true)));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    rig.sleep(100);
    rig.now_ms += 60_000;
    rig.turn();
    assert!(!rig.closed.contains(&Conn::Backend(backend)));
    rig.answer(backend, "$1 v ");
    assert_eq!(rig.told(Conn::Client(client)), "$1 v ");
}

#[test]
fn body_that_no_node_takes_in_a_transaction_is_not_kept() {
    for (reply, kept) in [("*1 :1 ", true), ("*1 -ERR_Error_compiling_script_x ", false)] {
        let mut rig = Rig::new(Settings::default());
        let client = rig.client();
        let slotted = key("a", true);
        for line in ["MULTI".into(), format!("EVAL body 1 {slotted}"), "EXEC".to_string()] {
            rig.ask(client, &line);
        }
        rig.let_in(true);
        let fence = rig.backend_of(1);
        let told = rig.told(Conn::Backend(fence));
        let nonce = Rig::nonce(&told);
        rig.answer(fence, &format!("+OK +QUEUED {reply}{nonce}"));
        rig.told(Conn::Client(client));
        rig.ask(client, &format!("SCRIPT SHOW {}", crate::scripts::name(b"body")));
        let shown = rig.told(Conn::Client(client));
        assert_eq!(shown.contains("body"), kept, "{reply}: {shown}");
    }
}

// --- what is told by memory ------------------------------------------------------------------------

/// One with 70 kB of an unfinished request: heavy, but not the heaviest.
fn middling(rig: &mut Rig) -> u32 {
    let (client, now) = (rig.client(), rig.now());
    let mut bytes = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$900000\r\n".to_vec();
    bytes.resize(70_000, b'x');
    rig.proxy.handle_received(Conn::Client(client), &bytes, now);
    client
}

#[test]
fn memory_used_up_by_requests_that_wait_for_a_node_closes_their_client_first() {
    let mut rig = Rig::new(Settings::default());
    let (middling, hog) = (middling(&mut rig), rig.client());
    for n in 0..8 {
        rig.ask(hog, &format!("SET {} {}", key(&n.to_string(), true), "x".repeat(100_000)));
    }
    // The node cannot be reached: all of them wait.
    rig.let_in(false);
    rig.memory(85);
    assert_eq!(rig.unread.len(), 2, "both are heavy");
    rig.memory(101);
    assert_eq!(rig.closed[rig.closed.len() - 2..], [Conn::Client(hog), Conn::Client(middling)]);
    rig.let_in(false);
    assert_eq!(rig.proxy.requests_open(), 0);
}

#[test]
fn memory_used_up_by_parts_of_a_reply_closes_the_client_that_asked() {
    let mut rig = Rig::new(Settings::default());
    let (middling, hog) = (middling(&mut rig), rig.client());
    let (near, far) = (key("a", true), key("b", false));
    rig.ask(hog, &format!("MGET {near} {far}"));
    rig.let_in(true);
    rig.let_in(true);
    let first = rig.backend_of(1);
    rig.answer(first, &format!("*1 $200000 {} ", "x".repeat(200_000)));
    rig.memory(101);
    assert_eq!(rig.closed, [Conn::Client(hog), Conn::Client(middling)]);
}

#[test]
fn memory_used_up_by_a_reply_that_is_not_whole_closes_the_client_that_asked() {
    let mut rig = Rig::new(Settings::default());
    let (middling, hog) = (middling(&mut rig), rig.client());
    rig.ask(hog, &format!("GET {}", key("b", false)));
    rig.ask(hog, &format!("GET {}", key("a", true)));
    rig.let_in(true);
    rig.let_in(true);
    // Its elder at the other node is not answered, so this one waits for its turn.
    let first = rig.backend_of(1);
    rig.answer(first, &format!("$400000 {}", "x".repeat(200_000)));
    rig.memory(101);
    assert_eq!(rig.closed, [Conn::Client(hog), Conn::Client(middling)]);
    rig.answer(first, &format!("{} ", "x".repeat(200_000)));
    assert_eq!(rig.proxy.requests_open(), 1, "that of the node that says nothing");
}

#[test]
fn memory_used_up_by_subscriptions_closes_their_client_first() {
    let mut rig = Rig::new(Settings::default());
    let (middling, hog) = (middling(&mut rig), rig.client());
    let channels: Vec<String> = (0..2_000).map(|n| format!("channel-{n}")).collect();
    rig.ask(hog, &format!("SUBSCRIBE {}", channels.join(" ")));
    rig.memory(101);
    assert_eq!(rig.closed, [Conn::Client(hog), Conn::Client(middling)]);
}

#[test]
fn subscriber_of_very_many_channels_that_leaves_holds_nobody_up() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let channels: Vec<String> = (0..200_000).map(|n| format!("channel-{n}")).collect();
    rig.let_in(false);
    rig.ask(client, &format!("SUBSCRIBE {}", channels.join(" ")));
    rig.let_in(false);
    rig.until_there_are(200_000, false);
    let began = clock();
    rig.proxy.handle_end(Conn::Client(client), true, rig.now());
    rig.until_there_are(0, false);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(rig.proxy.subscription_counts(), [0; 4]);
}

/// Five times what one turn looks at.
const VERY_MANY: usize = 20_000;
/// So many it may be, with those that have lost their node.
const PIECE: usize = 8 * 1024;

fn channel_names() -> Vec<String> {
    (0..VERY_MANY).map(|n| format!("channel-{n}")).collect()
}

/// What a client is told of all its channels, and how many are left after each.
fn confirmations(verb: &str, counted: impl Iterator<Item = usize>) -> String {
    let len = verb.len();
    let one = |(name, count): (String, usize)| {
        format!("*3 ${len} {verb} ${} {name} :{count} ", name.len())
    };
    channel_names().into_iter().zip(counted).map(one).collect()
}

impl Rig {
    /// Turn by turn, until there are so many channels: by pieces, and somebody else is answered in
    /// each turn. Nodes do what they are asked, or nobody answers.
    fn until_there_are(&mut self, count: usize, served: bool) {
        let other = self.client();
        for _ in 0..1_500 {
            let before = self.proxy.subscription_counts()[0];
            self.proxy.handle_received(Conn::Client(other), &words("PING"), self.now());
            if served {
                self.serve_channels(1);
            } else {
                self.turn();
                self.now_ms += 1;
            }
            assert_eq!(self.told(Conn::Client(other)), "+PONG ");
            let after = self.proxy.subscription_counts()[0];
            assert!(before.abs_diff(after) <= PIECE, "{before} {after}");
            if after == count && before == count {
                return;
            }
        }
        panic!("{} channels, not {count}", self.proxy.subscription_counts()[0]);
    }

    /// Nodes let in who asks for messages, and do what they are asked; then one of them sends a
    /// message on the first channel, in each turn.
    fn serve_channels(&mut self, turns: usize) {
        let mut home = None;
        for _ in 0..turns {
            for (backend, _) in std::mem::take(&mut self.connecting) {
                let now = self.now();
                self.proxy.handle_connected(backend, true, now);
                self.turn();
                self.told(Conn::Backend(backend));
                self.answer(backend, "%1 $5 proto :3 ");
            }
            for (backend, _) in self.addresses.clone() {
                let told = self.told(Conn::Backend(backend));
                let (mut rest, mut said) = (told.as_str(), String::new());
                while let Some((words, behind)) = first_request(rest) {
                    rest = behind;
                    let [verb, name] = words[..] else { continue };
                    let (verb, len) = (verb.to_lowercase(), name.len());
                    said += &format!(">3\r\n${}\r\n{verb}\r\n", verb.len());
                    said += &format!("${len}\r\n{name}\r\n:1\r\n");
                    if name == "channel-0" {
                        home = Some(backend);
                    }
                }
                if home == Some(backend) {
                    said += ">3\r\n$7\r\nmessage\r\n$9\r\nchannel-0\r\n$1\r\nm\r\n";
                }
                let now = self.now();
                self.proxy.handle_received(Conn::Backend(backend), said.as_bytes(), now);
            }
            self.turn();
            self.now_ms += 1;
        }
    }

    /// A client that is subscribed to very many channels.
    fn subscriber_of_very_many(&mut self) -> u32 {
        let client = self.client();
        let line = words(&format!("SUBSCRIBE {}", channel_names().join(" ")));
        self.proxy.handle_received(Conn::Client(client), &line, self.now());
        client
    }
}

#[test]
fn very_many_channels_are_subscribed_to_in_pieces_and_confirmed_before_their_first_message() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.subscriber_of_very_many();
    rig.until_there_are(VERY_MANY, false);
    assert_eq!(rig.told(Conn::Client(client)), "", "no node has confirmed anything");
    rig.serve_channels(40);
    let told = rig.told(Conn::Client(client));
    let messages = told.strip_prefix(&confirmations("subscribe", 1..)).expect("confirmations");
    let one = "*3 $7 message $9 channel-0 $1 m ";
    assert!(messages.len() > one.len(), "{messages}");
    assert_eq!(messages.replace(one, ""), "");
}

#[test]
fn very_many_channels_are_left_in_pieces_whoever_leaves_them() {
    let names = channel_names().join(" ");
    let unsubscribed = confirmations("unsubscribe", (0..VERY_MANY).rev());
    for line in ["UNSUBSCRIBE", &format!("UNSUBSCRIBE {names}"), "RESET", "QUIT", ""] {
        let mut rig = Rig::new(Settings::default());
        let client = rig.subscriber_of_very_many();
        rig.until_there_are(VERY_MANY, false);
        rig.serve_channels(40);
        rig.told(Conn::Client(client));
        let request = [words(line), words("GET x")].concat();
        let now = rig.now();
        match line {
            "" => rig.proxy.handle_end(Conn::Client(client), true, now),
            _ => rig.proxy.handle_received(Conn::Client(client), &request, now),
        }
        // Its entry is nobody else's, and nobody else is sent what is still sent on its channels.
        rig.turn();
        let other = rig.client();
        assert_ne!(other, client);
        rig.until_there_are(0, true);
        assert_eq!(rig.told(Conn::Client(other)), "");
        assert_eq!(rig.proxy.subscription_counts(), [0; 4]);
        let told = rig.told(Conn::Client(client)).replace("*3 $7 message $9 channel-0 $1 m ", "");
        let verb = line.split(' ').next().unwrap();
        match verb {
            "UNSUBSCRIBE" => assert!(told.starts_with(&unsubscribed), "{verb}"),
            "RESET" => assert!(told.starts_with("+RESET "), "{told}"),
            "QUIT" => assert_eq!(told, "+OK "),
            _ => assert_eq!(told, ""),
        }
        assert_eq!(rig.closed.contains(&Conn::Client(client)), matches!(verb, "" | "QUIT"));
        if matches!(verb, "" | "QUIT") {
            let next: Vec<u32> = (0..10).map(|_| rig.client()).collect();
            assert!(next.contains(&client), "its entry is free: {client} {next:?}");
        }
    }
}

#[test]
fn very_many_channels_that_no_node_confirms_are_left_in_pieces_and_an_error_says_so() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.subscriber_of_very_many();
    rig.until_there_are(VERY_MANY, false);
    rig.pass(4_800);
    assert_eq!(rig.proxy.subscription_counts()[0], VERY_MANY);
    rig.until_there_are(0, false);
    let told = rig.told(Conn::Client(client));
    assert!(told.starts_with("-ERR ") && told.matches(' ').count() < 40, "{told}");
    assert_eq!(rig.proxy.subscription_counts(), [0; 4]);
    rig.ask(client, "PING");
    assert_eq!(rig.told(Conn::Client(client)), "+PONG ");
}

#[test]
fn connection_given_up_in_the_turn_that_asked_for_it_is_not_made() {
    let mut rig = Rig::new(Settings::default());
    let (blocked, other) = (rig.client(), rig.client());
    let key = key("k", true);
    let now = rig.now();
    // All in one turn: a connection to a node is asked for, the node leaves the map, and another one
    // takes its place.
    rig.proxy.handle_received(Conn::Client(blocked), &words(&format!("BLPOP {key} 0")), now);
    let mut next = (*map(3)).clone();
    next.nodes.remove(0);
    next.owners.iter_mut().for_each(|owner| *owner = 1 - *owner);
    rig.proxy.handle_topology(Arc::new(next), now);
    rig.proxy.handle_received(Conn::Client(other), &words(&format!("GET {key}")), now);
    rig.turn();
    let backends: Vec<u32> = rig.connecting.iter().map(|of| of.0).collect();
    for backend in &backends {
        let times = backends.iter().filter(|of| *of == backend).count();
        assert_eq!(times, 1, "{:?}", rig.connecting);
    }
}

#[test]
fn client_that_watches_all_twice_is_shown_each_command_once() {
    let mut rig = Rig::new(Settings::default());
    let settings = Settings::default();
    let admin =
        ringway::proxy::local::Identity { admin_user: Some("default".into()), ..identity() };
    rig.proxy = Proxy::new(settings, Arc::new(admin), [1, 2, 3, 4], 1, 1);
    let (watcher, other) = (rig.client(), rig.client());
    for line in ["MONITOR", "RESET", "MONITOR"] {
        rig.ask(watcher, line);
    }
    assert_eq!(rig.told(Conn::Client(watcher)), "+OK +RESET +OK ");
    rig.ask(other, "PING");
    assert_eq!(rig.told(Conn::Client(watcher)).matches("PING").count(), 1);
}

#[test]
fn client_that_is_over_its_limit_when_scripts_are_refused_is_closed_alone() {
    let settings = Settings { client_output_limit: 20_000, fence_lanes: 1, ..Settings::default() };
    let mut rig = Rig::new(settings);
    let (first, second) = (rig.client(), rig.client());
    let key = key("k", true);
    rig.ask(second, &format!("GET {key}"));
    rig.let_in(true);
    let shared = rig.backend_of(1);
    // It does not take its reply.
    rig.prompt = false;
    rig.answer(shared, &format!("$100000 {} ", "x".repeat(100_000)));
    rig.ask(first, &format!("EVAL x 1 {key}"));
    let fence = rig.backend_of(1);
    for _ in 0..3 {
        rig.ask(second, &format!("EVAL x 1 {key}"));
    }
    let now = rig.now();
    rig.proxy.handle_connected(fence, true, now);
    rig.settle();
    rig.answer(fence, "+PONG -NOPERM_x ");
    assert!(rig.told(Conn::Client(first)).starts_with("-NOPERM"));
    assert!(rig.closed.contains(&Conn::Client(second)));
    assert_eq!(rig.proxy.requests_open(), 0);
}

/// Its window opens as far as it may.
fn warm_up(rig: &mut Rig, client: u32) {
    let line = words(&format!("GET {}", key("w", true)));
    rig.proxy.handle_received(Conn::Client(client), &line.repeat(20_000), rig.now());
    rig.let_in(true);
    let shared = rig.backend_of(1);
    loop {
        let asked = rig.told(Conn::Backend(shared)).matches("GET").count();
        if asked == 0 {
            break;
        }
        rig.answer(shared, &"$1 v ".repeat(asked));
    }
    rig.told(Conn::Client(client));
}

/// Names of keys in different slots, all the first node's.
fn keys_in_slots(count: usize) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    let names = (0..).map(|n| format!("k{n}"));
    let mut new = |name: &String| {
        let slot = slot_of(name.as_bytes());
        slot < 8192 && seen.insert(slot)
    };
    names.filter(|name| new(name)).take(count).collect()
}

/// What the machine may take for what takes tens of milliseconds, and took tens of seconds.
const SOON: Duration = Duration::from_secs(3);

#[allow(clippy::disallowed_methods, reason = "how long the machine takes, not what time it is")]
fn clock() -> Instant {
    Instant::now()
}

#[test]
fn thousands_of_reads_behind_scripts_take_nobodys_time() {
    let mut rig = Rig::new(Settings { fence_lanes: 1, ..Settings::default() });
    let client = rig.client();
    warm_up(&mut rig, client);
    let keys = keys_in_slots(2_048);
    let scripts = keys.iter().flat_map(|key| words(&format!("EVAL x 1 {key}")));
    let reads = keys.iter().flat_map(|key| words(&format!("GET {key}")));
    let line: Vec<u8> = scripts.chain(reads).collect();
    let began = clock();
    rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
    rig.let_in(true);
    let (shared, fence) = (0, rig.backend_of(1));
    let mut scripts = 0;
    loop {
        let told = rig.told(Conn::Backend(fence));
        let nonces: Vec<&str> = told.split("ECHO $32 ").skip(1).map(|rest| &rest[..32]).collect();
        let reads = rig.told(Conn::Backend(shared)).matches("GET").count();
        if nonces.is_empty() && reads == 0 {
            break;
        }
        scripts += nonces.len();
        for nonce in nonces {
            // Each in a turn of its own: those behind look again.
            let bytes = format!(":1\r\n$32\r\n{nonce}\r\n");
            rig.proxy.handle_received(Conn::Backend(fence), bytes.as_bytes(), rig.now());
            rig.turn();
        }
        let bytes = "$1\r\nv\r\n".repeat(reads);
        rig.proxy.handle_received(Conn::Backend(shared), bytes.as_bytes(), rig.now());
        rig.turn();
    }
    assert_eq!((scripts, rig.proxy.requests_open()), (2_048, 0));
    let told = rig.told(Conn::Client(client));
    assert_eq!((told.matches(":1 ").count(), told.matches("$1 v ").count()), (2_048, 2_048));
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

// --- requests of thousands of parts: work is counted, as time hangs on the machine ----------------

/// For each key or part, at most so many entries may be looked at in searches for what is in whose
/// way (each is tried some times, beside some others of its slot). Those that were quadratic looked
/// at thousands.
const LOOKS: u64 = 40;

/// Keys of so many slots, two in each, all the first node's.
fn pairs_in_slots(slots: usize) -> Vec<String> {
    let names = keys_in_slots(slots);
    names.iter().flat_map(|name| [format!("{{{name}}}a"), format!("{{{name}}}b")]).collect()
}

impl Rig {
    /// What both nodes are asked, as words, is answered until nothing is asked any more, or too
    /// long. Other clients ask for so much meanwhile that nothing waits for leave to be repeated.
    fn answer_all(&mut self, answer: impl Fn(u8, &[&str]) -> String) {
        let busy = self.client();
        let pings = words("PING").repeat(3_400);
        let mut unread = [String::new(), String::new()];
        for _ in 0..20_000 {
            // Those without leave look again every 10 ms.
            if self.now_ms % 10 == 0 {
                self.proxy.handle_received(Conn::Client(busy), &pings, self.now());
            }
            for (number, unread) in (1..).zip(&mut unread) {
                let backend = self.backend_of(number);
                *unread += &self.told(Conn::Backend(backend));
                let (mut answers, mut rest) = (String::new(), unread.as_str());
                while let Some((request, behind)) = first_request(rest) {
                    answers += &answer(number, &request);
                    rest = behind;
                }
                let left = rest.to_owned();
                *unread = left;
                let now = self.now();
                self.proxy.handle_received(Conn::Backend(backend), answers.as_bytes(), now);
            }
            self.turn();
            self.told(Conn::Client(busy));
            self.now_ms += 1;
            if self.proxy.requests_open() == 0 {
                return;
            }
        }
        panic!("{} requests are never answered", self.proxy.requests_open());
    }

    /// Both nodes are connected, and this client's window is open.
    fn warm(&mut self) -> u32 {
        let client = self.client();
        self.ask(client, &format!("GET {}", key("w", false)));
        self.let_in(true);
        let second = self.backend_of(2);
        self.answer(second, "$1 v ");
        warm_up(self, client);
        self.told(Conn::Backend(second));
        client
    }
}

/// The words of the first request in what a node was told, and what is behind it, if it is whole.
fn first_request(told: &str) -> Option<(Vec<&str>, &str)> {
    let (count, mut rest) = told.strip_prefix('*')?.split_once(' ')?;
    let mut words = Vec::new();
    for _ in 0..count.parse::<usize>().ok()? {
        let (len, behind) = rest.strip_prefix('$')?.split_once(' ')?;
        let (word, behind) = behind.split_at_checked(len.parse().ok()?)?;
        words.push(word);
        rest = behind.strip_prefix(' ')?;
    }
    Some((words, rest))
}

/// The values that an MGET or MSET is answered with.
fn served(words: &[&str]) -> String {
    match words[0] {
        "MGET" => format!("*{}\r\n", words.len() - 1) + &"$1\r\nv\r\n".repeat(words.len() - 1),
        _ => "+OK\r\n".into(),
    }
}

#[test]
fn tryagain_to_each_part_of_huge_requests_takes_work_that_grows_as_they_do() {
    for (requests, name) in [(1, "MGET"), (3, "MGET"), (1, "MSET"), (2, "MSET")] {
        let mut rig = Rig::new(Settings { request_timeout_ms: 60_000, ..Settings::default() });
        let client = rig.warm();
        let keys = pairs_in_slots(if requests == 1 { 5_000 } else { 1_500 });
        let line = match name {
            "MGET" => format!("MGET {}", keys.join(" ")),
            _ => format!("MSET {} 1", keys.join(" 1 ")),
        };
        let before = rig.proxy.looked_at();
        for _ in 0..requests {
            rig.proxy.handle_received(Conn::Client(client), &words(&line), rig.now());
        }
        rig.turn();
        // Only key by key it is served.
        let one = if name == "MGET" { 2 } else { 3 };
        rig.answer_all(|_, words| match words.len() > one {
            true => "-TRYAGAIN x\r\n".into(),
            false => served(words),
        });
        let looked_at = rig.proxy.looked_at() - before;
        let told = rig.told(Conn::Client(client));
        let count = (requests * keys.len()) as u64;
        println!("{requests} {name}: {looked_at} looks for {count} keys");
        match name {
            "MGET" => assert_eq!(told.matches("$1 v ").count() as u64, count),
            _ => assert_eq!(told.matches("+OK ").count(), requests, "{told}"),
        }
        assert!(looked_at <= LOOKS * count, "{requests} {name}: {looked_at} for {count}");
    }
}

/// Parts of one request do not wait for each other.
#[test]
fn key_that_is_set_twice_keeps_its_last_value_when_its_request_is_divided() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.warm();
    let (one, two) = (key("a", true), key("b", true));
    let line = format!("MSET {one} 1 {two} 2 {one} 3");
    rig.proxy.handle_received(Conn::Client(client), &words(&line), rig.now());
    rig.turn();
    let (value, refused) = (RefCell::new(String::new()), Cell::new(false));
    rig.answer_all(|_, words| {
        let names: Vec<&str> = words[1..].chunks(2).map(|pair| pair[0]).collect();
        if names.iter().any(|name| *name != names[0]) {
            return "-TRYAGAIN x\r\n".into();
        }
        // The first of them is refused for a moment: what was behind it runs before.
        if names[0] == one && !refused.replace(true) {
            return "-LOADING x\r\n".into();
        }
        if names[0] == one {
            *value.borrow_mut() = words[words.len() - 1].to_owned();
        }
        "+OK\r\n".into()
    });
    assert_eq!(rig.told(Conn::Client(client)), "+OK ");
    assert_eq!(value.into_inner(), "3");
}

#[test]
fn key_that_is_asked_for_twice_is_answered_twice_when_its_request_is_divided() {
    for more in ["", &format!(" {}", key("c", false))] {
        let mut rig = Rig::new(Settings::default());
        let client = rig.warm();
        let (one, two) = (key("a", true), key("b", true));
        let line = format!("MGET {one} {two} {one}{more}");
        rig.proxy.handle_received(Conn::Client(client), &words(&line), rig.now());
        rig.turn();
        rig.answer_all(|_, words| match words[1..].iter().any(|name| *name != words[1]) {
            true => "-TRYAGAIN x\r\n".into(),
            false => {
                let name = &words[1][words[1].len() - 1..];
                format!("*{}\r\n", words.len() - 1)
                    + &format!("$1\r\n{name}\r\n").repeat(words.len() - 1)
            }
        });
        let last = if more.is_empty() { "" } else { "$1 c " };
        let count = if more.is_empty() { 3 } else { 4 };
        assert_eq!(rig.told(Conn::Client(client)), format!("*{count} $1 a $1 b $1 a {last}"));
    }
}

#[test]
fn moved_to_each_part_of_huge_requests_takes_work_that_grows_as_they_do() {
    for requests in [1, 3] {
        let mut rig = Rig::new(Settings::default());
        let client = rig.warm();
        let keys = keys_in_slots(if requests == 1 { 8_000 } else { 3_000 });
        let line = words(&format!("MGET {}", keys.join(" "))).repeat(requests);
        let before = rig.proxy.looked_at();
        rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
        rig.turn();
        rig.answer_all(|number, words| match number {
            1 => format!("-MOVED {} 10.0.0.2:7000\r\n", slot_of(words[1].as_bytes())),
            _ => served(words),
        });
        let looked_at = rig.proxy.looked_at() - before;
        let count = (requests * keys.len()) as u64;
        println!("{requests} MGET: {looked_at} looks for {count} parts");
        assert_eq!(rig.told(Conn::Client(client)).matches("$1 v ").count() as u64, count);
        assert!(rig.moved.len() >= keys.len(), "{} were led", rig.moved.len());
        assert!(looked_at <= LOOKS * count, "{requests}: {looked_at} for {count}");
    }
}

#[test]
fn tryagain_to_thousands_of_keys_before_thousands_of_requests_takes_work_that_grows_as_they_do() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.warm();
    let pairs = |from: usize| {
        let pairs: Vec<String> = (from..from + 5_000).map(|n| format!("{{w}}{n} 1")).collect();
        words(&format!("MSET {}", pairs.join(" ")))
    };
    let before = rig.proxy.looked_at();
    rig.proxy.handle_received(Conn::Client(client), &pairs(0), rig.now());
    rig.proxy.handle_received(Conn::Client(client), &pairs(5_000), rig.now());
    let others: Vec<u8> = (0..2_000).flat_map(|n| words(&format!("SET {{w}}other{n} 1"))).collect();
    rig.proxy.handle_received(Conn::Client(client), &others, rig.now());
    // Before its bytes are back nobody can tell what a request names.
    rig.settle();
    let first = std::cell::Cell::new(true);
    rig.answer_all(|_, words| match first.replace(false) {
        true => "-TRYAGAIN x\r\n".into(),
        false => served(words),
    });
    let told = rig.told(Conn::Client(client));
    assert!(told == "+OK ".repeat(2_002), "{} of them, {told:.40}", told.matches("+OK ").count());
    let looked_at = rig.proxy.looked_at() - before;
    println!("{looked_at} looks for 12,000 keys");
    assert!(looked_at <= LOOKS * 12_000, "{looked_at}");
}

#[test]
fn client_that_leaves_while_thousands_of_its_parts_wait_for_their_bytes_leaves_nothing() {
    let mut rig = Rig::new(Settings::default());
    let (client, other) = (rig.warm(), rig.client());
    let keys = keys_in_slots(2_000);
    let first = rig.backend_of(1);
    // Refused before their send has come back.
    rig.prompt = false;
    let line = words(&format!("MGET {}", keys.join(" ")));
    rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
    rig.proxy.handle_received(Conn::Client(other), &words(&format!("GET {}", keys[0])), rig.now());
    rig.turn();
    assert_eq!(rig.told(Conn::Backend(first)).matches("MGET").count(), keys.len());
    let answers = "-TRYAGAIN x\r\n".repeat(keys.len() + 1);
    rig.proxy.handle_received(Conn::Backend(first), answers.as_bytes(), rig.now());
    rig.turn();
    assert_eq!(rig.proxy.requests_open(), keys.len() + 2);
    rig.proxy.handle_end(Conn::Client(client), true, rig.now());
    rig.turn();
    assert_eq!(rig.proxy.requests_open(), 1, "what the other one waits for");
    rig.prompt = true;
    rig.pass(100);
    assert!(rig.told(Conn::Backend(first)).contains("GET"), "it is asked for again");
    rig.answer(first, "$1 v ");
    assert_eq!(rig.told(Conn::Client(other)), "$1 v ");
    assert_eq!(rig.proxy.requests_open(), 0);
}

#[test]
fn client_that_leaves_with_thousands_of_scripts_waiting_takes_nobodys_time() {
    let mut rig = Rig::new(Settings { fence_lanes: 1, ..Settings::default() });
    let clients: Vec<u32> = (0..20).map(|_| rig.client()).collect();
    clients.iter().for_each(|&client| warm_up(&mut rig, client));
    let line = words(&format!("EVAL x 1 {}", key("w", true))).repeat(4_096);
    let began = clock();
    for &client in &clients {
        rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
    }
    rig.settle();
    for &client in &clients {
        rig.proxy.handle_end(Conn::Client(client), true, rig.now());
    }
    rig.settle();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert!(rig.proxy.requests_open() <= 2 * 64 + 2, "what is in the one FIFO");
}

#[test]
fn thousands_of_requests_that_wait_for_a_loading_node_take_nobodys_time() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    warm_up(&mut rig, client);
    let keys = keys_in_slots(4_096);
    let line: Vec<u8> = keys.iter().flat_map(|key| words(&format!("GET {key}"))).collect();
    let began = clock();
    rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
    rig.settle();
    let mut refused = 0;
    while rig.proxy.requests_open() > 0 {
        let asked = rig.told(Conn::Backend(0)).matches("GET").count();
        refused += asked;
        let bytes = "-LOADING x\r\n".repeat(asked);
        rig.proxy.handle_received(Conn::Backend(0), bytes.as_bytes(), rig.now());
        rig.turn();
        rig.now_ms = rig.proxy.plan().clamp(rig.now_ms + 1, rig.now_ms + 500);
    }
    assert!(refused > 4_096, "some are sent again");
    assert_eq!(rig.told(Conn::Client(client)).matches("-LOADING x ").count(), 4_096);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

/// A hundred thousand requests in as many turns, and each of them wants its own bytes back.
#[test]
fn node_that_falls_silent_under_many_short_sends_is_given_up_in_no_time() {
    let mut rig = Rig::new(Settings::default());
    let clients: Vec<u32> = (0..2_000).map(|_| rig.client()).collect();
    let line = words(&format!("GET {}", key("k", true)));
    rig.ask(clients[0], &format!("GET {}", key("k", true)));
    rig.let_in(true);
    let backend = rig.backend_of(1);
    for _ in 0..50 {
        for &client in &clients {
            rig.proxy.handle_received(Conn::Client(client), &line, rig.now());
            rig.turn();
        }
        rig.sent.clear();
    }
    let began = clock();
    rig.proxy.handle_end(Conn::Backend(backend), true, rig.now());
    rig.turn();
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn request_refused_by_a_node_that_leaves_goes_on_to_where_it_was_sent() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let key = key("k", true);
    rig.ask(client, &format!("GET {key}"));
    rig.let_in(true);
    let first = rig.backend_of(1);
    rig.answer(first, "$1 v ");
    // Its send has not come back when it is refused and its node leaves the map.
    rig.prompt = false;
    rig.ask(client, &format!("GET {key}"));
    let slot = slot_of(key.as_bytes());
    rig.answer(first, &format!("-MOVED_{slot}_10.0.0.2:7000 "));
    let mut next = (*map(2)).clone();
    next.nodes.remove(0);
    next.owners.iter_mut().for_each(|owner| *owner = 0);
    rig.proxy.handle_topology(Arc::new(next), rig.now());
    rig.prompt = true;
    rig.settle();
    rig.told(Conn::Client(client));
    rig.let_in(true);
    let second = rig.backend_of(2);
    assert!(rig.told(Conn::Backend(second)).contains("GET"));
    rig.answer(second, "$1 w ");
    assert_eq!(rig.told(Conn::Client(client)), "$1 w ");
}

// --- nodes that leave, or are slow ----------------------------------------------------------------

/// The second node is this one by now.
fn map_with_second(number: u8, version: u64) -> Arc<Topology> {
    let mut changed = Topology::clone(&map(2));
    changed.nodes[1].address = Some(node(number));
    changed.nodes[1].endpoint.host = format!("10.0.0.{number}").into();
    changed.nodes[1].id = format!("{number:040}").into();
    changed.version += version;
    Arc::new(changed)
}

impl Rig {
    /// Only this node can be reached, and lets in.
    fn let_in_only(&mut self, number: u8) {
        self.turn();
        for (backend, address) in std::mem::take(&mut self.connecting) {
            let now = self.now();
            self.proxy.handle_connected(backend, address == node(number), now);
            self.turn();
            if address == node(number) {
                let fenced = |of: &(Conn, String)| {
                    of.0 == Conn::Backend(backend) && of.1.ends_with("ECHO $5 fence ")
                };
                let fenced = self.sent.iter().any(fenced);
                self.answer(backend, if fenced { "+PONG $5 fence " } else { "+PONG " });
            }
        }
    }
}

/// Two changes of the map within one backoff: the next one finds the entry of a node that has left
/// free.
#[test]
fn command_for_a_node_that_leaves_while_it_waits_is_refused_and_never_sent_to_its_successor() {
    let refusal = "-ERR the node that was to run it has left, the command has not run";
    for line in ["SELECT 3", "SCRIPT LOAD return_1"] {
        let mut rig = Rig::new(Settings::default());
        let client = rig.client();
        rig.ask(client, line);
        rig.let_in_only(1);
        rig.let_in_only(1);
        rig.told(Conn::Backend(rig.backend_of(2)));
        let first = rig.backend_of(1);
        let asked = rig.told(Conn::Backend(first));
        let nonce = if line.starts_with("SCRIPT") { Rig::nonce(&asked) } else { String::new() };
        rig.answer(first, &format!("+OK {nonce}"));
        rig.proxy.handle_topology(map_with_second(9, 1), rig.now());
        rig.let_in_only(1);
        rig.let_in_only(1);
        rig.proxy.handle_topology(map_with_second(11, 2), rig.now());
        rig.let_in(true);
        rig.pass(1_000);
        rig.let_in(true);
        let told = rig.told(Conn::Client(client));
        assert!(told.starts_with(refusal), "{told} {:?}", rig.sent);
        let name = line.split(' ').next().unwrap();
        assert!(!rig.sent.iter().any(|of| of.1.contains(name)), "{:?}", rig.sent);
    }
}

/// As above: between two looks of a walk the node that a slot was leaving for is lost, and another
/// one has come that it leaves for by now.
#[test]
fn node_in_the_place_of_one_that_a_walk_has_looked_at_is_looked_at_too() {
    let mut rig = Rig::new(Settings::default());
    let client = rig.client();
    let key = key("k", true);
    let tag = &key[..key.len() - 1];
    let slot = slot_of(key.as_bytes());
    rig.ask(client, &format!("SCAN 0 MATCH {tag}*"));
    let (mut looked_at, mut moved) = (Vec::new(), false);
    for _ in 0..60 {
        rig.let_in(true);
        let first = rig.backend_of(1);
        // Between what was found where it goes and the last look at where it leaves.
        if looked_at == [1, 1, 2] && !moved {
            moved = true;
            for (number, version) in [(3, 1), (4, 2)] {
                rig.proxy.handle_topology(map_with_second(number, version), rig.now());
                rig.settle();
            }
        }
        let target = if moved { 4 } else { 2 };
        let mut asked = vec![first];
        asked.extend(rig.addresses.iter().filter(|of| of.1 == node(target)).map(|of| of.0));
        for backend in asked {
            let told = rig.told(Conn::Backend(backend));
            let (mut rest, mut answers) = (told.as_str(), String::new());
            let number = if backend == first { 1 } else { target };
            while let Some((words, behind)) = first_request(rest) {
                rest = behind;
                answers += &match (words[0], number) {
                    ("EXISTS", 1) => format!("-ASK_{slot}_10.0.0.{target}:7000 "),
                    ("ASKING", _) => "+OK ".into(),
                    ("EXISTS", _) => ":0 ".into(),
                    ("CLUSTER", _) if words[1] == "INFO" => "$18 cluster_my_epoch:1 ".into(),
                    ("CLUSTER", 4) => format!("*1 ${} {key} ", key.len()),
                    ("CLUSTER", _) => "*0 ".into(),
                    // Who let us in has answered.
                    _ => String::new(),
                };
                if words[0] == "CLUSTER" && words[1] != "INFO" {
                    looked_at.push(number);
                }
            }
            if !answers.is_empty() {
                rig.answer(backend, &answers);
            }
        }
        rig.settle();
    }
    let told = rig.told(Conn::Client(client));
    assert!(moved && told.contains(&key), "{told}; looked at {looked_at:?}");
}

/// PROXY NODE: as above, but who may ask single nodes is told which it was.
#[test]
fn command_of_an_admin_for_a_node_that_leaves_is_refused_by_name_or_answered_by_that_node() {
    let line = "PROXY NODE 10.0.0.2:7000 CONFIG GET maxmemory";
    let admins = || {
        let mut rig = Rig::of_admin(Settings::default());
        let client = rig.client();
        rig.ask(client, line);
        (rig, client)
    };
    // No connection to it could be made yet.
    let (mut rig, client) = admins();
    rig.let_in_only(1);
    rig.proxy.handle_topology(map_with_second(9, 1), rig.now());
    rig.let_in_only(1);
    rig.proxy.handle_topology(map_with_second(11, 2), rig.now());
    rig.pass(1_000);
    rig.let_in(true);
    let refusal = "-ERR the node 10.0.0.2:7000 has left, the command has not run ";
    assert_eq!(rig.told(Conn::Client(client)), refusal);
    assert!(!rig.sent.iter().any(|of| of.1.contains("CONFIG")), "{:?}", rig.sent);
    // It has it already, and answers although it has left.
    let (mut rig, client) = admins();
    rig.let_in(true);
    let second = rig.backend_of(2);
    assert!(rig.told(Conn::Backend(second)).contains("$6 CONFIG $3 GET $9 maxmemory "));
    rig.proxy.handle_topology(map_with_second(9, 1), rig.now());
    rig.settle();
    assert_eq!(rig.told(Conn::Client(client)), "");
    rig.answer(second, "*2 $9 maxmemory $1 0 ");
    assert_eq!(rig.told(Conn::Client(client)), "*2 $9 maxmemory $1 0 ");
    // It has it, and ends with its connection: whether it ran nobody knows.
    let (mut rig, client) = admins();
    rig.let_in(true);
    let second = rig.backend_of(2);
    rig.proxy.handle_topology(map_with_second(9, 1), rig.now());
    rig.proxy.handle_end(Conn::Backend(second), true, rig.now());
    rig.pass(1_000);
    let lost = "-ERR connection to server lost, the command may have run ";
    assert_eq!(rig.told(Conn::Client(client)), lost);
    // Later it is no node of the map any more, and the one in its place is asked by its own name.
    rig.ask(client, line);
    assert_eq!(rig.told(Conn::Client(client)), "-ERR No such node, see PROXY NODES ");
    rig.ask(client, &line.replace("10.0.0.2", "10.0.0.9"));
    rig.let_in(true);
    assert!(rig.told(Conn::Backend(rig.backend_of(9))).contains("maxmemory"));
}

#[test]
fn redirect_of_a_script_whose_key_a_later_script_has_written_is_not_followed_any_more() {
    let mut rig = Rig::new(Settings { fence_lanes: 1, ..Settings::default() });
    let client = rig.client();
    let one = key("a", true);
    let slot = slot_of(one.as_bytes());
    let lines = ["x", "y"].map(|body| format!("EVAL {body} 1 {one}"));
    let node = asked_at_once(&mut rig, client, &[&lines[0], &lines[1]]);
    let told = rig.told(Conn::Backend(node));
    let nonces: Vec<&str> = told.split(' ').filter(|word| word.len() == 32).collect();
    assert_eq!(nonces.len(), 2, "{told}");
    let moved = format!("-MOVED_{slot}_10.0.0.2:7000");
    rig.answer(node, &format!("{moved} $32 {} :2 $32 {} ", nonces[0], nonces[1]));
    rig.let_in(true);
    rig.pass(50);
    let told = rig.told(Conn::Client(client));
    assert!(told.starts_with("-TRYAGAIN ") && told.ends_with(" :2 "), "{told}");
    assert!(!rig.sent.iter().any(|of| of.1.contains("EVAL")), "{:?}", rig.sent);
}

/// The proxy has seen script `x` run at the first node, and all has come back. The lane there.
fn lane_where_x_has_run(rig: &mut Rig, client: u32) -> u32 {
    rig.ask(client, &format!("EVAL x 1 {}", key("first", true)));
    rig.let_in(true);
    let lane = rig.backend_of(1);
    let nonce = Rig::nonce(&rig.told(Conn::Backend(lane)));
    rig.answer(lane, &format!(":1 {nonce}"));
    rig.told(Conn::Client(client));
    lane
}

/// What the lane was sent since, and the numbers that it waits for.
fn sent_to(rig: &mut Rig, lane: u32) -> (String, Vec<String>) {
    let told = rig.told(Conn::Backend(lane));
    let nonces = told.split(' ').filter(|word| word.len() == 32).map(str::to_owned).collect();
    (told, nonces)
}

const MISSING: &str = "-NOSCRIPT_No_matching_script.";

/// A script that its node may lack, with a key, and a later one of the same client that is sent
/// whole, with this key: both are at a lane, which waits for these two numbers.
fn kept_script_before_a_whole_one(of_later: &str) -> (Rig, u32, u32, [String; 2]) {
    let mut rig = Rig::new(Settings { fence_lanes: 1, ..Settings::default() });
    let client = rig.client();
    let lane = lane_where_x_has_run(&mut rig, client);
    let (one, name) = (key("a", true), crate::scripts::name(b"x"));
    let lines = [format!("EVALSHA {name} 1 {one}"), format!("EVAL y 1 {of_later}")];
    asked_at_once(&mut rig, client, &[&lines[0], &lines[1]]);
    let (told, nonces) = sent_to(&mut rig, lane);
    let both = nonces.try_into();
    (rig, client, lane, both.unwrap_or_else(|_| panic!("both are under way: {told}")))
}

#[test]
fn script_that_is_missing_and_whose_key_a_later_one_has_written_is_not_run_any_more() {
    let (mut rig, client, lane, nonces) = kept_script_before_a_whole_one(&key("a", true));
    rig.answer(lane, &format!("{MISSING} $32 {} ", nonces[0]));
    rig.pass(20);
    assert_eq!(sent_to(&mut rig, lane).0, "", "nothing is known of the second yet");
    rig.answer(lane, &format!(":2 $32 {} ", nonces[1]));
    rig.pass(50);
    assert_eq!(rig.told(Conn::Client(client)), "-NOSCRIPT No matching script. :2 ");
    assert_eq!(sent_to(&mut rig, lane).0, "", "it does not run after the later one");
}

#[test]
fn script_that_is_missing_is_loaded_and_run_though_a_later_one_of_another_key_has_run() {
    let (mut rig, client, lane, nonces) = kept_script_before_a_whole_one(&key("b", true));
    rig.answer(lane, &format!("{MISSING} $32 {} :2 $32 {} ", nonces[0], nonces[1]));
    rig.pass(20);
    let (told, nonces) = sent_to(&mut rig, lane);
    assert!(told.contains("LOAD") && told.contains("EVALSHA"), "{told}");
    rig.answer(lane, &format!("+sha :1 $32 {} ", nonces[0]));
    assert_eq!(rig.told(Conn::Client(client)), ":1 :2 ");
}

#[test]
fn scripts_that_are_missing_are_loaded_and_run_in_their_order() {
    let mut rig = Rig::new(Settings { fence_lanes: 1, ..Settings::default() });
    let client = rig.client();
    let lane = lane_where_x_has_run(&mut rig, client);
    let (one, name) = (key("a", true), crate::scripts::name(b"x"));
    let lines = ["1st", "2nd", "3rd"].map(|word| format!("EVALSHA {name} 1 {one} {word}"));
    asked_at_once(&mut rig, client, &[&lines[0], &lines[1], &lines[2]]);
    let (_, nonces) = sent_to(&mut rig, lane);
    let all: String = nonces.iter().map(|nonce| format!("{MISSING} $32 {nonce} ")).collect();
    rig.answer(lane, &all);
    let mut seen = String::new();
    for _ in 0..3 {
        rig.pass(20);
        let (told, nonces) = sent_to(&mut rig, lane);
        seen += &told;
        let answers: String = nonces.iter().map(|of| format!("+sha :7 $32 {of} ")).collect();
        if !answers.is_empty() {
            rig.answer(lane, &answers);
        }
    }
    let places = ["1st", "2nd", "3rd"].map(|word| seen.find(word));
    assert!(places.is_sorted() && places[0].is_some(), "{seen}");
    assert_eq!(rig.told(Conn::Client(client)), ":7 :7 :7 ");
}

#[test]
fn script_that_is_missing_is_not_run_after_a_later_one_that_wrote_and_says_it_was_refused() {
    let (mut rig, client, lane, nonces) = kept_script_before_a_whole_one(&key("a", true));
    let said = "-LOADING_said_a_script";
    rig.answer(lane, &format!("{MISSING} $32 {} {said} $32 {} ", nonces[0], nonces[1]));
    rig.pass(50);
    let told = rig.told(Conn::Client(client));
    assert_eq!(told, "-NOSCRIPT No matching script. -LOADING said a script ");
    assert_eq!(sent_to(&mut rig, lane).0, "");
}

#[test]
fn redirected_request_that_waits_for_a_younger_one_too_long_is_told_of_the_time() {
    let mut rig = Rig::new(Settings { request_timeout_ms: 1_000, ..Settings::default() });
    let client = rig.client();
    let one = key("a", true);
    let slot = slot_of(one.as_bytes());
    let lines = [format!("SET {one} 1"), format!("SET {one} 2")];
    let node = asked_at_once(&mut rig, client, &[&lines[0], &lines[1]]);
    rig.answer(node, &format!("-MOVED_{slot}_10.0.0.2:7000 "));
    rig.let_in(true);
    rig.pass(3_000);
    let told = rig.told(Conn::Client(client));
    let late = "-ERR no reply from server in time, the command has not run";
    assert!(told.starts_with(late), "{told}");
}

/// Whether a node is given up that answers a GET in so many bytes every so often, for 20 seconds.
fn is_given_up(bytes: usize, every_ms: u64) -> bool {
    let mut rig = Rig::new(Settings { request_timeout_ms: 1_000, ..Settings::default() });
    let (client, behind) = (rig.client(), rig.client());
    rig.ask(client, &format!("GET {}", key("k", true)));
    rig.let_in(true);
    rig.ask(behind, &format!("GET {}", key("k", true)));
    let backend = rig.backend_of(1);
    rig.answer(backend, "$100000000 x");
    let until = rig.now_ms + 20_000;
    while rig.now_ms < until && !rig.closed.contains(&Conn::Backend(backend)) {
        rig.answer(backend, &"x".repeat(bytes));
        rig.pass(every_ms - 4);
    }
    rig.closed.contains(&Conn::Backend(backend))
}

#[test]
fn node_that_drips_one_reply_is_given_up_and_one_that_streams_is_not() {
    assert!(is_given_up(1, 500));
    assert!(is_given_up(1_000, 100), "10 KB/s");
    assert!(!is_given_up(10_000, 100), "100 KB/s");
}

#[test]
fn node_that_loads_is_let_in_wherever_its_answer_is_cut() {
    for said in ["-LOADING_x ", "-BUSY_x "] {
        for cut in 1..said.len() {
            let mut rig = Rig::new(Settings::default());
            let client = rig.client();
            rig.ask(client, &format!("GET {}", key("k", true)));
            let backend = rig.backend_of(1);
            rig.proxy.handle_connected(backend, true, rig.now());
            rig.settle();
            rig.answer(backend, &said[..cut]);
            rig.answer(backend, &said[cut..]);
            assert!(rig.told(Conn::Backend(backend)).contains("GET"), "{said} cut at {cut}");
        }
    }
}

mod hostile;
