//! The way down: from the cordon until the VM is off.

use std::collections::BTreeMap;
use std::time::Duration;

use super::context::{PhaseContext, PhaseStep, as_asked, at_latest};
use super::{cordoned, go, start_draining};
use crate::maintenance::backoff::BUDGET_RETRY_MIN;
use crate::maintenance::clock::{Deadline, Elapsed, Monotonic, Timer};
use crate::maintenance::effect::{Effect, EffectKind, PowerOffCause};
use crate::maintenance::episode::{CordonOwner, DrainEnd, Episode, InFlight, Phase};
use crate::maintenance::observed::{
    AttemptOutcome, DrainReport, Drained, EffectAttempt, HostState, PendingEviction, RetryAdvice,
};
use crate::maintenance::policy::DrainTimeoutAction;
use crate::maintenance::request::DesiredState;
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// The shortest time between two drain rounds: pods that end one after another would otherwise cost a list each, and a
/// quarter of a second is not felt by who waits for a drain.
const ROUND_GAP: Duration = Duration::from_millis(250);

/// The shortest time to the next round where the last one left no pod: then none is ending, and the change is as a rule the
/// watch's own first list. It still bounds the lists while pods that stay come and go.
const EMPTY_GAP: Duration = Duration::from_millis(20);

/// How long after the cordon a list may first show the drain complete. A scheduler that chose the Node before it saw the cordon
/// may still bind a pod to it: the kube-apiserver does not check a binding against the cordon.
const BINDING_SETTLE: Duration = Duration::from_secs(1);

/// How old the list may be on which a guest is asked to shut down or power is cut.
const PROOF_AGE: Duration = Duration::from_secs(10);

/// How many times a Node that somebody uncordons in mid-drain is cordoned again before the episode is parked: once may
/// be a mistake, twice is a wish.
const RECORDONS: u8 = 1;

impl PhaseContext<'_> {
    /// Draining, VM on.
    pub(super) fn draining(self) -> PhaseStep {
        let call = self.call();
        match call {
            DesiredState::Nothing => return self.finish(),
            DesiredState::Unclear => return self.host_not_visible(),
            DesiredState::Interrupted { until, said } => return Self::interrupted(until, said),
            DesiredState::Down | DesiredState::Drained(_) => {}
        }
        if let Some(step) = self.given_up() {
            return step;
        }
        if !self.node.unschedulable {
            return self.uncordoned();
        }
        if self.seen.is_drained(BINDING_SETTLE) {
            return match call {
                DesiredState::Drained(_) => PhaseStep::Go(go(self.enter(Phase::Drained))),
                DesiredState::Down
                | DesiredState::Nothing
                | DesiredState::Unclear
                | DesiredState::Interrupted { .. } => self.shut_down(DrainEnd::Complete, Vec::new()),
            };
        }
        let deadline = self.drain_deadline();
        match self.seen.round() {
            // The pods that are left behind have to be named, so a round comes before the power is cut on them.
            None => self.pursue_round(WaitingOn::DrainRound),
            Some(report) if !self.is_past(deadline) => {
                self.next_round(report, &WaitingOn::Pods, Some(deadline.at))
            }
            Some(report) => match self.drain_timeout_action(call) {
                DrainTimeoutAction::PowerOff => {
                    let left = report.left.iter().map(|pod| pod.name.clone()).collect();
                    self.shut_down(DrainEnd::TimedOut, left)
                }
                DrainTimeoutAction::Hold => self.next_round(report, &WaitingOn::DrainHeld, None),
            },
        }
    }

    /// How long the drain has taken, with what it took before it was interrupted.
    fn drain_elapsed(self) -> Elapsed {
        self.episode.drained_for.plus(self.episode.elapsed.span())
    }

    /// When the drain has taken as long as it may. A request may give it more time than the setting, and never less: the
    /// right to ask for a drain is not the right to void the budgets of others.
    fn drain_deadline(self) -> Deadline {
        let request = self.seen.request.as_ref();
        let asked = request.and_then(|request| request.drain_timeout);
        let timeout = self.policy.drain_timeout.max(asked.unwrap_or_default());
        self.deadline(self.drain_elapsed(), timeout)
    }

    fn drain_timeout_action(self, call: DesiredState<'_>) -> DrainTimeoutAction {
        match call {
            // No power is to be cut at all.
            DesiredState::Drained(_) => DrainTimeoutAction::Hold,
            DesiredState::Down
            | DesiredState::Nothing
            | DesiredState::Unclear
            | DesiredState::Interrupted { .. } => {
                let request = self.seen.request.as_ref();
                let asked = request.and_then(|request| request.drain_timeout_action);
                match (asked, self.policy.drain_timeout_action) {
                    (Some(DrainTimeoutAction::Hold), _) | (_, DrainTimeoutAction::Hold) => {
                        DrainTimeoutAction::Hold
                    }
                    (Some(DrainTimeoutAction::PowerOff) | None, DrainTimeoutAction::PowerOff) => {
                        DrainTimeoutAction::PowerOff
                    }
                }
            }
        }
    }

    /// Drained at a person's request, VM on: kept empty until the request is gone or asks for more.
    pub(super) fn drained(self) -> PhaseStep {
        let request = match self.call() {
            DesiredState::Nothing => return self.finish(),
            DesiredState::Unclear => return self.host_not_visible(),
            DesiredState::Interrupted { until, said } => return Self::interrupted(until, said),
            DesiredState::Down | DesiredState::Drained(_) if !self.node.unschedulable => {
                return self.uncordoned();
            }
            // What has come since the drain is not known to be nothing: it is drained again, in its turn.
            DesiredState::Down => return self.drain_in_turn(self.episode.clone()),
            DesiredState::Drained(request) => request,
        };
        let outdated = |report: &&DrainReport| {
            report.pods_revision != self.seen.pods_revision || !report.left.is_empty()
        };
        match &self.seen.drain {
            None => self.pursue_round(as_asked(request)),
            // A pod came that tolerates the cordon.
            Some(report) if outdated(&report) => self.next_round(report, &|_| as_asked(request), None),
            Some(_) => PhaseStep::wait(as_asked(request)),
        }
    }

    /// Drained at a person's request, and its VM was powered off since, by somebody who knows why: it is left off for as
    /// long as the request stands.
    pub(super) fn drained_and_off(self) -> PhaseStep {
        match self.call() {
            DesiredState::Drained(request) => PhaseStep::wait(as_asked(request)),
            DesiredState::Nothing
            | DesiredState::Down
            | DesiredState::Unclear
            | DesiredState::Interrupted { .. } => self.went_off(),
        }
    }

    /// The drain is over. What it took may have taken the place that there was at its beginning.
    fn shut_down(self, end: DrainEnd, left_behind: Vec<String>) -> PhaseStep {
        if let Some(step) = self.place_first() {
            return step;
        }
        PhaseStep::Go(go(Episode {
            left_behind,
            drained_for: self.drain_elapsed(),
            ..self.enter(Phase::ShuttingDown(end))
        }))
    }

    /// A failed round is tried again after its backoff; without any report there is nothing else to go by.
    fn pursue_round(self, waiting_on: WaitingOn) -> PhaseStep {
        match self.seen.attempt(EffectKind::DrainRound) {
            Some(EffectAttempt {
                outcome: AttemptOutcome::Refused(_),
                ..
            }) => self.pursue(EffectKind::DrainRound, waiting_on, || Ok(self.round())),
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
        }
    }

    /// After `report`: the next round comes when the pods have changed, when refused evictions are due again, and at
    /// the latest after the longest retry, in case a change was missed.
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
            let asked_again = report.left.iter().filter_map(|pod| report.retry_at(pod, retry));
            let refused = asked_again.min();
            let changed =
                (report.pods_revision != self.seen.pods_revision).then(|| report.listed_at.after(ROUND_GAP));
            let first = refused.into_iter().chain(changed).min();
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
        let later = self
            .seen
            .attempt(EffectKind::DrainRound)
            .filter(|attempt| attempt.at.monotonic > report.listed_at);
        match later {
            Some(_) => self.pursue_round(waiting_on),
            None => PhaseStep::Do {
                effect: self.round(),
                waiting_on,
                recheck: deadline,
            },
        }
    }

    /// Somebody uncordoned the Node. Its power must not be cut on what is scheduled there meanwhile, so it is cordoned
    /// and drained again; a second time it is taken for a wish.
    fn uncordoned(self) -> PhaseStep {
        if self.episode.recordoned >= RECORDONS {
            return PhaseStep::park(ParkReason::Uncordoned);
        }
        let again = Episode {
            recordoned: self.episode.recordoned.saturating_add(1),
            drained_for: Elapsed::ZERO,
            ..self.enter(Phase::Draining)
        };
        PhaseStep::Go(cordoned(again, self.node))
    }

    /// Drained, VM still on: ask the guest, and cut the power after its deadline.
    pub(super) fn shutting_down(self, end: &DrainEnd) -> PhaseStep {
        match self.call() {
            DesiredState::Drained(_) if self.in_flight().is_empty() => {
                return PhaseStep::Go(go(self.enter(Phase::Drained)));
            }
            DesiredState::Nothing | DesiredState::Drained(_) => return self.finish(),
            DesiredState::Unclear => return self.host_not_visible(),
            DesiredState::Interrupted { until, said } => return Self::interrupted(until, said),
            DesiredState::Down => {}
        }
        if let Some(step) = self.drain_anew() {
            return step;
        }
        if let Some(question) = &self.vm.question {
            return PhaseStep::wait(WaitingOn::Question(question.clone()));
        }
        match self.episode.in_flight.guest_shutdown {
            Some(asked) => self.await_guest(asked, end),
            None => self.ask_guest(end),
        }
    }

    /// The node has to be drained anew where what was drained is not what would be shut down.
    fn drain_anew(self) -> Option<PhaseStep> {
        // Another boot than the drained one: the guest restarted instead of stopping, and its pods with it.
        let drained = match &self.episode.drained_boot {
            None if !self.episode.powered_off => self.episode.boot_before.as_ref(),
            drained => drained.as_ref(),
        };
        let rebooted = match (&self.node.boot_id, drained) {
            (Some(seen), Some(drained)) => seen != drained,
            (None, _) | (_, None) => false,
        };
        if rebooted {
            return Some(PhaseStep::Go(start_draining(self.episode, self.node, self.now)));
        }
        if !self.node.unschedulable {
            return Some(self.uncordoned());
        }
        // Our cordon was lifted and somebody else's stands there: in between, pods may have come. Theirs is left at the end.
        super::is_anothers(&self.episode.cordon, self.node).then(|| {
            let again = Episode {
                cordon: CordonOwner::Theirs,
                ..self.episode.clone()
            };
            PhaseStep::Go(start_draining(&again, self.node, self.now))
        })
    }

    /// A request may give the guest more time than the setting, and never less.
    fn guest_shutdown_timeout(self) -> Duration {
        let request = self.seen.request.as_ref();
        let asked = request.and_then(|request| request.guest_shutdown_timeout);
        self.policy.guest_shutdown_timeout.max(asked.unwrap_or_default())
    }

    /// The guest was asked, once: the deadline of that request does the rest.
    fn await_guest(self, asked: Timer, end: &DrainEnd) -> PhaseStep {
        let until = self.deadline(asked.elapsed, self.guest_shutdown_timeout());
        if self.is_past(until) {
            return self.cut_power(end);
        }
        PhaseStep::wait_until(WaitingOn::GuestShutdown { until: until.shown }, until.at)
    }

    /// The guest was not asked as far as the record tells.
    fn ask_guest(self, end: &DrainEnd) -> PhaseStep {
        let until = self.phase_deadline(self.guest_shutdown_timeout());
        let attempt = self.seen.attempt(EffectKind::ShutdownGuest);
        if let Some(attempt) = attempt {
            match &attempt.outcome {
                AttemptOutcome::Asked | AttemptOutcome::Running(_) | AttemptOutcome::Done => {
                    return self.note_asked(attempt);
                }
                AttemptOutcome::Refused(refusal) => match refusal.advice {
                    // A guest that may have been asked before by another process may be on its way down: Tools are
                    // among the first to stop.
                    RetryAdvice::NoTools if !self.seen.record_seen.from_the_start => {
                        return self.note_asked(attempt);
                    }
                    RetryAdvice::Unanswered => return self.note_asked(attempt),
                    // Tools that were running a moment ago are being restarted or upgraded.
                    RetryAdvice::NoTools if self.vm.tools_running == Some(true) => {}
                    RetryAdvice::NoTools => return self.cut_power(end),
                    RetryAdvice::Retry
                    | RetryAdvice::Unknown
                    | RetryAdvice::OtherHost
                    | RetryAdvice::Cluster
                    | RetryAdvice::Person => {}
                },
            }
            if self.is_past(until) {
                return self.cut_power(end);
            }
        }
        let waiting_on = WaitingOn::GuestShutdown { until: until.shown };
        let ask = self.pursue(EffectKind::ShutdownGuest, waiting_on, || {
            Ok(Effect::ShutdownGuest {
                vm: self.vm.moref.clone(),
                drained: self.proof(end)?,
                asked_by: self.asked_by(),
            })
        });
        // One that was refused is tried until the guest would have had its time.
        if attempt.is_some() {
            at_latest(until.at, ask)
        } else {
            ask
        }
    }

    /// Writes down that the guest was asked, so that it is never asked again.
    fn note_asked(self, attempt: &EffectAttempt) -> PhaseStep {
        let asked = Timer {
            since: attempt.at.wall,
            elapsed: Elapsed::of(self.now.monotonic.since(attempt.at.monotonic)),
        };
        PhaseStep::Go(go(Episode {
            in_flight: InFlight {
                guest_shutdown: Some(asked),
                ..self.episode.in_flight
            },
            ..self.episode.clone()
        }))
    }

    /// The guest had its time, or cannot be asked.
    fn cut_power(self, end: &DrainEnd) -> PhaseStep {
        let Some(noted) = self.episode.in_flight.power_off else {
            return match self.proof(end) {
                Ok(_) => PhaseStep::Go(go(Episode {
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
        let cut = self.pursue(EffectKind::PowerOff, waiting_on, || {
            Ok(Effect::PowerOff {
                vm: self.vm.moref.clone(),
                drained: self.proof(end)?,
                asked_by: self.asked_by(),
            })
        });
        let overdue = self.deadline(noted.elapsed, self.policy.power_off_timeout);
        self.unless_overdue(overdue, cut)
    }

    /// Proof that the node is drained at this moment, or what has to be done to get it.
    fn proof(self, end: &DrainEnd) -> Result<Drained, Box<PhaseStep>> {
        // That of the drain itself will do, as long as it is as young.
        let Some(list) = &self.seen.drain else {
            return Err(Box::new(self.pursue_round(WaitingOn::DrainRound)));
        };
        let is_current = list.pods_revision == self.seen.pods_revision
            && self.now.monotonic.since(list.listed_at) <= PROOF_AGE;
        let again = list.listed_at.after(ROUND_GAP);
        if is_current {
            // Pods have come since the drain ended. The time that it took is not given again.
            let again = || Box::new(PhaseStep::Go(go(self.enter(Phase::Draining))));
            return Drained::holds(end, self.node, list).ok_or_else(again);
        }
        Err(Box::new(if self.now.monotonic < again {
            PhaseStep::wait_until(WaitingOn::DrainRound, again)
        } else {
            self.pursue_round(WaitingOn::DrainRound)
        }))
    }

    /// What has to hold still when vCenter is asked to bring the VM down.
    fn asked_by(self) -> PowerOffCause {
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
                | HostState::Quarantined
                | HostState::InService
                | HostState::Entering { .. }
                | HostState::InMaintenance,
            ) => PowerOffCause::Request,
        }
    }

    /// What was requested of vCenter and may still bring the VM down: what the record says, and where it says nothing of the
    /// guest, what this process or one before it may have done since the phase began.
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

    /// Nothing calls the node out of service any more. It is back at once where its VM was left alone; where it went off, or
    /// may still go off, the node has to show that it is back.
    pub(super) fn finish(self) -> PhaseStep {
        let in_flight = self.in_flight();
        if in_flight.is_empty() && !self.episode.powered_off {
            return self.end(None);
        }
        let episode = Episode {
            in_flight,
            ..self.enter(Phase::Rejoining)
        };
        PhaseStep::Go(cordoned(episode, self.node))
    }
}
