use std::sync::Arc;

use super::*;
use crate::facts::vsphere::{Vm, VsphereUpdate};
use crate::fixtures::{self, host, host_ref, inventory_settings, moment, name, synced, trio, vm_facts};
use crate::inventory::Fact;

fn standby() -> Host {
    Host {
        entering_standby: Some(TaskRef::new("task-7")),
        ..host(1)
    }
}

/// Nodes 1 and 2 with their hosts, of which the first is this one.
fn inventory(first: Host, more: Vec<Fact>) -> Inventory {
    let mut inventory = Inventory::new(inventory_settings(), fixtures::at(0));
    let changed = [Fact::Vsphere(VsphereUpdate::Host(Arc::new(first)))];
    let facts = trio(1).into_iter().chain(trio(2)).chain(changed).chain(more);
    inventory.advance(synced(facts), moment(1));
    inventory
}

fn told(hosts: &[UnhandledHost]) -> Vec<(&str, Vec<NodeName>)> {
    let told = hosts.iter();
    told.map(|host| (&*host.name, host.nodes.keys().cloned().collect()))
        .collect()
}

#[test]
fn host_with_a_running_vm_is_told_with_its_nodes() {
    let partial = Host {
        partial_maintenance: Some("quickPatchPartialMM".to_owned()),
        ..host(1)
    };
    for (first, words) in [
        (standby(), "standby mode (task-7)"),
        (partial, "quickPatchPartialMM"),
    ] {
        let hosts = inventory(first, Vec::new()).unhandled_hosts().unwrap();
        assert_eq!(told(&hosts), [("esx-1", vec![name(1)])]);
        assert!(hosts[0].sentence().contains(words), "{}", hosts[0].sentence());
    }
}

#[test]
fn nothing_is_told_of_a_host_without_a_running_vm_of_ours() {
    assert_eq!(inventory(host(1), Vec::new()).unhandled_hosts(), Some(vec![]));
    let off = Vm {
        power: Some(PowerState::Off),
        ..vm_facts(1)
    };
    let elsewhere = Vm {
        host: Some(host_ref(2)),
        ..vm_facts(1)
    };
    for vm in [off, elsewhere] {
        let changed = vec![Fact::Vsphere(VsphereUpdate::Vm(vm))];
        assert_eq!(inventory(standby(), changed).unhandled_hosts(), Some(vec![]));
    }
}

#[test]
fn nothing_is_known_while_vcenter_is_disconnected() {
    let lost = Fact::Vsphere(VsphereUpdate::Lost { why: String::new() });
    let mut inventory = inventory(standby(), Vec::new());
    inventory.advance([lost], moment(2));
    assert_eq!(inventory.unhandled_hosts(), None);
}

#[test]
fn host_is_told_once_and_each_of_its_nodes_once() {
    let of = |nodes: &[usize], task: &str| UnhandledHost {
        host: host_ref(1),
        name: "esx-1".to_owned(),
        mode: UnhandledMode::Standby {
            task: TaskRef::new(task),
        },
        nodes: nodes
            .iter()
            .map(|n| (name(*n), NodeUid::new(format!("uid-{n}"))))
            .collect(),
    };
    let mut modes = UnhandledModes::default();
    let mut untold = |hosts: Vec<UnhandledHost>| {
        let untold = modes.take_new(hosts).into_iter();
        untold
            .map(|it| (it.is_new, it.of.nodes.into_keys().collect()))
            .collect::<Vec<(bool, Vec<NodeName>)>>()
    };
    assert_eq!(untold(vec![of(&[1], "a")]), [(true, vec![name(1)])]);
    assert_eq!(untold(vec![of(&[1], "a")]), []);
    assert_eq!(
        untold(vec![of(&[1, 2], "a")]),
        [(false, vec![name(2)])],
        "it came later"
    );
    assert_eq!(untold(vec![of(&[1], "a")]), []);
    assert_eq!(
        untold(vec![of(&[1], "b")]),
        [(true, vec![name(1)])],
        "another task"
    );
    assert_eq!(untold(vec![]), []);
    assert_eq!(untold(vec![of(&[1], "b")]), [(true, vec![name(1)])], "again");
}
