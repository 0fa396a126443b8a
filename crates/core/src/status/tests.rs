use std::collections::BTreeSet;
use std::fmt::{Debug, Display};
use std::str::FromStr;

use super::node_event::NodeEvent;
use super::story::NodeStory;
use super::*;
use crate::facts::kubernetes::RequestAction;
use crate::fixtures::{self, at, episode, moment, record};
use crate::ids::EpisodeId;
use crate::maintenance::decide::Transition;
use crate::maintenance::episode::{DrainEnd, Episode, EpisodeResult, Phase};
use crate::maintenance::machine_guard::MachineGuards;
use crate::maintenance::observed::{DrainReport, HostState, ObservedNode, PowerState};
use crate::maintenance::record::{EndedEpisode, LastEpisode};
use crate::maintenance::waiting::{ParkReason, WaitingOn};
use crate::named::UnknownName;

/// Each name is unique and parses as its variant.
fn are_names<Kind>(all: &[Kind])
where
    Kind: Copy + Debug + Display + PartialEq + FromStr<Err = UnknownName>,
{
    let names: BTreeSet<String> = all.iter().map(ToString::to_string).collect();
    assert_eq!(names.len(), all.len(), "{all:?}");
    for kind in all {
        assert_eq!(kind.to_string().parse(), Ok(*kind));
        assert_eq!(
            format!("{kind:?}").parse(),
            Ok(*kind),
            "its CamelCase name is read too"
        );
    }
    let unknown = "no such".parse::<Kind>().unwrap_err();
    assert_eq!(unknown.to_string(), "\"no such\" is not a known name");
}

#[test]
fn names_are_unique_and_read_back() {
    are_names(PhaseKind::ALL);
    are_names(TriggerKind::ALL);
    are_names(WaitKind::ALL);
    are_names(HostKind::ALL);
    are_names(PodState::ALL);
    are_names(EpisodeOutcome::ALL);
    are_names(EffectKind::ALL);
}

fn seen(host: HostState) -> Observed {
    let vm = fixtures::vm(Some(PowerState::On), host);
    Observed::of(None, BoundVm::Found(vm), moment(0))
}

fn status(record: Record, seen: Observed) -> NodeStatus {
    NodeStatus::of(&NodeSnapshot {
        record,
        observed: seen,
    })
}

#[test]
fn node_is_idle_only_without_maintenance_and_request() {
    let is_idle = |seen| status(Record::InService, seen).is_idle;
    assert!(is_idle(seen(HostState::InService)));
    assert!(is_idle(seen(HostState::Unreachable)));
    let request = fixtures::request(RequestAction::Drain);
    assert!(!is_idle(Observed {
        request: Some(request),
        ..seen(HostState::InService)
    }));
    assert!(!is_idle(Observed {
        sources: SourceState::NoVcenter { why: String::new() },
        ..seen(HostState::InService)
    }));
    assert!(!is_idle(Observed {
        vm: BoundVm::NoUuid,
        ..seen(HostState::InService)
    }));
}

#[test]
fn a_parked_node_shows_the_phase_that_it_resumes() {
    let phase = Phase::Parked {
        reason: ParkReason::VmMissing,
        resume: Box::new(Phase::AwaitingHost),
        resume_since: Timestamp::UNIX_EPOCH,
    };
    let episode = episode(phase, 0);
    let parked = status(record(episode), seen(HostState::InMaintenance));
    assert_eq!(
        (parked.phase, parked.at_work),
        (PhaseKind::Parked, PhaseKind::AwaitingHost)
    );
    assert!(parked.at_work.vm_is_off());
    assert_eq!(parked.host(), Some(("esx1", HostKind::InMaintenance)));
}

fn node() -> NodeName {
    NodeName::new("gpu1")
}

fn show(board: &mut StatusBoard, record: Record, now: i64) -> bool {
    let snapshot = NodeSnapshot {
        record,
        observed: seen(HostState::InService),
    };
    let snapshots = BTreeMap::from([(node(), Arc::new(snapshot))]);
    let before = board.revision();
    board.update_statuses(&statuses(&snapshots), at(now));
    board.revision() != before
}

fn tell(board: &mut StatusBoard, story: &mut NodeStory, event: NodeEvent<'_>, now: i64) {
    let beat = story.tell(event, at(now));
    board.tell(&node(), &beat, at(now));
}

fn waits(board: &mut StatusBoard, story: &mut NodeStory, on: &WaitingOn, now: i64) {
    let event = NodeEvent::Waits {
        node: None,
        vm: &BoundVm::NotLookedUp,
        record: &Record::InService,
        on,
    };
    tell(board, story, event, now);
}

/// Writes a transition, as the actor does. Returns the record that is on the Node then.
fn recorded(
    board: &mut StatusBoard,
    before: &Record,
    after: Record,
    ended: Option<EpisodeResult>,
    now: i64,
) -> Record {
    let mut transition = Transition {
        record: after,
        unschedulable: None,
        ended,
        fulfilled: None,
    };
    let before = fixtures::closed(before, &mut transition, now);
    let event = NodeEvent::Recorded {
        node: None,
        vm: &BoundVm::NotLookedUp,
        before: &before,
        transition: &transition,
        wrote: (at(now), at(now)),
    };
    tell(board, &mut NodeStory::default(), event, now);
    transition.record
}

#[test]
fn line_names_the_change_and_then_what_it_means() {
    let (shutting, off) = (
        record(episode(Phase::ShuttingDown(DrainEnd::Complete), 1)),
        record(episode(Phase::AwaitingHost, 61)),
    );
    let change = fixtures::transition(off.clone());
    let line = |before: &Record, transition: &Transition| {
        let event = NodeEvent::Recorded {
            node: None,
            vm: &BoundVm::NotLookedUp,
            before,
            transition,
            wrote: (at(61), at(62)),
        };
        let beat = NodeStory::default().tell(event, at(62));
        (beat.line(), beat.is_new, beat.at)
    };
    let off_line = "ShuttingDown -> AwaitingHost: The VM is powered off after 1m".to_owned();
    assert_eq!(line(&shutting, &change), (off_line, true, at(62)));
    let gave_up = fixtures::transition(record(Episode {
        machine_guards: MachineGuards {
            left: Some("MachineHealthCheck ml/gpu".to_owned()),
            ..MachineGuards::default()
        },
        ..episode(Phase::AwaitingHost, 61)
    }));
    let (line, is_new, _) = line(&off, &gave_up);
    assert!(line.starts_with("The node is not held up: ") && !is_new, "{line}");
}

#[test]
fn late_wait_of_an_idle_node_is_not_shown() {
    let mut board = StatusBoard::default();
    show(&mut board, Record::InService, 1);
    waits(&mut board, &mut NodeStory::default(), &WaitingOn::VmLookup, 2);
    assert_eq!(board.nodes[&node()].waiting_on(), None);
}

#[test]
fn a_wait_of_the_same_kind_keeps_its_beginning() {
    let (mut board, mut story) = (StatusBoard::default(), NodeStory::default());
    let until = |seconds| WaitingOn::GuestShutdown { until: at(seconds) };
    for (now, since) in [(5, 5), (6, 5), (7, 5)] {
        waits(&mut board, &mut story, &until(now + 60), now);
        assert_eq!(board.nodes[&node()].waiting_on().unwrap().since, at(since));
    }
    waits(&mut board, &mut story, &WaitingOn::PowerState, 8);
    assert_eq!(board.nodes[&node()].waiting_on().unwrap().since, at(8));
}

#[test]
fn an_episode_is_followed_from_phase_to_phase_to_its_end() {
    let mut board = StatusBoard::default();
    let draining = record(episode(Phase::Draining, 1));
    let draining = recorded(&mut board, &Record::InService, draining, None, 1);
    assert!(show(&mut board, draining.clone(), 2));
    assert!(!show(&mut board, draining.clone(), 3), "nothing is different");
    let waiting = record(episode(Phase::AwaitingHost, 5));
    let waiting = recorded(&mut board, &draining, waiting, None, 5);
    // The watch is behind the actor.
    show(&mut board, draining, 6);
    recorded(
        &mut board,
        &waiting,
        Record::InService,
        Some(EpisodeResult::Succeeded),
        9,
    );
    show(&mut board, Record::InService, 10);
    let entry = &board.nodes[&node()];
    let latest = entry.latest.as_ref().unwrap();
    let phases = latest.episode.phase_spans();
    let phases: Vec<_> = phases.iter().map(|it| (it.kind, it.from, it.to)).collect();
    assert_eq!(
        phases,
        [
            (PhaseKind::Draining, at(1), Some(at(5))),
            (PhaseKind::AwaitingHost, at(5), Some(at(9))),
        ]
    );
    let id = &latest.episode.id;
    assert_eq!(
        entry.ending(id).map(|ending| (ending.how, ending.at)),
        Some((EpisodeResult::Succeeded, at(9)))
    );
    assert_eq!(entry.gone_episode(), Some((id, at(10))));
}

#[test]
fn an_episode_that_was_away_for_a_moment_has_not_ended() {
    let mut board = StatusBoard::default();
    let draining = record(episode(Phase::Draining, 1));
    let unreadable = Record::Unreadable {
        why: "a defect".to_owned(),
    };
    show(&mut board, draining.clone(), 1);
    show(&mut board, unreadable, 2);
    show(&mut board, draining, 3);
    assert_eq!(board.nodes[&node()].gone_episode(), None);
}

#[test]
fn pods_of_a_drain_that_begins_anew_are_counted_anew() {
    let mut board = StatusBoard::default();
    let drains = |board: &mut StatusBoard, listed: usize, since: i64| {
        let mut snapshot = NodeSnapshot {
            record: record(episode(Phase::Draining, since)),
            observed: seen(HostState::InService),
        };
        snapshot.observed.drain = Some(DrainReport {
            listed,
            ..fixtures::drain_report(moment(since).monotonic, Vec::new())
        });
        let snapshots = BTreeMap::from([(node(), Arc::new(snapshot))]);
        board.update_statuses(&statuses(&snapshots), at(since));
        board.nodes[&node()].latest.as_ref().unwrap().most
    };
    assert_eq!(drains(&mut board, 20, 1), Some((20, 0)));
    assert_eq!(drains(&mut board, 3, 1), Some((20, 0)), "pods have gone");
    show(&mut board, record(episode(Phase::Rejoining, 5)), 5);
    assert_eq!(drains(&mut board, 2, 9), Some((2, 0)));
}

#[test]
fn end_is_as_observed_or_else_as_the_node_names_it() {
    let back = episode(Phase::Rejoining, 5);
    let id = back.id.clone();
    let last = |ended| LastEpisode {
        ended,
        at: at(8),
        episode: EndedEpisode::of(&back),
    };
    let show_end = |board: &mut StatusBoard, ended| {
        let mut snapshot = NodeSnapshot {
            record: Record::InService,
            observed: seen(HostState::InService),
        };
        snapshot.observed.node = Some(ObservedNode {
            last_episode: Some(Arc::new(last(ended))),
            ..fixtures::node()
        });
        let snapshots = BTreeMap::from([(node(), Arc::new(snapshot))]);
        board.update_statuses(&statuses(&snapshots), at(10));
    };
    let mut restarted = StatusBoard::default();
    show_end(&mut restarted, Some(EpisodeResult::Failed));
    let result = |board: &StatusBoard, id: &EpisodeId| board.nodes[&node()].result_of(id);
    assert_eq!(result(&restarted, &id), Some((EpisodeResult::Failed, at(8))));
    let another = EpisodeId::new("another");
    assert_eq!(result(&restarted, &another), None);
    show_end(&mut restarted, None);
    assert_eq!(result(&restarted, &id), None, "another one took its place");

    let mut observed = StatusBoard::default();
    let before = record(back.clone());
    show(&mut observed, before.clone(), 6);
    let ended = Some(EpisodeResult::Cancelled);
    recorded(&mut observed, &before, Record::InService, ended, 7);
    show_end(&mut observed, Some(EpisodeResult::Failed));
    assert_eq!(result(&observed, &id), Some((EpisodeResult::Cancelled, at(7))));
}

#[test]
fn node_with_an_evacuation_policy_is_told_once_while_it_has_one() {
    let mut policies = ToldOnce::default();
    let mut show = |of: &[(&str, bool)]| {
        let nodes = of.iter().map(|(name, is_marked)| {
            let mut observed = seen(HostState::InService);
            if let BoundVm::Found(vm) = &mut observed.vm {
                vm.evacuation_power_off = *is_marked;
            }
            (
                NodeName::new(*name),
                Arc::new(status(Record::InService, observed)),
            )
        });
        policies.update_statuses(&nodes.collect(), NodeStatus::evacuation_policy);
        policies.take_new()
    };
    let names = |names: &[&str]| names.iter().copied().map(NodeName::new).collect::<Vec<_>>();
    let all = |b| [("a", true), ("b", b), ("c", true)];
    assert_eq!(show(&all(false)), names(&["a", "c"]));
    assert_eq!(show(&all(false)), []);
    assert_eq!(show(&all(true)), names(&["b"]), "concerned later");
    assert_eq!(show(&all(false)), []);
    assert_eq!(show(&all(true)[..2]), names(&["b"]), "again");
    assert_eq!(show(&all(true)), names(&["c"]), "was gone");
}

#[test]
fn node_whose_vm_is_not_known_for_a_moment_is_not_told_again() {
    let mut policies = ToldOnce::default();
    let mut marked = seen(HostState::InService);
    if let BoundVm::Found(vm) = &mut marked.vm {
        vm.evacuation_power_off = true;
    }
    let unknown = Observed {
        vm: BoundVm::NotLookedUp,
        ..marked.clone()
    };
    for (observed, untold) in [(&marked, 1), (&unknown, 0), (&marked, 0)] {
        let statuses = BTreeMap::from([(node(), Arc::new(status(Record::InService, observed.clone())))]);
        policies.update_statuses(&statuses, NodeStatus::evacuation_policy);
        assert_eq!(policies.take_new().len(), untold);
    }
}
