//! Requests of several slots: the fragments and the merged reply do what the uncut request does.
//!
//! Not here: sending parts; nodes that answer late or not at all (`tests/simulation`).

use std::collections::HashMap;

use ringway::cluster::slot_of;
use ringway::command::{Args, Class, keys_of, lookup, split_shape};
use ringway::proxy::split::{Cut, Merge, Splits};
use ringway::resp::Version;
use ringway::resp::reply::{ReplyScanner, Scanned, first_frame_len};
use ringway::resp::request::{Parsed, RequestLimits, RequestParser, encode_request};

use super::Target;
use super::reply::put_frame;
use crate::hold;
use crate::shared::corpus::REPLY_SLICES;
use crate::shared::plant::{self, Plant};
use crate::shared::random::Random;
use crate::shared::take::{Take, put_pieces};

pub const TARGET: Target = Target {
    name: "split",
    property: "fragments name keys of one slot each; run one by one and merged they answer and store \
               what the uncut request does; of any replies of nodes one whole frame is made",
    check,
    make,
    // The table of slots seen takes 128 KiB.
    memory: (512 << 10, 400),
    executions: 250_000,
};

fn check(input: &[u8]) -> Result<(), String> {
    let mut take = Take(input);
    let how = take.byte();
    let pieces = take.pieces(200);
    if how < 128 { cut_and_merged(&pieces) } else { merged_whole(how, &pieces) }
}

type Store = HashMap<Vec<u8>, Vec<u8>>;

fn cut_and_merged(words: &[&[u8]]) -> Result<(), String> {
    // As it stands on the wire: what is in it is copied with its headers.
    let (mut request, mut spans) = (Vec::new(), Vec::new());
    encode_request(words.iter().copied(), &mut request);
    let whole = RequestParser::default().parse(&request, &RequestLimits::default(), &mut spans);
    if !matches!(whole, Ok(Parsed::Array { canonical: true, .. })) {
        return Ok(());
    }
    let args = Args { bytes: &request, spans: &spans };
    let mut keys = Vec::new();
    let Ok(command) = lookup(&args) else { return Ok(()) };
    let Ok(()) = keys_of(command, &args, &mut keys) else { return Ok(()) };
    let Some(shape) = split_shape(command, &args, &keys) else { return Ok(()) };
    let merge = match command.class {
        Class::SplitValues => Merge::Values,
        Class::SplitCount => Merge::Sum,
        _ => Merge::AllSucceeded,
    };
    let mut store = Store::new();
    for n in 0..6u8 {
        store.insert(vec![b'k', b'0' + n], vec![b'v', b'0' + n]);
    }
    let mut after = store.clone();
    let Some(expected) = run(words, &mut after) else { return Ok(()) };
    let mut cut = Cut::default();
    let slot = |key: &u32| slot_of(args.get(*key as usize).unwrap_or_default());
    cut.by_slot(keys.iter().map(slot));
    let mut replies = Vec::new();
    for group in 0..cut.groups.len() {
        let mut fragment = Vec::new();
        cut.encode(group, &args, &shape, &mut fragment);
        let (mut parser, mut spans) = (RequestParser::default(), Vec::new());
        let parsed = parser.parse(&fragment, &RequestLimits::default(), &mut spans);
        let whole = Parsed::Array { len: fragment.len(), canonical: true };
        hold!(parsed == Ok(whole), "a fragment is {parsed:?}");
        let part: Vec<&[u8]> = spans.iter().map(|span| span.of(&fragment)).collect();
        let of_group = |key: &&[u8]| slot_of(key) == cut.groups[group].slot;
        let step = shape.words_per_key;
        let all = part[shape.first..].iter().step_by(step).all(of_group);
        hold!(all, "a fragment of {} slots: {part:?}", cut.groups.len());
        replies.push(run(&part, &mut store).ok_or("a fragment of another command")?);
    }
    let planted = plant::is(Plant::SwapFragments) && replies.len() > 1;
    if planted && replies[0] != replies[1] {
        replies.swap(0, 1);
    }
    let replies: Vec<&[u8]> = replies.iter().map(Vec::as_slice).collect();
    let merged = merged(merge, Version::Resp2, &cut.group_of, &replies);
    let show = String::from_utf8_lossy;
    hold!(merged == expected, "{:?}, uncut {:?}", show(&merged), show(&expected));
    hold!(store == after, "stored {store:?}, uncut {after:?}");
    Ok(())
}

/// A node with these keys. `None`: a command that it does not have.
fn run(words: &[&[u8]], store: &mut Store) -> Option<Vec<u8>> {
    let keys = words.get(1..)?;
    let count = |count: usize| Some(format!(":{count}\r\n").into_bytes());
    match words.first()?.to_ascii_uppercase().as_slice() {
        b"MGET" => {
            let mut out = format!("*{}\r\n", keys.len()).into_bytes();
            for key in keys {
                match store.get(*key) {
                    None => out.extend_from_slice(b"$-1\r\n"),
                    Some(value) => {
                        out.extend_from_slice(format!("${}\r\n", value.len()).as_bytes());
                        out.extend_from_slice(value);
                        out.extend_from_slice(b"\r\n");
                    }
                }
            }
            Some(out)
        }
        b"EXISTS" | b"TOUCH" => count(keys.iter().filter(|key| store.contains_key(**key)).count()),
        b"DEL" | b"UNLINK" => count(keys.iter().filter_map(|key| store.remove(*key)).count()),
        b"MSET" => {
            for pair in keys.chunks_exact(2) {
                store.insert(pair[0].to_vec(), pair[1].to_vec());
            }
            Some(b"+OK\r\n".to_vec())
        }
        _ => None,
    }
}

/// As `fanout` does it.
fn merged(merge: Merge, version: Version, order: &[u32], replies: &[&[u8]]) -> Vec<u8> {
    let mut splits = Splits::default();
    let index = splits.open(0, merge, version);
    let split = &mut splits[index];
    split.order.extend_from_slice(order);
    split.set_text(match merge {
        Merge::Info { .. } => b"# Server\r\na:1\r\n# Keyspace\r\n".to_vec(),
        _ => Vec::new(),
    });
    for reply in replies {
        split.absorb(reply);
    }
    let mut out = Vec::new();
    split.merge(if merge.keeps_replies() { replies } else { &[] }, 7, &mut out);
    splits.close(index);
    out
}

const MERGES: [Merge; 13] = [
    Merge::Values,
    Merge::Sum,
    Merge::Min,
    Merge::AllSucceeded,
    Merge::OneSucceeded,
    Merge::LogicalAnd,
    Merge::Join,
    Merge::Union,
    Merge::Counts,
    Merge::Weighted,
    Merge::Info { lenient: true },
    Merge::Info { lenient: false },
    Merge::NodeFacts,
];

/// Nodes may answer anything that is a frame: the client gets one frame.
fn merged_whole(how: u8, pieces: &[&[u8]]) -> Result<(), String> {
    let whole = |piece: &&&[u8]| first_frame_len(piece) == Some(piece.len());
    let replies: Vec<&[u8]> = pieces.iter().filter(whole).copied().collect();
    if replies.is_empty() {
        return Ok(());
    }
    let merge = MERGES[usize::from(how) % MERGES.len()];
    let version = if how % 2 == 0 { Version::Resp2 } else { Version::Resp3 };
    // So many keys as the replies have elements, if they are arrays at all.
    let elements = |reply: &[u8]| ringway::resp::reply::aggregate_header(reply).map_or(1, |h| h.1);
    let order: Vec<u32> = (0u32..)
        .zip(&replies)
        .flat_map(|(part, reply)| (0..elements(reply).clamp(0, 50)).map(move |_| part))
        .collect();
    let mut out = merged(merge, version, &order, &replies);
    if plant::is(Plant::LongMerge) && out.first() == Some(&b'*') && out[1] < b'9' {
        out[1] += 1;
    }
    let scanned = ReplyScanner::default().scan(&out);
    let one = Ok(Scanned::Complete { len: out.len() });
    let shown: Vec<_> = replies.iter().map(|reply| String::from_utf8_lossy(reply)).collect();
    hold!(scanned == one, "{merge:?} of {shown:?}: {:?}", String::from_utf8_lossy(&out));
    Ok(())
}

fn make(random: &mut Random) -> Vec<u8> {
    let how = random.next() as u8;
    let mut out = vec![how];
    if how < 128 {
        let name = random.pick(&["MGET", "mset", "DEL", "UNLINK", "EXISTS", "TOUCH", "MSET"]);
        let mut words = vec![name.as_bytes().to_vec()];
        let pairs = name.eq_ignore_ascii_case("MSET");
        for _ in 0..1 + random.length(40) {
            words.push(match random.below(6) {
                0 => b"{k1}x".to_vec(),
                1 => random.text(9),
                _ => format!("k{}", random.below(9)).into_bytes(),
            });
            if pairs {
                words.push(random.text(9));
            }
        }
        out.extend(put_pieces(&words));
        return out;
    }
    let mut replies: Vec<Vec<u8>> = Vec::new();
    for _ in 0..1 + random.below(4) {
        let mut reply = match random.below(6) {
            0 => random.pick(&REPLY_SLICES).to_vec(),
            1 if !replies.is_empty() => replies[0].clone(),
            2 => random
                .pick(&[&b"*0\r\n"[..], b"*-1\r\n", b":1\r\n", b"*1\r\n:1\r\n", b"+OK\r\n"])
                .to_vec(),
            3 => format!(":{}\r\n", random.edge() as i64).into_bytes(),
            _ => {
                let mut frame = Vec::new();
                put_frame(random, 2, &mut frame);
                frame
            }
        };
        if random.one_in(6) {
            random.mutate(&mut reply, &REPLY_SLICES);
        }
        replies.push(reply);
    }
    out.extend(put_pieces(&replies));
    out
}
