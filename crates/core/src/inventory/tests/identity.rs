//! What is one thing: every way in which two objects claim one thing, or one thing comes back under another id. The table with the
//! right behaviour is `docs/development/identity.md`.

use std::time::Duration;

use super::*;
use crate::fixtures::policy;
use crate::maintenance::clock::{Elapsed, Timer};
use crate::maintenance::decide::{Decision, decide};
use crate::maintenance::effect::Effect;
use crate::maintenance::observed::LeadershipEpoch;
use crate::maintenance::policy::DrainTimeoutAction;
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// What is decided for node `n`.
pub(in crate::inventory) fn decided(inventory: &mut Inventory, n: usize) -> Decision {
    let snapshot = snapshot_of(inventory, n);
    decide(
        &snapshot.record,
        &snapshot.observed,
        &policy(DrainTimeoutAction::PowerOff),
        inventory.now,
    )
}

/// The reason why node `n` is parked, or is to be parked.
pub(super) fn parked(inventory: &mut Inventory, n: usize) -> Option<ParkReason> {
    match decided(inventory, n) {
        Decision::Wait {
            waiting_on: WaitingOn::Parked(reason),
            ..
        } => Some(reason),
        Decision::Write(transition) => {
            let (reason, _) = transition.record.episode()?.phase.parked()?;
            Some(reason.clone())
        }
        Decision::Wait { .. } | Decision::Act { .. } | Decision::Idle => None,
    }
}

fn not_ready(node: NodeFacts) -> NodeFacts {
    NodeFacts {
        ready: ReadyCondition {
            is_true: false,
            is_unknown: true,
            heartbeat: None,
            since: None,
        },
        ..node
    }
}

/// Node 2 reports the VM of node 1: the machine has another name now, or the kubelet of node 2 lies.
fn twin() -> NodeFacts {
    NodeFacts {
        created_at: at(100),
        ..claims(2, 1, true)
    }
}

fn click() -> Fact {
    vsphere(vsphere::VsphereUpdate::Host(entering(1, 5).into()))
}

fn gone(n: usize) -> Fact {
    Fact::Kubernetes(kubernetes::KubernetesUpdate::NodeGone {
        name: name(n),
        uid: NodeUid::new(format!("uid-{n}")),
    })
}

/// With these facts, where NodeMaintenances are watched.
fn with_requests(facts: impl IntoIterator<Item = Fact>) -> Inventory {
    let settings = InventorySettings {
        node_maintenances: true,
        ..inventory_settings()
    };
    let mut inventory = Inventory::new(settings, at(0));
    inventory.set_time(moment(0));
    inventory.apply(Fact::Leadership(Some(LeadershipEpoch::ALONE)));
    apply_all(&mut inventory, facts);
    let settled = kubernetes::NodeMaintenanceUpdate::Settled;
    inventory.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::Maintenances(
        settled,
    )));
    inventory
}

/// Node 1 in `phase`, with the proof that it is drained and that its VM was looked up again.
pub(super) fn drained_in(phase: Phase, node: NodeFacts, others: impl IntoIterator<Item = Fact>) -> Inventory {
    let with_record = with_episode(1, phase, |episode| {
        episode.release = RELEASE.into();
        episode.powered_off = false;
        episode.vm = Some(VmRef::new("vm-1"));
    });
    let node = NodeFacts {
        annotations: with_record.annotations,
        unschedulable: true,
        ..node
    };
    drained_with(node, others)
}

/// Node 1 in an episode whose VM, vm-1, is off.
pub(super) fn while_off() -> NodeFacts {
    with_episode(1, Phase::AwaitingHost, |episode| {
        episode.release = RELEASE.into();
        episode.vm = Some(VmRef::new("vm-1"));
    })
}

fn drained_with(node: NodeFacts, others: impl IntoIterator<Item = Fact>) -> Inventory {
    let facts = trio(1).into_iter().skip(1).chain([click(), seen_of(node)]);
    let mut inventory = inventory_with(facts.chain(others));
    inventory.apply(Fact::Leadership(Some(LeadershipEpoch::ALONE)));
    inventory.update_watch_set();
    inventory.all_snapshots();
    list_again(&mut inventory, 3);
    inventory
}

/// At second `now`, a list shows no pod, and a lookup the same VM.
fn list_again(inventory: &mut Inventory, now: i64) {
    inventory.set_time(moment(now));
    inventory.apply(Fact::Effect(EffectReport {
        node: name(1),
        found: EffectResult::Drain(drain_report(moment(now).monotonic, Vec::new())),
    }));
    inventory.apply(found(1, &[1]));
}

/// Whether what is decided leads to a stop of the VM.
fn leads_to_a_stop(decision: &Decision) -> bool {
    match decision {
        Decision::Act { effect, .. } => {
            matches!(effect, Effect::ShutdownGuest { .. } | Effect::PowerOff { .. })
        }
        Decision::Write(transition) => transition
            .record
            .episode()
            .is_some_and(|it| matches!(it.phase, Phase::Draining | Phase::ShuttingDown(_))),
        Decision::Wait { .. } | Decision::Idle => false,
    }
}

#[test]
fn vm_of_a_dead_node_is_not_stopped_under_a_ready_node_that_claims_it() {
    let cut = || Phase::ShuttingDown(DrainEnd::Complete);
    let without_id = NodeFacts {
        provider_uuid: None,
        system_uuid: Some(uuid(1)),
        ..node(1)
    };
    for (case, old) in [("with a provider ID", node(1)), ("without", without_id)] {
        // The old Node has the VM: the other one registered later.
        let mut inventory = inventory_with(
            trio(1)
                .into_iter()
                .skip(1)
                .chain([seen_of(not_ready(old.clone()))]),
        );
        inventory.all_snapshots();
        inventory.apply(seen_of(twin()));
        inventory.apply(click());
        let decision = decided(&mut inventory, 1);
        assert!(!leads_to_a_stop(&decision), "in service, {case}: {decision:?}");
        assert_eq!(
            parked(&mut inventory, 1),
            Some(ParkReason::NodeNotReady { nodes: vec![name(2)] })
        );
        // In each phase before the power-off, also when another process takes over.
        for phase in [Phase::Queued, Phase::Draining, cut()] {
            let mut alone = drained_in(phase.clone(), not_ready(old.clone()), []);
            let decision = decided(&mut alone, 1);
            assert!(
                leads_to_a_stop(&decision),
                "{phase:?} without a twin: {decision:?}"
            );
            alone.apply(seen_of(twin()));
            let decision = decided(&mut alone, 1);
            assert!(!leads_to_a_stop(&decision), "{phase:?}, {case}: {decision:?}");
            let restarted = if old.provider_uuid.is_some() {
                vec![twin()]
            } else {
                Vec::new()
            };
            let mut restarted = drained_in(
                phase.clone(),
                not_ready(old.clone()),
                restarted.into_iter().map(seen_of),
            );
            if old.provider_uuid.is_some() {
                let decision = decided(&mut restarted, 1);
                assert!(
                    !leads_to_a_stop(&decision),
                    "{phase:?} after a restart: {decision:?}"
                );
            }
        }
    }
}

#[test]
fn forged_claim_does_not_keep_a_ready_node_from_maintenance() {
    for phase in [
        Phase::Queued,
        Phase::Draining,
        Phase::ShuttingDown(DrainEnd::Complete),
    ] {
        let mut inventory = drained_in(phase.clone(), node(1), [seen_of(twin())]);
        let decision = decided(&mut inventory, 1);
        assert!(leads_to_a_stop(&decision), "{phase:?}: {decision:?}");
    }
}

#[test]
fn twins_are_told_which_node_to_delete_before_any_maintenance() {
    let mut inventory = inventory_with(trio(1).into_iter().skip(1).chain([seen_of(not_ready(node(1)))]));
    inventory.all_snapshots();
    inventory.apply(seen_of(twin()));
    let held = ParkReason::VmHeldByDeadNode {
        node: name(1),
        is_deleted: false,
    };
    assert_eq!(parked(&mut inventory, 2), Some(held.clone()));
    assert!(held.to_string().ends_with("delete Node gpu-1"), "{held}");
    // A change of the older Node reaches both.
    inventory.apply(seen_of(NodeFacts {
        resource_version: 11,
        ..node(1)
    }));
    let built = inventory.build_snapshots();
    assert_eq!(built[&name(2)].observed.vm, BoundVm::Shared(vec![name(1)]));
    // The younger one may be the dead one as well.
    inventory.apply(seen_of(not_ready(twin())));
    assert_eq!(parked(&mut inventory, 1), None);
    assert_eq!(
        parked(&mut inventory, 2),
        Some(ParkReason::VmShared { nodes: vec![name(1)] })
    );
    // Once the dead Node is deleted, the other one has the VM.
    inventory.apply(seen_of(twin()));
    inventory.apply(gone(1));
    assert!(snapshot_of(&mut inventory, 2).observed.vm.found().is_some());
}

#[test]
fn vm_is_not_stopped_while_none_of_its_nodes_is_ready() {
    let nodes = [seen_of(not_ready(node(1))), seen_of(not_ready(twin()))];
    let mut inventory = inventory_with(trio(1).into_iter().skip(1).chain(nodes).chain([click()]));
    assert_eq!(
        parked(&mut inventory, 1),
        Some(ParkReason::NodeNotReady { nodes: vec![name(2)] })
    );
}

#[test]
fn request_for_either_twin_stops_nothing() {
    for n in [1, 2] {
        let role = kubernetes::NodeMaintenanceRole::Request(asked(kubernetes::RequestAction::PowerOff));
        let request = maintenance("off".to_owned(), name(n), 10, role);
        let nodes = [seen_of(not_ready(node(1))), seen_of(twin())];
        let facts = trio(1).into_iter().skip(1).chain(nodes).chain([request]);
        let mut inventory = with_requests(facts);
        assert!(
            parked(&mut inventory, n).is_some(),
            "{:?}",
            decided(&mut inventory, n)
        );
    }
}

#[test]
fn guest_that_restarts_under_another_name_keeps_its_power() {
    // Its kubelet stopped when the guest was asked. The other Node is Ready since a time before or after.
    let asked_at = 100;
    for (ready_since, is_cut) in [(0, true), (asked_at + 5, false)] {
        let ready = ReadyCondition {
            since: Some(at(ready_since)),
            ..node(2).ready
        };
        let other = NodeFacts {
            ready,
            created_at: at(-500),
            ..twin()
        };
        let with_record = with_episode(1, Phase::ShuttingDown(DrainEnd::Complete), |episode| {
            episode.release = RELEASE.into();
            episode.powered_off = false;
            episode.in_flight.guest_shutdown = Some(Timer {
                since: at(asked_at),
                elapsed: Elapsed::of(Duration::from_secs(1_000)),
            });
        });
        let old = NodeFacts {
            created_at: at(-1_000),
            ..not_ready(with_record)
        };
        let mut inventory = drained_with(old, [seen_of(other)]);
        let decision = decided(&mut inventory, 1);
        let in_flight = |transition: &crate::maintenance::decide::Transition| {
            let episode = transition.record.episode();
            episode.is_some_and(|episode| episode.in_flight.power_off.is_some())
        };
        let leads_to_a_cut = match &decision {
            Decision::Write(transition) => in_flight(transition),
            Decision::Act { .. } | Decision::Wait { .. } | Decision::Idle => false,
        };
        assert_eq!(leads_to_a_cut, is_cut, "Ready since {ready_since}: {decision:?}");
    }
}

#[test]
fn node_that_may_only_look_ready_is_waited_for_before_the_guest_is_asked() {
    // The machine was registered under another name a moment ago, and its old Node is Ready until its kubelet is missed.
    let new = NodeFacts {
        created_at: at(0),
        ..twin()
    };
    let old = NodeFacts {
        created_at: at(-1_000),
        ..node(1)
    };
    let mut inventory = drained_in(Phase::ShuttingDown(DrainEnd::Complete), old, [seen_of(new)]);
    let decision = decided(&mut inventory, 1);
    let Decision::Wait {
        waiting_on: WaitingOn::NodeReady { missing },
        recheck,
    } = decision
    else {
        panic!("{decision:?}");
    };
    assert!(missing.contains("was registered a moment ago"), "{missing}");
    assert!(
        recheck.is_some_and(|at| at <= moment(60).monotonic),
        "{recheck:?}"
    );
    list_again(&mut inventory, 60);
    let decision = decided(&mut inventory, 1);
    assert!(leads_to_a_stop(&decision), "{decision:?}");
}

#[test]
fn machine_that_comes_back_under_another_name_is_free_once_its_old_node_and_maintenance_are_deleted() {
    for phase in [Phase::Draining, Phase::Rejoining] {
        let old = with_episode(1, phase.clone(), |episode| {
            episode.release = RELEASE.into();
            episode.powered_off = phase == Phase::Rejoining;
        });
        let facts = trio(1).into_iter().skip(1);
        let facts = facts.chain([seen_of(not_ready(old.clone())), copied(old)]);
        let mut inventory = with_requests(facts);
        inventory.all_snapshots();
        inventory.apply(seen_of(twin()));
        let held = |is_deleted| ParkReason::VmHeldByDeadNode {
            node: name(1),
            is_deleted,
        };
        assert_eq!(parked(&mut inventory, 2), Some(held(false)), "{phase:?}");
        inventory.apply(gone(1));
        inventory.advance([], moment(1));
        assert_eq!(parked(&mut inventory, 2), Some(held(true)), "{phase:?}");
        assert!(
            held(true)
                .to_string()
                .contains("delete the NodeMaintenance of gpu-1")
        );
        let deleted = kubernetes::NodeMaintenanceUpdate::Gone {
            name: "copy-of-gpu-1".to_owned(),
            uid: crate::ids::RequestUid::new("uid-of-copy-of-gpu-1"),
        };
        inventory.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::Maintenances(
            deleted,
        )));
        inventory.advance([], moment(2));
        let vm = snapshot_of(&mut inventory, 2).observed.vm;
        assert!(vm.found().is_some(), "{phase:?}: {vm:?}");
        // It is not remembered when the VM is off again.
        let [_, off, _] = switched_off(1);
        inventory.apply(off);
        inventory.advance([], moment(3));
        let vm = snapshot_of(&mut inventory, 2).observed.vm;
        assert!(vm.found().is_some(), "{phase:?}, off again: {vm:?}");
    }
}

#[test]
fn node_that_is_not_back_in_time_is_told_under_which_name_its_machine_may_be() {
    for (seconds, reason) in [
        (10, None),
        (1_000, Some(ParkReason::NodeNotReady { nodes: vec![name(2)] })),
    ] {
        let old = with_episode(1, Phase::Rejoining, |episode| {
            episode.release = RELEASE.into();
            episode.elapsed = Elapsed::of(Duration::from_secs(seconds));
        });
        let facts = trio(1).into_iter().skip(1);
        let mut inventory = inventory_with(facts.chain([seen_of(not_ready(old)), seen_of(twin())]));
        assert_eq!(parked(&mut inventory, 1), reason, "after {seconds} s");
    }
}

#[test]
fn deleted_node_of_a_vm_that_is_off_keeps_it_although_its_maintenance_is_deleted_as_well() {
    let old = in_episode(1, Phase::AwaitingHost, RELEASE);
    let mut inventory = with_requests(switched_off(1).into_iter().chain([seen_of(old)]));
    inventory.all_snapshots();
    inventory.apply(seen_of(twin()));
    inventory.apply(gone(1));
    inventory.advance([], moment(1));
    assert!(snapshot_of(&mut inventory, 1).observed.vm.found().is_some());
    assert_eq!(
        snapshot_of(&mut inventory, 2).observed.vm,
        BoundVm::Shared(vec![name(1)])
    );
}
