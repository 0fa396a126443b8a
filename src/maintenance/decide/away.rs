//! While the VM is off: move it, wait for its host, power it on.

use jiff::Timestamp;

use super::scene::{self, Scene, Step, as_asked};
use super::{cordoned, go, stands_on};
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::{Episode, HostMark, Phase};
use crate::maintenance::observed::{Advice, Outcome, Strategy};
use crate::maintenance::policy::after;
use crate::maintenance::request::{Action, Request};
use crate::maintenance::waiting::WaitingOn;

impl<'a> Scene<'a> {
    /// The VM is seen off, by our doing or somebody else's: from here on the node is only back with another boot.
    pub(super) fn went_off(self) -> Step {
        let on = self.on_to(self.way_on().unwrap_or(Phase::AwaitingHost));
        let episode = Episode {
            powered_off: true,
            boot_before: self
                .node
                .boot_id
                .clone()
                .or_else(|| self.episode.boot_before.clone()),
            ..on
        };
        Step::Go(cordoned(episode, self.node))
    }

    /// The episode in `phase`. A relocation that is asked for and cannot be had is given up with the power-on.
    fn on_to(self, phase: Phase) -> Episode {
        let gave_up = match (&phase, self.relocation()) {
            (Phase::PoweringOn { .. }, Some(request)) => Some(self.no_place_for(request).to_string()),
            _ => self.episode.gave_up.clone(),
        };
        Episode {
            gave_up,
            ..self.episode.enter(phase, self.now)
        }
    }

    /// The request that asks for the VM to be kept off, where one does.
    fn keeps_off(self) -> Option<&'a Request> {
        let request = self.seen.request.as_ref()?;
        (request.action == Action::PowerOff).then_some(request)
    }

    /// The request that asks for the VM to be moved, where one does and it has not been.
    pub(super) fn relocation(self) -> Option<&'a Request> {
        let request = self.seen.request.as_ref()?;
        let relocates = matches!(request.action, Action::Relocate { .. });
        (relocates && request.is_unmet(self.episode)).then_some(request)
    }

    /// With the VM on, before it is drained and again before it is shut down: a look for a place, where a person asks for a
    /// move and nothing else calls the node out of service. `None` where there is a place, or where none has to be. The
    /// place is not reserved: a VM that is off has more need of it. So it may be gone when this one is off as well.
    pub(super) fn place_first(self) -> Option<Step> {
        let request = self.relocation()?;
        if !super::is_to_be_placed_first(&self.vm.host, Some(request)) {
            return None;
        }
        let survey = self.seen.attempt(EffectKind::Survey, self.episode.since);
        let is_answered = survey.is_some_and(|attempt| attempt.outcome != Outcome::Asked);
        let offer = &self.seen.offer;
        if is_answered && offer.fits.is_some() {
            return None;
        }
        // A host that has not been read, for one because vCenter was lost meanwhile, may have a place.
        if offer.fits.is_none() && self.has_surveyed() && !offer.has_unread() {
            let gave_up = Some(self.no_place_for(request).to_string());
            return Some(Step::Go(go(Episode {
                gave_up,
                ..self.episode.clone()
            })));
        }
        Some(match self.survey_at() {
            Some(at) if self.now >= at => Step::Do {
                effect: Effect::Survey {
                    hosts: offer.survey.clone(),
                },
                waiting_on: WaitingOn::Survey,
                recheck: None,
            },
            survey_at => Step::Wait {
                waiting_on: WaitingOn::Survey,
                recheck: survey_at,
            },
        })
    }

    /// The end of a move that was given up with the VM on.
    pub(super) fn given_up(self) -> Option<Step> {
        let request = self.seen.request.as_ref();
        let is_over = self.episode.gave_up.is_some() && super::is_to_be_placed_first(&self.vm.host, request);
        is_over.then(|| self.end(request.map(|request| request.mark.clone())))
    }

    fn no_place_for(self, request: &Request) -> WaitingOn {
        WaitingOn::Place {
            request: request.mark.clone(),
            refused: self.seen.offer.refused.clone(),
        }
    }

    /// DRS may place it: it is fully automated for the VM, and nobody wants the VM to wait or to go elsewhere.
    fn drs(self) -> bool {
        self.vm.drs && self.node.wishes.strategy == Strategy::Migrate && self.relocation().is_none()
    }

    /// Off, and neither being moved nor powered on.
    pub(super) fn awaiting_host(self) -> Step {
        if let Some(request) = self.keeps_off() {
            return Step::Wait {
                waiting_on: as_asked(request),
                recheck: None,
            };
        }
        if let Some(phase) = self.way_on() {
            return Step::Go(go(self.on_to(phase)));
        }
        let survey_at = self.survey_at();
        if survey_at.is_some_and(|at| self.now >= at) {
            let effect = Effect::Survey {
                hosts: self.seen.offer.survey.clone(),
            };
            // Before the first reading, nothing is known that could be waited for.
            let is_first = self
                .seen
                .attempt(EffectKind::Survey, self.episode.since)
                .is_none();
            let waiting_on = if is_first {
                WaitingOn::Survey
            } else {
                self.nowhere_to_go()
            };
            return Step::Do {
                effect,
                waiting_on,
                recheck: None,
            };
        }
        let retry_at = self.not_before(EffectKind::Relocate);
        let at_latest = |step| match [survey_at, retry_at].into_iter().flatten().min() {
            Some(at) => scene::at_latest(at, step),
            None => step,
        };
        at_latest(match self.power_on_again() {
            Some(step) => step,
            None => Step::Wait {
                waiting_on: self.nowhere_to_go(),
                recheck: None,
            },
        })
    }

    fn nowhere_to_go(self) -> WaitingOn {
        if let Some(request) = self.relocation() {
            return self.no_place_for(request);
        }
        let (host, state) = (self.vm.on_name.clone(), self.vm.host.words());
        if self.vm.host.is_leaving() || self.vm.host.is_out() {
            WaitingOn::HostExit {
                host,
                state,
                refused: self.seen.offer.refused.clone(),
            }
        } else {
            WaitingOn::HostVisible { host, state }
        }
    }

    /// A VM whose power-on was refused for want of a place is powered on again from here, at the pace of its backoff:
    /// to go to and fro between two phases would cost two writes for each try.
    fn power_on_again(self) -> Option<Step> {
        let attempt = self.seen.attempts.get(&EffectKind::PowerOn)?;
        if self.relocation().is_some() || !(self.vm.host.takes_vms() || self.drs()) {
            return None;
        }
        let effect = Effect::PowerOn {
            vm: self.vm.moref.clone(),
            by_drs: self.drs(),
        };
        match &attempt.outcome {
            Outcome::Refused(refusal) => Some(self.retry(effect, attempt, refusal)),
            Outcome::Running(_) => Some(Step::Wait {
                waiting_on: WaitingOn::Task(EffectKind::PowerOn),
                recheck: None,
            }),
            Outcome::Asked | Outcome::Done => None,
        }
    }

    /// Whether the VM can be powered on where it stands, as far as known.
    fn may_stay(self) -> bool {
        self.vm.host.takes_vms() && self.power_on_refused() != Some(Advice::OtherHost)
    }

    /// What the latest power-on was refused for, if it was, in whatever phase that was.
    fn power_on_refused(self) -> Option<Advice> {
        match &self.seen.attempts.get(&EffectKind::PowerOn)?.outcome {
            Outcome::Refused(refusal) => Some(refusal.advice),
            Outcome::Asked | Outcome::Running(_) | Outcome::Done => None,
        }
    }

    /// The next phase of a VM that is off, where there is one: powered on where it stands if its host takes VMs, else
    /// where DRS or we can place it.
    fn way_on(self) -> Option<Phase> {
        let attempt = self.seen.attempts.get(&EffectKind::PowerOn);
        if attempt.is_some_and(|attempt| matches!(attempt.outcome, Outcome::Running(_))) {
            return None;
        }
        if self.keeps_off().is_some() {
            return None;
        }
        let by_drs = self.drs();
        if self.relocation().is_none() && self.may_stay() {
            return Some(Phase::PoweringOn { by_drs });
        }
        if by_drs {
            return self
                .power_on_refused()
                .is_none()
                .then_some(Phase::PoweringOn { by_drs: true });
        }
        if self.not_before(EffectKind::Relocate).is_some() {
            return None;
        }
        // Who holds which device elsewhere is only known from a reading made during this wait.
        if let (Some((moref, name)), Some(_)) = (
            self.seen.offer.fits.clone(),
            self.seen.attempt(EffectKind::Survey, self.episode.since),
        ) {
            let to = HostMark {
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
        let survey = self.seen.attempt(EffectKind::Survey, self.episode.since);
        let done = survey.is_some_and(|attempt| attempt.outcome == Outcome::Done);
        done || self.seen.offer.survey.is_empty()
    }

    /// When to survey other hosts: at once in a wait that has seen no survey, then at the configured pace. `None` where
    /// no host depends on one.
    fn survey_at(self) -> Option<Timestamp> {
        if self.seen.offer.survey.is_empty() {
            return None;
        }
        Some(match self.seen.attempt(EffectKind::Survey, self.episode.since) {
            None => Timestamp::MIN,
            Some(attempt) => match &attempt.outcome {
                Outcome::Refused(refusal) => self.retry_at(attempt, refusal),
                Outcome::Asked | Outcome::Running(_) | Outcome::Done => {
                    after(attempt.at, self.policy.survey_every)
                }
            },
        })
    }

    /// Off, with a host reserved for it.
    pub(super) fn relocating(self, to: &HostMark) -> Step {
        if to.moref.is_some() && self.vm.on == to.moref {
            let episode = Episode {
                moved_to: Some(to.clone()),
                ..self.episode.enter(Phase::PoweringOn { by_drs: false }, self.now)
            };
            return Step::Go(go(episode));
        }
        let step = match self
            .seen
            .attempt(EffectKind::Relocate, self.episode.since)
            .map(|attempt| &attempt.outcome)
        {
            Some(Outcome::Running(_)) => Step::Wait {
                waiting_on: WaitingOn::Task(EffectKind::Relocate),
                recheck: None,
            },
            // Another host may take it, or its own: choose again from the facts as they are.
            Some(Outcome::Refused(_)) => self.choose_again(),
            Some(Outcome::Asked | Outcome::Done) | None => match &to.moref {
                Some(target)
                    if self.seen.target.takes_vms() && (self.relocation().is_some() || !self.may_stay()) =>
                {
                    let effect = Effect::Relocate {
                        vm: self.vm.moref.clone(),
                        to: target.clone(),
                    };
                    self.pursue(effect, WaitingOn::Task(EffectKind::Relocate))
                }
                Some(_) | None => self.choose_again(),
            },
        };
        self.unless_overdue(after(self.episode.since, self.policy.relocate_timeout), step)
    }

    fn choose_again(self) -> Step {
        Step::Go(go(self.episode.enter(Phase::AwaitingHost, self.now)))
    }

    /// Off, to be powered on.
    pub(super) fn powering_on(self, by_drs: bool) -> Step {
        let wanted = self.keeps_off().is_none() && self.relocation().is_none();
        let placeable = wanted && (self.vm.host.takes_vms() || (by_drs && self.drs()));
        let (refused, running) = match self
            .seen
            .attempt(EffectKind::PowerOn, self.episode.since)
            .map(|attempt| &attempt.outcome)
        {
            Some(Outcome::Refused(refusal)) => (Some(refusal.advice), false),
            Some(Outcome::Running(_)) => (None, true),
            Some(Outcome::Asked | Outcome::Done) | None => (None, false),
        };
        // For want of a place here: another host may have one, or this one later.
        let no_place = refused == Some(Advice::OtherHost) || (refused.is_some() && !self.vm.host.takes_vms());
        // A task under way is waited for whatever became of the host: it ends by itself, and its end is a fact.
        if !running && (!placeable || no_place) {
            return self.choose_again();
        }
        if let Some(question) = &self.vm.question {
            return Step::Wait {
                waiting_on: WaitingOn::Question(question.clone()),
                recheck: None,
            };
        }
        let effect = Effect::PowerOn {
            vm: self.vm.moref.clone(),
            by_drs,
        };
        let step = self.pursue(effect, WaitingOn::Task(EffectKind::PowerOn));
        self.unless_overdue(after(self.episode.since, self.policy.power_on_timeout), step)
    }

    /// The VM is found on in a phase that expects it off, or expects it to come on: it is accepted where it stands.
    pub(super) fn found_running(self) -> Step {
        let here = stands_on(self.vm);
        let moved = here.moref.is_some() && here.name != self.episode.host.name;
        let episode = Episode {
            powered_off: true,
            moved_to: if moved {
                Some(here)
            } else {
                self.episode.moved_to.clone()
            },
            ..self.episode.enter(Phase::Rejoining, self.now)
        };
        Step::Go(cordoned(episode, self.node))
    }
}
