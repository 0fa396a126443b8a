//! What the page shows of a node is the same on the leader, on a standby, and after a restart.

use haulout_core::fixtures::{pods_left, waits};
use serde_json::Value;

use super::*;
use haulout_controller::nodemaintenance::due_write::ObjectWrite;
use haulout_controller::nodemaintenance::objects::StatusReconciler;
use haulout_controller::nodemaintenance::stored::{created, patch_status};
use haulout_core::maintenance::record::LastEpisode;
use haulout_kubernetes::update::{NodeMaintenanceFacts, NodeMaintenanceRole, NodeMaintenanceUpdate};

/// A process with a page and the objects that it writes. The cluster keeps the objects.
struct Replica {
    objects: Arc<StatusReconciler>,
    page: Arc<StatusPage>,
    clock: fn() -> Timestamp,
}

impl Replica {
    fn start(clock: fn() -> Timestamp, stored: &[NodeMaintenanceFacts]) -> Self {
        let board = NodeBoard::new(clock);
        let objects = StatusReconciler::new("gpu=true".to_owned(), None, 2, board.clone(), clock);
        let objects = Arc::new(objects);
        objects.queue(None, &NodeMaintenanceUpdate::Reset);
        for object in stored {
            objects.queue(None, &NodeMaintenanceUpdate::Seen(Box::new(object.clone())));
        }
        objects.queue(None, &NodeMaintenanceUpdate::Settled);
        let settings = PageSettings {
            is_dry_run: false,
            cluster: String::new(),
            vcenter: String::new(),
            links: Links::default(),
        };
        let page = Arc::new(StatusPage::new(
            settings,
            Some(Arc::clone(&objects)),
            board,
            clock,
        ));
        page.connection(WatchedApi::Kubernetes, ConnectionState::Synced);
        Self { objects, page, clock }
    }

    fn sees(&self, snapshot: &NodeSnapshot) {
        let snapshots = BTreeMap::from([(NodeName::new("gpu1"), snapshot.clone())]);
        let statuses = statuses(&fixtures::snapshots(snapshots));
        self.page.board.built(&statuses);
        self.objects.built(&statuses);
        self.page.built(&statuses);
    }

    fn tells(&self, event: NodeEvent<'_>) {
        let (name, beat) = (NodeName::new("gpu1"), fixtures::beat(event, (self.clock)()));
        self.page.board.observe(&name, &beat);
        self.objects.observe(&name, &beat);
        self.page.observe(&name, &beat);
    }

    /// Its actor reports a wait.
    fn waits(&self, snapshot: &NodeSnapshot, on: &WaitingOn) {
        let event = NodeEvent::Waits {
            node: None,
            vm: &BoundVm::NotLookedUp,
            record: &snapshot.record,
            on,
        };
        self.tells(event);
    }

    /// Carries out its due writes on `stored`.
    fn writes(&self, stored: &mut Vec<NodeMaintenanceFacts>) {
        for write in self.objects.due(|_| false) {
            match write {
                ObjectWrite::Create { name, spec } => {
                    let role = NodeMaintenanceRole::Episode { record: None };
                    stored.push(created(&name, &spec.node_name, (self.clock)(), role));
                }
                ObjectWrite::Status { name, changes, .. } => {
                    let object = stored.iter_mut().find(|it| it.name == name).unwrap();
                    patch_status(object, &changes);
                    object.resource_version += 1;
                }
                write @ (ObjectWrite::Delete { .. } | ObjectWrite::Foreign(_)) => panic!("{write:?}"),
            }
        }
        for object in stored.iter() {
            self.objects
                .queue(None, &NodeMaintenanceUpdate::Seen(Box::new(object.clone())));
        }
    }

    /// How many nodes need a person, in the title of a page that shows no node.
    fn in_title(&self) -> usize {
        self.page.maintainable(&ListFilter::default()).frame.need_person
    }

    /// What the page shows of the node and its episode, without what vCenter alone says and without the steps of this process.
    async fn shows(&self) -> Value {
        let mut shown = Vec::new();
        let id = self.page.overview(&ListFilter::default()).episodes[0].id.clone();
        for path in ["/api/v1/nodes/gpu1".to_owned(), format!("/api/v1/episodes/{id}")] {
            let (status, _, body) = ask(&self.page, Method::GET, &path).await;
            assert_eq!(status, StatusCode::OK, "{path}");
            let page: Value = serde_json::from_str(&body).unwrap();
            let kept = [
                "state",
                "phase",
                "since",
                "host",
                "waitsFor",
                "pods",
                "episode",
                "result",
                "startedAt",
                "phases",
                "episodes",
                "traceId",
                "isRunning",
            ];
            shown.extend(kept.map(|key| (format!("{path} {key}"), page[key].clone())));
        }
        shown.into_iter().collect()
    }
}

fn later() -> Timestamp {
    at(200)
}

/// The node as a replica without vCenter sees it.
fn without_vcenter(snapshot: &NodeSnapshot) -> NodeSnapshot {
    let mut snapshot = snapshot.clone();
    snapshot.observed.vm = BoundVm::NotLookedUp;
    snapshot.observed.drain = None;
    snapshot
}

#[tokio::test]
async fn standby_and_restarted_leader_show_each_wait_as_the_leader_did() {
    for on in waits() {
        let queued = Record::Episode(Arc::new(episode("gpu1", "esx-1", Phase::Queued, at(1))));
        let draining = Record::Episode(Arc::new(episode("gpu1", "esx-1", Phase::Draining, at(5))));
        let mut transition = fixtures::transition(draining);
        fixtures::closed(&queued, &mut transition, 5);
        let queued = snapshot("gpu1", "esx-1", queued, Vec::new());
        let snapshot = snapshot("gpu1", "esx-1", transition.record, pods_left());
        let mut stored = Vec::new();
        let leader = Replica::start(clock, &stored);
        leader.sees(&queued);
        for _ in 0..3 {
            leader.sees(&snapshot);
            leader.waits(&snapshot, &on);
            leader.writes(&mut stored);
        }
        leader.sees(&snapshot);
        let shown = leader.shows().await;
        let in_title = leader.in_title();
        assert_ne!(shown["/api/v1/nodes/gpu1 waitsFor"], Value::Null, "{on:?}");
        assert!(shown.to_string().contains("Queued"), "{shown}");

        let standby = Replica::start(later, &stored);
        standby.page.leadership(PageLeadership::StandsBy { leader: None });
        standby.sees(&without_vcenter(&snapshot));
        assert_eq!(standby.shows().await, shown, "{on:?}");
        assert_eq!(standby.in_title(), in_title, "{on:?}");

        let restarted = Replica::start(later, &stored);
        restarted.sees(&snapshot);
        restarted.waits(&snapshot, &on);
        assert_eq!(restarted.shows().await, shown, "{on:?}");
        assert_eq!(restarted.in_title(), in_title, "{on:?}");
    }
}

#[tokio::test]
async fn standby_and_restarted_leader_show_each_end_as_the_leader_did() {
    for how in [
        EpisodeResult::Failed,
        EpisodeResult::Succeeded,
        EpisodeResult::Cancelled,
        EpisodeResult::Vmotioned,
    ] {
        let running = draining("gpu1", "esx-1", Vec::new());
        let mut transition = Transition {
            ended: Some(how),
            ..fixtures::transition(Record::InService)
        };
        let mut ended = snapshot("gpu1", "esx-1", Record::InService, Vec::new());
        if let Some(node) = &mut ended.observed.node {
            let last = LastEpisode::of(&running.record, &Record::InService, Some(how), at(60));
            node.last_episode = last.map(Arc::new);
        }
        let mut stored = Vec::new();
        let leader = Replica::start(clock, &stored);
        for _ in 0..3 {
            leader.sees(&running);
            leader.writes(&mut stored);
        }
        let event = NodeEvent::Recorded {
            node: None,
            vm: &BoundVm::NotLookedUp,
            before: &fixtures::closed(&running.record, &mut transition, 60),
            transition: &transition,
            wrote: (at(60), at(60)),
        };
        leader.tells(event);
        for _ in 0..2 {
            leader.sees(&ended);
            leader.writes(&mut stored);
        }
        leader.sees(&ended);
        let shown = leader.shows().await;
        assert!(shown.to_string().contains("endedAt\":\"2026"), "{shown}");
        for vcenter in [true, false] {
            let other = Replica::start(later, &stored);
            let seen = if vcenter {
                ended.clone()
            } else {
                without_vcenter(&ended)
            };
            other.sees(&seen);
            let mut shown_there = other.shows().await;
            if !vcenter {
                // A standby does not follow vCenter, which says where a VM is that has no episode.
                shown_there["/api/v1/nodes/gpu1 host"] = shown["/api/v1/nodes/gpu1 host"].clone();
            }
            assert_eq!(shown_there, shown, "{how:?}");
        }
    }
}
