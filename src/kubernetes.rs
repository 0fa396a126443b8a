//! All calls to Kubernetes.
//!
//! ```text
//! kube-apiserver ──▶ watch ─▶ facts ─▶ KubernetesUpdate  (to the inventory)
//! kube-apiserver ◀── node: one PATCH per transition       (from the executor)
//! kube-apiserver ◀── drain: LIST ─▶ pods ─▶ evictions     (from the executor)
//! kube-apiserver ◀── events: Events and conditions        (from telemetry)
//! kube-apiserver ──▶ reads, rights                        (for the subcommands)
//! kube-apiserver ◀─▶ lease: leader election               (opens and closes the write fence)
//! ```

pub(crate) mod answer;
pub mod budgets;
pub mod client;
pub mod devices;
pub mod drain;
pub mod events;
pub mod facts;
pub mod guards;
pub mod kubelet_config;
pub mod lease;
pub mod machine_guard;
pub mod node;
pub mod pods;
pub mod policy;
pub mod reads;
pub mod rights;
#[cfg(test)]
pub(crate) mod stand_in;
pub use haulout_core::facts::kubernetes as update;
pub mod watch;
