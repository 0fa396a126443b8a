//! NodeMaintenance objects: the effective request of a node, and the second copy of its record.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::Inventory;
use crate::facts::foreign_maintenance::ForeignApi;
use crate::facts::kubernetes::{
    NodeFacts, NodeMaintenanceFacts, NodeMaintenanceRole, NodeMaintenanceUpdate, RequestedMaintenance,
};
use crate::ids::NodeName;
use crate::maintenance::episode::{Episode, Record};
use crate::maintenance::policy::DrainTimeoutAction;
use crate::maintenance::record::read_copy;
use crate::maintenance::request::{Request, RequestIdentity};

/// The NodeMaintenance objects.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestStore {
    by_name: BTreeMap<String, StoredRequest>,
    of_node: BTreeMap<NodeName, BTreeSet<String>>,
    /// The objects with a copy of a record, by node and name.
    copies: BTreeSet<(NodeName, String)>,
}

/// A stored NodeMaintenance object.
#[derive(Clone, Debug)]
struct StoredRequest {
    facts: NodeMaintenanceFacts,
    /// The episode in its copy of a record, parsed once per update.
    copy: Option<Arc<Episode>>,
    /// When its episode ended.
    ended_at: Option<Timestamp>,
}

impl RequestStore {
    pub(super) fn get(&self, name: &str) -> Option<&NodeMaintenanceFacts> {
        self.by_name.get(name).map(|object| &object.facts)
    }

    fn insert(&mut self, facts: NodeMaintenanceFacts) {
        self.remove(&facts.name);
        let copy = match &facts.role {
            NodeMaintenanceRole::Episode { record } if !facts.is_over => {
                record.as_deref().and_then(read_copy)
            }
            NodeMaintenanceRole::Episode { .. }
            | NodeMaintenanceRole::Request(_)
            | NodeMaintenanceRole::Foreign(_) => None,
        };
        let ended_at = match &facts.role {
            NodeMaintenanceRole::Episode { .. } => facts.status.ended_at.as_ref(),
            NodeMaintenanceRole::Request(_) | NodeMaintenanceRole::Foreign(_) => None,
        };
        let ended_at = ended_at.and_then(|at| at.parse().ok());
        let names = self.of_node.entry(facts.node.clone()).or_default();
        names.insert(facts.name.clone());
        if copy.is_some() {
            self.copies.insert((facts.node.clone(), facts.name.clone()));
        }
        let object = StoredRequest {
            copy,
            ended_at,
            facts,
        };
        self.by_name.insert(object.facts.name.clone(), object);
    }

    fn remove(&mut self, name: &str) {
        let Some(object) = self.by_name.remove(name) else {
            return;
        };
        self.copies.remove(&(object.facts.node.clone(), name.to_owned()));
        if let Entry::Occupied(mut names) = self.of_node.entry(object.facts.node) {
            names.get_mut().remove(name);
            if names.get().is_empty() {
                names.remove();
            }
        }
    }

    /// Removes the objects of `api` that are not among `names`.
    fn retain(&mut self, api: Option<ForeignApi>, names: &BTreeSet<String>) {
        let of_api = self
            .by_name
            .iter()
            .filter(|(_, it)| it.facts.role.foreign_api() == api);
        let gone: Vec<String> = of_api
            .map(|(name, _)| name)
            .filter(|name| !names.contains(*name))
            .cloned()
            .collect();
        gone.iter().for_each(|name| self.remove(name));
    }

    /// The nodes with a copy of a record that is not over.
    pub(super) fn copied(&self) -> impl Iterator<Item = &NodeName> {
        let mut last = None;
        let nodes = self.copies.iter().map(|(node, _)| node);
        nodes.filter(move |node| last.replace(*node) != Some(*node))
    }

    /// When the last episode of a node ended.
    pub(super) fn last_end(&self, node: &NodeName) -> Option<Timestamp> {
        let names = self.of_node.get(node).into_iter().flatten();
        names.filter_map(|name| self.by_name.get(name)?.ended_at).max()
    }

    /// The objects of a node that have not ended.
    fn open(&self, node: &NodeName) -> impl Iterator<Item = &StoredRequest> {
        let names = self.of_node.get(node).into_iter().flatten();
        let objects = names.filter_map(|name| self.by_name.get(name));
        objects.filter(|object| !object.facts.is_over)
    }
}

impl Inventory {
    /// Applies an update of Haulout's own NodeMaintenances, or of those of another project.
    pub(super) fn apply_maintenances(&mut self, api: Option<ForeignApi>, update: NodeMaintenanceUpdate) {
        let Some(source) = self.request_sources.get_mut(api) else {
            return;
        };
        match update {
            NodeMaintenanceUpdate::Reset => source.reset("the NodeMaintenances are being listed again"),
            NodeMaintenanceUpdate::Seen(seen) => {
                // As with Nodes, versions are compared only within one list and its watch.
                let is_of_this_list = source.record_object(&seen.name);
                let known = self.requests.get(&seen.name);
                let is_older = known.is_some_and(|known| seen.is_before(known));
                if !(is_of_this_list && is_older) {
                    self.requests.insert(*seen);
                }
            }
            // One that is not known was deleted in the meantime.
            NodeMaintenanceUpdate::Answered(object) => {
                let known = self.requests.get(&object.name);
                if known.is_some_and(|known| object.is_same_or_later(known)) {
                    self.requests.insert(*object);
                }
            }
            NodeMaintenanceUpdate::Gone { name, uid } => {
                if self.requests.get(&name).is_some_and(|known| known.uid == uid) {
                    self.requests.remove(&name);
                }
            }
            NodeMaintenanceUpdate::Settled => {
                if let Some(seen) = source.settle() {
                    self.requests.retain(api, &seen);
                }
            }
            NodeMaintenanceUpdate::Lost { why, .. } => source.lose(why, self.now.monotonic),
        }
    }

    /// The effective request of a node: the oldest that has not ended. While the Node names it as fulfilled and its own status does
    /// not yet, there is none, so that no request is served twice.
    pub(super) fn request(&self, name: &NodeName, node: Option<&NodeFacts>) -> Option<Request> {
        let (oldest, asked) = self
            .requests
            .open(name)
            .filter_map(|it| Some((&it.facts, it.facts.role.asked()?)))
            .min_by_key(|(it, _)| (it.created_at, &it.name))?;
        let fulfilled = node.and_then(|node| node.annotations.fulfilled.as_deref());
        let in_dry_run = self
            .node_states
            .get(name)
            .and_then(|local| local.dry_run.fulfilled());
        let is_done = fulfilled == Some(oldest.uid.as_str()) || in_dry_run == Some(&oldest.uid);
        (!is_done).then(|| request(oldest, asked))
    }

    /// The effective request of a node with `record`, unless it may not begin now.
    pub(super) fn due_request(
        &self,
        name: &NodeName,
        node: Option<&NodeFacts>,
        record: &Record,
    ) -> Option<Request> {
        let request = self.request(name, node)?;
        let is_due = request.not_due(record.episode(), self.now.wall).is_none();
        is_due.then_some(request)
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
        let copies = self.requests.open(name).filter(|it| match &it.facts.role {
            NodeMaintenanceRole::Episode { record } => record.is_some(),
            NodeMaintenanceRole::Request(_) | NodeMaintenanceRole::Foreign(_) => false,
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
            .filter(|copy| self.settings.releases.names(&copy.release))
    }

    /// Whether there is a copy of this episode, of this release. A kubelet can write any record to its own Node, and no copy.
    pub(super) fn has_own_copy_of(&self, name: &NodeName, episode: &Episode) -> bool {
        self.own_copy(name).is_some_and(|copy| copy.id == episode.id)
    }

    /// The nodes without a Node, with a copy of an episode of this release.
    pub(super) fn only_copied(&self) -> BTreeSet<NodeName> {
        let copied = self.requests.of_node.keys();
        copied
            .filter(|name| !self.nodes.has(name) && self.own_copy(name).is_some())
            .cloned()
            .collect()
    }
}

/// Whether `one` was written after `other`: by revision within an episode, otherwise by begin. A restore of etcd takes writes back, and
/// the next leader goes on with lower revisions; so the record of an earlier leader is never younger.
pub(super) fn is_younger(one: &Episode, other: &Episode) -> bool {
    if one.id == other.id {
        // 0 is without leader election.
        let is_of_earlier_leader = one.epoch != 0 && one.epoch < other.epoch;
        one.revision > other.revision && !is_of_earlier_leader
    } else {
        one.begun_at > other.begun_at
    }
}

fn identity(object: &NodeMaintenanceFacts) -> RequestIdentity {
    let (name, foreign) = match &object.role {
        NodeMaintenanceRole::Foreign(foreign) => (&foreign.name, Some(foreign.origin.clone())),
        NodeMaintenanceRole::Request(_) | NodeMaintenanceRole::Episode { .. } => (&object.name, None),
    };
    RequestIdentity {
        name: name.clone(),
        uid: object.uid.clone(),
        foreign,
    }
}

fn request(object: &NodeMaintenanceFacts, asked: &RequestedMaintenance) -> Request {
    Request {
        identity: identity(object),
        requested_by: asked.requested_by.clone(),
        asked_at: object.created_at,
        action: asked.action.clone(),
        drain_timeout: asked.drain_timeout,
        drain_timeout_action: asked.hold_on_drain_timeout.map(|hold| {
            if hold {
                DrainTimeoutAction::Hold
            } else {
                DrainTimeoutAction::PowerOff
            }
        }),
        guest_shutdown_timeout: asked.guest_shutdown_timeout,
        not_before: asked.not_before,
        window: asked.window.clone(),
    }
}

#[cfg(test)]
mod tests;
