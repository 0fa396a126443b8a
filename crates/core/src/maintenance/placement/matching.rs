//! Matches needs with devices.

use crate::facts::vsphere::{DeviceMismatch, DeviceRequirement, PciDevice};

/// The first need that none of the devices satisfies, with what the nearest of them differs in.
pub(super) fn nearest_mismatch<'a>(
    devices: &[PciDevice],
    needs: &'a [DeviceRequirement],
) -> Option<(DeviceMismatch, &'a DeviceRequirement)> {
    let lacking = needs
        .iter()
        .find(|need| !devices.iter().any(|device| need.accepts(device)))?;
    let mismatches = devices.iter().filter_map(|device| lacking.mismatch(device));
    Some((mismatches.max()?, lacking))
}

/// Whether each need can get its own device: a bipartite matching by augmenting paths, because the first device that fits one need
/// may be the only one that fits another.
pub(super) fn enough(devices: &[&PciDevice], needs: &[&DeviceRequirement]) -> bool {
    let mut taken_by: Vec<Option<usize>> = vec![None; devices.len()];
    (0..needs.len()).all(|need| {
        let mut tried = vec![false; devices.len()];
        assign(need, devices, needs, &mut taken_by, &mut tried)
    })
}

/// Assigns a device to `need`, and moves earlier needs if necessary. The recursion is at most as deep as the number of devices.
fn assign(
    need: usize,
    devices: &[&PciDevice],
    needs: &[&DeviceRequirement],
    taken_by: &mut [Option<usize>],
    tried: &mut [bool],
) -> bool {
    for (index, device) in devices.iter().enumerate() {
        let fits = needs.get(need).is_some_and(|need| need.accepts(device));
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
