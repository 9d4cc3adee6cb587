//! Glob patterns as redis-server matches them (`stringmatchlen`, util.c).
//!
//! Not here: deciding that a pattern can only match one slot. Time is at most pattern times text:
//! the server's own recursion is exponential in the number of stars (CVE-2022-36021). Both may be
//! megabytes, so that whoever asks for others says how many steps it may take.

/// Steps that take some milliseconds.
pub const STEPS_MAX: u64 = 1 << 21;

/// Whether the whole of `text` matches, for short texts: at most `STEPS_MAX`. `fold`: ASCII letters
/// match in any case.
pub fn matches(pattern: &[u8], text: &[u8], fold: bool) -> bool {
    matches_within(pattern, text, fold, &mut STEPS_MAX.clone()) == Some(true)
}

/// The same; what it takes is taken off `steps`. `None`: they were not enough.
pub fn matches_within(pattern: &[u8], text: &[u8], fold: bool, steps: &mut u64) -> Option<bool> {
    let (mut at, mut place) = (0, 0);
    // After the latest star: where the pattern goes on, and the first byte it did not yet eat.
    let mut star: Option<(usize, usize)> = None;
    while let Some(&byte) = text.get(place) {
        spend(steps, 1)?;
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, place));
            continue;
        }
        if let Some(next) = step(pattern, at, byte, fold, steps)? {
            at = next;
            place += 1;
            continue;
        }
        // Only the latest star needs to be tried again: the earlier ones took the least they can.
        let Some((after, eaten)) = star else { return Some(false) };
        at = after;
        place = eaten + 1;
        star = Some((after, place));
    }
    let rest = pattern.get(at..).unwrap_or_default();
    // They are looked at quickly, but there may be millions, and as many texts.
    spend(steps, rest.len() as u64 / 8)?;
    Some(rest.iter().all(|&byte| byte == b'*'))
}

/// `None`: so many are not left, and none from then on.
fn spend(steps: &mut u64, count: u64) -> Option<()> {
    let left = steps.checked_sub(count);
    *steps = left.unwrap_or(0);
    left.map(drop)
}

/// Matches one byte against the pattern's element at `at`; where the next element begins, if it
/// does. `None`: no steps are left.
#[allow(clippy::option_option, reason = "no steps left, no match, a match")]
fn step(pattern: &[u8], at: usize, byte: u8, fold: bool, steps: &mut u64) -> Option<Option<usize>> {
    let Some(&element) = pattern.get(at) else { return Some(None) };
    let (literal, next) = match element {
        b'?' => return Some(Some(at + 1)),
        b'[' => {
            // Not beyond what may be looked at.
            let most = usize::try_from(*steps).map_or(usize::MAX, |steps| at.saturating_add(steps));
            let seen = pattern.get(..most).unwrap_or(pattern);
            let (next, found) = class(seen, at + 1, byte, fold);
            spend(steps, (next - at) as u64 + u64::from(next >= most))?;
            return Some(found.then_some(next));
        }
        b'\\' => match pattern.get(at + 1) {
            Some(&escaped) => (escaped, at + 2),
            None => (b'\\', at + 1),
        },
        literal => (literal, at + 1),
    };
    Some((lower(literal, fold) == lower(byte, fold)).then_some(next))
}

/// `[abc]`, `[a-z]`, `[^a]`; `at` is behind the bracket. One that does not close ends with the
/// pattern. Where it ends, and whether the byte is one of it.
fn class(pattern: &[u8], mut at: usize, byte: u8, fold: bool) -> (usize, bool) {
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
    (at, found != negated)
}

fn lower(byte: u8, fold: bool) -> u8 {
    if fold { byte.to_ascii_lowercase() } else { byte }
}

#[cfg(test)]
mod tests {
    use super::{STEPS_MAX, matches, matches_within};

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
    fn steps_are_counted_and_not_taken_when_there_are_none() {
        let mut steps = 10;
        assert_eq!(matches_within(b"a*c", b"abc", false, &mut steps), Some(true));
        assert_eq!(steps, 6);
        assert_eq!(matches_within(b"a*c", b"abbbbbbbc", false, &mut steps), None);
        // A long class, and each place of a text tried with a long beginning.
        for (pattern, text) in [
            (format!("*[{}]x", "a".repeat(1 << 22)), "b".repeat(30)),
            (format!("*{}b", "a".repeat(30_000)), "a".repeat(200_000)),
            ("*".repeat(1 << 24), "b".into()),
            (format!("b{}", "*".repeat(1 << 25)), "b".into()),
        ] {
            let mut steps = STEPS_MAX;
            let found = matches_within(pattern.as_bytes(), text.as_bytes(), false, &mut steps);
            assert_eq!((found, steps), (None, 0));
        }
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let pattern = "a*".repeat(200) + "b";
        check(&pattern, &"a".repeat(5000), false);
    }
}
