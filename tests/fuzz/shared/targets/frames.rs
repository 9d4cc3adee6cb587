//! Single frames: what is read in a header, a number or an error agrees with the frame's tree.
//!
//! Not here: where frames end (`reply`).

use ringway::resp::reply::{
    ErrorKind, aggregate_header, classify_error, first_frame_len, parse_integer,
};
use ringway::resp::value::{Value, parse_value};

use super::Target;
use super::reply::put_frame;
use crate::hold;
use crate::shared::corpus::REPLY_SLICES;
use crate::shared::plant::{self, Plant};
use crate::shared::random::Random;

pub const TARGET: Target = Target {
    name: "frames",
    property: "headers, numbers and error kinds are read as the tree of the same frame says",
    check,
    make,
    memory: (128 << 10, 160),
    executions: 800_000,
};

fn check(bytes: &[u8]) -> Result<(), String> {
    // On any bytes: no panic.
    let (kind, header) = (classify_error(bytes), aggregate_header(bytes));
    let Some(len) = first_frame_len(bytes) else { return Ok(()) };
    let frame = &bytes[..len];
    // What an attribute speaks of is not looked into: no server sends any but to DEBUG.
    let Ok(Some((value, _))) = parse_value(frame).map(|one| one.filter(|_| frame[0] != b'|'))
    else {
        return Ok(());
    };
    let number = match parse_integer(frame) {
        Some(number) if plant::is(Plant::WrapNumber) => Some(i64::from(number as i32)),
        other => other,
    };
    hold!(number == value.as_integer(), "{number:?} of {value:?}");
    let text = match &value {
        Value::Error(text) => text.as_slice(),
        _ => b"",
    };
    let word = text.split(|byte| matches!(byte, b' ' | b'\r' | b'\n')).next().unwrap_or_default();
    let redirects = [(&b"MOVED"[..], ErrorKind::Moved), (b"ASK", ErrorKind::Ask)];
    for (name, named) in redirects {
        hold!((kind == named) == (word == name), "{kind:?} of {:?}", String::from_utf8_lossy(text));
    }
    let count = match &value {
        Value::Array(items) | Value::Set(items) | Value::Push(items) => Some(items.len()),
        Value::Map(pairs) => Some(pairs.len()),
        _ => None,
    };
    if let (Some((_, said, header)), Some(count)) = (header, count) {
        hold!(said == count as i64, "a header of {said}, {count} elements");
        hold!(frame[header - 2..header] == *b"\r\n", "a header of {header} bytes");
    }
    hold!(count.is_none() || header.is_some(), "no header in {value:?}");
    Ok(())
}

fn make(random: &mut Random) -> Vec<u8> {
    let mut frame = Vec::new();
    match random.below(4) {
        0 => frame.extend_from_slice(random.pick(&REPLY_SLICES)),
        1 => {
            const WORDS: [&str; 9] =
                ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "ERR", "moved", "MOVEDX", "ASK\r", ""];
            let text = format!("{} 1 a:1", random.pick(&WORDS));
            let line = format!("-{text}\r\n");
            let bulk = format!("!{}\r\n{text}\r\n", text.len());
            frame.extend_from_slice(if random.one_in(2) { line } else { bulk }.as_bytes());
        }
        2 => {
            frame.push(b':');
            frame.extend(random.number_text());
            frame.extend_from_slice(b"\r\n");
        }
        _ => put_frame(random, 1, &mut frame),
    }
    if random.one_in(3) {
        random.mutate(&mut frame, &REPLY_SLICES);
    }
    frame
}
