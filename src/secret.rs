//! A password that cannot be printed by accident.
//!
//! Not here: comparing it with what a client sent (`proxy`, in constant time).

use std::fmt;

/// The bytes of a password. Neither `Debug` nor any message of this crate shows them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<[u8]>);

impl Secret {
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Secret {
        Secret(bytes.into())
    }

    /// The password itself. For the login only: never for a message.
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn secret_in_a_debug_print_shows_stars() {
        assert_eq!(format!("{:?}", Some(Secret::new(*b"canary"))), "Some(***)");
    }
}
