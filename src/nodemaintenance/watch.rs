//! Watches NodeMaintenance objects and sends [`NodeMaintenanceUpdate`]s. If the kind is not installed there are no objects.

use std::time::Duration;

use kube::Api;
use kube::runtime::watcher::Event;
use tracing::info;

use super::api::{concerns, facts};
use super::kept::{Kept, KeptAdmission};
use super::kind::NodeMaintenance;
use crate::ids::RequestUid;
use crate::kubernetes::update::{KubernetesUpdate, NodeMaintenanceUpdate};
use crate::kubernetes::watch::{Backoff, WatchBroke, WatchContext, WatchHandler};

/// How often to check whether the kind has been installed.
const LOOK_FOR_KIND: Duration = Duration::from_secs(60);

/// Objects per page of the list. An object may have 1.5 MiB; most have some KiB.
const PAGE: u32 = 100;

/// Sends updates of all requests, and of the episodes of nodes of `selector`, until `stop`.
pub(crate) async fn run(selector: String, context: WatchContext) {
    let api = Api::all(context.client.clone());
    let config = context.settings.watcher().page_size(PAGE);
    let handler = Maintenances {
        selector,
        kept: Kept::default(),
        is_reset_due: false,
        is_missed: false,
    };
    context.watch(api, config, handler).await;
}

struct Maintenances {
    selector: String,
    kept: Kept,
    /// `Reset` is sent with the first update of a list.
    is_reset_due: bool,
    /// It was logged that the kind is not installed.
    is_missed: bool,
}

impl Maintenances {
    fn updates(&mut self, event: Event<NodeMaintenance>) -> Vec<NodeMaintenanceUpdate> {
        match event {
            Event::Init => {
                self.is_reset_due = true;
                self.kept.clear();
                Vec::new()
            }
            Event::InitApply(object) | Event::Apply(object) | Event::Delete(object)
                if !concerns(&object, &self.selector) =>
            {
                Vec::new()
            }
            Event::InitApply(object) | Event::Apply(object) => {
                let seen = facts(&object);
                let displaced = match self.kept.seen(&seen) {
                    KeptAdmission::Kept => None,
                    KeptAdmission::InPlaceOf(name, uid) => Some(NodeMaintenanceUpdate::Gone { name, uid }),
                    KeptAdmission::Ignored => return Vec::new(),
                };
                let seen = NodeMaintenanceUpdate::Seen(Box::new(seen));
                displaced.into_iter().chain([seen]).collect()
            }
            Event::InitDone => vec![NodeMaintenanceUpdate::Settled],
            Event::Delete(object) => {
                let name = object.metadata.name.unwrap_or_default();
                let uid = RequestUid::new(object.metadata.uid.unwrap_or_default());
                let is_kept = self.kept.gone(&name, &uid);
                let gone = is_kept.then_some(NodeMaintenanceUpdate::Gone { name, uid });
                gone.into_iter().collect()
            }
        }
    }
}

impl WatchHandler for Maintenances {
    type Object = NodeMaintenance;

    fn event(&mut self, event: Event<NodeMaintenance>) -> Vec<KubernetesUpdate> {
        let mut updates = self.updates(event);
        if !updates.is_empty() && std::mem::take(&mut self.is_reset_due) {
            updates.insert(0, NodeMaintenanceUpdate::Reset);
        }
        updates.into_iter().map(KubernetesUpdate::Maintenances).collect()
    }

    fn broke(&mut self, broke: &WatchBroke, backoff: &mut Backoff) -> (Vec<KubernetesUpdate>, Duration) {
        let code = broke.refusal.code();
        let is_missed = broke.is_unlisted && code == Some(404);
        let was_missed = std::mem::replace(&mut self.is_missed, is_missed);
        let (updates, wait) = if is_missed {
            if !was_missed {
                info!(
                    "the kind NodeMaintenance (haulout.dev/v1alpha1) is not installed: there are no requests and no copies of records"
                );
            }
            let updates = vec![NodeMaintenanceUpdate::Reset, NodeMaintenanceUpdate::Settled];
            (updates, LOOK_FOR_KIND)
        } else {
            let lost = NodeMaintenanceUpdate::Lost {
                why: format!("the watch of NodeMaintenances broke: {}", broke.refusal),
                refused: matches!(code, Some(401 | 403)),
            };
            (vec![lost], backoff.next())
        };
        let updates = updates.into_iter().map(KubernetesUpdate::Maintenances);
        (updates.collect(), wait)
    }
}

#[cfg(test)]
mod tests;
