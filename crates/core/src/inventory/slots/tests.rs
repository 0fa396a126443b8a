use std::time::Duration;

use super::*;
use crate::facts::kubernetes::{
    KubernetesUpdate, NodeMaintenanceRole, NodeMaintenanceUpdate, RequestAction, RequestedMaintenance,
};
use crate::facts::vsphere;
use crate::fixtures::{gpus, vm_ref};
use crate::ids::NodeUid;
use crate::inventory::tests::{
    apply_all, asked, at, copied, entering, host, in_episode, in_phase, inventory_settings, inventory_with,
    maintenance, moment, name, node, seen_of, snapshot_of, trio, vsphere, with_episode,
};
use crate::inventory::{Fact, InventorySettings, record_of};
use crate::maintenance::admission::RoundStart;
use crate::maintenance::clock::Now;
use crate::maintenance::episode::{CordonOwner, DrainEnd, Phase};
use crate::maintenance::observed::{Admission, LeadershipEpoch, SlotLimit};
use crate::maintenance::record::{EndedEpisode, LastEpisode, write_last};
use crate::maintenance::waiting::WaitingOn;

/// The hosts of nodes 1 and 2 enter maintenance, that of node 1 first.
fn both_leave() -> impl Iterator<Item = Fact> {
    let leaves = |n, clicked| vsphere(vsphere::VsphereUpdate::Host(entering(n, clicked).into()));
    let nodes = trio(1).into_iter().chain(trio(2));
    nodes.chain([leaves(1, 10), leaves(2, 20)])
}

fn inventory_of(settings: InventorySettings, facts: impl IntoIterator<Item = Fact>) -> Inventory {
    let mut inventory = Inventory::new(settings, at(0));
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
    let queued = |n, is_approved: bool| {
        let mut node = with_episode(n, Phase::Queued, |episode| {
            episode.powered_off = false;
            episode.cordon = CordonOwner::NotYet;
        });
        node.resource_version = if is_approved { 12 } else { 11 };
        let record = record_of(&node);
        let id = record.episode().unwrap().id.to_string();
        node.annotations.approved = is_approved.then_some(id);
        seen_of(node)
    };
    let asked_for = || InventorySettings {
        require_approval: true,
        ..inventory_settings()
    };
    assert_eq!(
        granted(&mut inventory_of(asked_for(), both_leave())),
        [false, false]
    );
    let both_queued = || both_leave().chain([queued(1, false), queued(2, false)]);
    let mut inventory = inventory_of(asked_for(), both_queued());
    assert_eq!(granted(&mut inventory), [false, false]);
    inventory.apply(queued(2, true));
    assert_eq!(granted(&mut inventory), [false, true]);
    let mut both = inventory_of(
        asked_for(),
        both_queued().chain([queued(1, true), queued(2, true)]),
    );
    assert_eq!(granted(&mut both), [true, false]);
}

#[test]
fn a_node_on_its_way_back_whose_host_leaves_again_waits_its_turn() {
    let facts = both_leave().chain([in_phase(1, Phase::Rejoining), in_phase(2, Phase::Draining)]);
    let mut inventory = inventory_with(facts);
    let behind = Admission::Queued {
        ahead: vec![name(2)],
        position: 1,
        limit: SlotLimit::ConcurrentDrains(1),
    };
    assert_eq!(snapshot_of(&mut inventory, 1).observed.admission, behind);
    inventory.apply(in_phase(2, Phase::AwaitingHost));
    assert_eq!(
        snapshot_of(&mut inventory, 1).observed.admission,
        Admission::Granted
    );
}

/// The names ahead of nodes 1 and 2, where they wait for a slot.
fn ahead(inventory: &mut Inventory) -> [Option<Vec<NodeName>>; 2] {
    [1, 2].map(|n| match snapshot_of(inventory, n).observed.admission {
        Admission::Granted => None,
        Admission::Queued { ahead, .. } => Some(ahead),
    })
}

#[test]
fn node_that_is_away_and_has_to_leave_again_does_not_wait_for_its_own_slot() {
    let limited = |limit: u32| {
        let none = || InventorySettings {
            concurrent_drains: 9,
            ..inventory_settings()
        };
        let nodes = InventorySettings {
            unavailable: Limit::Number(limit),
            ..none()
        };
        let gpus = InventorySettings {
            unavailable_gpus: Limit::Number(limit),
            ..none()
        };
        [nodes, gpus]
    };
    for phase in [Phase::Drained, Phase::Rejoining] {
        // Node 2, whose host was clicked later, waits for node 1.
        for settings in limited(1) {
            let facts = both_leave().chain([in_phase(1, phase.clone())]);
            let mut inventory = inventory_of(settings, facts);
            let expected = [None, Some(vec![name(1)])];
            assert_eq!(ahead(&mut inventory), expected, "{phase:?}");
        }
        // Node 1, whose host was clicked earlier, waits for node 2, which does not wait behind it.
        for settings in limited(1) {
            let facts = both_leave().chain([in_phase(2, phase.clone())]);
            let mut inventory = inventory_of(settings, facts);
            let expected = [Some(vec![name(2)]), None];
            assert_eq!(ahead(&mut inventory), expected, "{phase:?}");
        }
        // More are away than the limit allows.
        for settings in [limited(1), limited(2)].concat() {
            let both = [1, 2].map(|n| in_phase(n, phase.clone()));
            let mut inventory = inventory_of(settings, both_leave().chain(both));
            assert_eq!(ahead(&mut inventory), [None, None], "{phase:?}");
        }
    }
}

#[test]
fn limit_in_gpus_counts_those_of_each_node() {
    let with = |limit| {
        let settings = InventorySettings {
            unavailable_gpus: limit,
            concurrent_drains: 9,
            ..inventory_settings()
        };
        let gpus = |n| changed(n, |node| node.gpus = gpus(4).into());
        inventory_of(settings, both_leave().chain([gpus(1), gpus(2)]))
    };
    for (limit, expected) in [
        (Limit::Number(7), [true, false]),
        (Limit::Number(8), [true, true]),
        (Limit::Percent(99), [true, false]),
        (Limit::Percent(100), [true, true]),
        (Limit::Unlimited, [true, true]),
    ] {
        assert_eq!(granted(&mut with(limit)), expected, "{limit:?}");
    }
}

#[test]
fn power_off_counts_for_an_hour_also_when_the_node_is_back() {
    let settings = || InventorySettings {
        power_offs: Limit::Number(1),
        concurrent_drains: 9,
        ..inventory_settings()
    };
    let behind = Admission::Queued {
        ahead: vec![name(1)],
        position: 1,
        limit: SlotLimit::PowerOffs(1),
    };
    let shutting_down = in_phase(1, Phase::ShuttingDown(DrainEnd::Complete));
    let mut inventory = inventory_of(settings(), both_leave().chain([shutting_down]));
    let admission = |inventory: &mut Inventory| snapshot_of(inventory, 2).observed.admission;
    assert_eq!(admission(&mut inventory), behind);
    inventory.apply(vsphere(vsphere::VsphereUpdate::Host(host(1).into())));
    inventory.apply(changed(1, |_| {}));
    assert_eq!(admission(&mut inventory), behind, "gpu-1 is back");
    inventory.set_time(moment(3599));
    assert_eq!(admission(&mut inventory), behind);
    assert_eq!(inventory.next_timed_change, Some(moment(3600).monotonic));
    inventory.set_time(moment(3600));
    assert_eq!(admission(&mut inventory), Admission::Granted);

    // A new leader counts a node that it finds off, and not again while it stays off.
    let away = in_phase(1, Phase::AwaitingHost);
    let mut inventory = inventory_of(settings(), both_leave().chain([away]));
    assert_eq!(admission(&mut inventory), behind);
    inventory.set_time(moment(3600));
    assert_eq!(admission(&mut inventory), Admission::Granted);
    inventory.set_time(moment(3601));
    assert_eq!(admission(&mut inventory), Admission::Granted);
}

#[test]
fn gpus_of_a_node_that_is_away_are_those_of_its_record() {
    let away = with_episode(1, Phase::AwaitingHost, |episode| {
        episode.gpus_before = gpus(4).into();
    });
    let settings = InventorySettings {
        unavailable_gpus: Limit::Number(7),
        ..inventory_settings()
    };
    let with_gpus = changed(2, |node| node.gpus = gpus(4).into());
    let mut inventory = inventory_of(settings, both_leave().chain([seen_of(away), with_gpus]));
    let behind = Admission::Queued {
        ahead: vec![name(1)],
        position: 1,
        limit: SlotLimit::UnavailableGpus(7),
    };
    assert_eq!(snapshot_of(&mut inventory, 2).observed.admission, behind);
}

#[test]
fn a_cordoned_node_with_an_unreadable_record_is_unavailable_for_a_while() {
    let unreadable = |unschedulable| {
        changed(1, |node| {
            node.unschedulable = unschedulable;
            node.annotations.episode = Some("{".to_owned());
        })
    };
    let one_away = || InventorySettings {
        unavailable: Limit::Number(1),
        concurrent_drains: 9,
        ..inventory_settings()
    };
    let mut inventory = inventory_of(one_away(), both_leave().chain([unreadable(true)]));
    let behind = Admission::Queued {
        ahead: vec![name(1)],
        position: 1,
        limit: SlotLimit::Unavailable(1),
    };
    assert_eq!(snapshot_of(&mut inventory, 2).observed.admission, behind);
    let slot = inventory_settings().drain_slot;
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
    let slot = i64::try_from(inventory_settings().drain_slot.as_secs()).unwrap();
    // A drain that this process found when it began, and one that it began itself.
    for is_found in [true, false] {
        let drains = in_phase(1, Phase::Draining);
        let mut inventory = inventory_of(
            inventory_settings(),
            both_leave().chain(is_found.then(|| drains.clone())),
        );
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
    let role = NodeMaintenanceRole::Request(asked(RequestAction::Drain));
    let request = maintenance("drain".to_owned(), name(1), 0, role);
    let is_node =
        |fact: &Fact| matches!(fact, Fact::Kubernetes(KubernetesUpdate::Node(node)) if node.name == name(1));
    let facts = both_leave().filter(|fact| !is_node(fact));
    let mut inventory = inventory_of(inventory_settings(), facts.chain([copied(of), followed, request]));
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
    let mut inventory = inventory_of(
        inventory_settings(),
        both_leave().chain([vgpu, in_phase(1, Phase::Queued)]),
    );
    assert_eq!(granted(&mut inventory), [false, true]);
    inventory.apply(in_phase(2, Phase::Draining));
    inventory.apply(in_phase(2, Phase::AwaitingHost));
    inventory.set_time(moment(299));
    assert_eq!(granted(&mut inventory), [false, false]);
    inventory.set_time(moment(300));
    assert_eq!(granted(&mut inventory), [true, false]);
}

#[test]
fn event_loop_sleeps_while_vcenter_is_lost_after_a_slot_was_granted() {
    let leads = Fact::Leadership(Some(LeadershipEpoch::ALONE));
    let mut inventory = inventory_with(std::iter::once(leads).chain(both_leave()));
    assert_eq!(granted(&mut inventory), [true, false]);
    let lost = vsphere(vsphere::VsphereUpdate::Lost {
        why: "HTTP status 503".to_owned(),
    });
    inventory.advance([lost], moment(1));
    for now in [40, 400, 4000].map(moment) {
        inventory.advance([], now);
        let next_at = inventory.next_at();
        assert!(
            next_at.is_none_or(|at| at > now.monotonic),
            "{now:?}: {next_at:?}"
        );
    }
}

#[test]
fn node_outside_the_window_of_its_request_takes_no_slot() {
    // Open from second 200 until second 800.
    let windowed = NodeMaintenanceRole::Request(RequestedMaintenance {
        window: Some("Wed 11:10-11:20".parse()),
        ..asked(RequestAction::Reboot)
    });
    let requests = [
        maintenance("windowed".to_owned(), name(1), 10, windowed),
        maintenance(
            "other".to_owned(),
            name(2),
            20,
            NodeMaintenanceRole::Request(asked(RequestAction::Reboot)),
        ),
    ];
    let queued = [1, 2].map(|n| in_phase(n, Phase::Queued));
    let facts = trio(1).into_iter().chain(trio(2)).chain(requests).chain(queued);
    let mut inventory = inventory_of(inventory_settings(), facts);
    assert_eq!(granted(&mut inventory), [false, true]);
    assert_eq!(
        inventory.next_timed_change,
        Some(moment(30).monotonic),
        "of the grant"
    );
    inventory.apply(in_phase(2, Phase::Draining));
    inventory.apply(in_phase(2, Phase::AwaitingHost));
    inventory.set_time(moment(199));
    assert_eq!(granted(&mut inventory), [false, false]);
    assert_eq!(inventory.next_timed_change, Some(moment(200).monotonic));
    inventory.set_time(moment(200));
    assert_eq!(granted(&mut inventory), [true, false]);
    inventory.set_time(moment(799));
    assert_eq!(granted(&mut inventory), [true, false]);
    inventory.set_time(moment(800));
    assert_eq!(granted(&mut inventory), [false, false]);
}

#[test]
fn clock_that_is_set_opens_and_closes_windows_at_once() {
    let windowed = NodeMaintenanceRole::Request(RequestedMaintenance {
        window: Some("Wed 11:10-11:20".parse()),
        ..asked(RequestAction::Reboot)
    });
    let request = maintenance("windowed".to_owned(), name(1), 10, windowed);
    let leads = Fact::Leadership(Some(LeadershipEpoch::ALONE));
    let facts = trio(1)
        .into_iter()
        .chain([request, in_phase(1, Phase::Queued), leads]);
    let mut inventory = inventory_of(inventory_settings(), facts);
    // Some milliseconds are an adjustment.
    for (wall, elapsed, is_granted) in [
        (0, 0, None),
        (301, 1, Some(true)),
        (2, 2, Some(false)),
        (3, 3, None),
    ] {
        let now = Now {
            wall: at(wall),
            ..moment(elapsed)
        };
        let changes = inventory.advance([], now);
        let built = changes.built.map(|built| built.snapshots);
        let granted = built
            .filter(|_| elapsed > 0)
            .map(|built| built[&name(1)].observed.admission == Admission::Granted);
        assert_eq!(granted, is_granted, "at {wall} s");
    }
}

#[test]
fn limits_apply_to_each_group_of_nodes() {
    let in_group = |n: usize, group: &str| {
        let group = Some(group.to_owned());
        changed(n, |node| node.limit_group = group)
    };
    let admitted = |groups: [&str; 2]| {
        let facts = both_leave().chain([in_group(1, groups[0]), in_group(2, groups[1])]);
        granted(&mut inventory_of(inventory_settings(), facts))
    };
    assert_eq!(admitted(["a", "a"]), [true, false]);
    assert_eq!(admitted(["a", "b"]), [true, true]);
    let half = InventorySettings {
        unavailable: Limit::Percent(50),
        concurrent_drains: 9,
        ..inventory_settings()
    };
    let facts = both_leave().chain([in_group(1, "a"), in_group(2, "a")]);
    assert_eq!(granted(&mut inventory_of(half, facts)), [true, false]);
}

/// A host maintenance of node 1, and a request for node 2 that was created earlier.
fn click_and_request(second: i64) -> Vec<Fact> {
    let leaves = vsphere(vsphere::VsphereUpdate::Host(entering(1, 100).into()));
    [
        trio(1),
        trio(2),
        vec![leaves, request_for(2, second, RequestAction::Reboot)],
    ]
    .concat()
}

fn request_for(n: usize, second: i64, action: RequestAction) -> Fact {
    let role = NodeMaintenanceRole::Request(asked(action));
    maintenance(format!("request-{n}"), name(n), second, role)
}

/// The annotation that names an episode which ended at this second.
fn ended_episode(second: i64) -> Option<String> {
    let of = in_episode(2, Phase::Rejoining, crate::fixtures::RELEASE);
    let record = record_of(&of);
    Some(write_last(&LastEpisode {
        ended: None,
        at: at(second),
        episode: EndedEpisode::of(record.episode()?),
    }))
}

#[test]
fn further_request_for_a_node_queues_from_the_end_of_its_last_episode() {
    assert_eq!(
        granted(&mut inventory_with(click_and_request(50))),
        [false, true],
        "the request was there first"
    );
    let ended_at = |second| {
        let mut node = node(2);
        node.resource_version = 11;
        node.annotations.last_episode = ended_episode(second);
        seen_of(node)
    };
    for (ended, expected) in [(40, [false, true]), (150, [true, false]), (10_000, [true, false])] {
        let mut inventory = Inventory::new(inventory_settings(), at(0));
        inventory.set_time(moment(200));
        apply_all(
            &mut inventory,
            click_and_request(50).into_iter().chain([ended_at(ended)]),
        );
        assert_eq!(granted(&mut inventory), expected, "ended at {ended}");
        // A kubelet may remove the annotation, or write an earlier end.
        let forged = changed(2, |node| {
            node.resource_version = 12;
            node.annotations.last_episode = ended_episode(20);
        });
        inventory.apply(forged);
        assert_eq!(granted(&mut inventory), expected, "ended at {ended}, and forged");
    }
    // A time from the future counts as now.
    let mut inventory = Inventory::new(inventory_settings(), at(0));
    inventory.set_time(moment(60));
    apply_all(
        &mut inventory,
        click_and_request(50).into_iter().chain([ended_at(10_000)]),
    );
    assert_eq!(granted(&mut inventory), [false, true]);
    // After a restart, also the NodeMaintenance of the episode says when it ended.
    let of = in_episode(2, Phase::Rejoining, crate::fixtures::RELEASE);
    let Fact::Kubernetes(KubernetesUpdate::Maintenances(NodeMaintenanceUpdate::Seen(mut copy))) = copied(of)
    else {
        panic!("an object is expected");
    };
    copy.is_over = true;
    copy.status.ended_at = Some(at(150).to_string());
    let copy = Fact::Kubernetes(KubernetesUpdate::Maintenances(NodeMaintenanceUpdate::Seen(copy)));
    let mut inventory = Inventory::new(inventory_settings(), at(0));
    inventory.set_time(moment(200));
    apply_all(&mut inventory, click_and_request(50).into_iter().chain([copy]));
    assert_eq!(granted(&mut inventory), [true, false]);
}

fn few_power_offs() -> InventorySettings {
    InventorySettings {
        power_offs: Limit::Number(1),
        concurrent_drains: 9,
        ..inventory_settings()
    }
}

#[test]
fn power_off_in_a_record_that_is_not_believed_does_not_count() {
    let forged = |change: fn(&mut Episode)| {
        let node = with_episode(2, Phase::AwaitingHost, |episode| {
            episode.release = inventory_settings().releases.own;
            change(episode);
        });
        seen_of(NodeFacts {
            resource_version: 11,
            ..node
        })
    };
    let leaves = || vsphere(vsphere::VsphereUpdate::Host(entering(1, 10).into()));
    let nodes = || trio(1).into_iter().chain(trio(2)).chain([leaves()]);
    let with = |record: Fact| ahead(&mut inventory_of(few_power_offs(), nodes().chain([record])))[0].clone();
    assert_eq!(with(forged(|_| {})), Some(vec![name(2)]), "found at the start");
    type Change = fn(&mut Episode);
    let changes: [(&str, Change); 3] = [
        ("another Node", |episode| episode.node_uid = NodeUid::new("uid-7")),
        ("another VM", |episode| {
            episode.vm = Some(vm_ref(77));
            episode.vm_uuid = Some(crate::fixtures::uuid(77));
        }),
        ("another release", |episode| {
            episode.release = "other/other".into()
        }),
    ];
    for (of, change) in changes {
        assert_eq!(with(forged(change)), None, "a record of {of}");
    }
    // This process granted no slot for it, whether the other node has its slot already or asks for one afterwards.
    for (before, after) in [(leaves(), forged(|_| {})), (forged(|_| {}), leaves())] {
        let mut inventory = inventory_of(few_power_offs(), trio(1).into_iter().chain(trio(2)));
        ahead(&mut inventory);
        inventory.apply(before);
        ahead(&mut inventory);
        inventory.apply(after);
        assert_eq!(ahead(&mut inventory)[0], None);
    }
}

#[test]
fn request_for_a_drain_does_not_wait_for_power_offs() {
    let away = in_phase(1, Phase::AwaitingHost);
    for (action, expected) in [
        (RequestAction::Drain, None),
        (RequestAction::Reboot, Some(vec![name(1)])),
    ] {
        let request = request_for(2, 20, action.clone());
        let facts = trio(1).into_iter().chain(trio(2)).chain([away.clone(), request]);
        let mut inventory = inventory_of(few_power_offs(), facts);
        assert_eq!(ahead(&mut inventory)[1], expected, "{action:?}");
    }
}

#[test]
fn second_power_off_of_an_episode_counts() {
    let settings = InventorySettings {
        power_offs: Limit::Number(2),
        ..few_power_offs()
    };
    let leaves = |n| vsphere(vsphere::VsphereUpdate::Host(entering(n, 10).into()));
    let facts = trio(1).into_iter().chain(trio(2)).chain([leaves(1)]);
    let mut inventory = inventory_of(settings, facts.chain([in_phase(1, Phase::AwaitingHost)]));
    for phase in [
        Phase::Rejoining,
        Phase::Draining,
        Phase::ShuttingDown(DrainEnd::Complete),
        Phase::AwaitingHost,
    ] {
        ahead(&mut inventory);
        inventory.apply(in_phase(1, phase));
    }
    ahead(&mut inventory);
    inventory.apply(leaves(2));
    assert_eq!(ahead(&mut inventory)[1], Some(vec![name(1)]));
}

#[test]
fn node_whose_own_power_offs_reach_the_limit_is_told_so() {
    let mut inventory = inventory_of(
        few_power_offs(),
        both_leave().chain([in_phase(1, Phase::Rejoining)]),
    );
    let Admission::Queued {
        ahead,
        limit,
        position,
    } = snapshot_of(&mut inventory, 1).observed.admission
    else {
        panic!("it has been powered off in this hour");
    };
    assert!(ahead.is_empty(), "{ahead:?}");
    let waiting_on = WaitingOn::Slot {
        ahead,
        position,
        limit,
    };
    assert_eq!(
        waiting_on.to_string(),
        "a slot: at most 1 powered off in an hour, which its own power-offs of the last hour reach"
    );
}

#[test]
fn plan_takes_a_node_that_is_away_already_as_the_queue_does() {
    let settings = || InventorySettings {
        unavailable: Limit::Number(1),
        concurrent_drains: 9,
        ..inventory_settings()
    };
    let click = |n: usize| {
        vsphere(vsphere::VsphereUpdate::Host(
            entering(n, i64::try_from(n).unwrap()).into(),
        ))
    };
    for phase in [Phase::Drained, Phase::Rejoining] {
        let nodes = || {
            trio(1)
                .into_iter()
                .chain(trio(2))
                .chain([in_phase(1, phase.clone())])
        };
        let mut inventory = inventory_of(settings(), nodes());
        let forecasts = inventory.forecast(&[name(1), name(2)], &BTreeSet::new());
        let groups = inventory.wave(&forecasts);
        let rounds: Vec<_> = groups.iter().flat_map(|group| &group.rounds).collect();
        let planned: Vec<_> = rounds
            .iter()
            .map(|round| (round.start, round.nodes.clone()))
            .collect();
        assert_eq!(planned[0], (RoundStart::Now, vec![name(1)]), "{phase:?}");
        assert_eq!(planned[1].1, [name(2)], "{phase:?}");
        let mut inventory = inventory_of(settings(), nodes().chain([click(1), click(2)]));
        assert_eq!(granted(&mut inventory), [true, false], "{phase:?}");
    }
}

#[test]
fn node_that_is_deleted_while_its_vm_is_off_stays_unavailable() {
    let drains = || InventorySettings {
        concurrent_drains: 9,
        ..inventory_settings()
    };
    let nodes = InventorySettings {
        unavailable: Limit::Number(1),
        ..drains()
    };
    // The limit is full with the four GPUs of the deleted Node.
    let gpus_at_once = InventorySettings {
        unavailable_gpus: Limit::Number(4),
        ..drains()
    };
    let power_offs = few_power_offs();
    let of = |uid: &str| {
        let of = with_episode(1, Phase::AwaitingHost, |episode| {
            episode.gpus_before = gpus(4).into();
        });
        NodeFacts {
            uid: NodeUid::new(uid),
            limit_group: Some("a".to_owned()),
            ..of
        }
    };
    let leaves = vsphere(vsphere::VsphereUpdate::Host(entering(2, 10).into()));
    let in_group = changed(2, |node| node.limit_group = Some("a".to_owned()));
    let gone = || {
        Fact::Kubernetes(KubernetesUpdate::NodeGone {
            name: name(1),
            uid: NodeUid::new("uid-1"),
        })
    };
    for settings in [nodes, gpus_at_once, power_offs] {
        let facts = [
            trio(1),
            trio(2),
            vec![seen_of(of("uid-1")), copied(of("uid-1")), in_group.clone()],
        ];
        let mut inventory = inventory_of(settings.clone(), facts.concat());
        ahead(&mut inventory);
        inventory.apply(gone());
        inventory.apply(leaves.clone());
        let admission = |inventory: &mut Inventory| snapshot_of(inventory, 2).observed.admission;
        let Admission::Queued { ahead, .. } = admission(&mut inventory) else {
            panic!("{settings:?}: the place of the deleted Node was given away");
        };
        assert_eq!(ahead, [name(1)], "{settings:?}");
        // The same machine registers again, and its record is not on the new Node yet.
        let mut again = of("uid-2");
        again.annotations.episode = None;
        again.gpus = gpus(4).into();
        inventory.apply(seen_of(again));
        assert_ne!(
            admission(&mut inventory),
            Admission::Granted,
            "{settings:?}: registered again"
        );
    }
}

#[test]
fn deleted_node_without_its_vm_is_not_unavailable() {
    let settings = InventorySettings {
        unavailable: Limit::Number(1),
        concurrent_drains: 9,
        ..inventory_settings()
    };
    let gone = Fact::Kubernetes(KubernetesUpdate::NodeGone {
        name: name(1),
        uid: NodeUid::new("uid-1"),
    });
    let no_vm = crate::inventory::tests::found(1, &[]);
    let away = in_phase(1, Phase::AwaitingHost);
    let mut inventory = inventory_of(settings, both_leave().chain([away, gone, no_vm]));
    assert!(granted_to(&mut inventory, 2));
}
