//! MOVED and ASK: what they name is a slot and a place, or they are not believed. Places, hash tags
//! and slots besides.
//!
//! Not here: what is done about a redirect (`tests/simulation`).

use ringway::cluster::{AddressMap, Endpoint, hash_tag, redirect_endpoint, slot_of};
use ringway::resp::reply::parse_redirect;

use super::Target;
use crate::hold;
use crate::shared::plant::{self, Plant};
use crate::shared::random::Random;

pub const TARGET: Target = Target {
    name: "redirect",
    property: "a redirect is `-MOVED slot place` or `-ASK slot place` with a slot below 16,384, by a \
               reading that splits at blanks; a place reads back as written; slots are CRC16's",
    check,
    make,
    memory: (32 << 10, 32),
    executions: 2_000_000,
};

const ASKED: &str = "10.0.0.9";

fn check(line: &[u8]) -> Result<(), String> {
    let got = match parse_redirect(line) {
        None if plant::is(Plant::AnySlot) => line
            .strip_prefix(b"-MOVED 16384 ")
            .and_then(|place| place.split(|byte| *byte == b'\r').next())
            .map(|place| (16384, place)),
        other => other,
    };
    let told = model(line);
    hold!(got == told, "read {got:?}; by splitting {told:?}");
    if let Some((_, place)) = got {
        let endpoint = redirect_endpoint(place, ASKED);
        if let Some(endpoint) = &endpoint {
            sound(endpoint)?;
            let host = String::from_utf8_lossy(place);
            let host = host.rsplit_once(':').map_or("", |(host, _)| host);
            let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let expected = if host.is_empty() { ASKED } else { bare.unwrap_or(host) };
            hold!(&*endpoint.host == expected, "{endpoint} of {host:?}");
        }
    }
    slots(line)?;
    if let Ok(text) = std::str::from_utf8(line) {
        let (from, to) = text.split_once(' ').unwrap_or((text, ""));
        if let (Ok(map), Some(place)) = (AddressMap::new([(from, to)]), Endpoint::parse(line)) {
            sound(&map.apply(&place))?;
        }
    }
    Ok(())
}

/// Whatever came, a place that is believed can be written and read again.
pub fn sound(endpoint: &Endpoint) -> Result<(), String> {
    let text = endpoint.to_string();
    let again = Endpoint::parse(text.as_bytes());
    hold!(again.as_ref() == Some(endpoint), "{text:?} reads back as {again:?}");
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"\"',@/".contains(&byte);
    hold!(text.bytes().all(plain) && endpoint.port > 0, "a place {text:?}");
    Ok(())
}

fn model(line: &[u8]) -> Option<(u16, &[u8])> {
    let end = line.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(line.len());
    let mut words = line[..end].split(|byte| *byte == b' ');
    let name = words.next()?;
    (name == b"-MOVED" || name == b"-ASK").then_some(())?;
    let text = std::str::from_utf8(words.next()?).ok()?;
    let slot: u16 = text.parse().ok().filter(|slot: &u16| slot.to_string() == text)?;
    let place = words.next()?;
    (slot < 16384 && place.contains(&b':')).then_some((slot, place))
}

fn slots(key: &[u8]) -> Result<(), String> {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let length = key[open + 1..].iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &key[open + 1..open + 1 + length])
    });
    let tag = tag.unwrap_or(key);
    hold!(hash_tag(key) == tag, "the tag of {:?}", String::from_utf8_lossy(key));
    // CRC16/XMODEM, bit by bit.
    let crc = tag.iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    });
    hold!(slot_of(key) == crc % 16384, "slot {} by bits {}", slot_of(key), crc % 16384);
    Ok(())
}

fn make(random: &mut Random) -> Vec<u8> {
    const PLACES: [&str; 14] = [
        "127.0.0.1:7001",
        ":7001",
        "?:1",
        "[::1]:1",
        "::1:6379",
        "fe80::1%eth0:1",
        "host:",
        "a:0",
        "a:65535",
        "a:65536",
        "a b:1",
        "n-1.svc.local:1",
        "no-colon",
        "[a]:1",
    ];
    let mut line = match random.below(6) {
        0 => random.pick(&PLACES).as_bytes().to_vec(),
        1 => format!("{} {}", random.pick(&PLACES), random.pick(&PLACES)).into_bytes(),
        2 => random.text(90),
        _ => {
            let name = random.pick(&["-MOVED ", "-ASK ", "-MOVED", "-ERR ", "!MOVED "]);
            let slot = match random.below(4) {
                0 => random.number_text(),
                1 => random.pick(&["0", "16383", "16384", "-1", "65536", "00"]).as_bytes().to_vec(),
                _ => random.below(16384).to_string().into_bytes(),
            };
            let place = random.pick(&PLACES).as_bytes();
            [name.as_bytes(), &slot, b" ", place, random.pick(&[&b"\r\n"[..], b"", b" x\r\n"])]
                .concat()
        }
    };
    if random.one_in(3) {
        random.mutate(&mut line, &[b"{}", b"-MOVED 1 a:1"]);
    }
    line
}
