//! All calls to Kubernetes, and the write fence that each record and effect passes.
//!
//! ```text
//! kube-apiserver ──▶ watch ─▶ facts ─▶ KubernetesUpdate  (to the inventory)
//! kube-apiserver ◀── node: one PATCH per transition       (from the executor)
//! kube-apiserver ◀── drain: LIST ─▶ pods ─▶ evictions     (from the executor)
//! kube-apiserver ◀── events: Events and conditions        (from telemetry)
//! kube-apiserver ──▶ reads, rights, port_forward          (for the subcommands)
//! kube-apiserver ◀─▶ lease: leader election               (opens and closes the write fence)
//! ```

// A test may list many cases.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

use haulout_core::facts::{device_slice, foreign_maintenance, hook, known_pods, node_condition, node_guard};
use haulout_core::{ids, keys, maintenance};

pub mod answer;
pub mod budgets;
pub mod client;
pub mod devices;
pub mod drain;
pub mod events;
pub mod facts;
pub mod fence;
pub mod guards;
pub mod kubelet_config;
pub mod lease;
pub mod machine_guard;
pub mod node;
pub mod pods;
pub mod policy;
pub mod port_forward;
pub mod reads;
pub mod rights;
#[cfg(any(test, feature = "stand-in"))]
pub mod stand_in;
pub use haulout_core::facts::kubernetes as update;
pub mod watch;
