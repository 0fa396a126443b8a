//! The decision: phases, facts, effects, and what to do next. Pure: no async, no clock, no I/O in this folder.
//!
//! ```text
//!                 over the limit                    its turn
//!  InService ───────────────────────▶ Queued ───────────────┐
//!      │  host leaves, or a person asks                      ▼
//!      └──────────────────────────────────────────────▶ Draining ──▶ ShuttingDown
//!      ▲                                                  ▲ │             │
//!      │                          (no more is asked for) Drained          │ VM off
//!      │ Ready on another boot,          ┌── own host back, or DRS ───────┤
//!      │ GPUs allocatable                ▼                                ▼
//!  Rejoining ◀──── VM on ─────────── PoweringOn ◀── moved ── Relocating ◀─▶ AwaitingHost
//! ```
//!
//! A cancel is no phase: it is what each phase does when nothing calls the node out of service. A phase that cannot go on is parked
//! with a reason, and resumes when the reason goes away.

pub mod admission;
pub mod backoff;
pub mod clock;
pub mod decide;
pub mod effect;
pub mod effect_report;
pub mod episode;
pub mod observed;
pub mod phase_stats;
pub mod placement;
pub mod policy;
pub mod record;
pub mod request;
pub mod waiting;
