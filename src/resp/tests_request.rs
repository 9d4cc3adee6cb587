//! Requests as clients send them, whole and cut: a cut may delay an answer, never change it.
//!
//! The expected answers are redis-server 7.0.15's. Not here: the numbers alone (`number`).

use crate::limits;
use crate::resp::Span;
use crate::resp::request::*;
use crate::resp::tests_support::{Random, all_cuts};

/// What a stream of bytes amounted to, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Event {
    Run(Vec<Vec<u8>>),
    /// As `Run`, but not to be forwarded as it is.
    Loose(Vec<Vec<u8>>),
    Inline(Vec<Vec<u8>>),
    Empty,
    /// The last event: the client is closed.
    Error(String),
    /// The last event: this many bytes wait for more.
    Waiting(usize),
}
use Event::{Empty, Waiting};

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn run(line: &str) -> Event {
    Event::Run(words(line))
}

fn error(text: &str) -> Event {
    Event::Error(format!("Protocol error: {text}"))
}

/// Feeds `input` in pieces that end at `ends`.
fn events(input: &[u8], ends: &[usize], limits: &RequestLimits) -> Vec<Event> {
    let (mut parser, mut args) = (RequestParser::default(), Vec::new());
    let (mut events, mut start, mut fed) = (vec![], 0, 0);
    for end in ends {
        fed = *end;
        while start < fed {
            let bytes = &input[start..fed];
            let owned = |args: &[Span], of: &[u8]| args.iter().map(|s| s.of(of).to_vec()).collect();
            let (event, len) = match parser.parse(bytes, limits, &mut args) {
                Ok(Parsed::Incomplete { .. }) => break,
                Ok(Parsed::Empty { len }) => (Empty, len),
                Ok(Parsed::Array { len, canonical: true }) => {
                    (Event::Run(owned(&args, bytes)), len)
                }
                Ok(Parsed::Array { len, .. }) => (Event::Loose(owned(&args, bytes)), len),
                Ok(Parsed::Inline { len }) => {
                    let mut out = vec![];
                    match decode_inline(&bytes[..len], &mut out, &mut args) {
                        Ok(()) => (Event::Inline(owned(&args, &out)), len),
                        Err(error) => (Event::Error(error.text().into_owned()), 0),
                    }
                }
                Err(error) => (Event::Error(error.text().into_owned()), 0),
            };
            events.push(event);
            if matches!(events.last(), Some(Event::Error(_))) {
                return events;
            }
            start += len;
        }
    }
    if start < fed {
        events.push(Waiting(fed - start));
    }
    events
}

#[track_caller]
fn check_with(limits: &RequestLimits, input: impl AsRef<[u8]>, expected: &[Event]) {
    let input = input.as_ref();
    for ends in all_cuts(input.len()) {
        let shown = String::from_utf8_lossy(&input[..input.len().min(80)]);
        let ends_shown = &ends[..ends.len().min(3)];
        assert_eq!(events(input, &ends, limits), expected, "{shown:?} cut at {ends_shown:?}");
    }
}

#[track_caller]
fn check(input: impl AsRef<[u8]>, expected: &[Event]) {
    check_with(&RequestLimits::default(), input, expected);
}

#[test]
fn an_empty_frame_has_no_answer_and_the_next_request_runs() {
    let ping = "*1\r\n$4\r\nPING\r\n";
    for (empty, count) in
        [("*0\r\n", 1), ("*-1\r\n", 1), ("*-7\r\n", 1), ("\r\n\r\n", 2), ("\n", 1)]
    {
        let mut expected = vec![Empty; count];
        expected.push(run("PING"));
        check(format!("{empty}{ping}"), &expected);
    }
    check(" \t \r\nPING\r\n", &[Empty, Event::Inline(words("PING"))]);
}

#[test]
fn pipelined_requests_come_out_in_order() {
    check(
        "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n",
        &[run("GET k"), run("SET k v")],
    );
    let long = "x".repeat(12_345);
    check(format!("*2\r\n$3\r\nGET\r\n$12345\r\n{long}\r\n"), &[run(&format!("GET {long}"))]);
    let eleven = "$1\r\na\r\n".repeat(11);
    check(format!("*11\r\n{eleven}"), &[run("a a a a a a a a a a a")]);
    check("*2\r\n$3\r\nGET\r\n$1\r\n", &[Waiting(17)]);
}

#[test]
fn an_argument_may_be_empty_and_hold_any_byte() {
    check(
        b"*3\r\n$0\r\n\r\n$4\r\n\r\n\0\xff\r\n$2\r\n\r\n\r\n",
        &[Event::Run(vec![b"".to_vec(), b"\r\n\0\xff".to_vec(), b"\r\n".to_vec()])],
    );
}

#[test]
fn line_ends_that_the_server_takes_are_taken_but_not_forwarded() {
    for input in [
        "*2\rX$3\r\nGET\r\n$1\r\nk\r\n",
        "*2\r\n$3\r GET\r\n$1\r\nk\r\n",
        "*2\r\n$3\r\nGETXY$1\r\nk\r\n",
        "*2\r\n$3\r\nGET\r\n$1\r\nk\n\r",
        "*2\r\n$3\r\nGET\r\n$1\r\nk\rX",
    ] {
        check(input, &[Event::Loose(words("GET k"))]);
    }
    check("*1\rX$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n", &[Event::Loose(words("PING")), run("PING")]);
}

#[test]
fn a_wrong_count_is_refused_in_the_server_s_words() {
    for count in ["abc", "+1", "2147483648", "01", "-0", "", " 1", "1 ", "1\n", "--1", "1048577"] {
        check(format!("*{count}\r\n$4\r\nPING\r\n"), &[error("invalid multibulk length")]);
    }
    check("*99999999999999999999999\r\n", &[error("invalid multibulk length")]);
    // Not yet wrong.
    check("*abc", &[Waiting(4)]);
    check("*1048576\r\n$536870912\r\n", &[Waiting(22)]);
}

#[test]
fn a_wrong_length_is_refused_in_the_server_s_words_and_nothing_runs_after_it() {
    for length in ["-5", "-1", "04", "536870913", "+3", "-0", "", "x", "3 ", "99999999999999999999"]
    {
        let input = format!("*2\r\n$3\r\nGET\r\n${length}\r\nabcd\r\n*1\r\n$4\r\nPING\r\n");
        check(input, &[error("invalid bulk length")]);
    }
    check(
        "*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$-1\r\n*1\r\n$4\r\nPING\r\n",
        &[run("PING"), error("invalid bulk length")],
    );
}

#[test]
fn something_else_than_a_bulk_string_is_refused_by_its_first_byte() {
    for (got, shown) in [("*1", "*"), (":1", ":"), ("x", "x"), ("\r", " "), ("\n", " "), ("é", "?")]
    {
        let input = format!("*2\r\n$3\r\nGET\r\n{got}\r\n$1\r\nk\r\n");
        check(input, &[error(&format!("expected '$', got '{shown}'"))]);
    }
    let mut out = vec![];
    ProtocolError::ExpectedDollar(0xc3).append_reply(&mut out);
    assert_eq!(out, b"-ERR Protocol error: expected '$', got '\xc3'\r\n");
    out.clear();
    ProtocolError::TooBigInline.append_reply(&mut out);
    assert_eq!(out, b"-ERR Protocol error: too big inline request\r\n");
}

#[test]
fn a_line_without_end_is_refused_at_its_limit() {
    let filled = |before: &str, length: usize| format!("{before}{}", "a".repeat(length));
    let max = limits::REQUEST_INLINE_MAX as usize;
    let texts = [
        ("", "too big inline request"),
        ("*", "too big mbulk count string"),
        ("*1\r\n$", "too big bulk count string"),
        ("*1\r\n", "too big bulk count string"),
        ("*2\r\n$1\r\na\r\n:", "too big bulk count string"),
    ];
    for (before, text) in texts {
        let header = before.len() - usize::from(!before.is_empty() && !before.ends_with('\n'));
        let exact = header + max - before.len();
        check(filled(before, exact), &[Waiting(before.len() + exact)]);
        check(filled(before, exact + 1), &[error(text)]);
        check(filled(before, 70_000), &[error(text)]);
        check(format!("{}\r\n", filled(before, exact + 1)), &[error(text)]);
    }
    let line = filled("", max);
    check(format!("{line}\n"), &[Event::Inline(words(&line))]);
    check(format!("{}\r\n", filled("*", max - 1)), &[error("invalid multibulk length")]);
}

#[test]
fn a_nul_hides_the_end_of_a_line_as_from_strchr() {
    for input in ["*1\0\r\n$4\r\nPING\r\n", "PING\0\r\nPING\r\n", "*1\r\n$\x004\r\nPING\r\n"] {
        check(input, &[Waiting(input.len())]);
    }
    check(format!("*1\0\r\n{}", "a".repeat(65_532)), &[error("too big mbulk count string")]);
}

#[test]
fn before_login_only_a_small_request_is_taken() {
    let limits = RequestLimits::unauthenticated();
    let ten = format!("*10\r\n{}", "$1\r\na\r\n".repeat(10));
    check_with(&limits, ten, &[run("a a a a a a a a a a")]);
    check_with(&limits, "*11\r\n", &[error("unauthenticated multibulk length")]);
    check_with(&limits, "*2147483648\r\n", &[error("invalid multibulk length")]);
    check_with(&limits, "*1\r\n$16384\r\n", &[Waiting(12)]);
    check_with(&limits, "*1\r\n$16385\r\n", &[error("unauthenticated bulk length")]);
    check_with(&limits, "*1\r\n$536870913\r\n", &[error("invalid bulk length")]);
}

#[test]
fn lower_limits_hold() {
    let limits = RequestLimits { arguments_max: 2, bulk_max: 5, inline_max: 8, total_max: 30 };
    check_with(&limits, "*3\r\n", &[error("invalid multibulk length")]);
    check_with(&limits, "*1\r\n$6\r\n", &[error("invalid bulk length")]);
    check_with(&limits, "*1\r\n$5\r\nabcde\r\n", &[run("abcde")]);
    check_with(&limits, "abcdefgh\n", &[Event::Inline(words("abcdefgh"))]);
    check_with(&limits, "abcdefghi\n", &[error("too big inline request")]);
    // 4 + 11 + 11 bytes fit in 30 and in 26, not in 25.
    let request = "*2\r\n$5\r\nabcde\r\n$5\r\nabcde\r\n";
    check_with(&limits, request, &[run("abcde abcde")]);
    check_with(&RequestLimits { total_max: 26, ..limits }, request, &[run("abcde abcde")]);
    check_with(&RequestLimits { total_max: 25, ..limits }, request, &[error("too big request")]);
    // No configuration makes a span wrap.
    let unlimited =
        RequestLimits { inline_max: 40, bulk_max: u64::MAX, total_max: u64::MAX, ..limits };
    check_with(&unlimited, "*1\r\n$9223372036854775807\r\n", &[error("too big request")]);
    check_with(&unlimited, "*1\r\n$4294967290\r\n", &[error("too big request")]);
}

#[test]
fn inline_words_are_decoded_as_sdssplitargs_does() {
    let cases: &[(&str, &[&[u8]])] = &[
        ("AUTH pw", &[b"AUTH", b"pw"]),
        ("  GET\t\tk  ", &[b"GET", b"k"]),
        (r#"SET "a\x0d\n" 'x y'"#, &[b"SET", b"a\r\n", b"x y"]),
        (r#""\xfF\x0g\xg0\x" "\t\b\a\q\\\"""#, &[b"\xffx0gxg0x", b"\t\x08\x07q\\\""]),
        (r#"'\n \' "' "it's""#, &[br#"\n ' ""#, b"it's"]),
        (r#"a"b c"  d'e f'"#, &[b"ab c", b"de f"]),
        (r#""" ''"#, &[b"", b""]),
        ("a\x0bb \x0bc\x0c", &[b"a\x0bb", b"c\x0c"]),
        (r"a\b", &[br"a\b"]),
        ("a\rb", &[b"a", b"b"]),
    ];
    for (line, expected) in cases {
        let expected = Event::Inline(expected.iter().map(|word| word.to_vec()).collect());
        for end in ["\r\n", "\n"] {
            check(format!("{line}{end}PING\n"), &[expected.clone(), Event::Inline(words("PING"))]);
        }
    }
    for line in [r#"SET a "b"#, "'", r#""a"b"#, "'a'b", r#""\"#, r#""a\""#, r"'a\'", r#"a "b"'c'"#]
    {
        check(format!("{line}\r\nPING\r\n"), &[error("unbalanced quotes in request")]);
    }
}

#[test]
fn a_decoded_inline_line_is_appended_in_canonical_form() {
    let mut out = b"before".to_vec();
    let mut args = vec![Span { start: 9, end: 9 }];
    decode_inline(b"SET 'a b' \"\\r\\n\"\r\n", &mut out, &mut args).unwrap();
    assert_eq!(out, b"before*3\r\n$3\r\nSET\r\n$3\r\na b\r\n$2\r\n\r\n\r\n");
    let texts: Vec<&[u8]> = args.iter().map(|span| span.of(&out[6..])).collect();
    assert_eq!(texts, [b"SET".as_slice(), b"a b", b"\r\n"]);
    let before = out.clone();
    assert_eq!(decode_inline(b"'", &mut out, &mut args), Err(ProtocolError::UnbalancedQuotes));
    decode_inline(b" \t\r\n", &mut out, &mut args).unwrap();
    assert_eq!((out, args.len()), (before, 0));
}

#[test]
fn a_declared_length_reserves_nothing() {
    let mut args = Vec::new();
    let parsed = RequestParser::default().parse(
        b"*1048576\r\n$536870912\r\n",
        &RequestLimits::default(),
        &mut args,
    );
    let total_hint = 22 + (512 << 20) + 2 + 1_048_575 * 6;
    assert_eq!(parsed, Ok(Parsed::Incomplete { total_hint }));
    assert_eq!(args.capacity(), 0);
    assert!(size_of::<RequestParser>() <= 40);
}

#[test]
fn a_million_arguments_in_pieces_are_each_looked_at_once() {
    let mut input = b"*1048576\r\n".to_vec();
    input.extend(b"$1\r\na\r\n".repeat(1 << 20));
    let (mut parser, mut args, mut seen) = (RequestParser::default(), Vec::new(), 0);
    for end in (4096..input.len()).step_by(4096) {
        let parsed = parser.parse(&input[..end], &RequestLimits::default(), &mut args);
        assert!(matches!(parsed, Ok(Parsed::Incomplete { .. })));
        // What was parsed is made unreadable: looking at it again would be an error.
        let parsed_to = args.last().map_or(0, |span| span.end as usize + 2);
        input[seen..parsed_to].fill(b'?');
        seen = parsed_to;
    }
    let parsed = parser.parse(&input, &RequestLimits::default(), &mut args);
    assert_eq!(parsed, Ok(Parsed::Array { len: input.len(), canonical: true }));
    assert_eq!((args.len(), args[1 << 19].len()), (1 << 20, 1));
}

#[test]
fn the_hint_is_never_over_the_length_and_the_parser_is_used_again() {
    let request = b"*3\r\n$3\r\nSET\r\n$10\r\n0123456789\r\n$1\r\nv\r\n";
    let (mut parser, mut args) = (RequestParser::default(), Vec::new());
    for _ in 0..2 {
        for end in 0..request.len() {
            match parser.parse(&request[..end], &RequestLimits::default(), &mut args) {
                Ok(Parsed::Incomplete { total_hint }) => {
                    assert!(total_hint <= request.len() as u64)
                }
                other => panic!("{other:?}"),
            }
        }
        let parsed = parser.parse(request, &RequestLimits::default(), &mut args);
        assert_eq!(parsed, Ok(Parsed::Array { len: request.len(), canonical: true }));
        assert_eq!(args.len(), 3);
    }
}

#[test]
fn random_streams_mean_the_same_however_they_are_cut() {
    let limits = RequestLimits { inline_max: 600, ..RequestLimits::default() };
    for seed in 0..3000 {
        let mut random = Random(seed);
        let (mut input, mut expected) = (vec![], vec![]);
        for _ in 0..=random.below(5) {
            let parts: Vec<Vec<u8>> = (0..=random.below(14)).map(|_| random.text()).collect();
            encode_request(parts.iter().map(Vec::as_slice), &mut input);
            expected.push(Event::Run(parts));
        }
        let damaged = seed % 2 == 1;
        if damaged {
            random.damage(&mut input);
            expected = events(&input, &[input.len()], &limits);
        }
        for _ in 0..4 {
            let ends = random.cuts(input.len());
            assert_eq!(events(&input, &ends, &limits), expected, "seed {seed}");
        }
    }
}

#[test]
fn a_browser_is_known_by_its_first_word() {
    for name in ["POST", "post", "Host:", "HOST:"] {
        assert!(is_cross_protocol(name.as_bytes()));
    }
    for name in ["", "GET", "Host", "POSTS", "Host: "] {
        assert!(!is_cross_protocol(name.as_bytes()));
    }
}

#[test]
fn a_span_outside_of_the_bytes_is_cut_off() {
    let of = |start, end| Span { start, end }.of(b"abcd");
    assert_eq!(
        (of(1, 3), of(2, 9), of(5, 9), of(3, 1)),
        (&b"bc"[..], &b"cd"[..], &b""[..], &b""[..])
    );
    assert_eq!((Span { start: 1, end: 3 }.len(), Span { start: 3, end: 1 }.len()), (2, 0));
}

#[test]
fn a_tls_client_is_known_by_its_first_two_bytes() {
    let parse = |bytes: &[u8]| {
        RequestParser::default().parse(bytes, &RequestLimits::default(), &mut Vec::new())
    };
    assert_eq!(parse(&[0x16, 0x03]), Err(ProtocolError::Tls));
    assert_eq!(parse(&[0x16, 0x03, 0x01, 0x02, 0x00, b'\n']), Err(ProtocolError::Tls));
    assert_eq!(parse(&[0x16]), Ok(Parsed::Incomplete { total_hint: 0 }));
    assert_eq!(parse(&[0x16, b'\n']), Ok(Parsed::Inline { len: 2 }));
    let kept = b"*1\r\n$2\r\n\x16\x03\r\n";
    assert!(matches!(parse(kept), Ok(Parsed::Array { .. })), "inside a request it is data");
}
