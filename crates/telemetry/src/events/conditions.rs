//! The conditions of KEP-5683 on a Node: a pure function of its status, written where the Node shows something else.
//!
//! A write may be lost, also with a process that ends, and the setting may have changed since. So a difference that stays is written
//! again, ever more rarely.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::link::Links;
use haulout_core::facts::node_condition::{EpisodeCondition, OF_EPISODE, OF_REQUEST};
use haulout_core::ids::NodeName;
use haulout_core::maintenance::clock::doubled;
use haulout_core::maintenance::episode::{DrainEnd, Episode, Phase, Record};
use haulout_core::maintenance::request::NotDue;
use haulout_core::status::{NodeStatus, NodeStatuses};
use haulout_kubernetes::events::{ConditionChange, ConditionState, Conditions};

/// The reason of each condition but that of a complete drain.
const REQUESTED: &str = "AdminRequested";

/// After how long a write is repeated that the Node does not show.
const REPEAT_AFTER: Duration = Duration::from_secs(10);

/// The longest pause between two writes of a difference.
const REPEAT_MAX: Duration = Duration::from_secs(600);

/// The states of all conditions, in the order of [`EpisodeCondition::ALL`]; `None` is absent.
type States = [Option<ConditionState>; 4];

/// What the Nodes are to show, and what they do not show yet.
#[derive(Debug, Default)]
pub(super) struct NodeConditions(BTreeMap<NodeName, ConditionsOfNode>);

#[derive(Debug)]
struct ConditionsOfNode {
    wanted: States,
    missing: Conditions,
    writes: u32,
    due: Instant,
}

impl NodeConditions {
    /// Compares what the Nodes show with their status.
    pub(super) fn update_statuses(
        &mut self,
        statuses: &NodeStatuses,
        links: &Links,
        (wall, now): (Timestamp, Instant),
    ) {
        let mut all_before = std::mem::take(&mut self.0);
        for (name, status) in statuses {
            let Some(node) = &status.node else { continue };
            let Some(wanted) = wanted(status, links, wall) else {
                continue;
            };
            let before = all_before.remove(name);
            let is_same = before.as_ref().is_some_and(|before| before.wanted == wanted);
            let missing = EpisodeCondition::ALL.iter().zip(&wanted).enumerate();
            let missing = missing.filter(|(index, (kind, state))| {
                let is_true = state.as_ref().map(|state| state.is_true);
                let is_new = before.as_ref().is_some_and(|it| it.wanted[*index] != **state);
                is_new || node.conditions.get(kind).copied() != is_true
            });
            let changes = missing.map(|(_, (kind, state))| ConditionChange {
                kind: kind.name(),
                to: state.clone(),
            });
            let missing = Conditions {
                node: name.clone(),
                uid: node.uid.clone(),
                at: wall,
                changes: changes.collect(),
            };
            let (writes, due) = before
                .filter(|_| is_same)
                .map_or((0, now), |it| (it.writes, it.due));
            let of_node = ConditionsOfNode {
                wanted,
                missing,
                writes,
                due,
            };
            self.0.insert(name.clone(), of_node);
        }
    }

    /// What is to be written now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Conditions> {
        let missing = self.0.values_mut().filter(|it| !it.missing.changes.is_empty());
        let due = missing.filter(|it| it.due <= now);
        due.map(|it| {
            it.due = now + doubled(REPEAT_AFTER, it.writes, REPEAT_MAX);
            it.writes = it.writes.saturating_add(1);
            it.missing.clone()
        })
        .collect()
    }
}

/// What the Node is to show; `None` if it is left as it is.
fn wanted(status: &NodeStatus, links: &Links, now: Timestamp) -> Option<States> {
    if matches!(status.record, Record::Unreadable { .. }) {
        return None;
    }
    let Some(episode) = status.record.episode() else {
        return Some([scheduled(status, now), None, None, None]);
    };
    let link = links
        .to(episode)
        .map_or_else(String::new, |link| format!(", trace {link}"));
    let message = format!("{}{OF_EPISODE}{}{link}", episode.cause(), episode.id);
    let mut kinds = EpisodeCondition::ALL.iter();
    Some(states(episode).map(|is_true| {
        let is_drained = kinds.next() == Some(&EpisodeCondition::Drained);
        is_true.map(|is_true| ConditionState {
            is_true,
            reason: match is_drained && is_true {
                true => "DrainCompleted",
                false => REQUESTED,
            },
            message: message.clone(),
        })
    }))
}

/// The condition `MaintenancePlanned` of a request that may begin later; `None` without one, or if it may begin now.
fn scheduled(status: &NodeStatus, now: Timestamp) -> Option<ConditionState> {
    let request = status.request.as_ref()?;
    let at = match request.not_due(None, now)? {
        NotDue::NotBefore(at) | NotDue::Window(at) => at,
        NotDue::InvalidWindow(_) => return None,
    };
    Some(ConditionState {
        is_true: true,
        reason: REQUESTED,
        message: format!("not before {at:.0}{OF_REQUEST}{}", request.identity.name),
    })
}

/// Which conditions of an episode are true, false or absent. A condition becomes False before it is removed at the end, so that
/// watchers see the change.
fn states(episode: &Episode) -> [Option<bool>; 4] {
    let was_emptied = Some(episode.left_behind.is_empty());
    match episode.phase.at_work() {
        Phase::Queued => [Some(true), None, None, None],
        Phase::Draining => [Some(true), Some(true), Some(false), Some(false)],
        Phase::Drained => [Some(true), Some(false), Some(true), Some(true)],
        Phase::ShuttingDown(DrainEnd::Complete) => [Some(true), Some(false), Some(true), Some(false)],
        Phase::ShuttingDown(DrainEnd::TimedOut) => [Some(true), Some(false), Some(false), Some(false)],
        Phase::Relocating { .. } | Phase::AwaitingHost | Phase::PoweringOn { .. } | Phase::Rejoining => {
            [Some(false), Some(false), was_emptied, Some(true)]
        }
        Phase::Parked { .. } => [None; 4],
    }
}
