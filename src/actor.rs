//! One task per node, and their supervisor.
//!
//! ```text
//!  hub ──Sight──▶ Supervisor ──watch──▶ NodeActor ──▶ decide ──▶ Perform ──▶ the world
//!                     ▲                                                        │
//!                     └────────────────── facts, by way of the hub ◀───────────┘
//! ```
//!
//! The hub alone tells actors anything, by replacing their sight of the node; an actor tells nobody anything but the
//! log. Stop order: the supervisor cancels its actors, waits a moment for them, and says who did not end.

pub mod node;
pub mod perform;
pub mod supervisor;
