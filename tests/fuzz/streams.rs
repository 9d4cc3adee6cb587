//! What clients might send, for the comparison with a real server: pieces that make up a stream.
//!
//! Not here: sending them (`differential`). Every reply must be one that only the stream decides: no
//! times, no ids, no counts of the process.

use crate::shared::random::Random;
use crate::shared::targets::one_request;
use crate::support::client::request;

/// `%` is a key of this stream's own, all of one slot.
const COMMANDS: [&str; 72] = [
    "PING",
    "PING hello",
    "ECHO x",
    "SET % v",
    "GET %",
    "GET %",
    "APPEND % more",
    "STRLEN %",
    "INCR %n",
    "DECRBY %n 3",
    "GETRANGE % 0 1",
    "SETRANGE % 1 x",
    "SET % v NX GET",
    "SETNX % w",
    "GETSET % new",
    "DEL % %n",
    "EXISTS % %n %",
    "TYPE %",
    "MGET % %n %l",
    "MSET % 1 %n 2",
    "MSETNX % 1 %m 2",
    "RPUSH %l a b",
    "LRANGE %l 0 -1",
    "LPOP %l",
    "LLEN %",
    "HSET %h f v",
    "HGETALL %h",
    "HGET %h f",
    "SADD %s a",
    "SMEMBERS %s",
    "ZADD %z 1 a",
    "ZRANGE %z 0 -1 WITHSCORES",
    "EXPIRE % x",
    "TTL %x",
    "PERSIST %",
    "RENAME % %m",
    "OBJECT ENCODING %",
    "OBJECT NOSUCH %",
    "SELECT 0",
    "SELECT x",
    "MULTI",
    "MULTI",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH %",
    "UNWATCH",
    "CLIENT SETNAME a",
    "CLIENT GETNAME",
    "CLIENT SETNAME a\\sb",
    "CLIENT NOSUCH",
    "CLIENT",
    "CLIENT REPLY ON",
    "CLIENT REPLY SKIP",
    "SUBSCRIBE c",
    "UNSUBSCRIBE",
    "PSUBSCRIBE a*",
    "PUNSUBSCRIBE a*",
    "RESET",
    "QUIT",
    "HELLO 4",
    "HELLO x",
    "HELLO 3 AUTH",
    "AUTH wrong",
    "AUTH a b c d",
    "NOSUCH a b",
    "GET",
    "SET %",
    "MSET % 1 %",
    "GET % %",
    "CONFIG NOSUCH",
    "LATENCY NOSUCH",
];

/// Some that nobody should send.
const BROKEN: [&[u8]; 24] = [
    b"POST / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"*1\r\n$4\r\nPOST\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"*-5\r\n\r\n",
    b"\r\n\n  \r\n",
    b"*2\r\n$3\r\nGET\r\n$-1\r\n",
    b"*abc\r\n",
    b"*\r\n",
    b"*01\r\n",
    b"*2147483648\r\n",
    b"*1\r\n$536870913\r\n",
    b"*1\r\n$99999999999999999999\r\n",
    b"*1\r\n:1\r\n",
    b"*1\n$4\r\nPING\r\n",
    b"*1\r\n$4\r\nPINGxx",
    b"*1\r\n$0\r\n\r\n",
    b"SET a \"b\"c\r\n",
    b"ECHO \"open\r\n",
    b"ECHO 'a\\'b' \"\\x41\\n\"\r\n",
    b"ECHO a\0b\r\n",
    b"*3\r\n$3\r\nSET\r\n$3\r\nabc\r\n",
    b"$4\r\nPING\r\n",
];

/// Streams whose keys have this tag meet no other's.
pub fn tag(random: &mut Random) -> String {
    (0..8).map(|_| char::from(random.pick(b"abcdefghijklmnopqrstuvwxyz"))).collect()
}

pub fn pieces(random: &mut Random, guest: bool) -> Vec<Vec<u8>> {
    let tag = tag(random);
    let mut pieces = Vec::new();
    if guest && random.one_in(2) {
        pieces.push(request(&["AUTH", "secret"]));
    }
    for _ in 0..1 + random.length(14) {
        let mut piece = match random.below(10) {
            0 => random.pick(&BROKEN).to_vec(),
            1 => one_request(random),
            2 if guest => limits(random),
            _ => command(random, &tag),
        };
        if random.one_in(14) {
            random.mutate(&mut piece, &BROKEN);
        }
        // A whole line of over 64 KiB is refused or not as the server's reads fall.
        piece.truncate(40_000);
        pieces.push(piece);
    }
    pieces
}

/// Around what somebody may send who has not logged in.
fn limits(random: &mut Random) -> Vec<u8> {
    match random.below(4) {
        0 => request(&vec!["x"; random.pick(&[9, 10, 11])]),
        1 => {
            let length = random.pick(&[16_383, 16_384, 16_385]);
            request(&["AUTH".to_owned(), "x".repeat(length)])
        }
        2 => format!("*{}\r\n", random.pick(&[10, 11, 1024 * 1024])).into_bytes(),
        _ => format!("*2\r\n$4\r\nAUTH\r\n${}\r\n", random.pick(&[16_385, 1 << 29])).into_bytes(),
    }
}

fn command(random: &mut Random, tag: &str) -> Vec<u8> {
    let line = random.pick(&COMMANDS);
    let word = |word: &str| word.replace('%', &format!("{{{tag}}}")).replace("\\s", " ");
    let mut words: Vec<String> = line.split(' ').map(word).collect();
    if random.one_in(4) {
        words[0] = words[0].to_lowercase();
    }
    match random.below(5) {
        0 => inline(random, &words),
        1 if random.one_in(6) => loosely(random, &words),
        _ => request(&words),
    }
}

fn inline(random: &mut Random, words: &[String]) -> Vec<u8> {
    let mut line = Vec::new();
    for word in words {
        let quoted = match random.below(4) {
            0 => format!("\"{word}\""),
            1 => format!("'{word}'"),
            _ if word.contains(' ') => format!("\"{word}\""),
            _ => word.clone(),
        };
        line.extend_from_slice(quoted.as_bytes());
        line.extend_from_slice(random.pick(&[&b" "[..], b" ", b"  ", b"\t"]));
    }
    line.extend_from_slice(random.pick(&[&b"\r\n"[..], b"\n"]));
    line
}

/// An array whose line ends are such as the server does not look at.
fn loosely(random: &mut Random, words: &[String]) -> Vec<u8> {
    let mut ends = || random.pick(&["\r\n", "\r\n", "\rx"]);
    let mut out = format!("*{}{}", words.len(), ends());
    for word in words {
        out.push_str(&format!("${}{}{word}{}", word.len(), ends(), ends()));
    }
    out.into_bytes()
}
