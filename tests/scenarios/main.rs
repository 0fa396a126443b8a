//! Stories through the real binary, against a real kube-apiserver and a vCenter that hangs as a real one does.
//!
//! Each says who does what and what must be seen. They run side by side in one cluster, each on a stage of its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::wildcard_enum_match_arm,
    missing_docs,
    reason = "a test fails by panicking, and asks about the one case it is about"
)]

mod story;

mod adopt;
mod boot;
mod browser;
mod cancel;
mod clocks;
mod collectors;
mod drain;
mod events;
mod hosts;
mod in_flight;
mod judge;
mod kills;
mod kubectl;
mod kubevirt;
mod leadership;
mod main_job;
mod metrics;
mod page;
mod people;
mod pictures;
mod placement;
mod proof;
mod replicas;
mod requests;
mod restarts;
mod session;
mod telling;
mod traces;
mod untrusted;
