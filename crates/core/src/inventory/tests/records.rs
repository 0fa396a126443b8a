//! Records of Nodes that are followed after their label was removed, and what an ended episode leaves.

use std::sync::Arc;
use std::time::Duration;

use crate::facts::kubernetes::{KubernetesUpdate, NodeAnnotations, NodeFacts, StrandedNode};
use crate::facts::vsphere::{Compute, Host, PowerState, Task, TaskState, Vm, VsphereUpdate};
use crate::fixtures::{
    RELEASE, at, drain_report, found, host, host_ref, inventory_settings, moment, name, node_facts, synced,
    trio, vm_facts, vm_ref,
};
use crate::ids::{ComputeRef, NodeUid, TaskRef};
use crate::inventory::{Fact, Inventory};
use crate::maintenance::clock::{Elapsed, Timer};
use crate::maintenance::effect_report::{EffectReport, EffectResult};
use crate::maintenance::episode::{DrainEnd, HostIdentity, InFlight, Phase};
use crate::maintenance::observed::{BoundVm, HostState, LATE_POWER_OFF_WINDOW, LeadershipEpoch};
use crate::maintenance::record::{EndedEpisode, LastEpisode, read_last, write_last};

use super::{copied, entering, in_episode, with_episode};

pub(super) fn node(node: NodeFacts) -> Fact {
    Fact::Kubernetes(KubernetesUpdate::Node(Box::new(node)))
}

pub(super) fn leading(facts: impl IntoIterator<Item = Fact>) -> Inventory {
    let mut inventory = Inventory::new(inventory_settings(), at(0));
    let begin = [Fact::Leadership(Some(LeadershipEpoch::ALONE))];
    inventory.advance(begin.into_iter().chain(synced(facts)), moment(0));
    inventory
}

#[test]
fn a_new_episode_names_its_cluster_and_vm() {
    let compute = VsphereUpdate::Compute(Compute {
        moref: ComputeRef::new("c"),
        name: Some("train".to_owned()),
        drs: None,
        rules: Default::default(),
    });
    let mut inventory = leading([trio(1), vec![Fact::Vsphere(compute)]].concat());
    let facts = [VsphereUpdate::Host(entering(1, 5).into()), VsphereUpdate::Settled];
    inventory.advance(facts.map(Fact::Vsphere), moment(5));
    let origin = &inventory.snapshots[&name(1)].observed.origin;
    assert_eq!(origin.cluster.as_deref(), Some("train"));
    assert_eq!(origin.vm.as_deref(), Some("gpu-1"));
    assert_eq!(origin.before, None);
}

/// The Node 1 after an episode that ended at `ended_at` (in seconds).
fn after_episode(ended_at: i64, is_in_flight: bool) -> NodeFacts {
    let timer = Timer::start(moment(ended_at));
    let episode = in_episode(1, Phase::Rejoining, RELEASE);
    let Some(episode) = crate::inventory::snapshot::record_of(&episode).episode().cloned() else {
        panic!("an episode is expected");
    };
    let last = LastEpisode {
        ended: None,
        at: at(ended_at),
        episode: EndedEpisode {
            in_flight: InFlight {
                guest_shutdown: is_in_flight.then_some(timer),
                ..InFlight::default()
            },
            ..EndedEpisode::of(&episode)
        },
    };
    let mut ended = node_facts(1);
    ended.annotations.last_episode = Some(write_last(&last));
    ended
}

#[test]
fn a_node_without_label_is_followed_while_a_power_off_may_arrive_late() {
    let window = LATE_POWER_OFF_WINDOW.as_secs();
    // The clock of the process that ended the episode may differ by less than a day from ours. The window is elapsed time.
    for (is_in_flight, ended_at, later, is_followed) in [
        (true, 0, 0, true),
        (true, 0, window - 1, true),
        (true, 0, window, false),
        (true, -86_399, window - 1, true),
        (true, -86_400, 0, false),
        (true, 86_399, window - 1, true),
        (true, 86_399, window, false),
        (true, 86_400, 0, false),
        (false, 0, 0, false),
    ] {
        let mut inventory = leading([scanned(&[1])]);
        let ended = after_episode(ended_at, is_in_flight);
        let fact = Fact::Kubernetes(KubernetesUpdate::Followed(Box::new(ended)));
        let mut changes = inventory.advance([fact], moment(0));
        if later > 0 {
            changes = inventory.advance([], moment(later));
        }
        let followed = changes
            .requested
            .map(|requested| requested.followed.contains(&name(1)));
        assert_eq!(
            followed.unwrap_or(true),
            is_followed,
            "{is_in_flight} {ended_at} {later}"
        );
    }
}

#[test]
fn awaited_power_off_is_recognised_although_clocks_of_vcenter_differ() {
    let window = LATE_POWER_OFF_WINDOW.as_secs();
    for (by_us, is_awaited, later, is_ours) in [
        (true, true, 0, true),
        (true, true, window - 1, true),
        (true, true, window, false),
        (true, false, 0, false),
        (false, true, 0, false),
    ] {
        let mut ended = after_episode(-60, false);
        let last = ended.annotations.last_episode.take().expect("an ended episode");
        let mut last = read_last(&last).expect("a readable one");
        last.episode.in_flight.power_off = is_awaited.then(|| Timer::start(moment(-70)));
        ended.annotations.last_episode = Some(write_last(&last));
        let off = VsphereUpdate::Vm(Vm {
            power: Some(PowerState::Off),
            ..vm_facts(1)
        });
        // vCenter's clock is two hours behind.
        let task = VsphereUpdate::Task(Task {
            moref: TaskRef::new("task-9"),
            vm: Some(vm_ref(1)),
            description_id: "VirtualMachine.powerOff".to_owned(),
            state: TaskState::Success,
            queued_at: at(-7200),
            by_us,
        });
        let facts = [off, task].map(Fact::Vsphere).into_iter().chain([node(ended)]);
        let mut inventory = leading(trio(1).into_iter().chain(facts));
        inventory.advance([], moment(later));
        let found = inventory.snapshots[&name(1)].observed.late_power_off_of.is_some();
        assert_eq!(found, is_ours, "{by_us} {is_awaited} {later}");
    }
}

#[test]
fn a_followed_node_is_known_again_after_a_restore_of_etcd() {
    let of = in_episode(1, Phase::AwaitingHost, RELEASE);
    let with_version = |resource_version| NodeFacts {
        resource_version,
        ..of.clone()
    };
    let update = |update| [Fact::Kubernetes(update)];
    let version = |inventory: &Inventory| {
        let node = inventory.snapshots[&name(1)].observed.node.as_ref();
        node.map(|node| node.resource_version)
    };
    let mut inventory = leading([scanned(&[1])]);
    let listed = KubernetesUpdate::FollowedListed(Box::new(with_version(100)));
    inventory.advance(update(listed), moment(1));
    let older = KubernetesUpdate::Followed(Box::new(with_version(40)));
    inventory.advance(update(older), moment(2));
    assert_eq!(version(&inventory), Some(100), "an older state of the same watch");
    let restored = KubernetesUpdate::FollowedListed(Box::new(with_version(40)));
    inventory.advance(update(restored), moment(3));
    assert_eq!(version(&inventory), Some(40));
}

#[test]
fn record_cannot_send_a_vm_to_a_host_of_another_cluster() {
    for (cluster, target) in [
        (Some("c"), HostState::InService),
        (Some("another"), HostState::Unknown),
        (None, HostState::Unknown),
    ] {
        let to = HostIdentity {
            moref: Some(host_ref(2)),
            name: "esx-2".into(),
        };
        let relocating = node(in_episode(1, Phase::Relocating { to }, RELEASE));
        let host = VsphereUpdate::Host(Arc::new(Host {
            compute: cluster.map(ComputeRef::new),
            ..host(2)
        }));
        let off = VsphereUpdate::Vm(Vm {
            power: Some(PowerState::Off),
            ..vm_facts(1)
        });
        let facts = [host, off].map(Fact::Vsphere).into_iter().chain([relocating]);
        let inventory = leading(trio(1).into_iter().chain(facts));
        assert_eq!(
            inventory.snapshots[&name(1)].observed.target,
            target,
            "{cluster:?}"
        );
    }
}

#[test]
fn asked_guest_is_remembered_for_fifteen_minutes_of_elapsed_time() {
    let window = LATE_POWER_OFF_WINDOW.as_secs();
    for (later, is_remembered) in [(0, true), (window - 1, true), (window, false)] {
        let mut inventory = leading([trio(1), vec![node(after_episode(-60, true))]].concat());
        inventory.advance([], moment(later));
        let seen = inventory.snapshots[&name(1)]
            .observed
            .node
            .as_ref()
            .expect("a Node");
        assert_eq!(seen.asked_guest, is_remembered.then_some(at(-60)), "{later}");
    }
}

fn scanned(names: &[usize]) -> Fact {
    let stranded = names.iter().map(|n| StrandedNode {
        name: name(*n),
        uid: NodeUid::new(format!("uid-{n}")),
        is_selected: false,
    });
    Fact::Kubernetes(KubernetesUpdate::Scanned {
        stranded: stranded.collect(),
    })
}

#[test]
fn a_node_that_does_not_exist_is_not_looked_for_again_and_others_are() {
    let mut inventory = leading([scanned(&[1, 2])]);
    let absent = Fact::Kubernetes(KubernetesUpdate::FollowedAbsent { name: name(1) });
    let requested = inventory.advance([absent, scanned(&[1, 2])], moment(1)).requested;
    assert_eq!(
        requested.expect("requested data").followed,
        [name(1), name(2)].into()
    );
    let absent = Fact::Kubernetes(KubernetesUpdate::FollowedAbsent { name: name(1) });
    let requested = inventory.advance([absent], moment(1)).requested;
    assert_eq!(requested.expect("requested data").followed, [name(2)].into());
}

#[test]
fn a_followed_node_stays_when_the_watch_of_selected_nodes_loses_it() {
    let of = in_episode(1, Phase::AwaitingHost, RELEASE);
    let mut inventory = leading([scanned(&[1])]);
    let followed = Fact::Kubernetes(KubernetesUpdate::Followed(Box::new(of.clone())));
    inventory.advance([followed], moment(1));
    let gone = |uid: &str| {
        Fact::Kubernetes(KubernetesUpdate::NodeGone {
            name: name(1),
            uid: NodeUid::new(uid),
        })
    };
    inventory.advance([gone("uid-1")], moment(2));
    assert!(inventory.snapshots[&name(1)].observed.node.is_some());
    // Selected again, it is the watch of selected Nodes that counts, for the Node of its UID.
    inventory.advance([node(of)], moment(3));
    inventory.advance([gone("uid-of-an-earlier-one")], moment(4));
    assert!(inventory.snapshots[&name(1)].observed.node.is_some());
    inventory.advance([gone("uid-1")], moment(5));
    assert!(inventory.snapshots[&name(1)].observed.node.is_none());
}

#[test]
fn a_phase_is_as_old_as_its_first_record_and_a_record_as_its_last_write() {
    let mut inventory = leading(trio(1));
    let with_elapsed = |version: u64, seconds: u64| {
        let of = with_episode(1, Phase::AwaitingHost, |episode| {
            episode.release = RELEASE.into();
            episode.elapsed = Elapsed::of(Duration::from_secs(seconds));
        });
        node(NodeFacts {
            resource_version: version,
            ..of
        })
    };
    inventory.advance([with_elapsed(11, 0)], moment(10));
    inventory.advance([with_elapsed(12, 0)], moment(20));
    let seen = inventory.snapshots[&name(1)].observed.record_seen;
    assert_eq!((seen.at, seen.phase_at), (moment(10), moment(10).monotonic));
    assert!(seen.from_the_start);
    inventory.advance([with_elapsed(13, 30)], moment(40));
    let seen = inventory.snapshots[&name(1)].observed.record_seen;
    assert_eq!((seen.at, seen.phase_at), (moment(40), moment(10).monotonic));
    assert!(seen.from_the_start, "a checkpoint does not begin a phase");
}

#[test]
fn power_is_cut_only_on_an_answer_from_after_the_drain() {
    let shutting_down = || node(in_episode(1, Phase::ShuttingDown(DrainEnd::Complete), RELEASE));
    let mut inventory = leading([trio(1), vec![shutting_down()]].concat());
    let vm = |inventory: &Inventory| inventory.snapshots[&name(1)].observed.vm.clone();
    assert_eq!(vm(&inventory), BoundVm::NotLookedUp, "the answer is from before");
    let answer = [found(1, &[1]), Fact::Vsphere(VsphereUpdate::Settled)];
    inventory.advance(answer, moment(1));
    assert!(vm(&inventory).found().is_some());
}

#[test]
fn a_running_power_off_is_seen_on_its_vm_alone() {
    let power_off = |of: usize, state: TaskState| {
        let task = Task {
            moref: TaskRef::new("task-9"),
            vm: Some(vm_ref(of)),
            description_id: "VirtualMachine.powerOff".to_owned(),
            state,
            queued_at: at(0),
            by_us: true,
        };
        Fact::Vsphere(VsphereUpdate::Task(task))
    };
    for (of, state, is_being_cut) in [
        (1, TaskState::Queued, true),
        (1, TaskState::Running, true),
        (1, TaskState::Success, false),
        (2, TaskState::Running, false),
    ] {
        let inventory = leading([trio(1), trio(2), vec![power_off(of, state.clone())]].concat());
        let vm = inventory.snapshots[&name(1)].observed.vm.found().cloned();
        assert_eq!(vm.map(|vm| vm.is_being_cut), Some(is_being_cut), "{of} {state:?}");
    }
    // A task that was left queued, as vCenter lists some for years.
    let Fact::Vsphere(VsphereUpdate::Task(task)) = power_off(1, TaskState::Queued) else {
        panic!("no task");
    };
    for (hours, is_being_cut) in [(23, true), (25, false), (24 * 365 * 12, false)] {
        let task = Task {
            queued_at: at(-3600 * hours),
            ..task.clone()
        };
        let left = vec![Fact::Vsphere(VsphereUpdate::Task(task))];
        let inventory = leading([trio(1), left].concat());
        let vm = inventory.snapshots[&name(1)].observed.vm.found().cloned();
        assert_eq!(vm.map(|vm| vm.is_being_cut), Some(is_being_cut), "{hours} h");
    }
}

#[test]
fn the_last_episode_of_a_followed_node_is_no_episode_of_our_host() {
    // Another release's vCenter gives its hosts the same morefs.
    let ended = |n: usize| {
        let of = in_episode(n, Phase::Rejoining, RELEASE);
        let record = crate::inventory::snapshot::record_of(&of);
        let mut episode = record.episode().cloned().expect("an episode");
        episode.host.moref = Some(host_ref(1));
        let last = LastEpisode {
            ended: None,
            at: at(-10),
            episode: EndedEpisode::of(&episode),
        };
        let mut node = node_facts(n);
        node.annotations.last_episode = Some(write_last(&last));
        (node, episode.traceparent)
    };
    let (ours, traceparent) = ended(1);
    let (theirs, _) = ended(2);
    for (fact, before) in [
        (node(ours), Some(&*traceparent)),
        (
            Fact::Kubernetes(KubernetesUpdate::Followed(Box::new(theirs))),
            None,
        ),
    ] {
        let mut inventory = leading([trio(1), vec![scanned(&[2]), fact]].concat());
        let leaves = [VsphereUpdate::Host(entering(1, 5).into()), VsphereUpdate::Settled];
        inventory.advance(leaves.map(Fact::Vsphere), moment(5));
        let origin = &inventory.snapshots[&name(1)].observed.origin;
        assert_eq!(origin.before.as_deref(), before);
    }
}

#[test]
fn only_a_followed_node_of_that_uid_is_lost() {
    let of = in_episode(1, Phase::AwaitingHost, RELEASE);
    let gone = |uid: &str| {
        Fact::Kubernetes(KubernetesUpdate::FollowedGone {
            name: name(1),
            uid: NodeUid::new(uid),
        })
    };
    let has_node = |inventory: &Inventory| inventory.snapshots[&name(1)].observed.node.is_some();
    // A selected Node is not lost by the watch of a followed one that is stopping.
    let mut selected = leading([trio(1), vec![node(of.clone())]].concat());
    selected.advance([gone("uid-1")], moment(1));
    assert!(has_node(&selected));
    let mut followed = leading([scanned(&[1])]);
    followed.advance(
        [Fact::Kubernetes(KubernetesUpdate::Followed(Box::new(of)))],
        moment(1),
    );
    followed.advance([gone("uid-of-an-earlier-one")], moment(2));
    assert!(has_node(&followed));
    followed.advance([gone("uid-1")], moment(3));
    assert!(!has_node(&followed));
}

#[test]
fn only_an_episode_of_ours_outlives_its_node() {
    for (release, stays) in [(RELEASE, true), ("other/other", false)] {
        let mut inventory =
            leading([trio(1), vec![node(in_episode(1, Phase::AwaitingHost, release))]].concat());
        let gone = KubernetesUpdate::NodeGone {
            name: name(1),
            uid: NodeUid::new("uid-1"),
        };
        inventory.advance([Fact::Kubernetes(gone)], moment(1));
        assert_eq!(inventory.snapshots.contains_key(&name(1)), stays, "{release}");
    }
}

#[test]
fn node_with_a_lower_version_counts_after_a_conflict_with_the_known_one() {
    let with_version = |resource_version| NodeFacts {
        resource_version,
        ..node_facts(1)
    };
    let known = |inventory: &Inventory| inventory.nodes.node(&name(1)).unwrap().resource_version;
    for (conflicted, read, expected) in [
        // A restore of etcd set the versions back.
        (20, 7, 7),
        (20, 25, 25),
        // The watch has shown a newer one since.
        (19, 18, 20),
        (19, 21, 21),
    ] {
        let mut inventory = leading(trio(1).into_iter().chain([node(with_version(20))]));
        inventory.apply(Fact::Kubernetes(KubernetesUpdate::ReadAgain {
            node: Box::new(with_version(read)),
            conflicted,
        }));
        assert_eq!(
            known(&inventory),
            expected,
            "conflict with {conflicted}, read {read}"
        );
        // Replies to writes are older than the watch only.
        let answered = KubernetesUpdate::Answered(Box::new(with_version(1)));
        inventory.apply(Fact::Kubernetes(answered));
        assert_eq!(known(&inventory), expected);
    }
}

#[test]
fn drain_goes_on_where_only_the_copy_of_its_record_is_left() {
    for phase in [Phase::Draining, Phase::Drained] {
        let recorded = NodeFacts {
            unschedulable: true,
            ..with_episode(1, phase.clone(), |episode| episode.powered_off = false)
        };
        let round = EffectReport {
            node: name(1),
            found: EffectResult::Drain(drain_report(moment(5).monotonic, Vec::new())),
        };
        let facts = [
            copied(recorded.clone()),
            node(recorded.clone()),
            Fact::Effect(round),
        ];
        let mut inventory = leading(trio(1).into_iter().chain(facts));
        for resource_version in [20, 21] {
            let stripped = NodeFacts {
                annotations: NodeAnnotations::default(),
                resource_version,
                ..recorded.clone()
            };
            inventory.advance([node(stripped)], moment(10));
            let snapshot = &inventory.snapshots[&name(1)];
            assert_eq!(snapshot.record.phase(), Some(&phase));
            assert!(
                snapshot.observed.drain.is_some(),
                "{phase:?}: its pods that came back would be evicted again"
            );
        }
    }
}

#[test]
fn time_for_which_a_node_is_paused_does_not_count_as_its_drain() {
    let draining = |version: u64, skip: Option<&str>| {
        let mut of = in_episode(1, Phase::Draining, RELEASE);
        of.annotations.skip = skip.map(str::to_owned);
        node(NodeFacts {
            resource_version: version,
            ..of
        })
    };
    let mut inventory = leading(trio(1));
    let mut seen_at = |facts: Vec<Fact>, second: i64| {
        inventory.advance(facts, moment(second));
        inventory.snapshots[&name(1)].observed.record_seen.at
    };
    assert_eq!(seen_at(vec![draining(11, None)], 10), moment(10));
    seen_at(vec![draining(12, Some("true"))], 110);
    seen_at(vec![], 1_000);
    let resumed = seen_at(vec![draining(13, None)], 3_710);
    assert_eq!(resumed, moment(3_610), "a hundred seconds have elapsed");
    assert_eq!(seen_at(vec![], 4_000), moment(3_610));
}

#[test]
fn time_without_a_connection_does_not_count_as_a_drain() {
    let why = || "cut".to_owned();
    let cuts = [
        Fact::Vsphere(VsphereUpdate::Lost { why: why() }),
        Fact::Kubernetes(KubernetesUpdate::Lost { why: why() }),
    ];
    // What the guest was asked takes effect also while nothing is seen.
    let phases = [
        (Phase::Draining, 3_610),
        (Phase::ShuttingDown(DrainEnd::Complete), 10),
    ];
    for (cut, (phase, expected)) in cuts
        .into_iter()
        .flat_map(|cut| phases.clone().map(|it| (cut.clone(), it)))
    {
        let of = node(in_episode(1, phase.clone(), RELEASE));
        let mut inventory = leading(trio(1));
        let mut seen_at = |facts: Vec<Fact>, second: i64| {
            inventory.advance(facts, moment(second));
            inventory.snapshots[&name(1)].observed.record_seen.at
        };
        assert_eq!(seen_at(vec![of.clone()], 10), moment(10));
        seen_at(vec![cut.clone()], 110);
        let facts = trio(1).into_iter().chain([of]);
        let again = seen_at(synced(facts).collect(), 3_710);
        assert_eq!(again, moment(expected), "{cut:?} in {phase:?}");
    }
}
