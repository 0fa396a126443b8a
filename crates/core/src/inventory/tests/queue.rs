//! Which nodes hold a drain slot or a reservation. After the start, a record alone grants neither.

use std::sync::Arc;
use std::time::Duration;

use crate::facts::kubernetes::{KubernetesUpdate, NodeFacts};
use crate::facts::vsphere::{Host, HostReading, Passthrough, PowerState, Vm, VsphereUpdate};
use crate::fixtures::{
    A40, RELEASE, at, found, host, host_ref, inventory_settings, moment, name, node_facts, of_model, pci,
    synced, trio, vm_facts, vm_ref,
};
use crate::ids::NodeUid;
use crate::inventory::{Fact, Inventory};
use crate::maintenance::clock::Now;
use crate::maintenance::episode::{Episode, Phase};
use crate::maintenance::observed::{Admission, LeadershipEpoch};
use crate::maintenance::placement::HostSurvey;

use super::{entering, in_episode, surveyed, switched_off, with_episode};

fn node(node: NodeFacts) -> Fact {
    Fact::Kubernetes(KubernetesUpdate::Node(Box::new(node)))
}

fn leading(facts: impl IntoIterator<Item = Fact>) -> Inventory {
    let mut inventory = Inventory::new(inventory_settings(), at(0));
    let begin = [Fact::Leadership(Some(LeadershipEpoch::ALONE))];
    inventory.advance(begin.into_iter().chain(synced(facts)), moment(0));
    inventory
}

/// The admission of node 1 after its host began to enter maintenance mode.
fn admission_of_the_next(inventory: &mut Inventory) -> Admission {
    let facts = [VsphereUpdate::Host(entering(1, 5).into()), VsphereUpdate::Settled];
    inventory.advance(facts.map(Fact::Vsphere), moment(5));
    inventory.snapshots[&name(1)].observed.admission.clone()
}

fn draining(change: impl FnOnce(&mut Episode)) -> Fact {
    node(NodeFacts {
        resource_version: 11,
        ..with_episode(2, Phase::Draining, |episode| {
            episode.release = RELEASE.into();
            change(episode);
        })
    })
}

#[test]
fn a_drain_found_at_the_start_holds_its_slot() {
    let mut inventory = leading([trio(1), trio(2), vec![draining(|_| ())]].concat());
    let Admission::Queued { ahead, .. } = admission_of_the_next(&mut inventory) else {
        panic!("the only slot was granted twice");
    };
    assert_eq!(ahead, [name(2)]);
}

#[test]
fn a_record_that_appears_later_without_a_grant_holds_no_slot() {
    let mut inventory = leading([trio(1), trio(2)].concat());
    inventory.advance([draining(|_| ())], moment(1));
    assert_eq!(admission_of_the_next(&mut inventory), Admission::Granted);
}

#[test]
fn a_record_of_another_node_or_vm_holds_no_slot() {
    let of_another_node = draining(|episode| episode.node_uid = NodeUid::new("uid-of-another"));
    let of_another_vm = draining(|episode| {
        episode.vm = Some(vm_ref(77));
        episode.vm_uuid = Some(crate::fixtures::uuid(77));
    });
    let mut left_alone = in_episode(2, Phase::Draining, RELEASE);
    left_alone.annotations.skip = Some("true".to_owned());
    for record in [of_another_node, of_another_vm, node(left_alone)] {
        let mut inventory = leading([trio(1), trio(2), vec![record.clone()]].concat());
        let admission = admission_of_the_next(&mut inventory);
        assert_eq!(admission, Admission::Granted, "{record:?}");
    }
}

#[test]
fn drain_that_was_not_believed_for_a_while_takes_its_slot_again() {
    let drains = |version, is_paused: bool| {
        let mut of = in_episode(2, Phase::Draining, RELEASE);
        of.resource_version = version;
        of.annotations.skip = is_paused.then(|| "true".to_owned());
        node(of)
    };
    let holds_the_slot = |inventory: &mut Inventory| admission_of_the_next(inventory) != Admission::Granted;
    for is_found_paused in [true, false] {
        let mut inventory = leading([trio(1), trio(2), vec![drains(11, is_found_paused)]].concat());
        inventory.advance([drains(12, true)], moment(1));
        inventory.advance([drains(13, false)], moment(2));
        assert!(
            holds_the_slot(&mut inventory),
            "paused at the start: {is_found_paused}"
        );
    }
    // A clone of its VM was there for a while.
    let mut inventory = leading([trio(1), trio(2), vec![drains(11, false)]].concat());
    inventory.advance([found(2, &[2, 3])], moment(1));
    inventory.advance([found(2, &[2])], moment(2));
    assert!(holds_the_slot(&mut inventory), "cloned");
    // A record that begins to drain afterwards holds none, as one without a grant.
    let mut inventory = leading([trio(1), trio(2), vec![drains(11, false)]].concat());
    let mut in_service = node_facts(2);
    in_service.resource_version = 12;
    inventory.advance([node(in_service)], moment(1));
    inventory.advance([drains(13, false)], moment(2));
    assert!(!holds_the_slot(&mut inventory), "another drain");
}

#[test]
fn two_nodes_with_other_devices_are_offered_the_same_host() {
    const OTHER: (u16, u16) = (0x10de, 0x1eb8);
    let both = Host {
        passthrough: Some(Arc::new([pci("0000:01:00.0", A40), pci("0000:02:00.0", OTHER)])),
        ..host(3)
    };
    let mut facts = vec![Fact::Vsphere(VsphereUpdate::Host(both.into()))];
    for n in [1, 2] {
        facts.push(node(in_episode(n, Phase::AwaitingHost, RELEASE)));
        facts.extend(switched_off(n));
    }
    let wants_other = Vm {
        power: Some(PowerState::Off),
        passthrough: Some(vec![Passthrough::Dynamic(of_model(OTHER))]),
        ..vm_facts(2)
    };
    facts.push(Fact::Vsphere(VsphereUpdate::Vm(wants_other)));
    let mut inventory = leading(facts);
    inventory.advance([surveyed(3, HostSurvey::Read(HostReading::default()))], moment(1));
    for n in [1, 2] {
        let offer = &inventory.snapshots[&name(n)].observed.offer;
        assert_eq!(
            offer.fits.as_ref().map(|(host, _)| host),
            Some(&host_ref(3)),
            "{n}: {offer:?}"
        );
    }
}

#[test]
fn a_node_that_did_not_use_its_grant_stays_behind_later_ones() {
    let leaves = |n| Fact::Vsphere(VsphereUpdate::Host(entering(n, i64::try_from(n).unwrap()).into()));
    let facts = [trio(1), trio(2), trio(3), vec![leaves(1), leaves(2), leaves(3)]].concat();
    let mut inventory = leading(facts);
    let granted = |inventory: &Inventory| -> Vec<usize> {
        let is_granted = |n: &usize| inventory.snapshots[&name(*n)].observed.admission == Admission::Granted;
        (1..=3).filter(is_granted).collect()
    };
    assert_eq!(granted(&inventory), [1]);
    let expires = inventory.next_at().expect("the grant expires");
    let later = |seconds: u64| Now {
        monotonic: expires.after(Duration::from_secs(seconds)),
        ..moment(0)
    };
    inventory.advance([], later(0));
    assert_eq!(
        granted(&inventory),
        [2],
        "node 1 was granted the slot and did not begin"
    );
    let mut left_alone = node_facts(2);
    left_alone.resource_version = 11;
    left_alone.annotations.skip = Some("true".to_owned());
    inventory.advance([node(left_alone)], later(1));
    assert_eq!(granted(&inventory), [3]);
}

#[test]
fn a_queued_node_names_the_episode_that_it_waits_for() {
    let mut inventory = leading([trio(1), trio(2), vec![draining(|_| ())]].concat());
    admission_of_the_next(&mut inventory);
    let root = inventory.snapshots[&name(2)]
        .record
        .episode()
        .map(|it| it.traceparent.clone());
    assert!(root.is_some());
    assert_eq!(inventory.snapshots[&name(1)].observed.ahead_traceparent, root);
}
