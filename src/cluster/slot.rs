//! From a key to its slot: hash tag, CRC16, modulo 16,384.
//!
//! Not here: which argument is a key (`command`), who owns a slot (`map`).

use std::sync::LazyLock;

/// Slots of a cluster (redis-server: `CLUSTER_SLOTS`, cluster.h).
pub const SLOTS: usize = 16384;

/// The slot of a key, 0..16384: CRC16 over its hash tag.
#[inline]
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) & (SLOTS as u16 - 1)
}

/// The part of a key that is hashed: what stands between its first `{` and the first `}` after
/// that, if it is not empty; else the whole key (redis-server: `keyHashSlot`, cluster.c).
#[inline]
pub fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = find_brace(key) else { return key };
    let tail = key.get(open + 1..).unwrap_or_default();
    match memchr::memchr(b'}', tail) {
        Some(len @ 1..) => tail.get(..len).unwrap_or(key),
        _ => key,
    }
}

/// A hash tag (of two bytes, no braces) whose keys are in this slot.
pub fn tag_of_slot(slot: u16) -> [u8; 2] {
    static TAGS: LazyLock<Vec<[u8; 2]>> = LazyLock::new(|| {
        let mut tags = vec![[0; 2]; SLOTS];
        // Each slot has four; one that can be read is taken where there is one.
        let plain = |tag: &[u8; 2]| tag.iter().all(u8::is_ascii_alphanumeric);
        for tag in (0..=u16::MAX).map(u16::to_be_bytes) {
            let place = &mut tags[usize::from(crc16(&tag)) % SLOTS];
            if !tag.iter().any(|byte| b"{}".contains(byte)) && (*place == [0; 2] || plain(&tag)) {
                *place = tag;
            }
        }
        tags
    });
    TAGS.get(usize::from(slot)).copied().unwrap_or_default()
}

/// Position of the first `{`. Eight bytes at a time: most keys are short and have none, and a call
/// into `memchr` costs them more than this whole function.
#[inline]
fn find_brace(key: &[u8]) -> Option<usize> {
    const LONG: usize = 64;
    const OPEN: u64 = u64::from_ne_bytes([b'{'; 8]);
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    if key.len() > LONG {
        return memchr::memchr(b'{', key);
    }
    let mut rest = key;
    while let Some((word, tail)) = rest.split_first_chunk::<8>() {
        let zeroed = u64::from_le_bytes(*word) ^ OPEN;
        // The lowest set bit marks the first zero byte exactly; higher ones may be borrow.
        let hits = zeroed.wrapping_sub(LOW) & !zeroed & HIGH;
        if hits != 0 {
            return Some(key.len() - rest.len() + hits.trailing_zeros() as usize / 8);
        }
        rest = tail;
    }
    rest.iter().position(|&byte| byte == b'{').map(|at| key.len() - rest.len() + at)
}

/// CRC16 in the XMODEM form: polynomial 0x1021, start 0, nothing reflected
/// (redis-server: crc16.c).
#[inline]
pub fn crc16(bytes: &[u8]) -> u16 {
    let mut rest = bytes;
    let mut crc = 0u16;
    while let Some((&[a, b, c, d, e, f, g, h], tail)) = rest.split_first_chunk::<8>() {
        rest = tail;
        let [high, low] = crc.to_be_bytes();
        // The six that do not wait for the last step come first, as one tree.
        let free = (at(5, c) ^ at(4, d)) ^ (at(3, e) ^ at(2, f)) ^ (at(1, g) ^ at(0, h));
        crc = free ^ (at(7, a ^ high) ^ at(6, b ^ low));
    }
    if let Some((&[a, b, c, d], tail)) = rest.split_first_chunk::<4>() {
        let [high, low] = crc.to_be_bytes();
        crc = at(3, a ^ high) ^ at(2, b ^ low) ^ at(1, c) ^ at(0, d);
        rest = tail;
    }
    for &byte in rest {
        crc = (crc << 8) ^ at(0, byte ^ (crc >> 8) as u8);
    }
    crc
}

/// `TABLES[zeros][byte]`: the CRC16 of `byte` followed by `zeros` zero bytes. 4 KiB.
static TABLES: [[u16; 256]; 8] = build_tables();

#[inline(always)]
fn at(zeros: usize, byte: u8) -> u16 {
    // `zeros` is a literal below 8 at every call: no bounds check remains.
    TABLES[zeros][byte as usize]
}

const fn build_tables() -> [[u16; 256]; 8] {
    const POLYNOMIAL: u16 = 0x1021;
    let mut tables = [[0u16; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut zeros = 0;
        while zeros < 8 {
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 != 0 { (crc << 1) ^ POLYNOMIAL } else { crc << 1 };
                bit += 1;
            }
            tables[zeros][byte] = crc;
            zeros += 1;
        }
        byte += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_its_tag() {
        for slot in 0..SLOTS as u16 {
            let key = [b"{".as_slice(), &tag_of_slot(slot), b"}x"].concat();
            assert_eq!(slot_of(&key), slot, "{key:?}");
        }
    }

    #[track_caller]
    fn check(key: &str, tag: &str, slot: u16) {
        assert_eq!(hash_tag(key.as_bytes()), tag.as_bytes(), "tag of {key:?}");
        assert_eq!(slot_of(key.as_bytes()), slot, "slot of {key:?}");
    }

    #[test]
    fn keys_with_braces_hash_as_the_server_does() {
        check("{}", "{}", 15257);
        check("{}x", "{}x", 10595);
        check("a{b}{c}", "b", 3300);
        check("b", "b", 3300);
        check("foo{}{bar}", "foo{}{bar}", 8363);
        check("foo{{bar}}zap", "{bar", 4015);
        check("foo{bar}{zap}", "bar", 5061);
        check("}{abc", "}{abc", 15680);
        check("A}B{C", "A}B{C", 7939);
        check("{", "{", 4092);
        check("", "", 0);
        check("123456789", "123456789", 0x31C3 & 0x3FFF);
        check("foo", "foo", 12182);
    }

    #[test]
    fn crc16_by_tables_equals_crc16_by_bits_at_every_length() {
        let bytes: Vec<u8> = (0..200u32).map(|i| (i * 167 + 13) as u8).collect();
        for len in 0..bytes.len() {
            assert_eq!(crc16(&bytes[..len]), crc16_by_bits(&bytes[..len]), "length {len}");
        }
    }

    #[test]
    fn hash_tag_is_the_plain_search_at_every_place_and_length() {
        for len in 0..100usize {
            for open in 0..len {
                for (close, fill) in [(len - 1, b'z'), (open + 1, b'|'), (open + 3, 0x7a)] {
                    let mut key = vec![fill; len];
                    key[open] = b'{';
                    if let Some(place) = key.get_mut(close).filter(|_| close != open) {
                        *place = b'}';
                    }
                    assert_eq!(hash_tag(&key), plain_tag(&key), "{len} {open} {close}");
                }
            }
        }
    }

    fn plain_tag(key: &[u8]) -> &[u8] {
        let Some(open) = key.iter().position(|&b| b == b'{') else { return key };
        match key[open + 1..].iter().position(|&b| b == b'}') {
            None | Some(0) => key,
            Some(len) => &key[open + 1..open + 1 + len],
        }
    }

    fn crc16_by_bits(bytes: &[u8]) -> u16 {
        bytes.iter().fold(0, |crc, &byte| {
            (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
                if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 }
            })
        })
    }
}
