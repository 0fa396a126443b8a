//! The state of the page: status of nodes and hosts, and the latest steps of each episode.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde::Serialize;

use haulout_core::ids::{EpisodeId, HostRef, NodeName};
use haulout_core::maintenance::observed::HostState;
use haulout_core::status::node_event::NodeEvent;
use haulout_core::status::{HostKind, NodeStatuses, StatusBoard, StatusSpan};

/// Steps kept per episode, the latest ones.
const STEPS: usize = 40;

/// State changes kept per host.
const HOST_CHANGES: usize = 16;

#[derive(Debug)]
pub(super) struct PageState {
    /// Why vCenter is not synced.
    pub(super) vcenter: Option<String>,
    /// Why Kubernetes is not synced.
    pub(super) kubernetes: Option<String>,
    pub(super) leadership: PageLeadership,
    /// When vCenter last answered a long poll.
    pub(super) vcenter_answered: Option<Timestamp>,
    pub(super) board: StatusBoard,
    steps: BTreeMap<NodeName, (EpisodeId, VecDeque<EpisodeStep>)>,
    pub(super) hosts: BTreeMap<HostRef, HostEntry>,
    /// The host on which vCenter last showed the VM of each node.
    last_hosts: BTreeMap<NodeName, String>,
}

/// The role of this replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "role")]
pub(crate) enum PageLeadership {
    Leads,
    /// Another replica leads.
    StandsBy {
        /// The leader, if known.
        leader: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EpisodeStep {
    pub at: Timestamp,
    pub text: String,
}

#[derive(Debug)]
pub(super) struct HostEntry {
    pub(super) name: String,
    pub(super) state: HostState,
    /// Its states, each with the time when it was first seen.
    pub(super) past: VecDeque<(Timestamp, HostKind)>,
}

impl Default for PageState {
    fn default() -> Self {
        let not_synced = |who: &str| Some(format!("{who} has not synced yet"));
        Self {
            vcenter: not_synced("vCenter"),
            kubernetes: not_synced("Kubernetes"),
            leadership: PageLeadership::Leads,
            vcenter_answered: None,
            board: StatusBoard::default(),
            steps: BTreeMap::new(),
            hosts: BTreeMap::new(),
            last_hosts: BTreeMap::new(),
        }
    }
}

/// Stores `value`; returns whether it differs.
pub(super) fn set<T: PartialEq>(target: &mut T, value: T) -> bool {
    let is_changed = *target != value;
    *target = value;
    is_changed
}

impl PageState {
    /// Whether this replica leads, and so follows vCenter.
    pub(super) fn leads(&self) -> bool {
        self.leadership == PageLeadership::Leads
    }

    /// Updates the status of nodes; returns whether the page changes.
    pub(super) fn update_statuses(&mut self, statuses: &NodeStatuses, now: Timestamp) -> bool {
        let is_changed = self.board.update_statuses(statuses, now);
        self.steps.retain(|name, _| self.board.nodes.contains_key(name));
        self.last_hosts
            .retain(|name, _| self.board.nodes.contains_key(name));
        for (name, status) in statuses {
            if let Some((host, _)) = status.host() {
                self.last_hosts.insert(name.clone(), host.to_owned());
            }
        }
        is_changed
    }

    /// The host on which vCenter last showed the VM of a node.
    pub(super) fn last_host(&self, node: &NodeName) -> Option<&String> {
        self.last_hosts.get(node)
    }

    /// Sets the hosts to show; returns whether the page changes. While vCenter is not synced, they stay as they were: without VMs the
    /// inventory does not know which hosts are ours.
    pub(super) fn show_hosts(
        &mut self,
        hosts: BTreeMap<HostRef, (String, HostState)>,
        now: Timestamp,
    ) -> bool {
        if self.vcenter.is_some() {
            return false;
        }
        let before = self.hosts.len();
        self.hosts.retain(|moref, _| hosts.contains_key(moref));
        let mut is_changed = before != self.hosts.len();
        for (moref, (name, state)) in hosts {
            let kind = state.kind();
            let host = self.hosts.entry(moref).or_insert_with(|| {
                is_changed = true;
                HostEntry {
                    name: name.clone(),
                    state: state.clone(),
                    past: VecDeque::new(),
                }
            });
            is_changed |= set(&mut host.name, name);
            is_changed |= set(&mut host.state, state);
            if host.past.back().is_none_or(|(_, last)| *last != kind) {
                if host.past.len() == HOST_CHANGES {
                    host.past.pop_front();
                }
                host.past.push_back((now, kind));
            }
        }
        is_changed
    }

    /// Applies an event of an actor; returns whether the page changes.
    pub(super) fn event(&mut self, node: &NodeName, event: NodeEvent<'_>, now: Timestamp) -> bool {
        match event {
            NodeEvent::Recorded {
                before,
                transition,
                wrote: (_, at),
                ..
            } => {
                if !self.board.recorded(node, before, transition, at) {
                    return false;
                }
                self.step(node, at, transition.words(before));
                true
            }
            NodeEvent::NotRecorded {
                transition, message, ..
            } => {
                let phase = transition.record.phase_name();
                self.step(
                    node,
                    now,
                    format!("could not write {phase} to the Node: {message}"),
                )
            }
            NodeEvent::Asks { effect, .. } => {
                let kind = effect.kind();
                !kind.is_routine() && self.step(node, now, format!("starts to {}", kind.words()))
            }
            NodeEvent::Forecasts { placement, .. } => {
                self.step(node, now, format!("after the drain: {placement}"))
            }
            NodeEvent::Waits { on, .. } => {
                self.board.waits(node, on, now);
                let entry = self.board.nodes.get(node);
                let latest = entry.and_then(|entry| entry.ending(&entry.latest.as_ref()?.episode.id));
                if latest.is_none() {
                    self.step(node, now, format!("waits for {on}"));
                }
                true
            }
        }
    }

    /// The steps of the episode `id`, newest first.
    pub(super) fn steps(&self, node: &NodeName, id: &EpisodeId) -> Vec<EpisodeStep> {
        let steps = self.steps.get(node).filter(|(of, _)| of == id);
        steps.map_or_else(Vec::new, |(_, steps)| steps.iter().rev().cloned().collect())
    }

    /// Adds a step to the latest episode, if any.
    fn step(&mut self, node: &NodeName, at: Timestamp, text: String) -> bool {
        let Some(latest) = self.board.nodes.get(node).and_then(|entry| entry.latest.as_ref()) else {
            return false;
        };
        let id = &latest.episode.id;
        let (of, steps) = self
            .steps
            .entry(node.clone())
            .or_insert_with(|| (id.clone(), VecDeque::new()));
        if of != id {
            steps.clear();
            of.clone_from(id);
        }
        if steps.len() == STEPS {
            steps.pop_front();
        }
        steps.push_back(EpisodeStep { at, text });
        true
    }
}

impl HostEntry {
    pub(super) fn spans(&self) -> impl Iterator<Item = StatusSpan<HostKind>> {
        let ends = self.past.iter().skip(1).map(|(at, _)| Some(*at)).chain([None]);
        let spans = self.past.iter().zip(ends);
        spans.map(|((from, kind), to)| StatusSpan {
            kind: *kind,
            from: *from,
            to,
        })
    }
}
