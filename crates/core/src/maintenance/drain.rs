//! The result of a drain round, and the proof that a node is drained.

mod backoff;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::clock::{Deadline, Elapsed, Monotonic};
use super::kinds::PodState;
use super::policy::DrainTimeoutAction;
use crate::facts::known_pods::{KnownPods, ReturnedPod};
use crate::keys::DRAIN;
pub use backoff::{BUDGET_RETRY_MIN, EvictionBackoff};

/// The result of one complete drain round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// When the round began; its list is no older.
    pub listed_at: Monotonic,
    /// [`Observed::pods_revision`](super::observed::Observed::pods_revision) when the round began.
    pub pods_revision: u64,
    /// The pods that block the drain, in a stable order. Empty only when a complete list showed none.
    pub left: Vec<PendingEviction>,
    /// How many pods the list showed, including those that do not block the drain.
    pub listed: usize,
    /// How many of them do not block the drain.
    pub ignored: usize,
    /// How many evictions were accepted in the round.
    pub evicted: usize,
    /// When refused evictions are requested again.
    pub backoff: EvictionBackoff,
    /// What this list and those before it showed.
    pub known: Arc<KnownPods>,
    /// The pods that came back after their eviction. They do not block the drain; they end with the VM.
    pub returned: Vec<ReturnedPod>,
    /// The pods that stay because their annotation or that of their namespace says so, as `namespace/name`. They end with the VM.
    pub skipped: Vec<String>,
    /// The pods in `left` that terminate, by `namespace/name`.
    pub terminating: BTreeMap<String, TerminatingPod>,
    /// The longest time, from the beginning of the drain, for which a pod in `left` may be waited for or was.
    pub longest_wait: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminatingPod {
    /// Its UID: another pod may get its name.
    pub uid: String,
    /// When this process first saw it terminate. The times in the pod are of another clock.
    pub since: Monotonic,
    /// Its grace period.
    pub grace: Duration,
}

/// A pod that blocks a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingEviction {
    /// `namespace/name`.
    pub name: String,
    /// Why it is still there.
    pub why: PendingReason,
}

/// Why a pod is still there after a drain round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingReason {
    /// Its eviction was accepted, or it was terminating already.
    Leaving,
    /// A PodDisruptionBudget allows no disruption.
    Budget {
        /// The budgets, where the kube-apiserver names them.
        names: Vec<String>,
        /// The message of the kube-apiserver, with the counts of healthy pods.
        message: String,
    },
    /// KubeVirt is migrating the virtual machine of this pod live.
    Migrating {
        /// The message of the kube-apiserver.
        message: String,
    },
    /// The kube-apiserver refused the eviction for another reason.
    Refused {
        /// The message of the kube-apiserver.
        message: String,
    },
    /// The round ended before its eviction was requested.
    NotReached,
    /// It is evicted when the other pods are gone.
    Last,
    /// An annotation asks to wait for it to end by itself.
    Waits {
        /// When it is evicted.
        until: Deadline,
    },
}

impl PendingEviction {
    /// The namespace and the names of the budgets that block it, as far as the kube-apiserver names them; `None` where none blocks it.
    pub fn budgets(&self) -> Option<(&str, &[String])> {
        match &self.why {
            PendingReason::Budget { names, .. } => {
                let namespace = self.name.split_once('/').map_or("", |(namespace, _)| namespace);
                Some((namespace, names))
            }
            PendingReason::Leaving
            | PendingReason::Migrating { .. }
            | PendingReason::Refused { .. }
            | PendingReason::NotReached
            | PendingReason::Last
            | PendingReason::Waits { .. } => None,
        }
    }
}

impl PendingReason {
    /// When the pod is evicted, where it may end by itself before.
    pub fn wait_ends(&self) -> Option<Monotonic> {
        if let Self::Waits { until } = self {
            Some(until.at)
        } else {
            None
        }
    }

    pub const fn state(&self) -> PodState {
        match self {
            Self::Leaving => PodState::Terminating,
            Self::Budget { .. } => PodState::HeldByBudget,
            Self::Migrating { .. } => PodState::Migrating,
            Self::Refused { .. } => PodState::Refused,
            Self::NotReached | Self::Last => PodState::NotAsked,
            Self::Waits { .. } => PodState::Waiting,
        }
    }
}

/// How a drain ended. It is recorded before the power may be cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DrainEnd {
    /// A complete list after the cordon showed no pod to evict.
    Complete,
    /// The drain timeout passed and `DRAIN_TIMEOUT_ACTION` is `power-off`. The remaining pods are in
    /// [`Episode::left_behind`](super::episode::Episode::left_behind).
    TimedOut,
}

/// How long a drain may last before its VM is shut down with the pods that are left. The longer limit is the greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DrainLimit {
    /// This long, with the longest time in which pods may be waited for.
    After(Elapsed),
    /// The pods are waited for.
    Hold,
}

impl DrainLimit {
    /// What happens at its end.
    pub fn action(self) -> DrainTimeoutAction {
        match self {
            Self::After(_) => DrainTimeoutAction::PowerOff,
            Self::Hold => DrainTimeoutAction::Hold,
        }
    }
}

/// Proof that a node is drained now, or that its drain timed out and the settings allow to continue. Without it, no
/// [`Effect`](crate::maintenance::effect::Effect) that cuts power can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained(());

impl Drained {
    /// The proof, where the Node is cordoned and the current list shows no pod that blocks the drain, or the drain timed out.
    pub(super) fn holds(end: &DrainEnd, is_cordoned: bool, is_empty: bool) -> Option<Self> {
        let is_empty = match end {
            DrainEnd::Complete => is_empty,
            DrainEnd::TimedOut => true,
        };
        (is_cordoned && is_empty).then_some(Self(()))
    }
}

impl DrainReport {
    /// The pods that block the drain. On an unreachable Node these are without the terminating pods whose grace period has passed:
    /// only the kubelet could report their end, and it is gone. A pod that has not been evicted still blocks.
    pub fn blocking(&self, is_unreachable: bool, now: Monotonic) -> impl Iterator<Item = &PendingEviction> {
        let is_given_up = move |pod: &PendingEviction| {
            let at = self.given_up_at(pod);
            is_unreachable && at.is_some_and(|at| at <= now)
        };
        self.left.iter().filter(move |pod| !is_given_up(pod))
    }

    /// When the next pod is no longer waited for because the kubelet is gone.
    pub fn next_given_up(&self, is_unreachable: bool, now: Monotonic) -> Option<Monotonic> {
        let all = self.left.iter().filter_map(|pod| self.given_up_at(pod));
        all.filter(|at| is_unreachable && *at > now).min()
    }

    /// The pods that end with the VM if it is shut down at `now`, as `namespace/name`, with the reason if they do not block the drain.
    pub fn left_behind(&self, is_unreachable: bool, now: Monotonic) -> Vec<String> {
        let blocking: BTreeSet<&str> = self
            .blocking(is_unreachable, now)
            .map(|pod| pod.name.as_str())
            .collect();
        let left = self.left.iter().map(|pod| match blocking.contains(&*pod.name) {
            true => pod.name.clone(),
            false => format!("{} (its kubelet is gone)", pod.name),
        });
        let returned = self.returned.iter().map(|pod| {
            let why = if pod.tolerates_cordon {
                ": it tolerates the cordon"
            } else {
                " after its eviction"
            };
            format!("{} (came back{why})", pod.name)
        });
        let skipped = self.skipped.iter().map(|name| format!("{name} ({DRAIN}=skip)"));
        left.chain(returned).chain(skipped).collect()
    }

    fn given_up_at(&self, pod: &PendingEviction) -> Option<Monotonic> {
        let terminating = self.terminating.get(&pod.name)?;
        Some(terminating.since.after(terminating.grace))
    }
}
