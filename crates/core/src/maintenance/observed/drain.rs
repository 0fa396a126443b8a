//! The result of a drain round, and the proof that a node is drained.

use super::ObservedNode;
use crate::maintenance::backoff::EvictionBackoff;
use crate::maintenance::clock::Monotonic;
use crate::maintenance::episode::DrainEnd;

/// What one complete drain round found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// When the round began; its list is no older.
    pub listed_at: Monotonic,
    /// [`Observed::pods_revision`](super::Observed::pods_revision) when the round began.
    pub pods_revision: u64,
    /// The pods that stand in the way, in a stable order. Empty only when a complete list showed none.
    pub left: Vec<PendingEviction>,
    /// How many pods the list showed, those that do not stand in the way included.
    pub listed: usize,
    /// How many of them do not stand in the way.
    pub ignored: usize,
    /// How many evictions were accepted in the round.
    pub evicted: usize,
    /// When refused evictions are asked for again.
    pub backoff: EvictionBackoff,
}

/// A pod that stands in the way of a drain.
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
    /// Its eviction was accepted, or it was going already.
    Leaving,
    /// A PodDisruptionBudget allows no disruption.
    Budget {
        /// The budgets, where the kube-apiserver names them.
        names: Vec<String>,
        /// Its words, which count the healthy pods that are needed and those that there are.
        said: String,
    },
    /// The virtual machine in it is being migrated live by its own controller, KubeVirt.
    Migrating {
        /// Its words.
        said: String,
    },
    /// The kube-apiserver refused the eviction for another reason.
    Refused {
        /// Its words.
        said: String,
    },
    /// The round's time was up before its turn.
    NotReached,
}

/// Proof that a node is drained at this moment, or that its drain timeout passed and the configuration lets it go on. Without
/// one, no [`Effect`](crate::maintenance::effect::Effect) that cuts power can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained(());

impl Drained {
    /// The proof, where the recorded end of the drain still holds: the Node is cordoned, and `list`, which is of this moment,
    /// shows no pod to evict, or the drain had timed out and its pods are left behind knowingly.
    pub(in crate::maintenance) fn holds(
        end: &DrainEnd,
        node: &ObservedNode,
        list: &DrainReport,
    ) -> Option<Self> {
        let is_empty = match end {
            DrainEnd::Complete => list.left.is_empty(),
            DrainEnd::TimedOut => true,
        };
        (node.unschedulable && is_empty).then_some(Self(()))
    }
}
