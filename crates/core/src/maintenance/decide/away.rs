//! While the VM is off: move it, wait for its host, power it on.

use super::context::{PhaseContext, PhaseStep, as_asked, at_latest};
use super::{Transition, cordoned, go};
use crate::ids::HostRef;
use crate::maintenance::clock::{Monotonic, whole_second};
use crate::maintenance::effect::{Effect, EffectKind, PowerOnTarget};
use crate::maintenance::episode::{CordonOwner, Episode, HostIdentity, InFlight, Phase, RefusedMove};
use crate::maintenance::observed::{AttemptOutcome, EffectAttempt, EffectRefusal, Strategy};
use crate::maintenance::request::{DesiredState, Request, RequestAction};
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// How many times a Node that somebody uncordons while its VM is away or boots is cordoned again. The GPU Operator's driver
/// manager uncordons once at each boot, and another operator may do the same; more than that is a wish.
const RECORDONS_AWAY: u8 = 3;

/// How many times the VM may go off again before its node is back; after that it is left off for a person. It is powered on
/// after pauses that double, so the last comes half a minute or more after the first.
const POWER_LOSSES: u8 = 5;

/// How many readings of other hosts a move that is asked for waits for. A host that cannot be read by then is none to go to.
const SURVEYS_FIRST: u32 = 3;

impl<'a> PhaseContext<'a> {
    /// The VM is seen off, by our doing or somebody else's: from here on the node is only back with another boot.
    pub(super) fn went_off(self) -> PhaseStep {
        let is_lost_again = self.episode.phase == Phase::Rejoining && self.episode.powered_off;
        let losses = self.episode.power_losses.saturating_add(u8::from(is_lost_again));
        if losses > POWER_LOSSES {
            return PhaseStep::park(ParkReason::PowerLost { losses });
        }
        // One that keeps going off is not powered on again at once.
        let way_on = self.way_on().filter(|_| losses == 0);
        let on = self.on_to(way_on.unwrap_or(Phase::AwaitingHost));
        let episode = Episode {
            powered_off: true,
            in_flight: InFlight::default(),
            recordoned: 0,
            power_losses: losses,
            ..on
        };
        PhaseStep::Go(cordoned(episode, self.node))
    }

    /// The Node was uncordoned while its VM is away or boots: cordoned again, so that nothing is scheduled there before its GPUs
    /// are back. Whose the cordon was stays as it was, and with it what is left at the end.
    pub(super) fn cordon_again(self) -> Option<PhaseStep> {
        // Noted while it stands: it may be lifted by somebody whose cordon it is not.
        if super::is_anothers(&self.episode.cordon, self.node) {
            return Some(PhaseStep::Go(go(Episode {
                cordon: CordonOwner::Theirs,
                ..self.episode.clone()
            })));
        }
        if self.node.unschedulable || self.episode.recordoned >= RECORDONS_AWAY {
            return None;
        }
        let again = go(Episode {
            recordoned: self.episode.recordoned.saturating_add(1),
            ..self.episode.clone()
        });
        Some(PhaseStep::Go(Transition {
            unschedulable: Some(true),
            ..again
        }))
    }

    /// The episode in `phase`. A relocation that is asked for and cannot be had is given up with the power-on.
    fn on_to(self, phase: Phase) -> Episode {
        let gave_up = match (&phase, self.relocation()) {
            (Phase::PoweringOn { .. }, Some(request)) => Some(self.no_place_for(request).to_string()),
            _ => self.episode.gave_up.clone(),
        };
        // The VM is off, so whatever boot the Node tells is one from before.
        let told = self.node.boot_id.as_ref();
        let before = told.or(self.episode.boot_before.as_ref());
        Episode {
            gave_up,
            kept_off_by: None,
            boot_before: before.cloned(),
            ..self.enter(phase)
        }
    }

    /// The request that asks for the VM to be kept off, where one does.
    pub(super) fn keeps_off(self) -> Option<&'a Request> {
        let request = self.seen.request.as_ref()?;
        (request.action == RequestAction::PowerOff).then_some(request)
    }

    /// The request that asks for the VM to be moved, where one does and it has not been.
    pub(super) fn relocation(self) -> Option<&'a Request> {
        let request = self.seen.request.as_ref()?;
        let relocates = matches!(request.action, RequestAction::Relocate { .. });
        (relocates && request.is_unmet(self.episode)).then_some(request)
    }

    /// With the VM on, before it is drained and again before it is shut down: a look for a place, where a person asks for a
    /// move and nothing else calls the node out of service. `None` where there is a place, or where none has to be. The
    /// place is not reserved: a VM that is off has more need of it. So it may be gone when this one is off as well.
    pub(super) fn place_first(self) -> Option<PhaseStep> {
        let request = self.relocation()?;
        if !super::is_to_be_placed_first(&self.vm.host, Some(request)) {
            return None;
        }
        let survey = self.seen.attempt(EffectKind::Survey);
        let is_answered = survey.is_some_and(|attempt| attempt.outcome != AttemptOutcome::Asked);
        let offer = &self.seen.offer;
        if is_answered && offer.fits.is_some() {
            return None;
        }
        // A host that has not been read, for one because vCenter was lost meanwhile, may have a place. It is not waited for
        // for ever: the slot may be held meanwhile.
        let tries = self
            .seen
            .attempts
            .get(&EffectKind::Survey)
            .map_or(0, |it| it.tries);
        let is_read = !offer.has_unread() || tries >= SURVEYS_FIRST;
        if offer.fits.is_none() && self.has_surveyed() && is_read {
            let gave_up = Some(self.no_place_for(request).to_string());
            return Some(PhaseStep::Go(go(Episode {
                gave_up,
                ..self.episode.clone()
            })));
        }
        Some(match self.survey_at() {
            Some(at) if self.now.monotonic >= at => PhaseStep::act(
                Effect::Survey {
                    hosts: offer.survey.clone(),
                },
                WaitingOn::Survey,
            ),
            survey_at => PhaseStep::Wait {
                waiting_on: WaitingOn::Survey,
                recheck: survey_at,
            },
        })
    }

    /// The end of a move that was given up with the VM on.
    pub(super) fn given_up(self) -> Option<PhaseStep> {
        let request = self.seen.request.as_ref();
        let is_over = self.episode.gave_up.is_some() && super::is_to_be_placed_first(&self.vm.host, request);
        if !is_over {
            return None;
        }
        if self.episode.powered_off || !self.in_flight().is_empty() {
            return Some(self.finish());
        }
        Some(self.end(request.map(|request| request.mark.clone())))
    }

    fn no_place_for(self, request: &Request) -> WaitingOn {
        WaitingOn::Place {
            request: request.mark.clone(),
            refused: self.seen.offer.refused.clone(),
        }
    }

    /// DRS may place it: it is fully automated for the VM, and nobody wants the VM to wait or to go elsewhere.
    pub(super) fn drs(self) -> bool {
        self.vm.drs && self.node.wishes.strategy == Strategy::Migrate && self.relocation().is_none()
    }

    /// The host that the episode is about is back, and the VM stands on another one.
    pub(super) fn is_home_back(self) -> bool {
        self.seen.home.takes_vms() && !self.is_at_home()
    }

    /// Off, and neither being moved nor powered on.
    pub(super) fn awaiting_host(self) -> PhaseStep {
        if let Some(request) = self.keeps_off() {
            return self.kept_off(request);
        }
        if let DesiredState::Interrupted { until, said } = self.call() {
            return Self::interrupted(until, said);
        }
        if let Some(pause) = self.power_on_pause() {
            return pause;
        }
        if let Some(phase) = self.way_on() {
            return PhaseStep::Go(go(self.on_to(phase)));
        }
        let survey_at = self.survey_at();
        if survey_at.is_some_and(|at| self.now.monotonic >= at) {
            let effect = Effect::Survey {
                hosts: self.seen.offer.survey.clone(),
            };
            // Before the first reading, nothing is known that could be waited for.
            let is_first = self.seen.attempt(EffectKind::Survey).is_none();
            let waiting_on = if is_first {
                WaitingOn::Survey
            } else {
                self.nowhere_to_go()
            };
            return PhaseStep::act(effect, waiting_on);
        }
        let retry_at = self.not_before(EffectKind::Relocate);
        let step = self
            .power_on_again()
            .unwrap_or_else(|| PhaseStep::wait(self.nowhere_to_go()));
        match [survey_at, retry_at].into_iter().flatten().min() {
            Some(at) => at_latest(at, step),
            None => step,
        }
    }

    /// Kept off for a request, which is written down: a process that cannot read requests must not power the VM on.
    fn kept_off(self, request: &Request) -> PhaseStep {
        if self.episode.kept_off_by.as_ref() == Some(&request.mark) {
            return PhaseStep::wait(as_asked(request));
        }
        PhaseStep::Go(go(Episode {
            kept_off_by: Some(request.mark.clone()),
            ..self.episode.clone()
        }))
    }

    /// The pause before a VM that keeps going off is powered on again.
    fn power_on_pause(self) -> Option<PhaseStep> {
        let losses = self.episode.power_losses;
        let pause = self.phase_deadline(self.policy.backoff(u32::from(losses)));
        if losses == 0 || self.is_past(pause) {
            return None;
        }
        let waiting_on = WaitingOn::PowerOnPause {
            losses,
            at: pause.shown,
        };
        Some(PhaseStep::wait_until(waiting_on, pause.at))
    }

    fn nowhere_to_go(self) -> WaitingOn {
        if let Some(request) = self.relocation() {
            return self.no_place_for(request);
        }
        let home = &self.seen.home;
        // It may have been renamed since.
        let host = if self.is_at_home() {
            self.vm.on_name.clone()
        } else {
            self.episode.host.name.to_string()
        };
        let state = home.words();
        if home.is_leaving() || home.is_out() {
            WaitingOn::HostExit {
                host,
                state,
                refused: self.seen.offer.refused.clone(),
            }
        } else {
            WaitingOn::HostVisible { host, state }
        }
    }

    /// A VM whose own host, or DRS, refused to power it on is powered on again from here, at the pace of its backoff: to go
    /// to and fro between two phases would cost two writes for each try. No other host is asked twice.
    fn power_on_again(self) -> Option<PhaseStep> {
        let attempt = self.seen.attempts.get(&EffectKind::PowerOn)?;
        let place = self.place(self.drs() && !self.vm.host.takes_vms());
        let may_ask = match &place {
            Some(PowerOnTarget::Drs) => true,
            Some(PowerOnTarget::Host(_)) => self.is_at_home() && self.vm.host.takes_vms(),
            None => false,
        };
        if self.relocation().is_some() || !may_ask {
            return None;
        }
        let effect = Effect::PowerOn {
            vm: self.vm.moref.clone(),
            place: place?,
        };
        match &attempt.outcome {
            AttemptOutcome::Refused(refusal) => {
                let at = self.retry_at(attempt, refusal);
                let waiting_on = WaitingOn::Retry {
                    effect: EffectKind::PowerOn,
                    said: refusal.said.clone(),
                    at: whole_second(at.wall),
                };
                let step = if self.now.monotonic >= at.monotonic {
                    PhaseStep::act(effect, waiting_on)
                } else {
                    PhaseStep::wait_until(waiting_on, at.monotonic)
                };
                let deadline = self.phase_deadline(self.policy.power_on_timeout);
                Some(self.unless_overdue(deadline, step))
            }
            AttemptOutcome::Running(_) => Some(PhaseStep::wait(WaitingOn::Task(EffectKind::PowerOn))),
            AttemptOutcome::Asked | AttemptOutcome::Done => None,
        }
    }

    /// Where the VM would be powered on.
    pub(super) fn place(self, by_drs: bool) -> Option<PowerOnTarget> {
        if by_drs {
            return Some(PowerOnTarget::Drs);
        }
        self.vm.on.clone().map(PowerOnTarget::Host)
    }

    /// Whether the VM can be powered on where it stands, as far as known.
    fn may_stay(self) -> bool {
        let has_refused = |host| self.episode.refusal_of(host).is_some();
        self.vm.host.takes_vms() && !self.vm.on.as_ref().is_some_and(has_refused)
    }

    /// The next phase of a VM that is off, where there is one: powered on where it stands if its host takes VMs, else
    /// where DRS or we can place it. Its own host comes before all others as soon as it is back.
    fn way_on(self) -> Option<Phase> {
        let attempt = self.seen.attempts.get(&EffectKind::PowerOn);
        let is_running = |attempt: &EffectAttempt| matches!(attempt.outcome, AttemptOutcome::Running(_));
        let is_interrupted = matches!(self.call(), DesiredState::Interrupted { .. });
        if attempt.is_some_and(is_running) || self.keeps_off().is_some() || is_interrupted {
            return None;
        }
        if self.relocation().is_none() && self.may_stay() {
            return Some(Phase::PoweringOn { by_drs: false });
        }
        if self.drs() && !self.is_home_back() {
            let is_refused = attempt.is_some_and(|it| matches!(it.outcome, AttemptOutcome::Refused(_)));
            return (!is_refused).then_some(Phase::PoweringOn { by_drs: true });
        }
        if self.not_before(EffectKind::Relocate).is_some() {
            return None;
        }
        // Who holds which device elsewhere is only known from a reading made during this wait.
        let has_read = self.seen.attempt(EffectKind::Survey).is_some();
        if let Some((moref, name)) = self.seen.offer.fits.clone().filter(|_| has_read) {
            let to = HostIdentity {
                moref: Some(moref),
                name: name.into(),
            };
            return Some(Phase::Relocating { to });
        }
        // Before it waits for a host, nobody has looked for one.
        let has_looked = *self.episode.phase.at_work() == Phase::AwaitingHost && self.has_surveyed();
        let given_up = self.relocation().is_some() && has_looked && self.may_stay();
        given_up.then_some(Phase::PoweringOn { by_drs: false })
    }

    /// Whether everything that can be read of other hosts has been, in this wait.
    fn has_surveyed(self) -> bool {
        let survey = self.seen.attempt(EffectKind::Survey);
        let done = survey.is_some_and(|attempt| attempt.outcome == AttemptOutcome::Done);
        done || self.seen.offer.survey.is_empty()
    }

    /// When to survey other hosts: at once in a wait that has seen no survey, then at the configured pace. Waits that follow
    /// each other quickly do not read at the speed of the network. `None` where no host depends on one.
    fn survey_at(self) -> Option<Monotonic> {
        if self.seen.offer.survey.is_empty() {
            return None;
        }
        let Some(attempt) = self.seen.attempts.get(&EffectKind::Survey) else {
            return Some(Monotonic::default());
        };
        let again = if self.seen.attempt(EffectKind::Survey).is_none() {
            attempt.at.after(self.policy.backoff(attempt.tries))
        } else {
            match &attempt.outcome {
                AttemptOutcome::Refused(refusal) => self.retry_at(attempt, refusal),
                AttemptOutcome::Asked | AttemptOutcome::Running(_) | AttemptOutcome::Done => {
                    attempt.at.after(self.policy.survey_every)
                }
            }
        };
        Some(again.monotonic)
    }

    /// Off, with a host reserved for it.
    pub(super) fn relocating(self, to: &HostIdentity) -> PhaseStep {
        if to.moref.is_some() && self.vm.on == to.moref {
            let is_home = self.is_at_home();
            let episode = Episode {
                moved_to: (!is_home).then(|| to.clone()),
                ..self.enter(Phase::PoweringOn { by_drs: false })
            };
            return PhaseStep::Go(go(episode));
        }
        let attempt = self.seen.attempt(EffectKind::Relocate);
        let step = match (attempt.map(|attempt| &attempt.outcome), &to.moref) {
            (Some(AttemptOutcome::Running(_)), _) => PhaseStep::wait(WaitingOn::Task(EffectKind::Relocate)),
            // Another host may take it, or its own: choose again from the facts as they are.
            (Some(AttemptOutcome::Refused(refusal)), Some(target))
                if refusal.advice.speaks_against_host() =>
            {
                self.choose_again(Some((target, RefusedMove::Relocate, refusal)))
            }
            (
                Some(AttemptOutcome::Asked | AttemptOutcome::Done | AttemptOutcome::Refused(_)) | None,
                Some(target),
            ) if self.is_still_to_go(to) => {
                let effect = || {
                    Ok(Effect::Relocate {
                        vm: self.vm.moref.clone(),
                        to: target.clone(),
                    })
                };
                self.pursue(
                    EffectKind::Relocate,
                    WaitingOn::Task(EffectKind::Relocate),
                    effect,
                )
            }
            (Some(_) | None, Some(_) | None) => self.choose_again(None),
        };
        self.unless_overdue(self.phase_deadline(self.policy.relocate_timeout), step)
    }

    /// Whether the VM is still to be moved to `to`: that host takes it, and its own has not come back meanwhile.
    fn is_still_to_go(self, to: &HostIdentity) -> bool {
        let is_asked_for = self.relocation().is_some();
        let is_home = to.moref.as_ref() == self.home();
        self.seen.target.takes_vms()
            && self.keeps_off().is_none()
            && (is_asked_for || !self.may_stay())
            && (is_asked_for || is_home || !self.is_home_back())
    }

    /// Back to the choice of a host. What a host refused is noted, so that it is not chosen again.
    pub(super) fn choose_again(self, refused: Option<(&HostRef, RefusedMove, &EffectRefusal)>) -> PhaseStep {
        let mut episode = self.enter(Phase::AwaitingHost);
        if let Some((host, what, refusal)) = refused
            && (what == RefusedMove::PowerOn || self.home() != Some(host))
        {
            episode.refused(host, what, &refusal.said);
        }
        PhaseStep::Go(go(episode))
    }
}
