//! The way down: from the cordon until the VM is off.

use jiff::Timestamp;

use super::scene::{Scene, Step, as_asked, at_latest};
use super::{cordoned, start_draining};
use crate::maintenance::effect::{Effect, EffectKind};
use crate::maintenance::episode::{DrainEnd, Episode, Phase};
use crate::maintenance::observed::{Advice, DrainReport, Drained, Outcome, PodLeft, PodLeftBecause};
use crate::maintenance::policy::{DrainTimeoutAction, after};
use crate::maintenance::request::Call;
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// The shortest time between two drain rounds: pods that end one after another would otherwise cost a list each, and a
/// quarter of a second is not felt by who waits for a drain.
const ROUND_GAP: std::time::Duration = std::time::Duration::from_millis(250);

/// The shortest time to the next round where the last one left no pod: then none is ending, and the change is as a rule the
/// watch's own first list. It still bounds the lists while pods that stay come and go.
const EMPTY_GAP: std::time::Duration = std::time::Duration::from_millis(20);

/// Pods that a budget holds that cannot be watched are asked for again after this many tenths of the time since it last let one go. A budget that
/// takes 10 s for each pod is then met at most 2 s late, and asked some twenty-five times and not two hundred.
const HELD_TENTHS: u32 = 2;

/// The shortest time between two questions to a budget. Twenty a second are not felt by a kube-apiserver, and end after a
/// quarter of a second; a replacement that is Ready within 150 ms is not met after 200.
const HELD_GAP: std::time::Duration = std::time::Duration::from_millis(50);

/// How many times a Node that somebody uncordons in mid-drain is cordoned again before the episode is parked: once may
/// be a mistake, twice is a wish.
const RECORDONS: u8 = 1;

impl Scene<'_> {
    /// Draining, VM on.
    pub(super) fn draining(self) -> Step {
        let call = self.call();
        match call {
            Call::Nothing => return self.end(None),
            Call::Unclear => return self.host_not_visible(),
            Call::Down | Call::Drained(_) => {}
        }
        if let Some(step) = self.given_up() {
            return step;
        }
        if !self.node.unschedulable {
            return self.uncordoned();
        }
        let since = self.episode.since;
        if self.seen.is_drained(since) {
            return match call {
                Call::Drained(_) => Step::Go(super::go(self.episode.enter(Phase::Drained, self.now))),
                Call::Down | Call::Nothing | Call::Unclear => self.shut_down(DrainEnd::Complete, Vec::new()),
            };
        }
        let deadline = self.deadline();
        let report = self
            .seen
            .drain
            .as_ref()
            .filter(|report| report.listed_at >= since);
        match report {
            // The pods that are left behind have to be named, so a round comes before the power is cut on them.
            None => self.pursue_round(WaitingOn::DrainRound),
            Some(report) if self.now < deadline => self.next_round(report, &WaitingOn::Pods, Some(deadline)),
            Some(report) => match self.drain_timeout_action(call) {
                DrainTimeoutAction::PowerOff => {
                    let left = report.left.iter().map(|pod| pod.name.clone()).collect();
                    self.shut_down(DrainEnd::TimedOut, left)
                }
                DrainTimeoutAction::Hold => self.next_round(report, &WaitingOn::DrainHeld, None),
            },
        }
    }

    /// When the drain has taken as long as it may.
    fn deadline(self) -> Timestamp {
        let request = self.seen.request.as_ref();
        let asked = request.and_then(|request| request.drain_timeout);
        after(self.episode.since, asked.unwrap_or(self.policy.drain_timeout))
    }

    fn drain_timeout_action(self, call: Call<'_>) -> DrainTimeoutAction {
        match call {
            // No power is to be cut at all.
            Call::Drained(_) => DrainTimeoutAction::Hold,
            Call::Down | Call::Nothing | Call::Unclear => {
                let request = self.seen.request.as_ref();
                let asked = request.and_then(|request| request.drain_timeout_action);
                asked.unwrap_or(self.policy.drain_timeout_action)
            }
        }
    }

    /// Drained at a person's request, VM on: kept empty until the request is gone or asks for more.
    pub(super) fn drained(self) -> Step {
        let request = match self.call() {
            Call::Nothing => return self.end(None),
            Call::Unclear => return self.host_not_visible(),
            Call::Down | Call::Drained(_) if !self.node.unschedulable => return self.uncordoned(),
            // What has come since the drain is not known to be nothing: it is drained again, in its turn.
            Call::Down => return self.drain_in_turn(self.episode.clone()),
            Call::Drained(request) => request,
        };
        let outdated = |report: &&DrainReport| {
            report.pods_revision != self.seen.pods_revision || !report.left.is_empty()
        };
        match &self.seen.drain {
            None => self.pursue_round(as_asked(request)),
            // A pod came that tolerates the cordon.
            Some(report) if outdated(&report) => self.next_round(report, &|_| as_asked(request), None),
            Some(_) => Step::Wait {
                waiting_on: as_asked(request),
                recheck: None,
            },
        }
    }

    /// Drained at a person's request, and its VM was powered off since, by somebody who knows why: it is left off for as
    /// long as the request stands.
    pub(super) fn drained_and_off(self) -> Step {
        match self.call() {
            Call::Drained(request) => Step::Wait {
                waiting_on: as_asked(request),
                recheck: None,
            },
            Call::Nothing | Call::Down | Call::Unclear => self.went_off(),
        }
    }

    /// The drain is over. What it took may have taken the place that there was at its beginning.
    fn shut_down(self, end: DrainEnd, left_behind: Vec<String>) -> Step {
        if let Some(step) = self.place_first() {
            return step;
        }
        Step::Go(super::go(Episode {
            left_behind,
            ..self.episode.enter(Phase::ShuttingDown(end), self.now)
        }))
    }

    /// A failed round is tried again after its backoff; without any report there is nothing else to go by.
    fn pursue_round(self, waiting_on: WaitingOn) -> Step {
        match self.seen.attempt(EffectKind::DrainRound, self.episode.since) {
            Some(attempt) => match &attempt.outcome {
                Outcome::Refused(refusal) => self.retry(self.round(), attempt, refusal),
                Outcome::Asked | Outcome::Running(_) | Outcome::Done => Step::Do {
                    effect: self.round(),
                    waiting_on,
                    recheck: None,
                },
            },
            None => Step::Do {
                effect: self.round(),
                waiting_on,
                recheck: None,
            },
        }
    }

    fn round(self) -> Effect {
        Effect::DrainRound {
            pods_revision: self.seen.pods_revision,
            in_turn: self.seen.drain.as_ref().is_some_and(is_held),
            until: self.deadline(),
        }
    }

    /// After `report`: the next round comes when the pods have changed, when refused evictions are due again, and at
    /// the latest after the longest retry, in case a change was missed.
    fn next_round(
        self,
        report: &DrainReport,
        waiting_on: &dyn Fn(Vec<PodLeft>) -> WaitingOn,
        deadline: Option<Timestamp>,
    ) -> Step {
        let refused = report.left.iter().any(|pod| pod.why != PodLeftBecause::Leaving);
        let changed = report.pods_revision != self.seen.pods_revision;
        let due = if is_held(report) {
            let gap = if changed { HELD_GAP } else { self.held_gap(report) };
            after(report.listed_at, gap)
        } else if changed && report.left.is_empty() {
            after(report.listed_at, EMPTY_GAP)
        } else if changed {
            after(report.listed_at, ROUND_GAP)
        } else if refused {
            after(report.listed_at, self.policy.eviction_retry)
        } else {
            after(report.listed_at, self.policy.retry_max)
        };
        let waiting_on = if report.left.is_empty() {
            WaitingOn::DrainRound
        } else {
            waiting_on(report.left.clone())
        };
        if self.now < due {
            let recheck = Some(deadline.map_or(due, |deadline| due.min(deadline)));
            return Step::Wait { waiting_on, recheck };
        }
        let later = self
            .seen
            .attempt(EffectKind::DrainRound, report.listed_at)
            .filter(|attempt| attempt.at > report.listed_at);
        match later {
            Some(_) => self.pursue_round(waiting_on),
            None => Step::Do {
                effect: self.round(),
                waiting_on,
                recheck: deadline,
            },
        }
    }

    /// How long after a round in which a budget held pods the next one comes, if nothing tells of a change. What a budget
    /// waits for (another pod that becomes Ready elsewhere) shows nowhere on this Node: where the budget itself cannot be
    /// watched it is asked for, and the longer it takes, the less often.
    fn held_gap(&self, report: &DrainReport) -> std::time::Duration {
        if self.seen.are_budgets_heard {
            return self.policy.eviction_retry;
        }
        let since = self.episode.since;
        let moved_at = report.moved_at.unwrap_or(since).max(since);
        let still = report.listed_at.duration_since(moved_at);
        let still = std::time::Duration::try_from(still).unwrap_or_default();
        (still / 10 * HELD_TENTHS).clamp(HELD_GAP, self.policy.eviction_retry.max(HELD_GAP))
    }

    /// Somebody uncordoned the Node. Its power must not be cut on what is scheduled there meanwhile, so it is cordoned
    /// and drained again; a second time it is taken for a wish.
    fn uncordoned(self) -> Step {
        if self.episode.recordoned >= RECORDONS {
            return Step::Park {
                reason: ParkReason::Uncordoned,
                effect: None,
                recheck: None,
            };
        }
        let again = Episode {
            recordoned: self.episode.recordoned.saturating_add(1),
            ..self.episode.enter(Phase::Draining, self.now)
        };
        Step::Go(cordoned(again, self.node))
    }

    /// Drained, VM still on: ask the guest, and cut the power after its deadline.
    pub(super) fn shutting_down(self, end: &DrainEnd) -> Step {
        let asked = self.seen.request.as_ref();
        let timeout = asked.and_then(|request| request.guest_shutdown_timeout);
        let until = after(
            self.episode.since,
            timeout.unwrap_or(self.policy.guest_shutdown_timeout),
        );
        match self.call() {
            Call::Nothing | Call::Drained(_) => return self.cancelled_in_shutdown(until),
            Call::Unclear => return self.host_not_visible(),
            Call::Down => {}
        }
        // Another boot than the drained one: the guest restarted instead of stopping, and its pods with it.
        let rebooted = match (&self.node.boot_id, &self.episode.boot_before) {
            (Some(seen), Some(before)) => seen != before,
            (None, _) | (_, None) => false,
        };
        if rebooted {
            let again = Episode {
                boot_before: self.node.boot_id.clone(),
                ..self.episode.clone()
            };
            return Step::Go(start_draining(&again, self.node, self.now));
        }
        let Some(drained) = Drained::recorded(end, self.node) else {
            return self.uncordoned();
        };
        if let Some(question) = &self.vm.question {
            return Step::Wait {
                waiting_on: WaitingOn::Question(question.clone()),
                recheck: None,
            };
        }
        let guest = self.seen.attempt(EffectKind::ShutdownGuest, self.episode.since);
        let no_tools = guest.is_some_and(|attempt| match &attempt.outcome {
            Outcome::Refused(refusal) => refusal.advice == Advice::NoTools,
            Outcome::Asked | Outcome::Running(_) | Outcome::Done => false,
        });
        let vm = self.vm.moref.clone();
        if no_tools || self.now >= until {
            let off = Effect::PowerOff { vm, drained };
            return self.pursue(off, WaitingOn::Task(EffectKind::PowerOff));
        }
        match guest {
            // Asked once is enough; the deadline does the rest.
            Some(attempt) if !matches!(attempt.outcome, Outcome::Refused(_)) => Step::Wait {
                waiting_on: WaitingOn::GuestShutdown { until },
                recheck: Some(until),
            },
            Some(_) | None => {
                let ask = Effect::ShutdownGuest { vm, drained };
                at_latest(until, self.pursue(ask, WaitingOn::GuestShutdown { until }))
            }
        }
    }

    /// The maintenance was called off after the guest was, perhaps, asked to shut down. If a process before this one may
    /// have asked, that cannot be known, and it cannot be un-asked; so the guest is waited for until its deadline, and its
    /// power is not cut.
    fn cancelled_in_shutdown(self, until: Timestamp) -> Step {
        let asked = self
            .seen
            .attempt(EffectKind::ShutdownGuest, self.episode.since)
            .is_some();
        if !asked && self.episode.since > self.seen.process_began {
            return match self.call() {
                Call::Drained(_) => Step::Go(super::go(self.episode.enter(Phase::Drained, self.now))),
                Call::Nothing | Call::Unclear | Call::Down => self.end(None),
            };
        }
        if self.now < until {
            let waiting_on = WaitingOn::GuestShutdownAfterCancel { until };
            return Step::Wait {
                waiting_on,
                recheck: Some(until),
            };
        }
        Step::Go(super::go(self.episode.enter(Phase::Rejoining, self.now)))
    }
}

/// A budget held pods in this round.
fn is_held(report: &DrainReport) -> bool {
    let mut left = report.left.iter();
    left.any(|pod| matches!(pod.why, PodLeftBecause::Budget { .. }))
}
