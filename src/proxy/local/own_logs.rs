//! SLOWLOG, COMMANDLOG (of slow commands) and LATENCY (of the event `command`): the proxy's own.
//! Of other events and of HOTKEYS it records none.
//!
//! Not here: the log itself (`proxy/slowlog`); the nodes' logs. One of them answering for the
//! cluster would mislead.

use super::{Answer, errors};
use crate::command::Args;
use crate::proxy::session::Session;
use crate::resp::number::read_integer;
use crate::resp::write;

const TYPES: [&str; 3] = ["slow", "large-request", "large-reply"];

/// What is asked of the slow log.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LogQuery {
    /// So many of the newest entries.
    Get(usize),
    /// PROXY SLOWLOG: the same, with the node and its share of the time.
    Shares(usize),
    Len,
    Reset,
    /// LATENCY: how long slow requests took.
    Latest,
    History,
    Graph,
    Forget,
}

/// The one event that LATENCY knows, named as the server's for slow commands.
const EVENT: &[u8] = b"command";

/// Entries that are shown when no number is given.
const SHOWN_DEFAULT: usize = 10;

/// Answers `<container> <sub>`.
pub(super) fn answer(
    container: &str,
    sub: &str,
    args: &Args,
    session: &Session,
    out: &mut Vec<u8>,
) -> Answer {
    let version = session.version;
    match (container, sub) {
        ("SLOWLOG", "GET") => return entries(args.get(2), true, out),
        ("SLOWLOG", "LEN") => return Answer::SlowLog(LogQuery::Len),
        ("SLOWLOG", "RESET") => return Answer::SlowLog(LogQuery::Reset),
        ("COMMANDLOG", "GET") => match type_of(args.get(3), out) {
            Some(slow) => return entries(args.get(2), slow, out),
            None => return Answer::Replied,
        },
        ("COMMANDLOG", sub @ ("LEN" | "RESET")) => match (type_of(args.get(2), out), sub) {
            (None, _) => return Answer::Replied,
            (Some(true), "LEN") => return Answer::SlowLog(LogQuery::Len),
            (Some(true), _) => return Answer::SlowLog(LogQuery::Reset),
            (Some(false), "LEN") => write::integer(out, 0),
            (Some(false), _) => write::simple(out, "OK"),
        },
        ("LATENCY", "LATEST") => return Answer::SlowLog(LogQuery::Latest),
        ("LATENCY", "HISTORY") if is_event(args) => return Answer::SlowLog(LogQuery::History),
        ("LATENCY", "HISTORY") => write::array_header(out, 0),
        ("LATENCY", "RESET") if args.len() == 2 || args.iter().skip(2).any(is_command) => {
            return Answer::SlowLog(LogQuery::Forget);
        }
        ("LATENCY", "RESET") => write::integer(out, 0),
        ("LATENCY", "GRAPH") if is_event(args) => return Answer::SlowLog(LogQuery::Graph),
        ("LATENCY", "HISTOGRAM") => write::map_header(out, version, 0),
        ("LATENCY", "DOCTOR") => {
            let text =
                b"This proxy records how long slow requests took (LATENCY HISTORY command); \
                         which they were is in SLOWLOG.\n";
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

fn is_event(args: &Args) -> bool {
    args.get(2).is_some_and(is_command)
}

fn is_command(event: &[u8]) -> bool {
    event.eq_ignore_ascii_case(EVENT)
}

/// `slow`: of the log that is kept; the others are empty.
fn entries(count: Option<&[u8]>, slow: bool, out: &mut Vec<u8>) -> Answer {
    let count = match count.map(read_integer) {
        None => SHOWN_DEFAULT,
        Some(Some(-1)) => usize::MAX,
        Some(Some(count @ 0..)) => usize::try_from(count).unwrap_or(usize::MAX),
        Some(_) => {
            errors::fixed(out, "ERR count should be greater than or equal to -1");
            return Answer::Replied;
        }
    };
    if slow {
        return Answer::SlowLog(LogQuery::Get(count));
    }
    write::array_header(out, 0);
    Answer::Replied
}

/// Whether it is the slow log. `None`: the error reply is in `out`.
fn type_of(name: Option<&[u8]>, out: &mut Vec<u8>) -> Option<bool> {
    let name = name.unwrap_or_default();
    let known = TYPES.iter().position(|known| name.eq_ignore_ascii_case(known.as_bytes()));
    if known.is_none() {
        let text = "ERR type should be one of the following: slow, large-request, large-reply";
        errors::fixed(out, text);
    }
    known.map(|place| place == 0)
}
