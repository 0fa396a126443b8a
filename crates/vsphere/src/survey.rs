//! The survey: which VM holds which passthrough device of a host, for all VMs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::client::{Error, Vcenter};
use super::decode::{self, DecodedDevice};
use super::moref::Moref;
use super::property::{DEVICES, ObjectProperties, PropertySpec, TraversalStep, Value};
use super::reading::PAGE;
use super::text;
use super::update::{Claim, ClaimedDevice, HostReading, HostSurvey, HostVgpus, Passthrough, PowerState};
use haulout_core::ids::{HostRef, NetworkRef, VmRef};

pub(crate) mod hardware;

const NETWORKS: &str = "network";
/// In bytes.
const MEMORY: &str = "hardware.memorySize";
/// In MiB.
const RESERVATION: &str = "summary.config.memoryReservation";
const BINDING: &str = "config.assignableHardwareBinding";
const VGPU_TYPES: &str = "config.sharedPassthruGpuTypes";
const VGPU_CAPABILITIES: &str = "config.sharedGpuCapabilities";
const GRAPHICS: &str = "config.graphicsInfo";

impl Vcenter {
    /// Reads which VMs hold the passthrough devices and vGPUs of `hosts`, which VMs run there and reserve memory, and which networks
    /// and vGPU profiles the hosts have (`RetrievePropertiesEx` over `HostSystem.vm`). The hardware versions that they run are asked
    /// for by one more call for each cluster (`QueryConfigOptionDescriptor`); without an answer they are unknown.
    ///
    /// A powered-off VM holds its devices too, also one that is chosen at power-on: it needs the device
    /// again. Templates never run and hold nothing. With an unreadable VM the host is unreadable, unless it
    /// reports the assigned devices of the VM.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn survey(&self, hosts: &[HostRef]) -> Result<BTreeMap<HostRef, HostSurvey>, Error> {
        if hosts.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut spec = PropertySpec::default()
            .read_properties(
                "HostSystem",
                &[
                    "vm",
                    NETWORKS,
                    MEMORY,
                    BINDING,
                    VGPU_TYPES,
                    VGPU_CAPABILITIES,
                    GRAPHICS,
                    "parent",
                ],
            )
            .read_properties("ComputeResource", &["environmentBrowser"])
            .read_properties(
                "VirtualMachine",
                &[
                    "name",
                    DEVICES,
                    "config.template",
                    "runtime.host",
                    "runtime.powerState",
                    RESERVATION,
                ],
            );
        for host in hosts.iter().collect::<BTreeSet<_>>() {
            let vms = TraversalStep::new("HostSystem", "vm", []);
            let compute = TraversalStep::new("HostSystem", "parent", []);
            spec = spec.select_object(&host.into(), [vms, compute]);
        }
        let (session, objects) = self.retrieve_with_session(spec, PAGE).await?;
        let mut surveyed = survey(hosts, &objects);
        let mut versions = self.hardware_versions(&session, &objects).await;
        for (host, survey) in &mut surveyed {
            if let HostSurvey::Read(reading) = survey {
                reading.hardware_versions = versions.remove(host).map(Arc::new);
            }
        }
        Ok(surveyed)
    }
}

/// Evaluates the objects for each of `hosts`.
///
/// For an unreadable VM, `config.assignableHardwareBinding` of its host is used
/// (`proto-notes/relocate.md`). A VM that is listed with addresses holds exactly these. A VM that is
/// not listed holds nothing, unless it is known to be off: only running VMs are bound. Without
/// bindings, which old hosts lack, the VM stays unreadable.
pub(crate) fn survey(hosts: &[HostRef], objects: &[ObjectProperties]) -> BTreeMap<HostRef, HostSurvey> {
    let mut vms = BTreeMap::new();
    let mut registered: BTreeMap<HostRef, BTreeSet<VmRef>> = BTreeMap::new();
    for object in objects {
        if let Some(vm) = object.moref.vm() {
            // During a relocate the list of the host and the property of the VM may differ: the VM
            // counts on both.
            if let Some(host) = object.moref("runtime.host").and_then(Moref::host) {
                registered.entry(host).or_default().insert(vm.clone());
            }
            vms.insert(vm, object);
        }
    }
    let mut networks = NetworkSets::default();
    let mut read = |host: &HostRef| -> Result<HostReading, String> {
        let (listed, object) = listed(host, objects)?;
        let mut here = registered.remove(host).unwrap_or_default();
        here.extend(listed);
        Ok(HostReading {
            networks: networks.networks_of(object),
            ..read_host(object, &here, &vms)?
        })
    };
    let hosts: BTreeSet<&HostRef> = hosts.iter().collect();
    let surveyed = |host: &HostRef| match read(host) {
        Ok(reading) => (host.clone(), HostSurvey::Read(reading)),
        Err(why) => (host.clone(), HostSurvey::Unreadable(why)),
    };
    hosts.into_iter().map(surveyed).collect()
}

/// Reads a host on which the VMs `here` are registered; or why any of its devices may be held.
fn read_host(
    object: &ObjectProperties,
    here: &BTreeSet<VmRef>,
    vms: &BTreeMap<VmRef, &ObjectProperties>,
) -> Result<HostReading, String> {
    let bindings = object.get(BINDING).and_then(Value::bindings);
    let mut reading = HostReading::default();
    let mut unreadable: Vec<(String, String)> = Vec::new();
    let mut reserved: u64 = 0;
    for vm in here {
        let running = vms.get(vm).filter(|vm| power(vm) == Some(PowerState::On));
        if let Some(running) = running {
            reserved = reserved.saturating_add(number(running, RESERVATION).unwrap_or_default());
            reading.running.insert(vm.clone());
        }
        let claim = |device| Claim {
            vm: vm.clone(),
            device,
        };
        let why = match devices(vms.get(vm).copied()) {
            Ok(devices) => {
                reading.claims.extend(devices.into_iter().map(claim));
                continue;
            }
            Err(why) => why,
        };
        let runs = vms.get(vm).is_none_or(|vm| may_run(vm));
        match bindings.map(|all| all.get(vm)) {
            Some(Some(Some(addresses))) => {
                let addresses = addresses.iter().cloned().map(ClaimedDevice::Address);
                reading.claims.extend(addresses.map(claim));
            }
            Some(None) if runs => {}
            Some(None | Some(None)) | None => {
                let name = vms.get(vm).and_then(|vm| vm.text("name"));
                unreadable.push((name.map_or_else(|| vm.to_string(), text::inventory_name), why));
            }
        }
    }
    if let Some(((name, why), others)) = unreadable.split_first() {
        return Err(unreadable_vms(name, why, others.len()));
    }
    let memory = number(object, MEMORY).map(|bytes| bytes >> 20);
    reading.unreserved_mib = memory.map(|memory| memory.saturating_sub(reserved));
    reading.vgpus = vgpus(object).map(Arc::new);
    Ok(reading)
}

/// Which VM may hold any device of its host, as people read it.
pub(crate) fn unreadable_vms(name: &str, why: &str, others: usize) -> String {
    let others = match others {
        0 => String::new(),
        1 => " (and of another VM)".to_owned(),
        _ => format!(" (and of {others} other VMs)"),
    };
    format!("the devices of VM {name}{others} cannot be read: {why}")
}

/// The vGPUs of a host; `None` if they may not be read. A host without vGPUs leaves the lists out.
fn vgpus(host: &ObjectProperties) -> Option<HostVgpus> {
    if host.denied(VGPU_TYPES).is_some() {
        return None;
    }
    let lists = [VGPU_TYPES, VGPU_CAPABILITIES].into_iter();
    let lists = lists.filter_map(|path| host.get(path)?.vgpu_profiles());
    let gpus = host.get(GRAPHICS).and_then(Value::shared_gpus);
    Some(HostVgpus {
        profiles: lists.flatten().cloned().collect(),
        gpus_gib: gpus.unwrap_or_default().to_vec(),
    })
}

/// The networks of hosts. The hosts of a cluster mostly have the same, of which there may be thousands,
/// so equal sets are shared.
#[derive(Default)]
struct NetworkSets(Option<Arc<BTreeSet<NetworkRef>>>);

impl NetworkSets {
    /// Those of `host`; `None` if they are not reported.
    fn networks_of(&mut self, host: &ObjectProperties) -> Option<Arc<BTreeSet<NetworkRef>>> {
        let morefs = host.get(NETWORKS)?.morefs().iter();
        let networks: BTreeSet<NetworkRef> = morefs.filter_map(Moref::network).collect();
        let known = self.0.as_ref().filter(|known| ***known == networks);
        let shared = known.map_or_else(|| Arc::new(networks.clone()), Arc::clone);
        self.0 = Some(Arc::clone(&shared));
        Some(shared)
    }
}

/// The VMs in the list of a host, and the host; or why they are unknown.
fn listed<'a>(
    host: &HostRef,
    objects: &'a [ObjectProperties],
) -> Result<(Vec<VmRef>, &'a ObjectProperties), String> {
    let object = objects.iter().find(|object| object.moref == Moref::from(host));
    let object =
        object.ok_or("vCenter does not show the host: it was removed, or this user may not see it")?;
    if let Some(fault) = object.denied("vm") {
        return Err(format!("its list of VMs cannot be read: {fault}"));
    }
    // An unset list is empty; a list without permission is reported as missing.
    let listed = object.morefs("vm").iter().filter_map(Moref::vm);
    Ok((listed.collect(), object))
}

/// The devices that a VM holds; or why they are unknown.
fn devices(vm: Option<&ObjectProperties>) -> Result<Vec<ClaimedDevice>, String> {
    let vm = vm.ok_or("vCenter does not show the VM: this user may not see it, or it was just removed")?;
    if vm.text("config.template") == Some("true") {
        return Ok(Vec::new());
    }
    if let Some(fault) = vm.denied(DEVICES) {
        return Err(format!("its devices cannot be read: {fault}"));
    }
    let devices = vm
        .get(DEVICES)
        .and_then(Value::devices)
        .ok_or("it has no configuration that can be read: it is inaccessible, orphaned, or being created")?;
    Ok(devices.iter().filter_map(held).collect())
}

fn held(device: &DecodedDevice) -> Option<ClaimedDevice> {
    match &device.what {
        Passthrough::Static { address, .. } => Some(ClaimedDevice::Address(address.clone())),
        Passthrough::Dynamic(requirement) => Some(match &device.assigned {
            Some(address) => ClaimedDevice::Address(address.clone()),
            None => ClaimedDevice::AnyOf(requirement.clone()),
        }),
        Passthrough::Vgpu { profile, .. } => profile.clone().map(ClaimedDevice::Vgpu),
        // A virtual function is no device that placement counts.
        Passthrough::Dvx | Passthrough::Sriov { .. } | Passthrough::Other { .. } => None,
    }
}

fn number(object: &ObjectProperties, path: &str) -> Option<u64> {
    object.text(path)?.parse().ok()
}

fn power(vm: &ObjectProperties) -> Option<PowerState> {
    vm.text("runtime.powerState").and_then(decode::power)
}

/// Whether the VM runs, or its power state is unknown.
fn may_run(vm: &ObjectProperties) -> bool {
    match power(vm) {
        Some(PowerState::On) | None => true,
        Some(PowerState::Off | PowerState::Suspended) => false,
    }
}
