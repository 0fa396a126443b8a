//! Shows each episode in a NodeMaintenance object of its own, and each request in its own: what people look at, and the
//! second copy of the record.
//!
//! Nothing is remembered that an object could say: from what is seen of a node and what its object says follows what it
//! ought to say, and the difference is [`due`](Objects::due) to be written. So a write that was lost, or an object that
//! somebody deleted, is made good by the next look.

mod history;
mod status;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::Notify;

use crate::actor::tell::{Tell, Told};
use crate::cluster::maintenances::kind::{
    MaintenanceAction, NodeMaintenanceSpec, NodeMaintenanceStatus, Origin,
};
use crate::cluster::maintenances::name_of;
use crate::cluster::update::{Maintenance, Maintenances, Role};
use crate::ids::{EpisodeId, NodeName, NodeUid, RequestUid};
use crate::maintenance::decide::Transition;
use crate::maintenance::episode::{Ended, Episode, Record};
use crate::maintenance::observed::{DrainReport, Hearing, Pictures, Sight, VmSeen};
use crate::maintenance::request::RequestMark;
use crate::maintenance::waiting::WaitingOn;

use history::Presence;

/// How old a request is before it is said that no node of its name is known. The Node may be younger than the request, or
/// another controller's.
const NOBODYS: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);

/// How long the end of an episode that this process saw waits for its actor to tell how it ended: the watch may tell of the
/// Node's last write before the actor has read its answer. That is milliseconds, and seconds in a process that is short of
/// processor; whoever ended the episode without the actor, a person's hand or another replica, is not waited for long.
const WORD: jiff::SignedDuration = jiff::SignedDuration::from_secs(15);

/// How many objects are told at a time that stand where they stood, and only count on: pods that have gone, the words of a
/// wait. Looks at what is due are a second apart, so who watches one drain sees it each second, and of twenty each in ten. Told
/// after every round, those of 200 nodes were ten writes a second of up to a hundred names each, beside 25 evictions.
const COUNTED: usize = 2;

/// One write that is due.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// An episode has no object yet.
    Create {
        /// Its name.
        name: String,
        /// What it is to say.
        spec: Box<NodeMaintenanceSpec>,
    },
    /// An object's status does not say what is so.
    Status {
        /// The name of the object.
        name: String,
        /// Which of the objects of that name.
        uid: RequestUid,
        /// What of it is to change: a merge patch.
        changes: Value,
    },
    /// An ended episode beyond those that are kept.
    Delete {
        /// The name of the object.
        name: String,
        /// Which of the objects of that name.
        uid: RequestUid,
    },
}

impl Write {
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
pub struct Objects {
    trace_url: Option<String>,
    /// The label selector of our nodes.
    selector: String,
    /// How many ended episodes of a node are kept at the most.
    history: usize,
    clock: fn() -> Timestamp,
    wake: Notify,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    nodes: BTreeMap<NodeName, OfNode>,
    objects: BTreeMap<String, Maintenance>,
    /// What was told of objects since nodes were last looked at. It counts from the next look: a request that is there and
    /// that its node does not show yet would be taken for a fulfilled one.
    told: Vec<Maintenances>,
    /// Everything there is has been told, so that what is not here is not there.
    is_complete: bool,
    /// All Nodes have been told, so that one that is not here is gone. As with objects, it counts from the next look.
    are_nodes_told: bool,
    nodes_told: bool,
}

/// What is seen of a node.
#[derive(Clone, Debug, Default)]
struct OfNode {
    uid: Option<NodeUid>,
    episode: Option<Box<Episode>>,
    request: Option<RequestMark>,
    drain: Option<DrainReport>,
    /// Both worlds are heard and its VM has been looked up, so that an episode that is not seen is over.
    is_known: bool,
    waits: Option<WaitingOn>,
    /// The phases of its episode that were begun since this process began, each with its time: some are over before
    /// anything of them is written.
    phases: Vec<(&'static str, Timestamp)>,
    /// The most pods that its drain has seen: on the node, and in the way.
    most: Option<(usize, usize)>,
    /// How its latest episode ended.
    ended: Option<(Box<Episode>, Ended, Timestamp)>,
    /// That one was over before it had an object, and is to have one all the same.
    owes_ended: bool,
    /// The latest episode that was seen, and since when it is not.
    left: Option<(EpisodeId, Timestamp)>,
}

impl Objects {
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

    /// Looks at what actors are about to be shown.
    pub fn show(&self, pictures: &Pictures) {
        let now = (self.clock)();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let told = std::mem::take(&mut state.told);
        let mut is_changed = !told.is_empty();
        for update in told {
            state.apply(update);
        }
        state.are_nodes_told = state.nodes_told;
        state.nodes.retain(|name, _| pictures.keeps(name));
        for (name, sight) in &pictures.sights {
            let of_node = state.nodes.entry(name.clone()).or_default();
            is_changed |= of_node.look(sight, now);
        }
        drop(state);
        if is_changed {
            self.wake.notify_one();
        }
    }

    /// Takes what is told of objects, for the next [`Self::show`].
    pub fn told(&self, update: &Maintenances) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.told.push(update.clone());
    }

    /// Takes whether all Nodes have been told, for the next [`Self::show`].
    pub fn told_nodes(&self, all: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.nodes_told = all;
        // What was looked at before may have been half of them.
        state.are_nodes_told &= all;
    }

    /// Takes the answer to a write of what was due.
    pub fn wrote(&self, object: &Maintenance) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.apply(Maintenances::Seen(Box::new(object.clone())));
    }

    /// The newest of the objects that are wanted, at most `most`, for those who show them.
    pub fn newest(&self, most: usize, is_wanted: impl Fn(&Maintenance) -> bool) -> Vec<Maintenance> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted: Vec<&Maintenance> = state.objects.values().filter(|it| is_wanted(it)).collect();
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
    pub fn due(&self, is_held: impl Fn(&str) -> bool) -> Vec<Write> {
        let now = (self.clock)();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_complete {
            return Vec::new();
        }
        let mut due = Vec::new();
        for (node, seen) in state.nodes.iter().filter(|(_, seen)| seen.is_known) {
            let ended = seen.ended.as_ref().filter(|_| seen.owes_ended);
            let ended = ended.map(|(episode, _, _)| &**episode);
            for episode in seen.episode.as_deref().into_iter().chain(ended) {
                let name = name_of(node, &episode.id);
                if !state.objects.contains_key(&name) && !is_held(&name) {
                    let spec = Box::new(spec(node, episode, &self.selector));
                    due.push(Write::Create { name, spec });
                }
            }
        }
        let mut counted = Vec::new();
        let open = state.objects.values().filter(|object| !object.is_over);
        for object in open.filter(|object| !is_held(&object.name)) {
            let wanted = match &object.role {
                Role::Episode { .. } => state.of_episode(object, now),
                Role::Request(asked) => state.of_request(object, asked, now),
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
        due.sort_by_key(Write::weight);
        due
    }
}

impl Tell for std::sync::Arc<Objects> {
    fn tell(&self, node: &NodeName, told: Told<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { nodes, objects, .. } = &mut *state;
        let of_node = nodes.entry(node.clone()).or_default();
        match told {
            Told::Recorded {
                before,
                transition,
                wrote,
                ..
            } => {
                let Transition { ended, record, .. } = transition;
                if transition.is_bookkeeping(before) {
                    return;
                }
                of_node.waits = None;
                if before.episode().is_none() {
                    of_node.phases.clear();
                }
                if let Some(episode) = record.episode() {
                    let begun = (episode.phase.name(), episode.since);
                    if of_node.phases.last() != Some(&begun) && of_node.phases.len() < status::PHASES {
                        of_node.phases.push(begun);
                    }
                }
                if let (Some(ended), Some(episode)) = (ended, before.episode()) {
                    of_node.owes_ended = !objects.contains_key(&name_of(node, &episode.id));
                    of_node.ended = Some((Box::new(episode.clone()), *ended, wrote.1));
                }
            }
            Told::Waits { on, .. } => of_node.waits = Some(on.clone()),
            Told::NotRecorded { .. } | Told::Asks { .. } => return,
        }
        drop(state);
        self.wake.notify_one();
    }
}

impl OfNode {
    fn look(&mut self, sight: &Sight, now: Timestamp) -> bool {
        let seen = &sight.seen;
        let is_known = seen.hearing == Hearing::Both && seen.vm != VmSeen::NotLookedUp;
        let uid = seen.node.as_ref().map(|node| &node.uid);
        let request = seen.request.as_ref().map(|request| &request.mark);
        let episode = sight.record.episode();
        if self.episode.as_ref().map(|it| &it.id) != episode.map(|it| &it.id) {
            self.most = None;
            if let Some(before) = &self.episode {
                self.left = Some((before.id.clone(), now));
            }
        }
        if let Some(report) = &seen.drain {
            let (listed, left) = self.most.unwrap_or_default();
            self.most = Some((listed.max(report.listed), left.max(report.left.len())));
        }
        let is_same = self.is_known == is_known
            && self.uid.as_ref() == uid
            && self.request.as_ref() == request
            && self.episode.as_deref() == episode
            && self.drain == seen.drain;
        if is_same {
            return false;
        }
        self.is_known = is_known && !matches!(sight.record, Record::Unreadable { .. });
        self.uid = uid.cloned();
        self.request = request.cloned();
        self.episode = episode.map(|episode| Box::new(episode.clone()));
        self.drain.clone_from(&seen.drain);
        true
    }

    /// An episode is seen to be over, and how it ended may still be told.
    fn awaits_word(&self, now: Timestamp) -> bool {
        self.left.as_ref().is_some_and(|(left, since)| {
            let is_told = self
                .ended
                .as_ref()
                .is_some_and(|(episode, _, _)| episode.id == *left);
            !is_told && now.duration_since(*since) < WORD
        })
    }
}

impl State {
    fn apply(&mut self, update: Maintenances) {
        match update {
            Maintenances::Reset => {
                self.objects.clear();
                self.is_complete = false;
            }
            Maintenances::Seen(object) => {
                let older = self.objects.get(&object.name).is_some_and(|known| {
                    known.uid == object.uid && known.resource_version > object.resource_version
                });
                if let Some(of_node) = self.nodes.get_mut(&object.node)
                    && let Some((episode, _, _)) = &of_node.ended
                    && name_of(&object.node, &episode.id) == object.name
                {
                    of_node.owes_ended = false;
                }
                if !older {
                    self.objects.insert(object.name.clone(), *object);
                }
            }
            Maintenances::Gone { name, uid } => {
                if self.objects.get(&name).is_some_and(|known| known.uid == uid) {
                    self.objects.remove(&name);
                }
            }
            Maintenances::Settled => self.is_complete = true,
            Maintenances::Lost { .. } => self.is_complete = false,
        }
    }

    /// What the object of an episode is to say; `None` while that is not known.
    fn of_episode(&self, object: &Maintenance, now: Timestamp) -> Option<NodeMaintenanceStatus> {
        let seen = self.nodes.get(&object.node)?;
        if !seen.is_known {
            return None;
        }
        let is_its = |episode: &Episode| name_of(&object.node, &episode.id) == object.name;
        let status = match (&seen.episode, &seen.ended) {
            (Some(episode), _) if is_its(episode) => status::of(object, seen, episode, now),
            (_, Some((episode, ended, at))) if is_its(episode) => {
                status::ended(object, seen, Some(episode), Some(*ended), *at)
            }
            _ if seen.awaits_word(now) => return None,
            // It ended while nobody looked.
            _ => status::ended(object, seen, None, None, now),
        };
        Some(status)
    }

    /// What a request's own object is to say; `None` while that is not ours to say.
    fn of_request(
        &self,
        object: &Maintenance,
        asked: &crate::cluster::update::Asked,
        now: Timestamp,
    ) -> Option<NodeMaintenanceStatus> {
        let Some(seen) = self
            .nodes
            .get(&object.node)
            .filter(|seen| seen.uid.is_some() || seen.episode.is_some())
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
            .filter(|it| it.node == object.node && !it.is_over && matches!(it.role, Role::Request(_)))
            .min_by_key(|it| (it.created_at, &it.name));
        if let Some(first) = first.filter(|first| first.uid != object.uid) {
            let why = format!("NodeMaintenance {} was there first", first.name);
            return Some(status::waiting(object, "WaitsItsTurn", &why, now));
        }
        Some(match (&seen.request, &seen.episode) {
            (Some(_), Some(episode)) => status::of_request(object, asked.action, seen, episode, now),
            (Some(_), None) => {
                let why = seen.waits.as_ref().map_or_else(String::new, ToString::to_string);
                status::waiting(object, "NotBegun", &why, now)
            }
            // The oldest request that does not count is one that the Node says is fulfilled.
            (None, None) if seen.is_known && !seen.awaits_word(now) => {
                let (gave_up, at) = match &seen.ended {
                    Some((episode, _, at)) => (episode.gave_up.clone(), *at),
                    None => (self.gave_up(object), now),
                };
                status::fulfilled(object, gave_up.as_deref(), at)
            }
            (None, _) => return None,
        })
    }

    /// Why the latest episode of a request's node gave up, as its object says.
    fn gave_up(&self, request: &Maintenance) -> Option<String> {
        let latest = self
            .objects
            .values()
            .filter(|it| it.node == request.node && matches!(it.role, Role::Episode { .. }))
            .max_by_key(|it| (it.created_at, &it.name))?;
        let record: Value = serde_json::from_str(latest.status.record.as_deref()?).ok()?;
        Some(record.get("gaveUp")?.as_str()?.to_owned())
    }

    /// The ended episodes that are not to be kept.
    fn beyond(&self, keep: usize, now: Timestamp) -> impl Iterator<Item = Write> {
        let ended = self
            .objects
            .values()
            .filter(|object| object.is_over && matches!(object.role, Role::Episode { .. }));
        let presence = |node: &NodeName| match (self.nodes.contains_key(node), self.are_nodes_told) {
            (true, _) => Presence::There,
            (false, true) => Presence::Gone,
            (false, false) => Presence::Unknown,
        };
        let beyond = history::beyond(ended, presence, keep, now);
        beyond.into_iter().map(|object| Write::Delete {
            name: object.name.clone(),
            uid: object.uid.clone(),
        })
    }
}

fn spec(node: &NodeName, episode: &Episode, selector: &str) -> NodeMaintenanceSpec {
    let trigger = &episode.trigger;
    let reason = match (&trigger.request, &trigger.task) {
        (Some(request), _) => format!("NodeMaintenance {}", request.name),
        (None, Some(task)) => format!("ESXi host {} is entering maintenance ({task})", episode.host),
        (None, None) => match &trigger.stray_of {
            Some(ended) => format!("The VM went off after episode {ended} had ended"),
            None => format!("ESXi host {} is in maintenance mode", episode.host),
        },
    };
    NodeMaintenanceSpec {
        node_name: node.to_string(),
        reason: Some(reason),
        action: MaintenanceAction::HostMaintenance,
        origin: Origin::Episode,
        selector: Some(selector.to_owned()),
        ..NodeMaintenanceSpec::default()
    }
}

/// The write by which an object comes to say what is wanted of it, unless it does.
fn status_of(object: &Maintenance, wanted: &NodeMaintenanceStatus) -> Option<Write> {
    Some(Write::Status {
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
