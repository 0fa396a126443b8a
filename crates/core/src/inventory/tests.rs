use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::*;
use crate::facts::fault::{Fault, FaultKind};
use crate::facts::kubernetes::{self, NodeAnnotations, NodeFacts, ReadyCondition};
use crate::facts::vsphere::{Claim, ClaimedDevice, HostReading};
use crate::facts::vsphere::{
    ClusterRules, Compute, DetectionSignal, DeviceRequirement, EndOutcome, EnteringMaintenance, Host,
    HostConnection, MaintenanceEnd, Passthrough, PciDevice, PowerState, Task, TaskState, Vm, VmKey,
};
use crate::fixtures::{self, RELEASE, drain_report, host_named, record, synced};
pub(super) use crate::fixtures::{
    at, found, host, inventory_settings, moment, name, node_facts as node, trio, uuid, vm_facts as vm,
};
use crate::ids::{ComputeRef, NodeUid, TaskRef};
use crate::maintenance::effect::EffectKind;
use crate::maintenance::effect_report::EffectResult;
use crate::maintenance::episode::{CordonOwner, Detection, DrainEnd, Episode, Phase, Trigger};
use crate::maintenance::observed::{
    Admission, AttemptOutcome, BoundVm, DrainReport, EffectRefusal, HostState, NodeSnapshot, PendingEviction,
    PendingReason, RetryAdvice, SourceState,
};
use crate::maintenance::placement::HostSurvey;
use crate::maintenance::record::{EndedEpisode, write};
use crate::status::HostKind;

mod copies;
mod devices;
mod forecast;
pub(super) mod identity;
mod other_ids;
mod outage;
mod queue;
mod records;
mod wave;

pub(super) fn entering(n: usize, clicked: i64) -> Host {
    let task = TaskRef::new(format!("task-{n}"));
    Host {
        entering: Some(EnteringMaintenance {
            task,
            queued_at: at(clicked),
            user: None,
            signal: DetectionSignal::Push,
        }),
        ..host(n)
    }
}

pub(super) fn vsphere(update: vsphere::VsphereUpdate) -> Fact {
    Fact::Vsphere(update)
}

/// An inventory with `facts` as the complete set of both sources.
pub(super) fn inventory_with(facts: impl IntoIterator<Item = Fact>) -> Inventory {
    inventory_under(inventory_settings(), facts)
}

pub(super) fn inventory_under(
    settings: InventorySettings,
    facts: impl IntoIterator<Item = Fact>,
) -> Inventory {
    let mut inventory = Inventory::new(settings, at(0));
    inventory.set_time(moment(0));
    apply_all(&mut inventory, facts);
    inventory
}

pub(super) fn apply_all(inventory: &mut Inventory, facts: impl IntoIterator<Item = Fact>) {
    synced(facts).for_each(|fact| inventory.apply(fact));
}

impl Inventory {
    /// Builds the snapshots of all nodes.
    pub(crate) fn all_snapshots(&mut self) -> BTreeMap<NodeName, NodeSnapshot> {
        let built = self.build_snapshots().into_iter();
        built
            .map(|(name, snapshot)| (name, Arc::unwrap_or_clone(snapshot)))
            .collect()
    }
}

pub(super) fn snapshot_of(inventory: &mut Inventory, n: usize) -> NodeSnapshot {
    inventory.all_snapshots().remove(&name(n)).unwrap()
}

pub(super) fn tried(n: usize, kind: EffectKind, when: i64, outcome: AttemptOutcome) -> Fact {
    let found = EffectResult::Tried {
        kind,
        at: moment(when),
        host: None,
        outcome,
    };
    Fact::Effect(EffectReport { node: name(n), found })
}

fn task(state: TaskState) -> Fact {
    let moref = TaskRef::new("task-9");
    let description_id = "VirtualMachine.powerOn".to_owned();
    vsphere(vsphere::VsphereUpdate::Task(Task {
        moref,
        vm: None,
        description_id,
        state,
        queued_at: at(0),
        by_us: true,
    }))
}

fn fault() -> Fault {
    Fault {
        kind: FaultKind::InsufficientResources,
        message: "no device".to_owned(),
    }
}

/// The Node of this number in an episode that is awaiting a host.
pub(super) fn awaiting(n: usize) -> Fact {
    in_phase(n, Phase::AwaitingHost)
}

pub(super) fn in_phase(n: usize, phase: Phase) -> Fact {
    Fact::Kubernetes(kubernetes::KubernetesUpdate::Node(Box::new(in_episode(
        n,
        phase,
        "haulout/haulout",
    ))))
}

/// A Node with an episode of `release`.
pub(super) fn in_episode(n: usize, phase: Phase, release: &str) -> NodeFacts {
    with_episode(n, phase, |episode| episode.release = release.into())
}

/// A Node with an episode, changed by `change`.
pub(super) fn with_episode(n: usize, phase: Phase, change: impl FnOnce(&mut Episode)) -> NodeFacts {
    let trigger = Trigger {
        task: None,
        clicked_at: at(i64::try_from(n).unwrap()),
        detection: None,
        ..fixtures::trigger()
    };
    let uid = NodeUid::new(format!("uid-{n}"));
    let host = host_named(&format!("esx-{n}"));
    let mut episode = Episode {
        vm_uuid: Some(uuid(n)),
        cordon: CordonOwner::Ours,
        powered_off: true,
        release: RELEASE.into(),
        ..Episode::new(uid, trigger, host, phase, at(0))
    };
    change(&mut episode);
    let written = write(&record(episode), at(0));
    let annotations = NodeAnnotations {
        episode: written.episode,
        ..NodeAnnotations::default()
    };
    NodeFacts {
        annotations,
        unschedulable: true,
        ..node(n)
    }
}

/// The NodeMaintenance object that keeps a copy of the episode on `of`.
pub(super) fn copied(of: NodeFacts) -> Fact {
    let role = kubernetes::NodeMaintenanceRole::Episode {
        record: of.annotations.episode,
    };
    maintenance(format!("copy-of-{}", of.name), of.name, 0, role)
}

/// The NodeMaintenance object of this name, created at second `made`.
pub(super) fn maintenance(
    name: String,
    node: NodeName,
    made: i64,
    role: kubernetes::NodeMaintenanceRole,
) -> Fact {
    let seen = kubernetes::NodeMaintenanceFacts {
        uid: crate::ids::RequestUid::new(format!("uid-of-{name}")),
        name,
        resource_version: 1,
        generation: 1,
        created_at: at(made),
        node,
        role,
        is_over: false,
        status: Box::default(),
    };
    let seen = kubernetes::NodeMaintenanceUpdate::Seen(Box::new(seen));
    Fact::Kubernetes(kubernetes::KubernetesUpdate::Maintenances(seen))
}

/// The report of a survey of the host of this number.
pub(super) fn surveyed(n: usize, reading: HostSurvey) -> Fact {
    let found = EffectResult::Surveyed {
        host: HostRef::new(format!("host-{n}")),
        reading,
    };
    Fact::Effect(EffectReport { node: name(1), found })
}

/// VM, powered off, and host of this number, in maintenance.
pub(super) fn switched_off(n: usize) -> [Fact; 3] {
    let host = Host {
        in_maintenance: Some(true),
        ..host(n)
    };
    let vm = Vm {
        power: Some(PowerState::Off),
        ..vm(n)
    };
    [
        vsphere(vsphere::VsphereUpdate::Host(host.into())),
        vsphere(vsphere::VsphereUpdate::Vm(vm)),
        found(n, &[n]),
    ]
}

/// The spec of a request with this action.
pub(super) fn asked(action: kubernetes::RequestAction) -> kubernetes::RequestedMaintenance {
    kubernetes::RequestedMaintenance {
        requested_by: None,
        reason: String::new(),
        action,
        drain_timeout: None,
        hold_on_drain_timeout: None,
        guest_shutdown_timeout: None,
        not_before: None,
        window: None,
    }
}

#[test]
fn fact_that_is_no_change_changes_no_snapshot() {
    let of = |update| vsphere(update);
    let host_is = |n: usize, change: fn(&mut Host)| {
        let mut host = host(n);
        change(&mut host);
        of(vsphere::VsphereUpdate::Host(host.into()))
    };
    let node_is = |n: usize, change: fn(&mut NodeFacts)| {
        let mut node = node(n);
        node.resource_version = 20;
        change(&mut node);
        Fact::Kubernetes(kubernetes::KubernetesUpdate::Node(Box::new(node)))
    };
    let finds = |n: usize, found| Fact::Effect(EffectReport { node: name(n), found });
    let copies = |n: usize, uid: &str, is_over| {
        let Fact::Kubernetes(kubernetes::KubernetesUpdate::Node(node)) = in_phase(n, Phase::Draining) else {
            panic!("no Node");
        };
        let seen = kubernetes::NodeMaintenanceFacts {
            name: format!("copy-{n}"),
            uid: crate::ids::RequestUid::new(uid),
            resource_version: 1,
            generation: 1,
            created_at: at(0),
            node: name(n),
            role: kubernetes::NodeMaintenanceRole::Episode {
                record: node.annotations.episode,
            },
            is_over,
            status: Box::default(),
        };
        let seen = kubernetes::NodeMaintenanceUpdate::Seen(Box::new(seen));
        Fact::Kubernetes(kubernetes::KubernetesUpdate::Maintenances(seen))
    };
    let round = drain_report(moment(5).monotonic, Vec::new());
    let facts = [
        of(vsphere::VsphereUpdate::Host(entering(1, 5).into())),
        of(vsphere::VsphereUpdate::Host(entering(2, 4).into())),
        of(vsphere::VsphereUpdate::Host(host(1).into())),
        host_is(1, |host| host.in_maintenance = Some(true)),
        host_is(1, |host| {
            host.last_end = Some(MaintenanceEnd {
                task: TaskRef::new("task-1"),
                outcome: EndOutcome::Failed {
                    message: String::new(),
                },
            });
        }),
        host_is(2, |host| host.in_quarantine = Some(true)),
        host_is(2, |host| host.name = Some("renamed".to_owned())),
        host_is(2, |host| host.compute = Some(ComputeRef::new("other"))),
        host_is(4, |host| host.connection = Some(HostConnection::NotResponding)),
        host_is(1, |host| host.connection = Some(HostConnection::NotResponding)),
        host_is(1, |host| host.connection = Some(HostConnection::Connected)),
        host_is(1, |host| host.last_exit = Some(TaskRef::new("task-exit"))),
        host_is(4, |host| host.passthrough = Some(Arc::new([]))),
        of(vsphere::VsphereUpdate::HostGone(HostRef::new("host-4"))),
        of(vsphere::VsphereUpdate::Vm(Vm {
            host: Some(HostRef::new("host-4")),
            ..vm(1)
        })),
        of(vsphere::VsphereUpdate::Vm(Vm {
            power: Some(PowerState::Off),
            ..vm(1)
        })),
        found(1, &[1]),
        found(1, &[1, 2]),
        of(vsphere::VsphereUpdate::Vm(Vm {
            template: true,
            ..vm(2)
        })),
        of(vsphere::VsphereUpdate::Lost {
            why: "gone".to_owned(),
        }),
        of(vsphere::VsphereUpdate::Settled),
        node_is(1, |node| node.ready.heartbeat = Some(at(9))),
        node_is(1, |node| node.unschedulable = true),
        node_is(2, |node| node.provider_uuid = Some(uuid(1))),
        in_phase(1, Phase::Queued),
        in_phase(1, Phase::Draining),
        in_phase(1, Phase::ShuttingDown(DrainEnd::Complete)),
        awaiting(1),
        awaiting(2),
        Fact::Kubernetes(kubernetes::KubernetesUpdate::NodeGone {
            name: name(1),
            uid: NodeUid::new("uid-1"),
        }),
        Fact::Kubernetes(kubernetes::KubernetesUpdate::PodsChanged(name(1))),
        finds(
            1,
            EffectResult::Surveyed {
                host: HostRef::new("host-4"),
                reading: HostSurvey::Read(HostReading::default()),
            },
        ),
        tried(1, EffectKind::PowerOn, 3, AttemptOutcome::Asked),
        tried(
            2,
            EffectKind::PowerOn,
            3,
            AttemptOutcome::Running(TaskRef::new("task-9")),
        ),
        tried(2, EffectKind::DrainRound, 4, AttemptOutcome::Asked),
        finds(1, EffectResult::Drain(round)),
        copies(1, "uid-a", false),
        copies(1, "uid-a", true),
        copies(2, "uid-b", false),
        task(TaskState::Error(fault())),
        of(vsphere::VsphereUpdate::TaskGone(TaskRef::new("task-9"))),
        switching(TaskState::Running, "VirtualMachine.powerOff", 3, true),
    ];
    let idle = || {
        let fourth = of(vsphere::VsphereUpdate::Host(host(4).into()));
        let trios = [1, 2, 3].into_iter().flat_map(trio);
        trios.chain([fourth]).collect::<Vec<Fact>>()
    };
    let underway = || {
        let cut = in_phase(1, Phase::ShuttingDown(DrainEnd::Complete));
        idle()
            .into_iter()
            .chain([cut, awaiting(2)])
            .collect::<Vec<Fact>>()
    };
    // While a node is idle, no decision depends on what each heartbeat of its kubelet changes, and on what was done before.
    let compared = |inventory: &mut Inventory| {
        let mut snapshots = inventory.all_snapshots();
        for snapshot in snapshots.values_mut().filter(|it| it.is_idle()) {
            if let Some(node) = &mut snapshot.observed.node {
                node.resource_version = 0;
            }
            snapshot.observed.attempts.clear();
            snapshot.observed.drain = None;
        }
        (
            snapshots,
            inventory.update_watch_set(),
            inventory.nodes_with_watched_pods(),
        )
    };
    let (mut changes, mut repeated) = (0, 0);
    for begun in [idle(), underway()] {
        for first in &facts {
            for second in facts.iter().chain([first]) {
                let mut inventory = inventory_with(begun.clone());
                inventory.apply(first.clone());
                inventory.update_watch_set();
                let before = compared(&mut inventory);
                inventory.apply(second.clone());
                if inventory.is_changed {
                    changes += 1;
                } else {
                    repeated += 1;
                    assert!(compared(&mut inventory) == before, "{first:?}, then {second:?}");
                }
            }
        }
    }
    println!("{changes} changes, {repeated} facts that change nothing");
    assert!(repeated > facts.len(), "{repeated}");
}

#[test]
fn source_is_not_synced_while_its_set_is_incomplete() {
    let mut inventory = inventory_with(trio(1));
    assert_eq!(
        snapshot_of(&mut inventory, 1).observed.sources,
        SourceState::Synced
    );
    inventory.apply(vsphere(vsphere::VsphereUpdate::Reset));
    assert!(matches!(
        snapshot_of(&mut inventory, 1).observed.sources,
        SourceState::NoVcenter { .. }
    ));
    inventory.apply(vsphere(vsphere::VsphereUpdate::Settled));
    // No object was reported again, so the VM is unknown.
    assert_eq!(
        snapshot_of(&mut inventory, 1).observed.sources,
        SourceState::Synced
    );
    assert_eq!(snapshot_of(&mut inventory, 1).observed.vm, BoundVm::NotLookedUp);
}

#[test]
fn a_host_that_is_gone_or_unreadable_is_unknown() {
    let host_of = |inventory: &mut Inventory| {
        let seen = snapshot_of(inventory, 1).observed;
        seen.vm.found().unwrap().host.clone()
    };
    let mut inventory = inventory_with(trio(1));
    assert_eq!(host_of(&mut inventory), HostState::InService);
    for (change, state) in [
        (
            Host {
                in_maintenance: None,
                ..host(1)
            },
            HostState::Unknown,
        ),
        (
            Host {
                connection: None,
                ..host(1)
            },
            HostState::Unknown,
        ),
        (
            Host {
                connection: Some(HostConnection::NotResponding),
                in_maintenance: Some(true),
                ..host(1)
            },
            HostState::Unreachable,
        ),
        (
            Host {
                in_quarantine: Some(true),
                ..host(1)
            },
            HostState::Quarantined,
        ),
        (
            Host {
                in_maintenance: Some(true),
                ..entering(1, 5)
            },
            HostState::InMaintenance,
        ),
    ] {
        inventory.apply(vsphere(vsphere::VsphereUpdate::Host(change.into())));
        assert_eq!(host_of(&mut inventory), state);
    }
    inventory.apply(vsphere(vsphere::VsphereUpdate::HostGone(HostRef::new("host-1"))));
    assert_eq!(host_of(&mut inventory), HostState::Unknown);
}

#[test]
fn a_node_is_bound_by_uuid_to_exactly_one_vm_that_can_run() {
    let vm_seen = |facts: Vec<Fact>| {
        snapshot_of(&mut inventory_with(trio(1).into_iter().chain(facts)), 1)
            .observed
            .vm
    };
    assert!(matches!(vm_seen(vec![]), BoundVm::Found(_)));
    assert_eq!(
        vm_seen(vec![found(1, &[])]),
        BoundVm::Missing { was_known: false }
    );
    let clone = vsphere(vsphere::VsphereUpdate::Vm(vm(2)));
    assert!(matches!(vm_seen(vec![clone, found(1, &[1, 2])]), BoundVm::Ambiguous(vms) if vms.len() == 2));
    let template = vsphere(vsphere::VsphereUpdate::Vm(Vm {
        template: true,
        ..vm(2)
    }));
    assert!(matches!(
        vm_seen(vec![template, found(1, &[1, 2])]),
        BoundVm::Found(_)
    ));
    let namesake = NodeFacts {
        provider_uuid: Some(uuid(1)),
        system_uuid: None,
        ..node(2)
    };
    let namesake = Fact::Kubernetes(kubernetes::KubernetesUpdate::Node(Box::new(namesake)));
    let mut both = inventory_with(trio(1).into_iter().chain([namesake]));
    assert!(matches!(snapshot_of(&mut both, 1).observed.vm, BoundVm::Found(_)));
    assert_eq!(
        snapshot_of(&mut both, 2).observed.vm,
        BoundVm::Shared(vec![name(1)])
    );
}

/// A Node of this number that reports the UUID of another Node's VM.
fn claims(n: usize, of: usize, provider_id: bool) -> NodeFacts {
    NodeFacts {
        provider_uuid: provider_id.then(|| uuid(of)),
        system_uuid: Some(uuid(of)),
        ..node(n)
    }
}

pub(super) fn seen_of(node: NodeFacts) -> Fact {
    Fact::Kubernetes(kubernetes::KubernetesUpdate::Node(Box::new(node)))
}

#[test]
fn a_node_keeps_its_vm_when_another_one_claims_it_later() {
    let mut inventory = inventory_with(trio(2));
    snapshot_of(&mut inventory, 2);
    // The new Node would be preferred by name, age and provider ID.
    let older = NodeFacts {
        created_at: at(-1000),
        ..claims(1, 2, true)
    };
    inventory.apply(seen_of(older));
    assert!(matches!(
        snapshot_of(&mut inventory, 2).observed.vm,
        BoundVm::Found(_)
    ));
    assert_eq!(
        snapshot_of(&mut inventory, 1).observed.vm,
        BoundVm::Shared(vec![name(2)])
    );
    // Also while the owner is gone from the kube-apiserver in the middle of an episode.
    let mut inventory = inventory_with(trio(2).into_iter().chain([in_phase(2, Phase::AwaitingHost)]));
    snapshot_of(&mut inventory, 2);
    inventory.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::NodeGone {
        name: name(2),
        uid: NodeUid::new("uid-2"),
    }));
    inventory.apply(seen_of(claims(1, 2, true)));
    assert_eq!(
        snapshot_of(&mut inventory, 1).observed.vm,
        BoundVm::HeldByDeadNode {
            node: name(2),
            is_deleted: true
        }
    );
    assert!(matches!(
        snapshot_of(&mut inventory, 2).observed.vm,
        BoundVm::Found(_)
    ));
}

#[test]
fn of_two_nodes_at_the_start_the_one_with_a_provider_id_gets_the_vm() {
    let vm_of_one = |n, provider_id, created| NodeFacts {
        created_at: at(created),
        ..claims(n, 9, provider_id)
    };
    let facts = |a: NodeFacts, b: NodeFacts| {
        let mut inventory = inventory_with([
            vsphere(vsphere::VsphereUpdate::Host(host(9).into())),
            vsphere(vsphere::VsphereUpdate::Vm(vm(9))),
            found(9, &[9]),
            seen_of(a),
            seen_of(b),
        ]);
        [2, 3].map(|n| snapshot_of(&mut inventory, n).observed.vm.found().is_some())
    };
    assert_eq!(
        facts(vm_of_one(2, false, 0), vm_of_one(3, true, 9)),
        [false, true]
    );
    assert_eq!(
        facts(vm_of_one(2, false, 9), vm_of_one(3, false, 0)),
        [false, true],
        "the older"
    );
    assert_eq!(
        facts(vm_of_one(2, true, 5), vm_of_one(3, true, 5)),
        [true, false],
        "by name"
    );
}

#[test]
fn node_that_keeps_changing_its_uuids_keeps_the_earlier_ones() {
    let mut inventory = inventory_with(trio(1));
    let asked = |inventory: &mut Inventory| BTreeSet::clone(&inventory.update_watch_set().vms);
    let report_uuid = |inventory: &mut Inventory, seconds: i64, n: usize, version: u64| {
        inventory.set_time(moment(seconds));
        inventory.apply(seen_of(NodeFacts {
            resource_version: version,
            ..claims(1, n, true)
        }));
        inventory.update_watch_set();
        inventory.all_snapshots();
    };
    report_uuid(&mut inventory, 100, 7, 11);
    assert_eq!(asked(&mut inventory), BTreeSet::from([VmKey::Uuid(uuid(7))]));
    for n in 8_u8..40 {
        report_uuid(&mut inventory, 101, n.into(), u64::from(n) + 11);
    }
    assert_eq!(asked(&mut inventory), BTreeSet::from([VmKey::Uuid(uuid(7))]));
    report_uuid(&mut inventory, 110, 40, 60);
    assert_eq!(asked(&mut inventory), BTreeSet::from([VmKey::Uuid(uuid(40))]));
    let kept = (7..40_usize).filter(|n| inventory.lookups.answer(&VmKey::Uuid(uuid(*n))).is_some());
    assert_eq!(kept.count(), 0, "results of unused keys are kept");
}

/// The VM of this number, as a template.
fn template(n: usize) -> Fact {
    vsphere(vsphere::VsphereUpdate::Vm(Vm {
        template: true,
        ..vm(n)
    }))
}

#[test]
fn template_with_the_uuid_of_a_vm_does_not_hide_changes_of_its_host() {
    let mut inventory = inventory_with(trio(1).into_iter().chain([template(2), found(1, &[1, 2])]));
    inventory.all_snapshots();
    inventory.apply(vsphere(vsphere::VsphereUpdate::Host(entering(1, 5).into())));
    assert!(inventory.is_changed);
    let snapshot = inventory.build_snapshots().remove(&name(1)).unwrap();
    let BoundVm::Found(vm) = &snapshot.observed.vm else {
        panic!("{:?}", snapshot.observed.vm);
    };
    assert!(vm.host.is_leaving(), "{:?}", vm.host);
}

#[test]
fn vm_of_two_nodes_is_shared_also_if_one_of_them_matches_a_template() {
    let another = NodeFacts {
        provider_uuid: Some(uuid(2)),
        system_uuid: None,
        ..node(3)
    };
    let another = Fact::Kubernetes(kubernetes::KubernetesUpdate::Node(Box::new(another)));
    let answers = [template(2), found(1, &[1, 2]), found(2, &[1])];
    let mut inventory = inventory_with(trio(1).into_iter().chain([another]).chain(answers));
    let seen = |inventory: &mut Inventory, n| snapshot_of(inventory, n).observed.vm;
    assert!(matches!(seen(&mut inventory, 1), BoundVm::Found(_)));
    assert_eq!(seen(&mut inventory, 3), BoundVm::Shared(vec![name(1)]));
}

#[test]
fn fact_about_one_node_keeps_the_urgent_lookups_of_others() {
    let cut = |n| in_phase(n, Phase::ShuttingDown(DrainEnd::Complete));
    let mut inventory = inventory_with(trio(1).into_iter().chain(trio(2)).chain([cut(1), cut(2)]));
    let urgent = inventory.update_watch_set().urgent;
    assert_eq!(urgent.len(), 2, "{urgent:?}");
    inventory.apply(found(1, &[1]));
    inventory.build_snapshots();
    inventory.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::PodsChanged(name(
        2,
    ))));
    assert_eq!(inventory.update_watch_set().urgent, urgent);
    inventory.build_snapshots();
    let BoundVm::Found(_) = snapshot_of(&mut inventory, 1).observed.vm else {
        panic!("the lookup is current, so the power can be cut");
    };
}

#[test]
fn the_name_counts_only_where_it_is_configured() {
    let keys = |inventory: &mut Inventory| BTreeSet::clone(&inventory.update_watch_set().vms);
    let by_uuid = BTreeSet::from([VmKey::Uuid(uuid(1))]);
    let by_name = BTreeSet::from([VmKey::Name("gpu-1".to_owned())]);
    assert_eq!(
        keys(&mut inventory_with(trio(1))),
        by_uuid,
        "both byte orders need one lookup"
    );
    let nameless = NodeFacts {
        provider_uuid: None,
        system_uuid: None,
        ..node(1)
    };
    let mut nameless = inventory_with([seen_of(nameless)]);
    assert_eq!(keys(&mut nameless), BTreeSet::new());
    assert_eq!(snapshot_of(&mut nameless, 1).observed.vm, BoundVm::NoUuid);
    let mut configured = Inventory::new(
        InventorySettings {
            binding: NodeBinding::Name,
            require_approval: false,
            node_maintenances: false,
            ..inventory_settings()
        },
        at(0),
    );
    apply_all(&mut configured, trio(1));
    assert_eq!(keys(&mut configured), by_name);
}

#[test]
fn an_older_view_of_a_node_does_not_undo_a_younger_one() {
    let mut inventory = inventory_with(trio(1));
    let version = |n| {
        Fact::Kubernetes(kubernetes::KubernetesUpdate::Node(Box::new(NodeFacts {
            resource_version: n,
            ..node(1)
        })))
    };
    inventory.apply(version(12));
    inventory.apply(version(11));
    assert_eq!(
        snapshot_of(&mut inventory, 1)
            .observed
            .node
            .unwrap()
            .resource_version,
        12
    );
}

#[test]
fn the_end_of_a_task_reaches_the_attempt_that_waits_for_it_in_either_order() {
    let running = || {
        tried(
            1,
            EffectKind::PowerOn,
            5,
            AttemptOutcome::Running(TaskRef::new("task-9")),
        )
    };
    let failed = || task(TaskState::Error(fault()));
    for facts in [vec![running(), failed()], vec![failed(), running()]] {
        let mut inventory = inventory_with(trio(1).into_iter().chain([awaiting(1)]));
        facts.into_iter().for_each(|fact| inventory.apply(fact));
        let attempt = snapshot_of(&mut inventory, 1)
            .observed
            .attempts
            .remove(&EffectKind::PowerOn)
            .unwrap();
        let refusal = EffectRefusal {
            advice: RetryAdvice::MayPass,
            message: "no device".to_owned(),
        };
        assert_eq!(
            (attempt.outcome, attempt.refusals),
            (AttemptOutcome::Refused(refusal), 1)
        );
    }
}

#[test]
fn a_task_that_vcenter_forgot_is_awaited_no_more() {
    let mut inventory = inventory_with(trio(1).into_iter().chain([awaiting(1)]));
    inventory.apply(tried(
        1,
        EffectKind::PowerOn,
        5,
        AttemptOutcome::Running(TaskRef::new("task-9")),
    ));
    assert_eq!(
        inventory.update_watch_set().tasks,
        BTreeSet::from([TaskRef::new("task-9")])
    );
    // The episode has to stay, because attempts are also removed with their episode.
    let still_there = trio(1).into_iter().skip(1).chain([awaiting(1)]);
    apply_all(&mut inventory, still_there);
    assert_eq!(inventory.update_watch_set().tasks, BTreeSet::new());
    assert!(snapshot_of(&mut inventory, 1).observed.attempts.is_empty());
}

#[test]
fn between_episodes_nothing_of_an_earlier_one_counts() {
    let mut inventory = inventory_with(trio(1).into_iter().chain([awaiting(1)]));
    inventory.apply(tried(1, EffectKind::PowerOn, 5, AttemptOutcome::Done));
    let ended = NodeFacts {
        resource_version: 20,
        ..node(1)
    };
    inventory.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::Node(Box::new(
        ended,
    ))));
    assert!(snapshot_of(&mut inventory, 1).observed.attempts.is_empty());
}

#[test]
fn two_nodes_are_never_offered_the_same_device() {
    // Hosts 1 and 2 are in maintenance; host 3 has one device free.
    let off = |n| {
        vsphere(vsphere::VsphereUpdate::Vm(Vm {
            power: Some(PowerState::Off),
            ..vm(n)
        }))
    };
    let away = |n| {
        vsphere(vsphere::VsphereUpdate::Host(Arc::new(Host {
            in_maintenance: Some(true),
            ..host(n)
        })))
    };
    let third = vsphere(vsphere::VsphereUpdate::Host(host(3).into()));
    let facts = [
        awaiting(1),
        awaiting(2),
        off(1),
        off(2),
        away(1),
        away(2),
        third,
        found(1, &[1]),
        found(2, &[2]),
    ];
    let mut inventory = inventory_with(facts);
    assert_eq!(
        snapshot_of(&mut inventory, 1).observed.offer.survey,
        [HostRef::new("host-3")]
    );
    let holds = EffectResult::Surveyed {
        host: HostRef::new("host-3"),
        reading: HostSurvey::Read(HostReading::default()),
    };
    inventory.apply(Fact::Effect(EffectReport {
        node: name(1),
        found: holds,
    }));
    let fits = |inventory: &mut Inventory, n| snapshot_of(inventory, n).observed.offer.fits.is_some();
    assert_eq!(
        (fits(&mut inventory, 1), fits(&mut inventory, 2)),
        (true, false),
        "first come, first served"
    );
    assert_eq!(
        (fits(&mut inventory, 1), fits(&mut inventory, 2)),
        (true, false),
        "and it stays so"
    );
}

#[test]
fn state_of_a_host_without_our_vms_is_shown_also_while_all_nodes_are_idle() {
    let of = |host: Host| vsphere(vsphere::VsphereUpdate::Host(host.into()));
    let mut inventory = inventory_with(trio(1).into_iter().chain([of(host(2))]));
    inventory.build_snapshots();
    let away = Host {
        in_maintenance: Some(true),
        ..host(2)
    };
    let lost = Host {
        connection: Some(HostConnection::NotResponding),
        ..host(2)
    };
    for (next, state) in [
        (entering(2, 5), HostKind::EnteringMaintenance),
        (away, HostKind::InMaintenance),
        (host(2), HostKind::InService),
        (lost, HostKind::Unreachable),
    ] {
        inventory.apply(of(next));
        assert!(inventory.is_changed, "{state}: it has to be passed on");
        inventory.build_snapshots();
        let (_, shown) = &inventory.hosts_of_ours()[&HostRef::new("host-2")];
        assert_eq!(shown.kind(), state);
    }
}

#[test]
fn repeated_report_of_vcenter_is_no_change() {
    let of = |host: Host| vsphere(vsphere::VsphereUpdate::Host(host.into()));
    let there = || inventory_with(trio(1).into_iter().chain([of(host(2))]));
    let disconnected = || {
        let mut inventory = there();
        inventory.apply(vsphere(vsphere::VsphereUpdate::Lost { why: "gone".into() }));
        inventory
    };
    let settled = || vsphere(vsphere::VsphereUpdate::Settled);
    for (what, mut inventory, fact, is_change) in [
        ("our host", there(), of(entering(1, 5)), true),
        ("a foreign host", there(), of(entering(2, 5)), true),
        ("an unchanged host", there(), of(host(2)), false),
        ("the end of a set", there(), settled(), false),
        ("vCenter is connected again", disconnected(), settled(), true),
    ] {
        inventory.all_snapshots();
        assert!(!inventory.is_changed, "{what}: the snapshots were just built");
        inventory.apply(fact);
        assert_eq!(inventory.is_changed, is_change, "{what}");
    }
}

#[test]
fn budget_that_allows_an_eviction_concerns_only_the_drains_it_blocks() {
    use crate::facts::kubernetes::BudgetState;
    let held_by = |n: usize, pods: &[(&str, &[&str])]| {
        let left = pods.iter().map(|(name, budgets)| PendingEviction {
            name: (*name).to_owned(),
            why: PendingReason::Budget {
                names: budgets.iter().map(|name| (*name).to_owned()).collect(),
                message: String::new(),
            },
        });
        let found = EffectResult::Drain(DrainReport {
            listed: 3,
            ..drain_report(moment(5).monotonic, left.collect())
        });
        Fact::Effect(EffectReport { node: name(n), found })
    };
    let budget = |namespace: &str, name: &str| kubernetes::Budget {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let budget_fact = |budget: &kubernetes::Budget, state| {
        Fact::Kubernetes(kubernetes::KubernetesUpdate::Budget {
            budget: budget.clone(),
            state,
        })
    };
    let mut inventory = inventory_with(trio(1).into_iter().chain(trio(2)).chain(trio(3)));
    inventory.apply(held_by(1, &[("shop/a", &["web"])]));
    inventory.apply(held_by(2, &[("shop/b", &["web"]), ("ml/c", &["train"])]));
    // The refusal names no budget, or no valid name.
    inventory.apply(held_by(3, &[("ml/d", &[]), ("ml/e", &["a,metadata.name=b"])]));
    let (web, train) = (budget("shop", "web"), budget("ml", "train"));
    assert_eq!(
        inventory.blocking_budgets(),
        BTreeSet::from([web.clone(), train.clone()])
    );
    // For each node, the pause before the next eviction in milliseconds, and the revision of its pods.
    let state = |inventory: &mut Inventory| {
        [1, 2, 3].map(|n| {
            let seen = snapshot_of(inventory, n).observed;
            let report = seen.drain.unwrap();
            let due = |pod| report.retry_at(pod, Duration::from_secs(5));
            let first = report.left.iter().filter_map(due).min().unwrap();
            (first.since(report.listed_at).as_millis(), seen.pods_revision)
        })
    };
    assert_eq!(state(&mut inventory), [(50, 0), (50, 0), (50, 0)]);
    inventory.apply(budget_fact(&web, BudgetState::Blocks));
    assert_eq!(state(&mut inventory), [(5000, 0), (50, 0), (50, 0)]);
    // Neither a budget of the same namespace nor one of the same name is that budget.
    for pod in [("shop/a", &["other"][..]), ("zoo/a", &["web"])] {
        inventory.apply(held_by(3, &[pod]));
        assert_eq!(state(&mut inventory)[2], (50, 0), "{pod:?}");
    }
    inventory.apply(held_by(3, &[("ml/d", &[]), ("ml/e", &["a,metadata.name=b"])]));
    inventory.apply(budget_fact(&train, BudgetState::Blocks));
    assert_eq!(state(&mut inventory), [(5000, 0), (5000, 0), (50, 0)]);
    inventory.apply(budget_fact(&train, BudgetState::Allows));
    assert_eq!(state(&mut inventory), [(5000, 0), (50, 1), (50, 0)]);
    inventory.apply(budget_fact(&web, BudgetState::Allows));
    assert_eq!(state(&mut inventory), [(50, 1), (50, 2), (50, 0)]);
    inventory.apply(budget_fact(&web, BudgetState::Blocks));
    inventory.apply(held_by(1, &[("shop/a", &["web"])]));
    assert_eq!(
        state(&mut inventory),
        [(5000, 1), (50, 2), (50, 0)],
        "its watch is still open"
    );
    inventory.apply(budget_fact(&web, BudgetState::Unknown));
    assert_eq!(state(&mut inventory), [(50, 1), (50, 2), (50, 0)]);
    // A budget that blocks many pods does not keep another one from being watched.
    let many: Vec<String> = (0..100).map(|n| format!("shop/{n:03}")).collect();
    let mut many: Vec<(&str, &[&str])> = many.iter().map(|name| (name.as_str(), &["web"][..])).collect();
    many.push(("zoo/z", &["late"]));
    inventory.apply(held_by(1, &many));
    assert!(inventory.blocking_budgets().contains(&budget("zoo", "late")));
    inventory.apply(held_by(1, &[("shop/a", &["web"])]));
    // A budget that blocks no drain is not watched.
    inventory.apply(held_by(2, &[]));
    assert_eq!(inventory.blocking_budgets(), BTreeSet::from([web]));
}

#[test]
fn heartbeat_concerns_active_nodes_only() {
    let alive = || NodeFacts {
        resource_version: 11,
        ready: ReadyCondition {
            is_true: true,
            is_unknown: false,
            heartbeat: Some(at(9)),
            since: None,
        },
        ..node(1)
    };
    let seen = |node: NodeFacts| Fact::Kubernetes(kubernetes::KubernetesUpdate::Node(Box::new(node)));
    let leaving = || {
        inventory_with(
            trio(1)
                .into_iter()
                .chain([vsphere(vsphere::VsphereUpdate::Host(entering(1, 5).into()))]),
        )
    };
    let cordoned = || NodeFacts {
        unschedulable: true,
        ..alive()
    };
    let not_ready = || NodeFacts {
        ready: ReadyCondition {
            is_true: false,
            is_unknown: false,
            heartbeat: Some(at(9)),
            since: None,
        },
        ..alive()
    };
    let another = || NodeFacts {
        uid: NodeUid::new("another"),
        ..alive()
    };
    for (what, mut inventory, fact, is_change) in [
        ("idle", inventory_with(trio(1)), seen(alive()), false),
        (
            "idle and cordoned",
            inventory_with(trio(1)),
            seen(cordoned()),
            true,
        ),
        (
            "idle and not Ready",
            inventory_with(trio(1)),
            seen(not_ready()),
            true,
        ),
        (
            "idle, another Node of this name",
            inventory_with(trio(1)),
            seen(another()),
            true,
        ),
        ("its host is leaving", leaving(), seen(alive()), true),
    ] {
        inventory.all_snapshots();
        inventory.apply(fact);
        assert_eq!(inventory.is_changed, is_change, "{what}");
        // The next snapshot has the latest version of the Node.
        inventory.apply(vsphere(vsphere::VsphereUpdate::Host(entering(1, 7).into())));
        assert!(inventory.is_changed, "{what}");
        let version = snapshot_of(&mut inventory, 1)
            .observed
            .node
            .map(|node| node.resource_version);
        assert_eq!(version, Some(11), "{what}");
    }
}

#[test]
fn node_with_its_vm_on_reserves_no_host() {
    // A request relocates node 1. The VM of node 2 is off, and its own host is in maintenance. Host 3 has one free device.
    let asked = || {
        let role =
            kubernetes::NodeMaintenanceRole::Request(asked(kubernetes::RequestAction::Relocate { to: None }));
        maintenance("asked".to_owned(), name(1), 0, role)
    };
    let off = vsphere(vsphere::VsphereUpdate::Vm(Vm {
        power: Some(PowerState::Off),
        ..vm(2)
    }));
    let away = vsphere(vsphere::VsphereUpdate::Host(Arc::new(Host {
        in_maintenance: Some(true),
        ..host(2)
    })));
    let read = || {
        Fact::Effect(EffectReport {
            node: name(1),
            found: EffectResult::Surveyed {
                host: HostRef::new("host-3"),
                reading: HostSurvey::Read(HostReading::default()),
            },
        })
    };
    for phase in [Phase::Queued, Phase::Draining] {
        let third = vsphere(vsphere::VsphereUpdate::Host(host(3).into()));
        let looks = trio(1).into_iter().chain([in_phase(1, phase.clone()), third]);
        let mut inventory = inventory_with(looks.chain([asked(), away.clone()]));
        let fits = |inventory: &mut Inventory, n| snapshot_of(inventory, n).observed.offer.fits.is_some();
        assert_eq!(
            snapshot_of(&mut inventory, 1).observed.offer.survey,
            [HostRef::new("host-3")],
            "{phase:?}: it has to be surveyed first"
        );
        inventory.apply(read());
        assert!(fits(&mut inventory, 1), "{phase:?}: no other node needs it");
        for fact in [awaiting(2), off.clone(), found(2, &[2])] {
            inventory.apply(fact);
        }
        assert!(
            fits(&mut inventory, 2),
            "{phase:?}: a VM that is off needs it more"
        );
        assert!(!fits(&mut inventory, 1), "{phase:?}: it is reserved for that one");
    }
    // Without a request to relocate, there is no offer.
    let mut inventory = inventory_with(trio(1).into_iter().chain([in_phase(1, Phase::Draining)]));
    assert_eq!(snapshot_of(&mut inventory, 1).observed.offer, Default::default());
}

#[test]
fn of_two_clicks_in_one_set_the_earlier_is_served() {
    let mut inventory = inventory_with(trio(1).into_iter().chain(trio(2)));
    inventory.apply(vsphere(vsphere::VsphereUpdate::Host(entering(1, 20).into())));
    assert!(inventory.vcenter.is_set_incomplete(), "the set is incomplete");
    inventory.apply(vsphere(vsphere::VsphereUpdate::Host(entering(2, 10).into())));
    inventory.apply(vsphere(vsphere::VsphereUpdate::Settled));
    assert!(!inventory.vcenter.is_set_incomplete());
    assert_eq!(
        snapshot_of(&mut inventory, 2).observed.admission,
        Admission::Granted
    );
    assert!(matches!(
        snapshot_of(&mut inventory, 1).observed.admission,
        Admission::Queued { .. }
    ));
}

#[test]
fn a_share_of_the_nodes_is_rounded_down_and_never_to_none() {
    for (percent, nodes, limit) in [(50, 4, 2), (50, 3, 1), (1, 3, 1), (100, 3, 3)] {
        let mut inventory = Inventory::new(
            InventorySettings {
                unavailable: Limit::Percent(percent),
                ..inventory_settings()
            },
            at(0),
        );
        apply_all(&mut inventory, (1..=nodes).flat_map(trio));
        assert_eq!(
            inventory.limits(None).unavailable,
            Some(limit),
            "{percent}% of {nodes}"
        );
    }
}

#[test]
fn a_node_that_is_deleted_in_mid_episode_is_not_forgotten() {
    let mut inventory = inventory_with(trio(1).into_iter().chain([awaiting(1)]));
    inventory.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::NodeGone {
        name: name(1),
        uid: NodeUid::new("uid-1"),
    }));
    let gone = snapshot_of(&mut inventory, 1);
    assert_eq!(gone.observed.node, None);
    assert!(gone.record.episode().is_some());
    // A Node without an episode leaves nothing behind.
    let mut inventory = inventory_with(trio(2));
    inventory.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::NodeGone {
        name: name(2),
        uid: NodeUid::new("uid-2"),
    }));
    assert!(inventory.all_snapshots().is_empty());
}

#[test]
fn a_standalone_host_has_no_drs() {
    let compute = Compute {
        moref: ComputeRef::new("c"),
        name: Some("c1".to_owned()),
        drs: None,
        rules: Arc::default(),
    };
    let mut inventory = inventory_with(
        trio(1)
            .into_iter()
            .chain([vsphere(vsphere::VsphereUpdate::Compute(compute))]),
    );
    assert!(matches!(snapshot_of(&mut inventory, 1).observed.vm, BoundVm::Found(vm) if !vm.drs));
}

#[test]
fn a_failover_host_and_one_with_another_label_are_not_free() {
    let labelled = |n: usize, label: &str| {
        let device = PciDevice {
            label: Some(label.into()),
            ..fixtures::pci("0000:01:00.0", fixtures::A40)
        };
        let host = Host {
            passthrough: Some([device].into()),
            ..host(n)
        };
        vsphere(vsphere::VsphereUpdate::Host(host.into()))
    };
    let requirement = DeviceRequirement {
        label: Some("pool-a".into()),
        ..fixtures::of_model(fixtures::A40)
    };
    let wants_label = Vm {
        passthrough: Some(vec![Passthrough::Dynamic(requirement)]),
        ..vm(1)
    };
    let failover = ClusterRules {
        failover_hosts: [HostRef::new("host-4")].into(),
        ..ClusterRules::default()
    };
    let cluster = Compute {
        moref: ComputeRef::new("c"),
        name: Some("train".to_owned()),
        drs: None,
        rules: Arc::new(failover),
    };
    let more = [
        vsphere(vsphere::VsphereUpdate::Vm(wants_label)),
        vsphere(vsphere::VsphereUpdate::Compute(cluster)),
        labelled(2, "pool-a"),
        labelled(3, "pool-b"),
        labelled(4, "pool-a"),
    ];
    let inventory = inventory_with(trio(1).into_iter().chain(more));
    assert_eq!(inventory.free_gpu_hosts().get("train"), Some(&1));
}

#[test]
fn a_host_is_free_while_it_is_in_service_and_nobody_is_known_to_hold_its_device() {
    let compute = Compute {
        moref: ComputeRef::new("c"),
        name: Some("train".to_owned()),
        drs: None,
        rules: Arc::default(),
    };
    let cluster = vsphere(vsphere::VsphereUpdate::Compute(compute));
    let empty = |n| vsphere(vsphere::VsphereUpdate::Host(host(n).into()));
    let mut inventory = inventory_with(trio(1).into_iter().chain([cluster, empty(2), empty(3)]));
    let free = |inventory: &Inventory| inventory.free_gpu_hosts().get("train").copied();
    assert_eq!(free(&inventory), Some(2), "its own host holds its VM");

    inventory.apply(Fact::Effect(EffectReport {
        node: name(1),
        found: EffectResult::Surveyed {
            host: HostRef::new("host-2"),
            reading: HostSurvey::Read(
                vec![Claim {
                    vm: VmRef::new("vm-9"),
                    device: ClaimedDevice::Address("0000:01:00.0".to_owned()),
                }]
                .into(),
            ),
        },
    }));
    assert_eq!(free(&inventory), Some(1), "a foreign VM was seen there");
    inventory.apply(vsphere(vsphere::VsphereUpdate::Host(entering(3, 5).into())));
    assert_eq!(
        free(&inventory),
        Some(0),
        "one that is entering maintenance takes no VM"
    );
    inventory.apply(vsphere(vsphere::VsphereUpdate::Lost { why: String::new() }));
    assert!(inventory.free_gpu_hosts().is_empty(), "vCenter is disconnected");
}

/// A task that changed the power of VM 1.
fn switched(description_id: &str, when: i64, by_us: bool) -> Fact {
    switching(TaskState::Success, description_id, when, by_us)
}

/// A task that changes the power of VM 1.
fn switching(state: TaskState, description_id: &str, when: i64, by_us: bool) -> Fact {
    vsphere(vsphere::VsphereUpdate::Task(Task {
        moref: TaskRef::new(format!("task-{when}")),
        vm: Some(VmRef::new("vm-1")),
        description_id: description_id.to_owned(),
        state,
        queued_at: at(when),
        by_us,
    }))
}

#[test]
fn late_power_off_of_ours_is_distinguished_from_others() {
    const END: i64 = 1000;
    let Fact::Kubernetes(kubernetes::KubernetesUpdate::Node(away)) = awaiting(1) else {
        panic!("a Node is expected");
    };
    let Record::Episode(episode) = super::snapshot::record_of(&away) else {
        panic!("an episode is expected");
    };
    let id = episode.id.clone();
    let last = crate::maintenance::record::LastEpisode {
        ended: None,
        at: at(END),
        episode: EndedEpisode {
            since: at(END - 50),
            ..EndedEpisode::of(&episode)
        },
    };
    let last = crate::maintenance::record::write_last(&last);
    let stray = |mark: Option<&String>, power: PowerState, tasks: &[(&str, i64, bool)]| {
        let annotations = NodeAnnotations {
            last_episode: mark.cloned(),
            ..NodeAnnotations::default()
        };
        let mut facts = trio(1);
        facts.push(Fact::Kubernetes(kubernetes::KubernetesUpdate::Node(Box::new(
            NodeFacts {
                annotations,
                ..node(1)
            },
        ))));
        facts.push(vsphere(vsphere::VsphereUpdate::Vm(Vm {
            power: Some(power),
            ..vm(1)
        })));
        facts.extend(
            tasks
                .iter()
                .map(|(what, when, by_us)| switched(what, *when, *by_us)),
        );
        snapshot_of(&mut inventory_with(facts), 1)
            .observed
            .late_power_off_of
    };
    let (off, on) = ("VirtualMachine.powerOff", "VirtualMachine.powerOn");
    let own = [(off, END - 200, true), (on, END - 100, true)];
    let after = |more: &[(&'static str, i64, bool)]| [&own[..], more].concat();
    let is_off = |tasks: &[(&str, i64, bool)]| stray(Some(&last), PowerState::Off, tasks);

    assert_eq!(is_off(&after(&[(off, END + 1, true)])), Some(id.clone()));
    assert_eq!(
        is_off(&after(&[(off, END + 900, true)])),
        Some(id),
        "the last moment"
    );
    assert_eq!(
        is_off(&after(&[(off, END + 901, true)])),
        None,
        "too late to be its"
    );
    assert_eq!(is_off(&after(&[(off, END + 1, false)])), None, "a person's");
    // vCenter's clock is behind ours by more than the duration of the last phase.
    let behind = [
        (off, END - 400, true),
        (on, END - 300, true),
        (off, END - 200, true),
    ];
    assert!(is_off(&behind).is_some(), "later than the episode's own power-on");
    assert_eq!(is_off(&own), None, "its guest shut itself down");
    assert_eq!(is_off(&own[..1]), None, "no task shows who powered it on");
    assert!(
        is_off(&[(off, END - 49, true)]).is_some(),
        "after its last phase began"
    );
    assert_eq!(is_off(&[(off, END - 50, true)]), None, "of an earlier phase");
    let person_since = after(&[(off, END + 1, true), (on, END + 2, false), (off, END + 3, false)]);
    assert_eq!(is_off(&person_since), None, "a person switched it later");
    let late = after(&[(off, END + 1, true)]);
    assert_eq!(stray(None, PowerState::Off, &late), None, "no episode ended");
    assert_eq!(stray(Some(&last), PowerState::On, &late), None, "it is on");
}

#[test]
fn host_that_is_not_reported_again_is_unknown() {
    let mut inventory = inventory_with(trio(1));
    assert_eq!(inventory.hosts_of_ours().len(), 1);
    let but_its_host = |fact: &Fact| !matches!(fact, Fact::Vsphere(vsphere::VsphereUpdate::Host(_)));
    apply_all(&mut inventory, trio(1).into_iter().filter(but_its_host));
    let seen = snapshot_of(&mut inventory, 1).observed;
    assert_eq!(seen.vm.found().unwrap().host, HostState::Unknown);
    assert!(inventory.hosts_of_ours().is_empty());
}

#[test]
fn maintenance_task_older_than_the_leadership_counts_as_at_startup() {
    let mut inventory = inventory_with(trio(1));
    let detection = |inventory: &mut Inventory, clicked| {
        inventory.apply(vsphere(vsphere::VsphereUpdate::Host(entering(1, clicked).into())));
        let seen = snapshot_of(inventory, 1).observed;
        let HostState::Entering { detection, .. } = &seen.vm.found().unwrap().host else {
            panic!("{:?}", seen.vm);
        };
        *detection
    };
    assert_eq!(detection(&mut inventory, 50), Detection::Pushed);
    inventory.set_time(moment(100));
    let lead = LeadershipEpoch {
        epoch: 7,
        acts_from: None,
    };
    inventory.apply_leadership(Some(lead));
    assert_eq!(detection(&mut inventory, 50), Detection::AtStartup);
    assert_eq!(detection(&mut inventory, 100), Detection::Pushed);
    let seen = snapshot_of(&mut inventory, 1).observed;
    assert_eq!((seen.acting_since, seen.leadership), (at(100), lead));
}

#[test]
fn record_older_than_the_leadership_is_not_seen_from_the_start() {
    let mut inventory = inventory_with(trio(1));
    inventory.apply_leadership(Some(LeadershipEpoch::ALONE));
    let from_the_start =
        |inventory: &mut Inventory| snapshot_of(inventory, 1).observed.record_seen.from_the_start;
    assert!(!from_the_start(&mut inventory));
    inventory.apply(in_phase(1, Phase::Draining));
    assert!(
        from_the_start(&mut inventory),
        "this process observed the node before"
    );
    inventory.apply_leadership(Some(LeadershipEpoch::ALONE));
    assert!(!from_the_start(&mut inventory), "another may have led in between");
}

#[test]
fn phase_that_the_previous_leader_began_is_not_seen_from_the_start() {
    let mut inventory = inventory_with(trio(1));
    let lead = LeadershipEpoch {
        epoch: 7,
        acts_from: None,
    };
    inventory.apply_leadership(Some(lead));
    inventory.all_snapshots();
    let mut from_the_start = |version: u64, epoch: u64, phase: Phase| {
        let node = NodeFacts {
            resource_version: version,
            ..with_episode(1, phase, |episode| episode.epoch = epoch)
        };
        inventory.apply(seen_of(node));
        snapshot_of(&mut inventory, 1).observed.record_seen.from_the_start
    };
    let complete = || Phase::ShuttingDown(DrainEnd::Complete);
    assert!(!from_the_start(11, 6, complete()), "the watch was behind");
    assert!(!from_the_start(12, 7, complete()), "this leader took it over");
    assert!(from_the_start(13, 7, Phase::AwaitingHost));
}

/// Node 1, drained since second 5, with a round at second 10 that found no pod.
fn listed_empty() -> Inventory {
    let mut inventory = inventory_with(trio(1));
    inventory.set_time(moment(5));
    inventory.apply(in_phase(1, Phase::Draining));
    inventory.all_snapshots();
    let round = drain_report(moment(10).monotonic, Vec::new());
    inventory.apply(Fact::Effect(EffectReport {
        node: name(1),
        found: EffectResult::Drain(round),
    }));
    assert!(
        snapshot_of(&mut inventory, 1)
            .observed
            .is_drained(Duration::ZERO, moment(0).monotonic)
    );
    inventory
}

#[test]
fn change_of_pods_makes_the_proof_of_a_drain_outdated() {
    let mut inventory = listed_empty();
    inventory.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::PodsChanged(name(
        2,
    ))));
    assert!(
        snapshot_of(&mut inventory, 1)
            .observed
            .is_drained(Duration::ZERO, moment(0).monotonic),
        "another's"
    );
    inventory.apply(Fact::Kubernetes(kubernetes::KubernetesUpdate::PodsChanged(name(
        1,
    ))));
    assert!(inventory.is_changed);
    let seen = snapshot_of(&mut inventory, 1).observed;
    assert_eq!(seen.pods_revision, 1);
    assert!(!seen.is_drained(Duration::ZERO, moment(0).monotonic));
}

#[test]
fn a_drain_round_from_before_an_uncordon_does_not_count() {
    let mut inventory = listed_empty();
    let cordon = |unschedulable, version| {
        seen_of(NodeFacts {
            unschedulable,
            resource_version: version,
            ..in_episode(1, Phase::Draining, "haulout/haulout")
        })
    };
    inventory.apply(cordon(true, 11));
    assert!(snapshot_of(&mut inventory, 1).observed.drain.is_some());
    inventory.apply(cordon(false, 12));
    inventory.apply(cordon(true, 13));
    assert_eq!(snapshot_of(&mut inventory, 1).observed.drain, None);
}

#[test]
fn refusals_in_a_row_are_counted_and_a_success_ends_the_row() {
    let mut inventory = inventory_with(trio(1).into_iter().chain([awaiting(1)]));
    let refused = || {
        AttemptOutcome::Refused(EffectRefusal {
            advice: RetryAdvice::Retry,
            message: "busy".to_owned(),
        })
    };
    let mut counts = |outcome: AttemptOutcome| {
        inventory.apply(tried(1, EffectKind::Survey, 5, outcome));
        let attempts = snapshot_of(&mut inventory, 1).observed.attempts;
        let attempt = &attempts[&EffectKind::Survey];
        (attempt.refusals, attempt.tries)
    };
    assert_eq!([(); 3].map(|()| counts(refused())), [(1, 1), (2, 2), (3, 3)]);
    let running = AttemptOutcome::Running(TaskRef::new("task-7"));
    assert_eq!(counts(running), (3, 4), "it may still be refused");
    assert_eq!(counts(refused()), (4, 5));
    assert_eq!(counts(AttemptOutcome::Done), (0, 6));
    assert_eq!(counts(refused()), (1, 7));
}
