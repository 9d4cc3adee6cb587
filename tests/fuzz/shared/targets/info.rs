//! INFO of several nodes as one text: sums are the sums, and whatever nodes say one frame comes out.
//!
//! Not here: the proxy's own sections.

use ringway::proxy::{node_facts, node_info};
use ringway::resp::Version;
use ringway::resp::reply::{ReplyScanner, Scanned, first_frame_len};

use super::Target;
use crate::hold;
use crate::shared::corpus::{RECORDED, REPLY_SLICES};
use crate::shared::plant::{self, Plant};
use crate::shared::random::Random;
use crate::shared::take::{Take, put_pieces};

pub const TARGET: Target = Target {
    name: "info",
    property: "keys and errors over nodes are the nodes' sums; of any texts one frame or nothing is made",
    check,
    make,
    memory: (64 << 10, 120),
    executions: 200_000,
};

const OWN: &[u8] = b"# Server\r\na:1\r\n\r\n# Commandstats\r\n\r\n# Errorstats\r\n\r\n# Latencystats\r\n\r\n# Keyspace\r\n";

fn check(input: &[u8]) -> Result<(), String> {
    let mut take = Take(input);
    let how = take.byte();
    let pieces = take.pieces(16);
    if how % 4 == 0 { sums(&pieces) } else { one_frame(how, &pieces) }
}

fn one_frame(how: u8, pieces: &[&[u8]]) -> Result<(), String> {
    let whole = |piece: &&&[u8]| first_frame_len(piece) == Some(piece.len());
    let replies: Vec<&[u8]> = pieces.iter().filter(whole).copied().collect();
    let version = if how & 4 == 0 { Version::Resp2 } else { Version::Resp3 };
    let mut out = Vec::new();
    let made = match how & 8 {
        0 => node_info::merge(OWN, &replies, version, &mut out),
        _ => node_facts::merge(&replies, version, &mut out),
    };
    if made.is_some() {
        let scanned = ReplyScanner::default().scan(&out);
        hold!(
            scanned == Ok(Scanned::Complete { len: out.len() }),
            "{:?}",
            String::from_utf8_lossy(&out)
        );
        let text = String::from_utf8_lossy(&out);
        let titles = text.lines().filter(|line| *line == "# Keyspace").count();
        hold!(how & 8 != 0 || titles == 1, "{titles} sections: {text:?}");
    }
    Ok(())
}

/// Each piece is a node: how many keys, how many of them expire, errors.
fn sums(pieces: &[&[u8]]) -> Result<(), String> {
    let mut replies = Vec::new();
    let (mut keys, mut expires, mut errors) = (0u64, 0u64, 0u64);
    for piece in pieces {
        let mut take = Take(piece);
        let (all, expiring, wrong) = (take.number(), take.number(), take.number());
        let text = format!(
            "# Keyspace\r\ndb0:keys={all},expires={expiring},avg_ttl=0\r\n\r\n\
             # Errorstats\r\nerrorstat_ERR:count={wrong}\r\n"
        );
        replies.push(format!("${}\r\n{text}\r\n", text.len()).into_bytes());
        keys = keys.saturating_add(all);
        expires = expires.saturating_add(expiring);
        errors = errors.saturating_add(wrong);
    }
    if replies.is_empty() {
        return Ok(());
    }
    let mut asked: Vec<&[u8]> = replies.iter().map(Vec::as_slice).collect();
    if plant::is(Plant::DropNode) && asked.len() > 1 {
        asked.pop();
    }
    let mut out = Vec::new();
    let made = node_info::merge(OWN, &asked, Version::Resp2, &mut out);
    let text = String::from_utf8_lossy(&out);
    let lines = [
        format!("\r\ndb0:keys={keys},expires={expires},avg_ttl=0\r\n"),
        format!("\r\nerrorstat_ERR:count={errors}\r\n"),
    ];
    hold!(made.is_some(), "no sum of {pieces:?}");
    for line in lines {
        hold!(text.contains(&line), "{line:?} is not in {text:?}");
    }
    Ok(())
}

fn make(random: &mut Random) -> Vec<u8> {
    let how = random.next() as u8;
    let mut out = vec![how];
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    for _ in 0..1 + random.below(4) {
        if how % 4 == 0 {
            let numbers = [random.edge(), random.edge(), random.edge()].map(u64::to_be_bytes);
            pieces.push(numbers.concat());
            continue;
        }
        let infos = || RECORDED.iter().filter(|one| one.command.starts_with("INFO"));
        let mut text = match random.below(3) {
            0 => made_up(random),
            _ => {
                let chosen = random.below(infos().count());
                infos().nth(chosen).map(|one| one.reply.clone()).unwrap_or_default()
            }
        };
        let header = text.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if random.one_in(2) {
            // The text changes, the frame around it stays one.
            let mut inside = text.split_off(header);
            random.mutate(&mut inside, &REPLY_SLICES);
            text = framed(&inside);
        }
        pieces.push(text);
    }
    out.extend(put_pieces(&pieces));
    out
}

fn made_up(random: &mut Random) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..random.below(6) {
        let title =
            random.pick(&["Keyspace", "Commandstats", "errorstats", "Latencystats", "Memory"]);
        text.extend_from_slice(format!("# {title}\r\n").as_bytes());
        for _ in 0..random.below(4) {
            let name = random.pick(&[
                "db0",
                "db99999999999",
                "cmdstat_get",
                "used_memory",
                "x",
                "maxmemory",
            ]);
            text.extend_from_slice(format!("{name}:").as_bytes());
            for _ in 0..random.below(4) {
                let field = random.pick(&[
                    "keys",
                    "expires",
                    "avg_ttl",
                    "calls",
                    "usec",
                    "usec_per_call",
                    "p50",
                ]);
                text.extend_from_slice(format!("{field}=").as_bytes());
                text.extend(random.number_text());
                text.extend_from_slice(random.pick(&[&b","[..], b"", b".5,"]));
            }
            text.extend_from_slice(b"\r\n");
        }
    }
    framed(&text)
}

fn framed(text: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}
