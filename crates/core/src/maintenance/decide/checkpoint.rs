//! Records the elapsed time regularly while a deadline runs.

use std::time::Duration;

use super::context::{PhaseStep, at_latest};
use super::{Decision, transition_to};
use crate::maintenance::clock::Now;
use crate::maintenance::episode::{Episode, Phase};
use crate::maintenance::policy::Policy;
use crate::maintenance::waiting::WaitingOn;

/// The shortest and the longest interval between two checkpoints. A crash extends a deadline by at most one interval; shorter
/// intervals would cost too many writes in a large cluster.
const CHECKPOINT_EVERY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(60));

/// Checkpoints per deadline, within [`CHECKPOINT_EVERY`].
const CHECKPOINTS: u32 = 8;

/// The same step, or a write of the elapsed time where that is due.
pub(super) fn checkpoint(
    episode: &Episode,
    aged_by: Duration,
    policy: &Policy,
    now: Now,
    step: PhaseStep,
) -> PhaseStep {
    let awaits_vmotion = match &step {
        PhaseStep::Decided(Decision::Wait {
            waiting_on: WaitingOn::Vmotion { .. },
            ..
        }) => Some(policy.vmotion_grace.limit()),
        PhaseStep::Decided(_) | PhaseStep::Park { .. } => None,
    };
    let running = running_deadline(episode, policy);
    let Some(timeout) = running.into_iter().chain(awaits_vmotion).min() else {
        return step;
    };
    let (least, most) = CHECKPOINT_EVERY;
    let every = (timeout / CHECKPOINTS).clamp(least, most);
    let is_pending = matches!(
        step,
        PhaseStep::Decided(Decision::Act { .. } | Decision::Wait { .. })
    );
    if is_pending && aged_by >= every {
        PhaseStep::record(transition_to(episode.clone()))
    } else {
        at_latest(now.monotonic.after(every.saturating_sub(aged_by)), step)
    }
}

/// The shortest deadline that runs for the episode.
fn running_deadline(episode: &Episode, policy: &Policy) -> Option<Duration> {
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
