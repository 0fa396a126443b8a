//! Cached properties of a host, a cluster and a VM.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use crate::decode::{self, DecodedDevice};
use crate::moref::Moref;
use crate::property::{EVACUATION, PARTIAL_MAINTENANCE, Value};
use crate::text;
use crate::update::{
    Compute, DatastoreState, EnteringMaintenance, Host, HostConnection, MaintenanceEnd, PciDevice, PciIds, Vm,
};
use haulout_core::ids::{ComputeRef, DatastoreRef, HostRef, NetworkRef, TaskRef, VmRef, VmUuid};

#[derive(Default)]
pub(super) struct HostProperties {
    pub(super) name: Option<String>,
    pub(super) compute: Option<ComputeRef>,
    pub(super) connection: Option<HostConnection>,
    pub(super) in_maintenance: Option<bool>,
    pub(super) in_quarantine: Option<bool>,
    pub(super) build: Option<u64>,
    pub(super) partial_maintenance: Option<String>,
    pub(super) datastores: Arc<BTreeSet<DatastoreRef>>,
    /// Address and hardware label of the devices with active passthrough.
    pub(super) active: Option<BTreeMap<String, Option<Arc<str>>>>,
    /// The addresses of the devices with active SR-IOV.
    pub(super) sriov: Arc<BTreeSet<String>>,
    pub(super) devices: Option<Vec<(String, PciIds)>>,
    /// The devices whose address is in `active`.
    pub(super) passthrough: Option<Arc<[PciDevice]>>,
    /// With the queue time of the task.
    pub(super) last_end: Option<(Timestamp, MaintenanceEnd)>,
    /// The same of the newest exit from maintenance that a user started.
    pub(super) last_exit: Option<(Timestamp, TaskRef)>,
}

/// Applies a property of a compute resource; `None` if unset or unreadable. The same for the methods and functions below.
pub(super) fn set_compute(compute: &mut Compute, path: &str, value: Option<&Value>) {
    match path {
        "name" => compute.name = value.and_then(Value::text).map(text::inventory_name),
        "configurationEx" => {
            let config = value.and_then(Value::cluster);
            compute.drs = config.and_then(|config| config.drs.clone());
            compute.rules = config.map(|config| Arc::clone(&config.rules)).unwrap_or_default();
        }
        // Not requested.
        _ => {}
    }
}

/// A VM of which nothing was read yet.
pub(super) fn unread_vm(moref: VmRef) -> Vm {
    Vm {
        moref,
        name: None,
        uuid: None,
        template: false,
        power: None,
        host: None,
        tools_running: None,
        question: None,
        datastores: Arc::default(),
        datastore_states: Arc::default(),
        networks: Arc::default(),
        passthrough: None,
        memory_mib: None,
        hardware_version: None,
        evacuation_power_off: false,
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
            "summary.config.product.build" => self.build = text.and_then(|build| build.parse().ok()),
            PARTIAL_MAINTENANCE => self.partial_maintenance = text.map(text::for_people),
            "datastore" => self.datastores = datastores(value),
            "config.pciPassthruInfo" => {
                let active = value.and_then(Value::active_devices);
                self.active = active.map(|active| active.passthrough.clone());
                self.sriov = active
                    .map(|active| Arc::new(active.sriov.clone()))
                    .unwrap_or_default();
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
        let active_device = |(address, ids): &(String, PciIds)| {
            let label = self.active.as_ref()?.get(address)?;
            Some(PciDevice {
                address: address.clone(),
                ids: *ids,
                label: label.clone(),
            })
        };
        let devices = self.devices.as_ref()?;
        Some(devices.iter().filter_map(active_device).collect())
    }

    pub(super) fn object(
        &self,
        moref: &HostRef,
        entering: Option<EnteringMaintenance>,
        maintenance_asked_at: Option<Timestamp>,
        entering_standby: Option<TaskRef>,
    ) -> Host {
        Host {
            moref: moref.clone(),
            name: self.name.clone(),
            compute: self.compute.clone(),
            connection: self.connection,
            in_maintenance: self.in_maintenance,
            in_quarantine: self.in_quarantine,
            build: self.build,
            entering,
            maintenance_asked_at,
            entering_standby,
            partial_maintenance: self.partial_maintenance.clone(),
            last_end: self.last_end.as_ref().map(|(_, end)| end.clone()),
            last_exit: self.last_exit.as_ref().map(|(_, task)| task.clone()),
            datastores: self.datastores.clone(),
            passthrough: self.passthrough.clone(),
            sriov: self.sriov.clone(),
        }
    }
}

pub(super) fn set_vm(vm: &mut Vm, path: &str, value: Option<&Value>) {
    let text = value.and_then(Value::text);
    match path {
        "name" => vm.name = text.map(text::inventory_name),
        "config.uuid" => vm.uuid = text.and_then(VmUuid::parse),
        "config.template" => vm.template = text.and_then(decode::boolean).unwrap_or(false),
        "config.hardware.device" => {
            let devices = value.and_then(Value::devices);
            let what = |devices: &[DecodedDevice]| devices.iter().map(|device| device.what.clone()).collect();
            vm.passthrough = devices.map(what);
        }
        "config.hardware.memoryMB" => vm.memory_mib = text.and_then(|mib| mib.parse().ok()),
        "config.version" => vm.hardware_version = text.map(decode::hardware_version),
        EVACUATION => {
            vm.evacuation_power_off = text.is_some_and(|mark| mark.eq_ignore_ascii_case("true"));
        }
        "runtime.powerState" => vm.power = text.and_then(decode::power),
        "runtime.host" => vm.host = value.and_then(Value::moref).and_then(Moref::host),
        "runtime.question" => vm.question = text.map(text::for_people),
        "guest.toolsRunningStatus" => {
            vm.tools_running = text.map(|text| text == "guestToolsRunning");
        }
        "datastore" => vm.datastores = datastores(value),
        "network" => {
            let morefs = value.map_or(&[][..], Value::morefs).iter();
            let unnamed = morefs.filter_map(Moref::network).map(|network| (network, None));
            vm.networks = Arc::new(unnamed.collect());
        }
        _ => {}
    }
}

/// Applies a property of a datastore.
pub(super) fn set_datastore(datastore: &mut DatastoreState, path: &str, value: Option<&Value>) {
    let text = value.and_then(Value::text);
    match path {
        "name" => datastore.name = text.map(|name| text::inventory_name(name).into()),
        "summary.maintenanceMode" => datastore.in_maintenance = text == Some("inMaintenance"),
        "host" => {
            datastore.inaccessible_on = value
                .and_then(Value::inaccessible_on)
                .cloned()
                .unwrap_or_default();
        }
        _ => {}
    }
}

/// The VM with the states of its datastores and the names of its networks, which are objects of their own. It does not need those
/// `of_images`.
pub(super) fn with_resources(
    vm: &Vm,
    of_images: Option<&BTreeSet<DatastoreRef>>,
    datastores: &HashMap<DatastoreRef, Arc<DatastoreState>>,
    names: &HashMap<NetworkRef, Arc<str>>,
) -> Vm {
    let is_needed = |datastore: &&DatastoreRef| !of_images.is_some_and(|images| images.contains(*datastore));
    let needed = vm.datastores.iter().filter(is_needed);
    let known = needed.clone().filter_map(|datastore| {
        let state = datastores.get(datastore)?;
        Some((datastore.clone(), Arc::clone(state)))
    });
    let named = vm
        .networks
        .keys()
        .map(|network| (network.clone(), names.get(network).cloned()));
    Vm {
        datastores: Arc::new(needed.cloned().collect()),
        datastore_states: Arc::new(known.collect()),
        networks: Arc::new(named.collect()),
        ..vm.clone()
    }
}

fn datastores(value: Option<&Value>) -> Arc<BTreeSet<DatastoreRef>> {
    let morefs = value.map_or(&[][..], Value::morefs);
    Arc::new(morefs.iter().filter_map(Moref::datastore).collect())
}
