//! Framing of replies: what is cut out of a node's stream is what the node sent, however it came.
//!
//! Not here: what single frames mean (`frames`).

use ringway::limits;
use ringway::resp::reply::{FrameError, ReplyScanner, Scanned};
use ringway::resp::value::parse_value;

use super::Target;
use crate::hold;
use crate::shared::corpus::REPLY_SLICES;
use crate::shared::plant::{self, Plant};
use crate::shared::random::Random;
use crate::shared::take::Take;

pub const TARGET: Target = Target {
    name: "reply",
    property: "a stream of replies, cut anywhere, gives the frames and the error of the uncut one; \
               frames are byte-identical to what was sent and end where a recursive reading ends",
    check,
    make,
    memory: (256 << 10, 160),
    executions: 80_000,
};

/// The frames of a stream with their first bytes, and how it ends.
#[derive(PartialEq, Debug)]
struct Frames {
    frames: Vec<(u8, Vec<u8>)>,
    /// Bytes of a frame that goes on.
    rest: Vec<u8>,
    error: Option<FrameError>,
}

fn check(input: &[u8]) -> Result<(), String> {
    let mut take = Take(input);
    let chance = &mut Random::new(u64::from(take.byte()));
    let stream = take.0;
    let whole = scan(stream, &[stream.len()])?;
    let cuts = chance.cuts(stream.len());
    let cut = scan(stream, &cuts)?;
    let same = cut.frames == whole.frames && cut.error == whole.error;
    hold!(same, "cut at {cuts:?}: {cut:?}\nuncut: {whole:?}");
    hold!(whole.error.is_some() || cut.rest == whole.rest, "{cut:?}\nuncut: {whole:?}");
    let all: Vec<u8> = whole.frames.iter().flat_map(|(_, frame)| frame.iter().copied()).collect();
    hold!(stream.starts_with(&all), "frames are not what was sent");
    let mut rest = stream;
    for (first, frame) in &whole.frames {
        hold!(rest.first() == Some(first), "frame type {first}");
        let end = model_end(rest);
        hold!(end == Some(frame.len()), "a frame of {} bytes; by recursion {end:?}", frame.len());
        value_agrees(frame, chance)?;
        rest = &rest[frame.len()..];
    }
    if whole.error.is_some() || !whole.rest.is_empty() {
        hold!(model_end(rest).is_none(), "no frame was found, by recursion {:?}", model_end(rest));
    }
    Ok(())
}

/// Follows a stream that comes in pieces, and collects as a backend does.
fn scan(stream: &[u8], cuts: &[usize]) -> Result<Frames, String> {
    let mut scanner = ReplyScanner::default();
    let mut out = Frames { frames: Vec::new(), rest: Vec::new(), error: None };
    let mut at = 0;
    for &end in cuts {
        while at < end {
            let piece = &stream[at..end];
            hold!(scanner.at_start() == out.rest.is_empty(), "between frames with {:?}", out.rest);
            match scanner.scan(piece) {
                Ok(Scanned::Complete { len }) => {
                    hold!(0 < len && len <= piece.len(), "{len} of {} bytes", piece.len());
                    out.rest.extend_from_slice(&piece[..len]);
                    if plant::is(Plant::CutReplyEarly) && cuts.len() > 1 {
                        out.rest.pop();
                    }
                    let frame = std::mem::take(&mut out.rest);
                    out.frames.push((scanner.frame_type(), frame));
                    at += len;
                }
                Ok(Scanned::Partial) => {
                    out.rest.extend_from_slice(piece);
                    at = end;
                }
                Err(error) => {
                    out.error = Some(error);
                    return Ok(out);
                }
            }
        }
    }
    Ok(out)
}

/// The tree of a frame ends where the frame does; a part of a frame is no tree.
fn value_agrees(frame: &[u8], chance: &mut Random) -> Result<(), String> {
    match parse_value(frame) {
        Ok(Some((_, len))) => hold!(len == frame.len(), "a tree of {len} bytes of {}", frame.len()),
        Ok(None) => return Err("a whole frame, and its tree is not".into()),
        Err(FrameError::TooDeep | FrameError::BadLength) => {}
        Err(error) => return Err(format!("a whole frame, and its tree: {error}")),
    }
    let part = &frame[..chance.below(frame.len())];
    let tree = parse_value(part);
    hold!(!matches!(tree, Ok(Some(_))), "a tree out of a part: {tree:?}");
    Ok(())
}

/// Where a frame ends, by a stack of what is still to come at each depth. `None`: cut or wrong.
fn model_end(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut open: Vec<u64> = vec![1];
    while let Some(left) = open.last_mut() {
        if *left == 0 {
            open.pop();
            continue;
        }
        *left -= 1;
        let line_end = at + bytes.get(at..)?.windows(2).position(|pair| pair == b"\r\n")?;
        let (kind, text) = (bytes[at], bytes.get(at + 1..line_end)?);
        at = line_end + 2;
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            b'$' | b'=' | b'!' => {
                if kind == b'$' && text == b"-1" {
                    continue;
                }
                let length = model_length(text, limits::REPLY_BULK_MAX)? as usize;
                (bytes.get(at + length..at + length + 2)? == b"\r\n").then_some(())?;
                at += length + 2;
            }
            b'*' if text == b"-1" => {
                if plant::is(Plant::SkipNull) {
                    *open.last_mut()? += 1;
                }
            }
            b'*' | b'~' | b'>' => open.push(model_length(text, limits::REPLY_ELEMENTS_MAX)?),
            b'%' => open.push(2 * model_length(text, limits::REPLY_ELEMENTS_MAX)?),
            // No element itself: what it speaks of is still to come.
            b'|' => {
                *left += 1;
                open.push(2 * model_length(text, limits::REPLY_ELEMENTS_MAX)?);
            }
            _ => return None,
        }
    }
    Some(at)
}

fn model_length(text: &[u8], most: u64) -> Option<u64> {
    let number: u64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number <= most && number.to_string().as_bytes() == text).then_some(number)
}

// --- inputs ------------------------------------------------------------------------------------

fn make(random: &mut Random) -> Vec<u8> {
    let mut out = vec![random.next() as u8];
    for _ in 0..=random.length(6) {
        if random.one_in(3) {
            out.extend_from_slice(random.pick(&REPLY_SLICES));
        } else {
            put_frame(random, 0, &mut out);
        }
        if out.len() > 6000 {
            break;
        }
    }
    if random.one_in(2) {
        let mut stream = out.split_off(1);
        random.mutate(&mut stream, &REPLY_SLICES);
        out.extend(stream);
    }
    out
}

/// A frame of any kind and depth.
pub fn put_frame(random: &mut Random, depth: usize, out: &mut Vec<u8>) {
    let kind = random.pick(b"+-:_#,($$$=!*%~>|**");
    // Deep now and then, by single elements: depth must cost nothing.
    if depth == 0 && random.one_in(50) {
        for _ in 0..random.length(3000) {
            out.extend_from_slice(random.pick(&[&b"*1\r\n"[..], b"~1\r\n", b">1\r\n"]));
        }
    }
    out.push(kind);
    match kind {
        b'$' | b'=' | b'!' => {
            if kind == b'$' && random.one_in(8) {
                return out.extend_from_slice(b"-1\r\n");
            }
            let mut text = if kind == b'=' { b"txt:".to_vec() } else { Vec::new() };
            let most = if random.one_in(60) { 12_000 } else { 70 };
            text.extend(random.text(most));
            out.extend_from_slice(format!("{}\r\n", text.len()).as_bytes());
            out.extend(text);
            out.extend_from_slice(b"\r\n");
        }
        b'*' | b'%' | b'~' | b'>' | b'|' => {
            if kind == b'*' && random.one_in(8) {
                return out.extend_from_slice(b"-1\r\n");
            }
            let count = if depth > 3 || out.len() > 4000 { 0 } else { random.length(9) };
            out.extend_from_slice(format!("{count}\r\n").as_bytes());
            let double = if matches!(kind, b'%' | b'|') { 2 } else { 1 };
            for _ in 0..count * double {
                put_frame(random, depth + 1, out);
            }
            if kind == b'|' {
                put_frame(random, depth + 1, out);
            }
        }
        _ => {
            match kind {
                b'#' => out.extend_from_slice(random.pick(&[&b"t"[..], b"f"])),
                b'_' => {}
                b':' | b'(' | b',' => out.extend(random.number_text()),
                _ => {
                    let text = random.text(40);
                    out.extend(text.into_iter().filter(|byte| *byte != b'\n'));
                }
            }
            out.extend_from_slice(b"\r\n");
        }
    }
}
