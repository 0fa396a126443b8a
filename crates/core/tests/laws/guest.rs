//! A guest of which nobody knows whether it was asked to shut down, and one that rebooted instead.

use std::time::Duration;

use haulout_core::ids::BootId;
use haulout_core::maintenance::clock::{Elapsed, Timer};
use haulout_core::maintenance::decide::{Decision, decide};
use haulout_core::maintenance::effect::EffectKind;
use haulout_core::maintenance::episode::{CordonOwner, DrainEnd, Episode, InFlight, Phase, Record};
use haulout_core::maintenance::observed::{
    AttemptOutcome, BoundVm, CordonedBy, HostState, Observed, ObservedNode, PowerState, RetryAdvice,
};
use haulout_core::maintenance::policy::DrainTimeoutAction;

use crate::cases::{self, refused, report};
use crate::facts::*;

const SHUTTING_DOWN: Phase = Phase::ShuttingDown(DrainEnd::Complete);

/// How long a guest has, as the fixtures set it.
const TIME_OF_GUEST: Duration = Duration::from_secs(120);

fn drained(host: HostState) -> Observed {
    let node = ObservedNode {
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        ..node()
    };
    Observed {
        drain: Some(report(moment(1).monotonic, 0, vec![])),
        ..observed(node, vm(Some(PowerState::On), host))
    }
}

/// The same, after a request to the guest at second 1 with this outcome.
fn tried(host: HostState, outcome: AttemptOutcome) -> Observed {
    Observed {
        attempts: cases::tried(&[EffectKind::ShutdownGuest], &outcome),
        ..drained(host)
    }
}

fn shutting_down(in_flight: InFlight) -> Episode {
    Episode {
        in_flight,
        ..episode(SHUTTING_DOWN, CordonOwner::Ours, false)
    }
}

/// A request at second 0 without an answer.
fn assumed() -> InFlight {
    InFlight {
        guest_shutdown: Some(Timer {
            since: at(0),
            elapsed: Elapsed::ZERO,
        }),
        is_assumed: true,
        ..InFlight::default()
    }
}

fn decided_at(seconds: i64, episode: &Episode, seen: &Observed) -> Decision {
    let record = Record::Episode(episode.clone().into());
    decide(
        &record,
        seen,
        &policy(DrainTimeoutAction::PowerOff),
        moment(seconds),
    )
}

fn recorded(decision: Decision) -> Episode {
    match decision {
        Decision::Write(transition) => transition.record.episode().expect("an episode").clone(),
        other => panic!("nothing is recorded: {other:#?}"),
    }
}

fn effect(decision: Decision) -> EffectKind {
    match decision {
        Decision::Act { effect, .. } => effect.kind(),
        other => panic!("nothing is requested: {other:#?}"),
    }
}

#[test]
fn guest_is_asked_again_when_the_reply_was_lost() {
    let lost = tried(entering(), refused(RetryAdvice::Unanswered));
    // It may be on its way down, so a cancel has to know of it.
    let episode = recorded(decided_at(2, &shutting_down(InFlight::default()), &lost));
    assert_eq!(episode.phase, SHUTTING_DOWN);
    assert!(episode.in_flight.guest_shutdown.is_some() && episode.in_flight.is_assumed);
    // Neither at once nor after the time that it would have had is its power cut.
    for span in [Duration::ZERO, TIME_OF_GUEST * 2] {
        let kind = effect(decided_at(10, &episode.aged(span), &lost));
        assert_eq!(kind, EffectKind::ShutdownGuest, "{span:?}");
    }
}

#[test]
fn guest_has_its_time_from_the_request_that_was_answered() {
    for outcome in [
        AttemptOutcome::Asked,
        // VMware Tools are among the first to stop.
        refused(RetryAdvice::NoTools),
    ] {
        let mut seen = tried(entering(), outcome.clone());
        for attempt in seen.attempts.values_mut() {
            attempt.at = moment(500);
            attempt.refused_since = moment(500);
        }
        if let BoundVm::Found(vm) = &mut seen.vm {
            vm.tools_running = Some(false);
        }
        let episode = recorded(decided_at(501, &shutting_down(assumed()), &seen));
        assert_eq!(
            episode.in_flight,
            InFlight {
                guest_shutdown: Some(Timer {
                    since: at(500),
                    elapsed: Elapsed::of(Duration::from_secs(1)),
                }),
                ..InFlight::default()
            },
            "{outcome:?}"
        );
    }
}

#[test]
fn guest_is_asked_by_the_process_that_finds_a_request_without_an_answer() {
    let mut seen = drained(entering());
    seen.record_seen.from_the_start = false;
    let found = shutting_down(assumed());
    assert_eq!(effect(decided_at(2, &found, &seen)), EffectKind::ShutdownGuest);
}

#[test]
fn cancel_after_a_lost_reply_waits_for_the_guest() {
    for (in_flight, outcome) in [
        (InFlight::default(), refused(RetryAdvice::Unanswered)),
        (assumed(), refused(RetryAdvice::Unanswered)),
        (assumed(), refused(RetryAdvice::Retry)),
    ] {
        let seen = tried(HostState::InService, outcome.clone());
        let after = recorded(decided_at(2, &shutting_down(in_flight), &seen));
        assert_eq!(after.phase, Phase::Rejoining, "{outcome:?}");
        assert!(after.in_flight.guest_shutdown.is_some() && after.in_flight.is_assumed);
    }
}

#[test]
fn node_whose_guest_rebooted_is_awaited_with_its_gpus_after_a_cancel() {
    for (boot, phase, is_awaited) in [
        ("boot-after", Phase::Draining, true),
        ("boot-after", SHUTTING_DOWN, true),
        ("boot-after", Phase::Drained, true),
        // It was asked before the cancel.
        ("boot-after", Phase::Rejoining, true),
        // Nobody but its user was to wait for it: it has no cordon of ours.
        ("boot-after", Phase::Queued, false),
        (old_boot().as_str(), Phase::Draining, false),
    ] {
        let mut seen = drained(HostState::InService);
        let node = seen.node.as_mut().expect("a Node");
        node.boot_id = Some(BootId::new(boot));
        let cordon = match phase {
            Phase::Queued => CordonOwner::Theirs,
            _ => CordonOwner::Ours,
        };
        let Decision::Write(transition) = decided_at(2, &episode(phase.clone(), cordon, false), &seen) else {
            panic!("{phase:?}: the cancel is not recorded");
        };
        let after = transition.record.episode();
        assert_eq!(after.is_some(), is_awaited, "{phase:?} {boot}");
        assert!(after.is_none_or(|after| after.phase == Phase::Rejoining && after.powered_off));
    }
}
