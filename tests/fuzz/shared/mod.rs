//! What the seeded loop of `cargo test` and the cargo-fuzz crate share: targets and their inputs.
//!
//! A target is a function from bytes to "holds" or "does not hold, because". Not here: running them
//! (`runner` here, libFuzzer there).

pub mod corpus;
pub mod plant;
pub mod random;
pub mod take;
pub mod targets;

/// Ends a check with what does not hold.
#[macro_export]
macro_rules! hold {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err(format!($($why)+));
        }
    };
}
