//! A vCenter of many hosts as the fold sees it: each of our nodes runs on a host of its own, the other hosts carry nothing
//! of ours.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use haulout::ids::{ComputeRef, DatastoreRef, HostRef, NodeName, NodeUid, VmRef, VmUuid};
use haulout::inventory::{Fact, Inventory};
use haulout::kubernetes::update::{KubernetesUpdate, NodeAnnotations, NodeFacts, ReadyCondition};
use haulout::maintenance::clock::Now;
use haulout::vsphere::update::{
    Host, HostConnection, Passthrough, PciDevice, PowerState, Vm, VmKey, VsphereUpdate,
};

/// The PCI ids of an NVIDIA A40.
const A40: (u16, u16) = (0x10de, 0x2235);

/// The host with this number.
pub fn host(number: usize) -> Host {
    Host {
        moref: HostRef::new(format!("host-{number}")),
        name: Some(format!("esx{number}.lab.invalid")),
        compute: Some(ComputeRef::new("domain-c1")),
        connection: Some(HostConnection::Connected),
        in_maintenance: Some(false),
        in_quarantine: Some(false),
        last_end: None,
        entering: None,
        datastores: Arc::new(BTreeSet::from([DatastoreRef::new("datastore-1")])),
        passthrough: Some(Arc::new([PciDevice {
            address: "0000:3b:00.0".to_owned(),
            vendor: A40.0,
            device: A40.1,
        }])),
    }
}

/// Tells `inventory` of `hosts` hosts, and of `ours` nodes with their VMs.
pub fn tell(inventory: &mut Inventory, hosts: usize, ours: usize, now: Now) {
    let mut told = vec![
        Fact::Vsphere(VsphereUpdate::Reset),
        Fact::Kubernetes(KubernetesUpdate::Reset),
    ];
    told.extend((0..hosts).map(|number| Fact::Vsphere(VsphereUpdate::Host(host(number).into()))));
    told.extend((0..ours).flat_map(|number| {
        let found = VsphereUpdate::Found {
            key: VmKey::Uuid(uuid(number)),
            vms: BTreeSet::from([VmRef::new(format!("vm-{number}"))]),
        };
        [
            Fact::Kubernetes(KubernetesUpdate::Node(Box::new(node(number)))),
            Fact::Vsphere(VsphereUpdate::Vm(vm(number))),
            Fact::Vsphere(found),
        ]
    }));
    told.push(Fact::Vsphere(VsphereUpdate::Settled));
    told.push(Fact::Kubernetes(KubernetesUpdate::Settled));
    inventory.advance(told, now);
}

fn uuid(number: usize) -> VmUuid {
    let text = format!("4217a5b0-0000-4000-8000-{number:012x}");
    VmUuid::parse(&text).unwrap()
}

fn node(number: usize) -> NodeFacts {
    NodeFacts {
        name: NodeName::new(format!("gpu{number}")),
        uid: NodeUid::new(format!("uid-{number}")),
        resource_version: 10,
        created_at: jiff::Timestamp::UNIX_EPOCH,
        provider_uuid: Some(uuid(number)),
        system_uuid: Some(uuid(number).swapped()),
        unschedulable: false,
        cordoned_by: None,
        ready: ReadyCondition {
            is_true: true,
            heartbeat: None,
        },
        boot_id: None,
        gpus: BTreeMap::from([("nvidia.com/gpu".to_owned(), 1)]).into(),
        marks: NodeAnnotations::default(),
    }
}

fn vm(number: usize) -> Vm {
    Vm {
        moref: VmRef::new(format!("vm-{number}")),
        name: Some(format!("gpu{number}")),
        uuid: Some(uuid(number)),
        template: false,
        power: Some(PowerState::On),
        host: Some(HostRef::new(format!("host-{number}"))),
        tools_running: Some(true),
        question: None,
        datastores: Arc::new(BTreeSet::from([DatastoreRef::new("datastore-1")])),
        passthrough: Some(vec![Passthrough::Dynamic { allowed: vec![A40] }]),
        evacuation_power_off: false,
    }
}
