//! Hooks that hold a step of a maintenance.

use std::sync::Arc;
use std::time::Duration;

use haulout_core::ids::{BootId, NodeUid};
use haulout_core::maintenance::clock::Elapsed;
use haulout_core::maintenance::decide::{Decision, Transition, decide};
use haulout_core::maintenance::effect::EffectKind;
use haulout_core::maintenance::episode::{CordonOwner, DrainEnd, Episode, HeldStep, Phase, Record};
use haulout_core::maintenance::hook::HookPoint;
use haulout_core::maintenance::observed::{
    AttemptOutcome, BoundVm, CordonedBy, DrainReport, EffectAttempt, EffectRefusal, HostState, Observed,
    ObservedNode, PendingEviction, PendingReason, PowerState, RetryAdvice,
};
use haulout_core::maintenance::policy::{DrainTimeoutAction, HookTimeoutAction, Policy};
use haulout_core::maintenance::waiting::{ParkReason, WaitingOn};

use crate::facts::*;

fn with_hook(point: HookPoint, node: ObservedNode) -> ObservedNode {
    ObservedNode {
        hooks: [(point, ["ticket".to_owned()].into())].into(),
        ..node
    }
}

fn cordoned() -> ObservedNode {
    ObservedNode {
        unschedulable: true,
        ..node()
    }
}

fn seen(node: ObservedNode, host: HostState) -> Observed {
    let mut seen = observed(node, vm(Some(PowerState::On), host));
    seen.record_seen.at = moment(0);
    seen.record_seen.phase_at = moment(-60).monotonic;
    seen
}

fn settings(action: HookTimeoutAction) -> Policy {
    Policy {
        hook_timeout: Duration::from_secs(3600),
        hook_timeout_action: action,
        ..policy(DrainTimeoutAction::PowerOff)
    }
}

fn held_for(point: HookPoint, seconds: u64) -> Option<HeldStep> {
    let mut held = HeldStep::begin(point, moment(0));
    held.timer.elapsed = Elapsed::of(Duration::from_secs(seconds));
    Some(held)
}

fn in_phase(phase: Phase, held: Option<HeldStep>) -> Record {
    Record::Episode(Arc::new(Episode {
        held,
        ..episode(phase, CordonOwner::Ours, false)
    }))
}

fn decided(record: &Record, seen: &Observed, action: HookTimeoutAction) -> Decision {
    decide(record, seen, &settings(action), moment(0))
}

fn recorded(decision: Decision) -> Transition {
    match decision {
        Decision::Write(transition) => *transition,
        other => panic!("{other:#?}"),
    }
}

fn is_held(decision: &Decision, point: HookPoint) -> bool {
    matches!(decision, Decision::Wait { waiting_on: WaitingOn::Hook { point: at, .. }, recheck: Some(_) } if *at == point)
}

const BOTH: [HookTimeoutAction; 2] = [HookTimeoutAction::Proceed, HookTimeoutAction::Hold];

#[test]
fn hook_from_before_the_cordon_holds_the_first_eviction_and_later_ones_do_not() {
    let point = HookPoint::PreDrain;
    let begun = recorded(decided(
        &Record::InService,
        &seen(with_hook(point, node()), entering()),
        BOTH[0],
    ));
    let held = begun.record.episode().and_then(|episode| episode.held);
    assert_eq!(held.map(|held| held.point), Some(point));
    assert_eq!(begun.unschedulable, Some(true), "it is cordoned at once");

    let seen = seen(with_hook(point, cordoned()), entering());
    for action in BOTH {
        let held = in_phase(Phase::Draining, held_for(point, 60));
        assert!(is_held(&decided(&held, &seen, action), point));
        let late = in_phase(Phase::Draining, None);
        assert!(matches!(
            decided(&late, &seen, action),
            Decision::Act { effect, .. } if effect.kind() == EffectKind::DrainRound
        ));
    }
}

#[test]
fn drain_has_its_whole_time_after_the_hook() {
    let held = Record::Episode(Arc::new(Episode {
        held: held_for(HookPoint::PreDrain, 5000),
        elapsed: Elapsed::of(Duration::from_secs(5000)),
        ..episode(Phase::Draining, CordonOwner::Ours, false)
    }));
    let gone = recorded(decided(&held, &seen(cordoned(), entering()), BOTH[0]));
    let episode = gone.record.episode().expect("an episode");
    assert_eq!((&episode.phase, episode.held), (&Phase::Draining, None));
    assert!(episode.elapsed.is_zero() && episode.drained_for.is_zero());
}

#[test]
fn hook_holds_the_shutdown_of_a_drained_node() {
    let point = HookPoint::PrePowerOff;
    let mut drained = seen(with_hook(point, cordoned()), entering());
    drained.drain = Some(DrainReport {
        listed_at: moment(-1).monotonic,
        ..drain_report(moment(-1).monotonic, Vec::new())
    });
    for action in BOTH {
        let first = recorded(decided(&in_phase(Phase::Draining, None), &drained, action));
        let held = first.record.episode().and_then(|episode| episode.held);
        assert_eq!(held.map(|held| held.point), Some(point));
        let held = in_phase(Phase::Draining, held_for(point, 60));
        assert!(is_held(&decided(&held, &drained, action), point));
    }
}

#[test]
fn hook_that_is_overdue_parks_the_node_or_is_passed_over() {
    let point = HookPoint::PreDrain;
    let seen = seen(with_hook(point, cordoned()), entering());
    let overdue = in_phase(Phase::Draining, held_for(point, 3600));
    let parked = recorded(decided(&overdue, &seen, HookTimeoutAction::Hold));
    assert!(matches!(
        parked.record.phase(),
        Some(Phase::Parked {
            reason: ParkReason::Overdue { .. },
            ..
        })
    ));
    let still = decided(&parked.record, &seen, HookTimeoutAction::Hold);
    assert!(
        matches!(
            still,
            Decision::Wait {
                waiting_on: WaitingOn::Parked(_),
                ..
            }
        ),
        "{still:?}"
    );
    let passed = recorded(decided(&overdue, &seen, HookTimeoutAction::Proceed));
    let episode = passed.record.episode().expect("an episode");
    assert_eq!((&episode.phase, episode.held), (&Phase::Draining, None));
}

#[test]
fn hook_holds_the_uncordon_of_a_node_that_is_back() {
    let point = HookPoint::PreUncordon;
    let mut seen = seen(with_hook(point, cordoned()), HostState::InService);
    if let Some(node) = &mut seen.node {
        node.boot_id = Some(BootId::new("boot-after"));
    }
    let back = |held| {
        Record::Episode(Arc::new(Episode {
            held,
            ..episode(Phase::Rejoining, CordonOwner::Ours, true)
        }))
    };
    let first = recorded(decided(&back(None), &seen, BOTH[0]));
    assert_eq!(first.ended, None);
    assert!(is_held(
        &decided(&back(held_for(point, 60)), &seen, BOTH[0]),
        point
    ));
}

fn hold_of(record: &Record) -> Option<HeldStep> {
    record.episode().and_then(|episode| episode.held)
}

/// A Node that somebody uncordoned.
fn uncordoned(point: HookPoint) -> Observed {
    seen(with_hook(point, node()), entering())
}

#[test]
fn uncordon_leaves_the_hold_of_the_first_eviction_and_its_time() {
    let point = HookPoint::PreDrain;
    let held = held_for(point, 60);
    let again = recorded(decided(
        &in_phase(Phase::Draining, held),
        &uncordoned(point),
        BOTH[0],
    ));
    assert_eq!((again.unschedulable, hold_of(&again.record)), (Some(true), held));
    let seen = seen(with_hook(point, cordoned()), entering());
    let next = decided(&again.record, &seen, BOTH[0]);
    assert!(is_held(&next, point), "{next:?}");
}

#[test]
fn uncordon_leaves_the_hold_of_a_parked_node() {
    let point = HookPoint::PreDrain;
    let overdue = in_phase(Phase::Draining, held_for(point, 3600));
    let cordoned_node = seen(with_hook(point, cordoned()), entering());
    let parked = recorded(decided(&overdue, &cordoned_node, HookTimeoutAction::Hold));
    let again = recorded(decided(
        &parked.record,
        &uncordoned(point),
        HookTimeoutAction::Hold,
    ));
    assert_eq!(hold_of(&again.record), hold_of(&parked.record));
    let next = recorded(decided(&again.record, &cordoned_node, HookTimeoutAction::Hold));
    assert!(
        matches!(next.record.phase(), Some(Phase::Parked { .. })),
        "{next:?}"
    );

    // After the second uncordon it is parked for that, and a person cordons it again.
    let intended = recorded(decided(
        &again.record,
        &uncordoned(point),
        HookTimeoutAction::Hold,
    ));
    let resumed = recorded(decided(&intended.record, &cordoned_node, HookTimeoutAction::Hold));
    assert_eq!(hold_of(&resumed.record), hold_of(&parked.record), "{resumed:?}");
}

#[test]
fn node_that_is_put_back_with_its_hooks_is_still_held() {
    for point in [HookPoint::PreDrain, HookPoint::PreUncordon] {
        let (phase, host) = match point {
            HookPoint::PreDrain | HookPoint::PrePowerOff => (Phase::Draining, entering()),
            HookPoint::PreUncordon => (Phase::Rejoining, HostState::InService),
        };
        let held = held_for(point, 60);
        let record = Record::Episode(Arc::new(Episode {
            held,
            vm_uuid: Some(uuid(1)),
            ..episode(phase, CordonOwner::Ours, false)
        }));
        let put_back = ObservedNode {
            uid: NodeUid::new("uid-2"),
            cordoned_by: CordonedBy::Other("kubectl-replace".to_owned()),
            ..with_hook(point, cordoned())
        };
        let mut seen = seen(put_back, host);
        if let BoundVm::Found(vm) = &mut seen.vm {
            vm.uuid = Some(uuid(1));
        }
        let here = recorded(decided(&record, &seen, BOTH[0]));
        assert_eq!(hold_of(&here.record), held, "{point:?}");
    }
}

/// A drain whose timeout has passed, with a pod that is still there, while a hook holds the shutdown.
fn timed_out(held: u64, revision: u64) -> (Record, Observed) {
    let point = HookPoint::PrePowerOff;
    let record = Record::Episode(Arc::new(Episode {
        held: held_for(point, held),
        elapsed: Elapsed::of(Duration::from_secs(700)),
        ..episode(Phase::Draining, CordonOwner::Ours, false)
    }));
    let mut seen = seen(with_hook(point, cordoned()), entering());
    let train = PendingEviction {
        name: "ml/train".to_owned(),
        why: PendingReason::Leaving,
    };
    seen.drain = Some(drain_report(moment(-1).monotonic, vec![train]));
    seen.pods_revision = revision;
    (record, seen)
}

fn is_round_under_hold(decision: &Decision) -> bool {
    matches!(
        decision,
        Decision::Act { effect, waiting_on: WaitingOn::Hook { .. } | WaitingOn::Parked(_), .. }
            if effect.kind() == EffectKind::DrainRound
    )
}

#[test]
fn drain_goes_on_while_a_hook_holds_the_shutdown() {
    for action in BOTH {
        let (record, seen) = timed_out(60, 1);
        let round = decided(&record, &seen, action);
        assert!(is_round_under_hold(&round), "{action:?}: {round:?}");
        let (record, seen) = timed_out(60, 0);
        let rest = decided(&record, &seen, action);
        assert!(is_held(&rest, HookPoint::PrePowerOff), "{action:?}: {rest:?}");
    }
    let (record, seen) = timed_out(3600, 1);
    let parked = recorded(decided(&record, &seen, HookTimeoutAction::Hold));
    let round = decided(&parked.record, &seen, HookTimeoutAction::Hold);
    assert!(is_round_under_hold(&round), "parked: {round:?}");
}

#[test]
fn drain_that_becomes_complete_under_a_hold_ends_as_complete() {
    let (record, mut seen) = timed_out(60, 0);
    seen.drain = Some(drain_report(moment(-1).monotonic, Vec::new()));
    let held = decided(&record, &seen, BOTH[0]);
    assert!(is_held(&held, HookPoint::PrePowerOff), "{held:?}");
    if let Some(node) = &mut seen.node {
        node.hooks.clear();
    }
    let next = recorded(decided(&record, &seen, BOTH[0]));
    assert_eq!(
        next.record.phase(),
        Some(&Phase::ShuttingDown(DrainEnd::Complete))
    );
}

#[test]
fn drain_goes_on_while_a_guard_on_the_machine_is_refused() {
    let (record, mut seen) = timed_out(0, 1);
    let Record::Episode(episode) = record else {
        unreachable!()
    };
    let mut episode = Episode {
        held: None,
        ..(*episode).clone()
    };
    episode.machine_guards.is_due = true;
    if let Some(node) = &mut seen.node {
        node.hooks.clear();
    }
    let refused = EffectAttempt {
        at: moment(-1),
        host: None,
        task: None,
        refusals: 5,
        refused_since: moment(-1),
        tries: 5,
        outcome: AttemptOutcome::Refused(EffectRefusal {
            advice: RetryAdvice::Person,
            message: "HTTP 403".to_owned(),
        }),
    };
    seen.attempts.insert(EffectKind::SetMachineGuards, refused);
    let mut settings = settings(BOTH[0]);
    settings.guards.machines = true;
    let round = decide(&Record::Episode(Arc::new(episode)), &seen, &settings, moment(0));
    assert!(
        matches!(&round, Decision::Act { effect, .. } if effect.kind() == EffectKind::DrainRound),
        "{round:?}"
    );
}

#[test]
fn node_whose_vm_was_never_off_is_uncordoned_without_a_look_at_hooks() {
    let seen = seen(
        with_hook(HookPoint::PreUncordon, cordoned()),
        HostState::InService,
    );
    let cancelled = Record::Episode(Arc::new(episode(Phase::Rejoining, CordonOwner::Ours, false)));
    let end = recorded(decided(&cancelled, &seen, BOTH[0]));
    assert_eq!((end.record, end.unschedulable), (Record::InService, Some(false)));
}
