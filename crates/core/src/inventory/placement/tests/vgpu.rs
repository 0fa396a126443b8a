//! Offers of hosts for VMs with a vGPU, and their reservations.

use std::sync::Arc;

use super::*;
use crate::facts::vsphere::{HostVgpus, Passthrough, VgpuProfile};

const WHOLE: &str = "grid_a40-48c";

/// VM `n`, which is off, with a vGPU instead of a device.
fn with_vgpu(n: usize, profile: Option<&str>) -> Fact {
    let device = Passthrough::Vgpu {
        profile: profile.map(VgpuProfile::new),
        migrates: None,
    };
    vsphere(vsphere::VsphereUpdate::Vm(Vm {
        passthrough: Some(vec![device]),
        power: Some(vsphere::PowerState::Off),
        ..vm_facts(n)
    }))
}

/// A host with one GPU that is shared, and vGPUs of these VMs.
fn shares(vms: &[&str]) -> HostSurvey {
    let claim = |vm: &&str| Claim {
        vm: VmRef::new(*vm),
        device: ClaimedDevice::Vgpu(VgpuProfile::new(WHOLE)),
    };
    HostSurvey::Read(HostReading {
        claims: vms.iter().map(claim).collect(),
        vgpus: Some(Arc::new(HostVgpus {
            profiles: [VgpuProfile::new(WHOLE)].into(),
            gpus_gib: vec![48],
        })),
        ..HostReading::default()
    })
}

fn two_wait(first: Fact, last: Fact) -> Inventory {
    let waiting = [awaiting_since(1, 10), awaiting_since(2, 20), there(3)].into_iter();
    let off = switched_off(1).into_iter().chain(switched_off(2));
    inventory_with(waiting.chain(off).chain([first, last]))
}

#[test]
fn two_nodes_are_not_offered_the_same_vgpu() {
    let mut inventory = two_wait(with_vgpu(1, Some(WHOLE)), with_vgpu(2, Some(WHOLE)));
    inventory.apply(surveyed(3, shares(&[])));
    assert_eq!(offered(&mut inventory, 1), Some(host_ref(3)));
    assert_eq!(offered(&mut inventory, 2), None);
    let taken = RejectionReason::VgpuTaken(VgpuProfile::new(WHOLE));
    assert!(why_not(&mut inventory, 2).contains(&refused(3, taken)));
}

#[test]
fn vgpu_of_a_relocated_vm_is_reserved_until_a_survey_shows_it() {
    let moving = seen_of(with_episode(1, Phase::Relocating { to: mark(3) }, |_| {}));
    let mut inventory = two_wait(with_vgpu(1, Some(WHOLE)), with_vgpu(2, Some(WHOLE)));
    inventory.apply(moving);
    inventory.apply(surveyed(3, shares(&[])));
    assert_eq!(offered(&mut inventory, 2), None);
    inventory.apply(surveyed(3, shares(&["vm-1"])));
    assert_eq!(offered(&mut inventory, 2), None, "it is counted once, and there");
    inventory.apply(vsphere(vsphere::VsphereUpdate::Vm(vsphere::Vm {
        host: Some(host_ref(3)),
        ..vm_facts(1)
    })));
    inventory.apply(surveyed(3, shares(&[])));
    assert_eq!(
        offered(&mut inventory, 2),
        Some(host_ref(3)),
        "its VM has another device now"
    );
}

#[test]
fn vgpu_without_a_profile_keeps_the_vm_at_home() {
    let mut inventory = two_wait(with_vgpu(1, None), with_vgpu(2, None));
    inventory.apply(surveyed(3, shares(&[])));
    assert_eq!(offered(&mut inventory, 1), None);
    let foreign = RejectionReason::ForeignDevice("vGPU without a profile".to_owned());
    assert!(why_not(&mut inventory, 1).contains(&refused(3, foreign)));
}

#[test]
fn surveyed_host_with_a_free_vgpu_counts_as_a_free_host() {
    let compute = vsphere::Compute {
        moref: ComputeRef::new("c"),
        name: Some("train".to_owned()),
        drs: None,
        rules: Arc::default(),
    };
    let cluster = vsphere(vsphere::VsphereUpdate::Compute(compute));
    let facts = trio(1)
        .into_iter()
        .chain([cluster, there(3), with_vgpu(1, Some(WHOLE))]);
    let mut inventory = inventory_with(facts);
    let free = |inventory: &Inventory| inventory.free_gpu_hosts().get("train").copied();
    assert_eq!(free(&inventory), Some(0), "it is not known before a survey");
    inventory.apply(surveyed(3, shares(&[])));
    assert_eq!(free(&inventory), Some(1));
    inventory.apply(surveyed(3, shares(&["vm-9"])));
    assert_eq!(free(&inventory), Some(0));
}
