//! Powers the VM on, and accepts one that is found on.

use super::context::{PhaseContext, PhaseStep, TRIES, task_wait};
use super::{Transition, cordoned, host_of, transition_to};
use crate::facts::kubernetes::RequestAction;
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::{CordonOwner, Episode, HostIdentity, InFlight, Phase, RefusedMove};
use crate::maintenance::observed::{EffectAttempt, EffectRefusal, RetryAdvice, Strategy};

impl PhaseContext<'_> {
    /// Whether DRS is to place the VM. DRS may have been disabled for it since.
    fn is_placed_by_drs(self) -> bool {
        matches!(self.episode.phase, Phase::PoweringOn { by_drs: true }) && self.drs()
    }

    /// A running task is awaited in any case: it ends by itself, and its end is observed.
    fn is_power_on_running(self) -> bool {
        let attempt = self.seen.attempt(EffectKind::PowerOn);
        attempt.is_some_and(|it| it.outcome.running_task().is_some())
    }

    pub(super) fn unless_placeable(self) -> Option<PhaseStep> {
        let is_wanted = self.keeps_off().is_none() && self.relocation().is_none();
        let is_placeable = is_wanted && (self.vm.host.takes_vms() || self.is_placed_by_drs());
        (!is_placeable && !self.is_power_on_running()).then(|| self.choose_again(None))
    }

    pub(super) fn after_refusal(self) -> Option<PhaseStep> {
        let attempt = self.seen.attempt(EffectKind::PowerOn)?;
        self.after_refused_power_on(self.is_placed_by_drs(), attempt, attempt.outcome.refusal()?)
    }

    pub(super) fn reconfigure_before_power_on(self) -> Option<PhaseStep> {
        let is_due = !self.is_placed_by_drs() && !self.is_power_on_running();
        is_due.then(|| self.reconfigure_first()).flatten()
    }

    pub(super) fn power_on(self) -> PhaseStep {
        let Some(place) = self.place(self.is_placed_by_drs()) else {
            return self.choose_again(None);
        };
        let step = self.start_or_retry(EffectKind::PowerOn, task_wait(EffectKind::PowerOn), || {
            Ok(Effect::PowerOn {
                vm: self.vm.moref.clone(),
                place,
            })
        });
        self.unless_overdue(self.phase_deadline(self.policy.power_on_timeout), step)
    }

    /// The step after a refused power-on; `None` where it is only retried.
    fn after_refused_power_on(
        self,
        by_drs: bool,
        attempt: &EffectAttempt,
        refusal: &EffectRefusal,
    ) -> Option<PhaseStep> {
        let here = self.vm.host_ref.as_ref();
        if by_drs {
            // `AwaitingHost` retries DRS after a backoff.
            let is_placed_again = matches!(refusal.advice, RetryAdvice::OtherHost | RetryAdvice::MayPass);
            return (is_placed_again || !self.vm.host.takes_vms()).then(|| self.choose_again(None));
        }
        if self.is_at_home() {
            let is_hopeless = refusal.advice.speaks_against_host()
                && refusal.advice != RetryAdvice::Person
                && attempt.refusals >= TRIES
                && self.node.overrides.strategy == Strategy::Migrate;
            return is_hopeless
                .then(|| self.choose_again(here.map(|host| (host, RefusedMove::PowerOn, refusal))));
        }
        // A refusal that may pass is retried here, unless its own host is back.
        (self.is_refused_for_good(attempt, refusal) || self.is_home_back())
            .then(|| self.choose_again(here.map(|host| (host, RefusedMove::PowerOn, refusal))))
    }

    /// The VM is on, by our power-on or by another one. It is accepted on the host where it is.
    pub(super) fn found_running(self) -> PhaseStep {
        let here = host_of(self.vm);
        let moved = here.moref.is_some() && !self.is_at_home();
        let relocation_failure = if self.is_relocation_missed(&here, moved) {
            Some(format!("vCenter powered it on on {here}"))
        } else {
            self.episode.relocation_failure.clone()
        };
        // It shows that this was done against the request.
        let request = self.keeps_off().map(|request| &request.identity);
        let kept_off_by = self
            .episode
            .power_off_request
            .clone()
            .filter(|it| Some(it) == request);
        let episode = Episode {
            powered_off: true,
            in_flight: InFlight::default(),
            relocation_failure,
            power_off_request: kept_off_by,
            moved_to: moved.then_some(here),
            ..self.enter(Phase::Rejoining)
        };
        if self.episode.cordon == CordonOwner::Theirs {
            // Operators on the node may uncordon it at boot, also after a person cordoned it.
            return PhaseStep::record(Transition {
                unschedulable: (!self.node.unschedulable).then_some(true),
                ..transition_to(episode)
            });
        }
        PhaseStep::record(cordoned(episode, self.node))
    }

    /// Whether a requested relocation ended on another host than requested. Then it is given up: the VM is not powered off again for
    /// it. A VM that somebody powered on at home before its relocation is still relocated.
    fn is_relocation_missed(self, here: &HostIdentity, moved: bool) -> bool {
        let Some(RequestAction::Relocate { to }) = self.seen.request.as_ref().map(|asked| &asked.action)
        else {
            return false;
        };
        let is_elsewhere = to.as_ref().map_or(!moved, |to| **to != *here.name);
        is_elsewhere && (moved || self.episode.moved_to.is_some())
    }
}
