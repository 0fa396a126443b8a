//! One task per node, and their supervisor.
//!
//! ```text
//!  hub ──Sight──▶ Supervisor ──watch──▶ NodeActor ──▶ decide ──▶ Perform ──▶ the world
//!                     ▲                                                        │
//!                     └────────────────── facts, by way of the hub ◀───────────┘
//! ```
//!
//! The hub alone tells actors anything, by replacing their sight of the node; what an actor does it tells to whoever
//! listens ([`tell`]). Stop order: the supervisor cancels its actors, waits a moment for them, and says who did not end.

pub mod node;
pub mod observer;
pub mod run_effect;
pub mod supervisor;
