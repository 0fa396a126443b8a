//! The controller: one task per node, their supervisor, and the executor of effects.
//!
//! ```text
//!  event loop ──NodeSnapshot──▶ Supervisor ──watch──▶ NodeActor ──▶ decide ──▶ RunEffect ──▶ vCenter, Kubernetes
//!       ▲                                                                          │
//!       └───────────────────────────────── effect reports ◀────────────────────────┘
//! ```
//!
//! The event loop alone gives snapshots to actors. An actor tells the observers what happens. At a stop the supervisor
//! cancels its actors, waits a moment for them, and logs which did not end.

// A test may list many cases.
#![cfg_attr(not(test), deny(clippy::too_many_lines))]

pub mod board;
pub mod event_loop;
pub mod executor;
pub mod failure_log;
mod log_node;
pub mod node;
pub mod nodemaintenance;
pub mod observer;
pub mod run_effect;
pub mod supervisor;
