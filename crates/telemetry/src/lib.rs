//! Telemetry. It formats the story and the status of nodes, and decides nothing.

// A test may list many cases.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

pub mod client;
pub mod events;
pub mod link;
pub mod log;
pub mod metrics;
pub mod misconfigured;
pub mod notify;
pub mod silences;
pub mod sink;
pub mod trace;
mod url_file;
pub mod vcenter_attribute;
pub mod vcenter_events;
