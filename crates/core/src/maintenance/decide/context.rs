//! What every phase looks at, what it says, and the few things that more than one of them does.

use std::time::Duration;

use super::Transition;
use crate::ids::HostRef;
use crate::maintenance::clock::{Deadline, Elapsed, Monotonic, Now, wall_after, whole_second};
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::{Episode, Phase};
use crate::maintenance::observed::{
    AttemptOutcome, EffectAttempt, EffectRefusal, Observed, ObservedNode, ObservedVm, RetryAdvice,
};
use crate::maintenance::policy::Policy;
use crate::maintenance::request::{DesiredState, Request};
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// What a phase says.
pub(super) enum PhaseStep {
    Go(Transition),
    Do {
        effect: Effect,
        waiting_on: WaitingOn,
        recheck: Option<Monotonic>,
    },
    Wait {
        waiting_on: WaitingOn,
        recheck: Option<Monotonic>,
    },
    // A parked phase may still try, slowly: what it waits for may be cured by somebody who does not tell us.
    Park {
        reason: ParkReason,
        effect: Option<Effect>,
        recheck: Option<Monotonic>,
    },
}

impl PhaseStep {
    pub(super) fn wait(waiting_on: WaitingOn) -> Self {
        Self::Wait {
            waiting_on,
            recheck: None,
        }
    }

    pub(super) fn wait_until(waiting_on: WaitingOn, at: Monotonic) -> Self {
        Self::Wait {
            waiting_on,
            recheck: Some(at),
        }
    }

    pub(super) fn act(effect: Effect, waiting_on: WaitingOn) -> Self {
        Self::Do {
            effect,
            waiting_on,
            recheck: None,
        }
    }

    pub(super) fn park(reason: ParkReason) -> Self {
        Self::Park {
            reason,
            effect: None,
            recheck: None,
        }
    }
}

/// What the phases look at: one node in an episode, whose VM is known.
#[derive(Clone, Copy)]
pub(super) struct PhaseContext<'a> {
    /// The episode at this moment: what it says to have elapsed counts until now.
    pub(super) episode: &'a Episode,
    /// How much of that was added to what the record says.
    pub(super) aged_by: Duration,
    pub(super) node: &'a ObservedNode,
    pub(super) vm: &'a ObservedVm,
    pub(super) seen: &'a Observed,
    pub(super) policy: &'a Policy,
    pub(super) now: Now,
}

impl<'a> PhaseContext<'a> {
    /// What calls the node out of service.
    pub(super) fn call(self) -> DesiredState<'a> {
        let (request, grace) = (self.seen.request.as_ref(), self.policy.maintenance_retry_grace);
        DesiredState::of_underway(self.vm, request, grace, self.now)
    }

    /// The same episode in another phase.
    pub(super) fn enter(self, phase: Phase) -> Episode {
        self.episode.enter(phase, self.now)
    }

    /// When something that has lasted for `elapsed` will have lasted for `timeout`.
    pub(super) fn deadline(self, elapsed: Elapsed, timeout: Duration) -> Deadline {
        let recorded = elapsed.span().saturating_sub(self.aged_by);
        let from = self.seen.record_seen.at.wall;
        Deadline {
            at: self.now.monotonic.after(timeout.saturating_sub(elapsed.span())),
            shown: whole_second(wall_after(from, timeout.saturating_sub(recorded))),
        }
    }

    /// When the phase will have lasted for `timeout`.
    pub(super) fn phase_deadline(self, timeout: Duration) -> Deadline {
        self.deadline(self.episode.elapsed, timeout)
    }

    pub(super) fn is_past(self, deadline: Deadline) -> bool {
        self.now.monotonic >= deadline.at
    }

    /// The host that the episode is about, where its moref is known.
    pub(super) fn home(self) -> Option<&'a HostRef> {
        self.episode.host.moref.as_ref()
    }

    /// Whether the VM stands on the host that the episode is about.
    pub(super) fn is_at_home(self) -> bool {
        match (self.home(), &self.vm.on) {
            (Some(home), Some(on)) => home == on,
            // Written by the Python controller, which knows names only.
            (None, Some(_)) => *self.episode.host.name == *self.vm.on_name,
            (_, None) => false,
        }
    }

    pub(super) fn host_not_visible(self) -> PhaseStep {
        PhaseStep::wait(super::not_visible(self.vm))
    }

    /// Waits for a maintenance that failed to be tried again.
    pub(super) fn interrupted(until: Deadline, said: &str) -> PhaseStep {
        let waiting_on = WaitingOn::MaintenanceRetry {
            said: said.to_owned(),
            until: until.shown,
        };
        PhaseStep::wait_until(waiting_on, until.at)
    }

    /// Does what `effect` gives unless it is under way; after a refusal, when its backoff is over. `waiting_on` is what the node
    /// waits for once the effect was asked for. `effect` may need something that has to be got first.
    pub(super) fn pursue(
        self,
        kind: EffectKind,
        waiting_on: WaitingOn,
        effect: impl FnOnce() -> Result<Effect, Box<PhaseStep>>,
    ) -> PhaseStep {
        let mut waiting_on = waiting_on;
        if let Some(attempt) = self.seen.attempts.get(&kind) {
            let is_of_phase = attempt.at.monotonic >= self.seen.record_seen.phase_at;
            let again = match &attempt.outcome {
                // The pace of another phase holds on: phases that follow each other in a circle must not do so at the speed of
                // the network.
                _ if !is_of_phase => attempt.at.after(self.policy.backoff(attempt.tries)),
                AttemptOutcome::Running(_) => return PhaseStep::wait(waiting_on),
                // The effect is over and its fact not seen yet; if it never shows, the effect is tried again.
                AttemptOutcome::Asked | AttemptOutcome::Done => attempt.at.after(self.policy.retry_max),
                AttemptOutcome::Refused(refusal) => {
                    let again = self.retry_at(attempt, refusal);
                    waiting_on = WaitingOn::Retry {
                        effect: kind,
                        said: refusal.said.clone(),
                        at: whole_second(again.wall),
                    };
                    again
                }
            };
            if self.now.monotonic < again.monotonic {
                return PhaseStep::wait_until(waiting_on, again.monotonic);
            }
        }
        match effect() {
            Ok(effect) => PhaseStep::act(effect, waiting_on),
            Err(step) => *step,
        }
    }

    pub(super) fn retry_at(self, attempt: &EffectAttempt, refusal: &EffectRefusal) -> Now {
        let wait = match refusal.advice {
            RetryAdvice::Retry
            | RetryAdvice::Unanswered
            | RetryAdvice::Unknown
            | RetryAdvice::OtherHost
            | RetryAdvice::Cluster
            | RetryAdvice::NoTools => self.policy.backoff(attempt.refusals),
            RetryAdvice::Person => self.policy.retry_max,
        };
        attempt.at.after(wait)
    }

    /// When the effect of this kind may be tried again after its latest refusal, in whatever phase that was.
    pub(super) fn not_before(self, kind: EffectKind) -> Option<Monotonic> {
        let attempt = self.seen.attempts.get(&kind)?;
        match &attempt.outcome {
            AttemptOutcome::Refused(refusal) => {
                let at = self.retry_at(attempt, refusal).monotonic;
                (self.now.monotonic < at).then_some(at)
            }
            AttemptOutcome::Asked | AttemptOutcome::Running(_) | AttemptOutcome::Done => None,
        }
    }

    /// Parks a phase whose deadline has passed; whatever it would try, it goes on trying.
    pub(super) fn unless_overdue(self, deadline: Deadline, step: PhaseStep) -> PhaseStep {
        if !self.is_past(deadline) {
            return at_latest(deadline.at, step);
        }
        let (effect, waiting_on, recheck) = match step {
            PhaseStep::Go(_) | PhaseStep::Park { .. } => return step,
            PhaseStep::Do {
                effect,
                waiting_on,
                recheck,
            } => (Some(effect), waiting_on, recheck),
            PhaseStep::Wait { waiting_on, recheck } => (None, waiting_on, recheck),
        };
        let reason = ParkReason::Overdue {
            phase: self.episode.phase.name().to_owned(),
            waiting_on: waiting_on.to_string(),
        };
        PhaseStep::Park {
            reason,
            effect,
            recheck,
        }
    }
}

/// What a node waits for that is as `request` asks.
pub(super) fn as_asked(request: &Request) -> WaitingOn {
    WaitingOn::Request {
        request: request.mark.clone(),
        asks: request.action.to_string(),
    }
}

/// The same step, looked at again at `at` at the latest.
pub(super) fn at_latest(at: Monotonic, step: PhaseStep) -> PhaseStep {
    let sooner = |recheck: Option<Monotonic>| Some(recheck.map_or(at, |recheck| recheck.min(at)));
    match step {
        PhaseStep::Do {
            effect,
            waiting_on,
            recheck,
        } => PhaseStep::Do {
            effect,
            waiting_on,
            recheck: sooner(recheck),
        },
        PhaseStep::Wait { waiting_on, recheck } => PhaseStep::Wait {
            waiting_on,
            recheck: sooner(recheck),
        },
        PhaseStep::Go(_) | PhaseStep::Park { .. } => step,
    }
}
