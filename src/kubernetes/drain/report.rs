//! The report of a drain round: which pods are left on the Node, and why.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Evictable;
use crate::known_pods::{KnownPods, ReturnedPod};
use crate::kubernetes::pods::SkipReason;
use crate::kubernetes::policy::UnreadablePolicy;

/// The report of a drain round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundReport {
    /// The number of pods in the last complete list, including those that do not block.
    pub listed: usize,
    /// The pods that block, by namespace and name. Empty only if a complete list showed none.
    pub left: Vec<PodPending>,
    /// How many pods do not block, by reason.
    pub skipped: BTreeMap<SkipReason, usize>,
    /// What this list and those of the drain before it showed.
    pub known: KnownPods,
    /// The pods that came back after their eviction. They do not block.
    pub returned: Vec<ReturnedPod>,
    /// The pods whose annotation, or that of their namespace, asks to leave them, as `namespace/name`. They do not block.
    pub left_alone: Vec<String>,
    /// The pods whose annotations cannot be read, each reported once.
    pub unreadable: Vec<UnreadablePod>,
    /// The longest time from the beginning of the drain for which a pod in `left` may be waited for or was.
    pub longest_wait: Duration,
    /// How many evictions were answered with each HTTP status; 0 for those without a reply.
    pub answers: BTreeMap<u16, u64>,
    /// The requested evictions, in the order of their replies.
    pub asked: Vec<EvictionRequested>,
}

/// One eviction. Times count from the beginning of the round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionRequested {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// The pod's grace period in seconds.
    pub grace: Option<i64>,
    /// When it was requested.
    pub asked: Duration,
    /// When it was answered or aborted.
    pub answered: Duration,
    /// Why the pod is still there; `None` if it was gone.
    pub why: Option<PodPendingReason>,
}

/// A pod that blocks the drain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodPending {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Its grace period in seconds.
    pub grace: Option<i64>,
    /// Why it is still there.
    pub why: PodPendingReason,
    /// When its eviction may be retried, where the kube-apiserver sets a time.
    pub retry_at: Option<Instant>,
}

/// A pod with an annotation of a wrong value. It is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadablePod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// What is wrong.
    pub why: UnreadablePolicy,
}

/// Why a pod is still there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodPendingReason {
    /// Its eviction was accepted in this round.
    Evicted,
    /// It was terminating before this round.
    Terminating {
        /// When its deletion was requested, as far as known.
        since: Option<Timestamp>,
    },
    /// A PodDisruptionBudget blocks the eviction.
    Budget {
        /// The budgets, if Kubernetes named them.
        names: Vec<String>,
        /// The message of Kubernetes.
        message: String,
    },
    /// KubeVirt migrates its virtual machine live; the pod terminates afterwards.
    Migrating {
        /// The message of Kubernetes.
        message: String,
    },
    /// The kube-apiserver failed, for example because two budgets select the pod.
    ServerError {
        /// The message of Kubernetes.
        message: String,
    },
    /// Its namespace is being deleted, and the pod with it.
    NamespaceTerminating,
    /// RBAC or admission refused the eviction.
    Forbidden {
        /// The message of Kubernetes.
        message: String,
    },
    /// The kube-apiserver is overloaded; the rest of the round was skipped.
    TooManyRequests,
    /// No usable reply; the next list shows whether the pod is gone.
    Unreachable {
        /// What went wrong.
        message: String,
    },
    /// The round ended before its eviction was requested.
    NotReached,
    /// It is evicted when the other pods are gone: Haulout's own pod, or one that is critical for the cluster.
    Last,
    /// Its eviction is not due yet.
    Deferred,
    /// It may end by itself.
    Waiting {
        /// Until this long after the beginning of the drain.
        until: Duration,
    },
    /// A real round would evict it; this one only lists.
    WouldEvict,
}

impl RoundReport {
    /// Adds `pods`, each for the same reason.
    pub(super) fn leave(&mut self, pods: Vec<Evictable>, why: &PodPendingReason, retry_at: Option<Instant>) {
        let left = pods.into_iter().map(|pod| pod.left(why.clone(), retry_at));
        self.left.extend(left);
    }

    /// The same report with the pods in a stable order.
    pub(super) fn sorted(mut self) -> Self {
        self.left.sort();
        self.returned.sort();
        self.left_alone.sort();
        self
    }
}

impl PodPending {
    /// Its `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
