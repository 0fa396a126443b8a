//! Takes Kubernetes nodes with passthrough GPUs safely through ESXi host maintenance.
//!
//! ```text
//! vCenter ──WaitForUpdatesEx──▶ vsphere::updates ─┐                       ┌─▶ executor ─▶ vsphere::{power, relocate}
//!                                                 ├─▶ inventory ─▶ actor ─▶ maintenance::decide
//! Kubernetes ──watch──────────▶ cluster::watch ───┘   (a fold)   (1/node)  └─▶ executor ─▶ cluster::{node, drain}
//! ```
//!
//! One way, no circle. Streams carry facts in; the inventory folds them into one sight per node; each node's actor shows
//! its sight to the pure function [`maintenance::decide::decide`]; the decision is recorded on the Node, then performed
//! by [`executor`], the only place where effects run; what they bring about comes back as facts. The modules below stand in
//! the order in which the data flows; `tests/architecture.rs` holds who may use whom.

pub use haulout_core::{ids, inventory, keys, maintenance, status};
pub use haulout_vsphere as vsphere;

mod line;

pub mod fence;

pub mod cluster;

pub mod nodemaintenance;

pub mod actor;
pub mod executor;

mod admin;
pub mod app;
pub mod cli;
pub mod config;
pub mod telemetry;
