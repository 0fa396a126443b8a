//! What NodeMaintenance objects say of a node: the request that counts, and the second copy of its record.

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

/// The NodeMaintenance objects that stand.
#[derive(Debug, Default)]
pub(super) struct RequestStore {
    by_name: BTreeMap<String, StoredRequest>,
    of_node: BTreeMap<NodeName, BTreeSet<String>>,
}

/// One of them.
#[derive(Debug)]
struct StoredRequest {
    facts: NodeMaintenanceFacts,
    /// The episode whose copy it is, read when it was told: a picture is drawn far more often.
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

    /// Those of a node that have not come to their end.
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
        // Whoever made it unreadable has made it no copy.
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
                // As with Nodes, versions are compared within one list and what follows it.
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

    /// The request that counts for a node: the oldest that has not come to its end. One that the Node says is fulfilled
    /// holds the others back until its own status says so too, so that none is ever gone about twice.
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

    /// The copy of a node's record: of its youngest episode that has not come to its end.
    pub(super) fn copy(&self, name: &NodeName) -> Option<&Arc<Episode>> {
        let copies = self.maintenances.open(name).filter(|it| match &it.facts.role {
            NodeMaintenanceRole::Episode { record } => record.is_some(),
            NodeMaintenanceRole::Request(_) => false,
        });
        let youngest = copies.max_by_key(|it| (it.facts.created_at, &it.facts.name))?;
        youngest.copy.as_ref()
    }

    /// What counts of a node whose object is gone: its copy, or what was last seen on it where that is younger.
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

    /// The same, where it is an episode of this release: without its Node nothing else says whose it is.
    pub(super) fn own_copy(&self, name: &NodeName) -> Option<&Arc<Episode>> {
        self.copy(name)
            .filter(|copy| self.rules.releases.names(&copy.release))
    }

    /// The nodes that only a copy of an episode of this release tells of.
    pub(super) fn only_copied(&self) -> BTreeSet<NodeName> {
        let copied = self.maintenances.of_node.keys();
        copied
            .filter(|name| !self.nodes.contains_key(*name) && self.own_copy(name).is_some())
            .cloned()
            .collect()
    }
}

/// Whether `one` was written after `other`: of one episode by their numbers, of two by the times at which they began.
fn is_younger(one: &Episode, other: &Episode) -> bool {
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
    /// A side that has nothing to apply_all, and says so.
    pub(super) fn unused() -> Self {
        Self {
            disconnected: None,
            seen: BTreeSet::new(),
            is_open: false,
        }
    }
}

#[cfg(test)]
mod tests;
