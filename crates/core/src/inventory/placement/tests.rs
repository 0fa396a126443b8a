use std::sync::Arc;

use super::*;
use crate::facts::kubernetes::{NodeFacts, NodeMaintenanceRole, RequestAction, RequestedMaintenance};
use crate::facts::vsphere;
use crate::facts::vsphere::{AntiAffinityRule, Claim, ClaimedDevice, ClusterRules, HostReading};
use crate::fixtures::{A40, of_model, pci, vm_facts};
use crate::inventory::Fact;
use crate::inventory::tests::{
    apply_all, asked, at, awaiting, copied, entering, host, inventory_with, maintenance, moment, name,
    seen_of, snapshot_of, surveyed, switched_off, trio, vsphere, with_episode,
};
use crate::maintenance::episode::{HostIdentity, HostRefusal, RefusedMove};
use crate::maintenance::placement::{HostSurvey, RejectedHost, RejectionReason};

fn host_ref(n: usize) -> HostRef {
    HostRef::new(format!("host-{n}"))
}

fn there(n: usize) -> Fact {
    vsphere(vsphere::VsphereUpdate::Host(host(n).into()))
}

fn mark(n: usize) -> HostIdentity {
    HostIdentity {
        moref: Some(host_ref(n)),
        name: format!("esx-{n}").into(),
    }
}

/// Node `n` is awaiting a host since a trigger at `clicked`.
fn awaiting_since(n: usize, clicked: i64) -> Fact {
    seen_of(with_episode(n, Phase::AwaitingHost, |episode| {
        episode.trigger.clicked_at = at(clicked);
    }))
}

fn offered(inventory: &mut Inventory, n: usize) -> Option<HostRef> {
    let offer = snapshot_of(inventory, n).observed.offer;
    offer.fits.map(|(host, _)| host)
}

fn why_not(inventory: &mut Inventory, n: usize) -> Vec<RejectedHost> {
    snapshot_of(inventory, n).observed.offer.refused
}

fn refused(n: usize, why: RejectionReason) -> RejectedHost {
    let host = format!("esx-{n}");
    RejectedHost { host, why }
}

fn empty() -> HostSurvey {
    HostSurvey::Read(HostReading::default())
}

#[test]
fn node_with_the_earliest_trigger_is_offered_the_only_device() {
    let waiting = [awaiting_since(1, 20), awaiting_since(2, 10), there(3)];
    let facts = waiting.into_iter().chain(switched_off(1)).chain(switched_off(2));
    let mut inventory = inventory_with(facts);
    inventory.apply(surveyed(3, empty()));
    assert_eq!(offered(&mut inventory, 2), Some(host_ref(3)));
    assert_eq!(offered(&mut inventory, 1), None);
    assert!(why_not(&mut inventory, 1).contains(&refused(3, RejectionReason::DevicesTaken)));
}

#[test]
fn device_for_a_relocated_vm_stays_reserved() {
    let moves = |phase, moved_to: Option<HostIdentity>| {
        let node = with_episode(1, phase, |episode| episode.moved_to = moved_to);
        let facts = [seen_of(node), awaiting(2), there(3)].into_iter();
        let mut inventory = inventory_with(facts.chain(switched_off(1)).chain(switched_off(2)));
        inventory.apply(surveyed(3, empty()));
        inventory
    };
    let powering_on = Phase::PoweringOn { by_drs: false };
    let relocating = || Phase::Relocating { to: mark(3) };
    for (phase, moved_to) in [
        (relocating(), None),
        (powering_on.clone(), Some(mark(3))),
        (Phase::Rejoining, Some(mark(3))),
    ] {
        let mut inventory = moves(phase.clone(), moved_to);
        assert_eq!(offered(&mut inventory, 2), None, "{phase:?}");
        let why = why_not(&mut inventory, 2);
        assert!(
            why.contains(&refused(3, RejectionReason::DevicesTaken)),
            "{phase:?}: {why:?}"
        );
    }
    for (phase, moved_to) in [(powering_on, None), (Phase::Rejoining, Some(mark(4)))] {
        let mut inventory = moves(phase.clone(), moved_to);
        assert_eq!(
            offered(&mut inventory, 2),
            Some(host_ref(3)),
            "{phase:?}: node 1 takes nothing there"
        );
    }
    // Once a survey shows the VM there, its device is not counted twice.
    let mut inventory = moves(relocating(), None);
    let two = vsphere::Host {
        passthrough: Some([pci("0000:01:00.0", A40), pci("0000:02:00.0", A40)].into()),
        ..host(3)
    };
    inventory.apply(vsphere(vsphere::VsphereUpdate::Host(two.into())));
    let hold = Claim {
        vm: VmRef::new("vm-1"),
        device: ClaimedDevice::AnyOf(of_model(A40)),
    };
    inventory.apply(surveyed(3, HostSurvey::Read(vec![hold].into())));
    assert_eq!(offered(&mut inventory, 2), Some(host_ref(3)));
}

#[test]
fn record_that_is_not_believed_reserves_no_host_without_a_copy() {
    type Change = fn(&mut Episode);
    let changes: [(&str, bool, Change); 3] = [
        ("another Node", false, |episode| {
            episode.node_uid = crate::ids::NodeUid::new("uid-9");
        }),
        ("another release", false, |episode| {
            episode.release = "other/other".into();
        }),
        ("a paused node", true, |_| {}),
    ];
    for phase in [Phase::AwaitingHost, Phase::Relocating { to: mark(3) }] {
        for (of, is_paused, change) in changes {
            let record = |change: Change| {
                let mut node = with_episode(1, phase.clone(), |episode| {
                    episode.trigger.clicked_at = at(-100);
                    change(episode);
                });
                node.annotations.skip = is_paused.then(|| "true".to_owned());
                node
            };
            let with = |facts: Vec<Fact>| {
                let all = facts.into_iter().chain([awaiting(2), there(3)]);
                let mut inventory = inventory_with(all.chain(switched_off(1)).chain(switched_off(2)));
                inventory.apply(surveyed(3, empty()));
                offered(&mut inventory, 2)
            };
            let forged = || seen_of(record(change));
            assert_eq!(with(vec![forged()]), Some(host_ref(3)), "{phase:?} of {of}");
            // No kubelet can write a copy, and a person may have paused the node.
            if is_paused {
                assert_eq!(
                    with(vec![forged(), copied(record(change))]),
                    None,
                    "{phase:?} of {of}"
                );
            }
        }
    }
}

/// Node 1 is awaiting a host, with an episode changed by `change`; host 3 has a device.
fn waits(change: impl FnOnce(&mut Episode)) -> Vec<Fact> {
    let node = with_episode(1, Phase::AwaitingHost, change);
    let facts = [seen_of(node), there(3)].into_iter();
    facts.chain(switched_off(1)).collect()
}

fn refusal(n: usize) -> HostRefusal {
    HostRefusal {
        host: host_ref(n),
        what: RefusedMove::PowerOn,
        message: "no power".to_owned(),
    }
}

#[test]
fn a_host_that_refused_the_vm_is_not_offered_again_in_its_episode() {
    let mut inventory = inventory_with(waits(|episode| episode.refusals.push(refusal(3))));
    for reading in ["the first", "the second"] {
        inventory.apply(surveyed(3, empty()));
        assert_eq!(offered(&mut inventory, 1), None, "{reading}");
        let message = RejectionReason::RefusedByVcenter("no power".to_owned());
        assert_eq!(why_not(&mut inventory, 1), [refused(3, message)], "{reading}");
    }
    let mut inventory = inventory_with(waits(|_| {}));
    inventory.apply(surveyed(3, empty()));
    assert_eq!(
        offered(&mut inventory, 1),
        Some(host_ref(3)),
        "in another episode"
    );
}

#[test]
fn the_vms_own_host_is_offered_although_it_refused_the_vm() {
    let mut facts = waits(|episode| {
        episode.host = mark(3);
        episode.refusals.push(refusal(3));
    });
    facts.push(there(4));
    let mut inventory = inventory_with(facts);
    inventory.apply(surveyed(3, empty()));
    inventory.apply(surveyed(4, empty()));
    assert_eq!(offered(&mut inventory, 1), Some(host_ref(3)));
}

#[test]
fn node_with_strategy_wait_or_32_refusals_is_offered_its_own_host_only() {
    let waits = || {
        let mut node = with_episode(1, Phase::AwaitingHost, |_| {});
        node.annotations.strategy = Some("wait".to_owned());
        node
    };
    let refused_by = |count: usize| {
        with_episode(1, Phase::AwaitingHost, |episode| {
            let hosts = 10..10 + count;
            episode.refusals = hosts.map(refusal).collect();
        })
    };
    let offer = |node: NodeFacts| {
        let mut inventory = inventory_with([there(3), seen_of(node)].into_iter().chain(switched_off(1)));
        inventory.apply(surveyed(3, empty()));
        offered(&mut inventory, 1)
    };
    assert_eq!(offer(waits()), None);
    assert_eq!(offer(refused_by(MAX_REFUSALS - 1)), Some(host_ref(3)));
    assert_eq!(offer(refused_by(MAX_REFUSALS)), None);
}

#[test]
fn a_host_that_cannot_be_read_is_not_offered_and_says_why() {
    let mut inventory = inventory_with(waits(|_| {}));
    inventory.apply(surveyed(3, empty()));
    assert_eq!(offered(&mut inventory, 1), Some(host_ref(3)));
    let why = "the devices of VM secret cannot be read: no permission";
    inventory.apply(surveyed(3, HostSurvey::Unreadable(why.to_owned())));
    let offer = snapshot_of(&mut inventory, 1).observed.offer;
    assert_eq!(offer.fits, None);
    assert_eq!(
        offer.refused,
        [refused(3, RejectionReason::Unreadable(why.to_owned()))]
    );
    assert_eq!(
        offer.survey,
        [host_ref(3)],
        "it may be readable in the next survey"
    );
    inventory.apply(surveyed(3, empty()));
    assert_eq!(offered(&mut inventory, 1), Some(host_ref(3)));
}

#[test]
fn a_survey_does_not_count_over_a_new_set_of_vcenter() {
    let mut inventory = inventory_with(waits(|_| {}));
    inventory.apply(surveyed(3, empty()));
    assert_eq!(offered(&mut inventory, 1), Some(host_ref(3)));
    apply_all(&mut inventory, waits(|_| {}));
    assert_eq!(offered(&mut inventory, 1), None);
    assert_eq!(
        snapshot_of(&mut inventory, 1).observed.offer.survey,
        [host_ref(3)]
    );
}

#[test]
fn two_nodes_that_a_rule_keeps_apart_are_offered_different_hosts() {
    let rule = AntiAffinityRule {
        name: "spread".into(),
        vms: [VmRef::new("vm-1"), VmRef::new("vm-2")].into(),
    };
    let compute = vsphere::Compute {
        moref: ComputeRef::new("c"),
        name: None,
        drs: None,
        rules: Arc::new(ClusterRules {
            anti_affinity: vec![rule],
            ..ClusterRules::default()
        }),
    };
    let roomy = vsphere::Host {
        passthrough: Some([pci("0000:01:00.0", A40), pci("0000:02:00.0", A40)].into()),
        ..host(3)
    };
    let vsphere_facts = [
        vsphere::VsphereUpdate::Compute(compute),
        vsphere::VsphereUpdate::Host(roomy.into()),
    ];
    let waiting = [awaiting_since(1, 10), awaiting_since(2, 20)].into_iter();
    let facts = waiting.chain(vsphere_facts.map(vsphere));
    let mut inventory = inventory_with(facts.chain(switched_off(1)).chain(switched_off(2)));
    inventory.apply(surveyed(3, empty()));
    assert_eq!(offered(&mut inventory, 1), Some(host_ref(3)));
    assert_eq!(offered(&mut inventory, 2), None);
    let apart = RejectionReason::AntiAffinity("spread".into());
    assert!(why_not(&mut inventory, 2).contains(&refused(3, apart)));
}

#[test]
fn memory_counts_for_a_vm_with_a_passthrough_device_only() {
    let full = HostReading {
        unreserved_mib: Some(1_024),
        ..HostReading::default()
    };
    let mut inventory = inventory_with(waits(|_| {}));
    inventory.apply(surveyed(3, HostSurvey::Read(full)));
    let memory = RejectionReason::Memory { mib: 65_536 };
    assert_eq!(why_not(&mut inventory, 1), [refused(3, memory)]);
    let plain = Vm {
        passthrough: Some(Vec::new()),
        power: Some(vsphere::PowerState::Off),
        ..vm_facts(1)
    };
    inventory.apply(vsphere(vsphere::VsphereUpdate::Vm(plain)));
    assert_eq!(offered(&mut inventory, 1), Some(host_ref(3)));
}

#[test]
fn memory_of_a_vm_that_moves_to_a_host_is_reserved_there() {
    let moving = with_episode(1, Phase::Relocating { to: mark(3) }, |_| {});
    let roomy = vsphere::Host {
        passthrough: Some([pci("0000:01:00.0", A40), pci("0000:02:00.0", A40)].into()),
        ..host(3)
    };
    let roomy = vsphere(vsphere::VsphereUpdate::Host(roomy.into()));
    let facts = [seen_of(moving), awaiting(2), roomy].into_iter();
    let mut inventory = inventory_with(facts.chain(switched_off(1)).chain(switched_off(2)));
    let reading = |unreserved_mib, running: &[&str]| {
        HostSurvey::Read(HostReading {
            unreserved_mib: Some(unreserved_mib),
            running: running.iter().map(|vm| VmRef::new(*vm)).collect(),
            ..HostReading::default()
        })
    };
    inventory.apply(surveyed(3, reading(100_000, &[])));
    assert_eq!(offered(&mut inventory, 2), None);
    inventory.apply(surveyed(3, reading(200_000, &[])));
    assert_eq!(offered(&mut inventory, 2), Some(host_ref(3)));
    inventory.apply(surveyed(3, reading(100_000, &["vm-1"])));
    assert_eq!(
        offered(&mut inventory, 2),
        Some(host_ref(3)),
        "the survey already counts a VM that runs"
    );
}

#[test]
fn relocation_keeps_its_reservation_while_its_vm_is_looked_up() {
    let node = with_episode(1, Phase::Relocating { to: mark(3) }, |episode| {
        episode.vm = Some(VmRef::new("vm-1"));
    });
    // The UUID of node 1 has not been looked up yet.
    let facts = [seen_of(node), awaiting(2), there(3)].into_iter();
    let unanswered = switched_off(1).into_iter().take(2);
    let mut inventory = inventory_with(facts.chain(unanswered).chain(switched_off(2)));
    inventory.apply(surveyed(3, empty()));
    assert_eq!(offered(&mut inventory, 2), None);
}

#[test]
fn only_a_relocation_of_a_vm_that_is_on_is_offered_a_host_beforehand() {
    let offer = |phase: Phase, action: RequestAction| {
        let request = maintenance(
            "by-hand".to_owned(),
            name(1),
            10,
            NodeMaintenanceRole::Request(asked(action)),
        );
        let node = seen_of(with_episode(1, phase, |_| {}));
        let mut inventory = inventory_with(trio(1).into_iter().chain([node, request, there(3)]));
        inventory.apply(surveyed(3, empty()));
        offered(&mut inventory, 1)
    };
    use RequestAction::Reboot;
    let relocate = || RequestAction::Relocate { to: None };
    assert_eq!(offer(Phase::Draining, relocate()), Some(host_ref(3)));
    assert_eq!(offer(Phase::Draining, Reboot), None);
    assert_eq!(offer(Phase::Rejoining, relocate()), None);
}

#[test]
fn where_a_vm_can_go_is_known_while_its_node_is_drained() {
    let forecast = |phase: Phase, strategy: Option<&str>, facts: Vec<Fact>| {
        let mut draining = with_episode(1, phase, |_| {});
        draining.annotations.strategy = strategy.map(str::to_owned);
        let leaves = vsphere(vsphere::VsphereUpdate::Host(entering(1, 5).into()));
        let mut inventory = inventory_with(trio(1).into_iter().chain([seen_of(draining), leaves]));
        facts.into_iter().for_each(|fact| inventory.apply(fact));
        let told = snapshot_of(&mut inventory, 1).observed.forecast;
        told.map(|forecast| forecast.to_string())
    };
    let of = |phase, strategy, facts| forecast(phase, strategy, facts).unwrap_or_default();
    assert_eq!(
        of(Phase::Draining, None, vec![there(3)]),
        "its VM can move to esx-3, if a device is free there"
    );
    assert_eq!(
        of(Phase::Queued, None, vec![there(3), there(4)]),
        "its VM can move to one of esx-3, esx-4, if a device is free there"
    );
    assert_eq!(
        of(Phase::Draining, None, vec![there(3), surveyed(3, empty())]),
        "its VM can move to esx-3"
    );
    assert_eq!(
        of(Phase::Draining, None, vec![]),
        "no other host can take its VM, which will wait for esx-1"
    );
    assert_eq!(
        of(Phase::Draining, Some("wait"), vec![there(3)]),
        "no other host can take its VM, which will wait for esx-1"
    );
    let unfit = vsphere::Host {
        passthrough: Some([].into()),
        ..host(3)
    };
    let unfit = vsphere(vsphere::VsphereUpdate::Host(unfit.into()));
    assert_eq!(
        of(Phase::Draining, None, vec![unfit]),
        "no other host can take its VM, which will wait for esx-1; elsewhere: esx-3 has no matching passthrough device"
    );
    // Once it is off, the wait says so.
    assert_eq!(forecast(Phase::AwaitingHost, None, vec![there(3)]), None);
    assert_eq!(forecast(Phase::Rejoining, None, vec![there(3)]), None);
}

#[test]
fn host_that_left_maintenance_within_a_day_is_offered_first() {
    const DAY: i64 = 24 * 3600;
    for (later, chosen) in [(60, 4), (DAY + 19, 4), (DAY + 20, 3)] {
        let facts = [awaiting(1), there(3)].into_iter().chain(switched_off(1));
        let mut inventory = inventory_with(facts);
        let in_maintenance = |is_in| {
            let host = vsphere::Host {
                in_maintenance: Some(is_in),
                ..host(4)
            };
            vsphere(vsphere::VsphereUpdate::Host(host.into()))
        };
        inventory.set_time(moment(10));
        inventory.apply(in_maintenance(true));
        inventory.set_time(moment(20));
        inventory.apply(in_maintenance(false));
        inventory.apply(surveyed(3, empty()));
        inventory.apply(surveyed(4, empty()));
        inventory.set_time(moment(later));
        assert_eq!(offered(&mut inventory, 1), Some(host_ref(chosen)), "{later}");
    }
}

/// Node 1 in `phase`, whose VM is off and on no host. Its own host is in maintenance.
fn on_no_host(phase: Phase) -> Inventory {
    let node = seen_of(with_episode(1, phase, |episode| episode.host = mark(1)));
    let vm = vsphere::Vm {
        power: Some(vsphere::PowerState::Off),
        host: None,
        ..vm_facts(1)
    };
    let vm = vsphere(vsphere::VsphereUpdate::Vm(vm));
    let mut inventory = inventory_with(switched_off(1).into_iter().chain([vm, node, there(3)]));
    inventory.apply(surveyed(3, empty()));
    inventory
}

#[test]
fn vm_on_no_host_is_offered_a_host_in_the_cluster_of_its_own_one() {
    let mut inventory = on_no_host(Phase::AwaitingHost);
    assert_eq!(offered(&mut inventory, 1), Some(host_ref(3)));
    let words = HostState::InMaintenance.words();
    let own = refused(1, RejectionReason::State(words));
    assert_eq!(why_not(&mut inventory, 1), [own]);
    // Its own host is preferred once it is back.
    inventory.apply(there(1));
    inventory.apply(surveyed(1, empty()));
    assert_eq!(offered(&mut inventory, 1), Some(host_ref(1)));
}

#[test]
fn target_of_a_vm_on_no_host_is_known_in_the_cluster_of_its_own_host() {
    let mut inventory = on_no_host(Phase::Relocating { to: mark(3) });
    assert_eq!(
        snapshot_of(&mut inventory, 1).observed.target,
        HostState::InService
    );
}

mod vgpu;

#[test]
fn target_of_a_scheduled_request_does_not_limit_a_host_maintenance() {
    for (not_before, expected) in [(Some(at(1000)), Some(host_ref(3))), (None, None)] {
        let asked = RequestedMaintenance {
            not_before,
            ..asked(RequestAction::Relocate {
                to: Some("esx-9".to_owned()),
            })
        };
        let role = NodeMaintenanceRole::Request(asked);
        let request = maintenance("later".to_owned(), name(1), 10, role);
        let facts = [awaiting_since(1, 20), there(3), request];
        let mut inventory = inventory_with(facts.into_iter().chain(switched_off(1)));
        inventory.apply(surveyed(3, empty()));
        assert_eq!(offered(&mut inventory, 1), expected, "{not_before:?}");
    }
}
