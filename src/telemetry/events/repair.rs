//! Conditions that a Node shows and that its record does not say, or the other way round.
//!
//! The conditions of a transition are written once. That write may be lost, also with a process that ends, and the setting may have
//! changed since. So a difference that stays is written again, ever more rarely.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::conditions;
use crate::ids::NodeName;
use crate::kubernetes::events::Conditions;
use crate::maintenance::clock::doubled;
use crate::status::NodeStatuses;
use crate::telemetry::link::Links;

/// How long a difference may last before it is written. The write of a transition is seen sooner.
const REPAIR_AFTER: Duration = Duration::from_secs(10);

/// The longest pause between two writes of a difference.
const REPAIR_MAX: Duration = Duration::from_secs(600);

/// The most writes at once, which the queue of Events can take beside others.
const REPAIRS_MAX: usize = 16;

/// The differences, by node.
#[derive(Debug, Default)]
pub(super) struct ConditionRepairs(BTreeMap<NodeName, Repair>);

#[derive(Debug)]
struct Repair {
    conditions: Conditions,
    writes: u32,
    due: Instant,
}

impl ConditionRepairs {
    /// Compares nodes with their records.
    pub(super) fn update_statuses(
        &mut self,
        statuses: &NodeStatuses,
        links: &Links,
        (wall, now): (Timestamp, Instant),
    ) {
        for (name, status) in statuses {
            let node = status.node.as_ref();
            let differing =
                node.and_then(|node| conditions::differing(name, node, &status.record, links, wall));
            match differing {
                None => {
                    self.0.remove(name);
                }
                Some(conditions) => {
                    let repair = self.0.entry(name.clone()).or_insert_with(|| Repair {
                        conditions: conditions.clone(),
                        writes: 0,
                        due: now + REPAIR_AFTER,
                    });
                    repair.conditions = conditions;
                }
            }
        }
        self.0.retain(|name, _| statuses.contains_key(name));
    }

    /// What is to be written now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Conditions> {
        let due = self.0.values_mut().filter(|repair| repair.due <= now);
        due.take(REPAIRS_MAX)
            .map(|repair| {
                repair.writes = repair.writes.saturating_add(1);
                repair.due = now + doubled(REPAIR_AFTER, repair.writes, REPAIR_MAX);
                repair.conditions.clone()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use haulout_core::fixtures::{self, at, entering, snapshot};

    use super::*;
    use crate::maintenance::episode::{Phase, Record};
    use crate::maintenance::observed::HostState;
    use crate::node_condition::{EpisodeCondition, FoundConditions};
    use crate::status::NodeStatus;

    fn statuses(record: Record, host: HostState, conditions: FoundConditions) -> NodeStatuses {
        let mut snapshot = snapshot(record, host);
        let node = snapshot.observed.node.as_mut().unwrap();
        node.conditions = conditions;
        let status = Arc::new(NodeStatus::of(&snapshot));
        [(NodeName::new("gpu-1"), status)].into()
    }

    fn left() -> FoundConditions {
        [(EpisodeCondition::MaintenanceInProgress, true)].into()
    }

    fn removes(due: &[Conditions]) -> bool {
        let changes = due.iter().flat_map(|conditions| &conditions.changes);
        let changes: Vec<_> = changes.map(|change| (change.kind, change.to.is_some())).collect();
        changes == [("MaintenanceInProgress", false)]
    }

    #[test]
    fn condition_that_an_episode_has_left_is_removed_ever_more_rarely() {
        let mut repairs = ConditionRepairs::default();
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut writes = Vec::new();
        for second in 0..2_000 {
            let seen = statuses(Record::InService, HostState::InService, left());
            repairs.update_statuses(&seen, &Links::default(), (at(0), after(second)));
            let due = repairs.take_due(after(second));
            if !due.is_empty() {
                assert!(removes(&due), "{due:?}");
                writes.push(second);
            }
        }
        assert_eq!(writes, [10, 30, 70, 150, 310, 630, 1_230, 1_830]);
        let clean = statuses(Record::InService, HostState::InService, FoundConditions::new());
        repairs.update_statuses(&clean, &Links::default(), (at(0), after(2_000)));
        assert!(repairs.take_due(after(9_000)).is_empty());
    }

    #[test]
    fn conditions_of_an_episode_are_written_again() {
        let drained = || fixtures::record(fixtures::episode(Phase::Drained, 0));
        let written = |record, conditions| {
            let mut repairs = ConditionRepairs::default();
            let (begun, seen) = (Instant::now(), statuses(record, entering(), conditions));
            repairs.update_statuses(&seen, &Links::default(), (at(0), begun));
            let due = repairs.take_due(begun + REPAIR_AFTER);
            let changes = due.into_iter().flat_map(|conditions| conditions.changes);
            let state = |change: crate::kubernetes::events::ConditionChange| {
                (change.kind, change.to.map(|state| state.is_true))
            };
            changes.map(state).collect::<Vec<_>>()
        };
        let shown = [
            (EpisodeCondition::MaintenancePlanned, true),
            (EpisodeCondition::DrainInProgress, true),
            (EpisodeCondition::Drained, true),
            (EpisodeCondition::MaintenanceInProgress, true),
        ];
        let differing = written(drained(), shown.into());
        assert_eq!(differing, [("DrainInProgress", Some(false))]);
        let unreadable = Record::Unreadable {
            why: "nonsense".to_owned(),
        };
        assert!(written(unreadable, left()).is_empty());
    }
}
