//! The wait for volumes between the drain and the shutdown.

use std::sync::Arc;
use std::time::Duration;

use haulout_core::fixtures::drain_report;
use haulout_core::maintenance::clock::Elapsed;
use haulout_core::maintenance::decide::{Decision, decide};
use haulout_core::maintenance::effect::EffectKind;
use haulout_core::maintenance::episode::{CordonOwner, DrainEnd, Episode, Phase, Record};
use haulout_core::maintenance::observed::{
    BoundVm, EffectAttempt, HostState, Observed, ObservedNode, PowerState, RetryAdvice,
};
use haulout_core::maintenance::policy::{DrainTimeoutAction, Policy};
use haulout_core::maintenance::volumes::{AttachedVolume, VolumeReport, VolumeWait};

use crate::cases::refused;
use crate::facts::*;

fn policy_with(seconds: u64) -> Policy {
    Policy {
        volume_detach_timeout: Duration::from_secs(seconds),
        ..policy(DrainTimeoutAction::PowerOff)
    }
}

/// A shutdown that began at second 0 and has taken `elapsed` seconds, seen since then.
fn shutting_down(elapsed: u64) -> Episode {
    let phase = Phase::ShuttingDown(DrainEnd::Complete);
    Episode {
        elapsed: Elapsed::of(Duration::from_secs(elapsed)),
        ..episode(phase, CordonOwner::Ours, false)
    }
}

/// A drained node at second 0, on which these volumes were attached when they were listed at second 0.
fn drained(attached: Option<&[&str]>) -> Observed {
    let node = ObservedNode {
        unschedulable: true,
        ..node()
    };
    let mut seen = observed(node, vm(Some(PowerState::On), entering()));
    seen.drain = Some(drain_report(moment(0).monotonic, Vec::new()));
    seen.volumes = attached.map(|names| VolumeReport {
        listed_at: moment(0).monotonic,
        attached: names.iter().map(|name| volume(name)).collect(),
        had_some: !names.is_empty(),
    });
    seen
}

fn volume(name: &str) -> AttachedVolume {
    AttachedVolume {
        name: name.to_owned(),
        claim: Some(format!("ml/{name}")),
    }
}

fn decided(episode: Episode, seen: &Observed, timeout: u64) -> Decision {
    decide(
        &Record::Episode(Arc::new(episode)),
        seen,
        &policy_with(timeout),
        moment(0),
    )
}

fn effect(decision: &Decision) -> Option<EffectKind> {
    match decision {
        Decision::Act { effect, .. } => Some(effect.kind()),
        _ => None,
    }
}

fn end_of_wait(decision: Decision) -> VolumeWait {
    match decision {
        Decision::Write(transition) => {
            let episode = transition.record.episode().expect("an episode");
            episode.volumes.clone().expect("the end of the wait")
        }
        other => panic!("{other:#?}"),
    }
}

#[test]
fn guest_is_asked_when_no_volume_is_attached_or_none_is_waited_for() {
    let ask = Some(EffectKind::ShutdownGuest);
    assert_eq!(
        effect(&decided(shutting_down(0), &drained(None), 120)),
        Some(EffectKind::ListVolumes)
    );
    assert_eq!(effect(&decided(shutting_down(0), &drained(Some(&[])), 120)), ask);
    assert_eq!(
        effect(&decided(shutting_down(0), &drained(Some(&["pvc-1"])), 0)),
        ask
    );
    let mut unreachable = drained(Some(&["pvc-1"]));
    unreachable.node.as_mut().expect("a node").is_unreachable = true;
    assert_eq!(effect(&decided(shutting_down(0), &unreachable, 120)), ask);
    let over = Episode {
        volumes: Some(VolumeWait::default()),
        ..shutting_down(0)
    };
    assert_eq!(effect(&decided(over, &drained(Some(&["pvc-1"])), 120)), ask);
}

#[test]
fn attached_volumes_are_named_and_listed_again_until_they_are_detached() {
    match decided(shutting_down(20), &drained(Some(&["pvc-1", "pvc-2"])), 120) {
        Decision::Wait { waiting_on, recheck } => {
            let until = at(100);
            assert_eq!(
                waiting_on.sentence(),
                format!(
                    "waits for 2 volumes to be detached until {until:.0}: pvc-1 (claim ml/pvc-1), pvc-2 (claim ml/pvc-2)"
                )
            );
            assert_eq!(recheck, Some(moment(5).monotonic), "a quarter of the time so far");
        }
        other => panic!("{other:#?}"),
    }
    let mut listed_before = drained(Some(&["pvc-1"]));
    listed_before.volumes.as_mut().expect("a report").listed_at = moment(-5).monotonic;
    // This list is of an earlier phase.
    let again = decided(shutting_down(20), &listed_before, 120);
    assert_eq!(effect(&again), Some(EffectKind::ListVolumes));
    let mut detached = drained(Some(&[]));
    detached.volumes.as_mut().expect("a report").had_some = true;
    let over = end_of_wait(decided(shutting_down(20), &detached, 120));
    let waited = Elapsed::of(Duration::from_secs(20));
    assert_eq!(
        over,
        VolumeWait {
            waited,
            left: Vec::new()
        }
    );
}

#[test]
fn volumes_that_stay_attached_are_given_up_and_recorded() {
    let over = end_of_wait(decided(shutting_down(120), &drained(Some(&["pvc-1"])), 120));
    assert_eq!(over.left, ["pvc-1 (claim ml/pvc-1)"]);
    // Lists that fail do not hold the shutdown either.
    let mut failed = drained(None);
    let attempt = EffectAttempt {
        at: moment(0),
        host: None,
        task: None,
        refusals: 1,
        refused_since: moment(0),
        tries: 1,
        outcome: refused(RetryAdvice::Retry),
    };
    failed.attempts.insert(EffectKind::ListVolumes, attempt);
    assert!(matches!(
        decided(shutting_down(119), &failed, 120),
        Decision::Wait { .. }
    ));
    assert_eq!(
        end_of_wait(decided(shutting_down(120), &failed, 120)).left,
        [""; 0]
    );
}

#[test]
fn guest_that_cannot_be_asked_has_its_time_from_the_first_refusal() {
    let decided = |since: i64| {
        let mut seen = drained(Some(&[]));
        seen.record_seen.phase_at = moment(-130).monotonic;
        let refusal = EffectAttempt {
            at: moment(-40),
            host: None,
            task: None,
            refusals: 9,
            refused_since: moment(since),
            tries: 9,
            outcome: refused(RetryAdvice::Unknown),
        };
        seen.attempts.insert(EffectKind::ShutdownGuest, refusal);
        decided(shutting_down(130), &seen, 120)
    };
    // The guest gets 120 s, and the shutdown has taken 130 s. It is second 0.
    assert_eq!(effect(&decided(-119)), Some(EffectKind::ShutdownGuest));
    match decided(-120) {
        Decision::Write(transition) => {
            let in_flight = transition.record.episode().expect("an episode").in_flight;
            assert!(in_flight.power_off.is_some(), "its power is cut");
        }
        other => panic!("{other:#?}"),
    }
}

#[test]
fn cancel_ends_the_wait_for_volumes() {
    let mut seen = drained(Some(&["pvc-1"]));
    let vm = vm(Some(PowerState::On), HostState::InService);
    seen.vm = BoundVm::Found(vm);
    match decided(shutting_down(20), &seen, 120) {
        Decision::Write(transition) => assert!(transition.ended.is_some(), "{transition:#?}"),
        other => panic!("{other:#?}"),
    }
}
