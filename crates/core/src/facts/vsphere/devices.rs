//! Passthrough devices of hosts and VMs, and which ones match.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::VgpuProfile;

/// One passthrough device of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciDevice {
    /// The address on that host, `0000:3b:00.0`.
    pub address: String,
    pub ids: PciIds,
    /// `HostPciPassthruInfo.hardwareLabel`, which an administrator sets.
    pub label: Option<Arc<str>>,
}

/// The ids of a PCI device, masked to 16 bits (the API has signed shorts).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciIds {
    pub vendor: u16,
    pub device: u16,
    /// Subsystem vendor id; 0 where there is none.
    pub sub_vendor: u16,
    /// Subsystem device id; 0 where there is none.
    pub sub_device: u16,
}

/// A passthrough device of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passthrough {
    /// Bound to one address of one host (`VirtualPCIPassthroughDeviceBackingInfo`).
    Static {
        /// The address, `0000:3b:00.0`.
        address: String,
        vendor: u16,
        /// PCI device id, where the backing has it in a readable form.
        device: Option<u16>,
    },
    /// Chosen at power-on among devices that match (`VirtualPCIPassthroughDynamicBackingInfo`).
    Dynamic(DeviceRequirement),
    /// A virtual GPU (`VirtualPCIPassthroughVmiopBackingInfo`). Placement supports it if its profile is known.
    Vgpu {
        profile: Option<VgpuProfile>,
        /// `migrateSupported`; `None` where vCenter does not say.
        migrates: Option<bool>,
    },
    /// A device that its driver can detach, "Enhanced DirectPath I/O" (`VirtualPCIPassthroughDvxBackingInfo`). Not supported by
    /// placement.
    Dvx,
    /// A network card by SR-IOV (`VirtualSriovEthernetCard`). Its virtual function is chosen at power-on.
    Sriov {
        /// The address of the physical function; `None` if that is chosen at power-on too.
        function: Option<String>,
    },
    /// An unknown backing: not supported by placement.
    Other {
        /// The type of the backing in the API.
        backing: String,
    },
}

/// A device of a VM at a fixed address of a host, whose model is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaticDevice {
    /// The address, `0000:3b:00.0`.
    pub address: String,
    pub vendor: u16,
    pub device: u16,
}

/// The change of one passthrough device of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChange {
    /// Its address in the configuration of the VM.
    pub from: String,
    /// The address of the device on the host where the VM is registered. It may be the same on both hosts.
    pub to: String,
}

/// A kind of passthrough device with which vCenter can move a running VM by vMotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmotionDevice {
    /// A virtual GPU.
    Vgpu,
    /// A device of Enhanced DirectPath I/O.
    Dvx,
}

impl VmotionDevice {
    /// The kind in a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::Vgpu => "a vGPU",
            Self::Dvx => "an Enhanced DirectPath I/O device",
        }
    }
}

impl Passthrough {
    /// The kind of device, if vCenter can move a VM that has it by vMotion.
    pub fn vmotion_device(&self) -> Option<VmotionDevice> {
        match self {
            Self::Vgpu { migrates, .. } => (*migrates != Some(false)).then_some(VmotionDevice::Vgpu),
            Self::Dvx => Some(VmotionDevice::Dvx),
            Self::Static { .. } | Self::Dynamic(_) | Self::Sriov { .. } | Self::Other { .. } => None,
        }
    }
}

/// What a device must be for a VM that gets it at power-on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequirement {
    /// The acceptable models.
    pub allowed: Vec<AllowedDevice>,
    /// `customLabel`: the hardware label that the device must have.
    pub label: Option<Arc<str>>,
}

/// A model of device (`VirtualPCIPassthroughAllowedDevice`). Its `revisionId` is not compared, because the API does not report that
/// of a host's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedDevice {
    pub vendor: u16,
    pub device: u16,
    /// Subsystem vendor id; `None` accepts any.
    pub sub_vendor: Option<u16>,
    /// Subsystem device id; `None` accepts any.
    pub sub_device: Option<u16>,
}

/// In what a device differs from a requirement, the most different first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceMismatch {
    /// It has another vendor or device id.
    Model,
    /// Only its subsystem ids differ.
    Subsystem,
    /// Only its hardware label differs.
    Label,
}

impl DeviceRequirement {
    /// Whether a VM with this requirement can get `device`.
    pub fn accepts(&self, device: &PciDevice) -> bool {
        self.mismatch(device).is_none()
    }

    /// In what `device` differs, if a VM with this requirement cannot get it.
    pub fn mismatch(&self, device: &PciDevice) -> Option<DeviceMismatch> {
        let mut models = self
            .allowed
            .iter()
            .filter(|allowed| allowed.is_model_of(device.ids));
        if models.clone().next().is_none() {
            Some(DeviceMismatch::Model)
        } else if !models.any(|allowed| allowed.is_subsystem_of(device.ids)) {
            Some(DeviceMismatch::Subsystem)
        } else if self.label.is_some() && self.label != device.label {
            Some(DeviceMismatch::Label)
        } else {
            None
        }
    }
}

impl StaticDevice {
    /// Any device of the same model.
    pub fn requirement(&self) -> DeviceRequirement {
        DeviceRequirement {
            allowed: vec![AllowedDevice {
                vendor: self.vendor,
                device: self.device,
                sub_vendor: None,
                sub_device: None,
            }],
            label: None,
        }
    }
}

impl AllowedDevice {
    fn is_model_of(&self, ids: PciIds) -> bool {
        (self.vendor, self.device) == (ids.vendor, ids.device)
    }

    fn is_subsystem_of(&self, ids: PciIds) -> bool {
        self.sub_vendor.is_none_or(|wanted| wanted == ids.sub_vendor)
            && self.sub_device.is_none_or(|wanted| wanted == ids.sub_device)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimedDevice {
    Address(String),
    /// An unknown one of the devices that are accepted.
    AnyOf(DeviceRequirement),
    /// A part of some GPU of the host.
    Vgpu(VgpuProfile),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{A40, of_model, pci};

    #[test]
    fn device_of_another_label_or_subsystem_is_not_accepted() {
        let plain = pci("0000:01:00.0", A40);
        let labelled = PciDevice {
            label: Some("pool-a".into()),
            ids: PciIds {
                sub_vendor: 0x10de,
                sub_device: 0x145a,
                ..plain.ids
            },
            ..plain.clone()
        };
        let any = of_model(A40);
        assert!(any.accepts(&plain) && any.accepts(&labelled));
        let label = DeviceRequirement {
            label: Some("pool-a".into()),
            ..any.clone()
        };
        assert_eq!(label.mismatch(&plain), Some(DeviceMismatch::Label));
        assert_eq!(label.mismatch(&labelled), None);
        let subsystem = |sub_device| DeviceRequirement {
            allowed: vec![AllowedDevice {
                sub_vendor: Some(0x10de),
                sub_device: Some(sub_device),
                ..any.allowed[0]
            }],
            label: Some("pool-b".into()),
        };
        assert_eq!(
            subsystem(0x145b).mismatch(&labelled),
            Some(DeviceMismatch::Subsystem)
        );
        assert_eq!(subsystem(0x145a).mismatch(&labelled), Some(DeviceMismatch::Label));
        assert_eq!(
            subsystem(0x145a).mismatch(&pci("0000:01:00.0", (0x8086, 0x56c0))),
            Some(DeviceMismatch::Model)
        );
        assert_eq!(
            subsystem(0x145a).mismatch(&plain),
            Some(DeviceMismatch::Subsystem),
            "a device without subsystem ids is no match"
        );
    }

    #[test]
    fn one_of_several_allowed_models_is_enough() {
        let mut both = of_model(A40);
        both.allowed.push(AllowedDevice {
            sub_device: Some(1),
            ..of_model(A40).allowed[0]
        });
        both.allowed.reverse();
        assert!(both.accepts(&pci("0000:01:00.0", A40)));
    }
}
