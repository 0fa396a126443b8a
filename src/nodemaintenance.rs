//! The API object NodeMaintenance: reads requests; writes their status and a copy of each episode's record.
//!
//! ```text
//! kube-apiserver ──▶ watch ─▶ facts of requests and copies          (to the inventory)
//! statuses, transitions ──▶ objects: due writes ──▶ writer ─▶ api   (to the kube-apiserver)
//! ```

pub(crate) mod api;
mod conditions;
pub(crate) mod due_write;
pub(crate) mod foreign;
mod history;
pub mod kind;
mod object_limit;
pub(crate) mod objects;
pub(crate) mod read;
mod refused;
mod status;
pub(crate) mod still_requested;
#[cfg(test)]
pub(crate) mod stored;
pub(crate) mod watch;
pub(crate) mod writer;
