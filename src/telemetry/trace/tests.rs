//! The listener: what it notes between two records, and that it never waits.

use std::sync::Arc;

use super::*;
use crate::ids::NodeUid;
use crate::maintenance::episode::Trigger;
use crate::maintenance::observed::{CordonedBy, NodeSeen};
use crate::maintenance::trail::{Saw, close};
use crate::telemetry::stand_in;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_795_000_000 + second).unwrap()
}

fn in_phase(uid: &str, phase: Phase, since: i64) -> Record {
    let trigger = Trigger {
        task: None,
        clicked_at: at(-3),
        user: None,
        detection: None,
        request: None,
        stray_of: None,
    };
    let node_uid = NodeUid::new(uid);
    let (id, traceparent) = Episode::name(&node_uid, &trigger, at(0));
    Record::Episode(Arc::new(Episode {
        id,
        traceparent,
        trigger,
        node_uid,
        begun_at: at(0),
        since: at(since),
        ..stand_in::episode(phase, 0)
    }))
}

fn listener(room: usize, process_began: i64) -> (Arc<Traces>, mpsc::Receiver<Span>) {
    let (sender, queue) = mpsc::channel(room);
    let traces = Traces::new(
        sender,
        Counter::default(),
        Receipts::default(),
        "vc.example".to_owned(),
        at(process_began),
    );
    (Arc::new(traces), queue)
}

fn seen() -> NodeSeen {
    NodeSeen {
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        ..stand_in::node()
    }
}

/// What an actor does with a change of record: it closes the trail, writes, and tells. Gives what stands on the Node.
fn changes(
    traces: &Arc<Traces>,
    before: &Record,
    after: &Record,
    process_began: i64,
    second: i64,
) -> (Record, Last) {
    let node = NodeName::new("gpu1");
    let transition = Transition {
        record: match (before, after.clone()) {
            // The decision takes over what the record keeps.
            (Record::Episode(was), Record::Episode(is)) => Record::Episode(Arc::new(Episode {
                trail: was.trail.clone(),
                ..Episode::clone(&is)
            })),
            (_, after) => after,
        },
        unschedulable: None,
        ended: None,
        fulfilled: None,
    };
    let owes = |episode: &Episode, owed: &Owed| traces.owes(&node, episode, owed);
    let (closed, transition) = close(
        before,
        transition,
        Saw::default(),
        at(process_began),
        at(second),
        owes,
    );
    let told = Told::Recorded {
        node: Some(&seen()),
        before: &closed,
        transition: &transition,
        wrote: (at(second), at(second)),
    };
    traces.tell(&node, told);
    let last = Last::of(&closed, &transition, at(second)).unwrap_or_else(|| Last {
        ended: None,
        at: at(second),
        uncordoned: false,
        episode: transition.record.episode().unwrap().clone(),
    });
    (transition.record, last)
}

fn taken(queue: &mut mpsc::Receiver<Span>) -> Vec<Span> {
    std::iter::from_fn(|| queue.try_recv().ok()).collect()
}

fn names(spans: &[Span]) -> Vec<&'static str> {
    spans.iter().map(|span| span.name).collect()
}

#[test]
fn a_full_queue_costs_spans_and_no_time() {
    let (traces, mut queue) = listener(1, -10);
    let draining = in_phase("uid-1", Phase::Draining, 0);
    changes(&traces, &Record::InService, &draining, -10, 0);
    assert_eq!(traces.lost.get(), 1);
    assert_eq!(names(&taken(&mut queue)), ["announce"]);
}

#[test]
fn what_a_killed_process_owed_is_told_by_the_next_one_in_the_same_words() {
    let draining = in_phase("uid-1", Phase::Draining, 0);
    let off = in_phase("uid-1", Phase::AwaitingHost, 60);
    let on = in_phase("uid-1", Phase::Rejoining, 90);
    let (first, mut queue) = listener(QUEUE, -10);
    let (record, _) = changes(&first, &Record::InService, &draining, -10, 0);
    let (record, _) = changes(&first, &record, &off, -10, 60);
    let told = taken(&mut queue);
    assert_eq!(names(&told), ["announce", "detect", "drain"]);

    // Nobody heard that they arrived.
    let (second, mut queue) = listener(QUEUE, 70);
    let (record, _) = changes(&second, &record, &on, 70, 90);
    let again = taken(&mut queue);
    assert_eq!(names(&again), ["announce", "detect", "drain", "wait host exit"]);
    assert_eq!(again[..3], told[..]);

    // All of them arrive, so that the record owes nothing of them after its next change.
    for span in &again {
        second.receipts.arrives(span.id);
    }
    let (_, last) = changes(&second, &record, &Record::InService, 70, 120);
    assert_eq!(last.episode.trail.owed.len(), 1, "{:?}", last.episode.trail);
    assert_eq!(names(&taken(&mut queue)), ["wait node ready", "maintenance"]);
}

#[test]
fn the_root_that_a_killed_process_owed_is_told_by_one_that_starts_soon_and_by_no_other() {
    let on = in_phase("uid-1", Phase::Rejoining, 0);
    let (first, mut queue) = listener(QUEUE, -10);
    let (_, last) = changes(&first, &on, &Record::InService, -10, 30);
    let told = taken(&mut queue);
    assert_eq!(names(&told), ["wait node ready", "maintenance"]);
    let left = record::write_last(&last);
    let node = NodeName::new("gpu1");
    first.left_behind(&node, &left);
    assert_eq!(taken(&mut queue), [], "it sees what it wrote itself");
    for (process_began, expected) in [(40, told.clone()), (40_000, Vec::new())] {
        let (next, mut queue) = listener(QUEUE, process_began);
        next.left_behind(&node, &left);
        next.left_behind(&node, &left);
        assert_eq!(taken(&mut queue), expected);
    }
}

#[test]
fn where_nobody_tells_stories_the_record_keeps_nothing_for_them() {
    let draining = Transition {
        record: in_phase("uid-1", Phase::Draining, 0),
        unschedulable: Some(true),
        ended: None,
        fulfilled: None,
    };
    let (_, written) = close(
        &Record::InService,
        draining,
        Saw::default(),
        at(-10),
        at(0),
        |_, _| false,
    );
    assert!(written.record.episode().unwrap().trail.is_empty());
}
