use std::time::Duration;

use serde_json::json;

use super::*;
use crate::keys::{DEFAULT_PREFIX, Keys};
use crate::kubernetes::facts::GpuResources;
use crate::kubernetes::stand_in::{RequestLog, ScriptedReply};
use crate::kubernetes::watch::tests::{event, node, node_list, scripted, word};

fn selection() -> Selection {
    Selection {
        selector: "gpu=true".to_owned(),
        keys: Keys::under(DEFAULT_PREFIX),
        gpu_resources: GpuResources::parse("nvidia.com/*").unwrap(),
    }
}

/// Follows `gpu-1` on the script and gives the first updates, each in a few words.
async fn told(
    lists: Vec<ScriptedReply>,
    watches: Vec<ScriptedReply>,
    count: usize,
) -> (Vec<String>, RequestLog) {
    let (client, log) = scripted(lists, watches);
    let (out, mut updates) = mpsc::channel(1);
    let (_followed, names) = watch::channel(BTreeSet::from([NodeName::new("gpu-1")]));
    let stop = CancellationToken::new();
    let following = run(client, names, selection(), Settings::default(), out, stop.clone());
    let reading = async {
        let mut told = Vec::new();
        while told.len() < count {
            let update = tokio::time::timeout(Duration::from_secs(300), updates.recv());
            told.push(word(update.await.expect("an update in time").unwrap()));
        }
        stop.cancel();
        told
    };
    let ((), told) = futures::join!(following, reading);
    (told, log)
}

#[tokio::test(start_paused = true)]
async fn a_followed_node_is_told_as_it_is_and_when_it_is_deleted() {
    let events = vec![
        event("MODIFIED", &node("gpu-1")),
        event("DELETED", &node("gpu-1")),
    ];
    let (told, log) = told(
        vec![node_list(&[node("gpu-1")])],
        vec![ScriptedReply::Events(events)],
        3,
    )
    .await;
    assert_eq!(
        told,
        ["followed gpu-1", "followed gpu-1", "followed gone uid-gpu-1"]
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
async fn a_followed_node_that_is_not_there_is_told_as_absent() {
    let created = vec![event("ADDED", &node("gpu-1"))];
    let (told, _) = told(vec![node_list(&[])], vec![ScriptedReply::Events(created)], 2).await;
    assert_eq!(told, ["followed absent gpu-1", "followed gpu-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_missed_over_a_break_is_told_as_absence() {
    let gone = json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"});
    let broken = ScriptedReply::Events(vec![event("ERROR", &gone)]);
    let lists = vec![node_list(&[node("gpu-1")]), node_list(&[])];
    let (told, _) = told(lists, vec![broken], 2).await;
    assert_eq!(told, ["followed gpu-1", "followed absent gpu-1"]);
}

#[tokio::test(start_paused = true)]
async fn no_more_nodes_are_watched_at_once_than_the_limit() {
    let (client, log) = scripted(vec![], vec![]);
    let (out, _updates) = mpsc::channel(1);
    let all: Vec<NodeName> = (0..AT_ONCE + 2)
        .map(|number| NodeName::new(format!("gpu-{number:03}")))
        .collect();
    let (followed, names) = watch::channel(all.iter().cloned().collect::<BTreeSet<_>>());
    let stop = CancellationToken::new();
    let following = run(client, names, selection(), Settings::default(), out, stop.clone());
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
