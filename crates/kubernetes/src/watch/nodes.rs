//! Watches the Nodes that the label selector matches.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::runtime::watcher::Event;

use super::{Backoff, Selection, WatchBroke, WatchContext, WatchHandler, watcher_config};
use crate::ids::{NodeName, NodeUid};
use crate::update::KubernetesUpdate;

/// Sends updates of all Nodes that `selection` matches until `stop`. After each break the Nodes are listed again between `Reset` and
/// `Settled`.
pub async fn run(selection: Selection, context: WatchContext) {
    let api = Api::all(context.client.clone());
    let config = watcher_config().labels(&selection.selector);
    let handler = Nodes {
        selection,
        is_reset_due: false,
    };
    context.watch(api, config, handler).await;
}

struct Nodes {
    selection: Selection,
    /// `Reset` is sent only when the list is answered, so that an outage voids no facts.
    is_reset_due: bool,
}

impl WatchHandler for Nodes {
    type Object = Node;

    fn event(&mut self, event: Event<Node>) -> Vec<KubernetesUpdate> {
        let update = match event {
            Event::Init => {
                self.is_reset_due = true;
                return Vec::new();
            }
            Event::InitApply(node) | Event::Apply(node) => {
                KubernetesUpdate::Node(self.selection.facts(&node))
            }
            Event::InitDone => KubernetesUpdate::Settled,
            Event::Delete(node) => KubernetesUpdate::NodeGone {
                name: NodeName::new(node.metadata.name.unwrap_or_default()),
                uid: NodeUid::new(node.metadata.uid.unwrap_or_default()),
            },
        };
        let reset = std::mem::take(&mut self.is_reset_due).then_some(KubernetesUpdate::Reset);
        reset.into_iter().chain([update]).collect()
    }

    fn broke(&mut self, broke: &WatchBroke, backoff: &mut Backoff) -> (Vec<KubernetesUpdate>, Duration) {
        let selector = &self.selection.selector;
        let why = format!("the watch of nodes with {selector:?} broke: {}", broke.refusal);
        (vec![KubernetesUpdate::Lost { why }], backoff.next_wait())
    }
}
