//! Replies that we originate, in either version of the protocol.
//!
//! Not here: the texts (`proxy`), requests (`request`).

use std::io::Write as _;

use crate::resp::Version;
use crate::resp::number;

/// `+text`. A line end within it becomes a blank.
pub fn simple(out: &mut Vec<u8>, text: &str) {
    line(out, b'+', text);
}

/// `-text`, text being code and message (`ERR syntax error`). A line end within it becomes a blank,
/// so that no text can make two replies out of one.
pub fn error(out: &mut Vec<u8>, text: &str) {
    line(out, b'-', text);
}

fn line(out: &mut Vec<u8>, kind: u8, text: &str) {
    out.reserve(text.len() + 3);
    out.push(kind);
    out.extend(text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
    out.extend_from_slice(b"\r\n");
}

/// `:value`.
pub fn integer(out: &mut Vec<u8>, value: i64) {
    out.push(b':');
    number::append_integer(out, value);
    out.extend_from_slice(b"\r\n");
}

/// A bulk string.
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.reserve(bytes.len() + 16);
    number::append_header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// The null of a string: `$-1`, in RESP3 `_`.
pub fn null(out: &mut Vec<u8>, version: Version) {
    out.extend_from_slice(choose(version, b"$-1\r\n", b"_\r\n"));
}

/// The null of an array: `*-1`, in RESP3 `_`.
pub fn null_array(out: &mut Vec<u8>, version: Version) {
    out.extend_from_slice(choose(version, b"*-1\r\n", b"_\r\n"));
}

/// Header of an array of `count` elements.
pub fn array_header(out: &mut Vec<u8>, count: usize) {
    number::append_header(out, b'*', count);
}

/// Header of a map of `pairs` keys and values; in RESP2 an array of twice as many.
pub fn map_header(out: &mut Vec<u8>, version: Version, pairs: usize) {
    match version {
        Version::Resp2 => number::append_header(out, b'*', pairs.saturating_mul(2)),
        Version::Resp3 => number::append_header(out, b'%', pairs),
    }
}

/// Header of a set of `count` elements; in RESP2 an array.
pub fn set_header(out: &mut Vec<u8>, version: Version, count: usize) {
    number::append_header(out, choose(version, b'*', b'~'), count);
}

/// Header of a push of `count` elements; in RESP2 an array.
pub fn push_header(out: &mut Vec<u8>, version: Version, count: usize) {
    number::append_header(out, choose(version, b'*', b'>'), count);
}

/// A double with the fewest digits that give it back, in the form of redis-server 7.2 and later
/// (util.c `d2string`); a bulk string in RESP2.
pub fn double(out: &mut Vec<u8>, version: Version, value: f64) {
    let mut text = Text { bytes: [0; 40], len: 0 };
    write_double(&mut text, value);
    match version {
        Version::Resp2 => bulk(out, text.get()),
        Version::Resp3 => {
            out.push(b',');
            out.extend_from_slice(text.get());
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// A truth value; 1 or 0 in RESP2.
pub fn boolean(out: &mut Vec<u8>, version: Version, value: bool) {
    let (resp2, resp3) = if value { (b":1\r\n", b"#t\r\n") } else { (b":0\r\n", b"#f\r\n") };
    out.extend_from_slice(choose(version, resp2, resp3));
}

/// A text with its format (`txt`, `mkd`); a bulk string without it in RESP2.
pub fn verbatim(out: &mut Vec<u8>, version: Version, format: &[u8; 3], bytes: &[u8]) {
    if version == Version::Resp2 {
        return bulk(out, bytes);
    }
    out.reserve(bytes.len() + 20);
    number::append_header(out, b'=', bytes.len().saturating_add(4));
    out.extend_from_slice(format);
    out.push(b':');
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn choose<T>(version: Version, resp2: T, resp3: T) -> T {
    match version {
        Version::Resp2 => resp2,
        Version::Resp3 => resp3,
    }
}

/// A short text on the stack; what does not fit is left out.
struct Text {
    bytes: [u8; 40],
    len: usize,
}

impl Text {
    fn get(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = *byte;
                self.len += 1;
            }
        }
    }
}

fn write_double(text: &mut Text, value: f64) {
    // The server prints whole numbers up to this as integers, not in exponent form.
    const WHOLE_MAX: f64 = (i64::MAX / 2) as f64;
    if value.is_nan() {
        return text.push(b"nan");
    }
    if value.is_sign_negative() {
        text.push(b"-");
    }
    let magnitude = value.abs();
    if magnitude.is_infinite() {
        text.push(b"inf");
    } else if magnitude <= WHOLE_MAX && magnitude.fract() == 0.0 {
        let mut digits = Vec::with_capacity(20);
        number::append_unsigned(&mut digits, magnitude as u64);
        text.push(&digits);
    } else {
        write_fraction(text, magnitude);
    }
}

/// `fpconv_dtoa`'s choice of form (fpconv_dtoa.c `emit_digits`) for the shortest digits.
fn write_fraction(text: &mut Text, magnitude: f64) {
    // Shortest digits and exponent, as d.ddde±x.
    let mut scientific = [0u8; 40];
    let mut unused: &mut [u8] = &mut scientific;
    let _ = write!(unused, "{magnitude:e}");
    let used = 40 - unused.len();
    let scientific = scientific.get(..used).unwrap_or_default();
    let e = memchr::memchr(b'e', scientific).unwrap_or(used);
    let exponent_text = scientific.get(e + 1..).unwrap_or_default();
    let exponent = number::read_integer(exponent_text).unwrap_or(0);
    let mut digits = Text { bytes: [0; 40], len: 0 };
    scientific.iter().take(e).filter(|byte| **byte != b'.').for_each(|byte| digits.push(&[*byte]));
    let digits = digits.get();
    let count = digits.len() as i64;
    let scale = exponent - count + 1;
    let zeros = |text: &mut Text, count: i64| (0..count).for_each(|_| text.push(b"0"));
    if scale >= 0 && exponent.abs() < count + 7 {
        text.push(digits);
        zeros(text, scale);
    } else if scale < 0 && (scale > -7 || exponent.abs() < 4) {
        let whole = count + scale;
        if whole <= 0 {
            text.push(b"0.");
            zeros(text, -whole);
            text.push(digits);
        } else {
            let (before, after) = digits.split_at_checked(whole as usize).unwrap_or_default();
            text.push(before);
            text.push(b".");
            text.push(after);
        }
    } else {
        let (first, others) = digits.split_at_checked(1).unwrap_or_default();
        text.push(first);
        if !others.is_empty() {
            text.push(b".");
            text.push(others);
        }
        text.push(if exponent < 0 { b"e-" } else { b"e+" });
        let mut power = Vec::with_capacity(4);
        number::append_unsigned(&mut power, exponent.unsigned_abs());
        text.push(&power);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes in both versions after other bytes, which must stay.
    #[track_caller]
    fn check(write: impl Fn(&mut Vec<u8>, Version), resp2: &str, resp3: &str) {
        for (version, expected) in [(Version::Resp2, resp2), (Version::Resp3, resp3)] {
            let mut out = b"before".to_vec();
            write(&mut out, version);
            assert_eq!(String::from_utf8(out).unwrap(), format!("before{expected}"), "{version:?}");
        }
    }

    #[test]
    fn each_reply_has_its_form_in_either_version() {
        check(|out, _| simple(out, "OK"), "+OK\r\n", "+OK\r\n");
        check(|out, _| error(out, "ERR no\r\n+OK"), "-ERR no  +OK\r\n", "-ERR no  +OK\r\n");
        check(|out, _| integer(out, -42), ":-42\r\n", ":-42\r\n");
        check(
            |out, _| integer(out, i64::MIN),
            ":-9223372036854775808\r\n",
            ":-9223372036854775808\r\n",
        );
        check(|out, _| bulk(out, b""), "$0\r\n\r\n", "$0\r\n\r\n");
        check(|out, _| bulk(out, b"a\r\nb"), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n");
        check(null, "$-1\r\n", "_\r\n");
        check(null_array, "*-1\r\n", "_\r\n");
        check(|out, _| array_header(out, 123), "*123\r\n", "*123\r\n");
        check(|out, version| map_header(out, version, 7), "*14\r\n", "%7\r\n");
        check(|out, version| set_header(out, version, 3), "*3\r\n", "~3\r\n");
        check(|out, version| push_header(out, version, 3), "*3\r\n", ">3\r\n");
        check(|out, version| boolean(out, version, true), ":1\r\n", "#t\r\n");
        check(|out, version| boolean(out, version, false), ":0\r\n", "#f\r\n");
        check(
            |out, version| verbatim(out, version, b"txt", b"hi"),
            "$2\r\nhi\r\n",
            "=6\r\ntxt:hi\r\n",
        );
    }

    #[test]
    fn doubles_have_the_server_s_shortest_form() {
        let cases = [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-3.0, "-3"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (std::f64::consts::E, "2.718281828459045"),
            (1e15, "1000000000000000"),
            (4611686018427387904.0, "4611686018427387904"),
            (1e19, "1e+19"),
            (1.5e300, "1.5e+300"),
            (1e-5, "0.00001"),
            (1.5e-7, "1.5e-7"),
            (1.25e-5, "1.25e-5"),
            (123456.78, "123456.78"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
            (-f64::NAN, "nan"),
        ];
        for (value, text) in cases {
            let resp2 = format!("${}\r\n{text}\r\n", text.len());
            check(|out, version| double(out, version, value), &resp2, &format!(",{text}\r\n"));
            if value.is_finite() {
                assert_eq!(text.parse::<f64>().unwrap(), value);
            }
        }
    }
}
