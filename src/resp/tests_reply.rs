//! Replies as nodes send them, whole and cut, and the tree reader as the second opinion.
//!
//! Not here: replies that we write (`write`).

use crate::limits;
use crate::resp::reply::*;
use crate::resp::tests_support::{Random, all_cuts};
use crate::resp::value::{Value, parse_value};

/// Lengths of the frames in `input`, fed in pieces that end at `ends`, and what came last: an
/// error, or whether the scanner is between two frames.
fn frames(input: &[u8], ends: &[usize]) -> (Vec<usize>, Result<bool, FrameError>) {
    let (mut scanner, mut lengths, mut length, mut at) = (ReplyScanner::default(), vec![], 0, 0);
    for end in ends {
        while at < *end {
            match scanner.scan(&input[at..*end]) {
                Ok(Scanned::Complete { len }) => {
                    lengths.push(length + len);
                    length = 0;
                    at += len;
                    assert!(scanner.at_start());
                }
                Ok(Scanned::Partial) => {
                    length += end - at;
                    at = *end;
                    assert!(!scanner.at_start());
                }
                Err(error) => return (lengths, Err(error)),
            }
        }
    }
    (lengths, Ok(scanner.at_start()))
}

#[track_caller]
fn check(input: &str, lengths: &[usize], last: Result<bool, FrameError>) {
    for ends in all_cuts(input.len()) {
        let found = frames(input.as_bytes(), &ends);
        assert_eq!(found, (lengths.to_vec(), last), "{input:?} cut at {ends:?}");
    }
}

/// One whole frame, framed the same by scanner and tree reader.
#[track_caller]
fn check_frame(frame: &str) {
    check(frame, &[frame.len()], Ok(true));
    check(&format!("{frame}+OK\r\n"), &[frame.len(), 5], Ok(true));
    check(&frame[..frame.len() - 1], &[], Ok(false));
    assert_eq!(first_frame_len(frame.as_bytes()), Some(frame.len()));
    let (_, len) = parse_value(frame.as_bytes()).unwrap().unwrap();
    assert_eq!(len, frame.len(), "{frame:?}");
    for cut in 0..frame.len() {
        assert_eq!(parse_value(&frame.as_bytes()[..cut]), Ok(None), "{frame:?} cut at {cut}");
    }
}

#[test]
fn each_type_ends_where_it_should() {
    for frame in [
        "+OK\r\n",
        "+\r\n",
        "+a line with a \r in it, which is over twenty-four bytes long\r\n",
        "+a\r\r\n",
        "-ERR no\r\n",
        ":1\r\n",
        ":-1234567890123456789\r\n",
        "$0\r\n\r\n",
        "$5\r\na\r\nbc\r\n",
        "$11\r\nhello world\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*1\r\n$1\r\na\r\n",
        "*2\r\n*2\r\n:1\r\n*0\r\n$-1\r\n",
        "_\r\n",
        "#t\r\n",
        "#f\r\n",
        ",1.5\r\n",
        ",-inf\r\n",
        ",nan\r\n",
        "(-3492890328409238509324850943850943825024385\r\n",
        "=7\r\ntxt:abc\r\n",
        "!8\r\nERR a\r\nb\r\n",
        "%0\r\n",
        "%2\r\n+a\r\n:1\r\n+b\r\n%1\r\n+c\r\n_\r\n",
        "~2\r\n+a\r\n#t\r\n",
        ">3\r\n+message\r\n$1\r\nc\r\n$2\r\nhi\r\n",
        "|1\r\n+ttl\r\n:3600\r\n$1\r\nv\r\n",
        "|0\r\n+OK\r\n",
        "*2\r\n|1\r\n+ttl\r\n*1\r\n:1\r\n:5\r\n|1\r\n+a\r\n+b\r\n:6\r\n",
    ] {
        check_frame(frame);
    }
    check_frame(&format!("*12\r\n{}", ":1\r\n".repeat(12)));
    for length in [64, 100, 9999, 10_000, 70_000] {
        check_frame(&format!("${length}\r\n{}\r\n", "x".repeat(length)));
    }
}

#[test]
fn what_is_no_reply_is_refused() {
    let bad_length = [
        "$\r\n", "$-2\r\n", "$-0\r\n", "$01\r\n", "$00\r\n", "$+1\r\n", "$1 \r\n", "$a\r\n",
        "$--1\r\n", "$-\r\n", "$-11\r\n", "*-2\r\n", "*x\r\n", "*1\rx", "$1\n", "%-1\r\n",
        "~-1\r\n", ">-1\r\n", "|-1\r\n", "=-1\r\n", "!-1\r\n", "$?\r\n", "*?\r\n",
    ];
    for frame in bad_length {
        check(frame, &[], Err(FrameError::BadLength));
        check(&format!("+OK\r\n*1\r\n{frame}"), &[5], Err(FrameError::BadLength));
    }
    for byte in [b'x', b'\r', b'\n', b'0', 0] {
        let text = char::from(byte).to_string();
        check(&text, &[], Err(FrameError::BadType(byte)));
        check(&format!("*2\r\n:1\r\n{text}"), &[], Err(FrameError::BadType(byte)));
    }
    for frame in ["$2\r\nabc\r\n", "$2\r\nab\rx", "$0\r\nx", "=5\r\ntxt:ab\r\n", "!1\r\na\n"] {
        check(frame, &[], Err(FrameError::BadEnd));
    }
}

#[test]
fn a_length_or_count_over_its_limit_is_refused_before_it_overflows() {
    check("$1073741824\r\n", &[], Ok(false));
    check("$1073741825\r\n", &[], Err(FrameError::TooLong { length: 1_073_741_825 }));
    let nines = "9".repeat(300);
    check(&format!("${nines}"), &[], Err(FrameError::TooLong { length: 9_999_999_999 }));
    check(&format!("=-{nines}"), &[], Err(FrameError::TooLong { length: 9_999_999_999 }));
    check(&format!("*{nines}"), &[], Err(FrameError::TooManyElements));
    check("*4294967295\r\n", &[], Ok(false));
    check("*4294967296\r\n", &[], Err(FrameError::TooManyElements));
    check("%2147483648\r\n", &[], Err(FrameError::TooManyElements));
    check("*4294967295\r\n*2\r\n", &[], Err(FrameError::TooManyElements));
    check("*4294967295\r\n|1\r\n", &[], Err(FrameError::TooManyElements));
    check("*4294967295\r\n*1\r\n", &[], Ok(false));
}

#[test]
fn depth_costs_the_scanner_nothing_and_is_bounded_in_the_tree() {
    let nested = |depth: usize| format!("{}:1\r\n", "*1\r\n".repeat(depth - 1));
    let deep = nested(100_000);
    assert_eq!(first_frame_len(deep.as_bytes()), Some(deep.len()));
    assert_eq!(parse_value(deep.as_bytes()), Err(FrameError::TooDeep));
    assert!(parse_value(nested(limits::VALUE_DEPTH_MAX).as_bytes()).unwrap().is_some());
    let over = nested(limits::VALUE_DEPTH_MAX + 1);
    assert_eq!(parse_value(over.as_bytes()), Err(FrameError::TooDeep));
    assert_eq!(parse_value("|1\r\n".repeat(100_000).as_bytes()), Err(FrameError::TooDeep));
    let flat = format!("{}:1\r\n", "|0\r\n".repeat(100_000));
    assert_eq!(parse_value(flat.as_bytes()), Ok(Some((Value::Integer(1), flat.len()))));
    assert!(size_of::<ReplyScanner>() <= 24);
}

#[test]
fn a_frame_is_known_by_its_first_byte_until_the_next() {
    let mut scanner = ReplyScanner::default();
    assert_eq!(scanner.frame_type(), 0);
    for (piece, expected) in [(">1\r\n", b'>'), (":1\r\n", b'>'), ("", b'>'), ("*", b'*')] {
        scanner.scan(piece.as_bytes()).unwrap();
        assert_eq!(scanner.frame_type(), expected);
    }
}

/// A random frame of any type, nested up to `depth`.
fn generate(random: &mut Random, depth: usize, out: &mut Vec<u8>) {
    let mut put = |text: String| out.extend_from_slice(text.as_bytes());
    match random.below(if depth == 0 { 9 } else { 14 }) {
        0 => put(format!("+{}\r\n", "s".repeat(random.below(40)))),
        1 => put(format!("-ERR {}\r\n", "\r".repeat(random.below(3)))),
        2 => put(format!(":{}\r\n", random.next() as i64 >> random.below(64))),
        3 => put(random.pick(&["$-1\r\n", "*-1\r\n", "_\r\n", "#t\r\n", "#f\r\n"]).to_string()),
        4 => put(format!(",{:e}\r\n", f64::from_bits(random.next()).clamp(-1e300, 1e300))),
        5 => put(format!("({}{}\r\n", random.pick(&["", "-"]), random.next())),
        kind @ 6..=8 => {
            let (head, format) = [("$", ""), ("!", ""), ("=", "txt:")][kind - 6];
            let text = random.text();
            put(format!("{head}{}\r\n{format}", text.len() + format.len()));
            out.extend_from_slice(&text);
            out.extend_from_slice(b"\r\n");
        }
        kind => {
            let head = ["*", "~", ">", "%", "|"][kind - 9];
            let count = if random.below(10) == 0 { 13 } else { random.below(5) };
            put(format!("{head}{count}\r\n"));
            let elements = [count, count, count, 2 * count, 2 * count + 1][kind - 9];
            (0..elements).for_each(|_| generate(random, depth - 1, out));
        }
    }
}

#[test]
fn random_frames_end_where_the_tree_does_however_they_are_cut() {
    for seed in 0..3000 {
        let mut random = Random(seed);
        let (mut input, mut lengths) = (vec![], vec![]);
        for _ in 0..=random.below(3) {
            let start = input.len();
            generate(&mut random, 3, &mut input);
            lengths.push(input.len() - start);
            let (_, len) = parse_value(&input[start..]).unwrap().unwrap();
            assert_eq!((len, first_frame_len(&input[start..])), (input.len() - start, Some(len)));
        }
        for _ in 0..3 {
            let ends = random.cuts(input.len());
            assert_eq!(frames(&input, &ends), (lengths.clone(), Ok(true)), "seed {seed}");
        }
    }
}

#[test]
fn random_damage_means_the_same_however_it_is_cut_and_never_panics() {
    for seed in 0..6000 {
        let mut random = Random(seed);
        let mut input = vec![];
        generate(&mut random, 3, &mut input);
        random.damage(&mut input);
        let whole = frames(&input, &[input.len()]);
        for _ in 0..3 {
            let ends = random.cuts(input.len());
            assert_eq!(frames(&input, &ends), whole, "seed {seed}");
        }
        // The tree also looks into lines, so it may refuse more; what it takes, both end at the
        // same place.
        if let Ok(Some((_, len))) = parse_value(&input) {
            assert_eq!(whole.0.first(), Some(&len), "seed {seed}");
        }
    }
}

#[test]
fn an_error_reply_is_known_by_its_first_word() {
    for (line, kind) in [
        ("-MOVED 3999 127.0.0.1:6381\r\n", ErrorKind::Moved),
        ("-ASK 3999 127.0.0.1:6381\r\n", ErrorKind::Ask),
        ("-TRYAGAIN Multiple keys\r\n", ErrorKind::TryAgain),
        ("-CLUSTERDOWN Hash slot not served\r\n", ErrorKind::ClusterDown),
        ("-LOADING Redis is loading\r\n", ErrorKind::Loading),
        ("-MASTERDOWN Link\r\n", ErrorKind::MasterDown),
        ("-READONLY You\r\n", ErrorKind::ReadOnly),
        ("-NOSCRIPT No\r\n", ErrorKind::NoScript),
        ("-NOAUTH Authentication required.\r\n", ErrorKind::NoAuth),
        ("-NOPERM this user\r\n", ErrorKind::NoPerm),
        ("-LOADING\r\n", ErrorKind::Loading),
        ("-LOADING", ErrorKind::Loading),
        ("!10\r\nNOAUTH abc\r\n", ErrorKind::NoAuth),
        ("!10", ErrorKind::Other),
        ("-ERR unknown\r\n", ErrorKind::Other),
        ("-MOVEDX 1\r\n", ErrorKind::Other),
        ("-moved 1 a:1\r\n", ErrorKind::Other),
        ("+LOADING\r\n", ErrorKind::Other),
        ("-", ErrorKind::Other),
        ("", ErrorKind::Other),
    ] {
        assert_eq!(classify_error(line.as_bytes()), kind, "{line:?}");
    }
}

#[test]
fn a_redirect_names_slot_and_raw_endpoint() {
    for (line, expected) in [
        ("-MOVED 3999 127.0.0.1:6381\r\n", Some((3999, "127.0.0.1:6381"))),
        ("-ASK 0 ::1:6381\r\n", Some((0, "::1:6381"))),
        ("-MOVED 16383 :7001\r\n", Some((16383, ":7001"))),
        ("-MOVED 1 ?:7001 more\r\n", Some((1, "?:7001"))),
        ("-MOVED 16384 a:1\r\n", None),
        ("-MOVED -1 a:1\r\n", None),
        ("-MOVED 01 a:1\r\n", None),
        ("-MOVED 1\r\n", None),
        ("-MOVED 1 \r\n", None),
        ("-MOVED 1 host\r\n", None),
        ("-MOVED\r\n", None),
        ("-ERR 1 a:1\r\n", None),
        ("", None),
    ] {
        let found = parse_redirect(line.as_bytes());
        assert_eq!(found, expected.map(|(slot, raw)| (slot, raw.as_bytes())), "{line:?}");
    }
}

#[test]
fn headers_and_integers_are_read_strictly() {
    for (header, expected) in [
        ("*2\r\n:1\r\n", Some((b'*', 2, 4))),
        ("*-1\r\n", Some((b'*', -1, 5))),
        ("%123456\r\n", Some((b'%', 123_456, 9))),
        (">0\r\n", Some((b'>', 0, 4))),
        ("~-1\r\n", None),
        ("*-2\r\n", None),
        ("*1", None),
        ("*01\r\n", None),
        ("*12345\rx", None),
        ("$1\r\na\r\n", None),
        ("", None),
    ] {
        assert_eq!(aggregate_header(header.as_bytes()), expected, "{header:?}");
    }
    for (reply, expected) in [
        (":12\r\n", Some(12)),
        (":-1\r\n", Some(-1)),
        (":+1\r\n", None),
        (":1", None),
        ("1\r\n", None),
    ] {
        assert_eq!(parse_integer(reply.as_bytes()), expected, "{reply:?}");
    }
}

#[test]
fn a_tree_holds_what_the_reply_says() {
    let text = |text: &str| Value::Bulk(text.as_bytes().to_vec());
    let cases = [
        ("*-1\r\n", Value::Null),
        ("+OK\r\n", Value::Simple(b"OK".to_vec())),
        ("!5\r\nERR x\r\n", Value::Error(b"ERR x".to_vec())),
        (",-1.5e3\r\n", Value::Double(-1500.0)),
        (",inf\r\n", Value::Double(f64::INFINITY)),
        ("#f\r\n", Value::Boolean(false)),
        ("(-12\r\n", Value::BigNumber(b"-12".to_vec())),
        ("=6\r\ntxt:hi\r\n", Value::Verbatim(b"hi".to_vec())),
        ("~1\r\n:1\r\n", Value::Set(vec![Value::Integer(1)])),
        ("%1\r\n$1\r\na\r\n_\r\n", Value::Map(vec![(text("a"), Value::Null)])),
        ("|1\r\n+x\r\n+y\r\n$1\r\nv\r\n", text("v")),
    ];
    for (reply, expected) in cases {
        assert_eq!(parse_value(reply.as_bytes()), Ok(Some((expected, reply.len()))), "{reply:?}");
    }
    for reply in
        [":x\r\n", ",\r\n", "#x\r\n", "_x\r\n", "(1a\r\n", "(\r\n", "=3\r\ntxt\r\n", "%-1\r\n"]
    {
        assert_eq!(parse_value(reply.as_bytes()), Err(FrameError::BadLength), "{reply:?}");
    }
}

#[test]
fn a_map_and_a_flat_array_are_read_alike() {
    for reply in ["%2\r\n$1\r\na\r\n:1\r\n+b\r\n:2\r\n", "*4\r\n$1\r\na\r\n:1\r\n+b\r\n:2\r\n"] {
        let (value, _) = parse_value(reply.as_bytes()).unwrap().unwrap();
        assert_eq!(value.get("b").and_then(Value::as_integer), Some(2));
        assert_eq!(value.get("c"), None);
        let names: Vec<_> = value.pairs().unwrap().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [Some("a"), Some("b")]);
    }
    let (odd, _) = parse_value(b"*1\r\n+a\r\n").unwrap().unwrap();
    assert_eq!((odd.pairs(), odd.get("a")), (None, None));
    assert_eq!(odd.as_array().unwrap()[0].as_bytes(), Some(&b"a"[..]));
}
