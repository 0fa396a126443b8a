use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::kubernetes::stand_in::{RequestLog, ScriptedReply, pod, pod_list};
use crate::kubernetes::watch::tests::{event, scripted, word};

fn typed(pod: Value) -> core::Pod {
    serde_json::from_value(pod).unwrap()
}

fn leaving(name: &str) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    pod
}

/// Watches the pods of `gpu-1` on the script for ten seconds and gives when, in milliseconds, a change was told.
async fn told_pods(present: &[Value], watches: Vec<ScriptedReply>) -> (Vec<u128>, RequestLog) {
    let (client, log) = scripted(vec![pod_list(present, "")], watches);
    let (out, mut updates) = mpsc::channel(1);
    let (_draining, nodes) = watch::channel(BTreeSet::from([NodeName::new("gpu-1")]));
    let stop = CancellationToken::new();
    let watching = run(client, nodes, Settings::default(), out, stop.clone());
    let begin = Instant::now();
    let reading = async {
        let mut told = Vec::new();
        while let Ok(Some(update)) =
            tokio::time::timeout_at(begin + Duration::from_secs(10), updates.recv()).await
        {
            assert_eq!(word(update), "pods of gpu-1");
            told.push(begin.elapsed().as_millis());
        }
        stop.cancel();
        told
    };
    let ((), told) = futures::join!(watching, reading);
    (told, log)
}

#[tokio::test(start_paused = true)]
async fn new_pod_watch_reports_an_empty_node_at_once_and_pods_to_evict_soon() {
    let (told, log) = told_pods(&[], vec![]).await;
    assert_eq!(told, [0]);
    assert!(log.all()[0].query.contains("fieldSelector=spec.nodeName%3Dgpu-1"));
    let (told, _) = told_pods(&[pod("web-1"), leaving("web-2")], vec![]).await;
    assert_eq!(told, [1000]);
    let (told, _) = told_pods(&[leaving("web-1")], vec![]).await;
    assert!(told.is_empty(), "its end is told: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn the_drain_of_many_pods_is_told_when_it_is_complete_and_not_pod_by_pod() {
    let names: Vec<_> = (0..50).map(|n| format!("web-{n}")).collect();
    let present: Vec<_> = names.iter().map(|name| pod(name)).collect();
    let mut events: Vec<_> = names
        .iter()
        .map(|name| event("MODIFIED", &leaving(name)))
        .collect();
    events.extend(names.iter().map(|name| event("DELETED", &leaving(name))));
    let (told, _) = told_pods(&present, vec![ScriptedReply::Events(events)]).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0] < 10, "{told:?}");
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
    let (out, mut updates) = mpsc::channel(1);
    let stop = CancellationToken::new();
    let settings = Settings::default();
    let node = NodeName::new("gpu-1");
    let mut backoff = Backoff::new(&settings);
    let events = pin!(events);
    let following = follow_pods(events, &node, &settings, &out, &stop, &mut backoff);
    let ten_seconds = async {
        departing.await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        stop.cancel();
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
    let (told, _) = told_pods(&present, vec![ScriptedReply::Events(both)]).await;
    assert!(told.is_empty(), "{told:?}");
    let (told, _) = told_pods(&present, vec![ScriptedReply::Events(departs.to_vec())]).await;
    assert_eq!(told.len(), 1, "two are still to be evicted: {told:?}");
}

#[test]
fn a_change_is_worth_a_round_if_a_round_can_make_something_of_it() {
    let parse = typed;
    let node = NodeName::new("gpu-1");
    let mut blocking = BlockingPods::default();
    let mut daemon = pod("agent");
    daemon["metadata"]["ownerReferences"][0]["kind"] = json!("DaemonSet");
    let mut finished = leaving("web-3");
    finished["status"]["phase"] = json!("Succeeded");
    for (what, news) in [
        (blocking.apply(&parse(pod("web-1")), &node), PodNews::Soon),
        (blocking.apply(&parse(pod("web-2")), &node), PodNews::Soon),
        (blocking.apply(&parse(pod("web-3")), &node), PodNews::Soon),
        (blocking.apply(&parse(pod("web-1")), &node), PodNews::None),
        (blocking.apply(&parse(daemon.clone()), &node), PodNews::None),
        (blocking.remove(&parse(daemon)), PodNews::None),
        (blocking.apply(&parse(leaving("web-1")), &node), PodNews::Leaves),
        (blocking.remove(&parse(leaving("web-1"))), PodNews::Soon),
        (blocking.apply(&parse(leaving("web-2")), &node), PodNews::Leaves),
        (blocking.apply(&parse(leaving("web-3")), &node), PodNews::Leaves),
        (blocking.remove(&parse(leaving("web-2"))), PodNews::None),
        (blocking.apply(&parse(finished.clone()), &node), PodNews::Now),
        (blocking.remove(&parse(finished)), PodNews::None),
    ] {
        assert_eq!(what, news);
    }
}

#[tokio::test(start_paused = true)]
async fn pods_are_watched_only_while_their_node_is_drained() {
    let (client, log) = scripted(vec![pod_list(&[], ""), pod_list(&[], "")], vec![]);
    let (out, mut updates) = mpsc::channel(1);
    let (draining, nodes) = watch::channel(BTreeSet::new());
    let stop = CancellationToken::new();
    let watching = run(client, nodes, Settings::default(), out, stop.clone());
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
