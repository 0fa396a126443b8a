//! What a drain round reports: which pods are left on the Node, and why each is still there.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Evictable;
use crate::kubernetes::pods::SkipReason;

/// What a round found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundReport {
    /// The pods in the last complete list, those that do not stand in the way included.
    pub listed: usize,
    /// The pods that stand in the way, by namespace and name. Empty only if a complete list showed none.
    pub left: Vec<PodPending>,
    /// How many pods do not stand in the way, and why.
    pub skipped: BTreeMap<SkipReason, usize>,
    /// How many evictions were answered with each HTTP status; under 0, how many were not answered.
    pub answers: BTreeMap<u16, u64>,
    /// The evictions that were asked for, in the order of their answers.
    pub asked: Vec<EvictionRequested>,
}

/// One eviction, by its times since the round began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionRequested {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// Which of the pods of that name.
    pub uid: String,
    /// The time that the pod has to end by itself, in seconds, as far as its object tells.
    pub grace: Option<i64>,
    /// When it was asked for.
    pub asked: Duration,
    /// When it was answered, or given up.
    pub answered: Duration,
    /// Why the pod is still there; `None` where it was gone.
    pub why: Option<PodPendingReason>,
}

/// A pod that stands in the way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodPending {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Which of the pods of that name.
    pub uid: String,
    /// Why it is still there.
    pub why: PodPendingReason,
    /// When it may be asked again, where the kube-apiserver says so.
    pub retry_at: Option<Instant>,
}

/// Why a pod is still there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodPendingReason {
    /// It was asked to leave in this round, and leaves.
    Evicted,
    /// It was leaving before this round.
    Terminating {
        /// When it was told to, as far as the object tells.
        since: Option<Timestamp>,
    },
    /// A PodDisruptionBudget forbids the eviction for the time being.
    Budget {
        /// The budgets, if Kubernetes named them.
        names: Vec<String>,
        /// What Kubernetes said.
        said: String,
    },
    /// The controller of the virtual machine in it took the eviction for the wish that it be, and migrates it live; the pod
    /// ends by itself when that is done.
    Migrating {
        /// What Kubernetes said.
        said: String,
    },
    /// The kube-apiserver failed at it; two budgets on one pod end here as well.
    ServerError {
        /// What it said.
        said: String,
    },
    /// Its namespace is being deleted, which takes the pod along.
    NamespaceTerminating,
    /// Haulout may not evict it, by RBAC or by the words of an admission webhook or policy.
    Forbidden {
        /// What Kubernetes said.
        said: String,
    },
    /// The kube-apiserver has too much to do; the rest of the round was left out.
    TooManyRequests,
    /// No usable answer; whether it leaves will be seen by the next list.
    Unreachable {
        /// What went wrong.
        said: String,
    },
    /// The round ended before its turn.
    NotReached,
    /// It is Haulout's own pod, which leaves last.
    OwnPod,
    /// It was not asked in this round, because it is too early.
    Deferred,
    /// It would be evicted, if somebody did more than look.
    Standing,
}

impl RoundReport {
    /// Adds `pods`, each for the same reason.
    pub(super) fn leave(&mut self, pods: Vec<Evictable>, why: &PodPendingReason, retry_at: Option<Instant>) {
        let left = pods.into_iter().map(|pod| pod.left(why.clone(), retry_at));
        self.left.extend(left);
    }

    /// The same report with the pods in an order that does not change from round to round.
    pub(super) fn sorted(mut self) -> Self {
        self.left.sort();
        self
    }
}

impl PodPending {
    /// Its `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
