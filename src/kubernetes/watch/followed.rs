//! Watches single Nodes by name: those with an open episode that the label selector no longer matches.

use std::collections::BTreeSet;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::steered::steered;
use super::{Backoff, Selection, Settings, WatchEnded, pause, said, tell};
use crate::ids::{NodeName, NodeUid};
use crate::kubernetes::facts::node_facts;
use crate::kubernetes::update::KubernetesUpdate;

/// The maximum number of concurrent watches; further Nodes wait for a free one. A label that disappears from more Nodes is an
/// accident that a person has to undo.
const AT_ONCE: usize = 64;

/// Sends updates of the Nodes in `followed` until `stop`: [`KubernetesUpdate::Followed`] with each state,
/// [`KubernetesUpdate::FollowedGone`] when it is deleted, [`KubernetesUpdate::FollowedAbsent`] when there is no such Node.
///
/// After a break the Node is listed again, so a missed deletion is sent as absence.
pub async fn run(
    client: kube::Client,
    followed: watch::Receiver<BTreeSet<NodeName>>,
    selection: Selection,
    settings: Settings,
    out: mpsc::Sender<KubernetesUpdate>,
    stop: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let follow = |name: NodeName, token: CancellationToken| {
        let one = FollowedNode {
            client: client.clone(),
            name,
            selection: selection.clone(),
            settings: settings.clone(),
            out: out.clone(),
            stop: token,
        };
        one.run(Arc::clone(&slots))
    };
    steered("followed nodes", followed, settings.backoff_min, &stop, follow).await;
}

/// The watch of one Node.
struct FollowedNode {
    client: kube::Client,
    name: NodeName,
    selection: Selection,
    settings: Settings,
    out: mpsc::Sender<KubernetesUpdate>,
    stop: CancellationToken,
}

impl FollowedNode {
    /// Waits for a slot, then watches until `stop`, and rebuilds the watch after a break.
    async fn run(self, slots: Arc<Semaphore>) {
        let _slot = tokio::select! {
            biased;
            () = self.stop.cancelled() => return,
            slot = slots.acquire() => slot,
        };
        let mut backoff = Backoff::new(&self.settings);
        let mut is_logged = false;
        loop {
            let api: Api<core::Node> = Api::all(self.client.clone());
            let config = self
                .settings
                .watcher()
                .fields(&format!("metadata.name={}", self.name));
            let events = pin!(watcher(api, config));
            let WatchEnded::Broke(why) = self.follow(events, &mut backoff).await else {
                return;
            };
            if !std::mem::replace(&mut is_logged, true) {
                tracing::warn!(
                    node = %self.name, why,
                    "the watch of a node that the label selector does not match broke and is rebuilt"
                );
            }
            if !pause(&self.stop, backoff.next()).await {
                return;
            }
        }
    }

    /// Sends updates of the Node until the watch breaks or stops.
    async fn follow(
        &self,
        mut events: Pin<&mut impl Stream<Item = watcher::Result<Event<core::Node>>>>,
        backoff: &mut Backoff,
    ) -> WatchEnded {
        let mut is_listed = false;
        loop {
            let event = tokio::select! {
                biased;
                () = self.stop.cancelled() => return WatchEnded::Stopped,
                event = events.next() => event,
            };
            let update = match event {
                Some(Ok(Event::Init)) => {
                    is_listed = false;
                    continue;
                }
                Some(Ok(Event::InitApply(node))) => {
                    is_listed = true;
                    self.seen(&node)
                }
                Some(Ok(Event::InitDone)) => {
                    backoff.settled();
                    if is_listed {
                        continue;
                    }
                    KubernetesUpdate::FollowedAbsent {
                        name: self.name.clone(),
                    }
                }
                Some(Ok(Event::Apply(node))) => self.seen(&node),
                Some(Ok(Event::Delete(node))) => KubernetesUpdate::FollowedGone {
                    name: self.name.clone(),
                    uid: NodeUid::new(node.metadata.uid.unwrap_or_default()),
                },
                Some(Err(error)) => return WatchEnded::Broke(said(&error)),
                None => return WatchEnded::Broke("it ended".to_owned()),
            };
            if !tell(&self.out, &self.stop, update).await {
                return WatchEnded::Stopped;
            }
        }
    }

    fn seen(&self, node: &core::Node) -> KubernetesUpdate {
        let Selection {
            selector: _,
            keys,
            gpu_resources,
        } = &self.selection;
        KubernetesUpdate::Followed(Box::new(node_facts(node, keys, gpu_resources)))
    }
}

#[cfg(test)]
mod tests;
