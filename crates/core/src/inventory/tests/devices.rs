//! GPUs in ResourceSlices.

use std::collections::BTreeMap;

use super::{
    at, inventory_settings, inventory_with, moment, name, node, seen_of, snapshot_of, trio, with_episode,
};
use crate::facts::device_slice::DeviceSlice;
use crate::facts::kubernetes::KubernetesUpdate;
use crate::fixtures::synced;
use crate::inventory::{Fact, Inventory, InventorySettings};
use crate::maintenance::episode::Phase;
use crate::maintenance::observed::SourceState;

const DRIVER: &str = "gpu.nvidia.com";

fn devices(slices: &[(i64, u64)]) -> Fact {
    let slice = |&(created, devices): &(i64, u64)| DeviceSlice {
        driver: DRIVER.to_owned(),
        created_at: at(created),
        devices,
    };
    Fact::Kubernetes(KubernetesUpdate::Devices {
        node: name(1),
        slices: slices.iter().map(slice).collect(),
    })
}

fn count(gpus: &BTreeMap<String, u64>) -> Option<u64> {
    gpus.get(DRIVER).copied()
}

#[test]
fn devices_of_a_node_in_service_are_expected_back() {
    let mut inventory = inventory_with(trio(1));
    inventory.apply(devices(&[(5, 4), (8, 4)]));
    let seen = |inventory: &mut Inventory| snapshot_of(inventory, 1).observed.node.unwrap();
    let before = seen(&mut inventory);
    assert_eq!(
        (count(&before.gpus), count(&before.expected_gpus)),
        (Some(8), Some(8))
    );
    assert_eq!(before.newest_slice, Some(at(8)));
    inventory.apply(devices(&[]));
    let after = seen(&mut inventory);
    assert_eq!(count(&after.gpus), None);
    assert_eq!(
        count(&after.expected_gpus),
        Some(8),
        "its driver may only restart"
    );
    assert_eq!(after.newest_slice, None);
}

/// GPU Feature Discovery removes its labels in a boot, and sets them before the device plugin is there.
#[test]
fn gpus_of_a_node_that_lost_its_label_for_a_while_are_expected_back() {
    for (away, expected) in [(60, Some(8)), (3_700, None)] {
        let mut inventory = inventory_with(trio(1));
        inventory.apply(devices(&[(5, 8)]));
        inventory.apply(Fact::Kubernetes(KubernetesUpdate::NodeGone {
            name: name(1),
            uid: node(1).uid,
        }));
        inventory.apply(devices(&[]));
        inventory.set_time(moment(away));
        inventory.apply(seen_of(node(1)));
        let back = snapshot_of(&mut inventory, 1).observed.node.unwrap();
        assert_eq!(count(&back.expected_gpus), expected, "after {away} s");
    }
}

/// Nodes of an autoscaler never come back under the same name.
#[test]
fn gpus_of_nodes_that_are_gone_are_forgotten_after_an_hour() {
    let mut inventory = inventory_with(trio(1));
    inventory.apply(devices(&[(5, 8)]));
    let gone = |n| {
        Fact::Kubernetes(KubernetesUpdate::NodeGone {
            name: name(n),
            uid: node(n).uid,
        })
    };
    inventory.apply(gone(1));
    assert!(inventory.node_states.contains_key(&name(1)));
    inventory.set_time(moment(3_700));
    inventory.apply(seen_of(node(2)));
    inventory.apply(gone(2));
    assert!(!inventory.node_states.contains_key(&name(1)));
}

#[test]
fn after_the_power_cycle_only_slices_of_the_new_boot_count() {
    for (powered_off, slices, counted) in [
        (false, &[(5, 8)][..], Some(8)),
        (true, &[(5, 8)][..], None),
        (true, &[(5, 8), (6, 2)][..], Some(2)),
        (true, &[(6, 8)][..], Some(8)),
        (true, &[][..], None),
    ] {
        let rejoining = with_episode(1, Phase::Rejoining, |episode| {
            episode.powered_off = powered_off;
            episode.slices_before = Some(at(5));
        });
        let mut inventory = inventory_with(trio(1).into_iter().chain([seen_of(rejoining)]));
        inventory.apply(devices(slices));
        let node = snapshot_of(&mut inventory, 1).observed.node.unwrap();
        assert_eq!(count(&node.gpus), counted, "{powered_off} {slices:?}");
    }
}

#[test]
fn nothing_begins_before_resource_slices_are_listed() {
    let watched = InventorySettings {
        device_slices: true,
        ..inventory_settings()
    };
    let mut inventory = Inventory::new(watched, at(0));
    inventory.set_time(moment(0));
    synced(trio(1)).for_each(|fact| inventory.apply(fact));
    let sources = |inventory: &mut Inventory| snapshot_of(inventory, 1).observed.sources;
    let awaited = sources(&mut inventory);
    assert!(
        matches!(&awaited, SourceState::NoKubernetes { why } if why.contains("ResourceSlices")),
        "{awaited:?}"
    );
    inventory.apply(Fact::Kubernetes(KubernetesUpdate::DevicesListed));
    assert_eq!(sources(&mut inventory), SourceState::Synced);
}

#[test]
fn devices_concern_only_a_known_node_that_has_others_now() {
    let mut inventory = inventory_with(trio(1));
    inventory.all_snapshots();
    inventory.apply(devices(&[(5, 4)]));
    assert!(inventory.is_changed);
    inventory.all_snapshots();
    inventory.apply(devices(&[(5, 4)]));
    assert!(!inventory.is_changed);
    let elsewhere = Fact::Kubernetes(KubernetesUpdate::Devices {
        node: node(7).name,
        slices: [].into(),
    });
    inventory.apply(elsewhere);
    assert!(!inventory.is_changed);
}
