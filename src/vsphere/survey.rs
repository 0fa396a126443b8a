//! The survey: who holds which passthrough device on a host, read whole at one moment, ours or not.

use std::collections::{BTreeMap, BTreeSet};

use super::client::{Error, Vcenter};
use super::decode::{self, Device};
use super::property::{Object, Spec, Step};
use super::soap::Moref;
use super::update::{Claim, ClaimedDevice, Claims, Passthrough};
use crate::ids::{HostRef, VmRef};

impl Vcenter {
    /// Reads who holds the passthrough devices of `hosts` (`RetrievePropertiesEx` over `HostSystem.vm`).
    ///
    /// A VM that is off holds its devices as well, the one that is chosen at power-on among them: it will want it back,
    /// and a node that waits for this host must find it free. Templates never run and hold nothing. A host that cannot be read whole, because it or one of its VMs is denied or vanished
    /// meanwhile, is left out: no claims is a statement, not a default.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn survey(&self, hosts: &[HostRef]) -> Result<Vec<Claims>, Error> {
        if hosts.is_empty() {
            return Ok(Vec::new());
        }
        let mut spec = Spec::default().read("HostSystem", &["vm"]).read(
            "VirtualMachine",
            &["config.hardware.device", "config.template", "runtime.host"],
        );
        for host in hosts.iter().collect::<BTreeSet<_>>() {
            spec = spec.of(&host.into(), vec![Step::new("HostSystem", "vm", Vec::new())]);
        }
        let objects = self.retrieve(spec).await?;
        Ok(claims(hosts, &objects))
    }
}

/// What the objects that were read say about each of `hosts`; one that was not read whole is left out.
pub fn claims(hosts: &[HostRef], objects: &[Object]) -> Vec<Claims> {
    let mut vms = BTreeMap::new();
    let mut registered: BTreeMap<HostRef, BTreeSet<VmRef>> = BTreeMap::new();
    for object in objects {
        if let Some(vm) = object.moref.vm() {
            let holds = VmHolds::read(object);
            // During a relocate the host's list and the VM's own word differ: it counts on both.
            if let Some(host) = holds.as_ref().and_then(|holds| holds.host.clone()) {
                registered.entry(host).or_default().insert(vm.clone());
            }
            vms.insert(vm, holds);
        }
    }
    let mut all = Vec::new();
    for host in hosts.iter().collect::<BTreeSet<_>>() {
        let Some(listed) = listed(host, objects) else {
            tracing::debug!(%host, "the VMs of the host cannot be read; it is left out of the survey");
            continue;
        };
        let mut here = registered.remove(host).unwrap_or_default();
        here.extend(listed);
        let held = here.iter().map(|vm| vms.get(vm)?.as_ref()?.claims(vm));
        match held.collect::<Option<Vec<_>>>() {
            Some(held) => all.push(Claims {
                host: host.clone(),
                held: held.into_iter().flatten().collect(),
            }),
            None => tracing::debug!(%host, "a VM of the host cannot be read; it is left out of the survey"),
        }
    }
    all
}

fn listed(host: &HostRef, objects: &[Object]) -> Option<Vec<VmRef>> {
    let object = objects.iter().find(|object| object.moref == Moref::from(host))?;
    if object.denied("vm").is_some() || !object.properties().any(|(path, _)| path == "vm") {
        return None;
    }
    Some(
        decode::morefs(object.get("vm"))
            .iter()
            .filter_map(Moref::vm)
            .collect(),
    )
}

/// What matters of a VM for the survey.
struct VmHolds {
    host: Option<HostRef>,
    is_template: bool,
    devices: Vec<Device>,
}

impl VmHolds {
    fn read(object: &Object) -> Option<Self> {
        let host = object.get("runtime.host").and_then(Moref::read);
        Some(Self {
            host: host.and_then(|host| host.host()),
            is_template: object
                .get("config.template")
                .is_some_and(|flag| flag.text() == "true"),
            devices: decode::passthrough(object.get("config.hardware.device")?),
        })
    }

    fn claims(&self, vm: &VmRef) -> Option<Vec<Claim>> {
        if self.is_template {
            return Some(Vec::new());
        }
        let held = self.devices.iter().filter_map(|device| match &device.what {
            Passthrough::Static { address, .. } => Some(ClaimedDevice::Address(address.clone())),
            Passthrough::Dynamic { allowed } => Some(match &device.assigned {
                Some(address) => ClaimedDevice::Address(address.clone()),
                None => ClaimedDevice::AnyOf(allowed.clone()),
            }),
            Passthrough::Other { .. } => None,
        });
        let claim = |device| Claim {
            vm: vm.clone(),
            device,
        };
        Some(held.map(claim).collect())
    }
}
