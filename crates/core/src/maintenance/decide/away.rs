//! The phases while the VM is off: relocate it, wait for its host, power it on.

use super::context::{PhaseContext, PhaseStep, at_latest, task_wait, until_deleted};
use super::{Transition, cordoned, transition_to};
use crate::facts::kubernetes::RequestAction;
use crate::ids::{BootId, HostRef};
use crate::maintenance::clock::Monotonic;
use crate::maintenance::desired::DesiredState;
use crate::maintenance::effect::{Effect, EffectKind, PowerOnTarget};
use crate::maintenance::episode::{Episode, HostIdentity, HostRefusal, InFlight, Phase, RefusedMove};
use crate::maintenance::observed::{AttemptOutcome, EffectRefusal, HostState, Strategy};
use crate::maintenance::placement::{RejectedHost, RejectionReason};
use crate::maintenance::request::Request;
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// How many times a Node is cordoned again that was uncordoned while its VM is off or boots. The driver manager of the GPU
/// Operator uncordons once per boot, and another operator may do the same; more is taken for intended.
const RECORDONS_AWAY: u8 = 3;

/// How many times the VM may go off again before its node is back. After that it stays off and the node is parked. The pauses
/// between power-ons double.
const POWER_LOSSES: u8 = 5;

const RELOCATION: WaitingOn = task_wait(EffectKind::Relocate);

/// How many surveys a requested relocation waits for. Hosts that are still unreadable then are not considered.
const SURVEYS_FIRST: u32 = 3;

impl<'a> PhaseContext<'a> {
    /// The VM was seen off, whatever the cause. From now on the node only counts as back on another boot.
    pub(super) fn powered_off(self) -> PhaseStep {
        let is_lost_again = self.episode.phase == Phase::Rejoining && self.episode.powered_off;
        let losses = self.episode.power_losses.saturating_add(u8::from(is_lost_again));
        if losses > POWER_LOSSES {
            return PhaseStep::park(ParkReason::PowerLost { losses });
        }
        // A VM that keeps going off is powered on again only after a pause.
        let next_phase = self.next_phase().filter(|_| losses == 0);
        let episode = Episode {
            powered_off: true,
            in_flight: InFlight::default(),
            recordoned: 0,
            power_losses: losses,
            left_behind: self.left_when_off(),
            power_off_request: self.keeps_off().map(|request| request.identity.clone()),
            ..self.enter_while_off(next_phase.unwrap_or(Phase::AwaitingHost))
        };
        PhaseStep::record(cordoned(episode, self.node))
    }

    /// The pods that ended with the VM: those of the last list, where it went off before they were gone.
    fn left_when_off(self) -> Vec<String> {
        let was_draining = matches!(
            self.episode.phase.at_work(),
            Phase::Draining | Phase::ShuttingDown(_)
        );
        match self.seen.round().filter(|_| was_draining) {
            Some(report) => self.left_behind(report),
            None => self.episode.left_behind.clone(),
        }
    }

    /// Cordons a Node again that was uncordoned while its VM is off or boots, so that no pod is scheduled before its GPUs are back.
    /// The owner of the cordon stays the same.
    pub(super) fn restore_cordon(self) -> Option<PhaseStep> {
        if self.node.unschedulable || self.episode.recordoned >= RECORDONS_AWAY {
            return None;
        }
        Some(PhaseStep::record(Transition {
            unschedulable: Some(true),
            ..transition_to(Episode {
                recordoned: self.episode.recordoned.saturating_add(1),
                ..self.episode.clone()
            })
        }))
    }

    /// The episode in `phase`. A power-on gives up a requested relocation that was not possible. A relocation to another host although
    /// its own is back records why: its own could not take the VM. Otherwise it would be given up for a host that never takes it.
    fn enter_while_off(self, phase: Phase) -> Episode {
        let is_elsewhere = |to: &HostIdentity| to.moref.as_ref() != self.home();
        let passes_over =
            self.relocation().is_none() && self.is_home_back() && phase.target().is_some_and(is_elsewhere);
        let passed_over = self.home().filter(|_| passes_over);
        let relocation_failure = match (&phase, self.relocation()) {
            (Phase::PoweringOn { .. }, Some(request)) => Some(self.no_host_for(request).to_string()),
            _ => self.episode.relocation_failure.clone(),
        };
        // The VM is off, so the ResourceSlices of the Node are those from before.
        let mut episode = Episode {
            relocation_failure,
            power_off_request: None,
            boot_before: self.boot_before().cloned(),
            slices_before: self.node.newest_slice.or(self.episode.slices_before),
            ..self.enter(phase)
        };
        if let Some(home) = passed_over {
            episode.refused(
                home,
                RefusedMove::Relocate,
                "it could not take the VM when another host was chosen",
            );
        }
        episode
    }

    /// The boot from before the power cycle: the one of the Node when its VM goes off. A Node that reports another one while its VM
    /// is off, or than the one that was drained, shows that the VM was on, or that vCenter is behind. Which of the two is not known,
    /// so no boot is recorded then, and Ready counts only after the time in which a stopped kubelet would have lost it.
    fn boot_before(self) -> Option<&'a BootId> {
        let (reported, recorded) = (self.node.boot_id.as_ref(), self.episode.boot_before.as_ref());
        let was_off = self.episode.phase.at_work().vm_is_off();
        let expected = match (self.episode.powered_off, was_off) {
            (false, _) => self.episode.drained_boot.as_ref().or(reported),
            (true, true) => recorded,
            (true, false) => reported,
        };
        if expected != reported {
            return recorded.filter(|_| reported.is_none());
        }
        reported.or(recorded)
    }

    /// The request that keeps the VM off.
    pub(super) fn keeps_off(self) -> Option<&'a Request> {
        let request = self.seen.request.as_ref()?;
        (request.action == RequestAction::PowerOff).then_some(request)
    }

    /// The request to relocate the VM, while that is not done.
    pub(super) fn relocation(self) -> Option<&'a Request> {
        let request = self.seen.request.as_ref()?;
        let relocates = matches!(request.action, RequestAction::Relocate { .. });
        (relocates && self.episode.needs_more_for(&request.action)).then_some(request)
    }

    /// Searches a host while the VM is on, where only a request asks for a relocation: before the drain and again before the
    /// shutdown. `None` where a host fits or none is needed. The host is not reserved, because VMs that are off come first; so
    /// it may be taken once this VM is off.
    pub(super) fn find_host_first(self) -> Option<PhaseStep> {
        let request = self.relocation()?;
        if !super::needs_host_first(&self.vm.host, Some(request)) {
            return None;
        }
        let survey = self.seen.attempt(EffectKind::Survey);
        let is_answered = survey.is_some_and(|attempt| attempt.outcome != AttemptOutcome::Asked);
        let offer = &self.seen.offer;
        if is_answered && offer.fits.is_some() {
            return None;
        }
        // A host that has not been read may fit. The number of surveys is limited because the node may hold a slot meanwhile.
        let attempt = self.seen.attempts.get(&EffectKind::Survey);
        let is_read = !offer.has_unread() || attempt.is_some_and(|attempt| attempt.tries >= SURVEYS_FIRST);
        if offer.fits.is_none() && self.has_surveyed() && is_read {
            let relocation_failure = Some(self.no_host_for(request).to_string());
            return Some(PhaseStep::record(transition_to(Episode {
                relocation_failure,
                ..self.episode.clone()
            })));
        }
        Some(match self.survey_at() {
            Some(at) if self.now.monotonic >= at => PhaseStep::act(self.survey(), WaitingOn::Survey),
            Some(at) => PhaseStep::wait_until(WaitingOn::Survey, at),
            None => PhaseStep::wait(WaitingOn::Survey),
        })
    }

    fn survey(self) -> Effect {
        let hosts = self.seen.offer.survey.clone();
        Effect::Survey { hosts }
    }

    /// Ends an episode whose relocation was given up while the VM is on.
    pub(super) fn given_up(self) -> Option<PhaseStep> {
        let request = self.seen.request.as_ref();
        let is_over =
            self.episode.relocation_failure.is_some() && super::needs_host_first(&self.vm.host, request);
        if !is_over {
            return None;
        }
        if self.episode.powered_off || self.was_restarted() || !self.in_flight().is_empty() {
            return Some(self.finish());
        }
        Some(self.end(request.map(|request| request.identity.clone())))
    }

    fn no_host_for(self, request: &Request) -> WaitingOn {
        WaitingOn::Place {
            request: request.identity.clone(),
            refused: self.seen.offer.refused.clone(),
        }
    }

    /// Whether DRS may place the VM: it is fully automated for it, and neither the strategy nor a request says otherwise.
    pub(super) fn drs(self) -> bool {
        self.vm.drs && self.node.overrides.strategy == Strategy::Migrate && self.relocation().is_none()
    }

    /// Whether the VM's own host is in service again while the VM is registered on another one.
    pub(super) fn is_home_back(self) -> bool {
        self.seen.home.takes_vms() && !self.is_at_home()
    }

    pub(super) fn await_maintenance_retry(self) -> Option<PhaseStep> {
        match self.desired() {
            DesiredState::RetryExpected { until, message } => Some(Self::await_retry(until, message)),
            DesiredState::InService
            | DesiredState::Unknown
            | DesiredState::Down
            | DesiredState::Drained(_) => None,
        }
    }

    pub(super) fn leave_for_a_host(self) -> Option<PhaseStep> {
        let phase = self.next_phase()?;
        Some(PhaseStep::record(transition_to(self.enter_while_off(phase))))
    }

    pub(super) fn survey_when_due(self) -> Option<PhaseStep> {
        self.survey_at().filter(|at| self.now.monotonic >= *at)?;
        let is_first = self.seen.attempt(EffectKind::Survey).is_none();
        let waiting_on = if is_first {
            WaitingOn::Survey
        } else {
            self.awaited_host()
        };
        Some(match self.power_on_again() {
            // What is overdue stays parked while other hosts are read.
            Some(PhaseStep::Park { reason, .. }) => PhaseStep::Park {
                reason,
                effect: Some(self.survey()),
                recheck: None,
            },
            Some(PhaseStep::Decided(_)) | None => PhaseStep::act(self.survey(), waiting_on),
        })
    }

    /// Off, and neither being relocated nor powered on.
    pub(super) fn await_a_host(self) -> PhaseStep {
        let retry_at = self.not_before(EffectKind::Relocate);
        let step = self
            .power_on_again()
            .unwrap_or_else(|| PhaseStep::wait(self.awaited_host()));
        let entered_by = Some(self.entered_by()).filter(|at| self.now.monotonic < *at);
        match [self.survey_at(), retry_at, entered_by]
            .into_iter()
            .flatten()
            .min()
        {
            Some(at) => at_latest(at, step),
            None => step,
        }
    }

    /// When the host should be in maintenance mode, because its VM is off. vCenter needs seconds for that.
    fn entered_by(self) -> Monotonic {
        self.phase_deadline(self.policy.power_off_timeout).at
    }

    /// Keeps the VM off for a request. The request is recorded, so that a process that cannot read requests keeps it off too.
    pub(super) fn kept_off(self) -> Option<PhaseStep> {
        let request = self.keeps_off()?;
        if self.episode.power_off_request.as_ref() == Some(&request.identity) {
            return Some(PhaseStep::wait(until_deleted(request)));
        }
        Some(PhaseStep::record(transition_to(Episode {
            power_off_request: Some(request.identity.clone()),
            ..self.episode.clone()
        })))
    }

    /// The pause before a VM that keeps going off is powered on again.
    pub(super) fn power_on_pause(self) -> Option<PhaseStep> {
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

    pub(super) fn awaited_host(self) -> WaitingOn {
        if let Some(request) = self.relocation() {
            return self.no_host_for(request);
        }
        let home = &self.seen.home;
        // The host may have been renamed since it was recorded.
        let host = if self.is_at_home() {
            self.vm.host_name.clone()
        } else {
            self.episode.host.name.to_string()
        };
        if self.is_entry_overdue() {
            WaitingOn::HostEntry {
                host,
                refused: self.refused_hosts(),
            }
        } else if home.is_leaving() || home.is_out() {
            WaitingOn::HostExit {
                host,
                state: home.words(),
                refused: self.refused_hosts(),
            }
        } else {
            super::awaited(host, home)
        }
    }

    /// Whether the host where the VM is registered should be in maintenance mode by now, because the VM is off.
    pub(super) fn is_entry_overdue(self) -> bool {
        let is_entering = matches!(self.seen.home, HostState::Entering { .. });
        is_entering && self.is_at_home() && self.now.monotonic >= self.entered_by()
    }

    /// The hosts that cannot take the VM, with the one that has refused to power it on where it is registered.
    fn refused_hosts(self) -> Vec<RejectedHost> {
        let is_of_here = |refusal: &&HostRefusal| {
            Some(&refusal.host) == self.vm.host_ref.as_ref() && refusal.what == RefusedMove::PowerOn
        };
        let refusal = self.episode.refusals.iter().find(is_of_here);
        let here = refusal
            .filter(|_| !self.is_at_home())
            .map(|refusal| RejectedHost {
                host: self.vm.host_name.clone(),
                why: RejectionReason::PowerOnRefused(refusal.message.clone()),
            });
        here.into_iter()
            .chain(self.seen.offer.refused.iter().cloned())
            .collect()
    }

    pub(super) fn place(self, by_drs: bool) -> Option<PowerOnTarget> {
        if by_drs {
            return Some(PowerOnTarget::Drs);
        }
        self.vm.host_ref.clone().map(PowerOnTarget::Host)
    }

    /// Whether the VM can be powered on where it is registered, as far as known. vCenter itself moves a VM that is off, if "Move
    /// powered-off VMs" was selected, also one that is to wait for its own host.
    pub(super) fn may_stay(self) -> bool {
        let has_refused = |host| self.episode.has_refused(host, RefusedMove::PowerOn);
        self.vm.host.takes_vms() && self.may_be_here() && !self.vm.host_ref.as_ref().is_some_and(has_refused)
    }

    pub(super) fn may_be_here(self) -> bool {
        self.node.overrides.strategy == Strategy::Migrate || self.is_at_home()
    }

    /// The next phase of a VM that is off: it is powered on where it is registered if that host takes VMs, else placed by DRS or
    /// relocated. Its own host is preferred as soon as it is in service.
    fn next_phase(self) -> Option<Phase> {
        let attempt = self.seen.attempts.get(&EffectKind::PowerOn);
        let is_running = attempt.is_some_and(|attempt| attempt.outcome.running_task().is_some());
        let is_retry_expected = matches!(self.desired(), DesiredState::RetryExpected { .. });
        if is_running || self.keeps_off().is_some() || is_retry_expected {
            return None;
        }
        if self.relocation().is_none() && self.may_stay() {
            return Some(Phase::PoweringOn { by_drs: false });
        }
        if self.drs() && !self.is_home_back() {
            let is_refused = attempt.is_some_and(|attempt| attempt.outcome.refusal().is_some());
            return (!is_refused).then_some(Phase::PoweringOn { by_drs: true });
        }
        if self.not_before(EffectKind::Relocate).is_some() {
            return None;
        }
        // Only a survey made during this phase shows which devices are free.
        let has_survey = self.seen.attempt(EffectKind::Survey).is_some();
        if let Some((moref, name)) = self.seen.offer.fits.clone().filter(|_| has_survey) {
            let to = HostIdentity {
                moref: Some(moref),
                name: name.into(),
            };
            return Some(Phase::Relocating { to });
        }
        // A relocation is given up only after a search in this phase.
        let has_looked = *self.episode.phase.at_work() == Phase::AwaitingHost && self.has_surveyed();
        let given_up = self.relocation().is_some() && has_looked && self.may_stay();
        given_up.then_some(Phase::PoweringOn { by_drs: false })
    }

    /// Whether all other hosts have been surveyed in this phase.
    pub(super) fn has_surveyed(self) -> bool {
        let survey = self.seen.attempt(EffectKind::Survey);
        let done = survey.is_some_and(|attempt| attempt.outcome == AttemptOutcome::Done);
        done || self.seen.offer.survey.is_empty()
    }

    /// When to survey other hosts: at once in a phase without a survey, then at the configured interval. Surveys of earlier phases
    /// count for the backoff. `None` where no host depends on a survey.
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
            match attempt.outcome.refusal() {
                Some(refusal) => self.retry_at(attempt, refusal),
                None => attempt.at.after(self.policy.survey_every),
            }
        };
        Some(again.monotonic)
    }

    /// The host that is reserved for the VM.
    fn target(self) -> Option<&'a HostIdentity> {
        self.episode.phase.target()
    }

    pub(super) fn relocated(self) -> Option<PhaseStep> {
        let to = self.target()?;
        if to.moref.is_none() || self.vm.host_ref != to.moref {
            return None;
        }
        let is_home = self.is_at_home();
        let episode = Episode {
            moved_to: (!is_home).then(|| to.clone()),
            ..self.enter(Phase::PoweringOn { by_drs: false })
        };
        Some(PhaseStep::record(transition_to(episode)))
    }

    /// Off, with a host reserved for it.
    pub(super) fn relocate(self) -> PhaseStep {
        let attempt = self.seen.attempt(EffectKind::Relocate);
        if attempt.is_some_and(|attempt| attempt.outcome.running_task().is_some()) {
            return PhaseStep::wait(RELOCATION);
        }
        let Some((to, target)) = self.target().and_then(|to| Some((to, to.moref.as_ref()?))) else {
            return self.choose_again(None);
        };
        if let Some(attempt) = attempt
            && let Some(refusal) = attempt.outcome.refusal()
            && self.is_refused_for_good(attempt, refusal)
        {
            return self.choose_again(Some((target, RefusedMove::Relocate, refusal)));
        }
        if !self.is_move_needed(to) {
            return self.choose_again(None);
        }
        self.start_or_retry(EffectKind::Relocate, RELOCATION, || {
            Ok(Effect::Relocate {
                vm: self.vm.moref.clone(),
                to: target.clone(),
            })
        })
    }

    /// Whether the VM still has to be relocated to `to`: that host takes VMs, and its own host is not back or cannot take it.
    fn is_move_needed(self, to: &HostIdentity) -> bool {
        let is_passed_over = |home| self.episode.has_refused(home, RefusedMove::Relocate);
        let is_asked_for = self.relocation().is_some();
        let is_home = to.moref.as_ref() == self.home();
        self.seen.target.takes_vms()
            && self.keeps_off().is_none()
            && (is_asked_for || !self.may_stay())
            && (is_asked_for || is_home || !self.is_home_back() || self.home().is_some_and(is_passed_over))
    }

    /// Goes back to the choice of a host. A refusal is recorded, so that the host is not chosen again.
    pub(super) fn choose_again(self, refused: Option<(&HostRef, RefusedMove, &EffectRefusal)>) -> PhaseStep {
        let mut episode = self.enter(Phase::AwaitingHost);
        if let Some((host, what, refusal)) = refused
            && (what == RefusedMove::PowerOn || self.home() != Some(host))
        {
            episode.refused(host, what, &refusal.message);
        }
        PhaseStep::record(transition_to(episode))
    }
}
