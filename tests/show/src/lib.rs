//! What the demo shows: two nodes go through host maintenance. Every step is printed, from vCenter, Kubernetes and Haulout's log.
//!
//! ```text
//! Peers (real: tests/lab, simulated: tests/demo) ─▶ follow ─▶ printer
//!                                                └─▶ show: clicks, checks, latency, memory, trace
//! ```

mod ending;
mod expect;
mod figures;
mod follow;
pub mod node;
pub mod peers;
pub mod printer;
pub mod process;
pub mod run_dir;
mod show;
pub mod traces;
pub mod wait;
mod waterfall;

pub use self::show::{Program, SETTINGS, Show};
