//! One thing that comes back under another id: a VM, a host, a UUID. The table with the right behaviour is
//! `docs/development/identity.md`.

use super::identity::{decided, drained_in, parked, while_off};
use super::*;
use crate::ids::VmUuid;
use crate::maintenance::decide::Decision;
use crate::maintenance::waiting::ParkReason;

#[test]
fn vm_that_is_registered_again_stays_with_its_node() {
    // The other Node would be preferred: it has a provider ID, and is older.
    let other = NodeFacts {
        created_at: at(-1_000),
        ..claims(2, 1, true)
    };
    let honest = |node: NodeFacts| NodeFacts {
        provider_uuid: None,
        system_uuid: Some(uuid(1)),
        ..node
    };
    let new_vm = |power| Vm {
        moref: VmRef::new("vm-9"),
        power: Some(power),
        ..vm(1)
    };
    let in_service = (honest(node(1)), PowerState::On);
    let off = (honest(while_off()), PowerState::Off);
    for (node, power) in [in_service, off] {
        let mut inventory = inventory_with(trio(1).into_iter().skip(1).chain([seen_of(node)]));
        inventory.all_snapshots();
        inventory.apply(seen_of(other.clone()));
        inventory.all_snapshots();
        inventory.apply(vsphere(vsphere::VsphereUpdate::VmGone(VmRef::new("vm-1"))));
        inventory.all_snapshots();
        inventory.apply(vsphere(vsphere::VsphereUpdate::Vm(new_vm(power))));
        inventory.apply(found(1, &[9]));
        let bound = [1, 2].map(|n| snapshot_of(&mut inventory, n).observed.vm.found().is_some());
        assert_eq!(bound, [true, false], "{power:?}");
        let is_parked = parked(&mut inventory, 1).is_some();
        assert!(!is_parked, "{power:?}: {:?}", decided(&mut inventory, 1));
    }
}

#[test]
fn vm_that_is_registered_again_while_it_runs_is_not_stopped() {
    // Its host was removed from vCenter and added again, which gives both another moref.
    for phase in [
        Phase::Queued,
        Phase::Draining,
        Phase::ShuttingDown(DrainEnd::Complete),
    ] {
        let mut inventory = drained_in(phase.clone(), node(1), []);
        inventory.apply(vsphere(vsphere::VsphereUpdate::VmGone(VmRef::new("vm-1"))));
        inventory.apply(vsphere(vsphere::VsphereUpdate::Vm(Vm {
            moref: VmRef::new("vm-9"),
            ..vm(1)
        })));
        inventory.apply(found(1, &[9]));
        match parked(&mut inventory, 1) {
            Some(ParkReason::VmReplaced { was, is }) => {
                assert!(
                    was.starts_with("vm-1 ") && is.starts_with("vm-9 "),
                    "{phase:?}: {was}, {is}"
                );
            }
            other => panic!("{phase:?}: {other:?}"),
        }
    }
}

#[test]
fn vm_on_a_host_that_was_added_again_is_powered_on_there() {
    let old = while_off();
    let mut inventory = inventory_with(switched_off(1).into_iter().chain([seen_of(old)]));
    inventory.all_snapshots();
    inventory.apply(vsphere(vsphere::VsphereUpdate::HostGone(HostRef::new("host-1"))));
    inventory.apply(vsphere(vsphere::VsphereUpdate::VmGone(VmRef::new("vm-1"))));
    inventory.apply(vsphere(vsphere::VsphereUpdate::Host(
        Host {
            moref: HostRef::new("host-20"),
            name: Some("esx-1".to_owned()),
            ..host(1)
        }
        .into(),
    )));
    inventory.apply(vsphere(vsphere::VsphereUpdate::Vm(Vm {
        moref: VmRef::new("vm-9"),
        power: Some(PowerState::Off),
        host: Some(HostRef::new("host-20")),
        ..vm(1)
    })));
    inventory.apply(found(1, &[9]));
    let decision = decided(&mut inventory, 1);
    let Decision::Write(transition) = decision else {
        panic!("{decision:?}");
    };
    let phase = transition.record.phase();
    assert!(matches!(phase, Some(Phase::PoweringOn { .. })), "{phase:?}");
}

#[test]
fn uuid_in_the_other_byte_order_is_the_same_machine() {
    let swapped = || NodeFacts {
        provider_uuid: Some(uuid(1).swapped()),
        system_uuid: Some(uuid(1)),
        resource_version: 11,
        ..in_episode(1, Phase::AwaitingHost, RELEASE)
    };
    let mut inventory = inventory_with(switched_off(1).into_iter().chain([awaiting(1)]));
    inventory.all_snapshots();
    let answer = |key: VmUuid| {
        vsphere(vsphere::VsphereUpdate::Found {
            key: VmKey::Uuid(key),
            vms: [VmRef::new("vm-1")].into(),
        })
    };
    inventory.apply(seen_of(swapped()));
    inventory.apply(answer(uuid(1).swapped()));
    assert!(snapshot_of(&mut inventory, 1).observed.vm.found().is_some());
    assert_eq!(parked(&mut inventory, 1), None);
    // The second of two Nodes reports the UUID in the other order.
    let twin = NodeFacts {
        provider_uuid: None,
        system_uuid: Some(uuid(1)),
        ..node(2)
    };
    inventory.apply(seen_of(twin));
    inventory.apply(answer(uuid(1)));
    assert_eq!(
        snapshot_of(&mut inventory, 2).observed.vm,
        BoundVm::Shared(vec![name(1)])
    );
}

#[test]
fn clone_that_appears_while_the_vm_is_off_is_not_powered_on() {
    let mut inventory = inventory_with(switched_off(1).into_iter().chain([awaiting(1)]));
    inventory.all_snapshots();
    inventory.apply(vsphere(vsphere::VsphereUpdate::Vm(vm(2))));
    inventory.apply(found(1, &[1, 2]));
    assert_eq!(
        parked(&mut inventory, 1),
        Some(ParkReason::VmAmbiguous { count: 2 })
    );
    inventory.apply(found(1, &[1]));
    assert_eq!(parked(&mut inventory, 1), None);
}

#[test]
fn vm_whose_uuid_was_changed_is_told_and_not_touched() {
    let mut inventory = inventory_with(switched_off(1).into_iter().chain([awaiting(1)]));
    inventory.all_snapshots();
    inventory.apply(found(1, &[]));
    assert_eq!(parked(&mut inventory, 1), Some(ParkReason::VmMissing));
}
