//! What a record keeps, and that it stays small.

use std::sync::Arc;

use super::*;
use crate::ids::NodeUid;
use crate::maintenance::clock::Now;
use crate::maintenance::episode::{Cordon, HostMark, Trigger};
use crate::maintenance::waiting::ParkReason;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_795_000_000 + second).unwrap()
}

fn draining() -> Episode {
    let trigger = Trigger {
        task: None,
        clicked_at: at(0),
        user: None,
        detection: None,
        request: None,
        stray_of: None,
    };
    let host = HostMark {
        moref: None,
        name: "esx1".into(),
    };
    Episode {
        cordon: Cordon::Ours,
        ..Episode::new(NodeUid::new("uid-1"), trigger, host, Phase::Draining, at(0))
    }
}

#[test]
fn a_record_stays_small_however_often_its_phases_change_and_its_controller_restarts() {
    let mut record = Record::Episode(Arc::new(Episode {
        trail: Trail {
            writer: Some(at(-10)),
            ..Trail::default()
        },
        ..draining()
    }));
    for turn in 1..200 {
        let was = record.episode().unwrap();
        let phase = if was.phase == Phase::Draining {
            Phase::Parked {
                reason: ParkReason::UnreadableRecord { why: "x".repeat(300) },
                resume: Box::new(Phase::Draining),
                resume_since: was.since,
            }
        } else {
            Phase::Draining
        };
        let transition = Transition {
            record: Record::Episode(Arc::new(was.enter(phase, Now::at(at(turn), 0)))),
            unschedulable: None,
            ended: None,
            fulfilled: None,
        };
        // Each of them is written by another process, and nobody ever hears of a collector.
        let (_, transition) = close(&record, transition, Saw::default(), at(turn), at(turn), |_, _| {
            true
        });
        record = transition.record;
    }
    let trail = &record.episode().unwrap().trail;
    let json = serde_json::to_string(trail).unwrap();
    assert!(json.len() < MAX_OWED_JSON + 2_048, "{} bytes", json.len());
    assert!(!trail.owed.is_empty());
    assert_eq!(trail.incidents.len(), MAX_INCIDENTS);
}

#[test]
fn a_change_that_ends_no_phase_owes_none() {
    let was = Record::Episode(Arc::new(draining()));
    let recordoned = Episode {
        recordoned: 1,
        ..draining()
    };
    let transition = Transition {
        record: Record::Episode(Arc::new(recordoned)),
        unschedulable: Some(true),
        ended: None,
        fulfilled: None,
    };
    let (closed, written) = close(&was, transition, Saw::default(), at(-1), at(5), |_, _| true);
    assert!(closed.episode().unwrap().trail.owed.is_empty());
    let owed = &written.record.episode().unwrap().trail.owed;
    assert!(
        matches!(
            owed[..],
            [Owed {
                part: Part::Cordoned { .. },
                ..
            }]
        ),
        "{owed:?}"
    );
}
