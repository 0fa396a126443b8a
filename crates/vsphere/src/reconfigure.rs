//! Reconfigure: gives a powered-off VM passthrough devices at fixed addresses of its host.

use std::collections::BTreeMap;

use super::call::SoapCall;
use super::client::Vcenter;
use super::decode::{self, DecodedDevice, FixedDevice, TargetDevice};
use super::error::Error;
use super::fault::{Fault, FaultKind};
use super::moref::Moref;
use super::power::{StartedTask, read_started};
use super::preflight::{PreflightCheck, TaskKind};
use super::property::{DEVICES, PropertySpec, TraversalStep, Value};
use super::soap::ReplyError;
use super::update::{DeviceChange, Passthrough};
use super::xml::write::XmlWriter;
use crate::WritePermit;
use haulout_core::ids::{HostRef, VmRef};

const METHOD: &str = "ReconfigVM_Task";

/// The devices of a VM, and the version of its configuration.
struct Configuration {
    version: Option<String>,
    devices: Vec<DecodedDevice>,
}

impl Vcenter {
    /// Changes the backing of passthrough devices of `vm` (`ReconfigVM_Task`) to devices of `host`, where the VM is registered, after a
    /// check. A backing names its host by `systemId`, which `QueryConfigTarget` returns with each device. A VM whose devices are those
    /// of `host` already is left alone, and nothing else of its configuration is changed.
    ///
    /// # Errors
    /// As [`Vcenter::relocate`]; [`FaultKind::InvalidState`] without a call if the VM is on another host or has no such device; and
    /// [`FaultKind::VmConfig`] if the host has no such device.
    pub async fn reconfigure_devices(
        &self,
        permit: &impl WritePermit,
        vm: &VmRef,
        host: &HostRef,
        changes: &[DeviceChange],
    ) -> Result<StartedTask, Error> {
        let check = self.check(METHOD, vm, None).await?;
        if let Some(task) = check.running_task(&TaskKind::RECONFIGURE)? {
            return Ok(StartedTask::Running(task));
        }
        check.check_host(host)?;
        check.check_off()?;
        let configuration = self.configuration(vm).await?;
        let targets = self.target_devices(&check, host).await?;
        let edits = edits(&configuration.devices, &targets, changes).map_err(|fault| check.refused(fault))?;
        if edits.is_empty() {
            return Ok(StartedTask::AlreadyThere);
        }
        let version = configuration
            .version
            .map(|version| XmlWriter::text("changeVersion", version));
        let spec = XmlWriter::new("spec").with_all(version).with_all(edits);
        let call = SoapCall::under(permit, METHOD, &vm.into()).with(spec);
        self.call_in(&check.session, &call, read_started).await
    }

    async fn configuration(&self, vm: &VmRef) -> Result<Configuration, Error> {
        const VERSION: &str = "config.changeVersion";
        let moref = Moref::from(vm);
        let spec = PropertySpec::default()
            .read_properties("VirtualMachine", &[VERSION, DEVICES])
            .select_object(&moref, []);
        let objects = self.retrieve(spec).await?;
        let object = objects.iter().find(|object| object.moref == moref);
        if let Some(fault) = object.and_then(|object| object.denied(DEVICES)) {
            return Err(Error::refused(METHOD, &moref, fault.clone()));
        }
        let devices = object
            .and_then(|object| object.get(DEVICES))
            .and_then(Value::devices);
        let devices = devices.ok_or_else(|| {
            let call = SoapCall::to("RetrievePropertiesEx", &moref);
            call.unreadable(ReplyError::value("the devices of the VM", "readable"))
        })?;
        Ok(Configuration {
            version: object
                .and_then(|object| object.text(VERSION))
                .map(ToOwned::to_owned),
            devices: devices.to_vec(),
        })
    }

    /// The passthrough devices of `host` (`EnvironmentBrowser.QueryConfigTarget`), by address.
    async fn target_devices(
        &self,
        check: &PreflightCheck,
        host: &HostRef,
    ) -> Result<BTreeMap<String, TargetDevice>, Error> {
        let moref = Moref::from(host);
        let spec = PropertySpec::default()
            .read_properties("ComputeResource", &["environmentBrowser"])
            .select_object(&moref, [TraversalStep::new("HostSystem", "parent", [])]);
        let objects = self.retrieve(spec).await?;
        let browser = objects
            .iter()
            .find_map(|object| object.moref("environmentBrowser"));
        let browser = browser.ok_or_else(|| {
            let call = SoapCall::to("RetrievePropertiesEx", &moref);
            call.unreadable(ReplyError::value(
                "the host's environment browser",
                "visible to us",
            ))
        })?;
        let call = SoapCall::to("QueryConfigTarget", browser).with(XmlWriter::moref("host", &moref));
        let read = |response: &super::xml::Element<'_>| {
            // An unset value is an empty answer: the host has no devices for VMs.
            Ok(response
                .child("returnval")
                .map(decode::target_devices)
                .unwrap_or_default())
        };
        self.call_in(&check.session, &call, read).await
    }
}

/// The changes of the configuration; none for a device that the VM has already.
fn edits(
    devices: &[DecodedDevice],
    targets: &BTreeMap<String, TargetDevice>,
    changes: &[DeviceChange],
) -> Result<Vec<XmlWriter>, Fault> {
    let mut fixed: Vec<(&str, &FixedDevice)> = devices.iter().filter_map(fixed_device).collect();
    let mut edits = Vec::new();
    for change in changes {
        let Some(target) = targets.get(&change.to) else {
            let message = format!(
                "the host has no passthrough device at {}; nothing was sent",
                change.to
            );
            return Err(Fault::new(FaultKind::VmConfig, message));
        };
        let has = |(address, device): &(&str, &FixedDevice)| {
            *address == change.to && device.system_id == target.system_id
        };
        let is_named = |(address, _): &(&str, &FixedDevice)| *address == change.from;
        // An earlier call may have changed it.
        let at = fixed
            .iter()
            .position(has)
            .or_else(|| fixed.iter().position(is_named));
        let Some(at) = at else {
            let message = format!(
                "the VM has no passthrough device at {}; nothing was sent",
                change.from
            );
            return Err(Fault::new(FaultKind::InvalidState, message));
        };
        let found = fixed.remove(at);
        if !has(&found) {
            edits.push(edit(found.1, &change.to, target));
        }
    }
    Ok(edits)
}

fn fixed_device(device: &DecodedDevice) -> Option<(&str, &FixedDevice)> {
    match &device.what {
        Passthrough::Static { address, .. } => Some((address, device.fixed.as_ref()?)),
        Passthrough::Dynamic(_)
        | Passthrough::Vgpu { .. }
        | Passthrough::Dvx
        | Passthrough::Sriov { .. }
        | Passthrough::Other { .. } => None,
    }
}

/// A `VirtualDeviceConfigSpec`; the order of its elements is that of the schema.
fn edit(device: &FixedDevice, address: &str, target: &TargetDevice) -> XmlWriter {
    // The device is of the same model, so a `deviceId` keeps the format that vCenter accepted.
    let device_id = if device.device_id.is_empty() {
        format!("{:x}", target.device)
    } else {
        device.device_id.clone()
    };
    // A signed short in the API.
    let vendor = i16::from_ne_bytes(target.vendor.to_ne_bytes());
    let backing = XmlWriter::new("backing")
        .attribute("xsi:type", "VirtualPCIPassthroughDeviceBackingInfo")
        .with(XmlWriter::text("deviceName", target.name.clone()))
        .with(XmlWriter::text("id", address))
        .with(XmlWriter::text("deviceId", device_id))
        .with(XmlWriter::text("systemId", target.system_id.clone()))
        .with(XmlWriter::text("vendorId", vendor.to_string()));
    let number = |name, number: Option<i32>| number.map(|number| XmlWriter::text(name, number.to_string()));
    let device = XmlWriter::new("device")
        .attribute("xsi:type", "VirtualPCIPassthrough")
        .with(XmlWriter::text("key", device.key.to_string()))
        .with(backing)
        .with_all(number("controllerKey", device.controller))
        .with_all(number("unitNumber", device.unit));
    XmlWriter::new("deviceChange")
        .with(XmlWriter::text("operation", "edit"))
        .with(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "0000:3b:00.0";
    const SECOND: &str = "0000:5e:00.0";
    const HERE: &str = "5e9f4929-here";

    fn fixed(key: i32, address: &str, system_id: &str, device_id: &str) -> DecodedDevice {
        DecodedDevice {
            what: Passthrough::Static {
                address: address.to_owned(),
                vendor: 0x10de,
                device: None,
            },
            assigned: None,
            fixed: Some(FixedDevice {
                key,
                controller: Some(100),
                unit: Some(18),
                device_id: device_id.to_owned(),
                system_id: system_id.to_owned(),
            }),
        }
    }

    fn host(addresses: &[&str]) -> BTreeMap<String, TargetDevice> {
        let device = || TargetDevice {
            name: "NVIDIA A40".to_owned(),
            vendor: 0x80de,
            device: 0x2235,
            system_id: HERE.to_owned(),
        };
        let entry = |address: &&str| ((*address).to_owned(), device());
        addresses.iter().map(entry).collect()
    }

    fn change(from: &str, to: &str) -> DeviceChange {
        DeviceChange {
            from: from.to_owned(),
            to: to.to_owned(),
        }
    }

    fn rendered(devices: &[DecodedDevice], targets: &[&str], changes: &[DeviceChange]) -> Vec<String> {
        let edits = edits(devices, &host(targets), changes).unwrap();
        let render = |edit: &XmlWriter| {
            let mut text = String::new();
            edit.render(&mut text);
            text
        };
        edits.iter().map(render).collect()
    }

    #[test]
    fn device_of_another_host_at_the_same_address_is_changed() {
        let edits = rendered(
            &[fixed(13000, FIRST, "elsewhere", "2235")],
            &[FIRST],
            &[change(FIRST, FIRST)],
        );
        let expected = concat!(
            "<deviceChange><operation>edit</operation>",
            r#"<device xsi:type="VirtualPCIPassthrough"><key>13000</key>"#,
            r#"<backing xsi:type="VirtualPCIPassthroughDeviceBackingInfo"><deviceName>NVIDIA A40</deviceName>"#,
            "<id>0000:3b:00.0</id><deviceId>2235</deviceId><systemId>5e9f4929-here</systemId>",
            "<vendorId>-32546</vendorId></backing>",
            "<controllerKey>100</controllerKey><unitNumber>18</unitNumber></device></deviceChange>"
        );
        assert_eq!(edits, [expected]);
    }

    #[test]
    fn device_that_the_vm_has_already_is_left_alone() {
        let there = [fixed(13000, SECOND, HERE, "2235")];
        for from in [FIRST, SECOND] {
            let edits = rendered(&there, &[FIRST, SECOND], &[change(from, SECOND)]);
            assert!(edits.is_empty(), "{edits:?}");
        }
    }

    #[test]
    fn missing_device_id_is_filled_in() {
        let device = [fixed(13000, FIRST, "elsewhere", "")];
        let edits = rendered(&device, &[SECOND], &[change(FIRST, SECOND)]);
        assert!(edits[0].contains("<deviceId>2235</deviceId>"), "{edits:?}");
    }

    #[test]
    fn nothing_is_sent_for_a_device_that_vm_or_host_does_not_have() {
        let device = [fixed(13000, FIRST, "elsewhere", "2235")];
        for (targets, change, kind) in [
            (&[SECOND][..], change(SECOND, SECOND), FaultKind::InvalidState),
            (&[FIRST], change(FIRST, SECOND), FaultKind::VmConfig),
        ] {
            let fault = edits(&device, &host(targets), &[change]).map(|edits| edits.len());
            assert_eq!(fault.unwrap_err().kind, kind);
        }
        let both = [change(FIRST, FIRST), change(FIRST, SECOND)];
        let fault = edits(&device, &host(&[FIRST, SECOND]), &both).map(|edits| edits.len());
        assert_eq!(
            fault.unwrap_err().kind,
            FaultKind::InvalidState,
            "one device is changed once"
        );
    }
}
