//! Watches the pods of Nodes that are being drained.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::{Pin, pin};

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::steered::steered;
use super::{Backoff, Settings, WatchEnded, pause, said, tell};
use crate::ids::NodeName;
use crate::kubernetes::pods::{PodVerdict, verdict};
use crate::kubernetes::update::KubernetesUpdate;

/// Reports when the pods of the Nodes in `draining` change, until `stop`.
///
/// Only changes that matter to the next drain round are reported: a pod to evict is new; the last blocking pod is gone; one is gone
/// while others still have to be evicted; or the watch was (re)built and shows pods to evict or none. A pod that begins to
/// terminate is not reported. Except for the last deletion, changes are delayed until no pod has changed for
/// [`Settings::gather`], and dropped if all pods are terminating by then, so that a round that evicts many pods is not
/// followed by useless ones.
pub async fn run(
    client: kube::Client,
    draining: watch::Receiver<BTreeSet<NodeName>>,
    settings: Settings,
    out: mpsc::Sender<KubernetesUpdate>,
    stop: CancellationToken,
) {
    let follow = |node: NodeName, token| pods_of(client.clone(), node, settings.clone(), out.clone(), token);
    steered("pods", draining, settings.backoff_min, &stop, follow).await;
}

/// Watches the pods of one Node until `stop`, and rebuilds the watch after a break.
async fn pods_of(
    client: kube::Client,
    node: NodeName,
    settings: Settings,
    out: mpsc::Sender<KubernetesUpdate>,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::new(&settings);
    loop {
        let api: Api<core::Pod> = Api::all(client.clone());
        let config = settings.watcher().fields(&format!("spec.nodeName={node}"));
        let events = pin!(watcher(api, config));
        match follow_pods(events, &node, &settings, &out, &stop, &mut backoff).await {
            WatchEnded::Stopped => return,
            WatchEnded::Broke(why) => {
                let wait = backoff.next();
                tracing::warn!(%node, why, wait_s = wait.as_secs_f32(), "the watch of the node's pods broke and is rebuilt");
                if !pause(&stop, wait).await {
                    return;
                }
            }
        }
    }
}

/// Reports changes of one Node's pods until the watch breaks or stops.
async fn follow_pods(
    mut events: Pin<&mut impl Stream<Item = watcher::Result<Event<core::Pod>>>>,
    node: &NodeName,
    settings: &Settings,
    out: &mpsc::Sender<KubernetesUpdate>,
    stop: &CancellationToken,
    backoff: &mut Backoff,
) -> WatchEnded {
    let mut blocking = BlockingPods::default();
    let mut due: Option<PodWatchDue> = None;
    loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => return WatchEnded::Stopped,
            () = until(due.as_ref().map(|due| due.at)) => {
                let was_gathered = due.take().is_some_and(|due| due.is_gathered);
                // All pods are terminating by now: the next report is their deletion.
                if was_gathered && !blocking.has_some_to_evict() {
                    continue;
                }
                if !tell(out, stop, KubernetesUpdate::PodsChanged(node.clone())).await {
                    return WatchEnded::Stopped;
                }
                continue;
            }
            event = events.next() => event,
        };
        let news = match event {
            Some(Ok(Event::Init)) => blocking.reset(),
            Some(Ok(Event::InitApply(pod))) => {
                blocking.apply(&pod, node);
                PodNews::None
            }
            Some(Ok(Event::InitDone)) => {
                backoff.settled();
                blocking.complete()
            }
            Some(Ok(Event::Apply(pod))) => blocking.apply(&pod, node),
            Some(Ok(Event::Delete(pod))) => blocking.remove(&pod),
            Some(Err(error)) => return WatchEnded::Broke(said(&error)),
            None => return WatchEnded::Broke("it ended".to_owned()),
        };
        let now = Instant::now();
        match news {
            PodNews::None => {}
            PodNews::Now => {
                due = Some(PodWatchDue {
                    at: now,
                    latest: now,
                    is_gathered: false,
                });
            }
            PodNews::Soon | PodNews::Leaves => {
                let at = now + settings.gather;
                match &mut due {
                    Some(due) => due.at = at.min(due.latest),
                    None if news == PodNews::Leaves => {}
                    None => {
                        due = Some(PodWatchDue {
                            at,
                            latest: now + settings.gather_max,
                            is_gathered: true,
                        });
                    }
                }
            }
        }
    }
}

/// How urgent a change of a Node's pods is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodNews {
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
    fn reset(&mut self) -> PodNews {
        self.0.clear();
        PodNews::None
    }

    fn apply(&mut self, pod: &core::Pod, node: &NodeName) -> PodNews {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        match verdict(pod, node) {
            PodVerdict::Evict => match self.0.insert(uid, true) {
                Some(_) => PodNews::None,
                None => PodNews::Soon,
            },
            PodVerdict::Wait { .. } => match self.0.insert(uid, false) {
                Some(true) => PodNews::Leaves,
                Some(false) | None => PodNews::None,
            },
            PodVerdict::Skip(_) => self.forget(&uid),
        }
    }

    /// The urgency of the current set, after a full list or a deletion.
    fn complete(&self) -> PodNews {
        if self.0.is_empty() {
            PodNews::Now
        } else if self.has_some_to_evict() {
            PodNews::Soon
        } else {
            PodNews::None
        }
    }

    fn has_some_to_evict(&self) -> bool {
        self.0.values().any(|is_to_evict| *is_to_evict)
    }

    fn remove(&mut self, pod: &core::Pod) -> PodNews {
        self.forget(pod.metadata.uid.as_deref().unwrap_or_default())
    }

    fn forget(&mut self, uid: &str) -> PodNews {
        match self.0.remove(uid) {
            Some(_) => self.complete(),
            None => PodNews::None,
        }
    }
}

/// Waits until `due`; for ever without one.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
