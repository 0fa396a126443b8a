use std::sync::Arc;

use haulout_core::fixtures::RELEASE;
use serde_json::{Value, json};

use super::*;
use crate::stand_in::{RequestLog, ScriptedReply, refusal};
pub(crate) use crate::stand_in::{context, event, scripted, updates_of};

pub(super) fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "5"}})
}

pub(super) fn node_list(nodes: &[Value]) -> ScriptedReply {
    ScriptedReply::Json(
        200,
        json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": nodes}),
    )
}

pub(super) fn selection(selector: &str) -> Selection {
    Selection {
        selector: selector.to_owned(),
        limit_group: None,
        gpu_resources: GpuResources::parse("nvidia.com/*").unwrap(),
        releases: Releases {
            own: RELEASE.into(),
            adopted: Arc::new(["adopted/haulout".to_owned()].into()),
        },
    }
}

/// Watches Nodes on the script, and returns the first `count` updates, each in one word.
async fn node_updates(
    lists: Vec<ScriptedReply>,
    watches: Vec<ScriptedReply>,
    count: usize,
) -> (Vec<String>, RequestLog) {
    let (client, log) = scripted(lists, watches);
    let selection = selection("gpu in (a,b),!spare");
    let run = |context| nodes::run(selection, context);
    let updates = updates_of(client, count, Duration::from_secs(300), run).await;
    (updates.into_iter().map(|(_, update)| word(update)).collect(), log)
}

pub(super) fn word(update: KubernetesUpdate) -> String {
    match update {
        KubernetesUpdate::Reset => "reset".to_owned(),
        KubernetesUpdate::Node(node) => node.name.to_string(),
        KubernetesUpdate::Answered(node) => format!("answered {}", node.name),
        KubernetesUpdate::ReadAgain { node, .. } => format!("read {} again", node.name),
        KubernetesUpdate::NodeGone { uid, .. } => format!("gone {uid}"),
        KubernetesUpdate::Settled => "settled".to_owned(),
        KubernetesUpdate::Maintenances(update) => format!("{update:?}"),
        KubernetesUpdate::ForeignMaintenances(api, update) => format!("{api}: {update:?}"),
        KubernetesUpdate::PodsChanged(node) => format!("pods of {node}"),
        KubernetesUpdate::Budget { budget, state } => format!("{}: {state:?}", budget.name),
        KubernetesUpdate::Followed(node) => format!("followed {}", node.name),
        KubernetesUpdate::FollowedListed(node) => format!("followed, listed {}", node.name),
        KubernetesUpdate::FollowedGone { uid, .. } => format!("followed gone {uid}"),
        KubernetesUpdate::FollowedAbsent { name } => format!("followed absent {name}"),
        KubernetesUpdate::Scanned { stranded } => format!("{} stranded", stranded.len()),
        KubernetesUpdate::Devices { node, slices } => format!("{} slices of {node}", slices.len()),
        KubernetesUpdate::DevicesListed => "devices listed".to_owned(),
        KubernetesUpdate::Lost { why } => format!("lost: {why}"),
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_are_sent_between_reset_and_settled_and_when_they_change() {
    let (updates, log) = node_updates(
        vec![node_list(&[node("a"), node("b")])],
        vec![ScriptedReply::Events(vec![
            event("MODIFIED", &node("a")),
            event("DELETED", &node("b")),
            event("ADDED", &node("c")),
        ])],
        7,
    )
    .await;
    assert_eq!(updates, ["reset", "a", "b", "settled", "a", "gone uid-b", "c"]);
    let list = log.all()[0].clone();
    assert_eq!(list.line, "GET /api/v1/nodes");
    assert!(
        list.query.contains("labelSelector=gpu+in+%28a%2Cb%29%2C%21spare"),
        "{}",
        list.query
    );
}

#[tokio::test(start_paused = true)]
async fn watch_that_ends_normally_continues_without_a_new_list() {
    let (updates, log) = node_updates(
        vec![node_list(&[])],
        vec![
            ScriptedReply::Events(vec![event("ADDED", &node("a"))]),
            ScriptedReply::Events(vec![event("ADDED", &node("b"))]),
        ],
        4,
    )
    .await;
    assert_eq!(updates, ["reset", "settled", "a", "b"]);
    assert_eq!(
        log.all()
            .iter()
            .filter(|seen| !seen.query.contains("watch=true"))
            .count(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn expired_watch_lists_again_and_shows_a_missed_deletion() {
    let gone = json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old resource version"});
    let (updates, _) = node_updates(
        vec![node_list(&[node("a"), node("b")]), node_list(&[node("b")])],
        vec![ScriptedReply::Events(vec![event("ERROR", &gone)])],
        8,
    )
    .await;
    assert_eq!(updates[..4], ["reset", "a", "b", "settled"]);
    assert_eq!(
        updates[4],
        "lost: the watch of nodes with \"gpu in (a,b),!spare\" broke: too old resource version (HTTP 410)"
    );
    assert_eq!(updates[5..], ["reset", "b", "settled"]);
}

#[tokio::test(start_paused = true)]
async fn refused_list_is_retried_after_growing_waits() {
    let refused = || refusal(403, "Forbidden", "nodes is forbidden", Value::Null);
    let begin = Instant::now();
    let (updates, _) = node_updates(vec![refused(), refused(), refused(), node_list(&[])], vec![], 5).await;
    for update in &updates[..3] {
        assert!(
            update.ends_with("broke: nodes is forbidden (HTTP 403)"),
            "{update}"
        );
    }
    assert_eq!(updates[3..], ["reset", "settled"]);
    let waited_s = begin.elapsed().as_secs_f32();
    assert!(
        (7.0..=20.0).contains(&waited_s),
        "1 + 2 + 4 s and the jitter, not {waited_s} s"
    );
}

#[tokio::test(start_paused = true)]
async fn list_that_never_ends_is_asked_for_again() {
    let (updates, _) = node_updates(vec![ScriptedReply::Silence, node_list(&[])], vec![], 3).await;
    assert!(updates[0].ends_with("broke: no list within 90 s"), "{updates:?}");
    assert_eq!(updates[1..], ["reset", "settled"]);
}

#[tokio::test(start_paused = true)]
async fn waits_grow_to_their_limit_and_restart_after_a_long_watch() {
    let mut backoff = Backoff::new(&Settings::default());
    let waits: Vec<_> = (0..12).map(|_| backoff.next_wait()).collect();
    assert!(waits[0] >= Duration::from_secs(1) && waits[0] <= Duration::from_secs(2));
    assert!(waits.iter().all(|wait| *wait <= Duration::from_secs(30)));
    assert_eq!(waits[11], Duration::from_secs(30));
    backoff.settled();
    tokio::time::advance(Duration::from_secs(29)).await;
    assert_eq!(backoff.next_wait(), Duration::from_secs(30));
    backoff.settled();
    tokio::time::advance(Duration::from_secs(30)).await;
    assert!(backoff.next_wait() <= Duration::from_secs(2));
}
