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

/// Tells when the pods of the Nodes in `draining` change, until `stop`.
///
/// Told is what another drain round can make something of: a pod to evict came; the last one that stood in the way is
/// gone; one is gone while others are still to be evicted; or the watch has just been (re)built and shows pods to evict, or
/// none at all. A pod that merely begins to terminate is not told. All but the last departure is gathered until nothing
/// has changed for a moment, and is not told where all are leaving by then: a round that is evicting 200 pods would
/// otherwise be followed by others that find nothing to do.
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

/// Follows the pods of one Node until `stop`, over breaks.
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

/// Tells of changes among one Node's pods until the watch breaks or stops.
async fn follow_pods(
    mut events: Pin<&mut impl Stream<Item = watcher::Result<Event<core::Pod>>>>,
    node: &NodeName,
    settings: &Settings,
    out: &mpsc::Sender<KubernetesUpdate>,
    stop: &CancellationToken,
    backoff: &mut Backoff,
) -> WatchEnded {
    let mut standing = StandingPods::default();
    let mut due: Option<PodWatchDue> = None;
    loop {
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => return WatchEnded::Stopped,
            () = until(due.as_ref().map(|due| due.at)) => {
                let was_gathered = due.take().is_some_and(|due| due.is_gathered);
                // All that were to be evicted are leaving by then: the next that is worth a round is that they are gone.
                if was_gathered && !standing.has_some_to_evict() {
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
            Some(Ok(Event::Init)) => standing.reset(),
            Some(Ok(Event::InitApply(pod))) => {
                standing.apply(&pod, node);
                PodNews::None
            }
            Some(Ok(Event::InitDone)) => {
                backoff.settled();
                standing.complete()
            }
            Some(Ok(Event::Apply(pod))) => standing.apply(&pod, node),
            Some(Ok(Event::Delete(pod))) => standing.remove(&pod),
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

/// What one change among a Node's pods is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodNews {
    /// A drain round would make nothing of it.
    None,
    /// One that was to be evicted is leaving: what waits to be told waits for more of the same.
    Leaves,
    /// A drain round is worth it, and can wait for more of the same.
    Soon,
    /// A drain round is worth it at once.
    Now,
}

/// When a change is told.
struct PodWatchDue {
    at: Instant,
    /// No change puts it off beyond this.
    latest: Instant,
    /// It waits for more of the same.
    is_gathered: bool,
}

/// The pods of one Node that stand in the way, by UID, and whether each has still to be evicted.
#[derive(Debug, Default)]
struct StandingPods(BTreeMap<String, bool>);

impl StandingPods {
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

    /// All that are there have been told: what was missed shows in them.
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

/// Waits until `due`, or for ever.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
