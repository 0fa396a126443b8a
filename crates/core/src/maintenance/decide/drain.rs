//! The phases from the cordon until the VM is off.

mod volumes;

use std::time::Duration;

use super::context::{PhaseContext, PhaseStep, at_latest, meanwhile, task_wait, until_deleted};
use super::rounds::BINDING_SETTLE;
use super::{cordoned, host_of, start_draining, transition_to};
use crate::ids::BootId;
use crate::maintenance::clock::{Deadline, Elapsed, Timer};
use crate::maintenance::desired::DesiredState;
use crate::maintenance::effect::{Effect, EffectKind, PowerOffCause};
use crate::maintenance::episode::{DrainEnd, DrainLimit, Episode, InFlight, Phase};
use crate::maintenance::hook::HookPoint;
use crate::maintenance::observed::{AttemptOutcome, DrainReport, EffectAttempt, HostState, RetryAdvice};
use crate::maintenance::request::Request;
use crate::maintenance::waiting::{DrainTimeout, ParkReason, WaitingOn};

/// How many times a Node that is uncordoned during the drain is cordoned again before the episode is parked.
const RECORDONS: u8 = 1;

/// Whether an attempt asked the guest; `None` where nobody knows, because the reply was lost.
fn has_asked(attempt: &EffectAttempt) -> Option<bool> {
    match &attempt.outcome {
        AttemptOutcome::Asked | AttemptOutcome::Running(_) | AttemptOutcome::Done => Some(true),
        AttemptOutcome::Refused(refusal) if refusal.advice == RetryAdvice::Unanswered => None,
        AttemptOutcome::Refused(_) => Some(false),
    }
}

impl<'a> PhaseContext<'a> {
    /// The Node was uncordoned, while it drains or is kept drained.
    pub(super) fn unless_cordoned(self) -> Option<PhaseStep> {
        (!self.node.unschedulable).then(|| self.after_uncordon())
    }

    /// The end of a drain that is complete.
    pub(super) fn drained_now(self) -> Option<PhaseStep> {
        if !self.seen.is_drained(BINDING_SETTLE, self.now.monotonic) {
            return None;
        }
        if self.kept_drained_for().is_some() {
            return Some(PhaseStep::record(transition_to(self.enter(Phase::Drained))));
        }
        let report = self.seen.drain.as_ref();
        let left = || report.map(|report| self.left_behind(report)).unwrap_or_default();
        let hold = self.before_shutdown();
        Some(hold.unwrap_or_else(|| self.shut_down(DrainEnd::Complete, left())))
    }

    pub(super) fn evict_in_time(self) -> Option<PhaseStep> {
        let deadline = self.drain_deadline();
        let Some(report) = self.seen.round() else {
            return Some(self.start_round(WaitingOn::DrainRound));
        };
        if self.is_past(deadline) {
            return None;
        }
        let timeout = Some(DrainTimeout {
            at: deadline.shown,
            action: self.drain_time().limit.action(),
        });
        let pods = |left| WaitingOn::Pods { left, timeout };
        Some(self.next_round(report, &pods, Some(deadline.at)))
    }

    /// The time of the drain is over. Pods are evicted while something else holds the shutdown.
    pub(super) fn drain_timed_out(self) -> Option<PhaseStep> {
        let report = self.seen.round()?;
        match self.drain_time().limit {
            DrainLimit::After(_) => Some(match self.before_shutdown() {
                Some(hold) => meanwhile(hold, self.evict_without_limit()),
                None => self.shut_down(DrainEnd::TimedOut, self.left_behind(report)),
            }),
            DrainLimit::Hold => None,
        }
    }

    pub(super) fn evict_without_limit(self) -> PhaseStep {
        match self.seen.round() {
            Some(report) => self.next_round(report, &|left| WaitingOn::DrainHeld { left }, None),
            None => self.start_round(WaitingOn::DrainRound),
        }
    }

    /// Pods may have been scheduled since the drain, so the node is drained again.
    pub(super) fn drain_for_shutdown(self) -> Option<PhaseStep> {
        let is_asked = self.desired() == DesiredState::Down;
        is_asked.then(|| self.drain_when_admitted(self.episode.clone()))
    }

    /// Drained for a request, VM on: kept empty until the request is deleted or asks for more.
    pub(super) fn keep_drained(self) -> PhaseStep {
        let outdated = |report: &&DrainReport| {
            report.pods_revision != self.seen.pods_revision || self.blocking(report).next().is_some()
        };
        let waiting_on = || {
            self.kept_drained_for()
                .map_or(WaitingOn::DrainRound, until_deleted)
        };
        match &self.seen.drain {
            None => self.start_round(waiting_on()),
            // A pod that tolerates the cordon was scheduled.
            Some(report) if outdated(&report) => self.next_round(report, &|_| waiting_on(), None),
            Some(_) => PhaseStep::wait(waiting_on()),
        }
    }

    /// Drained for a request, and a person powered the VM off: it stays off while the request exists.
    pub(super) fn leave_off_while_drained(self) -> Option<PhaseStep> {
        let request = self.kept_drained_for()?;
        Some(PhaseStep::wait(until_deleted(request)))
    }

    /// The request that wants the node drained, where nothing asks for more.
    fn kept_drained_for(self) -> Option<&'a Request> {
        match self.desired() {
            DesiredState::Drained(request) => Some(request),
            DesiredState::Down
            | DesiredState::InService
            | DesiredState::Unknown
            | DesiredState::RetryExpected { .. } => None,
        }
    }

    /// What holds the shutdown. The host that fitted at the beginning of the drain may be taken now, so it is checked again.
    fn before_shutdown(self) -> Option<PhaseStep> {
        let first = self.find_host_first().or_else(|| self.set_machine_guards());
        first.or_else(|| self.hold(HookPoint::PrePowerOff))
    }

    /// Leaves the drain for the shutdown.
    fn shut_down(self, end: DrainEnd, left_behind: Vec<String>) -> PhaseStep {
        // A guest that was asked before, in a shutdown that was left for another drain, is asked again where its time is over, and
        // where nobody knows whether it was asked.
        let in_flight = self.episode.in_flight;
        let is_over = |asked: Timer| self.is_past(self.deadline(asked.elapsed, self.time_of_guest()));
        PhaseStep::record(transition_to(Episode {
            left_behind,
            volumes: None,
            drained_for: self.drain_elapsed(),
            in_flight: InFlight {
                is_assumed: in_flight.is_assumed || in_flight.guest_shutdown.is_some_and(is_over),
                ..in_flight
            },
            ..self.enter(Phase::ShuttingDown(end))
        }))
    }

    /// The Node was uncordoned, so pods may have been scheduled. It is cordoned and drained again; the second time the
    /// episode is parked, because the uncordon is taken for intended.
    fn after_uncordon(self) -> PhaseStep {
        if self.episode.recordoned >= RECORDONS {
            return PhaseStep::park(ParkReason::Uncordoned);
        }
        let again = Episode {
            recordoned: self.episode.recordoned.saturating_add(1),
            drained_for: Elapsed::ZERO,
            limited_from: Elapsed::ZERO,
            ..self.leave_shutdown()
        };
        PhaseStep::record(cordoned(again, self.node))
    }

    /// Whatever the shutdown waits for, it is overdue if the VM is still on then. A guest that could be asked late only has its whole
    /// time first.
    pub(super) fn shutdown_overdue(self) -> Deadline {
        let guest = self.time_of_guest();
        let volumes = self.volumes_waited().max(self.policy.volume_detach_timeout);
        let of_phase = self.phase_deadline(guest * 2 + self.policy.power_off_timeout + volumes);
        let asked = self.episode.in_flight.guest_shutdown;
        let of_guest = asked.map(|asked| self.deadline(asked.elapsed, guest + self.policy.power_off_timeout));
        let later = of_guest.filter(|of_guest| of_guest.at > of_phase.at);
        later.unwrap_or(of_phase)
    }

    /// A request wants the node drained, and nothing asks for its VM to be off any more.
    pub(super) fn drained_only(self) -> Option<PhaseStep> {
        self.kept_drained_for()?;
        let may_go_off = !self.in_flight().is_empty();
        Some(if may_go_off {
            self.finish()
        } else {
            PhaseStep::record(transition_to(self.enter(Phase::Drained)))
        })
    }

    pub(super) fn record_unrecorded_request(self) -> Option<PhaseStep> {
        self.unrecorded_request()
            .map(|attempt| self.record_request(attempt))
    }

    pub(super) fn await_answer(self) -> Option<PhaseStep> {
        let question = self.vm.question.clone()?;
        Some(PhaseStep::wait(WaitingOn::Question(question)))
    }

    /// How the drain before this shutdown ended.
    fn drain_end(self) -> &'a DrainEnd {
        match self.episode.phase.at_work() {
            Phase::ShuttingDown(end) => end,
            Phase::Queued
            | Phase::Draining
            | Phase::Drained
            | Phase::Relocating { .. }
            | Phase::AwaitingHost
            | Phase::PoweringOn { .. }
            | Phase::Rejoining
            | Phase::Parked { .. } => &DrainEnd::Complete,
        }
    }

    /// Drains the node again where pods may have started since the drain.
    pub(super) fn drain_again(self) -> Option<PhaseStep> {
        // Another boot than the drained one: the guest restarted instead of shutting down.
        let drained = match &self.episode.drained_boot {
            None if !self.episode.powered_off => self.episode.boot_before.as_ref(),
            drained => drained.as_ref(),
        };
        if self.is_other_boot(drained) {
            let time = self.drain_time();
            let again = start_draining(self.episode, self.node, time, self.now);
            return Some(PhaseStep::record(again));
        }
        if !self.node.unschedulable {
            return Some(self.after_uncordon());
        }
        // Another client removed our cordon and set its own, which stays at the end.
        super::is_unrecorded_foreign_cordon(&self.episode.cordon, self.node).then(|| {
            let again = Episode {
                in_flight: self.in_flight(),
                ..self.episode.clone()
            };
            let time = self.drain_time();
            PhaseStep::record(start_draining(&again, self.node, time, self.now))
        })
    }

    /// A request may only extend the timeout of the settings.
    fn guest_shutdown_timeout(self) -> Duration {
        let request = self.seen.request.as_ref();
        let asked = request.and_then(|request| request.guest_shutdown_timeout);
        self.policy.guest_shutdown_timeout.max(asked.unwrap_or_default())
    }

    /// How long a guest that was asked has: not less than when it was asked, whatever the settings and the request say now.
    pub(super) fn time_of_guest(self) -> Duration {
        self.guest_shutdown_timeout()
            .max(self.episode.guest_timeout.span())
    }

    /// The shutdown of the guest was requested: its power is cut when the deadline passes.
    pub(super) fn await_guest(self) -> Option<PhaseStep> {
        let asked = self.episode.in_flight.confirmed_guest_shutdown()?;
        let until = self.deadline(asked.elapsed, self.time_of_guest());
        Some(if self.is_past(until) {
            self.power_off()
        } else {
            PhaseStep::wait_until(WaitingOn::GuestShutdown { until: until.shown }, until.at)
        })
    }

    /// The record shows no request to shut the guest down that is known to have reached it. One that is refused for now, or whose
    /// reply was lost, is made again, and no power is cut before it was made, however long that takes.
    pub(super) fn ask_guest(self) -> PhaseStep {
        let timeout = self.guest_shutdown_timeout();
        let attempt = self.seen.attempt(EffectKind::ShutdownGuest);
        // When the guest counts as one that cannot be asked at all.
        let mut gives_up_at = None;
        if let Some(attempt) = attempt {
            match &attempt.outcome {
                AttemptOutcome::Asked | AttemptOutcome::Running(_) | AttemptOutcome::Done => {
                    return self.record_request(attempt);
                }
                AttemptOutcome::Refused(refusal) => match refusal.advice {
                    // It may have been asked already, and VMware Tools are among the first to stop.
                    RetryAdvice::NoTools if self.in_flight().is_assumed => {
                        return self.record_request(attempt);
                    }
                    RetryAdvice::NoTools if self.vm.tools_running != Some(true) => {
                        return self.power_off();
                    }
                    // A task runs on the VM, vCenter is busy or did not answer, or a person must act.
                    RetryAdvice::Retry | RetryAdvice::Unanswered | RetryAdvice::Person => {}
                    // VMware Tools are being restarted or upgraded, or vCenter cannot pass the request on.
                    RetryAdvice::NoTools
                    | RetryAdvice::Unknown
                    | RetryAdvice::MayPass
                    | RetryAdvice::OtherHost
                    | RetryAdvice::Cluster => {
                        gives_up_at = Some(attempt.refused_since.monotonic.after(timeout));
                    }
                },
            }
        }
        if gives_up_at.is_some_and(|at| self.now.monotonic >= at) {
            return self.power_off();
        }
        let until = self.deadline(Elapsed::ZERO, timeout).shown;
        let waiting_on = WaitingOn::GuestShutdown { until };
        let ask = self.start_or_retry(EffectKind::ShutdownGuest, waiting_on, || {
            Ok(Effect::ShutdownGuest {
                vm: self.vm.moref.clone(),
                drained: self.proof(self.drain_end())?,
                asked_by: self.power_off_cause(),
            })
        });
        match gives_up_at {
            Some(at) => at_latest(at, ask),
            None => ask,
        }
    }

    /// The request to the guest that this process has sent, or may have sent, while the record does not show it.
    fn unrecorded_request(self) -> Option<&'a EffectAttempt> {
        let attempt = self.seen.attempt(EffectKind::ShutdownGuest)?;
        let recorded = self.episode.in_flight;
        let is_news = match has_asked(attempt) {
            Some(true) => recorded.confirmed_guest_shutdown().is_none(),
            None => recorded.guest_shutdown.is_none(),
            Some(false) => false,
        };
        is_news.then_some(attempt)
    }

    /// Records that the shutdown was requested, so that one that was answered is not requested again.
    fn record_request(self, attempt: &EffectAttempt) -> PhaseStep {
        let asked = Timer {
            since: attempt.at.wall,
            elapsed: Elapsed::of(self.now.monotonic.since(attempt.at.monotonic)),
        };
        PhaseStep::record(transition_to(Episode {
            in_flight: InFlight {
                guest_shutdown: Some(asked),
                is_assumed: has_asked(attempt).is_none(),
                ..self.episode.in_flight
            },
            guest_timeout: Elapsed::of(self.guest_shutdown_timeout()),
            ..self.episode.clone()
        }))
    }

    /// The shutdown timeout passed, or the guest cannot be asked: cuts the power.
    fn power_off(self) -> PhaseStep {
        let end = self.drain_end();
        let Some(noted) = self.episode.in_flight.power_off else {
            return match self.proof(end) {
                Ok(_) => PhaseStep::record(transition_to(Episode {
                    in_flight: InFlight {
                        power_off: Some(Timer::start(self.now)),
                        ..self.episode.in_flight
                    },
                    ..self.episode.clone()
                })),
                Err(step) => *step,
            };
        };
        let cut = self.start_or_retry(EffectKind::PowerOff, task_wait(EffectKind::PowerOff), || {
            Ok(Effect::PowerOff {
                vm: self.vm.moref.clone(),
                drained: self.proof(end)?,
                asked_by: self.power_off_cause(),
            })
        });
        let overdue = self.deadline(noted.elapsed, self.policy.power_off_timeout);
        self.unless_overdue(overdue, cut)
    }

    /// The cause, which is checked again when vCenter is asked to stop the VM.
    fn power_off_cause(self) -> PowerOffCause {
        match (&self.vm.host_ref, &self.vm.host) {
            (Some(host), HostState::Entering { task, .. }) => PowerOffCause::Host {
                host: host.clone(),
                task: Some(task.clone()),
            },
            (Some(host), HostState::InMaintenance) => PowerOffCause::Host {
                host: host.clone(),
                task: None,
            },
            (
                _,
                HostState::Unknown
                | HostState::Unreachable
                | HostState::Settling { .. }
                | HostState::Quarantined
                | HostState::InService
                | HostState::Entering { .. }
                | HostState::InMaintenance,
            ) => PowerOffCause::Request(self.seen.request.as_ref().map(|asked| asked.identity.clone())),
        }
    }

    /// The requests to vCenter that may still stop the VM. A guest shutdown that is not in the record counts as requested where this
    /// process or an earlier one may have requested it in this phase.
    pub(super) fn in_flight(self) -> InFlight {
        let recorded = self.episode.in_flight;
        let is_shutting_down = matches!(self.episode.phase.at_work(), Phase::ShuttingDown(_));
        if recorded.guest_shutdown.is_some() || !is_shutting_down {
            return recorded;
        }
        let attempt = self.seen.attempt(EffectKind::ShutdownGuest);
        let is_asked = attempt.and_then(has_asked) == Some(true);
        let may_be_asked = !self.seen.record_seen.from_the_start
            || attempt.is_some_and(|attempt| has_asked(attempt).is_none());
        let since_phase = Timer {
            since: self.episode.since,
            elapsed: self.episode.elapsed,
        };
        InFlight {
            guest_shutdown: (is_asked || may_be_asked).then_some(since_phase),
            is_assumed: may_be_asked && !is_asked,
            ..recorded
        }
    }

    /// The episode in phase `Draining`, also from `ShuttingDown`: that an earlier process may have asked the guest is recorded then,
    /// because no other phase assumes it.
    pub(super) fn leave_shutdown(self) -> Episode {
        Episode {
            in_flight: self.in_flight(),
            ..self.enter(Phase::Draining)
        }
    }

    /// Whether the guest rebooted instead of stopping, or was off while nobody looked. A node that is still queued at home has not
    /// been touched. A VM that cannot be moved while it runs was off if it runs elsewhere: vSphere HA restarts VMs whose host has
    /// failed before their nodes lose Ready.
    pub(super) fn was_restarted(self) -> bool {
        let is_elsewhere = self.is_elsewhere();
        let is_other_boot = self.is_other_boot(self.episode.boot_before.as_ref());
        is_elsewhere && self.vm.is_pinned
            || is_other_boot && (is_elsewhere || *self.episode.phase.at_work() != Phase::Queued)
    }

    /// Whether the Node reports another boot than this one, as far as both are known.
    fn is_other_boot(self, than: Option<&BootId>) -> bool {
        let reported = self.node.boot_id.as_ref();
        reported.is_some() && than.is_some() && reported != than
    }

    fn is_elsewhere(self) -> bool {
        self.vm.host_ref.is_some() && !self.is_at_home()
    }

    /// The maintenance was cancelled. The episode ends if the VM stayed on and no request can still stop it; otherwise the node
    /// has to rejoin first.
    pub(super) fn finish(self) -> PhaseStep {
        let in_flight = self.in_flight();
        let is_elsewhere = self.is_elsewhere();
        let was_restarted = self.was_restarted();
        let powered_off = self.episode.powered_off || was_restarted;
        let may_be_booting = is_elsewhere && !self.node.ready;
        if in_flight.is_empty() && !powered_off && !may_be_booting {
            return self.end(None);
        }
        let moved_to = (was_restarted && is_elsewhere).then(|| host_of(self.vm));
        let episode = Episode {
            gpus_cleared: self.gpus_are_cleared() && !was_restarted,
            in_flight,
            powered_off,
            moved_to: moved_to.or_else(|| self.episode.moved_to.clone()),
            ..self.enter(Phase::Rejoining)
        };
        PhaseStep::record(cordoned(episode, self.node))
    }
}
