//! Guards while the VM is off.

use std::sync::Arc;

use haulout_core::facts::node_guard::{GuardState, NodeGuard};
use haulout_core::maintenance::decide::{Decision, Transition, decide};
use haulout_core::maintenance::effect::{Effect, EffectKind};
use haulout_core::maintenance::episode::{CordonOwner, Episode, Phase, Record, RefusedMove};
use haulout_core::maintenance::machine_guard::{
    GuardedKind, GuardedObject, MachineGuardReport, MachineGuards,
};
use haulout_core::maintenance::node_guard::GuardChanges;
use haulout_core::maintenance::observed::{
    AttemptOutcome, BoundVm, CordonedBy, EffectAttempt, EffectRefusal, HostState, Observed, ObservedNode,
    PowerState, RetryAdvice,
};
use haulout_core::maintenance::policy::{DrainTimeoutAction, Policy};
use haulout_core::maintenance::waiting::ParkReason;

use crate::facts::*;

const TAINT: NodeGuard = NodeGuard::OutOfServiceTaint;

fn settings() -> Policy {
    let mut policy = policy(DrainTimeoutAction::PowerOff);
    policy.guards.machines = true;
    policy.guards.enabled = [NodeGuard::Medik8s].into();
    policy
}

/// A VM that is off with a pod left behind, and awaits its host.
fn episode_off() -> Episode {
    Episode {
        left_behind: vec!["ml/train".to_owned()],
        guards: [TAINT, NodeGuard::MaintenanceTaint, NodeGuard::Medik8s].into(),
        ..episode(Phase::AwaitingHost, CordonOwner::Ours, true)
    }
}

fn node_with(guards: &[NodeGuard]) -> ObservedNode {
    ObservedNode {
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        ready: false,
        guards: guards.iter().map(|guard| (*guard, GuardState::Ours)).collect(),
        ..node()
    }
}

/// What is seen of that VM on a host in this state, where DRS may place it.
fn seen_off(host: HostState, guards: &[NodeGuard]) -> Observed {
    let mut vm = vm(Some(PowerState::Off), host);
    vm.drs = true;
    let mut seen = observed(node_with(guards), vm);
    seen.record_seen.at = moment(0);
    seen.record_seen.phase_at = moment(-60).monotonic;
    seen
}

fn refused_at(seconds: i64, advice: RetryAdvice, refusals: u32) -> EffectAttempt {
    EffectAttempt {
        at: moment(seconds),
        host: None,
        task: None,
        refusals,
        refused_since: moment(seconds),
        tries: refusals,
        outcome: AttemptOutcome::Refused(EffectRefusal {
            advice,
            message: "no host".to_owned(),
        }),
    }
}

fn record_of(episode: &Episode) -> Record {
    Record::Episode(Arc::new(episode.clone()))
}

fn recorded(decision: Decision) -> Transition {
    match decision {
        Decision::Write(transition) => *transition,
        other => panic!("{other:#?}"),
    }
}

fn powers_on(decision: &Decision) -> bool {
    matches!(
        decision,
        Decision::Act {
            effect: Effect::PowerOn { .. },
            ..
        }
    )
}

/// Expects the write without the taint, and then the power-on.
fn untainted_first(before: &Episode, mut seen: Observed, second: i64) -> (Episode, Observed) {
    let record = record_of(before);
    let write = recorded(decide(&record, &seen, &settings(), moment(second)));
    let after = write.record.episode().expect("an episode").clone();
    assert_eq!(after.phase, before.phase, "the retry keeps its phase");
    let node = seen.node.as_mut().expect("a Node");
    let changes = GuardChanges::of(&record, &write.record, node);
    assert_eq!(changes.remove, [TAINT].into());
    assert!(changes.set.is_empty() && !after.guards.contains(&TAINT));
    node.guards.remove(&TAINT);
    seen.record_seen.at = moment(second);
    let next = decide(&write.record, &seen, &settings(), moment(second));
    assert!(powers_on(&next), "{next:?}");
    (after, seen)
}

/// Episodes whose VM is off and stays off.
fn at_rest() -> [Episode; 2] {
    let parked = Phase::Parked {
        reason: ParkReason::PowerLost { losses: 6 },
        resume: Box::new(Phase::Rejoining),
        resume_since: at(0),
    };
    let guards = [NodeGuard::Medik8s].into();
    let parked = Episode {
        phase: parked,
        power_losses: 5,
        guards,
        ..episode_off()
    };
    [episode_off(), parked]
}

const ALL: [NodeGuard; 3] = [TAINT, NodeGuard::MaintenanceTaint, NodeGuard::Medik8s];

#[test]
fn no_power_on_is_asked_for_under_the_out_of_service_taint() {
    // DRS found no host, and is asked again.
    let mut seen = seen_off(HostState::InMaintenance, &ALL);
    seen.attempts
        .insert(EffectKind::PowerOn, refused_at(-90, RetryAdvice::OtherHost, 1));
    untainted_first(&episode_off(), seen, 0);
    // Its own host refused it.
    let mut seen = seen_off(HostState::InService, &ALL);
    seen.attempts
        .insert(EffectKind::PowerOn, refused_at(-90, RetryAdvice::OtherHost, 5));
    let mut refused = episode_off();
    refused.refused(&home(), RefusedMove::PowerOn, "busy");
    untainted_first(&refused, seen.clone(), 0);
    // An earlier leader was refused, where there is no DRS.
    seen.attempts.clear();
    if let BoundVm::Found(vm) = &mut seen.vm {
        vm.drs = false;
    }
    untainted_first(&refused, seen, 0);
    // Somebody has put the taint back on a node that boots.
    let seen = seen_off(HostState::InService, &ALL);
    let booting = Episode {
        phase: Phase::PoweringOn { by_drs: false },
        ..episode_off()
    };
    untainted_first(&booting, seen, 0);
}

#[test]
fn taint_is_set_again_where_the_power_on_was_refused_and_not_where_it_may_have_happened() {
    let mut seen = seen_off(HostState::InMaintenance, &ALL);
    seen.attempts
        .insert(EffectKind::PowerOn, refused_at(-90, RetryAdvice::OtherHost, 1));
    let (lifted, mut seen) = untainted_first(&episode_off(), seen, 0);
    let record = record_of(&lifted);
    for (advice, is_set_again) in [(RetryAdvice::OtherHost, true), (RetryAdvice::Unanswered, false)] {
        seen.attempts
            .insert(EffectKind::PowerOn, refused_at(1, advice, 5));
        let next = decide(&record, &seen, &settings(), moment(2));
        let again = match &next {
            Decision::Write(write) => {
                let node = seen.node.as_ref().expect("a Node");
                GuardChanges::of(&record, &write.record, node).set == [TAINT].into()
            }
            other => !matches!(other, Decision::Wait { .. }),
        };
        assert_eq!(again, is_set_again, "{advice:?}: {next:?}");
    }
}

#[test]
fn guard_that_somebody_removes_from_the_node_while_the_vm_is_off_is_set_again() {
    let seen = seen_off(HostState::InMaintenance, &[TAINT, NodeGuard::MaintenanceTaint]);
    let mut seen = Observed {
        home: HostState::InMaintenance,
        ..seen
    };
    if let BoundVm::Found(vm) = &mut seen.vm {
        vm.drs = false;
    }
    for episode in at_rest() {
        let record = record_of(&episode);
        let early = decide(&record, &seen, &settings(), moment(60));
        assert!(
            matches!(early, Decision::Wait { recheck: Some(_), .. }),
            "it is not written at once: {early:?}"
        );
        let write = recorded(decide(&record, &seen, &settings(), moment(400)));
        let node = seen.node.as_ref().expect("a Node");
        let changes = GuardChanges::of(&record, &write.record, node);
        assert!(changes.set.contains(&NodeGuard::Medik8s), "{changes:?}");
        assert!(write.is_bookkeeping(&record));
    }
}

#[test]
fn guards_on_the_machine_are_looked_at_again_while_the_vm_is_off() {
    let machine = GuardedObject {
        kind: GuardedKind::Machine,
        namespace: "capi".to_owned(),
        name: "gpu-1".to_owned(),
    };
    let mut seen = seen_off(HostState::InMaintenance, &ALL);
    if let BoundVm::Found(vm) = &mut seen.vm {
        vm.drs = false;
    }
    let done_at = |seconds| EffectAttempt {
        outcome: AttemptOutcome::Done,
        ..refused_at(seconds, RetryAdvice::Retry, 0)
    };
    let is_check = |decision: &Decision| {
        matches!(
            decision,
            Decision::Act {
                effect: Effect::SetMachineGuards { .. },
                ..
            }
        )
    };
    for episode in at_rest() {
        let record = record_of(&Episode {
            machine_guards: MachineGuards {
                objects: vec![machine.clone()],
                ..MachineGuards::default()
            },
            ..episode
        });
        seen.attempts.insert(EffectKind::SetMachineGuards, done_at(0));
        let rest = decide(&record, &seen, &settings(), moment(60));
        assert!(
            matches!(rest, Decision::Wait { recheck: Some(_), .. }),
            "they were set a minute ago: {rest:?}"
        );
        let again = decide(&record, &seen, &settings(), moment(400));
        assert!(is_check(&again), "{again:?}");
        // They are there: nothing is written.
        seen.attempts.insert(EffectKind::SetMachineGuards, done_at(400));
        seen.machine_guards = Some(MachineGuardReport {
            at: moment(400).monotonic,
            objects: Some(vec![machine.clone()]),
        });
        let rest = decide(&record, &seen, &settings(), moment(401));
        assert!(matches!(rest, Decision::Wait { .. }), "{rest:?}");
    }
}
