//! Where the keys are, command by command, and which requests may block or be cut.
//!
//! Places and texts were compared with redis-server 7.0.15 (COMMAND GETKEYS, and the replies
//! themselves): they agree, but where GETKEYS finds nothing (counts of zero, sharded channels, a
//! lone PFMERGE target) and where a line says so.

use super::*;
use crate::resp::Span;

/// Words are separated by blanks; `""` is an empty word.
pub(super) fn with_args<T>(line: &str, test: impl FnOnce(&Args) -> T) -> T {
    let (mut bytes, mut spans) = (Vec::new(), Vec::new());
    for word in line.split_whitespace() {
        let start = bytes.len() as u32;
        bytes.extend_from_slice(if word == "\"\"" { b"" } else { word.as_bytes() });
        spans.push(Span { start, end: bytes.len() as u32 });
    }
    test(&Args { bytes: &bytes, spans: &spans })
}

fn keys(line: &str) -> (Result<(), KeyError>, Vec<u32>) {
    with_args(line, |args| {
        let command = lookup(args).unwrap_or_else(|error| panic!("{line}: {error:?}"));
        let mut found = vec![99];
        (keys_of(command, args, &mut found), found)
    })
}

#[track_caller]
fn check(line: &str, expected: &[u32]) {
    assert_eq!(keys(line), (Ok(()), expected.to_vec()), "{line}");
}

#[track_caller]
fn check_doubt(line: &str, doubt: KeyError, sure: &[u32]) {
    assert_eq!(keys(line), (Err(doubt), sure.to_vec()), "{line}");
}

#[test]
fn plain_places_are_found() {
    check("GET k", &[1]);
    check("set k v", &[1]);
    check("SET k v EX 10 NX", &[1]);
    check("HSET h f v", &[1]);
    check("XADD s * f v", &[1]);
    check("ZADD z 1 m", &[1]);
    check("BITFIELD k GET u8 0", &[1]);
    check("RESTORE k 0 v", &[1]);
    check("OBJECT ENCODING k", &[2]);
    check("MEMORY USAGE k SAMPLES 5", &[2]);
    check("XINFO STREAM s FULL", &[2]);
    check("XGROUP CREATE s g $", &[2]);
    check("HIMPORT SET k a b c", &[2]);
    check("PFDEBUG GETREG k", &[2]);
    check("FT.SUGADD k text 1", &[1]);
    check("FT.ADD index doc 1", &[2]);
    check("JSON.SET k $ 1", &[1]);
    check("CLUSTERSCAN 0", &[1]);
}

#[test]
fn ranges_are_found() {
    check("MGET a b c", &[1, 2, 3]);
    check("DEL a", &[1]);
    check("EXISTS a a", &[1, 2]);
    check("TOUCH a b", &[1, 2]);
    check("UNLINK a b", &[1, 2]);
    check("MSET a 1 b 2", &[1, 3]);
    check("MSETNX a 1 b 2", &[1, 3]);
    check("JSON.MSET a $ 1 b $ 2", &[1, 4]);
    check("TS.MADD a 1 1 b 2 2", &[1, 4]);
    check("RENAME a b", &[1, 2]);
    check("COPY a b REPLACE", &[1, 2]);
    check("SMOVE a b m", &[1, 2]);
    check("LMOVE a b LEFT RIGHT", &[1, 2]);
    check("GEOSEARCHSTORE a b FROMLONLAT 1 1 BYRADIUS 1 m", &[1, 2]);
    check("ZRANGESTORE a b 0 -1", &[1, 2]);
    check("LCS a b", &[1, 2]);
    check("LCS a b LEN", &[1, 2]);
    check("SINTERSTORE d a b", &[1, 2, 3]);
    check("PFMERGE d", &[1]);
    check("PFMERGE d a b", &[1, 2, 3]);
    check("PFCOUNT a b", &[1, 2]);
    check("BITOP AND d a b", &[2, 3, 4]);
    check("BLPOP a b 0", &[1, 2]);
    check("BZPOPMIN a 0", &[1]);
    check("BLMOVE a b LEFT RIGHT 0", &[1, 2]);
    check("BRPOPLPUSH a b 0", &[1, 2]);
    check("WATCH a b", &[1, 2]);
    check("SSUBSCRIBE a b", &[1, 2]);
    check("SUNSUBSCRIBE", &[]);
    check("SPUBLISH a m", &[1]);
    // The rule of both projects names the first key only; every word but the last is one.
    check("JSON.MGET a b c $", &[1, 2, 3]);
    check("JSON.MGET a $", &[1]);
}

#[test]
fn counted_keys_are_found() {
    check("ZUNION 2 a b WEIGHTS 1 2", &[2, 3]);
    check("ZINTERCARD 1 a LIMIT 1", &[2]);
    check("SINTERCARD 2 a b LIMIT 1", &[2, 3]);
    check("LMPOP 2 a b LEFT", &[2, 3]);
    check("ZMPOP 1 a MIN", &[2]);
    check("BLMPOP 0 2 a b LEFT", &[3, 4]);
    check("BZMPOP 0 1 a MIN", &[3]);
    check("ZUNIONSTORE d 2 a b AGGREGATE MAX", &[1, 3, 4]);
    check("ZDIFFSTORE d 1 a", &[1, 3]);
    check("TDIGEST.MERGE d 2 a b", &[1, 3, 4]);
    check("EVAL s 2 a b c", &[3, 4]);
    check("EVAL s 0 a", &[]);
    check("EVAL_RO s 1 a", &[3]);
    check("EVALSHA s 1 a", &[3]);
    check("FCALL f 2 a b", &[3, 4]);
    check("FCALL_RO f 0", &[]);
    check("MSETEX 2 a 1 b 2 EX 10", &[2, 4]);
    check("TS.NRANGE 2 a b 0 1", &[2, 3]);
}

#[test]
fn wrong_counts_of_eval_get_the_servers_text() {
    check_doubt("EVAL s x a", KeyError::NotInteger, &[]);
    check_doubt("EVAL s 01 a", KeyError::NotInteger, &[]);
    check_doubt("EVAL s 99999999999999999999 a", KeyError::NotInteger, &[]);
    check_doubt("EVAL s 2 a", KeyError::TooManyKeys, &[]);
    check_doubt("EVAL s 9223372036854775807 a", KeyError::TooManyKeys, &[]);
    check_doubt("EVAL_RO s -1 a", KeyError::NegativeKeys, &[]);
    let digest = "0123456789012345678901234567890123456789";
    check_doubt(&format!("EVALSHA {digest} 2 a"), KeyError::TooManyKeys, &[]);
    // NOSCRIPT comes first.
    check_doubt("EVALSHA short 2 a", KeyError::Syntax, &[]);
    // The function is looked up first.
    check_doubt("FCALL f x a", KeyError::Syntax, &[]);
    assert_eq!(
        KeyError::TooManyKeys.text(),
        Some("ERR Number of keys can't be greater than number of args")
    );
    assert_eq!(KeyError::NegativeKeys.text(), Some("ERR Number of keys can't be negative"));
    assert_eq!(KeyError::NotInteger.text(), Some("ERR value is not an integer or out of range"));
    assert_eq!(KeyError::Syntax.text(), None);
}

#[test]
fn doubtful_syntax_is_left_to_the_node() {
    check_doubt("ZUNION x a", KeyError::Syntax, &[]);
    check_doubt("ZUNION 3 a b", KeyError::Syntax, &[]);
    check("ZUNIONSTORE d 0 a", &[1]);
    check("ZUNION 0 a", &[]);
    check_doubt("LMPOP -1 a LEFT", KeyError::Syntax, &[]);
    check_doubt("MSETEX 2 a 1 b", KeyError::Syntax, &[]);
    check_doubt("MSET a 1 b", KeyError::Syntax, &[1, 3]);
    check_doubt("JSON.MSET a $ 1 b", KeyError::Syntax, &[1, 4]);
}

#[test]
fn the_last_store_of_sort_counts() {
    check("SORT k", &[1]);
    check("SORT k BY w_* GET o_* GET # LIMIT 0 5 DESC ALPHA", &[1]);
    check("SORT k STORE d", &[1, 2 + 1]);
    check("SORT k STORE d STORE e", &[1, 5]);
    check("SORT k BY store STORE d", &[1, 5]);
    check("SORT k GET store", &[1]);
    check("SORT k LIMIT 0 store", &[1]);
    // GETKEYS takes the word after the first STORE for an option; SORT itself does not.
    check("SORT k STORE by STORE d", &[1, 5]);
    check("SORT k STORE store", &[1, 3]);
    check("SORT_RO k BY w_* GET o_*", &[1]);
    check_doubt("SORT k STORE", KeyError::Syntax, &[1]);
    check_doubt("SORT k WHAT STORE d", KeyError::Syntax, &[1, 4]);
}

#[test]
fn the_last_store_of_georadius_counts() {
    check("GEORADIUS g 0 0 1 m", &[1]);
    check("GEORADIUS g 0 0 1 m STORE d", &[1, 7]);
    check("GEORADIUS g 0 0 1 m WITHDIST COUNT 5 STOREDIST d", &[1, 10]);
    // GETKEYS says the first, or both; the last is written (routing-policy 2.7, measured).
    check("GEORADIUS g 0 0 1 m STORE d STORE e", &[1, 9]);
    check("GEORADIUS g 0 0 1 m STORE d STOREDIST e", &[1, 9]);
    check("GEORADIUS g 0 0 1 m STORE STORE", &[1, 7]);
    check("GEORADIUSBYMEMBER g m 1 m STORE d", &[1, 6]);
    check("GEORADIUSBYMEMBER g store 1 m", &[1]);
    check("GEORADIUS_RO g 0 0 1 m", &[1]);
}

#[test]
fn streams_are_found_behind_the_options() {
    check("XREAD STREAMS a 0", &[2]);
    check("XREAD COUNT 5 BLOCK 0 STREAMS a b 0 0", &[6, 7]);
    check("XREAD STREAMS STREAMS 0", &[2]);
    check("XREAD STREAMS a STREAMS 0 0", &[2, 3]);
    check("XREADGROUP GROUP g c STREAMS a >", &[5]);
    check("XREADGROUP GROUP STREAMS c STREAMS a >", &[5]);
    check("XREADGROUP GROUP g STREAMS STREAMS a >", &[5]);
    check("XREADGROUP GROUP g c COUNT 1 NOACK STREAMS a b > >", &[8, 9]);
    check("XREADGROUP COUNT 1 GROUP g c CLAIM 10 STREAMS a >", &[9]);
    check_doubt("XREAD STREAMS a b 0", KeyError::Syntax, &[2]);
    check_doubt("XREAD COUNT 5 a 0", KeyError::Syntax, &[]);
}

#[test]
fn migrate_and_json_debug_are_walked() {
    check("MIGRATE h 1 k 0 5", &[3]);
    check("MIGRATE h 1 k 0 5 COPY AUTH keys", &[3]);
    check("MIGRATE h 1 \"\" 0 5 KEYS a b", &[7, 8]);
    check("MIGRATE h 1 \"\" 0 5 AUTH2 KEYS p KEYS a", &[10]);
    check_doubt("MIGRATE h 1 k 0 5 KEYS a", KeyError::Syntax, &[]);
    check_doubt("MIGRATE h 1 \"\" 0 5", KeyError::Syntax, &[]);
    check("JSON.DEBUG MEMORY k $", &[2]);
    check("JSON.DEBUG HELP", &[]);
}

#[test]
fn commands_without_keys_have_none() {
    check("PING", &[]);
    check("DBSIZE", &[]);
    check("SCAN 0 MATCH x", &[]);
    check("PUBLISH c m", &[]);
    check("FT.SEARCH index query", &[]);
    check("TS.MGET FILTER a=b", &[]);
    check("CLUSTER COUNTKEYSINSLOT 5", &[]);
}

#[test]
fn hostile_spans_give_empty_words() {
    let spans = [Span { start: 0, end: 3 }, Span { start: 9, end: 2 }, Span { start: 2, end: 90 }];
    let args = Args { bytes: b"GET", spans: &spans };
    assert_eq!(args.iter().collect::<Vec<_>>(), [&b"GET"[..], b"", b"T"]);
    assert_eq!(args.get(3), None);
    assert_eq!(args.len(), 3);
}

/// Every row with every number of words under 12, each a count, a keyword or nothing: no panic, and
/// every key that is found is a word.
#[test]
fn keys_are_words_whatever_is_asked() {
    let words = ["1", "STREAMS", "STORE", "\"\"", "-1", "KEYS", "9223372036854775807", "BLOCK"];
    for command in &COMMANDS {
        for argc in 1..12 {
            for shift in 0..words.len() {
                let line: Vec<_> =
                    (0..argc).map(|at| words[(at * (shift + 1) + shift) % words.len()]).collect();
                with_args(&line.join(" "), |args| {
                    let mut found = Vec::new();
                    let sound = keys_of(command, args, &mut found).is_ok();
                    assert!(found.iter().all(|key| (1..argc).contains(&(*key as usize))));
                    let shape = split_shape(command, args, &found);
                    assert!(!sound || shape.is_none_or(|shape| shape.tail <= argc));
                    blocks(command, args);
                });
            }
        }
    }
}

#[track_caller]
fn check_blocks(line: &str, expected: bool) {
    let blocking = with_args(line, |args| lookup(args).is_ok_and(|command| blocks(command, args)));
    assert_eq!(blocking, expected, "{line}");
}

#[test]
fn xread_blocks_only_with_block() {
    check_blocks("BLPOP a 0", true);
    check_blocks("WAIT 1 0", true);
    check_blocks("GET a", false);
    check_blocks("XREAD STREAMS a 0", false);
    check_blocks("XREAD COUNT 1 block 0 STREAMS a 0", true);
    check_blocks("XREAD STREAMS BLOCK 0", false);
    check_blocks("XREADGROUP GROUP BLOCK c STREAMS a >", false);
    check_blocks("XREADGROUP GROUP g c BLOCK 5 STREAMS a >", true);
}

#[track_caller]
fn check_shape(line: &str, expected: Option<SplitShape>) {
    let shape = with_args(line, |args| {
        let command = lookup(args).expect("a command");
        let mut keys = Vec::new();
        keys_of(command, args, &mut keys).expect("sound keys");
        split_shape(command, args, &keys)
    });
    assert_eq!(shape, expected, "{line}");
}

#[test]
fn shapes_of_what_may_be_cut() {
    let shape = |first, words_per_key, keys, counted, tail| {
        Some(SplitShape { first, words_per_key, keys, counted, tail })
    };
    check_shape("MGET a b", shape(1, 1, 2, false, 3));
    check_shape("DEL a b c", shape(1, 1, 3, false, 4));
    check_shape("JSON.MGET a b $", shape(1, 1, 2, false, 3));
    check_shape("MSET a 1 b 2", shape(1, 2, 2, false, 5));
    check_shape("MSETEX 2 a 1 b 2 EX 9", shape(2, 2, 2, true, 6));
    check_shape("MSETEX 2 a NX b XX KEEPTTL", shape(2, 2, 2, true, 6));
    check_shape("MSETEX 2 a 1 b 2 nx", None);
    check_shape("MSETEX 1 a 1 EX 9 XX", None);
    check_shape("MSETNX a 1 b 2", None);
    check_shape("SUNION a b", None);
}

#[track_caller]
fn check_lookup(line: &str, expected: &str) {
    let answer = with_args(line, |args| match lookup(args) {
        Ok(command) => command.name.to_owned(),
        Err(LookupError::UnknownCommand) => "unknown".to_owned(),
        Err(LookupError::UnknownSubcommand(container)) => format!("no {} of that", container.name),
        Err(LookupError::WrongArity(command)) => format!("arity of {}", command.lowercase_name()),
    });
    assert_eq!(answer, expected, "{line}");
}

#[test]
fn lookup_tells_what_is_wrong() {
    check_lookup("get k", "GET");
    check_lookup("get", "arity of get");
    check_lookup("GET a b", "arity of get");
    check_lookup("\"\"", "unknown");
    check_lookup("", "unknown");
    check_lookup("config Get x", "CONFIG|GET");
    check_lookup("config get", "arity of config|get");
    check_lookup("config", "arity of config");
    check_lookup("config what", "no CONFIG of that");
    check_lookup("config|get x", "unknown");
    check_lookup("command", "COMMAND");
    check_lookup("command count", "COMMAND|COUNT");
    check_lookup("get count", "GET");
}
