//! Requests that may not begin before a time, or outside a window.

use std::sync::Arc;
use std::time::Duration;

use haulout_core::facts::kubernetes::RequestAction;
use haulout_core::facts::window::Window;
use haulout_core::maintenance::decide::{Decision, decide};
use haulout_core::maintenance::episode::{CordonOwner, Episode, Phase, Record};
use haulout_core::maintenance::observed::{HostState, Observed, PowerState};
use haulout_core::maintenance::policy::DrainTimeoutAction;
use haulout_core::maintenance::request::Request;
use haulout_core::maintenance::waiting::WaitingOn;

use crate::facts::*;

/// A node with a request that may begin at second 100.
fn seen(host: HostState) -> Observed {
    let mut seen = observed(node(), vm(Some(PowerState::On), host));
    seen.request = Some(Request {
        not_before: Some(at(100)),
        ..request(RequestAction::PowerOff)
    });
    seen
}

fn decided(record: &Record, seen: &Observed, second: i64) -> Decision {
    decide(record, seen, &policy(DrainTimeoutAction::Hold), moment(second))
}

fn begun(decision: &Decision) -> Option<bool> {
    let Decision::Write(transition) = decision else {
        return None;
    };
    Some(transition.record.episode()?.trigger.request.is_some())
}

/// Whether a write ends the episode.
fn ends(decision: &Decision) -> Option<bool> {
    match decision {
        Decision::Write(transition) => Some(transition.ended.is_some()),
        Decision::Act { .. } | Decision::Wait { .. } | Decision::Idle => None,
    }
}

#[test]
fn request_waits_for_its_time_and_then_begins() {
    let seen = seen(HostState::InService);
    let early = decided(&Record::InService, &seen, 40);
    let Decision::Wait {
        waiting_on: WaitingOn::NotBefore { .. },
        recheck,
    } = early
    else {
        panic!("{early:?}");
    };
    assert_eq!(recheck, Some(moment(40).monotonic.after(Duration::from_secs(60))));
    assert_eq!(begun(&decided(&Record::InService, &seen, 100)), Some(true));
}

#[test]
fn host_maintenance_does_not_wait_for_a_scheduled_request() {
    let seen = seen(entering());
    assert_eq!(begun(&decided(&Record::InService, &seen, 40)), Some(false));
}

#[test]
fn request_that_has_begun_goes_on_although_the_clock_is_set_back() {
    let seen = seen(HostState::InService);
    let mut queued = episode(Phase::Queued, CordonOwner::NotYet, false);
    queued.trigger.request = seen.request.as_ref().map(|request| request.identity.clone());
    let record = Record::Episode(Arc::new(Episode { ..queued.clone() }));
    assert!(matches!(decided(&record, &seen, 40), Decision::Write(next) if next.ended.is_none()));
    queued.trigger.request = None;
    let other = Record::Episode(Arc::new(queued));
    assert!(matches!(decided(&other, &seen, 40), Decision::Write(next) if next.ended.is_some()));
}

/// A node with a request whose window is open from second 200 (2026-11-18 11:10:00) until second 800.
fn seen_with_window(host: HostState, action: RequestAction) -> Observed {
    let mut seen = observed(node(), vm(Some(PowerState::On), host));
    seen.request = Some(Request {
        window: Some("Wed 11:10-11:20".parse()),
        ..request(action)
    });
    seen
}

/// An episode that the request of `seen` began.
fn begun_by(seen: &Observed, phase: Phase, cordon: CordonOwner) -> Episode {
    let mut episode = episode(phase, cordon, false);
    episode.trigger.request = seen.request.as_ref().map(|request| request.identity.clone());
    episode
}

/// The time of the opening for which `decision` waits, in seconds from `second`.
fn opens_in(decision: &Decision, second: i64) -> Option<u64> {
    let Decision::Wait {
        waiting_on: WaitingOn::Window { at: opens, .. },
        recheck: Some(recheck),
    } = decision
    else {
        return None;
    };
    let left = recheck.since(moment(second).monotonic);
    assert_eq!(*opens, at(second) + left);
    Some(left.as_secs())
}

#[test]
fn request_waits_for_its_window_and_then_begins() {
    const WEEK: u64 = 7 * 24 * 3600;
    let seen = seen_with_window(HostState::InService, RequestAction::Reboot);
    for (second, expected) in [
        (0, Some(200)),
        (199, Some(1)),
        (200, None),
        (799, None),
        (800, Some(WEEK - 600)),
    ] {
        let decision = decided(&Record::InService, &seen, second);
        assert_eq!(opens_in(&decision, second), expected, "{second}");
        assert_eq!(begun(&decision), expected.is_none().then_some(true), "{second}");
    }
}

#[test]
fn request_begins_in_the_first_window_after_its_time() {
    for (not_before, expected) in [(100, 200), (300, 300), (800, 200 + 7 * 24 * 3600)] {
        let mut seen = seen_with_window(HostState::InService, RequestAction::Reboot);
        seen.request.as_mut().unwrap().not_before = Some(at(not_before));
        let decision = decided(&Record::InService, &seen, 0);
        assert_eq!(opens_in(&decision, 0), Some(expected), "{not_before}");
    }
}

#[test]
fn queued_episode_waits_for_the_next_window_of_its_request() {
    const WEEK: u64 = 7 * 24 * 3600;
    let seen = seen_with_window(HostState::InService, RequestAction::Reboot);
    let queued = Record::Episode(Arc::new(begun_by(&seen, Phase::Queued, CordonOwner::NotYet)));
    assert_eq!(ends(&decided(&queued, &seen, 799)), Some(false));
    assert_eq!(opens_in(&decided(&queued, &seen, 800), 800), Some(WEEK - 600));
    // One of another request, and one whose VM is off, end.
    let mut other = begun_by(&seen, Phase::Queued, CordonOwner::NotYet);
    other.trigger.request = None;
    assert_eq!(
        ends(&decided(&Record::Episode(Arc::new(other)), &seen, 800)),
        Some(true)
    );
    let mut off = seen;
    off.vm = observed(node(), vm(Some(PowerState::Off), HostState::InService)).vm;
    assert_eq!(ends(&decided(&queued, &off, 800)), Some(true));
    // A click in vCenter does not wait for the window.
    let entering = seen_with_window(entering(), RequestAction::Reboot);
    let Decision::Write(next) = decided(&queued, &entering, 800) else {
        panic!("a drain is expected");
    };
    assert_eq!(next.record.phase(), Some(&Phase::Draining));
}

#[test]
fn maintenance_that_has_begun_goes_on_after_its_window() {
    for action in [
        RequestAction::Drain,
        RequestAction::PowerOff,
        RequestAction::Reboot,
    ] {
        let seen = seen_with_window(HostState::InService, action);
        let draining = begun_by(&seen, Phase::Draining, CordonOwner::Ours);
        let record = Record::Episode(Arc::new(draining));
        let decision = decided(&record, &seen, 900);
        assert_eq!(decision, decided(&record, &seen_without_window(&seen), 900));
        assert_ne!(ends(&decision), Some(true));
    }
}

fn seen_without_window(seen: &Observed) -> Observed {
    let mut seen = seen.clone();
    seen.request.as_mut().unwrap().window = None;
    seen
}

#[test]
fn node_that_a_request_keeps_drained_stays_so_after_its_window() {
    // The episode is of a maintenance of the host, so the record does not name the request.
    let seen = seen_with_window(HostState::InService, RequestAction::Drain);
    for (since, stays) in [(300, true), (900, false)] {
        let drained = Episode {
            since: at(since),
            ..episode(Phase::Drained, CordonOwner::Ours, false)
        };
        let decision = decided(&Record::Episode(Arc::new(drained)), &seen, 1000);
        assert_eq!(ends(&decision) == Some(true), !stays, "{since}: {decision:?}");
    }
}

#[test]
fn request_with_an_invalid_window_never_begins() {
    let mut seen = seen_with_window(HostState::InService, RequestAction::PowerOff);
    let invalid = "22:00-04:00 Mars/Olympus".parse::<Window>();
    seen.request.as_mut().unwrap().window = Some(invalid);
    for second in [0, 300, 1_000_000] {
        let Decision::Wait { waiting_on, recheck } = decided(&Record::InService, &seen, second) else {
            panic!("a wait is expected");
        };
        assert_eq!(recheck, None);
        let text = waiting_on.to_string();
        assert!(text.contains("\"Mars/Olympus\" is not a time zone"), "{text}");
    }
    let queued = Record::Episode(Arc::new(begun_by(&seen, Phase::Queued, CordonOwner::NotYet)));
    assert_eq!(ends(&decided(&queued, &seen, 300)), Some(true));
}
