//! Room `metrics`.
