use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use serde_json::{Value, json};

use super::*;
use crate::stand_in::{RequestLog, ScriptedReply, pod, pod_list};
use crate::watch::tests::{context, event, scripted, updates_of, word};

fn typed(pod: Value) -> Pod {
    serde_json::from_value(pod).unwrap()
}

fn leaving(name: &str) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    pod
}

/// Watches the pods of `gpu-1` on the script for ten seconds, and returns when changes were sent, in milliseconds.
async fn reports(present: &[Value], watches: Vec<ScriptedReply>) -> (Vec<u128>, RequestLog) {
    let (client, log) = scripted(vec![pod_list(present, "")], watches);
    let (_draining, nodes) = watch::channel(BTreeSet::from([NodeName::new("gpu-1")]));
    let run = |context| run(nodes, context);
    let updates = updates_of(client, usize::MAX, Duration::from_secs(10), run).await;
    let time = |(at, update): (Duration, _)| {
        assert_eq!(word(update), "pods of gpu-1");
        at.as_millis()
    };
    (updates.into_iter().map(time).collect(), log)
}

#[tokio::test(start_paused = true)]
async fn new_pod_watch_reports_an_empty_node_at_once_and_pods_to_evict_soon() {
    let (times, log) = reports(&[], vec![]).await;
    assert_eq!(times, [0]);
    assert!(log.all()[0].query.contains("fieldSelector=spec.nodeName%3Dgpu-1"));
    let (times, _) = reports(&[pod("web-1"), leaving("web-2")], vec![]).await;
    assert_eq!(times, [1000]);
    let (times, _) = reports(&[leaving("web-1")], vec![]).await;
    assert!(times.is_empty(), "only its end is reported: {times:?}");
}

#[tokio::test(start_paused = true)]
async fn drain_of_many_pods_is_reported_once_when_it_is_complete() {
    let names: Vec<_> = (0..50).map(|n| format!("web-{n}")).collect();
    let present: Vec<_> = names.iter().map(|name| pod(name)).collect();
    let mut events: Vec<_> = names
        .iter()
        .map(|name| event("MODIFIED", &leaving(name)))
        .collect();
    events.extend(names.iter().map(|name| event("DELETED", &leaving(name))));
    let (times, _) = reports(&present, vec![ScriptedReply::Events(events)]).await;
    assert_eq!(times.len(), 1, "{times:?}");
    assert!(times[0] < 10, "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn pods_that_a_long_round_has_not_reached_are_not_reported() {
    let names: Vec<_> = (0..16).map(|n| format!("web-{n}")).collect();
    let present: Vec<_> = names.iter().map(|name| pod(name)).collect();
    // One begins to leave each quarter of a second, so that some are to be evicted for four seconds.
    let (sender, events) = futures::channel::mpsc::unbounded();
    let departing = async {
        for name in &names {
            tokio::time::sleep(Duration::from_millis(250)).await;
            sender
                .unbounded_send(Ok(Event::Apply(typed(leaving(name)))))
                .unwrap();
        }
    };
    let first = [Ok(Event::Init)]
        .into_iter()
        .chain(present.into_iter().map(|pod| Ok(Event::InitApply(typed(pod)))))
        .chain([Ok(Event::InitDone)]);
    let events = futures::stream::iter(first).chain(events);
    let (context, mut updates) = context(scripted(vec![], vec![]).0);
    let mut handler = DrainedPods::of(NodeName::new("gpu-1"));
    let mut backoff = Backoff::new(&context.settings);
    let events = pin!(events);
    let following = context.follow(events, &mut handler, &mut backoff);
    let ten_seconds = async {
        departing.await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        context.stop.cancel();
    };
    futures::join!(following, ten_seconds);
    assert!(updates.try_recv().is_err(), "nothing of it was worth a round");
}

#[tokio::test(start_paused = true)]
async fn deletion_is_not_reported_where_all_other_pods_are_terminating() {
    let present = ["web-1", "web-2", "web-3"].map(pod);
    let departs = [
        event("MODIFIED", &leaving("web-1")),
        event("DELETED", &leaving("web-1")),
    ];
    let rest_leaves = [
        event("MODIFIED", &leaving("web-2")),
        event("MODIFIED", &leaving("web-3")),
    ];
    let both: Vec<_> = departs.iter().chain(&rest_leaves).cloned().collect();
    let (times, _) = reports(&present, vec![ScriptedReply::Events(both)]).await;
    assert!(times.is_empty(), "{times:?}");
    let (times, _) = reports(&present, vec![ScriptedReply::Events(departs.to_vec())]).await;
    assert_eq!(times.len(), 1, "two are still to be evicted: {times:?}");
}

#[test]
fn urgency_of_a_change_follows_from_the_pods_that_block() {
    let parse = typed;
    let mut blocking = BlockingPods::default();
    let mut daemon = pod("agent");
    daemon["metadata"]["ownerReferences"][0]["kind"] = json!("DaemonSet");
    let mut ended = leaving("web-3");
    ended["status"]["phase"] = json!("Succeeded");
    let mut kept = ended.clone();
    kept["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    for (urgency, expected) in [
        (blocking.apply(&parse(pod("web-1"))), PodUrgency::Soon),
        (blocking.apply(&parse(pod("web-2"))), PodUrgency::Soon),
        (blocking.apply(&parse(pod("web-3"))), PodUrgency::Soon),
        (blocking.apply(&parse(pod("web-1"))), PodUrgency::None),
        (blocking.apply(&parse(daemon.clone())), PodUrgency::None),
        (blocking.remove(&parse(daemon)), PodUrgency::None),
        (blocking.apply(&parse(leaving("web-1"))), PodUrgency::Leaves),
        (blocking.remove(&parse(leaving("web-1"))), PodUrgency::Soon),
        (blocking.apply(&parse(leaving("web-2"))), PodUrgency::Leaves),
        (blocking.apply(&parse(leaving("web-3"))), PodUrgency::Leaves),
        (blocking.remove(&parse(leaving("web-2"))), PodUrgency::None),
        // Its kubelet still unmounts its volumes, and then a finalizer keeps it.
        (blocking.apply(&parse(ended)), PodUrgency::None),
        (blocking.apply(&parse(kept.clone())), PodUrgency::Now),
        (blocking.remove(&parse(kept)), PodUrgency::None),
    ] {
        assert_eq!(urgency, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn pods_are_watched_only_while_their_node_is_drained() {
    let (client, log) = scripted(vec![pod_list(&[], ""), pod_list(&[], "")], vec![]);
    let (context, mut updates) = context(client);
    let (draining, nodes) = watch::channel(BTreeSet::new());
    let stop = context.stop.clone();
    let watching = run(nodes, context);
    let steering = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(log.lines().len(), 0);
        for name in ["gpu-1", "gpu-2"] {
            draining.send_replace(BTreeSet::from([NodeName::new(name)]));
            assert_eq!(word(updates.recv().await.unwrap()), format!("pods of {name}"));
        }
        drop(draining);
        tokio::time::sleep(Duration::from_secs(5)).await;
        stop.cancel();
    };
    futures::join!(watching, steering);
    assert!(updates.recv().await.is_none());
}
