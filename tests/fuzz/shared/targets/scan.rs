//! SCAN: what clients write as cursors and options, and walks whose nodes answer anything.
//!
//! Not here: that no key is missed (`tests/simulation`, walk).

use ringway::cluster::SLOTS;
use ringway::proxy::local::glob_matches;
use ringway::proxy::walk::wanted::{Cursor, Pieces, Wanted};
use ringway::proxy::walk::{Answer, Walk};
use ringway::resp::reply::{ReplyScanner, Scanned, first_frame_len};
use ringway::resp::request::{Parsed, RequestLimits, RequestParser};

use super::Target;
use super::keys::Words;
use super::reply::put_frame;
use crate::hold;
use crate::shared::corpus::REPLY_SLICES;
use crate::shared::plant::{self, Plant};
use crate::shared::random::Random;
use crate::shared::take::{Take, put_piece};

pub const TARGET: Target = Target {
    name: "scan",
    property: "a cursor reads back as given, any number is one; a walk ends after a bounded number of \
               rounds whatever nodes say, asks whole requests, and answers one frame; patterns match \
               as by trying everything",
    check,
    make,
    memory: (2 << 20, 4000),
    executions: 250_000,
};

/// More rounds than any walk may take: 64, and those for types.
const ROUNDS_MAX: usize = 200;

fn check(input: &[u8]) -> Result<(), String> {
    let mut take = Take(input);
    cursor_holds(take.number())?;
    let words: Vec<&[u8]> = (0..take.byte() % 9).map(|_| take.piece()).collect();
    if let [_, _, pattern, text, ..] = words[..] {
        glob_holds(pattern, text)?;
    }
    let held = Words::of(&words);
    let Ok(wanted) = Wanted::read(&held.args()) else { return Ok(()) };
    hold!(wanted.count > 0, "COUNT 0");
    let replies = take.pieces(64);
    let sound = |piece: &&&[u8]| {
        first_frame_len(piece) == Some(piece.len()) && !matches!(piece[0], b'-' | b'!')
    };
    let replies: Vec<&[u8]> = replies.iter().filter(sound).copied().collect();
    walk_ends(wanted, &replies, Random::of(input))
}

fn cursor_holds(number: u64) -> Result<(), String> {
    let cursor = Cursor::decode(number);
    hold!(usize::from(cursor.slot) < SLOTS, "slot {}", cursor.slot);
    let written = match cursor.encode() {
        number if plant::is(Plant::CropCursor) => number & u64::from(u32::MAX),
        number => number,
    };
    hold!(written != 0 && written <= i64::MAX as u64, "a cursor of {written}");
    let again = Cursor::decode(written);
    hold!(again == cursor, "{cursor:?} reads back as {again:?}");
    let pieces = Pieces { inner: number, print: number as u16, ..Pieces::default() };
    let any = Cursor { slot: cursor.slot, pieces: Some(pieces) };
    let back = Cursor::decode(any.encode());
    hold!(back.slot == cursor.slot && back.pieces.is_some(), "{any:?} reads back as {back:?}");
    Ok(())
}

fn walk_ends(wanted: Wanted, replies: &[&[u8]], mut chance: Random) -> Result<(), String> {
    let mut walk = Walk::new(wanted.clone(), 20, 40);
    for _ in 0..ROUNDS_MAX {
        if plant::is(Plant::EndlessWalk) {
            walk = Walk::new(wanted.clone(), 20, 40);
        }
        let questions = walk.questions();
        if questions.is_empty() {
            let mut out = Vec::new();
            walk.write_reply(&mut out);
            let scanned = ReplyScanner::default().scan(&out);
            hold!(scanned == Ok(Scanned::Complete { len: out.len() }), "a reply of {scanned:?}");
            return Ok(());
        }
        for question in &questions {
            hold!(usize::from(question.slot) < SLOTS, "{question:?}");
            let mut request = Vec::new();
            walk.write_question(question, 7, &mut request);
            let mut spans = Vec::new();
            let limits = RequestLimits::default();
            let parsed = RequestParser::default().parse(&request, &limits, &mut spans);
            let whole = Parsed::Array { len: request.len(), canonical: true };
            hold!(parsed == Ok(whole), "{question:?} is {parsed:?}");
        }
        let answer = |_| Answer {
            reply: if replies.is_empty() { b":0\r\n" } else { chance.pick(replies) },
            node: chance.below(3) as u16,
            redirects: chance.below(6).saturating_sub(3) as u8,
            delayed: chance.one_in(8),
            owner: chance.pick(&[0, 1, 2, u16::MAX]),
        };
        let answers: Vec<Answer> = questions.iter().map(answer).collect();
        if walk.hear(&answers).is_none() {
            return Ok(());
        }
    }
    Err(format!("a walk goes on after {ROUNDS_MAX} rounds"))
}

/// Against the same rules by a table of all places, which nothing can make slow.
fn glob_holds(pattern: &[u8], text: &[u8]) -> Result<(), String> {
    let (pattern, text) = (&pattern[..pattern.len().min(40)], &text[..text.len().min(40)]);
    if pattern.iter().any(|byte| matches!(byte, b'[' | b'\\')) {
        let _ = glob_matches(pattern, text, true);
        return Ok(());
    }
    let mut row = vec![false; text.len() + 1];
    row[0] = true;
    for byte in pattern {
        let mut next = vec![false; row.len()];
        for at in 0..row.len() {
            next[at] = match byte {
                b'*' => row[at] || at > 0 && next[at - 1],
                b'?' => at > 0 && row[at - 1],
                plain => at > 0 && row[at - 1] && text[at - 1] == *plain,
            };
        }
        row = next;
    }
    let expected = row.last() == Some(&true);
    let got = glob_matches(pattern, text, false);
    hold!(got == expected, "{:?} {got}", String::from_utf8_lossy(pattern));
    Ok(())
}

fn make(random: &mut Random) -> Vec<u8> {
    let cursor = if random.one_in(2) { random.edge() } else { random.next() };
    let mut out = cursor.to_be_bytes().to_vec();
    let mut words: Vec<Vec<u8>> = vec![b"SCAN".to_vec()];
    words.push(match random.below(3) {
        0 => random.number_text(),
        1 => b"0".to_vec(),
        _ => (random.next() >> random.below(60)).to_string().into_bytes(),
    });
    for _ in 0..random.below(4) {
        let (name, value) = match random.below(5) {
            0 => ("COUNT", random.number_text()),
            1 => ("count", b"5".to_vec()),
            2 => ("MATCH", random.pick(&[&b"*"[..], b"{k1}*", b"a?b*", b"*a*a*b"]).to_vec()),
            3 => ("TYPE", b"string".to_vec()),
            _ => ("MATCH", random.text(12)),
        };
        words.extend([name.as_bytes().to_vec(), value]);
    }
    if random.one_in(4) {
        let stars = |random: &mut Random| {
            (0..random.length(30)).map(|_| random.pick(b"aab*?")).collect::<Vec<u8>>()
        };
        words = vec![b"SCAN".to_vec(), b"0".to_vec(), stars(random), stars(random)];
    }
    out.push(words.len() as u8);
    words.iter().for_each(|word| put_piece(&mut out, word));
    const ANSWERS: [&[u8]; 10] = [
        b":0\r\n",
        b":0\r\n",
        b":3\r\n",
        b"*0\r\n",
        b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        b"+string\r\n",
        b"*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n",
        b"*2\r\n$2\r\n77\r\n*0\r\n",
        b"$19\r\ncluster_my_epoch:5\n\r\n",
        b"$38\r\nredis_version:7.4.0\r\nrun_id:0123456789\r\n\r\n",
    ];
    for _ in 0..random.below(12) {
        let mut reply = match random.below(5) {
            0 => random.pick(&REPLY_SLICES).to_vec(),
            1 => {
                let mut frame = Vec::new();
                put_frame(random, 2, &mut frame);
                frame
            }
            2 => {
                let count = random.length(60);
                let keys = "$2\r\nk1\r\n".repeat(count);
                format!("*{count}\r\n{keys}").into_bytes()
            }
            _ => random.pick(&ANSWERS).to_vec(),
        };
        if random.one_in(8) {
            random.mutate(&mut reply, &ANSWERS);
        }
        put_piece(&mut out, &reply);
    }
    out
}
