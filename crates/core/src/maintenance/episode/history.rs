//! The finished phases and incidents of an episode. Any process can build its spans from them. Nothing is decided from them.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{DrainEnd, Episode, Phase};
use crate::ids::TaskRef;
use crate::is_default;

/// The maximum size of the finished phases as JSON; the oldest phases are dropped. A phase takes about 200 bytes.
const MAX_FINISHED_JSON: usize = 8 * 1024;

/// The maximum number of finished phases. A normal episode has eight.
pub(in crate::maintenance) const MAX_FINISHED: usize = 64;

/// The maximum number of incidents, because a controller may be in a crash loop.
pub(in crate::maintenance) const MAX_INCIDENTS: usize = 20;

/// The history of an episode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseHistory {
    #[serde(skip_serializing_if = "is_default")]
    pub origin: EpisodeOrigin,
    /// The finished phases, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finished: Vec<FinishedPhase>,
    /// The incidents, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incidents: Vec<Incident>,
    /// When the process that wrote the record last had started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<Timestamp>,
}

/// What telemetry needs to know of the time at which an episode begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EpisodeOrigin {
    /// The name of the host's cluster, which no episode leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The VM's name in the inventory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The traceparent of the last ended episode of the same host, of any node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// It was taken over from the Python controller.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FinishedPhase {
    pub phase: Phase,
    /// The name of the host whose maintenance the episode handled then.
    pub host: Arc<str>,
    /// When it began.
    pub since: Timestamp,
    /// When it ended.
    pub until: Timestamp,
    /// How it ended.
    pub outcome: PhaseOutcome,
    /// Its statistics.
    #[serde(default, skip_serializing_if = "is_default")]
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
    /// The drain was not complete when the VM went off or the Node was replaced.
    Interrupted,
    Parked,
    Ended,
}

/// The statistics of a phase, as the process in which it ended observed it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseStats {
    /// This process began the phase. Otherwise the first part of the phase is not covered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub from_the_start: bool,
    /// A guest shutdown was requested.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub guest_asked: bool,
    /// When a power-off was first requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_cut: Option<Timestamp>,
    /// When the node first waited for its own host, because no other fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_awaited: Option<Timestamp>,
    /// When the node was first Ready without its GPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus_awaited: Option<Timestamp>,
    /// The PodDisruptionBudgets that blocked pods.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub budgets: BTreeSet<String>,
    /// The traceparent of the first episode ahead of it in the queue.
    #[serde(rename = "behind", skip_serializing_if = "Option::is_none")]
    pub ahead_traceparent: Option<Arc<str>>,
    /// Its first position in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueuePosition>,
    /// The pod counts of the drain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodCounts>,
    /// The latest vCenter task of the phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskRef>,
    /// The other hosts of the cluster and why they did not fit when the target was chosen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedHost>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuePosition {
    /// 1 for the next node.
    pub position: usize,
    pub limit: u32,
    /// The setting with the limit.
    pub setting: String,
}

/// The pod counts of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCounts {
    /// The maximum number of pods in a list.
    pub listed: usize,
    /// The number of pods in the latest list that do not block.
    pub ignored: usize,
    /// How many evictions were accepted.
    pub evicted: usize,
}

/// A host that did not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedHost {
    pub host: String,
    /// The reason, in words that follow its name.
    pub why: String,
}

/// An event of an episode besides its phases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Incident {
    /// Another process took it over.
    Restarted {
        /// When that process started.
        at: Timestamp,
    },
    /// Another leader took it over.
    LeaderChanged {
        /// When the new leader first wrote the record.
        at: Timestamp,
        /// The epoch before.
        old: u64,
        /// The epoch since.
        new: u64,
    },
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
    /// The history of a new episode, written by the process that started at `writer`.
    pub(in crate::maintenance) fn begun(origin: EpisodeOrigin, writer: Timestamp) -> Self {
        Self {
            origin,
            writer: Some(writer),
            ..Self::default()
        }
    }

    /// Reads a history; an unreadable one becomes empty, because no node has to be parked for it.
    pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(Self::deserialize(value).unwrap_or_default())
    }

    /// Notes the process that writes the record at `now`, and the change of the leadership epoch.
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
        // 0 means no leader election.
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
    /// Closes its phase at `now` if `next` is in another phase, or if the episode ends (`None`).
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
