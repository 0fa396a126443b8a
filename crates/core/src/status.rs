//! The status of a node, which all renderers show: log, metrics, Events, conditions, NodeMaintenance, page and command line.
//!
//! A [`NodeStatus`] is computed from a snapshot. A [`StatusBoard`] adds the phases, waits and ends that this process has observed.
//! Renderers format them and decide nothing.

mod board;
pub mod node_event;
mod obstacles;
mod sentences;
pub mod story;
mod told_once;
mod took;

pub use crate::maintenance::kinds::{EpisodeOutcome, HostKind, PhaseKind, PodState, TriggerKind};
pub use crate::maintenance::waiting::WaitKind;
pub use board::{EpisodeEnd, EpisodeHistory, EpisodeStep, NodeEntry, StatusBoard, StatusSpan, Wait};
pub use obstacles::Obstacle;
pub use told_once::ToldOnce;
pub use took::Took;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::facts::node_condition::FoundConditions;
use crate::facts::node_maintenance::PendingPod;
use crate::ids::{NodeName, NodeUid};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::Record;
use crate::maintenance::observed::{
    Admission, AttemptOutcome as EffectOutcome, BoundVm, NodeOverrides, NodeSnapshot, Observed,
    PendingEviction, PendingReason, RetryAdvice, Snapshots, SourceState,
};
use crate::maintenance::record::LastEpisode;
use crate::maintenance::request::Request;

/// The placeholder for the trace id in `TRACE_UI_URL_TEMPLATE`.
pub const TRACE_ID: &str = "{trace_id}";

/// The address of a trace in the tracing UI.
pub fn trace_url(template: &str, trace_id: &str) -> String {
    template.replace(TRACE_ID, trace_id)
}

/// The status of a node. Facts that no renderer shows, such as a heartbeat, are not in it, so that equal statuses look the same.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStatus {
    pub phase: PhaseKind,
    /// The phase that a parked node resumes; otherwise its phase.
    pub at_work: PhaseKind,
    /// Since when it is in its phase, where that is recorded.
    pub since: Option<Timestamp>,
    pub record: Record,
    /// The Node; `None` if it was deleted.
    pub node: Option<NodeSummary>,
    /// The VM and its host.
    pub vm: BoundVm,
    pub request: Option<Request>,
    /// Its place in the admission queue.
    pub queue: Admission,
    /// The pods of the latest drain round of its episode.
    pub pods: Option<PodCountsByState>,
    /// Both sources are synced and its VM has been looked up, so that an episode that is not there has ended.
    pub is_known: bool,
    /// It is in service without a request, so it waits for nothing.
    pub is_idle: bool,
    /// The guest could not be shut down, because VMware Tools do not run.
    pub lacks_tools: bool,
}

/// The part of the Node that is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSummary {
    pub uid: NodeUid,
    pub is_cordoned: bool,
    pub is_ready: bool,
    /// The annotations that people set.
    pub overrides: NodeOverrides,
    /// The conditions of an episode on it.
    pub conditions: FoundConditions,
    /// The episode that ended last, as the Node names it.
    pub last_episode: Option<Arc<LastEpisode>>,
}

/// The pods of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCountsByState {
    /// How many pods were on the node.
    pub listed: usize,
    /// The pods that block.
    pub left: Vec<PendingEviction>,
}

/// The statuses of all nodes.
pub type NodeStatuses = BTreeMap<NodeName, Arc<NodeStatus>>;

pub fn statuses(snapshots: &Snapshots) -> NodeStatuses {
    let status = |(name, snapshot): (&NodeName, &Arc<NodeSnapshot>)| {
        (name.clone(), Arc::new(NodeStatus::of(snapshot)))
    };
    snapshots.iter().map(status).collect()
}

impl NodeStatus {
    pub fn of(snapshot: &NodeSnapshot) -> Self {
        let NodeSnapshot {
            record,
            observed: seen,
        } = snapshot;
        let phase = record.kind();
        let is_synced = seen.sources == SourceState::Synced;
        let guest = seen.attempts.get(&EffectKind::ShutdownGuest);
        Self {
            phase,
            at_work: record.phase().map_or(phase, |phase| phase.at_work().kind()),
            since: match record {
                Record::Episode(episode) => Some(episode.since),
                Record::Python(python) => Some(python.since),
                Record::InService | Record::Unreadable { .. } => None,
            },
            record: record.clone(),
            node: seen.node.as_ref().map(|node| NodeSummary {
                uid: node.uid.clone(),
                is_cordoned: node.unschedulable,
                is_ready: node.ready,
                overrides: node.overrides.clone(),
                conditions: node.conditions.clone(),
                last_episode: node.last_episode.clone(),
            }),
            vm: seen.vm.clone(),
            request: seen.request.clone(),
            queue: seen.admission.clone(),
            pods: seen.drain.as_ref().map(|report| PodCountsByState {
                listed: report.listed,
                left: report.left.clone(),
            }),
            is_known: is_synced
                && seen.vm != BoundVm::NotLookedUp
                && !seen.copy_awaits_vm
                && !matches!(record, Record::Unreadable { .. }),
            is_idle: phase == PhaseKind::InService && is_synced && asks_nothing(seen),
            lacks_tools: guest.is_some_and(|attempt| {
                matches!(&attempt.outcome, EffectOutcome::Refused(refusal) if refusal.advice == RetryAdvice::NoTools)
            }),
        }
    }

    /// What stands against its maintenance, as far as its VM and its Node show.
    pub fn obstacles(&self) -> Vec<Obstacle> {
        Obstacle::of(&self.vm, self.node.as_ref().map(|node| &node.overrides))
    }

    /// The name of the host of its VM, and the kind of its state.
    pub fn host(&self) -> Option<(&str, HostKind)> {
        let vm = self.vm.found().filter(|vm| vm.host_ref.is_some())?;
        Some((&vm.host_name, vm.host.kind()))
    }
}

/// Whether a node in service has a known VM or is none, and has no request and no skipped maintenance.
fn asks_nothing(seen: &Observed) -> bool {
    let Some(vm) = seen.vm.found() else {
        return seen.vm == BoundVm::NoVm && seen.request.is_none();
    };
    let is_skipped = seen.node.as_ref().is_some_and(|node| node.overrides.skip);
    seen.request.is_none() && !(is_skipped && vm.host.is_leaving())
}

impl PodCountsByState {
    /// The first `most` blocking pods, those that are not terminating first, as they are written to a NodeMaintenance, and shown.
    pub fn written(&self, most: usize) -> Vec<PendingPod> {
        let mut left: Vec<&PendingEviction> = self.left.iter().collect();
        left.sort_by_key(|pod| pod.why == PendingReason::Leaving);
        let written = left.into_iter().take(most).map(|pod| {
            let (namespace, name) = pod.name.split_once('/').unwrap_or(("", &pod.name));
            PendingPod {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                state: pod.why.state().to_string(),
                reason: pod.why.to_string(),
            }
        });
        written.collect()
    }

    /// How many of the blocking pods are in this state.
    pub fn count(&self, state: PodState) -> usize {
        self.left.iter().filter(|pod| pod.why.state() == state).count()
    }
}

#[cfg(test)]
mod tests;
