//! Single situations and their decisions, where a law over all combinations is too weak.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use haulout_core::facts::kubernetes::RequestAction;
use haulout_core::ids::{BootId, EpisodeId, HostRef, NodeName, NodeUid, RequestUid, TaskRef, VmRef, VmUuid};
use haulout_core::maintenance::clock::{Elapsed, Timer};
use haulout_core::maintenance::decide::{Decision, Transition, decide, wants_place};
use haulout_core::maintenance::effect::{Effect, EffectKind, PowerOnTarget};
use haulout_core::maintenance::episode::{
    CordonOwner, Detection, DrainEnd, Episode, EpisodeResult, HostIdentity, InFlight, Phase, PythonEpisode,
    PythonState, Record, RefusedMove,
};
use haulout_core::maintenance::observed::{
    Admission, AttemptOutcome, BoundVm, CordonedBy, EffectAttempt, FailedMaintenance, HostState,
    LeadershipEpoch, Observed, ObservedNode, ObservedVm, PendingEviction, PendingReason, PowerState,
    RecordAge, RetryAdvice, SlotLimit, Strategy,
};
use haulout_core::maintenance::placement::PlacementOffer;
use haulout_core::maintenance::policy::{DrainTimeoutAction, Policy};
use haulout_core::maintenance::request::{Approval, Request};
use haulout_core::maintenance::waiting::WaitKind;
use haulout_core::maintenance::waiting::{ParkReason, WaitingOn};

use crate::cases::{self, held, parked, refused, report, watched};
use crate::facts::*;

const SHUTTING_DOWN: Phase = Phase::ShuttingDown(DrainEnd::Complete);
const POWERING_ON: Phase = Phase::PoweringOn { by_drs: false };

fn new_boot() -> BootId {
    BootId::new("boot-after")
}

fn to_spare() -> HostIdentity {
    HostIdentity {
        moref: Some(spare()),
        name: "esx-spare".into(),
    }
}

/// A node that Haulout has cordoned.
fn cordoned() -> ObservedNode {
    ObservedNode {
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        ..node()
    }
}

/// A cordoned node, whose VM is in this state on a host in that one.
fn seen(power: Option<PowerState>, host: HostState) -> Observed {
    observed(cordoned(), vm(power, host))
}

/// The same, with a current list without pods.
fn drained(host: HostState) -> Observed {
    Observed {
        drain: Some(report(moment(1).monotonic, 0, vec![])),
        ..seen(Some(PowerState::On), host)
    }
}

fn vm_of(seen: &mut Observed) -> &mut ObservedVm {
    match &mut seen.vm {
        BoundVm::Found(vm) => vm,
        other => panic!("no VM: {other:?}"),
    }
}

fn node_of(seen: &mut Observed) -> &mut ObservedNode {
    seen.node.as_mut().expect("a Node")
}

/// Puts the VM on another host than the episode's.
fn on_spare(mut seen: Observed, host: HostState, home: HostState) -> Observed {
    let vm = vm_of(&mut seen);
    vm.host_ref = Some(spare());
    vm.host_name = "esx-spare".to_owned();
    vm.host = host;
    Observed { home, ..seen }
}

fn attempt(seconds: i64, refusals: u32, outcome: AttemptOutcome) -> EffectAttempt {
    EffectAttempt {
        at: moment(seconds),
        host: None,
        task: None,
        refusals,
        refused_since: moment(seconds),
        tries: refusals.max(1),
        outcome,
    }
}

fn lasted(seconds: u64) -> Elapsed {
    Elapsed::of(Duration::from_secs(seconds))
}

fn asked_for(seconds: u64) -> Option<Timer> {
    Some(Timer {
        since: at(0),
        elapsed: lasted(seconds),
    })
}

fn record(episode: &Episode) -> Record {
    Record::Episode(Arc::new(episode.clone()))
}

/// An episode with our cordon, whose VM has not been off.
fn down(phase: Phase) -> Episode {
    episode(phase, CordonOwner::Ours, false)
}

/// An episode with our cordon, whose VM has been off.
fn away(phase: Phase) -> Episode {
    episode(phase, CordonOwner::Ours, true)
}

/// The decision for an episode at second 2.
fn decided(episode: &Episode, seen: &Observed) -> Decision {
    decided_by(&policy(DrainTimeoutAction::PowerOff), episode, seen)
}

fn decided_by(policy: &Policy, episode: &Episode, seen: &Observed) -> Decision {
    decide(&record(episode), seen, policy, moment(2))
}

fn transition(decision: Decision) -> Transition {
    match decision {
        Decision::Write(transition) => *transition,
        other => panic!("nothing is written: {other:#?}"),
    }
}

/// The episode that the decision writes.
fn written(decision: Decision) -> Episode {
    let transition = transition(decision);
    let episode = transition.record.episode();
    episode.expect("an episode").clone()
}

fn effect(decision: Decision) -> Effect {
    match decision {
        Decision::Act { effect, .. } => effect,
        other => panic!("nothing is done: {other:#?}"),
    }
}

fn waiting(decision: Decision) -> WaitingOn {
    match decision {
        Decision::Wait { waiting_on, .. } => waiting_on,
        other => panic!("it does not wait: {other:#?}"),
    }
}

#[test]
fn nothing_is_done_on_a_host_that_came_back_by_itself_before_it_has_stayed() {
    let waits_for = WaitingOn::HostSettling {
        host: "esx1".to_owned(),
        until: at(60),
    };
    for (phase, power) in [
        (Phase::Draining, Some(PowerState::On)),
        (SHUTTING_DOWN, Some(PowerState::On)),
        (Phase::AwaitingHost, Some(PowerState::Off)),
        (Phase::Rejoining, Some(PowerState::On)),
    ] {
        let kind = phase.kind();
        let was_off = phase.kind().vm_is_off() || phase == Phase::Rejoining;
        let episode = episode(phase, CordonOwner::Ours, was_off);
        let decision = decided(&episode, &seen(power, settling()));
        assert_eq!(waiting(decision), waits_for, "{kind:?}");
    }
    assert_eq!(
        decide(
            &Record::InService,
            &seen(Some(PowerState::On), settling()),
            &policy(DrainTimeoutAction::PowerOff),
            moment(1)
        ),
        Decision::Idle
    );
}

// Ownership and identity of an episode.

#[test]
fn record_with_another_epoch_is_taken_over_whether_higher_or_lower() {
    // The Lease may have been deleted, and then counts from the beginning.
    for (epoch, leads, taken_over) in [(3, 7, true), (7, 3, true), (7, 7, false), (7, 0, false)] {
        for has_node in [true, false] {
            let mut seen = seen(Some(PowerState::Off), HostState::InMaintenance);
            seen.has_copy = true;
            seen.leadership = LeadershipEpoch {
                epoch: leads,
                ..LeadershipEpoch::ALONE
            };
            if !has_node {
                seen.node = None;
            }
            let current = Episode {
                epoch,
                ..away(Phase::AwaitingHost)
            };
            let decision = decided(&current, &seen);
            let case = format!("epoch {leads} over {}, Node: {has_node}", current.epoch);
            if taken_over {
                assert_eq!(written(decision).epoch, leads, "{case}");
            } else {
                assert!(matches!(waiting(decision), WaitingOn::HostExit { .. }), "{case}");
            }
        }
    }
}

#[test]
fn power_is_not_cut_while_the_node_object_is_gone() {
    for phase in [
        Phase::Queued,
        Phase::Draining,
        Phase::Drained,
        SHUTTING_DOWN,
        Phase::Rejoining,
    ] {
        for has_copy in [false, true] {
            let mut seen = drained(entering());
            seen.node = None;
            seen.has_copy = has_copy;
            let overdue = Episode {
                in_flight: InFlight {
                    guest_shutdown: asked_for(1000),
                    power_off: asked_for(0),
                    ..InFlight::default()
                },
                ..down(phase.clone())
            };
            assert_eq!(
                waiting(decided(&overdue, &seen)),
                WaitingOn::NodeObject,
                "{phase:?}"
            );
        }
    }
}

#[test]
fn vm_that_is_off_without_node_and_copy_is_powered_on_where_it_is() {
    let gone = |host| Observed {
        node: None,
        ..seen(Some(PowerState::Off), host)
    };
    let power_on = Effect::PowerOn {
        vm: VmRef::new("vm-1"),
        place: PowerOnTarget::Host(home()),
    };
    for phase in [
        Phase::Draining,
        SHUTTING_DOWN,
        Phase::AwaitingHost,
        Phase::Rejoining,
    ] {
        let decision = decided(&away(phase), &gone(HostState::InService));
        assert_eq!(effect(decision), power_on);
    }
    let stays_off = |episode: &Episode, seen: &Observed| {
        assert_eq!(
            waiting(decided(episode, seen)),
            WaitingOn::NodeObject,
            "{seen:#?}"
        );
    };
    let waits = away(Phase::AwaitingHost);
    for host in [
        entering(),
        HostState::InMaintenance,
        settling(),
        HostState::Quarantined,
        HostState::Unknown,
    ] {
        stays_off(&waits, &gone(host));
    }
    let asked = Observed {
        request: Some(request(RequestAction::PowerOff)),
        ..gone(HostState::InService)
    };
    stays_off(&waits, &asked);
    let kept_off = Episode {
        power_off_request: Some(request(RequestAction::PowerOff).identity),
        ..waits.clone()
    };
    stays_off(&kept_off, &gone(HostState::InService));
    let mut another = gone(HostState::InService);
    vm_of(&mut another).uuid = VmUuid::parse("4215e1a2-7c3d-9e4f-0102-0304050607ff");
    let known = Episode {
        vm_uuid: Some(uuid(8)),
        ..waits.clone()
    };
    stays_off(&known, &another);
    let mut tried = gone(HostState::InService);
    let refusal = attempt(1, 3, refused(RetryAdvice::Retry));
    tried.attempts.insert(EffectKind::PowerOn, refusal);
    match decided(&waits, &tried) {
        Decision::Wait { recheck, .. } => assert_eq!(recheck, Some(moment(5).monotonic)),
        other => panic!("it is tried again at once: {other:#?}"),
    }
}

/// A Node that was registered again, not cordoned.
fn registered_anew(power: Option<PowerState>) -> Observed {
    let mut seen = observed(
        ObservedNode {
            uid: NodeUid::new("uid-2"),
            ..node()
        },
        vm(power, entering()),
    );
    vm_of(&mut seen).uuid = Some(uuid(8));
    seen
}

fn of_vm(episode: Episode) -> Episode {
    Episode {
        vm_uuid: Some(uuid(8)),
        vm: Some(VmRef::new("vm-1")),
        ..episode
    }
}

#[test]
fn episode_goes_on_on_a_node_registered_anew_only_if_the_vm_is_the_same() {
    let other = VmUuid::parse("4215e1a2-7c3d-9e4f-0102-0304050607ff");
    let same = Some(uuid(8));
    let swapped = Some(uuid(8).swapped());
    for (was, is, moref, powered_off, goes_on) in [
        (same, same, "vm-1", false, true),
        (same, swapped, "vm-1", false, true),
        (same, other, "vm-1", false, false),
        (same, other, "vm-1", true, false),
        (same, None, "vm-1", false, false),
        (None, same, "vm-1", false, false),
        (None, None, "vm-1", false, false),
        // Another VM with the same UUID while the first one may still run, or the same VM registered again while off.
        (same, same, "vm-2", false, false),
        (same, same, "vm-2", true, true),
    ] {
        let mut seen = registered_anew(Some(PowerState::On));
        vm_of(&mut seen).uuid = is;
        vm_of(&mut seen).moref = VmRef::new(moref);
        let episode = Episode {
            vm_uuid: was,
            powered_off,
            ..of_vm(down(Phase::Draining))
        };
        let decision = decided(&episode, &seen);
        let case = format!("{was:?} {is:?} {moref} {powered_off}");
        if goes_on {
            assert_eq!(written(decision).node_uid, NodeUid::new("uid-2"), "{case}");
        } else {
            assert_eq!(
                waiting(decision),
                WaitingOn::Parked(ParkReason::AnotherNode),
                "{case}"
            );
        }
    }
}

#[test]
fn node_registered_anew_waits_until_its_vm_is_known() {
    let another = WaitingOn::Parked(ParkReason::AnotherNode);
    for (vm, waits_for) in [
        (BoundVm::NotLookedUp, WaitingOn::VmLookup),
        (BoundVm::Missing { was_known: true }, another.clone()),
        (BoundVm::NoUuid, another.clone()),
        (
            BoundVm::Ambiguous([VmRef::new("vm-1"), VmRef::new("vm-2")].into()),
            another.clone(),
        ),
        (BoundVm::Shared(vec![NodeName::new("other")]), another.clone()),
    ] {
        let seen = Observed {
            vm,
            ..registered_anew(Some(PowerState::On))
        };
        let decision = decided(&of_vm(down(Phase::Draining)), &seen);
        assert_eq!(waiting(decision), waits_for);
    }
}

#[test]
fn node_registered_anew_is_drained_again_before_its_power_is_cut() {
    let (on, off) = (Some(PowerState::On), Some(PowerState::Off));
    for (phase, power, next) in [
        (Phase::Queued, on, Phase::Queued),
        (Phase::Draining, on, Phase::Draining),
        (Phase::Drained, on, Phase::Draining),
        (SHUTTING_DOWN, on, Phase::Draining),
        (Phase::ShuttingDown(DrainEnd::TimedOut), on, Phase::Draining),
        (parked(&SHUTTING_DOWN), on, Phase::Draining),
        (SHUTTING_DOWN, off, SHUTTING_DOWN),
        (Phase::AwaitingHost, off, Phase::AwaitingHost),
        (parked(&Phase::AwaitingHost), off, Phase::AwaitingHost),
        (Phase::Rejoining, on, Phase::Rejoining),
    ] {
        let before = Episode {
            drained_for: lasted(500),
            elapsed: lasted(500),
            ..of_vm(down(phase.clone()))
        };
        let transition = transition(decided(&before, &registered_anew(power)));
        let after = transition.record.episode().unwrap();
        assert_eq!(after.phase, next, "{phase:?}");
        // Its guest may have been asked, which no other phase assumes.
        let may_be_asked = matches!(phase, Phase::ShuttingDown(_)) && next == Phase::Draining;
        let is_parked_shutdown = phase == parked(&SHUTTING_DOWN);
        assert_eq!(
            after.in_flight.is_assumed,
            may_be_asked || is_parked_shutdown,
            "{phase:?}"
        );
        // New pods are unknown, so the drain has its whole time.
        assert_eq!((after.elapsed, after.drained_for), (Elapsed::ZERO, Elapsed::ZERO));
        let is_cordoned = next != Phase::Queued;
        assert_eq!(transition.unschedulable, is_cordoned.then_some(true), "{phase:?}");
        let cordon = if is_cordoned {
            CordonOwner::Ours
        } else {
            CordonOwner::NotYet
        };
        assert_eq!(after.cordon, cordon, "{phase:?}");
    }
}

#[test]
fn cordon_of_a_node_put_back_from_a_copy_is_taken_away_at_the_end() {
    let python = || CordonOwner::Adopted(Some("kubectl-replace".to_owned()));
    let by_other = || CordonedBy::Other("kubectl-replace".to_owned());
    for (before, is_put_back, by, after) in [
        (CordonOwner::Ours, true, CordonedBy::Haulout, CordonOwner::Ours),
        (
            CordonOwner::Ours,
            true,
            CordonedBy::Unknown,
            CordonOwner::Adopted(None),
        ),
        (CordonOwner::Ours, true, by_other(), python()),
        (CordonOwner::Theirs, true, by_other(), CordonOwner::Theirs),
        // Cordoned by another user when it was registered.
        (CordonOwner::Ours, false, by_other(), CordonOwner::Theirs),
        (CordonOwner::Ours, false, CordonedBy::Unknown, CordonOwner::Theirs),
        // An earlier Node, from a restored etcd, without its record.
        (CordonOwner::Ours, false, CordonedBy::Haulout, CordonOwner::Ours),
        (
            CordonOwner::Theirs,
            false,
            CordonedBy::Haulout,
            CordonOwner::Theirs,
        ),
    ] {
        let mut seen = registered_anew(Some(PowerState::On));
        seen.is_record_on_node = is_put_back;
        node_of(&mut seen).unschedulable = true;
        node_of(&mut seen).cordoned_by = by.clone();
        let episode = of_vm(episode(Phase::Draining, before.clone(), false));
        let case = format!("{before:?} put back: {is_put_back} by {by:?}");
        assert_eq!(written(decided(&episode, &seen)).cordon, after, "{case}");
    }
}

// The begin of an episode.

#[test]
fn node_that_may_not_drain_takes_no_slot() {
    let queued = down(Phase::Queued);
    let place = |skip: bool, approved: Option<Approval>, require_approval: bool| {
        let mut node = node();
        node.overrides.skip = skip;
        node.overrides.approved = approved;
        let vm = vm(Some(PowerState::On), entering());
        [Record::InService, record(&queued)]
            .map(|record| wants_place(&record, &node, &vm, None, require_approval))
    };
    let approval = || Some(Approval::Episode(queued.id.clone()));
    let earlier = Some(Approval::Episode(EpisodeId::new(
        "ffeeddccbbaa99887766554433221100",
    )));
    assert_eq!(place(false, None, false), [Some(at(0)), Some(at(0))]);
    assert_eq!(place(true, None, false), [None, None], "skip");
    assert_eq!(place(false, None, true), [None, None], "not approved");
    assert_eq!(place(false, earlier, true), [None, None], "another episode");
    assert_eq!(place(false, approval(), true), [None, Some(at(0))], "approved");
    assert_eq!(place(true, approval(), true), [None, None], "approved, and skip");
}

#[test]
fn phases_that_are_about_to_drain_take_a_slot() {
    let wants = |episode: &Episode, power, host, request: Option<Request>| {
        let vm = vm(power, host);
        wants_place(&record(episode), &cordoned(), &vm, request.as_ref(), false).is_some()
    };
    let (on, out) = (Some(PowerState::On), HostState::InService);
    for phase in [Phase::Queued, Phase::Drained, Phase::Rejoining] {
        assert!(wants(&away(phase.clone()), on, entering(), None), "{phase:?}");
        assert!(
            !wants(&away(phase.clone()), Some(PowerState::Off), entering(), None),
            "{phase:?}"
        );
        assert!(!wants(&away(phase), on, out.clone(), None));
    }
    for phase in [Phase::Draining, SHUTTING_DOWN, Phase::AwaitingHost, POWERING_ON] {
        assert!(!wants(&away(phase.clone()), on, entering(), None), "{phase:?}");
    }
    let keeps = Some(request(RequestAction::Drain));
    assert!(!wants(&down(Phase::Drained), on, out.clone(), keeps));
    let asks = Some(request(RequestAction::Reboot));
    assert!(wants(&down(Phase::Drained), on, out.clone(), asks.clone()));
    assert!(wants(&down(Phase::Rejoining), on, out.clone(), asks.clone()));
    assert!(
        !wants(&away(Phase::Rejoining), on, out, asks),
        "it has been rebooted"
    );
}

#[test]
fn drain_that_needs_approval_does_not_begin_without_it() {
    let queued_episode = episode(Phase::Queued, CordonOwner::NotYet, false);
    let earlier = EpisodeId::new("ffeeddccbbaa99887766554433221100");
    for (require_approval, episode, drains) in [
        (false, None, true),
        (true, None, false),
        (true, Some(earlier.clone()), false),
        (true, Some(queued_episode.id.clone()), true),
    ] {
        let policy = Policy {
            require_approval,
            ..policy(DrainTimeoutAction::PowerOff)
        };
        let mut node = node();
        let case = format!("required: {require_approval}, approved: {episode:?}");
        node.overrides.approved = episode.map(Approval::Episode);
        let seen = observed(node, vm(Some(PowerState::On), entering()));
        assert_eq!(seen.admission, Admission::Granted);
        let begun = transition(decide(&Record::InService, &seen, &policy, moment(2)));
        let begins = begun.record.phase() == Some(&Phase::Draining);
        assert_eq!(begins, !require_approval, "{case}");
        assert_eq!(begun.unschedulable, begins.then_some(true), "{case}");
        let queued = decided_by(&policy, &queued_episode, &seen);
        if drains {
            assert_eq!(written(queued).phase, Phase::Draining, "{case}");
        } else {
            let episode = queued_episode.id.clone();
            assert_eq!(waiting(queued), WaitingOn::Approval { episode }, "{case}");
        }
    }
}

#[test]
fn cordon_from_before_the_drain_counts_as_a_persons() {
    let by = |manager: &str| CordonedBy::Other(manager.to_owned());
    for (unschedulable, cordoned_by, cordon) in [
        (false, CordonedBy::Unknown, CordonOwner::Ours),
        (true, CordonedBy::Unknown, CordonOwner::Theirs),
        (true, CordonedBy::Haulout, CordonOwner::Theirs),
        (true, by("kubectl-cordon"), CordonOwner::Theirs),
    ] {
        let node = ObservedNode {
            unschedulable,
            cordoned_by,
            ..node()
        };
        let seen = observed(node, vm(Some(PowerState::On), entering()));
        let policy = policy(DrainTimeoutAction::PowerOff);
        let queued = record(&episode(Phase::Queued, CordonOwner::NotYet, false));
        for record in [Record::InService, queued] {
            let begun = transition(decide(&record, &seen, &policy, moment(2)));
            let episode = begun.record.episode().unwrap();
            assert_eq!((&episode.phase, &episode.cordon), (&Phase::Draining, &cordon));
            assert_eq!(begun.unschedulable, (!unschedulable).then_some(true));
        }
    }
}

/// A cordon of somebody else that was restored while a VM was off has Haulout's field manager. Where the record of the next episode
/// is removed, its copy from the queue is all that tells whose cordon it is.
#[test]
fn owner_of_a_cordon_is_known_where_only_the_copy_from_the_queue_is_left() {
    let policy = policy(DrainTimeoutAction::PowerOff);
    for (is_cordoned, in_queue, owner) in [
        (false, CordonOwner::NotYet, CordonOwner::Ours),
        (true, CordonOwner::Theirs, CordonOwner::Theirs),
    ] {
        let here = ObservedNode {
            unschedulable: is_cordoned,
            cordoned_by: CordonedBy::Haulout,
            ..node()
        };
        let mut seen = observed(here, vm(Some(PowerState::On), entering()));
        seen.admission = Admission::Queued {
            ahead: vec![NodeName::new("other")],
            position: 1,
            limit: SlotLimit::ConcurrentDrains(1),
        };
        let queued = transition(decide(&Record::InService, &seen, &policy, moment(2)));
        let episode = queued.record.episode().unwrap();
        assert_eq!((&episode.phase, &episode.cordon), (&Phase::Queued, &in_queue));
        assert_eq!(queued.unschedulable, None);
        // The drain has begun, and the annotations are removed. The copy is from before.
        seen.admission = Admission::Granted;
        seen.is_record_on_node = false;
        node_of(&mut seen).unschedulable = true;
        let drains = transition(decide(&queued.record, &seen, &policy, moment(3)));
        assert_eq!(drains.record.episode().unwrap().cordon, owner);
        // Another leader writes it to the Node first.
        seen.leadership.epoch += 1;
        let taken_over = transition(decide(&queued.record, &seen, &policy, moment(3)));
        assert_eq!(taken_over.record.phase(), Some(&Phase::Queued));
        seen.is_record_on_node = true;
        let drains = transition(decide(&taken_over.record, &seen, &policy, moment(4)));
        assert_eq!(drains.record.episode().unwrap().cordon, owner);
    }
}

// Parking, and the remaining time of a phase.

#[test]
fn cordon_of_a_person_on_a_parked_node_is_recorded_before_it_resumes() {
    for (by, owner) in [
        (CordonedBy::Haulout, CordonOwner::Ours),
        (
            CordonedBy::Other("kubectl-cordon".to_owned()),
            CordonOwner::Theirs,
        ),
    ] {
        let mut seen = seen(Some(PowerState::On), entering());
        node_of(&mut seen).cordoned_by = by.clone();
        let mut before = down(parked(&Phase::Draining));
        if owner == CordonOwner::Theirs {
            before = written(decided(&before, &seen));
            assert_eq!(before.phase, parked(&Phase::Draining));
        }
        let resumed = written(decided(&before, &seen));
        assert_eq!(
            (resumed.phase, resumed.cordon),
            (Phase::Draining, owner),
            "{by:?}"
        );
    }
}

#[test]
fn record_that_only_this_process_remembers_is_written_before_anything_is_done() {
    let before = away(POWERING_ON);
    let mut seen = seen(Some(PowerState::Off), HostState::InService);
    assert_eq!(effect(decided(&before, &seen)).kind(), EffectKind::PowerOn);
    seen.is_only_remembered = true;
    seen.is_record_on_node = false;
    let written = written(decided(&before, &seen));
    assert_eq!(
        (written.phase, written.revision),
        (before.phase, before.revision + 1)
    );
}

#[test]
fn drain_that_was_parked_has_its_whole_time_again() {
    let waited = Episode {
        elapsed: lasted(3600),
        drained_for: lasted(500),
        ..down(parked(&Phase::Draining))
    };
    let mut seen = seen(Some(PowerState::On), entering());
    let resumed = written(decided(&waited, &seen));
    assert_eq!(resumed.phase, Phase::Draining);
    assert_eq!(
        (resumed.elapsed, resumed.drained_for),
        (Elapsed::ZERO, Elapsed::ZERO)
    );
    assert_eq!(resumed.since, at(2));
    seen.record_seen.at = moment(2);
    seen.record_seen.phase_at = moment(2).monotonic;
    assert_eq!(effect(decided(&resumed, &seen)).kind(), EffectKind::DrainRound);
}

#[test]
fn drain_that_was_parked_evicts_again_before_its_time_counts_as_over() {
    let waited = Episode {
        elapsed: lasted(3600),
        drained_for: lasted(500),
        ..down(parked(&Phase::Draining))
    };
    let seen = Observed {
        drain: Some(report(moment(1).monotonic, 0, vec![held()])),
        ..seen(Some(PowerState::On), entering())
    };
    let resumed = written(decided(&waited, &seen));
    assert_eq!((resumed.phase, resumed.elapsed), (Phase::Draining, Elapsed::ZERO));
}

#[test]
fn parked_phase_stays_parked_while_its_reason_lasts() {
    let waits = Episode {
        since: at(1),
        ..down(parked(&Phase::Draining))
    };
    let of = |vm| Observed {
        vm,
        ..seen(Some(PowerState::On), entering())
    };
    let missing = of(BoundVm::Missing { was_known: true });
    assert_eq!(
        waiting(decided(&waits, &missing)),
        WaitingOn::Parked(ParkReason::VmMissing)
    );
    let again = written(decided(&waits, &of(BoundVm::NoUuid))).phase;
    let Phase::Parked {
        reason,
        resume,
        resume_since,
    } = again
    else {
        panic!("it is not parked");
    };
    assert_eq!((reason, *resume), (ParkReason::NoUuid, Phase::Draining));
    assert_eq!(
        resume_since,
        at(0),
        "the phase began before the episode was parked"
    );
}

/// Episodes that wait for something with a deadline, each with that deadline in seconds.
fn with_deadlines() -> Vec<(Episode, Observed, u64)> {
    let to = to_spare();
    let waits_for_ready = |mut seen: Observed| {
        node_of(&mut seen).ready = false;
        seen
    };
    let in_flight = |power_off| InFlight {
        guest_shutdown: asked_for(1000),
        power_off: asked_for(power_off),
        ..InFlight::default()
    };
    let mut being_cut = seen(Some(PowerState::On), HostState::InService);
    vm_of(&mut being_cut).is_being_cut = true;
    let not_visible = drained(HostState::Unreachable);
    let mut asks_a_question = drained(entering());
    vm_of(&mut asks_a_question).question = Some("?".to_owned());
    let mut refused_at_home = seen(Some(PowerState::Off), HostState::InService);
    let refusal = attempt(1, 1, refused(RetryAdvice::Cluster));
    refused_at_home.attempts.insert(EffectKind::PowerOn, refusal);
    refused_at_home.offer = PlacementOffer::default();
    let refuses = HostIdentity {
        moref: Some(home()),
        name: "esx1".into(),
    };
    let mut has_refused = away(Phase::AwaitingHost);
    has_refused.refused(&home(), RefusedMove::PowerOn, "no");
    has_refused.host = refuses;
    vec![
        (
            away(Phase::Relocating { to }),
            seen(Some(PowerState::Off), HostState::InMaintenance),
            600,
        ),
        (
            away(POWERING_ON),
            seen(Some(PowerState::Off), HostState::InService),
            300,
        ),
        (
            away(Phase::Rejoining),
            waits_for_ready(seen(Some(PowerState::On), HostState::InService)),
            300,
        ),
        (has_refused, refused_at_home, 300),
        (
            Episode {
                in_flight: in_flight(0),
                ..down(SHUTTING_DOWN)
            },
            drained(entering()),
            300,
        ),
        (down(SHUTTING_DOWN), asks_a_question, 2 * 120 + 300),
        (down(SHUTTING_DOWN), not_visible, 2 * 120 + 300),
        (
            Episode {
                in_flight: in_flight(0),
                ..down(Phase::Rejoining)
            },
            being_cut,
            300,
        ),
    ]
}

#[test]
fn vm_that_its_host_refuses_stays_parked_while_other_hosts_are_surveyed() {
    let is_refused = |(episode, _, _): &(Episode, Observed, u64)| episode.phase == Phase::AwaitingHost;
    let (episode, mut seen, seconds) = with_deadlines().into_iter().find(is_refused).unwrap();
    seen.offer.survey = vec![spare()];
    seen.attempts
        .insert(EffectKind::Survey, attempt(-1000, 1, AttemptOutcome::Done));
    let overdue = Episode {
        elapsed: lasted(seconds),
        ..episode
    };
    let parked = written(decided(&overdue, &seen));
    assert!(matches!(parked.phase, Phase::Parked { .. }), "{:?}", parked.phase);
    seen.record_seen.at = moment(2);
    let Decision::Act {
        effect, waiting_on, ..
    } = decided(&parked, &seen)
    else {
        panic!("it does not stay parked");
    };
    assert_eq!(effect.kind(), EffectKind::Survey);
    assert!(matches!(waiting_on, WaitingOn::Parked(_)), "{waiting_on:?}");
}

#[test]
fn phase_that_is_overdue_is_parked_and_goes_on_trying() {
    for (episode, seen, seconds) in with_deadlines() {
        let after = |elapsed: u64| Episode {
            elapsed: lasted(elapsed),
            in_flight: InFlight {
                power_off: episode.in_flight.power_off.and_then(|_| asked_for(elapsed)),
                ..episode.in_flight
            },
            ..episode.clone()
        };
        let phase = episode.phase.name();
        let before = decided(&after(seconds - 10), &seen);
        assert!(
            matches!(before, Decision::Act { .. } | Decision::Wait { .. }),
            "{phase} is not overdue yet: {before:#?}"
        );
        let overdue = written(decided(&after(seconds), &seen));
        let Phase::Parked { reason, resume, .. } = &overdue.phase else {
            panic!("{phase} is not parked: {overdue:#?}");
        };
        assert!(
            matches!(reason, ParkReason::Overdue { phase: overdue, .. } if overdue == phase),
            "{phase}: {reason:?}"
        );
        assert_eq!(**resume, episode.phase);
        let seen = Observed {
            record_seen: RecordAge {
                at: moment(2),
                ..seen.record_seen
            },
            ..seen
        };
        let still = decided(&overdue, &seen);
        let is_tried = matches!(before, Decision::Act { .. });
        match still {
            Decision::Act { waiting_on, .. } => {
                assert!(is_tried && matches!(waiting_on, WaitingOn::Parked(_)), "{phase}");
            }
            Decision::Wait { waiting_on, .. } => {
                assert!(!is_tried && matches!(waiting_on, WaitingOn::Parked(_)), "{phase}");
            }
            other => panic!("{phase} does not stay parked: {other:#?}"),
        }
    }
}

// The drain and the shutdown.

#[test]
fn node_kept_drained_is_drained_again_when_a_pod_comes() {
    let list = |revision, left| Some(report(moment(1).monotonic, revision, left));
    for (drain, again) in [
        (None, true),
        (list(0, vec![]), true),
        (list(0, vec![held()]), true),
        (list(5, vec![held()]), true),
        (list(5, vec![]), false),
    ] {
        let case = format!("{drain:?}");
        let seen = Observed {
            drain,
            pods_revision: 5,
            request: Some(request(RequestAction::Drain)),
            ..seen(Some(PowerState::On), HostState::InService)
        };
        let decision = decided(&down(Phase::Drained), &seen);
        if again {
            assert_eq!(effect(decision).kind(), EffectKind::DrainRound, "{case}");
        } else {
            assert!(matches!(waiting(decision), WaitingOn::Request { .. }), "{case}");
        }
    }
}

#[test]
fn drain_is_parked_when_the_node_is_uncordoned_twice() {
    for phase in [Phase::Draining, Phase::Drained, SHUTTING_DOWN] {
        for (recordoned, is_left) in [(0, false), (1, true), (2, true)] {
            let mut seen = drained(entering());
            node_of(&mut seen).unschedulable = false;
            let before = Episode {
                recordoned,
                drained_for: lasted(500),
                ..down(phase.clone())
            };
            let transition = transition(decided(&before, &seen));
            let after = transition.record.episode().unwrap();
            if is_left {
                assert!(
                    matches!(
                        &after.phase,
                        Phase::Parked {
                            reason: ParkReason::Uncordoned,
                            ..
                        }
                    ),
                    "{after:#?}"
                );
                assert_eq!(transition.unschedulable, None);
            } else {
                assert_eq!(after.phase, Phase::Draining);
                assert_eq!((after.recordoned, after.drained_for), (1, Elapsed::ZERO));
                assert_eq!(transition.unschedulable, Some(true));
            }
        }
    }
}

#[test]
fn new_cordon_of_a_person_is_recorded_and_in_the_shutdown_drained_again() {
    let python = || CordonOwner::Adopted(Some("python".to_owned()));
    let by = |manager: &str| CordonedBy::Other(manager.to_owned());
    for (cordon, cordoned_by, is_new) in [
        (CordonOwner::Ours, CordonedBy::Haulout, false),
        (CordonOwner::Ours, CordonedBy::Unknown, false),
        (CordonOwner::Ours, by("kubectl-cordon"), true),
        (CordonOwner::Theirs, by("kubectl-cordon"), false),
        (python(), by("python"), false),
        (python(), by("kubectl-cordon"), true),
    ] {
        let case = format!("{cordon:?} by {cordoned_by:?}");
        let mut at_shutdown = drained(entering());
        node_of(&mut at_shutdown).cordoned_by = cordoned_by.clone();
        let decision = decided(&episode(SHUTTING_DOWN, cordon.clone(), false), &at_shutdown);
        if is_new {
            // Pods may have been bound between the two cordons.
            let next = written(decision);
            assert_eq!(
                (next.phase, next.cordon),
                (Phase::Draining, CordonOwner::Theirs),
                "{case}"
            );
        } else {
            assert_eq!(effect(decision).kind(), EffectKind::ShutdownGuest, "{case}");
        }
        // In the other phases the cordon is recorded and stays at the end.
        let parked = Phase::Parked {
            reason: ParkReason::VmSuspended,
            resume: Box::new(Phase::Draining),
            resume_since: at(0),
        };
        for (phase, power, host) in [
            (Phase::Draining, PowerState::On, entering()),
            (Phase::Drained, PowerState::On, HostState::InService),
            (parked, PowerState::On, entering()),
            (Phase::AwaitingHost, PowerState::Off, HostState::InMaintenance),
        ] {
            let case = format!("{case}, {phase:?}");
            let mut seen = seen(Some(power), host);
            node_of(&mut seen).cordoned_by = cordoned_by.clone();
            let before = Episode {
                recordoned: 3,
                ..episode(phase.clone(), cordon.clone(), power == PowerState::Off)
            };
            let next = match decided(&before, &seen) {
                Decision::Write(next) => next
                    .record
                    .episode()
                    .map(|next| (next.phase.clone(), next.cordon.clone(), next.recordoned)),
                Decision::Act { .. } | Decision::Wait { .. } | Decision::Idle => None,
            };
            let recorded = Some((phase, CordonOwner::Theirs, 0));
            assert_eq!(next == recorded, is_new, "{case}: {next:?}");
        }
    }
}

#[test]
fn node_uncordoned_four_times_with_its_vm_away_stays_uncordoned() {
    let phases = [
        (Phase::AwaitingHost, Some(PowerState::Off)),
        (POWERING_ON, Some(PowerState::Off)),
        (Phase::Rejoining, Some(PowerState::On)),
    ];
    for (phase, power) in phases {
        for (recordoned, is_left) in [(0, false), (2, false), (3, true)] {
            let mut seen = seen(power, HostState::InMaintenance);
            if phase != Phase::AwaitingHost {
                vm_of(&mut seen).host = HostState::InService;
            }
            node_of(&mut seen).unschedulable = false;
            node_of(&mut seen).ready = false;
            let before = Episode {
                recordoned,
                ..away(phase.clone())
            };
            match decided(&before, &seen) {
                Decision::Write(transition) => {
                    assert!(!is_left, "{phase:?} {transition:#?}");
                    assert_eq!(transition.unschedulable, Some(true));
                    assert_eq!(transition.record.episode().unwrap().recordoned, recordoned + 1);
                }
                other => assert!(is_left, "{phase:?} {other:#?}"),
            }
        }
    }
}

#[test]
fn vm_with_a_question_is_neither_shut_down_nor_powered_on() {
    let asked = Episode {
        in_flight: InFlight {
            guest_shutdown: asked_for(1000),
            power_off: asked_for(0),
            ..InFlight::default()
        },
        ..down(SHUTTING_DOWN)
    };
    for (episode, seen, kind) in [
        (
            down(SHUTTING_DOWN),
            drained(entering()),
            EffectKind::ShutdownGuest,
        ),
        (asked, drained(entering()), EffectKind::PowerOff),
        (
            away(POWERING_ON),
            seen(Some(PowerState::Off), HostState::InService),
            EffectKind::PowerOn,
        ),
    ] {
        assert_eq!(effect(decided(&episode, &seen)).kind(), kind);
        let mut seen = seen;
        vm_of(&mut seen).question = Some("copied or moved?".to_owned());
        assert_eq!(
            waiting(decided(&episode, &seen)),
            WaitingOn::Question("copied or moved?".to_owned())
        );
    }
}

#[test]
fn node_whose_guest_rebooted_in_the_shutdown_is_drained_again() {
    let (old, new) = (Some(old_boot()), Some(new_boot()));
    for (drained_boot, boot_before, powered_off, reported, is_drained_again) in [
        (&old, &old, false, &old, false),
        (&old, &old, false, &new, true),
        // A second drain in the episode, after the reboot.
        (&new, &old, true, &new, false),
        (&new, &old, true, &old, true),
        // A record without the drained boot: the boot before counts, unless the VM has been off since.
        (&None, &old, false, &new, true),
        (&None, &old, true, &new, false),
        (&old, &old, false, &None, false),
        (&None, &None, false, &new, false),
    ] {
        let mut seen = drained(entering());
        node_of(&mut seen).boot_id.clone_from(reported);
        for in_flight in [None, asked_for(10), asked_for(1000)] {
            let before = Episode {
                drained_boot: drained_boot.clone(),
                boot_before: boot_before.clone(),
                drained_for: lasted(500),
                in_flight: InFlight {
                    guest_shutdown: in_flight,
                    ..InFlight::default()
                },
                ..episode(SHUTTING_DOWN, CordonOwner::Ours, powered_off)
            };
            let decision = decided(&before, &seen);
            let next = match &decision {
                Decision::Write(transition) => transition.record.episode().cloned(),
                _ => None,
            };
            let drains = next.filter(|next| next.phase == Phase::Draining);
            let case = format!("drained {drained_boot:?}, reports {reported:?}, off before: {powered_off}");
            assert_eq!(drains.is_some(), is_drained_again, "{case}: {decision:#?}");
            if let Some(next) = drains {
                assert_eq!(
                    (&next.drained_boot, next.drained_for),
                    (reported, Elapsed::ZERO),
                    "{case}"
                );
            }
        }
    }
}

#[test]
fn cancel_in_the_shutdown_ends_only_if_no_guest_was_asked() {
    let asked = |outcome| Some(attempt(1, 1, outcome));
    for (from_the_start, tried, noted, ends) in [
        (true, None, None, true),
        (true, asked(refused(RetryAdvice::Retry)), None, true),
        (true, asked(refused(RetryAdvice::NoTools)), None, true),
        (true, asked(AttemptOutcome::Asked), None, false),
        (true, asked(AttemptOutcome::Done), None, false),
        (true, asked(refused(RetryAdvice::Unanswered)), None, false),
        // A previous process may have asked without recording it.
        (false, None, None, false),
        (true, None, asked_for(10), false),
    ] {
        let mut seen = drained(HostState::InService);
        seen.record_seen.from_the_start = from_the_start;
        let case = format!("from the start: {from_the_start}, {tried:?}, on record: {noted:?}");
        seen.attempts
            .extend(tried.map(|tried| (EffectKind::ShutdownGuest, tried)));
        let before = Episode {
            in_flight: InFlight {
                guest_shutdown: noted,
                ..InFlight::default()
            },
            ..down(SHUTTING_DOWN)
        };
        let transition = transition(decided(&before, &seen));
        match transition.record.episode() {
            None => {
                assert!(ends, "{case}");
                assert_eq!(transition.ended, Some(EpisodeResult::Cancelled));
                assert_eq!(transition.unschedulable, Some(false));
            }
            Some(after) => {
                assert!(!ends, "{case}");
                assert_eq!(after.phase, Phase::Rejoining, "{case}");
                assert!(after.in_flight.guest_shutdown.is_some(), "{case}");
                assert_eq!(transition.unschedulable, None, "{case}");
            }
        }
    }
}

#[test]
fn request_to_the_guest_is_recorded_before_the_node_is_drained_again() {
    let mut seen = drained(entering());
    let node = seen.node.as_mut().unwrap();
    node.unschedulable = false;
    let again = transition(decided(&down(SHUTTING_DOWN), &seen));
    assert_eq!(again.record.phase(), Some(&Phase::Draining), "it was not asked");

    let asked = attempt(1, 1, AttemptOutcome::Asked);
    seen.attempts.insert(EffectKind::ShutdownGuest, asked);
    let noted = transition(decided(&down(SHUTTING_DOWN), &seen));
    let noted = noted.record.episode().unwrap();
    assert_eq!(noted.phase, SHUTTING_DOWN);
    assert!(noted.in_flight.guest_shutdown.is_some());

    let again = transition(decided(noted, &seen));
    let again = again.record.episode().unwrap();
    assert_eq!(again.phase, Phase::Draining);
    assert!(again.in_flight.guest_shutdown.is_some());
}

#[test]
fn request_of_an_earlier_process_is_assumed_where_the_node_is_drained_again() {
    for (is_cordoned, from_the_start) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut seen = drained(entering());
        seen.record_seen.from_the_start = from_the_start;
        let node = seen.node.as_mut().unwrap();
        node.unschedulable = is_cordoned;
        if is_cordoned {
            // Another client removed our cordon and set its own.
            node.cordoned_by = CordonedBy::Other("kubectl-cordon".to_owned());
        }
        let again = transition(decided(&down(SHUTTING_DOWN), &seen));
        let again = again.record.episode().unwrap();
        assert_eq!(again.phase, Phase::Draining);
        let is_assumed = again.in_flight.guest_shutdown.is_some();
        assert_eq!(is_assumed, !from_the_start, "cordoned: {is_cordoned}");
    }
}

#[test]
fn guest_whose_time_passed_in_another_drain_is_asked_again() {
    for (elapsed, is_awaited) in [(0, true), (60, true), (180, false)] {
        let before = Episode {
            in_flight: InFlight {
                guest_shutdown: asked_for(elapsed),
                ..InFlight::default()
            },
            ..down(Phase::Draining)
        };
        let next = transition(decided(&before, &drained(entering())));
        let next = next.record.episode().unwrap();
        assert_eq!(next.phase, SHUTTING_DOWN);
        let confirmed = next.in_flight.confirmed_guest_shutdown();
        assert_eq!(confirmed.is_some(), is_awaited, "{elapsed} s");
    }
}

#[test]
fn asked_guest_holds_up_the_end_for_its_timeout_and_the_monitor_grace() {
    for (elapsed, ends) in [(0, false), (119, false), (170, false), (180, true)] {
        let before = Episode {
            in_flight: InFlight {
                guest_shutdown: asked_for(elapsed),
                ..InFlight::default()
            },
            ..down(Phase::Rejoining)
        };
        let decision = decided(&before, &seen(Some(PowerState::On), HostState::InService));
        if ends {
            assert_eq!(transition(decision).record, Record::InService);
        } else {
            let until = at(180 - i64::try_from(elapsed).unwrap());
            assert_eq!(waiting(decision), WaitingOn::GuestShutdownAfterCancel { until });
        }
    }
}

// Settings of a request.

#[test]
fn request_gives_a_guest_more_time_than_the_setting_and_never_less() {
    // The setting is 120 s.
    for (asked, seconds) in [(None, 120), (Some(5), 120), (Some(120), 120), (Some(600), 600)] {
        let mut seen = drained(HostState::InService);
        seen.request = Some(Request {
            guest_shutdown_timeout: asked.map(Duration::from_secs),
            ..request(RequestAction::PowerOff)
        });
        let after = |elapsed| Episode {
            in_flight: InFlight {
                guest_shutdown: asked_for(elapsed),
                ..InFlight::default()
            },
            ..down(SHUTTING_DOWN)
        };
        let until = at(i64::try_from(seconds).unwrap());
        assert_eq!(
            waiting(decided(&after(0), &seen)),
            WaitingOn::GuestShutdown { until },
            "{asked:?}"
        );
        let waits = decided(&after(seconds - 3), &seen);
        assert!(matches!(waits, Decision::Wait { .. }), "{asked:?} {waits:#?}");
        let cut = written(decided(&after(seconds - 2), &seen));
        assert!(cut.in_flight.power_off.is_some(), "{asked:?}");
    }
}

#[test]
fn guest_that_cannot_be_asked_for_now_keeps_its_whole_time() {
    for advice in [RetryAdvice::Retry, RetryAdvice::Person] {
        let busy = |seconds| Episode {
            elapsed: lasted(seconds),
            ..down(SHUTTING_DOWN)
        };
        let mut seen = drained(entering());
        let refusal = attempt(-40, 9, refused(advice));
        seen.attempts.insert(EffectKind::ShutdownGuest, refusal);
        seen.record_seen.phase_at = moment(-50).monotonic;
        // The guest has 120 s, and the whole shutdown 540 s.
        for seconds in [0, 119, 121, 530] {
            let again = effect(decided(&busy(seconds), &seen));
            assert_eq!(again.kind(), EffectKind::ShutdownGuest, "{advice:?}, {seconds} s");
        }
        let overdue = written(decided(&busy(540), &seen));
        assert!(
            matches!(overdue.phase, Phase::Parked { .. }),
            "{advice:?}: {overdue:#?}"
        );
        let again = effect(decided(&overdue, &seen));
        assert_eq!(again.kind(), EffectKind::ShutdownGuest, "{advice:?}, parked");
        // The guest is asked in the end.
        let asked = attempt(2, 9, AttemptOutcome::Asked);
        seen.attempts.insert(EffectKind::ShutdownGuest, asked);
        let asked = written(decided(&overdue, &seen));
        assert_eq!(asked.phase, SHUTTING_DOWN, "{advice:?}");
        let after = |seconds| Episode {
            in_flight: InFlight {
                guest_shutdown: asked_for(seconds),
                ..InFlight::default()
            },
            ..asked.clone()
        };
        let waits = waiting(decided(&after(117), &seen));
        assert!(
            matches!(waits, WaitingOn::GuestShutdown { .. }),
            "{advice:?}: {waits:?}"
        );
        let cut = written(decided(&after(118), &seen));
        assert!(cut.in_flight.power_off.is_some(), "{advice:?}");
        assert_eq!(cut.phase, SHUTTING_DOWN, "{advice:?}");
    }
}

#[test]
fn request_keeps_power_from_being_cut_on_pods_and_never_cuts_it() {
    let (hold, power_off) = (DrainTimeoutAction::Hold, DrainTimeoutAction::PowerOff);
    for (setting, asked, cuts) in [
        (power_off, None, true),
        (power_off, Some(power_off), true),
        (power_off, Some(hold), false),
        (hold, None, false),
        (hold, Some(power_off), false),
        (hold, Some(hold), false),
    ] {
        for host in [HostState::InService, entering()] {
            let seen = Observed {
                drain: Some(watched(report(moment(1).monotonic, 0, vec![held()]))),
                request: Some(Request {
                    drain_timeout_action: asked,
                    ..request(RequestAction::PowerOff)
                }),
                ..seen(Some(PowerState::On), host)
            };
            let overdue = Episode {
                elapsed: lasted(600),
                ..down(Phase::Draining)
            };
            let decision = decided_by(&policy(setting), &overdue, &seen);
            let case = format!("{setting:?}, asked for: {asked:?}");
            if cuts {
                let next = written(decision);
                assert_eq!(next.phase, Phase::ShuttingDown(DrainEnd::TimedOut), "{case}");
                assert_eq!(next.left_behind, ["ml/train"], "{case}");
            } else {
                assert_eq!(
                    waiting(decision),
                    WaitingOn::DrainHeld { left: vec![held()] },
                    "{case}"
                );
            }
        }
    }
}

// Refusals.

/// The time from a refusal to the next power-on, in seconds.
fn power_on_again_after(advice: RetryAdvice, refusals: u32) -> u64 {
    let mut seen = seen(Some(PowerState::Off), HostState::InService);
    let refusal = attempt(1, refusals, refused(advice));
    seen.attempts.insert(EffectKind::PowerOn, refusal);
    let policy = policy(DrainTimeoutAction::PowerOff);
    let episode = record(&away(POWERING_ON));
    let due = match decide(&episode, &seen, &policy, moment(1)) {
        Decision::Wait {
            waiting_on: WaitingOn::Retry { .. },
            recheck: Some(due),
        } => due,
        other => panic!("{advice:?}: {other:#?}"),
    };
    let pause = due.since(moment(1).monotonic);
    let again = decide(&episode, &seen, &policy, moment(1).after(pause));
    assert_eq!(effect(again).kind(), EffectKind::PowerOn, "{advice:?}");
    pause.as_secs()
}

#[test]
fn pause_after_a_refusal_doubles_up_to_the_longest() {
    for advice in [RetryAdvice::Retry, RetryAdvice::Unanswered, RetryAdvice::Cluster] {
        let pauses = [1, 2, 3, 4, 5, 6, 60].map(|refusals| power_on_again_after(advice, refusals));
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30], "{advice:?}");
    }
    let policy = policy(DrainTimeoutAction::PowerOff);
    let pauses = [0, 1, 2, 3, u32::MAX].map(|refusals| policy.backoff(refusals).as_secs());
    assert_eq!(pauses, [1, 1, 2, 4, 30]);
}

#[test]
fn refusal_that_a_person_must_cure_is_tried_again_at_the_longest_pause() {
    for refusals in [1, 2, 60] {
        assert_eq!(power_on_again_after(RetryAdvice::Person, refusals), 30);
    }
}

#[test]
fn each_kind_of_effect_waits_after_a_refusal() {
    let guest_gone = InFlight {
        guest_shutdown: asked_for(1000),
        power_off: asked_for(0),
        ..InFlight::default()
    };
    let mut unread = seen(Some(PowerState::Off), HostState::InMaintenance);
    unread.offer.survey = vec![spare()];
    let mut fits = unread.clone();
    fits.offer.fits = Some((spare(), "esx-spare".to_owned()));
    let read = attempt(1, 0, AttemptOutcome::Done);
    fits.attempts.insert(EffectKind::Survey, read);
    let cut = Episode {
        in_flight: guest_gone,
        ..down(SHUTTING_DOWN)
    };
    for (kind, episode, seen) in [
        (
            EffectKind::DrainRound,
            down(Phase::Draining),
            seen(Some(PowerState::On), entering()),
        ),
        (
            EffectKind::ShutdownGuest,
            down(SHUTTING_DOWN),
            drained(entering()),
        ),
        (EffectKind::PowerOff, cut, drained(entering())),
        (EffectKind::Survey, away(Phase::AwaitingHost), unread),
        (
            EffectKind::Relocate,
            away(Phase::Relocating { to: to_spare() }),
            seen(Some(PowerState::Off), HostState::InMaintenance),
        ),
        (
            EffectKind::PowerOn,
            away(POWERING_ON),
            seen(Some(PowerState::Off), HostState::InService),
        ),
    ] {
        assert_eq!(effect(decided(&episode, &seen)).kind(), kind);
        let mut tried = seen.clone();
        let refusal = attempt(1, 3, refused(RetryAdvice::Retry));
        tried.attempts.insert(kind, refusal);
        let pause = decided(&episode, &tried);
        match &pause {
            Decision::Wait { recheck, .. } => {
                assert!(recheck.is_some_and(|at| at <= moment(5).monotonic), "{kind:?}");
            }
            other => panic!("{kind:?}: {other:#?}"),
        }
        let policy = policy(DrainTimeoutAction::PowerOff);
        let again = decide(&record(&episode), &tried, &policy, moment(5));
        assert_eq!(effect(again).kind(), kind);
    }
    // A host that has refused is not a target until its pause is over, even from the wait for the host.
    let policy = policy(DrainTimeoutAction::PowerOff);
    let waits = away(Phase::AwaitingHost);
    assert_eq!(
        written(decided(&waits, &fits)).phase,
        Phase::Relocating { to: to_spare() }
    );
    let refusal = attempt(1, 3, refused(RetryAdvice::Retry));
    fits.attempts.insert(EffectKind::Relocate, refusal);
    match decided(&waits, &fits) {
        Decision::Wait { recheck, .. } => assert_eq!(recheck, Some(moment(5).monotonic)),
        other => panic!("{other:#?}"),
    }
    let again = decide(&record(&waits), &fits, &policy, moment(5));
    assert_eq!(written(again).phase, Phase::Relocating { to: to_spare() });
}

// With the VM off.

#[test]
fn boot_reported_when_the_vm_goes_off_is_the_previous_one() {
    for phase in [
        Phase::Queued,
        Phase::Draining,
        Phase::Drained,
        SHUTTING_DOWN,
        Phase::Rejoining,
    ] {
        for (reported, before) in [(Some(new_boot()), new_boot()), (None, old_boot())] {
            for host in [HostState::InMaintenance, HostState::InService] {
                let mut seen = seen(Some(PowerState::Off), host);
                node_of(&mut seen).boot_id.clone_from(&reported);
                let was = Episode {
                    in_flight: InFlight {
                        guest_shutdown: asked_for(10),
                        ..InFlight::default()
                    },
                    ..down(phase.clone())
                };
                let off = written(decided(&was, &seen));
                assert_eq!(off.boot_before, Some(before.clone()), "{phase:?} {reported:?}");
                assert!(off.powered_off && off.in_flight.is_empty(), "{phase:?}");
                assert!(off.phase.vm_is_off(), "{phase:?}");
            }
        }
    }
}

#[test]
fn boot_of_a_drained_node_that_restarted_unseen_is_not_the_previous_one() {
    // It died and was started again while vCenter was silent, and is still thought to be off.
    for phase in [Phase::Draining, Phase::Drained, SHUTTING_DOWN] {
        for (reported, before) in [
            (Some(old_boot()), Some(old_boot())),
            (Some(new_boot()), None),
            (None, Some(old_boot())),
        ] {
            let mut seen = seen(Some(PowerState::Off), HostState::InService);
            node_of(&mut seen).boot_id.clone_from(&reported);
            let was = Episode {
                drained_boot: Some(old_boot()),
                ..down(phase.clone())
            };
            let off = written(decided(&was, &seen));
            assert!(off.phase.vm_is_off(), "{phase:?}");
            assert_eq!(off.boot_before, before, "{phase:?} {reported:?}");
        }
    }
}

#[test]
fn boot_reported_while_the_vm_seems_off_is_neither_the_previous_nor_the_next_one() {
    for (reported, before) in [
        (Some(old_boot()), Some(old_boot())),
        (None, Some(old_boot())),
        (Some(new_boot()), None),
    ] {
        let mut seen = seen(Some(PowerState::Off), HostState::InService);
        node_of(&mut seen).boot_id.clone_from(&reported);
        let was = Episode {
            boot_before: Some(old_boot()),
            ..away(Phase::AwaitingHost)
        };
        let next = written(decided(&was, &seen));
        assert_eq!(next.phase, POWERING_ON, "{reported:?}");
        assert_eq!(next.boot_before, before, "{reported:?}");
    }
}

#[test]
fn vm_that_is_to_wait_for_its_host_is_not_left_to_drs() {
    for (strategy, by_drs) in [(Strategy::Migrate, true), (Strategy::Wait, false)] {
        let mut seen = seen(Some(PowerState::Off), HostState::InMaintenance);
        vm_of(&mut seen).drs = true;
        node_of(&mut seen).overrides.strategy = strategy;
        let placed = Phase::PoweringOn { by_drs: true };
        let went_off = written(decided(&down(SHUTTING_DOWN), &seen));
        assert_eq!(went_off.phase == placed, by_drs, "{strategy:?}");
        match decided(&away(Phase::AwaitingHost), &seen) {
            Decision::Write(next) => assert!(by_drs && next.record.phase() == Some(&placed)),
            other => {
                assert!(!by_drs, "{strategy:?}");
                assert!(matches!(waiting(other), WaitingOn::HostExit { .. }));
            }
        }
        // Set while DRS was about to be used.
        match decided(&away(placed), &seen) {
            Decision::Act { effect, .. } => {
                let place = PowerOnTarget::Drs;
                let vm = VmRef::new("vm-1");
                assert!(by_drs && effect == Effect::PowerOn { vm, place });
            }
            other => {
                assert!(!by_drs, "{strategy:?}");
                assert_eq!(written(other).phase, Phase::AwaitingHost);
            }
        }
    }
}

#[test]
fn vm_is_to_wait_for_its_host_also_where_its_node_is_deleted_during_the_shutdown() {
    let mut seen = drained(entering());
    node_of(&mut seen).overrides.strategy = Strategy::Wait;
    let shut_down = written(decided(&down(Phase::Draining), &seen));
    assert_eq!(shut_down.phase, SHUTTING_DOWN);
    let vm = vm_of(&mut seen);
    (vm.power, vm.drs) = (Some(PowerState::Off), true);
    vm.host = HostState::InMaintenance;
    let gone = Observed {
        node: None,
        has_copy: true,
        is_record_on_node: false,
        home: HostState::InMaintenance,
        ..seen
    };
    let went_off = written(decided(&shut_down, &gone));
    assert_eq!(went_off.phase, Phase::AwaitingHost);
}

#[test]
fn drs_is_asked_again_where_the_own_host_is_back_and_has_refused_the_vm() {
    // DRS had given the device to another VM.
    for (by_drs, place) in [
        (true, PowerOnTarget::Drs),
        (false, PowerOnTarget::Host(HostRef::new("host-1"))),
    ] {
        let mut seen = seen(Some(PowerState::Off), HostState::InService);
        vm_of(&mut seen).drs = by_drs;
        let refusal = attempt(-100, 4, refused(RetryAdvice::OtherHost));
        seen.attempts.insert(EffectKind::PowerOn, refusal);
        let mut episode = away(Phase::AwaitingHost);
        let home = vm_of(&mut seen).host_ref.clone().unwrap();
        episode.refused(&home, RefusedMove::PowerOn, "the device is in use");
        let Decision::Act { effect, .. } = decided(&episode, &seen) else {
            panic!("{by_drs}: {:?}", decided(&episode, &seen));
        };
        let vm = VmRef::new("vm-1");
        assert_eq!(effect, Effect::PowerOn { vm, place });
    }
}

#[test]
fn new_leader_asks_again_where_an_earlier_one_was_refused() {
    let offer = |seen| Observed {
        offer: PlacementOffer::default(),
        ..seen
    };
    let at_home = || offer(seen(Some(PowerState::Off), HostState::InService));
    // Its own host is back, and another VM has the device there.
    let elsewhere = || on_spare(at_home(), HostState::InService, HostState::InService);
    let host = || PowerOnTarget::Host(home());
    for (mut seen, by_drs, place) in [
        (at_home(), true, Some(PowerOnTarget::Drs)),
        (at_home(), false, Some(host())),
        (elsewhere(), true, Some(PowerOnTarget::Drs)),
        // No other host is tried twice.
        (elsewhere(), false, None),
    ] {
        vm_of(&mut seen).drs = by_drs;
        let mut episode = away(Phase::AwaitingHost);
        let on = vm_of(&mut seen).host_ref.clone().unwrap();
        episode.refused(&on, RefusedMove::PowerOn, "the device is in use");
        let decision = decided(&episode, &seen);
        let asked = match &decision {
            Decision::Act {
                effect: Effect::PowerOn { place, .. },
                ..
            } => Some(place.clone()),
            Decision::Write(next) if next.record.phase() == Some(&Phase::PoweringOn { by_drs: true }) => {
                Some(PowerOnTarget::Drs)
            }
            _ => None,
        };
        assert_eq!(
            asked,
            place,
            "by DRS: {by_drs}, at home: {}: {decision:?}",
            on == home()
        );
    }
}

#[test]
fn vm_that_is_to_wait_for_its_host_stays_there_whatever_it_refuses() {
    for (strategy, refusals, leaves) in [
        (Strategy::Migrate, 5, false),
        (Strategy::Migrate, 6, true),
        (Strategy::Wait, 6, false),
        (Strategy::Wait, 100, false),
    ] {
        let mut seen = seen(Some(PowerState::Off), HostState::InService);
        node_of(&mut seen).overrides.strategy = strategy;
        let refusal = attempt(1, refusals, refused(RetryAdvice::OtherHost));
        seen.attempts.insert(EffectKind::PowerOn, refusal);
        match decided(&away(POWERING_ON), &seen) {
            Decision::Write(next) => {
                assert!(leaves, "{strategy:?} {refusals}");
                let next = next.record.episode().unwrap();
                assert_eq!(next.phase, Phase::AwaitingHost);
                assert!(next.has_refused(&home(), RefusedMove::PowerOn));
            }
            other => assert!(!leaves, "{strategy:?} {refusals} {other:#?}"),
        }
    }
}

#[test]
fn only_a_reading_made_during_the_wait_says_where_there_is_a_place() {
    for (read_at, moves) in [(None, false), (Some(-5), false), (Some(1), true)] {
        let mut seen = seen(Some(PowerState::Off), HostState::InMaintenance);
        seen.offer.fits = Some((spare(), "esx-spare".to_owned()));
        seen.offer.survey = vec![spare()];
        let read = read_at.map(|at| (EffectKind::Survey, attempt(at, 0, AttemptOutcome::Done)));
        seen.attempts.extend(read);
        let decision = decided(&away(Phase::AwaitingHost), &seen);
        if moves {
            let next = written(decision);
            assert_eq!(next.phase, Phase::Relocating { to: to_spare() });
            // Its own host is in maintenance and refused nothing, so it is used if it is back first.
            assert!(next.refusals.is_empty(), "{:?}", next.refusals);
        } else {
            assert_eq!(effect(decision).kind(), EffectKind::Survey, "read at {read_at:?}");
        }
    }
}

#[test]
fn move_is_given_up_when_the_own_host_is_back() {
    let to = |host: HostRef| HostIdentity {
        name: host.as_str().into(),
        moref: Some(host),
    };
    let (out, away_from) = (HostState::InService, HostState::InMaintenance);
    let at_home = |host| seen(Some(PowerState::Off), host);
    let at_spare = |host, home| on_spare(seen(Some(PowerState::Off), away_from.clone()), host, home);
    let asked = |seen| Observed {
        request: Some(request(RequestAction::Relocate { to: None })),
        ..seen
    };
    let full = |seen| Observed {
        target: entering(),
        ..seen
    };
    let third = HostRef::new("host-third");
    for (case, target, seen, moves) in [
        ("home is away", spare(), at_home(away_from.clone()), true),
        ("home is back", spare(), at_home(out.clone()), false),
        ("asked for", spare(), asked(at_home(out.clone())), true),
        (
            "the target leaves",
            spare(),
            full(at_home(away_from.clone())),
            false,
        ),
        (
            "asked for, the target leaves",
            spare(),
            full(asked(at_home(out.clone()))),
            false,
        ),
        (
            "from another host that leaves, home is away",
            third.clone(),
            at_spare(away_from.clone(), away_from.clone()),
            true,
        ),
        (
            "from another host that leaves, home is back",
            third,
            at_spare(away_from.clone(), out.clone()),
            false,
        ),
        ("home", home(), at_spare(away_from.clone(), out.clone()), true),
        (
            "home, and its current host is free",
            home(),
            at_spare(out.clone(), out.clone()),
            false,
        ),
    ] {
        let phase = Phase::Relocating {
            to: to(target.clone()),
        };
        let decision = decided(&away(phase), &seen);
        if moves {
            let relocate = Effect::Relocate {
                vm: VmRef::new("vm-1"),
                to: target,
            };
            assert_eq!(effect(decision), relocate, "{case}");
        } else {
            assert_eq!(written(decision).phase, Phase::AwaitingHost, "{case}");
        }
    }
}

// The way back.

#[test]
fn vm_found_running_on_another_host_counts_as_moved_there() {
    for phase in [
        Phase::AwaitingHost,
        Phase::Relocating { to: to_spare() },
        POWERING_ON,
        Phase::PoweringOn { by_drs: true },
    ] {
        let at_home = seen(Some(PowerState::On), HostState::InService);
        let elsewhere = on_spare(at_home.clone(), HostState::InService, HostState::InMaintenance);
        for (seen, moved_to) in [(at_home, None), (elsewhere, Some(to_spare()))] {
            let before = Episode {
                power_off_request: Some(request(RequestAction::PowerOff).identity),
                ..away(phase.clone())
            };
            let after = written(decided(&before, &seen));
            assert_eq!(
                (after.phase, after.moved_to),
                (Phase::Rejoining, moved_to),
                "{phase:?}"
            );
            assert_eq!(after.power_off_request, None, "{phase:?}");
        }
    }
}

#[test]
fn request_to_power_off_that_comes_while_the_node_rejoins_is_served() {
    let mut on = seen(Some(PowerState::On), HostState::InService);
    on.request = Some(request(RequestAction::PowerOff));
    on.admission = Admission::Granted;
    let again = written(decided(&away(Phase::Rejoining), &on));
    assert_eq!(again.phase, Phase::Draining);
    let found = written(decided(&away(POWERING_ON), &on));
    assert_eq!(written(decided(&found, &on)).phase, Phase::Draining);
}

#[test]
fn vm_that_went_off_for_a_request_and_was_powered_on_by_a_person_stays_on() {
    let asked = request(RequestAction::PowerOff);
    let seen = |power| Observed {
        request: Some(asked.clone()),
        admission: Admission::Granted,
        ..seen(Some(power), HostState::InService)
    };
    let mut for_request = down(SHUTTING_DOWN);
    for_request.trigger.task = None;
    for_request.trigger.request = Some(asked.identity.clone());
    for before in [down(SHUTTING_DOWN), for_request, away(Phase::Rejoining)] {
        let off = written(decided(&before, &seen(PowerState::Off)));
        assert_eq!(off.phase, Phase::AwaitingHost);
        let found = written(decided(&off, &seen(PowerState::On)));
        assert_eq!(found.phase, Phase::Rejoining);
        let parked = written(decided(&found, &seen(PowerState::On))).phase;
        let is_powered_on = |reason: &ParkReason| matches!(reason, ParkReason::PoweredOn { .. });
        let (reason, _) = parked.parked().expect("it is parked");
        assert!(is_powered_on(reason), "{reason:?}");
    }
}

#[test]
fn node_that_must_leave_again_is_drained_as_on_its_new_host() {
    let came_back = Episode {
        moved_to: Some(to_spare()),
        recordoned: 2,
        drained_for: lasted(500),
        drained_boot: Some(old_boot()),
        ..{
            let mut episode = away(Phase::Rejoining);
            episode.refused(&HostRef::new("host-third"), RefusedMove::Relocate, "no");
            episode
        }
    };
    let mut seen = on_spare(
        seen(Some(PowerState::On), entering()),
        entering(),
        HostState::InService,
    );
    node_of(&mut seen).boot_id = Some(new_boot());
    let again = written(decided(&came_back, &seen));
    assert_eq!(again.phase, Phase::Draining);
    assert_eq!((again.host, again.moved_to), (to_spare(), None));
    assert_eq!(again.drained_boot, Some(new_boot()));
    assert_eq!((again.recordoned, again.drained_for), (0, Elapsed::ZERO));
    assert!(again.refusals.is_empty());
    // It is back without another boot if it does not have to leave.
    assert_eq!(again.boot_before, Some(old_boot()));
    seen.admission = Admission::Queued {
        ahead: vec![NodeName::new("other")],
        position: 1,
        limit: SlotLimit::ConcurrentDrains(1),
    };
    assert!(matches!(
        waiting(decided(&came_back, &seen)),
        WaitingOn::Slot { .. }
    ));
}

#[test]
fn node_is_not_back_while_a_power_off_of_its_vm_runs() {
    // Ours may be missing in the record after a restore of etcd.
    let cut = InFlight {
        power_off: asked_for(1),
        ..InFlight::default()
    };
    for in_flight in [InFlight::default(), cut] {
        let mut seen = seen(Some(PowerState::On), HostState::InService);
        vm_of(&mut seen).is_being_cut = true;
        let was = Episode {
            in_flight,
            ..down(Phase::Rejoining)
        };
        let on = waiting(decided(&was, &seen));
        assert_eq!(
            on,
            WaitingOn::Task {
                effect: EffectKind::PowerOff
            },
            "{in_flight:?}"
        );
    }
}

#[test]
fn ready_of_an_unknown_boot_counts_after_the_monitor_grace() {
    let (known, reported) = (Some(old_boot()), Some(new_boot()));
    for (boot_before, boot, elapsed, is_back) in [
        (&known, &reported, 0, true),
        (&known, &known, 0, false),
        (&known, &known, 1000, false),
        (&known, &None, 1000, false),
        // An episode of the Python controller, adopted with the VM on.
        (&None, &reported, 0, false),
        (&None, &reported, 50, false),
        (&None, &reported, 60, true),
        (&None, &None, 60, false),
    ] {
        let mut seen = seen(Some(PowerState::On), HostState::InService);
        node_of(&mut seen).boot_id.clone_from(boot);
        let before = Episode {
            boot_before: boot_before.clone(),
            elapsed: lasted(elapsed),
            ..away(Phase::Rejoining)
        };
        let case = format!("before {boot_before:?}, reports {boot:?}, after {elapsed} s");
        let decision = decided(&before, &seen);
        match &decision {
            Decision::Write(next) if next.record == Record::InService => assert!(is_back, "{case}"),
            Decision::Wait {
                waiting_on: WaitingOn::NodeReady { .. },
                recheck,
            } => {
                assert!(!is_back, "{case}");
                let grace = moment(60).monotonic;
                assert!(elapsed > 0 || recheck.is_some_and(|at| at <= grace), "{case}");
            }
            Decision::Write(next) => {
                let phase = next.record.phase();
                assert!(
                    !is_back && matches!(phase, Some(Phase::Parked { .. })),
                    "{case}: {phase:?}"
                );
            }
            other => panic!("{case}: {other:#?}"),
        }
    }
}

#[test]
fn node_is_uncordoned_at_the_end_only_if_the_cordon_is_to_go() {
    let python = || CordonOwner::Adopted(Some("python".to_owned()));
    let by = |manager: &str| CordonedBy::Other(manager.to_owned());
    for (cordon, cordoned_by, keep, uncordons) in [
        (CordonOwner::Ours, CordonedBy::Haulout, false, true),
        (CordonOwner::Ours, CordonedBy::Haulout, true, false),
        (CordonOwner::Ours, CordonedBy::Unknown, false, true),
        (CordonOwner::Ours, by("kubectl-cordon"), false, false),
        (CordonOwner::Theirs, CordonedBy::Haulout, false, false),
        (CordonOwner::NotYet, CordonedBy::Haulout, false, false),
        (python(), by("python"), false, true),
        (python(), by("python"), true, false),
        (python(), by("kubectl-cordon"), false, false),
    ] {
        let mut seen = seen(Some(PowerState::On), HostState::InService);
        let node = node_of(&mut seen);
        node.cordoned_by = cordoned_by.clone();
        node.keep_cordoned = keep;
        let case = format!("{cordon:?} by {cordoned_by:?}, to be kept: {keep}");
        let mut cancelled = episode(Phase::Draining, cordon, false);
        if cordoned_by == by("kubectl-cordon") {
            cancelled = written(decided(&cancelled, &seen));
        }
        let end = transition(decided(&cancelled, &seen));
        assert_eq!(end.record, Record::InService, "{case}");
        assert_eq!(end.unschedulable, uncordons.then_some(false), "{case}");
    }
    for keep in [false, true] {
        let mut seen = seen(Some(PowerState::On), HostState::InService);
        let node = node_of(&mut seen);
        node.boot_id = Some(new_boot());
        node.keep_cordoned = keep;
        let end = transition(decided(&away(Phase::Rejoining), &seen));
        assert_eq!(
            (end.record, end.ended),
            (Record::InService, Some(EpisodeResult::Succeeded))
        );
        assert_eq!(end.unschedulable, (!keep).then_some(false));
    }
}

#[test]
fn vm_that_keeps_going_off_is_powered_on_after_pauses_and_then_parked() {
    let lost = |power_losses| Episode {
        power_losses,
        ..away(Phase::Rejoining)
    };
    let off = seen(Some(PowerState::Off), HostState::InService);
    for (losses, pause) in [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16)] {
        let again = written(decided(&lost(losses), &off));
        // If its host were in service, it would be powered on at once.
        assert_eq!(
            (&again.phase, again.power_losses),
            (&Phase::AwaitingHost, losses + 1)
        );
        let mut off = off.clone();
        off.record_seen.at = moment(2);
        off.record_seen.phase_at = moment(2).monotonic;
        match decided(&again, &off) {
            Decision::Wait {
                waiting_on: WaitingOn::PowerOnPause { .. },
                recheck,
            } => assert_eq!(recheck, Some(moment(2 + pause).monotonic), "after {losses}"),
            other => panic!("after {losses}: {other:#?}"),
        }
        let policy = policy(DrainTimeoutAction::PowerOff);
        let on = decide(&record(&again), &off, &policy, moment(2 + pause));
        assert_eq!(written(on).phase, POWERING_ON, "after {losses}");
    }
    let parked = written(decided(&lost(5), &off));
    assert!(
        matches!(
            parked.phase,
            Phase::Parked {
                reason: ParkReason::PowerLost { losses: 6 },
                ..
            }
        ),
        "{parked:#?}"
    );
    // The first power-off is intended.
    for episode in [down(SHUTTING_DOWN), down(Phase::Rejoining)] {
        let next = written(decided(&episode, &off));
        assert_eq!((next.phase, next.power_losses), (POWERING_ON, 0));
    }
}

#[test]
fn python_episode_is_adopted_with_the_facts_of_vm_and_node() {
    let (on, off) = (Some(PowerState::On), Some(PowerState::Off));
    for (state, power, phase, boot_before) in [
        (PythonState::Draining, on, Phase::Draining, Some(old_boot())),
        (PythonState::Draining, off, Phase::Draining, Some(old_boot())),
        (
            PythonState::PoweredOff,
            off,
            Phase::AwaitingHost,
            Some(old_boot()),
        ),
        // It may have booted since, so the Node's boot id may be newer.
        (PythonState::PoweredOff, on, Phase::AwaitingHost, None),
        (PythonState::Migrated, off, Phase::Rejoining, Some(old_boot())),
        (PythonState::Migrated, on, Phase::Rejoining, None),
    ] {
        for (cordoned_by, manager) in [
            (CordonedBy::Other("python".to_owned()), Some("python".to_owned())),
            (CordonedBy::Unknown, None),
        ] {
            let mut seen = seen(power, HostState::InMaintenance);
            node_of(&mut seen).cordoned_by = cordoned_by;
            node_of(&mut seen).gpus = gpus(2).into();
            let python = Record::Python(PythonEpisode {
                state,
                host: "esx1".to_owned(),
                migrated_to_host: None,
                since: at(0),
            });
            let policy = policy(DrainTimeoutAction::PowerOff);
            let adopted = transition(decide(&python, &seen, &policy, moment(2)));
            assert_eq!(adopted.unschedulable, None);
            let episode = adopted.record.episode().unwrap();
            assert_eq!(
                (&episode.phase, &episode.boot_before),
                (&phase, &boot_before),
                "{state:?} {power:?}"
            );
            assert_eq!(episode.cordon, CordonOwner::Adopted(manager));
            assert_eq!(episode.powered_off, state != PythonState::Draining);
            // A later limit that is shorter counts from then.
            assert!(episode.drain_limit.is_some());
            assert_eq!(episode.gpus_before, gpus(2).into());
            assert_eq!(episode.host.moref, Some(home()));
        }
    }
}

#[test]
fn failed_maintenance_leaves_the_node_as_it_is_for_the_grace() {
    let in_phase = |phase: Phase| {
        let power = if phase.vm_is_off() {
            Some(PowerState::Off)
        } else {
            Some(PowerState::On)
        };
        let mut seen = seen(power, HostState::InService);
        vm_of(&mut seen).interrupted = Some(FailedMaintenance {
            at: moment(0),
            message: "a timeout".to_owned(),
        });
        (down(phase), seen)
    };
    for phase in [
        Phase::Queued,
        Phase::Draining,
        Phase::Drained,
        SHUTTING_DOWN,
        Phase::AwaitingHost,
    ] {
        let (episode, mut seen) = in_phase(phase.clone());
        match decided(&episode, &seen) {
            Decision::Wait {
                waiting_on: WaitingOn::MaintenanceRetry { message, until },
                recheck,
            } => {
                assert_eq!((message.as_str(), until), ("a timeout", at(10)));
                assert_eq!(recheck, Some(moment(10).monotonic));
            }
            other => panic!("{phase:?}: {other:#?}"),
        }
        let policy = policy(DrainTimeoutAction::PowerOff);
        let over = transition(decide(&record(&episode), &seen, &policy, moment(10)));
        assert_ne!(over.record.phase(), Some(&phase), "it is taken for given up");
        // A request for power-off does not wait for a maintenance.
        seen.request = Some(request(RequestAction::PowerOff));
        let asked = decided(&episode, &seen);
        assert!(
            !matches!(
                asked,
                Decision::Wait {
                    waiting_on: WaitingOn::MaintenanceRetry { .. },
                    ..
                }
            ),
            "{phase:?}"
        );
    }
}

#[test]
fn guest_that_an_episode_before_asked_is_remembered() {
    for asked_guest in [None, Some(at(-7200))] {
        let node = ObservedNode {
            asked_guest,
            ..node()
        };
        let seen = observed(node, vm(Some(PowerState::On), entering()));
        let policy = policy(DrainTimeoutAction::PowerOff);
        let begun = written(decide(&Record::InService, &seen, &policy, moment(2)));
        let remembered = begun.in_flight.earlier_guest_shutdown;
        assert_eq!(remembered, asked_guest);
    }
}

#[test]
fn move_that_is_asked_for_waits_for_three_readings_of_a_host_at_most() {
    for (tries, gives_up) in [(1, false), (2, false), (3, true)] {
        // A host that needs a survey, and that no survey has covered.
        let mut seen = observed(node(), vm(Some(PowerState::On), HostState::InService));
        seen.request = Some(request(RequestAction::Relocate { to: None }));
        seen.offer.survey = vec![spare()];
        let read = EffectAttempt {
            tries,
            ..attempt(1, 0, AttemptOutcome::Done)
        };
        seen.attempts.insert(EffectKind::Survey, read);
        match decided(&episode(Phase::Queued, CordonOwner::NotYet, false), &seen) {
            Decision::Write(next) => {
                assert!(gives_up, "after {tries}");
                let next = next.record.episode().unwrap();
                assert!(next.relocation_failure.is_some() && next.phase == Phase::Queued);
                let end = transition(decided(next, &seen));
                assert_eq!(
                    (end.record, end.ended),
                    (Record::InService, Some(EpisodeResult::Failed))
                );
                assert!(end.fulfilled.is_some());
            }
            other => {
                assert!(!gives_up, "after {tries}");
                assert_eq!(waiting(other), WaitingOn::Survey);
            }
        }
    }
}

#[test]
fn relocation_is_done_when_the_vm_was_moved_to_the_host_that_was_asked_for() {
    let to = |name: &str| {
        request(RequestAction::Relocate {
            to: Some(name.into()),
        })
    };
    let anywhere = request(RequestAction::Relocate { to: None });
    let moved = Episode {
        moved_to: Some(to_spare()),
        ..down(Phase::AwaitingHost)
    };
    let stays = down(Phase::AwaitingHost);
    for (episode, asked, needs_more) in [
        (&moved, to("esx-spare"), false),
        (&moved, to("esx-other"), true),
        (&moved, anywhere.clone(), false),
        (&stays, to("esx-spare"), true),
        (&stays, anywhere, true),
        (&stays, request(RequestAction::Drain), false),
    ] {
        assert_eq!(episode.needs_more_for(&asked.action), needs_more, "{asked:?}");
    }
}

#[test]
fn relocation_is_not_given_up_before_the_other_hosts_were_surveyed() {
    let off = Observed {
        request: Some(request(RequestAction::Relocate { to: None })),
        offer: PlacementOffer {
            survey: vec![spare()],
            ..PlacementOffer::default()
        },
        ..seen(Some(PowerState::Off), HostState::InService)
    };
    let waits = away(Phase::AwaitingHost);
    assert_eq!(effect(decided(&waits, &off)).kind(), EffectKind::Survey);
    let nowhere = Observed {
        offer: PlacementOffer::default(),
        ..off
    };
    assert_eq!(written(decided(&waits, &nowhere)).phase, POWERING_ON);
}

#[test]
fn cordons_that_were_restored_are_counted_anew_after_the_power_off() {
    let shut_down = Episode {
        recordoned: 2,
        ..down(SHUTTING_DOWN)
    };
    let after = written(decided(&shut_down, &seen(Some(PowerState::Off), entering())));
    assert_eq!((after.powered_off, after.recordoned), (true, 0));
}

#[test]
fn node_in_service_needs_a_slot_while_its_host_leaves_or_a_request_is_unmet() {
    let relocate = |to: &str| request(RequestAction::Relocate { to: Some(to.into()) });
    for (host, asked, needs_slot) in [
        (entering(), None, true),
        (entering(), Some(relocate("esx1")), true),
        (HostState::InService, Some(relocate("esx1")), false),
        (HostState::InService, Some(relocate("esx-other")), true),
        (HostState::InService, None, false),
    ] {
        let vm = vm(Some(PowerState::On), host.clone());
        let since = wants_place(&Record::InService, &node(), &vm, asked.as_ref(), false);
        assert_eq!(since.is_some(), needs_slot, "{host:?} {asked:?}");
    }
}

#[test]
fn wait_for_pods_is_a_wait_for_a_budget_if_one_holds_any() {
    let pod = |why| PendingEviction {
        name: "ml/train".to_owned(),
        why,
    };
    let held = || PendingReason::Budget {
        names: vec!["train".to_owned()],
        message: String::new(),
    };
    for (pods, kind) in [
        (vec![pod(PendingReason::Leaving)], WaitKind::Pods),
        (vec![pod(held())], WaitKind::DisruptionBudget),
        (
            vec![pod(PendingReason::Leaving), pod(held())],
            WaitKind::DisruptionBudget,
        ),
    ] {
        assert_eq!(
            WaitingOn::Pods {
                left: pods,
                timeout: None
            }
            .kind(),
            kind
        );
    }
}

#[test]
fn drain_timeout_actions_have_the_names_of_the_settings() {
    let names = DrainTimeoutAction::ALL.map(DrainTimeoutAction::name);
    assert_eq!(names, ["power-off", "hold"]);
}

#[test]
fn refused_round_is_not_repeated_at_once_when_pods_change() {
    let drains = down(Phase::Draining);
    let changed = Observed {
        drain: Some(report(moment(0).monotonic, 0, vec![])),
        pods_revision: 1,
        ..seen(Some(PowerState::On), entering())
    };
    assert_eq!(effect(decided(&drains, &changed)).kind(), EffectKind::DrainRound);
    let refused_at = |seconds: i64| Observed {
        attempts: BTreeMap::from([(
            EffectKind::DrainRound,
            attempt(seconds, 1, refused(RetryAdvice::Retry)),
        )]),
        ..changed.clone()
    };
    assert!(matches!(decided(&drains, &refused_at(2)), Decision::Wait { .. }));
    // The list is younger than the refusal.
    assert_eq!(
        effect(decided(&drains, &refused_at(-1))).kind(),
        EffectKind::DrainRound
    );
}

#[test]
fn cordon_of_a_person_during_the_shutdown_is_theirs_and_the_drain_begins_again() {
    let mut taken = seen(Some(PowerState::On), entering());
    taken.node.as_mut().expect("a Node").cordoned_by = CordonedBy::Other("kubectl-cordon".to_owned());
    let after = written(decided(&down(SHUTTING_DOWN), &taken));
    assert_eq!(
        (after.phase, after.cordon),
        (Phase::Draining, CordonOwner::Theirs)
    );
}

#[test]
fn power_is_cut_without_tools_only_if_nobody_asked_the_guest_before() {
    let shuts_down = down(SHUTTING_DOWN);
    for (from_the_start, tools_running, cuts_power) in [
        (true, Some(false), true),
        (true, None, true),
        // Tools are being restarted: the guest is asked again.
        (true, Some(true), false),
        // The process before may have asked, and Tools stop early in a shutdown.
        (false, Some(false), false),
        (false, None, false),
        (false, Some(true), false),
    ] {
        let mut seen = drained(entering());
        seen.record_seen.from_the_start = from_the_start;
        seen.attempts.insert(
            EffectKind::ShutdownGuest,
            attempt(2, 1, refused(RetryAdvice::NoTools)),
        );
        if let BoundVm::Found(vm) = &mut seen.vm {
            vm.tools_running = tools_running;
        }
        let decision = decided(&shuts_down, &seen);
        let case = format!("{from_the_start} {tools_running:?}: {decision:#?}");
        let cuts = match &decision {
            Decision::Act { effect, .. } => effect.kind() == EffectKind::PowerOff,
            Decision::Write(it) => it
                .record
                .episode()
                .is_some_and(|it| it.in_flight.power_off.is_some()),
            Decision::Wait { .. } | Decision::Idle => false,
        };
        assert_eq!(cuts, cuts_power, "{case}");
        let is_recorded = matches!(&decision, Decision::Write(it) if it.record.episode().is_some_and(|it| it.in_flight.guest_shutdown.is_some()));
        assert_eq!(is_recorded, !from_the_start, "{case}");
    }
}

#[test]
fn relocation_that_ends_on_another_host_than_requested_is_given_up() {
    for (to, is_given_up) in [(Some("esx-other"), true), (Some("esx1"), false), (None, false)] {
        let mut running = seen(Some(PowerState::On), HostState::InService);
        running.request = Some(request(RequestAction::Relocate {
            to: to.map(Into::into),
        }));
        let powers_on = Episode {
            host: to_spare(),
            ..away(POWERING_ON)
        };
        let after = written(decided(&powers_on, &running));
        assert_eq!(after.phase, Phase::Rejoining);
        assert!(after.moved_to.is_some(), "{after:#?}");
        assert_eq!(after.relocation_failure.is_some(), is_given_up, "{to:?}");
    }
}

#[test]
fn relocated_vm_that_vcenter_starts_elsewhere_is_not_relocated_again() {
    let third = HostIdentity {
        moref: Some(HostRef::new("host-of-a-third")),
        name: "esx-third".into(),
    };
    let home = away(POWERING_ON).host;
    for (to, moved_to, own, is_given_up) in [
        // It was relocated as asked, and runs on a third host or on its own one.
        (Some("esx-spare"), Some(to_spare()), third.clone(), true),
        (Some("esx-spare"), Some(to_spare()), home.clone(), true),
        (None, Some(to_spare()), home.clone(), true),
        (None, Some(to_spare()), third, false),
        // It was not relocated yet: somebody powered it on at home.
        (Some("esx-spare"), None, home.clone(), false),
        (None, None, home, false),
    ] {
        let mut running = seen(Some(PowerState::On), HostState::InService);
        running.request = Some(request(RequestAction::Relocate {
            to: to.map(Into::into),
        }));
        let powers_on = Episode {
            host: own.clone(),
            moved_to: moved_to.clone(),
            ..away(POWERING_ON)
        };
        let after = written(decided(&powers_on, &running));
        assert_eq!(
            after.relocation_failure.is_some(),
            is_given_up,
            "{to:?} {moved_to:?} {own}"
        );
        if is_given_up {
            let waits = decided(&after, &running);
            assert!(
                !matches!(&waits, Decision::Write(next) if next.record.phase() == Some(&Phase::Draining)),
                "{waits:#?}"
            );
        }
    }
}

#[test]
fn power_on_without_a_node_is_tried_again_at_the_end_of_its_backoff() {
    let policy = policy(DrainTimeoutAction::PowerOff);
    let pause = i64::try_from(policy.backoff(1).as_secs()).unwrap();
    let mut gone = Observed {
        node: None,
        ..seen(Some(PowerState::Off), HostState::InService)
    };
    gone.attempts
        .insert(EffectKind::PowerOn, attempt(10, 1, refused(RetryAdvice::Retry)));
    let at = |seconds| {
        decide(
            &record(&away(Phase::AwaitingHost)),
            &gone,
            &policy,
            moment(seconds),
        )
    };
    assert!(matches!(
        at(10 + pause - 1),
        Decision::Wait { recheck: Some(_), .. }
    ));
    assert_eq!(effect(at(10 + pause)).kind(), EffectKind::PowerOn);
}

#[test]
fn vm_that_this_vcenter_never_knew_is_waited_for_and_not_parked() {
    for (was_known, is_parked) in [(true, true), (false, false)] {
        let unknown = Observed {
            vm: BoundVm::Missing { was_known },
            ..seen(Some(PowerState::On), entering())
        };
        for before in [down(Phase::Draining), away(Phase::AwaitingHost)] {
            match decided(&before, &unknown) {
                Decision::Write(_) => assert!(is_parked, "{:?}", before.phase),
                Decision::Wait { .. } => assert!(!is_parked, "{:?}", before.phase),
                other => panic!("{other:#?}"),
            }
        }
    }
}

#[test]
fn node_that_is_no_vm_is_left_alone_unless_somebody_asks_for_it() {
    let physical = Observed {
        vm: BoundVm::NoVm,
        ..seen(Some(PowerState::On), HostState::Unknown)
    };
    let in_service = |seen: &Observed| {
        let policy = policy(DrainTimeoutAction::PowerOff);
        decide(&Record::InService, seen, &policy, moment(1))
    };
    assert_eq!(in_service(&physical), Decision::Idle);
    let missing = WaitingOn::Parked(ParkReason::VmMissing);
    let asked = Observed {
        request: Some(request(RequestAction::Drain)),
        ..physical.clone()
    };
    assert_eq!(waiting(in_service(&asked)), missing);
    // What vCenter should have, and a VM that was there before, stay a problem.
    for was_known in [false, true] {
        let lost = Observed {
            vm: BoundVm::Missing { was_known },
            ..physical.clone()
        };
        assert_eq!(waiting(in_service(&lost)), missing);
    }
    for before in [down(Phase::Draining), away(Phase::AwaitingHost)] {
        assert_eq!(waiting(decided(&before, &physical)), missing);
    }
}

#[test]
fn host_of_an_adopted_episode_is_known_by_its_name_alone() {
    for (name, has_moved) in [("esx1", false), ("esx-other", true)] {
        let powers_on = Episode {
            host: HostIdentity {
                moref: None,
                name: name.into(),
            },
            ..away(POWERING_ON)
        };
        let after = written(decided(
            &powers_on,
            &seen(Some(PowerState::On), HostState::InService),
        ));
        assert_eq!(after.moved_to.is_some(), has_moved, "{name}");
    }
}

#[test]
fn requests_to_stop_a_vm_are_settled_when_it_is_found_running() {
    let powers_on = Episode {
        in_flight: InFlight {
            guest_shutdown: asked_for(1000),
            power_off: asked_for(1000),
            ..InFlight::default()
        },
        ..away(POWERING_ON)
    };
    let after = written(decided(
        &powers_on,
        &seen(Some(PowerState::On), HostState::InService),
    ));
    assert_eq!(after.phase, Phase::Rejoining);
    assert!(after.in_flight.is_empty(), "{after:#?}");
}

#[test]
fn outdated_list_of_pods_is_read_again_before_the_guest_is_asked() {
    let list_of = |listed_at: i64| Observed {
        drain: Some(report(moment(listed_at).monotonic, 0, vec![])),
        pods_revision: 1,
        ..seen(Some(PowerState::On), entering())
    };
    // The list of the same second is not read again at once.
    let waits = decided(&down(SHUTTING_DOWN), &list_of(2));
    assert!(
        matches!(waits, Decision::Wait { recheck: Some(_), .. }),
        "{waits:#?}"
    );
    let reads = decided(&down(SHUTTING_DOWN), &list_of(-60));
    assert_eq!(effect(reads).kind(), EffectKind::DrainRound);
}

#[test]
fn effect_of_an_earlier_phase_is_only_a_reason_for_a_pause() {
    let task = AttemptOutcome::Running(TaskRef::new("task-7"));
    let mut off = seen(Some(PowerState::Off), HostState::InService);
    off.attempts
        .insert(EffectKind::PowerOn, attempt(-3600, 0, task.clone()));
    assert_eq!(
        effect(decided(&away(POWERING_ON), &off)).kind(),
        EffectKind::PowerOn
    );
    // In the phase itself, a running task is waited for.
    off.attempts.insert(EffectKind::PowerOn, attempt(1, 0, task));
    assert!(matches!(decided(&away(POWERING_ON), &off), Decision::Wait { .. }));
}

#[test]
fn approval_of_a_request_counts_for_that_request_alone() {
    let policy = Policy {
        require_approval: true,
        ..policy(DrainTimeoutAction::PowerOff)
    };
    let asked = request(RequestAction::Reboot);
    let mut queued = episode(Phase::Queued, CordonOwner::NotYet, false);
    queued.trigger.task = None;
    queued.trigger.request = Some(asked.identity.clone());
    let other = RequestUid::new("a0000000-0000-4000-8000-000000000000");
    for (host, approved, drains) in [
        (HostState::InService, asked.identity.uid.clone(), true),
        (HostState::InService, other, false),
        (entering(), asked.identity.uid.clone(), false),
    ] {
        let mut node = node();
        node.overrides.approved = Some(Approval::Request(approved));
        let seen = Observed {
            request: Some(asked.clone()),
            ..observed(node, vm(Some(PowerState::On), host.clone()))
        };
        let next = match decided_by(&policy, &queued, &seen) {
            Decision::Write(next) => Some((next.ends_approval(&record(&queued), &seen), next)),
            Decision::Wait { waiting_on, .. } => {
                assert!(
                    matches!(waiting_on, WaitingOn::Approval { .. }),
                    "{host:?}: {waiting_on}"
                );
                None
            }
            decision => panic!("{host:?}: {decision:?}"),
        };
        let phase = next.as_ref().map(|(_, next)| next.record.phase().cloned());
        if drains {
            assert_eq!(phase, Some(Some(Phase::Draining)), "{host:?}");
            assert!(next.unwrap().0, "it counts once");
        } else if host.is_leaving() {
            // The maintenance of the host gets an episode of its own, and the request keeps its approval.
            assert_eq!(phase, Some(None));
            assert!(!next.unwrap().0);
        } else {
            assert_eq!(phase, None, "{host:?}");
        }
    }
}

#[test]
fn approval_of_an_episode_counts_for_one_drain() {
    let mut node = node();
    node.unschedulable = true;
    let leaving = episode(Phase::Rejoining, CordonOwner::Ours, true);
    node.overrides.approved = Some(Approval::Episode(leaving.id.clone()));
    let seen = observed(node, vm(Some(PowerState::On), entering()));
    let Decision::Write(next) = decided(&leaving, &seen) else {
        panic!("a drain is expected");
    };
    assert_eq!(next.record.phase(), Some(&Phase::Draining));
    assert!(next.ends_approval(&record(&leaving), &seen));
}

#[test]
fn vm_that_a_person_powers_off_while_queued_stays_off() {
    let queued = episode(Phase::Queued, CordonOwner::NotYet, false);
    let off = |change: fn(&mut Observed)| {
        let mut seen = observed(node(), vm(Some(PowerState::Off), entering()));
        change(&mut seen);
        decided(&queued, &seen)
    };
    let Decision::Write(next) = off(|_| {}) else {
        panic!("an end is expected");
    };
    assert_eq!((&next.record, next.unschedulable), (&Record::InService, None));
    assert_eq!(next.ended, Some(EpisodeResult::Cancelled));
    // vCenter powers it off for the maintenance, or a power-off of an earlier episode took effect.
    let ours: [fn(&mut Observed); 2] = [
        |seen| {
            if let BoundVm::Found(vm) = &mut seen.vm {
                vm.evacuation_power_off = true;
            }
        },
        |seen| seen.late_power_off_of = Some(EpisodeId::new("ffeeddccbbaa99887766554433221100")),
    ];
    for change in ours {
        assert_eq!(written(off(change)).phase, Phase::AwaitingHost);
    }
}

#[test]
fn drain_that_begins_anew_names_the_approval_that_is_missing() {
    let behind = Admission::Queued {
        ahead: Vec::new(),
        position: 1,
        limit: SlotLimit::ConcurrentDrains(9),
    };
    let policy = Policy {
        require_approval: true,
        ..policy(DrainTimeoutAction::PowerOff)
    };
    for phase in [Phase::Queued, Phase::Drained, Phase::Rejoining] {
        let mut node = node();
        node.unschedulable = true;
        let episode = episode(phase.clone(), CordonOwner::Ours, false);
        let seen = Observed {
            admission: behind.clone(),
            ..observed(node, vm(Some(PowerState::On), entering()))
        };
        let waiting_on = match decide(&record(&episode), &seen, &policy, moment(2)) {
            Decision::Wait { waiting_on, .. } => waiting_on,
            decision => panic!("{phase:?}: {decision:?}"),
        };
        let approval = WaitingOn::Approval { episode: episode.id };
        assert_eq!(waiting_on, approval, "{phase:?}");
    }
}

#[test]
fn relocation_to_the_host_where_the_vm_is_begins_only_if_that_host_leaves() {
    for (host, begins) in [(entering(), true), (HostState::InService, false)] {
        let asked = Observed {
            request: Some(request(RequestAction::Relocate {
                to: Some("esx1".into()),
            })),
            admission: Admission::Granted,
            ..observed(node(), vm(Some(PowerState::On), host.clone()))
        };
        let decision = decide(
            &Record::InService,
            &asked,
            &policy(DrainTimeoutAction::PowerOff),
            moment(2),
        );
        assert_eq!(
            matches!(decision, Decision::Write(_)),
            begins,
            "{host:?}: {decision:#?}"
        );
    }
}

#[test]
fn node_without_request_on_a_host_of_unknown_state_is_idle() {
    let policy = policy(DrainTimeoutAction::PowerOff);
    let on_unknown = |request: Option<Request>| {
        let seen = Observed {
            request,
            ..observed(node(), vm(Some(PowerState::On), HostState::Unknown))
        };
        decide(&Record::InService, &seen, &policy, moment(2))
    };
    assert!(matches!(on_unknown(None), Decision::Idle));
    let asked = on_unknown(Some(request(RequestAction::Reboot)));
    assert!(matches!(asked, Decision::Wait { .. }), "{asked:#?}");
}

#[test]
fn names_of_phases_and_their_details_are_stable() {
    let parked = parked(&Phase::Draining);
    let relocating = Phase::Relocating { to: to_spare() };
    for (phase, name, whereto) in [
        (Phase::Draining, "Draining", ""),
        (relocating, "Relocating", " to esx-spare"),
        (POWERING_ON, "PoweringOn", ""),
        (
            Phase::PoweringOn { by_drs: true },
            "PoweringOn",
            ", placed by DRS",
        ),
    ] {
        assert_eq!((phase.name(), phase.whereto().as_str()), (name, whereto));
    }
    assert!(parked.whereto().starts_with(": "), "{}", parked.whereto());
    let detections = [Detection::Pushed, Detection::Polled, Detection::AtStartup];
    assert_eq!(
        detections.map(Detection::name),
        ["property_collector", "poll", "startup"]
    );
}

#[test]
fn node_is_unavailable_from_the_cordon_on_also_while_it_is_parked() {
    for phase in cases::phases_at_work() {
        let is_unavailable = phase != Phase::Queued;
        assert_eq!(parked(&phase).is_unavailable(), is_unavailable, "{phase:?}");
        assert_eq!(phase.is_unavailable(), is_unavailable, "{phase:?}");
    }
}

#[test]
fn relocation_that_was_given_up_ends_at_once_only_if_nobody_stopped_the_vm() {
    let asked = InFlight {
        guest_shutdown: asked_for(0),
        ..InFlight::default()
    };
    for (powered_off, in_flight, ends) in [
        (false, InFlight::default(), true),
        (false, asked, false),
        (true, InFlight::default(), false),
    ] {
        let given_up = Episode {
            relocation_failure: Some("no host has a free device".to_owned()),
            powered_off,
            in_flight,
            ..down(Phase::Draining)
        };
        let mut seen = drained(HostState::InService);
        seen.request = Some(request(RequestAction::Relocate { to: None }));
        let decision = decided(&given_up, &seen);
        let is_end = matches!(&decision, Decision::Write(next) if next.record == Record::InService);
        assert_eq!(is_end, ends, "{powered_off} {in_flight:?}: {decision:#?}");
    }
}

#[test]
fn host_that_stays_entering_after_the_vm_is_off_is_a_wait_of_its_own() {
    let timeout = policy(DrainTimeoutAction::PowerOff).power_off_timeout;
    let off = seen(Some(PowerState::Off), entering());
    let at = |elapsed: Duration| {
        let episode = Episode {
            elapsed: Elapsed::of(elapsed),
            ..away(Phase::AwaitingHost)
        };
        decided(&episode, &off)
    };
    let second = Duration::from_secs(1);
    match at(timeout - 60 * second) {
        Decision::Wait {
            waiting_on: WaitingOn::HostExit { .. },
            recheck,
        } => assert!(recheck.is_some(), "the deadline is not missed"),
        other => panic!("{other:#?}"),
    }
    assert!(matches!(waiting(at(timeout)), WaitingOn::HostEntry { .. }));
    // The host where it is registered now is not the one that is waited for.
    let elsewhere = on_spare(off, HostState::InMaintenance, entering());
    let episode = Episode {
        elapsed: Elapsed::of(timeout),
        ..away(Phase::AwaitingHost)
    };
    assert!(matches!(
        waiting(decided(&episode, &elsewhere)),
        WaitingOn::HostExit { .. }
    ));
}

#[test]
fn vm_that_is_to_wait_for_its_host_is_not_powered_on_where_vcenter_moved_it() {
    let moved = |strategy, home: HostState| {
        let mut seen = on_spare(
            seen(Some(PowerState::Off), HostState::InService),
            HostState::InService,
            home,
        );
        node_of(&mut seen).overrides.strategy = strategy;
        seen
    };
    // Haulout moves only a VM that is off, so vCenter moved it: "Move powered-off VMs" was selected.
    let waits = decided(
        &away(Phase::AwaitingHost),
        &moved(Strategy::Wait, HostState::InMaintenance),
    );
    assert!(matches!(waiting(waits), WaitingOn::HostExit { .. }));
    let stays = decided(
        &away(Phase::AwaitingHost),
        &moved(Strategy::Migrate, HostState::InMaintenance),
    );
    assert_eq!(written(stays).phase, POWERING_ON);
    // Its own host is back.
    let mut back = moved(Strategy::Wait, HostState::InService);
    back.offer.fits = Some((home(), "esx1".to_owned()));
    back.attempts
        .insert(EffectKind::Survey, attempt(1, 0, AttemptOutcome::Done));
    let returns = written(decided(&away(Phase::AwaitingHost), &back)).phase;
    assert_eq!(returns.target().and_then(|to| to.moref.clone()), Some(home()));
}

#[test]
fn elapsed_time_is_recorded_while_a_deadline_runs_and_not_otherwise() {
    let policy = policy(DrainTimeoutAction::PowerOff);
    let mut booting = seen(Some(PowerState::On), HostState::InService);
    node_of(&mut booting).ready = false;
    let away_from_home = seen(Some(PowerState::Off), HostState::InMaintenance);
    for (phase, seen, has_deadline) in [
        (Phase::Rejoining, booting, true),
        (Phase::AwaitingHost, away_from_home, false),
    ] {
        let before = away(phase.clone());
        let limit = i64::try_from(policy.power_on_timeout.as_secs()).unwrap() / 2;
        let recorded = (1..limit).find_map(|second| {
            let decision = decide(&record(&before), &seen, &policy, moment(second));
            match decision {
                Decision::Write(next) => Some((second, next.record.episode().unwrap().clone())),
                _ => None,
            }
        });
        assert_eq!(recorded.is_some(), has_deadline, "{phase:?}: {recorded:#?}");
        if let Some((second, after)) = recorded {
            assert_eq!(after.phase, phase);
            assert_eq!(after.elapsed, lasted(second.unsigned_abs()));
        }
    }
}

#[test]
fn refusals_are_remembered_once_per_host_and_operation() {
    let mut episode = away(Phase::AwaitingHost);
    for (host, what) in [
        (home(), RefusedMove::Relocate),
        (home(), RefusedMove::Relocate),
        (home(), RefusedMove::PowerOn),
        (spare(), RefusedMove::Relocate),
    ] {
        episode.refused(&host, what, "no memory");
    }
    let known: Vec<_> = episode
        .refusals
        .iter()
        .map(|it| (it.host.clone(), it.what))
        .collect();
    assert_eq!(
        known,
        [
            (home(), RefusedMove::Relocate),
            (home(), RefusedMove::PowerOn),
            (spare(), RefusedMove::Relocate),
        ]
    );
}

#[test]
fn effect_names_the_host_it_is_for() {
    let vm = VmRef::new("vm-1");
    let power_on = |place| Effect::PowerOn {
        vm: vm.clone(),
        place,
    };
    let relocate = Effect::Relocate {
        vm: vm.clone(),
        to: spare(),
    };
    assert_eq!(relocate.host(), Some(&spare()));
    assert_eq!(power_on(PowerOnTarget::Host(home())).host(), Some(&home()));
    assert_eq!(power_on(PowerOnTarget::Drs).host(), None);
}

#[test]
fn wait_is_a_sentence_and_a_parked_node_names_its_reason_alone() {
    let waits = WaitingOn::Pods {
        left: vec![held()],
        timeout: None,
    };
    assert!(
        waits.sentence().starts_with("waits for 1 pod to go; "),
        "{}",
        waits.sentence()
    );
    let reason = ParkReason::VmSuspended;
    let parked = WaitingOn::Parked(reason.clone());
    assert_eq!(parked.sentence(), reason.to_string());
}

#[test]
fn relocation_that_the_host_refuses_is_not_tried_there_again() {
    let relocating = away(Phase::Relocating { to: to_spare() });
    let refused_with = |advice| {
        let mut off = seen(Some(PowerState::Off), HostState::InMaintenance);
        off.target = HostState::InService;
        off.attempts
            .insert(EffectKind::Relocate, attempt(2, 1, refused(advice)));
        decided(&relocating, &off)
    };
    let after = written(refused_with(RetryAdvice::OtherHost));
    assert_eq!(after.phase, Phase::AwaitingHost);
    assert!(after.has_refused(&spare(), RefusedMove::Relocate));
    // A refusal that says nothing about the host is tried again after a pause.
    assert!(matches!(
        waiting(refused_with(RetryAdvice::Retry)),
        WaitingOn::Retry { .. }
    ));
}

#[test]
fn refusal_that_may_pass_is_retried_where_the_vm_is_before_the_host_counts_as_refused() {
    use RetryAdvice::{MayPass, OtherHost, Unknown};
    let relocating = away(Phase::Relocating { to: to_spare() });
    let off = || seen(Some(PowerState::Off), HostState::InMaintenance);
    let powering_on = || on_spare(off(), HostState::InService, HostState::InMaintenance);
    let to_take = || Observed {
        target: HostState::InService,
        ..off()
    };
    for (advice, refusals, elapsed, from_the_start, is_refused) in [
        (MayPass, 1, 1, true, false),
        (MayPass, 5, 31, true, false),
        (MayPass, 6, 31, true, true),
        (Unknown, 5, 31, true, false),
        (Unknown, 6, 31, true, true),
        // Only this host cannot take it.
        (OtherHost, 1, 1, true, true),
        // The process before had its tries.
        (MayPass, 1, 57, false, false),
        (MayPass, 1, 58, false, true),
        (MayPass, 1, 60, true, false),
    ] {
        for (kind, phase, mut seen) in [
            (EffectKind::PowerOn, away(POWERING_ON), powering_on()),
            (EffectKind::Relocate, relocating.clone(), to_take()),
        ] {
            seen.record_seen.from_the_start = from_the_start;
            seen.attempts.insert(kind, attempt(1, refusals, refused(advice)));
            let episode = Episode {
                elapsed: lasted(elapsed),
                ..phase
            };
            let case = format!("{kind}, {advice:?}, {refusals}, {elapsed} s, {from_the_start}");
            match decided(&episode, &seen) {
                Decision::Write(next) => {
                    assert!(is_refused, "{case}");
                    let next = next.record.episode().unwrap().clone();
                    assert_eq!(next.phase, Phase::AwaitingHost, "{case}");
                    assert!(
                        next.refusals.iter().any(|refusal| refusal.host == spare()),
                        "{case}"
                    );
                }
                Decision::Act { effect, .. } => assert!(!is_refused && effect.kind() == kind, "{case}"),
                Decision::Wait { waiting_on, .. } => {
                    assert!(!is_refused, "{case}");
                    assert!(waiting_on.to_string().contains(": no"), "{case}: {waiting_on}");
                }
                Decision::Idle => panic!("{case}"),
            }
        }
    }
}

#[test]
fn host_that_has_refused_the_vm_for_good_is_tried_again_and_named() {
    let off = seen(Some(PowerState::Off), HostState::InService);
    let mut seen = on_spare(off, HostState::InService, HostState::InMaintenance);
    seen.record_seen.phase_at = moment(-10_000).monotonic;
    // When the VM was refused last, how long it has waited until second 2, and whether it is due by then.
    for (tried_at, waited, is_due) in [
        (Some(-27), 40, false),
        (Some(-28), 40, true),
        (None, 10_002, true),
        // A quarter of the time so far, ten minutes at most.
        (Some(-97), 500, false),
        (Some(-98), 500, true),
        (Some(-597), 9000, false),
        (Some(-598), 9000, true),
    ] {
        let mut episode = away(Phase::AwaitingHost);
        episode.refused(&spare(), RefusedMove::PowerOn, "the file is locked");
        episode.elapsed = lasted(waited - 2);
        seen.attempts.clear();
        let refusal = |at| attempt(at, 6, refused(RetryAdvice::MayPass));
        seen.attempts
            .extend(tried_at.map(|at| (EffectKind::PowerOn, refusal(at))));
        let case = format!("{tried_at:?}, {waited} s");
        let waiting_on = match decided(&episode, &seen) {
            Decision::Act {
                effect, waiting_on, ..
            } => {
                assert!(is_due, "{case}");
                let place = PowerOnTarget::Host(spare());
                let vm = VmRef::new("vm-1");
                assert_eq!(effect, Effect::PowerOn { vm, place }, "{case}");
                waiting_on
            }
            Decision::Wait { waiting_on, recheck } => {
                assert!(!is_due && recheck.is_some(), "{case}");
                waiting_on
            }
            other => panic!("{case}: {other:#?}"),
        };
        assert_eq!(waiting_on.kind(), WaitKind::HostExit, "{case}");
        assert!(
            waiting_on.to_string().contains("the file is locked"),
            "{waiting_on}"
        );
    }
    // Its devices may be those of another host, and a VM that is to wait for its own host stays off.
    let mut episode = away(Phase::AwaitingHost);
    episode.refused(&spare(), RefusedMove::PowerOn, "the file is locked");
    let waits = |episode: &Episode, seen: &Observed| waiting(decided(episode, seen)).kind();
    let fixed = Episode {
        home_devices: vec![haulout_core::facts::vsphere::StaticDevice {
            address: "0000:3b:00.0".to_owned(),
            vendor: A40.0,
            device: A40.1,
        }],
        ..episode.clone()
    };
    seen.attempts.clear();
    assert_eq!(waits(&fixed, &seen), WaitKind::HostExit);
    node_of(&mut seen).overrides.strategy = Strategy::Wait;
    assert_eq!(waits(&episode, &seen), WaitKind::HostExit);
}

#[test]
fn host_that_stays_entering_is_named_also_where_drs_has_no_host() {
    let mut off = seen(Some(PowerState::Off), entering());
    vm_of(&mut off).drs = true;
    let refusal = attempt(1, 4, refused(RetryAdvice::OtherHost));
    off.attempts.insert(EffectKind::PowerOn, refusal);
    let after = |seconds: u64| Episode {
        elapsed: lasted(seconds),
        ..away(Phase::AwaitingHost)
    };
    let policy = Policy {
        power_on_timeout: Duration::from_secs(900),
        ..policy(DrainTimeoutAction::PowerOff)
    };
    let waits = |seconds| match decided_by(&policy, &after(seconds), &off) {
        Decision::Wait { waiting_on, .. } => waiting_on,
        other => panic!("{other:#?}"),
    };
    assert!(matches!(waits(290), WaitingOn::Retry { .. }));
    assert!(
        matches!(waits(300), WaitingOn::HostEntry { .. }),
        "{}",
        waits(300)
    );
    let overdue = written(decided_by(&policy, &after(900), &off));
    let Phase::Parked { reason, .. } = &overdue.phase else {
        panic!("{overdue:#?}");
    };
    assert!(reason.to_string().contains("Move powered-off VMs"), "{reason}");
}

#[test]
fn guest_that_only_may_have_been_asked_is_asked_in_the_next_shutdown() {
    let before = |is_assumed| Episode {
        in_flight: InFlight {
            guest_shutdown: asked_for(10),
            is_assumed,
            ..InFlight::default()
        },
        ..down(Phase::Draining)
    };
    for is_assumed in [false, true] {
        let next = written(decided(&before(is_assumed), &drained(entering())));
        assert_eq!(next.phase, SHUTTING_DOWN);
        // A cancel still has to know of it.
        assert!(next.in_flight.guest_shutdown.is_some());
        assert_eq!(next.in_flight.confirmed_guest_shutdown().is_some(), !is_assumed);
    }
}
