//! When the next round of a drain comes that a budget holds, and what each is told.

use std::sync::Arc;
use std::time::Duration;

use haulout::maintenance::clock::Monotonic;
use haulout::maintenance::decide::{Decision, decide};
use haulout::maintenance::effect::Effect;
use haulout::maintenance::episode::{Cordon, Phase, Record};
use haulout::maintenance::observed::{
    DrainReport, HostState, NodeSeen, Observed, PodLeft, PodLeftBecause, PowerSeen,
};
use haulout::maintenance::policy::DrainTimeoutAction;
use haulout::maintenance::request::{Action, Request};

use crate::facts::*;

/// How long after a round that began at second 100 the next one comes, in milliseconds: the budget let a pod go `moved`
/// seconds before it, and nothing else happens but what is said.
fn next_round_ms(moved: i64, is_heard: bool, has_changed: bool) -> i64 {
    let held = PodLeftBecause::Budget {
        said: String::new(),
        names: vec!["b".to_owned()],
    };
    let seen = Observed {
        are_budgets_heard: is_heard,
        ..after_round(moved, vec![held], has_changed)
    };
    due_ms(seen)
}

/// What is known after a round that began at second 100 and left pods for these reasons.
fn after_round(moved: i64, left: Vec<PodLeftBecause>, has_changed: bool) -> Observed {
    let began = moment(100).monotonic;
    let node = NodeSeen {
        unschedulable: true,
        ..node()
    };
    let pod = |why| PodLeft {
        name: "ml/train".to_owned(),
        why,
    };
    let mut seen = observed(node, vm(PowerSeen::On, entering()));
    seen.record_seen.at = moment(100);
    seen.pods_revision = u64::from(has_changed);
    seen.drain = Some(DrainReport {
        listed_at: began,
        pods_revision: 0,
        left: left.into_iter().map(pod).collect(),
        moved_at: Some(moment(100 - moved).monotonic),
        listed: 1,
        ignored: 0,
        evicted: 0,
    });
    seen
}

/// When the next round comes after the one that began at second 100, in milliseconds.
fn due_ms(seen: Observed) -> i64 {
    let began = moment(100).monotonic;
    let record = Record::Episode(Arc::new(episode(Phase::Draining, Cordon::Ours, false)));
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
fn a_budget_that_is_not_heard_is_asked_after_two_tenths_of_the_time_that_it_takes() {
    for (moved, ms) in [(0, 50), (1, 200), (10, 2000), (20, 4000), (90, 5000)] {
        assert_eq!(next_round_ms(moved, false, false), ms, "after {moved} s");
    }
}

#[test]
fn a_budget_that_is_heard_is_asked_at_its_word_and_otherwise_as_seldom_as_any_refused_eviction() {
    for moved in [0, 1, 10, 20, 90] {
        assert_eq!(next_round_ms(moved, true, false), 5000, "after {moved} s");
        for is_heard in [false, true] {
            assert_eq!(next_round_ms(moved, is_heard, true), 50, "after {moved} s");
        }
    }
}

#[test]
fn refused_eviction_is_tried_again_after_the_eviction_retry() {
    let said = String::new;
    let refused = || PodLeftBecause::Refused { said: said() };
    let leaving = || PodLeftBecause::Leaving;
    for (left, ms) in [
        (vec![refused()], 5000),
        (vec![PodLeftBecause::Migrating { said: said() }], 5000),
        (vec![PodLeftBecause::NotReached], 5000),
        (vec![leaving(), refused()], 5000),
        // Pods that go by themselves are asked for no more, so a round only looks whether a change was missed.
        (vec![leaving()], 30_000),
        (vec![leaving(), leaving()], 30_000),
    ] {
        assert_eq!(due_ms(after_round(0, left.clone(), false)), ms, "{left:?}");
        assert_eq!(due_ms(after_round(0, left.clone(), true)), 250, "{left:?}");
    }
}

#[test]
fn a_round_knows_how_long_its_drain_may_take() {
    let asked = |action, timeout: Option<u64>| Request {
        drain_timeout: timeout.map(Duration::from_secs),
        ..request(action)
    };
    for (request, seconds) in [
        (None, 600),
        (Some(asked(Action::PowerOff, None)), 600),
        (Some(asked(Action::PowerOff, Some(60))), 600),
        (Some(asked(Action::PowerOff, Some(7200))), 7200),
        (Some(asked(Action::Drain, Some(60))), 600),
        (Some(asked(Action::Drain, Some(7200))), 7200),
    ] {
        let node = NodeSeen {
            unschedulable: true,
            ..node()
        };
        let host = if request.is_some() {
            HostState::InService
        } else {
            entering()
        };
        let seen = Observed {
            request,
            ..observed(node, vm(PowerSeen::On, host))
        };
        let episode = episode(Phase::Draining, Cordon::Ours, false);
        let record = Record::Episode(Arc::new(episode));
        match decide(&record, &seen, &policy(DrainTimeoutAction::PowerOff), moment(0)) {
            Decision::Act {
                effect: Effect::DrainRound { until, .. },
                ..
            } => assert_eq!(until.since(moment(0).monotonic).as_secs(), seconds),
            other => panic!("{other:?}"),
        }
    }
}
