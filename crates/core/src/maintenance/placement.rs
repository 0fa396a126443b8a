//! Which hosts can take a powered-off VM, and why the others cannot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use self::matching::{enough, nearest_mismatch};
use super::host::HostState;
use crate::facts::vsphere::{
    AntiAffinityRule, Claim, ClaimedDevice, ClusterRules, DatastoreState, DeviceRequirement, HostReading,
    PciDevice, VgpuProfile,
};
use crate::ids::{ComputeRef, DatastoreRef, HostRef, NetworkRef, VmRef};

pub use self::forecast::PlacementForecast;
pub use self::rejection::{RejectedHost, RejectionReason};
pub use self::static_devices::{DeviceOffer, MAX_STATIC_DEVICES, StaticPlacement};
pub use crate::facts::vsphere::HostSurvey;

mod forecast;
mod matching;
mod rejection;
mod static_devices;
mod vgpu;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRequirements {
    pub vm: VmRef,
    /// The host where it is registered, if any.
    pub from: Option<HostRef>,
    /// Its own host, which is preferred as soon as it takes VMs.
    pub home: Option<HostRef>,
    /// The build of the host where it is registered.
    pub build: Option<u64>,
    /// Only its own host is allowed.
    pub home_only: bool,
    /// Its cluster, which it never leaves.
    pub compute: Option<ComputeRef>,
    /// The datastores of its files. They are not moved, so the host must see them all.
    pub datastores: Arc<BTreeSet<DatastoreRef>>,
    /// The state of its datastores, as far as it is known.
    pub datastore_states: Arc<BTreeMap<DatastoreRef, Arc<DatastoreState>>>,
    /// Its networks, with the names that are known.
    pub networks: Arc<BTreeMap<NetworkRef, Option<Arc<str>>>>,
    pub rules: Arc<ClusterRules>,
    pub devices: DeviceRequirements,
    /// For each SR-IOV network card the address of its physical function; `None` if any will do.
    pub sriov: Vec<Option<String>>,
    /// The profiles of its vGPUs, one for each.
    pub vgpus: Vec<VgpuProfile>,
    /// The memory that it reserves at power-on, where that is known.
    pub memory_mib: Option<u64>,
    /// Its hardware version, where that is known.
    pub hardware_version: Option<Arc<str>>,
    /// The name of the only allowed host, where a request names one.
    pub only: Option<String>,
}

/// The passthrough devices a VM needs, besides vGPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceRequirements {
    /// Its configuration is not readable.
    Unknown,
    /// The model of a device is unknown until its own host has reported its devices.
    Unreported,
    /// One for each device; empty for a VM without passthrough.
    AnyOf(Vec<DeviceRequirement>),
    /// At least one device is bound to an address of its own host, and is not to be changed or of an unknown model.
    Static,
    /// At least one device is of an unsupported kind (DVX).
    Foreign {
        /// The type of its backing in the vSphere API.
        backing: String,
    },
}

impl DeviceRequirements {
    /// What is to be reserved on a host.
    pub fn needs(&self) -> &[DeviceRequirement] {
        match self {
            Self::AnyOf(needs) => needs,
            Self::Unknown | Self::Unreported | Self::Static | Self::Foreign { .. } => &[],
        }
    }
}

/// The facts of a host that placement needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    pub moref: HostRef,
    pub name: String,
    /// Its cluster.
    pub compute: Option<ComputeRef>,
    pub state: HostState,
    /// Its build of ESXi.
    pub build: Option<u64>,
    /// It has left maintenance mode recently.
    pub is_maintained: bool,
    /// The datastores it sees.
    pub datastores: Arc<BTreeSet<DatastoreRef>>,
    /// Its devices with active passthrough; `None` while unknown.
    pub devices: Option<Arc<[PciDevice]>>,
    /// The addresses of its devices with active SR-IOV.
    pub sriov: Arc<BTreeSet<String>>,
    /// The result of a recent survey.
    pub reading: Option<HostSurvey>,
    /// The VMs of other episodes for which it is reserved.
    pub reserved: Vec<ReservedVm>,
}

/// A VM that is, or will be, on a host for which it was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedVm {
    pub vm: VmRef,
    /// The devices it will take, as far as the survey does not show them as claimed.
    pub needs: Vec<DeviceRequirement>,
    /// The profiles of the vGPUs it will take, with the same exception.
    pub vgpus: Vec<VgpuProfile>,
    /// The memory it will reserve, as far as it does not run there yet.
    pub memory_mib: u64,
}

impl ReservedVm {
    /// The reservation of a host that was chosen for `wanted`.
    pub fn of(wanted: &VmRequirements) -> Self {
        Self {
            vm: wanted.vm.clone(),
            needs: wanted.devices.needs().to_vec(),
            vgpus: wanted.vgpus.clone(),
            memory_mib: wanted.memory_mib.unwrap_or_default(),
        }
    }
}

/// The result of placement for a VM that is off, or will be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementOffer {
    /// The host that can take it, reserved for it.
    pub fits: Option<(HostRef, String)>,
    /// The hosts that a survey could show to fit.
    pub survey: Vec<HostRef>,
    /// The other hosts of its cluster, with the reason.
    pub refused: Vec<RejectedHost>,
}

impl PlacementOffer {
    /// Whether no host fits and a host that could fit was not surveyed.
    pub fn has_unread(&self) -> bool {
        let read = self
            .refused
            .iter()
            .filter(|refused| refused.why.may_change())
            .count();
        let is_unreported = |refused: &RejectedHost| refused.why == RejectionReason::DevicesUnreported;
        self.fits.is_none() && (self.survey.len() > read || self.refused.iter().any(is_unreported))
    }
}

/// Searches a host for `wanted` among `hosts`. `kept` is the host already reserved for it, which is preferred while it fits and no
/// other host was updated since, so that the offer is stable; `refused` are hosts where vCenter refused the VM.
pub fn find_host(
    wanted: &VmRequirements,
    hosts: &[HostView],
    kept: Option<&HostRef>,
    refused: &[(HostRef, String)],
) -> PlacementOffer {
    let mut offer = PlacementOffer::default();
    let mut fits: Vec<&HostView> = Vec::new();
    // Hosts of other clusters are not reported: a vCenter may have thousands.
    let is_home = |host: &HostView| wanted.home.as_ref() == Some(&host.moref);
    let eligible = |host: &&HostView| {
        wanted.from.as_ref() != Some(&host.moref)
            && wanted.compute.is_some()
            && host.compute == wanted.compute
            && (is_home(host) || !wanted.home_only)
    };
    let asked_for = |host: &&HostView| wanted.only.as_ref().is_none_or(|only| host.name == *only);
    if let Some(only) = &wanted.only
        && !hosts.iter().filter(eligible).any(|host| asked_for(&host))
    {
        offer.refused.push(RejectedHost {
            host: only.clone(),
            why: RejectionReason::NotThere,
        });
    }
    for host in hosts.iter().filter(eligible).filter(asked_for) {
        match judge(wanted, host, refused) {
            Ok(is_surveyed) => {
                // Also one that fits by the latest survey: a phase that begins later needs its own survey.
                offer.survey.push(host.moref.clone());
                fits.extend(is_surveyed.then_some(host));
            }
            Err(why) => {
                if why.may_change() {
                    offer.survey.push(host.moref.clone());
                }
                offer.refused.push(RejectedHost {
                    host: host.name.clone(),
                    why,
                });
            }
        }
    }
    // In a rolling upgrade, a host that was not updated yet is likely to be the next. So one that was is preferred. Then the host that
    // is reserved already, then the one with the most spare devices, so that other VMs keep their choices. Names break ties, for a stable result.
    let is_newer =
        |host: &HostView| host.build.is_some() && wanted.build.is_some() && host.build > wanted.build;
    offer.fits = fits
        .iter()
        .find(|host| is_home(host))
        .or_else(|| {
            fits.iter().min_by_key(|host| {
                let is_kept = Some(&host.moref) == kept;
                let preferred = (is_newer(host), host.is_maintained, is_kept, spare(host));
                (std::cmp::Reverse(preferred), &host.name)
            })
        })
        .map(|host| (host.moref.clone(), host.name.clone()));
    offer
}

/// Whether the VM fits on the host by a survey; false if only a survey could show that. Otherwise, why it does not fit.
fn judge(
    wanted: &VmRequirements,
    host: &HostView,
    refused: &[(HostRef, String)],
) -> Result<bool, RejectionReason> {
    let needs = needed_devices(wanted, host)?;
    if !host.state.takes_vms() {
        return Err(RejectionReason::State(host.state.words()));
    }
    let why = forbidden(wanted, host)
        .or_else(|| unseen_datastores(wanted, host))
        .or_else(|| unusable_datastore(wanted, &host.moref));
    if let Some(why) = why {
        return Err(why);
    }
    if let Some((_, message)) = refused.iter().find(|(moref, _)| *moref == host.moref) {
        return Err(RejectionReason::RefusedByVcenter(message.clone()));
    }
    let devices = host.devices.as_ref().ok_or(RejectionReason::DevicesUnreported)?;
    if let Some(why) = lacking_function(wanted, host) {
        return Err(why);
    }
    if !enough(
        &devices.iter().collect::<Vec<_>>(),
        &needs.iter().collect::<Vec<_>>(),
    ) {
        return Err(RejectionReason::of_mismatch(nearest_mismatch(devices, needs)));
    }
    let reading = match &host.reading {
        None => return Ok(false),
        Some(HostSurvey::Unreadable(why)) => return Err(RejectionReason::Unreadable(why.clone())),
        Some(HostSurvey::Read(reading)) => reading,
    };
    if let Some(version) = unsupported_hardware(wanted, reading) {
        return Err(RejectionReason::HardwareVersion(version));
    }
    if let Some(network) = lacking_network(wanted, reading) {
        return Err(RejectionReason::Network(network));
    }
    if let Some(rule) = separation(wanted, reading, &host.reserved) {
        return Err(RejectionReason::AntiAffinity(rule));
    }
    if let Some(needed) = lacking_memory(wanted, reading, &host.reserved) {
        return Err(RejectionReason::Memory { mib: needed });
    }
    if !has_free_devices(wanted, needs, devices, reading, &host.reserved) {
        return Err(RejectionReason::DevicesTaken);
    }
    vgpu::lacking(wanted, &host.moref, reading, &host.reserved).map_or(Ok(true), Err)
}

/// The devices that the host must have free, or why it cannot have them.
fn needed_devices<'vm>(
    wanted: &'vm VmRequirements,
    host: &HostView,
) -> Result<&'vm [DeviceRequirement], RejectionReason> {
    match &wanted.devices {
        DeviceRequirements::AnyOf(needs) => Ok(needs),
        // The address is valid on its own host, and a device of another kind ran there.
        DeviceRequirements::Static | DeviceRequirements::Foreign { .. }
            if wanted.home.as_ref() == Some(&host.moref) =>
        {
            Ok(&[])
        }
        DeviceRequirements::Static => Err(RejectionReason::StaticDevice),
        DeviceRequirements::Foreign { backing } => Err(RejectionReason::ForeignDevice(backing.clone())),
        DeviceRequirements::Unreported => Err(RejectionReason::DevicesUnreported),
        DeviceRequirements::Unknown => Err(RejectionReason::UnknownDevice),
    }
}

/// Why the host has no virtual function for an SR-IOV network card of the VM. Functions that other VMs hold are not counted.
fn lacking_function(wanted: &VmRequirements, host: &HostView) -> Option<RejectionReason> {
    let mut cards = wanted.sriov.iter();
    let card = cards.find(|card| match card {
        Some(address) => !host.sriov.contains(address),
        None => host.sriov.is_empty(),
    })?;
    Some(RejectionReason::Sriov(card.clone()))
}

/// The datastores of the VM that the host does not see. While none is known of the VM, no host fits.
fn unseen_datastores(wanted: &VmRequirements, host: &HostView) -> Option<RejectionReason> {
    if wanted.datastores.is_empty() {
        return Some(RejectionReason::UnknownDatastores);
    }
    let name = |datastore: &DatastoreRef| {
        let state = wanted.datastore_states.get(datastore);
        let name = state.and_then(|state| state.name.clone());
        name.unwrap_or_else(|| datastore.shared())
    };
    let unseen: Vec<Arc<str>> = wanted.datastores.difference(&host.datastores).map(name).collect();
    (!unseen.is_empty()).then_some(RejectionReason::Datastores(unseen))
}

/// Why the VM cannot use one of its datastores on the host.
fn unusable_datastore(wanted: &VmRequirements, host: &HostRef) -> Option<RejectionReason> {
    wanted.datastore_states.iter().find_map(|(moref, state)| {
        let name = || state.name.clone().unwrap_or_else(|| moref.shared());
        if state.inaccessible_on.contains(host) {
            Some(RejectionReason::DatastoreInaccessible(name()))
        } else if state.in_maintenance {
            Some(RejectionReason::DatastoreInMaintenance(name()))
        } else {
            None
        }
    })
}

/// Why the configuration of the cluster keeps VMs, or this VM, off the host.
fn forbidden(wanted: &VmRequirements, host: &HostView) -> Option<RejectionReason> {
    if wanted.rules.failover_hosts.contains(&host.moref) {
        return Some(RejectionReason::FailoverHost);
    }
    let mut rules = wanted.rules.vm_host.iter();
    let rule = rules.find(|rule| rule.forbids(&wanted.vm, &host.moref))?;
    Some(RejectionReason::VmHostRule(rule.name.clone()))
}

/// The rule that keeps the VM apart from one that runs on the host, or will.
fn separation(wanted: &VmRequirements, reading: &HostReading, reserved: &[ReservedVm]) -> Option<Arc<str>> {
    let is_broken = |rule: &&AntiAffinityRule| {
        let mut others = reading.running.iter().chain(reserved.iter().map(|it| &it.vm));
        others.any(|other| rule.separates(&wanted.vm, other))
    };
    Some(wanted.rules.anti_affinity.iter().find(is_broken)?.name.clone())
}

/// The first network of the VM that the host does not have. A host whose networks are not reported is not refused for them.
fn lacking_network(wanted: &VmRequirements, reading: &HostReading) -> Option<Arc<str>> {
    let networks = reading.networks.as_ref()?;
    let mut lacking = wanted
        .networks
        .iter()
        .filter(|(moref, _)| !networks.contains(*moref));
    let (moref, name) = lacking.next()?;
    Some(name.clone().unwrap_or_else(|| moref.shared()))
}

/// The hardware version of the VM, if the host is known not to run it.
fn unsupported_hardware(wanted: &VmRequirements, reading: &HostReading) -> Option<Arc<str>> {
    let versions = reading.hardware_versions.as_ref()?;
    let version = wanted.hardware_version.as_ref()?;
    (!versions.contains(version)).then(|| Arc::clone(version))
}

/// The memory that the VM needs, if the host certainly has less.
fn lacking_memory(wanted: &VmRequirements, reading: &HostReading, reserved: &[ReservedVm]) -> Option<u64> {
    let reserved = reserved
        .iter()
        .map(|it| it.memory_mib)
        .fold(0, u64::saturating_add);
    let unreserved = reading.unreserved_mib?.saturating_sub(reserved);
    wanted.memory_mib.filter(|needed| *needed > unreserved)
}

/// Whether the host has a free device for each need of the VM.
fn has_free_devices(
    wanted: &VmRequirements,
    needs: &[DeviceRequirement],
    devices: &[PciDevice],
    reading: &HostReading,
    reserved: &[ReservedVm],
) -> bool {
    let others: Vec<&ClaimedDevice> = reading
        .claims
        .iter()
        .filter(|claim| claim.vm != wanted.vm)
        .map(|claim| &claim.device)
        .collect();
    let free: Vec<&PciDevice> = devices
        .iter()
        .filter(|device| !others.iter().any(|held| holds_address(held, device)))
        .collect();
    // Claims without an address and reservations take one unknown device each, so they count as needs.
    let held_somewhere = others.iter().filter_map(|held| match held {
        ClaimedDevice::Address(_) | ClaimedDevice::Vgpu(_) => None,
        ClaimedDevice::AnyOf(requirement) => Some(requirement),
    });
    let reserved = reserved.iter().flat_map(|it| &it.needs);
    let together: Vec<&DeviceRequirement> = needs.iter().chain(held_somewhere).chain(reserved).collect();
    enough(&free, &together)
}

fn holds_address(held: &ClaimedDevice, device: &PciDevice) -> bool {
    match held {
        ClaimedDevice::Address(address) => address.eq_ignore_ascii_case(&device.address),
        ClaimedDevice::AnyOf(_) | ClaimedDevice::Vgpu(_) => false,
    }
}

/// How many devices nobody holds, and less the more vGPUs are there.
fn spare(host: &HostView) -> (usize, std::cmp::Reverse<usize>) {
    let is_vgpu = |claim: &&Claim| matches!(claim.device, ClaimedDevice::Vgpu(_));
    let claims = host.reading.as_ref().map_or(&[][..], HostSurvey::claims);
    let vgpus = claims.iter().filter(is_vgpu).count();
    let held = claims.len() - vgpus;
    let devices = host.devices.as_ref().map_or(0, |devices| devices.len());
    let reserved: usize = host.reserved.iter().map(|it| it.needs.len()).sum();
    let reserved_vgpus: usize = host.reserved.iter().map(|it| it.vgpus.len()).sum();
    let spare = devices.saturating_sub(held + reserved);
    (spare, std::cmp::Reverse(vgpus + reserved_vgpus))
}

#[cfg(test)]
mod tests;
