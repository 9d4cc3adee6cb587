//! Room proxy.
