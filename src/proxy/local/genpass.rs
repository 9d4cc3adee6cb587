//! ACL GENPASS: passwords that nobody can guess.
//!
//! Not here: the secret they are drawn from; it comes with `Identity`. The generator is the
//! ChaCha20 block function (RFC 8439, 2.3) under that secret; client id and a count make each
//! block unique.

use super::{World, errors};
use crate::command::Args;
use crate::proxy::session::Session;
use crate::resp::number::read_integer;
use crate::resp::write;

/// Bits of a password, unless asked for otherwise; and at most.
const BITS_DEFAULT: i64 = 256;
const BITS_MAX: i64 = 4096;

pub(super) fn answer(args: &Args, session: &mut Session, world: &World, out: &mut Vec<u8>) {
    let bits = match args.get(2).map(read_integer) {
        _ if args.len() > 3 => return errors::wrong_arity(out, "ACL|GENPASS"),
        None => BITS_DEFAULT,
        Some(None) => return errors::not_integer(out),
        Some(Some(bits @ 1..=BITS_MAX)) => bits,
        Some(Some(_)) => {
            let text = "ERR ACL GENPASS argument must be the number of bits for the output \
                        password, a positive number up to 4096";
            return errors::fixed(out, text);
        }
    };
    session.drawn = session.drawn.wrapping_add(1);
    let digits = bits.unsigned_abs().div_ceil(4) as usize;
    let mut password = Vec::with_capacity(digits + 128);
    for counter in 0.. {
        if password.len() >= digits {
            break;
        }
        let nonce = [session.drawn, session.id as u32, (session.id >> 32) as u32];
        let words = block(&key(world), counter, nonce);
        let bytes = words.iter().flat_map(|word| word.to_le_bytes());
        for byte in bytes {
            password.extend([byte >> 4, byte & 15].map(digit));
        }
    }
    password.truncate(digits);
    write::bulk(out, &password);
}

fn digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'a' + (value - 10) }
}

/// The secret, and the told random number on top: it costs nothing and helps if one is weak.
fn key(world: &World) -> [u32; 8] {
    let mut key = [0; 8];
    for (word, bytes) in key.iter_mut().zip(world.identity.secret.chunks_exact(4)) {
        *word = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
    }
    key[0] ^= world.random as u32;
    key[1] ^= (world.random >> 32) as u32;
    key
}

fn block(key: &[u32; 8], counter: u32, nonce: [u32; 3]) -> [u32; 16] {
    let mut start =
        [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    start[4..12].copy_from_slice(key);
    start[12] = counter;
    start[13..].copy_from_slice(&nonce);
    let mut state = start;
    for _ in 0..10 {
        for column in 0..4 {
            quarter(&mut state, [column, column + 4, column + 8, column + 12]);
        }
        for row in 0..4 {
            let places = [row, 4 + (row + 1) % 4, 8 + (row + 2) % 4, 12 + (row + 3) % 4];
            quarter(&mut state, places);
        }
    }
    for (word, first) in state.iter_mut().zip(start) {
        *word = word.wrapping_add(first);
    }
    state
}

fn quarter(state: &mut [u32; 16], [a, b, c, d]: [usize; 4]) {
    for (turns_d, turns_b) in [(16, 12), (8, 7)] {
        state[a] = state[a].wrapping_add(state[b]);
        state[d] = (state[d] ^ state[a]).rotate_left(turns_d);
        state[c] = state[c].wrapping_add(state[d]);
        state[b] = (state[b] ^ state[c]).rotate_left(turns_b);
    }
}

#[cfg(test)]
mod tests {
    use super::block;

    /// RFC 8439, 2.3.2.
    #[test]
    fn the_block_function_gives_the_standards_example() {
        let key =
            std::array::from_fn(|i| u32::from_le_bytes([0, 1, 2, 3].map(|b| b + 4 * i as u8)));
        let words = block(&key, 1, [0x0900_0000, 0x4a00_0000, 0]);
        assert_eq!(words[..4], [0xe4e7_f110, 0x1559_3bd1, 0x1fdd_0f50, 0xc471_20a3]);
        assert_eq!(words[12..], [0xd19c_12b5, 0xb94e_16de, 0xe883_d0cb, 0x4e3c_50a2]);
    }
}
