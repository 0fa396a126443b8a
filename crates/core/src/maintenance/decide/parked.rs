//! Runs the step of an episode, and parks and resumes it.

use std::time::Duration;

use super::checkpoint::checkpoint;
use super::context::{PhaseContext, PhaseStep};
use super::{Decision, Noted, Transition, step, write};
use crate::maintenance::clock::{Elapsed, Now};
use crate::maintenance::episode::{DrainEnd, Episode, Phase};
use crate::maintenance::observed::{Observed, ObservedNode};
use crate::maintenance::policy::Policy;
use crate::maintenance::waiting::{ParkReason, WaitingOn};

pub(super) fn in_episode(
    episode: &Episode,
    aged_by: Duration,
    node: &ObservedNode,
    seen: &Observed,
    policy: &Policy,
    now: Now,
    noted: &Noted<'_>,
) -> Decision {
    let context = |episode, vm| PhaseContext {
        episode,
        aged_by,
        node,
        vm,
        seen,
        policy,
        now,
        noted,
    };
    let Phase::Parked {
        reason,
        resume,
        resume_since,
    } = &episode.phase
    else {
        return match checkpoint(episode, aged_by, policy, now, step(episode, seen, context)) {
            PhaseStep::Decided(decision) => decision,
            PhaseStep::Park { reason, .. } => write(park(episode, reason, now)),
        };
    };
    // A parked episode runs the step of the phase that it resumes. It stays parked if that step parks it again.
    let resumed = Episode {
        phase: (**resume).clone(),
        since: *resume_since,
        ..episode.clone()
    };
    // The deadlines start again: a drain that was parked for an hour did not evict for an hour.
    let begin_again = || {
        write(Episode {
            drained_for: Elapsed::ZERO,
            limited_from: Elapsed::ZERO,
            ..resumed.enter((**resume).clone(), now)
        })
    };
    match step(&resumed, seen, context) {
        PhaseStep::Decided(Decision::Write(next)) if ends_drain_early(reason, &next) => begin_again(),
        PhaseStep::Decided(decision @ Decision::Write(_)) => decision,
        PhaseStep::Park {
            reason: again,
            effect,
            recheck,
        } if same_kind(&again, reason) => {
            let waiting_on = WaitingOn::Parked(again);
            match effect {
                Some(effect) => Decision::Act {
                    effect,
                    waiting_on,
                    recheck,
                },
                None => Decision::Wait { waiting_on, recheck },
            }
        }
        PhaseStep::Park { reason: other, .. } => write(park(&resumed, other, now)),
        PhaseStep::Decided(Decision::Act { .. } | Decision::Wait { .. } | Decision::Idle) => begin_again(),
    }
}

/// Whether a drain would time out by the time for which it was parked. One that is parked because it is overdue goes on meanwhile.
fn ends_drain_early(reason: &ParkReason, next: &Transition) -> bool {
    let next = next.record.episode().map(|episode| &episode.phase);
    let is_timed_out = next == Some(&Phase::ShuttingDown(DrainEnd::TimedOut));
    is_timed_out && !matches!(reason, ParkReason::Overdue { .. })
}

/// Whether two reasons differ at most in their details. A change of details needs no write.
fn same_kind(a: &ParkReason, b: &ParkReason) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

/// Parks the episode. The elapsed time of its phase keeps counting, because the phase's deadline applies while it is parked.
fn park(episode: &Episode, reason: ParkReason, now: Now) -> Episode {
    let parked = Phase::Parked {
        reason,
        resume: Box::new(episode.phase.clone()),
        resume_since: episode.since,
    };
    Episode {
        elapsed: episode.elapsed,
        ..episode.enter(parked, now)
    }
}
