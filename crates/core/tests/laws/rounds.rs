//! The time of the next round of a drain, and its pods.

use std::sync::Arc;
use std::time::Duration;

use haulout_core::facts::known_pods::{KnownPods, ListedPod, ReturnedPod};
use haulout_core::facts::kubernetes::RequestAction;
use haulout_core::facts::node_guard::NodeGuard;
use haulout_core::fixtures::drain_report;
use haulout_core::maintenance::clock::{Deadline, Elapsed, Monotonic};
use haulout_core::maintenance::decide::{Decision, decide};
use haulout_core::maintenance::drain::TerminatingPod;
use haulout_core::maintenance::effect::{Effect, EffectKind};
use haulout_core::maintenance::episode::{CordonOwner, DrainEnd, Episode, Phase, Record};
use haulout_core::maintenance::observed::{
    BoundVm, HostState, Observed, ObservedNode, PendingEviction, PendingReason, PowerState,
};
use haulout_core::maintenance::policy::DrainTimeoutAction;
use haulout_core::maintenance::request::Request;

use crate::facts::*;

/// The facts after a round that began at second 100 and left pods for these reasons.
fn after_round(left: Vec<PendingReason>, has_changed: bool) -> Observed {
    let began = moment(100).monotonic;
    let node = ObservedNode {
        unschedulable: true,
        ..node()
    };
    let pod = |why| PendingEviction {
        name: "ml/train".to_owned(),
        why,
    };
    let mut seen = observed(node, vm(Some(PowerState::On), entering()));
    seen.record_seen.at = moment(100);
    seen.pods_revision = u64::from(has_changed);
    seen.drain = Some(drain_report(began, left.into_iter().map(pod).collect()));
    seen
}

/// The time of the next round after the one at second 100, in milliseconds.
fn due_ms(seen: Observed) -> i64 {
    let began = moment(100).monotonic;
    let record = Record::Episode(Arc::new(episode(Phase::Draining, CordonOwner::Ours, false)));
    let policy = policy(DrainTimeoutAction::Hold);
    let at_elapsed = |at: Monotonic| moment(100).after(at.since(began));
    let is_due = |now: Monotonic| match decide(&record, &seen, &policy, at_elapsed(now)) {
        Decision::Act {
            effect: Effect::DrainRound { .. },
            ..
        } => None,
        Decision::Wait { recheck, .. } => Some(recheck.expect("a round is due at some time")),
        other => panic!("{other:?}"),
    };
    let mut now = began;
    while let Some(later) = is_due(now) {
        assert!(later > now, "it looks again at {now:?} for ever");
        now = later;
    }
    i64::try_from(now.since(began).as_millis()).expect("milliseconds")
}

#[test]
fn budget_is_asked_when_its_pause_is_over_and_not_because_of_other_pods() {
    let held = || PendingReason::Budget {
        message: String::new(),
        names: vec!["b".to_owned()],
    };
    for has_changed in [false, true] {
        assert_eq!(due_ms(after_round(vec![held()], has_changed)), 50);
        let mut watched = after_round(vec![held()], has_changed);
        if let Some(report) = &mut watched.drain {
            report.follow(None, |_, _| true);
        }
        let due = if has_changed { 250 } else { 5000 };
        assert_eq!(due_ms(watched), due, "changed: {has_changed}");
    }
}

#[test]
fn pod_is_not_asked_before_retry_after_has_passed() {
    let mut seen = after_round(
        vec![PendingReason::Refused {
            message: String::new(),
        }],
        false,
    );
    if let Some(report) = &mut seen.drain {
        let at = moment(107).monotonic;
        report.backoff.retry_at.insert("ml/train".to_owned(), at);
    }
    assert_eq!(due_ms(seen.clone()), 7000);
    // A round for another reason does not evict it.
    seen.pods_revision = 1;
    let record = Record::Episode(Arc::new(episode(Phase::Draining, CordonOwner::Ours, false)));
    let deferred_at =
        |seconds| match decide(&record, &seen, &policy(DrainTimeoutAction::Hold), moment(seconds)) {
            Decision::Act {
                effect: Effect::DrainRound { deferred, .. },
                ..
            } => deferred.into_keys().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
    assert_eq!(deferred_at(106), ["ml/train"]);
    assert!(deferred_at(107).is_empty());
}

#[test]
fn refused_eviction_is_tried_again_after_the_eviction_retry() {
    let message = String::new;
    let refused = || PendingReason::Refused { message: message() };
    let leaving = || PendingReason::Leaving;
    for (left, ms) in [
        (vec![refused()], 5000),
        (vec![PendingReason::Migrating { message: message() }], 5000),
        (vec![PendingReason::NotReached], 5000),
        (vec![leaving(), refused()], 5000),
        // Pods that are terminating are not evicted again; a round only checks for missed changes.
        (vec![leaving()], 30_000),
        (vec![leaving(), leaving()], 30_000),
    ] {
        assert_eq!(due_ms(after_round(left.clone(), false)), ms, "{left:?}");
        assert_eq!(due_ms(after_round(left.clone(), true)), 250, "{left:?}");
    }
}

#[test]
fn request_may_give_a_drain_more_time_and_never_less() {
    let asked = |action, timeout: Option<u64>| Request {
        drain_timeout: timeout.map(Duration::from_secs),
        ..request(action)
    };
    for (request, seconds) in [
        (None, 600),
        (Some(asked(RequestAction::PowerOff, None)), 600),
        (Some(asked(RequestAction::PowerOff, Some(60))), 600),
        (Some(asked(RequestAction::PowerOff, Some(7200))), 7200),
        (Some(asked(RequestAction::Drain, Some(60))), 600),
        (Some(asked(RequestAction::Drain, Some(7200))), 7200),
    ] {
        let node = ObservedNode {
            unschedulable: true,
            ..node()
        };
        let host = if request.is_some() {
            HostState::InService
        } else {
            entering()
        };
        let refused = PendingReason::Refused {
            message: String::new(),
        };
        let mut report = after_round(vec![refused], false).drain.expect("a report");
        report.listed_at = moment(0).monotonic;
        let seen = Observed {
            request,
            drain: Some(report),
            ..observed(node, vm(Some(PowerState::On), host))
        };
        // One second before the end, in a new process.
        let episode = Episode {
            elapsed: Elapsed::of(Duration::from_secs(seconds - 1)),
            ..episode(Phase::Draining, CordonOwner::Ours, false)
        };
        let record = Record::Episode(Arc::new(episode));
        match decide(&record, &seen, &policy(DrainTimeoutAction::PowerOff), moment(0)) {
            Decision::Wait { recheck, .. } => assert_eq!(recheck, Some(moment(1).monotonic)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn pods_that_came_back_do_not_hold_the_drain_and_are_named_at_its_end() {
    let mut seen = after_round(Vec::new(), false);
    let first = [ListedPod {
        uid: "uid-1".to_owned(),
        owner: "agent".to_owned(),
        tolerates_cordon: true,
    }];
    let listed = Arc::new(KnownPods::after(None, &first));
    let returned = |name: &str, tolerates_cordon| ReturnedPod {
        name: name.to_owned(),
        tolerates_cordon,
    };
    let report = seen.drain.as_mut().expect("a report");
    report.known = Arc::clone(&listed);
    report.returned = vec![returned("ml/agent-2", true), returned("ml/pinned-9", false)];
    seen.record_seen.phase_at = moment(100).monotonic;
    let record = Record::Episode(Arc::new(episode(Phase::Draining, CordonOwner::Ours, false)));
    let decided =
        |seen: &Observed, seconds| decide(&record, seen, &policy(DrainTimeoutAction::Hold), moment(seconds));
    // The list is too early to prove the drain. The next one knows which pods were there at first.
    match decided(&seen, 102) {
        Decision::Act {
            effect: Effect::DrainRound { known, .. },
            ..
        } => assert_eq!(known, Some(Arc::clone(&listed))),
        other => panic!("{other:#?}"),
    }
    seen.drain.as_mut().expect("a report").listed_at = moment(102).monotonic;
    match decided(&seen, 103) {
        Decision::Write(transition) => {
            let episode = transition.record.episode().expect("an episode");
            assert_eq!(episode.phase, Phase::ShuttingDown(DrainEnd::Complete));
            assert_eq!(
                episode.left_behind,
                [
                    "ml/agent-2 (came back: it tolerates the cordon)",
                    "ml/pinned-9 (came back after its eviction)"
                ]
            );
        }
        other => panic!("{other:#?}"),
    }
    // The rounds of an earlier drain say nothing: pods may have been bound since.
    seen.record_seen.phase_at = moment(103).monotonic;
    match decided(&seen, 104) {
        Decision::Act {
            effect: Effect::DrainRound { known, .. },
            ..
        } => assert_eq!(known, None),
        other => panic!("{other:#?}"),
    }
    // A drain that a shutdown has resumed is the same one, and so is the list that the shutdown needs.
    let resumed = Episode {
        drained_for: Elapsed::of(Duration::from_secs(5)),
        ..episode(Phase::Draining, CordonOwner::Ours, false)
    };
    let shutdown = episode(Phase::ShuttingDown(DrainEnd::Complete), CordonOwner::Ours, false);
    seen.pods_revision += 1;
    for episode in [resumed, shutdown] {
        let record = Record::Episode(Arc::new(episode));
        match decide(&record, &seen, &policy(DrainTimeoutAction::Hold), moment(104)) {
            Decision::Act {
                effect: Effect::DrainRound { known, .. },
                ..
            } => assert_eq!(known, Some(Arc::clone(&listed))),
            other => panic!("{other:#?}"),
        }
    }
}

#[test]
fn pod_that_may_be_waited_for_extends_the_drain_until_it_is_evicted() {
    let record = Record::Episode(Arc::new(episode(Phase::Draining, CordonOwner::Ours, false)));
    let until = Deadline {
        at: moment(3_700).monotonic,
        shown: at(3_700),
    };
    let mut seen = after_round(vec![PendingReason::Waits { until }], false);
    seen.record_seen.phase_at = moment(100).monotonic;
    let report = seen.drain.as_mut().expect("a report");
    report.listed_at = moment(3_650).monotonic;
    report.longest_wait = Duration::from_secs(3_600);
    let decided = |seen: &Observed, seconds| {
        let policy = policy(DrainTimeoutAction::PowerOff);
        decide(&record, seen, &policy, moment(seconds))
    };
    // The drain timeout is 600 s. Pods are listed again from time to time, in case a change was missed.
    match decided(&seen, 3_660) {
        Decision::Wait { waiting_on, recheck } => {
            let sentence = waiting_on.sentence();
            let shown = at(3_700);
            let expected = format!("waits for 1 pod to go; ml/train: waits for it to end until {shown:.0}");
            assert_eq!(sentence, expected);
            assert_eq!(recheck, Some(moment(3_680).monotonic));
        }
        Decision::Write(transition) => assert!(transition.is_bookkeeping(&record), "{transition:#?}"),
        other => panic!("{other:#?}"),
    }
    // Exactly at the end of the wait, the next round evicts it.
    seen.drain.as_mut().expect("a report").listed_at = moment(3_690).monotonic;
    seen.record_seen.at = moment(3_699);
    let mut aged = episode(Phase::Draining, CordonOwner::Ours, false);
    aged.elapsed = Elapsed::of(Duration::from_secs(3_599));
    let record = Record::Episode(Arc::new(aged));
    let policy = policy(DrainTimeoutAction::PowerOff);
    let decided = |seen: &Observed, seconds| decide(&record, seen, &policy, moment(seconds));
    match decided(&seen, 3_700) {
        Decision::Act {
            effect: Effect::DrainRound { began, .. },
            ..
        } => {
            assert_eq!(began.elapsed, Duration::from_secs(3_600));
            assert_eq!(began.at, at(100), "also after a restart");
        }
        other => panic!("{other:#?}"),
    }
    // From then on, it has the whole drain timeout to terminate.
    let report = seen.drain.as_mut().expect("a report");
    report.left[0].why = PendingReason::Leaving;
    report.listed_at = moment(4_290).monotonic;
    assert!(matches!(
        decided(&seen, 4_299),
        Decision::Wait { .. } | Decision::Write(_)
    ));
    match decided(&seen, 4_300) {
        Decision::Write(transition) => {
            let next = transition.record.episode().expect("an episode");
            assert_eq!(next.phase, Phase::ShuttingDown(DrainEnd::TimedOut));
            assert_eq!(next.left_behind, ["ml/train"]);
        }
        other => panic!("{other:#?}"),
    }
}

/// A pod that was seen to terminate at second 100 with a grace period of 30 s, on a node in the drain since then.
fn terminating(is_unreachable: bool) -> Observed {
    let mut seen = after_round(vec![PendingReason::Leaving], false);
    seen.record_seen.phase_at = moment(90).monotonic;
    seen.node.as_mut().expect("a node").is_unreachable = is_unreachable;
    let pod = TerminatingPod {
        uid: "uid-1".to_owned(),
        since: moment(100).monotonic,
        grace: Duration::from_secs(30),
    };
    let report = seen.drain.as_mut().expect("a report");
    report.terminating.insert("ml/train".to_owned(), pod);
    seen
}

#[test]
fn pod_past_its_grace_period_is_not_waited_for_if_the_kubelet_is_gone() {
    let record = Record::Episode(Arc::new(episode(Phase::Draining, CordonOwner::Ours, false)));
    let policy = policy(DrainTimeoutAction::Hold);
    let decided = |seen: &Observed, seconds| decide(&record, seen, &policy, moment(seconds));
    match decided(&terminating(true), 125) {
        Decision::Wait { recheck, .. } => assert_eq!(recheck, Some(moment(130).monotonic)),
        other => panic!("{other:#?}"),
    }
    match decided(&terminating(true), 130) {
        Decision::Write(transition) => {
            let next = transition.record.episode().expect("an episode");
            assert_eq!(next.phase, Phase::ShuttingDown(DrainEnd::Complete));
            assert_eq!(next.left_behind, ["ml/train (its kubelet is gone)"]);
        }
        other => panic!("{other:#?}"),
    }
    let goes_on = |seen: &Observed| {
        let decision = decided(seen, 130);
        let is_round = |effect: &Effect| matches!(effect, Effect::DrainRound { .. });
        assert!(
            matches!(&decision, Decision::Act { effect, .. } if is_round(effect)),
            "{decision:#?}"
        );
    };
    goes_on(&terminating(false));
    let mut held = terminating(true);
    let report = held.drain.as_mut().expect("a report");
    report.left.push(PendingEviction {
        name: "ml/held".to_owned(),
        why: crate::cases::held().why,
    });
    goes_on(&held);
}

/// Its StatefulSet makes no other pod while it is there, so the taint out-of-service has to follow.
#[test]
fn pod_that_terminates_when_its_vm_goes_off_is_left_behind() {
    for phase in [Phase::Draining, Phase::ShuttingDown(DrainEnd::Complete)] {
        let record = Record::Episode(Arc::new(episode(phase.clone(), CordonOwner::Ours, false)));
        let mut policy = policy(DrainTimeoutAction::Hold);
        policy.guards.out_of_service_taint = true;
        let mut seen = terminating(false);
        seen.vm = BoundVm::Found(vm(Some(PowerState::Off), entering()));
        match decide(&record, &seen, &policy, moment(125)) {
            Decision::Write(transition) => {
                let next = transition.record.episode().expect("an episode");
                assert_eq!(next.phase, Phase::AwaitingHost, "{phase:?}");
                assert_eq!(next.left_behind, ["ml/train"], "{phase:?}");
                let is_tainted = next.guards.contains(&NodeGuard::OutOfServiceTaint);
                assert!(is_tainted, "{phase:?}");
            }
            other => panic!("{other:#?}"),
        }
    }
}

#[test]
fn kubelet_that_comes_back_in_the_shutdown_gets_its_pods_drained() {
    let shutting_down = Phase::ShuttingDown(DrainEnd::Complete);
    let record = Record::Episode(Arc::new(episode(shutting_down, CordonOwner::Ours, false)));
    let policy = policy(DrainTimeoutAction::Hold);
    let decided = |is_unreachable| {
        let mut seen = terminating(is_unreachable);
        seen.record_seen.at = moment(138);
        seen.drain.as_mut().expect("a report").listed_at = moment(138).monotonic;
        decide(&record, &seen, &policy, moment(140))
    };
    match decided(true) {
        Decision::Act { effect, .. } => assert_eq!(effect.kind(), EffectKind::ShutdownGuest),
        other => panic!("{other:#?}"),
    }
    match decided(false) {
        Decision::Write(transition) => {
            let next = transition.record.episode().expect("an episode");
            assert_eq!(next.phase, Phase::Draining);
        }
        other => panic!("{other:#?}"),
    }
}
