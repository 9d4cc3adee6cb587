//! Ringway: a Redis/Valkey Cluster proxy built for io_uring. `src/README.md` is the map.
//!
//! The `mod` lines below are in reading order. Not here: the program's start (`main.rs`).

pub mod limits;

pub mod secret;

pub mod resp;

pub mod command;

pub mod cluster;

pub mod config;

pub mod metrics;

pub mod log;

pub mod proxy;

#[allow(unsafe_code, reason = "the kernel's interface: the only room that may")]
pub mod ring;

pub mod handover;

pub mod topology;

pub mod reactor;

pub mod watchdog;

pub mod ready;

pub mod admin;

pub mod notify;

pub mod serve;

pub mod process;

pub mod check;

pub mod top;
