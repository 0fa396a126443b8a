use super::*;
use crate::facts::foreign_maintenance::{ForeignMaintenance, ForeignOrigin, ForeignStatus, Medik8sStatus};
use crate::facts::kubernetes::{KubernetesUpdate, RequestAction};
use crate::fixtures::{moment, synced};
use crate::ids::NodeUid;
use crate::inventory::Fact;
use crate::inventory::tests::{
    asked, at, copied, inventory_with, maintenance, name, node, seen_of, snapshot_of, trio, with_episode,
};
use crate::maintenance::episode::Phase;
use crate::maintenance::observed::{LeadershipEpoch, SourceState};

fn asks(object: &str, made: i64, action: RequestAction) -> Fact {
    maintenance(
        object.to_owned(),
        name(1),
        made,
        NodeMaintenanceRole::Request(asked(action)),
    )
}

fn counts(inventory: &mut Inventory) -> Option<String> {
    let request = snapshot_of(inventory, 1).observed.request;
    request.map(|request| request.identity.name)
}

#[test]
fn of_two_open_requests_for_a_node_the_older_counts() {
    let older = || asks("z-older", 10, RequestAction::Reboot);
    let younger = || asks("a-younger", 20, RequestAction::PowerOff);
    for order in [[older(), younger()], [younger(), older()]] {
        let mut inventory = inventory_with(trio(1).into_iter().chain(order));
        assert_eq!(counts(&mut inventory).as_deref(), Some("z-older"));
        let request = snapshot_of(&mut inventory, 1).observed.request.unwrap();
        assert_eq!(
            (request.action, request.asked_at),
            (RequestAction::Reboot, at(10))
        );
    }
    // Within one second, the names decide, so that replicas agree.
    let same = [
        asks("b", 10, RequestAction::Drain),
        asks("a", 10, RequestAction::Reboot),
    ];
    let mut inventory = inventory_with(trio(1).into_iter().chain(same));
    assert_eq!(counts(&mut inventory).as_deref(), Some("a"));
}

#[test]
fn reply_to_a_write_does_not_bring_a_deleted_request_back() {
    let facts = |version| {
        let Fact::Kubernetes(KubernetesUpdate::Maintenances(NodeMaintenanceUpdate::Seen(mut object))) =
            asks("asked", 10, RequestAction::Drain)
        else {
            panic!("a NodeMaintenance is expected");
        };
        object.resource_version = version;
        object
    };
    let fact = |update| Fact::Kubernetes(KubernetesUpdate::Maintenances(update));
    let answered = |version| fact(NodeMaintenanceUpdate::Answered(facts(version)));
    let gone = || {
        let object = facts(1);
        fact(NodeMaintenanceUpdate::Gone {
            name: object.name,
            uid: object.uid,
        })
    };
    let mut inventory = inventory_with(
        trio(1)
            .into_iter()
            .chain([fact(NodeMaintenanceUpdate::Seen(facts(2)))]),
    );
    for (version, expected) in [(3, 3), (1, 3)] {
        inventory.apply(answered(version));
        let known = inventory.requests.get("asked").map(|it| it.resource_version);
        assert_eq!(known, Some(expected), "after the reply with version {version}");
    }
    inventory.apply(gone());
    inventory.apply(answered(4));
    assert_eq!(counts(&mut inventory), None);
}

#[test]
fn a_fulfilled_request_holds_the_next_back_until_its_status_says_so() {
    let requests = [
        asks("first", 10, RequestAction::Reboot),
        asks("second", 20, RequestAction::Reboot),
    ];
    let mut node = node(1);
    node.annotations.fulfilled = Some("uid-of-first".to_owned());
    let mut inventory = inventory_with(trio(1).into_iter().chain([seen_of(node)]).chain(requests));
    assert_eq!(counts(&mut inventory), None);
    let Fact::Kubernetes(KubernetesUpdate::Maintenances(NodeMaintenanceUpdate::Seen(mut over))) =
        asks("first", 10, RequestAction::Reboot)
    else {
        panic!("a request is expected");
    };
    (over.is_over, over.resource_version) = (true, 2);
    inventory.apply(Fact::Kubernetes(KubernetesUpdate::Maintenances(
        NodeMaintenanceUpdate::Seen(over),
    )));
    assert_eq!(counts(&mut inventory).as_deref(), Some("second"));
}

#[test]
fn of_a_gone_nodes_record_and_its_copy_the_one_written_later_counts() {
    let gone = || {
        Fact::Kubernetes(KubernetesUpdate::NodeGone {
            name: name(1),
            uid: NodeUid::new("uid-1"),
        })
    };
    let record = |on_node: NodeFacts, copy: NodeFacts| {
        let facts = [seen_of(on_node), copied(copy), gone()];
        let seen = snapshot_of(&mut inventory_with(trio(1).into_iter().chain(facts)), 1);
        assert_eq!(seen.observed.node, None);
        seen.record.phase_name()
    };
    let written = |times, phase| with_episode(1, phase, |episode| episode.revision = times);
    let (earlier, later) = (|| Phase::AwaitingHost, || Phase::Rejoining);
    assert_eq!(record(written(7, later()), written(6, earlier())), "Rejoining");
    assert_eq!(record(written(6, earlier()), written(7, later())), "Rejoining");
    let begun = |when, phase| {
        with_episode(1, phase, |episode| {
            let Episode {
                node_uid,
                trigger,
                host,
                phase,
                ..
            } = episode.clone();
            let of_then = Episode::new(node_uid, trigger, host, phase, at(when));
            (episode.id, episode.traceparent) = (of_then.id, of_then.traceparent);
            episode.begun_at = of_then.begun_at;
        })
    };
    // Of two episodes, the later one counts, whatever the revisions.
    assert_eq!(record(begun(9, later()), begun(8, earlier())), "Rejoining");
    assert_eq!(record(begun(8, earlier()), begun(9, later())), "Rejoining");
}

#[test]
fn copy_in_an_object_that_is_over_is_no_record() {
    for is_over in [false, true] {
        let Fact::Kubernetes(KubernetesUpdate::Maintenances(NodeMaintenanceUpdate::Seen(mut object))) =
            copied(with_episode(1, Phase::AwaitingHost, |_| {}))
        else {
            panic!("a copy is expected");
        };
        object.is_over = is_over;
        let object = Fact::Kubernetes(KubernetesUpdate::Maintenances(NodeMaintenanceUpdate::Seen(
            object,
        )));
        let seen = snapshot_of(&mut inventory_with(trio(1).into_iter().chain([object])), 1);
        assert_eq!(seen.record.episode().is_none(), is_over);
    }
}

/// An update of the objects of another project.
fn foreign(api: ForeignApi, update: NodeMaintenanceUpdate) -> Fact {
    Fact::Kubernetes(KubernetesUpdate::ForeignMaintenances(api, update))
}

/// An object of another project that asks for node 1, created at second `made`.
fn foreign_asks(api: ForeignApi, object: &str, made: i64) -> Fact {
    foreign_seen(api, object, made, Ok(asked(RequestAction::Drain)))
}

fn foreign_seen(
    api: ForeignApi,
    object: &str,
    made: i64,
    asked: Result<RequestedMaintenance, String>,
) -> Fact {
    let origin = ForeignOrigin {
        api,
        namespace: (api == ForeignApi::Nvidia).then(|| "ops".to_owned()),
    };
    let name = origin.display_name(object);
    let role = NodeMaintenanceRole::Foreign(Box::new(ForeignMaintenance {
        origin,
        name: object.to_owned(),
        asked,
        has_operator: false,
        has_failed_requestor: false,
        status: ForeignStatus::Medik8s(Medik8sStatus::default()),
    }));
    let Fact::Kubernetes(KubernetesUpdate::Maintenances(seen)) = maintenance(name, self::name(1), made, role)
    else {
        panic!("an object is expected");
    };
    foreign(api, seen)
}

/// An inventory of node 1 in which all kinds are watched and synced, with these facts.
fn of_all_kinds(facts: impl IntoIterator<Item = Fact>) -> Inventory {
    let settings = crate::inventory::InventorySettings {
        node_maintenances: true,
        foreign_maintenances: ForeignApi::ALL.iter().copied().collect(),
        ..crate::fixtures::inventory_settings()
    };
    let settled = ForeignApi::ALL
        .iter()
        .map(|api| foreign(*api, NodeMaintenanceUpdate::Settled));
    let own = Fact::Kubernetes(KubernetesUpdate::Maintenances(NodeMaintenanceUpdate::Settled));
    let all = trio(1).into_iter().chain(settled).chain([own]).chain(facts);
    let mut inventory = Inventory::new(settings, at(0));
    let leads = Fact::Leadership(Some(LeadershipEpoch::ALONE));
    inventory.advance([leads].into_iter().chain(synced(all)), moment(0));
    inventory
}

fn effective(inventory: &mut Inventory) -> Option<String> {
    let request = snapshot_of(inventory, 1).observed.request;
    request.map(|request| request.identity.to_string())
}

#[test]
fn requests_of_all_kinds_are_one_queue_by_age() {
    let mut inventory = of_all_kinds([
        asks("psu", 40, RequestAction::Drain),
        foreign_asks(ForeignApi::Nvidia, "psu", 30),
        foreign_asks(ForeignApi::Kubevirt, "psu", 20),
        foreign_asks(ForeignApi::Medik8s, "psu", 10),
        foreign_seen(ForeignApi::Medik8s, "odd", 5, Err("no".to_owned())),
    ]);
    let gone = |api, name: &str| NodeMaintenanceUpdate::Gone {
        name: format!("{api}/{name}"),
        uid: crate::ids::RequestUid::new(format!("uid-of-{api}/{name}")),
    };
    for (api, name, shown) in [
        (ForeignApi::Medik8s, "psu", "medik8s/psu"),
        (ForeignApi::Kubevirt, "psu", "kubevirt/psu"),
        (ForeignApi::Nvidia, "ops/psu", "nvidia/ops/psu"),
    ] {
        assert_eq!(effective(&mut inventory).as_deref(), Some(shown));
        inventory.apply(foreign(api, gone(api, name)));
    }
    assert_eq!(effective(&mut inventory).as_deref(), Some("psu"));
}

#[test]
fn new_list_of_one_kind_leaves_the_objects_of_others() {
    let mut inventory = of_all_kinds([
        asks("psu", 40, RequestAction::Drain),
        foreign_asks(ForeignApi::Kubevirt, "psu", 20),
        foreign_asks(ForeignApi::Medik8s, "psu", 10),
    ]);
    for update in [NodeMaintenanceUpdate::Reset, NodeMaintenanceUpdate::Settled] {
        inventory.apply(foreign(ForeignApi::Medik8s, update));
    }
    assert_eq!(effective(&mut inventory).as_deref(), Some("kubevirt/psu"));
    for update in [NodeMaintenanceUpdate::Reset, NodeMaintenanceUpdate::Settled] {
        inventory.apply(Fact::Kubernetes(KubernetesUpdate::Maintenances(update)));
    }
    assert_eq!(effective(&mut inventory).as_deref(), Some("kubevirt/psu"));
}

#[test]
fn objects_of_a_kind_that_is_not_watched_are_ignored() {
    let mut inventory = inventory_with(trio(1).into_iter().chain([foreign_asks(
        ForeignApi::Medik8s,
        "psu",
        10,
    )]));
    assert_eq!(effective(&mut inventory), None);
}

#[test]
fn origin_of_a_foreign_request_is_kept_in_the_record() {
    let mut inventory = of_all_kinds([foreign_asks(ForeignApi::Nvidia, "psu", 10)]);
    let identity = snapshot_of(&mut inventory, 1).observed.request.unwrap().identity;
    let text = serde_json::to_string(&identity).unwrap();
    assert!(
        text.contains(r#""foreign":{"api":"nvidia","namespace":"ops"}"#),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<RequestIdentity>(&text).unwrap(), identity);
    // Records of earlier versions name no origin.
    let own: RequestIdentity = serde_json::from_str(r#"{"name":"psu","uid":"u"}"#).unwrap();
    assert_eq!(own.foreign, None);
}

#[test]
fn long_outage_of_one_kind_holds_up_only_nodes_with_its_request() {
    for (request, is_held_up) in [
        (foreign_asks(ForeignApi::Medik8s, "psu", 10), true),
        (foreign_asks(ForeignApi::Kubevirt, "psu", 10), false),
        (asks("psu", 10, RequestAction::Drain), false),
    ] {
        let mut inventory = of_all_kinds([request]);
        let lost = NodeMaintenanceUpdate::Lost {
            why: "conversion webhook".to_owned(),
            refused: false,
        };
        inventory.advance([foreign(ForeignApi::Medik8s, lost)], moment(10));
        assert_eq!(inventory.ignored_foreign_watch(), None);
        let sources = |inventory: &mut Inventory| snapshot_of(inventory, 1).observed.sources;
        assert!(matches!(
            sources(&mut inventory),
            SourceState::NoKubernetes { .. }
        ));
        inventory.advance([], moment(40));
        let without = inventory.ignored_foreign_watch();
        assert_eq!(without, Some((ForeignApi::Medik8s, "conversion webhook")));
        assert_eq!(inventory.ignored_request_watch(), None);
        let is_out = matches!(sources(&mut inventory), SourceState::NoKubernetes { .. });
        assert_eq!(is_out, is_held_up);
    }
}
