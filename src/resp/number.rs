//! Decimal numbers as the protocol writes them: read strictly, written without a detour through
//! `format!`.
//!
//! Not here: doubles (`write`).

/// Digits of the longest `u64`, also characters of the longest `i64`.
const CHARACTERS_MAX: usize = 20;

/// A whole number, exactly as redis-server's `string2ll` reads it: no blank, no `+`, no leading
/// zero, no `-0`. `None` for anything else and for what an `i64` does not hold.
#[inline]
pub fn read_integer(text: &[u8]) -> Option<i64> {
    if text.len() > CHARACTERS_MAX {
        return None;
    }
    let (negative, digits) = match text {
        [b'0'] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let (first, others) = digits.split_first()?;
    if !matches!(first, b'1'..=b'9') {
        return None;
    }
    let mut magnitude = u64::from(first - b'0');
    for byte in others {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// Appends `value` in decimal.
#[inline]
pub fn append_integer(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    append_unsigned(out, value.unsigned_abs());
}

/// Appends `value` in decimal.
#[inline]
pub fn append_unsigned(out: &mut Vec<u8>, value: u64) {
    let (digits, start) = digits_of(value);
    out.extend_from_slice(digits.get(start..).unwrap_or_default());
}

/// Appends a type byte, a length and a line end: `$64\r\n`.
#[inline]
pub(super) fn append_header(out: &mut Vec<u8>, kind: u8, length: usize) {
    match length {
        0..10 => out.extend_from_slice(&[kind, b'0' + length as u8, b'\r', b'\n']),
        10..100 => {
            let (tens, ones) = (length as u8 / 10, length as u8 % 10);
            out.extend_from_slice(&[kind, b'0' + tens, b'0' + ones, b'\r', b'\n']);
        }
        _ => {
            out.push(kind);
            append_unsigned(out, length as u64);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// A length of one to four digits and its line end at the front of `bytes`: its value, and the
/// bytes that it takes. `None` does not mean wrong, only not of that short form: the caller then
/// looks slowly.
///
/// HOT: most have one digit or two, and are told by one load.
#[inline(always)]
pub(super) fn short_length(bytes: &[u8]) -> Option<(usize, usize)> {
    const LINE_END: u32 = u16::from_le_bytes(*b"\r\n") as u32;
    let Some(word) = bytes.first_chunk::<4>() else { return longer_length(bytes) };
    let digit = |byte: u8| usize::from(byte.wrapping_sub(b'0'));
    let (first, second) = (digit(word[0]), digit(word[1]));
    let word = u32::from_le_bytes(*word);
    if (word >> 8) & 0xffff == LINE_END {
        return (first < 10).then_some((first, 3));
    }
    if word >> 16 == LINE_END {
        let usual = second < 10 && (1..10).contains(&first);
        return usual.then_some((first * 10 + second, 4));
    }
    longer_length(bytes)
}

/// The same for three and four digits, and where nothing follows.
#[inline]
fn longer_length(bytes: &[u8]) -> Option<(usize, usize)> {
    let digit = |byte: u8| usize::from(byte.wrapping_sub(b'0'));
    let (value, taken, lowest) = match *bytes {
        [a, b'\r', b'\n'] => (digit(a), 3, 0),
        [a, b, c, b'\r', b'\n', ..] if digit(b) < 10 && digit(c) < 10 => {
            (digit(a) * 100 + digit(b) * 10 + digit(c), 5, 1)
        }
        [a, b, c, d, b'\r', b'\n', ..] if digit(b) < 10 && digit(c) < 10 && digit(d) < 10 => {
            (digit(a) * 1000 + digit(b) * 100 + digit(c) * 10 + digit(d), 6, 1)
        }
        _ => return None,
    };
    let first = bytes.first().map_or(255, |byte| digit(*byte));
    (lowest..10).contains(&first).then_some((value, taken))
}

/// The decimal digits of `value`, at the end of a buffer, and where they start in it.
#[inline]
fn digits_of(mut value: u64) -> ([u8; CHARACTERS_MAX], usize) {
    let mut digits = [0; CHARACTERS_MAX];
    let mut start = CHARACTERS_MAX;
    for place in digits.iter_mut().rev() {
        *place = b'0' + (value % 10) as u8;
        value /= 10;
        start -= 1;
        if value == 0 {
            break;
        }
    }
    (digits, start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<i64>) {
        assert_eq!(read_integer(text.as_bytes()), expected, "{text:?}");
        if let Some(value) = expected {
            let mut out = Vec::new();
            append_integer(&mut out, value);
            assert_eq!(out, text.as_bytes());
        }
    }

    #[test]
    fn numbers_are_read_as_string2ll_reads_them() {
        for value in [0, 1, -1, 9, 10, 99, 100, 12345, -12345, i64::MAX, i64::MIN] {
            check(&value.to_string(), Some(value));
        }
        for text in [
            "", "-", "+1", "-0", "00", "01", "-01", " 1", "1 ", "1\r", "0x1", "1a", "a", "--1",
            "1-",
        ] {
            check(text, None);
        }
        check("9223372036854775808", None);
        check("-9223372036854775809", None);
        check("18446744073709551615", None);
        check("18446744073709551616", None);
        check("99999999999999999999", None);
        check("100000000000000000000", None);
        check("111111111111111111111", None);
    }

    #[test]
    fn a_short_length_is_the_strict_number_or_left_to_the_slow_way() {
        for text in ["0", "7", "10", "64", "100", "999", "1000", "9999"] {
            let alone = format!("{text}\r\n");
            let expected = (text.parse().unwrap(), text.len() + 2);
            assert_eq!(short_length(alone.as_bytes()), Some(expected));
            let line = format!("{text}\r\nrest");
            assert_eq!(short_length(line.as_bytes()), Some(expected));
            for cut in 0..text.len() + 2 {
                assert_eq!(short_length(&line.as_bytes()[..cut]), None);
            }
        }
        for text in
            ["", "-1", "+1", "01", "00", "007", "0123", "1a", ":", "/", "10000", " 1", "\r", "1\r1"]
        {
            assert_eq!(short_length(format!("{text}\r\n").as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn headers_hold_any_length() {
        for length in [0, 9, 10, 99, 100, 65536, usize::MAX] {
            let mut out = b"x".to_vec();
            append_header(&mut out, b'$', length);
            assert_eq!(out, format!("x${length}\r\n").into_bytes());
        }
    }
}
