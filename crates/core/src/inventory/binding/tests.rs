use super::*;
use crate::facts::kubernetes::{KubernetesUpdate, NodeMaintenanceUpdate};
use crate::facts::vsphere::{self as vsphere, Compute, Drs, DrsBehavior};
use crate::fixtures::of_model;
use crate::ids::ComputeRef;
use crate::ids::{EpisodeId, NodeUid, VmUuid};
use crate::inventory::tests::identity::decided;
use crate::inventory::tests::{
    apply_all, at, copied, found, inventory_settings, inventory_under, inventory_with, moment, name, node,
    seen_of, snapshot_of, switched_off, trio, uuid, vm, vsphere, with_episode,
};
use crate::inventory::{Fact, InventorySettings};
use crate::maintenance::decide::Decision;
use crate::maintenance::effect::{Effect, PowerOnTarget};
use crate::maintenance::episode::{DrainEnd, Phase};
use crate::maintenance::observed::LeadershipEpoch;

#[test]
fn a_node_is_bound_only_when_each_of_its_uuids_was_looked_up() {
    let of_two_uuids = NodeFacts {
        provider_uuid: Some(uuid(1)),
        system_uuid: Some(uuid(2)),
        ..node(1)
    };
    let mut inventory = inventory_with(trio(1).into_iter().chain([seen_of(of_two_uuids)]));
    assert_eq!(inventory.update_watch_set().vms.len(), 2);
    assert_eq!(snapshot_of(&mut inventory, 1).observed.vm, BoundVm::NotLookedUp);
    inventory.apply(found(2, &[]));
    assert!(matches!(
        snapshot_of(&mut inventory, 1).observed.vm,
        BoundVm::Found(_)
    ));
    inventory.apply(vsphere(vsphere::VsphereUpdate::Vm(vm(2))));
    inventory.apply(found(2, &[2]));
    let both = [1, 2].map(|n| VmRef::new(format!("vm-{n}")));
    assert_eq!(
        snapshot_of(&mut inventory, 1).observed.vm,
        BoundVm::Ambiguous(both.into())
    );
}

#[test]
fn a_vm_with_a_device_at_a_fixed_address_is_not_left_to_drs() {
    let cluster = vsphere(vsphere::VsphereUpdate::Compute(Compute {
        moref: ComputeRef::new("c"),
        name: None,
        drs: Some(Drs {
            enabled: true,
            behavior: DrsBehavior::FullyAutomated,
            overrides: Default::default(),
        }),
        rules: Default::default(),
    }));
    let mut inventory = inventory_with(trio(1).into_iter().chain([cluster]));
    let mut drs = |devices: Option<Vec<Passthrough>>| {
        inventory.apply(vsphere(vsphere::VsphereUpdate::Vm(Vm {
            passthrough: devices,
            ..vm(1)
        })));
        snapshot_of(&mut inventory, 1).observed.vm.found().unwrap().drs
    };
    let dynamic = || Passthrough::Dynamic(of_model((1, 2)));
    let fixed = || Passthrough::Static {
        address: "0000:01:00.0".to_owned(),
        vendor: 1,
        device: Some(2),
    };
    assert!(drs(Some(vec![dynamic()])));
    assert!(!drs(Some(vec![fixed()])));
    assert!(!drs(Some(vec![dynamic(), fixed()])), "one of two is enough");
    assert!(!drs(None), "its devices are unknown");
    assert!(drs(Some(Vec::new())));
}

#[test]
fn of_two_nodes_at_the_start_the_one_with_a_copy_of_its_record_gets_the_vm() {
    let with_id = |n: usize| NodeFacts {
        provider_uuid: Some(uuid(9)),
        system_uuid: Some(uuid(9)),
        ..node(n)
    };
    let without_id = |n: usize| NodeFacts {
        provider_uuid: None,
        ..with_id(n)
    };
    // Another VM's episode in the copy is no claim.
    for (copy_of, owner) in [(9, 3), (3, 2)] {
        let copy = copied(with_episode(3, Phase::AwaitingHost, |episode| {
            episode.vm_uuid = Some(uuid(copy_of));
        }));
        let mut inventory = inventory_with([
            vsphere(vsphere::VsphereUpdate::Vm(vm(9))),
            found(9, &[9]),
            copy,
            seen_of(with_id(2)),
            seen_of(without_id(3)),
        ]);
        for n in [2, 3] {
            let is_bound = snapshot_of(&mut inventory, n).observed.vm.found().is_some();
            assert_eq!(is_bound, n == owner, "a copy of VM {copy_of}, node {n}");
        }
    }
}

fn with_uuid(reported: usize, n: usize) -> NodeFacts {
    NodeFacts {
        provider_uuid: None,
        system_uuid: Some(uuid(reported)),
        ..node(n)
    }
}

/// A Node reports the UUID of the VM of a deleted Node, which an episode keeps off. Only a copy of its record is left.
fn deleted_with_a_rival(deleted: usize, rival: usize) -> [Fact; 4] {
    let copy = with_episode(deleted, Phase::AwaitingHost, |episode| {
        episode.vm_uuid = Some(uuid(9));
    });
    [
        vsphere(vsphere::VsphereUpdate::Vm(Vm {
            power: Some(PowerState::Off),
            ..vm(9)
        })),
        found(9, &[9]),
        seen_of(with_uuid(9, rival)),
        copied(copy),
    ]
}

#[test]
fn deleted_node_with_a_copy_of_its_record_gets_its_vm_at_the_start_whatever_its_name() {
    for (deleted, rival) in [(2, 3), (3, 2)] {
        let mut inventory = inventory_with(deleted_with_a_rival(deleted, rival));
        let snapshots = inventory.all_snapshots();
        let vm_of = |n: usize| &snapshots[&name(n)].observed.vm;
        assert!(vm_of(deleted).found().is_some(), "node {deleted} is deleted");
        assert_eq!(*vm_of(rival), BoundVm::Shared(vec![name(deleted)]));
    }
}

#[test]
fn no_node_gets_the_vm_of_two_at_the_start_before_the_copies_of_records_are_listed() {
    let [vm, lookup, rival, copy] = deleted_with_a_rival(2, 3);
    let older = seen_of(with_uuid(9, 1));
    let listed = |update| Fact::Kubernetes(KubernetesUpdate::Maintenances(update));
    let settings = InventorySettings {
        node_maintenances: true,
        ..inventory_settings()
    };
    let mut inventory = inventory_under(settings, [vm, lookup, older, rival]);
    inventory.all_snapshots();
    for fact in [
        listed(NodeMaintenanceUpdate::Reset),
        copy,
        listed(NodeMaintenanceUpdate::Settled),
    ] {
        inventory.apply(fact);
    }
    let snapshots = inventory.all_snapshots();
    assert!(snapshots[&name(2)].observed.vm.found().is_some());
}

#[test]
fn no_node_gets_the_vm_of_two_at_the_start_before_the_lookup_of_each_is_answered() {
    // A guest reports its UUID in the other byte order, so this is another key.
    let [vm, lookup, _, copy] = deleted_with_a_rival(3, 2);
    let rival = seen_of(NodeFacts {
        provider_uuid: None,
        system_uuid: Some(uuid(9).swapped()),
        ..node(2)
    });
    let of_rival = vsphere(vsphere::VsphereUpdate::Found {
        key: VmKey::Uuid(uuid(9).swapped()),
        vms: [VmRef::new("vm-9")].into(),
    });
    let mut inventory = inventory_with([vm, of_rival, rival, copy]);
    inventory.update_watch_set();
    inventory.all_snapshots();
    inventory.apply(lookup);
    let snapshots = inventory.all_snapshots();
    let vm_of = |n: usize| &snapshots[&name(n)].observed.vm;
    assert!(vm_of(3).found().is_some(), "{:?}", vm_of(3));
}

#[test]
fn vm_that_was_given_away_without_the_copies_of_records_goes_to_the_node_that_has_one() {
    let [vm, lookup, rival, copy] = deleted_with_a_rival(3, 2);
    let listed = |update| Fact::Kubernetes(KubernetesUpdate::Maintenances(update));
    let settings = InventorySettings {
        node_maintenances: true,
        ..inventory_settings()
    };
    let mut inventory = inventory_under(settings, [vm, lookup, rival]);
    let lost = listed(NodeMaintenanceUpdate::Lost {
        why: "a webhook".to_owned(),
        refused: false,
    });
    inventory.advance([lost], moment(1));
    inventory.advance([], moment(100));
    let bound = &inventory.all_snapshots()[&name(2)].observed.vm;
    assert!(bound.found().is_some(), "maintenance goes on without the watch");
    let list = [
        listed(NodeMaintenanceUpdate::Reset),
        copy,
        listed(NodeMaintenanceUpdate::Settled),
    ];
    inventory.advance(list, moment(101));
    let snapshots = inventory.all_snapshots();
    assert!(snapshots[&name(3)].observed.vm.found().is_some());
}

#[test]
fn vm_of_a_deleted_node_is_looked_up_again_as_long_as_its_episode_lasts() {
    let [vm, lookup, _, copy] = deleted_with_a_rival(3, 2);
    let mut inventory = inventory_with([vm, lookup, copy]);
    let urgent = inventory.update_watch_set().urgent;
    assert!(urgent.contains_key(&VmKey::Uuid(uuid(9))), "{urgent:?}");
}

#[test]
fn forged_record_of_a_deleted_node_claims_no_vm_of_another_one() {
    // The kubelet of node 2 reports the UUID of VM 1 and has written the record of node 1 to its Node.
    let liar = NodeFacts {
        system_uuid: Some(uuid(1)),
        ..with_episode(2, Phase::Draining, |episode| episode.vm_uuid = Some(uuid(1)))
    };
    let gone = KubernetesUpdate::NodeGone {
        name: liar.name.clone(),
        uid: liar.uid.clone(),
    };
    let vms = [1, 2].map(|n| vsphere(vsphere::VsphereUpdate::Vm(vm(n))));
    let mut inventory =
        inventory_with(
            vms.into_iter()
                .chain([found(1, &[1]), found(2, &[2]), seen_of(liar)]),
        );
    inventory.apply(Fact::Kubernetes(gone));
    inventory.all_snapshots();
    inventory.apply(seen_of(node(1)));
    let bound = snapshot_of(&mut inventory, 1).observed.vm;
    assert!(bound.found().is_some(), "{bound:?}");
}

#[test]
fn record_on_a_deleted_node_claims_no_vm_that_the_node_did_not_name() {
    // No Node has VM 1, which a person has powered off. A kubelet has written a record of it to Node 2.
    let liar = |provider_uuid: Option<VmUuid>, reported: usize| NodeFacts {
        provider_uuid,
        system_uuid: Some(uuid(reported)),
        ..with_episode(2, Phase::AwaitingHost, |episode| episode.vm_uuid = Some(uuid(1)))
    };
    let cases = [
        (NodeBinding::ProviderId, liar(None, 1)),
        (NodeBinding::ProviderId, liar(Some(uuid(2)), 1)),
        (NodeBinding::Uuid, liar(Some(uuid(2)), 2)),
        (NodeBinding::Name, liar(None, 2)),
    ];
    for (binding, liar) in cases {
        let case = format!("{binding:?}, {:?}", liar.provider_uuid);
        let settings = InventorySettings {
            binding,
            ..inventory_settings()
        };
        let gone = KubernetesUpdate::NodeGone {
            name: liar.name.clone(),
            uid: liar.uid.clone(),
        };
        let off = vsphere(vsphere::VsphereUpdate::Vm(Vm {
            power: Some(PowerState::Off),
            ..vm(1)
        }));
        let mut inventory = inventory_under(settings, [off, seen_of(liar)]);
        inventory.all_snapshots();
        inventory.apply(Fact::Kubernetes(gone));
        inventory.all_snapshots();
        inventory.apply(found(1, &[1]));
        let snapshots = inventory.all_snapshots();
        let bound = snapshots.get(&name(2)).map(|snapshot| &snapshot.observed.vm);
        assert!(bound.is_none_or(|vm| vm.found().is_none()), "{case}: {bound:?}");
    }
}

#[test]
fn node_whose_vm_is_unknown_is_no_vm_where_nothing_says_that_it_is_one() {
    let physical = || NodeFacts {
        provider_uuid: None,
        system_uuid: Some(uuid(1)),
        ..node(1)
    };
    let seen_with = |settings: InventorySettings, node: NodeFacts| {
        let mut inventory = Inventory::new(settings, at(0));
        inventory.set_time(moment(0));
        apply_all(
            &mut inventory,
            trio(1).into_iter().chain([seen_of(node), found(1, &[])]),
        );
        snapshot_of(&mut inventory, 1).observed.vm
    };
    let missing = BoundVm::Missing { was_known: false };
    assert_eq!(seen_with(inventory_settings(), physical()), BoundVm::NoVm);
    assert_eq!(
        seen_with(inventory_settings(), node(1)),
        missing,
        "it has a provider ID of vSphere"
    );
    let mut had_one = physical();
    had_one.annotations.last_episode = Some("anything".to_owned());
    assert_eq!(seen_with(inventory_settings(), had_one), missing);
    let mut has_one = with_episode(1, Phase::Draining, |_| {});
    has_one.provider_uuid = None;
    has_one.system_uuid = Some(uuid(1));
    assert_eq!(seen_with(inventory_settings(), has_one), missing);

    let by_provider_id = || InventorySettings {
        binding: NodeBinding::ProviderId,
        ..inventory_settings()
    };
    assert_eq!(seen_with(by_provider_id(), physical()), BoundVm::NoVm);
    let mut nameless = physical();
    nameless.system_uuid = None;
    assert_eq!(seen_with(inventory_settings(), nameless), BoundVm::NoUuid);
}

#[test]
fn vm_that_was_bound_and_is_gone_stays_missing() {
    let mut inventory = inventory_with(trio(1));
    let without_id = NodeFacts {
        provider_uuid: None,
        system_uuid: Some(uuid(1)),
        resource_version: 11,
        ..node(1)
    };
    inventory.apply(seen_of(without_id));
    assert!(snapshot_of(&mut inventory, 1).observed.vm.found().is_some());
    inventory.apply(found(1, &[]));
    assert_eq!(
        snapshot_of(&mut inventory, 1).observed.vm,
        BoundVm::Missing { was_known: true }
    );
}

#[test]
fn reported_uuid_does_not_count_where_a_provider_id_is_required() {
    let required = InventorySettings {
        binding: NodeBinding::ProviderId,
        ..inventory_settings()
    };
    let of = |provider_uuid: Option<VmUuid>| {
        let node = NodeFacts {
            provider_uuid,
            system_uuid: Some(uuid(2)),
            ..node(1)
        };
        let mut inventory = Inventory::new(required.clone(), at(0));
        inventory.set_time(moment(0));
        let facts = trio(1).into_iter().chain([seen_of(node)]);
        apply_all(&mut inventory, facts);
        snapshot_of(&mut inventory, 1).observed.vm
    };
    assert!(matches!(of(Some(uuid(1))), BoundVm::Found(_)));
    assert_eq!(of(None), BoundVm::NoVm);
}

#[test]
fn vm_that_vcenter_can_move_is_not_pinned_and_left_to_it_where_it_gets_unlimited_time() {
    let of = |is_unlimited: bool, passthrough: Option<Vec<Passthrough>>| {
        let mut settings = inventory_settings();
        if is_unlimited {
            settings.vmotion_grace = VmotionGrace::Unlimited;
        }
        let mut inventory = Inventory::new(settings, at(0));
        inventory.set_time(moment(0));
        let mut vm = vm(1);
        vm.passthrough = passthrough;
        let facts = trio(1)
            .into_iter()
            .chain([vsphere(vsphere::VsphereUpdate::Vm(vm))]);
        apply_all(&mut inventory, facts);
        let bound = snapshot_of(&mut inventory, 1).observed.vm;
        let vm = bound.found().unwrap();
        (vm.is_left_to_vcenter, vm.is_pinned)
    };
    let fixed = || Passthrough::Other {
        backing: "another".to_owned(),
    };
    for (passthrough, is_left, is_pinned) in [
        (Some(Vec::new()), true, false),
        // Its configuration cannot be read.
        (None, false, false),
        (Some(vec![Passthrough::Dvx]), true, false),
        (Some(vec![fixed()]), false, true),
        (Some(vec![Passthrough::Dvx, fixed()]), false, true),
    ] {
        assert_eq!(
            of(true, passthrough.clone()),
            (is_left, is_pinned),
            "{passthrough:?}"
        );
        assert_eq!(
            of(false, passthrough.clone()),
            (false, is_pinned),
            "{passthrough:?}"
        );
    }
}

#[test]
fn vm_outside_the_scope_is_not_bound_and_the_reason_is_known() {
    let outside = |numbers: &[usize]| {
        vsphere(vsphere::VsphereUpdate::OutOfScope {
            keys: numbers.iter().map(|n| vsphere::VmKey::Uuid(uuid(*n))).collect(),
        })
    };
    let mut inventory = inventory_with(trio(1));
    inventory.apply(outside(&[1]));
    inventory.apply(found(1, &[]));
    assert_eq!(snapshot_of(&mut inventory, 1).observed.vm, BoundVm::OutOfScope);
    // A clone in scope has the same UUID.
    inventory.apply(found(1, &[1]));
    assert!(matches!(
        snapshot_of(&mut inventory, 1).observed.vm,
        BoundVm::Found(_)
    ));
    inventory.apply(outside(&[]));
    inventory.apply(found(1, &[]));
    assert!(matches!(
        snapshot_of(&mut inventory, 1).observed.vm,
        BoundVm::Missing { .. }
    ));
}

/// Node 1 in `phase` of an episode with vm-1, which reports these UUIDs.
fn of_vm_1(phase: Phase, provider_uuid: Option<VmUuid>, system_uuid: Option<VmUuid>) -> NodeFacts {
    let episode = with_episode(1, phase, |episode| {
        episode.vm = Some(VmRef::new("vm-1"));
        episode.powered_off = episode.phase.vm_is_off();
    });
    NodeFacts {
        provider_uuid,
        system_uuid,
        ..episode
    }
}

/// With `binding`, where no VM has the name of a node. vm-1 is off, and its host is back.
fn bound_by(binding: NodeBinding, facts: impl IntoIterator<Item = Fact>) -> Inventory {
    let settings = InventorySettings {
        binding,
        node_maintenances: true,
        ..inventory_settings()
    };
    let mut inventory = Inventory::new(settings, at(0));
    inventory.set_time(moment(0));
    let no_name = vsphere(vsphere::VsphereUpdate::Found {
        key: VmKey::Name(name(1).to_string()),
        vms: BTreeSet::new(),
    });
    let host = trio(1).into_iter().nth(1);
    inventory.apply(Fact::Leadership(Some(LeadershipEpoch::ALONE)));
    let facts = switched_off(1)
        .into_iter()
        .chain(host)
        .chain([no_name])
        .chain(facts);
    apply_all(&mut inventory, facts);
    let listed = KubernetesUpdate::Maintenances(NodeMaintenanceUpdate::Settled);
    inventory.apply(Fact::Kubernetes(listed));
    inventory
}

/// What a Node reports of its VM, and by what the next process binds it.
const OTHER_BINDINGS: [(bool, NodeBinding); 4] = [
    (true, NodeBinding::ProviderId),
    (true, NodeBinding::Name),
    (false, NodeBinding::ProviderId),
    (false, NodeBinding::Uuid),
];

#[test]
fn vm_that_is_off_is_powered_on_although_the_next_process_binds_nodes_by_something_else() {
    for (reports, binding) in OTHER_BINDINGS {
        let case = format!("reports its UUID: {reports}, bound by {binding:?}");
        let node = of_vm_1(Phase::AwaitingHost, None, reports.then(|| uuid(1)));
        let mut inventory = bound_by(binding, [copied(node.clone()), seen_of(node)]);
        assert!(
            inventory.update_watch_set().vms.contains(&VmKey::Uuid(uuid(1))),
            "{case}"
        );
        let decision = decided(&mut inventory, 1);
        let Decision::Write(transition) = decision else {
            panic!("{case}: {decision:#?}");
        };
        let phase = transition.record.phase().cloned();
        assert_eq!(phase, Some(Phase::PoweringOn { by_drs: false }), "{case}");
    }
}

#[test]
fn vm_of_a_deleted_node_is_powered_on_although_the_next_process_binds_nodes_by_name() {
    let copy = copied(of_vm_1(Phase::PoweringOn { by_drs: false }, None, None));
    let mut inventory = bound_by(NodeBinding::Name, [copy]);
    assert!(inventory.update_watch_set().vms.contains(&VmKey::Uuid(uuid(1))));
    let Decision::Act { effect, .. } = decided(&mut inventory, 1) else {
        panic!("{:#?}", decided(&mut inventory, 1));
    };
    let place = PowerOnTarget::Host(crate::ids::HostRef::new("host-1"));
    let vm = VmRef::new("vm-1");
    assert_eq!(effect, Effect::PowerOn { vm, place });
}

#[test]
fn recorded_vm_is_looked_up_again_before_its_power_is_cut() {
    let node = of_vm_1(Phase::ShuttingDown(DrainEnd::Complete), None, Some(uuid(1)));
    let on = vsphere(vsphere::VsphereUpdate::Vm(vm(1)));
    let mut inventory = bound_by(NodeBinding::ProviderId, [copied(node.clone()), seen_of(node), on]);
    inventory.update_watch_set();
    assert_eq!(snapshot_of(&mut inventory, 1).observed.vm, BoundVm::NotLookedUp);
    inventory.apply(found(1, &[1]));
    let bound = snapshot_of(&mut inventory, 1).observed.vm;
    assert!(matches!(bound, BoundVm::Found(_)), "{bound:?}");
}

#[test]
fn record_that_a_kubelet_can_write_binds_no_vm() {
    let forged = || of_vm_1(Phase::AwaitingHost, None, Some(uuid(1)));
    let of_another_node = || {
        copied(with_episode(1, Phase::AwaitingHost, |episode| {
            episode.node_uid = NodeUid::new("uid-7");
        }))
    };
    let of_another_release = || {
        copied(with_episode(1, Phase::AwaitingHost, |episode| {
            episode.release = "other/other".into();
        }))
    };
    let unreported = || NodeFacts {
        system_uuid: None,
        ..forged()
    };
    for (case, facts) in [
        ("a record alone", vec![seen_of(forged())]),
        (
            "a copy of another Node",
            vec![of_another_node(), seen_of(unreported())],
        ),
        (
            "a copy of another release",
            vec![of_another_release(), seen_of(forged())],
        ),
    ] {
        let mut inventory = bound_by(NodeBinding::ProviderId, facts);
        let bound = snapshot_of(&mut inventory, 1).observed.vm;
        assert!(bound.found().is_none(), "{case}: {bound:?}");
        assert!(inventory.update_watch_set().vms.is_empty(), "{case}");
    }
}

#[test]
fn recorded_vm_stays_with_its_node_where_another_one_matches_it_by_now() {
    let node_1 = of_vm_1(Phase::AwaitingHost, None, None);
    // The VM has the name of node 0, which is looked at first.
    let named = vsphere(vsphere::VsphereUpdate::Found {
        key: VmKey::Name(name(0).to_string()),
        vms: BTreeSet::from([VmRef::new("vm-1")]),
    });
    let facts = [copied(node_1.clone()), seen_of(node_1), seen_of(node(0)), named];
    let mut inventory = bound_by(NodeBinding::Name, facts);
    assert!(snapshot_of(&mut inventory, 1).observed.vm.found().is_some());
    assert_eq!(
        snapshot_of(&mut inventory, 0).observed.vm,
        BoundVm::Shared(vec![name(1)])
    );
}

#[test]
fn only_a_vm_that_an_episode_has_switched_off_is_found_outside_the_scope() {
    let kept_off = |node: NodeFacts, copy: Option<NodeFacts>| {
        let facts = copy.map(copied).into_iter().chain([seen_of(node)]);
        bound_by(NodeBinding::Uuid, facts).update_watch_set().kept_off
    };
    let of = |phase| of_vm_1(phase, None, Some(uuid(1)));
    let vm = BTreeSet::from([VmRef::new("vm-1")]);
    for phase in [Phase::AwaitingHost, Phase::PoweringOn { by_drs: false }] {
        let node = of(phase);
        assert_eq!(kept_off(node.clone(), Some(node.clone())), vm, "{:?}", node.name);
        assert!(kept_off(node, None).is_empty(), "a kubelet can write a record");
    }
    let back = with_episode(1, Phase::Rejoining, |episode| {
        episode.vm = Some(VmRef::new("vm-1"));
    });
    assert_eq!(
        kept_off(back.clone(), Some(back)),
        vm,
        "until it is back in service"
    );
    for phase in [
        Phase::Draining,
        Phase::ShuttingDown(DrainEnd::Complete),
        // Its VM was never off.
        Phase::Rejoining,
    ] {
        let node = of(phase);
        assert!(kept_off(node.clone(), Some(node)).is_empty());
    }
    // The record has not reached the Node yet, or is another one's.
    let other = with_episode(1, Phase::AwaitingHost, |episode| {
        episode.id = EpisodeId::new("1".repeat(32));
        episode.vm = Some(VmRef::new("vm-9"));
    });
    assert!(kept_off(of(Phase::AwaitingHost), Some(other)).is_empty());
}
