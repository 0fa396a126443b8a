//! A VM that is to be powered on, and one that is found on.

use super::context::{PhaseContext, PhaseStep};
use super::{Transition, cordoned, go, stands_on};
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::{CordonOwner, Episode, InFlight, Phase, RefusedMove};
use crate::maintenance::observed::{AttemptOutcome, EffectAttempt, EffectRefusal, RetryAdvice, Strategy};
use crate::maintenance::request::RequestAction;
use crate::maintenance::waiting::WaitingOn;

/// How many times the own host of a VM may refuse to power it on before other hosts are looked for. A host that has just left
/// maintenance refuses for a while, until vSphere HA has configured it.
const TRIES_AT_HOME: u32 = 4;

impl PhaseContext<'_> {
    /// Off, to be powered on.
    pub(super) fn powering_on(self, by_drs: bool) -> PhaseStep {
        // DRS may have been switched off for it since.
        let by_drs = by_drs && self.drs();
        let wanted = self.keeps_off().is_none() && self.relocation().is_none();
        let placeable = wanted && (self.vm.host.takes_vms() || by_drs);
        let attempt = self.seen.attempt(EffectKind::PowerOn);
        let is_running = attempt.is_some_and(|it| matches!(it.outcome, AttemptOutcome::Running(_)));
        // A task under way is waited for whatever became of the host: it ends by itself, and its end is a fact.
        if !is_running && !placeable {
            return self.choose_again(None);
        }
        if let Some(attempt) = attempt
            && let AttemptOutcome::Refused(refusal) = &attempt.outcome
            && let Some(step) = self.after_refused_power_on(by_drs, attempt, refusal)
        {
            return step;
        }
        if let Some(question) = &self.vm.question {
            return PhaseStep::wait(WaitingOn::Question(question.clone()));
        }
        let Some(place) = self.place(by_drs) else {
            return self.choose_again(None);
        };
        let waiting_on = WaitingOn::Task(EffectKind::PowerOn);
        let step = self.pursue(EffectKind::PowerOn, waiting_on, || {
            Ok(Effect::PowerOn {
                vm: self.vm.moref.clone(),
                place,
            })
        });
        self.unless_overdue(self.phase_deadline(self.policy.power_on_timeout), step)
    }

    /// What follows from a refused power-on; `None` where it is simply tried again.
    fn after_refused_power_on(
        self,
        by_drs: bool,
        attempt: &EffectAttempt,
        refusal: &EffectRefusal,
    ) -> Option<PhaseStep> {
        let here = self.vm.on.as_ref();
        if by_drs {
            // DRS is asked again from the wait for a host, at the pace of its backoff.
            return (refusal.advice == RetryAdvice::OtherHost || !self.vm.host.takes_vms())
                .then(|| self.choose_again(None));
        }
        if self.is_at_home() {
            let is_hopeless = refusal.advice.speaks_against_host()
                && refusal.advice != RetryAdvice::Person
                && attempt.refusals >= TRIES_AT_HOME
                && self.node.wishes.strategy == Strategy::Migrate;
            return is_hopeless
                .then(|| self.choose_again(here.map(|host| (host, RefusedMove::PowerOn, refusal))));
        }
        // One that speaks of the whole cluster is waited out, but not once its own host is back.
        let is_refused = refusal.advice.speaks_against_host();
        (is_refused || self.is_home_back())
            .then(|| self.choose_again(here.map(|host| (host, RefusedMove::PowerOn, refusal))))
    }

    /// The VM is found on in a phase that expects it off, or expects it to come on: it is accepted where it stands.
    pub(super) fn found_running(self) -> PhaseStep {
        let here = stands_on(self.vm);
        let moved = here.moref.is_some() && !self.is_at_home();
        // One that is on is not moved once more for a request that vCenter did not heed.
        let gave_up = match (self.relocation().map(|request| &request.action), moved) {
            (Some(RequestAction::Relocate { to: Some(to) }), true) if **to != *here.name => {
                Some(format!("vCenter powered it on on {here}"))
            }
            _ => self.episode.gave_up.clone(),
        };
        let episode = Episode {
            powered_off: true,
            in_flight: InFlight::default(),
            gave_up,
            kept_off_by: None,
            moved_to: moved.then_some(here),
            ..self.enter(Phase::Rejoining)
        };
        if self.episode.cordon == CordonOwner::Theirs {
            // What boots uncordons nodes, and does not ask whose the cordon was.
            return PhaseStep::Go(Transition {
                unschedulable: (!self.node.unschedulable).then_some(true),
                ..go(episode)
            });
        }
        PhaseStep::Go(cordoned(episode, self.node))
    }
}
