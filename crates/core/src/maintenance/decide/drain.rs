//! The phases from the cordon until the VM is off.

use std::collections::BTreeMap;
use std::time::Duration;

use super::context::{PhaseContext, PhaseStep, at_latest, until_deleted};
use super::{cordoned, host_of, start_draining, transition_to};
use crate::maintenance::clock::{Deadline, Elapsed, Monotonic, Timer};
use crate::maintenance::desired::DesiredState;
use crate::maintenance::drain::BUDGET_RETRY_MIN;
use crate::maintenance::effect::{Effect, EffectKind, PowerOffCause};
use crate::maintenance::episode::{CordonOwner, DrainEnd, Episode, InFlight, Phase};
use crate::maintenance::observed::{
    AttemptOutcome, DrainReport, Drained, EffectAttempt, HostState, PendingEviction, RetryAdvice,
};
use crate::maintenance::policy::DrainTimeoutAction;
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// The shortest time between two drain rounds. Without it, pods that terminate one after another would cost a list each.
const ROUND_GAP: Duration = Duration::from_millis(250);

/// The shortest time to the next round after one that left no pod. The reported change then usually is the first list of the pod
/// watch.
const EMPTY_GAP: Duration = Duration::from_millis(20);

/// How long after the cordon a list may first prove the drain. A scheduler that chose the Node before it saw the cordon may still
/// bind a pod to it: the kube-apiserver does not check a binding against the cordon.
const BINDING_SETTLE: Duration = Duration::from_secs(1);

/// The maximum age of the list that proves the drain when the guest is shut down or power is cut.
const PROOF_AGE: Duration = Duration::from_secs(10);

/// How many times a Node that is uncordoned during the drain is cordoned again before the episode is parked.
const RECORDONS: u8 = 1;

impl PhaseContext<'_> {
    /// Draining, VM on.
    pub(super) fn draining(self) -> PhaseStep {
        let desired = self.desired();
        match desired {
            DesiredState::InService => return self.finish(),
            DesiredState::Unknown => return self.host_not_visible(),
            DesiredState::RetryExpected { until, message } => return Self::await_retry(until, message),
            DesiredState::Down | DesiredState::Drained(_) => {}
        }
        if let Some(step) = self.given_up() {
            return step;
        }
        if !self.node.unschedulable {
            return self.after_uncordon();
        }
        if self.seen.is_drained(BINDING_SETTLE) {
            return match desired {
                DesiredState::Drained(_) => PhaseStep::record(transition_to(self.enter(Phase::Drained))),
                DesiredState::Down
                | DesiredState::InService
                | DesiredState::Unknown
                | DesiredState::RetryExpected { .. } => {
                    let report = self.seen.drain.as_ref();
                    let returned = report.map(|report| report.tolerant.returned.clone());
                    self.shut_down(DrainEnd::Complete, returned.unwrap_or_default())
                }
            };
        }
        let deadline = self.drain_deadline();
        match self.seen.round() {
            // A round comes before the power is cut, because the pods that are left behind have to be named.
            None => self.start_round(WaitingOn::DrainRound),
            Some(report) if !self.is_past(deadline) => {
                self.next_round(report, &WaitingOn::Pods, Some(deadline.at))
            }
            Some(report) => match self.drain_timeout_action(desired) {
                DrainTimeoutAction::PowerOff => {
                    let left = report.left.iter().map(|pod| pod.name.clone()).collect();
                    self.shut_down(DrainEnd::TimedOut, left)
                }
                DrainTimeoutAction::Hold => self.next_round(report, &WaitingOn::DrainHeld, None),
            },
        }
    }

    /// How long the drain has taken, including the time before an interruption.
    fn drain_elapsed(self) -> Elapsed {
        self.episode.drained_for.plus(self.episode.elapsed.span())
    }

    /// The drain timeout. A request may only extend it: the right to request a drain must not override disruption budgets.
    fn drain_deadline(self) -> Deadline {
        let request = self.seen.request.as_ref();
        let asked = request.and_then(|request| request.drain_timeout);
        let timeout = self.policy.drain_timeout.max(asked.unwrap_or_default());
        self.deadline(self.drain_elapsed(), timeout)
    }

    fn drain_timeout_action(self, desired: DesiredState<'_>) -> DrainTimeoutAction {
        match desired {
            DesiredState::Drained(_) => DrainTimeoutAction::Hold,
            DesiredState::Down
            | DesiredState::InService
            | DesiredState::Unknown
            | DesiredState::RetryExpected { .. } => {
                let request = self.seen.request.as_ref();
                match request.and_then(|request| request.drain_timeout_action) {
                    Some(DrainTimeoutAction::Hold) => DrainTimeoutAction::Hold,
                    Some(DrainTimeoutAction::PowerOff) | None => self.policy.drain_timeout_action,
                }
            }
        }
    }

    /// Drained for a request, VM on: kept empty until the request is deleted or asks for more.
    pub(super) fn drained(self) -> PhaseStep {
        let request = match self.desired() {
            DesiredState::InService => return self.finish(),
            DesiredState::Unknown => return self.host_not_visible(),
            DesiredState::RetryExpected { until, message } => return Self::await_retry(until, message),
            DesiredState::Down | DesiredState::Drained(_) if !self.node.unschedulable => {
                return self.after_uncordon();
            }
            // Pods may have been scheduled since the drain, so the node is drained again.
            DesiredState::Down => return self.drain_when_admitted(self.episode.clone()),
            DesiredState::Drained(request) => request,
        };
        let outdated = |report: &&DrainReport| {
            report.pods_revision != self.seen.pods_revision || !report.left.is_empty()
        };
        match &self.seen.drain {
            None => self.start_round(until_deleted(request)),
            // A pod that tolerates the cordon was scheduled.
            Some(report) if outdated(&report) => self.next_round(report, &|_| until_deleted(request), None),
            Some(_) => PhaseStep::wait(until_deleted(request)),
        }
    }

    /// Drained for a request, and a person powered the VM off: it stays off while the request exists.
    pub(super) fn drained_and_off(self) -> PhaseStep {
        match self.desired() {
            DesiredState::Drained(request) => PhaseStep::wait(until_deleted(request)),
            DesiredState::InService
            | DesiredState::Down
            | DesiredState::Unknown
            | DesiredState::RetryExpected { .. } => self.powered_off(),
        }
    }

    /// Leaves the drain for the shutdown. The host that fitted at the beginning of the drain may be taken now, so it is checked
    /// again.
    fn shut_down(self, end: DrainEnd, left_behind: Vec<String>) -> PhaseStep {
        if let Some(step) = self.find_host_first() {
            return step;
        }
        PhaseStep::record(transition_to(Episode {
            left_behind,
            drained_for: self.drain_elapsed(),
            ..self.enter(Phase::ShuttingDown(end))
        }))
    }

    /// Starts a drain round; after a failed one, waits for its backoff first.
    fn start_round(self, waiting_on: WaitingOn) -> PhaseStep {
        match self.seen.attempt(EffectKind::DrainRound) {
            Some(EffectAttempt {
                outcome: AttemptOutcome::Refused(_),
                ..
            }) => self.start_or_retry(EffectKind::DrainRound, waiting_on, || Ok(self.round())),
            Some(_) | None => PhaseStep::act(self.round(), waiting_on),
        }
    }

    fn round(self) -> Effect {
        let retry = self.policy.eviction_retry;
        let report = self.seen.drain.as_ref();
        Effect::DrainRound {
            pods_revision: self.seen.pods_revision,
            in_turn: report.is_some_and(DrainReport::is_held),
            deferred: report.map_or_else(BTreeMap::new, |report| report.deferred(self.now.monotonic, retry)),
            tolerant: self.seen.round().map(|report| report.tolerant.first.clone()),
        }
    }

    /// The step after `report`. The next round starts when the pods have changed, when refused evictions are due again, and at
    /// the latest after `retry_max`, in case a change was missed.
    fn next_round(
        self,
        report: &DrainReport,
        waiting_on: &dyn Fn(Vec<PendingEviction>) -> WaitingOn,
        deadline: Option<Monotonic>,
    ) -> PhaseStep {
        let due = if report.left.is_empty() {
            let settled = self.seen.record_seen.phase_at.after(BINDING_SETTLE);
            report.listed_at.after(EMPTY_GAP).max(settled)
        } else {
            let retry = self.policy.eviction_retry;
            let refused = report.left.iter().filter_map(|pod| report.retry_at(pod, retry));
            let changed =
                (report.pods_revision != self.seen.pods_revision).then(|| report.listed_at.after(ROUND_GAP));
            let first = refused.chain(changed).min();
            let due = first.unwrap_or_else(|| report.listed_at.after(self.policy.retry_max));
            due.max(report.listed_at.after(BUDGET_RETRY_MIN))
        };
        let waiting_on = if report.left.is_empty() {
            WaitingOn::DrainRound
        } else {
            waiting_on(report.left.clone())
        };
        if self.now.monotonic < due {
            let recheck = deadline.map_or(due, |deadline| due.min(deadline));
            return PhaseStep::wait_until(waiting_on, recheck);
        }
        let attempt = self.seen.attempt(EffectKind::DrainRound);
        if attempt.is_some_and(|attempt| attempt.at.monotonic > report.listed_at) {
            return self.start_round(waiting_on);
        }
        let step = PhaseStep::act(self.round(), waiting_on);
        match deadline {
            Some(deadline) => at_latest(deadline, step),
            None => step,
        }
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
            ..self.enter(Phase::Draining)
        };
        PhaseStep::record(cordoned(again, self.node))
    }

    /// Drained, VM on: shuts the guest down, and cuts the power after a deadline. Whatever it waits for, it is overdue if the VM is
    /// still on then: the guest may have been asked at the end of its timeout.
    pub(super) fn shutting_down(self, end: &DrainEnd) -> PhaseStep {
        let longest = self.guest_shutdown_timeout() * 2 + self.policy.power_off_timeout;
        self.unless_overdue(self.phase_deadline(longest), self.shutdown_step(end))
    }

    fn shutdown_step(self, end: &DrainEnd) -> PhaseStep {
        match self.desired() {
            DesiredState::Drained(_) if self.in_flight().is_empty() => {
                return PhaseStep::record(transition_to(self.enter(Phase::Drained)));
            }
            DesiredState::InService | DesiredState::Drained(_) => return self.finish(),
            DesiredState::Unknown => return self.host_not_visible(),
            DesiredState::RetryExpected { until, message } => return Self::await_retry(until, message),
            DesiredState::Down => {}
        }
        if let Some(step) = self.drain_again() {
            return step;
        }
        if let Some(question) = &self.vm.question {
            return PhaseStep::wait(WaitingOn::Question(question.clone()));
        }
        match self.episode.in_flight.guest_shutdown {
            Some(asked) => self.await_guest(asked, end),
            None => self
                .await_running_vmotion()
                .unwrap_or_else(|| self.ask_guest(end)),
        }
    }

    /// Drains the node again where pods may have started since the drain.
    fn drain_again(self) -> Option<PhaseStep> {
        // Another boot than the drained one: the guest restarted instead of shutting down.
        let drained = match &self.episode.drained_boot {
            None if !self.episode.powered_off => self.episode.boot_before.as_ref(),
            drained => drained.as_ref(),
        };
        let rebooted = match (&self.node.boot_id, drained) {
            (Some(seen), Some(drained)) => seen != drained,
            (None, _) | (_, None) => false,
        };
        if rebooted {
            return Some(PhaseStep::record(start_draining(
                self.episode,
                self.node,
                self.now,
            )));
        }
        if !self.node.unschedulable {
            return Some(self.after_uncordon());
        }
        // Another client removed our cordon and set its own, which stays at the end.
        super::is_foreign_cordon(&self.episode.cordon, self.node).then(|| {
            let again = Episode {
                cordon: CordonOwner::Theirs,
                ..self.episode.clone()
            };
            PhaseStep::record(start_draining(&again, self.node, self.now))
        })
    }

    /// A request may only extend the timeout of the settings.
    fn guest_shutdown_timeout(self) -> Duration {
        let request = self.seen.request.as_ref();
        let asked = request.and_then(|request| request.guest_shutdown_timeout);
        self.policy.guest_shutdown_timeout.max(asked.unwrap_or_default())
    }

    /// The shutdown of the guest was requested: its power is cut when the deadline passes.
    fn await_guest(self, asked: Timer, end: &DrainEnd) -> PhaseStep {
        let until = self.deadline(asked.elapsed, self.guest_shutdown_timeout());
        if self.is_past(until) {
            return self.power_off(end);
        }
        PhaseStep::wait_until(WaitingOn::GuestShutdown { until: until.shown }, until.at)
    }

    /// The record shows no request to shut the guest down.
    fn ask_guest(self, end: &DrainEnd) -> PhaseStep {
        let until = self.phase_deadline(self.guest_shutdown_timeout());
        let attempt = self.seen.attempt(EffectKind::ShutdownGuest);
        if let Some(attempt) = attempt {
            match &attempt.outcome {
                AttemptOutcome::Asked | AttemptOutcome::Running(_) | AttemptOutcome::Done => {
                    return self.record_request(attempt);
                }
                AttemptOutcome::Refused(refusal) => match refusal.advice {
                    // Another process may have requested the shutdown already, and VMware Tools are among the first to stop.
                    RetryAdvice::NoTools if !self.seen.record_seen.from_the_start => {
                        return self.record_request(attempt);
                    }
                    RetryAdvice::Unanswered => return self.record_request(attempt),
                    // VMware Tools are being restarted or upgraded.
                    RetryAdvice::NoTools if self.vm.tools_running == Some(true) => {}
                    RetryAdvice::NoTools => return self.power_off(end),
                    RetryAdvice::Retry
                    | RetryAdvice::Unknown
                    | RetryAdvice::OtherHost
                    | RetryAdvice::Cluster
                    | RetryAdvice::Person => {}
                },
            }
            if self.is_past(until) {
                return self.power_off(end);
            }
        }
        let waiting_on = WaitingOn::GuestShutdown { until: until.shown };
        let ask = self.start_or_retry(EffectKind::ShutdownGuest, waiting_on, || {
            Ok(Effect::ShutdownGuest {
                vm: self.vm.moref.clone(),
                drained: self.proof(end)?,
                asked_by: self.power_off_cause(),
            })
        });
        // A refused request is retried until the shutdown timeout.
        if attempt.is_some() {
            at_latest(until.at, ask)
        } else {
            ask
        }
    }

    /// Records that the shutdown was requested, so that it is requested only once.
    fn record_request(self, attempt: &EffectAttempt) -> PhaseStep {
        let asked = Timer {
            since: attempt.at.wall,
            elapsed: Elapsed::of(self.now.monotonic.since(attempt.at.monotonic)),
        };
        PhaseStep::record(transition_to(Episode {
            in_flight: InFlight {
                guest_shutdown: Some(asked),
                ..self.episode.in_flight
            },
            ..self.episode.clone()
        }))
    }

    /// The shutdown timeout passed, or the guest cannot be asked: cuts the power.
    fn power_off(self, end: &DrainEnd) -> PhaseStep {
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
        let waiting_on = WaitingOn::Task(EffectKind::PowerOff);
        let cut = self.start_or_retry(EffectKind::PowerOff, waiting_on, || {
            Ok(Effect::PowerOff {
                vm: self.vm.moref.clone(),
                drained: self.proof(end)?,
                asked_by: self.power_off_cause(),
            })
        });
        let overdue = self.deadline(noted.elapsed, self.policy.power_off_timeout);
        self.unless_overdue(overdue, cut)
    }

    /// The proof that the node is drained now, or the step that leads to it.
    fn proof(self, end: &DrainEnd) -> Result<Drained, Box<PhaseStep>> {
        let Some(list) = &self.seen.drain else {
            return Err(Box::new(self.start_round(WaitingOn::DrainRound)));
        };
        let is_current = list.pods_revision == self.seen.pods_revision
            && self.now.monotonic.since(list.listed_at) <= PROOF_AGE;
        let again = list.listed_at.after(ROUND_GAP);
        if is_current {
            // Pods were scheduled since the drain ended. The drain timeout does not start again.
            let again = || Box::new(PhaseStep::record(transition_to(self.enter(Phase::Draining))));
            return Drained::holds(end, self.node.unschedulable, list).ok_or_else(again);
        }
        Err(Box::new(if self.now.monotonic < again {
            PhaseStep::wait_until(WaitingOn::DrainRound, again)
        } else {
            self.start_round(WaitingOn::DrainRound)
        }))
    }

    /// The cause, which is checked again when vCenter is asked to stop the VM.
    fn power_off_cause(self) -> PowerOffCause {
        match (&self.vm.on, &self.vm.host) {
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
            ) => PowerOffCause::Request,
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
        let may_be_sent = |attempt: &EffectAttempt| match &attempt.outcome {
            AttemptOutcome::Asked | AttemptOutcome::Running(_) | AttemptOutcome::Done => true,
            AttemptOutcome::Refused(refusal) => refusal.advice == RetryAdvice::Unanswered,
        };
        let attempt = self.seen.attempt(EffectKind::ShutdownGuest);
        let is_asked = attempt.is_some_and(may_be_sent) || !self.seen.record_seen.from_the_start;
        let since_phase = Timer {
            since: self.episode.since,
            elapsed: self.episode.elapsed,
        };
        InFlight {
            guest_shutdown: is_asked.then_some(since_phase),
            ..recorded
        }
    }

    /// The maintenance was cancelled. The episode ends if the VM stayed on and no request can still stop it; otherwise the node
    /// has to rejoin first.
    pub(super) fn finish(self) -> PhaseStep {
        let in_flight = self.in_flight();
        let is_elsewhere = self.vm.on.is_some() && !self.is_at_home();
        let is_other_boot = match (&self.node.boot_id, &self.episode.boot_before) {
            (Some(seen), Some(before)) => seen != before,
            (None, _) | (_, None) => false,
        };
        // It was not moved by vMotion, but was off while nobody looked.
        let was_restarted = is_elsewhere && is_other_boot;
        let powered_off = self.episode.powered_off || was_restarted;
        let may_be_booting = is_elsewhere && !self.node.ready;
        if in_flight.is_empty() && !powered_off && !may_be_booting {
            return self.end(None);
        }
        let moved_to = was_restarted.then(|| host_of(self.vm));
        let episode = Episode {
            in_flight,
            powered_off,
            moved_to: moved_to.or_else(|| self.episode.moved_to.clone()),
            ..self.enter(Phase::Rejoining)
        };
        PhaseStep::record(cordoned(episode, self.node))
    }
}
