use serde_json::{Value, json};

use super::*;
use haulout_core::fixtures;
use haulout_core::maintenance::episode::{Phase, Record};
use haulout_core::maintenance::record;
use haulout_kubernetes::stand_in::{ScriptedReply, event, refusal, scripted, updates_of};

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

/// Watches NodeMaintenances on the script, and returns the first `count` updates.
async fn updates(
    lists: Vec<ScriptedReply>,
    watches: Vec<ScriptedReply>,
    count: usize,
) -> Vec<NodeMaintenanceUpdate> {
    let (client, log) = scripted(lists, watches);
    let releases = Releases {
        own: "haulout/haulout".into(),
        adopted: Arc::default(),
    };
    let run = |context| run("gpu=true".to_owned(), releases, context);
    let updates = updates_of(client, count, Duration::from_secs(300), run).await;
    assert!(log.all()[0].query.contains("limit=100"), "{}", log.all()[0].query);
    let maintenance = |(_, update)| {
        let KubernetesUpdate::Maintenances(update) = update else {
            panic!("{update:?}");
        };
        update
    };
    updates.into_iter().map(maintenance).collect()
}

#[tokio::test(start_paused = true)]
async fn refused_watch_is_distinguished_from_a_broken_one() {
    for (reply, is_refused) in [
        (refusal(403, "Forbidden", "no", Value::Null), true),
        (refusal(401, "Unauthorized", "who are you", Value::Null), true),
        (
            refusal(500, "InternalError", "conversion webhook", Value::Null),
            false,
        ),
        (refusal(429, "TooManyRequests", "later", Value::Null), false),
    ] {
        let updates = updates(vec![reply], vec![], 1).await;
        let [NodeMaintenanceUpdate::Lost { refused, why }] = &updates[..] else {
            panic!("{updates:?}");
        };
        assert_eq!(*refused, is_refused, "{why}");
    }
    let refused = vec![refusal(403, "Forbidden", "watch is not allowed", Value::Null)];
    let updates = updates(vec![list(&[])], refused, 3).await;
    assert!(
        matches!(&updates[2], NodeMaintenanceUpdate::Lost { refused: true, .. }),
        "{updates:?}"
    );
}

fn words(updates: &[NodeMaintenanceUpdate]) -> Vec<String> {
    let words = updates.iter().map(|update| match update {
        NodeMaintenanceUpdate::Reset => "reset".to_owned(),
        NodeMaintenanceUpdate::Seen(seen) => seen.name.clone(),
        NodeMaintenanceUpdate::Answered(seen) => format!("answered {}", seen.name),
        NodeMaintenanceUpdate::Gone { name, .. } => format!("gone {name}"),
        NodeMaintenanceUpdate::Settled => "settled".to_owned(),
        NodeMaintenanceUpdate::Lost { why, .. } => why.clone(),
    });
    words.collect()
}

#[tokio::test(start_paused = true)]
async fn objects_are_sent_when_they_are_created_and_deleted() {
    let updates = updates(
        vec![list(&[object("a")])],
        vec![ScriptedReply::Events(vec![
            event("ADDED", &object("b")),
            event("DELETED", &object("a")),
        ])],
        5,
    )
    .await;
    assert_eq!(words(&updates), ["reset", "a", "settled", "b", "gone a"]);
}

#[tokio::test(start_paused = true)]
async fn request_that_a_finalizer_keeps_is_withdrawn() {
    let mut deleted = object("a");
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    deleted["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
    let changes = ScriptedReply::Events(vec![event("MODIFIED", &deleted)]);
    let updates = updates(vec![list(&[object("a"), object("b")])], vec![changes], 5).await;
    assert_eq!(words(&updates), ["reset", "a", "b", "settled", "gone a"]);
}

#[tokio::test(start_paused = true)]
async fn open_episode_of_this_release_is_sent_also_if_it_began_under_another_selector() {
    let of = |name: &str, selector: &str, release: &str, ended: Option<&str>| {
        let episode = Episode {
            release: release.into(),
            ..fixtures::episode(Phase::AwaitingHost, 0)
        };
        let record = record::write(&Record::Episode(episode.into()), fixtures::at(0)).episode;
        let mut object = object(name);
        object["spec"]["origin"] = json!("Episode");
        object["spec"]["action"] = json!("HostMaintenance");
        object["spec"]["selector"] = json!(selector);
        object["status"] = json!({"record": record, "endedAt": ended});
        object
    };
    let objects = [
        of("ours", "gpu=true", "haulout/haulout", None),
        of("before", "gpu", "haulout/haulout", None),
        of("ended", "gpu", "haulout/haulout", Some("2026-01-01T00:00:00Z")),
        of("of-others", "gpu", "other/haulout", None),
    ];
    let updates = updates(vec![list(&objects)], vec![], 4).await;
    assert_eq!(words(&updates), ["reset", "ours", "before", "settled"]);
}

#[tokio::test(start_paused = true)]
async fn object_that_cannot_be_read_keeps_no_other_from_being_sent() {
    let unreadable = |name: &str| {
        let mut object = object(name);
        object["spec"] = json!({"action": "Explode"});
        object
    };
    let updates = updates(
        vec![list(&[unreadable("odd"), object("a"), object("b")])],
        vec![ScriptedReply::Events(vec![
            event("MODIFIED", &unreadable("b")),
            event("DELETED", &unreadable("odd")),
            event("ADDED", &object("c")),
        ])],
        6,
    )
    .await;
    assert_eq!(words(&updates), ["reset", "a", "b", "settled", "gone b", "c"]);
}

/// Watches the objects of medik8s on the script, and returns the first `count` updates in words.
async fn foreign_updates(
    lists: Vec<ScriptedReply>,
    watches: Vec<ScriptedReply>,
    count: usize,
) -> Vec<String> {
    let (client, log) = scripted(lists, watches);
    let run = |context| run_foreign(ForeignApi::Medik8s, context);
    let updates = updates_of(client, count, Duration::from_secs(300), run).await;
    let path = "GET /apis/nodemaintenance.medik8s.io/v1beta1/nodemaintenances";
    assert_eq!(log.all()[0].line, path);
    let word = |(_, update)| {
        let KubernetesUpdate::ForeignMaintenances(ForeignApi::Medik8s, update) = update else {
            panic!("{update:?}");
        };
        match update {
            NodeMaintenanceUpdate::Reset => "reset".to_owned(),
            NodeMaintenanceUpdate::Seen(seen) if seen.role.asked().is_some() => seen.name.clone(),
            NodeMaintenanceUpdate::Seen(seen) => format!("{} refused", seen.name),
            NodeMaintenanceUpdate::Answered(seen) => format!("answered {}", seen.name),
            NodeMaintenanceUpdate::Gone { name, .. } => format!("gone {name}"),
            NodeMaintenanceUpdate::Settled => "settled".to_owned(),
            NodeMaintenanceUpdate::Lost { why, .. } => format!("lost: {why}"),
        }
    };
    updates.into_iter().map(word).collect()
}

fn not_found() -> ScriptedReply {
    refusal(
        404,
        "NotFound",
        "the server could not find the requested resource",
        Value::Null,
    )
}

#[tokio::test(start_paused = true)]
async fn absent_foreign_kind_has_no_objects_until_it_is_installed() {
    let lists = vec![not_found(), not_found(), list(&[object("a")])];
    let updates = foreign_updates(lists, vec![], 5).await;
    assert_eq!(updates, ["reset", "settled", "reset", "medik8s/a", "settled"]);
}

#[tokio::test(start_paused = true)]
async fn malformed_foreign_objects_delay_no_other() {
    let mut odd = object("odd");
    odd["spec"] = json!({"nodeName": ["no", "name"]});
    let mut none = object("none");
    none["spec"] = Value::Null;
    let updates = foreign_updates(vec![list(&[odd, none, object("a")])], vec![], 5).await;
    assert_eq!(
        updates,
        [
            "reset",
            "medik8s/odd refused",
            "medik8s/none refused",
            "medik8s/a",
            "settled"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn foreign_object_that_is_being_deleted_counts_as_deleted() {
    let mut deleted = object("a");
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    deleted["metadata"]["finalizers"] = json!(["foregroundDeleteNodeMaintenance"]);
    let events = vec![
        event("MODIFIED", &deleted),
        event("DELETED", &deleted),
        event("ADDED", &object("b")),
    ];
    let updates = foreign_updates(vec![list(&[object("a")])], vec![ScriptedReply::Events(events)], 5).await;
    assert_eq!(
        updates,
        ["reset", "medik8s/a", "settled", "gone medik8s/a", "medik8s/b"]
    );
}
