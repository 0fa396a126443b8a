//! Watches NodeMaintenance objects, Haulout's own and those of other projects, and sends [`NodeMaintenanceUpdate`]s. If a kind is not
//! installed there are no objects of it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use kube::api::DynamicObject;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tracing::{info, warn};

use super::api::{concerns, facts};
use super::foreign::{self, Reading};
use super::kind::NodeMaintenance;
use super::object_limit::{ObjectAdmission, ObjectLimit};
use haulout_core::facts::foreign_maintenance::ForeignApi;
use haulout_core::ids::RequestUid;
use haulout_core::maintenance::episode::Episode;
use haulout_core::maintenance::policy::Releases;
use haulout_core::maintenance::record::read_copy;
use haulout_kubernetes::update::{
    KubernetesUpdate, NodeMaintenanceFacts, NodeMaintenanceRole, NodeMaintenanceUpdate,
};
use haulout_kubernetes::watch::{
    Backoff, LOOK_FOR_KIND, WatchBroke, WatchContext, WatchHandler, watcher_config,
};

/// Objects per page of the list. An object may have 1.5 MiB; most have some KiB.
const PAGE: u32 = 100;

/// How many unreadable objects are logged. A tenant may create any number, and must not fill the log with them.
const UNREADABLE_LOGGED: usize = 100;

/// Sends updates of all requests, of the episodes of nodes of `selector`, and of open episodes of `releases`, until `stop`. An episode
/// that began under another selector has its only record there, if its Node was deleted.
pub async fn run(selector: String, releases: Releases, context: WatchContext) {
    let api = Api::all(context.client.clone());
    let config = watcher_config().page_size(PAGE);
    context
        .watch(api, config, KindHandler::new(OwnObjects::of(selector, releases)))
        .await;
}

/// Sends updates of the requests of another project, until `stop`.
pub async fn run_foreign(api: ForeignApi, context: WatchContext) {
    let objects = Api::all_with(context.client.clone(), &foreign::kind(api));
    let config = watcher_config().page_size(PAGE);
    let kind = ForeignObjects {
        api,
        is_operator_told: false,
    };
    context.watch(objects, config, KindHandler::new(kind)).await;
}

trait WatchedKind {
    type Object: Resource + Clone + DeserializeOwned + Debug + Send + 'static;

    /// Reads an object; `None` for one that does not concern this controller.
    fn read_object(&mut self, object: &Self::Object) -> Option<Reading>;

    /// The name and the UID of an object that cannot be read.
    fn unreadable(&mut self, _: &Self::Object) -> Option<(String, RequestUid)> {
        None
    }

    fn update(&self, update: NodeMaintenanceUpdate) -> KubernetesUpdate;

    /// The kind, for the log.
    fn name(&self) -> String;

    /// What is missing without the kind.
    fn without(&self) -> &'static str;
}

struct OwnObjects {
    selector: String,
    releases: Releases,
    /// The UIDs of unreadable objects that were logged.
    logged: BTreeSet<String>,
}

impl OwnObjects {
    fn of(selector: String, releases: Releases) -> Self {
        Self {
            selector,
            releases,
            logged: BTreeSet::new(),
        }
    }

    fn is_open_episode(&self, facts: &NodeMaintenanceFacts) -> bool {
        let NodeMaintenanceRole::Episode { record: Some(record) } = &facts.role else {
            return false;
        };
        let is_ours = |episode: Arc<Episode>| self.releases.names(&episode.release);
        !facts.is_over && read_copy(record).is_some_and(is_ours)
    }
}

impl WatchedKind for OwnObjects {
    /// An object that another version of the schema allowed must not end the watch of all others.
    type Object = DeserializeGuard<NodeMaintenance>;

    fn read_object(&mut self, object: &Self::Object) -> Option<Reading> {
        let object = object.0.as_ref().ok()?;
        let facts = facts(object);
        if !concerns(object, &self.selector) && !self.is_open_episode(&facts) {
            return None;
        }
        // A finalizer may keep a deleted object. The record of an episode counts until it is gone.
        let is_request = matches!(facts.role, NodeMaintenanceRole::Request(_));
        Some(if is_request && object.metadata.deletion_timestamp.is_some() {
            Reading::Withdrawn(facts)
        } else {
            Reading::Stands(facts)
        })
    }

    fn unreadable(&mut self, object: &Self::Object) -> Option<(String, RequestUid)> {
        let invalid = object.0.as_ref().err()?;
        let name = invalid.metadata.name.clone().unwrap_or_default();
        let uid = invalid.metadata.uid.clone().unwrap_or_default();
        if self.logged.len() < UNREADABLE_LOGGED && self.logged.insert(uid.clone()) {
            warn!(
                "NodeMaintenance {name} is ignored, because it cannot be read: {}; delete it, or create it again",
                invalid.error
            );
        }
        Some((name, RequestUid::new(uid)))
    }

    fn update(&self, update: NodeMaintenanceUpdate) -> KubernetesUpdate {
        KubernetesUpdate::Maintenances(update)
    }

    fn name(&self) -> String {
        "NodeMaintenance (haulout.dev/v1alpha1)".to_owned()
    }

    fn without(&self) -> &'static str {
        "there are no requests and no copies of records"
    }
}

struct ForeignObjects {
    api: ForeignApi,
    /// It was logged that the operator of the kind runs as well.
    is_operator_told: bool,
}

impl WatchedKind for ForeignObjects {
    type Object = DynamicObject;

    fn read_object(&mut self, object: &DynamicObject) -> Option<Reading> {
        let reading = foreign::read_foreign(self.api, object);
        if let Reading::Stands(facts) = &reading
            && let NodeMaintenanceRole::Foreign(read) = &facts.role
            && read.has_operator
            && !std::mem::replace(&mut self.is_operator_told, true)
        {
            warn!(
                "NodeMaintenance {} is handled by the operator of its project, too: Haulout drains the node for it, and \
                 leaves the status of this and of other such objects alone; remove {} from FOREIGN_NODE_MAINTENANCES, or that operator",
                facts.name, self.api
            );
        }
        Some(reading)
    }

    fn update(&self, update: NodeMaintenanceUpdate) -> KubernetesUpdate {
        KubernetesUpdate::ForeignMaintenances(self.api, update)
    }

    fn name(&self) -> String {
        let kind = foreign::kind(self.api);
        format!("{} ({})", kind.kind, kind.api_version)
    }

    fn without(&self) -> &'static str {
        "there are no requests of this kind"
    }
}

struct KindHandler<Kind> {
    kind: Kind,
    kept: ObjectLimit,
    /// `Reset` is sent with the first update of a list.
    is_reset_due: bool,
    /// It was reported that the kind is not installed.
    is_missed: bool,
}

impl<Kind: WatchedKind> KindHandler<Kind> {
    fn new(kind: Kind) -> Self {
        Self {
            kind,
            kept: ObjectLimit::default(),
            is_reset_due: false,
            is_missed: false,
        }
    }

    fn updates(&mut self, event: Event<Kind::Object>) -> Vec<NodeMaintenanceUpdate> {
        if let Event::InitApply(object) | Event::Apply(object) | Event::Delete(object) = &event
            && let Some((name, uid)) = self.kind.unreadable(object)
        {
            return self.object_gone(name, uid);
        }
        match event {
            Event::Init => {
                self.is_reset_due = true;
                self.kept.clear();
                Vec::new()
            }
            Event::InitApply(object) | Event::Apply(object) => match self.kind.read_object(&object) {
                Some(Reading::Stands(seen)) => self.seen(seen),
                Some(Reading::Withdrawn(gone)) => self.object_gone(gone.name, gone.uid),
                None => Vec::new(),
            },
            Event::InitDone => {
                if std::mem::take(&mut self.is_missed) {
                    info!("the kind {} is installed now", self.kind.name());
                }
                vec![NodeMaintenanceUpdate::Settled]
            }
            Event::Delete(object) => match self.kind.read_object(&object) {
                Some(Reading::Stands(gone) | Reading::Withdrawn(gone)) => {
                    self.object_gone(gone.name, gone.uid)
                }
                None => Vec::new(),
            },
        }
    }

    fn seen(&mut self, seen: NodeMaintenanceFacts) -> Vec<NodeMaintenanceUpdate> {
        let displaced = match self.kept.seen(&seen) {
            ObjectAdmission::Processed => None,
            ObjectAdmission::InPlaceOf(name, uid) => Some(NodeMaintenanceUpdate::Gone { name, uid }),
            ObjectAdmission::Ignored => return Vec::new(),
        };
        let seen = NodeMaintenanceUpdate::Seen(Box::new(seen));
        displaced.into_iter().chain([seen]).collect()
    }

    fn object_gone(&mut self, name: String, uid: RequestUid) -> Vec<NodeMaintenanceUpdate> {
        let is_kept = self.kept.remove_object(&name, &uid);
        let gone = is_kept.then_some(NodeMaintenanceUpdate::Gone { name, uid });
        gone.into_iter().collect()
    }
}

impl<Kind: WatchedKind> WatchHandler for KindHandler<Kind> {
    type Object = Kind::Object;

    fn event(&mut self, event: Event<Kind::Object>) -> Vec<KubernetesUpdate> {
        let mut updates = self.updates(event);
        if !updates.is_empty() && std::mem::take(&mut self.is_reset_due) {
            updates.insert(0, NodeMaintenanceUpdate::Reset);
        }
        updates
            .into_iter()
            .map(|update| self.kind.update(update))
            .collect()
    }

    fn broke(&mut self, broke: &WatchBroke, backoff: &mut Backoff) -> (Vec<KubernetesUpdate>, Duration) {
        let code = broke.refusal.code();
        let is_missed = broke.is_unlisted && code == Some(404);
        let was_missed = std::mem::replace(&mut self.is_missed, is_missed);
        let (updates, wait) = if is_missed && was_missed {
            (Vec::new(), LOOK_FOR_KIND)
        } else if is_missed {
            info!(
                "the kind {} is not installed: {}",
                self.kind.name(),
                self.kind.without()
            );
            let updates = vec![NodeMaintenanceUpdate::Reset, NodeMaintenanceUpdate::Settled];
            (updates, LOOK_FOR_KIND)
        } else {
            let lost = NodeMaintenanceUpdate::Lost {
                why: format!("the watch of {} broke: {}", self.kind.name(), broke.refusal),
                refused: matches!(code, Some(401 | 403)),
            };
            (vec![lost], backoff.next_wait())
        };
        let updates = updates.into_iter().map(|update| self.kind.update(update));
        (updates.collect(), wait)
    }
}

#[cfg(test)]
mod tests;
