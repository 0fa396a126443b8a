//! Decodes values. An unknown value is `None`, never an error.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::moref::Moref;
use super::text::for_people;
use super::update::{AllowedDevice, DeviceRequirement, HostConnection, Passthrough, PciIds, PowerState};
use super::xml::Element;
use haulout_core::ids::{DatastoreRef, HostRef, VmRef};

pub(crate) mod cluster;
pub(crate) mod custom_fields;
pub(crate) mod vgpu;

/// Decodes an `xsd:dateTime`.
pub(crate) fn timestamp(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Decodes a `VirtualMachinePowerState`.
pub(crate) fn power(text: &str) -> Option<PowerState> {
    match text {
        "poweredOn" => Some(PowerState::On),
        "poweredOff" => Some(PowerState::Off),
        "suspended" => Some(PowerState::Suspended),
        _ => None,
    }
}

/// Decodes a `HostSystemConnectionState`.
pub(crate) fn connection(text: &str) -> Option<HostConnection> {
    match text {
        "connected" => Some(HostConnection::Connected),
        "disconnected" => Some(HostConnection::Disconnected),
        "notResponding" => Some(HostConnection::NotResponding),
        _ => None,
    }
}

/// Decodes an `xsd:boolean`.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

/// Decodes an `ArrayOfHostPartialMaintenanceModeRuntimeInfo`: the first mode that the host is in, enters or leaves.
pub(crate) fn partial_maintenance(value: &Element<'_>) -> Option<String> {
    let mut modes = value
        .children()
        .filter(|mode| mode.text_of("hostStatus") != Some("notInPartialMM"));
    Some(modes.next()?.text_of("key")?.to_owned())
}

/// A hardware version, of a VM or of a host. Both are sanitized alike, so that they can be compared.
pub(crate) fn hardware_version(text: &str) -> Arc<str> {
    for_people(text).into()
}

/// Decodes an `ArrayOfManagedObjectReference`.
pub(crate) fn morefs(value: &Element<'_>) -> Vec<Moref> {
    value.children().filter_map(Element::moref).collect()
}

/// A passthrough device of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DecodedDevice {
    pub what: Passthrough,
    /// `assignedId` of a dynamic backing, set at power-on while the VM runs.
    pub assigned: Option<String>,
    /// What a change of a device at a fixed address has to repeat.
    pub fixed: Option<FixedDevice>,
}

/// A device at a fixed address as it stands in the configuration of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FixedDevice {
    pub key: i32,
    pub controller: Option<i32>,
    pub unit: Option<i32>,
    /// `deviceId` of the backing; clients write it in different formats.
    pub device_id: String,
    /// `systemId` of the backing: the host of the device.
    pub system_id: String,
}

/// What is used of `config.hardware.device`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hardware {
    pub passthrough: Vec<DecodedDevice>,
    /// The datastores that only images in CD and floppy drives are on. A VM that is off can be moved to a host that does not see them.
    pub of_images: BTreeSet<DatastoreRef>,
}

/// Decodes `config.hardware.device`.
pub(crate) fn hardware(devices: &Element<'_>) -> Hardware {
    let (mut of_images, mut of_others) = (BTreeSet::new(), BTreeSet::new());
    for device in devices.children() {
        let is_drive = matches!(device.xsi_type(), Some("VirtualCdrom" | "VirtualFloppy"));
        let found = if is_drive { &mut of_images } else { &mut of_others };
        // The disks that a disk is based on are nested.
        let mut backing = device.child("backing");
        while let Some(file) = backing {
            let datastore = file.child("datastore").and_then(Element::moref);
            found.extend(datastore.and_then(|moref| moref.datastore()));
            backing = file.child("parent");
        }
    }
    of_images.retain(|datastore| !of_others.contains(datastore));
    Hardware {
        passthrough: passthrough(devices),
        of_images,
    }
}

fn passthrough(devices: &Element<'_>) -> Vec<DecodedDevice> {
    let decode = |element: &Element<'_>| match element.xsi_type()? {
        "VirtualPCIPassthrough" => Some(device(element)),
        "VirtualSriovEthernetCard" => Some(sriov_card(element)),
        _ => None,
    };
    devices.children().filter_map(decode).collect()
}

fn sriov_card(card: &Element<'_>) -> DecodedDevice {
    let physical = card
        .child("sriovBacking")
        .and_then(|backing| backing.child("physicalFunctionBacking"));
    let address = physical.and_then(|backing| backing.text_of("id"));
    // "Automatic-" and an address means that the function is chosen at power-on.
    let fixed = address.filter(|address| !address.is_empty() && !address.starts_with("Automatic-"));
    let what = if card.child("dvxBackingInfo").is_some() {
        Passthrough::Dvx
    } else {
        Passthrough::Sriov {
            function: fixed.map(pci_address),
        }
    };
    DecodedDevice {
        what,
        assigned: None,
        fixed: None,
    }
}

fn device(device: &Element<'_>) -> DecodedDevice {
    let Some(backing) = device.child("backing") else {
        return DecodedDevice {
            what: Passthrough::Other {
                backing: "none".to_owned(),
            },
            assigned: None,
            fixed: None,
        };
    };
    let kind = backing.xsi_type().unwrap_or("without a type");
    let text = |name: &str| backing.text_of(name).filter(|text| !text.is_empty());
    let what = match kind {
        "VirtualPCIPassthroughDeviceBackingInfo" => match text("id") {
            Some(address) => Passthrough::Static {
                address: pci_address(address),
                vendor: text("vendorId").and_then(pci_id).unwrap_or_default(),
                device: text("deviceId").and_then(backing_device_id),
            },
            None => Passthrough::Other {
                backing: kind.to_owned(),
            },
        },
        "VirtualPCIPassthroughDynamicBackingInfo" => Passthrough::Dynamic(DeviceRequirement {
            allowed: backing
                .children_named("allowedDevice")
                .filter_map(allowed)
                .collect(),
            label: text("customLabel").map(label),
        }),
        "VirtualPCIPassthroughVmiopBackingInfo" => Passthrough::Vgpu {
            profile: text("vgpu").map(vgpu::profile),
            migrates: text("migrateSupported").and_then(boolean),
        },
        "VirtualPCIPassthroughDvxBackingInfo" => Passthrough::Dvx,
        other => Passthrough::Other {
            backing: for_people(other),
        },
    };
    let number = |name: &str| device.text_of(name)?.parse().ok();
    let fixed = || {
        Some(FixedDevice {
            key: number("key")?,
            controller: number("controllerKey"),
            unit: number("unitNumber"),
            device_id: text("deviceId").unwrap_or_default().to_owned(),
            system_id: text("systemId").unwrap_or_default().to_owned(),
        })
    };
    let is_static = matches!(what, Passthrough::Static { .. });
    DecodedDevice {
        fixed: is_static.then(fixed).flatten(),
        what,
        assigned: text("assignedId").map(pci_address),
    }
}

/// A passthrough device of a host, as a configuration of a VM names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetDevice {
    pub name: String,
    pub vendor: u16,
    pub device: u16,
    pub system_id: String,
}

/// The devices in `ConfigTarget.pciPassthrough`, by address.
pub(crate) fn target_devices(target: &Element<'_>) -> BTreeMap<String, TargetDevice> {
    let device = |entry: &Element<'_>| {
        let device = entry.child("pciDevice")?;
        let id = |name: &str| device.text_of(name).and_then(pci_id);
        let target = TargetDevice {
            name: device.text_of("deviceName").unwrap_or_default().to_owned(),
            vendor: id("vendorId")?,
            device: id("deviceId")?,
            system_id: entry.text_of("systemId")?.to_owned(),
        };
        Some((pci_address(device.text_of("id")?), target))
    };
    let entries = target.children_named("pciPassthrough");
    entries.filter_map(device).collect()
}

fn allowed(device: &Element<'_>) -> Option<AllowedDevice> {
    let id = |name: &str| device.text_of(name).and_then(pci_id);
    // 0 is taken for an id that is not specified. NICs and bridges with the subsystem id 0 exist, so it would match more of them
    // than was asked for; no GPU is known to have it (probe `sub-ids`).
    let sub_id = |name: &str| id(name).filter(|id| *id != 0);
    Some(AllowedDevice {
        vendor: id("vendorId")?,
        device: id("deviceId")?,
        sub_vendor: sub_id("subVendorId"),
        sub_device: sub_id("subDeviceId"),
    })
}

/// A hardware label, of a device or required by a VM. Both are sanitized alike, so that they can be compared.
fn label(text: &str) -> Arc<str> {
    for_people(text).into()
}

/// A PCI id: a signed short in hosts, an int in VMs; masked to 16 bits.
fn pci_id(text: &str) -> Option<u16> {
    let wide = text.parse::<i32>().ok()?;
    u16::try_from(wide & 0xffff).ok()
}

/// The device id of a static backing. Clients write it as hex with or without `0x`, or as signed
/// decimal; an ambiguous text is `None`.
fn backing_device_id(text: &str) -> Option<u16> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u16::from_str_radix(hex, 16).ok();
    }
    if text.starts_with('-') || (text.len() > 4 && text.bytes().all(|byte| byte.is_ascii_digit())) {
        return pci_id(text);
    }
    let hex_only = text.bytes().any(|byte| byte.is_ascii_alphabetic());
    hex_only.then(|| u16::from_str_radix(text, 16).ok()).flatten()
}

/// A normalized PCI address: lower case, with the domain.
fn pci_address(text: &str) -> String {
    let text = for_people(text).to_ascii_lowercase();
    match text.matches(':').count() {
        1 => format!("0000:{text}"),
        _ => text,
    }
}

/// The active devices in `config.pciPassthruInfo` (enabled, and the host rebooted since).
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveDevices {
    /// Those with active passthrough: address and hardware label.
    pub passthrough: BTreeMap<String, Option<Arc<str>>>,
    /// The addresses of those with active SR-IOV.
    pub sriov: BTreeSet<String>,
}

pub(crate) fn active_devices(info: &Element<'_>) -> ActiveDevices {
    let mut active = ActiveDevices::default();
    for device in info.children() {
        let Some(address) = device.text_of("id").map(pci_address) else {
            continue;
        };
        let is = |name: &str| device.text_of(name) == Some("true");
        // Only a `HostSriovInfo` has it.
        if is("sriovActive") {
            active.sriov.insert(address.clone());
        }
        if is("passthruActive") {
            let text = device.text_of("hardwareLabel");
            let label = text.filter(|text| !text.is_empty()).map(label);
            active.passthrough.insert(address, label);
        }
    }
    active
}

/// Address and ids of the devices in `hardware.pciDevice`.
pub(crate) fn pci_devices(devices: &Element<'_>) -> Vec<(String, PciIds)> {
    let device = |device: &Element<'_>| {
        let id = |name: &str| device.text_of(name).and_then(pci_id);
        let ids = PciIds {
            vendor: id("vendorId")?,
            device: id("deviceId")?,
            sub_vendor: id("subVendorId").unwrap_or_default(),
            sub_device: id("subDeviceId").unwrap_or_default(),
        };
        Some((pci_address(device.text_of("id")?), ids))
    };
    devices.children().filter_map(device).collect()
}

/// The hosts in `Datastore.host` that cannot access the datastore.
pub(crate) fn inaccessible_on(mounts: &Element<'_>) -> BTreeSet<HostRef> {
    let is_inaccessible = |mount: &&Element<'_>| {
        let info = mount.child("mountInfo");
        info.and_then(|info| info.text_of("accessible")).and_then(boolean) == Some(false)
    };
    let hosts = mounts.children().filter(is_inaccessible);
    hosts
        .filter_map(|mount| mount.child("key")?.moref()?.host())
        .collect()
}

/// The VMs in `config.assignableHardwareBinding` with the addresses of their devices; `None` if an
/// instance id has no address.
pub(crate) fn bindings(value: &Element<'_>) -> BTreeMap<VmRef, Option<BTreeSet<String>>> {
    let mut all = BTreeMap::new();
    for binding in value.children() {
        let Some(vm) = binding
            .child("vm")
            .and_then(Element::moref)
            .and_then(|vm| vm.vm())
        else {
            continue;
        };
        let of_vm = all.entry(vm).or_insert_with(|| Some(BTreeSet::new()));
        let address = binding.text_of("instanceId").and_then(address_within);
        *of_vm = of_vm.take().zip(address).map(|(mut addresses, address)| {
            addresses.insert(address);
            addresses
        });
    }
    all
}

/// The only PCI address in a text, with or without a prefix: `0000:3b:00.0`.
fn address_within(text: &str) -> Option<String> {
    const FORM: &[u8] = b"hhhh:hh:hh.h";
    let text = text.to_ascii_lowercase();
    let bytes = text.as_bytes();
    let fits = |at: usize| {
        let window = &bytes[at..at + FORM.len()];
        let alike = window.iter().zip(FORM).all(|(byte, form)| match form {
            b'h' => byte.is_ascii_hexdigit(),
            sign => byte == sign,
        });
        let around = [at.checked_sub(1), Some(at + FORM.len())];
        let mut around = around.into_iter().flatten().filter_map(|at| bytes.get(at));
        alike && around.all(|byte| !byte.is_ascii_alphanumeric())
    };
    let mut found = (0..(bytes.len() + 1).saturating_sub(FORM.len())).filter(|at| fits(*at));
    let at = found.next().filter(|_| found.next().is_none())?;
    text.get(at..at + FORM.len()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_found_within_an_instance_id() {
        for (text, address) in [
            ("0000:3b:00.0", Some("0000:3b:00.0")),
            ("pcip:0000:3B:00.0", Some("0000:3b:00.0")),
            ("vgpu-0000:3b:00.0/grid_a100-4c", Some("0000:3b:00.0")),
            // More than one, none, or part of a longer number.
            ("0000:3b:00.0 0000:3b:00.1", None),
            ("00000:3b:00.0", None),
            ("0000:3b:00.00", None),
            ("3b:00.0", None),
            ("52 f0 00", None),
            ("\u{130}0000:3b:00", None),
            ("", None),
        ] {
            assert_eq!(address_within(text).as_deref(), address, "{text}");
        }
    }
}
