//! NodeMaintenance objects: the effective request of a node, and the second copy of its record.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Inventory, Source};
use crate::facts::kubernetes::{
    NodeFacts, NodeMaintenanceFacts, NodeMaintenanceRole, NodeMaintenanceUpdate, RequestedAction,
    RequestedMaintenance,
};
use crate::ids::NodeName;
use crate::maintenance::episode::{Episode, Record};
use crate::maintenance::policy::DrainTimeoutAction;
use crate::maintenance::record::{Annotations, read};
use crate::maintenance::request::{Request, RequestAction, RequestIdentity};

/// The NodeMaintenance objects.
#[derive(Debug, Default)]
pub(super) struct RequestStore {
    by_name: BTreeMap<String, StoredRequest>,
    of_node: BTreeMap<NodeName, BTreeSet<String>>,
}

/// A stored NodeMaintenance object.
#[derive(Debug)]
struct StoredRequest {
    facts: NodeMaintenanceFacts,
    /// The episode in its copy of a record, parsed once per update.
    copy: Option<Arc<Episode>>,
}

impl RequestStore {
    pub(super) fn get(&self, name: &str) -> Option<&NodeMaintenanceFacts> {
        self.by_name.get(name).map(|object| &object.facts)
    }

    fn insert(&mut self, facts: NodeMaintenanceFacts) {
        self.remove(&facts.name);
        let copy = match &facts.role {
            NodeMaintenanceRole::Episode { record } if !facts.is_over => record.clone().and_then(read_copy),
            NodeMaintenanceRole::Episode { .. } | NodeMaintenanceRole::Request(_) => None,
        };
        let names = self.of_node.entry(facts.node.clone()).or_default();
        names.insert(facts.name.clone());
        self.by_name
            .insert(facts.name.clone(), StoredRequest { facts, copy });
    }

    fn remove(&mut self, name: &str) {
        let Some(object) = self.by_name.remove(name) else {
            return;
        };
        if let Entry::Occupied(mut names) = self.of_node.entry(object.facts.node) {
            names.get_mut().remove(name);
            if names.get().is_empty() {
                names.remove();
            }
        }
    }

    fn retain(&mut self, names: &BTreeSet<String>) {
        let gone: Vec<String> = self
            .by_name
            .keys()
            .filter(|name| !names.contains(*name))
            .cloned()
            .collect();
        gone.iter().for_each(|name| self.remove(name));
    }

    /// The objects of a node that have not ended.
    fn open(&self, node: &NodeName) -> impl Iterator<Item = &StoredRequest> {
        let names = self.of_node.get(node).into_iter().flatten();
        let objects = names.filter_map(|name| self.by_name.get(name));
        objects.filter(|object| !object.facts.is_over)
    }
}

fn read_copy(record: String) -> Option<Arc<Episode>> {
    let annotations = Annotations {
        episode: Some(record),
        ..Annotations::default()
    };
    match read(&annotations) {
        Record::Episode(episode) => Some(episode),
        // An unreadable record is no copy.
        Record::InService | Record::Python(_) | Record::Unreadable { .. } => None,
    }
}

impl Inventory {
    pub(super) fn apply_maintenances(&mut self, update: NodeMaintenanceUpdate) {
        match update {
            NodeMaintenanceUpdate::Reset => {
                self.requests.disconnected = Some("the NodeMaintenances are being listed again".to_owned());
                self.requests.seen.clear();
            }
            NodeMaintenanceUpdate::Seen(seen) => {
                // As with Nodes, versions are compared only within one list and its watch.
                let is_of_this_list =
                    self.requests.seen.contains(&seen.name) || self.requests.disconnected.is_none();
                let older = self.maintenances.get(&seen.name).is_some_and(|known| {
                    known.uid == seen.uid && known.resource_version > seen.resource_version
                });
                if self.requests.disconnected.is_some() {
                    self.requests.seen.insert(seen.name.clone());
                }
                if !(is_of_this_list && older) {
                    self.maintenances.insert(*seen);
                }
            }
            NodeMaintenanceUpdate::Gone { name, uid } => {
                if self.maintenances.get(&name).is_some_and(|known| known.uid == uid) {
                    self.maintenances.remove(&name);
                }
            }
            NodeMaintenanceUpdate::Settled => {
                self.requests_lost_at = None;
                if self.requests.disconnected.take().is_some() {
                    let seen = std::mem::take(&mut self.requests.seen);
                    self.maintenances.retain(&seen);
                }
            }
            NodeMaintenanceUpdate::Lost { why, .. } => {
                self.requests_lost_at.get_or_insert(self.now.monotonic);
                self.requests.disconnected = Some(why);
            }
        }
    }

    /// The effective request of a node: the oldest that has not ended. While the Node names it as fulfilled and its own status does
    /// not yet, there is none, so that no request is served twice.
    pub(super) fn request(&self, name: &NodeName, node: Option<&NodeFacts>) -> Option<Request> {
        let (oldest, asked) = self
            .maintenances
            .open(name)
            .filter_map(|it| match &it.facts.role {
                NodeMaintenanceRole::Request(asked) => Some((&it.facts, asked)),
                NodeMaintenanceRole::Episode { .. } => None,
            })
            .min_by_key(|(it, _)| (it.created_at, &it.name))?;
        let fulfilled = node.and_then(|node| node.annotations.fulfilled.as_deref());
        let in_dry_run = self
            .node_states
            .get(name)
            .and_then(|local| local.dry_run.fulfilled());
        let is_done = fulfilled == Some(oldest.uid.as_str()) || in_dry_run == Some(&oldest.uid);
        (!is_done).then(|| request(oldest, asked))
    }

    /// The copy of a node's record: of its youngest episode that has not ended.
    pub(super) fn copy(&self, name: &NodeName) -> Option<&Arc<Episode>> {
        self.object_of_copy(name)?.copy.as_ref()
    }

    /// The `resourceVersion` of the object with that copy.
    pub(super) fn copy_version(&self, name: &NodeName) -> Option<u64> {
        Some(self.object_of_copy(name)?.facts.resource_version)
    }

    fn object_of_copy(&self, name: &NodeName) -> Option<&StoredRequest> {
        let copies = self.maintenances.open(name).filter(|it| match &it.facts.role {
            NodeMaintenanceRole::Episode { record } => record.is_some(),
            NodeMaintenanceRole::Request(_) => false,
        });
        copies.max_by_key(|it| (it.facts.created_at, &it.facts.name))
    }

    /// The record of a deleted Node: its copy, or the last record on the Node where that is newer.
    pub(super) fn record_of_gone(&self, name: &NodeName) -> Option<Record> {
        let seen = self
            .node_states
            .get(name)
            .and_then(|local| local.record_of_gone.clone());
        match (seen, self.own_copy(name)) {
            (Some(Record::Episode(seen)), Some(copy)) if is_younger(&seen, copy) => {
                Some(Record::Episode(seen))
            }
            (_, Some(copy)) => Some(Record::Episode(Arc::clone(copy))),
            (seen, None) => seen,
        }
    }

    /// The copy of a node's record, where it names this release. Without a Node, only that shows the owner.
    pub(super) fn own_copy(&self, name: &NodeName) -> Option<&Arc<Episode>> {
        self.copy(name)
            .filter(|copy| self.rules.releases.names(&copy.release))
    }

    /// The nodes without a Node, with a copy of an episode of this release.
    pub(super) fn only_copied(&self) -> BTreeSet<NodeName> {
        let copied = self.maintenances.of_node.keys();
        copied
            .filter(|name| !self.nodes.contains_key(*name) && self.own_copy(name).is_some())
            .cloned()
            .collect()
    }
}

/// Whether `one` was written after `other`: by revision within an episode, otherwise by begin.
pub(super) fn is_younger(one: &Episode, other: &Episode) -> bool {
    if one.id == other.id {
        one.revision > other.revision
    } else {
        one.begun_at > other.begun_at
    }
}

fn request(object: &NodeMaintenanceFacts, asked: &RequestedMaintenance) -> Request {
    Request {
        identity: RequestIdentity {
            name: object.name.clone(),
            uid: object.uid.clone(),
        },
        asked_at: object.created_at,
        action: match asked.action {
            RequestedAction::Drain => RequestAction::Drain,
            RequestedAction::PowerOff => RequestAction::PowerOff,
            RequestedAction::Reboot => RequestAction::Reboot,
            RequestedAction::Relocate => RequestAction::Relocate {
                to: asked.target_host.clone(),
            },
        },
        drain_timeout: asked.drain_timeout,
        drain_timeout_action: asked.hold_on_drain_timeout.map(|hold| {
            if hold {
                DrainTimeoutAction::Hold
            } else {
                DrainTimeoutAction::PowerOff
            }
        }),
        guest_shutdown_timeout: asked.guest_shutdown_timeout,
    }
}

impl Source<String> {
    /// A source that is not used. It counts as synced.
    pub(super) fn unused() -> Self {
        Self {
            disconnected: None,
            seen: BTreeSet::new(),
            is_incomplete: false,
        }
    }
}

#[cfg(test)]
mod tests;
