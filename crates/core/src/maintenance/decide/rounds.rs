//! The rounds of a drain: when they begin, how long the drain may last, and the proof that it is complete.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;

use super::context::{PhaseContext, PhaseStep, at_latest};
use super::transition_to;
use crate::facts::known_pods::KnownPods;
use crate::maintenance::clock::{Deadline, Elapsed, Monotonic, whole_second};
use crate::maintenance::desired::DesiredState;
use crate::maintenance::drain::BUDGET_RETRY_MIN;
use crate::maintenance::effect::{DrainBegan, Effect, EffectKind};
use crate::maintenance::episode::{DrainEnd, DrainLimit, Episode, Phase};
use crate::maintenance::observed::{DrainReport, Drained, PendingEviction};
use crate::maintenance::policy::{DrainTimeoutAction, Policy};
use crate::maintenance::request::Request;
use crate::maintenance::waiting::WaitingOn;

/// The shortest time between two drain rounds. Without it, pods that terminate one after another would cost a list each.
const ROUND_GAP: Duration = Duration::from_millis(250);

/// The shortest time to the next round after one that left no pod. The reported change then usually is the first list of the pod
/// watch.
const EMPTY_GAP: Duration = Duration::from_millis(20);

/// How long after the cordon a list may first prove the drain. A scheduler that chose the Node before it saw the cordon may still
/// bind a pod to it: the kube-apiserver does not check a binding against the cordon.
pub(super) const BINDING_SETTLE: Duration = Duration::from_secs(1);

/// The maximum age of the list that proves the drain when the guest is shut down or power is cut.
const PROOF_AGE: Duration = Duration::from_secs(10);

/// How long a drain may last, and how long without the time in which pods may be waited for.
#[derive(Clone, Copy)]
pub(super) struct DrainTime {
    pub(super) limit: DrainLimit,
    pub(super) timeout: Elapsed,
}

/// How long a drain may last. A request may only extend it: the right to request a drain must not override disruption budgets.
pub(super) fn drain_time_of(
    desired: DesiredState<'_>,
    request: Option<&Request>,
    policy: &Policy,
) -> DrainTime {
    let action = match desired {
        DesiredState::Drained(_) => DrainTimeoutAction::Hold,
        DesiredState::Down
        | DesiredState::InService
        | DesiredState::Unknown
        | DesiredState::RetryExpected { .. } => {
            match request.and_then(|request| request.drain_timeout_action) {
                Some(DrainTimeoutAction::Hold) => DrainTimeoutAction::Hold,
                Some(DrainTimeoutAction::PowerOff) | None => policy.drain_timeout_action,
            }
        }
    };
    let asked = request.and_then(|request| request.drain_timeout);
    let timeout = policy.drain_timeout.max(asked.unwrap_or_default());
    DrainTime {
        limit: match action {
            DrainTimeoutAction::Hold => DrainLimit::Hold,
            DrainTimeoutAction::PowerOff => {
                DrainLimit::After(Elapsed::of(timeout.saturating_add(policy.drain_wait_max)))
            }
        },
        timeout: Elapsed::of(timeout),
    }
}

impl PhaseContext<'_> {
    /// How long the drain has taken, including the time before an interruption.
    pub(super) fn drain_elapsed(self) -> Elapsed {
        self.episode.drained_for.plus(self.episode.elapsed.span())
    }

    fn drain_began(self) -> DrainBegan {
        let elapsed = self.drain_elapsed().span();
        let recorded = SignedDuration::try_from(elapsed.saturating_sub(self.aged_by));
        let from = self.seen.record_seen.at.wall;
        let at = recorded.ok().and_then(|recorded| from.checked_sub(recorded).ok());
        DrainBegan {
            elapsed,
            at: whole_second(at.unwrap_or(from)),
        }
    }

    /// How long the drain may last by the settings and the request.
    pub(super) fn drain_time(self) -> DrainTime {
        drain_time_of(self.desired(), self.seen.request.as_ref(), self.policy)
    }

    /// Records a limit that has changed since the drain began. A shorter one counts from now, also where pods were waited for without
    /// one, so that no power is cut as soon as the settings change or a request is gone.
    pub(super) fn follow_drain_limit(self) -> Option<PhaseStep> {
        let DrainTime { limit, timeout } = self.drain_time();
        let (recorded, recorded_timeout) = (self.episode.drain_limit?, self.episode.drain_timeout);
        if (limit, timeout) == (recorded, recorded_timeout) {
            return None;
        }
        // With a longer wait for pods, the limit may be longer although the timeout is shorter.
        let limited_from = if limit < recorded || timeout < recorded_timeout {
            self.drain_elapsed()
        } else {
            self.episode.limited_from
        };
        Some(PhaseStep::record(transition_to(Episode {
            drain_limit: Some(limit),
            drain_timeout: timeout,
            limited_from,
            ..self.episode.clone()
        })))
    }

    /// The end of the drain timeout, which begins when no pod may be waited for any more that is still there.
    pub(super) fn drain_deadline(self) -> Deadline {
        let wait = self.seen.round().map(|report| report.longest_wait);
        let from = self.episode.limited_from.span().max(wait.unwrap_or_default());
        self.deadline(
            self.drain_elapsed(),
            self.drain_time().timeout.span().saturating_add(from),
        )
    }

    /// The pods of `report` that block the drain.
    pub(super) fn blocking(self, report: &DrainReport) -> impl Iterator<Item = &PendingEviction> {
        report.blocking(self.node.is_unreachable, self.now.monotonic)
    }

    /// The pods that end with the VM if it is shut down now: `namespace/name`, with the reason where that is not the drain timeout.
    pub(super) fn left_behind(self, report: &DrainReport) -> Vec<String> {
        report.left_behind(self.node.is_unreachable, self.now.monotonic)
    }

    /// Starts a drain round; after a failed one, waits for its backoff first.
    pub(super) fn start_round(self, waiting_on: WaitingOn) -> PhaseStep {
        let attempt = self.seen.attempt(EffectKind::DrainRound);
        if attempt.is_some_and(|attempt| attempt.outcome.refusal().is_some()) {
            return self.start_or_retry(EffectKind::DrainRound, waiting_on, || Ok(self.round()));
        }
        PhaseStep::act(self.round(), waiting_on)
    }

    fn round(self) -> Effect {
        let retry = self.policy.eviction_retry;
        let report = self.seen.drain.as_ref();
        Effect::DrainRound {
            pods_revision: self.seen.pods_revision,
            in_turn: report.is_some_and(DrainReport::is_held),
            deferred: report.map_or_else(BTreeMap::new, |report| report.deferred(self.now.monotonic, retry)),
            began: self.drain_began(),
            known: self.known_pods(),
        }
    }

    /// What the lists of this drain showed. A shutdown that finds pods goes on with the same drain; another drain evicts all pods again.
    fn known_pods(self) -> Option<Arc<KnownPods>> {
        let is_new = *self.episode.phase.at_work() == Phase::Draining && self.episode.drained_for.is_zero();
        let of_drain = if is_new {
            self.seen.round()
        } else {
            self.seen.drain.as_ref()
        };
        of_drain.map(|report| Arc::clone(&report.known))
    }

    /// The step after `report`. The next round starts when the pods have changed, when refused evictions are due again, and at
    /// the latest after `retry_max`, in case a change was missed.
    pub(super) fn next_round(
        self,
        report: &DrainReport,
        waiting_on: &dyn Fn(Vec<PendingEviction>) -> WaitingOn,
        deadline: Option<Monotonic>,
    ) -> PhaseStep {
        let left: Vec<&PendingEviction> = self.blocking(report).collect();
        let due = if left.is_empty() {
            let settled = self.seen.record_seen.phase_at.after(BINDING_SETTLE);
            report.listed_at.after(EMPTY_GAP).max(settled)
        } else {
            let retry = self.policy.eviction_retry;
            let refused = left.iter().filter_map(|pod| report.retry_at(pod, retry));
            let changed =
                (report.pods_revision != self.seen.pods_revision).then(|| report.listed_at.after(ROUND_GAP));
            let first = refused.chain(changed).min();
            let due = first.unwrap_or_else(|| report.listed_at.after(self.policy.retry_max));
            let wait_ends = left.iter().filter_map(|pod| pod.why.wait_ends());
            let due = wait_ends.chain([due]).min().unwrap_or(due);
            due.max(report.listed_at.after(BUDGET_RETRY_MIN))
        };
        let waiting_on = if left.is_empty() {
            WaitingOn::DrainRound
        } else {
            waiting_on(left.into_iter().cloned().collect())
        };
        let given_up = report.next_given_up(self.node.is_unreachable, self.now.monotonic);
        let deadline = deadline.into_iter().chain(given_up).min();
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

    /// The proof that the node is drained now, or the step that leads to it.
    pub(super) fn proof(self, end: &DrainEnd) -> Result<Drained, Box<PhaseStep>> {
        let Some(list) = &self.seen.drain else {
            return Err(Box::new(self.start_round(WaitingOn::DrainRound)));
        };
        let is_current = list.pods_revision == self.seen.pods_revision
            && self.now.monotonic.since(list.listed_at) <= PROOF_AGE;
        let again = list.listed_at.after(ROUND_GAP);
        if is_current {
            // Pods were scheduled since the drain ended. The drain timeout does not start again.
            let again = || Box::new(PhaseStep::record(transition_to(self.leave_shutdown())));
            let is_empty = self.blocking(list).next().is_none();
            return Drained::holds(end, self.node.unschedulable, is_empty).ok_or_else(again);
        }
        Err(Box::new(if self.now.monotonic < again {
            PhaseStep::wait_until(WaitingOn::DrainRound, again)
        } else {
            self.start_round(WaitingOn::DrainRound)
        }))
    }
}
