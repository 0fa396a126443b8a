//! NodeMaintenance, the API object: requests of people in; status, and the second copy of each episode's record, out.
//!
//! ```text
//! kube-apiserver ──▶ watch ─▶ facts of requests and copies          (to the inventory)
//! statuses, transitions ──▶ objects: what is due ──▶ writer ─▶ api  (to the kube-apiserver)
//! ```

pub mod api;
mod history;
mod kept;
pub mod kind;
pub mod look;
pub mod objects;
mod refused;
mod status;
pub mod watch;
pub mod writer;
