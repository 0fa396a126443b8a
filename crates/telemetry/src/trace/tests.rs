//! The listener: what it notes between two records, and that it never waits.

use std::sync::Arc;

use haulout_core::fixtures::{self, at, beat, record, transition};

use super::*;
use haulout_core::ids::NodeUid;
use haulout_core::maintenance::episode::Trigger;
use haulout_core::maintenance::observed::{BoundVm, CordonedBy, ObservedNode};

fn in_phase(uid: &str, phase: Phase, since: i64) -> Record {
    let trigger = Trigger {
        task: None,
        clicked_at: at(-3),
        detection: None,
        ..fixtures::trigger()
    };
    let node_uid = NodeUid::new(uid);
    let (id, traceparent) = Episode::name(&node_uid, &trigger, at(0));
    record(Episode {
        id,
        traceparent,
        trigger,
        node_uid,
        begun_at: at(0),
        ..fixtures::episode(phase, since)
    })
}

fn listener(room: usize) -> (Arc<Traces>, mpsc::Receiver<Span>) {
    let (sender, queue) = mpsc::channel(room);
    let traces = Traces::new(sender, Counter::default(), "vc.example".to_owned());
    (Arc::new(traces), queue)
}

fn seen() -> ObservedNode {
    ObservedNode {
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        ..fixtures::node()
    }
}

/// Like an actor: closes the phase, writes, and reports a successful write. Returns the stored record.
fn changes(traces: Option<&Arc<Traces>>, before: &Record, after: &Record, second: i64) -> Record {
    let mut transition = transition(after.clone());
    let closed = fixtures::closed(before, &mut transition, second);
    if let Some(traces) = traces {
        let event = NodeEvent::Recorded {
            node: Some(&seen()),
            vm: &BoundVm::NotLookedUp,
            before: &closed,
            transition: &transition,
            wrote: (at(second), at(second)),
        };
        traces.observe(&NodeName::new("gpu1"), &beat(event, at(0)));
    }
    transition.record
}

fn waits(traces: &Arc<Traces>, record: &Record, on: &WaitingOn) {
    let event = NodeEvent::Waits {
        node: Some(&seen()),
        vm: &BoundVm::NotLookedUp,
        record,
        on,
    };
    traces.observe(&NodeName::new("gpu1"), &beat(event, at(0)));
}

fn taken(queue: &mut mpsc::Receiver<Span>) -> Vec<Span> {
    std::iter::from_fn(|| queue.try_recv().ok()).collect()
}

fn names(spans: &[Span]) -> Vec<&'static str> {
    spans.iter().map(|span| span.name).collect()
}

#[test]
fn full_queue_drops_spans_without_waiting() {
    let (traces, mut queue) = listener(1);
    let draining = in_phase("uid-1", Phase::Draining, 0);
    changes(Some(&traces), &Record::InService, &draining, 0);
    assert_eq!(traces.lost.get(), 1);
    assert_eq!(names(&taken(&mut queue)), ["announce"]);
}

#[test]
fn each_phase_is_sent_once_when_it_ends_and_the_root_at_the_end() {
    let (traces, mut queue) = listener(QUEUE);
    let draining = in_phase("uid-1", Phase::Draining, 0);
    let record = changes(Some(&traces), &Record::InService, &draining, 0);
    assert_eq!(names(&taken(&mut queue)), ["announce", "detect"]);
    waits(&traces, &record, &WaitingOn::DrainRound);
    let record = changes(
        Some(&traces),
        &record,
        &in_phase("uid-1", Phase::AwaitingHost, 60),
        60,
    );
    assert_eq!(names(&taken(&mut queue)), ["drain"]);
    waits(&traces, &record, &WaitingOn::Survey);
    changes(Some(&traces), &record, &Record::InService, 90);
    assert_eq!(names(&taken(&mut queue)), ["wait host exit", "maintenance"]);
    assert!(
        traces.open.lock().is_empty(),
        "nothing is kept of an episode that ended"
    );
}

#[test]
fn takeover_sends_finished_phases_again() {
    let draining = in_phase("uid-1", Phase::Draining, 0);
    let off = in_phase("uid-1", Phase::AwaitingHost, 60);
    let (first, mut queue) = listener(QUEUE);
    let record = changes(Some(&first), &Record::InService, &draining, 0);
    let record = changes(Some(&first), &record, &off, 60);
    let event = taken(&mut queue);
    assert_eq!(names(&event), ["announce", "detect", "drain"]);

    let (second, mut queue) = listener(QUEUE);
    let other = WaitingOn::OtherRelease {
        release: "other".to_owned(),
    };
    waits(&second, &record, &other);
    assert_eq!(taken(&mut queue), [], "it is not taken over");
    waits(&second, &record, &WaitingOn::Survey);
    assert_eq!(taken(&mut queue), event);
    waits(&second, &record, &WaitingOn::VmLookup);
    assert_eq!(taken(&mut queue), []);
    changes(
        Some(&second),
        &record,
        &in_phase("uid-1", Phase::Rejoining, 90),
        90,
    );
    assert_eq!(names(&taken(&mut queue)), ["wait host exit"]);
}

#[test]
fn phase_with_unknown_write_is_sent_with_the_next() {
    let (traces, mut queue) = listener(QUEUE);
    let draining = in_phase("uid-1", Phase::Draining, 0);
    let record = changes(Some(&traces), &Record::InService, &draining, 0);
    let record = changes(None, &record, &in_phase("uid-1", Phase::AwaitingHost, 60), 60);
    taken(&mut queue);
    changes(
        Some(&traces),
        &record,
        &in_phase("uid-1", Phase::Rejoining, 90),
        90,
    );
    assert_eq!(names(&taken(&mut queue)), ["drain", "wait host exit"]);
}

#[test]
fn removed_node_keeps_no_state() {
    let (traces, _queue) = listener(QUEUE);
    let draining = in_phase("uid-1", Phase::Draining, 0);
    changes(Some(&traces), &Record::InService, &draining, 0);
    assert_eq!(traces.open.lock().len(), 1);
    traces.actor_ended(&NodeName::new("gpu1"));
    assert!(traces.open.lock().is_empty());
}
