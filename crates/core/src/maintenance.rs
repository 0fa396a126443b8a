//! The decision: phases, facts, effects, and what to do next. Pure: no async, no clock, no I/O.
//!
//! ```text
//!                 over the limit                    its turn
//!  InService ───────────────────────▶ Queued ───────────────┐
//!      │  host enters maintenance, or a request              ▼
//!      └──────────────────────────────────────────────▶ Draining ──▶ ShuttingDown
//!      ▲                                                  ▲ │             │
//!      │                          (request to drain only) Drained         │ VM off
//!      │ Ready on another boot,          ┌── own host back, or DRS ───────┤
//!      │ GPUs allocatable                ▼                                ▼
//!  Rejoining ◀──── VM on ─────────── PoweringOn ◀── moved ── Relocating ◀─▶ AwaitingHost
//! ```
//!
//! A cancel is not a phase: each phase handles it when the desired state is in service again. A phase that cannot continue is parked
//! with a reason, and resumes when the reason goes away.

pub mod admission;
pub mod clock;
pub mod decide;
pub mod desired;
pub mod drain;
pub mod effect;
pub mod effect_report;
pub mod episode;
pub mod hook;
pub mod host;
pub mod kinds;
pub mod machine_guard;
pub mod node_guard;
pub mod observed;
pub mod phase_stats;
pub mod placement;
pub mod policy;
pub mod record;
pub mod request;
pub mod request_identity;
pub mod volumes;
pub mod waiting;
