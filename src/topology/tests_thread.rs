//! Tests of the whole thread against fake nodes: listeners that answer by script.

use super::{PoolSettings, ReactorLink, Report, TopologySettings, Update, start};
use crate::cluster::{Endpoint, Topology};
use crate::secret::Secret;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A node that answers what its script says. Closes nothing by itself; ends with the test.
struct Fake {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
    /// CLUSTER SHARDS and SLOTS that were asked.
    asked: Arc<AtomicUsize>,
    /// All requests, words joined by spaces.
    heard: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone, Default)]
struct Script {
    /// Replies; empty: an error as an older node's.
    shards: String,
    slots: String,
    nodes: String,
    info: String,
    /// Accepts and says nothing.
    mute: bool,
}

impl Fake {
    fn new(script: Script) -> Fake {
        Fake::at("127.0.0.1:0", script)
    }

    fn at(place: &str, script: Script) -> Fake {
        let listener = TcpListener::bind(place).unwrap();
        let fake = Fake {
            address: listener.local_addr().unwrap(),
            script: Arc::new(Mutex::new(script)),
            asked: Arc::default(),
            heard: Arc::default(),
        };
        let (script, asked, heard) =
            (Arc::clone(&fake.script), Arc::clone(&fake.asked), Arc::clone(&fake.heard));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (script, asked, heard) =
                    (Arc::clone(&script), Arc::clone(&asked), Arc::clone(&heard));
                std::thread::spawn(move || serve(stream.unwrap(), &script, &asked, &heard));
            }
        });
        fake
    }

    fn seed(&self) -> Endpoint {
        Endpoint { host: self.address.ip().to_string().into(), port: self.address.port() }
    }

    fn say(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap());
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

fn serve(
    stream: TcpStream,
    script: &Mutex<Script>,
    asked: &AtomicUsize,
    heard: &Mutex<Vec<String>>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(words) = read_request(&mut reader) {
        let request = words.join(" ");
        heard.lock().unwrap().push(request.clone());
        let script = script.lock().unwrap().clone();
        if script.mute {
            continue;
        }
        let text = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let reply = match &*request {
            "CLUSTER SHARDS" => script.shards,
            "CLUSTER SLOTS" => script.slots,
            "CLUSTER NODES" => text(&script.nodes),
            "CLUSTER INFO" => text(&script.info),
            _ => "+OK\r\n".into(),
        };
        if request == "CLUSTER SLOTS" || (request == "CLUSTER SHARDS" && !reply.is_empty()) {
            asked.fetch_add(1, Ordering::Relaxed);
        }
        let unknown = "-ERR unknown subcommand\r\n";
        let reply = if reply.is_empty() { unknown } else { &*reply };
        if writer.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let count = read_number(reader)?;
    (0..count)
        .map(|_| {
            let mut word = vec![0; read_number(reader)? + 2];
            reader.read_exact(&mut word).ok()?;
            word.truncate(word.len() - 2);
            String::from_utf8(word).ok()
        })
        .collect()
}

fn read_number(reader: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.trim_end().get(1..)?.parse().ok()
}

const OK: &str = "cluster_state:ok\r\ncluster_current_epoch:5\r\n";

/// CLUSTER SLOTS of ranges `(first, last, host, port, id)`; host `-` for null.
fn slots(ranges: &[(u16, u16, &str, u16, &str)]) -> String {
    let mut text = format!("*{}\r\n", ranges.len());
    for (first, last, host, port, id) in ranges {
        let host =
            if *host == "-" { "$-1\r\n".into() } else { format!("${}\r\n{host}\r\n", host.len()) };
        text += &format!(
            "*3\r\n:{first}\r\n:{last}\r\n*4\r\n{host}:{port}\r\n${}\r\n{id}\r\n*0\r\n",
            id.len()
        );
    }
    text
}

fn script(slots: String) -> Script {
    Script { slots, info: OK.into(), ..Script::default() }
}

/// The thread, one reactor's end of the channels, and a stop at the end of the test.
struct Rig {
    reports: Sender<Report>,
    updates: Receiver<Update>,
    woken: Arc<AtomicUsize>,
    handle: Option<JoinHandle<()>>,
}

impl Rig {
    fn new(seeds: Vec<Endpoint>) -> Rig {
        Rig::with(PoolSettings { seeds, request_timeout_ms: 300, ..PoolSettings::default() })
    }

    fn with(pool: PoolSettings) -> Rig {
        let (reports, inbox) = unbounded();
        let (outbox, updates) = unbounded();
        let woken = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&woken);
        let wake = Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let links = vec![ReactorLink { updates: outbox, wake }];
        let settings = TopologySettings { pools: vec![pool], seed: 7 };
        let handle = Some(start(settings, inbox, links, crate::log::Log::silent()).unwrap());
        Rig { reports, updates, woken, handle }
    }

    fn next_map(&self) -> Arc<Topology> {
        loop {
            if let Update::Map { topology, .. } = self.updates.recv_timeout(PATIENCE).unwrap() {
                return topology;
            }
        }
    }

    fn moved(&self, slot: u16, endpoint: Endpoint, from: SocketAddr) {
        self.reports.send(Report::Moved { pool: 0, slot, endpoint, from, known: true }).unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = self.reports.send(Report::Stop);
        if let Some(handle) = self.handle.take() {
            handle.join().unwrap();
        }
    }
}

/// A place where nobody listens, nor can: its port is held for as long as the process lives.
fn nowhere() -> Endpoint {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = Box::leak(Box::new(socket)).local_addr().unwrap().as_socket().unwrap();
    Endpoint { host: "127.0.0.1".into(), port: address.port() }
}

#[test]
fn seeds_are_tried_in_turn_until_one_answers() {
    let mute = Fake::new(Script { mute: true, ..Script::default() });
    let good = Fake::new(Script::default());
    good.say(|script| {
        script.slots = slots(&[(0, 16383, "-", good.address.port(), "aa")]);
        script.info = OK.into();
    });
    let unresolved = Endpoint { host: "no-such-name.invalid".into(), port: 1 };
    let rig = Rig::new(vec![nowhere(), unresolved, mute.seed(), good.seed()]);
    let map = rig.next_map();
    assert_eq!((map.version, map.covered()), (1, 16384));
    assert_eq!(map.owner(0).unwrap().address, Some(good.address), "null host: the node asked");
    // The wake comes after the update: see it come.
    while rig.woken.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    assert!(mute.heard.lock().unwrap().contains(&"CLUSTER SHARDS".to_string()));
}

#[test]
fn shards_are_preferred_and_epochs_come_from_nodes() {
    let good = Fake::new(Script::default());
    let port = good.address.port();
    good.say(|script| {
        script.shards = format!(
            "*1\r\n*4\r\n$5\r\nslots\r\n*2\r\n:0\r\n:16383\r\n$5\r\nnodes\r\n*1\r\n*10\r\n\
             $2\r\nid\r\n$2\r\naa\r\n$4\r\nport\r\n:{port}\r\n$8\r\nendpoint\r\n$9\r\n127.0.0.1\r\n\
             $4\r\nrole\r\n$6\r\nmaster\r\n$6\r\nhealth\r\n$6\r\nonline\r\n"
        );
        script.nodes = format!("aa 127.0.0.1:{port}@1 myself,master - 0 0 3 connected 0-16383\n");
        script.info = OK.into();
    });
    let user = Some("proxy".into());
    let password = Some(Secret::new(*b"pw"));
    let rig =
        Rig::with(PoolSettings { seeds: vec![good.seed()], user, password, ..Default::default() });
    let map = rig.next_map();
    assert_eq!((map.nodes[0].epoch, map.epoch), (3, 5));
    let heard = good.heard.lock().unwrap().clone();
    let wanted = ["AUTH proxy pw", "CLUSTER SHARDS", "CLUSTER NODES", "CLUSTER INFO"];
    assert_eq!(heard.get(..4), Some(&wanted.map(String::from)[..]));
    loop {
        if let Update::Learned { .. } = rig.updates.recv_timeout(PATIENCE).unwrap() {
            break;
        }
    }
    let heard = good.heard.lock().unwrap().clone();
    let bounds = ["proto-max-bulk-len", "client-query-buffer-limit", "cluster-databases"];
    let bounds = bounds.map(|name| format!("CONFIG GET {name}"));
    assert_eq!(heard.get(4..7), Some(&bounds[..]));
    assert_eq!(heard.get(7..), Some(&["AUTH proxy pw", "COMMAND"].map(String::from)[..]));
}

#[test]
fn unknown_hosts_are_left_out_and_ipv6_names_resolve() {
    let good = Fake::new(script(slots(&[
        (0, 99, "?", 1, "aa"),
        (100, 199, "::1", 7002, "bb"),
        (200, 299, "localhost", 7003, "cc"),
    ])));
    let rig = Rig::new(vec![good.seed()]);
    let map = rig.next_map();
    assert_eq!(map.covered(), 200);
    let address = |slot| map.owner(slot).unwrap().address.unwrap();
    assert_eq!(address(100), SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 7002)));
    assert!(address(200).ip().is_loopback());
}

#[test]
fn slots_assigned_after_the_start_are_found_within_a_refresh() {
    let good = Fake::new(Script::default());
    let port = good.address.port();
    good.say(|script| {
        script.slots = slots(&[(0, 13107, "-", port, "aa")]);
        script.info = "cluster_state:fail\r\n".into();
    });
    let rig = Rig::new(vec![good.seed()]);
    assert_eq!(rig.next_map().covered(), 13108);
    good.say(|script| {
        script.slots = slots(&[(0, 16383, "-", port, "aa")]);
        script.info = OK.into();
    });
    assert_eq!(rig.next_map().covered(), 16384);
}

#[test]
fn when_a_node_is_lost_the_others_are_asked() {
    let (first, second) = (Fake::new(Script::default()), Fake::new(Script::default()));
    let (a, b) = (first.address.port(), second.address.port());
    let ip = "127.0.0.1";
    let before = slots(&[(0, 8191, ip, a, "aa"), (8192, 16383, ip, b, "bb")]);
    first.say(|it| *it = script(before.clone()));
    second.say(|it| *it = script(before));
    let rig = Rig::new(vec![first.seed()]);
    rig.next_map();
    // The first hangs; the second has taken its slots over.
    first.say(|it| it.mute = true);
    let after = slots(&[(0, 16383, ip, b, "bb")]);
    second.say(|it| *it = script(after));
    rig.reports.send(Report::NodeLost { pool: 0, address: first.address }).unwrap();
    let map = rig.next_map();
    assert_eq!(map.owner(0).unwrap().address, Some(second.address));
}

#[test]
fn a_move_to_an_unknown_node_is_confirmed_only_when_the_map_lists_it() {
    let first = Fake::new(Script::default());
    let (ip, a) = ("127.0.0.1", first.address.port());
    first.say(|it| *it = script(slots(&[(0, 16383, ip, a, "aa")])));
    let rig = Rig::new(vec![first.seed()]);
    rig.next_map();
    first.say(|it| it.slots = slots(&[(0, 9, ip, 7009, "bb"), (10, 16383, ip, a, "aa")]));
    let news = Endpoint { host: ip.into(), port: 7009 };
    let forged = Endpoint { host: "evil.invalid".into(), port: 6379 };
    rig.moved(5, news.clone(), first.address);
    rig.moved(6, forged.clone(), first.address);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        match rig.updates.recv_timeout(PATIENCE).unwrap() {
            Update::Confirmed { endpoint, address, .. } => seen.push((endpoint, address)),
            Update::Slot { .. } => panic!("nothing unknown is broadcast"),
            _ => {}
        }
    }
    assert_eq!(seen, [(news, Some(SocketAddr::from(([127, 0, 0, 1], 7009)))), (forged, None)]);
}

#[test]
fn a_storm_of_moves_leads_to_few_conversations() {
    let first = Fake::new(Script::default());
    let (ip, a) = ("127.0.0.1", first.address.port());
    first.say(|it| {
        *it = script(slots(&[(0, 16000, ip, a, "aa"), (16001, 16383, ip, 7009, "bb")]));
    });
    let rig = Rig::new(vec![first.seed()]);
    rig.next_map();
    #[allow(clippy::disallowed_methods, reason = "how long the machine takes, not what time it is")]
    let begun = std::time::Instant::now();
    let (asked_before, other) = (first.asked(), Endpoint { host: ip.into(), port: 7009 });
    for slot in (0..16000).cycle().take(40_000) {
        rig.moved(slot, other.clone(), first.address);
        if slot % 20 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // About two seconds went by; where the machine was slow it were more.
    let asked = first.asked() - asked_before;
    let most = 10.max(5 * begun.elapsed().as_secs() as usize + 5);
    assert!((1..=most).contains(&asked), "{asked} of {most}");
}

#[test]
fn replies_without_end_or_sense_are_given_up() {
    let endless = format!("*2\r\n${}\r\n{}", 40_000_000, "x".repeat(20_000_000));
    let bad = [endless, "*1\r\n$".into(), "nonsense\r\n".into(), "*-5\r\n".into()];
    let mut fakes: Vec<Fake> =
        bad.into_iter().map(|shards| Fake::new(Script { shards, ..Script::default() })).collect();
    let good = Fake::new(script(slots(&[(0, 16383, "-", 7001, "aa")])));
    fakes.push(good);
    let rig = Rig::new(fakes.iter().map(Fake::seed).collect());
    assert_eq!(rig.next_map().covered(), 16384);
}

#[test]
fn a_stop_in_the_middle_of_a_conversation_ends_the_thread() {
    let mute = Fake::new(Script { mute: true, ..Script::default() });
    let rig = Rig::new(vec![mute.seed()]);
    std::thread::sleep(Duration::from_millis(100));
    drop(rig);
}

#[test]
fn conversations_that_time_out_keep_no_descriptor() {
    let mute = Fake::new(Script { mute: true, ..Script::default() });
    let pool = PoolSettings {
        seeds: vec![mute.seed(); 20],
        request_timeout_ms: 20,
        ..PoolSettings::default()
    };
    let rig = Rig::with(pool);
    loop {
        if let Update::Refreshed { ok, .. } = rig.updates.recv_timeout(PATIENCE).unwrap() {
            assert!(!ok);
            break;
        }
    }
    // Our ends of connections to it, whatever other tests have open beside this one: proc(5), the
    // third field is the other end, the tenth the inode, which one without a descriptor has not.
    let to = format!(":{:04X}", mute.seed().port);
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let is_held = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() > 9 && fields[2].ends_with(&to) && fields[9] != "0"
    };
    let held = table.lines().skip(1).filter(is_held).count();
    // The last one may be about to end.
    assert!(held < 5, "{held}");
}

#[test]
fn a_reactor_that_had_no_room_gets_the_whole_map_later() {
    let good = Fake::new(script(slots(&[(0, 16383, "-", 7001, "aa")])));
    let (reports, inbox) = unbounded();
    let (outbox, updates) = crossbeam_channel::bounded(1);
    outbox.send(Update::Drain { deadline_ms: 0 }).unwrap();
    let links = vec![ReactorLink { updates: outbox, wake: Box::new(|| ()) }];
    let pool = PoolSettings { seeds: vec![good.seed()], ..PoolSettings::default() };
    let settings = TopologySettings { pools: vec![pool], seed: 7 };
    let handle = start(settings, inbox, links, crate::log::Log::silent()).unwrap();
    while good.asked() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(100));
    assert!(matches!(updates.recv_timeout(PATIENCE), Ok(Update::Drain { .. })));
    assert!(matches!(updates.recv_timeout(PATIENCE), Ok(Update::Map { .. })));
    reports.send(Report::Stop).unwrap();
    handle.join().unwrap();
}
