//! All the Kubernetes that Haulout speaks: watches, the Node's PATCH, pods and their eviction.
//!
//! ```text
//! kube-apiserver ──▶ watch ─▶ facts ─▶ Update         (to the inventory)
//! kube-apiserver ◀── node: one PATCH per transition    (from the world)
//! kube-apiserver ◀── drain: LIST ─▶ pods ─▶ evictions  (from the world)
//! kube-apiserver ◀── events: what people are shown      (from whoever tells it)
//! kube-apiserver ──▶ look, rights: single looks         (for people who ask)
//! kube-apiserver ◀─▶ lease: which replica leads         (opens and shuts the gate)
//! ```

pub(crate) mod answer;
pub mod budgets;
pub mod client;
pub mod drain;
pub mod events;
pub mod facts;
pub mod lease;
pub mod node;
pub mod pods;
pub mod reads;
pub mod rights;
#[cfg(test)]
pub(crate) mod stand_in;
pub use haulout_core::facts::kubernetes as update;
pub mod watch;
