use super::*;
use crate::facts::vsphere::{
    Claim, ClaimedDevice, DeviceChange, Host, HostReading, PowerState, VsphereUpdate,
};
use crate::fixtures::{A40, host, host_ref, pci, vm_facts, vm_ref};
use crate::inventory::Fact;
use crate::inventory::tests::{
    awaiting, inventory_with, seen_of, snapshot_of, surveyed, switched_off, vsphere, with_episode,
};
use crate::maintenance::episode::HostIdentity;
use crate::maintenance::placement::HostSurvey;

const HERE: &str = "0000:01:00.0";
const OTHER: &str = "0000:02:00.0";

/// Node 1 waits for a host, and its VM has a device at `HERE` whose device id is not readable. Host 1 is in maintenance.
fn repointing(facts: impl IntoIterator<Item = Fact>) -> Inventory {
    let fixed = Passthrough::Static {
        address: HERE.to_owned(),
        vendor: A40.0,
        device: None,
    };
    let vm = Vm {
        power: Some(PowerState::Off),
        passthrough: Some(vec![fixed]),
        ..vm_facts(1)
    };
    let given = switched_off(1)
        .into_iter()
        .chain([vsphere(VsphereUpdate::Vm(vm))]);
    let mut inventory = inventory_with([]);
    inventory.settings.static_devices = StaticDevices::Repoint;
    for fact in given.chain(facts) {
        inventory.apply(fact);
    }
    inventory
}

fn host_with(n: usize, addresses: &[&str]) -> Fact {
    let devices = addresses.iter().map(|address| pci(address, A40));
    vsphere(VsphereUpdate::Host(
        Host {
            passthrough: Some(devices.collect()),
            ..host(n)
        }
        .into(),
    ))
}

fn unreported(n: usize) -> Fact {
    vsphere(VsphereUpdate::Host(
        Host {
            passthrough: None,
            ..host(n)
        }
        .into(),
    ))
}

fn empty() -> HostSurvey {
    HostSurvey::Read(HostReading::default())
}

fn fits(inventory: &mut Inventory) -> Option<HostRef> {
    snapshot_of(inventory, 1)
        .observed
        .offer
        .fits
        .map(|(host, _)| host)
}

fn why_not(inventory: &mut Inventory) -> Vec<RejectionReason> {
    let refused = snapshot_of(inventory, 1).observed.offer.refused;
    refused.into_iter().map(|refused| refused.why).collect()
}

#[test]
fn device_without_a_readable_id_is_known_by_the_own_host_of_the_vm() {
    let mut inventory = repointing([host_with(3, &[OTHER]), awaiting(1)]);
    inventory.apply(surveyed(3, empty()));
    assert_eq!(fits(&mut inventory), Some(host_ref(3)));
    // A host with another model only.
    let mut inventory = repointing([
        vsphere(VsphereUpdate::Host(
            Host {
                passthrough: Some([pci(HERE, (0x8086, 0x56c0))].into()),
                ..host(3)
            }
            .into(),
        )),
        awaiting(1),
    ]);
    inventory.apply(surveyed(3, empty()));
    assert_eq!(why_not(&mut inventory), [RejectionReason::NoMatchingDevice]);
}

#[test]
fn no_host_is_ruled_out_before_the_devices_of_the_own_host_are_reported() {
    let mut inventory = repointing([host_with(3, &[OTHER]), unreported(1), awaiting(1)]);
    assert_eq!(why_not(&mut inventory), [RejectionReason::DevicesUnreported]);
    assert!(snapshot_of(&mut inventory, 1).observed.offer.has_unread());
}

#[test]
fn device_that_is_on_no_host_cannot_be_replaced() {
    let mut inventory = repointing([host_with(3, &[OTHER]), host_with(1, &[OTHER]), awaiting(1)]);
    assert_eq!(why_not(&mut inventory), [RejectionReason::StaticDevice]);
    inventory.settings.static_devices = StaticDevices::Wait;
    inventory.apply(host_with(1, &[HERE]));
    assert_eq!(why_not(&mut inventory), [RejectionReason::StaticDevice]);
}

/// Node 1 is about to be powered on on host 1, its own, after it was elsewhere with its former device at `former`.
fn powering_on(former: &str) -> Fact {
    seen_of(with_episode(1, Phase::PoweringOn { by_drs: false }, |episode| {
        episode.host.moref = Some(host_ref(1));
        episode.home_devices = vec![StaticDevice {
            address: former.to_owned(),
            vendor: A40.0,
            device: A40.1,
        }];
    }))
}

fn offer(inventory: &mut Inventory) -> Option<DeviceOffer> {
    let placement = snapshot_of(inventory, 1).observed.static_devices;
    placement.map(|placement| placement.offer)
}

fn change(to: &str) -> Option<DeviceOffer> {
    let change = DeviceChange {
        from: HERE.to_owned(),
        to: to.to_owned(),
    };
    Some(DeviceOffer::Devices(vec![change]))
}

#[test]
fn vm_is_offered_its_former_device_at_home_unless_another_vm_has_it() {
    let mut inventory = repointing([host_with(1, &[HERE, OTHER]), powering_on(OTHER)]);
    assert_eq!(offer(&mut inventory), Some(DeviceOffer::Unsurveyed));
    inventory.apply(surveyed(1, empty()));
    assert_eq!(offer(&mut inventory), change(OTHER));
    let taken = HostReading {
        claims: vec![Claim {
            vm: vm_ref(2),
            device: ClaimedDevice::Address(OTHER.to_owned()),
        }],
        ..HostReading::default()
    };
    inventory.apply(surveyed(1, HostSurvey::Read(taken)));
    assert_eq!(offer(&mut inventory), change(HERE));
    inventory.apply(unreported(1));
    assert_eq!(offer(&mut inventory), Some(DeviceOffer::Unreported));
}

#[test]
fn devices_are_offered_only_before_a_power_on_and_where_they_may_be_changed() {
    let mut inventory = repointing([host_with(1, &[HERE]), awaiting(1)]);
    assert_eq!(offer(&mut inventory), None);
    inventory.apply(powering_on(HERE));
    assert_eq!(offer(&mut inventory), Some(DeviceOffer::Unsurveyed));
}

/// As [`powering_on`], before any device was changed.
fn powering_on_unchanged(home: usize, moved_to: Option<usize>) -> Fact {
    let host = |n: usize| HostIdentity {
        moref: Some(host_ref(n)),
        name: format!("esx-{n}").into(),
    };
    seen_of(with_episode(1, Phase::PoweringOn { by_drs: false }, |episode| {
        episode.host = host(home);
        episode.moved_to = moved_to.map(host);
    }))
}

#[test]
fn devices_that_an_episode_began_to_change_are_offered_also_after_repoint_is_switched_off() {
    let offered = |record: Fact| {
        let hosts = [host_with(1, &[HERE, OTHER]), host_with(2, &[HERE])];
        let mut inventory = repointing(hosts.into_iter().chain([record]));
        inventory.settings.static_devices = StaticDevices::Wait;
        inventory.apply(surveyed(1, empty()));
        offer(&mut inventory)
    };
    assert_eq!(offered(powering_on(OTHER)), change(OTHER));
    // The VM is on host 1.
    assert_eq!(offered(powering_on_unchanged(2, Some(1))), change(HERE));
    assert_eq!(offered(powering_on_unchanged(1, None)), None);
    let somebody_else = Some(DeviceOffer::Rejected(RejectionReason::StaticDevice));
    assert_eq!(offered(powering_on_unchanged(2, None)), somebody_else);
}
