//! How many hosts could take one more of our VMs. For display only.

use std::collections::{BTreeMap, BTreeSet};

use super::Inventory;
use super::devices::vgpus;
use crate::facts::vsphere::{ClaimedDevice, DeviceRequirement, Host, VgpuProfile, Vm};
use crate::ids::{ComputeRef, HostRef};
use crate::maintenance::placement::HostSurvey;

/// What the VMs of a cluster need, each kind once.
#[derive(Default)]
struct ClusterNeeds {
    devices: Vec<DeviceRequirement>,
    vgpus: BTreeSet<VgpuProfile>,
}

impl Inventory {
    /// For each cluster that has a VM of ours, by name: the number of its hosts in service with a free device or vGPU that fits one
    /// of those VMs. The devices of other VMs are known only for hosts that were surveyed since vCenter synced, so the number may be too
    /// high. Their vGPUs are known only then, and do not count before. Empty while vCenter is disconnected.
    pub fn free_gpu_hosts(&self) -> BTreeMap<String, u32> {
        if self.vcenter.disconnected().is_some() {
            return BTreeMap::new();
        }
        let ours: Vec<&Vm> = self
            .nodes
            .all()
            .filter_map(|node| self.bound_vm(&node.name))
            .collect();
        let mut fits: BTreeMap<&ComputeRef, ClusterNeeds> = BTreeMap::new();
        for vm in &ours {
            let host = vm.host.as_ref().and_then(|host| self.vcenter.host(host));
            if let Some(compute) = host.and_then(|host| host.compute.as_ref()) {
                let wanted = fits.entry(compute).or_default();
                for need in self.needs(vm, None) {
                    // Most VMs of a cluster need the same.
                    if !wanted.devices.contains(&need) {
                        wanted.devices.push(need);
                    }
                }
                wanted.vgpus.extend(vgpus(vm));
            }
        }
        let mut free = BTreeMap::new();
        for (compute, wanted) in fits {
            let known = self
                .vcenter
                .compute(compute)
                .and_then(|compute| compute.name.clone());
            let name = known.unwrap_or_else(|| compute.to_string());
            let rules = self.vcenter.rules_of(Some(compute));
            let hosts = self.vcenter.hosts().filter(|host| {
                host.compute.as_ref() == Some(compute)
                    && self.host_state(Some(&host.moref)).takes_vms()
                    && !rules.failover_hosts.contains(&host.moref)
                    && (self.has_spare(host, &wanted.devices, &ours) || self.has_vgpu(host, &wanted.vgpus))
            });
            let count = u32::try_from(hosts.count()).unwrap_or(u32::MAX);
            let sum: &mut u32 = free.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
        free
    }

    /// Whether `host` has more devices that satisfy one of `wanted` than are held as far as known.
    fn has_spare(&self, host: &Host, wanted: &[DeviceRequirement], ours: &[&Vm]) -> bool {
        let fitting = host
            .passthrough
            .iter()
            .flat_map(|devices| devices.iter())
            .filter(|device| wanted.iter().any(|need| need.accepts(device)));
        let held = match self.vcenter.survey(&host.moref) {
            Some(HostSurvey::Unreadable(_)) => return false,
            Some(HostSurvey::Read(reading)) => {
                let is_fitting = |held: &ClaimedDevice| match held {
                    ClaimedDevice::Address(address) => fitting
                        .clone()
                        .any(|device| device.address.eq_ignore_ascii_case(address)),
                    ClaimedDevice::AnyOf(held) => fitting.clone().any(|device| held.accepts(device)),
                    ClaimedDevice::Vgpu(_) => false,
                };
                let claims = reading.claims.iter();
                claims.filter(|claim| is_fitting(&claim.device)).count()
            }
            None => self.held_by_ours(&host.moref, ours),
        };
        fitting.count() > held
    }

    /// Whether a survey shows that `host` offers one of these profiles and may have room for it.
    fn has_vgpu(&self, host: &Host, wanted: &BTreeSet<VgpuProfile>) -> bool {
        let Some(HostSurvey::Read(reading)) = self.vcenter.survey(&host.moref) else {
            return false;
        };
        let Some(vgpus) = &reading.vgpus else { return false };
        wanted.iter().any(|profile| {
            let taken = reading.claimed_vgpus().map(|(_, taken)| taken);
            let has_room = vgpus.may_have_room(std::slice::from_ref(profile), taken);
            vgpus.profiles.contains(profile) && has_room.unwrap_or(true)
        })
    }

    /// How many devices our own VMs need on this host, including those that are off.
    fn held_by_ours(&self, host: &HostRef, ours: &[&Vm]) -> usize {
        let there = ours.iter().filter(|vm| vm.host.as_ref() == Some(host));
        there.map(|vm| self.needs(vm, None).len()).sum()
    }
}
