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
use crate::shared::take::{Take, put_number};

pub const TARGET: Target = Target {
    name: "reply",
    property: "a stream of replies, cut anywhere, gives the frames and the error of the uncut one; \
               frames are byte-identical to what was sent and end where a recursive reading ends",
    check,
    make,
    memory: (256 << 10, 160),
    executions: 250_000,
};

/// The frames of a stream: of each its first byte and its length; and how the stream ends. A frame
/// is what lies between: whoever collects pieces collects them all.
#[derive(PartialEq, Debug)]
struct Frames {
    frames: Vec<(u8, usize)>,
    /// Bytes of a frame that goes on.
    rest: usize,
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
    let mut rest = stream;
    for &(first, len) in &whole.frames {
        hold!(rest.first() == Some(&first), "frame type {first}");
        let end = model_end(rest);
        hold!(end == Some(len), "a frame of {len} bytes; by recursion {end:?}");
        let (frame, behind) = rest.split_at(len);
        value_agrees(frame, chance)?;
        rest = behind;
    }
    if whole.error.is_some() || whole.rest > 0 {
        hold!(model_end(rest).is_none(), "no frame was found, by recursion {:?}", model_end(rest));
    }
    Ok(())
}

/// Follows a stream that comes in pieces, and collects as a backend does.
fn scan(stream: &[u8], cuts: &[usize]) -> Result<Frames, String> {
    let mut scanner = ReplyScanner::default();
    let mut out = Frames { frames: Vec::new(), rest: 0, error: None };
    let mut at = 0;
    for &end in cuts {
        while at < end {
            let piece = &stream[at..end];
            hold!(scanner.at_start() == (out.rest == 0), "between frames with {} bytes", out.rest);
            match scanner.scan(piece) {
                Ok(Scanned::Complete { len }) => {
                    hold!(0 < len && len <= piece.len(), "{len} of {} bytes", piece.len());
                    let early = plant::is(Plant::CutReplyEarly) && cuts.len() > 1;
                    let frame = std::mem::take(&mut out.rest) + len - usize::from(early);
                    out.frames.push((scanner.frame_type(), frame));
                    at += len;
                }
                Ok(Scanned::Partial) => {
                    out.rest += piece.len();
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
    (number <= most && (text == b"0" || matches!(text, [b'1'..=b'9', ..]))).then_some(number)
}

// --- inputs ------------------------------------------------------------------------------------

fn make(random: &mut Random) -> Vec<u8> {
    let mut out = vec![random.next() as u8];
    // Mostly short: an hour is worth more in many streams than in long ones.
    let most = random.pick(&[100, 100, 300, 300, 300, 1000, 1000, 6000]);
    for _ in 0..=random.length(6) {
        if random.one_in(3) {
            out.extend_from_slice(recorded(random, most));
        } else {
            put_frame(random, 0, &mut out);
        }
        if out.len() > most {
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

/// A recorded reply; the few that are much longer than a stream is to be stay away.
fn recorded(random: &mut Random, most: usize) -> &'static [u8] {
    let one = random.pick(&REPLY_SLICES);
    if one.len() > 3 * most { REPLY_SLICES[0] } else { one }
}

/// A frame of any kind and depth.
pub fn put_frame(random: &mut Random, depth: usize, out: &mut Vec<u8>) {
    let kind = random.pick(b"+-:_#,($$$=!*%~>|**");
    // Deep now and then, by single elements: depth must cost nothing.
    if depth == 0 && random.one_in(100) {
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
            let most = if random.one_in(200) { 12_000 } else { 70 };
            random.put_text(most, &mut text);
            put_number(text.len(), out);
            out.extend(text);
            out.extend_from_slice(b"\r\n");
        }
        b'*' | b'%' | b'~' | b'>' | b'|' => {
            if kind == b'*' && random.one_in(8) {
                return out.extend_from_slice(b"-1\r\n");
            }
            let count = if depth > 3 || out.len() > 1000 { 0 } else { random.length(9) };
            put_number(count, out);
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
                    let start = out.len();
                    random.put_text(40, out);
                    out[start..]
                        .iter_mut()
                        .filter(|byte| **byte == b'\n')
                        .for_each(|byte| *byte = b'.');
                }
            }
            out.extend_from_slice(b"\r\n");
        }
    }
}
