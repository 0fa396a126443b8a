//! Records beside the ones of selected Nodes: copies, and Nodes that are followed after their label was removed.

use crate::facts::kubernetes::{KubernetesUpdate, NodeFacts, StrandedNode};
use crate::facts::vsphere::{Compute, VsphereUpdate};
use crate::fixtures::{RELEASE, at, moment, name, node_facts, rules, synced, trio};
use crate::ids::{ComputeRef, NodeUid};
use crate::inventory::{Fact, Inventory};
use crate::maintenance::clock::Timer;
use crate::maintenance::episode::{InFlight, Phase};
use crate::maintenance::observed::{LATE_POWER_OFF_WINDOW, LeadershipEpoch};
use crate::maintenance::record::{EndedEpisode, LastEpisode, write_last};

use super::{copied, entering, in_episode};

fn node(node: NodeFacts) -> Fact {
    Fact::Kubernetes(KubernetesUpdate::Node(Box::new(node)))
}

fn leading(facts: impl IntoIterator<Item = Fact>) -> Inventory {
    let mut inventory = Inventory::new(rules(), at(0));
    let begin = [Fact::Leadership(Some(LeadershipEpoch::ALONE))];
    inventory.advance(begin.into_iter().chain(synced(facts)), moment(0));
    inventory
}

#[test]
fn a_record_that_only_its_copy_holds_is_not_on_the_node() {
    let of = in_episode(1, Phase::AwaitingHost, RELEASE);
    let facts = |on_node: bool| {
        let node_of = if on_node { of.clone() } else { node_facts(1) };
        [trio(1), vec![copied(of.clone()), node(node_of)]].concat()
    };
    for on_node in [true, false] {
        let inventory = leading(facts(on_node));
        let snapshot = &inventory.snapshots[&name(1)];
        assert!(snapshot.record.episode().is_some(), "{snapshot:?}");
        assert_eq!(snapshot.observed.is_record_on_node, on_node);
        assert!(snapshot.observed.has_copy);
    }
}

#[test]
fn a_new_episode_names_its_cluster_and_vm() {
    let compute = VsphereUpdate::Compute(Compute {
        moref: ComputeRef::new("c"),
        name: Some("train".to_owned()),
        drs: None,
    });
    let mut inventory = leading([trio(1), vec![Fact::Vsphere(compute)]].concat());
    let news = [VsphereUpdate::Host(entering(1, 5).into()), VsphereUpdate::Settled];
    inventory.advance(news.map(Fact::Vsphere), moment(5));
    let origin = &inventory.snapshots[&name(1)].observed.origin;
    assert_eq!(origin.cluster.as_deref(), Some("train"));
    assert_eq!(origin.vm.as_deref(), Some("gpu-1"));
    assert_eq!(origin.before, None);
}

#[test]
fn a_node_without_label_is_followed_while_a_power_off_may_arrive_late() {
    let window = LATE_POWER_OFF_WINDOW.as_secs();
    let found = StrandedNode {
        name: name(1),
        uid: NodeUid::new("uid-1"),
        prefix: "haulout.dev".to_owned(),
        is_ours: true,
        is_selected: false,
    };
    for (is_in_flight, age, is_followed) in
        [(true, window, true), (true, window + 1, false), (false, 0, false)]
    {
        let timer = Timer::start(moment(-age));
        let episode = in_episode(1, Phase::Rejoining, RELEASE);
        let Some(episode) = crate::inventory::snapshot::record_of(&episode).episode().cloned() else {
            panic!("an episode is expected");
        };
        let last = LastEpisode {
            ended: None,
            at: at(-age),
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
        let mut inventory = leading([Fact::Kubernetes(KubernetesUpdate::Scanned {
            stranded: vec![found.clone()],
        })]);
        let news = Fact::Kubernetes(KubernetesUpdate::Followed(Box::new(ended)));
        let requested = inventory.advance([news], moment(0)).requested.expect("news");
        assert_eq!(
            requested.followed.contains(&name(1)),
            is_followed,
            "{is_in_flight} {age}"
        );
    }
}
