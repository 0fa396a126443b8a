//! Whether a host has the vGPUs that a VM needs.

use super::{RejectionReason, ReservedVm, VmRequirements};
use crate::facts::vsphere::{HostReading, VgpuProfile};
use crate::ids::HostRef;

/// Why the VM cannot have its vGPUs on `host`, as far as that is known. The profiles of a VM's own host are not compared: its vGPUs
/// ran there, and a host may report its profiles only some time after its start.
pub(super) fn lacking(
    wanted: &VmRequirements,
    host: &HostRef,
    reading: &HostReading,
    reserved: &[ReservedVm],
) -> Option<RejectionReason> {
    let first = wanted.vgpus.first()?;
    let is_home = wanted.home.as_ref() == Some(host);
    let Some(vgpus) = &reading.vgpus else {
        let why = "its vGPU profiles cannot be read".to_owned();
        return (!is_home).then_some(RejectionReason::Unreadable(why));
    };
    let held = || {
        let others = reading.claimed_vgpus().filter(|(vm, _)| **vm != wanted.vm);
        others.map(|(_, profile)| profile)
    };
    let is_offered = |profile: &&VgpuProfile| vgpus.profiles.contains(*profile);
    if let Some(lacking) = wanted.vgpus.iter().find(|profile| !is_offered(profile))
        && !is_home
    {
        // Where a VM has one, the host offers it, or did while it was free.
        let is_held = held().any(|profile| profile == lacking);
        return Some(if is_held {
            RejectionReason::VgpuTaken(lacking.clone())
        } else {
            RejectionReason::NoVgpuProfile(lacking.clone())
        });
    }
    let reserved: Vec<&VgpuProfile> = reserved.iter().flat_map(|it| &it.vgpus).collect();
    let has_room = vgpus.may_have_room(&wanted.vgpus, held().chain(reserved.iter().copied()));
    // Without sizes, the profile does not tell how many VMs can have it, so one VM at a time gets one there.
    let has_room = has_room.unwrap_or(reserved.is_empty());
    (!has_room).then(|| RejectionReason::VgpuTaken(first.clone()))
}
