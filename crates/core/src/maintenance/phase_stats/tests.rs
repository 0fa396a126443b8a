//! The content of an episode's history, and its limits.

use super::*;
use crate::fixtures::{self, at, host_named as host, record, transition};
use crate::maintenance::clock::Now;
use crate::maintenance::episode::{
    DrainEnd, Incident, PhaseOutcome, PythonEpisode, PythonState, Trigger, TriggerKind,
};
use crate::maintenance::waiting::ParkReason;

fn in_phase(phase: Phase) -> Episode {
    let trigger = Trigger {
        task: None,
        detection: None,
        ..fixtures::trigger()
    };
    Episode {
        trigger,
        begun_at: at(0),
        ..fixtures::episode(phase, 0)
    }
}

fn parked(resume: Phase) -> Phase {
    Phase::Parked {
        reason: ParkReason::UnreadableRecord { why: "x".repeat(300) },
        resume: Box::new(resume),
        resume_since: at(0),
    }
}

/// Replaces `before` by `next`. Returns `before` with its history closed, and the new record.
fn changes(before: &Record, next: Record, writer: i64, second: i64) -> (Record, Record) {
    let mut transition = transition(next);
    let closed = close(
        before,
        &mut transition,
        PhaseStats::default(),
        &EpisodeOrigin::default(),
        at(writer),
        at(second),
    );
    (closed, transition.record)
}

fn history(record: &Record) -> &PhaseHistory {
    &record.episode().unwrap().history
}

#[test]
fn a_record_stays_small_however_often_phases_and_processes_change() {
    let mut current = record(in_phase(Phase::Draining));
    for turn in 1..200 {
        let was = current.episode().unwrap();
        let phase = if was.phase == Phase::Draining {
            parked(Phase::Draining)
        } else {
            Phase::Draining
        };
        let next = record(was.enter(phase, Now::at(at(turn), 0)));
        (_, current) = changes(&current, next, turn, turn);
    }
    let history = history(&current);
    let json = serde_json::to_string(history).unwrap();
    assert!(json.len() < 10 * 1024, "{} bytes", json.len());
    assert_eq!(
        history.finished.last().unwrap().until,
        at(199),
        "the oldest go first"
    );
    assert!(history.finished.len() > 10);
    assert_eq!(history.incidents.len(), 20);
}

#[test]
fn a_change_within_a_phase_finishes_none() {
    let draining = in_phase(Phase::Draining);
    let next = record(Episode {
        recordoned: 1,
        ..draining.clone()
    });
    let (closed, current) = changes(&record(draining), next, -1, 5);
    assert_eq!(history(&closed).finished, []);
    assert_eq!(history(&current).finished, []);
}

#[test]
fn a_finished_phase_says_how_it_ended() {
    let relocating = Phase::Relocating { to: host("esx2") };
    let timed_out = || Phase::ShuttingDown(DrainEnd::TimedOut);
    for (phase, next, outcome) in [
        (Phase::Queued, Phase::Draining, PhaseOutcome::Passed),
        (Phase::Draining, Phase::Drained, PhaseOutcome::Passed),
        (
            Phase::Draining,
            Phase::ShuttingDown(DrainEnd::Complete),
            PhaseOutcome::Passed,
        ),
        (
            Phase::Draining,
            timed_out(),
            PhaseOutcome::TimedOut { left_behind: 2 },
        ),
        (parked(timed_out()), timed_out(), PhaseOutcome::Passed),
        (Phase::Draining, Phase::AwaitingHost, PhaseOutcome::Interrupted),
        (Phase::Draining, parked(Phase::Draining), PhaseOutcome::Parked),
        (timed_out(), Phase::AwaitingHost, PhaseOutcome::Passed),
        (Phase::AwaitingHost, relocating.clone(), PhaseOutcome::Relocated),
        (
            timed_out(),
            Phase::PoweringOn { by_drs: true },
            PhaseOutcome::LeftToDrs,
        ),
        (
            relocating,
            Phase::PoweringOn { by_drs: false },
            PhaseOutcome::Passed,
        ),
    ] {
        let was = in_phase(phase.clone());
        let enters = Episode {
            left_behind: vec!["ml/a".to_owned(), "ml/b".to_owned()],
            ..was.enter(next.clone(), Now::at(at(7), 0))
        };
        let (closed, current) = changes(&record(was), record(enters), -1, 7);
        let finished = &history(&current).finished;
        assert_eq!(finished.len(), 1);
        assert_eq!(finished[0].outcome, outcome, "{phase:?} -> {next:?}");
        assert_eq!((finished[0].since, finished[0].until), (at(0), at(7)));
        assert_eq!(history(&closed), history(&current));
    }
    let (closed, _) = changes(&record(in_phase(Phase::Rejoining)), Record::InService, -1, 9);
    let finished = &history(&closed).finished;
    assert_eq!(
        (finished[0].outcome, finished[0].until),
        (PhaseOutcome::Ended, at(9))
    );
}

#[test]
fn processes_and_leaders_that_took_over_are_kept() {
    let episode = |epoch| Episode {
        epoch,
        ..in_phase(Phase::Draining)
    };
    let (_, current) = changes(&Record::InService, record(episode(0)), -10, 0);
    assert_eq!(history(&current).incidents, []);
    // No leadership is none that could be lost.
    let (_, current) = changes(&current, record(episode(3)), -10, 1);
    assert_eq!(history(&current).incidents, []);
    let (_, current) = changes(&current, record(episode(4)), 5, 6);
    let restarted = Incident::Restarted { at: at(5) };
    let led = Incident::LeaderChanged {
        at: at(6),
        old: 3,
        new: 4,
    };
    assert_eq!(history(&current).incidents, [restarted.clone(), led.clone()]);
    // The end itself may be written by yet another process.
    let (closed, _) = changes(&current, Record::InService, 8, 9);
    let again = Incident::Restarted { at: at(8) };
    assert_eq!(history(&closed).incidents, [restarted, led, again]);
}

#[test]
fn an_episode_keeps_its_origin_and_another_one_has_its_own() {
    let python = Record::Python(PythonEpisode {
        state: PythonState::Draining,
        host: "esx1".to_owned(),
        migrated_to_host: None,
        since: at(-60),
    });
    let adopted = in_phase(Phase::Draining);
    let (_, current) = changes(&python, record(adopted.clone()), -10, 0);
    assert_eq!(current.episode().unwrap().trigger_kind(), TriggerKind::Adopted);
    let next = adopted.enter(Phase::AwaitingHost, Now::at(at(5), 0));
    let (_, current) = changes(&current, record(next), -10, 5);
    assert_eq!(current.episode().unwrap().trigger_kind(), TriggerKind::Adopted);
    let trigger = Trigger {
        clicked_at: at(8),
        ..adopted.trigger
    };
    let other = Episode::new(adopted.node_uid, trigger, host("esx1"), Phase::Draining, at(9));
    let (closed, current) = changes(&current, record(other), -10, 9);
    assert_eq!(history(&closed).finished.len(), 2);
    assert_eq!(current.episode().unwrap().trigger_kind(), TriggerKind::HostState);
    assert_eq!(history(&current).finished, []);
}
