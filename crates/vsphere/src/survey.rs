//! The survey: who holds which passthrough device on a host, read at one moment, ours or not.

use std::collections::{BTreeMap, BTreeSet};

use super::client::{Error, Vcenter};
use super::decode::{self, DecodedDevice};
use super::moref::Moref;
use super::property::{ObjectProperties, PropertySpec, TraversalStep, Value};
use super::text;
use super::update::{
    Claim, ClaimedDevice, Claims, NotSurveyed, Passthrough, PowerState, Surveyed, UnreadableVm,
};
use haulout_core::ids::{HostRef, VmRef};

const DEVICES: &str = "config.hardware.device";
const BINDING: &str = "config.assignableHardwareBinding";

impl Vcenter {
    /// Reads who holds the passthrough devices of `hosts` (`RetrievePropertiesEx` over `HostSystem.vm`).
    ///
    /// A VM that is off holds its devices as well, the one that is chosen at power-on among them: it will want it back,
    /// and a node that waits for this host must find it free. Templates never run and hold nothing. A VM that cannot be read is
    /// named, unless its host tells what it was given.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn survey(&self, hosts: &[HostRef]) -> Result<Surveyed, Error> {
        if hosts.is_empty() {
            return Ok(Surveyed::default());
        }
        let mut spec = PropertySpec::default().read("HostSystem", &["vm", BINDING]).read(
            "VirtualMachine",
            &[
                "name",
                DEVICES,
                "config.template",
                "runtime.host",
                "runtime.powerState",
            ],
        );
        for host in hosts.iter().collect::<BTreeSet<_>>() {
            spec = spec.of(
                &host.into(),
                vec![TraversalStep::new("HostSystem", "vm", Vec::new())],
            );
        }
        let objects = self.retrieve(spec).await?;
        Ok(survey(hosts, &objects))
    }
}

/// What the objects that were read say about each of `hosts`.
///
/// The devices of a VM that cannot be read are taken from `config.assignableHardwareBinding` of its host, where that is told
/// (`proto-notes/relocate.md`): a VM that it names by addresses holds exactly these. One that it does not name holds nothing, unless the
/// VM is known not to run: what is bound is what runs. A host that tells no binding may have none, or be too old for it, so there
/// the VM stays unreadable.
pub(crate) fn survey(hosts: &[HostRef], objects: &[ObjectProperties]) -> Surveyed {
    let mut vms = BTreeMap::new();
    let mut registered: BTreeMap<HostRef, BTreeSet<VmRef>> = BTreeMap::new();
    for object in objects {
        if let Some(vm) = object.moref.vm() {
            // During a relocate the host's list and the VM's own word differ: it counts on both.
            if let Some(host) = object.moref("runtime.host").and_then(Moref::host) {
                registered.entry(host).or_default().insert(vm.clone());
            }
            vms.insert(vm, object);
        }
    }
    let mut surveyed = Surveyed::default();
    for host in hosts.iter().collect::<BTreeSet<_>>() {
        let (listed, object) = match listed(host, objects) {
            Ok(found) => found,
            Err(why) => {
                let host = host.clone();
                surveyed.not_surveyed.push(NotSurveyed { host, why });
                continue;
            }
        };
        let mut here = registered.remove(host).unwrap_or_default();
        here.extend(listed);
        surveyed.claims.push(of_host(host, object, &here, &vms));
    }
    surveyed
}

fn of_host(
    host: &HostRef,
    object: &ObjectProperties,
    here: &BTreeSet<VmRef>,
    vms: &BTreeMap<VmRef, &ObjectProperties>,
) -> Claims {
    let bindings = object.get(BINDING).and_then(Value::bindings);
    let mut claims = Claims {
        host: host.clone(),
        held: Vec::new(),
        unreadable: Vec::new(),
    };
    for vm in here {
        let claim = |device| Claim {
            vm: vm.clone(),
            device,
        };
        let why = match devices(vms.get(vm).copied()) {
            Ok(devices) => {
                claims.held.extend(devices.into_iter().map(claim));
                continue;
            }
            Err(why) => why,
        };
        let runs = vms.get(vm).is_none_or(|vm| may_run(vm));
        match bindings.map(|all| all.get(vm)) {
            Some(Some(Some(addresses))) => {
                let addresses = addresses.iter().cloned().map(ClaimedDevice::Address);
                claims.held.extend(addresses.map(claim));
            }
            Some(None) if runs => {}
            Some(None | Some(None)) | None => {
                let name = vms.get(vm).and_then(|vm| vm.text("name"));
                claims.unreadable.push(UnreadableVm {
                    vm: vm.clone(),
                    name: name.map(text::inventory_name),
                    why,
                });
            }
        }
    }
    claims
}

/// The VMs that a host lists, with the host; or why they are not known.
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
    // An unset list is an empty one: what may not be read is told as missing.
    let listed = object.morefs("vm").iter().filter_map(Moref::vm);
    Ok((listed.collect(), object))
}

/// What a VM holds; or why that is not known.
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
        Passthrough::Dynamic { allowed } => Some(match &device.assigned {
            Some(address) => ClaimedDevice::Address(address.clone()),
            None => ClaimedDevice::AnyOf(allowed.clone()),
        }),
        Passthrough::Other { .. } => None,
    }
}

/// Whether the VM runs, or may do so: its power state may be as unreadable as its devices.
fn may_run(vm: &ObjectProperties) -> bool {
    match vm.text("runtime.powerState").and_then(decode::power) {
        Some(PowerState::On) | None => true,
        Some(PowerState::Off | PowerState::Suspended) => false,
    }
}
