//! The conditions of KEP-5683 for a phase: a pure function of the record.

use jiff::Timestamp;

use crate::link::Links;
use haulout_core::facts::node_condition::{EpisodeCondition, OF_EPISODE, OF_REQUEST};
use haulout_core::ids::NodeName;
use haulout_core::maintenance::episode::{DrainEnd, Episode, Phase, Record};
use haulout_core::maintenance::request::NotDue;
use haulout_core::status::NodeStatus;
use haulout_core::status::node_event::NodeEvent;
use haulout_kubernetes::events::{ConditionChange, ConditionState, Conditions};

/// The reason of each condition but that of a complete drain.
const REQUESTED: &str = "AdminRequested";

/// The condition changes for `event`. Within an episode only differences are written; its end removes all four conditions.
pub(super) fn changed(
    node: &NodeName,
    event: NodeEvent<'_>,
    links: &Links,
    now: Timestamp,
) -> Option<Conditions> {
    let NodeEvent::Recorded {
        node: seen,
        before,
        transition,
        ..
    } = event
    else {
        return None;
    };
    let changes: Vec<ConditionChange> = match transition.record.episode() {
        None => EpisodeCondition::ALL.iter().copied().map(removed).collect(),
        Some(episode) => EpisodeCondition::ALL
            .iter()
            .copied()
            .zip(states(before).into_iter().zip(states(&transition.record)))
            .filter(|(_, (was, is))| was != is)
            .map(|(kind, (_, is))| changed_to(kind, is, episode, links))
            .collect(),
    };
    let seen = seen?;
    (!changes.is_empty()).then(|| Conditions {
        node: node.clone(),
        uid: seen.uid.clone(),
        at: now,
        changes,
    })
}

/// The changes after which the Node shows what its status says; `None` if it does.
pub(super) fn differing(
    name: &NodeName,
    status: &NodeStatus,
    links: &Links,
    now: Timestamp,
) -> Option<Conditions> {
    let node = status.node.as_ref()?;
    let record = &status.record;
    if matches!(record, Record::Unreadable { .. }) {
        return None;
    }
    let episode = record.episode();
    let planned = scheduled(status, now);
    let states = match (episode, &planned) {
        (Some(_), _) => states(record),
        (None, Some(_)) => [Some(true), None, None, None],
        (None, None) => [None; 4],
    };
    let kinds = EpisodeCondition::ALL.iter().copied().zip(states);
    let differing = kinds.filter(|(kind, state)| node.conditions.get(kind).copied() != *state);
    let changes: Vec<ConditionChange> = differing
        .map(|(kind, state)| match (episode, &planned, state) {
            (Some(episode), _, state) => changed_to(kind, state, episode, links),
            (None, Some(planned), Some(_)) => ConditionChange {
                kind: kind.name(),
                to: Some(planned.clone()),
            },
            (None, _, _) => removed(kind),
        })
        .collect();
    (!changes.is_empty()).then(|| Conditions {
        node: name.clone(),
        uid: node.uid.clone(),
        at: now,
        changes,
    })
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

fn removed(kind: EpisodeCondition) -> ConditionChange {
    ConditionChange {
        kind: kind.name(),
        to: None,
    }
}

fn changed_to(
    kind: EpisodeCondition,
    is_true: Option<bool>,
    episode: &Episode,
    links: &Links,
) -> ConditionChange {
    ConditionChange {
        kind: kind.name(),
        to: is_true.map(|is_true| state(kind, is_true, episode, links)),
    }
}

fn state(kind: EpisodeCondition, is_true: bool, episode: &Episode, links: &Links) -> ConditionState {
    let link = links
        .to(episode)
        .map_or_else(String::new, |link| format!(", trace {link}"));
    let is_drained = kind == EpisodeCondition::Drained && is_true;
    ConditionState {
        is_true,
        reason: if is_drained { "DrainCompleted" } else { REQUESTED },
        message: format!("{}{OF_EPISODE}{}{link}", episode.cause(), episode.id),
    }
}

/// The conditions in the order of [`EpisodeCondition::ALL`]; `None` is absent. A condition becomes False before it is
/// removed at the end, so that watchers see the change.
fn states(record: &Record) -> [Option<bool>; 4] {
    let Some(episode) = record.episode() else {
        return [None; 4];
    };
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
