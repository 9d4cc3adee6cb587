//! What nodes say of the cluster: any frame and text gives a map that holds together or an error, and a
//! true description gives the cluster that it describes.
//!
//! Not here: when nodes are asked, and which of two maps wins beyond its soundness.

use std::fmt::Write as _;

use ringway::cluster::{
    Choice, Endpoint, Role, SLOTS, Topology, UNOWNED, choose, read_cluster_info, read_nodes_text,
    read_shards, read_slots,
};
use ringway::limits::NODES_MAX;
use ringway::resp::value::parse_value;

use super::Target;
use super::redirect::sound;
use super::reply::put_frame;
use crate::hold;
use crate::shared::corpus::{REPLY_SLICES, replies_of};
use crate::shared::plant::{self, Plant};
use crate::shared::random::Random;
use crate::shared::take::{Take, put_piece};

pub const TARGET: Target = Target {
    name: "topology",
    property: "a map read from anything names only owners that it has, nodes with sound places, in order; \
               SLOTS, SHARDS and NODES of a made-up cluster, RESP2 or RESP3, read as that cluster",
    check,
    make,
    memory: (512 << 10, 300),
    executions: 60_000,
};

fn check(input: &[u8]) -> Result<(), String> {
    let mut take = Take(input);
    let how = take.byte();
    if how % 3 == 0 {
        return described(&mut Random::new(take.number()));
    }
    let asked = Endpoint::parse(b"10.0.0.9:7000").ok_or("a place")?;
    let (frame, text) = (take.piece(), take.piece());
    let lines = read_nodes_text(text);
    hold!(lines.len() <= NODES_MAX, "{} lines", lines.len());
    for line in &lines {
        let ranges =
            line.slots.iter().all(|(first, last)| first <= last && usize::from(*last) < SLOTS);
        hold!(ranges, "{line:?}");
        line.endpoint.as_ref().map_or(Ok(()), sound)?;
    }
    let info = read_cluster_info(text);
    let says_ok = text
        .split(|byte| *byte == b'\n')
        .any(|line| line.trim_ascii().starts_with(b"cluster_state:ok"));
    hold!(!info.ok || says_ok, "ok of {:?}", String::from_utf8_lossy(text));
    let Ok(Some((value, _))) = parse_value(frame) else { return Ok(()) };
    let mut maps = Vec::new();
    for read in [read_slots, read_shards] {
        let Ok(mut map) = read(&value, &asked) else { continue };
        if plant::is(Plant::DangleOwner) && !map.nodes.is_empty() {
            map.owners[9] = map.nodes.len() as u16;
        }
        holds_together(&map)?;
        maps.push(map.clone());
        map.take_lines(&lines);
        holds_together(&map)?;
        maps.push(map);
    }
    chosen(&maps, how)
}

/// Two of the maps that were read, or one of them twice: by the input, for all pairs are slow.
fn chosen(maps: &[Topology], how: u8) -> Result<(), String> {
    let Some(before) = maps.len().checked_sub(1) else { return Ok(()) };
    let (at, further) = (usize::from(how >> 2), usize::from(how >> 4));
    let current = at % maps.len();
    let candidate = match how % 16 {
        0 => current,
        _ => (current + 1 + further % before.max(1)) % maps.len(),
    };
    match choose(Some(&maps[current]), maps[candidate].clone()) {
        Choice::Adopt(map) => {
            hold!(current != candidate, "what is known already is taken for news");
            holds_together(&map)
        }
        Choice::Same | Choice::Reject(_) => Ok(()),
    }
}

fn holds_together(map: &Topology) -> Result<(), String> {
    hold!(map.nodes.len() <= NODES_MAX, "{} nodes", map.nodes.len());
    let (owns, _) = owning(map)?;
    let ordered = map
        .nodes
        .windows(2)
        .all(|pair| (&pair[0].id, &pair[0].endpoint) <= (&pair[1].id, &pair[1].endpoint));
    hold!(ordered, "nodes out of order");
    for node in &map.nodes {
        sound(&node.endpoint)?;
    }
    for (node, _) in map.nodes.iter().zip(owns).filter(|(_, owns)| *owns) {
        hold!(node.role == Role::Primary, "a replica owns slots: {node:?}");
    }
    Ok(())
}

/// Which nodes own slots, and how many are owned. There are many slots and few ranges: where
/// nothing changes, 64 slots are looked at as one.
fn owning(map: &Topology) -> Result<(Vec<bool>, usize), String> {
    let mut covered = 0;
    let mut owns = vec![false; map.nodes.len()];
    let mut last = UNOWNED;
    for piece in map.owners.chunks(64) {
        if all_are(piece, last) {
            covered += if last == UNOWNED { 0 } else { piece.len() };
            continue;
        }
        for &owner in piece {
            if owner != last && owner != UNOWNED {
                let place = owns.get_mut(usize::from(owner));
                *place.ok_or_else(|| format!("{owner} is an owner and no node"))? = true;
            }
            last = owner;
            covered += usize::from(owner != UNOWNED);
        }
    }
    Ok((owns, covered))
}

/// Without a branch for each, so that the compiler takes many at once.
fn all_are(owners: &[u16], owner: u16) -> bool {
    owners.iter().fold(0, |other, one| other | (one ^ owner)) == 0
}

// --- a made-up cluster, and what its nodes would say of it ---------------------------------------

struct Made {
    id: String,
    host: String,
    port: u16,
    /// Of a replica: whom it follows.
    follows: Option<usize>,
    slots: Vec<(u16, u16)>,
}

fn made(random: &mut Random) -> Vec<Made> {
    let mut nodes: Vec<Made> = Vec::new();
    let primaries = 1 + random.below(5);
    for n in 0..primaries * (1 + random.below(3)) {
        let host = match random.below(4) {
            0 => format!("node-{n}.svc"),
            1 => format!("fd00::{n:x}"),
            _ => format!("10.0.0.{n}"),
        };
        let id = format!("{:016x}{:016x}{n:08x}", random.next(), random.next());
        let follows = (n >= primaries).then_some(n % primaries);
        nodes.push(Made { id, host, port: 7000 + n as u16, follows, slots: Vec::new() });
    }
    let mut at = random.below(3);
    while at < SLOTS {
        let last = (at + random.below(9000)).min(SLOTS - 1);
        let owner = random.below(primaries);
        // Two ranges that touch are one.
        match nodes[owner].slots.last_mut() {
            Some(before) if usize::from(before.1) + 1 == at => before.1 = last as u16,
            _ => nodes[owner].slots.push((at as u16, last as u16)),
        }
        at = last + 1 + random.below(2) * random.below(50);
    }
    nodes
}

fn described(random: &mut Random) -> Result<(), String> {
    let nodes = made(random);
    let resp3 = random.one_in(2);
    let asked = Endpoint::parse(b"10.0.0.9:7000").ok_or("a place")?;
    let lines = read_nodes_text(nodes_text(&nodes).as_bytes());
    hold!(lines.len() == nodes.len(), "{} lines of {}", lines.len(), nodes.len());
    for (line, node) in lines.iter().zip(&nodes) {
        let primary = node.follows.map(|n| nodes[n].id.as_str());
        let same = *line.id == node.id && line.primary_id.as_deref() == primary;
        hold!(same && line.slots == node.slots, "{line:?} of {}", node.id);
    }
    for (name, frame) in [("SLOTS", slots_frame(&nodes)), ("SHARDS", shards_frame(&nodes, resp3))] {
        let value = parse_value(&frame).ok().flatten().ok_or("a frame of ours")?.0;
        let read = if name == "SLOTS" { read_slots } else { read_shards };
        let mut map = read(&value, &asked).map_err(|error| format!("{name}: {error}"))?;
        if plant::is(Plant::ShortRange) {
            map.owners[usize::from(nodes[0].slots.first().map_or(0, |range| range.1))] = UNOWNED;
        }
        is_that(&nodes, &map, name)?;
        map.take_lines(&lines);
        is_that(&nodes, &map, name)?;
    }
    Ok(())
}

fn is_that(nodes: &[Made], map: &Topology, name: &str) -> Result<(), String> {
    holds_together(map)?;
    let mut owned = 0;
    for (index, node) in nodes.iter().enumerate().filter(|(_, node)| !node.slots.is_empty()) {
        let at = map.node_by_id(&node.id).ok_or("a node that is not there")?;
        for (first, last) in &node.slots {
            let range = &map.owners[usize::from(*first)..=usize::from(*last)];
            hold!(all_are(range, at), "{name}: {range:?} own {first} to {last}, not {at}");
            owned += range.len();
        }
        let read = &map.nodes[usize::from(at)];
        let place = (&*read.endpoint.host, read.endpoint.port);
        hold!(place == (&*node.host, node.port) && read.role == Role::Primary, "{name}: {read:?}");
        let mut followers: Vec<&str> =
            map.replicas_of(at).map(|index| &*map.nodes[usize::from(index)].id).collect();
        let all = nodes.iter().filter(|other| other.follows == Some(index));
        let mut expected: Vec<&str> = all.map(|node| node.id.as_str()).collect();
        followers.sort_unstable();
        expected.sort_unstable();
        hold!(followers == expected, "{name}: {followers:?} follow, not {expected:?}");
    }
    let (owns, covered) = owning(map)?;
    hold!(covered == owned, "{name}: {covered} slots are owned, not {owned}");
    // Slow, and the same for every map: of clusters of three nodes, not of all.
    if nodes.len() == 3 && name == "SHARDS" {
        let primaries: Vec<u16> =
            (0..).zip(owns).filter(|(_, owns)| *owns).map(|(n, _)| n).collect();
        let told: Vec<u16> = map.primaries().collect();
        hold!(told == primaries && map.covered() == owned, "{told:?} own slots, not {primaries:?}");
    }
    Ok(())
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn slots_frame(nodes: &[Made]) -> Vec<u8> {
    let (mut count, mut rows) = (0, String::new());
    for (index, node) in nodes.iter().enumerate() {
        let followers: Vec<&Made> = nodes.iter().filter(|one| one.follows == Some(index)).collect();
        for (first, last) in &node.slots {
            count += 1;
            let _ = write!(rows, "*{}\r\n:{first}\r\n:{last}\r\n", 3 + followers.len());
            for one in [&[node][..], &followers].concat() {
                let (host, id) = (bulk(&one.host), bulk(&one.id));
                let _ = write!(rows, "*4\r\n{host}:{}\r\n{id}*0\r\n", one.port);
            }
        }
    }
    format!("*{count}\r\n{rows}").into_bytes()
}

fn shards_frame(nodes: &[Made], resp3: bool) -> Vec<u8> {
    let map = |pairs: usize| match resp3 {
        true => format!("%{pairs}\r\n"),
        false => format!("*{}\r\n", pairs * 2),
    };
    let primaries: Vec<usize> = (0..nodes.len()).filter(|n| nodes[*n].follows.is_none()).collect();
    let mut out = format!("*{}\r\n", primaries.len());
    for index in primaries {
        let _ = write!(out, "{}{}*{}\r\n", map(2), bulk("slots"), 2 * nodes[index].slots.len());
        for (first, last) in &nodes[index].slots {
            let _ = write!(out, ":{first}\r\n:{last}\r\n");
        }
        let is_in = |(n, one): &(usize, &Made)| *n == index || one.follows == Some(index);
        let members: Vec<(usize, &Made)> = nodes.iter().enumerate().filter(is_in).collect();
        let _ = write!(out, "{}*{}\r\n", bulk("nodes"), members.len());
        for (n, one) in members {
            let role = if n == index { "master" } else { "replica" };
            let _ = write!(out, "{}{}{}", map(5), bulk("id"), bulk(&one.id));
            let _ = write!(out, "{}:{}\r\n", bulk("port"), one.port);
            for (name, value) in
                [("endpoint", one.host.as_str()), ("role", role), ("health", "online")]
            {
                let _ = write!(out, "{}{}", bulk(name), bulk(value));
            }
        }
    }
    out.into_bytes()
}

fn nodes_text(nodes: &[Made]) -> String {
    let mut text = String::new();
    for node in nodes {
        let (role, primary) = match node.follows {
            Some(index) => ("slave", nodes[index].id.as_str()),
            None => ("master", "-"),
        };
        let place = format!("{}:{}@{}", node.host, node.port, node.port + 10_000);
        let _ = write!(text, "{} {place} {role} {primary} 0 0 3 connected", node.id);
        for (first, last) in &node.slots {
            let _ = if first == last {
                write!(text, " {first}")
            } else {
                write!(text, " {first}-{last}")
            };
        }
        text.push('\n');
    }
    text
}

fn make(random: &mut Random) -> Vec<u8> {
    let mut out = vec![random.next() as u8];
    if out[0] % 3 == 0 {
        out.extend_from_slice(&random.next().to_be_bytes());
        return out;
    }
    let (kind, described) = (random.below(5), random.below(3) > 0);
    let nodes = if kind < 2 || described { made(random) } else { Vec::new() };
    let mut frame = match kind {
        0 => slots_frame(&nodes),
        1 => shards_frame(&nodes, random.one_in(2)),
        2 => {
            let recorded = replies_of(random.pick(&["CLUSTER SLOTS", "CLUSTER SHARDS"]));
            recorded[random.below(recorded.len())].reply.clone()
        }
        3 => odd_slots(random),
        _ => {
            let mut frame = Vec::new();
            put_frame(random, 1, &mut frame);
            frame
        }
    };
    let mut text = match described {
        false => replies_of("CLUSTER INFO")[0].reply.clone(),
        true => nodes_text(&nodes).into_bytes(),
    };
    if random.one_in(2) {
        random.mutate(&mut frame, &REPLY_SLICES);
    }
    if random.one_in(2) {
        random.mutate(
            &mut text,
            &[b"[93-<-abc] ", b" 0-16383", b",fail", b"myself,", b"@1,host,shard-id=a"],
        );
    }
    put_piece(&mut out, &frame);
    put_piece(&mut out, &text);
    out
}

/// CLUSTER SLOTS in form, with values that nobody would expect.
fn odd_slots(random: &mut Random) -> Vec<u8> {
    let rows = random.below(6);
    let mut out = format!("*{rows}\r\n").into_bytes();
    for _ in 0..rows {
        let members = random.below(4);
        out.extend_from_slice(format!("*{}\r\n", 2 + members).as_bytes());
        for _ in 0..2 {
            let slot =
                if random.one_in(6) { random.edge() as i64 } else { random.below(16384) as i64 };
            out.extend_from_slice(format!(":{slot}\r\n").as_bytes());
        }
        for _ in 0..members {
            let host = random.pick(&["a", "", "?", "::1", "[::1]", "a b", "x", "10.0.0.1"]);
            let port = random.pick(&[0, 1, 7000, 7001, 65535, 65536, -1]);
            let id = random.pick(&["", "same", "a", "b", "c", "not an id", "-"]);
            let text = format!("*3\r\n{}:{port}\r\n{}", bulk(host), bulk(id));
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}
