//! Framing of requests: any bytes, cut at any places, give the same requests and errors, and those of
//! a slow and simple reading of the server's rules.
//!
//! Not here: what the server itself does with the same bytes (`differential`).

use ringway::resp::Span;
use ringway::resp::request::{
    Parsed, ProtocolError, RequestLimits, RequestParser, decode_inline, encode_request,
};

use super::Target;
use crate::hold;
use crate::shared::corpus::REQUEST_SLICES;
use crate::shared::plant::{self, Plant};
use crate::shared::random::Random;
use crate::shared::take::{Take, put_line};

pub const TARGET: Target = Target {
    name: "request",
    property: "a stream of requests, cut anywhere, gives what it gives uncut and what the server's \
               rules say; arguments lie within; what may be forwarded is canonical",
    check,
    make,
    memory: (64 << 10, 64),
    executions: 250_000,
};

/// What a stream holds, one after the other.
#[derive(Clone, PartialEq, Debug)]
enum Item<'a> {
    Empty(usize),
    Array {
        len: usize,
        canonical: bool,
        words: Vec<&'a [u8]>,
    },
    Inline {
        len: usize,
        words: Result<Vec<Vec<u8>>, ProtocolError>,
    },
    Wrong(ProtocolError),
    /// So many bytes are of a request that goes on.
    Rest(usize),
}

fn check(input: &[u8]) -> Result<(), String> {
    let mut take = Take(input);
    let limits = limits(take.byte());
    let chance = &mut Random::new(u64::from(take.byte()));
    let stream = take.0;
    let whole = read(stream, &limits, &[stream.len()])?;
    let cuts = chance.cuts(stream.len());
    let cut = read(stream, &limits, &cuts)?;
    hold!(cut == whole, "cut at {cuts:?}: {cut:?}\nuncut: {whole:?}");
    let told = model(stream, &limits);
    hold!(whole == told, "read: {whole:?}\nthe rules: {told:?}");
    encodings(stream, &whole, limits == RequestLimits::default())
}

fn limits(choice: u8) -> RequestLimits {
    let plain = RequestLimits::default();
    match choice % 6 {
        0 => RequestLimits::unauthenticated(),
        1 => RequestLimits { arguments_max: 3, bulk_max: 7, ..plain },
        2 => RequestLimits { inline_max: 32, ..plain },
        3 => RequestLimits { total_max: 100, ..plain },
        _ => plain,
    }
}

/// Reads a stream as it comes in pieces that end at `cuts`.
fn read<'a>(
    stream: &'a [u8],
    limits: &RequestLimits,
    cuts: &[usize],
) -> Result<Vec<Item<'a>>, String> {
    let mut items = Vec::new();
    let mut parser = RequestParser::default();
    let mut spans: Vec<Span> = Vec::new();
    let (mut start, mut hint) = (0, 0);
    let forgets = plant::is(Plant::ForgetPlace) && cuts.len() > 1;
    let panics = plant::is(Plant::Panic);
    for &end in cuts {
        while start < end {
            let bytes = &stream[start..end];
            if forgets {
                spans.clear();
            }
            if panics {
                assert!(!bytes.ends_with(b"*1\r"), "planted");
            }
            let item = match parser.parse(bytes, limits, &mut spans) {
                Ok(Parsed::Incomplete { total_hint }) => {
                    if plant::is(Plant::ReserveClaimed) {
                        drop(Vec::<u8>::with_capacity((total_hint as usize).min(1 << 30)));
                    }
                    hint = hint.max(total_hint as usize);
                    break;
                }
                Ok(parsed) => item_of(parsed, bytes, &spans)?,
                Err(error) => {
                    items.push(Item::Wrong(error));
                    return Ok(items);
                }
            };
            let (Item::Empty(len) | Item::Array { len, .. } | Item::Inline { len, .. }) = item
            else {
                return Err(format!("no length: {item:?}"));
            };
            hold!(0 < len && len <= bytes.len(), "{len} bytes of {}", bytes.len());
            hold!(hint <= len, "{hint} bytes at least were announced, {len} came");
            items.push(item);
            start += len;
            hint = 0;
            parser = RequestParser::default();
        }
    }
    if start < stream.len() {
        items.push(Item::Rest(stream.len() - start));
    }
    Ok(items)
}

fn item_of<'a>(parsed: Parsed, bytes: &'a [u8], spans: &[Span]) -> Result<Item<'a>, String> {
    Ok(match parsed {
        Parsed::Empty { len } => Item::Empty(len),
        Parsed::Array { len, canonical } => {
            let inside = |span: &Span| span.start <= span.end && (span.end as usize) < len;
            hold!(spans.iter().all(inside), "spans {spans:?} in {len} bytes");
            let mut words: Vec<&[u8]> = spans.iter().map(|span| span.of(bytes)).collect();
            if let (true, Some(last)) = (plant::is(Plant::ShortArgument), words.last_mut()) {
                *last = &last[..last.len().saturating_sub(1)];
            }
            let canonical = canonical || plant::is(Plant::CallCanonical);
            Item::Array { len, canonical, words }
        }
        Parsed::Inline { len } => {
            let (mut out, mut spans) = (b"before".to_vec(), Vec::new());
            let decoded = decode_inline(&bytes[..len], &mut out, &mut spans);
            let request = &out[6..];
            let words: Vec<Vec<u8>> = spans.iter().map(|s| s.of(request).to_vec()).collect();
            match decoded {
                Ok(()) => {
                    let mut again = Vec::new();
                    if !words.is_empty() {
                        encode_request(words.iter().map(Vec::as_slice), &mut again);
                    }
                    hold!(again == request, "decoded to {:?}", String::from_utf8_lossy(request));
                }
                Err(_) => hold!(request.is_empty(), "an error, and something was written"),
            }
            Item::Inline { len, words: decoded.map(|()| words) }
        }
        Parsed::Incomplete { .. } => Item::Rest(bytes.len()),
    })
}

/// What may be forwarded is what we would write; what may not reads the same when written anew.
/// `plain`: the stream was read within the limits that hold here, so that it says enough itself.
fn encodings(stream: &[u8], items: &[Item], plain: bool) -> Result<(), String> {
    let (mut start, mut written) = (0, Vec::new());
    for item in items {
        match item {
            Item::Array { len, canonical, words } => {
                written.clear();
                encode_request(words.iter().copied(), &mut written);
                let bytes = &stream[start..start + len];
                hold!(!*canonical || written == bytes, "called canonical: {bytes:?}");
                start += len;
                if plain && *canonical {
                    continue;
                }
                let again = read(&written, &RequestLimits::default(), &[written.len()])?;
                let words = words.clone();
                let expected = Item::Array { len: written.len(), canonical: true, words };
                hold!(again == [expected], "written anew: {again:?}");
            }
            Item::Empty(len) | Item::Inline { len, .. } => start += len,
            Item::Wrong(_) | Item::Rest(_) => {}
        }
    }
    Ok(())
}

// --- the rules, slow and simple ----------------------------------------------------------------

fn model<'a>(stream: &'a [u8], limits: &RequestLimits) -> Vec<Item<'a>> {
    let mut items = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        match model_one(rest, limits) {
            Ok(Some(item)) => {
                if let Item::Empty(len) | Item::Array { len, .. } | Item::Inline { len, .. } = &item
                {
                    rest = &rest[*len..];
                }
                items.push(item);
            }
            Ok(None) => {
                items.push(Item::Rest(rest.len()));
                break;
            }
            Err(error) => {
                items.push(Item::Wrong(error));
                break;
            }
        }
    }
    items
}

fn model_one<'a>(
    bytes: &'a [u8],
    limits: &RequestLimits,
) -> Result<Option<Item<'a>>, ProtocolError> {
    if bytes[0] != b'*' {
        return model_inline(bytes, limits);
    }
    let too_many = ProtocolError::TooBigMultibulkCount;
    let Some((text, mut at, mut canonical)) = model_line(bytes, limits, too_many)? else {
        return Ok(None);
    };
    let count = model_number(&text[1..]).ok_or(ProtocolError::InvalidMultibulkLength)?;
    if count <= 0 {
        return Ok(Some(Item::Empty(at)));
    }
    let guest = limits.arguments_max == 10;
    if count > i64::from(limits.arguments_max) {
        return Err(match guest && count <= 1024 * 1024 {
            true => ProtocolError::UnauthenticatedMultibulkLength,
            false => ProtocolError::InvalidMultibulkLength,
        });
    }
    let mut words = Vec::new();
    for _ in 0..count {
        let too_big = ProtocolError::TooBigBulkCount;
        let Some((text, next, plain)) = model_line(&bytes[at..], limits, too_big)? else {
            return Ok(None);
        };
        if text.first() != Some(&b'$') {
            return Err(ProtocolError::ExpectedDollar(bytes[at]));
        }
        let length = model_number(&text[1..]).filter(|length| *length >= 0);
        let length = length.ok_or(ProtocolError::InvalidBulkLength)? as u64;
        if length > limits.bulk_max {
            return Err(match guest && length <= 512 << 20 {
                true => ProtocolError::UnauthenticatedBulkLength,
                false => ProtocolError::InvalidBulkLength,
            });
        }
        let start = at + next;
        let end = start + length as usize;
        if end as u64 + 2 > limits.total_max {
            return Err(ProtocolError::TooBigRequest);
        }
        let Some(close) = bytes.get(end..end + 2) else { return Ok(None) };
        canonical &= plain && close == b"\r\n";
        words.push(&bytes[start..end]);
        at = end + 2;
    }
    Ok(Some(Item::Array { len: at, canonical, words }))
}

type Line<'a> = (&'a [u8], usize, bool);

/// What stands before a CR, where the next thing starts, and whether an LF is between.
fn model_line<'a>(
    bytes: &'a [u8],
    limits: &RequestLimits,
    too_big: ProtocolError,
) -> Result<Option<Line<'a>>, ProtocolError> {
    let most = limits.inline_max as usize;
    let found = bytes.iter().position(|byte| matches!(byte, b'\r' | 0));
    match found {
        Some(at) if bytes[at] == b'\r' && at <= most => {
            Ok(bytes.get(at + 1).map(|next| (&bytes[..at], at + 2, *next == b'\n')))
        }
        _ if bytes.len() > most => Err(too_big),
        _ => Ok(None),
    }
}

fn model_inline<'a>(
    bytes: &'a [u8],
    limits: &RequestLimits,
) -> Result<Option<Item<'a>>, ProtocolError> {
    if bytes.starts_with(b"\x16\x03") {
        return Err(ProtocolError::Tls);
    }
    let most = limits.inline_max as usize;
    match bytes.iter().position(|byte| matches!(byte, b'\n' | 0)) {
        Some(at) if bytes[at] == b'\n' && at <= most => {
            let line = &bytes[..at + 1];
            let words = model_words(line);
            Ok(Some(match words {
                Ok(words) if words.is_empty() => Item::Empty(at + 1),
                words => Item::Inline { len: at + 1, words },
            }))
        }
        _ if bytes.len() > most => Err(ProtocolError::TooBigInline),
        _ => Ok(None),
    }
}

/// redis-server's `sdssplitargs`, written down once more.
fn model_words(line: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
    let space = |byte: u8| matches!(byte, b' ' | 9..=13);
    let mut words = Vec::new();
    let mut bytes = line.iter().copied().peekable();
    loop {
        while bytes.next_if(|byte| space(*byte)).is_some() {}
        if bytes.peek().is_none_or(|byte| *byte == 0) {
            return Ok(words);
        }
        let mut word = Vec::new();
        while let Some(byte) =
            bytes.next_if(|byte| !matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | 0))
        {
            if !matches!(byte, b'"' | b'\'') {
                word.push(byte);
                continue;
            }
            loop {
                let inner = bytes.next().filter(|byte| *byte != 0);
                match inner.ok_or(ProtocolError::UnbalancedQuotes)? {
                    close if close == byte => break,
                    b'\\' if byte == b'"' => word.push(model_escape(&mut bytes)),
                    b'\\' if bytes.next_if_eq(&b'\'').is_some() => word.push(b'\''),
                    other => word.push(other),
                }
            }
            if bytes.peek().is_some_and(|next| *next != 0 && !space(*next)) {
                return Err(ProtocolError::UnbalancedQuotes);
            }
            break;
        }
        words.push(word);
    }
}

/// What follows a backslash within double quotes.
fn model_escape(bytes: &mut (impl Iterator<Item = u8> + Clone)) -> u8 {
    let mut ahead = bytes.clone();
    let digit = |byte: Option<u8>| char::from(byte.unwrap_or(0)).to_digit(16);
    match ahead.next() {
        None | Some(0) => return b'\\',
        Some(b'x') => {
            if let (Some(high), Some(low)) = (digit(ahead.next()), digit(ahead.next())) {
                *bytes = ahead;
                return (high * 16 + low) as u8;
            }
        }
        Some(_) => {}
    }
    match bytes.next() {
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'b') => 8,
        Some(b'a') => 7,
        other => other.unwrap_or(b'\\'),
    }
}

fn model_number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let as_written = text == b"0" || matches!(digits, [b'1'..=b'9', ..]);
    as_written.then(|| std::str::from_utf8(text).ok()?.parse().ok())?
}

// --- inputs ------------------------------------------------------------------------------------

fn make(random: &mut Random) -> Vec<u8> {
    let mut out = vec![random.next() as u8, random.next() as u8];
    let mut stream = Vec::new();
    for _ in 0..=random.length(8) {
        match random.one_in(12) {
            true => stream.extend_from_slice(random.pick(&REQUEST_SLICES)),
            false => stream.extend(one_request(random)),
        }
    }
    if random.one_in(2) {
        random.mutate(&mut stream, &REQUEST_SLICES);
    }
    out.extend(stream);
    out
}

/// A request of some kind; also used against real servers.
pub fn one_request(random: &mut Random) -> Vec<u8> {
    match random.below(12) {
        1 => inline(random),
        2 => {
            let mut line =
                random.pick(&[&b"*"[..], b"*1\r\n$", b"$", b"*2\r\n$3\r\nGET\r\n$"]).to_vec();
            line.extend(random.number_text());
            line.extend_from_slice(random.pick(&[&b"\r\n"[..], b"\n", b"\r", b""]));
            line
        }
        // A line at the limits of what a line may be.
        3 if random.one_in(40) => {
            let length = random.pick(&[31, 32, 33, 65535, 65536, 65537]);
            let mut line = random.pick(&[&b"*"[..], b"a", b"*1\r\n$"]).to_vec();
            line.resize(length, random.pick(b"1a\0"));
            line.extend_from_slice(random.pick(&[&b"\r\n"[..], b"\n", b""]));
            line
        }
        _ => {
            let count = 1 + random.length(12);
            let (mut out, mut word) = (Vec::new(), Vec::new());
            put_line(b'*', count, &mut out);
            for _ in 0..count {
                word.clear();
                random.put_text(70, &mut word);
                put_line(b'$', word.len(), &mut out);
                out.extend_from_slice(&word);
                out.extend_from_slice(b"\r\n");
            }
            if random.one_in(60) {
                let long = vec![b'x'; random.length(20_000)];
                out.clear();
                encode_request([&b"SET"[..], &long].into_iter(), &mut out);
            }
            out
        }
    }
}

fn inline(random: &mut Random) -> Vec<u8> {
    const PIECES: [&[u8]; 18] = [
        b"GET", b"k", b" ", b" ", b"\t", b"\"", b"\"", b"'", b"'", b"\\", b"\\x41", b"\\n",
        b"\\x4", b"\x0b", b"\0", b"\r", b"*1", b"\xff",
    ];
    let mut line: Vec<u8> =
        (0..random.length(20)).flat_map(|_| random.pick(&PIECES).iter().copied()).collect();
    line.extend_from_slice(random.pick(&[&b"\r\n"[..], b"\r\n", b"\n", b"\n\n", b""]));
    line
}
