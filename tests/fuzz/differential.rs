//! The same bytes to a plain redis-server and to the proxy before a cluster of one node: the same bytes
//! must come back, and the connection must end the same.
//!
//! `RINGWAY_FUZZ_STREAMS` (how many), `RINGWAY_FUZZ_STREAM` (hex: this one only). Not here: the streams
//! (`streams`), named ones (`tests/conformance/streams.rs`).

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::shared::random::Random;
use crate::streams::pieces;
use crate::support::client::{Client, request};
use crate::support::cluster::{Cluster, Flavour, Shape, Single};
use crate::support::proxy::{Proxy, Settings};
use crate::support::seconds;

const STREAMS: usize = 8_000;
const STREAMS_LONG: usize = 200_000;
const WORKERS: usize = 4;

/// How long nothing may come before a connection counts as quiet.
const QUIET: Duration = Duration::from_millis(80);

/// The same when it is looked at once more: the machine may have been busy.
const QUIET_FOR_SURE: Duration = Duration::from_millis(800);

/// Where we differ on purpose: what shows it in our bytes or in the stream, and why.
struct Explained {
    reason: &'static str,
    is: fn(stream: &[u8], theirs: &End, ours: &End) -> bool,
}

const EXPLAINED: [Explained; 11] = [
    Explained {
        reason: "HELLO looks at all its options before it logs in, as servers from 7.2 on; 7.0 logs in first",
        is: |_, theirs, ours| {
            contains(&ours.bytes, b"-ERR Syntax error in HELLO option")
                && contains(&theirs.bytes, b"-WRONGPASS")
        },
    },
    Explained {
        reason: "SELECT of another database is the cluster's error (README, SELECT)",
        is: |_, _, ours| contains(&ours.bytes, b"-ERR SELECT is not allowed in cluster mode"),
    },
    Explained {
        reason: "COMMAND lists the commands in an order that each process draws",
        is: |_, theirs, ours| {
            let row = b"$12\r\nbegin_search\r\n";
            contains(&theirs.bytes, row) && contains(&ours.bytes, row)
        },
    },
    Explained {
        reason: "UNSUBSCRIBE from all names the channels in an order that each process draws",
        is: |_, theirs, ours| {
            let told = b"unsubscribe\r\n";
            contains(&theirs.bytes, told)
                && sorted_lines(&theirs.bytes) == sorted_lines(&ours.bytes)
        },
    },
    Explained {
        reason: "HELLO names the process: its version, the client's number",
        is: |_, theirs, ours| {
            let hello = b"$6\r\nserver\r\n$5\r\nredis\r\n";
            contains(&theirs.bytes, hello) && contains(&ours.bytes, hello)
        },
    },
    Explained {
        reason: "a client that is told nothing (CLIENT REPLY) and then is to be closed: the server forgets it",
        is: |stream, theirs, ours| {
            let told_nothing = contains(&stream.to_ascii_lowercase(), b"reply");
            told_nothing && theirs.bytes == ours.bytes && ours.closed && !theirs.closed
        },
    },
    Explained {
        reason: "POST and Host: close at once; which replies before them are still sent hangs on how the \
                 reads fall, on both sides",
        is: |stream, theirs, ours| {
            let lower = stream.to_ascii_lowercase();
            let (a, b) = (&theirs.bytes, &ours.bytes);
            (contains(&lower, b"post") || contains(&lower, b"host:"))
                && theirs.closed == ours.closed
                && (a.starts_with(b) || b.starts_with(a))
        },
    },
    Explained {
        reason: "what subscribes is refused inside a transaction (README, MULTI)",
        is: |_, _, ours| contains(&ours.bytes, b"-ERR Command not allowed inside a transaction"),
    },
    Explained {
        reason: "keys of several slots: README, Guarantees (damage has changed a hash tag)",
        is: |_, _, ours| contains(&ours.bytes, b"-CROSSSLOT"),
    },
    Explained {
        reason: "more than 1,048,576 words are refused; the server takes up to 2^31, and memory for them",
        is: |stream, theirs, ours| {
            let text = b"-ERR Protocol error: invalid multibulk length\r\n";
            let before = ours.bytes.strip_suffix(text);
            let count = |from: &[u8]| {
                let digits = from.iter().take_while(|byte| byte.is_ascii_digit()).count();
                String::from_utf8_lossy(&from[..digits]).parse::<u64>().unwrap_or(0)
            };
            let many = |n: u64| (1024 * 1024 + 1..=i32::MAX as u64).contains(&n);
            let asked = stream.split(|byte| *byte == b'*').map(count).any(many);
            asked && before.is_some_and(|before| theirs.bytes.starts_with(before))
        },
    },
    Explained {
        reason: "a TLS hello is told so at once; the server waits for the end of a line",
        is: |stream, _, ours| {
            contains(stream, b"\x16\x03") && contains(&ours.bytes, b"TLS on a port")
        },
    },
];

fn sorted_lines(bytes: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
    lines.sort_unstable();
    lines
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

/// What came back, and whether the other side closed by itself.
#[derive(Clone, PartialEq, Debug)]
struct End {
    bytes: Vec<u8>,
    closed: bool,
}

/// A plain server, and the proxy that stands for it.
struct Pair {
    plain: Single,
    proxy: Proxy,
}

struct Bench {
    open: Pair,
    /// With a password.
    locked: Pair,
    _cluster: Cluster,
}

impl Bench {
    fn start() -> Bench {
        let cluster = Cluster::start(Shape { primaries: 1, ..Shape::default() });
        let locked = Settings::args(&["--password", "secret"]);
        let address = [cluster.nodes[0].address()];
        Bench {
            open: Pair { plain: Single::start(Flavour::Redis), proxy: Proxy::start(&cluster) },
            locked: Pair {
                plain: Single::start_with(Flavour::Redis, &["--requirepass", "secret"]),
                proxy: Proxy::start_at(&address, &locked),
            },
            _cluster: cluster,
        }
    }
}

/// How a stream is sent.
#[derive(Clone)]
struct Way {
    cuts: Vec<usize>,
    /// Ends sending behind a last request: whoever still listens answers that. Else what is looked at
    /// is whether the other side closes.
    ends: bool,
    guest: bool,
    quiet: Duration,
}

/// What has differed once, and whether for a guest.
const ONCE: [(&str, &[u8], bool); 8] = [
    ("RESET after SKIP", b"CLIENT REPLY SKIP\r\nRESET\r\nECHO a\r\n", false),
    ("RESET after OFF", b"CLIENT REPLY OFF\r\nRESET\r\nECHO a\r\n", false),
    ("a guest's EXEC", b"EXEC\r\nexec x\r\nMULTI\r\n", true),
    ("a blank line ends SKIP", b"CLIENT REPLY SKIP\r\n\r\nECHO a\r\n", false),
    ("an empty array ends SKIP", b"CLIENT REPLY SKIP\r\n*0\r\nECHO a\r\n", false),
    ("blanks and a tab end SKIP", b"CLIENT REPLY SKIP\r\n \t \n\nECHO a\r\n", false),
    ("broken after SKIP", b"CLIENT REPLY SKIP\r\nECHO \"open\r\n", false),
    ("broken after OFF", b"CLIENT REPLY OFF\r\n*1\r\n:1\r\n", false),
];

#[test]
fn streams_that_differed_once_end_as_at_the_server() {
    let bench = Bench::start();
    for (name, stream, guest) in ONCE {
        let way = Way { cuts: vec![stream.len()], ends: true, guest, quiet: QUIET_FOR_SURE };
        let (theirs, ours) = both(&bench, stream, &way);
        assert_eq!(theirs, ours, "{name}:\n{}", show(&theirs, &ours));
    }
}

#[test]
fn streams_end_as_at_the_server() {
    let bench = Bench::start();
    if let Some(hex) = crate::variable::<String>("RINGWAY_FUZZ_STREAM") {
        let stream = crate::unhex(&hex);
        for (guest, ends) in [(false, true), (false, false), (true, true), (true, false)] {
            let way = Way { cuts: vec![stream.len()], ends, guest, quiet: QUIET_FOR_SURE };
            let (theirs, ours) = both(&bench, &stream, &way);
            assert!(
                theirs == ours || explained(&stream, &theirs, &ours).is_some(),
                "{}",
                show(&theirs, &ours)
            );
        }
        return;
    }
    let long = std::env::var_os("RINGWAY_LONG").is_some();
    let most = if long { STREAMS_LONG } else { STREAMS };
    let most = crate::variable("RINGWAY_FUZZ_STREAMS").unwrap_or(most);
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let excused = [const { AtomicUsize::new(0) }; EXPLAINED.len()];
    let start = crate::now();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Relaxed);
                    if index >= most || found.lock().unwrap().len() >= 10 {
                        return;
                    }
                    match compare(&bench, index) {
                        Ok(None) => {}
                        Ok(Some(n)) => drop(excused[n].fetch_add(1, Relaxed)),
                        Err(text) => found.lock().unwrap().push(text),
                    }
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    println!(
        "G9: {most} streams to redis-server and to the proxy in {:.1} s: {} end otherwise, and for a \
         known reason",
        start.elapsed().as_secs_f64(),
        found.len()
    );
    for (explained, count) in EXPLAINED.iter().zip(&excused) {
        println!("     : {:>7} x {}", count.load(Relaxed), explained.reason);
    }
    assert!(found.is_empty(), "{} streams differ:\n{}", found.len(), found.join("\n\n"));
}

/// `Some`: they differ for the reason of that number.
fn compare(bench: &Bench, index: usize) -> Result<Option<usize>, String> {
    let seed = crate::seed();
    let mut random = Random::new(seed ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let guest = random.one_in(4);
    let all = pieces(&mut random, guest);
    let stream = all.concat();
    let way = Way {
        cuts: cuts(&mut random, stream.len()),
        ends: !random.one_in(12),
        guest,
        quiet: QUIET,
    };
    let (mut theirs, mut ours) = both(bench, &stream, &way);
    if theirs != ours && explained(&stream, &theirs, &ours).is_none() {
        forget(bench, &stream, &way);
        let way = Way { quiet: QUIET_FOR_SURE, ..way.clone() };
        (theirs, ours) = both(bench, &stream, &way);
    }
    if theirs == ours {
        return Ok(None);
    }
    if let Some(n) = explained(&stream, &theirs, &ours) {
        return Ok(Some(n));
    }
    forget(bench, &stream, &way);
    let small = shrink(bench, all, &way);
    let stream = small.concat();
    let way = Way { cuts: vec![stream.len()], quiet: QUIET_FOR_SURE, ..way };
    let (theirs_small, ours_small) = both(bench, &stream, &way);
    let hex: String = stream.iter().map(|byte| format!("{byte:02x}")).collect();
    let whole = if theirs_small == ours_small { show(&theirs, &ours) } else { String::new() };
    Err(format!(
        "seed {seed}, stream {index} (guest: {guest}, ends: {}), made smaller: \"{}\"\n{}\n{whole}to repeat: \
         RINGWAY_FUZZ_STREAM={hex} cargo test --locked --profile simulation --test fuzz streams_end",
        way.ends,
        stream.escape_ascii(),
        show(&theirs_small, &ours_small),
    ))
}

fn explained(stream: &[u8], theirs: &End, ours: &End) -> Option<usize> {
    EXPLAINED.iter().position(|explained| (explained.is)(stream, theirs, ours))
}

/// Leaves out pieces as long as it still differs when sent whole or as it was.
fn shrink(bench: &Bench, mut pieces: Vec<Vec<u8>>, way: &Way) -> Vec<Vec<u8>> {
    let mut at = 0;
    while at < pieces.len() {
        let mut fewer = pieces.clone();
        fewer.remove(at);
        let stream = fewer.concat();
        let way = Way { cuts: vec![stream.len()], quiet: QUIET_FOR_SURE, ..way.clone() };
        let (theirs, ours) = both(bench, &stream, &way);
        forget(bench, &stream, &way);
        if theirs != ours && explained(&stream, &theirs, &ours).is_none() {
            pieces = fewer;
        } else {
            at += 1;
        }
    }
    pieces
}

fn show(theirs: &End, ours: &End) -> String {
    let text = |end: &End| {
        let shown = &end.bytes[..end.bytes.len().min(600)];
        format!("\"{}\"{}", shown.escape_ascii(), if end.closed { " then close" } else { "" })
    };
    format!("    server {}\n    proxy  {}", text(theirs), text(ours))
}

fn cuts(random: &mut Random, length: usize) -> Vec<usize> {
    match random.below(4) {
        0 if length < 400 => (1..=length).collect(),
        1 => vec![random.below(length + 1), length],
        2 => {
            let mut ends = random.cuts(length);
            ends.truncate(60);
            ends.push(length);
            ends
        }
        _ => vec![length],
    }
}

fn both(bench: &Bench, stream: &[u8], way: &Way) -> (End, End) {
    let pair = if way.guest { &bench.locked } else { &bench.open };
    let theirs = send(pair.plain.node.port, stream, way, None);
    let ours = send(pair.proxy.port, stream, way, Some(&theirs));
    (theirs, ours)
}

/// The keys of a stream are its own and no other's; sent again, it must not find its own.
fn forget(bench: &Bench, stream: &[u8], way: &Way) {
    let pair = if way.guest { &bench.locked } else { &bench.open };
    let Some(open) = stream.windows(10).find(|w| w[0] == b'{' && w[9] == b'}') else { return };
    let keys: Vec<Vec<u8>> = ["", "n", "l", "h", "s", "z", "m", "x"]
        .iter()
        .map(|end| [open, end.as_bytes()].concat())
        .collect();
    let del = [vec![b"DEL".to_vec()], keys].concat();
    for port in [pair.plain.node.port, pair.proxy.port] {
        let mut client = Client::connect(port);
        // An error where no password is wanted.
        client.call(&["AUTH", "secret"]);
        client.call(&del);
    }
}

/// `like`: what is expected, to know how long to wait for it.
fn send(port: u16, stream: &[u8], way: &Way, like: Option<&End>) -> End {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let _ = socket.set_nodelay(true);
    let mut at = 0;
    for &end in &way.cuts {
        // An error: it has closed, and that is seen below.
        let _ = socket.write_all(&stream[at..end]);
        at = end;
    }
    if way.ends {
        let _ = socket.write_all(&request(&["ECHO", "still here"]));
        let _ = socket.shutdown(Shutdown::Write);
    }
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 16 * 1024];
    loop {
        let missing = like.is_some_and(|like| bytes.len() < like.bytes.len() || like.closed);
        // The second time nothing depends on how busy the machine is.
        let most = if way.quiet == QUIET { seconds(4) } else { seconds(30) };
        let patience = if way.ends || missing { most } else { way.quiet };
        let _ = socket.set_read_timeout(Some(patience));
        match socket.read(&mut chunk) {
            Ok(0) => return End { bytes, closed: true },
            Ok(count) => bytes.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return End { bytes, closed: false };
            }
            // Reset: it has closed with some of our bytes unread.
            Err(_) => return End { bytes, closed: true },
        }
    }
}
