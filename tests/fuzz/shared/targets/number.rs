//! Numbers of the protocol: what `i64` reads and would write the same, and nothing else. Not here: lengths (`reply`).

use ringway::resp::number::{append_integer, append_unsigned, read_integer};
use ringway::resp::reply::parse_integer;

use super::Target;
use crate::hold;
use crate::shared::plant::{self, Plant};
use crate::shared::random::Random;

pub const TARGET: Target = Target {
    name: "number",
    property: "a text is a number if and only if `i64` reads it and writes it the same",
    check,
    make,
    memory: (16 << 10, 8),
    executions: 4_000_000,
};

fn check(text: &[u8]) -> Result<(), String> {
    let parsed: Option<i64> = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let expected = parsed.filter(|number| number.to_string().as_bytes() == text);
    let got = subject(text);
    hold!(got == expected, "read {got:?}, not {expected:?}");
    let framed = [b":", text, b"\r\n"].concat();
    hold!(parse_integer(&framed) == expected, "as a reply {:?}", parse_integer(&framed));
    if let Some(number) = expected {
        let (mut signed, mut unsigned) = (Vec::new(), Vec::new());
        append_integer(&mut signed, number);
        hold!(signed == text, "written {signed:?}");
        append_unsigned(&mut unsigned, number as u64);
        let plain = (number as u64).to_string();
        hold!(unsigned == plain.as_bytes(), "written {unsigned:?}, not {plain}");
    }
    Ok(())
}

fn subject(text: &[u8]) -> Option<i64> {
    match text {
        [b'+', rest @ ..] if plant::is(Plant::TakePlus) => read_integer(rest),
        _ if plant::is(Plant::WrapNumber)
            && text.len() > 18
            && text.iter().all(u8::is_ascii_digit) =>
        {
            let add =
                |sum: i64, digit: &u8| sum.wrapping_mul(10).wrapping_add(i64::from(digit - b'0'));
            Some(text.iter().fold(0, add))
        }
        _ => read_integer(text),
    }
}

fn make(random: &mut Random) -> Vec<u8> {
    let mut text = random.number_text();
    if random.one_in(3) {
        random.mutate(&mut text, &[]);
    }
    text
}
