//! Computes the due writes: an object for each episode, which holds a copy of its record, and the status of each request.
//!
//! The wanted status of an object follows from the status of its node and from the object; the difference is
//! [`due`](StatusReconciler::due). A lost write or a deleted object is repaired by the next pass.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;

use super::api::name_of;
use super::conditions::Progress;
use super::due_write::{ForeignWrite, ObjectWrite, status_of};
use super::foreign;
use super::history::{self, Presence};
use super::kind::{MaintenanceAction, MaintenanceOrigin, NodeMaintenanceSpec, NodeMaintenanceStatus};
use super::status;
use crate::board::NodeBoard;
use crate::observer::{ConnectionState, Observer, WatchedApi};
use haulout_core::facts::foreign_maintenance::{ForeignApi, ForeignMaintenance};
use haulout_core::ids::NodeName;
use haulout_core::inventory::Fact;
use haulout_core::maintenance::episode::Episode;
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::node_event::NodeEvent;
use haulout_core::status::story::Beat;
use haulout_core::status::{NodeEntry, NodeStatuses, StatusBoard, Wait, WaitKind, trace_url};
use haulout_kubernetes::update::{
    KubernetesUpdate, NodeMaintenanceFacts, NodeMaintenanceRole, NodeMaintenanceUpdate, RequestAction,
};

/// The age of a request at which its node is reported as unknown. The Node may be created later, or belong to another controller.
const UNKNOWN_NODE_AFTER: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);

/// How long an ended episode waits for the event of its actor with its last record: the watch may show the last write first. There is
/// no event for an episode that a person or another process ended.
const RESULT_WAIT: jiff::SignedDuration = jiff::SignedDuration::from_secs(15);

/// How many objects per pass are written for progress only (pods that are left, the text of a wait), to limit the writes of many
/// drains. Passes are a second apart.
const PROGRESS_WRITES: usize = 2;

/// Computes the due writes.
#[derive(Debug)]
pub struct StatusReconciler {
    trace_url: Option<String>,
    /// The label selector of our nodes.
    selector: String,
    /// The maximum number of kept ended episodes of a node.
    history: usize,
    board: NodeBoard,
    clock: fn() -> Timestamp,
    wake: Notify,
    state: Mutex<ReconcilerState>,
}

#[derive(Debug, Default)]
struct ReconcilerState {
    /// The revision of the board of all nodes that the last pass has seen.
    revision: u64,
    objects: BTreeMap<String, NodeMaintenanceFacts>,
    /// Nodes whose latest episode ended before its object was created; it is created nevertheless.
    ended_without_object: BTreeSet<NodeName>,
    /// Updates of objects since the last [`StatusReconciler::built`]. They are applied with the next one, because a new request that
    /// the status of its node does not show yet would count as fulfilled.
    pending: Vec<(Option<ForeignApi>, NodeMaintenanceUpdate)>,
    /// The kinds whose objects are synced; `None` is Haulout's own.
    complete: BTreeSet<Option<ForeignApi>>,
    /// The Nodes are synced, as of the last [`StatusReconciler::built`].
    are_nodes_synced: bool,
    /// The Nodes are synced now.
    nodes_synced: bool,
}

impl StatusReconciler {
    /// For the nodes of `selector`, with links to traces by `trace_url`, and `history` ended episodes per node.
    pub fn new(
        selector: String,
        trace_url: Option<String>,
        history: u32,
        board: NodeBoard,
        clock: fn() -> Timestamp,
    ) -> Self {
        Self {
            trace_url,
            selector,
            history: usize::try_from(history).unwrap_or(usize::MAX),
            board,
            clock,
            wake: Notify::new(),
            state: Mutex::default(),
        }
    }

    /// Waits until a write may be due.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }

    /// Queues an update of objects of `api` (`None`: of Haulout's own) for the next [`Self::built`].
    pub fn queue(&self, api: Option<ForeignApi>, update: &NodeMaintenanceUpdate) {
        self.state.lock().pending.push((api, update.clone()));
    }

    /// Sets whether the Nodes are synced, for the next [`Self::built`].
    fn set_nodes_synced(&self, all: bool) {
        let mut state = self.state.lock();
        state.nodes_synced = all;
        state.are_nodes_synced &= all;
    }

    /// Processes the reply to a write.
    pub(crate) fn wrote(&self, api: Option<ForeignApi>, update: NodeMaintenanceUpdate) {
        self.state.lock().apply(api, update, &self.board.lock());
    }

    /// The newest `most` objects for which `is_wanted` is true, after those that have not ended.
    pub fn newest(
        &self,
        most: usize,
        is_wanted: impl Fn(&NodeMaintenanceFacts) -> bool,
    ) -> Vec<NodeMaintenanceFacts> {
        let state = self.state.lock();
        let mut wanted: Vec<&NodeMaintenanceFacts> =
            state.objects.values().filter(|it| is_wanted(it)).collect();
        wanted.sort_by_key(|object| {
            let has_ended = object.status.ended_at.is_some();
            (has_ended, std::cmp::Reverse((object.created_at, &object.name)))
        });
        wanted.into_iter().take(most).cloned().collect()
    }

    /// Requests another pass.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// The due writes in order: statuses with a new record, new objects, the rest. Objects for which `is_held` is true are skipped.
    /// At most [`PROGRESS_WRITES`] objects are written for progress only; if there are more, another pass follows.
    pub fn due(&self, is_held: impl Fn(&str) -> bool) -> Vec<ObjectWrite> {
        let now = (self.clock)();
        let state = self.state.lock();
        let pass = WritePass {
            state: &state,
            board: &self.board.lock(),
            now,
        };
        let mut due = Vec::new();
        if state.complete.contains(&None) {
            due.extend(pass.missing(&self.selector));
            due.extend(pass.beyond(self.history));
        }
        due.retain(|write| !is_held(write.name()));
        let mut counted = Vec::new();
        let mut is_early = false;
        let open = state.objects.values().filter(|object| !object.is_over);
        let open = open.filter(|object| state.complete.contains(&object.role.foreign_api()));
        for object in open.filter(|object| !is_held(&object.name)) {
            let write = match &object.role {
                NodeMaintenanceRole::Episode { .. } => {
                    let wanted = pass.of_episode(object);
                    wanted.and_then(|wanted| self.own(object, wanted))
                }
                NodeMaintenanceRole::Request(asked) => {
                    let wanted = pass.of_request(object, &asked.action);
                    wanted.and_then(|wanted| {
                        let requested_by = asked.requested_by.clone();
                        let wanted = NodeMaintenanceStatus {
                            requested_by,
                            ..wanted
                        };
                        self.own(object, wanted)
                    })
                }
                NodeMaintenanceRole::Foreign(_) if foreign::is_early(object, now) => {
                    is_early = true;
                    None
                }
                NodeMaintenanceRole::Foreign(foreign) => pass.of_foreign(object, foreign),
            };
            match write {
                Some((write, true)) => counted.push((object, write)),
                Some((write, false)) => due.push(write),
                None => {}
            }
        }
        // The object with the lowest resource version has waited the longest.
        counted.sort_by_key(|(object, _)| object.resource_version);
        if is_early || counted.len() > PROGRESS_WRITES {
            self.wake.notify_one();
        }
        let in_turn = counted.into_iter().take(PROGRESS_WRITES);
        due.extend(in_turn.map(|(_, write)| write));
        due.sort_by_key(ObjectWrite::weight);
        due
    }

    /// Requests another pass if a node has changed.
    fn look_at_board(&self, state: &mut ReconcilerState) {
        let revision = self.board.lock().revision();
        if std::mem::replace(&mut state.revision, revision) != revision {
            self.wake.notify_one();
        }
    }

    /// The due write of an object of ours, and whether it is for progress only.
    fn own(
        &self,
        object: &NodeMaintenanceFacts,
        mut wanted: NodeMaintenanceStatus,
    ) -> Option<(ObjectWrite, bool)> {
        if let (Some(template), Some(id)) = (&self.trace_url, &wanted.trace_id) {
            wanted.trace_url = Some(trace_url(template, id));
        }
        let write = status_of(object, &wanted)?;
        Some((write, status::is_progress(&object.status, &wanted)))
    }
}

impl Observer for StatusReconciler {
    fn observe(&self, node: &NodeName, beat: &Beat<'_>) {
        if let NodeEvent::Recorded {
            before, transition, ..
        } = beat.event
            && let (Some(_), Some(episode)) = (transition.ended, before.episode())
        {
            let mut state = self.state.lock();
            if state.objects.contains_key(&name_of(node, &episode.id)) {
                state.ended_without_object.remove(node);
            } else {
                state.ended_without_object.insert(node.clone());
            }
        }
        self.look_at_board(&mut self.state.lock());
    }

    fn connection(&self, api: WatchedApi, state: ConnectionState<'_>) {
        if api == WatchedApi::Kubernetes {
            self.set_nodes_synced(state.synced().is_ok());
        }
    }

    fn fact(&self, fact: &Fact) {
        match fact {
            Fact::Kubernetes(KubernetesUpdate::Maintenances(update)) => self.queue(None, update),
            Fact::Kubernetes(KubernetesUpdate::ForeignMaintenances(api, update)) => {
                self.queue(Some(*api), update);
            }
            Fact::Kubernetes(_) | Fact::Vsphere(_) | Fact::Effect(_) | Fact::Leadership(_) => {}
        }
    }

    fn built(&self, _statuses: &NodeStatuses) {
        let mut state = self.state.lock();
        let pending = std::mem::take(&mut state.pending);
        if !pending.is_empty() {
            self.wake.notify_one();
        }
        let board = self.board.lock();
        for (api, update) in pending {
            state.apply(api, update, &board);
        }
        drop(board);
        state.are_nodes_synced = state.nodes_synced;
        self.look_at_board(&mut state);
    }
}

/// Whether the status of the node is complete.
fn is_known(entry: &NodeEntry) -> bool {
    entry.status.as_ref().is_some_and(|status| status.is_known)
}

/// Whether an episode has ended, and the event with its last record may still come.
fn awaits_result(entry: &NodeEntry, now: Timestamp) -> bool {
    let gone = entry.gone_episode().filter(|(id, _)| entry.ending(id).is_none());
    gone.is_some_and(|(_, since)| now.duration_since(since) < RESULT_WAIT)
}

impl ReconcilerState {
    fn apply(&mut self, api: Option<ForeignApi>, update: NodeMaintenanceUpdate, board: &StatusBoard) {
        match update {
            NodeMaintenanceUpdate::Reset => {
                self.objects.retain(|_, object| object.role.foreign_api() != api);
                self.complete.remove(&api);
            }
            NodeMaintenanceUpdate::Seen(object) => {
                let known = self.objects.get(&object.name);
                let is_older = known.is_some_and(|known| object.is_before(known));
                let ending = board.nodes.get(&object.node).and_then(NodeEntry::latest_ending);
                let is_its = ending.is_some_and(|it| name_of(&object.node, &it.episode.id) == object.name);
                if is_its {
                    self.ended_without_object.remove(&object.node);
                }
                if !is_older {
                    self.objects.insert(object.name.clone(), *object);
                }
            }
            NodeMaintenanceUpdate::Answered(object) => {
                let known = self.objects.get(&object.name);
                if known.is_some_and(|known| object.is_same_or_later(known)) {
                    self.objects.insert(object.name.clone(), *object);
                }
            }
            NodeMaintenanceUpdate::Gone { name, uid } => {
                if self.objects.get(&name).is_some_and(|known| known.uid == uid) {
                    self.objects.remove(&name);
                }
            }
            NodeMaintenanceUpdate::Settled => {
                self.complete.insert(api);
            }
            NodeMaintenanceUpdate::Lost { .. } => {
                self.complete.remove(&api);
            }
        }
    }
}

/// What one pass reads.
struct WritePass<'a> {
    state: &'a ReconcilerState,
    board: &'a StatusBoard,
    now: Timestamp,
}

impl WritePass<'_> {
    /// The objects of episodes that have none yet.
    fn missing(&self, selector: &str) -> Vec<ObjectWrite> {
        let mut missing = Vec::new();
        let shown =
            |entry: &NodeEntry| is_known(entry) || self.state.are_nodes_synced && entry.status.is_some();
        for (node, entry) in self.board.nodes.iter().filter(|(_, entry)| shown(entry)) {
            let ended = entry
                .latest_ending()
                .filter(|_| self.state.ended_without_object.contains(node));
            let ended = ended.map(|ending| &ending.episode);
            for episode in entry.episode().into_iter().chain(ended) {
                let name = name_of(node, &episode.id);
                if !self.state.objects.contains_key(&name) {
                    let spec = Box::new(spec(node, episode, selector));
                    missing.push(ObjectWrite::Create { name, spec });
                }
            }
        }
        missing
    }

    /// The wanted status of an episode's object; `None` while it is unknown.
    fn of_episode(&self, object: &NodeMaintenanceFacts) -> Option<NodeMaintenanceStatus> {
        let entry = self.board.nodes.get(&object.node)?;
        let is_its = |episode: &Episode| name_of(&object.node, &episode.id) == object.name;
        // Without vCenter the status is still written, because it shows that wait, but without a new copy of the record.
        if let Some(episode) = entry.episode().filter(|episode| is_its(episode)) {
            return entry
                .status
                .as_ref()
                .map(|shown| status::of_episode(object, entry, (episode, shown.is_known), self.now));
        }
        if !is_known(entry) {
            return None;
        }
        match entry.latest_ending().filter(|ending| is_its(&ending.episode)) {
            Some(ending) => Some(status::of_ended_episode(object, ending)),
            None if awaits_result(entry, self.now) => None,
            None => {
                let last = entry.last_episode();
                let last = last.filter(|last| name_of(&object.node, &last.episode.id) == object.name);
                let (how, at) = last.map_or((None, self.now), |last| (last.ended, last.at));
                Some(status::of_unobserved_end(object, how, at))
            }
        }
    }

    /// The wanted status of a request's object; `None` while it is unknown or another controller may handle it.
    fn of_request(
        &self,
        object: &NodeMaintenanceFacts,
        action: &RequestAction,
    ) -> Option<NodeMaintenanceStatus> {
        let entry = self.board.nodes.get(&object.node);
        let status = entry.and_then(|entry| entry.status.as_ref());
        let seen = entry.zip(status);
        let Some((entry, status)) =
            seen.filter(|(it, status)| status.node.is_some() || it.episode().is_some())
        else {
            return self.of_unknown_node(object);
        };
        // The same order as in `Inventory::request`, which chooses the request that the node serves.
        let first = self
            .state
            .objects
            .values()
            .filter(|it| it.node == object.node && !it.is_over && it.role.asked().is_some())
            .min_by_key(|it| (it.created_at, &it.name));
        if let Some(first) = first.filter(|first| first.uid != object.uid) {
            let why = format!("NodeMaintenance {}, which was there first", first.name);
            let wait = status::other_wait("WaitsItsTurn", why, self.now);
            return Some(status::of_waiting_request(
                object,
                wait,
                Progress::Running,
                self.now,
            ));
        }
        let not_due = status.request.as_ref().and_then(|request| {
            let episode = entry.episode().map(|episode| &**episode);
            request.awaits(episode, self.now)
        });
        Some(match (&status.request, entry.episode()) {
            // The episode is shown only if the request is due or queued in it. Until then it runs for another reason.
            (Some(request), Some(episode)) if not_due.is_none() || request.is_queued_in(episode) => {
                status::of_request(object, action, entry, episode, self.now)
            }
            (Some(_), _) => return self.not_begun(object, entry, not_due),
            // The node is known, and shows neither this request nor an episode: its actor has recorded it as fulfilled.
            (None, None) if status.is_known && !awaits_result(entry, self.now) => {
                let ending = entry.latest_ending();
                let (gave_up, at) = match ending {
                    Some(ending) => (ending.episode.relocation_failure.clone(), ending.at),
                    None => (self.gave_up(object), self.now),
                };
                let episode = ending.map(|ending| &*ending.episode);
                status::of_fulfilled_request(object, episode, gave_up.as_deref(), at)
            }
            (None, _) => return None,
        })
    }

    /// The status of a request for a node that is not watched. Another controller may know the node, and has priority then.
    fn of_unknown_node(&self, object: &NodeMaintenanceFacts) -> Option<NodeMaintenanceStatus> {
        let is_unknown = object.status.conditions.is_empty()
            && object.status.phase.is_none()
            && self.now.duration_since(object.created_at) > UNKNOWN_NODE_AFTER;
        is_unknown.then(|| {
            let node = &object.node;
            let why = format!("no Node {node} is among those that Haulout watches");
            let on = format!("a Node {node} among those that Haulout watches");
            let wait = status::other_wait(status::NODE_NOT_FOUND, on, self.now);
            status::of_waiting_request(object, wait, Progress::Stalled(&why), self.now)
        })
    }

    /// The status of a request whose episode has not begun; `None` while its actor has not said what it waits for.
    fn not_begun(
        &self,
        object: &NodeMaintenanceFacts,
        entry: &NodeEntry,
        not_due: Option<WaitingOn>,
    ) -> Option<NodeMaintenanceStatus> {
        let not_due = not_due.map(|on| Wait { on, since: self.now });
        let wait = not_due.as_ref().or(entry.waiting_on())?;
        let why = wait.on.to_string();
        let progress = match wait.on.kind() == WaitKind::InvalidWindow {
            true => Progress::Stalled(&why),
            false => Progress::Running,
        };
        Some(status::of_waiting_request(
            object,
            wait.written(&object.node),
            progress,
            self.now,
        ))
    }

    /// The due write of an object of another project, and whether it is for progress only.
    fn of_foreign(
        &self,
        object: &NodeMaintenanceFacts,
        foreign: &ForeignMaintenance,
    ) -> Option<(ObjectWrite, bool)> {
        let wanted = match &foreign.asked {
            Ok(asked) => {
                let status = self.of_request(object, &asked.action)?;
                foreign::status_of(foreign, object, &status, self.now)
            }
            Err(why) => foreign::refused(foreign, object, why, self.now),
        };
        let is_due = wanted != foreign.status && !foreign.has_operator;
        let is_progress = foreign::is_progress(&foreign.status, &wanted);
        let write = || ForeignWrite {
            key: object.name.clone(),
            origin: foreign.origin.clone(),
            name: foreign.name.clone(),
            uid: object.uid.clone(),
            status: wanted,
            at: self.now,
        };
        is_due.then(|| (ObjectWrite::Foreign(Box::new(write())), is_progress))
    }

    /// Why the latest episode of a request's node gave up, from the record on its object.
    fn gave_up(&self, request: &NodeMaintenanceFacts) -> Option<String> {
        let latest = self
            .state
            .objects
            .values()
            .filter(|it| it.node == request.node && matches!(it.role, NodeMaintenanceRole::Episode { .. }))
            .max_by_key(|it| (it.created_at, &it.name))?;
        let record: Value = serde_json::from_str(latest.status.record.as_deref()?).ok()?;
        Some(record.get("gaveUp")?.as_str()?.to_owned())
    }

    /// The ended episodes to delete.
    fn beyond(&self, keep: usize) -> impl Iterator<Item = ObjectWrite> {
        let ended =
            self.state.objects.values().filter(|object| {
                object.is_over && matches!(object.role, NodeMaintenanceRole::Episode { .. })
            });
        let is_there = |node: &NodeName| self.board.nodes.contains_key(node);
        let presence = |node: &NodeName| match (is_there(node), self.state.are_nodes_synced) {
            (true, _) => Presence::There,
            (false, true) => Presence::Gone,
            (false, false) => Presence::Unknown,
        };
        let beyond = history::beyond(ended, presence, keep, self.now);
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

#[cfg(test)]
mod tests;
