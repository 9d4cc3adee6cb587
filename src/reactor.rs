//! Room `reactor`.
