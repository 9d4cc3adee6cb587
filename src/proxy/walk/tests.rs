use super::wanted::{Refusal, process_of, slot_of_pattern};
use super::*;
use crate::command::Args;
use crate::resp::Span;

fn wanted(line: &str) -> Result<Wanted, Refusal> {
    let (mut bytes, mut spans) = (Vec::new(), Vec::new());
    for word in line.split(' ') {
        let start = bytes.len() as u32;
        bytes.extend_from_slice(word.as_bytes());
        spans.push(Span { start, end: bytes.len() as u32 });
    }
    Wanted::read(&Args { bytes: &bytes, spans: &spans })
}

/// Steps through a walk: `nodes` says what slot answers to GETKEYSINSLOT (a reply), and whom the
/// probe ended at after how many redirects. Returns the reply to the client.
fn step(line: &str, mut answer: impl FnMut(&Question) -> (String, u16, u8)) -> String {
    step_owned(line, |question| {
        let (reply, node, redirects) = answer(question);
        (reply, node, redirects, 1)
    })
}

/// The same; `nodes` also says who owns the slot by the map.
fn step_owned(line: &str, mut answer: impl FnMut(&Question) -> (String, u16, u8, u16)) -> String {
    let mut walk = Walk::new(wanted(line).expect("a SCAN"), 100, 100);
    loop {
        let questions = walk.questions();
        if questions.is_empty() {
            let mut out = Vec::new();
            walk.write_reply(&mut out);
            return String::from_utf8_lossy(&out).into_owned();
        }
        let replies: Vec<_> = questions.iter().map(&mut answer).collect();
        let answers = replies.iter().map(|(reply, node, redirects, owner)| Answer {
            reply: reply.as_bytes(),
            node: *node,
            redirects: *redirects,
            delayed: false,
            owner: *owner,
        });
        let answers: Vec<Answer> = answers.collect();
        walk.hear(&answers).expect("answers that make sense");
    }
}

fn cursor_at(slot: u16) -> String {
    Cursor { slot, pieces: None }.encode().to_string()
}

#[test]
fn slot_that_rests_is_taken_whole_and_empty_ones_are_skipped() {
    let reply = step("SCAN 0 COUNT 2", |question| match (question.ask, question.slot) {
        (Ask::Keys(_), 3) => ("*2\r\n$1\r\na\r\n$1\r\nb\r\n".into(), 1, 0),
        (Ask::Keys(_), _) => ("*0\r\n".into(), 1, 0),
        (Ask::Count, 3) => (":2\r\n".into(), 1, 0),
        (Ask::Count, _) => (":0\r\n".into(), 1, 0),
        (_, _) => (":0\r\n".into(), 1, 0),
    });
    let cursor = cursor_at(4);
    let len = cursor.len();
    let keys = "*2\r\n$1\r\na\r\n$1\r\nb\r\n";
    assert_eq!(reply, format!("*2\r\n${len}\r\n{cursor}\r\n{keys}"));
}

/// A walk over the last slot, whose keys leave node 1 for node 2: what is asked, in order, and what
/// comes of it. `told(round, ask, at)`: keys, or the epoch.
fn leave(mut told: impl FnMut(usize, Ask, At) -> &'static str) -> (String, Vec<(Ask, At)>) {
    let mut asked = Vec::new();
    let reply = step(&format!("SCAN {}", cursor_at(16_383)), |question| {
        asked.push((question.ask, question.at));
        let said = told(asked.len() - 1, question.ask, question.at);
        let node = if let At::Node(node) = question.at { node } else { 1 };
        match question.ask {
            Ask::Keys(_) => (keys(said), node, 0),
            Ask::Epoch => {
                let text = format!("cluster_state:ok\r\ncluster_my_epoch:{said}\r\n");
                (format!("${}\r\n{text}\r\n", text.len()), node, 0)
            }
            // ASK from 1 to 2.
            _ => (":0\r\n".into(), 2, 1),
        }
    });
    (reply, asked)
}

/// An array of keys of one letter.
fn keys(letters: &str) -> String {
    let keys: String = letters.chars().map(|letter| format!("$1\r\n{letter}\r\n")).collect();
    format!("*{}\r\n{keys}", letters.len())
}

#[test]
fn slot_that_leaves_is_asked_for_at_both_nodes() {
    let (reply, asked) = leave(|_, ask, at| match (ask, at) {
        (Ask::Epoch, _) => "7",
        (_, At::Owner) => "a",
        (_, At::Node(_)) => "bc",
    });
    assert_eq!(reply, format!("*2\r\n$1\r\n0\r\n{}", keys("abc")));
    let owner = [Ask::Epoch, Ask::Probe, Ask::Keys(100), Ask::Probe].map(|ask| (ask, At::Owner));
    assert_eq!(asked[..3], owner[1..]);
    assert_eq!(asked[3..7], owner);
    assert_eq!(asked[7], (Ask::Keys(100), At::Node(2)));
    assert_eq!(asked[8..], [owner[1], owner[2], owner[0]]);
}

#[test]
fn slot_that_was_all_at_its_target_and_came_back_is_asked_for_anew() {
    // Between the first looks at both, node 1 has taken it over again: k was at 2, then at 1.
    let (reply, _) = leave(|n, ask, at| match (ask, at) {
        (Ask::Epoch, _) if n < 7 => "7",
        (Ask::Epoch, _) => "9",
        (_, At::Owner) => "a",
        (_, At::Node(_)) if n < 11 => "b",
        (_, At::Node(_)) => "bk",
    });
    assert_eq!(reply, format!("*2\r\n$1\r\n0\r\n{}", keys("abk")));
}

#[test]
fn keys_that_came_back_to_a_node_that_they_leave_are_not_missed() {
    let (reply, _) = leave(|n, ask, at| match (ask, at) {
        (Ask::Epoch, _) => "7",
        (_, At::Owner) if n < 7 => "a",
        (_, At::Owner) => "ak",
        (_, At::Node(_)) => "b",
    });
    assert_eq!(reply, format!("*2\r\n$1\r\n0\r\n{}", keys("akb")));
}

#[test]
fn slot_to_which_more_keys_came_back_than_are_told_is_walked_in_pieces() {
    let info = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let (mut looks, mut scans) = (0, 0);
    step(&format!("SCAN {}", cursor_at(16_383)), |question| {
        let node = if let At::Node(node) = question.at { node } else { 1 };
        match question.ask {
            Ask::Keys(_) if node == 2 => (keys("b"), node, 0),
            Ask::Keys(_) => {
                looks += 1;
                // All that are told at last are known.
                (keys(&"a".repeat(if looks < 3 { 1 } else { 100 })), node, 0)
            }
            Ask::Epoch => (info("cluster_my_epoch:7"), node, 0),
            Ask::Info => (info("redis_version:7.4.0\r\nrun_id:x"), node, 0),
            Ask::Count => (":100\r\n".into(), node, 0),
            Ask::Scan { .. } => {
                scans += 1;
                ("*2\r\n$1\r\n0\r\n*0\r\n".into(), node, 0)
            }
            // ASK from 1 to 2.
            _ => (":0\r\n".into(), 2, 1),
        }
    });
    assert_eq!((looks, scans), (3, 2), "at the node that it leaves, and where it goes");
}

#[test]
fn slot_that_was_elsewhere_is_asked_for_anew() {
    let from = cursor_at(16_383);
    let mut rounds = 0;
    let reply = step(&format!("SCAN {from}"), |question| match question.ask {
        Ask::Keys(_) if rounds == 1 => ("*0\r\n".into(), 2, 0),
        Ask::Keys(_) => ("*1\r\n$1\r\na\r\n".into(), 1, 0),
        // MOVED from 2 to 1.
        _ => {
            rounds += 1;
            (":0\r\n".into(), 1, u8::from(rounds <= 2))
        }
    });
    assert_eq!(reply, "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n");
}

#[test]
fn slot_that_its_node_got_after_it_told_its_keys_is_asked_for_anew() {
    // The map names 1 from the start; 2 has the slot until 1 has told that it has no keys of it.
    for leaving in [false, true] {
        let mut probes = 0;
        let reply = step(&format!("SCAN {}", cursor_at(16_383)), |question| match question.ask {
            Ask::Keys(_) if probes == 1 => (keys(""), 1, 0),
            Ask::Keys(_) => (keys("a"), 1, 0),
            _ => {
                probes += 1;
                match probes {
                    1 => (":0\r\n".into(), 2, 1),
                    // It may be on its way to the next one already.
                    2 if leaving => (":0\r\n".into(), 3, 1),
                    _ => (":0\r\n".into(), 1, 0),
                }
            }
        });
        assert_eq!(reply, format!("*2\r\n$1\r\n0\r\n{}", keys("a")));
    }
}

#[test]
fn slot_that_its_node_got_after_it_counted_its_keys_is_not_passed_over() {
    let mut probes = 0;
    let reply = step(&format!("SCAN {}", cursor_at(16_382)), |question| {
        let is_last = question.slot == 16_383;
        match question.ask {
            Ask::Keys(_) => (keys(if is_last { "a" } else { "" }), 1, 0),
            Ask::Count => (":0\r\n".into(), 1, 0),
            _ => {
                probes += u32::from(is_last);
                if is_last && probes == 1 {
                    (":0\r\n".into(), 2, 1)
                } else {
                    (":0\r\n".into(), 1, 0)
                }
            }
        }
    });
    assert_eq!(reply, format!("*2\r\n$1\r\n0\r\n{}", keys("a")));
}

#[test]
fn cursor_comes_back_as_it_was_and_fits_an_i64() {
    let pieces =
        Pieces { slotted: true, second: true, moved: true, print: 1023, inner: (1 << 34) - 1 };
    for pieces in [None, Some(Pieces::default()), Some(pieces)] {
        let cursor = Cursor { slot: 16_383, pieces };
        assert_eq!(Cursor::decode(cursor.encode()), cursor);
        assert!(i64::try_from(cursor.encode()).is_ok());
    }
    let first = Cursor { slot: 0, pieces: None };
    assert_ne!(first.encode(), 0, "0 is the end");
    assert_eq!(Cursor::decode(0), first);
}

#[test]
fn options_are_read_as_the_server_reads_them() {
    for (line, refusal) in [
        ("SCAN x", Refusal::Cursor),
        ("SCAN -1", Refusal::Cursor),
        ("SCAN 0 COUNT", Refusal::Syntax),
        ("SCAN 0 COUNT -1", Refusal::Syntax),
        ("SCAN 0 COUNT x", Refusal::Integer),
        ("SCAN 0 FOO 1", Refusal::Syntax),
    ] {
        assert_eq!(wanted(line), Err(refusal), "{line}");
    }
    let all = wanted("SCAN 0 match {a}* count 5 type hash").expect("a SCAN");
    assert_eq!((all.only, all.count), (Some(slot_of(b"a")), 5));
    assert_eq!(wanted("SCAN 0 MATCH *").map(|wanted| wanted.pattern), Ok(None));
    assert_eq!(slot_of_pattern(b"{a*}x"), None);
    assert_eq!(slot_of_pattern(b"*{a}"), None);
    assert_eq!(slot_of_pattern(b"{a}"), Some(slot_of(b"a")));
}

#[test]
fn large_slot_that_turns_back_before_its_target_is_walked_begins_anew() {
    // Node 1 is done while its slot leaves for 2. When it is asked again all is at 2, and leaves
    // for 1: what was never at 1 is at 2.
    let many = keys(&"a".repeat(100));
    let mut infos = 0;
    let line = format!("SCAN {} MATCH {{a}}* COUNT 1", cursor_at(slot_of(b"a")));
    let reply = step_owned(&line, |question| {
        let owner = if infos < 2 { 1 } else { 2 };
        let node = if let At::Node(node) = question.at { node } else { owner };
        match question.ask {
            Ask::Keys(_) => (many.clone(), node, 0, owner),
            Ask::Count => (":1000\r\n".into(), node, 0, owner),
            Ask::Scan { .. } => {
                let key = if node == 2 { "{a}k" } else { "{a}b" };
                (format!("*2\r\n$1\r\n0\r\n*1\r\n$4\r\n{key}\r\n"), node, 0, owner)
            }
            Ask::Info => {
                infos += 1;
                let text = format!("redis_version:7.4.0\r\nrun_id:{node}");
                (format!("${}\r\n{text}\r\n", text.len()), node, 0, owner)
            }
            _ if infos > 2 => (":0\r\n".into(), owner, 0, owner),
            _ => (":0\r\n".into(), 3 - owner, 1, owner),
        }
    });
    assert!(reply.contains("{a}b") && reply.contains("{a}k"), "{reply}");
}

#[test]
fn epoch_is_read_where_a_node_tells_it() {
    let of = |text: &str| wanted::epoch_of(format!("${}\r\n{text}\r\n", text.len()).as_bytes());
    assert_eq!(of("cluster_size:3\r\ncluster_my_epoch:12\r\n"), Some(12));
    assert_eq!(of("cluster_size:3\r\n"), Some(0));
    assert_eq!(of("cluster_my_epoch:x\r\n"), None);
    assert_eq!(wanted::epoch_of(b"-ERR\r\n"), None);
}

#[test]
fn process_is_known_by_its_version_and_run() {
    let info = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let of = |text: &str| process_of(info(text).as_bytes());
    assert_eq!(of("redis_version:7.0.15\r\nrun_id:aa").map(|is| is.0), Some(false));
    assert_eq!(of("redis_version:7.4.1\r\nrun_id:aa").map(|is| is.0), Some(true));
    let valkey = "redis_version:7.2.4\r\nvalkey_version:8.0.1\r\nrun_id:ab";
    assert_eq!(of(valkey).map(|is| is.0), Some(true));
    assert_ne!(of(valkey).map(|is| is.1), of("redis_version:8.0\r\nrun_id:aa").map(|is| is.1));
    assert_eq!(of("no such fields"), None);
}

#[test]
fn pattern_that_would_be_tried_at_each_place_of_a_key_ends_the_walk() {
    let long = "a".repeat(200_000);
    let keys = format!("*1\r\n${}\r\n{long}\r\n", long.len());
    for (pattern, is_endless) in
        [(format!("*{}b", "a".repeat(30_000)), true), ("*a*ab".into(), false)]
    {
        let wanted = wanted(&format!("SCAN 0 MATCH {pattern}")).expect("a SCAN");
        let mut walk = Walk::new(wanted, 100, 100);
        assert_eq!(walk.questions().len(), 3);
        let answers = [":0\r\n", &keys, ":0\r\n"].map(|reply| Answer {
            reply: reply.as_bytes(),
            node: 1,
            redirects: 0,
            delayed: false,
            owner: 1,
        });
        assert_eq!(walk.hear(&answers).is_none(), is_endless);
        assert_eq!(walk.is_endless, is_endless);
    }
}
