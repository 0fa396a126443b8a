//! The maintenance of several hosts at once.

use std::collections::BTreeSet;

use crate::facts::kubernetes::{KubernetesUpdate, NodeAnnotations, NodeFacts};
use crate::facts::vsphere::{Claim, ClaimedDevice, HostReading, VsphereUpdate};
use crate::fixtures::{host, host_ref, inventory_settings, name, node_facts, trio, vm_ref};
use crate::inventory::{Fact, Forecast, HostsThatCanLeave, Inventory, WaveGroup};
use crate::maintenance::admission::RoundStart;
use crate::maintenance::placement::HostSurvey;

use super::{apply_all, at, inventory_with, moment, surveyed};

/// The survey of a host on which these VMs hold the only GPU.
fn held_by(n: usize, vms: &[usize]) -> Fact {
    let claim = |vm: &usize| Claim {
        vm: vm_ref(*vm),
        device: ClaimedDevice::Address("0000:01:00.0".to_owned()),
    };
    let reading = HostReading {
        claims: vms.iter().map(claim).collect(),
        ..HostReading::default()
    };
    surveyed(n, HostSurvey::Read(reading))
}

/// Three nodes with one GPU each on hosts of their own, and spare hosts, all surveyed.
fn cluster(spare: &[usize]) -> Inventory {
    let spare_hosts = spare
        .iter()
        .map(|n| Fact::Vsphere(VsphereUpdate::Host(host(*n).into())));
    let mut inventory = inventory_with((1..=3).flat_map(trio).chain(spare_hosts));
    let surveys = (1..=3).map(|n| held_by(n, &[n]));
    let surveys = surveys.chain(spare.iter().map(|n| held_by(*n, &[])));
    surveys.for_each(|fact| inventory.apply(fact));
    inventory
}

fn with_strategy_wait(n: usize) -> Fact {
    let annotations = NodeAnnotations {
        strategy: Some("wait".to_owned()),
        ..NodeAnnotations::default()
    };
    Fact::Kubernetes(KubernetesUpdate::Node(Box::new(NodeFacts {
        annotations,
        ..node_facts(n)
    })))
}

fn targets(forecasts: &[Forecast]) -> Vec<Option<&str>> {
    forecasts.iter().map(Forecast::finds_host).collect()
}

#[test]
fn spare_host_is_promised_to_one_vm_of_a_wave() {
    let mut inventory = cluster(&[9]);
    let leaving = BTreeSet::from([host_ref(1), host_ref(2)]);
    let forecasts = inventory.forecast(&[name(2), name(1)], &leaving);
    assert_eq!(targets(&forecasts), [Some("esx-9"), None]);
    let refused: Vec<String> = forecasts[1]
        .offer
        .iter()
        .flat_map(|offer| offer.refused.iter().map(ToString::to_string))
        .collect();
    assert!(
        refused.contains(&"esx-2 is to enter maintenance as well".to_owned()),
        "{refused:?}"
    );
}

#[test]
fn host_of_a_wave_is_no_target() {
    let mut inventory = cluster(&[9]);
    let to = |inventory: &mut Inventory, leaving: &[usize]| {
        let leaving = leaving.iter().map(|n| host_ref(*n)).collect();
        let forecasts = inventory.forecast(&[name(1)], &leaving);
        forecasts[0].finds_host().map(str::to_owned)
    };
    assert_eq!(to(&mut inventory, &[1]).as_deref(), Some("esx-9"));
    assert_eq!(to(&mut inventory, &[1, 9]), None);
}

#[test]
fn each_host_is_forecast_as_if_it_left_alone() {
    let mut inventory = cluster(&[9]);
    let forecasts = inventory.forecast_each_host();
    assert_eq!(targets(&forecasts), [Some("esx-9"); 3]);
}

#[test]
fn as_many_hosts_can_leave_as_find_places() {
    let of = |hosts| HostsThatCanLeave { hosts, of: 3 };
    for (spare, expected) in [(&[][..], 0), (&[9], 1), (&[8, 9], 2), (&[6, 7, 8, 9], 3)] {
        let inventory = cluster(spare);
        assert_eq!(inventory.hosts_that_can_leave(), of(expected), "{spare:?}");
    }
    let mut waits = cluster(&[8, 9]);
    waits.apply(with_strategy_wait(1));
    assert_eq!(
        waits.hosts_that_can_leave(),
        of(2),
        "the spare hosts are for the others"
    );
    waits.apply(with_strategy_wait(2));
    assert_eq!(waits.hosts_that_can_leave(), of(1));
}

#[test]
fn node_that_waits_for_its_host_takes_no_spare_host() {
    let mut inventory = cluster(&[9]);
    inventory.apply(with_strategy_wait(1));
    let leaving = BTreeSet::from([host_ref(1), host_ref(2)]);
    let forecasts = inventory.forecast(&[name(1), name(2)], &leaving);
    assert_eq!(targets(&forecasts), [None, Some("esx-9")]);
}

/// The groups as `group: start node node, …`.
fn shown(groups: &[WaveGroup]) -> Vec<String> {
    let rounds = |group: &WaveGroup| {
        let round = group.rounds.iter().map(|round| {
            let nodes: Vec<&str> = round.nodes.iter().map(|node| node.as_str()).collect();
            format!("{} {}", round.start, nodes.join(" "))
        });
        round.collect::<Vec<_>>().join(", ")
    };
    groups
        .iter()
        .map(|group| format!("{}: {}", group.group.as_deref().unwrap_or("all"), rounds(group)))
        .collect()
}

#[test]
fn nodes_of_a_wave_go_in_the_order_given_within_the_limits_of_their_group() {
    let mut inventory = Inventory::new(inventory_settings(), at(0));
    inventory.set_time(moment(0));
    let grouped = NodeFacts {
        limit_group: Some("b".to_owned()),
        ..node_facts(2)
    };
    let grouped = Fact::Kubernetes(KubernetesUpdate::Node(Box::new(grouped)));
    apply_all(&mut inventory, (1..=3).flat_map(trio).chain([grouped]));
    let leaving = (1..=3).map(host_ref).collect();
    let forecasts = inventory.forecast(&[name(3), name(2), name(1)], &leaving);
    assert_eq!(
        shown(&inventory.wave(&forecasts)),
        ["all: now gpu-3, vms-off gpu-1", "b: now gpu-2"]
    );
}

#[test]
fn node_that_is_left_alone_is_in_no_round() {
    let mut inventory = cluster(&[]);
    let annotations = NodeAnnotations {
        skip: Some("true".to_owned()),
        ..NodeAnnotations::default()
    };
    let skipped = NodeFacts {
        annotations,
        ..node_facts(1)
    };
    inventory.apply(Fact::Kubernetes(KubernetesUpdate::Node(Box::new(skipped))));
    let leaving = BTreeSet::from([host_ref(1), host_ref(2)]);
    let forecasts = inventory.forecast(&[name(1), name(2)], &leaving);
    let groups = inventory.wave(&forecasts);
    assert_eq!(shown(&groups), ["all: now gpu-2"]);
    assert_eq!(groups[0].rounds[0].start, RoundStart::Now);
    assert!(groups[0].left.is_empty());
}
