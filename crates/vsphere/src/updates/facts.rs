//! What is kept of a host, and what a host and a VM are made of.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::Timestamp;

use crate::decode::ActiveDevices;
use crate::update::{
    DatastoreState, EnteringMaintenance, Host, HostConnection, MaintenanceEnd, PciDevice, PciIds, Vm,
};
use haulout_core::ids::{ComputeRef, DatastoreRef, HostRef, NetworkRef, TaskRef, VmRef};

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
    pub(super) fn set_active(&mut self, active: Option<&ActiveDevices>) {
        self.active = active.map(|active| active.passthrough.clone());
        let sriov = active.map(|active| active.sriov.clone());
        self.sriov = Arc::new(sriov.unwrap_or_default());
        self.passthrough = self.passthrough();
    }

    pub(super) fn set_devices(&mut self, devices: Option<&[(String, PciIds)]>) {
        self.devices = devices.map(<[_]>::to_vec);
        self.passthrough = self.passthrough();
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
