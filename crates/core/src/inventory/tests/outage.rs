//! When snapshots are built, and what an outage of one source delays.

use std::time::Duration;

use crate::facts::kubernetes::{
    KubernetesUpdate, NodeFacts, NodeMaintenanceFacts, NodeMaintenanceRole, NodeMaintenanceUpdate,
    RequestAction,
};
use crate::facts::vsphere::{PowerState, Vm, VsphereUpdate};
use crate::fixtures::{
    RELEASE, at, drain_report, found, inventory_settings, moment, name, node_facts, synced, trio, vm_facts,
};
use crate::ids::RequestUid;
use crate::inventory::{Changes, Fact, Inventory, InventorySettings};
use crate::maintenance::clock::Now;
use crate::maintenance::effect_report::{EffectReport, EffectResult};
use crate::maintenance::episode::Phase;
use crate::maintenance::observed::{LeadershipEpoch, NodeSnapshot, SourceState};

use super::{asked, in_episode, in_phase, with_episode};

/// An inventory of a leader, at second 0.
fn leading(settings: InventorySettings, facts: impl IntoIterator<Item = Fact>) -> Inventory {
    let mut inventory = Inventory::new(settings, at(0));
    let begin = [Fact::Leadership(Some(LeadershipEpoch::ALONE))];
    inventory.advance(begin.into_iter().chain(synced(facts)), moment(0));
    inventory
}

fn objects(update: NodeMaintenanceUpdate) -> Fact {
    Fact::Kubernetes(KubernetesUpdate::Maintenances(update))
}

fn lost() -> Fact {
    objects(NodeMaintenanceUpdate::Lost {
        why: "403".to_owned(),
        refused: true,
    })
}

fn sources(inventory: &Inventory, n: usize) -> SourceState {
    let snapshot = inventory.snapshots.get(&name(n)).expect("a snapshot");
    snapshot.observed.sources.clone()
}

fn built(changes: &Changes, n: usize) -> Option<&NodeSnapshot> {
    let built = changes.built.as_ref()?;
    built.snapshots.get(&name(n)).map(AsRef::as_ref)
}

#[test]
fn nothing_is_built_without_a_new_fact() {
    let mut inventory = leading(
        inventory_settings(),
        [trio(1), vec![in_phase(1, Phase::Drained)]].concat(),
    );
    assert!(!inventory.snapshots.is_empty());
    let changes = inventory.advance([], moment(1));
    assert!(changes.built.is_none(), "{changes:?}");
    assert!(changes.requested.is_none(), "{changes:?}");
    let vm = Vm {
        power: Some(PowerState::Off),
        ..vm_facts(1)
    };
    let facts = [VsphereUpdate::Vm(vm), VsphereUpdate::Settled];
    let changes = inventory.advance(facts.map(Fact::Vsphere), moment(1));
    assert!(built(&changes, 1).is_some(), "{changes:?}");
}

#[test]
fn pods_are_watched_of_nodes_that_are_drained_or_kept_so() {
    for (phase, is_watched) in [
        (Phase::Queued, false),
        (Phase::Draining, true),
        (Phase::Drained, true),
        (Phase::AwaitingHost, false),
    ] {
        let mut inventory = leading(inventory_settings(), trio(1));
        let changes = inventory.advance([in_phase(1, phase.clone())], moment(1));
        let draining = changes.built.expect("a snapshot").draining;
        assert_eq!(draining.contains(&name(1)), is_watched, "{phase:?}");
    }
}

fn with_requests() -> InventorySettings {
    InventorySettings {
        node_maintenances: true,
        ..inventory_settings()
    }
}

fn request_for(n: usize) -> Fact {
    let seen = NodeMaintenanceFacts {
        uid: RequestUid::new("request-1"),
        name: "by-hand".to_owned(),
        resource_version: 1,
        generation: 1,
        created_at: at(0),
        node: name(n),
        role: NodeMaintenanceRole::Request(asked(RequestAction::Drain)),
        is_over: false,
        status: Box::default(),
    };
    objects(NodeMaintenanceUpdate::Seen(Box::new(seen)))
}

/// Three nodes: 1 has a request, 2 is kept off by a request that its record names, 3 has neither.
fn of_three_nodes() -> Inventory {
    let kept_off: NodeFacts = with_episode(2, Phase::AwaitingHost, |episode| {
        episode.power_off_request = Some(crate::fixtures::request(RequestAction::PowerOff).identity);
    });
    let facts = [trio(1), trio(2), trio(3)].concat();
    let more = [
        Fact::Kubernetes(KubernetesUpdate::Node(Box::new(kept_off))),
        objects(NodeMaintenanceUpdate::Reset),
        request_for(1),
        objects(NodeMaintenanceUpdate::Settled),
    ];
    leading(with_requests(), facts.into_iter().chain(more))
}

#[test]
fn an_outage_of_requests_holds_up_every_node_for_thirty_seconds() {
    let mut inventory = of_three_nodes();
    for n in 1..=3 {
        assert_eq!(sources(&inventory, n), SourceState::Synced, "{n}");
    }
    inventory.advance([lost()], moment(10));
    assert!(inventory.next_at().is_some_and(|at| at <= moment(40).monotonic));
    inventory.advance([], moment(39));
    assert_eq!(inventory.ignored_request_watch(), None);
    for n in 1..=3 {
        assert!(
            matches!(sources(&inventory, n), SourceState::NoKubernetes { .. }),
            "{n}"
        );
    }
}

#[test]
fn a_long_outage_of_requests_holds_up_only_nodes_with_a_request() {
    let mut inventory = of_three_nodes();
    inventory.advance([lost()], moment(10));
    inventory.advance([], moment(40));
    assert!(
        inventory
            .ignored_request_watch()
            .is_some_and(|why| why.contains("403"))
    );
    for (n, is_held_up) in [(1, true), (2, true), (3, false)] {
        let sources = sources(&inventory, n);
        assert_eq!(
            matches!(sources, SourceState::NoKubernetes { .. }),
            is_held_up,
            "{n}: {sources:?}"
        );
    }
    // While the outage lasts, nothing changes.
    inventory.advance([lost()], moment(50));
    assert_eq!(sources(&inventory, 3), SourceState::Synced);
    inventory.advance(
        [
            objects(NodeMaintenanceUpdate::Reset),
            request_for(1),
            objects(NodeMaintenanceUpdate::Settled),
        ],
        moment(60),
    );
    assert_eq!(inventory.ignored_request_watch(), None);
    for n in 1..=3 {
        assert_eq!(sources(&inventory, n), SourceState::Synced, "{n}");
    }
}

#[test]
fn a_node_keeps_its_vm_beside_a_node_created_earlier_without_provider_id() {
    let earlier = NodeFacts {
        created_at: at(-100),
        provider_uuid: None,
        ..node_facts(2)
    };
    let earlier = NodeFacts {
        system_uuid: node_facts(1).system_uuid,
        ..earlier
    };
    let inventory = leading(
        inventory_settings(),
        trio(1).into_iter().chain([
            Fact::Kubernetes(KubernetesUpdate::Node(Box::new(earlier))),
            found(2, &[1]),
        ]),
    );
    let vm = |n| {
        inventory.snapshots[&name(n)]
            .observed
            .vm
            .found()
            .map(|vm| vm.moref.clone())
    };
    assert_eq!(vm(1), Some(vm_facts(1).moref));
    assert_eq!(vm(2), None);
}

#[test]
fn a_drain_round_counts_until_the_node_leaves_the_phases_that_drain() {
    let rounds = [
        (Phase::Draining, true),
        (Phase::Drained, true),
        (Phase::AwaitingHost, false),
    ];
    for (phase, is_kept) in rounds {
        let node = |version, phase: &Phase| NodeFacts {
            resource_version: version,
            unschedulable: true,
            ..in_episode(1, phase.clone(), RELEASE)
        };
        let mut inventory = leading(inventory_settings(), trio(1));
        let seen = |node| Fact::Kubernetes(KubernetesUpdate::Node(Box::new(node)));
        inventory.advance([seen(node(11, &Phase::Draining))], moment(1));
        let round = EffectReport {
            node: name(1),
            found: EffectResult::Drain(drain_report(moment(1).monotonic, Vec::new())),
        };
        inventory.advance([Fact::Effect(round)], moment(1));
        inventory.advance([seen(node(12, &phase))], moment(2));
        let is_there = inventory.snapshots[&name(1)].observed.drain.is_some();
        assert_eq!(is_there, is_kept, "{phase:?}");
    }
}

#[test]
fn an_older_view_of_a_request_does_not_undo_a_younger_one() {
    let mut inventory = of_three_nodes();
    let seen = |uid: &str, version: u64, n: usize| {
        let Fact::Kubernetes(KubernetesUpdate::Maintenances(NodeMaintenanceUpdate::Seen(seen))) =
            request_for(n)
        else {
            unreachable!("it makes requests");
        };
        let seen = NodeMaintenanceFacts {
            uid: RequestUid::new(uid),
            resource_version: version,
            ..*seen
        };
        objects(NodeMaintenanceUpdate::Seen(Box::new(seen)))
    };
    let asks = |inventory: &Inventory, n| inventory.snapshots[&name(n)].observed.request.is_some();
    inventory.advance([seen("request-1", 5, 3)], moment(1));
    assert!(asks(&inventory, 3) && !asks(&inventory, 1));
    inventory.advance([seen("request-1", 4, 1)], moment(2));
    assert!(asks(&inventory, 3) && !asks(&inventory, 1), "an older version");
    inventory.advance([seen("request-2", 3, 1)], moment(3));
    assert!(
        asks(&inventory, 1) && !asks(&inventory, 3),
        "another object of the name"
    );
}

#[test]
fn no_snapshot_is_built_in_the_pause_after_a_long_build() {
    let mut inventory = leading(inventory_settings(), trio(1));
    let later = |millis: u64| Now {
        monotonic: moment(1).monotonic.after(Duration::from_millis(millis)),
        ..moment(1)
    };
    inventory.record_build_time(later(0), Duration::from_millis(500));
    let fact = in_phase(1, Phase::AwaitingHost);
    assert!(
        inventory.advance([fact], later(100)).built.is_none(),
        "nothing is built yet"
    );
    assert_eq!(inventory.next_at(), Some(later(1_000).monotonic));
    let changes = inventory.advance([], later(1_000));
    let snapshot = built(&changes, 1).expect("the pause is over");
    assert_eq!(snapshot.record.phase_name(), "AwaitingHost");
}

#[test]
fn the_end_of_the_wait_for_requests_is_a_reason_to_build() {
    let synced = [
        objects(NodeMaintenanceUpdate::Reset),
        objects(NodeMaintenanceUpdate::Settled),
    ];
    let mut inventory = leading(with_requests(), trio(1).into_iter().chain(synced));
    inventory.advance([lost()], moment(10));
    assert_eq!(inventory.next_at(), Some(moment(40).monotonic));
    inventory.advance([], moment(40));
    assert_eq!(
        inventory.next_at(),
        Some(moment(60).monotonic),
        "the build of each minute"
    );
}
