//! One of the targets of `../shared`, chosen by the name of the program, fed by libFuzzer.
//!
//! Not here: the targets; the seeded loop (`cargo test --test fuzz`).

#![no_main]

#[allow(dead_code, unused_imports, reason = "the seeded loop needs more of it")]
#[path = "../shared/mod.rs"]
mod shared;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let name = env!("CARGO_BIN_NAME");
    let target = shared::targets::find(name).expect("a target of this name");
    if let Err(why) = (target.check)(input) {
        panic!("what must hold is that {}.\n{why}", target.property);
    }
});
