use std::collections::VecDeque;

use serde_json::{Value, json};

use super::*;
use crate::cluster::stand_in::{Log, Reply, Seen, pod, pod_list, refusal, server};
use crate::keys::DEFAULT_PREFIX;

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "5"}})
}

fn node_list(nodes: &[Value]) -> Reply {
    Reply::Json(
        200,
        json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": nodes}),
    )
}

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

/// Lists and watches are answered from their own queues; a queue that is empty is silent.
fn scripted(lists: Vec<Reply>, watches: Vec<Reply>) -> (kube::Client, Log) {
    let (mut lists, mut watches) = (VecDeque::from(lists), VecDeque::from(watches));
    server(move |seen: &Seen| {
        let queue = if seen.query.contains("watch=true") {
            &mut watches
        } else {
            &mut lists
        };
        queue.pop_front().unwrap_or(Reply::Silence)
    })
}

/// Starts `run` on the script and gives the first updates, each in one word.
async fn told(lists: Vec<Reply>, watches: Vec<Reply>, count: usize) -> (Vec<String>, Log) {
    let (client, log) = scripted(lists, watches);
    let selection = Selection {
        selector: "gpu in (a,b),!spare".to_owned(),
        keys: Keys::under(DEFAULT_PREFIX),
        gpu_resources: GpuResources::parse("nvidia.com/*").unwrap(),
    };
    let (out, mut updates) = mpsc::channel(1);
    let stop = CancellationToken::new();
    let watching = run(client, selection, Settings::default(), out, stop.clone());
    let reading = async {
        let mut told = Vec::new();
        while told.len() < count {
            let update = tokio::time::timeout(Duration::from_secs(300), updates.recv());
            told.push(word(update.await.expect("an update in time").unwrap()));
        }
        stop.cancel();
        told
    };
    let ((), told) = futures::join!(watching, reading);
    (told, log)
}

fn word(update: Update) -> String {
    match update {
        Update::Reset => "reset".to_owned(),
        Update::Node(node) => node.name.to_string(),
        Update::NodeGone { uid, .. } => format!("gone {uid}"),
        Update::Settled => "settled".to_owned(),
        Update::Maintenances(update) => format!("{update:?}"),
        Update::PodsChanged(node) => format!("pods of {node}"),
        Update::Lost { why } => format!("lost: {why}"),
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_are_told_between_reset_and_settled_and_then_as_they_change() {
    let (told, log) = told(
        vec![node_list(&[node("a"), node("b")])],
        vec![Reply::Events(vec![
            event("MODIFIED", &node("a")),
            event("DELETED", &node("b")),
            event("ADDED", &node("c")),
        ])],
        7,
    )
    .await;
    assert_eq!(told, ["reset", "a", "b", "settled", "a", "gone uid-b", "c"]);
    let list = log.all()[0].clone();
    assert_eq!(list.line, "GET /api/v1/nodes");
    assert!(
        list.query.contains("labelSelector=gpu+in+%28a%2Cb%29%2C%21spare"),
        "{}",
        list.query
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_in_order_goes_on_without_a_new_list() {
    let (told, log) = told(
        vec![node_list(&[])],
        vec![
            Reply::Events(vec![event("ADDED", &node("a"))]),
            Reply::Events(vec![event("ADDED", &node("b"))]),
        ],
        4,
    )
    .await;
    assert_eq!(told, ["reset", "settled", "a", "b"]);
    assert_eq!(
        log.all()
            .iter()
            .filter(|seen| !seen.query.contains("watch=true"))
            .count(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_is_told_and_lists_anew_so_that_a_missed_deletion_shows_as_an_absence() {
    let gone = json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old resource version"});
    let (told, _) = told(
        vec![node_list(&[node("a"), node("b")]), node_list(&[node("b")])],
        vec![Reply::Events(vec![event("ERROR", &gone)])],
        8,
    )
    .await;
    assert_eq!(told[..4], ["reset", "a", "b", "settled"]);
    assert_eq!(
        told[4],
        "lost: the watch of nodes with \"gpu in (a,b),!spare\" broke: too old resource version (HTTP 410)"
    );
    assert_eq!(told[5..], ["reset", "b", "settled"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_refused_is_tried_again_after_growing_waits() {
    let refused = || refusal(403, "Forbidden", "nodes is forbidden", Value::Null);
    let begin = Instant::now();
    let (told, _) = told(vec![refused(), refused(), refused(), node_list(&[])], vec![], 5).await;
    for told in &told[..3] {
        assert!(told.ends_with("broke: nodes is forbidden (HTTP 403)"), "{told}");
    }
    assert_eq!(told[3..], ["reset", "settled"]);
    let waited_s = begin.elapsed().as_secs_f32();
    assert!(
        (7.0..=20.0).contains(&waited_s),
        "1 + 2 + 4 s and the jitter, not {waited_s} s"
    );
}

#[tokio::test(start_paused = true)]
async fn waits_grow_to_their_limit_and_start_anew_after_a_watch_that_stood() {
    let mut backoff = Backoff::new(&Settings::default());
    let waits: Vec<_> = (0..12).map(|_| backoff.next()).collect();
    assert!(waits[0] >= Duration::from_secs(1) && waits[0] <= Duration::from_secs(2));
    assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(30)));
    assert_eq!(waits[11], Duration::from_secs(30));
    backoff.settled();
    tokio::time::advance(Duration::from_secs(29)).await;
    assert_eq!(backoff.next(), Duration::from_secs(30));
    backoff.settled();
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(backoff.next() <= Duration::from_secs(2));
}

fn leaving(name: &str) -> Value {
    let mut pod = pod(name);
    pod["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    pod
}

/// Watches the pods of `gpu-1` on the script for ten seconds and gives when, in milliseconds, a change was told.
async fn told_pods(present: &[Value], watches: Vec<Reply>) -> (Vec<u128>, Log) {
    let (client, log) = scripted(vec![pod_list(present, "")], watches);
    let (out, mut updates) = mpsc::channel(1);
    let (_draining, nodes) = watch::channel(BTreeSet::from([NodeName::new("gpu-1")]));
    let stop = CancellationToken::new();
    let watching = pods(client, nodes, Settings::default(), out, stop.clone());
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
async fn a_fresh_pod_watch_tells_once_because_it_may_have_missed_something() {
    let (told, log) = told_pods(&[pod("web-1")], vec![]).await;
    assert_eq!(told, [0]);
    assert!(log.all()[0].query.contains("fieldSelector=spec.nodeName%3Dgpu-1"));
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
    let (told, _) = told_pods(&present, vec![Reply::Events(events)]).await;
    assert!(told.len() <= 2 && told.iter().all(|at| *at < 10), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_departure_is_not_told_where_all_others_are_leaving_by_the_time_it_would_be() {
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
    let (told, _) = told_pods(&present, vec![Reply::Events(both)]).await;
    assert_eq!(told.len(), 1, "only the fresh watch: {told:?}");
    let (told, _) = told_pods(&present, vec![Reply::Events(departs.to_vec())]).await;
    assert_eq!(told.len(), 2, "two are still to be evicted: {told:?}");
}

#[test]
fn a_change_is_worth_a_round_if_a_round_can_make_something_of_it() {
    let parse = |pod: Value| -> core::Pod { serde_json::from_value(pod).unwrap() };
    let node = NodeName::new("gpu-1");
    let mut standing = StandingPods::default();
    let mut daemon = pod("agent");
    daemon["metadata"]["ownerReferences"][0]["kind"] = json!("DaemonSet");
    let mut finished = leaving("web-3");
    finished["status"]["phase"] = json!("Succeeded");
    for (what, news) in [
        (standing.apply(&parse(pod("web-1")), &node), News::Soon),
        (standing.apply(&parse(pod("web-2")), &node), News::Soon),
        (standing.apply(&parse(pod("web-3")), &node), News::Soon),
        (standing.apply(&parse(pod("web-1")), &node), News::None),
        (standing.apply(&parse(daemon.clone()), &node), News::None),
        (standing.remove(&parse(daemon)), News::None),
        (standing.apply(&parse(leaving("web-1")), &node), News::None),
        (standing.remove(&parse(leaving("web-1"))), News::Soon),
        (standing.apply(&parse(leaving("web-2")), &node), News::None),
        (standing.apply(&parse(leaving("web-3")), &node), News::None),
        (standing.remove(&parse(leaving("web-2"))), News::None),
        (standing.apply(&parse(finished.clone()), &node), News::Now),
        (standing.remove(&parse(finished)), News::None),
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
    let watching = pods(client, nodes, Settings::default(), out, stop.clone());
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
