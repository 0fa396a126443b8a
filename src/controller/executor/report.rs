//! Converts the report of a drain round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::ids::NodeName;
use crate::kubernetes::drain::{PodPending, PodPendingReason, RoundReport, UnreadablePod};
use crate::kubernetes::events::{Event, Regarding, Severity};
use crate::kubernetes::machine_guard::MachineGuardError;
use crate::maintenance::clock::{Deadline, Now, wall_after};
use crate::maintenance::drain::{EvictionBackoff, TerminatingPod};
use crate::maintenance::effect::DrainBegan;
use crate::maintenance::effect_report::{Eviction, EvictionAnswer, EvictionRound};
use crate::maintenance::observed::{
    AttemptOutcome, DrainReport, EffectRefusal, PendingEviction, PendingReason, RetryAdvice,
};

/// The grace period of a pod that names none, as the kube-apiserver's default.
const GRACE: Duration = Duration::from_secs(30);

/// Why guards on Machines were not removed. Rights that are gone come back only if a person gives them.
pub(super) fn not_removed(error: &MachineGuardError) -> AttemptOutcome {
    let advice = if error.is_forbidden() {
        RetryAdvice::Person
    } else {
        RetryAdvice::Retry
    };
    AttemptOutcome::Refused(EffectRefusal {
        advice,
        message: error.to_string(),
    })
}

/// The facts of a round that began at this moment on both clocks and requested no eviction of the pods in `deferred`.
pub(super) fn of_round(
    round: &RoundReport,
    deferred: &BTreeMap<String, PendingReason>,
    pods_revision: u64,
    drain: DrainBegan,
    (begun, now): (Instant, Now),
) -> DrainReport {
    let wait_ends = |until: Duration| Deadline {
        at: now.monotonic.after(until.saturating_sub(drain.elapsed)),
        shown: wall_after(drain.at, until),
    };
    let mut retry_at = BTreeMap::new();
    let mut not_asked = BTreeSet::new();
    let left = round.left.iter().map(|left| {
        let name = left.full_name();
        if let Some(at) = left.retry_at {
            let at = now.monotonic.after(at.saturating_duration_since(begun));
            retry_at.insert(name.clone(), at);
        }
        if left.why == PodPendingReason::Deferred {
            not_asked.insert(name.clone());
        }
        let why = if let PodPendingReason::Waiting { until } = left.why {
            PendingReason::Waits {
                until: wait_ends(until),
            }
        } else {
            pod_left(&left.why, deferred.get(&name))
        };
        PendingEviction { name, why }
    });
    let left = left.collect();
    DrainReport {
        listed_at: now.monotonic,
        pods_revision,
        left,
        listed: round.listed,
        ignored: round.skipped.values().sum(),
        evicted: round
            .left
            .iter()
            .filter(|left| left.why == PodPendingReason::Evicted)
            .count(),
        backoff: EvictionBackoff::of_round(retry_at, not_asked),
        known: Arc::new(round.known.clone()),
        returned: round.returned.clone(),
        skipped: round.left_alone.clone(),
        terminating: terminating(round, now),
        longest_wait: round.longest_wait,
    }
}

/// The pods that terminate since `now` at the latest.
fn terminating(round: &RoundReport, now: Now) -> BTreeMap<String, TerminatingPod> {
    let is_terminating = |left: &&PodPending| match &left.why {
        PodPendingReason::Evicted | PodPendingReason::Terminating { .. } => true,
        PodPendingReason::Budget { .. }
        | PodPendingReason::Migrating { .. }
        | PodPendingReason::ServerError { .. }
        | PodPendingReason::NamespaceTerminating
        | PodPendingReason::Forbidden { .. }
        | PodPendingReason::TooManyRequests
        | PodPendingReason::Unreachable { .. }
        | PodPendingReason::NotReached
        | PodPendingReason::Last
        | PodPendingReason::Deferred
        | PodPendingReason::Waiting { .. }
        | PodPendingReason::WouldEvict => false,
    };
    let terminating = round.left.iter().filter(is_terminating).map(|left| {
        let grace = left.grace.and_then(|grace| u64::try_from(grace).ok());
        let pod = TerminatingPod {
            uid: left.uid.clone(),
            since: now.monotonic,
            grace: grace.map_or(GRACE, Duration::from_secs),
        };
        (left.full_name(), pod)
    });
    terminating.collect()
}

/// The Event of a pod whose annotation cannot be read.
pub(super) fn unreadable_event(pod: &UnreadablePod, at: Timestamp) -> Event {
    Event {
        regarding: regarding(&pod.namespace, &pod.name, &pod.uid),
        at,
        severity: Severity::Warning,
        reason: "DrainPolicyUnreadable",
        action: "Drain",
        note: pod.why.to_string(),
    }
}

/// The Event of an eviction. The log of the pod only shows that it was asked to stop.
pub(super) fn event(node: &NodeName, pod: &PodPending, at: Timestamp) -> Event {
    Event {
        regarding: regarding(&pod.namespace, &pod.name, &pod.uid),
        at,
        severity: Severity::Normal,
        reason: "Evicted",
        action: "Drain",
        note: format!("Evicted: node {node} is drained for the maintenance of its ESXi host"),
    }
}

fn regarding(namespace: &str, name: &str, uid: &str) -> Regarding {
    Regarding::Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
    }
}

/// Why a pod is still there; `before` is the earlier reason of a deferred pod.
fn pod_left(why: &PodPendingReason, before: Option<&PendingReason>) -> PendingReason {
    let refused = |message: &str| PendingReason::Refused {
        message: message.to_owned(),
    };
    match why {
        PodPendingReason::Evicted | PodPendingReason::Terminating { .. } => PendingReason::Leaving,
        PodPendingReason::Budget { names, message } => PendingReason::Budget {
            names: names.clone(),
            message: message.clone(),
        },
        PodPendingReason::Migrating { message } => PendingReason::Migrating {
            message: message.clone(),
        },
        PodPendingReason::ServerError { message }
        | PodPendingReason::Forbidden { message }
        | PodPendingReason::Unreachable { message } => refused(message),
        PodPendingReason::NamespaceTerminating => refused("its namespace is being deleted"),
        PodPendingReason::TooManyRequests => refused("the kube-apiserver has too much to do"),
        PodPendingReason::Last => PendingReason::Last,
        PodPendingReason::Deferred => before.cloned().unwrap_or(PendingReason::NotReached),
        PodPendingReason::NotReached | PodPendingReason::Waiting { .. } | PodPendingReason::WouldEvict => {
            PendingReason::NotReached
        }
    }
}

/// The evictions of a round, for the observers.
pub(super) fn evictions(report: &RoundReport, now: Timestamp) -> EvictionRound {
    let at = |since| wall_after(now, since);
    let asked = report.asked.iter().map(|asked| Eviction {
        namespace: asked.namespace.clone(),
        pod: asked.name.clone(),
        uid: asked.uid.clone(),
        asked_at: at(asked.asked),
        answered_at: at(asked.answered),
        grace: asked.grace,
        answer: match &asked.why {
            None | Some(PodPendingReason::Evicted | PodPendingReason::Terminating { .. }) => {
                EvictionAnswer::Accepted
            }
            Some(PodPendingReason::Budget { names, message }) => EvictionAnswer::Blocked {
                budgets: names.clone(),
                message: message.clone(),
            },
            Some(
                PodPendingReason::ServerError { .. }
                | PodPendingReason::Forbidden { .. }
                | PodPendingReason::Unreachable { .. }
                | PodPendingReason::NamespaceTerminating
                | PodPendingReason::TooManyRequests
                | PodPendingReason::Migrating { .. }
                | PodPendingReason::Last
                | PodPendingReason::NotReached
                | PodPendingReason::Deferred
                | PodPendingReason::Waiting { .. }
                | PodPendingReason::WouldEvict,
            ) => EvictionAnswer::Refused,
        },
    });
    EvictionRound {
        at: now,
        asked: asked.collect(),
        left: report.left.iter().map(|left| left.uid.clone()).collect(),
    }
}
