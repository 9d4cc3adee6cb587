//! H6: requests that are none, each on a connection of its own and a million of them in a long run,
//! while others are served: each is told its mistake, closed, and leaves nothing behind.
//!
//! Not here: kinds one by one (`tests/cases/protocol`), what any bytes mean (`tests/fuzz`).

use std::collections::BTreeMap;
use std::time::Instant;

use crate::bed;
use crate::crowd::{Crowd, Style, usual_styles};
use crate::host::field;
use crate::mixed::{is_long, number, seed};
use crate::soak::descriptors;
use crate::support::chance::SplitMix as Random;
use crate::support::client::Client;
use crate::support::cluster::Flavour;
use crate::support::proxy::{Proxy, Settings};
use crate::support::{millis, seconds, wait_until};

/// Behind a mistake nothing may be run any more.
const SMUGGLED: &[u8] = b"*3\r\n$3\r\nSET\r\n$8\r\nsmuggled\r\n$1\r\nx\r\n";

const DOLLAR: &str = "expected '$', got '?'";
const TLS: &str = "TLS on a port without it";
const HTTP: &str = "an HTTP request";

/// Connections that one thread has at a time.
const AT_ONCE: u64 = 50;

struct Broken {
    /// Sent in pieces that end where this says.
    bytes: Vec<u8>,
    cut: usize,
    /// All that may come back before the close.
    expected: String,
    kind: &'static str,
}

/// A mistake that shows at its last byte, and what redis-server says of it.
fn mistake(random: &mut Random) -> (Vec<u8>, &'static str) {
    let some = random.below(1 << 40);
    let odd = b"!\"#%&'()*+,-./:;<=>?@AZ[\\]^_az{|}~"[random.below(34) as usize] as char;
    let (count, length) = ("invalid multibulk length", "invalid bulk length");
    let (text, told) = match random.below(15) {
        0 => (format!("*{some}x\r\n"), count),
        1 => (format!("*+{}\r\n", some % 9), count),
        2 => (format!("*{}\r\n", (1 << 31) + some), count),
        3 => (format!("*{some}{some}{some}\r\n"), count),
        4 => (format!("*2\r\n$3\r\nGET\r\n$-{}\r\n", 1 + some), length),
        5 => (format!("*1\r\n$0{some}\r\n"), length),
        6 => (format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", (1 << 29) + 1 + some), length),
        7 => (format!("*1\r\n${odd}{some}\r\n"), length),
        8 | 9 => (format!("*2\r\n$3\r\nGET\r\n{odd}{some}\r\n"), DOLLAR),
        10 => (format!("SET key{some} \"value\r\n"), "unbalanced quotes in request"),
        11 => (format!("SET 'key'{some} value\r\n"), "unbalanced quotes in request"),
        12 if some % 50 == 0 => ("a".repeat(65_537), "too big inline request"),
        12 if some % 50 == 1 => (format!("*{}", "1".repeat(65_536)), "too big mbulk count string"),
        12 if some % 50 == 2 => {
            (format!("*1\r\n${}", "1".repeat(65_536)), "too big bulk count string")
        }
        12 | 13 => ("\x16\x03".into(), TLS),
        _ => (format!("POST /{some} HTTP/1.1\r\n"), HTTP),
    };
    (text.into_bytes(), told)
}

fn broken(random: &mut Random) -> Broken {
    let (wrong, kind) = mistake(random);
    // A browser is closed without a word, and without one that was on its way.
    let before = if kind == HTTP { 0 } else { random.below(3) as usize };
    let mut bytes = b"PING\r\n".repeat(before);
    let mut expected = "+PONG\r\n".repeat(before);
    let start = bytes.len();
    bytes.extend_from_slice(&wrong);
    let cut = match random.below(3) {
        0 => random.below(bytes.len() as u64) as usize,
        _ => 0,
    };
    match kind {
        HTTP => {}
        DOLLAR => {
            let got = wrong[b"*2\r\n$3\r\nGET\r\n".len()] as char;
            expected += &format!("-ERR Protocol error: expected '$', got '{got}'\r\n");
        }
        told => expected += &format!("-ERR Protocol error: {told}\r\n"),
    }
    if wrong.len() < 1_000 {
        bytes.extend_from_slice(SMUGGLED);
    }
    // What is seen at its first bytes may be answered before the last ones are sent.
    let cut = if kind == TLS { cut.min(start + 1) } else { cut };
    Broken { bytes, cut, expected, kind }
}

/// So many of them, by kind. Panics at the first that gets anything else.
fn flood(port: u16, seed: u64, count: u64) -> BTreeMap<&'static str, u64> {
    // Linux has this for each thread: those who are in the right share the processors with them.
    rustix::process::nice(19).expect("a thread may be nicer");
    let mut random = Random::seeded(seed);
    let mut kinds = BTreeMap::new();
    let mut left = count;
    while left > 0 {
        let some = left.min(AT_ONCE);
        left -= some;
        let open = |_| (Client::connect(port), broken(&mut random));
        let mut batch: Vec<(Client, Broken)> = (0..some).map(open).collect();
        for (client, one) in &mut batch {
            let (first, rest) = one.bytes.split_at(one.cut);
            client.send(first);
            client.send(rest);
        }
        for (mut client, one) in batch {
            let (got, closed) = client.read_until_quiet(seconds(20));
            let sent = one.bytes[..one.bytes.len().min(200)].escape_ascii();
            assert_eq!(
                String::from_utf8_lossy(&got),
                one.expected,
                "\"{sent}\" cut at {}",
                one.cut
            );
            assert!(closed, "still open after \"{sent}\"");
            *kinds.entry(one.kind).or_default() += 1;
        }
    }
    kinds
}

/// Several threads' floods, added to what there were.
fn floods(port: u16, seed: u64, count: u64, kinds: &mut BTreeMap<&'static str, u64>) {
    const THREADS: u64 = 4;
    let start = |i| {
        let share = count / THREADS + u64::from(i < count % THREADS);
        std::thread::spawn(move || flood(port, seed.wrapping_mul(1_000) + i, share))
    };
    let threads: Vec<_> = (0..THREADS).map(start).collect();
    for thread in threads {
        for (kind, count) in thread.join().expect("each was told and closed") {
            *kinds.entry(kind).or_default() += count;
        }
    }
}

#[test]
fn h6_broken_requests_are_told_and_closed_and_nobody_else_sees_them() {
    let usual = if is_long() { 1_000_000 } else { 10_000 };
    let count = number("RINGWAY_CHAOS_BROKEN").unwrap_or(usual);
    let cluster = bed::cluster(Flavour::Redis, 0);
    let mut proxy = Proxy::start_with(&cluster, &Settings::default());
    let pid = proxy.process.id();
    // Some of every kind, but no load: what is asked is whether they see anything.
    let mut styles = usual_styles(0);
    styles.retain(|style: &Style| style.depth <= 64);
    styles.iter_mut().for_each(|style| style.pause = millis(20));
    let start = Instant::now();
    let crowd = Crowd::start(proxy.port, seed(), &styles);
    // What the first ones make grow may stay.
    let (warm, mut kinds) = (count / 10, BTreeMap::new());
    floods(proxy.port, seed(), warm, &mut kinds);
    std::thread::sleep(millis(300));
    let (resident, open) = (proxy.process.resident_kib(), descriptors(pid));
    floods(proxy.port, seed() + 1, count - warm, &mut kinds);
    // Connections for scripts are made when they are wanted (`soak`).
    wait_until(seconds(10), "all of them to be closed", || descriptors(pid) <= open + 12);
    let (resident_after, open_after) = (proxy.process.resident_kib(), descriptors(pid));
    let tally = crowd.finish("H6: clients meanwhile");
    let mut client = proxy.client();
    let mut told = 0;
    // Numbers are shown some times a second.
    wait_until(seconds(10), "all of them to be counted", || {
        told = field(&client.run("INFO").string(), "protocol_errors");
        told >= count
    });
    let (lines, took) = (proxy.log().lines().count() as u64, start.elapsed());
    println!(
        "H6: {count} broken requests, each told and closed ({told} counted); {} replies of others \
         verified, {} wrong, {} errors; resident memory {resident} and {resident_after} KiB, \
         descriptors {open} and {open_after}, {lines} lines of log in {took:.0?}",
        tally.verified,
        tally.wrong.len(),
        tally.errors_total(),
    );
    kinds.iter().for_each(|(kind, count)| println!("     : {count:>7} x \"{kind}\""));
    assert_eq!(told, count);
    assert_eq!(client.run("EXISTS smuggled").integer(), 0, "what stood behind a mistake was run");
    tally.expect_right();
    tally.expect_no_errors();
    assert_eq!(tally.lost, 0, "acknowledged writes lost");
    assert!(tally.verified > 0, "others were served");
    // A burst, then two lines a second, however many there are.
    assert!(lines < 200 + 3 * took.as_secs(), "{lines} lines of log in {took:?}");
    proxy.wait_resident_below(resident + 8 * 1024, seconds(10));
    proxy.expect_alive();
}
