//! SLOWLOG, COMMANDLOG, LATENCY, HOTKEYS: the proxy's own, and it keeps none yet.
//!
//! Not here: the nodes' logs. One of them answering for the cluster would mislead.

use super::{Answer, errors};
use crate::command::Args;
use crate::proxy::session::Session;
use crate::resp::number::read_integer;
use crate::resp::write;

const TYPES: [&str; 3] = ["slow", "large-request", "large-reply"];

/// Answers `<container> <sub>` with an empty log.
pub(super) fn answer(
    container: &str,
    sub: &str,
    args: &Args,
    session: &Session,
    out: &mut Vec<u8>,
) -> Answer {
    let version = session.version;
    match (container, sub) {
        ("SLOWLOG", "GET") => entries(args.get(2), out),
        ("COMMANDLOG", "GET") if known_type(args.get(3), out) => entries(args.get(2), out),
        ("SLOWLOG", "LEN") => write::integer(out, 0),
        ("COMMANDLOG", "LEN") if known_type(args.get(2), out) => write::integer(out, 0),
        ("SLOWLOG", "RESET") => write::simple(out, "OK"),
        ("COMMANDLOG", "RESET") if known_type(args.get(2), out) => write::simple(out, "OK"),
        // `known_type` has answered.
        ("COMMANDLOG", "GET" | "LEN" | "RESET") => {}
        ("LATENCY", "LATEST" | "HISTORY") => write::array_header(out, 0),
        ("LATENCY", "RESET") => write::integer(out, 0),
        ("LATENCY", "HISTOGRAM") => write::map_header(out, version, 0),
        ("LATENCY", "DOCTOR") => {
            let text = b"This proxy records no latency events. Its times are in its metrics.\n";
            write::verbatim(out, version, b"txt", text);
        }
        ("LATENCY", "GRAPH") => {
            let event = errors::clip(args.get(2).unwrap_or_default(), usize::MAX);
            errors::line(out, &[b"ERR No samples available for event '", event, b"'"]);
        }
        ("HOTKEYS", "GET" | "STOP") => write::null(out, version),
        ("HOTKEYS", "RESET") => write::simple(out, "OK"),
        ("HOTKEYS", "START") => errors::not_yet(out, "HOTKEYS START"),
        _ => errors::refused(out, &format!("{container} {sub}")),
    }
    Answer::Replied
}

fn entries(count: Option<&[u8]>, out: &mut Vec<u8>) {
    match count.map(read_integer) {
        None | Some(Some(-1..)) => write::array_header(out, 0),
        Some(_) => errors::fixed(out, "ERR count should be greater than or equal to -1"),
    }
}

/// False: the error reply is in `out`.
fn known_type(name: Option<&[u8]>, out: &mut Vec<u8>) -> bool {
    let name = name.unwrap_or_default();
    let known = TYPES.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
    if !known {
        let text = "ERR type should be one of the following: slow, large-request, large-reply";
        errors::fixed(out, text);
    }
    known
}
