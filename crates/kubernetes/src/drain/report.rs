//! The report of a drain round: which pods are left on the Node, and why.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Evictable;
use crate::known_pods::{KnownPods, ReturnedPod};
use crate::maintenance::clock::Monotonic;
use crate::maintenance::effect_report::Eviction;
use crate::maintenance::observed::PendingReason;
use crate::pods::SkipReason;
use crate::policy::UnreadablePolicy;

/// The report of a drain round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoundReport {
    /// The number of pods in the last complete list, including those that do not block.
    pub listed: usize,
    /// The pods that block, by namespace and name. Empty only if a complete list showed none.
    pub left: Vec<PodPending>,
    /// How many of them were evicted in this round.
    pub evicted: usize,
    /// Those whose eviction was not due, as `namespace/name`.
    pub deferred: BTreeSet<String>,
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
    pub asked: Vec<Eviction>,
}

/// A pod that blocks the drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodPending {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Its grace period in seconds.
    pub grace: Option<i64>,
    /// Why it is still there.
    pub why: PendingReason,
    /// When its eviction may be retried, where the kube-apiserver sets a time.
    pub retry_at: Option<Monotonic>,
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

impl RoundReport {
    /// Adds `pods`, each for the same reason.
    pub(super) fn leave(&mut self, pods: Vec<Evictable>, why: &PendingReason, retry_at: Option<Monotonic>) {
        let left = pods.into_iter().map(|pod| pod.left(why.clone(), retry_at));
        self.left.extend(left);
    }

    /// Adds those of `pods` whose eviction is not due, each for its earlier reason. Returns the others.
    pub(super) fn defer(
        &mut self,
        pods: Vec<Evictable>,
        deferred: &BTreeMap<String, PendingReason>,
    ) -> Vec<Evictable> {
        let mut due = Vec::new();
        for pod in pods {
            let name = pod.full_name();
            if let Some(why) = deferred.get(&name) {
                self.left.push(pod.left(why.clone(), None));
                self.deferred.insert(name);
            } else {
                due.push(pod);
            }
        }
        due
    }

    /// The same report with the pods in a stable order.
    pub(super) fn sorted(mut self) -> Self {
        self.left
            .sort_by(|a, b| (&a.namespace, &a.name, &a.uid).cmp(&(&b.namespace, &b.name, &b.uid)));
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
