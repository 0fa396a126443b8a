//! Conditions that a Node shows and that its record or its request do not say, or the other way round.
//!
//! The conditions of a transition are written once. That write may be lost, also with a process that ends, and the setting may have
//! changed since. So a difference that stays is written again, ever more rarely.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::conditions;
use crate::link::Links;
use haulout_core::ids::NodeName;
use haulout_core::maintenance::clock::doubled;
use haulout_core::status::NodeStatuses;
use haulout_kubernetes::events::Conditions;

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
            match conditions::differing(name, status, links, wall) {
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
    use haulout_core::facts::node_condition::{EpisodeCondition, FoundConditions, is_ours};
    use haulout_core::maintenance::episode::{Phase, Record};
    use haulout_core::maintenance::observed::HostState;
    use haulout_core::maintenance::request::Request;
    use haulout_core::status::NodeStatus;
    use haulout_kubernetes::update::RequestAction;

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
            let state = |change: haulout_kubernetes::events::ConditionChange| {
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
        let none = FoundConditions::new();
        let begins = |record| written(record, none.clone()).len();
        assert_eq!((begins(Record::InService), begins(drained())), (0, 4));
        let unreadable = Record::Unreadable {
            why: "nonsense".to_owned(),
        };
        assert!(written(unreadable, left()).is_empty());
    }

    /// What is written for a node in service with this request and these conditions, at this second.
    fn scheduled(
        not_before: Option<i64>,
        conditions: FoundConditions,
        second: i64,
    ) -> Vec<(&'static str, Option<String>)> {
        let mut repairs = ConditionRepairs::default();
        let mut snapshot = snapshot(Record::InService, HostState::InService);
        let node = snapshot.observed.node.as_mut().unwrap();
        node.conditions = conditions;
        snapshot.observed.request = not_before.map(|seconds| Request {
            not_before: Some(at(seconds)),
            ..fixtures::request(RequestAction::Drain)
        });
        let statuses = [(NodeName::new("gpu-1"), Arc::new(NodeStatus::of(&snapshot)))].into();
        let begun = Instant::now();
        repairs.update_statuses(&statuses, &Links::default(), (at(second), begun));
        let due = repairs.take_due(begun + REPAIR_AFTER);
        let changes = due.into_iter().flat_map(|conditions| conditions.changes);
        changes
            .map(|change| (change.kind, change.to.map(|state| state.message)))
            .collect()
    }

    #[test]
    fn maintenance_is_planned_from_the_request_to_its_begin() {
        let name = fixtures::request(RequestAction::Drain).identity.name;
        let shown = || FoundConditions::from([(EpisodeCondition::MaintenancePlanned, true)]);
        let message = format!("not before {:.0}, requested by NodeMaintenance {name}", at(3_600));
        assert!(is_ours(&message));
        let planned = ("MaintenancePlanned", Some(message));
        assert_eq!(scheduled(Some(3_600), FoundConditions::new(), 0), [planned]);
        assert_eq!(scheduled(Some(3_600), shown(), 0), []);
        let removed = ("MaintenancePlanned", None);
        assert_eq!(
            scheduled(None, shown(), 0),
            std::slice::from_ref(&removed),
            "the request was deleted"
        );
        // The episode that begins then has its own.
        assert_eq!(scheduled(Some(3_600), shown(), 3_600), [removed]);
    }
}
