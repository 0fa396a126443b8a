//! When the time that has elapsed is written into the record while a deadline runs.

use std::time::Duration;

use super::context::{PhaseStep, at_latest};
use super::go;
use crate::maintenance::clock::Now;
use crate::maintenance::episode::{Episode, Phase};
use crate::maintenance::policy::Policy;

/// How often at the most and at the least what has elapsed is written down while a deadline runs. What a crash loses is counted
/// again, so it prolongs a deadline by that much at the most; a write each ten seconds would be felt in a fleet.
const CHECKPOINT_EVERY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

/// A part of a deadline that may be lost by a crash.
const CHECKPOINTS: u32 = 8;

/// The same step, or the time that has elapsed written down first, where that is due.
pub(super) fn checkpoint(
    episode: &Episode,
    aged_by: Duration,
    policy: &Policy,
    now: Now,
    step: PhaseStep,
) -> PhaseStep {
    let Some(timeout) = counts_towards(episode, policy) else {
        return step;
    };
    let (least, most) = CHECKPOINT_EVERY;
    let every = (timeout / CHECKPOINTS).clamp(least, most);
    match step {
        PhaseStep::Do { .. } | PhaseStep::Wait { .. } if aged_by >= every => {
            PhaseStep::Go(go(episode.clone()))
        }
        PhaseStep::Do { .. } | PhaseStep::Wait { .. } => {
            let due = now.monotonic.after(every.saturating_sub(aged_by));
            at_latest(due, step)
        }
        PhaseStep::Go(_) | PhaseStep::Park { .. } => step,
    }
}

/// The shortest deadline that runs for the episode, where one does.
fn counts_towards(episode: &Episode, policy: &Policy) -> Option<Duration> {
    let of_phase = match &episode.phase {
        Phase::Draining => Some(policy.drain_timeout),
        Phase::ShuttingDown(_) => Some(policy.guest_shutdown_timeout),
        Phase::Relocating { .. } => Some(policy.relocate_timeout),
        Phase::PoweringOn { .. } | Phase::Rejoining => Some(policy.power_on_timeout),
        Phase::Queued | Phase::Drained | Phase::AwaitingHost | Phase::Parked { .. } => None,
    };
    let in_flight = (!episode.in_flight.is_empty()).then_some(policy.guest_shutdown_timeout);
    [of_phase, in_flight].into_iter().flatten().min()
}
