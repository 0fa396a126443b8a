use super::*;
use crate::facts::vsphere;
use crate::inventory::tests::{
    copied, found, inventory_with, node, seen_of, snapshot_of, trio, uuid, vm, vsphere, with_episode,
};

#[test]
fn a_new_node_of_the_name_with_another_vm_does_not_take_the_copy() {
    let copy = || copied(with_episode(1, Phase::AwaitingHost, |_| {}));
    let mut same = inventory_with(trio(1).into_iter().chain([copy()]));
    assert_eq!(snapshot_of(&mut same, 1).record.phase_name(), "AwaitingHost");

    let another = NodeFacts {
        provider_uuid: Some(uuid(7)),
        system_uuid: None,
        ..node(1)
    };
    let its_vm = vsphere(vsphere::VsphereUpdate::Vm(vm(7)));
    let facts = trio(1)
        .into_iter()
        .chain([seen_of(another), its_vm, found(7, &[7]), copy()]);
    let mut another = inventory_with(facts);
    assert!(snapshot_of(&mut another, 1).observed.vm.found().is_some());
    assert_eq!(snapshot_of(&mut another, 1).record, Record::InService);
}

#[test]
fn a_copy_without_a_vm_uuid_is_no_nodes_record() {
    let copy = copied(with_episode(1, Phase::AwaitingHost, |episode| {
        episode.vm_uuid = None;
    }));
    let nameless = Vm { uuid: None, ..vm(1) };
    let nameless = vsphere(vsphere::VsphereUpdate::Vm(nameless));
    let mut inventory = inventory_with(trio(1).into_iter().chain([nameless, copy]));
    assert_eq!(snapshot_of(&mut inventory, 1).record, Record::InService);
}

#[test]
fn unknown_value_of_an_annotation_is_ignored() {
    for (word, is_true) in [("true", true), ("false", false), ("yes", false), ("", false)] {
        let mut node = node(1);
        let word = Some(word.to_owned());
        node.annotations.keep_cordoned.clone_from(&word);
        node.annotations.skip.clone_from(&word);
        node.annotations.approved.clone_from(&word);
        let seen = observed_node(&node);
        let read = [seen.keep_cordoned, seen.overrides.skip, seen.overrides.approved];
        assert_eq!(read, [is_true; 3], "{word:?}");
    }
    for (word, strategy) in [
        (Some("wait"), Strategy::Wait),
        (Some("migrate"), Strategy::Migrate),
        (Some("later"), Strategy::Migrate),
        (Some("Wait"), Strategy::Migrate),
        (None, Strategy::Migrate),
    ] {
        let mut node = node(1);
        node.annotations.strategy = word.map(str::to_owned);
        assert_eq!(observed_node(&node).overrides.strategy, strategy, "{word:?}");
    }
}
