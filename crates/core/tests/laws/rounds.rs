//! The time of the next round of a drain, and its pods.

use std::sync::Arc;
use std::time::Duration;

use haulout_core::maintenance::clock::{Elapsed, Monotonic};
use haulout_core::maintenance::decide::{Decision, decide};
use haulout_core::maintenance::drain::{EvictionBackoff, TolerantPods};
use haulout_core::maintenance::effect::Effect;
use haulout_core::maintenance::episode::{CordonOwner, DrainEnd, Episode, Phase, Record};
use haulout_core::maintenance::observed::{
    DrainReport, HostState, Observed, ObservedNode, ObservedPower, PendingEviction, PendingReason,
};
use haulout_core::maintenance::policy::DrainTimeoutAction;
use haulout_core::maintenance::request::{Request, RequestAction};

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
    let mut seen = observed(node, vm(ObservedPower::On, entering()));
    seen.record_seen.at = moment(100);
    seen.pods_revision = u64::from(has_changed);
    seen.drain = Some(DrainReport {
        listed_at: began,
        pods_revision: 0,
        left: left.into_iter().map(pod).collect(),
        backoff: EvictionBackoff::default(),
        tolerant: TolerantPods::default(),
        listed: 1,
        ignored: 0,
        evicted: 0,
    });
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
            ..observed(node, vm(ObservedPower::On, host))
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
    let tolerant = TolerantPods {
        first: Arc::new(["uid-1".to_owned()].into()),
        returned: vec!["ml/agent-2".to_owned()],
    };
    seen.drain.as_mut().expect("a report").tolerant = tolerant.clone();
    seen.record_seen.phase_at = moment(100).monotonic;
    let record = Record::Episode(Arc::new(episode(Phase::Draining, CordonOwner::Ours, false)));
    let decided =
        |seen: &Observed, seconds| decide(&record, seen, &policy(DrainTimeoutAction::Hold), moment(seconds));
    // The list is too early to prove the drain. The next one knows which pods were there at first.
    match decided(&seen, 102) {
        Decision::Act {
            effect: Effect::DrainRound { tolerant: known, .. },
            ..
        } => assert_eq!(known, Some(tolerant.first.clone())),
        other => panic!("{other:#?}"),
    }
    seen.drain.as_mut().expect("a report").listed_at = moment(102).monotonic;
    match decided(&seen, 103) {
        Decision::Record(transition) => {
            let episode = transition.record.episode().expect("an episode");
            assert_eq!(episode.phase, Phase::ShuttingDown(DrainEnd::Complete));
            assert_eq!(episode.left_behind, tolerant.returned);
        }
        other => panic!("{other:#?}"),
    }
    // A round of an earlier phase says nothing: pods may have been bound since.
    seen.record_seen.phase_at = moment(103).monotonic;
    match decided(&seen, 104) {
        Decision::Act {
            effect: Effect::DrainRound { tolerant: known, .. },
            ..
        } => assert_eq!(known, None),
        other => panic!("{other:#?}"),
    }
}
