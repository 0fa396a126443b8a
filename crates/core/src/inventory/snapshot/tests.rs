use super::*;
use crate::facts::vsphere;
use crate::fixtures::{at, policy};
use crate::ids::NodeUid;
use crate::inventory::Fact;
use crate::inventory::tests::{
    apply_all, copied, found, inventory_with, moment, node, seen_of, snapshot_of, trio, uuid, vm, vsphere,
    with_episode,
};
use crate::maintenance::decide::{Decision, decide};
use crate::maintenance::episode::DrainEnd;
use crate::maintenance::policy::DrainTimeoutAction;
use crate::maintenance::record::{self, EndedEpisode};
use crate::maintenance::waiting::{ParkReason, WaitingOn};

/// What the node of number 1 waits for, whose Node is of another machine: with a VM of its own, or with none.
fn another_machine(inventory: &mut Inventory, has_vm: bool, copy: Fact) -> Decision {
    let another = NodeFacts {
        uid: NodeUid::new("uid-new"),
        provider_uuid: Some(uuid(7)),
        system_uuid: None,
        ..node(1)
    };
    let vms: &[usize] = if has_vm { &[7] } else { &[] };
    let its_vm = vsphere(vsphere::VsphereUpdate::Vm(vm(7)));
    apply_all(inventory, [seen_of(another), its_vm, found(7, vms), copy]);
    let NodeSnapshot { record, observed } = snapshot_of(inventory, 1);
    decide(&record, &observed, &policy(DrainTimeoutAction::Hold), moment(0))
}

#[test]
fn copy_that_keeps_a_vm_off_parks_another_machine_of_the_name() {
    let relocating = || Phase::Relocating {
        to: crate::fixtures::host_named("esx-3"),
    };
    let shutting_down = || Phase::ShuttingDown(DrainEnd::Complete);
    for phase in [Phase::AwaitingHost, relocating(), shutting_down()] {
        for has_vm in [true, false] {
            let mut inventory = inventory_with(trio(1));
            let copy = copied(with_episode(1, phase.clone(), |_| {}));
            let decision = another_machine(&mut inventory, has_vm, copy);
            // A shutdown needs a current lookup first.
            let is_lookup = has_vm && phase == shutting_down();
            let parked = Decision::Wait {
                waiting_on: if is_lookup {
                    WaitingOn::VmLookup
                } else {
                    WaitingOn::Parked(ParkReason::AnotherNode)
                },
                recheck: None,
            };
            assert_eq!(decision, parked, "{phase:?} {has_vm}");
            assert!(snapshot_of(&mut inventory, 1).record.episode().is_some());
        }
    }
}

#[test]
fn a_new_node_of_the_name_with_another_vm_does_not_take_the_copy() {
    let copy = |phase, release: &str| {
        copied(with_episode(1, phase, |episode| {
            episode.release = release.into();
        }))
    };
    let mut same = inventory_with(
        trio(1)
            .into_iter()
            .chain([copy(Phase::AwaitingHost, crate::fixtures::RELEASE)]),
    );
    assert_eq!(snapshot_of(&mut same, 1).record.phase_name(), "AwaitingHost");
    // Its VM is on, or it is of another release.
    for copy in [
        copy(Phase::Draining, crate::fixtures::RELEASE),
        copy(Phase::Rejoining, crate::fixtures::RELEASE),
        copy(Phase::AwaitingHost, "other/other"),
    ] {
        let mut another = inventory_with(trio(1));
        another_machine(&mut another, true, copy);
        assert!(snapshot_of(&mut another, 1).observed.vm.found().is_some());
        assert_eq!(snapshot_of(&mut another, 1).record, Record::InService);
    }
}

#[test]
fn a_copy_without_a_vm_uuid_is_no_nodes_record() {
    let copy = copied(with_episode(1, Phase::AwaitingHost, |episode| {
        episode.vm_uuid = None;
    }));
    let nameless = Vm { uuid: None, ..vm(1) };
    let nameless = vsphere(vsphere::VsphereUpdate::Vm(nameless));
    let mut inventory = inventory_with(trio(1).into_iter().chain([nameless, copy]));
    assert_eq!(snapshot_of(&mut inventory, 1).record, Record::InService);
}

#[test]
fn unknown_value_of_an_annotation_is_ignored() {
    for (word, is_true) in [("true", true), ("false", false), ("yes", false), ("", false)] {
        let mut node = node(1);
        let word = Some(word.to_owned());
        node.annotations.keep_cordoned.clone_from(&word);
        node.annotations.skip.clone_from(&word);
        node.annotations.approved.clone_from(&word);
        let seen = observed_node(&node);
        let read = [seen.keep_cordoned, seen.overrides.skip];
        assert_eq!(read, [is_true; 2], "{word:?}");
        assert_eq!(seen.overrides.approved, None, "{word:?} is no episode");
    }
    for (word, strategy) in [
        (Some("wait"), Strategy::Wait),
        (Some("migrate"), Strategy::Migrate),
        (Some("later"), Strategy::Migrate),
        (Some("Wait"), Strategy::Migrate),
        (None, Strategy::Migrate),
    ] {
        let mut node = node(1);
        node.annotations.strategy = word.map(str::to_owned);
        assert_eq!(observed_node(&node).overrides.strategy, strategy, "{word:?}");
    }
}

#[test]
fn copy_counts_until_its_own_node_says_that_its_episode_is_over() {
    let begun = 100;
    let episode_of = |n: usize, begun: i64| {
        let of = with_episode(n, Phase::AwaitingHost, |episode| episode.begun_at = at(begun));
        (of.clone(), record_of(&of).episode().cloned().expect("an episode"))
    };
    let (copy, episode) = episode_of(1, begun);
    let (_, earlier) = episode_of(3, begun - 1);
    let (_, later) = episode_of(4, begun);
    for (last, uid, is_over) in [
        (None, "uid-1", false),
        (Some(&episode), "uid-1", true),
        (Some(&later), "uid-1", true),
        (Some(&earlier), "uid-1", false),
        // The Node was registered again. The episode went on there and has ended; its copy is not closed yet.
        (Some(&episode), "uid-new", true),
        // Another episode of the new Node says nothing about the one of the old Node.
        (Some(&later), "uid-new", false),
    ] {
        let last_episode = last.map(|last| {
            record::write_last(&LastEpisode {
                ended: None,
                at: at(begun + 1),
                episode: EndedEpisode::of(last),
            })
        });
        let mut on_node = NodeFacts {
            uid: NodeUid::new(uid),
            ..node(1)
        };
        on_node.annotations.last_episode = last_episode;
        let facts = [seen_of(on_node), copied(copy.clone())];
        let mut inventory = inventory_with(trio(1).into_iter().chain(facts));
        let is_in_service = snapshot_of(&mut inventory, 1).record == Record::InService;
        assert_eq!(is_in_service, is_over, "{:?} {uid}", last.map(|last| &last.id));
    }
}
