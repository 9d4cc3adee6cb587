//! Faults against real clusters, with clients that check every reply: hazards and figures of
//! `research/reliability.md`.
//!
//! Not here: single cases (`tests/cases`), made-up networks and clocks (`tests/simulation`).
//! `RINGWAY_CHAOS_SECONDS`: how long the mixed runs last; `RINGWAY_CHAOS_SEED`: what they do.
#![allow(clippy::disallowed_methods)]

mod abuse;
mod bed;
mod broken;
mod circuit;
mod clock;
mod coverage;
mod crowd;
mod dns;
mod faults;
mod figures;
mod host;
mod link;
mod mixed;
mod model;
mod network;
mod outside;
mod plan;
mod reader;
mod relay;
mod reshard;
mod soak;
mod storm;
#[path = "../support/mod.rs"]
mod support;
mod tally;
mod words;
mod writer;
