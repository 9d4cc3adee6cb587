//! G15: everything of H7 and H8 at once against a small `memory_limit`, in a control group that
//! kills what goes a quarter over it.
//!
//! Not here: single ways to waste memory (`tests/cases/memory.rs`), how they behave (`abuse`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::abuse::{Abuse, Kind};
use crate::bed;
use crate::mixed::is_long;
use crate::support::client::{Client, request};
use crate::support::cluster::{Cluster, Flavour};
use crate::support::group::Group;
use crate::support::proxy::{Proxy, Settings};
use crate::support::{goal, millis, patience, seconds, wait_until};

const MIB: u64 = 1024 * 1024;
const BUDGET: u64 = 256 * MIB;
const MOST: u64 = BUDGET / 4 * 5;

/// The goal is twice the quiet p99, and is not met. Seen on two quiet cores on 2026-12-01, release
/// build: 0.4 ms without the storm, 2.4 in it, 1.6 where no node is asked; past the proxy 0.3 and
/// 0.7 ms. Before what light clients are owed left ahead of heavy ones' bytes it was 3.4 to 7.3 ms
/// in the storm; before heavy clients were read one buffer at a time, and after the others, it was
/// 44 ms, 28 ms where no node is asked. In the storm's worst seconds a turn of the reactor took 0.7 to 1.2 ms of the processor
/// at the median and 2 to 4 ms at p99 (built with assertions); now 0.05 and 0.4 ms (without).
/// What is left: two cores for the proxy, three nodes, the honest and the abusers, and requests of
/// the storm that are before one's own at a node. This bound keeps it from growing worse; where
/// even clients that go straight to the nodes wait, it is so many times what they do.
const P99_MAX: Duration = Duration::from_millis(12);
const P99_OF_DIRECT: u32 = 6;

/// A storm is at least so large; and clients of it were not read for a while.
const OPENED_MIN: u64 = 10_000;
const WRITTEN_MIN: u64 = 500 * MIB;
/// It lasts so long, or until it was so large; not longer than this. If it is not by then because
/// others use the processors, abusers do not stand aside any more.
const STORM: Duration = Duration::from_secs(8);
const STORM_MAX: Duration = Duration::from_secs(60);
const STORM_IS_LATE: Duration = Duration::from_secs(15);

fn kind(opening: Vec<u8>, piece: Vec<u8>) -> Kind {
    Kind { opening, piece: piece.into(), reads: false }
}

/// Declared lengths without their bytes, thousands of them: two threads.
fn hostile_lengths(count: usize) -> Vec<(usize, Kind)> {
    let said: [&[u8]; 7] = [
        b"*1048576\r\n",
        b"*1\r\n$536870912\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nxxxx",
        b"*1048576\r\n$536870912\r\n",
        b"*99999999999999999999\r\n",
        b"*1\r\n$99999999999999999999\r\n",
        b"*2147483648\r\n",
    ];
    let mut kinds: Vec<(usize, Kind)> =
        said.iter().map(|said| (count / 8, kind(said.to_vec(), Vec::new()))).collect();
    kinds.push((count / 8, kind(b"*1\r\n".repeat(100_000), Vec::new())));
    kinds
}

/// Those who keep what they are given, or give more than is asked for.
fn heavy(each: usize) -> Vec<(usize, Kind)> {
    let word = |text: &str| text.to_owned();
    let large = |n: usize| "x".repeat(n);
    let unfinished = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n".to_vec();
    let mut words = b"*1048576\r\n".to_vec();
    words.extend(b"$1\r\nx\r\n".repeat(10));
    vec![
        // Large values that nobody takes.
        (each, kind(Vec::new(), request(&["GET", "large"]).repeat(10_000))),
        // Large requests that never end, in bytes and in words.
        (each, kind(unfinished, vec![b'x'; 256 * 1024])),
        (each, kind(words, b"$1\r\nx\r\n".repeat(10_000))),
        // A transaction that is never sent off.
        (each, kind(b"MULTI\r\n".to_vec(), request(&[word("SET"), word("{q}"), large(100_000)]))),
        // Pipelines without an end.
        (each, kind(Vec::new(), request(&["GET", "small"]).repeat(10_000))),
        (
            each,
            Kind {
                opening: Vec::new(),
                piece: request(&["SET", "small", "value"]).repeat(10_000).into(),
                reads: true,
            },
        ),
        // Subscribers who do not read, and one who keeps talking to them.
        (each, kind(b"SUBSCRIBE storm\r\n".to_vec(), Vec::new())),
        (
            1,
            Kind {
                opening: Vec::new(),
                piece: request(&[word("PUBLISH"), word("storm"), large(16_000)]).repeat(4).into(),
                reads: true,
            },
        ),
    ]
}

/// Clients that ask for little and look at what they get.
struct Honest {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Duration>>>,
    /// Asks for nothing that a node has to answer.
    pinging: JoinHandle<Vec<Duration>>,
}

/// How long the requests took, sorted: of all, of those at the node with the large value and at the
/// others, and of those that no node answers.
struct Took {
    all: Vec<Duration>,
    beside_large: Vec<Duration>,
    elsewhere: Vec<Duration>,
    own: Vec<Duration>,
}

impl Honest {
    /// Six of them, at the proxy; or, `port` being none, at the nodes themselves.
    fn start(cluster: &Cluster, port: Option<u16>) -> Honest {
        let end = Arc::new(AtomicBool::new(false));
        let start = |i: usize| {
            let name = if port.is_some() { "honest" } else { "direct" };
            let (end, key) = (Arc::clone(&end), cluster.key_on(i % 3, &format!("{name}{i}")));
            let port = port.unwrap_or(cluster.nodes[i % 3].port);
            std::thread::spawn(move || verified(port, &key, &end))
        };
        let pinging = Arc::clone(&end);
        let at = port.unwrap_or(cluster.nodes[0].port);
        let pinging = std::thread::spawn(move || pings(at, &pinging));
        Honest { threads: (0..6).map(start).collect(), pinging, end }
    }

    /// `large`: the index of the node that has the large value.
    fn finish(self, large: usize) -> Took {
        self.end.store(true, Ordering::Relaxed);
        let join = |thread: JoinHandle<Vec<Duration>>| thread.join().expect("an honest client");
        let mut took =
            Took { all: vec![], beside_large: vec![], elsewhere: vec![], own: join(self.pinging) };
        for (i, thread) in self.threads.into_iter().enumerate() {
            let times = join(thread);
            took.all.extend(&times);
            let group = if i % 3 == large { &mut took.beside_large } else { &mut took.elsewhere };
            group.extend(times);
        }
        for times in [&mut took.all, &mut took.beside_large, &mut took.elsewhere, &mut took.own] {
            times.sort();
        }
        took
    }
}

/// Writes and reads its own key; any other reply than its own ends the test.
fn verified(port: u16, key: &str, end: &AtomicBool) -> Vec<Duration> {
    let mut client = Client::connect(port);
    let mut took = Vec::new();
    let mut number = 0_u64;
    while !end.load(Ordering::Relaxed) {
        number += 1;
        let value = format!("{key}={number}");
        let start = Instant::now();
        assert_eq!(client.call(&["SET", key, &value]).text(), "OK");
        took.push(start.elapsed());
        let start = Instant::now();
        assert_eq!(client.call(&["GET", key]).string(), value);
        took.push(start.elapsed());
        std::thread::sleep(millis(1));
    }
    took
}

fn pings(port: u16, end: &AtomicBool) -> Vec<Duration> {
    let mut client = Client::connect(port);
    let mut took = Vec::new();
    while !end.load(Ordering::Relaxed) {
        let start = Instant::now();
        assert_eq!(client.call(&["PING"]).text(), "PONG");
        took.push(start.elapsed());
        std::thread::sleep(millis(1));
    }
    took
}

fn p99(sorted: &[Duration]) -> Duration {
    sorted[(sorted.len() * 99 / 100).min(sorted.len() - 1)]
}

/// Both times, and how many times as long the p99 is: of all, and where no node is asked.
fn tell_both(whose: &str, quiet: &Took, stormy: &Took) {
    tell(&format!("quiet{whose}"), quiet);
    tell(&format!("in the storm{whose}"), stormy);
    let of = |of: fn(&Took) -> &Vec<Duration>| {
        let [quiet, stormy] = [quiet, stormy].map(|took| p99(of(took)));
        (quiet, stormy, stormy.as_secs_f64() / quiet.as_secs_f64())
    };
    let (quiet_all, stormy_all, times) = of(|took| &took.all);
    let (quiet_own, stormy_own, own_times) = of(|took| &took.own);
    println!(
        "G15: p99{whose}: {quiet_all:?} quiet, {stormy_all:?} in the storm ({times:.1} times); of \
         PING {quiet_own:?} and {stormy_own:?} ({own_times:.1} times)"
    );
}

fn tell(when: &str, took: &Took) {
    println!(
        "G15 {when}: {} requests, p50 {:?}, p99 {:?} ({:?} at the node with the large value, {:?} at \
         others; {:?} where no node is asked), slowest {:?}",
        took.all.len(),
        took.all[took.all.len() / 2],
        p99(&took.all),
        p99(&took.beside_large),
        p99(&took.elsewhere),
        p99(&took.own),
        took.all.last().expect("somebody was answered"),
    );
}

/// What was seen of a storm.
struct Storm {
    /// Resident memory, and what was charged to the group, at most.
    most_kib: u64,
    most_used: u64,
    opened: u64,
    closed: u64,
    written: u64,
    /// Times that a client was not read.
    slowed: u64,
    lasted: Duration,
}

impl Storm {
    fn is_large(&self) -> bool {
        self.opened >= OPENED_MIN && self.written >= WRITTEN_MIN && self.slowed > 0
    }

    fn expect_large(&self) {
        let (opened, mib, slowed) = (self.opened, self.written / MIB, self.slowed);
        assert!(
            self.is_large(),
            "there was a storm: {opened} connections, {mib} MiB, slowed {slowed} times"
        );
    }
}

/// Looks on until it is over.
fn watch(abuse: &Abuse, proxy: &Proxy, admin: &mut Client, group: Option<&Group>) -> Storm {
    let least = if is_long() { seconds(3_600) } else { STORM };
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (began, mut most_kib, mut most_used) = (Instant::now(), 0, 0);
    loop {
        most_kib = most_kib.max(proxy.process.resident_kib());
        most_used = most_used.max(group.map_or(0, Group::used));
        let (seen, lasted) = (&abuse.seen, began.elapsed());
        if lasted >= least || lasted >= STORM_IS_LATE {
            let [opened, closed, written] = [&seen.opened, &seen.closed, &seen.written].map(count);
            let slowed = told(admin, "clients_slowed:");
            let storm = Storm { most_kib, most_used, opened, closed, written, slowed, lasted };
            if lasted >= least && (storm.is_large() || lasted >= patience(STORM_MAX).max(least)) {
                return storm;
            }
            if !storm.is_large() && !abuse.insists() && lasted >= STORM_IS_LATE {
                println!("G15 {opened} connections after {lasted:?}: abusers stand in line now");
                abuse.insist();
            }
            std::thread::sleep(millis(200));
        }
        std::thread::sleep(millis(20));
    }
}

/// A number of INFO's.
fn told(client: &mut Client, name: &str) -> u64 {
    let info = client.run("INFO ringway").string();
    let line = info.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|number| number.trim().parse().ok()).expect(name)
}

#[test]
fn g15_memory_storm_stays_within_a_quarter_over_the_budget() {
    let cluster = bed::cluster(Flavour::Redis, 0);
    let group = Group::with_limit(MOST);
    let limit = BUDGET.to_string();
    let settings = Settings::args(&["--memory-limit", &limit, "--maxclients", "12000"]);
    let launch = || Proxy::start_with(&cluster, &settings);
    let mut proxy = match &group {
        Some(group) => group.inside(launch),
        None => launch(),
    };
    let mut admin = proxy.client();
    assert_eq!(admin.call(&["SET", "large", &"v".repeat(100_000)]).text(), "OK");
    assert_eq!(admin.run("SET small value").text(), "OK");
    let slot = admin.run("CLUSTER KEYSLOT large").integer() as u16;
    let has = |i: &usize| cluster.range(*i).is_some_and(|(from, to)| (from..=to).contains(&slot));
    let large = (0..3).find(has).expect("a node has it");
    let calm = Honest::start(&cluster, Some(proxy.port));
    let calm_beside = Honest::start(&cluster, None);
    std::thread::sleep(seconds(2));
    let (quiet, quiet_direct) = (calm.finish(large), calm_beside.finish(large));
    let start_kib = proxy.process.resident_kib();

    let honest = Honest::start(&cluster, Some(proxy.port));
    let beside = Honest::start(&cluster, None);
    let crowds = vec![hostile_lengths(5_000), hostile_lengths(5_000), heavy(40)];
    let abuse = Abuse::start(proxy.port, crowds);
    let storm = watch(&abuse, &proxy, &mut admin, group.as_ref());
    let (stormy, direct) = (honest.finish(large), beside.finish(large));
    abuse.finish();
    let ended = Instant::now();
    proxy.expect_alive();
    wait_until(seconds(10), "new clients to be let in", || {
        let client = Client::try_connect(proxy.port);
        client.and_then(|mut client| client.try_call(&["PING"])).is_ok_and(|r| r.text() == "PONG")
    });
    let back_kib = start_kib + start_kib / 5 + 8 * 1024;
    wait_until(seconds(10), "the memory to be given back", || {
        proxy.process.resident_kib() <= back_kib
    });
    let took = ended.elapsed();
    println!(
        "G15: in {:?} {} connections, {} of them closed, {} MiB written; \
         RSS {} MiB at first, {} MiB at most, {} MiB after {:?}; group {} MiB at most; \
         slowed {} times, {} closed for memory",
        storm.lasted,
        storm.opened,
        storm.closed,
        storm.written / MIB,
        start_kib / 1024,
        storm.most_kib / 1024,
        proxy.process.resident_kib() / 1024,
        took,
        storm.most_used / MIB,
        storm.slowed,
        told(&mut admin, "clients_closed_for_memory:"),
    );
    tell_both("", &quiet, &stormy);
    tell_both(", past the proxy", &quiet_direct, &direct);
    assert_eq!(group.as_ref().map_or(0, Group::kills), 0, "nobody was killed for memory");
    let most_kib = storm.most_kib;
    assert!(most_kib <= MOST / 1024, "{most_kib} KiB with a budget of {} KiB", BUDGET / 1024);
    storm.expect_large();
    let control = P99_OF_DIRECT * p99(&direct.all);
    let bound = goal(P99_MAX.max(2 * p99(&quiet.all)).max(control));
    println!("G15: p99 {:?} in the storm, at most {bound:?}", p99(&stormy.all));
    assert!(p99(&stormy.all) <= bound, "p99 {:?}, at most {bound:?}", p99(&stormy.all));
    proxy.expect_alive();
}
