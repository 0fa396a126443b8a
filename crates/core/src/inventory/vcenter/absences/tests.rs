use std::time::Duration;

use super::*;
use crate::facts::vsphere::VsphereUpdate;
use crate::inventory::tests::{
    awaiting, host, inventory_settings, inventory_under, moment, snapshot_of, trio, vsphere,
};
use crate::inventory::{Fact, Inventory, InventorySettings};
use crate::maintenance::host::HostState;

use HostConnection::{Connected, NotResponding};

fn host_is(connection: HostConnection, in_maintenance: bool, exit: Option<&str>) -> Fact {
    let host = Host {
        connection: Some(connection),
        in_maintenance: Some(in_maintenance),
        last_exit: exit.map(TaskRef::new),
        ..host(1)
    };
    vsphere(VsphereUpdate::Host(host.into()))
}

/// Node 1 waits for its host, which is in maintenance. A user has taken it out of an earlier one.
fn waiting() -> Inventory {
    waiting_under(inventory_settings())
}

fn waiting_under(settings: InventorySettings) -> Inventory {
    let facts = [awaiting(1), host_is(Connected, true, Some("exit-1"))];
    inventory_under(settings, trio(1).into_iter().chain(facts))
}

fn at(inventory: &mut Inventory, second: i64, fact: Option<Fact>) -> HostState {
    let settled = fact.is_some().then(|| vsphere(VsphereUpdate::Settled));
    drop(inventory.advance(fact.into_iter().chain(settled), moment(second)));
    let seen = snapshot_of(inventory, 1).observed;
    let vm = seen.vm.found().unwrap();
    vm.host.clone()
}

fn settling(second: i64) -> HostState {
    let until = Deadline {
        at: moment(second).monotonic,
        shown: crate::fixtures::at(second),
    };
    HostState::Settling { until }
}

#[test]
fn host_that_came_back_by_itself_is_used_after_it_has_stayed() {
    let mut inventory = waiting();
    let lost = || Some(host_is(NotResponding, true, Some("exit-1")));
    let back = || Some(host_is(Connected, false, Some("exit-1")));
    assert_eq!(at(&mut inventory, 100, lost()), HostState::Unreachable);
    assert_eq!(at(&mut inventory, 110, back()), settling(170));
    assert_eq!(inventory.vcenter.next_settled(), Some(moment(170).monotonic));
    // It is lost again: the time begins anew.
    assert_eq!(at(&mut inventory, 120, lost()), HostState::Unreachable);
    assert_eq!(inventory.vcenter.next_settled(), None);
    assert_eq!(at(&mut inventory, 130, back()), settling(190));
    assert_eq!(at(&mut inventory, 140, back()), settling(190));
    assert_eq!(at(&mut inventory, 189, None), settling(190));
    assert!(inventory.next_at().is_some_and(|at| at <= moment(190).monotonic));
    let built = inventory.advance(None, moment(190)).built.unwrap();
    assert!(built.snapshots.contains_key(&crate::fixtures::name(1)));
    assert_eq!(at(&mut inventory, 191, None), HostState::InService);
    assert!(inventory.vcenter.absences.hosts.is_empty());
}

/// vCenter takes a host that is back out of maintenance by itself, without a user.
#[test]
fn exit_without_a_user_soon_after_the_return_is_waited_for() {
    let mut inventory = waiting();
    at(
        &mut inventory,
        100,
        Some(host_is(NotResponding, true, Some("exit-1"))),
    );
    let in_maintenance = at(
        &mut inventory,
        110,
        Some(host_is(Connected, true, Some("exit-1"))),
    );
    assert_eq!(in_maintenance, HostState::InMaintenance);
    let out = Some(host_is(Connected, false, Some("exit-1")));
    assert_eq!(at(&mut inventory, 115, out), settling(170));
}

#[test]
fn host_that_a_user_takes_out_of_maintenance_is_used_at_once() {
    let mut inventory = waiting();
    at(
        &mut inventory,
        100,
        Some(host_is(NotResponding, true, Some("exit-1"))),
    );
    at(
        &mut inventory,
        110,
        Some(host_is(Connected, true, Some("exit-1"))),
    );
    let exits = Some(host_is(Connected, false, Some("exit-2")));
    assert_eq!(at(&mut inventory, 115, exits), HostState::InService);
    // The task may be seen after its effect.
    at(
        &mut inventory,
        200,
        Some(host_is(NotResponding, false, Some("exit-2"))),
    );
    let back = Some(host_is(Connected, false, Some("exit-2")));
    assert_eq!(at(&mut inventory, 210, back), settling(270));
    let exits = Some(host_is(Connected, false, Some("exit-3")));
    assert_eq!(at(&mut inventory, 215, exits), HostState::InService);
}

#[test]
fn host_that_was_never_lost_is_used_at_once() {
    let mut inventory = waiting();
    let out = Some(host_is(Connected, false, None));
    assert_eq!(at(&mut inventory, 100, out), HostState::InService);
}

#[test]
fn setting_of_zero_uses_every_host_at_once() {
    assert!(!inventory_settings().host_settle.is_zero());
    let mut inventory = waiting_under(InventorySettings {
        host_settle: Duration::ZERO,
        ..inventory_settings()
    });
    at(&mut inventory, 100, Some(host_is(NotResponding, true, None)));
    let back = Some(host_is(Connected, false, None));
    assert_eq!(at(&mut inventory, 110, back), HostState::InService);
}
