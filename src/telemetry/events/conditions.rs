//! The conditions of KEP-5683 for a phase: a pure function of the record.

use jiff::Timestamp;

use crate::ids::NodeName;
use crate::kubernetes::events::{ConditionChange, ConditionState, Conditions};
use crate::maintenance::episode::{DrainEnd, Episode, Phase, Record};
use crate::status::observer::NodeEvent;
use crate::telemetry::link::Links;

const KINDS: [&str; 4] = [
    "MaintenancePlanned",
    "DrainInProgress",
    "Drained",
    "MaintenanceInProgress",
];

/// The condition changes for `event`. Within an episode only differences are written; its end removes
/// all four conditions, which also corrects a lost write.
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
        None => KINDS
            .iter()
            .map(|kind| ConditionChange { kind, to: None })
            .collect(),
        Some(episode) => KINDS
            .iter()
            .zip(states(before).into_iter().zip(states(&transition.record)))
            .filter(|(_, (was, is))| was != is)
            .map(|(kind, (_, is))| ConditionChange {
                kind,
                to: is.map(|is_true| state(kind, is_true, episode, links)),
            })
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

fn state(kind: &str, is_true: bool, episode: &Episode, links: &Links) -> ConditionState {
    let link = links
        .to(episode)
        .map_or_else(String::new, |link| format!(", trace {link}"));
    let is_drained = kind == "Drained" && is_true;
    ConditionState {
        is_true,
        reason: if is_drained {
            "DrainCompleted"
        } else {
            "AdminRequested"
        },
        message: format!("{}, episode {}{link}", episode.cause(), episode.id),
    }
}

/// The conditions in the order of [`KINDS`]; `None` is absent. A condition becomes False before it is
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
