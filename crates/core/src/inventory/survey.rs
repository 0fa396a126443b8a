//! A survey of hosts, as placement asks for it.

use crate::facts::vsphere::{Claim, ClaimedDevice, Surveyed, UnreadableVm};
use crate::ids::HostRef;
use crate::maintenance::placement::{DeviceHold, HeldDevice, HostSurvey};

/// The reading of each surveyed host.
pub fn readings(surveyed: Surveyed) -> impl Iterator<Item = (HostRef, HostSurvey)> {
    let read = surveyed.claims.into_iter().map(|claims| {
        let reading = match claims.unreadable.split_first() {
            None => HostSurvey::Held(claims.held.into_iter().map(hold).collect()),
            Some((first, rest)) => HostSurvey::Unreadable(unreadable(first, rest.len())),
        };
        (claims.host, reading)
    });
    let not_read = surveyed.not_surveyed.into_iter();
    read.chain(not_read.map(|host| (host.host, HostSurvey::Unreadable(host.why))))
}

/// Which VM may hold any device of its host, as people read it.
fn unreadable(vm: &UnreadableVm, others: usize) -> String {
    let name = vm.name.as_deref().unwrap_or_else(|| vm.vm.as_str());
    let others = match others {
        0 => String::new(),
        1 => " (and of another VM)".to_owned(),
        _ => format!(" (and of {others} other VMs)"),
    };
    format!("the devices of VM {name}{others} cannot be read: {}", vm.why)
}

fn hold(claim: Claim) -> DeviceHold {
    let device = match claim.device {
        ClaimedDevice::Address(address) => HeldDevice::Address(address),
        ClaimedDevice::AnyOf(ids) => HeldDevice::AnyOf(ids),
    };
    DeviceHold { vm: claim.vm, device }
}
