use serde_json::{Value, json};

use super::*;
use crate::kubernetes::stand_in::{ScriptedReply, refusal};
use crate::kubernetes::watch::tests::{event, scripted};

fn object(name: &str) -> Value {
    json!({
        "apiVersion": "haulout.dev/v1alpha1", "kind": "NodeMaintenance",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "5"},
        "spec": {"nodeName": "gpu-1"},
    })
}

fn list(objects: &[Value]) -> ScriptedReply {
    ScriptedReply::Json(
        200,
        json!({
            "apiVersion": "haulout.dev/v1alpha1", "kind": "NodeMaintenanceList",
            "metadata": {"resourceVersion": "9"}, "items": objects,
        }),
    )
}

/// Starts the watch on the script and gives the first updates.
async fn told(
    lists: Vec<ScriptedReply>,
    watches: Vec<ScriptedReply>,
    count: usize,
) -> Vec<NodeMaintenanceUpdate> {
    let (client, log) = scripted(lists, watches);
    let (out, mut updates) = mpsc::channel(1);
    let stop = CancellationToken::new();
    let watching = run(
        client,
        "gpu=true".to_owned(),
        Settings::default(),
        out,
        stop.clone(),
    );
    let reading = async {
        let mut told = Vec::new();
        while told.len() < count {
            let update = tokio::time::timeout(Duration::from_secs(300), updates.recv());
            let KubernetesUpdate::Maintenances(update) = update.await.expect("an update in time").unwrap()
            else {
                panic!("only NodeMaintenances are watched");
            };
            told.push(update);
        }
        stop.cancel();
        told
    };
    let ((), told) = futures::join!(watching, reading);
    assert!(log.all()[0].query.contains("limit=100"), "{}", log.all()[0].query);
    told
}

#[tokio::test(start_paused = true)]
async fn a_refused_watch_is_told_from_one_that_broke() {
    for (reply, is_refused) in [
        (refusal(403, "Forbidden", "no", Value::Null), true),
        (refusal(401, "Unauthorized", "who are you", Value::Null), true),
        (
            refusal(500, "InternalError", "conversion webhook", Value::Null),
            false,
        ),
        (refusal(429, "TooManyRequests", "later", Value::Null), false),
    ] {
        let told = told(vec![reply], vec![], 1).await;
        let [NodeMaintenanceUpdate::Lost { refused, why }] = &told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(*refused, is_refused, "{why}");
    }
    let refused = vec![refusal(403, "Forbidden", "watch is not allowed", Value::Null)];
    let told = told(vec![list(&[])], refused, 3).await;
    assert!(
        matches!(&told[2], NodeMaintenanceUpdate::Lost { refused: true, .. }),
        "{told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn objects_are_told_as_they_come_and_go() {
    let told = told(
        vec![list(&[object("a")])],
        vec![ScriptedReply::Events(vec![
            event("ADDED", &object("b")),
            event("DELETED", &object("a")),
        ])],
        5,
    )
    .await;
    let words: Vec<String> = told
        .iter()
        .map(|update| match update {
            NodeMaintenanceUpdate::Reset => "reset".to_owned(),
            NodeMaintenanceUpdate::Seen(seen) => seen.name.clone(),
            NodeMaintenanceUpdate::Gone { name, .. } => format!("gone {name}"),
            NodeMaintenanceUpdate::Settled => "settled".to_owned(),
            NodeMaintenanceUpdate::Lost { why, .. } => why.clone(),
        })
        .collect();
    assert_eq!(words, ["reset", "a", "settled", "b", "gone a"]);
}
