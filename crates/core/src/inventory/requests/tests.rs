use super::*;
use crate::facts::kubernetes::KubernetesUpdate;
use crate::ids::NodeUid;
use crate::inventory::Fact;
use crate::inventory::tests::{
    asked, at, copied, inventory_with, maintenance, name, node, seen_of, snapshot_of, trio, with_episode,
};
use crate::maintenance::episode::Phase;

fn asks(object: &str, made: i64, action: RequestedAction) -> Fact {
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
    let older = || asks("z-older", 10, RequestedAction::Reboot);
    let younger = || asks("a-younger", 20, RequestedAction::PowerOff);
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
        asks("b", 10, RequestedAction::Drain),
        asks("a", 10, RequestedAction::Reboot),
    ];
    let mut inventory = inventory_with(trio(1).into_iter().chain(same));
    assert_eq!(counts(&mut inventory).as_deref(), Some("a"));
}

#[test]
fn a_fulfilled_request_holds_the_next_back_until_its_status_says_so() {
    let requests = [
        asks("first", 10, RequestedAction::Reboot),
        asks("second", 20, RequestedAction::Reboot),
    ];
    let mut node = node(1);
    node.annotations.fulfilled = Some("uid-of-first".to_owned());
    let mut inventory = inventory_with(trio(1).into_iter().chain([seen_of(node)]).chain(requests));
    assert_eq!(counts(&mut inventory), None);
    let Fact::Kubernetes(KubernetesUpdate::Maintenances(NodeMaintenanceUpdate::Seen(mut over))) =
        asks("first", 10, RequestedAction::Reboot)
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
