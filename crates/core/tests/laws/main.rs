//! The laws of the decision, held against every combination of phase and facts, and against random histories.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    unreachable_pub,
    reason = "a test fails by panicking, asks about its one case, and is used by no other crate"
)]

mod cases;
mod enumerate;
mod evacuation;
mod facts;
mod gpu_counts;
mod guards;
mod guest;
mod histories;
mod hooks;
mod model;
mod rounds;
mod scheduled;
mod settings;
mod static_devices;
mod tables;
mod vmotion;
mod volumes;
