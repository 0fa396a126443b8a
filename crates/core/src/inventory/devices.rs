//! Which passthrough devices a VM needs of a host.

use super::Inventory;
use crate::facts::vsphere::{DeviceRequirement, Passthrough, PciDevice, StaticDevice, VgpuProfile, Vm};
use crate::ids::HostRef;
use crate::maintenance::episode::{Episode, Phase, Record};
use crate::maintenance::placement::{
    DeviceOffer, DeviceRequirements, MAX_STATIC_DEVICES, RejectionReason, StaticPlacement,
};
use crate::maintenance::policy::StaticDevices;

/// The devices at fixed addresses of a VM, as far as they are known.
enum KnownDevices {
    /// Each with its model.
    All(Vec<StaticDevice>),
    /// The own host of the VM has not reported its devices.
    Unreported,
    /// They are not to be replaced by those of another host, or their model remains unknown.
    Unchangeable,
}

impl Inventory {
    /// The devices that a VM needs of a host to which it is relocated.
    pub(super) fn wanted_devices(&self, vm: &Vm, episode: Option<&Episode>) -> DeviceRequirements {
        let Some(devices) = &vm.passthrough else {
            return DeviceRequirements::Unknown;
        };
        let mut needs = Vec::new();
        for device in devices {
            match device {
                Passthrough::Static { .. } | Passthrough::Sriov { .. } => {}
                // Its profile is compared on its own.
                Passthrough::Vgpu { profile: Some(_), .. } => {}
                Passthrough::Vgpu { profile: None, .. } => {
                    let backing = "vGPU without a profile".to_owned();
                    return DeviceRequirements::Foreign { backing };
                }
                Passthrough::Dvx => {
                    let backing = "Enhanced DirectPath I/O".to_owned();
                    return DeviceRequirements::Foreign { backing };
                }
                Passthrough::Other { backing } => {
                    return DeviceRequirements::Foreign {
                        backing: backing.clone(),
                    };
                }
                Passthrough::Dynamic(requirement) => needs.push(requirement.clone()),
            }
        }
        match self.static_devices(vm, episode) {
            KnownDevices::All(devices) => {
                needs.extend(devices.iter().map(StaticDevice::requirement));
                DeviceRequirements::AnyOf(needs)
            }
            KnownDevices::Unreported => DeviceRequirements::Unreported,
            KnownDevices::Unchangeable => DeviceRequirements::Static,
        }
    }

    /// The devices of a VM that it needs of any host of its cluster.
    pub(super) fn needs(&self, vm: &Vm, episode: Option<&Episode>) -> Vec<DeviceRequirement> {
        self.wanted_devices(vm, episode).needs().to_vec()
    }

    /// The devices at fixed addresses of a VM.
    fn static_devices(&self, vm: &Vm, episode: Option<&Episode>) -> KnownDevices {
        let home = episode.and_then(|episode| episode.host.moref.as_ref());
        let home = home.or(vm.host.as_ref());
        let of_home = home.and_then(|host| self.devices_of(host));
        let recorded = episode.map_or_else(Default::default, |episode| &*episode.home_devices);
        let mut found = Vec::new();
        for device in vm.passthrough.iter().flatten() {
            let Passthrough::Static {
                address,
                vendor,
                device,
            } = device
            else {
                continue;
            };
            if found.len() >= MAX_STATIC_DEVICES || !self.may_change_devices(episode) {
                return KnownDevices::Unchangeable;
            }
            // Not every configuration has a readable device id. The VM's own host knows the device that it had there.
            let device = match (device, recorded.get(found.len()), of_home) {
                (Some(device), _, _) => *device,
                (None, Some(recorded), _) => recorded.device,
                (None, None, Some(of_home)) => {
                    let mut of_home = of_home.iter();
                    match of_home.find(|it| it.address.eq_ignore_ascii_case(address)) {
                        Some(device) => device.ids.device,
                        None => return KnownDevices::Unchangeable,
                    }
                }
                (None, None, None) => return KnownDevices::Unreported,
            };
            found.push(StaticDevice {
                address: address.clone(),
                vendor: *vendor,
                device,
            });
        }
        KnownDevices::All(found)
    }

    /// Whether the devices of a VM may be changed. The setting decides whether an episode begins to; one that has relocated the VM, or
    /// changed its devices, gives it those of the host where it is powered on.
    fn may_change_devices(&self, episode: Option<&Episode>) -> bool {
        let has_begun = |episode: &Episode| !episode.home_devices.is_empty() || episode.moved_to.is_some();
        self.settings.static_devices == StaticDevices::Repoint || episode.is_some_and(has_begun)
    }

    fn devices_of(&self, host: &HostRef) -> Option<&[PciDevice]> {
        self.vcenter.host(host)?.passthrough.as_deref()
    }

    /// The devices at fixed addresses of a VM that is about to be powered on, and those that it can get where it is registered.
    pub(super) fn static_placement(&self, record: &Record, vm: Option<&Vm>) -> Option<StaticPlacement> {
        let episode = record.episode()?;
        let (vm, Phase::PoweringOn { .. }) = (vm?, episode.phase.at_work()) else {
            return None;
        };
        let host = vm.host.as_ref()?;
        let is_home = episode.host.moref.as_ref() == Some(host);
        let devices = match self.static_devices(vm, Some(episode)) {
            KnownDevices::All(devices) if !devices.is_empty() => devices,
            // Somebody else moved it. The same address is another device there, and may be another VM's.
            KnownDevices::Unchangeable if !is_home && episode.host.moref.is_some() => {
                return Some(StaticPlacement {
                    devices: Vec::new(),
                    offer: DeviceOffer::Rejected(RejectionReason::StaticDevice),
                });
            }
            KnownDevices::All(_) | KnownDevices::Unchangeable => return None,
            KnownDevices::Unreported => {
                return Some(StaticPlacement {
                    devices: Vec::new(),
                    offer: DeviceOffer::Unreported,
                });
            }
        };
        let former = if is_home {
            &*episode.home_devices
        } else {
            Default::default()
        };
        let survey = self.vcenter.survey(host);
        Some(StaticPlacement {
            offer: DeviceOffer::of(&vm.moref, &devices, former, self.devices_of(host), survey),
            devices,
        })
    }
}

/// The physical function of each SR-IOV network card of a VM.
pub(super) fn sriov_cards(vm: &Vm) -> Vec<Option<String>> {
    let function = |device: &Passthrough| match device {
        Passthrough::Sriov { function } => Some(function.clone()),
        Passthrough::Static { .. }
        | Passthrough::Dynamic(_)
        | Passthrough::Vgpu { .. }
        | Passthrough::Dvx
        | Passthrough::Other { .. } => None,
    };
    vm.passthrough.iter().flatten().filter_map(function).collect()
}

/// The profiles of the vGPUs of a VM, one for each.
pub(super) fn vgpus(vm: &Vm) -> Vec<VgpuProfile> {
    let profile = |device: &Passthrough| match device {
        Passthrough::Vgpu { profile, .. } => profile.clone(),
        Passthrough::Static { .. }
        | Passthrough::Dynamic(_)
        | Passthrough::Dvx
        | Passthrough::Sriov { .. }
        | Passthrough::Other { .. } => None,
    };
    vm.passthrough.iter().flatten().filter_map(profile).collect()
}

#[cfg(test)]
mod tests;
