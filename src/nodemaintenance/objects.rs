//! Computes the due writes: an object for each episode, which holds a copy of its record, and the status of each request.
//!
//! The wanted status of an object follows from the status of its node and from the object; the difference is
//! [`due`](StatusReconciler::due). A lost write or a deleted object is repaired by the next pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::Notify;

use super::api::name_of;
use super::history::{self, Presence};
use super::judgement::Progress;
use super::kind::{MaintenanceAction, MaintenanceOrigin, NodeMaintenanceSpec, NodeMaintenanceStatus};
use super::status;
use crate::ids::{NodeName, RequestUid};
use crate::kubernetes::update::{
    NodeMaintenanceFacts, NodeMaintenanceRole, NodeMaintenanceUpdate, RequestedMaintenance,
};
use crate::maintenance::episode::Episode;
use crate::status::observer::{NodeEvent, Observer};
use crate::status::{NodeEntry, NodeStatuses, StatusBoard};

/// The age of a request at which its node is reported as unknown. The Node may be created later, or belong to another controller.
const UNKNOWN_NODE_AFTER: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);

/// How long an ended episode waits for the event of its actor with the result: the watch may show the last write first. There is no
/// event for an episode that a person or another replica ended.
const RESULT_WAIT: jiff::SignedDuration = jiff::SignedDuration::from_secs(15);

/// How many objects per pass are written for progress only (pods that are left, the text of a wait), to limit the writes of many
/// drains. Passes are a second apart.
const PROGRESS_WRITES: usize = 2;

/// A due write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ObjectWrite {
    /// The object of a new episode.
    Create {
        name: String,
        spec: Box<NodeMaintenanceSpec>,
    },
    /// A changed status.
    Status {
        name: String,
        uid: RequestUid,
        /// A merge patch.
        changes: Value,
    },
    /// An ended episode that is no longer kept.
    Delete { name: String, uid: RequestUid },
}

impl ObjectWrite {
    /// The name of the object.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Create { name, .. } | Self::Status { name, .. } | Self::Delete { name, .. } => name,
        }
    }

    /// Its order among the due writes: copies of records come first, because an episode continues from the copy if its Node is
    /// deleted.
    fn weight(&self) -> u8 {
        match self {
            Self::Status { changes, .. } if changes.get("record").is_some_and(|it| !it.is_null()) => 0,
            Self::Create { .. } => 1,
            Self::Status { .. } | Self::Delete { .. } => 2,
        }
    }
}

/// Computes the due writes.
#[derive(Debug)]
pub(crate) struct StatusReconciler {
    trace_url: Option<String>,
    /// The label selector of our nodes.
    selector: String,
    /// The maximum number of kept ended episodes of a node.
    history: usize,
    clock: fn() -> Timestamp,
    wake: Notify,
    state: Mutex<ReconcilerState>,
}

#[derive(Debug, Default)]
struct ReconcilerState {
    board: StatusBoard,
    objects: BTreeMap<String, NodeMaintenanceFacts>,
    /// Nodes whose latest episode ended before its object was created; it is created nevertheless.
    ended_without_object: BTreeSet<NodeName>,
    /// Updates of objects since the last [`StatusReconciler::show`]. They are applied with the next one, because a new request that
    /// the status of its node does not show yet would count as fulfilled.
    pending: Vec<NodeMaintenanceUpdate>,
    /// The objects are synced.
    is_complete: bool,
    /// The Nodes are synced, as of the last [`StatusReconciler::show`].
    are_nodes_synced: bool,
    /// The Nodes are synced now.
    nodes_synced: bool,
}

impl StatusReconciler {
    /// For the nodes of `selector`, with links to traces by `trace_url`, and `history` ended episodes per node.
    pub(crate) fn new(
        selector: String,
        trace_url: Option<String>,
        history: u32,
        clock: fn() -> Timestamp,
    ) -> Self {
        Self {
            trace_url,
            selector,
            history: usize::try_from(history).unwrap_or(usize::MAX),
            clock,
            wake: Notify::new(),
            state: Mutex::default(),
        }
    }

    /// Waits until a write may be due.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, ReconcilerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes new statuses of nodes.
    pub(crate) fn show(&self, statuses: &NodeStatuses) {
        let now = (self.clock)();
        let mut state = self.state();
        let pending = std::mem::take(&mut state.pending);
        let mut is_changed = !pending.is_empty();
        for update in pending {
            state.apply(update);
        }
        state.are_nodes_synced = state.nodes_synced;
        is_changed |= state.board.show(statuses, now);
        drop(state);
        if is_changed {
            self.wake.notify_one();
        }
    }

    /// Queues an update of objects for the next [`Self::show`].
    pub(crate) fn queue(&self, update: &NodeMaintenanceUpdate) {
        self.state().pending.push(update.clone());
    }

    /// Sets whether the Nodes are synced, for the next [`Self::show`].
    pub(crate) fn set_nodes_synced(&self, all: bool) {
        let mut state = self.state();
        state.nodes_synced = all;
        state.are_nodes_synced &= all;
    }

    /// Processes the reply to a write.
    pub(crate) fn wrote(&self, object: &NodeMaintenanceFacts) {
        self.state()
            .apply(NodeMaintenanceUpdate::Seen(Box::new(object.clone())));
    }

    /// The newest `most` objects for which `is_wanted` is true.
    pub(crate) fn newest(
        &self,
        most: usize,
        is_wanted: impl Fn(&NodeMaintenanceFacts) -> bool,
    ) -> Vec<NodeMaintenanceFacts> {
        let state = self.state();
        let mut wanted: Vec<&NodeMaintenanceFacts> =
            state.objects.values().filter(|it| is_wanted(it)).collect();
        wanted.sort_by_key(|object| std::cmp::Reverse((object.created_at, &object.name)));
        wanted.into_iter().take(most).cloned().collect()
    }

    /// Requests another pass.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// The due writes in order: statuses with a new record, new objects, the rest. Objects for which `is_held` is true are skipped.
    /// At most [`PROGRESS_WRITES`] objects are written for progress only; if there are more, another pass follows.
    pub(crate) fn due(&self, is_held: impl Fn(&str) -> bool) -> Vec<ObjectWrite> {
        let now = (self.clock)();
        let state = self.state();
        if !state.is_complete {
            return Vec::new();
        }
        let mut due = state.missing(&self.selector);
        due.retain(|write| !is_held(write.name()));
        let mut counted = Vec::new();
        let open = state.objects.values().filter(|object| !object.is_over);
        for object in open.filter(|object| !is_held(&object.name)) {
            let wanted = match &object.role {
                NodeMaintenanceRole::Episode { .. } => state.of_episode(object, now),
                NodeMaintenanceRole::Request(asked) => state.of_request(object, asked, now),
            };
            let Some(mut wanted) = wanted else { continue };
            if let (Some(template), Some(id)) = (&self.trace_url, &wanted.trace_id) {
                wanted.trace_url = Some(template.replace(crate::config::TRACE_ID, id));
            }
            if status::is_progress(&object.status, &wanted) {
                counted.push((object, wanted));
            } else {
                due.extend(status_of(object, &wanted));
            }
        }
        // The object with the lowest resource version has waited the longest.
        counted.sort_by_key(|(object, _)| object.resource_version);
        if counted.len() > PROGRESS_WRITES {
            self.wake.notify_one();
        }
        let in_turn = counted.iter().take(PROGRESS_WRITES);
        due.extend(in_turn.filter_map(|(object, wanted)| status_of(object, wanted)));
        let beyond = state.beyond(self.history, now);
        due.extend(beyond.filter(|write| !is_held(write.name())));
        due.sort_by_key(ObjectWrite::weight);
        due
    }
}

impl Observer for StatusReconciler {
    fn observe(&self, node: &NodeName, event: NodeEvent<'_>) {
        let now = (self.clock)();
        let mut state = self.state();
        match event {
            NodeEvent::Recorded {
                before,
                transition,
                wrote: (_, at),
                ..
            } => {
                if !state.board.recorded(node, before, transition, at) {
                    return;
                }
                if let (Some(_), Some(episode)) = (transition.ended, before.episode()) {
                    if state.objects.contains_key(&name_of(node, &episode.id)) {
                        state.ended_without_object.remove(node);
                    } else {
                        state.ended_without_object.insert(node.clone());
                    }
                }
            }
            NodeEvent::Waits { on, .. } => state.board.waits(node, on, now),
            NodeEvent::NotRecorded { .. } | NodeEvent::Asks { .. } | NodeEvent::Forecasts { .. } => return,
        }
        drop(state);
        self.wake.notify_one();
    }
}

/// Whether the status of the node is complete.
fn is_known(entry: &NodeEntry) -> bool {
    entry.status.as_ref().is_some_and(|status| status.is_known)
}

/// Whether an episode has ended, and the event with its result may still come.
fn awaits_result(entry: &NodeEntry, now: Timestamp) -> bool {
    let gone = entry.gone().filter(|(id, _)| entry.ending(id).is_none());
    gone.is_some_and(|(_, since)| now.duration_since(since) < RESULT_WAIT)
}

impl ReconcilerState {
    fn apply(&mut self, update: NodeMaintenanceUpdate) {
        match update {
            NodeMaintenanceUpdate::Reset => {
                self.objects.clear();
                self.is_complete = false;
            }
            NodeMaintenanceUpdate::Seen(object) => {
                let older = self.objects.get(&object.name).is_some_and(|known| {
                    known.uid == object.uid && known.resource_version > object.resource_version
                });
                let ending = self
                    .board
                    .nodes
                    .get(&object.node)
                    .and_then(NodeEntry::latest_ending);
                let is_its = ending.is_some_and(|it| name_of(&object.node, &it.episode.id) == object.name);
                if is_its {
                    self.ended_without_object.remove(&object.node);
                }
                if !older {
                    self.objects.insert(object.name.clone(), *object);
                }
            }
            NodeMaintenanceUpdate::Gone { name, uid } => {
                if self.objects.get(&name).is_some_and(|known| known.uid == uid) {
                    self.objects.remove(&name);
                }
            }
            NodeMaintenanceUpdate::Settled => self.is_complete = true,
            NodeMaintenanceUpdate::Lost { .. } => self.is_complete = false,
        }
    }

    /// The objects of episodes that have none yet.
    fn missing(&self, selector: &str) -> Vec<ObjectWrite> {
        let mut missing = Vec::new();
        for (node, entry) in self.board.nodes.iter().filter(|(_, entry)| is_known(entry)) {
            let ended = entry
                .latest_ending()
                .filter(|_| self.ended_without_object.contains(node));
            let ended = ended.map(|ending| &ending.episode);
            for episode in entry.episode().into_iter().chain(ended) {
                let name = name_of(node, &episode.id);
                if !self.objects.contains_key(&name) {
                    let spec = Box::new(spec(node, episode, selector));
                    missing.push(ObjectWrite::Create { name, spec });
                }
            }
        }
        missing
    }

    /// The wanted status of an episode's object; `None` while it is unknown.
    fn of_episode(&self, object: &NodeMaintenanceFacts, now: Timestamp) -> Option<NodeMaintenanceStatus> {
        let entry = self
            .board
            .nodes
            .get(&object.node)
            .filter(|entry| is_known(entry))?;
        let is_its = |episode: &Episode| name_of(&object.node, &episode.id) == object.name;
        if let Some(episode) = entry.episode().filter(|episode| is_its(episode)) {
            return Some(status::of(object, entry, episode, now));
        }
        match entry.latest_ending().filter(|ending| is_its(&ending.episode)) {
            Some(ending) => Some(status::ended(object, entry, Some(ending), ending.at)),
            None if awaits_result(entry, now) => None,
            // No process observed the end.
            None => Some(status::ended(object, entry, None, now)),
        }
    }

    /// The wanted status of a request's object; `None` while it is unknown or another controller may handle it.
    fn of_request(
        &self,
        object: &NodeMaintenanceFacts,
        asked: &RequestedMaintenance,
        now: Timestamp,
    ) -> Option<NodeMaintenanceStatus> {
        let entry = self.board.nodes.get(&object.node);
        let status = entry.and_then(|entry| entry.status.as_ref());
        let seen = entry.zip(status);
        let Some((entry, status)) =
            seen.filter(|(it, status)| status.node.is_some() || it.episode().is_some())
        else {
            // Another controller may know the node, and has priority then.
            let is_unknown = object.status.conditions.is_empty()
                && now.duration_since(object.created_at) > UNKNOWN_NODE_AFTER;
            let why = format!("no Node {} is among those that Haulout watches", object.node);
            return is_unknown
                .then(|| status::waiting(object, "NodeNotFound", &why, Progress::Stalled(&why), now));
        };
        let first = self
            .objects
            .values()
            .filter(|it| {
                it.node == object.node && !it.is_over && matches!(it.role, NodeMaintenanceRole::Request(_))
            })
            .min_by_key(|it| (it.created_at, &it.name));
        if let Some(first) = first.filter(|first| first.uid != object.uid) {
            let why = format!("NodeMaintenance {} was there first", first.name);
            return Some(status::waiting(
                object,
                "WaitsItsTurn",
                &why,
                Progress::Running,
                now,
            ));
        }
        Some(match (&status.request, entry.episode()) {
            (Some(_), Some(episode)) => status::of_request(object, asked.action, entry, episode, now),
            (Some(_), None) => {
                let wait = entry.waiting_on();
                let why = wait.map_or_else(String::new, |wait| wait.on.to_string());
                status::waiting(object, "NotBegun", &why, Progress::Running, now)
            }
            // The oldest request that the node does not show is fulfilled.
            (None, None) if status.is_known && !awaits_result(entry, now) => {
                let (gave_up, at) = match entry.latest_ending() {
                    Some(ending) => (ending.episode.relocation_failure.clone(), ending.at),
                    None => (self.gave_up(object), now),
                };
                status::fulfilled(object, gave_up.as_deref(), at)
            }
            (None, _) => return None,
        })
    }

    /// Why the latest episode of a request's node gave up, from the record on its object.
    fn gave_up(&self, request: &NodeMaintenanceFacts) -> Option<String> {
        let latest = self
            .objects
            .values()
            .filter(|it| it.node == request.node && matches!(it.role, NodeMaintenanceRole::Episode { .. }))
            .max_by_key(|it| (it.created_at, &it.name))?;
        let record: Value = serde_json::from_str(latest.status.record.as_deref()?).ok()?;
        Some(record.get("gaveUp")?.as_str()?.to_owned())
    }

    /// The ended episodes to delete.
    fn beyond(&self, keep: usize, now: Timestamp) -> impl Iterator<Item = ObjectWrite> {
        let ended = self
            .objects
            .values()
            .filter(|object| object.is_over && matches!(object.role, NodeMaintenanceRole::Episode { .. }));
        let is_there = |node: &NodeName| self.board.nodes.contains_key(node);
        let presence = |node: &NodeName| match (is_there(node), self.are_nodes_synced) {
            (true, _) => Presence::There,
            (false, true) => Presence::Gone,
            (false, false) => Presence::Unknown,
        };
        let beyond = history::beyond(ended, presence, keep, now);
        beyond.into_iter().map(|object| ObjectWrite::Delete {
            name: object.name.clone(),
            uid: object.uid.clone(),
        })
    }
}

fn spec(node: &NodeName, episode: &Episode, selector: &str) -> NodeMaintenanceSpec {
    NodeMaintenanceSpec {
        node_name: node.to_string(),
        reason: Some(episode.trigger_sentence()),
        action: MaintenanceAction::HostMaintenance,
        origin: MaintenanceOrigin::Episode,
        selector: Some(selector.to_owned()),
        ..NodeMaintenanceSpec::default()
    }
}

/// The write that changes the status of an object to `wanted`; `None` if it is equal.
fn status_of(object: &NodeMaintenanceFacts, wanted: &NodeMaintenanceStatus) -> Option<ObjectWrite> {
    Some(ObjectWrite::Status {
        name: object.name.clone(),
        uid: object.uid.clone(),
        changes: difference(&object.status, wanted)?,
    })
}

/// The merge patch from `is` to `wanted`; `None` if they are equal.
fn difference(is: &NodeMaintenanceStatus, wanted: &NodeMaintenanceStatus) -> Option<Value> {
    if is == wanted {
        return None;
    }
    let fields = |status| match serde_json::to_value(status) {
        Ok(Value::Object(fields)) => fields,
        // Plain structs of strings and numbers are objects.
        Ok(_) | Err(_) => serde_json::Map::new(),
    };
    let (is, mut changes) = (fields(is), fields(wanted));
    for (name, value) in is {
        if changes.get(&name) == Some(&value) {
            changes.remove(&name);
        } else {
            changes.entry(name).or_insert(Value::Null);
        }
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

#[cfg(test)]
mod tests;
