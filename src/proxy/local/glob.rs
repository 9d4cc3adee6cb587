//! Glob patterns as redis-server matches them (`stringmatchlen`, util.c).
//!
//! Not here: deciding that a pattern can only match one slot. Time is at most pattern times text:
//! the server's own recursion is exponential in the number of stars (CVE-2022-36021).

/// Whether the whole of `text` matches. `fold`: ASCII letters match in any case.
pub fn matches(pattern: &[u8], text: &[u8], fold: bool) -> bool {
    let (mut at, mut place) = (0, 0);
    // After the latest star: where the pattern goes on, and the first byte it did not yet eat.
    let mut star: Option<(usize, usize)> = None;
    while let Some(&byte) = text.get(place) {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, place));
            continue;
        }
        if let Some(next) = step(pattern, at, byte, fold) {
            at = next;
            place += 1;
            continue;
        }
        // Only the latest star needs to be tried again: the earlier ones took the least they can.
        let Some((after, eaten)) = star else { return false };
        at = after;
        place = eaten + 1;
        star = Some((after, place));
    }
    pattern.get(at..).unwrap_or_default().iter().all(|&byte| byte == b'*')
}

/// Matches one byte against the pattern's element at `at`; where the next element begins.
fn step(pattern: &[u8], at: usize, byte: u8, fold: bool) -> Option<usize> {
    let (literal, next) = match *pattern.get(at)? {
        b'?' => return Some(at + 1),
        b'[' => return class(pattern, at + 1, byte, fold),
        b'\\' => match pattern.get(at + 1) {
            Some(&escaped) => (escaped, at + 2),
            None => (b'\\', at + 1),
        },
        literal => (literal, at + 1),
    };
    (lower(literal, fold) == lower(byte, fold)).then_some(next)
}

/// `[abc]`, `[a-z]`, `[^a]`; `at` is behind the bracket. One that does not close ends with the
/// pattern.
fn class(pattern: &[u8], mut at: usize, byte: u8, fold: bool) -> Option<usize> {
    let negated = pattern.get(at) == Some(&b'^');
    if negated {
        at += 1;
    }
    let byte = lower(byte, fold);
    let mut found = false;
    loop {
        match *pattern.get(at..).unwrap_or_default() {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                found |= lower(escaped, fold) == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                let (from, to) = (lower(from, fold), lower(to, fold));
                found |= (from.min(to)..=from.max(to)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= lower(literal, fold) == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

fn lower(byte: u8, fold: bool) -> u8 {
    if fold { byte.to_ascii_lowercase() } else { byte }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[track_caller]
    fn check(pattern: &str, text: &str, expected: bool) {
        let found = matches(pattern.as_bytes(), text.as_bytes(), false);
        assert_eq!(found, expected, "{pattern:?} against {text:?}");
    }

    #[test]
    fn patterns_match_as_the_server_matches_them() {
        check("", "", true);
        check("", "a", false);
        check("*", "", true);
        check("**", "abc", true);
        check("a*c", "abbbc", true);
        check("a*c", "abbb", false);
        check("*b*b", "abab", true);
        check("h?llo", "hello", true);
        check("h?llo", "hllo", false);
        check("h[ae]llo", "hallo", true);
        check("h[ae]llo", "hillo", false);
        check("h[^e]llo", "hallo", true);
        check("h[^e]llo", "hello", false);
        check("h[a-c]llo", "hbllo", true);
        check("h[c-a]llo", "hbllo", true);
        check("h[\\]]llo", "h]llo", true);
        check("h[ab", "ha", true);
        check("h[ab", "hab", false);
        check("h\\*llo", "h*llo", true);
        check("h\\*llo", "hello", false);
        check("a\\", "a\\", true);
        check("[]", "a", false);
        check("[^]", "a", true);
    }

    #[test]
    fn case_counts_unless_folded() {
        check("SAVE", "save", false);
        assert!(matches(b"SAVE", b"save", true));
        assert!(matches(b"[A-C]x", b"bX", true));
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let pattern = "a*".repeat(200) + "b";
        check(&pattern, &"a".repeat(5000), false);
    }
}
