//! Two reactors' proxies without nodes, their messages carried by hand.

use std::net::SocketAddr;
use std::sync::Arc;

use super::local::Identity;
use super::peers::Query;
use super::{Action, Conn, Now, Proxy, Settings, Socket};
use crate::limits::PEERS_MS_MAX;

fn identity() -> Identity {
    Identity { maxclients: 100, listen_port: 1, reactors: 2, ..Identity::plain() }
}

struct Duo {
    proxies: [Proxy; 2],
    /// What each asks and nobody has carried yet.
    asked: [Vec<(u64, Arc<Query>)>; 2],
    closed: Vec<(usize, Conn)>,
    now_ms: u64,
}

impl Duo {
    fn new() -> Duo {
        let identity = Arc::new(identity());
        let proxy = |first| {
            let settings = Settings::default();
            let mut proxy = Proxy::new(settings, identity.clone(), [1, 2, 3, 4], first, 2);
            proxy.handle_peers(vec![2 - first as u16]);
            proxy
        };
        let (asked, closed) = (Default::default(), Vec::new());
        Duo { proxies: [proxy(1), proxy(2)], asked, closed, now_ms: 1 }
    }

    fn now(&self) -> Now {
        Now { ms: self.now_ms, unix_us: 0 }
    }

    fn client(&mut self, at: usize) -> u32 {
        let (peer, now) = (SocketAddr::from(([10, 0, 0, 1], 1)), self.now());
        self.proxies[at].handle_accepted(Socket::default(), peer, peer, now).unwrap()
    }

    /// One turn of a proxy: what it sends, as text.
    fn turn(&mut self, at: usize) -> String {
        let now = self.now();
        let (mut actions, mut text) = (Vec::new(), String::new());
        self.proxies[at].handle_time(now);
        self.proxies[at].flush(&mut actions);
        for action in actions {
            match action {
                Action::Send { conn, bytes, .. } => {
                    text.push_str(&String::from_utf8_lossy(&bytes));
                    self.proxies[at].handle_sent(conn, bytes, true, now);
                }
                Action::Ask { ticket, query } => self.asked[at].push((ticket, query)),
                Action::Close { conn, .. } => {
                    self.closed.push((at, conn));
                    self.proxies[at].handle_gone(conn, now);
                }
                _ => (),
            }
        }
        text
    }

    fn ask(&mut self, at: usize, client: u32, line: &str) -> String {
        let now = self.now();
        self.proxies[at].handle_received(Conn::Client(client), line.as_bytes(), now);
        self.turn(at)
    }

    /// The other one answers the oldest question of this one.
    fn carry(&mut self, from: usize) -> String {
        let (ticket, query) = self.asked[from].remove(0);
        let now = self.now();
        let told = self.proxies[1 - from].handle_asked(from as u16, &query, now);
        self.turn(1 - from);
        self.proxies[from].handle_told(ticket, 1 - from as u16, told, now);
        self.turn(from)
    }
}

#[test]
fn list_waits_for_the_other_reactor_and_keeps_its_place() {
    let mut duo = Duo::new();
    let (here, _there) = (duo.client(0), duo.client(1));
    assert_eq!(duo.ask(0, here, "PING\r\nCLIENT LIST\r\nECHO after\r\n"), "+PONG\r\n");
    let rest = duo.carry(0) + &duo.turn(0);
    assert!(rest.contains("id=1 ") && rest.contains("\nid=2 "), "{rest}");
    assert!(rest.ends_with("$5\r\nafter\r\n"), "{rest}");
}

#[test]
fn kill_reaches_the_other_reactor_and_at_last_the_asking_client() {
    let mut duo = Duo::new();
    let (here, there) = (duo.client(0), duo.client(1));
    assert_eq!(duo.ask(0, here, "CLIENT KILL TYPE normal SKIPME no\r\n"), "");
    assert!(duo.closed.is_empty());
    assert_eq!(duo.carry(0), ":2\r\n");
    duo.turn(0);
    assert_eq!(duo.closed, [(1, Conn::Client(there)), (0, Conn::Client(here))]);
}

#[test]
fn counting_anew_does_not_begin_anew_with_ids() {
    let mut duo = Duo::new();
    let here = duo.client(0);
    for at in [0, 0, 1, 1, 1] {
        duo.client(at);
    }
    // Ids of one are odd, of the other even.
    let next = |duo: &Duo| [0, 1].map(|at| duo.proxies[at].next_client_id());
    assert_eq!(next(&duo), [7, 8]);
    assert_eq!(duo.ask(0, here, "CONFIG RESETSTAT\r\n"), "", "the other one counts, too");
    assert_eq!(duo.carry(0), "+OK\r\n");
    assert_eq!([0, 1].map(|at| duo.proxies[at].tally.clients_total), [0, 0], "counted anew");
    assert_eq!(next(&duo), [7, 8]);
    duo.client(0);
    assert_eq!(next(&duo), [9, 8]);
}

#[test]
fn reactor_that_says_nothing_is_not_waited_for_for_ever() {
    let mut duo = Duo::new();
    let here = duo.client(0);
    assert_eq!(duo.ask(0, here, "CLIENT LIST\r\n"), "");
    duo.now_ms += PEERS_MS_MAX - 1;
    assert_eq!(duo.turn(0), "");
    duo.now_ms += 1 + 20;
    let late = duo.turn(0);
    assert!(late.starts_with("-ERR a part of the proxy did not answer in time"), "{late}");
    // What it says then belongs to nobody.
    assert_eq!(duo.carry(0), "");
    assert_eq!(duo.ask(0, here, "PING\r\n"), "+PONG\r\n");
}

#[test]
fn info_is_answered_although_a_reactor_says_nothing() {
    let mut duo = Duo::new();
    let (here, _there) = (duo.client(0), duo.client(1));
    assert_eq!(duo.ask(0, here, "INFO clients\r\n"), "");
    let told = duo.carry(0);
    assert!(told.contains("connected_clients:2\r\n"), "{told}");
    assert_eq!(duo.ask(0, here, "INFO clients\r\n"), "");
    duo.now_ms += PEERS_MS_MAX + 20;
    let late = duo.turn(0);
    assert!(late.contains("connected_clients:2\r\n"), "{late}");
}

#[test]
fn reactor_that_has_ended_has_no_clients() {
    let mut duo = Duo::new();
    let here = duo.client(0);
    assert_eq!(duo.ask(0, here, "CLIENT UNBLOCK 77\r\n"), "");
    let now = duo.now();
    duo.proxies[0].handle_peer_left(1, now);
    assert_eq!(duo.turn(0), ":0\r\n");
    // Nor is it asked again.
    assert_eq!(duo.ask(0, here, "CLIENT UNBLOCK 77\r\n"), ":0\r\n");
    assert_eq!(duo.asked[0].len(), 1);
}

#[test]
fn answer_for_a_client_that_has_left_is_dropped() {
    let mut duo = Duo::new();
    let here = duo.client(0);
    duo.ask(0, here, "CLIENT LIST\r\n");
    let now = duo.now();
    duo.proxies[0].handle_end(Conn::Client(here), true, now);
    assert_eq!(duo.turn(0), "");
    let next = duo.client(0);
    assert_eq!(duo.carry(0), "");
    assert_eq!(duo.ask(0, next, "PING\r\n"), "+PONG\r\n");
    assert_eq!(duo.proxies[0].requests_open(), 0);
}

#[test]
fn draining_reactor_still_answers_what_was_asked() {
    let mut duo = Duo::new();
    let here = duo.client(0);
    duo.ask(0, here, "CLIENT KILL ID 99\r\n");
    let now = duo.now();
    duo.proxies[0].handle_drain(now);
    duo.proxies[1].handle_drain(now);
    assert_eq!(duo.turn(0), "");
    assert_eq!(duo.carry(0), ":0\r\n");
    assert_eq!(duo.closed, [], "it may still ask");
    duo.now_ms += 150;
    duo.turn(0);
    assert_eq!(duo.closed, [(0, Conn::Client(here))]);
}

#[test]
fn transaction_does_not_hold_what_others_must_answer() {
    let mut duo = Duo::new();
    let here = duo.client(0);
    let told = duo.ask(0, here, "MULTI\r\nCLIENT LIST\r\nPING\r\nEXEC\r\n");
    let expected = "+OK\r\n-ERR Command not allowed inside a transaction\r\n+QUEUED\r\n-EXECABORT";
    assert!(told.starts_with(expected), "{told}");
}

/// Somebody behind the other one is subscribed; there are no nodes, so none confirms it.
fn with_listener_there(duo: &mut Duo) -> u32 {
    let there = duo.client(1);
    duo.ask(1, there, "SUBSCRIBE news\r\nPSUBSCRIBE n*\r\n");
    duo.proxies[0].handle_subscriptions_elsewhere(duo.proxies[1].has_subscriptions());
    there
}

#[test]
fn all_that_a_turn_publishes_is_asked_for_at_once_and_one_question_at_a_time() {
    let mut duo = Duo::new();
    let here = duo.client(0);
    duo.ask(0, here, "PUBLISH news x\r\n");
    assert!(duo.asked[0].is_empty(), "nobody listens elsewhere");
    with_listener_there(&mut duo);
    duo.ask(0, here, &"PUBLISH news x\r\nSPUBLISH news x\r\n".repeat(2));
    duo.ask(0, here, "PUBLISH other x\r\n");
    let published = |duo: &Duo| -> Vec<usize> {
        let count = |query: &Query| match query {
            Query::Receivers(all) => all.len(),
            other => panic!("{other:?}"),
        };
        duo.asked[0].iter().map(|(_, query)| count(query)).collect()
    };
    assert_eq!(published(&duo), [4]);
    duo.carry(0);
    assert_eq!(published(&duo), [1]);
}

#[test]
fn count_of_receivers_outlives_its_client_and_a_silent_reactor() {
    let mut duo = Duo::new();
    let there = with_listener_there(&mut duo);
    let (gone, stays) = (duo.client(0), duo.client(0));
    duo.ask(0, gone, "PUBLISH news x\r\nPUBLISH news x\r\n");
    duo.ask(0, stays, "PUBLISH news x\r\n");
    duo.ask(0, gone, "PUBLISH news x\r\n");
    let now = duo.now();
    duo.proxies[0].handle_end(Conn::Client(gone), true, now);
    duo.turn(0);
    duo.now_ms += PEERS_MS_MAX + 20;
    duo.turn(0);
    // No node has taken the message: that is what the answer says, whoever was counted.
    let mut told = String::new();
    for _ in 0..200 {
        duo.now_ms += 50;
        told += &duo.turn(0);
    }
    assert!(told.starts_with('-') && told.lines().count() == 1, "{told}");
    while !duo.asked[0].is_empty() {
        assert_eq!(duo.carry(0), "");
    }
    let now = duo.now();
    duo.proxies[1].handle_end(Conn::Client(there), true, now);
    duo.turn(1);
    assert!(!duo.proxies[1].has_subscriptions());
    assert_eq!((duo.proxies[0].requests_open(), duo.proxies[1].requests_open()), (0, 0));
}

#[test]
fn reactor_that_has_ended_has_no_receivers() {
    let mut duo = Duo::new();
    with_listener_there(&mut duo);
    let here = duo.client(0);
    duo.ask(0, here, "PUBLISH news x\r\n");
    duo.ask(0, here, "PUBLISH news x\r\n");
    let now = duo.now();
    duo.proxies[0].handle_peer_left(1, now);
    duo.turn(0);
    duo.ask(0, here, "PUBLISH news x\r\n");
    assert_eq!(duo.asked[0].len(), 1, "nobody is asked again");
    let now = duo.now();
    duo.proxies[0].handle_end(Conn::Client(here), true, now);
    duo.turn(0);
    assert_eq!(duo.proxies[0].requests_open(), 0);
}
