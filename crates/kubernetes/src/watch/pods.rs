//! Watches the pods of Nodes that are being drained.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use tokio::time::Instant;

use super::keyed::watch_each;
use super::{Backoff, WatchBroke, WatchContext, WatchHandler, watcher_config};
use crate::ids::NodeName;
use crate::pods::{PodVerdict, verdict};
use crate::update::KubernetesUpdate;

/// How long no pod must change before deletions are reported, while other pods still have to be evicted.
const GATHER: Duration = Duration::from_secs(1);

/// The longest delay of such a report: as long as the default retry of a refused eviction.
const GATHER_MAX: Duration = Duration::from_secs(5);

/// Reports when the pods of the Nodes in `draining` change, until `stop`.
///
/// Only changes that matter to the next drain round are reported: a pod to evict is new; the last blocking pod is gone; one is gone
/// while others still have to be evicted; or the watch was (re)built and shows pods to evict or none. A pod that begins to
/// terminate is not reported. Except for the last deletion, changes are delayed until no pod has changed for
/// [`GATHER`], and dropped if all pods are terminating by then, so that a round that evicts many pods is not
/// followed by useless ones.
pub async fn run(draining: watch::Receiver<BTreeSet<NodeName>>, context: WatchContext) {
    watch_each("pods", draining, &context, one).await;
}

async fn one(node: NodeName, context: WatchContext) {
    let api = Api::all(context.client.clone());
    let by_node = format!("spec.nodeName={node}");
    let config = watcher_config().fields(&by_node);
    let handler = DrainedPods::of(node);
    context.watch(api, config, handler).await;
}

/// The pods of one Node that is being drained.
struct DrainedPods {
    node: NodeName,
    blocking: BlockingPods,
    due: Option<PodWatchDue>,
}

impl DrainedPods {
    fn of(node: NodeName) -> Self {
        Self {
            node,
            blocking: BlockingPods::default(),
            due: None,
        }
    }

    /// Sets when the next report is due.
    fn schedule(&mut self, urgency: PodUrgency) {
        let now = Instant::now();
        let at = now + GATHER;
        match (urgency, &mut self.due) {
            (PodUrgency::None, _) | (PodUrgency::Leaves, None) => {}
            (PodUrgency::Now, due) => {
                *due = Some(PodWatchDue {
                    at: now,
                    latest: now,
                    is_gathered: false,
                });
            }
            (PodUrgency::Soon | PodUrgency::Leaves, Some(due)) => due.at = at.min(due.latest),
            (PodUrgency::Soon, due @ None) => {
                *due = Some(PodWatchDue {
                    at,
                    latest: now + GATHER_MAX,
                    is_gathered: true,
                });
            }
        }
    }
}

impl WatchHandler for DrainedPods {
    type Object = Pod;

    fn event(&mut self, event: Event<Pod>) -> Vec<KubernetesUpdate> {
        let urgency = match event {
            Event::Init => {
                self.blocking = BlockingPods::default();
                PodUrgency::None
            }
            Event::InitApply(pod) => {
                self.blocking.apply(&pod);
                PodUrgency::None
            }
            Event::InitDone => self.blocking.complete(),
            Event::Apply(pod) => self.blocking.apply(&pod),
            Event::Delete(pod) => self.blocking.remove(&pod),
        };
        self.schedule(urgency);
        Vec::new()
    }

    fn broke(&mut self, broke: &WatchBroke, backoff: &mut Backoff) -> (Vec<KubernetesUpdate>, Duration) {
        self.due = None;
        let wait = backoff.next_wait();
        tracing::warn!(
            node = %self.node, why = %broke.refusal, wait_s = wait.as_secs_f32(),
            "the watch of the node's pods broke and is rebuilt"
        );
        (Vec::new(), wait)
    }

    fn timer(&self) -> Option<Instant> {
        self.due.as_ref().map(|due| due.at)
    }

    fn timer_fired(&mut self) -> Vec<KubernetesUpdate> {
        let was_gathered = self.due.take().is_some_and(|due| due.is_gathered);
        // All pods are terminating by now: the next report is their deletion.
        if was_gathered && !self.blocking.has_some_to_evict() {
            return Vec::new();
        }
        vec![KubernetesUpdate::PodsChanged(self.node.clone())]
    }
}

/// How urgent a change of a Node's pods is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodUrgency {
    /// It needs no drain round.
    None,
    /// A pod to evict is terminating: extends the delay of a pending report.
    Leaves,
    /// It needs a drain round, after a delay for further changes.
    Soon,
    /// It needs a drain round now.
    Now,
}

/// A pending report.
struct PodWatchDue {
    at: Instant,
    /// The end of the delay, whatever changes.
    latest: Instant,
    /// It is delayed for further changes.
    is_gathered: bool,
}

/// The pods of one Node that block its drain, by UID, and whether each still has to be evicted.
#[derive(Debug, Default)]
struct BlockingPods(BTreeMap<String, bool>);

impl BlockingPods {
    fn apply(&mut self, pod: &Pod) -> PodUrgency {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        match verdict(pod) {
            PodVerdict::Evict => match self.0.insert(uid, true) {
                Some(_) => PodUrgency::None,
                None => PodUrgency::Soon,
            },
            PodVerdict::Wait => match self.0.insert(uid, false) {
                Some(true) => PodUrgency::Leaves,
                Some(false) | None => PodUrgency::None,
            },
            PodVerdict::Skip(_) => self.forget(&uid),
        }
    }

    /// The urgency of the current set, after a full list or a deletion.
    fn complete(&self) -> PodUrgency {
        if self.0.is_empty() {
            PodUrgency::Now
        } else if self.has_some_to_evict() {
            PodUrgency::Soon
        } else {
            PodUrgency::None
        }
    }

    fn has_some_to_evict(&self) -> bool {
        self.0.values().any(|is_to_evict| *is_to_evict)
    }

    fn remove(&mut self, pod: &Pod) -> PodUrgency {
        self.forget(pod.metadata.uid.as_deref().unwrap_or_default())
    }

    fn forget(&mut self, uid: &str) -> PodUrgency {
        match self.0.remove(uid) {
            Some(_) => self.complete(),
            None => PodUrgency::None,
        }
    }
}

#[cfg(test)]
mod tests;
