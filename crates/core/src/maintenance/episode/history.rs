//! What is over of an episode: its finished phases, and what happened beside them. Spans are built from it, by this process
//! or by one that takes over. Nothing is decided from it.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{DrainEnd, Episode, Phase};
use crate::ids::TaskRef;

/// The longest list of finished phases, as JSON. A phase takes about 200 bytes, so an episode of ten phases has room for long
/// reasons; a node that is parked and resumed again and again loses its oldest phases.
const MAX_FINISHED_JSON: usize = 8 * 1024;

/// The most finished phases: an episode that nothing goes wrong in has eight.
pub(in crate::maintenance) const MAX_FINISHED: usize = 64;

/// The most incidents: a controller in a crash loop must not fill its own record.
pub(in crate::maintenance) const MAX_INCIDENTS: usize = 20;

/// The history of an episode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseHistory {
    /// What was known of its surroundings when it began.
    #[serde(skip_serializing_if = "EpisodeOrigin::is_empty")]
    pub origin: EpisodeOrigin,
    /// The phases that are over, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finished: Vec<FinishedPhase>,
    /// What happened beside them, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incidents: Vec<Incident>,
    /// When the process began that wrote the record last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<Timestamp>,
}

/// What is known of an episode's surroundings when it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EpisodeOrigin {
    /// The name of the host's cluster, which no episode leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The VM's name in the inventory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The traceparent of the episode that was about the same host and ended last, whichever node's it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// It was taken over from the Python controller.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
}

/// A phase that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FinishedPhase {
    /// The phase.
    pub phase: Phase,
    /// The host that the episode was about in it, by name.
    pub host: Arc<str>,
    /// When it began.
    pub since: Timestamp,
    /// When it ended.
    pub until: Timestamp,
    /// How it ended.
    pub outcome: PhaseOutcome,
    /// What was seen of it.
    #[serde(default, skip_serializing_if = "PhaseStats::is_empty")]
    pub stats: PhaseStats,
}

/// How a phase ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PhaseOutcome {
    /// The next phase followed.
    Passed,
    /// The VM is relocated to another host.
    Relocated,
    /// The VM is powered on where DRS chooses.
    LeftToDrs,
    /// The drain timeout passed.
    TimedOut {
        /// How many pods were left.
        left_behind: usize,
    },
    /// The drain was not complete when the VM was off or the Node another one.
    Interrupted,
    /// The episode was parked.
    Parked,
    /// The episode ended.
    Ended,
}

/// What the process in which a phase ended has seen of it. What an earlier process saw is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseStats {
    /// This process began the phase. Where it did not, the times below say nothing of the phase's first part.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub from_the_start: bool,
    /// The guest was asked to shut down.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub guest_asked: bool,
    /// When the power was first to be cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_cut: Option<Timestamp>,
    /// When it was first clear that only the own host will do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_awaited: Option<Timestamp>,
    /// When the node was first Ready and its GPUs were still missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus_awaited: Option<Timestamp>,
    /// The PodDisruptionBudgets that held pods back.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub budgets: BTreeSet<String>,
    /// The traceparent of the episode whose slot was waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<Arc<str>>,
    /// Its first position in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueuePosition>,
    /// The pods of the drain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodCounts>,
    /// The latest task of vCenter that worked on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskRef>,
    /// The other hosts of the cluster and why the VM could not go there, when its host was chosen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedHost>,
}

/// A position in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuePosition {
    /// 1 for the next to be let in.
    pub position: usize,
    /// How many are let in at once.
    pub limit: u32,
    /// The setting that says so.
    pub setting: String,
}

/// The pods of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCounts {
    /// The most pods that one list showed.
    pub listed: usize,
    /// How many of the latest list are not evicted.
    pub ignored: usize,
    /// How many evictions were accepted.
    pub evicted: usize,
}

/// A host where the VM could not go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedHost {
    /// Its name.
    pub host: String,
    /// Why not, in words that follow its name.
    pub why: String,
}

/// Something that happened to an episode beside its phases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Incident {
    /// Another process took it over.
    Restarted {
        /// When that process began.
        at: Timestamp,
    },
    /// It was taken over under another leadership.
    LeaderChanged {
        /// When the record was first written under it.
        at: Timestamp,
        /// The leadership before.
        old: u64,
        /// The leadership since.
        new: u64,
    },
}

impl EpisodeOrigin {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl PhaseStats {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl PhaseOutcome {
    fn of(phase: &Phase, next: Option<&Episode>) -> Self {
        let Some(next) = next else {
            return Self::Ended;
        };
        let is_drain = *phase == Phase::Draining;
        let followed = if is_drain { Self::Interrupted } else { Self::Passed };
        match &next.phase {
            Phase::Parked { .. } => Self::Parked,
            Phase::Relocating { .. } => Self::Relocated,
            Phase::PoweringOn { by_drs: true } => Self::LeftToDrs,
            Phase::ShuttingDown(DrainEnd::TimedOut) if is_drain => Self::TimedOut {
                left_behind: next.left_behind.len(),
            },
            Phase::ShuttingDown(_) | Phase::Drained => Self::Passed,
            Phase::Queued
            | Phase::Draining
            | Phase::AwaitingHost
            | Phase::PoweringOn { by_drs: false }
            | Phase::Rejoining => followed,
        }
    }
}

impl PhaseHistory {
    /// The history of an episode that begins, written by the process that began at `writer`.
    pub(in crate::maintenance) fn begun(origin: EpisodeOrigin, writer: Timestamp) -> Self {
        Self {
            origin,
            writer: Some(writer),
            ..Self::default()
        }
    }

    /// Whether it holds nothing, and need not be written.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads a history. One that another version wrote, or a person, is none: no node is parked for it.
    pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(Self::deserialize(value).unwrap_or_default())
    }

    /// Notes which process writes the record at `now`, and under which leadership it was and is written.
    pub(in crate::maintenance) fn written_by(
        &mut self,
        writer: Timestamp,
        old: u64,
        new: u64,
        now: Timestamp,
    ) {
        if let Some(before) = self.writer.replace(writer)
            && before != writer
        {
            let at = writer.clamp(before, now.max(before));
            self.incidents.push(Incident::Restarted { at });
        }
        // 0 is no leadership that could have been lost.
        if old != 0 && old != new {
            self.incidents.push(Incident::LeaderChanged { at: now, old, new });
        }
        let over = self.incidents.len().saturating_sub(MAX_INCIDENTS);
        self.incidents.drain(..over);
    }

    fn push(&mut self, finished: FinishedPhase) {
        self.finished.push(finished);
        let over = self.finished.len().saturating_sub(MAX_FINISHED);
        self.finished.drain(..over);
        while serde_json::to_string(&self.finished).is_ok_and(|json| json.len() > MAX_FINISHED_JSON) {
            self.finished.remove(0);
        }
    }
}

impl Episode {
    /// Notes that its phase is over at `now`, where `next`, what the episode becomes, stands in another one. `None` ends it.
    pub(in crate::maintenance) fn finish_phase(
        &mut self,
        next: Option<&Self>,
        stats: PhaseStats,
        now: Timestamp,
    ) {
        let stay = |episode: &Self| (episode.phase.name(), episode.since);
        if next.is_some_and(|next| stay(next) == stay(self)) {
            return;
        }
        self.history.push(FinishedPhase {
            phase: self.phase.clone(),
            host: self.host.name.clone(),
            since: self.since,
            until: next.map_or(now, |next| next.since),
            outcome: PhaseOutcome::of(&self.phase, next),
            stats,
        });
    }
}
