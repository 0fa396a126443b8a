//! The chart, checked with the tools that install it, and by the behaviour of the program with it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test fails by panicking, and is used by no other crate"
)]

#[path = "chart/helm.rs"]
mod helm;

#[path = "chart/adversary.rs"]
mod adversary;
#[path = "chart/alerts.rs"]
mod alerts;
#[path = "chart/examples.rs"]
mod examples;
#[path = "chart/hosted.rs"]
mod hosted;
#[path = "chart/install.rs"]
mod install;
#[path = "chart/kubelets.rs"]
mod kubelets;
#[path = "chart/pods.rs"]
mod pods;
#[path = "chart/prometheus.rs"]
mod prometheus;
#[path = "chart/registry.rs"]
mod registry;
#[path = "chart/release.rs"]
mod release;
#[path = "chart/requesters.rs"]
mod requesters;
#[path = "chart/schema.rs"]
mod schema;
#[path = "chart/schemas.rs"]
mod schemas;
#[path = "chart/sentinel.rs"]
mod sentinel;
#[path = "chart/settings.rs"]
mod settings;
#[path = "chart/several_releases.rs"]
mod several_releases;
#[path = "chart/valid.rs"]
mod valid;
#[path = "chart/values.rs"]
mod values;
