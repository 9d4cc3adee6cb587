//! Room `command`.
