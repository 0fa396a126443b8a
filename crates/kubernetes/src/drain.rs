//! One drain round: a complete list of the Node's pods, and an eviction of each that blocks.
//!
//! A round requests evictions and reports; it does not wait for pods to terminate. The next round starts when pods have changed or
//! a refused eviction may be retried, so a crash between two rounds loses nothing.

mod evict;
mod groups;
mod list;
mod policies;
mod report;
mod sorting;
mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub use list::list;
pub use policies::{NamespacePolicies, Namespaces, PodPolicy};
pub use report::{PodPending, RoundReport, UnreadablePod};
pub use volumes::{VolumeClaims, VolumesUnlisted, attached as attached_volumes};

use super::answer::ApiRefusal;
use crate::fence::Permit;
use crate::ids::NodeName;
use crate::known_pods::KnownPods;
use crate::maintenance::clock::{Monotonic, Now};
use crate::maintenance::effect::DrainBegan;
use crate::maintenance::observed::PendingReason;
use groups::GroupKey;
use sorting::Sorting;

/// A round lists again if every pod was gone at its eviction, and fails after this many lists.
const PASSES_MAX: usize = 3;

/// The objects in one page of a list, as in kubectl and client-go.
const PAGE: u32 = 500;

/// The limits of a round.
#[derive(Clone, Debug)]
pub struct DrainSettings {
    /// For one eviction. The kube-apiserver retries a contended budget for up to 10 seconds before it answers.
    pub eviction_deadline: Duration,
    /// For one complete list with all its pages, including the wait for a free slot of `lists`.
    pub list_deadline: Duration,
    /// How long evictions may begin after the first list of the round. An eviction that has begun has its own deadline; pods that
    /// were not reached are reported as such.
    pub round_deadline: Duration,
    /// Concurrent evictions, in all rounds with these settings together.
    pub evictions: Concurrency,
    /// Concurrent lists, in all rounds with these settings together.
    pub lists: Concurrency,
    /// Haulout's own pod, where it is known. It is evicted last. The drain continues on another Node, because its state is on the
    /// Node.
    pub own_pod: Option<OwnPod>,
    /// `DRAIN_WAIT_MAX_SECONDS`: how long after the beginning of a drain its pods may end by themselves. Zero evicts them at once.
    pub wait_max: Duration,
    /// The annotations of namespaces.
    pub namespaces: Namespaces,
    pub claims: VolumeClaims,
}

/// The limit of concurrent requests of a kind. Clones share it.
#[derive(Clone, Debug)]
pub struct Concurrency {
    semaphore: Arc<Semaphore>,
    limit: usize,
}

impl Concurrency {
    /// At most `limit` at once, and at least one.
    pub fn of(limit: usize) -> Self {
        let limit = limit.max(1);
        Self {
            semaphore: Arc::new(Semaphore::new(limit)),
            limit,
        }
    }
}

/// A pod's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPod {
    pub namespace: String,
    pub name: String,
}

/// The input of a round.
#[derive(Clone, Copy)]
pub struct DrainOrder<'o> {
    /// Evict the pods of a group one after the other. Concurrent evictions that contend for one budget wait half a second each in the
    /// kube-apiserver (`EvictionsRetry` in `pkg/registry/core/pod/storage/eviction.go`), which is slower where the budget allows
    /// one disruption at a time.
    pub in_turn: bool,
    /// The pods, as `namespace/name`, whose eviction is not due yet, each with the reason why it is still there.
    pub deferred: &'o BTreeMap<String, PendingReason>,
    /// What the lists of this drain showed so far; `None` in its first round.
    pub known: Option<&'o KnownPods>,
    pub began: DrainBegan,
    /// When the round begins.
    pub now: Now,
    /// Called for each accepted eviction, because a round may last for a minute.
    pub on_evicted: &'o (dyn Fn(&PodPending) + Send + Sync),
}

/// Why the pods could not be listed. This never means that there are none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DrainError {
    /// Haulout may not list pods.
    #[error(
        "Haulout may not list the pods of node {node}: {message}; allow its service account `list` on pods, the drain waits until then"
    )]
    Forbidden { node: NodeName, message: String },
    /// There is no complete list.
    #[error("the pods of node {node} could not be listed: {message}; the drain waits and lists them again")]
    Unlisted { node: NodeName, message: String },
}

/// Lists the pods of `node` and evicts none: each pod that a round would evict is reported as [`PendingReason::NotReached`].
pub async fn list_only(
    client: &kube::Client,
    node: &NodeName,
    settings: &DrainSettings,
    now: Now,
) -> Result<RoundReport, DrainError> {
    let began = DrainBegan {
        elapsed: Duration::ZERO,
        at: now.wall,
    };
    let (mut report, pods) = list_sorted(client, node, settings, None, (began, now)).await?;
    report.leave(pods, &PendingReason::NotReached, None);
    Ok(report.sorted())
}

/// Lists the pods of `node`: a report with those that are not evicted now, and those to evict. The full list is dropped here, before
/// the evictions begin, to save memory.
async fn list_sorted(
    client: &kube::Client,
    node: &NodeName,
    settings: &DrainSettings,
    known: Option<&KnownPods>,
    (began, now): (DrainBegan, Now),
) -> Result<(RoundReport, Vec<Evictable>), DrainError> {
    let pods = list(client, node, settings).await?;
    let namespaces = &settings.namespaces;
    let policies = namespaces
        .read_policies(client, &pods, settings.list_deadline)
        .await;
    let sorting = Sorting {
        settings,
        policies: &policies,
        known,
        began,
        now,
    };
    Ok(sorting.sort(&pods))
}

/// Lists the pods of `node`, and evicts those that block.
pub async fn round(
    permit: &Permit,
    client: &kube::Client,
    node: &NodeName,
    settings: &DrainSettings,
    order: DrainOrder<'_>,
) -> Result<RoundReport, DrainError> {
    let begun = Instant::now();
    let mut asked = Vec::new();
    let mut ends = None;
    let mut known = order.known.cloned();
    for _ in 0..PASSES_MAX {
        let times = (order.began, order.now);
        let (mut report, pods) = list_sorted(client, node, settings, known.as_ref(), times).await?;
        known = Some(report.known.clone());
        let ends = *ends.get_or_insert_with(|| Instant::now() + settings.round_deadline);
        report.asked = asked;
        let pods = report.defer(pods, order.deferred);
        if pods.is_empty() {
            return Ok(report.sorted());
        }
        let round = evict::EvictionPass {
            permit,
            client,
            settings,
            order,
            begun,
            ends,
        };
        round.evict_all(pods, &mut report).await;
        // If every pod was gone at its eviction, only another list can show that none is left.
        if !report.left.is_empty() {
            return Ok(report.sorted());
        }
        asked = report.asked;
    }
    Err(DrainError::Unlisted {
        node: node.clone(),
        message: format!("the pods changed during each of {PASSES_MAX} lists"),
    })
}

impl OwnPod {
    /// The pod of this process, from the variables `POD_NAMESPACE` and `POD_NAME` of the downward API.
    pub fn from_environment() -> Option<Self> {
        let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Some(Self {
            namespace: read("POD_NAMESPACE")?,
            name: read("POD_NAME")?,
        })
    }
}

impl DrainSettings {
    /// Waits for a free slot and runs `list`, which reads all pages of a list, both within the deadline.
    async fn in_slot<T>(&self, list: impl Future<Output = T>) -> Result<T, String> {
        let deadline = self.list_deadline;
        let complete = async {
            // The semaphore is never closed.
            let _slot = self.lists.semaphore.acquire().await;
            list.await
        };
        let listed = tokio::time::timeout(deadline, complete).await;
        listed.map_err(|_elapsed| format!("no complete list within {} s", deadline.as_secs_f32()))
    }
}

impl Default for DrainSettings {
    fn default() -> Self {
        Self {
            eviction_deadline: Duration::from_secs(20),
            list_deadline: Duration::from_secs(30),
            round_deadline: Duration::from_secs(60),
            // An eighth of the 245 concurrent requests that a default kube-apiserver allows for all service accounts together
            // (priority level `workload-low`: 100 of 245 shares of 600 requests).
            evictions: Concurrency::of(32),
            // Limits memory: a hundred pods are half a megabyte on the wire.
            lists: Concurrency::of(8),
            own_pod: None,
            wait_max: Duration::from_secs(3_600),
            namespaces: Namespaces::default(),
            claims: VolumeClaims::default(),
        }
    }
}

/// The lowest priority of a pod that is critical for the cluster, `scheduling.SystemCriticalPriority` of Kubernetes
/// (`pkg/apis/scheduling/types.go`). The classes `system-cluster-critical` and `system-node-critical` begin with it; no other class
/// may have it.
const CRITICAL: i32 = 2_000_000_000;

/// When a pod is evicted. The pods of each turn are gone before those of the next are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    First,
    /// Pods that others may need while they terminate, such as CSI controllers and DNS.
    Critical,
    Own,
}

/// A pod to be evicted.
#[derive(Clone, Debug)]
struct Evictable {
    namespace: String,
    name: String,
    uid: String,
    /// Its `deletionGracePeriodSeconds` while it terminates, before that its `terminationGracePeriodSeconds`.
    grace: Option<i64>,
    /// `spec.priority`, which the kube-apiserver derives from its PriorityClass.
    priority: i32,
    /// The pods with the same budgets.
    group: GroupKey,
}

impl Evictable {
    fn new(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        let spec = pod.spec.as_ref();
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            grace: metadata
                .deletion_grace_period_seconds
                .or_else(|| spec.and_then(|spec| spec.termination_grace_period_seconds)),
            priority: spec.and_then(|spec| spec.priority).unwrap_or_default(),
            group: GroupKey::of(pod),
        }
    }

    fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    fn is(&self, own: &OwnPod) -> bool {
        self.namespace == own.namespace && self.name == own.name
    }

    fn turn(&self, own: Option<&OwnPod>) -> Turn {
        if own.is_some_and(|own| self.is(own)) {
            Turn::Own
        } else if self.priority >= CRITICAL {
            Turn::Critical
        } else {
            Turn::First
        }
    }

    fn left(self, why: PendingReason, retry_at: Option<Monotonic>) -> PodPending {
        PodPending {
            namespace: self.namespace,
            name: self.name,
            uid: self.uid,
            grace: self.grace,
            why,
            retry_at,
        }
    }
}

impl DrainError {
    fn new(node: &NodeName, refusal: &ApiRefusal) -> Self {
        let (node, message) = (node.clone(), refusal.to_string());
        match refusal.code() {
            Some(401 | 403) => Self::Forbidden { node, message },
            Some(_) | None => Self::Unlisted { node, message },
        }
    }
}

#[cfg(test)]
mod tests;
