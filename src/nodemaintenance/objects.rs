//! What is due to be written: an object for each episode, which holds the second copy of its record, and the status of each
//! request.
//!
//! Nothing is remembered that an object could say. What an object ought to say follows from the status of its node and from
//! what it says; the difference is [`due`](Objects::due). A write that was lost, or an object that somebody deleted, is made
//! good by the next look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::Notify;

use super::api::name_of;
use super::history::{self, Presence};
use super::kind::{MaintenanceAction, MaintenanceOrigin, NodeMaintenanceSpec, NodeMaintenanceStatus};
use super::status;
use crate::ids::{NodeName, RequestUid};
use crate::kubernetes::update::{
    NodeMaintenanceFacts, NodeMaintenanceRole, NodeMaintenanceUpdate, RequestedMaintenance,
};
use crate::maintenance::episode::Episode;
use crate::status::observer::{NodeEvent, Observer};
use crate::status::{NodeEntry, NodeStatuses, StatusBoard};

/// How old a request is before it is said that no node of its name is known. The Node may be younger than the request, or
/// another controller's.
const NOBODYS: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);

/// How long the end of an episode waits for its actor to tell how it ended: the watch may tell of the Node's last write before
/// the actor has read its answer. An episode that a person or another replica ended is never told.
const WORD: jiff::SignedDuration = jiff::SignedDuration::from_secs(15);

/// How many objects are written at a time that stand where they stood and only count on: pods that have gone, the words of a
/// wait. Looks at what is due are a second apart. It bounds the writes of many drains at once.
const COUNTED: usize = 2;

/// One write that is due.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectWrite {
    /// An episode has no object yet.
    Create {
        name: String,
        spec: Box<NodeMaintenanceSpec>,
    },
    /// An object's status does not say what is so.
    Status {
        name: String,
        uid: RequestUid,
        /// What of it is to change: a merge patch.
        changes: Value,
    },
    /// An ended episode beyond those that are kept.
    Delete { name: String, uid: RequestUid },
}

impl ObjectWrite {
    /// The name of the object.
    pub fn name(&self) -> &str {
        match self {
            Self::Create { name, .. } | Self::Status { name, .. } | Self::Delete { name, .. } => name,
        }
    }

    /// Its place among what is due: the second copy of a record comes first, because an episode goes on from it when
    /// its Node object is deleted.
    fn weight(&self) -> u8 {
        match self {
            Self::Status { changes, .. } if changes.get("record").is_some_and(|it| !it.is_null()) => 0,
            Self::Create { .. } => 1,
            Self::Status { .. } | Self::Delete { .. } => 2,
        }
    }
}

/// Says what is due to be written.
#[derive(Debug)]
pub struct StatusReconciler {
    trace_url: Option<String>,
    /// The label selector of our nodes.
    selector: String,
    /// How many ended episodes of a node are kept at the most.
    history: usize,
    clock: fn() -> Timestamp,
    wake: Notify,
    state: Mutex<ReconcilerState>,
}

#[derive(Debug, Default)]
struct ReconcilerState {
    board: StatusBoard,
    objects: BTreeMap<String, NodeMaintenanceFacts>,
    /// Nodes whose latest episode ended before it had an object; it is to have one all the same.
    owed: BTreeSet<NodeName>,
    /// What was told of objects since nodes were last looked at. It counts from the next look: a request that is there and
    /// that its node does not show yet would be taken for a fulfilled one.
    told: Vec<NodeMaintenanceUpdate>,
    /// Everything there is has been told, so that what is not here is not there.
    is_complete: bool,
    /// All Nodes have been told, so that one that is not here is gone. As with objects, it counts from the next look.
    are_nodes_told: bool,
    nodes_told: bool,
}

impl StatusReconciler {
    /// For the nodes of `selector`: shows links to traces by `trace_url`, and keeps `history` ended episodes of each.
    pub fn new(selector: String, trace_url: Option<String>, history: u32, clock: fn() -> Timestamp) -> Self {
        Self {
            trace_url,
            selector,
            history: usize::try_from(history).unwrap_or(usize::MAX),
            clock,
            wake: Notify::new(),
            state: Mutex::default(),
        }
    }

    /// Waits until something may be due.
    pub async fn changed(&self) {
        self.wake.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, ReconcilerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes how nodes stand.
    pub fn show(&self, statuses: &NodeStatuses) {
        let now = (self.clock)();
        let mut state = self.state();
        let told = std::mem::take(&mut state.told);
        let mut is_changed = !told.is_empty();
        for update in told {
            state.apply(update);
        }
        state.are_nodes_told = state.nodes_told;
        is_changed |= state.board.show(statuses, now);
        drop(state);
        if is_changed {
            self.wake.notify_one();
        }
    }

    /// Takes what is told of objects, for the next [`Self::show`].
    pub fn told(&self, update: &NodeMaintenanceUpdate) {
        self.state().told.push(update.clone());
    }

    /// Takes whether all Nodes have been told, for the next [`Self::show`].
    pub fn told_nodes(&self, all: bool) {
        let mut state = self.state();
        state.nodes_told = all;
        // What was looked at before may have been half of them.
        state.are_nodes_told &= all;
    }

    /// Takes the answer to a write of what was due.
    pub fn wrote(&self, object: &NodeMaintenanceFacts) {
        self.state()
            .apply(NodeMaintenanceUpdate::Seen(Box::new(object.clone())));
    }

    /// The newest of the objects that are wanted, at most `most`, for those who show them.
    pub fn newest(
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

    /// Asks for another look at what is due.
    pub fn look_again(&self) {
        self.wake.notify_one();
    }

    /// What is due to be written, in the order of its weight: statuses with another record, new objects, the rest. Objects
    /// whose names `is_held` are left out. What only counts on is written in turn, [`COUNTED`] objects at a time, and asks
    /// for another look where it is more.
    pub fn due(&self, is_held: impl Fn(&str) -> bool) -> Vec<ObjectWrite> {
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
            if status::counts_on(&object.status, &wanted) {
                counted.push((object, wanted));
            } else {
                due.extend(status_of(object, &wanted));
            }
        }
        // The resource version grows with each write, so whose is the lowest has waited the longest.
        counted.sort_by_key(|(object, _)| object.resource_version);
        if counted.len() > COUNTED {
            self.wake.notify_one();
        }
        let in_turn = counted.iter().take(COUNTED);
        due.extend(in_turn.filter_map(|(object, wanted)| status_of(object, wanted)));
        let beyond = state.beyond(self.history, now);
        due.extend(beyond.filter(|write| !is_held(write.name())));
        due.sort_by_key(ObjectWrite::weight);
        due
    }
}

impl Observer for StatusReconciler {
    fn observe(&self, node: &NodeName, told: NodeEvent<'_>) {
        let now = (self.clock)();
        let mut state = self.state();
        match told {
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
                        state.owed.remove(node);
                    } else {
                        state.owed.insert(node.clone());
                    }
                }
            }
            NodeEvent::Waits { on, .. } => state.board.waits(node, on, now),
            NodeEvent::NotRecorded { .. } | NodeEvent::Asks { .. } => return,
        }
        drop(state);
        self.wake.notify_one();
    }
}

/// What an episode's object is to say is known: the node's status is complete.
fn is_known(entry: &NodeEntry) -> bool {
    entry.status.as_ref().is_some_and(|status| status.is_known)
}

/// An episode is seen to be over, and how it ended may still be told.
fn awaits_word(entry: &NodeEntry, now: Timestamp) -> bool {
    let gone = entry.gone().filter(|(id, _)| entry.ending(id).is_none());
    gone.is_some_and(|(_, since)| now.duration_since(since) < WORD)
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
                    self.owed.remove(&object.node);
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
            let ended = entry.latest_ending().filter(|_| self.owed.contains(node));
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

    /// What the object of an episode is to say; `None` while that is not known.
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
            None if awaits_word(entry, now) => None,
            // It ended while nobody looked.
            None => Some(status::ended(object, entry, None, now)),
        }
    }

    /// What a request's own object is to say; `None` while that is not ours to say.
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
            // Another controller may know the node, and then it speaks first.
            let is_nobodys =
                object.status.conditions.is_empty() && now.duration_since(object.created_at) > NOBODYS;
            let why = format!("no Node {} is among those that Haulout watches", object.node);
            return is_nobodys.then(|| status::stalled(object, "NodeNotFound", &why, now));
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
            return Some(status::waiting(object, "WaitsItsTurn", &why, now));
        }
        Some(match (&status.request, entry.episode()) {
            (Some(_), Some(episode)) => status::of_request(object, asked.action, entry, episode, now),
            (Some(_), None) => {
                let wait = entry.waiting_on();
                let why = wait.map_or_else(String::new, |wait| wait.on.to_string());
                status::waiting(object, "NotBegun", &why, now)
            }
            // The oldest request that does not count is one that the Node says is fulfilled.
            (None, None) if status.is_known && !awaits_word(entry, now) => {
                let (gave_up, at) = match entry.latest_ending() {
                    Some(ending) => (ending.episode.gave_up.clone(), ending.at),
                    None => (self.gave_up(object), now),
                };
                status::fulfilled(object, gave_up.as_deref(), at)
            }
            (None, _) => return None,
        })
    }

    /// Why the latest episode of a request's node gave up, as its object says.
    fn gave_up(&self, request: &NodeMaintenanceFacts) -> Option<String> {
        let latest = self
            .objects
            .values()
            .filter(|it| it.node == request.node && matches!(it.role, NodeMaintenanceRole::Episode { .. }))
            .max_by_key(|it| (it.created_at, &it.name))?;
        let record: Value = serde_json::from_str(latest.status.record.as_deref()?).ok()?;
        Some(record.get("gaveUp")?.as_str()?.to_owned())
    }

    /// The ended episodes that are not to be kept.
    fn beyond(&self, keep: usize, now: Timestamp) -> impl Iterator<Item = ObjectWrite> {
        let ended = self
            .objects
            .values()
            .filter(|object| object.is_over && matches!(object.role, NodeMaintenanceRole::Episode { .. }));
        let is_there = |node: &NodeName| self.board.nodes.contains_key(node);
        let presence = |node: &NodeName| match (is_there(node), self.are_nodes_told) {
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
        reason: Some(episode.set_off_by()),
        action: MaintenanceAction::HostMaintenance,
        origin: MaintenanceOrigin::Episode,
        selector: Some(selector.to_owned()),
        ..NodeMaintenanceSpec::default()
    }
}

/// The write by which an object comes to say what is wanted of it, unless it does.
fn status_of(object: &NodeMaintenanceFacts, wanted: &NodeMaintenanceStatus) -> Option<ObjectWrite> {
    Some(ObjectWrite::Status {
        name: object.name.clone(),
        uid: object.uid.clone(),
        changes: difference(&object.status, wanted)?,
    })
}

/// What has to change for `is` to become `wanted`, as a merge patch; `None` where nothing has.
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
