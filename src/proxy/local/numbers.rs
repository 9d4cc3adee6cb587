//! Numbers in arguments, read as strictly as redis-server does.
//!
//! Not here: lengths in the protocol (`resp`).

/// `string2ll` (redis-server util.c): no sign but a minus, no leading zero, no space, no `-0`.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !plain {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::integer;

    #[track_caller]
    fn check(text: &str, expected: Option<i64>) {
        assert_eq!(integer(text.as_bytes()), expected, "{text:?}");
    }

    #[test]
    fn numbers_are_read_as_the_server_reads_them() {
        check("0", Some(0));
        check("-1", Some(-1));
        check("9223372036854775807", Some(i64::MAX));
        check("-9223372036854775808", Some(i64::MIN));
        check("9223372036854775808", None);
        check("", None);
        check("-", None);
        check("-0", None);
        check("+1", None);
        check("01", None);
        check(" 1", None);
        check("1.0", None);
        check("1\0", None);
    }
}
