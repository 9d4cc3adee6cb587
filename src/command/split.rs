//! How a request of the classes C, D and E may be cut: which words go with a key, which with every
//! part.
//!
//! Not here: the cutting and the merging (`proxy/split.rs`).

use super::keys::Args;
use super::{Class, Command};

/// The words of a request that may be cut by slot. Key `n` is word `first + n * words_per_key`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct SplitShape {
    /// Word of the first key.
    pub first: usize,
    /// 1 for MGET, 2 where a value follows each key.
    pub words_per_key: usize,
    pub keys: usize,
    /// Word 1 of each part is its number of keys (MSETEX).
    pub counted: bool,
    /// From this word on: what every part repeats (options of MSETEX, path of JSON.MGET).
    pub tail: usize,
}

/// `keys`: what `keys_of` found, without error. `None`: must stay in one piece, as MSETEX with NX
/// or XX.
pub fn split_shape(command: &Command, args: &Args, keys: &[u32]) -> Option<SplitShape> {
    let splits = matches!(command.class, Class::SplitValues | Class::SplitCount | Class::SplitAll);
    if !splits || keys.is_empty() {
        return None;
    }
    let counted = command.name == "MSETEX";
    let shape = SplitShape {
        first: if counted { 2 } else { 1 },
        words_per_key: if command.class == Class::SplitAll { 2 } else { 1 },
        keys: keys.len(),
        counted,
        tail: 0,
    };
    let tail = shape.first + shape.words_per_key * shape.keys;
    let conditional = counted && has_condition(args, tail);
    (!conditional).then_some(SplitShape { tail, ..shape })
}

/// Options of MSETEX: NX | XX, and EX | PX | EXAT | PXAT with a number, KEEPTTL.
fn has_condition(args: &Args, tail: usize) -> bool {
    // Option values are numbers, so any NX is the option.
    (tail..args.len()).any(|at| args.is(at, "NX") || args.is(at, "XX"))
}
