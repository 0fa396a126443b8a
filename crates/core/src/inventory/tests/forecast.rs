//! The data of `kubectl haulout plan`.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::kubernetes::{KubernetesUpdate, NodeFacts};
use crate::facts::vsphere::{HostConnection, VsphereUpdate};
use crate::fixtures::{GPU, at, gpus, host, host_ref, inventory_settings, name, node_facts, trio, vm_ref};
use crate::ids::ComputeRef;
use crate::inventory::{Fact, Inventory};
use crate::maintenance::observed::HostState;

use super::inventory_with;

/// Three nodes with one GPU each on hosts of their own, and a host without a VM.
fn cluster() -> Vec<Fact> {
    let of = |n| {
        let node = NodeFacts {
            gpus: gpus(n).into(),
            ..node_facts(usize::try_from(n).unwrap())
        };
        Fact::Kubernetes(KubernetesUpdate::Node(Box::new(node)))
    };
    let nodes = (1..=3).flat_map(|n| trio(n).into_iter().skip(1).chain([of(n as u64)]));
    let spare = Fact::Vsphere(VsphereUpdate::Host(host(9).into()));
    nodes.chain([spare]).collect()
}

#[test]
fn maintenance_of_a_host_reaches_the_nodes_whose_vm_is_there() {
    let inventory = inventory_with(cluster());
    let reach = inventory.reach("esx-2").expect("a known host");
    assert_eq!(reach.host, host_ref(2));
    assert_eq!(reach.state, HostState::InService);
    assert_eq!(reach.nodes, [name(2)]);
    assert_eq!(inventory.reach("esx-9").map(|it| it.nodes), Some(Vec::new()));
    assert!(inventory.reach("esx-77").is_none());
    assert_eq!(inventory.nodes(), [name(1), name(2), name(3)]);
}

#[test]
fn vms_and_gpus_are_those_of_the_nodes() {
    let inventory = inventory_with(cluster());
    let names: Vec<String> = inventory.vms_of_ours().into_values().collect();
    assert_eq!(names, ["gpu-1", "gpu-2", "gpu-3"]);
    assert!(inventory.vms_of_ours().contains_key(&vm_ref(2)));
    let sum = inventory.gpus_of(&[name(1), name(3), name(8)]);
    assert_eq!(sum, BTreeMap::from([(GPU.to_owned(), 4)]));
}

#[test]
fn what_one_node_is_offered_is_not_offered_to_the_next() {
    let mut inventory = inventory_with(cluster());
    let forecasts = inventory.forecast(&[name(1), name(2)], &BTreeSet::new());
    let fits = |n: usize| {
        let offer = forecasts[n].offer.clone().expect("an offer");
        (offer.fits.map(|(host, _)| host), offer.survey)
    };
    let (first, first_survey) = fits(0);
    let (second, _) = fits(1);
    // The spare host has not been surveyed yet.
    assert!(first.is_some() || !first_survey.is_empty(), "{forecasts:?}");
    assert!(first.is_none() || first != second, "{forecasts:?}");
    assert_eq!(forecasts[0].vm_name.as_deref(), Some("gpu-1"));
    let vm = forecasts[0].vm.found().unwrap();
    assert!(vm.tools_running == Some(true) && !vm.evacuation_power_off);
    assert_eq!(
        forecasts[0].queue, None,
        "a drain is not queued while none is under way"
    );
}

#[test]
fn a_forecast_needs_both_sources_and_every_vm() {
    let inventory = Inventory::new(inventory_settings(), at(0));
    assert!(!inventory.is_complete());
    assert!(
        inventory
            .disconnected_reason()
            .is_some_and(|why| why.contains("vCenter"))
    );
    let inventory = inventory_with(cluster());
    assert!(inventory.is_complete());
    assert_eq!(inventory.disconnected_reason(), None);
    let without_answer = trio(1).into_iter().take(3);
    assert!(!inventory_with(without_answer).is_complete(), "its VM is unknown");
    let mut open = inventory_with(cluster());
    let disconnected = crate::facts::vsphere::Host {
        connection: Some(HostConnection::NotResponding),
        ..host(9)
    };
    open.apply(Fact::Vsphere(VsphereUpdate::Host(disconnected.into())));
    assert!(!open.is_complete(), "the rest of the set is missing");
    let mut lost = inventory_with(cluster());
    let why = "connection reset".to_owned();
    lost.apply(Fact::Vsphere(VsphereUpdate::Lost { why: why.clone() }));
    assert!(!lost.is_complete());
    assert!(lost.disconnected_reason().is_some_and(|it| it.contains(&why)));
}

#[test]
fn devices_of_usable_hosts_of_our_clusters_are_awaited() {
    let unreported = || crate::facts::vsphere::Host {
        passthrough: None,
        ..host(9)
    };
    let mut unreachable = unreported();
    unreachable.connection = Some(HostConnection::NotResponding);
    let mut elsewhere = unreported();
    elsewhere.compute = Some(ComputeRef::new("other"));
    for (host, expected) in [
        (host(9), false),
        (unreported(), true),
        (unreachable, false),
        (elsewhere, false),
    ] {
        let facts = cluster().into_iter();
        let inventory =
            inventory_with(facts.chain([Fact::Vsphere(VsphereUpdate::Host(host.clone().into()))]));
        assert_eq!(inventory.awaits_devices(), expected, "{host:?}");
    }
}
