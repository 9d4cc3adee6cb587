//! F7: what many clients make the proxy hold together stays under `memory_limit`.
//!
//! Not here: the limits of single clients (`flow`).

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::bench::{flavour, with};
use crate::support::client::{Client, request};
use crate::support::cluster::Cluster;
use crate::support::proxy::Proxy;
use crate::support::{goal, millis, patience, seconds, wait_until};

const MIB: u64 = 1024 * 1024;
const LIMIT_MIB: u64 = 64;
/// Resident memory in all, beside the limit's quarter (G15) the pages of the program.
const RESIDENT_KIB_MAX: u64 = (LIMIT_MIB * 5 / 4 + 8) * 1024;

#[test]
fn f7_unfinished_requests_of_many_stay_under_the_limit() {
    storm(|port, _, end| {
        let mut client = Client::connect(port);
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$67108864\r\n");
        write_until(&client, &vec![b'x'; 256 * 1024], end);
    });
}

#[test]
fn f7_replies_that_many_do_not_read_stay_under_the_limit() {
    storm(|port, _, end| {
        let client = Client::connect(port);
        write_until(&client, &request(&["GET", "large"]).repeat(100), end);
    });
}

#[test]
fn f7_storm_of_all_kinds_at_once_stays_under_the_limit() {
    storm(|port, kind, end| {
        let mut client = Client::connect(port);
        match kind % 4 {
            0 => client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$67108864\r\n"),
            1 => client.send(b"*1048576\r\n"),
            2 => client.send(b"MULTI\r\n"),
            _ => (),
        }
        let piece = match kind % 4 {
            0 => vec![b'x'; 256 * 1024],
            1 => b"$1\r\nx\r\n".repeat(10_000),
            2 => request(&["SET".to_owned(), "{q}".to_owned(), "x".repeat(100_000)]),
            _ => request(&["GET", "large"]).repeat(100),
        };
        write_until(&client, &piece, end);
    });
}

/// 40 clients misbehave for six seconds or longer; one goes on as before, and all is well afterwards.
fn storm(misbehave: impl Fn(u16, usize, &AtomicBool) + Send + Sync + 'static) {
    let cluster = Cluster::three(flavour());
    let limit = format!("{LIMIT_MIB}mb");
    let mut proxy = Proxy::start_with(&cluster, &with(&[("memory-limit", limit.as_str())]));
    let mut honest = proxy.client();
    assert_eq!(
        honest.call(&["SET".to_owned(), "large".to_owned(), "v".repeat(100_000)]).text(),
        "OK"
    );
    let start_kib = proxy.process.resident_kib();
    let quiet = slowest_of(&mut honest, millis(500));
    let end = Arc::new(AtomicBool::new(false));
    let misbehave = Arc::new(misbehave);
    let crowd: Vec<_> = (0..40)
        .map(|i| {
            let (end, port, misbehave) = (Arc::clone(&end), proxy.port, Arc::clone(&misbehave));
            std::thread::spawn(move || misbehave(port, i, &end))
        })
        .collect();
    let started = Instant::now();
    let mut most_kib = 0;
    let mut slowest = Duration::ZERO;
    // Six seconds, and on a slow machine until it has come near the limit.
    while started.elapsed() < seconds(6)
        || (slowed(&mut honest) == 0 && started.elapsed() < patience(seconds(6)))
    {
        slowest = slowest.max(slowest_of(&mut honest, millis(200)));
        most_kib = most_kib.max(proxy.process.resident_kib());
    }
    end.store(true, Ordering::Relaxed);
    crowd.into_iter().for_each(|thread| thread.join().expect("a client's thread ends well"));
    println!("slowest {quiet:?} quiet, {slowest:?} in the storm; {start_kib} KiB, {most_kib} KiB");
    assert!(most_kib <= RESIDENT_KIB_MAX, "{most_kib} KiB with a limit of {LIMIT_MIB} MiB");
    assert!(slowest < goal(seconds(15)), "the honest client waited {slowest:?}");
    // Told once a second.
    wait_until(seconds(3), "the storm to have come near the limit", || slowed(&mut honest) > 0);
    wait_until(seconds(10), "new clients to be let in", || {
        proxy.client().run("PING").text() == "PONG"
    });
    proxy.wait_resident_below(start_kib + start_kib / 5 + 4 * MIB / 1024, seconds(10));
    proxy.expect_alive();
}

/// How often a client was not read for want of memory.
fn slowed(client: &mut Client) -> u64 {
    let told = client.run("INFO ringway").string();
    let line = told.lines().find_map(|line| line.strip_prefix("clients_slowed:"));
    line.and_then(|count| count.trim().parse().ok()).expect("the count is told")
}

/// One small command after the other.
fn slowest_of(client: &mut Client, time: Duration) -> Duration {
    let start = Instant::now();
    let mut slowest = Duration::ZERO;
    while start.elapsed() < time {
        let before = Instant::now();
        assert_eq!(client.run("SET small 1").text(), "OK");
        slowest = slowest.max(before.elapsed());
    }
    slowest
}

/// Writes until the other side takes no more for a while, or is gone.
fn write_until(client: &Client, piece: &[u8], end: &AtomicBool) {
    let mut stream = client.stream();
    stream.set_write_timeout(Some(millis(100))).expect("a time-out is accepted");
    let mut at = 0;
    while !end.load(Ordering::Relaxed) {
        match stream.write(&piece[at..]) {
            Ok(count) => at = (at + count) % piece.len(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => (),
            Err(_) => return,
        }
    }
}
