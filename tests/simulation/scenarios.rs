//! Single courses of events, driven by hand: each was found by a seed once and is kept by name.
//!
//! Not here: chance.

use std::net::SocketAddr;
use std::sync::Arc;

use ringway::cluster::{Endpoint, Node, Role, SLOTS, Topology, slot_of};
use ringway::proxy::{Action, Conn, Memory, Now, Proxy, Settings, Socket};

use crate::nodes::bulk;
use crate::world::identity;

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
            unread: Vec::new(),
            sockets: 0,
            prompt: true,
        };
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
                Action::StopReading { socket } => self.unread.push(socket),
                Action::StartReading { socket } => self.unread.retain(|of| *of != socket),
                _ => (),
            }
        }
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
            if ok {
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
fn memory_used_up_closes_the_heaviest_client_and_refuses_new_ones() {
    let mut rig = Rig::new(Settings::default());
    let (_, heavy) = light_and_heavy(&mut rig);
    rig.memory(101);
    assert_eq!(rig.closed, [Conn::Client(heavy)]);
    let (socket, peer, now) = (rig.socket(), node(9), rig.now());
    assert_eq!(rig.proxy.handle_accepted(socket, peer, peer, now), None);
    let line = String::from_utf8(rig.proxy.refusal()).unwrap();
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
