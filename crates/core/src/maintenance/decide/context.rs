//! The input and output of the phase functions, and the steps that several phases share.

use std::time::Duration;

use super::{Decision, Noted, Transition};
use crate::ids::HostRef;
use crate::maintenance::clock::{Deadline, Elapsed, Monotonic, Now, wall_after, whole_second};
use crate::maintenance::desired::DesiredState;
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::{Episode, Phase};
use crate::maintenance::observed::{
    AttemptOutcome, EffectAttempt, EffectRefusal, Observed, ObservedNode, ObservedVm, RetryAdvice,
};
use crate::maintenance::policy::Policy;
use crate::maintenance::request::Request;
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// How many times a host may refuse the VM before others are tried, where the refusal may pass: half a minute with the usual pauses.
/// A backup or another host may lock a file for so long, and a host that has just left maintenance refuses until vSphere HA has
/// configured it.
pub(super) const TRIES: u32 = 6;

/// After this time in a phase that an earlier process began, that process is taken to have had its tries.
const TRIES_OF_ANOTHER: Duration = Duration::from_secs(60);

/// The result of a phase function.
pub(super) enum PhaseStep {
    Decided(Decision),
    // A parked phase may still retry its effect: the cause may have been removed without a fact that shows it.
    Park {
        reason: ParkReason,
        effect: Option<Effect>,
        recheck: Option<Monotonic>,
    },
}

impl PhaseStep {
    pub(super) fn record(transition: Transition) -> Self {
        Self::Decided(Decision::Write(Box::new(transition)))
    }

    pub(super) fn wait(waiting_on: WaitingOn) -> Self {
        Self::Decided(super::wait(waiting_on))
    }

    pub(super) fn wait_until(waiting_on: WaitingOn, at: Monotonic) -> Self {
        at_latest(at, Self::wait(waiting_on))
    }

    pub(super) fn act(effect: Effect, waiting_on: WaitingOn) -> Self {
        Self::Decided(Decision::Act {
            effect,
            waiting_on,
            recheck: None,
        })
    }

    pub(super) fn park(reason: ParkReason) -> Self {
        Self::Park {
            reason,
            effect: None,
            recheck: None,
        }
    }
}

/// The input of the phase functions: a node in an episode, whose VM is known.
#[derive(Clone, Copy)]
pub(super) struct PhaseContext<'a> {
    /// The episode, with elapsed times that count until now.
    pub(super) episode: &'a Episode,
    /// The time since the record was first seen, which is included in these elapsed times.
    pub(super) aged_by: Duration,
    pub(super) node: &'a ObservedNode,
    pub(super) vm: &'a ObservedVm,
    pub(super) seen: &'a Observed,
    pub(super) policy: &'a Policy,
    pub(super) now: Now,
    pub(super) noted: &'a Noted<'a>,
}

impl<'a> PhaseContext<'a> {
    pub(super) fn desired(self) -> DesiredState<'a> {
        let (request, grace) = (self.seen.request.as_ref(), self.policy.maintenance_retry_grace);
        DesiredState::in_episode(self.vm, self.episode, request, grace, self.now)
    }

    /// The step where neither the host nor a request asks for a node that is down or drained, or where nobody knows.
    pub(super) fn unless_asked_down(self) -> Option<PhaseStep> {
        match self.desired() {
            DesiredState::InService => Some(self.finish()),
            DesiredState::Unknown => Some(self.host_not_visible()),
            DesiredState::RetryExpected { until, message } => Some(Self::await_retry(until, message)),
            DesiredState::Down | DesiredState::Drained(_) => None,
        }
    }

    pub(super) fn enter(self, phase: Phase) -> Episode {
        Episode {
            gpus_cleared: self.gpus_are_cleared(),
            ..self.episode.enter(phase, self.now)
        }
    }

    /// The deadline of something that has lasted for `elapsed` and may last for `timeout`.
    pub(super) fn deadline(self, elapsed: Elapsed, timeout: Duration) -> Deadline {
        let recorded = elapsed.span().saturating_sub(self.aged_by);
        let from = self.seen.record_seen.at.wall;
        Deadline {
            at: self.now.monotonic.after(timeout.saturating_sub(elapsed.span())),
            shown: whole_second(wall_after(from, timeout.saturating_sub(recorded))),
        }
    }

    /// The deadline of a phase that may last for `timeout`.
    pub(super) fn phase_deadline(self, timeout: Duration) -> Deadline {
        self.deadline(self.episode.elapsed, timeout)
    }

    pub(super) fn is_past(self, deadline: Deadline) -> bool {
        self.now.monotonic >= deadline.at
    }

    /// The moref of the host whose maintenance the episode handles, where it is known.
    pub(super) fn home(self) -> Option<&'a HostRef> {
        self.episode.host.moref.as_ref()
    }

    /// Whether the VM is on the host whose maintenance the episode handles.
    pub(super) fn is_at_home(self) -> bool {
        match (self.home(), &self.vm.host_ref) {
            (Some(home), Some(on)) => home == on,
            // The Python controller records names only.
            (None, Some(_)) => *self.episode.host.name == *self.vm.host_name,
            (_, None) => false,
        }
    }

    pub(super) fn host_not_visible(self) -> PhaseStep {
        PhaseStep::wait(super::not_visible(self.vm))
    }

    /// Waits for a failed maintenance to be retried.
    pub(super) fn await_retry(until: Deadline, message: &str) -> PhaseStep {
        let waiting_on = WaitingOn::MaintenanceRetry {
            message: message.to_owned(),
            until: until.shown,
        };
        PhaseStep::wait_until(waiting_on, until.at)
    }

    /// Starts `effect` unless it is running; after a refusal, waits for its backoff first. `waiting_on` is the wait once the effect
    /// is started. `effect` returns `Err` with the step that has to come first.
    pub(super) fn start_or_retry(
        self,
        kind: EffectKind,
        waiting_on: WaitingOn,
        effect: impl FnOnce() -> Result<Effect, Box<PhaseStep>>,
    ) -> PhaseStep {
        let mut waiting_on = waiting_on;
        if let Some(attempt) = self.seen.attempts.get(&kind) {
            let is_of_phase = attempt.at.monotonic >= self.seen.record_seen.phase_at;
            let again = match &attempt.outcome {
                // The backoff also applies across phases, so that phases that follow each other in a loop are rate-limited.
                _ if !is_of_phase => attempt.at.after(self.policy.backoff(attempt.tries)),
                AttemptOutcome::Running(_) => return PhaseStep::wait(waiting_on),
                // The effect is over, but its result has not been observed yet. It is retried if that takes too long.
                AttemptOutcome::Asked | AttemptOutcome::Done => attempt.at.after(self.policy.retry_max),
                AttemptOutcome::Refused(refusal) => {
                    let again = self.retry_at(attempt, refusal);
                    waiting_on = retry_wait(kind, refusal.message.clone(), again);
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
            | RetryAdvice::MayPass
            | RetryAdvice::OtherHost
            | RetryAdvice::Cluster
            | RetryAdvice::NoTools => self.policy.backoff(attempt.refusals),
            RetryAdvice::Person => self.policy.retry_max,
        };
        attempt.at.after(wait)
    }

    /// Whether a host has refused the VM for good: the refusal speaks against the host, and either cannot pass or has not passed after
    /// [`TRIES`]. Another process may have tried before this one, in a phase that it has found.
    pub(super) fn is_refused_for_good(self, attempt: &EffectAttempt, refusal: &EffectRefusal) -> bool {
        let is_found = !self.seen.record_seen.from_the_start;
        let had_tries =
            attempt.refusals >= TRIES || (is_found && self.episode.elapsed.span() >= TRIES_OF_ANOTHER);
        refusal.advice.speaks_against_host() && (had_tries || !refusal.advice.may_pass())
    }

    /// When the effect of this kind may be retried after its latest refusal, in any phase.
    pub(super) fn not_before(self, kind: EffectKind) -> Option<Monotonic> {
        let attempt = self.seen.attempts.get(&kind)?;
        let at = self.retry_at(attempt, attempt.outcome.refusal()?).monotonic;
        (self.now.monotonic < at).then_some(at)
    }

    /// Parks a phase whose deadline has passed. Its effect is still retried.
    pub(super) fn unless_overdue(self, deadline: Deadline, step: PhaseStep) -> PhaseStep {
        if !self.is_past(deadline) {
            return at_latest(deadline.at, step);
        }
        let (effect, waiting_on, recheck) = match step {
            PhaseStep::Decided(Decision::Act {
                effect,
                waiting_on,
                recheck,
            }) => (Some(effect), waiting_on, recheck),
            PhaseStep::Decided(Decision::Wait { waiting_on, recheck }) => (None, waiting_on, recheck),
            PhaseStep::Decided(Decision::Write(_) | Decision::Idle) | PhaseStep::Park { .. } => return step,
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

/// The wait for the vCenter task of `effect`.
pub(super) const fn task_wait(effect: EffectKind) -> WaitingOn {
    WaitingOn::Task { effect }
}

/// The wait for another try of `effect` at `at`, after a refusal.
pub(super) fn retry_wait(effect: EffectKind, message: String, at: Now) -> WaitingOn {
    WaitingOn::Retry {
        effect,
        message,
        at: whole_second(at.wall),
    }
}

/// The wait of a node that is as `request` asks.
pub(super) fn until_deleted(request: &Request) -> WaitingOn {
    WaitingOn::Request {
        request: request.identity.clone(),
        asks: request.action.to_string(),
    }
}

/// The step `hold`, during which `work` goes on: what is waited for is the hold, and the effect is that of the work.
pub(super) fn meanwhile(hold: PhaseStep, work: PhaseStep) -> PhaseStep {
    let PhaseStep::Decided(work) = work else {
        return hold;
    };
    let (at, effect) = match work {
        Decision::Act { effect, recheck, .. } => (recheck, Some(effect)),
        Decision::Wait { recheck, .. } => (recheck, None),
        Decision::Write(_) | Decision::Idle => return hold,
    };
    let sooner = |recheck: Option<Monotonic>| recheck.into_iter().chain(at).min();
    match hold {
        PhaseStep::Decided(Decision::Wait { waiting_on, recheck }) => {
            let recheck = sooner(recheck);
            PhaseStep::Decided(match effect {
                Some(effect) => Decision::Act {
                    effect,
                    waiting_on,
                    recheck,
                },
                None => Decision::Wait { waiting_on, recheck },
            })
        }
        PhaseStep::Park {
            reason,
            effect: None,
            recheck,
        } => PhaseStep::Park {
            reason,
            effect,
            recheck: sooner(recheck),
        },
        hold @ (PhaseStep::Park { effect: Some(_), .. }
        | PhaseStep::Decided(Decision::Act { .. } | Decision::Write(_) | Decision::Idle)) => hold,
    }
}

/// The same step, decided again at `at` at the latest.
pub(super) fn at_latest(at: Monotonic, mut step: PhaseStep) -> PhaseStep {
    if let PhaseStep::Decided(Decision::Act { recheck, .. } | Decision::Wait { recheck, .. }) = &mut step {
        *recheck = Some(recheck.map_or(at, |recheck| recheck.min(at)));
    }
    step
}
