//! The status of a node, as all renderers show it: log, metrics, Events, conditions, NodeMaintenance, page and command line.
//!
//! A [`NodeStatus`] is computed from a snapshot. A [`StatusBoard`] adds what this process has seen happen: phases, waits, ends.
//! Renderers format them and decide nothing.

mod board;
mod kinds;
pub mod observer;
mod sentences;

pub use board::{EpisodeEnd, EpisodeHistory, NodeEntry, StatusBoard, StatusSpan, Wait};
pub use kinds::{EpisodeOutcome, HostKind, PhaseKind, PodState, TriggerKind, WaitKind};

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::ids::{NodeName, NodeUid};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::Record;
use crate::maintenance::observed::{
    Admission, AttemptOutcome as EffectOutcome, BoundVm, NodeOverrides, NodeSnapshot, Observed,
    PendingEviction, RetryAdvice, SnapshotBatch, SourceState,
};
use crate::maintenance::request::Request;

/// How a node stands. Facts that no renderer shows, such as a heartbeat, are not in it, so that two that are equal look the same.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStatus {
    /// Its phase.
    pub phase: PhaseKind,
    /// The phase that a parked node resumes; otherwise its phase.
    pub at_work: PhaseKind,
    /// Since when it is in its phase, where that is written down.
    pub since: Option<Timestamp>,
    /// The record.
    pub record: Record,
    /// The Node; `None` where the object is gone.
    pub node: Option<NodeMarks>,
    /// The VM and its host.
    pub vm: BoundVm,
    /// What a person asks of it.
    pub request: Option<Request>,
    /// Its place in the admission queue.
    pub queue: Admission,
    /// What the latest drain round of its episode found.
    pub pods: Option<PodCountsByState>,
    /// Both sources are synced and its VM has been looked up, so that an episode that is not seen is over.
    pub is_known: bool,
    /// It is in service and nothing is asked of it, so it waits for nothing.
    pub is_at_rest: bool,
    /// The guest could not be asked to shut down, because VMware Tools do not run.
    pub lacks_tools: bool,
}

/// What is shown of the Node object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMarks {
    /// Its UID.
    pub uid: NodeUid,
    /// It is cordoned.
    pub is_cordoned: bool,
    /// It is Ready.
    pub is_ready: bool,
    /// What people have annotated.
    pub wishes: NodeOverrides,
}

/// The pods of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCountsByState {
    /// How many pods were on the node.
    pub listed: usize,
    /// Those that stand in the way.
    pub left: Vec<PendingEviction>,
}

/// The statuses of one batch of snapshots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeStatuses {
    /// By node.
    pub nodes: BTreeMap<NodeName, Arc<NodeStatus>>,
    /// Whether they are all, so that a node that is not among them is gone.
    pub are_all: bool,
}

impl NodeStatuses {
    /// The statuses of `pictures`.
    pub fn of(pictures: &SnapshotBatch) -> Self {
        let sights = pictures.snapshots.iter();
        Self {
            nodes: sights
                .map(|(name, sight)| (name.clone(), Arc::new(NodeStatus::of(sight))))
                .collect(),
            are_all: pictures.are_all,
        }
    }
}

impl NodeStatus {
    /// The status of a node of which this is known.
    pub fn of(sight: &NodeSnapshot) -> Self {
        let NodeSnapshot {
            record,
            observed: seen,
        } = sight;
        let phase = record.kind();
        let is_synced = seen.hearing == SourceState::Both;
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
            node: seen.node.as_ref().map(|node| NodeMarks {
                uid: node.uid.clone(),
                is_cordoned: node.unschedulable,
                is_ready: node.ready,
                wishes: node.wishes,
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
                && !matches!(record, Record::Unreadable { .. }),
            is_at_rest: phase == PhaseKind::InService && is_synced && asks_nothing(seen),
            lacks_tools: guest.is_some_and(|attempt| {
                matches!(&attempt.outcome, EffectOutcome::Refused(refusal) if refusal.advice == RetryAdvice::NoTools)
            }),
        }
    }

    /// The name of the host on which its VM stands, and the kind of its state.
    pub fn host(&self) -> Option<(&str, HostKind)> {
        let vm = self.vm.found().filter(|vm| vm.on.is_some())?;
        Some((&vm.on_name, vm.host.kind()))
    }
}

/// Whether neither a person nor the host asks anything of a node in service whose VM is known.
fn asks_nothing(seen: &Observed) -> bool {
    let Some(vm) = seen.vm.found() else { return false };
    let is_skipped = seen.node.as_ref().is_some_and(|node| node.wishes.skip);
    seen.request.is_none() && !(is_skipped && vm.host.is_leaving())
}

impl PodCountsByState {
    /// How many of those that are left are in this state.
    pub fn count(&self, state: PodState) -> usize {
        self.left.iter().filter(|pod| pod.why.state() == state).count()
    }
}

#[cfg(test)]
mod tests;
