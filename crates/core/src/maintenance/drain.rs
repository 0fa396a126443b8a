//! The result of a drain round, and the proof that a node is drained.

mod backoff;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::clock::Monotonic;
use super::kinds::PodState;
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
    /// The pods that tolerate the cordon.
    pub tolerant: TolerantPods,
}

/// The pods of a node that tolerate its cordon: a scheduler may bind their replacements to the node again, after each eviction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TolerantPods {
    /// Those in the first list of a phase, by UID. They are evicted like others.
    pub first: Arc<BTreeSet<String>>,
    /// Those that came later, as `namespace/name`. They do not block the drain, which would never end; they end with the VM.
    pub returned: Vec<String>,
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
}

impl PendingReason {
    /// The state of the pod.
    pub const fn state(&self) -> PodState {
        match self {
            Self::Leaving => PodState::Terminating,
            Self::Budget { .. } => PodState::HeldByBudget,
            Self::Migrating { .. } => PodState::Migrating,
            Self::Refused { .. } => PodState::Refused,
            Self::NotReached | Self::Last => PodState::NotAsked,
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

/// Proof that a node is drained now, or that its drain timed out and the settings allow to continue. Without it, no
/// [`Effect`](crate::maintenance::effect::Effect) that cuts power can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained(());

impl Drained {
    /// The proof, where the Node is cordoned and the current `list` shows no pod to evict or the drain timed out.
    pub(super) fn holds(end: &DrainEnd, is_cordoned: bool, list: &DrainReport) -> Option<Self> {
        let is_empty = match end {
            DrainEnd::Complete => list.left.is_empty(),
            DrainEnd::TimedOut => true,
        };
        (is_cordoned && is_empty).then_some(Self(()))
    }
}
