use std::sync::Arc;

use super::*;
use crate::fixtures::{episode, node};
use crate::ids::NodeUid;
use crate::maintenance::episode::{DrainEnd, HostIdentity};
use crate::maintenance::volumes::VolumeWait;
use crate::maintenance::waiting::ParkReason;

fn policy(maintenance_taint: MaintenanceTaint) -> GuardPolicy {
    GuardPolicy {
        maintenance_taint,
        out_of_service_taint: true,
        enabled: NodeGuard::ALL.iter().copied().collect(),
        machines: false,
    }
}

fn phases() -> Vec<Phase> {
    let host = HostIdentity {
        moref: None,
        name: "esx2".into(),
    };
    vec![
        Phase::Queued,
        Phase::Draining,
        Phase::Drained,
        Phase::ShuttingDown(DrainEnd::Complete),
        Phase::Relocating { to: host },
        Phase::AwaitingHost,
        Phase::PoweringOn { by_drs: false },
        Phase::Rejoining,
    ]
}

fn in_phase(phase: Phase, guards: &[NodeGuard]) -> Record {
    Record::Episode(Arc::new(Episode {
        guards: guards.iter().copied().collect(),
        ..episode(phase, 0)
    }))
}

fn with(found: &[(NodeGuard, GuardState)]) -> ObservedNode {
    ObservedNode {
        guards: found.iter().copied().collect(),
        ..node()
    }
}

/// The guards of an episode that goes to `phase` on a Node with `found`.
fn after(before: &Record, phase: Phase, found: &ObservedNode, taint: MaintenanceTaint) -> Vec<&'static str> {
    let guards = guards_after(before, &episode(phase, 0), found, &policy(taint));
    guards.into_iter().map(NodeGuard::name).collect()
}

#[test]
fn each_phase_has_its_guards() {
    let others = ["cluster-autoscaler", "medik8s", "nvsentinel", "gardener"];
    for phase in phases() {
        for taint in MaintenanceTaint::ALL.iter().copied() {
            let has = after(&Record::InService, phase.clone(), &with(&[]), taint);
            let expected: Vec<&str> = match (&phase, taint) {
                (Phase::Queued, _) => vec!["queued-taint"],
                (_, MaintenanceTaint::Off) | (Phase::Rejoining, MaintenanceTaint::UntilPowerOn) => {
                    others.to_vec()
                }
                (_, MaintenanceTaint::UntilPowerOn | MaintenanceTaint::UntilBack) => {
                    ["maintenance-taint"].into_iter().chain(others).collect()
                }
            };
            assert_eq!(has, expected, "{phase:?} {taint:?}");
        }
    }
}

#[test]
fn guard_that_is_not_enabled_is_not_set() {
    let none = GuardPolicy {
        maintenance_taint: MaintenanceTaint::Off,
        out_of_service_taint: false,
        enabled: BTreeSet::new(),
        machines: false,
    };
    for phase in phases() {
        let guards = guards_after(&Record::InService, &episode(phase, 0), &with(&[]), &none);
        assert!(guards.is_empty());
    }
}

#[test]
fn guard_of_somebody_else_is_neither_set_nor_removed() {
    let guard = NodeGuard::ClusterAutoscaler;
    for state in [GuardState::Set, GuardState::Other, GuardState::NotNeeded] {
        let found = with(&[(guard, state)]);
        let taint = MaintenanceTaint::UntilPowerOn;
        let has = after(&Record::InService, Phase::Draining, &found, taint);
        assert!(!has.contains(&"cluster-autoscaler"), "{state:?}");
        let before = in_phase(Phase::Draining, &[]);
        let changes = GuardChanges::of(&before, &Record::InService, &found);
        assert_eq!(changes, GuardChanges::default(), "{state:?}");
    }
}

#[test]
fn guard_of_the_episode_is_removed_at_its_end_unless_somebody_changed_it() {
    let guard = NodeGuard::Medik8s;
    let before = in_phase(Phase::Rejoining, &[guard]);
    let removed = |state: Option<GuardState>| {
        let found: Vec<_> = state.map(|state| (guard, state)).into_iter().collect();
        let changes = GuardChanges::of(&before, &Record::InService, &with(&found));
        assert!(changes.set.is_empty());
        changes.remove.contains(&guard)
    };
    assert!(removed(Some(GuardState::Ours)));
    assert!(removed(Some(GuardState::Set)));
    assert!(!removed(Some(GuardState::Other)));
    assert!(!removed(None));
}

#[test]
fn guard_that_the_record_lost_is_known_by_the_field_manager() {
    let guard = NodeGuard::Gardener;
    let found = with(&[(guard, GuardState::Ours)]);
    let before = in_phase(Phase::Draining, &[]);
    let kept = after(&before, Phase::AwaitingHost, &found, MaintenanceTaint::Off);
    assert!(kept.contains(&"gardener"));
    let changes = GuardChanges::of(&before, &Record::InService, &found);
    assert_eq!(changes.remove, BTreeSet::from([guard]));
}

#[test]
fn record_of_another_node_object_owns_no_guard_of_others() {
    let Record::Episode(here) = in_phase(Phase::AwaitingHost, &[NodeGuard::Medik8s]) else {
        unreachable!()
    };
    let before = Record::Episode(Arc::new(Episode {
        node_uid: NodeUid::new("the-node-before"),
        ..Episode::clone(&here)
    }));
    let found = with(&[
        (NodeGuard::Medik8s, GuardState::Set),
        (NodeGuard::MaintenanceTaint, GuardState::Set),
    ]);
    let changes = GuardChanges::of(&before, &Record::InService, &found);
    assert_eq!(changes.remove, BTreeSet::from([NodeGuard::MaintenanceTaint]));
}

#[test]
fn queued_taint_makes_way_for_the_maintenance_taint_in_one_patch() {
    let (queued, drained) = (NodeGuard::QueuedTaint, NodeGuard::MaintenanceTaint);
    let found = with(&[(queued, GuardState::Set)]);
    let before = in_phase(Phase::Queued, &[queued]);
    let guards = guards_after(
        &before,
        &episode(Phase::Draining, 0),
        &found,
        &policy(MaintenanceTaint::UntilBack),
    );
    let guards: Vec<NodeGuard> = guards.into_iter().collect();
    let changes = GuardChanges::of(&before, &in_phase(Phase::Draining, &guards), &found);
    assert!(changes.set.contains(&drained) && !changes.set.contains(&queued));
    assert_eq!(changes.remove, BTreeSet::from([queued]));
}

#[test]
fn node_without_an_episode_is_not_changed() {
    let found = with(&[(NodeGuard::MaintenanceTaint, GuardState::Set)]);
    let changes = GuardChanges::of(&Record::InService, &Record::InService, &found);
    assert_eq!(changes, GuardChanges::default());
}

#[test]
fn node_is_out_of_service_while_its_vm_is_off_with_pods_or_volumes_left_behind() {
    let out_of_service = |episode: &Episode, found: &ObservedNode| {
        let policy = policy(MaintenanceTaint::Off);
        let guards = guards_after(&Record::InService, episode, found, &policy);
        guards.contains(&NodeGuard::OutOfServiceTaint)
    };
    for phase in phases() {
        let is_off = matches!(phase, Phase::Relocating { .. } | Phase::AwaitingHost);
        let none = episode(phase.clone(), 0);
        assert!(!out_of_service(&none, &with(&[])), "{phase:?}");
        let pods = Episode {
            left_behind: vec!["ml/train-0".to_owned()],
            ..none.clone()
        };
        assert_eq!(out_of_service(&pods, &with(&[])), is_off, "{phase:?}");
        let volumes = Episode {
            volumes: Some(VolumeWait {
                left: vec!["pvc-1".to_owned()],
                ..VolumeWait::default()
            }),
            ..none
        };
        assert_eq!(out_of_service(&volumes, &with(&[])), is_off, "{phase:?}");
        // Somebody else's stays as it is.
        let found = with(&[(NodeGuard::OutOfServiceTaint, GuardState::Set)]);
        assert!(!out_of_service(&pods, &found));
        let parked = Episode {
            phase: Phase::Parked {
                reason: ParkReason::PoweredOn {
                    request: "by-hand".to_owned(),
                },
                resume: Box::new(phase),
                resume_since: pods.since,
            },
            ..pods
        };
        assert!(!out_of_service(&parked, &with(&[])), "its VM may be on");
    }
}

#[test]
fn out_of_service_taint_of_the_episode_is_removed_before_the_power_on() {
    let guard = NodeGuard::OutOfServiceTaint;
    let found = with(&[(guard, GuardState::Set)]);
    let after = in_phase(Phase::PoweringOn { by_drs: false }, &[]);
    for (recorded, is_removed) in [(&[guard][..], true), (&[][..], false)] {
        let changes = GuardChanges::of(&in_phase(Phase::AwaitingHost, recorded), &after, &found);
        assert_eq!(changes.remove.contains(&guard), is_removed);
    }
}
