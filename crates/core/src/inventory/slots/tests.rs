use std::time::Duration;

use super::*;
use crate::facts::kubernetes::{KubernetesUpdate, NodeMaintenanceRole, RequestedAction};
use crate::facts::vsphere;
use crate::inventory::tests::{
    apply_all, asked, at, copied, entering, in_episode, in_phase, inventory_with, maintenance, moment, name,
    node, rules, seen_of, snapshot_of, trio, vsphere,
};
use crate::inventory::{Fact, Rules};
use crate::maintenance::episode::Phase;
use crate::maintenance::observed::{Admission, SlotLimit};
use crate::maintenance::record::{EndedEpisode, LastEpisode, write_last};

/// The hosts of nodes 1 and 2 enter maintenance, that of node 1 first.
fn both_leave() -> impl Iterator<Item = Fact> {
    let leaves = |n, clicked| vsphere(vsphere::VsphereUpdate::Host(entering(n, clicked).into()));
    let nodes = trio(1).into_iter().chain(trio(2));
    nodes.chain([leaves(1, 10), leaves(2, 20)])
}

fn inventory_of(rules: Rules, facts: impl IntoIterator<Item = Fact>) -> Inventory {
    let mut inventory = Inventory::new(rules, at(0));
    inventory.set_time(moment(0));
    apply_all(&mut inventory, facts);
    inventory
}

fn granted(inventory: &mut Inventory) -> [bool; 2] {
    [1, 2].map(|n| granted_to(inventory, n))
}

fn changed(n: usize, change: impl FnOnce(&mut NodeFacts)) -> Fact {
    let mut node = node(n);
    node.resource_version = 11;
    change(&mut node);
    seen_of(node)
}

#[test]
fn node_with_skip_does_not_block_the_queue() {
    assert_eq!(granted(&mut inventory_with(both_leave())), [true, false]);
    let skip = changed(1, |node| node.annotations.skip = Some("true".to_owned()));
    let mut inventory = inventory_with(both_leave().chain([skip]));
    assert_eq!(granted(&mut inventory), [false, true]);
}

#[test]
fn unapproved_node_does_not_block_the_queue() {
    let approved = |n| changed(n, |node| node.annotations.approved = Some("true".to_owned()));
    let asked_for = || Rules {
        require_approval: true,
        ..rules()
    };
    let mut inventory = inventory_of(asked_for(), both_leave());
    assert_eq!(granted(&mut inventory), [false, false]);
    inventory.apply(approved(2));
    assert_eq!(granted(&mut inventory), [false, true]);
    let mut both = inventory_of(asked_for(), both_leave().chain([approved(1), approved(2)]));
    assert_eq!(granted(&mut both), [true, false]);
}

#[test]
fn a_node_on_its_way_back_whose_host_leaves_again_waits_its_turn() {
    let facts = both_leave().chain([in_phase(1, Phase::Rejoining), in_phase(2, Phase::Draining)]);
    let mut inventory = inventory_with(facts);
    let behind = Admission::Queued {
        ahead: vec![name(2)],
        limit: SlotLimit::ConcurrentDrains(1),
    };
    assert_eq!(snapshot_of(&mut inventory, 1).observed.admission, behind);
    inventory.apply(in_phase(2, Phase::AwaitingHost));
    assert_eq!(
        snapshot_of(&mut inventory, 1).observed.admission,
        Admission::Granted
    );
}

#[test]
fn a_cordoned_node_with_an_unreadable_record_is_unavailable_for_a_while() {
    let unreadable = |unschedulable| {
        changed(1, |node| {
            node.unschedulable = unschedulable;
            node.annotations.episode = Some("{".to_owned());
        })
    };
    let one_away = || Rules {
        unavailable: MaxUnavailable::Nodes(1),
        concurrent_drains: 9,
        ..rules()
    };
    let mut inventory = inventory_of(one_away(), both_leave().chain([unreadable(true)]));
    let behind = Admission::Queued {
        ahead: vec![name(1)],
        limit: SlotLimit::Unavailable(1),
    };
    assert_eq!(snapshot_of(&mut inventory, 2).observed.admission, behind);
    let slot = rules().drain_slot;
    let at_the_end = |offset: i64| moment(i64::try_from(slot.as_secs()).unwrap() + offset);
    inventory.set_time(at_the_end(-1));
    assert_eq!(snapshot_of(&mut inventory, 2).observed.admission, behind);
    inventory.set_time(at_the_end(0));
    assert_eq!(
        snapshot_of(&mut inventory, 2).observed.admission,
        Admission::Granted
    );
    assert!(slot > Duration::from_secs(1));
    // A Node that is not cordoned counts as available.
    let mut inventory = inventory_of(one_away(), both_leave().chain([unreadable(false)]));
    assert_eq!(
        snapshot_of(&mut inventory, 2).observed.admission,
        Admission::Granted
    );
}

#[test]
fn a_drain_that_lasts_too_long_gives_its_slot_back_and_stays_cordoned() {
    let slot = i64::try_from(rules().drain_slot.as_secs()).unwrap();
    // A drain that this process found when it began, and one that it began itself.
    for is_found in [true, false] {
        let drains = in_phase(1, Phase::Draining);
        let mut inventory = inventory_of(rules(), both_leave().chain(is_found.then(|| drains.clone())));
        assert!(!granted(&mut inventory)[1]);
        if !is_found {
            assert_eq!(granted(&mut inventory), [true, false]);
            inventory.apply(drains);
            assert!(!granted(&mut inventory)[1]);
        }
        inventory.set_time(moment(slot - 1));
        assert!(!granted(&mut inventory)[1], "{is_found}");
        inventory.set_time(moment(slot));
        assert!(granted(&mut inventory)[1], "{is_found}");
        let node = snapshot_of(&mut inventory, 1).observed.node;
        assert_eq!(snapshot_of(&mut inventory, 1).record.phase_name(), "Draining");
        assert!(
            node.is_some_and(|node| node.unschedulable),
            "its own drain goes on"
        );
    }
}

#[test]
fn no_slot_is_granted_on_an_incomplete_set() {
    let leaves = |n, clicked| vsphere(vsphere::VsphereUpdate::Host(entering(n, clicked).into()));
    let vm_fact = |n| vsphere(vsphere::VsphereUpdate::Vm(crate::inventory::tests::vm(n)));
    let mut inventory = inventory_with(trio(1).into_iter().chain(trio(2)));
    inventory.apply(vsphere(vsphere::VsphereUpdate::Reset));
    // The set begins with the host that was triggered last.
    for fact in [vm_fact(1), vm_fact(2), leaves(1, 20)] {
        inventory.apply(fact);
    }
    assert_eq!(granted(&mut inventory), [false, false]);
    inventory.apply(leaves(2, 10));
    assert_eq!(granted(&mut inventory), [false, false]);
    inventory.apply(vsphere(vsphere::VsphereUpdate::Settled));
    assert_eq!(granted(&mut inventory), [false, true]);
}

#[test]
fn node_that_is_only_followed_waits_for_no_slot() {
    // Its copy is not closed yet, its Node says that the episode is over, and a request asks for another one.
    let of = in_episode(1, Phase::Rejoining, crate::fixtures::RELEASE);
    let Record::Episode(episode) = crate::inventory::snapshot::record_of(&of) else {
        panic!("an episode is expected");
    };
    let mut over = node(1);
    over.annotations.last_episode = Some(write_last(&LastEpisode {
        ended: None,
        at: at(0),
        episode: EndedEpisode::of(&episode),
    }));
    let followed = Fact::Kubernetes(KubernetesUpdate::Followed(Box::new(over)));
    let role = NodeMaintenanceRole::Request(asked(RequestedAction::Drain));
    let request = maintenance("drain".to_owned(), name(1), 0, role);
    let is_node =
        |fact: &Fact| matches!(fact, Fact::Kubernetes(KubernetesUpdate::Node(node)) if node.name == name(1));
    let facts = both_leave().filter(|fact| !is_node(fact));
    let mut inventory = inventory_of(rules(), facts.chain([copied(of), followed, request]));
    assert!(granted_to(&mut inventory, 2));
}

fn granted_to(inventory: &mut Inventory, n: usize) -> bool {
    snapshot_of(inventory, n).observed.admission == Admission::Granted
}

#[test]
fn node_that_waits_for_a_vmotion_takes_no_slot_until_its_grace_is_over() {
    let vgpu = vsphere(vsphere::VsphereUpdate::Vm(vsphere::Vm {
        passthrough: Some(vec![vsphere::Passthrough::Vgpu {
            profile: None,
            migrates: None,
        }]),
        ..crate::inventory::tests::vm(1)
    }));
    let mut inventory = inventory_of(rules(), both_leave().chain([vgpu, in_phase(1, Phase::Queued)]));
    assert_eq!(granted(&mut inventory), [false, true]);
    inventory.apply(in_phase(2, Phase::Draining));
    inventory.apply(in_phase(2, Phase::AwaitingHost));
    inventory.set_time(moment(299));
    assert_eq!(granted(&mut inventory), [false, false]);
    inventory.set_time(moment(300));
    assert_eq!(granted(&mut inventory), [true, false]);
}
