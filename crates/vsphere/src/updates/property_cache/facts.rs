//! Cached properties of a host, a cluster and a VM.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::decode::{self, DecodedDevice};
use crate::moref::Moref;
use crate::property::{EVACUATION, Value};
use crate::text;
use crate::update::{
    Drs, EnteringMaintenance, Host, HostConnection, MaintenanceEnd, Passthrough, PciDevice, PowerState, Vm,
};
use haulout_core::ids::{ComputeRef, DatastoreRef, HostRef, VmRef, VmUuid};

#[derive(Default)]
pub(super) struct HostProperties {
    pub(super) name: Option<String>,
    pub(super) compute: Option<ComputeRef>,
    pub(super) connection: Option<HostConnection>,
    pub(super) in_maintenance: Option<bool>,
    pub(super) in_quarantine: Option<bool>,
    pub(super) datastores: Arc<BTreeSet<DatastoreRef>>,
    pub(super) active: Option<BTreeSet<String>>,
    pub(super) devices: Option<Vec<PciDevice>>,
    /// The devices whose address is in `active`.
    pub(super) passthrough: Option<Arc<[PciDevice]>>,
    /// With the queue time of the task.
    pub(super) last_end: Option<(Timestamp, MaintenanceEnd)>,
}

#[derive(Default)]
pub(super) struct ComputeProperties {
    pub(super) name: Option<String>,
    pub(super) drs: Option<Drs>,
}

#[derive(Default)]
pub(super) struct VmProperties {
    pub(super) name: Option<String>,
    pub(super) uuid: Option<VmUuid>,
    pub(super) template: bool,
    pub(super) power: Option<PowerState>,
    pub(super) host: Option<HostRef>,
    pub(super) tools_running: Option<bool>,
    pub(super) question: Option<String>,
    pub(super) datastores: Arc<BTreeSet<DatastoreRef>>,
    pub(super) passthrough: Option<Vec<Passthrough>>,
    pub(super) evacuation_power_off: bool,
}

impl ComputeProperties {
    /// Applies a property; `None` if unset or unreadable.
    pub(super) fn set(&mut self, path: &str, value: Option<&Value>) {
        match path {
            "name" => self.name = value.and_then(Value::text).map(text::inventory_name),
            "configurationEx" => self.drs = value.and_then(Value::drs).cloned(),
            // Not requested.
            _ => {}
        }
    }
}

impl HostProperties {
    pub(super) fn set(&mut self, path: &str, value: Option<&Value>) {
        let text = value.and_then(Value::text);
        match path {
            "name" => self.name = text.map(text::inventory_name),
            "parent" => self.compute = value.and_then(Value::moref).and_then(Moref::compute),
            "runtime.connectionState" => self.connection = text.and_then(decode::connection),
            "runtime.inMaintenanceMode" => self.in_maintenance = text.and_then(decode::boolean),
            "runtime.inQuarantineMode" => self.in_quarantine = text.and_then(decode::boolean),
            "datastore" => self.datastores = datastores(value),
            "config.pciPassthruInfo" => {
                self.active = value.and_then(Value::addresses).cloned();
                self.passthrough = self.passthrough();
            }
            "hardware.pciDevice" => {
                self.devices = value.and_then(Value::pci_devices).map(<[_]>::to_vec);
                self.passthrough = self.passthrough();
            }
            _ => {}
        }
    }

    /// A host always has devices; without active addresses none is enabled for passthrough.
    fn passthrough(&self) -> Option<Arc<[PciDevice]>> {
        let is_active = |device: &&PciDevice| {
            let active = self.active.as_ref();
            active.is_some_and(|active| active.contains(&device.address))
        };
        let devices = self.devices.as_ref()?;
        Some(devices.iter().filter(is_active).cloned().collect())
    }

    pub(super) fn object(&self, moref: &HostRef, entering: Option<EnteringMaintenance>) -> Host {
        Host {
            moref: moref.clone(),
            name: self.name.clone(),
            compute: self.compute.clone(),
            connection: self.connection,
            in_maintenance: self.in_maintenance,
            in_quarantine: self.in_quarantine,
            entering,
            last_end: self.last_end.as_ref().map(|(_, end)| end.clone()),
            datastores: self.datastores.clone(),
            passthrough: self.passthrough.clone(),
        }
    }
}

impl VmProperties {
    /// Takes one property; `None` is unset or unreadable.
    pub(super) fn set(&mut self, path: &str, value: Option<&Value>) {
        let text = value.and_then(Value::text);
        match path {
            "name" => self.name = text.map(text::inventory_name),
            "config.uuid" => self.uuid = text.and_then(VmUuid::parse),
            "config.template" => self.template = text.and_then(decode::boolean).unwrap_or(false),
            "config.hardware.device" => {
                let devices = value.and_then(Value::devices);
                let what =
                    |devices: &[DecodedDevice]| devices.iter().map(|device| device.what.clone()).collect();
                self.passthrough = devices.map(what);
            }
            EVACUATION => {
                self.evacuation_power_off = text.is_some_and(|mark| mark.eq_ignore_ascii_case("true"));
            }
            "runtime.powerState" => self.power = text.and_then(decode::power),
            "runtime.host" => self.host = value.and_then(Value::moref).and_then(Moref::host),
            "runtime.question" => self.question = text.map(text::for_people),
            "guest.toolsRunningStatus" => {
                self.tools_running = text.map(|text| text == "guestToolsRunning");
            }
            "datastore" => self.datastores = datastores(value),
            _ => {}
        }
    }

    pub(super) fn object(&self, moref: &VmRef) -> Vm {
        Vm {
            moref: moref.clone(),
            name: self.name.clone(),
            uuid: self.uuid,
            template: self.template,
            power: self.power,
            host: self.host.clone(),
            tools_running: self.tools_running,
            question: self.question.clone(),
            datastores: self.datastores.clone(),
            passthrough: self.passthrough.clone(),
            evacuation_power_off: self.evacuation_power_off,
        }
    }
}

fn datastores(value: Option<&Value>) -> Arc<BTreeSet<DatastoreRef>> {
    let morefs = value.map_or(&[][..], Value::morefs);
    Arc::new(morefs.iter().filter_map(Moref::datastore).collect())
}
