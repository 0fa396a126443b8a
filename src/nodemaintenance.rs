//! The API object NodeMaintenance: reads requests; writes their status and a copy of each episode's record.
//!
//! ```text
//! kube-apiserver ──▶ watch ─▶ facts of requests and copies          (to the inventory)
//! statuses, transitions ──▶ objects: due writes ──▶ writer ─▶ api   (to the kube-apiserver)
//! ```

pub(crate) mod api;
mod due_write;
pub(crate) mod foreign;
mod history;
mod judgement;
mod kept;
pub mod kind;
pub(crate) mod look;
pub(crate) mod objects;
mod refused;
pub(crate) mod standing;
mod status;
pub(crate) mod watch;
pub(crate) mod writer;
