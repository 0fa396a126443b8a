use std::time::Duration;

use serde_json::json;

use super::*;
use crate::stand_in::{RequestLog, ScriptedReply};
use crate::watch::tests::{context, event, node, node_list, scripted, selection, updates_of, word};

/// Follows `gpu-1` on the script, and returns the first `count` updates, each in a few words.
async fn followed_updates(
    lists: Vec<ScriptedReply>,
    watches: Vec<ScriptedReply>,
    count: usize,
) -> (Vec<String>, RequestLog) {
    let (client, log) = scripted(lists, watches);
    let (_followed, names) = watch::channel(BTreeSet::from([NodeName::new("gpu-1")]));
    let run = |context| run(names, selection("gpu=true"), context);
    let updates = updates_of(client, count, Duration::from_secs(300), run).await;
    (updates.into_iter().map(|(_, update)| word(update)).collect(), log)
}

#[tokio::test(start_paused = true)]
async fn followed_node_is_sent_when_it_changes_and_is_deleted() {
    let events = vec![
        event("MODIFIED", &node("gpu-1")),
        event("DELETED", &node("gpu-1")),
    ];
    let (updates, log) = followed_updates(
        vec![node_list(&[node("gpu-1")])],
        vec![ScriptedReply::Events(events)],
        3,
    )
    .await;
    assert_eq!(
        updates,
        [
            "followed, listed gpu-1",
            "followed gpu-1",
            "followed gone uid-gpu-1"
        ]
    );
    let list = log.all()[0].clone();
    assert!(
        list.query.contains("fieldSelector=metadata.name%3Dgpu-1"),
        "{}",
        list.query
    );
    assert!(!list.query.contains("labelSelector"), "{}", list.query);
}

#[tokio::test(start_paused = true)]
async fn followed_node_that_does_not_exist_is_absent() {
    let created = vec![event("ADDED", &node("gpu-1"))];
    let (updates, _) = followed_updates(vec![node_list(&[])], vec![ScriptedReply::Events(created)], 2).await;
    assert_eq!(updates, ["followed absent gpu-1", "followed gpu-1"]);
}

#[tokio::test(start_paused = true)]
async fn deletion_missed_during_a_break_is_sent_as_absence() {
    let gone = json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"});
    let broken = ScriptedReply::Events(vec![event("ERROR", &gone)]);
    let lists = vec![node_list(&[node("gpu-1")]), node_list(&[])];
    let (updates, _) = followed_updates(lists, vec![broken], 2).await;
    assert_eq!(updates, ["followed, listed gpu-1", "followed absent gpu-1"]);
}

#[tokio::test(start_paused = true)]
async fn number_of_concurrently_followed_nodes_is_limited() {
    let (client, log) = scripted(vec![], vec![]);
    let (context, _updates) = context(client);
    let all: Vec<NodeName> = (0..AT_ONCE + 2)
        .map(|number| NodeName::new(format!("gpu-{number:03}")))
        .collect();
    let (followed, names) = watch::channel(all.iter().cloned().collect::<BTreeSet<_>>());
    let stop = context.stop.clone();
    let following = run(names, selection("gpu=true"), context);
    let steering = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(log.count(), AT_ONCE);
        followed.send_modify(|names| {
            names.remove(&all[0]);
        });
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(log.count(), AT_ONCE + 1, "one that waited has its turn");
        stop.cancel();
    };
    futures::join!(following, steering);
    let queries: BTreeSet<String> = log.all().into_iter().map(|seen| seen.query).collect();
    assert_eq!(queries.len(), AT_ONCE + 1, "each was asked for once");
}
