//! Converts the report of a drain round.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use haulout_core::ids::NodeName;
use haulout_core::maintenance::clock::{Monotonic, Now};
use haulout_core::maintenance::drain::{EvictionBackoff, TerminatingPod};
use haulout_core::maintenance::effect_report::EvictionRound;
use haulout_core::maintenance::observed::{
    AttemptOutcome, DrainReport, EffectRefusal, PendingEviction, PendingReason, RetryAdvice,
};
use haulout_core::status::story::Severity;
use haulout_kubernetes::drain::{PodPending, RoundReport, UnreadablePod};
use haulout_kubernetes::events::{Event, Regarding};
use haulout_kubernetes::machine_guard::MachineGuardError;

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

/// The facts of a round that began at `began` and took this long. An eviction may have been accepted at its end only.
pub(super) fn of_round(
    round: RoundReport,
    pods_revision: u64,
    (began, took): (Now, Duration),
) -> DrainReport {
    let ended = began.monotonic.after(took);
    let retry_at = round
        .left
        .iter()
        .filter_map(|left| Some((left.full_name(), left.retry_at?)));
    let backoff = EvictionBackoff::of_round(retry_at.collect(), round.deferred);
    let terminating = round
        .left
        .iter()
        .filter(|left| left.why == PendingReason::Leaving);
    let terminating = terminating.map(|left| (left.full_name(), terminating_since(left, ended)));
    let terminating = terminating.collect();
    let left = round.left.into_iter().map(|left| PendingEviction {
        name: left.full_name(),
        why: left.why,
    });
    DrainReport {
        listed_at: began.monotonic,
        pods_revision,
        left: left.collect(),
        listed: round.listed,
        ignored: round.skipped.values().sum(),
        evicted: round.evicted,
        backoff,
        known: Arc::new(round.known),
        returned: round.returned,
        skipped: round.left_alone,
        terminating,
        longest_wait: round.longest_wait,
    }
}

/// A pod that terminates since `since` at the latest.
fn terminating_since(pod: &PodPending, since: Monotonic) -> TerminatingPod {
    let grace = pod.grace.and_then(|grace| u64::try_from(grace).ok());
    TerminatingPod {
        uid: pod.uid.clone(),
        since,
        grace: grace.map_or(GRACE, Duration::from_secs),
    }
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

/// The evictions of a round, for the observers.
pub(super) fn evictions(round: &RoundReport, now: Timestamp) -> EvictionRound {
    EvictionRound {
        at: now,
        asked: round.asked.clone(),
        left: round.left.iter().map(|left| left.uid.clone()).collect(),
    }
}
