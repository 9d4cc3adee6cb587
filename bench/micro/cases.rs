//! The cases: what runs, on which bytes, and what must come of it.
//!
//! Not here: counting and timing (`main`).

use std::hint::black_box;

use ringway::cluster::slot_of;
use ringway::command::{Args, COMMANDS, find, keys_of, lookup};
use ringway::resp::Span;
use ringway::resp::reply::{ReplyScanner, Scanned};
use ringway::resp::request::{Parsed, RequestLimits, RequestParser};

use crate::rig::{Rig, command};

pub struct Case {
    pub name: &'static str,
    /// Commands (or replies, names, keys) of one run.
    pub commands: u32,
    /// What each run must give.
    pub expected: u64,
    pub run: Box<dyn FnMut() -> u64>,
}

/// All cases, from the outside in.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(requests());
    cases.extend(replies());
    cases.extend(names());
    cases.extend(keys());
    cases.extend(whole());
    cases
}

fn case(
    name: &'static str,
    commands: u32,
    expected: u64,
    run: impl FnMut() -> u64 + 'static,
) -> Case {
    Case { name, commands, expected, run: Box::new(run) }
}

fn request(words: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    command(words, &mut out);
    out
}

/// Ten keys, each in a slot of its own.
fn ten_keys() -> Vec<String> {
    (0..10).map(|n| format!("key:{n:012}")).collect()
}

fn mget() -> Vec<u8> {
    let keys = ten_keys();
    let words: Vec<&str> = ["MGET"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    request(&words)
}

// --- request framing --------------------------------------------------------------------------

/// Words of all requests in `bytes`.
fn frame(bytes: &[u8], limits: &RequestLimits, spans: &mut Vec<Span>) -> u64 {
    let mut rest = bytes;
    let mut words = 0;
    let mut parser = RequestParser::default();
    while let Ok(Parsed::Array { len, .. }) = parser.parse(black_box(rest), limits, spans) {
        words += spans.len() as u64;
        rest = &rest[len..];
        parser = RequestParser::default();
    }
    words
}

fn framing(name: &'static str, bytes: Vec<u8>, commands: u32, words: u64) -> Case {
    let (limits, mut spans) = (RequestLimits::default(), Vec::new());
    case(name, commands, words, move || frame(&bytes, &limits, &mut spans))
}

fn requests() -> [Case; 5] {
    let get = request(&["GET", "key:000000012345"]);
    let set = request(&["SET", "key:000000012345", &"x".repeat(64)]);
    let large = request(&["SET", "key:000000012345", &"x".repeat(16 << 10)]);
    [
        framing("request_get", get.clone(), 1, 2),
        framing("request_get_pipeline_16", get.repeat(16), 16, 32),
        framing("request_set_64", set, 1, 3),
        framing("request_set_16k", large, 1, 3),
        framing("request_mget_10", mget(), 1, 11),
    ]
}

// --- reply framing ----------------------------------------------------------------------------

fn scanning(name: &'static str, bytes: Vec<u8>, replies: u32) -> Case {
    case(name, replies, u64::from(replies), move || {
        let mut scanner = ReplyScanner::default();
        let mut rest = bytes.as_slice();
        let mut whole = 0;
        while let (false, Ok(Scanned::Complete { len })) =
            (rest.is_empty(), scanner.scan(black_box(rest)))
        {
            whole += 1;
            rest = &rest[len..];
        }
        whole
    })
}

fn replies() -> [Case; 6] {
    let bulk = format!("$64\r\n{}\r\n", "x".repeat(64));
    let large = format!("$16384\r\n{}\r\n", "x".repeat(16 << 10));
    let array = format!("*10\r\n{}", bulk.repeat(10));
    let map = format!("%5\r\n{}", "+field\r\n:123\r\n".repeat(5));
    [
        scanning("reply_ok", b"+OK\r\n".to_vec(), 1),
        scanning("reply_bulk_64", bulk.clone().into_bytes(), 1),
        scanning("reply_bulk_64_pipeline_16", bulk.repeat(16).into_bytes(), 16),
        scanning("reply_bulk_16k", large.into_bytes(), 1),
        scanning("reply_array_10", array.into_bytes(), 1),
        scanning("reply_map_5", map.into_bytes(), 1),
    ]
}

// --- names of commands ------------------------------------------------------------------------

fn names() -> [Case; 4] {
    let every: Vec<&str> =
        COMMANDS.iter().map(|row| row.name).filter(|name| !name.contains('|')).collect();
    let count = every.len() as u32;
    let looked_up = |words: &[&str]| {
        let bytes = request(words);
        let spans = words_of(&bytes);
        move || {
            let args = Args { bytes: black_box(&bytes), spans: &spans };
            u64::from(lookup(&args).is_ok())
        }
    };
    [
        case("lookup_get", 1, 1, looked_up(&["get", "key"])),
        case("lookup_config_get", 1, 1, looked_up(&["CONFIG", "GET", "maxclients"])),
        case("lookup_unknown", 1, 0, looked_up(&["NOSUCHCOMMAND", "key"])),
        case("lookup_every_name", count, u64::from(count), move || {
            every.iter().filter(|name| find(black_box(name.as_bytes())).is_some()).count() as u64
        }),
    ]
}

/// The words of the one request in `bytes`.
fn words_of(bytes: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    let parsed = RequestParser::default().parse(bytes, &RequestLimits::default(), &mut spans);
    assert!(matches!(parsed, Ok(Parsed::Array { .. })), "{parsed:?}");
    spans
}

// --- keys and slots ---------------------------------------------------------------------------

fn hashing(name: &'static str, key: &str) -> Case {
    let key = key.as_bytes().to_vec();
    let expected = u64::from(slot_of(&key));
    case(name, 1, expected, move || u64::from(slot_of(black_box(&key))))
}

/// The keys of a request, found and hashed.
fn walking(name: &'static str, bytes: Vec<u8>, keys: u64) -> Case {
    let spans = words_of(&bytes);
    let mut found = Vec::new();
    case(name, 1, keys, move || {
        let args = Args { bytes: black_box(&bytes), spans: &spans };
        let Ok(command) = lookup(&args) else { return 0 };
        if keys_of(command, &args, &mut found).is_err() {
            return 0;
        }
        let hashed = found.iter().filter_map(|&key| args.get(key as usize)).map(slot_of);
        hashed.filter(|slot| *slot < 16384).count() as u64
    })
}

fn keys() -> [Case; 7] {
    let xread = request(&["XREAD", "COUNT", "10", "STREAMS", "{s}1", "{s}2", "0", "0"]);
    [
        hashing("slot_16", "key:000000012345"),
        hashing("slot_64", &"k".repeat(64)),
        hashing("slot_tag", "{user:1000}:following"),
        walking("keys_get", request(&["GET", "key:000000012345"]), 1),
        walking("keys_mget_10", mget(), 10),
        walking("keys_eval_2", request(&["EVAL", "return 1", "2", "{s}a", "{s}b", "x"]), 2),
        walking("keys_xread_2", xread, 2),
    ]
}

// --- the whole way ----------------------------------------------------------------------------

/// From the clients' bytes to the nodes', and from their replies to the clients': everything but the kernel, and the
/// nodes' and the clients' part in the rig with it. Each client sends `bytes`, so many commands.
fn passing(
    name: &'static str,
    (bytes, commands): (Vec<u8>, u32),
    clients: u32,
    reply: &str,
    received: usize,
) -> Case {
    let reply = reply.as_bytes().to_vec();
    let mut rig = Rig::new(clients);
    // The connections to the nodes.
    rig.round(&bytes, &reply);
    case(name, commands * clients, received as u64 * u64::from(clients), move || {
        rig.round(black_box(&bytes), &reply);
        rig.received as u64
    })
}

/// The same command again and again, each time with another key: `#` in its words.
fn pipeline(words: &[&str], commands: u32) -> (Vec<u8>, u32) {
    let mut bytes = Vec::new();
    for n in 0..commands {
        let words: Vec<String> =
            words.iter().map(|word| word.replace('#', &format!("{:012}", n * 7919))).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        command(&words, &mut bytes);
    }
    (bytes, commands)
}

/// Clients of the `busy` cases: their requests in flight fill more than the nearest cache.
const MANY: u32 = 50;

fn whole() -> [Case; 10] {
    let bulk = format!("$64\r\n{}\r\n", "x".repeat(64));
    let value = "x".repeat(64);
    let keys = ten_keys();
    let mget: Vec<&str> = ["MGET"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    let mset: Vec<&str> =
        ["MSET"].into_iter().chain(keys.iter().flat_map(|key| [key.as_str(), &value])).collect();
    let [mget, mset] = [mget, mset].map(|words| (request(&words), 1));
    let one = format!("*1\r\n{bulk}");
    let get = |commands| pipeline(&["GET", "key:#"], commands);
    let set = |commands| pipeline(&["SET", "key:#", &value], commands);
    let ten = 5 + 10 * bulk.len();
    [
        passing("proxy_get", get(1), 1, &bulk, bulk.len()),
        passing("proxy_get_pipeline_16", get(16), 1, &bulk, 16 * bulk.len()),
        passing("proxy_set_64", set(1), 1, "+OK\r\n", 5),
        passing("proxy_set_64_pipeline_64", set(64), 1, "+OK\r\n", 64 * 5),
        passing("proxy_mget_10_cut_and_merged", mget.clone(), 1, &one, ten),
        passing("proxy_mset_10_cut_and_merged", mset.clone(), 1, "+OK\r\n", 5),
        passing("busy_get_pipeline_16", get(16), MANY, &bulk, 16 * bulk.len()),
        passing("busy_set_64_pipeline_64", set(64), MANY, "+OK\r\n", 64 * 5),
        passing("busy_mget_10_cut_and_merged", mget, MANY, &one, ten),
        passing("busy_mset_10_cut_and_merged", mset, MANY, "+OK\r\n", 5),
    ]
}
