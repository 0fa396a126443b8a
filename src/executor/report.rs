//! How the outcome of a drain round is told.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::cluster::drain::{Left, Report, Why};
use crate::cluster::events::{Event, Regarding, Severity};
use crate::ids::NodeName;
use crate::maintenance::backoff::EvictionBackoff;
use crate::maintenance::clock::{Now, wall_after};
use crate::maintenance::finding::{Eviction, EvictionAnswer, EvictionRound};
use crate::maintenance::observed::{DrainReport, PodLeft, PodLeftBecause};

/// What the drain learns from a round that began at this moment on both clocks, and that did not ask the pods in `deferred`.
pub(super) fn of_round(
    round: &Report,
    deferred: &BTreeMap<String, PodLeftBecause>,
    pods_revision: u64,
    (begun, now): (Instant, Now),
) -> DrainReport {
    let mut retry_at = BTreeMap::new();
    let mut not_asked = BTreeSet::new();
    let left = round.left.iter().map(|left| {
        let name = left.full_name();
        if let Some(at) = left.retry_at {
            let at = now.monotonic.after(at.saturating_duration_since(begun));
            retry_at.insert(name.clone(), at);
        }
        if left.why == Why::Deferred {
            not_asked.insert(name.clone());
        }
        let why = pod_left(&left.why, deferred.get(&name));
        PodLeft { name, why }
    });
    let left = left.collect();
    DrainReport {
        listed_at: now.monotonic,
        pods_revision,
        left,
        listed: round.listed,
        ignored: round.skipped.values().sum(),
        evicted: round.left.iter().filter(|left| left.why == Why::Evicted).count(),
        backoff: EvictionBackoff::of_round(retry_at, not_asked),
    }
}

/// What a pod's owner is told: their logs say only that it was asked to stop.
pub(super) fn event(node: &NodeName, pod: &Left, at: Timestamp) -> Event {
    Event {
        regarding: Regarding::Pod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        },
        at,
        severity: Severity::Normal,
        reason: "Evicted",
        action: "Drain",
        note: format!("Evicted: node {node} is drained for the maintenance of its ESXi host"),
    }
}

/// Why a pod is still there, as the decision sees it; `before` is what was known of one that was not asked.
fn pod_left(why: &Why, before: Option<&PodLeftBecause>) -> PodLeftBecause {
    let refused = |said: &str| PodLeftBecause::Refused {
        said: said.to_owned(),
    };
    match why {
        Why::Evicted | Why::Terminating { .. } => PodLeftBecause::Leaving,
        Why::Budget { names, said } => PodLeftBecause::Budget {
            names: names.clone(),
            said: said.clone(),
        },
        Why::Migrating { said } => PodLeftBecause::Migrating { said: said.clone() },
        Why::ServerError { said } | Why::Forbidden { said } | Why::Unreachable { said } => {
            PodLeftBecause::Refused { said: said.clone() }
        }
        Why::NamespaceTerminating => refused("its namespace is being deleted"),
        Why::TooManyRequests => refused("the kube-apiserver has too much to do"),
        Why::OwnPod => refused("it is Haulout's own pod, which leaves last"),
        Why::Deferred => before.cloned().unwrap_or(PodLeftBecause::NotReached),
        Why::NotReached | Why::Standing => PodLeftBecause::NotReached,
    }
}

/// The evictions of a round, for those who show them.
pub(super) fn evictions(report: &Report, now: Timestamp) -> EvictionRound {
    let at = |since| wall_after(now, since);
    let asked = report.asked.iter().map(|asked| Eviction {
        namespace: asked.namespace.clone(),
        pod: asked.name.clone(),
        uid: asked.uid.clone(),
        asked_at: at(asked.asked),
        answered_at: at(asked.answered),
        grace: asked.grace,
        answer: match &asked.why {
            None | Some(Why::Evicted | Why::Terminating { .. }) => EvictionAnswer::Accepted,
            Some(Why::Budget { names, said }) => EvictionAnswer::Blocked {
                budgets: names.clone(),
                said: said.clone(),
            },
            Some(
                Why::ServerError { .. }
                | Why::Forbidden { .. }
                | Why::Unreachable { .. }
                | Why::NamespaceTerminating
                | Why::TooManyRequests
                | Why::Migrating { .. }
                | Why::OwnPod
                | Why::NotReached
                | Why::Deferred
                | Why::Standing,
            ) => EvictionAnswer::Refused,
        },
    });
    EvictionRound {
        at: now,
        asked: asked.collect(),
        left: report.left.iter().map(|left| left.uid.clone()).collect(),
    }
}
