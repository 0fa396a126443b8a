//! The API object NodeMaintenance: reads requests; writes their status and a copy of each episode's record.
//!
//! ```text
//! kube-apiserver ──▶ watch ─▶ facts of requests and copies          (to the inventory)
//! statuses, transitions ──▶ objects: due writes ──▶ writer ─▶ api   (to the kube-apiserver)
//! ```

pub mod api;
mod conditions;
pub mod due_write;
pub mod foreign;
mod history;
pub mod kind;
mod object_limit;
pub mod objects;
pub mod read;
mod refused;
mod status;
pub(crate) mod still_requested;
#[cfg(any(test, feature = "stand-in"))]
pub mod stored;
pub mod watch;
pub mod writer;
