//! Which other host can take a powered-off VM, and for each that cannot, why.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::observed::HostState;
use crate::ids::{ComputeRef, DatastoreRef, HostRef, VmRef};

/// What a VM needs of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRequirements {
    /// The VM.
    pub vm: VmRef,
    /// The host it stands on.
    pub from: HostRef,
    /// The host it comes from, which is preferred to all others as soon as it takes VMs.
    pub home: Option<HostRef>,
    /// Only that one will do.
    pub home_only: bool,
    /// The cluster it belongs to; it never leaves it.
    pub compute: Option<ComputeRef>,
    /// Its datastores. It is moved without its files, so the host must see them all.
    pub datastores: Arc<BTreeSet<DatastoreRef>>,
    /// Its passthrough devices.
    pub devices: DeviceRequirements,
    /// The only host that will do, by name, where a person asks for it.
    pub only: Option<String>,
}

/// The passthrough devices a VM needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceRequirements {
    /// Its configuration is not readable.
    Unknown,
    /// One list of acceptable vendor and device ids for each device; none at all for a VM without passthrough.
    AnyOf(Vec<Vec<(u16, u16)>>),
    /// At least one device is bound to an address of its own host, and would have to be re-pointed on another.
    Static,
    /// At least one device is of a kind whose placement is not ours to judge (vGPU, DVX).
    Foreign {
        /// Its backing's name on the wire.
        backing: String,
    },
}

/// A host, as far as placement asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    /// Its moref.
    pub moref: HostRef,
    /// Its name.
    pub name: String,
    /// Its cluster.
    pub compute: Option<ComputeRef>,
    /// Its state.
    pub state: HostState,
    /// The datastores it sees.
    pub datastores: Arc<BTreeSet<DatastoreRef>>,
    /// Its devices that are active for passthrough; `None` while vCenter has not told them.
    pub devices: Option<Vec<HostDevice>>,
    /// What a recent survey found there; `None` without one.
    pub reading: Option<HostSurvey>,
    /// What other episodes have reserved there, one list of acceptable ids for each device.
    pub reserved: Vec<Vec<(u16, u16)>>,
}

/// A passthrough device of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// Its address on that host.
    pub address: String,
    /// Vendor and device id.
    pub ids: (u16, u16),
}

/// What a survey found on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostSurvey {
    /// Who holds its devices.
    Held(Vec<DeviceHold>),
    /// That is not to be known, for this reason. A VM that cannot be read may hold any of them.
    Unreadable(String),
}

impl HostSurvey {
    /// Who is known to hold devices there.
    pub fn holds(&self) -> &[DeviceHold] {
        match self {
            Self::Held(holds) => holds,
            Self::Unreadable(_) => &[],
        }
    }
}

/// A VM's hold on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceHold {
    /// The VM.
    pub vm: VmRef,
    /// What it holds.
    pub device: HeldDevice,
}

/// Which device is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldDevice {
    /// This one.
    Address(String),
    /// One of those with any of these ids.
    AnyOf(Vec<(u16, u16)>),
}

/// What placement has to say about a VM that is off, or will be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementOffer {
    /// The host that can take it, reserved for it.
    pub fits: Option<(HostRef, String)>,
    /// Hosts for which it depends on who holds their devices, which only a survey tells.
    pub survey: Vec<HostRef>,
    /// The other hosts of its cluster, each with the reason why not.
    pub refused: Vec<RejectedHost>,
}

impl PlacementOffer {
    /// Whether a host that might have a place has not been read, where none that has been read fits.
    pub fn has_unread(&self) -> bool {
        let read = self
            .refused
            .iter()
            .filter(|refused| refused.why.may_change())
            .count();
        let is_untold = |refused: &RejectedHost| refused.why == RejectionReason::DevicesUntold;
        self.fits.is_none() && (self.survey.len() > read || self.refused.iter().any(is_untold))
    }
}

/// Why a host will not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedHost {
    /// Its name.
    pub host: String,
    /// Why not.
    pub why: RejectionReason,
}

/// Why a host will not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectionReason {
    /// It does not take VMs: the state, in words.
    State(&'static str),
    /// It does not see all of the VM's datastores.
    Datastore,
    /// vCenter has not reported its devices.
    DevicesUntold,
    /// None of its devices matches the VM's.
    NoMatchingDevice,
    /// Its matching devices are held by other VMs or reserved for other nodes.
    DevicesTaken,
    /// Who holds its devices is not to be known, for this reason.
    Unreadable(String),
    /// A device of the VM is bound to an address of its own host.
    StaticDevice,
    /// The VM's device is of a kind whose placement is not ours to judge.
    ForeignDevice(String),
    /// The VM's configuration is not readable.
    UnknownDevice,
    /// There is no other host of that name in the VM's cluster.
    NotThere,
    /// vCenter refused the VM there a moment ago.
    RefusedByVcenter(String),
}

impl RejectionReason {
    /// Whether the host has been read, and may be another one at the next reading.
    fn may_change(&self) -> bool {
        match self {
            Self::DevicesTaken | Self::Unreadable(_) | Self::RefusedByVcenter(_) => true,
            Self::State(_)
            | Self::Datastore
            | Self::DevicesUntold
            | Self::NoMatchingDevice
            | Self::StaticDevice
            | Self::ForeignDevice(_)
            | Self::UnknownDevice
            | Self::NotThere => false,
        }
    }
}

impl fmt::Display for RejectedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.host, self.why)
    }
}

impl fmt::Display for RejectionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State(state) => write!(f, "is {state}"),
            Self::Datastore => f.write_str("does not see the VM's datastores"),
            Self::DevicesUntold => f.write_str("has not reported its devices"),
            Self::NoMatchingDevice => f.write_str("has no matching passthrough device"),
            Self::DevicesTaken => f.write_str("has no matching device free"),
            Self::Unreadable(why) => write!(f, "cannot be judged: {why}"),
            Self::StaticDevice => f.write_str("would need the VM's fixed device address re-pointed"),
            Self::ForeignDevice(backing) => write!(f, "cannot be judged for a {backing}"),
            Self::UnknownDevice => f.write_str("cannot be judged while the VM's devices are unreadable"),
            Self::NotThere => f.write_str("is no other host of the VM's cluster"),
            Self::RefusedByVcenter(said) => write!(f, "was refused by vCenter: {said}"),
        }
    }
}

/// What one host is to one VM.
enum HostVerdict {
    Fits,
    Survey,
    No(RejectionReason),
}

/// Looks for a host for `wanted` among `hosts`. `kept` is the host already reserved for it, which is preferred as long
/// as it fits, so that an offer does not jump about; `refused` are hosts that vCenter refused it a moment ago.
pub fn look(
    wanted: &VmRequirements,
    hosts: &[HostView],
    kept: Option<&HostRef>,
    refused: &[(HostRef, String)],
) -> PlacementOffer {
    let mut offer = PlacementOffer::default();
    let mut fits: Vec<&HostView> = Vec::new();
    // Hosts of other clusters are not worth a word each: a vCenter may have thousands.
    let is_home = |host: &HostView| wanted.home.as_ref() == Some(&host.moref);
    let eligible = |host: &&HostView| {
        host.moref != wanted.from
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
            HostVerdict::Fits => {
                // It fits by the latest reading; a wait that begins later wants one of its own.
                offer.survey.push(host.moref.clone());
                fits.push(host);
            }
            HostVerdict::Survey => offer.survey.push(host.moref.clone()),
            HostVerdict::No(why) => {
                // What other VMs hold, and what vCenter refuses, may be otherwise at the next reading.
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
    // The host with the most devices to spare after this VM: it keeps the others' choices open. Names break ties, so
    // that the same facts give the same answer.
    offer.fits = fits
        .iter()
        .find(|host| is_home(host))
        .or_else(|| fits.iter().find(|host| Some(&host.moref) == kept))
        .or_else(|| {
            fits.iter()
                .min_by_key(|host| (std::cmp::Reverse(spare(host)), &host.name))
        })
        .map(|host| (host.moref.clone(), host.name.clone()));
    offer
}

fn judge(wanted: &VmRequirements, host: &HostView, refused: &[(HostRef, String)]) -> HostVerdict {
    let needs: &[Vec<(u16, u16)>] = match &wanted.devices {
        DeviceRequirements::AnyOf(needs) => needs,
        // The address is the one on its own host.
        DeviceRequirements::Static if wanted.home.as_ref() == Some(&host.moref) => &[],
        DeviceRequirements::Static => return HostVerdict::No(RejectionReason::StaticDevice),
        DeviceRequirements::Foreign { backing } => {
            return HostVerdict::No(RejectionReason::ForeignDevice(backing.clone()));
        }
        DeviceRequirements::Unknown => return HostVerdict::No(RejectionReason::UnknownDevice),
    };
    if !host.state.takes_vms() {
        return HostVerdict::No(RejectionReason::State(host.state.words()));
    }
    if wanted.datastores.is_empty() || !wanted.datastores.is_subset(&host.datastores) {
        return HostVerdict::No(RejectionReason::Datastore);
    }
    if let Some((_, said)) = refused.iter().find(|(moref, _)| *moref == host.moref) {
        return HostVerdict::No(RejectionReason::RefusedByVcenter(said.clone()));
    }
    let Some(devices) = &host.devices else {
        return HostVerdict::No(RejectionReason::DevicesUntold);
    };
    let all: Vec<&HostDevice> = devices.iter().collect();
    if !enough(&all, needs) {
        return HostVerdict::No(RejectionReason::NoMatchingDevice);
    }
    let held = match &host.reading {
        None => return HostVerdict::Survey,
        Some(HostSurvey::Unreadable(why)) => {
            return HostVerdict::No(RejectionReason::Unreadable(why.clone()));
        }
        Some(HostSurvey::Held(held)) => held,
    };
    let others: Vec<&HeldDevice> = held
        .iter()
        .filter(|hold| hold.vm != wanted.vm)
        .map(|hold| &hold.device)
        .collect();
    let free: Vec<&HostDevice> = all
        .into_iter()
        .filter(|device| !others.iter().any(|held| holds_address(held, device)))
        .collect();
    // Holds without an address and reservations each take one device, nobody knows which: they are needs as well.
    let mut together: Vec<Vec<(u16, u16)>> = needs.to_vec();
    together.extend(others.iter().filter_map(|held| match held {
        HeldDevice::Address(_) => None,
        HeldDevice::AnyOf(ids) => Some(ids.clone()),
    }));
    together.extend(host.reserved.iter().cloned());
    if enough(&free, &together) {
        HostVerdict::Fits
    } else {
        HostVerdict::No(RejectionReason::DevicesTaken)
    }
}

fn holds_address(held: &HeldDevice, device: &HostDevice) -> bool {
    match held {
        HeldDevice::Address(address) => address.eq_ignore_ascii_case(&device.address),
        HeldDevice::AnyOf(_) => false,
    }
}

fn spare(host: &HostView) -> usize {
    let held = host.reading.as_ref().map_or(0, |reading| reading.holds().len());
    let devices = host.devices.as_ref().map_or(0, Vec::len);
    devices.saturating_sub(held + host.reserved.len())
}

/// Whether each need can have a device of its own: a matching in the bipartite graph of needs and devices, found by
/// augmenting paths, because the first device that fits one need may be the only one that fits another.
fn enough(devices: &[&HostDevice], needs: &[Vec<(u16, u16)>]) -> bool {
    let mut taken_by: Vec<Option<usize>> = vec![None; devices.len()];
    (0..needs.len()).all(|need| {
        let mut tried = vec![false; devices.len()];
        assign(need, devices, needs, &mut taken_by, &mut tried)
    })
}

/// Gives `need` a device, moving an earlier need to another device where that frees one. The recursion is as deep as
/// the host has devices, which is a handful.
fn assign(
    need: usize,
    devices: &[&HostDevice],
    needs: &[Vec<(u16, u16)>],
    taken_by: &mut [Option<usize>],
    tried: &mut [bool],
) -> bool {
    for (index, device) in devices.iter().enumerate() {
        let fits = needs.get(need).is_some_and(|ids| ids.contains(&device.ids));
        let Some(seen) = tried.get_mut(index) else {
            continue;
        };
        if !fits || *seen {
            continue;
        }
        *seen = true;
        let holder = taken_by.get(index).copied().flatten();
        if holder.is_none_or(|holder| assign(holder, devices, needs, taken_by, tried)) {
            if let Some(slot) = taken_by.get_mut(index) {
                *slot = Some(need);
            }
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests;
