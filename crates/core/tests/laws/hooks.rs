//! Hooks that hold a step of a maintenance.

use std::sync::Arc;
use std::time::Duration;

use haulout_core::maintenance::clock::Elapsed;
use haulout_core::maintenance::decide::{Decision, Transition, decide};
use haulout_core::maintenance::effect::EffectKind;
use haulout_core::maintenance::episode::{CordonOwner, Episode, HeldStep, Phase, Record};
use haulout_core::maintenance::hook::HookPoint;
use haulout_core::maintenance::observed::{DrainReport, HostState, Observed, ObservedNode, ObservedPower};
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
    let mut seen = observed(node, vm(ObservedPower::On, host));
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
        Decision::Record(transition) => *transition,
        other => panic!("{other:#?}"),
    }
}

fn is_held(decision: &Decision, point: HookPoint) -> bool {
    matches!(decision, Decision::Wait { waiting_on: WaitingOn::Hook { point: at, .. }, recheck: Some(_) } if *at == point)
}

const BOTH: [HookTimeoutAction; 2] = HookTimeoutAction::ALL;

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
    let seen = seen(with_hook(point, cordoned()), HostState::InService);
    let first = recorded(decided(&in_phase(Phase::Rejoining, None), &seen, BOTH[0]));
    assert_eq!(first.ended, None);
    let held = in_phase(Phase::Rejoining, held_for(point, 60));
    assert!(is_held(&decided(&held, &seen, BOTH[0]), point));
}
