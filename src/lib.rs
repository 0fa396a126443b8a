//! Takes Kubernetes nodes with passthrough GPUs safely through ESXi host maintenance.
//!
//! ```text
//! vCenter ──WaitForUpdatesEx──▶ vsphere::updates ────┐                                  ┌─▶ vsphere::{power, relocate}
//!                                                    ├─▶ inventory ─▶ node actor ─▶ executor
//! Kubernetes ──watch──────────▶ kubernetes::watch ───┘                (1 per node)      └─▶ kubernetes::{node, drain}
//! ```
//!
//! Data flows one way. The inventory makes one snapshot per node of all facts. The node's actor calls the pure function
//! [`maintenance::decide::decide`]. The decision is recorded on the Node and then performed by [`controller::executor`], the
//! only place where effects run. Their results come back as facts.

// A test may list many cases.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

pub use haulout_controller as controller;
pub use haulout_controller::nodemaintenance;
pub use haulout_core::facts::{
    device_slice, foreign_maintenance, hook, known_pods, node_condition, node_guard, window,
};
pub use haulout_core::{ids, inventory, keys, maintenance, status};
pub use haulout_kubernetes as kubernetes;
pub use haulout_kubernetes::fence;
pub use haulout_telemetry as telemetry;
pub use haulout_vsphere as vsphere;

use haulout_http::{self as http, plan};

pub mod config;

pub mod sentinel;

pub mod app;

pub mod cli;

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
