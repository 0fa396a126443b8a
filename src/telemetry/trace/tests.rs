//! The listener: what it notes between two records, and that it never waits.

use std::collections::BTreeMap;

use super::*;
use crate::ids::NodeUid;
use crate::maintenance::episode::{Cordon, DrainEnd, Episode, HostMark, Phase, Trigger};
use crate::maintenance::observed::{CordonedBy, Limit, NodeSeen};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_795_000_000 + second).unwrap()
}

fn clock() -> Timestamp {
    at(70)
}

fn in_phase(uid: &str, phase: Phase, since: i64) -> Record {
    let trigger = Trigger {
        task: None,
        clicked_at: at(-3),
        user: None,
        request: None,
    };
    let node_uid = NodeUid::new(uid);
    let (id, traceparent) = Episode::name(&node_uid, &trigger, at(0));
    let host = HostMark {
        moref: None,
        name: "esx1".to_owned(),
    };
    Record::Episode(Box::new(Episode {
        id,
        traceparent,
        trigger,
        node_uid,
        vm_uuid: None,
        host,
        begun_at: at(0),
        cordon: Cordon::Ours,
        recordoned: 0,
        boot_before: None,
        gpus_before: BTreeMap::new(),
        powered_off: false,
        moved_to: None,
        gave_up: None,
        left_behind: Vec::new(),
        epoch: 0,
        phase,
        since: at(since),
    }))
}

fn listener(room: usize) -> (Traces, mpsc::Receiver<Span>) {
    let (sender, queue) = mpsc::channel(room);
    (Traces::new(sender, Arc::default(), clock), queue)
}

fn changes(traces: &Traces, node: &str, before: &Record, after: &Record) {
    let seen = NodeSeen {
        uid: NodeUid::new("uid-1"),
        resource_version: 1,
        unschedulable: true,
        cordoned_by: CordonedBy::Haulout,
        keep_cordoned: false,
        wishes: Default::default(),
        ready: true,
        heartbeat: None,
        boot_id: None,
        gpus: BTreeMap::new(),
    };
    let transition = Transition {
        record: after.clone(),
        unschedulable: None,
        ended: None,
        fulfilled: None,
    };
    let told = Told::Recorded {
        node: Some(&seen),
        before,
        transition: &transition,
        wrote: (at(0), at(1)),
    };
    traces.tell(&NodeName::new(node), told);
}

fn taken(queue: &mut mpsc::Receiver<Span>) -> Vec<Span> {
    std::iter::from_fn(|| queue.try_recv().ok()).collect()
}

#[test]
fn a_full_queue_costs_spans_and_no_time() {
    let (traces, mut queue) = listener(1);
    let draining = in_phase("uid-1", Phase::Draining, 0);
    changes(&traces, "gpu1", &Record::InService, &draining);
    assert_eq!(traces.lost.load(Ordering::Relaxed), 1);
    let names: Vec<&str> = taken(&mut queue).iter().map(|span| span.name).collect();
    assert_eq!(names, ["announce"]);
}

#[test]
fn the_wait_for_gpus_is_told_apart_where_this_process_saw_it_begin() {
    let off = in_phase("uid-1", Phase::PoweringOn { by_drs: false }, 40);
    let on = in_phase("uid-1", Phase::Rejoining, 50);
    let gpus = WaitingOn::Gpus {
        resource: "nvidia.com/gpu".to_owned(),
        have: 0,
        want: 2,
    };
    let waits = Told::Waits {
        node: None,
        record: &on,
        on: &gpus,
    };
    for (sees_the_begin, expected) in [(true, 2), (false, 1)] {
        let (traces, mut queue) = listener(QUEUE);
        if sees_the_begin {
            changes(&traces, "gpu1", &off, &on);
        }
        traces.tell(&NodeName::new("gpu1"), waits);
        taken(&mut queue);
        changes(&traces, "gpu1", &on, &in_phase("uid-1", Phase::AwaitingHost, 90));
        let waits = taken(&mut queue)
            .into_iter()
            .filter(|span| span.name.starts_with("wait "));
        assert_eq!(waits.count(), expected);
    }
}

#[test]
fn the_queue_links_to_the_holder_of_the_place() {
    let (traces, mut queue) = listener(QUEUE);
    let holder = in_phase("uid-1", Phase::Draining, 0);
    changes(&traces, "gpu1", &Record::InService, &holder);
    let queued = in_phase("uid-2", Phase::Queued, 0);
    changes(&traces, "gpu2", &Record::InService, &queued);
    let on = WaitingOn::Slot {
        ahead: vec![NodeName::new("unheard-of"), NodeName::new("gpu1")],
        limit: Limit::ConcurrentDrains(1),
    };
    let waits = Told::Waits {
        node: None,
        record: &queued,
        on: &on,
    };
    traces.tell(&NodeName::new("gpu2"), waits);
    // The holder is gone by the time that the place is free.
    let shutting_down = Phase::ShuttingDown(DrainEnd::Complete);
    changes(&traces, "gpu1", &holder, &Record::InService);
    taken(&mut queue);
    changes(&traces, "gpu2", &queued, &in_phase("uid-2", shutting_down, 60));
    let spans = taken(&mut queue);
    let link = spans[0].link.as_ref().map(SpanContext::trace_id);
    let trace = holder.episode().map(|episode| episode.trace_id().to_owned());
    assert_eq!(link.map(|id| id.to_string()), trace);
}
