//! What every phase looks at, what it says, and the few things that more than one of them does.

use jiff::Timestamp;

use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::Episode;
use crate::maintenance::observed::{Advice, Attempt, NodeSeen, Observed, Outcome, Refusal, VmFacts};
use crate::maintenance::policy::{Policy, after};
use crate::maintenance::request::{Call, Request};
use crate::maintenance::waiting::{ParkReason, WaitingOn};

use super::Transition;

/// What a phase says.
pub(super) enum Step {
    Go(Transition),
    Do {
        effect: Effect,
        waiting_on: WaitingOn,
        recheck: Option<Timestamp>,
    },
    Wait {
        waiting_on: WaitingOn,
        recheck: Option<Timestamp>,
    },
    // A parked phase may still try, slowly: what it waits for may be cured by somebody who does not tell us.
    Park {
        reason: ParkReason,
        effect: Option<Effect>,
        recheck: Option<Timestamp>,
    },
}

/// What the phases look at: one node in an episode, whose VM is known.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) episode: &'a Episode,
    pub(super) node: &'a NodeSeen,
    pub(super) vm: &'a VmFacts,
    pub(super) seen: &'a Observed,
    pub(super) policy: &'a Policy,
    pub(super) now: Timestamp,
}

impl<'a> Scene<'a> {
    /// What calls the node out of service.
    pub(super) fn call(self) -> Call<'a> {
        Call::of(&self.vm.host, self.seen.request.as_ref())
    }

    pub(super) fn host_not_visible(self) -> Step {
        Step::Wait {
            waiting_on: super::not_visible(self.vm),
            recheck: None,
        }
    }

    /// Tries `effect` unless it is under way; after a refusal, tries again when its backoff is over. `waiting_on` is
    /// what the node waits for once the effect was asked for.
    pub(super) fn pursue(self, effect: Effect, waiting_on: WaitingOn) -> Step {
        let kind = effect.kind();
        let Some(attempt) = self.seen.attempt(kind, self.episode.since) else {
            return Step::Do {
                effect,
                waiting_on,
                recheck: None,
            };
        };
        match &attempt.outcome {
            Outcome::Running(_) => Step::Wait {
                waiting_on,
                recheck: None,
            },
            // The effect is over and its fact not seen yet; if it never shows, the effect is tried again.
            Outcome::Asked | Outcome::Done => {
                let again = after(attempt.at, self.policy.retry_max);
                if self.now >= again {
                    Step::Do {
                        effect,
                        waiting_on,
                        recheck: None,
                    }
                } else {
                    Step::Wait {
                        waiting_on,
                        recheck: Some(again),
                    }
                }
            }
            Outcome::Refused(refusal) => self.retry(effect, attempt, refusal),
        }
    }

    pub(super) fn retry(self, effect: Effect, attempt: &Attempt, refusal: &Refusal) -> Step {
        let at = self.retry_at(attempt, refusal);
        let waiting_on = WaitingOn::Retry {
            effect: effect.kind(),
            said: refusal.said.clone(),
            at,
        };
        if self.now >= at {
            Step::Do {
                effect,
                waiting_on,
                recheck: None,
            }
        } else {
            Step::Wait {
                waiting_on,
                recheck: Some(at),
            }
        }
    }

    pub(super) fn retry_at(self, attempt: &Attempt, refusal: &Refusal) -> Timestamp {
        let wait = match refusal.advice {
            Advice::Retry | Advice::OtherHost | Advice::NoTools => self.policy.backoff(attempt.refusals),
            Advice::Person => self.policy.retry_max,
        };
        after(attempt.at, wait)
    }

    /// When the effect of this kind may be tried again after its latest refusal, in whatever phase that was.
    pub(super) fn not_before(self, kind: EffectKind) -> Option<Timestamp> {
        let attempt = self.seen.attempts.get(&kind)?;
        match &attempt.outcome {
            Outcome::Refused(refusal) => {
                let at = self.retry_at(attempt, refusal);
                (self.now < at).then_some(at)
            }
            Outcome::Asked | Outcome::Running(_) | Outcome::Done => None,
        }
    }

    /// Parks a phase whose deadline has passed; whatever it would try, it goes on trying.
    pub(super) fn unless_overdue(self, deadline: Timestamp, step: Step) -> Step {
        if self.now < deadline {
            return at_latest(deadline, step);
        }
        let (effect, waiting_on, recheck) = match step {
            Step::Go(_) | Step::Park { .. } => return step,
            Step::Do {
                effect,
                waiting_on,
                recheck,
            } => (Some(effect), waiting_on, recheck),
            Step::Wait { waiting_on, recheck } => (None, waiting_on, recheck),
        };
        let phase = self.episode.phase.name().to_owned();
        let reason = ParkReason::Overdue {
            phase,
            waiting_on: waiting_on.to_string(),
        };
        Step::Park {
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
pub(super) fn at_latest(at: Timestamp, step: Step) -> Step {
    let sooner = |recheck: Option<Timestamp>| Some(recheck.map_or(at, |recheck| recheck.min(at)));
    match step {
        Step::Do {
            effect,
            waiting_on,
            recheck,
        } => Step::Do {
            effect,
            waiting_on,
            recheck: sooner(recheck),
        },
        Step::Wait { waiting_on, recheck } => Step::Wait {
            waiting_on,
            recheck: sooner(recheck),
        },
        Step::Go(_) | Step::Park { .. } => step,
    }
}
