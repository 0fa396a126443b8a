//! The vSphere client with a scripted server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a test fails by panicking, and is used by no other crate"
)]

mod attributes;
mod bounds;
mod events;
mod history;
mod orphans;
mod outage;
mod permissions;
mod power;
mod server;
mod sessions;
mod stream;
mod tasks;
