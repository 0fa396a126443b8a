//! The GPU counts of the last boot, which a Node may still show after the next one.

use std::collections::BTreeSet;
use std::sync::Arc;

use haulout_core::ids::BootId;
use haulout_core::maintenance::decide::{Decision, decide};
use haulout_core::maintenance::effect::{Effect, EffectKind};
use haulout_core::maintenance::episode::{CordonOwner, Episode, Phase, Record};
use haulout_core::maintenance::observed::{
    AttemptOutcome, CordonedBy, EffectAttempt, EffectRefusal, HostState, Observed, ObservedNode, PowerState,
    RetryAdvice,
};
use haulout_core::maintenance::policy::DrainTimeoutAction;
use haulout_core::maintenance::waiting::WaitingOn;

use crate::facts::*;

const POWERING_ON: Phase = Phase::PoweringOn { by_drs: false };

/// A cordoned node whose host is back, with this boot and so many GPUs in its status.
fn seen(power: Option<PowerState>, boot: &str, allocatable: u64, capacity: u64) -> Observed {
    let mut seen = observed(node(), vm(power, HostState::InService));
    let counts = |count| {
        if count == 0 {
            Default::default()
        } else {
            gpus(count)
        }
    };
    seen.node = Some(ObservedNode {
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        boot_id: Some(BootId::new(boot)),
        gpus: counts(allocatable).into(),
        gpu_capacity: counts(capacity).into(),
        ..node()
    });
    seen
}

fn away(phase: Phase, gpus_cleared: bool) -> Episode {
    Episode {
        gpus_cleared,
        ..episode(phase, CordonOwner::Ours, true)
    }
}

fn decided(episode: &Episode, seen: &Observed, second: i64) -> Decision {
    let record = Record::Episode(Arc::new(episode.clone()));
    decide(
        &record,
        seen,
        &policy(DrainTimeoutAction::PowerOff),
        moment(second),
    )
}

fn effect(decision: Decision) -> Effect {
    match decision {
        Decision::Act { effect, .. } => effect,
        other => panic!("{other:#?}"),
    }
}

fn written(decision: Decision) -> Episode {
    match decision {
        Decision::Write(transition) => transition.record.episode().expect("an episode").clone(),
        other => panic!("{other:#?}"),
    }
}

fn tried(seen: &mut Observed, refusals: u32, tries: u32, outcome: AttemptOutcome) {
    let attempt = EffectAttempt {
        at: moment(1),
        host: None,
        task: None,
        refusals,
        refused_since: moment(1),
        tries,
        outcome,
    };
    seen.attempts.insert(EffectKind::ClearGpus, attempt);
}

fn refused(advice: RetryAdvice) -> AttemptOutcome {
    AttemptOutcome::Refused(EffectRefusal {
        advice,
        message: "no".to_owned(),
    })
}

fn is_power_on(decision: &Decision) -> bool {
    matches!(
        decision,
        Decision::Act {
            effect: Effect::PowerOn { .. },
            ..
        }
    )
}

#[test]
fn gpu_counts_of_the_last_boot_are_removed_before_the_vm_is_powered_on() {
    let old = old_boot();
    for (allocatable, capacity) in [(2, 2), (2, 0), (0, 2)] {
        for phase in [POWERING_ON, Phase::AwaitingHost] {
            let mut seen = seen(Some(PowerState::Off), old.as_str(), allocatable, capacity);
            if phase == Phase::AwaitingHost {
                // It still waits for its host.
                seen.vm = haulout_core::maintenance::observed::BoundVm::Found(vm(
                    Some(PowerState::Off),
                    HostState::InMaintenance,
                ));
                seen.home = HostState::InMaintenance;
            }
            let expected = Effect::ClearGpus {
                node: node().uid,
                resource_version: node().resource_version,
                boot: Some(old.clone()),
                resources: BTreeSet::from([GPU.to_owned()]),
            };
            let case = format!("{allocatable} of {capacity} in {phase:?}");
            assert_eq!(effect(decided(&away(phase, false), &seen, 2)), expected, "{case}");
        }
    }
    let cleared = seen(Some(PowerState::Off), old.as_str(), 0, 0);
    assert!(is_power_on(&decided(&away(POWERING_ON, false), &cleared, 2)));
    // The devices of a driver are in ResourceSlices.
    let mut driver = away(POWERING_ON, false);
    driver.gpus_before = Arc::new([("gpu.nvidia.com".to_owned(), 2)].into());
    let shown = seen(Some(PowerState::Off), old.as_str(), 2, 2);
    assert!(is_power_on(&decided(&driver, &shown, 2)));
}

#[test]
fn power_on_does_not_wait_long_for_the_gpu_counts_to_be_removed() {
    let old = old_boot();
    let after = |refusals, tries, outcome, second| {
        let mut seen = seen(Some(PowerState::Off), old.as_str(), 2, 2);
        tried(&mut seen, refusals, tries, outcome);
        decided(&away(POWERING_ON, false), &seen, second)
    };
    match after(1, 1, refused(RetryAdvice::Retry), 1) {
        Decision::Wait { waiting_on, recheck } => {
            let is_retry = matches!(
                &waiting_on,
                WaitingOn::Retry {
                    effect: EffectKind::ClearGpus,
                    ..
                }
            );
            assert!(is_retry, "{waiting_on}");
            assert!(recheck.is_some());
        }
        other => panic!("{other:#?}"),
    }
    let again = effect(after(1, 1, refused(RetryAdvice::Retry), 9));
    assert_eq!(again.kind(), EffectKind::ClearGpus);
    for (refusals, tries, outcome) in [
        (1, 1, refused(RetryAdvice::Person)),
        (5, 5, refused(RetryAdvice::Retry)),
        // Somebody writes the counts again and again.
        (0, 20, AttemptOutcome::Done),
    ] {
        let decision = after(refusals, tries, outcome.clone(), 1);
        assert!(is_power_on(&decision), "{outcome:?}: {decision:#?}");
    }
}

#[test]
fn gpu_counts_are_believed_once_they_were_removed_since_the_vm_was_off() {
    let at_power_on = |allocatable, done: bool| {
        let mut seen = seen(Some(PowerState::On), "boot-after", allocatable, allocatable);
        if done {
            tried(&mut seen, 0, 1, AttemptOutcome::Done);
        }
        written(decided(&away(POWERING_ON, false), &seen, 2))
    };
    for (allocatable, done, is_cleared) in [(0, false, true), (2, true, true), (2, false, false)] {
        let next = at_power_on(allocatable, done);
        assert_eq!(next.phase, Phase::Rejoining);
        assert_eq!(next.gpus_cleared, is_cleared, "{allocatable}, {done}");
    }
    // A VM that goes off again has to be powered on again.
    let off = seen(Some(PowerState::Off), "boot-after", 2, 2);
    let lost = written(decided(&away(Phase::Rejoining, true), &off, 2));
    assert!(lost.phase.vm_is_off() && !lost.gpus_cleared, "{lost:#?}");
}

/// Somebody else has powered the VM on, or vSphere HA did.
#[test]
fn node_whose_gpu_counts_were_not_removed_in_time_waits_for_those_of_its_boot() {
    let rejoining = away(Phase::Rejoining, false);
    let stale = seen(Some(PowerState::On), "boot-after", 2, 2);
    assert_eq!(
        effect(decided(&rejoining, &stale, 2)).kind(),
        EffectKind::ClearGpus
    );
    // Also before its kubelet has started.
    let booting = seen(Some(PowerState::On), old_boot().as_str(), 2, 2);
    assert_eq!(
        effect(decided(&rejoining, &booting, 2)).kind(),
        EffectKind::ClearGpus
    );
    let cleared = seen(Some(PowerState::On), "boot-after", 0, 0);
    let next = written(decided(&rejoining, &cleared, 2));
    assert!(next.gpus_cleared && next.phase == Phase::Rejoining, "{next:#?}");
    match decided(&next, &cleared, 2) {
        Decision::Wait { waiting_on, .. } => {
            assert!(
                matches!(waiting_on, WaitingOn::Gpus { have: 0, want: 2, .. }),
                "{waiting_on}"
            );
        }
        other => panic!("{other:#?}"),
    }
    let is_end = |decision: &Decision| matches!(decision, Decision::Write(transition) if transition.record == Record::InService);
    assert!(
        is_end(&decided(&next, &stale, 2)),
        "its device plugin has registered"
    );
    // Without the right to remove them, the count on the Node is believed.
    let mut forbidden = stale.clone();
    tried(&mut forbidden, 1, 1, refused(RetryAdvice::Person));
    assert!(is_end(&decided(&rejoining, &forbidden, 2)));
    // The refusal of an earlier phase may be outdated.
    forbidden.record_seen.phase_at = moment(2).monotonic;
    let waits = decided(&rejoining, &forbidden, 3);
    assert!(matches!(waits, Decision::Wait { .. }), "{waits:#?}");
    // The record has just been written.
    forbidden.record_seen.at = moment(39);
    let again = effect(decided(&rejoining, &forbidden, 40));
    assert_eq!(again.kind(), EffectKind::ClearGpus);
}

#[test]
fn gpu_counts_of_a_node_that_stayed_on_are_left_alone() {
    let seen = seen(Some(PowerState::On), old_boot().as_str(), 2, 2);
    let cancelled = episode(Phase::Rejoining, CordonOwner::Ours, false);
    let decision = decided(&cancelled, &seen, 2);
    assert!(
        matches!(&decision, Decision::Write(transition) if transition.record == Record::InService),
        "{decision:#?}"
    );
}
