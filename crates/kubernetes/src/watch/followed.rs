//! Watches single Nodes by name: those with an open episode that the label selector no longer matches.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::watcher::Event;
use tokio::sync::{Semaphore, watch};

use super::keyed::watch_each;
use super::{Backoff, Selection, WatchBroke, WatchContext, WatchHandler, watcher_config};
use crate::ids::{NodeName, NodeUid};
use crate::update::KubernetesUpdate;

/// The maximum number of concurrent watches; further Nodes wait for a free one. A label that disappears from more Nodes is an
/// accident that a person has to undo.
const AT_ONCE: usize = 64;

/// Sends updates of the Nodes in `followed` until `stop`: [`KubernetesUpdate::FollowedListed`] and [`KubernetesUpdate::Followed`] with
/// each state, [`KubernetesUpdate::FollowedGone`] when it is deleted, [`KubernetesUpdate::FollowedAbsent`] when there is no such Node.
///
/// After a break the Node is listed again, so a missed deletion is sent as absence.
pub async fn run(followed: watch::Receiver<BTreeSet<NodeName>>, selection: Selection, context: WatchContext) {
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let follow = |name, context| one(name, selection.clone(), Arc::clone(&slots), context);
    watch_each("followed nodes", followed, &context, follow).await;
}

async fn one(name: NodeName, selection: Selection, slots: Arc<Semaphore>, context: WatchContext) {
    let Some(_slot) = context.stop.run_until_cancelled(slots.acquire()).await else {
        return;
    };
    let api = Api::all(context.client.clone());
    let by_name = format!("metadata.name={name}");
    let config = watcher_config().fields(&by_name);
    let handler = FollowedNode {
        name,
        selection,
        is_listed: false,
        is_logged: false,
    };
    context.watch(api, config, handler).await;
}

struct FollowedNode {
    name: NodeName,
    selection: Selection,
    /// The list that is being read has the Node.
    is_listed: bool,
    is_logged: bool,
}

impl WatchHandler for FollowedNode {
    type Object = Node;

    fn event(&mut self, event: Event<Node>) -> Vec<KubernetesUpdate> {
        let update = match event {
            Event::Init => {
                self.is_listed = false;
                return Vec::new();
            }
            Event::InitApply(node) => {
                self.is_listed = true;
                KubernetesUpdate::FollowedListed(self.selection.facts(&node))
            }
            Event::InitDone if self.is_listed => return Vec::new(),
            Event::InitDone => KubernetesUpdate::FollowedAbsent {
                name: self.name.clone(),
            },
            Event::Apply(node) => KubernetesUpdate::Followed(self.selection.facts(&node)),
            Event::Delete(node) => KubernetesUpdate::FollowedGone {
                name: self.name.clone(),
                uid: NodeUid::new(node.metadata.uid.unwrap_or_default()),
            },
        };
        vec![update]
    }

    fn broke(&mut self, broke: &WatchBroke, backoff: &mut Backoff) -> (Vec<KubernetesUpdate>, Duration) {
        if !std::mem::replace(&mut self.is_logged, true) {
            tracing::warn!(
                node = %self.name, why = %broke.refusal,
                "the watch of a node that the label selector does not match broke and is rebuilt"
            );
        }
        (Vec::new(), backoff.next_wait())
    }
}

#[cfg(test)]
mod tests;
