use std::sync::Arc;

use futures::FutureExt as _;
use haulout_core::fixtures::{self, at, drain_report, episode, moment, node, record, snapshot, uuid, vm};

use super::*;
use crate::nodemaintenance::kind::MaintenanceOrigin;
use crate::nodemaintenance::stored;
use haulout_core::facts::foreign_maintenance::{ForeignOrigin, ForeignStatus, Medik8sStatus};
use haulout_core::facts::window::Window;
use haulout_core::ids::{EpisodeId, RequestUid, VmRef};
use haulout_core::maintenance::decide::Transition;
use haulout_core::maintenance::episode::{DrainEnd, EpisodeResult, Phase, Record};
use haulout_core::maintenance::observed::{
    BoundVm, DrainReport, HostState, NodeSnapshot, ObservedNode, ObservedVm, PendingEviction, PendingReason,
    PowerState, SourceState,
};
use haulout_core::maintenance::record::{EndedEpisode, LastEpisode};
use haulout_core::maintenance::request::{Request, RequestIdentity};
use haulout_core::maintenance::waiting::WaitingOn;
use haulout_core::status::statuses;
use haulout_kubernetes::update::RequestAction;
use haulout_kubernetes::update::RequestedMaintenance;

fn node_snapshot(record: Record, request: Option<Request>, drain: Option<DrainReport>) -> NodeSnapshot {
    let mut node = snapshot(record, HostState::InService);
    node.observed.request = request;
    node.observed.drain = drain;
    node
}

fn in_episode(phase: Phase, since: i64) -> NodeSnapshot {
    node_snapshot(record(episode(phase, since)), None, None)
}

thread_local! {
    /// What the clock says, in seconds.
    static NOW: std::cell::Cell<i64> = const { std::cell::Cell::new(100) };
}

fn now() -> Timestamp {
    at(NOW.get())
}

/// The objects of a cluster, and the due writes.
struct Cluster {
    objects: Arc<StatusReconciler>,
    stored: BTreeMap<String, NodeMaintenanceFacts>,
    writes: u64,
}

impl Cluster {
    fn new() -> Self {
        let objects = Arc::new(StatusReconciler::new(
            "gpu=true".to_owned(),
            None,
            2,
            NodeBoard::new(now),
            now,
        ));
        objects.queue(None, &NodeMaintenanceUpdate::Reset);
        objects.queue(None, &NodeMaintenanceUpdate::Settled);
        Self {
            objects,
            stored: BTreeMap::new(),
            writes: 0,
        }
    }

    /// Another process reads the objects.
    fn restart(&mut self) {
        let stored = std::mem::take(&mut self.stored);
        *self = Self {
            writes: self.writes,
            ..Self::new()
        };
        stored.into_values().for_each(|object| self.store(object));
    }

    fn show(&self, snapshot: NodeSnapshot) {
        let snapshots = BTreeMap::from([(NodeName::new("gpu1"), snapshot)]);
        built(&self.objects, snapshots.clone());
    }

    fn store(&mut self, object: NodeMaintenanceFacts) {
        let seen = NodeMaintenanceUpdate::Seen(Box::new(object.clone()));
        self.objects.queue(object.role.foreign_api(), &seen);
        self.stored.insert(object.name.clone(), object);
    }

    /// Somebody creates an object.
    fn created(&mut self, name: &str, node: &str, created_at: i64, role: NodeMaintenanceRole) {
        self.store(stored::created(name, node, at(created_at), role));
    }

    /// Carries out all that is due, until nothing is, as the kube-apiserver would.
    fn settle(&mut self, snapshot: &NodeSnapshot) {
        for _ in 0..5 {
            self.show(snapshot.clone());
            let due = self.objects.due(|_| false);
            if due.is_empty() {
                return;
            }
            for write in due {
                self.write(write);
            }
        }
        panic!(
            "there is always something due: {:#?}",
            self.objects.due(|_| false)
        );
    }

    fn write(&mut self, write: ObjectWrite) {
        self.writes += 1;
        match write {
            ObjectWrite::Create { name, spec } => {
                assert_eq!(spec.origin, MaintenanceOrigin::Episode);
                self.created(
                    &name,
                    &spec.node_name,
                    100,
                    NodeMaintenanceRole::Episode { record: None },
                );
            }
            ObjectWrite::Status {
                name, uid, changes, ..
            } => {
                let mut object = self.stored[&name].clone();
                assert_eq!(object.uid, uid);
                stored::patch_status(&mut object, &changes);
                object.resource_version = 1 + self.writes;
                self.store(object);
            }
            ObjectWrite::Foreign(write) => {
                let mut object = self.stored[&write.key].clone();
                assert_eq!(object.uid, write.uid);
                let NodeMaintenanceRole::Foreign(foreign) = &mut object.role else {
                    panic!("{object:?}")
                };
                foreign.status = write.status;
                object.status.phase = Some("written".to_owned());
                object.resource_version = 1 + self.writes;
                self.store(object);
            }
            ObjectWrite::Delete { name, uid } => {
                self.stored.remove(&name);
                self.objects
                    .queue(None, &NodeMaintenanceUpdate::Gone { name, uid });
            }
        }
    }

    /// The actor reports how the episode of `before` has ended.
    fn ends(&self, before: &NodeSnapshot, ended: EpisodeResult) {
        let transition = Transition {
            record: Record::InService,
            unschedulable: Some(false),
            ended: Some(ended),
            fulfilled: None,
        };
        let event = NodeEvent::Recorded {
            node: Some(&node()),
            vm: &BoundVm::NotLookedUp,
            before: &before.record,
            transition: &transition,
            wrote: (at(60), at(60)),
        };
        self.tells(event);
    }

    fn tells(&self, event: NodeEvent<'_>) {
        let (name, beat) = (NodeName::new("gpu1"), fixtures::beat(event, now()));
        self.objects.board.observe(&name, &beat);
        self.objects.observe(&name, &beat);
    }

    fn status(&self, name: &str) -> &NodeMaintenanceStatus {
        &self.stored[name].status
    }
}

/// Tells the board and the objects of new snapshots, as the event loop does.
fn built(objects: &StatusReconciler, snapshots: BTreeMap<NodeName, NodeSnapshot>) {
    let statuses = statuses(&fixtures::snapshots(snapshots));
    objects.board.built(&statuses);
    objects.built(&statuses);
}

fn request(action: RequestAction) -> Option<Request> {
    Some(Request {
        requested_by: None,
        identity: RequestIdentity {
            name: "asked".to_owned(),
            uid: RequestUid::new("uid-of-asked"),
            foreign: None,
        },
        asked_at: at(0),
        action,
        drain_timeout: None,
        drain_timeout_action: None,
        guest_shutdown_timeout: None,
        not_before: None,
        window: None,
    })
}

fn asked(action: RequestAction) -> NodeMaintenanceRole {
    NodeMaintenanceRole::Request(RequestedMaintenance {
        requested_by: None,
        reason: String::new(),
        action,
        drain_timeout: None,
        hold_on_drain_timeout: None,
        guest_shutdown_timeout: None,
        not_before: None,
        window: None,
    })
}

fn is(status: &NodeMaintenanceStatus, kind: &str) -> String {
    let found = status.conditions.iter().find(|condition| condition.type_ == kind);
    found
        .map(|condition| condition.status.clone())
        .unwrap_or_default()
}

fn is_woken(cluster: &Cluster) -> bool {
    cluster.objects.changed().now_or_never().is_some()
}

/// A request of medik8s, with what it asks for.
fn foreign(asked: Result<RequestedMaintenance, String>, has_operator: bool) -> NodeMaintenanceRole {
    NodeMaintenanceRole::Foreign(Box::new(ForeignMaintenance {
        origin: ForeignOrigin {
            api: ForeignApi::Medik8s,
            namespace: None,
        },
        name: "theirs".to_owned(),
        asked,
        has_operator,
        has_failed_requestor: false,
        status: ForeignStatus::Medik8s(Medik8sStatus::default()),
    }))
}

fn a_drain() -> Result<RequestedMaintenance, String> {
    let NodeMaintenanceRole::Request(asked) = asked(RequestAction::Drain) else {
        panic!("a request is expected");
    };
    Ok(asked)
}

/// The status of the object of medik8s, after everything that is due while its kind is synced.
fn settled_foreign(role: NodeMaintenanceRole, node: &str, snapshot: &NodeSnapshot) -> (u64, Medik8sStatus) {
    let mut cluster = Cluster::new();
    cluster.created("medik8s/theirs", node, 0, role);
    cluster.settle(snapshot);
    let writes = cluster.writes;
    cluster
        .objects
        .queue(Some(ForeignApi::Medik8s), &NodeMaintenanceUpdate::Settled);
    cluster.settle(snapshot);
    let NodeMaintenanceRole::Foreign(foreign) = &cluster.stored["medik8s/theirs"].role else {
        panic!("it is not of medik8s");
    };
    let ForeignStatus::Medik8s(status) = &foreign.status else {
        panic!("{foreign:?}");
    };
    (cluster.writes - writes, status.clone())
}

#[test]
fn foreign_request_is_written_once_its_kind_is_synced() {
    let snapshot = node_snapshot(
        record(episode(Phase::Drained, 1)),
        request(RequestAction::Drain),
        None,
    );
    let (writes, status) = settled_foreign(foreign(a_drain(), false), "gpu1", &snapshot);
    assert_eq!((writes, status.phase.as_deref()), (1, Some("Succeeded")));
    assert_eq!((status.drain_progress, status.last_error), (100, None));
}

#[test]
fn status_of_a_foreign_request_with_an_operator_is_left_alone() {
    let snapshot = node_snapshot(
        record(episode(Phase::Drained, 1)),
        request(RequestAction::Drain),
        None,
    );
    let (writes, status) = settled_foreign(foreign(a_drain(), true), "gpu1", &snapshot);
    assert_eq!((writes, status), (0, Medik8sStatus::default()));
}

#[test]
fn foreign_requests_that_cannot_be_served_say_why() {
    let snapshot = in_episode(Phase::Draining, 1);
    let (_, status) = settled_foreign(foreign(Err("no such thing".to_owned()), false), "", &snapshot);
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.last_error.as_deref(), Some("no such thing"));
    let (writes, status) = settled_foreign(foreign(a_drain(), false), "gpu9", &snapshot);
    assert_eq!((writes, status.phase.as_deref()), (1, Some("Failed")));
    let why = "no Node gpu9 is among those that Haulout watches";
    assert_eq!(status.last_error.as_deref(), Some(why));
}

#[test]
fn new_foreign_request_is_left_to_its_operator_first() {
    let mut cluster = Cluster::new();
    cluster
        .objects
        .queue(Some(ForeignApi::Medik8s), &NodeMaintenanceUpdate::Settled);
    cluster.created("medik8s/theirs", "gpu1", 98, foreign(a_drain(), false));
    let snapshot = node_snapshot(Record::InService, request(RequestAction::Drain), None);
    cluster.show(snapshot);
    cluster.tells(NodeEvent::Waits {
        node: Some(&node()),
        vm: &BoundVm::NotLookedUp,
        record: &Record::InService,
        on: &WaitingOn::Skip,
    });
    assert!(is_woken(&cluster));
    assert_eq!(cluster.objects.due(|_| false), []);
    assert!(is_woken(&cluster), "another pass follows");
    NOW.set(101);
    assert_eq!(cluster.objects.due(|_| false).len(), 1);
    NOW.set(100);
}

#[test]
fn request_shows_the_wait_of_its_node_with_the_next_step() {
    let mut cluster = Cluster::new();
    cluster.created("asked", "gpu1", 0, asked(RequestAction::Drain));
    let snapshot = node_snapshot(Record::InService, request(RequestAction::Drain), None);
    cluster.settle(&snapshot);
    assert_eq!(cluster.status("asked").waiting_on, None, "nothing is told yet");
    cluster.tells(NodeEvent::Waits {
        node: Some(&node()),
        vm: &BoundVm::NotLookedUp,
        record: &Record::InService,
        on: &WaitingOn::Skip,
    });
    cluster.settle(&snapshot);
    let wait = cluster.status("asked").waiting_on.as_ref().unwrap();
    assert_eq!(
        (&*wait.reason, &*wait.message),
        ("Skip", &*WaitingOn::Skip.to_string())
    );
    let next = wait.next_step.as_deref().unwrap();
    assert!(next.starts_with("kubectl annotate node gpu1"), "{next}");
}

#[test]
fn drain_with_pods_left_behind_is_not_shown_as_complete() {
    let shown = |left_behind: &[&str]| {
        let mut cluster = Cluster::new();
        let pod = |name: &str| PendingEviction {
            name: name.to_owned(),
            why: PendingReason::Leaving,
        };
        for left in [4, 1] {
            let left = (0..left).map(|n| pod(&format!("ml/{n}"))).collect();
            let report = drain_report(moment(2).monotonic, left);
            cluster.settle(&node_snapshot(
                record(episode(Phase::Draining, 1)),
                None,
                Some(report),
            ));
        }
        let shutting_down = Episode {
            left_behind: left_behind.iter().map(|name| (*name).to_owned()).collect(),
            ..episode(Phase::ShuttingDown(DrainEnd::TimedOut), 60)
        };
        cluster.settle(&node_snapshot(record(shutting_down), None, None));
        cluster.status("gpu1-00112233").drain_progress
    };
    assert_eq!(shown(&["ml/0"]), Some(75));
    assert_eq!(shown(&[]), Some(100));
}

#[test]
fn phases_are_those_of_the_record_after_the_ones_it_has_dropped() {
    let mut cluster = Cluster::new();
    let draining = record(episode(Phase::Draining, 1));
    cluster.settle(&node_snapshot(draining.clone(), None, None));
    let mut change = fixtures::transition(record(episode(Phase::AwaitingHost, 20)));
    fixtures::closed(&draining, &mut change, 20);
    let shown = |cluster: &mut Cluster, record: Record| {
        cluster.settle(&node_snapshot(record, None, None));
        let phases = &cluster.status("gpu1-00112233").phases;
        let phases = phases.iter();
        let phases = phases.map(|it| (it.phase.clone(), it.ended_at.is_some()));
        phases.collect::<Vec<_>>()
    };
    let both = [("Draining".to_owned(), true), ("AwaitingHost".to_owned(), false)];
    assert_eq!(shown(&mut cluster, change.record.clone()), both);
    // The record has no history of it.
    let forgotten = record(episode(Phase::AwaitingHost, 20));
    assert_eq!(shown(&mut cluster, forgotten), both);
    // Another process, without an object.
    assert_eq!(shown(&mut Cluster::new(), change.record), both);
}

#[test]
fn younger_foreign_request_waits_its_turn() {
    let mut cluster = Cluster::new();
    cluster
        .objects
        .queue(Some(ForeignApi::Medik8s), &NodeMaintenanceUpdate::Settled);
    cluster.created("asked", "gpu1", 0, asked(RequestAction::Drain));
    cluster.created("medik8s/theirs", "gpu1", 1, foreign(a_drain(), false));
    let snapshot = node_snapshot(
        record(episode(Phase::Drained, 1)),
        request(RequestAction::Drain),
        None,
    );
    cluster.settle(&snapshot);
    let NodeMaintenanceRole::Foreign(foreign) = &cluster.stored["medik8s/theirs"].role else {
        panic!("it is not of medik8s");
    };
    let expected = Medik8sStatus {
        phase: Some("Running".to_owned()),
        last_error: Some("waiting for NodeMaintenance asked, which was there first".to_owned()),
        ..Medik8sStatus::default()
    };
    assert_eq!(foreign.status, ForeignStatus::Medik8s(expected));
}

#[test]
fn episode_has_an_object_with_its_record_without_redundant_writes() {
    let mut cluster = Cluster::new();
    let draining = in_episode(Phase::Draining, 1);
    cluster.settle(&draining);
    let status = cluster.status("gpu1-00112233");
    assert_eq!(status.state.as_deref(), Some("Draining"));
    assert!(status.record.as_ref().unwrap().contains("draining"), "{status:?}");
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let writes = cluster.writes;
    assert_eq!(writes, 2, "one to create it, one for its status");
    cluster.settle(&draining);
    assert_eq!(cluster.writes, writes);
}

/// The kube-apiserver has lost its objects, or the episode began right before.
#[test]
fn episode_without_vcenter_says_so_and_keeps_its_copy() {
    let outage = |phase| {
        let mut node = in_episode(phase, 0);
        node.observed.sources = SourceState::NoVcenter {
            why: "connection refused".to_owned(),
        };
        node
    };
    for had_object in [true, false] {
        let mut cluster = Cluster::new();
        cluster.objects.set_nodes_synced(true);
        let status = |cluster: &Cluster| (*cluster.stored.values().next().unwrap().status).clone();
        let copied = had_object.then(|| {
            cluster.settle(&in_episode(Phase::AwaitingHost, 0));
            status(&cluster).record
        });
        cluster.show(outage(Phase::AwaitingHost));
        let why = WaitingOn::Vcenter {
            why: "connection refused".to_owned(),
        };
        cluster.tells(NodeEvent::Waits {
            node: Some(&node()),
            vm: &BoundVm::NotLookedUp,
            record: &outage(Phase::AwaitingHost).record,
            on: &why,
        });
        cluster.settle(&outage(Phase::Rejoining));
        let status = status(&cluster);
        let told = status.waiting_on.as_ref().map(|it| it.reason.as_str());
        assert_eq!(told, Some("Vcenter"), "{had_object}: {status:#?}");
        assert_eq!(status.record, copied.flatten(), "{had_object}");
    }
}

#[test]
fn wait_without_a_next_step_or_deadline_does_not_keep_the_earlier_ones() {
    let mut cluster = Cluster::new();
    let draining = in_episode(Phase::Draining, 1);
    for (on, has_deadline, has_next_step) in [
        (WaitingOn::Takeover { until: at(200) }, true, false),
        (WaitingOn::Skip, false, true),
        (WaitingOn::DrainRound, false, false),
    ] {
        cluster.settle(&draining);
        cluster.tells(NodeEvent::Waits {
            node: Some(&node()),
            vm: &BoundVm::NotLookedUp,
            record: &draining.record,
            on: &on,
        });
        cluster.settle(&draining);
        let wait = cluster.status("gpu1-00112233").waiting_on.as_ref().unwrap();
        assert_eq!(wait.deadline.is_some(), has_deadline, "{wait:?}");
        assert_eq!(wait.next_step.is_some(), has_next_step, "{wait:?}");
    }
}

/// A draining node with the record of an episode with VM 1, while its own VM is `vm`.
fn with_the_record_of_vm_1(vm: BoundVm) -> NodeSnapshot {
    let mut episode = episode(Phase::Draining, 1);
    episode.vm_uuid = Some(uuid(1));
    let mut node = node_snapshot(record(episode), None, None);
    node.observed.vm = vm;
    node
}

fn bound_to(n: usize) -> BoundVm {
    BoundVm::Found(ObservedVm {
        uuid: Some(uuid(n)),
        ..vm(Some(PowerState::On), HostState::InService)
    })
}

#[test]
fn record_with_the_uuid_of_a_vm_of_another_node_is_not_copied() {
    let not_its_own = [
        bound_to(2),
        BoundVm::Shared(vec![NodeName::new("gpu2")]),
        BoundVm::Ambiguous([VmRef::new("vm-1"), VmRef::new("vm-2")].into()),
        BoundVm::NoUuid,
    ];
    for vm in not_its_own {
        let mut cluster = Cluster::new();
        cluster.settle(&with_the_record_of_vm_1(vm.clone()));
        let status = cluster.status("gpu1-00112233");
        assert_eq!(status.state.as_deref(), Some("Draining"), "{vm:?}");
        assert_eq!(status.record, None, "{vm:?}");

        // Once its VM is known to be that one, its copy follows whatever happens to the VM.
        cluster.settle(&with_the_record_of_vm_1(bound_to(1)));
        let first = cluster.status("gpu1-00112233").record.clone();
        assert!(first.is_some(), "{vm:?}");
        let mut later = with_the_record_of_vm_1(vm);
        let mut shutting_down = later.record.episode().unwrap().clone();
        shutting_down.revision += 1;
        later.record = record(shutting_down);
        cluster.settle(&later);
        assert_ne!(cluster.status("gpu1-00112233").record, first);
    }
}

#[test]
fn deleted_object_is_created_again_unless_its_episode_has_ended() {
    let mut cluster = Cluster::new();
    let draining = in_episode(Phase::Draining, 1);
    cluster.settle(&draining);
    let object = cluster.stored.remove("gpu1-00112233").unwrap();
    let gone = NodeMaintenanceUpdate::Gone {
        name: object.name,
        uid: object.uid,
    };
    cluster.objects.queue(None, &gone);
    cluster.settle(&draining);
    assert!(cluster.stored.contains_key("gpu1-00112233"));
    cluster.objects.queue(None, &gone);
    let writes = cluster.writes;
    cluster.settle(&node_snapshot(Record::InService, None, None));
    // It ended, and nobody makes an object only to close it.
    assert_eq!(cluster.writes, writes);
}

#[test]
fn deleted_request_does_not_come_back_with_the_reply_to_a_write() {
    let mut cluster = Cluster::new();
    cluster.created("asked", "gpu1", 0, asked(RequestAction::Drain));
    cluster.settle(&node_snapshot(
        record(episode(Phase::Draining, 1)),
        request(RequestAction::Drain),
        None,
    ));
    let object = cluster.stored.remove("asked").unwrap();
    cluster.objects.queue(
        None,
        &NodeMaintenanceUpdate::Gone {
            name: object.name.clone(),
            uid: object.uid.clone(),
        },
    );
    let drained = node_snapshot(record(episode(Phase::Drained, 9)), None, None);
    cluster.show(drained.clone());
    let answered = NodeMaintenanceUpdate::Answered(Box::new(object));
    cluster.objects.wrote(None, answered.clone());
    cluster.objects.queue(None, &answered);
    cluster.settle(&drained);
    assert!(cluster.objects.newest(9, |it| it.name == "asked").is_empty());
}

#[test]
fn nothing_is_due_before_the_objects_are_synced() {
    let objects = StatusReconciler::new("gpu=true".to_owned(), None, 2, NodeBoard::new(now), now);
    let snapshots = BTreeMap::from([(NodeName::new("gpu1"), in_episode(Phase::Draining, 1))]);
    built(&objects, snapshots.clone());
    assert_eq!(objects.due(|_| false), []);
    objects.queue(None, &NodeMaintenanceUpdate::Settled);
    assert_eq!(
        objects.due(|_| false),
        [],
        "updates are applied by the next `built`"
    );
    built(&objects, snapshots.clone());
    assert_eq!(objects.due(|_| false).len(), 1);
}

/// A node after the end of `episode`, which the Node names as its last.
fn ended_on_the_node(episode: &Episode, how: EpisodeResult) -> NodeSnapshot {
    let last = LastEpisode {
        ended: Some(how),
        at: at(90),
        episode: EndedEpisode::of(episode),
    };
    let mut snapshot = node_snapshot(Record::InService, None, None);
    snapshot.observed.node = Some(ObservedNode {
        last_episode: Some(Arc::new(last)),
        ..node()
    });
    snapshot
}

#[test]
fn end_that_no_process_has_seen_has_the_result_that_its_node_names() {
    let done = "it is done, and the node is back";
    let cancelled = "it was cancelled before the VM was off or the node was drained";
    for (how, result, message) in [
        (EpisodeResult::Succeeded, "Succeeded", done),
        (EpisodeResult::Failed, "Failed", "no host has a free device"),
        (EpisodeResult::Vmotioned, "Succeeded", done),
        (EpisodeResult::Cancelled, "Cancelled", cancelled),
    ] {
        let mut back = episode(Phase::Rejoining, 50);
        back.relocation_failure = (how == EpisodeResult::Failed).then(|| message.to_owned());
        let mut cluster = Cluster::new();
        cluster.settle(&node_snapshot(record(back.clone()), None, None));
        // The process that ended it was killed before it wrote the object.
        let after = ended_on_the_node(&back, how);
        cluster.restart();
        cluster.settle(&after);
        let status = cluster.status("gpu1-00112233");
        assert_eq!(status.result.as_deref(), Some(result));
        assert_eq!(status.ended_at, Some(format!("{:.3}", at(90))));
        assert_eq!(status.conditions[0].message, message);
    }
}

#[test]
fn episode_whose_end_nothing_names_is_closed_as_not_seen() {
    for last in [None, Some("44556677001122334455667700112233")] {
        NOW.set(100);
        let mut cluster = Cluster::new();
        cluster.settle(&in_episode(Phase::Rejoining, 50));
        let mut after = node_snapshot(Record::InService, None, None);
        if let Some(id) = last {
            let mut other = episode(Phase::Rejoining, 40);
            other.id = EpisodeId::new(id);
            after = ended_on_the_node(&other, EpisodeResult::Succeeded);
        }
        cluster.settle(&after);
        NOW.set(200);
        cluster.settle(&after);
        let status = cluster.status("gpu1-00112233");
        assert!(status.ended_at.is_some());
        assert_eq!(is(status, "Succeeded"), "Unknown");
        assert_eq!(status.conditions[0].reason, "NotSeen");
    }
}

#[test]
fn end_observed_by_the_watch_first_waits_for_the_actor() {
    let mut cluster = Cluster::new();
    let before = in_episode(Phase::Rejoining, 50);
    cluster.settle(&before);
    let writes = cluster.writes;
    // The watch shows the last write of the Node before the actor has the reply.
    let after = node_snapshot(Record::InService, None, None);
    cluster.settle(&after);
    assert_eq!(cluster.writes, writes, "how it ended is not known yet");
    cluster.ends(&before, EpisodeResult::Succeeded);
    cluster.settle(&after);
    assert_eq!(is(cluster.status("gpu1-00112233"), "Succeeded"), "True");
}

#[test]
fn episode_that_ended_before_the_start_does_not_wait() {
    let mut cluster = Cluster::new();
    cluster.created(
        "gpu1-00112233",
        "gpu1",
        50,
        NodeMaintenanceRole::Episode { record: None },
    );
    cluster.settle(&node_snapshot(Record::InService, None, None));
    assert!(cluster.status("gpu1-00112233").ended_at.is_some());
}

#[test]
fn observed_end_is_written_with_its_result() {
    for (ended, succeeded, phase) in [
        (EpisodeResult::Succeeded, "True", "Succeeded"),
        (EpisodeResult::Cancelled, "False", "Cancelled"),
        (EpisodeResult::Failed, "False", "Failed"),
    ] {
        let mut cluster = Cluster::new();
        let before = in_episode(Phase::Rejoining, 50);
        cluster.settle(&before);
        cluster.ends(&before, ended);
        cluster.settle(&node_snapshot(Record::InService, None, None));
        let status = cluster.status("gpu1-00112233");
        assert_eq!(is(status, "Succeeded"), succeeded, "{ended:?}");
        assert_eq!(status.phase.as_deref(), Some(phase));
        assert_eq!(status.state.as_deref(), Some("Ended"));
    }
}

#[test]
fn episode_that_ends_before_it_has_an_object_gets_one_once() {
    let mut cluster = Cluster::new();
    let before = in_episode(Phase::Draining, 50);
    cluster.show(before.clone());
    cluster.ends(&before, EpisodeResult::Cancelled);
    let after = node_snapshot(Record::InService, None, None);
    cluster.settle(&after);
    let name = "gpu1-00112233";
    let status = cluster.status(name);
    assert_eq!(status.state.as_deref(), Some("Ended"));
    assert_eq!(status.result.as_deref(), Some("Cancelled"));
    let facts = [
        &status.host,
        &status.started_at,
        &status.episode,
        &status.trace_id,
    ];
    assert!(facts.iter().all(|fact| fact.is_some()), "{status:?}");
    let uid = cluster.stored[name].uid.clone();
    cluster.write(ObjectWrite::Delete {
        name: name.to_owned(),
        uid,
    });
    cluster.settle(&after);
    assert!(cluster.stored.is_empty(), "who deletes it wants it to be gone");
}

#[test]
fn a_drain_shows_how_far_it_is_and_which_pods_hold_it() {
    let mut cluster = Cluster::new();
    cluster.created("asked", "gpu1", 0, asked(RequestAction::Drain));
    let with = |left: Vec<PendingEviction>| {
        node_snapshot(
            record(episode(Phase::Draining, 1)),
            request(RequestAction::Drain),
            Some(DrainReport {
                listed: 5,
                ..drain_report(moment(2).monotonic, left)
            }),
        )
    };
    let pod = |name: &str, why| PendingEviction {
        name: name.to_owned(),
        why,
    };
    let held = || PendingReason::Budget {
        names: vec!["train".to_owned()],
        message: String::new(),
    };
    cluster.settle(&with(vec![
        pod("ml/a", PendingReason::Leaving),
        pod("ml/b", held()),
    ]));
    cluster.settle(&with(vec![pod("ml/b", held())]));
    let status = cluster.status("asked");
    assert_eq!((status.total_pods, status.eviction_pods), (Some(5), Some(2)));
    assert_eq!(status.drain_progress, Some(50));
    assert_eq!(status.pending_pods, ["ml/b"]);
    assert_eq!(status.pods[0].reason, "held by PodDisruptionBudget train");
    assert_eq!(is(status, "Reconciling"), "True");

    let drained = record(episode(Phase::Drained, 9));
    cluster.settle(&node_snapshot(drained, request(RequestAction::Drain), None));
    let status = cluster.status("asked");
    assert_eq!(status.drain_progress, Some(100));
    assert_eq!(
        (is(status, "Succeeded"), is(status, "Reconciling")),
        ("True".into(), "False".into())
    );
    assert!(status.pending_pods.is_empty() && status.ended_at.is_none());
    let phases: Vec<_> = status.phases.iter().map(|it| it.phase.as_str()).collect();
    assert_eq!(phases, ["Draining", "Drained"]);
}

#[test]
fn progress_of_many_drains_is_written_two_at_a_time() {
    let mut cluster = Cluster::new();
    let names = ["gpu1", "gpu2", "gpu3", "gpu4", "gpu5"];
    let with = |phase: Phase, left: usize| {
        let left = (0..left).map(|number| PendingEviction {
            name: format!("ml/{number}"),
            why: PendingReason::Leaving,
        });
        let report = DrainReport {
            listed: 9,
            ..drain_report(moment(2).monotonic, left.collect())
        };
        node_snapshot(record(episode(phase, 1)), None, Some(report))
    };
    let show = |cluster: &Cluster, snapshots: &BTreeMap<NodeName, NodeSnapshot>| {
        built(&cluster.objects, snapshots.clone());
    };
    let all = |left| names.map(|name| (NodeName::new(name), with(Phase::Draining, left)));
    let mut snapshots = BTreeMap::from(all(9));
    for _ in 0..2 {
        show(&cluster, &snapshots);
        for write in cluster.objects.due(|_| false) {
            cluster.write(write);
        }
    }
    show(&cluster, &snapshots);
    assert_eq!(
        cluster.objects.due(|_| false),
        [],
        "each says that it drains, and nine pods"
    );

    // Every node goes on all the while, and one is done with its drain.
    snapshots.insert(
        NodeName::new("gpu5"),
        with(Phase::ShuttingDown(DrainEnd::Complete), 0),
    );
    let mut turns = Vec::new();
    for left in (3..9).rev() {
        for (name, snapshot) in all(left).into_iter().take(4) {
            snapshots.insert(name, snapshot);
        }
        show(&cluster, &snapshots);
        assert!(is_woken(&cluster), "they have changed");
        let due = cluster.objects.due(|_| false);
        assert!(is_woken(&cluster), "two are held back");
        let nodes = due.iter().map(|write| match write {
            ObjectWrite::Status { name, .. } => name.split('-').next().unwrap_or_default().to_owned(),
            ObjectWrite::Create { .. } | ObjectWrite::Delete { .. } | ObjectWrite::Foreign(_) => {
                panic!("{write:?}")
            }
        });
        turns.push(nodes.collect::<Vec<_>>().join(" "));
        for write in due {
            cluster.write(write);
        }
    }
    assert_eq!(
        turns,
        [
            "gpu5 gpu1 gpu2",
            "gpu3 gpu4",
            "gpu1 gpu2",
            "gpu3 gpu4",
            "gpu1 gpu2",
            "gpu3 gpu4"
        ]
    );

    // Without further progress the rest is written as well.
    show(&cluster, &snapshots);
    assert!(is_woken(&cluster), "the last writes are seen");
    for write in cluster.objects.due(|_| false) {
        cluster.write(write);
    }
    assert!(!is_woken(&cluster), "nothing is held back");
    show(&cluster, &snapshots);
    assert_eq!(cluster.objects.due(|_| false), []);
    assert_eq!(cluster.status("gpu1-00112233").pending_pods.len(), 3);
}

#[test]
fn request_is_fulfilled_once_its_node_no_longer_shows_it() {
    let mut cluster = Cluster::new();
    cluster.settle(&node_snapshot(Record::InService, None, None));
    cluster.created("asked", "gpu1", 0, asked(RequestAction::Reboot));
    assert_eq!(
        cluster.objects.due(|_| false),
        [],
        "the node has not been looked at since"
    );
    let rejoining = record(episode(Phase::Rejoining, 50));
    let rejoining = node_snapshot(rejoining, request(RequestAction::Reboot), None);
    cluster.settle(&rejoining);
    assert_eq!(cluster.status("asked").ended_at, None);
    cluster.ends(&rejoining, EpisodeResult::Succeeded);
    cluster.settle(&node_snapshot(Record::InService, None, None));
    let status = cluster.status("asked");
    assert!(status.ended_at.is_some());
    assert_eq!(is(status, "Succeeded"), "True");
}

#[test]
fn younger_of_two_requests_names_the_one_it_waits_for() {
    let mut cluster = Cluster::new();
    cluster.created("asked", "gpu1", 0, asked(RequestAction::Drain));
    cluster.created("later", "gpu1", 5, asked(RequestAction::Reboot));
    let drained = record(episode(Phase::Drained, 9));
    cluster.settle(&node_snapshot(drained, request(RequestAction::Drain), None));
    let waiting = cluster.status("later").waiting_on.clone().unwrap();
    assert_eq!(waiting.message, "NodeMaintenance asked, which was there first");
    assert_eq!(is(cluster.status("later"), "Succeeded"), "Unknown");
}

/// A request whose window opens at second 200.
fn windowed() -> Option<Request> {
    let asked = request(RequestAction::Reboot)?;
    Some(Request {
        window: Some("Wed 11:10-11:20".parse()),
        ..asked
    })
}

#[test]
fn request_that_is_not_due_shows_nothing_of_another_episode() {
    let phases = [
        Phase::Queued,
        Phase::Draining,
        Phase::Drained,
        Phase::ShuttingDown(DrainEnd::Complete),
        Phase::AwaitingHost,
        Phase::PoweringOn { by_drs: false },
        Phase::Rejoining,
    ];
    let mut cluster = Cluster::new();
    cluster.created("asked", "gpu1", 0, asked(RequestAction::Reboot));
    let shows_nothing = |cluster: &Cluster, case: &str| {
        let status = cluster.status("asked");
        let shown = (
            &status.state,
            &status.episode,
            &status.started_at,
            &status.host,
            status.phases.len(),
        );
        assert_eq!(shown, (&None, &None, &None, &None, 0), "{case}");
        let waiting_on = status.waiting_on.as_ref().unwrap();
        assert_eq!(waiting_on.reason, "Window", "{case}");
        assert!(
            waiting_on.message.contains("when the window of NodeMaintenance"),
            "{case}: {}",
            waiting_on.message
        );
    };
    for phase in phases {
        let of_host = record(episode(phase.clone(), 50));
        cluster.settle(&node_snapshot(of_host, windowed(), None));
        shows_nothing(&cluster, &format!("{phase:?} of the host's maintenance"));
    }
    cluster.settle(&node_snapshot(Record::InService, windowed(), None));
    // Its own episode waits for the next window.
    let mut queued = episode(Phase::Queued, 50);
    queued.trigger.request = windowed().map(|request| request.identity);
    cluster.settle(&node_snapshot(record(queued), windowed(), None));
    assert_eq!(cluster.status("asked").state.as_deref(), Some("Queued"));
    // It was cancelled.
    cluster.settle(&node_snapshot(Record::InService, windowed(), None));
    shows_nothing(&cluster, "after its own episode");
}

#[test]
fn request_with_an_invalid_window_is_stalled() {
    let mut cluster = Cluster::new();
    cluster.created("typo", "gpu1", 0, asked(RequestAction::Reboot));
    cluster.show(node_snapshot(
        Record::InService,
        request(RequestAction::Reboot),
        None,
    ));
    let why = "22:00-04:00 Mars/Olympus".parse::<Window>().unwrap_err();
    let on = WaitingOn::InvalidWindow {
        request: RequestIdentity {
            name: "typo".to_owned(),
            uid: RequestUid::new("uid-of-typo"),
            foreign: None,
        },
        why,
    };
    cluster.tells(NodeEvent::Waits {
        node: Some(&node()),
        vm: &BoundVm::NotLookedUp,
        record: &Record::InService,
        on: &on,
    });
    cluster.settle(&node_snapshot(
        Record::InService,
        request(RequestAction::Reboot),
        None,
    ));
    let status = cluster.status("typo");
    assert_eq!(is(status, "Stalled"), "True");
    let error = status.last_error.as_deref().unwrap();
    assert!(error.contains("Mars/Olympus"), "{error}");
}

#[test]
fn request_for_an_unknown_node_is_stalled_after_a_while() {
    let mut cluster = Cluster::new();
    cluster.created("typo", "gpu9", 95, asked(RequestAction::Drain));
    cluster.settle(&node_snapshot(Record::InService, None, None));
    assert!(
        cluster.status("typo").conditions.is_empty(),
        "it is five seconds old"
    );
    cluster.created("typo", "gpu9", 50, asked(RequestAction::Drain));
    cluster.settle(&node_snapshot(Record::InService, None, None));
    assert_eq!(is(cluster.status("typo"), "Stalled"), "True");
}

#[test]
fn history_of_a_gone_node_stays_until_the_nodes_are_synced() {
    let mut cluster = Cluster::new();
    let mut old = NodeMaintenanceFacts {
        name: "gpu9-a".to_owned(),
        uid: RequestUid::new("uid-of-gpu9-a"),
        resource_version: 1,
        generation: 1,
        created_at: at(-40 * 86_400),
        node: NodeName::new("gpu9"),
        role: NodeMaintenanceRole::Episode { record: None },
        is_over: true,
        status: Box::default(),
    };
    old.status.ended_at = Some(at(-40 * 86_400).to_string());
    cluster.store(old);
    let in_service = node_snapshot(Record::InService, None, None);
    cluster.settle(&in_service);
    assert!(cluster.stored.contains_key("gpu9-a"), "it may still be listed");
    cluster.objects.set_nodes_synced(true);
    assert_eq!(cluster.objects.due(|_| false), [], "it counts from the next look");
    cluster.objects.set_nodes_synced(false);
    cluster.settle(&in_service);
    assert!(cluster.stored.contains_key("gpu9-a"), "they are listed again");
    cluster.objects.set_nodes_synced(true);
    cluster.settle(&in_service);
    assert!(cluster.stored.is_empty());
}

#[test]
fn the_oldest_of_the_ended_episodes_go_first() {
    let mut cluster = Cluster::new();
    for (name, created_at) in [("gpu1-a", 1), ("gpu1-b", 2), ("gpu1-c", 3)] {
        cluster.created(
            name,
            "gpu1",
            created_at,
            NodeMaintenanceRole::Episode { record: None },
        );
    }
    cluster.settle(&node_snapshot(Record::InService, None, None));
    let left: Vec<_> = cluster.stored.keys().map(String::as_str).collect();
    assert_eq!(left, ["gpu1-b", "gpu1-c"]);
}

fn weights(due: &[ObjectWrite]) -> Vec<(String, u8)> {
    due.iter()
        .map(|write| (write.name().to_owned(), write.weight()))
        .collect()
}

#[test]
fn records_are_written_before_new_objects_and_those_before_the_rest() {
    let mut cluster = Cluster::new();
    cluster.settle(&in_episode(Phase::Draining, 1));
    cluster.created("asked", "gpu1", 0, asked(RequestAction::Drain));
    let mut other = episode(Phase::Draining, 1);
    other.id = EpisodeId::new("ffeeddccbbaa99887766554433221100");
    let snapshots = BTreeMap::from([
        (
            NodeName::new("gpu1"),
            node_snapshot(
                record(episode(Phase::AwaitingHost, 9)),
                request(RequestAction::Drain),
                None,
            ),
        ),
        (
            NodeName::new("gpu0"),
            node_snapshot(Record::Episode(Arc::new(other)), None, None),
        ),
    ]);
    built(&cluster.objects, snapshots);
    let due = cluster.objects.due(|_| false);
    let expected = [("gpu1-00112233", 0), ("gpu0-ffeeddcc", 1), ("asked", 2)];
    assert_eq!(
        weights(&due),
        expected.map(|(name, weight)| (name.to_owned(), weight))
    );
    for held in expected.map(|(name, _)| name) {
        let due = cluster.objects.due(|name| name == held);
        assert!(due.iter().all(|write| write.name() != held), "{held}");
        assert_eq!(due.len(), 2, "the others are due all the same");
    }
}
