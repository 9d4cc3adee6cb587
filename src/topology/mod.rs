//! Room `topology`.
