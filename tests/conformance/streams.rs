//! Raw byte streams: odd, broken and cut up. The bytes that come back, and the close, must be the
//! server's.
//!
//! Not here: well-formed requests (`tests/data/conformance.txt`); and three places where we differ
//! on purpose: more than 1,048,576 words (the server takes up to 2^31, and memory for them), a
//! whole line of over 64 KiB (which the server takes or refuses as its reads fall), QUIT after
//! CLIENT REPLY OFF (the server forgets to close).

use std::time::Duration;

use crate::Differences;
use crate::bench::{Bench, Side};
use crate::support::client::{Client, PATIENCE, request};
use crate::support::cluster::Flavour;

/// Name and bytes. `␍␊` is written out; each stream goes to a fresh connection in one write.
const STREAMS: &[(&str, &[u8])] = &[
    ("P1 empty array", b"*0\r\nPING\r\n"),
    ("P1 null array", b"*-1\r\nPING\r\n"),
    ("P1 other negative array", b"*-5\r\nPING\r\n"),
    ("P1 blank lines", b"\r\n\r\nPING\r\n"),
    ("P1 blank line feeds", b"\n\n\nPING\r\n"),
    ("P1 mixed", b"*0\r\n\r\n*-1\r\n\r\n*1\r\n$4\r\nPING\r\n"),
    ("P1 line of blanks", b"   \r\nPING\r\n"),
    ("P3 inline", b"SET k v\r\nGET k\r\n"),
    ("P3 line feed only", b"SET k v\nGET k\n"),
    ("P3 blanks around", b"  SET   k    v   \r\n GET k \r\n"),
    ("P3 tab between", b"SET\tk\tv\r\nGET k\r\n"),
    ("P3 double quotes", b"SET \"a\\x0d\\n\" 'x y'\r\nGET \"a\\x0d\\n\"\r\n"),
    ("P3 all escapes", b"ECHO \"\\n\\r\\t\\b\\a\\\\\\\"\\x41\\q\"\r\n"),
    ("P3 bad hex escape", b"ECHO \"\\xZZ\"\r\n"),
    ("P3 single quotes", b"ECHO 'a\\'b\\n'\r\n"),
    ("P3 empty quotes", b"ECHO \"\"\r\nECHO ''\r\n"),
    ("P3 open double quote", b"SET a \"b\r\nPING\r\n"),
    ("P3 open single quote", b"SET a 'b\r\nPING\r\n"),
    ("P3 text after a quote", b"SET a \"b\"c\r\nPING\r\n"),
    ("P3 quote in a word", b"ECHO a\"b c\"\r\nPING\r\n"),
    ("P3 NUL inside", b"ECHO a\0b\r\nPING\r\n"),
    ("P3 inline then array", b"PING\r\n*1\r\n$4\r\nPING\r\nPING\r\n"),
    ("P3 carriage return inside", b"ECHO a\rb\r\nPING\r\n"),
    ("P5 negative bulk", b"*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$-1\r\n*1\r\n$4\r\nPING\r\n"),
    ("P6 letters for a count", b"*abc\r\n"),
    ("P6 empty count", b"*\r\nPING\r\n"),
    ("P6 plus in a count", b"*+1\r\n$4\r\nPING\r\n"),
    ("P6 zeros before a count", b"*01\r\n$4\r\nPING\r\n"),
    ("P6 count over 32 bits", b"*2147483648\r\n"),
    ("P6 count over 64 bits", b"*99999999999999999999\r\n"),
    ("P6 blank before a count", b"* 1\r\n$4\r\nPING\r\n"),
    ("P6 blank after a count", b"*1 \r\n$4\r\nPING\r\n"),
    ("P6 minus alone", b"*-\r\nPING\r\n"),
    ("P6 minus zero", b"*-0\r\nPING\r\n"),
    ("P6 negative length", b"*1\r\n$-5\r\n"),
    ("P6 zeros before a length", b"*1\r\n$04\r\nPING\r\n"),
    ("P6 plus in a length", b"*1\r\n$+4\r\nPING\r\n"),
    ("P6 length over 512 MB", b"*1\r\n$536870913\r\n"),
    ("P6 length over 64 bits", b"*1\r\n$99999999999999999999\r\n"),
    ("P6 letters for a length", b"*1\r\n$abc\r\n"),
    ("P6 empty length", b"*1\r\n$\r\n"),
    ("P6 array inside", b"*2\r\n$3\r\nGET\r\n*1\r\n$1\r\na\r\n"),
    ("P6 integer inside", b"*2\r\n$3\r\nGET\r\n:1\r\n"),
    ("P6 simple inside", b"*1\r\n+PING\r\n"),
    ("P6 odd byte inside", b"*1\r\n\xffPING\r\n"),
    ("P6 count line feed only", b"*1\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n"),
    ("P6 wrong bytes after a bulk", b"*1\r\n$4\r\nPINGxx*1\r\n$4\r\nPING\r\n"),
    ("P9 empty key", b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$1\r\nv\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n"),
    ("P9 empty name", b"*2\r\n$0\r\n\r\n$1\r\na\r\n*1\r\n$4\r\nPING\r\n"),
    ("P9 empty name alone", b"*1\r\n$0\r\n\r\n*1\r\n$4\r\nPING\r\n"),
    ("P11 quit", b"PING\r\nQUIT\r\nPING\r\n"),
    ("P11 quit in lower case", b"quit\r\n"),
    ("P11 quit with words", b"QUIT now please\r\nPING\r\n"),
    ("P13 POST", b"POST / HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("P13 POST smuggles", b"POST / HTTP/1.1\r\nSET smuggled 1\r\n\r\n"),
    ("P13 Host:", b"GET / HTTP/1.1\r\nHost: localhost\r\nSET smuggled 1\r\n"),
    ("P13 host in lower case", b"host: x\r\nPING\r\n"),
    ("P13 array POST", b"*1\r\n$4\r\nPOST\r\n*1\r\n$4\r\nPING\r\n"),
    ("P14 unknown", b"FOO a b\r\nPING\r\n"),
    ("P14 unknown long", b"*2\r\n$3\r\nFOO\r\n$200\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"),
    ("P15 too few words", b"MGET\r\nMSET a 1 b\r\nDEL\r\nEXISTS\r\nmset\r\nMSET a\r\nPING\r\n"),
    ("A4 reply skip", b"CLIENT REPLY SKIP\r\nPING\r\nECHO a\r\n"),
    ("A4 reply skip twice", b"CLIENT REPLY SKIP\r\nCLIENT REPLY SKIP\r\nECHO a\r\nECHO b\r\n"),
    ("A4 reply off and on", b"CLIENT REPLY OFF\r\nMGET a b c\r\nPING\r\nCLIENT REPLY ON\r\nECHO b\r\n"),
    ("A4 reply skip to a key", b"CLIENT REPLY SKIP\r\nSET k v\r\nGET k\r\n"),
    ("A4 reply skip ends with nothing", b"CLIENT REPLY SKIP\r\n\r\nECHO a\r\nCLIENT REPLY SKIP\r\n*0\r\nECHO b\r\n"),
    ("A4 reply off, errors too", b"CLIENT REPLY OFF\r\nFOO\r\nGET\r\nCLIENT REPLY ON\r\nPING\r\n"),
];

/// Valkey 9 reads these otherwise than redis-server 7, which is what we follow (user-demand.md 2): it
/// takes text right after a quote, and looks at the two bytes that end a bulk string.
const REDIS_ONLY: &[&str] = &["P3 text after a quote", "P6 wrong bytes after a bulk"];

#[test]
fn odd_streams_end_as_at_the_server() {
    for flavour in Flavour::all() {
        let bench = Bench::start(flavour);
        let mut differences = Differences::default();
        for (name, bytes) in STREAMS {
            if flavour == Flavour::Valkey && REDIS_ONLY.contains(name) {
                continue;
            }
            compare(&bench, name, bytes, &mut differences);
        }
        for (name, bytes) in large_streams() {
            compare(&bench, &name, &bytes, &mut differences);
        }
        differences.finish();
    }
}

fn large_streams() -> Vec<(String, Vec<u8>)> {
    let long_word = |n: usize| [b"FOO ".to_vec(), vec![b'a'; n], b"\r\nPING\r\n".to_vec()].concat();
    let many: Vec<u8> = request(&vec!["x"; 300]);
    vec![
        ("P4 70,000 bytes without a line end".into(), vec![b'a'; 70_000]),
        ("P4 60,000 bytes in a line".into(), long_word(60_000)),
        ("P4 count of 70,000 digits".into(), [b"*".to_vec(), vec![b'1'; 70_000]].concat()),
        ("P4 length of 70,000 digits".into(), [b"*1\r\n$".to_vec(), vec![b'1'; 70_000]].concat()),
        ("P14 unknown with 300 words".into(), many),
        ("P9 every byte".into(), request(&[b"ECHO".to_vec(), (0..=255).collect::<Vec<u8>>()])),
    ]
}

/// How long nothing may come before a connection counts as quiet; and the same when it is looked at
/// once more, as the machine may have been busy.
const QUIET: Duration = Duration::from_millis(60);
const QUIET_FOR_SURE: Duration = Duration::from_secs(3);

/// The same bytes to both.
fn compare(bench: &Bench, name: &str, bytes: &[u8], differences: &mut Differences) {
    bench.empty();
    let (mut plain, mut judged) = both(bench, bytes, QUIET);
    if plain != judged {
        bench.empty();
        (plain, judged) = both(bench, bytes, QUIET_FOR_SURE);
    }
    let ((expected, closes), (got, closed)) = (plain, judged);
    let show = |bytes: &[u8], closed: bool| {
        let end = if closed { " then close" } else { "" };
        format!("{:?}{end}", String::from_utf8_lossy(bytes))
    };
    let place = format!("{name} ({:?})", bench.flavour);
    differences.compare(&place, &show(&expected, closes), &show(&got, closed));
}

/// The plain server shows what is right; then the proxy has time to send as much, and must then be
/// silent.
fn both(bench: &Bench, bytes: &[u8], quiet: Duration) -> ((Vec<u8>, bool), (Vec<u8>, bool)) {
    let mut plain = bench.client(Side::Plain, false);
    plain.send(bytes);
    let (expected, closes) = plain.read_until_quiet(quiet);
    let mut judged = bench.client(Side::Judged, false);
    judged.send(bytes);
    judged.read_at_least(expected.len());
    let quiet = if closes { PATIENCE } else { quiet };
    let got = judged.read_until_quiet(quiet);
    ((expected, closes), got)
}

/// P8: fifty commands of all kinds, which must not care where the network cuts them.
fn pipeline() -> Vec<u8> {
    let mut bytes = Vec::new();
    for i in 0..10 {
        let (key, value) = (format!("key-{i}"), format!("value {i}\r\n\0"));
        bytes.extend(request(&["SET", &key, &value]));
        bytes.extend(request(&["GET", &key]));
        bytes.extend(format!("ECHO \"word {i}\"\r\n").into_bytes());
        bytes.extend(request(&["MGET", &key, "key-0", "absent"]));
        bytes.extend(request(&["FOO", &key]));
    }
    bytes
}

#[test]
fn pipeline_cut_anywhere_answers_the_same() {
    let bench = Bench::start(Flavour::Redis);
    let bytes = pipeline();
    bench.empty();
    let whole = replies_of(&bench, Side::Plain, &[&bytes], 0);
    let count = whole.len();
    assert!(count > 500, "the pipeline answers {count} bytes");
    let mut client = bench.client(Side::Judged, false);
    for cut in 1..bytes.len() {
        client.send(&bytes[..cut]);
        std::thread::sleep(Duration::from_micros(200));
        client.send(&bytes[cut..]);
        client.read_at_least(count);
        let (got, _) = client.read_until_quiet(Duration::from_micros(1));
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&whole), "cut at {cut}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    let got = replies_of(&bench, Side::Judged, &single, count);
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&whole), "byte by byte");
}

/// All that comes; it must be `least` bytes.
fn replies_of(bench: &Bench, side: Side, pieces: &[&[u8]], least: usize) -> Vec<u8> {
    let mut client: Client = bench.client(side, false);
    for piece in pieces {
        client.send(piece);
        if pieces.len() > 1 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    client.read_at_least(least);
    client.read_until_quiet(if least == 0 { QUIET_FOR_SURE } else { QUIET }).0
}
