//! The statuses of all nodes, with their history in this process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::node_event::NodeEvent;
use super::story::Beat;
use super::{NodeStatus, NodeStatuses, PhaseKind, WaitKind};
use crate::facts::node_maintenance::WaitStatus;
use crate::ids::{EpisodeId, NodeName};
use crate::maintenance::decide::Transition;
use crate::maintenance::episode::{Episode, EpisodeResult, Record};
use crate::maintenance::record::LastEpisode;
use crate::maintenance::waiting::WaitingOn;

/// The maximum number of kept waits of an episode.
pub(super) const SPANS: usize = 100;

/// The maximum number of kept steps of an episode, the latest ones.
const STEPS: usize = 40;

/// The statuses of all nodes.
#[derive(Debug, Default)]
pub struct StatusBoard {
    pub nodes: BTreeMap<NodeName, NodeEntry>,
    revision: u64,
}

/// The status and history of one node.
#[derive(Debug, Default)]
pub struct NodeEntry {
    /// Its status; `None` until it has been observed.
    pub status: Option<Arc<NodeStatus>>,
    pub latest: Option<EpisodeHistory>,
    /// The host on which vCenter last showed its VM.
    pub last_host: Option<String>,
    wait: Option<Wait>,
    ended: Option<EpisodeEnd>,
    gone: Option<(EpisodeId, Timestamp)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    pub on: WaitingOn,
    /// Since when it waits for something of this kind.
    pub since: Timestamp,
}

impl Wait {
    /// The wait of `node` as it is written to its NodeMaintenance, and shown.
    pub fn written(&self, node: &NodeName) -> WaitStatus {
        let deadline = self.on.deadline();
        WaitStatus {
            reason: self.on.kind().variant().to_owned(),
            message: self.on.to_string(),
            since: format!("{:.3}", self.since),
            deadline: deadline.map(|deadline| format!("{:.0}", deadline.at)),
            then: deadline.map(|deadline| deadline.then.to_owned()),
            next_step: self.on.next_step(node),
        }
    }
}

/// The history of one episode in this process.
#[derive(Debug)]
pub struct EpisodeHistory {
    /// Its latest record.
    pub episode: Arc<Episode>,
    pub waits: Vec<StatusSpan<WaitKind>>,
    pub steps: VecDeque<EpisodeStep>,
    /// The maximum number of pods on the node, and of blocking pods.
    pub most: Option<(usize, usize)>,
}

/// What was told of an episode, in the words of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EpisodeStep {
    pub at: Timestamp,
    pub text: String,
}

#[derive(Clone, Debug)]
pub struct EpisodeEnd {
    /// Its last record.
    pub episode: Arc<Episode>,
    pub how: EpisodeResult,
    pub at: Timestamp,
}

/// A phase or a wait, with its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusSpan<Kind> {
    /// The kind of the phase or wait.
    pub kind: Kind,
    /// When it began.
    pub from: Timestamp,
    /// When it ended; `None` while it lasts.
    pub to: Option<Timestamp>,
}

impl StatusBoard {
    /// It grows with each change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Processes new statuses.
    pub fn update_statuses(&mut self, statuses: &NodeStatuses, now: Timestamp) {
        let before = self.nodes.len();
        self.nodes.retain(|name, _| statuses.contains_key(name));
        let mut is_changed = before != self.nodes.len();
        for (name, status) in statuses {
            is_changed |= self
                .nodes
                .entry(name.clone())
                .or_default()
                .update_status(status, now);
        }
        self.revision += u64::from(is_changed);
    }

    /// Processes what the actor of `node` tells at `now`.
    pub fn tell(&mut self, node: &NodeName, beat: &Beat<'_>, now: Timestamp) {
        let is_shown = match beat.event {
            NodeEvent::Recorded { .. } => beat.is_new,
            NodeEvent::Asks { effect, .. } => !effect.kind().is_routine(),
            NodeEvent::Waits { .. } | NodeEvent::NotRecorded { .. } | NodeEvent::Forecasts { .. } => true,
        };
        if is_shown {
            let entry = self.nodes.entry(node.clone()).or_default();
            entry.tell(beat, now);
            self.revision += 1;
        }
    }
}

impl NodeEntry {
    /// The current episode.
    pub fn episode(&self) -> Option<&Arc<Episode>> {
        self.status.as_ref()?.record.shared()
    }

    pub fn waiting_on(&self) -> Option<&Wait> {
        // The wait may be older than the status.
        let is_idle = self.status.as_ref().is_some_and(|status| status.is_idle);
        self.wait.as_ref().filter(|_| !is_idle)
    }

    /// The end of this episode, where this process observed it.
    pub fn ending(&self, id: &EpisodeId) -> Option<&EpisodeEnd> {
        self.ended.as_ref().filter(|ended| ended.episode.id == *id)
    }

    /// The latest end that this process observed.
    pub fn latest_ending(&self) -> Option<&EpisodeEnd> {
        self.ended.as_ref()
    }

    /// How this episode ended and when: as this process observed it, or as its Node says.
    pub fn result_of(&self, id: &EpisodeId) -> Option<(EpisodeResult, Timestamp)> {
        let named = || {
            let last = self.last_episode().filter(|last| last.episode.id == *id)?;
            Some((last.ended?, last.at))
        };
        let observed = self.ending(id).map(|ending| (ending.how, ending.at));
        observed.or_else(named)
    }

    /// The ended episode that its Node names.
    pub fn last_episode(&self) -> Option<&LastEpisode> {
        let node = self.status.as_ref()?.node.as_ref()?;
        node.last_episode.as_deref()
    }

    /// The latest episode that is no longer on the node, and since when.
    pub fn gone_episode(&self) -> Option<(&EpisodeId, Timestamp)> {
        self.gone.as_ref().map(|(id, at)| (id, *at))
    }

    fn tell(&mut self, beat: &Beat<'_>, now: Timestamp) {
        match beat.event {
            NodeEvent::Recorded {
                before, transition, ..
            } => {
                self.recorded(before, transition, beat.at);
                self.step(beat.at, beat.line());
            }
            NodeEvent::Waits { on, .. } => {
                self.waits(on, beat.at, now);
                if self.goes_on() {
                    self.step(now, beat.line());
                }
            }
            NodeEvent::Asks { .. } | NodeEvent::NotRecorded { .. } | NodeEvent::Forecasts { .. } => {
                self.step(now, beat.line());
            }
        }
    }

    /// Whether the latest episode has not ended.
    fn goes_on(&self) -> bool {
        let latest = self.latest.as_ref();
        latest.is_some_and(|latest| self.ending(&latest.episode.id).is_none())
    }

    /// Adds a step to the latest episode, if any.
    fn step(&mut self, at: Timestamp, text: String) {
        let Some(latest) = &mut self.latest else { return };
        if latest.steps.len() == STEPS {
            latest.steps.pop_front();
        }
        latest.steps.push_back(EpisodeStep { at, text });
    }

    fn update_status(&mut self, status: &Arc<NodeStatus>, now: Timestamp) -> bool {
        if self.status.as_ref() == Some(status) {
            return false;
        }
        if status.is_idle {
            self.wait = None;
        }
        if let Some((host, _)) = status.host() {
            self.last_host = Some(host.to_owned());
        }
        let is = status.record.shared();
        let was = self.episode().filter(|was| is.is_none_or(|is| is.id != was.id));
        if let Some(was) = was {
            self.gone = Some((was.id.clone(), now));
        }
        if let Some(episode) = is {
            self.gone.take_if(|(id, _)| *id == episode.id);
            self.follow(episode);
        }
        if let (Some(latest), Some(pods), Some(_)) = (&mut self.latest, &status.pods, is) {
            let (listed, left) = latest.most.unwrap_or_default();
            latest.most = Some((listed.max(pods.listed), left.max(pods.left.len())));
        }
        self.status = Some(Arc::clone(status));
        true
    }

    fn recorded(&mut self, before: &Record, transition: &Transition, at: Timestamp) {
        self.wait = None;
        if let Some(episode) = transition.record.shared().or(before.shared()) {
            self.follow(episode);
        }
        if let Some(latest) = &mut self.latest {
            close(&mut latest.waits, at);
            if let (Some(how), Some(episode)) = (transition.ended, before.shared()) {
                let episode = Arc::clone(episode);
                self.ended = Some(EpisodeEnd { episode, how, at });
            }
        }
    }

    fn waits(&mut self, on: &WaitingOn, since: Timestamp, now: Timestamp) {
        let kind = on.kind();
        let is_same = self.wait.as_ref().is_some_and(|wait| wait.on.kind() == kind);
        let on = on.clone();
        self.wait = Some(Wait { on, since });
        let goes_on = self.goes_on();
        if let Some(latest) = self.latest.as_mut().filter(|_| goes_on && !is_same) {
            close(&mut latest.waits, now);
            push(&mut latest.waits, kind, now);
        }
    }

    /// Updates the history of an episode.
    fn follow(&mut self, episode: &Arc<Episode>) {
        if self.ending(&episode.id).is_some() {
            return;
        }
        if self
            .latest
            .as_ref()
            .is_none_or(|latest| latest.episode.id != episode.id)
        {
            self.latest = Some(EpisodeHistory {
                episode: Arc::clone(episode),
                waits: Vec::new(),
                steps: VecDeque::new(),
                most: None,
            });
        }
        let Some(latest) = &mut self.latest else { return };
        // The snapshot may be older than the last transition.
        if latest.episode.since > episode.since {
            return;
        }
        let [was, is] = [&latest.episode, episode].map(|it| it.phase.at_work().kind());
        if !was.is_before_drained() && is == PhaseKind::Draining {
            // It is drained anew.
            latest.most = None;
        }
        latest.episode = Arc::clone(episode);
    }
}

impl Episode {
    /// Its phases as its record has them, oldest first. The last one is open, unless the episode has ended.
    pub fn phase_spans(&self) -> Vec<StatusSpan<PhaseKind>> {
        let finished = &self.history.finished;
        let is_closed = finished.last().is_some_and(|last| last.since == self.since);
        let open = (!is_closed).then(|| (self.phase.kind(), self.since, None));
        let closed = finished
            .iter()
            .map(|it| (it.phase.kind(), it.since, Some(it.until)));
        let mut spans: Vec<StatusSpan<PhaseKind>> = Vec::new();
        for (kind, from, to) in closed.chain(open) {
            match spans.last_mut().filter(|last| last.kind == kind) {
                // A phase that begins again.
                Some(last) => last.to = to,
                None => spans.push(StatusSpan { kind, from, to }),
            }
        }
        spans
    }
}

fn push(spans: &mut Vec<StatusSpan<WaitKind>>, kind: WaitKind, from: Timestamp) {
    if spans.len() < SPANS {
        spans.push(StatusSpan { kind, from, to: None });
    }
}

fn close(spans: &mut [StatusSpan<WaitKind>], at: Timestamp) {
    if let Some(last) = spans.last_mut() {
        last.to.get_or_insert(at);
    }
}
