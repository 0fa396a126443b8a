//! Copies of records on NodeMaintenances: when they take the place of a record, and when they count as over.

use crate::facts::kubernetes::{KubernetesUpdate, NodeFacts, NodeMaintenanceUpdate};
use crate::facts::vsphere::{Vm, VsphereUpdate};
use crate::fixtures::{RELEASE, at, found, moment, name, node_facts, trio, vm_facts};
use crate::ids::NodeUid;
use crate::inventory::Fact;
use crate::maintenance::effect::EffectKind;
use crate::maintenance::episode::{CordonOwner, DrainEnd, Phase, Record};
use crate::maintenance::observed::{AttemptOutcome, NodeSnapshot};
use crate::maintenance::record::{self, LastEpisode};
use crate::status::NodeStatus;

use super::records::{leading, node};
use super::{copied, in_episode, tried, with_episode};

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
fn a_copy_is_not_judged_before_the_vm_is_known() {
    let copy = || copied(in_episode(1, Phase::Rejoining, RELEASE));
    let [kubernetes, host, vm, looked_up] = trio(1).try_into().unwrap();
    let unnamed = Vm {
        uuid: None,
        ..vm_facts(1)
    };
    let unnamed = Fact::Vsphere(VsphereUpdate::Vm(unnamed));
    let cases = [
        (vec![], false, "not looked up"),
        (vec![looked_up.clone()], false, "without properties"),
        (vec![unnamed, looked_up.clone()], false, "without its UUID"),
        (vec![vm.clone(), found(1, &[1, 2])], false, "ambiguous"),
        (vec![found(1, &[])], true, "missing"),
        (vec![vm, looked_up], true, "known"),
    ];
    for (facts, is_known, case) in cases {
        let all = [vec![kubernetes.clone(), host.clone(), copy()], facts].concat();
        let inventory = leading(all);
        let status = NodeStatus::of(&inventory.snapshots[&name(1)]);
        assert_eq!(status.is_known, is_known, "{case}: {status:?}");
    }
}

#[test]
fn wiped_record_is_continued_where_it_was_and_not_where_its_copy_is() {
    let with_revision = |revision| {
        with_episode(1, Phase::AwaitingHost, |episode| {
            episode.release = RELEASE.into();
            episode.revision = revision;
        })
    };
    for (on_node, in_copy, continued) in [(5, 3, 5), (3, 5, 5)] {
        let facts = [copied(with_revision(in_copy)), node(with_revision(on_node))];
        let mut inventory = leading(trio(1).into_iter().chain(facts));
        let wiped = NodeFacts {
            resource_version: 11,
            ..node_facts(1)
        };
        inventory.advance([node(wiped)], moment(1));
        let record = &inventory.snapshots[&name(1)].record;
        let revision = record.episode().map(|episode| episode.revision);
        assert_eq!(revision, Some(continued), "{on_node} {in_copy}");
    }
}

/// NodeMaintenances cannot be read for so long that maintenance continues without them, and with them the copies.
#[test]
fn wiped_record_is_continued_from_memory_where_copies_cannot_be_read() {
    let lost = || {
        let why = "403".to_owned();
        let update = NodeMaintenanceUpdate::Lost { why, refused: true };
        Fact::Kubernetes(KubernetesUpdate::Maintenances(update))
    };
    let begun = || in_episode(1, Phase::AwaitingHost, RELEASE);
    let without_record = |resource_version, last_episode: Option<String>| {
        let mut facts = node_facts(1);
        facts.resource_version = resource_version;
        facts.annotations.last_episode = last_episode;
        node(facts)
    };
    let record = record::read_record(&begun().annotations);
    let ended = LastEpisode::of(&record, &Record::InService, None, at(41));
    let ended = ended.map(|last| record::write_last(&last));
    for (is_lost, ended, is_continued) in [(true, None, true), (false, None, false), (true, ended, false)] {
        let mut inventory = leading(trio(1).into_iter().chain([node(begun())]));
        if is_lost {
            inventory.advance([lost()], moment(1));
            inventory.advance([], moment(40));
        }
        if let Some(ended) = ended.clone() {
            inventory.advance([without_record(11, Some(ended))], moment(41));
        }
        inventory.advance([without_record(12, None)], moment(42));
        let NodeSnapshot { record, observed } = &*inventory.snapshots[&name(1)];
        assert_eq!(observed.is_only_remembered, is_continued);
        assert_eq!(
            record.episode().is_some(),
            is_continued,
            "{is_lost} {ended:?}: {record:?}"
        );
    }
}

/// A restore of etcd took back some writes, and the next leader went on from what was there. Then the record is wiped.
#[test]
fn writes_that_a_restore_took_back_do_not_count_once_another_leader_went_on() {
    let written_by = |epoch, revision, phase| {
        with_episode(1, phase, |episode| {
            episode.release = RELEASE.into();
            episode.epoch = epoch;
            episode.revision = revision;
        })
    };
    // Without leader election the epoch is 0, and only revisions count.
    for (epochs, revision, continued) in [
        ((6, 7), 5, (5, Phase::Rejoining)),
        ((6, 7), 12, (12, Phase::Rejoining)),
        ((0, 7), 5, (9, Phase::Draining)),
        ((6, 0), 12, (12, Phase::Rejoining)),
    ] {
        let before = node(written_by(epochs.0, 9, Phase::Draining));
        let went_on = || written_by(epochs.1, revision, Phase::Rejoining);
        let mut inventory = leading(trio(1).into_iter().chain([before]));
        inventory.advance([copied(went_on()), node(went_on())], moment(1));
        let wiped = NodeFacts {
            resource_version: 11,
            ..node_facts(1)
        };
        inventory.advance([node(wiped)], moment(2));
        let record = &inventory.snapshots[&name(1)].record;
        let found = record
            .episode()
            .map(|episode| (episode.revision, episode.phase.clone()));
        assert_eq!(found, Some(continued), "{epochs:?}");
    }
}

#[test]
fn node_of_a_backup_continues_with_its_own_copy() {
    // The episode went on, on a later Node with another cordon. After a restore of etcd, the earlier Node and its copy are there.
    let of_node = |uid: &str, revision, cordon| {
        with_episode(1, Phase::Rejoining, |episode| {
            episode.node_uid = NodeUid::new(uid);
            episode.revision = revision;
            episode.cordon = cordon;
        })
    };
    for (copied_uid, expected) in [("uid-1", CordonOwner::Theirs), ("uid-0", CordonOwner::Ours)] {
        let later = NodeFacts {
            uid: NodeUid::new("uid-2"),
            ..of_node("uid-2", 5, CordonOwner::Ours)
        };
        let copy = copied(of_node(copied_uid, 3, CordonOwner::Theirs));
        let mut inventory = leading(trio(1).into_iter().chain([copy, node(later)]));
        inventory.advance([node(node_facts(1))], moment(1));
        let record = &inventory.snapshots[&name(1)].record;
        let cordon = record.episode().map(|episode| &episode.cordon);
        assert_eq!(cordon, Some(&expected), "{copied_uid}");
    }
}

/// The Node was deleted while its VM was off, and a backup puts it back with the record from the drain.
#[test]
fn record_of_a_backup_does_not_count_where_a_newer_one_is_known() {
    let of_node = |phase, revision| {
        with_episode(1, phase, |episode| {
            episode.release = RELEASE.into();
            episode.revision = revision;
        })
    };
    for (in_memory, in_copy, continued) in [
        (None, Some(5), 5),
        (Some(6), Some(5), 6),
        (Some(4), Some(5), 5),
        (None, Some(2), 3),
        (None, None, 3),
    ] {
        let known = in_memory.map(|revision| node(of_node(Phase::Rejoining, revision)));
        let copy = in_copy.map(|revision| copied(of_node(Phase::Rejoining, revision)));
        let mut inventory = leading(trio(1).into_iter().chain(copy).chain(known));
        for uid in [node_facts(1).uid, NodeUid::new("uid-2")] {
            let put_back = NodeFacts {
                uid: uid.clone(),
                resource_version: 11,
                ..of_node(Phase::Draining, 3)
            };
            inventory.advance([node(put_back)], moment(1));
            let snapshot = &inventory.snapshots[&name(1)];
            let revision = snapshot.record.episode().map(|episode| episode.revision);
            assert_eq!(revision, Some(continued), "{in_memory:?} {in_copy:?} {uid:?}");
            assert!(snapshot.observed.is_record_on_node);
        }
    }
}

#[test]
fn request_to_the_guest_is_remembered_when_the_record_is_removed() {
    let of = in_episode(1, Phase::ShuttingDown(DrainEnd::Complete), RELEASE);
    for (copies, is_remembered) in [(vec![copied(of.clone())], true), (vec![], false)] {
        let mut inventory = leading(trio(1).into_iter().chain([node(of.clone())]).chain(copies));
        let asked = tried(1, EffectKind::ShutdownGuest, 1, AttemptOutcome::Done);
        let removed = NodeFacts {
            resource_version: 11,
            ..node_facts(1)
        };
        inventory.advance([asked, node(removed)], moment(1));
        let attempt = inventory.snapshots[&name(1)]
            .observed
            .attempt(EffectKind::ShutdownGuest);
        assert_eq!(attempt.is_some(), is_remembered);
    }
}

#[test]
fn episode_goes_on_when_only_its_json_is_removed_from_the_node() {
    let of = in_episode(1, Phase::AwaitingHost, RELEASE);
    let Record::Episode(episode) = crate::inventory::snapshot::record_of(&of) else {
        panic!("an episode is expected");
    };
    let written = record::write(&Record::Episode(episode), at(7));
    for (state, host, time, is_ours) in [
        ("powered-off", "esx-1", written.transition_time.clone(), true),
        // The Python controller went on from there, or writes its times with fractions.
        ("draining", "esx-1", written.transition_time.clone(), false),
        ("powered-off", "esx-2", written.transition_time.clone(), false),
        (
            "powered-off",
            "esx-1",
            Some("2026-11-18T11:06:47.123456".to_owned()),
            false,
        ),
    ] {
        let mut plain = NodeFacts {
            resource_version: 11,
            ..node_facts(1)
        };
        plain.annotations.state = Some(state.to_owned());
        plain.annotations.host = Some(host.to_owned());
        plain.annotations.transition_time = time.clone();
        let inventory = leading([trio(1), vec![copied(of.clone()), node(plain)]].concat());
        let record = &inventory.snapshots[&name(1)].record;
        assert_eq!(record.episode().is_some(), is_ours, "{state} {host} {time:?}");
    }
}
