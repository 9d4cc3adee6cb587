//! Room proxy.

pub mod local;
pub mod session;
